import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.task import Task


def span_inputs(distance, span, ramp):
    distance = distance if isinstance(distance, torch.Tensor) else torch.tensor(distance)
    return {"distance": distance, "span": torch.as_tensor(span), "ramp": ramp}


def ago(n):
    """Distances of n words, without a sign."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs()


def probes(rng):
    between = torch.rand(3, generator=rng, device="cpu") * 4
    return {
        "a row": span_inputs(torch.arange(10), 3.0, 4.0),
        "a span between two places": span_inputs(torch.arange(8), 2.7, 1.9),  # no corner on a place
        "span 0": span_inputs(torch.arange(6), 0.0, 3.0),
        "below 0": span_inputs(torch.arange(6), -1.5, 4.0),
        "far beyond": span_inputs(torch.arange(5), 20.0, 2.0),
        "a narrow ramp": span_inputs(torch.arange(7), 3.0, 0.25),
        "a ramp of 1": span_inputs(torch.arange(7), 2.5, 1.0),
        "a wide ramp": span_inputs(torch.arange(9), 1.5, 32.0),
        "a table": span_inputs(ago(5), 1.5, 2.0),
        "a span a head": span_inputs(ago(6), between[:, None, None], 2.5),
        "distances between places": span_inputs([0.0, 0.5, 1.25, 3.75], 1.25, 2.0),
        "double": span_inputs(torch.arange(7).double(), torch.tensor(2.25).double(), 3.0),
        "double distances": span_inputs(ago(4).double(), between[:, None, None], 2.5),
    }


def small(rng):
    for span, ramp in ((1.0, 1.0), (1.0, 2.0), (0.0, 2.0), (2.0, 4.0), (1.5, 2.0)):
        for n in (1, 2, 4, 7):
            yield span_inputs(torch.arange(n), span, ramp)
    yield span_inputs(ago(3), torch.tensor([[[0.5]], [[1.0]]]), 2.0)


task = Task(
    reference.span_mask,
    number=7,
    returns=("counts",),
    difficulty=1,
    minutes=10,
    section="adaptive-span",
    probes=probes,
    differentiated=("a span between two places", "a span a head"),
    small=small,
)


@task.check(1)
def up_to_the_span_all_counts(answer, rng):
    for span, ramp in ((3.0, 4.0), (2.5, 1.0), (0.0, 2.0), (3.0, 0.25)):
        inputs = span_inputs(torch.arange(10), span, ramp)
        counts = answer(inputs)
        if counts.shape != (10,):
            raise Failure(f"counts has shape {shape_of(counts)}; expected (10).", inputs)
        near = counts[: int(span) + 1]
        compare("what counts up to the span", near, torch.ones_like(near), inputs)


@task.check(1)
def beyond_span_and_ramp_nothing_counts(answer, rng):
    for span, ramp in ((3.0, 4.0), (2.5, 1.0), (0.0, 2.0), (3.0, 0.25), (2.8, 0.1)):
        inputs = span_inputs(torch.arange(12), span, ramp)
        far = answer(inputs)[int(span + ramp) + 1 :]
        compare("what counts beyond", far, torch.zeros_like(far), inputs)


@task.check(2)
def between_it_falls_in_a_straight_line(answer, rng):
    for span, ramp in ((3.0, 4.0), (1.5, 32.0), (2.5, 2.0), (3.0, 0.25), (-1.5, 4.0)):
        answer.matches(span_inputs(torch.arange(10), span, ramp))
    answer.matches(span_inputs([0.0, 0.5, 1.25, 3.75], 1.25, 2.0))


@task.check(1)
def every_head_may_have_its_span_and_digits_are_kept(answer, rng):
    spans = torch.rand(4, 1, 1, generator=rng, device="cpu") * 5
    answer.matches(span_inputs(ago(6), spans, 2.5))
    answer.matches(span_inputs(ago(4), spans[:1], 1.0))
    eighths = (8 * spans).round() / 8  # exact in float32, whatever is added first
    for each in (eighths, spans.double()):
        answer.matches(span_inputs(ago(4).double(), each, 1.0))


@task.check(2)
def the_span_can_be_learned(answer, rng):
    for span in (2.75, -1.5):
        answer.gradients_match(span_inputs(torch.arange(10), span, 4.0))
    spans = torch.rand(3, 1, 1, generator=rng, device="cpu") * 4
    answer.gradients_match(span_inputs(ago(6), spans, 2.5))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, span_inputs(torch.arange(10), 3.0, 4.0))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Span:
    def of_span(span):
        return span

    def of_distance(distance):
        return distance

    def of_ramp(ramp):
        return ramp

    def above(ramp, span, distance):
        return ramp + span - distance

    def slope(above, ramp, span):
        return above / ramp

    def clip(line):
        return line.clamp(0, 1)

    def result(counts, distance, span):
        return counts

    def __call__(self, distance, span, ramp):
        distance, span, ramp = self.of_distance(distance), self.of_span(span), self.of_ramp(ramp)
        line = self.slope(self.above(ramp, span, distance), ramp, span)
        return self.result(self.clip(line), distance, span)


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "A-HARD",
    clip=(
        lambda line: (line >= 1).to(line.dtype),
        lambda line: (line > 0).to(line.dtype),
        lambda line: (line >= 0.5).to(line.dtype),
    ),
)
task.fault("A-RAMP-INSIDE", above=lambda ramp, span, distance: span - distance)
task.fault("A-SPAN-SUBTRACTED", above=lambda ramp, span, distance: ramp - span - distance)
task.fault("A-RAMP-CENTERED", above=lambda ramp, span, distance: ramp / 2 + span - distance)
task.fault(
    "A-SHARE-OF-THE-LONGEST",
    above=lambda ramp, span, distance: ramp + span * distance.max() - distance,
)
task.fault("A-NOT-DIVIDED", slope=lambda above, ramp, span: above)
task.fault(
    "A-BY-THE-SPAN",
    slope=(
        lambda above, ramp, span: above / span,
        lambda above, ramp, span: 1 - (ramp - above) / span,
    ),
)
task.fault(
    "A-BY-SPAN-AND-RAMP",
    slope=(
        lambda above, ramp, span: 1 - (ramp - above).clamp(min=0) / (ramp + span),
        lambda above, ramp, span: 1 - (ramp - above) / (ramp + span),
        lambda above, ramp, span: torch.where(
            above > 0, 1 - (ramp - above).clamp(min=0) / (ramp + span), 0
        ),
    ),
)
task.fault("A-FROM-0", slope=lambda above, ramp, span: above / (ramp + span))
task.fault("A-STEEP", slope=lambda above, ramp, span: 1 + (above - ramp) * ramp)
task.fault(
    "A-STAIRS",
    of_distance=(lambda distance: distance.floor(), ..., lambda distance: distance.ceil()),
    above=(..., lambda ramp, span, distance: ramp - (distance - span).floor(), ...),
)
task.fault("A-NOT-ABOVE-1", clip=lambda line: line.clamp(min=0))
task.fault("A-NOT-BELOW-0", clip=lambda line: line.clamp(max=1))
task.fault("A-UNCUT", clip=lambda line: line)
task.fault(
    "A-SIGMOID",
    clip=(
        lambda line: line.sigmoid(),
        lambda line: (line - 1).sigmoid(),
        lambda line: (4 * line - 2).sigmoid(),
    ),
)
task.fault(
    "A-CURVED",
    clip=(
        lambda line: line.clamp(0, 1) ** 2,
        lambda line: line.clamp(0, 1).sqrt(),
        lambda line: (1 - torch.cos(torch.pi * line.clamp(0, 1))) / 2,
        lambda line: (line := line.clamp(0, 1)) ** 2 * (3 - 2 * line),
        lambda line: (line - 1).clamp(max=0).exp(),
    ),
)
task.fault(
    "A-OTHER-WAY",
    result=(lambda counts, distance, span: 1 - counts, ...),
    above=(..., lambda ramp, span, distance: distance - span),
)
task.fault(
    "A-SHARED",
    result=(
        lambda counts, distance, span: counts / counts.sum(-1, keepdim=True),
        lambda counts, distance, span: counts.softmax(-1),
    ),
)
task.fault(
    "A-ADDITIVE",
    result=(
        lambda counts, distance, span: counts.log(),
        lambda counts, distance, span: torch.where(counts > 0, 0.0, -torch.inf),
    ),
)
task.fault("A-BOOLEAN", result=lambda counts, distance, span: counts > 0)
task.fault("A-AS-THE-DISTANCES", result=lambda counts, distance, span: counts.to(distance.dtype))
task.fault("A-AS-THE-SPAN", result=lambda counts, distance, span: counts.to(span.dtype))
task.fault(
    "A-WHOLE-SPAN",
    of_span=(
        lambda span: span.floor(),
        lambda span: span.round(),
        lambda span: span.ceil(),
        lambda span: span.long(),
    ),
)
task.fault("A-DETACHED", of_span=lambda span: span.detach())
task.fault(
    "A-ONE-SPAN",
    of_span=(
        lambda span: span.max(),
        lambda span: span.mean(),
        lambda span: span.flatten()[0],
    ),
)
task.fault("C-FLOAT32", result=lambda counts, distance, span: counts.float())
task.fault("A-RAMP-OF-1", of_ramp=lambda ramp: 1.0)
task.fault("A-DISTANCE-FROM-1", of_distance=lambda distance: distance + 1)
task.fault(
    "A-STRICT-LINE",
    above=lambda ramp, span, distance: torch.where(distance <= span, ramp, ramp - distance),
)
task.fault("A-SPAN-NOT-BELOW-0", of_span=lambda span: span.clamp(min=0))

"""A span that can be learned: task 7 of chapter 11."""

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
        "a span between two places": span_inputs(torch.arange(8), 2.5, 2.0),
        "span 0": span_inputs(torch.arange(6), 0.0, 3.0),
        "far beyond": span_inputs(torch.arange(5), 20.0, 2.0),
        "a narrow ramp": span_inputs(torch.arange(7), 3.0, 0.25),
        "a ramp of 1": span_inputs(torch.arange(7), 2.5, 1.0),
        "a wide ramp": span_inputs(torch.arange(9), 1.5, 32.0),
        "a table": span_inputs(ago(5), 1.5, 2.0),
        "a span a head": span_inputs(ago(6), between[:, None, None], 2.5),
        "distances between places": span_inputs([0.0, 0.5, 1.25, 3.75], 1.25, 2.0),
        "double": span_inputs(torch.arange(7).double(), torch.tensor(2.25).double(), 3.0),
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
    hints=(
        "Draw it over the distance: flat at 1, then a straight line down, then flat at 0. Where "
        "does the line begin, and where does it end?",
        "It begins at the span and ends at span + ramp. The line that is 1 at the span and 0 at "
        "span + ramp, and then everything above 1 and below 0 cut off.",
        "((ramp + span − distance) / ramp).clamp(0, 1).",
    ),
    probes=probes,
    differentiated=("a span between two places", "a span a head"),
    small=small,
)


@task.check(1)
def up_to_the_span_all_counts(answer, rng):
    for span, ramp in ((3.0, 4.0), (2.5, 1.0), (0.0, 2.0)):
        inputs = span_inputs(torch.arange(10), span, ramp)
        counts = answer(inputs)
        if counts.shape != (10,):
            raise Failure(f"counts has shape {shape_of(counts)}; expected (10).", inputs)
        near = counts[: int(span) + 1]
        compare("what counts up to the span", near, torch.ones_like(near), inputs)


@task.check(1)
def beyond_span_and_ramp_nothing_counts(answer, rng):
    for span, ramp in ((3.0, 4.0), (2.5, 1.0), (0.0, 2.0)):
        inputs = span_inputs(torch.arange(12), span, ramp)
        far = answer(inputs)[int(span + ramp) + 1 :]
        compare("what counts beyond", far, torch.zeros_like(far), inputs)


@task.check(2)
def between_it_falls_in_a_straight_line(answer, rng):
    for span, ramp in ((3.0, 4.0), (1.5, 32.0), (2.5, 2.0), (3.0, 0.25)):
        answer.matches(span_inputs(torch.arange(10), span, ramp))
    answer.matches(span_inputs([0.0, 0.5, 1.25, 3.75], 1.25, 2.0))


@task.check(1)
def every_head_may_have_its_span(answer, rng):
    spans = torch.rand(4, 1, 1, generator=rng, device="cpu") * 5
    answer.matches(span_inputs(ago(6), spans, 2.5))
    answer.matches(span_inputs(ago(4), spans[:1], 1.0))
    answer.matches(span_inputs(ago(4).double(), spans.double(), 1.0))


@task.check(2)
def the_span_can_be_learned(answer, rng):
    answer.gradients_match(span_inputs(torch.arange(10), 2.75, 4.0))
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

    def result(counts):
        return counts

    def __call__(self, distance, span, ramp):
        distance, span, ramp = self.of_distance(distance), self.of_span(span), self.of_ramp(ramp)
        line = self.slope(self.above(ramp, span, distance), ramp, span)
        return self.result(self.clip(line))


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "A-HARD",
    "A span is a window: inside 1, outside 0.",
    "A step has no slope, so no gradient says whether the span should be longer. The ramp is what "
    "makes it learnable.",
    clip=(
        lambda line: (line >= 1).to(line.dtype),
        lambda line: (line > 0).to(line.dtype),
    ),
)
task.fault(
    "A-RAMP-INSIDE",
    "At the span nothing is left.",
    "The ramp begins there, and nothing is left at span + ramp. Yours is too short by a ramp.",
    above=lambda ramp, span, distance: span - distance,
)
task.fault(
    "A-RAMP-CENTERED",
    "The ramp lies around the span, half before and half after.",
    "It begins at the span: up to there all counts fully.",
    above=lambda ramp, span, distance: ramp / 2 + span - distance,
)
task.fault(
    "A-NOT-DIVIDED",
    "The line falls by 1 a word.",
    "Then it is 1 for most of the ramp, and the ramp's length does not matter. It falls by 1 over "
    "the *whole* ramp.",
    slope=lambda above, ramp, span: above,
)
task.fault(
    "A-BY-THE-SPAN",
    "The line falls over the length of the span.",
    "The ramp says over how many words it falls, the same for short and long spans. With a span "
    "of 0, yours divides by 0.",
    slope=lambda above, ramp, span: above / span,
)
task.fault(
    "A-FROM-0",
    "The mask falls from the word itself on, and is 0 at span + ramp.",
    "Up to the span everything counts in full. The line begins to fall at the span, and has the "
    "length of the ramp.",
    slope=lambda above, ramp, span: above / (ramp + span),
)
task.fault(
    "A-STEEP",
    "The ramp says how steep the line is.",
    "It says how *long* the line is: from 1 to 0 over so many words. A longer ramp falls less "
    "steeply, so divide by it.",
    slope=lambda above, ramp, span: 1 + (above - ramp) * ramp,
)
task.fault(
    "A-STAIRS",
    "Distances are whole numbers.",
    "The mask is asked for places between words, too, and the span moves by fractions. Rounded, "
    "the line becomes stairs, which have no slope to learn from.",
    of_distance=(lambda distance: distance.floor(), ...),
    above=(..., lambda ramp, span, distance: ramp - (distance - span).floor()),
)
task.fault(
    "A-NOT-ABOVE-1",
    "What is near counts more than 1.",
    "The line goes on to the left, above 1, and would favor near words over the scores. Cut it "
    "off at 1.",
    clip=lambda line: line.clamp(min=0),
)
task.fault(
    "A-NOT-BELOW-0",
    "What is far counts less than nothing.",
    "The line goes on to the right, below 0, and weights below 0 are no weights. Cut it off at 0.",
    clip=lambda line: line.clamp(max=1),
)
task.fault(
    "A-UNCUT",
    "The line is the mask.",
    "It goes above 1 and below 0. Cut off both.",
    clip=lambda line: line,
)
task.fault(
    "A-SIGMOID",
    "A soft step is a sigmoid.",
    "It never reaches 0, so no key can be left out of the computation. The paper cuts a straight "
    "line.",
    clip=(
        lambda line: line.sigmoid(),
        lambda line: (line - 1).sigmoid(),
        lambda line: (4 * line - 2).sigmoid(),
    ),
)
task.fault(
    "A-CURVED",
    "A smooth curve is better than corners.",
    "It may be; the paper has a straight line, whose gradient is the same everywhere on the ramp.",
    clip=(
        lambda line: line.clamp(0, 1) ** 2,
        lambda line: line.clamp(0, 1).sqrt(),
        lambda line: (1 - torch.cos(torch.pi * line.clamp(0, 1))) / 2,
    ),
)
task.fault(
    "A-OTHER-WAY",
    "The mask grows with the distance.",
    "Near words count, far ones do not. Yours says how much is *lost*.",
    result=(lambda counts: 1 - counts, ...),
    above=(..., lambda ramp, span, distance: distance - span),
)
task.fault(
    "A-SHARED",
    "The mask is shared out so that it sums to one.",
    "It multiplies e to the score; sharing out comes after that, over scores and mask together.",
    result=(
        lambda counts: counts / counts.sum(-1, keepdim=True),
        lambda counts: counts.softmax(-1),
    ),
)
task.fault(
    "A-ADDITIVE",
    "A mask is added to the scores, so it is the logarithm.",
    "Whoever applies it may take the logarithm. Asked is the factor itself, from 0 to 1.",
    result=(
        lambda counts: counts.log(),
        lambda counts: torch.where(counts > 0, 0.0, -torch.inf),
    ),
)
task.fault(
    "A-BOOLEAN",
    "A mask is boolean.",
    "This one is soft: on the ramp a key counts in part. With True and False nothing can be "
    "learned.",
    result=lambda counts: counts > 0,
)
task.fault(
    "A-WHOLE-SPAN",
    "A span is a whole number of words.",
    "It is a parameter that is learned, and moves by fractions. Rounded, it has no gradient.",
    of_span=(
        lambda span: span.floor(),
        lambda span: span.round(),
        lambda span: span.ceil(),
        lambda span: span.long(),
    ),
)
task.fault(
    "A-DETACHED",
    "The span is a setting, like the ramp.",
    "Then nothing is learned: `.item()`, `.detach()` and `float(…)` cut the gradient that says "
    "whether to look farther.",
    of_span=lambda span: span.detach(),
)
task.fault(
    "A-RAMP-OF-1",
    "A soft edge is one word wide.",
    "Its width is an argument. Over a wider ramp a gradient comes from farther away.",
    of_ramp=lambda ramp: 1.0,
)
task.fault(
    "A-DISTANCE-FROM-1",
    "The word itself is at distance 1.",
    "At 0. Yours reaches one word less.",
    of_distance=lambda distance: distance + 1,
)
task.fault(
    "A-STRICT-LINE",
    "The line is 1 − distance / ramp, after the span.",
    "The distance counts from the *span* on, not from the word itself.",
    above=lambda ramp, span, distance: torch.where(distance <= span, ramp, ramp - distance),
)

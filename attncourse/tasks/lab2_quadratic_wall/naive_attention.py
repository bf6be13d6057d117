import math

import torch

from attncourse.checks.answer import Failure, Unanswered, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.lab.meters import count


def qkv(rng, b, h, n, d, make=normal, **options):
    return {name: make(rng, b, h, n, d, **options) for name in ("q", "k", "v")}


def probes(rng):
    return {
        "ordinary": qkv(rng, 2, 3, 5, 4),
        "wide": qkv(rng, 1, 2, 3, 7),
        "square": qkv(rng, 4, 4, 4, 4),
        "one position": qkv(rng, 2, 2, 1, 3),
        "double": qkv(rng, 2, 1, 6, 5, dtype=torch.float64),
    }


def small(rng):
    yield qkv(rng, 1, 1, 2, 1, make=integers)
    yield qkv(rng, 1, 1, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 3, 4)


def metered(attention):
    """The answer under the meter: the bytes of its biggest tensor."""

    def function(q, k, v):
        output = []
        counts = count(lambda: output.append(attention(q, k, v)))
        return None if output[0] is None else {"biggest": counts.biggest_bytes}

    return function


METERED = {"b": 2, "h": 3, "d": 4}


def biggest(answer, n, rng=None):
    """Numbers in the biggest tensor that an answer makes for n positions."""
    rng = rng or torch.Generator().manual_seed(n)
    inputs = qkv(rng, METERED["b"], METERED["h"], n, METERED["d"])
    seen = answer.observe(inputs, adapt=metered)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned["biggest"] / 4


def traits(answer):
    small, large = biggest(answer, 64), max(biggest(answer, 256), 1)
    scores = METERED["b"] * METERED["h"] * 256**2
    double = qkv(torch.Generator().manual_seed(0), 2, 1, 6, 5, dtype=torch.float64)
    near = double | {"q": double["q"] * (1 + 1e-11)}
    return {
        "reads seven digits of q": torch.equal(answer(double), answer(near)),
        "its memory grows like n": math.log(large / max(small, 1), 4) < 1.5,
        "one head at a time": math.isclose(large, 256**2, rel_tol=0.05),
        "one head of all sentences": math.isclose(large, METERED["b"] * 256**2, rel_tol=0.05),
        "one sentence at a time": math.isclose(large, METERED["h"] * 256**2, rel_tol=0.05),
        "more than the scores": large > 1.05 * scores,
        "less than the scores": large < 0.95 * scores,
        "twice the scores": math.isclose(large, 2 * scores, rel_tol=0.05),
    }


task = Task(
    reference.naive_attention,
    number=1,
    returns=("output",),
    difficulty=1,
    minutes=8,
    section="lab2-naive",
    probes=probes,
    small=small,
    differentiated=("ordinary",),
    forbidden=FUSED_ATTENTION,
    traits=traits,
)


@task.check(1)
def each_position_gets_one_vector_from_each_head(answer, rng):
    for b, h, n, d in ((2, 3, 5, 4), (1, 2, 4, 7), (2, 2, 1, 3)):
        inputs = qkv(rng, b, h, n, d)
        output = answer(inputs)
        if output.shape != (b, h, n, d):
            raise Failure(
                f"The output has shape {shape_of(output)}; expected (b h n d) = ({b} {h} {n} {d}).",
                inputs,
            )


@task.check(2)
def the_values_are_those_of_the_formula(answer, rng):
    for sizes in ((2, 3, 5, 4), (1, 2, 3, 7), (3, 3, 3, 3), (2, 2, 1, 3)):
        answer.matches(qkv(rng, *sizes))
    inputs = qkv(rng, 2, 2, 6, 5, dtype=torch.float64)
    answer.matches(inputs, tolerance=1e-9)


@task.check(2)
def all_scores_exist_at_once_and_nothing_larger(answer, rng):
    for n in (64, 128):
        found = biggest(answer, n, rng)
        scores = METERED["b"] * METERED["h"] * n * n
        if not math.isclose(found, scores, rel_tol=0.05):
            raise Failure(
                f"For b = {METERED['b']}, h = {METERED['h']}, n = {n} the scores are "
                f"b·h·n·n = {scores:,} numbers. The biggest tensor that your answer makes has "
                f"{found:,.0f} (counted in float32). Naive attention makes the whole table of "
                "scores, and nothing bigger."
            )


@task.check(2, "the biggest tensor grows like n²")
def the_biggest_tensor_grows_like_n_squared(answer, rng):
    sizes = (64, 128, 256)
    found = [biggest(answer, n, rng) for n in sizes]
    exponent = math.log(max(found[-1], 1) / max(found[0], 1), sizes[-1] / sizes[0])
    if abs(exponent - 2) > 0.05:
        raise Failure(
            f"From n = {sizes[0]} to n = {sizes[-1]} your biggest tensor grows like "
            f"n^{exponent:.2f}; in naive attention it grows like n^2.00."
        )


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, qkv(rng, 2, 2, 4, 3))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Naive:
    def split(q, k, v):
        return [(q, k, v)]

    def compare(q, k):
        return q @ k.mT

    def scale(scores, q):
        return scores / math.sqrt(q.shape[-1])

    def hide(scores):
        return scores

    def share(scores):
        return torch.softmax(scores, dim=-1)

    def weigh(weights, v):
        return weights

    def average(weights, v):
        return weights @ v

    def one(self, q, k, v):
        scores = self.hide(self.scale(self.compare(q, k), q))
        return self.average(self.weigh(self.share(scores), v), v)

    def join(outputs, q):
        return outputs[0]

    def result(output):
        return output

    def __call__(self, q, k, v):
        return self.result(self.join([self.one(*part) for part in self.split(q, k, v)], q))


# --- faults -------------------------------------------------------------------------------------


def rows(count):
    """So many queries at a time."""
    return lambda q, k, v: [(part, k, v) for part in q.split(count, dim=-2)]


def beside(outputs, q):
    return torch.cat(outputs, dim=-2)


def heads(q, k, v):
    return zip(*(tensor.flatten(0, 1) for tensor in (q, k, v)), strict=True)


def stacked(outputs, q):
    return torch.stack(outputs).reshape(q.shape)


def causal(scores):
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf)


def scaled_weights(weights, v):
    return weights / math.sqrt(v.shape[-1])


def all_together(first_axis):
    """One softmax over all axes from this one on."""
    return lambda scores: scores.flatten(first_axis).softmax(-1).view(scores.shape)


task.fault("L2-ROW-BY-ROW", split=(rows(1), rows(16)), join=beside)
task.fault(
    "L2-HEAD-BY-HEAD",
    split=(heads, lambda q, k, v: zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)),
    join=(stacked, lambda outputs, q: torch.stack(outputs, dim=1)),
)
task.fault("L2-SENTENCE-BY-SENTENCE", split=lambda q, k, v: zip(q, k, v, strict=True), join=stacked)
task.fault(
    "L2-BROADCAST-PRODUCT", compare=lambda q, k: (q[:, :, :, None, :] * k[:, :, None, :, :]).sum(-1)
)
task.fault("L2-NO-SCALE", scale=lambda scores, q: scores)
task.fault("L2-SCALE-BY-N", scale=lambda scores, q: scores / math.sqrt(scores.shape[-1]))
task.fault("C-SCALE-HEADS", scale=lambda scores, q: scores / math.sqrt(q.shape[1]))
task.fault("C-SCALE-MODEL", scale=lambda scores, q: scores / math.sqrt(q[0, :, 0].numel()))
task.fault("L2-SOFTMAX-AXIS", share=lambda scores: torch.softmax(scores, dim=-2))
task.fault("C-SOFTMAX-HEADS", share=lambda scores: torch.softmax(scores, dim=1))
task.fault("C-SOFTMAX-SENTENCES", share=lambda scores: torch.softmax(scores, dim=0))
task.fault(
    "L2-HEADS-MIXED",
    split=lambda q, k, v: [tuple(tensor.transpose(1, 2) for tensor in (q, k, v))],
    join=lambda outputs, q: outputs[0].transpose(1, 2),
)
task.fault(
    "L2-DOUBLE",
    split=lambda q, k, v: [(q.double(), k.double(), v.double())],
    join=(lambda outputs, q: outputs[0].to(q.dtype), ...),
)
task.fault(
    "L2-HEADS-SHARE-TABLE",
    compare=(
        lambda q, k: (q @ k.mT).mean(1, keepdim=True),
        lambda q, k: (q @ k.mT).sum(1, keepdim=True),
    ),
)
task.fault("L2-SCALE-D", scale=lambda scores, q: scores / q.shape[-1])
task.fault("L2-KEYS-ASK", compare=lambda q, k: k @ q.mT)
task.fault(
    "C-FLOAT32",
    split=(
        lambda q, k, v: [(q.float(), k.float(), v.float())],
        lambda q, k, v: [(q.float(), k.float(), v.float())],
        ...,
    ),
    join=(..., lambda outputs, q: outputs[0].to(q.dtype), ...),
    share=(..., ..., lambda scores: torch.softmax(scores.float(), dim=-1).to(scores.dtype)),
)
task.fault("D-SCALE-TIMES", scale=lambda scores, q: scores * math.sqrt(q.shape[-1]))
task.fault("D-SCALE-AFTER", scale=lambda scores, q: scores, weigh=scaled_weights)
task.fault("D-SOFTMAX-ALL", share=(all_together(2), all_together(1), all_together(0)))
task.fault("L2-WEIGHTS-TURNED", average=lambda weights, v: weights.mT @ v)
task.fault(
    "D-QUERY-DIVIDED-IN-PLACE",
    compare=lambda q, k: q.div_(math.sqrt(q.shape[-1])) @ k.mT,
    scale=lambda scores, q: scores,
)
task.fault(
    "L2-ALL-AXES-TURNED",
    compare=(
        lambda q, k: q @ k.T,
        lambda q, k: q @ k.transpose(1, 2),
        lambda q, k: q @ k.transpose(1, 2).transpose(2, 3),
    ),
)
task.fault(
    "D-RESHAPE-KEY",
    compare=lambda q, k: q @ k.reshape(k.shape[0], k.shape[1], k.shape[3], k.shape[2]),
)
task.fault("L2-KEYS-AS-VALUES", split=lambda q, k, v: [(q, v, k)])
task.fault("L2-HEADS-JOINED", result=lambda output: output.transpose(1, 2).flatten(2))
task.fault("L2-SIGMOID", share=torch.sigmoid)
task.fault("L2-PAIR", average=lambda weights, v: (weights @ v, weights))
task.fault("L2-CAUSAL", hide=causal)
task.fault("L2-NO-SOFTMAX", share=lambda scores: scores)
task.fault("L2-AVERAGES-KEYS", split=lambda q, k, v: [(q, k, k)])

import math
import operator

import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, describe, moves_nothing
from attncourse.checks.extremes import with_far_scores
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.lab.meters import count
from attncourse.tasks import as_is


def in_shards(attention):
    """The answer as a function of tensors: a text is cut by `sizes`, and put together again."""

    def function(*, query, key, value, sizes):
        outputs = attention(*(list(x.split(sizes, -2)) for x in (query, key, value)))
        return None if outputs is None else torch.cat(taken(outputs, len(sizes)), -2)

    return function


def taken(outputs, p):
    """p tensors, or Unusable with what came instead."""
    if not isinstance(outputs, tuple | list) or len(outputs) != p:
        raise Unusable(f"returned {describe(outputs)}; a list of {p} tensors is expected.")
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise Unusable(f"returned a list with {describe(outputs[0])}; tensors are expected.")
    return list(outputs)


def ring_inputs(rng, *batch, sizes=(2, 2, 2), d=4, v=3, make=normal, **options):
    n = sum(sizes)
    return {
        "query": make(rng, *batch, n, d, **options),
        "key": make(rng, *batch, n, d, **options),
        "value": make(rng, *batch, n, v, **options),
        "sizes": list(sizes),
    }


def far_apart(rng, *sizes):
    """Keys of which one shard fits far better than the others."""
    inputs = ring_inputs(rng, 2, sizes=sizes)
    inputs["key"][..., : sizes[0], :] += 12 * inputs["query"].sign().mean(-2, keepdim=True)
    return inputs


def probes(rng):
    return {
        "three shards": ring_inputs(rng, 2),
        "two shards": ring_inputs(rng, 2, 3, sizes=(3, 3)),
        "one shard": ring_inputs(rng, 2, sizes=(4,)),
        "four shards of one": ring_inputs(rng, 2, sizes=(1, 1, 1, 1)),
        "five shards": ring_inputs(rng, 2, sizes=(2, 2, 2, 2, 2)),
        "of different lengths": ring_inputs(rng, 2, sizes=(3, 1, 4)),
        "short first": ring_inputs(rng, 1, 2, sizes=(1, 5)),
        "all equal": ring_inputs(rng, 3, sizes=(3, 3, 3), d=3, v=3),
        "wide": ring_inputs(rng, 2, sizes=(2, 3), d=16),
        "no batch": ring_inputs(rng, sizes=(2, 2)),
        "one fits far better": far_apart(rng, 2, 3, 2),
        "large": {
            name: value if name == "sizes" else 30 * value
            for name, value in ring_inputs(rng, 2, sizes=(3, 2)).items()
        },
        "double": ring_inputs(rng, 2, sizes=(2, 3, 2), dtype=torch.float64),
        "values as wide as queries": ring_inputs(rng, 2, sizes=(1, 4, 2), d=3, v=3),
    }


def small(rng):
    for sizes in ((1,), (2,), (1, 1), (1, 2), (2, 1), (1, 1, 1), (2, 2), (1, 3)):
        for d in (1, 4):
            yield ring_inputs(rng, sizes=sizes, d=d, v=1, make=integers)
    yield ring_inputs(rng, 2, sizes=(2, 1, 2), d=2, v=2, make=integers)


def metered(attention):
    """The answer under the meter: its biggest tensor, in bytes."""

    def function(*, query, key, value, sizes):
        cut = [list(x.split(sizes, -2)) for x in (query, key, value)]
        returned = []
        counts = count(lambda: returned.append(attention(*cut)))
        return None if returned[0] is None else [counts.biggest_bytes]

    return function


SHARDS = 8  # of a text under the meter


def biggest(answer):
    """The biggest tensor of the answer over a shard of keys."""
    inputs = ring_inputs(torch.Generator().manual_seed(0), sizes=[4] * SHARDS, d=8, v=8)
    return answer.returned(inputs, adapt=metered)[0] / (4 * 4 * 8)


def lists_kept(attention):
    """Whether the lists hold the same shards, in the same order, when the answer returns."""

    def function(*, query, key, value, sizes):
        given = [list(x.split(sizes, -2)) for x in (query, key, value)]
        before = [list(each) for each in given]
        if attention(*given) is None:
            return None
        return all(
            len(now) == len(then) and all(map(operator.is_, now, then))
            for now, then in zip(given, before, strict=True)
        )

    return function


def traits(answer):
    size = biggest(answer)
    kept = answer.observe(ring_inputs(torch.Generator().manual_seed(0)), adapt=lists_kept).returned
    return {
        "changes its lists": kept is False,
        "holds more than two shards": size > 2,
        "holds all keys": size >= SHARDS,
    }


task = Task(
    reference.ring_attention,
    number=6,
    returns=("outputs of all processes, joined",),
    difficulty=4,
    minutes=40,
    section="ring",
    probes=probes,
    adapt=in_shards,
    differentiated=("three shards", "of different lengths"),
    small=small,
    forbidden=FUSED_ATTENTION,
    traits=traits,
)


@task.check(1)
def every_process_gets_the_output_of_its_queries(answer, rng):
    for sizes in ((2, 2, 2), (3, 1, 4), (4,)):
        inputs = ring_inputs(rng, 2, sizes=sizes)
        shapes = answer.returned(inputs, adapt=shapes_of)
        expected = [[2, size, 3] for size in sizes]
        if shapes != expected:
            raise Failure(f"The outputs have shapes {shapes}; expected {expected}.", inputs)


def shapes_of(attention):
    def function(*, query, key, value, sizes):
        outputs = attention(*(list(x.split(sizes, -2)) for x in (query, key, value)))
        if outputs is None:
            return None
        return [list(output.shape) for output in taken(outputs, len(sizes))]

    return function


@task.check(1)
def one_process_is_plain_attention(answer, rng):
    answer.matches(ring_inputs(rng, 2, sizes=(5,)))
    answer.matches(ring_inputs(rng, 2, 3, sizes=(3,), d=3, v=3))
    answer.matches(ring_inputs(rng, 2, sizes=(5,), dtype=torch.float64))


@task.check(3)
def any_number_of_processes_gives_full_attention(answer, rng):
    for sizes in ((3, 3), (2, 2, 2), (1, 1, 1, 1), (2, 2, 2, 2, 2)):
        answer.matches(ring_inputs(rng, 2, 2, sizes=sizes))
    answer.matches(ring_inputs(rng, 3, sizes=(3, 3, 3), d=3, v=3))
    answer.matches(ring_inputs(rng, 2, sizes=(2, 3, 2), dtype=torch.float64))


@task.check(2)
def shards_may_differ_in_length(answer, rng):
    for sizes in ((3, 1, 4), (1, 5), (4, 1)):
        answer.matches(ring_inputs(rng, 2, sizes=sizes))


@task.check(2)
def large_scores_are_joined_exactly(answer, rng):
    answer.matches(far_apart(rng, 2, 3, 2))
    inputs = ring_inputs(rng, 2, sizes=(3, 2))
    answer.matches({name: x if name == "sizes" else 30 * x for name, x in inputs.items()})
    inputs = ring_inputs(rng, 2, sizes=(3, 2))
    query, key = with_far_scores(inputs["query"], inputs["key"])
    answer.matches(inputs | {"query": query, "key": key}, tolerance=1e-3)


@task.check(2)
def no_process_holds_more_than_two_shards(answer, rng):
    size = biggest(answer)
    if size > 2:
        raise Failure(
            f"A text of {4 * SHARDS} positions in {SHARDS} shards: your answer makes a tensor "
            f"{size:.0f} times as large as a shard of keys. Then {SHARDS} processes gain nothing: "
            "what one of them holds should not grow with the number of shards."
        )


@task.check(1, "gradients reach query, key and value")
def gradients_reach_query_key_and_value(answer, rng):
    answer.gradients_match(ring_inputs(rng, 2, sizes=(2, 3)))
    answer.gradients_match(ring_inputs(rng, 2))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, ring_inputs(rng, 2, sizes=(2, 1, 2)))
    inputs = ring_inputs(rng, 2)
    if not answer.returned(inputs, adapt=lists_kept):
        raise Failure(
            "After your answer, the lists that it was given hold other shards, or the same ones in "
            "another order. The caller still needs them: work on lists of your own.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Ring:
    def met(i, p):
        """Whose shards process i meets, in order."""
        return [(i - step) % p for step in range(p)]

    def scale(scores, query, value):
        return scores / math.sqrt(query.shape[-1])

    def hide(scores, i, j):
        return scores

    def total(scores, largest):
        """The logarithm of a sum of weights; `largest` is the largest score so far."""
        return scores.logsumexp(-1)

    def share(scores):
        return scores.softmax(-1)

    def average(weights, value, key):
        return weights @ value

    def carried(values, i, j):
        """The values that process i reads with the keys of shard j."""
        return values[j]

    def begin(query, value):
        return None

    def part_of_two(total_1, total_2, k):
        return (total_2 - total_1).sigmoid()

    def both(total_1, total_2):
        return torch.logaddexp(total_1, total_2)

    def mixed(self, so_far, output, total, both, k):
        part = self.part_of_two(so_far[1], total, k)[..., None]
        return so_far[0] + part * (output - so_far[0])

    def room(output, query):
        """An output, where there is room for it."""
        return output

    def results(outputs):
        return outputs

    def __call__(self, query_shards, key_shards, value_shards):
        p, outputs = len(query_shards), []
        for i, query in enumerate(query_shards):
            so_far = self.begin(query, value_shards[i])
            largest = torch.full(query.shape[:-1], -math.inf).to(query)
            for j in self.met(i, p):
                key, value = key_shards[j], self.carried(value_shards, i, j)
                scores = self.hide(self.scale(query @ key.mT, query, value), i, j)
                largest = torch.maximum(largest, scores.amax(-1))
                total = self.total(scores, largest)
                output = self.average(self.share(scores), value, key)
                if so_far is not None:
                    both = self.both(so_far[1], total)
                    output = self.mixed(so_far, output, total, both, key.shape[-2])
                    total = both
                so_far = output, total
            outputs.append(self.room(so_far[0], query))
        return self.results(outputs)


# Joining is the same in any order; what goes wrong in joining is not.
task.spelling(met=lambda i, p: list(range(p)))
task.spelling(met=lambda i, p: [(i + step) % p for step in range(p)])

# --- faults: joining ----------------------------------------------------------------------------

MERGE = {"section": "ring-merge"}


def each_by_itself(self, query_shards, key_shards, value_shards, weight):
    """Of each query the sum of its outputs over the shards that it meets, times their weights."""
    results = []
    for i, query in enumerate(query_shards):
        outputs, met = [], self.met(i, len(query_shards))
        lengths = [key_shards[j].shape[-2] for j in met]
        for j in met:
            key, value = key_shards[j], self.carried(value_shards, i, j)
            weights = self.share(self.hide(self.scale(query @ key.mT, query, value), i, j))
            outputs.append(weight(key.shape[-2], lengths) * self.average(weights, value, key))
        results.append(self.room(sum(outputs), query))
    return self.results(results)


mean = task.fault("R-MEAN", **MERGE)


@mean
class Mean(Ring):
    def __call__(self, *shards):
        return each_by_itself(self, *shards, lambda k, lengths: 1 / len(lengths))


@mean
class MeanOfStack(Ring):
    """All outputs of a query in one tensor, before their mean is taken."""

    def __call__(self, query_shards, key_shards, value_shards):
        results = []
        for i, query in enumerate(query_shards):
            outputs = []
            for j in self.met(i, len(query_shards)):
                key, value = key_shards[j], self.carried(value_shards, i, j)
                weights = self.share(self.hide(self.scale(query @ key.mT, query, value), i, j))
                outputs.append(self.average(weights, value, key))
            results.append(self.room(torch.stack(outputs).mean(0), query))
        return self.results(results)


@task.fault("R-MEAN-BY-LENGTH", **MERGE)
class MeanByLength(Ring):
    def __call__(self, *shards):
        return each_by_itself(self, *shards, lambda k, lengths: k / sum(lengths))


@task.fault("R-SUM", **MERGE)
class Sum(Ring):
    def __call__(self, *shards):
        return each_by_itself(self, *shards, lambda k, lengths: 1)


task.fault("R-HALF", **MERGE, part_of_two=lambda total_1, total_2, k: torch.full_like(total_1, 0.5))
task.fault(
    "R-SHARE-SWAPPED",
    **MERGE,
    part_of_two=lambda total_1, total_2, k: (total_1 - total_2).sigmoid(),
    both=(..., lambda total_1, total_2: -torch.logaddexp(-total_1, -total_2)),
)
task.fault(
    "R-BY-LOGARITHMS",
    **MERGE,
    part_of_two=lambda total_1, total_2, k: total_2 / (total_1 + total_2),
    both=(..., torch.add),
)
task.fault(
    "R-BETTER-WINS",
    **MERGE,
    part_of_two=lambda total_1, total_2, k: (total_2 > total_1).to(total_1.dtype),
    both=(..., torch.maximum),
)
task.fault(
    "R-NEWEST-ONLY", **MERGE, part_of_two=lambda total_1, total_2, k: torch.ones_like(total_1)
)
task.fault(
    "R-OVERFLOW",
    **MERGE,
    part_of_two=lambda total_1, total_2, k: total_2.exp() / (total_1.exp() + total_2.exp()),
)


class PlainSums(Ring):
    """Sums of e to the scores themselves, divided in the end."""

    def __call__(self, query_shards, key_shards, value_shards):
        p, outputs = len(query_shards), []
        for i, query in enumerate(query_shards):
            sums = total = 0
            for j in self.met(i, p):
                key, value = key_shards[j], self.carried(value_shards, i, j)
                powers = self.hide(self.scale(query @ key.mT, query, value), i, j).exp()
                sums = sums + self.average(powers, value, key)
                total = total + powers.sum(-1, keepdim=True)
            outputs.append(self.room(sums / total, query))
        return self.results(outputs)


task.faults["R-OVERFLOW"].forms.append(PlainSums)


def by_exponents(self, so_far, output, total, both, k):
    """Each output times e to its own logarithm less that of both."""
    first, second = ((each - both).exp()[..., None] for each in (so_far[1], total))
    return first * so_far[0] + second * output


for id, wrong in (
    ("R-LAST-TOTAL", lambda total_1, total_2: total_2),
    ("R-FIRST-TOTAL", lambda total_1, total_2: total_1),
    ("R-ADDED-LOGARITHMS", lambda total_1, total_2: total_1 + total_2),
    ("R-LARGER-TOTAL", torch.maximum),
):
    task.fault(id, **MERGE, both=wrong, mixed=(..., by_exponents))
task.fault("R-LARGEST-SCORE", **MERGE, total=lambda scores, largest: scores.amax(-1))


def online(of_values, of_weights, first=None):
    """Sums shifted by the largest score so far, and what they are multiplied by when it grows."""

    class Online(Ring):
        def __call__(self, query_shards, key_shards, value_shards):
            p, outputs = len(query_shards), []
            for i, query in enumerate(query_shards):
                largest, sums, total = first, 0, 0
                for j in self.met(i, p):
                    key, value = key_shards[j], self.carried(value_shards, i, j)
                    scores = self.hide(self.scale(query @ key.mT, query, value), i, j)
                    new = scores.amax(-1, keepdim=True)
                    largest = new if largest is None else torch.as_tensor(largest).to(new)
                    new = torch.maximum(largest, new)
                    powers, grown = (scores - new).exp(), new - largest
                    sums = sums * of_values(grown) + self.average(powers, value, key)
                    total = total * of_weights(grown) + powers.sum(-1, keepdim=True)
                    largest = new
                outputs.append(self.room(sums / total, query))
            return self.results(outputs)

    return Online


def down(grown):
    return (-grown).exp()


def not_at_all(grown):
    return 1


task.fault(
    "R-NOT-RESCALED",
    **MERGE,
    total=(
        lambda scores, largest: (scores - scores.amax(-1, keepdim=True)).logsumexp(-1),
        lambda scores, largest: scores.logsumexp(-1) - scores.amax(-1).detach(),
        lambda scores, largest: scores.logsumexp(-1) - largest,
        lambda scores, largest: scores.logsumexp(-1) - largest.detach(),
    ),
)
task.fault(
    "R-DIVISOR-NOT-RESCALED",
    **MERGE,
    forms=[online(down, not_at_all)],
)
task.fault(
    "R-OUTPUT-NOT-RESCALED",
    **MERGE,
    forms=[online(not_at_all, down)],
)
task.fault("R-LARGEST-FROM-ZERO", **MERGE, forms=[online(down, down, first=0.0)])
task.fault(
    "R-TWO-BASES",
    **MERGE,
    total=lambda scores, largest: scores.logsumexp(-1) / math.log(2),
)
task.fault(
    "R-RESCALED-UP",
    **MERGE,
    forms=[online(torch.exp, torch.exp)],
)
task.fault(
    "R-BEGINS-AT-ZERO",
    **MERGE,
    begin=lambda query, value: (
        torch.zeros(*query.shape[:-1], value.shape[-1]).to(value),
        torch.zeros(query.shape[:-1]).to(query),
    ),
)

# --- faults: the ring ---------------------------------------------------------------------------

task.fault("R-OWN-ONLY", met=lambda i, p: [i])
task.fault(
    "R-ONE-ROUND-SHORT",
    met=(
        lambda i, p: [(i - step) % p for step in range(p - 1)] or [i],
        lambda i, p: [(i + step) % p for step in range(p - 1)] or [i],
        lambda i, p: [(i - step) % p for step in range(p - 1)],
    ),
)
task.fault("R-ONE-ROUND-MORE", met=lambda i, p: [(i - step) % p for step in range(p + 1)])
task.fault(
    "R-VALUES-STAY",
    carried=lambda values, i, j: values[i],
    average=(..., lambda weights, value, key: cut_to_fit(weights, value)),
)


task.fault(
    "R-VALUES-OTHER-WAY",
    carried=lambda values, i, j: values[(2 * i - j) % len(values)],
    average=(..., lambda weights, value, key: cut_to_fit(weights, value)),
)


def cut_to_fit(weights, value):
    k = min(weights.shape[-1], value.shape[-2])
    return weights[..., :k] @ value[..., :k, :]


task.fault("R-NEIGHBORS", met=lambda i, p: sorted({(i - 1) % p, i, (i + 1) % p}))
task.fault(
    "R-OTHERS-ONLY",
    met=(
        lambda i, p: [(i - step) % p for step in range(1, p)] or [i],
        lambda i, p: [(i - step) % p for step in range(1, p)],
    ),
)


def own_shard_in_order(scores, i, j):
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf) if i == j else scores


task.fault(
    "R-CAUSAL",
    met=(
        lambda i, p: list(range(i + 1)),
        lambda i, p: list(range(i + 1)),
        ...,
        lambda i, p: list(range(i, -1, -1)),
        lambda i, p: list(range(i, -1, -1)),
    ),
    hide=(..., own_shard_in_order, own_shard_in_order, ..., own_shard_in_order),
)
task.fault("R-NOT-TRAVELLING", met=lambda i, p: [0] * p)


@task.fault("R-GATHERED")
class Gathered(Ring):
    def __call__(self, query_shards, key_shards, value_shards):
        outputs = []
        for i, query in enumerate(query_shards):
            met = self.met(i, len(query_shards))
            key = torch.cat([key_shards[j] for j in met], -2)
            value = torch.cat([self.carried(value_shards, i, j) for j in met], -2)
            weights = self.share(self.scale(query @ key.mT, query, value))
            outputs.append(self.room(self.average(weights, value, key), query))
        return self.results(outputs)


@task.fault("R-STACKED")
class Stacked(Ring):
    def __call__(self, query_shards, key_shards, value_shards):
        stacks = torch.stack(list(key_shards)), torch.stack(list(value_shards))
        return super().__call__(query_shards, *stacks)


# --- faults: attention itself, and what comes back ----------------------------------------------

task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query, value: scores / query.shape[-1])
task.fault("D-SCALE-DV", scale=lambda scores, query, value: scores / math.sqrt(value.shape[-1]))
task.fault("D-SCALE-KEYS", scale=lambda scores, query, value: scores / math.sqrt(scores.shape[-1]))
task.fault("D-SCALE-TIMES", scale=lambda scores, query, value: scores * math.sqrt(query.shape[-1]))
task.fault("D-SOFTMAX-DIM", share=lambda scores: scores.softmax(-2))
task.fault("D-NO-SOFTMAX", share=as_is)
task.fault("D-KEY-AS-VALUE", average=lambda weights, value, key: weights @ key)
task.fault(
    "R-ROOM-LIKE-QUERY",
    room=lambda output, query: torch.zeros_like(query).add_(output),
)
task.fault("R-NOT-SHARED", share=lambda scores: scores.exp())
task.fault("R-ONE-TENSOR", results=(lambda outputs: torch.cat(outputs, -2), torch.stack))
task.fault(
    "R-HANDED-ON",
    results=(
        lambda outputs: outputs[-1:] + outputs[:-1],
        lambda outputs: outputs[1:] + outputs[:1],
    ),
)


@task.fault("C-FLOAT32")
class InFloat32(Ring):
    def __call__(self, *shards):
        return super().__call__(*([x.float() for x in each] for each in shards))


@task.fault("R-LISTS-TURNED")
class ListsTurned(Ring):
    """The lists are the ring: the last shard goes to the front, once less than there are shards."""

    def __call__(self, query_shards, key_shards, value_shards):
        outputs = super().__call__(query_shards, key_shards, value_shards)
        for shards in (key_shards, value_shards):
            shards.append(shards.pop(0))
        return outputs

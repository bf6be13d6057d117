"""merge."""

import math

import torch

from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks.lab6_write_flash import DOUBLE, agrees
from attncourse.tasks.lab6_write_flash._faults import finite

PARTS = ("weighted", "maximum", "total")


def of_two_parts(answer):
    """The answer as a function of six tensors."""

    def joined(weighted_1, maximum_1, total_1, weighted_2, maximum_2, total_2):
        return answer((weighted_1, maximum_1, total_1), (weighted_2, maximum_2, total_2))

    return joined


def two_parts(rng, *lead, v=3, counts=(3, 2), dtype=torch.float32, shift=(0.0, 0.0), size=1.0):
    """Parts of two sets of keys; a count of 0 is no key at all."""
    inputs = {}
    for number, (k, moved) in enumerate(zip(counts, shift, strict=True), 1):
        scores = size * normal(rng, *lead, k, dtype=dtype) + moved
        value = normal(rng, *lead[:-1], k, v, dtype=dtype)
        if k:
            part = reference.part_of(scores, value)
        else:
            part = (
                value.new_zeros(*lead, v),
                value.new_full(lead, -math.inf),
                value.new_zeros(lead),
            )
        inputs |= {f"{name}_{number}": x for name, x in zip(PARTS, part, strict=True)}
    return inputs


def easy_parts(first, second):
    """Parts of a row, from (score, value) pairs."""
    inputs = {}
    for number, pairs in enumerate((first, second), 1):
        scores = torch.tensor([[score for score, _ in pairs]])
        value = torch.tensor([[float(value)] for _, value in pairs])
        part = reference.part_of(scores, value)
        inputs |= {f"{name}_{number}": x for name, x in zip(PARTS, part, strict=True)}
    return inputs


def merge_probes(rng):
    return {
        "one row": two_parts(rng, 1),
        "rows": two_parts(rng, 4),
        "batch": two_parts(rng, 2, 3, 4),
        "first higher": two_parts(rng, 3, shift=(3.0, 0.0)),
        "second higher": two_parts(rng, 3, shift=(0.0, 3.0)),
        "second empty": two_parts(rng, 3, counts=(3, 0)),
        "first empty": two_parts(rng, 3, counts=(0, 3)),
        "both empty": two_parts(rng, 2, counts=(0, 0)),
        "far apart": two_parts(rng, 3, shift=(-300.0, 200.0)),
        "large": two_parts(rng, 3, shift=(1e4, 1e4)),
        "double": two_parts(rng, 3, dtype=DOUBLE),
    }


def merge_small(rng):
    yield easy_parts([(0.0, 1)], [(0.0, 3)])
    yield easy_parts([(0.0, 1)], [(1.0, 3)])
    yield easy_parts([(1.0, 1)], [(0.0, 3)])
    yield two_parts(rng, 2, v=2)
    yield easy_parts([(400.0, 1)], [(401.0, 3)])


task = Task(
    reference.merge,
    number=1,
    returns=PARTS,
    difficulty=3,
    minutes=12,
    section="merge",
    hints=(
        "Take the four numbers of the page: two parts with one key each, scores 1 and 3. In "
        "which unit does each part count? In which unit should both count?",
        "A part counts in units of e^(its own maximum). The larger maximum becomes the common "
        "one; a part whose maximum was lower shrinks, its total and its weighted values by the "
        "same factor. What is the factor if a part is empty, and what if both are?",
        "maximum = the larger of the two, entry by entry; factor_i = exp(maximum_i − maximum), "
        "0 for an empty part (put 0 in place of a common maximum of −∞, so that no "
        "−∞ − (−∞) arises); total = factor_1 · total_1 + factor_2 · total_2, and weighted "
        "alike, with the factors as (… q 1).",
    ),
    probes=merge_probes,
    small=merge_small,
    adapt=of_two_parts,
)


@task.check(1)
def a_merged_part_is_a_part_again(answer, rng):
    for inputs in (two_parts(rng, 4), two_parts(rng, 2, 3, 4, dtype=DOUBLE)):
        for name, got in zip(PARTS, answer(inputs), strict=True):
            came = inputs[f"{name}_1"]
            if got.shape != came.shape or got.dtype != came.dtype:
                raise Failure(
                    f"{name} is {shape_of(got)}, {got.dtype}; in both parts it came as "
                    f"{shape_of(came)}, {came.dtype}.",
                    inputs,
                )


@task.check(2)
def two_parts_make_what_all_their_keys_would_have_made(answer, rng):
    for lead in ((1,), (5,), (2, 3, 4)):
        for counts in ((1, 1), (3, 2), (1, 6)):
            agrees(answer, two_parts(rng, *lead, counts=counts, size=2.0))
    agrees(answer, two_parts(rng, 4, dtype=DOUBLE))


@task.check(1)
def either_part_may_hold_the_larger_maximum(answer, rng):
    for shift in ((3.0, 0.0), (0.0, 3.0), (-2.0, -9.0)):
        agrees(answer, two_parts(rng, 2, 4, shift=shift))


@task.check(1)
def a_part_without_keys_changes_nothing(answer, rng):
    for counts in ((3, 0), (0, 3)):
        agrees(answer, two_parts(rng, 2, 4, counts=counts))


@task.check(1)
def two_parts_without_keys_stay_one_without_keys(answer, rng):
    agrees(answer, two_parts(rng, 3, counts=(0, 0)))
    some, none = two_parts(rng, 3), two_parts(rng, 3, counts=(0, 0))
    mixed = {name: torch.cat([some[name], none[name]]) for name in some}  # row by row
    agrees(answer, mixed)


@task.check(1)
def large_scores_stay_finite(answer, rng):
    for shift in ((1e4, 1e4), (1e4, -1e4), (-1e4, -1e4), (-300.0, 200.0)):
        agrees(answer, two_parts(rng, 4, shift=shift))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, two_parts(rng, 4))
    moves_nothing(answer, two_parts(rng, 4, counts=(0, 2)))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L6-NO-RESCALE",
    thinks="Two sums over different keys are added.",
    why="Each sum is counted in units of e to its own maximum. Before they are added, both need "
    "the same unit, like meters and feet.",
)
def added_as_they_are(one, two):
    return one[0] + two[0], torch.maximum(one[1], two[1]), one[2] + two[2]


@task.fault(
    "L6-ONE-SIDE",
    thinks="The new part has the larger maximum, so only the old sums must shrink.",
    why="Either part may hold the larger maximum. If the old one does, it is the new part that "
    "must shrink.",
)
def only_the_first_shrinks(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrink = (one[1] - finite(maximum)).exp()
    return one[0] * shrink[..., None] + two[0], maximum, one[2] * shrink + two[2]


@task.fault(
    "L6-WEIGHTED-FORGOTTEN",
    thinks="Only the totals depend on the maximum, so only they are rescaled.",
    why="The weighted values are sums of the same exponentials, times values. They change with the "
    "unit exactly as the total does.",
)
def only_totals_shrink(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - finite(maximum)).exp() for part in (one, two)]
    return one[0] + two[0], maximum, one[2] * shrinks[0] + two[2] * shrinks[1]


@task.fault(
    "L6-UPSIDE-DOWN",
    thinks="The factor is e to the common maximum minus the own one.",
    why="That factor is 1 or more, so the part with the lower scores would grow. It must shrink: "
    "its keys matter less than it believed.",
)
def grows_instead(one, two):
    maximum = torch.maximum(one[1], two[1])
    grow = [(finite(maximum) - finite(part[1])).exp() for part in (one, two)]
    weighted = one[0] * grow[0][..., None] + two[0] * grow[1][..., None]
    return weighted, maximum, one[2] * grow[0] + two[2] * grow[1]


@task.fault(
    "L6-EMPTY-NAN",
    thinks="e to the difference of two maxima is always a number.",
    why="If neither part has seen a key, both maxima are −∞, and −∞ − (−∞) is not a number. One "
    "NaN spreads to everything computed from it.",
    section="nothing-seen",
)
def nan_if_both_are_empty(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - maximum).exp() for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    return weighted, maximum, one[2] * shrinks[0] + two[2] * shrinks[1]


@task.fault(
    "L6-NORMALIZED",
    thinks="A merged part should already be the output, so divide by the total.",
    why="Then it can no longer be merged with the next one as it stands: the total would be "
    "counted twice. Divide once, after the last tile.",
)
def divided_already(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - finite(maximum)).exp() for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    total = one[2] * shrinks[0] + two[2] * shrinks[1]
    return weighted / total.clamp(min=1)[..., None], maximum, total


@task.fault(
    "L6-NO-MAX",
    thinks="To get a common unit, multiply by e to the maximum and divide by e to the new one.",
    why="Right on paper. But e to 89 is already infinite in float32, and ∞/∞ is not a number. "
    "Subtract the maxima first, then take one exponential.",
)
def through_the_exponentials(one, two):
    maximum = torch.maximum(one[1], two[1])
    unit = finite(maximum).exp()
    shrinks = [part[1].exp() / unit for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    return weighted, maximum, one[2] * shrinks[0] + two[2] * shrinks[1]

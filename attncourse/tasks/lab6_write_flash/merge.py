import math

import torch

from attncourse.checks.answer import Failure, following, moves_nothing, shape_of
from attncourse.checks.device import elsewhere, mixed, stays_with
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks import as_is
from attncourse.tasks.lab6_write_flash import DOUBLE, agrees
from attncourse.tasks.lab6_write_flash._faults import finite

PARTS = ("weighted", "maximum", "total")


def of_two_parts(answer):
    """The answer as a function of six tensors."""

    def joined(weighted_1, maximum_1, total_1, weighted_2, maximum_2, total_2):
        return answer((weighted_1, maximum_1, total_1), (weighted_2, maximum_2, total_2))

    return joined


def on_another_device(answer):
    return elsewhere(of_two_parts(answer))


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
        "rows far apart": two_parts(rng, 3, shift=(torch.tensor([[1e4], [0.0], [-1e4]]), 0.0)),
        "large": two_parts(rng, 3, shift=(1e4, 1e4)),
        "double": two_parts(rng, 3, dtype=DOUBLE),
        "first empty, far below": two_parts(rng, 3, counts=(0, 3), shift=(0.0, -300.0)),
        "second empty, far below": two_parts(rng, 3, counts=(3, 0), shift=(-300.0, 0.0)),
        "both empty in some rows": half_empty(rng),
    }


def half_empty(rng, **how):
    some, none = two_parts(rng, 3, **how), two_parts(rng, 3, counts=(0, 0))
    return {name: torch.cat([some[name], none[name]]) for name in some}


def merge_small(rng):
    yield easy_parts([(0.0, 1)], [(0.0, 3)])
    yield easy_parts([(0.0, 1)], [(1.0, 3)])
    yield easy_parts([(1.0, 1)], [(0.0, 3)])
    yield two_parts(rng, 2, v=2)
    yield easy_parts([(400.0, 1)], [(401.0, 3)])


def traits(answer):
    inputs = two_parts(torch.Generator().manual_seed(0), 4)
    return {"mixes devices": bool(mixed(answer, inputs, on_another_device))}


task = Task(
    reference.merge,
    number=1,
    returns=PARTS,
    difficulty=3,
    minutes=12,
    section="merge",
    probes=merge_probes,
    small=merge_small,
    adapt=of_two_parts,
    traits=traits,
)


@task.check(1, "a merged part has the shapes and dtypes of its parts")
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
def it_is_right_whichever_part_holds_the_larger_maximum(answer, rng):
    for shift in ((3.0, 0.0), (0.0, 3.0), (-2.0, -9.0)):
        agrees(answer, two_parts(rng, 2, 4, shift=shift))


FAR = -300.0, 300.0


def far_from_zero(answer):
    """Assert that two parts with keys come out right: what is not has other checks."""
    rng = torch.Generator().manual_seed(0)
    for far in FAR:
        agrees(answer, two_parts(rng, 4, shift=(far, far)))


@task.check(1)
def a_part_without_keys_changes_nothing(answer, rng):
    for counts in ((3, 0), (0, 3)):
        agrees(answer, two_parts(rng, 2, 4, counts=counts))
        with following(lambda: far_from_zero(answer)):
            for far in FAR:  # the scores in the other part
                agrees(answer, two_parts(rng, 4, counts=counts, shift=(far, far)))


@task.check(1)
def it_is_right_where_neither_part_has_keys_for_some_queries_or_for_all(answer, rng):
    agrees(answer, two_parts(rng, 3, counts=(0, 0)))
    for shift in ((3.0, 0.0), (0.0, 3.0)):  # either part may hold the larger maximum
        agrees(answer, half_empty(rng, shift=shift))


@task.check(1)
def large_scores_come_out_right(answer, rng):
    for shift in ((1e4, 1e4), (1e4, -1e4), (-1e4, -1e4), (-300.0, 200.0)):
        agrees(answer, two_parts(rng, 4, shift=shift))
    rows = torch.tensor([[1e4], [0.0], [-1e4]])
    agrees(answer, two_parts(rng, 3, shift=(rows, rows)))


@task.check(1)
def new_tensors_are_made_where_its_inputs_are(answer, rng):
    stays_with(answer, two_parts(rng, 2, 4), on_another_device)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, two_parts(rng, 4))
    moves_nothing(answer, two_parts(rng, 4, counts=(0, 2)))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Merge:
    def common(maximum_1, maximum_2):
        return torch.maximum(maximum_1, maximum_2)

    def factors(maxima, common):
        return [(own - finite(common)).exp() for own in maxima]

    def scaled(weighted, factor):
        return weighted * factor[..., None]

    def shrunk(total, factor):
        return total * factor

    def scaled_first(self, weighted, factor):
        return self.scaled(weighted, factor)

    def scaled_second(self, weighted, factor):
        return self.scaled(weighted, factor)

    def shrunk_first(self, total, factor):
        return self.shrunk(total, factor)

    def shrunk_second(self, total, factor):
        return self.shrunk(total, factor)

    of_weighted = of_totals = as_is  # the factors

    def results(weighted, maximum, total):
        return weighted, maximum, total

    def __call__(self, one, two):
        weighted, maxima, totals = zip(one, two, strict=True)
        common = self.common(*maxima)
        factors = self.factors(maxima, common)
        first, second = self.of_weighted(factors)
        sums = self.scaled_first(weighted[0], first) + self.scaled_second(weighted[1], second)
        first, second = self.of_totals(factors)
        total = self.shrunk_first(totals[0], first) + self.shrunk_second(totals[1], second)
        return self.results(sums, common, total)


def with_choices(maxima, common):
    return [torch.where(own == common, 1.0, (own - common).exp()) for own in maxima]


task.spelling(factors=with_choices)


def zeros_for_nothing(maxima, common):
    safe = torch.where(common == -math.inf, torch.zeros(common.shape, dtype=common.dtype), common)
    return [(own - safe).exp() for own in maxima]


def with_a_low_number(low):
    """Minus infinity replaced in the maxima that come."""

    class LowNumber(Merge):
        def __call__(self, one, two):
            parts = [(w, m.masked_fill(m == -math.inf, low), total) for w, m, total in (one, two)]
            return super().__call__(*parts)

    return LowNumber


def in_place(step):
    """The step, which writes what it makes into what it gets."""
    return lambda self, kept, factor: kept.copy_(getattr(self, step)(kept, factor))


scaled_in_place, shrunk_in_place = in_place("scaled"), in_place("shrunk")


def as_it_came(self, kept, factor):
    return kept


def turned(factors):
    return factors[::-1]


# --- faults -------------------------------------------------------------------------------------

task.fault("C-ON-THE-CPU", section="nothing-seen", factors=zeros_for_nothing)

task.fault("L6-NO-RESCALE", factors=lambda maxima, common: [torch.ones_like(own) for own in maxima])
task.fault(
    "L6-ONE-SIDE",
    factors=(
        lambda maxima, common: [(maxima[0] - finite(common)).exp(), torch.ones_like(common)],
        lambda maxima, common: [torch.ones_like(common), (maxima[1] - finite(common)).exp()],
    ),
)
task.fault(
    "L6-SECOND-MAXIMUM",
    common=(
        lambda one, two: two,
        lambda one, two: torch.where(two == -math.inf, one, two),
        lambda one, two: two,
    ),
    factors=(
        ...,
        ...,
        lambda maxima, common: [(maxima[0] - common).exp(), torch.ones_like(common)],
    ),
)
task.fault("L6-LOW-NUMBER", forms=(with_a_low_number(-1e4), with_a_low_number(-1e9)))
task.fault(
    "L6-ONE-MAXIMUM",
    common=lambda *maxima: torch.stack(maxima).max().expand(maxima[0].shape).clone(),
)
task.fault(
    "L6-FIRST-MAXIMUM",
    common=(
        lambda one, two: one,
        lambda one, two: torch.where(one == -math.inf, two, one),
        lambda one, two: one,
    ),
    factors=(
        ...,
        ...,
        lambda maxima, common: [torch.ones_like(common), (maxima[1] - common).exp()],
    ),
)
task.fault(
    "L6-FACTORS-SWAPPED",
    of_weighted=(turned, turned, ...),
    of_totals=(turned, ..., turned),
)
task.fault(
    "L6-EACH-BY-THE-OTHER",
    factors=lambda maxima, common: [
        (maxima[0] - maxima[1]).exp(),
        (maxima[1] - maxima[0]).exp(),
    ],
)
task.fault("L6-OWN-UNIT-UNDONE", factors=lambda maxima, common: [own.exp() for own in maxima])
task.fault(
    "L6-NOTHING-AT-ZERO",
    section="nothing-seen",
    results=lambda weighted, maximum, total: (weighted, finite(maximum), total),
)
task.fault(
    "L6-WRITES-INTO-PARTS",
    scaled_first=(scaled_in_place, scaled_in_place, scaled_in_place, ..., scaled_in_place),
    shrunk_first=(..., shrunk_in_place, ..., shrunk_in_place, shrunk_in_place),
    scaled_second=(..., ..., scaled_in_place, ..., scaled_in_place),
    shrunk_second=(..., ..., ..., ..., shrunk_in_place),
)
task.fault("C-FLOAT32", results=lambda *part: tuple(each.float() for each in part))
task.fault(
    "L6-WEIGHTED-FORGOTTEN",
    scaled_first=(as_it_came, as_it_came, ...),
    scaled_second=(as_it_came, ..., as_it_came),
)
task.fault(
    "L6-TOTAL-FORGOTTEN",
    shrunk_first=(as_it_came, as_it_came, ...),
    shrunk_second=(as_it_came, ..., as_it_came),
)
task.fault(
    "L6-UPSIDE-DOWN",
    factors=(
        lambda maxima, common: [(finite(common) - finite(own)).exp() for own in maxima],
        lambda maxima, common: [(common - own).exp() for own in maxima],
        lambda maxima, common: [(finite(common) - own).exp() for own in maxima],
    ),
)
task.fault(
    "L6-EMPTY-NAN",
    section="nothing-seen",
    factors=lambda maxima, common: [(own - common).exp() for own in maxima],
)
task.fault(
    "L6-ZERO-MAXIMUM",
    section="nothing-seen",
    common=(
        lambda one, two: torch.maximum(finite(one), finite(two)).masked_fill(
            torch.maximum(one, two) == -math.inf, -math.inf
        ),
        lambda one, two: torch.maximum(finite(one), finite(two)),
    ),
)
task.fault(
    "L6-NORMALIZED",
    results=(
        lambda weighted, maximum, total: (weighted / total.clamp(min=1)[..., None], maximum, total),
        lambda weighted, maximum, total: (weighted / total[..., None], maximum, total),
        lambda weighted, maximum, total: (
            weighted / total.masked_fill(total == 0, 1)[..., None],
            maximum,
            total,
        ),
    ),
)
task.fault(
    "L6-LSE-AS-MAXIMUM",
    results=(
        lambda weighted, maximum, total: (weighted, maximum + total.log(), total),
        lambda weighted, maximum, total: (weighted, total.log(), total),
    ),
)
task.fault("L6-MINIMUM", common=torch.minimum)
task.fault(
    "L6-NO-MAX", factors=lambda maxima, common: [own.exp() / finite(common).exp() for own in maxima]
)


@task.fault("L6-EMPTY-AS-A-WHOLE", section="nothing-seen")
class EmptyAsAWhole(Merge):
    def factors(maxima, common):
        return [(own - common).exp() for own in maxima]

    def __call__(self, one, two):
        for part, other in ((one, two), (two, one)):
            if (part[1] == -math.inf).all():
                return tuple(each.clone() for each in other)
        return super().__call__(one, two)


@task.fault("L6-ONE-UNIT")
class OneUnit(Merge):
    def __call__(self, one, two):
        maximum = torch.maximum(one[1], two[1])
        unit = finite(maximum).max()
        first, second = (one[1] - unit).exp(), (two[1] - unit).exp()
        back = torch.where(maximum == -math.inf, 0.0, (unit - maximum).exp())
        weighted = (one[0] * first[..., None] + two[0] * second[..., None]) * back[..., None]
        return weighted, maximum, (one[2] * first + two[2] * second) * back

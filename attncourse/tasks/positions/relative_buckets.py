import math

import torch

from attncourse import positions as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks import as_is

# Odd values of max_distance: no border between two buckets is a whole number, so it does not
# matter how precisely an answer takes logarithms.


def bucket_inputs(offsets, num_buckets=8, max_distance=21, bidirectional=True):
    return {
        "offsets": torch.as_tensor(offsets, dtype=torch.long, device="cpu"),
        "num_buckets": num_buckets,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
    }


def around(n, *sizes):
    return bucket_inputs(torch.arange(-n, n + 1), *sizes)


def square(n, *sizes):
    place = torch.arange(n)
    return bucket_inputs(place - place[:, None], *sizes)


def short(n, *sizes):
    """The same offsets in whole numbers of 32 bits."""
    inputs = around(n, *sizes)
    return inputs | {"offsets": inputs["offsets"].int()}


def probes(rng):
    return {
        "both ways": around(30),
        "one way": around(30, 8, 21, False),
        "as in T5": around(150, 32, 101, True),
        "as in T5's decoder": around(150, 32, 101, False),
        "many buckets": around(60, 16, 51, True),
        "few buckets": around(12, 4, 5, True),
        "two buckets": around(6, 2, 3, False),
        "a table": square(9),
        "a table, one way": square(9, 8, 21, False),
        "one number": bucket_inputs(-7),
        "very far": bucket_inputs([-(10**9), -5000, 0, 5000, 10**9]),
        "32 bits": short(12, 8, 21, False),
        "random": bucket_inputs(torch.randint(-90, 91, (2, 3, 4), generator=rng), 12, 67, True),
    }


def small(rng):
    for offset in (0, -1, 1, -2, 2, -3, 3, -5, 5, -9, 9, -30, 30):
        for bidirectional in (True, False):
            yield bucket_inputs([offset], 8, 21, bidirectional)
    yield square(3)


task = Task(
    reference.relative_buckets,
    number=2,
    returns=("buckets",),
    difficulty=3,
    minutes=30,
    section="relative-buckets",
    probes=probes,
    small=small,
)


def right(answer, inputs):
    """Assert that the buckets are right, and name the first offset that went elsewhere."""
    got, expected = answer(inputs), answer.expected(inputs)
    shape = expected.shape
    has_shape("buckets", got, "as offsets", *shape, inputs=inputs, dtype=torch.long)
    wrong = (got != expected).nonzero()
    if len(wrong):
        near = min(wrong.tolist(), key=lambda at: abs(inputs["offsets"][tuple(at)].item()))
        place = tuple(near)
        raise Failure(
            f"With num_buckets={inputs['num_buckets']}, max_distance={inputs['max_distance']} and "
            f"bidirectional={inputs['bidirectional']}, offset {inputs['offsets'][place]} belongs "
            f"in bucket {expected[place]}; yours is {got[place]}.",
            inputs,
            expected,
            got,
            whole="result",
        )


@task.check(1)
def as_many_numbers_as_offsets_in_int64(answer, rng):
    for inputs in (square(5), around(3), bucket_inputs(-7), short(9)):
        expected = answer.expected(inputs)
        has_shape(
            "buckets",
            answer(inputs),
            "as offsets",
            *expected.shape,
            inputs=inputs,
            dtype=torch.long,
        )


@task.check(1)
def every_bucket_exists(answer, rng):
    for inputs in (around(150), around(150, 8, 21, False), around(300, 32, 101, True)):
        got = answer(inputs)
        if not (got.min() >= 0 and got.max() < inputs["num_buckets"]):
            raise Failure(
                f"There are buckets 0 to {inputs['num_buckets'] - 1}; yours go from {got.min()} "
                f"to {got.max()}.",
                inputs,
                got=got,
            )


@task.check(1)
def near_distances_come_into_their_own_buckets(answer, rng):
    right(answer, bucket_inputs(torch.arange(-7, 8), 32, 101, True))
    right(answer, bucket_inputs(torch.arange(-15, 1), 32, 101, False))
    right(answer, bucket_inputs(torch.arange(-1, 2)))


@task.check(2)
def far_distances_come_into_the_bucket_of_their_logarithm(answer, rng):
    right(answer, bucket_inputs(torch.arange(-99, 0), 32, 101, True))
    right(answer, bucket_inputs(torch.arange(-99, 0), 16, 101, False))
    right(answer, bucket_inputs(torch.arange(-50, 0), 16, 51, True))


@task.check(1, "from `max_distance` on, all come into the last of their direction")
def from_max_distance_on_all_share_the_last(answer, rng):
    for num_buckets, far, bidirectional in ((8, 21, True), (8, 21, False), (32, 101, True)):
        offsets = [-far, -far - 1, -1000, -100_000]
        offsets += [-offset for offset in offsets if bidirectional]
        right(answer, bucket_inputs(offsets, num_buckets, far, bidirectional))


@task.check(1)
def the_buckets_before_and_after_are_right(answer, rng):
    right(answer, around(40))
    right(answer, around(60, 16, 51, True))
    right(answer, around(12, 4, 5, True))


@task.check(1)
def the_buckets_are_right_with_one_direction(answer, rng):
    right(answer, around(30, 8, 21, False))
    right(answer, square(9, 16, 51, False))
    right(answer, around(6, 2, 3, False))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, around(20))
    moves_nothing(answer, around(20, 8, 21, False))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Buckets:
    def both_ways(bidirectional):
        return bidirectional

    def a_side(num_buckets, bidirectional):
        return num_buckets // 2 if bidirectional else num_buckets

    def first(offsets, bidirectional, b):
        return (offsets > 0) * b if bidirectional else torch.zeros_like(offsets)

    def distance(offsets, bidirectional):
        return offsets.abs() if bidirectional else (-offsets).clamp(min=0)

    def alone(b, num_buckets):
        return b // 2

    def share(distance, alone, max_distance):
        return (distance.clamp(min=1) / alone).log() / math.log(max_distance / alone)

    def spread(share, alone, b):
        return alone + (share * (b - alone)).floor()

    def last(far, b, num_buckets):
        return far.clamp(max=b - 1)

    def choose(distance, alone, far):
        return torch.where(distance < alone, distance, far.long())

    def result(first, chosen, num_buckets):
        return first + chosen

    def __call__(self, offsets, num_buckets, max_distance, bidirectional):
        bidirectional = self.both_ways(bidirectional)
        b = self.a_side(num_buckets, bidirectional)
        first = self.first(offsets, bidirectional, b)
        distance, alone = self.distance(offsets, bidirectional), self.alone(b, num_buckets)
        share = self.share(distance, alone, max_distance)
        far = self.last(self.spread(share, alone, b), b, num_buckets)
        return self.result(first, self.choose(distance, alone, far), num_buckets)


# --- faults: two directions ---------------------------------------------------------------------

not_halved = task.fault(
    "C-BUCKETS-NOT-HALVED", a_side=lambda num_buckets, bidirectional: num_buckets
)


@not_halved
class FromTheMiddle(Buckets):
    def a_side(num_buckets, bidirectional):
        return num_buckets

    def first(offsets, bidirectional, b):
        return (offsets > 0) * (b // 2) if bidirectional else torch.zeros_like(offsets)


task.fault(
    "C-BUCKETS-SECOND-BEHIND-ALL",
    first=lambda offsets, bidirectional, b: (
        (offsets > 0) * (2 * b) if bidirectional else torch.zeros_like(offsets)
    ),
)
task.fault(
    "C-BUCKETS-SIGN-KEPT",
    distance=(
        lambda offsets, bidirectional: offsets.abs() if bidirectional else -offsets,
        lambda offsets, bidirectional: offsets if bidirectional else (-offsets).clamp(min=0),
        lambda offsets, bidirectional: -offsets,
    ),
)
task.fault("C-BUCKETS-ALWAYS-HALVED", a_side=lambda num_buckets, bidirectional: num_buckets // 2)
task.fault(
    "C-BUCKETS-OTHER-WAY",
    first=lambda offsets, bidirectional, b: Buckets.first(-offsets, bidirectional, b),
    distance=lambda offsets, bidirectional: Buckets.distance(-offsets, bidirectional),
)
task.fault(
    "C-BUCKETS-AFTER-FIRST",
    first=(
        lambda offsets, bidirectional, b: (
            (offsets <= 0) * b if bidirectional else torch.zeros_like(offsets)
        ),
        lambda offsets, bidirectional, b: (
            (offsets < 0) * b if bidirectional else torch.zeros_like(offsets)
        ),
    ),
)
task.fault(
    "C-BUCKETS-ZERO-AFTER",
    first=lambda offsets, bidirectional, b: (
        (offsets >= 0) * b if bidirectional else torch.zeros_like(offsets)
    ),
)
task.fault("C-BUCKETS-NO-SECOND", first=lambda offsets, bidirectional, b: torch.zeros_like(offsets))
task.fault("C-BUCKETS-FUTURE-DISTANCE", distance=lambda offsets, bidirectional: offsets.abs())
task.fault(
    "C-BUCKETS-AHEAD",
    distance=lambda offsets, bidirectional: (
        offsets.abs() if bidirectional else offsets.clamp(min=0)
    ),
)
task.fault(
    "C-BUCKETS-AFTER-FROM-ONE",
    first=lambda offsets, bidirectional, b: Buckets.first(offsets, bidirectional, b - 1),
)
task.fault("C-BUCKETS-ALWAYS-BOTH", both_ways=lambda bidirectional: True)
task.fault("C-BUCKETS-NEVER-BOTH", both_ways=lambda bidirectional: False)
task.fault(
    "C-BUCKETS-SIGNED",
    first=lambda offsets, bidirectional, b: torch.zeros_like(offsets),
    result=lambda first, chosen, num_buckets: -chosen,
)

# --- faults: far distances ----------------------------------------------------------------------


def straight(distance, alone, max_distance):
    return (distance - alone) / (max_distance - alone)


task.fault("C-BUCKETS-CLIPPED", alone=lambda b, num_buckets: b - 1)
task.fault("C-BUCKETS-HALF-OF-ALL-ALONE", alone=lambda b, num_buckets: num_buckets // 2)
task.fault("C-BUCKETS-QUARTER-ALONE", alone=lambda b, num_buckets: max(1, num_buckets // 4))
task.fault("C-BUCKETS-STRAIGHT", share=straight)
task.fault("C-BUCKETS-ALL-LOG", choose=lambda distance, alone, far: far.clamp(min=0).long())
task.fault(
    "C-BUCKETS-MAX-IGNORED",
    share=lambda distance, alone, max_distance: Buckets.share(distance, alone, max(128, alone + 1)),
)
task.fault(
    "C-BUCKETS-LOG-OF-MAX",
    share=lambda distance, alone, max_distance: (
        (distance.clamp(min=1) / alone).log() / math.log(max_distance)
    ),
)
task.fault(
    "C-BUCKETS-LOG-FROM-ONE",
    share=(
        lambda distance, alone, max_distance: distance.clamp(min=1).log() / math.log(max_distance),
        lambda distance, alone, max_distance: (
            distance.clamp(min=1).log() / math.log(max_distance / alone)
        ),
    ),
)
task.fault(
    "C-BUCKETS-TWO-LOGARITHMS",
    share=(
        lambda distance, alone, max_distance: (
            (distance.clamp(min=1) / alone).log2() / math.log(max_distance / alone)
        ),
        lambda distance, alone, max_distance: (
            (distance.clamp(min=1) / alone).log10() / math.log(max_distance / alone)
        ),
    ),
)
task.fault(
    "C-BUCKETS-NOT-DIVIDED",
    share=lambda distance, alone, max_distance: (distance.clamp(min=1) / alone).log(),
)
task.fault(
    "C-BUCKETS-LOG-UNSCALED",
    share=lambda distance, alone, max_distance: (distance.clamp(min=1) / alone).log(),
    spread=(
        lambda share, alone, b: alone + share.floor(),
        lambda share, alone, b: alone + (share / math.log(2)).floor(),
    ),
)
task.fault("C-BUCKETS-SPREAD-OVER-ALL", spread=lambda share, alone, b: alone + (share * b).floor())
task.fault(
    "C-BUCKETS-GAP", spread=lambda share, alone, b: alone + 1 + (share * (b - alone)).floor()
)
task.fault(
    "C-BUCKETS-ONE-LESS", spread=lambda share, alone, b: alone + (share * (b - alone - 1)).floor()
)
task.fault(
    "C-BUCKETS-FROM-ZERO", spread=lambda share, alone, b: (share * (b - alone)).floor().clamp(min=0)
)
task.fault(
    "C-BUCKETS-ROUNDED", spread=lambda share, alone, b: alone + (share * (b - alone)).round()
)
task.fault(
    "C-BUCKETS-ONE-MORE-ALONE", spread=lambda share, alone, b: alone + (share * (b - alone)).ceil()
)
task.fault("C-BUCKETS-NO-END", last=as_is)
task.fault(
    "C-BUCKETS-DISTANCE-CAPPED",
    share=(
        lambda distance, alone, max_distance: Buckets.share(
            distance.clamp(max=max_distance), alone, max_distance
        ),
        ...,
    ),
    last=(as_is, lambda far, b, num_buckets: far.clamp(max=b)),
)
task.fault(
    "C-BUCKETS-END-OF-TABLE",
    last=(lambda far, b, num_buckets: far.clamp(max=num_buckets - 1), as_is),
    result=(
        ...,
        lambda first, chosen, num_buckets: (first + chosen).clamp(max=num_buckets - 1),
    ),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-BUCKETS-FLOAT",
    result=(
        lambda first, chosen, num_buckets: (first + chosen).float(),
        lambda first, chosen, num_buckets: (first + chosen).double(),
    ),
)


@task.fault("C-BUCKETS-DTYPE-KEPT")
class DtypeKept(Buckets):
    def __call__(self, offsets, *sizes):
        return super().__call__(offsets, *sizes).to(offsets.dtype)


@task.fault("C-INPLACE")
class InPlace(Buckets):
    def distance(offsets, bidirectional):
        if bidirectional:
            return offsets.abs_()
        return offsets.neg_().clamp_(min=0)

"""Near distances one by one, far ones in company: task 2 of chapter 8."""

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
    hints=(
        "Take 8 buckets, both ways, and max_distance 21: four buckets a direction. Two of them "
        "hold the distances 0 and 1 alone. Which distances share the other two?",
        "Three questions about an offset: which direction (that decides the first bucket), how far "
        "(a distance), and is it near enough for a bucket of its own? The others go by the "
        "logarithm: 0 where the near ones end, 1 at max_distance.",
        "b buckets a direction, alone = b // 2; far = alone + floor(log(distance / alone) / "
        "log(max_distance / alone) · (b − alone)), at most b − 1; torch.where(distance < alone, "
        "distance, far), plus b for keys after the query if there are two directions.",
    ),
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
        )


@task.check(1)
def as_many_whole_numbers_as_offsets(answer, rng):
    for inputs in (square(5), around(3), bucket_inputs(-7)):
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
def near_distances_have_buckets_of_their_own(answer, rng):
    right(answer, bucket_inputs(torch.arange(-7, 8), 32, 101, True))
    right(answer, bucket_inputs(torch.arange(-15, 1), 32, 101, False))
    right(answer, bucket_inputs(torch.arange(-1, 2)))


@task.check(2)
def far_distances_share_by_their_logarithm(answer, rng):
    right(answer, bucket_inputs(torch.arange(-99, 0), 32, 101, True))
    right(answer, bucket_inputs(torch.arange(-99, 0), 16, 101, False))
    right(answer, bucket_inputs(torch.arange(-50, 0), 16, 51, True))


@task.check(1)
def from_max_distance_on_all_share_the_last(answer, rng):
    for sizes in ((8, 21, True), (8, 21, False), (32, 101, True)):
        right(answer, bucket_inputs([-21, -101, -102, -1000, -100_000], *sizes))


@task.check(1)
def what_comes_after_has_the_second_half(answer, rng):
    right(answer, around(40))
    right(answer, around(60, 16, 51, True))
    right(answer, around(12, 4, 5, True))


@task.check(1)
def with_one_direction_what_comes_after_counts_as_distance_0(answer, rng):
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

    def last(far, b):
        return far.clamp(max=b - 1)

    def choose(distance, alone, far):
        return torch.where(distance < alone, distance, far.long())

    def result(first, chosen):
        return first + chosen

    def __call__(self, offsets, num_buckets, max_distance, bidirectional):
        b = self.a_side(num_buckets, bidirectional)
        first = self.first(offsets, bidirectional, b)
        distance, alone = self.distance(offsets, bidirectional), self.alone(b, num_buckets)
        share = self.share(distance, alone, max_distance)
        far = self.last(self.spread(share, alone, b), b)
        return self.result(first, self.choose(distance, alone, far))


# --- faults: two directions ---------------------------------------------------------------------

task.fault(
    "C-BUCKETS-NOT-HALVED",
    "Each direction has num_buckets buckets.",
    "num_buckets is what the table has in all, so two directions share them, half each. Yours "
    "gives numbers that the table does not have.",
    a_side=lambda num_buckets, bidirectional: num_buckets,
)
task.fault(
    "C-BUCKETS-ALWAYS-HALVED",
    "Half of the buckets belong to each direction, always.",
    "With one direction nobody needs the second half, and its distances can be told apart twice "
    "as finely: they get all the buckets.",
    a_side=lambda num_buckets, bidirectional: num_buckets // 2,
)
task.fault(
    "C-BUCKETS-OTHER-WAY",
    "An offset above 0 is what came before.",
    "Offsets are key minus query: what came before is negative. Yours gives the past the second "
    "half of the buckets, or, with one direction, none.",
    first=lambda offsets, bidirectional, b: Buckets.first(-offsets, bidirectional, b),
    distance=lambda offsets, bidirectional: Buckets.distance(-offsets, bidirectional),
)
task.fault(
    "C-BUCKETS-AFTER-FIRST",
    "What comes after has the first half of the buckets.",
    "It is the other way around, and offset 0 belongs to the first half, too. Weights learned "
    "with one order are nonsense in the other.",
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
    "The word itself belongs to what is not before it.",
    "Offset 0 is in the first half, with what came before: bucket 0. Only what is truly after goes "
    "to the second.",
    first=lambda offsets, bidirectional, b: (
        (offsets >= 0) * b if bidirectional else torch.zeros_like(offsets)
    ),
)
task.fault(
    "C-BUCKETS-NO-SECOND",
    "Before and after share their buckets: only the distance counts.",
    "With two directions they are told apart: what comes after has buckets of its own, from "
    "num_buckets / 2 on.",
    first=lambda offsets, bidirectional, b: torch.zeros_like(offsets),
)
task.fault(
    "C-BUCKETS-FUTURE-DISTANCE",
    "With one direction, the distance of what comes after is a distance, too.",
    "A decoder never sees it, so all of it counts as distance 0. Yours mixes it with the past that "
    "lies as far away.",
    distance=lambda offsets, bidirectional: offsets.abs(),
)
task.fault(
    "C-BUCKETS-AHEAD",
    "With one direction, the distance is how far ahead a key is.",
    "It is how far *back*: offsets are key minus query, so what came before is negative. Yours "
    "puts the whole past into bucket 0.",
    distance=lambda offsets, bidirectional: (
        offsets.abs() if bidirectional else offsets.clamp(min=0)
    ),
)
task.fault(
    "C-BUCKETS-AFTER-FROM-ONE",
    "What comes after begins at distance 1, so this distance gets the first of its buckets.",
    "Both halves count alike: distance 1 after the query is bucket b + 1. The bucket b itself "
    "stays empty.",
    first=lambda offsets, bidirectional, b: Buckets.first(offsets, bidirectional, b - 1),
)
task.fault(
    "C-BUCKETS-ALWAYS-BOTH",
    "There are always two directions.",
    "`bidirectional=False` says there is one, the past: it gets all buckets, and what comes after "
    "counts as distance 0.",
    a_side=lambda num_buckets, bidirectional: num_buckets // 2,
    first=lambda offsets, bidirectional, b: (offsets > 0) * b,
    distance=lambda offsets, bidirectional: offsets.abs(),
)
task.fault(
    "C-BUCKETS-NEVER-BOTH",
    "There is one direction, the past.",
    "`bidirectional=True` says there are two: an encoder looks ahead as well. Then each direction "
    "has half of the buckets.",
    a_side=lambda num_buckets, bidirectional: num_buckets,
    first=lambda offsets, bidirectional, b: torch.zeros_like(offsets),
    distance=lambda offsets, bidirectional: (-offsets).clamp(min=0),
)
task.fault(
    "C-BUCKETS-SIGNED",
    "Buckets of the past have negative numbers.",
    "A bucket is a row of a table, and −3 is the third row from its end. The past begins at 0, "
    "what comes after at num_buckets / 2.",
    first=lambda offsets, bidirectional, b: torch.zeros_like(offsets),
    result=lambda first, chosen: -chosen,
)

# --- faults: far distances ----------------------------------------------------------------------


def straight(distance, alone, max_distance):
    return (distance - alone) / (max_distance - alone)


task.fault(
    "C-BUCKETS-CLIPPED",
    "Every distance has its bucket, up to the last one.",
    "That is clipping, as in the task before. Here only half of the buckets hold one distance "
    "each; the others reach much farther, all the way to max_distance.",
    alone=lambda b, num_buckets: b - 1,
)
task.fault(
    "C-BUCKETS-HALF-OF-ALL-ALONE",
    "Half of all buckets hold one distance each.",
    "Half of those of a *direction*. With two directions half of all is everything that a "
    "direction has, and nothing is left for the far ones to share.",
    alone=lambda b, num_buckets: num_buckets // 2,
)
task.fault(
    "C-BUCKETS-STRAIGHT",
    "The far buckets divide the rest of the way evenly.",
    "Evenly on a logarithmic scale: each is wider than the one before by the same *factor*. 8 and "
    "10 words are worth telling apart, 98 and 100 are not.",
    share=straight,
)
task.fault(
    "C-BUCKETS-ALL-LOG",
    "All distances go by their logarithm.",
    "The near ones do not: the first half of a direction's buckets holds one distance each. The "
    "word before and the word before that are very different.",
    choose=lambda distance, alone, far: far.clamp(min=0).long(),
)
task.fault(
    "C-BUCKETS-MAX-IGNORED",
    "The last bucket begins at 128.",
    "It does in T5. Here the caller says where: `max_distance`.",
    share=lambda distance, alone, max_distance: Buckets.share(distance, alone, max(128, alone + 1)),
)
task.fault(
    "C-BUCKETS-LOG-OF-MAX",
    "The logarithm is divided by that of max_distance.",
    "The scale begins where the near buckets end, not at 1: max_distance / alone is how many times "
    "farther it goes. Otherwise the last buckets stay empty.",
    share=lambda distance, alone, max_distance: (
        (distance.clamp(min=1) / alone).log() / math.log(max_distance)
    ),
)
task.fault(
    "C-BUCKETS-LOG-FROM-ONE",
    "The logarithm is that of the distance.",
    "Of the distance divided by `alone`, and so is the other one: the scale is 0 where the near "
    "buckets end and 1 at max_distance. Begun at 1, it leaves the first shared buckets empty.",
    share=lambda distance, alone, max_distance: (
        distance.clamp(min=1).log() / math.log(max_distance)
    ),
)
task.fault(
    "C-BUCKETS-LOG-UNSCALED",
    "A far bucket is the logarithm itself, rounded down.",
    "Then its base, and not max_distance, decides where the buckets end. Divided by "
    "log(max_distance / alone) it becomes a share from 0 to 1, which is spread over the buckets.",
    share=lambda distance, alone, max_distance: (distance.clamp(min=1) / alone).log(),
    spread=(
        lambda share, alone, b: alone + share.floor(),
        lambda share, alone, b: alone + (share / math.log(2)).floor(),
    ),
)
task.fault(
    "C-BUCKETS-SPREAD-OVER-ALL",
    "The share is spread over all buckets of the direction.",
    "The first half is taken. Only the b − alone others are left, and beyond them nothing may go.",
    spread=lambda share, alone, b: alone + (share * b).floor(),
)
task.fault(
    "C-BUCKETS-GAP",
    "The shared buckets begin at alone + 1.",
    "The near distances have the numbers 0 to alone − 1, so `alone` is the next one. Yours stays "
    "empty, and all that is far comes one bucket too late.",
    spread=lambda share, alone, b: alone + 1 + (share * (b - alone)).floor(),
)
task.fault(
    "C-BUCKETS-ONE-LESS",
    "At max_distance the share is 1 and gives the last bucket, so it is spread over one less.",
    "The last bucket begins before max_distance, like any other: b − alone of them divide the way, "
    "and what would go beyond the last is cut off. With one less, all of them get wider.",
    spread=lambda share, alone, b: alone + (share * (b - alone - 1)).floor(),
)
task.fault(
    "C-BUCKETS-FROM-ZERO",
    "Far distances begin again at bucket 0.",
    "There the near ones are. The far ones follow after them, so `alone` is added.",
    spread=lambda share, alone, b: (share * (b - alone)).floor().clamp(min=0),
)
task.fault(
    "C-BUCKETS-ROUNDED",
    "The bucket is rounded to the nearest whole number.",
    "Rounded down. Otherwise a bucket begins half-way through the one before, and the last one "
    "takes what belongs to its neighbor.",
    spread=lambda share, alone, b: alone + (share * (b - alone)).round(),
)
task.fault(
    "C-BUCKETS-ONE-MORE-ALONE",
    "Logarithms are rounded up, or b/2 has a bucket of its own, too.",
    "The distances 0 to b/2 − 1 are b/2 distances already. b/2 is the first one that shares: its "
    "logarithm in the formula is 0, and the logarithms are rounded down.",
    spread=lambda share, alone, b: alone + (share * (b - alone)).ceil(),
)
task.fault(
    "C-BUCKETS-NO-END",
    "Farther away, the numbers go on.",
    "The table ends. From max_distance on, everything shares the last bucket of its direction.",
    last=as_is,
)
task.fault(
    "C-BUCKETS-DISTANCE-CAPPED",
    "No distance goes beyond max_distance, so no bucket goes beyond the last.",
    "At max_distance the share is 1, and alone + (b − alone) is b: one more than the last bucket "
    "of a direction. The bucket itself has to be cut off at b − 1.",
    share=lambda distance, alone, max_distance: Buckets.share(
        distance.clamp(max=max_distance), alone, max_distance
    ),
    last=as_is,
)
task.fault(
    "C-BUCKETS-END-OF-TABLE",
    "The last bucket is num_buckets − 1.",
    "Of a direction it is b − 1. With two directions the far past runs into the buckets of what "
    "comes after.",
    last=lambda far, b: far.clamp(max=2 * b - 1),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-BUCKETS-FLOAT",
    "The logarithm makes floats, so buckets are floats.",
    "A bucket is a row of a table, and rows are found by whole numbers: int64, as the offsets.",
    result=(
        lambda first, chosen: (first + chosen).float(),
        lambda first, chosen: (first + chosen).double(),
    ),
)


@task.fault(
    "C-INPLACE",
    "`abs_` and `clamp_` save memory.",
    "The offsets belong to the caller, who uses them for the next layer: after your call their "
    "signs are gone.",
)
class InPlace(Buckets):
    def distance(offsets, bidirectional):
        if bidirectional:
            return offsets.abs_()
        return offsets.neg_().clamp_(min=0)

"""operators."""

import math

import torch
from torch import nn

from attncourse.checks.answer import Failure, as_number, describe
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.lab.meters import count, trace
from attncourse.tasks.lab4_sequential_or_parallel import pick

MOST_POSITIONS = 512


MODELS = ("rnn cell", "gru cell", "fused gru", "attention")


def made_up(fixed, per_position, kinds=1, views=0):
    """A model by its counts; `kinds` of operators take turns, views compute nothing."""
    return {
        "fixed": fixed,
        "per_position": per_position,
        "kinds": kinds,
        "views": views,
        "model": None,
    }


def real(model):
    return made_up(0, 0) | {"model": model}


def operators_probes(rng):
    return {
        "loop": made_up(2, 4, kinds=2),
        "constant": made_up(5, 0, kinds=3),
        "one a position": made_up(0, 1),
        "views": made_up(3, 7, kinds=3, views=2),
        "rnn cell": real("rnn cell"),
        "attention": real("attention"),
    }


def operators_small(rng):
    yield made_up(1, 0)
    yield made_up(0, 1)
    yield made_up(1, 1)
    yield made_up(2, 4, kinds=2)
    yield made_up(3, 7, kinds=3, views=2)


class _Runs:
    """A model that is run on n positions, and nothing else: what it needs is there before."""

    def __init__(self, fixed, per_position, kinds, views, model):
        self.fixed, self.per_position, self.views = fixed, per_position, views
        self.kinds = (torch.add, torch.mul, torch.sub)[:kinds]
        self.model = model
        self.inputs, self.weight = torch.zeros(1, MOST_POSITIONS, 8), torch.eye(8)
        state = torch.get_rng_state()
        make = {"rnn cell": nn.RNNCell, "gru cell": nn.GRUCell, "fused gru": nn.GRU}.get(model)
        options = {"batch_first": True} if make is nn.GRU else {}
        self.module = make and make(8, 8, **options)
        torch.set_rng_state(state)

    def __call__(self, n):
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_POSITIONS:
            raise ValueError(
                f"run(n) takes a whole number of positions from 1 to {MOST_POSITIONS:,}; got {n!r}"
            )
        with torch.no_grad():  # autograd adds operators of its own
            if self.model is None:
                return self._made_up(n)
            if self.model == "attention":
                return self._attention(self.inputs[:, :n])
            if self.model == "fused gru":
                return self.module(self.inputs[:, :n])[0]
            return reference.step_loop(self.module, self.inputs[:, :n], self.inputs[:, 0])

    def _made_up(self, n):
        x = self.inputs
        for _ in range(n):
            for _ in range(self.views):
                x = x.mT
            x = self._some(x, self.per_position)
        return self._some(x, self.fixed)

    def _some(self, x, count):
        for i in range(count):
            x = self.kinds[i % len(self.kinds)](x, 1.0)
        return x

    def _attention(self, x):
        q, k, v = ((x @ self.weight)[:, None] for _ in range(3))  # b 1 n d
        return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0] @ self.weight


def on_a_model(operators):
    """The answer, asked about one model."""

    def function(**how):
        found = operators(_Runs(**how))
        if found is None:
            return None
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise Unusable(f"returned {describe(found)}; a pair is expected: fixed, per position.")
        return list(map(as_number, found, COUNTED))

    return function


COUNTED = ("fixed", "per_position")


def counts_of(answer, inputs, what):
    """Assert that an answer counts a model rightly."""
    got = [value.item() for value in answer(inputs)]
    expected = [value.item() for value in answer.expected(inputs)]
    if not all(math.isclose(*pair, abs_tol=0.01) for pair in zip(got, expected, strict=True)):
        raise Failure(
            f"{what} dispatches {expected[0]:g} + {expected[1]:g}·n operators. You say "
            f"{got[0]:g} + {got[1]:g}·n.",
            inputs,
        )


task = Task(
    reference.operators,
    number=2,
    returns=COUNTED,
    difficulty=2,
    minutes=8,
    section="lab4-operators",
    hints=(
        "`lab.count(run, 16).total` says how many operators n = 16 takes. What does a second n "
        "tell you?",
        "The counts lie on a straight line over n: count = fixed + per position · n. Two "
        "points determine it.",
        "per position = (count at 16 − count at 8) / 8; fixed = count at 8 − 8 · per position. "
        "Return fixed first.",
    ),
    probes=operators_probes,
    small=operators_small,
    adapt=on_a_model,
    tolerance=1e-3,
)


@task.check(2)
def a_loop_takes_so_many_operators_a_position(answer, rng):
    for fixed, per_position in ((0, 1), (3, 4), (pick(rng, 5, 8, 20), pick(rng, 6, 11, 13))):
        counts_of(answer, made_up(fixed, per_position), "This made-up loop")


@task.check(1)
def a_constant_count_has_no_part_for_each_position(answer, rng):
    for fixed in (1, 5, pick(rng, 8, 13, 30)):
        counts_of(answer, made_up(fixed, 0), "This made-up layer")


@task.check(1)
def every_operator_counts_and_not_every_kind(answer, rng):
    counts_of(answer, made_up(4, pick(rng, 5, 6, 7), kinds=3), "This made-up loop of 3 kinds")


@task.check(1)
def views_are_no_operators(answer, rng):
    how = made_up(pick(rng, 2, 3, 4), 3, kinds=2, views=pick(rng, 1, 2, 3))
    counts_of(answer, how, "This made-up loop, which also turns its matrix,")


@task.check(2)
def real_models_are_counted_too(answer):
    for model in MODELS:
        counts_of(answer, real(model), f"Here, the model “{model}”")


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L4-SHARE-OF-N",
    thinks="Operators divided by positions is the number for each position.",
    why="The fixed part is shared out among the positions, too: attention seems to take a third of "
    "an operator a position. Compare two sizes: the difference holds no fixed part.",
)
def divided_by_n(run):
    return 0, count(run, 16).total / 16


@task.fault(
    "L4-FIXED-IS-ONE",
    thinks="With one position there is only the fixed part.",
    why="One position is a position: its operators are counted as well. The fixed part is what "
    "would be left with none.",
)
def fixed_at_one(run):
    one, many = count(run, 1).total, count(run, 9).total
    return one, (many - one) / 8


@task.fault(
    "L4-NO-FIXED",
    thinks="The fixed part is small, so 0.",
    why="For attention it is everything there is. It follows from the same two counts as the "
    "slope.",
)
def without_the_fixed_part(run):
    return 0, (count(run, 16).total - count(run, 8).total) / 8


@task.fault(
    "L4-KINDS",
    thinks="`operations` is a dict, and its length is how many there were.",
    why="Its length is how many *kinds* there were. A loop uses the same kinds at each position, "
    "so this number does not grow. Add up how often each ran.",
)
def kinds(run):
    few, many = len(count(run, 8).operations), len(count(run, 16).operations)
    return few - (many - few), (many - few) / 8


@task.fault(
    "L4-VIEWS",
    thinks="Everything in the trace is an operator.",
    why="A trace also lists transposes, slices and other views. They compute nothing and launch "
    "nothing; torch versions differ in how many there are.",
)
def views_too(run):
    few, many = len(trace(run, 8)), len(trace(run, 16))
    return few - (many - few), (many - few) / 8


@task.fault(
    "L4-PAIR-SWAPPED",
    thinks="First what grows, then what is fixed.",
    why="The pair is read as fixed + per position · n. Swapped, attention becomes a loop and the "
    "loop a constant.",
)
def swapped(run):
    few, many = count(run, 8).total, count(run, 16).total
    return (many - few) / 8, 2 * few - many


@task.fault(
    "L4-DIFFERENCE",
    thinks="The difference between two counts is what a position costs.",
    why="It is what eight more positions cost, if the sizes are 8 and 16. A slope is a difference "
    "over a difference.",
)
def not_divided(run):
    few, many = count(run, 8).total, count(run, 16).total
    return few - 8 * (many - few), many - few


@task.fault(
    "L4-BYTES",
    thinks="The meter's first number is the count.",
    why="Its first number is the peak of memory, in bytes. Operators are in `operations`, and "
    "their sum is `total`.",
)
def peak_of_memory(run):
    few, many = count(run, 8).peak_bytes, count(run, 16).peak_bytes
    return 2 * few - many, (many - few) / 8


@task.fault(
    "L4-RAN-TOO-EARLY",
    thinks="`lab.count(run(8))` counts what run(8) does.",
    why="By then it has run, and the meter gets its result. The meter has to do the calling: hand "
    "over the function and its argument separately.",
)
def ran_before_the_meter(run):
    few, many = count(run(8)).total, count(run(16)).total
    return 2 * few - many, (many - few) / 8

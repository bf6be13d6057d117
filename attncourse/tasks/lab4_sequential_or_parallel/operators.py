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


def probes(rng):
    return {
        "loop": made_up(2, 4, kinds=2),
        "constant": made_up(5, 0, kinds=3),
        "one a position": made_up(0, 1),
        "views": made_up(3, 7, kinds=3, views=2),
        "rnn cell": real("rnn cell"),
        "attention": real("attention"),
    }


def small(rng):
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
        runs = _Runs(**how)
        found = operators(lambda n: runs(n))  # its counts are no attributes of what is given
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
            whole="result",
        )


task = Task(
    reference.operators,
    number=2,
    returns=COUNTED,
    difficulty=2,
    minutes=8,
    section="lab4-operators",
    probes=probes,
    small=small,
    adapt=on_a_model,
    tolerance=1e-3,
)


@task.check(2)
def of_a_loop_the_fixed_part_and_the_operators_a_position_are_right(answer, rng):
    for fixed, per_position in ((0, 1), (3, 4), (pick(rng, 5, 8, 20), pick(rng, 6, 11, 13))):
        counts_of(answer, made_up(fixed, per_position), "This made-up loop")


@task.check(1, "a constant count is counted whole")
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


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Line:
    def asked(n):
        return n

    def number(run, n):
        return count(run, n).total

    def measure(self, run, n):
        return self.number(run, self.asked(n))

    def slope(few, many):
        return (many - few) / 8

    def fixed(run, few, slope):
        return few - 8 * slope

    def pair(fixed, slope):
        return fixed, slope

    def __call__(self, run):
        few, many = self.measure(run, 8), self.measure(run, 16)
        slope = self.slope(few, many)
        return self.pair(self.fixed(run, few, slope), slope)


# --- faults -------------------------------------------------------------------------------------


def none_fixed(run, few, slope):
    return 0


def at_one(self, run, few, slope):
    return self.number(run, 1) - slope


def share_of(n):
    return lambda few, many: many / n


def at(n):
    return lambda _: n


MANY = (MOST_POSITIONS, 128)  # at which students count
ALSO = (100, 10, 1)  # of these the whole share, and what is left for the fixed part


def left_at_two(self, run, few, slope):
    return self.number(run, 2) - 2 * slope


task.fault(
    "L4-SHARE-OF-N",
    slope=(
        share_of(16),
        lambda few, many: few / 8,
        share_of(16),
        share_of(64),
        *(share_of(n) for n in MANY for _ in range(2)),
        *(share_of(n) for n in ALSO for _ in range(2)),
        share_of(1),
    ),
    fixed=(
        *(none_fixed, none_fixed, ..., none_fixed),
        *(at_one, none_fixed) * len(MANY),
        *(none_fixed, ...) * len(ALSO),
        left_at_two,
    ),
    asked=(
        *(..., ..., ..., at(64)),
        *(at(n) for n in MANY for _ in range(2)),
        *(at(n) for n in ALSO for _ in range(2)),
        at(1),
    ),
)
task.fault(
    "L4-FIXED-IS-ONE",
    fixed=(
        lambda run, few, slope: few - 7 * slope,
        lambda self, run, few, slope: self.number(run, 1),
    ),
)
task.fault("L4-FIXED-IS-FEW", fixed=lambda run, few, slope: few)
task.fault("L4-NO-FIXED", fixed=none_fixed)
task.fault(
    "L4-KINDS",
    number=(lambda run, n: len(count(run, n).operations), ..., ...),
    fixed=(
        ...,
        lambda run, few, slope: len(count(run, 8).operations),
        lambda run, few, slope: len(count(run, MOST_POSITIONS).operations),
    ),
)
task.fault("L4-VIEWS", number=lambda run, n: len(trace(run, n)))
task.fault("L4-PAIR-SWAPPED", pair=lambda fixed, slope: (slope, fixed))


def between(n):
    """What n more positions take."""
    return lambda few, many: (many - few) / 8 * n


def less_than(n, times):
    return lambda self, run, few, slope: self.number(run, n) - times * slope


task.fault(
    "L4-DIFFERENCE",
    slope=(
        *(lambda few, many: many - few,) * 2,
        *(between(4), between(4), between(10), between(10), between(2), between(2)),
    ),
    fixed=(
        *(..., lambda run, few, slope: few - slope),
        *(less_than(4, 1), less_than(4, 4), less_than(10, 1), less_than(10, 10)),
        *(less_than(1, 1), less_than(1, 0.5)),
    ),
)
PAIRS = ((8, 16), (1, 2), (1, 10), (1, 100), (2, 10), (10, 100))  # of sizes that are compared


def by_the_larger(few_n, many_n):
    """The slope of counts at 8 and 16, as if they were at two other sizes."""
    return lambda few, many: (many - few) / 8 * (many_n - few_n) / many_n


def left_at(n):
    return lambda self, run, few, slope: self.number(run, n) - n * slope


task.fault(
    "L4-DIVIDED-BY-THE-LARGER",
    slope=tuple(by_the_larger(*pair) for pair in PAIRS),
    fixed=tuple(left_at(few_n) for few_n, _ in PAIRS),
)
task.fault("L4-BYTES", number=lambda run, n: count(run, n).peak_bytes)
task.fault("L4-RAN-TOO-EARLY", number=lambda run, n: count(run(n)).total)

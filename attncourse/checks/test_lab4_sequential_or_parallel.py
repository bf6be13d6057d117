"""The checks of lab 4. Each one's name is the sentence a teacher would say.

No clock of the grading machine is read: operators are counted, times are made up or come from the
student's own receipt.
"""

import math

import pytest
import torch
from torch import nn

from attncourse.checks.common import as_number, fields, integers, moves_nothing, normal
from attncourse.checks.observe import Unusable
from attncourse.checks.receipt import as_text, grave, read, record_of, timed
from attncourse.checks.task import Failure, Task, Unanswered, compare, describe, shape_of
from attncourse.lab import lab4_sequential_or_parallel as reference

points = pytest.mark.points
LAB = "lab4_sequential_or_parallel"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


# --- step_loop ----------------------------------------------------------------------------------
# Letters: b sentences, n positions, d width.


def sentences(rng, b, n, d, make=normal, **options):
    weights = {} if make is integers else options
    return {
        "inputs": make(rng, b, n, d, **options),
        "state": make(rng, b, d, **options),
        "w_inputs": make(rng, d, d, **weights),
        "w_state": make(rng, d, d, **weights),
    }


def loop_probes(rng):
    return {
        "ordinary": sentences(rng, 2, 5, 3),
        "square": sentences(rng, 4, 4, 4),
        "one sentence": sentences(rng, 1, 6, 2),
        "one position": sentences(rng, 3, 1, 2),
        "double": sentences(rng, 2, 3, 5, dtype=torch.float64),
    }


def loop_small(rng):
    yield sentences(rng, 1, 1, 1, make=integers)
    yield sentences(rng, 1, 2, 1, make=integers)
    yield sentences(rng, 2, 2, 1, make=integers)
    yield sentences(rng, 2, 3, 2)


def a_cell(b, w_inputs, w_state, seen=None):
    """A recurrent cell, which notes each call in `seen`."""

    def cell(inputs, state):
        shape = (b, len(w_state))
        for name, tensor in (("input", inputs), ("state", state)):
            if not isinstance(tensor, torch.Tensor) or tensor.shape != shape:
                raise ValueError(
                    f"the cell expects {name} with the axes (b d), here ({shape[0]} {shape[1]}); "
                    f"it got {describe(tensor)}"
                )
        if seen is not None:
            seen.append(inputs.detach().clone())
        return torch.tanh(inputs @ w_inputs / 2 + state @ w_state / 2)

    return cell


def with_a_cell(loop):
    """The answer, with a cell made of these weights."""

    def function(inputs, state, w_inputs, w_state):
        return loop(a_cell(len(inputs), w_inputs, w_state), inputs, state)

    return function


def watched(loop):
    """How often the answer calls the cell, and in which order it reads the positions."""

    def function(inputs, state, w_inputs, w_state):
        seen = []
        if loop(a_cell(len(inputs), w_inputs, w_state, seen), inputs, state) is None:
            return None
        order = [
            next((t for t in range(inputs.shape[1]) if torch.equal(inputs[:, t], one)), -1)
            for one in seen
        ]
        return {"order": order}

    return function


def reads(answer, inputs):
    """The positions in the order in which the answer gives them to the cell."""
    seen = answer.observe(inputs, adapt=watched)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned["order"]


def loop_traits(answer):
    seen = answer.observe(sentences(torch.Generator().manual_seed(6), 2, 6, 3), adapt=watched)
    alone = {"one sentence at a time": "it got a tensor of shape (3)" in (seen.error or "")}
    if seen.error or seen.returned is None:
        return alone
    order = seen.returned["order"]
    return alone | {
        "one call a position": len(order) == 6,
        "from the first to the last": order == sorted(order),
        "begins again": order.count(0) > 1,
    }


class TestStepLoop:
    task = Task(
        name="step_loop",
        reference=reference.step_loop,
        returns=("states",),
        difficulty=1,
        minutes=6,
        section="lab4-loop",
        hints=(
            "A loop over positions. What does the cell at position t need that only the cell at "
            "position t − 1 can give it?",
            "`inputs[:, t]` is position t of all sentences, (b d). Overwrite `state` with what the "
            "cell returns, and keep each one in a list.",
            "for t in range(n): state = cell(inputs[:, t], state), then append it. In the end "
            "torch.stack the list so that positions are axis 1.",
        ),
        probes=loop_probes,
        small=loop_small,
        adapt=with_a_cell,
        differentiated=("ordinary",),
        traits=loop_traits,
    )

    @points(1)
    def test_there_is_a_state_after_each_position(self, answer, rng):
        for b, n, d in ((2, 5, 3), (3, 1, 2), (1, 7, 4)):
            inputs = sentences(rng, b, n, d)
            states = answer(inputs)
            if states.shape != (b, n, d):
                raise Failure(
                    f"The states have shape {shape_of(states)}; expected (b n d) = ({b} {n} {d}).",
                    inputs,
                )

    @points(3)
    def test_each_step_begins_with_the_state_before_it(self, answer, rng):
        for sizes in ((2, 5, 3), (1, 8, 2), (4, 4, 4)):
            answer.matches(sentences(rng, *sizes))
        inputs = sentences(rng, 2, 6, 5, dtype=torch.float64)
        compare("states", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)

    @points(2)
    def test_the_cell_is_called_once_for_each_position(self, answer, rng):
        for n in (1, 6, pick(rng, 9, 12, 17)):
            inputs = sentences(rng, 2, n, 3)
            order = reads(answer, inputs)
            if order != list(range(n)):
                where = ""
                if -1 in order:
                    where = ", with something that is no position of the input"
                elif order:
                    where = f", at the positions {', '.join(map(str, order[:12]))}"
                    where += "…" * (len(order) > 12)
                raise Failure(
                    f"For n = {n} your answer calls the cell {len(order)} "
                    f"time{'s' * (len(order) != 1)}{where}. "
                    "Once for each position, from the first to the last, is enough."
                )

    @points(1)
    def test_gradients_flow_back_through_all_steps(self, answer, rng):
        answer.matches(sentences(rng, 2, 5, 3), gradient=True)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, sentences(rng, 2, 4, 3))


# --- operators ----------------------------------------------------------------------------------

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


class TestOperators:
    task = Task(
        name="operators",
        reference=reference.operators,
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

    @points(2)
    def test_a_loop_takes_so_many_operators_a_position(self, answer, rng):
        for fixed, per_position in ((0, 1), (3, 4), (pick(rng, 5, 8, 20), pick(rng, 6, 11, 13))):
            counts_of(answer, made_up(fixed, per_position), "This made-up loop")

    @points(1)
    def test_a_constant_count_has_no_part_for_each_position(self, answer, rng):
        for fixed in (1, 5, pick(rng, 8, 13, 30)):
            counts_of(answer, made_up(fixed, 0), "This made-up layer")

    @points(1)
    def test_every_operator_counts_and_not_every_kind(self, answer, rng):
        counts_of(answer, made_up(4, pick(rng, 5, 6, 7), kinds=3), "This made-up loop of 3 kinds")

    @points(1)
    def test_views_are_no_operators(self, answer, rng):
        how = made_up(pick(rng, 2, 3, 4), 3, kinds=2, views=pick(rng, 1, 2, 3))
        counts_of(answer, how, "This made-up loop, which also turns its matrix,")

    @points(2)
    def test_real_models_are_counted_too(self, answer):
        for model in MODELS:
            counts_of(answer, real(model), f"Here, the model “{model}”")


# --- longest_chain ------------------------------------------------------------------------------


def recurrent(layers, n):
    """Stacked recurrent layers: a step waits for the one before it and the one below."""
    return {
        f"{layer}:{t}": [f"{layer}:{t - 1}"] * (t > 0) + [f"{layer - 1}:{t}"] * (layer > 0)
        for layer in range(layers)
        for t in range(n)
    }


def attending(layers, n):
    """Stacked attention layers: each position waits for all positions below."""
    return {
        f"{layer}:{t}": [f"{layer - 1}:{s}" for s in range(n)] * (layer > 0)
        for layer in range(layers)
        for t in range(n)
    }


def tree(leaves):
    """Sums of pairs, of pairs of pairs, …"""
    needs, row = {f"leaf {i}": [] for i in range(leaves)}, [f"leaf {i}" for i in range(leaves)]
    while len(row) > 1:
        above = []
        for i in range(0, len(row) - 1, 2):
            above.append(f"{row[i]}+{i}")
            needs[above[-1]] = [row[i], row[i + 1]]
        row = above + row[len(row) - len(row) % 2 :]
    return needs


def scattered(rng, steps):
    """Each step waits for up to three earlier ones, taken by chance."""
    needs = {}
    for i in range(steps):
        few = torch.randint(0, max(i, 1), (pick(rng, 0, 1, 2, 3),), generator=rng, device="cpu")
        needs[f"s{i}"] = [f"s{j}" for j in sorted(set(few.tolist()))] if i else []
    return needs


UNEVEN = {
    "a": [],
    "b": ["a"],
    "c": ["b"],
    "d": [],
    "e": ["d", "c"],
    "f": ["d"],
    "g": ["f", "a"],
}


def chain_probes(rng):
    return {
        "loop": {"needs": recurrent(1, 7)},
        "two layers": {"needs": recurrent(2, 5)},
        "three layers": {"needs": recurrent(3, 4)},
        "attention": {"needs": attending(1, 5)},
        "four layers of attention": {"needs": attending(4, 3)},
        "tree": {"needs": tree(8)},
        "uneven": {"needs": UNEVEN},
        "a short step comes last": {"needs": {"a": [], "b": ["a"], "c": ["b"], "d": []}},
        "the shorter way is named first": {
            "needs": {"a": [], "b": [], "c": ["b"], "d": ["a", "c"]}
        },
        "scattered": {"needs": scattered(rng, 12)},
        "long": {"needs": recurrent(1, 3000)},
        "nothing": {"needs": {}},
    }


def chain_small(rng):
    yield {"needs": {}}
    yield {"needs": {"a": []}}
    yield {"needs": {"a": [], "b": []}}
    yield {"needs": {"a": [], "b": ["a"]}}
    yield {"needs": {"a": [], "b": ["a"], "c": []}}
    yield {"needs": {"a": [], "b": ["a"], "c": [], "d": ["c", "b"]}}
    yield {"needs": UNEVEN}
    yield {"needs": recurrent(2, 3)}


def chain_is(answer, needs, expected, what):
    got = answer({"needs": needs})
    if got != expected:
        raise Failure(
            f"{what}: the longest chain has {expected} step{'s' * (expected != 1)}; you say {got}.",
            {"needs": needs},
            expected,
            got,
        )


class TestLongestChain:
    task = Task(
        name="longest_chain",
        reference=reference.longest_chain,
        returns=int,
        difficulty=2,
        minutes=10,
        section="lab4-chain",
        hints=(
            "How long is the longest chain that ends with a step that waits for nothing? And with "
            "a step that waits for one whose chain has 3?",
            "Go through the steps in their order and keep, for each, the length of the longest "
            "chain that ends with it. What it waits for has been listed before, so its length is "
            "known.",
            "length[step] = 1 + max of the lengths of what it waits for (0 if that is nothing). "
            "Return the largest of all lengths, 0 if there is no step.",
        ),
        probes=chain_probes,
        small=chain_small,
    )

    @points(2)
    def test_a_loop_over_n_positions_is_a_chain_of_n_steps(self, answer, rng):
        for n in (1, 8, pick(rng, 11, 23, 50)):
            chain_is(answer, recurrent(1, n), n, f"A recurrent layer, positions: {n}")

    @points(1)
    def test_attention_is_as_deep_as_it_has_layers(self, answer, rng):
        for layers, n in ((1, 6), (4, 3), (pick(rng, 2, 3, 5), 4)):
            what = f"Attention over {n} positions, layers: {layers}"
            chain_is(answer, attending(layers, n), layers, what)

    @points(2)
    def test_stacked_recurrent_layers_overlap(self, answer, rng):
        for layers, n in ((2, 5), (3, 3), (4, pick(rng, 6, 7, 9))):
            what = f"Recurrent layers over {n} positions, layers: {layers}"
            chain_is(answer, recurrent(layers, n), layers + n - 1, what)

    @points(2)
    def test_the_longest_way_counts_wherever_it_ends(self, answer, rng):
        chain_is(answer, UNEVEN, 4, "Seven steps")
        chain_is(answer, tree(16), 5, "Sums of pairs over 16 numbers")
        for _ in range(3):
            needs = scattered(rng, 15)
            expected = answer.expected({"needs": needs})
            chain_is(answer, needs, expected, "Fifteen steps, wired by chance")

    @points(1)
    def test_a_chain_of_five_thousand_steps_is_no_problem(self, answer):
        chain_is(answer, recurrent(1, 5000), 5000, "A recurrent layer over 5,000 positions")

    @points(1)
    def test_where_there_is_nothing_to_do_it_says_0(self, answer):
        chain_is(answer, {}, 0, "No steps at all")


# --- multiplications ----------------------------------------------------------------------------


def a_layer(layer, b, n, d):
    return {"layer": layer, "b": b, "n": n, "d": d}


def work_probes(rng):
    return {
        f"{layer} {name}": a_layer(layer, *sizes)
        for layer in ("rnn", "gru", "attention")
        for name, sizes in (
            ("ordinary", (2, 5, 3)),
            ("long", (1, 4096, 64)),
            ("wide", (3, 16, 512)),
            ("square", (4, 32, 32)),
            ("one", (1, 1, 1)),
        )
    }


def work_small(rng):
    for layer in ("rnn", "gru", "attention"):
        yield a_layer(layer, 1, 1, 1)
        yield a_layer(layer, 1, 2, 1)
        yield a_layer(layer, 1, 1, 2)
        yield a_layer(layer, 1, 2, 3)
        yield a_layer(layer, 2, 2, 3)


def multiplies(answer, *sizes):
    for layer in sizes[0] if isinstance(sizes[0], tuple) else (sizes[0],):
        inputs = a_layer(layer, *sizes[1:])
        got, expected = answer(inputs), answer.expected(inputs)
        if got != expected:
            words = ", ".join(
                f"{name} = {value}" for name, value in inputs.items() if name != layer
            )
            raise Failure(
                f"For {words} the matrix products multiply {expected:,} times; you say {got:,}, "
                f"which is {got / expected:.4g} times that.",
                inputs,
                expected,
                got,
            )


class TestMultiplications:
    task = Task(
        name="multiplications",
        reference=reference.multiplications,
        returns=int,
        difficulty=2,
        minutes=10,
        section="lab4-work",
        hints=(
            "A vector of width d times a matrix (d d): how many multiplications? How many such "
            "products are there for one position?",
            "One position of a plain RNN: two products, d² each. A GRU has three pairs of them. "
            "Attention has four products a position, and then two tables of n × n that each "
            "combine vectors of width d.",
            "For one sentence: rnn 2·n·d², gru three times that, attention 4·n·d² + 2·n²·d. Then "
            "times b.",
        ),
        probes=work_probes,
        small=work_small,
    )

    @points(2)
    def test_a_recurrent_layer_costs_the_same_at_each_position(self, answer, rng):
        for n in (1, 7, pick(rng, 100, 333, 2048)):
            multiplies(answer, "rnn", 1, n, 16)

    @points(1)
    def test_a_gru_is_three_of_them(self, answer, rng):
        for n, d in ((5, 3), (pick(rng, 64, 99, 500), 32)):
            multiplies(answer, "gru", 1, n, d)

    @points(3)
    def test_attention_has_projections_and_tables(self, answer, rng):
        for n, d in ((5, 3), (4096, 64), (8, 512), (pick(rng, 31, 77, 200), 48)):
            multiplies(answer, "attention", 1, n, d)

    @points(1)
    def test_sentences_have_nothing_to_do_with_each_other(self, answer, rng):
        for b in (2, 8, pick(rng, 3, 16, 64)):
            multiplies(answer, ("rnn", "gru", "attention"), b, 10, 4)

    @points(1)
    def test_attention_and_a_gru_are_even_where_n_is_d(self, answer, rng):
        for d in (16, 128, pick(rng, 50, 300, 512)):
            gru, attention = (answer(a_layer(name, 1, d, d)) for name in ("gru", "attention"))
            if not gru == attention == 6 * d**3:
                raise Failure(
                    f"At n = d = {d} both take 6·d³ multiplications. You say {gru:,} for the GRU "
                    f"and {attention:,} for attention."
                )


# --- lab4_receipt -------------------------------------------------------------------------------

NAMES = ("loop", "fused", "attention")
PREDICTED = ("crossover", "batch_loop", "batch_attention")


def predictions_missing(record):
    """What was not predicted as a number before the first measurement."""
    return [
        name
        for name in PREDICTED
        if not isinstance((made := _prediction(record, name)).get("value"), int | float)
        or isinstance(made.get("value"), bool)
        or made.get("points") != 0
    ]


def _prediction(record, name):
    made = record["predictions"].get(name)
    return made if isinstance(made, dict) else {}


def common_sizes(record, b):
    """Sizes at which all three have a time."""
    return sorted(set.intersection(*(set(timed(record, name, b=b)) for name in NAMES)))


def enough(sizes):
    return len(sizes) >= 4 and sizes[-1] >= 8 * sizes[0]


LONG = 1024  # a quick run, which is for trying the cells out, stops far below


def long_enough(sizes):
    return not sizes or sizes[-1] >= LONG


def unlike(record):
    """The first point whose result was not compared with float64, or differs from it."""
    for b in (1, 8):
        for name in NAMES:
            for n, p in sorted(timed(record, name, b=b).items()):
                error = p.get("reference_error")
                if not isinstance(error, int | float) or not error < 1e-2:
                    return f"{name} at b = {b}, n = {n}", error
    return None


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("too_regular", "not_interleaved", "mixed_dtypes", "copied_samples", "too_few_samples"),
    *("warm_up_counted", "edited", "wrong_result", "grad_on", "clock_mismatch"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    found = {each.name for each in grave(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": record["lab"] == LAB,
        "predicted": "crossover" in record["predictions"],
        "predicted in time": not predictions_missing(record),
        **{f"{name}, b = {b}": bool(timed(record, name, b=b)) for name in NAMES for b in (1, 8)},
        "enough sizes": all(enough(common_sizes(record, b)) for b in (1, 8)),
        "long enough": all(long_enough(common_sizes(record, b)) for b in (1, 8)),
        "compared": not unlike(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


class TestReceipt:
    task = Task(
        name="lab4_receipt",
        reference=reference.lab4_receipt,
        returns=list,
        difficulty=1,
        minutes=5,
        section="lab4-receipt",
        hints=(
            "Run the measuring cell to its end. It prints the receipt.",
            "The receipt is a long text that begins with attn1:. Put it between three quotes, "
            "after `return`; line breaks and spaces inside do not matter.",
            'return """attn1:…""" with all that stands between the quotes of the printed RECEIPT.',
        ),
        probes=lambda rng: {"receipt": {}},
        small=lambda rng: iter(()),
        adapt=as_text,
        traits=receipt_traits,
    )

    @points(1)
    def test_the_receipt_can_be_read(self, answer):
        read(answer)

    @points(1)
    def test_it_is_the_receipt_of_this_lab(self, answer):
        record_of(answer)

    @points(2)
    def test_predictions_were_written_before_the_first_measurement(self, answer):
        missing = predictions_missing(record_of(answer))
        if missing:
            raise Failure(
                f"Not predicted as a number before the first measurement: {', '.join(missing)}. "
                "A prediction need not be right; it has to come first. Move the .jsonl file away, "
                "write your numbers and measure again."
            )

    @points(2)
    def test_all_three_were_timed_for_one_sentence_and_for_eight(self, answer):
        record = record_of(answer)
        for b in (1, 8):
            common = common_sizes(record, b)
            if not enough(common):
                raise Failure(
                    f"With b = {b}, sizes at which loop, fused and attention all have times: "
                    f"{', '.join(map(str, common)) or 'none'}. Four or more are needed, the "
                    "largest at least 8 times the smallest."
                )
            if not long_enough(common):
                raise Failure(
                    f"With b = {b}, the largest n at which all three have times is {common[-1]}; "
                    f"{LONG:,} or more is needed. A quick run is no result: start again without "
                    "ATTNCOURSE_QUICK, and measure."
                )

    @points(2)
    def test_the_results_were_compared_with_the_truth(self, answer):
        found = unlike(record_of(answer))
        if found:
            where, error = found
            raise Failure(
                f"{where}: "
                + (
                    "nobody has compared the result with one in float64."
                    if error is None
                    else f"the result is off by {error}, so this is another computation."
                )
            )

    @points(4)
    def test_nothing_in_it_is_impossible_or_contradicts_itself(self, answer):
        found = grave(record_of(answer))
        if found:
            more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
            raise Failure(f"{found[0]}{more}")


# --- verdict ------------------------------------------------------------------------------------

CONCLUSIONS = (
    "always_faster",
    "crossover_1",
    "crossover_8",
    "batch_loop",
    "batch_attention",
    "held",
)


def said(verdict):
    """What the answer concludes, as six numbers; 0 for None."""

    def function(record):
        found = verdict(record)
        if found is None:
            return None
        pairs = zip(CONCLUSIONS, fields(found, CONCLUSIONS), strict=True)
        return [
            as_number(0 if name in NONE and value is None else value, name) for name, value in pairs
        ]

    return function


NONE = ("crossover_1", "crossover_8")  # may be None
T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4", "memory_bytes": 16 * 10**9}
CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread", "memory_bytes": 25 * 10**9}
MADE_UP_SIZES = (128, 256, 512, 1024, 2048)


def a_record(
    rng,
    *,
    machine=CPU,
    sizes=MADE_UP_SIZES,
    even=(3000, 700),
    loop=1.8,
    batches=(1.6, 2.1),
    predicted=600,
    slow_start=(),
    loop_ahead=(),
    fails=(),
    disturbed=(),
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        even: n at which attention and the fused GRU take the same time, for b = 1 and b = 8.
        loop: time of the loop over that of the fused GRU, with b = 1.
        batches: time with b = 8 over that with b = 1 at the largest n, of the loop and of the
            fused GRU; less at smaller n.
        predicted: the predicted crossover; 0 for none.
        slow_start: sizes at which attention takes 1.5 times as long as the fused GRU, for b = 1.
        loop_ahead: (b, n) at which the loop takes two thirds of attention's time.
        fails: (name, b, n) that ran out of memory.
        disturbed: (name, b, n) whose samples are partly four times too long.

    Returns:
        record, truth.
    """
    true = {}
    for place, b in enumerate((1, 8)):
        for n in sizes:
            steps, fused = (
                2e-5 * n * (1 + (batch - 1) * (n / sizes[-1]) ** 0.4 if b == 8 else 1)
                for batch in batches
            )
            attention = fused * (1.5 if b == 1 and n in slow_start else (n / even[place]) ** 0.9)
            steps *= loop
            if (b, n) in loop_ahead:
                steps = attention / 1.5
            true |= {
                ("fused", b, n): fused,
                ("attention", b, n): attention,
                ("loop", b, n): steps,
            }
    made = []
    for (name, b, n), seconds in true.items():
        failed = (name, b, n) in fails
        factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
        samples = [round(seconds * factor, 12) for factor in factors]
        if (name, b, n) in disturbed:
            samples[3:10] = [4 * each for each in samples[3:10]]
        if slow_first:
            samples[0] *= 40 if name == "attention" else 6
        made.append(
            {
                "name": name,
                "n": n,
                "b": b,
                "d": 128,
                "seconds": [] if failed else samples,
                "clock": "events" if machine is T4 else "cpu",
                "started": [],
                "peak_bytes": None,
                "backend": None,
                "dtype": "float32",
                "error": "out of memory" if failed else None,
            }
        )
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {"crossover": predicted, "batch_loop": 2, "batch_attention": 8}
    record = {
        "lab": LAB,
        "machine": dict(machine),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, _truth({k: v for k, v in true.items() if k not in fails}, predicted)


def _truth(true, predicted):
    """What follows from the true times."""
    behind = {
        (b, n, other): true["attention", b, n] > seconds
        for (other, b, n), seconds in true.items()
        if other != "attention" and ("attention", b, n) in true
    }

    def crossover(b):
        sizes = sorted(n for (c, n, other) in behind if c == b and other == "fused")
        from_there = [n for n in sizes if all(behind[b, m, "fused"] for m in sizes if m >= n)]
        return min(from_there, default=0)

    def batch(name):
        n = max(n for (other, b, n) in true if other == name and b == 8 and (name, 1, n) in true)
        return true[name, 8, n] / true[name, 1, n]

    at_8 = crossover(8)
    return {
        "always_faster": not any(behind.values()),
        "crossover_1": crossover(1),
        "crossover_8": at_8,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": at_8 / 2 <= predicted <= 2 * at_8 if at_8 else predicted == 0,
    }


RECORDS = {
    "a CPU": {},
    "a GPU": {"machine": T4, "even": (9e4, 3e4), "loop": 6.0, "batches": (1.05, 1.1)},
    "a GPU, and no crossover predicted": {"machine": T4, "even": (9e4, 3e4), "predicted": 0},
    "both cross": {"even": (1400, 360), "predicted": 2100},
    "slow at the smallest sizes alone": {
        "even": (9e4, 3e4),
        "slow_start": (128, 256),
        "predicted": 128,
    },
    "the loop is ahead once": {"even": (9e4, 9000), "loop_ahead": ((8, 256),), "predicted": 2000},
    "attention ran out of memory": {
        "even": (9e4, 700),
        "fails": (("attention", 8, 2048), ("loop", 8, 2048)),
        "predicted": 2048,
    },
    "disturbed": {
        "disturbed": (
            *(("attention", 8, 512), ("fused", 8, 1024), ("loop", 8, 2048)),
            *(("attention", 1, 2048), ("fused", 1, 1024)),
        ),
        "slow_first": True,
        "predicted": 1100,
    },
    "all slower": {"even": (90, 60), "predicted": 40},
    "only the loop is ahead, at the large end": {
        "even": (9e4, 9000),
        "loop_ahead": ((1, 2048), (8, 1024), (8, 2048)),
        "predicted": 0,
    },
    "only attention ran out of memory": {
        "even": (9e4, 700),
        "fails": (("attention", 8, 2048),),
        "batches": (3.0, 2.1),
        "predicted": 2048,
    },
    "the fused GRU has no time where the loop is ahead": {
        "even": (9e4, 9000),
        "loop_ahead": ((8, 1024),),
        "fails": (("fused", 8, 1024),),
        "predicted": 0,
    },
}


def verdict_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


WORDS = {
    "always_faster": "attention beats both others wherever both have a time",
    "crossover_1": "for b = 1, the n from which on attention takes longer than the fused GRU",
    "crossover_8": "for b = 8, the n from which on attention takes longer than the fused GRU",
    "batch_loop": "the loop's time with b = 8 over that with b = 1, at the largest n with both",
    "batch_attention": "attention's time with b = 8 over that with b = 1, at the largest n with "
    "both",
    "held": "the prediction held",
}


def shown(name, value):
    """A conclusion as the student wrote it."""
    if name in ("always_faster", "held"):
        return str({0: False, 1: True}.get(value, value))
    return "None" if name in NONE and value == 0 else f"{value:,.4g}"


def says(answer, rng, names, kinds):
    """Assert that conclusions are right about these records."""
    for kind in kinds:
        record, truth = a_record(rng, **RECORDS[kind])
        found = answer({"record": record})
        for name in names:
            got, expected = found[CONCLUSIONS.index(name)].item(), float(truth[name])
            limit = 0.08 * expected if name.startswith("batch") else 0
            if not abs(got - expected) <= limit:
                raise Failure(
                    f"In a made-up record ({kind}), {WORDS[name]}: {shown(name, expected)}. "
                    f"Your function says {shown(name, got)}."
                )


class TestVerdict:
    task = Task(
        name="verdict",
        reference=reference.verdict,
        returns=CONCLUSIONS,
        difficulty=3,
        minutes=18,
        section="lab4-verdict",
        hints=(
            "Begin with order: a dict (name, b) → {n: median seconds}, without the points that "
            "have an error. Then compare two names at the sizes that both have.",
            "always_faster: one slower point, of any b and either rival, refutes it. Crossover: go "
            "down from the largest n as long as attention is slower; the last n you passed is it.",
            "The batch numbers: largest n that is in both dicts of this name, time at b = 8 over "
            "time at b = 1. held: crossover / 2 <= predicted <= 2 · crossover, or predicted == 0 "
            "if there is no crossover.",
        ),
        probes=verdict_probes,
        small=lambda rng: iter(()),
        adapt=said,
        tolerance=0.04,
    )

    @points(2)
    def test_one_slower_point_refutes_always(self, answer, rng):
        kinds = ("a CPU", "slow at the smallest sizes alone", "the loop is ahead once")
        says(answer, rng, ["always_faster"], kinds)

    @points(1)
    def test_a_record_without_a_slower_point_supports_it(self, answer, rng):
        kinds = ("a GPU", "a GPU, and no crossover predicted")
        says(answer, rng, ["always_faster"], kinds)

    @points(2)
    def test_the_crossover_is_the_size_from_which_on_attention_is_slower(self, answer, rng):
        kinds = ("a CPU", "both cross", "all slower")
        says(answer, rng, ["crossover_1", "crossover_8"], kinds)

    @points(1)
    def test_where_attention_wins_at_the_largest_size_there_is_no_crossover(self, answer, rng):
        kinds = (
            "a GPU",
            "slow at the smallest sizes alone",
            "only the loop is ahead, at the large end",
        )
        says(answer, rng, ["crossover_1", "crossover_8"], kinds)

    @points(1)
    def test_what_ran_out_of_memory_has_no_time(self, answer, rng):
        kinds = (
            "attention ran out of memory",
            "only attention ran out of memory",
            "the fused GRU has no time where the loop is ahead",
        )
        says(answer, rng, CONCLUSIONS, kinds)

    @points(1)
    def test_a_few_slow_samples_change_no_conclusion(self, answer, rng):
        says(answer, rng, CONCLUSIONS, ("disturbed",))

    @points(2)
    def test_it_says_what_eight_sentences_cost(self, answer, rng):
        says(answer, rng, ["batch_loop", "batch_attention"], ("a CPU", "a GPU", "both cross"))

    @points(1)
    def test_it_says_whether_the_prediction_held(self, answer, rng):
        says(answer, rng, ["held"], RECORDS)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, {"record": a_record(rng)[0]})

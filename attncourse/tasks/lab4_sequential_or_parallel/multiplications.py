"""The work of a layer: what its matrix products multiply."""

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks.lab4_sequential_or_parallel import pick


def a_layer(layer, b, n, d):
    return {"layer": layer, "b": b, "n": n, "d": d}


def probes(rng):
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


def small(rng):
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


task = Task(
    reference.multiplications,
    number=4,
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
    probes=probes,
    small=small,
)


@task.check(2)
def a_recurrent_layer_costs_the_same_at_each_position(answer, rng):
    for n in (1, 7, pick(rng, 100, 333, 2048)):
        multiplies(answer, "rnn", 1, n, 16)


@task.check(1)
def a_gru_is_three_of_them(answer, rng):
    for n, d in ((5, 3), (pick(rng, 64, 99, 500), 32)):
        multiplies(answer, "gru", 1, n, d)


@task.check(3)
def attention_has_projections_and_tables(answer, rng):
    for n, d in ((5, 3), (4096, 64), (8, 512), (pick(rng, 31, 77, 200), 48)):
        multiplies(answer, "attention", 1, n, d)


@task.check(1)
def sentences_have_nothing_to_do_with_each_other(answer, rng):
    for b in (2, 8, pick(rng, 3, 16, 64)):
        multiplies(answer, ("rnn", "gru", "attention"), b, 10, 4)


@task.check(1)
def attention_and_a_gru_are_even_where_n_is_d(answer, rng):
    for d in (16, 128, pick(rng, 50, 300, 512)):
        gru, attention = (answer(a_layer(name, 1, d, d)) for name in ("gru", "attention"))
        if not gru == attention == 6 * d**3:
            raise Failure(
                f"At n = d = {d} both take 6·d³ multiplications. You say {gru:,} for the GRU "
                f"and {attention:,} for attention."
            )


# --- steps --------------------------------------------------------------------------------------


def products(**other):
    """How many products with a matrix (d d) each layer takes a position; some other numbers."""
    return lambda layer: ({"rnn": 2, "gru": 6, "attention": 4} | other)[layer]


@task.steps
class Work:
    products = products()

    def tables(n, d):
        return 2 * n * n * d

    def batch(b, work):
        return b * work

    def __call__(self, layer, b, n, d):
        looked_up = self.tables(n, d) if layer == "attention" else 0
        return self.batch(b, self.products(layer) * n * d * d + looked_up)


# --- faults -------------------------------------------------------------------------------------


task.fault(
    "L4-ONE-PRODUCT",
    "A recurrent step multiplies the state by a matrix.",
    "And the input by another. Only the state's product has to wait, but both are work.",
    products=(products(rnn=1, gru=3), products(rnn=1), products(gru=3)),
)
task.fault(
    "L4-NO-GATES",
    "A GRU is an RNN, so it costs the same.",
    "Its two gates and its candidate each have a matrix for the input and one for the state: three "
    "times as many products.",
    products=products(gru=2),
)
task.fault(
    "L4-FOUR-GATES",
    "A gated cell has four pairs of matrices.",
    "An LSTM has four. A GRU has three: reset gate, update gate, candidate.",
    products=products(gru=8),
)
task.fault(
    "L4-TWO-GATES",
    "A GRU has two gates, so two pairs of matrices.",
    "The two gates only decide what is kept. What is new comes from the candidate, and it has a "
    "pair of matrices as well.",
    products=products(gru=4),
)
task.fault(
    "L4-NO-PROJECTIONS",
    "Attention is scores and weights times values.",
    "A layer also makes its queries, keys and values, and projects the output: four products with "
    "matrices (d d). For short sentences they are most of the work.",
    products=products(attention=0),
)
task.fault(
    "L4-THREE-PROJECTIONS",
    "Queries, keys and values: three projections.",
    "And a fourth, of the output, which mixes the heads. It is part of the layer even with one "
    "head.",
    products=products(attention=3),
)
task.fault(
    "L4-SCORES-ONLY",
    "The n × n part of attention is qkᵀ, n²·d.",
    "There are two products with an n × n table: the one that makes the scores, and the one that "
    "takes the weights to the values. (Nor is there a mask here that would halve both.)",
    tables=lambda n, d: n * n * d,
)
task.fault(
    "L4-TRIANGLE",
    "A position looks back only, so the table is a triangle.",
    "With a causal mask only a triangle is needed. This layer has no mask: each position looks at "
    "all n.",
    tables=lambda n, d: n * (n + 1) * d,
)
task.fault(
    "L4-TABLE-WITHOUT-WIDTH",
    "The table has n² numbers, so it costs n².",
    "Each of its numbers is a sum over d products. The table has n² numbers and costs n²·d.",
    tables=lambda n, d: 2 * n * n,
)
task.fault(
    "L4-LINEAR-ATTENTION",
    "Attention looks at all positions in one go, so it is linear in n.",
    "In one go is depth. The work is still every position with every other: twice the n, four "
    "times the pairs.",
    tables=(lambda n, d: 2 * n * d, lambda n, d: 0),
)
task.fault(
    "L4-OPERATIONS",
    "A multiplication comes with an addition, so twice as many.",
    "That counts operations (FLOPs), as benchmarks do. Asked for are multiplications; the "
    "comparison is the same, the number is half.",
    batch=lambda b, work: 2 * b * work,
)
task.fault(
    "L4-ONE-SENTENCE",
    "The batch goes in parallel, so it costs nothing.",
    "In parallel is a matter of workers. The work of eight sentences is eight times that of one.",
    batch=lambda b, work: work,
)


@task.fault(
    "L4-ONE-LONG-SENTENCE",
    "A batch of b sentences is b·n positions.",
    "For the projections, yes. But positions look only at their own sentence: b tables of n², not "
    "one of (b·n)².",
)
class OneLongSentence(Work):
    def __call__(self, layer, b, n, d):
        return super().__call__(layer, 1, b * n, d)

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
                whole="result",
            )


task = Task(
    reference.multiplications,
    number=4,
    returns=int,
    difficulty=2,
    minutes=10,
    section="lab4-work",
    probes=probes,
    small=small,
)


@task.check(2)
def a_recurrent_layer_takes_two_products_a_position(answer, rng):
    for n in (1, 7, pick(rng, 100, 333, 2048)):
        multiplies(answer, "rnn", 1, n, 16)


@task.check(1, "a GRU takes six products a position")
def a_gru_takes_six_products_a_position(answer, rng):
    for n, d in ((5, 3), (pick(rng, 64, 99, 500), 32)):
        multiplies(answer, "gru", 1, n, d)


@task.check(3)
def attention_takes_four_projections_and_two_products_with_a_table(answer, rng):
    for n, d in ((5, 3), (4096, 64), (8, 512), (pick(rng, 31, 77, 200), 48)):
        multiplies(answer, "attention", 1, n, d)


@task.check(1)
def the_number_is_right_for_a_batch_of_sentences(answer, rng):
    for b in (2, 8, pick(rng, 3, 16, 64)):
        multiplies(answer, ("rnn", "gru", "attention"), b, 10, 4)


@task.check(1, "attention and a GRU take 6·d³ where n = d")
def attention_and_a_gru_take_six_where_n_is_d(answer, rng):
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

    def matrix(layer, n, d):
        return n * d * d

    def scores(n, d):
        return n * n * d

    def averages(n, d):
        return n * n * d

    def batch(b, work):
        return b * work

    def tables(self, layer, n, d):
        return self.scores(n, d) + self.averages(n, d) if layer == "attention" else 0

    def __call__(self, layer, b, n, d):
        projected = self.products(layer) * self.matrix(layer, n, d)
        return self.batch(b, projected + self.tables(layer, n, d))


# --- faults -------------------------------------------------------------------------------------


task.fault("L4-ONE-PRODUCT", products=(products(rnn=1, gru=3), products(rnn=1)))
task.fault("L4-THREE-PRODUCTS", products=products(gru=3))
task.fault("L4-NO-GATES", products=products(gru=2))
task.fault("L4-FOUR-GATES", products=products(gru=8))
task.fault("L4-TWO-GATES", products=products(gru=4))
task.fault("L4-NO-PROJECTIONS", products=products(attention=0))
task.fault("L4-THREE-PROJECTIONS", products=products(attention=3))
task.fault("L4-SCORES-ONLY", averages=lambda n, d: 0)
task.fault("L4-SOFTMAX-TOO", scores=lambda n, d: n * n * d + n * n)
task.fault(
    "L4-TRIANGLE",
    scores=(lambda n, d: n * (n + 1) * d // 2, lambda n, d: n * n * d // 2),
    averages=(lambda n, d: n * (n + 1) * d // 2, lambda n, d: n * n * d // 2),
)
task.fault(
    "L4-TABLE-WITHOUT-WIDTH",
    scores=(lambda n, d: n * n, lambda n, d: n * n),
    averages=(lambda n, d: n * n, ...),
)
task.fault(
    "L4-LINEAR-ATTENTION",
    scores=(lambda n, d: n * d, lambda n, d: 0),
    averages=(lambda n, d: n * d, lambda n, d: 0),
)
task.fault(
    "L4-ALWAYS-A-MATRIX",
    scores=(lambda n, d: n * d * d, ...),
    averages=(lambda n, d: n * d * d, lambda n, d: n * d * d),
)
task.fault(
    "L4-VECTOR-ALONE",
    matrix=(
        lambda layer, n, d: n * d,
        lambda layer, n, d: n * d if layer in ("rnn", "gru") else n * d * d,
    ),
)
task.fault(
    "L4-STATE-BY-NUMBER",
    matrix=lambda layer, n, d: n * d * d if layer == "attention" else n * (d * d + d) // 2,
)
task.fault(
    "L4-ONE-POSITION",
    matrix=(
        lambda layer, n, d: d * d if layer in ("rnn", "gru") else n * d * d,
        lambda layer, n, d: d * d,
    ),
)
task.fault("L4-OPERATIONS", batch=lambda b, work: 2 * b * work)
task.fault("L4-ONE-SENTENCE", batch=lambda b, work: work)


shared = task.fault("L4-PROJECTIONS-ONCE")


@shared
class ProjectedOnce(Work):
    def __call__(self, layer, b, n, d):
        if layer == "attention":
            projected = self.products(layer) * self.matrix(layer, n, d)
            return projected + self.batch(b, self.tables(layer, n, d))
        return super().__call__(layer, b, n, d)


@shared
class MultipliedOnce(Work):
    def __call__(self, layer, b, n, d):
        projected = self.products(layer) * self.matrix(layer, n, d)
        return projected + self.batch(b, self.tables(layer, n, d))


@task.fault("L4-TABLES-ONCE")
class TablesOnce(Work):
    def __call__(self, layer, b, n, d):
        projected = self.products(layer) * self.matrix(layer, n, d)
        return self.batch(b, projected) + self.tables(layer, n, d)


@task.fault("L4-ONE-LONG-SENTENCE")
class OneLongSentence(Work):
    def __call__(self, layer, b, n, d):
        return super().__call__(layer, 1, b * n, d)

"""The work of attention: its operations, and the bytes it moves, naive and fused."""

from attncourse.checks.answer import numbers_of
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab import roofline
from attncourse.tasks.lab3_who_computed_it import WORK, counted, pick, sizes, without


def worked_out(attention_work):
    """The three numbers, without the package's own formulas."""

    def function(**inputs):
        with without(roofline.attention_flops, roofline.naive_bytes, roofline.fused_bytes):
            found = attention_work(**inputs)
        if found is None:
            return None
        return numbers_of(found, WORK)

    return function


def probes(rng):
    return {
        "large": sizes(2, 16, 4096, 64),
        "float32": sizes(1, 3, 1000, 32, width=4),
        "causal": sizes(3, 2, 512, 128, causal=True),
        "backward": sizes(1, 4, 256, 80, backward=True),
        "both": sizes(2, 5, 96, 48, 4, causal=True, backward=True),
        "short": sizes(2, 3, 8, 64),
    }


def small(rng):
    yield sizes(1, 1, 1, 1, 1)
    yield sizes(1, 1, 2, 1, 1)
    yield sizes(1, 1, 2, 3, 2)
    yield sizes(1, 1, 2, 3, 2, causal=True)
    yield sizes(1, 1, 2, 3, 2, backward=True)
    yield sizes(2, 3, 4, 5, 4)


task = Task(
    reference.attention_work,
    number=3,
    returns=WORK,
    difficulty=2,
    minutes=10,
    section="lab3-work",
    hints=(
        "Count for one head first. How many scores are there, and how many multiplications "
        "and additions does each take?",
        "There are two matrix products, scores and output, of n·n·d multiplications each, "
        "every one with an addition. For the bytes, go through the lines and note what each "
        "reads and writes.",
        "flops = 4·b·h·n·n·d, half of it if causal, times 3.5 with the backward pass. Naive: "
        "6 times n·n numbers and 4 times n·d a head; fused: only the latter.",
    ),
    probes=probes,
    small=small,
    adapt=worked_out,
    ready_made=(roofline.attention_flops, roofline.naive_bytes, roofline.fused_bytes),
    tolerance=0.002,
)


@task.check(2)
def the_operations_are_those_of_two_products(answer, rng):
    n = pick(rng, 640, 1024, 3000)
    counted(answer, "flops", sizes(2, 16, n, 64), sizes(1, 3, 64, 100, width=4))


@task.check(1)
def causal_counts_half(answer, rng):
    counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, causal=True))


@task.check(1)
def with_the_backward_pass_it_is_three_and_a_half_times(answer, rng):
    counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, backward=True))
    counted(answer, "flops", sizes(1, 2, 256, 32, causal=True, backward=True))


@task.check(2)
def naive_attention_passes_six_times_over_its_scores(answer, rng):
    counted(answer, "naive_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
    counted(answer, "naive_bytes", sizes(3, 2, 16, pick(rng, 64, 128), width=4))


@task.check(2)
def fused_attention_moves_its_inputs_and_its_output(answer, rng):
    counted(answer, "fused_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
    counted(answer, "fused_bytes", sizes(3, 2, 16, 64, width=4))


@task.check(1)
def the_bytes_are_those_of_the_forward_pass_causal_or_not(answer):
    for name in ("naive_bytes", "fused_bytes"):
        counted(answer, name, sizes(2, 4, 512, 64, causal=True, backward=True))


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Work:
    def flops(tables, d):
        return 4 * tables * d

    def masked(causal, backward):
        return 0.5 if causal else 1

    def passes(backward):
        return 3.5 if backward else 1

    def naive(tables, vectors):
        return 6 * tables + 4 * vectors

    def fused(tables, vectors):
        return 4 * vectors

    def in_bytes(numbers, width, causal):
        return numbers * width

    def __call__(self, b, h, n, d, bytes_per_number, causal, backward):
        sizes = b * h * n * n, b * h * n * d  # numbers in one table; in q, k, v or o
        flops = self.flops(sizes[0], d) * self.masked(causal, backward) * self.passes(backward)
        return {
            "flops": flops,
            "naive_bytes": self.in_bytes(self.naive(*sizes), bytes_per_number, causal),
            "fused_bytes": self.in_bytes(self.fused(*sizes), bytes_per_number, causal),
        }


# --- faults -------------------------------------------------------------------------------------


def with_softmax(few):
    return lambda tables, d: (4 * d + few) * tables


task.fault(
    "L3-MULTIPLY-ONLY",
    "Each of the n·n·d products counts once.",
    "Each product is also added to a sum: two operations. All published speeds and data sheets "
    "count both, and a formula that does not finds half of every speed.",
    flops=lambda tables, d: 2 * tables * d,
)
task.fault(
    "L3-SOFTMAX-COUNTED",
    "Softmax is a third product's worth of work, so it counts as well.",
    "It has a few operations per score, not d of them, and by convention is left out: the count is "
    "of the two matrix products.",
    flops=lambda tables, d: 6 * tables * d,
)
task.fault(
    "L3-SOFTMAX-FEW",
    "Softmax takes some operations for each score, so I add them.",
    "It does take them. By convention they are left out, so that all count alike: the two matrix "
    "products, and nothing else.",
    flops=tuple(map(with_softmax, (5, 4, 3))),
)
task.fault(
    "L3-CAUSAL-FULL",
    "A causal mask hides scores that were computed anyway.",
    "A naive program does compute them. The count is of the work that has to be done, half of it, "
    "so that a kernel which skips the hidden half gets its due.",
    masked=lambda causal, backward: 1,
)
task.fault(
    "L3-CAUSAL-FORWARD",
    "The mask halves the forward pass; the backward pass is what it was.",
    "A hidden score has no gradient either, so the backward pass skips the same half.",
    masked=lambda causal, backward: 3 / 3.5 if causal and backward else 0.5 if causal else 1,
)
task.fault(
    "L3-BACKWARD-ALONE",
    "The backward pass is 2.5 times the forward pass, so the factor is 2.5.",
    "That is the backward pass alone. Before it comes the forward pass, which counts as well.",
    passes=lambda backward: 2.5 if backward else 1,
)
task.fault(
    "L3-BACKWARD-TWICE",
    "Backward is twice forward, as for any matrix product: three times in all.",
    "For a product, yes. A fused kernel has not kept the scores and computes them again, half a "
    "forward pass more.",
    passes=lambda backward: 3 if backward else 1,
)
task.fault(
    "L3-TABLE-ONCE",
    "The scores are written once and read once.",
    "By three operations one after the other: the product writes, scaling reads and writes, "
    "softmax reads and writes, the second product reads. Traffic counts every pass.",
    naive=lambda tables, vectors: 2 * tables + 4 * vectors,
)
task.fault(
    "L3-WRITES-ONLY",
    "Three tables are written: scores, scaled scores and weights.",
    "And each of them is read again by the next operation, which takes as long.",
    naive=lambda tables, vectors: 3 * tables + 4 * vectors,
)
task.fault(
    "L3-SCALED-FOR-FREE",
    "The scores pass four times: written, read and written by the softmax, read again.",
    "Dividing by √d is a line of its own: it reads the whole table and writes another one.",
    naive=lambda tables, vectors: 4 * tables + 4 * vectors,
)
task.fault(
    "L3-TABLES-ALONE",
    "Beside the tables, q, k, v and the output are nothing.",
    "For long texts they are little. For short ones with wide heads they are most of it, and for "
    "fused attention they are all.",
    naive=lambda tables, vectors: 6 * tables,
)
task.fault(
    "L3-FUSED-WRITES-SCORES",
    "A fused kernel reads q, k, v, and has to write the scores once.",
    "It never does: a tile of scores lives on the chip and is gone when its part of the output is "
    "done. That is the whole idea.",
    fused=lambda tables, vectors: tables + 4 * vectors,
)
task.fault(
    "L3-INPUTS-ONLY",
    "A fused kernel reads three tensors: q, k and v.",
    "And writes one, the output, as large as each of them.",
    fused=lambda tables, vectors: 3 * vectors,
)
task.fault(
    "L3-NUMBERS",
    "The traffic is the count of numbers that move.",
    "A memory's speed is in bytes a second, and a number has two or four of them.",
    in_bytes=lambda numbers, width, causal: numbers,
)
task.fault(
    "L3-CAUSAL-BYTES",
    "Causal is half of everything, bytes as well.",
    "Half the scores are hidden, but naive attention writes the whole table, and fused attention "
    "still reads all of q, k and v.",
    in_bytes=lambda numbers, width, causal: numbers * width * (0.5 if causal else 1),
)


@task.fault(
    "L3-ONE-HEAD",
    "The heads share the width among them, so they cost nothing.",
    "d is what each head has. Every head has its own products and its own table.",
)
class OneHead(Work):
    def __call__(self, b, h, *sizes, **options):
        return super().__call__(b, 1, *sizes, **options)


@task.fault(
    "L3-COURSES-FORMULAS",
    "The package has attention_flops and naive_bytes, so I call them.",
    "In the measurement they are used. Here the point is to count yourself, once.",
)
def calls_the_formulas(b, h, n, d, bytes_per_number, causal, backward):
    return {"flops": roofline.attention_flops(b, h, n, d, None, causal, backward)}

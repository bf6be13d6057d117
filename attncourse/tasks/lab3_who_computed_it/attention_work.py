"""attention_work."""

from attncourse.checks.answer import as_number, fields
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
        return [as_number(*pair) for pair in zip(fields(found, WORK), WORK, strict=True)]

    return function


def work_probes(rng):
    return {
        "large": sizes(2, 16, 4096, 64),
        "float32": sizes(1, 3, 1000, 32, width=4),
        "causal": sizes(3, 2, 512, 128, causal=True),
        "backward": sizes(1, 4, 256, 80, backward=True),
        "both": sizes(2, 5, 96, 48, 4, causal=True, backward=True),
        "short": sizes(2, 3, 8, 64),
    }


def work_small(rng):
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
    probes=work_probes,
    small=work_small,
    adapt=worked_out,
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


# --- faults ---------------------------------------------------------------------------------------


def work(b, h, n, d, width, causal, backward, **unlike):
    """Right, but for the factors that `unlike` replaces."""
    return {
        "flops": unlike.get("flops", 4) * b * h * n * n * d
        * (unlike.get("half", 0.5) if causal else 1)
        * (unlike.get("both", 3.5) if backward else 1),
        "naive_bytes": width * b * h * (unlike.get("passes", 6) * n * n
                                        + unlike.get("vectors", 4) * n * d),
        "fused_bytes": width * b * h * unlike.get("fused", 4) * n * d,
    }  # fmt: skip


@task.fault(
    "L3-MULTIPLY-ONLY",
    thinks="Each of the n·n·d products counts once.",
    why="Each product is also added to a sum: two operations. All published speeds and data "
    "sheets count both, and a formula that does not finds half of every speed.",
)
def without_additions(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, flops=2)


@task.fault(
    "L3-SOFTMAX-COUNTED",
    thinks="Softmax is a third product's worth of work, so it counts as well.",
    why="It has a few operations per score, not d of them, and by convention is left out: the "
    "count is of the two matrix products.",
)
def softmax_as_a_product(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, flops=6)


@task.fault(
    "L3-CAUSAL-FULL",
    thinks="A causal mask hides scores that were computed anyway.",
    why="A naive program does compute them. The count is of the work that has to be done, half of "
    "it, so that a kernel which skips the hidden half gets its due.",
)
def causal_counts_all(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, half=1)


@task.fault(
    "L3-BACKWARD-ALONE",
    thinks="The backward pass is 2.5 times the forward pass, so the factor is 2.5.",
    why="That is the backward pass alone. Before it comes the forward pass, which counts as well.",
)
def backward_without_forward(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, both=2.5)


@task.fault(
    "L3-BACKWARD-TWICE",
    thinks="Backward is twice forward, as for any matrix product: three times in all.",
    why="For a product, yes. A fused kernel has not kept the scores and computes them again, "
    "half a forward pass more.",
)
def backward_of_a_product(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, both=3)


@task.fault(
    "L3-TABLE-ONCE",
    thinks="The scores are written once and read once.",
    why="By three operations one after the other: the product writes, scaling reads and writes, "
    "softmax reads and writes, the second product reads. Traffic counts every pass.",
)
def two_passes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, passes=2)


@task.fault(
    "L3-WRITES-ONLY",
    thinks="Three tables are written: scores, scaled scores and weights.",
    why="And each of them is read again by the next operation, which takes as long.",
)
def three_writes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, passes=3)


@task.fault(
    "L3-TABLES-ALONE",
    thinks="Beside the tables, q, k, v and the output are nothing.",
    why="For long texts they are little. For short ones with wide heads they are most of it, and "
    "for fused attention they are all.",
)
def without_the_vectors(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, vectors=0)


@task.fault(
    "L3-FUSED-WRITES-SCORES",
    thinks="A fused kernel reads q, k, v, and has to write the scores once.",
    why="It never does: a tile of scores lives on the chip and is gone when its part of the output "
    "is done. That is the whole idea.",
)
def fused_with_a_table(b, h, n, d, bytes_per_number, causal, backward):
    found = work(b, h, n, d, bytes_per_number, causal, backward)
    return found | {"fused_bytes": bytes_per_number * b * h * (n * n + 4 * n * d)}


@task.fault(
    "L3-INPUTS-ONLY",
    thinks="A fused kernel reads three tensors: q, k and v.",
    why="And writes one, the output, as large as each of them.",
)
def fused_without_output(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, fused=3)


@task.fault(
    "L3-NUMBERS",
    thinks="The traffic is the count of numbers that move.",
    why="A memory's speed is in bytes a second, and a number has two or four of them.",
)
def numbers_not_bytes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, 1, causal, backward)


@task.fault(
    "L3-CAUSAL-BYTES",
    thinks="Causal is half of everything, bytes as well.",
    why="Half the scores are hidden, but naive attention writes the whole table, and fused "
    "attention still reads all of q, k and v.",
)
def causal_halves_bytes(b, h, n, d, bytes_per_number, causal, backward):
    found = work(b, h, n, d, bytes_per_number, causal, backward)
    half = 0.5 if causal else 1
    return {name: value * (1 if name == "flops" else half) for name, value in found.items()}


@task.fault(
    "L3-ONE-HEAD",
    thinks="The heads share the width among them, so they cost nothing.",
    why="d is what each head has. Every head has its own products and its own table.",
)
def without_heads(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, 1, n, d, bytes_per_number, causal, backward)


@task.fault(
    "L3-COURSES-FORMULAS",
    thinks="The package has attention_flops and naive_bytes, so I call them.",
    why="In the measurement they are used. Here the point is to count yourself, once.",
)
def calls_the_formulas(b, h, n, d, bytes_per_number, causal, backward):
    return {"flops": roofline.attention_flops(b, h, n, d, None, causal, backward)}

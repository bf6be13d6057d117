"""peak_bytes."""

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import pick, sizes


def peak_probes(rng):
    return {
        "large": sizes(2, 16, 8192, 64, 2),
        "wide heads": sizes(3, 2, 64, 256, 4),
        "short": sizes(2, 4, 16, 64, 4),
        "one head": sizes(1, 1, 1000, 50, 4),
        "one position": sizes(5, 3, 1, 1, 8),
    }


def peak_small(rng):
    yield sizes(1, 1, 1, 1, 1)
    yield sizes(1, 1, 2, 1, 1)
    yield sizes(1, 1, 2, 3, 2)
    yield sizes(2, 1, 2, 3, 4)
    yield sizes(1, 3, 4, 64, 4)


def within_ten_percent(answer, inputs):
    got, expected = answer(inputs), answer.expected(inputs)
    if not abs(got - expected) <= 0.1 * expected:
        words = ", ".join(f"{name} = {value}" for name, value in inputs.items())
        raise Failure(
            f"For {words} the meter counts a peak of {expected:,.0f} bytes; your formula gives "
            f"{got:,.0f}, which is {got / expected:.2f} times that.",
            inputs,
            expected,
            got,
        )


task = Task(
    reference.peak_bytes,
    number=2,
    returns=float,
    difficulty=2,
    minutes=10,
    section="lab2-peak",
    hints=(
        "Go through the three lines of naive attention. After each, which tables are still "
        "in memory?",
        "At the last line the scores still have a name, the weights are being read and the "
        "output is being written. How many numbers does each hold, for one head?",
        "For one head: two tables of n times n and one of n times d. Then all heads, all "
        "sentences, and the bytes of a number.",
    ),
    probes=peak_probes,
    small=peak_small,
    tolerance=0.03,
)


@task.check(2)
def long_sequences_are_within_ten_percent(answer, rng):
    for n in (2048, 4096, 16384):
        within_ten_percent(answer, sizes(1, 16, n, 64, 2))
    within_ten_percent(answer, sizes(1, 1, pick(rng, 3000, 5000, 7000), 64, 4))


@task.check(1)
def heads_and_sentences_count(answer, rng):
    within_ten_percent(answer, sizes(pick(rng, 2, 4, 7), 1, 4096, 32, 4))
    within_ten_percent(answer, sizes(1, pick(rng, 3, 5, 8), 4096, 32, 4))


@task.check(1)
def a_number_may_take_two_four_or_eight_bytes(answer):
    for width in (2, 4, 8):
        within_ten_percent(answer, sizes(2, 3, 1024, 16, width))


@task.check(2)
def short_sequences_with_wide_heads_too(answer, rng):
    for n, d in ((64, 64), (64, 256), (16, 128), (pick(rng, 24, 40, 56), 96)):
        within_ten_percent(answer, sizes(2, 4, n, d, 4))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L2-ONE-TABLE",
    thinks="There is one n × n table: the scores become the weights.",
    why="Softmax writes a new table while it reads the old one, and the scores keep their name "
    "until the function ends. Two tables are there at once.",
)
def one_table(b, h, n, d, bytes_per_number):
    return b * h * (n * n + n * d) * bytes_per_number


@task.fault(
    "L2-THREE-TABLES",
    thinks="Product, scaled scores and weights: three n × n tables.",
    why="Three are made, but never are all alive: the unscaled product has no name, so it is freed "
    "as soon as the scaled one is there. The peak counts what is alive at once.",
)
def three_tables(b, h, n, d, bytes_per_number):
    return b * h * (3 * n * n + n * d) * bytes_per_number


@task.fault(
    "L2-PASSES",
    thinks="The scores are written and read six times in all, so six tables count.",
    why="That is traffic, bytes that move, and it decides about the time. The peak asks how much "
    "is in memory at one moment; a table read twice is there once.",
)
def passes_over_memory(b, h, n, d, bytes_per_number):
    return b * h * (6 * n * n + 4 * n * d) * bytes_per_number


@task.fault(
    "L2-ONE-HEAD",
    thinks="A table has n × n numbers.",
    why="Each head has one of its own, and they are all made by the same product. The number of "
    "heads counts like the number of sentences.",
)
def without_heads(b, h, n, d, bytes_per_number):
    return b * (2 * n * n + n * d) * bytes_per_number


@task.fault(
    "L2-ONE-SENTENCE",
    thinks="The batch does not matter: attention is within a sentence.",
    why="It is, but all sentences of a batch are computed at once, and each has its own tables.",
)
def without_batch(b, h, n, d, bytes_per_number):
    return h * (2 * n * n + n * d) * bytes_per_number


@task.fault(
    "L2-HEADS-SPLIT-TABLES",
    thinks="Heads split the width d among them, so the tables get smaller with more heads.",
    why="They split the width of the model, and d is what each head has. A table has n × n numbers "
    "whatever the width; more heads make more tables.",
)
def smaller_with_more_heads(b, h, n, d, bytes_per_number):
    return b * (2 * n * n // h + n * d) * bytes_per_number


@task.fault(
    "L2-NUMBERS",
    thinks="The peak is the count of numbers.",
    why="Memory is counted in bytes, and a number takes four of them in float32, two in float16. "
    "That is why half precision moves the wall.",
)
def numbers_not_bytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d)


@task.fault(
    "L2-ALWAYS-FLOAT32",
    thinks="A number takes four bytes.",
    why="In float32 it does. The function is told how many bytes a number takes; a T4 works in "
    "float16, with two.",
)
def always_four_bytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * 4


@task.fault(
    "L2-TABLES-ONLY",
    thinks="Only the n × n tables matter.",
    why="For long sequences, yes. Where n is not much larger than d, the output is as large as a "
    "table: with n = d it is a third of the peak.",
)
def tables_only(b, h, n, d, bytes_per_number):
    return b * h * 2 * n * n * bytes_per_number


@task.fault(
    "L2-INPUTS-IN-PEAK",
    thinks="q, k and v take memory, so they belong to the peak of the call.",
    why="They do take memory, before the call as well as during it. The peak counts what the call "
    "allocates itself; the inputs are added when you ask what fits.",
)
def with_inputs(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + 4 * n * d) * bytes_per_number


def in_gibibytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * bytes_per_number / 2**30


@task.fault(
    "L2-MEGABYTES",
    thinks="Memory is best said in megabytes.",
    why="For people, yes. A function that returns bytes can be compared with the meter and added "
    "to other bytes; divide when you print.",
    forms=(in_gibibytes,),
)
def in_megabytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * bytes_per_number / 1e6

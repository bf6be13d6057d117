"""What naive attention has allocated at its worst moment."""

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import pick, sizes


def probes(rng):
    return {
        "large": sizes(2, 16, 8192, 64, 2),
        "wide heads": sizes(3, 2, 64, 256, 4),
        "short": sizes(2, 4, 16, 64, 4),
        "one head": sizes(1, 1, 1000, 50, 4),
        "one position": sizes(5, 3, 1, 1, 8),
    }


def small(rng):
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
    probes=probes,
    small=small,
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


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Peak:
    def tables(n, h, d):
        return 2 * n * n

    def rest(n, d):
        return n * d

    def copies(b, h):
        return b * h

    def width(bytes_per_number):
        return bytes_per_number

    def unit(peak):
        return peak

    def __call__(self, b, h, n, d, bytes_per_number):
        numbers = self.tables(n, h, d) + self.rest(n, d)
        return self.unit(self.copies(b, h) * numbers * self.width(bytes_per_number))


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "L2-ONE-TABLE",
    "There is one n × n table: the scores become the weights.",
    "Softmax writes a new table while it reads the old one, and the scores keep their name "
    "until the function ends. Two tables are there at once.",
    tables=lambda n, h, d: n * n,
)
task.fault(
    "L2-THREE-TABLES",
    "Product, scaled scores and weights: three n × n tables.",
    "Three are made, but never are all alive: the unscaled product has no name, so it is freed "
    "as soon as the scaled one is there. The peak counts what is alive at once.",
    tables=lambda n, h, d: 3 * n * n,
)
task.fault(
    "L2-PASSES",
    "The scores are written and read six times in all, so six tables count.",
    "That is traffic, bytes that move, and it decides about the time. The peak asks how much "
    "is in memory at one moment; a table read twice is there once.",
    tables=lambda n, h, d: 6 * n * n,
    rest=lambda n, d: 4 * n * d,
)
task.fault(
    "L2-ONE-HEAD",
    "A table has n × n numbers.",
    "Each head has one of its own, and they are all made by the same product. The number of "
    "heads counts like the number of sentences.",
    copies=lambda b, h: b,
)
task.fault(
    "L2-ONE-SENTENCE",
    "The batch does not matter: attention is within a sentence.",
    "It is, but all sentences of a batch are computed at once, and each has its own tables.",
    copies=lambda b, h: h,
)
task.fault(
    "L2-HEADS-SPLIT-TABLES",
    "Heads split the width d among them, so the tables get smaller with more heads.",
    "They split the width of the model, and d is what each head has. A table has n × n numbers "
    "whatever the width; more heads make more tables.",
    tables=lambda n, h, d: 2 * n * n // h,
    copies=lambda b, h: b,
)
task.fault(
    "L2-NUMBERS",
    "The peak is the count of numbers.",
    "Memory is counted in bytes, and a number takes four of them in float32, two in float16. "
    "That is why half precision moves the wall.",
    width=lambda bytes_per_number: 1,
)
task.fault(
    "L2-ALWAYS-FLOAT32",
    "A number takes four bytes.",
    "In float32 it does. The function is told how many bytes a number takes; a T4 works in "
    "float16, with two.",
    width=lambda bytes_per_number: 4,
)
task.fault(
    "L2-TABLES-ONLY",
    "Only the n × n tables matter.",
    "For long sequences, yes. Where n is not much larger than d, the output is as large as a "
    "table: with n = d it is a third of the peak.",
    rest=lambda n, d: 0,
)
task.fault(
    "L2-INPUTS-IN-PEAK",
    "q, k and v take memory, so they belong to the peak of the call.",
    "They do take memory, before the call as well as during it. The peak counts what the call "
    "allocates itself; the inputs are added when you ask what fits.",
    rest=lambda n, d: 4 * n * d,
)
task.fault(
    "L2-MEGABYTES",
    "Memory is best said in megabytes.",
    "For people, yes. A function that returns bytes can be compared with the meter and added "
    "to other bytes; divide when you print.",
    unit=(lambda peak: peak / 1e6, lambda peak: peak / 2**30, lambda peak: peak / 2**20),
)
task.fault(
    "L2-BITS",
    "A number in float32 has 32 bits, so I count those.",
    "The function is told bytes and returns bytes; a byte is eight bits. Your peak is eight "
    "times too large.",
    width=lambda bytes_per_number: 8 * bytes_per_number,
)
task.fault(
    "L2-ALWAYS-FLOAT16",
    "A number takes two bytes.",
    "In float16 it does. The function is told how many bytes a number takes; a CPU works in "
    "float32, with four.",
    width=lambda bytes_per_number: 2,
)
task.fault(
    "L2-ROWS-OF-WIDTH",
    "A table has a row of width d for every position.",
    "Queries, keys and values do. Scores have one number for every pair of positions: n times "
    "n, whatever the width.",
    tables=lambda n, h, d: 2 * n * d,
)
task.fault(
    "L2-WIDTH-SQUARED",
    "A table compares every feature with every other: d times d.",
    "Attention compares positions. The table is n times n, and it grows with the text, not "
    "with the width of a head.",
    tables=lambda n, h, d: 2 * d * d,
)
task.fault(
    "L2-OUTPUT-TWICE",
    "The output is there twice, once as the product and once as what is returned.",
    "Returning a tensor copies nothing: the caller gets the very same one.",
    rest=lambda n, d: 2 * n * d,
)

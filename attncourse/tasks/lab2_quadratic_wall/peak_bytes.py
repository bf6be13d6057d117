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
        "half the bytes": sizes(1, 3, 96, 32, 2),
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
            whole="result",
        )


task = Task(
    reference.peak_bytes,
    number=2,
    returns=float,
    difficulty=2,
    minutes=10,
    section="lab2-peak",
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


@task.check(1, "a number may take two, four or eight bytes")
def a_number_may_take_two_four_or_eight_bytes(answer):
    for width in (2, 4, 8):
        within_ten_percent(answer, sizes(2, 3, 1024, 16, width))


@task.check(2)
def short_sequences_with_wide_heads_too(answer, rng):
    for h, n, d in ((4, 64, 64), (2, 64, 256), (7, 16, 128), (4, pick(rng, 24, 40, 56), 96)):
        within_ten_percent(answer, sizes(2, h, n, d, 4))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Peak:
    def tables(n, h, d):
        return 2 * n * n

    def rest(n, h, d):
        return n * d

    def copies(b, h):
        return b * h

    def width(bytes_per_number):
        return bytes_per_number

    def unit(peak):
        return peak

    def __call__(self, b, h, n, d, bytes_per_number):
        numbers = self.tables(n, h, d) + self.rest(n, h, d)
        return self.unit(self.copies(b, h) * numbers * self.width(bytes_per_number))


# --- faults -------------------------------------------------------------------------------------

task.fault("L2-ONE-TABLE", tables=lambda n, h, d: n * n)
task.fault("L2-THREE-TABLES", tables=lambda n, h, d: 3 * n * n)
task.fault("L2-PASSES", tables=lambda n, h, d: 6 * n * n, rest=lambda n, h, d: 4 * n * d)
task.fault(
    "L2-ONE-HEAD",
    copies=(lambda b, h: b, ...),
    tables=(..., lambda n, h, d: 2 * n * n / h),  # and vectors for each head
)
task.fault("L2-ONE-SENTENCE", copies=lambda b, h: h)
task.fault("L2-HEADS-SPLIT-TABLES", tables=lambda n, h, d: 2 * n * n // h, copies=lambda b, h: b)
task.fault("L2-NUMBERS", width=lambda bytes_per_number: 1)
task.fault("L2-ALWAYS-FLOAT32", width=lambda bytes_per_number: 4)
task.fault("L2-TABLES-ONLY", rest=lambda n, h, d: 0)
task.fault("L2-INPUTS-IN-PEAK", rest=lambda n, h, d: 4 * n * d)
task.fault(
    "L2-MEGABYTES",
    unit=tuple(
        (lambda peak, unit=unit: peak / unit) for unit in (1e6, 2**20, 2**30, 1e9, 1e3, 2**10)
    ),
)
task.fault("L2-BITS", width=lambda bytes_per_number: 8 * bytes_per_number)
task.fault("L2-ALWAYS-FLOAT16", width=lambda bytes_per_number: 2)
task.fault("L2-ROWS-OF-WIDTH", tables=lambda n, h, d: 2 * n * d)
task.fault("L2-WIDTH-SQUARED", tables=lambda n, h, d: 2 * d * d)
task.fault("L2-NO-OUTPUT", rest=lambda n, h, d: 3 * n * d)
task.fault("L2-OUTPUT-OF-ONE-HEAD", rest=lambda n, h, d: n * d / h)
task.fault(
    "L2-LARGEST-TENSOR",
    tables=lambda n, h, d: max(n * n, n * d),
    rest=lambda n, h, d: 0,
)
task.fault("L2-PRODUCTS", tables=lambda n, h, d: n * n * d + n * n)
task.fault("L2-OUTPUT-TWICE", rest=lambda n, h, d: 2 * n * d)


@task.fault("L2-SCORES-GONE")
class ScoresGone(Peak):
    def __call__(self, b, h, n, d, bytes_per_number):
        numbers = max(self.tables(n, h, d), self.tables(n, h, d) // 2 + self.rest(n, h, d))
        return self.unit(self.copies(b, h) * numbers * self.width(bytes_per_number))

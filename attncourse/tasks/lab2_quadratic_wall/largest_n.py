"""largest_n."""

import math

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import pick


def memory(total, b, h, d, width):
    return {"memory_bytes": total, "b": b, "h": h, "d": d, "bytes_per_number": width}


def needed(n, memory_bytes, b, h, d, bytes_per_number):
    """Bytes of q, k, v and of the peak."""
    return b * h * (2 * n * n + 4 * n * d) * bytes_per_number


def memory_probes(rng):
    return {
        "T4": memory(16 * 10**9, 1, 16, 64, 2),
        "batch": memory(3 * 10**9, 4, 2, 32, 4),
        "exactly": memory(needed(1000, 0, 2, 3, 50, 4), 2, 3, 50, 4),
        "one byte less": memory(needed(1000, 0, 2, 3, 50, 4) - 1, 2, 3, 50, 4),
        "wide": memory(10**6, 1, 2, 512, 2),
        "tiny": memory(100, 2, 2, 64, 4),
    }


def memory_small(rng):
    yield memory(6, 1, 1, 1, 1)
    yield memory(16, 1, 1, 1, 1)
    yield memory(100, 1, 1, 2, 1)
    yield memory(1000, 2, 3, 4, 4)
    yield memory(10**6, 1, 2, 512, 2)


def the_wall(answer, inputs):
    """Assert that what was returned fits, and one more does not."""
    got, expected = answer(inputs), answer.expected(inputs)
    total = inputs["memory_bytes"]
    if got < 0:
        raise Failure(f"You say n = {got}; where nothing fits, say 0.", inputs, expected, got)
    if got != expected:
        which = (
            f"needs {needed(got, **inputs):,} bytes, and {total:,} are there"
            if got > expected
            else f"fits, and so does {got + 1}, which needs {needed(got + 1, **inputs):,} bytes "
            f"of {total:,}"
        )
        words = ", ".join(f"{name} = {value}" for name, value in inputs.items())
        raise Failure(f"For {words} you say n = {got}. It {which}.", inputs, expected, got)


task = Task(
    reference.largest_n,
    number=3,
    returns=int,
    difficulty=2,
    minutes=12,
    section="lab2-wall",
    hints=(
        "What lies in memory at the worst moment? What `peak_bytes` counts, and what was "
        "there before.",
        "For one head: scores and weights n times n each, output, query, key and value n times "
        "d each. Set this times b, h and the bytes of a number equal to the memory. It is a "
        "quadratic equation; or search, as the need only grows with n.",
        "(2n² + 4nd)·b·h·bytes <= memory. Solve for n and round down; or begin at 0 and 1, "
        "double the second until it does not fit, then halve the gap. What does not fit even "
        "for n = 1 gives 0.",
    ),
    probes=memory_probes,
    small=memory_small,
    tolerance=1e-6,
)


@task.check(2)
def it_finds_the_wall_of_a_gpu(answer, rng):
    for total, h, d, width in (
        (16 * 10**9, 16, 64, 2),
        (24 * 10**9, 12, 128, 2),
        (pick(rng, 8, 40, 80) * 10**9, 32, 128, 4),
    ):
        the_wall(answer, memory(total, 1, h, d, width))


@task.check(1)
def a_batch_brings_the_wall_nearer(answer, rng):
    for b in (2, 8, pick(rng, 16, 32, 5)):
        the_wall(answer, memory(4 * 10**9, b, 4, 64, 2))


@task.check(2)
def what_you_return_fits_and_one_more_does_not(answer, rng):
    for n in (pick(rng, 300, 411, 512), 1000, 77):
        exactly = needed(n, 0, 2, 3, 50, 4)
        for spare in (0, 1, -1):
            the_wall(answer, memory(exactly + spare, 2, 3, 50, 4))


@task.check(1)
def the_inputs_lie_in_memory_too(answer, rng):
    for d in (256, 512, pick(rng, 300, 700, 1024)):
        the_wall(answer, memory(10**6, 1, 2, d, 2))


@task.check(1)
def where_nothing_fits_it_says_0(answer):
    the_wall(answer, memory(100, 2, 2, 64, 4))
    the_wall(answer, memory(0, 1, 1, 1, 1))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L2-NO-ROOT",
    thinks="Divide the memory by what one position needs.",
    why="A position needs more the more others there are: the tables grow like n². Twice the "
    "memory gives only 1.4 times the positions.",
)
def linear_wall(memory_bytes, b, h, d, bytes_per_number):
    return memory_bytes // (b * h * 4 * d * bytes_per_number)


@task.fault(
    "L2-WALL-ONE-TABLE",
    thinks="The scores have to fit: n² numbers for each head.",
    why="Scores and weights are alive at once, so twice that has to fit. With one table you would "
    "promise 1.4 times as many positions as there is room for.",
)
def room_for_one_table(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    step = 1 << 40
    while step:
        m = n + step
        if b * h * (m * m + 4 * m * d) * bytes_per_number <= memory_bytes:
            n = m
        step //= 2
    return n


@task.fault(
    "L2-WALL-NO-INPUTS",
    thinks="What peak_bytes says has to fit.",
    why="The queries, keys and values are in memory as well, all the time. They are small for long "
    "sequences, not for wide heads.",
)
def peak_alone(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    step = 1 << 40
    while step:
        m = n + step
        if b * h * (2 * m * m + m * d) * bytes_per_number <= memory_bytes:
            n = m
        step //= 2
    return n


@task.fault(
    "L2-WALL-TABLES-ONLY",
    thinks="Two tables have to fit; the rest is small.",
    why="For long sequences it is. But the answer should be exact, and with wide heads q, k, v and "
    "the output take more than the tables.",
)
def root_of_the_memory(memory_bytes, b, h, d, bytes_per_number):
    return math.isqrt(memory_bytes // (2 * b * h * bytes_per_number))


@task.fault(
    "L2-ONE-TOO-MANY",
    thinks="Count up until it no longer fits, and return that.",
    why="That is the first n that fails. Asked for is the last one that works, one less.",
)
def first_that_fails(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d + 1


@task.fault(
    "L2-STRICTLY-LESS",
    thinks="What is needed must be less than the memory.",
    why="As much as there is will do: the last byte may be used. Where the need is exactly the "
    "memory, you stop one position early.",
)
def less_than_the_memory(memory_bytes, b, h, d, bytes_per_number):
    room = max(memory_bytes - 1, 0) // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d


@task.fault(
    "L2-POWERS-OF-TWO",
    thinks="Sequence lengths are powers of two.",
    why="Benchmarks like them, memory does not care. Between 8,192, which fits, and 16,384, which "
    "does not, the wall stands somewhere.",
)
def doubling_only(memory_bytes, b, h, d, bytes_per_number):
    n = 1
    while b * h * (2 * n * n + 4 * n * d) * bytes_per_number <= memory_bytes:
        n *= 2
    return n // 2


@task.fault(
    "L2-WALL-ONE-HEAD",
    thinks="One head after the other has to fit.",
    why="All heads of all sentences are computed at once. With 16 heads the wall stands four times "
    "nearer than for one.",
)
def one_head_must_fit(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * bytes_per_number)
    return math.isqrt(room + d * d) - d


@task.fault(
    "L2-WALL-NUMBERS",
    thinks="The memory holds so many numbers.",
    why="It holds so many bytes, and each number takes several.",
)
def numbers_must_fit(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * b * h)
    return math.isqrt(room + d * d) - d

import math
import operator

import torch

from attncourse.checks.answer import Failure, following
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import pick


def memory(total, b, h, d, width):
    return {"memory_bytes": total, "b": b, "h": h, "d": d, "bytes_per_number": width}


def needed(n, memory_bytes, b, h, d, bytes_per_number):
    """Bytes of q, k, v and of the peak."""
    return b * h * (2 * n * n + 4 * n * d) * bytes_per_number


def probes(rng):
    return {
        "T4": memory(16 * 10**9, 1, 16, 64, 2),
        "batch": memory(3 * 10**9, 4, 2, 32, 4),
        "exactly": memory(needed(1000, 0, 2, 3, 50, 4), 2, 3, 50, 4),
        "one byte less": memory(needed(1000, 0, 2, 3, 50, 4) - 1, 2, 3, 50, 4),
        # What one who forgets something takes for exactly as much as there is.
        "exactly the peak": memory(6 * 4 * (2 * 1000**2 + 1000 * 50), 2, 3, 50, 4),
        "exactly two tables": memory(6 * 4 * 2 * 1000**2, 2, 3, 50, 4),
        "exactly without an output": memory(6 * 4 * (2 * 1000**2 + 3 * 1000 * 50), 2, 3, 50, 4),
        "exactly with one table": memory(6 * 4 * (1000**2 + 4 * 1000 * 50), 2, 3, 50, 4),
        "wide": memory(10**6, 1, 2, 512, 2),
        "beyond a power of two": memory(needed(1100, 0, 1, 2, 16, 2), 1, 2, 16, 2),
        "tiny": memory(100, 2, 2, 64, 4),
        "one byte": memory(1, 2, 2, 64, 4),
    }


def small(rng):
    yield memory(6, 1, 1, 1, 1)
    yield memory(16, 1, 1, 1, 1)
    yield memory(100, 1, 1, 2, 1)
    yield memory(1000, 2, 3, 4, 4)
    yield memory(10**6, 1, 2, 512, 2)


def rounded_down(largest_n):
    """An answer with digits after the point, without them."""

    def function(**inputs):
        found = largest_n(**inputs)
        return math.floor(found) if isinstance(found, float) and math.isfinite(found) else found

    return function


def traits(answer):
    every = probes(torch.Generator().manual_seed(0))
    kinds = ("T4", "batch", "exactly", "wide", "exactly two tables", "beyond a power of two")
    return {
        f"{kind}, rounded down": answer.observe(every[kind], adapt=rounded_down).returned
        for kind in kinds
    }


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
            else f"fits, and so does {got + 1:,}, which needs {needed(got + 1, **inputs):,} bytes "
            f"of {total:,}"
        )
        words = ", ".join(f"{name} = {value:,}" for name, value in inputs.items())
        said = f"For {words} you say n = {got:,}. It {which}."
        raise Failure(said, inputs, expected, got, whole="result")


task = Task(
    reference.largest_n,
    number=3,
    returns=int,
    difficulty=2,
    minutes=12,
    section="lab2-wall",
    probes=probes,
    small=small,
    traits=traits,
    tolerance=1e-6,
)


@task.check(2, "it finds the wall of a GPU")
def it_finds_the_wall_of_a_gpu(answer, rng):
    for total, h, d, width in (
        (16 * 10**9, 16, 64, 2),
        (24 * 10**9, 12, 128, 2),
        (pick(rng, 8, 40, 80) * 10**9, 32, 128, 4),
    ):
        the_wall(answer, memory(total, 1, h, d, width))


@task.check(1)
def a_batch_brings_the_wall_nearer(answer, rng):
    total = needed(20_000, 0, 1, 1, 64, 4) - 1  # a byte more, and a position more would fit
    with following(lambda: the_wall(answer, memory(total, 1, 1, 64, 4))):
        for b in (2, 8, pick(rng, 16, 32, 5)):
            the_wall(answer, memory(total, b, 1, 64, 4))


@task.check(2)
def what_you_return_fits_and_one_more_does_not(answer, rng):
    for n, width in ((pick(rng, 300, 411, 512), 4), (1000, 4), (77, 4), (1000, 2)):
        exactly = needed(n, 0, 2, 3, 50, width)
        for spare in (0, 1, -1):
            the_wall(answer, memory(exactly + spare, 2, 3, 50, width))


@task.check(1)
def the_inputs_lie_in_memory_too(answer, rng):
    def just_enough(d):
        return memory(needed(301, 0, 1, 2, d, 4) + 1, 1, 2, d, 4)

    with following(lambda: the_wall(answer, just_enough(1))):  # beside them the inputs are little
        for d in (256, 512, pick(rng, 300, 700, 1024)):
            the_wall(answer, just_enough(d))


@task.check(1)
def where_nothing_fits_it_says_0(answer):
    the_wall(answer, memory(100, 2, 2, 64, 4))
    the_wall(answer, memory(300, 1, 1, 64, 2))  # room for the scores, not for the inputs
    the_wall(answer, memory(0, 1, 1, 1, 1))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Wall:
    def tables(n):
        return 2 * n * n

    def rest(n, h, d):
        return 4 * n * d

    def copies(b, h):
        return b * h

    def width(bytes_per_number):
        return bytes_per_number

    def fits(need, memory):
        return need <= memory

    def result(n):
        return n

    def __call__(self, memory_bytes, b, h, d, bytes_per_number):
        n, step = 0, 1 << 40
        while step:
            numbers = self.tables(n + step) + self.rest(n + step, h, d)
            need = self.copies(b, h) * numbers * self.width(bytes_per_number)
            n += step if self.fits(need, memory_bytes) else 0
            step //= 2
        return self.result(n)


def up(share, beyond):
    """One more where the root lies `beyond` n and this share of a position."""

    class Up(Wall):
        def __call__(self, memory_bytes, b, h, d, bytes_per_number):
            n = super().__call__(memory_bytes, b, h, d, bytes_per_number)
            numbers = self.tables(n + share) + self.rest(n + share, h, d)
            need = self.copies(b, h) * numbers * self.width(bytes_per_number)
            return n + beyond(need, memory_bytes)

    return Up


# --- faults -------------------------------------------------------------------------------------

task.fault("L2-NO-ROOT", tables=lambda n: 0)
task.fault("L2-WALL-ONE-TABLE", tables=lambda n: n * n)
task.fault("L2-WALL-NO-INPUTS", rest=lambda n, h, d: n * d)
task.fault("L2-WALL-TABLES-ONLY", rest=lambda n, h, d: 0)
task.fault("L2-ONE-TOO-MANY", result=lambda n: n + 1)
task.fault("L2-ROUNDED-UP", forms=(up(0.5, operator.le), up(0, operator.lt)))
task.fault("L2-STRICTLY-LESS", fits=lambda need, memory: need < memory)
task.fault(
    "L2-POWERS-OF-TWO",
    result=(lambda n: 1 << n.bit_length() - 1 if n else 0, lambda n: 1 << n.bit_length()),
)
task.fault(
    "L2-IN-STEPS",
    result=tuple(
        (lambda n, step=step: n // step * step)
        for step in (64, 128, 256, 100, 16, 8, 10, 1000, 1024)
    ),
)
task.fault("L2-MINUS-ONE", result=lambda n: n or -1)
task.fault("L2-WALL-WIDTH-SHARED", rest=lambda n, h, d: n * d + 3 * n * d / h)


@task.fault("L2-WALL-NOT-WHOLE")
class Root(Wall):
    def __call__(self, memory_bytes, b, h, d, bytes_per_number):
        half = self.rest(1, h, d) / (2 * self.tables(1))
        numbers = memory_bytes / (self.copies(b, h) * self.width(bytes_per_number))
        return self.result(math.sqrt(half**2 + numbers / self.tables(1)) - half)


task.fault("L2-WALL-ONE-HEAD", copies=lambda b, h: 1)
task.fault("L2-WALL-NUMBERS", width=lambda bytes_per_number: 1)
task.fault("L2-WALL-ONE-SENTENCE", copies=lambda b, h: h)
task.fault("L2-WALL-HEADS-SHARE", copies=lambda b, h: b)
task.fault("L2-WALL-FLOAT32", width=lambda bytes_per_number: 4)
task.fault("L2-WALL-THREE-TABLES", tables=lambda n: 3 * n * n)
task.fault("L2-WALL-NO-OUTPUT", rest=lambda n, h, d: 3 * n * d)
task.fault("L2-AT-LEAST-ONE", result=lambda n: max(n, 1))
task.fault("L2-ONE-TOO-FEW", result=lambda n: max(n - 1, 0))

import torch

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab import roofline
from attncourse.tasks import as_is
from attncourse.tasks.lab5_decode_bandwidth import pick, said_of, sizes


def cache_probes(rng):
    return {
        "token": sizes(1, 1, 8, 1, 128, 2),
        "model": sizes(1, 32, 32, 4096, 128, 2),
        "batch": sizes(8, 1, 1, 8192, 128, 4),
        "all": sizes(3, 5, 7, 11, 13, 2),
        "small": sizes(2, 3, 2, 5, 4, 8),
    }


def cache_small(rng):
    yield sizes(1, 1, 1, 1, 1, 1)
    yield sizes(1, 1, 1, 2, 3, 1)
    yield sizes(1, 1, 2, 3, 4, 2)
    yield sizes(2, 3, 1, 2, 4, 2)
    yield sizes(2, 3, 4, 5, 6, 4)


def exactly(answer, inputs):
    """Assert that the bytes are right to the byte."""
    got, expected = answer(inputs), answer.expected(inputs)
    if got != expected:
        raise Failure(
            f"For {said_of(inputs)} you say {got:,} bytes; there are {expected:,}.",
            inputs,
            expected,
            got,
            whole="result",
        )


MANY = sizes(63, 127, 9, 131_071, 127, 2)  # float32 rounds their bytes


def cache_traits(answer):
    """A right number of the wrong type is another mistake than a wrong number."""
    inputs = sizes(1, 32, 8, 8192, 128, 2)
    got, expected = answer.observe(inputs).returned, answer.expected(inputs)
    exact = answer.expected(MANY)
    rounded = answer.observe(MANY).returned
    return {
        "rounded": type(rounded) is int and 0 < abs(rounded - exact) < 1e-6 * exact,
        "the right number as a float": isinstance(got, float) and got == expected,
        "a float, far too small": isinstance(got, float) and got < expected / 1e5,
        "a float, a thousand times too small": got in (expected / 1000, expected / 1024),
        "an eighth, as a float": isinstance(got, float) and got == expected / 8,
    }


task = Task(
    reference.cache_bytes,
    number=1,
    returns=int,
    difficulty=1,
    minutes=6,
    section="lab5-cache",
    probes=cache_probes,
    small=cache_small,
    ready_made=(roofline.cache_bytes_per_token, roofline.decode_bytes),
    traits=cache_traits,
)


@task.check(1, "the bytes of one token are right as an int")
def the_bytes_of_one_token_are_right(answer, rng):
    exactly(answer, sizes(1, 1, 1, 1, 64, 2))
    exactly(answer, sizes(1, 1, 1, 1, pick(rng, 32, 80, 128), 1))


@task.check(1)
def the_bytes_of_many_layers_and_cached_heads_are_right(answer, rng):
    exactly(answer, sizes(1, 32, 1, 1, 64, 2))
    exactly(answer, sizes(1, 1, pick(rng, 2, 4, 8), 1, 64, 2))
    exactly(answer, sizes(1, 80, 8, 1, 128, 2))


@task.check(1)
def the_bytes_of_many_positions_and_sequences_are_right(answer, rng):
    exactly(answer, sizes(1, 1, 1, pick(rng, 100, 4096, 131072), 64, 2))
    exactly(answer, sizes(pick(rng, 3, 8, 64), 1, 1, 1000, 64, 2))
    exactly(answer, MANY)


@task.check(1, "the bytes are right for numbers of one, two or four")
def the_bytes_are_right_for_numbers_of_one_two_or_four(answer):
    for width in (1, 2, 4):
        exactly(answer, sizes(2, 3, 4, 5, 16, width))


# --- the reference in steps ---------------------------------------------------------------------


def one(*_):
    return 1


@task.steps
class Cache:
    sequences = layers = heads = positions = numbers = width = said = as_is

    def vectors():
        return 2  # a key and a value

    def __call__(self, b, layers, kv_heads, n, d, bytes_per_number):
        vectors = self.sequences(b) * self.layers(layers) * self.vectors() * self.positions(n)
        numbers = vectors * self.heads(kv_heads) * self.numbers(d, kv_heads)
        return self.said(numbers * self.width(bytes_per_number))


# --- faults -------------------------------------------------------------------------------------

task.fault("L5-KEYS-ONLY", vectors=lambda: 1)
task.fault("L5-QUERIES-TOO", vectors=lambda: 3)
task.fault("L5-ONE-LAYER", layers=one)
task.fault("L5-ONE-SEQUENCE", sequences=one)
task.fault("L5-ONE-HEAD", heads=one)
task.fault("L5-HEADS-SPLIT-D", heads=(one, ...), numbers=(lambda d, kv_heads: d // kv_heads,) * 2)
task.fault(
    "L5-IN-GIGABYTES",
    said=(
        lambda counted: counted / 1e9,
        lambda counted: counted / 2**30,
        lambda counted: counted / 1e6,
        lambda counted: counted / 2**20,
        lambda counted: counted // 10**9,
        lambda counted: counted // 2**30,
    ),
)
task.fault("L5-IN-KILOBYTES", said=(lambda counted: counted / 1000, lambda counted: counted / 1024))
task.fault("L5-FLOAT", said=float)
task.fault("L5-ONE-TOKEN", positions=one)
scores = task.fault("L5-SCORES", positions=lambda n: n * n)


@scores
class AndScores(Cache):
    def __call__(self, b, layers, kv_heads, n, d, bytes_per_number):
        numbers = self.sequences(b) * self.layers(layers) * self.heads(kv_heads) * n * n
        cache = super().__call__(b, layers, kv_heads, n, d, bytes_per_number)
        return cache + self.said(numbers * self.width(bytes_per_number))


task.fault("L5-NUMBERS", width=one)
task.fault("L5-BITS", width=lambda bytes_per_number: 8 * bytes_per_number)
task.fault("L5-ALWAYS-TWO-BYTES", width=lambda bytes_per_number: 2)
task.fault("L5-ALWAYS-FOUR-BYTES", width=lambda bytes_per_number: 4)
task.fault("L5-GIVEN-IN-BITS", width=lambda bytes_per_number: bytes_per_number / 8)
task.fault("L5-NEXT-TOKEN-TOO", positions=lambda n: n + 1)
task.fault("L5-WITHOUT-THE-NEWEST", positions=lambda n: n - 1)
task.fault("L5-ONE-NUMBER", numbers=one)
task.fault("L5-ROUNDED-BYTES", said=lambda number: int(torch.tensor(number, dtype=torch.float32)))

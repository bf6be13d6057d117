"""The size of a key and value cache, in bytes."""

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
        )


def cache_traits(answer):
    """A right number of the wrong type is another mistake than a wrong number."""
    inputs = sizes(1, 32, 8, 8192, 128, 2)
    got, expected = answer.observe(inputs).returned, answer.expected(inputs)
    return {
        "the right number as a float": isinstance(got, float) and got == expected,
        "a float, far too small": isinstance(got, float) and got < expected / 1e5,
    }


task = Task(
    reference.cache_bytes,
    number=1,
    returns=int,
    difficulty=1,
    minutes=6,
    section="lab5-cache",
    hints=(
        "Begin with one token, one layer, one cached head. What is kept of it?",
        "Two vectors of d numbers: its key and its value. Everything else multiplies that.",
        "A product of seven factors: the six arguments and the two of key and value.",
    ),
    probes=cache_probes,
    small=cache_small,
    ready_made=(roofline.cache_bytes_per_token, roofline.decode_bytes),
    traits=cache_traits,
)


@task.check(1)
def one_token_leaves_a_key_and_a_value(answer, rng):
    exactly(answer, sizes(1, 1, 1, 1, 64, 2))
    exactly(answer, sizes(1, 1, 1, 1, pick(rng, 32, 80, 128), 1))


@task.check(1)
def each_layer_and_each_cached_head_keeps_its_own(answer, rng):
    exactly(answer, sizes(1, 32, 1, 1, 64, 2))
    exactly(answer, sizes(1, 1, pick(rng, 2, 4, 8), 1, 64, 2))
    exactly(answer, sizes(1, 80, 8, 1, 128, 2))


@task.check(1)
def the_cache_grows_with_positions_and_sequences(answer, rng):
    exactly(answer, sizes(1, 1, 1, pick(rng, 100, 4096, 131072), 64, 2))
    exactly(answer, sizes(pick(rng, 3, 8, 64), 1, 1, 1000, 64, 2))


@task.check(1)
def a_number_may_take_one_two_or_four_bytes(answer):
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

task.fault(
    "L5-KEYS-ONLY",
    "A token leaves one vector of d numbers behind, in each head and layer.",
    "It leaves a key, to be found by, and a value, to be read. Attention needs both again at each "
    "later step.",
    vectors=lambda: 1,
)
task.fault(
    "L5-QUERIES-TOO",
    "Query, key and value are computed for each token, so three vectors are kept.",
    "A query asks once, when its token is the newest. Nobody reads it again: not kept.",
    vectors=lambda: 3,
)
task.fault(
    "L5-ONE-LAYER",
    "There is one cache for the whole model.",
    "The keys of a layer are made from what goes into that layer, so each layer has its own. A "
    "model of 32 layers keeps 32 times as much.",
    layers=one,
)
task.fault(
    "L5-ONE-SEQUENCE",
    "The cache belongs to the model, so the batch does not matter.",
    "It belongs to a text: its keys and values. Eight texts have eight caches. What they share are "
    "the weights.",
    sequences=one,
)
task.fault(
    "L5-ONE-HEAD",
    "A key has d numbers, whatever the heads.",
    "It has d numbers in each cached head. With one such head that is the same: this is what MQA "
    "saves.",
    heads=one,
)
task.fault(
    "L5-HEADS-SPLIT-D",
    "Heads share the width d among them, so more heads make smaller keys.",
    "They share the width of the model; d is what each head has. More heads, more bytes.",
    heads=one,
    numbers=lambda d, kv_heads: d // kv_heads,
)
task.fault(
    "L5-IN-GIGABYTES",
    "A cache is best said in gigabytes.",
    "For people, yes. A function that returns bytes, a whole number, can be added to other bytes; "
    "divide when you print.",
    said=(lambda counted: counted / 1e9, lambda counted: counted / 2**30),
)
task.fault(
    "L5-FLOAT",
    "A number is a number, whatever its type.",
    "The number is right, but a float; bytes are counted in whole numbers. Somewhere stands a / or "
    "a factor with a point.",
    said=float,
)
task.fault(
    "L5-ONE-TOKEN",
    "Only the newest token is in the cache.",
    "It is kept until the text ends, as all before it: each later token attends to it. So the "
    "cache grows with every token.",
    positions=one,
)
task.fault(
    "L5-SCORES",
    "Attention is n × n, so the cache is.",
    "Scores are made for one step and thrown away. What is kept is a key and a value a position: "
    "twice the text, twice the cache.",
    positions=lambda n: n * n,
)
task.fault(
    "L5-NUMBERS",
    "The size is the count of numbers.",
    "Memory is counted in bytes, and a number takes four of them in float32, two in float16. That "
    "is why caches are kept in few bits.",
    width=one,
)
task.fault(
    "L5-BITS",
    "float16 has 16 bits, so a number counts 16.",
    "The function is told bytes for a number and asked for bytes. Eight times less.",
    width=lambda bytes_per_number: 8 * bytes_per_number,
)
task.fault(
    "L5-ALWAYS-TWO-BYTES",
    "A number takes two bytes.",
    "In float16, yes. The last argument says how many they are: four in float32, one in the caches "
    "that save most.",
    width=lambda bytes_per_number: 2,
)

"""cache_bytes."""

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
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


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L5-KEYS-ONLY",
    thinks="A token leaves one vector of d numbers behind, in each head and layer.",
    why="It leaves a key, to be found by, and a value, to be read. Attention needs both again at "
    "each later step.",
)
def keys_only(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * kv_heads * n * d * bytes_per_number


@task.fault(
    "L5-QUERIES-TOO",
    thinks="Query, key and value are computed for each token, so three vectors are kept.",
    why="A query asks once, when its token is the newest. Nobody reads it again: not kept.",
)
def queries_too(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 3 * kv_heads * n * d * bytes_per_number


@task.fault(
    "L5-ONE-LAYER",
    thinks="There is one cache for the whole model.",
    why="The keys of a layer are made from what goes into that layer, so each layer has its own. A "
    "model of 32 layers keeps 32 times as much.",
)
def one_layer(b, layers, kv_heads, n, d, bytes_per_number):
    return b * 2 * kv_heads * n * d * bytes_per_number


@task.fault(
    "L5-ONE-SEQUENCE",
    thinks="The cache belongs to the model, so the batch does not matter.",
    why="It belongs to a text: its keys and values. Eight texts have eight caches. What they share "
    "are the weights.",
)
def one_sequence(b, layers, kv_heads, n, d, bytes_per_number):
    return layers * 2 * kv_heads * n * d * bytes_per_number


@task.fault(
    "L5-ONE-HEAD",
    thinks="A key has d numbers, whatever the heads.",
    why="It has d numbers in each cached head. With one such head that is the same: "
    "this is what MQA saves.",
)
def one_head(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * n * d * bytes_per_number


@task.fault(
    "L5-HEADS-SPLIT-D",
    thinks="Heads share the width d among them, so more heads make smaller keys.",
    why="They share the width of the model; d is what each head has. More heads, more bytes.",
)
def smaller_with_more_heads(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * n * (d // kv_heads) * bytes_per_number


def in_gibibytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d * bytes_per_number / 2**30


@task.fault(
    "L5-IN-GIGABYTES",
    thinks="A cache is best said in gigabytes.",
    why="For people, yes. A function that returns bytes, a whole number, can be added to other "
    "bytes; divide when you print.",
    forms=(in_gibibytes,),
)
def cache_in_gigabytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d * bytes_per_number / 1e9


@task.fault(
    "L5-FLOAT",
    thinks="A number is a number, whatever its type.",
    why="The number is right, but a float; bytes are counted in whole numbers. Somewhere stands a "
    "/ or a factor with a point.",
)
def cache_as_a_float(b, layers, kv_heads, n, d, bytes_per_number):
    return 2.0 * b * layers * kv_heads * n * d * bytes_per_number


@task.fault(
    "L5-ONE-TOKEN",
    thinks="Only the newest token is in the cache.",
    why="It is kept until the text ends, as all before it: each later token attends to it. So the "
    "cache grows with every token.",
)
def newest_token_only(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * d * bytes_per_number


@task.fault(
    "L5-SCORES",
    thinks="Attention is n × n, so the cache is.",
    why="Scores are made for one step and thrown away. What is kept is a key and a value a "
    "position: twice the text, twice the cache.",
)
def n_squared(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * n * d * bytes_per_number


@task.fault(
    "L5-NUMBERS",
    thinks="The size is the count of numbers.",
    why="Memory is counted in bytes, and a number takes four of them in float32, two in float16. "
    "That is why caches are kept in few bits.",
)
def numbers_not_bytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * 2 * kv_heads * n * d


@task.fault(
    "L5-BITS",
    thinks="float16 has 16 bits, so a number counts 16.",
    why="The function is told bytes for a number and asked for bytes. Eight times less.",
)
def in_bits(b, layers, kv_heads, n, d, bytes_per_number):
    return 8 * b * layers * 2 * kv_heads * n * d * bytes_per_number

"""tokens_per_second."""

import math

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.tasks.lab5_decode_bandwidth import pick, said_of


def serving(b, n, per_token, weights, speed):
    return {
        "b": b,
        "n": n,
        "bytes_per_token": per_token,
        "weight_bytes": weights,
        "bytes_per_second": speed,
    }


def tokens_probes(rng):
    return {
        "alone": serving(1, 4096, 131_072, 16 * 10**9, 2.0e12),
        "batch": serving(64, 4096, 131_072, 16 * 10**9, 2.0e12),
        "long": serving(8, 100_000, 524_288, 14 * 10**9, 3.2e11),
        "short": serving(3, 10, 1000, 10**9, 1e11),
        "no weights": serving(8, 8192, 16_384, 0, 3.2e11),
        "empty": serving(5, 0, 16_384, 10**9, 1e11),
    }


def tokens_small(rng):
    yield serving(1, 0, 10, 100, 1000.0)
    yield serving(1, 10, 10, 100, 1000.0)
    yield serving(2, 10, 10, 100, 1000.0)
    yield serving(3, 10, 10, 0, 1000.0)


def right_rate(answer, inputs):
    got, expected = answer(inputs), answer.expected(inputs)
    if not math.isclose(got, expected, rel_tol=1e-6):
        raise Failure(
            f"For {said_of(inputs)} you say {got:,.6g} tokens a second; at most {expected:,.6g} "
            "are possible.",
            inputs,
            expected,
            got,
        )


task = Task(
    reference.tokens_per_second,
    number=4,
    returns=float,
    difficulty=2,
    minutes=8,
    section="lab5-bound",
    hints=(
        "What has to come from memory before each of the b sequences has its next token?",
        "All weights, once for all sequences together; and the cache of every sequence.",
        "seconds of a step = (weight_bytes + b · n · bytes_per_token) / bytes_per_second. "
        "A step gives b tokens.",
    ),
    probes=tokens_probes,
    small=tokens_small,
)


@task.check(2)
def one_sequence_reads_the_weights_and_its_cache(answer, rng):
    right_rate(answer, serving(1, 0, 131_072, 16 * 10**9, 2e12))
    right_rate(answer, serving(1, pick(rng, 4096, 32_768), 131_072, 16 * 10**9, 2e12))


@task.check(1)
def the_weights_are_read_once_for_all_sequences(answer, rng):
    right_rate(answer, serving(pick(rng, 2, 16, 64), 0, 131_072, 16 * 10**9, 2e12))


@task.check(1)
def each_sequence_has_a_cache_of_its_own(answer, rng):
    right_rate(answer, serving(pick(rng, 4, 32), 8192, 16_384, 0, 3.2e11))


@task.check(1)
def both_together(answer, rng):
    for b in (2, pick(rng, 8, 24), 256):
        right_rate(answer, serving(b, 10_000, 131_072, 16 * 10**9, 3.35e12))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "L5-ONE-TOKEN-A-STEP",
    thinks="A step gives one token.",
    why="It gives one to each of the b sequences. That is why a server lets many wait for each "
    "other: the weights are read once for all.",
)
def one_token_a_step(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return bytes_per_second / (weight_bytes + b * n * bytes_per_token)


@task.fault(
    "L5-WEIGHTS-ONLY",
    thinks="The weights are by far the largest, so only they count.",
    why="For one short text, yes. 64 texts of 4,096 tokens may have more bytes in their caches "
    "than the model has weights.",
)
def weights_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / weight_bytes if weight_bytes else math.inf


@task.fault(
    "L5-CACHE-ONLY",
    thinks="Decoding reads the cache.",
    why="And all weights of the model, for each token anew. For one short text they are nearly all "
    "of it.",
)
def cache_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (b * n * bytes_per_token) if n else math.inf


@task.fault(
    "L5-WEIGHTS-PER-SEQUENCE",
    thinks="Each sequence needs the weights and its cache, so b of both are read.",
    why="The sequences of a step go through the same product with the same weights: these are read "
    "once. Only the caches are b times there.",
)
def weights_for_each(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (b * (weight_bytes + n * bytes_per_token))


@task.fault(
    "L5-SHARED-CACHE",
    thinks="The cache is read once for all sequences, as the weights are.",
    why="The keys of one text are of no use to another. A larger batch spreads the weights over "
    "more tokens, and the caches not at all.",
)
def one_cache_for_all(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (weight_bytes + n * bytes_per_token)


@task.fault(
    "L5-ONE-POSITION",
    thinks="A step adds one token, so it moves the bytes of one token.",
    why="It writes those of one, and reads those of all n before: each of them gets a weight.",
)
def newest_position_only(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / (weight_bytes + b * bytes_per_token)


@task.fault(
    "L5-LARGER-ONE",
    thinks="The longer of the two, weights or caches, decides.",
    why="They come through the same memory, one after the other, so their bytes add up. The larger "
    "one would do if they had a memory each.",
)
def the_larger_of_both(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return b * bytes_per_second / max(weight_bytes, b * n * bytes_per_token)


@task.fault(
    "L5-SECONDS",
    thinks="Bytes over bytes per second.",
    why="That are the seconds of a step. Asked for is its inverse, times the tokens that a step "
    "gives.",
)
def seconds_of_a_step(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return (weight_bytes + b * n * bytes_per_token) / bytes_per_second

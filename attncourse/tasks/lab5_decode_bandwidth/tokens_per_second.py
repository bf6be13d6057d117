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
        "few tokens": serving(2, 3, 10**6, 10**6, 1e7),
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
            whole="result",
        )


task = Task(
    reference.tokens_per_second,
    number=4,
    returns=float,
    difficulty=2,
    minutes=8,
    section="lab5-bound",
    probes=tokens_probes,
    small=tokens_small,
)


@task.check(2)
def the_rate_is_right_for_one_sequence(answer, rng):
    right_rate(answer, serving(1, 0, 131_072, 16 * 10**9, 2e12))
    right_rate(answer, serving(1, pick(rng, 4096, 32_768), 131_072, 16 * 10**9, 2e12))


@task.check(1)
def the_rate_is_right_for_many_sequences_without_a_cache(answer, rng):
    # With these weights no rate is a whole number.
    right_rate(answer, serving(pick(rng, 2, 16, 64), 0, 131_072, 15 * 10**9, 2e12))


@task.check(1)
def the_rate_is_right_for_many_caches_and_hardly_any_weights(answer, rng):
    # Weights of one byte: nobody said that there may be none.
    right_rate(answer, serving(pick(rng, 4, 32), 8192, 16_384, 1, 3.2e11))


@task.check(1)
def the_rate_is_right_for_both_together(answer, rng):
    for b in (2, pick(rng, 8, 24), 256):
        right_rate(answer, serving(b, 10_000, 131_072, 16 * 10**9, 3.35e12))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Serving:
    def weights(weight_bytes, b):
        return weight_bytes

    def caches(b, n, bytes_per_token):
        return b * n * bytes_per_token

    def together(weights, caches):
        return weights + caches

    def tokens(b, n):
        return b

    def rate(tokens, moved, speed):
        return tokens * speed / moved

    def __call__(self, b, n, bytes_per_token, weight_bytes, bytes_per_second):
        weights, caches = self.weights(weight_bytes, b), self.caches(b, n, bytes_per_token)
        return self.rate(self.tokens(b, n), self.together(weights, caches), bytes_per_second)


def without_limit(tokens, moved, speed):
    return tokens * speed / moved if moved else math.inf


task.spelling(rate=without_limit)

# --- faults -------------------------------------------------------------------------------------

task.fault("L5-HALF-FILLED", caches=lambda b, n, bytes_per_token: b * n * bytes_per_token / 2)
task.fault("L5-ONE-TOKEN-A-STEP", tokens=lambda b, n: 1)
task.fault("L5-ALL-TOKENS-A-STEP", tokens=lambda b, n: b * n)
task.fault("L5-WEIGHTS-ONLY", caches=lambda b, n, bytes_per_token: 0)
task.fault("L5-CACHE-ONLY", weights=lambda weight_bytes, b: 0)
task.fault("L5-WEIGHTS-PER-SEQUENCE", weights=lambda weight_bytes, b: b * weight_bytes)
task.fault("L5-SHARED-CACHE", caches=lambda b, n, bytes_per_token: n * bytes_per_token)
task.fault("L5-ONE-POSITION", caches=lambda b, n, bytes_per_token: b * bytes_per_token)
task.fault("L5-KEYS-AND-VALUES", caches=lambda b, n, bytes_per_token: 2 * b * n * bytes_per_token)
task.fault(
    "L5-NEW-POSITION-TOO", caches=lambda b, n, bytes_per_token: b * (n + 1) * bytes_per_token
)
task.fault(
    "L5-OTHERS-ONLY", caches=lambda b, n, bytes_per_token: b * max(0, n - 1) * bytes_per_token
)
task.fault("L5-WEIGHTS-DIVIDED", weights=lambda weight_bytes, b: weight_bytes / b)
task.fault("L5-IN-BITS", together=lambda weights, caches: 8 * (weights + caches))
task.fault("L5-WRITTEN-TOO", together=lambda weights, caches: 2 * (weights + caches))
task.fault("L5-LARGER-ONE", together=max)
task.fault("L5-SECONDS", rate=lambda tokens, moved, speed: moved / speed)
task.fault(
    "L5-WHOLE-TOKENS",
    rate=(
        lambda tokens, moved, speed: float(tokens * speed // moved),
        lambda tokens, moved, speed: float(round(tokens * speed / moved)),
        lambda tokens, moved, speed: float(tokens * (speed // moved)),
    ),
)
task.fault("L5-SECONDS-PER-TOKEN", rate=lambda tokens, moved, speed: moved / speed / tokens)
task.fault(
    "L5-SUM-OF-RATES",
    together=lambda weights, caches: weights and caches and 1 / (1 / weights + 1 / caches),
)

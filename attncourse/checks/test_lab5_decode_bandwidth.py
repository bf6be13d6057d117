"""The checks of lab 5. Each one's name is the sentence a teacher would say.

No clock of the grading machine is read: bytes are counted, times are made up or come from the
student's own receipt.
"""

import math

import pytest
import torch

from attncourse.checks.common import as_number, fields, integers, moves_nothing, normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.receipt import as_text, grave, read, record_of, timed
from attncourse.checks.task import Failure, Task, Unanswered, compare, describe, shape_of
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.meters import count
from attncourse.lab.roofline import attention_flops, decode_bytes

points = pytest.mark.points
LAB = "lab5_decode_bandwidth"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


def said_of(inputs):
    return ", ".join(f"{name} = {value:,}" for name, value in inputs.items())


# --- cache_bytes --------------------------------------------------------------------------------


def sizes(b, layers, kv_heads, n, d, width):
    return {
        "b": b,
        "layers": layers,
        "kv_heads": kv_heads,
        "n": n,
        "d": d,
        "bytes_per_number": width,
    }


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


class TestCacheBytes:
    task = Task(
        name="cache_bytes",
        reference=reference.cache_bytes,
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

    @points(1)
    def test_one_token_leaves_a_key_and_a_value(self, answer, rng):
        exactly(answer, sizes(1, 1, 1, 1, 64, 2))
        exactly(answer, sizes(1, 1, 1, 1, pick(rng, 32, 80, 128), 1))

    @points(1)
    def test_each_layer_and_each_cached_head_keeps_its_own(self, answer, rng):
        exactly(answer, sizes(1, 32, 1, 1, 64, 2))
        exactly(answer, sizes(1, 1, pick(rng, 2, 4, 8), 1, 64, 2))
        exactly(answer, sizes(1, 80, 8, 1, 128, 2))

    @points(1)
    def test_the_cache_grows_with_positions_and_sequences(self, answer, rng):
        exactly(answer, sizes(1, 1, 1, pick(rng, 100, 4096, 131072), 64, 2))
        exactly(answer, sizes(pick(rng, 3, 8, 64), 1, 1, 1000, 64, 2))

    @points(1)
    def test_a_number_may_take_one_two_or_four_bytes(self, answer):
        for width in (1, 2, 4):
            exactly(answer, sizes(2, 3, 4, 5, 16, width))


# --- append_to_cache ----------------------------------------------------------------------------
# Letters: b batch, c cached heads, t new positions, n all positions, d width of a head.


def new_positions(rng, b, c, room, length, t, d, make=normal, **options):
    """A cache with `length` positions filled, of which the rest is rubbish, and t new ones."""
    return {
        "key_cache": make(rng, b, c, room, d, **options),
        "value_cache": make(rng, b, c, room, d, **options),
        "length": length,
        "key": make(rng, b, c, t, d, **options),
        "value": make(rng, b, c, t, d, **options),
    }


def append_probes(rng):
    return {
        "one more": new_positions(rng, 2, 3, 7, 4, 1, 5),
        "several": new_positions(rng, 1, 2, 9, 3, 4, 3),
        "the first": new_positions(rng, 2, 2, 4, 0, 1, 3),
        "the last": new_positions(rng, 2, 1, 5, 4, 1, 3),
        "one too many": new_positions(rng, 2, 1, 5, 5, 1, 3),
        "too many": new_positions(rng, 1, 2, 6, 4, 3, 2),
    }


def append_small(rng):
    yield new_positions(rng, 1, 1, 2, 0, 1, 1, make=integers)
    yield new_positions(rng, 1, 1, 2, 1, 1, 1, make=integers)
    yield new_positions(rng, 1, 1, 3, 1, 1, 2, make=integers)
    yield new_positions(rng, 1, 1, 4, 1, 2, 2, make=integers)
    yield new_positions(rng, 1, 1, 2, 2, 1, 1, make=integers)
    yield new_positions(rng, 2, 2, 4, 2, 1, 2)


# As a report says them: "Its keys and values lie in the caches (✓ yes, · no)".
INSIDE = "keys and values lie in the caches (✓ yes, · no)"
VIEWS = "keys and values begin where the caches do (✓ yes, · no)"
REFUSED = "call raises an error (✓ yes, · no)"
APPENDED = ("keys", "values", "key cache", "value cache", INSIDE, VIEWS, REFUSED)


def appended(append):
    """The answer, with what it leaves in the caches, and whether what it returns lies there."""

    def begins_in(tensor, cache):
        return cache.data_ptr() <= tensor.data_ptr() < cache.data_ptr() + cache.nbytes

    def function(key_cache, value_cache, length, key, value):
        n = length + key.shape[2]
        try:
            returned = append(key_cache, value_cache, length, key, value)
        except NotImplementedError:
            raise
        except Exception as error:
            room = key_cache.shape[2]
            if n <= room and isinstance(error, ValueError | AssertionError):  # meant as a refusal
                raise Unusable(
                    f"raised an error, and there was room: {n} of {room} positions are filled "
                    f"after this step. ({type(error).__name__}: {error})"
                ) from None
            if n <= room:
                raise
            nothing = key_cache[:, :, :0]
            yes = torch.tensor(True)
            return [nothing, nothing, key_cache, value_cache, yes, yes, yes]
        if returned is None:
            return None
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise Unusable(f"returned {describe(returned)}; a pair is expected: keys, values.")
        for name, tensor in zip(APPENDED, returned, strict=False):
            if not isinstance(tensor, torch.Tensor):
                raise Unusable(f"returned {describe(tensor)} for {name}; a tensor is expected.")
        caches = key_cache, value_cache
        filled = [tensor for tensor in returned if tensor.numel()]
        inside = all(any(begins_in(tensor, cache) for cache in caches) for tensor in filled)
        views = all(
            tensor.numel() == 0 or tensor.data_ptr() == cache.data_ptr()
            for tensor, cache in zip(returned, caches, strict=True)
        )
        return [*returned, *caches, *map(torch.tensor, (inside, views, False))]

    return function


def metered_append(append):
    """The answer under the meter: the bytes of its biggest tensor."""

    def function(key_cache, value_cache, length, key, value):
        returned = []
        counts = count(lambda: returned.append(append(key_cache, value_cache, length, key, value)))
        return None if returned[0] is None else {"biggest": counts.biggest_bytes}

    return function


def counted(answer, inputs, adapt):
    """What the meter saw, or a Failure that says why there is nothing."""
    seen = answer.observe(inputs, adapt=adapt)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned


METERED_ROOM = 512


def append_traits(answer):
    rng = torch.Generator().manual_seed(0)
    inputs = new_positions(rng, 2, 3, METERED_ROOM, METERED_ROOM // 2, 1, 8)
    counts = counted(answer, inputs, metered_append)
    filled = inputs["key_cache"].nbytes // 2
    return {
        "allocates as much as the filled part": counts["biggest"] >= filled,
        "allocates as much as the cache": counts["biggest"] >= 2 * filled,
    }


class TestAppendToCache:
    task = Task(
        name="append_to_cache",
        reference=reference.append_to_cache,
        returns=APPENDED,
        difficulty=2,
        minutes=10,
        section="lab5-append",
        hints=(
            "Which slice of the cache belongs to the new positions? Where does it begin, and "
            "where does it end?",
            "Assigning to a slice writes into the memory that is there; a slice of a tensor is a "
            "view of it. `torch.cat` makes a new tensor and copies everything into it.",
            "n = length + t. If n > room, raise ValueError. Assign key to key_cache[:, :, "
            "length:n], value likewise, and return both caches up to n.",
        ),
        probes=append_probes,
        small=append_small,
        adapt=appended,
        traits=append_traits,
    )

    def looked_at(self, answer, inputs, *names):
        got = dict(zip(APPENDED, answer(inputs), strict=True))
        expected = dict(zip(APPENDED, answer.expected(inputs), strict=True))
        for name in names:
            compare(name, got[name], expected[name], inputs)

    @points(2)
    def test_the_new_positions_stand_behind_the_old_ones(self, answer, rng):
        for shape in ((2, 3, 7, 4, 1, 5), (1, 2, 6, 0, 1, 3), (3, 2, 5, 4, 1, 3)):
            self.looked_at(answer, new_positions(rng, *shape), "keys", "values")

    @points(2)
    def test_the_cache_itself_holds_them_afterward(self, answer, rng):
        for shape in ((2, 3, 7, 4, 1, 5), (2, 2, 4, 0, 1, 3)):
            inputs = new_positions(rng, *shape)
            self.looked_at(answer, inputs, "key cache", "value cache")

    @points(1)
    def test_several_positions_can_come_at_once(self, answer, rng):
        for shape in ((2, 2, 9, 3, 4, 3), (1, 2, 6, 0, 6, 2)):
            inputs = new_positions(rng, *shape)
            self.looked_at(answer, inputs, "keys", "values", "key cache", "value cache")

    @points(2)
    def test_what_comes_back_is_a_view_of_the_cache(self, answer, rng):
        inputs = new_positions(rng, 2, 3, 7, pick(rng, 2, 4, 5), 1, 5)
        found = dict(zip(APPENDED, answer(inputs), strict=True))
        if found[INSIDE] and not found[VIEWS]:
            raise Failure(
                "What you return does not begin where the cache begins: return all n filled "
                "positions, not only the new ones; first of the keys, then of the values.",
                inputs,
            )
        if not found[VIEWS]:
            raise Failure(
                "What you return does not lie in the caches you were given: it is a copy. A step "
                "would then read and write the whole cache before attention reads it again.",
                inputs,
            )

    @points(2)
    def test_a_step_allocates_nothing_as_large_as_the_cache(self, answer, rng):
        for room in (256, METERED_ROOM):
            inputs = new_positions(rng, 2, 3, room, room // 2, 1, 8)
            found = counted(answer, inputs, metered_append)
            filled = inputs["key_cache"].nbytes // 2
            if found["biggest"] >= filled:
                raise Failure(
                    f"The key cache holds {room // 2} positions, {filled:,} bytes. To add one of "
                    f"{inputs['key'].nbytes:,} bytes your answer makes a tensor of "
                    f"{found['biggest']:,}. `cat` and `clone` copy all that is there."
                )

    @points(1)
    def test_a_full_cache_says_so(self, answer, rng):
        for shape in ((2, 1, 5, 5, 1, 3), (1, 2, 6, 4, 3, 2)):
            inputs = new_positions(rng, *shape)
            if not answer(inputs)[APPENDED.index(REFUSED)]:
                length, t, room = shape[3], shape[4], shape[2]
                raise Failure(
                    f"{length} positions of {room} are filled and {t} should be added: your "
                    "answer says nothing, and what does not fit is lost. Raise an error.",
                    inputs,
                )


# --- decode_step --------------------------------------------------------------------------------
# Letters: b batch, h heads of the query, c heads of the cache, n positions, d width of a head.


def one_query(rng, b, h, c, n, d, make=normal, **options):
    return {
        "query": make(rng, b, h, d, **options),
        "keys": make(rng, b, c, n, d, **options),
        "values": make(rng, b, c, n, d, **options),
    }


def step_probes(rng):
    return {
        "MHA": one_query(rng, 2, 3, 3, 5, 4),
        "GQA": one_query(rng, 2, 6, 2, 5, 4),
        "GQA of four": one_query(rng, 1, 4, 2, 7, 3),
        "MQA": one_query(rng, 2, 4, 1, 6, 3),
        "square": one_query(rng, 4, 4, 2, 4, 4),
        "one position": one_query(rng, 2, 4, 2, 1, 3),
        "double": one_query(rng, 1, 6, 3, 5, 3, dtype=torch.float64),
    }


def step_small(rng):
    yield one_query(rng, 1, 1, 1, 2, 1, make=integers)
    yield one_query(rng, 1, 1, 1, 2, 2, make=integers)
    yield one_query(rng, 1, 1, 1, 3, 4, make=integers)
    yield one_query(rng, 1, 2, 2, 2, 1, make=integers)
    yield one_query(rng, 1, 2, 1, 2, 1, make=integers)
    yield one_query(rng, 1, 4, 2, 2, 1, make=integers)
    yield one_query(rng, 2, 4, 2, 3, 2)


def metered_step(step):
    """The answer under the meter, on views of a cache that is longer than they are."""

    def function(query, keys, values):
        b, c, n, d = keys.shape
        caches = keys.new_zeros(2, b, c, n + 40, d)
        caches[0, :, :, :n], caches[1, :, :, :n] = keys, values
        returned = []
        counts = count(
            lambda: returned.append(step(query, caches[0, :, :, :n], caches[1, :, :, :n]))
        )
        if returned[0] is None:
            return None
        return {"biggest": counts.biggest_bytes, "moved": counts.moved_bytes}

    return function


def in_turn(step):
    """A whole text, position by position: (b h n d) queries, the cache growing by one each time."""

    def function(query, keys, values):
        outputs = [
            step(query[:, :, i], keys[:, :, : i + 1], values[:, :, : i + 1])
            for i in range(query.shape[2])
        ]
        if any(output is None for output in outputs):
            return None
        return torch.stack(outputs, dim=2)

    return function


METERED = {"b": 2, "h": 8, "n": 128, "d": 64}


def step_counts(answer, c, rng=None):
    """(biggest tensor, bytes moved), each over what it may be compared with."""
    rng = rng or torch.Generator().manual_seed(c)
    inputs = one_query(rng, METERED["b"], METERED["h"], c, METERED["n"], METERED["d"])
    found = counted(answer, inputs, metered_step)
    keys = inputs["keys"].nbytes
    return found["biggest"] / keys, found["moved"] / (2 * keys)


def step_traits(answer):
    (biggest, moved), (most, all_moved) = step_counts(answer, 2), step_counts(answer, 8)
    return {
        "makes as much as the keys": biggest >= 1,
        "makes keys for all heads": biggest >= 4,
        "makes keys and values at once": biggest >= 8,
        "reads the cache more than once": moved > 2,
        "moves far more than the cache": moved > 6,
        "moves ten times the cache": moved > 10,
        "makes as much as the keys in MHA": most >= 1,
        "moves twice the cache in MHA": all_moved > 1.8,
        "moves three times the cache in MHA": all_moved > 2.6,
    }


class TestDecodeStep:
    task = Task(
        name="decode_step",
        reference=reference.decode_step,
        returns=("output",),
        difficulty=3,
        minutes=14,
        section="lab5-step",
        hints=(
            "With as many cached heads as query heads this is attention with one query. What "
            "changes when four query heads share one cached head?",
            "The four queries of a group are four rows of one matrix product with the same keys. "
            "So reshape the query, which is small, and leave the cache as it is.",
            "query.view(b, c, h // c, d), then scores = query @ keys.mT / sqrt(d): (b c g n). "
            "Softmax over n, times values: (b c g d). Back to (b h d).",
        ),
        probes=step_probes,
        small=step_small,
        differentiated=("GQA",),
        forbidden=FUSED_ATTENTION,
        traits=step_traits,
    )

    @points(1)
    def test_each_head_gets_one_vector(self, answer, rng):
        for b, h, c, n, d in ((2, 3, 3, 5, 4), (1, 6, 2, 4, 7), (2, 4, 1, 1, 3)):
            inputs = one_query(rng, b, h, c, n, d)
            output = answer(inputs)
            if output.shape != (b, h, d):
                raise Failure(
                    f"The output has shape {shape_of(output)}; expected (b h d) = ({b} {h} {d}).",
                    inputs,
                )

    @points(2)
    def test_with_a_cached_head_each_it_is_attention(self, answer, rng):
        for shape in ((2, 3, 3, 5, 4), (1, 2, 2, 3, 7), (3, 3, 3, 3, 3)):
            answer.matches(one_query(rng, *shape))
        inputs = one_query(rng, 2, 2, 2, 6, 5, dtype=torch.float64)
        compare("output", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)

    @points(2)
    def test_heads_in_a_row_share_a_cached_head(self, answer, rng):
        for shape in ((2, 6, 2, 5, 4), (1, 4, 2, 7, 3), (2, 4, 1, 6, 3), (1, 12, 3, 4, 5)):
            answer.matches(one_query(rng, *shape))

    @points(2)
    def test_step_by_step_it_equals_the_full_causal_pass(self, answer, rng):
        for b, h, c, n, d in ((2, 4, 4, 7, 8), (1, 6, 2, 9, 4)):
            inputs = one_query(rng, b, h, c, n, d)
            inputs["query"] = normal(rng, b, h, n, d)
            seen = answer.observe(inputs, adapt=in_turn)
            if seen.error:
                raise Failure(f"Your answer {seen.error}", inputs)
            if seen.returned is None:
                raise Unanswered("Your answer returned None: is a `return` missing?")
            keys, values = (
                inputs[name].repeat_interleave(h // c, dim=1) for name in ("keys", "values")
            )
            full = torch.nn.functional.scaled_dot_product_attention(
                inputs["query"], keys, values, is_causal=True
            )
            compare("output, position by position", seen.returned, full, inputs, tolerance=1e-5)

    @points(3)
    def test_no_key_is_copied(self, answer, rng):
        for c in (2, 8, 1):
            biggest, _ = step_counts(answer, c, rng)
            if biggest >= 1:
                raise Failure(
                    f"{METERED['h']} query heads, {c} cached, n = {METERED['n']}: your answer "
                    f"makes a tensor {biggest:.1f} times as large as all keys of the cache. "
                    "`repeat_interleave`, `contiguous` and a product that broadcasts copy them."
                )

    @points(2)
    def test_each_key_is_read_once(self, answer, rng):
        for c in (2, 4):
            _, moved = step_counts(answer, c, rng)
            if moved > 2:
                raise Failure(
                    f"{METERED['h']} query heads, {c} cached: your answer moves {moved:.1f} times "
                    "the bytes of the cache. A group of queries can read its keys together."
                )

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, one_query(rng, 2, 4, 2, 4, 3))


# --- tokens_per_second --------------------------------------------------------------------------


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


class TestTokensPerSecond:
    task = Task(
        name="tokens_per_second",
        reference=reference.tokens_per_second,
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

    @points(2)
    def test_one_sequence_reads_the_weights_and_its_cache(self, answer, rng):
        right_rate(answer, serving(1, 0, 131_072, 16 * 10**9, 2e12))
        right_rate(answer, serving(1, pick(rng, 4096, 32_768), 131_072, 16 * 10**9, 2e12))

    @points(1)
    def test_the_weights_are_read_once_for_all_sequences(self, answer, rng):
        right_rate(answer, serving(pick(rng, 2, 16, 64), 0, 131_072, 16 * 10**9, 2e12))

    @points(1)
    def test_each_sequence_has_a_cache_of_its_own(self, answer, rng):
        right_rate(answer, serving(pick(rng, 4, 32), 8192, 16_384, 0, 3.2e11))

    @points(1)
    def test_both_together(self, answer, rng):
        for b in (2, pick(rng, 8, 24), 256):
            right_rate(answer, serving(b, 10_000, 131_072, 16 * 10**9, 3.35e12))


# --- lab5_receipt -------------------------------------------------------------------------------


METHODS = ("MHA", "GQA-8", "MQA")
PREDICTED = ("share", "speed_up", "expanded")


LARGE = 2048  # a quick run ends at 256; with little memory one may have chosen smaller sizes


def common_sizes(record):
    return sorted(set.intersection(*(set(timed(record, name)) for name in METHODS)))


def predictions(record):
    """name -> prediction, of those that are numbers."""
    made = {name: record["predictions"].get(name) for name in PREDICTED}
    return {
        name: each
        for name, each in made.items()
        if isinstance(each, dict)
        and isinstance(each.get("value"), int | float)
        and not isinstance(each["value"], bool)
    }


def predicted_late(record):
    """What was predicted when something had been measured already."""
    return [name for name, each in predictions(record).items() if each.get("points") != 0]


def copy_bandwidth(record):
    """Bytes a second of the machine's own copy, and whether its products were timed, too."""
    ceilings = record["machine"].get("ceilings") or {}
    dtypes = {p.get("dtype") for name in METHODS for p in timed(record, name).values()}
    products = ceilings.get("flops_per_second") or {}
    return ceilings.get("bytes_per_second") or 0, all((products.get(d) or 0) > 0 for d in dtypes)


WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def wrong_bytes(record):
    """Points whose bytes are not those of their cache: name, n, said, counted."""
    found = []
    for name in METHODS:
        for n, p in timed(record, name).items():
            b, h, kv_heads, d = (p.get(key) or 1 for key in ("b", "h", "kv_heads", "d"))
            right = {"MHA": h, "MQA": 1}.get(name, kv_heads)
            counted_bytes = decode_bytes(b, right, n, d, WIDTHS.get(p.get("dtype"), 4))
            if p.get("bytes") != counted_bytes or kv_heads != right:
                found.append((name, n, p.get("bytes") or 0, counted_bytes))
    return found


def unlabeled(record):
    """Points that are faster than memory can be, and do not say so: name, n, times a copy."""
    copy, _ = copy_bandwidth(record)
    found = []
    for name in METHODS:
        for n, p in timed(record, name).items():
            seconds = sorted(p["seconds"])[len(p["seconds"]) // 2]
            times = (p.get("bytes") or 0) / max(seconds, 1e-12) / copy if copy else 0
            label = (p.get("label") or "").lower()
            if times > 1.6 and "cache" not in label and "l2" not in label:
                found.append((name, n, times))
    return found


def at_the_largest(record):
    """name, n and point of the methods that have a time, each at its largest n."""
    every = {name: timed(record, name) for name in METHODS}
    return [(name, max(of), of[max(of)]) for name, of in every.items() if of]


def without_peak(record):
    """Methods of which nobody has measured how much memory a step takes."""
    return [name for name, _, point in at_the_largest(record) if point.get("peak_bytes") is None]


def copies(record):
    """Methods whose step allocates well above its cache, at the largest n: name, n, peak, bytes."""
    found = []
    for name, n, point in at_the_largest(record):
        peak, cache = (point.get(key) or 0 for key in ("peak_bytes", "bytes"))
        if peak >= cache + 2**24:  # a GPU's libraries keep a workspace
            found.append((name, n, peak, cache))
    return found


AUDITED = (
    *("units", "faster_than_peak", "faster_than_memory", "overlap", "out_of_memory_as_time"),
    *("too_regular", "copied_samples", "too_few_samples", "warm_up_counted", "edited"),
    *("wrong_result", "clock_mismatch", "reserved_not_allocated", "peak_not_reset"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    if record["lab"] != LAB:
        return {"readable": True, "cut off": False, "of this lab": False}
    common, found = common_sizes(record), {each.name for each in grave(record)}
    copy, products = copy_bandwidth(record)
    return {
        "readable": True,
        "cut off": False,
        "of this lab": True,
        "predicted": len(predictions(record)) == len(PREDICTED),
        "predicted in time": not predicted_late(record),
        **{name: bool(timed(record, name)) for name in METHODS},
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "large sizes": not common or common[-1] >= LARGE,
        "copy measured": copy > 0,
        "product measured": products,
        "right bytes": not wrong_bytes(record),
        "labels": not unlabeled(record),
        "peaks": not without_peak(record),
        "no copies": not copies(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


class TestReceipt:
    task = Task(
        name="lab5_receipt",
        reference=reference.lab5_receipt,
        returns=list,
        difficulty=1,
        minutes=5,
        section="lab5-receipt",
        hints=(
            "Run the measuring cell to its end. It prints the receipt.",
            "The receipt is a long text that begins with attn1:. Put it between three quotes, "
            "after `return`; line breaks and spaces inside do not matter.",
            'return """attn1:…""" with all that stands between the quotes of the printed RECEIPT.',
        ),
        probes=lambda rng: {"receipt": {}},
        small=lambda rng: iter(()),
        adapt=as_text,
        traits=receipt_traits,
    )

    @points(1)
    def test_the_receipt_can_be_read(self, answer):
        read(answer)

    @points(1)
    def test_it_is_the_receipt_of_this_lab(self, answer):
        record_of(answer)

    @points(2)
    def test_predictions_were_written_before_the_first_measurement(self, answer):
        record = record_of(answer)
        late, made = predicted_late(record), predictions(record)
        missing = [name for name in PREDICTED if name not in made or name in late]
        if missing:
            raise Failure(
                f"Not predicted as a number before the first measurement: {', '.join(missing)}. "
                "A prediction need not be right; it has to come first. Move the .jsonl file away, "
                "write your numbers and measure again."
            )

    @points(2)
    def test_three_kinds_of_cache_were_timed_at_four_sizes_or_more(self, answer):
        common = common_sizes(record_of(answer))
        if len(common) < 4 or common[-1] < max(8 * common[0], LARGE):
            raise Failure(
                f"Sizes at which MHA, GQA-8 and MQA all have times: {common or 'none'}. Four or "
                "more are needed, the largest at least 8 times the smallest and at least "
                f"{LARGE:,}. A quick run is too small; one without memory for its largest n is not."
            )

    @points(1)
    def test_a_copy_and_a_product_of_the_same_machine_were_timed(self, answer):
        copy, products = copy_bandwidth(record_of(answer))
        if not copy > 0 or not products:
            raise Failure(
                "The record does not say how fast this machine copies and multiplies, so nobody "
                "can say which share of that a step reaches. The measuring cell does it first."
            )

    @points(2)
    def test_the_bytes_are_those_of_the_cache(self, answer):
        record = record_of(answer)
        if not common_sizes(record):
            raise Failure("There is no size at which MHA, GQA-8 and MQA all have times.")
        for name, n, said, right in wrong_bytes(record):
            raise Failure(
                f"{name} at n = {n}: the receipt says {said:,} bytes. Keys and values of its cache "
                f"are {right:,}."
            )

    @points(2)
    def test_no_step_allocates_well_above_its_cache(self, answer):
        record = record_of(answer)
        if not common_sizes(record):
            raise Failure("There is no size at which MHA, GQA-8 and MQA all have times.")
        for name in without_peak(record):
            raise Failure(
                f"The record does not say how much memory a step with {name} takes at its largest "
                "n, so nobody can see that nothing was copied. The measuring cell does."
            )
        for name, n, peak, cache in copies(record):
            raise Failure(
                f"{name} at n = {n}: the step's peak is {peak:,} bytes, its cache {cache:,}. So "
                "the cache was copied on the way. Measure again with your mended `decode_step`."
            )

    @points(1)
    def test_what_is_faster_than_memory_says_where_its_bytes_were(self, answer):
        for name, n, times in unlabeled(record_of(answer)):
            raise Failure(
                f"{name} at n = {n} reads {times:.1f} times as fast as this machine copies. Its "
                'bytes came from a cache of the processor: such a point needs the label "cache".'
            )

    @points(4)
    def test_nothing_in_it_is_impossible_or_contradicts_itself(self, answer):
        found = grave(record_of(answer))
        if found:
            more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
            raise Failure(f"{found[0]}{more}")


# --- conclude_decode ----------------------------------------------------------------------------

CONCLUSIONS = (
    *("bytes_per_second", "share", "ideal", "speed_up"),
    *("computes", "from_cache", "held"),
)


def said(conclude):
    """What the answer concludes, as seven numbers."""

    def function(record):
        found = conclude(record)
        if found is None:
            return None
        return list(map(as_number, fields(found, CONCLUSIONS), CONCLUSIONS))

    return function


T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4"}
T4_ROOF = {"flops_per_second": {"float16": 24e12, "float32": 4e12}, "bytes_per_second": 240e9}
CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread"}
CPU_ROOF = {"flops_per_second": {"float32": 100e9}, "bytes_per_second": 15e9}


def a_record(
    rng,
    *,
    machine=T4,
    roof=T4_ROOF,
    dtype="float16",
    b=8,
    h=32,
    sizes=(512, 1024, 2048, 4096, 8192),
    rate=0.7,
    fixed=4e-5,
    near=0,
    failed=(),
    predicted=1.1,
    disturbed=None,
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        rate: at which a cache is read, over that of a copy.
        fixed: seconds of a step that have nothing to do with its cache.
        near: caches of so many bytes or fewer wait in a cache of the processor, and are read
            at up to four times the bandwidth of a copy.
        failed: (name, n) that ran out of memory.
        predicted: the predicted speed-up over the true one.
        disturbed: the name whose samples at the largest n are partly many times too long.

    Returns:
        record, truth.
    """
    d, copy = 128, roof["bytes_per_second"]
    width = WIDTHS[dtype]
    made, times = [], {}
    for n in sizes:
        for name, kv_heads in (("MHA", h), ("GQA-8", 8), ("MQA", 1), ("expanded", 8)):
            moved, flops = decode_bytes(b, kv_heads, n, d, width), attention_flops(b, h, 1, d, n)
            reading, computing = moved / (rate * copy), flops / roof["flops_per_second"][dtype]
            true = fixed + max(reading, 1.1 * computing)
            if moved <= near:
                true = max(moved / (4 * copy), 1.1 * computing)
            if name == "expanded":
                true = 3 * (fixed + h * moved / 8 / (rate * copy))
            error = "out of memory" if (name, n) in failed else None
            if not error:
                times[name, n] = true, moved, flops
            factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
            samples = [round(true * factor, 12) for factor in factors]
            if name == disturbed and n == max(sizes):
                samples[3:10] = [4 * each for each in samples[3:10]]
            if slow_first:
                samples[0] *= 20 if name == "MHA" else 5
            made.append(
                {
                    "name": name,
                    "n": n,
                    "b": b,
                    "h": h,
                    "kv_heads": kv_heads,
                    "d": d,
                    "seconds": [] if error else samples,
                    "clock": "cpu" if machine is CPU else "events",
                    "started": [],
                    "bytes": moved,
                    "flops": flops,
                    "peak_bytes": None if error else 3 * b * h * n * width,
                    "backend": None,
                    "dtype": dtype,
                    "error": error,
                    "label": None,
                }
            )
    own = [n for name, n in times if name == "MHA"]
    seconds, moved, _ = times["MHA", max(own)]
    n = max(n for n in own if ("MQA", n) in times)
    (many, many_bytes, _), (one, one_bytes, flops) = times["MHA", n], times["MQA", n]
    products = roof["flops_per_second"][dtype]
    truth = {
        "bytes_per_second": moved / seconds,
        "share": moved / seconds / copy,
        "ideal": many_bytes / one_bytes,
        "speed_up": many / one,
        "computes": flops / products > one_bytes / copy,
        "from_cache": sum(moved / true > 1.5 * copy for true, moved, _ in times.values()),
        "held": 1 / 1.5 <= predicted <= 1.5,
    }
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {"share": 0.9, "speed_up": round(predicted * many / one, 3), "expanded": 1.5}
    record = {
        "lab": LAB,
        "machine": {**machine, "ceilings": roof},
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, truth


ON_A_CPU = {"machine": CPU, "roof": CPU_ROOF, "dtype": "float32", "b": 1, "fixed": 2e-4}
RECORDS = {
    "T4": {},
    "CPU": {**ON_A_CPU, "predicted": 2.4},
    "small caches wait": {**ON_A_CPU, "near": 17_000_000, "predicted": 0.75},
    "reading is faster than copying": {"rate": 1.25, "fixed": 0, "predicted": 0.4},
    "MHA ran out of memory": {"failed": (("MHA", 8192), ("expanded", 8192)), "predicted": 1.3},
    "MQA was interrupted": {"failed": (("MQA", 8192),), "h": 16, "fixed": 1e-3, "predicted": 0.8},
    "disturbed MHA": {"disturbed": "MHA", "predicted": 0.6},
    "disturbed MQA": {**ON_A_CPU, "disturbed": "MQA", "slow_first": True, "predicted": 0.75},
    "slow arithmetic": {
        **ON_A_CPU,
        "roof": {"flops_per_second": {"float32": 5e9}, "bytes_per_second": 15e9},
        "predicted": 0.5,
    },
    "16 heads": {"dtype": "float32", "h": 16, "rate": 0.4, "predicted": 1.4},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


LIMITS = {"bytes_per_second": 0.08, "share": 0.08, "ideal": 0.001, "speed_up": 0.08}
WORDS = {
    "bytes_per_second": "bytes that MHA reads a second, at its largest n",
    "share": "the share of a copy's speed that MHA reaches",
    "ideal": "cache bytes of MHA over those of MQA, at the largest n that both have",
    "speed_up": "MHA's time over MQA's, at the largest n that both have",
    "computes": "MQA lies beyond the ridge (1 = yes)",
    "from_cache": "points faster than 1.5 times a copy",
    "held": "prediction within a factor of 1.5 of the speed-up (1 = yes)",
}


def says(answer, rng, name, *kinds):
    """Assert that one conclusion is right about these records."""
    for kind in kinds or RECORDS:
        record, truth = a_record(rng, **RECORDS[kind])
        got = answer({"record": record})[CONCLUSIONS.index(name)].item()
        expected = float(truth[name])
        if not abs(got - expected) <= LIMITS.get(name, 0) * expected:
            dtype = record["points"][0]["dtype"]
            raise Failure(
                f"In a made-up record ({kind}, {dtype}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}."
            )


class TestConcludeDecode:
    task = Task(
        name="conclude_decode",
        reference=reference.conclude_decode,
        returns=CONCLUSIONS,
        difficulty=3,
        minutes=18,
        section="lab5-conclude",
        hints=(
            "Begin with order: leave out what failed, and make a dict (name, n) → median seconds "
            "and one (name, n) → point.",
            "A point knows its bytes and its flops. Bytes over seconds is its speed; flops over "
            "bytes its intensity. The ridge is the flops per second of a product, in the dtype of "
            "the point, over the bytes per second of a copy.",
            "bytes_per_second: the MHA point with the largest n. ideal and speed_up: the largest n "
            "for which MHA and MQA both have a time. computes: MQA's intensity > ridge, there. "
            "from_cache: count all points with bytes / seconds > 1.5 · copy. held: speed_up / 1.5 "
            "<= predicted <= 1.5 · speed_up.",
        ),
        probes=conclude_probes,
        small=lambda rng: iter(()),
        adapt=said,
        tolerance=0.04,
    )

    @points(2)
    def test_the_bytes_a_second_are_those_of_mha_at_its_largest_n(self, answer, rng):
        kinds = ("T4", "CPU", "MHA ran out of memory", "disturbed MHA")
        says(answer, rng, "bytes_per_second", *kinds, "small caches wait", "MQA was interrupted")

    @points(1)
    def test_the_share_is_that_in_a_copy_on_the_same_machine(self, answer, rng):
        kinds = ("T4", "CPU", "reading is faster than copying")
        says(answer, rng, "share", *kinds, "small caches wait", "MQA was interrupted")

    @points(1)
    def test_the_ideal_is_the_ratio_of_the_bytes(self, answer, rng):
        says(answer, rng, "ideal", "T4", "MQA was interrupted", "16 heads")

    @points(2)
    def test_the_speed_up_is_taken_where_both_have_a_time(self, answer, rng):
        kinds = ("T4", "CPU", "MHA ran out of memory", "MQA was interrupted")
        says(answer, rng, "speed_up", *kinds)

    @points(1)
    def test_a_few_slow_samples_do_not_move_the_speed_up(self, answer, rng):
        says(answer, rng, "speed_up", "disturbed MHA", "disturbed MQA")

    @points(1)
    def test_it_says_whether_mqa_still_waits_for_memory(self, answer, rng):
        says(answer, rng, "computes")

    @points(2)
    def test_it_counts_what_came_from_a_cache(self, answer, rng):
        says(answer, rng, "from_cache")

    @points(1)
    def test_it_says_whether_the_prediction_held(self, answer, rng):
        says(answer, rng, "held")

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, {"record": a_record(rng)[0]})

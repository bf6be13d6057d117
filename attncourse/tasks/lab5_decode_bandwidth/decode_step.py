import math

import torch

from attncourse.checks.answer import Failure, Unanswered, compare, moves_nothing, shape_of
from attncourse.checks.device import mixed, stays_with
from attncourse.checks.extremes import with_far_scores
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.meters import count
from attncourse.tasks import as_is
from attncourse.tasks.lab5_decode_bandwidth import counted


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
        "scores far apart": far_apart(one_query(rng, 2, 4, 2, 4, 3)),
    }


def far_apart(inputs):
    query, keys = with_far_scores(inputs["query"], inputs["keys"])
    return inputs | {"query": query, "keys": keys}


def step_small(rng):
    yield one_query(rng, 1, 1, 1, 2, 1, make=integers)
    yield one_query(rng, 1, 1, 1, 2, 2, make=integers)
    yield one_query(rng, 1, 1, 1, 3, 4, make=integers)
    yield one_query(rng, 1, 2, 2, 2, 1, make=integers)
    yield one_query(rng, 1, 2, 1, 2, 1, make=integers)
    yield one_query(rng, 1, 4, 2, 2, 1, make=integers)
    yield one_query(rng, 2, 4, 2, 3, 2)


def metered_step(step):
    """The answer under the meter: on views of a cache with room for `spare` more positions."""

    def function(query, keys, values, spare):
        b, c, n, d = keys.shape
        caches = keys.new_zeros(2, b, c, n + spare, d)[:, :, :, :n]
        caches[0], caches[1] = keys, values
        keys, values = caches
        returned = []
        counts = count(lambda: returned.append(step(query, keys, values)))
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


def step_counts(answer, c, rng=None, spare=40):
    """(biggest tensor, bytes moved), each over what it may be compared with."""
    rng = rng or torch.Generator().manual_seed(c)
    inputs = one_query(rng, METERED["b"], METERED["h"], c, METERED["n"], METERED["d"])
    found = counted(answer, inputs | {"spare": spare}, metered_step)
    keys = inputs["keys"].nbytes
    return found["biggest"] / keys, found["moved"] / (2 * keys)


def step_traits(answer):
    (biggest, moved), (most, all_moved) = step_counts(answer, 2), step_counts(answer, 8)
    without_room, _ = step_counts(answer, 2, spare=0)
    inputs = one_query(torch.Generator().manual_seed(0), 2, 4, 2, 4, 3)
    return {
        "mixes devices": bool(mixed(answer, inputs)),
        "makes as much as the keys": biggest >= 1,
        "makes it of a full cache, too": without_room >= 1,
        "makes twice the keys": biggest >= 2,
        "makes keys for all heads": biggest >= 4,
        "makes keys and values at once": biggest >= 8,
        "reads the cache more than once": moved > 2,
        "moves far more than the cache": moved > 6,
        "moves ten times the cache": moved > 10,
        "makes as much as the keys in MHA": most >= 1,
        "moves twice the cache in MHA": all_moved > 1.8,
        "moves three times the cache in MHA": all_moved > 2.6,
    }


task = Task(
    reference.decode_step,
    number=3,
    returns=("output",),
    difficulty=3,
    minutes=14,
    section="lab5-step",
    probes=step_probes,
    small=step_small,
    differentiated=("GQA",),
    forbidden=FUSED_ATTENTION,
    traits=step_traits,
)


@task.check(1, "each head gets one vector (b h d)")
def each_head_gets_one_vector(answer, rng):
    for b, h, c, n, d in ((2, 3, 3, 5, 4), (1, 6, 2, 4, 7), (2, 4, 1, 1, 3)):
        inputs = one_query(rng, b, h, c, n, d)
        output = answer(inputs)
        if output.shape != (b, h, d):
            raise Failure(
                f"The output has shape {shape_of(output)}; expected (b h d) = ({b} {h} {d}).",
                inputs,
            )


@task.check(2)
def with_a_cached_head_each_it_is_attention(answer, rng):
    for shape in ((2, 3, 3, 5, 4), (1, 2, 2, 3, 7), (3, 3, 3, 3, 3)):
        answer.matches(one_query(rng, *shape))
    inputs = one_query(rng, 2, 2, 2, 6, 5, dtype=torch.float64)
    answer.matches(inputs, tolerance=1e-9)
    answer.matches(far_apart(one_query(rng, 2, 2, 2, 4, 3)), tolerance=1e-3)


@task.check(2)
def with_shared_cached_heads_it_is_attention(answer, rng):
    for shape in ((2, 6, 2, 5, 4), (1, 4, 2, 7, 3), (2, 4, 1, 6, 3), (1, 12, 3, 4, 5)):
        answer.matches(one_query(rng, *shape))


@task.check(2)
def step_by_step_it_equals_the_full_causal_pass(answer, rng):
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


@task.check(3, "it makes no tensor as large as all keys")
def no_key_is_copied(answer, rng):
    for c in (2, 8, 1):
        biggest, _ = step_counts(answer, c, rng)
        if biggest >= 1:
            raise Failure(
                f"{METERED['h']} query heads, {c} cached, n = {METERED['n']}: your answer "
                f"makes a tensor {biggest:.1f} times as large as all keys of the cache. "
                "`repeat_interleave`, `contiguous` and a product that broadcasts copy them."
            )


@task.check(2, "it moves at most twice the bytes of the cache")
def no_key_is_read_twice(answer, rng):
    for c in (2, 4):
        _, moved = step_counts(answer, c, rng)
        if moved > 2:
            raise Failure(
                f"{METERED['h']} query heads, {c} cached: your answer moves {moved:.1f} times "
                "the bytes of the cache. A group of queries can read its keys together."
            )


@task.check(1)
def new_tensors_are_made_where_its_inputs_are(answer, rng):
    stays_with(answer, one_query(rng, 2, 4, 2, 4, 3))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, one_query(rng, 2, 4, 2, 4, 3))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Step:
    keys = values = hide = as_is  # keys and values: as they are read from the cache

    def seen(cache):
        return cache

    def split(query, c):
        return query.unflatten(1, (c, -1))  # b c g d

    def compare(query, keys):
        return query @ keys.mT

    def scale(scores, query):
        return scores / math.sqrt(query.shape[-1])

    def share(scores):
        return scores.softmax(-1)

    def average(weights, values):
        return weights @ values

    def averaged(keys, values):
        return values

    def join(output, query):
        return output.reshape(query.shape)

    def __call__(self, query, keys, values):
        keys, values = self.seen(keys), self.seen(values)
        keys, values = self.keys(keys, query), self.values(values, query)
        scores = self.compare(self.split(query, keys.shape[1]), keys)
        weights = self.share(self.hide(self.scale(scores, query)))
        return self.join(self.average(weights, self.averaged(keys, values)), query)


task.spelling(compare=lambda query, keys: (keys @ query.mT).mT)


def for_all_heads(cache, query):
    return cache.repeat_interleave(query.shape[1] // cache.shape[1], dim=1)


def expanded(cache, query):
    (b, c, n, d), h = cache.shape, query.shape[1]
    return cache[:, :, None].expand(b, c, h // c, n, d).reshape(b, h, n, d)


def with_an_axis(cache, query):
    return cache[:, :, None]


def each_row_alone(axis, product):
    """Read the cache once for each query of a group."""
    return lambda rows, cache: torch.cat([product(row, cache) for row in rows.split(1, axis)], axis)


def contiguous(cache, query):
    return cache.contiguous()


def repeated(cache, query):
    return cache.repeat(1, query.shape[1] // cache.shape[1], 1, 1)


def newest_hidden(scores):
    return torch.nn.functional.pad(scores[..., :-1], (0, 1), value=-torch.inf)


def as_a_group(reduce):
    """One query for all heads that share a cached head."""

    def split(query, c):
        queries = Step.split(query, c)
        return reduce(queries, dim=2, keepdim=True).expand(queries.shape)

    return split


def every_cth(output, query):
    return output.transpose(1, 2).reshape(query.shape)


def later(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def into_a_table(output, query):
    table = torch.empty(query.shape, dtype=query.dtype)
    table[:] = output.reshape(query.shape)
    return table


# --- faults -------------------------------------------------------------------------------------

task.fault("C-ON-THE-CPU", join=into_a_table)

task.fault("L5-REPEAT-INTERLEAVE", keys=for_all_heads, values=for_all_heads)
task.fault(
    "L5-BROADCAST",
    keys=(with_an_axis, expanded),
    values=(with_an_axis, expanded),
    split=(lambda query, c: query.unflatten(1, (c, -1))[..., None, :], ...),
)
task.fault(
    "L5-ELEMENTWISE",
    compare=(*(lambda query, keys: (query[..., None, :] * keys[:, :, None]).sum(-1),) * 2, ...),
    average=(
        lambda weights, values: (weights[..., None] * values[:, :, None]).sum(-2),
        ...,
        lambda weights, values: (weights[..., None] * values[:, :, None]).sum(-2),
    ),
)
task.fault("L5-CONTIGUOUS", keys=contiguous, values=(contiguous, ...))
task.fault(
    "L5-WIDER",
    keys=lambda cache, query: cache.double(),
    values=lambda cache, query: cache.double(),
    split=lambda query, c: query.double().unflatten(1, (c, -1)),
    join=lambda output, query: output.reshape(query.shape).to(query.dtype),
)
task.fault(
    "L5-SCALES-THE-KEYS", keys=lambda keys, query: keys / math.sqrt(query.shape[-1]), scale=as_is
)
task.fault(
    "L5-HEAD-LOOP",
    compare=each_row_alone(-2, Step.compare),
    average=each_row_alone(-2, Step.average),
)
task.fault(
    "L5-GROUP-ORDER",
    split=lambda query, c: query.unflatten(1, (-1, c)).transpose(1, 2),
    join=(every_cth, ...),
)
task.fault("L5-REPEAT", keys=repeated, values=repeated)
task.fault("L5-NOT-JOINED", join=as_is)
task.fault("L5-POSITION-AXIS", join=lambda output, query: output.reshape(query.shape)[:, :, None])
task.fault("L5-GROUP-BACK", join=every_cth)
task.fault("L5-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query: scores / query.shape[-1])
task.fault("L5-SCALE-BY-N", scale=lambda scores, query: scores / math.sqrt(scores.shape[-1]))
task.fault("C-SCALE-HEADS", scale=lambda scores, query: scores / math.sqrt(query.shape[1]))
task.fault("C-SCALE-MODEL", scale=lambda scores, query: scores / math.sqrt(query[0].numel()))
task.fault(
    "L5-QUERIES-AVERAGED",
    split=(as_a_group(torch.mean), as_a_group(torch.sum)),
)
task.fault("L5-SOFTMAX-OVER-GROUP", share=lambda scores: scores.softmax(-2))
task.fault(
    "C-SOFTMAX-HEADS",
    share=(
        lambda scores: scores.flatten(1, 2).softmax(1).view(scores.shape),
        lambda scores: scores.softmax(1),
    ),
)
task.fault("C-SOFTMAX-SENTENCES", share=lambda scores: scores.softmax(0))
task.fault("L5-CAUSAL-TOP-LEFT", hide=lambda scores: scores.masked_fill(later(scores), -torch.inf))
task.fault(
    "L5-NOT-ITSELF",
    seen=(
        lambda cache: cache[:, :, :-1],
        ...,
        lambda cache: cache[:, :, : max(1, cache.shape[2] - 1)],
    ),
    hide=(..., newest_hidden, ...),
)
task.fault("L5-ONLY-ITSELF", seen=lambda cache: cache[:, :, -1:])
task.fault("L5-FIRST-LEFT-OUT", seen=lambda cache: cache[:, :, 1:])
task.fault("D-KEY-AS-VALUE", averaged=lambda keys, values: keys)
task.fault("D-NO-SOFTMAX", share=as_is)
task.fault("D-NAIVE-SOFTMAX", share=lambda s: s.exp() / s.exp().sum(-1, keepdim=True))
task.fault("D-GLOBAL-MAX", share=lambda s: (e := (s - s.max()).exp()) / e.sum(-1, keepdim=True))
task.fault("L5-SOFTMAX-WHOLE-GROUP", share=lambda s: s.flatten(-2).softmax(-1).view(s.shape))
task.fault("C-SCALE-TIMES", scale=lambda scores, query: scores * math.sqrt(query.shape[-1]))
task.fault("L5-HEADS-MERGED", join=lambda output, query: output.reshape(query.shape).flatten(1))
task.fault(
    "C-FLOAT32",
    seen=lambda cache: cache.float(),
    split=lambda query, c: Step.split(query.float(), c),
)
task.fault(
    "L5-FIRST-HEAD-ONLY",
    keys=lambda cache, query: cache[:, :1],
    values=lambda cache, query: cache[:, :1],
)

import math

import torch

from attncourse import cache as reference
from attncourse.checks.answer import (
    Failure,
    compare,
    describe,
    following,
    moves_nothing,
    of_the_whole,
    shape_of,
)
from attncourse.checks.extremes import with_far_scores
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.attention import minus_infinity, of_dead_neighbors
from attncourse.tasks.axes import of_fixed_axes
from attncourse.tasks.cache._shared import (
    of_added_masks,
    of_filled_masks,
    of_scales,
    of_the_growing_axis,
)


def with_a_cache(attention):
    """The answer as a function of tensors: the cache is `keys` and `values`, or None.

    With `chunks`, the new positions come in as many calls, each with the cache that the one before
    returned.
    """

    def function(*, query, key, value, keys=None, values=None, mask=None, chunks=None):
        cache, outputs, start = None if keys is None else (keys, values), [], 0
        kept = 0 if keys is None else keys.shape[-2]
        for size in chunks or [query.shape[-2]]:
            rows = slice(start, start + size)
            pieces = [x[..., rows, :] for x in (query, key, value)]
            start += size
            given = {}
            if mask is not None:
                of_rows = mask if mask.shape[-2] == 1 else mask[..., rows, :]
                given = {"mask": of_rows[..., : kept + start]}
            returned = attention(*pieces, cache, **given)
            if returned is None:
                return None
            output, cache = taken_apart(returned)
            outputs.append(output)
        return [torch.cat(outputs, dim=-2) if chunks else outputs[0], *cache]

    return function


def taken_apart(returned):
    """Output and cache, or Unusable with what came instead."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise Unusable(f"returned {describe(returned)}; a pair is expected: output, cache.")
    output, cache = returned
    if not isinstance(output, torch.Tensor):
        raise Unusable(f"returned {describe(output)} for the output; a tensor is expected.")
    good = isinstance(cache, tuple | list) and len(cache) == 2
    if not good or not all(isinstance(kept, torch.Tensor) for kept in cache):
        raise Unusable(f"returned {describe(cache)} for the cache; a pair of tensors is expected.")
    return output, cache


def attention_inputs(
    rng, *batch, n=4, q=2, d=4, v=5, mask=None, chunks=None, make=normal, **options
):
    """n cached positions (0: none yet), and q new ones."""
    return {
        "query": make(rng, *batch, q, d, **options),
        "key": make(rng, *batch, q, d, **options),
        "value": make(rng, *batch, q, v, **options),
        "keys": make(rng, *batch, n, d, **options) if n else None,
        "values": make(rng, *batch, n, v, **options) if n else None,
        "mask": mask,
        "chunks": chunks,
    }


def far(inputs):
    """With scores of 800 and of −800."""
    query, key = with_far_scores(inputs["query"], inputs["key"])
    return inputs | {"query": query, "key": key}


def padding(*lengths, n):
    """(b 1 1 n): of n positions, the last `length` of each text are words."""
    return (torch.arange(n) >= n - torch.tensor(lengths)[:, None])[:, None, None]


def some_hidden(rng, *shape):
    """A mask (… q n) in which every new position sees itself and hides something."""
    mask = torch.rand(*shape, generator=rng, device="cpu") > 0.4
    q, n = shape[-2:]
    mask[..., torch.arange(q), torch.arange(n - q, n)] = True
    mask[..., 0] = False
    return mask


def one_row(q, n):
    """A mask (q n) of which the last row alone shows something."""
    return (torch.arange(q) == q - 1)[:, None].expand(q, n).clone()


def probes(rng):
    return {
        "one new": attention_inputs(rng, 2, 3, n=5, q=1),
        "nothing kept yet": attention_inputs(rng, 2, 3, n=0, q=4),
        "several new": attention_inputs(rng, 2, 3, n=4, q=3),
        "all equal": attention_inputs(rng, 3, 3, n=3, q=3, d=3, v=3),
        "more new than kept": attention_inputs(rng, 2, 2, n=2, q=4),
        "no heads": attention_inputs(rng, 2, n=3, q=2, d=6),
        "in chunks": attention_inputs(rng, 2, 3, n=0, q=6, chunks=[3, 1, 2]),
        "padding on the left": attention_inputs(rng, 2, 3, n=4, q=2, mask=padding(6, 3, n=6)),
        "padding in chunks": attention_inputs(
            rng, 2, 3, n=0, q=5, mask=padding(5, 2, n=5), chunks=[4, 1]
        ),
        "a mask of its own": attention_inputs(rng, 2, 3, n=3, q=3, mask=some_hidden(rng, 3, 6)),
        "double": attention_inputs(rng, 2, 2, n=3, q=2, dtype=torch.float64),
        "scores far apart": far(attention_inputs(rng, 2, n=1, q=2)),
        "a row of the mask hides all": attention_inputs(rng, 2, 2, n=2, q=2, mask=one_row(2, 4)),
    }


def small(rng):
    def example(batch, n, q, d, v, **options):
        return attention_inputs(rng, *batch, n=n, q=q, d=d, v=v, make=integers, **options)

    for n, q, d, v in ((0, 1, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1), (0, 2, 1, 1), (1, 2, 1, 1)):
        for _ in range(3):
            yield example((1, 1), n, q, d, v)
    yield example((1, 1), 2, 1, 4, 2)
    yield example((1, 2), 1, 2, 2, 1)
    yield example((1, 1), 0, 2, 1, 1, chunks=[1, 1])
    yield example((1, 1), 1, 1, 1, 1, mask=torch.tensor([[False, True]]))
    yield example((1, 1), 0, 2, 1, 1, mask=torch.tensor([[False, True]]))
    yield example((1, 1), 1, 2, 1, 1, mask=torch.tensor([[False, True, True]]))
    yield example((2, 1), 1, 1, 1, 1, mask=padding(2, 1, n=2))
    yield example((2, 2), 2, 2, 2, 2)


def maps(rng):
    sizes = {"n": 0, "q": 4, "d": 3, "v": 2}
    moved = ("key", "value")
    return [
        ("one text of four words", attention_inputs(rng, 1, **sizes), moved),
        (
            "one text of four words, word by word",
            attention_inputs(rng, 1, **sizes, chunks=[1] * 4),
            moved,
        ),
    ]


task = Task(
    reference.cached_attention,
    number=2,
    returns=("output", "keys in the cache", "values in the cache"),
    difficulty=3,
    minutes=25,
    section="cache-chunks",
    probes=probes,
    adapt=with_a_cache,
    differentiated=("several new", "padding on the left"),
    small=small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
    keeps=True,
)


@task.check(1)
def it_returns_an_output_and_the_longer_cache(answer, rng):
    for n, q in ((5, 1), (0, 3), (4, 2)):
        inputs = attention_inputs(rng, 2, 3, n=n, q=q)
        shapes = {"output": (2, 3, q, 5), "keys": (2, 3, n + q, 4), "values": (2, 3, n + q, 5)}
        for (name, shape), tensor in zip(shapes.items(), answer(inputs), strict=True):
            if tensor.shape != shape:
                raise Failure(
                    f"{n} positions are kept, {q} come: {name} has shape {shape_of(tensor)}; "
                    f"expected {shape_of(torch.empty(shape))}.",
                    inputs,
                )
        keeps(answer, inputs)
    keeps(answer, attention_inputs(rng, 2, 2, n=3, q=2, dtype=torch.float64))


def keeps(answer, inputs):
    """Assert that the cache is right, whatever comes out."""
    for place, name in enumerate(answer.task.returns[1:], 1):
        compare(name, answer(inputs)[place], answer.expected(inputs)[place], inputs)


def sees(answer, inputs, tolerance=None):
    """Assert that the output is right, whatever is kept."""
    with of_the_whole():
        compare("output", answer(inputs)[0], answer.expected(inputs)[0], inputs, tolerance)


@task.check(1)
def one_new_position_sees_all_and_itself(answer, rng):
    sees(answer, attention_inputs(rng, 2, 3, n=5, q=1))
    sees(answer, attention_inputs(rng, 3, n=1, q=1))
    sees(answer, attention_inputs(rng, 2, 2, n=6, q=1, d=1, v=1))


@task.check(1)
def a_first_piece_is_causal(answer, rng):
    sees(answer, attention_inputs(rng, 2, 3, n=0, q=4))
    sees(answer, attention_inputs(rng, 2, n=0, q=1))


@task.check(2, "several new positions see all before them, whatever the scores")
def several_new_positions_see_all_before_them(answer, rng):
    for n, q in ((4, 3), (1, 5), (6, 2), (3, 3)):
        sees(answer, attention_inputs(rng, 2, 3, n=n, q=q))
    sees(answer, attention_inputs(rng, 3, 3, n=3, q=3, d=3, v=3))
    sees(answer, attention_inputs(rng, 2, 2, n=3, q=2, dtype=torch.float64))
    sees(answer, far(attention_inputs(rng, 2, 3, n=1, q=3)), tolerance=1e-3)


@task.check(2)
def in_any_chunks_it_gives_what_it_gives_in_one_piece(answer, rng):
    for chunks in ([1] * 6, [3, 1, 2], [1, 4, 1], [5, 1]):
        inputs = attention_inputs(rng, 2, 3, n=0, q=6)
        whole, pieces = answer.expected(inputs), answer(inputs | {"chunks": chunks})
        said = ", ".join(map(str, chunks))
        for name, one, two in zip(answer.task.returns, pieces, whole, strict=True):
            compare(f"{name}, in chunks of {said}", one, two, inputs | {"chunks": chunks})


@task.check(2)
def a_mask_hides_more_and_shows_nothing(answer, rng):
    sees(answer, attention_inputs(rng, 2, 3, n=3, q=3, mask=some_hidden(rng, 3, 6)))
    sees(answer, attention_inputs(rng, 2, 3, n=3, q=3, mask=some_hidden(rng, 2, 1, 3, 6)))
    everything = torch.ones(1, 6, dtype=torch.bool)
    sees(answer, attention_inputs(rng, 2, 3, n=3, q=3, mask=everything))


def right_without_padding(answer):
    rng = torch.Generator().manual_seed(0)
    for n, q in ((0, 5), (4, 2)):
        sees(answer, attention_inputs(rng, 2, 3, n=n, q=q))
    for mask in (None, padding(5, 5, n=5)):
        for chunks in (None, [4, 1], [1] * 5):
            sees(answer, attention_inputs(rng, 2, 3, n=0, q=5, mask=mask, chunks=chunks))


def padded():
    rng = torch.Generator().manual_seed(0)
    return attention_inputs(rng, 2, 3, n=0, q=5, mask=padding(5, 2, n=5))


def sees_no_padding(answer):
    try:
        sees(answer, padded())
    except Failure:
        return False
    return True


@task.check(1, "padding on the left is never seen, and alone gives zeros")
def padding_on_the_left_is_never_seen(answer, rng):
    with following(lambda: right_without_padding(answer)):
        sees(answer, padded())
        inputs = attention_inputs(rng, 2, 3, n=0, q=5, mask=padding(5, 2, n=5))
        sees(answer, inputs)
        for chunks in ([4, 1], [1] * 5):
            sees(answer, inputs | {"chunks": chunks})
        sees(answer, attention_inputs(rng, 2, 3, n=4, q=2, mask=padding(6, 3, n=6)))
        sees(answer, attention_inputs(rng, 2, 3, n=4, q=2, mask=one_row(2, 6)))


@task.check(1)
def gradients_reach_the_new_and_the_kept(answer, rng):
    if sees_no_padding(answer):  # else that has cost its point
        answer.gradients_match(padded())
    answer.gradients_match(attention_inputs(rng, 2, 3, n=4, q=2))
    answer.gradients_match(attention_inputs(rng, 2, 3, n=3, q=3, mask=some_hidden(rng, 3, 6)))


def right_as_a_first_piece(answer):
    """Of other sizes than any other text, so that nothing that was kept fits."""
    rng, mask = torch.Generator().manual_seed(0), torch.ones(1, 3, dtype=torch.bool)
    answer.matches(attention_inputs(rng, 11, 1, n=0, q=3, mask=mask))


@task.check(1)
def a_cache_belongs_to_its_text(answer, rng):
    inputs = attention_inputs(rng, 2, 3, n=0, q=3)
    answer(attention_inputs(rng, 2, 3, n=0, q=4))
    with following(lambda: right_as_a_first_piece(answer)):
        answer.matches(inputs)
    moves_nothing(answer, inputs)
    moves_nothing(answer, attention_inputs(rng, 2, 3, n=4, q=2))
    found = answer.returned(attention_inputs(rng, 2, 3, n=4, q=1), adapt=twice_with_one_cache)
    compare("the output of the same word after the same cache", found[1], found[0])


def twice_with_one_cache(attention):
    """Two words may follow the same text: the cache that came is handed in a second time."""

    def function(*, query, key, value, keys, values, mask=None, chunks=None):
        cache = keys, values
        first = attention(query, key, value, cache)
        if first is None:
            return None
        attention(query.exp(), key.exp(), value.exp(), cache)
        return [taken_apart(first)[0], taken_apart(attention(query, key, value, cache))[0]]

    return function


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Cached:
    axes = as_is

    def grow(kept, new):
        return torch.cat([kept, new], -2)

    def extend(self, cache, query, key, value):
        if cache is None:
            return key, value
        return tuple(self.grow(*pair) for pair in zip(cache, (key, value), strict=True))

    def triangle(q, n):
        return torch.ones(q, n, dtype=torch.bool).tril(n - q)

    def given(mask, q):
        return mask

    def join(causal, mask):
        return causal & mask

    def visible(mask, cache):
        return mask

    def sees(keys, values, q):
        return keys, values

    def scale(scores, query, value):
        return scores / math.sqrt(query.shape[-1])

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def average(weights, keys, values):
        return weights @ values

    def kept(cache, extended, query):
        return extended

    def results(output, cache):
        return output, cache

    def __call__(self, query, key, value, cache=None, mask=None):
        query = self.axes(query)
        extended = self.extend(cache, query, key, value)
        keys, values = self.sees(*extended, query.shape[-2])
        causal = self.triangle(query.shape[-2], keys.shape[-2])
        mask = None if mask is None else self.given(mask, query.shape[-2])
        mask = self.visible(causal if mask is None else self.join(causal, mask), cache)
        scores = self.scale(query @ keys.mT, query, values)
        weights = self.clear(self.share(self.hide(scores, mask)), mask)
        output = self.average(weights, keys, values)
        return self.results(output, self.kept(cache, extended, query))


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


task.spelling(clear=only_dead_rows)


def shares_if_any(scores):
    powers = scores.exp()
    total = powers.sum(-1, keepdim=True)
    return torch.where(total > 0, powers / total.clamp(min=1e-30), 0.0)


def by_the_largest(least):
    def share(scores):
        powers = (scores - scores.max()).exp()
        return powers / powers.sum(-1, keepdim=True).clamp(min=least)

    return share


task.fault(
    "D-NAIVE-SOFTMAX",
    share=(lambda scores: scores.exp() / scores.exp().sum(-1, True), shares_if_any),
)

# --- faults: who may see whom --------------------------------------------------------------------

CHUNKS, STALE, LEFT = "cache-chunks", "cache-stale", "cache-left"


def tril(offset):
    return lambda q, n: torch.ones(q, n, dtype=torch.bool).tril(offset(q, n))


def first_row_kept(q, n):
    """Without the position itself, except where nothing else is there."""
    mask = torch.ones(q, n, dtype=torch.bool).tril(n - q - 1)
    mask[0, 0] = True
    return mask


task.fault("K-MASK-TOP-LEFT", triangle=tril(lambda q, n: 0))
task.fault("K-MASK-SQUARE", triangle=lambda q, n: torch.ones(q, q, dtype=torch.bool).tril())
task.fault(
    "K-TRIANGLE-TURNED",
    triangle=(
        lambda q, n: ~torch.ones(q, n, dtype=torch.bool).tril(n - q),
        lambda q, n: torch.ones(q, n, dtype=torch.bool).triu(n - q),
    ),
)
task.fault("K-NO-TRIANGLE", triangle=lambda q, n: torch.ones(q, n, dtype=torch.bool))
task.fault(
    "K-FIRST-PIECE-FREE",
    visible=(lambda mask, cache: torch.ones_like(mask) if cache is None else mask, ...),
    triangle=(..., tril(lambda q, n: n - q if n > q else n)),
)
task.fault(
    "K-LATER-PIECE-FREE",
    visible=(lambda mask, cache: mask if cache is None else torch.ones_like(mask), ...),
    triangle=(..., lambda q, n: torch.ones(q, n, dtype=torch.bool).tril(0 if n == q else n)),
)


@task.fault("K-ATTENDS-FIRST")
class AttendsFirst(Cached):
    def __call__(self, query, key, value, cache=None, mask=None):
        if cache is None:
            return super().__call__(query, key, value, None, mask)
        n = cache[0].shape[-2]
        causal = torch.ones(query.shape[-2], n, dtype=torch.bool)
        mask = causal if mask is None else causal & mask[..., :n]
        scores = self.hide(self.scale(query @ cache[0].mT, query, value), mask)
        output = self.clear(self.share(scores), mask) @ cache[1]
        return self.results(output, self.extend(cache, query, key, value))


task.fault(
    "K-NOT-ITSELF",
    triangle=(tril(lambda q, n: n - q - 1), lambda q, n: first_row_kept(q, n)),
)
task.fault("K-ONE-AHEAD", triangle=tril(lambda q, n: n - q + 1))
task.fault(
    "K-ONLY-NEW-SEEN",
    sees=lambda keys, values, q: (keys[..., -q:, :], values[..., -q:, :]),
    given=(..., lambda mask, q: mask[..., -q:]),
)
task.fault("K-NEW-FIRST", section="cache-extend", grow=lambda kept, new: torch.cat([new, kept], -2))
of_the_growing_axis(task, section="cache-extend")
of_fixed_axes(task, 4, 3, errors=[ValueError])  # another is what K-CAT-AXIS-2 raises
task.fault(
    "K-CACHE-Q",
    section="cache-extend",
    kept=(
        lambda cache, extended, query: (
            torch.cat([extended[0][..., : -query.shape[-2], :], query], -2),
            extended[1],
        ),
        ...,
    ),
    extend=(
        ...,
        lambda self, cache, query, key, value: Cached.extend(
            self, cache, query, key if cache is None else query, value
        ),
    ),
)

# --- faults: what is kept ------------------------------------------------------------------------

task.fault(
    "K-NOT-EXTENDED",
    section="cache-extend",
    kept=lambda cache, extended, query: extended if cache is None else cache,
)
task.fault(
    "K-ONLY-NEW-KEPT",
    section="cache-extend",
    kept=lambda cache, extended, query: tuple(x[..., -query.shape[-2] :, :] for x in extended),
)
task.fault(
    "K-PAIR-TURNED", section="cache-extend", results=lambda output, cache: (output, cache[::-1])
)
task.fault("K-CACHE-FIRST", results=lambda output, cache: (cache, output))
task.fault("K-LAST-OUTPUT", results=lambda output, cache: (output[..., -1:, :], cache))
task.fault("K-NO-CACHE-BACK", section=STALE, results=lambda output, cache: output)


def written_into(self, cache, query, key, value):
    if cache is None:
        return key, value
    for kept, new in zip(cache, (key, value), strict=True):
        kept.data = torch.cat([kept, new], -2)
    return cache


task.fault("C-KEPT-IN-PLACE", section="cache-extend", extend=written_into)

# --- faults: the mask that is given --------------------------------------------------------------

task.fault(
    "K-MASK-IGNORED", words="M-IGNORED", section=LEFT, given=lambda mask, q: torch.ones_like(mask)
)
task.fault("M-IF-MASK", section=LEFT, given=lambda mask, q: mask if mask else torch.ones_like(mask))
task.fault(
    "K-MASK-INSTEAD",
    section=LEFT,
    join=lambda causal, mask: mask.expand(*mask.shape[:-2], *causal.shape),
)
task.fault(
    "K-MASK-EDITED",
    section=LEFT,
    join=(lambda causal, mask: mask.logical_and_(causal), ...),
    given=(..., lambda mask, q: mask.copy_(mask & Cached.triangle(q, mask.shape[-1]))),
)
task.fault("K-MASK-OR", section=LEFT, join=lambda causal, mask: causal | mask)
task.fault("K-MASK-POLARITY", words="M-POLARITY", section=LEFT, given=lambda mask, q: ~mask)
task.fault(
    "K-MASK-LAST-COLUMNS",
    section=LEFT,
    given=lambda mask, q: torch.cat([torch.ones_like(mask[..., :-q]), mask[..., -q:]], -1),
)


@task.fault("K-MASK-FIRST-PIECE-ONLY", section=LEFT)
class FirstPieceOnly(Cached):
    def __call__(self, query, key, value, cache=None, mask=None):
        return super().__call__(query, key, value, cache, mask if cache is None else None)


task.fault("M-DEAD-ROW", section=LEFT, hide=minus_infinity, clear=as_is)
of_dead_neighbors(task, section=LEFT)
of_added_masks(task, section=LEFT)
of_filled_masks(task, section=LEFT)
task.fault("M-DEAD-ROW-UNIFORM", section=LEFT, clear=as_is)
task.fault(
    "M-AFTER-SOFTMAX",
    section=LEFT,
    hide=(
        as_is,
        lambda scores, mask: Cached.hide(scores, Cached.triangle(*scores.shape[-2:])),
    ),
    clear=lambda weights, mask: weights * mask,
)
task.fault(
    "M-FILL-ZERO", section=LEFT, hide=lambda s, mask: s.masked_fill(~mask, 0.0), clear=(as_is, ...)
)

# --- faults: attention itself --------------------------------------------------------------------

task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query, value: scores / query.shape[-1])
task.fault("K-SCALE-BY-N", scale=lambda scores, query, value: scores / math.sqrt(scores.shape[-1]))
of_scales(task)
task.fault("D-KEY-AS-VALUE", average=lambda weights, keys, values: weights @ keys)
task.fault("D-NO-SOFTMAX", share=as_is)
task.fault("D-GLOBAL-MAX", share=(by_the_largest(0), by_the_largest(1e-30)))
task.fault("D-SOFTMAX-DIM", share=lambda scores: scores.softmax(-2))
task.fault("D-SOFTMAX-AXIS-1", share=lambda scores: scores.softmax(1))
task.fault("D-SOFTMAX-AXIS-0", share=lambda scores: scores.softmax(0))


@task.fault("C-FLOAT32")
class InFloat32(Cached):
    def __call__(self, query, key, value, cache=None, mask=None):
        cache = None if cache is None else tuple(x.float() for x in cache)
        return super().__call__(query.float(), key.float(), value.float(), cache, mask)


task.fault(
    "K-DETACHED",
    extend=(
        lambda self, cache, query, key, value: Cached.extend(
            self, cache and tuple(x.detach() for x in cache), query, key, value
        ),
        ...,
    ),
    kept=(..., lambda cache, extended, query: tuple(x.detach() for x in extended)),
)


def follows(kept, new):
    """Whether the one can stand behind the other."""
    same = kept.shape[:-2] == new.shape[:-2] and kept.shape[-1] == new.shape[-1]
    return same and kept.dtype == new.dtype


@task.fault("K-STALE", section=STALE)
def _(query, key, value, cache=None, mask=None, state={}):  # noqa: B006
    last = state.get("cache")
    if mask is None and last is not None and all(map(follows, last, (key, value))):
        cache = last
    output, state["cache"] = Cached()(query, key, value, cache, mask)
    return output, state["cache"]

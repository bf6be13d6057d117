import math

import torch

from attncourse import cache as reference
from attncourse.checks.answer import Failure, compare, following, moves_nothing, shape_of
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab.meters import count
from attncourse.tasks import as_is
from attncourse.tasks.attention import minus_infinity, of_dead_neighbors, transposed_if_square
from attncourse.tasks.cache._shared import of_added_masks, of_filled_masks, of_scales


def shared_inputs(rng, b=2, h=4, c=2, q=3, k=5, d=4, v=6, mask=None, make=normal, **options):
    return {
        "query": make(rng, b, h, q, d, **options),
        "key": make(rng, b, c, k, d, **options),
        "value": make(rng, b, c, k, v, **options),
        "mask": mask,
    }


def probes(rng):
    return {
        "two share one": shared_inputs(rng),
        "three share one": shared_inputs(rng, h=6, c=2, q=2, k=7, d=3),
        "as many groups as members": shared_inputs(rng, h=9, c=3, q=2, k=4),
        "one for all": shared_inputs(rng, h=4, c=1),
        "one each": shared_inputs(rng, h=3, c=3),
        "all equal": shared_inputs(rng, b=4, h=4, c=4, q=4, k=4, d=4, v=4),
        "one query": shared_inputs(rng, b=1, h=6, c=3, q=1, k=8, d=2),
        "as many queries as groups": shared_inputs(rng, h=4, c=2, q=2, k=4, d=2, v=2),
        "mask (q k)": shared_inputs(rng, mask=mixed_mask(rng, 3, 5)),
        "causal": shared_inputs(rng, q=4, k=4, mask=causal(4)),
        "padding (b 1 1 k)": shared_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 1, 5)),
        "a mask a head": shared_inputs(rng, mask=mixed_mask(rng, 2, 4, 3, 5)),
        "dead row": shared_inputs(rng, mask=dead_mask(rng, 2, 4, 3, 5)),
        "dead row, for all heads": shared_inputs(rng, mask=dead_mask(rng, 3, 5)),
        "double": shared_inputs(rng, h=6, c=3, dtype=torch.float64),
    }


def small(rng):
    def example(h, c, q, k, d, v, mask=None):
        return shared_inputs(rng, 1, h, c, q, k, d, v, mask, make=integers)

    for sizes in ((1, 1, 1, 2, 1, 1), (2, 1, 1, 2, 1, 1), (2, 2, 1, 2, 1, 1), (4, 2, 1, 2, 1, 1)):
        for _ in range(3):
            yield example(*sizes)
    yield example(2, 1, 1, 2, 4, 2)
    yield example(2, 1, 2, 2, 1, 1)
    yield example(4, 2, 2, 2, 1, 1)
    yield example(2, 1, 1, 2, 1, 1, torch.tensor([[True, False]]))
    yield example(2, 1, 2, 2, 1, 1, causal(2))
    yield example(2, 1, 1, 2, 1, 1, torch.tensor([[[[True, False]], [[False, True]]]]))
    yield example(2, 1, 2, 2, 1, 1, torch.tensor([[True, False], [False, False]]))
    yield shared_inputs(rng, 2, 4, 2, 2, 3, 2, 1)


def metered(attention):
    """The answer under the meter: over a view of a longer cache, as a writer has it."""

    def function(query, key, value, mask=None):
        b, c, k, _ = key.shape
        key, value = (
            torch.cat([x, x.new_zeros(b, c, 40, x.shape[-1])], 2)[:, :, :k] for x in (key, value)
        )
        returned = []
        counts = count(lambda: returned.append(attention(query, key, value)))
        return None if returned[0] is None else [counts.biggest_bytes, counts.moved_bytes]

    return function


METERED = {"b": 2, "h": 8, "q": 1, "k": 128, "d": 64, "v": 64}


def counts_of(answer, c, rng=None):
    """(biggest tensor, bytes moved), each over what it may be compared with."""
    inputs = shared_inputs(rng or torch.Generator().manual_seed(c), c=c, **METERED)
    biggest, moved = answer.returned(inputs, adapt=metered)
    return biggest / inputs["key"].nbytes, moved / (2 * inputs["key"].nbytes)


def traits(answer):
    biggest, moved = counts_of(answer, 2)
    _, all_moved = counts_of(answer, 8)
    return {
        "makes as much as the keys": biggest >= 1,
        "makes keys for all heads": biggest >= 4,
        "reads the cache more than twice": moved > 2.5,
        "moves six times the cache": moved > 6,
        "moves twice the cache in MHA": all_moved > 1.8,
    }


task = Task(
    reference.grouped_query_attention,
    number=3,
    returns=("output", "weights"),
    difficulty=3,
    minutes=25,
    section="shared-heads",
    probes=probes,
    differentiated=("two share one", "dead row"),
    small=small,
    forbidden=FUSED_ATTENTION,
    traits=traits,
)


@task.check(1)
def every_head_of_queries_gets_an_output_and_weights(answer, rng):
    for b, h, c, q, k in ((2, 4, 2, 3, 5), (1, 6, 3, 2, 4), (3, 5, 1, 4, 2)):
        inputs = shared_inputs(rng, b, h, c, q, k)
        for name, tensor, shape in zip(
            ("output", "weights"), answer(inputs), ((b, h, q, 6), (b, h, q, k)), strict=True
        ):
            if tensor.shape != shape:
                raise Failure(
                    f"{name} has shape {shape_of(tensor)}; expected {shape_of(torch.empty(shape))}"
                    f" for {h} heads of queries and {c} of keys.",
                    inputs,
                )


@task.check(1, "with a head of keys each, it is multi-head attention")
def with_a_head_of_keys_each_it_is_multi_head_attention(answer, rng):
    answer.matches(shared_inputs(rng, h=3, c=3))
    answer.matches(shared_inputs(rng, b=3, h=3, c=3, q=3, k=3, d=3, v=3))


@task.check(1)
def with_one_head_of_keys_all_heads_share_it(answer, rng):
    answer.matches(shared_inputs(rng, h=4, c=1))
    answer.matches(shared_inputs(rng, b=1, h=7, c=1, q=2, k=3))


@task.check(3)
def heads_in_a_row_share_a_head_of_keys(answer, rng):
    for h, c in ((4, 2), (6, 2), (6, 3), (9, 3), (12, 4)):
        answer.matches(shared_inputs(rng, h=h, c=c, q=2, k=4))
    answer.matches(shared_inputs(rng, h=4, c=2, q=2, k=2, d=2, v=2))
    answer.matches(shared_inputs(rng, h=4, c=2, dtype=torch.float64))


def right_without_a_mask(answer):
    rng = torch.Generator().manual_seed(0)
    for c in (2, 3):
        answer.matches(shared_inputs(rng, h=6, c=c))


def right_with_a_mask(answer):
    """The same, while every query sees something."""
    rng = torch.Generator().manual_seed(0)
    for shape in ((2, 4, 3, 5), (3, 5)):
        answer.matches(shared_inputs(rng, mask=mixed_mask(rng, *shape)), gradient=True)


@task.check(2)
def a_mask_holds_in_every_head(answer, rng):
    with following(lambda: right_without_a_mask(answer)):
        answer.matches(shared_inputs(rng, mask=mixed_mask(rng, 3, 5)))
        answer.matches(shared_inputs(rng, h=6, c=3, q=4, k=4, mask=causal(4)))
        answer.matches(shared_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 1, 5)))
        answer.matches(shared_inputs(rng, b=4, mask=mixed_mask(rng, 4, 1, 3, 5)))


@task.check(1)
def a_mask_may_differ_from_head_to_head(answer, rng):
    with following(lambda: right_without_a_mask(answer)):
        answer.matches(shared_inputs(rng, mask=mixed_mask(rng, 2, 4, 3, 5)))
        answer.matches(shared_inputs(rng, h=6, c=2, mask=mixed_mask(rng, 6, 1, 5)))


@task.check(1, "a query with nothing to attend to gets zeros, and no other query")
def a_query_with_nothing_to_attend_to_gets_zeros(answer, rng):
    with following(lambda: right_with_a_mask(answer)):
        answer.matches(shared_inputs(rng, mask=dead_mask(rng, 2, 4, 3, 5)), gradient=True)
        answer.matches(shared_inputs(rng, mask=dead_mask(rng, 3, 5)))


@task.check(3, "neither keys nor values are copied")
def no_key_is_copied(answer, rng):
    for c in (2, 1, 8):
        biggest, _ = counts_of(answer, c, rng)
        if biggest >= 1:
            raise Failure(
                f"{METERED['h']} heads of queries, {c} of keys, k = {METERED['k']}: your answer "
                f"makes a tensor {biggest:.1f} times as large as all keys. `repeat_interleave`, "
                "`contiguous` and a product that broadcasts copy them, in every step."
            )


@task.check(1, "gradients reach query, key and value")
def gradients_reach_query_key_and_value(answer, rng):
    answer.gradients_match(shared_inputs(rng))
    answer.gradients_match(shared_inputs(rng, h=6, c=2, mask=mixed_mask(rng, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, shared_inputs(rng))
    with following(lambda: right_without_a_mask(answer)):
        moves_nothing(answer, shared_inputs(rng, mask=mixed_mask(rng, 2, 4, 3, 5)))
    inputs = shared_inputs(rng)
    turned = inputs | {x: inputs[x].mT.contiguous().mT for x in ("query", "key", "value")}
    compare("output from tensors in another memory order", answer(turned)[0], answer(inputs)[0])


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Grouped:
    def written_out(x, query):
        return x  # keys and values as they are read

    def keys(self, key, query):
        return self.written_out(key, query)

    def values(self, value, query):
        return self.written_out(value, query)

    def split(x, c):
        return x.unflatten(1, (c, -1)).flatten(2, 3)  # b c (g q) …

    def visible(mask, shape, c):
        return mask.expand(shape)

    def split_mask(mask, c):
        return mask.unflatten(1, (c, -1)).flatten(2, 3)

    def scale(scores, query, value, c):
        return scores / math.sqrt(query.shape[-1])

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores, q):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def shown(weights, cleared):
        return cleared  # of these the table that comes back

    def average(weights, key, value):
        return weights @ value

    def repair(output):
        return output

    def join(x, q):
        return x.unflatten(2, (-1, q)).flatten(1, 2)  # b (c g) q …

    def join_weights(x, q):
        return x.unflatten(2, (-1, q)).flatten(1, 2)

    def tables(weights, cached):
        return weights

    def results(output, weights):
        return output, weights

    def __call__(self, query, key, value, mask=None):
        cached = key.shape[1]
        key, value = self.keys(key, query), self.values(value, query)
        c, q = key.shape[1], query.shape[2]
        scores = self.scale(self.split(query, c) @ key.mT, query, value, c)
        if mask is not None:
            mask = self.visible(mask, (*query.shape[:3], key.shape[2]), c)
            mask = None if mask is None else self.split_mask(mask, c)
        weights = self.share(scores if mask is None else self.hide(scores, mask), q)
        cleared = weights if mask is None else self.clear(weights, mask)
        output = self.join(self.repair(self.average(cleared, key, value)), q)
        weights = self.join_weights(self.shown(weights, cleared), q)
        return self.results(output, self.tables(weights, cached))


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


task.spelling(clear=only_dead_rows)

# --- faults: which head asks which ---------------------------------------------------------------

ORDER, SHARED, COPIES = "repeat-order", "shared-heads", "no-key-copied"


def for_all_heads(x, query):
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def tiled(x, query):
    return x.repeat(1, query.shape[1] // x.shape[1], 1, 1)


def expanded(x, query):
    g = query.shape[1] // x.shape[1]
    return x[:, :, None].expand(-1, -1, g, -1, -1).flatten(1, 2)


def every_cth(x, c):
    return x.unflatten(1, (-1, c)).transpose(1, 2).flatten(2, 3)


def rows_turned(x, c):
    return x.unflatten(1, (c, -1)).transpose(2, 3).flatten(2, 3)


def back_rows_turned(x, q):
    return x.unflatten(2, (q, -1)).transpose(2, 3).flatten(1, 2)


def back_every_cth(x, q):
    return x.unflatten(2, (-1, q)).transpose(1, 2).flatten(1, 2)


task.fault("G-EXPAND", section=COPIES, written_out=(for_all_heads, expanded))
task.fault(
    "G-REPEAT",
    section=ORDER,
    written_out=(tiled, ...),
    keys=(..., tiled, for_all_heads),
    values=(..., for_all_heads, tiled),
)
task.fault(
    "G-ORDER",
    section=ORDER,
    split=every_cth,
    split_mask=every_cth,
    join=back_every_cth,
    join_weights=back_every_cth,
)
task.fault(
    "G-BACK",
    section=ORDER,
    join=(back_every_cth, back_every_cth, ...),
    join_weights=(back_every_cth, ..., back_every_cth),
)
task.fault(
    "G-ROWS-TURNED",
    section=COPIES,
    split=(rows_turned, rows_turned, ...),
    split_mask=(rows_turned, ...),
    join=(..., ..., back_rows_turned, back_rows_turned, ...),
    join_weights=(..., ..., back_rows_turned, ..., back_rows_turned),
)
task.fault(
    "G-REPEAT-DIM",
    section=ORDER,
    written_out=lambda x, query: x.repeat_interleave(query.shape[1] // x.shape[1], dim=2),
)
task.fault("G-MQA-DEF", section=SHARED, written_out=lambda x, query: x.mean(1, keepdim=True))
task.fault("G-FIRST-HEAD", section=SHARED, written_out=lambda x, query: x[:, :1])
task.fault(
    "G-QUERIES-SUMMED",
    section=SHARED,
    split=lambda x, c: (
        x.unflatten(1, (c, -1))
        .sum(2, keepdim=True)
        .expand(x.shape[0], c, x.shape[1] // c, *x.shape[2:])
        .flatten(2, 3)
    ),
)
task.fault(
    "G-ONE-QUERY",
    section=SHARED,
    split=lambda x, c: (
        x.unflatten(1, (c, -1))
        .mean(2, keepdim=True)
        .expand(x.shape[0], c, x.shape[1] // c, *x.shape[2:])
        .flatten(2, 3)
    ),
)


def groups_of_c(query, key, value, mask=None):
    """Head by head, so that no key is copied."""
    (b, h, q, _), (c, k) = query.shape, key.shape[1:3]
    mask = torch.ones(b, h, q, k, dtype=torch.bool) if mask is None else mask.expand(b, h, q, k)
    heads = []
    for i in range(h):
        j = min(i // c, c - 1)
        scores = Grouped.scale(query[:, i] @ key[:, j].mT, query, value, c)
        weights = Grouped.clear(Grouped.hide(scores, mask[:, i]).softmax(-1), mask[:, i])
        heads.append((weights @ value[:, j], weights))
    return tuple(torch.stack(each, 1) for each in zip(*heads, strict=True))


task.fault(
    "G-MEMBERS",
    section=SHARED,
    written_out=lambda x, query: x[
        :, (torch.arange(query.shape[1]) // x.shape[1]).clamp(max=x.shape[1] - 1)
    ],
    forms=[groups_of_c],
)

# --- faults: attention over a group --------------------------------------------------------------


def among_heads(scores, q):
    """All heads of queries compete for a key."""
    c = scores.shape[1]
    every = scores.unflatten(2, (-1, q)).flatten(1, 2)  # b h q k
    return every.softmax(1).unflatten(1, (c, -1)).flatten(2, 3)


task.fault(
    "G-SOFTMAX-GROUP",
    share=lambda scores, q: (
        scores.unflatten(2, (-1, q))
        .transpose(2, 3)
        .flatten(-2)
        .softmax(-1)
        .unflatten(-1, (-1, scores.shape[-1]))
        .transpose(2, 3)
        .flatten(2, 3)
    ),
)
task.fault(
    "D-SOFTMAX-DIM",
    share=(
        lambda scores, q: scores.softmax(-2),
        lambda scores, q: scores.unflatten(2, (-1, q)).softmax(-2).flatten(2, 3),
    ),
)
task.fault("D-NO-SOFTMAX", share=lambda scores, q: scores)
task.fault("C-SOFTMAX-HEADS", share=(among_heads, lambda scores, q: scores.softmax(1)))
task.fault("C-SOFTMAX-SENTENCES", share=lambda scores, q: scores.softmax(0))
task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query, value, c: scores / query.shape[-1])
of_scales(task)
task.fault(
    "G-SCALE-HEADS",
    scale=lambda scores, query, value, c: scores / math.sqrt(query.shape[-1] * query.shape[1]),
)
task.fault(
    "G-SCALE-GROUP",
    scale=lambda scores, query, value, c: scores / math.sqrt(query.shape[-1] * query.shape[1] // c),
)
task.fault("D-KEY-AS-VALUE", section=SHARED, average=lambda weights, key, value: weights @ key)

# --- faults: masks -------------------------------------------------------------------------------

MASKS = {"section": "group-mask"}

task.fault("M-IGNORED", **MASKS, visible=lambda mask, shape, c: None)
task.fault("M-POLARITY", **MASKS, visible=lambda mask, shape, c: ~mask.expand(shape))
task.fault(
    "M-IF-MASK", **MASKS, visible=lambda mask, shape, c: mask.expand(shape) if mask else None
)


def an_axis_after_the_batch(mask, shape, c):
    """As the scores (b c g q k) have one more than the mask."""
    b, h, q, k = shape
    mask = mask.unsqueeze(1) if mask.ndim == 4 else mask.expand(shape).unflatten(1, (c, -1))
    return mask.expand(b, c, h // c, q, k).flatten(1, 2)


def of_each_head(mask, shape, c):
    """As it is cut into groups, or a RuntimeError."""
    if mask.ndim != 4 or mask.shape[1] != shape[1]:
        raise RuntimeError("the mask has no axis for the heads")
    return mask.expand(shape)


task.fault("G-MASK-FOUR-AXES", **MASKS, visible=of_each_head)
task.fault(
    "M-TRANSPOSED",
    **MASKS,
    visible=lambda mask, shape, c: transposed_if_square(mask, None).expand(shape),
)
task.fault("G-MASK-AXIS", **MASKS, visible=an_axis_after_the_batch)
task.fault("G-MASK-ORDER", **MASKS, split_mask=rows_turned)
task.fault(
    "G-MASK-FIRST-HEAD",
    **MASKS,
    split_mask=lambda mask, c: (
        mask.unflatten(1, (c, -1))[:, :, :1]
        .expand(-1, -1, mask.shape[1] // c, -1, -1)
        .flatten(2, 3)
    ),
)
task.fault(
    "G-MASK-OF-FIRST",
    **MASKS,
    split_mask=lambda mask, c: mask[:, :c].repeat(1, 1, mask.shape[1] // c, 1),
)
task.fault(
    "G-MASK-ONE-HEAD",
    **MASKS,
    visible=lambda mask, shape, c: mask.expand(shape)[:, :1].expand(shape),
)
task.fault("G-MASK-TILED", **MASKS, split_mask=every_cth)
task.fault(
    "M-ALWAYS-CAUSAL",
    **MASKS,
    scale=lambda scores, query, value, c: (scores / math.sqrt(query.shape[-1])).masked_fill(
        ~torch.ones(query.shape[2], scores.shape[-1], dtype=torch.bool)
        .tril(scores.shape[-1] - query.shape[2])
        .repeat(query.shape[1] // c, 1),
        -1e30,
    ),
)
task.fault("M-DEAD-ROW", **MASKS, hide=minus_infinity, clear=as_is)
task.fault("G-NAN-WEIGHTS", **MASKS, hide=minus_infinity, clear=as_is, repair=torch.nan_to_num)
of_added_masks(task, **MASKS)
of_filled_masks(task, **MASKS)
of_dead_neighbors(task, **MASKS)
task.fault("M-DEAD-ROW-UNIFORM", **MASKS, clear=as_is)
task.fault("M-AFTER-SOFTMAX", **MASKS, hide=as_is, clear=lambda weights, mask: weights * mask)
task.fault(
    "M-FILL-ZERO",
    **MASKS,
    hide=lambda scores, mask: scores.masked_fill(~mask, 0.0),
    clear=(as_is, ...),
)

# --- faults: what is returned --------------------------------------------------------------------


def in_groups(x, q):
    return x.unflatten(2, (-1, q))


task.fault(
    "G-NOT-JOINED",
    join=(as_is, as_is, in_groups, in_groups),
    join_weights=(as_is, ..., in_groups, ...),
)
task.fault("G-WEIGHTS-NOT-JOINED", join_weights=(as_is, in_groups))
task.fault("G-WEIGHTS-NOT-CLEARED", **MASKS, shown=lambda weights, cleared: weights)
task.fault("G-HEADS-MERGED", join=lambda x, q: Grouped.join(x, q).transpose(1, 2).flatten(2))
task.fault("G-WEIGHTS-DETACHED", join_weights=lambda x, q: Grouped.join_weights(x, q).detach())
task.fault(
    "G-WEIGHTS-OF-GROUP",
    section=SHARED,
    tables=(lambda weights, cached: weights.unflatten(1, (cached, -1)).mean(2), ..., ...),
    share=(
        ...,
        lambda scores, q: of_the_group(scores.softmax(-1), q),
        lambda scores, q: of_the_group(scores.softmax(-1).nan_to_num(0.0), q),
    ),
    hide=(..., ..., minus_infinity),
    clear=(..., ..., as_is),
)


def of_the_group(weights, q):
    """The mean of the tables of a group, once for each of its heads."""
    tables = weights.unflatten(2, (-1, q))
    return tables.mean(2, keepdim=True).expand_as(tables).flatten(2, 3)


task.fault("D-SWAPPED-RESULTS", results=lambda output, weights: (weights, output))
task.fault("D-OUTPUT-ONLY", results=lambda output, weights: output)
task.fault(
    "D-DETACHED-WEIGHTS",
    clear=lambda weights, mask: weights.masked_fill(~mask, 0.0).detach(),
    share=lambda scores, q: scores.softmax(-1).detach(),
)


@task.fault("G-FLOAT32", words="C-FLOAT32")
class InFloat32(Grouped):
    def __call__(self, query, key, value, mask=None):
        return super().__call__(query.float(), key.float(), value.float(), mask)

import math

import torch

from attncourse.checks.answer import Failure, following, moves_nothing, shape_of
from attncourse.checks.device import stays_with
from attncourse.checks.extremes import with_far_scores
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks import as_is
from attncourse.tasks.lab6_write_flash import (
    DOUBLE,
    HALF,
    TILE,
    agrees,
    call,
    computes,
    cuts_both,
    keeps_no_row,
    memory_traits,
    stays_linear,
)
from attncourse.tasks.lab6_write_flash._faults import (
    INFINITY,
    OWN_TILE,
    finite,
    hide_from_the_cpu,
    hide_later,
    of_causal_masks,
    one_tile_at_least,
    whole_tiles,
)


def forward_probes(rng):
    return {
        "one tile": call(rng, 4, 4, 4),
        "tiles": call(rng, 6, 6, 3),
        "shorter last tile": call(rng, 7, 7, 3),
        "one query": call(rng, 1, 7, 3),
        "fewer queries": call(rng, 5, 8, 3),
        "more queries": call(rng, 8, 5, 3),
        "causal": call(rng, 6, 6, 2, True),
        "causal, fewer queries": call(rng, 3, 7, 2, True),
        "causal, more queries": call(rng, 7, 4, 2, True),
        "large": call(rng, 6, 6, 2, spread=20.0),
        "half": call(rng, 6, 6, 2, dtype=HALF, size=6.0),
        "double": call(rng, 7, 5, 3, dtype=DOUBLE),
        "wide tile": call(rng, 3, 3, 8),
        "tiles of one": call(rng, 4, 4, 1),
        "causal, scores far below zero": far_below(call(rng, 6, 6, 2, True)),
    }


def far_below(inputs, size=100):
    """The same call with scores far below zero, -40,000 at a width of 4."""
    query, key = inputs["query"], inputs["key"]
    return inputs | {"query": torch.full_like(query, -200), "key": torch.full_like(key, size)}


def forward_small(rng):
    for n, tile in ((1, 1), (2, 2), (2, 1), (3, 2)):
        yield call(rng, n, n, tile, b=1, h=1, d=1, v=1)
        yield call(rng, n, n, tile, b=1, h=1, d=2, v=1)
    yield call(rng, 1, 3, 2, b=1, h=1, d=2, v=1)
    yield call(rng, 2, 2, 1, True, b=1, h=1, d=2, v=1)
    yield call(rng, 1, 2, 1, True, b=1, h=1, d=2, v=1)
    yield call(rng, 3, 3, 2, True, b=1, h=1, d=2, v=1)
    yield call(rng, 2, 2, 1, b=1, h=1, d=2, v=1, spread=50.0)
    yield far_below(call(rng, 2, 2, 1, True, b=1, h=1, d=1, v=1), 1)


def long_call(rng, n):
    return call(rng, n, n, TILE, True, b=1, h=1, d=3, v=2)


def thin_call(rng, n, tile):
    return call(rng, n, n, tile, True, b=1, h=1, d=1, v=1)


def without_a_mask(call):
    """The same call: whether a mask is made as a whole has a check of its own."""
    return lambda *how: call(*how) | {"causal": False}


long_full_call, thin_full_call = map(without_a_mask, (long_call, thin_call))


task = Task(
    reference.tiled_attention,
    number=2,
    returns=("output", "logsumexp"),
    difficulty=5,
    minutes=25,
    section="tiles",
    probes=forward_probes,
    small=forward_small,
    traits=memory_traits(lambda rng: call(rng, 5, 7, 3, True), long_call, thin_call),
    forbidden=FUSED_ATTENTION,
)


@task.check(1, "output and logsumexp have the right shapes and dtypes")
def an_output_and_a_logsumexp_for_every_query(answer, rng):
    for dtype in (torch.float32, DOUBLE, HALF):
        inputs = call(rng, 5, 7, 3, dtype=dtype)
        output, logsumexp = answer(inputs)
        wide = torch.promote_types(dtype, torch.float32)
        for name, got, shape, kind in (
            ("output", output, (2, 3, 5, 5), dtype),
            ("logsumexp", logsumexp, (2, 3, 5), wide),
        ):
            if got.shape != shape or got.dtype != kind:
                raise Failure(
                    f"{name} is {shape_of(got)}, {got.dtype}; for {dtype} inputs expected "
                    f"({' '.join(map(str, shape))}), {kind}.",
                    inputs,
                )


@task.check(1)
def one_tile_is_ordinary_attention(answer, rng):
    for n, tile in ((4, 4), (3, 8), (1, 1)):
        agrees(answer, call(rng, n, n, tile), "output")
    agrees(answer, call(rng, 4, 4, 4, dtype=DOUBLE), "output")


@task.check(1)
def many_tiles_are_ordinary_attention_too(answer, rng):
    for n, tile in ((6, 3), (8, 2), (4, 1)):
        agrees(answer, call(rng, n, n, tile), "output")
    agrees(answer, call(rng, 8, 8, 4, dtype=DOUBLE, b=3, h=3, d=3, v=3), "output")


@task.check(1)
def it_is_right_where_the_last_tile_is_shorter(answer, rng):
    for n, tile in ((7, 3), (5, 2), (9, 4), (5, 4)):
        agrees(answer, call(rng, n, n, tile), "output")


@task.check(1)
def it_is_right_with_more_keys_than_queries_or_fewer(answer, rng):
    for q, k in ((1, 7), (5, 8), (8, 5), (6, 1)):
        agrees(answer, call(rng, q, k, 3), "output")


@task.check(1)
def the_logsumexp_is_that_of_all_scores_of_a_query(answer, rng):
    for q, k, tile in ((4, 4, 4), (6, 6, 2), (5, 8, 3)):
        agrees(answer, call(rng, q, k, tile), ("logsumexp",))
    inputs = call(rng, 6, 6, 2, True, dtype=DOUBLE)
    with following(lambda: agrees(answer, inputs, "output")):  # which keys are seen has checks
        agrees(answer, inputs, ("logsumexp",))


@task.check(1)
def causal_it_is_right_with_as_many_keys_as_queries(answer, rng):
    for n, tile in ((6, 2), (7, 3), (5, 8), (4, 1)):
        agrees(answer, call(rng, n, n, tile, True), "output")


@task.check(1)
def causal_it_is_right_with_more_keys_than_queries(answer, rng):
    for q, k, tile in ((1, 5, 2), (3, 7, 2), (4, 6, 4), (6, 8, 2)):
        agrees(answer, call(rng, q, k, tile, True), "output")


@task.check(1)
def causal_it_is_right_beside_queries_that_see_nothing(answer, rng):
    for q, k, tile in ((7, 4, 2), (5, 1, 2), (6, 5, 3)):
        agrees(answer, call(rng, q, k, tile, True))


def right_as_usual(answer, causal=(False, True)):
    """Assert that ordinary scores in float32 come out right: what is not has other checks."""
    rng = torch.Generator().manual_seed(0)
    for kind in causal:
        for q, k, tile in ((6, 6, 2), (7, 7, 3), (4, 4, 4), (4, 6, 2)):
            agrees(answer, call(rng, q, k, tile, kind))


@task.check(1)
def scores_of_ten_thousand_come_out_right(answer, rng):
    with following(lambda: right_as_usual(answer)):
        of_ten_thousand(answer, rng)


def of_ten_thousand(answer, rng):
    def right(inputs):
        agrees(answer, inputs, "output", tolerance=1e-2)
        # Of scores like these a hundredth is a hundred.
        agrees(answer, inputs, ("logsumexp",), tolerance=2e-6)

    for q, k, tile in ((6, 6, 2), (7, 7, 3), (4, 4, 4)):
        right(call(rng, q, k, tile, spread=50.0))
    right(far_below(call(rng, 4, 6, 2)))
    right(far_below(call(rng, 4, 7, 3)))
    inputs = call(rng, 4, 6, 2)
    query, key = with_far_scores(inputs["query"], inputs["key"])
    right(inputs | {"query": query, "key": key})
    for q, k in ((4, 6), (6, 6)):  # beside tiles that are hidden as a whole
        right(far_below(call(rng, q, k, 2, True)))


@task.check(1)
def half_precision_comes_out_right_computed_in_float32(answer, rng):
    def usual():
        right_as_usual(answer)
        rng = torch.Generator().manual_seed(0)
        for causal in (False, True):  # scores as far apart as below
            agrees(answer, call(rng, 6, 6, 2, causal, size=6.0))

    with following(usual):
        agrees(answer, call(rng, 7, 7, 3, dtype=HALF), tolerance=2e-3)
        agrees(answer, call(rng, 6, 6, 2, True, dtype=HALF, size=6.0), ("output",), 2e-3)
        agrees(answer, call(rng, 6, 6, 2, dtype=HALF, size=6.0), ("logsumexp",), 1e-4)


@task.check(6, "it computes attention and nothing grows like the square of the length")
def nothing_grows_like_the_square_of_the_length(answer, rng):
    computes(answer, call(rng, 6, 6, 3))
    stays_linear(answer, long_call)


@task.check(7, "it computes attention and holds one tile of scores at a time")
def queries_and_keys_are_both_cut(answer, rng):
    computes(answer, call(rng, 6, 6, 3))
    cuts_both(answer, long_full_call)
    keeps_no_row(answer, thin_full_call)


@task.check(1)
def new_tensors_are_made_where_its_inputs_are(answer, rng):
    stays_with(answer, call(rng, 5, 7, 3, True))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, call(rng, 5, 7, 3))
    moves_nothing(answer, call(rng, 5, 5, 2, True, dtype=DOUBLE))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Tiled:
    rows = columns = order = fill = one_row = all_rows = after = blank = as_is

    def wide(dtype):
        return torch.promote_types(dtype, torch.float32)

    def of_sums(dtype):
        return torch.promote_types(dtype, torch.float32)

    def cut(tile, q, k):
        return tile, tile

    def scale(queries):
        return queries / math.sqrt(queries.shape[-1])

    def hide(scores, row, column, q, k):
        return hide_later(scores, row + k - q, column)

    def nothing(total):
        return total - torch.inf

    def grow(maximum, scores):
        return torch.maximum(maximum, scores.amax(-1))

    def origin(maximum):
        return finite(maximum)

    def weigh(scores, origin):
        return (scores - origin[..., None]).exp()

    def shrink(maximum, origin):
        return (maximum - origin).exp()

    def shrink_total(self, maximum, origin):
        return self.shrink(maximum, origin)

    def shrink_weighted(self, maximum, origin):
        return self.shrink(maximum, origin)

    def output(weighted, total):
        return weighted / total.masked_fill(total == 0, 1)[..., None]

    def logsumexp(maximum, total):
        return maximum + total.log()

    def visited(result, axis, tile):
        return result

    def __call__(self, query, key, value, tile, causal=False):
        q, k, wide = query.shape[-2], key.shape[-2], self.wide(query.dtype)
        high, broad = self.cut(tile, q, k)
        key, value = self.fill(key, tile), self.fill(value, tile)
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        logsumexp = query.new_zeros(query.shape[:-1], dtype=self.of_sums(query.dtype))
        logsumexp = self.blank(logsumexp)

        def tiles(row):
            queries = self.scale(query[..., row : row + high, :].to(wide))
            for column in self.order(range(0, self.columns(key.shape[-2], tile), broad)):
                columns = slice(column, column + broad)
                scores = queries @ key[..., columns, :].to(wide).mT
                hidden = self.hide(scores, row, column, q, k) if causal else scores
                yield hidden, value[..., columns, :].to(wide)

        each = ((row, self.one_row(tiles(row))) for row in range(0, self.rows(q, tile), high))
        for row, of_row in self.all_rows(each):
            rows = slice(row, row + high)
            weighted = torch.zeros_like(output[..., rows, :], dtype=wide)
            total = torch.zeros_like(logsumexp[..., rows], dtype=wide)
            maximum = self.nothing(total)
            for scores, values in of_row:
                before, maximum = maximum, self.grow(maximum, scores)
                origin = self.origin(maximum)
                weights = self.weigh(scores, origin)
                total = self.shrink_total(before, origin) * total + weights.sum(-1)
                kept = self.shrink_weighted(before, origin)[..., None] * weighted
                weighted = self.after(kept + weights @ values, total)
            output[..., rows, :] = self.output(weighted, total)
            logsumexp[..., rows] = self.logsumexp(maximum, total)
        return self.visited(output, -2, tile), self.visited(logsumexp, -1, tile)


def ones(maximum, origin):
    return torch.ones_like(origin)


def undefined(weighted, total):
    return weighted / total[..., None]


def minus_infinity(x):
    return x - torch.inf


def without_the_rest(result, axis, tile):
    return result.narrow(axis, 0, whole_tiles(result.shape[axis], tile))


def zeros_behind(x, tile):
    return torch.cat([x, x.new_zeros(*x.shape[:-2], -x.shape[-2] % tile, x.shape[-1])], dim=-2)


def out_of_one_mask(scores, row, column, q, k):
    visible = torch.ones(q, k, dtype=torch.bool, device=scores.device).tril(k - q)[row:, column:]
    return scores.masked_fill(~visible[: scores.shape[-2], : scores.shape[-1]], -INFINITY)


def with_fill(number):
    return lambda *place: hide(*place).clamp(min=number)


def out_of_nowhere(total):
    return torch.full(total.shape, -torch.inf, dtype=total.dtype)


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "C-ON-THE-CPU",
    nothing=(out_of_nowhere, ..., out_of_nowhere),
    hide=(..., hide_from_the_cpu, hide_from_the_cpu),
)

hide, METER, NUMBERS = Tiled.hide, "meter", "four-numbers"

task.fault(
    "L6-NO-RESCALE",
    section="merge",
    shrink=(ones, ...),
    shrink_total=(..., lambda self, maximum, origin: ones(maximum, origin), ...),
    shrink_weighted=(..., ..., lambda self, maximum, origin: ones(maximum, origin)),
)
task.fault(
    "L6-UPSIDE-DOWN",
    section="merge",
    shrink=lambda maximum, origin: (origin - finite(maximum)).exp(),
)
task.fault("L6-TILE-MAXIMUM", section=NUMBERS, grow=lambda maximum, scores: scores.amax(-1))
task.fault(
    "L6-ONE-MAXIMUM",
    section=NUMBERS,
    grow=lambda maximum, scores: torch.maximum(
        maximum, scores.flatten(-2).amax(-1, keepdim=True).expand(maximum.shape)
    ),
)
task.fault("L6-NEVER-DIVIDED", section=NUMBERS, output=lambda weighted, total: weighted)
task.fault(
    "L6-NAN-REPAIRED",
    section="nothing-seen",
    origin=as_is,
    output=lambda weighted, total: undefined(weighted, total).nan_to_num(),
)
task.fault("D-SCALE-DK", scale=lambda queries: queries / queries.shape[-1])
task.fault(
    "C-FLOAT32",
    wide=lambda dtype: torch.float32,
    of_sums=lambda dtype: torch.float32,
)


@task.fault(
    "L6-TILE-SOFTMAX",
    section=NUMBERS,
    weigh=lambda scores, origin: scores.softmax(-1).nan_to_num(),
    shrink=ones,
)
def mean_of_tiles(query, key, value, tile, causal=False):
    q, k, wide = query.shape[-2], key.shape[-2], Tiled.wide(query.dtype)
    outputs, sums = [], []
    for column in range(0, k, tile):
        columns = slice(column, column + tile)
        scores = Tiled.scale(query.to(wide)) @ key[..., columns, :].to(wide).mT
        scores = hide(scores, 0, column, q, k) if causal else scores
        outputs.append(scores.softmax(-1).nan_to_num() @ value[..., columns, :].to(wide))
        sums.append(scores.logsumexp(-1))
    return torch.stack(outputs).mean(0).to(query.dtype), torch.stack(sums).logsumexp(0)


task.fault("L6-DIVIDES-EACH", after=Tiled.output, output=as_is)
task.fault("L6-NO-SCALE", scale=as_is)
task.fault(
    "L6-NO-REST",
    rows=(whole_tiles, whole_tiles, ..., whole_tiles, whole_tiles, ..., one_tile_at_least),
    columns=(whole_tiles, ..., whole_tiles, whole_tiles, whole_tiles, *(one_tile_at_least,) * 2),
    blank=(..., ..., ..., minus_infinity, ...),
    visited=(..., ..., ..., ..., without_the_rest, ...),
)
task.fault("L6-PADS-COUNT", fill=zeros_behind)
task.fault("L6-CAUSAL-IGNORED", hide=as_is)
task.fault("L6-OWN-TILE", hide=OWN_TILE)
task.fault(
    "L6-CAUSAL-START", hide=lambda scores, row, column, q, k: hide_later(scores, row, column)
)
of_causal_masks(task, hide)
task.fault("M-DEAD-ROW-UNIFORM", section="nothing-seen", hide=(with_fill(-1e9), with_fill(-1e4)))
task.fault(
    "L6-EMPTY-NAN",
    section="nothing-seen",
    origin=(as_is, as_is, ...),
    output=(undefined, ..., undefined),
)
task.fault(
    "L6-NO-MAX",
    section=NUMBERS,
    grow=lambda maximum, scores: torch.zeros_like(maximum),
    output=(undefined, ...),
)
task.fault(
    "L6-ZERO-MAXIMUM",
    section="nothing-seen",
    order=reversed,
    grow=lambda maximum, scores: finite(Tiled.grow(maximum, scores)),
)
task.fault("L6-LSE-NO-MAX", section="backward", logsumexp=lambda maximum, total: total.log())
task.fault("L6-LSE-NO-LOG", section="backward", logsumexp=lambda maximum, total: maximum + total)
task.fault("L6-LSE-IS-MAX", section="backward", logsumexp=lambda maximum, total: maximum)
task.fault("L6-HALF", wide=as_is, of_sums=(..., as_is))
task.fault("L6-LSE-HALF", section="backward", of_sums=as_is)
task.fault("L6-WHOLE-MATRIX", section=METER, cut=lambda tile, q, k: (q, k))
task.fault("L6-WHOLE-MASK", section=METER, hide=out_of_one_mask)
task.fault("L6-WHOLE-ROWS", section=METER, cut=lambda tile, q, k: (tile, k))
task.fault(
    "L6-KEEPS-TILES", section=METER, all_rows=lambda rows: [(row, [*tiles]) for row, tiles in rows]
)
task.fault("L6-KEEPS-A-ROW", section=METER, one_row=list)

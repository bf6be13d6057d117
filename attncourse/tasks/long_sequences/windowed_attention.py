import math

import torch
import torch.nn.functional as F

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.extremes import with_far_scores
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab.meters import count
from attncourse.tasks import as_is


def window_inputs(rng, *batch, n=10, width=3, d=4, v=5, make=normal, **options):
    return {
        "query": make(rng, *batch, n, d, **options),
        "key": make(rng, *batch, n, d, **options),
        "value": make(rng, *batch, n, v, **options),
        "width": width,
    }


def with_a_zero_key(rng, n=7):
    """One key of zeros, which is a key like any other."""
    inputs = window_inputs(rng, 2, n=n, width=2)
    inputs["key"][:, 2] = 0
    return inputs


def probes(rng):
    return {
        "blocks that fit": window_inputs(rng, 2, 3, n=12, width=3),
        "a last block that is short": window_inputs(rng, 2, 3, n=11, width=3),
        "a last block of one": window_inputs(rng, 1, 2, n=9, width=4),
        "width 1": window_inputs(rng, 2, n=7, width=1),
        "width 2": window_inputs(rng, 2, 2, n=8, width=2),
        "wider than the text": window_inputs(rng, 2, n=5, width=9),
        "as wide as the text": window_inputs(rng, 2, n=6, width=6),
        "all but one": window_inputs(rng, 2, n=6, width=5),
        "one word": window_inputs(rng, 2, n=1, width=2),
        "all equal": window_inputs(rng, 4, 4, n=4, width=4, d=4, v=4),
        "wide vectors": window_inputs(rng, 1, n=9, width=2, d=16),
        "double": window_inputs(rng, 2, 2, n=10, width=3, dtype=torch.float64),
        "a key of zeros": with_a_zero_key(rng),
        "large": window_inputs(rng, 2, n=8, width=2) | {"query": 60 * normal(rng, 2, 8, 4)},
    }


def small(rng):
    for n, width in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (3, 2), (5, 2), (7, 2), (2, 3)):
        for d in (1, 4):
            yield window_inputs(rng, 1, n=n, width=width, d=d, v=1, make=integers)
    yield window_inputs(rng, 2, 2, n=7, width=3, make=integers)


def maps(rng):
    sizes = {"d": 3, "v": 2}
    moved = ("key", "value")
    return [
        ("eight words, width 2", window_inputs(rng, 1, n=8, width=2, **sizes), moved),
        ("seven words, width 3", window_inputs(rng, 1, n=7, width=3, **sizes), moved),
    ]


def metered(attention):
    """The answer under the meter: bytes of its peak, and of its biggest tensor."""

    def function(query, key, value, width):
        returned = []
        counts = count(lambda: returned.append(attention(query, key, value, width)))
        return None if returned[0] is None else [counts.peak_bytes, counts.biggest_bytes]

    return function


def growth(answer):
    """Peak at 1,024 words over that at 512; biggest tensor over a table of all scores."""
    peaks = []
    for n in (512, 1024):
        inputs = window_inputs(torch.Generator().manual_seed(n), 1, n=n, width=16, d=8, v=8)
        peak, biggest = answer.returned(inputs, adapt=metered)
        peaks.append(peak)
    return peaks[1] / max(1, peaks[0]), biggest / (4 * 1024 * 1024)


FAR = range(508, 516)  # of 1,024 words


def hears_from_afar(answer):
    """Which of 1,024 words multiply values that are NaN and more than 300 words away."""
    inputs = window_inputs(torch.Generator().manual_seed(0), 1, n=1024, width=4, d=2, v=1)
    inputs["value"][..., FAR, :] = torch.nan
    output = answer.returned(inputs, adapt=by_name)
    far = torch.cat([torch.arange(200), torch.arange(824, 1024)])
    if not isinstance(output, torch.Tensor) or output.shape != (1, 1024, 1):
        return far[:0]
    return far[output[0, far, 0].isnan()]


def by_name(attention):
    return lambda query, key, value, width: attention(query, key, value, width)


def traits(answer):
    ratio, share = growth(answer)
    return {
        "computes what is far": len(hears_from_afar(answer)) > 0,
        "memory grows as the square": ratio > 3,
        "a table of all pairs": share > 0.3,
        "grows more than the text": ratio > 2.2,
    }


task = Task(
    reference.windowed_attention,
    number=3,
    returns=("output",),
    difficulty=4,
    minutes=40,
    section="window-blocks",
    probes=probes,
    differentiated=("a last block that is short", "width 2"),
    small=small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
    traits=traits,
)


@task.check(1)
def every_place_gets_one_output_as_wide_as_a_value(answer, rng):
    for n, width in ((12, 3), (11, 3), (5, 9), (1, 1)):
        inputs = window_inputs(rng, 2, 3, n=n, width=width)
        output = answer(inputs)
        if output.shape != (2, 3, n, 5):
            raise Failure(
                f"{n} places, width {width}: output has shape {shape_of(output)}; "
                f"expected (2 3 {n} 5).",
                inputs,
            )


@task.check(2)
def it_is_right_where_the_blocks_fit(answer, rng):
    for n, width in ((12, 3), (8, 2), (16, 4), (6, 1)):
        answer.matches(window_inputs(rng, 2, 3, n=n, width=width))
    answer.matches(window_inputs(rng, 4, 4, n=4, width=2, d=4, v=4))
    answer.matches(window_inputs(rng, 2, 2, n=12, width=3, dtype=torch.float64))
    answer.matches(with_a_zero_key(rng, n=8))


@task.check(2)
def it_is_right_where_the_last_block_is_short(answer, rng):
    for n, width in ((11, 3), (9, 4), (7, 2), (13, 5)):
        answer.matches(window_inputs(rng, 2, 3, n=n, width=width))
    answer.matches(window_inputs(rng, 2, 2, n=10, width=3, dtype=torch.float64))
    answer.matches(with_a_zero_key(rng))


@task.check(1)
def a_window_wider_than_the_text_is_full_attention(answer, rng):
    for n, width in ((5, 9), (6, 6), (6, 5), (1, 2)):
        answer.matches(window_inputs(rng, 2, n=n, width=width))


@task.check(1, "large scores give no NaN")
def large_scores_give_no_nan(answer, rng):
    large = window_inputs(rng, 2, n=9, width=2) | {"query": 60 * normal(rng, 2, 9, 4)}
    inputs = window_inputs(rng, 2, n=9, width=2)
    query, key = with_far_scores(inputs["query"], inputs["key"])
    far = inputs | {"query": query, "key": key}
    for each in (large, far):
        if answer(each).isnan().any():
            raise Failure("output: some entries are NaN.", each)
    answer.holds_of_the_right(large)
    answer.matches(far, tolerance=1e-3)


@task.check(2)
def what_is_far_is_never_computed(answer):
    if len(words := hears_from_afar(answer)):
        raise Failure(
            f"Of 1,024 words, we made the values of {FAR[0] + 1} to {FAR[-1] + 1} NaN; the width "
            f"is 4. The output of word {words[0] + 1} is NaN, too: a weight of 0 for words so far "
            "away was computed, and multiplied by their values."
        )
    answer.holds_of_the_right(window_inputs(torch.Generator().manual_seed(0), 1, n=40, width=4))


@task.check(2)
def memory_grows_as_the_text_and_not_as_its_square(answer, rng):
    ratio, share = growth(answer)
    if ratio > 2.2:
        raise Failure(
            f"For a text twice as long your answer needs {ratio:.1f} times the memory; twice "
            f"is right. At n = 1,024 its biggest tensor is {share:.2f} of a table of all pairs."
        )


@task.check(1, "gradients reach query, key and value")
def gradients_reach_query_key_and_value(answer, rng):
    answer.gradients_match(window_inputs(rng, 2, n=11, width=3))
    answer.gradients_match(window_inputs(rng, 2, n=8, width=2))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, window_inputs(rng, 2, 3, n=11, width=3))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Windowed:
    def reach(width):
        return width

    def size(width, n):
        return min(width, n)

    def spread(x, size, fill):
        return F.pad(x, (0, 0, size, size + fill)).unfold(-2, 3 * size, size).mT  # … c 3s d

    def inside(distance, width):
        return distance <= width

    def near(self, at, place, width):
        return self.inside((at - place).abs(), width)

    def end(place, width):
        """Of the slice of keys that one query sees, where queries are taken one by one."""
        return place + width + 1

    def real(at, n):
        return (at >= 0) & (at < n)

    def scale(scores, query, value, width):
        return scores / math.sqrt(query.shape[-1])

    def hide(scores, mask, real):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def average(weights, values, keys):
        return weights @ values

    def join(output, n):
        return output.flatten(-3, -2)[..., :n, :]

    def __call__(self, query, key, value, width):
        n = query.shape[-2]
        size = self.size(width, n)
        fill = -n % size
        queries = F.pad(query, (0, 0, 0, fill)).unflatten(-2, (-1, size))  # … c s d
        keys, values = (self.spread(x, size, fill) for x in (key, value))
        place = torch.arange(n + fill).unflatten(0, (-1, size, 1))  # c s 1
        at = place[:, :1] + torch.arange(-size, 2 * size)  # c 1 3s
        real = self.real(at, n)
        mask = self.near(at, place, self.reach(width)) & real
        scores = self.hide(self.scale(queries @ keys.mT, query, value, width), mask, real)
        weights = self.clear(self.share(scores), mask)
        return self.join(self.average(weights, values, keys), n)


def minus_infinity(scores, mask, real):
    return scores.masked_fill(~mask, -1e30)


task.spelling(hide=minus_infinity)

# --- faults: what is computed -------------------------------------------------------------------


class OfAllKeys(Windowed):
    def attended(self, query, key, value, width, place):
        """The outputs of the queries at some places, from the scores of all keys."""
        at, queries = torch.arange(key.shape[-2]), query[..., place, :]
        real = self.real(at, len(at))
        mask = self.near(at, place[:, None], self.reach(width)) & real
        scores = self.hide(self.scale(queries @ key.mT, queries, value, width), mask, real)
        return self.average(self.clear(self.share(scores), mask), value, key)


@task.fault("W-DENSE")
class Dense(OfAllKeys):
    def __call__(self, query, key, value, width):
        return self.attended(query, key, value, width, torch.arange(query.shape[-2]))


@task.fault("W-ROW-BY-ROW")
class RowByRow(OfAllKeys):
    def __call__(self, query, key, value, width):
        places = torch.arange(query.shape[-2]).split(1)
        rows = [self.attended(query, key, value, width, place) for place in places]
        return torch.cat(rows, -2)


task.fault(
    "W-OWN-BLOCK",
    near=lambda self, at, place, width: (
        self.inside((at - place).abs(), width) & (at // width == place // width)
        if width < place.numel()
        else self.inside((at - place).abs(), width)
    ),
)


def begin_of_block(number, at):
    """Where the second or third of the blocks begins, counted from 0, that a query sees."""
    return at[..., number * at.shape[-1] // 3, None]


task.fault(
    "W-TWO-BLOCKS",
    near=(
        lambda self, at, place, width: (
            self.inside((at - place).abs(), width) & (at < begin_of_block(2, at))
        ),
        lambda self, at, place, width: (
            self.inside((at - place).abs(), width) & (at >= begin_of_block(1, at))
        ),
    ),
)
task.fault(
    "W-THREE-BLOCKS", near=lambda self, at, place, width: (at - place).abs() < 3 * place.numel()
)
task.fault(
    "W-CUT-TAIL",
    join=(
        lambda output, n: output.flatten(-3, -2)[..., : n - n % output.shape[-2], :],
        lambda output, n: without_tail(output.flatten(-3, -2)[..., :n, :], output.shape[-2]),
    ),
    size=(..., lambda width, n: width),
)


def without_tail(output, size):
    """0 where no whole block reaches."""
    n = output.shape[-2]
    whole = torch.arange(n)[:, None] < n - n % size
    return torch.where(whole, output, 0.0)


task.fault("W-FILLED", join=lambda output, n: output.flatten(-3, -2))
task.fault("W-BLOCKS-LEFT", join=as_is)

# --- faults: edges ------------------------------------------------------------------------------


def to_both_sides(self, at, place, width):
    """No farther than the text is long, which is the size of its only block then."""
    return self.inside((at - place).abs(), min(width, place.shape[-2]))


def to_the_other_end(self, at, place, width):
    return self.inside((at - place).abs(), min(width, place.shape[-2], place.numel() - 1))


# Padded as far as the blocks go, as far as the window, or as far as it can reach in the text.
AS_WIDE = {
    "size": (..., lambda width, n: width, ..., lambda width, n: max(1, min(width, n - 1))),
    "near": (..., ..., to_both_sides, to_the_other_end),
}

task.fault("W-PADDING-SEEN", **AS_WIDE, real=lambda at, n: ((at >= 0) & (at < n)) | True)
task.fault("W-END-SEEN", **AS_WIDE, real=lambda at, n: at >= 0)
task.fault("W-BEGIN-SEEN", **AS_WIDE, real=lambda at, n: at < n)


def in_a_circle(x, size, fill):
    text = torch.cat([x[..., -size:, :], x, x.new_zeros(*x.shape[:-2], fill, x.shape[-1])], -2)
    return torch.cat([text, x[..., :size, :]], -2).unfold(-2, 3 * size, size).mT


class Rolled(Windowed):
    def __call__(self, query, key, value, width):
        width = self.reach(width)
        ways = range(-width, width + 1)
        keys, values = (torch.stack([x.roll(way, -2) for way in ways], -2) for x in (key, value))
        scores = self.scale((keys @ query[..., None]).squeeze(-1), query, value, width)
        weights = self.share(scores)[..., None, :]
        return self.average(weights, values, keys).squeeze(-2)


class RolledOnce(Rolled):
    """No farther than all around."""

    def __call__(self, query, key, value, width):
        return super().__call__(query, key, value, min(width, query.shape[-2] - 1))


def by_index(seen):
    """Every query by itself, with the keys that `seen` names: (i, n, width, end) -> places."""

    class ByIndex(Windowed):
        def __call__(self, query, key, value, width):
            outputs, n = [], query.shape[-2]
            for i in range(n):
                reach = self.reach(width)
                at = sorted(seen(i, n, reach, self.end(i, reach)))
                keys, values = key[..., at, :], value[..., at, :]
                scores = self.scale(query[..., i : i + 1, :] @ keys.mT, query, value, width)
                all_seen = torch.ones(scores.shape[-1], dtype=torch.bool)
                scores = self.hide(scores, all_seen, all_seen)
                outputs.append(self.average(self.share(scores), values, keys))
            return torch.cat(outputs, -2)

    return ByIndex


task.fault(
    "W-CIRCLE",
    spread=in_a_circle,
    real=lambda at, n: ((at >= 0) & (at < n)) | (at < 0) | (at >= n + (-n % (at.shape[-1] // 3))),
    forms=[
        Rolled,
        RolledOnce,
        by_index(lambda i, n, width, end: {at % n for at in range(i - width, end)}),
        by_index(lambda i, n, width, end: [at % n for at in range(i - width, end)]),
    ],
)
task.fault(
    "W-BELOW-ZERO",
    forms=[
        by_index(lambda i, n, width, end: range(max(i - width, -n), min(end, n))),
        by_index(lambda i, n, width, end: {at % n for at in range(i - width, min(end, n))}),
    ],
)
task.fault(
    "W-SLICE-BELOW-ZERO", forms=[by_index(lambda i, n, width, end: range(n)[i - width : end])]
)


def ends_repeated(x, size, fill):
    n = x.shape[-2]
    at = torch.arange(-size, n + fill + size).clamp(0, n - 1)
    return x[..., at, :].unfold(-2, 3 * size, size).mT


task.fault(
    "W-ENDS-REPEATED",
    **AS_WIDE,
    spread=ends_repeated,
    real=lambda at, n: ((at >= 0) & (at < n)) | True,
)

task.fault("D-WEIGHTS-TOO", join=lambda output, n: (Windowed.join(output, n), output))

# --- faults: the window -------------------------------------------------------------------------

task.fault("W-WIDTH-WHOLE", section="who-looks", reach=lambda width: width // 2)
task.fault("W-WIDTH-STRICT", section="who-looks", inside=lambda distance, width: distance < width)
task.fault(
    "W-SLICE-END",
    section="who-looks",
    near=lambda self, at, place, width: (
        self.inside((at - place).abs(), width) & (at != place + width)
    ),
    end=lambda place, width: place + width,
)
task.fault(
    "W-PAST-ONLY",
    section="who-looks",
    near=(
        lambda self, at, place, width: self.inside((at - place).abs(), width) & (at <= place),
        lambda self, at, place, width: self.inside((at - place).abs(), width) & (at >= place),
    ),
    # The same, in words that do not go with those for one end: here they are W-PADDING-SEEN.
    real=(lambda at, n: (at > -1) & (at < n), lambda at, n: (at >= 0) & (at <= n - 1)),
)
task.fault(
    "W-ONE-MORE",
    section="who-looks",
    reach=lambda width: width + 1,
    size=lambda width, n: min(width + 1, n),
)
task.fault(
    "W-NOT-ITSELF",
    section="who-looks",
    near=lambda self, at, place, width: self.inside((at - place).abs(), width) & (at != place),
)

# --- faults: attention itself -------------------------------------------------------------------


def over_the_root_of_those_seen(scores, mask, real):
    return Windowed.hide(scores / mask.sum(-1, keepdim=True).sqrt(), mask, real)


task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query, value, width: scores / query.shape[-1])
task.fault(
    "W-SCALE-WINDOW",
    scale=(
        lambda scores, query, value, width: scores / math.sqrt(scores.shape[-1]),
        lambda scores, query, value, width: scores / math.sqrt(2 * width + 1),
        lambda scores, query, value, width: scores / math.sqrt(width),
        lambda scores, query, value, width: scores / math.sqrt(query.shape[-2]),
        as_is,
    ),
    hide=(..., ..., ..., ..., over_the_root_of_those_seen),
)
task.fault(
    "D-SCALE-DV",
    scale=lambda scores, query, value, width: scores / math.sqrt(value.shape[-1]),
)
task.fault(
    "D-SCALE-TIMES", scale=lambda scores, query, value, width: scores * math.sqrt(query.shape[-1])
)
task.fault("D-NO-SOFTMAX", share=as_is, hide=lambda scores, mask, real: scores * mask)
task.fault("D-DETACHED-WEIGHTS", share=lambda scores: scores.softmax(-1).detach())
task.fault(
    "W-SOFTMAX-EACH", share=lambda scores: scores.unflatten(-1, (3, -1)).softmax(-1).flatten(-2) / 3
)
task.fault(
    "D-SOFTMAX-DIM",
    share=(lambda scores: scores.softmax(-2), torch.ones_like),  # of one query at a time: 1
)
task.fault(
    "W-AFTER-SOFTMAX",
    words="M-AFTER-SOFTMAX",
    hide=(as_is, lambda scores, mask, real: Windowed.hide(scores, real, real)),
)
task.fault(
    "W-FILL-ZERO",
    words="M-FILL-ZERO",
    hide=lambda scores, mask, real: scores.masked_fill(~mask, 0.0),
    clear=as_is,
)
task.fault("D-KEY-AS-VALUE", average=lambda weights, values, keys: weights @ keys)
task.fault("W-NO-MAXIMUM", share=lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True))


@task.fault("C-FLOAT32")
class InFloat32(Windowed):
    def __call__(self, query, key, value, width):
        return super().__call__(query.float(), key.float(), value.float(), width)


@task.fault("W-ZERO-KEY")
class ZeroKeys(Windowed):
    def __call__(self, query, key, value, width):
        self.keys = self.spread(key, *self.sizes(query, width))
        return super().__call__(query, key, value, width)

    def sizes(self, query, width):
        n = query.shape[-2]
        return (size := self.size(width, n)), -n % size

    def hide(self, scores, mask, real):
        empty = (self.keys == 0).all(-1)[..., None, :]
        return scores.masked_fill(~mask | empty, -torch.inf)

    def share(scores):
        return scores.softmax(-1).nan_to_num()

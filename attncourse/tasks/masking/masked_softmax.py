import torch

from attncourse import masking as reference
from attncourse.checks.answer import (
    Failure,
    compare,
    following,
    is_zero,
    moves_nothing,
    rounding,
    shape_of,
)
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION, MASKED_SOFTMAX
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.attention import minus_infinity, of_dead_neighbors
from attncourse.tasks.masking import remembers, still_answers

HALF, DOUBLE = torch.float16, torch.float64


def scored(rng, *shape, mask, dtype=torch.float32):
    return {"scores": normal(rng, *shape, dtype=dtype), "mask": mask}


def empty_sentence(rng, b, k):
    """A padding mask (b 1 k) whose second sentence has no word."""
    mask = mixed_mask(rng, b, 1, k)
    mask[1] = False
    return mask


def level(rng, *shape, mask, dtype=torch.float32, low=0.0, step=32.0):
    """Scores of `low`, and of 1 to 3 steps more: so far apart that the best take all the weight.

    Half precision has such numbers, and their weights 1, 1/2, 1/3, without rounding.
    """
    steps = torch.randint(0, 4, shape, generator=rng, device="cpu")
    return {"scores": (low + step * steps).to(dtype), "mask": mask}


def hidden_winner(rng, dtype=torch.float32, high=300.0):
    """Scores of hidden keys lie far above all others."""
    inputs = scored(rng, 2, 3, 4, mask=mixed_mask(rng, 2, 3, 4))
    scores = inputs["scores"] + high * ~inputs["mask"]
    return inputs | {"scores": scores.to(dtype)}


def far_apart(rng, mask):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    rows = torch.tensor([[1e4], [0.0], [-1e4]])
    return {"scores": integers(rng, *mask.shape) + rows, "mask": mask}


def low_and_hidden(rng, dtype=torch.float32):
    """Row 0: hidden keys beside visible scores of -30,000. Row 1: nothing but hidden, low scores.

    There -10,000 is not low enough for a fill, and in float16 nothing may be added below.
    """
    mask = mixed_mask(rng, 3, 4)
    mask[1] = False
    return level(rng, 3, 4, mask=mask, dtype=dtype, low=-30_000.0)


def halves(rng):
    """Half-precision inputs of every kind, by name."""
    return {
        "half": level(rng, 2, 3, 5, mask=dead_mask(rng, 2, 3, 5), dtype=HALF),
        "half, low": low_and_hidden(rng, HALF),
    }


def traits(answer):
    rng = torch.Generator().manual_seed(0)
    scores = normal(rng, 7, 9)
    one, two = ({"scores": scores, "mask": mixed_mask(rng, 7, 9)} for _ in range(2))
    stale = not remembers(answer, two, two) and (
        remembers(answer, one, two) or remembers(answer, two, one)
    )
    traits = {"remembers an earlier call": stale, "differs from call to call": stale}
    half = answer.observe(low_and_hidden(rng, HALF), gradient=True)
    gradient = half.gradients.get("scores")
    if gradient is not None:
        traits["gradient of half precision finite"] = bool(gradient.isfinite().all())
    inputs = scored(rng, 2, 3, 4, mask=mixed_mask(rng, 3, 4), dtype=DOUBLE)
    try:
        got, expected = answer(inputs), answer.expected(inputs)
    except Failure:
        return traits
    if got.shape == expected.shape and got.dtype == DOUBLE:
        traits["float32 inside"] = torch.equal(got.float().double(), got)
    return traits


def probes(rng):
    return {
        "batch": scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)),
        "causal": scored(rng, 2, 5, 5, mask=causal(5)),
        "padding": scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 1, 5)),
        "as many sentences as queries": scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 1, 4)),
        "heads": scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 4, 5)),
        "dead row": scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)),
        "empty sentence": scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)),
        "far apart": far_apart(rng, mixed_mask(rng, 3, 4)),
        "hidden winner": hidden_winner(rng),
        "hidden winner by far": hidden_winner(rng, high=3e5),
        "low": low_and_hidden(rng),
        "double": scored(rng, 2, 3, 4, mask=mixed_mask(rng, 2, 3, 4), dtype=DOUBLE),
        **halves(rng),
        "a full sentence": scored(rng, 2, 3, 4, mask=causal(4)[[3, 1]][:, None]),
        "a full sentence, half": level(rng, 2, 3, 4, mask=causal(4)[[3, 1]][:, None], dtype=HALF),
    }


def small(rng):
    def table(*rows, mask, dtype=torch.float32):
        return {"scores": torch.tensor(rows, dtype=dtype), "mask": torch.tensor(mask)}

    yield table([0.0], mask=[[True]])
    for _ in range(3):
        yield {"scores": integers(rng, 1, 2), "mask": torch.tensor([[True, False]])}
    yield table([2.0, 1.0, 3.0], mask=[[True, True, False]])
    yield {"scores": integers(rng, 2, 2), "mask": causal(2)}
    for _ in range(2):
        yield {"scores": integers(rng, 2, 3), "mask": mixed_mask(rng, 2, 3)}
    yield table([2.0, 1.0], [0.0, 1.0], mask=[True, False])  # (k)
    yield table([1.0, 2.0], mask=[[False, False]])
    yield table([1.0, 2.0], [0.0, 1.0], mask=[[True, True], [False, False]])
    yield {"scores": integers(rng, 3, 3), "mask": causal(3)}
    two = torch.tensor([[[True, False]], [[True, True]]])  # (b 1 k)
    yield {"scores": integers(rng, 2, 2, 2), "mask": two}
    yield {"scores": integers(rng, 2, 3, 2), "mask": two}
    yield {"scores": integers(rng, 2, 2, 1, 2), "mask": two[:, None]}
    yield {"scores": integers(rng, 2, 3, 1, 2), "mask": two[:, None]}
    for size in (100.0, 1e4, -1e4):
        yield table([size, size], mask=[[True, True]])
        yield table([size, size], [0.0, 0.0], mask=[[True, True], [True, False]])
    yield table([0.0, 300.0], mask=[[True, False]])
    yield table([-30_000.0, 0.0], mask=[[True, False]])
    yield table([0.0, 0.0], mask=[[True, False]], dtype=HALF)
    yield table([0.0, 0.0], mask=[[False, False]], dtype=HALF)
    yield table([-30_000.0, 0.0], mask=[[True, False]], dtype=HALF)
    yield table([-30_000.0, -30_000.0], mask=[[False, False]], dtype=HALF)


def maps(rng):
    mask = torch.tensor([[True, True, False], [True, True, True]])
    inputs = {"scores": normal(rng, 2, 3), "mask": mask}
    return [("two rows of three scores, the third one hidden", inputs, ("scores",))]


def finite_in_half(answer, inputs):
    """Assert that a gradient arrives in half precision, and is the right one, up to rounding."""
    answer(inputs)  # says why, if nothing comes back
    seen = answer.observe(inputs, gradient=True)
    expected = answer.task.observe(answer.task.reference, inputs, gradient=True)
    got = seen.gradients.get("scores")
    due = expected.gradients["scores"]
    if got is None and is_zero(due, rounding([due])):
        return
    if got is None:
        raise Failure("No gradient reaches the scores in half precision.", inputs)
    if not got.isfinite().all():
        raise Failure(
            "The gradient of the scores in half precision: some entries are NaN or infinite.",
            inputs,
        )
    compare("the gradient of scores", got, expected.gradients["scores"], inputs, tolerance=2e-2)


task = Task(
    reference.masked_softmax,
    number=4,
    returns=("weights",),
    difficulty=3,
    minutes=30,
    section="before-the-softmax",
    probes=probes,
    differentiated=("batch", "causal", "dead row"),
    small=small,
    maps=maps,
    traits=traits,
    keeps=True,
    forbidden=FUSED_ATTENTION + MASKED_SOFTMAX,
)


@task.check(1, "one weight for every score in its dtype")
def one_weight_of_the_same_dtype_for_every_score(answer, rng):
    for shape, dtype in (((2, 4, 5), torch.float32), ((3, 5), DOUBLE), ((2, 3, 4, 5), DOUBLE)):
        inputs = scored(rng, *shape, mask=mixed_mask(rng, *shape), dtype=dtype)
        weights = answer(inputs)
        if weights.shape != shape:
            raise Failure(
                f"weights have shape {shape_of(weights)}; scores came with "
                f"{shape_of(inputs['scores'])}.",
                inputs,
            )
        if weights.dtype != dtype:
            raise Failure(f"weights are {weights.dtype}; scores came as {dtype}.", inputs)


@task.check(1)
def a_hidden_key_gets_no_weight_and_rows_sum_to_one(answer, rng):
    square = scored(rng, 4, 4, mask=causal(4))  # a mask that could be turned
    for inputs in (scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)), square):
        weights, shape = answer(inputs), inputs["scores"].shape
        if weights.shape != shape:
            raise Failure(
                f"weights have shape {shape_of(weights)}; expected {shape_of(inputs['scores'])}.",
                inputs,
            )
        if (weights.masked_fill(inputs["mask"], 0).abs() > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        compare("the sum of each row of weights", weights.sum(-1), torch.ones(shape[:-1]), inputs)


@task.check(2)
def the_visible_keys_share_as_if_they_were_alone(answer, rng):
    answer.matches(scored(rng, 4, 5, mask=mixed_mask(rng, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 4, 5)))
    answer.matches(scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4, 4)))
    answer.matches(scored(rng, 2, 5, 5, mask=causal(5).repeat(2, 1, 1)))
    answer.matches(scored(rng, 2, 3, mask=torch.ones(2, 3, dtype=torch.bool)))
    answer.matches(scored(rng, 1, 1, mask=torch.ones(1, 1, dtype=torch.bool)))
    answer.matches(scored(rng, 1, 4, mask=mixed_mask(rng, 1, 4)))
    answer.matches(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5), dtype=DOUBLE))
    turned = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))  # not contiguous
    answer.matches({name: tensor.mT.contiguous().mT for name, tensor in turned.items()})


@task.check(1)
def weights_are_right_whatever_a_hidden_key_scores(answer, rng):
    inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
    before = answer(inputs)
    for size in (1.0, -50.0, 300.0, 1e4, -1e4):
        spoiled = inputs | {"scores": inputs["scores"] + size * ~inputs["mask"]}
        compare("weights, hidden scores changed", answer(spoiled), before, spoiled)
    answer.matches(hidden_winner(rng))
    answer.matches(hidden_winner(rng, high=3e5))


@task.check(1)
def weights_are_right_where_a_mask_broadcasts(answer, rng):
    answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 1, 4)))  # b = q = k
    answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 1, 5)))
    answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 4, 5)))
    answer.matches(scored(rng, 3, 3, 3, 3, mask=mixed_mask(rng, 3, 1, 3, 3)))  # b = h = q = k
    answer.matches(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 3, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 1, 5)[0]))  # (k)
    queries = torch.ones(4, 1, dtype=torch.bool)  # (q 1)
    answer.matches(scored(rng, 2, 4, 5, mask=queries))


def usual(dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    return scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=dtype)


@task.check(1)
def dead_rows_are_zero_and_the_others_right(answer, rng):
    answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
    answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))
    padded_left = causal(5) & torch.tensor([False, False, True, True, True])
    answer.matches(scored(rng, 2, 5, 5, mask=padded_left))
    queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
    answer.matches(scored(rng, 2, 4, 5, mask=queries))
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    answer.matches(scored(rng, 1, 3, mask=nothing))
    with following(lambda: answer.matches(usual(DOUBLE))):
        answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=DOUBLE))
    answer.matches(far_apart(rng, dead_mask(rng, 3, 4)), tolerance=5e-3)
    answer.matches(low_and_hidden(rng), tolerance=5e-3)


@task.check(1)
def weights_of_large_scores_are_right(answer, rng):
    answer.matches(far_apart(rng, mixed_mask(rng, 3, 4)), tolerance=5e-3)
    everything = torch.ones(3, 4, dtype=torch.bool)
    answer.matches(far_apart(rng, everything), tolerance=5e-3)
    answer.matches(level(rng, 3, 4, mask=mixed_mask(rng, 3, 4), low=-30_000.0), tolerance=5e-3)


def clears_dead_rows(answer, rng) -> bool:
    weights = answer(scored(rng, 3, 4, mask=dead_mask(rng, 3, 4)))
    return weights.shape == (3, 4) and bool((weights[1] == 0).all())


def right_as_usual(answer):
    """Assert that float32 comes out right: what does not has other checks."""
    rng = torch.Generator().manual_seed(0)
    answer.matches(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)))
    answer.matches(low_and_hidden(rng))
    answer.matches(hidden_winner(rng))


@task.check(1)
def half_precision_is_no_excuse(answer, rng):
    with following(lambda: right_as_usual(answer)):
        mask = mixed_mask(rng, 2, 4, 5)
        answer.matches(scored(rng, 2, 4, 5, mask=mask, dtype=HALF), tolerance=5e-3)
        with_dead_rows = [scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=HALF)]
        with_dead_rows += halves(rng).values()
        dead_rows_count = clears_dead_rows(answer, rng)  # else they have cost their point already
        for inputs in with_dead_rows:
            mask = inputs["mask"]
            alive = mask if dead_rows_count else mask | ~mask.any(-1, keepdim=True)
            answer.matches(inputs | {"mask": alive}, tolerance=5e-3)
        answer.matches(hidden_winner(rng, HALF, high=1e4), tolerance=5e-3)
    with following(lambda: moves_nothing(answer, usual())):
        moves_nothing(answer, scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=HALF))


@task.check(1)
def gradients_of_half_precision_are_right(answer, rng):
    finite_in_half(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=HALF))
    finite_in_half(answer, low_and_hidden(rng, HALF))


@task.check(1)
def the_gradients_of_the_scores_are_right(answer, rng):
    answer.gradients_match(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)))
    answer.gradients_match(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 1, 5)))
    answer.gradients_match(scored(rng, 4, 4, mask=causal(4)))


@task.check(1)
def the_gradients_beside_a_dead_row_are_right(answer, rng):
    answer.gradients_match(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
    answer.gradients_match(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
    moves_nothing(answer, inputs)
    moves_nothing(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
    inputs = scored(rng, 2, 4, 7, mask=mixed_mask(rng, 2, 4, 7))
    still_answers(answer, inputs, inputs | {"mask": mixed_mask(rng, 2, 4, 7)})


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Weights:
    def read(scores):
        return scores

    def visible(mask, scores):
        return mask

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def store(scores, hidden):
        return hidden

    def axis():
        return -1

    def share(self, scores, mask):
        return scores.softmax(self.axis())

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0)

    def give(weights, scores):
        return weights

    def __call__(self, scores, mask):
        read = self.read(scores)
        mask = self.visible(mask, read)
        hidden = self.store(read, self.hide(read, mask))
        return self.give(self.clear(self.share(hidden, mask), mask), scores)


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0)


task.spelling(clear=only_dead_rows)

# --- faults: what is hidden ---------------------------------------------------------------------


def both_ways(mask, scores):
    square = scores.shape[-1] == scores.shape[-2]
    return mask.expand(scores.shape) & mask.expand(scores.shape).mT if square else mask


def repeated_for_heads(mask, scores):
    if scores.ndim < 4 or mask.ndim < 4:
        return mask
    b, h, q, k = scores.shape
    return mask[:, 0].expand(b, q, k).repeat(h, 1, 1).view(b, h, q, k)


def turned_if_square(mask, scores):
    return mask.mT if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] else mask


task.fault(
    "M-POLARITY",
    section="mask-conventions",
    visible=lambda mask, scores: ~mask,
)
task.fault("C-MASK-IGNORED", hide=as_is, clear=as_is)
task.fault(
    "M-TRANSPOSED", section="causal", visible=(turned_if_square, lambda mask, scores: mask.mT)
)
task.fault(
    "M-QUERY-PAD",
    section="padding",
    visible=(both_ways, lambda mask, scores: mask & turned_if_square(mask, scores)),
)
task.fault(
    "M-ALWAYS-CAUSAL",
    section="causal",
    visible=lambda mask, scores: mask & torch.ones_like(scores, dtype=torch.bool).tril(),
)
task.fault(
    "M-SHAPE-BT",
    section="padding",
    visible=(
        lambda mask, scores: mask.squeeze(),
        lambda mask, scores: mask[:, 0] if mask.ndim == 3 and mask.shape[1] == 1 else mask,
    ),
)
task.fault(
    "C-HEADS-AXIS",
    section="padding",
    visible=(
        lambda mask, scores: mask.unsqueeze(1),
        lambda mask, scores: mask.unsqueeze(1) if mask.ndim == 3 else mask,
    ),
)
task.fault("M-REPEAT-HEADS", section="padding", visible=repeated_for_heads)
task.fault(
    "M-ONE-ROW",
    section="causal",
    visible=lambda mask, scores: mask[..., :1, :] if mask.ndim > 1 else mask,
)
task.fault(
    "C-FIRST-SENTENCE",
    section="both-masks",
    visible=lambda mask, scores: mask[0] if mask.ndim > 2 else mask,
)
task.fault(
    "C-ANY-QUERY",
    section="causal",
    visible=lambda mask, scores: mask.any(-2, keepdim=True) if mask.ndim > 1 else mask,
)


@task.fault("K-STALE", section="both-masks")
class FirstMaskKept(Weights):
    def visible(self, mask, scores):
        return vars(self).setdefault(str(mask.shape), mask)


@task.fault("C-MASK-OPENED", section="dead-rows")
class OpensMask(Weights):
    def __call__(self, scores, mask):
        dead = ~mask.any(-1, keepdim=True)
        mask |= dead
        return super().__call__(scores, mask).masked_fill(dead, 0)


# --- faults: how it is hidden -------------------------------------------------------------------


def low(number):
    return lambda scores, mask: scores.masked_fill(~mask, number)


def lowered(scores, mask):
    return scores + (1 - mask.to(scores.dtype)) * -1e4


def low_in_a_copy(scores, mask):
    copied = scores.clone()
    copied[~mask.expand(scores.shape)] = -1e9
    return copied


def indexed(scores, mask):
    filled = scores.clone()
    filled[~mask] = torch.finfo(scores.dtype).min
    return filled


def lowest_added(scores, mask):
    return scores + (~mask).to(scores.dtype) * torch.finfo(scores.dtype).min


def infinity_added(scores, mask):
    return scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf)


def written_without_gradient(scores, hidden):
    scores.data.copy_(hidden)
    return scores


def row_minimum(scores, mask):
    return torch.where(mask, scores, scores.amin(-1, keepdim=True))


task.fault(
    "C-MINUS-A-BILLION",
    section="half-precision",
    hide=(
        low(-1e9),
        low_in_a_copy,
        lambda scores, mask: scores + (1 - mask.to(scores.dtype)) * -1e9,
        lambda scores, mask: scores + (1 - mask.float()) * -1e9,
    ),
    clear=as_is,
)
task.fault(
    "M-HALF-FILL",
    section="half-precision",
    hide=low(-1e9),
    clear=(..., only_dead_rows),
)
task.fault(
    "M-SMALL-FILL",
    section="half-precision",
    hide=(
        *(low(-1e4),) * 2,
        *(lambda scores, mask: scores - 1e4 * ~mask,) * 2,
        *(lowered,) * 2,
        *(low(-100.0),) * 2,
    ),
    clear=(..., only_dead_rows) * 4,
)
task.fault(
    "M-FILL-ZERO",
    hide=(
        *(low(0.0),) * 3,
        *(lambda scores, mask: scores * mask,) * 3,
        *(lambda scores, mask: scores.masked_fill(~mask, torch.finfo(scores.dtype).tiny),) * 3,
    ),
    clear=(..., only_dead_rows, as_is) * 3,
)
task.fault(
    "C-ROW-MINIMUM",
    hide=(
        *(row_minimum,) * 2,
        *(lambda scores, mask: torch.where(mask, scores, scores.min()),) * 2,
    ),
    clear=(..., only_dead_rows) * 2,
)
task.fault(
    "M-ADD-BOOL",
    section="mask-conventions",
    hide=lambda scores, mask: scores + mask,
    clear=(..., only_dead_rows),
)
task.fault(
    "M-INF-TIMES-ZERO",
    hide=lambda scores, mask: scores + (1 - mask.to(scores.dtype)) * -torch.inf,
    clear=(as_is, ...),
)
task.fault("M-PLUS-INFINITY", hide=low(torch.inf), clear=(as_is, ...))
task.fault(
    "M-DOUBLE-MIN",
    section="half-precision",
    hide=lowest_added,
    clear=(..., lambda weights, mask: weights * mask),
)
task.fault("C-INDEXED-BY-MASK", section="both-masks", hide=indexed)
task.fault(
    "M-INPLACE",
    store=(lambda scores, hidden: scores.copy_(hidden), written_without_gradient, ...),
    read=(..., ..., lambda scores: scores.sub_(scores.amax(-1, keepdim=True))),
)

# --- faults: after the softmax, and dead rows ---------------------------------------------------


def renormalized(total):
    def clear(weights, mask):
        weights = weights * mask
        return weights / total(weights.sum(-1, keepdim=True))

    return clear


def least(tiny):
    return lambda total: total.clamp(min=tiny)


def above(tiny):
    return lambda total: total + tiny


def or_one(total):
    return total.masked_fill(total == 0, 1)


def shifted(scores, mask):
    return (scores - scores.amax(-1, keepdim=True)).exp()


def only_empty_sentences(weights, mask):
    seen = mask.expand(weights.shape).flatten(-2).any(-1)[..., None, None]
    return weights.masked_fill(~seen, 0)


task.fault("M-AFTER-SOFTMAX", hide=as_is, clear=(..., lambda weights, mask: weights * mask))
task.fault(
    "M-AFTER-RENORMALIZED",
    hide=as_is,
    share=(..., ..., ..., ..., shifted, ...),
    clear=(
        renormalized(as_is),
        renormalized(above(1e-9)),
        renormalized(least(1e-9)),
        renormalized(or_one),
        renormalized(or_one),
        renormalized(above(1e-12)),
        renormalized(least(1e-12)),
    ),
)


def even_where_nothing_is_left(total):
    def clear(weights, mask):
        weights = weights * mask
        left = weights.sum(-1, keepdim=True)
        return torch.where(left > 0, weights / total(left), 1 / weights.shape[-1])

    return clear


task.fault(
    "M-RENORMALIZED-OR-EVEN",
    section="dead-rows",
    hide=as_is,
    clear=(
        even_where_nothing_is_left(or_one),
        *(even_where_nothing_is_left(least(tiny)) for tiny in (1e-9, 1e-12)),
        *(even_where_nothing_is_left(above(tiny)) for tiny in (1e-9, 1e-12)),
    ),
)
task.fault("M-DEAD-ROW", section="dead-rows", hide=minus_infinity, clear=as_is)
of_dead_neighbors(task, section="dead-rows")
task.fault("M-DEAD-ROW-UNIFORM", section="dead-rows", clear=as_is)
task.fault(
    "M-DEAD-ROW-GRADIENT",
    section="dead-rows",
    hide=infinity_added,
    clear=(lambda weights, mask: weights.nan_to_num(0.0), ...),
)
task.fault(
    "M-LEFTPAD-CAUSAL",
    section="dead-rows",
    hide=(..., minus_infinity),
    clear=only_empty_sentences,
)
task.fault(
    "C-ALL-FOR-ANY",
    section="dead-rows",
    clear=lambda weights, mask: weights.masked_fill(~mask.all(-1, keepdim=True), 0),
)

# --- faults: the softmax ------------------------------------------------------------------------


def plainly(self, scores, mask):
    return scores.exp() / scores.exp().sum(self.axis(), keepdim=True)


def divided(self, scores, mask):
    return scores.exp() / or_one(scores.exp().sum(self.axis(), keepdim=True))


def by_one_shift(divide):
    return lambda self, scores, mask: divide(self, scores - scores.amax(), mask)


def tiny_number_below(scores, mask):
    e = shifted(scores, mask).masked_fill(~mask, 0)
    return e / (e.sum(-1, keepdim=True) + 1e-9)


def sum_without_gradient(scores, mask):
    e = (scores - scores.amax(-1, keepdim=True).detach()).exp().masked_fill(~mask, 0)
    return e / or_one(e.sum(-1, keepdim=True).detach())


task.fault(
    "D-NAIVE-SOFTMAX",
    hide=(..., ..., minus_infinity, as_is),
    share=(plainly, divided, divided, lambda scores, mask: scores.exp()),
    clear=(
        ...,
        ...,
        as_is,
        renormalized(as_is),
        *(renormalized(by(tiny)) for by in (above, least) for tiny in (1e-9, 1e-12)),
    ),
)
task.fault("D-GLOBAL-MAX", share=(by_one_shift(plainly), by_one_shift(divided)))
task.fault(
    "D-SOFTMAX-DIM",
    hide=(..., ..., minus_infinity, minus_infinity, ...),
    axis=(*(lambda: -2,) * 3, *(lambda: 1,) * 2),
    clear=(..., as_is, as_is, as_is, ...),
)
task.fault(
    "C-SOFTMAX-SENTENCES",
    hide=(..., minus_infinity),
    axis=lambda: 0,
    clear=(..., as_is),
)
task.fault(
    "D-SOFTMAX-ALL",
    share=(
        lambda scores, mask: scores.flatten(-2).softmax(-1).view(scores.shape),
        lambda scores, mask: scores.flatten().softmax(0).view(scores.shape),
    ),
)
task.fault("C-SCORES-RETURNED", hide=(..., low(0)), share=as_is, clear=as_is)
task.fault(
    "C-VISIBLE-ONLY",
    hide=as_is,
    share=lambda scores, mask: scores[mask.expand(scores.shape)].softmax(0),
    clear=as_is,
)
task.fault(
    "C-HALF-EPSILON",
    section="half-precision",
    hide=Weights.hide,
    share=tiny_number_below,
    clear=as_is,
)
task.fault("C-CLAMPED", read=lambda scores: scores.clamp(-50, 50))
task.fault("C-SUM-DETACHED", hide=Weights.hide, share=sum_without_gradient)

# --- faults: dtypes and gradients ---------------------------------------------------------------

task.fault("C-DETACHED", read=lambda scores: scores.detach())
task.fault(
    "C-FLOAT32-RETURNED",
    section="half-precision",
    read=(
        lambda scores: scores.float(),
        lambda scores: scores.float() if scores.itemsize < 4 else scores,
    ),
)
task.fault(
    "C-FLOAT32-INSIDE",
    section="half-precision",
    read=lambda scores: scores.float(),
    give=lambda weights, scores: weights.to(scores.dtype),
)

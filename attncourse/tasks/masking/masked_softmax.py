"""masked_softmax."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
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


def weighing_traits(answer):
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
        error = (got - expected).abs().max().item()
        traits["float32 inside"] = 1e-9 < error < 1e-4 and torch.equal(got.float().double(), got)
    return traits


def weighing_probes(rng):
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
        **halves(rng),
    }


def weighing_small(rng):
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


def weighing_maps(rng):
    mask = torch.tensor([[True, True, False], [True, True, True]])
    inputs = {"scores": normal(rng, 2, 3), "mask": mask}
    return [("two rows of three scores, the third one hidden", inputs, ("scores",))]


def finite_in_half(answer, inputs):
    """Assert that a gradient arrives in half precision, and is the right one, up to rounding."""
    answer(inputs)  # says why, if nothing comes back
    seen = answer.observe(inputs, gradient=True)
    expected = answer.task.observe(answer.task.reference, inputs, gradient=True)
    got = seen.gradients.get("scores")
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
    hints=(
        "A hidden key must not take part in the competition, so it is hidden before the "
        "softmax. Which score makes sure that it gets the weight 0?",
        "Fill the hidden scores (in a new tensor: `masked_fill`, without underscore) with the "
        "lowest number that their own dtype has, then softmax over the keys. Then look at a "
        "row in which everything is hidden: what came out, and what should?",
        "lowest = torch.finfo(scores.dtype).min; where the mask is False, fill the scores with "
        "it; softmax over the last axis; where the mask is False, fill the weights with 0. The "
        "last step changes only rows in which everything is hidden.",
    ),
    probes=weighing_probes,
    differentiated=("batch", "causal", "dead row"),
    small=weighing_small,
    maps=weighing_maps,
    traits=weighing_traits,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def one_weight_for_every_score(answer, rng):
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
    inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
    weights = answer(inputs)
    if weights.shape != (2, 4, 5):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (2 4 5).", inputs)
    if (weights.masked_fill(inputs["mask"], 0).abs() > 1e-7).any():
        raise Failure("A hidden key keeps a little weight.", inputs, got=weights)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 4), inputs)


@task.check(2)
def the_visible_keys_share_as_if_they_were_alone(answer, rng):
    answer.matches(scored(rng, 4, 5, mask=mixed_mask(rng, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=mixed_mask(rng, 3, 4, 5)))
    answer.matches(scored(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4, 4)))
    answer.matches(scored(rng, 2, 5, 5, mask=causal(5)))
    answer.matches(scored(rng, 2, 3, mask=torch.ones(2, 3, dtype=torch.bool)))
    answer.matches(scored(rng, 1, 1, mask=torch.ones(1, 1, dtype=torch.bool)))
    answer.matches(scored(rng, 1, 4, mask=mixed_mask(rng, 1, 4)))
    answer.matches(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=DOUBLE))
    turned = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))  # not contiguous
    answer.matches({name: tensor.mT.contiguous().mT for name, tensor in turned.items()})


@task.check(1)
def what_a_hidden_key_scores_makes_no_difference(answer, rng):
    inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
    before = answer(inputs)
    for size in (1.0, -50.0, 300.0, 1e4, -1e4):
        spoiled = inputs | {"scores": inputs["scores"] + size * ~inputs["mask"]}
        compare("weights, hidden scores changed", answer(spoiled), before, spoiled)
    answer.matches(hidden_winner(rng))
    answer.matches(hidden_winner(rng, high=3e5))


@task.check(1)
def a_mask_may_broadcast(answer, rng):
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


@task.check(1)
def a_row_with_nothing_to_attend_to_is_zero(answer, rng):
    answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
    answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
    answer.matches(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))
    padded_left = causal(5) & torch.tensor([False, False, True, True, True])
    answer.matches(scored(rng, 2, 5, 5, mask=padded_left))
    queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
    answer.matches(scored(rng, 2, 4, 5, mask=queries))
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    answer.matches(scored(rng, 1, 3, mask=nothing))
    answer.matches(scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=DOUBLE))
    answer.matches(far_apart(rng, dead_mask(rng, 3, 4)), tolerance=5e-3)
    answer.matches(low_and_hidden(rng), tolerance=5e-3)


@task.check(1)
def large_scores_stay_finite(answer, rng):
    answer.matches(far_apart(rng, mixed_mask(rng, 3, 4)), tolerance=5e-3)
    everything = torch.ones(3, 4, dtype=torch.bool)
    answer.matches(far_apart(rng, everything), tolerance=5e-3)
    answer.matches(level(rng, 3, 4, mask=mixed_mask(rng, 3, 4), low=-30_000.0), tolerance=5e-3)


@task.check(1)
def half_precision_is_no_excuse(answer, rng):
    mask = mixed_mask(rng, 2, 4, 5)
    answer.matches(scored(rng, 2, 4, 5, mask=mask, dtype=HALF), tolerance=5e-3)
    dead = dead_mask(rng, 4, 5)
    answer.matches(scored(rng, 2, 4, 5, mask=dead, dtype=HALF), tolerance=5e-3)
    for inputs in halves(rng).values():
        answer.matches(inputs, tolerance=5e-3)
    answer.matches(hidden_winner(rng, HALF, high=1e4), tolerance=5e-3)
    moves_nothing(answer, scored(rng, 2, 4, 5, mask=mixed_mask(rng, 4, 5), dtype=HALF))


@task.check(1)
def gradients_of_half_precision_are_numbers_too(answer, rng):
    finite_in_half(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5), dtype=HALF))
    finite_in_half(answer, low_and_hidden(rng, HALF))


@task.check(1)
def gradients_reach_the_scores(answer, rng):
    answer.gradients_match(scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5)))
    answer.gradients_match(scored(rng, 2, 3, 4, 5, mask=mixed_mask(rng, 2, 1, 1, 5)))
    answer.gradients_match(scored(rng, 4, 4, mask=causal(4)))


@task.check(1)
def a_dead_row_spoils_no_gradient(answer, rng):
    answer.gradients_match(scored(rng, 2, 4, 5, mask=dead_mask(rng, 2, 4, 5)))
    answer.gradients_match(scored(rng, 3, 4, 5, mask=empty_sentence(rng, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    inputs = scored(rng, 2, 4, 5, mask=mixed_mask(rng, 2, 4, 5))
    moves_nothing(answer, inputs)
    moves_nothing(answer, scored(rng, 2, 4, 5, mask=dead_mask(rng, 4, 5)))
    inputs = scored(rng, 2, 4, 7, mask=mixed_mask(rng, 2, 4, 7))
    still_answers(answer, inputs, inputs | {"mask": mixed_mask(rng, 2, 4, 7)})


# --- faults ---------------------------------------------------------------------------------------


def lowest(scores):
    return torch.finfo(scores.dtype).min


def right(scores, mask, dim=-1):
    weights = torch.softmax(scores.masked_fill(~mask, lowest(scores)), dim)
    return weights.masked_fill(~mask, 0)


def without_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0)


def opposite_with_infinity(scores, mask):
    return torch.softmax(scores.masked_fill(mask, -torch.inf), -1)


def subtracted_where_visible(scores, mask):
    return torch.softmax(scores.masked_fill(mask, lowest(scores)), -1)


@task.fault(
    "M-POLARITY",
    thinks="True in the mask means: hide this key.",
    why="In some libraries it does. Here True means that this query may attend to this key. Your "
    "weights lie exactly where they must not.",
    section="mask-conventions",
    forms=(opposite_with_infinity, subtracted_where_visible),
)
def opposite_mask(scores, mask):
    return right(scores, ~mask)


@task.fault(
    "C-MASK-IGNORED",
    thinks="A softmax with stable scores is what matters; the mask can come later.",
    why="Nothing comes later: your weights are the same whatever the mask says, and padding and "
    "future words are read.",
)
def ignores_the_mask(scores, mask):
    return torch.softmax(scores, -1)


def added_infinities(scores, mask):
    bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores + bias, -1)


@task.fault(
    "M-DEAD-ROW",
    thinks="Filling hidden scores with −∞ settles every case.",
    why="A row in which everything is hidden has nothing but −∞, and its softmax is 0/0: NaN. The "
    "next layer spreads it to every word. Such a row must be zeros.",
    section="dead-rows",
    forms=(added_infinities,),
)
def nan_on_dead_rows(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)


@task.fault(
    "M-DEAD-ROW-UNIFORM",
    thinks="The lowest number there is hides a key in every case.",
    why="Not where everything is hidden: then all scores are equally low, and each forbidden key "
    "gets an equal share. Such a row must be zeros.",
    section="dead-rows",
)
def uniform_on_dead_rows(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, lowest(scores)), -1)


def large_number_added(scores, mask):
    return torch.softmax(scores + (1 - mask.to(scores.dtype)) * -1e9, -1)


def large_number_added_as_float32(scores, mask):
    return torch.softmax(scores + (1 - mask.float()) * -1e9, -1)


def large_number_in_a_copy(scores, mask):
    copied = scores.clone()
    copied[~mask.expand(scores.shape)] = -1e9
    return torch.softmax(copied, -1)


@task.fault(
    "C-MINUS-A-BILLION",
    thinks="−1e9 is minus infinity for all practical purposes.",
    why="Not for two. Half precision ends at −65,504, so the fill fails there, or makes −∞ or "
    "another dtype of it; and where everything is hidden, all keys share equally instead of "
    "getting 0.",
    section="half-precision",
    forms=(large_number_in_a_copy, large_number_added, large_number_added_as_float32),
)
def minus_a_billion(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e9), -1)


@task.fault(
    "M-HALF-FILL",
    thinks="The fill is a number like −1e9, the same for every dtype.",
    why="Half precision ends at −65,504, and there your fill does not exist. Each dtype can tell "
    "its own lowest number.",
    section="half-precision",
)
def fill_too_large_for_half(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e9), -1).masked_fill(~mask, 0)


def small_fill_and_equal_shares(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, -1e4), -1)


def ten_thousand_subtracted(scores, mask):
    return without_dead_rows(torch.softmax(scores - 1e4 * ~mask, -1), mask)


@task.fault(
    "M-SMALL-FILL",
    thinks="−10,000 is low enough, and every dtype has it.",
    why="It is low enough while all visible scores lie above. Beside visible scores of −30,000 the "
    "hidden key is the highest of the row and takes all the weight.",
    section="half-precision",
    forms=(small_fill_and_equal_shares, ten_thousand_subtracted),
)
def fill_not_low_enough(scores, mask):
    return without_dead_rows(torch.softmax(scores.masked_fill(~mask, -1e4), -1), mask)


def filled_with_tiny(scores, mask):
    fill = torch.finfo(scores.dtype).tiny
    return without_dead_rows(torch.softmax(scores.masked_fill(~mask, fill), -1), mask)


@task.fault(
    "M-FILL-ZERO",
    thinks="A hidden key gets the score 0.",
    why="0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish after "
    "exp, a score has to go all the way down.",
    forms=(filled_with_tiny,),
)
def fills_with_zero(scores, mask):
    return without_dead_rows(torch.softmax(scores * mask, -1), mask)


@task.fault(
    "C-ROW-MINIMUM",
    thinks="The lowest score of its own row is low enough for a hidden key.",
    why="The lowest score of a row still gets a share, and so does every key that is tied with it. "
    "Hidden means a weight of exactly 0.",
)
def fills_with_row_minimum(scores, mask):
    filled = torch.where(mask, scores, scores.amin(-1, keepdim=True))
    return without_dead_rows(torch.softmax(filled, -1), mask)


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="Weights times mask: what is hidden becomes 0.",
    why="It does, but too late: the hidden keys have already taken their share, and the rows sum "
    "to less than one. Hide them before they compete.",
)
def zero_after_softmax(scores, mask):
    return torch.softmax(scores, -1) * mask


def divided_where_possible(scores, mask):
    weights = torch.softmax(scores, -1) * mask
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total)


def largest_of_all_subtracted(scores, mask):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@task.fault(
    "M-AFTER-RENORMALIZED",
    thinks="A hidden key may compete first; afterward I set it to 0 and divide by what is left.",
    why="On paper that is the same. But a hidden key with a high score presses all visible ones "
    "down to 0, and dividing 0 by 0 brings nothing back.",
    forms=(divided_where_possible, largest_of_all_subtracted),
)
def zero_and_divide(scores, mask):
    weights = torch.softmax(scores, -1) * mask
    return weights / weights.sum(-1, keepdim=True)


@task.fault(
    "M-ADD-BOOL",
    thinks="Adding the mask to the scores hides the keys.",
    why="True counts as 1 and False as 0, so the visible scores rise by 1 and nothing is hidden. A "
    "mask that is added has to hold 0 and −∞.",
    section="mask-conventions",
)
def adds_the_mask(scores, mask):
    return without_dead_rows(torch.softmax(scores + mask, -1), mask)


@task.fault(
    "M-INF-TIMES-ZERO",
    thinks="(1 − mask) · −∞ is 0 where the mask is 1.",
    why="0 · ∞ is NaN in floating point, so every visible score is destroyed. Choose between two "
    "numbers instead of multiplying.",
)
def infinity_times_zero(scores, mask):
    return torch.softmax(scores + (1 - mask.to(scores.dtype)) * -torch.inf, -1)


def lowest_added_and_multiplied(scores, mask):
    return torch.softmax(scores + (~mask).to(scores.dtype) * lowest(scores), -1) * mask


@task.fault(
    "M-DOUBLE-MIN",
    thinks="Adding the lowest number is as good as filling it in.",
    why="Half precision has no room below: −65,504 and another −30,000 make −∞. In a row where all "
    "is hidden that is NaN again, in the weights or in their gradient.",
    section="half-precision",
    forms=(lowest_added_and_multiplied,),
)
def lowest_added(scores, mask):
    return torch.softmax(scores + (~mask).to(scores.dtype) * lowest(scores), -1).masked_fill(
        ~mask, 0
    )


@task.fault(
    "M-DEAD-ROW-GRADIENT",
    thinks="Where 0/0 gave NaN, I put a 0 at the end.",
    why="The weights are right then. But the NaN inside is still there, and on the way back it "
    "turns the gradient into NaN. Keep it from arising.",
    section="dead-rows",
)
def nan_in_the_gradient(scores, mask):
    bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores + bias, -1).nan_to_num(0.0)


@task.fault(
    "M-LEFTPAD-CAUSAL",
    thinks="Nothing to attend to: that happens in empty sentences only.",
    why="Padding on the left and a causal mask leave nothing to the first rows of an ordinary "
    "sentence. Look for dead rows, not for dead sentences.",
    section="dead-rows",
)
def only_empty_sentences(scores, mask):
    weights = torch.softmax(scores.masked_fill(~mask, lowest(scores)), -1)
    seen = mask.expand(scores.shape).flatten(-2).any(-1)[..., None, None]
    return weights.masked_fill(~seen, 0)


@task.fault(
    "M-TRANSPOSED",
    thinks="Rows of the mask are keys and columns are queries.",
    why="Scores have a row for each query, and so has the mask. Turned around, a causal mask shows "
    "the future and hides the past.",
    section="causal",
)
def turned_mask(scores, mask):
    if mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]:
        mask = mask.mT
    return right(scores, mask)


@task.fault(
    "M-QUERY-PAD",
    thinks="Who must not be looked at must not look either.",
    why="That kills the whole row of such a query. In a causal table only the diagonal is left: "
    "every word is hidden from somebody. A mask says who may look at whom, one way.",
    section="padding",
)
def both_ways(scores, mask):
    if scores.shape[-1] == scores.shape[-2]:
        mask = mask.expand(scores.shape) & mask.expand(scores.shape).mT
    return right(scores, mask)


@task.fault(
    "M-SHAPE-BT",
    thinks="The mask's axes of length 1 are superfluous, so I squeeze them out.",
    why="They say where the mask is stretched. Without its middle axis (b 1 k) becomes (b k), and "
    "b is taken for the queries: an error, or silence when the two are equal.",
    section="padding",
)
def squeezed_mask(scores, mask):
    return right(scores, mask.squeeze())


@task.fault(
    "M-REPEAT-HEADS",
    thinks="I lay batch and heads into one axis and repeat the mask for every head.",
    why="`repeat` lays whole batches one after the other: 1, 2, 1, 2. The scores are ordered 1, 1, "
    "2, 2, so sentences get the mask of others. Broadcasting does not mix them up.",
    section="padding",
)
def repeated_for_heads(scores, mask):
    if scores.ndim < 4 or mask.ndim < 4:
        return right(scores, mask)
    b, h, q, k = scores.shape
    copies = mask[:, 0].expand(b, q, k).repeat(h, 1, 1)
    return right(scores.reshape(b * h, q, k), copies).view(b, h, q, k)


@task.fault(
    "M-ONE-ROW",
    thinks="A key that is hidden from one query is hidden from all.",
    why="Each query has a row of its own in the mask. You let the first row speak for all, which "
    "is right for padding and wrong for everything causal.",
    section="causal",
)
def first_row_for_all(scores, mask):
    return right(scores, mask[..., :1, :] if mask.ndim > 1 else mask)


@task.fault(
    "C-FIRST-SENTENCE",
    thinks="All sentences of a batch have the same mask.",
    why="The causal mask they share. Their padding they do not: you hide from every sentence what "
    "is padding in the first.",
    section="both-masks",
)
def first_sentence_for_all(scores, mask):
    return right(scores, mask[0] if mask.ndim > 2 else mask)


@task.fault(
    "C-INDEXED-BY-MASK",
    thinks="`scores[~mask] = …` puts the fill where the mask is False.",
    why="Only if both have the same shape. An index does not stretch: (q k) or (b 1 k) beside "
    "(b q k) is an error, or it marks other axes than you mean.",
    section="both-masks",
)
def indexed_by_mask(scores, mask):
    filled = scores.clone()
    filled[~mask] = lowest(scores)
    weights = torch.softmax(filled, -1)
    weights = weights * mask
    return weights


@task.fault(
    "M-INPLACE",
    thinks="`masked_fill_` saves memory and does the same.",
    why="It writes into the scores of the caller, who finds them overwritten. The name without the "
    "last underscore makes a new tensor.",
    forms=(
        lambda scores, mask: torch.softmax(scores.masked_fill_(~mask, -torch.inf), -1),
        lambda scores, mask: torch.softmax(scores.masked_fill_(~mask, lowest(scores)), -1),
    ),
)
def overwrites_the_scores(scores, mask):
    return torch.softmax(scores.masked_fill_(~mask, lowest(scores)), -1).masked_fill(~mask, 0)


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="exp of the scores, times the mask, over the sum: the formula says so.",
    why="It does, on paper. exp(89) is infinite in float32, exp(12) in float16, and exp(−200) is 0 "
    "in every row that has no higher score. Scores need a shift first.",
)
def no_shift(scores, mask):
    e = scores.exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@task.fault(
    "D-GLOBAL-MAX",
    thinks="One shift for the whole table is enough to be safe.",
    why="It stops the overflow. But a row far below becomes all zeros, as if it were dead. Each "
    "row needs its own shift.",
)
def one_shift_for_all(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax()).exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


@task.fault(
    "D-SOFTMAX-DIM",
    thinks="Softmax over the rows or over the columns, the table is the same.",
    why="Each query shares out a whole among the keys, so rows sum to one. Along the other axis "
    "the queries compete for each key.",
    forms=(
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, lowest(scores)), -2),
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, -torch.inf), -2),
        lambda scores, mask: torch.softmax(scores.masked_fill(~mask, -torch.inf), 1),
    ),
)
def over_the_queries(scores, mask):
    return right(scores, mask, dim=-2)


@task.fault(
    "C-SCORES-RETURNED",
    thinks="Once hidden scores are filled in, the work is done.",
    why="These are still scores: they are negative and sum to nothing in particular. The softmax "
    "is missing.",
    forms=(lambda scores, mask: scores.masked_fill(~mask, 0),),
)
def filled_scores(scores, mask):
    return scores.masked_fill(~mask, lowest(scores))


@task.fault(
    "C-VISIBLE-ONLY",
    thinks="`scores[mask]` leaves the visible scores, and those get a softmax.",
    why="It leaves them in one long row, without queries: all compete with all, and the table is "
    "gone. Weights need the shape of the scores.",
)
def picked_out(scores, mask):
    return torch.softmax(scores[mask.expand(scores.shape)], 0)


@task.fault(
    "C-HALF-EPSILON",
    thinks="A tiny number below the fraction bar keeps 0/0 away.",
    why="In float32 it does. In half precision 1e-9 is 0, so a dead row is 0/0 after all, in this "
    "dtype only. Ask whether the row is dead instead.",
    section="half-precision",
)
def tiny_number_below(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax(-1, keepdim=True)).exp().masked_fill(~mask, 0)
    return e / (e.sum(-1, keepdim=True) + 1e-9)


@task.fault(
    "C-CLAMPED",
    thinks="Cutting scores off at ±50 prevents every overflow.",
    why="It does, and it makes 9,999 and 10,000 equal. The softmax shifts scores by itself, and a "
    "shift keeps every difference.",
)
def clamped(scores, mask):
    return right(scores.clamp(-50, 50), mask)


@task.fault(
    "C-DETACHED",
    thinks="Masking is bookkeeping; no gradient has to pass.",
    why="The numbers are right, but the scores learn nothing: `.detach()`, `.data` or `no_grad` "
    "cut the way back, and the model never finds out where to look.",
)
def cut_off(scores, mask):
    return right(scores.detach(), mask)


@task.fault(
    "C-SUM-DETACHED",
    thinks="The sum below the fraction bar only normalizes, so it needs no gradient.",
    why="It is how keys compete: when one weight rises, the others fall. Without it every score "
    "learns as if it were alone. The weights are right, their gradient is not.",
)
def sum_without_gradient(scores, mask):
    filled = scores.masked_fill(~mask, lowest(scores))
    e = (filled - filled.amax(-1, keepdim=True).detach()).exp().masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True).detach()
    return e / total.masked_fill(total == 0, 1)


@task.fault(
    "C-FLOAT32-RETURNED",
    thinks="Computing in float32 is always safe.",
    why="Inside, perhaps. But the weights leave as float32 although the scores came in another "
    "dtype, and the next matrix product refuses to mix the two.",
    section="half-precision",
)
def leaves_as_float32(scores, mask):
    return right(scores.float(), mask)


@task.fault(
    "C-FLOAT32-INSIDE",
    thinks="Inside I compute in float32, and at the end I give back the dtype that came.",
    why="For half precision that is a good idea. But a caller with float64 loses half of the "
    "digits, and the dtype does not tell.",
    section="half-precision",
)
def detour_through_float32(scores, mask):
    return right(scores.float(), mask).to(scores.dtype)


_masks = {}


@task.fault(
    "K-STALE",
    thinks="The mask of a batch is always the same, so I keep the first of each shape.",
    why="The next batch has other sentences and other padding. The first call is right, and later "
    "ones hide what was padding then.",
    section="both-masks",
)
def first_mask_kept(scores, mask):
    if mask.shape not in _masks:
        _masks[mask.shape] = mask
    return right(scores, _masks[mask.shape])


@task.fault(
    "C-ANY-QUERY",
    thinks="Both error and cure are the keys: a key that some query may see is visible.",
    why="A mask has a row for each query. You merge the rows, and so a later word that the last "
    "query may see is shown to the first.",
    section="causal",
)
def visible_to_somebody(scores, mask):
    if mask.ndim > 1:
        mask = mask.any(-2, keepdim=True)
    return right(scores, mask)

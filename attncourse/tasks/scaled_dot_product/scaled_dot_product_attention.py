"""scaled_dot_product_attention."""

import math

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.scaled_dot_product._faults import dot_products, scaled

# In float64, d = 9: its root has no rounding, however it was computed.
DOUBLE = {"dtype": torch.float64, "d": 9}


def attention_inputs(rng, *batch, q=4, k=5, d=7, v=6, mask=None, dtype=torch.float32):
    return {
        "query": normal(rng, *batch, q, d, dtype=dtype),
        "key": normal(rng, *batch, k, d, dtype=dtype),
        "value": normal(rng, *batch, k, v, dtype=dtype),
        "mask": mask,
    }


def large_attention(rng, q=3, k=4, d=4, mask=None, size=1e4):
    """Scores near ±`size` after scaling, all of them whole numbers."""
    query = torch.zeros(q, d)
    query[:, 0] = 2.0  # √d = 2, so that scores are key[:, 0]
    key = torch.zeros(k, d)
    key[:, 0] = size + torch.randperm(k, generator=rng, device="cpu").to(torch.float32)
    return {"query": query, "key": key, "value": normal(rng, k, 3), "mask": mask}


def far_apart(rng):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    inputs = large_attention(rng)
    inputs["query"] *= torch.tensor([[1.0], [0.0], [-1.0]])
    return inputs


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    inputs = large_attention(rng, mask=mixed_mask(rng, 1, 4), size=0.0)
    inputs["key"][:, 0] += high * ~inputs["mask"][0]
    return inputs


def attention_traits(answer):
    inputs = attention_inputs(torch.Generator().manual_seed(0), 3)
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    return {"differs from call to call": not torch.equal(*outputs)}


def attention_probes(rng):
    return {
        "plain": attention_inputs(rng, 2, 3),
        "square": attention_inputs(rng, 4, 4, q=4, k=4, d=4, v=4),
        "flat": attention_inputs(rng, q=3, k=5, d=2, v=4),
        "one batch axis": attention_inputs(rng, 3, q=4, k=5, d=9, v=2),
        "mask": attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)),
        "causal": attention_inputs(rng, 2, q=5, k=5, d=3, v=4, mask=causal(5)),
        "padding": attention_inputs(rng, 3, 2, mask=mixed_mask(rng, 3, 1, 1, 5)),
        "dead row": attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)),
        "large": large_attention(rng),
        "large negative, masked": large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0),
        "double": attention_inputs(rng, 2, **DOUBLE),
        "rows far apart": far_apart(rng),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def attention_small(rng):
    sizes = ((1, 1, 1, 1), (1, 2, 1, 1), (1, 2, 2, 1), (2, 2, 1, 1), (2, 2, 2, 1), (2, 3, 2, 2))

    def example(q, k, d, v, mask=None):
        return {
            "query": integers(rng, q, d),
            "key": integers(rng, k, d),
            "value": integers(rng, k, v, low=0, high=9),
            "mask": mask,
        }

    for size in sizes:
        for _ in range(4):
            yield example(*size)
    for q, k, d, v in sizes[1:]:
        for _ in range(4):
            mask = torch.rand(q, k, generator=rng, device="cpu") > 0.5
            mask[:, 0] |= ~mask.any(-1)
            yield example(q, k, d, v, mask)
    yield example(1, 2, 1, 1, torch.tensor([[False, False]]))
    yield example(2, 2, 1, 1, torch.tensor([[True, False], [False, False]]))
    yield {name: value[None] for name, value in example(2, 2, 1, 1).items() if name != "mask"}
    for size in (100.0, 1e4, -1e5):
        yield {
            "query": torch.tensor([[1.0]]),
            "key": torch.tensor([[size], [size + 1]]),
            "value": torch.tensor([[1.0], [2.0]]),
            "mask": None if size > 0 else torch.tensor([[True, False]]),
        }


def attention_maps(rng):
    words = {"q": 3, "k": 3, "d": 4, "v": 2}
    moved = ("key", "value")
    return [
        ("two sentences of three words", attention_inputs(rng, 2, **words), moved),
        (
            "two sentences of three words, causal mask",
            attention_inputs(rng, 2, **words, mask=causal(3)),
            moved,
        ),
    ]


task = Task(
    reference.scaled_dot_product_attention,
    number=2,
    returns=("output", "weights"),
    difficulty=2,
    minutes=25,
    section="the-code",
    hints=(
        "Follow the five steps of the chapter: scores, scale, mask, softmax, average. Write "
        "the axes of every tensor beside its line: query (… q d), key (… k d), value (… k v).",
        "Scores have one row per query and one column per key; `d` is summed away. A row is a "
        "competition between keys. A masked key must lose before the competition, not after; "
        "and a row in which everybody is masked has to end as zeros.",
        "scores = einsum over d, divided by the root of d; where the mask is False, fill in "
        "the lowest number the dtype has; softmax over the last axis; where the mask is "
        "False, set the weights to 0; output = einsum over k; return both.",
    ),
    probes=attention_probes,
    differentiated=("plain", "mask", "dead row"),
    small=attention_small,
    maps=attention_maps,
    traits=attention_traits,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_an_output_and_the_weights(answer, rng):
    inputs = attention_inputs(rng, 2, 3)
    output, weights = answer(inputs)
    for name, tensor, shape in (
        ("output", output, (2, 3, 4, 6)),
        ("weights", weights, (2, 3, 4, 5)),
    ):
        if tensor.shape != shape:
            axes = "(… q v)" if name == "output" else "(… q k)"
            raise Failure(
                f"{name} has shape {shape_of(tensor)}; "
                f"expected {axes} = {shape_of(torch.empty(shape))}.",
                inputs,
            )
        if tensor.dtype != torch.float32:
            raise Failure(f"{name} has dtype {tensor.dtype}; the inputs were float32.", inputs)


@task.check(1)
def every_row_of_weights_sums_to_one(answer, rng):
    inputs = attention_inputs(rng, 2, 3)
    _, weights = answer(inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)


@task.check(1)
def the_output_averages_the_values_by_the_weights(answer, rng):
    inputs = attention_inputs(rng, 3)
    output, weights = answer(inputs)
    if weights.shape != (3, 4, 5):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (3 4 5).", inputs)
    compare("output", output, weights @ inputs["value"], inputs)


@task.check(2)
def weights_and_output_match_the_formula(answer, rng):
    answer.matches(attention_inputs(rng, 3))
    answer.matches(attention_inputs(rng, 4, q=4, k=4, d=4, v=4))
    answer.matches(attention_inputs(rng, 2, d=33, v=2))
    answer.matches(attention_inputs(rng, 2, q=1, k=1, d=1, v=1))
    answer.matches(attention_inputs(rng, 2, **DOUBLE))
    turned = attention_inputs(rng, 2)  # the same numbers, not contiguous
    turned |= {name: turned[name].mT.contiguous().mT for name in ("query", "key", "value")}
    answer.matches(turned)


@task.check(1)
def any_leading_axes_work(answer, rng):
    answer.matches(attention_inputs(rng))
    answer.matches(attention_inputs(rng, 2, 3))
    answer.matches(attention_inputs(rng, 2, 1, 3))


@task.check(1)
def large_scores_stay_finite(answer, rng):
    answer.matches(large_attention(rng), tolerance=5e-3)
    answer.matches(large_attention(rng, size=-1e4), tolerance=5e-3)
    answer.matches(far_apart(rng), tolerance=5e-3)


@task.check(1)
def a_masked_key_gets_no_weight(answer, rng):
    answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)))
    answer.matches(attention_inputs(rng, 2, q=5, k=5, mask=causal(5)))
    answer.matches(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5), **DOUBLE))
    masked = large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0)
    answer.matches(masked, tolerance=5e-3)
    for high in (300.0, 3e5):  # hidden keys with by far the best scores
        answer.matches(hidden_winner(rng, high))
    inputs = attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5))
    _, weights = answer(inputs)
    if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
        raise Failure("A hidden key keeps a little weight.", inputs, got=weights)


@task.check(1)
def a_mask_may_broadcast(answer, rng):
    answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 4, 5)))
    answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 1, 1, 5)))
    answer.matches(attention_inputs(rng, 3, mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 3, 4, 5)))
    queries = torch.ones(4, 1, dtype=torch.bool)  # (q 1)
    answer.matches(attention_inputs(rng, 2, mask=queries))
    everything = torch.ones(4, 5, dtype=torch.bool)
    answer.matches(attention_inputs(rng, 3, mask=everything))


@task.check(1)
def a_query_with_nothing_to_attend_to_gets_zeros(answer, rng):
    inputs = attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5))
    answer.matches(inputs, gradient=True)
    answer.matches(attention_inputs(rng, 2, mask=dead_mask(rng, 4, 5)))
    empty_sentence = mixed_mask(rng, 3, 1, 5)
    empty_sentence[1] = False
    answer.matches(attention_inputs(rng, 3, mask=empty_sentence), gradient=True)
    queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
    answer.matches(attention_inputs(rng, 2, mask=queries))


@task.check(1)
def gradients_reach_query_key_and_value(answer, rng):
    answer.gradients_match(attention_inputs(rng, 2, 3))
    answer.gradients_match(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, attention_inputs(rng, 3))
    moves_nothing(answer, attention_inputs(rng, 3, mask=mixed_mask(rng, 4, 5)))


# --- faults ---------------------------------------------------------------------------------------


def masked_softmax(scores, mask, dim=-1):
    if mask is None:
        return torch.softmax(scores, dim)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim).masked_fill(~mask, 0)


def attend(scores, value, mask):
    weights = masked_softmax(scores, mask)
    return weights @ value, weights


@task.fault(
    "D-NO-SCALE",
    thinks="Softmax normalizes anyway, so the factor 1/√d makes no difference.",
    why="It normalizes sums, not differences. Unscaled scores have variance d, so for wide vectors "
    "one key takes nearly all the weight and gradients vanish.",
    section="why-scale",
)
def no_scale(query, key, value, mask=None):
    return attend(dot_products(query, key), value, mask)


@task.fault(
    "D-SCALE-DK",
    thinks="Scores are divided by d, the width of a key.",
    why="The variance of a score is d, so its typical size is the root of d. Dividing by all of d "
    "makes the scores tiny and the weights nearly uniform.",
    section="why-scale",
)
def scale_by_width(query, key, value, mask=None):
    return attend(dot_products(query, key) / query.shape[-1], value, mask)


@task.fault(
    "D-SCALE-DV",
    thinks="The d under the root is the width of a value.",
    why="Scores are dot products of queries and keys; values have not entered yet. The two widths "
    "often agree, which is why this hides so well.",
    section="why-scale",
)
def scale_by_value_width(query, key, value, mask=None):
    return attend(dot_products(query, key) / math.sqrt(value.shape[-1]), value, mask)


@task.fault(
    "D-SCALE-KEYS",
    thinks="The more keys there are, the more the scores must be damped: √k.",
    why="Each score is one dot product, a sum over d features; the number of keys does not enter "
    "it. The size under the root must be the length of that sum.",
    section="why-scale",
)
def scale_by_number_of_keys(query, key, value, mask=None):
    return attend(dot_products(query, key) / math.sqrt(key.shape[-2]), value, mask)


@task.fault(
    "D-SCALE-DMODEL",
    thinks="The scale is the root of the whole model width, all heads together.",
    why="Each head computes its own dot products, over its own d features. Only that d decides "
    "how far its scores spread.",
    section="why-scale",
)
def scale_by_model_width(query, key, value, mask=None):
    heads = query.shape[1] if query.ndim == 4 else 1
    return attend(dot_products(query, key) / math.sqrt(heads * query.shape[-1]), value, mask)


@task.fault(
    "D-SCALE-AFTER",
    thinks="First softmax, then scale.",
    why="Then the rows no longer sum to one, and softmax has already saturated on the large "
    "scores. The scale has to act before the competition.",
    section="why-scale",
)
def scale_after_softmax(query, key, value, mask=None):
    weights = masked_softmax(dot_products(query, key), mask) / math.sqrt(query.shape[-1])
    return weights @ value, weights


@task.fault(
    "D-SCALE-TIMES",
    thinks="The scores are multiplied by √d.",
    why="Scores already grow with the width; multiplying makes it worse, and one key takes all the "
    "weight. The factor is there to undo the growth.",
    section="why-scale",
)
def scale_times(query, key, value, mask=None):
    return attend(dot_products(query, key) * math.sqrt(query.shape[-1]), value, mask)


@task.fault(
    "D-SCALE-FOURTH-ROOT",
    thinks="Query and key share the scale, so one of them is divided by the fourth root of d.",
    why="Sharing works if both get the fourth root: their product then has the whole root. With "
    "only one of them, scores are still too large for wide vectors.",
    section="why-scale",
)
def scale_by_fourth_root(query, key, value, mask=None):
    return attend(dot_products(query, key) / query.shape[-1] ** 0.25, value, mask)


@task.fault(
    "D-SOFTMAX-DIM",
    thinks="Softmax over the queries is the same as over the keys.",
    why="Then each key hands out its weight among the queries: columns sum to one, rows do not. "
    "A query must divide its own attention among the keys.",
    section="five-steps",
)
def softmax_over_queries(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask, dim=-2)
    return weights @ value, weights


@task.fault(
    "D-SOFTMAX-AXIS-1",
    thinks="Softmax goes over axis 1.",
    why="Counted from the front, axis 1 is the keys only without a batch. With a batch it is "
    "the queries or the heads. Count from the back: the keys are always last.",
    section="leading-axes",
)
def softmax_over_axis_one(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask, dim=1)
    return weights @ value, weights


@task.fault(
    "D-SOFTMAX-ALL",
    thinks="All weights of one sentence together sum to one.",
    why="Each query asks its own question and spends its own budget of one. Here the queries "
    "compete with each other, and rows sum to less than one.",
    section="five-steps",
)
def softmax_over_the_matrix(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        mask = mask.expand(scores.shape).flatten(-2)
    weights = masked_softmax(scores.flatten(-2), mask).view(scores.shape)
    return weights @ value, weights


@task.fault(
    "D-TRANSPOSE-T",
    thinks="`key.T` swaps the last two axes.",
    why="It reverses all axes, which is the same only for a plain matrix. With a batch in front, "
    "swap the two axes you mean, counted from the back.",
    section="leading-axes",
)
def transpose_everything(query, key, value, mask=None):
    reversed_key = key.permute(*reversed(range(key.ndim)))  # what .T does, without its warning
    return attend(query @ reversed_key / math.sqrt(query.shape[-1]), value, mask)


def with_bmm(query, key, value, mask=None):
    scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.shape[-1])
    return attend(scores, value, mask)


@task.fault(
    "D-TRANSPOSE-12",
    thinks="The axes to swap are number 1 and number 2.",
    why="That holds for (batch k d). With heads in front, axes 1 and 2 are heads and keys; "
    "without a batch there is no axis 2. Count from the back.",
    section="leading-axes",
    forms=(with_bmm,),
)
def transpose_one_and_two(query, key, value, mask=None):
    return attend(query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]), value, mask)


@task.fault(
    "D-RESHAPE-KEY",
    thinks="Reshaping key from (k d) to (d k) transposes it.",
    why="A reshape only cuts the same list of numbers into other rows; it never moves a number. "
    "The shape fits, the content is scrambled.",
    section="leading-axes",
)
def reshape_key(query, key, value, mask=None):
    turned = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2])
    return attend(query @ turned / math.sqrt(query.shape[-1]), value, mask)


def naive_attention_by_product(query, key, value, mask=None):
    e = scaled(query, key).exp()
    if mask is not None:
        e = e * mask
    weights = e / e.sum(-1, keepdim=True)
    return weights @ value, weights


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="The formula says exp over the sum of exps, so that is what I compute.",
    why="With scores above 88, exp is infinite in float32 and the weights are NaN. Use a softmax "
    "that shifts the scores first; the previous task has it.",
    section="stable-softmax",
    forms=(naive_attention_by_product,),
)
def naive_attention(query, key, value, mask=None):
    e = scaled(query, key).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    weights = e / total.masked_fill(total == 0, 1)
    return weights @ value, weights


@task.fault(
    "D-GLOBAL-MAX",
    thinks="One shift for the whole table of scores, such as its largest, is enough to be safe.",
    why="It may stop overflow, but the row of a query far below becomes all zeros after exp, and "
    "0/0 is NaN. Each query needs its own shift.",
    section="stable-softmax",
)
def one_shift_for_all(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (scores - scores.max()).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    dead = torch.zeros_like(total, dtype=torch.bool)
    if mask is not None:
        dead = dead | ~mask.any(-1, keepdim=True)
    weights = e / total.masked_fill(dead, 1)
    return weights @ value, weights


@task.fault(
    "D-HARD-ATTENTION",
    thinks="A query takes the value of the best key.",
    why="That is an ordinary look-up. The output jumps when another key wins, and no gradient can "
    "say how to improve a query. Attention averages all values.",
    section="soft-lookup",
)
def hard_attention(query, key, value, mask=None):
    soft = masked_softmax(scaled(query, key), mask)
    best = (soft == soft.amax(-1, keepdim=True)) & (soft > 0)
    weights = best.to(query.dtype) / best.sum(-1, keepdim=True).clamp(min=1) + 0 * soft
    return weights @ value, weights


@task.fault(
    "D-KEY-AS-VALUE",
    thinks="The weights average the keys.",
    why="Keys are for being found, values for being read: the label of a drawer and its content. "
    "Your output never reads `value`.",
    section="soft-lookup",
)
def keys_as_values(query, key, value, mask=None):
    return attend(scaled(query, key), key, mask)


@task.fault(
    "D-SCORES-AS-WEIGHTS",
    thinks="The second result is the matrix of scores.",
    why="Scores are what enters the softmax; weights are what leaves it. A heat map of scores has "
    "rows that sum to nothing in particular. Return the weights.",
    section="five-steps",
)
def returns_scores(query, key, value, mask=None):
    scores = scaled(query, key)
    output, _ = attend(scores, value, mask)
    return output, scores


@task.fault(
    "D-NO-SOFTMAX",
    thinks="The scores themselves are the weights.",
    why="Scores are negative as often as positive and sum to anything. Between score and average, "
    "something has to turn them into shares of one.",
    section="five-steps",
)
def no_softmax(query, key, value, mask=None):
    weights = scaled(query, key)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


@task.fault(
    "D-SWAPPED-RESULTS",
    thinks="The function returns the weights and the output.",
    why="Both are right, in the other order: first the output, then the weights.",
)
def swapped_results(query, key, value, mask=None):
    output, weights = attend(scaled(query, key), value, mask)
    return weights, output


@task.fault(
    "D-OUTPUT-ONLY",
    thinks="Only the output is needed.",
    why="The weights are half of the promise: without them nobody can see where a query looked. "
    "Return the pair (output, weights).",
)
def output_only(query, key, value, mask=None):
    return attend(scaled(query, key), value, mask)[0]


@task.fault(
    "D-DROPOUT-PLACE",
    thinks="Attention includes dropout, so some weights are set to zero at random.",
    why="Dropout belongs to training, and to the layer that owns this function. The weights that "
    "are returned must be the ones before any dropout, or heat maps lie.",
)
def dropped_weights(query, key, value, mask=None):
    weights = torch.dropout(masked_softmax(scaled(query, key), mask), 0.1, True)
    return weights @ value, weights


@task.fault(
    "D-DETACHED-WEIGHTS",
    thinks="The weights are a by-product; only values need a gradient.",
    why="Then query and key never learn: the gradient that says 'look elsewhere' flows through the "
    "weights. Something like `.detach()` or `no_grad` cuts it.",
    section="gradients",
)
def detached_weights(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask).detach()
    return weights @ value, weights


@task.fault(
    "D-COSINE",
    thinks="Similarity of two vectors means the cosine between them.",
    why="A dot product keeps the lengths: a long key can shout, a short query can be undecided. "
    "The cosine throws that away.",
    section="five-steps",
)
def cosine_scores(query, key, value, mask=None):
    unit = torch.nn.functional.normalize
    return attend(dot_products(unit(query, dim=-1), unit(key, dim=-1)), value, mask)


@task.fault(
    "D-DISTANCE",
    thinks="The score is the distance between query and key.",
    why="A distance is small when two vectors agree, so the worst key would win. A score has to "
    "grow with agreement.",
    section="five-steps",
)
def distance_scores(query, key, value, mask=None):
    return attend(torch.cdist(query, key), value, mask)


@task.fault(
    "D-SELF-SCORES",
    thinks="Scores compare the keys with each other.",
    why="A score compares one query with one key. Your scores never read `query`, so every "
    "question would get the same answer.",
    section="soft-lookup",
)
def scores_without_query(query, key, value, mask=None):
    return attend(scaled(key, key), value, mask)


@task.fault(
    "D-FLOAT32",
    thinks="Computing in float32 is always fine.",
    why="The inputs came as float64 and the results leave as float32. The caller loses half of the "
    "digits, and the next matrix product refuses to mix the two.",
)
def detour_through_float32(query, key, value, mask=None):
    return attend(scaled(query.float(), key.float()), value.float(), mask)


@task.fault(
    "D-INPLACE",
    thinks="Scaling the query in place saves memory.",
    why="`query` belongs to the caller, who uses it again: after your call it has shrunk. "
    "`a /= b` edits the tensor itself; `a = a / b` makes a new one.",
)
def edits_its_query(query, key, value, mask=None):
    query /= math.sqrt(query.shape[-1])
    return attend(dot_products(query, key), value, mask)


@task.fault(
    "M-POLARITY",
    thinks="True in the mask means: hide this key.",
    why="In some libraries it does. Here, as in `F.scaled_dot_product_attention`, True means this "
    "query may attend to this key. Your answer looks exactly where it must not.",
    section="masks",
)
def opposite_mask(query, key, value, mask=None):
    return attend(scaled(query, key), value, None if mask is None else ~mask)


@task.fault(
    "M-IGNORED",
    thinks="The mask can be left for later.",
    why="Your weights are the same with and without a mask: padding and future words are read like "
    "any other.",
    section="masks",
)
def ignores_mask(query, key, value, mask=None):
    return attend(scaled(query, key), value, None)


@task.fault(
    "M-DEAD-ROW",
    thinks="Filling hidden scores with −∞ settles every case.",
    why="A query that may attend to nothing has a row of −∞ only, and its softmax is 0/0: NaN, "
    "which spreads through the whole model. Such a row must give zeros.",
    section="masks",
)
def nan_on_dead_rows(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights @ value, weights


@task.fault(
    "M-DEAD-ROW-UNIFORM",
    thinks="A very negative fill like −1e9 hides a key in every case.",
    why="Not if all keys of a row are hidden: then all are equally low, and softmax spreads the "
    "weight evenly over everything forbidden. Such a row must give zeros.",
    section="masks",
)
def uniform_on_dead_rows(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    return weights @ value, weights


@task.fault(
    "M-DEAD-ROW-GRADIENT",
    thinks="Replacing NaN by 0 at the end repairs a row with nothing to attend to.",
    why="It repairs the values. The NaN inside is still there, and on the way back it turns the "
    "gradients into NaN. Keep it from arising.",
    section="masks",
)
def nan_gradients_on_dead_rows(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        scores = scores + bias
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights @ value, weights


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="Multiplying the weights by the mask after the softmax hides the keys.",
    why="The hidden keys have already taken their share: rows now sum to less than one. Hide them "
    "before they compete.",
    section="masks",
)
def mask_after_softmax(query, key, value, mask=None):
    weights = torch.softmax(scaled(query, key), -1)
    if mask is not None:
        weights = weights * mask
    return weights @ value, weights


@task.fault(
    "M-AFTER-RENORMALIZED",
    thinks="After the softmax I can mask the weights and divide by their new sum.",
    why="On paper that is the same. But a hidden key with a high score has pressed all visible "
    "weights to zero, and 0/0 cannot bring them back. Hide keys before they compete.",
    section="masks",
)
def renormalizes_after_softmax(query, key, value, mask=None):
    weights = torch.softmax(scaled(query, key), -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
    return weights @ value, weights


@task.fault(
    "M-ADD-BOOL",
    thinks="Adding the mask to the scores hides the keys.",
    why="True counts as 1 and False as 0, so you add 1 to the allowed scores and hide nothing. An "
    "additive mask would have to hold 0 and −∞.",
    section="masks",
)
def adds_boolean_mask(query, key, value, mask=None):
    scores = scaled(query, key)
    return attend(scores if mask is None else scores + mask, value, None)


@task.fault(
    "M-INF-TIMES-ZERO",
    thinks="(1 − mask) · −∞ is 0 where the mask is 1.",
    why="0 · ∞ is NaN in floating point, so every allowed score is destroyed. Choose between two "
    "numbers instead of multiplying.",
    section="masks",
)
def infinity_times_zero(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is not None:
        scores = scores + (1 - mask.to(scores.dtype)) * -torch.inf
    return attend(scores, value, None)


@task.fault(
    "M-FILL-ZERO",
    thinks="A hidden key gets score 0.",
    why="Score 0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish "
    "after exp, a score has to go all the way down.",
    section="masks",
)
def fills_with_zero(query, key, value, mask=None):
    scores = scaled(query, key)
    return attend(scores if mask is None else scores.masked_fill(~mask, 0), value, None)


def ten_thousand_subtracted(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is None:
        return attend(scores, value, None)
    weights = torch.softmax(scores - 1e4 * ~mask, -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return weights @ value, weights


@task.fault(
    "M-SMALL-FILL",
    thinks="−10,000 is as good as −∞.",
    why="Only while every real score lies above it. Where real scores reach −30,000, the hidden "
    "keys win. Use the lowest number the dtype has.",
    section="masks",
    forms=(ten_thousand_subtracted,),
)
def fill_that_is_not_low_enough(query, key, value, mask=None):
    scores = scaled(query, key)
    if mask is None:
        return attend(scores, value, None)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return weights @ value, weights


def mask_always_transposed(query, key, value, mask=None):
    return attend(scaled(query, key), value, None if mask is None else mask.mT)


@task.fault(
    "M-TRANSPOSED",
    thinks="Rows of the mask are keys and columns are queries.",
    why="Scores have a row per query and a column per key, and so has the mask. Turned around, a "
    "causal mask shows the future and hides the past.",
    section="masks",
    forms=(mask_always_transposed,),
)
def transposed_mask(query, key, value, mask=None):
    if mask is not None and mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]:
        mask = mask.transpose(-2, -1)
    return attend(scaled(query, key), value, mask)


@task.fault(
    "M-VALUES",
    thinks="Setting the hidden values to zero hides their keys.",
    why="A zero value still takes part with its weight and pulls the average toward zero; the "
    "others get too little. The competition itself must leave it out.",
    section="masks",
)
def masks_the_values(query, key, value, mask=None):
    weights = torch.softmax(scaled(query, key), -1)
    if mask is None:
        return weights @ value, weights
    return (weights * mask) @ value, weights


@task.fault(
    "M-MAPS-UNMASKED",
    thinks="The mask matters for the output; the weights are only for looking at.",
    why="Your output respects the mask, but the weights you return are computed without it, so the "
    "picture shows attention that never happened.",
    section="masks",
)
def returns_unmasked_weights(query, key, value, mask=None):
    output, _ = attend(scaled(query, key), value, mask)
    return output, torch.softmax(scaled(query, key), -1)


@task.fault(
    "M-ALWAYS-CAUSAL",
    thinks="Attention never looks ahead, so a causal mask is always in place.",
    why="Only a decoder must not look ahead, and then the caller passes a mask. Without one, every "
    "query may read every key.",
    section="masks",
)
def always_causal(query, key, value, mask=None):
    scores = scaled(query, key)
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return attend(scores, value, causal if mask is None else causal & mask)


@task.fault(
    "M-ONE-ROW",
    thinks="A key hidden from one query is hidden from all.",
    why="The mask has a row for every query, and rows differ. You let the first row speak for "
    "everybody.",
    section="masks",
)
def first_row_for_all(query, key, value, mask=None):
    return attend(scaled(query, key), value, None if mask is None else mask[..., :1, :])

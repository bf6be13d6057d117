"""Wrong answers of chapter 3. Ids D-… and M-… are the course catalogue's, C-… and V-… our own.

Each function below differs from a right answer in one thought. Everything else about it is right,
so that the judge can recognize that thought.
"""

import math

import torch

from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- softmax ------------------------------------------------------------------------------------


def exponentials(scores, dim):
    return (scores - scores.amax(dim, keepdim=True)).exp()


@wrong(
    "D-NAIVE-SOFTMAX",
    "softmax",
    thinks="The formula is exp over the sum of exps, so that is what I compute.",
    why="On paper yes. In float32 exp(89) is already infinite, and infinity over infinity is NaN. "
    "Something that changes no weight can be done to the scores first.",
    section="stable-softmax",
)
def naive_softmax(scores, dim=-1):
    return scores.exp() / scores.exp().sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-IGNORES-DIM",
    "softmax",
    thinks="Softmax runs over the last axis, always.",
    why="In attention it usually does, but the caller chooses: `dim` says which axis competes. "
    "Your weights are the same for every `dim`.",
    section="stable-softmax",
)
def softmax_last_axis(scores, dim=-1):
    e = exponentials(scores, -1)
    return e / e.sum(-1, keepdim=True)


@wrong(
    "D-SOFTMAX-ALL",
    "softmax",
    thinks="All weights together sum to one.",
    why="Each row is a competition of its own: every row sums to one. A sum without an axis lets "
    "all rows compete with each other, as the dependency map shows.",
    section="stable-softmax",
)
def softmax_over_everything(scores, dim=-1):
    e = (scores - scores.amax()).exp()
    return e / e.sum()


def softmax_of_rows_minus_flat_maximum(scores, dim=-1):
    e = (scores - scores.amax(dim)).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-KEEPDIM",
    "softmax",
    thinks="A sum or maximum along `dim` gives one number per row, and torch will match each row "
    "with its own.",
    why="That result has lost an axis. Broadcasting lines axes up from the right, so rows meet the "
    "wrong numbers; it only goes unnoticed where two lengths agree.",
    section="stable-softmax",
    variants=(softmax_of_rows_minus_flat_maximum,),
)
def softmax_without_keepdim(scores, dim=-1):
    e = exponentials(scores, dim)
    return e / e.sum(dim)


@wrong(
    "D-SOFTMAX-LOG",
    "softmax",
    thinks="The logarithm of the weights is as good as the weights, and more stable.",
    why="Log-weights are negative and sum to nothing in particular. An average needs the weights "
    "themselves.",
    section="stable-softmax",
)
def log_softmax(scores, dim=-1):
    shifted = scores - scores.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@wrong(
    "D-SOFTMAX-LINEAR",
    "softmax",
    thinks="Dividing each score by the sum of the scores makes weights.",
    why="Scores can be negative, and their sum can be zero. Something has to make them positive "
    "before they are divided.",
    section="stable-softmax",
)
def linear_normalization(scores, dim=-1):
    return scores / scores.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-RELU",
    "softmax",
    thinks="A negative score means no interest, so it gets weight zero.",
    why="A score has no zero point: add 5 to all of them and softmax gives the same weights. Only "
    "differences count, so no score is negative in itself.",
    section="stable-softmax",
)
def relu_normalization(scores, dim=-1):
    positive = scores.clamp(min=0)
    return positive / positive.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-SIGMOID",
    "softmax",
    thinks="Each score becomes a weight between 0 and 1 by itself.",
    why="Then nothing competes and rows do not sum to one. In softmax one weight can only grow "
    "if the others shrink.",
    section="stable-softmax",
)
def sigmoid_weights(scores, dim=-1):
    return scores.sigmoid()


@wrong(
    "D-SOFTMAX-HARD",
    "softmax",
    thinks="The largest score wins, so its weight is one and the others are zero.",
    why="That is a hard maximum. It has no useful gradient, and the runner-up is lost. Softmax "
    "is its smooth form: every score keeps some weight.",
    section="soft-lookup",
)
def hardmax(scores, dim=-1):
    best = scores == scores.amax(dim, keepdim=True)
    return best.to(scores.dtype) / best.sum(dim, keepdim=True) + 0 * scores


@wrong(
    "D-SOFTMAX-GLOBAL-MAX",
    "softmax",
    thinks="One shift for the whole table, such as its largest score, is enough to be safe.",
    why="It may stop overflow, but a row far below becomes all zeros after exp, and 0/0 is NaN. "
    "Each row needs its own shift.",
    section="stable-softmax",
)
def softmax_global_maximum(scores, dim=-1):
    e = (scores - scores.amax()).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-MEAN",
    "softmax",
    thinks="Any shift keeps the weights, so it does not matter what I subtract from a row.",
    why="On paper true. But if a score stays far above what you subtracted, its exp overflows. "
    "Which shift leaves no positive exponent?",
    section="stable-softmax",
)
def softmax_minus_mean(scores, dim=-1):
    e = (scores - scores.mean(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-MINUS",
    "softmax",
    thinks="The exponent carries a minus sign, as in a distance.",
    why="Then the smallest score wins. A score measures agreement: the larger it is, the larger "
    "its weight.",
    section="stable-softmax",
)
def softmin(scores, dim=-1):
    e = exponentials(-scores, dim)
    return e / e.sum(dim, keepdim=True)


def softmax_in_place_by_values(scores, dim=-1):
    scores -= scores.max(dim, keepdim=True).values
    e = scores.exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-INPLACE",
    "softmax",
    thinks="Subtracting in place saves memory and changes nothing else.",
    why="`scores` belongs to the caller, who sees it changed. `a -= b` edits the tensor itself; "
    "`a = a - b` makes a new one.",
    section="stable-softmax",
    variants=(softmax_in_place_by_values,),
)
def softmax_in_place(scores, dim=-1):
    scores -= scores.amax(dim, keepdim=True)
    e = scores.exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-INPLACE-GRAPH",
    "softmax",
    thinks="Editing a tensor that I made myself can do no harm.",
    why="The caller sees none of it, but autograd does: it kept that tensor to compute the "
    "gradient of exp, and finds other numbers in it. Make a new tensor instead of `/=` or `-=`.",
    section="gradients",
)
def softmax_divides_in_place(scores, dim=-1):
    e = exponentials(scores, dim)
    e /= e.sum(dim, keepdim=True)
    return e


@wrong(
    "D-SOFTMAX-PLUS-MAX",
    "softmax",
    thinks="The shift by the largest score is an addition.",
    why="Any shift keeps the weights, but this one doubles the exponents that were already too "
    "large. The shift should bring them down.",
    section="stable-softmax",
)
def softmax_plus_maximum(scores, dim=-1):
    e = (scores + scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-DETACH",
    "softmax",
    thinks="The numbers are right, so the answer is right.",
    why="The values are, but no gradient reaches the scores: `.detach()`, `.data`, `no_grad` or a "
    "detour through NumPy cut the graph, and such a model cannot learn where to look.",
    section="gradients",
)
def softmax_detached(scores, dim=-1):
    e = exponentials(scores.detach(), dim)
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-FLOAT32",
    "softmax",
    thinks="Computing in float32 is always fine.",
    why="Your weights are float32 although the scores came as float64: the caller loses half of "
    "the digits. Keep the dtype that came.",
    section="stable-softmax",
)
def softmax_float32(scores, dim=-1):
    e = exponentials(scores.float(), dim)
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-CLAMP",
    "softmax",
    thinks="Cutting scores off at a limit prevents overflow.",
    why="It does, and it makes 9,999 and 10,000 equal. A shift prevents overflow too, and keeps "
    "every difference.",
    section="stable-softmax",
)
def softmax_clamped(scores, dim=-1):
    e = scores.clamp(-50, 50).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-BASE",
    "softmax",
    thinks="Any base will do for the exponential.",
    why="Another base is another temperature: with base 2 every score counts ln 2 ≈ 0.69 times as "
    "much. Softmax means base e.",
    section="stable-softmax",
)
def softmax_base_two(scores, dim=-1):
    e = torch.exp2(scores - scores.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-OVER-MAX",
    "softmax",
    thinks="Dividing by the largest exponential normalizes a row.",
    why="Then the largest weight is one and the row sums to more. Weights are shares of a whole: "
    "what is the whole?",
    section="stable-softmax",
)
def softmax_over_maximum(scores, dim=-1):
    return exponentials(scores, dim)


@wrong(
    "D-SOFTMAX-L2",
    "softmax",
    thinks="Normalizing means dividing by the length of the vector.",
    why="Then the squares of a row sum to one, not the weights. An average needs weights whose "
    "plain sum is one.",
    section="stable-softmax",
)
def softmax_unit_length(scores, dim=-1):
    e = exponentials(scores, dim)
    return e / e.square().sum(dim, keepdim=True).sqrt()


@wrong(
    "D-SOFTMAX-DIVIDES-BY-MAX",
    "softmax",
    thinks="Dividing the scores by their maximum keeps exp small.",
    why="It does, but it also changes the differences, and the weights depend on nothing else. "
    "Adding or subtracting a number keeps differences; dividing does not.",
    section="stable-softmax",
)
def softmax_scores_over_maximum(scores, dim=-1):
    e = (scores / scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@wrong(
    "D-SOFTMAX-STANDARDIZE",
    "softmax",
    thinks="Scores should have mean 0 and variance 1 before the exponential.",
    why="The mean does no harm, but dividing by each row's own spread makes a clear winner and a "
    "near tie look alike. Softmax leaves differences as they are.",
    section="why-scale",
)
def softmax_standardized(scores, dim=-1):
    centered = scores - scores.mean(dim, keepdim=True)
    e = exponentials(centered / centered.square().mean(dim, keepdim=True).sqrt(), dim)
    return e / e.sum(dim, keepdim=True)


# --- scaled_dot_product_attention ---------------------------------------------------------------
# The right pieces, for wrong answers to put together.

ATTENTION = "scaled_dot_product_attention"


def dot_products(query, key):
    return query @ key.transpose(-2, -1)


def scaled(query, key):
    return dot_products(query, key) / math.sqrt(query.shape[-1])


def masked_softmax(scores, mask, dim=-1):
    if mask is None:
        return torch.softmax(scores, dim)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim).masked_fill(~mask, 0)


def attend(scores, value, mask):
    weights = masked_softmax(scores, mask)
    return weights @ value, weights


@wrong(
    "D-NO-SCALE",
    ATTENTION,
    thinks="Softmax normalizes anyway, so the factor 1/√d makes no difference.",
    why="It normalizes sums, not differences. Unscaled scores have variance d, so for wide vectors "
    "one key takes nearly all the weight and gradients vanish.",
    section="why-scale",
)
def no_scale(query, key, value, mask=None):
    return attend(dot_products(query, key), value, mask)


@wrong(
    "D-SCALE-DK",
    ATTENTION,
    thinks="Scores are divided by d, the width of a key.",
    why="The variance of a score is d, so its typical size is the root of d. Dividing by all of d "
    "makes the scores tiny and the weights nearly uniform.",
    section="why-scale",
)
def scale_by_width(query, key, value, mask=None):
    return attend(dot_products(query, key) / query.shape[-1], value, mask)


@wrong(
    "D-SCALE-DV",
    ATTENTION,
    thinks="The d under the root is the width of a value.",
    why="Scores are dot products of queries and keys; values have not entered yet. The two widths "
    "often agree, which is why this hides so well.",
    section="why-scale",
)
def scale_by_value_width(query, key, value, mask=None):
    return attend(dot_products(query, key) / math.sqrt(value.shape[-1]), value, mask)


@wrong(
    "D-SCALE-KEYS",
    ATTENTION,
    thinks="The more keys there are, the more the scores must be damped: √k.",
    why="Each score is one dot product, a sum over d features; the number of keys does not enter "
    "it. The size under the root must be the length of that sum.",
    section="why-scale",
)
def scale_by_number_of_keys(query, key, value, mask=None):
    return attend(dot_products(query, key) / math.sqrt(key.shape[-2]), value, mask)


@wrong(
    "D-SCALE-DMODEL",
    ATTENTION,
    thinks="The scale is the root of the whole model width, all heads together.",
    why="Each head computes its own dot products, over its own d features. Only that d decides "
    "how far its scores spread.",
    section="why-scale",
)
def scale_by_model_width(query, key, value, mask=None):
    heads = query.shape[1] if query.ndim == 4 else 1
    return attend(dot_products(query, key) / math.sqrt(heads * query.shape[-1]), value, mask)


@wrong(
    "D-SCALE-AFTER",
    ATTENTION,
    thinks="First softmax, then scale.",
    why="Then the rows no longer sum to one, and softmax has already saturated on the large "
    "scores. The scale has to act before the competition.",
    section="why-scale",
)
def scale_after_softmax(query, key, value, mask=None):
    weights = masked_softmax(dot_products(query, key), mask) / math.sqrt(query.shape[-1])
    return weights @ value, weights


@wrong(
    "D-SCALE-TIMES",
    ATTENTION,
    thinks="The scores are multiplied by √d.",
    why="Scores already grow with the width; multiplying makes it worse, and one key takes all the "
    "weight. The factor is there to undo the growth.",
    section="why-scale",
)
def scale_times(query, key, value, mask=None):
    return attend(dot_products(query, key) * math.sqrt(query.shape[-1]), value, mask)


@wrong(
    "D-SCALE-FOURTH-ROOT",
    ATTENTION,
    thinks="Query and key share the scale, so one of them is divided by the fourth root of d.",
    why="Sharing works if both get the fourth root: their product then has the whole root. With "
    "only one of them, scores are still too large for wide vectors.",
    section="why-scale",
)
def scale_by_fourth_root(query, key, value, mask=None):
    return attend(dot_products(query, key) / query.shape[-1] ** 0.25, value, mask)


@wrong(
    "D-SOFTMAX-DIM",
    ATTENTION,
    thinks="Softmax over the queries is the same as over the keys.",
    why="Then each key hands out its weight among the queries: columns sum to one, rows do not. "
    "A query must divide its own attention among the keys.",
    section="five-steps",
)
def softmax_over_queries(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask, dim=-2)
    return weights @ value, weights


@wrong(
    "D-SOFTMAX-AXIS-1",
    ATTENTION,
    thinks="Softmax goes over axis 1.",
    why="Counted from the front, axis 1 is the keys only without a batch. With a batch it is "
    "the queries or the heads. Count from the back: the keys are always last.",
    section="leading-axes",
)
def softmax_over_axis_one(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask, dim=1)
    return weights @ value, weights


@wrong(
    "D-SOFTMAX-ALL",
    ATTENTION,
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


@wrong(
    "D-TRANSPOSE-T",
    ATTENTION,
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


@wrong(
    "D-TRANSPOSE-12",
    ATTENTION,
    thinks="The axes to swap are number 1 and number 2.",
    why="That holds for (batch k d). With heads in front, axes 1 and 2 are heads and keys; "
    "without a batch there is no axis 2. Count from the back.",
    section="leading-axes",
    variants=(with_bmm,),
)
def transpose_one_and_two(query, key, value, mask=None):
    return attend(query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]), value, mask)


@wrong(
    "D-RESHAPE-KEY",
    ATTENTION,
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


@wrong(
    "D-NAIVE-SOFTMAX",
    ATTENTION,
    thinks="The formula says exp over the sum of exps, so that is what I compute.",
    why="With scores above 88, exp is infinite in float32 and the weights are NaN. Use a softmax "
    "that shifts the scores first; the previous task has it.",
    section="stable-softmax",
    variants=(naive_attention_by_product,),
)
def naive_attention(query, key, value, mask=None):
    e = scaled(query, key).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    weights = e / total.masked_fill(total == 0, 1)
    return weights @ value, weights


@wrong(
    "D-GLOBAL-MAX",
    ATTENTION,
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


@wrong(
    "D-HARD-ATTENTION",
    ATTENTION,
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


@wrong(
    "D-KEY-AS-VALUE",
    ATTENTION,
    thinks="The weights average the keys.",
    why="Keys are for being found, values for being read: the label of a drawer and its content. "
    "Your output never reads `value`.",
    section="soft-lookup",
)
def keys_as_values(query, key, value, mask=None):
    return attend(scaled(query, key), key, mask)


@wrong(
    "D-SCORES-AS-WEIGHTS",
    ATTENTION,
    thinks="The second result is the matrix of scores.",
    why="Scores are what enters the softmax; weights are what leaves it. A heat map of scores has "
    "rows that sum to nothing in particular. Return the weights.",
    section="five-steps",
)
def returns_scores(query, key, value, mask=None):
    scores = scaled(query, key)
    output, _ = attend(scores, value, mask)
    return output, scores


@wrong(
    "D-NO-SOFTMAX",
    ATTENTION,
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


@wrong(
    "D-SWAPPED-RESULTS",
    ATTENTION,
    thinks="The function returns the weights and the output.",
    why="Both are right, in the other order: first the output, then the weights.",
    section="the-code",
)
def swapped_results(query, key, value, mask=None):
    output, weights = attend(scaled(query, key), value, mask)
    return weights, output


@wrong(
    "D-OUTPUT-ONLY",
    ATTENTION,
    thinks="Only the output is needed.",
    why="The weights are half of the promise: without them nobody can see where a query looked. "
    "Return the pair (output, weights).",
    section="the-code",
)
def output_only(query, key, value, mask=None):
    return attend(scaled(query, key), value, mask)[0]


@wrong(
    "D-DROPOUT-PLACE",
    ATTENTION,
    thinks="Attention includes dropout, so some weights are set to zero at random.",
    why="Dropout belongs to training, and to the layer that owns this function. The weights that "
    "are returned must be the ones before any dropout, or heat maps lie.",
    section="the-code",
)
def dropped_weights(query, key, value, mask=None):
    weights = torch.dropout(masked_softmax(scaled(query, key), mask), 0.1, True)
    return weights @ value, weights


@wrong(
    "D-DETACHED-WEIGHTS",
    ATTENTION,
    thinks="The weights are a by-product; only values need a gradient.",
    why="Then query and key never learn: the gradient that says 'look elsewhere' flows through the "
    "weights. Something like `.detach()` or `no_grad` cuts it.",
    section="gradients",
)
def detached_weights(query, key, value, mask=None):
    weights = masked_softmax(scaled(query, key), mask).detach()
    return weights @ value, weights


@wrong(
    "D-COSINE",
    ATTENTION,
    thinks="Similarity of two vectors means the cosine between them.",
    why="A dot product keeps the lengths: a long key can shout, a short query can be undecided. "
    "The cosine throws that away.",
    section="five-steps",
)
def cosine_scores(query, key, value, mask=None):
    unit = torch.nn.functional.normalize
    return attend(dot_products(unit(query, dim=-1), unit(key, dim=-1)), value, mask)


@wrong(
    "D-DISTANCE",
    ATTENTION,
    thinks="The score is the distance between query and key.",
    why="A distance is small when two vectors agree, so the worst key would win. A score has to "
    "grow with agreement.",
    section="five-steps",
)
def distance_scores(query, key, value, mask=None):
    return attend(torch.cdist(query, key), value, mask)


@wrong(
    "D-SELF-SCORES",
    ATTENTION,
    thinks="Scores compare the keys with each other.",
    why="A score compares one query with one key. Your scores never read `query`, so every "
    "question would get the same answer.",
    section="soft-lookup",
)
def scores_without_query(query, key, value, mask=None):
    return attend(scaled(key, key), value, mask)


@wrong(
    "D-FLOAT32",
    ATTENTION,
    thinks="Computing in float32 is always fine.",
    why="The inputs came as float64 and the results leave as float32. The caller loses half of the "
    "digits, and the next matrix product refuses to mix the two.",
    section="the-code",
)
def detour_through_float32(query, key, value, mask=None):
    return attend(scaled(query.float(), key.float()), value.float(), mask)


@wrong(
    "D-INPLACE",
    ATTENTION,
    thinks="Scaling the query in place saves memory.",
    why="`query` belongs to the caller, who uses it again: after your call it has shrunk. "
    "`a /= b` edits the tensor itself; `a = a / b` makes a new one.",
    section="the-code",
)
def edits_its_query(query, key, value, mask=None):
    query /= math.sqrt(query.shape[-1])
    return attend(dot_products(query, key), value, mask)


@wrong(
    "M-POLARITY",
    ATTENTION,
    thinks="True in the mask means: hide this key.",
    why="In some libraries it does. Here, as in `F.scaled_dot_product_attention`, True means this "
    "query may attend to this key. Your answer looks exactly where it must not.",
    section="masks",
)
def opposite_mask(query, key, value, mask=None):
    return attend(scaled(query, key), value, None if mask is None else ~mask)


@wrong(
    "M-IGNORED",
    ATTENTION,
    thinks="The mask can be left for later.",
    why="Your weights are the same with and without a mask: padding and future words are read like "
    "any other.",
    section="masks",
)
def ignores_mask(query, key, value, mask=None):
    return attend(scaled(query, key), value, None)


@wrong(
    "M-DEAD-ROW",
    ATTENTION,
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


@wrong(
    "M-DEAD-ROW-UNIFORM",
    ATTENTION,
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


@wrong(
    "M-DEAD-ROW-GRADIENT",
    ATTENTION,
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


@wrong(
    "M-AFTER-SOFTMAX",
    ATTENTION,
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


@wrong(
    "M-AFTER-RENORMALIZED",
    ATTENTION,
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


@wrong(
    "M-ADD-BOOL",
    ATTENTION,
    thinks="Adding the mask to the scores hides the keys.",
    why="True counts as 1 and False as 0, so you add 1 to the allowed scores and hide nothing. An "
    "additive mask would have to hold 0 and −∞.",
    section="masks",
)
def adds_boolean_mask(query, key, value, mask=None):
    scores = scaled(query, key)
    return attend(scores if mask is None else scores + mask, value, None)


@wrong(
    "M-INF-TIMES-ZERO",
    ATTENTION,
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


@wrong(
    "M-FILL-ZERO",
    ATTENTION,
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


@wrong(
    "M-SMALL-FILL",
    ATTENTION,
    thinks="−10,000 is as good as −∞.",
    why="Only while every real score lies above it. Where real scores reach −30,000, the hidden "
    "keys win. Use the lowest number the dtype has.",
    section="masks",
    variants=(ten_thousand_subtracted,),
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


@wrong(
    "M-TRANSPOSED",
    ATTENTION,
    thinks="Rows of the mask are keys and columns are queries.",
    why="Scores have a row per query and a column per key, and so has the mask. Turned around, a "
    "causal mask shows the future and hides the past.",
    section="masks",
    variants=(mask_always_transposed,),
)
def transposed_mask(query, key, value, mask=None):
    if mask is not None and mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]:
        mask = mask.transpose(-2, -1)
    return attend(scaled(query, key), value, mask)


@wrong(
    "M-VALUES",
    ATTENTION,
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


@wrong(
    "M-MAPS-UNMASKED",
    ATTENTION,
    thinks="The mask matters for the output; the weights are only for looking at.",
    why="Your output respects the mask, but the weights you return are computed without it, so the "
    "picture shows attention that never happened.",
    section="masks",
)
def returns_unmasked_weights(query, key, value, mask=None):
    output, _ = attend(scaled(query, key), value, mask)
    return output, torch.softmax(scaled(query, key), -1)


@wrong(
    "M-ALWAYS-CAUSAL",
    ATTENTION,
    thinks="Attention never looks ahead, so a causal mask is always in place.",
    why="Only a decoder must not look ahead, and then the caller passes a mask. Without one, every "
    "query may read every key.",
    section="masks",
)
def always_causal(query, key, value, mask=None):
    scores = scaled(query, key)
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return attend(scores, value, causal if mask is None else causal & mask)


@wrong(
    "M-ONE-ROW",
    ATTENTION,
    thinks="A key hidden from one query is hidden from all.",
    why="The mask has a row for every query, and rows differ. You let the first row speak for "
    "everybody.",
    section="masks",
)
def first_row_for_all(query, key, value, mask=None):
    return attend(scaled(query, key), value, None if mask is None else mask[..., :1, :])


# --- score_variance -----------------------------------------------------------------------------


def draw(d, samples):
    return torch.randn(samples, d), torch.randn(samples, d)


def dots(d, samples, scaled):
    query, key = draw(d, samples)
    scores = (query * key).sum(-1)
    return scores / math.sqrt(d) if scaled else scores


@wrong(
    "V-STANDARD-DEVIATION",
    "score_variance",
    thinks="The spread of the scores is their standard deviation.",
    why="That is the root of what is asked. Variances add up over the d features, which is why "
    "the result is so simple; standard deviations do not.",
    section="why-scale",
)
def returns_standard_deviation(d, samples, scaled):
    return dots(d, samples, scaled).std().item()


@wrong(
    "V-MEAN",
    "score_variance",
    thinks="The average score tells how large scores are.",
    why="Positive and negative scores cancel, so the mean is near 0 for every width. What grows is "
    "how far they scatter.",
    section="why-scale",
)
def returns_mean(d, samples, scaled):
    return dots(d, samples, scaled).mean().item()


@wrong(
    "V-NOT-SUMMED",
    "score_variance",
    thinks="A score is the product of a query and a key, entry by entry.",
    why="That leaves d numbers per pair, each with variance 1. A dot product adds them up into one "
    "score, and that sum is what grows with d.",
    section="why-scale",
)
def products_not_summed(d, samples, scaled):
    query, key = draw(d, samples)
    products = query * key / (math.sqrt(d) if scaled else 1)
    return products.var().item()


@wrong(
    "V-IGNORES-SCALED",
    "score_variance",
    thinks="`scaled` makes no difference to the variance.",
    why="Dividing every score by √d divides their variance by d. Your result is the same for both "
    "settings.",
    section="why-scale",
)
def ignores_scaled(d, samples, scaled):
    return dots(d, samples, False).var().item()


@wrong(
    "V-ALWAYS-SCALED",
    "score_variance",
    thinks="Scores are always scaled.",
    why="The point is to compare: with `scaled=False` the raw dot products are asked for.",
    section="why-scale",
)
def always_scaled(d, samples, scaled):
    return dots(d, samples, True).var().item()


@wrong(
    "V-SCALE-DK",
    "score_variance",
    thinks="Scaled scores are divided by d.",
    why="Dividing scores by d divides their variance by d², so wide vectors end up with almost "
    "none. Which divisor brings the variance to 1?",
    section="why-scale",
)
def scales_by_width(d, samples, scaled):
    return (dots(d, samples, False) / (d if scaled else 1)).var().item()


@wrong(
    "V-SCALES-THE-VARIANCE",
    "score_variance",
    thinks="I can divide the variance by √d instead of the scores.",
    why="A factor on the scores counts squared in their variance, so the two are not the same. "
    "Scale the scores, then measure.",
    section="why-scale",
)
def scales_the_variance(d, samples, scaled):
    return dots(d, samples, False).var().item() / (math.sqrt(d) if scaled else 1)


@wrong(
    "V-UNIFORM",
    "score_variance",
    thinks="`torch.rand` draws random vectors, which is all that is needed.",
    why="It draws uniformly from 0 to 1: all positive, with variance 1/12. Standard normal numbers "
    "have mean 0 and variance 1; their function has one letter more.",
    section="why-scale",
)
def uniform_vectors(d, samples, scaled):
    scores = (torch.rand(samples, d) * torch.rand(samples, d)).sum(-1)
    return (scores / (math.sqrt(d) if scaled else 1)).var().item()


@wrong(
    "V-ONE-VECTOR",
    "score_variance",
    thinks="Query and key can be the same random vector.",
    why="q·q is a squared length, never negative, and its variance is twice as large. A query and "
    "a key are drawn independently.",
    section="why-scale",
)
def query_is_key(d, samples, scaled):
    query, _ = draw(d, samples)
    scores = (query * query).sum(-1)
    return (scores / (math.sqrt(d) if scaled else 1)).var().item()


@wrong(
    "V-FORMULA",
    "score_variance",
    thinks="I know the result, so I return it.",
    why="The formula is right, and this task is about seeing it happen: the answer must not know "
    "it in advance. Draw vectors, compute scores, measure.",
    section="why-scale",
)
def returns_formula(d, samples, scaled):
    return 1.0 if scaled else float(d)


@wrong(
    "V-IGNORES-SAMPLES",
    "score_variance",
    thinks="The number of samples is always the same, so I wrote it down.",
    why="The caller says how many pairs to draw: `samples` is an argument. Yours gives the same "
    "result for 10 as for 20,000.",
    section="why-scale",
)
def ignores_samples(d, samples, scaled):
    return dots(d, 20_000, scaled).var().item()


@wrong(
    "V-INVERTED",
    "score_variance",
    thinks="`scaled` means that the scores come scaled already, so the other case needs the root.",
    why="With `scaled=True` the scores are divided before the variance is taken; with False they "
    "stay raw. Yours does the opposite.",
    section="why-scale",
)
def scales_the_wrong_case(d, samples, scaled):
    return dots(d, samples, not scaled).var().item()


@wrong(
    "V-RESEED",
    "score_variance",
    thinks="A `manual_seed` inside the function makes it reproducible.",
    why="It also resets everybody else's random numbers on each call, so later draws repeat. Leave "
    "the global generator to the caller, or use a `torch.Generator` of your own.",
    section="why-scale",
)
def reseeds(d, samples, scaled):
    torch.default_generator.manual_seed(0)
    return dots(d, samples, scaled).var().item()


@wrong(
    "V-TENSOR",
    "score_variance",
    thinks="A tensor with one number is a number.",
    why="Nearly: it drags a device, a dtype and perhaps a graph along. A plain Python float is "
    "asked for; `.item()` makes one.",
    section="why-scale",
)
def variance_as_tensor(d, samples, scaled):
    return dots(d, samples, scaled).var()


# --- hidden_scale -------------------------------------------------------------------------------


def slope(scores, weights):
    """Least squares of log-weights on scores, centered within each row's visible part."""
    seen = weights > 0
    count = seen.sum(-1, keepdim=True)

    def centered(table):
        table = torch.where(seen, table, 0)
        return torch.where(seen, table - table.sum(-1, keepdim=True) / count, 0)

    distance = centered(scores)
    return ((distance * centered(weights.log())).sum() / distance.square().sum()).item()


@wrong(
    "C-SQUARED",
    "hidden_scale",
    thinks="The hidden number is the width d.",
    why="The width is its square. The scores were divided by c = √d, and c is what is asked for.",
    section="hidden-scale",
)
def returns_width(scores, weights):
    return slope(scores, weights) ** -2


@wrong(
    "C-INVERSE",
    "hidden_scale",
    thinks="The slope of log-weights over scores is the scale.",
    why="Log-weights are scores divided by c, so the slope is 1/c. For a table made with 4 you "
    "return a quarter.",
    section="hidden-scale",
)
def returns_slope(scores, weights):
    return slope(scores, weights)


@wrong(
    "C-ROOT",
    "hidden_scale",
    thinks="What I find is d, so its root is the scale.",
    why="What the logarithms give is already c itself; the root is one step too many.",
    section="hidden-scale",
)
def returns_root(scores, weights):
    return slope(scores, weights) ** -0.5


@wrong(
    "C-LOG-ZERO",
    "hidden_scale",
    thinks="All weights can be treated alike.",
    why="log 0 is −∞, and one of those spoils every sum. A weight of 0 means masked: it says "
    "nothing about the scale and has to be left out.",
    section="hidden-scale",
)
def logarithm_of_zero(scores, weights):
    distance = scores - scores.mean(-1, keepdim=True)
    height = weights.log() - weights.log().mean(-1, keepdim=True)
    return (distance.square().sum() / (distance * height).sum()).item()


def zero_as(tiny):
    def zero_as_tiny(scores, weights):
        log = weights.clamp(min=tiny).log()
        distance = scores - scores.mean(-1, keepdim=True)
        height = log - log.mean(-1, keepdim=True)
        return (distance.square().sum() / (distance * height).sum()).item()

    return zero_as_tiny


@wrong(
    "C-ZERO-AS-TINY",
    "hidden_scale",
    thinks="Adding a small number to the weights makes the logarithm safe.",
    why="Safe, but a masked key now looks like a real one with an absurdly low score, and it rules "
    "the fit. Leave masked keys out.",
    section="hidden-scale",
    variants=tuple(zero_as(10.0**-n) for n in (3, 4, 5, 6, 8, 10, 12)),
)
def zero_as_tiny(scores, weights):
    log = (weights + 1e-9).log()
    distance = scores - scores.mean(-1, keepdim=True)
    height = log - log.mean(-1, keepdim=True)
    return (distance.square().sum() / (distance * height).sum()).item()


def mean_of_ratios(scores, weights):
    seen = (weights > 0) & (weights < 1)
    return (scores[seen] / weights[seen].log()).mean().item()


def median_of_ratios(scores, weights):
    seen = (weights > 0) & (weights < 1)
    return (scores[seen] / weights[seen].log()).median().item()


@wrong(
    "C-NO-NORMALIZER",
    "hidden_scale",
    thinks="log w = s / c, so the scale is s / log w.",
    why="The logarithm of a weight also contains the logarithm of its row's sum. Compare two "
    "weights of the same row, and that part cancels.",
    section="hidden-scale",
    variants=(mean_of_ratios, median_of_ratios),
)
def forgets_normalizer(scores, weights):
    seen = (weights > 0) & (weights < 1)
    scores, log = scores[seen], weights[seen].log()
    return ((scores * scores).sum() / (scores * log).sum()).item()


@wrong(
    "C-ROWS-MIXED",
    "hidden_scale",
    thinks="All entries of the table lie on one line.",
    why="Each row has its own sum to divide by, so each row has its own offset. Center within rows "
    "before you put them together.",
    section="hidden-scale",
)
def mixes_rows(scores, weights):
    seen = weights > 0
    scores, log = scores[seen], weights[seen].log()
    distance, height = scores - scores.mean(), log - log.mean()
    return (distance.square().sum() / (distance * height).sum()).item()


@wrong(
    "C-NO-LOGARITHM",
    "hidden_scale",
    thinks="Scores divided by weights give the scale.",
    why="Softmax is not a division: it takes exponentials first. Ratios of weights become "
    "differences of scores only after a logarithm.",
    section="hidden-scale",
)
def no_logarithm(scores, weights):
    seen = weights > 0
    return (scores[seen] / weights[seen]).mean().item()


@wrong(
    "C-TENSOR",
    "hidden_scale",
    thinks="A tensor with one number is a number.",
    why="Nearly: it drags a dtype and a device along. A plain Python float is asked for; `.item()` "
    "makes one.",
    section="hidden-scale",
)
def scale_as_tensor(scores, weights):
    return torch.tensor(1 / slope(scores, weights))


@wrong(
    "C-INPLACE",
    "hidden_scale",
    thinks="I may turn the tables into what I need.",
    why="The tables belong to the caller, who finds them changed after your call. Work on a new "
    "tensor: `weights.log()` makes one, `weights.log_()` does not.",
    section="hidden-scale",
)
def edits_the_tables(scores, weights):
    found = 1 / slope(scores, weights)
    weights.log_()
    return found

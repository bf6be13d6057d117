"""Wrong answers of chapter 4. Ids A- … X-… are the course catalogue's, C-… our own.

Each function below differs from a right answer in one thought. Everything else about it is right,
so that the judge can recognize that thought.
"""

import math

import torch
import torch.nn.functional as F

from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- self_attention -----------------------------------------------------------------------------
# The right pieces, for wrong answers to put together.

SELF = "self_attention"


def dot_products(query, key):
    return query @ key.mT


def scaled(query, key):
    return dot_products(query, key) / math.sqrt(query.shape[-1])


def projected(x, W_query, W_key, W_value):
    return x @ W_query, x @ W_key, x @ W_value


def attend(scores, value):
    weights = scores.softmax(-1)
    return weights @ value, weights


@wrong(
    "D-NO-SCALE",
    SELF,
    thinks="The matrices are learned, so they can learn the factor 1/√d themselves.",
    why="They could shrink, but training starts with scores whose variance grows with d: nearly "
    "all weight falls on one word, and the gradient that should shrink them vanishes.",
    section="three-views",
)
def no_scale(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key), value)


@wrong(
    "D-SCALE-DMODEL",
    SELF,
    thinks="The d under the root is the width of a word.",
    why="A score is a sum over the features of a query and a key, after the projection. Look at "
    "what W_query made of the width of x.",
    section="three-views",
)
def scale_by_model_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(x.shape[-1]), value)


@wrong(
    "D-SCALE-DK",
    SELF,
    thinks="Scores are divided by d, the width of a query.",
    why="Scores spread by the root of d, as a sum of d terms does. Divided by all of d they are "
    "tiny, and each word hears all words nearly alike.",
    section="three-views",
)
def scale_by_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / query.shape[-1], value)


@wrong(
    "C-SCALE-DV",
    SELF,
    thinks="The scale is the root of the width of the values.",
    why="When words are compared, values have not entered yet. Which two tensors does a score "
    "come from, and how wide are they?",
    section="three-views",
)
def scale_by_value_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(value.shape[-1]), value)


@wrong(
    "C-SCALE-WORDS",
    SELF,
    thinks="The longer the sentence, the more the scores must be damped: √n.",
    why="Each score compares two words, however many others there are. A sentence's length does "
    "not change how far its scores spread; the number of terms in one score does.",
    section="three-views",
)
def scale_by_length(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(x.shape[1]), value)


@wrong(
    "D-SCALE-AFTER",
    SELF,
    thinks="First the softmax, then the scale.",
    why="Then a row of weights sums to less than one, and the competition was already decided by "
    "scores that were too large.",
    section="three-views",
)
def scale_after_softmax(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = dot_products(query, key).softmax(-1) / math.sqrt(query.shape[-1])
    return weights @ value, weights


@wrong(
    "D-SOFTMAX-DIM",
    SELF,
    thinks="The table is square, so it does not matter along which axis the softmax goes.",
    why="Square, not symmetric. Along the other axis each word hands out its weight to those who "
    "ask; here each word that asks divides its own attention.",
    section="rows-and-columns",
)
def softmax_over_queries(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(-2)
    return weights @ value, weights


@wrong(
    "C-SOFTMAX-BATCH",
    SELF,
    thinks="Softmax goes over axis 0, the first one.",
    why="With a batch, axis 0 is the sentences: now sentences compete for a pair of words, and a "
    "sentence on its own gives every weight 1. Count axes from the back.",
    section="three-views",
)
def softmax_over_sentences(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(0)
    return weights @ value, weights


@wrong(
    "D-NAIVE-SOFTMAX",
    SELF,
    thinks="The weights are exp of the scores over their sum, and that is what I compute.",
    why="On paper yes. In float32 exp(89) is infinite, and infinity over infinity is NaN. Here "
    "torch's own softmax is allowed, and it is safe.",
    section="three-views",
)
def naive_softmax(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    e = scaled(query, key).exp()
    weights = e / e.sum(-1, keepdim=True)
    return weights @ value, weights


def shape_errors_but_when_equal(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(query @ key.permute(2, 1, 0) / math.sqrt(query.shape[-1]), value)


@wrong(
    "D-TRANSPOSE-T",
    SELF,
    thinks="`.T` exchanges the rows and columns of every table, also in a batch.",
    why="`.T` reverses *all* axes: (b n d) becomes (d n b), and sentences meet features. Only the "
    "last two axes should change places.",
    section="three-views",
    variants=(shape_errors_but_when_equal,),
)
def transposed_with_t(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(query @ key.T / math.sqrt(query.shape[-1]), value)


@wrong(
    "C-EINSUM-SENTENCES",
    SELF,
    thinks="In einsum each tensor may use letters of its own for the batch.",
    why="A letter that occurs in one input only is summed away: every query meets the keys of all "
    "sentences added up. One sentence alone does not show it.",
    section="three-views",
)
def keys_summed_over_the_batch(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(torch.einsum("bqd,ckd->bqk", query, key) / math.sqrt(query.shape[-1]), value)


@wrong(
    "H-BATCH-FIRST",
    SELF,
    thinks="Words come first, then sentences, as in many PyTorch layers.",
    why="Here x is (b n m). Your words attend to the words at the same place in *other* "
    "sentences; the dependency map shows who hears whom.",
    section="one-sequence",
)
def attention_over_the_batch(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x.transpose(0, 1), W_query, W_key, W_value)
    return output.transpose(0, 1), weights


def attend_over_words(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(scaled(query, key), value)


@wrong(
    "C-ONE-LONG-SENTENCE",
    SELF,
    thinks="All words of a batch can be put in one long row, and cut apart afterwards.",
    why="In one row, words of different sentences compete for the same attention. Cutting apart "
    "afterwards does not give back what went to the others.",
    section="one-sequence",
)
def all_sentences_as_one(x, W_query, W_key, W_value):
    b, n, _ = x.shape
    output, weights = attend_over_words(x.reshape(1, b * n, -1), W_query, W_key, W_value)
    own = torch.stack([weights[0, i * n : (i + 1) * n, i * n : (i + 1) * n] for i in range(b)])
    return output.reshape(b, n, -1), own


def keys_twice(x, W_query, W_key, W_value):
    return attend(scaled(x @ W_key, x @ W_key), x @ W_value)


@wrong(
    "A-TIED-PROJ",
    SELF,
    thinks="Queries and keys come from the same words, so one matrix will do for both.",
    why="Then the scores are symmetric, and every word is a good match for itself. Asking and "
    "being found are two things, so there are two matrices.",
    section="self-attention-breaks",
    variants=(
        lambda x, W_query, W_key, W_value: attend(scaled(x @ W_key, x @ W_key), x @ W_value),
    ),
)
def one_matrix_for_queries_and_keys(x, W_query, W_key, W_value):
    return attend(scaled(x @ W_query, x @ W_query), x @ W_value)


@wrong(
    "C-NO-PROJECTION",
    SELF,
    thinks="Words can be compared as they are; only the values need a matrix.",
    why="That is the smallest choice the chapter begins with. There each word hears little but "
    "itself, and nothing about whom it looks for can be learned.",
    section="one-sequence",
)
def words_compared_as_they_are(x, W_query, W_key, W_value):
    return attend(scaled(x, x), x @ W_value)


@wrong(
    "C-RAW-VALUES",
    SELF,
    thinks="The weights average the words themselves.",
    why="Then what a word hands over is all of itself. W_value decides what it hands over, and "
    "how wide the output is.",
    section="three-views",
)
def values_not_projected(x, W_query, W_key, W_value):
    return attend(scaled(x @ W_query, x @ W_key), x)


@wrong(
    "A-VALUE-IS-KEY",
    SELF,
    thinks="What a word is found by is also what it hands over.",
    why="That gives outputs made of keys. A title on the shelf is not the book: keys are for "
    "finding, values for reading.",
    section="three-views",
)
def keys_as_values(x, W_query, W_key, W_value):
    query, key, _ = projected(x, W_query, W_key, W_value)
    return attend(scaled(query, key), key)


@wrong(
    "C-ROLES-SWAPPED",
    SELF,
    thinks="Key times query or query times key, a product is a product.",
    why="Row i should say whom word i reads. With the two exchanged, row i says who would read "
    "word i, and the softmax normalizes that.",
    section="rows-and-columns",
)
def query_and_key_exchanged(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(scaled(key, query), value)


@wrong(
    "C-COLUMNS-RETURNED",
    SELF,
    thinks="Weights are drawn with a query in each column, so I return them so.",
    why="Some books and videos do. In this course a row is a query, and `weights @ value` must "
    "give the output. Your output is fine; the table beside it is turned.",
    section="rows-and-columns",
)
def weights_turned(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output, weights.mT


@wrong(
    "C-COLUMNS-AVERAGED",
    SELF,
    thinks="The output multiplies the values by the weights, whichever side is up.",
    why="Your weights are right, and the output reads them along the columns: word i gets what "
    "others wanted of it. The axis summed away must be the keys.",
    section="rows-and-columns",
    variants=(
        lambda x, W_query, W_key, W_value: (
            torch.einsum(
                "bqk,bqv->bkv",
                scaled(x @ W_query, x @ W_key).softmax(-1),
                x @ W_value,
            ),
            scaled(x @ W_query, x @ W_key).softmax(-1),
        ),
    ),
)
def values_averaged_by_columns(x, W_query, W_key, W_value):
    _, weights = attend_over_words(x, W_query, W_key, W_value)
    return weights.mT @ (x @ W_value), weights


def transposed_matrices_on_the_left(x, W_query, W_key, W_value):
    query, key, value = W_query.T @ x, W_key.T @ x, W_value.T @ x
    return attend(scaled(query, key), value)


def columns_against_rows(x, W_query, W_key, W_value):
    query, key, value = W_query @ x, W_key @ x, W_value @ x
    weights = (dot_products(key, query) / math.sqrt(query.shape[-1])).softmax(-2)
    return value @ weights, weights


@wrong(
    "C-MATRIX-LEFT",
    SELF,
    thinks="A matrix is applied from the left: W times x, as in mathematics.",
    why="There a vector is a column. In x (b n m) each word is a row, and its features are the "
    "last axis: that axis has to meet the first one of W (m d).",
    section="rows-and-columns",
    variants=(transposed_matrices_on_the_left, columns_against_rows),
)
def matrices_on_the_left(x, W_query, W_key, W_value):
    return attend(scaled(W_query @ x, W_key @ x), W_value @ x)


def linear_with_reshaped_matrices(x, W_query, W_key, W_value):
    query, key, value = (x @ W.reshape(W.T.shape).T for W in (W_query, W_key, W_value))
    return attend(scaled(query, key), value)


@wrong(
    "C-LINEAR-LAYOUT",
    SELF,
    thinks="These matrices are laid out like those of `nn.Linear`.",
    why="`nn.Linear` stores (out in) and multiplies by the transpose. Here W is (m d): tokens are "
    "rows, so the word stands on the left and W as it is.",
    section="rows-and-columns",
    variants=(linear_with_reshaped_matrices,),
)
def matrices_as_linear_stores_them(x, W_query, W_key, W_value):
    query, key, value = (F.linear(x, W) for W in (W_query, W_key, W_value))
    return attend(scaled(query, key), value)


@wrong(
    "D-DK-DV",
    SELF,
    thinks="Query, key and value have the same width.",
    why="Often they do, and then this works. But only queries and keys must agree, to be "
    "compared. The width of a value is its own.",
    section="three-views",
)
def equal_widths_assumed(x, W_query, W_key, W_value):
    query, key, value = torch.stack([x @ W_query, x @ W_key, x @ W_value]).unbind()
    return attend(scaled(query, key), value)


def diagonal_very_low(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    alone = torch.eye(x.shape[1], dtype=torch.bool)
    return attend(scaled(query, key).masked_fill(alone, -1e9), value)


@wrong(
    "C-NOT-ITSELF",
    SELF,
    thinks="A word attends to the *other* words; its own meaning it has already.",
    why="The sum runs over all words, the asking one included. Without itself a word of one "
    "sentence has nobody to hear at all.",
    section="who-asks",
    variants=(diagonal_very_low,),
)
def diagonal_hidden(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    alone = torch.eye(x.shape[1], dtype=torch.bool)
    return attend(scaled(query, key).masked_fill(alone, -torch.inf), value)


@wrong(
    "C-CAUSAL",
    SELF,
    thinks="A word may read only the words before it.",
    why="That is a choice of decoders, made with a mask in chapter 6. Nothing here hides "
    "anything: *model* needs *fashion*, and sometimes the word that matters comes later.",
    section="order-blind",
)
def future_hidden(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return attend(scaled(query, key).masked_fill(future, -torch.inf), value)


@wrong(
    "C-PLACED-INSIDE",
    SELF,
    thinks="Attention has to know the order, so it adds the positions itself.",
    why="Where positions come from is the caller's business: they are added to x before, once. "
    "The layer itself gives words in another order the same outputs.",
    section="equivariance",
)
def positions_added_inside(x, W_query, W_key, W_value):
    return attend_over_words(x + positions(*x.shape[1:]).to(x.dtype), W_query, W_key, W_value)


@wrong(
    "C-RESIDUAL",
    SELF,
    thinks="What a word hears is added to what it hands over itself.",
    why="A Transformer adds its input around the layer, in chapter 7. Inside, the output is the "
    "average alone.",
    section="three-views",
)
def own_value_added(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output + x @ W_value, weights


@wrong(
    "C-SCORES-RETURNED",
    SELF,
    thinks="Scores and weights are two words for the same table.",
    why="Scores are what comes before the softmax, weights what comes after: positive, and one "
    "in each row. Your output is fine; the table beside it holds scores.",
    section="one-sequence",
)
def scores_returned(x, W_query, W_key, W_value):
    output, _ = attend_over_words(x, W_query, W_key, W_value)
    return output, scaled(x @ W_query, x @ W_key)


@wrong(
    "C-PAIR-EXCHANGED",
    SELF,
    thinks="The weights are computed first, so they are returned first.",
    why="The caller unpacks `output, weights`, in this order. Where n = v the shapes agree, and "
    "nobody gets an error.",
    section="three-views",
)
def weights_returned_first(x, W_query, W_key, W_value):
    return attend_over_words(x, W_query, W_key, W_value)[::-1]


@wrong(
    "C-BATCH-MEAN",
    SELF,
    thinks="One table of weights is enough for the batch, so I return their mean.",
    why="Every sentence has a table of its own; the mean of the tables of two sentences belongs to "
    "neither. A batch of one hides it.",
    section="three-views",
)
def mean_of_the_tables(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output, weights.mean(0)


@wrong(
    "C-WEIGHTS-DETACHED",
    SELF,
    thinks="Weights are for looking at, so they need no gradient.",
    why="The values are right. But the output is made with the weights: cut off, they let no "
    "gradient through to W_query and W_key, and nobody learns where to look.",
    section="three-views",
)
def weights_cut_off(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(-1).detach()
    return weights @ value, weights


@wrong(
    "C-MATRICES-DETACHED",
    SELF,
    thinks="The matrices are given, so they are constants.",
    why="They are given to be learned. `.data`, `.detach()` or a layer built from a copy cuts "
    "them off: only x still gets a gradient.",
    section="three-views",
)
def matrices_cut_off(x, W_query, W_key, W_value):
    return attend_over_words(x, W_query.detach(), W_key.detach(), W_value.detach())


def gradients_off(x, W_query, W_key, W_value):
    with torch.no_grad():
        return attend_over_words(x, W_query, W_key, W_value)


@wrong(
    "C-NO-GRADIENT",
    SELF,
    thinks="Right numbers are a right answer.",
    why="The numbers are right, and nothing can be learned from them: `no_grad`, `.detach()` or a "
    "detour through NumPy cut the words and all three matrices off.",
    section="three-views",
    variants=(gradients_off,),
)
def everything_cut_off(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output.detach(), weights.detach()


@wrong(
    "C-OWN-LINEARS",
    SELF,
    thinks="The function makes its three `nn.Linear`s itself; the arguments say how wide.",
    why="Layers made inside start with random weights at every call, and are thrown away after it. "
    "The matrices that you were given are never used.",
    section="three-views",
)
def linears_of_its_own(x, W_query, W_key, W_value):
    query, key, value = (
        torch.nn.Linear(*W.shape, bias=False, dtype=x.dtype)(x) for W in (W_query, W_key, W_value)
    )
    return attend(scaled(query, key), value)


@wrong(
    "C-SCALE-INPLACE",
    SELF,
    thinks="The scale can be put into W_query once and for all.",
    why="Into a copy, yes. `/=` changes the caller's own matrix, so the next call scales again: "
    "the first result is right, the second is not.",
    section="three-views",
)
def scale_put_into_the_matrix(x, W_query, W_key, W_value):
    W_query /= math.sqrt(W_query.shape[-1])
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key), value)


@wrong(
    "C-FLOAT32",
    SELF,
    thinks="Everything is float32 anyway.",
    why="Your result is float32 although the words came as float64: the caller loses half of the "
    "digits. Keep the dtype that came.",
    section="three-views",
)
def always_float32(x, W_query, W_key, W_value):
    return attend_over_words(*(t.float() for t in (x, W_query, W_key, W_value)))


_kept: dict = {}


@wrong(
    "K-STALE",
    SELF,
    thinks="Projections are costly, so I compute them once and keep them.",
    why="For the next sentence of the same shape your answer still holds the words of the last. "
    "The first call is right, and every later one is about somebody else.",
    section="three-views",
)
def projections_kept(x, W_query, W_key, W_value):
    shapes = x.shape, W_query.shape, W_value.shape, x.dtype
    if shapes not in _kept:
        _kept[shapes] = [t.detach() for t in projected(x, W_query, W_key, W_value)]
    query, key, value = _kept[shapes]
    return attend(scaled(query, key), value)


@wrong(
    "D-SDPA-DROPOUT",
    SELF,
    thinks="Attention has dropout, so some weights are set to zero by chance.",
    why="That belongs into training, and somebody has to switch it off. A function cannot know: "
    "yours gives another answer at every call.",
    section="three-views",
)
def dropout_always(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = F.dropout(scaled(query, key).softmax(-1), 0.1)
    return weights @ value, weights


@wrong(
    "C-NO-SCALE-AND-COLUMNS",
    SELF,
    thinks="softmax(QKᵀ)V: the formula has no more to it, and softmax takes axis 1 of (b n n).",
    why="Two things at once: nothing keeps the scores from growing with d, and axis 1 is the "
    "queries, so columns sum to one and rows do not.",
    section="three-views",
)
def two_errors_at_once(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = dot_products(query, key).softmax(1)
    return weights @ value, weights


# --- sinusoidal_positions -----------------------------------------------------------------------

SINES = "sinusoidal_positions"


def speeds(width):
    """One for each hand."""
    return 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def waves(angles, width):
    """Sines and cosines of the angles (length hands) in turn."""
    pairs = torch.stack([angles.sin(), angles.cos()], -1)
    return pairs.flatten(1)[:, :width].float()


def turned_by(speed, length, width, first=0):
    place = torch.arange(first, first + length, dtype=torch.float64)
    return waves(place[:, None] * speed, width)


def positions(length, width):
    return turned_by(speeds(width), length, width)


def cosines_of_too_many_angles(length, width):
    table, angles = torch.zeros(length, width), torch.arange(length)[:, None] * speeds(width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def odd_widths_asserted(length, width):
    assert width % 2 == 0
    return positions(length, width)


def odd_widths_refused(length, width):
    if width % 2:
        raise ValueError(f"width must be even; got {width}")
    return positions(length, width)


@wrong(
    "P-ODD",
    SINES,
    thinks="Features come in pairs, so the width is even.",
    why="A width may be odd: then the last hand has a sine and no cosine. Every second column has "
    "one place less for cosines than there are angles.",
    section="sinusoids",
    variants=(odd_widths_refused, odd_widths_asserted),
)
def one_cosine_too_many(length, width):
    return cosines_of_too_many_angles(length, width)


@wrong(
    "C-ODD-SILENT",
    SINES,
    thinks="A feature that has no partner can stay 0.",
    why="A hand without its cosine still has its sine. Left at 0, the last feature of an odd width "
    "is the same everywhere.",
    section="sinusoids",
    variants=(
        lambda length, width: (
            F.pad(turned_by(speeds(width)[: width // 2], length, width - 1), (0, 1))
            if width % 2
            else positions(length, width)
        ),
    ),
)
def last_feature_zero(length, width):
    table = positions(length, width)
    if width % 2:
        table[:, -1] = 0
    return table


def pairs_of_the_next_even_width(length, width):
    return positions(length, width + width % 2)


def without_the_odd_feature(length, width):
    return positions(length, width)[:, : width - width % 2]


@wrong(
    "C-ODD-OTHER-WIDTH",
    SINES,
    thinks="Features come in pairs, so the table gets an even number of columns.",
    why="For an odd width your table is a column too wide or too narrow, and cannot be added to "
    "the words. The last hand may be cut in half.",
    section="sinusoids",
    variants=(pairs_of_the_next_even_width, without_the_odd_feature),
)
def the_last_pair_complete(length, width):
    return turned_by(speeds(width), length, width + width % 2)


@wrong(
    "C-ODD-COSINE",
    SINES,
    thinks="The feature left over at an odd width is a cosine.",
    why="Features alternate from the first: 0 is a sine, 1 a cosine, 2 a sine. Which is an even "
    "number like the last of an odd width?",
    section="sinusoids",
)
def last_feature_a_cosine(length, width):
    table = positions(length, width)
    if width % 2:
        angle = torch.arange(length, dtype=torch.float64) * speeds(width)[-1]
        table[:, -1] = angle.cos()
    return table


@wrong(
    "C-ODD-ROUNDED-UP",
    SINES,
    thinks="For an odd width I make one feature more and cut it off.",
    why="A good plan, but the exponent 2i/width then divides by the larger width, and all hands "
    "turn at other speeds. Cut off, and keep the width that was asked for.",
    section="sinusoids",
)
def speeds_of_the_next_even_width(length, width):
    return positions(length, width + width % 2)[:, :width]


@wrong(
    "P-FREQ",
    SINES,
    thinks="The exponent is 2i/width, so I multiply `arange(0, width, 2)` by 2.",
    why="`arange(0, width, 2)` counts 0, 2, 4, …, which is 2i already. Doubled again, more than "
    "half of the hands stand still.",
    section="self-attention-breaks",
)
def exponent_doubled(length, width):
    return turned_by(speeds(width) ** 2, length, width)


def speed_for_each_feature_doubled(length, width):
    feature = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-2 * feature / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos()).float()


@wrong(
    "C-FREQ-EACH",
    SINES,
    thinks="i counts the features, so each feature has a speed of its own.",
    why="i counts pairs. A sine and its cosine are the two coordinates of one clock hand; at "
    "different speeds they are no hand, and distance no longer decides.",
    section="self-attention-breaks",
    variants=(speed_for_each_feature_doubled,),
)
def speed_for_each_feature(length, width):
    feature = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-feature / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos()).float()


def cosines_of_the_next_hand_by_loops(length, width):
    """The same by loops, which leave the last feature of an odd width at 0."""
    table = cosines_of_the_next_hand(length, width)
    if width % 2:
        table[:, -1] = 0
    return table


@wrong(
    "C-COSINE-NEXT",
    SINES,
    thinks="The cosine stands one place further on, so its i is larger by one.",
    why="Features 2i and 2i + 1 have the same i: they are the two coordinates of one clock hand, "
    "at one angle. Your cosines belong to the next hand.",
    section="sinusoids",
    variants=(cosines_of_the_next_hand_by_loops,),
)
def cosines_of_the_next_hand(length, width):
    place = torch.arange(length, dtype=torch.float64)[:, None]
    speed = speeds(width)
    following = speed * 10_000.0 ** (-2 / width)
    pairs = torch.stack([(place * speed).sin(), (place * following).cos()], -1)
    return pairs.flatten(1)[:, :width].float()


@wrong(
    "C-EXPONENT-HALVED",
    SINES,
    thinks="Hand i has the exponent i/width.",
    why="With half as many hands as features, i/width only goes to one half: the slowest hand "
    "turns a hundred times too fast. The 2 in 2i/width makes up for the pairs.",
    section="sinusoids",
)
def exponent_halved(length, width):
    return turned_by(speeds(width) ** 0.5, length, width)


@wrong(
    "C-ENDPOINT",
    SINES,
    thinks="The slowest hand has the speed 1/10,000 exactly.",
    why="Some libraries divide by the number of hands minus one to get there. In the formula the "
    "exponent 2i/width ends one step before 1.",
    section="sinusoids",
)
def last_speed_exact(length, width):
    hands = (width + 1) // 2
    return turned_by(torch.logspace(0, -4, hands, dtype=torch.float64), length, width)


@wrong(
    "P-WAVELENGTH",
    SINES,
    thinks="Each hand is half as fast as the one before it.",
    why="The speeds fall by a constant factor, and that factor depends on the width: there must be "
    "room for all hands between 1 and 1/10,000.",
    section="sinusoids",
)
def speeds_halved(length, width):
    return turned_by(0.5 ** torch.arange((width + 1) // 2, dtype=torch.float64), length, width)


@wrong(
    "C-SPEEDS-EVEN",
    SINES,
    thinks="The speeds lie at equal distances between 1 and 1/10,000.",
    why="Then most hands are fast, and after a while all of them come round together. The speeds "
    "fall by the same factor each time, not by the same amount.",
    section="moving-on",
)
def speeds_equally_spaced(length, width):
    speed = torch.linspace(1, speeds(width)[-1].item(), (width + 1) // 2, dtype=torch.float64)
    return turned_by(speed, length, width)


@wrong(
    "C-SPEEDS-RISE",
    SINES,
    thinks="The angle is p times 10000^(2i/width).",
    why="Then every hand is faster than the last, by thousands of turns a position, and neighbors "
    "look unrelated. Hands get slower from pair to pair.",
    section="sinusoids",
)
def speeds_rising(length, width):
    return turned_by(1 / speeds(width), length, width)


@wrong(
    "C-HALVES",
    SINES,
    thinks="All sines come first, then all cosines.",
    why="That is the same vector in another order, and some libraries use it. This course follows "
    "the paper, sine and cosine in turn; weights trained with one do not fit the other.",
    section="sinusoids",
)
def sines_then_cosines(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width].float()


@wrong(
    "C-COSINE-FIRST",
    SINES,
    thinks="Which of the two comes first, sine or cosine, is a matter of taste.",
    why="It would be, if everybody chose alike. The formula puts the sine at feature 0: the vector "
    "of position 0 begins with 0.",
    section="sinusoids",
)
def cosines_first(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(1)[:, :width].float()


@wrong(
    "C-SINES-ONLY",
    SINES,
    thinks="One wave a hand is enough, and the sine is the one.",
    why="A sine takes each value twice a turn, so it does not say where the hand points. Sine and "
    "cosine together do.",
    section="moving-on",
)
def sines_twice(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.sin(), angles.sin()], -1).flatten(1)[:, :width].float()


@wrong(
    "C-FROM-ONE",
    SINES,
    thinks="The first word is word number 1.",
    why="Positions are counted from 0, as Python does: the vector of the first word is 0, 1, 0, 1, "
    "and so on.",
    section="sinusoids",
)
def counted_from_one(length, width):
    return turned_by(speeds(width), length, width, first=1)


@wrong(
    "C-SHARE-OF-LENGTH",
    SINES,
    thinks="A position is a share of the sentence: p divided by the length.",
    why="Then the same position gets another vector in a longer sentence, and neighbors hardly "
    "differ. A position is a number of steps from the start.",
    section="position-vectors",
)
def share_of_the_length(length, width):
    place = torch.arange(length, dtype=torch.float64) / length
    return waves(place[:, None] * speeds(width), width)


@wrong(
    "P-POS0-DECODE",
    SINES,
    thinks="Every row is the encoding of the word that stands there, so I make it once and repeat.",
    why="All words then stand at position 0, and the order is as invisible as before. Each "
    "position needs a vector of its own.",
    section="self-attention-breaks",
)
def all_at_position_zero(length, width):
    return positions(1, width).repeat(length, 1)


@wrong(
    "P-LOWPREC",
    SINES,
    thinks="The table will be used in 16 bits, so it can be computed in 16 bits.",
    why="bfloat16 has 8 significant bits: 257 becomes 256, and far positions fall together. "
    "Compute the angles precisely, and round at the end.",
    section="self-attention-breaks",
    variants=(
        lambda length, width: waves((torch.arange(length)[:, None] * speeds(width)).half(), width),
    ),
)
def angles_in_bfloat16(length, width):
    angles = torch.arange(length).bfloat16()[:, None] * speeds(width).bfloat16()
    return waves(angles.double(), width)


@wrong(
    "C-BATCH-AXIS",
    SINES,
    thinks="The table is for a batch, so it starts with a batch axis of 1.",
    why="A table of shape (n m) is added to words (b n m) as it is: broadcasting fills in the "
    "batch. The shape asked for is (length width).",
    section="sinusoids",
)
def with_a_batch_axis(length, width):
    return positions(length, width)[None]


@wrong(
    "C-TURNED",
    SINES,
    thinks="A column for each position, as in the picture.",
    why="The picture turns the table to save room. To be added to words (b n m), it needs a row "
    "for each position: (length width).",
    section="rows-and-columns",
)
def a_column_for_each_position(length, width):
    return positions(length, width).T


@wrong(
    "C-FLOAT64-TABLE",
    SINES,
    thinks="More digits can do no harm, so the table stays float64.",
    why="Computing in float64 is wise. But float32 words plus a float64 table are float64, and "
    "the next layer refuses them or runs at half the speed.",
    section="sinusoids",
)
def table_in_float64(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


@wrong(
    "P-ADDITIVE-LEARNED",
    SINES,
    thinks="Any table will do, as training will find the right vectors.",
    why="That is the other way, a learned table: it ends somewhere, and rows that no sentence "
    "reached stay random. This task asks for the formula.",
    section="learned-positions",
)
def a_random_table(length, width):
    return torch.randn(length, width)


@wrong(
    "C-FIXED-TABLE",
    SINES,
    thinks="A table with fixed random numbers is as good: it is the same every time.",
    why="It tells positions apart. But moving on by one step is no rotation, and nothing in it "
    "says that 3 is near 4.",
    section="moving-on",
)
def a_fixed_random_table(length, width):
    return torch.randn(length, width, generator=torch.Generator().manual_seed(0))


@wrong(
    "C-TEN-THOUSAND-POSITIONS",
    SINES,
    thinks="10,000 is the largest length, so I put the length in its place.",
    why="The 10,000 is a constant that spreads the speeds. With the length instead, the same "
    "position gets another vector in every sentence.",
    section="sinusoids",
)
def length_as_the_base(length, width):
    return turned_by(
        float(length) ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), length, width
    )


@wrong(
    "C-EXPONENT-INTEGER",
    SINES,
    thinks="`//` divides, too.",
    why="It rounds down: 2i // width is 0 for every hand, so all of them turn at speed 1. The "
    "exponent is a fraction.",
    section="sinusoids",
)
def exponent_rounded_down(length, width):
    return turned_by(torch.ones((width + 1) // 2, dtype=torch.float64), length, width)


# --- is_permutation_equivariant -----------------------------------------------------------------

BLIND = "is_permutation_equivariant"


def orders(n):
    """A swap and a shift: every other order is a chain of these."""
    return [1, 0, *range(2, n)], [*range(1, n), 0]


def same(one, two, tolerance=1e-5):
    return torch.allclose(one, two, rtol=0, atol=tolerance)


def holds(layer, x, tried, tolerance=1e-5):
    output = layer(x)
    return all(same(layer(x[:, order]), output[:, order], tolerance) for order in tried)


def exactly_equal_at_random(layer, x):
    order = torch.randperm(x.shape[1])
    return bool((layer(x[:, order]) == layer(x)[:, order]).all())


@wrong(
    "C-EXACT",
    BLIND,
    thinks="If the outputs are the same, then they are equal to the last digit.",
    why="A softmax adds up its row. In another order the same sum is rounded differently, in the "
    "last digit. Equal here means equal up to rounding.",
    section="equivariance",
    variants=(exactly_equal_at_random,),
)
def exactly_equal(layer, x):
    output = layer(x)
    return all(torch.equal(layer(x[:, order]), output[:, order]) for order in orders(x.shape[1]))


def outputs_stay_at_random(layer, x):
    return same(layer(x[:, torch.randperm(x.shape[1])]), layer(x))


@wrong(
    "C-INVARIANT",
    BLIND,
    thinks="A layer that is blind to order gives the same outputs in the same places.",
    why="That is *invariant*. Equivariant means that outputs move along with the words: reorder "
    "the words, and the outputs are reordered alike.",
    section="equivariance",
    variants=(outputs_stay_at_random,),
)
def outputs_stay(layer, x):
    output = layer(x)
    return all(same(layer(x[:, order]), output) for order in orders(x.shape[1]))


def undone_twice(layer, x):
    output = layer(x)
    shift = [*range(1, x.shape[1]), 0]
    return same(layer(x[:, shift])[:, shift], output)


def moved_back_at_random(layer, x):
    order = torch.randperm(x.shape[1])
    return same(layer(x[:, order]), layer(x)[:, order.argsort()])


@wrong(
    "C-INVERSE",
    BLIND,
    thinks="The outputs have to be put back, so they get the opposite order.",
    why="Either both sides move alike, or one is moved back. You compare outputs that moved one "
    "way with outputs that moved the other way. Swaps hide it: they are their own opposite.",
    section="equivariance",
    variants=(undone_twice, moved_back_at_random),
)
def outputs_moved_back(layer, x):
    output = layer(x)
    for order in orders(x.shape[1]):
        back = torch.tensor(order).argsort()
        if not same(layer(x[:, order]), output[:, back]):
            return False
    return True


@wrong(
    "C-ORDER-TOO-SHORT",
    BLIND,
    thinks="The order has as many entries as x: `randperm(len(x))`.",
    why="`len(x)` is the number of sentences. An order of so few entries leaves words out, and a "
    "word with less company is read differently. Where b = n nobody notices.",
    section="equivariance",
    variants=(lambda layer, x: holds(layer, x, orders(x.shape[2])),),
)
def order_of_the_sentences(layer, x):
    return holds(layer, x, orders(len(x)))


@wrong(
    "C-TWO-DRAWS",
    BLIND,
    thinks="Words and outputs are both put into a random order.",
    why="Into two different ones: every call of randperm draws anew. Draw one order, keep it, and "
    "use it on both sides.",
    section="equivariance",
)
def two_random_orders(layer, x):
    n = x.shape[1]
    return same(layer(x[:, torch.randperm(n)]), layer(x)[:, torch.randperm(n)])


@wrong(
    "C-ONE-SWAP",
    BLIND,
    thinks="If swapping the first two words changes nothing, no order does.",
    why="A layer can treat just these two alike and see all others. One order can be a lucky one; "
    "a swap and a shift together make up every order.",
    section="equivariance",
)
def first_two_swapped(layer, x):
    return holds(layer, x, orders(x.shape[1])[:1])


@wrong(
    "C-LAST-SWAP",
    BLIND,
    thinks="It is enough to swap the last two words.",
    why="A layer may treat the last two alike, and see all others. Try orders that move every "
    "word.",
    section="equivariance",
)
def last_two_swapped(layer, x):
    n = x.shape[1]
    return holds(layer, x, [[*range(n - 2), n - 1, n - 2]])


@wrong(
    "C-ENDS-SWAPPED",
    BLIND,
    thinks="I exchange the first word with the last and look whether anything changes.",
    why="That is one order among many. A layer may treat both ends alike and still see what lies "
    "between.",
    section="equivariance",
)
def ends_swapped(layer, x):
    n = x.shape[1]
    return holds(layer, x, [[n - 1, *range(1, n - 1), 0]])


@wrong(
    "C-ONLY-SHIFTS",
    BLIND,
    thinks="Moving all words on by one changes every position, so it is the strictest test.",
    why="Every position changes, but neighbors stay neighbors. A layer that reads its neighbors in "
    "a ring does not notice a shift at all.",
    section="equivariance",
    variants=(
        lambda layer, x: all(same(layer(x.roll(k, 1)), layer(x).roll(k, 1)) for k in (1, 2, 3)),
    ),
)
def only_shifted(layer, x):
    return holds(layer, x, orders(x.shape[1])[1:])


@wrong(
    "C-ONLY-REVERSED",
    BLIND,
    thinks="Reading the sentence backwards is the greatest change there is.",
    why="To a layer that treats its left and its right neighbor alike, backwards looks like "
    "forwards. Try orders that tear neighbors apart.",
    section="equivariance",
)
def only_reversed(layer, x):
    return same(layer(x.flip(1)), layer(x).flip(1))


@wrong(
    "C-ANY-ORDER",
    BLIND,
    thinks="If the outputs agree for one of the orders that I try, the layer is equivariant.",
    why="One order that agrees proves nothing, as some layers are blind to a few orders. It must "
    "hold for all that you try: one failure refutes.",
    section="equivariance",
)
def any_order_will_do(layer, x):
    return any(holds(layer, x, [order]) for order in orders(x.shape[1]))


@wrong(
    "C-SENTENCES-MOVED",
    BLIND,
    thinks="The first axis is the words, so that is the one to reorder.",
    why="x is (b n m): the first axis is the sentences. Nearly every layer treats sentences alike, "
    "so moving them says nothing about the order of words.",
    section="equivariance",
    variants=(
        lambda layer, x: same(layer(x.flip(0)), layer(x).flip(0)),
        lambda layer, x: same(layer(x.roll(1, 0)), layer(x).roll(1, 0)),
        lambda layer, x: all(same(layer(x[o]), layer(x)[o]) for o in orders(x.shape[1])),
    ),
)
def sentences_reordered(layer, x):
    output = layer(x)
    return all(same(layer(x[order]), output[order]) for order in orders(len(x)))


def features_reordered_where_it_fits(layer, x):
    output = layer(x)
    if output.shape != x.shape:
        return False
    return all(same(layer(x[..., o]), output[..., o]) for o in orders(x.shape[-1]))


@wrong(
    "C-FEATURES-MOVED",
    BLIND,
    thinks="The last axis is the one to reorder.",
    why="x is (b n m): the last axis is the features of one word. A layer may well tell features "
    "apart; the question is whether it tells positions apart.",
    section="equivariance",
    variants=(features_reordered_where_it_fits,),
)
def features_reordered(layer, x):
    output = layer(x)
    return all(same(layer(x[..., o]), output[..., o]) for o in orders(x.shape[-1]))


@wrong(
    "C-SUMS-COMPARED",
    BLIND,
    thinks="If the outputs are only moved, then their sum over the words stays the same.",
    why="True, but the converse is not: reversed or shifted outputs have the same sum as well. "
    "Compare word by word.",
    section="equivariance",
    variants=(
        lambda layer, x: all(
            same(layer(x[:, order]).mean(1), layer(x).mean(1)) for order in orders(x.shape[1])
        ),
    ),
)
def sums_compared(layer, x):
    output = layer(x)
    return all(same(layer(x[:, o]).sum(1), output.sum(1)) for o in orders(x.shape[1]))


@wrong(
    "C-SORTED-COMPARED",
    BLIND,
    thinks="Both outputs hold the same numbers, and that is what counts.",
    why="The same numbers, but at which word? Each output has to go with its word to the new "
    "place. Sorting or flattening forgets the places.",
    section="equivariance",
)
def sorted_outputs_compared(layer, x):
    output = layer(x).sort(1).values
    return all(same(layer(x[:, o]).sort(1).values, output) for o in orders(x.shape[1]))


def always_itself(layer, x):
    order = list(range(x.shape[1]))
    return same(layer(x[:, order]), layer(x)[:, order])


@wrong(
    "C-NOTHING-MOVED",
    BLIND,
    thinks="If the layer can be run on the words and gives an output for each, it is equivariant.",
    why="Your answer is True for every layer. Nothing was put into another order, or only the "
    "shapes were compared.",
    section="equivariance",
    variants=(always_itself, lambda layer, x: True),
)
def shapes_compared(layer, x):
    return layer(x.flip(1)).shape == layer(x).shape


def never(layer, x):
    return False


@wrong(
    "C-ALWAYS-FALSE",
    BLIND,
    thinks="No real layer gives the same outputs in another order.",
    why="Your answer is False for every layer, even for one that returns the words as they are. Is "
    "the comparison of two tensors one value, and the one you meant?",
    section="equivariance",
    variants=(never,),
)
def two_tensors_compared_as_objects(layer, x):
    return layer(x.flip(1)) is layer(x).flip(1)


@wrong(
    "C-LOOSE",
    BLIND,
    thinks="The tolerance should be generous, to be safe.",
    why="Rounding moves the last of seven digits. A tolerance of 0.1 or more also forgives small "
    "positions that a layer really sees.",
    section="equivariance",
    variants=(lambda layer, x: holds(layer, x, orders(x.shape[1]), 0.3),),
)
def generous_tolerance(layer, x):
    return holds(layer, x, orders(x.shape[1]), 0.1)


@wrong(
    "C-SAME-WIDTH",
    BLIND,
    thinks="A layer returns as many features as it got.",
    why="Self-attention returns vectors of the width of its values, which may differ from m. Let "
    "the output say how wide it is.",
    section="three-views",
    variants=(
        lambda layer, x: all(
            same(layer(x[:, o]), torch.stack([layer(x)[:, i] for i in o], 1).reshape(x.shape))
            for o in orders(x.shape[1])
        ),
    ),
)
def room_for_m_features(layer, x):
    output = layer(x)
    for order in orders(x.shape[1]):
        expected = torch.empty_like(x)
        expected[:] = output[:, order]
        if not same(layer(x[:, order]), expected):
            return False
    return True


@wrong(
    "C-TENSOR-BOOL",
    BLIND,
    thinks="A tensor that holds True is as good as True.",
    why="In an `if` it is, but it is a tensor: `is True` fails, and so does JSON. `bool(…)` or "
    "`.item()` makes a plain one.",
    section="equivariance",
)
def a_tensor_returned(layer, x):
    return torch.tensor(holds(layer, x, orders(x.shape[1])))


@wrong(
    "C-NEGATED",
    BLIND,
    thinks="True means that the order makes a difference.",
    why="The name says it: True if the layer *is* equivariant, so that the order makes none. Your "
    "answers are all right, the other way round.",
    section="equivariance",
)
def the_other_way_round(layer, x):
    return not holds(layer, x, orders(x.shape[1]))


@wrong(
    "C-INPLACE",
    BLIND,
    thinks="To swap two words I write x[:, [0, 1]] = x[:, [1, 0]].",
    why="That changes the caller's own words, who still needs them, and later comparisons start "
    "from other words. `x[:, order]` makes a copy.",
    section="equivariance",
)
def words_swapped_in_place(layer, x):
    output = layer(x)
    result = holds(layer, x, orders(x.shape[1])[1:])
    x[:, [0, 1]] = x[:, [1, 0]]
    return result and same(layer(x), output[:, orders(x.shape[1])[0]])


@wrong(
    "C-SEEDED",
    BLIND,
    thinks="With a fixed seed the verdict can be repeated.",
    why="It can, but now everybody's random numbers repeat after your call, in training as well. A "
    "`torch.Generator` of your own disturbs nobody.",
    section="equivariance",
)
def seeded_for_everybody(layer, x):
    torch.manual_seed(0)
    return holds(layer, x, [torch.randperm(x.shape[1]).tolist() for _ in range(6)])


@wrong(
    "C-FIRST-WORD-COMPARED",
    BLIND,
    thinks="It is enough to see where one output has gone.",
    why="The others may have changed meanwhile. In a causal layer the first word never hears "
    "anybody, so it looks the same whatever is done to the rest.",
    section="equivariance",
)
def first_output_compared(layer, x):
    order = [0, *range(2, x.shape[1]), 1]  # the first word stays, all others move
    return same(layer(x[:, order])[:, 0], layer(x)[:, 0])

"""self_attention."""

import math

import torch
import torch.nn.functional as F

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.self_attention._faults import positions

# In float64, d = 9: its root has no rounding, however it was computed.
DOUBLE = {"dtype": torch.float64, "d": 9}


def sentence_inputs(rng, b=2, n=4, m=5, d=3, v=6, dtype=torch.float32):
    return {
        "x": normal(rng, b, n, m, dtype=dtype),
        "W_query": normal(rng, m, d, dtype=dtype),
        "W_key": normal(rng, m, d, dtype=dtype),
        "W_value": normal(rng, m, v, dtype=dtype),
    }


def large_sentence(rng, n=4, size=1e4):
    """Scores near ±`size` after scaling, of one sign in a row; the last feature is the values'."""
    x = torch.zeros(1, n, 3)
    x[0, :, 0] = (-1.0) ** torch.arange(n)
    x[0, :, 1] = torch.randperm(n, generator=rng, device="cpu").to(torch.float32) + size
    x[0, :, 2] = normal(rng, n)
    W_query, W_key = torch.zeros(3, 4), torch.zeros(3, 4)
    W_query[0, 0], W_key[1, 0] = 2.0, 1.0  # √d = 2, so that the scores of a row are ± x[:, 1]
    W_value = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, -2.0]])
    return {"x": x, "W_query": W_query, "W_key": W_key, "W_value": W_value}


def turned(inputs):
    """The same numbers, not contiguous."""
    return {name: tensor.mT.contiguous().mT for name, tensor in inputs.items()}


def remembers(answer, inputs) -> bool:
    """Whether a call is spoiled by another one with other words in the same shapes."""
    rng = torch.Generator().manual_seed(5)
    others = {
        name: normal(rng, *tensor.shape, dtype=tensor.dtype) for name, tensor in inputs.items()
    }
    answer(others)
    expected, got = answer.expected(inputs)[0], answer(inputs)[0]
    after = answer.expected(others)[0]  # what a stale answer would give
    if got.shape != expected.shape:
        return False
    return not torch.allclose(got, expected, atol=1e-3) and torch.allclose(got, after, atol=1e-3)


def sentence_traits(answer):
    inputs = sentence_inputs(torch.Generator().manual_seed(0), n=6)
    stale = remembers(answer, inputs)
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    x, matrices = inputs["x"], {name: 2 * W for name, W in inputs.items() if name != "x"}
    return {
        "ignores the matrices": torch.equal(outputs[0], answer({"x": x} | matrices, seed=1)[0]),
        "remembers an earlier call": stale,
        "differs from call to call": stale or not torch.equal(*outputs),
    }


def sentence_probes(rng):
    return {
        "plain": sentence_inputs(rng),
        "as many sentences as words": sentence_inputs(rng, b=4, n=4, m=3, d=2, v=5),
        "all equal": sentence_inputs(rng, b=4, n=4, m=4, d=4, v=4),
        "square matrices": sentence_inputs(rng, b=2, n=3, m=4, d=4, v=4),
        "values as wide as keys": sentence_inputs(rng, b=3, n=5, m=2, d=4, v=4),
        "values as wide as words": sentence_inputs(rng, b=3, n=2, m=6, d=2, v=6),
        "as many sentences as features": sentence_inputs(rng, b=3, n=5, m=4, d=3, v=2),
        "one sentence": sentence_inputs(rng, b=1, n=5, m=3, d=16, v=2),
        "one word": sentence_inputs(rng, b=3, n=1),
        "large": large_sentence(rng),
        "double": sentence_inputs(rng, b=2, n=3, m=4, v=2, **DOUBLE),
    }


def sentence_small(rng):
    sizes = (
        (1, 1, 1, 1, 1),
        (1, 2, 1, 1, 1),
        (1, 2, 2, 1, 1),
        (1, 2, 1, 2, 1),
        (1, 2, 2, 2, 1),
        (1, 2, 2, 2, 2),
        (1, 2, 2, 1, 3),
        (2, 1, 1, 1, 1),
        (2, 2, 1, 1, 1),
        (2, 2, 2, 2, 2),
        (1, 3, 2, 2, 1),
        (2, 3, 2, 4, 3),
    )
    for b, n, m, d, v in sizes:
        for _ in range(4):
            yield {
                "x": integers(rng, b, n, m),
                "W_query": integers(rng, m, d, low=-1, high=2),
                "W_key": integers(rng, m, d, low=-1, high=2),
                "W_value": integers(rng, m, v, low=0, high=3),
            }
    for size in (100.0, 1e4, -1e4):
        yield {
            "x": torch.tensor([[[1.0, size], [1.0, size + 1]]]),
            "W_query": torch.tensor([[1.0], [0.0]]),
            "W_key": torch.tensor([[0.0], [1.0]]),
            "W_value": torch.tensor([[1.0], [0.0]]),
        }


def sentence_maps(rng):
    inputs = sentence_inputs(rng, b=2, n=3, m=4, d=2, v=3)
    return [("two sentences of three words", inputs, ("x",))]


task = Task(
    reference.self_attention,
    number=1,
    returns=("output", "weights"),
    difficulty=2,
    minutes=15,
    section="three-views",
    hints=(
        "Every word gets three vectors: what it looks for, what it can be found by, what it "
        "hands over. Each is a product of the word with one of the three matrices.",
        "After the three products everything is chapter 3 without a mask: compare each query "
        "of a sentence with each key of the same sentence, scale by the root of the width of "
        "a query (not of a word), softmax over the keys, average the values.",
        "query = x @ W_query, and so on for key and value; scores = query times key with its "
        "last two axes exchanged, divided by the root of query.shape[-1]; weights = softmax "
        "over the last axis; return weights @ value, and the weights.",
    ),
    probes=sentence_probes,
    differentiated=("plain", "as many sentences as words"),
    small=sentence_small,
    maps=sentence_maps,
    features=1,
    traits=sentence_traits,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_an_output_and_the_weights(answer, rng):
    inputs = sentence_inputs(rng)
    for name, tensor, axes, shape in zip(
        ("output", "weights"),
        answer(inputs),
        ("(b n v)", "(b n n)"),
        ((2, 4, 6), (2, 4, 4)),
        strict=True,
    ):
        if tensor.shape != shape:
            raise Failure(
                f"{name} has shape {shape_of(tensor)}; "
                f"expected {axes} = {shape_of(torch.empty(shape))}.",
                inputs,
            )
        if tensor.dtype != torch.float32:
            raise Failure(f"{name} has dtype {tensor.dtype}; the inputs were float32.", inputs)


@task.check(1)
def every_word_has_one_whole_attention_to_give(answer, rng):
    inputs = sentence_inputs(rng, b=3, n=5)
    _, weights = answer(inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    if weights.shape != (3, 5, 5):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (3 5 5).", inputs)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(3, 5), inputs)


@task.check(1)
def a_word_alone_can_only_hear_itself(answer, rng):
    inputs = sentence_inputs(rng, n=1)
    output, weights = answer(inputs)
    compare("weights", weights, torch.ones(2, 1, 1), inputs)
    compare("output", output, inputs["x"] @ inputs["W_value"], inputs)


@task.check(1)
def who_looks_for_nothing_hears_all_alike(answer, rng):
    for name in ("W_query", "W_key"):
        inputs = sentence_inputs(rng)
        inputs[name] = torch.zeros_like(inputs[name])
        output, weights = answer(inputs)
        compare("weights", weights, torch.full((2, 4, 4), 0.25), inputs)
        mean = (inputs["x"] @ inputs["W_value"]).mean(1, keepdim=True)
        compare("output", output, mean.expand(2, 4, 6), inputs)


@task.check(2)
def output_and_weights_match_the_formula(answer, rng):
    answer.matches(sentence_inputs(rng, b=3))
    answer.matches(sentence_inputs(rng, b=4, n=4, m=4, d=4, v=4))
    answer.matches(sentence_inputs(rng, b=2, n=3, m=4, d=4, v=4))
    answer.matches(sentence_inputs(rng, n=3, m=2, d=11, v=3))
    answer.matches(sentence_inputs(rng, b=1, n=1, m=1, d=1, v=1))
    answer.matches(sentence_inputs(rng, n=3, m=4, v=2, **DOUBLE))
    answer.matches(turned(sentence_inputs(rng, b=3)))


@task.check(1)
def sentences_of_a_batch_do_not_hear_each_other(answer, rng):
    for n in (3, 5):
        inputs = sentence_inputs(rng, b=3, n=n)
        together = answer(inputs)
        for row in range(3):
            alone = answer(inputs | {"x": inputs["x"][row : row + 1]})
            for name, one, all_ in zip(("output", "weights"), alone, together, strict=True):
                name = f"{name} of a sentence, in a batch and on its own"
                compare(name, all_[row : row + 1], one, inputs)


@task.check(1)
def in_another_order_every_word_gets_the_same(answer, rng):
    inputs = sentence_inputs(rng, n=5)
    output, weights = answer(inputs)
    if output.shape != (2, 5, 6) or weights.shape != (2, 5, 5):
        raise Failure(
            f"output and weights have shapes {shape_of(output)} and {shape_of(weights)}; "
            "expected (2 5 6) and (2 5 5).",
            inputs,
        )
    order = [3, 0, 4, 2, 1]
    moved = inputs | {"x": inputs["x"][:, order]}
    moved_output, moved_weights = answer(moved)
    compare("output, words reordered", moved_output, output[:, order], moved)
    compare("weights, words reordered", moved_weights, weights[:, order][:, :, order], moved)


@task.check(1)
def large_scores_stay_finite(answer, rng):
    answer.matches(large_sentence(rng), tolerance=5e-3)
    answer.matches(large_sentence(rng, size=-1e4), tolerance=5e-3)


@task.check(1)
def gradients_reach_the_words_and_all_three_matrices(answer, rng):
    answer.gradients_match(sentence_inputs(rng))
    answer.gradients_match(sentence_inputs(rng, b=3, n=3, m=3, d=3, v=3))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    inputs = sentence_inputs(rng, b=3)
    moves_nothing(answer, inputs)
    if remembers(answer, inputs):
        raise Failure(
            "After a call with other words, your answer still gives the result of that call: "
            "it keeps something from one call to the next.",
            inputs,
        )


# --- faults ---------------------------------------------------------------------------------------


def dot_products(query, key):
    return query @ key.mT


def scaled(query, key):
    return dot_products(query, key) / math.sqrt(query.shape[-1])


def projected(x, W_query, W_key, W_value):
    return x @ W_query, x @ W_key, x @ W_value


def attend(scores, value):
    weights = scores.softmax(-1)
    return weights @ value, weights


@task.fault(
    "D-NO-SCALE",
    thinks="The matrices are learned, so they can learn the factor 1/√d themselves.",
    why="They could shrink, but training starts with scores whose variance grows with d: nearly "
    "all weight falls on one word, and the gradient that should shrink them vanishes.",
)
def no_scale(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key), value)


@task.fault(
    "D-SCALE-DMODEL",
    thinks="The d under the root is the width of a word.",
    why="A score is a sum over the features of a query and a key, after the projection. Look at "
    "what W_query made of the width of x.",
)
def scale_by_model_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(x.shape[-1]), value)


@task.fault(
    "D-SCALE-DK",
    thinks="Scores are divided by d, the width of a query.",
    why="Scores spread by the root of d, as a sum of d terms does. Divided by all of d they are "
    "tiny, and each word hears all words nearly alike.",
)
def scale_by_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / query.shape[-1], value)


@task.fault(
    "C-SCALE-DV",
    thinks="The scale is the root of the width of the values.",
    why="When words are compared, values have not entered yet. Which two tensors does a score "
    "come from, and how wide are they?",
)
def scale_by_value_width(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(value.shape[-1]), value)


@task.fault(
    "C-SCALE-WORDS",
    thinks="The longer the sentence, the more the scores must be damped: √n.",
    why="Each score compares two words, however many others there are. A sentence's length does "
    "not change how far its scores spread; the number of terms in one score does.",
)
def scale_by_length(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key) / math.sqrt(x.shape[1]), value)


@task.fault(
    "D-SCALE-AFTER",
    thinks="First the softmax, then the scale.",
    why="Then a row of weights sums to less than one, and the competition was already decided by "
    "scores that were too large.",
)
def scale_after_softmax(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = dot_products(query, key).softmax(-1) / math.sqrt(query.shape[-1])
    return weights @ value, weights


@task.fault(
    "D-SOFTMAX-DIM",
    thinks="The table is square, so it does not matter along which axis the softmax goes.",
    why="Square, not symmetric. Along the other axis each word hands out its weight to those who "
    "ask; here each word that asks divides its own attention.",
    section="rows-and-columns",
)
def softmax_over_queries(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(-2)
    return weights @ value, weights


@task.fault(
    "C-SOFTMAX-BATCH",
    thinks="Softmax goes over axis 0, the first one.",
    why="With a batch, axis 0 is the sentences: now sentences compete for a pair of words, and a "
    "sentence on its own gives every weight 1. Count axes from the back.",
)
def softmax_over_sentences(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(0)
    return weights @ value, weights


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="The weights are exp of the scores over their sum, and that is what I compute.",
    why="On paper yes. In float32 exp(89) is infinite, and infinity over infinity is NaN. Here "
    "torch's own softmax is allowed, and it is safe.",
)
def naive_softmax(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    e = scaled(query, key).exp()
    weights = e / e.sum(-1, keepdim=True)
    return weights @ value, weights


def shape_errors_but_when_equal(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(query @ key.permute(2, 1, 0) / math.sqrt(query.shape[-1]), value)


@task.fault(
    "D-TRANSPOSE-T",
    thinks="`.T` exchanges the rows and columns of every table, also in a batch.",
    why="`.T` reverses *all* axes: (b n d) becomes (d n b), and sentences meet features. Only the "
    "last two axes should change places.",
    forms=(shape_errors_but_when_equal,),
)
def transposed_with_t(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(query @ key.T / math.sqrt(query.shape[-1]), value)


@task.fault(
    "C-EINSUM-SENTENCES",
    thinks="In einsum each tensor may use letters of its own for the batch.",
    why="A letter that occurs in one input only is summed away: every query meets the keys of all "
    "sentences added up. One sentence alone does not show it.",
)
def keys_summed_over_the_batch(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(torch.einsum("bqd,ckd->bqk", query, key) / math.sqrt(query.shape[-1]), value)


@task.fault(
    "H-BATCH-FIRST",
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


@task.fault(
    "C-ONE-LONG-SENTENCE",
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


@task.fault(
    "A-TIED-PROJ",
    thinks="Queries and keys come from the same words, so one matrix will do for both.",
    why="Then the scores are symmetric, and every word is a good match for itself. Asking and "
    "being found are two things, so there are two matrices.",
    section="self-attention-breaks",
    forms=(lambda x, W_query, W_key, W_value: attend(scaled(x @ W_key, x @ W_key), x @ W_value),),
)
def one_matrix_for_queries_and_keys(x, W_query, W_key, W_value):
    return attend(scaled(x @ W_query, x @ W_query), x @ W_value)


@task.fault(
    "C-NO-PROJECTION",
    thinks="Words can be compared as they are; only the values need a matrix.",
    why="That is the smallest choice the chapter begins with. There each word hears little but "
    "itself, and nothing about whom it looks for can be learned.",
    section="one-sequence",
)
def words_compared_as_they_are(x, W_query, W_key, W_value):
    return attend(scaled(x, x), x @ W_value)


@task.fault(
    "C-RAW-VALUES",
    thinks="The weights average the words themselves.",
    why="Then what a word hands over is all of itself. W_value decides what it hands over, and "
    "how wide the output is.",
)
def values_not_projected(x, W_query, W_key, W_value):
    return attend(scaled(x @ W_query, x @ W_key), x)


@task.fault(
    "A-VALUE-IS-KEY",
    thinks="What a word is found by is also what it hands over.",
    why="That gives outputs made of keys. A title on the shelf is not the book: keys are for "
    "finding, values for reading.",
)
def keys_as_values(x, W_query, W_key, W_value):
    query, key, _ = projected(x, W_query, W_key, W_value)
    return attend(scaled(query, key), key)


@task.fault(
    "C-ROLES-SWAPPED",
    thinks="Key times query or query times key, a product is a product.",
    why="Row i should say whom word i reads. With the two exchanged, row i says who would read "
    "word i, and the softmax normalizes that.",
    section="rows-and-columns",
)
def query_and_key_exchanged(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(scaled(key, query), value)


@task.fault(
    "C-COLUMNS-RETURNED",
    thinks="Weights are drawn with a query in each column, so I return them so.",
    why="Some books and videos do. In this course a row is a query, and `weights @ value` must "
    "give the output. Your output is fine; the table beside it is turned.",
    section="rows-and-columns",
)
def weights_turned(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output, weights.mT


@task.fault(
    "C-COLUMNS-AVERAGED",
    thinks="The output multiplies the values by the weights, whichever side is up.",
    why="Your weights are right, and the output reads them along the columns: word i gets what "
    "others wanted of it. The axis summed away must be the keys.",
    section="rows-and-columns",
    forms=(
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


@task.fault(
    "C-MATRIX-LEFT",
    thinks="A matrix is applied from the left: W times x, as in mathematics.",
    why="There a vector is a column. In x (b n m) each word is a row, and its features are the "
    "last axis: that axis has to meet the first one of W (m d).",
    section="rows-and-columns",
    forms=(transposed_matrices_on_the_left, columns_against_rows),
)
def matrices_on_the_left(x, W_query, W_key, W_value):
    return attend(scaled(W_query @ x, W_key @ x), W_value @ x)


def linear_with_reshaped_matrices(x, W_query, W_key, W_value):
    query, key, value = (x @ W.reshape(W.T.shape).T for W in (W_query, W_key, W_value))
    return attend(scaled(query, key), value)


@task.fault(
    "C-LINEAR-LAYOUT",
    thinks="These matrices are laid out like those of `nn.Linear`.",
    why="`nn.Linear` stores (out in) and multiplies by the transpose. Here W is (m d): tokens are "
    "rows, so the word stands on the left and W as it is.",
    section="rows-and-columns",
    forms=(linear_with_reshaped_matrices,),
)
def matrices_as_linear_stores_them(x, W_query, W_key, W_value):
    query, key, value = (F.linear(x, W) for W in (W_query, W_key, W_value))
    return attend(scaled(query, key), value)


@task.fault(
    "D-DK-DV",
    thinks="Query, key and value have the same width.",
    why="Often they do, and then this works. But only queries and keys must agree, to be "
    "compared. The width of a value is its own.",
)
def equal_widths_assumed(x, W_query, W_key, W_value):
    query, key, value = torch.stack([x @ W_query, x @ W_key, x @ W_value]).unbind()
    return attend(scaled(query, key), value)


def diagonal_very_low(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    alone = torch.eye(x.shape[1], dtype=torch.bool)
    return attend(scaled(query, key).masked_fill(alone, -1e9), value)


@task.fault(
    "C-NOT-ITSELF",
    thinks="A word attends to the *other* words; its own meaning it has already.",
    why="The sum runs over all words, the asking one included. Without itself a word of one "
    "sentence has nobody to hear at all.",
    section="who-asks",
    forms=(diagonal_very_low,),
)
def diagonal_hidden(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    alone = torch.eye(x.shape[1], dtype=torch.bool)
    return attend(scaled(query, key).masked_fill(alone, -torch.inf), value)


@task.fault(
    "C-CAUSAL",
    thinks="A word may read only the words before it.",
    why="That is a choice of decoders, made with a mask in chapter 6. Nothing here hides "
    "anything: *model* needs *fashion*, and sometimes the word that matters comes later.",
    section="order-blind",
)
def future_hidden(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return attend(scaled(query, key).masked_fill(future, -torch.inf), value)


@task.fault(
    "C-PLACED-INSIDE",
    thinks="Attention has to know the order, so it adds the positions itself.",
    why="Where positions come from is the caller's business: they are added to x before, once. "
    "The layer itself gives words in another order the same outputs.",
    section="equivariance",
)
def positions_added_inside(x, W_query, W_key, W_value):
    return attend_over_words(x + positions(*x.shape[1:]).to(x.dtype), W_query, W_key, W_value)


@task.fault(
    "C-RESIDUAL",
    thinks="What a word hears is added to what it hands over itself.",
    why="A Transformer adds its input around the layer, in chapter 7. Inside, the output is the "
    "average alone.",
)
def own_value_added(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output + x @ W_value, weights


@task.fault(
    "C-SCORES-RETURNED",
    thinks="Scores and weights are two words for the same table.",
    why="Scores are what comes before the softmax, weights what comes after: positive, and one "
    "in each row. Your output is fine; the table beside it holds scores.",
    section="one-sequence",
)
def scores_returned(x, W_query, W_key, W_value):
    output, _ = attend_over_words(x, W_query, W_key, W_value)
    return output, scaled(x @ W_query, x @ W_key)


@task.fault(
    "C-PAIR-EXCHANGED",
    thinks="The weights are computed first, so they are returned first.",
    why="The caller unpacks `output, weights`, in this order. Where n = v the shapes agree, and "
    "nobody gets an error.",
)
def weights_returned_first(x, W_query, W_key, W_value):
    return attend_over_words(x, W_query, W_key, W_value)[::-1]


@task.fault(
    "C-BATCH-MEAN",
    thinks="One table of weights is enough for the batch, so I return their mean.",
    why="Every sentence has a table of its own; the mean of the tables of two sentences belongs to "
    "neither. A batch of one hides it.",
)
def mean_of_the_tables(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output, weights.mean(0)


@task.fault(
    "C-WEIGHTS-DETACHED",
    thinks="Weights are for looking at, so they need no gradient.",
    why="The values are right. But the output is made with the weights: cut off, they let no "
    "gradient through to W_query and W_key, and nobody learns where to look.",
)
def weights_cut_off(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = scaled(query, key).softmax(-1).detach()
    return weights @ value, weights


@task.fault(
    "C-MATRICES-DETACHED",
    thinks="The matrices are given, so they are constants.",
    why="They are given to be learned. `.data`, `.detach()` or a layer built from a copy cuts "
    "them off: only x still gets a gradient.",
)
def matrices_cut_off(x, W_query, W_key, W_value):
    return attend_over_words(x, W_query.detach(), W_key.detach(), W_value.detach())


def gradients_off(x, W_query, W_key, W_value):
    with torch.no_grad():
        return attend_over_words(x, W_query, W_key, W_value)


@task.fault(
    "C-NO-GRADIENT",
    thinks="Right numbers are a right answer.",
    why="The numbers are right, and nothing can be learned from them: `no_grad`, `.detach()` or a "
    "detour through NumPy cut the words and all three matrices off.",
    forms=(gradients_off,),
)
def everything_cut_off(x, W_query, W_key, W_value):
    output, weights = attend_over_words(x, W_query, W_key, W_value)
    return output.detach(), weights.detach()


@task.fault(
    "C-OWN-LINEARS",
    thinks="The function makes its three `nn.Linear`s itself; the arguments say how wide.",
    why="Layers made inside start with random weights at every call, and are thrown away after it. "
    "The matrices that you were given are never used.",
)
def linears_of_its_own(x, W_query, W_key, W_value):
    query, key, value = (
        torch.nn.Linear(*W.shape, bias=False, dtype=x.dtype)(x) for W in (W_query, W_key, W_value)
    )
    return attend(scaled(query, key), value)


@task.fault(
    "C-SCALE-INPLACE",
    thinks="The scale can be put into W_query once and for all.",
    why="Into a copy, yes. `/=` changes the caller's own matrix, so the next call scales again: "
    "the first result is right, the second is not.",
)
def scale_put_into_the_matrix(x, W_query, W_key, W_value):
    W_query /= math.sqrt(W_query.shape[-1])
    query, key, value = projected(x, W_query, W_key, W_value)
    return attend(dot_products(query, key), value)


@task.fault(
    "C-FLOAT32",
    thinks="Everything is float32 anyway.",
    why="Your result is float32 although the words came as float64: the caller loses half of the "
    "digits. Keep the dtype that came.",
)
def always_float32(x, W_query, W_key, W_value):
    return attend_over_words(*(t.float() for t in (x, W_query, W_key, W_value)))


_kept: dict = {}


@task.fault(
    "K-STALE",
    thinks="Projections are costly, so I compute them once and keep them.",
    why="For the next sentence of the same shape your answer still holds the words of the last. "
    "The first call is right, and every later one is about somebody else.",
)
def projections_kept(x, W_query, W_key, W_value):
    shapes = x.shape, W_query.shape, W_value.shape, x.dtype
    if shapes not in _kept:
        _kept[shapes] = [t.detach() for t in projected(x, W_query, W_key, W_value)]
    query, key, value = _kept[shapes]
    return attend(scaled(query, key), value)


@task.fault(
    "D-SDPA-DROPOUT",
    thinks="Attention has dropout, so some weights are set to zero by chance.",
    why="That belongs into training, and somebody has to switch it off. A function cannot know: "
    "yours gives another answer at every call.",
)
def dropout_always(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = F.dropout(scaled(query, key).softmax(-1), 0.1)
    return weights @ value, weights


@task.fault(
    "C-NO-SCALE-AND-COLUMNS",
    thinks="softmax(QKᵀ)V: the formula has no more to it, and softmax takes axis 1 of (b n n).",
    why="Two things at once: nothing keeps the scores from growing with d, and axis 1 is the "
    "queries, so columns sum to one and rows do not.",
)
def two_errors_at_once(x, W_query, W_key, W_value):
    query, key, value = projected(x, W_query, W_key, W_value)
    weights = dot_products(query, key).softmax(1)
    return weights @ value, weights

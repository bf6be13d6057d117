import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, compare, following, has_shape, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.additive._scores import in_a_layer

# In float64, d = 16: neither its root nor the inverse of it has a rounding.
DOUBLE = {"dtype": torch.float64, "d": 16}


def sentence_inputs(rng, b=2, n=4, m=5, d=3, v=6, dtype=torch.float32):
    return {
        "x": normal(rng, b, n, m, dtype=dtype),
        "W_query": normal(rng, m, d, dtype=dtype),
        "W_key": normal(rng, m, d, dtype=dtype),
        "W_value": normal(rng, m, v, dtype=dtype),
    }


def large_sentence(rng, n=4, size=1e4, apart=1):
    """Scores near ±`size` after scaling, of one sign in a row; the last feature is the values'."""
    x = torch.zeros(1, n, 3)
    x[0, :, 0] = (-1.0) ** torch.arange(n)
    x[0, :, 1] = apart * torch.randperm(n, generator=rng, device="cpu") + size
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
    has_shape("weights", weights, "(b n n)", 3, 5, 5, inputs=inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(3, 5), inputs)


@task.check(1)
def a_word_alone_gets_its_own_value_with_weight_one(answer, rng):
    inputs = sentence_inputs(rng, n=1)
    output, weights = answer(inputs)
    compare("weights", weights, torch.ones(2, 1, 1), inputs)
    compare("output", output, inputs["x"] @ inputs["W_value"], inputs)


@task.check(1)
def who_looks_for_nothing_or_cannot_tell_the_keys_apart_hears_all_alike(answer, rng):
    with following(lambda: every_word_has_one_whole_attention_to_give(answer, rng)):
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


def a_sentence_alone_can_be_reordered(answer, rng):
    """A Failure for an answer that is not the same from call to call, whatever its sizes."""
    inputs = sentence_inputs(rng, b=1, n=5)
    backward = inputs | {"x": inputs["x"].flip(1)}
    compare("output, words reordered", answer(backward)[0], answer(inputs)[0].flip(1), backward)


@task.check(1)
def sentences_of_a_batch_do_not_hear_each_other(answer, rng):
    with following(lambda: a_sentence_alone_can_be_reordered(answer, rng)):
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
    with following(lambda: answer.matches(sentence_inputs(rng, b=3))):
        for size in (1e4, -1e4):  # so far apart that one word wins, whatever the scale
            answer.matches(large_sentence(rng, size=size, apart=100), tolerance=5e-3)


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
            "After a call with other words, your answer still gives the result of that call: it "
            "keeps something from one call to the next.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class SelfAttention:
    def project(x, W):
        return x @ W

    def roles(query, key, value, x):
        return query, key, value

    def compare(query, key):
        return query @ key.mT

    def scale(scores, query, value, x):
        return scores / math.sqrt(query.shape[-1])

    def hide(scores):
        return scores

    def share(scores):
        return scores.softmax(-1)

    def after(weights, query):
        return weights

    def average(weights, value, x):
        return weights @ value

    def results(output, weights, scores):
        return output, weights

    def __call__(self, x, W_query, W_key, W_value):
        projected = (self.project(x, W) for W in (W_query, W_key, W_value))
        query, key, value = self.roles(*projected, x)
        scores = self.hide(self.scale(self.compare(query, key), query, value, x))
        weights = self.after(self.share(scores), query)
        return self.results(self.average(weights, value, x), weights, scores)


# --- faults: the three views --------------------------------------------------------------------

task.fault(
    "A-TIED-PROJ",
    section="self-attention-breaks",
    roles=(lambda query, key, value, x: (query, query, value), lambda q, key, v, x: (key, key, v)),
)
task.fault(
    "C-NO-PROJECTION", section="one-sequence", roles=lambda query, key, value, x: (x, x, value)
)
task.fault(
    "C-HALF-PROJECTED",
    roles=(
        lambda query, key, value, x: (query, x, value),
        lambda q, key, value, x: (x, key, value),
    ),
)
task.fault("C-RAW-VALUES", roles=lambda query, key, value, x: (query, key, x))
task.fault("A-VALUE-IS-KEY", roles=lambda query, key, value, x: (query, key, key))
task.fault("C-VALUE-IS-QUERY", roles=lambda query, key, value, x: (query, key, query))
task.fault(
    "C-ROLES-SWAPPED",
    section="rows-and-columns",
    roles=lambda query, key, value, x: (key, query, value),
)
task.fault("D-DK-DV", roles=lambda query, key, value, x: torch.stack([query, key, value]).unbind())
task.fault(
    "C-MATRIX-LEFT",
    section="rows-and-columns",
    project=(lambda x, W: W @ x, lambda x, W: W.T @ x, lambda x, W: W @ x),
    compare=(..., ..., lambda query, key: key @ query.mT),
    share=(..., ..., lambda scores: scores.softmax(-2)),
    average=(..., ..., lambda weights, value, x: value @ weights),
)
task.fault(
    "C-LINEAR-LAYOUT",
    section="rows-and-columns",
    project=(F.linear, lambda x, W: x @ W.reshape(W.T.shape).T),
)
task.fault(
    "C-BENT-PROJECTIONS",
    project=(lambda x, W: (x @ W).tanh(), lambda x, W: (x @ W).relu()),
)
task.fault("C-OWN-LINEARS", project=lambda x, W: nn.Linear(*W.shape, bias=False, dtype=x.dtype)(x))


task.fault("C-MATRICES-DETACHED", project=(lambda x, W: x @ W.detach(), in_a_layer))


@task.fault("C-PLACED-INSIDE", section="equivariance")
class PlacedInside(SelfAttention):
    def __call__(self, x, *matrices):
        return super().__call__(x + reference.sinusoidal_positions(*x.shape[1:]).to(x), *matrices)


@task.fault("H-BATCH-FIRST", section="one-sequence")
class BatchFirst(SelfAttention):
    def __call__(self, x, *matrices):
        output, weights = super().__call__(x.transpose(0, 1), *matrices)
        return output.transpose(0, 1), weights


@task.fault("C-ONE-LONG-SENTENCE", section="one-sequence")
class OneLongSentence(SelfAttention):
    def __call__(self, x, *matrices):
        b, n, _ = x.shape
        output, weights = super().__call__(x.reshape(1, b * n, -1), *matrices)
        own = torch.stack([weights[0, i * n : (i + 1) * n, i * n : (i + 1) * n] for i in range(b)])
        return output.reshape(b, n, -1), own


# --- faults: scores -----------------------------------------------------------------------------


def by_root(size):
    """Scores over the root of some size."""
    return lambda scores, query, value, x: scores / math.sqrt(size(query, value, x))


def by_number(number):
    return lambda scores, query, value, x: scores / number


def hide_where(table, fill):
    """Scores of pairs of words that a table of n words marks are filled."""
    return lambda scores: scores.masked_fill(table(scores.shape[-1]).bool(), fill)


def from_itself_on(n):
    return torch.ones(n, n).triu()


def above(n):
    return torch.ones(n, n).triu(1)


task.fault(
    "D-TRANSPOSE-T",
    compare=(lambda query, key: query @ key.T, lambda query, key: query @ key.permute(2, 1, 0)),
)
task.fault("C-TRANSPOSE-FIRST", compare=lambda query, key: query @ key.transpose(0, 1))
task.fault(
    "C-EINSUM-SENTENCES", compare=lambda query, key: torch.einsum("bqd,ckd->bqk", query, key)
)
task.fault(
    "D-RESHAPE-KEY",
    section="rows-and-columns",
    compare=lambda query, key: query @ key.reshape(key.shape[0], key.shape[2], key.shape[1]),
)
task.fault(
    "D-COSINE",
    compare=lambda query, key: F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT,
    scale=(as_is, ...),
)
task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DMODEL", scale=by_root(lambda query, value, x: x.shape[-1]))
task.fault("D-SCALE-DK", scale=lambda scores, query, value, x: scores / query.shape[-1])
task.fault("C-SCALE-DV", scale=by_root(lambda query, value, x: value.shape[-1]))
task.fault("C-SCALE-WORDS", scale=by_root(lambda query, value, x: x.shape[1]))
task.fault("C-SCALE-FIXED", scale=by_number(8))
task.fault(
    "C-SCALE-TIMES", scale=lambda scores, query, value, x: scores * math.sqrt(query.shape[-1])
)
task.fault(
    "D-SCALE-AFTER", scale=as_is, after=lambda weights, query: weights / math.sqrt(query.shape[-1])
)
task.fault(
    "C-NOT-ITSELF",
    section="who-asks",
    hide=(hide_where(torch.eye, -torch.inf), hide_where(torch.eye, -1e9)),
)
task.fault(
    "C-CAUSAL",
    section="order-blind",
    hide=(
        hide_where(above, -torch.inf),
        hide_where(above, -1e9),
        hide_where(from_itself_on, -1e9),
        hide_where(from_itself_on, -torch.inf),
    ),
)


@task.fault("C-SCALE-INPLACE")
class ScaledInPlace(SelfAttention):
    def scale(scores, query, value, x):
        return scores

    def __call__(self, x, W_query, W_key, W_value):
        W_query /= math.sqrt(W_query.shape[-1])
        return super().__call__(x, W_query, W_key, W_value)


# --- faults: weights ----------------------------------------------------------------------------

AXES = {"section": "rows-and-columns"}


def naive(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


task.fault("D-SOFTMAX-DIM", section="rows-and-columns", share=lambda scores: scores.softmax(-2))
task.fault("C-SOFTMAX-BATCH", share=lambda scores: scores.softmax(0))
task.fault("D-NAIVE-SOFTMAX", share=naive)
task.fault("D-GLOBAL-MAX", share=lambda scores: naive(scores - scores.max()))
task.fault(
    "D-SOFTMAX-ALL", **AXES, share=lambda scores: scores.flatten(-2).softmax(-1).view(scores.shape)
)
task.fault("D-NO-SOFTMAX", share=as_is)
task.fault(
    "D-HARD-ATTENTION",
    share=lambda scores: F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores),
)
task.fault("C-SIGMOID-WEIGHTS", share=torch.sigmoid)
task.fault("C-TWO-SOFTMAXES", share=lambda scores: scores.softmax(-1).softmax(-1))
task.fault("C-DIVIDED-BY-SUM", share=lambda scores: scores / scores.sum(-1, keepdim=True))
task.fault(
    "C-COLUMNS-AVERAGED",
    section="rows-and-columns",
    average=lambda weights, value, x: weights.mT @ value,
)
task.fault(
    "C-RESIDUAL",
    average=(
        lambda weights, value, x: weights @ value + value,
        lambda weights, value, x: weights @ value + x,
        lambda weights, value, x: weights @ value + (x if x.shape == value.shape else 0),
    ),
)
task.fault("D-SDPA-DROPOUT", after=lambda weights, query: torch.dropout(weights, 0.1, train=True))
task.fault("C-WEIGHTS-DETACHED", after=lambda weights, query: weights.detach())

# --- faults: what is kept and returned ----------------------------------------------------------

task.fault(
    "C-COLUMNS-RETURNED",
    section="rows-and-columns",
    results=lambda output, weights, scores: (output, weights.mT),
)
task.fault(
    "C-SCORES-RETURNED",
    section="one-sequence",
    results=lambda output, weights, scores: (output, scores),
)
task.fault("C-PAIR-EXCHANGED", results=lambda output, weights, scores: (weights, output))
task.fault("D-OUTPUT-ONLY", results=lambda output, weights, scores: output)
task.fault("C-BATCH-MEAN", results=lambda output, weights, scores: (output, weights.mean(0)))
task.fault(
    "C-NO-GRADIENT", results=lambda output, weights, scores: (output.detach(), weights.detach())
)


@task.fault("C-FLOAT32")
class InFloat32(SelfAttention):
    def __call__(self, *inputs):
        return super().__call__(*(each.float() for each in inputs))


@task.fault("K-STALE")
class Kept(SelfAttention):
    kept: ClassVar[dict] = {}

    def __call__(self, x, *matrices):
        shapes = x.shape, *(W.shape for W in matrices), x.dtype
        self.projected = self.kept.setdefault(shapes, [(x @ W).detach() for W in matrices])
        return super().__call__(x, *matrices)

    def roles(self, query, key, value, x):
        return self.projected

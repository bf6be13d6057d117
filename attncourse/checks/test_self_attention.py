"""The checks of chapter 4. Each one's name is the sentence a teacher would say."""

import math
import zlib

import pytest
import torch

from attncourse import self_attention as reference
from attncourse.checks.common import integers, moves_nothing, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Failure, Task, compare, shape_of

points = pytest.mark.points


# --- self_attention -----------------------------------------------------------------------------
# Letters: b sentences, n words, m model width, d width of query and key, v width of a value.

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


class TestSelfAttention:
    task = Task(
        name="self_attention",
        reference=reference.self_attention,
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

    @points(1)
    def test_it_returns_an_output_and_the_weights(self, answer, rng):
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

    @points(1)
    def test_every_word_has_one_whole_attention_to_give(self, answer, rng):
        inputs = sentence_inputs(rng, b=3, n=5)
        _, weights = answer(inputs)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        if weights.shape != (3, 5, 5):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (3 5 5).", inputs)
        compare("the sum of each row of weights", weights.sum(-1), torch.ones(3, 5), inputs)

    @points(1)
    def test_a_word_alone_can_only_hear_itself(self, answer, rng):
        inputs = sentence_inputs(rng, n=1)
        output, weights = answer(inputs)
        compare("weights", weights, torch.ones(2, 1, 1), inputs)
        compare("output", output, inputs["x"] @ inputs["W_value"], inputs)

    @points(1)
    def test_who_looks_for_nothing_hears_all_alike(self, answer, rng):
        for name in ("W_query", "W_key"):
            inputs = sentence_inputs(rng)
            inputs[name] = torch.zeros_like(inputs[name])
            output, weights = answer(inputs)
            compare("weights", weights, torch.full((2, 4, 4), 0.25), inputs)
            mean = (inputs["x"] @ inputs["W_value"]).mean(1, keepdim=True)
            compare("output", output, mean.expand(2, 4, 6), inputs)

    @points(2)
    def test_output_and_weights_match_the_formula(self, answer, rng):
        answer.matches(sentence_inputs(rng, b=3))
        answer.matches(sentence_inputs(rng, b=4, n=4, m=4, d=4, v=4))
        answer.matches(sentence_inputs(rng, b=2, n=3, m=4, d=4, v=4))
        answer.matches(sentence_inputs(rng, n=3, m=2, d=11, v=3))
        answer.matches(sentence_inputs(rng, b=1, n=1, m=1, d=1, v=1))
        answer.matches(sentence_inputs(rng, n=3, m=4, v=2, **DOUBLE))
        answer.matches(turned(sentence_inputs(rng, b=3)))

    @points(1)
    def test_sentences_of_a_batch_do_not_hear_each_other(self, answer, rng):
        for n in (3, 5):
            inputs = sentence_inputs(rng, b=3, n=n)
            together = answer(inputs)
            for row in range(3):
                alone = answer(inputs | {"x": inputs["x"][row : row + 1]})
                for name, one, all_ in zip(("output", "weights"), alone, together, strict=True):
                    name = f"{name} of a sentence, in a batch and on its own"
                    compare(name, all_[row : row + 1], one, inputs)

    @points(1)
    def test_in_another_order_every_word_gets_the_same(self, answer, rng):
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

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        answer.matches(large_sentence(rng), tolerance=5e-3)
        answer.matches(large_sentence(rng, size=-1e4), tolerance=5e-3)

    @points(1)
    def test_gradients_reach_the_words_and_all_three_matrices(self, answer, rng):
        answer.gradients_match(sentence_inputs(rng))
        answer.gradients_match(sentence_inputs(rng, b=3, n=3, m=3, d=3, v=3))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        inputs = sentence_inputs(rng, b=3)
        moves_nothing(answer, inputs)
        if remembers(answer, inputs):
            raise Failure(
                "After a call with other words, your answer still gives the result of that call: "
                "it keeps something from one call to the next.",
                inputs,
            )


# --- is_permutation_equivariant -----------------------------------------------------------------
# The layers have a name, so that inputs stay plain data; their weights depend on name and width.


def weights_for(name, x, *shapes):
    rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return [normal(rng, *shape).to(x.dtype) / shape[0] ** 0.5 for shape in shapes]


def attention_layer(x, mask=None, width=3):
    m = x.shape[-1]
    W_query, W_key, W_value = weights_for("attention", x, (m, 4), (m, 4), (m, width))
    scores = (x @ W_query) @ (x @ W_key).mT / 2
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ (x @ W_value)


def causal_attention(x):
    n = x.shape[1]
    return attention_layer(x, torch.ones(n, n, dtype=torch.bool).tril())


def placed(x, numbers):
    """Add to every word a number that belongs to its position."""
    return x + torch.as_tensor(numbers, dtype=x.dtype)[:, None]


def waves(x):
    """Sinusoidal positions for x, written down once more."""
    p, i = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[2])
    angle = p / 10_000 ** (i // 2 * 2 / x.shape[2]) + (i % 2) * math.pi / 2
    return angle.sin().to(x.dtype)


def network(x):
    W_1, W_2 = weights_for("network", x, (x.shape[-1], 6), (6, 5))
    return (x @ W_1).relu() @ W_2


def recurrence(x):
    W, U = weights_for("recurrence", x, (x.shape[-1], 4), (4, 4))
    states = [torch.zeros(len(x), 4, dtype=x.dtype)]
    for word in x.unbind(1):
        states.append((word @ W + states[-1] @ U).tanh())
    return torch.stack(states[1:], 1)


def placed_in_two_features(x):
    """Positions that change two features in opposite ways: neither the others nor the sum."""
    x = x.clone()
    x[..., 0] += torch.arange(x.shape[1])
    x[..., -1] -= torch.arange(x.shape[1])
    return x


def neighbors(x, before, after, ring=False):
    """Every word, and a share of the words on both sides of it."""
    earlier, later = x.roll(1, 1), x.roll(-1, 1)
    if not ring:
        earlier, later = earlier.clone(), later.clone()
        earlier[:, 0], later[:, -1] = 0, 0
    return x + before * earlier + after * later


def between_1_and_2(layer):
    """The layer, and word by word something that keeps rounding far below any sound tolerance."""
    return lambda x: 1.5 + layer(x).tanh() / 2


def rounded_in_turn(x):
    """The words, as if every second one had been rounded up and the others down, by two steps."""
    step = torch.finfo(x.dtype).eps
    return placed(1.5 + x.tanh() / 2, [2 * step * (-1) ** p for p in range(x.shape[1])])


def numbered(n, alike=()):
    """The numbers 1, 2, …; positions in `alike` share one."""
    return [0.0 if p in alike else float(p + 1) for p in range(n)]


BLIND = {
    "self-attention": between_1_and_2(attention_layer),
    "self-attention, twice": between_1_and_2(lambda x: attention_layer(attention_layer(x))),
    "a network for each word": between_1_and_2(network),
    "the words as they are": lambda x: x,
    "the largest numbers for all": lambda x: x.amax(1, keepdim=True).expand(*x.shape).clone(),
    "each word minus the mean": between_1_and_2(lambda x: x - x.mean(1, keepdim=True)),
    "each feature shared out over the words": between_1_and_2(lambda x: x.softmax(1)),
    "the words, rounded up and down in turn": rounded_in_turn,
}
SEEING = {
    "a recurrence": recurrence,
    "causal self-attention": causal_attention,
    "a running sum": lambda x: x.cumsum(1),
    "a running sum, minus the first sentence": lambda x: (x - x[:1] / 2).cumsum(1),
    "reversed": lambda x: x.flip(1),
    "shifted by one": lambda x: x.roll(1, 1),
    "sorted": lambda x: x.sort(1).values,
    "self-attention with sinusoidal positions": lambda x: attention_layer(x + waves(x)),
    "words with sinusoidal positions": lambda x: x + waves(x),
    "words with learned positions": lambda x: x + weights_for("table", x, x.shape[1:])[0],
    "words with very small positions": lambda x: placed(  # 0.03 to 0.05, beside words of 1 to 2
        1.5 + x.tanh() / 2, [(-1) ** p * (0.03 + 0.002 * p) for p in range(x.shape[1])]
    ),
    "positions in two features": placed_in_two_features,
    "the word before": lambda x: neighbors(x, 1.0, 0.0),
    "neighbors in a ring": lambda x: neighbors(x, 0.5, 0.2, ring=True),
    "both neighbors alike": lambda x: neighbors(x, 0.5, 0.5),
    "both neighbors alike in a ring": lambda x: neighbors(x, 0.5, 0.5, ring=True),
    "positions, the first two alike": lambda x: placed(x, numbered(x.shape[1], (0, 1))),
    "positions, the last two alike": lambda x: placed(
        x, numbered(x.shape[1], (x.shape[1] - 2, x.shape[1] - 1))
    ),
    "positions, first and last alike": lambda x: placed(
        x, numbered(x.shape[1], (0, x.shape[1] - 1))
    ),
}
LAYERS = BLIND | SEEING


def with_a_layer(answer):
    """Make the answer a function of a layer's name and x."""

    def function(layer, x):
        return answer(LAYERS[layer], x)

    return function


def layer_inputs(rng, layer, b=3, n=None, m=5):
    """A few words for a layer: so few for one that is blind that all their orders can be tried.

    For a layer that sees, 7 words: one random order of so many is hardly ever one that this layer
    happens not to notice. Not one word alone, which has no other order.
    """
    n = n or (5 if layer in BLIND else 7)
    return {"layer": layer, "x": normal(rng, b, n, m)}


def verdict(answer, inputs, **options):
    """Assert that the answer says of a layer what is true."""
    got = answer(inputs, **options)
    if got != (inputs["layer"] in BLIND):
        said = (
            "outputs move along with the words, whatever the order, and you say False"
            if inputs["layer"] in BLIND
            else "outputs do not just move along with the words, and you say True"
        )
        raise Failure(f"The layer “{inputs['layer']}”: its {said}.", inputs, not got, got)


def verdict_probes(rng):
    probed = (
        "self-attention",
        "a network for each word",
        "the largest numbers for all",
        "causal self-attention",
        "a running sum, minus the first sentence",
        "sorted",
        "words with very small positions",
        "neighbors in a ring",
        "both neighbors alike",
        "positions, the first two alike",
        "positions, the last two alike",
        "positions, first and last alike",
    )
    return {layer: layer_inputs(rng, layer, n=6) for layer in probed} | {
        "as many words as sentences": layer_inputs(rng, "a running sum", b=4, n=4),
        # Of five words, the first random order here is the opposite of itself; of six it is not.
        "five words": layer_inputs(rng, "self-attention", n=5),
    }


def depends_on_luck(answer) -> bool:
    """Whether the verdict on a layer that is blind is not always the same."""
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    return len({answer(inputs, seed=seed) for seed in range(12)}) > 1


def verdict_traits(answer):
    inputs = layer_inputs(torch.Generator().manual_seed(0), "self-attention", n=3)
    return {
        "depends on luck": depends_on_luck(answer),
        "resets the random state": answer.resets_random_state(inputs),
    }


def verdict_small(rng):
    for n in (2, 3):
        for layer in BLIND:
            yield layer_inputs(rng, layer, b=1, n=n, m=2)
    for n in (3, 4, 5):
        for layer in SEEING:
            yield layer_inputs(rng, layer, b=1, n=n, m=2)
    for layer in LAYERS:
        yield layer_inputs(rng, layer)


class TestIsPermutationEquivariant:
    task = Task(
        name="is_permutation_equivariant",
        reference=reference.is_permutation_equivariant,
        returns=bool,
        difficulty=3,
        minutes=20,
        section="equivariance",
        hints=(
            "Show the layer the words in another order, and ask: are these the old outputs, in "
            "that same order? Which axis of x are the words?",
            "`x[:, order]` puts words into another order, and outputs can be reordered with the "
            "same `order`. One order may be one that the layer happens not to notice, as a ring "
            "of neighbors does not notice a turn. And sums in another order differ by rounding.",
            "output = layer(x); for several orders, such as a few torch.randperm(n): compare "
            "layer(x[:, order]) with output[:, order] by torch.allclose with a tolerance like "
            "1e-4. True only if all of them agree.",
        ),
        adapt=with_a_layer,
        probes=verdict_probes,
        small=verdict_small,
        traits=verdict_traits,
        chance=True,
    )

    @points(1)
    def test_it_answers_true_or_false(self, answer, rng):
        for layer in ("self-attention", "a recurrence"):
            answer(layer_inputs(rng, layer))

    @points(1)
    def test_self_attention_is_equivariant(self, answer, rng):
        for seed in range(4):  # a random order may happen to be the opposite of itself
            verdict(answer, layer_inputs(rng, "self-attention"), seed=seed)
        verdict(answer, layer_inputs(rng, "self-attention", b=4, n=4, m=4))
        verdict(answer, layer_inputs(rng, "self-attention", b=1, n=2, m=3))
        verdict(answer, layer_inputs(rng, "self-attention, twice", m=3))

    @points(1)
    def test_so_is_what_treats_all_words_alike(self, answer, rng):
        for layer in BLIND:
            verdict(answer, layer_inputs(rng, layer))
        verdict(answer, layer_inputs(rng, "a network for each word", b=2, n=4, m=7))

    @points(1)
    def test_what_reads_in_order_is_not(self, answer, rng):
        for layer in (
            "a recurrence",
            "causal self-attention",
            "a running sum",
            "a running sum, minus the first sentence",
            "reversed",
            "shifted by one",
            "sorted",
            "the word before",
        ):
            verdict(answer, layer_inputs(rng, layer))
        verdict(answer, layer_inputs(rng, "a running sum", b=7, n=7, m=7))

    @points(1)
    def test_positions_make_the_order_visible(self, answer, rng):
        for layer in (
            "self-attention with sinusoidal positions",
            "words with sinusoidal positions",
            "words with learned positions",
            "positions in two features",
        ):
            verdict(answer, layer_inputs(rng, layer))
        verdict(answer, layer_inputs(rng, "words with learned positions", b=7, n=7, m=7))

    @points(2)
    def test_one_lucky_order_is_no_proof(self, answer, rng):
        verdict(answer, layer_inputs(rng, "the words as they are"))
        for layer in (
            "neighbors in a ring",
            "both neighbors alike",
            "both neighbors alike in a ring",
            "positions, the first two alike",
            "positions, the last two alike",
            "positions, first and last alike",
        ):
            verdict(answer, layer_inputs(rng, layer))

    @points(1)
    def test_rounding_is_forgiven_and_small_positions_are_not(self, answer, rng):
        verdict(answer, layer_inputs(rng, "self-attention", b=16, m=8))
        verdict(answer, layer_inputs(rng, "self-attention, twice", b=16, m=8))
        verdict(answer, layer_inputs(rng, "words with very small positions"))
        verdict(answer, layer_inputs(rng, "words with very small positions", b=2, n=6, m=6))

    @points(1)
    def test_it_leaves_the_words_and_chance_as_they_were(self, answer, rng):
        inputs = layer_inputs(rng, "self-attention", n=4)
        answer(inputs)
        seen = answer.observe(inputs)
        if seen.edited:
            raise Failure("Your answer changed x itself; reorder a copy of it instead.", inputs)
        if seen.settings_changed:
            raise Failure("Your answer changed torch's default dtype for everybody.", inputs)
        if answer.resets_random_state(inputs):
            raise Failure(
                "After your answer, the global random generator is always in the same state: a "
                "`manual_seed` inside a function makes everybody's later draws repeat.",
                inputs,
            )
        if depends_on_luck(answer):
            raise Failure(
                "Asked several times about the same layer and the same x, your answer says now "
                "True, now False.",
                inputs,
            )


# --- sinusoidal_positions -----------------------------------------------------------------------


def table_of(length, width):
    return {"length": length, "width": width}


def position_probes(rng):
    return {
        f"{length} positions, width {width}": table_of(length, width)
        for length, width in (
            (5, 8),
            (8, 4),
            (6, 6),
            (4, 2),
            (1, 6),
            (3, 20),
            (300, 6),
            (2, 12),
            (6, 5),
            (4, 1),
        )
    }


def position_traits(answer):
    inputs = table_of(6, 8)
    return {
        "differs from call to call": not torch.equal(answer(inputs, seed=1), answer(inputs, seed=2))
    }


def position_small(rng):
    for length, width in (
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 2),
        (2, 3),
        (3, 3),
        (2, 4),
        (3, 4),
        (2, 5),
        (3, 6),
        (2, 8),
        (300, 2),
    ):
        yield table_of(length, width)


class TestSinusoidalPositions:
    task = Task(
        name="sinusoidal_positions",
        reference=reference.sinusoidal_positions,
        returns=("positions",),
        difficulty=2,
        minutes=20,
        section="sinusoids",
        hints=(
            "Each pair of features is one clock hand: a sine and a cosine of the same angle. How "
            "many hands does an odd width have, and which half of the last hand is left out?",
            "The angle of hand i at position p is p divided by 10000^(2i/width). All angles at "
            "once are an outer product: positions as a column, the speeds of the hands as a row. "
            "`torch.arange(0, width, 2)` is 2i already.",
            "angles: (length hands); a table of zeros (length width); its even columns are the "
            "sines of the angles; its odd columns the cosines of as many angles as there are odd "
            "columns, which is width // 2.",
        ),
        probes=position_probes,
        small=position_small,
        traits=position_traits,
    )

    @points(1)
    def test_one_vector_for_every_position(self, answer):
        for length, width in ((5, 8), (8, 4), (1, 6)):
            inputs = table_of(length, width)
            positions = answer(inputs)
            if positions.shape != (length, width):
                raise Failure(
                    f"positions have shape {shape_of(positions)}; expected (length width) = "
                    f"({length} {width}).",
                    inputs,
                )
            if positions.dtype != torch.float32:
                raise Failure(
                    f"positions are {positions.dtype}; they will be added to words, which are "
                    "float32.",
                    inputs,
                )

    @points(1)
    def test_position_0_is_zeros_and_ones_in_turn(self, answer):
        for width in (2, 8):
            inputs = table_of(4, width)
            got = answer(inputs)
            if got.shape != (4, width):
                raise Failure(
                    f"positions have shape {shape_of(got)}; expected (4 {width}).", inputs
                )
            expected = torch.tensor([0.0, 1.0]).repeat(width // 2)
            compare("the vector of position 0", got[0], expected, inputs)

    @points(2)
    def test_sines_and_cosines_match_the_formula(self, answer):
        for length, width in ((5, 8), (8, 4), (6, 6), (4, 2), (1, 6), (3, 20)):
            answer.matches(table_of(length, width))

    @points(1)
    def test_an_odd_width_ends_with_a_sine(self, answer):
        for length, width in ((6, 5), (5, 5), (7, 3), (4, 1), (1, 7)):
            answer.matches(table_of(length, width))

    @points(1)
    def test_a_long_table_begins_like_a_short_one(self, answer):
        short, long = answer(table_of(4, 6)), answer(table_of(9, 6))
        if long.shape != (9, 6):
            raise Failure(f"positions have shape {shape_of(long)}; expected (9 6).", table_of(9, 6))
        compare("the first 4 of 9 positions", long[:4], short, table_of(4, 6))

    @points(1)
    def test_how_alike_two_positions_are_depends_on_their_distance(self, answer):
        inputs = table_of(12, 8)
        got = answer(inputs)
        products = got @ got.mT
        if products.shape != (12, 12):
            raise Failure(f"positions have shape {shape_of(got)}; expected (12 8).", inputs)
        for distance in range(1, 4):
            along = products.diagonal(distance)
            name = f"the dot products of positions {distance} apart"
            compare(name, along, along[:1].expand_as(along), inputs)

    @points(1)
    def test_far_positions_are_right_too(self, answer):
        answer.matches(table_of(200, 20), tolerance=3e-4)
        # Angles computed in float32 are off by up to 1e-3 here; in 16 bits, by whole radians.
        answer.matches(table_of(1500, 6), tolerance=1e-2)
        answer.matches(table_of(1200, 5), tolerance=1e-2)

    @points(1)
    def test_it_needs_no_chance_and_changes_nothing(self, answer):
        moves_nothing(answer, table_of(5, 6))

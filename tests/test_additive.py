"""Chapter 2's reference code against loops and torch, its own properties and bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensors import (
    DEVICES,
    Call,
    assert_all_agree,
    assert_equal_to,
    gradients,
    make_mask,
    randn,
    seeded,
    steadily,
    word_by_word,
)
from test_bottleneck import tokens
from torch import nn

from attncourse.additive import (
    AdditiveAttention,
    AttentionEncoderDecoder,
    BidirectionalEncoderDecoder,
    ScoredAttention,
    additive_scores,
    annotate,
    attend,
    concat_scores,
    dot_scores,
    general_scores,
)
from attncourse.bottleneck import greedy_decode
from attncourse.cross_attention import translate
from attncourse.pretrained import linear_concat_scores

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, K, E, D, A, V = 2, 5, 3, 4, 7, 6
SIZES = [
    (B, K, E, D, A),
    (4, 4, 4, 4, 4),
    (K, B, D, E, A),
    (1, K, E, D, A),
    (B, 1, E, D, A),
    (B, K, 1, 1, 1),
]


def inputs_of(score, b=B, k=K, e=E, d=D, a=A, seed=0):
    """Query, keys, and the weights of a score."""
    shapes = {
        dot_scores: [(b, d), (b, k, d)],
        general_scores: [(b, e), (b, k, d), (e, d)],
        concat_scores: [(b, e), (b, k, d), (e + d, a), (a,)],
        additive_scores: [(b, e), (b, k, d), (e, a), (d, a), (a,)],
        linear_concat_scores: [(b, e), (b, k, d), (e + d,)],
    }[score]
    return [randn(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]


# The formulas of the papers, for one query and one key.
FORMULAS = {
    dot_scores: lambda q, k: sum(q[i] * k[i] for i in range(len(q))),
    general_scores: lambda q, k, W: sum(
        q[i] * W[i, j] * k[j] for i in range(len(q)) for j in range(len(k))
    ),
    concat_scores: lambda q, k, W, v: v @ torch.tanh(W.T @ torch.cat([q, k])),
    additive_scores: lambda q, k, W, U, v: v @ torch.tanh(W.T @ q + U.T @ k),
    linear_concat_scores: lambda q, k, w: w @ torch.cat([q, k]),
}
SCORES = list(FORMULAS)
FOUR = SCORES[:4]


def named(score):
    return getattr(score, "__name__", None)


# --- Scores agree with their formulas ---


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("score", SCORES, ids=named)
def test_each_score_is_its_formula_for_every_query_and_key(score, sizes):
    inputs = [t.requires_grad_() for t in inputs_of(score, *sizes)]
    query, keys, *weights = inputs
    b, k = sizes[:2]
    rows = [FORMULAS[score](query[i], keys[i, j], *weights) for i in range(b) for j in range(k)]
    assert_all_agree([torch.stack(rows).reshape(b, k)], [score(*inputs)], inputs)


@pytest.mark.parametrize("score", SCORES, ids=named)
def test_no_queries_have_no_scores(score):
    assert score(*inputs_of(score, b=0)).shape == (0, K)
    assert attend(score(*inputs_of(score, b=0)), randn(0, K, V))[0].shape == (0, V)


@pytest.mark.parametrize("score", SCORES, ids=named)
def test_each_score_has_the_right_gradient(score):
    torch.autograd.gradcheck(score, [t.requires_grad_() for t in inputs_of(score)])


def test_side_by_side_is_the_sum_of_two_projections():
    query, keys, W_query, W_key, v = (t.requires_grad_() for t in inputs_of(additive_scores))
    inputs = [query, keys, W_query, W_key, v]
    side_by_side = concat_scores(query, keys, torch.cat([W_query, W_key]), v)  # query first
    assert_all_agree([side_by_side], [additive_scores(*inputs)], inputs)


def test_general_is_dot_after_projecting():
    query, keys, W = inputs_of(general_scores)
    assert_equal_to(dot_scores(query @ W, keys), general_scores(query, keys, W))
    eye = torch.eye(D).double()
    assert_equal_to(dot_scores(query @ W, keys), general_scores(query @ W, keys, eye))


def test_dot_agrees_with_bilinear_and_scaled_attention_before_scaling():
    query, keys = inputs_of(dot_scores)
    expected = F.bilinear(query[:, None].expand(-1, K, -1), keys, torch.eye(D).double()[None])
    assert_equal_to(expected[..., 0], dot_scores(query, keys))
    output = F.scaled_dot_product_attention(query[:, None], keys, keys, scale=1.0)[:, 0]
    assert_equal_to(output, attend(dot_scores(query, keys), keys)[0])


def test_a_linear_score_cannot_see_the_query():
    query, keys, w = inputs_of(linear_concat_scores)
    other = randn(B, E, seed=99)
    moved = linear_concat_scores(other, keys, w) - linear_concat_scores(query, keys, w)
    assert_equal_to(moved[:, :1].expand(B, K), moved)  # the query moves all scores alike
    assert (moved != 0).all()
    weights = [attend(linear_concat_scores(q, keys, w), keys)[1] for q in (query, other)]
    assert_equal_to(*weights)
    query.requires_grad_()
    context, _ = attend(linear_concat_scores(query, keys, w), keys)
    (gradient,) = gradients([context], [query])
    assert_equal_to(torch.zeros(B, E).double(), gradient)


@pytest.mark.parametrize("score", FOUR, ids=named)
def test_the_four_scores_see_the_query(score):
    query, keys, *weights = inputs_of(score)
    other = randn(*query.shape, seed=99)
    before, after = (attend(score(q, keys, *weights), keys)[1] for q in (query, other))
    assert ((before - after).abs() > 1e-6).all()


@pytest.mark.parametrize("score", SCORES, ids=named)
def test_sentences_of_a_batch_do_not_see_each_other(score):
    query, keys, *weights = inputs_of(score, b=3)
    together = score(query, keys, *weights)
    for i in range(3):
        assert_equal_to(together[i : i + 1], score(query[i : i + 1], keys[i : i + 1], *weights))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", FOUR, ids=named)
def test_scores_and_attention_keep_dtype_and_device(score, dtype, device):
    query, keys, *weights = [t.to(device, dtype) / 2 for t in inputs_of(score)]
    mask = make_mask(B, K).to(device)
    scores = score(query, keys, *weights)
    results = scores, *attend(scores, keys, mask)
    # The oracle sees the already rounded inputs: only the arithmetic is on trial.
    query, keys, *weights = [t.cpu().double() for t in (query, keys, *weights)]
    expected = score(query, keys, *weights)
    for want, got in zip((expected, *attend(expected, keys, mask.cpu())), results, strict=True):
        assert got.dtype == dtype and got.device.type == device
        assert_equal_to(want, got.cpu().double(), atol=16 * torch.finfo(dtype).eps)


# --- From scores to a context ---


def oracle(scores, values, mask=None):
    """Weights from torch, the context from a loop (no dead rows, please)."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1)
    context = [
        sum(weights[b, k] * values[b, k] for k in range(values.shape[1]))
        for b in range(len(values))
    ]
    return torch.stack(context), weights


@pytest.mark.parametrize("sizes", [(B, K, V), (4, 4, 4), (K, B, V), (1, K, V), (B, 1, 1)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_attend_agrees_with_torch(sizes, masked):
    b, k, v = sizes
    scores, values = (t.requires_grad_() for t in (randn(b, k), randn(b, k, v, seed=1)))
    mask = make_mask(b, k, seed=3) if masked and k > 1 else None
    expected = oracle(scores, values, mask)
    assert_all_agree(expected, attend(scores, values, mask), [scores, values])


@pytest.mark.parametrize("shape", [(K,), (1, K), (B, K), (B, 1), (1, 1)], ids=str)
def test_any_mask_that_broadcasts_will_do(shape):
    scores, values = randn(B, K), randn(B, K, V, seed=1)
    mask = make_mask(*shape, seed=5) if shape[-1] == K else torch.ones(shape, dtype=torch.bool)
    for want, got in zip(
        oracle(scores, values, mask), attend(scores, values, mask=mask), strict=True
    ):
        assert_equal_to(want, got)


@pytest.mark.parametrize("length", range(1, K + 1))
def test_masking_is_cutting_off(length):
    scores, values = randn(1, K), randn(1, K, V, seed=1)
    context, weights = attend(scores, values, torch.arange(K)[None] < length)
    expected = attend(scores[:, :length], values[:, :length])
    assert_equal_to(expected[0], context)
    assert_equal_to(F.pad(expected[1], (0, K - length)), weights)


def test_true_in_a_mask_means_may_be_attended_to():
    values = randn(K, K, V)
    context, weights = attend(randn(K, K), values, torch.eye(K, dtype=torch.bool))
    assert torch.equal(weights, torch.eye(K).double())
    assert torch.equal(context, values.diagonal().T)


def test_the_context_is_an_average_of_the_values_by_hand():
    scores = torch.tensor([[1.0, 3.0], [1.0, 1.0]]).double().log()
    values = torch.tensor([[[0.0, 8.0], [4.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]]]).double()
    context, weights = attend(scores, values)
    assert_equal_to(torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double(), weights)
    assert_equal_to(torch.tensor([[3.0, 2.0], [1.0, 1.0]]).double(), context)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_sentence_with_nothing_to_attend_to_gives_exactly_zero(dtype):
    mask = torch.tensor([[True, False, True, True, False], [False] * K])
    scores, values = randn(B, K, dtype=dtype), randn(B, K, V, dtype=dtype)
    context, weights = attend(scores, values, mask)
    assert (weights[1] == 0).all() and (context[1] == 0).all()
    assert (weights[0, mask[0]] > 0).all() and (weights[0, ~mask[0]] == 0).all()
    one = attend(scores[1:], values[1:], mask[1:])
    assert (one[0] == 0).all() and (one[1] == 0).all()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_sentence_with_nothing_to_attend_to_leaves_every_gradient_finite():
    mask = torch.tensor([[True, False, True, True, False], [False] * K])
    scores, values = (t.requires_grad_() for t in (randn(B, K), randn(B, K, V)))
    with torch.autograd.set_detect_anomaly(True):
        by_scores, by_values = gradients(attend(scores, values, mask), [scores, values])
    assert (by_scores[~mask] == 0).all() and (by_values[~mask] == 0).all()
    assert (by_scores[mask] != 0).all() and (by_values[mask] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_scores_may_be_huge(dtype, masked):
    scores = torch.tensor([[1e4, -1e4, 1e4, 0.0], [-1e4, -1e4, -2e4, 1e4]]).to(dtype)
    scores.requires_grad_()
    mask = torch.tensor([[True, True, False, True], [True, True, True, False]]) if masked else None
    context, weights = attend(scores, torch.eye(4).to(dtype).expand(2, 4, 4), mask)
    expected = [[1, 0, 0, 0], [0.5, 0.5, 0, 0]] if masked else [[0.5, 0, 0.5, 0], [0, 0, 0, 1]]
    assert weights.tolist() == context.tolist() == expected
    (gradient,) = torch.autograd.grad(context.sum(), scores)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("hidden", [math.inf, -math.inf, math.nan, 1e300])
def test_a_hidden_score_has_no_influence_whatever_it_is(hidden):
    scores, values = randn(B, K), randn(B, K, V)
    mask = make_mask(B, K)
    expected = attend(scores, values, mask)
    for want, got in zip(
        expected, attend(scores.masked_fill(~mask, hidden), values, mask), strict=True
    ):
        assert torch.equal(want, got)


@st.composite
def problems(draw):
    b, k, v, seed = (draw(st.integers(1, 5)) for _ in range(4))
    scores = draw(st.sampled_from([0.01, 1.0, 30.0])) * randn(b, k, seed=seed)
    mask = randn(b, k, seed=seed + 7) > draw(st.sampled_from([-9.0, -0.5, 0.5]))
    mask[0, 0] = True
    return scores, randn(b, k, v, seed=seed + 1), mask


@pytest.mark.slow
@steadily
@given(problems())
def test_weights_sum_to_one_and_the_context_lies_among_the_values(problem):
    _, values, mask = problem
    context, weights = attend(*problem)
    assert (weights >= 0).all() and (weights[~mask] == 0).all()
    alive = mask.any(-1)
    assert_equal_to(alive.double(), weights.sum(-1), atol=1e-12)
    lowest = values.masked_fill(~mask[..., None], math.inf).amin(1)
    highest = values.masked_fill(~mask[..., None], -math.inf).amax(1)
    assert (context[alive] >= lowest[alive] - 1e-12).all()
    assert (context[alive] <= highest[alive] + 1e-12).all()


@steadily
@given(problems(), st.floats(-1e3, 1e3), st.randoms(use_true_random=False))
def test_neither_the_order_of_the_keys_nor_a_constant_matters(problem, constant, random):
    scores, values, mask = problem
    order = random.sample(range(scores.shape[1]), scores.shape[1])
    context, weights = attend(*problem)
    moved = attend(scores[:, order] + constant, values[:, order], mask[:, order])
    assert_equal_to(context, moved[0])
    assert_equal_to(weights[:, order], moved[1])


# --- Attention with its weights ---


@pytest.mark.parametrize("masked", [False, True])
def test_additive_attention_attends_by_additive_scores(masked):
    layer = seeded(AdditiveAttention, E, D, A)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "W_query.weight": (A, E),
        "W_key.weight": (A, D),
        "v.weight": (1, A),
    }
    inputs = [randn(B, E).requires_grad_(), randn(B, K, D).requires_grad_()]
    query, keys = inputs
    mask = make_mask(B, K) if masked else None
    hidden = torch.tanh(layer.W_query(query)[:, None] + layer.W_key(keys))
    expected = oracle(layer.v(hidden)[..., 0], keys, mask)  # the values are the keys
    actual = layer(query, keys, mask=mask)
    assert_all_agree(expected, actual, [*inputs, *layer.parameters()])


WEIGHTS = {
    dot_scores: {},
    general_scores: {"W": (E, D)},
    concat_scores: {"W": (E + D, A), "v": (A,)},
    additive_scores: {"W_query": (E, A), "W_key": (D, A), "v": (A,)},
    linear_concat_scores: {"w": (E + D,)},
}


@pytest.mark.parametrize("score", SCORES, ids=named)
def test_scored_attention_takes_any_score(score):
    layer = seeded(ScoredAttention, score, **WEIGHTS[score])
    inputs = [t.requires_grad_() for t in inputs_of(score)[:2]]
    query, keys = inputs
    assert {name: tuple(p.shape) for name, p in layer.weights.items()} == WEIGHTS[score]
    weights = dict(layer.weights.items())
    mask = make_mask(B, K)
    expected = attend(score(query, keys, **weights), keys, mask)
    assert_all_agree(expected, layer(query, keys, mask), [*inputs, *layer.parameters()])
    assert_equal_to(attend(score(query, keys, **weights), keys)[0], layer(query, keys)[0])


@pytest.mark.parametrize("score", FOUR, ids=named)
def test_the_weights_of_a_score_start_at_a_sensible_size(score):
    sizes = {"e": 64, "d": 64, "a": 64, "b": 50, "k": 20}
    query, keys, *weights = inputs_of(score, **sizes)
    shapes = zip(WEIGHTS[score], (w.shape for w in weights), strict=True)
    layer = seeded(ScoredAttention, score, **{name: tuple(shape) for name, shape in shapes})
    scores = score(query / 8, keys, **layer.weights)
    assert 0.1 < scores.std() < 2


# --- One annotation a word ---

N, WORDS, HIDDEN = 5, 11, 7


@pytest.fixture(scope="module")
def layers():
    return make_layers()


def one_direction(gru, suffix):
    """One half of a bidirectional GRU, with the very same weights."""
    half = nn.GRU(D, HIDDEN, batch_first=True)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        setattr(half, name, getattr(gru, name + suffix))
    return half


@pytest.mark.parametrize(
    "lengths", [[5, 5, 5], [2, 5, 3], [5, 1, 4], [1, 1, 1], [4, 2, 3]], ids=str
)
def test_an_annotation_is_a_forward_and_a_backward_state(lengths, layers):
    embedding, gru = layers
    forward, backward = one_direction(gru, ""), one_direction(gru, "_reverse")
    sentences = tokens(3, N)
    expected = []
    for sentence, length in zip(sentences, lengths, strict=True):  # each alone, without padding
        x = embedding(sentence[None, :length])
        states = torch.cat([forward(x)[0], backward(x.flip(1))[0].flip(1)], -1)
        expected.append(F.pad(states[0], (0, 0, 0, N - length)))
    parameters = [p for layer in layers for p in layer.parameters()]
    actual = annotate(sentences, torch.tensor(lengths), *layers)
    assert_all_agree([torch.stack(expected)], [actual], parameters)
    for annotations, length in zip(actual, lengths, strict=True):
        assert (annotations[length:] == 0).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}],
    ids=str,
)
def test_any_gru_annotates_a_batch_as_it_annotates_each_sentence(options):
    embedding = seeded(nn.Embedding, WORDS, D)
    gru = seeded(nn.GRU, D, HIDDEN, batch_first=True, **options)
    sentences, lengths = tokens(3, N), [3, 5, 1]
    together = annotate(sentences, torch.tensor(lengths), embedding, gru)
    for sentence, length, annotations in zip(sentences, lengths, together, strict=True):
        alone = gru(embedding(sentence[None, :length]))[0][0]
        assert_equal_to(alone, annotations[:length])


@steadily
@given(st.integers(0, WORDS - 1), st.integers(0, 3))
def test_padding_does_not_matter_whatever_it_is_and_however_long(layers, pad, more):
    sentences, lengths = tokens(3, N, low=0), torch.tensor([3, 1, 4])
    expected = annotate(sentences, lengths, *layers)
    padded = F.pad(sentences, (0, more), value=pad)
    padded[torch.arange(N + more) >= lengths[:, None]] = pad
    actual = annotate(padded, lengths, *layers)
    assert actual.shape == (3, N + more, 2 * HIDDEN), "even where every sentence is shorter"
    assert_equal_to(F.pad(expected, (0, 0, 0, more)), actual)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_lengths_are_whole_numbers_of_any_kind(dtype, layers):
    sentences, lengths = tokens(3, N), torch.tensor([3, 1, 4])
    expected = annotate(sentences, lengths, *layers)
    assert torch.equal(expected, annotate(sentences, lengths.to(dtype), *layers))


@pytest.mark.parametrize("device", DEVICES)
def test_annotate_works_where_its_layers_are(device):
    embedding = seeded(nn.Embedding, WORDS, D).to(device)
    gru = seeded(nn.GRU, D, HIDDEN, batch_first=True).to(device)
    lengths = torch.tensor([3, 1, 4])
    for place in ("cpu", device):
        states = annotate(tokens(3, N).to(device), lengths.to(place), embedding, gru)
        assert states.device.type == device


# --- The translator ---

PAD, BOS, EOS = 0, 1, 2
SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, PAD, PAD, PAD], [4, PAD, PAD, PAD, PAD]])
LENGTHS = [5, 2, 1]


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def test_teacher_forcing_is_decoding_step_by_step(translator):
    words = tokens(3, 6, words=WORDS + 2)
    expected = word_by_word(translator, SOURCE, words)
    assert_all_agree([expected], [translator(SOURCE, words)], translator.parameters())


def test_one_step_looks_back_with_the_old_state_and_scores_with_the_new(translator):
    hidden, annotations = randn(3, HIDDEN), randn(3, K, HIDDEN)
    mask, word = make_mask(3, K), tokens(3)
    context, weights = translator.attention(hidden, annotations, mask)
    x = torch.cat([translator.target_embedding(word), context], -1)
    cell = translator.decoder
    parameters = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    state = torch.gru_cell(x, hidden, *parameters)
    logits = F.linear(
        torch.cat([state, context], -1), translator.output.weight, translator.output.bias
    )
    actual = translator.look_and_step(word, (hidden, annotations, mask))
    assert_equal_to(logits, actual[0])
    for want, got in zip((state, annotations, mask), actual[1], strict=True):
        assert torch.equal(want, got)
    assert_equal_to(weights, actual[2])


def test_the_decoder_starts_where_the_encoder_ended(translator):
    state, annotations, mask = translator.start(SOURCE)
    assert annotations.shape == (3, 5, HIDDEN) and torch.equal(mask, SOURCE != PAD)
    for i, length in enumerate(LENGTHS):
        outputs, last = translator.encoder(translator.source_embedding(SOURCE[i, :length]))
        assert_equal_to(outputs, annotations[i, :length])
        assert_equal_to(last[0], state[i])


def test_align_tells_where_each_step_looked(translator):
    words = tokens(3, 6)
    logits, weights = translator.align(SOURCE, words)
    assert torch.equal(logits, translator(SOURCE, words))
    assert weights.shape == (3, 6, 5)
    assert_equal_to(torch.ones(3, 6).double(), weights.sum(-1))
    padding = (SOURCE == PAD)[:, None].expand_as(weights)
    assert (weights[padding] == 0).all() and (weights[~padding] > 0).all()
    state = translator.start(SOURCE)
    for t, word in enumerate(words.unbind(1)):
        _, state, looked = translator.look_and_step(word, state)
        assert_equal_to(looked, weights[:, t])


def test_padding_changes_neither_scores_nor_translation(translator):
    words = tokens(3, 4)
    together, weights = translator.align(F.pad(SOURCE, (0, 3), value=PAD), words)
    both = translate(translator, SOURCE, BOS, EOS, 8)
    for row, length in enumerate(LENGTHS):
        alone = SOURCE[row : row + 1, :length]
        logits, looked = translator.align(alone, words[row : row + 1])
        assert_equal_to(logits[0], together[row])
        assert_equal_to(looked[0], weights[row, :, :length])
        (alone,) = translate(translator, alone, BOS, EOS, 8)
        assert torch.equal(alone, both[row, : len(alone)])
        assert (both[row, len(alone) :] == EOS).all()


def test_the_encoder_of_both_directions_starts_where_each_direction_ended():
    model = seeded(BidirectionalEncoderDecoder, WORDS, WORDS, width=D, hidden=2 * HIDDEN)
    state, annotations, mask = model.start(SOURCE)
    for row, length in enumerate(LENGTHS):
        alone = model.source_embedding(SOURCE[row : row + 1, :length])
        states, last = model.encoder(alone)
        assert_equal_to(states[0], annotations[row, :length])
        assert_equal_to(last[:, 0].flatten(), state[row])  # left to right, then right to left
    assert torch.equal(mask, SOURCE != PAD) and not annotations[~mask].any()
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model.decoder, model.output)]
    one_way = seeded(AttentionEncoderDecoder, WORDS, WORDS, width=D, hidden=2 * HIDDEN)
    assert sizes == [
        sum(p.numel() for p in part.parameters()) for part in (one_way.decoder, one_way.output)
    ]


def test_another_id_may_be_the_padding():
    model = seeded(AttentionEncoderDecoder, WORDS, WORDS, width=D, hidden=HIDDEN, pad=9)
    source, words = torch.tensor([[3, 0, 5], [4, 9, 9]]), tokens(2, 4)
    assert_equal_to(model(source[1:, :1], words[1:])[0], model(source, words)[1])


def test_translating_from_the_state_or_again_from_the_start_is_the_same(translator):
    state = translator.start(SOURCE)
    stepwise = greedy_decode(translator.step, state, BOS, EOS, 8, 3)
    assert torch.equal(stepwise, translate(translator, SOURCE, BOS, EOS, 8))


@pytest.mark.parametrize("order", [[1, 0, 2, 3, 4], [1, 2, 3, 4, 0], [4, 2, 0, 1, 3]], ids=str)
def test_the_order_of_the_annotations_does_not_matter_to_a_step(translator, order):
    # Attention reads a set; only the encoder knows the order of the words.
    hidden, annotations, mask = randn(3, HIDDEN), randn(3, K, HIDDEN), make_mask(3, K)
    word = tokens(3)
    logits, _, weights = translator.look_and_step(word, (hidden, annotations, mask))
    moved = translator.look_and_step(word, (hidden, annotations[:, order], mask[:, order]))
    assert_equal_to(logits, moved[0])
    assert_equal_to(weights[:, order], moved[2])


def test_a_word_does_not_know_those_after_it(translator):
    words = tokens(3, 6)
    changed = words.clone()
    changed[:, 3:] = 1
    before, after = translator(SOURCE, words), translator(SOURCE, changed)
    assert torch.equal(before[:, :3], after[:, :3]) and (before[:, 3:] != after[:, 3:]).all()


@pytest.mark.parametrize("score", SCORES, ids=named)
def test_any_attention_fits_into_the_translator(score):
    shapes = {
        dot_scores: {},
        general_scores: {"W": (HIDDEN, HIDDEN)},
        concat_scores: {"W": (2 * HIDDEN, A), "v": (A,)},
        additive_scores: {"W_query": (HIDDEN, A), "W_key": (HIDDEN, A), "v": (A,)},
        linear_concat_scores: {"w": (2 * HIDDEN,)},
    }[score]
    attention = seeded(ScoredAttention, score, **shapes)
    model = seeded(
        AttentionEncoderDecoder, WORDS, WORDS, width=D, hidden=HIDDEN, attention=attention
    )
    assert model.attention is attention
    gradient = torch.autograd.grad(model(SOURCE, tokens(3, 4)).sum(), list(model.parameters()))
    assert all(g.isfinite().all() for g in gradient)
    if score is not linear_concat_scores:
        assert all((g != 0).any() for g in gradient)


# --- Compiled, pure, typed ---


# --- Bad input ---


@pytest.mark.parametrize(
    ("score", "words", "changes"),
    [
        (dot_scores, r"query must have axes \(b d\); got shape \(2 1 4\)", {0: randn(B, 1, D)}),
        (dot_scores, r"keys must have axes \(b k d\); got shape \(5 4\)", {1: randn(K, D)}),
        (dot_scores, r"keys \(2 5 3\) .*d = 3; but query has d = 4", {1: randn(B, K, E)}),
        (dot_scores, r"keys \(3 5 4\) .*b = 3; but query has b = 2", {1: randn(3, K, D)}),
        (general_scores, r"W \(4 3\) .*e = 4; but query has e = 3", {2: randn(D, E)}),
        (general_scores, r"W \(3 3\) .*d = 3; but keys has d = 4", {2: randn(E, E)}),
        (concat_scores, r"W \(6 7\) .*e\+d = 6; but query and keys has e\+d = 7", {2: randn(6, A)}),
        (concat_scores, r"v \(4\) .*a = 4; but W has a = 7", {3: randn(D)}),
        (concat_scores, r"v must have axes \(a\); got shape \(7 1\)", {3: randn(A, 1)}),
        (additive_scores, r"W_query \(7 3\) .*e = 7; but query has e = 3", {2: randn(A, E)}),
        (additive_scores, r"W_key \(3 7\) .*d = 3; but keys has d = 4", {3: randn(E, A)}),
        (additive_scores, r"W_key \(4 6\) .*a = 6; but W_query has a = 7", {3: randn(D, 6)}),
        (additive_scores, r"v \(1\) .*a = 1; but W_query has a = 7", {4: randn(1)}),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(score, words, changes):
    with pytest.raises(ValueError, match=words):
        score(*(changes.get(i, t) for i, t in enumerate(inputs_of(score))))


MASK = torch.ones(B, K, dtype=torch.bool)


@pytest.mark.parametrize(
    ("words", "error", "changes"),
    [
        (r"scores must have axes \(b k\); got shape \(2 1 5\)", ValueError, {0: randn(B, 1, K)}),
        (r"values \(2 4 6\) .*k = 4; but scores has k = 5", ValueError, {1: randn(B, 4, V)}),
        (r"values \(5 2 6\) .*b = 5; but scores has b = 2", ValueError, {1: randn(K, B, V)}),
        ("scores is empty along dim=-1", ValueError, {0: randn(B, 0), 1: randn(B, 0, V), 2: None}),
        (r"mask must broadcast to \(b k\) = \(2 5\); got .*\(5 2\)$", ValueError, {2: MASK.T}),
        (r"to \(b k\) = \(2 5\); got shape \(2 1 5\)$", ValueError, {2: MASK[:, None]}),
        ("hides every key from every query.*pass ~mask", ValueError, {2: ~MASK}),
        ("mask is on meta but query is on cpu", ValueError, {2: MASK.to("meta")}),
        ("scores must be a torch.Tensor; got list", TypeError, {0: [[1.0]]}),
        ("values must hold floating-point numbers; got torch.int64", TypeError, {1: MASK.long()}),
        ("values is torch.float32 but scores is torch.f", TypeError, {1: randn(B, K, V).float()}),
        (r"mask must be a boolean torch.Tensor \(b k\) .*list", TypeError, {2: MASK.tolist()}),
        ("mask must be boolean, True = may attend; got torch.float32", TypeError, {2: MASK * 1.0}),
    ],
)
def test_what_cannot_be_attended_to_is_refused_by_name(words, error, changes):
    arguments = [randn(B, K), randn(B, K, V), MASK]
    with pytest.raises(error, match=words):
        attend(*(changes.get(i, t) for i, t in enumerate(arguments)))


@pytest.mark.parametrize(
    ("words", "error", "changes"),
    [
        ("tokens must hold whole numbers; got torch.float32", TypeError, {0: SOURCE.float()}),
        (r"tokens must have axes \(b n\); got shape \(5\)", ValueError, {0: SOURCE[0]}),
        ("lengths must be a torch.Tensor; got list", TypeError, {1: LENGTHS}),
        (r"lengths \(2\) .*b = 2; but tokens has b = 3", ValueError, {1: torch.tensor([1, 2])}),
        (
            "1 to n = 5 real tokens; lengths go from 0 to 4",
            ValueError,
            {1: torch.tensor([0, 4, 1])},
        ),
        (
            "1 to n = 5 real tokens; lengths go from 1 to 6",
            ValueError,
            {1: torch.tensor([1, 6, 1])},
        ),
    ],
)
def test_what_cannot_be_annotated_is_refused_by_name(words, error, changes, layers):
    arguments = [SOURCE, torch.tensor(LENGTHS)]
    with pytest.raises(error, match=words):
        annotate(*(changes.get(i, t) for i, t in enumerate(arguments)), *layers)


def test_a_layer_refuses_keys_and_queries_of_other_widths():
    layer = seeded(AdditiveAttention, E, D, A)
    with pytest.raises(ValueError, match=r"W_query \(3 7\) .*e = 3; but query has e = 4"):
        layer(randn(B, D), randn(B, K, D))
    with pytest.raises(ValueError, match=r"W_key \(4 7\) .*d = 4; but keys has d = 3"):
        layer(randn(B, E), randn(B, K, E))


# --- What test_contract.py holds every mechanism to ---


def make_layers():
    gru = seeded(nn.GRU, D, HIDDEN, batch_first=True, bidirectional=True)
    return seeded(nn.Embedding, WORDS, D), gru


def make_translator(kind=AttentionEncoderDecoder):
    return seeded(kind, WORDS, WORDS + 2, width=D, hidden=HIDDEN)


def a_state():
    return make_translator().start(SOURCE)


KEYS, SPOKEN = randn(B, K, D), tokens(3, 4)
LOOK = AttentionEncoderDecoder.look_and_step
CALLS = [
    *(Call(score, lambda score=score: inputs_of(score), (B, K)) for score in FOUR),
    *(
        Call(attend, lambda mask=mask: [randn(B, K), KEYS, mask], [(B, D), (B, K)], case)
        for case, mask in {"masked": make_mask(B, K), "all": None}.items()
    ),
    Call(
        AdditiveAttention.forward,
        lambda: [seeded(AdditiveAttention, E, D, A), randn(B, E), KEYS, make_mask(B, K)],
        [(B, D), (B, K)],
        graph="aot_eager",
    ),
    Call(
        ScoredAttention.forward,
        lambda: [seeded(ScoredAttention, general_scores, W=(E, D)), randn(B, E), KEYS, None],
        [(B, D), (B, K)],
    ),
    Call(annotate, lambda: [SOURCE, torch.tensor(LENGTHS), *make_layers()], (3, 5, 2 * HIDDEN)),
    *(
        Call(kind.start, lambda kind=kind: [make_translator(kind), SOURCE], None)
        for kind in (AttentionEncoderDecoder, BidirectionalEncoderDecoder)
    ),
    Call(LOOK, lambda: [make_translator(), SPOKEN[:, 0], a_state()], None),
    Call(AttentionEncoderDecoder.step, lambda: [make_translator(), SPOKEN[:, 0], a_state()], None),
    Call(
        AttentionEncoderDecoder.align,
        lambda: [make_translator(), SOURCE, SPOKEN],
        [(3, 4, WORDS + 2), (3, 4, 5)],
    ),
    Call(
        AttentionEncoderDecoder.forward,
        lambda: [make_translator(), SOURCE, SPOKEN],
        (3, 4, WORDS + 2),
    ),
]

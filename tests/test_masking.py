"""Chapter 6's reference code: what a mask hides, and only that, has no influence."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensors import (
    DEVICES,
    Call,
    assert_equal_to,
    assert_refused,
    filled,
    gradients,
    make_mask,
    randn,
    steadily,
)
from test_scaled_dot_product import make_qkv
from torch import nn

from attncourse.masking import (
    causal_mask,
    dependency_map,
    masked_softmax,
    next_word_pairs,
    padding_mask,
)
from attncourse.multihead import MultiHeadAttention
from attncourse.scaled_dot_product import scaled_dot_product_attention, softmax

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, H, Q, K, D, V = 2, 7, 3, 5, 4, 6
N, M = 5, 6


# --- The causal mask ---


@pytest.mark.parametrize("q", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [0, 1, 2, 5, 8])
def test_the_last_query_sees_every_key_and_each_before_it_one_less(q, k):
    mask = causal_mask(q, k)
    assert mask.dtype == torch.bool and mask.shape == (q, k)
    for i in range(q):
        not_yet_written = q - 1 - i
        assert mask[i].tolist() == [j < k - not_yet_written for j in range(k)]


def test_by_default_there_are_as_many_keys_as_queries():
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True] * 3]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_causal_attention_agrees_with_torch(n):
    inputs = [t.requires_grad_() for t in make_qkv(sizes=(n, n, D, V))]
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    actual, _ = scaled_dot_product_attention(*inputs, causal_mask(n))
    assert_equal_to(expected, actual)
    for want, got in zip(gradients([expected], inputs), gradients([actual], inputs), strict=True):
        assert_equal_to(want, got)


@steadily
@given(st.integers(1, 6), st.data())
def test_the_last_words_alone_are_answered_as_in_the_whole_sentence(n, data):
    last = data.draw(st.integers(1, n))
    query, key, value = make_qkv(sizes=(n, n, D, V))
    whole, _ = scaled_dot_product_attention(query, key, value, causal_mask(n))
    part, _ = scaled_dot_product_attention(query[:, -last:], key, value, causal_mask(last, n))
    assert_equal_to(whole[:, -last:], part)


@steadily
@given(st.integers(1, 6), st.data())
def test_a_changed_word_changes_nothing_before_it(n, data):
    place = data.draw(st.integers(0, n - 1))
    x = randn(B, n, M)
    changed = x.clone()
    changed[:, place:] = randn(B, n - place, M, seed=1) * 100
    before, after = (scaled_dot_product_attention(t, t, t, causal_mask(n))[0] for t in (x, changed))
    assert torch.equal(before[:, :place], after[:, :place])
    assert (before[:, place:] != after[:, place:]).all()


# --- The padding mask ---


def test_a_sentence_sees_its_words_and_not_its_padding():
    mask = padding_mask(torch.tensor([3, 0, 4]), 4)
    assert mask.tolist() == [[[True, True, True, False]], [[False] * 4], [[True] * 4]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_lengths_may_be_any_whole_numbers(dtype):
    lengths = torch.tensor([3, 1], dtype=dtype)
    assert torch.equal(padding_mask(lengths, 4), padding_mask(lengths.long(), 4))


def test_there_may_be_no_sentence_and_no_room():
    assert padding_mask(torch.tensor([], dtype=torch.long), 3).shape == (0, 1, 3)
    assert padding_mask(torch.tensor([0, 0]), 0).shape == (2, 1, 0)


# --- Masked softmax ---


@pytest.mark.parametrize(
    ("shape", "mask_shape"),
    [
        ((Q, K), (Q, K)),
        ((Q, K), (K,)),
        ((B, Q, K), (B, Q, K)),
        ((B, Q, K), (B, 1, K)),
        ((B, Q, K), (Q, K)),
        ((B, H, Q, K), (B, 1, Q, K)),
        ((4, 4, 4), (4, 4, 4)),
        ((K,), (K,)),
    ],
    ids=str,
)
def test_masked_softmax_agrees_with_torch(shape, mask_shape):
    scores, mask = randn(*shape).requires_grad_(), make_mask(*mask_shape)
    expected = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
    actual = masked_softmax(scores, mask)
    assert_equal_to(expected, actual)
    assert (actual[~mask.expand(shape)] == 0).all(), "exactly zero"
    assert_equal_to(gradients([expected], [scores])[0], gradients([actual], [scores])[0])


def test_hiding_nothing_is_a_plain_softmax():
    scores = randn(B, Q, K)
    assert torch.equal(softmax(scores), masked_softmax(scores, torch.ones(K, dtype=torch.bool)))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_masked_softmax_keeps_dtype_and_device_and_comes_close(scale, dtype, device):
    scores, mask = (randn(B, Q, K) * scale).to(device, dtype), make_mask(B, Q, K)
    weights = masked_softmax(scores, mask.to(device))
    assert weights.dtype == dtype and weights.device.type == device
    expected = torch.softmax(scores.cpu().double().masked_fill(~mask, -math.inf), -1)
    assert_equal_to(expected, weights.cpu().double(), atol=2 * torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_where_nothing_may_be_seen_is_zero_and_its_gradient_too(dtype):
    scores, mask = randn(B, Q, K, dtype=dtype).requires_grad_(), make_mask(B, Q, K)
    mask[0, 1] = False
    weights = masked_softmax(scores, mask)
    assert (weights[0, 1] == 0).all()
    assert_equal_to(mask.any(-1).double(), weights.double().sum(-1), atol=0.02)
    # The anomaly mode also catches a NaN that a later step would have hidden.
    with torch.autograd.set_detect_anomaly(True):
        (gradient,) = gradients([masked_softmax(scores, mask)], [scores])
    assert gradient.isfinite().all() and (gradient[0, 1] == 0).all()
    assert (gradient[mask] != 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_query_may_find_everything_hidden(dtype):
    hidden = torch.zeros(1, K, dtype=torch.bool)
    assert (masked_softmax(randn(1, K, dtype=dtype), hidden) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, "lowest", "highest"])
def test_a_hidden_score_has_no_influence_whatever_it_is(garbage, dtype):
    limits = {"lowest": torch.finfo(dtype).min, "highest": torch.finfo(dtype).max}
    scores, mask = randn(B, Q, K, dtype=dtype), make_mask(B, Q, K)
    mask[0, 1] = False
    spoiled = scores.masked_fill(~mask, limits.get(garbage, garbage)).requires_grad_()
    weights = masked_softmax(spoiled, mask)
    assert torch.equal(masked_softmax(scores, mask), weights)
    (gradient,) = gradients([weights], [spoiled])
    assert gradient.isfinite().all() and (gradient[~mask] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_score_of_minus_infinity_gets_nothing(dtype):
    # Somebody else's additive mask, already in the scores.
    scores = torch.tensor([[1.0, -math.inf, 1.0, 5.0], [-math.inf, 0, 0, 0]], dtype=dtype)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    assert masked_softmax(scores, mask).tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_score_far_below_the_hidden_ones_still_gets_everything(dtype):
    scores = torch.tensor([[-1e4, 1e4, 1e4]], dtype=dtype)
    assert masked_softmax(scores, torch.tensor([True, False, False])).tolist() == [[1, 0, 0]]


# --- Every kind of mask together ---


@st.composite
def masked_problems(draw):
    """Query, key, value and a mask (b q k): causal, padded on either side, with holes, or all."""
    q, k, d = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**16))
    mask = torch.ones(B, q, k, dtype=torch.bool)
    if draw(st.booleans()):
        mask = mask & causal_mask(q, k)
    if draw(st.booleans()):
        lengths = torch.tensor([draw(st.integers(1, k)) for _ in range(B)])
        padding = padding_mask(lengths, k)
        mask = mask & (padding.flip(-1) if draw(st.booleans()) else padding)
    if draw(st.booleans()):
        mask = mask & (randn(B, q, k, seed=seed + 9) > -0.5)
    if not mask.any():
        mask[0, 0, 0] = True
    return *make_qkv(sizes=(q, k, d, d), seed=seed), mask


@steadily
@given(masked_problems())
def test_masking_is_the_same_as_leaving_out_what_is_hidden(problem):
    query, key, value, mask = problem
    output, weights = scaled_dot_product_attention(*problem)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    assert_equal_to(weights, masked_softmax(scores, mask))
    for b, i in torch.cartesian_prod(torch.arange(B), torch.arange(query.shape[1])).tolist():
        seen = mask[b, i]
        if seen.any():
            alone = scaled_dot_product_attention(query[b, [i]], key[b, seen], value[b, seen])
            assert_equal_to(alone[0][0], output[b, i])
            assert_equal_to(alone[1][0], weights[b, i, seen])
        else:
            assert (output[b, i] == 0).all()
        assert (weights[b, i, ~seen] == 0).all()


@steadily
@given(masked_problems())
def test_a_multihead_layer_hides_the_same_in_every_head(problem):
    *inputs, mask = problem
    query, key, value = (t.repeat(1, 1, 3) for t in inputs)
    layer = filled(MultiHeadAttention(query.shape[-1], 3))
    output, weights = layer(query, key, value.requires_grad_(), mask)
    assert torch.equal(weights > 0, mask[:, None].expand_as(weights))
    (by_value,) = gradients([output], [value])
    assert torch.equal((by_value == 0).all(-1), ~mask.any(1))


# --- All beginnings of a sentence at once ---


@pytest.mark.parametrize(
    ("tokens", "pairs"),
    [
        (["one", "two", "three"], [(["one"], "two"), (["one", "two"], "three")]),
        ((3, 3, 3), [([3], 3), ([3, 3], 3)]),
        (["one"], []),
        ([], []),
    ],
)
def test_a_sentence_teaches_one_pair_a_word_but_the_first(tokens, pairs):
    before = list(tokens)
    assert next_word_pairs(tokens) == pairs
    assert list(tokens) == before


def test_the_pairs_do_not_share_their_lists():
    pairs = next_word_pairs(["one", "two", "three"])
    pairs[0][0].append("four")
    assert pairs[1][0] == ["one", "two"]


def test_one_causal_pass_answers_all_beginnings():
    x = randn(1, N, M)
    together, _ = scaled_dot_product_attention(x, x, x, causal_mask(N))
    for beginning, _ in next_word_pairs(list(range(N))):
        part = x[:, beginning]
        alone, _ = scaled_dot_product_attention(part, part, part)
        assert_equal_to(together[:, len(beginning) - 1], alone[:, -1])


# --- The dependency map ---


def attend(mask=None):
    return lambda x: scaled_dot_product_attention(x, x, x, mask)[0]


def after_norm(x):
    return attend(causal_mask(N))(F.layer_norm(x, x.shape[-1:]))


def gru(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.GRU(M, 3, batch_first=True).to(x.dtype)(x)[0]


EYE = torch.eye(N, dtype=torch.bool)
HOLES = make_mask(N, N)
ALL, NONE, BEFORE = torch.ones_like(EYE), torch.zeros_like(EYE), causal_mask(N)
LEAKY = BEFORE | (torch.arange(N) == 3)
LAYERS = {
    "attention": (attend(), ALL),
    "causal attention": (attend(BEFORE), BEFORE),
    # What a position asks is its own word, hidden from others or not.
    "attention with holes": (attend(HOLES), HOLES | EYE),
    "padding": (attend(torch.arange(N) < 3), (torch.arange(N) < 3) | EYE),
    "padding on the left": (attend(torch.arange(N) > 1), (torch.arange(N) > 1) | EYE),
    "a layer norm before": (after_norm, BEFORE),
    "a layer norm after": (lambda x: F.layer_norm(attend(BEFORE)(x), [M]), BEFORE),
    "a mask that leaks": (attend(LEAKY), LEAKY),
    "reading the neighbor": (lambda x: x.roll(1, 1), EYE.roll(1, 0)),
    "reversing": (lambda x: x.flip(1), EYE.flip(0)),
    "nothing": (lambda x: x, EYE),
    "a constant": (lambda x: torch.ones_like(x), NONE),
    "all the others": (lambda x: x.sum(1, keepdim=True) - x, ~EYE),  # up to rounding
    "running sums": (lambda x: x.cumsum(1), BEFORE),
    "a GRU": (gru, BEFORE),
    "one number a position": (lambda x: x.sum(-1), EYE),
    "only the last feature": (lambda x: x[..., -1:].cumsum(1), BEFORE),
    "heads": (lambda x: x.cumsum(1)[..., None].expand(-1, -1, -1, 4), BEFORE),
    "one sentence of the batch": (lambda x: torch.cat([x[:1] * 0, x[1:]]), EYE),
    "giants beside": (lambda x: torch.cat([x, x.detach() * 0 + 1e3], -1), EYE),
    "NaN that stays": (lambda x: torch.cat([x, x * math.nan], -1), EYE),
    "an infinity that stays": (lambda x: torch.cat([x, torch.full_like(x, math.inf)], -1), EYE),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_map_shows_which_output_reads_which_input(name, dtype):
    layer, expected = LAYERS[name]
    depends = dependency_map(layer, randn(B, N, M, dtype=dtype))
    assert depends.dtype == torch.bool
    assert depends.tolist() == expected.tolist()


def test_a_number_that_becomes_nan_has_changed():
    depends = dependency_map(lambda x: (-x[..., 0].cumsum(1)).sqrt(), torch.zeros(1, N, M))
    assert torch.equal(depends, BEFORE)


def test_a_normalization_does_not_undo_the_push():
    layer = lambda x: F.layer_norm(x, [M]).cumsum(1)  # noqa: E731
    assert torch.equal(dependency_map(layer, torch.zeros(1, N, M)), BEFORE)


def test_a_map_of_one_position_and_one_feature():
    assert dependency_map(lambda x: x, randn(B, 1, 1)).tolist() == [[True]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_causal_layer_is_seen_as_such_in_half_precision(dtype):
    assert torch.equal(dependency_map(attend(BEFORE), randn(B, N, M, dtype=dtype)), BEFORE)


def test_the_map_leaves_the_input_and_the_layer_as_they_were():
    x = randn(B, N, M).requires_grad_()
    before, recorded = x.detach().clone(), []
    dependency_map(lambda x: recorded.append(torch.is_grad_enabled()) or x, x)
    assert torch.equal(before, x)
    assert recorded == [False] * (1 + N), "nothing is kept for a gradient"


# --- Pure, compiled, typed ---


# --- Bad input ---

# What the message says, and what provokes it; " ... " skips some words.
BAD_VALUES = {
    "lengths cannot be negative; got query_length=-1 and key_length=-1": lambda: causal_mask(-1),
    "lengths cannot be negative; got query_length=2 and key_length=-3": lambda: causal_mask(2, -3),
    "lengths must lie between 0 and max_length = 4; they go from 3 to 5": (
        lambda: padding_mask(torch.tensor([3, 5]), 4)
    ),
    "between 0 and max_length = 4; they go from -1 to 2": (
        lambda: padding_mask(torch.tensor([2, -1]), 4)
    ),
    "lengths must have axes (b); got shape (2 1)": (
        lambda: padding_mask(torch.tensor([[1], [2]]), 4)
    ),
    "mask must broadcast to (… q k) = (2 3 5); got shape (2 5) ... mask[:, None, :]": (
        lambda: masked_softmax(randn(B, Q, K), make_mask(B, K))
    ),
    "mask must broadcast to (… q k) = (3 5); got shape (2 3 5)": (
        lambda: masked_softmax(randn(Q, K), make_mask(B, Q, K))
    ),
    "mask (3 5) hides every key ... ~mask": (
        lambda: masked_softmax(randn(Q, K), torch.zeros(Q, K, dtype=torch.bool))
    ),
    "mask is on meta but scores is on cpu": (
        lambda: masked_softmax(randn(Q, K), make_mask(Q, K).to("meta"))
    ),
    "scores is empty along dim=-1": lambda: masked_softmax(randn(Q, 0), torch.ones(Q, 0).bool()),
    "x must have axes (b n m); got shape (5 6)": lambda: dependency_map(attend(), randn(N, M)),
}
BAD_TYPES = {
    "lengths must hold whole numbers; got torch.bool": (
        lambda: padding_mask(torch.tensor([True]), 3)
    ),
    "mask must be boolean, True = may attend; got torch.float32 ... mask == 0": (
        lambda: masked_softmax(randn(Q, K), torch.zeros(Q, K))
    ),
    "mask must be a boolean torch.Tensor ... got NoneType": (
        lambda: masked_softmax(randn(Q, K), None)
    ),
    "layer(x) must be a torch.Tensor; got tuple": (
        lambda: dependency_map(lambda x: (x, x), randn(B, N, M))
    ),
}


@pytest.mark.parametrize(("words", "call"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_values_that_do_not_fit_are_refused_by_name(words, call):
    assert_refused(ValueError, words, call)


@pytest.mark.parametrize(("words", "call"), BAD_TYPES.items(), ids=BAD_TYPES)
def test_other_types_are_refused_by_name(words, call):
    assert_refused(TypeError, words, call)


# --- What test_contract.py holds every mechanism to ---


CALLS = [
    Call(causal_mask, lambda: [Q, K], (Q, K)),
    Call(padding_mask, lambda: [torch.tensor([1, 2]), K], (B, 1, K)),
    Call(
        masked_softmax,
        lambda: [randn(B, H, Q, K), make_mask(Q, K)],
        (B, H, Q, K),
        graph="eager",
    ),
    Call(next_word_pairs, lambda: [["one", "two"]], equals=[(["one"], "two")]),
    Call(dependency_map, lambda: [attend(), randn(B, N, M)], (N, N)),
]

"""Chapter 3's reference code against torch, against its own properties and against bad input."""

import math

import jaxtyping
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
    gradients,
    make_mask,
    randn,
    steadily,
    typed,
)

from attncourse.scaled_dot_product import (
    hidden_scale,
    scaled_dot_product_attention,
    score_variance,
    softmax,
)

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, H, Q, K, D, V = 2, 7, 3, 5, 4, 6


def make_qkv(query_axes=(B,), key_axes=None, value_axes=None, sizes=(Q, K, D, V), seed=0):
    """Query, key and value; key and value have the query's leading axes unless told."""
    key_axes = query_axes if key_axes is None else key_axes
    value_axes = key_axes if value_axes is None else value_axes
    q, k, d, v = sizes
    shapes = (*query_axes, q, d), (*key_axes, k, d), (*value_axes, k, v)
    return [randn(*shape, seed=3 * seed + i) for i, shape in enumerate(shapes)]


def oracle(query, key, value, mask=None, is_causal=False):
    """The output from torch, the weights from the textbook formula (no dead rows, please)."""
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in (query, key, value)))
    expanded = [t.expand(*batch, *t.shape[-2:]) for t in (query, key, value)]
    output = F.scaled_dot_product_attention(*expanded, attn_mask=mask, is_causal=is_causal)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return output, torch.softmax(scores, -1)


def assert_agrees_with_torch(query, key, value, mask=None, is_causal=False):
    inputs = [t.requires_grad_() for t in (query, key, value)]
    expected = oracle(*inputs, mask, is_causal)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    actual = scaled_dot_product_attention(*inputs, mask)
    for want, got in zip(expected, actual, strict=True):
        assert_equal_to(want, got)
    for want, got in zip(gradients(expected, inputs), gradients(actual, inputs), strict=True):
        assert_equal_to(want, got)


# --- Attention agrees with torch ---


@pytest.mark.parametrize(
    ("query_axes", "key_axes", "value_axes"),
    [
        ((), (), ()),
        ((B,), (B,), (B,)),
        ((B, H, 8), (B, H, 8), (B, H, 8)),
        ((B,), (), ()),
        ((), (B,), (B,)),
        ((), (), (B,)),
        ((B, H), (H,), (B, 1)),
        ((B, 1), (1, H), (H,)),
        ((0,), (0,), (0,)),
    ],
)
def test_attention_agrees_with_torch_for_any_leading_axes(query_axes, key_axes, value_axes):
    assert_agrees_with_torch(*make_qkv(query_axes, key_axes, value_axes))


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        ((B,), (Q, K, D, V)),
        ((B,), (K, Q, V, D)),
        ((4,), (4, 4, 4, 4)),
        ((B,), (1, K, D, V)),
        ((B,), (Q, 1, D, V)),
        ((B,), (Q, K, 1, 1)),
        ((1,), (1, 1, 1, 1)),
    ],
    ids=["q<k", "q>k", "all equal", "one query", "one key", "width one", "all one"],
)
def test_attention_agrees_with_torch_for_any_sizes(axes, sizes):
    assert_agrees_with_torch(*make_qkv(axes, sizes=sizes))


@pytest.mark.parametrize(
    ("axes", "mask_shape"),
    [
        ((), (Q, K)),
        ((B,), (B, Q, K)),
        ((B,), (Q, K)),
        ((B,), (B, 1, K)),
        ((B,), (K,)),
        ((B, H), (B, H, Q, K)),
        ((B, H), (B, 1, Q, K)),
        ((B, H), (B, 1, 1, K)),
        ((B, H), (H, 1, K)),
    ],
)
def test_attention_agrees_with_torch_for_any_mask_that_broadcasts(axes, mask_shape):
    assert_agrees_with_torch(*make_qkv(axes), make_mask(*mask_shape))


@pytest.mark.parametrize("axes", [(), (B,), (B, H)])
@pytest.mark.parametrize("sizes", [(K, K, D, V), (Q, K, D, V), (K, Q, D, V)])
def test_causal_attention_agrees_with_torch(axes, sizes):
    assert_agrees_with_torch(*make_qkv(axes, sizes=sizes), is_causal=True)


def test_a_mask_that_hides_nothing_changes_nothing():
    inputs = make_qkv()
    everything = torch.ones(Q, K, dtype=torch.bool)
    expected = scaled_dot_product_attention(*inputs)
    actual = scaled_dot_product_attention(*inputs, mask=everything)
    assert all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))


def test_true_in_a_mask_means_may_attend():
    query, key, value = make_qkv()
    only_second = torch.arange(K) == 1
    output, weights = scaled_dot_product_attention(query, key, value, only_second)
    assert torch.equal(weights, only_second.expand(B, Q, K).double())
    assert torch.equal(output, value[:, 1:2].expand(B, Q, V))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_keeps_dtype_and_device_and_comes_close_to_float64(device, dtype, masked):
    inputs = [t.to(device, dtype) for t in make_qkv((B, H))]
    mask = make_mask(B, 1, Q, K).to(device) if masked else None
    results = scaled_dot_product_attention(*inputs, mask)
    # The oracle sees the already rounded inputs: only the arithmetic is on trial.
    expected = oracle(*(t.cpu().double() for t in inputs), None if mask is None else mask.cpu())
    for want, got in zip(expected, results, strict=True):
        assert got.dtype == dtype
        assert got.device.type == device
        # A handful of roundings of numbers of order one.
        assert_equal_to(want, got.cpu().double(), atol=8 * torch.finfo(dtype).eps)


def test_float16_scores_may_be_large_before_scaling():
    # q·k = 102,400 is beyond float16's 65,504; the scaled score, 12,800, is not.
    query, key = torch.full((1, 64), 40.0).half(), torch.full((2, 64), 40.0).half()
    _, weights = scaled_dot_product_attention(query, key, torch.ones(2, 1).half())
    assert weights.tolist() == [[0.5, 0.5]]


# --- Softmax ---


@pytest.mark.parametrize("shape", [(K,), (Q, K), (B, Q, K), (4, 4, 4), (B, 1, K), (0, K)])
def test_softmax_agrees_with_torch_along_every_axis(shape):
    scores = randn(*shape)
    assert torch.equal(softmax(scores), softmax(scores, -1)), "the default is the last axis"
    for dim in (d for d in range(-len(shape), len(shape)) if shape[d] > 0):
        assert_equal_to(torch.softmax(scores, dim), softmax(scores, dim))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
def test_softmax_agrees_with_torch_for_scores_of_any_finite_size(scale, dtype):
    scores = randn(B, Q, K, dtype=dtype) * scale
    assert_equal_to(torch.softmax(scores, -1), softmax(scores), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_shares_between_equal_giants_and_gives_the_rest_nothing(dtype):
    scores = torch.tensor([1e30, -1e30, 1e30, 0.0], dtype=dtype)
    assert softmax(scores).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert softmax(-scores).tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_softmax_in_half_precision_keeps_its_dtype_and_comes_close(dtype, scale):
    scores = (randn(B, Q, K) * scale).to(dtype)
    weights = softmax(scores)
    assert weights.dtype == dtype
    expected = torch.softmax(scores.double(), -1)
    assert_equal_to(expected, weights.double(), atol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("tied", [False, True], ids=["distinct scores", "tied maxima"])
def test_softmax_has_the_right_gradient(dim, tied):
    # Ties matter: the gradient of a maximum is not defined there, that of softmax is.
    scores = torch.zeros(B, Q, K, dtype=torch.float64) if tied else randn(B, Q, K)
    torch.autograd.gradcheck(softmax, (scores.requires_grad_(), dim))


def test_softmax_of_huge_scores_has_a_finite_gradient():
    scores = (randn(Q, K) * 1e4).requires_grad_()
    (gradient,) = gradients([softmax(scores)], [scores])
    assert gradient.isfinite().all()


# --- Rows with nothing to attend to ---

SOME_DEAD = torch.tensor([[True, True, False, True, False], [False] * K, [True] * K])
ALL_DEAD_BUT_ONE = torch.tensor([[False] * K, [False, False, True, False, False], [False] * K])
ONE_DEAD_SENTENCE = torch.tensor([[[True, True, True, False, False]], [[False] * K]])


@pytest.mark.parametrize(
    "mask",
    [SOME_DEAD, ALL_DEAD_BUT_ONE, ONE_DEAD_SENTENCE],
    ids=["one dead row", "all dead but one", "one dead sentence"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_row_with_nothing_to_attend_to_gives_exactly_zero(mask, dtype):
    inputs = [t.to(dtype) for t in make_qkv()]
    output, weights = scaled_dot_product_attention(*inputs, mask)
    alive = mask.any(-1).expand(B, Q)
    assert (weights[~alive] == 0).all()
    assert (output[~alive] == 0).all()
    assert_equal_to(torch.ones(B, Q)[alive], weights.float().sum(-1)[alive], atol=0.02)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "mask",
    [SOME_DEAD, ALL_DEAD_BUT_ONE, ONE_DEAD_SENTENCE],
    ids=["one dead row", "all dead but one", "one dead sentence"],
)
def test_dead_rows_leave_every_gradient_finite_and_equal_to_torchs(mask):
    inputs = [t.requires_grad_() for t in make_qkv()]
    # The anomaly mode also catches a NaN that a later step would have hidden.
    with torch.autograd.set_detect_anomaly(True):
        output, weights = scaled_dot_product_attention(*inputs, mask)
        actual = gradients([output, weights], inputs)
        assert all(gradient.isfinite().all() for gradient in actual)
        actual = gradients(scaled_dot_product_attention(*inputs, mask)[:1], inputs)
    reference = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
    assert_equal_to(reference, output)
    for want, got in zip(gradients([reference], inputs), actual, strict=True):
        assert_equal_to(want, got)


def test_a_dead_query_and_a_hidden_entry_get_no_gradient():
    inputs = [t.requires_grad_() for t in make_qkv(())]
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask[1], mask[:, 2] = False, False
    by_query, by_key, by_value = gradients(scaled_dot_product_attention(*inputs, mask), inputs)
    assert (by_query[1] == 0).all()
    assert (by_key[2] == 0).all() and (by_value[2] == 0).all()
    assert (by_query[[0, 2]] != 0).all(), "the others still learn"
    assert (by_key[[0, 1, 3, 4]] != 0).all() and (by_value[[0, 1, 3, 4]] != 0).all()


@pytest.mark.parametrize("mask_shape", [(K,), (1, K), (B, 1, K)])
def test_a_single_query_may_find_everything_hidden(mask_shape):
    inputs = make_qkv(sizes=(1, K, D, V))
    hidden = torch.zeros(mask_shape, dtype=torch.bool)
    output, weights = scaled_dot_product_attention(*inputs, hidden)
    assert torch.equal(output, torch.zeros(B, 1, V, dtype=torch.float64))
    assert torch.equal(weights, torch.zeros(B, 1, K, dtype=torch.float64))


@pytest.mark.parametrize("mask_shape", [(K,), (Q, K), (B, 1, K), (B, Q, K), (1, 1)])
def test_hiding_everything_from_several_queries_is_taken_for_the_wrong_polarity(mask_shape):
    hidden = torch.zeros(mask_shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask .*hides every key.*True means.*~mask"):
        scaled_dot_product_attention(*make_qkv(), hidden)


# --- Compiled, pure, typed ---


def test_shapes_can_be_computed_without_data():
    inputs = [t.to("meta") for t in make_qkv((B, H))]
    output, weights = scaled_dot_product_attention(*inputs)
    assert output.shape == (B, H, Q, V) and weights.shape == (B, H, Q, K)


def test_shapes_can_be_computed_without_data_for_a_mask_too():
    inputs = [t.to("meta") for t in (*make_qkv((B, H)), make_mask(Q, K))]
    output, weights = scaled_dot_product_attention(*inputs)
    assert output.shape == (B, H, Q, V) and weights.shape == (B, H, Q, K)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (scaled_dot_product_attention, (randn(B, Q, D), randn(B, K, V), randn(B, K, V))),
        (scaled_dot_product_attention, (randn(B, Q, D), randn(B, K, D), randn(B, Q, V))),
        (scaled_dot_product_attention, (randn(B, Q, D), randn(H, K, D), randn(H, K, V))),
        (scaled_dot_product_attention, (randn(D), randn(K, D), randn(K, V))),
        (scaled_dot_product_attention, (*make_qkv(), torch.ones(Q, K))),
        (softmax, (torch.ones(Q, K, dtype=torch.int64),)),
        (hidden_scale, (randn(Q, K), randn(K, Q))),
        (hidden_scale, (randn(K), randn(K))),
    ],
    ids=["width", "length", "batch", "rank", "float mask", "integers", "tables", "no table"],
)
def test_the_annotations_reject_what_does_not_fit(function, arguments):
    with pytest.raises(jaxtyping.TypeCheckError, match="Type-check error"):
        typed(function)(*arguments)


# --- The variance of a score, and the factor hidden in a printed table ---


@pytest.mark.parametrize("d", [1, 2, 16, 64, 300])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_variance_of_a_score_is_d_and_one_when_scaled(d, seed):
    samples = 20_000
    # The fourth moment of q·k is 3d² + 6d, so this is the standard error of the measured variance.
    sigma = math.sqrt((2 + 6 / d) / samples)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = score_variance(d, samples, scaled=False)
        scaled = score_variance(d, samples, scaled=True)
        torch.manual_seed(seed)
        again = score_variance(d, samples, scaled=False)
    assert abs(plain / d - 1) < 7 * sigma
    assert abs(scaled - 1) < 7 * sigma
    assert plain == again, "it draws from torch's global generator and nothing else"
    assert scaled != pytest.approx(plain / d, rel=1e-9), "a second call draws anew"


@pytest.mark.parametrize(("d", "samples"), [(0, 10), (-1, 10), (2, 1), (2, 0)])
def test_a_variance_of_nothing_is_refused(d, samples):
    with pytest.raises(
        ValueError, match=f"d >= 1 and samples >= 2; got d={d} and samples={samples}"
    ):
        score_variance(d, samples, scaled=False)


PRINTED_SCORES = torch.tensor(
    [
        [0.11, 0.00, 0.81, 0.79],
        [0.19, 0.50, 0.30, 0.48],
        [0.53, 0.98, 0.95, 0.14],
        [0.81, 0.86, 0.38, 0.90],
    ]
)
PRINTED_WEIGHTS = torch.tensor(
    [
        [1.00, 0.00, 0.00, 0.00],
        [0.48, 0.52, 0.00, 0.00],
        [0.31, 0.35, 0.34, 0.00],
        [0.25, 0.26, 0.23, 0.26],
    ]
)


def test_the_printed_table_was_divided_by_four_so_d_k_is_16():
    scale = hidden_scale(PRINTED_SCORES, PRINTED_WEIGHTS)
    assert isinstance(scale, float)
    assert scale == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("c", [1.0, math.sqrt(8), 8.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_hidden_scale_is_found_in_a_table_rounded_to_two_decimals(c, causal, seed):
    scores = (1.5 * c * randn(8, 8, seed=seed, dtype=torch.float32)).round(decimals=2)
    visible = torch.ones(8, 8, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    weights = torch.softmax((scores / c).masked_fill(~visible, -math.inf), -1).round(decimals=2)
    assert hidden_scale(scores, weights) == pytest.approx(c, rel=0.05)


def test_the_scores_of_hidden_keys_say_nothing_about_the_scale():
    hidden = PRINTED_WEIGHTS == 0
    expected = hidden_scale(PRINTED_SCORES, PRINTED_WEIGHTS)
    for score in (1e6, -math.inf):
        scores = PRINTED_SCORES.masked_fill(hidden, score)
        assert hidden_scale(scores, PRINTED_WEIGHTS) == pytest.approx(expected)


def test_a_row_with_nothing_to_attend_to_says_nothing_about_the_scale():
    expected = hidden_scale(PRINTED_SCORES, PRINTED_WEIGHTS)
    scores = torch.cat([PRINTED_SCORES, PRINTED_SCORES[-1:]])
    weights = torch.cat([PRINTED_WEIGHTS, torch.zeros(1, 4)])
    assert hidden_scale(scores, weights) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "weights"),
    [((4, 4), (4, 3)), ((4,), (4,)), ((2, 4, 4), (2, 4, 4)), ((1, 4), (4, 4))],
)
def test_two_tables_of_different_shape_are_refused(scores, weights):
    with pytest.raises(ValueError, match="same shape") as error:
        hidden_scale(randn(*scores), randn(*weights))
    for shape in (scores, weights):
        assert f"({' '.join(map(str, shape))})" in str(error.value)


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]),
        ([[0.7, 0.7, 0.7]], [[0.3, 0.3, 0.4]]),
        ([[0.1, 0.5, 0.9]], [[0.33, 0.33, 0.33]]),
        ([[i / 7 for i in range(7)]], [[0.14] * 7]),
    ],
    ids=["one weight a row", "equal scores", "equal weights", "seven equal weights"],
)
def test_a_table_that_says_nothing_about_the_scale_is_refused(scores, weights):
    with pytest.raises(ValueError, match="say nothing about the scale"):
        hidden_scale(torch.tensor(scores), torch.tensor(weights))


def test_a_list_instead_of_a_table_is_refused():
    with pytest.raises((TypeError, ValueError), match=r"scores.*list"):
        hidden_scale(PRINTED_SCORES.tolist(), PRINTED_WEIGHTS)


# --- Properties ---


@st.composite
def problems(draw):
    """Query, key, value and mask of any small size, with flat or sharp weights and dead rows."""
    b, q, k, d, v = (draw(st.integers(1, 5)) for _ in range(5))
    seed = draw(st.integers(0, 2**16))
    sharpness = draw(st.sampled_from([0.01, 1.0, 30.0]))
    query, key, value = make_qkv((b,), sizes=(q, k, d, v), seed=seed)
    mask = randn(b, q, k, seed=seed + 7) > draw(st.sampled_from([-9.0, -0.5, 0.0, 1.0]))
    if not mask.any():
        mask[0, 0, 0] = True
    return sharpness * query, key, value, mask


@steadily
@given(problems())
def test_each_row_of_weights_sums_to_one_or_is_zero(problem):
    *_, mask = problem
    _, weights = scaled_dot_product_attention(*problem)
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    assert_equal_to(mask.any(-1).double(), weights.sum(-1), atol=1e-12)


@steadily
@given(problems())
def test_the_output_lies_between_the_smallest_and_the_largest_visible_value(problem):
    *_, value, mask = problem
    output, _ = scaled_dot_product_attention(*problem)
    hidden = ~mask[..., None]
    lowest = value[:, None].masked_fill(hidden, math.inf).amin(-2)
    highest = value[:, None].masked_fill(hidden, -math.inf).amax(-2)
    alive = mask.any(-1)
    assert (output[alive] >= lowest[alive] - 1e-12).all()
    assert (output[alive] <= highest[alive] + 1e-12).all()


@steadily
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_entries_does_not_matter(problem, random):
    query, key, value, mask = problem
    order = random.sample(range(key.shape[-2]), key.shape[-2])
    output, weights = scaled_dot_product_attention(*problem)
    moved = scaled_dot_product_attention(query, key[:, order], value[:, order], mask[..., order])
    assert_equal_to(output, moved[0])
    assert_equal_to(weights[..., order], moved[1])


@steadily
@given(problems(), st.randoms(use_true_random=False))
def test_each_query_is_answered_by_itself(problem, random):
    query, key, value, mask = problem
    order = random.sample(range(query.shape[-2]), query.shape[-2])
    expected = scaled_dot_product_attention(*problem)
    moved = scaled_dot_product_attention(query[:, order], key, value, mask[:, order])
    for want, got in zip(expected, moved, strict=True):
        assert_equal_to(want[:, order], got)


@steadily
@given(problems(), st.floats(-1e3, 1e3))
def test_adding_a_constant_to_all_scores_of_a_row_changes_nothing(problem, constant):
    query, key, value, mask = problem
    scores = query @ key.mT
    assert_equal_to(softmax(scores), softmax(scores + constant))
    # Moving all keys by one vector u adds q·u to all scores of a query.
    moved = key + constant * randn(key.shape[-1])
    expected = scaled_dot_product_attention(query, key, value, mask)
    for want, got in zip(
        expected, scaled_dot_product_attention(query, moved, value, mask), strict=True
    ):
        assert_equal_to(want, got, atol=1e-8)


@steadily
@given(problems(), st.sampled_from([0.0, -1.0, 1e6, 1e30]))
def test_a_hidden_entry_has_no_influence_however_large_it_is(problem, size):
    query, key, value, mask = problem
    entry = key.shape[-2] - 1
    changed_key, changed_value = key.clone(), value.clone()
    changed_key[:, entry], changed_value[:, entry] = size, size
    changed = scaled_dot_product_attention(query, changed_key, changed_value, mask)
    blind = ~mask[..., entry]
    for want, got in zip(scaled_dot_product_attention(*problem), changed, strict=True):
        assert torch.equal(want[blind], got[blind])


# --- Bad input: which argument, what came, what was expected ---

TRUE = torch.ones(B, Q, K, dtype=torch.bool)

# What the message says, and the arguments that provoke it; " ... " skips some words.
BAD_VALUES = {
    "query must have axes (… q d); got shape (4)": {"query": randn(D)},
    "key must have axes (… k d); got shape (4)": {"key": randn(D)},
    "value must have axes (… k v); got shape ()": {"value": randn()},
    "query and key must have the same width d ... (2 3 4) with d = 4 and key (2 5 6) with d = 6": {
        "key": randn(B, K, V)
    },
    "key and value must have the same length k ... (2 5 4) with k = 5 ... (2 3 6) with k = 3": {
        "value": randn(B, Q, V)
    },
    "leading axes do not broadcast ... query (2 3 4), key (7 5 4), value (2 5 6)": {
        "key": randn(H, K, D)
    },
    "leading axes do not broadcast ... query (2 3 4), key (2 5 4), value (7 5 6)": {
        "value": randn(H, K, V)
    },
    "query (… q d) is empty: got shape (2 0 4); at least one": {"query": randn(B, 0, D)},
    "query (… q d) is empty: got shape (2 3 0); at least one": {
        "query": randn(B, Q, 0),
        "key": randn(B, K, 0),
    },
    "key (… k d) is empty: got shape (2 0 4); at least one": {
        "key": randn(B, 0, D),
        "value": randn(B, 0, V),
    },
    "value (… k v) is empty: got shape (2 5 0); at least one": {"value": randn(B, K, 0)},
    "key is on meta but query is on cpu": {"key": randn(B, K, D).to("meta")},
    "value is on meta but query is on cpu": {"value": randn(B, K, V).to("meta")},
    "mask is on meta but query is on cpu": {"mask": TRUE.to("meta")},
    "mask must broadcast to (… q k) = (2 3 5); got shape (2 5 3)": {"mask": TRUE.mT},
    "mask must broadcast to (… q k) = (2 3 5); got shape (2 5) ... (b k) ... mask[:, None, :]": {
        "mask": TRUE[:, 0]
    },
    # These two would broadcast, but make the result larger than the query.
    "mask must broadcast to (… q k) = (2 3 5); got shape (7 2 3 5)": {
        "mask": TRUE.expand(H, B, Q, K)
    },
    "mask must broadcast to (… q k) = (2 1 5); got shape (2 3 5)": {
        "query": randn(B, 1, D),
        "mask": TRUE,
    },
}
BAD_TYPES = {
    "key must be a torch.Tensor; got ndarray": {"key": randn(B, K, D).numpy()},
    "value must be a torch.Tensor; got NoneType": {"value": None},
    "value must hold floating-point numbers; got torch.bool": {"value": randn(B, K, V) > 0},
    "value is torch.float16 but query is torch.float64; use one": {"value": randn(B, K, V).half()},
    "mask must be a boolean torch.Tensor (… q k) = (2 3 5); got ndarray": {"mask": TRUE.numpy()},
    "mask must be boolean, True = may attend; got torch.float32 ... additive ... mask == 0": {
        "mask": torch.zeros(Q, K)
    },
    "mask must be boolean, True = may attend; got torch.int64 ... 0/1 mask ... mask.bool()": {
        "mask": torch.ones(Q, K, dtype=torch.int64)
    },
}


def refuses(error, words, changes):
    arguments = dict(zip(("query", "key", "value"), make_qkv(), strict=True)) | changes
    assert_refused(error, words, scaled_dot_product_attention, **arguments)


@pytest.mark.parametrize(("words", "changes"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_shapes_and_devices_that_do_not_fit_are_refused_by_name(words, changes):
    refuses(ValueError, words, changes)


@pytest.mark.parametrize(("words", "changes"), BAD_TYPES.items(), ids=BAD_TYPES)
def test_other_types_are_refused_by_name(words, changes):
    refuses(TypeError, words, changes)


@pytest.mark.parametrize(
    ("scores", "dim", "error", "words"),
    [
        ([1.0, 2.0], -1, TypeError, "scores must be a torch.Tensor; got list"),
        (torch.arange(3), -1, TypeError, "scores must hold floating-point.*got torch.int64"),
        (randn(Q, K), 2, ValueError, r"dim=2 names no axis of scores.*\(3 5\)"),
        (randn(Q, K), -3, ValueError, r"dim=-3 names no axis of scores.*\(3 5\)"),
        (randn(), -1, ValueError, r"dim=-1 names no axis of scores.*\(\)"),
        (randn(Q, 0), -1, ValueError, r"scores is empty along dim=-1.*\(3 0\)"),
    ],
    ids=["list", "integers", "dim 2 of 2", "dim -3 of 2", "a number", "empty"],
)
def test_softmax_refuses_what_it_cannot_turn_into_weights(scores, dim, error, words):
    with pytest.raises(error, match=words):
        softmax(scores, dim)


# --- What test_contract.py holds every mechanism to ---


AXES = {
    "no axes": ((), ()),
    "a batch": ((B,), (B,)),
    "heads": ((B, H, 8), (B, H, 8)),
    "one memory": ((B,), ()),
    "shared heads": ((B, H), (B, 1)),
    "shared batch": ((B, H), (H,)),
}
CALLS = [
    Call(softmax, lambda: [randn(B, Q, K), 1], (B, Q, K), graph="aot_eager"),
    Call(hidden_scale, lambda: [randn(Q, K), randn(Q, K).softmax(-1)], equals=float),
    Call(score_variance, lambda: [2, 10, True], equals=float, draws=True),
    *(
        Call(
            scaled_dot_product_attention,
            lambda axes=axes, mask=mask: [*make_qkv(*axes), mask],
            [(*axes[0], Q, V), (*axes[0], Q, K)],
            f"{name}, {masked}",
        )
        for name, axes in AXES.items()
        for masked, mask in {
            "all": None,
            "(q k)": make_mask(Q, K),
            "(1 k)": make_mask(1, K),
        }.items()
    ),
    *(
        Call(
            scaled_dot_product_attention,
            lambda mask=mask: [*make_qkv(), mask],
            [(B, Q, V), (B, Q, K)],
            f"{name}, {backend}",
            graph=backend,
        )
        for name, mask in {"none": None, "(b 1 k)": make_mask(B, 1, K), "dead": SOME_DEAD}.items()
        for backend in ("eager", "aot_eager")  # these need no C++ compiler
    ),
]

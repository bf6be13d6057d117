"""Chapter 4's reference code against torch and BERT, its own properties and bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensors import DEVICES, Call, assert_equal_to, gradients, make_mask, randn, steadily
from torch import nn

from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.self_attention import (
    LearnedPositions,
    is_permutation_equivariant,
    self_attention,
    sinusoidal_positions,
)

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, N, M, D, V = 2, 5, 7, 3, 4


def make_inputs(b=B, n=N, m=M, d=D, v=V, seed=0):
    """x, W_query, W_key, W_value."""
    shapes = (b, n, m), (m, d), (m, d), (m, v)
    return [randn(*shape, seed=4 * seed + i) for i, shape in enumerate(shapes)]


@pytest.fixture
def doubles():
    """New tensors are float64 for the length of a test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- Self-attention agrees with torch and with BERT ---


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"b": 4, "n": 4, "m": 4, "d": 4, "v": 4},
        {"n": 1},
        {"m": 1},
        {"d": 1, "v": 1},
        {"b": 1, "n": 9},
        {"d": V, "v": D},
        {"d": 11, "v": 13},
        {"b": 0},
    ],
    ids=str,
)
def test_self_attention_agrees_with_torch(sizes):
    inputs = [t.requires_grad_() for t in make_inputs(**sizes)]
    x, *projections = inputs
    query, key, value = (x @ W for W in projections)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    expected = F.scaled_dot_product_attention(query, key, value), torch.softmax(scores, -1)
    actual = self_attention(*inputs)
    for want, got in zip(expected, actual, strict=True):
        assert_equal_to(want, got)
    for want, got in zip(gradients(expected, inputs), gradients(actual, inputs), strict=True):
        assert_equal_to(want, got)


@pytest.mark.parametrize(("b", "n", "m"), [(B, N, M), (4, 4, 4)])
def test_self_attention_agrees_with_bert(b, n, m):
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(hidden_size=m, num_attention_heads=1, attn_implementation="eager")
    layer = bert.BertSelfAttention(config).double().eval()
    inputs = [t.requires_grad_() for t in make_inputs(b, n, m, m, m)]
    weights = {"query.weight": inputs[1].T, "key.weight": inputs[2].T, "value.weight": inputs[3].T}
    biases = {name: torch.zeros(m).double() for name in ("query.bias", "key.bias", "value.bias")}
    expected = torch.func.functional_call(layer, weights | biases, (inputs[0],))
    actual = self_attention(*inputs)
    assert_equal_to(expected[0], actual[0])
    assert_equal_to(expected[1][:, 0], actual[1])
    expected, actual = gradients(expected[:1], inputs), gradients(actual[:1], inputs)
    for want, got in zip(expected, actual, strict=True):
        assert_equal_to(want, got)


def test_a_single_word_can_only_look_at_itself():
    x, *projections = make_inputs(n=1)
    output, weights = self_attention(x, *projections)
    assert torch.equal(weights, torch.ones(B, 1, 1).double())
    assert_equal_to(x @ projections[-1], output)


def test_sentences_of_a_batch_do_not_see_each_other():
    x, *projections = make_inputs()
    output, _ = self_attention(x, *projections)
    for one, want in zip(x.split(1), output.split(1), strict=True):
        assert_equal_to(want, self_attention(one, *projections)[0])


def test_a_word_is_read_differently_beside_other_words():
    x, *projections = make_inputs(b=1)
    changed = x.clone()
    changed[:, 1] = randn(M, seed=50)
    before, after = (self_attention(t, *projections)[0] for t in (x, changed))
    assert ((before - after).abs() > 1e-6).all()


# --- Order is invisible until positions are added ---


@steadily
@given(st.integers(1, 7).flatmap(lambda n: st.permutations(range(n))), st.integers(0, 99))
def test_attention_gives_the_same_answers_in_the_new_order(order, seed):
    x, *projections = make_inputs(n=len(order), seed=seed)
    output, weights = self_attention(x, *projections)
    moved = self_attention(x[:, order], *projections)
    assert_equal_to(output[:, order], moved[0])
    assert_equal_to(weights[:, order][:, :, order], moved[1])


def learned_positions():
    positions = LearnedPositions(N, M).double()
    positions.table.weight.data = randn(N, M, seed=9)
    return positions


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_make_the_order_visible(kind):
    x, *projections = make_inputs()
    learned = learned_positions()

    def place(x):
        return learned(x) if kind == "learned" else x + sinusoidal_positions(*x.shape[1:]).to(x)

    for order in ([1, 0, 2, 3, 4], [1, 2, 3, 4, 0], [4, 3, 2, 1, 0]):
        output, _ = self_attention(place(x), *projections)
        moved, _ = self_attention(place(x[:, order]), *projections)
        assert (output[:, order] - moved).abs().max() > 1e-3


# --- Sinusoidal positions ---


@pytest.mark.parametrize("length", [0, 1, 2, 9])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8])
def test_feature_2i_is_a_sine_and_2i_plus_1_its_cosine(length, width, doubles):
    expected = torch.zeros(length, width)
    for position in range(length):
        for feature in range(width):
            pair = feature // 2
            angle = position / 10_000 ** (2 * pair / width)
            expected[position, feature] = math.cos(angle) if feature % 2 else math.sin(angle)
    actual = sinusoidal_positions(length, width)
    assert actual.shape == (length, width)
    assert_equal_to(expected, actual, atol=1e-14)


@pytest.mark.parametrize("width", [2, 6, 8])
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_moving_on_by_k_is_a_rotation_that_does_not_depend_on_where_one_is(width, offset, doubles):
    positions = sinusoidal_positions(20, width)
    rotation = torch.zeros(width, width)
    for pair in range(width // 2):
        angle = offset / 10_000 ** (2 * pair / width)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
    assert_equal_to(positions[offset:], positions[: 20 - offset] @ rotation.T, atol=1e-13)


def test_the_dot_product_of_two_positions_depends_on_their_distance_only(doubles):
    positions = sinusoidal_positions(30, 16)
    products = positions @ positions.T
    for distance in range(30):
        diagonal = products.diagonal(distance)
        assert_equal_to(diagonal[:1].expand_as(diagonal), diagonal, atol=1e-13)
    assert_equal_to(torch.full((30,), 8.0), products.diagonal(), atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_positions_are_of_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        assert sinusoidal_positions(3, 4).dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_far_positions_are_as_exact_as_near_ones():
    # In float32 arithmetic the angle itself would be off by up to 0.03 here.
    length, width = 1_000_000, 4
    last = sinusoidal_positions(length, width)[-1].double()
    angles = [(length - 1) / 10_000 ** (2 * pair / width) for pair in range(width // 2)]
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert_equal_to(torch.tensor(expected).double(), last, atol=1e-7)


@pytest.mark.parametrize(("length", "width"), [(-1, 4), (3, 0), (3, -2)])
def test_positions_of_impossible_size_are_refused(length, width):
    with pytest.raises(ValueError, match=f"got length={length}, width={width}"):
        sinusoidal_positions(length, width)


# --- Learned positions ---


@pytest.mark.parametrize("n", [0, 1, 3, N])
def test_learned_positions_add_the_first_rows_of_their_table(n):
    positions, x = learned_positions(), randn(B, n, M)
    assert torch.equal(positions(x), x + positions.table.weight[:n])


def test_only_the_positions_in_use_are_learned():
    positions = learned_positions()
    positions(randn(B, 3, M)).sum().backward()
    assert_equal_to((torch.arange(N) < 3).double() * B, positions.table.weight.grad[:, 0])


def test_learned_positions_end_where_their_table_ends():
    with pytest.raises(ValueError, match=r"x has 6 positions.*table of learned positions.*after 5"):
        learned_positions()(randn(B, N + 1, M))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((B, N, 1), r"x \(2 5 1\) has axes \(b n m\), so m = 1; but the layer has m = 7"),
        ((N, M), r"x must have axes \(b n m\); got shape \(5 7\)"),
    ],
)
def test_learned_positions_fit_one_width(shape, words):
    with pytest.raises(ValueError, match=words):
        learned_positions()(randn(*shape))


# --- The test for permutation equivariance ---


def network():
    return nn.Sequential(nn.Linear(M, 9), nn.ReLU(), nn.Linear(9, V)).double()


def attention(x):
    return self_attention(x, *make_inputs()[1:])[0]


def causal_attention(x):
    return scaled_dot_product_attention(x, x, x, causal_mask(x.shape[1]))[0]


def masked_attention(x):
    return scaled_dot_product_attention(x, x, x, make_mask(N, N))[0]


def gru(x):
    return nn.GRU(M, V, batch_first=True).double()(x)[0]


def convolution(x, padding_mode="zeros"):
    layer = nn.Conv1d(M, V, 3, padding=1, padding_mode=padding_mode).double()
    return layer(x.mT).mT


def mixing(matrix):
    """A layer whose output i is the sum of matrix[i, j] times input j."""
    return lambda x: matrix @ x


EYE, ONES = torch.eye(N).double(), torch.ones(N, N).double()
MULTIHEAD = MultiHeadAttention(M, 7).double()
EQUIVARIANT = {
    "attention": attention,
    "multi-head attention": lambda x: MULTIHEAD(x, x, x)[0],
    "a network for each position": network(),
    "nothing": lambda x: x,
    "a constant": lambda x: torch.ones(B, N).double(),
    "each minus the mean": lambda x: x - x.mean(1, keepdim=True),
    "the maximum for all": lambda x: x.amax(1, keepdim=True).expand_as(x),
    "the general linear case": mixing(0.3 * EYE - 2 * ONES),
    "normalization": nn.LayerNorm(M).double(),
    "an infinity beside each": lambda x: torch.cat([x, x / 0], -1),
}
NOT_EQUIVARIANT = {
    "a GRU": gru,
    "causal attention": causal_attention,
    "attention with a mask that stays": masked_attention,
    "a convolution": convolution,
    "a cyclic convolution": lambda x: convolution(x, "circular"),
    "adding positions": lambda x: x + sinusoidal_positions(N, M).to(x),
    "adding learned positions": learned_positions(),
    "numbering": lambda x: x + torch.arange(N)[:, None],
    "marking the last": lambda x: x + (torch.arange(N) == N - 1)[:, None],
    "marking the first two": lambda x: x + (torch.arange(N) < 2)[:, None],
    "running sums": lambda x: x.cumsum(1),
    "running maxima": lambda x: x.cummax(1).values,
    "reversing": lambda x: x.flip(1),
    "shifting": lambda x: x.roll(1, 1),
    "sorting": lambda x: x.sort(1).values,
    "reading the first": lambda x: x + x[:, :1],
    "reading the neighbor": mixing(EYE + EYE.roll(1, 0)),
    "NaN everywhere": lambda x: x * math.nan,
    "reading the first beside an infinity": lambda x: torch.cat([x + x[:, :1], x / 0], -1),
}


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_a_layer_that_cannot_see_the_order_is_recognized(name):
    with torch.random.fork_rng(devices=[]):
        assert is_permutation_equivariant(EQUIVARIANT[name], randn(B, N, M)) is True


@pytest.mark.parametrize("name", NOT_EQUIVARIANT)
def test_a_layer_that_sees_the_order_is_recognized(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert is_permutation_equivariant(NOT_EQUIVARIANT[name], randn(B, N, M)) is False


@steadily
@given(st.integers(2, 6), st.data())
def test_a_linear_layer_is_equivariant_only_if_it_treats_all_alike(n, data):
    row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    matrix = 0.5 * torch.eye(n).double() + 1
    assert is_permutation_equivariant(mixing(matrix), randn(B, n, M))
    matrix[row, column] += 0.01
    assert not is_permutation_equivariant(mixing(matrix), randn(B, n, M))


def test_a_single_position_has_only_one_order():
    assert is_permutation_equivariant(lambda x: x + 1, randn(B, 1, M)) is True


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_forgiven_in_every_precision_and_positions_are_not(dtype):
    x, *projections = (t.to(dtype) for t in make_inputs(n=40, v=M))

    def deep(x):  # every layer adds to the rounding of those before
        for _ in range(4):
            x = F.layer_norm(x + self_attention(x, *projections)[0], [M])
        return x

    assert is_permutation_equivariant(deep, x) is True
    placed = lambda x: x + sinusoidal_positions(*x.shape[1:]).to(x)  # noqa: E731
    assert is_permutation_equivariant(placed, x) is False


@pytest.mark.parametrize(
    ("layer", "x", "error", "words"),
    [
        (attention, [[1.0]], TypeError, "x must be a torch.Tensor; got list"),
        (attention, torch.ones(B, N, M).long(), TypeError, "x must hold floating-point.*int64"),
        (attention, randn(N, M), ValueError, r"x must have axes \(b n m\); got shape \(5 7\)"),
        (lambda x: (x, x), randn(B, N, M), TypeError, r"layer\(x\) must be a torch.Tensor.*tuple"),
    ],
    ids=["list", "integers", "no batch", "a pair"],
)
def test_what_cannot_be_reordered_is_refused(layer, x, error, words):
    with pytest.raises(error, match=words):
        is_permutation_equivariant(layer, x)


# --- Precise, compiled, pure, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_self_attention_keeps_dtype_and_device_and_comes_close_to_float64(device, dtype):
    x, *projections = make_inputs()
    # Projections that leave numbers of order one; the oracle sees the already rounded inputs.
    inputs = [t.to(device, dtype) for t in (x, *(W / math.sqrt(M) for W in projections))]
    expected = self_attention(*(t.cpu().double() for t in inputs))
    for want, got in zip(expected, self_attention(*inputs), strict=True):
        assert got.dtype == dtype and got.device.type == device
        assert_equal_to(want, got.cpu().double(), atol=16 * torch.finfo(dtype).eps)


def test_the_layout_in_memory_does_not_matter():
    inputs = make_inputs()
    scattered = [t.mT.contiguous().mT for t in inputs]
    assert not any(t.is_contiguous() for t in scattered)
    for want, got in zip(self_attention(*inputs), self_attention(*scattered), strict=True):
        assert_equal_to(want, got)


@pytest.mark.parametrize(
    ("words", "changes"),
    {
        r"x must have axes \(b n m\); got shape \(5 7\)": {0: randn(N, M)},
        r"W_query must have axes \(m d\); got shape \(1 7 3\)": {1: randn(1, M, D)},
        r"W_query \(3 7\) has axes \(m d\), so m = 3; but x has m = 7": {1: randn(D, M)},
        r"W_key \(7 4\) has axes \(m d\), so d = 4; but W_query has d = 3": {2: randn(M, V)},
        r"W_value \(4 7\) has axes \(m v\), so m = 4; but x has m = 7": {3: randn(V, M)},
    }.items(),
)
def test_shapes_that_do_not_fit_are_refused_by_name(words, changes):
    arguments = [changes.get(i, t) for i, t in enumerate(make_inputs())]
    with pytest.raises(ValueError, match=words):
        self_attention(*arguments)


# --- What test_contract.py holds every mechanism to ---


CALLS = [
    *(
        Call(self_attention, make_inputs, [(B, N, V), (B, N, N)], backend, graph=backend)
        for backend in ("eager", "aot_eager")  # these need no C++ compiler
    ),
    Call(sinusoidal_positions, lambda: [N, M], (N, M)),
    Call(LearnedPositions.forward, lambda: [learned_positions(), randn(B, N, M)], (B, N, M)),
    Call(is_permutation_equivariant, lambda: [attention, randn(B, N, M)], equals=True),
    Call(
        is_permutation_equivariant,
        lambda: [learned_positions(), randn(B, N, M)],
        case="no",
        equals=False,
    ),
]

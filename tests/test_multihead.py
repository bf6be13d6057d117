"""Chapter 5's reference code against torch and GPT-2, its own properties and bad input."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensors import (
    DEVICES,
    Call,
    assert_all_agree,
    assert_equal_to,
    assert_refused,
    filled,
    gradients,
    make_mask,
    randn,
    steadily,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attncourse.cross_attention import EncoderLayer, Transformer
from attncourse.masking import causal_mask, padding_mask
from attncourse.multihead import (
    MultiHeadAttention,
    attention_maps,
    attention_parameters,
    merge_heads,
    split_heads,
)
from attncourse.positions import RELATIVE, make_attend
from attncourse.scaled_dot_product import scaled_dot_product_attention

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, Q, K, H, D = 2, 3, 5, 4, 7
M = H * D
PROJECTIONS = "q_proj", "k_proj", "v_proj", "out_proj"


def make_layer(m=M, h=H, dropout=0.0, seed=0):
    return filled(MultiHeadAttention(m, h, dropout), seed)


def make_inputs(b=B, q=Q, k=K, m=M, seed=0):
    shapes = (b, q, m), (b, k, m), (b, k, m)
    return [randn(*shape, seed=50 + 3 * seed + i) for i, shape in enumerate(shapes)]


def torch_layer(layer, inputs, mask=None):
    """nn.MultiheadAttention with the same parameters, so that gradients reach them."""
    parameters = {
        "in_proj_weight": torch.cat([getattr(layer, name).weight for name in PROJECTIONS[:3]]),
        "in_proj_bias": torch.cat([getattr(layer, name).bias for name in PROJECTIONS[:3]]),
        "out_proj.weight": layer.out_proj.weight,
        "out_proj.bias": layer.out_proj.bias,
    }
    m, h = layer.out_proj.in_features, layer.num_heads
    options = {"average_attn_weights": False}
    if mask is not None and mask.ndim == 3 and mask.shape[1] == 1:
        options["key_padding_mask"] = ~mask[:, 0]
    elif mask is not None:
        b, q, k = inputs[0].shape[0], inputs[0].shape[1], inputs[1].shape[1]
        options["attn_mask"] = ~mask.expand(b, q, k).repeat_interleave(h, 0)
    theirs = nn.MultiheadAttention(m, h, batch_first=True, device="meta")
    return torch.func.functional_call(theirs, parameters, tuple(inputs), options)


# --- Multi-head attention agrees with torch and with GPT-2 ---

MASKS = {
    "none": None,
    "(q k)": make_mask(Q, K),
    "(b q k)": make_mask(B, Q, K),
    "(1 q k)": make_mask(1, Q, K),
    "padding (b 1 k)": padding_mask(torch.tensor([K, 2]), K),
    "padding on the left": padding_mask(torch.tensor([K, 2]), K).flip(-1),
    "causal": causal_mask(Q, K),
    "causal and padding": causal_mask(Q, K) & padding_mask(torch.tensor([K, 2]), K),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_multihead_attention_agrees_with_torch_for_every_kind_of_mask(mask):
    layer, inputs = make_layer(), [t.requires_grad_() for t in make_inputs()]
    expected, actual = torch_layer(layer, inputs, mask), layer(*inputs, mask=mask)
    assert_all_agree(expected, actual, [*inputs, *layer.parameters()])


@pytest.mark.parametrize(
    ("b", "q", "k", "m", "h"),
    [
        (4, 4, 4, 16, 4),
        (1, 1, 1, 1, 1),
        (B, 1, K, M, H),
        (B, Q, 1, M, H),
        (B, K, Q, 9, 3),
        (B, Q, K, 7, 7),
        (B, Q, K, 7, 1),
    ],
    ids=["all equal", "all one", "one query", "one key", "odd heads", "heads of width 1", "1 head"],
)
def test_multihead_attention_agrees_with_torch_for_any_sizes(b, q, k, m, h):
    layer, inputs = make_layer(m, h), [t.requires_grad_() for t in make_inputs(b, q, k, m)]
    expected, actual = torch_layer(layer, inputs), layer(*inputs)
    assert_all_agree(expected, actual, [*inputs, *layer.parameters()])


def test_self_attention_with_heads_agrees_with_gpt2():
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    sizes = {"n_embd": M, "n_head": H, "attn_implementation": "eager"}
    theirs = gpt2.GPT2Attention(gpt2.GPT2Config(**sizes), layer_idx=0).double().eval()
    layer, x = make_layer(), randn(B, K, M).requires_grad_()
    q, k, v, out = (getattr(layer, name) for name in PROJECTIONS)
    parameters = {  # its weights are (in out), the transposed of a Linear's
        "c_attn.weight": torch.cat([q.weight, k.weight, v.weight]).T,
        "c_attn.bias": torch.cat([q.bias, k.bias, v.bias]),
        "c_proj.weight": out.weight.T,
        "c_proj.bias": out.bias,
    }
    additive = torch.zeros(1, 1, K, K).double().masked_fill(~causal_mask(K), -math.inf)
    options = {"attention_mask": additive}
    expected = torch.func.functional_call(theirs, parameters, (x,), options)
    actual = layer(x, x, x, causal_mask(K))
    assert_all_agree(expected[:2], actual, [x, *layer.parameters()])


# --- What a head is ---


def test_one_head_is_attention_between_projections():
    layer, (query, key, value) = make_layer(h=1), make_inputs()
    heads, weights = scaled_dot_product_attention(
        layer.q_proj(query), layer.k_proj(key), layer.v_proj(value)
    )
    output = layer(query, key, value)
    assert_equal_to(layer.out_proj(heads), output[0])
    assert_equal_to(weights[:, None], output[1])


def head(layer, i, query, key, value):
    """Head i alone, with its own rows of the three projections."""
    rows = slice(i * D, (i + 1) * D)
    q, k, v = (
        t @ getattr(layer, name).weight[rows].T + getattr(layer, name).bias[rows]
        for name, t in zip(PROJECTIONS, (query, key, value), strict=False)
    )
    return scaled_dot_product_attention(q, k, v)


def test_concatenating_and_projecting_is_a_sum_over_heads():
    layer, inputs = make_layer(), make_inputs()
    output, weights = layer(*inputs)
    total = layer.out_proj.bias.expand_as(output)
    for i, W_output in enumerate(layer.out_proj.weight.T.split(D)):  # d m
        result, alone = head(layer, i, *inputs)
        assert_equal_to(alone, weights[:, i])
        total = total + result @ W_output
    assert_equal_to(total, output)


@pytest.mark.parametrize("i", range(H))
def test_each_head_reads_the_whole_embedding(i):
    layer, inputs = make_layer(), [t.requires_grad_() for t in make_inputs()]
    _, weights = layer(*inputs)
    by_query, by_key = gradients([weights[:, i]], inputs[:2])
    assert (by_query != 0).all() and (by_key != 0).all()


def test_a_heads_value_map_has_the_rank_of_a_head():
    layer, (query, key, value) = make_layer(), make_inputs()
    maps = [  # from the embedding to the output, m by m, through d numbers
        down.T @ up
        for down, up in zip(
            layer.v_proj.weight.split(D), layer.out_proj.weight.T.split(D), strict=True
        )
    ]
    assert [torch.linalg.matrix_rank(fold).item() for fold in maps] == [D] * H
    output, weights = layer(query, key, value)
    folded = layer.out_proj(layer.v_proj.bias) + sum(
        weights[:, i] @ value @ fold for i, fold in enumerate(maps)
    )
    assert_equal_to(folded, output)


def test_all_heads_see_the_same_mask():
    mask = make_mask(B, Q, K)
    _, weights = make_layer()(*make_inputs(), mask)
    assert torch.equal(weights > 0, mask[:, None].expand(B, H, Q, K))


# --- Splitting and merging ---


@steadily
@given(*(st.integers(1, 5) for _ in range(4)))
def test_merging_puts_together_what_splitting_cut(b, n, h, d):
    x = randn(b, n, h * d)
    heads = split_heads(x, h)
    assert heads.shape == (b, h, n, d)
    for i in range(h):
        assert torch.equal(heads[:, i], x[..., i * d : (i + 1) * d])
    assert torch.equal(merge_heads(heads), x)


# --- Dead rows, hidden words ---


def test_a_query_with_nothing_to_attend_to_gets_the_bias_of_the_last_projection():
    layer, inputs = make_layer(), [t.requires_grad_() for t in make_inputs()]
    mask = make_mask(B, Q, K)
    mask[0, 1] = False
    output, weights = layer(*inputs, mask)
    assert (weights[0, :, 1] == 0).all()
    assert torch.equal(output[0, 1], layer.out_proj.bias)
    by_query, *others = gradients([output, weights], [*inputs, *layer.parameters()])
    assert (by_query[0, 1] == 0).all() and (by_query[1] != 0).all()
    assert all(gradient.isfinite().all() for gradient in others)


@steadily
@given(*(st.integers(1, 4) for _ in range(5)), st.booleans(), st.integers(0, 99))
def test_padding_changes_nothing_for_the_words(q, k, h, d, pads, left, seed):
    layer, (query, key, value) = make_layer(h * d, h), make_inputs(q=q, k=k, m=h * d, seed=seed)
    expected = layer(query, key, value)
    side = (0, 0, pads, 0) if left else (0, 0, 0, pads)
    key, value = (nn.functional.pad(t, side, value=1e3) for t in (key, value))
    mask = padding_mask(torch.tensor([k] * B), k + pads)
    mask = mask.flip(-1) if left else mask
    output, weights = layer(query, key, value, mask)
    assert_equal_to(expected[0], output)
    assert_equal_to(expected[1], weights[..., mask[0, 0]])
    assert (weights[..., ~mask[0, 0]] == 0).all()


# --- Dropout ---


class Products(TorchDispatchMode):
    """Counts products of matrices that are no projections."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.bmm.default
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("training", [True, False])
def test_scores_and_heads_are_computed_once(training):
    with Products() as products:
        make_layer(dropout=0.5).train(training)(*make_inputs(), make_mask(B, Q, K))
    assert products.count == 2


@pytest.mark.parametrize("scheme", ["none", *RELATIVE])
def test_dropout_drops_weights_in_training_and_returns_them_whole(scheme):
    h, d = 2, 14  # RoPE turns features in pairs
    layer, inputs = make_layer(h=h, dropout=0.5), make_inputs(k=1)
    layer.attend = make_attend(scheme, h, d, "cross")
    layer.double()
    # One key, so every weight is 1, and dropout makes it 0 or 2: a head speaks twice or not at all.
    layer.out_proj.weight.data = torch.eye(M).double()
    layer.out_proj.bias.data.zero_()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output, weights = layer(*inputs)
    assert (weights == 1).all()
    spoken = split_heads(layer.v_proj(inputs[2]), h).expand(B, h, Q, d)
    share = split_heads(output, h) / spoken
    assert_equal_to(share[..., :1].expand_as(share), share)
    assert share.round(decimals=9).unique().tolist() == [0, 2]


def test_dropout_rests_outside_training():
    without, layer = make_layer(), make_layer(dropout=0.5).eval()
    inputs, chance = [t.requires_grad_() for t in make_inputs()], torch.get_rng_state()
    for results in (slice(0, 2), slice(0, 1)):
        assert_all_agree(without(*inputs)[results], layer(*inputs)[results], inputs)
    assert torch.equal(chance, torch.get_rng_state())


def test_on_average_dropout_changes_nothing():
    layer, inputs = make_layer(dropout=0.3), make_inputs(b=1)
    many = [t.expand(4000, -1, -1) for t in inputs]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        outputs, _ = layer(*many)
        expected, _ = layer.eval()(*inputs)
    error = outputs.std(0) / math.sqrt(len(outputs))
    assert ((outputs.mean(0) - expected[0]).abs() < 5 * error).all()
    assert (error > 0).all()


# --- How many parameters ---


def test_the_attention_of_gpt3_has_58_billion_weights():
    assert attention_parameters(12_288, 96, 96) == 57_982_058_496
    # Each head has four tables of this many, and each kind of table makes a quarter of the whole.
    assert attention_parameters(12_288, 96, 96) // 4 == 14_495_514_624
    assert attention_parameters(12_288, 96, 1, head_width=128) == 4 * 12_288**2 == 603_979_776


@pytest.mark.parametrize("h", [1, 2, 4, 7, 14, 28])
def test_the_number_of_heads_costs_nothing(h):
    layer = MultiHeadAttention(M, h)
    weights = sum(p.numel() for p in layer.parameters() if p.ndim > 1)
    assert weights == attention_parameters(M, h, 1) == attention_parameters(M, 1, 1)


def test_parameters_are_counted_as_in_a_real_model():
    model = Transformer(11, 13, model_width=M, num_heads=H, num_layers=3)
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    weights = sum(getattr(part, name).weight.numel() for part in attentions for name in PROJECTIONS)
    # The encoder has one in each of its layers, the decoder two.
    assert weights == attention_parameters(M, H, 3 + 2 * 3)


def test_heads_may_be_of_any_width():
    q, k, v, out = nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(12, 10)
    weights = sum(part.weight.numel() for part in (q, k, v, out))
    assert attention_parameters(10, 3, 1, head_width=4) == weights


# --- Maps of a model ---


def test_the_maps_of_a_layer_are_the_weights_it_returns():
    layer, inputs, mask = make_layer(), make_inputs(), make_mask(Q, K)
    maps = attention_maps(layer, *inputs, mask)
    assert list(maps) == [""] and torch.equal(maps[""], layer(*inputs, mask)[1])
    assert not maps[""].requires_grad


def test_the_maps_of_a_transformer_have_names_and_axes():
    model = filled(Transformer(11, 13, model_width=M, num_heads=H, num_layers=2))
    source, words = torch.tensor([[3, 4, 5, 6, 7]]), torch.tensor([[1, 8, 9]])
    maps = attention_maps(model, source, words)
    expected = {f"encoder.{i}.self_attention": (1, H, 5, 5) for i in range(2)}
    expected |= {f"decoder.{i}.self_attention": (1, H, 3, 3) for i in range(2)}
    expected |= {f"decoder.{i}.cross_attention": (1, H, 3, 5) for i in range(2)}
    assert {name: weights.shape for name, weights in maps.items()} == expected
    for name, weights in maps.items():
        assert_equal_to(torch.ones(weights.shape[:-1]).double(), weights.sum(-1))
        if name.startswith("decoder") and "self" in name:
            assert torch.equal(weights > 0, causal_mask(3).expand_as(weights))


def test_maps_leave_no_trace_even_if_the_model_fails():
    model = nn.ModuleDict({"layer": EncoderLayer(M, H, 9)})
    model.forward = lambda x: model["layer"](x)
    attention_maps(model, torch.zeros(B, Q, M))
    with pytest.raises(ValueError):
        attention_maps(model, torch.zeros(Q, M))
    assert not any(part._forward_hooks for part in model.modules())


def test_a_model_without_attention_has_no_maps():
    assert attention_maps(nn.Linear(M, M), torch.zeros(B, M)) == {}


# --- Precise, compiled, pure, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_layer_keeps_dtype_and_device_and_comes_close_to_float64(device, dtype):
    layer = make_layer().to(device, dtype)
    inputs = [t.to(device, dtype) for t in make_inputs()]
    mask = MASKS["causal and padding"]
    results = layer(*inputs, mask.to(device))
    # The oracle sees the already rounded numbers: only the arithmetic is on trial.
    expected = layer.cpu().double()(*(t.cpu().double() for t in inputs), mask)
    for want, got in zip(expected, results, strict=True):
        assert got.dtype == dtype and got.device.type == device
        assert_equal_to(want, got.cpu().double(), atol=16 * torch.finfo(dtype).eps)


# --- Bad input ---

# What the message says, and the arguments that provoke it; " ... " skips some words.
BAD_VALUES = {
    "query must have axes (b q m); got shape (3 28)": {"query": randn(Q, M)},
    "key must have axes (b k m); got shape (2 4 5 7)": {"key": randn(B, H, K, D)},
    "query (2 3 7) has axes (b q m), so m = 7; but the layer has m = 28": {"query": randn(B, Q, D)},
    "value (2 5 7) has axes (b k m), so m = 7; but the layer has m = 28": {"value": randn(B, K, D)},
    "value (2 3 28) has axes (b k m), so k = 3; but key has k = 5": {"value": randn(B, Q, M)},
    "key (4 5 28) has axes (b k m), so b = 4; but query has b = 2": {"key": randn(H, K, M)},
    "mask must broadcast to (b q k) = (2 3 5); got shape (2 5 3)": {"mask": make_mask(B, K, Q)},
    "(2 3 5); got shape (2 5). A padding mask (b k) ... mask[:, None, :]": {
        "mask": make_mask(B, K)
    },
    "(2 3 5); got shape (2 4 3 5)": {"mask": make_mask(B, H, Q, K)},
    "mask (2 1 5) hides every key from every query ... ~mask": {"mask": make_mask(B, 1, K) & False},
}


@pytest.mark.parametrize(("words", "changes"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_shapes_that_do_not_fit_are_refused_by_name(words, changes):
    arguments = dict(zip(("query", "key", "value"), make_inputs(), strict=True)) | changes
    assert_refused(ValueError, words, make_layer(), **arguments)


@pytest.mark.parametrize(
    ("words", "call", "arguments"),
    [
        ("3 heads of equal ... model_width=28", MultiHeadAttention, (M, 3)),
        ("0 heads of equal ... model_width=28", MultiHeadAttention, (M, 0)),
        ("-4 heads of equal ... model_width=28", MultiHeadAttention, (M, -4)),
        ("3 heads of equal ... m = 28: x has shape (2 3 28)", split_heads, (randn(B, Q, M), 3)),
        ("0 heads of equal ... m = 28: x has shape (2 3 28)", split_heads, (randn(B, Q, M), 0)),
        ("x must have axes (b n m); got shape (3 28)", split_heads, (randn(Q, M), H)),
        ("x must have axes (b h n d); got shape (2 3 28)", merge_heads, (randn(B, Q, M),)),
        ("5 heads ... model_width=12288; give head_width", attention_parameters, (12_288, 5, 1)),
        ("at least 1; got model_width=0", attention_parameters, (0, 1, 1)),
        ("at least 1; got ... num_heads=-1", attention_parameters, (8, -1, 1)),
        ("at least 1; got ... num_layers=0", attention_parameters, (8, 2, 0)),
        ("at least 1; got ... head_width=0", attention_parameters, (8, 2, 1, 0)),
        ("at least 1; got ... head_width=-4", attention_parameters, (8, 2, 1, -4)),
    ],
)
def test_impossible_sizes_are_refused_by_name(words, call, arguments):
    assert_refused(ValueError, words, lambda: call(*arguments))


# --- What test_contract.py holds every mechanism to ---


CALLS = [
    *(
        Call(
            MultiHeadAttention.forward,
            lambda mask=mask: [make_layer(), *make_inputs(), mask],
            [(B, Q, M), (B, H, Q, K)],
            name,
            graph="eager" if name in ("none", "(q k)", "padding (b 1 k)") else None,
        )
        for name, mask in MASKS.items()
    ),
    Call(split_heads, lambda: [randn(B, Q, M), H], (B, H, Q, D)),
    Call(merge_heads, lambda: [randn(B, H, Q, D)], (B, Q, M)),
    Call(attention_parameters, lambda: [M, H, 2], equals=8 * M**2),
    Call(attention_maps, lambda: [make_layer(), *make_inputs()], (B, H, Q, K)),
]

"""Chapter 8's reference code against Hugging Face, brute force, properties and bad input."""

import copy
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
    filled,
    gradients,
    make_mask,
    randn,
    seeded,
    steadily,
)

from attncourse.cross_attention import Transformer
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.positions import (
    ADDED,
    RELATIVE,
    BucketAttention,
    RotaryAttention,
    ShawAttention,
    Sinusoids,
    alibi_bias,
    alibi_slopes,
    attend_by,
    exchange,
    halves_from_pairs,
    make_attend,
    ntk_base,
    offsets,
    places,
    relative_buckets,
    relative_scores,
    rotary_frequencies,
    rotate,
    scaled_frequencies,
    shift_relative,
    transformer_xl_attention,
)
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.self_attention import sinusoidal_positions

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, H, Q, K, D, V = 2, 3, 4, 5, 6, 7


def make_attention(b=B, h=H, q=Q, k=K, d=D, v=V, seed=0):
    """query, key, value."""
    shapes = (b, h, q, d), (b, h, k, d), (b, h, k, v)
    return [randn(*shape, seed=3 * seed + i) for i, shape in enumerate(shapes)]


# --- Places and offsets ---


@pytest.mark.parametrize(("q", "k"), [(1, 1), (3, 3), (1, 4), (2, 5), (0, 3)])
def test_queries_are_the_last_of_the_keys_and_in_cross_attention_count_apart(q, k):
    i, j = places(q, k)
    assert i.tolist() == list(range(k))[k - q :] and j.tolist() == list(range(k))
    assert torch.equal(offsets(q, k) <= 0, causal_mask(q, k))
    assert offsets(q, k, cross=True).tolist() == [[j - i for j in range(k)] for i in range(q)]


# --- RoPE agrees with Hugging Face, with complex numbers and with matrices ---


def by_complex_numbers(x, positions, base=10_000.0):
    angle = positions.double()[..., None] * rotary_frequencies(x.shape[-1], base)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2)


@pytest.mark.parametrize("shape", [(B, H, Q, D), (4, 4, 4, 4), (Q, 2), (B, 1, 8), (B, 0, 4)])
@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_a_turn_is_a_product_of_complex_numbers(shape, base):
    x, positions = randn(*shape).requires_grad_(), 11 + 3 * torch.arange(shape[-2])
    expected, actual = by_complex_numbers(x, positions, base), rotate(x, positions, base)
    assert_all_agree([expected], [actual], [x])


@pytest.mark.parametrize(("h", "n", "d"), [(H, Q, D), (4, 4, 4)])
def test_hugging_face_turns_halves_and_the_order_of_features_makes_them_pairs(h, n, d):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x = [randn(B, h, n, d, seed=i).requires_grad_() for i in (0, 1)]
    angle = torch.arange(n).double()[:, None] * rotary_frequencies(d)
    angle = torch.cat([angle, angle], -1)[None]  # b n d
    order = halves_from_pairs(d)
    expected = llama.apply_rotary_pos_emb(
        x[0][..., order], x[1][..., order], angle.cos(), angle.sin()
    )
    actual = [rotate(each, torch.arange(n))[..., order] for each in x]
    assert_all_agree(expected, actual, x)


def test_the_frequencies_are_those_of_a_llama():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=24, num_attention_heads=3)
    rotary = llama.LlamaRotaryEmbedding(config)
    assert_equal_to(rotary_frequencies(8), rotary.inv_freq.double(), atol=1e-7)


PUBLISHED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "Llama 3.1": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "Qwen2.5": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "DeepSeek-V3": {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
                    "mscale": 1.0, "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 4096},
    "a quarter turned": {"rope_type": "default", "partial_rotary_factor": 0.25},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_scaled_frequencies_are_those_of_hugging_face(name, base):
    """Each kind of `rope_scaling`, with the numbers of published configurations."""
    pytest.importorskip("transformers")
    from transformers import GPTNeoXConfig, LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    rope = {"rope_theta": base} | PUBLISHED[name]
    sizes = {"hidden_size": 512, "num_attention_heads": 4}
    if rope["rope_type"] == "default":
        config = GPTNeoXConfig(**sizes, rope_parameters=rope)
        expected, temperature = GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        config = LlamaConfig(**sizes, rope_parameters=rope)
        expected, temperature = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    speed, ours = scaled_frequencies(128, rope)
    assert_equal_to(speed, expected.double(), atol=1e-7)
    assert ours == pytest.approx(temperature)


def test_by_parts_fast_pairs_keep_their_speed_and_slow_ones_take_the_factor():
    plain = rotary_frequencies(128, 5e5)
    for name in ("Llama 3.1", "Qwen2.5"):
        rope = {"rope_theta": 5e5} | PUBLISHED[name]
        slower = plain / scaled_frequencies(128, rope)[0]
        assert slower[0] == 1 and slower[-1] == pytest.approx(rope["factor"])
        assert (slower.diff() >= -1e-12).all()


def test_halves_from_pairs_names_every_feature_once():
    assert halves_from_pairs(6).tolist() == [0, 2, 4, 1, 3, 5]
    assert torch.equal(halves_from_pairs(64).sort().values, torch.arange(64))


@steadily
@given(st.integers(0, 200), st.integers(-30, 30), st.sampled_from([2, 4, 10]), st.integers(0, 99))
def test_a_dot_product_of_turned_vectors_depends_on_their_offset_only(start, offset, d, seed):
    q, k = randn(2, 1, d, seed=seed)
    place = torch.tensor([start])
    here = (rotate(q, place) * rotate(k, place + offset)).sum()
    there = (q * rotate(k, torch.tensor([offset]))).sum()
    assert_equal_to(there, here)


@steadily
@given(st.integers(-50, 5000), st.integers(0, 99))
def test_turning_keeps_lengths_and_turning_back_undoes_it(place, seed):
    x, place = randn(1, 8, seed=seed), torch.tensor([place])
    turned = rotate(x, place)
    assert_equal_to(x.norm(), turned.norm())
    assert_equal_to(x, rotate(turned, -place))


def test_places_may_differ_from_row_to_row_and_lie_between_whole_numbers():
    x = randn(B, H, Q, D)
    own = torch.tensor([[0.0, 1, 2, 3], [0.5, 1.5, 2.5, 7.25]])[:, None]  # b 1 n
    turned = rotate(x, own)
    for row in range(B):
        assert_equal_to(rotate(x[row], own[row, 0]), turned[row])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_far_turn_is_as_exact_as_the_dtype_allows(device, dtype):
    x, positions = randn(3, 4).to(device, dtype), torch.tensor([0, 3_001, 1_000_000]).to(device)
    turned = rotate(x, positions)
    assert turned.dtype == dtype and turned.device.type == device
    expected = by_complex_numbers(x.cpu().double(), positions.cpu())
    assert_equal_to(expected, turned.cpu().double(), atol=16 * torch.finfo(dtype).eps)


def test_ntk_slows_the_slowest_pair_and_leaves_the_fastest():
    before, after = (rotary_frequencies(16, base) for base in (1e4, ntk_base(1e4, 3.0, 16)))
    assert_equal_to(before[0], after[0])
    assert_equal_to(before[-1] / 3, after[-1])


def test_squeezed_places_give_the_scores_of_a_shorter_text():
    query, key, value = make_attention(q=8, k=8)
    squeezed = RotaryAttention(stretch=2.0)(query, key, value)[1][..., ::2, ::2]
    usual = RotaryAttention()(query[..., ::2, :], key[..., ::2, :], value[..., ::2, :])[1]
    assert_equal_to(usual, squeezed / squeezed.sum(-1, keepdim=True))


# --- Shaw agrees with brute force ---


def brute_force(query, key, table, cross=False):
    q, k, c = query.shape[-2], key.shape[-2], len(table) // 2
    rows = []
    for i in range(q):
        for j in range(k):
            place = i if cross else i + k - q
            relative = table[max(-c, min(c, j - place)) + c]
            rows.append((query[..., i, :] * (key[..., j, :] + relative)).sum(-1))
    return torch.stack(rows, -1).unflatten(-1, (q, k)) / math.sqrt(query.shape[-1])


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("c", [0, 1, 2, 9])
@pytest.mark.parametrize(
    "sizes", [{}, {"q": 4, "k": 4, "d": 4, "h": 4}, {"q": 1}, {"k": 1, "q": 1}]
)
def test_relative_scores_agree_with_brute_force(sizes, c, cross):
    query, key, _ = make_attention(**sizes)
    inputs = [t.requires_grad_() for t in (query, key, randn(2 * c + 1, query.shape[-1], seed=9))]
    expected, actual = brute_force(*inputs, cross), relative_scores(*inputs, cross)
    assert_all_agree([expected], [actual], inputs)


@steadily
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))
def test_moving_a_text_along_moves_no_relative_score(n, before, c, seed):
    """Words put in front change no score of those behind, beyond what they add themselves."""
    x, table = randn(n + before, D, seed=seed), randn(2 * c + 1, D, seed=seed + 1)
    whole = relative_scores(x, x, table)[before:, before:]
    assert_equal_to(relative_scores(x[before:], x[before:], table), whole)


# --- T5's buckets and ALiBi's slopes agree with Hugging Face ---


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (16, 64), (8, 20), (64, 1000), (32, 24), (4, 3)]
)
def test_buckets_agree_with_t5(num_buckets, max_distance, bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    every = torch.arange(-1200, 1201)
    expected = t5._relative_position_bucket(every, bidirectional, num_buckets, max_distance)
    actual = relative_buckets(every, num_buckets, max_distance, bidirectional)
    assert torch.equal(expected, actual)


@steadily
@given(st.integers(1, 8), st.integers(1, 500), st.booleans())
def test_buckets_never_fall_with_the_distance_and_none_is_missing(quarter, farther, both):
    num_buckets = 4 * quarter
    max_distance = num_buckets + farther
    past = relative_buckets(-torch.arange(4 * max_distance), num_buckets, max_distance, both)
    assert (past.diff() >= 0).all() and past[0] == 0
    assert past.max() == num_buckets // (1 + both) - 1
    after = relative_buckets(torch.arange(1, 9), num_buckets, max_distance, both)
    assert (after >= num_buckets // 2).all() if both else (after == 0).all()


@pytest.mark.parametrize("h", [1, 2, 3, 4, 6, 8, 12, 20, 32, 112])
def test_slopes_agree_with_bloom(h):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    expected = bloom.build_alibi_tensor(torch.ones(1, K).long(), h, torch.float64)  # h 1 k
    # BLOOM adds slope · place of the key: another constant in each row, which a softmax ignores.
    actual = alibi_bias(h, 1, K).double()
    assert_equal_to(expected - expected[..., -1:], actual, atol=1e-6)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("q", "k"), [(Q, K), (4, 4), (1, 3)])
def test_alibi_is_slope_times_distance(q, k, cross):
    bias, start = alibi_bias(H, q, k, cross), 0 if cross else k - q
    for h in range(H):
        for i in range(q):
            for j in range(k):
                expected = -alibi_slopes(H)[h] * abs(start + i - j)
                assert_equal_to(expected, bias[h, i, j])


# --- Transformer-XL agrees with XLNet, with indices and with one long segment ---


@pytest.mark.parametrize(("q", "k"), [(Q, K), (4, 4), (1, 5), (5, 1), (1, 1), (3, 8)])
def test_the_shift_is_a_gather(q, k):
    scores = randn(B, H, q, q + k - 1).requires_grad_()
    column = offsets(q, k) + k - 1
    expected = scores.gather(-1, column.expand(B, H, q, k))
    assert_all_agree([expected], [shift_relative(scores)], [scores])


def test_the_shift_agrees_with_xlnet():
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet").XLNetRelativeAttention
    scores = randn(B, H, Q, Q + K)  # XLNet has one offset more, in front
    expected = xlnet.rel_shift_bnij(scores, klen=K)
    assert_equal_to(expected, shift_relative(scores[..., 1:]))


def offset_keys(q, k, seed=5):
    """Projected sinusoids for the offsets −(k − 1) … q − 1: (h r d)."""
    waves = sinusoidal_positions(q + 2 * k, D).double()
    angle = torch.arange(1 - k, q)
    table = torch.where((angle < 0)[:, None], -waves[angle.abs()], waves[angle.abs()])
    table[:, 1::2] = waves[angle.abs()][:, 1::2]  # a sine is odd, a cosine even
    return torch.einsum("rd,hde->hre", table, randn(H, D, D, seed=seed))


def xl_inputs(q, k, seed=0):
    query, key, value = make_attention(q=q, k=k, seed=seed)
    return query, key, value, offset_keys(q, k), randn(H, D, seed=20), randn(H, D, seed=21)


def test_transformer_xl_agrees_with_xlnet():
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    config = xlnet.XLNetConfig(d_model=H * D, n_head=H, d_inner=8, n_layer=1, dropout=0.0)
    layer = seeded(xlnet.XLNetRelativeAttention, config).eval()
    inputs = [t.requires_grad_() for t in xl_inputs(Q, K)]
    query, key, value, by_offset, u, w = inputs
    value = value[..., :D]
    layer.r_w_bias, layer.r_r_bias = (torch.nn.Parameter(bias.detach()) for bias in (u, w))
    # XLNet's axes are (i b n d), and it has one offset more, in front.
    more = torch.cat([torch.zeros(H, 1, D).double(), by_offset], 1)
    r = more.permute(1, 0, 2)[:, None].expand(-1, B, -1, -1)
    heads = (t.permute(2, 0, 1, 3) for t in (query, key, value))
    expected = layer.rel_attn_core(*heads, r).permute(1, 2, 0, 3)
    actual = transformer_xl_attention(query, key, value, by_offset, u, w)[0]
    assert_equal_to(expected, actual)
    five = inputs[:4]
    for want, got in zip(gradients([expected], five), gradients([actual], five), strict=True):
        assert_equal_to(want, got)


def test_two_segments_with_memory_are_one_long_segment_under_a_window():
    n, seg = 8, 4
    query, key, value, _, u, w = xl_inputs(n, n)
    long = offset_keys(n, n)
    window = causal_mask(n)  # each segment sees itself and the one before: here, everything
    whole = transformer_xl_attention(query, key, value, long, u, w, window)[0]
    first = [t[..., :seg, :] for t in (query, key, value)]
    one = transformer_xl_attention(*first, offset_keys(seg, seg), u, w, causal_mask(seg))[0]
    second = query[..., seg:, :], key, value  # its memory is the first segment's
    two = transformer_xl_attention(*second, offset_keys(seg, n), u, w, causal_mask(seg, n))[0]
    assert_equal_to(whole, torch.cat([one, two], -2))


# --- What `MultiHeadAttention.attend` and `Transformer` exchange ---


@pytest.mark.parametrize("scheme", RELATIVE)
def test_relative_attention_does_not_ask_where_a_text_begins(scheme):
    """Words in front that are hidden change nothing: an absolute scheme would move all others."""
    attend = filled(make_attend(scheme, H, D, "encoder"))
    query, key, value = make_attention(q=7, k=7)
    hidden = torch.ones(7, 7, dtype=torch.bool)
    hidden[:, :2] = False
    expected = attend(*(t[..., 2:, :] for t in (query, key, value)))
    actual = attend(query, key, value, hidden)
    assert_equal_to(expected[0], actual[0][..., 2:, :])
    assert_equal_to(expected[1], actual[1][..., 2:, 2:])


@pytest.mark.parametrize("scheme", RELATIVE)
def test_the_last_queries_alone_get_what_they_get_among_all(scheme):
    attend = filled(make_attend(scheme, H, D))
    query, key, value = make_attention(q=6, k=6)
    whole = attend(query, key, value, causal_mask(6))
    last = attend(query[..., 4:, :], key, value, causal_mask(2, 6))
    for want, got in zip(whole, last, strict=True):
        assert_equal_to(want[..., 4:, :], got)


@pytest.mark.parametrize("scheme", RELATIVE)
def test_nothing_to_attend_to_is_0_and_no_mask_is_everything(scheme):
    attend = filled(make_attend(scheme, H, D))
    query, key, value = (t.requires_grad_() for t in make_attention())
    mask = make_mask(B, 1, Q, K)
    mask[0, :, 1] = False
    output, weights = attend(query, key, value, mask)
    assert (output[0, :, 1] == 0).all() and (weights[0, :, 1] == 0).all()
    assert all(g.isfinite().all() for g in gradients([output, weights], [query, key, value]))
    everything = attend(query, key, value, torch.ones_like(mask))
    for want, got in zip(attend(query, key, value), everything, strict=True):
        assert_equal_to(want, got)


def test_a_table_of_zeros_and_one_place_for_all_are_plain_attention():
    inputs = make_attention()
    shaw = filled(ShawAttention(D))
    shaw.table.data.zero_()
    t5 = filled(make_attend("t5", H, D))
    t5.bias.weight.data.fill_(1.5)
    for attend in (shaw, t5, RotaryAttention(stretch=1e12)):
        expected = scaled_dot_product_attention(*inputs)
        for want, got in zip(expected, attend(*inputs), strict=True):
            assert_equal_to(want, got)


@pytest.fixture
def words():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 9, size, generator=generator) for size in ((B, 6), (B, 5))]


def built(scheme=None, parts=("encoder", "decoder")):
    """A Transformer whose weights do not depend on the scheme."""
    model = seeded(Transformer, 9, 10, 12, 3, 8, 2)
    if scheme:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            exchange(model, scheme, parts).double()
    return model


def test_sinusoids_for_sinusoids_change_nothing_and_can_be_put_back(words):
    model = built()
    expected = model(*words)
    assert_equal_to(expected, built("sinusoidal")(*words))
    for scheme in (*ADDED, *RELATIVE):
        exchange(model, scheme).double()
        assert (model(*words) - expected).abs().max() > 1e-3 or scheme == "sinusoidal"
    assert_equal_to(expected, exchange(model, "sinusoidal")(*words))


@pytest.mark.parametrize("scheme", [*ADDED, *RELATIVE])
def test_every_scheme_learns_translates_and_is_kept_with_the_model(scheme, words):
    model = built(scheme)
    scores = model(*words)
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    other = built(scheme)
    filled(other, seed=3)
    other.load_state_dict(model.state_dict())
    assert_equal_to(scores, other(*words))
    assert_equal_to(scores, copy.deepcopy(model)(*words))


@pytest.mark.parametrize("scheme", RELATIVE)
@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_one_part_alone_is_exchanged(scheme, part):
    model = built(scheme, [part])
    kinds = {
        name: type(module.attend)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    stack = "decoder" if part == "cross" else part
    inside = "cross_attention" if part == "cross" else "self_attention"
    expected = type(make_attend(scheme, 3, 4, part))
    for name, kind in kinds.items():
        assert (kind is expected) == (name.startswith(stack) and name.endswith(inside)), name
    x = randn(B, 5, 12)
    for stack in (model.encoder, model.decoder):
        has_sinusoids = (stack[0].place(x) != x).any()
        assert has_sinusoids == (part == "cross" or stack is not getattr(model, part))


def test_learned_positions_end_and_none_see_no_order_in_the_encoder(words):
    source, target = words
    model = built("none")
    memory, mask = model.encode(source)
    turned, _ = model.encode(source.flip(1))
    assert_equal_to(memory.flip(1), turned)
    # A decoder without positions still knows what came first: its mask says so.
    one, two = (model.decode(t, memory, mask)[:, -1] for t in (target, target[:, [1, 0, 2, 3, 4]]))
    assert (one - two).abs().max() > 1e-6
    with pytest.raises(ValueError, match="65 positions"):
        built("learned").encode(source[:, :1].expand(-1, 65))


# --- Compiled, pure, typed, refused ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scheme", RELATIVE)
def test_schemes_keep_the_dtype_and_come_close_to_float64(scheme, dtype):
    attend = filled(make_attend(scheme, H, D)).to(dtype)
    inputs = [(t / 2).to(dtype) for t in make_attention()]
    actual = attend(*inputs, causal_mask(Q, K))
    expected = attend.double()(*(t.double() for t in inputs), causal_mask(Q, K))
    for want, got in zip(expected, actual, strict=True):
        assert got.dtype == dtype
        assert_equal_to(want, got.double(), atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*RELATIVE, "transformer_xl_attention", "relative_scores"])
def test_relative_attention_stays_on_its_device_and_says_the_same_there(name, device):
    (call,) = (call for call in CALLS if name in (call.case, call.function.__name__))
    expected = call.function(*call.inputs())
    actual = call.function(*(each.to(device) for each in call.inputs()))
    expected, actual = (r if isinstance(r, tuple) else (r,) for r in (expected, actual))
    for want, got in zip(expected, actual, strict=True):
        assert got.device.type == device
        assert_equal_to(want, got.cpu())


X, PLACES = randn(B, Q, D), torch.arange(Q)
QUERY, KEY, _ = make_attention()


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (rotate, (X[..., :5], PLACES), r"x must have axes .* even d.*got shape \(2 4 5\)"),
        (rotate, (X[0, 0], PLACES), r"x must have axes .* got shape \(6\)"),
        (rotate, (X, PLACES[:3]), r"positions must have axes \(n\).*got positions \(3\)"),
        (rotate, (X, torch.zeros(3, Q)), r"positions must have axes .* x \(2 4 6\)"),
        (rotate, (X, torch.tensor(3)), r"positions must have axes"),
        (rotate, (X, PLACES, 0.0), "base > 0; got width=6, base=0.0"),
        (rotary_frequencies, (5,), "even width >= 2.*got width=5"),
        (relative_scores, (QUERY, KEY, randn(4, D)), r"2c \+ 1 rows.*got shape \(4 6\)"),
        (relative_scores, (QUERY, KEY, randn(5, 4)), "so d = 4; but query has d = 6"),
        (relative_scores, (QUERY, KEY[..., :4], randn(5, D)), "same width d"),
        (relative_buckets, (PLACES, 6, 20, True), "multiple of 4.*got 6"),
        (relative_buckets, (PLACES, 7, 20, False), "multiple of 2; got 7"),
        (relative_buckets, (PLACES, 2, 20, True), "multiple of 4.*got 2"),
        (relative_buckets, (PLACES, 8, 2, True), "max_distance must be above 2.*got 2"),
        (relative_buckets, (PLACES, 8.0, 20, True), "num_buckets must be a whole number.*got 8.0"),
        (alibi_bias, (0, 2, 2), "num_heads must be a whole number of at least 1; got 0"),
        (alibi_bias, (2.0, 2, 2), "num_heads must be a whole number of at least 1; got 2.0"),
        (alibi_bias, (2, -1, 2), "query_length must be a whole number of at least 0; got -1"),
        (places, (2, 2.5), "key_length must be a whole number of at least 0; got 2.5"),
        (halves_from_pairs, (5,), "even width >= 2; got width=5"),
        (scaled_frequencies, (8, {"rope_type": "longrope", "rope_theta": 1e4}), "got 'longrope'"),
        (ntk_base, (1e4, 2.0, 2), "even width >= 4.*got width=2"),
        (RotaryAttention, (1e4, 0.0), "stretch must be above 0; got 0.0"),
        (RotaryAttention, (0.0,), "base must be above 0; got 0.0"),
        (ntk_base, (1e4, -1.0, 8), "stretch must be above 0; got -1.0"),
        (ntk_base, (1e4, 0, 8), "stretch must be above 0; got 0"),
        (ntk_base, (-1e4, 2.0, 8), "base must be above 0; got -10000.0"),
        (rotate, (X, PLACES / 0), "positions must be finite; some are infinite or NaN"),
        (ShawAttention, (4, -1), "clip must be a whole number of at least 0; got -1"),
        (ShawAttention, (0,), "head_width must be a whole number of at least 1; got 0"),
        (BucketAttention, (2, 7), "num_buckets must be a multiple of 4.*got 7"),
        (BucketAttention, (0,), "num_heads must be a whole number of at least 1; got 0"),
        (BucketAttention, (2, 8, 2), "max_distance must be above 2.*got 2"),
        (BucketAttention(2), make_attention(), "so h = 3; but the layer has h = 2"),
        (
            transformer_xl_attention,
            (*make_attention(), randn(H, 9, D), randn(H, D), randn(H, D)),
            r"offset_key .* q\+k-1 = 9; but query and key has q\+k-1 = 8",
        ),
        (
            transformer_xl_attention,
            (*make_attention(), randn(H, Q + K - 1, D), randn(2, D), randn(H, D)),
            "content_bias .* h = 2; but query has h = 3",
        ),
        (shift_relative, (randn(3),), r"scores must have axes \(… q r\); got shape \(3\)"),
        (shift_relative, (randn(4, 3),), "at least q = 4.*r = 3"),
        (exchange, (None, "rotary"), "schemes are sinusoidal.*got scheme='rotary'"),
        (exchange, (None, "rope", ["encoders"]), "parts encoder, decoder, cross.*encoders"),
        (exchange, (None, "learned", ["cross"]), "'learned' is added to words"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_callers_words(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(*arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (ntk_base, (1e4, "2", 8), "stretch must be a number; got str"),
        (RotaryAttention, (None,), "base must be a number; got NoneType"),
        (rotate, (X, [0, 1, 2, 3]), "positions must be a torch.Tensor; got list"),
        (rotate, (X, PLACES > 1), "positions must hold real numbers; got torch.bool"),
    ],
)
def test_other_types_are_refused_by_name(function, arguments, words):
    with pytest.raises(TypeError, match=words):
        function(*arguments)


def test_t5s_numbers_begin_as_narrow_as_in_t5():
    """d_model^(−½); begun at an Embedding's 1, chance is what a short training shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weight = make_attend("t5", 4, 16).bias.weight
    assert weight.std().item() == pytest.approx(64**-0.5, rel=0.2)


# --- What test_contract.py holds every mechanism to ---


OUTPUT_AND_WEIGHTS = [(B, H, Q, V), (B, H, Q, K)]
CALLS = [
    Call(places, lambda: [Q, K], [(Q,), (K,)]),
    Call(offsets, lambda: [Q, K], (Q, K)),
    Call(rotary_frequencies, lambda: [D], (D // 2,)),
    Call(rotate, lambda: [randn(B, Q, D), torch.arange(Q)], (B, Q, D), graph="eager"),
    Call(halves_from_pairs, lambda: [D], (D,)),
    Call(ntk_base, lambda: [1e4, 2.0, 8], equals=float),
    Call(
        scaled_frequencies,
        lambda: [D, {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}],
        equals=tuple,
    ),
    Call(
        relative_scores,
        lambda: [*make_attention()[:2], randn(5, D, seed=8)],
        (B, H, Q, K),
        graph="eager",
    ),
    Call(relative_buckets, lambda: [offsets(Q, K), 8, 20, True], (Q, K), graph="eager"),
    Call(shift_relative, lambda: [randn(B, Q, Q + K - 1)], (B, Q, K), graph="eager"),
    Call(
        transformer_xl_attention,
        lambda: [*xl_inputs(Q, K)],
        OUTPUT_AND_WEIGHTS,
        graph="eager",
    ),
    Call(alibi_slopes, lambda: [H], (H,)),
    Call(alibi_bias, lambda: [H, Q, K], (H, Q, K), graph="eager"),
    Call(attend_by, lambda: [randn(B, H, Q, K), make_attention()[2]], OUTPUT_AND_WEIGHTS),
    *(
        Call(
            type(make_attend(name, H, D)).forward,
            lambda name=name: [filled(make_attend(name, H, D)), *make_attention()],
            OUTPUT_AND_WEIGHTS,
            name,
            graph="eager",
        )
        for name in RELATIVE
    ),
    Call(Sinusoids.forward, lambda: [Sinusoids(), randn(B, Q, D)], (B, Q, D)),
]

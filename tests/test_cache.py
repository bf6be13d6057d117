"""Chapter 10's reference code against torch and DeepSeek-V3, its own properties and bad input."""

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
    assert_refused,
    filled,
    gradients,
    make_mask,
    randn,
    steadily,
)

from attncourse.cache import (
    SCHEMES,
    CachedGPT,
    CachedLayer,
    GroupedAttention,
    LatentAttention,
    bytes_per_token,
    cached_attention,
    extend,
    grouped_query_attention,
    left_padded,
    pooled_heads,
    read_paged,
    rolling_attention,
    write,
    write_paged,
)
from attncourse.checks import run
from attncourse.lab.lab5_decode_bandwidth import append_to_cache, cache_bytes, decode_step
from attncourse.lab.meters import count
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.positions import RotaryAttention
from attncourse.scaled_dot_product import scaled_dot_product_attention

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, H, C, N, D, V = 2, 6, 3, 7, 4, 5
M = H * D
CHUNKS = ([N], [1] * N, [3, 1, 2, 1], [1, 5, 1], [4, 3])


def make_qkv(*batch, q=N, k=N, d=D, v=V, seed=0):
    shapes = (*batch, q, d), (*batch, k, d), (*batch, k, v)
    return [
        randn(*shape, seed=40 + 3 * seed + i).requires_grad_() for i, shape in enumerate(shapes)
    ]


def in_chunks(step, chunks, *tensors, axis=-2):
    """Outputs of `step(*pieces, cache) -> (output, cache)` put together, and the last cache."""
    cache, outputs = None, []
    for pieces in zip(*(tensor.split(chunks, axis) for tensor in tensors), strict=True):
        output, cache = step(*pieces, cache)
        outputs.append(output)
    return torch.cat(outputs, dim=1 if axis == 1 else -2), cache


# --- A cache gives what the whole text gives ---


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_any_chunking_agrees_with_torchs_causal_attention(chunks):
    qkv = make_qkv(B, H)
    actual, cache = in_chunks(cached_attention, chunks, *qkv)
    expected = F.scaled_dot_product_attention(*qkv, is_causal=True)
    assert_all_agree([expected], [actual], qkv)
    for kept, whole in zip(cache, qkv[1:], strict=True):
        assert torch.equal(kept, whole)


@steadily
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 9))
def test_chunks_of_any_sizes_and_equal_axes(chunks, d, seed):
    qkv = make_qkv(d, q=sum(chunks), k=sum(chunks), d=d, v=d, seed=seed)
    actual, _ = in_chunks(cached_attention, chunks, *qkv)
    assert_equal_to(F.scaled_dot_product_attention(*qkv, is_causal=True), actual)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_padding_on_the_left_is_never_seen(chunks):
    query, key, value = make_qkv(B, H)
    expected, _ = in_chunks(cached_attention, [N], query, key, value)
    pads = 3
    padded = [F.pad(x, (0, 0, pads, 0), value=1e3) for x in (query, key, value)]
    real = torch.arange(pads + N) >= pads

    def step(query, key, value, cache):
        seen = query.shape[-2] + (0 if cache is None else cache[0].shape[-2])
        return cached_attention(query, key, value, cache, real[:seen])

    actual, _ = in_chunks(step, [chunks[0] + pads, *chunks[1:]], *padded)
    assert_equal_to(expected, actual[..., pads:, :])
    assert (actual[..., :pads, :] == 0).all(), "padding sees nothing"


def test_the_cache_that_was_handed_in_stays_as_it_was():
    query, key, value = make_qkv(B, H)
    cache = extend(None, key, value)
    before = [kept.clone() for kept in cache]
    one, _ = cached_attention(query[..., :1, :], key[..., :1, :], value[..., :1, :], cache)
    two, _ = cached_attention(query[..., :1, :], key[..., :1, :], value[..., :1, :], cache)
    assert torch.equal(one, two) and all(map(torch.equal, before, cache))


def test_the_labs_cache_in_place_holds_the_same():
    _, key, value = make_qkv(B, C)
    room = key.new_zeros(B, C, 2 * N, D), value.new_zeros(B, C, 2 * N, V)
    cache = None
    for i in range(N):
        new = key[:, :, i : i + 1].detach(), value[:, :, i : i + 1].detach()
        cache, views = extend(cache, *new), append_to_cache(*room, i, *new)
        assert all(map(torch.equal, cache, views))


# --- Shared heads ---


@pytest.mark.parametrize("c", [1, 2, 3, 6])
@pytest.mark.parametrize("q", [1, 5])
def test_shared_heads_agree_with_torchs_enable_gqa(c, q):
    (query, *_), (_, key, value) = make_qkv(B, H, q=q), make_qkv(B, c)
    mask = make_mask(B, 1, q, N)
    actual, _ = grouped_query_attention(query, key, value, mask)
    expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    assert_all_agree([expected], [actual], [query, key, value])


@pytest.mark.slow
def test_shared_heads_agree_with_hugging_faces_repeat_kv():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    (query, *_), (_, key, value) = make_qkv(B, H), make_qkv(B, C)
    written_out = [llama.repeat_kv(x, H // C) for x in (key, value)]
    expected = scaled_dot_product_attention(query, *written_out, causal_mask(N))
    actual = grouped_query_attention(query, key, value, causal_mask(N))
    assert_all_agree(expected, actual, [query, key, value])
    tiled = [x.repeat(1, H // C, 1, 1) for x in (key, value)]  # the other order of heads
    assert (scaled_dot_product_attention(query, *tiled)[0] - expected[0]).abs().max() > 0.1


MASKS = {
    "(q k)": (N, N),
    "(b 1 1 k)": (B, 1, 1, N),
    "(b h q k)": (B, H, N, N),
    "(h 1 k)": (H, 1, N),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_a_mask_may_differ_between_the_heads_of_a_group(shape):
    (query, *_), (_, key, value) = make_qkv(B, H), make_qkv(B, C)
    written_out = [x.repeat_interleave(H // C, 1) for x in (key, value)]
    mask = make_mask(*shape)
    if shape == (B, H, N, N):
        mask[0, 1, 2] = False  # nothing to attend to, for one head of its group
    expected = scaled_dot_product_attention(query, *written_out, mask)
    assert_all_agree(
        expected, grouped_query_attention(query, key, value, mask), [query, key, value]
    )


def test_as_many_heads_on_both_sides_are_chapter_5s():
    qkv = make_qkv(B, H)
    expected = scaled_dot_product_attention(*qkv, causal_mask(N))
    assert_all_agree(expected, grouped_query_attention(*qkv, causal_mask(N)), qkv)


@pytest.mark.parametrize("c", [1, 2, 8])
def test_no_key_is_copied(c):
    query = torch.randn(2, 8, 1, 64)
    keys, values = torch.randn(2, 2, c, 168, 64)[:, :, :, :128]  # views of a longer cache
    counts = count(grouped_query_attention, query, keys, values)
    assert counts.biggest_bytes < keys.numel() * 4 / 4

    assert_equal_to(
        decode_step(query[:, :, 0], keys, values),
        grouped_query_attention(query, keys, values)[0][:, :, 0],
        atol=1e-5,
    )


def test_a_layer_with_all_heads_cached_is_chapter_5s_with_chapter_8s_positions():
    layer, theirs = filled(GroupedAttention(M, H, H)), MultiHeadAttention(M, H).double()
    theirs.attend = RotaryAttention()
    x = randn(B, N, M).requires_grad_()
    weights = dict(layer.named_parameters())
    expected, _ = torch.func.functional_call(theirs, weights, (x, x, x, causal_mask(N)))
    assert_all_agree([expected], [layer(x)], [x, *layer.parameters()])


# --- Layers and models, step by step ---

LAYERS = {
    "MHA": lambda: GroupedAttention(M, H, H),
    "GQA": lambda: GroupedAttention(M, H, C),
    "MQA": lambda: GroupedAttention(M, H, 1),
    "MLA": lambda: LatentAttention(M, H, D, 5, 2),
}
SIZES = {  # beside (scheme, layers, H, D, bytes)
    "MHA": {},
    "GQA": {"kv_heads": C},
    "MQA": {},
    "MLA": {"latent_width": 5, "rope_width": 2},
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_a_layer_step_by_step_gives_the_whole_text(make, chunks):
    layer, x = filled(make()), randn(B, N, M).requires_grad_()
    actual, _ = in_chunks(layer.step, chunks, x)
    assert_all_agree([layer(x)], [actual], [x, *layer.parameters()])


def make_decoder(scheme, layers=2, words=13, seed=0):
    model = filled(CachedGPT(words, [LAYERS[scheme]() for _ in range(layers)], M, 9), seed)
    model.embedding.weight.data /= 8  # else a random model says its favorite word
    model.output.bias.data.zero_()
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_a_decoder_scores_words_step_by_step_as_in_one_piece(scheme, chunks):
    model, words = make_decoder(scheme), torch.arange(B * N).reshape(B, N) % 13
    actual, _ = in_chunks(model.step, chunks, words, axis=1)
    assert_equal_to(model(words), actual)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_decoder_writes_the_same_with_and_without_a_cache_and_with_padding(scheme):
    model = make_decoder(scheme)
    prompts = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0], [10, 11, 12, 0, 0]])
    padded = left_padded(prompts, 0)
    written = write(model, padded, bos=1, eos=2, max_length=8, pad=0)
    for row, prompt in enumerate(prompts):
        text = prompt[prompt != 0][None]
        alone = write(model, text, bos=1, eos=2, max_length=8)
        text = torch.cat([text, torch.tensor([[1]])], 1)
        for _ in range(8):  # without a cache, from the beginning for every word
            text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], 1)
        free = text[0, (prompt != 0).sum() + 1 :].tolist()
        free = free[: free.index(2) + 1] if 2 in free else free
        for ids in (alone[0], written[row]):
            assert ids.tolist()[: len(free)] == free
            assert set(ids.tolist()[len(free) :]) <= {2}
    assert len(set(written.flatten().tolist())) > 1, "a model that says one word proves nothing"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_bytes_of_a_token_are_those_that_the_cache_takes(scheme):
    model, words = make_decoder(scheme).float(), torch.arange(B * N).reshape(B, N) % 13
    with torch.no_grad():
        _, caches = model.step(words)
    taken = sum(kept.nbytes for cache in caches for kept in cache)
    a_token = bytes_per_token(scheme, 2, H, D, 4, **SIZES[scheme])
    assert taken == B * N * a_token
    # The labs' meter sees a step read the weights and so many bytes a kept token.
    with torch.no_grad():
        _, fewer = model.step(words[:, : N - 3])
        read = [count(model.step, words[:, :1], kept).input_bytes for kept in (caches, fewer)]
    assert read[0] - read[1] == B * 3 * a_token


def test_bytes_of_known_models():
    assert bytes_per_token("GQA", 32, 32, 128, 2, kv_heads=8) == 131_072  # Llama 3 8B
    assert bytes_per_token("MLA", 1, 128, 128, 1, latent_width=512, rope_width=64) == 576
    assert bytes_per_token("MHA", 1, 128, 128, 1) == 32_768
    for c, scheme in ((H, "MHA"), (C, "GQA"), (1, "MQA")):
        size = bytes_per_token(scheme, 5, H, D, 2, kv_heads=c)
        assert size == cache_bytes(b=1, layers=5, kv_heads=c, n=1, d=D, bytes_per_number=2)


# --- Latent attention ---


@pytest.mark.slow
def test_latent_attention_agrees_with_deepseek_v3():
    theirs_of = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    layer, x = filled(LatentAttention(M, H, D, 5, 2)), randn(B, N, M)
    config = theirs_of.DeepseekV3Config(
        hidden_size=M,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=None,
        kv_lora_rank=5,
        qk_nope_head_dim=D,
        qk_rope_head_dim=2,
        v_head_dim=D,
        rope_interleave=True,
        attn_implementation="eager",
    )
    theirs = theirs_of.DeepseekV3Attention(config, 0).double().eval()
    q = torch.cat(
        [layer.q_proj.weight.unflatten(0, (H, D)), layer.q_rope.weight.unflatten(0, (H, 2))], 1
    )
    up = torch.cat(
        [layer.k_up.weight.unflatten(0, (H, D)), layer.v_up.weight.unflatten(0, (H, D))], 1
    )
    parameters = {
        "q_proj.weight": q.flatten(0, 1),
        "kv_a_proj_with_mqa.weight": torch.cat([layer.down.weight, layer.k_rope.weight]),
        "kv_a_layernorm.weight": layer.norm.weight,
        "kv_b_proj.weight": up.flatten(0, 1),
        "o_proj.weight": layer.out_proj.weight,
    }
    rope = theirs_of.DeepseekV3RotaryEmbedding(config)
    angles = rope(x, torch.arange(N)[None])
    hidden = torch.zeros(1, 1, N, N).double().masked_fill(~causal_mask(N), -torch.inf)
    expected = torch.func.functional_call(theirs, parameters, (x, angles, hidden))[0]
    # They normalize and share out in float32.
    assert_equal_to(expected, layer(x), atol=1e-6)
    assert_equal_to(expected, layer.step(x)[0], atol=1e-6)


@pytest.mark.slow
@steadily
@given(*(st.integers(1, 4) for _ in range(5)), st.integers(0, 9))
def test_absorbed_is_written_out_for_any_sizes(h, d, latent, half, n, seed):
    layer = filled(LatentAttention(max(5, latent), h, d, latent, 2 * half), seed)
    x = randn(2, n, max(5, latent), seed=seed).requires_grad_()
    assert_all_agree([layer(x)], [layer.step(x)[0]], [x, *layer.parameters()])


@pytest.mark.slow
def test_a_step_that_is_not_written_yet_is_said_to_return_none():
    """A student writes `forward` first; the report must not say that nothing is answered."""

    class Half(LatentAttention):
        step = lambda self, x, cache=None: None  # noqa: E731

        def forward(self, x):
            return LatentAttention.step(self, x)[0]

    report = run("LatentAttention", Half)
    assert report.earned == 5 and "`step` that returned None" in str(report)
    assert report.diagnosis.id != "NOT-ANSWERED"


def test_a_step_of_latent_attention_makes_no_keys_of_the_past():
    layer = LatentAttention(64, 8, 16, 12, 4)
    with torch.no_grad():
        _, cache = layer.step(torch.randn(1, 400, 64))
        counts = count(layer.step, torch.randn(1, 1, 64), cache)
    assert counts.biggest_bytes < 400 * 8 * 16 * 4 / 4  # an eighth of the heads' keys, and less


# --- Fewer heads from more ---


def test_pooling_equal_heads_changes_nothing_and_pooling_to_all_is_the_same_layer():
    layer, x = filled(GroupedAttention(M, H, H)), randn(B, N, M)
    assert_equal_to(layer(x), pooled_heads(layer, H)(x))
    for name in ("k_proj", "v_proj"):
        for part in (getattr(layer, name).weight.data, getattr(layer, name).bias.data):
            heads = part.unflatten(0, (C, H // C, D))
            heads[:] = heads[:, :1].clone()
    assert_equal_to(layer(x), pooled_heads(layer, C)(x))


def test_pooling_takes_means_of_heads_in_a_row():
    layer = filled(GroupedAttention(M, H, H))
    pooled = pooled_heads(layer, C)
    expected = (layer.k_proj.weight[:D] + layer.k_proj.weight[D : 2 * D]) / 2
    assert_equal_to(expected, pooled.k_proj.weight[:D])
    assert pooled.q_proj.weight.dtype == torch.float64


# --- A ring, and pages ---


@pytest.mark.slow
@steadily
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 5))
def test_a_ring_gives_what_a_window_gives_for_any_chunks(chunks, width):
    n = sum(chunks)
    qkv = make_qkv(B, q=n, k=n)
    actual, (keys, _, seen) = in_chunks(lambda *each: rolling_attention(*each, width), chunks, *qkv)
    ago = torch.arange(n)[:, None] - torch.arange(n)
    expected, _ = scaled_dot_product_attention(*qkv, (ago >= 0) & (ago < width))
    assert_all_agree([expected], [actual], qkv)
    assert keys.shape[-2] == width and seen == n
    for position in range(max(0, n - width), n):
        assert torch.equal(keys[..., position % width, :], qkv[1][..., position, :])


def test_pages_hold_texts_of_different_lengths_in_any_order():
    pages, table = torch.zeros(7, 2, D), torch.tensor([[5, 0, 3], [1, 6, 2]])
    texts = torch.randn(2, 6, D)
    for i, j in zip([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 3], strict=True):
        before = pages.clone()
        pages = write_paged(pages, table, torch.tensor([i, j]), texts[[0, 1], [i, j]])
        assert (before != pages).any(-1).sum() <= 2
    read = read_paged(pages, table)
    assert torch.equal(read[0], texts[0]) and torch.equal(read[1, :4], texts[1, :4])
    assert (pages[4] == 0).all() and (read[1, 4:] == 0).all()


@given(st.integers(1, 6), st.data())
@steadily
def test_padding_moves_to_the_left_and_words_keep_their_order(n, data):
    rows = data.draw(st.lists(st.lists(st.integers(1, 9), max_size=n), min_size=1, max_size=4))
    tokens = torch.tensor([row + [0] * (n - len(row)) for row in rows])
    for row, moved in zip(rows, left_padded(tokens, 0).tolist(), strict=True):
        assert moved == [0] * (n - len(row)) + row


# --- Precise, compiled, pure, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_layer_keeps_dtype_and_device_and_comes_close_to_float64(make, dtype, device):
    layer, x = filled(make()).to(device, dtype), randn(B, N, M).to(device, dtype)
    results = [layer(x), in_chunks(layer.step, [3, 4], x)[0]]
    # The oracle sees the already rounded numbers: only the arithmetic is on trial.
    expected = layer.cpu().double()(x.cpu().double())
    for got in results:
        assert got.dtype == dtype and got.device.type == device
        assert_equal_to(expected, got.cpu().double(), atol=40 * torch.finfo(dtype).eps)


PLACES = torch.tensor([[5, 0, 3], [1, 6, 2]]), torch.tensor([4, 1])  # a table, new positions
QKV = [x.detach() for x in make_qkv(B, H)]
RING = [x[:, :, :3] for x in QKV[1:]]
FUNCTIONS = {  # of tensors of floating-point numbers, and those
    "extend": (lambda k, v, *new: torch.cat(extend((k, v), *new), -1), [*QKV[1:], *QKV[1:]]),
    "cached": (lambda q, k, v: cached_attention(q, k, v, (k, v))[0], QKV),
    "shared heads": (
        lambda *qkv: grouped_query_attention(*qkv)[0],
        [QKV[0], *(x[:, :C] for x in QKV[1:])],
    ),
    "ring": (lambda q, k, v, *ring: rolling_attention(q, k, v, (*ring, 8), 3)[0], [*QKV, *RING]),
    "ring, empty": (lambda *qkv: rolling_attention(*qkv, None, 3)[0], QKV),
    "write a page": (
        lambda pages, new: write_paged(pages, *(x.to(new.device) for x in PLACES), new),
        [randn(7, 2, D), randn(B, D, seed=1)],
    ),
    "read pages": (
        lambda pages: read_paged(pages, PLACES[0].to(pages.device)),
        [randn(7, 2, D)],
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("function", "tensors"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_keeps_dtype_and_device_and_comes_close_to_float64(
    function, tensors, dtype, device
):
    tensors = [x.to(device, dtype) for x in tensors]
    got = function(*tensors)
    assert got.dtype == dtype and got.device.type == device
    expected = function(*(x.cpu().double() for x in tensors))
    assert_equal_to(expected, got.cpu().double(), atol=40 * torch.finfo(dtype).eps)


def test_gradients_reach_what_was_cached_long_ago():
    qkv = make_qkv(B, H)
    actual, _ = in_chunks(cached_attention, [3, 1, 2, 1], *qkv)
    by_key, by_value = gradients([actual[..., -1:, :]], qkv[1:])
    assert (by_key != 0).all() and (by_value != 0).all()


# --- Bad input ---

BATCH_3 = randn(3, H, 1, D), randn(3, H, 1, V)
BAD_CACHES = {
    "key (3 6 1 4) belongs to another batch, or to other heads, than the (2 6 7 4)": BATCH_3,
    "key (2 3 1 4) belongs to another batch, or to other heads": (
        randn(B, C, 1, D),
        randn(B, C, 1, V),
    ),
    "key (2 6 1 5) does not fit behind the (2 6 7 4) that the cache holds": (
        randn(B, H, 1, V),
        randn(B, H, 1, V),
    ),
    "value (2 6 1 4) does not fit behind the (2 6 7 5)": (randn(B, H, 1, D), randn(B, H, 1, D)),
    "every new key needs its value: got key (2 6 1 4) and value (2 6 2 5)": (
        randn(B, H, 1, D),
        randn(B, H, 2, V),
    ),
    "key must have axes (… q k); got shape (4)": (randn(D), randn(1, V)),
}


@pytest.mark.parametrize(("words", "new"), BAD_CACHES.items(), ids=BAD_CACHES)
def test_a_cache_of_another_text_is_refused(words, new):
    cache = extend(None, *make_qkv(B, H)[1:])
    assert_refused(ValueError, words, extend, cache=cache, key=new[0], value=new[1])


def test_what_is_no_cache_is_refused():
    _, key, value = make_qkv(B, H)
    words = "cache must be None or a pair ... got Tensor"
    assert_refused(TypeError, words, extend, cache=key, key=key, value=value)
    words = "key is torch.float32 but the cache holds torch.float64"
    assert_refused(TypeError, words, extend, cache=(key, value), key=key.float(), value=value)


def test_a_cache_with_more_keys_than_values_is_refused():
    _, key, value = make_qkv(B, H)
    words = (
        "the cache must hold as many keys (… n d) as values (… n v); got (2 6 6 4) and (2 6 7 5)"
    )
    assert_refused(ValueError, words, extend, cache=(key[:, :, 1:], value), key=key, value=value)
    for make in LAYERS.values():
        words = "cache must be None or a pair"
        assert_refused(TypeError, words, make().double().step, x=randn(B, 1, M), cache="kept")


def test_queries_and_masks_that_do_not_fit_the_step_are_refused():
    query, key, value = make_qkv(B, H)
    new = {"key": key, "value": value, "cache": (key, value)}
    words = "a new position has one query and one key; got query (2 6 2 4) with q = 2 and key"
    assert_refused(ValueError, words, cached_attention, query=query[:, :, :2], **new)
    words = "mask must broadcast to (… q n+q) = (2 6 7 14); got shape (7 7)"
    mask = torch.ones(7, 7, dtype=torch.bool)
    assert_refused(ValueError, words, cached_attention, query=query, mask=mask, **new)
    words = "mask must be boolean, True = may attend; got torch.float32"
    assert_refused(TypeError, words, cached_attention, query=query, mask=mask.float(), **new)


def a_decoder():
    return CachedGPT(9, [GroupedAttention(8, 2, 1)], 8, 8)


BAD_TEXTS = {
    "words holds ids from 3 to 9; known are 0 to 8": lambda: a_decoder().step(
        torch.tensor([[3, 9]])
    ),
    "needs 1 caches, one a layer; got 2": lambda: a_decoder().step(
        torch.tensor([[3]]), [None, None]
    ),
    "real must be boolean, (b n+q) = (1 2); got (1 3)": lambda: a_decoder().step(
        torch.tensor([[3, 4]]), None, torch.ones(1, 3, dtype=torch.bool)
    ),
    "prompt (2 0) is empty": lambda: write(a_decoder(), torch.zeros(2, 0).long(), 1, 2, 3),
    "prompt (1 2) holds nothing but padding (id 0)": lambda: write(
        a_decoder(), torch.zeros(1, 2).long(), 1, 2, 3, 0
    ),
    "prompt must end with a word in every row": lambda: write(
        a_decoder(), torch.tensor([[3, 4], [5, 0]]), 1, 2, 3, 0
    ),
    "num_heads=4 in model_width=12 are 3 wide each": lambda: GroupedAttention(12, 4, 2),
    "bos must be the id of a word, 0 to 8; got -1": lambda: write(
        a_decoder(), torch.tensor([[3, 4]]), -1, 2, 3
    ),
    "eos must be the id of a word, 0 to 8; got 99": lambda: write(
        a_decoder(), torch.tensor([[3, 4]]), 1, 99, 3
    ),
    "attentions must hold one a layer, so at least one; got none": lambda: CachedGPT(9, [], 8, 8),
    "attention reads vectors of width 8; expected model_width=10": lambda: CachedGPT(
        9, [GroupedAttention(8, 2, 1)], 10, 8
    ),
    "attention reads vectors of width 24; expected model_width=10": lambda: CachedGPT(
        9, [LatentAttention(24, H, D, 5, 2)], 10, 8
    ),
    "the ring has 3 places, but width = 4": lambda: rolling_attention(
        *randn(3, 2, 1, D), (randn(2, 3, D), randn(2, 3, D), 3), 4
    ),
    "positions must lie in 0 to 3, the pages of a text; got [1, 9]": lambda: write_paged(
        randn(3, 2, D), torch.zeros(2, 2).long(), torch.tensor([1, 9]), randn(2, D)
    ),
    "table holds ids from 7 to 7; known are 0 to 2": lambda: read_paged(
        randn(3, 2, D), torch.full((2, 2), 7)
    ),
}


@pytest.mark.parametrize(("words", "call"), BAD_TEXTS.items(), ids=BAD_TEXTS)
def test_what_no_text_can_be_is_refused(words, call):
    assert_refused(ValueError, words, call)


BAD_SIZES = {
    "scheme must be one of MHA, GQA, MQA, MLA; got 'mha'": {"scheme": "mha"},
    "GQA needs kv_heads": {"scheme": "GQA"},
    "6 heads cannot share kv_heads=4 equally": {"scheme": "GQA", "kv_heads": 4},
    "MLA needs rope_width": {"scheme": "MLA", "latent_width": 5},
    "rope_width=3 must be even: numbers are rotated in pairs": {
        "scheme": "MLA",
        "latent_width": 5,
        "rope_width": 3,
    },
    "num_layers must be a whole number of at least 1; got 0": {"num_layers": 0},
    "bytes_per_number must be a whole number of at least 1; got 2.0": {"bytes_per_number": 2.0},
}


@pytest.mark.parametrize(("words", "changes"), BAD_SIZES.items(), ids=BAD_SIZES)
def test_sizes_that_do_not_fit_are_refused_by_name(words, changes):
    sizes = {"scheme": "MHA", "num_layers": 2, "num_heads": H, "head_width": D}
    assert_refused(
        ValueError, words, bytes_per_token, **(sizes | {"bytes_per_number": 2} | changes)
    )


BAD_LAYERS = {
    "kv_heads=4 must divide num_heads=6": (GroupedAttention, (M, H, 4)),
    "that must divide model_width=25": (GroupedAttention, (25, H, C)),
    "latent_width=30 is wider than model_width=24: nothing is saved": (
        LatentAttention,
        (M, H, D, 30, 2),
    ),
    "rope_width=3 must be even": (LatentAttention, (M, H, D, 5, 3)),
    "latent_width must be a whole number of at least 1; got 0": (LatentAttention, (M, H, D, 0, 2)),
}


@pytest.mark.parametrize(("words", "made"), BAD_LAYERS.items(), ids=BAD_LAYERS)
def test_layers_that_cannot_be_are_refused(words, made):
    cls, sizes = made
    with pytest.raises(ValueError) as raised:
        cls(*sizes)
    assert words in str(raised.value)


def test_heads_that_do_not_divide_are_refused():
    (query, *_), (_, key, value) = make_qkv(B, H), make_qkv(B, 4)
    words = "c = 4 heads of keys cannot serve h = 6 heads ... (2 6 7 4) ... (2 4 7 4)"
    assert_refused(ValueError, words, grouped_query_attention, query=query, key=key, value=value)
    layer = GroupedAttention(M, H, C).double()
    for kv_heads in (2, 0):
        with pytest.raises(ValueError, match="3 cached heads cannot become"):
            pooled_heads(layer, kv_heads)
    words = "x (2 7 4) has axes (b q m), so m = 4; but the layer has m = 24"
    for make in LAYERS.values():
        assert_refused(ValueError, words, make().double().step, x=randn(B, N, D))


# --- What test_contract.py holds every mechanism to ---


WHOLE = (B, H, N, V)
IDS = torch.arange(B * N).reshape(B, N) % 13  # the first word is padding
CALLS = [
    Call(extend, lambda: [None, *QKV[1:]], [(B, H, N, D), (B, H, N, V)], "a new text"),
    Call(
        extend,
        lambda: [tuple(QKV[1:]), *QKV[1:]],
        [(B, H, 2 * N, D), (B, H, 2 * N, V)],
        graph="eager",
    ),
    Call(
        cached_attention,
        lambda: [*QKV, tuple(QKV[1:])],
        [WHOLE, (B, H, 2 * N, D), (B, H, 2 * N, V)],
        graph="eager",
    ),
    Call(
        grouped_query_attention,
        lambda: [QKV[0], *(x[:, :C] for x in QKV[1:]), causal_mask(N)],
        [WHOLE, (B, H, N, N)],
        graph="eager",
    ),
    Call(rolling_attention, lambda: [*QKV, None, 3], None, "empty", graph="eager"),
    Call(rolling_attention, lambda: [*QKV, (*RING, 8), 3], None, graph="eager"),
    Call(bytes_per_token, lambda: ["MQA", 1, H, D, 2], equals=4 * D),
    *(
        call
        for name in LAYERS
        for kind in [type(LAYERS[name]())]
        for graph in ["eager" if name in ("GQA", "MLA") else None]
        for call in (
            Call(
                kind.forward,
                lambda name=name: [filled(LAYERS[name]()), randn(B, N, M), make_mask(B, 1, N)],
                (B, N, M),
                name,
                graph=graph,
            ),
            Call(
                kind.step,
                lambda name=name: [filled(LAYERS[name]()), randn(B, N, M), None, None],
                None,
                f"{name}, a new text",
                graph=graph,
            ),
            Call(
                kind.step,
                lambda name=name: [
                    filled(LAYERS[name]()),
                    randn(B, 2, M, seed=5),
                    filled(LAYERS[name]()).step(randn(B, N, M))[1],
                    make_mask(B, 1, N + 2),
                ],
                None,
                f"{name}, behind a cache",
                graph=graph,
            ),
        )
    ),
    Call(
        CachedLayer.forward,
        lambda: [make_decoder("MQA").layers[0], randn(B, N, M)],
        (B, N, M),
    ),
    Call(CachedLayer.step, lambda: [make_decoder("MQA").layers[0], randn(B, N, M)], None),
    Call(CachedGPT.forward, lambda: [make_decoder("MQA"), IDS], (B, N, 13)),
    Call(
        CachedGPT.step,
        lambda: [make_decoder("MLA", layers=1), IDS, None, IDS > 0],
        None,
        "padded",
        graph="eager",
    ),
    Call(
        CachedGPT.step,
        lambda: [
            make_decoder("MLA", layers=1),
            IDS[:, :2],
            make_decoder("MLA", layers=1).step(IDS, None, IDS > 0)[1],
            torch.cat([IDS > 0, IDS[:, 1:3] > 0], 1),
        ],
        None,
        "padded, behind a cache",
        graph="eager",
    ),
    Call(write, lambda: [make_decoder("MQA"), torch.ones(B, N).long(), 1, 2, 3, 0], None),
    Call(left_padded, lambda: [IDS, 0], (B, N)),
    Call(
        pooled_heads,
        lambda: [filled(GroupedAttention(M, H, H)), C],
        equals=GroupedAttention,
        draws=True,
    ),
    Call(
        write_paged,
        lambda: [randn(7, 2, D), *PLACES, randn(B, D, seed=1)],
        (7, 2, D),
        graph="eager",
    ),
    Call(read_paged, lambda: [randn(7, 2, D), PLACES[0]], (B, 6, D), graph="eager"),
]

"""Chapter 11's reference code against torch and Hugging Face, its own properties and bad input."""

import itertools
import math
import sys
import warnings

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
    randn,
    steadily,
)
from torch import multiprocessing
from torch.nn.attention.flex_attention import create_mask, flex_attention

from attncourse.lab.meters import count
from attncourse.long_sequences import (
    SpanAttention,
    any_of,
    causally,
    chunked_linear_attention,
    delta_rule,
    dilated,
    feature_map,
    fixed,
    flow,
    global_tokens,
    hear,
    layers_needed,
    linear_attention,
    linear_step,
    linformer_attention,
    lsh_buckets,
    mask_of,
    merge,
    partial_attention,
    process_ring_attention,
    random_keys,
    reach,
    ring_attention,
    ring_bytes,
    ring_utilization,
    same_bucket,
    shared_qk_attention,
    shifted_blocks,
    span_mask,
    strided,
    window,
    window_mask,
    windowed_attention,
)
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.positions import offsets
from attncourse.scaled_dot_product import scaled_dot_product_attention

B, H, N, D, V = 2, 3, 13, 4, 5  # pairwise different


def make_qkv(*batch, n=N, d=D, v=V, seed=0):
    shapes = (*batch, n, d), (*batch, n, d), (*batch, n, v)
    return [
        randn(*shape, seed=60 + 3 * seed + i).requires_grad_() for i, shape in enumerate(shapes)
    ]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def with_mask(qkv, mask):
    return scaled_dot_product_attention(*qkv, mask)[0]


# --- Patterns ---

PATTERNS = {
    "window": window(3),
    "dilated": dilated(2, 3),
    "strided": strided(4),
    "fixed": fixed(5),
    "global": any_of(window(1), global_tokens(2)),
    "causal": causally(window(4)),
    "random": any_of(window(0), random_keys(24, 2, generator())),
    "BigBird": any_of(window(1), global_tokens(1), random_keys(24, 3, generator(1))),
    "BlockBERT": any_of(shifted_blocks(6, 4, 0), shifted_blocks(6, 4, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_is_one_line_of_flex_attention(pattern):
    mask = mask_of(pattern, 24)
    mod = lambda b, h, i, j: pattern(i, j)  # noqa: E731
    assert torch.equal(create_mask(mod, 1, 1, 24, 24, device="cpu")[0, 0], mask)
    qkv = [x.detach() for x in make_qkv(B, H, n=24, d=4, v=4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow without a compiler
        scored = lambda score, b, h, i, j: torch.where(pattern(i, j), score, -torch.inf)  # noqa: E731
        theirs = flex_attention(*qkv, score_mod=scored)
    assert_equal_to(theirs, with_mask(qkv, mask))


def test_patterns_are_what_they_say_they_are():
    def seen(pattern, i, n=12):
        return mask_of(pattern, n)[i].nonzero().flatten().tolist()

    assert seen(window(2), 5) == [3, 4, 5, 6, 7]
    assert seen(dilated(2, 3), 6) == [0, 3, 6, 9]
    assert seen(causally(strided(4)), 9) == [1, 5, 6, 7, 8, 9]
    assert seen(causally(fixed(4)), 9) == [3, 7, 8, 9]
    assert seen(global_tokens(2), 5) == [0, 1] and seen(global_tokens(2), 1) == [*range(12)]
    assert seen(shifted_blocks(3, 4, 1), 10) == [0, 1, 2]
    assert mask_of(random_keys(12, 3, generator()), 12).sum(-1).tolist() == [3] * 12


@steadily
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 5))
def test_longformers_mask_by_definition(n, width, first):
    expected = [[abs(i - j) <= width or i < first or j < first for j in range(n)] for i in range(n)]
    assert window_mask(n, width, first).tolist() == expected
    assert torch.equal(
        window_mask(n, width, first), mask_of(any_of(window(width), global_tokens(first)), n)
    )


@pytest.mark.slow
def test_a_window_agrees_with_hugging_faces_longformer():
    theirs_of = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = theirs_of.LongformerConfig(
        hidden_size=8, num_attention_heads=2, attention_window=[4], attention_probs_dropout_prob=0.0
    )
    theirs = filled(theirs_of.LongformerSelfAttention(config, 0)).eval()
    for first in (0, 2):
        # Global tokens have projections of their own; with the same weights it is one attention.
        for kind in ("query", "key", "value"):
            getattr(theirs, f"{kind}_global").load_state_dict(getattr(theirs, kind).state_dict())
        x = randn(B, 16, 8)
        is_global = (torch.arange(16) < first).expand(B, -1)
        expected = theirs(
            x,
            attention_mask=torch.where(is_global, 10000.0, 0.0).double(),
            is_index_masked=torch.zeros(B, 16, dtype=torch.bool),
            is_index_global_attn=is_global,
            is_global_attn=bool(first),
        )[0]
        ours = MultiHeadAttention(8, 2).double()
        for mine, name in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
            getattr(ours, mine).load_state_dict(getattr(theirs, name).state_dict())
        torch.nn.init.eye_(ours.out_proj.weight)
        torch.nn.init.zeros_(ours.out_proj.bias)
        # They share out in float32.
        assert_equal_to(expected, ours(x, x, x, window_mask(16, 2, first))[0], atol=1e-5)


@pytest.mark.slow
def test_bigbird_is_window_globals_and_random_blocks_as_hugging_face_has_it():
    theirs_of = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    n, size, drawn = 48, 4, 2
    config = theirs_of.BigBirdConfig(
        hidden_size=8, num_attention_heads=2, block_size=size, num_random_blocks=drawn,
        max_position_embeddings=n, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    # In evaluation it draws nothing; there is no dropout here.
    theirs = filled(theirs_of.BigBirdBlockSparseAttention(config, seed=1)).train()
    x = randn(1, n, 8)
    blocked, band, from_mask, to_mask = theirs_of.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, n, dtype=torch.float64), size
    )

    def attended(x):
        return theirs(x, band, from_mask, to_mask, blocked, blocked)[0]

    output, seen = attended(x), []
    for k in range(n):  # which keys were drawn shows where a change of one arrives
        changed = x.clone()
        changed[:, k] += 1
        seen.append((attended(changed) != output).unflatten(-1, (2, 4)).any(-1)[0])
    mask = torch.stack(seen, -1).movedim(1, 0)  # h q k
    i = torch.arange(n // size)
    blocks = mask[:, ::size, ::size]
    least = ((i[:, None] - i).abs() <= 1) | (i == 0) | (i == len(i) - 1) | (i[:, None] == 0)
    least = least | (i[:, None] == len(i) - 1)
    assert (blocks >= least).all() and torch.equal(
        blocks.repeat_interleave(size, 1), mask[..., ::4]
    )
    extra = (blocks & ~least).sum(-1)[:, 2:-2]
    assert (extra == drawn).all(), "so many blocks are random"
    heads = [
        getattr(theirs, name)(x).unflatten(-1, (2, 4)).transpose(1, 2)
        for name in ("query", "key", "value")
    ]
    assert_equal_to(output, with_mask(heads, mask).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("root", [4, 9, 16, 32])
def test_the_sparse_transformers_patterns_cost_the_order_of_n_times_its_root(root):
    def cost(pattern):
        return mask_of(causally(pattern), root**2).sum().item()

    assert cost(fixed(root)) == root**3
    nearest, beyond = root**3 - root * (root - 1) // 2, root**2 * (root - 1) // 2
    assert cost(strided(root)) == nearest + beyond < 1.5 * root**3


# --- Reach ---


@steadily
@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 99))
def test_reach_is_who_can_be_reached_by_steps(n, layers, seed):
    mask = randn(n, n, seed=seed) > 0.7
    expected = torch.eye(n, dtype=torch.bool)
    for i in range(n):
        for _ in range(layers):  # by sets, without matrices
            known = expected[i].clone()
            for j in known.nonzero().flatten():
                expected[i] |= mask[j]
    assert torch.equal(reach(mask, layers), expected)


def test_reach_is_where_gradients_of_layers_with_that_mask_are_not_zero():
    layers = [filled(MultiHeadAttention(4, 1), seed=seed) for seed in (1, 2)]
    mask = causal_mask(7) & ~causal_mask(7).tril(-3)

    def both(x):
        for layer in layers:
            x = x + layer(x, x, x, mask)[0]
        return x

    by_input = torch.autograd.functional.jacobian(both, randn(1, 7, 4))[0, :, :, 0]  # q d k d
    assert torch.equal(by_input.abs().sum((1, 3)) > 0, reach(mask, 2))
    assert not torch.equal(reach(mask, 1), reach(mask, 2))


def needed(pattern, n=64, causal=False):
    masks = itertools.repeat(mask_of(pattern, n), n)
    return layers_needed(masks, causal)


def test_how_many_layers_known_patterns_need():
    assert needed(window(9)) == 7  # 63 / 9
    assert needed(causally(window(9)), causal=True) == 7
    assert needed(causally(strided(8)), causal=True) == 2
    assert needed(dilated(3, 2)) is None  # even and odd places never meet
    assert needed(any_of(window(1), global_tokens(1))) == 2
    assert needed(causally(any_of(window(9), global_tokens(1))), causal=True) == 7
    doubled = [mask_of(dilated(1, 2**layer), 64) for layer in range(8)]
    assert layers_needed(doubled) == 6
    assert layers_needed(doubled[:5]) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_keys_reach_all_without_global_tokens_and_in_few_layers(seed):
    """Three drawn keys more in a row: the logarithm of what the window alone needs."""
    drawn = any_of(window(1), random_keys(256, 3, generator(seed)))
    assert needed(window(1), 256) == 255
    assert math.log(256, 6) < needed(drawn, 256) <= math.log2(256)


def test_flow_hands_on_everything_and_reaches_as_far_as_reach():
    mask = mask_of(causally(window(2)), 12)
    after = flow(mask, 3)
    assert_equal_to(torch.ones(12).double(), after.sum(-1))
    assert torch.equal(after > 0, reach(mask, 3))


# --- Work that is not done ---


@pytest.mark.parametrize("width", [1, 2, 3, 5, 12, 13, 40])
def test_blocks_give_what_a_mask_gives(width):
    qkv = make_qkv(B, H)
    expected = F.scaled_dot_product_attention(*qkv, window_mask(N, width))
    assert_all_agree([expected], [windowed_attention(*qkv, width)], qkv)


@steadily
@given(st.integers(1, 20), st.integers(1, 24), st.integers(1, 4), st.integers(0, 9))
def test_blocks_give_what_a_mask_gives_for_any_sizes(n, width, d, seed):
    qkv = make_qkv(d, n=n, d=d, v=d, seed=seed)
    assert_equal_to(with_mask(qkv, window_mask(n, width)), windowed_attention(*qkv, width))


@pytest.mark.slow
def test_memory_of_blocks_grows_as_the_text_and_that_of_a_masked_table_as_its_square():
    def peak(attend, n):
        qkv = torch.randn(3, 1, 4, n, 16)
        return count(lambda: attend(*qkv)).peak_bytes

    def blocks(*qkv):
        return windowed_attention(*qkv, 32)

    def dense(*qkv):
        return scaled_dot_product_attention(*qkv, window_mask(qkv[0].shape[-2], 32))

    for n in (512, 1024, 2048):
        assert 1.9 < peak(blocks, 2 * n) / peak(blocks, n) <= 2.2
    assert peak(dense, 2048) / peak(dense, 1024) > 3.8
    assert peak(dense, 2048) > 10 * peak(blocks, 2048)


# --- Linformer, Reformer ---


def test_linformer_without_squeezing_is_attention():
    qkv, one = make_qkv(B, H), torch.eye(N).double()
    expected = scaled_dot_product_attention(*qkv)
    assert_all_agree(expected, linformer_attention(*qkv, one, one), qkv)
    rows = randn(2, 3, N)
    output, weights = linformer_attention(*qkv, *rows)
    assert output.shape == (B, H, N, V) and weights.shape == (B, H, N, 3)
    squeezed = qkv[0], rows[0] @ qkv[1], rows[1] @ qkv[2]
    assert_equal_to(F.scaled_dot_product_attention(*squeezed), output)


def test_linformer_sees_the_future_whatever_its_rows():
    query, key, value = make_qkv(1)
    rows = randn(2, 3, N)
    output, _ = linformer_attention(query, key, value, *rows)
    (by_value,) = gradients([output[:, :1]], [value])
    assert (by_value != 0).all()


@pytest.fixture
def reformer():
    theirs_of = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    config = theirs_of.ReformerConfig(
        hidden_size=8, num_attention_heads=1, attention_head_size=8, hash_seed=3, num_buckets=6,
        lsh_attn_chunk_length=16, is_decoder=False, lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return filled(theirs_of.LSHSelfAttention(config)).eval()


def test_one_bucket_is_shared_query_key_attention_as_in_hugging_faces_reformer(reformer):
    x = randn(B, 16, 8)
    expected = reformer(x).hidden_states
    actual, weights = shared_qk_attention(reformer.query_key(x), reformer.value(x))
    assert_equal_to(expected, actual)
    assert (weights.diagonal(0, -2, -1) == 0).all()
    alone, _ = shared_qk_attention(randn(1, 8), randn(1, 5, seed=1))
    assert_equal_to(randn(1, 5, seed=1), alone)


def test_buckets_are_those_of_hugging_faces_reformer(reformer):
    x = randn(B, 1, 40, 8)
    with torch.random.fork_rng(devices=[]):
        expected = reformer._hash_vectors(x, 4, None)
        torch.manual_seed(3)
        rotations = torch.randn(1, 8, 4, 3, dtype=torch.float64)[0].movedim(1, 0)  # t d c
    buckets = lsh_buckets(x, rotations)
    in_a_row = buckets + 6 * torch.arange(4).reshape(4, 1, 1, 1)  # their rounds are numbered on
    assert torch.equal(in_a_row.movedim(0, 2).flatten(2), expected)


def test_vectors_of_one_direction_always_meet_and_opposite_ones_never():
    x = randn(1, 6).expand(2, 6) * torch.tensor([[1.0], [3.0]])
    rotations = randn(5, 6, 2, seed=1)
    one, opposite = lsh_buckets(x, rotations), lsh_buckets(-x, rotations)
    assert same_bucket(one, one).all()
    assert not same_bucket(one, opposite).any()


# --- Adaptive span ---


def test_span_mask_by_its_formula():
    distance = torch.arange(8)
    expected = [1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert span_mask(distance, 3.0, 4.0).tolist() == expected
    assert (span_mask(distance, 100, 4) == 1).all()
    narrow = span_mask(distance, 3, 1e-9)
    assert narrow.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    several = span_mask(distance, torch.tensor([[0.0], [7.0]]), 2)
    assert several.shape == (2, 8) and several[0].tolist() == [1, 0.5, 0, 0, 0, 0, 0, 0]


def test_the_gradient_of_a_span_comes_through_the_ramp():
    span = torch.tensor(3.5, requires_grad=True)
    span_mask(torch.arange(8), span, 4.0).sum().backward()
    assert span.grad.item() == pytest.approx(4 / 4)  # at 4, 5, 6 and 7


def test_a_long_span_is_plain_attention_and_a_short_one_a_window():
    qkv = make_qkv(B, H)
    causal = causal_mask(N)
    wide = SpanAttention(H, longest=64, start=64, ramp=4).double()
    assert_all_agree(scaled_dot_product_attention(*qkv, causal), wide(*qkv, causal), qkv)
    narrow = SpanAttention(H, longest=64, start=2, ramp=1e-6).double()
    expected = with_mask(qkv, mask_of(causally(window(2)), N))
    assert_equal_to(expected, narrow(*qkv, causal)[0])


def test_a_soft_span_weighs_as_the_paper_says():
    qkv, layer = make_qkv(B, H), SpanAttention(H, longest=32, start=2.5, ramp=3).double()
    layer.share.data += torch.tensor([0.0, 0.1, 0.2])
    distance = offsets(N, N).abs()
    counts = span_mask(distance, layer.spans()[:, None, None], 3) * causal_mask(N)
    scores = (qkv[0] @ qkv[1].mT / D**0.5).exp() * counts
    expected = scores / scores.sum(-1, keepdim=True)
    output, weights = layer(*qkv, causal_mask(N))
    inputs = [*qkv, layer.share]
    assert_all_agree([expected @ qkv[2], expected], [output, weights], inputs)


# --- Linear attention ---


def in_steps(query, key, value):
    state, outputs = None, []
    for i in range(query.shape[-2]):
        output, state = linear_step(state, query[..., i, :], key[..., i, :], value[..., i, :])
        outputs.append(output)
    return torch.stack(outputs, -2), state


def test_all_at_once_is_one_by_one_and_the_definition():
    qkv = make_qkv(B, H)
    expected = linear_attention(*qkv)
    actual, state = in_steps(*qkv)
    assert_all_agree([expected], [actual], qkv)
    assert [part.shape for part in state] == [(B, H, D, V), (B, H, D)]
    query, key = (F.elu(x) + 1 for x in qkv[:2])
    weights = (query @ key.mT).tril()
    assert_all_agree(
        [weights / weights.sum(-1, keepdim=True) @ qkv[2]], [linear_attention(*qkv)], qkv
    )


@steadily
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 9))
def test_all_at_once_is_one_by_one_for_any_sizes(n, d, seed):
    qkv = make_qkv(2, n=n, d=d, v=d, seed=seed)
    assert_equal_to(linear_attention(*qkv), in_steps(*qkv)[0])


@pytest.mark.parametrize("size", [1, 4, N, 64])
def test_chunk_by_chunk_is_all_at_once(size):
    qkv = make_qkv(B, H)
    assert_all_agree([linear_attention(*qkv)], [chunked_linear_attention(*qkv, size)], qkv)


def test_chunks_do_twice_the_work_for_twice_the_text_and_the_table_four_times():
    def moved(attend, n):
        return count(attend, *torch.empty(3, 1, 4, n, 16, device="meta")).moved_bytes

    chunks, table = (
        moved(attend, 2048) / moved(attend, 1024)
        for attend in (chunked_linear_attention, linear_attention)
    )
    assert chunks == pytest.approx(2, abs=0.01) and table > 3.8


def test_the_state_does_not_grow_and_stays_as_it_was():
    query, key, value = make_qkv(B)
    _, state = in_steps(query, key, value)
    before = [part.clone() for part in state]
    for _ in range(2):
        _, longer = linear_step(state, query[:, 0], key[:, 0], value[:, 0])
        assert all(a.shape == b.shape for a, b in zip(state, longer, strict=True))
    assert all(map(torch.equal, before, state))


def test_weights_sum_to_one_even_where_elu_plus_one_would_round_to_zero():
    assert (feature_map(torch.tensor([-30.0])) > 0).all() and F.elu(torch.tensor(-30.0)) + 1 == 0
    far = torch.full((1, 3, 2), -30.0)
    assert (linear_attention(far, far, torch.ones(1, 3, 1)) - 1).abs().max() < 1e-6


def test_the_gated_delta_rule_agrees_with_hugging_faces():
    theirs_of = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    query, key, value = make_qkv(B, H)
    key = F.normalize(key, dim=-1)
    strength, decay = randn(B, H, N, seed=7).sigmoid(), randn(B, H, N, seed=8).sigmoid()
    given = [x.transpose(1, 2) for x in (query, key, value, decay.log(), strength)]
    for rule in ("recurrent", "chunk"):
        theirs, _ = getattr(theirs_of, f"torch_{rule}_gated_delta_rule")(*given)
        actual = delta_rule(query / D**0.5, key, value, strength, decay)
        assert_equal_to(theirs.transpose(1, 2).double(), actual, atol=1e-5)  # they use float32


@pytest.mark.parametrize("decays", [False, True], ids=["delta", "gated delta"])
def test_the_delta_rule_by_its_formula_in_loops(decays):
    query, key, value = make_qkv(B, H)
    rates = [randn(B, H, N, seed=s).sigmoid().requires_grad_() for s in (7, 8)[: 1 + decays]]
    expected = []
    for b, h in itertools.product(range(B), range(H)):
        state = torch.zeros(D, V, dtype=torch.float64)
        for i in range(N):
            k, v = key[b, h, i], value[b, h, i]
            kept = (rates[1][b, h, i] if decays else 1) * state
            state = kept + rates[0][b, h, i] * torch.outer(k, v - kept.T @ k)
            expected.append(state.T @ query[b, h, i])
    expected = torch.stack(expected).reshape(B, H, N, V)
    actual = delta_rule(query, key, value, *rates)
    assert_all_agree([expected], [actual], [query, key, value, *rates])


def test_the_delta_rule_overwrites_and_a_sum_does_not():
    key = F.normalize(randn(1, 1, D), dim=-1).expand(1, 2, D)
    value, ones = randn(1, 2, V, seed=1), torch.ones(1, 2).double()
    output = delta_rule(key, key, value, ones)
    assert_equal_to(value, output)  # what was written last, and nothing of the first
    assert_equal_to(value[:, 1], delta_rule(key, key, value, ones, ones * 0.3)[:, 1])


# --- Rings ---


def shards(tensors, p):
    return [list(x.tensor_split(p, dim=-2)) for x in tensors]


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_a_ring_gives_full_attention(p):
    qkv = make_qkv(B, H)
    expected = F.scaled_dot_product_attention(*qkv)
    actual = torch.cat(ring_attention(*shards(qkv, p)), -2)
    assert_equal_to(expected, actual, atol=1e-12)
    assert_all_agree([expected], [actual], qkv)


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("striped", [False, True], ids=["contiguous", "striped"])
def test_a_causal_ring_gives_causal_attention(p, striped):
    qkv, i = make_qkv(B, H), torch.arange(N)
    places = [i[r::p] for r in range(p)] if striped else list(i.tensor_split(p))
    order = torch.cat(places)
    cut = [[x[..., place, :] for place in places] for x in qkv]
    expected = F.scaled_dot_product_attention(*qkv, is_causal=True)[..., order, :]
    actual = torch.cat(ring_attention(*cut, places), -2)
    assert_equal_to(expected, actual, atol=1e-12)
    assert_all_agree([expected], [actual], qkv)


def test_nothing_joined_with_nothing_is_nothing_and_has_a_gradient():
    query, key, value = make_qkv(B)
    hidden = torch.zeros(N, N, dtype=torch.bool)
    nothing = partial_attention(query, key, value, hidden)
    assert (nothing[0] == 0).all() and (nothing[1] == -torch.inf).all()
    output, total = merge(nothing, nothing)
    assert (output == 0).all() and (total == -torch.inf).all()
    all_of_it = merge(merge(nothing, partial_attention(query, key, value)), nothing)
    qkv = [query, key, value]
    assert_all_agree([F.scaled_dot_product_attention(*qkv)], [all_of_it[0]], qkv)


@steadily
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 9))
def test_parts_may_come_in_any_size_and_order(sizes, seed):
    query, key, value = make_qkv(2, n=sum(sizes), seed=seed)
    parts = [
        partial_attention(query, k, v)
        for k, v in zip(key.split(sizes, -2), value.split(sizes, -2), strict=True)
    ]
    output, total = parts[-1]
    for part in parts[:-1]:
        output, total = merge(part, (output, total))
    assert_equal_to(F.scaled_dot_product_attention(query, key, value), output)
    assert_equal_to((query @ key.mT / D**0.5).logsumexp(-1), total)


def test_how_busy_a_causal_ring_is():
    i = torch.arange(512)
    for p in (2, 4, 8):
        contiguous, striped = list(i.chunk(p)), [i[r::p] for r in range(p)]
        assert ring_utilization(contiguous) == pytest.approx(p / (2 * p - 1), abs=0.01)
        assert ring_utilization(striped) > 0.98


def one_process(rank, p, file, results):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=p)
    qkv, i = [x.detach() for x in make_qkv(1, 2, n=64, d=16, v=8)], torch.arange(64)
    worst = 0.0
    for places in (None, list(i.chunk(p)), [i[r::p] for r in range(p)]):
        mine = i.chunk(p)[rank] if places is None else places[rank]
        cut = [x[..., mine, :] for x in qkv]
        output, sent = process_ring_attention(*cut, None if places is None else mine)
        full = F.scaled_dot_product_attention(*qkv, is_causal=places is not None)
        worst = max(worst, (output - full[..., mine, :]).abs().max().item())
    results.put((rank, worst, sent))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, 4])
def test_a_ring_of_real_processes_gives_full_attention_and_sends_what_the_formula_says(p, tmp_path):
    how = "fork" if sys.platform == "linux" else "spawn"  # to load torch takes seconds
    results = multiprocessing.get_context(how).SimpleQueue()
    arguments = (p, tmp_path / "meet", results)
    multiprocessing.start_processes(one_process, arguments, nprocs=p, start_method=how)
    found = [results.get() for _ in range(p)]
    _, key, value = make_qkv(1, 2, n=64, d=16, v=8)
    for _, worst, sent in found:
        assert worst < 1e-12
        assert sent == ring_bytes(p, key, value)


# --- Precise, compiled, pure, typed ---

ROWS, RATES = randn(2, 3, N), randn(2, B, H, N, seed=7).sigmoid()
FUNCTIONS = {
    "windowed": lambda *qkv: windowed_attention(*qkv, 3),
    "linear": linear_attention,
    "linear in chunks": lambda *qkv: chunked_linear_attention(*qkv, 4),
    "ring": lambda *qkv: torch.cat(ring_attention(*shards(qkv, 3)), -2),
    "causal ring": lambda *qkv: torch.cat(
        ring_attention(*shards(qkv, 3), torch.arange(N, device=qkv[0].device).tensor_split(3)),
        -2,
    ),
    "Linformer": lambda *qkv: linformer_attention(*qkv, *ROWS.to(qkv[0]))[0],
    "shared": lambda query, key, value: shared_qk_attention(query, value)[0],
    "span": lambda *qkv: SpanAttention(H, 9, 3, 2).to(qkv[0])(*qkv)[0],
    "delta": lambda query, key, value: delta_rule(
        query, F.normalize(key, dim=-1), value, *RATES.to(query)
    ),
    "in steps": lambda *qkv: in_steps(*qkv)[0],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_dtype_and_device_are_kept_and_results_close_to_float64(function, dtype, device):
    qkv = [x.detach().to(device, dtype) for x in make_qkv(B, H)]
    got = function(*qkv)
    assert got.dtype == dtype and got.device.type == device
    expected = function(*(x.cpu().double() for x in qkv))
    assert_equal_to(expected, got.cpu().double(), atol=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_buckets_are_whole_numbers_of_any_dtype_and_those_of_float64(dtype, device):
    # 1 to 4, each once, with any signs: no two axes are equally near, and all sums are exact.
    x = (randn(B, H, N, D).argsort(-1) + 1) * randn(B, H, N, D, seed=1).sign()
    rotations = torch.eye(D)[:, [2, 0, 3]].double() * torch.tensor([[[1.0]], [[-2.0]]])
    buckets = lsh_buckets(x.to(device, dtype), rotations.to(device, dtype))
    assert buckets.dtype == torch.long and buckets.device.type == device
    assert torch.equal(buckets.cpu(), lsh_buckets(x, rotations))


SPANS = SpanAttention(H, 9, 3, 2).double()  # parameters are made outside of a graph


# --- Bad input ---

QKV = [x.detach() for x in make_qkv(B, H)]
SHORT = [x[..., :5, :] for x in QKV]
STATE = linear_step(None, *(x[:, :, 0] for x in QKV))[1]

REFUSED = {
    "n must be a whole number of at least 1; got 0": (ValueError, lambda: window_mask(0, 1)),
    "width must be a whole number of at least 0; got -1": (ValueError, lambda: window_mask(3, -1)),
    "global_tokens must be a whole number of at least 0; got 1.5": (
        ValueError,
        lambda: window_mask(3, 1, 1.5),
    ),
    "mask must be a boolean torch.Tensor (n n); got list": (TypeError, lambda: reach([[1]], 1)),
    "mask must be boolean, True = may attend; got torch.float32": (
        TypeError,
        lambda: reach(torch.ones(3, 3), 1),
    ),
    "mask must have axes (n n), for the words of one text; got shape (2 3)": (
        ValueError,
        lambda: reach(torch.ones(2, 3) > 0, 1),
    ),
    "layers must be a whole number of at least 0; got -1": (
        ValueError,
        lambda: reach(torch.ones(3, 3) > 0, -1),
    ),
    "query and key must be of one text, with n positions each; got query (2 3 13 4)": (
        ValueError,
        lambda: windowed_attention(QKV[0], *SHORT[1:], 3),
    ),
    "width must be a whole number of at least 1; got 0": (
        ValueError,
        lambda: windowed_attention(*QKV, 0),
    ),
    "key and value must have the same length k; got key (2 3 13 4) with k = 13 and value": (
        ValueError,
        lambda: linear_attention(*QKV[:2], SHORT[2]),
    ),
    "query (… d), key (… d) and value (… v) must be of one position; got (2 3 13 4), (2 3 4) and": (
        ValueError,
        lambda: linear_step(None, QKV[0], QKV[1][:, :, 0], QKV[2][:, :, 0]),
    ),
    "state must be None or a pair (… d v), (… d), as the last call returned it; got Tensor": (
        TypeError,
        lambda: linear_step(QKV[0], *(x[:, :, 0] for x in QKV)),
    ),
    "the state (… d v) is (2 3 4 5) of torch.float64, and key (1 3 4) ... a new text begins with": (
        ValueError,
        lambda: linear_step(STATE, *(x[:1, :, 0] for x in QKV)),
    ),
    "query_shards must be a list of tensors, one a process; got Tensor": (
        TypeError,
        lambda: ring_attention(*QKV),
    ),
    "every process has one shard of each kind; got 2 query_shards, 3 key_shards, 3 value_shards": (
        ValueError,
        lambda: ring_attention(shards(QKV, 2)[0], *shards(QKV[1:], 3)),
    ),
    "every key needs its value": (
        ValueError,
        lambda: ring_attention(*shards(QKV[:2], 2), shards(QKV, 2)[2][::-1]),
    ),
    "positions says where each position of a shard stands; got (13) for query (2 3 7 4)": (
        ValueError,
        lambda: ring_attention(*shards(QKV, 2), [torch.arange(13)] * 2),
    ),
    "distance must be a torch.Tensor; got int": (TypeError, lambda: span_mask(3, 2, 1)),
    "distance must hold real numbers; got torch.bool": (
        TypeError,
        lambda: span_mask(torch.ones(3) > 0, 2, 1),
    ),
    "ramp must be above 0; got 0": (
        ValueError,
        lambda: span_mask(torch.arange(3), 2, 0),
    ),
    "value_rows (3 13) has axes (r k), so r = 3; but key_rows has r = 2": (
        ValueError,
        lambda: linformer_attention(*QKV, randn(2, N), randn(3, N)),
    ),
    "rotations (2 5 3) has axes (t d c), so d = 5; but x has d = 4": (
        ValueError,
        lambda: lsh_buckets(QKV[0], randn(2, 5, 3)),
    ),
    "width must be a whole number of at least 0; got -2": (ValueError, lambda: window(-2)),
    "width must be a whole number of at least 0; got -3": (ValueError, lambda: dilated(-3, 1)),
    "step must be a whole number of at least 1; got 0": (ValueError, lambda: dilated(1, 0)),
    "stride must be a whole number of at least 1; got 0": (ValueError, lambda: strided(0)),
    "size must be a whole number of at least 1; got 0": (ValueError, lambda: fixed(0)),
    "size must be a whole number of at least 1; got -1": (
        ValueError,
        lambda: shifted_blocks(-1, 4, 1),
    ),
    "blocks must be a whole number of at least 1; got 0": (
        ValueError,
        lambda: shifted_blocks(4, 0, 1),
    ),
    "count must be a whole number of at least 0; got 0.5": (ValueError, lambda: global_tokens(0.5)),
    "count must be a whole number of at least 0; got -1": (
        ValueError,
        lambda: random_keys(4, -1, generator()),
    ),
    "count must be at most n = 4, for no key is drawn twice; got 5": (
        ValueError,
        lambda: random_keys(4, 5, generator()),
    ),
    "keys were drawn for n = 4 positions; the text has more": (
        ValueError,
        lambda: mask_of(random_keys(4, 2, generator()), 6),
    ),
    "processes must be a whole number of at least 1; got 0": (
        ValueError,
        lambda: ring_bytes(0, *QKV[1:]),
    ),
    "span must be a number; got str": (TypeError, lambda: span_mask(torch.arange(3), "a", 1)),
    "span must broadcast with distance, as (h 1 1) with (q k); got span (2) for distance (3)": (
        ValueError,
        lambda: span_mask(torch.arange(3), torch.ones(2), 1),
    ),
    "ramp must be a number; got str": (TypeError, lambda: span_mask(torch.arange(3), 2, "a")),
    "num_heads must be a whole number of at least 1; got 0": (
        ValueError,
        lambda: SpanAttention(0, 9, 3, 2),
    ),
    "start must be from 0 to longest = 9; got 10": (ValueError, lambda: SpanAttention(H, 9, 10, 2)),
    "start must be a number; got str": (TypeError, lambda: SpanAttention(H, 9, "far", 2)),
    "longest must be above 0; got 0": (ValueError, lambda: SpanAttention(H, 0, 0, 2)),
    "strength must be a torch.Tensor; got float": (TypeError, lambda: delta_rule(*QKV, 1.0)),
    "strength (2 3 12) has axes (… n), so n = 12; but key has n = 13": (
        ValueError,
        lambda: delta_rule(*QKV, randn(B, H, N - 1)),
    ),
    "strength must broadcast to (… n) = (2 3 13); got shape (2 1 3 13)": (
        ValueError,
        lambda: delta_rule(*QKV, randn(B, 1, H, N)),
    ),
    "decay (2 3 1) has axes (… n), so n = 1; but key has n = 13": (
        ValueError,
        lambda: delta_rule(*QKV, randn(B, H, N), randn(B, H, 1)),
    ),
    "decay is torch.float32 but key is torch.float64; use one dtype": (
        TypeError,
        lambda: delta_rule(*QKV, randn(B, H, N), torch.ones(B, H, N)),
    ),
    "query and key must have the same width d to be compared; got query (2 3 13 4)": (
        ValueError,
        lambda: partial_attention(QKV[0], QKV[2], QKV[2]),
    ),
    "mask must broadcast to (… q k) = (2 3 13 13); got shape (4 4)": (
        ValueError,
        lambda: partial_attention(*QKV, causal_mask(4)),
    ),
    "mask must be boolean, True = may attend; got torch.int64": (
        TypeError,
        lambda: partial_attention(*QKV, causal_mask(N).long()),
    ),
    "two must be a pair (output (… q v), logsumexp (… q)); got Tensor": (
        TypeError,
        lambda: merge(partial_attention(*QKV), QKV[2]),
    ),
    "one must be a pair (output (… q v), logsumexp (… q)); got (2 3 13 5) and (2 3 5)": (
        ValueError,
        lambda: merge((QKV[2], randn(2, 3, 5)), partial_attention(*QKV)),
    ),
    "one and two must be of the same queries; got outputs (2 3 13 5) and (2 3 5 5)": (
        ValueError,
        lambda: merge(partial_attention(*QKV), partial_attention(SHORT[0], *QKV[1:])),
    ),
}


@pytest.mark.parametrize(("words", "refused"), REFUSED.items(), ids=REFUSED)
def test_bad_input_is_refused_by_name(words, refused):
    assert_refused(refused[0], words, refused[1])


# --- What test_contract.py holds every mechanism to ---


MASK, EVERY = window_mask(N, 2), (B, H, N, V)
CALLS = [
    Call(window_mask, lambda: [N, 2, 1], (N, N)),
    Call(mask_of, lambda: [window(2), N], (N, N)),
    Call(reach, lambda: [MASK, 2], (N, N)),
    Call(hear, lambda: [MASK, MASK], (N, N)),
    Call(flow, lambda: [MASK, 2], (N, N)),
    Call(layers_needed, lambda: [[window_mask(N, 12)], False], equals=1),
    Call(windowed_attention, lambda: [*QKV, 3], EVERY, graph="eager"),
    Call(chunked_linear_attention, lambda: [*QKV, 4], EVERY, graph="eager"),
    Call(
        linformer_attention,
        lambda: [*QKV, *ROWS],
        [EVERY, (B, H, N, 3)],
        graph="eager",
    ),
    Call(lsh_buckets, lambda: [QKV[0], randn(2, D, 3)], (2, B, H, N)),
    Call(same_bucket, lambda: [lsh_buckets(QKV[0], randn(2, D, 3))] * 2, (B, H, N, N)),
    Call(
        shared_qk_attention,
        lambda: [QKV[0], QKV[2]],
        [EVERY, (B, H, N, N)],
        graph="eager",
    ),
    Call(span_mask, lambda: [torch.arange(4), 2.0, 1.0], (4,)),
    Call(SpanAttention.spans, lambda: [SPANS], (H,)),
    Call(
        SpanAttention.forward,
        lambda: [SPANS, *QKV, causal_mask(N)],
        [EVERY, (B, H, N, N)],
        graph="eager",
    ),
    Call(feature_map, lambda: [QKV[0]], (B, H, N, D)),
    Call(linear_attention, lambda: QKV, EVERY, graph="eager"),
    Call(
        linear_step, lambda: [None, *(x[:, :, 0] for x in QKV)], None, "a new text", graph="eager"
    ),
    Call(linear_step, lambda: [STATE, *(x[:, :, 1] for x in QKV)], None, graph="eager"),
    Call(delta_rule, lambda: [*QKV, *RATES], EVERY, graph="eager"),
    Call(partial_attention, lambda: QKV, None),
    Call(merge, lambda: [partial_attention(*QKV)] * 2, None),
    Call(
        ring_attention,
        lambda: shards(QKV, 3),
        [(B, H, len(part), V) for part in torch.arange(N).tensor_split(3)],
        graph="eager",
    ),
    Call(
        ring_attention,
        lambda: [*shards(QKV, 3), torch.arange(N).tensor_split(3)],
        [(B, H, len(part), V) for part in torch.arange(N).tensor_split(3)],
        "causal",
        graph="eager",
    ),
    Call(ring_bytes, lambda: [3, *QKV[1:]], equals=int),
    Call(ring_utilization, lambda: [torch.arange(N).tensor_split(3)], equals=float),
]

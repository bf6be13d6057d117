"""Chapter 7's reference code against torch's own Transformer, its properties and bad input."""

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
from test_multihead import torch_layer
from torch import nn

from attncourse.cross_attention import (
    DecoderLayer,
    EncoderLayer,
    Transformer,
    cross_attention,
    translate,
)
from attncourse.masking import causal_mask, dependency_map, padding_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.self_attention import is_permutation_equivariant, sinusoidal_positions

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, Q, K, M, H, HIDDEN = 2, 3, 5, 12, 4, 7
PAD, BOS, EOS = 0, 1, 2
SOURCE_WORDS, TARGET_WORDS = 11, 13
PADDING = padding_mask(torch.tensor([K, 2]), K)  # b 1 k


def make_pair(b=B, q=Q, k=K, m=M, seed=0):
    return randn(b, q, m, seed=70 + 2 * seed), randn(b, k, m, seed=71 + 2 * seed)


# --- Cross-attention ---

MASKS = {
    "none": None,
    "padding (b 1 k)": PADDING,
    "(q k)": make_mask(Q, K),
    "(b q k)": make_mask(B, Q, K),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cross_attention_agrees_with_torch(mask):
    layer, inputs = filled(MultiHeadAttention(M, H)), [t.requires_grad_() for t in make_pair()]
    target, memory = inputs
    expected = torch_layer(layer, (target, memory, memory), mask)
    actual = cross_attention(target, memory, layer, mask)
    assert_all_agree(expected, actual, [*inputs, *layer.parameters()])


def test_the_target_asks_and_the_memory_gives_keys_and_values():
    target, memory = make_pair()
    seen = []

    def attention(*arguments):
        seen.extend(arguments)
        return "what it", "returns"

    assert cross_attention(target, memory, attention, PADDING) == ("what it", "returns")
    assert all(was is now for was, now in zip((target, memory, memory, PADDING), seen, strict=True))


def test_any_attention_will_do():
    target, memory = make_pair()
    output, weights = cross_attention(target, memory, scaled_dot_product_attention, PADDING)
    assert output.shape == (B, Q, M) and weights.shape == (B, Q, K)


@steadily
@given(st.permutations(range(K)))
def test_the_order_of_the_memory_does_not_matter(order):
    layer, (target, memory) = filled(MultiHeadAttention(M, H)), make_pair()
    output, weights = cross_attention(target, memory, layer, PADDING)
    moved = cross_attention(target, memory[:, order], layer, PADDING[..., order])
    assert_equal_to(output, moved[0])
    assert_equal_to(weights[..., order], moved[1])


# --- The layers agree with torch's ---


def common_parameters(layer):
    """What both of torch's layers call as we do, and its self-attention."""
    parameters = {
        name: parameter
        for name, parameter in layer.named_parameters()
        if name.startswith(("norm", "linear"))
    }
    return parameters | attention_parameters(layer.self_attention, "self_attn")


def attention_parameters(attention, name):
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    return {
        f"{name}.in_proj_weight": torch.cat([part.weight for part in projections]),
        f"{name}.in_proj_bias": torch.cat([part.bias for part in projections]),
        f"{name}.out_proj.weight": attention.out_proj.weight,
        f"{name}.out_proj.bias": attention.out_proj.bias,
    }


SIZES = {
    "all different": (M, H, HIDDEN),
    "all equal": (4, 4, 4),
    "odd": (9, 3, 5),
    "one": (1, 1, 1),
}
OPTIONS = {"dropout": 0.0, "batch_first": True, "norm_first": True, "device": "meta"}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("padded", [False, True], ids=["words only", "padding"])
def test_the_encoder_layer_agrees_with_torch(sizes, padded):
    layer = filled(EncoderLayer(*sizes))
    x, mask = randn(B, K, sizes[0]).requires_grad_(), PADDING if padded else None
    theirs = nn.TransformerEncoderLayer(*sizes, **OPTIONS)
    options = {"src_key_padding_mask": ~PADDING[:, 0]} if padded else {}
    expected = torch.func.functional_call(theirs, common_parameters(layer), (x,), options)
    assert_all_agree([expected], [layer(x, mask)], [x, *layer.parameters()])


def test_the_encoder_layer_agrees_with_torch_for_a_causal_mask():
    layer, x = filled(EncoderLayer(M, H, HIDDEN)), randn(B, K, M).requires_grad_()
    theirs = nn.TransformerEncoderLayer(M, H, HIDDEN, **OPTIONS)
    options = {"src_mask": ~causal_mask(K)}
    expected = torch.func.functional_call(theirs, common_parameters(layer), (x,), options)
    assert_all_agree([expected], [layer(x, causal_mask(K))], [x, *layer.parameters()])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["words only", "padding"])
def test_the_decoder_layer_agrees_with_torch(sizes, causal, padded):
    layer = filled(DecoderLayer(*sizes))
    inputs = [t.requires_grad_() for t in make_pair(m=sizes[0])]
    parameters = common_parameters(layer)
    parameters |= attention_parameters(layer.cross_attention, "multihead_attn")
    theirs = nn.TransformerDecoderLayer(*sizes, **OPTIONS)
    options = {"tgt_mask": ~causal_mask(Q)} if causal else {}
    options |= {"memory_key_padding_mask": ~PADDING[:, 0]} if padded else {}
    expected = torch.func.functional_call(theirs, parameters, tuple(inputs), options)
    actual = layer(*inputs, causal_mask(Q) if causal else None, PADDING if padded else None)
    assert_all_agree([expected], [actual], [*inputs, *layer.parameters()])


def test_a_mask_for_each_sentence_is_a_mask():
    layer, (target, memory) = filled(DecoderLayer(M, H, HIDDEN)), make_pair()
    masks = make_mask(B, Q, Q), make_mask(B, Q, K, seed=1)
    output = layer(target, memory, *masks)
    for i in range(B):
        one = layer(target[[i]], memory[[i]], *(mask[i] for mask in masks))
        assert_equal_to(output[[i]], one)


# --- What the layers see ---


def test_the_encoder_layer_cannot_see_the_order():
    assert is_permutation_equivariant(filled(EncoderLayer(M, H, HIDDEN)), randn(B, K, M))


def test_the_decoder_layer_reads_only_what_came_before():
    layer, (target, memory) = filled(DecoderLayer(M, H, HIDDEN)), make_pair()
    depends = dependency_map(lambda x: layer(x, memory, causal_mask(Q), PADDING), target)
    assert torch.equal(depends, causal_mask(Q))


def test_the_decoder_layer_reads_all_words_of_the_source_and_no_padding():
    layer, (target, memory) = filled(DecoderLayer(M, H, HIDDEN)), make_pair()
    memory.requires_grad_()
    for i in range(Q):
        output = layer(target, memory, causal_mask(Q), PADDING)
        (gradient,) = gradients([output[:, i]], [memory])
        assert torch.equal((gradient != 0).any(-1), PADDING[:, 0])


@pytest.mark.slow
@steadily
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_padding_on_either_side_changes_nothing_for_the_words(n, left, right, seed):
    layer, x = filled(EncoderLayer(9, 3, HIDDEN)), randn(B, n, 9, seed=seed)
    padded = nn.functional.pad(x, (0, 0, left, right), value=5.0)
    place = torch.arange(left + n + right)
    real = (place >= left) & (place < left + n)
    causal = causal_mask(len(place))
    assert_equal_to(layer(x), layer(padded, real)[:, real])
    assert_equal_to(layer(x, causal_mask(n)), layer(padded, causal & real)[:, real])


# --- The Transformer ---


def make_model(seed=0, **changes):
    sizes = {"model_width": M, "num_heads": H, "hidden_width": HIDDEN, "num_layers": 2} | changes
    return filled(Transformer(SOURCE_WORDS, TARGET_WORDS, **sizes), seed).eval()


SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, PAD, PAD, PAD]])
WORDS = torch.tensor([[BOS, 5, 6], [BOS, 7, 8]])


def test_the_transformer_is_made_of_its_parts():
    model = make_model()

    def embed(tokens, table):
        places = torch.arange(tokens.shape[1])
        return table.weight[tokens] * M**0.5 + sinusoidal_positions(99, M).double()[places]

    mask = SOURCE[:, None] != PAD
    memory = embed(SOURCE, model.source_embedding)
    for layer in model.encoder:
        memory = layer(memory, mask)
    memory = model.encoder_norm(memory)
    for want, got in zip((memory, mask), model.encode(SOURCE), strict=True):
        assert_equal_to(want, got)
    x = embed(WORDS, model.target_embedding)
    for layer in model.decoder:
        x = layer(x, memory, causal_mask(3), mask)
    logits = model.output(model.decoder_norm(x))
    assert_equal_to(logits, model.decode(WORDS, memory, mask))
    assert_equal_to(logits, model(SOURCE, WORDS))


@pytest.mark.slow
@steadily
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.integers(0, 99))
def test_padding_of_the_source_and_of_the_target_changes_no_score(n, t, pads, seed):
    model, chance = make_model(model_width=9, num_heads=3), torch.Generator().manual_seed(seed)
    source = torch.randint(3, SOURCE_WORDS, (B, n), generator=chance)
    words = torch.randint(1, TARGET_WORDS, (B, t), generator=chance)
    padded = (nn.functional.pad(tokens, (0, pads), value=PAD) for tokens in (source, words))
    assert_equal_to(model(source, words), model(*padded)[:, :t])


def test_the_sentences_of_a_batch_do_not_see_each_other():
    model = make_model()
    together = model(SOURCE, WORDS)
    assert_equal_to(together[:1], model(SOURCE[:1], WORDS[:1]))
    assert_equal_to(together[1:], model(SOURCE[1:, :2], WORDS[1:]))


@pytest.mark.parametrize("place", range(3))
def test_a_later_word_has_no_influence_on_an_earlier_score(place):
    model, changed = make_model(), WORDS.clone()
    changed[:, place] = 11
    before, after = model(SOURCE, WORDS), model(SOURCE, changed)
    assert torch.equal(before[:, :place], after[:, :place])
    assert ((before[:, place:] - after[:, place:]).abs().amax((0, 2)) > 1e-6).all()


def test_writing_word_by_word_gives_the_scores_of_teacher_forcing():
    model = make_model()
    memory, mask = model.encode(SOURCE)
    for t in range(1, 4):
        step = model.decode(WORDS[:, :t], memory, mask)[:, -1]
        assert_equal_to(model(SOURCE, WORDS)[:, t - 1], step)


def test_the_order_of_the_source_matters():
    model = make_model()
    assert (model(SOURCE[:1], WORDS[:1]) - model(SOURCE[:1].flip(1), WORDS[:1])).abs().max() > 1e-3


def test_the_padding_id_is_a_choice():
    model = make_model(pad=9)
    source = torch.tensor([[3, 0, 5, 9, 9]])
    assert model.encode(source)[1].tolist() == [[[True, True, True, False, False]]]
    assert_equal_to(model(source[:, :3], WORDS[:1]), model(source, WORDS[:1]))


def test_every_parameter_learns_and_padding_does_not():
    model = make_model()
    results, parameters = model(SOURCE, WORDS), dict(model.named_parameters())
    by_name = dict(zip(parameters, gradients([results], list(parameters.values())), strict=True))
    learned = [name for name, gradient in by_name.items() if gradient.abs().max() > 1e-9]
    # A constant added to all scores of a query changes no weight, so a key's bias never learns.
    assert [name for name in by_name if name not in learned] == [
        name for name in by_name if name.endswith("k_proj.bias")
    ]
    used = (by_name["source_embedding.weight"] != 0).any(-1)
    assert used.nonzero().flatten().tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_embeddings_begin_as_large_as_the_positions_they_meet():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(1000, 1000, model_width=64)
    for embedding in (model.source_embedding, model.target_embedding):
        assert abs(embedding.weight.std().item() * math.sqrt(64) - 1) < 0.02


# --- Translating ---


class Parrot(nn.Module):
    """Repeats the source word for word, then says eos; keeps what it was asked."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, source, words):
        self.calls.append((source.clone(), words.clone()))
        said = words.shape[1] - 1
        padded = nn.functional.pad(source, (0, said + 2), value=EOS)
        answer = padded[:, : said + 1].masked_fill(padded[:, : said + 1] == PAD, EOS)
        return nn.functional.one_hot(answer, SOURCE_WORDS).float()


def test_a_translation_ends_with_eos_and_the_batch_with_its_longest():
    translation = translate(Parrot(), SOURCE, BOS, EOS, 9)
    assert translation.tolist() == [[3, 4, 5, 6, 7, EOS], [8, 9, EOS, EOS, EOS, EOS]]


def test_after_eos_nothing_is_said_whatever_the_model_wants():
    def hesitant(source, words):  # row 0: eos, then 5 for ever; row 1: 5, 5, eos
        wanted = torch.tensor([[EOS, 5, 5], [5, 5, EOS]])[:, : words.shape[1]]
        return nn.functional.one_hot(wanted, TARGET_WORDS).float()

    assert translate(hesitant, SOURCE, BOS, EOS, 9).tolist() == [[EOS] * 3, [5, 5, EOS]]


@pytest.mark.parametrize("max_length", [1, 2, 5])
def test_a_translation_stops_at_its_largest_length(max_length):
    translation = translate(Parrot(), SOURCE, BOS, EOS, max_length)
    expected = [[3, 4, 5, 6, 7], [8, 9, EOS, EOS, EOS]]
    assert translation.tolist() == [row[:max_length] for row in expected]


def test_the_model_is_given_bos_and_then_its_own_words():
    parrot = Parrot()
    translate(parrot, SOURCE[:1, :2], BOS, EOS, 9)
    assert [words.tolist() for _, words in parrot.calls] == [[[BOS]], [[BOS, 3]], [[BOS, 3, 4]]]
    assert all(torch.equal(source, SOURCE[:1, :2]) for source, _ in parrot.calls)


def test_each_word_is_the_likeliest_after_those_before():
    model = make_model()
    translation = translate(model, SOURCE, BOS, EOS, 6)
    words = torch.cat([torch.full((B, 1), BOS), translation], 1)
    likeliest = model(SOURCE, words[:, :-1]).argmax(-1)
    for row, best in zip(translation.tolist(), likeliest.tolist(), strict=True):
        end = row.index(EOS) + 1 if EOS in row else len(row)
        assert row[:end] == best[:end] and set(row[end:]) <= {EOS}


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_is_translated_like_its_sentences_one_by_one(seed):
    model = make_model(seed)
    together = translate(model, SOURCE, BOS, EOS, 8)
    for i, length in enumerate([5, 2]):
        (alone,) = translate(model, SOURCE[[i], :length], BOS, EOS, 8).tolist()
        alone += [EOS] * (together.shape[1] - len(alone))
        assert together[i].tolist() == alone


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_translating_needs_no_gradient_and_leaves_the_mode_alone(mode):
    model = make_model().train(mode)
    source, chance = SOURCE.clone(), torch.get_rng_state()
    first, second = (translate(model, source, BOS, EOS, 4) for _ in range(2))
    assert torch.equal(first, second) and first.dtype == torch.int64
    assert not first.requires_grad and torch.is_grad_enabled()
    assert model.training is mode and all(part.training is mode for part in model.modules())
    assert torch.equal(source, SOURCE) and torch.equal(chance, torch.get_rng_state())


def test_the_scores_of_a_model_are_not_kept_while_translating():
    def model(source, words):
        assert not torch.is_grad_enabled()
        return torch.zeros(*words.shape, TARGET_WORDS)

    assert translate(model, SOURCE, BOS, EOS, 2).tolist() == [[0, 0], [0, 0]]


# --- Precise, compiled, pure, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_transformer_works_in_every_precision(device, dtype):
    model = make_model().to(device, dtype)
    source, words = SOURCE.to(device), WORDS.to(device)
    logits = model(source, words)
    assert logits.dtype == dtype and logits.device.type == device
    # The oracle sees the already rounded parameters: only the arithmetic is on trial.
    expected = model.cpu().double()(SOURCE, WORDS)
    assert_equal_to(expected, logits.cpu().double(), atol=64 * torch.finfo(dtype).eps)
    translation = translate(model.to(device, dtype), source, BOS, EOS, 3)
    assert translation.device.type == device


# --- Bad input ---

MODEL = make_model()
MEMORY, MEMORY_MASK = MODEL.encode(SOURCE)

# What the message says, and what provokes it; " ... " skips some words.
BAD_VALUES = {
    "target must have axes (b q m); got shape (3 12)": (
        lambda: cross_attention(randn(Q, M), randn(B, K, M), print)
    ),
    "memory (2 5 7) has axes (b k m), so m = 7; but target has m = 12": (
        lambda: cross_attention(randn(B, Q, M), randn(B, K, HIDDEN), print)
    ),
    "memory (4 5 12) has axes (b k m), so b = 4; but target has b = 2": (
        lambda: MODEL.decoder[0](randn(B, Q, M), randn(H, K, M))
    ),
    "mask must broadcast to (b q k) = (2 3 5); got shape (2 5). ... mask[:, None, :]": (
        lambda: MODEL.decoder[0](*make_pair(), memory_mask=PADDING[:, 0])
    ),
    "source must have axes (b k); got shape (5)": lambda: MODEL(SOURCE[0], WORDS),
    "words must have axes (b t); got shape (3)": lambda: MODEL(SOURCE, WORDS[0]),
    "memory (2 5 12) has axes (b k m), so b = 2; but words has b = 1": (
        lambda: MODEL(SOURCE, WORDS[:1])
    ),
    "4 heads of equal width do not fit into model_width=10": lambda: EncoderLayer(10, H, HIDDEN),
    "source must have axes (b n); got shape (5)": lambda: translate(MODEL, SOURCE[0], BOS, EOS, 3),
    "max_length must be at least 1; got 0": lambda: translate(MODEL, SOURCE, BOS, EOS, 0),
    "logits must have axes (b vocab); got shape (2)": (
        lambda: translate(lambda source, words: randn(B, 1), SOURCE, BOS, EOS, 3)
    ),
}
BAD_TYPES = {
    "memory must be a torch.Tensor; got tuple": (
        lambda: MODEL.decode(WORDS, (MEMORY, MEMORY_MASK), None)
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
    Call(
        cross_attention,
        lambda: [*make_pair(), filled(MultiHeadAttention(M, H)), PADDING],
        [(B, Q, M), (B, H, Q, K)],
    ),
    Call(
        EncoderLayer.forward,
        lambda: [make_model().encoder[0], make_pair()[1], PADDING],
        (B, K, M),
    ),
    Call(
        DecoderLayer.forward,
        lambda: [make_model().decoder[0], *make_pair(), causal_mask(Q), PADDING],
        (B, Q, M),
    ),
    Call(Transformer.encode, lambda: [make_model(), SOURCE], [(B, K, M), (B, 1, K)]),
    Call(
        Transformer.decode,
        lambda: [make_model(), WORDS, *make_model().encode(SOURCE)],
        (B, 3, TARGET_WORDS),
    ),
    Call(
        Transformer.forward,
        lambda: [make_model(num_layers=1), SOURCE, WORDS],
        (B, 3, TARGET_WORDS),
        graph="eager",
    ),
    Call(translate, lambda: [make_model(), SOURCE, BOS, EOS, 3], None),
]

"""Chapter 9's reference code against Hugging Face and the library `tokenizers`, and its limits."""

import itertools
import json
import re
from collections import Counter
from types import SimpleNamespace

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
    randn,
    steadily,
)
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from torch import nn

from attncourse.bottleneck import apply_merges, byte_pairs, greedy_decode
from attncourse.number_words import words
from attncourse.one_stack import (
    BERT,
    GPT,
    NOT_ASKED,
    PIECE_OF_TEXT,
    Continuation,
    all_at_once,
    beam_search,
    by_confidence,
    byte_letters,
    byte_words,
    close_gaps,
    decode_text,
    embed,
    encode_text,
    fill_in,
    gpt_parameters,
    half_each_round,
    left_to_right,
    log_probability,
    masked_words,
    piece_ids,
    sample,
    sampling_distribution,
    with_rotation,
)

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, N, H, D, HIDDEN, WORDS, LAYERS, PAD = 2, 5, 3, 4, 7, 11, 2, 0
M = H * D
TEXT = torch.tensor([[3, 4, 5, 10, 7], [8, 9, 3, PAD, PAD]])
SIZES = {
    "model_width": M,
    "num_heads": H,
    "hidden_width": HIDDEN,
    "num_layers": LAYERS,
}


def make_gpt(seed=0):
    return filled(GPT(WORDS, **SIZES), seed)


def make_bert(seed=0):
    return filled(BERT(WORDS, **SIZES), seed)


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The same numbers as in the models everybody uses ---


def linear(name, part, transposed=False):
    return {
        f"{name}.weight": part.weight.T if transposed else part.weight,
        f"{name}.bias": part.bias,
    }


def norm(name, part):
    return {f"{name}.weight": part.weight, f"{name}.bias": part.bias}


def together(attention, axis=0):
    """Queries, keys and values in one table, as GPT-2 has them."""
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    return SimpleNamespace(
        weight=torch.cat([p.weight for p in parts]), bias=torch.cat([p.bias for p in parts])
    )


@pytest.mark.slow
def test_a_gpt_computes_what_gpt2_computes():
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=N + 2,
        n_embd=M,
        n_layer=LAYERS,
        n_head=H,
        n_inner=HIDDEN,
        attn_implementation="eager",
    )
    theirs, ours = GPT2Model(config).double().eval(), make_gpt()
    table = randn(N + 2, M, seed=9).requires_grad_()
    ours.positions = lambda n, width: table[:n]
    parameters = {
        "wte.weight": ours.embedding.weight * M**0.5,  # ours is scaled when it is used
        "wpe.weight": table,
        **norm("ln_f", ours.norm),
    }
    for i, layer in enumerate(ours.layers):
        parameters |= {
            **norm(f"h.{i}.ln_1", layer.norm1),
            **linear(f"h.{i}.attn.c_attn", together(layer.self_attention), transposed=True),
            **linear(f"h.{i}.attn.c_proj", layer.self_attention.out_proj, transposed=True),
            **norm(f"h.{i}.ln_2", layer.norm2),
            **linear(f"h.{i}.mlp.c_fc", layer.linear1, transposed=True),
            **linear(f"h.{i}.mlp.c_proj", layer.linear2, transposed=True),
        }
    assert parameters.keys() == dict(theirs.named_parameters()).keys()
    text = TEXT[:1].repeat(3, 1)
    text[1:, 2] = torch.tensor([6, 8])
    expected = torch.func.functional_call(theirs, parameters, (text,)).last_hidden_state
    inputs = [table, *(p for name, p in ours.named_parameters() if not name.startswith("output"))]
    assert_all_agree([expected], [ours.read(text)], inputs)


def test_a_bert_computes_what_bert_computes():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=N + 2,
        hidden_size=M,
        num_hidden_layers=LAYERS,
        num_attention_heads=H,
        intermediate_size=HIDDEN,
        attn_implementation="eager",
    )
    theirs = BertModel(config, add_pooling_layer=False).double().eval()
    ours = make_bert()
    for part in ours.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = config.layer_norm_eps  # 1e-12, where torch has 1e-5
    table, sentences = randn(N + 2, M, seed=9).requires_grad_(), randn(2, M, seed=8)
    ours.positions = lambda n, width: table[:n] + sentences[0]  # all is one sentence
    parameters = {
        "embeddings.word_embeddings.weight": ours.embedding.weight * M**0.5,
        "embeddings.position_embeddings.weight": table,
        "embeddings.token_type_embeddings.weight": sentences,
        **norm("embeddings.LayerNorm", ours.norm),
    }
    for i, layer in enumerate(ours.layers):
        name, attention = f"encoder.layer.{i}", layer.self_attention
        parameters |= {
            **linear(f"{name}.attention.self.query", attention.q_proj),
            **linear(f"{name}.attention.self.key", attention.k_proj),
            **linear(f"{name}.attention.self.value", attention.v_proj),
            **linear(f"{name}.attention.output.dense", attention.out_proj),
            **norm(f"{name}.attention.output.LayerNorm", layer.norm1),
            **linear(f"{name}.intermediate.dense", layer.linear1),
            **linear(f"{name}.output.dense", layer.linear2),
            **norm(f"{name}.output.LayerNorm", layer.norm2),
        }
    assert parameters.keys() == dict(theirs.named_parameters()).keys()
    real = TEXT != PAD
    expected = torch.func.functional_call(
        theirs, parameters, (TEXT,), {"attention_mask": real.long()}
    ).last_hidden_state
    inputs = [table, *(p for name, p in ours.named_parameters() if not name.startswith("output"))]
    # Rows of padding differ: nobody reads them.
    assert_all_agree([expected[real]], [ours.read(TEXT)[real]], inputs)


# --- Who sees whom ---


@pytest.mark.parametrize("rotated", [False, True], ids=["sinusoids", "rotated"])
@pytest.mark.parametrize("place", range(N))
def test_a_decoder_alone_sees_no_later_word_and_every_earlier_one(rotated, place):
    model = make_gpt()
    model = with_rotation(model) if rotated else model
    text = TEXT[:1]
    changed = text.clone()
    changed[0, place] = 6
    differs = ~model(text).isclose(model(changed), atol=1e-12).all(-1)[0]
    assert differs.tolist() == [n >= place for n in range(N)]


@pytest.mark.parametrize("place", range(3))
def test_an_encoder_alone_sees_every_word_and_no_padding(place):
    model, changed = make_bert(), TEXT.clone()
    changed[1, place] = 6
    differs = ~model(TEXT).isclose(model(changed), atol=1e-12).all(-1)
    assert differs[1, :3].all() and not differs[0].any()
    alone = model(TEXT[1:, :3])
    assert_equal_to(alone[0], model(TEXT)[1, :3])


def test_rotated_models_know_distances_and_no_places():
    for make in (make_gpt, make_bert):
        model, plain = with_rotation(make()), make()
        shifted = torch.cat([torch.full((B, 2), PAD), TEXT[:1].repeat(B, 1)], 1)
        if make is make_bert:  # padding on the left is hidden, so only the places change
            assert_equal_to(model(TEXT[:1]).expand(B, -1, -1), model(shifted)[:, 2:])
            assert not torch.allclose(plain(TEXT[:1]), plain(shifted)[:1, 2:])
        turned = TEXT[:1].flip(1)
        assert not torch.allclose(model(TEXT[:1]), model(turned).flip(1))  # order counts


def test_continuing_a_source_is_reading_one_text():
    model = make_gpt()
    translator = Continuation(model, PAD)
    target = torch.tensor([[1, 6, 4], [1, 10, PAD]])
    logits = translator(TEXT, target)
    assert logits.shape == (B, 3, WORDS)
    for row, (source, written) in enumerate(zip(TEXT, target, strict=True)):
        source, written = source[source != PAD], written[written != PAD]
        alone = model(torch.cat([source, written])[None])[0, len(source) :]
        assert_equal_to(alone, logits[row, : len(written)])


# --- Masked words ---


class Marked:
    """All that the collator asks of a tokenizer."""

    mask_token = "<mask>"

    def __len__(self):
        return WORDS

    def convert_tokens_to_ids(self, token):
        return 2


@pytest.mark.parametrize("share", [0.0, 0.15, 0.6, 1.0])
def test_words_are_masked_as_hugging_face_masks_them(share):
    collator = pytest.importorskip("transformers.data.data_collator")
    tokens = torch.randint(3, WORDS, (40, 50), generator=chance(1))
    theirs = SimpleNamespace(
        tokenizer=type(
            "T",
            (),
            {"__len__": lambda _: WORDS, "mask_token": "", "convert_tokens_to_ids": lambda *_: 2},
        )(),
        generator=chance(7),
        mlm_probability=share,
        mask_replace_prob=0.8,
        random_replace_prob=0.1,
        whole_word_mask=False,
    )
    mask_tokens = collator.DataCollatorForLanguageModeling.torch_mask_tokens
    expected = mask_tokens(theirs, tokens.clone(), torch.zeros_like(tokens))
    inputs, targets = masked_words(tokens, share, 2, WORDS, chance(7))
    assert torch.equal(expected[0], inputs) and torch.equal(expected[1], targets)


def test_of_the_words_asked_for_a_tenth_is_left_and_a_tenth_exchanged():
    tokens = torch.full((300, 400), 5)
    inputs, targets = masked_words(tokens, 0.3, 2, WORDS, chance())
    asked = targets != NOT_ASKED
    assert abs(asked.float().mean() - 0.3) < 0.01
    assert (targets[asked] == 5).all() and (inputs[~asked] == 5).all()
    shares = [(inputs[asked] == word).float().mean().item() for word in range(WORDS)]
    once = 0.1 / WORDS  # any word may come in exchange, the same one and the mask, too
    expected = [once] * WORDS
    expected[2] += 0.8
    expected[5] += 0.1
    assert shares == pytest.approx(expected, abs=0.01)


def test_each_sentence_may_have_a_share_of_its_own():
    tokens = torch.full((3, 4000), 5)
    share = torch.tensor([[0.0], [0.2], [1.0]])
    _, targets = masked_words(tokens, share, 2, WORDS, chance())
    assert (targets != NOT_ASKED).float().mean(1).tolist() == pytest.approx([0, 0.2, 1], abs=0.03)


def scripted(words_of):
    """A model that is surest of the places with the highest words, and writes them."""

    def model(text):
        model.seen.append(text.tolist())
        target = torch.tensor(words_of).expand(text.shape)
        return nn.functional.one_hot(target, WORDS) * target[..., None].float()

    model.seen = []
    return model


@pytest.mark.parametrize(
    ("order", "rounds"),
    {
        all_at_once: [[3, 2, 2, 2, 2]],
        left_to_right: [[3, 2, 2, 2, 2], [3, 5, 2, 2, 2], [3, 5, 9, 2, 2], [3, 5, 9, 4, 2]],
        by_confidence: [[3, 2, 2, 2, 2], [3, 2, 9, 2, 2], [3, 2, 9, 2, 7], [3, 5, 9, 2, 7]],
        half_each_round: [[3, 2, 2, 2, 2], [3, 2, 9, 2, 7], [3, 5, 9, 2, 7]],
    }.items(),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_masks_are_filled_in_this_order(order, rounds):
    model = scripted([6, 5, 9, 4, 7])
    text = torch.tensor([[3, 2, 2, 2, 2], [3, 3, 3, 3, 3]])
    filled_in = fill_in(model, text, 2, order)
    assert filled_in.tolist() == [[3, 5, 9, 4, 7], [3] * 5]
    assert [batch[0] for batch in model.seen] == rounds
    assert text[0].tolist() == [3, 2, 2, 2, 2], "the caller's text stays as it was"


def test_a_mask_is_never_what_is_filled_in():
    def model(text):
        return nn.functional.one_hot(torch.full_like(text, 2), WORDS).float()

    assert (fill_in(model, torch.full((2, 3), 2), 2, all_at_once) != 2).all()


# --- Byte pairs, as the library learns and applies them ---


def library(texts, num_merges):
    """The library's tokenizer, trained on the same cuts, and the pairs that it learned."""
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PIECE_OF_TEXT.pattern), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokenizer, [tuple(pair) for pair in merges]


def numbers_in_words():
    return [" ".join(words(n, language)) for n in range(0, 40_000, 37) for language in ("en", "fr")]


def prose(root):
    return [(root / "book" / "03_scaled_dot_product.md").read_text(encoding="utf-8")]


def chinese(root):
    text = (root / "book" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r'<span lang="zh-Hans">(.*?)</span>', text)


CORPORA = {
    "numbers": lambda root: numbers_in_words(),
    "English prose": prose,
    "Chinese terms": chinese,
}


@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "English prose" else ())
        for name in CORPORA
    ],
)
def test_merges_and_ids_are_those_of_the_library(root, corpus):
    texts = CORPORA[corpus](root)
    tokenizer, expected = library(texts, 150)
    merges = byte_pairs(Counter(word for text in texts for word in byte_words(text)), 150)
    assert merges == expected and len(merges) >= 100
    for text in [*texts[:50], "Ünknown 数字 104\n\n  and 👩‍👩‍👧 \x00"]:
        assert encode_text(text, merges) == tokenizer.encode(text).ids


@steadily
@given(st.lists(st.text("ab \n", max_size=12), max_size=4), st.integers(1, 25))
def test_ties_and_runs_are_settled_as_by_the_library(texts, num_merges):
    _, expected = library(texts, num_merges)
    counts = Counter(word for text in texts for word in byte_words(text))
    assert byte_pairs(counts, num_merges) == expected


@steadily
@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 5)), st.text("abc", max_size=20))
def test_learned_merges_may_be_applied_in_order_or_by_rank(words, word):
    """A piece is born at one time, wherever it stands, so no pair comes up after its turn."""
    merges = byte_pairs(words, 60)
    assert len({left + right for left, right in merges}) == len(merges)
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    parts = list(word)
    while known := [pair for pair in itertools.pairwise(parts) if pair in ranks]:
        first, left = min(known, key=ranks.get), parts
        parts = []
        while left:
            both = tuple(left[:2]) == first
            parts.append("".join(left[: 1 + both]))
            left = left[1 + both :]
    assert parts == apply_merges(word, merges)


@pytest.mark.slow
@steadily
@given(st.text(max_size=40), st.integers(0, 30))
def test_any_text_comes_back_from_its_ids(text, num_merges):
    merges = byte_pairs(Counter(byte_words(text + " one hundred")), num_merges)
    ids = encode_text(text, merges)
    assert decode_text(ids, merges) == text
    assert all(0 <= each < 256 + len(merges) for each in ids)
    assert len(encode_text(text, [])) == len(text.encode())
    assert "".join(byte_words(text)) == "".join(byte_letters()[byte] for byte in text.encode())


def test_a_letter_for_each_byte_is_gpt2s():
    assert set(byte_letters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert byte_letters()[ord(" ")] == "Ġ" and byte_letters()[ord("a")] == "a"
    assert list(piece_ids([])) == sorted(byte_letters())


# --- Choosing words ---

LOGITS = randn(4, WORDS, seed=3) * 2
CUTS = list(itertools.product([1.0, 0.4, 2.5], [None, 1, 3, WORDS, 99], [None, 0.05, 0.6, 0.95, 1]))


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CUTS)
def test_words_are_drawn_from_what_hugging_face_draws_from(temperature, top_k, top_p):
    process = pytest.importorskip("transformers.generation.logits_process")
    scores = process.TemperatureLogitsWarper(temperature)(None, LOGITS)
    if top_k is not None:
        scores = process.TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = process.TopPLogitsWarper(float(top_p))(None, scores)
    actual = sampling_distribution(LOGITS, temperature, top_k, top_p)
    assert_equal_to(scores.softmax(-1), actual)


@steadily
@given(st.floats(0.1, 5), st.integers(1, 12), st.floats(0.01, 1), st.integers(0, 99))
def test_the_likeliest_word_stays_and_nothing_overtakes(temperature, top_k, top_p, seed):
    logits = randn(3, WORDS, seed=seed)
    p = sampling_distribution(logits, temperature, top_k, top_p)
    assert_equal_to(torch.ones(3).double(), p.sum(-1))
    assert (p.argmax(-1) == logits.argmax(-1)).all() and ((p > 0).sum(-1) <= top_k).all()
    order = logits.argsort(-1, descending=True)
    assert (p.gather(-1, order).diff(dim=-1) <= 1e-12).all()


def test_words_are_drawn_as_often_as_they_are_likely():
    many = LOGITS[:1].expand(40_000, -1)
    drawn = sample(many, 0.7, 6, 0.9, rng=chance())
    shares = torch.bincount(drawn, minlength=WORDS) / len(drawn)
    expected = sampling_distribution(LOGITS[:1], 0.7, 6, 0.9)[0]
    assert_equal_to(expected, shares.double(), atol=0.01)
    assert ((shares > 0) == (expected > 0)).all()


def test_chance_is_the_callers_own_if_given():
    state = torch.get_rng_state()
    first, second = (sample(LOGITS, rng=chance(4)) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(state, torch.get_rng_state())
    masked_words(TEXT, 0.5, 2, WORDS, chance())
    assert torch.equal(state, torch.get_rng_state())


def writer(seed, vocab, peaked=2.0):
    """`step` of a model whose next word depends on all words so far: the state holds them."""
    table = randn(4 * vocab, 97, seed=seed)

    def step(token, state):
        state = torch.cat([state, token[:, None]], 1)
        place = (state * torch.arange(1, state.shape[1] + 1)).sum(1) % 97
        return peaked * table[:vocab, place].T, state

    return step


def all_sentences(vocab, eos, max_length):
    for length in range(1, max_length + 1):
        for sentence in itertools.product(range(vocab), repeat=length):
            ends = [place for place, word in enumerate(sentence) if word == eos]
            if ends == [length - 1] or (not ends and length == max_length):
                yield list(sentence)


@pytest.mark.parametrize("seed", range(6))
def test_a_beam_wide_enough_finds_the_likeliest_of_all_sentences(seed):
    vocab, eos, bos, longest = 3, 2, 1, 4
    step, state = writer(seed, vocab), torch.tensor([[seed], [seed + 7]])
    found = beam_search(step, state, bos, eos, vocab**longest, longest)
    for row in range(2):
        best = None
        for sentence in all_sentences(vocab, eos, longest):
            logits, now, total = None, state[row : row + 1], 0.0
            for token, following in zip([bos, *sentence], sentence, strict=False):
                logits, now = step(torch.tensor([token]), now)
                total += logits.log_softmax(-1)[0, following].item()
            if best is None or total > best[0]:
                best = total, sentence
        expected = best[1] + [eos] * (found.shape[1] - len(best[1]))
        assert found[row].tolist() == expected


@steadily
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 6))
def test_a_beam_of_one_is_greedy(seed, vocab, longest):
    step, state = writer(seed, vocab), torch.tensor([[3], [5], [8]])
    greedy = greedy_decode(step, state, 1, 0, longest, 3)
    assert torch.equal(greedy, beam_search(step, state, 1, 0, 1, longest))


@pytest.mark.parametrize("width", [2, 3, 5, 20])
def test_a_batch_is_searched_like_its_sentences_one_by_one(width):
    step, state = writer(1, 5), torch.tensor([[3], [5], [8]])
    at_once = beam_search(step, state, 1, 0, width, 6)
    for row in range(3):
        alone = beam_search(step, state[row : row + 1], 1, 0, width, 6)[0].tolist()
        assert at_once[row].tolist() == alone + [0] * (at_once.shape[1] - len(alone))


def test_a_wider_beam_finds_what_a_narrow_one_threw_away():
    """First the likelier beginning, then nothing good: .6 · .5 against .4 · 1."""
    after = {1: [0.0, 0.0, 0.6, 0.4], 2: [0.5, 0.0, 0.25, 0.25], 3: [1.0, 0.0, 0.0, 0.0]}

    def step(token, state):
        return torch.tensor([after.get(t, [1.0, 0, 0, 0]) for t in token.tolist()]).log(), state

    state = torch.zeros(1, 1)
    assert beam_search(step, state, 1, 0, 1, 5).tolist() == [[2, 0]]
    assert beam_search(step, state, 1, 0, 2, 5).tolist() == [[3, 0]]


def test_the_log_probability_of_a_sentence_is_that_of_its_words():
    logits, target = randn(2, 3, WORDS), torch.tensor([[4, 5, 2], [6, 2, PAD]])
    log_p = logits.log_softmax(-1)
    expected = [
        log_p[0, 0, 4] + log_p[0, 1, 5] + log_p[0, 2, 2],
        log_p[1, 0, 6] + log_p[1, 1, 2],
    ]
    assert_equal_to(torch.stack(expected), log_probability(logits, target, PAD))


# --- What GPT-3 is made of ---


def test_gpt3_has_175_billion_parameters_and_these():
    parts = gpt_parameters(50_257, 2_048, 12_288, 96)
    assert sum(parts.values()) == 174_604_259_328
    assert parts["attention"] == 57_982_058_496 and parts["embedding"] == 617_558_016


def test_parameters_are_counted_as_in_the_model():
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=WORDS, n_positions=N, n_embd=M, n_layer=LAYERS, n_head=H)
    theirs = GPT2Model(config)
    expected = sum(p.numel() for p in theirs.parameters())
    assert sum(gpt_parameters(WORDS, N, M, LAYERS).values()) == expected
    with torch.device("meta"):
        ours = GPT(WORDS, M, H, 4 * M, LAYERS)
    learned = sum(p.numel() for p in ours.parameters()) - (M + 1) * WORDS  # its own output
    assert expected == learned + N * M


# --- Precise, compiled, pure, typed ---

MODELS = {
    "GPT": make_gpt,
    "BERT": make_bert,
    "GPT, rotated": lambda: with_rotation(make_gpt()),
    "BERT, rotated": lambda: with_rotation(make_bert()),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_one_stack_works_in_every_precision(make, device, dtype):
    model, text = make().to(device, dtype), TEXT.to(device)
    logits = model(text)
    assert logits.dtype == dtype and logits.device.type == device
    # The oracle sees the already rounded parameters: only the arithmetic is on trial.
    expected = model.cpu().double()(TEXT)
    real = TEXT != PAD
    assert_equal_to(expected[real], logits.cpu().double()[real], atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("device", DEVICES)
def test_choosing_words_works_on_every_device(device):
    logits = LOGITS.float().to(device)
    rng = torch.Generator(device).manual_seed(0)
    assert sample(logits, 0.5, 3, 0.9, rng).device.type == device
    tokens = TEXT.to(device)
    assert all(t.device.type == device for t in masked_words(tokens, 0.5, 2, WORDS, rng))

    def step(token, state):
        return logits[token % 4], state

    assert beam_search(step, torch.zeros(2, 1, device=device), 1, 0, 3, 4).device.type == device


# --- Bad input ---

BAD_VALUES = {
    "text must have axes (b n); got shape (5)": lambda: make_gpt()(TEXT[0]),
    "4 heads of equal width do not fit into model_width=10": lambda: GPT(WORDS, 10),
    "text holds ids from 3 to 11; known are 0 to 10": lambda: make_gpt()(
        TEXT[:1] + (TEXT[:1] == 10)
    ),
    "text holds ids from -1 to 10": lambda: make_bert()(TEXT - (TEXT == 0).long()),
    "text (2 0) is empty: a row needs at least one word": lambda: make_gpt()(TEXT[:, :0]),
    "text (2 2) holds nothing but padding (id 0)": lambda: make_bert()(TEXT[:, :2] * 0),
    "share (3 1) has axes (b 1), so b = 3; but tokens has b = 2": (
        lambda: masked_words(TEXT, torch.rand(3, 1), 2, 9, chance())
    ),
    "vocabulary_size must be a whole number of at least 1; got 0": (
        lambda: masked_words(TEXT, 0.5, 2, 0, chance())
    ),
    "order fills none of the 5 places that are left": (
        lambda: fill_in(make_bert(), TEXT[:1] * 0 + 2, 2, lambda sureness, hidden: ~hidden)
    ),
    "text holds '\\ud800', half of a letter, which has no bytes": lambda: byte_words("a \ud800"),
    "merges must hold pairs of pieces; got 'ab'": lambda: encode_text("ab", ["ab"]),
    "num_merges must be a whole number of at least 0; got -1": lambda: byte_pairs({"ab": 1}, -1),
    "num_merges must be a whole number of at least 0; got 2.5": lambda: byte_pairs({"a": 1}, 2.5),
    "a whole number of at least 0; got 'x' for 'ab'": lambda: byte_pairs({"ab": "x"}, 2),
    "a whole number of at least 0; got -3 for 'ab'": lambda: byte_pairs({"ab": -3}, 2),
    "merges must hold pairs of pieces; got 3": lambda: encode_text("ab", [3]),
    "mask_id must be a whole number of at least 0; got -1": (
        lambda: masked_words(TEXT, 0.5, -1, WORDS, chance())
    ),
    "tokens holds ids from 0 to 10; known are 0 to 8": (
        lambda: masked_words(TEXT, 0.5, 2, 9, chance())
    ),
    "bos must be a whole number of at least 0; got -1": (
        lambda: beam_search(print, torch.zeros(1, 1), -1, 0, 2, 3)
    ),
    "eos must be a whole number of at least 0; got 2.5": (
        lambda: beam_search(print, torch.zeros(1, 1), 1, 2.5, 2, 3)
    ),
    "share must lie between 0 and 1; got 1.5": lambda: masked_words(TEXT, 1.5, 2, 9, chance()),
    "tokens must have axes (b n); got shape (5)": (
        lambda: masked_words(TEXT[0], 0.5, 2, 9, chance())
    ),
    "merge ('x', 'yz') is of pieces that nothing before": lambda: encode_text("a", [("x", "yz")]),
    "merge ('ab', 'c') is of pieces that nothing before": lambda: encode_text(
        "abc", [("ab", "c"), ("a", "b")]
    ),
    "ids are whole numbers from 0 to 255; got [256, -1, 0.5]": (
        lambda: decode_text([97, 256, -1, 0.5], [])
    ),
    "invalid continuation byte at byte 0 of 2; were they cut": lambda: decode_text(
        encode_text("é!", [])[::2], []
    ),
    "temperature must be above 0; got 0. For the likeliest word use argmax": (
        lambda: sample(LOGITS, 0)
    ),
    "top_k must be a whole number of at least 1; got 0": lambda: sample(LOGITS, 1.0, 0),
    "top_k must be a whole number of at least 1; got 2.5": lambda: sample(LOGITS, 1.0, 2.5),
    "at least one word; got shape (2, 0)": lambda: sample(randn(2, 0)),
    "11 of them NaN": lambda: sample(randn(1, WORDS) * float("nan")),
    "top_p must lie above 0 and not above 1; got 90": lambda: sample(LOGITS, 1.0, None, 90),
    "logits must have axes (b vocab); got shape (11)": lambda: sample(LOGITS[0]),
    "width must be a whole number of at least 1; got 0": (
        lambda: beam_search(print, torch.zeros(1, 1), 1, 0, 0, 3)
    ),
    "logits must have axes (r vocab); got shape (2)": (
        lambda: beam_search(lambda t, s: (randn(2), s), torch.zeros(1, 1), 1, 0, 2, 3)
    ),
    "eos must be one of the 5 words; got 7": (
        lambda: beam_search(lambda t, s: (randn(2, 5), s), torch.zeros(1, 1), 1, 7, 2, 3)
    ),
    "state must have a row a sentence; got shape (0, 1)": (
        lambda: beam_search(print, torch.zeros(0, 1), 1, 0, 2, 3)
    ),
    "target holds ids from 0 to 10; known are 0 to 4": (
        lambda: log_probability(randn(2, N, 5), TEXT, PAD)
    ),
    "num_layers must be a whole number of at least 1; got 0": lambda: gpt_parameters(5, 4, 3, 0),
}
BAD_TYPES = {
    "text must be a str; got bytes": lambda: encode_text(b"one", []),
    "words must map each word to how often it occurs; got the word 3, of type int": (
        lambda: byte_pairs({3: 1}, 2)
    ),
    "merges must be a list of pairs of pieces; got NoneType": lambda: encode_text("a", None),
    "merges must be a list of pairs of pieces; got int": lambda: decode_text([97], 3),
    "words must map each word to how often it occurs; got list": lambda: byte_pairs(["one"], 3),
    "step(token, state) must return the pair (logits, state); got NoneType": (
        lambda: beam_search(lambda t, s: None, torch.zeros(1, 1), 1, 0, 2, 3)
    ),
    "step(token, state) must return the pair (logits, state); got tuple of 3": (
        lambda: greedy_decode(lambda t, s: (t, s, s), torch.zeros(1, 1), 1, 0, 3, 1)
    ),
    "state must be a torch.Tensor, a row a sentence": lambda: beam_search(print, [0], 1, 0, 2, 3),
}


@pytest.mark.parametrize(("message", "call"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_values_that_do_not_fit_are_refused_by_name(message, call):
    assert_refused(ValueError, message, call)


def test_nothing_and_one_word_are_enough_where_they_mean_something():
    assert encode_text("", []) == [] and decode_text([], []) == "" and byte_pairs({}, 3) == []
    assert make_gpt()(TEXT[:, :1]).shape == make_bert()(TEXT[:, :1]).shape == (B, 1, WORDS)
    assert sample(LOGITS[:0]).shape == (0,) and sample(LOGITS[:, :1]).tolist() == [0] * len(LOGITS)
    inputs, targets = masked_words(TEXT[:, :0], 0.5, 2, 9, chance())
    assert inputs.shape == targets.shape == (B, 0)


@pytest.mark.parametrize(("message", "call"), BAD_TYPES.items(), ids=BAD_TYPES)
def test_other_types_are_refused_by_name(message, call):
    assert_refused(TypeError, message, call)


# --- What test_contract.py holds every mechanism to ---


def small(make):
    return with_rotation(filled(make(WORDS, **SIZES | {"num_layers": 1})))


ORDERS = all_at_once, half_each_round, left_to_right, by_confidence
CALLS = [
    *(
        call
        for kind, make in ((GPT, make_gpt), (BERT, make_bert))
        for call in (
            Call(kind.forward, lambda make=make: [make(), TEXT], (B, N, WORDS)),
            Call(
                kind.forward,
                lambda kind=kind: [small(kind), TEXT],
                (B, N, WORDS),
                "rotated",
                graph="eager",
            ),
            Call(kind.read, lambda make=make: [make(), TEXT], (B, N, M)),
            Call(
                type(make().layers[0]).forward,
                lambda make=make: [make().layers[0], randn(B, N, M)],
                (B, N, M),
            ),
        )
    ),
    Call(embed, lambda: [make_gpt(), TEXT], (B, N, M)),
    Call(close_gaps, lambda: [TEXT, PAD], (B, N)),
    Call(
        Continuation.forward,
        lambda: [Continuation(make_gpt(), PAD), TEXT, TEXT],
        (B, N, WORDS),
    ),
    Call(masked_words, lambda: [TEXT, 0.5, 2, WORDS, chance()], [(B, N), (B, N)]),
    *(
        Call(fill_in, lambda order=order: [make_bert(), TEXT, 10, order], (B, N), order.__name__)
        for order in ORDERS
    ),
    Call(encode_text, lambda: ["a b", [("a", "b")]], equals=[64, 220, 65]),
    Call(decode_text, lambda: [[64, 220, 65], []], equals="a b"),
    Call(
        sampling_distribution,
        lambda: [LOGITS, 0.5, 3, 0.9],
        LOGITS.shape,
        graph="eager",
    ),
    Call(sample, lambda: [LOGITS], (4,), draws=True),
    Call(sample, lambda: [LOGITS, 0.5, 3, 0.9, chance()], (4,), "the caller's own chance"),
    Call(beam_search, lambda: [writer(0, 5), torch.tensor([[3], [5]]), 1, 0, 3, 4], None),
    Call(
        log_probability,
        lambda: [LOGITS[None], torch.tensor([[3, 1, 0, 4]]), PAD],
        (1,),
        graph="eager",
    ),
    Call(gpt_parameters, lambda: [5, 4, 3, 2], equals=dict),
]

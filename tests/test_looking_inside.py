"""Chapter 12's reference code against closed forms and loops, its properties and bad input."""

import json
import math
import re
from pathlib import Path

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
    make_mask,
    randn,
    steadily,
)
from torch import nn

from attncourse import plots
from attncourse.cross_attention import Transformer
from attncourse.experiments import real_sentences
from attncourse.looking_inside import (
    AttentionLayer,
    AttentionOnly,
    ShuffledAttention,
    ablated,
    attributed,
    copying_score,
    head_outputs,
    induction_score,
    ov_matrix,
    patched,
    previous_token_score,
    rollout,
    shuffled,
    through,
)
from attncourse.multihead import MultiHeadAttention, attention_maps
from attncourse.one_stack import BERT, GPT
from attncourse.positions import BucketAttention
from attncourse.scaled_dot_product import scaled_dot_product_attention

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, H, N, D, WORDS = 2, 3, 7, 4, 11
M = H * D
LAYER = "layers.1.attention"


def make_model(layers=2, **options):
    return filled(AttentionOnly(WORDS, M, H, layers, **options))


def a_text(seed=0, n=N):
    return torch.randint(WORDS, (B, n), generator=torch.Generator().manual_seed(seed))


def weights_like(*shape, seed=0):
    return randn(*shape, seed=seed).softmax(-1)


# --- Who says the word ---


def test_what_the_parts_add_is_the_score_above_the_mean():
    model, text = make_model(), a_text()
    nn.init.normal_(model.norm.bias), nn.init.normal_(model.norm.weight)
    words = a_text(1)
    parts = attributed(model, text, words)
    assert list(parts) == ["word", *(f"{i}.{h}" for i in (0, 1) for h in range(H)), "biases"]
    scores = model(text)
    expected = scores.gather(-1, words[..., None])[..., 0] - scores.mean(-1)
    assert_equal_to(expected, sum(parts.values()), atol=1e-9)


# --- Heads switched off ---


def rows_of(head):
    return slice(head * D, (head + 1) * D)


@pytest.mark.parametrize("head", range(H))
def test_a_head_without_a_voice_is_a_block_of_zeros_in_the_last_projection(head):
    model, text = make_model(), a_text()
    expected = filled(AttentionOnly(WORDS, M, H))
    expected.layers[1].attention.out_proj.weight.data[:, rows_of(head)] = 0
    silent = ablated(model, LAYER, head)
    names = ["embedding.weight", "layers.0.attention.q_proj.weight", "output.weight"]
    both = [dict(each.named_parameters()) for each in (expected, silent)]
    want, got = expected(text), silent(text)
    assert_equal_to(want, got)
    for one, two in zip(
        torch.autograd.grad(want.square().sum(), [both[0][name] for name in names]),
        torch.autograd.grad(got.square().sum(), [both[1][name] for name in names]),
        strict=True,
    ):
        assert_equal_to(one, two, atol=1e-8)


def test_a_head_that_always_says_the_same_is_a_bias():
    model, text, value = make_model(), a_text(), randn(D)
    expected = filled(AttentionOnly(WORDS, M, H))
    out = expected.layers[1].attention.out_proj
    out.bias.data += out.weight[:, rows_of(2)] @ value
    out.weight.data[:, rows_of(2)] = 0
    assert_equal_to(expected(text), ablated(model, LAYER, 2, value)(text))


def test_what_a_head_said_itself_changes_nothing_and_of_others_something():
    model, text = make_model(), a_text()
    own, others = (head_outputs(model, each)[LAYER][:, 1] for each in (text, a_text(1)))
    assert_equal_to(model(text), ablated(model, LAYER, 1, own)(text))
    assert (model(text) - ablated(model, LAYER, 1, others)(text)).abs().max() > 1e-3


def test_the_model_stays_as_it_was_and_heads_can_be_ablated_one_after_the_other():
    model, text = make_model(), a_text()
    before = model(text)
    silent = model
    for head in range(H):
        silent = ablated(silent, LAYER, head)
    assert_equal_to(before, model(text))
    deaf = filled(AttentionOnly(WORDS, M, H))
    deaf.layers[1].attention.out_proj.weight.data.zero_()
    assert_equal_to(deaf(text), silent(text))
    assert set(attention_maps(silent, text)) == {"layers.0.attention", LAYER}


MODELS = {
    "Transformer": (lambda: Transformer(9, 9, M, H, 5), 2, "decoder.1.cross_attention"),
    "GPT": (lambda: GPT(9, M, H, 5, 2), 1, "layers.0.self_attention"),
    "BERT": (lambda: BERT(9, M, H, 5, 2), 1, "layers.1.self_attention"),
}


@pytest.mark.parametrize("make, inputs, layer", MODELS.values(), ids=MODELS)
def test_heads_of_any_model_of_the_book_can_be_ablated_and_shown(make, inputs, layer):
    model, text = filled(make()), torch.randint(3, 9, (2, 5))
    before = model(*[text] * inputs)
    assert (before - ablated(model, layer, 1)(*[text] * inputs)).abs().max() > 1e-6
    maps = attention_maps(model, *[text] * inputs)
    words = list("abcde")
    view = plots.head_view({name: w[0] for name, w in maps.items()}, words)
    html = view._repr_html_()
    assert html.count("name='choice-0'") == len(maps) * H
    assert "http" not in html.replace("http://www.w3.org", "") and "src=" not in html


# --- One place patched ---


def test_the_clean_text_itself_and_the_same_texts_give_what_the_model_gives():
    model, clean, corrupted = make_model(), a_text(), a_text(1)
    place = "layers.0.attention", 1, 3
    assert_equal_to(model(clean), patched(model, clean, clean, place))
    out = model(corrupted)
    there = patched(model, clean, corrupted, place)
    assert_equal_to(out[:, :3], there[:, :3])  # what comes before the place cannot know
    assert (out[:, 3:] - there[:, 3:]).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("layer", ["layers.0.attention", LAYER])
def test_a_patched_head_is_one_that_says_something_else_in_one_place(layer):
    model, clean, corrupted = make_model(), a_text(), a_text(1)
    said = {text: head_outputs(model, text)[layer] for text in (clean, corrupted)}
    for position in (0, 4, -1):
        value = said[corrupted][:, 2].clone()
        value[:, position] = said[clean][:, 2, position]
        expected = ablated(model, layer, 2, value)(corrupted)
        assert_equal_to(expected, patched(model, clean, corrupted, (layer, 2, position)))


def test_all_heads_of_the_last_layer_at_the_last_place_and_the_word_itself_bring_all_back():
    model, clean = make_model(layers=1), a_text()
    corrupted = clean.clone()
    corrupted[:, :-1] = a_text(1)[:, :-1]  # the last word is the same, so is its own vector
    both = [head_outputs(model, text)["layers.0.attention"] for text in (clean, corrupted)]
    for head in range(H):
        both[1][:, head, -1] = both[0][:, head, -1]
    brought = model
    for head in range(H):
        brought = ablated(brought, "layers.0.attention", head, both[1][:, head])
    assert_equal_to(model(clean)[:, -1], brought(corrupted)[:, -1])


# --- Paths ---


def test_a_path_that_is_not_cut_is_the_model():
    model, text = make_model(), a_text()
    silent = ablated(model, "layers.0.attention", 1)
    assert_equal_to(model(text), through(model, text, silent, ""))
    assert_equal_to(model(text), through(model, text, model))
    for part in "qkv":
        assert (model(text) - through(model, text, silent, part)).abs().max() > 1e-4


@pytest.mark.parametrize("part", "qkv")
def test_a_part_that_reads_nothing_loses_nothing_by_its_path(part):
    model, text = make_model(), a_text()
    getattr(model.layers[1].attention, f"{part}_proj").weight.data.zero_()
    silent = ablated(model, "layers.0.attention", 1)
    assert_equal_to(model(text), through(model, text, silent, part))


# --- Scores ---


@steadily
@given(st.integers(2, 9), st.data(), st.integers(0, 9))
def test_scores_are_means_over_the_words_that_count(n, data, seed):
    period = data.draw(st.integers(1, n - 1))
    weights = weights_like(2, n, n, seed=seed)
    for head, table in enumerate(weights):
        expected = sum(table[i, i - period + 1] for i in range(period, n)) / (n - period)
        assert_equal_to(expected, induction_score(weights, period)[head])
        expected = sum(table[i, i - 1] for i in range(1, n)) / (n - 1)
        assert_equal_to(expected, previous_token_score(weights)[head])
        assert 0 <= induction_score(weights, period)[head] <= 1


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.2, 2.0, math.pi])
def test_copying_of_a_rotation_is_the_cosine_of_its_angle(angle):
    sine, cosine = math.sin(angle), math.cos(angle)
    turn = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
    basis = torch.linalg.qr(randn(5, 2)).Q
    score = copying_score(3 * turn, basis, basis.T)
    assert type(score) is float and score == pytest.approx(math.cos(angle), abs=1e-9)


def test_copying_is_that_of_the_whole_table_of_words():
    W_OV, W_E, W_U = randn(M, M), randn(WORDS + 5, M, seed=1), randn(M, WORDS + 5, seed=2)
    table = torch.linalg.eigvals(W_E @ W_OV @ W_U)
    expected = (table.real.sum() / table.abs().sum()).item()
    assert copying_score(W_OV, W_E, W_U) == pytest.approx(expected, abs=1e-6)


def test_the_ov_matrix_is_what_a_head_hands_on():
    attention, x = filled(MultiHeadAttention(M, H)), randn(B, 1, M)
    attention.v_proj.bias.data.zero_()
    attention.out_proj.bias.data.zero_()
    parts = [x @ ov_matrix(attention, head) for head in range(H)]  # one word: all weights are 1
    assert_equal_to(attention(x, x, x)[0], sum(parts))
    assert torch.linalg.matrix_rank(ov_matrix(attention, 0)) == D


# --- Rollout ---


def test_rollout_counts_all_paths():
    layers = [weights_like(B, H, 4, 4, seed=seed).requires_grad_() for seed in range(3)]
    expected = torch.zeros(B, 4, 4).double()
    steps = [(layer.mean(1) + torch.eye(4)) / 2 for layer in layers]
    for q in range(4):
        for i in range(4):
            for j in range(4):
                for k in range(4):
                    path = steps[2][:, q, i] * steps[1][:, i, j] * steps[0][:, j, k]
                    expected = expected + path[:, None, None] * _unit(q, k)
    assert_all_agree([expected], [rollout(layers)], layers)


def _unit(q, k):
    table = torch.zeros(4, 4).double()
    table[q, k] = 1
    return table


@steadily
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(0, 9))
def test_what_arrives_is_shared_and_never_comes_from_later_words(layers, h, n, seed):
    maps = [weights_like(1, h, n, n, seed=seed + i).tril() for i in range(layers)]
    maps = [w / w.sum(-1, keepdim=True) for w in maps]
    arrived = rollout(maps)
    assert_equal_to(torch.ones(1, n).double(), arrived.sum(-1))
    assert (arrived >= 0).all() and (arrived.triu(1) == 0).all()
    assert_equal_to(arrived, rollout([w.flip(1) for w in maps]))


# --- Weights put on other keys ---


@steadily
@given(st.integers(1, 7), st.integers(0, 99))
def test_shuffled_weights_are_the_same_numbers_on_keys_that_may_be_seen(n, seed):
    qkv = [randn(2, 3, n, 4, seed=seed + i) for i in range(3)]
    mask = make_mask(2, 1, n, n, seed=seed) if n > 2 else None
    _, before = scaled_dot_product_attention(*qkv, mask)
    rng = torch.Generator().manual_seed(seed)
    output, after = ShuffledAttention(scaled_dot_product_attention, rng)(*qkv, mask)
    assert_equal_to(before.sort(-1).values, after.sort(-1).values)
    assert_equal_to(after @ qkv[2], output)
    if mask is not None:
        assert (after[~mask.expand_as(after)] == 0).all()


def test_even_weights_can_be_shuffled_and_others_not():
    model, text = make_model(), a_text()
    rng = torch.Generator().manual_seed(0)
    other = shuffled(model, LAYER, rng)(text)
    assert (other - model(text)).abs().max() > 1e-3
    model.layers[1].attention.q_proj.weight.data.zero_()
    model.layers[1].attention.q_proj.bias.data.zero_()
    assert_equal_to(model(text), shuffled(model, LAYER, rng)(text))


# --- Precise, compiled, pure, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_and_device_is_kept(dtype, device):
    weights = [weights_like(1, 2, 5, 5, seed=i).to(device, dtype) for i in (0, 1)]
    for found in (rollout(weights), induction_score(weights[0], 2)):
        assert found.dtype == dtype and found.device.type == device and found.isfinite().all()


# --- Bad input ---


def test_unknown_heads_layers_and_places_are_refused():
    model, text = make_model(), a_text()
    words = "the model's attentions are layers.0.attention, layers.1.attention; none is named 'x'"
    assert_refused(ValueError, words, ablated, model=model, layer="x", head=0)
    words = "layers.1.attention has heads 0 to 2; got head=3"
    assert_refused(ValueError, words, ablated, model=model, layer=LAYER, head=3)
    words = "value must be a number; got str"
    assert_refused(TypeError, words, ablated, model=model, layer=LAYER, head=0, value="x")
    words = "value must broadcast to (b q d) = (2 7 4); got shape (5)"
    assert_refused(ValueError, words, ablated(model, LAYER, 0, randn(5)), text=text)
    words = "the texts have positions 0 to 6; got position=7"
    given = {"model": model, "clean": text, "corrupted": text}
    assert_refused(ValueError, words, patched, **given, place=(LAYER, 0, 7))
    words = "the texts have positions 0 to 6; got position='x'"
    assert_refused(ValueError, words, patched, **given, place=(LAYER, 0, "x"))
    words = "place must be (attention's name, head, position); got ('layers.1.attention', 0)"
    assert_refused(TypeError, words, patched, **given, place=(LAYER, 0))
    words = "corrupted (2 6) has axes (b n), so n = 6; but clean has n = 7"
    given["corrupted"] = a_text(n=6)
    assert_refused(ValueError, words, patched, **given, place=(LAYER, 0, 1))


@pytest.mark.parametrize("head", [5, -1, True])
def test_a_matrix_of_a_head_that_does_not_exist_is_refused(head):
    attention, words = MultiHeadAttention(8, 2), f"the attention has heads 0 to 1; got head={head}"
    assert_refused(ValueError, words, ov_matrix, attention=attention, head=head)


def test_models_and_parts_that_no_path_leads_through_are_refused():
    model, text = make_model(layers=3), a_text()
    words = "the model must have two layers; it has 3"
    assert_refused(ValueError, words, through, model=model, text=text, without=model)
    model = make_model()
    words = "parts may be q, k and v; got o"
    assert_refused(ValueError, words, through, model=model, text=text, without=model, parts="ko")


BAD_SCORES = {
    "weights must be (… n n), a row and a column for each position; got shape (3 4)": (
        lambda: induction_score(randn(3, 4), 1)
    ),
    "period must be a whole number from 1 to n - 1 = 3, or nothing is repeated; got 4": (
        lambda: induction_score(randn(4, 4), 4)
    ),
    "for each position, n >= 2; got shape (1 1)": lambda: previous_token_score(randn(1, 1)),
    "weights[1] must have axes (b h n n); got shape (4 4)": (
        lambda: rollout([randn(1, 1, 4, 4), randn(4, 4)])
    ),
    "layers must read the same texts: weights[1] has shape (1 1 5 5), weights[0] (1 1 4 4)": (
        lambda: rollout([randn(1, 1, 4, 4), randn(1, 1, 5, 5)])
    ),
    "every eigenvalue is 0: this head hands on nothing": (
        lambda: copying_score(torch.zeros(2, 2), torch.ones(3, 2), torch.ones(2, 3))
    ),
    "W_U (4 5) has axes (m vocab), so m = 4; but W_OV has m = 3": (
        lambda: copying_score(randn(3, 3), randn(5, 3), randn(4, 5))
    ),
}


@pytest.mark.parametrize("words", BAD_SCORES)
def test_weights_that_fit_nothing_are_refused(words):
    assert_refused(ValueError, words, BAD_SCORES[words])


@pytest.mark.parametrize("weights", [[], torch.ones(1, 1, 2, 2)], ids=["nothing", "a tensor"])
def test_layers_that_are_no_list_are_refused(weights):
    words = "weights must be a list of (b h n n), one a layer, the first layer first; got"
    assert_refused(TypeError, words, rollout, weights=weights)


# --- The page's cell for GPT-2, which the book does not run ---


@pytest.mark.slow
def test_the_cell_for_gpt2_names_the_heads_that_look_back(monkeypatch, capsys):
    transformers = pytest.importorskip("transformers")
    page = (Path(__file__).parent.parent / "book" / "12_looking_inside.md").read_text("utf-8")
    (cell,) = re.findall(r"^:tags: \[skip-execution\]\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    places = 101  # a mark and twice 50 words
    config = transformers.GPT2Config(
        n_embd=places, n_layer=3, n_head=1, n_positions=places, attn_implementation="eager"
    )
    gpt2 = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():  # a word is its place, and asks for the one so many places back
        gpt2.transformer.wte.weight.zero_()
        gpt2.transformer.wpe.weight.copy_(torch.eye(places))
        for layer, back in zip(gpt2.transformer.h, (1, 49, 50), strict=True):
            shift = torch.eye(places).roll(-back, 1)
            layer.attn.c_attn.weight.copy_(torch.cat([shift, *[torch.eye(places)] * 2], 1))
            for part in (layer.attn.c_proj, layer.mlp.c_proj):  # and stays that
                part.weight.zero_()
    asked = []
    monkeypatch.setattr(
        transformers.GPT2LMHeadModel,
        "from_pretrained",
        lambda name, **options: asked.append((name, options)) or gpt2,
    )
    exec(cell, {})
    assert asked == [("gpt2", {"attn_implementation": "eager"})]
    found = re.findall(
        r"^(\d)\.0: induction (\S+), previous word (\S+)$", capsys.readouterr().out, re.M
    )
    assert [layer for layer, *_ in found] == ["0", "1"]
    assert float(found[0][2]) > 0.95 > 0.05 > float(found[0][1])
    assert float(found[1][1]) > 0.95 > 0.05 > float(found[1][2])


# --- What test_contract.py holds every mechanism to ---


def buckets():
    return make_model(attend=lambda: BucketAttention(H, 8, 9, False).double())


def silent():
    return ablated(buckets(), LAYER, 0, 0.0)


WEIGHTS = [weights_like(B, H, N, N, seed=i) for i in (0, 1)]
CALLS = [
    Call(AttentionOnly.embed, lambda: [make_model(), a_text()], (B, N, M)),
    Call(AttentionOnly.forward, lambda: [buckets(), a_text()], (B, N, WORDS)),
    Call(AttentionLayer.forward, lambda: [make_model().layers[0], randn(B, N, M)], (B, N, M)),
    Call(head_outputs, lambda: [make_model(), a_text()], [(B, H, N, D)] * 2),
    Call(ablated, lambda: [make_model(), LAYER, 0, 0.0], equals=AttentionOnly),
    Call(attributed, lambda: [make_model(), a_text(), a_text(1)], equals=dict),
    Call(
        patched,
        lambda: [buckets(), a_text(), a_text(1), (LAYER, 0, -1)],
        (B, N, WORDS),
    ),
    *(
        Call(
            through,
            lambda parts=parts: [
                make_model(),
                a_text(),
                ablated(make_model(), "layers.0.attention", 1),
                parts,
            ],
            (B, N, WORDS),
            parts,
            graph="eager",
        )
        for parts in ("q", "kv")
    ),
    Call(through, lambda: [buckets(), a_text(), silent(), "k"], (B, N, WORDS), "buckets"),
    Call(previous_token_score, lambda: [WEIGHTS[0]], (B, H)),
    Call(induction_score, lambda: [WEIGHTS[0], 3], (B, H), graph="eager"),
    Call(ov_matrix, lambda: [make_model().layers[0].attention, 1], (M, M)),
    Call(
        copying_score,
        lambda: [randn(M, M), randn(WORDS, M, seed=1), randn(M, WORDS, seed=2)],
        equals=float,
    ),
    Call(rollout, lambda: [WEIGHTS], (B, N, N), graph="eager"),
    Call(
        shuffled,
        lambda: [make_model(), LAYER, torch.Generator().manual_seed(0)],
        equals=AttentionOnly,
    ),
]


# --- a language model of others ------------------------------------------------------------------


@pytest.fixture
def small_language_model():
    """GPT-2's architecture, made here, with weights drawn at random; and a word for each id."""
    transformers = pytest.importorskip("transformers")
    words = sorted({word for each in real_sentences.SENTENCES for word in each.split()})

    class Words:
        def __call__(self, sentence):
            return {"input_ids": [words.index(word) for word in sentence.split()]}

        def decode(self, ids):
            return " ".join(words[each] for each in ids)

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": len(words)}
    config = transformers.GPT2Config(**sizes, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config).eval(), Words()


def test_what_a_language_model_looked_at_is_stored_with_a_receipt(small_language_model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"-m attncourse\.experiments\.real"):
        real_sentences.load(tmp_path)
    model, tokenizer = small_language_model
    real_sentences.measure(tmp_path, model, tokenizer)
    path = tmp_path / "real_sentences.json"
    receipt = json.loads(path.read_text("utf-8"))["receipt"]
    assert receipt["sha256"] == real_sentences.fingerprint(model)
    assert receipt["versions"].keys() == {"torch", "transformers"}
    found = real_sentences.load(tmp_path)
    assert [*found] == [*real_sentences.SENTENCES]
    for sentence, (words, maps) in found.items():
        assert words == sentence.split() and len(maps) == 2
        ids = torch.tensor([tokenizer(sentence)["input_ids"]])
        with torch.no_grad():
            expected = model(ids, output_attentions=True).attentions
        for got, layer in zip(maps.values(), expected, strict=True):
            assert (got - layer[0]).abs().max() <= 0.5 / 255 + 1e-6
        assert "<svg" in plots.head_view(maps, words, label=sentence)._repr_html_()
    with torch.no_grad():
        model.transformer.wte.weight[0, 0] += 1
    assert receipt["sha256"] != real_sentences.fingerprint(model)

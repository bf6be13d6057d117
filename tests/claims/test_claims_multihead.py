"""Sentences of chapter 5 that a sceptic would doubt, each tried by code."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from einops import einsum
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attncourse import pretrained
from attncourse.cross_attention import translate
from attncourse.masking import causal_mask, dependency_map
from attncourse.multihead import MultiHeadAttention, merge_heads, split_heads
from attncourse.number_words import BOS, EOS, PAD, corpus, words
from attncourse.scaled_dot_product import scaled_dot_product_attention


@pytest.fixture(scope="module")
def translator():
    return pretrained.load("transformer")


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def silence(model, attention, heads):
    silenced = copy.deepcopy(model)
    weight = silenced.get_submodule(attention).out_proj.weight.data
    weight.view(64, 4, 16)[:, heads] = 0
    return silenced


def projected(layer, x, split):
    return [split(project(x)) for project in (layer.q_proj, layer.k_proj, layer.v_proj)]


# --- one row -------------------------------------------------------------------------------------


def test_two_shares_of_one_row_sum_to_one():
    """The two shares sum to one at every p. (For any code of the words, not one-hot only.)"""
    torch.manual_seed(0)
    code = torch.randn(9, 20, dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    first, last = code[pairs[:, 0]], code[pairs[:, 1]]
    for p in (0.1, 0.5, 0.8):
        blend = p * first + (1 - p) * last
        blend = blend - blend.mean(0)
        shares = 0.0
        for digit in (first, last):
            wanted = digit - digit.mean(0)
            guess = blend @ torch.linalg.lstsq(blend, wanted, driver="gelsd").solution
            shares += guess.square().sum() / wanted.square().sum()
        assert shares == pytest.approx(1)


def test_an_unequal_blend_can_be_sorted_by_size_and_an_equal_one_cannot():
    """A later layer that is not linear can sort an unequal blend by size."""
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    first, last = F.one_hot(pairs.T, 9).double()
    unequal = 0.7 * first + 0.3 * last
    is_first = (unequal > 0.5).int()
    is_last = ((unequal - 0.7 * is_first) > 0.2).int()
    assert (is_first == first).all() and (is_last == last).all()
    equal = 0.5 * first + 0.5 * last
    assert len(equal.unique(dim=0)) == 45  # 81 sentences


# --- the layer -----------------------------------------------------------------------------------


def test_a_head_is_silenced_by_zeros_in_its_part_of_the_output_projection():
    """Set W_i^O to zero, and its addend is gone, all others untouched."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 3).double(), torch.randn(2, 5, 12).double()
    heads, _ = scaled_dot_product_attention(*projected(layer, x, lambda y: split_heads(y, 3)))
    blocks = layer.out_proj.weight.view(12, 3, 4)  # m h d
    addends = einsum(heads, blocks, "b h n d, m h d -> h b n m")
    expected = addends[0] + addends[2] + layer.out_proj.bias
    layer.out_proj.weight.data[:, 4:8] = 0
    torch.testing.assert_close(layer(x, x, x)[0], expected)


def test_exchanged_heads_give_the_same_output():
    """You exchange heads 1 and 2 ... Does the output change? No."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2).double(), torch.randn(1, 5, 8).double()
    swapped, order = copy.deepcopy(layer), [4, 5, 6, 7, 0, 1, 2, 3]
    for projection in (swapped.q_proj, swapped.k_proj, swapped.v_proj):
        projection.weight.data = projection.weight.data[order]
        projection.bias.data = projection.bias.data[order]
    swapped.out_proj.weight.data = swapped.out_proj.weight.data[:, order]
    torch.testing.assert_close(swapped(x, x, x)[0], layer(x, x, x)[0])


@pytest.mark.parametrize("h", [1, 2, 8, 16])
def test_matrix_products_cost_the_same_for_every_number_of_heads(h):
    """Parameters and operations of the matrix products do not depend on h."""
    m, n = 64, 50
    layer, x = MultiHeadAttention(m, h), torch.randn(1, n, m)
    with FlopCounterMode(display=False) as counter:
        _, weights = layer(x, x, x)
    assert counter.get_total_flops() == 8 * n * m**2 + 4 * n**2 * m
    assert sum(p.numel() for p in layer.parameters()) == 4 * m**2 + 4 * m
    assert weights.numel() == h * n**2


def test_a_head_narrower_than_the_sentence_cannot_produce_every_table_of_weights():
    """A head narrower than the sentence is long cannot produce every table of weights."""
    torch.manual_seed(0)
    n, d = 5, 1
    # A word that mostly reads itself: the scores s - c of such a table have rank n - 1 at least.
    target = torch.full((n, n), 0.01).fill_diagonal_(0.96)
    scores = target.log()
    scores = scores - scores.mean(-1, keepdim=True)  # a constant in a row is free
    assert torch.linalg.matrix_rank(scores) == n - 1 > d + 1  # d + 1 with that constant


@pytest.mark.parametrize(("split", "merge"), [("right", "wrong"), ("wrong", "right")])
def test_one_wrong_reshape_leaks_the_future(split, merge):
    """One of the two wrong leaks: outputs depend on words that the mask hides."""
    assert seen_by(split, merge, h=2).triu(1).any()


@pytest.mark.parametrize("h", [2, 4])
def test_two_wrong_reshapes_hide_most_of_the_sentence(h):
    """Nothing leaks ... With h heads the last word sees 1/h of the sentence."""
    assert not seen_by("wrong", "wrong", h).triu(1).any()
    assert seen_by("wrong", "wrong", h)[-1].sum() == 8 // h
    assert seen_by("right", "right", h)[-1].sum() == 8


def seen_by(split, merge, h, n=8, d=4):
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(h * d, h), torch.randn(1, n, h * d)
    splits = {"right": lambda y: split_heads(y, h), "wrong": lambda y: y.reshape(1, h, n, d)}
    merges = {"right": merge_heads, "wrong": lambda y: y.reshape(1, n, h * d)}

    def attention(x):
        heads, _ = scaled_dot_product_attention(*projected(layer, x, splits[split]), causal_mask(n))
        return layer.out_proj(merges[merge](heads))

    return dependency_map(attention, x)


def test_view_after_a_swap_of_axes_raises():
    """A view right after a swap of axes raises an error."""
    with pytest.raises(RuntimeError, match="view size"):
        torch.randn(1, 2, 5, 4).transpose(1, 2).view(1, 5, 8)


def test_by_default_pytorch_returns_the_mean_of_the_heads():
    """By default PyTorch returns the mean of the heads' weights."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 5, 8)
    mean, each = layer(x, x, x)[1], layer(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(mean, each.mean(1))


# --- the trained translator ----------------------------------------------------------------------


def test_value_maps_of_the_translator_have_the_rank_of_a_head(translator):
    """A head 16 numbers wide passes on 16 directions of 64."""
    for module in translator[0].modules():
        if isinstance(module, MultiHeadAttention):
            down = module.v_proj.weight.view(4, 16, 64).double()  # h d m
            up = module.out_proj.weight.view(64, 4, 16).double()  # o h d
            maps = einsum(down, up, "h d m, o h d -> h m o")
            assert (torch.linalg.matrix_rank(maps) == 16).all()


@pytest.mark.slow
def test_without_its_first_head_the_translator_reads_94_as_84(translator):
    """Without head 1, which read ninety, the translator writes 284."""
    model, english, french = translator
    chance = random.Random(1)  # not the page's numbers
    numbers = [294, *(chance.randrange(10**5) * 100 + 94 for _ in range(20))]
    sources = padded([english.encode(words(number, "en")) for number in numbers])
    for silent, last in ((None, "quatorze"), (0, "quatre"), (1, "quatorze")):
        changed = model if silent is None else silence(model, "decoder.0.cross_attention", [silent])
        with torch.no_grad():
            names = translate(changed, sources, BOS, EOS, 30)
        assert {french.decode(name)[-1] for name in names} == {last}


def test_one_pass_decides_whether_a_translation_is_right(translator):
    """A translation is right to the end exactly if each next word is right, given those before."""
    model, english, french = translator
    model = silence(model, "decoder.0.cross_attention", [0])  # about half right
    chance = random.Random(2)
    numbers = [chance.randrange(10**6) for _ in range(40)]
    sources = padded([english.encode(words(number, "en")) for number in numbers])
    names = [words(number, "fr") for number in numbers]
    wanted = padded([[*french.encode(name), EOS] for name in names])
    with torch.no_grad():
        guesses = model(sources, F.pad(wanted[:, :-1], (1, 0), value=BOS)).argmax(-1)
        written = translate(model, sources, BOS, EOS, 30)
    in_one_pass = ((guesses == wanted) | (wanted == PAD)).all(-1).tolist()
    word_by_word = [french.decode(row) == name for row, name in zip(written, names, strict=True)]
    assert in_one_pass == word_by_word
    assert 0 < sum(word_by_word) < len(numbers)


@pytest.mark.slow
def test_the_numbers_of_the_pruning_were_not_in_the_training(monkeypatch):
    """200 new numbers below a billion, none of which occurred in training."""
    chance = random.Random(5)
    numbers = {chance.randrange(10**9) for _ in range(200)}
    # Which numbers are drawn does not depend on their names, and names take seconds.
    monkeypatch.setattr("attncourse.number_words.words", lambda number, language: ["one"])
    trained = set(corpus.__wrapped__().train.numbers)
    assert len(trained) > 10_000 and not numbers & trained

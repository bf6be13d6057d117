"""Statements of chapter 4 that a skeptic would doubt, each checked by code."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attncourse import pretrained
from attncourse.bottleneck import rnn_step
from attncourse.cross_attention import translate
from attncourse.masking import causal_mask, dependency_map
from attncourse.number_words import BOS, EOS, words
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.self_attention import self_attention, sinusoidal_positions
from attncourse.training import as_source

PAGE = Path(__file__).parents[2] / "book" / "04_self_attention.md"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def sentence_is_still_on_the_page(request):
    told = " ".join(PAGE.read_text(encoding="utf-8").split())
    quotes = re.findall('"([^"]+)"', request.function.__doc__)
    assert quotes and all(" ".join(quote.split()) in told for quote in quotes)


@pytest.fixture(scope="module")
def translator():
    return pretrained.load("transformer")


@torch.no_grad()
def translate_from(translator, start, number):
    """Translate with the first word at position `start`, or without positions (None)."""
    model, english, french = translator

    def scores(source, target):
        x = model.source_embedding(source) * math.sqrt(64)
        if start is not None:
            x = x + sinusoidal_positions(start + x.shape[1], 64)[start:]
        for layer in model.encoder:
            x = layer(x)
        mask = torch.ones(1, 1, x.shape[1], dtype=torch.bool)
        return model.decode(target, model.encoder_norm(x), mask)

    source = as_source(words(number, "en"), english)
    return french.decode(translate(scores, source, BOS, EOS, 30)[0])


@pytest.mark.parametrize(("a", "b"), [(701, 107), (7001, 1007), (1203, 3201)])
def test_without_positions_a_bag_of_words_has_one_translation(translator, a, b):
    """ "greedy decoding writes one translation per bag" """
    assert translate_from(translator, 0, a) == words(a, "fr")
    assert translate_from(translator, 0, b) == words(b, "fr")
    assert translate_from(translator, None, a) == translate_from(translator, None, b)


@pytest.mark.slow
def test_the_translator_fails_at_positions_it_was_trained_on(translator):
    """ "it has met the vectors of all these positions in sentences of up to" """
    numbers = [n for n in range(100_000, 1_000_000, 9_973) if len(words(n, "en")) == 8][:8]
    assert max(pretrained.curves()["counts"]) >= 3 + 8
    for start, low, high in ((0, 0.75, 1), (3, 0, 0.25)):
        right = [translate_from(translator, start, n) == words(n, "fr") for n in numbers]
        assert low <= sum(right) / len(right) <= high


def test_one_fast_hand_is_back_after_710_positions():
    """ "tells neighbors apart, but comes around every" """
    angle = torch.arange(1000).double()
    distance = torch.stack([angle.sin(), angle.cos() - 1], -1).norm(dim=-1)
    assert 1 + distance[1:].argmin().item() == 710
    assert distance[710] < 1e-4


def test_attention_alone_costs_what_a_recurrence_costs_exactly_where_n_is_d():
    """ "$4 n^2 d = 4 n d^2$ exactly where $n = d$" and "Attention *with* projections
    costs as much as a GRU where $n = 1.5\\,d$." """
    d = 8
    W, W_gru = torch.randn(d, d), torch.randn(3 * d, d)

    def operations(layer, n):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(torch.randn(1, n, d))
        return counter.get_total_flops()

    def recurrence(x):
        h = torch.zeros(1, d)
        for word in x.unbind(1):
            h = rnn_step(word, h, W, W, torch.zeros(d))

    def gru(x):
        for word in x.unbind(1):
            word @ W_gru.T, word @ W_gru.T  # what a step multiplies: the input and the state

    attention = lambda x: scaled_dot_product_attention(x, x, x)  # noqa: E731
    projected = lambda x: self_attention(x, W, W, W)  # noqa: E731
    for n in (d - 1, d, d + 1):
        one, other = operations(attention, n), operations(recurrence, n)
        assert (one > other) - (one < other) == (n > d) - (n < d)
    assert operations(projected, 12) == operations(gru, 12)
    assert operations(nn.GRU(d, d, batch_first=True), 12) == operations(gru, 12)


def test_a_convolution_needs_many_layers_where_attention_needs_one():
    """ "$O(n / r)$, or $O(\\log_r n)$ if dilated" """
    x, taps = torch.randn(1, 14, 4), torch.tensor([1.0, 0.1, 0.1])  # r = 3

    def layers_until_the_last_hears_the_first(dilations):
        stack = nn.Sequential()
        for dilation in dilations:
            conv = nn.Conv1d(4, 4, 3, padding=dilation, dilation=dilation, bias=False)
            conv.weight.data = torch.eye(4)[:, :, None] * taps
            stack.append(conv)
            depends = dependency_map(lambda x, stack=stack: stack(x.mT).mT, x)
            if depends[-1, 0]:
                return len(stack)

    assert layers_until_the_last_hears_the_first([1] * 20) == 13  # (n − 1) / ((r − 1) / 2)
    assert layers_until_the_last_hears_the_first([1, 3, 9]) == 3
    W = torch.eye(4) / 2
    assert dependency_map(lambda x: self_attention(x, W, W, W)[0], x).all()


def test_under_a_causal_mask_only_one_layer_leaves_the_last_word_a_bag():
    """ "Still, in one layer the *last* word sees a bag of all words before it. From the second
    layer on, the last word's output depends on the order, too"
    """
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    order = [3, 0, 4, 1, 2, 5]  # the last word stays

    def layer(x):
        return x + scaled_dot_product_attention(x, x, x, causal_mask(6))[0]

    def change(f):
        return (f(x)[:, -1] - f(x[:, order])[:, -1]).abs().max()

    assert change(layer) < 1e-12
    assert change(lambda x: layer(layer(x))) > 1e-3


def test_sines_first_is_no_mistake_and_a_speed_for_each_feature_is():
    """ "Dot products do not change" and "no rotation moves them on, and the dot product no longer
    depends on the distance alone."
    """
    PE = sinusoidal_positions(50, 16).double()
    halves = torch.cat([PE[:, ::2], PE[:, 1::2]], dim=-1)
    assert torch.allclose(PE @ PE.T, halves @ halves.T, atol=1e-12)
    angle = torch.arange(50).double()[:, None] * 10_000 ** (-torch.arange(16).double() / 16)
    each = torch.where(torch.arange(16) % 2 == 0, angle.sin(), angle.cos())
    assert (each @ each.T).diagonal(5).std() > 0.1 > 1e-5 > (PE @ PE.T).diagonal(5).std()


def test_writing_cosines_into_every_second_column_fails_for_odd_widths():
    """ "Code that writes the cosines into every second column has no room for the last cosine and
    stops with an error"
    """

    def usual(length, width):
        angle = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        table = torch.zeros(length, width)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()
        return table

    assert torch.allclose(usual(9, 6), sinusoidal_positions(9, 6), atol=1e-6)
    with pytest.raises(RuntimeError):
        usual(9, 5)
    assert sinusoidal_positions(9, 5).shape == (9, 5)


def test_with_tokens_in_columns_the_formula_for_rows_compares_features():
    """ "With tokens in columns, $Q K^\\top$ is `(d d)`" and "With the lower left masked, every word
    would be barred from its past and free to read its future."
    """
    n, m, d = 5, 7, 3
    E, W_query, W_key = torch.randn(m, n), torch.randn(d, m), torch.randn(d, m)
    Q, K = W_query @ E, W_key @ E
    assert (Q @ K.T).shape == (d, d) and (K.T @ Q).shape == (n, n)
    x = torch.randn(1, n, m) / 2
    lower_left_hidden = causal_mask(n).T
    depends = dependency_map(
        lambda x: scaled_dot_product_attention(x, x, x, lower_left_hidden)[0], x
    )
    assert torch.equal(depends, torch.ones(n, n).triu().bool())


def test_the_cloud_of_words_shrinks_while_a_pair_may_move_apart():
    """ "An average lies between the points it is made of. So from layer to layer the whole cloud of
    words shrinks."
    """
    x = 2 * torch.randn(300, 5, 2, dtype=torch.float64)  # b n m
    y, _ = scaled_dot_product_attention(x, x, x)
    angles = torch.linspace(0, 2 * math.pi, 60, dtype=torch.float64)
    along = torch.stack([angles.cos(), angles.sin()])  # m directions
    widths = [(each @ along).amax(1) - (each @ along).amin(1) for each in (x, y)]
    assert (widths[1] < widths[0]).all()
    before, after = (torch.cdist(each, each) for each in (x, y))
    assert (after > 1.05 * before).any(), "the claim is about the cloud, not about each pair"


def test_the_sum_of_a_softmax_does_not_depend_on_the_order_of_its_row():
    """ "the sum in the denominator of each softmax does not depend on the order of a row: the
    entries only move"
    """
    row, order = torch.randn(7, dtype=torch.float64), torch.randperm(7)
    torch.testing.assert_close(row[order].exp().sum(), row.exp().sum())
    torch.testing.assert_close(row[order].softmax(0), row.softmax(0)[order])
    assert not torch.allclose(row[order].softmax(0), row.softmax(0))

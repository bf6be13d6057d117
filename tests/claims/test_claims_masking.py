"""Statements of chapter 6 that a skeptic would doubt, each checked by code."""

import math

import pytest
import torch
from torch import nn

from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.masking import causal_mask, dependency_map, masked_softmax, padding_mask
from attncourse.multihead import MultiHeadAttention


@pytest.mark.slow
def test_a_network_that_may_look_ahead_learns_to_copy():
    """ "learned to *read off* the answer […] it does worse than guessing": here, a plain copy."""
    # Random words: nothing can be learned about the next one except by looking at it.
    words, width, bos, pad = 8, 32, 0, 9
    torch.manual_seed(0)
    embedding, place = nn.Embedding(words, width), nn.Embedding(6, width)
    attention, out = MultiHeadAttention(width, 2), nn.Linear(width, words)
    parts = nn.ModuleList([embedding, place, attention, out])
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-2)

    def predict(inputs):
        x = embedding(inputs) + place.weight[: inputs.shape[1]]
        return out(x + attention(x, x, x)[0])

    for _ in range(300):
        target = torch.randint(1, words, (64, 6))
        loss = sequence_loss(predict(teacher_inputs(target, bos)), target, pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guess = math.log(words - 1)
    inputs = teacher_inputs(target, bos)
    # The last word has no place to its right, so only the first five can be copied.
    copied = sequence_loss(predict(inputs)[:, :5], target[:, :5], pad)
    written = [predict(inputs[:, : t + 1])[:, -1] for t in range(5)]
    honest = sequence_loss(torch.stack(written, 1), target[:, :5], pad)
    assert copied < 0.2 * guess and honest > 1.2 * guess


def test_one_pass_with_the_mask_is_as_good_as_one_pass_for_each_beginning():
    """ "The output at a position is what it would be if the sentence ended there." """
    layer = MultiHeadAttention(12, 3).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    at_once = layer(x, x, x, causal_mask(7))[0]
    for n in range(1, 8):
        y = x[:, :n]
        assert torch.allclose(layer(y, y, y)[0][:, -1], at_once[:, n - 1], atol=1e-12)


def test_masking_after_the_softmax_and_dividing_is_the_same_until_it_is_not():
    """ "With ordinary scores the third way equals the first […] With a large hidden score it
    fails." """
    mask = causal_mask(6)
    scores = torch.randn(6, 6, dtype=torch.float64)
    after = scores.softmax(-1) * mask
    repaired = after / after.sum(-1, keepdim=True)
    assert torch.allclose(repaired, masked_softmax(scores, mask), atol=1e-12)
    scores[0, 5] = 2000.0  # hidden from query 0
    after = scores.softmax(-1) * mask
    assert (after / after.sum(-1, keepdim=True))[0].isnan().all()
    assert masked_softmax(scores, mask)[0].tolist() == [1, 0, 0, 0, 0, 0]


def test_a_dead_row_of_a_pad_ruins_every_position_of_the_next_layer():
    """ "After two layers no position is left." """
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)  # a dead row is NaN there
    x = torch.randn(1, 5, 8)
    may = causal_mask(5) & torch.tensor([False, False, True, True, True])
    one = layer(x, x, x, attn_mask=~may)[0]
    two = layer(one, one, one, attn_mask=~may)[0]
    assert one[0, 2:].isfinite().all() and two.isnan().any(-1).all()
    ours = MultiHeadAttention(8, 2)
    one = ours(x, x, x, may)[0]
    assert ours(one, one, one, may)[0].isfinite().all()


def test_a_mask_without_its_middle_axis_passes_when_b_equals_n():
    """ "Mostly that is an error. When a batch has as many sentences as words, it is not." """
    right = padding_mask(torch.tensor([4, 2, 4, 4]), 4)
    scores = torch.zeros(4, 4, 4)
    wrong = masked_softmax(scores, right[:, 0])
    assert (masked_softmax(scores, right)[1, :, 2:] == 0).all()
    assert wrong[1, :, 2:].sum() > 1 and (wrong[0, 1, 2:] == 0).all()


def test_padding_on_the_right_needs_no_padding_mask_beside_the_causal_one():
    """ "With padding on the *right*, the causal mask already hides it from every real word." """
    layer = MultiHeadAttention(8, 2)
    depends = dependency_map(lambda x: layer(x, x, x, causal_mask(6))[0], torch.randn(1, 6, 8))
    assert not depends[:4, 4:].any()  # four words, two pads


def test_zero_times_nan_is_nan_and_minus_1e9_does_not_exist_in_half_precision():
    """ "$0 \\cdot \\text{NaN}$ is NaN" and "`-1e9` does not exist in float16." """
    assert (torch.zeros(1) * math.nan).isnan()
    assert torch.tensor(-1e9).half() == -math.inf


def test_the_causal_mask_is_missed_in_writing_from_the_second_layer_on():
    """ "Not with two layers or more. … (With one layer, … the last output stays what it was.)" """
    torch.manual_seed(0)
    layers, x = [MultiHeadAttention(8, 2) for _ in range(2)], torch.randn(1, 5, 8)
    hidden = every = x
    moved = []
    for layer in layers:
        hidden = layer(hidden, hidden, hidden, causal_mask(5))[0]
        every = layer(every, every, every)[0]
        moved.append((hidden - every)[0, -1].abs().max().item())
    assert moved[0] < 1e-6 and moved[1] > 1e-3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_layer_of_torchs_trains_with_a_dead_row_and_gives_nan_in_use():
    """ "with a dead row it can train well and give NaN in use" """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).train()
    optimizer, x = torch.optim.Adam(layer.parameters(), lr=1e-2), torch.randn(8, 5, 8)
    pads = torch.tensor([[True, True, False, False, False]]).expand(8, 5)
    masks = {"src_mask": ~causal_mask(5), "src_key_padding_mask": pads}
    losses = []
    for _ in range(60):
        losses.append((layer(x, **masks) - x.flip(-1))[~pads].square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
    with torch.no_grad():
        assert layer.eval()(x, **masks).isnan().any()

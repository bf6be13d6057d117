"""Statements of chapter 8 that a skeptic would doubt, each checked by code."""

import re
from pathlib import Path

import pytest
import torch

from attncourse import positions_curves
from attncourse.cross_attention import Transformer
from attncourse.number_words import corpus, words
from attncourse.positions import exchange, relative_buckets, rotary_frequencies, rotate
from attncourse.training import as_source, without_error

PAGE = Path(__file__).parents[2] / "book" / "08_positions.md"


@pytest.fixture(scope="module")
def measured():
    return positions_curves.load()


def model_with(scheme):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return exchange(Transformer(36, 34), scheme).eval()


def sentence(number):
    return as_source(words(number, "en"), corpus().source_words)


@torch.no_grad()
def memory(model, source):
    return model.encode(source)[0]


def test_with_alibi_an_encoder_cannot_tell_a_text_from_its_mirror_image():
    """ "One is the other backward: |j − i| does not tell left from right." """
    source = sentence(521_760_889)
    forward, backward = (memory(model_with("alibi"), s) for s in (source, source.flip(1)))
    assert torch.allclose(forward.flip(1), backward, atol=1e-5)
    for scheme in ("sinusoidal", "shaw", "t5", "rope"):
        forward, backward = (memory(model_with(scheme), s) for s in (source, source.flip(1)))
        assert (forward.flip(1) - backward).abs().max() > 1e-2, scheme


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        *(("sinusoidal", True), ("learned", True)),
        *(("shaw", False), ("t5", False), ("alibi", False), ("rope", False), ("none", False)),
    ],
)
def test_hidden_pads_in_front_move_absolute_positions_and_no_relative_ones(scheme, changes):
    """ "With sinusoids and learned positions: every word stands three places later." """
    model, source = model_with(scheme), sentence(294)
    padded = torch.cat([source.new_zeros(1, 3), source], 1)
    moved = (memory(model, padded)[:, 3:] - memory(model, source)).abs().max()
    assert (moved > 1e-2) if changes else (moved < 1e-5)


def test_another_base_leaves_the_first_pair_alone():
    """ "Only the first: base⁰ = 1 for any base. All others turn more slowly." """
    small, large = rotary_frequencies(128, 1e4), rotary_frequencies(128, 5e5)
    assert small[0] == large[0] == 1 and (large[1:] < small[1:]).all()
    assert 40 < small[-1] / large[-1] < 50


def test_a_key_turned_twice_stands_elsewhere():
    """ "Whoever turns them again at each step puts every word at another place." """
    key, place = torch.randn(1, 16, dtype=torch.float64), torch.tensor([3])
    assert torch.allclose(rotate(rotate(key, place), place), rotate(key, 2 * place))


def test_the_decoder_met_all_of_its_places_and_the_encoder_did_not(measured):
    """ "The decoder has met all of its places." """
    short, test = positions_curves.short_and_test()
    asked = (test.lengths > measured["longest"]) & (test.lengths <= measured["longest"] + 3)
    assert (test.target[asked] != 0).sum(-1).max() <= (short.target != 0).sum(-1).max()
    assert test.lengths[asked].min() > short.lengths.max()


def test_the_buckets_of_the_page():
    """ "Distances 0 and 1 are alone. The others: 2 to 6, and from 7 on." """
    past = relative_buckets(-torch.arange(501), 8, 20, True)
    assert past[:3].tolist() == [0, 1, 2] and (past[2:7] == 2).all() and (past[7:] == 3).all()


def test_the_training_holds_every_word_and_no_long_sentence(measured):
    """ "It has met every word of the vocabulary." """
    short, test = positions_curves.short_and_test()
    vocabularies = corpus().source_words, corpus().target_words
    for rows, vocabulary in zip((short.source, short.target), vocabularies, strict=True):
        # <bos> never stands in a row, and <eos> in none of the source
        assert set(range(3, len(vocabulary))) <= set(rows.unique().tolist())
    assert short.lengths.max() == measured["longest"] < test.lengths.max()
    assert not set(short.numbers) & set(test.numbers)


def test_up_to_eleven_words_nearly_all_are_right_and_fewer_at_twelve(measured):
    """ "New sentences of up to eleven words it then translates, nearly all." """
    assert min(shares(measured, "sinusoidal", range(3, 12))) > 0.95
    assert all(0.7 < share < 0.9 for share in shares(measured, "sinusoidal", range(12, 15)))


@pytest.mark.slow
def test_billions_fail_within_the_lengths_of_the_training():
    """ "No billion is right, not one of 12 to 14 words; from 18 words on all have billions." """
    test = corpus().test
    large, lengths = torch.tensor(test.numbers) >= 10**9, test.lengths
    right = without_error(positions_curves.translator()[0], test)
    inside = (lengths >= 12) & (lengths <= positions_curves.LONGEST)
    assert (inside & large).sum() >= 50 and not right[large].any()
    assert right[inside & ~large].double().mean() > 0.9
    assert large[lengths >= 18].all()


def test_the_stored_measurements_are_whole(measured):
    named = re.findall(r'"([a-z0-9 ,]+)"', PAGE.read_text(encoding="utf-8"))
    drawn = set(named) & positions_curves.RUNS.keys()
    assert len(drawn) >= 6
    assert drawn <= measured["runs"].keys() <= positions_curves.RUNS.keys()
    for run in measured["runs"].values():
        assert len(run["exact_match"]) == positions_curves.SEEDS
        assert all(seed.keys() <= measured["counts"].keys() for seed in run["exact_match"])


def shares(measured, name, lengths):
    """Exact match of each seed on sources of these lengths."""
    counts = measured["counts"]
    lengths = [n for n in lengths if counts.get(n)]
    every = sum(counts[n] for n in lengths)
    return [
        sum(s[n] * counts[n] for n in lengths) / every
        for s in measured["runs"][name]["exact_match"]
    ]


def test_without_any_positions_hardly_a_sentence_comes_out(measured):
    """ "Without any positions ... even of three to five words only ... are right." """
    assert max(shares(measured, "none", range(3, 6))) < 0.6
    assert min(measured["runs"]["none"]["loss"]) > 0.3


def test_the_break_sits_in_the_encoder_and_in_cross_attention(measured):
    """ "The decoder is not the place. The encoder is one. Cross-attention is the other." """
    middle, long = range(15, 18), range(18, 21)
    assert max(shares(measured, "rope in the decoder", middle)) < 0.15
    assert max(shares(measured, "rope", long)) == 0
    assert min(shares(measured, "rope in all three", middle)) > max(
        shares(measured, "rope", middle)
    )
    assert min(shares(measured, "rope in all three", long)) > 0.4


def test_places_in_cross_attention_do_more_for_billions_than_more_billions(measured):
    """ "More examples help. Places in cross-attention help more, without one more example." """
    _, test = positions_curves.short_and_test()
    longer = [n for n, length in zip(test.numbers, test.lengths, strict=True) if length > 14]
    lengths = [length for length in test.lengths.tolist() if length > 14]
    where = [n >= 10**9 and length <= 17 for n, length in zip(longer, lengths, strict=True)]

    def right(name):
        ends = torch.tensor(measured["runs"][name]["ends"])[:, torch.tensor(where)]
        return (ends == ends[..., :1]).all(-1).float().mean(1)

    assert right("rope").max() < 0.1 < right("rope, more billions").min()
    assert right("rope in all three").min() > right("rope, more billions").max()

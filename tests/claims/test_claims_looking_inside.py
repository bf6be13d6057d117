"""Sentences of chapter 12 that a sceptic would doubt, each tried by code."""

import statistics

import pytest
import torch

from attncourse import pretrained
from attncourse.bottleneck import teacher_inputs
from attncourse.experiments import looking_inside_curves
from attncourse.experiments.looking_inside_curves import LONGEST, SEEDS, accuracy, texts
from attncourse.looking_inside import (
    ablated,
    head_outputs,
    induction_score,
    previous_token_score,
    through,
)
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, PAD

LAYERS = "layers.0.attention", "layers.1.attention"


@pytest.fixture(scope="module")
def stored():
    return looking_inside_curves.measured()


@pytest.fixture(scope="module")
def models():
    return [looking_inside_curves.load("varying", seed) for seed in range(SEEDS)]


@pytest.fixture(scope="module")
def text():
    return texts(60, torch.Generator().manual_seed(7))


def without(model, text, layer, *heads):
    """Right words, with the heads saying what they say on average."""
    said = head_outputs(model, text)[layer]
    for head in heads:
        model = ablated(model, layer, head, said[:, head].mean(0))
    return accuracy(model, text, LONGEST)


def best(run, habit, layer):
    return [max(layers[layer]) for layers in run[habit]]


def test_the_rise_is_short_and_comes_at_another_time_in_each_seed(stored):
    begins = []
    for run in stored["learned"]["varying"]:
        curve = dict(zip(stored["steps"], run["accuracy"], strict=True))
        begin, end = (next(s for s, x in curve.items() if x >= least) for least in (0.2, 0.9))
        begins.append(begin)
        assert end - begin <= 100 and curve[stored["steps"][-1]] > 0.95
        assert best(run, "induction", 1)[-1] > 0.9
    assert len(set(begins)) == SEEDS


def test_a_fixed_period_gives_the_score_without_the_circuit(stored):
    for run in stored["learned"]["fixed"]:
        assert len(run["induction"][-1]) == 1, "one layer"
        assert best(run, "induction", 0)[-1] > 0.9 and best(run, "previous", 0)[-1] < 0.1
        assert run["at"]["24"] > 0.99 and run["at"]["18"] < 0.1
    for run in stored["learned"]["fixed, vectors"]:
        assert (
            best(run, "induction", 0)[-1] > 0.9 and run["at"]["24"] > 0.99 > 0.1 > run["at"]["18"]
        )


@pytest.mark.parametrize("kind", ["one layer", "one layer, vectors, any words"])
def test_one_layer_learns_little_when_periods_vary_wherever_its_places_come_from(stored, kind):
    for run in stored["learned"][kind]:
        assert best(run, "induction", 0)[-1] < 0.15 and run["accuracy"][-1] < 0.35
        assert max(run["at"]["18"], run["at"]["24"]) < 0.35


def test_by_offset_a_fixed_period_gives_the_words_without_the_score(stored):
    for run in stored["learned"]["fixed, offsets, any words"]:
        assert run["at"]["24"] > 0.99 and 0.2 < best(run, "induction", 0)[-1] < 0.5
    shares = sorted(run["at"]["24"] for run in stored["learned"]["fixed, offsets"])
    assert shares[0] < 0.15 and shares[-1] > 0.99, (
        "with different words it is the seed that decides"
    )


def test_sinusoids_get_there_in_one_seed_and_their_first_habit_is_as_broad(stored):
    able = [run for run in stored["learned"]["varying, sinusoids"] if run["accuracy"][-1] > 0.9]
    assert len(able) == 1, "the page says: of three seeds one learns"
    offsets = [best(run, "previous", 0)[-1] for run in stored["learned"]["varying"]]
    assert min(offsets) < best(able[0], "previous", 0)[-1] < max(offsets)


def test_every_kind_has_its_seeds(stored):
    assert list(stored["learned"]) == list(looking_inside_curves.KINDS)
    assert {len(runs) for runs in stored["learned"].values()} == {SEEDS}


def test_stored_weights_are_those_that_were_measured(stored, models):
    for model, run in zip(models, stored["learned"]["varying"], strict=True):
        rng = torch.Generator().manual_seed(18)
        share = accuracy(model, texts(200, rng, 18), 18)
        assert share == pytest.approx(run["at"]["18"], abs=0.01)
    with pytest.raises(ValueError, match="stored are varying and fixed, seeds 0 to 2; not 'none'"):
        looking_inside_curves.load("none")


def test_layer_0_looks_at_the_word_before_and_layer_1_at_the_one_after_the_last_occurrence(
    models, text
):
    for model in models:
        maps = attention_maps(model, text)
        previous = [previous_token_score(maps[layer]).mean(0).max() for layer in LAYERS]
        induction = [induction_score(maps[layer], LONGEST).mean(0).max() for layer in LAYERS]
        assert previous[0] > 3 * previous[1] and induction[1] > 0.9 > 0.15 > induction[0]


def test_without_the_previous_token_heads_little_is_left(models, text):
    for model in models:
        assert without(model, text, LAYERS[0], 0, 1) <= 0.35
        assert without(model, text, LAYERS[1], 0, 1) <= 0.35


def test_either_head_of_layer_1_can_go_in_two_seeds_and_one_does_it_all_in_the_first(models, text):
    alone = [[without(model, text, LAYERS[1], head) for head in (0, 1)] for model in models]
    assert min(alone[0]) < 0.2 < 0.95 < max(alone[0])
    assert min(min(shares) for shares in alone[1:]) > 0.85


def test_the_circuit_goes_through_the_keys(models, text):
    for model in models:
        said, silent = head_outputs(model, text)[LAYERS[0]], model
        for head in (0, 1):
            silent = ablated(silent, LAYERS[0], head, said[:, head].mean(0))
        shares = {}
        for part in "qkv":
            right = through(model, text, silent, part)[:, :-1].argmax(-1) == text[:, 1:]
            shares[part] = right[:, LONGEST:].float().mean()
        assert shares["k"] <= 0.5 and shares["v"] >= 0.95 and shares["q"] >= 0.95


def test_rollout_loses_to_the_plain_mean_and_beats_chance(stored):
    rank = {name: each["rank"] for name, each in stored["explanations"].items()}
    assert abs(rank["chance"]) < 0.05 < 0.3 < rank["rollout"] < rank["cross-attention, mean"]
    # Not because of the idle layer: without it rollout is no better, without all mixing it is.
    more, error = stored["explanations"]["rollout, not the encoder's first"]["more"]
    assert (
        0 < error < 0.01 and more < 0 and rank["rollout, not the encoder's first"] < rank["rollout"]
    )
    alone = rank["rollout, cross-attention alone"]
    assert rank["rollout"] + 0.05 < alone < rank["cross-attention, mean"]


def test_idle_attention_can_be_shuffled_and_a_working_one_cannot(stored):
    words = {name: statistics.mean(each["words"]) for name, each in stored["shuffled"].items()}
    assert words["encoder.0.self_attention"] > 0.99 > 0.75 > words["decoder.0.cross_attention"]


def test_the_encoders_first_attention_can_be_switched_off(stored):
    heads = stored["heads"]
    assert heads["encoder.0.self_attention"]["all"]["exact"] >= heads["whole"]["exact"] - 0.01
    assert heads["decoder.0.cross_attention"]["all"]["exact"] < 0.3


def test_rollout_through_the_translator_shares_out_what_the_source_gives():
    model, _, _ = pretrained.load("transformer")
    pairs = looking_inside_curves.sentences(least=5)
    source, target = (row[row != PAD][None] for row in (pairs.source[3], pairs.target[3]))
    arrived = looking_inside_curves.rolled_out(
        attention_maps(model, source, teacher_inputs(target, BOS))
    )
    assert arrived.shape == (target.shape[1], source.shape[1]) and (arrived >= 0).all()
    # Two cross-attentions, each of which leaves half of what the target had: 1 − 1/4.
    torch.testing.assert_close(arrived.sum(1), torch.full((target.shape[1],), 0.75))


@pytest.mark.slow
def test_training_again_gives_what_is_stored(stored):
    _, again = looking_inside_curves.learn("fixed", 0)
    run = stored["learned"]["fixed"][0]
    assert again["loss"][:3] == pytest.approx(run["loss"][:3], abs=0.02)
    assert again["accuracy"][-1] == pytest.approx(run["accuracy"][-1], abs=0.02)
    assert best(again, "induction", 0)[-1] == pytest.approx(best(run, "induction", 0)[-1], abs=0.1)

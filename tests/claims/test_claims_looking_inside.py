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
    attributed,
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


@pytest.mark.parametrize("period", [4, 8, 26, 30])
def test_two_layers_know_periods_that_they_never_met_and_the_shortcut_does_not(models, period):
    text = texts(60, torch.Generator().manual_seed(0), period)
    assert min(accuracy(model, text, period) for model in models) > 0.95
    shortcut = accuracy(looking_inside_curves.load("fixed", 0), text, period)
    assert shortcut < (0.7 if 24 % period == 0 else 0.05)


@pytest.mark.slow
def test_one_wide_layer_does_induction_by_brute_force_and_only_for_its_distances():
    """No head looks at the word before, and it is right at every period from 12 to 24."""
    model = looking_inside_curves.by_brute_force()
    assert len(model.layers) == 1
    for period in (12, 13, 18, 23, 24, 30):
        text = texts(20, torch.Generator().manual_seed(1), period)
        assert accuracy(model, text, period) == (period <= LONGEST), period
    (weights,) = attention_maps(model, text).values()
    assert previous_token_score(weights).max() < 1e-6


def test_layer_1_says_the_word_and_layer_0_does_not(models, text):
    for model in models:
        added = attributed(model, text, text.roll(-1, 1))
        mean = {part: each[:, LONGEST:-1].mean() for part, each in added.items()}
        assert max(mean["1.0"], mean["1.1"]) > 4
        assert max(abs(mean[part]) for part in ("word", "0.0", "0.1", "biases")) < 0.5


def test_what_a_head_of_layer_0_says_on_average_is_short(models, text):
    """So a zero and the mean of a head nearly agree on these texts."""
    for model in models:
        for said in head_outputs(model, text).values():  # b h q d
            assert said.mean(0).norm(dim=-1).mean() < 0.35 * said.norm(dim=-1).mean()


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


@pytest.mark.slow
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


def test_rollout_mixes_in_too_much_self_attention(stored):
    """The smaller its share the better, and a share of 0.1 does as well as none."""
    about = stored["explanations"]
    ranks = [about[f"rollout{what}"]["rank"] for what in
             ("", ", self-attention 0.3", ", self-attention 0.1")]  # fmt: skip
    plain = about["cross-attention, mean"]["rank"]
    assert ranks == sorted(ranks) and ranks[-1] == pytest.approx(plain, abs=0.01)
    none = about["rollout, cross-attention alone"]["rank"]
    assert abs(ranks[-1] - none) < 0.01, "so these rows cannot blame the half alone"
    more, error = about["rollout, not the encoder's second"]["more"]
    assert more > 5 * error
    more, error = about["rollout, not the encoder's first"]["more"]
    assert more < -3 * error, "without that layer rollout is worse"
    assert about["gradient"]["more"][0] > 5 * about["gradient"]["more"][1]
    assert about["gradient"]["top"] < about["rollout"]["top"] - 0.05, "not by the first word"


def test_a_share_of_a_half_is_rollout():
    model, _, _ = pretrained.load("transformer")
    pairs = looking_inside_curves.sentences(least=5)
    source, target = (row[row != PAD][None] for row in (pairs.source[3], pairs.target[3]))
    maps = attention_maps(model, source, teacher_inputs(target, BOS))
    rolled_out = looking_inside_curves.rolled_out
    assert torch.equal(rolled_out(maps), rolled_out(maps, share=0.5))
    nothing = rolled_out(maps, share=0.0)  # no self-attention mixes anything
    alone = rolled_out(maps, [name for name in maps if "self" in name])
    torch.testing.assert_close(nothing, alone)


def test_five_heads_cannot_be_silent_and_sharpness_is_a_hint(stored):
    heads = {name: each for name, each in stored["heads"].items() if name != "whole"}
    zero = [each["exact"] for about in heads.values() for each in about["zero"]]
    assert sum(share < stored["heads"]["whole"]["exact"] - 0.03 for share in zero) == 5

    def hint(names):
        sharp = [x for name in names for x in heads[name]["largest"]]
        lost = [each["loss"] for name in names for each in heads[name]["exchanged"]]
        pair = torch.tensor([sharp]), torch.tensor([lost])
        return looking_inside_curves.rank_correlation(*pair).item()

    assert hint(heads) > 0.7 and hint([name for name in heads if "cross" in name]) < -0.3
    assert hint([name for name in heads if "cross" in name]) > -0.7, "far from a reversed order"
    encoder = [x for name in heads if "encoder" in name for x in heads[name]["largest"]]
    decoder = [x for name in heads if "decoder" in name for x in heads[name]["largest"]]
    assert max(encoder) < min(decoder)


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
    assert words["encoder.0.self_attention"] < 1, "next to nothing, not nothing"


def test_the_encoders_first_attention_can_be_switched_off(stored):
    heads = stored["heads"]
    assert heads["encoder.0.self_attention"]["all"]["exact"] >= heads["whole"]["exact"] - 0.01
    assert heads["decoder.0.cross_attention"]["all"]["exact"] < 0.3
    losses = [about["all"]["loss"] for name, about in heads.items() if name != "whole"]
    assert 500 < max(losses) / heads["whole"]["loss"] < 600, "as the figure's alt text says"


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


def test_the_second_eight_is_the_word_that_the_cell_prints(models):
    one = texts(1, torch.Generator().manual_seed(3), period=12)
    assert looking_inside_curves.number_words()[one[0, 17]] == "eight"


def test_the_shortcut_gets_next_to_nothing_right_at_other_periods():
    shortcut = looking_inside_curves.load("fixed", 0)
    for period in (18, 26, 30):
        rng = torch.Generator().manual_seed(0)
        assert accuracy(shortcut, texts(100, rng, period), period) < 0.05


@pytest.mark.slow
def test_the_head_whose_replacement_matters_most_is_the_one_named(models):
    """Zero costs little, the head's output on another text much; the page names that head."""
    text = texts(100, torch.Generator().manual_seed(0))
    gaps = {}
    for seed, model in enumerate(models):
        for layer in LAYERS:
            for head in (0, 1):
                said = head_outputs(model, text)[layer][:, head]
                zero, other = (
                    accuracy(ablated(model, layer, head, value), text, LONGEST)
                    for value in (0.0, said.roll(1, 0))
                )
                gaps[seed, layer, head] = zero - other, zero
    worst = max(gaps, key=gaps.get)
    assert worst == (2, LAYERS[1], 1) and gaps[worst][0] > 0.5 and gaps[worst][1] > 0.95

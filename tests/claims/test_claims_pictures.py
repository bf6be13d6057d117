"""Statements of chapter 13 that a skeptic would doubt, checked by code or by what is stored."""

import math
import random
import re
import statistics
from pathlib import Path

import pytest
import torch

from attncourse.experiments import pictures_curves
from attncourse.experiments.pictures_curves import (
    LINES,
    SMALL,
    draw,
    french,
    known,
    names,
    new_reader,
    noisy,
    right,
    unseen,
)
from attncourse.number_words import BOS, words
from attncourse.pictures import Flamingo, contrastive_loss, patches, read, standardized

PAGE = Path(__file__).parents[2] / "book" / "13_pictures.md"


@pytest.fixture(scope="module")
def measured():
    return pictures_curves.measured()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_fifth_of_the_numbers_is_kept_out_and_none_is_on_both_sides():
    """ "A fifth of all numbers was kept out." """
    for digits, out in unseen().items():
        assert not set(out) & set(known()[digits])
        assert len(out) == pytest.approx(len({*out, *known()[digits]} - {0}) / 5, abs=0.5)
        assert all(len(str(n)) == digits for n in out)
    heard = {word for some in known().values() for n in some for word in words(n, "fr")}
    assert {word for some in unseen().values() for n in some for word in words(n, "fr")} <= heard


def test_chance_decides_how_a_number_is_drawn_and_the_same_chance_draws_the_same():
    numbers = [7, 47, 182, 999] * 25
    one, two, other = (draw(numbers, random.Random(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.images, two.images) and one.boxes == two.boxes
    assert not torch.equal(one.images, other.images)
    for image, boxes, number in zip(one.images, one.boxes, numbers, strict=True):
        assert len(boxes) == len(str(number))
        outside = image[0].clone()
        for top, left, bottom, right_ in boxes:
            assert image[0, top:bottom, left:right_].max() > 128
            outside[top:bottom, left:right_] = 0
        assert not outside.any(), "all that is drawn lies in the boxes"


def test_six_patches_of_128_numbers():
    """ "Attention over 768 words would compare 590,000 pairs"; six words of 128 numbers each."""
    assert round(768**2, -4) == 590_000
    assert patches(torch.zeros(1, 1, 16, 48), (16, 8)).shape == (1, 6, 128)


@pytest.mark.parametrize("size", [(4, 8), (1, 4), (1, 8), (4, 4), (2, 4), (8, 4)])
def test_a_reshape_cuts_right_where_a_patch_is_as_wide_as_the_picture_or_one_pixel_high(size):
    counting = torch.arange(64.0).reshape(1, 1, 8, 8)
    cut = patches(counting, size)
    assert torch.equal(cut, counting.reshape(cut.shape)) == (size[1] == 8 or size[0] == 1)


def test_a_nine_was_seen_at_every_place_of_a_number_but_never_alone():
    """With nothing before it, too: 9 tens, 9 hundreds."""
    seen = [str(n) for some in known().values() for n in some]
    assert any(n.startswith("9") for n in seen) and "9" not in seen


def test_a_dark_picture_is_the_same_picture():
    """ "To the model the two are the same picture, to the last word." """
    image = draw([182, 47], random.Random(0)).noisy(generator())
    apart = standardized(image) - standardized(image / 4 + 0.1)
    assert apart.abs().max() < 1e-4
    model, _ = pictures_curves.reader()
    assert torch.equal(read(model, image), read(model, image / 4 + 0.1))


def test_without_standardizing_a_reader_reads_as_well_and_no_dark_picture(measured):
    """The norm makes vectors of dark pictures as long as any: it is not that they are too quiet."""
    for cuts, reader in zip(measured["cuts"], measured["reader"], strict=True):
        bare = cuts["not standardized"]
        assert all(bare["unseen"][d] > reader["unseen"][d] - 0.05 for d in "23")
        assert max(bare["dark"].values()) < 0.15
    model, _ = pictures_curves.reader()
    image = draw([182, 47], random.Random(0)).noisy(generator())
    embedding = model.source_embedding
    lengths = [
        embedding.norm(embedding.linear(patches(x, (16, 8)))).norm(dim=-1).mean().item()
        for x in (standardized(image), image, image / 4 + 0.1)
    ]
    assert max(lengths) < 1.1 * min(lengths)


def test_strips_hold_all_numbers_and_are_harder_to_learn_from(measured):
    image = draw([182], random.Random(0)).images / 255
    strips = pictures_curves.CUTS["strips"](image)
    assert torch.equal(strips.flatten().sort()[0], standardized(image).flatten().sort()[0])
    for cuts, reader in zip(measured["cuts"], measured["reader"], strict=True):
        assert 0.1 < cuts["strips"]["unseen"]["3"] < reader["unseen"]["3"] - 0.4


@pytest.mark.parametrize("kind", LINES)
def test_without_rows_nobody_can_say_which_line_is_first(kind):
    """With the column alone, or with nothing, 47 and 74 are the same picture."""
    model = new_reader().eval()
    model.source_embedding.positions = LINES[kind]
    image = draw([47, 74], random.Random(0), two_lines=True).images / 255
    swapped = image.roll(16, 2)  # the lower line on top
    inputs = torch.tensor([[BOS, 5, 6]] * 2)
    moved = (model(image, inputs) - model(swapped, inputs)).abs().max().item()
    assert (moved < 1e-5) == (kind in ("column alone", "none")), moved


def test_two_lines_need_rows_and_one_number_tells_them_too(measured):
    for lines in measured["lines"]:
        told = min(lines["row and column"], lines["one number"])
        assert told > max(lines["column alone"], lines["none"]) + 0.2


@pytest.mark.parametrize("kind", ["column alone", "none"])
def test_who_cannot_tell_two_numbers_apart_writes_the_one_that_was_in_training(measured, kind):
    """Less right than a coin; where neither was in training, a coin."""
    same = [n % 11 == 0 for n in unseen()[2]]
    coin = statistics.mean(1.0 if each else 0.5 for each in same)
    for lines in measured["lines"]:
        assert lines[kind] < coin - 0.2
        right, exchanged = lines["exchanged"][kind]["other known"]
        assert right < 0.1 and exchanged > 0.85
        right, exchanged = lines["exchanged"][kind]["other unseen"]
        assert right == pytest.approx(exchanged, abs=0.2) and right > 0.25


def test_of_one_digit_the_nine_is_read_worse_than_the_seven_and_as_zero(measured):
    assert unseen()[1] == (7, 9)
    for seed in measured["reader"]:
        seven, nine = (seed["alone"][digit] for digit in "79")
        assert nine.get("neuf", 0) < seven["sept"] and seven["sept"] >= 0.5
        assert nine["zéro"] == max(share for name, share in nine.items() if name != "neuf")


def test_the_temperature_was_still_falling(measured):
    """It fell by nearly as much as Adam's steps, each at most the rate, let it fall."""
    steps, rates = pictures_curves.TOWER_STEPS, []
    optimizer = torch.optim.Adam(torch.nn.Linear(1, 1).parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(  # as `train` has it
        optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False
    )
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    for seed in measured["towers"]:
        assert 0.85 < math.log(0.1 / seed["temperature"]) / sum(rates) < 1


def test_unseen_numbers_are_read_and_those_of_one_digit_worst(measured):
    """ "Of three digits it reads …": at least nine in ten, and of two digits as well."""
    one, two, three = (
        statistics.mean(seed["unseen"][digits] for seed in measured["reader"]) for digits in "123"
    )
    assert min(two, three) >= 0.9 and one < min(two, three) - 0.1
    for seed in measured["reader"]:
        assert min(seed["known"].values()) >= 0.9


def test_the_stored_reader_is_the_measured_one(measured):
    model, _ = pictures_curves.reader()
    drawn = draw(unseen()[3][:90], random.Random(77))
    share = sum(right(model, drawn)) / 90
    assert share == pytest.approx(measured["reader"][0]["unseen"]["3"], abs=0.1)


def test_layer_0_looks_where_erasing_hurts_more_often_than_by_chance(measured):
    shares = [seed["agreement"] for seed in measured["reader"]]
    assert statistics.mean(share["layer 0"] for share in shares) > 0.45
    assert min(share["words"] for share in shares) > 200


def test_a_model_that_sees_begins_bit_for_bit_and_only_its_gates_move_first(measured):
    """ "In the first step only the gates move." """
    assert all(seed["equal_bit_for_bit"] for seed in measured["flamingo"])
    assert all(seed["language_model_unchanged"] for seed in measured["flamingo"])
    stored, _ = pictures_curves.flamingo()
    model = Flamingo(stored.language_model, stored.eye, **SMALL)
    image = draw([182], random.Random(0)).noisy(generator())
    sentence = torch.tensor([[BOS, *french().encode(["cent"])]])
    model(image, sentence)[0, -1].log_softmax(0)[5].backward()
    for layer in model.gated:
        assert layer.attention_gate.grad != 0
        for name, parameter in layer.named_parameters():
            if not name.endswith("gate"):
                assert (parameter.grad == 0).all(), name


def test_a_black_picture_is_not_no_picture():
    """ "An empty or black picture is not enough." """
    model, _ = pictures_curves.flamingo()
    inputs = names([182])
    with torch.no_grad():
        apart = model(torch.zeros(1, 1, 16, 48), inputs) - model.language_model(inputs)
    assert apart.abs().max() > 0.1


def test_a_frozen_language_model_reads_behind_gates_of_either_sign(measured):
    """≥ .6 of unseen numbers of two and three digits; gates end on both sides of 0."""
    for digits in "23":
        assert statistics.mean(seed["unseen"][digits] for seed in measured["flamingo"]) >= 0.6
        assert max(seed["blind"][digits] for seed in measured["flamingo"]) <= 0.05
    gates = [gate for seed in measured["flamingo"] for layer in seed["gates"] for gate in layer]
    assert min(gates) < 0 < max(gates) and max(map(abs, gates)) < 1


def test_pictures_find_names_that_nobody_trained(measured):
    assert statistics.mean(seed["name"] for seed in measured["towers"]) >= 0.5
    for seed in measured["towers"]:
        assert seed["before"] <= 0.1 and seed["name in five"] > seed["name"]
        assert seed["temperature"] < 0.1


@pytest.mark.parametrize(("b", "temperature"), [(10, 1.0), (100, 0.1), (1000, 0.01)])
def test_what_the_loss_of_perfect_vectors_is(b, temperature):
    """b vectors as far apart as they can be have cosines of −1 / (b − 1)."""
    perfect = torch.eye(b).double() - 1 / b
    gap = (1 + 1 / (b - 1)) / temperature
    expected = math.log1p((b - 1) * math.exp(-gap))
    assert contrastive_loss(perfect, perfect, temperature).item() == pytest.approx(expected)


def test_noise_is_drawn_and_pictures_stay():
    drawn = draw([182], random.Random(0))
    before = drawn.images.clone()
    one, two = noisy(drawn.images, generator(0)), noisy(drawn.images, generator(1))
    assert not torch.equal(one, two) and torch.equal(before, drawn.images)
    assert (one - two).std() == pytest.approx(pictures_curves.NOISE * 2**0.5, rel=0.1)


def test_what_is_stored_is_small():
    folder = pictures_curves.DATA
    sizes = [(folder / f"pictures.{kind}").stat().st_size for kind in ("safetensors", "json")]
    assert sum(sizes) <= 700_000


def test_the_page_says_how_many_seeds_were_run():
    text = PAGE.read_text(encoding="utf-8")
    for part in pictures_curves.PARTS:
        assert re.search(rf"{{glue:text}}`{part}_seeds`", text), part

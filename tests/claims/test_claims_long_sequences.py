"""Sentences of chapter 11 that a sceptic would doubt, each tried by code."""

import itertools
import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask

from attncourse.experiments import long_sequences_curves as curves
from attncourse.experiments import looking_inside_curves
from attncourse.experiments.looking_inside_curves import accuracy, texts
from attncourse.lab.meters import count
from attncourse.long_sequences import (
    any_of,
    causally,
    delta_rule,
    dilated,
    fixed,
    flow,
    global_tokens,
    layers_needed,
    linear_step,
    mask_of,
    random_keys,
    ring_utilization,
    shifted_blocks,
    span_mask,
    strided,
    window,
    windowed_attention,
)
from attncourse.scaled_dot_product import scaled_dot_product_attention


@pytest.fixture(scope="module")
def stored():
    return curves.measured()


def means(runs):
    return torch.tensor(runs).mean(0).tolist()


def test_even_and_odd_places_never_meet():
    """Every second word is never done."""
    mask = mask_of(causally(dilated(20, 2)), 64)
    assert layers_needed(itertools.repeat(mask, 64), causal=True) is None


def test_a_global_first_token_under_a_causal_mask_helps_nobody():
    """All look at it, and it has heard of no one."""
    n = 130

    def layers(pattern, causal):
        return layers_needed(itertools.repeat(mask_of(pattern, n), n), causal)

    with_first = any_of(window(9), global_tokens(1))
    assert layers(causally(with_first), True) == layers(causally(window(9)), True) == 15
    assert layers(with_first, False) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("n", "width"), [(256, 24), (1024, 48)])
def test_blockbert_passes_on_one_block_a_layer_at_the_cost_of_a_window(n, width):
    blocks = math.ceil(n / width)
    pattern = any_of(*(shifted_blocks(width, blocks, shift) for shift in (0, 1)))
    mask, dear = mask_of(pattern, n), mask_of(window(width), n).sum()
    assert 0.98 < mask.sum() / dear < 1.02
    assert layers_needed(itertools.repeat(mask, blocks)) == blocks - 1


@pytest.mark.parametrize("root", [16, 32])
def test_fixed_needs_two_layers_as_strided_does_at_two_thirds_of_the_cost(root):
    masks = [mask_of(causally(pattern(root)), root**2) for pattern in (fixed, strided)]
    assert [layers_needed(itertools.repeat(mask, 5), causal=True) for mask in masks] == [2, 2]
    assert masks[0].sum() / masks[1].sum() == pytest.approx(2 / 3, abs=0.03)


def test_bigbirds_random_keys_do_not_show_beside_global_tokens():
    for drawn in (0, 3):
        pattern = any_of(
            window(2), global_tokens(1), random_keys(100, drawn, torch.Generator().manual_seed(0))
        )
        assert layers_needed(itertools.repeat(mask_of(pattern, 100), 9)) == 2


def test_three_scores_a_row_reach_all_if_the_dilation_doubles():
    for n in (64, 256):
        masks = [mask_of(dilated(1, 2**layer), n) for layer in range(12)]
        assert max(mask.sum(-1).max() for mask in masks) == 3
        assert layers_needed(masks) == math.ceil(math.log2(n))


def test_a_window_lets_through_a_trace_too_small_for_float16():
    share = flow(mask_of(causally(window(24)), 256), 11)[-1, 1]
    assert share > 0 and share.half() == 0


@pytest.mark.slow
def test_unfold_needs_more_than_the_whole_table_for_256_words():
    def unfolded(query, key, value):
        keys, values = (F.pad(x, (0, 0, 32, 32)).unfold(-2, 65, 1) for x in (key, value))
        scores = torch.einsum("...nd,...ndw->...nw", query, keys)
        return torch.einsum("...nw,...nvw->...nv", scores.softmax(-1), values)

    def dense(query, key, value):
        return scaled_dot_product_attention(query, key, value)

    def peak(attend, n):
        return count(attend, *torch.empty(3, 1, 4, n, 16, device="meta")).peak_bytes

    assert peak(unfolded, 256) > peak(dense, 256)
    assert peak(unfolded, 4096) < peak(dense, 4096) / 3
    assert peak(lambda *qkv: windowed_attention(*qkv, 32), 256) < peak(dense, 256)


def test_two_brackets_hold_as_many_numbers_after_any_text():
    state = None
    for _ in range(50):
        _, state = linear_step(state, *torch.randn(3, 16))
    assert sum(part.numel() for part in state) == 16 * 16 + 16 == 272


@pytest.mark.slow
def test_contiguous_shards_work_p_over_2p_minus_1_of_the_time():
    i = torch.arange(4096)
    for p in (2, 4, 8, 64):
        assert ring_utilization(list(i.chunk(p))) == pytest.approx(p / (2 * p - 1), abs=2e-3)
        assert ring_utilization([i[r::p] for r in range(p)]) > 0.98


def test_zeros_around_a_text_are_wrong_at_its_ends_only():
    """A key of zeros has score 0, and e⁰ = 1."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 20, 8).double()
    keys, values = (F.pad(x, (0, 0, 3, 3)) for x in (key, value))
    visible = (torch.arange(-3, 23) - torch.arange(20)[:, None]).abs() <= 3
    padded, _ = scaled_dot_product_attention(query, keys, values, visible)
    off = (padded - windowed_attention(query, key, value, 3)).abs().amax(-1)
    assert (off[3:-3] < 1e-9).all() and (off[:3] > 1e-3).all() and (off[-3:] > 1e-3).all()


# --- what is stored ------------------------------------------------------------------------------


def test_what_the_delta_rule_holds_is_computed_rightly():
    """The closed form that is trained is the rule, word by word."""
    torch.manual_seed(0)
    key = F.normalize(torch.randn(6, 4).double(), dim=-1)
    value = torch.randn(1, 6, 3).double()
    asked = torch.randn(5, 4).double()
    text = torch.cat([key, F.normalize(asked, dim=-1)])
    strength = (torch.arange(11) < 6).double()  # 6 are written, 5 only read
    values = F.pad(value[0], (0, 0, 0, 5))
    expected = delta_rule(text, text, values, strength)[6:]
    torch.testing.assert_close(curves.delta(asked, key, value)[0], expected)


def test_everything_is_stored_for_every_seed(stored):
    seeds = len(stored["settings"]["seeds"])
    for part in ("capacity", "untrained", "update", "hashing"):
        assert all(len(runs) == seeds for runs in stored[part].values())
    assert len(stored["spans"]) == seeds == 3


def test_a_state_holds_as_many_pairs_as_a_key_is_wide_and_then_forgets(stored):
    pairs = stored["settings"]["pairs"]
    elu, softmax = (dict(zip(pairs, means(stored["capacity"][m]), strict=True))
                    for m in ("elu+1", "softmax"))  # fmt: skip
    assert elu[16] > 0.95 and elu[24] < 0.95 and elu[64] < 0.5
    assert min(softmax.values()) > 0.98


def test_a_learned_beta_holds_much_more_than_elu_and_about_as_much_as_a_signed_sum(stored):
    pairs = stored["settings"]["pairs"]
    found = {name: dict(zip(pairs, means(runs), strict=True))
             for name, runs in stored["capacity"].items()}  # fmt: skip
    for n in (32, 64):
        learned = found["delta, β learned"][n]
        assert learned > found["elu+1"][n] + 0.1
        assert learned == pytest.approx(found["signed sum"][n], abs=0.05)


def test_with_beta_one_the_delta_rule_holds_no_more_and_the_signed_sum_does(stored):
    pairs = stored["settings"]["pairs"]
    found = {name: dict(zip(pairs, means(runs), strict=True))
             for name, runs in stored["capacity"].items()}  # fmt: skip
    for n in (24, 32, 64):
        assert found["signed sum"][n] > found["delta"][n] + 0.03
        assert found["signed sum"][n] > found["elu+1"][n] + 0.03
        assert found["delta"][n] < found["elu+1"][n] + 0.1


def test_without_training_positive_features_fail_at_a_quarter(stored):
    assert means(stored["untrained"]["elu+1"])[0] < 0.5
    assert means(stored["untrained"]["signed sum"])[0] > 0.95


def test_it_is_not_the_division_that_fails_but_the_corner_that_features_point_to(stored):
    undivided, centered = (means(stored["untrained"][f"elu+1, {what}"])[0]
                           for what in ("not divided", "centered"))  # fmt: skip
    assert undivided < 0.5 and centered > 0.95


def test_a_sum_that_fades_knows_the_latest_value_of_few_keys(stored):
    few, _, many = means(stored["update"]["sum that fades"])
    assert few > 0.99 and 0.7 < many < means(stored["update"]["delta"])[-1]


def test_a_window_loses_all_that_two_layers_do_not_reach_and_nothing_before(stored):
    """At about nine scores a row; strided and fixed reach all, and learn next to nothing."""
    about = stored["distance"]
    right = {
        name: dict(zip(stored["settings"]["periods"], means(found["right"]), strict=True))
        for name, found in about.items()
    }
    assert min(right["full"].values()) > 0.95
    assert min(right["window"][period] for period in range(12, 19)) > 0.9
    assert max(right["window"][period] for period in range(19, 25)) < 0.1
    assert max(*right["strided"].values(), *right["fixed"].values()) < 0.3
    with_first = [max(run) for run in about["window, first word"]["right"]]
    assert sorted(share < 0.15 for share in with_first) == [False, True, True]
    for name in ("strided", "fixed"):
        mask = mask_of(causally(curves.LOOKS[name]), 48)
        assert layers_needed([mask, mask], causal=True) == 2
        assert 6.9 < about[name]["scores"] < 9.6


def test_a_window_sees_only_what_a_window_shows():
    seeing = curves.Seeing(
        lambda query, key, value, mask: scaled_dot_product_attention(query, key, value, mask),
        window(9),
    )
    query, key, value = torch.randn(3, 1, 1, 20, 4)
    _, weights = seeing(query, key, value, torch.ones(20, 20, dtype=torch.bool).tril())
    assert torch.equal(weights[0, 0] > 0, mask_of(causally(window(9)), 20))


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        (causally(window(45)), 0.10, 0.15),
        (causally(strided(45)), 0.53, 0.54),
        (causally(fixed(45)), 0.53, 0.54),
        (causally(window(2048)), 0.53, 0.54),
    ],
)
def test_what_flexattention_computes_of_a_pattern(pattern, least, most):
    """A block of 128 with a single True is computed: strided and fixed save nothing."""
    blocks = create_block_mask(lambda b, h, i, j: pattern(i, j), 1, 1, 2048, 2048, device="cpu")
    assert blocks.BLOCK_SIZE == (128, 128)
    assert least < 1 - blocks.sparsity() / 100 < most


@pytest.mark.slow
def test_three_random_words_a_row_fill_every_block_and_a_random_block_does_not():
    def computed(pattern):
        blocks = create_block_mask(lambda b, h, i, j: pattern(i, j), 1, 1, 2048, 2048, device="cpu")
        return 1 - blocks.sparsity() / 100

    generator = torch.Generator().manual_seed(0)
    words = random_keys(2048, 3, generator)
    drawn = random_keys(16, 1, generator)
    assert computed(any_of(window(44), words)) == 1
    assert computed(any_of(window(44), lambda i, j: drawn(i // 128, j // 128))) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_one_key_a_query_is_enough_in_the_second_layer(seed):
    def best(attend, most):
        def chosen(query, key, value, mask=None):
            _, weights = attend(query, key, value, mask)
            few, which = weights.topk(most, dim=-1)
            kept = torch.zeros_like(weights).scatter(-1, which, few)
            kept = kept / kept.sum(-1, keepdim=True)
            return kept @ value, kept

        return chosen

    shares, text = {}, texts(40, torch.Generator().manual_seed(0), 18)
    for layers, most in (((1,), 1), ((0, 1), 4)):
        model = looking_inside_curves.load("varying", seed)
        for attention in (model.layers[layer].attention for layer in layers):
            chosen = best(attention.attend, most)
            del attention.attend
            attention.attend = chosen
        shares[most] = accuracy(model, text, 18)
    assert shares[1] > 0.98 and shares[4] > 0.9


def test_only_delta_fading_and_positions_know_which_value_is_the_latest(stored):
    middle = stored["settings"]["keys"].index(8)
    found = {name: means(runs)[middle] for name, runs in stored["update"].items()}
    for name in ("softmax", "elu+1", "signed sum"):
        assert found[name] == pytest.approx(0.5, abs=0.08)
    assert min(found["delta"], found["softmax with positions"]) > 0.97


def test_hashing_pays_on_clusters(stored):
    once = {name: means(runs)[0] for name, runs in stored["hashing"].items()}
    gain = {name: recall / share for name, (recall, share) in once.items()}
    assert gain["random, d = 64"] < 3 < 4 < gain["clustered, d = 64"]
    assert gain["trained, d = 16"] > gain["clustered, d = 64"]
    assert once["trained, d = 16"][0] == max(recall for recall, _ in once.values())
    rounds = stored["settings"]["rounds"].index(8)
    assert means(stored["hashing"]["random, d = 64"])[rounds][1] == pytest.approx(0.42, abs=0.02)


def test_no_head_of_the_translator_keeps_a_long_span_and_nothing_is_lost(stored):
    """None sees far back; nothing is lost by that; the second layer looks less far."""
    for run in stored["spans"]:
        first, second = run["spans"]
        assert max(*first, *second) + stored["settings"]["ramp"] < 7
        assert statistics.mean(first) > 2 * statistics.mean(second)
        assert run["exact_match"] > run["whole"] > 0.8


def test_blocks_were_faster_at_every_length_from_512_on(stored):
    assert all(dense > blocks for n, dense, blocks in stored["seconds"] if n >= 512)


def test_a_ring_of_real_processes_was_exact_and_sent_what_the_formula_says(stored):
    assert stored["ring"].keys() == {"2", "4"}
    for run in stored["ring"].values():
        assert run["error"] < 1e-12 and run["sent"] == [run["formula"]]
        assert run["seconds"][0] < run["seconds"][1]  # starting them takes longer


def test_a_span_falls_over_its_ramp():
    assert span_mask(torch.arange(8), 2.5, ramp=2).tolist() == [1, 1, 1, 0.75, 0.25, 0, 0, 0]
    assert statistics.mean(span_mask(torch.arange(8), 4, ramp=2).tolist()) == 5.5 / 8

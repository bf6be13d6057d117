"""Statements of chapter 14's exercise that a skeptic would doubt."""

import json
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

from attncourse.tasks.in_the_wild import test_attention as attention
from attncourse.tasks.in_the_wild import test_nucleus as nucleus
from attncourse.tasks.in_the_wild import test_positions as positions

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "solutions" / "14_in_the_wild" / "14_in_the_wild.ipynb"


def test_right_tables_agree_to_four_digits_in_a_hundred_rows_and_not_in_thousands():
    """ "So two right tables agree to about four digits …"; "at some widths in the fourth"."""
    exact, single = positions.in_double_precision, positions.cosines_cut
    for width in (5, 6, 33, 64):
        assert (exact(100, width) - single(100, width)).abs().max() < 5e-5
    far = {w: (exact(4000, w) - single(4000, w)).abs().max().item() for w in (7, 33)}
    assert 1e-5 < far[7] < 1e-4 < far[33] < 1e-3


def test_every_comparison_with_nan_but_unequal_is_false():
    nan = torch.tensor(torch.nan)
    assert not any(bool(each) for each in (nan > 0, nan < 0, nan == 0, nan >= 0, nan <= 0))
    assert bool(nan != 0)


def test_an_assertion_of_a_pair_is_always_true():
    """ "`assert (equal, "message")` asserts a pair, which is true whatever it holds." """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec('assert (1 == 2, "twice 3 is 6")')


def test_a_thousand_ordinary_inputs_show_nothing():
    """The friend's test: agreement wherever each query sees a word, and only there."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(1000):
        q, k, v = (torch.randn(2, n, 3, generator=rng) for n in (3, 4, 4))
        lengths = torch.randint(1, 5, (2,), generator=rng)
        mask = (torch.arange(4) < lengths[:, None])[:, None]
        ours, theirs = (
            attention.shown(q, k, v, mask)[0],
            F.scaled_dot_product_attention(q, k, v, mask),
        )
        assert torch.allclose(ours, theirs, atol=1e-5)
    mask[:] = False
    assert not F.scaled_dot_product_attention(q, k, v, mask).any()
    assert attention.shown(q, k, v, mask)[0].all()


def test_the_example_of_top_p_is_true():
    """ "For the shares 0.5, 0.3, 0.15, 0.05 and top_p = 0.6, two words stay." """
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for each in nucleus.RIGHT.values():
        assert (each(logits, 0.6) > -torch.inf).tolist() == [[True, True, False, False]]
    assert (nucleus.shown(logits, 0.6) > -torch.inf).tolist() == [[True, False, False, False]]
    assert not (nucleus.shown(logits, 0.4) > -torch.inf).any()


def test_the_table_of_changes_is_what_the_full_answer_says():
    """The course's test refuses what does not clear dead rows, and accepts the other changes."""
    from attncourse import in_the_wild

    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
    source = "".join(cells["experiment"]["source"]).partition("\ntests = ")[0]
    names = {"torch": torch, "math": __import__("math")}
    exec(source, names)
    said = {each: names["says"](in_the_wild.test_attention, each) for each in names["CHANGES"]}
    refused = {each for each, verdict in said.items() if verdict == "refuses"}
    assert refused == {
        "dead rows are not cleared",
        "−∞ as the fill, dead rows are not cleared",
    }
    assert len(names["CHANGES"]) == 7

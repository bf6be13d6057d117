"""Statements of chapter 14 and its exercise that a skeptic would doubt."""

import ast
import contextlib
import io
import itertools
import json
import math
import re
import sys
import types
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from attncourse import in_the_wild
from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.checks import registry
from attncourse.cross_attention import Transformer
from attncourse.experiments import in_the_wild as survey
from attncourse.experiments import in_the_wild_curves
from attncourse.masking import causal_mask
from attncourse.number_words import BOS, PAD, corpus
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


def test_the_experiment_shows_what_the_full_answer_says(capsys):
    """The course's test refuses where a hidden row is seen, and accepts the other three."""
    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
    names = {"torch": torch, "math": math, "use": lambda name: getattr(in_the_wild, name)}
    exec("".join(cells["experiment"]["source"]), names)
    capsys.readouterr()
    said = {
        test: {what for what, each in names["BROKEN"].items() if names["says"](ask, each)[0] == "r"}
        for test, ask in names["tests"].items()
    }
    assert len(names["BROKEN"]) == 7
    assert said == {
        "yours": {
            "the mask is not looked at",
            "all queries see what the first one sees",
            "the output has a mask, the weights have none",
        },
        "of shapes": set(),
        "of sums": {"hidden keys take their share first"},
    }


# --- the page: who was counted

ROWS = survey.stored()["items"]
KNOWN = {row["task"]: registry.find(row["task"]).faults for row in ROWS}
COUNTS = survey.counted(ROWS, KNOWN)
TEXT = (ROOT / "book" / "14_in_the_wild.md").read_text("utf-8")
RULE = (ROOT / "tests" / "bench" / "in_the_wild.md").read_text("utf-8")


def code_of_page():
    cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", TEXT, re.M | re.S)
    return "\n".join(re.sub(r"\A---\n(?:.*\n)*?---\n|\A(?::.*\n)+", "", cell) for cell in cells)


@pytest.fixture(scope="module")
def page():
    """What the page's cells define, and under "glued" what stands in its sentences."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the page draws")
    pyplot.switch_backend("Agg")
    glued = {}
    sentences = types.SimpleNamespace(glue=lambda name, value, display: glued.update({name: value}))
    names = {"glued": glued}
    with (
        mock.patch.dict(sys.modules, {"myst_nb": sentences}),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        exec(code_of_page(), names)
    pyplot.close("all")
    return names


def test_the_rule_is_older_than_the_page_and_says_what_the_page_says():
    """ "on 27 November 2026, before any of the files was opened" """
    assert "on 27 November 2026, before any of the files was opened" in RULE
    assert "on 27 November 2026, before any of the files was opened" in TEXT
    for said in (
        "at most one hundred",
        "the second repository, the fifth, the eighth",
        "at most twelve",
    ):
        assert said in RULE
    assert "ratio of the normalized syntax trees of 0.95" in RULE


def test_a_row_leads_back_to_nobody():
    """ "nothing that leads back to its file" """
    keys = {"task", "kinds", "excludes", "failed", "not theirs", "named", "partly", "title"}
    checks = {task: set(registry.find(task).checks) for task in KNOWN}
    for row in ROWS:
        assert row.keys() == keys
        assert {*row["failed"], *row["not theirs"]} <= checks[row["task"]]
        assert not any(re.search(r"[/@]|\.py|http", kind) for kind in row["kinds"]), row["kinds"]
    # The order of rows tells nothing: a task's rows do not stand together.
    together = sum(a["task"] == b["task"] for a, b in itertools.pairwise(ROWS))
    assert together < 0.3 * len(ROWS)


def test_the_sections_are_the_five_commonest_in_order():
    """ "Five mistakes were named in more items than any other … the one with most items first." """
    part = TEXT.partition("(wild-five)=")[2].partition("(wild-costs)=")[0]
    order = re.findall(r"\{glue:text\}`count_([A-Z0-9-]+?)(?:_alone)?`", part)
    ranked = survey.commonest(COUNTS)
    assert order == [name for name, *_ in ranked[:5]]
    for name in order:
        assert name in KNOWN["scaled_dot_product_attention"] or any(
            name in of for of in KNOWN.values()
        )


def test_every_bar_and_every_task_has_a_name_of_its_own(page):
    shown = [name for name, n, _ in survey.commonest(COUNTS) if n >= 2]
    assert [name for name in shown if name not in page["short"]] == []
    assert KNOWN.keys() <= page["called"].keys()
    assert len(set(page["short"].values())) == len(page["short"])


def test_some_tasks_are_nearly_all_right_and_some_nearly_all_wrong(page):
    """What the first figure's words say to a reader who cannot see it."""
    share = {task: each[0] / sum(each) for task, each in page["found"].items()}
    assert min(share["padding_mask"], share["causal_mask"]) > 0.85
    assert max(share["sinusoidal_positions"], share["MultiHeadAttention"]) < 0.15
    longest = sorted(page["found"], key=lambda task: -sum(page["found"][task]))
    assert set(longest[:2]) == {"sinusoidal_positions", "MultiHeadAttention"}


def test_what_authors_exclude_is_no_defect_and_code_without_masks_is_not_counted_for_masks():
    row = {
        "named": ["P-ODD"],
        "excludes": ["P-ODD"],
        "failed": ["x"],
        "not theirs": [],
        "partly": False,
    }
    assert survey.found_in(row) == [] and survey.verdict(row) == "excluded"
    assert survey.verdict(row | {"partly": True}) == "wrong"
    assert survey.verdict(row | {"failed": []}) == "right"
    assert not survey.is_asked(row, "P-ODD") and survey.is_asked(row, "P-FREQ")
    for no_masks in ({"excludes": ["M-IGNORED"]}, {"not theirs": ["a mask may broadcast"]}):
        assert not survey.is_asked(row | no_masks, "M-DEAD-ROW")
        assert survey.is_asked(row | no_masks, "D-NO-SCALE")
    for of in COUNTS.values():
        assert all(0 <= n <= asked for n, asked in of.values())


@pytest.mark.parametrize(("count", "of"), [(0, 20), (7, 14), (70, 140), (22, 37), (20, 20)])
def test_an_interval_of_wilson_ends_where_the_count_would_be_too_far_off(count, of):
    """At both ends p, the count is z standard deviations from what p lets expect."""
    for end in survey.wilson(count, of):
        assert 0 <= end <= 1
        if 1e-9 < end < 1 - 1e-9:
            apart = abs(count / of - end) / math.sqrt(end * (1 - end) / of)
            assert apart == pytest.approx(1.96, abs=1e-6)
    low, high = survey.wilson(0, 20)  # "from 0 to z² / (n + z²) = 3.84 / 23.84, that is 16%"
    assert (low, round(high, 2)) == (0, 0.16)
    assert high == pytest.approx(3.84 / 23.84, abs=1e-3)


# --- the page: what it costs

COST = in_the_wild_curves.measured()


def test_an_empty_row_below_minus_infinity_ends_the_training_in_three_seeds():
    right, padded = COST["trained"]["right"], COST["trained"]["right, with an empty row"]
    assert (
        len(right) == 3 and right == padded == COST["trained"]["a fill of -1e9, with an empty row"]
    )
    assert COST["trained"]["a fill of -∞, with an empty row"] == [0, 0, 0]


@pytest.mark.slow
def test_after_one_step_every_weight_is_nan():
    """ "from the first step on, every weight is NaN" """
    task = corpus(digits=3, size=1000, progress=False)
    torch.manual_seed(0)
    sizes = len(task.source_words), len(task.target_words)
    model = Transformer(*sizes, model_width=32, hidden_width=64, num_layers=1)
    in_the_wild_curves.with_defect(model, "a fill of -∞")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = task.train.pick(torch.arange(8))
    source, target = (F.pad(x, (0, 0, 0, 1), value=PAD) for x in (batch.source, batch.target))
    loss = sequence_loss(model(source, teacher_inputs(target, BOS)), target, PAD)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert all(weight.isnan().all() for weight in model.parameters() if weight.grad is not None)


def test_what_is_put_into_a_trained_translator_costs_what_the_page_says():
    put_in = COST["put in"]
    right = put_in["right"]
    for free in ("-∞", "-1e9", "-10,000", "-100", "-10"):
        assert put_in[f"a fill of {free}"] == right
    assert put_in["a fill of 1e-9, its minus lost"] < 0.6 < put_in["a fill of -1"] < right - 0.1
    assert put_in["no √d"] < put_in["√m in place of √d"] < right
    assert put_in["dropout 0.3, never off"] < put_in["dropout 0.1, never off"] < right - 0.1


def test_a_missing_root_that_was_trained_with_costs_no_more_than_a_seed():
    right = COST["trained"]["right"]
    signs = [a > b for a, b in zip(COST["trained"]["no √d"], right, strict=True)]
    assert sorted(signs) == [False, False, True]
    each = [
        a - b for a, b in zip(COST["trained"]["a frequency for each feature"], right, strict=True)
    ]
    assert sorted((x > 0) - (x < 0) for x in each) == [-1, -1, 0]
    lost = [a - b for name in ("no √d", "a frequency for each feature")
            for a, b in zip(right, COST["trained"][name], strict=True)]  # fmt: skip
    assert max(lost) < max(right) - min(right)  # "Seeds differ by more."


# --- the page: what is harmless, and the ten questions


def test_an_empty_row_leaves_a_number_as_the_loss_and_none_in_the_gradient(page):
    assert page["loss"].isfinite() and page["gradient"].isnan().all()


def test_a_width_of_66_is_33_each():
    from attncourse.pictures import positions_2d
    from attncourse.self_attention import sinusoidal_positions

    assert torch.equal(positions_2d(2, 1, 66)[:, :33], sinusoidal_positions(2, 33))


def test_a_finite_fill_is_minus_infinity_where_each_query_sees_a_key(page):
    rng, hidden = torch.Generator().manual_seed(1), ~causal_mask(9)
    for scale in (1, 100, 10_000):
        scores = scale * torch.randn(20, 9, 9, generator=rng)
        one, other = (scores.masked_fill(hidden, x).softmax(-1) for x in (-1e9, -math.inf))
        assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="overflow"):
        scores.half().masked_fill(hidden, -1e9)
    for dtype, last in ((torch.float32, 88), (torch.float16, 11)):
        for top in (last, last + 1):
            weights = page["copied_softmax"](torch.tensor([top, 0.0], dtype=dtype))
            assert weights.isfinite().all() == (top == last)


def test_two_of_three_tests_accept_a_softmax_over_the_queries(page):
    said = [page["accepts"](page[name], page["over_queries"])
            for name in ("test_shape", "test_equal_words", "test_sums")]  # fmt: skip
    assert said == ["accepts", "accepts", "refuses"]
    assert all(
        page["accepts"](page[name], page["copied_attention"]) == "accepts"
        for name in ("test_shape", "test_equal_words", "test_sums")
    )


def test_ten_questions_of_two_lines_find_somebody_each_and_never_the_course(page):
    """ "Each of the first five gets a *no*, and each question finds somebody." """
    questions = page["questions"]
    source = {
        n.name: n for n in ast.walk(ast.parse(code_of_page())) if isinstance(n, ast.FunctionDef)
    }
    assert len(questions) == 10
    assert all(len(source[question.__name__].body) == 2 for question in questions)
    said = {
        name: [page["says"](question, attention) for question in questions]
        for name, attention in page["asked"].items()
    }
    *wrong, ours = said.values()
    assert ours == ["·"] * 10 and len(wrong) == 5
    assert all("no" in row for row in wrong)
    assert all("no" in column for column in zip(*wrong, strict=True))


def test_inspect_is_a_command_that_the_page_names():
    import typer

    from attncourse import cli

    assert "`attncourse inspect FILE.py`" in TEXT
    assert "inspect" in typer.main.get_command(cli.app).commands

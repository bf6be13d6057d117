"""The shared pictures: right numbers, clear errors, one state without a script, all by keyboard."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from browser import needs_browser
from matplotlib.colors import to_rgb

from attncourse import plots
from attncourse.masking import causal_mask

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_windows(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    with plt.rc_context({"backend": "agg", **plots.STYLE}):
        yield
    plt.close("all")


@pytest.mark.slow
def test_the_package_itself_does_not_load_the_plots():
    code = "import sys, attncourse.scaled_dot_product; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# --- heat maps and dependency maps ---------------------------------------------------------------


def test_heat_map_says_which_side_does_not_fit():
    with pytest.raises(ValueError, match=r"2 queries \(rows\) and 2 keys"):
        plots.heat_map(torch.ones(2, 3), ["cent", "quatre"], ["one", "four"])


def luminance(color):
    """As WCAG 2.1 defines it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return sum(part * c for part, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.slow
def test_numbers_on_a_heat_map_can_be_read_on_every_blue():
    for row in torch.linspace(0, 1, 200).view(-1, 8):
        ax = plots.heat_map(row[None], ["q"], list("abcdefgh"))
        for weight, number in zip(row, ax.texts, strict=True):
            shades = [luminance(c) for c in (ax.images[0].to_rgba(weight), number.get_color())]
            assert (max(shades) + 0.05) / (min(shades) + 0.05) >= 4.5, weight
        plt.close(ax.figure)


def overlaps(labels):
    boxes = [label.get_window_extent() for label in labels]
    return any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


@pytest.mark.slow
@pytest.mark.parametrize(("q", "k"), [(24, 26), (24, 5), (3, 26)])
def test_words_beside_a_large_heat_map_do_not_touch_each_other(q, k):
    ax = plots.heat_map(torch.full((q, k), 1 / k), ["quatre-vingts"] * q, ["thousand"] * k)
    ax.figure.draw_without_rendering()
    assert ax.figure.get_figwidth() <= 4.8
    assert not overlaps(ax.get_yticklabels())
    if k > 12:  # upright; slanted words may share corners of their boxes
        assert not overlaps(ax.get_xticklabels())


def test_dependency_map_has_a_square_for_yes_and_a_dot_for_no():
    ax = plots.dependency_map(causal_mask(3), ["a", "b", "c"])
    squares = {(round(p.get_y() + 0.4), round(p.get_x() + 0.4)) for p in ax.patches}
    assert squares == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
    (dots,) = ax.collections
    assert {(y, x) for x, y in dots.get_offsets().tolist()} == {(0, 1), (0, 2), (1, 2)}
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("output", "input")


@pytest.mark.parametrize("wrong", [torch.ones(3, 3), causal_mask(2), causal_mask(2, 3)])
def test_dependency_map_wants_a_square_of_booleans(wrong):
    with pytest.raises(ValueError, match="boolean"):
        plots.dependency_map(wrong, ["a", "b", "c"])


def test_bars_of_shares_have_their_counts_and_intervals_beside_them():
    ax = plots.share_bars(["often", "never"], [3, 0], [4, 20], [(0.3, 0.95), (0.0, 0.16)])
    assert [bar.get_width() for bar in ax.patches] == [0.75, 0]
    assert [line.get_xdata().tolist() for line in ax.lines] == [[0.3, 0.95], [0.0, 0.16]]
    assert [text.get_text() for text in ax.texts] == ["3 of 4", "0 of 20"]
    assert ax.yaxis_inverted()
    with pytest.raises(ValueError, match="zip"):
        plots.share_bars(["often"], [3, 0], [4, 20], [(0.3, 0.95), (0.0, 0.16)])


# --- tables, sliders, sentences ------------------------------------------------------------------


def test_table_is_a_table_on_screen_and_in_a_terminal():
    table = plots.Table(torch.tensor([[1.5, 2000]]), ["a<b"], ["x", "y"], digits=[1, 0], corner="n")
    assert repr(table).splitlines() == ["n      x      y", "a<b  1.5  2,000"]
    assert "<th scope='row'>a&lt;b</th><td>1.5</td><td>2,000</td>" in table._repr_html_()


def slider(label="width"):
    pictures = [
        [
            plots.bars_svg(torch.tensor([w, 1 - w]), "ab", "<t>", "red"),
            plots.marked_words("model", ["quatre-vingts"] * 12, [1]),
        ]
        for w in (0, 1)
    ]
    return plots.Slider(label, ["1", "2"], pictures, ["it's 0", "it's 1"], start=1)


def test_slider_is_the_same_in_every_build_and_needs_no_script_to_show_something():
    page = slider()._repr_html_()
    assert page == slider()._repr_html_()
    assert "&lt;t&gt;" in page and "<t>" not in page
    frames = re.findall(r"<div class='frame'[^>]*>", page)
    assert [frame.endswith("hidden>") for frame in frames] == [True, False]
    assert '<output aria-live="polite">it&#39;s 1</output>' in page


def test_lines_stay_within_their_picture_and_mark_one_place():
    lines = torch.tensor([[-3.2, 0.0, 1.5], [0.0, 0.0, 0.0]])
    picture = plots.lines_svg(lines, [-4, 0, 4], 2, "<t>")
    assert "&lt;t&gt;" in picture and "<t>" not in picture
    assert ">−4</text>" in picture and ">+4</text>" in picture  # a minus is no hyphen
    points = [tuple(map(float, p.split())) for p in re.findall(r"[ML]([\d.]+ [\d.]+)", picture)]
    right, bottom = map(float, re.search(r"viewBox='0 0 (\d+) (\d+)'", picture).groups())
    assert all(0 <= x <= right and 0 <= y <= bottom for x, y in points)
    assert len(re.findall("<circle", picture)) == len(lines)


def test_a_wrong_word_is_marked_for_eyes_and_ears():
    sentence = plots.marked_words("<model>", ["cent", "mi<le", "un"], {1})
    assert sentence.startswith("<p><b>&lt;model&gt;:</b> cent <u style='text-decoration:underline")
    assert sentence.endswith("wrong: </span>mi&lt;le</u> un</p>")
    assert sentence.count("<u ") == 1


@pytest.mark.parametrize("place", [2, -1])
def test_a_marked_place_is_inside_the_sentence(place):
    with pytest.raises(ValueError, match="places 0 to 1"):
        plots.marked_words("model", ["cent", "un"], [place])


# --- AttentionView: what Python writes -----------------------------------------------------------


def view(**changes):
    first = {
        "weights": torch.tensor([[0.104, 0.812, 0.084], [0.0, 0.0, 0.0]]),
        "queries": ["cent", "<b>"],
        "keys": ["nine", "hundred", "nine"],
        "note": "A & B.",
    }
    return plots.View(**{**first, **changes})


def figure():
    """Two heads and two masks; each of the four has numbers of its own, and one is smaller."""
    views = {}
    for place, options in enumerate([("1", "no"), ("1", "yes"), ("2", "no"), ("2", "yes")]):
        weights = torch.eye(3)[[place % 3, (place + 1) % 3]] * 0.75 + 0.01 * place
        views[options] = plots.View(weights, ["un", "deux"], ["a", "b", "c"], f"{options}")
    views["2", "yes"] = plots.View(torch.ones(1, 1), ["deux"], ["</script><b>"], "small")
    return plots.AttentionView(views, {"head": ["1", "2"], "mask": ["no", "yes"]}, "Two <heads>")


def stored(figure):
    return json.loads(re.search(r'application/json">(.*?)</script>', figure._repr_html_())[1])


def test_the_stored_numbers_are_the_weights_in_hundredths():
    data = stored(plots.AttentionView(view()))
    assert data["tokens"] == [["cent", "<b>"], ["nine", "hundred", "nine"]]
    assert data["views"] == [[0, 1, "10,81,8;,,", "A & B."]]


def test_views_come_in_the_order_of_the_choices_and_share_their_tokens():
    data = stored(figure())
    assert [note for *_, note in data["views"]][:3] == [
        "('1', 'no')",
        "('1', 'yes')",
        "('2', 'no')",
    ]
    assert data["tokens"] == [["un", "deux"], ["a", "b", "c"], ["deux"], ["</script><b>"]]


def test_without_a_script_the_first_query_of_the_first_view_is_shown():
    page = plots.AttentionView(view(), label="a < b")._repr_html_()
    before = page[: page.index('<script type="application/json">')]
    assert "<b>a &lt; b</b>" in before and "A &amp; B." in before
    assert re.findall(r"<i>([\d.]+)</i><span style='--w:\d+'>(\w+)", before) == [
        ("0.10", "nine"),
        ("0.81", "hundred"),
        ("0.08", "nine"),
    ]
    assert "name='query' checked><span>cent</span>" in before
    assert "name='query'><span>&lt;b&gt;</span>" in before
    assert before.count("<path d='M0 0.5C50 0.5 ") == 3
    assert "Query “cent”: 0.81 on “hundred”" in before
    assert "<fieldset disabled>" in before and "<details hidden>" in before


def test_nothing_in_a_figure_can_become_html():
    page = figure()._repr_html_()
    assert page.count("</script>") == 2 and "</script><b>" not in page
    assert "Two <heads>" not in page


def test_the_sentence_names_three_keys_and_tells_repeated_words_apart():
    assert view()._sentence(0) == (
        "Query “cent”: 0.81 on “hundred”, 0.10 on “nine” (no. 1), 0.08 on “nine” (no. 3)."
    )
    assert view()._sentence(1) == "Query “<b>” attends to nothing."
    sure = view(weights=torch.tensor([[1.0, 1e-6, 0.0]]), queries=["x"])
    assert sure._sentence(0) == "Query “x”: 1.00 on “nine” (no. 1)."


def test_a_figure_is_the_same_in_every_build_and_unlike_others():
    assert figure()._repr_html_() == figure()._repr_html_()
    ids = [
        re.search(r' id="([^"]+)"', each._repr_html_())[1]
        for each in (figure(), plots.AttentionView(view()))
    ]
    assert ids[0] != ids[1]


def test_a_terminal_gets_the_choices_and_the_sentence():
    assert repr(figure()).startswith(
        "AttentionView('Two <heads>'; head 1 | 2; mask no | yes; Query “un”: 0.75 on “a”"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": ["a"]}, r"shape \(2, 3\).*2 queries \(rows\) and 1 keys"),
        ({"weights": torch.ones(1, 2, 3)}, r"shape \(1, 2, 3\)"),
        ({"weights": torch.ones(2, 0), "keys": []}, r"shape \(2, 0\)"),
        ({"weights": torch.full((2, 3), -1.0)}, "between 0 and 1; these go from -1"),
        ({"weights": torch.full((2, 3), torch.nan)}, "these go from nan"),
    ],
)
def test_numbers_that_are_no_weights_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        view(**changes)


def test_each_combination_needs_its_view():
    choices = {"head": ["1", "2"]}
    with pytest.raises(ValueError, match=r"\['head'\]; missing: \[\('2',\)\]"):
        plots.AttentionView({("1",): view()}, choices)
    with pytest.raises(ValueError, match=r"not a combination: \[\('3',\)\]"):
        plots.AttentionView({(head,): view() for head in "123"}, choices)
    with pytest.raises(ValueError, match=r"missing: \[\('1',\), \('2',\)\]"):
        plots.AttentionView(view(), choices)


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def show(tab, tmp_path):
    """Write figures to a page of their own, and open it."""

    def show(*figures, **how):
        page = tmp_path / "page.html"
        body = "<hr>".join(each._repr_html_() for each in figures)
        page.write_text(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>figures</title>"
            "<meta name='viewport' content='width=device-width'>"
            f"<main style='font: 16px sans-serif; color: #222'>{body}</main></html>",
            "utf-8",
        )
        tab.open(page, **how)
        return tab

    return show


SEEN = """[...document.querySelectorAll(".attention")].map(figure => ({
    query: figure.querySelector(".queries :checked + span").textContent,
    keys: [...figure.querySelectorAll(".keys li")].map(key => key.innerText.split("\\n")),
    lines: figure.querySelectorAll("path").length,
    said: figure.querySelector("output").textContent,
    note: figure.querySelector(".note").textContent,
}))"""


def choose(tab, place, name):
    tab.run(f"document.querySelectorAll('.choice input')[{place}].click()")
    return tab.run(f"return {SEEN}")[name]


@pytest.mark.slow
@needs_browser
def test_the_script_draws_what_python_wrote(show):
    for each in (figure(), plots.AttentionView(view())):
        tab = show(each)
        page = each._repr_html_()
        first = each._ordered()[0]
        (seen,) = tab.run(f"return {SEEN}")
        assert seen["said"] == first._sentence(0) and seen["note"] == first.note
        assert [weight for weight, _ in seen["keys"]] == re.findall(r"<i>(.+?)</i>", page)
        assert [word for _, word in seen["keys"]] == first.keys
        assert seen["lines"] == page.split("<script")[0].count("<path d=")


@pytest.mark.slow
@needs_browser
def test_arrow_keys_move_the_query_and_the_sentence_follows(show):
    tab = show(plots.AttentionView(view()))
    tab.press("Tab")
    tab.press("ArrowDown")
    (seen,) = tab.run(f"return {SEEN}")
    assert seen["query"] == "<b>" and seen["said"] == view()._sentence(1)
    assert [weight for weight, _ in seen["keys"]] == ["0", "0", "0"] and seen["lines"] == 0
    outline = "getComputedStyle(document.querySelector('.queries :checked + span')).outlineStyle"
    assert tab.run(f"return {outline}") == "solid"
    tab.press("ArrowUp")
    assert tab.run(f"return {SEEN}")[0]["said"] == view()._sentence(0)
    tab.press("Tab")  # one stop for all queries; the next is the table below
    assert tab.run("return document.activeElement.tagName") == "SUMMARY"


@pytest.mark.slow
@needs_browser
def test_a_mouse_points_at_a_query(show):
    tab = show(plots.AttentionView(view()))
    tab.point_at(".queries label:nth-child(2)")
    assert tab.run(f"return {SEEN}")[0]["query"] == "<b>"


@pytest.mark.slow
@needs_browser
def test_choices_switch_the_view_and_keep_the_query(show):
    tab = show(figure())
    views = figure().views
    tab.press("Tab"), tab.press("Tab"), tab.press("Tab"), tab.press("ArrowDown")
    assert tab.run(f"return {SEEN}")[0]["said"] == views["1", "no"]._sentence(1)
    seen = choose(tab, 1, 0)
    assert (seen["said"], seen["note"]) == (views["2", "no"]._sentence(1), "('2', 'no')")
    seen = choose(tab, 3, 0)
    assert (seen["said"], seen["note"]) == (views["2", "yes"]._sentence(0), "small")
    assert seen["keys"] == [["1.00", "</script><b>"]]  # "deux" is now the first query
    seen = choose(tab, 0, 0)
    assert seen["said"] == views["1", "yes"]._sentence(1)


def heads():
    """Two attentions of two heads, of other words."""
    tables = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]])
    return {"first": tables, "second": tables.flip(0)}


def test_a_table_of_heads_has_a_small_map_for_each_and_loads_nothing():
    page = plots.head_view(heads(), ["un", "deux"], label="heads", start=1)._repr_html_()
    names = re.findall(r"aria-label='attention (\w+), head (\d)'", page)
    assert names == [("first", "0"), ("first", "1"), ("second", "0"), ("second", "1")]
    assert page.count("<svg class='small'") == 4 and page.count("name='choice-0'") == 4
    assert "M0 0h1v1h-1z" in page and "src=" not in page and "url(" not in page
    assert "name='query' checked><span>deux</span>" in page
    assert "0.75 on “deux”, 0.25 on “un”." in page


@pytest.mark.parametrize(
    "words, options, error",
    [
        (["un", "deux"], {"start": 2}, "start must be a query of the first view, 0 to 1"),
        (["un"], {}, "weights have shape (2, 2), but there are 1 queries"),
    ],
)
def test_heads_that_do_not_fit_are_refused(words, options, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        plots.head_view(heads(), words, **options)
    with pytest.raises(ValueError, match="every attention must have as many heads"):
        plots.head_view(heads() | {"third": torch.ones(1, 2, 2) / 2}, words)
    with pytest.raises(ValueError, match="pictures need two choices; got 0"):
        plots.AttentionView(view(), pictures=True)


@pytest.mark.slow
@needs_browser
def test_arrow_keys_move_through_the_table_of_heads(show):
    tab = show(plots.head_view(heads(), ["un", "deux"], start=1))
    assert "0.75" in tab.run(f"return {SEEN}")[0]["said"]
    tab.press("Tab"), tab.press("ArrowDown")
    assert "0.50" in tab.run(f"return {SEEN}")[0]["said"]  # first, head 1
    tab.press("Tab")  # one stop for all heads; the next are the queries
    assert tab.run("return document.activeElement.name") == "query"
    tab.press("ArrowUp")
    assert tab.run(f"return {SEEN}")[0]["said"] == "Query “un”: 1.00 on “un”."


@pytest.mark.slow
@needs_browser
def test_the_table_holds_the_view_that_is_shown(show):
    tab = show(figure())
    table = "[...document.querySelectorAll('tr')].map(row => [...row.cells].map(c => c.innerText))"
    tab.run("document.querySelector('summary').click()")
    tab.wait("document.querySelector('tr')")
    head = ["query", "a", "b", "c"]
    assert tab.run(f"return {table}") == [
        head,
        ["un", "0.75", "0", "0"],
        ["deux", "0", "0.75", "0"],
    ]
    choose(tab, 1, 0)
    assert tab.run(f"return {table}") == [
        head,
        ["un", "0.02", "0.02", "0.77"],
        ["deux", "0.77", "0.02", "0.02"],
    ]


@pytest.mark.slow
@needs_browser
def test_figures_on_one_page_do_not_disturb_each_other(show):
    tab = show(figure(), figure(), plots.AttentionView(view()), slider())
    before = tab.run(f"return {SEEN}")
    tab.run("document.querySelectorAll('.attention')[1].querySelectorAll('label')[1].click()")
    tab.run(
        "document.querySelectorAll('.attention')[1].querySelectorAll('.queries label')[1].click()"
    )
    after = tab.run(f"return {SEEN}")
    assert after[1]["said"] == figure().views["2", "no"]._sentence(1)
    assert [after[0], after[2]] == [before[0], before[2]]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [320, 390])
def test_long_sentences_fit_on_a_telephone(show, width):
    torch.manual_seed(0)
    weights = torch.randn(24, 26).mul(3).softmax(-1)
    large = plots.View(weights, ["quatre-vingts"] * 24, ["thousand"] * 26)
    tab = show(plots.AttentionView(large, label="Long"), slider(), width=width)
    assert tab.run("return document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.map span')].filter(s => s.scrollWidth > s.offsetWidth)"
    assert tab.run(f"return {cut}.length") == 0
    assert tab.run("return document.querySelector('.queries label').offsetHeight") >= 24


@pytest.mark.slow
@needs_browser
def test_axe_finds_nothing_in_the_figures(show):
    assert show(figure(), plots.AttentionView(view()), slider()).violations() == []


@pytest.mark.slow
@needs_browser
def test_the_slider_shows_one_frame_and_says_which(show):
    tab = show(slider())
    tab.run("document.querySelector('input').focus()")
    tab.press("ArrowLeft")
    seen = tab.run(
        """const frames = [...document.querySelectorAll(".frame")].filter(f => f.offsetHeight);
        return {
            frames: frames.map(frame => frame.getAttribute("aria-label")),
            said: document.querySelector("output").textContent,
            position: document.querySelector("input").getAttribute("aria-valuetext"),
        };"""
    )
    assert seen == {"frames": ["it's 0"], "said": "it's 0", "position": "width = 1"}

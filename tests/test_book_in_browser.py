"""The built book as readers see it: in a browser, on a telephone, in the dark, by keyboard."""

import csv
import json
import re
from pathlib import Path

import pytest
from browser import audit, browser, needs_browser, walk
from built import CHAPTERS, HTML, PAGES, ROOT, load

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture(scope="module")
def audited(book, tmp_path_factory):
    pages = [page for page in book if page.parent == HTML / "book"]
    kinds = ("index", "03_scaled", "05_multi", "06_mask", "12_look", "lab1", "rosetta")
    closely = [page for page in pages if page.stem.startswith(kinds)]
    return audit([*pages, HTML / "search.html"], tmp_path_factory.mktemp("b"), closely)


def test_the_style_that_was_left_out_fits_no_element(book, tmp_path):
    import sphinx_book_theme

    light_pages = load(ROOT / "book" / "_ext" / "light_pages.py")
    theme = Path(sphinx_book_theme.__file__).parent / "theme" / "sphinx_book_theme" / "static"
    whole = (theme / "styles" / "sphinx-book-theme.css").read_text("utf-8")
    whole += (ROOT / "book" / "_static" / "custom.css").read_text("utf-8")

    def selectors(css):
        for selector, body in light_pages.rules(css):
            if body and selector.startswith("@media"):
                yield from selectors(body)
            elif body and not selector.startswith("@"):
                yield from (re.sub(r"\s", "", each) for each in light_pages.selectors(selector))

    left = set(selectors((HTML / "_static" / "book.css").read_text("utf-8")))
    lost, found = [], list(selectors(re.sub(r"/\*.*?\*/", "", whole, flags=re.DOTALL)))
    for selector, body in light_pages.rules(re.sub(r"/\*.*?\*/", "", whole, flags=re.DOTALL)):
        if body and not selector.startswith("@"):
            each = light_pages.selectors(selector)
            lost += [one for one in each if re.sub(r"\s", "", one) not in left]
    assert len(found) > 100 and lost
    fits = f"""return {json.dumps(lost)}.filter(selector => {{
        const still = selector.replace(/::?(before|after|hover|focus[a-z-]*|active|visited)/g, "");
        try {{ return document.querySelector(still || "*"); }} catch {{ return false; }}
    }})"""
    with browser(tmp_path) as tab:
        for name in ("book/07_cross_attention", "book/index", "book/mistakes/masking", "search"):
            tab.open(HTML / f"{name}.html", width=1440)
            assert tab.run(fits) == [], name


def test_on_paper_a_link_knows_the_page_it_leads_to(tmp_path):
    on_paper, page = load(ROOT / "book" / "on_paper.py"), tmp_path / "page.html"
    ids = ["book/page", "book/page--answer-1", "fig-2"]
    links = "".join(f"<a href='#{id}'>to</a>" for id in ids)
    places = "".join(f"<p id='{id}' style='break-before: page'>here" for id in ids)
    page.write_text(f"<!DOCTYPE html><meta charset=utf-8>{links}{places}", "utf-8")
    on_paper.print_page(page, tmp_path / "page.pdf")
    pages = on_paper.pages_in(tmp_path / "page.pdf")
    assert [pages[id] for id in ids] == [2, 3, 4]


def test_no_page_is_wider_than_its_window_and_formulas_are_set_and_whole(audited):
    for (page, _, width), seen in audited.items():
        assert seen["width"] <= width, page.name
        assert seen["set"] >= seen["formulas"], page.name
        assert seen["room"] >= 1, page.name


def test_no_script_of_a_page_fails(audited):
    assert {
        page.name: seen["errors"] for (page, *_), seen in audited.items() if seen["errors"]
    } == {}


@pytest.mark.parametrize("pale", [".mi", ".hll .n", "[style]"])
def test_a_word_of_code_that_is_too_pale_is_found(tmp_path, pale):
    """Only one word of each kind is looked at, and not one of a single letter."""
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><html lang=en><title>A page</title><style>{pale} {{color: #b8b8b8}}"
        "</style><main><h1>A page</h1><details><summary>Answer</summary><div class=highlight><pre>"
        "<span class=n>long_name</span><span class=o>=</span><span class=mi>2</span>\n"
        "<span class=n>name</span><span class=o>+=</span><span class=mi>182</span>\n"
        "<span class=hll><span class=n>last</span><span class=n style=''>styled</span></span>"
        "</pre></div></details></main>",
        "utf-8",
    )
    seen = audit([page], tmp_path, [])
    assert any("color-contrast" in each for each in seen[page, "light", 390]["violations"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_barrier_against_wcag_2_1_aa(audited, theme):
    found = {
        (page.name, width): seen["violations"]
        for (page, shown, width), seen in audited.items()
        if shown == theme and "violations" in seen
    }
    assert len(found) >= {"light": len(PAGES) + 7, "dark": 2 * 7}[theme]
    assert {place: barriers for place, barriers in found.items() if barriers} == {}


# Buttons, and what is in the row above a page: what has no mark, or one too small to touch.
UNSEEN = """
    const isShown = each =>
        each.checkVisibility({opacityProperty: true, visibilityProperty: true});
    const size = each => [each, ...each.querySelectorAll("*")].filter(isShown)
        .map(part => part.getBoundingClientRect()).map(box => Math.min(box.width, box.height));
    const mark = "[class*='fa-'], svg, img, input";
    return [...document.querySelectorAll("button, summary, .bd-header-article a")].filter(each =>
        isShown(each) && (Math.max(...size(each)) < 24
            || !each.textContent.trim() && ![...each.querySelectorAll(mark)].some(isShown))
    ).map(each => each.outerHTML.slice(0, 120));"""
# Icons without a letter, or as pale as what is behind them.
EMPTY = """
    const behind = each => {
        const color = getComputedStyle(each).backgroundColor;
        const isClear = color === "rgba(0, 0, 0, 0)" && each.parentElement;
        return isClear ? behind(each.parentElement) : color;
    };
    return [...document.querySelectorAll("[class*='fa-']")].filter(each => {
        const letter = getComputedStyle(each, "::before");
        return ["none", "normal", '""'].includes(letter.content)
            || letter.color === behind(each);
    }).map(each => each.outerHTML);"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_control_has_a_mark_that_one_sees_and_can_touch(book, tab, theme):
    for name in ("book/index", "book/03_scaled_dot_product", "book/mistakes/masking", "search"):
        tab.open(HTML / f"{name}.html", theme=theme)
        for width in (1440, 800, 390):
            tab.resize(width)
            assert tab.run(UNSEEN) == [], (name, width)
            assert tab.run(EMPTY) == [], (name, width)


def test_the_menu_of_chapters_opens_on_a_phone(book, tab):
    chapters = "document.querySelector('.bd-sidebar-primary a[href*=\"07_\"]')"
    tab.open(HTML / "book" / "03_scaled_dot_product.html", width=390)
    assert not tab.run(f"return {chapters}.checkVisibility({{visibilityProperty: true}})")
    tab.run("document.querySelector('.primary-toggle').click()")
    tab.wait(f"(box => box.left >= 0 && box.right <= 390)({chapters}.getBoundingClientRect())")


# The letters of each full line of prose, and the smallest size of code, in pixels.
LINES = """
    const lines = [...document.querySelectorAll("article section > p")].flatMap(each => {
        const words = each.firstChild, range = document.createRange(), found = [];
        if (words?.nodeType !== 3) return [];
        let top, count = 0;
        for (let at = 0; at < words.length; at++) {
            range.setStart(words, at);
            range.setEnd(words, at + 1);
            const now = range.getBoundingClientRect().top;
            if (top !== undefined && now > top + 5) { found.push(count); count = 0; }
            top = now;
            count += 1;
        }
        return found;
    });
    const code = [...document.querySelectorAll("article div.highlight pre")];
    return [lines, Math.min(...code.map(each => parseFloat(getComputedStyle(each).fontSize)))];"""


def test_a_line_of_prose_has_at_most_80_letters_and_code_is_large_enough(book, tab):
    tab.open(HTML / "book" / "03_scaled_dot_product.html", width=1440)
    lines, code = tab.run(LINES)
    lines.sort()
    assert len(lines) > 15 and lines[int(0.9 * len(lines))] <= 80, lines[-10:]
    assert code >= 13.5


# What of a page is printed, in words and numbers.
PRINTED = """
    const shown = place => [...document.querySelectorAll(place)].filter(
        each => each.checkVisibility());
    const all = [...document.querySelectorAll("article section")];
    return {
        title: shown("h1").map(each => each.innerText),
        code: shown(".tag_hide-input details.hide").length,
        answers: shown("details.sd-dropdown").map(each => [
            each.open, Boolean(each.closest(".answers")), each.querySelector("summary").innerText]),
        room: Math.min(...shown(".predict textarea").map(each => each.offsetHeight)),
        divided: shown("pre").filter(each => getComputedStyle(each).breakInside !== "avoid")
            .map(each => each.textContent.trim().split("\\n").length),
    };"""


def test_on_paper_a_page_keeps_its_answers_for_the_end_and_its_code_in_one_piece(book, tab):
    tab.open(HTML / "book" / "03_scaled_dot_product.html", width=794)
    words = "return document.querySelector('article').textContent"
    before = tab.run(words)
    tab.run("dispatchEvent(new Event('beforeprint'))")
    tab._ask("Emulation.setEmulatedMedia", media="print")
    seen = tab.run(PRINTED)
    assert seen["title"] == ["3. Scaled dot-product attention"]
    assert seen["code"] == 0 and seen["room"] > 40
    assert len(seen["answers"]) >= 4
    for number, answer in enumerate(seen["answers"], 1):
        assert answer == [True, True, f"Answer {number}"]
    # A frame that waits for the next page with its code would stand there empty.
    assert seen["divided"] and min(seen["divided"]) >= 15
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert tab.run(words) == before
    assert tab.run("return document.querySelectorAll('article details[open]').length") == 0


@pytest.mark.parametrize("name", ["searches", "searches_as_typed"])
def test_what_a_reader_types_finds_the_place_that_explains_it_first(name, book, tab):
    """`searches.csv` was written from the table of contents, before the search was;
    `searches_as_typed.csv` by somebody who had not seen the search, with slips and other names."""
    with (ROOT / "tests" / f"{name}.csv").open(encoding="utf-8") as file:
        wanted = {row["query"]: row["right"].split(" | ") for row in csv.DictReader(file)}
    tab.open(HTML / "search.html")
    first = tab.run(f"""
        await bookSearch.load();
        return {json.dumps([*wanted])}.map(query => bookSearch.find(query)[0] ?? ["", "", ""])
        """)
    wrong = {}
    for (query, places), (address, page, title, *_) in zip(wanted.items(), first, strict=True):
        found = f"{address.partition('#')[0][5:-5]}: {title or page}"
        pairs = [place.split(":") for place in places]
        said = found.lower()
        if not any(said.startswith(at) and part.strip().lower() in said for at, part in pairs):
            wrong[query] = found
    assert len(wanted) >= 60
    assert len(wrong) <= 0.1 * len(wanted), wrong


def test_the_judge_on_a_page_reads_the_line_that_is_chosen(book, tab):
    shown = """return [...document.querySelectorAll(".judged .case")].flatMap(
        (each, place) => each.checkVisibility() ? [place] : [])"""
    tab.open(HTML / "book" / "index.html", width=390)
    assert tab.run(shown) == [0]
    tab.run("document.querySelector('.judged input').focus()")
    for place in (1, 2):
        tab.press("ArrowDown")
        assert tab.run(shown) == [place]


def test_who_comes_by_keyboard_reaches_all_of_a_page_and_sees_where(book, tab):
    tab.open(HTML / "book" / f"{CHAPTERS[0].stem}.html")
    stops, missed = walk(tab)
    assert {"Toggle primary sidebar", "Download this page", "Color mode"} < set(stops)
    assert [name for name, shown in stops.items() if not shown] + missed == []

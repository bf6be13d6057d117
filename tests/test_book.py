"""The book builds without a warning, works offline, tells no solution, and can be read by all."""

import gc
import gzip
import json
import re
import shutil
import unicodedata
from pathlib import Path
from urllib.parse import quote, urlsplit

import nbformat
import pytest
import yaml
from browser import needs_browser
from built import CHAPTERS, HTML, PAGES, ROOT, build_book, load, stem

from attncourse.checks import registry


def front_matter(page):
    return yaml.safe_load(page.read_text(encoding="utf-8").split("---\n")[1])


def prose(page):
    """The page without front matter, code, formulas and comments; with its captions."""
    text = page.read_text(encoding="utf-8")
    captions = re.findall(r'^ +(?:alt|caption): "(.*)"$', text, re.MULTILINE)
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$|`[^`]+`|<!--.*?-->", "", text, flags=re.DOTALL)
    return "\n".join([text, *captions])


# --- the sources: fast ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_prose_has_no_filler_and_no_exclamation_marks(page):
    found = re.findall(r".*\b(?:simply|just|obviously)\b.*|.*!.*", prose(page), re.IGNORECASE)
    assert not found, f"{page.name}: {found}"


# What STYLE.md asks for and a program can see: "Who ...", as a subject, asks no question.
MANNERED = re.compile(
    r"\bwhoever\b|\b(?:in|of) a hundred\b|(?:^|[.:;] )Who [^?.]*\.|"
    r"\b(?:towards|afterwards|whilst|learnt|labelled|modelling|grey|centre|"
    r"(?:behavi|col|fav|neighb)our\w*)\b",
    re.MULTILINE | re.IGNORECASE,
)
DOORS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]


@pytest.mark.parametrize("page", [*PAGES, *DOORS], ids=stem)
def test_prose_is_plain_american_english(page):
    assert [found[0] for found in MANNERED.finditer(prose(page))] == []


@pytest.mark.parametrize("sentence", ["Who asks, waits.", "5 of a hundred", "the neighbours"])
def test_a_mannered_sentence_is_found(sentence):
    assert MANNERED.search(f"It is so. {sentence}")
    assert not MANNERED.search("Who asks? Her neighbor, who answers at 5%.")


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_a_fraction_has_its_parts_in_braces(page):
    """What sets the formulas reads \\tfrac12 A as 12 over A."""
    assert not re.findall(r"\\[dt]?frac *[^ {\\]", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_every_citation_is_in_the_bibliography(page):
    cited = re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", page.read_text(encoding="utf-8"))
    keys = {re.sub(r"\{.*?\}", "", key).strip() for group in cited for key in group.split(",")}
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    assert keys <= set(re.findall(r"^@\w+\{([^,]+),", bibliography, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_no_caption_of_a_cell_cites(page):
    """A citation gets its page's name when Sphinx reads it: the cell would be executed again."""
    cells = re.findall(r"^```\{code-cell\}.*?^```$", page.read_text("utf-8"), re.M | re.S)
    assert not [cell for cell in cells if "{cite" in cell]


def test_every_entry_of_the_bibliography_is_cited():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([^,]+),", bibliography, re.MULTILINE)
    cited = " ".join(re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text))
    assert [key for key in keys if not re.search(rf"\b{key}\b", cited)] == []
    assert len(keys) == len(set(keys))


def test_an_anchor_stands_on_one_page_only():
    anchors = [
        anchor
        for page in PAGES
        for anchor in re.findall(r"^\((.+)\)=$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(anchors) == sorted(set(anchors))


# Photographs stay as they are in the dark; "a dark page" is about the theme.
PHOTOGRAPHS = ("13_pictures",)
SHADE = re.compile(r"\b(?:dark(?:est|er)?|white|black|bright|pale)\b(?! (?:mode|theme|box))", re.I)


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in PHOTOGRAPHS], ids=stem)
def test_no_sentence_names_a_shade_that_a_dark_page_turns_round(page):
    assert [line for line in prose(page).splitlines() if SHADE.search(line)] == []


@pytest.mark.parametrize("page", CHAPTERS, ids=stem)
def test_chapter_has_the_parts_of_a_chapter(page):
    text = page.read_text(encoding="utf-8")
    for part in ("Check yourself", "Key terms", "Your turn", "References"):
        assert f"\n## {part}\n" in text, part
    assert "Spot the error" in text
    assert "```{literalinclude} ../attncourse/" in text  # the package's own code, not a copy
    widgets = re.findall(r"plots\.(?:Slider|AttentionView|head_view)\(|^```\{live\}", text, re.M)
    assert widgets, "an interactive figure"


@pytest.mark.parametrize("page", CHAPTERS, ids=stem)
def test_chapter_has_the_header_of_a_text_notebook(page):
    header = front_matter(page)
    assert header["jupytext"]["text_representation"] == {"extension": ".md", "format_name": "myst"}
    assert header["kernelspec"]["name"] == "python3"
    assert header["kernelspec"]["language"] == "python"


@pytest.mark.parametrize("page", CHAPTERS, ids=stem)
def test_glossary_has_every_key_term_in_english_and_chinese(page):
    def words_of(term):
        return set(re.findall(r"\w+", re.sub(r"\$.*?\$", "", term).lower()))

    glossary = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    term = r'^(.+) · (?:<span lang="zh-Hans">.+</span>|Transformer)$'
    entries = re.findall(term, glossary, re.MULTILINE)
    assert len(entries) == len(re.findall("^: ", glossary, re.MULTILINE))
    known = [words_of(english) for english in entries]
    listed = page.read_text(encoding="utf-8").split("## Key terms\n")[1].split("\n## ")[0]
    terms = ", ".join(re.findall(r"^(.+)\n: ", listed, re.MULTILINE)).split(", ")
    assert [term for term in terms if not any(words_of(term) <= each for each in known)] == []


def test_every_page_is_in_the_table_of_contents():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    assert {f"book/{page.stem}" for page in PAGES} == {contents["root"], *chapters}


@pytest.mark.slow
def test_minutes_are_counted_from_words_code_and_tasks(tmp_path):
    front_door, page = load(ROOT / "book" / "_ext" / "front_door.py"), tmp_path / "page.md"
    cell = "```{code-cell} ipython3\nprint('not prose')\n```\n"
    page.write_text("---\na: b\n---\n" + "word " * 400 + "\n" + 3 * cell)
    assert front_door.reading(page) == 2 + 1.5
    minutes = [task.minutes for task in registry.of_chapter("masking")]
    assert front_door.doing("06_masking") == sum(minutes) > 0


def test_a_changed_package_gets_a_new_execution_cache(tmp_path):
    fresh_pages = load(ROOT / "book" / "_ext" / "fresh_pages.py")
    (tmp_path / "attncourse" / "checks").mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("torch")
    module = tmp_path / "attncourse" / "checks" / "engine.py"
    module.write_text("points = 1")
    before = fresh_pages.package_hash(tmp_path)
    assert fresh_pages.package_hash(tmp_path) == before
    module.write_text("points = 2")
    assert fresh_pages.package_hash(tmp_path) != before


@pytest.fixture(scope="module")
def twins():
    pytest.importorskip("jupyter_book", reason="the book needs: pip install -e '.[book]'")
    return load(ROOT / "book" / "colab_twins.py")


NOTEBOOKS = [page for page in PAGES if "format_name: myst" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", NOTEBOOKS, ids=stem)
def test_the_notebook_for_colab_is_in_step_and_has_no_myst(page, twins):
    twin = twins.twin(page)
    stored = page.with_suffix(".ipynb").read_text("utf-8")
    assert stored == nbformat.writes(twin) + "\n", "run `make twins` and commit"
    nbformat.validate(twin)
    text = "\n".join(cell.source for cell in twin.cells if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert (
        re.findall(r"\{[a-z:]+\}`[^`]*|^:::.*|^\(.*\)=$|\]\([^h)][^)]*\)", text, re.MULTILINE) == []
    )


def test_every_page_with_code_has_a_notebook_for_colab_and_no_other_has():
    assert sorted((ROOT / "book").glob("*.ipynb")) == [p.with_suffix(".ipynb") for p in NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.parametrize("answers", sorted((ROOT / "book" / "judged").iterdir()), ids=stem)
def test_the_judge_on_a_page_knows_five_wrong_lines_by_name_and_the_right_one(answers, monkeypatch):
    pytest.importorskip("jupyter_book", reason="the book needs: pip install -e '.[book]'")
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    judged = load(ROOT / "book" / "_ext" / "judged.py")
    cases = judged.cases(stem(answers), *judged.variants(answers.read_text("utf-8")))
    assert len(judged.choice(stem(answers), cases).partition("<form")[2]) <= 25_000
    *wrong, right = cases
    assert "attn-report right" in right["report"] and right["line"] == ""
    named = [
        re.findall(r"<h[45][^>]*>.*?<code>([A-Z][A-Z0-9-]+)</code>", each["report"])
        for each in wrong
    ]
    assert all(named) and len({codes[0] for codes in named}) == 5


def test_a_rule_is_left_out_only_if_no_page_has_its_names():
    pytest.importorskip("jupyter_book", reason="the book needs: pip install -e '.[book]'")
    light_pages = load(ROOT / "book" / "_ext" / "light_pages.py")
    kept = ".a{color:red}.b:is(.x,.y:not(.z)){top:0}"
    css = f"{kept[:13]}.gone,{kept[13:]}@media print{{.gone{{top:0}}}}.a .gone{{top:0}}"
    assert light_pages.only_used_rules(css, {"a", "b"}) == kept
    odd = '@charset "x";/*! not ".me, {or me */.a{background:url("data:x;{)}")}'
    assert light_pages.only_used_rules(odd + ".b{top:0}", {"a"}) == odd
    root = ":root{--a:1px;--b:var(--a);--c:2px;--script:3px}i{top:var(--b)}"
    left = light_pages.only_used_variables(root, "style.getPropertyValue('--script')")
    assert left == root.replace("--c:2px;", "")


# --- the built book: slow the first time, seconds when nothing was changed -----------------------


@pytest.fixture(scope="module", autouse=True)
def nothing_to_collect():
    """All pages stay in memory while they are looked at; they go when this file is done."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def soups(book):
    bs4 = pytest.importorskip("bs4")
    return {page: bs4.BeautifulSoup(page.read_text("utf-8"), "html.parser") for page in book}


@pytest.mark.slow
def test_book_builds_without_a_warning(book):
    for page in PAGES:
        assert HTML / "book" / f"{page.stem}.html" in book


@pytest.mark.slow
def test_no_cell_failed(soups):
    assert not (HTML / "reports").exists()
    for page, soup in soups.items():
        assert not soup.select(".cell_output .traceback"), page.name
        assert not soup.select(".cell_output .stderr"), page.name


@pytest.mark.slow
def test_no_output_is_blank(soups):
    for page, soup in soups.items():
        for output in soup.select("div.cell_output"):
            assert output.get_text(strip=True) or output.find(["img", "svg"]), page.name


LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}


def loads(soup):
    """Every address a browser fetches by itself when it shows the page."""
    for tag in soup.find_all(["script", "img", "iframe", "source", "video", "audio", "embed"]):
        yield from (tag[name] for name in ("src", "poster") if tag.get(name))
        yield from (part.split()[0] for part in tag.get("srcset", "").split(",") if part.strip())
    for tag in soup.find_all("object"):
        yield tag.get("data", "")
    for tag in soup.find_all("link"):
        if LOADING_LINKS & {word.lower() for word in tag.get("rel", [])}:
            yield tag["href"]
    for tag in soup.find_all(style=True):
        yield from css_loads(tag["style"])
    for tag in soup.find_all("style"):
        yield from css_loads(tag.get_text())


def css_loads(css):
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    yield from re.findall(r"url\(\s*['\"]?([^'\")]+)", css)
    yield from re.findall(r"@import\s+['\"]([^'\"]+)", css)


def is_elsewhere(address):
    return bool(urlsplit(address.strip()).netloc)


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(soups):
    for page, soup in soups.items():
        assert [address for address in loads(soup) if is_elsewhere(address)] == [], page.name
    for sheet in HTML.rglob("*.css"):
        found = css_loads(sheet.read_text("utf-8", errors="replace"))
        assert [address for address in found if is_elsewhere(address)] == [], sheet.name


@pytest.mark.slow
def test_every_local_file_a_page_loads_is_there(soups):
    for page, soup in soups.items():
        for address in loads(soup):
            if address and not is_elsewhere(address) and not address.startswith("data:"):
                assert (page.parent / urlsplit(address).path).exists(), f"{page.name}: {address}"


@pytest.mark.slow
def test_every_link_inside_the_book_leads_somewhere(soups):
    places = {page: {tag["id"] for tag in soup.select("[id]")} for page, soup in soups.items()}
    for page, soup in soups.items():
        for link in soup.select("article a[href]"):
            parts = urlsplit(link["href"])
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / parts.path).resolve() if parts.path else page
            assert target.exists(), f"{page.name}: {link['href']}"
            if parts.fragment and target in places:
                assert parts.fragment in places[target], f"{page.name}: {link['href']}"


@pytest.mark.slow
def test_no_solution_and_no_stray_notebook_is_published(book):
    for path in HTML.rglob("*"):
        assert not {".venv", "venv", "solutions"} & set(path.relative_to(HTML).parts), path
        if path.is_file() and path.suffix in {".html", ".md", ".txt", ".ipynb", ".js", ".json"}:
            text = path.read_text("utf-8", errors="replace")
            for secret in ("BEGIN SOLUTION", "HIDDEN TESTS"):
                assert secret not in text, path
    places = {page.relative_to(HTML).parts[0] for page in book}
    assert places <= {"book", "exercises", "index.html", "search.html"}


@pytest.mark.slow
def test_every_formula_is_set_in_letters_of_the_font_that_is_shipped(soups):
    from fontTools.ttLib import TTFont

    known = TTFont(HTML / "_static" / "fonts" / "math.woff").getBestCmap()
    forms = {unicodedata.normalize("NFKC", chr(code)): code for code in range(0x1D434, 0x1D468)}
    forms["h"] = ord("ℎ")  # a browser sets a letter that stands alone in italics
    formulas = 0
    for page, soup in soups.items():
        for formula in soup.select("article .math"):
            formulas += 1
            assert formula.find("math"), f"{page.name}: {formula}"
            for letter in set(formula.find("math").get_text()):
                assert ord(letter) in known, f"{page.name}: {letter!r} in {formula}"
                assert forms.get(letter) in (known.keys() | {None}), f"italic {letter}"
            assert ord("√") in known or not formula.select("msqrt, mroot"), "no sign of a root"
    assert formulas > 500


def test_the_cut_font_draws_a_root_whose_sign_is_no_letter_of_the_formula(tmp_path):
    from fontTools.ttLib import TTFont

    light_pages = load(ROOT / "book" / "_ext" / "light_pages.py")
    for part, is_drawn in {"msqrt": True, "mroot": True, "mrow": False}.items():
        font = Path(shutil.copy(ROOT / "book" / "_static" / "fonts" / "math.woff", tmp_path))
        light_pages.only_used_letters(font, f"<math><{part}><mi>d</mi><mn>3</mn></{part}></math>")
        assert (ord("√") in TTFont(font).getBestCmap()) == is_drawn, part


@pytest.mark.slow
def test_every_formula_is_well_formed(soups):
    parts = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2)
    parts |= {"msubsup": 3, "munderover": 3}
    for page, soup in soups.items():
        for part in soup.select(", ".join(f"math {tag}" for tag in parts)):
            inside = part.find_all(recursive=False)
            assert len(inside) == parts[part.name], (page.name, part.find_parent("math"))
        assert not soup.select("mtd > mtd"), page.name


@pytest.mark.slow
def test_pages_are_light(soups):
    """Everything a page can load, compressed as by a server; bench/pages.py measures it."""

    def loaded(page):
        found = {(page.parent / urlsplit(each).path).resolve() for each in loads(soups[page])}
        return found | {page, HTML / "_static" / "fonts" / "math.woff"}

    def kilobytes(page):
        return sum(len(gzip.compress(each.read_bytes())) for each in loaded(page)) / 1000

    sizes = {page.stem: kilobytes(HTML / "book" / f"{page.stem}.html") for page in CHAPTERS}
    assert sum(sizes.values()) / len(sizes) <= 300 and max(sizes.values()) <= 520, sizes
    assert kilobytes(HTML / "book" / "about.html") <= 120
    assert len(loaded(HTML / "book" / "03_scaled_dot_product.html")) <= 25


@pytest.mark.slow
def test_every_picture_has_words_and_every_figure_a_caption(soups):
    for page, soup in soups.items():
        for image in soup.select("article img"):
            alt = image.get("alt", "")
            is_file_name = re.search(r"[0-9a-f]{16}|\.(png|svg|jpe?g)$", alt)
            assert len(alt) > 20 and not is_file_name, f"{page.name}: alt={alt!r}"
        for figure in soup.select("article figure"):
            assert figure.find("figcaption"), f"{page.name}: {figure.get('id')}"


@pytest.mark.slow
def test_every_anchor_is_on_its_page(soups):
    for page in PAGES:
        soup = soups[HTML / "book" / f"{page.stem}.html"]
        anchors = re.findall(r"^\((.+)\)=$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [anchor for anchor in anchors if not soup.find(id=anchor)] == [], page.name


@pytest.mark.slow
def test_a_shared_link_shows_title_description_and_picture(soups):
    for page in PAGES:
        head = soups[HTML / "book" / f"{page.stem}.html"].head
        told = {
            tag.get("property") or tag.get("name"): tag["content"]
            for tag in head("meta", content=True)
        }
        assert told["og:title"] and 40 < len(told["description"]) <= 200, page.name
        assert told["description"] == told["og:description"] and "\\" not in told["description"]
        picture = told["og:image"].removeprefix(told["og:url"].split("/book/")[0] + "/")
        assert (HTML / picture).exists() and head.find("link", rel="icon")


@pytest.mark.slow
def test_every_misconception_has_an_address_in_the_book(soups):
    seen = yaml.safe_load((ROOT / "book" / "mistakes" / "seen.yml").read_text("utf-8"))
    told = set()
    for chapter in registry.stems():
        page = soups[HTML / "book" / "mistakes" / f"{chapter}.html"]
        shown = {entry["id"]: entry for entry in page.find_all(id=True)}
        for task in registry.of_chapter(chapter):
            for fault in task.faults.values():
                entry = shown.get(fault.id)
                assert entry and task.name in entry.get_text(), (task.name, fault.id)
                if fault.id in seen["survey"]:
                    some, among, what = seen["survey"][fault.id]
                    assert f"{some} of {among} {what}" in entry.get_text()
                for thread in seen["threads"].get(fault.id, []):
                    assert entry.find("a", href=thread)
                told.add(fault.id)
    assert seen["survey"].keys() | seen["threads"].keys() <= told


@pytest.mark.slow
def test_no_page_skips_a_level_of_headings(soups):
    for page, soup in soups.items():
        levels = [int(each.name[1]) for each in soup.find_all(re.compile(r"^h[1-6]$"))]
        above = [0, *levels]
        skipped = [each for each, before in zip(levels, above, strict=False) if each > before + 1]
        assert skipped == [], page.name


@pytest.mark.slow
def test_answers_are_folded(soups):
    for page in CHAPTERS:
        soup = soups[HTML / "book" / f"{page.stem}.html"]
        answers = [s for s in soup.select("details > summary") if s.get_text().strip() == "Answer"]
        assert len(answers) >= 4, page.stem
        assert not any(summary.parent.has_attr("open") for summary in answers), page.stem


@pytest.mark.slow
def test_colab_opens_a_page_s_twin_and_its_exercise(soups):
    for page, soup in soups.items():
        there = soup.select("a[href*='//colab.']")  # and not to a section of that name
        links = {link["href"].partition("/main/")[2] for link in there}
        if page.parent == HTML / "book":
            wanted = [f"book/{page.stem}.ipynb", f"exercises/{page.stem}/{page.stem}.ipynb"]
            assert links == {each for each in wanted if (ROOT / each).exists()}, page.name


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 8], ids=["one page", "read side by side"])
def test_a_failing_cell_fails_every_build(others, book, tmp_path):
    shutil.copytree(ROOT / "book" / "_ext", tmp_path / "book" / "_ext")
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    shutil.copytree(ROOT / "attncourse", tmp_path / "attncourse")
    for name in ("_config.yml", "requirements.txt", "book/references.bib"):
        shutil.copy(ROOT / name, tmp_path / name)
    toc = "format: jb-book\nroot: book/page\n" + "chapters:\n" * bool(others)
    for number in range(others):  # Sphinx reads a few pages one after the other
        toc += f"- file: book/other{number}\n"
        dead = "[a way](nowhere.md)\n" * (number == others // 2)
        (tmp_path / "book" / f"other{number}.md").write_text(f"# Other {number}\n\n{dead}", "utf-8")
    (tmp_path / "_toc.yml").write_text(toc)
    header = CHAPTERS[0].read_text("utf-8").split("---\n")[1]
    page = f"---\n{header}---\n\n# Page\n\n```{{code-cell}} ipython3\n1 / 0\n```\n"
    (tmp_path / "book" / "page.md").write_text(page, "utf-8")
    for _ in range(2):
        result = build_book(tmp_path, "jupyter-book")
        told = result.stdout + result.stderr
        assert result.returncode != 0 and "ZeroDivisionError" in told
        assert ("nowhere.md" in told) == bool(others)


@pytest.mark.slow
def test_on_paper_answers_stand_at_the_end_and_every_link_leads_somewhere(book):
    paper = load(ROOT / "book" / "on_paper.py").whole_book()
    chapters = paper.find_all("article")
    assert len(chapters) == len(PAGES) + len([*(ROOT / "book" / "mistakes").glob("*.md")])
    ids = [each["id"] for each in paper.find_all(id=True)]
    assert len(ids) == len(set(ids))
    inside = {link["href"][1:] for link in paper.find_all("a", href=re.compile("^#"))}
    assert len(inside) > 300 and inside <= set(ids)
    for chapter in chapters:
        assert all(each.has_attr("open") for each in chapter.find_all("details")), chapter["id"]
        asked = chapter.find_all("a", href=re.compile(r"--answer-\d+$"))
        assert len(asked) == len(chapter.find_all(class_="answer")), chapter["id"]
        numbers = {mark.get_text() for mark in chapter.find_all("sup", class_="link")}
        listed = chapter.find("ol", class_="links")
        links = listed.find_all("li") if listed else []
        assert numbers <= {str(1 + k) for k in range(len(links))}, chapter["id"]
    assert len(paper.find_all(class_="answer")) > 4 * len(CHAPTERS)


# --- what takes the sources and a browser ---------------------------------------------------------


FOUND = """return [...document.querySelectorAll(".found li")].map(each => ({
    to: each.querySelector("a").getAttribute("href"),
    title: each.querySelector("a").textContent,
    words: each.querySelector("p").textContent,
    marked: [...each.querySelectorAll("mark")].map(mark => mark.textContent.toLowerCase()),
}))"""


@pytest.mark.slow
@needs_browser
def test_a_search_finds_sections_and_shows_their_words(soups, tab):
    found = {}
    for query in ("√d", "padding mask", "queries", "qqqq"):
        tab.open((HTML / "search.html").as_uri() + f"?q={quote(query)}")
        found[query] = tab.run(FOUND)
        assert tab.run("return errors") == []
    assert found["√d"][0]["title"] == "Why divide by √d?" and found["qqqq"] == []
    for query in ("padding mask", "queries"):
        assert len(found[query]) >= 5
    for each in found["padding mask"]:
        assert each["marked"] and len(each["words"]) > 20, each
        page, _, section = each["to"].partition("#")
        assert section == "" or soups[HTML / page].find(id=section), each


@pytest.mark.slow
@needs_browser
def test_results_come_while_one_types_and_each_code_leads_to_its_entry(soups, tab):
    tab.open(HTML / "book" / "mistakes" / "masking.html", width=390)
    tab.run("document.querySelector('dialog .bd-search input').closest('dialog').showModal()")
    for key in "rope":
        tab.run(f"""const field = document.querySelector("dialog .bd-search input");
            field.value += "{key}"; field.dispatchEvent(new Event("input"));""")
    tab.wait("document.querySelector('dialog .found li')")
    link = tab.run("return document.querySelector('dialog .found a').href")
    assert "book/08_positions.html#" in link
    assert_codes_lead_to_their_entries(soups, tab, step=7)  # all: tests/bench/sweeps.py


def assert_codes_lead_to_their_entries(soups, tab, step):
    every = [each["id"] for page in soups for each in soups[page].select(".gallery section")]
    codes = every[::step]
    first = tab.run(f"return {json.dumps(codes)}.map(code => bookSearch.find(code)[0][0])")
    assert len(every) > 300
    assert [
        code for code, at in zip(codes, first, strict=True) if not at.endswith(f"#{code}")
    ] == []


@pytest.mark.slow
def test_every_chapter_and_the_home_page_have_the_judge(soups):
    for page in [*CHAPTERS, ROOT / "book" / "index.md"]:
        assert soups[HTML / "book" / f"{page.stem}.html"].select(".judged"), page.stem


@pytest.mark.slow
def test_a_page_with_an_exercise_says_at_its_top_how_long_what_and_where(soups):
    for page in CHAPTERS:
        soup = soups[HTML / "book" / f"{page.stem}.html"]
        told = soup.select_one("article section > h1 + .at-a-glance")
        assert re.search(r"\d+ minutes to read, \d+ to do", told.get_text()), page.stem
        stem = page.stem.partition("_")[2]
        names = [code.get_text() for code in told.select("code")]
        assert {task.name for task in registry.of_chapter(stem)} <= set(names)
        assert told.select_one("a[href*=colab]") and told.select_one("a[download]")


@pytest.mark.slow
def test_how_a_figure_was_made_stands_below_it_and_is_named_after_it(soups):
    for page in CHAPTERS:
        names = []
        for fold in soups[HTML / "book" / f"{page.stem}.html"].select(".tag_hide-input > details"):
            assert fold.find_previous_sibling(["div", "figure"]), page.stem
            names.append(fold.summary.p.get_text())
        numbered = [name for name in names if "Fig." in name]
        assert numbered and len(numbered) == len(set(numbered)), page.stem


@pytest.mark.slow
def test_an_entry_of_the_gallery_begins_with_the_thought_and_shows_the_wrong_lines(soups):
    entries = [each for soup in soups.values() for each in soup.select(".gallery section")]
    for entry in entries:
        head = entry.h2
        code = head.find_all("code")[-1].extract().get_text()
        assert code == entry["id"] and len(head.get_text()) > 5, code
        # What is Python's or torch's own is named, and its code is not a student's lines.
        for lines in (pre.get_text().splitlines() for pre in entry.find_all("pre")):
            assert not any(line.strip().startswith(">>>") for line in lines), code
            assert not any(line.startswith("@task.fault") for line in lines[1:]), code  # shown once
    assert sum(bool(entry.pre) for entry in entries) >= 0.9 * len(entries)
    assert any("middle = statistics.median\n" in entry.get_text() for entry in entries)


@pytest.mark.slow
@needs_browser
def test_a_term_shows_the_glossary_s_line_at_its_first_use(soups, tab):
    for page in CHAPTERS:
        soup = soups[HTML / "book" / f"{page.stem}.html"]
        terms = [link["href"] for link in soup.select("article a.term")]
        assert len(terms) >= 5 and len(terms) == len(set(terms)), page.stem
    tab.open(HTML / "book" / "06_masking.html", width=390)
    card = "document.querySelector('.term-card')"
    assert not tab.run(f"return {card}")
    tab.run("document.querySelector('a.term').focus()")
    said, box = tab.run(
        f"const {{left, right}} = {card}.getBoundingClientRect();"
        f"return [{card}.textContent, [left, right]]"
    )
    assert said == soups[HTML / "book" / "06_masking.html"].select_one("a.term")["title"]
    assert box[0] >= 0 and box[1] <= 390
    tab.press("Tab")
    assert not tab.run(f"return {card} && {card}.textContent === {json.dumps(said)}")

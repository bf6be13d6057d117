"""Every link to the book works where it is read: terminal, notebook, feedback, class report."""

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import types
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
import yaml
from browser import browser, needs_browser
from nbclient import NotebookClient

from attncourse import checks
from attncourse.checks import engine, pages, registry
from attncourse.checks.diagnosis import Diagnosis, _named
from attncourse.checks.task import Chapter
from attncourse.grading.outbox import class_report

ROOT = Path(__file__).parent.parent
BOOK = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["html"]["baseurl"]
NAME = "03_scaled_dot_product"
TASK = registry.find("scaled_dot_product_attention")
WHY_SCALE = f"{BOOK}/book/{NAME}.html#why-scale"


def naive(scores, dim=-1):
    return scores.exp() / scores.exp().sum(dim, keepdim=True)


@pytest.fixture
def report():
    """One thought, named."""
    diagnosis = _named(TASK, (TASK.faults["D-NO-SCALE"],))
    return dataclasses.replace(engine.refuse(TASK, diagnosis), near=True)


@pytest.fixture
def built(tmp_path, monkeypatch) -> Path:
    """A page of the book, built in a folder above the current one."""
    page = tmp_path / "my course" / "_build" / "html" / "book" / f"{NAME}.html"
    page.parent.mkdir(parents=True)
    page.write_text("a page")
    notebook = tmp_path / "my course" / "exercises" / NAME
    notebook.mkdir(parents=True)
    monkeypatch.chdir(notebook)
    return page


def links(report) -> list[tuple[str, str]]:
    """Addresses and words in a report's HTML."""
    return re.findall(
        r'<a href="([^"]+)"[^>]*>([^<]+)</a>', report._repr_mimebundle_()["text/html"]
    )


def outside(task, page: str):
    """The task as if it came with a package of somebody else's."""
    task = dataclasses.replace(task, home=Chapter("mine", "my unit", page, "mine"))
    return engine.refuse(task, Diagnosis.not_answered(task, "Not yet."))


# --- what is kept with the package ---------------------------------------------------------------


def test_address_and_titles_in_the_package_are_those_of_the_book():
    kept = json.loads(pages.KEPT.read_text("utf-8"))
    found = pages.of_sources(ROOT, list(registry.chapters().values()))
    assert kept == found, "run `make exercises` and commit"


def test_every_section_that_a_task_or_a_fault_names_has_a_title_on_its_page():
    for task in registry.all_tasks().values():
        text = (ROOT / f"{task.page}.md").read_text("utf-8")
        for section in {task.section, *(fault.section for fault in task.faults.values())}:
            assert re.search(rf"^\({section}\)=\n+#+ ", text, re.M), f"{task.name}: {section}"


def test_a_title_is_plain_text():
    for titles in json.loads(pages.KEPT.read_text("utf-8"))["titles"].values():
        assert not [each for each in titles.values() if re.search(r"[$`*\[{]", each)]


# --- where a report is read ----------------------------------------------------------------------


def test_a_terminal_gets_the_built_page_or_the_published_one(report, built):
    assert f"Read again: chapter 3, “Why divide by √d?”\n  {built.as_uri()}#why-scale" in str(
        report
    )
    built.unlink()
    assert f"\n  {WHY_SCALE}\n" in f"{report}\n" and "file:" not in str(report)


def test_a_notebook_gets_the_published_page(report, built, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert links(report) == [(WHY_SCALE, "Why divide by √d?")]
    shown = report._repr_mimebundle_()["text/html"]
    assert 'target="_blank"' in shown  # Colab shows a report in a frame
    assert "_build" not in shown


def test_jupyterlab_also_says_where_the_built_page_is(report, built, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "03.ipynb")
    assert links(report) == [(WHY_SCALE, "Why divide by √d?")]
    assert f"_build/html/book/{NAME}.html" in report._repr_mimebundle_()["text/html"]
    built.unlink()
    assert "_build" not in report._repr_mimebundle_()["text/html"]


def test_who_checks_sits_near_and_who_is_graded_does_not(built, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "03.ipynb")
    near = checks.run("softmax", naive)
    (graded,) = engine.run_each("softmax", naive, (0,))
    assert near.near and built.as_uri() in str(near)
    for text in (str(graded), graded._repr_mimebundle_()["text/html"]):
        assert "_build" not in text and f"{BOOK}/book/{NAME}.html#" in text


def test_two_thoughts_have_a_link_each(report):
    faults = TASK.faults["D-NO-SCALE"], TASK.faults["M-POLARITY"]
    two = dataclasses.replace(report, diagnosis=_named(TASK, faults), near=False)
    masks = f"{BOOK}/book/{NAME}.html#masks"
    assert links(two) == [(WHY_SCALE, "Why divide by √d?"), (masks, "Masks")]
    assert WHY_SCALE in str(two) and masks in str(two)


def test_an_id_leads_to_its_place_in_the_gallery(report):
    page = report._repr_mimebundle_()["text/html"]
    gallery = re.escape(f"{BOOK}/book/mistakes/scaled_dot_product.html#D-NO-SCALE")
    assert re.search(rf'<a href="{gallery}"[^>]*><code>D-NO-SCALE</code></a>', page)
    of_another = outside(TASK, "https://example.org/unit").about
    assert pages.in_gallery(of_another, "D-NO-SCALE") == ""


def test_a_terminal_leads_there_too_published_or_built(report, built):
    told = "D-NO-SCALE beside the right answer:\n  {}#D-NO-SCALE\n"
    published = f"{BOOK}/book/mistakes/scaled_dot_product.html"
    assert told.format(published) in f"{report}\n"
    page = built.parent / "mistakes" / "scaled_dot_product.html"
    page.parent.mkdir()
    page.write_text("the gallery")
    assert told.format(page.as_uri()) in f"{report}\n"
    seen_only = outside(TASK, f"book/{NAME}")  # evidence has no id to show
    assert "beside the right answer" not in str(seen_only)


def test_a_section_without_a_title_is_called_by_its_place():
    chapter = registry.find("merge").home
    assert pages.title(chapter, "no-such-place") == "lab 6, no such place"
    assert pages.words(chapter, "no-such-place") == "lab 6, no such place"


def test_an_outside_task_has_its_own_address_or_no_link(built):
    own = outside(TASK, "https://example.org/unit?a=1&b=2")
    assert links(own) == [("https://example.org/unit?a=1&amp;b=2#the-code", "my unit, the code")]
    assert "https://example.org/unit?a=1&b=2#the-code" in str(own)
    none = outside(TASK, "")
    assert links(none) == [] and str(none).endswith("Read again: my unit, the code")


def test_the_class_report_links_the_built_page_or_the_published_one(built, monkeypatch):
    monkeypatch.chdir(built.parents[3])
    entry = {"page": f"book/{NAME}", "section": "why-scale"}
    place = Path("_build", "report")
    assert class_report._link(entry, place) == f"../html/book/{NAME}.html#why-scale"
    built.unlink()
    assert class_report._link(entry, place) == WHY_SCALE
    assert class_report._link({"page": "", "section": "x"}, place) == ""


def test_the_class_report_names_sections_of_labs_too():
    fault = next(iter(registry.find("bench").faults.values()))
    row = types.SimpleNamespace(student="ana", thoughts=[("bench", fault.id)])
    (entry,) = class_report._misconceptions([row])
    assert entry["read"].startswith("lab 1, ") and entry["page"] == "book/lab1_time_it_right"


# --- what a notebook says itself -----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "exercises").iterdir()))
def test_a_released_notebook_links_published_pages_that_exist(name):
    cells = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = re.findall(r"\]\(([^)]+)\)", text)
    assert not [link for link in found if not link.startswith("https://")]
    ours = [link.removeprefix(f"{BOOK}/") for link in found if link.startswith(BOOK)]
    assert len(ours) >= 3
    for link in ours:
        page, _, section = link.partition(".html")
        source = (ROOT / f"{page}.md").read_text("utf-8")
        assert not section or f"\n({section[1:]})=\n" in source, link


# --- on the book's own pages ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_report_on_a_page_of_the_book_links_the_page_beside_it(tmp_path):
    pytest.importorskip("jupyter_book", reason="the book needs: pip install -e '.[book]'")
    for name in ("book/_ext", "book/_static", "attncourse"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("_config.yml", "requirements.txt", "book/references.bib"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/page\n")
    header = (ROOT / "book" / f"{NAME}.md").read_text("utf-8").split("---\n")[1]
    code = "from attncourse import check\npoints = check(lambda scores, dim=-1: scores, 'softmax')"
    cell = f"```{{code-cell}} ipython3\n{code}\n```\n"
    (tmp_path / "book" / "page.md").write_text(f"---\n{header}---\n\n# Page\n\n{cell}", "utf-8")
    done = subprocess.run(
        ["jupyter-book", "build", ".", "-W", "-n"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "_build" / "html" / "book" / "page.html").read_text("utf-8")
    assert set(re.findall(r'Read again: <a href="([^"#]+)#', page)) == {f"../book/{NAME}.html"}


# --- in JupyterLab -------------------------------------------------------------------------------


@contextmanager
def jupyterlab(folder: Path, home: Path):
    """JupyterLab on the notebooks of a folder; its address, with `{}` for a notebook's path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{each}_DIR": str(home / each) for each in ("CONFIG", "DATA", "RUNTIME")}
    options = f"--no-browser --allow-root --ip=127.0.0.1 --port={port} --ServerApp.port_retries=0"
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options.split(), "--IdentityProvider.token=t"],
        cwd=folder,
        env=os.environ | own | {"HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/api?token=t", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, "no JupyterLab"
                time.sleep(0.3)
        yield f"{address}/lab/tree/{{}}?token=t"
    finally:
        process.terminate()
        process.wait(30)


# What JupyterLab draws with: it comes with nbconvert.
LAB = Path(sys.prefix, "share", "jupyter", "nbconvert", "templates", "lab", "static", "index.css")


@pytest.mark.slow
@needs_browser
@pytest.mark.skipif(not LAB.is_file(), reason="nbconvert's templates are elsewhere")
def test_a_link_looks_like_one_in_jupyterlab_and_a_list_begins_at_the_left(tab, tmp_path):
    """JupyterLab's rules draw no line under a link, color code, and move a list by 2 em."""
    report = checks.run("softmax", naive)
    page = tmp_path / "lab.html"
    page.write_text(
        f"<!DOCTYPE html><style>{LAB.read_text('utf-8')}</style>"
        f"<div class=jp-RenderedHTMLCommon>{report._repr_mimebundle_()['text/html']}</div>",
        "utf-8",
    )
    tab.open(page)
    look = "const look = (what) => getComputedStyle(document.querySelector(what));"
    for link in ("h5 a", ".read a"):
        assert tab.run(f"{look} return look('{link}').textDecorationLine") == "underline"
    for words in ("h5 a", "h5 a code", ".read a"):
        assert tab.run(f"{look} return look('{words}').color") == "rgb(11, 92, 148)", words
    assert tab.run(f"{look} return look('.attn-report > ul').paddingLeft") == "0px"


@pytest.mark.slow
@needs_browser
def test_a_link_is_clicked_though_its_page_is_still_busy(tab, tmp_path):
    """The page loads itself again, and says a moment later that its link opens a tab."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!DOCTYPE html><a href='?there'>there</a><script>"
        "const link = document.querySelector('a');"
        "if (location.hash) setTimeout(() => { link.target = '_blank'; }, 1000); else {"
        "  link.hidden = true;"
        "  setTimeout(() => { location.hash = 'again'; location.reload(); }, 1000);"
        "}</script>",
        "utf-8",
    )
    tab.open(page)
    assert tab.click("a").endswith("?there")


@pytest.mark.slow
@needs_browser
@pytest.mark.usefixtures("warm_kernels")
def test_links_in_jupyterlab_open_the_published_page(course, tmp_path_factory):
    pytest.importorskip("jupyterlab")
    path = Path("exercises", NAME, f"{NAME}.ipynb")
    content = nbformat.read(path, as_version=4)
    wanted = ("bootstrap", "softmax-task", "softmax", "softmax-check")
    content.cells = [cell for cell in content.cells if cell.id in wanted]
    (answer,) = (cell for cell in content.cells if cell.id == "softmax")
    answer.source = "def softmax(scores, dim=-1):\n    e = scores.exp()\n"
    answer.source += "    return e / e.sum(dim, keepdim=True)\n"
    NotebookClient(
        content, timeout=120, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    nbformat.write(content, path)
    home = tmp_path_factory.mktemp("home")
    address = f"{BOOK}/book/{NAME}.html#stable-softmax"
    with jupyterlab(course, home) as lab, browser(home) as tab:
        tab.open(lab.format(path.as_posix()))
        places = ".jp-MarkdownOutput a[href*='#stable-softmax']", ".jp-OutputArea-output .read a"
        for place in places:
            # A page that is still busy draws its links more than once.
            link = f"document.querySelector({json.dumps(place)})?.href"
            tab.wait(f"{link} === {json.dumps(address)}", seconds=90)
            assert tab.click(place) == address

"""The live figures: they compute what the package computes, and begin as they are stored.

`python tests/test_live.py [NAME ...]` draws the stored first states anew, and takes pictures.
"""

import base64
import importlib.util
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from browser import browser, needs_browser

from attncourse import pretrained
from attncourse.bottleneck import teacher_inputs
from attncourse.numbers import BOS, EOS, PAD, words

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("_", ROOT / "book" / "_ext" / "live_figures.py")
live_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(live_figures)
LIVE = live_figures.LIVE
FIGURES = sorted(page.stem for page in LIVE.glob("*.html"))


def write_page(folder: Path, *figures: str, models=()) -> Path:
    """A page with these figures as the book's pages have them, and the scripts they need."""
    files = {file: text for each in figures for file, text in live_figures.scripts(each).items()}
    files |= {f"model-{name}.js": live_figures.packed_model(name) for name in models}
    files = dict.fromkeys(["engine.js", "names.js", "frame.js"]) | files
    for file, text in files.items():
        (folder / file).write_text(text or (LIVE / file).read_text("utf-8"), "utf-8")
    body = "".join(
        f"<figure class=live>{(LIVE / f'{each}.html').read_text('utf-8')}</figure>"
        for each in figures
    )
    page = folder / "page.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>figures</title>"
        "<meta name='viewport' content='width=device-width'>"
        f"<style>{(LIVE / 'live.css').read_text('utf-8')}"
        "body { font: 16px/1.6 sans-serif; max-width: 768px; margin: 8px auto; }"
        "@media (prefers-color-scheme: dark) { body { background: #121212; color: #ddd; } }</style>"
        + "".join(f"<script defer src='{file}'></script>" for file in files)
        + f"<main>{body}</main></html>",
        "utf-8",
    )
    return page


# What a page must hold to show this state again: all that a reader may have chosen, and no more.
STATE = """
    const form = document.querySelector(`[data-live]`).cloneNode(true);
    const shown = document.querySelector(`[data-live]`);
    form.removeAttribute("data-ready");
    form.querySelectorAll("fieldset").forEach(each => each.setAttribute("disabled", ""));
    form.querySelectorAll("input").forEach((each, i) =>
        each.toggleAttribute("checked", shown.querySelectorAll("input")[i].checked));
    return form.outerHTML;
"""


def first_state(tab, name: str) -> str:
    tab.wait("document.querySelector('[data-live][data-ready]')", 60)
    assert tab.run("return errors") == []
    state = tab.run(STATE).replace("\n", "")
    return (
        re.sub("(<li|<label|</ol>|</?div|</?fieldset|</?p>|<p |<tr|</form)", r"\n\1", state).strip()
        + "\n"
    )


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def show(tab, tmp_path):
    def show(*figures, models=(), **how):
        tab.open(write_page(tmp_path, *figures, models=models), **how)
        tab.wait("!document.querySelector('[data-live]:not([data-ready])')", 60)
        assert tab.run("return errors") == []
        return tab

    return show


def test_a_page_stays_light():
    for name in FIGURES:
        sizes = [len(text or "") for text in live_figures.scripts(name).values()]
        assert sum(sizes) <= 400_000, name
    for script in LIVE.glob("*.js"):
        longest = 300 if script.stem == "engine" else 120
        assert len(script.read_text("utf-8").splitlines()) <= longest, script.name


# --- the engine ----------------------------------------------------------------------------------

SAMPLE = random.Random(16)
THOUSAND = [SAMPLE.randrange(10 ** SAMPLE.randint(1, 12)) for _ in range(1000)]


@pytest.mark.slow
@needs_browser
def test_number_names_are_those_of_the_package(show):
    sample = [*range(200), *range(1000, 10**6, 9973), *(10**k for k in range(12)), *THOUSAND]
    sample += [k * 10**6 for k in (1, 2, 80, 180, 200, 280, 300, 380)] + [80_000, 200_000, 280_000]
    named = show().run(f"return {sample}.map(n => [numberNames.en(n), numberNames.fr(n)])")
    for number, (english, french) in zip(sample, named, strict=True):
        assert (english, french) == (words(number, "en"), words(number, "fr")), number


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", live_figures.KINDS)
def test_the_logits_in_the_page_are_the_packages(show, name):
    model, english, french = pretrained.load(name)
    source = [english.encode(words(number, "en")) for number in THOUSAND]
    target = [[*french.encode(words(number, "fr")), EOS] for number in THOUSAND]
    packed = show(models=[name]).run(f"""
        const model = await live.load("{name}"), target = {json.dumps(target)};
        const logits = {json.dumps(source)}.flatMap(
            (ids, i) => live.write(model, ids, target[i]).logits);
        const bytes = new Uint8Array(new Float64Array(logits.flatMap(row => [...row])).buffer);
        let text = "";
        for (const byte of bytes) text += String.fromCharCode(byte);
        return btoa(text);""")
    seen = torch.frombuffer(bytearray(base64.b64decode(packed)), dtype=torch.float64)
    rows = [
        torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, ids)], True, PAD)
        for ids in (source, target)
    ]
    with torch.no_grad():
        expected = model(rows[0], teacher_inputs(rows[1], BOS))[rows[1] != PAD]
    assert (seen.view(expected.shape) - expected).abs().max() < 1e-4


# --- first states --------------------------------------------------------------------------------


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_begins_as_it_is_stored(show, name):
    stored = (LIVE / f"{name}.html").read_text("utf-8")
    assert first_state(show(name), name) == stored


def draw(names):
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        for name in names:
            page = write_page(Path(folder), name)
            tab.open(page)
            (LIVE / f"{name}.html").write_text(first_state(tab, name), "utf-8")
            write_page(Path(folder), name)
            for width, theme in ((800, "light"), (390, "dark")):
                tab.open(page, width, theme)
                tab.wait("document.querySelector('[data-live][data-ready]')", 60)
                pictures = ROOT / "_build" / "pictures"
                pictures.mkdir(parents=True, exist_ok=True)
                tab.photograph(pictures / f"live_{name}_{width}_{theme}.png")


if __name__ == "__main__":
    draw(sys.argv[1:] or FIGURES)

"""The live figures: they compute what the package computes, and begin as they are stored.

`python tests/test_live.py [NAME ...]` draws the stored first states and the card anew.
"""

import base64
import importlib.util
import itertools
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from browser import browser, needs_browser
from torch.nn.utils.rnn import pad_sequence

from attncourse import pretrained
from attncourse.bottleneck import teacher_inputs
from attncourse.cross_attention import translate
from attncourse.experiments import looking_inside_curves
from attncourse.lab import roofline
from attncourse.lab.lab2_quadratic_wall import largest_n, peak_bytes
from attncourse.lab.lab6_write_flash import merge, part_of
from attncourse.looking_inside import ablated, head_outputs
from attncourse.masking import causal_mask, dependency_map
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, EOS, PAD, words
from attncourse.one_stack import beam_search
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.self_attention import sinusoidal_positions
from attncourse.training import as_source

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("_", ROOT / "book" / "_ext" / "live_figures.py")
live_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(live_figures)
LIVE = live_figures.LIVE
FIGURES = sorted(page.stem for page in LIVE.glob("*.html"))


def write_page(folder: Path, *figures: str, models=()) -> Path:
    """A page with these figures as the book's pages have them, and the scripts they need."""
    files = live_figures.scripts(*figures)
    files |= {f"made/model-{name}.js": live_figures.packed_model(name) for name in models}
    (folder / "made").mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, "utf-8")
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
    tab.wait("document.querySelector('[data-live][data-ready]')")
    assert tab.run("return errors") == []
    state = tab.run(STATE).replace("\n", "")
    return (
        re.sub("(<li|<label|</ol>|</?div|</?fieldset|</?p>|<p |<tr|</form)", r"\n\1", state).strip()
        + "\n"
    )


# A figure begins when it is near the window.
COME_NEAR = """
    for (const each of document.querySelectorAll("[data-live]")) {
        each.scrollIntoView();
        for (const _ of "12") await new Promise(requestAnimationFrame);
    }
    scrollTo(0, 0);"""


@pytest.fixture
def show(tab, tmp_path):
    def show(*figures, models=(), **how):
        tab.open(write_page(tmp_path, *figures, models=models), **how)
        tab.run(COME_NEAR)
        tab.wait("!document.querySelector('[data-live]:not([data-ready])')")
        assert tab.run("return errors") == []
        return tab

    return show


@pytest.mark.slow
def test_a_page_stays_light():
    for name in FIGURES:
        files = live_figures.scripts(name)
        weights = sum(len(text) for file, text in files.items() if "model-" in file)
        assert weights <= 400_000 and len(files) <= 4, name
    for script in LIVE.glob("*.js"):
        longest = {"engine": 310, "walk": 135}.get(script.stem, 120)
        assert len(script.read_text("utf-8").splitlines()) <= longest, script.name


def padded(rows):
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


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
    assert_logits_are_the_packages(show, name, THOUSAND[::8])  # all: tests/bench/sweeps.py


def assert_logits_are_the_packages(show, name, numbers):
    model, english, french = pretrained.load(name)
    source = [english.encode(words(number, "en")) for number in numbers]
    target = [[*french.encode(words(number, "fr")), EOS] for number in numbers]
    packed = show(models=[name]).run(f"""
        const model = await live.load("{name}"), target = {json.dumps(target)};
        const logits = {json.dumps(source)}.flatMap(
            (ids, i) => live.write(model, ids, target[i]).logits);
        const bytes = new Uint8Array(new Float64Array(logits.flatMap(row => [...row])).buffer);
        let text = "";
        for (const byte of bytes) text += String.fromCharCode(byte);
        return btoa(text);""")
    seen = torch.frombuffer(bytearray(base64.b64decode(packed)), dtype=torch.float64)
    target = padded(target)
    with torch.no_grad():
        expected = model(padded(source), teacher_inputs(target, BOS))[target != PAD]
    assert (seen.view(expected.shape) - expected).abs().max() < 1e-4


# --- what a figure shows is what the package computes ---------------------------------------------


def translated(name, number, most=30):
    """The package's words, whether they are right, and the weights of each step."""
    model, english, french = pretrained.load(name)
    source = as_source(words(number, "en"), english)
    with torch.no_grad():
        written = french.decode(translate(model, source, BOS, EOS, most)[0])
        before = torch.tensor([[BOS, *french.encode(written)]])
        if name == "additive":
            return written, model.align(source, before)[1][0]
        maps = attention_maps(model, source, before)
    heads = [maps[f"decoder.{layer}.cross_attention"][0] for layer in (0, 1)]
    return written, torch.cat(heads).transpose(0, 1)  # t h k


def submit(tab, number, done):
    tab.run(f"""
        document.querySelector("input[type=text]").value = "{number}";
        document.querySelector("form").requestSubmit();""")
    tab.wait(done)


WRITTEN = "[...document.querySelectorAll('.target span')].map(word => word.textContent)"
LOOK = "[...document.querySelectorAll('.source i')].map(weight => Number(weight.textContent))"


def close(shown, weights):
    return (torch.tensor(shown) - weights).abs().max() < 0.0051


@pytest.mark.slow
@needs_browser
def test_the_first_screen_shows_the_packages_translations_and_looks(show):
    tab = show("translators")
    for number in (71999, 94, 349956962497):
        submit(tab, f"{number:,}", "document.querySelector('.verdict').textContent.trim()")
        parts = {}
        for name in ("fixed-64", "additive"):
            spans = f"document.querySelectorAll('[data-part={name}] .target span')"
            parts[name] = tab.run(f"return [...{spans}].map(word => word.textContent)")
        model, english, french = pretrained.load("fixed-64")
        with torch.no_grad():
            blind = translate(model, as_source(words(number, "en"), english), BOS, EOS, 30)
        assert parts["fixed-64"] == french.decode(blind[0])
        written, weights = translated("additive", number)
        assert parts["additive"] == written
        looks = LOOK.replace(".source", "[data-part=additive] .source")
        assert close(tab.run(f"return {looks}"), weights[len(written) - 1])
        right = [part == words(number, "fr") for part in parts.values()]
        verdicts = "[...document.querySelectorAll('.verdict')].map(each => each.textContent)"
        assert [told.startswith("Right") for told in tab.run(f"return {verdicts}")] == right
        if number != 94:
            assert right == [False, True]


@pytest.mark.slow
@needs_browser
def test_words_appear_one_after_the_other_unless_the_reader_wants_no_motion(show):
    for still in (False, True):
        tab = show("translators", still=still)
        tab.run("document.querySelector('form').requestSubmit()")
        first = tab.run(f"return {WRITTEN}.length")
        tab.wait("document.querySelector('.verdict').textContent.trim()")
        assert (first < tab.run(f"return {WRITTEN}.length")) != still


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("figure", ["translator", "translator-7"])
def test_a_sentence_of_the_readers_is_translated_as_by_the_package(show, figure):
    tab, name = show(figure), {"translator": "additive"}.get(figure, "transformer")
    done = "document.querySelector('.verdict').textContent.trim()"
    submit(tab, "94", done)
    written, looks = translated(name, 94)
    assert tab.run(f"return {WRITTEN}") == written
    looks = looks if name == "additive" else looks.mean(1)
    for _ in range(2):
        tab.run("document.querySelector('.target :checked').focus()")
        tab.press("ArrowUp")
    place = tab.run(
        "return [...document.querySelectorAll('.target input')].findIndex(e => e.checked)"
    )
    assert close(tab.run(f"return {LOOK}"), looks[place])
    # A wrong word put in: what follows is what the model writes after it.
    model, english, french = pretrained.load(name)
    tab.run(f"""
        const told = document.querySelector("select[name=told]");
        told.value = {french.ids["mille"]};
        told.dispatchEvent(new Event("change", {{bubbles: true}}));""")
    shown = tab.run(f"return {WRITTEN}")
    assert shown[:place] == written[:place] and shown[place] == "mille"
    source, ids = as_source(words(94, "en"), english), [BOS, *french.encode(shown)]
    with torch.no_grad():
        following = model(source, torch.tensor([ids]))[0].argmax(-1).tolist()
    assert following[place + 1 :] == [*ids[place + 2 :], EOS]
    # With a teacher it reads the right words (and the reader's), and each next word is shown.
    tab.run("document.querySelector('input[value=teacher]').click()")
    right = french.encode(words(94, "fr"))
    right[place] = french.ids["mille"]
    with torch.no_grad():
        said = model(source, torch.tensor([[BOS, *right]]))[0].argmax(-1).tolist()
    assert tab.run(f"return {WRITTEN}") == [french.words[word] for word in said]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("four bananas", "know 33 English words; “bananas” is none of them"),
        ("1,234,567,890,123", "up to twelve digits"),
        (" ", "Type a number"),
    ],
)
def test_what_cannot_be_translated_is_said_and_the_last_translation_stays(show, typed, told):
    tab = show("translator")
    before = tab.run(f"return {WRITTEN}")
    submit(tab, typed, "document.querySelector('.said').textContent")
    assert told in tab.run("return document.querySelector('.said').textContent")
    assert tab.run(f"return {WRITTEN}") == before


@pytest.mark.slow
@needs_browser
def test_a_beam_in_the_page_is_the_packages(show):
    model, english, french = pretrained.load("fixed-64")
    tab = show(models=["fixed-64"])
    numbers = [987654, 31415926, 71999, 349956962497]
    sources = [english.encode(words(number, "en")) for number in numbers]
    found = tab.run(f"""
        const model = await live.load("fixed-64");
        return {sources}.map(source => live.beam(model, source, 4));""")
    told = {1: french.ids["mille"]}
    one = tab.run(f"""
        const model = await live.load("fixed-64"), told = {json.dumps(told)};
        return {sources}.map(source =>
            [live.beam(model, source, 1, told), live.write(model, source, told).words]);""")
    assert all(beam == greedy and beam[1] == told[1] for beam, greedy in one)
    for source, ids in zip(sources, found, strict=True):
        with torch.no_grad():
            state = model.start(torch.tensor([source]))
            expected = beam_search(model.step, state, BOS, EOS, 4, 30)
        assert french.decode(expected[0]) == french.decode(ids)


@pytest.mark.slow
@needs_browser
def test_surgery_measures_what_the_package_measures(show):
    model, english, french = pretrained.load("transformer")
    numbers = live_figures.surgery_numbers()
    source, target = (
        [vocabulary.encode(words(number, language)) for number in numbers]
        for vocabulary, language in ((english, "en"), (french, "fr"))
    )
    target = padded([[*ids, EOS] for ids in target])
    silent = {"decoder.0.cross_attention": [0], "encoder.0.self_attention": [1, 2]}
    for path, heads in silent.items():
        model.get_submodule(path).out_proj.weight.data.view(64, 4, 16)[:, heads] = 0
    with torch.no_grad():
        right = model(padded(source), teacher_inputs(target, BOS)).argmax(-1) == target
    share = (right | (target == PAD)).all(-1).double().mean()
    tab = show("surgery")
    for head in (1, 2):
        tab.run(f"document.querySelector('[value=\"encoder.0.self_attention.{head}\"]').click()")
    tab.wait("document.querySelector('.share').textContent.startsWith('3 silent')", 120)
    told = tab.run("return document.querySelector('.share').textContent")
    assert f" {100 * share:.1f} % of 200" in told
    with torch.no_grad():
        ids = translate(model, as_source(words(294, "en"), english), BOS, EOS, 30)[0]
    shown = "[...document.querySelectorAll('.written span')].map(word => word.textContent)"
    assert tab.run(f"return {shown}") == french.decode(ids)


def walked(source, ids):
    """What the Transformer computes, by the stops of a walk: (name, vectors of all words)."""
    model, kept = pretrained.load("transformer")[0], {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, inputs, output, name=name: kept.__setitem__(name, output)
        )
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([ids]))[0]
        for side, words in (("encoder", source), ("decoder", ids)):
            embedding = model.source_embedding if side == "encoder" else model.target_embedding
            x = model._embed(torch.tensor([words]), embedding)[0]
            yield side, x
            parts = ["self_attention", "cross_attention", "linear2"]
            for layer in (0, 1):
                for norm, part in enumerate(parts if side == "decoder" else parts[::2], 1):
                    yield f"{side}.{layer}.norm{norm}", kept[f"{side}.{layer}.norm{norm}"][0]
                    said = kept[f"{side}.{layer}.{part}"]
                    weights = said[1][0].transpose(0, 1) if isinstance(said, tuple) else None
                    said = said[0][0] if isinstance(said, tuple) else said[0]
                    yield f"{side}.{layer}.{part}", said if weights is None else (said, weights)
                    x = x + said
                    yield f"{side}.{layer}.sum{norm}", x
            yield f"{side}_norm", kept[f"{side}_norm"][0]
    yield "logits", logits


AT_EVERY_STOP = """[...document.querySelectorAll(".stops button")].map(stop => {
    stop.click();
    const strips = [...document.querySelectorAll(".vector > span:last-child")];
    return {
        kind: stop.dataset.kind,
        out: (strips.at(-1)?.textContent ?? "").replaceAll("−", "-"),
        table: [...document.querySelectorAll(".scroll tbody tr")].map(
            row => [...row.cells].slice(1).map(cell => Number(cell.textContent.replace("−", "-")))),
    };
})"""


@pytest.mark.slow
@needs_browser
def test_a_walk_through_the_transformer_shows_what_the_package_computes(show):
    tab = show("walk")
    for number, (place, step) in {402: (2, 1), 71_999: (4, 5), 8: (0, 1)}.items():
        if number != 402:
            submit(tab, number, "document.querySelector('.said').textContent")
        for part, chosen in (("source", place), ("target", step)):
            tab.run(f"document.querySelectorAll('[name={part}]')[{chosen}].click()")
        written, _ = translated("transformer", number)
        chips = "[...document.querySelectorAll('[data-part=target] span')].map(e => e.textContent)"
        assert tab.run(f"return {chips}") == [*written, "<eos>"]
        _, english, french = pretrained.load("transformer")
        source = english.encode(words(number, "en"))
        stops = iter(tab.run(f"return {AT_EVERY_STOP}"))
        for name, expected in walked(source, [BOS, *french.encode(written)]):
            while (stop := next(stops))["kind"] == "words":
                pass
            at = place if name.startswith("encoder") else step
            vectors, weights = expected if isinstance(expected, tuple) else (expected, None)
            if name == "logits":
                stop = next(stops)
                best = vectors[at].topk(5).values
                shares = vectors[at].softmax(-1).topk(5).values
                assert close(stop["table"], torch.stack([best, shares]))
            else:
                shown = [float(value) for value in stop["out"].removesuffix(" …").split("\u2002")]
                assert close(shown, vectors[at][:4]), name
            if weights is not None:
                assert close(stop["table"], weights[at][:, : len(stop["table"][0])]), name
        assert next(stops, None) is None


@pytest.mark.slow
@needs_browser
def test_a_walk_goes_forward_and_back_and_moves_by_itself_only_when_asked(show):
    said = "return document.querySelector('.said b').textContent"
    go = "document.querySelector('[value={}]').click()"
    tab = show("walk", still=False)
    assert tab.run(said) == "Decoder, layer 2: cross-attention, before cent is written."
    cells = tab.run(
        "return [...document.querySelectorAll('.scroll tbody tr')].map(r => r.innerText)"
    )
    assert sum(float(row.split()[4]) > 0.5 for row in cells) == 2  # heads that look at *and*
    tab.run("setInterval = step => { window.step = step; return 7; };" + go.format("play"))
    tab.run("step()")
    assert tab.run(said) == "Decoder, layer 2: sum, before cent is written."
    tab.run(go.format("play"))
    assert tab.run("return document.querySelector('[value=play]').textContent") == "play"
    tab.run("document.querySelector('.stops [tabindex=\"0\"]').focus()")
    tab.press("ArrowLeft")
    assert "cross-attention" in tab.run(said)
    tab.run("document.querySelector('[data-kind=next]').click();" + go.format("next"))
    assert tab.run(said) == "Decoder: words, before deux is written."
    tab.run(go.format("back"))
    assert tab.run(said) == "Decoder: softmax, before cent is written."
    tab.run("document.querySelector('[data-kind=memory]').click();" + go.format("next"))
    assert tab.run(said) == "Decoder: words, before quatre is written."
    tab = show("walk")
    tab.run(go.format("play"))  # for who wants no motion: the end
    assert tab.run(said) == "Decoder: softmax, before <eos> is written."
    assert tab.run("return document.querySelector('[value=next]').disabled")


TABLE = """[...document.querySelector("table").tBodies[0].rows].map(
    row => [...row.cells].slice(1).map(cell => cell.textContent))"""


def expected_table(x, mask):
    def layer(rows):
        return scaled_dot_product_attention(rows, rows, rows, mask)[0]

    weights = scaled_dot_product_attention(x, x, x, mask)[1][0]
    depends = dependency_map(layer, x)
    return [
        [f"{w:.2f}" if may else "0" for w, may in zip(row, allowed, strict=True)]
        + [f"{row.sum():.2f}"]
        + ["■" if yes else "·" for yes in changed]
        for row, allowed, changed in zip(weights, mask, depends, strict=True)
    ]


@pytest.mark.slow
@needs_browser
def test_a_figure_begins_when_its_reader_comes_near(tab, tmp_path):
    page = write_page(tmp_path, "surgery")
    page.write_text(page.read_text("utf-8").replace("<main>", "<main style='padding-top: 3000px'>"))
    begun, share = "'ready' in document.querySelector('[data-live]').dataset", "'.share'"
    tab.open(page)
    before = tab.run(f"return document.querySelector({share}).textContent")
    tab.run("await new Promise(resume => setTimeout(resume, 300))")
    assert not tab.run(f"return {begun}")
    tab.run("document.querySelector('[data-live]').scrollIntoView()")
    tab.wait(begun)
    assert tab.run(f"return document.querySelector({share}).textContent") == before.strip()


@pytest.mark.slow
@needs_browser
def test_the_mask_builder_shows_the_packages_weights_sums_and_dependencies(show):
    tab, data = show("masks"), live_figures.mask_tables()
    for place, preset in enumerate(data["presets"]):
        tab.run(f"document.querySelectorAll('.presets button')[{place}].click()")
        x, mask = torch.tensor([preset["x"]]), torch.tensor(preset["mask"])
        assert tab.run(f"return {TABLE}") == expected_table(x, mask), preset["name"]
        told = tab.run(
            "const j = document.querySelector('.judge'); return j.hidden || j.textContent"
        )
        known = [each for each in data["judge"] if each["mask"] == preset["mask"]]
        assert (told is True) == (not known)
        assert not known or known[0]["id"] in told
        dead = tab.run("return document.querySelectorAll('.dead').length")
        assert dead == (~mask.any(-1)).sum()
    # By keyboard: one stop for the table; arrows move, space toggles a cell.
    tab.run("document.querySelector('.masks [tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        tab.press(key)
    at = tab.run("return document.activeElement.dataset.at")
    tab.press("Space")
    mask[tuple(map(int, at.split()))] ^= True
    assert tab.run(f"return {TABLE}") == expected_table(x, mask)


@pytest.mark.slow
@needs_browser
def test_the_five_steps_show_the_packages_numbers_under_every_switch(show):
    data, tab = live_figures.step_tables(), show("steps")
    Q, K, V = (torch.tensor(data[name]) for name in "QKV")
    mask = torch.ones(2, 3, dtype=torch.bool)
    for root, rows, hidden in itertools.product((True, False), repeat=3):
        mask[0, 2] = not hidden
        tab.run(f"""
            for (const [name, on] of [["root", {json.dumps(root)}], ["rows", {json.dumps(rows)}],
                                      ["mask", {json.dumps(hidden)}]]) {{
                const box = document.querySelector(`input[name=${{name}}]`);
                if (box.checked !== on) box.click();
            }}""")
        scaled = Q @ K.T / (2 if root else 1)
        weights = scaled.masked_fill(~mask, -torch.inf).softmax(-1 if rows else 0)
        if root and rows:
            assert torch.allclose(weights, scaled_dot_product_attention(Q, K, V, mask)[1])
        tables = {"scores": Q @ K.T, "scaled": scaled, "weights": weights, "output": weights @ V}
        for name, digits in {"scores": 0, "scaled": 1, "weights": 3, "output": 2}.items():
            cells = f"[...document.querySelectorAll('[data-cell^=\"{name} \"]')]"
            shown = tab.run(f"return {cells}.map(cell => cell.textContent.replace('−', '-'))")
            expected = tables[name].flatten()
            assert (torch.tensor([*map(float, shown)]) - expected).abs().max() <= 0.51 * 10**-digits
    tab.run("document.querySelector('[data-cell=\"scores 0 0\"]').click()")
    lit = "[...document.querySelectorAll('.lit')].map(cell => cell.dataset.cell)"
    made_from = [f"{name} 0 {i}" for name in "QK" for i in range(4)]
    assert tab.run(f"return {lit}") == made_from
    told = "document.querySelector('.formula').textContent"
    assert "1·2 + 2·0 + 1·1 + −1·0 = 3" in tab.run(f"return {told}")
    tab.run("document.querySelector('[data-cell=\"scores 0 0\"]').focus()")
    tab.press("ArrowRight")
    assert "meets hundred" in tab.run(f"return {told}")


def cells(tab, place=""):
    """The words in a table's cells, row by row."""
    found = tab.run(f"""return [...document.querySelectorAll("{place} tbody tr")].map(
        row => [...row.cells].slice(1).map(cell => cell.textContent))""")
    return [[cell.translate({ord("−"): "-", ord("∞"): "inf"}) for cell in row] for row in found]


def choose(tab, name, value, kind="change"):
    tab.run(f"""const field = document.querySelector("[name={name}]"); field.value = "{value}";
        field.dispatchEvent(new Event("{kind}", {{bubbles: true}}));""")


@pytest.mark.slow
@needs_browser
def test_a_point_that_is_moved_reads_and_moves_as_in_the_package(show):
    tab, words = show("plane"), live_figures.plane_words()

    def shown_is_right(x):
        x = torch.tensor(x)
        output, weights = scaled_dot_product_attention(x, x, x)
        shown = [[float(each) for each in ", ".join(row).split(", ")] for row in cells(tab)]
        assert close(shown, torch.cat([x, weights, output], dim=-1))
        return output.tolist()

    shown_is_right([words["fashion"], words["model"]])
    tab.run("document.querySelector('[value=language]').click()")
    tab.run("document.querySelector('[data-word=model]').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        tab.press(key)
    moved = shown_is_right([words["language"], words["fashion"], [1.2, 0.9]])
    tab.run("document.querySelector('[value=apply]').click()")
    shown_is_right(moved)
    tab.run("document.querySelector('[value=begin]').click()")
    # By finger or mouse: what is dragged to the upper right corner stands there.
    box = "const box = document.querySelector('.plane').getBoundingClientRect();"
    tab.run(f"""{box} const point = document.querySelector("[data-word=model]");
        point.setPointerCapture = () => {{}};
        const send = (kind, x, y) => point.dispatchEvent(
            new PointerEvent(kind, {{bubbles: true, clientX: box.x + x, clientY: box.y + y}}));
        send("pointerdown", 0, 0); send("pointermove", box.width, 0); send("pointerup", 0, 0);
        send("pointermove", 0, 0);""")
    shown_is_right([words["language"], words["fashion"], [3.0, 3.0]])


@pytest.mark.slow
@needs_browser
def test_the_hands_show_the_packages_positions_and_their_dot_product(show):
    tab, PE = show("hands"), sinusoidal_positions(100, 8).double()
    for position, distance in ((3, 7), (40, 7), (40, 12), (41, 12)):
        if position == 41:
            tab.run("document.querySelector(`button[value='1']`).click()")
        else:
            choose(tab, "position", position, "input")
            choose(tab, "distance", distance, "input")
        here, there = PE[position], PE[position + distance]
        dd = "[...document.querySelectorAll('dd')].map(e => e.textContent.replaceAll('−', '-'))"
        shown = [cell.removesuffix(" rad").split(", ") for cell in tab.run(f"return {dd}")]
        for i in range(4):
            pair = slice(2 * i, 2 * i + 2)
            assert close([*map(float, shown[3 * i])], here[pair])
            assert close([*map(float, shown[3 * i + 1])], there[pair])
            assert float(shown[3 * i + 2][0]) == pytest.approx(distance / 10**i)
        told = tab.run("return document.querySelector('.said').textContent")
        assert f"sum to {here @ there:.2f}," in told and f"{position + distance}:" in told


@pytest.mark.slow
@needs_browser
def test_bytes_and_roof_are_the_packages(show):
    tab, h = show("roof"), live_figures.roof_sheets()["heads"]
    prefixes = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

    def value(cell):
        number, _, unit = cell.replace(",", "").partition(" ")
        return float(number) * (prefixes | {"P": 1e15})[unit.rstrip("Bs")]

    for gpu, n, d, dtype in (
        ("T4", 16384, 64, "float16"), ("H200", 512, 256, "bfloat16"),
        ("L4", 131072, 32, "float32"), ("A100-40", 8192, 128, "float16"),
    ):  # fmt: skip
        for name, chosen in (("gpu", gpu), ("n", n), ("d", d), ("dtype", dtype)):
            choose(tab, name, chosen)
        sheet, size = roofline.DATASHEETS[gpu], 4 if dtype == "float32" else 2
        flops = roofline.attention_flops(1, h, n, d)
        naive = roofline.naive_bytes(1, h, n, d, element_bytes=size)
        fused = roofline.fused_bytes(1, h, n, d, element_bytes=size)
        cache = roofline.decode_bytes(1, h, n, d, size)
        expected = []
        for work, moved, held in (
            (flops, naive, peak_bytes(1, h, n, d, size) + 3 * h * n * d * size),
            (flops, fused, fused),
            (roofline.attention_flops(1, h, 1, d, n), cache, cache),
        ):
            speed = roofline.attainable(sheet, work, moved, dtype)
            intensity = roofline.intensity(work, moved)
            expected.append([work, moved, intensity, speed, work / speed, held])
        shown = [[value(cell) for cell in row] for row in zip(*cells(tab), strict=True)]
        assert torch.allclose(torch.tensor(shown), torch.tensor(expected), rtol=0.0051), gpu
        told = tab.run("return document.querySelector('.said').textContent")
        fits = n <= largest_n(sheet["memory_bytes"], 1, h, d, size)
        assert ("does not fit into" in told) != fits
        computes = roofline.intensity(flops, fused) >= roofline.ridge(sheet, dtype)
        assert f"fused attention {'computes' if computes else 'waits'}" in told


@pytest.mark.slow
@needs_browser
def test_the_two_hops_are_the_models_and_the_second_needs_the_first(show):
    tab, model = show("hops"), looking_inside_curves.load("varying", 1)
    vocabulary = looking_inside_curves.number_words()
    text = looking_inside_curves.texts(1, torch.Generator().manual_seed(3), 12)[:, :18]
    others = looking_inside_curves.texts(100, torch.Generator().manual_seed(0))
    silent = model
    for head in (0, 1):
        always = head_outputs(model, others)["layers.0.attention"][:, head, :18].mean(0)
        silent = ablated(silent, "layers.0.attention", head, always)
    read = {}
    for name, each in (("whole", model), ("silent", silent)):
        maps = attention_maps(each, text)
        with torch.no_grad():
            shares = each(text)[0].softmax(-1)
        read[name] = maps["layers.0.attention"][0, 0], maps["layers.1.attention"][0, 1], shares
    weights, said = LOOK.replace("'.source i'", "'.hops .source i'"), "'.hops .said'"
    right = dict.fromkeys(read, 0)
    for place in range(12, 18):
        tab.run(f"document.querySelectorAll('[name=place]')[{place - 12}].click()")
        for name, (first, second, shares) in read.items():
            if name == "whole":
                tab.run("document.querySelector('[value=back]').click()")
                assert close(tab.run(f"return {weights}"), first[place - 11, : place + 1])
                tab.run("document.querySelector('[value=next]').click()")
            tab.run("document.querySelector('[name=silent]').click()" * (name == "silent"))
            assert close(tab.run(f"return {weights}"), second[place, : place + 1])
            tab.run("document.querySelector('[value=next]').click()")
            share, word = shares[place].max(-1)
            told = tab.run(f"return document.querySelector({said}).textContent")
            assert f"says {vocabulary[word]}, with a probability of {share:.2f}" in told
            assert ("That is right." in told) == (word == text[0, place - 11])
            right[name] += "That is right." in told
            tab.run("document.querySelector('[value=back]').click()")
        tab.run("document.querySelector('[name=silent]').click()")
    assert right["whole"] == 6 and right["silent"] <= 2


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("tile", "causal"), [(2, False), (3, True)])
def test_tile_by_tile_the_state_is_the_packages(show, tile, causal):
    data, tab = live_figures.tile_scores(), show("tiles")
    scores = torch.tensor(data["scores"], dtype=torch.float64)
    values = torch.tensor(data["values"], dtype=torch.float64)[:, None]
    if causal:
        tab.run("document.querySelector('[name=causal]').click()")
        scores = scores.masked_fill(~causal_mask(4), -torch.inf)
    choose(tab, "tile", tile)
    tab.run("document.querySelector('[value=begin]').click()")
    state = [torch.zeros(4, 1).double(), torch.full((4,), -torch.inf), torch.zeros(4)]
    for row in range(0, 4, tile):
        rows = slice(row, row + tile)
        for column in range(0, min(row + tile, 4) if causal else 4, tile):
            part = part_of(scores[rows, column : column + tile], values[column : column + tile])
            merged = merge([each[rows] for each in state], part)
            for old, new in zip(state, merged, strict=True):
                old[rows] = new
            tab.run("document.querySelector('[value=next]').focus()")
            tab.press("Enter")
            weighted, maximum, total = state
            expected = torch.stack([maximum, total, weighted[:, 0]], dim=-1)
            shown = torch.tensor([[*map(float, row[:3])] for row in cells(tab, ".state")])
            assert torch.allclose(shown, expected.float(), atol=0.00051)
    output = torch.tensor([float(row[3]) for row in cells(tab, ".state")])
    assert torch.allclose(output, (scores.softmax(-1) @ values)[:, 0].float(), atol=0.00051)
    assert "Every output is exact" in tab.run("return document.querySelector('.said').textContent")
    tab.run("document.querySelector('[value=play]').click()")  # for who wants no motion: the end
    assert output.tolist() == pytest.approx([float(row[3]) for row in cells(tab, ".state")])


@pytest.mark.slow
@needs_browser
def test_tiles_play_only_when_asked_and_can_be_stopped(show):
    tab = show("tiles", still=False)
    told = "return document.querySelector('.said').textContent"
    tab.run("setInterval = (step, pause) => { window.step = step; return 7; };")
    before = tab.run(told)
    tab.run("document.querySelector('[value=play]').click(); step();")
    assert before.startswith("Tile 2 of 4") and tab.run(told).startswith("Tile 3 of 4")
    assert tab.run("return document.querySelector('[value=play]').textContent") == "stop"
    tab.run("document.querySelector('[value=play]').click()")
    assert tab.run("return document.querySelector('[value=play]').textContent") == "play"


# --- for everybody -------------------------------------------------------------------------------

FOCUSED = """
    const at = document.activeElement, shown = [at, at.nextElementSibling].filter(Boolean);
    return [at.tagName, at.closest("form")?.getAttribute("aria-label"),
            shown.some(each => getComputedStyle(each).outlineStyle !== "none")];"""


@pytest.mark.slow
@needs_browser
def test_who_comes_by_keyboard_reaches_every_figure_and_sees_where(show):
    tab = show(*FIGURES)
    forms = tab.run("return [...document.forms].map(form => form.getAttribute('aria-label'))")
    reached = {}
    while not (tab.press("Tab") or (at := tab.run(FOCUSED))[0] == "BODY"):
        reached.setdefault(at[1], []).append(at)
        assert len(reached[at[1]]) <= 60  # a table is one stop, not thirty
    assert reached.keys() == set(forms)
    assert [at for stops in reached.values() for at in stops if not at[2]] == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_figure_has_a_barrier_or_is_wider_than_a_telephone(show, theme):
    tab = show(*FIGURES, width=390, theme=theme)
    assert tab.violations() == []
    assert tab.run("return document.documentElement.scrollWidth") <= 390


# --- check yourself ------------------------------------------------------------------------------


@pytest.mark.slow
@needs_browser
def test_what_a_reader_answered_is_remembered_and_shown_on_the_map(tab, tmp_path):
    question = "<p>{}</p><details class=sd-dropdown><summary>Answer</summary><p>Yes.</p></details>"
    questions = question.format("Which?") + question.format("Why?")
    map_ = "<span class=dots data-page=01_bottleneck data-questions=2>2 questions</span>"
    map_ += "<nav class=bd-sidebar-primary><a href='../book/01_bottleneck.html'>1.</a></nav>"
    map_ += "<div class=doors></div>"
    dots = "const dots = document.querySelector('.dots'); return [dots.textContent, dots.ariaLabel]"

    def opened(kept):
        """A chapter's page, with the map, in a browser that has kept this and nothing else.

        A browser hands on what it has stored when it has time, so here the page brings it along."""
        page = tmp_path / "01_bottleneck.html"
        page.write_text(
            f"<!doctype html><meta charset=utf-8><script>localStorage.clear();"
            f"Object.assign(localStorage, {json.dumps(kept)})</script>"
            f"<script src='{(LIVE / 'check.js').as_uri()}'></script>{questions}{map_}",
            "utf-8",
        )
        tab.open(page)

    opened({})
    assert tab.run(dots) == ["2 questions", None]
    assert tab.run("return document.querySelector('nav a').textContent") == "1."
    tab.press("Tab")
    tab.wait("document.activeElement.matches('textarea')")
    tab.run("document.execCommand('insertText', false, 'One vector <b>')")
    tab.run("document.querySelectorAll('[value=yes]')[0].click()")
    tab.run("document.querySelectorAll('[value=\"not yet\"]')[1].click()")
    opened(tab.run("return {...localStorage}"))
    assert tab.run("return document.querySelector('textarea').value") == "One vector <b>"
    chosen = "[...document.querySelectorAll('input:checked')].map(each => each.value)"
    assert tab.run(f"return {chosen}") == ["yes", "not yet"]
    assert tab.run(dots) == ["●○", "1 of 2 questions right, 1 not yet"]
    assert tab.run("return document.querySelector('nav a').textContent") == "1. 2 of 2"
    stopped = tab.run("return document.querySelector('.doors + .continue a').outerHTML")
    assert stopped == '<a href="01_bottleneck.html">01_bottleneck</a>'


@pytest.mark.slow
@needs_browser
def test_chapter_14_names_the_mistakes_whose_entries_were_opened(tab, tmp_path):
    (tmp_path / "mistakes").mkdir()
    script = (
        f"<!doctype html><meta charset=utf-8><script src='{(LIVE / 'check.js').as_uri()}'></script>"
    )
    gallery, page = tmp_path / "mistakes" / "multihead.html", tmp_path / "14_in_the_wild.html"
    gallery.write_text(script, "utf-8")
    said = "return document.querySelector('p').textContent"
    own = script + "<p data-met='P-ODD M-DEAD-ROW D-NO-SCALE'>None yet.</p>"
    page.write_text(own.replace("<p", "<script>localStorage.clear()</script><p", 1), "utf-8")
    tab.open(page)
    assert tab.run(said) == "None yet."
    tab.open(gallery)
    tab.run("location.hash = 'M-DEAD-ROW'")
    tab.wait("localStorage.getItem('attncourse-met/M-DEAD-ROW')")
    kept = tab.run("return {...localStorage}")
    # A browser hands on what it has stored when it has time, so the page brings it along.
    brought = f"<script>Object.assign(localStorage, {json.dumps(kept)})</script>"
    page.write_text(own.replace("<script src", brought + "<script src", 1), "utf-8")
    tab.open(page)
    assert tab.run(said) == "In this browser you have opened the entry of M-DEAD-ROW."


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
                tab.wait("document.querySelector('[data-live][data-ready]')")
                pictures = ROOT / "_build" / "pictures"
                pictures.mkdir(parents=True, exist_ok=True)
                tab.photograph(pictures / f"live_{name}_{width}_{theme}.png")


def draw_card():
    """The picture that a shared link shows: the course's name over its first figure."""
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        tab.open(write_page(Path(folder), "translators"), 1200)
        tab.wait("document.querySelector('[data-live][data-ready]')")
        title = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["title"]
        tab.run(f"""
            document.body.style.cssText = "max-width: none; margin: 24px 48px; font-size: 22px";
            document.querySelector(".controls").remove();
            document.querySelector("main").insertAdjacentHTML("afterbegin",
                "<h1 style='margin: 0; font-size: 54px'>{title}</h1>");
            document.querySelector(".live form").style.fontSize = "23px";
            document.querySelector("figure").style.margin = "20px 0 0";""")
        tab.photograph(LIVE.parent / "card.png", 630)


if __name__ == "__main__":
    draw(sys.argv[1:] or FIGURES)
    draw_card()

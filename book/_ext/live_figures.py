"""Figures that run in the page: `{live} name` shows `_static/live/name.html` as a figure.

A figure is three files of one name in `_static/live`: its first state (.html: all that paper and a
browser without scripts have), its script (.js) and, if it shows the package's own numbers, a
function in DATA. Models that its first state names in `data-models` are written beside the pages,
so that nothing is fetched and `file://` is enough. `python tests/test_live.py` draws first states.
"""

import base64
import json
import random
import re
import zlib
from pathlib import Path

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from safetensors.numpy import load_file
from sphinx.util.docutils import SphinxDirective

LIVE = Path(__file__).parent.parent / "_static" / "live"
KINDS = {"fixed-64": "fixed", "additive": "additive", "transformer": "transformer"}


def packed_model(name: str) -> str:
    """A stored model as a script: its float16 weights, deflated; low bytes apart from high bytes,
    which resemble each other."""
    from attncourse import pretrained

    weights = load_file(pretrained.DATA / f"{name}.safetensors")
    rows = {key: np.atleast_2d(tensor) for key, tensor in weights.items()}
    measured, model = pretrained.curves(), pretrained.load(name)[0]
    heads = {layer.num_heads for layer in model.modules() if hasattr(layer, "num_heads")}
    header = {
        "kind": KINDS[name],
        "heads": max(heads, default=1),
        "english": measured["source_words"],
        "french": measured["target_words"],
        "shapes": [(key, *matrix.shape) for key, matrix in rows.items()],
    }
    header = json.dumps(header).encode()
    numbers = b"".join(matrix.astype("<f2").tobytes() for matrix in rows.values())
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 8, zlib.Z_FILTERED)
    planes = len(header).to_bytes(4) + header + numbers[0::2] + numbers[1::2]
    text = base64.b64encode(packer.compress(planes) + packer.flush()).decode()
    return f'live.store("{name}", "{text}");\n'


def surgery_numbers() -> list[int]:
    """The numbers of chapter 5's experiment."""
    chance = random.Random(5)
    return [chance.randrange(10**9) for _ in range(200)]


def mask_tables() -> dict:
    """Chapter 6's sentence and masks, and the wrong causal masks that its judge knows by name."""
    import torch

    from attncourse.checks import registry
    from attncourse.checks.task import compose, is_change
    from attncourse.masking import causal_mask

    words = ["nine", "hundred", "four", "<pad>", "<pad>"]
    torch.manual_seed(5)
    vectors = {word: 0.6 * torch.randn(16) for word in words[:4]}
    everything, causal = torch.ones(5, 5, dtype=torch.bool), causal_mask(5)
    real = torch.tensor([word != "<pad>" for word in words])
    presets = {
        "nothing hidden": everything,
        "causal": causal,
        "padding": everything & real,
        "both": causal & real,
        "both, padded on the left": causal & real.flip(0),
        "tril(1)": everything.tril(1),
        "inverted": ~causal,
    }
    task, judge = registry.find("causal_mask"), {}
    for fault in task.faults.values():
        for form in fault.forms:
            answer = compose(task, form) if is_change(task, form) else form
            mask = answer(5, 5)
            wrong = isinstance(mask, torch.Tensor) and mask.shape == (5, 5)
            if wrong and mask.dtype == torch.bool and not torch.equal(mask, causal):
                told = {"id": fault.id, "thinks": fault.thinks, "why": fault.why}
                judge.setdefault(str(mask.tolist()), told | {"mask": mask.tolist()})
    shown = []
    for name, mask in presets.items():
        order = words[::-1][:2] + words[:3] if "left" in name else words
        x = torch.stack([vectors[word] for word in order]).double().tolist()
        shown.append({"name": name, "mask": mask.tolist(), "words": order, "x": x})
    return {"presets": shown, "judge": list(judge.values())}


def written(page: str, name: str):
    """What a page's code gives a name: lists of numbers or words, a tensor of them, or a table."""
    text = (LIVE.parent.parent / f"{page}.md").read_text("utf-8")
    found = re.search(
        rf"^{name} = (?:torch\.tensor\()?([\[{{].*?[\]}}])\)?(?: +#.*)?$", text, re.MULTILINE
    )
    return json.loads(found[1])


def step_tables() -> dict:
    """The queries, keys and values of chapter 3's sentence, as its page chooses them."""
    names = {name: name for name in (*"QKV", "votes")} | {"queries": "french", "keys": "english"}
    return {key: written("03_scaled_dot_product", name) for key, name in names.items()}


def plane_words() -> dict:
    """The words of chapter 4's first figure, as its page places them."""
    return written("04_self_attention", "meanings")


def hand_speeds() -> list[float]:
    """Radians a position of the four hands of a vector of eight features."""
    from attncourse.positions import rotary_frequencies

    return rotary_frequencies(8).tolist()


def roof_sheets() -> dict:
    """The GPUs whose data sheets the package knows, and the heads of lab 2's wall."""
    from attncourse.lab.roofline import DATASHEETS

    return {"sheets": DATASHEETS, "heads": 16}


def tile_scores() -> dict:
    """Lab 6's query, its values, and three more queries of the same kind."""
    first, values = (written("lab6_write_flash", name) for name in ("scores", "values"))
    return {"scores": [first, [4, 0, 1, 3], [2, 6, 0, 3], [0, 5, 1, 4]], "values": values}


def hop_numbers() -> dict:
    """Chapter 12's row of twelve words and half of it again, in the model of seed 1: where its best
    head of layer 0 looks in the first half, where that of layer 1 looks in the second, with layer 0
    and with what its heads always say instead; and the next word."""
    import torch

    from attncourse.experiments import looking_inside_curves as curves
    from attncourse.looking_inside import (
        ablated,
        head_outputs,
        induction_score,
        previous_token_score,
    )
    from attncourse.multihead import attention_maps

    period, n = 12, 18
    vocabulary, model = curves.number_words(), curves.load("varying", seed=1)
    text = curves.texts(1, torch.Generator().manual_seed(3), period)[:, :n]
    others = curves.texts(100, torch.Generator().manual_seed(0))
    below, above = attention_maps(model, text)

    def seen(model, layer):
        return attention_maps(model, text)[layer][0]  # h q k

    def rows(weights, start):
        return [
            [round(weight, 4) for weight in weights[place, : place + 1].tolist()]
            for place in range(start, start + n - period)
        ]

    silent = model
    for head, said in enumerate(head_outputs(model, others)[below].mean(0)):
        silent = ablated(silent, below, head, said[:n])
    one = previous_token_score(seen(model, below)).argmax().item()
    two = induction_score(seen(model, above), period).argmax().item()
    next_words = {}
    for name, each in (("whole", model), ("silent", silent)):
        with torch.no_grad():
            share, word = each(text)[0, period:].softmax(-1).max(-1)
        pairs = zip(word.tolist(), share.tolist(), strict=True)
        next_words[name] = [(vocabulary[word], round(share, 4)) for word, share in pairs]
    return {
        "words": [vocabulary[word] for word in text[0].tolist()],
        "period": period,
        "heads": [f"0.{one}", f"1.{two}"],
        "first": rows(seen(model, below)[one], 1),
        "second": rows(seen(model, above)[two], period),
        "silent": rows(seen(silent, above)[two], period),
        "next": next_words,
    }


# Name of a figure -> what its script finds in `live.data`.
DATA = {
    "surgery": surgery_numbers,
    "masks": mask_tables,
    "steps": step_tables,
    "plane": plane_words,
    "hands": hand_speeds,
    "roof": roof_sheets,
    "tiles": tile_scores,
    "hops": hop_numbers,
}


COMMENT = re.compile(r"^ *(?:/\*\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)


def scripts(*figures: str) -> dict[str, str]:
    """What a page with these figures loads, in order: few files; pages share models."""

    def read(*names: str) -> str:
        text = "\n".join((LIVE / f"{name}.js").read_text("utf-8") for name in names)
        return COMMENT.sub("", text)

    files, own = {"base.js": read("engine", "names", "frame", "numbers")}, {}
    for figure in figures:
        page = (LIVE / f"{figure}.html").read_text("utf-8")
        models = re.search(r'data-models="([^"]*)"', page)
        for name in models[1].split() if models else []:
            files[f"model-{name}.js"] = packed_model(name)
        script, *_ = figure.split("-")  # translator-7 is a translator
        own[script] = ""
        if figure in DATA:
            data = json.dumps(DATA[figure](), ensure_ascii=False)
            own[script] = f'live.data["{figure}"] = {data};\n'
    if own:
        texts = (data + read(script) for script, data in own.items())
        files[f"{'-'.join(own)}.js"] = "\n".join(texts)
    return {f"made/{file}": text for file, text in files.items()}


class Live(SphinxDirective):
    """`{live} name` with a caption and, as option, the figure's name for references."""

    required_arguments = 1
    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (as docutils wants it)

    def run(self):
        first_state = (LIVE / f"{self.arguments[0]}.html").read_text("utf-8")
        figure = nodes.figure("", nodes.raw("", first_state, format="html"), classes=["live"])
        figure["live"] = self.arguments[0]
        told = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, told)
        figure += nodes.caption("", "", *told[0].children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def load_scripts(app, pagename, templatename, context, doctree):
    """A page loads what its own figures need, and no other page does."""
    found = doctree.findall(nodes.figure) if doctree else []
    figures = [figure["live"] for figure in found if "live" in figure]
    if not figures:
        return
    app.add_css_file("live/live.css")
    for file, text in scripts(*figures).items():
        path = Path(app.outdir, "_static", "live", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        app.add_js_file(f"live/{file}", loading_method="defer")


def setup(app):
    app.add_directive("live", Live)
    # Before fresh_pages makes lists of its own.
    app.connect("html-page-context", load_scripts, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

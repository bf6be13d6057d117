"""Light pages: formulas, icons, scripts and pictures cost what a reader needs of them, no more.

1. Formulas are set when the book is built, in MathML, which browsers set and screen readers read
   by themselves. A page has no script for them; a font with the tables that mathematics needs is in
   `_static/fonts`.
2. Icons are letters of a font that holds no others, in the style sheet. The theme would load all of
   Font Awesome (818 kB), twice: as fonts, and as a script that draws the same.
3. What every page loads is one style sheet and one script. What no page of ours uses is left out:
   Thebe, buttons that fold, Sphinx's search, the style of what no page has, letters of the font.
4. A picture waits until its reader comes near, and keeps its place until then. Plots are WebP: the
   same colors, pixel by pixel, in a third of PNG's bytes.
5. No line ends within a short piece of code, or between a formula and the comma behind it.
6. No level of headings is skipped: a report's headings follow those of the section around it.
"""

import base64
import hashlib
import io
import os
import re
import shutil
import unicodedata
from html import unescape
from logging import getLogger
from pathlib import Path
from urllib.parse import unquote

import imagesize
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from fontTools import subset
from fontTools.ttLib import TTFont
from PIL import Image
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

# --- formulas ------------------------------------------------------------------------------------

# What docutils does not know, or takes otherwise than TeX does ...
LATEX = {
    r"\\vphantom\{.*?\}": "",  # MathML keeps lines apart by itself
    r"·": r"\\cdot ",
    r"\\dots\b": r"\\ldots",
    r"\\(begin|end)\{split\}": "",
    r"\\\\\s*\[\w+\]": r"\\\\",
    r"\\big[lr]?(?![a-z])": "",  # would hold lines together
}
# ... and where it sets something else: spaces around functions, bars, below a brace or an arrow.
THIN = '<mspace width="0.1667em"></mspace>'
MATHML = {
    r"\n\s*": "",
    r"<mo>(min|max)</mo>": r"<mi>\1</mi><mo>&ApplyFunction;</mo>",
    r'<mo stretchy="false">/': '<mo stretchy="false" lspace="0" rspace="0">/',
    "<mo>'</mo>": '<mo lspace="0" rspace="0">′</mo>',
    r"<mo>([=≈])</mo></math>": r'<mo rspace="0">\1</mo></math>',  # a number follows in the text
    rf"(<msub><mi>log</mi><m([in])>\w+</m\2></msub>)(?!<mo|{THIN})": rf"\1{THIN}",
    r"(</m(?:i|n|sub|sup|sqrt|frac|row)>)(<mi>[a-z]{2,}</mi><mo>&ApplyFunction;)": rf"\1{THIN}\2",
    r"(&ApplyFunction;</mo>)(?!<mrow><mo>[(\[]|<mo[^>]*>[(\[]|<mspace)": rf"\1{THIN}",
    r'<mo stretchy="false">\|': '<mo stretchy="false" lspace="0" rspace="0">|',
    r"<msub>(<munder>.*?<mo>⏟</mo></munder>)(.*?)</msub>": r"<munder>\1\2</munder>",
    r"<munderover>(<mi>\w</mi>)(<mi>\w</mi>)(<mo accent.*?</mo>)</munderover>": (
        r"<msub><mover>\1\3</mover>\2</msub>"
    ),
}

# What stands above and below: signs have no space around them, t−1.
SMALL = ":is(msub, msup, msubsup, munder, munderover) > mrow:not(:first-child) mo"


def mathml(latex: str, as_block: bool) -> str:
    """A formula as a `<math>` element."""
    for unknown, known in LATEX.items():
        latex = re.sub(unknown, known, latex)
    formula = tex2mathml(latex.strip(), as_block=as_block)
    for found, better in MATHML.items():
        formula = re.sub(found, better, formula)
    tree = BeautifulSoup(formula, "html.parser")
    for sign in tree.select(SMALL):
        sign["lspace"] = sign["rspace"] = "0"
    return str(tree)


def set_formula(translator, node):
    is_block = isinstance(node, nodes.math_block)
    try:
        formula = mathml(node.astext(), is_block)
    except MathError as problem:
        logger = logging.getLogger(__name__)
        logger.warning("%s in %s", problem, node.astext(), location=node)
        raise nodes.SkipNode from problem
    element = "div" if is_block else "span"
    translator.body.append(translator.starttag(node, element, "", CLASS="math"))
    if is_block and node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(f"{formula}</{element}>")
    raise nodes.SkipNode


# --- icons ---------------------------------------------------------------------------------------

FONT = re.compile(r"@font-face\{[^}]*?url\(([^)]*/fontawesome/[^)]*)\.woff2\)[^}]*\}")
ICON = re.compile(r'<(i|span) (class="[^"]*\bfa-[^"]*")')
NAMED = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"[^"]*"\}')


def only_used_icons(css: str, names: set[str], static: Path) -> str:
    """The style sheet with the icons of these names, and those that it shows by itself."""

    def is_named(found):
        return names & set(re.findall(r"\.(fa-[\w-]+):before", found[1]))

    css = NAMED.sub(lambda found: found[0] if is_named(found) else "", css)
    codes = {ord(letter) for letter in css if "\ue000" <= letter <= "\uf8ff"}
    codes |= {int(code, 16) for code in re.findall(r'content:"\\(f[0-9a-f]{3})"', css)}

    def cut(found):
        if "regular" in found[1]:
            return ""  # the theme's icons are solid
        font = TTFont(static / f"{found[1]}.ttf")
        options = subset.Options(layout_features=[], name_IDs=[0, 13], hinting=False)
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=codes)
        cutter.subset(font)
        font.flavor = "woff"
        font.save(inline := io.BytesIO())
        data = base64.b64encode(inline.getvalue()).decode()
        return re.sub(r"src:.*?(?=[;}])", f"src:url(data:font/woff;base64,{data})", found[0])

    return FONT.sub(cut, css)


# --- the font of formulas ------------------------------------------------------------------------


def only_used_letters(font: Path, pages: str) -> None:
    """Cut a font to the letters of the pages' formulas. A letter alone is set in italics."""
    formulas = re.findall(r"<math.*?</math>", pages, re.DOTALL)
    letters = {letter for each in formulas for letter in unescape(re.sub("<[^>]*>", "", each))}
    if any("<msqrt" in each or "<mroot" in each for each in formulas):
        letters.add("√")  # no letter of the formula, yet the browser takes it from the font
    named = re.findall(r'mathvariant="([\w-]+)"', pages)
    styles = tuple(f"MATHEMATICAL {each.upper().replace('-', ' ')} " for each in ["italic", *named])

    def is_used(code: int) -> bool:
        letter, name = chr(code), unicodedata.name(chr(code), "")
        is_styled = name.startswith(styles) or letter == "ℎ"  # the italic h
        return letter in letters or (is_styled and unicodedata.normalize("NFKC", letter) in letters)

    whole = TTFont(font)
    cutter = subset.Subsetter(subset.Options(layout_features=["*"], name_IDs=["*"]))
    cutter.populate(unicodes=[code for code in whole.getBestCmap() if is_used(code)])
    cutter.subset(whole)
    whole.flavor = "woff"
    whole.save(font)


# --- scripts and style sheets --------------------------------------------------------------------

SHEET = re.compile(r'\s*<link\b[^>]*\brel="stylesheet"[^>]*>')
SCRIPT = re.compile(r'\s*<script\b(?![^>]*type="module")[^>]*\bsrc="[^"]+"[^>]*></script>')
ADDRESS = re.compile(r'\b(?:href|src)="([^"?]+)')
PRELOAD = re.compile(r'\s*<link rel="preload" as="script"[^>]*>')
SETTINGS = re.compile(r"\s*<script>(?:let|var|const) (?:toggle|THEBE)[^<]*</script>")
OPTIONS = "documentation_options.js"  # 300 bytes, and a script in the page adds to them

# Sphinx's search needs a server to show what it found; section_search.py needs none.
UNUSED = {"fontawesome.js", "searchtools.js", "language_data.js", "searchindex.js"}
UNUSED |= {"sphinx_highlight.js"}  # marks what Sphinx's search found
# What only some pages could need, and how to tell.
NEEDS = {
    "thebe": 'class="thebe',
    "togglebutton": 'class="toggle"|admonition dropdown|dropdown admonition',
    "design-tabs": "sd-tab-set",
}


def is_used(file: Path, page: str) -> bool:
    needs = [sign for part, sign in NEEDS.items() if part in file.name]
    return file.name not in UNUSED and all(re.search(sign, page) for sign in needs)


def sheet_text(sheet: Path, static: Path) -> str:
    """A style sheet, with what it imports, as it reads in the folder `static`."""

    def moved(found):
        address = found[1].strip("'\"")
        if re.match("data:|#|/", address):
            return found[0]
        return f"url({os.path.relpath(sheet.parent / address, static)})"

    text = re.sub(r"/\*(?!!).*?\*/", "", sheet.read_text("utf-8"), flags=re.DOTALL)
    text = text.replace('@charset "UTF-8";', "")
    text = re.sub(r"url\(([^)]+)\)", moved, text)
    imported = r'@import "([^":]+)";'
    return re.sub(imported, lambda found: sheet_text(sheet.parent / found[1], static), text)


# What begins or ends a rule, where no string, address or comment holds it.
BRACE = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|url\((?:"[^"]*"|'[^']*'|[^)"']*)\)|/\*.*?\*/|[{};]""",
    re.DOTALL,
)
# What a selector does not need, or may find in another way.
MAYBE = re.compile(r":(?:not|is|where|has)\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]")
NAME = re.compile(r"[.#]((?:[\w-]|\\.)+)")


def rules(css: str):
    """Selector and body of each rule; of what has none (@charset, a comment), the text and None."""
    start = depth = body = 0
    for found in BRACE.finditer(css):
        if found[0] == "{":
            depth += 1
            if depth == 1:
                body = found.end()
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                yield css[start : body - 1].strip(), css[body : found.start()]
                start = found.end()
        elif depth == 0 and (found[0] == ";" or found[0].startswith("/*")):
            yield css[start : found.end()], None
            start = found.end()


def selectors(text: str) -> list[str]:
    """What stands between the commas that stand in no parentheses."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def only_used_rules(css: str, names: set[str]) -> str:
    """The style sheet without the rules for classes and ids that are not among these names."""

    def can_be(selector):
        needed = NAME.findall(MAYBE.sub("", selector))
        return all(name.replace("\\", "") in names for name in needed)

    kept = []
    for selector, body in rules(css):
        if body is None:
            kept.append(selector)
        elif re.match("@(?:media|supports|layer|container)", selector):
            inside = only_used_rules(body, names)
            kept.append(f"{selector}{{{inside}}}" if inside else "")
        elif selector.startswith("@"):
            kept.append(f"{selector}{{{body}}}")
        else:
            used = [each for each in selectors(selector) if can_be(each)]
            kept.append(f"{','.join(used)}{{{body}}}" if used else "")
    return "".join(kept)


def only_used_variables(css: str, others: str) -> str:
    """The style sheet without the variables that neither it nor the others read."""
    before = None
    while before != css:
        before, read = css, set(re.findall(r"--[\w-]+", others))
        read.update(re.findall(r"var\(\s*(--[\w-]+)", css))
        css = re.sub(
            r"(--[\w-]+)\s*:\s*[^;{}\"'()]*(?:;|(?=\}))",
            lambda found: found[0] if found[1] in read else "",  # noqa: B023
            css,
        )
    return css


# The theme measures each box that might be scrolled as soon as a page is there, and so has what
# waits for its reader laid out. `accessible.js` measures what is laid out anyway.
MEASURED = re.compile(r'document\.querySelectorAll\(\["pre",.*?\]\.join\(", "\)\)')


def script_text(script: Path) -> str:
    text = re.sub(r"^//# sourceMappingURL=.*$", "", script.read_text("utf-8"), flags=re.MULTILINE)
    return f";\n{MEASURED.sub('[]', text)}"  # no script is to make the next one strict


def gather(pages: dict[Path, str], one: Path, tag: re.Pattern, join, link: str) -> list[Path]:
    """Put what every page loads into `one` file; `pages` change in place. What is now in it."""

    def file(path, found):
        return (path.parent / ADDRESS.search(found[0])[1]).resolve()

    loads = {
        path: [file(path, each) for each in tag.finditer(page)] for path, page in pages.items()
    }
    shared = [
        each
        for each in dict.fromkeys(next(iter(loads.values())))
        if each.name != OPTIONS
        and all(each in others for others in loads.values())
        and any(is_used(each, page) for page in pages.values())
    ]
    text = join(shared)
    one.write_text(text, "utf-8")
    version = hashlib.sha256(text.encode()).hexdigest()[:8]
    options = f"\n    <script>{(one.parent / OPTIONS).read_text('utf-8')}</script>"

    def gathered(path, page):
        place = f"{os.path.relpath(one, path.parent)}?v={version}"
        first = iter([f"\n    {link.format(place)}"])

        def kept(found):
            each = file(path, found)
            if each in shared:
                return next(first, "")
            if each.name == OPTIONS:
                return options
            return found[0] if is_used(each, page) else ""

        return tag.sub(kept, page)

    pages.update({path: gathered(path, page) for path, page in pages.items()})
    return shared


# --- pictures ------------------------------------------------------------------------------------

PICTURE = re.compile(
    r'<img ((?:(?!loading=|width=)[^>])*?src="([^"]+)"(?:(?!loading=|width=)[^>])*?)/?>'
)


PLOT = re.compile(r"(\b_(?:images|static/images)/[\w-]+)\.png\b")


def size(picture: Path) -> tuple[int, int]:
    if picture.suffix != ".svg":
        return imagesize.get(picture)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture.read_text("utf-8"))
    return (round(float(box[1])), round(float(box[2]))) if box else (-1, -1)


def as_webp(pictures: Path) -> None:
    """Write pictures as WebP without loss."""
    for plot in pictures.glob("*.png"):
        small = plot.with_suffix(".webp")
        if not small.exists():  # the name is the content's
            with Image.open(plot) as drawn:
                drawn.save(small, lossless=True, quality=100, method=3)  # 6 takes minutes
        plot.unlink()


def keep_places(page: str, path: Path) -> str:
    """Write pictures' sizes into the page, and let all but the first wait for their reader."""
    first = iter([""])

    def placed(found):
        picture = path.parent / unquote(found[2])
        if "data:" in found[2] or not picture.exists():
            return found[0]
        width, height = size(picture)
        place = f'width="{width}" height="{height}" ' if width > 0 else ""
        later = next(first, 'loading="lazy" ')
        return f"<img {found[1].rstrip()} {place}{later}/>"

    return PICTURE.sub(placed, page)


# --- lines ---------------------------------------------------------------------------------------

# A formula and what is written to it, "(x)", "x.", "x-th"; a shape, `(b q k)`. A line may not end
# between them.
FORMULA = re.compile(
    r'([(“]*)(<span class="math">(?:(?!</span>).)*</span>)([^\s<]{0,6}(?=[\s<]))', re.DOTALL
)
CODE = re.compile(
    r'<code class="docutils literal notranslate">((?:<span class="pre">[^<]*</span> ?)+)</code>'
)
SHORT = 16  # letters


def keep_together(page: str) -> str:
    """Mark what no line may be broken in."""

    def tied_formula(found):
        return f'<span class="tied">{found[0]}</span>' if found[1] or found[3] else found[0]

    def tied_code(found):
        letters = len(unescape(re.sub("<[^>]*>", "", found[1])))
        return found[0].replace("notranslate", "notranslate tied") if letters <= SHORT else found[0]

    return CODE.sub(tied_code, FORMULA.sub(tied_formula, page))


# --- headings ------------------------------------------------------------------------------------

HEADING = re.compile(r"<(/?)h([1-6])(?=[ >])")


def skip_no_level(page: str) -> str:
    """Number headings one below those they stand under; a report may stand under any."""
    above = []  # the levels written for the headings around this place

    def placed(found):
        if not found[1]:
            while above and above[-1] >= int(found[2]):
                above.pop()
            above.append(int(found[2]))
        if len(above) == int(found[2]):
            return found[0]
        return f"<{found[1]}h{len(above)}" + f' class="was-h{found[2]}"' * (not found[1])

    return HEADING.sub(placed, page)


# --- the built pages -----------------------------------------------------------------------------


CLASS = re.compile(r"""\b(?:class|id)=["']?([^"'>]*)""")


def lighten(app, problem):
    if problem or app.builder.format != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    found = (path for path in out.rglob("*.html") if static not in path.parents)
    pages = {path: text for path in found if "</head>" in (text := path.read_text("utf-8"))}
    pages = {path: text for path, text in pages.items() if "bd-article-container" in text}
    named = "".join(each[0] for page in pages.values() for each in ICON.finditer(page))
    icons = set(re.findall(r"\bfa-[\w-]+", named))

    for folder in (out / "_images", static / "images"):
        as_webp(folder)
    pages = {path: PLOT.sub(r"\1.webp", page) for path, page in pages.items()}

    def sheets(files):
        scripts = [static / "book.js", *(static / "live").rglob("*.js")]
        code = "".join(each.read_text("utf-8") for each in scripts)
        names = set(re.findall(r"[\w-]+", code))
        names.update(*(each[1].split() for page in pages.values() for each in CLASS.finditer(page)))
        text = "\n".join(sheet_text(each, static) for each in files)
        text = only_used_rules(only_used_icons(text, icons, static), names)
        return only_used_variables(text, code + "".join(pages.values()))

    def scripts(files):
        return "\n".join(map(script_text, files))

    sheet = '<link rel="stylesheet" href="{}" />'
    script = '<script defer src="{}"></script>'
    gone = gather(pages, static / "book.js", SCRIPT, scripts, script)
    for path, page in pages.items():
        page = ICON.sub(r'<\1 aria-hidden="true" \2', SETTINGS.sub("", PRELOAD.sub("", page)))
        pages[path] = skip_no_level(keep_together(keep_places(page, path)))
    gone += gather(pages, static / "book.css", SHEET, sheets, sheet)
    for path, page in pages.items():
        path.write_text(page, "utf-8")
    for name in ("vendor", "locales"):
        shutil.rmtree(static / name, ignore_errors=True)
    whole_book = "".join(pages.values())
    only_used_letters(static / "fonts" / "math.woff", whole_book)
    for path in static.rglob("*.*"):
        if path in gone or path.suffix == ".map" or not is_used(path, whole_book):
            path.unlink()


def setup(app):
    getLogger("fontTools").setLevel("WARNING")
    app.add_html_math_renderer("mathml", (set_formula, None), (set_formula, None))
    app.connect("build-finished", lighten, priority=900)  # the theme writes a sheet before
    return {"parallel_read_safe": True, "parallel_write_safe": True}

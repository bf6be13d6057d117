"""Each page's notebook for Colab, `book/<page>.ipynb`, made from `book/<page>.md`: `make twins`.

Colab opens notebooks and knows no MyST. So a twin has the page's code cells, word for word, and its
text in plain Markdown: citations by author and year, figures by number, folded answers as
`<details>`, the package's own code as it is printed in the book, links to the published pages.
What a sentence takes from the code (`{glue:text}`) is called by its name, in `code`, and printed
where it is computed. A test holds the twins in step.
"""

import ast
import posixpath
import re
import textwrap
from functools import cache
from pathlib import Path

import jupytext
import nbformat
import yaml
from pybtex.database import parse_file

import attncourse

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "book"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
SITE = CONFIG["html"]["baseurl"].rstrip("/")
FILES = f"{CONFIG['repository']['url']}/blob/{CONFIG['repository']['branch']}"

SET_UP = """\
# attncourse: bootstrap
import sys
import types

if "google.colab" in sys.modules:
    %pip install -q "{package}"


def glue(name, value, display=False):
    \"\"\"Print a number that the text calls by its name.\"\"\"
    print(f"{{name}} = {{value:.4g}}" if isinstance(value, float) else f"{{name}} = {{value}}")


sys.modules["myst_nb"] = types.SimpleNamespace(glue=glue)  # which sets the book's sentences"""

INTRODUCTION = """\
This is the notebook of [a page of the book]({page}), to run and to change. \
A name such as `samples` in a sentence stands for a number that a cell prints below."""


def pages() -> list[Path]:
    """The pages that are text notebooks."""
    return [
        page for page in sorted(BOOK.glob("*.md")) if "format_name: myst" in page.read_text("utf-8")
    ]


@cache
def anchors() -> dict[str, str]:
    """Where in the published book an anchor is."""
    named = re.compile(r"^(?:\(| +name: |:name: )([\w-]+)(?:\)=)?$", re.MULTILINE)
    return {
        anchor: f"{SITE}/book/{page.stem}.html#{anchor}"
        for page in BOOK.glob("*.md")
        for anchor in named.findall(page.read_text("utf-8"))
    }


@cache
def authors() -> dict[str, tuple[str, str]]:
    """Who wrote an entry of the bibliography, and when."""
    found = {}
    for key, entry in parse_file(BOOK / "references.bib").entries.items():
        names = [" ".join(each.last_names) for each in entry.persons.get("author", [])]
        short = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        found[key] = re.sub(r"[{}]", "", short), entry.fields.get("year", "")
    return found


def source_of(file: str, wanted: str) -> str:
    """The text of a function, class or method (`Class.method`) in a module."""
    text = (BOOK / file).read_text("utf-8")
    body = ast.parse(text).body
    for part in wanted.split("."):
        node = next(each for each in body if getattr(each, "name", "") == part)
        body = node.body
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def lines_of(file: str, options: dict[str, str]) -> str:
    """The text of a module from one line to another, as Sphinx cuts it."""
    text = (BOOK / file).read_text("utf-8").splitlines()
    start, end = (options[name].strip('"') for name in ("start-at", "end-at"))
    first = next(n for n, line in enumerate(text) if start in line)
    last = next(n for n in range(first, len(text)) if end in text[n])
    return "\n".join(text[first : last + 1])


def directive(found: re.Match, page: str, figures: dict | None) -> str:
    """A directive as plain Markdown."""
    kind, title, body = found["kind"], found["title"].strip(), found["body"]
    options = dict(re.findall(r"^:([\w-]+): *(.*)$", body, re.MULTILINE))
    text = re.sub(r"\A(?::[\w-]+:.*\n)*", "", body).strip()
    if kind == "dropdown":
        return f"<details><summary>{title}</summary>\n\n{plain(text, page, figures)}\n\n</details>"
    if kind == "admonition":
        lines = [f"**{title}**", "", *plain(text, page, figures).split("\n")]
        return "\n".join(f"> {line}".rstrip() for line in lines)
    if kind == "literalinclude":
        whole = "pyobject" in options
        shown = source_of(title, options["pyobject"]) if whole else lines_of(title, options)
        return f"```python\n{shown}\n```"
    if kind == "figure":
        picture = f"{SITE}/_images/{posixpath.basename(title)}"
        number = (figures or {}).get(options.get("name"), "")
        return f"![{options['alt']}]({picture})\n\n*{number}* {plain(text, page, figures)}"
    if kind in ("live", "judge"):
        number, place = (figures or {}).get(options["name"], ""), anchors()[options["name"]]
        return f"*{number}* {plain(text, page, figures)} It runs [in the book]({place})."
    if kind == "framed":
        return f"*{(figures or {}).get(options['name'], '')}* {plain(text, page, figures)}"
    if kind == "bibliography":
        return ""
    raise ValueError(f"no plain Markdown for {{{kind}}}")


def cited(found: re.Match, page: str) -> str:
    shown = []
    for key in re.sub(r"\{.*?\}", "", found[2]).split(","):
        who, year = authors()[key.strip()]
        shown.append(f"{who} ({year})" if found[1] == ":t" else f"{who}, {year}")
    link = f"[{'; '.join(shown)}]({SITE}/book/{page}.html#references)"
    return link if found[1] == ":t" else f"({link})"


FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<kind>[\w-]+)\}(?P<title>[^\n]*)\n(?P<body>.*?)^(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)


def plain(text: str, page: str = "", figures: dict[str, str] | None = None) -> str:
    """MyST as plain Markdown, with links to the published book."""

    def linked(found):
        file, _, anchor = found[1].partition("#")
        if not file:
            return f"]({anchors()[anchor]})"
        return f"]({SITE}/book/{file.removesuffix('.md')}.html{'#' * bool(anchor)}{anchor})"

    def numbered(found):
        return (figures or {}).get(found[1]) or f"[this figure]({anchors()[found[1]]})"

    def downloaded(found):
        return f"[{found[1]}]({FILES}/{posixpath.normpath(posixpath.join('book', found[2]))})"

    text = FENCE.sub(lambda found: directive(found, page, figures), text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\S.*)\n: (.*)$", r"**\1**: \2", text, flags=re.MULTILINE)
    text = re.sub(r"\{cite(:\w)?\}`([^`]+)`", lambda found: cited(found, page), text)
    text = re.sub(r"\{ref\}`([^<`]+?) <([\w-]+)>`", r"[\1](#\2)", text)
    text = re.sub(r"\{numref\}`([\w-]+)`", numbered, text)
    text = re.sub(r"\{glue:text\}`(\w+)[^`]*`", r"`\1`", text)
    text = re.sub(r"\{download\}`([^<`]+?) <([^>]+)>`", downloaded, text)
    return re.sub(r"\]\(((?:[\w-]+\.md)?(?:#[\w-]+)?)\)", linked, text)


def figures_of(cells: list, page: str) -> dict[str, str]:
    """Numbers of a page's figures, as in the book if it is a chapter."""
    chapter = re.match(r"\d+", page)
    before = f"{int(chapter[0])}." if chapter else ""
    names = []
    for cell in cells:
        if cell.cell_type == "code":
            names += [cell.metadata.get("mystnb", {}).get("figure", {}).get("name")]
        else:
            names += re.findall(r"^:name: (fig-[\w-]+)$", cell.source, re.MULTILINE)
    return {name: f"Fig. {before}{k}" for k, name in enumerate(filter(None, names), 1)}


def twin(page: Path) -> nbformat.NotebookNode:
    """The notebook of a page."""
    cells = jupytext.read(page).cells
    figures = figures_of(cells, page.stem)
    new = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    package = f"attncourse[notebook] @ git+{CONFIG['repository']['url']}@v{attncourse.__version__}"
    introduction = INTRODUCTION.format(page=f"{SITE}/book/{page.stem}.html")
    parts = []
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(("markdown", plain(cell.source, page.stem, figures).strip(), {}))
            continue
        tags = cell.metadata.get("tags", [])
        kept = {"tags": tags} if {"raises-exception", "skip-execution"} & set(tags) else {}
        if {"hide-input", "hide-cell", "remove-input", "remove-cell"} & set(tags):
            kept["jupyter"] = {"source_hidden": True}
        parts.append(("code", cell.source, kept))
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        if "caption" in figure:
            caption = plain(figure["caption"], page.stem, figures)
            parts.append(("markdown", f"*{figures[figure['name']]}* {caption}", {}))
    title, _, rest = parts[0][1].partition("\n")
    parts[:1] = [
        ("markdown", f"{title}\n\n{introduction}", {}),
        ("code", SET_UP.format(package=package), {"jupyter": {"source_hidden": True}}),
        ("markdown", rest.strip(), {}),
    ]
    for number, (kind, source, metadata) in enumerate(part for part in parts if part[1]):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        new.cells.append(make(source, metadata=metadata, id=f"cell-{number}"))
    return new


def main() -> None:
    for page in pages():
        nbformat.write(twin(page), page.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()

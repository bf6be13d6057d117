"""Search that finds sections and shows what stands there, from `file://` too.

Sphinx's own search fetches the pages it found in order to quote them, which a browser forbids
between files, and it knows words by page. Here each section's words stand in one script,
`_static/sections.js`, and so do the glossary's terms and the gallery's entries; `search.js` looks
through them. A term's names are kept with the section that the glossary says defines it, and words
in bold with the section that they stand in.
"""

import collections
import json
import posixpath
import re
from pathlib import Path

import glossary
from docutils import nodes
from docutils.utils import new_document

SKIPPED = (nodes.section, nodes.literal_block, nodes.raw, nodes.comment, nodes.title)
SHOWN = {"sqrt{d}": "√d", "sqrt": "√", "cdot": "·", "top": "⊤", "infty": "∞", "times": "×"}
SHOWN |= {"leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "neq": "≠", "ne": "≠", "approx": "≈"}
SHOWN |= {"sum": "∑", "in": "∈", "to": "→", "mid": "|", "ldots": "…", "dots": "…", "ell": "ℓ"}

# How much a place's own words count: who searches wants to read, and only then to look up.
LESS = {"book/api": 0.4, "book/bibliography": 0.4, "book/glossary": 0.7, "book/errata": 0.7}
LESS |= {"book/mistakes": 0.5}
PARTS_OF_ALL = {"Check yourself": 0.7, "Key terms": 0.7, "References": 0.4, "Your turn": 0.7}


def words(node: nodes.Node) -> str:
    """What is read in a node, without code and the sections inside of it."""
    if isinstance(node, SKIPPED):
        return ""
    if isinstance(node, nodes.math | nodes.math_block):
        text = node.astext()
        for latex, shown in SHOWN.items():
            text = re.sub(rf"\\{re.escape(latex)}(?![a-z])", shown, text)
        return re.sub(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+|[{}\\&$]", "", text)
    if isinstance(node, nodes.Text):
        return node.astext()
    between = "" if isinstance(node, nodes.TextElement) else " "
    return between.join(words(child) for child in node.children)


def own(section: nodes.section, kind: type) -> list[nodes.Node]:
    """Nodes of a kind in a section, but not in those inside of it."""
    inside = {
        id(node)
        for each in section.findall(nodes.section)
        if each is not section
        for node in each.findall(kind)
    }
    return [node for node in section.findall(kind) if id(node) not in inside]


def collect(app, doctree, page):
    """What the search knows of a page, now that its references have their words."""
    number = ".".join(map(str, app.env.toc_secnumbers.get(page, {}).get("", ())))
    less = next((share for part, share in LESS.items() if page.startswith(part)), 1)
    top = doctree.next_node(nodes.title).astext() if doctree.next_node(nodes.title) else page
    top = f"{number}. {top}" if number else top
    for section in doctree.findall(nodes.section):
        name = section.next_node(nodes.title).astext()
        code = (each.astext() for each in own(section, nodes.literal_block))
        row = {
            "page": top,
            "title": "" if section.parent is doctree else name,
            "text": " ".join(" ".join(map(words, section.children)).split()),
            "code": " ".join(" ".join(code).split()),
            "bold": sorted({each.astext().strip(".:") for each in own(section, nodes.strong)}),
            "share": less * PARTS_OF_ALL.get(name, 1),
        }
        named = [each for each in section["ids"] if not re.fullmatch(r"id\d+", each)]
        place = "" if section.parent is doctree else f"#{(named or section['ids'])[-1]}"
        app.search_rows[f"{page}.html{place}"] = row
        app.search_places |= {f"{page}.html#{id}": row for id in section["ids"]}
        for each in own(section, nodes.raw):
            for id, title, text in each.get("sections", []):
                entry = {"page": top, "title": title, "text": text, "share": less, "names": [id]}
                app.search_rows[f"{page}.html#{id}"] = entry
    if page == glossary.GLOSSARY:
        for item in doctree.findall(nodes.definition_list_item):
            id, called = item[0]["ids"][0], glossary.names(item[0].astext())
            app.search_terms.append((item, called + glossary.also(item[1].astext())))
            title = re.sub("<.*?>", "", item[0].astext())
            found = {"title": title, "text": words(item[1]), "names": []}
            app.search_rows[f"{page}.html#{id}"] = {"page": top, "share": less, **found}


def one_of_each(rows: dict[str, dict]) -> None:
    """Of an entry that the gallery has for several chapters, keep the one in the chapter of its
    kind: that with most of the codes that begin like its own (D-, M-, ...)."""
    entries = [at.split("#") for at in rows if at.startswith("book/mistakes/") and "#" in at]
    kinds = collections.Counter((page, code.split("-")[0]) for page, code in entries)
    homes, told = {}, set()
    for page, code in sorted(entries, key=lambda each: -kinds[each[0], each[1].split("-")[0]]):
        row = rows[f"{page}#{code}"]
        if (code, row["title"]) in told:
            del rows[f"{page}#{code}"]
        elif homes.setdefault(code, page) != page:
            row["share"] *= 0.9
        told.add((code, row["title"]))


def write_sections(app, problem):
    if problem or app.builder.format != "html":
        return
    one_of_each(app.search_rows)
    folder = posixpath.dirname(glossary.GLOSSARY)
    for item, called in app.search_terms:
        for to in {link["refuri"] for link in item.findall(nodes.reference) if link.get("refuri")}:
            address = posixpath.join(folder, to)
            row = app.search_places.get(address) or app.search_rows.get(address.partition("#")[0])
            if row:
                names = [*row.get("names", []), *(name for name in called if name.isascii())]
                row["names"] = list(dict.fromkeys(names))
                row["told"] = f"{row.get('told', '')} {glossary.line(item)}".strip()
    columns = {"page": "", "title": "", "text": "", "share": 1, "names": [], "bold": [], "code": ""}
    columns["told"] = ""
    data = [
        [at, *(row.get(key, none) for key, none in columns.items())]
        for at, row in app.search_rows.items()
    ]
    script = Path(app.outdir, "_static", "sections.js")
    script.write_text(f"SECTIONS = {json.dumps(data, ensure_ascii=False)};\n", "utf-8")


def begin(app):
    index, empty = app.builder.index_page, new_document("")  # nobody asks Sphinx's own index
    app.builder.index_page = lambda page, doctree, title: index(page, empty, title)
    # Sphinx resolves all pages in one process, whoever reads and writes them.
    app.search_rows, app.search_places, app.search_terms = {}, {}, []


def setup(app):
    app.connect("builder-inited", begin)
    app.connect("doctree-resolved", collect)  # before glossary.py makes links of words
    app.connect("build-finished", write_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

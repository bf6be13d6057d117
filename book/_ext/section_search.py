"""Search that finds sections and shows what stands there, from `file://` too.

Sphinx's own search fetches the pages it found in order to quote them, which a browser forbids
between files, and it knows words by page. Here each section's words stand in one script,
`_static/sections.js`, which only the search page loads; `_static/search.js` looks through them.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

SKIPPED = (nodes.section, nodes.literal_block, nodes.raw, nodes.comment, nodes.title)
SHOWN = {r"\sqrt{d}": "√d", r"\cdot": "·", r"\top": "⊤", r"\infty": "∞", r"\times": "×"}


def words(node: nodes.Node) -> str:
    """What is read in a node, without code and the sections inside of it."""
    if isinstance(node, SKIPPED):
        return ""
    if isinstance(node, addnodes.pending_xref) and (
        node["refdomain"] == "cite" or node["reftype"] == "numref"
    ):  # for a paper or a figure it holds only a key
        return ""
    if isinstance(node, nodes.math | nodes.math_block):
        text = node.astext()
        for latex, shown in SHOWN.items():
            text = text.replace(latex, shown)
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


def sections(app) -> list[tuple[str, str, str, str]]:
    """Address, page's title, section's title ("" for the page's own) and words of each section."""
    found = []
    for page in sorted(app.env.found_docs):
        tree = app.env.get_doctree(page)
        number = ".".join(map(str, app.env.toc_secnumbers.get(page, {}).get("", ())))
        for section in tree.findall(nodes.section):
            name = section.next_node(nodes.title).astext()
            code = (each.astext() for each in own(section, nodes.literal_block))
            text = " ".join(" ".join([*map(words, section.children), *code]).split())
            if section.parent is tree:
                title = f"{number}. {name}" if number else name
                found.append((f"{page}.html", title, "", text))
            else:
                named = [each for each in section["ids"] if not re.fullmatch(r"id\d+", each)]
                address = f"{page}.html#{(named or section['ids'])[-1]}"
                found.append((address, title, name, text))
    return found


def write_sections(app, problem):
    if not problem and app.builder.format == "html":
        data = json.dumps(sections(app), ensure_ascii=False)
        script = Path(app.outdir, "_static", "sections.js")
        script.write_text(f"const SECTIONS = {data};\n", "utf-8")


def load_on_search_page(app, pagename, templatename, context, doctree):
    if pagename == "search":
        for script in ("sections.js", "search.js"):
            app.builder.add_js_file(script, loading_method="defer")


def setup(app):
    app.connect("html-page-context", load_on_search_page)
    app.connect("build-finished", write_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

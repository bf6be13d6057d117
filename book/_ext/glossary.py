"""The glossary where one reads: each term has an address, and its line at its first use on a page.

A term's first use in the prose of a chapter or lab becomes a link to its entry, and the entry's
line its title, which `_static/accessible.js` shows as a card to the mouse, keyboard and finger.
"""

import re

from docutils import nodes

GLOSSARY = "book/glossary"
PAGES = re.compile(r"book/(\d\d|lab\d)_")
# Words that the pages also use in their everyday sense.
EVERYDAY = {
    "attention",
    "check",
    "concat",
    "dot",
    "gate",
    "general",
    "hint",
    "id",
    "judge",
    "memory",
}
EVERYDAY |= {"merge", "misconception", "output", "patch", "reach", "receipt", "source", "split"}
EVERYDAY |= {"additive", "kernel", "state", "target", "value", "weights"}
NO_PROSE = (
    nodes.reference,
    nodes.literal,
    nodes.math,
    nodes.raw,
    nodes.caption,
    nodes.definition_list,
    nodes.footnote,
    nodes.citation,
)


def names(term: str) -> list[str]:
    """What a term is called: "attention, grouped-query (GQA) · …" is a grouped-query attention and
    a GQA, but "split, merge · …" are a split and a merge."""
    english, _, chinese = (part.strip() for part in re.sub("<.*?>", "", term).partition("·"))
    short = re.findall(r"\((\w*[A-Z]\w*[A-Z])\)", english)
    parts = re.sub(r" *\(.*?\)", "", english).split(", ")
    if len(parts) == 2 and "attention" in parts:
        parts.remove("attention")
        parts = [f"{parts[0]}attention" if parts[0].endswith("-") else f"{parts[0]} attention"]
    chinese = re.sub("（.*?）", "", chinese)
    return [*parts, *short, *([chinese] if chinese else [])]


def also(line: str) -> list[str]:
    """What else a term is called: "…; also called FFN or MLP" says FFN and MLP."""
    called = re.findall(r"\balso called ([^.;:]+)", line, re.IGNORECASE)
    return [name for each in called for name in re.split(r", | and | or ", each.strip())]


def entries(env) -> list[tuple[nodes.definition_list_item, str, list[str]]]:
    """Each entry of the glossary: its node, its id, its names."""
    if GLOSSARY not in env.found_docs:
        return []
    found = env.get_doctree(GLOSSARY).findall(nodes.definition_list_item)
    return [(item, item[0]["ids"][0], names(item[0].astext())) for item in found]


def name_terms(app, doctree):
    if app.env.docname == GLOSSARY:
        for term in doctree.findall(nodes.term):
            term["ids"] = [nodes.make_id(f"term {term.astext().partition('·')[0]}")]


def line(item: nodes.definition_list_item) -> str:
    """An entry's line, without the link behind it."""
    text = item[1].astext()
    return text.rpartition(". ")[0] + "." if ". " in text else text


def is_prose(text: nodes.Text) -> bool:
    parent = text.parent
    while parent is not None and not isinstance(parent, nodes.section):
        if isinstance(parent, NO_PROSE):
            return False
        parent = parent.parent
    return True


def link_first_uses(app, doctree, docname):
    if not PAGES.match(docname):
        return
    known = {
        name: (id, f"{name}: {line(item)}")
        for item, id, called in entries(app.env)
        for name in called
        if name.isascii() and name not in EVERYDAY
    }
    if not known:
        return
    anything = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({anything})(?:e?s)?(?![\w-])", re.IGNORECASE)
    by_lower = {name.lower(): place for name, place in known.items()}
    used = set()
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in [each for each in paragraph.findall(nodes.Text) if is_prose(each)]:
            new, at = [], 0
            for found in pattern.finditer(text):
                id, said = by_lower[found[1].lower()]
                if id in used:
                    continue
                used.add(id)
                link = nodes.reference("", found[0], classes=["term"], internal=True)
                link["refuri"], link["reftitle"] = f"glossary.html#{id}", said
                new += [nodes.Text(text[at : found.start()]), link]
                at = found.end()
            if new:
                text.parent.replace(text, [*new, nodes.Text(text[at:])])


def setup(app):
    app.connect("doctree-read", name_terms)
    app.connect("doctree-resolved", link_first_uses, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

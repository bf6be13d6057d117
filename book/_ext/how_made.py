"""A figure first, and below it how it was made: the folded code of a cell follows what it shows.

MyST-NB puts the fold in front and names every one of them alike ("Show code cell source").
"""

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode


def fold_below(app, doctree, docname):
    numbers = app.env.toc_fignumbers.get(docname, {}).get("figure", {})
    for fold in list(doctree.findall(HideCodeCellNode)):
        cell, words = fold.parent, "this"
        if cell is None or "tag_hide-input" not in cell["classes"]:
            continue  # a fold around a whole cell has no parent
        for figure in cell.findall(nodes.figure):
            number = numbers.get(figure["ids"][0] if figure["ids"] else "")
            if number:
                words = app.config.numfig_format["figure"] % ".".join(map(str, number))
        fold["prompt_show"] = fold["prompt_hide"] = f"How {words} was made"
        cell.remove(fold)
        cell.append(fold)


def setup(app):
    app.connect("doctree-resolved", fold_below)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

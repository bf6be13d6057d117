"""What a visitor sees before reading: minutes a chapter, and what a shared link says of a page.

Below the title of a page with an exercise stand its minutes, what one will write, and where.

In a page, {reading}`01_bottleneck` is the minutes that it takes to read, {doing}`01_bottleneck`
those of its exercise, and {hours}`` the hours of the whole course; {dots}`01_bottleneck` says how
many questions it asks, and becomes a dot for each that the reader has answered.
"""

import re
from pathlib import Path

from docutils import nodes
from markupsafe import Markup

from attncourse.markup import each

WORDS_A_MINUTE, MINUTES_A_CELL = 200, 0.5


def reading(page: Path) -> float:
    """Minutes for the prose, and for looking at each piece of code."""
    text = page.read_text("utf-8")
    cells = len(re.findall(r"^`{3,}\{code-cell\}", text, re.MULTILINE))
    prose = re.sub(r"\A---\n.*?\n---\n|^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return len(prose.split()) / WORDS_A_MINUTE + cells * MINUTES_A_CELL


def doing(assignment: str) -> int:
    """Minutes for the tasks of an exercise, as `attncourse tasks` lists them."""
    from attncourse.checks import registry

    (stem,) = (key for key, each in registry.chapters().items() if each.assignment == assignment)
    return sum(task.minutes for task in registry.of_chapter(stem))


def write_minutes(app, docname, source):
    from attncourse.checks import registry

    folder = Path(app.srcdir, "book")

    def minutes(found):
        kind, name = found.groups()
        if kind == "reading":
            return f"{5 * round(reading(folder / f'{name}.md') / 5)}"
        if kind == "doing":
            return f"{5 * round(doing(name) / 5)}"
        if kind == "dots":
            n = (folder / f"{name}.md").read_text("utf-8").count("{dropdown} Answer")
            data = f"data-page='{name}' data-questions='{n}'"
            return f"<span class='dots' {data}>{n} questions</span>"
        pages = [each.assignment for each in registry.chapters().values()]
        return f"{sum(reading(folder / f'{page}.md') + doing(page) for page in pages) / 60:.0f}"

    source[0] = re.sub(r"\{(reading|doing|hours|dots)\}`(\w*)`", minutes, source[0])


def begin_in_ten_seconds(app, docname, source):
    """Below the title: how long, what one will write, and where to begin."""
    from fresh_pages import in_colab

    from attncourse.checks import registry

    name = docname.rpartition("/")[2]
    notebook = Path("exercises", name, f"{name}.ipynb")
    if docname != f"book/{name}" or not (Path(app.srcdir) / notebook).exists():
        return
    (stem,) = (key for key, each in registry.chapters().items() if each.assignment == name)
    tasks = ", ".join(f"`{task.name}`" for task in registry.of_chapter(stem))
    minutes = f"{{reading}}`{name}` minutes to read, {{doing}}`{name}` to do"
    where = f"[open in Colab]({in_colab(app, notebook)})"
    where += f" or {{download}}`download the notebook <../{notebook}>`"
    told = f":::{{container}} at-a-glance\n{minutes}: you write {tasks}. Begin: {where}.\n:::\n"
    source[0] = re.sub(r"^# .+\n", rf"\g<0>\n{told}", source[0], count=1, flags=re.MULTILINE)


def introduce(app, pagename, templatename, context, doctree):
    """Title, description and picture for search engines and shared links."""
    if doctree is None:
        return
    title = re.sub("<.*?>", "", context["title"])
    told = next(
        (
            paragraph.astext()
            for paragraph in doctree.findall(nodes.paragraph)
            if isinstance(paragraph.parent, nodes.section) and len(paragraph.astext()) > 60
        ),
        f"{title} of the open course “{app.config.html_title}”",
    )
    told = re.sub(r"\s+", " ", told)
    told = told if len(told) <= 200 else told[:199].rsplit(" ", 1)[0] + "…"
    published = app.config.html_baseurl.rstrip("/")
    tags = {
        "og:type": "website",
        "og:title": title,
        "og:site_name": app.config.html_title,
        "og:description": told,
        "og:url": f"{published}/{pagename}.html",
        "og:image": f"{published}/_static/card.png",
        "og:image:alt": "Two translators write a number in French; the one with attention is right",
    }
    head = each('<meta name="description" content="{}">\n', [told])
    head += Markup('<meta name="twitter:card" content="summary_large_image">\n')
    head += each('<meta property="{}" content="{}">\n', tags, tags.values())
    context["metatags"] = context.get("metatags", "") + str(head)


def setup(app):
    app.connect("source-read", begin_in_ten_seconds, priority=600)  # fresh_pages has its links
    app.connect("source-read", write_minutes, priority=700)
    app.connect("html-page-context", introduce)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The judge on the page: one answer, some lines that could stand in it, and the report on each.

    ```{judge} causal_mask
    :name: fig-judge-mask

    The caption.
    ```

`book/judged/causal_mask.txt` holds the right answer, `---`, and what may stand in it instead, one
change a line: `a line => another line`. The reports are the judge's own, made when the book is
built. The reader chooses a line by radio buttons; style sheets alone show its report, so no script
runs, and paper shows the first wrong one.
"""

import hashlib
import json
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from fresh_pages import hash_of
from markupsafe import Markup
from sphinx.util.docutils import SphinxDirective

RIGHT = "no change: the right answer"


def variants(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The right answer, and what is replaced by what."""
    code, changes = text.split("---\n")
    return code, [tuple(each.split(" => ")) for each in changes.splitlines()]


def judged(task: str, code: str) -> str:
    """The judge's report on an answer, as a notebook shows it, without its style."""
    import math

    import torch

    from attncourse import checks

    place = {"math": math, "torch": torch}
    exec(code, place)
    report = checks.run(task, place[task])
    html = report._repr_mimebundle_()["text/html"]
    html = re.sub(r'<td class="" title="\w+">', "<td>", html)  # most cells of a map
    return re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)


def cases(task: str, code: str, changes: list[tuple[str, str]]) -> list[dict]:
    """For each change, and for none: the lines with one marked, and the report."""
    found = []
    for old, new in [*changes, ("", "")]:
        if code.count(old) != 1 and old:
            raise ValueError(f"{task}: {old!r} stands {code.count(old)} times in the answer")
        text = code.replace(old, new) if old else code
        pairs = zip(text.split("\n"), code.split("\n"), strict=True)
        changed = next((line for line, was in pairs if line != was), "")
        found.append({"line": changed, "code": text, "report": judged(task, text)})
    return found


def choice(task: str, found: list[dict]) -> str:
    from attncourse.checks.report import STYLE

    options, shown = Markup(), Markup()
    for number, case in enumerate(found):
        words = Markup("<code>{}</code>").format(case["line"].strip()) if case["line"] else RIGHT
        check = " checked" if number == 0 else ""
        option = Markup('<label><input type="radio" name="judge-{}"{}> {}</label>')
        options += option.format(task, Markup(check), words)
        lines = Markup("\n").join(
            Markup("<mark>{}</mark>" if line and line == case["line"] else "{}").format(line)
            for line in case["code"].rstrip().split("\n")
        )
        pair = Markup('<div class="case"><pre>{}</pre>{}</div>')
        shown += pair.format(lines, Markup(case["report"]))
    form = Markup(
        '<style>{}</style><form class="attncourse judged" autocomplete="off">'
        '<fieldset class="choices"><legend>In this answer to <code>{}</code>, write</legend>{}'
        "</fieldset>{}</form>"
    )
    return str(form.format(Markup(STYLE), task, options, shown))


class Judge(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (as docutils wants it)

    def run(self):
        (task,), app = self.arguments, self.env.app
        answers = Path(self.env.srcdir) / "book" / "judged" / f"{task}.txt"
        self.env.note_dependency(str(answers))
        code, changes = variants(answers.read_text("utf-8"))
        made_by = Path(__file__).read_text("utf-8") + hash_of(app) + code + str(changes)
        name = f"judged-{task}-{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.json"
        kept = Path(app.outdir).parent / ".mistakes" / name
        if not kept.exists():
            for outdated in kept.parent.glob(f"judged-{task}-*.json"):
                outdated.unlink()
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(cases(task, code, changes)), "utf-8")
        found = json.loads(kept.read_text("utf-8"))
        figure = nodes.figure(
            "", nodes.raw("", choice(task, found), format="html"), classes=["live"]
        )
        told, _ = self.parse_inline(" ".join(self.content))
        figure += nodes.caption("", "", *told)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def load_style(app, pagename, templatename, context, doctree):
    if "judged" in context.get("body", ""):
        app.add_css_file("live/live.css")


def setup(app):
    app.add_directive("judge", Judge)
    app.connect("html-page-context", load_style, priority=400)  # as live_figures does
    return {"parallel_read_safe": True, "parallel_write_safe": True}

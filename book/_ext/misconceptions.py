"""The gallery: what the judge knows by name, on a page for each chapter, made from its tasks.

`{misconceptions} masking` shows each fault of the chapter's tasks: what one thinks, why not, in
which tasks it occurs, and what it does beside the right answer: on the smallest input that shows
it, and to the map of who depends on whom. The answers are run here, and kept beside the build.
Where we know how often public code has it, `mistakes/seen.yml` says so.
"""

import html
import json
from collections import defaultdict
from pathlib import Path

import yaml
from docutils import nodes
from fresh_pages import package_hash
from sphinx.util.docutils import SphinxDirective

GALLERY = """
.attn-report.gallery{border:0;padding:0;max-width:none;font-size:inherit}
.attn-report.gallery h2{font-size:1.15em;margin:1.6em 0 .3em}
.attn-report.gallery details{margin:.3em 0 .8em}
.attn-report.gallery .side{overflow-x:auto}
"""

FORMS = 3  # wordings of one fault to try until one shows a difference


def shown(task, fault) -> str:
    """What a fault does, as the judge shows it: HTML, or "" if no small input tells."""
    from attncourse.checks import diagnosis, report
    from attncourse.checks.task import compose, is_change

    for form in fault.forms[:FORMS]:
        answer = compose(task, form) if is_change(task, form) else form
        example = diagnosis.smallest_failure(task, answer)
        if example:
            depends = diagnosis.dependencies_of(task, answer)
            wrong = depends and depends.got is not None and not depends.right
            return report.html_example(example) + (
                report.html_dependencies(depends) if wrong else ""
            )
    return ""


def entries(stem: str) -> dict[str, list]:
    """Id -> (task, what one thinks, why not, address to read again, its title, what it does)."""
    from attncourse.checks import pages, registry
    from attncourse.checks.report import html_code

    found = defaultdict(list)
    for task in registry.of_chapter(stem):
        for fault in task.faults.values():
            page = f"../{Path(task.page).name}.html#{fault.section}"
            again = page, pages.words(task.home, fault.section)
            told = html_code(fault.thinks), html_code(fault.why)
            found[fault.id].append((task.name, *told, *again, shown(task, fault)))
    return found


def in_public(id: str, seen: dict) -> str:
    """Where others have it: HTML, or "" if we do not know."""
    told = []
    if id in seen["survey"]:
        some, all, what = seen["survey"][id]
        told.append(f"{some} of {all} {what} (<a href='../misconceptions.html#how-often'>how</a>)")
    threads = (url.removeprefix("https://github.com/") for url in seen["threads"].get(id, []))
    told += [
        f"<a href='https://github.com/{thread}'>{thread.replace('/issues/', '#')}</a>"
        for thread in threads
    ]
    return f"<p>In public: {', '.join(told)}.</p>" if told else ""


def page_of(found: dict[str, list], seen: dict) -> str:
    from attncourse.checks.report import STYLE

    text = f"<style>{STYLE}{GALLERY}</style><div class='attn-report gallery'>"
    # What has a name in the field stands before the slips of one task.
    for id, each in sorted(found.items(), key=lambda entry: (entry[0].startswith("C-"), entry[0])):
        text += f"<section id='{id}'><h2><code>{id}</code></h2>"
        last = None
        for task, thinks, why, address, title, does in each:
            if (thinks, why) != last:
                text += f"<p><b>{thinks}</b></p><p>{why}</p>"
                text += f"<p>Read again: <a href='{address}'>{html.escape(title)}</a></p>"
            last = thinks, why
            if does:
                text += f"<details><summary>in <code>{task}</code></summary>{does}</details>"
            else:
                text += f"<p>In <code>{task}</code>.</p>"
        text += in_public(id, seen) + "</section>"
    return text + "</div>"


class Misconceptions(SphinxDirective):
    """`{misconceptions} masking`: all that the tasks of a chapter or lab know."""

    required_arguments = 1

    def run(self):
        stem, source = self.arguments[0], Path(self.env.srcdir)
        kept = (
            Path(self.env.app.outdir).parent / ".mistakes" / f"{stem}-{package_hash(source)}.json"
        )
        if not kept.exists():
            for outdated in kept.parent.glob(f"{stem}-*.json"):
                outdated.unlink()
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(entries(stem)), "utf-8")
        public = source / "book" / "mistakes" / "seen.yml"
        self.env.note_dependency(str(public))
        seen = yaml.safe_load(public.read_text("utf-8"))
        return [nodes.raw("", page_of(json.loads(kept.read_text("utf-8")), seen), format="html")]


def setup(app):
    app.add_directive("misconceptions", Misconceptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The gallery: what the judge knows by name, on a page for each chapter, made from its tasks.

`{misconceptions} masking` shows each fault of the chapter's tasks: what one thinks, why not, in
which tasks it occurs, and what it does beside the right answer: on the smallest input that shows
it, and to the map of who depends on whom. The answers are run here, and kept beside the build.
Where we know how often public code has it, `mistakes/seen.yml` says so.
"""

import json
import re
from collections import defaultdict
from pathlib import Path

import yaml
from docutils import nodes
from fresh_pages import package_hash
from markupsafe import Markup
from sphinx.util.docutils import SphinxDirective

from attncourse.markup import with_code

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
            map = report.html_dependencies(depends) if wrong else ""
            return str(report.html_example(example) + map)
    return ""


def entries(stem: str) -> dict[str, list]:
    """Id -> (task, what one thinks, why not, address to read again, its title, what it does)."""
    from attncourse.checks import pages, registry

    found = defaultdict(list)
    for task in registry.of_chapter(stem):
        for fault in task.faults.values():
            page = f"../{Path(task.page).name}.html#{fault.section}"
            told = fault.thinks, fault.why, page, pages.words(task.home, fault.section)
            found[fault.id].append((task.name, *told, shown(task, fault)))
    return found


def in_public(id: str, seen: dict) -> Markup:
    """Where others have it; nothing if we do not know."""
    told = []
    if id in seen["survey"]:
        how = Markup("{} of {} {} (<a href='../misconceptions.html#how-often'>how</a>)")
        told.append(how.format(*seen["survey"][id]))
    for url in seen["threads"].get(id, []):
        name = url.removeprefix("https://github.com/").replace("/issues/", "#")
        told.append(Markup("<a href='{}'>{}</a>").format(url, name))
    return Markup("<p>In public: {}.</p>" if told else "").format(Markup(", ").join(told))


def written(sentence: str) -> Markup:
    """As the pages write it: with code, and with an apostrophe for a typewriter's."""
    return with_code(re.sub(r"(?<=[a-z])'(?=[a-z]|[ .,;:]|$)", "’", sentence))


def page_of(found: dict[str, list], seen: dict) -> str:
    from attncourse.checks.report import STYLE

    text = Markup(f"<style>{STYLE}{GALLERY}</style><div class='attn-report gallery'>")
    # What has a name in the field stands before the slips of one task.
    for id, each in sorted(found.items(), key=lambda entry: (entry[0].startswith("C-"), entry[0])):
        text += Markup("<section id='{0}'><h2><code>{0}</code></h2>").format(id)
        last = None
        for task, thinks, why, address, title, does in each:
            if (thinks, why) != last:
                text += Markup("<p><b>{}</b></p><p>{}</p>").format(*map(written, (thinks, why)))
                text += Markup("<p>Read again: <a href='{}'>{}</a></p>").format(address, title)
            last = thinks, why
            if does:
                fold = Markup("<details><summary>in <code>{}</code></summary>{}</details>")
                text += fold.format(task, Markup(does))
            else:
                text += Markup("<p>In <code>{}</code>.</p>").format(task)
        text += in_public(id, seen) + Markup("</section>")
    return str(text + Markup("</div>"))


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

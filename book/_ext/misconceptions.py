"""The gallery: what the judge knows by name, on a page for each chapter, made from its tasks.

`{misconceptions} masking` shows each fault of the chapter's tasks: what one thinks, why not, the
lines that are wrong, and in each task what they do beside the right answer: on the smallest input
that shows it, and to the map of who depends on whom. The answers are run here, and kept beside the
build. Where we know how often public code has it, `mistakes/seen.yml` says so.
"""

import ast
import functools
import hashlib
import inspect
import json
import multiprocessing
import os
import re
import textwrap
import types
from collections import defaultdict
from pathlib import Path

import yaml
from docutils import nodes
from fresh_pages import hash_of
from markupsafe import Markup
from sphinx.util.docutils import SphinxDirective

from attncourse.markup import with_code

GALLERY = """
.attn-report.gallery{border:0;padding:0;max-width:none;font-size:inherit}
.attn-report.gallery h2{font-size:1.15em;margin:2em 0 .3em}
.attn-report.gallery h2 code{font-size:.8em;white-space:nowrap}
.attn-report.gallery pre{margin:.3em 0;padding:.4em .7em;overflow-x:auto}
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
            return str(report.html_example(task, example) + map)
    return ""


@functools.cache
def _lambdas(file: str) -> dict[tuple[int, int], str]:
    """Where each lambda's body begins in a file -> its text."""
    lines, found = Path(file).read_bytes().split(b"\n"), {}
    for node in ast.walk(ast.parse(b"\n".join(lines))):
        if isinstance(node, ast.Lambda):  # ast.get_source_segment would split the file each time
            *before, last = lines[node.lineno - 1 : node.end_lineno]
            text = b"\n".join([*before, last[: node.end_col_offset]])[node.col_offset :]
            found[node.body.lineno, node.body.col_offset] = text.decode()
    return found


def source(function) -> str:
    """The lines of a function or class of the course; of `statistics.median` and its like, the
    name."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    if not module.startswith("attncourse."):
        return f"{module}.{name}".removeprefix("builtins.") if module and name else ""
    code = getattr(function, "__code__", None)
    if code and code.co_name == "<lambda>":
        begun = [(line, at) for line, _, at, _ in code.co_positions() if line and at]
        text = _lambdas(code.co_filename)
        return textwrap.dedent(next((text[each] for each in begun if each in text), ""))
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return f"{module}.{name}" if name else ""


def wrong_lines(task, fault) -> str:
    """The first wording of a fault: the steps that it changes, or the whole answer; "" if its lines
    do not stand alone."""
    import torch

    from attncourse.checks.task import changed, is_change
    from attncourse.tasks import as_is

    form = fault.forms[0]
    steps = {"": form}
    if is_change(task, form):
        own = form if isinstance(form, dict) else vars(form)
        steps = {name: own[name] for name in own if name in changed(form)}
    lines = []
    for name, step in steps.items():
        step = getattr(step, "__func__", step)
        free = inspect.getclosurevars(step).nonlocals if inspect.isfunction(step) else {}
        free = {each: value for each, value in free.items() if each != "__class__"}  # of super()
        for each, value in {**free, name: step}.items():
            if isinstance(value, int | float | str | torch.dtype | types.NoneType):
                lines.append(f"{each} = {value}")
            elif value is as_is:
                lines.append(f"# {each}: left out")
            elif callable(value) and (text := source(value).strip()):
                whole = text.startswith(("def ", "class ", "@"))
                lines.append(text if whole else f"{each} = {text}")
            else:
                return ""
    return "\n".join(lines)


def entries(stem: str) -> dict[str, list]:
    """Id -> (task, what one thinks, why not, address to read again, its title, what it does, the
    wrong lines)."""
    from attncourse.checks import pages, registry

    found = defaultdict(list)
    for task in registry.of_chapter(stem):
        for fault in task.faults.values():
            page = f"../{Path(task.page).name}.html#{fault.section}"
            told = fault.thinks, fault.why, page, pages.words(task.home, fault.section)
            lines = wrong_lines(task, fault)
            found[fault.id].append((task.name, *told, shown(task, fault), lines))
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


def in_order(found: dict[str, list]) -> list[tuple[str, list]]:
    """What has a name in the field stands before the slips of one task."""
    return sorted(found.items(), key=lambda entry: (entry[0].startswith("C-"), entry[0]))


def page_of(found: dict[str, list], seen: dict) -> str:
    from attncourse.checks.report import STYLE

    text = Markup(f"<style>{STYLE}{GALLERY}</style><div class='attn-report gallery'>")
    for id, each in in_order(found):
        head = Markup("<section id='{0}'><h2>{1} <code>{0}</code></h2>")
        text += head.format(id, written(each[0][1]))
        last, told = (each[0][1], None), set()
        for task, thinks, why, address, title, does, lines in each:
            if thinks != last[0]:
                text += Markup("<p><b>{}</b></p>").format(written(thinks))
            if (thinks, why) != last:
                text += Markup("<p>{}</p>").format(written(why))
                text += Markup("<p>Read again: <a href='{}'>{}</a></p>").format(address, title)
            last = thinks, why
            if lines and lines not in told:
                text += Markup("<pre>{}</pre>").format(lines)
            told.add(lines)
            if does:
                fold = Markup("<details{}><summary>in <code>{}</code></summary>{}</details>")
                is_open = " open" if len(told) == 1 and task == each[0][0] else ""
                text += fold.format(is_open, task, Markup(does))
            else:
                text += Markup("<p>In <code>{}</code>.</p>").format(task)
        text += in_public(id, seen) + Markup("</section>")
    return str(text + Markup("</div>"))


def rows(found: dict[str, list]) -> list[tuple[str, str, str]]:
    """What the search has of each entry: id, title, words."""
    return [
        (
            id,
            f"{each[0][1]} {id}".replace("`", ""),
            " ".join(dict.fromkeys(task[2] for task in each)),
        )
        for id, each in in_order(found)
    ]


def places(app) -> dict[str, Path]:
    """Of each chapter and lab, where its entries are kept."""
    from attncourse.checks import registry

    made_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    folder = Path(app.outdir).parent / ".mistakes"
    return {stem: folder / f"{stem}-{hash_of(app)}-{made_by}.json" for stem in registry.stems()}


def keep(stem: str, path: Path) -> None:
    for outdated in path.parent.glob(f"{stem}-*.json"):
        outdated.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(entries(stem)), "utf-8")
    path.with_suffix(".part").replace(path)


def keep_in_parallel(app, config):
    """Sphinx reads one page after the other."""
    from attncourse.checks import registry

    pages = Path(app.srcdir, "book", "mistakes")
    waiting = [
        (stem, path)
        for stem, path in places(app).items()
        if (pages / f"{stem}.md").exists() and not path.exists()
    ]
    if waiting:
        registry.all_tasks()  # here, and not once in each process that is forked now
        with multiprocessing.Pool(min(os.cpu_count() or 1, len(waiting))) as pool:
            pool.starmap(keep, waiting, chunksize=1)


class Misconceptions(SphinxDirective):
    """`{misconceptions} masking`: all that the tasks of a chapter or lab know."""

    required_arguments = 1

    def run(self):
        stem, source = self.arguments[0], Path(self.env.srcdir)
        kept = places(self.env.app)[stem]
        public = source / "book" / "mistakes" / "seen.yml"
        self.env.note_dependency(str(public))
        seen = yaml.safe_load(public.read_text("utf-8"))
        found = json.loads(kept.read_text("utf-8"))
        return [nodes.raw("", page_of(found, seen), format="html", sections=rows(found))]


def setup(app):
    app.add_directive("misconceptions", Misconceptions)
    app.connect("config-inited", keep_in_parallel, priority=950)  # fresh_pages' workers have ended
    return {"parallel_read_safe": True, "parallel_write_safe": True}

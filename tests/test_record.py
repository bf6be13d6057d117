"""The record's promises: it shows what a notebook does, harms nobody, and decides no points."""

import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbconvert.filters import markdown2html

from attncourse.checks import pages
from attncourse.grading.books import disk, gradebook, nbgrader_api, results, run
from attncourse.grading.inbox import sample, submission
from attncourse.grading.jail import page as record_page
from attncourse.grading.jail import record, score
from attncourse.grading.jail.grade import grade_bytes
from attncourse.grading.jail.job import Budget, Job
from attncourse.grading.jail.remote import Zygote
from attncourse.grading.jail.result import Result, Verdict
from attncourse.grading.outbox import feedback

ASSIGNMENTS = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
CHAPTER_3 = "03_scaled_dot_product"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the jail is made of Linux namespaces"
)


def text_of(folder: str, name: str = CHAPTER_3) -> str:
    return (ROOT / folder / name / f"{name}.ipynb").read_text(encoding="utf-8")


def assignment(name: str = CHAPTER_3) -> submission.Assignment:
    both = (json.loads(text_of(folder, name)) for folder in ("solutions", "exercises"))
    return submission.assignment_of(name, *both)


def cell(source: str, kind: str = "code", outputs=()) -> dict:
    made = {"cell_type": kind, "metadata": {}, "source": source}
    return made | ({"outputs": list(outputs), "execution_count": None} if kind == "code" else {})


def handed_in(*more: dict) -> bytes:
    notebook = json.loads(text_of("exercises"))
    notebook["cells"] += more
    return json.dumps(notebook).encode()


def recorded(zygote, data: bytes, name: str = CHAPTER_3, judge: bool = False, seconds=20.0) -> str:
    about = assignment(name)
    found, released = submission.read(data, about), text_of("exercises", name)
    result = score.score(found, about, zygote, Budget()) if judge else Result()
    return record.executed(found, released, about, result, zygote, Budget(record=seconds))


def shown(zygote, *sources: str, **options) -> list[list[dict]]:
    """The outputs of cells that a student has added."""
    text = recorded(zygote, handed_in(*map(cell, sources)), **options)
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    added = {c.source: c.outputs for c in notebook.cells if c.cell_type == "code"}
    return [added[source] for source in sources]


def said(outputs: list[dict]) -> str:
    return "".join(
        each.get("text") or each.get("evalue") or each.get("data", {}).get("text/plain", "")
        for each in outputs
    )


def page_of(text: str) -> str:
    grades = feedback.Grades("ada", CHAPTER_3, 1, 2, 0, [], {}, {})
    return feedback.page(text, grades, "0")


# --- what a record shows


@pytest.mark.slow
def test_a_record_shows_what_cells_print_return_draw_and_raise(zygote):
    printed, returned, drawn, raised, twice, asked = shown(
        zygote,
        "print('one'); import sys; print('two', file=sys.stderr)",
        "40 + 2",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);",
        "def halve(x):\n    return x / 0\nhalve(3)",
        "from IPython.display import clear_output\nprint(1); clear_output(wait=True); print(2)",
        "input('name?')",
    )
    assert [(o.name, o.text) for o in printed] == [("stdout", "one\n"), ("stderr", "two\n")]
    assert returned[0].output_type == "execute_result" and said(returned) == "42"
    assert drawn[-1].data["image/png"].startswith("iVBOR")
    assert raised[0].ename == "ZeroDivisionError"
    assert "return x / 0" in "\n".join(raised[0].traceback)
    assert said(twice) == "2\n"
    assert asked[-1].ename == "EOFError"


@pytest.fixture
def forked(monkeypatch):
    """The tasks of each child that is forked from now on; none, for a record."""
    kept, seen = Zygote.fork, []

    def fork(zygote, tasks, *rest):
        seen.append(tasks)
        return kept(zygote, tasks, *rest)

    monkeypatch.setattr(Zygote, "fork", fork)
    return seen


@pytest.mark.slow
def test_what_only_defines_is_not_run_a_second_time(zygote, forked):
    quiet = (
        "import math\nfrom math import pi",
        "def halve(x: float = 1.0) -> float:\n    print(x)\n    return x / 0",
        "import functools\n@functools.cache\ndef f():\n    'Says so.'\nclass A:\n    b = 1",
        "# nothing at all",
    )
    assert shown(zygote, *quiet, judge=True) == [[]] * 4
    assert [tasks for tasks in forked if not tasks] == []
    assert shown(zygote, *quiet) == [[]] * 4  # and it would have shown nothing
    assert [tasks for tasks in forked if not tasks] == [[]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "class Loud:\n    print('here')",
        "def f(x=print('default')):\n    return x",
        "import sys\nclass Loud:\n    sys.stderr.write('a word')",
        "class Late:\n    import warnings\n    warnings.warn('old', stacklevel=1)",
        "class Old:\n    import warnings\n    warnings.warn('old', DeprecationWarning)",
        "def f():\n    return '\\d'",  # from Python 3.12 on, this says something
        "class Drawn:\n    import matplotlib.pyplot as plt\n    plt.plot([1, 2])",
        "from IPython.display import display\nclass Shown:\n    display(3)",
        "@undefined\ndef f():\n    pass",
        "import nothing_of_this_name",
        "def f(:",
        "%time x = 1",
        "!echo from the shell",
        "x = 3",
        "'a value'",
    ],
)
def test_what_looks_like_a_definition_and_shows_something_is_shown(source, zygote, forked):
    (run,) = shown(zygote, source)
    forked.clear()
    (judged,) = shown(zygote, source, judge=True)
    assert [o.output_type for o in judged] == [o.output_type for o in run]
    assert bool(run) or source == "x = 3" or "\\d" in source
    assert [] in forked or not run


@pytest.mark.slow
def test_what_only_a_notebook_understands_works_or_fails_in_its_own_cell(zygote):
    timed, shell, pip, awaited, broken, after = shown(
        zygote,
        "%timeit -n2 -r1 1 + 1",
        "!echo from the shell",
        "%pip install nothing-of-this-name",
        "import asyncio\nawait asyncio.sleep(0.001)\n'awake'",
        "%no_such_magic\nfor",
        "'still here'",
    )
    assert "per loop" in said(timed) and said(shell) == "from the shell\n"
    assert "No matching distribution" in said(pip) and said(awaited) == "'awake'"
    assert broken[-1].output_type == "error" and said(after) == "'still here'"


@pytest.mark.slow
def test_what_is_too_long_is_cut_and_the_record_says_so(zygote):
    started = time.monotonic()
    line, lines, shouted, data, raised, many = shown(
        zygote,
        "print('x' * 200_000_000)",
        "for i in range(300_000): print(i)",
        "from IPython.display import display\ndisplay({'text/html': 'y' * 50_000_000}, raw=True)",
        "'z' * 50_000_000",
        "raise ValueError('w' * 50_000_000)",
        "for i in range(1000): display(i)",
    )
    assert "more characters" in said(line) and "more characters" in said(lines)
    assert "50,000,000 characters" in said(shouted) and "more characters" in said(data)
    assert raised[0].ename == "ValueError" and "more outputs" in said(many)
    for outputs in (line, lines, shouted, data, raised, many):
        assert len(json.dumps(outputs)) < 60_000
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_cell_that_never_ends_or_ends_python_costs_only_outputs(zygote, monkeypatch):
    monkeypatch.setattr(record, "CELL_SECONDS", 0.3)
    loop, after, death, rest = shown(
        zygote, "print('before')\nwhile True: pass", "7", "import os; os._exit(0)", "print('never')"
    )
    assert said(loop).startswith("before\n") and "Stopped" in said(loop)
    assert said(after) == "7"
    assert "Nothing is run from here on" in said(death) and said(rest).startswith("Not run")
    stubborn = "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
    stopped, *killed = shown(zygote, stubborn, "8")
    assert "Nothing is run" in said(stopped) and all("Not run" in said(o) for o in killed)


@pytest.mark.slow
def test_the_time_of_a_notebook_is_limited(zygote):
    naps = [f"import time; time.sleep(1); {n}" for n in range(6)]
    outputs = shown(zygote, *naps, seconds=4.0)
    assert said(outputs[0]) == "0"
    assert "used up the time" in said(outputs[-1])


@pytest.mark.slow
def test_cells_of_the_course_are_not_run_again_and_show_what_the_student_saw(zygote):
    notebook = json.loads(text_of("exercises"))
    curve = next(c for c in notebook["cells"] if c["id"] == "curve")
    picture = {"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="}
    curve["outputs"] = [{"output_type": "display_data", "data": picture, "metadata": {}}]
    made = json.loads(recorded(zygote, json.dumps(notebook).encode()))
    source = submission.source_of(curve)
    note, kept = next(c for c in made["cells"] if c["source"] == source)["outputs"]
    assert "what the student saw" in note["data"]["text/plain"] and kept["data"] == picture
    code = [each for each in made["cells"] if each["cell_type"] == "code"]
    silent = [each for each in code if "without output" in said(each["outputs"])]
    assert silent and not any(submission.only_defines(each["source"]) for each in silent)


# --- marks, reports, secrets


@pytest.mark.slow
def test_a_cell_that_asks_for_a_gpu_shows_what_the_student_saw(zygote):
    source = "torch.ones(2, device='cuda').sum()"
    seen = {"output_type": "stream", "name": "stdout", "text": "tensor(2., device='cuda:0')"}
    data = handed_in(cell(f"{source}  # here", outputs=[seen]), cell(source))
    notebook = nbformat.reads(recorded(zygote, data), as_version=4)
    here, bare = (c.outputs for c in notebook.cells if c.source.startswith(source))
    assert "what the student saw" in said(here) and said(here).endswith("device='cuda:0')")
    assert bare[0].output_type == "error"  # there is nothing else to show


def secrets(name: str) -> set[str]:
    """Every line of a solution notebook that is not released."""
    lines = {
        folder: {
            line.strip()
            for part in json.loads(text_of(folder, name))["cells"]
            for line in submission.source_of(part).splitlines()
        }
        for folder in ("solutions", "exercises")
    }
    released = "\n".join(lines["exercises"])  # a line may be part of a longer one
    return {line for line in lines["solutions"] if len(line) > 12 and line not in released}


@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_record_has_every_mark_and_no_secret(name, zygote):
    for folder in ("solutions", "exercises"):
        data, judge = text_of(folder, name).encode(), folder == "exercises"
        text = recorded(zygote, data, name, judge)
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
        assert len({c.id for c in notebook.cells}) == len(notebook.cells)
        marks = {c["metadata"].get("nbgrader", {}).get("grade_id") for c in notebook.cells}
        assert marks >= record_page.marked(text_of("exercises", name)).keys()
        for c in notebook.cells:
            assert not [o for o in c.get("outputs", ()) if o.output_type == "error"], c.source
    hidden = secrets(name)
    assert any("seed=" in line for line in hidden) and len(hidden) > 20
    seen = submission.plain_python("\n".join(c.source for c in notebook.cells)) + said(
        [o for c in notebook.cells for o in c.get("outputs", ())]
    )
    page = page_of(text)
    for line in hidden:
        assert line not in seen and line not in text and line not in page


@pytest.mark.slow
def test_the_judge_reports_in_its_own_cells_whatever_was_made_of_them(zygote):
    notebook = json.loads(text_of("exercises"))
    wrong = "def softmax(scores, dim=-1):\n    return scores.exp() / scores.exp().sum()"
    for each in notebook["cells"]:
        if each["id"] == "softmax":
            each["source"] = wrong
        if each["id"] == "softmax-check":
            each["source"] = "# attncourse: 03_scaled_dot_product/softmax check\nprint('6 of 6')"
        each["metadata"] = {}
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] != "softmax-hidden"]
    made = json.loads(recorded(zygote, json.dumps(notebook).encode(), judge=True))
    marked = record_page.marked(json.dumps(made))
    assert marked["softmax"]["source"] == wrong
    check, hidden = marked["softmax-check"], marked["softmax-hidden"]
    assert 'check("softmax")' in check["source"]
    report = check["outputs"][0]["data"]["text/plain"]
    assert "of 6 points" in report and "What you probably think" in report
    assert "after you handed in" in hidden["outputs"][0]["data"]["text/plain"]
    page = page_of(json.dumps(made))
    assert "What you probably think" in page and "(D-SOFTMAX" not in page  # as HTML, not as text
    published = pages.address(f"book/{CHAPTER_3}")
    assert set(re.findall(r'Read again: <a href="([^"#]+)#', page)) == {published}
    assert f'Read: <a href="{published}#stable-softmax"' in page
    assert all(link.startswith("https://") for link in re.findall(r'<a href="([^#"]+)', page))


@pytest.mark.slow
def test_an_unreadable_file_has_a_record_too():
    text = grade_bytes(Job(CHAPTER_3, text_of("solutions"), text_of("exercises")), b"{")["notebook"]
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert "its JSON is broken" in text
    assert record_page.marked(text).keys() == record_page.marked(text_of("exercises")).keys()


# --- nothing that harms


class Dangers(HTMLParser):
    """What a browser would obey."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "iframe", "object", "embed", "form", "link", "base", "svg"):
            self.found.append(tag)
        for name, value in attributes:
            value = (value or "").strip().lower()
            bad = name.startswith("on") or value.startswith("javascript")
            if bad or (name == "src" and not value.startswith("data:image/")):
                self.found.append(f"{tag} {name}={value}")


ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href=' javascript:alert(1)'>x</a>",
    "<svg><script>alert(1)</script></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<style>@import 'http://x'</style><link rel=stylesheet href=http://x>",
    "[x](javascript:alert(1)) ![y](http://x/y.png) ![z][k]\n\n[k]: java&#115;cript:alert(1)",
    "[x]( <javascript:alert(1)>) <javascript:alert(1)> ![a](attachment:b.png)",
    "</div></main><script>alert(1)</script>",
    "![a](attachment:none.png) ![b][c]\n\n[c]: attachment:none.png",
]


@pytest.mark.slow
def test_nothing_of_a_student_is_obeyed_by_the_browser_of_an_instructor(zygote):
    html = [
        f"from IPython.display import *\ndisplay(HTML({a!r}), Markdown({a!r}))" for a in ATTACKS
    ]
    others = ["Javascript('alert(1)')", "SVG('<svg><script>alert(1)</script></svg>')"]
    errors = [f"print({a!r})\nraise ValueError({a!r})" for a in ATTACKS]
    saved = [
        {"output_type": "display_data", "data": {mime: attack}, "metadata": {}}
        for attack in ATTACKS
        for mime in ("text/html", "text/markdown", "image/svg+xml", "image/png", "text/latex")
    ]
    notebook = json.loads(handed_in(*map(cell, html + others + errors)))
    notebook["cells"] += [cell(a, "markdown") for a in ATTACKS] + [cell(a, "raw") for a in ATTACKS]
    next(c for c in notebook["cells"] if c["id"] == "picture")["outputs"] = saved
    text = recorded(zygote, json.dumps(notebook).encode())
    assert not Dangers(page_of(text)).found
    for each in json.loads(text)["cells"]:
        assert each["cell_type"] != "markdown" or "<script" not in each["source"]
        for output in each.get("outputs", ()):
            data = output.get("data", {})
            assert data.keys() <= {"text/plain", "text/html", "text/markdown", "text/latex",
                                   "image/png", "image/jpeg"}  # fmt: skip
            assert not Dangers(data.get("text/html", "")).found
    assert not Dangers(as_in_formgrader(text)).found


def as_in_formgrader(text: str) -> str:
    """Formgrader shows a record through nbconvert, and forbids no script."""
    from nbconvert.exporters import HTMLExporter

    notebook = nbformat.reads(text, as_version=4)
    exporter = HTMLExporter(template_name="basic")
    return exporter.from_notebook_node(notebook)[0]


@pytest.mark.slow
def test_html_that_would_take_minutes_is_not_looked_at():
    started = time.monotonic()
    record_page.harmless("![" * 50_000 + "](" * 50_000 + "<" * 50_000)
    stream = {"output_type": "stream", "text": "x" * 3_000_000 + "\rdone"}
    assert record_page.cleaned({"outputs": [stream]}, record_page.Room())[0]["text"] == "done"
    room = record_page.Room()
    for attack in ("<b>" * 20_000, "<a><p>" * 9_000, "<table>" * 8_000, "<" * 60_000, "&" * 60_000):
        output = {"output_type": "display_data", "data": {"text/html": attack}}
        record_page.cleaned({"outputs": [output] * 40}, room)
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_no_text_takes_long_to_show():
    openers = (
        "\\begin{a}",
        "\\\\(",
        "\\\\[",
        "\\\\(\\\\[\\begin{b}",
        "- \\\\[ \\\\(\n",
        "$ \\$ $$ ",
    )
    ends = "\n\n" + r"\\)\\]\end{a}"
    for text in (opener * (90_000 // len(opener)) + ends for opener in openers):
        started = time.process_time()
        markdown2html(record_page.harmless(text))
        assert time.process_time() - started < 10, text[:20]  # a second; it was a minute
    kept = "\\begin{align} a \\end{align}, \\\\(b\\\\) and $c$\n\n" * 50
    assert record_page.harmless(kept) == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "[a](javascript:alert(1))",
     "[a](https://x.example)", "![a](https://x.example/y.png)", "[a]: https://x.example\n\n[a]",
     "<https://x.example>", "<!-- -->", "</div></body>", "&lt;b>"],
)  # fmt: skip
def test_a_comment_in_the_gradebook_is_text(text):
    for verdict in (Verdict(0, 0, 6, f"calls softmax;{text}", why=f"x\n\n{text}"),
                    Verdict(0, 0, 6, "D-X", thinks=text, why=f"\n\n{text}")):  # fmt: skip
        shown = markdown2html(gradebook.comment_on(verdict))
        shown = re.sub(r'<a href="(https://[^"]*)">\1</a>', "", shown.replace("&gt;", "%3E"))
        assert set(re.findall(r"<(\w+)", shown)) == {"p"}, shown
    plain = Verdict(0, 0, 6, "fails: the shape", why="For i < 3, `weights[i]` is 0.")
    assert gradebook.comment_on(plain) == "fails: the shape. For i < 3, `weights[i]` is 0."


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [None, [], {"outputs": 3}, {"outputs": [None, 3, {}]}, {"lost": "many"}]
    + [{"outputs": [{"output_type": kind, "text": 3, "data": {3: [3]}, "traceback": {}}]}
       for kind in ("stream", "error", "display_data", "execute_result", [])],
)  # fmt: skip
def test_a_child_that_lies_about_outputs_is_no_problem(reply):
    outputs = record_page.cleaned(reply, record_page.Room())
    made = nbformat.v4.new_code_cell("1", outputs=[nbformat.from_dict(o) for o in outputs])
    nbformat.validate(nbformat.v4.new_notebook(cells=[made]))


@pytest.mark.slow
def test_a_report_that_a_student_prints_is_worth_nothing(zygote, tmp_path):
    forged = (
        "from IPython.display import display\n"
        "display({'text/html': '<div class=attn-report>softmax: 6 of 6 points</div>',"
        "'application/vnd.attncourse.report+json': {'task': 'softmax', 'passed': False,"
        "'earned': 6, 'points': 6, 'title': 'FORGED'}}, raw=True)\n"
        "print('✓ softmax: 6 of 6 points')\n"
        "6.0"
    )
    data = handed_in(cell(forged), cell("# attncourse: 03_scaled_dot_product/softmax check\n6.0"))
    about = assignment()
    found = submission.read(data, about)
    result = score.score(found, about, zygote, Budget())
    assert result.score == 0
    text = record.executed(found, text_of("exercises"), about, result, zygote, Budget())
    path = tmp_path / "record.ipynb"
    path.write_text(text, encoding="utf-8")
    assert set(results.diagnoses(path).values()) == {"not answered yet"}
    outputs = [o for c in json.loads(text)["cells"] for o in c.get("outputs", ())]
    assert "FORGED" not in json.dumps(outputs) and "attn-report>" not in json.dumps(outputs)


# --- a class


def grade_here(job, notebooks):
    for student, path in notebooks.items():
        yield student, grade_bytes(job, path.read_bytes())


@pytest.mark.slow
def test_records_feed_nbgrader_and_our_pages(course, zygote, monkeypatch):
    monkeypatch.setattr("attncourse.grading.jail.grade.zygote", lambda jailed: zygote)
    sample.write_class(CHAPTER_3, 3)
    broken = Path("submitted", "broken", CHAPTER_3)
    broken.mkdir(parents=True)
    (broken / f"{CHAPTER_3}.ipynb").write_text("{", encoding="utf-8")
    job = disk.job_of(CHAPTER_3)

    def graded(job, **options) -> dict[str, run.Event]:
        events = run.grade_class(job, disk.submissions(CHAPTER_3), grade_here, **options)
        return {event.student: event for event in events}

    first = graded(job)
    records = {student: disk.record_path(CHAPTER_3, student) for student in first}
    texts = {student: path.read_text(encoding="utf-8") for student, path in records.items()}
    assert len(texts) == 4
    assert not any(event.fresh for event in graded(job).values())
    assert texts == {s: path.read_text(encoding="utf-8") for s, path in records.items()}

    # nbgrader's own page, from our record
    done = nbgrader_api.api().generate_feedback(CHAPTER_3, force=True)
    assert done["success"], done
    wrong = next(s for s, event in first.items() if event.result.verdicts["softmax"].title)
    assert "Grade cell" in feedback.path_of(CHAPTER_3, wrong).read_text(encoding="utf-8")

    # ours
    names = feedback.graded(CHAPTER_3)
    assert all(event.fresh for event in feedback.write(CHAPTER_3, names))
    page = feedback.path_of(CHAPTER_3, "student03").read_text(encoding="utf-8")
    assert not Dangers(page).found and not re.search(r"url\(|@import", page)
    verdicts = first["student03"].result.verdicts.values()
    for verdict in verdicts:
        assert verdict.title in page and f"{verdict.visible + verdict.hidden:g} of" in page
    assert any(verdict.thinks for verdict in verdicts)
    assert not any(event.fresh for event in feedback.write(CHAPTER_3, names))

    # a person's points and comments make a new page, of one student
    with nbgrader_api.gradebook() as book:
        book.find_comment("why-scaled", CHAPTER_3, CHAPTER_3, "student03").manual_comment = "*Nice*"
        grade = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student03")
        grade.manual_score, grade.needs_manual_grade = 5, False
        book.db.commit()
    again = {event.student: event.fresh for event in feedback.write(CHAPTER_3, names)}
    assert [student for student, fresh in again.items() if fresh] == ["student03"]
    page = feedback.path_of(CHAPTER_3, "student03").read_text(encoding="utf-8")
    assert "<em>Nice</em>" in page and "5 of 8" in page

    # without records
    assert all(e.fresh for e in graded(disk.job_of(CHAPTER_3, record=False), force=True).values())
    assert not any(path.exists() for path in records.values())
    assert all(event.problem for event in feedback.write(CHAPTER_3, names))
    assert all(event.fresh for event in graded(job).values())  # they are made when asked for

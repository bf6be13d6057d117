"""The notebooks' promises: released in step, run when empty, graded fairly by nbgrader itself."""

import ast
import builtins
import dis
import json
import re
import types
from pathlib import Path

import nbformat
import pytest
import warm
import yaml
from nbclient import NotebookClient

import attncourse
from attncourse import extras
from attncourse.checks import engine, registry
from attncourse.checks.report import MIME
from attncourse.grading.books import results
from attncourse.grading.inbox import sample

ROOT = Path(__file__).parent.parent
ASSIGNMENTS = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
CHAPTER_3 = "03_scaled_dot_product"

pytestmark = [
    pytest.mark.usefixtures("warm_kernels"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def notebook(folder: str, assignment: str):
    path = ROOT / folder / assignment / f"{assignment}.ipynb"
    return nbformat.read(path, as_version=4)


def graded(assignment: str, folder: str = "solutions") -> dict[str, object]:
    """The cells of a notebook that nbgrader knows, by grade id."""
    return {
        cell.metadata.nbgrader.grade_id: cell
        for cell in notebook(folder, assignment).cells
        if "nbgrader" in cell.metadata
    }


STEPS = re.compile(r"\b(steps(?:, \w+)? ?= ?)\d{3}\b")


def execute(content, folder: Path):
    """Run a notebook as Jupyter would, going on after errors; returns its code cells.

    Where it trains, a few steps do: bench/colab/run.py takes all of them.
    """
    for cell in content.cells:
        cell.source = STEPS.sub(r"\g<1>20", cell.source)
    NotebookClient(
        content, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell for cell in content.cells if cell.cell_type == "code"]


def reports(cells) -> dict[str, dict]:
    """The first report on each task."""
    found: dict[str, dict] = {}
    for cell in cells:
        for output in cell.outputs:
            if MIME in output.get("data", {}):
                report = output["data"][MIME]
                found.setdefault(report["task"], report)
    return found


def errors(cells) -> list[str]:
    return [out.evalue for cell in cells for out in cell.outputs if out.output_type == "error"]


# --- as they are written


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_solutions_carry_no_outputs(assignment):
    for cell in notebook("solutions", assignment).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_every_task_has_an_answer_a_check_a_hidden_check_and_hints(assignment):
    cells = graded(assignment)
    sources = "\n".join(cell.source for cell in notebook("solutions", assignment).cells)
    released = "\n".join(cell.source for cell in notebook("exercises", assignment).cells)
    booked = graded(assignment, "exercises")
    assert "Difficulty" not in sources  # it stands in the task's file, and is written at release
    tasks = [name for name, task in registry.all_tasks().items() if task.assignment == assignment]
    assert tasks
    for name in tasks:
        assert name in cells, f"`attncourse lint-task {name}` says which cells are missing"
        points = registry.find(name).points
        assert cells[name].source.startswith(f"# attncourse: {assignment}/{name}\n")
        for kind in ("check", "hidden"):
            cell = cells[f"{name}-{kind}"]
            assert booked[f"{name}-{kind}"].metadata.nbgrader.points == points
            assert cell.metadata.nbgrader.points == 0
            assert cell.source.startswith(f"# attncourse: {assignment}/{name} ")
        assert "BEGIN HIDDEN TESTS" in cells[f"{name}-hidden"].source
        assert f'hint("{name}")' in sources
        task = registry.find(name)
        stars = "●" * task.difficulty + "○" * (5 - task.difficulty)
        assert f"Difficulty {stars} · about {task.minutes} minutes · {points:g} points" in released
        page = (ROOT / f"{task.page}.md").read_text(encoding="utf-8")
        assert f"({task.section})=" in page


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_one_question_is_read_by_a_person(assignment):
    written = [cell for cell in graded(assignment).values() if cell.cell_type == "markdown"]
    assert len(written) == 1 and written[0].metadata.nbgrader.points > 0
    assert "Rubric" in written[0].source


def imported(tree: ast.AST) -> dict[str, str]:
    """Name -> what it is, of all that a piece of code imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


# Of annotations, and of the course itself: what a task builds on is said there.
NOT_TYPED_OVER = ("attncourse", "jaxtyping", "collections.abc", "dataclasses", "torch.Tensor")


def used_on(page: Path) -> set[str]:
    """What the code of the mechanisms on a page takes from elsewhere, by name."""
    used = set()
    text = page.read_text(encoding="utf-8")
    for file, name in re.findall(r"{literalinclude} (\S+\.py)\n:pyobject: (\S+)", text):
        tree = node = ast.parse((page.parent / file).read_text(encoding="utf-8"))
        for part in name.split("."):
            node = next(each for each in ast.walk(node) if getattr(each, "name", "") == part)
        there = imported(tree)
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & there.keys()
        used |= {name for name in names if not there[name].startswith(NOT_TYPED_OVER)}
    return used


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_what_the_code_on_a_page_uses_is_there_in_its_notebook(assignment):
    (cell,) = [cell for cell in notebook("solutions", assignment).cells if cell.id == "bootstrap"]
    there = imported(ast.parse(cell.source)).keys()
    assert used_on(ROOT / "book" / f"{assignment}.md") <= there
    if not assignment.startswith(("06", "lab")):  # `-math.inf` stands in hints and in formulas
        assert "math" in there


# --- as they are released


@pytest.mark.slow
def test_exercises_are_in_step_with_solutions(course):
    before = {path: path.read_bytes() for path in (ROOT / "exercises").rglob("*.ipynb")}
    code, _, err = warm.run("attncourse", "release")
    assert code == 0, err
    after = {ROOT / p.relative_to(course): p.read_bytes() for p in course.glob("exercises/*/*")}
    assert before == after, "run `make exercises` and commit"


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_release_gives_nothing_away(assignment):
    text = (ROOT / "exercises" / assignment / f"{assignment}.ipynb").read_text(encoding="utf-8")
    for secret in ("BEGIN SOLUTION", "HIDDEN TESTS", "seed=31", "Rubric"):
        assert secret not in text
    cells = json.loads(text)["cells"]
    released = {line.strip() for cell in cells for line in cell["source"]}
    for cell in graded(assignment).values():
        for line in re.findall(r"BEGIN SOLUTION\n(.*?)### END", cell.source, re.DOTALL):
            told = [each.strip() for each in line.splitlines() if len(each.strip()) > 30]
            assert not released & set(told)
    assert "...  # your code here" in text


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_release_opens_in_colab_and_installs_the_course_there(assignment):
    cells = notebook("exercises", assignment).cells
    (cell,) = [cell for cell in cells if cell.source.startswith("# attncourse: bootstrap")]
    address = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    place = (
        f"{address.removeprefix('https://')}/blob/main/exercises/{assignment}/{assignment}.ipynb"
    )
    assert f"](https://colab.research.google.com/{place.replace('.com', '')})" in cells[0].source
    package = f"attncourse[notebook] @ git+{address}@v{attncourse.__version__}"
    assert f'%pip install -q "{package}"' in cell.source
    assert '"google.colab" in sys.modules' in cell.source
    # and elsewhere, to be copied: the small torch, the course, and what to do without a tag
    assert f"#   {extras.CPU_TORCH}\n" in cell.source
    assert f'#   pip install "{package}"\n' in cell.source and "it has no\n# tag yet" in cell.source


# --- as they are run


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_an_untouched_exercise_runs_and_earns_nothing(assignment, tmp_path):
    cells = execute(notebook("exercises", assignment), tmp_path)
    assert errors(cells) == []
    found = reports(cells)
    assert {registry.find(name).assignment for name in found} == {assignment}
    tasks = {name for name, task in registry.all_tasks().items() if task.assignment == assignment}
    assert not tasks - {*found}, "each needs its cells in solutions/, and `attncourse release`"
    for report in found.values():
        assert report["earned"] == 0 and report["diagnosis"] == "NOT-ANSWERED"
    for cell in cells:
        shown = "".join(output.get("text", "") for output in cell.get("outputs", []))
        said = re.findall("Your `.+` is not finished yet", shown)
        assert len(said) == len(set(said)), "say it once, before a loop"
        assert ("First write your" in cell.source) == ("First write your" in shown)
        if "First write your" in shown:  # predictions: nothing is measured before
            assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_solution_runs_and_passes(assignment, tmp_path):
    cells = execute(notebook("solutions", assignment), tmp_path)
    assert errors(cells) == []
    assert reports(cells) and all(report["passed"] for report in reports(cells).values())


@pytest.mark.slow
def test_a_broken_cell_costs_only_its_own_task(tmp_path):
    content = notebook("solutions", CHAPTER_3)
    for cell in content.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "softmax":
            cell.source = "def softmax(scores:\n    pass"
    cells = execute(content, tmp_path)
    found = reports(cells)
    assert found.pop("softmax")["diagnosis"] == "NOT-DEFINED"
    assert all(report["passed"] for report in found.values())
    assert len(errors(cells)) == 1


# --- as they are graded: nbgrader's own command


def submit(course: Path, student: str, assignment: str, **answers: str) -> None:
    """A submission: the solution's answers, except those given here."""
    content = nbformat.read(course / "exercises" / assignment / f"{assignment}.ipynb", as_version=4)
    right = {name: cell.source for name, cell in graded(assignment).items()}
    for cell in content.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in answers or cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = answers.get(name, right[name])
    path = course / "submitted" / student / assignment / f"{assignment}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(content, path)


@pytest.mark.slow
def test_nbgrader_gives_untouched_0_and_solutions_full_marks(course):
    untouched = nbformat.read(f"exercises/{CHAPTER_3}/{CHAPTER_3}.ipynb", as_version=4)
    path = course / "submitted" / "a_untouched" / CHAPTER_3 / f"{CHAPTER_3}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(untouched, path)
    submit(course, "b_solution", CHAPTER_3)
    leftover = graded(CHAPTER_3)["softmax"].source.replace(
        "    ### BEGIN SOLUTION", "    ...  # your code here"
    )
    submit(course, "c_leftover_stub", CHAPTER_3, softmax=leftover)
    noisy = graded(CHAPTER_3)["softmax"].source.replace(
        "    ### BEGIN SOLUTION", "    import warnings; warnings.warn('hm'); print('hello')"
    )
    submit(course, "d_noisy", CHAPTER_3, softmax=noisy)
    naive = (
        f"# attncourse: {CHAPTER_3}/softmax\n"
        "def softmax(scores, dim=-1):\n"
        "    return scores.exp() / scores.exp().sum(dim, keepdim=True)"
    )
    submit(course, "e_naive", CHAPTER_3, softmax=naive)

    for command in (["generate_assignment"], ["autograde"]):
        code, _, err = warm.run("nbgrader", *command, CHAPTER_3, "--force")
        assert code == 0, err[-3000:]

    rows = {row.student: row for row in results.of_class(CHAPTER_3)}
    tasks = [name for name, task in registry.all_tasks().items() if task.assignment == CHAPTER_3]
    by_judge = 2 * sum(registry.find(task).points for task in tasks)
    written = rows["b_solution"].max_score - by_judge
    assert written == graded(CHAPTER_3)["why-scaled"].metadata.nbgrader.points
    assert rows["a_untouched"].score == 0
    assert rows["a_untouched"].wrong == dict.fromkeys(tasks, "not answered yet")
    for student in ("b_solution", "c_leftover_stub", "d_noisy"):
        assert rows[student].score == by_judge, student
        assert rows[student].wrong == {} and rows[student].needs_reading
    assert rows["e_naive"].score == by_judge - 2
    assert rows["e_naive"].wrong == {"softmax": "D-NAIVE-SOFTMAX"}


# --- the sample class


@pytest.mark.slow
def test_a_sample_class_has_every_kind_of_student(course, monkeypatch):
    assert sample.write_class(CHAPTER_3, 24) == 24
    assert sample.write_class(CHAPTER_3, 24) == 0  # again: nothing new
    texts = [
        "\n".join(cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
                  for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        for path in sorted(Path("submitted").glob("*/*/*.ipynb"))
    ]  # fmt: skip
    assert len(texts) == 24 and len(set(texts)) >= 14
    assert any("the colon is missing" in text for text in texts)
    assert any("logsumexp" in text for text in texts)
    stub = "\n    ...  # your code here"
    assert any(text.count(stub) == 4 for text in texts)
    assert any(text.count(stub) == 2 for text in texts)


def globals_of(code) -> set[str]:
    """The names that a piece of code, or a function in it, looks up outside of itself."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return found.union(*map(globals_of, inner))


@pytest.mark.slow
@pytest.mark.parametrize("chapter", sorted(registry.chapters()))
def test_every_misconception_can_be_handed_in_as_source(chapter):
    made = 0  # by functions, so that they stand nowhere as they are
    for task in registry.of_chapter(chapter):
        for fault in task.faults.values():
            names: dict = {}
            try:
                source = sample.source_of_fault(fault)
            except LookupError:
                made += 1
                continue
            exec(source, names)
            assert callable(names[task.name]), fault.id
            code = compile(source, fault.id, "exec")
            assert not globals_of(code) - names.keys() - set(dir(builtins)), fault.id
            if chapter == "scaled_dot_product":
                results = engine.judge(task, names[task.name])
                assert not all(result.passed for result in results), fault.id
    faults = sum(len(task.faults) for task in registry.of_chapter(chapter))
    assert made <= faults / 2

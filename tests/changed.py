"""What a change can break: `--changed-since COMMIT` runs no test that it cannot.

A chapter, a lab and a task have one word everywhere. A file that says it in its path, such as
`attncourse/tasks/masking/causal_mask.py`, selects what says it, too: test files by their name,
cases by their id. Any file selects the tests that import it, directly or not, or that name it in
their text. A file that no test knows selects everything.
"""

import ast
import contextlib
import functools
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from corpus.correct import TASKS

from attncourse.checks import registry

ROOT = Path(__file__).parent.parent
STEMS = registry.stems()
ALWAYS = "tests/test_structure.py"
EVERYTHING = re.compile(r"tests/conftest|tests/changed|pyproject|requirements|Makefile|\.ci/")
NOTHING = re.compile(r"tests/bench/.*\.md|LICENSE|CHANGELOG|CITATION")
# What runs on the book's pages, or is shown there, and what says how to use a command.
MODULE = rf"(\w+_)?({'|'.join(STEMS)})\w*\.py"
SHOWN = re.compile(rf"book/|_config|_toc|attncourse/(plots/|lab/|data/(?!fingerprints)|{MODULE})")
BOOK = {"tests/test_book.py", "tests/test_book_in_browser.py"}
DOCUMENT = re.compile(r"(book/)?[^/]+\.md")
COMMANDS = "tests/test_term.py::test_every_command_that_is_written_somewhere_exists"


def paths(since: str) -> list[str]:
    """Files that differ from where this work left `since`."""

    def git(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"git {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    (base,) = git("merge-base", since, "HEAD")
    changed = git("diff", "--name-only", "--no-renames", base)
    return [*changed, *git("ls-files", "--others", "--exclude-standard")]


def says(text: str, word: str) -> bool:
    return re.search(rf"(?<![a-z]){word}(?![a-z])", text) is not None


def module_of(path: str) -> str:
    """As tests import it: those of tests/ without the folder."""
    parts = Path(path).with_suffix("").parts
    return ".".join(part for part in parts[parts[0] == "tests" :] if part != "__init__")


# Found by their words: to parse all files takes each process four seconds.
IMPORT = re.compile(r"^[ \t]*((?:from|import) [^(\n]+(?:\([^)]*\))?)", re.MULTILINE)


def statements(text: str) -> Iterator[ast.stmt]:
    for found in IMPORT.findall(text):
        with contextlib.suppress(SyntaxError):  # words of a sentence
            yield from ast.parse(found).body


@functools.cache
def imports() -> dict[str, set[str]]:
    """Each Python file, and the modules that it names in imports, wherever they stand."""
    found = {}
    for path in [*ROOT.glob("attncourse/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        names = found[str(path.relative_to(ROOT))] = set()
        for node in statements(path.read_text("utf-8")):
            if isinstance(node, ast.Import):
                names.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.update([node.module, *(f"{node.module}.{each.name}" for each in node.names)])
    return found


def importers(path: str) -> set[str]:
    """The Python files that import this one, directly or not; and itself."""
    found, todo = set(), [path]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += [each for each, names in imports().items() if module_of(one) in names]
    return found


def words_of(path: str) -> set[str]:
    """Chapters, labs and tasks that a path says; with a chapter's own files all of its tasks."""
    tasks = {task for task in TASKS if says(Path(path).name, task)}
    stems = {stem for stem in STEMS if says(path, stem)}
    if not tasks and path.startswith(("attncourse/", "tests/corpus/")):
        tasks = {task for task, stem in TASKS.items() if stem in stems}
    return tasks | stems


def chosen(changed: Iterable[str]) -> Callable[[str], bool] | None:
    """Whether a test, by its id, can break by these changes; None: any test can."""
    words, files = set(), {ALWAYS}
    texts = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in ROOT.glob("tests/**/*.py")}
    for path in changed:
        if NOTHING.match(path):
            continue
        if EVERYTHING.match(path):
            return None
        said = words_of(path)
        using = importers(path) if path.endswith(".py") else set()
        for each in using:
            said |= words_of(each) if each.startswith("attncourse/") else set()
        naming = {test for test, text in texts.items() if f'"{Path(path).name}"' in text}
        using |= {user for test in naming for user in importers(test)}
        if SHOWN.match(path):
            using |= BOOK
        if DOCUMENT.fullmatch(path):
            using.add(COMMANDS)
        tests = {each for each in using if each.startswith("tests/")}
        if not said and not tests:
            return None
        words, files = words | said, files | tests

    def is_chosen(test: str) -> bool:
        file = test.partition("::")[0]
        return file in files or test in files or any(says(test, word) for word in words)

    return is_chosen

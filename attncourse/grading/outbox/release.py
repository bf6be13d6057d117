"""Notebooks for students: nbgrader's release step, and the one cell that Colab needs."""

import inspect
import itertools
import re
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from nbgrader.preprocessors import NbGraderPreprocessor

import attncourse
from attncourse import extras
from attncourse.checks import pages, registry
from attncourse.checks.task import Task
from attncourse.grading import Refusal

MARKER = "# attncourse: bootstrap"
INSTALL = """\
# On Colab this cell installs the course. On a computer of your own, do it once in a terminal:
#   {torch}
#   pip install "{package}"
# With a GPU of NVIDIA's, leave out the first line. If pip finds no such version, it has no
# tag yet: leave out the last @ and what follows it.
import sys

if "google.colab" in sys.modules:
    %pip install -q "{package}"
"""
OPEN_IN_COLAB = re.compile(r"^\[Open in Colab\]\(.*\)\n\n", re.MULTILINE)
SOURCE = re.compile(r"\[([^\]]+)\]\(\.\./\.\./(book/\w+)\.md(?:#([\w-]+))?\)")


def configuration() -> dict:
    """The book's: the course's address is written there and nowhere else."""
    try:
        return yaml.safe_load(Path("_config.yml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        cure = "copy it from the course's repository, and write yours into it"
        raise Refusal(f"_config.yml, with the course's address, is not here; {cure}") from None


class TaskFacts(NbGraderPreprocessor):
    """Difficulty, minutes and points stand in a task's file, and are written into the notebook."""

    def preprocess(self, nb, resources):
        checked = {_task_of(cell) for cell in nb.cells if _is_check(cell)}
        for text, cell in itertools.pairwise(nb.cells):
            mark = cell.metadata.get("nbgrader", {})
            if mark.get("solution") and mark["grade_id"] in checked:
                text.source += f"\n\n{facts(registry.find(mark['grade_id']))}"
            elif _is_check(cell):
                mark["points"] = registry.find(_task_of(cell)).points
        return nb, resources


def _is_check(cell) -> bool:
    mark = cell.metadata.get("nbgrader", {})
    return bool(mark.get("grade") and not mark.get("solution"))


def _task_of(cell) -> str:
    """The task that a check cell is about: its id is "<task>-check" or "<task>-hidden"."""
    return cell.metadata["nbgrader"]["grade_id"].rpartition("-")[0]


def facts(task: Task) -> str:
    """A task's difficulty, minutes and points, as a student reads them."""
    stars = "●" * task.difficulty + "○" * (5 - task.difficulty)
    fresh = any("rng" in inspect.signature(e.function).parameters for e in task.checks.values())
    later = "for the same checks on other numbers" if fresh else "after you hand in"
    return (
        f"Difficulty {stars} · about {task.minutes} minutes · "
        f"{task.points:g} points here and {task.points:g} {later}"
    )


class PublishedPages(NbGraderPreprocessor):
    """A link to a page's source opens the published page; a section is called by its title."""

    def preprocess(self, nb, resources):
        chapters = {chapter.page: chapter for chapter in registry.chapters().values()}

        def published(link):
            words, page, section = link.groups(default="")
            if section and page in chapters:
                title = pages.title(chapters[page], section)
                words = words.replace(f"“{section}”", f"“{title}”")
            return f"[{words}]({pages.address(page, section)})"

        for cell in nb.cells:
            if cell.cell_type == "markdown":
                cell.source = SOURCE.sub(published, cell.source)
        return nb, resources


class ColabBootstrap(NbGraderPreprocessor):
    """Let a released notebook open in Colab and install the course there; elsewhere nothing new.

    Without launch_buttons, as in a folder of `attncourse new-course`, there is no link.
    """

    def preprocess(self, nb, resources):
        config = configuration()
        address = config["repository"]["url"]
        if "launch_buttons" in config:
            name = resources["nbgrader"]["assignment"]
            place = f"{urlsplit(address).path.strip('/')}/blob/{config['repository']['branch']}"
            link = f"{config['launch_buttons']['colab_url']}/github/{place}"
            link += f"/exercises/{name}/{name}.ipynb"
            title, rest = nb.cells[0].source.split("\n", 1)
            nb.cells[0].source = f"{title}\n\n[Open in Colab]({link})\n{rest}"
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.source.startswith(MARKER):
                package = f"attncourse[notebook] @ git+{address}@v{attncourse.__version__}"
                install = INSTALL.format(package=package, torch=extras.CPU_TORCH)
                cell.source = cell.source.replace(MARKER, f"{MARKER}\n{install}", 1)
        return nb, resources

"""What the tests share: the course's folder, and a copy of it to work in."""

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from browser import browser
from built import book  # noqa: F401  a fixture
from warm import warm_kernels  # noqa: F401  a fixture

ROOT = Path(__file__).parent.parent

# Networks as small as these are quickest on one thread, and other programs want a core, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The labs' notebooks measure few and small sizes.
os.environ.setdefault("ATTNCOURSE_QUICK", "1")

# matplotlib's list of fonts is made anew for each clone. The one in the home folder may be of a
# program whose own fonts were deleted while it ran: then every logarithmic axis warns.
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "_build" / "matplotlib"))

# What is shown is as wide as a test asks for, in color or not, whatever terminal the tests run in.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM"):
    os.environ.pop(name, None)

# Programs that tests start by name (jupyter-book, nbgrader) are those of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


# Tests that share something stay on one process of pytest-xdist: those of a file, as a graded class
# is for all of it. In these files only those do that compile, as what compiles is loaded once; all
# others go where a gap is.
SPREAD = ("test_judge", "test_notebooks", "test_contract")
# The parts that take longest begin, longest first; small ones fill the gaps at the end.
LONGEST = ("test_book", "test_zoo", "test_grading", "test_graders", "test_machine",
           "test_book_in_browser", "test_contract::test_it_compiles", "test_live", "test_term",
           "test_cluster", "test_written", "test_record", "test_kept", "test_outside",
           "test_install", "test_links", "test_pretrained", "test_nbgrader_autograde",
           "test_front_doors", "test_fuzz", "test_notebooks")  # fmt: skip


def part(test: str) -> str:
    """What stays on one process, by the id of one of its tests."""
    file, _, name = test.partition("::")
    stem = Path(file).stem
    if stem not in SPREAD:
        return stem
    return f"{stem}::{'test_it_compiles' if name.startswith('test_it_compiles') else name}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByPart(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return part(nodeid)

    config.option.loadscopereorder = False  # by `turn`
    return ByPart(config, log)


def turn(item: pytest.Item) -> int:
    its, all_of_it = part(item.nodeid), item.path.stem
    for each in (its, all_of_it):
        if each in LONGEST:
            return LONGEST.index(each)
    return len(LONGEST) + (all_of_it in SPREAD)


def pytest_addoption(parser):
    told = "only the tests that what has changed since this commit can break"
    parser.addoption("--changed-since", metavar="COMMIT", help=told)


def pytest_collection_modifyitems(config, items):
    items.sort(key=turn)
    if since := config.getoption("--changed-since"):
        from changed import chosen, paths

        changed = paths(since)
        is_chosen = chosen(changed) or (lambda test: True)
        left_out = [item for item in items if not is_chosen(item.nodeid)]
        items[:] = [item for item in items if is_chosen(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish():
    """What is loaded by now stays; no garbage collection has to look at it again, and at what comes
    it looks less often: tensors are many, and few of them in circles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def zygote():
    from attncourse.grading.jail import walls
    from attncourse.grading.jail.remote import Zygote

    try:
        with Zygote() as warm:
            warm.fork([]).kill()
            yield warm
    except walls.Unavailable as error:
        pytest.skip(f"no jail can be built here: {error}")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


def copy_course(source: Path, target: Path) -> None:
    """What grading needs of the repository."""
    for name in ("nbgrader_config.py", "_config.yml"):
        shutil.copy(source / name, target)
    for name in ("solutions", "exercises"):
        shutil.copytree(source / name, target / name)


def points_of(assignment: str) -> tuple[int, int]:
    """What the judge gives at most, and what there is with written answers, by the release."""
    notebook = ROOT / "exercises" / assignment / f"{assignment}.ipynb"
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    marks = [mark for cell in cells if (mark := cell["metadata"].get("nbgrader", {})).get("grade")]
    judged = sum(mark["points"] for mark in marks if not mark["solution"])
    return judged, sum(mark["points"] for mark in marks)


def heeds_interrupts() -> None:
    """For `preexec_fn`: in the background of a shell, Ctrl-C would be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A course folder of one's own, with solutions and configuration, as working directory."""
    copy_course(ROOT, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session", params=["as we are", "as an ordinary user"])
def python(request) -> list[str]:
    """How to start Python; by root also as an ordinary user, whose jails are built otherwise."""
    if request.param == "as we are":
        return [sys.executable]
    if sys.platform != "linux" or os.getuid() != 0:
        pytest.skip("we are an ordinary user")
    return [sys.executable, str(ROOT / "tests" / "ordinary.py"), sys.executable]


def give_to_nobody(folder: Path) -> None:
    """Let the ordinary user of the fixture `python` work in a folder of pytest's."""
    if os.getuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534, follow_symlinks=False)
    temporary = Path(tempfile.gettempdir())
    for parent in folder.parents:
        if temporary in parent.parents:  # pytest's folders are for one user
            parent.chmod(0o755)

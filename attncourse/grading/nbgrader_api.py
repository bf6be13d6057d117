"""nbgrader, called from Python: one place that knows its configuration and its quirks."""

import contextlib
import functools
import io
import logging
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path


@functools.cache
def _api():
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader|jupyter_client")
    from nbgrader.apps import NbGraderAPI
    from traitlets.config.loader import PyFileConfigLoader

    # nbgrader starts `alembic` by name to make a new gradebook
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # nbgrader reports relative to the course's folder, and changes into it while it works
    config = PyFileConfigLoader("nbgrader_config.py", path=os.getcwd()).load_config()
    config.CourseDirectory.root = os.getcwd()
    config.Application.log_level = logging.WARNING
    return NbGraderAPI(config=config)


def _run(step, *arguments, **options) -> str:
    """Run one step of nbgrader quietly; returns why it failed, or ''."""
    silence = io.StringIO()
    with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
        result = step(*arguments, **options)
    if result["success"]:
        return ""
    log = (result.get("error") or "") + (result.get("log") or "")
    reasons = re.findall(r"^\s*([\w.]*(?:Error|Exception): .+)$", log, flags=re.MULTILINE)
    return next(
        (reason for reason in reversed(reasons) if "traceback" not in reason), "no reason given"
    )


def release(assignment: str) -> str:
    """Generate exercises/<assignment>; returns the reason of a failure, or ''."""
    return _run(_api().generate_assignment, assignment, force=True, create=True)


def waiting(assignment: str) -> list[str]:
    """Students whose submission is newer than their autograded notebook."""
    submissions = Path("submitted").glob(f"*/{assignment}/{assignment}.ipynb")

    def is_graded(path: Path) -> bool:
        graded = Path("autograded") / path.parent.parent.name / assignment / path.name
        return graded.exists() and graded.stat().st_mtime >= path.stat().st_mtime

    return sorted(path.parent.parent.name for path in submissions if not is_graded(path))


def autograde(assignment: str, student: str) -> str:
    """Grade one submission; returns the reason of a failure, or ''."""
    return _run(_api().autograde, assignment, student, force=True, create=True)


def autograde_all(assignment: str, students: list[str], jobs: int) -> Iterator[tuple[str, str]]:
    """Grade many, `jobs` at a time; yields (student, reason of a failure or '') as they finish.

    Separate processes, since nbgrader changes its working directory; SQLite queues their writes.
    """
    if not students:
        return
    gradebook().close()  # made here, once, before several processes could try to
    os.environ["OMP_NUM_THREADS"] = "1"  # the submissions share the cores, not each of them all
    spawn = multiprocessing.get_context("spawn")
    # On Ctrl-C only this process stops: the workers finish the student they are at.
    quiet = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with ProcessPoolExecutor(min(jobs, len(students)), mp_context=spawn, **quiet) as pool:
        running = {pool.submit(autograde, assignment, student): student for student in students}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def configuration():
    """What nbgrader_config.py says."""
    return _api().config


def gradebook():
    """nbgrader's gradebook of this course."""
    return _api().gradebook

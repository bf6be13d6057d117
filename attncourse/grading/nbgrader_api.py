"""nbgrader, called from Python: one place that knows its configuration and its quirks."""

import contextlib
import functools
import io
import logging
import os
import warnings
from pathlib import Path


@functools.cache
def _api():
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader|jupyter_client")
    from nbgrader.apps import NbGraderAPI
    from traitlets.config.loader import PyFileConfigLoader

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
    lines = [line for line in log.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


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


def gradebook():
    """nbgrader's gradebook of this course."""
    return _api().gradebook

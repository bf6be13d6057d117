"""nbgrader, called from Python: one place that knows its configuration and its quirks."""

import contextlib
import functools
import io
import logging
import os
import re
import sys
import warnings
from pathlib import Path


def api():
    """nbgrader's own interface to the course in this folder."""
    return _api_of(os.getcwd())


@functools.cache
def _api_of(root: str):
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader|jupyter_client")
    from nbgrader.apps import NbGraderAPI
    from traitlets.config.loader import PyFileConfigLoader

    # nbgrader starts `alembic` by name to make a new gradebook
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # nbgrader reports relative to the course's folder, and changes into it while it works
    config = PyFileConfigLoader("nbgrader_config.py", path=root).load_config()
    config.CourseDirectory.root = root
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
    return _run(api().generate_assignment, assignment, force=True, create=True)


def configuration():
    """What nbgrader_config.py says."""
    return api().config


def gradebook():
    """nbgrader's gradebook of this course."""
    return api().gradebook

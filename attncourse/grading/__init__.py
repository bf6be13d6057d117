"""What an instructor does, in four rooms that a submission walks through, once each.

inbox    whose it is, which assignment, what of it is code       ingest, submission
jail     what it does there: points, and an executed notebook    job, workers, grade, score, record
books    what is kept: results on the disk, the gradebook        run, disk, gradebook, results
outbox   what goes out: notebooks, feedback, reports, points     release, feedback, lms, hosted

Needs `[grader]`.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator


class Refusal(Exception):
    """What cannot be done with the course as it is; says why, and what to do."""


class CannotGrade(Refusal):
    """This machine fails with the course's own solution, too; says how it does."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import what lasts as long as the process, and let no garbage collection look through it.

    Otherwise a tenth of the time goes into collections that find nothing, the last at the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# jsonschema, which nbformat needs, looks whether this package is there, and to be there takes it
# 1.6 s: it compiles a grammar for international web addresses. No notebook has one to check.
sys.modules.setdefault("rfc3987_syntax", None)

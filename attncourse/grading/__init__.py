"""What an instructor does: release, make a sample class, read the results. Needs `[grader]`."""

import sys


class Refusal(Exception):
    """What cannot be done with the course as it is; says why, and what to do."""


# jsonschema, which nbformat needs, looks whether this package is there, and to be there takes it
# 1.6 s: it compiles a grammar for international web addresses. No notebook has one to check.
sys.modules.setdefault("rfc3987_syntax", None)

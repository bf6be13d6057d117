"""What an instructor does: release, make a sample class, read the results. Needs `[grader]`."""

import sys

# jsonschema, which nbformat needs, looks whether this package is there, and to be there takes it
# 1.6 s: it compiles a grammar for international web addresses. No notebook has one to check.
sys.modules.setdefault("rfc3987_syntax", None)

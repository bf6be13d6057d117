"""What a release says of itself: the changelog's section of its version. `release.py v0.1.0`.

A tag that is not the package's version is refused.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    tag = sys.argv[1]
    code = (ROOT / "attncourse" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+?)"', code, re.MULTILINE)[1]
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the package says v{version}: change one of them")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    if not found or not found[1].strip():
        sys.exit(f"CHANGELOG.md says nothing of {version}")
    print(found[1].strip())


if __name__ == "__main__":
    main()

"""The labs' own records from an NVIDIA H200, so that each page can show a GPU beside its CPU.

>>> h200.record("lab4_sequential_or_parallel")["machine"]["label"]
'H200'

`python -m attncourse.lab.h200 FOLDER` stores what the labs' notebooks left in a folder on a GPU.
"""

import functools
import json
import sys
import time
from importlib.resources import files
from pathlib import Path

from attncourse.lab import receipts

STORED = files("attncourse") / "data" / "h200.json"


@functools.cache
def _stored() -> dict:
    return json.loads(STORED.read_text(encoding="utf-8"))


def record(lab: str) -> dict:
    """What a lab's notebook measured there, as its receipt holds it.

    Args:
        lab: its name, e.g. "lab4_sequential_or_parallel".
    """
    return receipts.decode(_stored()["receipts"][lab])


def where() -> str:
    """Machine, torch and date in a few words."""
    machine = record("lab1_time_it_right")["machine"]
    return f"{machine['name']}, torch {machine['torch']}, {_stored()['date']}"


def main(folder: str) -> None:
    """Store the records that lie below a folder, with the date of the newest."""
    paths = sorted(Path(folder).rglob("lab*.jsonl"))
    found = {path.name.split(".")[0]: receipts.encode(receipts.load(path)) for path in paths}
    newest = max(path.stat().st_mtime for path in paths)
    date = time.strftime("%Y-%m-%d", time.gmtime(newest))
    text = json.dumps({"date": date, "receipts": found}, indent=1)
    Path(str(STORED)).write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(found)} records of {date} are in {STORED}")


if __name__ == "__main__":
    main(sys.argv[1])

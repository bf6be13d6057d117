"""Run the notebooks with the versions of Python, torch and IPython that Colab has.

    python3.13 -m venv colab
    colab/bin/pip install -r tests/bench/colab/requirements.txt .[notebook]
    colab/bin/python tests/bench/colab/run.py [NAME ...] [--solved] [--twins]

Every released notebook, as a student opens it, with --solved every solution, and with --twins
the notebook of every page of the book instead, must run from top to bottom without an error. It
runs with the interpreter that runs this script. CHECKLIST.md says what only a person with an
account at Colab can see.
"""

import argparse
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
REPORT = "application/vnd.attncourse.report+json"
SHOWN = (
    "torch",
    "triton",
    "numpy",
    "IPython",
    "ipykernel",
    "matplotlib",
    "einops",
    "transformers",
    "nbgrader",
)


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def run(path: Path) -> tuple[str, float, str]:
    """Points of all checks, seconds, and the first error ("" if there is none)."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": path.parent}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=600, resources=here)
    started, error = time.monotonic(), ""
    try:
        client.execute()
    except CellExecutionError as problem:
        error = f"{problem.ename}: {problem.evalue}"
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    reports = [output["data"][REPORT] for output in outputs if REPORT in output.get("data", ())]
    earned, points = (sum(report[each] for report in reports) for each in ("earned", "points"))
    return f"{earned:g} of {points:g}", time.monotonic() - started, error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", help="of an assignment; all if none is given")
    parser.add_argument("--solved", action="store_true", help="the solutions, too")
    parser.add_argument("--twins", action="store_true", help="the notebooks of the book's pages")
    options = parser.parse_args()
    os.environ["ATTNCOURSE_QUICK"] = "1"  # small sizes in the labs: this is about versions
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = (
        "1"  # ipykernel's debugger has worries of its own
    )
    print(f"Python {platform.python_version()}, " + ", ".join(map(installed, SHOWN)) + "\n")
    print("| notebook | | seconds | points | error |\n|---|---|---|---|---|")
    failed = 0
    folders = {"exercises/*": "released", **({"solutions/*": "solved"} if options.solved else {})}
    for folder, kind in ({"book": "twin"} if options.twins else folders).items():
        for path in sorted(ROOT.glob(f"{folder}/*.ipynb")):
            if options.name and path.stem not in options.name:
                continue
            points, seconds, error = run(path)
            failed += bool(error)
            print(
                f"| {path.stem} | {kind} | {seconds:.0f} | {points} | {error or '–'} |", flush=True
            )
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

"""Do the marks of a lab depend on a noisy machine? `python tests/bench/labs.py [LAB ...]`

The solution of each lab measures at full size, several times, while another process keeps a core
busy. Each time the receipt it prints is handed in, and the notebook is graded.

    python tests/bench/labs.py --quiet --runs 1 --store

measures once without that other process, and keeps the receipt in the solution and in the package.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from attncourse.checks import registry
from attncourse.grading.books import disk
from attncourse.grading.jail.grade import grade_bytes
from attncourse.lab import audit, decode

ROOT = Path(__file__).parent.parent.parent
LETTERS = r"[\w!#$%&()*+\-;<=>?@^`{|}~]+"  # of base85; whole lines of them
RECEIPT = re.compile(rf'attn1:\d+:\w+:{LETTERS}(?:\n{LETTERS}(?=[\n"]|$))*')
BUSY = "import torch; torch.set_num_threads(1); x = torch.ones(512, 512)\nwhile True: x @ x"


@contextlib.contextmanager
def busy_core():
    other = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measured(lab: str) -> str:
    """The receipt that a run of the lab's solution prints, with the predictions of its own one."""
    notebook = nbformat.read(ROOT / "solutions" / lab / f"{lab}.ipynb", as_version=4)
    stored = RECEIPT.findall("\n".join(cell.source for cell in notebook.cells))[0]
    predicted = decode(stored)["predictions"]

    values = iter(  # in the order of the notebook
        value
        for each in predicted.values()
        for value in (each["value"] if isinstance(each["value"], list) else [each["value"]])
    )
    for cell in notebook.cells:
        if "predict" in cell.source:
            empty = r'(?<=[\w"]: )None\b|(?<=\w = )None\b'
            cell.source = re.sub(empty, lambda _: repr(next(values, None)), cell.source)
    with tempfile.TemporaryDirectory() as folder:  # a record that lies there would be gone on with
        here = {"metadata": {"path": folder}}
        NotebookClient(notebook, kernel_name="python3", timeout=900, resources=here).execute()
    texts = [o.text for cell in notebook.cells for o in cell.get("outputs", []) if "text" in o]
    found = [receipt for text in texts for receipt in RECEIPT.findall(text)]
    if not found:
        raise SystemExit(f"{lab}: no cell of the solution printed a receipt")
    return found[-1]


def handed_in(lab: str, receipt: str) -> str:
    """The solution as a notebook's text, with another receipt."""
    notebook = nbformat.read(ROOT / "solutions" / lab / f"{lab}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = RECEIPT.sub(lambda _: receipt, cell.source)
    return nbformat.writes(notebook) + "\n"


def store(lab: str, receipt: str) -> None:
    solution = ROOT / "solutions" / lab / f"{lab}.ipynb"
    solution.write_text(handed_in(lab, receipt), encoding="utf-8")
    module = ROOT / "attncourse" / "lab" / f"{lab}.py"
    text = module.read_text(encoding="utf-8")
    module.write_text(RECEIPT.sub(lambda _: receipt, text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lab", nargs="*", help="all if none is given")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quiet", action="store_true", help="keep no core busy")
    parser.add_argument("--store", action="store_true", help="keep the last receipt")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| lab | run | seconds | receipt | asked to measure again | points |")
    print("|" + "---|" * 6)
    for lab in options.lab or [stem for stem in registry.chapters() if stem.startswith("lab")]:
        job = replace(disk.job_of(lab), record=False)
        for number in range(1, options.runs + 1):
            started = time.monotonic()
            with contextlib.nullcontext() if options.quiet else busy_core():
                receipt = measured(lab)
            seconds = time.monotonic() - started
            found = audit.audit(decode(receipt))
            again = sum(finding.severity == audit.AGAIN for finding in found)
            result = grade_bytes(job, handed_in(lab, receipt).encode())["result"]
            verdicts = result["verdicts"].values()
            for each in verdicts:
                if each["report"] and each["failed"]:
                    print(each["report"], receipt, sep="\n\n", file=sys.stderr)
            points = sum(each["visible"] + each["hidden"] for each in verdicts)
            most = 2 * sum(each["points"] for each in verdicts)
            print(
                f"| {lab} | {number} | {seconds:.0f} | {len(receipt):,} bytes | {again} "
                f"| {points:g} of {most:g} |",
                flush=True,
            )
        if options.store:
            store(lab, receipt)


if __name__ == "__main__":
    main()

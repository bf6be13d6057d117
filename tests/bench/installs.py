"""Installed as the world does it: the wheel, in an empty folder, and each command it promises.

    python tests/bench/installs.py {lowest,pinned,newest} [check notebook grade contribute]

With the Python that runs this script. `check` installs no extra, `notebook` and `grade` theirs, and
`contribute`, which is tried with the pinned versions alone, what `make install` does.
`lowest` makes the lower bounds of pyproject.toml exact, all but torch's where --torch says another.
What was seen stands in installs.md, a row for each Python, set of versions and extra.
"""

import argparse
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TABLE = Path(__file__).with_suffix(".md")
PYTHONS = ("3.11", "3.12", "3.13")
VERSIONS = ("lowest", "pinned", "newest")
EXTRAS = {"check": "", "notebook": "[notebook]", "grade": "[grader]", "contribute": "[dev]"}
MATRIX = ("check", "notebook", "grade")  # with all versions; a contributor has the pinned ones
NAME = "03_scaled_dot_product"
SOFTMAX = """import torch


def softmax(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)
"""
NOTEBOOK = """import nbformat, sys
from nbformat.v4 import new_code_cell, new_notebook
text = open("right.py").read() + "\\nfrom attncourse import check\\ncheck(softmax)"
nbformat.write(new_notebook(cells=[new_code_cell(text)]), "mine.ipynb")
"""
HEADER = """# Installed from the wheel

Written by `python tests/bench/installs.py`: the wheel in an environment of its own and a folder
whose name has spaces and other letters, and every command that the extra promises. `check` is the
course without extras, what a student needs; `grade` is a teacher's install, `contribute` what
`make install` does. Size: all packages, of them torch. A torch without `+cpu` is the CUDA build,
which brings 3 to 4 GB of NVIDIA's libraries along. Linux alone was tried. Rows that nobody has run
yet say so.

| Python | versions | extra | commands | packages | MB | of them torch | torch, numpy |
|---|---|---|---|--:|--:|--:|---|
"""


def limits(versions: str, torch: str) -> list[str]:
    """Constraints for pip."""
    if versions == "pinned":
        lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line and line[0] not in " #"]
    found = [f"torch=={torch}"] if torch else []
    if versions == "lowest":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        optional = itertools.chain(*project["optional-dependencies"].values())
        wanted = {*project["dependencies"], *optional}
        others = [each for each in wanted if not each.startswith(("attncourse", "torch"))]
        found += sorted(re.sub(r"\[.*\]", "", each).replace(">=", "==") for each in others)
        found += [] if torch else ["torch==2.10.0"]
    return found


def commands(python: Path, extra: str, folder: Path) -> list[str]:
    """What was tried and is not as it should be."""
    wrong = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["PYTHONIOENCODING"] = "utf-8"  # also on Windows, whose pipes have no ✓

    def attncourse(line: str, code: int = 0, said: str = "", where: Path = folder) -> None:
        command = [python, "-m", "attncourse", *line.split()]
        done = subprocess.run(
            command, cwd=where, env=environment, capture_output=True, encoding="utf-8"
        )
        if done.returncode != code or said not in done.stdout + done.stderr:
            wrong.append(line)
            print(line, done.returncode, done.stdout[-800:], done.stderr[-800:], sep="\n")

    (folder / "right.py").write_text(SOFTMAX)
    (folder / "wrong.py").write_text(
        SOFTMAX.replace("e / e.sum(dim, keepdim=True)", "scores.sigmoid()")
    )
    attncourse("--version", said="attncourse 0")
    attncourse("doctor", said="torch")
    attncourse("check right.py", 1, "✓ softmax: 6 of 6")  # the chapter's other tasks are missing
    attncourse("check wrong.py", 1, "D-SOFTMAX-SIGMOID")
    attncourse("tasks", said="softmax")
    attncourse("hint softmax", said="attncourse hint softmax 2")
    attncourse("new-task entropy", said="entropy_lab.py")
    attncourse("lint-task entropy_lab/entropy_lab.py", said="all told apart")
    if extra == "check":
        attncourse("check --watch right.py", 2, "attncourse[notebook]")
        attncourse("grade", 2, "attncourse[grader]" if os.name != "nt" else "WSL")
        return wrong
    subprocess.run([python, "-c", NOTEBOOK], cwd=folder, check=True)
    attncourse("check mine.ipynb", said="6 of 6 points")
    if extra in ("grade", "contribute"):
        attncourse("new-course course", said="README.md")
        course = folder / "course"
        attncourse(f"release {NAME}", said="exercises/", where=course)
        attncourse(f"sample-class {NAME}", said="24 submissions", where=course)
        attncourse(f"grade {NAME}", where=course)
        attncourse(f"report {NAME}", said="D-", where=course)
        attncourse(f"feedback {NAME}", said="24 pages", where=course)
    return wrong


def row(wheel: Path, versions: str, extra: str, scratch: Path, torch: str) -> str:
    """Install, try, and say it."""
    place = scratch / f"{versions}-{extra}"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (place / "limits.txt").write_text("\n".join(limits(versions, torch)))
    wanted = f"attncourse{EXTRAS[extra]} @ {wheel.as_uri()}"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", place / "limits.txt", wanted]
    subprocess.run(pip, check=True)
    folder = place / "ein Ordner, ü 注意"
    folder.mkdir()
    wrong = commands(python, extra, folder)
    listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True).stdout
    there = dict(re.findall(r"^(\S+) +(\d\S*)", listed, re.MULTILINE))
    size = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(
        subprocess.run([python, "-c", size], capture_output=True, text=True).stdout.strip()
    )
    megabytes = [
        sum(path.stat().st_size for path in top.rglob("*") if path.is_file()) // 10**6
        for top in (packages, packages / "torch")
    ]
    said = f"not as promised: {', '.join(wrong)}" if wrong else "as promised"
    shown = f"{there['torch']}, {there['numpy']}"
    cells = (platform.python_version(), versions, extra, said, len(there) - 1, *megabytes, shown)
    return f"| {' | '.join(map(str, cells))} |"


def keep(line: str) -> None:
    """Write a row into the table, in place of an older one of the same kind."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    kinds = [*itertools.product(PYTHONS, VERSIONS, MATRIX), ("3.11", "pinned", "contribute")]
    rows = {kind: f"| {' | '.join(kind)} | not run | | | | |" for kind in kinds}
    for each in [*re.findall(r"^\| \d.*$", text, re.MULTILINE), line]:
        python, *kind = each.removeprefix("| ").split(" | ")[:3]
        rows[".".join(python.split(".")[:2]), *kind] = each
    TABLE.write_text(HEADER + "\n".join(rows.values()) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", choices=VERSIONS)
    parser.add_argument("extras", nargs="*", choices=[*EXTRAS, []], default=[])  # [] is all
    parser.add_argument("--torch", default="", help="this version, with lowest and newest")
    asked = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        source = scratch / "source"  # pip leaves folders of its own where it builds
        shutil.copytree(
            ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "_build", "build")
        )
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", scratch]
        subprocess.run([*build, source], check=True)
        (wheel,) = scratch.glob("*.whl")
        for extra in asked.extras or MATRIX:
            line = row(wheel, asked.versions, extra, scratch, asked.torch)
            failed |= "not as promised" in line
            print(line, flush=True)
            keep(line)
    sys.exit(failed)


if __name__ == "__main__":
    main()

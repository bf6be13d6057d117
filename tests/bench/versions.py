"""Do the versions that pyproject.toml allows give everybody the same points? Minutes, gigabytes.

    python tests/bench/versions.py lowest newest

Each set of versions gets an environment of its own, in which a made-up class is graded in jails,
and the judge asked about a right and a wrong answer. Points, diagnoses and records must be those
of this environment, the pinned one. What was seen stands in versions.md.
"""

import argparse
import json
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
NAME = "03_scaled_dot_product"
SHOWN = ("torch", "numpy", "einops", "jaxtyping", "matplotlib", "typer", "nbgrader", "nbconvert")
CHECK = """
import torch
from attncourse import run
right = run("softmax", lambda s, dim=-1: torch.exp(s - s.logsumexp(dim, keepdim=True)))
wrong = run("softmax", lambda s, dim=-1: s.exp() / s.exp().sum(dim, keepdim=True))
print(right.earned, wrong.earned, wrong.diagnosis.ids)
"""
HEADER = """# Versions that were tried

Written by `python tests/bench/versions.py`: a made-up class of 24 graded in jails, and a right and
a wrong answer judged, with other versions than the pinned ones. "The same": all points,
misconceptions and cells of records as with the pinned versions.

| versions | Python | class and judge | of them |
|---|---|---|---|
"""


def lowest() -> list[str]:
    """Constraints that make the lower bounds of pyproject.toml exact."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["notebook"], *extras["grader"]]
    return [each.replace(">=", "==") for each in wanted if not each.startswith("attncourse[")]


def environment(versions: str, folder: Path) -> Path:
    """Python of a new environment with the lowest or the newest versions."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(lowest() if versions == "lowest" else []))
    python = folder / "bin" / "python"
    source = folder / "source"  # pip would leave a folder of its own where it builds
    source.mkdir()
    named = ("pyproject.toml", "setup.py", "_config.yml", "nbgrader_config.py", "README.md")
    for name in (*named, "LICENSE", "LICENSE-text"):
        shutil.copy(ROOT / name, source)
    for name in ("attncourse", "solutions", "exercises"):
        shutil.copytree(ROOT / name, source / name)
    install = [python, "-m", "pip", "install", "--quiet", "-c", limits, f"{source}[grader]"]
    subprocess.run(install, check=True)
    return python


def outcome(python: Path, handed_in: Path | None, folder: Path) -> dict:
    """What became of the class and of two answers, with the versions of one environment."""
    for name in ("nbgrader_config.py", "_config.yml"):
        shutil.copy(ROOT / name, folder)
    for name in ("solutions", "exercises"):
        shutil.copytree(ROOT / name, folder / name)
    course = [python, "-m", "attncourse"]
    if handed_in:
        shutil.copytree(handed_in, folder / "submitted")
    else:
        subprocess.run([*course, "sample-class", NAME], cwd=folder, check=True)
    graded = subprocess.run([*course, "grade", NAME], cwd=folder).returncode
    said = subprocess.run([python, "-c", CHECK], cwd=folder, capture_output=True, text=True)
    found = {"exit code": graded, "judge": said.stdout or said.stderr[-300:]}
    for path in sorted(folder.glob("autograded/*/*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        cells = json.loads((path.parent / f"{NAME}.ipynb").read_text(encoding="utf-8"))["cells"]
        points = {
            task: (each["visible"], each["hidden"], each["title"])
            for task, each in result["verdicts"].items()
        }
        found[path.parts[-3]] = points, result["review"], [cell["source"] for cell in cells]
    return found


def installed(python: Path) -> str:
    listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True).stdout
    there = dict(re.findall(r"^(\S+) +(\S+)", listed, re.MULTILINE))
    return ", ".join(f"{name} {there[name]}" for name in SHOWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+", choices=["lowest", "newest"])
    wanted = parser.parse_args().versions
    os.environ["PYTHONSAFEPATH"] = "1"
    rows = dict(re.findall(r"^(\| (\w+) \| [\d.]+ .*)$", _table(), re.MULTILINE))
    rows = {kind: row for row, kind in rows.items()}
    with tempfile.TemporaryDirectory() as scratch:
        (pinned := Path(scratch, "pinned")).mkdir()
        expected = outcome(Path(sys.executable), None, pinned)
        for versions in wanted:
            print(f"installing the {versions} versions", flush=True)
            python = environment(versions, Path(scratch, f"python-{versions}"))
            (folder := Path(scratch, versions)).mkdir()
            got = outcome(python, pinned / "submitted", folder)
            differ = [name for name in expected | got if expected.get(name) != got.get(name)]
            said = f"other: {', '.join(differ)}" if differ else "the same"
            for name in differ[:3]:
                print(name, expected.get(name), got.get(name), sep="\n  ")
            row = f"| {versions} | {platform.python_version()} | {said} | {installed(python)} |"
            rows[versions] = row
            print(row, flush=True)
            TABLE.write_text(HEADER + "\n".join(rows.values()) + "\n", encoding="utf-8")


def _table() -> str:
    return TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""


if __name__ == "__main__":
    main()

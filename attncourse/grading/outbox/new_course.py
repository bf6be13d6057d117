"""A teacher's own course folder: solutions, exercises, configuration, and a page that says how.

What was written is remembered in a file, so that a later version of the course changes only what
the teacher has not changed.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

import attncourse
from attncourse import extras
from attncourse.checks import pages
from attncourse.grading import Refusal
from attncourse.grading.inbox.writing import write
from attncourse.grading.outbox.release import OPEN_IN_COLAB, PublishedPages

PACKAGE = Path(attncourse.__file__).parent
KEPT = ".attncourse.json"  # what was written, by its name: a hash
NEW = ".new"  # the end of the name of a file that stands beside the teacher's own
README = Path(__file__).with_suffix(".md")
# Students' work and grades, rosters, and graders for other platforms.
IGNORED = (
    "submitted/\nautograded/\nfeedback/\n_build/\ngradebook.db*\n.nbgrader.log\n*.csv\n*.zip\n"
)


@dataclass
class Written:
    """What became of the files of a course folder."""

    new: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # by the teacher alone
    deleted: list[str] = field(default_factory=list)  # by the teacher
    differ: list[str] = field(default_factory=list)  # changed by the teacher, and by the course


def _source() -> Path:
    """Where the course's notebooks are: in the wheel, or in the repository."""
    for place in (PACKAGE / "grading" / "course", PACKAGE.parent):
        if (place / "solutions").is_dir() and (place / "nbgrader_config.py").is_file():
            return place
    raise Refusal("this installation has no notebooks of the course; install its wheel again")


def files() -> dict[str, bytes]:
    """The files of a new course folder, by their path in it."""
    import yaml

    source = _source()
    config = yaml.safe_load((source / "_config.yml").read_text(encoding="utf-8"))
    note = "# From there a released notebook installs the course on Colab.\n"
    kept = {"repository": config["repository"]}
    names = sorted(path.name for path in (source / "solutions").iterdir() if path.is_dir())
    package = f"attncourse[grader] @ git+{config['repository']['url']}@v{attncourse.__version__}"
    readme = README.read_text(encoding="utf-8").format(
        title=config["title"],
        version=attncourse.__version__,
        install=f'{extras.CPU_TORCH}\npip install "{package}"',
        assignments=", ".join(f"`{name}`" for name in names),
        page=pages.address("book/teaching"),
        graders=pages.address("book/graders"),
    )
    found = {
        "README.md": readme.encode(),
        ".gitignore": IGNORED.encode(),
        "_config.yml": (note + yaml.safe_dump(kept, sort_keys=False)).encode(),
        "nbgrader_config.py": (source / "nbgrader_config.py").read_bytes(),
    }
    for folder in ("solutions", "exercises"):
        for path in sorted((source / folder).glob("*/*")):
            if path.is_file():
                found[path.relative_to(source).as_posix()] = _elsewhere(path)
    return found


def _elsewhere(path: Path) -> bytes:
    """A file for a folder without the book: its links lead to the published one.

    A notebook there is not the one that the course's link to Colab opens.
    """
    if path.suffix != ".ipynb":
        return path.read_bytes()
    notebook, _ = PublishedPages().preprocess(nbformat.read(path, as_version=4), {})
    notebook.cells[0].source = OPEN_IN_COLAB.sub("", notebook.cells[0].source)
    return (nbformat.writes(notebook) + "\n").encode()


def write_course(folder: Path) -> Written:
    """Write a course folder, or bring what is new into one that was written before.

    Raises:
        Refusal: the folder is something else, or cannot be written.
    """
    notes = folder / KEPT
    if folder.exists() and not (folder.is_dir() and (notes.is_file() or not any(folder.iterdir()))):
        raise Refusal(f"{folder} is there, and no course of this command; give another name")
    try:
        before = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else {}
        return _write(folder, before)
    except (ValueError, AttributeError) as error:
        raise Refusal(f"{notes} cannot be read ({error}); remove it from a copy") from None
    except OSError as error:
        raise Refusal(f"{error.filename}: {error.strerror}") from None


def released(name: str) -> str:
    """The assignment whose release a file is, which `attncourse release` makes again; or ""."""
    folder, _, rest = name.partition("/")
    return rest.partition("/")[0] if folder == "exercises" and name.endswith(".ipynb") else ""


def _write(folder: Path, before: dict[str, str]) -> Written:
    done, hashes = Written(), {}
    write(folder / KEPT, json.dumps(before, indent=1).encode())  # so that a stopped run goes on
    for name, data in files().items():
        path, hashes[name] = folder / name, _hash(data)
        theirs = _hash(path.read_bytes()) if path.is_file() else None
        if theirs is None and name not in before:
            write(path, data)
            done.new.append(name)
        elif theirs is None:
            done.deleted.append(name)
        elif theirs == hashes[name]:
            done.same.append(name)
        elif theirs == before.get(name):
            write(path, data)
            done.updated.append(name)
        elif before.get(name) != hashes[name]:
            if not released(name):
                write(path.with_name(path.name + NEW), data)
            done.differ.append(name)
        elif path.with_name(path.name + NEW).is_file():  # from an earlier run
            done.differ.append(name)
        else:
            done.changed.append(name)
    write(folder / KEPT, json.dumps(hashes, indent=1).encode())
    return done


def _hash(data: bytes) -> str:
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()

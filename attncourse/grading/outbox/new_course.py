"""A teacher's own course folder: solutions, exercises, configuration, and a page that says how.

What was written is remembered in a file, so that a later version of the course changes only what
the teacher has not changed.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import attncourse
from attncourse import extras
from attncourse.grading import Refusal
from attncourse.grading.inbox.writing import write

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
    kept = {key: config[key] for key in ("title", "repository", "launch_buttons")}
    kept["html"] = {"baseurl": config["html"]["baseurl"]}
    note = "# Links of released notebooks: to the book, to Colab, and where Colab installs from.\n"
    names = sorted(path.name for path in (source / "solutions").iterdir() if path.is_dir())
    package = f"attncourse[grader] @ git+{config['repository']['url']}@v{attncourse.__version__}"
    readme = README.read_text(encoding="utf-8").format(
        title=config["title"],
        version=attncourse.__version__,
        install=f'{extras.CPU_TORCH}\npip install "{package}"',
        assignments=", ".join(f"`{name}`" for name in names),
        page=f"{config['html']['baseurl']}/book/teaching.html",
    )
    found = {
        "README.md": readme.encode(),
        ".gitignore": IGNORED.encode(),
        "_config.yml": (note + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)).encode(),
        "nbgrader_config.py": (source / "nbgrader_config.py").read_bytes(),
    }
    for folder in ("solutions", "exercises"):
        for path in sorted((source / folder).glob("*/*")):
            if path.is_file():
                found[path.relative_to(source).as_posix()] = path.read_bytes()
    return found


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


def _write(folder: Path, before: dict[str, str]) -> Written:
    done, hashes = Written(), {}
    write(folder / KEPT, json.dumps(before, indent=1).encode())  # so that a stopped run goes on
    for name, data in files().items():
        path, hashes[name] = folder / name, _hash(data)
        theirs = _hash(path.read_bytes()) if path.is_file() else None
        if theirs is None and name not in before:
            write(path, data)
            done.new.append(name)
        elif theirs in (hashes[name], None) or before.get(name) == hashes[name]:
            done.same.append(name)  # as it is here, taken away, or changed by the teacher alone
        elif theirs == before.get(name):
            write(path, data)
            done.updated.append(name)
        else:
            write(path.with_name(path.name + NEW), data)
            done.differ.append(name)
    write(folder / KEPT, json.dumps(hashes, indent=1).encode())
    return done


def _hash(data: bytes) -> str:
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()

"""A grader for a platform that teachers already have, as one zip in the layout that it documents.

It holds the assignment's solution and release, this very package as a wheel, and the versions of
all that is installed here, so that the platform's points are those of `attncourse grade`. What
runs there is `hosted`; each platform's own files are in layouts/.
"""

import base64
import hashlib
import io
import platform
import uuid
import zipfile
from importlib import metadata
from pathlib import Path

import attncourse
from attncourse.checks import installed
from attncourse.grading import Refusal
from attncourse.grading.books import disk
from attncourse.grading.outbox.release import configuration

PACKAGE = Path(attncourse.__file__).parent
LAYOUTS = Path(__file__).parent / "layouts"
MADE = b"made by attncourse export-grader"  # the comment of the zip
RUN = ("setup.sh", "run_autograder", "run.sh")  # these are programs
NOT_IN_WHEEL = PACKAGE / "grading" / "course"  # the solutions of all assignments


def grader(assignment: str, to: str) -> bytes:
    """A zip with a grader of one assignment.

    Args:
        to: the name of a platform.

    Raises:
        Refusal: the assignment is not released, or this installation cannot be packed.
    """
    job = disk.job_of(assignment, record=False)
    course = {
        f"{folder}/{assignment}/{assignment}.ipynb": text.encode()
        for folder, text in (("solutions", job.solution), ("exercises", job.released))
    }
    config = configuration()
    address = config["repository"]["url"]
    facts = {
        "name": assignment,
        "title": assignment.lstrip("0123456789_").replace("_", " ").capitalize(),
        "version": attncourse.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": metadata.version("torch").partition("+")[0],
        "uuid": uuid.uuid5(uuid.NAMESPACE_URL, f"{address}#{assignment}"),
    }

    def layout(file: str, **more: object) -> bytes:
        text = (LAYOUTS / file).read_text(encoding="utf-8")
        return text.format(**facts, **more).encode()

    exercise = {f"{assignment}.ipynb": job.released.encode()}
    match to:
        case "gradescope":
            own = {"run_autograder": layout("run_autograder")}
            files = own | environment(layout("setup.sh")) | course
        case "prairielearn":
            own = {name: layout(name) for name in ("info.json", "question.html")}
            own |= _in("clientFilesQuestion", exercise)
            own |= _in("tests", {"run.sh": layout("run.sh")} | course)
            image = {"Dockerfile": layout("Dockerfile")} | environment(layout("setup.sh"))
            files = _in(f"questions/{assignment}", own) | _in("image", image)
        case "github-classroom":
            template = {".github/workflows/classroom.yml": layout("classroom.yml")} | exercise
            files = _in("template", template)
            files |= _in("grader", environment(layout("setup.sh")) | course)
        case "otter":
            package = f"attncourse[notebook] @ git+{address}@v{attncourse.__version__}\n"
            tests = {
                f"{each.task}.py": layout("otter_test.txt", task=each.task, points=each.points)
                for each in job.about.graded
            }
            own = {"otter_config.json": layout("otter_config.json")}
            files = own | {"requirements.txt": package.encode()} | _in("tests", tests) | course
    return _zip(files)


def _in(folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


def environment(setup: bytes) -> dict[str, bytes]:
    """What setup.sh needs: this package, and the versions of all that is installed here."""
    name, wheel = this_package()
    outside = {point.dist for point in installed.entry_points() if point.dist}
    wanted = [f"./{name}[notebook]", *sorted(f"{each.name}=={each.version}" for each in outside)]
    here = [each for each in metadata.distributions() if each.name not in (None, "attncourse")]
    pins = sorted({f"{each.name}=={each.version.partition('+')[0]}" for each in here})
    lists = {"requirements.txt": wanted, "constraints.txt": pins}
    found = {"setup.sh": setup, name: wheel}
    return found | {file: ("\n".join(lines) + "\n").encode() for file, lines in lists.items()}


def this_package() -> tuple[str, bytes]:
    """The name and the bytes of a wheel of this package, whichever way it was installed."""
    try:
        about = metadata.distribution("attncourse")
    except metadata.PackageNotFoundError:
        raise Refusal("attncourse is not installed, only found; install it with pip") from None
    stem = f"attncourse-{about.version}"
    info = f"{stem}.dist-info"
    files = {
        path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and NOT_IN_WHEEL not in path.parents
    }
    form = "Wheel-Version: 1.0\nGenerator: attncourse\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = form.encode()
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (about.read_text(name) or "").encode()
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    return f"{stem}-py3-none-any.whl", _zip(files)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _zip(files: dict[str, bytes]) -> bytes:
    """The same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if name.rpartition("/")[2] in RUN else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)
        archive.comment = MADE
    return packed.getvalue()


def is_grader(data: bytes) -> bool:
    """Whether a file is the output of an earlier day, which may be replaced."""
    return data.endswith(MADE)

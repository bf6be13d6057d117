"""`nbgrader autograde`, with the points and the walls of `attncourse grade`.

nbgrader reads a submission, runs it in a kernel beside the gradebook, and believes what it prints.
This exporter takes the place of all three: the file's bytes go to a worker process, a jailed child
of which runs the answers; results, record and points are written by the same code as in a class
run. nbgrader's formgrader, feedback and export find everything where they expect it.
"""

import contextlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from nbconvert.exporters import NotebookExporter
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from traitlets import Bool

from attncourse.grading import CannotGrade, Refusal
from attncourse.grading.books import disk, nbgrader_api, run
from attncourse.grading.books.generate import NotReleased
from attncourse.grading.books.gradebook import Writer
from attncourse.grading.books.nbgrader_api import NoGradebook
from attncourse.grading.inbox.senders import timestamp_of
from attncourse.grading.inbox.submission import OtherPoints
from attncourse.grading.jail import workers
from attncourse.grading.jail.cures import cure_for
from attncourse.grading.jail.job import Job
from attncourse.grading.jail.walls import Unavailable

warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader")  # not made for SQLAlchemy 2.1
# nbgrader 0.9.6 stops over a timestamp that it cannot read; that is no reason not to grade.
CourseDirectory.get_existing_timestamp = lambda self, folder: timestamp_of(Path(folder))


def under_its_name(assignment: str, student: str, notebooks: list[str]) -> None:
    """Hook: nbgrader passes over a notebook that was renamed; grading finds it."""
    notebooks[:] = [str(Path(notebooks[0]).with_name(f"{assignment}.ipynb"))]


class Keeping(Autograde):
    """nbgrader's converter, which takes away what a student had before it grades.

    Here all of it lies beside until the student is graded, and comes back if that fails, or at
    the next try if this process was killed and nobody has graded the student since.
    """

    _folder: Path | None = None  # in autograded/, of the student that is being graded

    def convert_notebooks(self) -> None:
        try:
            super().convert_notebooks()
        finally:
            self._settle()

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        self._settle()
        folder = Path(self._format_dest(assignment_id, student_id))
        try:
            _put_back(folder)
            if self._is_wanted(folder, Path(self._format_source(assignment_id, student_id))):
                _put_aside(folder)
                self._folder = folder
        except OSError as error:
            self.log.error("%s cannot be put aside: %s; it is as it was", folder, error.strerror)
            raise SystemExit(1) from None  # after any other error nbgrader takes it away
        wanted = super().init_destination(assignment_id, student_id)
        if not wanted:
            self._settle()
        return wanted

    def _is_wanted(self, folder: Path, source: Path) -> bool:
        """Whether nbgrader will grade: then it takes away what is there."""
        there = folder if self.coursedir.notebook_id == "*" else folder / f"{folder.name}.ipynb"
        new, old = timestamp_of(source), timestamp_of(folder)
        later = new is not None and old is not None and new > old
        return self.force or later or not there.exists()

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        # nbgrader books zeros for a notebook that was renamed; grading finds it.
        with self._submission(assignment_id, student_id) as (submission, grades):
            when = submission and submission.timestamp
            was = [(grade.auto_score, grade.needs_manual_grade) for grade in grades]
        super().init_assignment(assignment_id, student_id)
        with self._submission(assignment_id, student_id) as (submission, grades):
            submission.timestamp = when
            for grade, (score, look) in zip(grades, was, strict=False):  # none, of a new one
                grade.auto_score, grade.needs_manual_grade = score, look

    @contextlib.contextmanager
    def _submission(self, assignment_id: str, student_id: str) -> Iterator[tuple]:
        """What the gradebook has of a student, and the grades in it; what is changed is booked."""
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
            try:
                found = book.find_submission(assignment_id, student_id)
            except MissingEntry:
                yield None, []
            else:
                grades = [grade for notebook in found.notebooks for grade in notebook.grades]
                yield found, sorted(grades, key=lambda grade: grade.id)
                book.db.commit()

    def run_post_convert_hook(self) -> None:
        super().run_post_convert_hook()
        self._let_go()

    def _let_go(self) -> None:
        """What was before is not needed any more."""
        _remove_before(self._folder)
        self._folder = None

    def _settle(self) -> None:
        if self._folder:
            _put_back(self._folder)
            self._folder = None


def before(folder: Path) -> Path:
    """Where a student's folder in autograded/ lies while it is made anew."""
    return folder.with_name(f".{folder.name}.before")


def _put_aside(folder: Path) -> None:
    """In one step, which needs no room on the disk."""
    if folder.is_dir():
        folder.rename(before(folder))
    else:
        before(folder).mkdir(parents=True)


def _put_back(folder: Path) -> None:
    kept = before(folder)
    shutil.rmtree(_gone(folder), ignore_errors=True)  # of a process that was killed there
    if not kept.is_dir():
        return
    if _is_graded_since(folder):
        for path in kept.iterdir():  # as if it had been there: notes of a person, for example
            judged = path.name in (disk.RESULT, f"{folder.name}.ipynb")
            if not (judged or (folder / path.name).exists()):
                path.rename(folder / path.name)
        _remove_before(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        if any(kept.iterdir()):
            kept.rename(folder)
        else:
            kept.rmdir()


def _is_graded_since(folder: Path) -> bool:
    """Whether the gradebook has a result that is not the copy of the one that was put aside."""
    stored = disk.load_result(folder / disk.RESULT)
    if not (stored and stored.booked):
        return False
    earlier = before(folder) / disk.RESULT
    return not earlier.is_file() or earlier.read_bytes() != (folder / disk.RESULT).read_bytes()


def _remove_before(folder: Path) -> None:
    """Under another name, as half of it would come back, too."""
    gone = before(folder).rename(_gone(folder))
    shutil.rmtree(gone, ignore_errors=True)  # what stays is removed the next time


def _gone(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.gone")


class JailedExporter(NotebookExporter):
    """Turns a submission into the record of its grading."""

    jailed = Bool(
        True,
        help="Grade in jails. Without, students' code runs as you, able to do what you can.",
    ).tag(config=True)

    def __init__(self, **options):
        super().__init__(**options)
        if isinstance(self.parent, Autograde):
            self.parent.__class__ = Keeping  # nbgrader makes its converters by itself
            self._release(self.parent.coursedir)

    def _release(self, course: CourseDirectory) -> None:
        """Tell a new gradebook what is in exercises/; nbgrader would stop, as nobody did."""
        with contextlib.chdir(course.root), contextlib.suppress(FileNotFoundError):
            self._use(course.db_url)
            try:
                with Writer(disk.job_of(course.assignment_id).about):
                    pass
            except OtherPoints as error:
                self.log.error("%s", error)
                raise SystemExit(1) from None  # no student's points would be right
            except (NotReleased, NoGradebook) as error:
                self.log.error("%s is not in the gradebook: %s", course.assignment_id, error)

    def _use(self, db_url: str) -> None:
        """The command line may name another gradebook than the configuration."""
        logging.disable()  # nbgrader complains if there is no exchange; none is needed
        try:
            nbgrader_api.api().coursedir.db_url = db_url
        finally:
            logging.disable(logging.NOTSET)

    def from_filename(self, filename, resources=None, **_):
        about = resources["nbgrader"]
        folder = Path(filename).parent
        record = disk.record_path(about["assignment"], about["student"])
        if folder.resolve() != record.parent.resolve():  # else nbgrader's second pass: all is done
            self._grade(about, folder)
        resources["output_extension"] = self.file_extension
        return record.read_text(encoding="utf-8"), resources

    def _grade(self, about: dict, folder: Path) -> None:
        self._use(about["db_url"])
        for path in (disk.record_path, disk.result_path):
            earlier = path(about["assignment"], about["student"])
            earlier.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # it tells what a person has read
                shutil.copy2(before(earlier.parent) / earlier.name, earlier)
        try:
            job = disk.job_of(about["assignment"], self.jailed)
            handed_in = {about["student"]: folder}
            for event in run.grade_class(job, handed_in, _one_by_one, force=True):
                if event.result is None:  # nbgrader goes on with the next student
                    raise Refusal(f"{event.student} is not graded: {event.why}")
                self.log.info("%s: %g points", event.student, event.result.score)
                for reason in event.result.review:
                    self.log.warning("Look at %s: %s", event.student, reason)
        except (Unavailable, CannotGrade) as error:
            what = "No jail can be built" if isinstance(error, Unavailable) else "Nobody is graded"
            cure = cure_for(str(error)).replace("--no-jail", "--JailedExporter.jailed=False")
            self.log.error("%s on this machine: %s. %s", what, error, cure)
            raise SystemExit(1) from None  # of all students, not of this one


def _one_by_one(job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
    """In a process that stays warm: a formgrader asks again and again."""
    for student, path in notebooks.items():
        try:
            data = path.read_bytes()
        except OSError as error:
            yield student, f"the file cannot be read: {error.strerror}"
        else:
            yield student, workers.in_own_process(job, data)

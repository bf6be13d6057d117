"""nbgrader: the instructor's notebooks are in solutions/, the students' in exercises/."""

from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

c = get_config()  # noqa: F821  nbgrader gives it

c.CourseDirectory.course_id = "attncourse"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A stub that does nothing: left above an answer by mistake, it costs no points.
c.ClearSolutions.code_stub = {"python": "...  # your code here"}
c.ClearSolutions.text_stub = "*Your answer here.*"
c.GenerateAssignment.preprocessors = [
    "attncourse.grading.outbox.release.TaskFacts",  # points, before nbgrader books them
    *GenerateAssignment.class_traits()["preprocessors"].default(),
    "attncourse.grading.outbox.release.PublishedPages",
    "attncourse.grading.outbox.release.ColabBootstrap",
]

# Submissions are graded in jails, by the judge of `attncourse grade`; no kernel runs them.
c.Autograde.exporter_class = "attncourse.grading.books.autograde.JailedExporter"
c.Autograde.pre_convert_hook = "attncourse.grading.books.autograde.under_its_name"
c.Autograde.sanitize_preprocessors = c.Autograde.autograde_preprocessors = []
c.CourseDirectory.ignore = [
    *CourseDirectory.class_traits()["ignore"].default(),
    "*.ipynb.[0-9]*",  # earlier submissions
    "result.json",  # what the judge says, for instructors
]

# The Formgrader shows the rubric of a written answer beside its points.
c.HTMLExporter.preprocessors = ["attncourse.grading.books.rubric.Rubrics"]

# For `nbgrader validate`
c.Execute.timeout = 120
c.Execute.interrupt_on_timeout = True
c.Execute.shutdown_kernel = "immediate"  # a second less per submission
c.Execute.kernel_name = "python3"
# Kernels warn on stderr that TCP on this machine is not encrypted; it never leaves the machine.
c.Execute.extra_arguments = ["--Application.log_level=ERROR"]

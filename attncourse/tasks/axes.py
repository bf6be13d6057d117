"""A number of axes that an answer takes for granted."""

from attncourse.checks.task import Task


def _fails_unless(number: int, error: type[Exception]):
    def axes(x):
        if x.ndim != number:
            raise error(f"{number} axes are expected")
        return x

    return axes


def of_fixed_axes(task: Task, *numbers: int, errors=(ValueError, RuntimeError)) -> None:
    """A fault of the step `axes` (x -> x): so many are unpacked, or named in a pattern.

    Args:
        numbers: of axes that an answer may expect.
        errors: of `b, n, d = x.shape`, and of a pattern for einops or einsum.
    """
    steps = tuple(_fails_unless(number, error) for number in numbers for error in errors)
    task.fault("C-FIXED-AXES", axes=steps)

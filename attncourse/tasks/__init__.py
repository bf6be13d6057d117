"""The tasks of the course, one folder a chapter or lab, one file a task."""


def as_is(x, *_):
    """In place of a step, for who leaves it out."""
    return x

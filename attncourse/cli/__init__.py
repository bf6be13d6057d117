"""The command `attncourse`: a student's check and hints, an instructor's release and grading."""

from attncourse.cli import student, inspect, teacher, doctor  # noqa: F401, I001  (commands, in this order)
from attncourse.cli.app import app

__all__ = ["app"]

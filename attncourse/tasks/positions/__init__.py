"""Chapter 8: its tasks."""

from attncourse.checks.task import Chapter

chapter = Chapter("08_positions", "chapter 8")

"""Chapter 11: its tasks."""

from attncourse.checks.task import Chapter

chapter = Chapter("11_long_sequences", "chapter 11")

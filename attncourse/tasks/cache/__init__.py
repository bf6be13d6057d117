"""Chapter 10: its tasks."""

from attncourse.checks.task import Chapter

chapter = Chapter("10_cache", "chapter 10")

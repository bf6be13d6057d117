"""Chapter 13: its tasks."""

from attncourse.checks.task import Chapter

chapter = Chapter("13_pictures", "chapter 13")

"""Chapter 4: what its tasks share."""

from attncourse.checks.task import Chapter

chapter = Chapter("04_self_attention", "chapter 4")

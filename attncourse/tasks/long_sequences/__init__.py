"""Chapter 11: what its tasks share."""

from attncourse.checks.answer import Failure, Unanswered
from attncourse.checks.task import Chapter

chapter = Chapter("11_long_sequences", "chapter 11")


def looked_at(answer, inputs, *, adapt):
    """What another look at the answer shows, or a Failure that says why there is nothing."""
    seen = answer.observe(inputs, adapt=adapt)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        where = f" ({seen.error_line})" if seen.error_line else ""
        raise Failure(f"Your answer {seen.error}{where}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned

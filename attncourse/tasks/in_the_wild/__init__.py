"""Chapter 14: what its tasks share. Three are tests; a test is judged by what it says of others."""

import math

from torch import Tensor

from attncourse.checks.answer import Failure, Unanswered
from attncourse.checks.task import Chapter

chapter = Chapter("14_in_the_wild", "chapter 14")

# Implementations that every test is shown, besides those of its task.
RAISES = "an AssertionError inside the implementation"
GARBAGE = {"NaN everywhere": math.nan, "7 everywhere": 7.0, "−3 everywhere": -3.0}
OTHER_SHAPE = "an axis more"


def noted(implementation):
    """An implementation as a test gets it, its calls, and the errors that it raises.

    A plain function: which one it is, no attribute says.
    """
    calls, errors = [], []

    def tried(*arguments, **named):
        calls.append((arguments, named))
        try:
            return implementation(*arguments, **named)
        except Exception as error:
            errors.append(error)
            raise

    return tried, calls, errors


def is_empty(test) -> bool:
    """Whether nothing is written there yet: the body names nothing."""
    code = getattr(test, "__code__", None)
    return code is not None and not code.co_names


def verdict(test, implementation) -> bool | None:
    """Whether a test refuses an implementation; None of an empty one.

    An error that the implementation itself raised, and the test let through, refuses it, too.
    """
    tried, calls, errors = noted(implementation)
    try:
        test(tried)
    except AssertionError:
        return True
    except Exception as error:
        if any(error is each for each in errors):
            return True
        raise
    return None if not calls and is_empty(test) else False


def facts(test, implementation, meets) -> dict:
    """What a test does with an implementation, as a table of facts.

    Args:
        meets: whether the arguments of a call are a case that the test is about.
    """
    tried, calls, errors = noted(implementation)
    returned, refused, said = None, False, ""
    try:
        returned = test(tried)
    except Exception as error:
        theirs = any(error is each for each in errors)
        refused = theirs or isinstance(error, AssertionError)
        said = f"{type(error).__name__}: {error}"[:200]
    return {
        "refused": refused,
        "said": said,
        "calls": len(calls),
        "meets": any(_fits(meets, *call) for call in calls),
        "returned": _told(returned),
    }


def _told(returned: object) -> str:
    """What somebody could read from what a test returns."""
    if isinstance(returned, Tensor) and returned.numel() == 1:
        returned = returned.item()
    return repr(returned)[:100] if isinstance(returned, bool | str | int) else ""


def _fits(meets, arguments, named) -> bool:
    try:
        return bool(meets(*arguments, **named))
    except Exception:  # arguments that nobody expects
        return False


def of(implementation: str) -> dict:
    return {"implementation": implementation}


def refuses(answer, implementation: str, **options) -> bool:
    """The verdict of a test, or a Failure that says why there is none."""
    try:
        return answer(of(implementation), **options)
    except Unanswered:
        raise Unanswered("Your test calls nothing yet.") from None


def refuses_all(answer, seen, *implementations: str, why: str) -> None:
    """Assert that a test refuses each of these.

    Args:
        seen: the `adapt` of the task that gives `facts`.
        why: what is wrong with them, as a sentence.
    """
    for each in implementations:
        if refuses(answer, each):
            continue
        told = answer.returned(of(each), seen)["returned"]
        more = f" It returns {told}, which nobody reads." if told else ""
        raise Failure(
            f"Your test accepts this implementation: {each}. {why}{more}", of(each), True, False
        )


def accepts_all(answer, seen, *implementations: str) -> None:
    """Assert that a test accepts each of these, which are right; the first, whatever it draws."""
    for each in implementations:
        if refuses(answer, each):
            said = answer.returned(of(each), seen)["said"].rstrip(": ")  # nothing follows the colon
            raise Failure(
                f"Your test refuses an implementation that is right: {each}. It ends with {said}",
                of(each),
                False,
                True,
            )
    first = implementations[0]
    refused = sum(refuses(answer, first, seed=seed) for seed in SEEDS)
    if refused:
        raise Failure(
            f"Your test refuses an implementation that is right: {first}. Run {len(SEEDS)} times, "
            f"it does so {refused} times.",
            of(first),
            False,
            True,
        )


SEEDS = range(1, 17)


def needs_luck(answer, *implementations: str) -> bool:
    """Whether the verdict on one of these is not always the same."""
    return any(len({answer(of(each), seed=seed) for seed in SEEDS}) > 1 for each in implementations)


def decides_alike(answer, *implementations: str) -> None:
    for each in implementations:
        said = [refuses(answer, each, seed=seed) for seed in SEEDS]
        if len(set(said)) > 1:
            raise Failure(
                f"Run {len(said)} times on one implementation ({each}), your test refuses it "
                f"{sum(said)} times and accepts it {len(said) - sum(said)} times. What it draws "
                "at random has to hold the case each time, or be drawn from a fixed seed.",
                of(each),
            )


TO_THE_BIT, ROUNDED = "{}, with no bit otherwise", "{}, with other last bits"


def is_exact(answer, seen, styles) -> bool:
    """Whether a test accepts a right implementation and refuses the same one rounded otherwise."""
    return any(
        answer.returned(of(ROUNDED.format(style)), seen)["refused"]
        and not answer.returned(of(TO_THE_BIT.format(style)), seen)["refused"]
        for style in styles
    )


def traits(answer, seen, right: str, wrong: str) -> dict[str, bool]:
    """What a test does besides its verdicts; nothing of this is true of a good one."""
    one, other = (answer.returned(of(each), seen) for each in (right, wrong))
    calls = one["calls"] > 0
    numbers = calls and not any(answer.returned(of(each), seen)["refused"] for each in GARBAGE)
    shape = answer.returned(of(OTHER_SHAPE), seen)["refused"]
    prints = answer.observe(of(right)).printed != answer.observe(of(wrong)).printed
    return {
        "never calls it": not calls,
        "never meets the case": calls and not one["meets"],
        "says it by its result": one["returned"] != other["returned"] or prints,
        "keeps errors for itself": calls and not answer.returned(of(RAISES), seen)["refused"],
        "refuses no numbers": numbers and not shape,
        "refuses shapes alone": numbers and shape,
        "depends on luck": needs_luck(answer, right, wrong),
    }

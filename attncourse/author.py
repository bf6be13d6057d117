"""Write a task of your own, in a package of your own.

    from attncourse.author import task

    @task(inputs=[{"weights": torch.tensor([0.5, 0.5])}, …], hints=("…", "…", "…"))
    def entropy(weights):
        return torch.special.entr(weights).sum(-1)

    @entropy.fault("E-NAN", "0 · log 0 is 0.", "log 0 is minus infinity, and 0 times that is NaN.")
    def _(weights):
        return -(weights * weights.log()).sum(-1)

Register the module as an entry point of the group `attncourse.tasks`. Then the task is judged,
hinted, released and graded like the course's own. `attncourse new-task` writes such a package, and
`attncourse lint-task` says what is wrong with it. The book has a page on it: "Write your own task".
"""

from collections.abc import Callable

import torch
from torch import Tensor

from attncourse.checks.answer import Answer, Failure, Inputs, compare, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.task import Chapter, Mistake, Task, Thought

__all__ = [
    "Answer",
    "Chapter",
    "Failure",
    "Task",
    "Thought",
    "causal",
    "compare",
    "dead_mask",
    "integers",
    "mixed_mask",
    "moves_nothing",
    "normal",
    "task",
]


def task(inputs: list[Inputs] | Callable[[torch.Generator], list[Inputs]], **about) -> Callable:
    """Decorator: make a task of a reference function.

    It gets a check for each of the inputs, worth one point ("it is right on input 1"), and one
    that nothing else changes; `@name.check(points)` adds others.

    Args:
        inputs: at least two sets of arguments, by name, on which wrong answers tell themselves
            apart; or a function that draws them, which gives every student fresh numbers.
        about: what else there is to say, as in `Task`: hints, returns, section, difficulty,
            minutes, forbidden, tolerance, …

    Raises:
        Mistake: the reference cannot be called with them, or there is only one set.
    """

    def make(reference: Callable) -> Task:
        def drawn(rng: torch.Generator) -> list[Inputs]:
            return inputs(rng) if callable(inputs) else inputs

        first = drawn(torch.Generator().manual_seed(0))
        if len(first) < 2:
            raise Mistake(f"{reference.__name__}: give at least two sets of inputs")
        returned = _returned(reference, first[0])
        names = [f"input {number}" for number in range(1, len(first) + 1)]
        about.setdefault("returns", _returns(returned))
        if isinstance(about["returns"], tuple):
            about.setdefault("differentiated", tuple(names))
        made = Task(
            reference,
            probes=lambda rng: dict(zip(names, drawn(rng), strict=True)),
            small=lambda rng: iter(sorted(drawn(rng), key=_size)),
            **about,
        )
        for place, name in enumerate(names):
            made.check(1)(_right_on(place, name, drawn))
        made.check(1)(_nothing_else(drawn))
        return made

    return make


def _returned(reference: Callable, inputs: Inputs) -> object:
    try:
        return reference(**inputs)
    except Exception as error:
        raise Mistake(
            f"{reference.__name__}: the reference fails on its first inputs "
            f"({type(error).__name__}: {error})"
        ) from error


def _returns(value: object) -> tuple[str, ...] | type:
    """What an answer returns, as `Task` says it."""
    if isinstance(value, Tensor):
        return ("result",)
    if isinstance(value, tuple):
        return tuple(f"result {number}" for number in range(1, len(value) + 1))
    return type(value)


def _size(inputs: Inputs) -> int:
    return sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))


def _right_on(place: int, name: str, drawn: Callable) -> Callable:
    def check(answer: Answer, rng: torch.Generator) -> None:
        answer.matches(drawn(rng)[place])

    check.__name__ = f"it is right on {name}"
    return check


def _nothing_else(drawn: Callable) -> Callable:
    def it_changes_nothing_but_its_result(answer: Answer, rng: torch.Generator) -> None:
        moves_nothing(answer, drawn(rng)[0])

    return it_changes_nothing_but_its_result

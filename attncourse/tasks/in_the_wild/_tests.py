"""A test in steps, and what students misunderstand in every test."""

import contextlib

from attncourse.checks.task import Task
from attncourse.tasks import in_the_wild as shared


class Testing:
    """A test of an implementation, case by case; a task's own class says `cases` and `holds`."""

    def demand(self, holds):
        assert holds

    def __call__(self, implementation):
        for case in self.cases():
            self.demand(self.holds(implementation, case))


def traits_of(answer, seen, right: str, wrong: str) -> dict[str, bool]:
    """What a test does besides its verdicts; one that refuses at once need not meet the case."""
    found = shared.traits(answer, seen, right, wrong)
    refused = answer.returned(shared.of(right), seen)["refused"]
    return found | {"never meets the case": found["never meets the case"] and not refused}


class Failed(BaseException):
    """As `pytest.fail` raises it."""


def raising(error):
    def demand(holds):
        if not holds:
            raise error("the implementation is wrong")

    return demand


def forgotten(holds):
    return holds, "the implementation is wrong"


def of_every_test(task: Task, wrong, right, **about) -> None:
    """Faults of the step `demand`, and of a whole test.

    Args:
        wrong: the implementation with the defect, as the notebook shows it.
        right: one without it.
        about: of each fault, such as the section to read again.
    """
    task.fault("T-NOTHING-ASSERTED", **about, demand=forgotten)
    task.fault(
        "T-OTHER-ERROR",
        **about,
        demand=(raising(ValueError), raising(RuntimeError), raising(Failed)),
    )
    # Whole answers: nothing else of such a test can be seen.
    of_another = task.fault("T-NOT-THE-ARGUMENT", **about)
    of_another(lambda implementation: task.composed()(wrong))
    of_another(lambda implementation: task.composed()(right))

    @task.fault("T-UPSIDE-DOWN", **about)
    class UpsideDown(task.composed):
        def demand(self, holds):
            assert not holds

    @task.fault("T-KEEPS-ERRORS", **about)
    class KeepsErrors(task.composed):
        def __call__(self, implementation):
            try:  # noqa: SIM105, as students write it
                super().__call__(implementation)
            except Exception:
                pass

    says = task.fault("T-SAYS-IT", **about)

    @says
    class Returns(task.composed):
        def __call__(self, implementation):
            return all([self.holds(implementation, case) for case in self.cases()])

    @says
    class Prints(task.composed):
        def __call__(self, implementation):
            for case in self.cases():
                print("right" if self.holds(implementation, case) else "wrong!")


def of_refusing_all(task: Task) -> None:
    """A whole answer, for a task that has no other fault which looks the same."""

    @task.fault("T-REFUSES-ALL")
    def refuses_all(implementation):
        with contextlib.suppress(Exception):
            task.composed()(implementation)
        raise AssertionError

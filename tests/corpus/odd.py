"""Wrong answers that nobody wrote, with more mistakes than have names together."""

import itertools
import random
from collections.abc import Callable, Iterator

from attncourse.checks import generic
from attncourse.checks.task import Task, answer_of, changed, compose, is_change

TRIES = 40


def odd_answers(task: Task, seed: int = 0) -> Iterator[Callable]:
    """Without end: three faults in different steps, or one, and two slips in what is returned.

    Here "What we saw" speaks, and a name is told of a part if at all.
    """
    rng = random.Random(f"{task.name} {seed}")
    forms = [form for fault in task.faults.values() for form in fault.forms]
    changes = [form for form in forms if is_change(task, form)]
    outward = [each for each in generic.of(task) if each.outward and not each.alone]
    while True:
        for _ in range(TRIES if len(changes) > 2 else 0):
            three = rng.sample(changes, 3)
            if all(not changed(a) & changed(b) for a, b in itertools.combinations(three, 2)):
                yield compose(task, *three)
                break
        else:
            answer = answer_of(task, rng.choice(forms))
            for each in rng.sample(outward, min(2, len(outward))):
                answer = each.around(task, answer)
            yield answer

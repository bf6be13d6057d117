"""Whether what the judge says is true: for a person who reads it.

    python tests/bench/truth.py reports [--each N] [TASK ...]
    python tests/bench/truth.py forms [TASK ...]

`reports` prints reports on answers that no single name explains (see `odd_answers`).
`forms` prints the sentences of each fault whose forms do not return the same, with what each form
does on the smallest input on which it differs from the first: is the sentence true of it, too?
"""

import argparse
import inspect
import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from corpus.odd import odd_answers

from attncourse.checks import registry, report, run
from attncourse.checks.diagnosis import Example, failure_on_a_probe
from attncourse.checks.explain import Evidence
from attncourse.checks.fingerprint import Fingerprint, differing, of_reference, outputs
from attncourse.checks.task import Task, answer_of


def reports(task: Task, each: int) -> None:
    for answer in itertools.islice(odd_answers(task), each):
        print(run(task.name, answer), end=f"\n\n{'-' * 90}\n\n")


def forms(task: Task) -> None:
    """The faults of which a form differs from the first beyond what other forms do."""
    reference = of_reference(task).everything()
    for fault in task.faults.values():
        shown = [Fingerprint(task, answer_of(task, form)).everything() for form in fault.forms]
        others = []
        for form, shows in zip(fault.forms[1:], shown[1:], strict=True):
            off = {key for key in differing(shows, shown[0], reference.pieces)}
            if any(key[1] in outputs(task) for key in off):
                others.append((form, shows, off))
        if not others:
            continue
        print(f"{task.name} {fault.id}: {fault.thinks}\n  > {fault.why}")
        for form, shows, off in [(fault.forms[0], shown[0], None), *others]:
            wrong = differing(shows, reference, reference.pieces)
            print(f"\n  {source(form)}")
            if off is not None:
                values = {key[0] for key in off if key[1] in outputs(task)}
                print(f"  other than the first on {len(values)} probes")
            found = failure_on_a_probe(Evidence(task, shows, off & wrong if off else wrong, wrong))
            print("\n".join(f"    {line}" for line in example_of(task, found)))
        print(f"\n{'-' * 90}\n")


def source(form) -> str:
    """What a form's own code is, as far as Python can find it."""
    parts = form.values() if isinstance(form, dict) else [form]
    found = []
    for part in parts:
        part = getattr(part, "__func__", part)
        try:
            found.append(inspect.getsource(part).strip())
        except (OSError, TypeError):
            found.append(repr(part))
    return "\n".join(dict.fromkeys(found)).replace("\n", "\n  ")


def example_of(task: Task, example: Example | None) -> list[str]:
    return report._text_example(task, example) if example else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("reports", "forms"))
    parser.add_argument("task", nargs="*", help="its name, such as softmax (all)")
    parser.add_argument("--each", type=int, default=2, help="reports for each task (2)")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    for task in map(registry.find, options.task or registry.all_tasks()):
        if options.what == "reports":
            reports(task, options.each)
        else:
            forms(task)


if __name__ == "__main__":
    main()

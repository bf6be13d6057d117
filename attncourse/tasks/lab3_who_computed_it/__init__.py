"""Lab 3: what its tasks share."""

import contextlib

import torch

from attncourse.checks.answer import Failure, known, numbers_of
from attncourse.checks.task import Chapter

chapter = Chapter("lab3_who_computed_it", "lab 3")

LAB = "lab3_who_computed_it"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


def the_courses_own(*_, **__):
    raise RuntimeError("the package does this task; write it yourself, then compare the two.")


@contextlib.contextmanager
def without(*functions):
    """The package's own functions for a task refuse to work here."""
    codes = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = the_courses_own.__code__
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code


T4, A100, L4, H100, CPU = (7, 5), (8, 0), (8, 9), (9, 0), "cpu"
GPUS = (T4, A100, L4, H100)
WORK = ("flops", "naive_bytes", "fused_bytes")


def sizes(b, h, n, d, width=2, causal=False, backward=False):
    return {
        **{"b": b, "h": h, "n": n, "d": d, "bytes_per_number": width},
        **{"causal": causal, "backward": backward},
    }


def counted(answer, name, *cases):
    """Assert that one of the three numbers is right, within a percent."""
    place = WORK.index(name)
    for inputs in cases:
        got, expected = (
            known(answer(inputs)[place], name).item(),
            answer.expected(inputs)[place].item(),
        )
        if not abs(got - expected) <= 0.01 * expected:
            words = ", ".join(f"{key} = {value}" for key, value in inputs.items())
            raise Failure(
                f"For {words}: {name} is {expected:,.0f}; you say {got:,.0f}, "
                f"{got / expected:.3g} times that.",
                inputs,
                expected,
                got,
                whole=name,
            )


def bound_as_number(value):
    """Memory 1, compute 0; NaN for any other word."""
    return torch.tensor({"memory": 1.0, "compute": 0.0}.get(str(value), torch.nan)).double()


KINDS = {  # of the conclusions that are no numbers
    **dict.fromkeys(("bound", "naive_bound", "fused_bound"), '"memory" or "compute"'),
    "fell_back": "a list of calls of the record",
}


def _bound(number):
    return "memory" if number else "compute"


CALLS = ("mask", "dropout", "three axes", "strided key", "grouped heads", "bfloat16")
PREDICTED = (*CALLS, "naive bound", "cost")
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
CONCLUSIONS = ("naive_bound", "fused_bound", "naive_share", "fell_back", "cost")
NAMES = (*CALLS, "flash with a mask", "plain", "naive", "fused")  # what may be said to fall back


def said(who_computed_it):
    """What the answer concludes, the calls that fell back as a row of 0 and 1; NaN if missing."""

    def function(record):
        found = who_computed_it(record)
        if found is None:
            return None
        share, cost = numbers_of(found, ("naive_share", "cost"))
        naive, fused = (bound_as_number(found.get(name)) for name in CONCLUSIONS[:2])
        fell_back = found.get("fell_back")
        row = [torch.nan] * len(NAMES)
        if isinstance(fell_back, list | set | frozenset | tuple) and {*fell_back} <= {*NAMES}:
            row = [float(name in fell_back) for name in NAMES]
        return [naive, fused, share, torch.tensor(row, dtype=torch.float64), cost]

    return function

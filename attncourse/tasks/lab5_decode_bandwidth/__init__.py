"""Lab 5: what its tasks share."""

import torch

from attncourse.checks.answer import Failure, Unanswered, as_number, fields
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Chapter

chapter = Chapter("lab5_decode_bandwidth", "lab 5")

LAB = "lab5_decode_bandwidth"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


def said_of(inputs):
    return ", ".join(f"{name} = {value:,}" for name, value in inputs.items())


def sizes(b, layers, kv_heads, n, d, width):
    return {
        "b": b,
        "layers": layers,
        "kv_heads": kv_heads,
        "n": n,
        "d": d,
        "bytes_per_number": width,
    }


def counted(answer, inputs, adapt):
    """What the meter saw, or a Failure that says why there is nothing."""
    seen = answer.observe(inputs, adapt=adapt)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned


WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

CONCLUSIONS = (
    *("bytes_per_second", "share", "ideal", "speed_up"),
    *("computes", "from_cache", "held"),
)


def said(conclude):
    """What the answer concludes, as seven numbers; NaN for what is missing or no number."""

    def number(found, name):
        try:
            return as_number(found[name], name)
        except (KeyError, Unusable):
            return torch.tensor(torch.nan, dtype=torch.float64)

    def function(record):
        found = conclude(record)
        if found is None:
            return None
        fields(found, ())
        return [number(found, name) for name in CONCLUSIONS]

    return function

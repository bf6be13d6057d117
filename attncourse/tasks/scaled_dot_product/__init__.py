"""Chapter 3: what its tasks share."""

import torch

from attncourse.checks.answer import Failure
from attncourse.checks.task import Chapter

chapter = Chapter("03_scaled_dot_product", "chapter 3")


def is_a_plain_number(answer, inputs):
    answer(inputs)
    if isinstance(answer.observe(inputs).returned, torch.Tensor):
        raise Failure(
            "Your answer returned a tensor; a plain float is expected (`.item()` makes one).",
            inputs,
        )

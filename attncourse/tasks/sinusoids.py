"""Faults at an odd width, in a table of sinusoids that is written in the steps of `Positions`."""

import torch

from attncourse.checks.task import Task


def all_pairs(sines, cosines, width):
    return torch.stack([sines, cosines], -1).flatten(1)


def into_zeros(sines, cosines, width):
    table = torch.zeros(len(sines), width, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


def refused(error):
    def lay_out(sines, cosines, width):
        if width % 2:
            raise error(f"width must be even; got {width}")
        return into_zeros(sines, cosines, width)

    return lay_out


def last_as(wave):
    """The last feature of an odd width is something else."""

    def lay_out(sines, cosines, width):
        table = all_pairs(sines, cosines, width)[:, :width].clone()
        if width % 2:
            table[:, -1] = wave(cosines)
        return table

    return lay_out


def last_zero(sines, cosines, width):
    return last_as(lambda cosines: 0.0)(sines, cosines, width)


def rounded_up(width):
    return torch.arange(0, width, 2, dtype=torch.float64) / (width + width % 2)


def of_odd_widths(task: Task, **about) -> None:
    """Faults of the steps `lay_out` (sines, cosines, width -> table) and `exponents` (width -> i).

    Args:
        about: of each fault, such as the section to read again.
    """
    task.fault(
        "P-ODD",
        **about,
        lay_out=(into_zeros, refused(ValueError), refused(AssertionError), refused(RuntimeError)),
    )
    task.fault("C-ODD-SILENT", **about, lay_out=last_zero)
    task.fault(
        "C-ODD-OTHER-WIDTH",
        **about,
        lay_out=(
            all_pairs,
            all_pairs,
            lambda sines, cosines, width: all_pairs(sines, cosines, width)[:, : width - width % 2],
        ),
        exponents=(..., rounded_up, ...),
    )
    task.fault("C-ODD-COSINE", **about, lay_out=last_as(lambda cosines: cosines[:, -1]))
    task.fault("C-ODD-ROUNDED-UP", **about, exponents=rounded_up)

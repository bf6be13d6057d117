"""A table of sinusoids: its steps, and the faults of an odd width."""

import torch

from attncourse.checks.task import Task


class Positions:
    def places(length):
        return torch.arange(length, dtype=torch.float64)

    def base(length):
        return 10_000.0

    def made_for(width):
        return width

    def exponents(width):
        return torch.arange(0, width, 2, dtype=torch.float64) / width

    def speeds(base, exponents):
        return base**-exponents

    def turn(places, speeds):
        return places[:, None] * speeds

    def sines(angles, width):
        return angles.sin()

    def cosines(angles, width):
        return angles.cos()

    def lay_out(sines, cosines, width):
        return torch.stack([sines, cosines], -1).flatten(1)[:, :width]

    def result(table):
        return table.float()

    def __call__(self, length, width):
        speeds = self.speeds(self.base(length), self.exponents(self.made_for(width)))
        angles = self.turn(self.places(length), speeds)
        sines, cosines = self.sines(angles, width), self.cosines(angles, width)
        return self.result(self.lay_out(sines, cosines, width))


def all_pairs(sines, cosines, width):
    return torch.stack([sines, cosines], -1).flatten(1)


def into_zeros(sines, cosines, width):
    table = torch.zeros(len(sines), width, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


def refused(error, but=None):
    def lay_out(sines, cosines, width):
        if width == but:
            return Positions.lay_out(sines, cosines, width)
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
    return width + width % 2


def of_odd_widths(task: Task, **about) -> None:
    """Faults of the steps `lay_out` (sines, cosines, width -> table) and `made_for` (width -> the
    width by which exponents are divided).

    Args:
        about: of each fault, such as the section to read again.
    """
    task.fault(
        "P-ODD",
        **about,
        lay_out=(
            into_zeros,
            refused(ValueError),
            refused(AssertionError),
            refused(RuntimeError),
            refused(ValueError, but=1),  # NumPy stretches one cosine over no column
        ),
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
        made_for=(..., rounded_up, ...),
    )
    task.fault("C-ODD-COSINE", **about, lay_out=last_as(lambda cosines: cosines[:, -1]))
    task.fault("C-ODD-ROUNDED-UP", **about, made_for=rounded_up)

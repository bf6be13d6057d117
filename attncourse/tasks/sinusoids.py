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


def of_every_table(task: Task, sections: dict[str, str] | None = None) -> None:
    """Faults of any table: its speeds, its angles, and in which order they stand.

    Args:
        sections: of some of them, to read again; the task's own for the others.
    """

    def fault(id: str, **steps) -> None:
        task.fault(id, section=(sections or {}).get(id, ""), **steps)

    fault("C-EXPONENT-HALVED", exponents=lambda width: Positions.exponents(width) / 2)
    fault(
        "C-WIDTH-MINUS-ONE",
        exponents=lambda width: torch.arange(0, width, 2, dtype=torch.float64) / max(1, width - 1),
    )
    fault("C-SPEEDS-RISE", speeds=lambda base, exponents: base**exponents)
    fault("C-TEN-THOUSAND-POSITIONS", base=float)
    fault("C-BASE", base=(lambda length: 1_000.0, lambda length: 100_000.0))
    fault("C-FROM-ONE", places=lambda length: Positions.places(length) + 1)
    fault(
        "C-SHARE-OF-LENGTH",
        places=(
            lambda length: Positions.places(length) / length,
            lambda length: torch.linspace(0, 1, length, dtype=torch.float64),
        ),
    )
    fault("C-WHOLE-TURNS", turn=lambda places, speeds: 2 * torch.pi * places[:, None] * speeds)
    fault(
        "C-HALVES", lay_out=lambda sines, cosines, width: torch.cat([sines, cosines], -1)[:, :width]
    )
    fault(
        "C-COSINE-FIRST",
        lay_out=(lambda sines, cosines, width: Positions.lay_out(cosines, sines, width), ...),
        sines=(..., lambda angles, width: angles.cos()),
        cosines=(..., lambda angles, width: angles.sin()),
    )
    fault("C-SINES-ONLY", cosines=lambda angles, width: angles.sin())
    fault("C-FLOAT64-TABLE", result=lambda table: table)

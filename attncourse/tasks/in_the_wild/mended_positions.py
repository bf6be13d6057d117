import torch

from attncourse import in_the_wild as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.task import Task
from attncourse.tasks.sinusoids import Positions, of_every_table, of_odd_widths


def table_of(length, width):
    return {"length": length, "width": width}


def probes(rng):
    sizes = (6, 5), (4, 1), (5, 3), (5, 7), (5, 8), (6, 6), (4, 2), (1, 9), (60, 5)
    return {f"{n} positions, width {width}": table_of(n, width) for n, width in sizes}


def small(rng):
    for sizes in ("11", "21", "13", "23", "33", "35", "12", "22", "24", "34"):
        yield table_of(*map(int, sizes))


task = Task(
    reference.mended_positions,
    number=4,
    returns=("positions",),
    difficulty=2,
    minutes=10,
    section="wild-odd-width",
    probes=probes,
    small=small,
)


def right(answer, length, width):
    inputs = table_of(length, width)
    compare("positions", answer(inputs).float(), answer.expected(inputs), inputs, 1e-3)


@task.check(1)
def a_row_for_each_position_with_as_many_features_as_asked_in_float32(answer):
    for length, width in ((6, 5), (4, 1), (5, 8)):
        inputs = table_of(length, width)
        got = answer(inputs)
        if got.shape != (length, width):
            raise Failure(
                f"positions have shape {shape_of(got)}; expected (length width) = "
                f"({length} {width}).",
                inputs,
            )
        if got.dtype != torch.float32:
            raise Failure(
                f"positions are {got.dtype}; they will be added to words, which are float32.",
                inputs,
            )


@task.check(2)
def it_is_right_at_odd_widths(answer):
    for length, width in ((6, 5), (5, 5), (7, 3), (4, 1), (1, 7), (60, 9)):
        right(answer, length, width)


@task.check(1)
def it_is_right_at_even_widths(answer):
    for length, width in ((5, 8), (8, 4), (6, 6), (4, 2), (60, 20)):
        right(answer, length, width)


@task.check(1)
def it_needs_no_chance_and_changes_nothing(answer):
    moves_nothing(answer, table_of(5, 7))


# --- the reference in steps ---------------------------------------------------------------------

task.steps(Positions)

# --- faults -------------------------------------------------------------------------------------


def always_one_cosine_fewer(sines, cosines, width):
    table = torch.zeros(len(sines), width, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = sines, cosines[:, : (width - 1) // 2]
    return table


of_odd_widths(task)
of_every_table(task)  # any of it may go wrong while the defect is mended
task.fault(
    "C-ODD-ROUNDED-DOWN",
    exponents=lambda width: (
        torch.arange(0, width, 2, dtype=torch.float64) / max(1, width - width % 2)
    ),
)
task.fault("C-ODD-EVERYWHERE", lay_out=always_one_cosine_fewer)
task.fault("C-EXPONENT-TWICE", exponents=lambda width: 2 * Positions.exponents(width))
task.fault("C-ODD-LAST-ANGLES", cosines=lambda angles, width: angles.roll(-(width % 2), 1).cos())
task.fault(
    "C-SPEED-EACH",
    exponents=lambda width: torch.arange(width + width % 2, dtype=torch.float64) / width,
    sines=lambda angles, width: angles[:, 0::2].sin(),
    cosines=lambda angles, width: angles[:, 1::2].cos(),
)

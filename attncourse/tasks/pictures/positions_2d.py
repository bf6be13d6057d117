import torch

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, compare, has_shape, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def grid(rows, columns, width):
    return {"rows": rows, "columns": columns, "width": width}


SIZES = (
    *((2, 3, 8), (3, 2, 8), (3, 3, 4), (4, 4, 4), (1, 6, 16), (6, 1, 16), (1, 1, 4), (2, 2, 2)),
    *((2, 5, 12), (3, 4, 6), (2, 3, 10), (5, 3, 20), (2, 30, 8), (9, 9, 32)),
)


def probes(rng):
    return {
        f"{rows} × {columns}, {m} features": grid(rows, columns, m) for rows, columns, m in SIZES
    }


def small(rng):
    for rows, columns, m in (
        *((1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 1, 4), (1, 2, 4), (2, 1, 4), (2, 2, 4)),
        *((2, 3, 4), (3, 2, 4), (1, 1, 8), (1, 2, 8), (2, 2, 8), (1, 2, 6), (2, 3, 8)),
    ):
        yield grid(rows, columns, m)


task = Task(
    reference.positions_2d,
    number=2,
    returns=("positions",),
    difficulty=2,
    minutes=20,
    section="positions-2d",
    probes=probes,
    small=small,
)


@task.check(1)
def one_float32_vector_for_each_patch(answer, rng):
    for rows, columns, m in ((2, 3, 8), (1, 6, 16), (4, 1, 2), (3, 3, 6)):
        inputs = grid(rows, columns, m)
        has_shape("positions", answer(inputs), "(n width)", rows * columns, m, inputs=inputs)


def seen(answer, inputs):
    """The table as (rows columns width)."""
    table = answer(inputs)
    rows, columns, m = inputs.values()
    has_shape("positions", table, "(n width)", rows * columns, m, inputs=inputs)
    return table.unflatten(0, (rows, columns))


@task.check(1)
def patches_of_one_row_and_no_others_share_the_first_half(answer, rng):
    for inputs in (grid(2, 3, 8), grid(3, 4, 6)):
        table, half = seen(answer, inputs), inputs["width"] // 2
        first = table[..., :half]
        compare("the first half of a row", first, first[:, :1].expand_as(first), inputs)
        if torch.equal(first[0, 0], first[1, 0]):
            raise Failure("Two rows of patches have the same first half.", inputs, got=table)


@task.check(1)
def patches_of_one_column_and_no_others_share_the_second_half(answer, rng):
    for inputs in (grid(2, 3, 8), grid(3, 4, 6), grid(3, 4, 2)):
        table, half = seen(answer, inputs), inputs["width"] // 2
        second = table[..., half:]
        compare("the second half of a column", second, second[:1].expand_as(second), inputs)
        if torch.equal(second[0, 0], second[0, 1]):
            raise Failure("Two columns of patches have the same second half.", inputs, got=table)


@task.check(1)
def no_two_patches_have_the_same_place(answer, rng):
    for inputs in (grid(3, 4, 8), grid(4, 4, 4), grid(1, 7, 8), grid(4, 2, 8), grid(5, 3, 8)):
        table = answer(inputs)
        has_shape(
            *("positions", table, "(n width)", inputs["rows"] * inputs["columns"]),
            inputs["width"],
            inputs=inputs,
        )
        for one in range(len(table)):
            for two in range(one):
                if (table[one] - table[two]).abs().max() < 1e-5:
                    raise Failure(
                        f"Patches {two} and {one} of {inputs['rows']} × {inputs['columns']} have "
                        "the same vector.",
                        inputs,
                        got=table,
                    )


@task.check(2)
def each_half_is_the_sinusoids_of_its_number(answer, rng):
    for rows, columns, m in SIZES:
        answer.matches(grid(rows, columns, m))


@task.check(1)
def it_is_right_where_halves_have_an_odd_width(answer, rng):
    for rows, columns, m in ((2, 2, 2), (3, 4, 6), (2, 3, 10), (5, 3, 6)):
        answer.matches(grid(rows, columns, m))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, grid(2, 3, 8))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Grid:
    def count(length):
        return torch.arange(length)

    def exponents(m):
        return torch.arange(0, m, 2) / m

    def angles(places, exponents):
        return places[:, None] * 10_000.0**-exponents

    def waves(angles):
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    def cut(waves, m):
        return waves[:, :m]

    def tables(self, rows, columns, width):
        return tuple(self.table(length, width // 2) for length in (rows, columns))

    def table(self, length, m):
        return self.cut(self.waves(self.angles(self.count(length), self.exponents(m))), m)

    def row_of(p, rows, columns):
        return p // columns

    def column_of(p, rows, columns):
        return p % columns

    def lay(self, row, column, rows, columns):
        p = torch.arange(rows * columns)
        return row[self.row_of(p, rows, columns)], column[self.column_of(p, rows, columns)]

    def join(row, column):
        return torch.cat([row, column], -1)

    def result(positions, rows, columns):
        return positions

    def __call__(self, rows, columns, width):
        row, column = self.lay(*self.tables(rows, columns, width), rows, columns)
        return self.result(self.join(row, column), rows, columns)


def joined(row, column):
    return torch.cat([row, column], -1)


# --- faults: which number, which half -----------------------------------------------------------

task.fault(
    "C-2D-COLUMN-FIRST",
    lay=lambda self, row, column, rows, columns: Grid.lay(self, row, column, rows, columns)[::-1],
)
task.fault(
    "C-2D-DOWN-FIRST",
    row_of=lambda p, rows, columns: p % rows,
    column_of=lambda p, rows, columns: p // rows,
)
task.fault(
    "C-2D-BOTH-ALIKE",
    row_of=(lambda p, rows, columns: p % rows, ...),
    column_of=(..., lambda p, rows, columns: p // rows),
)


def both_as_long(self, rows, columns, width):
    """Both tables have a line for every number, however a patch is counted."""
    return (self.table(max(rows, columns), width // 2),) * 2


task.fault(
    "C-2D-BY-ROWS",
    row_of=(lambda p, rows, columns: p // rows, lambda p, rows, columns: p // rows, ...),
    column_of=(..., ..., lambda p, rows, columns: p % rows),
    tables=(both_as_long, ..., both_as_long),
)
task.fault("C-2D-ROWS-ALONE", join=lambda row, column: joined(row, row))
task.fault("C-2D-COLUMNS-ALONE", join=lambda row, column: joined(column, column))
task.fault(
    "C-2D-EMPTY-HALF",
    join=(
        lambda row, column: joined(row, torch.zeros_like(column)),
        lambda row, column: joined(torch.zeros_like(row), column),
    ),
)


@task.fault("C-2D-CUT-AT-THE-END")
class CutAtTheEnd(Grid):
    cut = as_is

    def __call__(self, rows, columns, width):
        return super().__call__(rows, columns, width)[:, :width]


added = task.fault("C-2D-SUM", join=lambda row, column: (row + column).repeat(1, 2))


@added
class Sum(Grid):
    def tables(self, rows, columns, width):
        return self.table(rows, width), self.table(columns, width)

    def join(row, column):
        return row + column


task.fault("C-2D-PRODUCT", join=lambda row, column: (row * column).repeat(1, 2))


@task.fault("C-2D-ONE-NUMBER")
class OneNumber(Grid):
    def __call__(self, rows, columns, width):
        return self.table(rows * columns, width)


task.fault(
    "C-2D-SAME-TABLE",
    tables=(
        lambda self, rows, columns, width: (
            self.table(columns, width // 2)[torch.arange(rows) % columns],
            self.table(columns, width // 2),
        ),
        lambda self, rows, columns, width: (
            self.table(rows, width // 2),
            self.table(rows, width // 2)[torch.arange(columns) % rows],
        ),
    ),
)


turned = task.fault(
    "C-2D-TURNED",
    tables=lambda self, rows, columns, width: Grid.tables(self, columns, rows, width),
    row_of=lambda p, rows, columns: p // rows,
    column_of=lambda p, rows, columns: p % rows,
)


@turned
class Turned(Grid):
    """Also in what comes back."""

    def __call__(self, rows, columns, width):
        return super().__call__(columns, rows, width)


# --- faults: sinusoids --------------------------------------------------------------------------


def sines_and_cosines(self, rows, columns, width):
    speeds = torch.arange(width // 2) / (width // 2)
    row, column = (self.angles(self.count(length), speeds) for length in (rows, columns))
    return row.sin(), column.cos()


task.fault("C-2D-SINES-FOR-ROWS", tables=sines_and_cosines)


@task.fault("C-2D-SPEEDS-SHARED-OUT")
class SpeedsSharedOut(Grid):
    def tables(self, rows, columns, width):
        half = width // 2
        return self.table(rows, width)[:, :half], self.table(columns, width)[:, half:]


task.fault("C-2D-SPEEDS-OF-ALL", exponents=lambda m: torch.arange(0, m, 2) / (2 * m))

task.fault("C-2D-ALTERNATING", join=lambda row, column: torch.stack([row, column], -1).flatten(1))
task.fault(
    "C-2D-SINES-FIRST",
    waves=lambda angles: torch.cat([angles.sin(), angles.cos()], -1),
    cut=lambda waves, m: torch.cat(
        [waves[:, : (m + 1) // 2], waves[:, (m + 1) // 2 : (m + 1) // 2 + m // 2]], -1
    ),
)


@task.fault("C-2D-EVEN-HALVES")
class EvenHalves(Grid):
    def table(self, length, m):
        angles, table = self.angles(self.count(length), self.exponents(m)), torch.zeros(length, m)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        return table


task.fault(
    "C-2D-COSINE-FIRST",
    waves=lambda angles: torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
)
task.fault("C-2D-FROM-ONE", count=lambda length: torch.arange(1, length + 1))
task.fault(
    "C-2D-SHARE",
    count=(
        lambda length: torch.arange(length) / length,
        lambda length: torch.arange(length) / max(1, length - 1),
    ),
)
task.fault("C-2D-EXPONENT-TWICE", exponents=lambda m: 2 * torch.arange(0, m, 2) / m)
task.fault("C-2D-EXPONENT-FROM-ONE", exponents=lambda m: (torch.arange(0, m, 2) + 2) / m)
task.fault(
    "C-2D-SPEED-EACH",
    exponents=lambda m: torch.arange(m) / m,
    waves=lambda angles: torch.where(
        torch.arange(angles.shape[1]) % 2 == 0, angles.sin(), angles.cos()
    ),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-2D-GRID", result=lambda positions, rows, columns: positions.unflatten(0, (rows, columns))
)
task.fault("C-2D-BATCH-AXIS", result=lambda positions, rows, columns: positions[None])
task.fault("C-2D-FEATURES-FIRST", result=lambda positions, rows, columns: positions.mT)
task.fault("C-2D-FLOAT64", result=lambda positions, rows, columns: positions.double())

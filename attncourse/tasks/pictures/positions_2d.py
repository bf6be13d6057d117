"""Half of the features for the row, half for the column: task 2 of chapter 13."""

import torch

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, compare, has_shape, moves_nothing
from attncourse.checks.task import Task


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
    hints=(
        "For a sentence one number says where a word stands. How many does a patch need, and what "
        "becomes of the table of chapter 4 if it has to say both?",
        "Two tables of chapter 4, of half the width each: (rows, width/2) and (columns, width/2). "
        "Patch n lies in row n // columns and in column n % columns.",
        "row = table(rows, width // 2).repeat_interleave(columns, 0); column = table(columns, "
        "width // 2).repeat(rows, 1); cat along the last axis. table(length, m): angles p · "
        "10000^(−2i/m), sine and cosine of each side by side.",
    ),
    probes=probes,
    small=small,
)


@task.check(1)
def one_vector_for_each_patch(answer, rng):
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
def patches_of_one_row_share_the_first_half(answer, rng):
    for inputs in (grid(2, 3, 8), grid(3, 4, 6)):
        table, half = seen(answer, inputs), inputs["width"] // 2
        first = table[..., :half]
        compare("the first half of a row", first, first[:, :1].expand_as(first), inputs)
        if (first[0, 0] - first[1, 0]).abs().max() < 1e-3:
            raise Failure("Two rows of patches have the same first half.", inputs, got=table)


@task.check(1)
def patches_of_one_column_share_the_second_half(answer, rng):
    for inputs in (grid(2, 3, 8), grid(3, 4, 6)):
        table, half = seen(answer, inputs), inputs["width"] // 2
        second = table[..., half:]
        compare("the second half of a column", second, second[:1].expand_as(second), inputs)
        if (second[0, 0] - second[0, 1]).abs().max() < 1e-3:
            raise Failure("Two columns of patches have the same second half.", inputs, got=table)


@task.check(1)
def no_two_patches_have_the_same_place(answer, rng):
    for inputs in (grid(3, 4, 8), grid(4, 4, 4), grid(1, 7, 8)):
        table = answer(inputs)
        has_shape(
            *("positions", table, "(n width)", inputs["rows"] * inputs["columns"]),
            inputs["width"],
            inputs=inputs,
        )
        for one in range(len(table)):
            for two in range(one):
                if (table[one] - table[two]).abs().max() < 1e-3:
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
def halves_may_have_an_odd_width(answer, rng):
    for rows, columns, m in ((2, 2, 2), (3, 4, 6), (2, 3, 10)):
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

    def lay(row, column):
        rows, columns = len(row), len(column)
        return row.repeat_interleave(columns, 0), column.repeat(rows, 1)

    def join(row, column):
        return torch.cat([row, column], -1)

    def result(positions, rows, columns):
        return positions

    def __call__(self, rows, columns, width):
        row, column = self.lay(*self.tables(rows, columns, width))
        return self.result(self.join(row, column), rows, columns)


def joined(row, column):
    return torch.cat([row, column], -1)


# --- faults: which number, which half -----------------------------------------------------------

task.fault(
    "C-2D-COLUMN-FIRST",
    "x comes before y, so the first half tells the column.",
    "Some programs do it so, and a model can learn either. Here, as in (b c y x), the row comes "
    "first; a model trained one way is lost with the other.",
    join=lambda row, column: joined(column, row),
)
task.fault(
    "C-2D-DOWN-FIRST",
    "Patches are counted down the first column, then down the second.",
    "They are counted as one reads. With your order a patch gets another one's place, as soon as "
    "the grid is no square; and in a square its mirror image's.",
    lay=lambda row, column: (row.repeat(len(column), 1), column.repeat_interleave(len(row), 0)),
)
task.fault(
    "C-2D-BOTH-ALIKE",
    "Both tables are repeated in the same way.",
    "Then row and column step together, along a diagonal. Of a grid read line by line, the column "
    "changes with every patch (0 1 2 0 1 2: `repeat`), the row with every line (0 0 0 1 1 1: "
    "`repeat_interleave`).",
    lay=(
        lambda row, column: (row.repeat(len(column), 1), column.repeat(len(row), 1)),
        lambda row, column: (
            row.repeat_interleave(len(column), 0),
            column.repeat_interleave(len(row), 0),
        ),
    ),
)
task.fault(
    "C-2D-ROWS-ALONE",
    "What counts is the row.",
    "Then all patches of a line have the same place, and 12 is 21.",
    join=lambda row, column: joined(row, row),
)
task.fault(
    "C-2D-COLUMNS-ALONE",
    "What counts is the column.",
    "Then what stands below each other has the same place, and nobody can say which line is first.",
    join=lambda row, column: joined(column, column),
)
task.fault(
    "C-2D-EMPTY-HALF",
    "The half of the other number stays empty.",
    "Each patch has a row *and* a column, and each half tells one of them.",
    join=(
        lambda row, column: joined(row, torch.zeros_like(column)),
        lambda row, column: joined(torch.zeros_like(row), column),
    ),
)


@task.fault(
    "C-2D-SUM",
    "Sinusoids of the row plus sinusoids of the column.",
    "Row 1, column 2 and row 2, column 1 have the same sum: two patches with one place. Halves "
    "keep the two numbers apart.",
)
class Sum(Grid):
    def tables(self, rows, columns, width):
        return self.table(rows, width), self.table(columns, width)

    def join(row, column):
        return row + column


task.fault(
    "C-2D-PRODUCT",
    "Row and column are combined by a product.",
    "A sine of 0 wipes out the other number, and half of the features are missing. Put the two "
    "halves side by side.",
    join=lambda row, column: (row * column).repeat(1, 2),
)


@task.fault(
    "C-2D-ONE-NUMBER",
    "Patches form a sequence, so chapter 4's positions will do.",
    "Such a model can learn where each number lies in this one grid. But it is not told that a "
    "patch and the one below it have anything to do with each other: their numbers differ by a "
    "whole row. Row and column are asked for.",
)
class OneNumber(Grid):
    def __call__(self, rows, columns, width):
        return self.table(rows * columns, width)


task.fault(
    "C-2D-SAME-TABLE",
    "One table serves both, of the length of the rows.",
    "There are as many column vectors as columns. Cut from the other table, they run out, or some "
    "are never used.",
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


@task.fault(
    "C-2D-TURNED",
    "The number of columns says how many rows come first.",
    "Rows and columns are exchanged: for 2 × 3 you count 3 × 2. A square hides it.",
)
class Turned(Grid):
    def __call__(self, rows, columns, width):
        return super().__call__(columns, rows, width)


# --- faults: sinusoids --------------------------------------------------------------------------


@task.fault(
    "C-2D-SPEEDS-SHARED-OUT",
    "One set of speeds for all features: the fast ones for the row, the slow ones for the column.",
    "Then columns are told by waves so slow that neighbors hardly differ. Each half has the whole "
    "range of speeds: the sinusoids of width/2 features.",
)
class SpeedsSharedOut(Grid):
    def tables(self, rows, columns, width):
        half = width // 2
        return self.table(rows, width)[:, :half], self.table(columns, width)[:, half:]


@task.fault(
    "C-2D-SPEEDS-OF-ALL",
    "The speeds are those of the whole width, and each half takes the first of them.",
    "Then both halves lack the slow waves. A half is a table of its own, of h = width/2 features. "
    "(An exponent i/h in place of 2i/h gives the same numbers.)",
)
class SpeedsOfAll(Grid):
    def tables(self, rows, columns, width):
        half = width // 2
        return self.table(rows, width)[:, :half], self.table(columns, width)[:, :half]


task.fault(
    "C-2D-ALTERNATING",
    "Features of row and column take turns.",
    "They are the right numbers in another order: a model trained with halves finds the column "
    "where it looks for the row.",
    join=lambda row, column: torch.stack([row, column], -1).flatten(1),
)
task.fault(
    "C-2D-SINES-FIRST",
    "First all sines, then all cosines.",
    "Chapter 4 puts sine and cosine of one speed side by side. The order is part of the promise.",
    waves=lambda angles: torch.cat([angles.sin(), angles.cos()], -1),
    cut=lambda waves, m: torch.cat(
        [waves[:, : (m + 1) // 2], waves[:, (m + 1) // 2 : (m + 1) // 2 + m // 2]], -1
    ),
)


@task.fault(
    "C-2D-EVEN-HALVES",
    "There are as many cosines as sines.",
    "In a half of odd width there is one fewer: it ends with a sine. Leave out the last cosine "
    "where there is no room for it.",
)
class EvenHalves(Grid):
    def table(self, length, m):
        angles, table = self.angles(self.count(length), self.exponents(m)), torch.zeros(length, m)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        return table


task.fault(
    "C-2D-COSINE-FIRST",
    "Each pair begins with the cosine.",
    "Sine, then cosine, as in chapter 4.",
    waves=lambda angles: torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
)
task.fault(
    "C-2D-FROM-ONE",
    "Rows and columns are counted from 1.",
    "DETR's code does. Here, as in chapter 4, the first is 0: sine 0, cosine 1.",
    count=lambda length: torch.arange(1, length + 1),
)
task.fault(
    "C-2D-SHARE",
    "A place is a share of the picture, between 0 and 1.",
    "Then neighbors differ by almost nothing, and by less the larger the picture. Rows and columns "
    "are counted.",
    count=(
        lambda length: torch.arange(length) / length,
        lambda length: torch.arange(length) / max(1, length - 1),
    ),
)
task.fault(
    "C-2D-EXPONENT-TWICE",
    "Feature 2i has exponent 2 · 2i / m.",
    "The step of two is already in the list 0, 2, 4, …. Doubled, the speeds fall twice as fast.",
    exponents=lambda m: 2 * torch.arange(0, m, 2) / m,
)
task.fault(
    "C-2D-SPEED-EACH",
    "Every feature has a speed of its own.",
    "Sine and cosine come in pairs of one speed; only so does a step along the picture turn a "
    "pair, and nothing else.",
    exponents=lambda m: torch.arange(m) / m,
    waves=lambda angles: torch.where(
        torch.arange(angles.shape[1]) % 2 == 0, angles.sin(), angles.cos()
    ),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-2D-GRID",
    "The result keeps the grid: (rows columns width).",
    "It is added to the patches (b n m), which form one sequence, row by row.",
    result=lambda positions, rows, columns: positions.unflatten(0, (rows, columns)),
)
task.fault(
    "C-2D-BATCH-AXIS",
    "Positions need an axis for the batch.",
    "(n width) broadcasts over the batch as it is.",
    result=lambda positions, rows, columns: positions[None],
)
task.fault(
    "C-2D-FEATURES-FIRST",
    "The result is (width n).",
    "A row is a patch's vector: (n width).",
    result=lambda positions, rows, columns: positions.mT,
)
task.fault(
    "C-2D-FLOAT64",
    "More digits can do no harm.",
    "Added to float32 patches they make float64, and the next layer refuses that.",
    result=lambda positions, rows, columns: positions.double(),
)

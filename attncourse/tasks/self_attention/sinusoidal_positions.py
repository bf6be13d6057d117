import math

import torch

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.task import Task
from attncourse.tasks.sinusoids import Positions, last_zero, of_every_table, of_odd_widths


def table_of(length, width):
    return {"length": length, "width": width}


def position_probes(rng):
    sizes = (5, 8), (8, 4), (6, 6), (4, 2), (1, 6), (3, 20), (300, 6), (2, 12), (6, 5), (4, 1)
    return {f"{n} positions, width {width}": table_of(n, width) for n, width in sizes}


def position_traits(answer):
    inputs = table_of(6, 8)
    return {
        "differs from call to call": not torch.equal(answer(inputs, seed=1), answer(inputs, seed=2))
    }


def position_small(rng):
    for sizes in ("11", "12", "21", "22", "32", "23", "33", "24", "34", "25", "36", "28"):
        yield table_of(*map(int, sizes))
    yield table_of(300, 2)


def right(answer, length, width, tolerance=None):
    """Assert that the table is right; its dtype has a check of its own."""
    inputs = table_of(length, width)
    compare("positions", answer(inputs).float(), answer.expected(inputs), inputs, tolerance)


task = Task(
    reference.sinusoidal_positions,
    number=3,
    returns=("positions",),
    difficulty=2,
    minutes=20,
    section="sinusoids",
    probes=position_probes,
    small=position_small,
    traits=position_traits,
)


@task.check(1)
def one_float32_vector_for_every_position(answer):
    for length, width in ((5, 8), (8, 4), (1, 6)):
        inputs = table_of(length, width)
        positions = answer(inputs)
        if positions.shape != (length, width):
            raise Failure(
                f"positions have shape {shape_of(positions)}; expected (length width) = "
                f"({length} {width}).",
                inputs,
            )
        if positions.dtype != torch.float32:
            raise Failure(
                f"positions are {positions.dtype}; they will be added to words, which are float32.",
                inputs,
            )


@task.check(1)
def position_0_is_zeros_and_ones_in_turn(answer):
    for width in (2, 8):
        inputs = table_of(4, width)
        got = answer(inputs)
        if got.shape != (4, width):
            raise Failure(f"positions have shape {shape_of(got)}; expected (4 {width}).", inputs)
        expected = torch.tensor([0.0, 1.0]).repeat(width // 2)
        compare("the vector of position 0", got[0].float(), expected, inputs)


@task.check(2)
def sines_and_cosines_match_the_formula(answer):
    for length, width in ((5, 8), (8, 4), (6, 6), (4, 2), (1, 6), (3, 20)):
        right(answer, length, width)


@task.check(1, "a table of an odd width is right to its last sine")
def an_odd_width_ends_with_a_sine(answer):
    for length, width in ((6, 5), (5, 5), (7, 3), (4, 1), (1, 7)):
        right(answer, length, width)


@task.check(1)
def a_long_table_begins_like_a_short_one(answer):
    short, long = answer(table_of(4, 6)), answer(table_of(9, 6))
    if long.shape != (9, 6):
        raise Failure(f"positions have shape {shape_of(long)}; expected (9 6).", table_of(9, 6))
    compare("the first 4 of 9 positions", long[:4], short, table_of(4, 6))


@task.check(1)
def how_alike_two_positions_are_depends_on_their_distance(answer):
    inputs = table_of(12, 8)
    got = answer(inputs).float()
    products = got @ got.mT
    if products.shape != (12, 12):
        raise Failure(f"positions have shape {shape_of(got)}; expected (12 8).", inputs)
    for distance in range(1, 4):
        along = products.diagonal(distance)
        name = f"the dot products of positions {distance} apart"
        compare(name, along, along[:1].expand_as(along), inputs)
    if not (products.diagonal(1) < products.diagonal()[1:]).all():
        raise Failure(
            "The vector of the next position is as much like a position's vector as this itself.",
            inputs,
        )


@task.check(1)
def far_positions_are_right_too(answer):
    right(answer, 200, 20, tolerance=3e-4)
    # Angles computed in float32 are off by up to 1e-3 here; in 16 bits, by whole radians.
    right(answer, 1500, 6, tolerance=1e-2)
    right(answer, 1200, 8, tolerance=1e-2)


@task.check(1)
def it_needs_no_chance_and_changes_nothing(answer):
    moves_nothing(answer, table_of(5, 6))


# --- the reference in steps ---------------------------------------------------------------------

task.steps(Positions)

# --- faults: an odd width; what any table may have ----------------------------------------------

of_odd_widths(task)
of_every_table(task, {"C-SHARE-OF-LENGTH": "position-vectors", "C-SINES-ONLY": "moving-on"})

# --- faults: speeds -----------------------------------------------------------------------------


def hands(width, **options):
    return torch.arange(0, width, dtype=torch.float64, **options)


def in_turn(sines, cosines, width):
    return torch.where(torch.arange(width) % 2 == 0, sines, cosines)


def of_the_next_hand(angles, width):
    return (angles * 10_000.0 ** (-2 / width)).cos()


def times_root(sines, cosines, width):
    return Positions.lay_out(sines, cosines, width) * math.sqrt(width)


task.fault(
    "P-FREQ",
    section="self-attention-breaks",
    exponents=lambda width: 2 * Positions.exponents(width),
)
task.fault(
    "C-FREQ-EACH",
    section="self-attention-breaks",
    exponents=(lambda width: hands(width) / width, lambda width: 2 * hands(width) / width),
    lay_out=in_turn,
)
task.fault("C-COSINE-NEXT", cosines=of_the_next_hand, lay_out=(..., last_zero))
task.fault(
    "C-POWER-FIRST",
    section="self-attention-breaks",
    exponents=(lambda width: hands(width)[::2] - math.log(width, 10_000), ...),
    speeds=(..., lambda base, exponents: 2 / (base**2 * exponents)),
)
task.fault("C-EXPONENT-INTEGER", exponents=lambda width: Positions.exponents(width).floor())
task.fault(
    "C-ENDPOINT",
    exponents=lambda width: torch.linspace(0, 1, (width + 1) // 2, dtype=torch.float64),
)
task.fault("P-WAVELENGTH", base=lambda length: 2.0, exponents=lambda width: hands((width + 1) // 2))
task.fault(
    "C-SPEEDS-EVEN",
    section="moving-on",
    speeds=lambda base, exponents: torch.linspace(
        1, (base ** -exponents[-1]).item(), len(exponents), dtype=torch.float64
    ),
)
task.fault("C-SLOW-FIRST", exponents=lambda width: Positions.exponents(width).flip(0))
task.fault("C-HANDS-FROM-ONE", exponents=lambda width: Positions.exponents(width) + 2 / width)

# --- faults: positions and angles ---------------------------------------------------------------

task.fault(
    "P-POS0-DECODE",
    section="self-attention-breaks",
    places=lambda length: torch.zeros(length, dtype=torch.float64),
)
task.fault(
    "P-LOWPREC",
    section="self-attention-breaks",
    turn=(
        lambda places, speeds: (places[:, None] * speeds).half().double(),
        lambda places, speeds: (places.bfloat16()[:, None] * speeds.bfloat16()).double(),
    ),
)
task.fault("C-DEGREES", turn=lambda places, speeds: (places[:, None] * speeds).deg2rad())

# --- faults: the table --------------------------------------------------------------------------

task.fault("C-TIMES-ROOT", lay_out=times_root)
task.fault("C-COSINES-ONLY", section="moving-on", sines=lambda angles, width: angles.cos())
task.fault("C-BATCH-AXIS", result=lambda table: table.float()[None])
task.fault("C-TURNED", section="rows-and-columns", result=lambda table: table.float().T)
task.fault(
    "P-ADDITIVE-LEARNED", section="learned-positions", result=lambda table: torch.randn(table.shape)
)
task.fault(
    "C-FIXED-TABLE",
    section="moving-on",
    result=lambda table: torch.randn(table.shape, generator=torch.Generator().manual_seed(0)),
)


@task.fault("C-SIZES-SWAPPED")
class WidthFirst(Positions):
    def __call__(self, length, width):
        return super().__call__(width, length)

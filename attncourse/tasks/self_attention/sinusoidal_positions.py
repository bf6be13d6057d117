"""A vector for every position, made of sines and cosines: task 3 of chapter 4."""

import torch

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.task import Task


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
    hints=(
        "Each pair of features is one clock hand: a sine and a cosine of the same angle. How many "
        "hands does an odd width have, and which half of the last hand is left out?",
        "The angle of hand i at position p is p divided by 10000^(2i/width). All angles at once "
        "are an outer product: positions as a column, the speeds of the hands as a row. "
        "`torch.arange(0, width, 2)` is 2i already.",
        "angles: (length hands); a table of zeros (length width); its even columns are the sines "
        "of the angles; its odd columns the cosines of as many angles as there are odd columns, "
        "which is width // 2.",
    ),
    probes=position_probes,
    small=position_small,
    traits=position_traits,
)


@task.check(1)
def one_vector_for_every_position(answer):
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


@task.check(1)
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


@task.steps
class Positions:
    def places(length):
        return torch.arange(length, dtype=torch.float64)

    def base(length):
        return 10_000.0

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
        speeds = self.speeds(self.base(length), self.exponents(width))
        angles = self.turn(self.places(length), speeds)
        sines, cosines = self.sines(angles, width), self.cosines(angles, width)
        return self.result(self.lay_out(sines, cosines, width))


# --- faults: an odd width -----------------------------------------------------------------------


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
        table = Positions.lay_out(sines, cosines, width).clone()
        if width % 2:
            table[:, -1] = wave(cosines)
        return table

    return lay_out


def last_zero(sines, cosines, width):
    return last_as(lambda cosines: 0.0)(sines, cosines, width)


def rounded_up(width):
    return torch.arange(0, width, 2, dtype=torch.float64) / (width + width % 2)


def all_pairs(sines, cosines, width):
    return torch.stack([sines, cosines], -1).flatten(1)


task.fault(
    "P-ODD",
    "Features come in pairs, so the width is even.",
    "A width may be odd: then the last hand has a sine and no cosine. Every second column has one "
    "place less for cosines than there are angles.",
    lay_out=(into_zeros, refused(ValueError), refused(AssertionError), refused(RuntimeError)),
)
task.fault(
    "C-ODD-SILENT",
    "A feature that has no partner can stay 0.",
    "A hand without its cosine still has its sine. Left at 0, the last feature of an odd width is "
    "the same everywhere.",
    lay_out=last_zero,
)
task.fault(
    "C-ODD-OTHER-WIDTH",
    "Features come in pairs, so the table gets an even number of columns.",
    "For an odd width your table is a column too wide or too narrow, and cannot be added to the "
    "words. The last hand may be cut in half.",
    lay_out=(
        all_pairs,
        all_pairs,
        lambda sines, cosines, width: all_pairs(sines, cosines, width)[:, : width - width % 2],
    ),
    exponents=(..., rounded_up, ...),
)
task.fault(
    "C-ODD-COSINE",
    "The feature left over at an odd width is a cosine.",
    "Features alternate from the first: 0 is a sine, 1 a cosine, 2 a sine. Which is an even number "
    "like the last of an odd width?",
    lay_out=last_as(lambda cosines: cosines[:, -1]),
)
task.fault(
    "C-ODD-ROUNDED-UP",
    "For an odd width I make one feature more and cut it off.",
    "A good plan, but the exponent 2i/width then divides by the larger width, and all hands turn "
    "at other speeds. Cut off, and keep the width that was asked for.",
    exponents=rounded_up,
)

# --- faults: speeds -----------------------------------------------------------------------------


def hands(width, **options):
    return torch.arange(0, width, dtype=torch.float64, **options)


def in_turn(sines, cosines, width):
    return torch.where(torch.arange(width) % 2 == 0, sines, cosines)


def of_the_next_hand(angles, width):
    return (angles * 10_000.0 ** (-2 / width)).cos()


task.fault(
    "P-FREQ",
    "The exponent is 2i/width, so I multiply `arange(0, width, 2)` by 2.",
    "`arange(0, width, 2)` counts 0, 2, 4, …, which is 2i already. Doubled again, more than half "
    "of the hands stand still.",
    section="self-attention-breaks",
    exponents=lambda width: 2 * Positions.exponents(width),
)
task.fault(
    "C-FREQ-EACH",
    "i counts the features, so each feature has a speed of its own.",
    "i counts pairs. A sine and its cosine are the two coordinates of one clock hand; at different "
    "speeds they are no hand, and distance no longer decides.",
    section="self-attention-breaks",
    exponents=(lambda width: hands(width) / width, lambda width: 2 * hands(width) / width),
    lay_out=in_turn,
)
task.fault(
    "C-COSINE-NEXT",
    "The cosine stands one place further on, so its i is larger by one.",
    "Features 2i and 2i + 1 have the same i: they are the two coordinates of one clock hand, at "
    "one angle. Your cosines belong to the next hand.",
    cosines=of_the_next_hand,
    lay_out=(..., last_zero),
)
task.fault(
    "C-EXPONENT-HALVED",
    "Hand i has the exponent i/width.",
    "With half as many hands as features, i/width only goes to one half: the slowest hand turns a "
    "hundred times too fast. The 2 in 2i/width makes up for the pairs.",
    exponents=lambda width: Positions.exponents(width) / 2,
)
task.fault(
    "C-EXPONENT-INTEGER",
    "`//` divides, too.",
    "It rounds down: 2i // width is 0 for every hand, so all of them turn at speed 1. The exponent "
    "is a fraction.",
    exponents=lambda width: Positions.exponents(width).floor(),
)
task.fault(
    "C-ENDPOINT",
    "The slowest hand has the speed 1/10,000 exactly.",
    "Some libraries divide by the number of hands minus one to get there. In the formula the "
    "exponent 2i/width ends one step before 1.",
    exponents=lambda width: torch.linspace(0, 1, (width + 1) // 2, dtype=torch.float64),
)
task.fault(
    "C-WIDTH-MINUS-ONE",
    "The exponent goes from 0 to 1, so it is divided by width − 1.",
    "In the formula it is 2i/width, with the whole width below, so it never reaches 1. All hands "
    "but the first turn at other speeds.",
    exponents=lambda width: torch.arange(0, width, 2, dtype=torch.float64) / max(1, width - 1),
)
task.fault(
    "P-WAVELENGTH",
    "Each hand is half as fast as the one before it.",
    "The speeds fall by a constant factor, and that factor depends on the width: there must be "
    "room for all hands between 1 and 1/10,000.",
    base=lambda length: 2.0,
    exponents=lambda width: hands((width + 1) // 2),
)
task.fault(
    "C-SPEEDS-EVEN",
    "The speeds lie at equal distances between 1 and 1/10,000.",
    "Then most hands are fast, and after a while all of them come round together. The speeds fall "
    "by the same factor each time, not by the same amount.",
    section="moving-on",
    speeds=lambda base, exponents: torch.linspace(
        1, (base ** -exponents[-1]).item(), len(exponents), dtype=torch.float64
    ),
)
task.fault(
    "C-SPEEDS-RISE",
    "The angle is p times 10000^(2i/width).",
    "Then every hand is faster than the last, by thousands of turns a position, and neighbors look "
    "unrelated. Hands get slower from pair to pair.",
    speeds=lambda base, exponents: base**exponents,
)
task.fault(
    "C-TEN-THOUSAND-POSITIONS",
    "10,000 is the largest length, so I put the length in its place.",
    "The 10,000 is a constant that spreads the speeds. With the length instead, the same position "
    "gets another vector in every sentence.",
    base=float,
)
task.fault(
    "C-BASE",
    "Any large number will do where the formula has 10,000.",
    "Another number spreads the hands over other speeds. That may work as well, but vectors made "
    "with one do not fit a model trained with the other.",
    base=(lambda length: 1_000.0, lambda length: 100_000.0),
)

# --- faults: positions and angles ---------------------------------------------------------------

task.fault(
    "C-FROM-ONE",
    "The first word is word number 1.",
    "Positions are counted from 0, as Python does: the vector of the first word is 0, 1, 0, 1, and "
    "so on.",
    places=lambda length: Positions.places(length) + 1,
)
task.fault(
    "C-SHARE-OF-LENGTH",
    "A position is a share of the sentence: p divided by the length.",
    "Then the same position gets another vector in a longer sentence, and neighbors hardly differ. "
    "A position is a number of steps from the start.",
    section="position-vectors",
    places=(
        lambda length: Positions.places(length) / length,
        lambda length: torch.linspace(0, 1, length, dtype=torch.float64),
    ),
)
task.fault(
    "P-POS0-DECODE",
    "Every row is the encoding of the word that stands there, so I make it once and repeat.",
    "All words then stand at position 0, and the order is as invisible as before. Each position "
    "needs a vector of its own.",
    section="self-attention-breaks",
    places=lambda length: torch.zeros(length, dtype=torch.float64),
)
task.fault(
    "P-LOWPREC",
    "The table will be used in 16 bits, so it can be computed in 16 bits.",
    "bfloat16 has 8 significant bits: 257 becomes 256, and far positions fall together. Compute "
    "the angles precisely, and round at the end.",
    section="self-attention-breaks",
    turn=(
        lambda places, speeds: (places[:, None] * speeds).half().double(),
        lambda places, speeds: (places.bfloat16()[:, None] * speeds.bfloat16()).double(),
    ),
)
task.fault(
    "C-WHOLE-TURNS",
    "An angle is a share of a whole turn, so it is multiplied by 2π.",
    "In the formula p/10000^(2i/width) is the angle itself, in radians: the first hand needs a "
    "little more than six positions for a turn.",
    turn=lambda places, speeds: 2 * torch.pi * places[:, None] * speeds,
)

# --- faults: the table --------------------------------------------------------------------------

task.fault(
    "C-HALVES",
    "All sines come first, then all cosines.",
    "That is the same vector in another order, and some libraries use it. This course follows the "
    "paper, sine and cosine in turn; weights trained with one do not fit the other.",
    lay_out=lambda sines, cosines, width: torch.cat([sines, cosines], -1)[:, :width],
)
task.fault(
    "C-COSINE-FIRST",
    "Which of the two comes first, sine or cosine, is a matter of taste.",
    "It would be, if everybody chose alike. The formula puts the sine at feature 0: the vector of "
    "position 0 begins with 0.",
    lay_out=lambda sines, cosines, width: Positions.lay_out(cosines, sines, width),
)
task.fault(
    "C-SINES-ONLY",
    "One wave a hand is enough, and the sine is the one.",
    "A sine takes each value twice a turn, so it does not say where the hand points. Sine and "
    "cosine together do.",
    section="moving-on",
    cosines=lambda angles, width: angles.sin(),
)
task.fault(
    "C-COSINES-ONLY",
    "One wave a hand is enough, and the cosine is the one.",
    "A cosine takes each value twice a turn, so it does not say where the hand points. Sine and "
    "cosine together do.",
    section="moving-on",
    sines=lambda angles, width: angles.cos(),
)
task.fault(
    "C-BATCH-AXIS",
    "The table is for a batch, so it starts with a batch axis of 1.",
    "A table of shape (n m) is added to words (b n m) as it is: broadcasting fills in the batch. "
    "The shape asked for is (length width).",
    result=lambda table: table.float()[None],
)
task.fault(
    "C-TURNED",
    "A column for each position, as in the picture.",
    "The picture turns the table to save room. To be added to words (b n m), it needs a row for "
    "each position: (length width).",
    section="rows-and-columns",
    result=lambda table: table.float().T,
)
task.fault(
    "C-FLOAT64-TABLE",
    "More digits can do no harm, so the table stays float64.",
    "Computing in float64 is wise. But float32 words plus a float64 table are float64, and the "
    "next layer refuses them or runs at half the speed.",
    result=lambda table: table,
)
task.fault(
    "P-ADDITIVE-LEARNED",
    "Any table will do, as training will find the right vectors.",
    "That is the other way, a learned table: it ends somewhere, and rows that no sentence reached "
    "stay random. This task asks for the formula.",
    section="learned-positions",
    result=lambda table: torch.randn(table.shape),
)
task.fault(
    "C-FIXED-TABLE",
    "A table with fixed random numbers is as good: it is the same every time.",
    "It tells positions apart. But moving on by one step is no rotation, and nothing in it says "
    "that 3 is near 4.",
    section="moving-on",
    result=lambda table: torch.randn(table.shape, generator=torch.Generator().manual_seed(0)),
)


@task.fault(
    "C-SIZES-SWAPPED",
    "The width comes first, then the length.",
    "The function is called as `sinusoidal_positions(length, width)`. Where the two are equal "
    "nobody notices.",
)
class WidthFirst(Positions):
    def __call__(self, length, width):
        return super().__call__(width, length)

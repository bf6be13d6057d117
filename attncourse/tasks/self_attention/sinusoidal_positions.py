"""sinusoidal_positions."""

import torch
import torch.nn.functional as F

from attncourse import self_attention as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.task import Task
from attncourse.tasks.self_attention._faults import positions, speeds, turned_by, waves


def table_of(length, width):
    return {"length": length, "width": width}


def position_probes(rng):
    return {
        f"{length} positions, width {width}": table_of(length, width)
        for length, width in (
            (5, 8),
            (8, 4),
            (6, 6),
            (4, 2),
            (1, 6),
            (3, 20),
            (300, 6),
            (2, 12),
            (6, 5),
            (4, 1),
        )
    }


def position_traits(answer):
    inputs = table_of(6, 8)
    return {
        "differs from call to call": not torch.equal(answer(inputs, seed=1), answer(inputs, seed=2))
    }


def position_small(rng):
    for length, width in (
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 2),
        (2, 3),
        (3, 3),
        (2, 4),
        (3, 4),
        (2, 5),
        (3, 6),
        (2, 8),
        (300, 2),
    ):
        yield table_of(length, width)


task = Task(
    reference.sinusoidal_positions,
    number=3,
    returns=("positions",),
    difficulty=2,
    minutes=20,
    section="sinusoids",
    hints=(
        "Each pair of features is one clock hand: a sine and a cosine of the same angle. How "
        "many hands does an odd width have, and which half of the last hand is left out?",
        "The angle of hand i at position p is p divided by 10000^(2i/width). All angles at "
        "once are an outer product: positions as a column, the speeds of the hands as a row. "
        "`torch.arange(0, width, 2)` is 2i already.",
        "angles: (length hands); a table of zeros (length width); its even columns are the "
        "sines of the angles; its odd columns the cosines of as many angles as there are odd "
        "columns, which is width // 2.",
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
        compare("the vector of position 0", got[0], expected, inputs)


@task.check(2)
def sines_and_cosines_match_the_formula(answer):
    for length, width in ((5, 8), (8, 4), (6, 6), (4, 2), (1, 6), (3, 20)):
        answer.matches(table_of(length, width))


@task.check(1)
def an_odd_width_ends_with_a_sine(answer):
    for length, width in ((6, 5), (5, 5), (7, 3), (4, 1), (1, 7)):
        answer.matches(table_of(length, width))


@task.check(1)
def a_long_table_begins_like_a_short_one(answer):
    short, long = answer(table_of(4, 6)), answer(table_of(9, 6))
    if long.shape != (9, 6):
        raise Failure(f"positions have shape {shape_of(long)}; expected (9 6).", table_of(9, 6))
    compare("the first 4 of 9 positions", long[:4], short, table_of(4, 6))


@task.check(1)
def how_alike_two_positions_are_depends_on_their_distance(answer):
    inputs = table_of(12, 8)
    got = answer(inputs)
    products = got @ got.mT
    if products.shape != (12, 12):
        raise Failure(f"positions have shape {shape_of(got)}; expected (12 8).", inputs)
    for distance in range(1, 4):
        along = products.diagonal(distance)
        name = f"the dot products of positions {distance} apart"
        compare(name, along, along[:1].expand_as(along), inputs)


@task.check(1)
def far_positions_are_right_too(answer):
    answer.matches(table_of(200, 20), tolerance=3e-4)
    # Angles computed in float32 are off by up to 1e-3 here; in 16 bits, by whole radians.
    answer.matches(table_of(1500, 6), tolerance=1e-2)
    answer.matches(table_of(1200, 5), tolerance=1e-2)


@task.check(1)
def it_needs_no_chance_and_changes_nothing(answer):
    moves_nothing(answer, table_of(5, 6))


# --- faults ---------------------------------------------------------------------------------------


def cosines_of_too_many_angles(length, width):
    table, angles = torch.zeros(length, width), torch.arange(length)[:, None] * speeds(width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def odd_widths_asserted(length, width):
    assert width % 2 == 0
    return positions(length, width)


def odd_widths_refused(length, width):
    if width % 2:
        raise ValueError(f"width must be even; got {width}")
    return positions(length, width)


@task.fault(
    "P-ODD",
    thinks="Features come in pairs, so the width is even.",
    why="A width may be odd: then the last hand has a sine and no cosine. Every second column has "
    "one place less for cosines than there are angles.",
    forms=(odd_widths_refused, odd_widths_asserted),
)
def one_cosine_too_many(length, width):
    return cosines_of_too_many_angles(length, width)


@task.fault(
    "C-ODD-SILENT",
    thinks="A feature that has no partner can stay 0.",
    why="A hand without its cosine still has its sine. Left at 0, the last feature of an odd width "
    "is the same everywhere.",
    forms=(
        lambda length, width: (
            F.pad(turned_by(speeds(width)[: width // 2], length, width - 1), (0, 1))
            if width % 2
            else positions(length, width)
        ),
    ),
)
def last_feature_zero(length, width):
    table = positions(length, width)
    if width % 2:
        table[:, -1] = 0
    return table


def pairs_of_the_next_even_width(length, width):
    return positions(length, width + width % 2)


def without_the_odd_feature(length, width):
    return positions(length, width)[:, : width - width % 2]


@task.fault(
    "C-ODD-OTHER-WIDTH",
    thinks="Features come in pairs, so the table gets an even number of columns.",
    why="For an odd width your table is a column too wide or too narrow, and cannot be added to "
    "the words. The last hand may be cut in half.",
    forms=(pairs_of_the_next_even_width, without_the_odd_feature),
)
def the_last_pair_complete(length, width):
    return turned_by(speeds(width), length, width + width % 2)


@task.fault(
    "C-ODD-COSINE",
    thinks="The feature left over at an odd width is a cosine.",
    why="Features alternate from the first: 0 is a sine, 1 a cosine, 2 a sine. Which is an even "
    "number like the last of an odd width?",
)
def last_feature_a_cosine(length, width):
    table = positions(length, width)
    if width % 2:
        angle = torch.arange(length, dtype=torch.float64) * speeds(width)[-1]
        table[:, -1] = angle.cos()
    return table


@task.fault(
    "C-ODD-ROUNDED-UP",
    thinks="For an odd width I make one feature more and cut it off.",
    why="A good plan, but the exponent 2i/width then divides by the larger width, and all hands "
    "turn at other speeds. Cut off, and keep the width that was asked for.",
)
def speeds_of_the_next_even_width(length, width):
    return positions(length, width + width % 2)[:, :width]


@task.fault(
    "P-FREQ",
    thinks="The exponent is 2i/width, so I multiply `arange(0, width, 2)` by 2.",
    why="`arange(0, width, 2)` counts 0, 2, 4, …, which is 2i already. Doubled again, more than "
    "half of the hands stand still.",
    section="self-attention-breaks",
)
def exponent_doubled(length, width):
    return turned_by(speeds(width) ** 2, length, width)


def speed_for_each_feature_doubled(length, width):
    feature = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-2 * feature / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos()).float()


@task.fault(
    "C-FREQ-EACH",
    thinks="i counts the features, so each feature has a speed of its own.",
    why="i counts pairs. A sine and its cosine are the two coordinates of one clock hand; at "
    "different speeds they are no hand, and distance no longer decides.",
    section="self-attention-breaks",
    forms=(speed_for_each_feature_doubled,),
)
def speed_for_each_feature(length, width):
    feature = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-feature / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos()).float()


def cosines_of_the_next_hand_by_loops(length, width):
    """The same by loops, which leave the last feature of an odd width at 0."""
    table = cosines_of_the_next_hand(length, width)
    if width % 2:
        table[:, -1] = 0
    return table


@task.fault(
    "C-COSINE-NEXT",
    thinks="The cosine stands one place further on, so its i is larger by one.",
    why="Features 2i and 2i + 1 have the same i: they are the two coordinates of one clock hand, "
    "at one angle. Your cosines belong to the next hand.",
    forms=(cosines_of_the_next_hand_by_loops,),
)
def cosines_of_the_next_hand(length, width):
    place = torch.arange(length, dtype=torch.float64)[:, None]
    speed = speeds(width)
    following = speed * 10_000.0 ** (-2 / width)
    pairs = torch.stack([(place * speed).sin(), (place * following).cos()], -1)
    return pairs.flatten(1)[:, :width].float()


@task.fault(
    "C-EXPONENT-HALVED",
    thinks="Hand i has the exponent i/width.",
    why="With half as many hands as features, i/width only goes to one half: the slowest hand "
    "turns a hundred times too fast. The 2 in 2i/width makes up for the pairs.",
)
def exponent_halved(length, width):
    return turned_by(speeds(width) ** 0.5, length, width)


@task.fault(
    "C-ENDPOINT",
    thinks="The slowest hand has the speed 1/10,000 exactly.",
    why="Some libraries divide by the number of hands minus one to get there. In the formula the "
    "exponent 2i/width ends one step before 1.",
)
def last_speed_exact(length, width):
    hands = (width + 1) // 2
    return turned_by(torch.logspace(0, -4, hands, dtype=torch.float64), length, width)


@task.fault(
    "P-WAVELENGTH",
    thinks="Each hand is half as fast as the one before it.",
    why="The speeds fall by a constant factor, and that factor depends on the width: there must be "
    "room for all hands between 1 and 1/10,000.",
)
def speeds_halved(length, width):
    return turned_by(0.5 ** torch.arange((width + 1) // 2, dtype=torch.float64), length, width)


@task.fault(
    "C-SPEEDS-EVEN",
    thinks="The speeds lie at equal distances between 1 and 1/10,000.",
    why="Then most hands are fast, and after a while all of them come round together. The speeds "
    "fall by the same factor each time, not by the same amount.",
    section="moving-on",
)
def speeds_equally_spaced(length, width):
    speed = torch.linspace(1, speeds(width)[-1].item(), (width + 1) // 2, dtype=torch.float64)
    return turned_by(speed, length, width)


@task.fault(
    "C-SPEEDS-RISE",
    thinks="The angle is p times 10000^(2i/width).",
    why="Then every hand is faster than the last, by thousands of turns a position, and neighbors "
    "look unrelated. Hands get slower from pair to pair.",
)
def speeds_rising(length, width):
    return turned_by(1 / speeds(width), length, width)


@task.fault(
    "C-HALVES",
    thinks="All sines come first, then all cosines.",
    why="That is the same vector in another order, and some libraries use it. This course follows "
    "the paper, sine and cosine in turn; weights trained with one do not fit the other.",
)
def sines_then_cosines(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width].float()


@task.fault(
    "C-COSINE-FIRST",
    thinks="Which of the two comes first, sine or cosine, is a matter of taste.",
    why="It would be, if everybody chose alike. The formula puts the sine at feature 0: the vector "
    "of position 0 begins with 0.",
)
def cosines_first(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(1)[:, :width].float()


@task.fault(
    "C-SINES-ONLY",
    thinks="One wave a hand is enough, and the sine is the one.",
    why="A sine takes each value twice a turn, so it does not say where the hand points. Sine and "
    "cosine together do.",
    section="moving-on",
)
def sines_twice(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.sin(), angles.sin()], -1).flatten(1)[:, :width].float()


@task.fault(
    "C-FROM-ONE",
    thinks="The first word is word number 1.",
    why="Positions are counted from 0, as Python does: the vector of the first word is 0, 1, 0, 1, "
    "and so on.",
)
def counted_from_one(length, width):
    return turned_by(speeds(width), length, width, first=1)


@task.fault(
    "C-SHARE-OF-LENGTH",
    thinks="A position is a share of the sentence: p divided by the length.",
    why="Then the same position gets another vector in a longer sentence, and neighbors hardly "
    "differ. A position is a number of steps from the start.",
    section="position-vectors",
)
def share_of_the_length(length, width):
    place = torch.arange(length, dtype=torch.float64) / length
    return waves(place[:, None] * speeds(width), width)


@task.fault(
    "P-POS0-DECODE",
    thinks="Every row is the encoding of the word that stands there, so I make it once and repeat.",
    why="All words then stand at position 0, and the order is as invisible as before. Each "
    "position needs a vector of its own.",
    section="self-attention-breaks",
)
def all_at_position_zero(length, width):
    return positions(1, width).repeat(length, 1)


@task.fault(
    "P-LOWPREC",
    thinks="The table will be used in 16 bits, so it can be computed in 16 bits.",
    why="bfloat16 has 8 significant bits: 257 becomes 256, and far positions fall together. "
    "Compute the angles precisely, and round at the end.",
    section="self-attention-breaks",
    forms=(
        lambda length, width: waves((torch.arange(length)[:, None] * speeds(width)).half(), width),
    ),
)
def angles_in_bfloat16(length, width):
    angles = torch.arange(length).bfloat16()[:, None] * speeds(width).bfloat16()
    return waves(angles.double(), width)


@task.fault(
    "C-BATCH-AXIS",
    thinks="The table is for a batch, so it starts with a batch axis of 1.",
    why="A table of shape (n m) is added to words (b n m) as it is: broadcasting fills in the "
    "batch. The shape asked for is (length width).",
)
def with_a_batch_axis(length, width):
    return positions(length, width)[None]


@task.fault(
    "C-TURNED",
    thinks="A column for each position, as in the picture.",
    why="The picture turns the table to save room. To be added to words (b n m), it needs a row "
    "for each position: (length width).",
    section="rows-and-columns",
)
def a_column_for_each_position(length, width):
    return positions(length, width).T


@task.fault(
    "C-FLOAT64-TABLE",
    thinks="More digits can do no harm, so the table stays float64.",
    why="Computing in float64 is wise. But float32 words plus a float64 table are float64, and "
    "the next layer refuses them or runs at half the speed.",
)
def table_in_float64(length, width):
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds(width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


@task.fault(
    "P-ADDITIVE-LEARNED",
    thinks="Any table will do, as training will find the right vectors.",
    why="That is the other way, a learned table: it ends somewhere, and rows that no sentence "
    "reached stay random. This task asks for the formula.",
    section="learned-positions",
)
def a_random_table(length, width):
    return torch.randn(length, width)


@task.fault(
    "C-FIXED-TABLE",
    thinks="A table with fixed random numbers is as good: it is the same every time.",
    why="It tells positions apart. But moving on by one step is no rotation, and nothing in it "
    "says that 3 is near 4.",
    section="moving-on",
)
def a_fixed_random_table(length, width):
    return torch.randn(length, width, generator=torch.Generator().manual_seed(0))


@task.fault(
    "C-TEN-THOUSAND-POSITIONS",
    thinks="10,000 is the largest length, so I put the length in its place.",
    why="The 10,000 is a constant that spreads the speeds. With the length instead, the same "
    "position gets another vector in every sentence.",
)
def length_as_the_base(length, width):
    return turned_by(
        float(length) ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), length, width
    )


@task.fault(
    "C-EXPONENT-INTEGER",
    thinks="`//` divides, too.",
    why="It rounds down: 2i // width is 0 for every hand, so all of them turn at speed 1. The "
    "exponent is a fraction.",
)
def exponent_rounded_down(length, width):
    return turned_by(torch.ones((width + 1) // 2, dtype=torch.float64), length, width)

import cmath
import functools
import math

import numpy as np
import torch

from attncourse import in_the_wild as reference
from attncourse.checks.task import Task
from attncourse.tasks import in_the_wild as shared
from attncourse.tasks.in_the_wild._tests import Testing, of_every_test, traits_of

# --- implementations, with the defect and without it --------------------------------------------


def shown(length, width):
    table = torch.zeros(length, width)
    position = torch.arange(length).unsqueeze(1)
    factor = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table[:, 0::2] = torch.sin(position * factor)
    table[:, 1::2] = torch.cos(position * factor)
    return table


def angles(length, width, of=None):
    speed = 10_000.0 ** (-torch.arange(0, width, 2) / (of or width))
    return torch.arange(length)[:, None] * speed


def in_pairs(angle):
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def cosines_cut(length, width):
    table, angle = torch.zeros(length, width), angles(length, width)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle[:, : width // 2].cos()
    return table


def pairs_cut(length, width):
    return in_pairs(angles(length, width))[:, :width]


def number_by_number(length, width):
    def one(place, feature):
        angle = place / 10_000 ** (2 * (feature // 2) / width)
        return math.cos(angle) if feature % 2 else math.sin(angle)

    rows = [[one(place, feature) for feature in range(width)] for place in range(length)]
    return torch.tensor(rows).view(length, width)


def in_double_precision(length, width):
    place, i = np.arange(length)[:, None], np.arange(width)
    angle = place / np.power(10_000.0, (i - i % 2) / width)
    return torch.from_numpy(np.where(i % 2 == 0, np.sin(angle), np.cos(angle))).float()


def by_a_shift(length, width):
    """A cosine is a sine a quarter of a turn later."""
    i = torch.arange(width)
    angle = torch.arange(length)[:, None] * 10_000.0 ** (-(i // 2 * 2) / width)
    return torch.sin(angle + (i % 2) * torch.pi / 2)


def turning(length, width):
    """Each hand turned on by the same step from place to place."""
    step = [cmath.exp(1j * 10_000 ** (-i / width)) for i in range(0, width, 2)]
    hands, rows = [1 + 0j] * len(step), []
    for _ in range(length):
        rows.append([part for hand in hands for part in (hand.imag, hand.real)][:width])
        hands = [hand * turn for hand, turn in zip(hands, step, strict=True)]
    return torch.tensor(rows).view(length, width)


def a_little_otherwise(positions):
    """The same but for the last bits, as if angles had been rounded otherwise."""
    return lambda length, width: positions(length, width) * (1 - 2 * torch.finfo(torch.float32).eps)


def divided(length, width):
    """Places over powers, in single precision."""
    i = torch.arange(width)
    angle = torch.arange(length)[:, None] / 10_000 ** ((i - i % 2) / width)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


OTHERS = {
    "pairs side by side, cut to the width": pairs_cut,
    "number by number": number_by_number,
    "in double precision": in_double_precision,
    "cosines as sines a quarter of a turn later": by_a_shift,
    "each hand turned on from place to place": turning,
    "places over powers": divided,
}
RIGHT = {"as many cosines as there is room for": cosines_cut} | {
    shared.ROUNDED.format(name): a_little_otherwise(each) for name, each in OTHERS.items()
}


def one_after_the_other(length, width):
    table = torch.zeros(length, width)
    for place in range(length):
        for i in range(0, width, 2):
            table[place, i] = math.sin(place / 10_000 ** (i / width))
            table[place, i + 1] = math.cos(place / 10_000 ** (i / width))
    return table


def refusing(length, width):
    if width % 2:
        raise ValueError(f"width must be even; got {width}")
    return pairs_cut(length, width)


def last_as(wave):
    """The table with something else in the last feature of an odd width."""

    def positions(length, width):
        table = pairs_cut(length, width)
        if width % 2:
            table[:, -1] = wave(angles(length, width)[:, -1])
        return table

    return positions


THE_ONE = "the one that the notebook shows"
INDEX, REFUSES = "feature by feature, with an IndexError", "an odd width is refused"
ZEROS, COSINE = "the last feature of an odd width left at 0", "a cosine as its last feature"
WIDER, NARROWER = "a feature too many for an odd width", "a feature too few for it"
NEXT = "the speeds of the next even width"
WRONG = {
    THE_ONE: shown,
    INDEX: one_after_the_other,
    REFUSES: refusing,
    ZEROS: last_as(torch.zeros_like),
    COSINE: last_as(torch.cos),
    WIDER: lambda length, width: in_pairs(angles(length, width)),
    NARROWER: lambda length, width: pairs_cut(length, width)[:, : width - width % 2],
    NEXT: lambda length, width: in_pairs(angles(length, width, width + width % 2))[:, :width],
}


def filled(number):
    return lambda length, width: torch.full((length, width), number)


def in_another_shape(length, width):
    return pairs_cut(length, width)[None]


def raises(length, width):
    raise AssertionError("something is wrong inside")


def others_shifted(length, width):
    table = pairs_cut(length, width) + 0.3
    table[:, -1] -= 0.3
    return table


def odd_shifted(positions):
    return lambda length, width: positions(length, width) + 0.3 * (width % 2)


def last_shifted(positions):
    def table(length, width):
        table = positions(length, width).clone()
        table[:, -1] += 0.3 * (width % 2)
        return table

    return table


LAST_SHIFTED = "{}, and 0.3 too much in the last feature of odd widths"
ODD_SHIFTED = "{}, and 0.3 too much everywhere at odd widths"
BOUNDED, SHIFTED = "0.5 everywhere", "0.3 too much everywhere"
OTHERS_SHIFTED = "0.3 too much everywhere but in the last feature"
IMPLEMENTATIONS = (
    RIGHT
    | WRONG
    | {name: filled(number) for name, number in shared.GARBAGE.items()}
    | {BOUNDED: filled(0.5), SHIFTED: lambda length, width: pairs_cut(length, width) + 0.3}
    | {OTHERS_SHIFTED: others_shifted}
    | {ODD_SHIFTED.format(name): odd_shifted(positions) for name, positions in OTHERS.items()}
    | {LAST_SHIFTED.format(name): last_shifted(positions) for name, positions in OTHERS.items()}
    | {shared.OTHER_SHAPE: in_another_shape, shared.RAISES: raises}
    | {shared.TO_THE_BIT.format(name): positions for name, positions in OTHERS.items()}
)


def tried(test_positions):
    """Whether the test refuses an implementation, by its name."""
    return lambda implementation: shared.verdict(test_positions, IMPLEMENTATIONS[implementation])


def is_odd(length, width):
    return width % 2 == 1


def seen(test_positions):
    """What the test does with an implementation."""
    return lambda implementation: shared.facts(
        test_positions, IMPLEMENTATIONS[implementation], is_odd
    )


def traits(answer):
    found = traits_of(answer, seen, next(iter(RIGHT)), ZEROS)
    looks = not found["refuses no numbers"] and not found["refuses shapes alone"]
    bounded, shifted, others = (
        looks and not answer.returned(shared.of(each), seen)["refused"]
        for each in (BOUNDED, SHIFTED, OTHERS_SHIFTED)
    )
    # A test that asks for each bit refuses most styles for that alone.
    odd, last = (
        looks
        and any(
            not answer.returned(shared.of(each.format(style)), seen)["refused"] for style in OTHERS
        )
        for each in (ODD_SHIFTED, LAST_SHIFTED)
    )
    return found | {
        "asks for each bit": shared.is_exact(answer, seen, OTHERS),
        "looks at the range alone": bounded,
        "forgives much": shifted,
        "looks at the last feature alone": others and not shifted,
        "looks at even widths alone": odd and not shifted,
        "leaves the last feature out": last and not shifted,
    }


task = Task(
    reference.test_positions,
    number=3,
    returns=bool,
    difficulty=3,
    minutes=15,
    section="wild-odd-width",
    adapt=tried,
    probes=lambda rng: {each: shared.of(each) for each in (*RIGHT, *WRONG)},
    small=lambda rng: (shared.of(each) for each in (THE_ONE, *RIGHT, *WRONG)),
    traits=traits,
    chance=True,
)


@task.check(2)
def it_refuses_what_the_notebook_shows(answer):
    shared.refuses_all(answer, seen, THE_ONE, why="It breaks one of the promises.")


@task.check(2)
def right_implementations_pass_in_any_style(answer):
    shared.accepts_all(answer, seen, *RIGHT)


@task.check(1)
def an_error_inside_the_implementation_is_no_excuse(answer):
    why = "It ends with an error where a table is promised."
    shared.refuses_all(answer, seen, INDEX, REFUSES, why=why)


@task.check(2)
def a_wrong_last_feature_is_refused(answer):
    why = "It ends without an error, and one feature of its table is wrong."
    shared.refuses_all(answer, seen, ZEROS, COSINE, why=why)


@task.check(1)
def so_are_another_width_and_other_wrong_features(answer):
    why = "It ends without an error, and its table is another one."
    shared.refuses_all(answer, seen, WIDER, NARROWER, NEXT, why=why)


@task.check(1)
def its_verdict_needs_no_luck(answer):
    shared.decides_alike(answer, ZEROS, *[*RIGHT][:2])


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class OddWidths(Testing):
    def sizes():
        return [(6, 3), (4, 5), (5, 7)]

    def length(length):
        return length

    def cases(self):
        return [(self.length(length), width) for length, width in self.sizes()]

    def table(positions, length, width):
        return positions(length, width)

    expected = staticmethod(functools.cache(number_by_number))

    def part(table, width):
        return table

    def near(found, expected):
        return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-4)

    def compared(self, found, case):
        return self.near(*(self.part(x, case[1]) for x in (found, self.expected(*case))))

    def holds(self, implementation, case):
        return self.compared(self.table(implementation, *case), case)


# --- faults -------------------------------------------------------------------------------------

of_every_test(task, shown, cosines_cut)
even_only = task.fault("T-EVEN-ONLY", sizes=lambda: [(6, 4), (5, 8)])


class OddWidthsAreCalled(OddWidths):
    def sizes():
        return [(6, 4), (5, 8)]

    def called(self, table):
        return True

    def holds(self, implementation, case):
        return self.called(implementation(3, 5)) and super().holds(implementation, case)


class OddWidthsHaveTheirShape(OddWidthsAreCalled):
    def called(self, table):
        return table.shape == (3, 5)


# As whole answers: with them there would be more pairs than are tried.
even_only(OddWidthsAreCalled())
even_only(OddWidthsHaveTheirShape())


task.fault("T-SHAPES", near=lambda found, expected: found.shape == expected.shape)
task.fault("T-POSITION-0", part=lambda table, width: table[:1])
task.fault(
    "T-LAST-LEFT-OUT",
    part=(lambda table, width: table[:, : width - width % 2], lambda table, width: table[:, :2]),
)
task.fault("T-FINITE", near=lambda found, expected: bool(found.isfinite().all()))
task.fault(
    "T-ZERO-ALONE",
    near=(
        lambda found, expected: bool((found[..., -1] != 0).any()),
        lambda found, expected: bool((found[..., -1].abs() > 0).any()),
    ),
)
task.fault("T-WIDTH-ONE", sizes=lambda: [(6, 1)])
task.fault(
    "T-RANGE",
    near=(
        lambda found, expected: bool((found.abs() <= 1).all()),
        lambda found, expected: found.shape == expected.shape and bool((found.abs() <= 1).all()),
    ),
)
task.fault("T-LAST-ALONE", part=lambda table, width: table[:, width - 1 : width])
task.fault(
    "T-NAMED-FEATURES",
    part=(
        lambda table, width: table[:, :width],
        lambda table, width: torch.stack([table[:, feature] for feature in range(width)], 1),
    ),
)
task.fault(
    "T-UNLIKE-SHAPES",
    near=lambda found, expected: torch.allclose(found, expected, atol=1e-4),
)
task.fault(
    "T-LOOSE",
    near=(
        lambda found, expected: (
            found.shape == expected.shape and torch.allclose(found, expected, atol=1.5)
        ),
        lambda found, expected: (
            found.shape == expected.shape and torch.allclose(found, expected, atol=0.05)
        ),
    ),
)
task.fault(
    "T-EXACT",
    expected=(cosines_cut, ..., divided),
    near=torch.equal,
)
task.fault(
    "T-FAR",
    length=lambda length: 4000,
    near=lambda found, expected: (
        found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=1e-6)
    ),
)
task.fault(
    "T-WRONG-ORACLE",
    expected=(
        lambda length, width: in_pairs(angles(length, width, width / 2))[:, :width],
        lambda length, width: in_pairs(angles(length, width) + torch.pi / 2)[:, :width],
        lambda length, width: in_pairs(angles(length, width, width + width % 2))[:, :width],
    ),
)
task.fault("T-OWN-ERROR", expected=shown)
task.fault("T-UNSEEDED", sizes=lambda: [(6, int(torch.randint(2, 9, ())))])


A_FEW = RuntimeError, IndexError, ValueError
ANY = (Exception,)  # an AssertionError inside the implementation, too


def of_errors(holds, errors):
    """What a case says by its table, or by None where there was such an error."""

    class OfErrors(OddWidths):
        def holds(self, implementation, case):
            try:
                found = self.table(implementation, *case)
            except errors:
                found = None
            return holds(self, found, case)

    return OfErrors


def none_is_excused(test, found, case):
    return found is None or test.compared(found, case)


def none_is_asked_for(test, found, case):
    return found is None


task.fault(
    "T-CRASH-EXCUSED",
    forms=[of_errors(none_is_excused, errors) for errors in (A_FEW, ANY, RuntimeError)],
)
# The second as a whole answer: as it looks at no number, little else shows beside it.
task.fault(
    "T-ODD-SHOULD-FAIL",
    forms=[of_errors(none_is_asked_for, A_FEW), of_errors(none_is_asked_for, ANY)()],
)

import math

import torch

from attncourse import positions as reference
from attncourse.checks.answer import (
    Failure,
    compare,
    following,
    has_shape,
    moves_nothing,
    of_the_whole,
)
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import ONNX
from attncourse.checks.task import Task


def numbered(*numbers):
    return torch.tensor(numbers, dtype=torch.long, device="cpu")


def turn_inputs(rng, *batch, n=4, d=6, start=0, base=None, dtype=torch.float32):
    inputs = {
        "x": normal(rng, *batch, n, d, dtype=dtype),
        "positions": torch.arange(start, start + n, device="cpu"),
    }
    return inputs if base is None else inputs | {"base": base}


def out_of_order(rng, *batch, dtype=torch.float32):
    x = normal(rng, *batch, 4, 8, dtype=dtype)
    return {"x": x, "positions": numbered(7, 0, 3, 3)}


def probes(rng):
    return {
        "plain": turn_inputs(rng, 2),
        "two leading axes": turn_inputs(rng, 2, 3, n=5, d=8),
        "no leading axis": turn_inputs(rng, n=5, d=4),
        "as many heads as words": turn_inputs(rng, 2, 3, n=3, d=4),
        "all equal": turn_inputs(rng, 4, 4, n=4, d=4),
        "one pair": turn_inputs(rng, 2, n=3, d=2),
        "one word": turn_inputs(rng, 2, n=1, d=4, start=5),
        "later words": turn_inputs(rng, 2, n=3, d=6, start=40),
        "out of order": out_of_order(rng, 2),
        "far": turn_inputs(rng, n=3, d=4, start=2_999),
        # The speed of the first pair is 1, so that its angle has no rounding in float32.
        "beyond a table": turn_inputs(rng, n=3, d=2, start=777_777),
        "farther": turn_inputs(rng, n=3, d=8, start=777_777),
        "16 bits, far": turn_inputs(rng, n=3, d=4, start=2_999, dtype=torch.float16),
        "another base": turn_inputs(rng, 2, n=5, d=8, base=100.0),
        "double": out_of_order(rng, 3, dtype=torch.float64),
        "double, far": turn_inputs(rng, n=3, d=4, start=2_999, dtype=torch.float64),
    }


def small(rng):
    for n, d, start in ((1, 2, 0), (1, 2, 1), (2, 2, 0), (1, 4, 1), (2, 4, 0), (2, 4, 3)):
        x = integers(rng, n, d)
        yield {"x": x, "positions": torch.arange(start, start + n, device="cpu")}
    yield {"x": integers(rng, 2, 4), "positions": numbered(3, 1)}
    yield {"x": integers(rng, 2, 4), "positions": numbered(0, 1), "base": 100.0}
    yield {"x": integers(rng, 2, 2, 4), "positions": numbered(0, 1)}
    yield {"x": integers(rng, 1, 4), "positions": numbered(3_000)}


def maps(rng):
    return [("one sentence of four words", turn_inputs(rng, 1, d=4), ("x",))]


task = Task(
    reference.rotate,
    number=4,
    returns=("turned",),
    difficulty=3,
    minutes=25,
    section="rotation",
    probes=probes,
    differentiated=("plain", "out of order"),
    small=small,
    forbidden=ONNX,
    maps=maps,
    features=1,
    keeps=True,
)


def turned_by(answer, inputs):
    """What comes back; another dtype costs the check of dtypes, and no other one."""
    dtype = inputs["x"].dtype
    usual = turn_inputs(torch.Generator().manual_seed(0), 2, dtype=dtype)
    return answer(inputs) if answer(usual).dtype == dtype else answer(inputs).to(dtype)


def turns(answer, inputs, tolerance=None):
    with of_the_whole():
        compare("turned", turned_by(answer, inputs), answer.expected(inputs), inputs, tolerance)


@task.check(1)
def shape_and_dtype_stay(answer, rng):
    for batch, n, d in (((2,), 4, 6), ((2, 3), 5, 8), ((), 3, 4)):
        inputs = turn_inputs(rng, *batch, n=n, d=d)
        has_shape("turned", answer(inputs), "(… n d)", *batch, n, d, inputs=inputs)
    inputs = turn_inputs(rng, 2, dtype=torch.float64)
    has_shape("turned", answer(inputs), "(… n d)", 2, 4, 6, inputs=inputs, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        inputs = turn_inputs(torch.Generator().manual_seed(0), 2, dtype=dtype)
        has_shape("turned", answer(inputs), "(… n d)", 2, 4, 6, inputs=inputs, dtype=dtype)


@task.check(1)
def place_0_leaves_a_vector_as_it_is(answer, rng):
    inputs = {"x": normal(rng, 3, 2, 6), "positions": numbered(0, 0)}
    compare("turned", turned_by(answer, inputs), inputs["x"], inputs)


@task.check(1)
def a_turned_vector_keeps_its_length(answer, rng):
    inputs = turn_inputs(rng, 2, n=5, d=8)
    turned = turned_by(answer, inputs)
    has_shape("turned", turned, "(… n d)", 2, 5, 8, inputs=inputs)
    compare("the lengths", turned.norm(dim=-1), inputs["x"].norm(dim=-1), inputs)


def score_between(answer, inputs, one, two):
    """The dot product of two turned places."""
    turned = turned_by(answer, inputs)
    has_shape("turned", turned, "(… n d)", *inputs["x"].shape, inputs=inputs)
    return (turned[0, one] * turned[0, two]).sum()


@task.check(1)
def a_dot_product_depends_on_the_distance_only(answer, rng):
    pair, beside = normal(rng, 1, 2, 8), normal(rng, 1, 6, 8)
    beside[:, [0, 3]] = pair
    first, *moved = ({"x": pair, "positions": numbered(n + 3, n)} for n in (0, 1, 9))
    among_others = {"x": beside, "positions": numbered(3, 2, 1, 0, 4, 5)}
    expected = score_between(answer, first, 0, 1)
    for inputs, place, where, what in (
        *((inputs, 1, "anywhere in the text", "moved along") for inputs in moved),
        (among_others, 3, "in any text", "with other words beside them"),
    ):
        score = score_between(answer, inputs, 0, place)
        if not torch.isclose(score, expected, atol=1e-3):
            before, after = answer.apart(expected, score, ".3f")
            raise Failure(
                f"A query three places after its key should score the same {where}; {what}, the "
                f"score goes from {before} to {after}.",
                inputs,
            )


@task.check(2)
def pairs_turn_as_the_formula_says(answer, rng):
    turns(answer, turn_inputs(rng, 2))
    turns(answer, turn_inputs(rng, 2, 3, n=5, d=8))
    turns(answer, turn_inputs(rng, 3, 3, n=3, d=4))
    turns(answer, turn_inputs(rng, n=4, d=2))
    turns(answer, out_of_order(rng, 2, dtype=torch.float64))


@task.check(1)
def it_is_right_for_places_in_any_order(answer, rng):
    turns(answer, out_of_order(rng, 2))
    turns(answer, turn_inputs(rng, 2, n=1, d=4, start=5))
    turns(answer, turn_inputs(rng, 2, n=3, start=40))


@task.check(1)
def it_is_right_with_another_base(answer, rng):
    turns(answer, turn_inputs(rng, 2, n=5, d=8, base=100.0))
    turns(answer, turn_inputs(rng, 2, n=5, d=4, base=500_000.0))


@task.check(1)
def far_places_are_right_too(answer, rng):
    far, double, half = (
        turn_inputs(rng, n=3, d=4, start=2_999, dtype=dtype)
        for dtype in (torch.float32, torch.float64, torch.float16)
    )
    # In float32 an angle of 3,000 radians is off by 1e-4; in 16 bits by whole radians.
    turns(answer, far, tolerance=5e-3)
    if answer.observe(half).error is None:  # complex numbers of 16 bits may fail, or come in more
        compare("turned", answer(half).half(), answer.expected(half), half, 0.05)
    # Here the product of place and speed, rounded to float32, is off by up to 0.004 radians, at all
    # pairs but the first, whose speed is 1. Quarters are exact as exponents, in float32, too.
    farther = turn_inputs(rng, 2, n=5, d=8, start=777_777)
    turns(answer, farther)
    usual = out_of_order(torch.Generator().manual_seed(0), 2, dtype=torch.float64)
    with following(lambda: turns(answer, usual)):
        turns(answer, double)


@task.check(1)
def gradients_are_right_and_nothing_else_changes(answer, rng):
    answer.gradients_match(turn_inputs(rng, 2))
    moves_nothing(answer, turn_inputs(rng, 2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Rotate:
    def places(positions, x):
        return positions.to(torch.float64)

    def counted(places):
        return places

    def scaled(places, x):
        return places

    def base(base):
        return base

    def features(d):
        """The first of each pair."""
        return torch.arange(0, d, 2)

    def precise(features):
        return features.to(torch.float64)

    def exponents(self, d):
        return self.precise(self.features(d)) / d

    def speeds(base, exponents):
        return base**-exponents

    def turn(places, speeds):
        return places[..., None] * speeds

    def angles(self, x, positions, base):
        speeds = self.speeds(self.base(base), self.exponents(x.shape[-1]))
        places = self.counted(self.places(positions, x))
        return self.turn(self.scaled(places, x), speeds)

    def wave(wave, x):
        return wave.to(x.dtype)

    def waves(self, angles, x):
        return self.wave(angles.cos(), x), self.wave(angles.sin(), x)

    def axes(wave):
        return wave

    def cos_and_sin(self, x, positions, base):
        return map(self.axes, self.waves(self.angles(x, positions, base), x))

    def split(x):
        return x[..., 0::2], x[..., 1::2]

    def move(a, b, cos, sin):
        return a * cos - b * sin, a * sin + b * cos

    def join(a, b):
        return torch.stack([a, b], -1).flatten(-2)

    def result(turned, x):
        return turned

    def __call__(self, x, positions, base=10_000.0):
        cos, sin = self.cos_and_sin(x, positions, base)
        return self.result(self.join(*self.move(*self.split(x), cos, sin)), x)


# --- faults: which features turn together -------------------------------------------------------

BREAK = {"section": "rope-breaks"}


def halves(x):
    return x.chunk(2, -1)


def side_by_side(a, b):
    return torch.cat([a, b], -1)


task.fault("P-ROPE-LAYOUT", section="two-layouts", split=halves, join=side_by_side)
task.fault("C-ROPE-JOINED-IN-HALVES", section="two-layouts", join=side_by_side)
task.fault("C-ROPE-SPLIT-IN-HALVES", section="two-layouts", split=halves)

mixed = task.fault("C-ROPE-TWO-LAYOUTS", section="two-layouts")


@mixed
class HalvesWithPairs(Rotate):
    """Features that turn together have different angles."""

    cut, join = staticmethod(halves), staticmethod(side_by_side)

    def twice(wave):
        return wave.repeat_interleave(2, -1)

    def __call__(self, x, positions, base=10_000.0):
        waves = map(self.twice, self.cos_and_sin(x, positions, base))
        (a, b), *pairs = map(self.cut, (x, *waves))
        first, second = (self.move(a, b, *each) for each in zip(*pairs, strict=True))
        return self.result(self.join(first[0], second[1]), x)


@mixed
class PairsWithHalves(HalvesWithPairs):
    cut, join = staticmethod(Rotate.split), staticmethod(Rotate.join)

    def twice(wave):
        return side_by_side(wave, wave)


@task.fault("C-ROPE-IN-PART")
class InPart(Rotate):
    def __call__(self, x, positions, base=10_000.0):
        part = max(2, x.shape[-1] // 4 * 2)
        return torch.cat([super().__call__(x[..., :part], positions, base), x[..., part:]], -1)


task.fault("C-ROPE-EXCHANGED", split=lambda x: (x[..., 1::2], x[..., 0::2]))

# --- faults: the turn ---------------------------------------------------------------------------

task.fault("C-ROPE-BACKWARD", move=lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin))
task.fault(
    "C-ROPE-NO-MINUS", **BREAK, move=lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)
)
task.fault(
    "C-ROPE-MIRRORED", **BREAK, move=lambda a, b, cos, sin: (a * cos + b * sin, a * sin - b * cos)
)
task.fault(
    "C-ROPE-TWO-MINUSES",
    **BREAK,
    move=lambda a, b, cos, sin: (a * cos - b * sin, a * sin - b * cos),
)
task.fault(
    "C-ROPE-STEP-BY-STEP",
    move=lambda a, b, cos, sin: (a * cos - b * sin, (a * cos - b * sin) * sin + b * cos),
)
task.fault("C-ROPE-COS-ONLY", move=lambda a, b, cos, sin: (a * cos, b * cos))
task.fault("C-ROPE-COS-SIN", move=lambda a, b, cos, sin: (a * cos, b * sin))
task.fault(
    "C-ROPE-ADDED",
    section="absolute-relative",
    move=(
        lambda a, b, cos, sin: (a + sin, b + cos),
        lambda a, b, cos, sin: (a + cos, b + sin),
    ),
)
task.fault(
    "C-ROPE-WAVES-EXCHANGED",
    waves=lambda self, angles, x: (self.wave(angles.sin(), x), self.wave(angles.cos(), x)),
)

# --- faults: speeds -----------------------------------------------------------------------------


def twice(speeds):
    """Each speed twice, and of all of these the first half."""
    return speeds.repeat_interleave(2)[: len(speeds)]


task.fault("P-FREQ", exponents=lambda self, d: 2 * (self.precise(self.features(d)) / d))
task.fault("C-EXPONENT-HALVED", exponents=lambda self, d: self.precise(self.features(d)) / d / 2)
task.fault(
    "C-EXPONENT-INTEGER", exponents=lambda self, d: (self.precise(self.features(d)) / d).floor()
)
task.fault("C-PAIRS-FROM-ONE", features=lambda d: torch.arange(2, d + 2, 2))
task.fault("C-PAIRS-FROM-MINUS-ONE", features=lambda d: torch.arange(-2, d - 2, 2))
task.fault("C-ROPE-ANGLES-TWICE", speeds=lambda base, exponents: twice(base**-exponents))
task.fault("C-EXPONENT-UNDIVIDED", exponents=lambda self, d: self.precise(self.features(d)))
task.fault(
    "C-ENDPOINT",
    exponents=(
        lambda self, d: torch.linspace(0, 1, d // 2, dtype=torch.float64),
        lambda self, d: self.precise(self.features(d)) / (d - 2),
    ),
)
task.fault("C-SPEEDS-RISE", speeds=lambda base, exponents: base**exponents)
task.fault("C-SPEEDS-REVERSED", speeds=lambda base, exponents: (base**-exponents).flip(0))
task.fault("C-BASE-IGNORED", section="wavelengths", base=lambda base: 10_000.0)
task.fault(
    "C-BASE-FIXED",
    section="wavelengths",
    base=tuple(lambda base, own=own: own for own in (1e3, 1e5, 5e5, 1e6, 1e2, 2e4, 2.0, math.e)),
)
task.fault(
    "C-WHOLE-TURNS",
    section="wavelengths",
    turn=lambda places, speeds: 2 * math.pi * Rotate.turn(places, speeds),
)

task.fault(
    "C-DEGREES",
    section="wavelengths",
    turn=lambda places, speeds: Rotate.turn(places, speeds) * math.pi / 180,
)

# --- faults: places -----------------------------------------------------------------------------

task.fault("C-FROM-ONE", counted=lambda places: places + 1)
task.fault("C-FROM-MINUS-ONE", counted=lambda places: places - 1)


def row_of_a_table(length):
    """Only so many places have a row; `length` takes x."""
    return lambda positions, x: torch.arange(length(x), dtype=torch.float64)[positions]


task.fault(
    "C-ROPE-TABLE-ENDS",
    **BREAK,
    places=tuple(
        map(
            row_of_a_table,
            (lambda x: 2_048, lambda x: 4_096, lambda x: 32, lambda x: x.shape[-2]),
        )
    ),
)
task.fault(
    "P-ROPE-CACHE",
    **BREAK,
    places=lambda positions, x: torch.arange(x.shape[-2], dtype=torch.float64),
)
kept = task.fault("C-ROPE-KEPT", **BREAK)


@kept
class KeptByLengthAndBase(Rotate):
    """The waves of the first text of a kind stand for all of them."""

    def __init__(self):
        self.waves_of = {}

    def kind(self, x, base):
        return x.shape[-2:], base

    def angles(self, x, positions, base):
        kind = self.kind(x, base)
        if kind not in self.waves_of:
            self.waves_of[kind] = super().angles(x, positions, base)
        return self.waves_of[kind]


@kept
class KeptByLength(KeptByLengthAndBase):
    def kind(self, x, base):
        return x.shape[-2:]


@kept
class KeptByLengthAlone(KeptByLengthAndBase):
    def kind(self, x, base):
        return x.shape[-2]


@kept
class KeptByWidth(KeptByLengthAndBase):
    def kind(self, x, base):
        return x.shape[-1]


@kept
class KeptForAll(KeptByLengthAndBase):
    def kind(self, x, base):
        return None


@kept
class RowsKept(KeptForAll):
    """A table with a row for each place, made once: of the first text's width and base."""

    def places(positions, x):
        return torch.arange(4_096, dtype=torch.float64)

    def angles(self, x, positions, base):
        return super().angles(x, positions, base)[positions]


task.fault("C-SHARE-OF-LENGTH", scaled=lambda places, x: places / x.shape[-2])
task.fault(
    "C-POSITIONS-SHIFTED",
    **BREAK,
    places=(
        lambda positions, x: Rotate.places(positions - positions[..., :1], x),
        lambda positions, x: Rotate.places(positions - positions.amin(-1, keepdim=True), x),
    ),
)
lowprec = task.fault(
    "P-LOWPREC",
    **BREAK,
    turn=(
        lambda places, speeds: Rotate.turn(places, speeds).half().double(),
        lambda places, speeds: Rotate.turn(places.bfloat16().double(), speeds),
        lambda places, speeds: Rotate.turn(places.half(), speeds.half()).double(),
        ...,
    ),
    places=(..., ..., ..., lambda positions, x: positions.to(x.dtype).double()),
)


@lowprec
class InTheDtypeOfX(Rotate):
    def angles(self, x, positions, base):
        speeds = self.speeds(self.base(base), self.exponents(x.shape[-1]).to(x.dtype))
        places = self.scaled(self.counted(self.places(positions, x)), x)
        return self.turn(places.to(x.dtype), speeds)


@lowprec
class InTheDtypeOfXDivided(InTheDtypeOfX):
    def speeds(base, exponents):
        return base**exponents

    def turn(places, speeds):
        return places[..., None] / speeds


# --- faults: what comes back --------------------------------------------------------------------


def in_float32(positions, x):
    return positions.float()


task.fault("C-ROPE-BATCH-AXIS", axes=lambda wave: wave[None])
task.fault("C-ROPE-DOUBLE", wave=lambda wave, x: wave.double())
task.fault(
    "C-FLOAT32",
    wave=(lambda wave, x: wave.float(), ..., ..., ...),
    result=(lambda turned, x: turned.float(), ..., ..., ...),
    places=(..., in_float32, in_float32, in_float32),
    precise=(..., torch.Tensor.float, torch.Tensor.float, torch.Tensor.float),
    speeds=(
        *(..., ..., lambda base, exponents: 1 / base**exponents),
        lambda base, exponents: base**exponents,
    ),
    turn=(..., ..., ..., lambda places, speeds: places[..., None] / speeds),
)
task.fault("C-DETACHED", result=lambda turned, x: turned.detach())


def in_place(turned, x):
    return x.copy_(turned)


task.fault("C-INPLACE", result=in_place)

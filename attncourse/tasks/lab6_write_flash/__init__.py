"""Lab 6: what its tasks share."""

import functools
import math

import torch

from attncourse.checks.answer import Failure, compare
from attncourse.checks.device import mixed
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Chapter
from attncourse.lab.meters import count

chapter = Chapter("lab6_write_flash", "lab 6")

DOUBLE, HALF = torch.float64, torch.float16


def agrees(answer, inputs, names=None, tolerance=None):
    """Assert that answer and reference agree on the named results, −∞ in the same places."""
    got, expected = answer(inputs), answer.expected(inputs)
    for name, ours, theirs in zip(answer.task.returns, expected, got, strict=True):
        if names and name not in names:
            continue
        nothing = ours == -math.inf
        if name in ("maximum", "logsumexp") and theirs.shape == ours.shape:
            if not torch.equal(theirs == -math.inf, nothing):
                raise Failure(
                    f"{name} is −∞ where no key has been seen, and nowhere else. Yours is not.",
                    inputs,
                    ours,
                    theirs,
                )
            ours, theirs = ours.masked_fill(nothing, 0), theirs.masked_fill(nothing, 0)
        compare(name, theirs, ours, inputs, tolerance)


def metered(answer):
    """The answer, as a meter sees it: bytes and shapes, no values."""

    def measure(**inputs):
        counts = count(answer, *inputs.values())
        return {
            "biggest": counts.biggest_bytes,
            "shape": list(counts.biggest_shape),
            "peak": counts.peak_bytes,
        }

    return measure


SHORT, LONG, TILE = 64, 128, 16


def memory_of(answer, inputs):
    """What the meter says of a call, or a Failure."""
    seen = answer.observe(inputs, adapt=metered)
    if seen.error or not isinstance(seen.returned, dict):
        raise Failure(f"Your answer {seen.error or 'returned nothing'}", inputs)
    return seen.returned


@functools.lru_cache(2)  # several checks ask the same of an answer
def growth(answer, call) -> dict:
    """Exponents of the biggest tensor and of the peak, between a short and a long sequence.

    Beside them, what the meter says of the long one.
    """
    rng = torch.Generator().manual_seed(0)
    short, long = (memory_of(answer, call(rng, n)) for n in (SHORT, LONG))
    span = math.log(LONG / SHORT)
    grown = {
        key: math.log(max(long[key], 1) / max(short[key], 1)) / span for key in ("biggest", "peak")
    }
    return grown | {"long": long}


def computes(answer, inputs):
    """Assert that a simple call is right: what computes something else saves no memory."""
    agrees(answer, inputs, answer.task.returns[:1], tolerance=1e-2)


def stays_linear(answer, call):
    """Assert that neither the biggest tensor nor the peak grows like n²."""
    grown = growth(answer, call)
    shape = f"({' '.join(map(str, grown['long']['shape']))})"
    if grown["biggest"] > 1.2:
        raise Failure(
            f"The meter: with n = {LONG} and tiles of {TILE}, your biggest tensor is {shape}, and "
            f"it grows like n^{grown['biggest']:.2f}. Tiles and sequences may be held, at most "
            "n^1; a number for every query and key may not, in no tensor, also no boolean one."
        )
    if grown["peak"] > 1.2:
        raise Failure(
            "The meter: no single tensor is too big, but all that is alive at once grows like "
            f"n^{grown['peak']:.2f}. Let go of a tile before you make the next one."
        )


def cuts_both(answer, call):
    """Assert that a tile is at most `tile` queries by `tile` keys."""
    inputs = call(torch.Generator().manual_seed(0), LONG)
    seen = growth(answer, call)["long"]
    # Twice a sequence of the widest tensor in its working dtype: room for padding and pairs.
    allowed = 2 * (LONG + TILE) * max(inputs["key"].shape[-1], inputs["value"].shape[-1]) * 4
    if seen["biggest"] > allowed:
        shape = f"({' '.join(map(str, seen['shape']))})"
        raise Failure(
            f"The meter: your biggest tensor is {shape}, with n = {LONG} and tiles of {TILE}. A "
            f"tile is at most {TILE} queries by {TILE} keys: cut both the queries and the keys."
        )


def keeps_no_row(answer, call):
    """Assert that the tiles of a row are not alive all at once."""
    rng = torch.Generator().manual_seed(0)
    tile = 2 * TILE  # wide beside a sequence, which is one number a position here
    short, long = (memory_of(answer, call(rng, n, tile))["peak"] for n in (SHORT, LONG))
    kept = (long - short) / (LONG - SHORT)
    if kept > 0.9 * 4 * tile:
        raise Failure(
            f"The meter: for every further key your answer holds {kept:.0f} bytes more, with "
            f"tiles of {tile}: all tiles of a row are alive at once. Let go of a tile before you "
            "make the next one."
        )


def call(rng, q, k, tile, causal=False, dtype=torch.float32, spread=0.0, size=1.0, **axes):
    """Inputs of the forward pass; with `spread`, whole numbers so large that scores reach 1e4."""
    b, h, d, v = (axes.get(axis, usual) for axis, usual in zip("bhdv", (2, 3, 4, 5), strict=True))

    def draw(*shape):
        return spread * integers(rng, *shape) if spread else size * normal(rng, *shape)

    return {
        "query": draw(b, h, q, d).to(dtype),
        "key": draw(b, h, k, d).to(dtype),
        "value": normal(rng, b, h, k, v).to(dtype),
        "tile": tile,
        "causal": causal,
    }


def memory_traits(short, long, thin=None):
    def fails(check, *how):
        try:
            check(*how)
        except Failure:
            return True
        return False

    def traits(answer):
        grown = growth(answer, long)
        biggest, shape = grown["long"]["biggest"], grown["long"]["shape"]
        own = {"keeps a row of tiles": fails(keeps_no_row, answer, thin)} if thin else {}
        return own | {
            "mixes devices": bool(mixed(answer, short(torch.Generator().manual_seed(0)))),
            "biggest tensor grows like n²": grown["biggest"] > 1.2,
            "it is a table of yes and no": grown["biggest"] > 1.2 and biggest == math.prod(shape),
            "keeps its tiles": grown["peak"] > 1.2,
            "one side is whole": fails(cuts_both, answer, long),
        }

    return traits


def nothing(rng):
    return iter(())

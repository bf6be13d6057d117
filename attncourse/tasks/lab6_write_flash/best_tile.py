import math
import statistics

import torch

from attncourse.checks.answer import Failure, fields, following, moves_nothing
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks.lab6_write_flash import nothing


def sweep(
    rng, clock="cpu", sizes=(512, 1024, 2048), fastest=3, deep=True, left=2.0, right=2.0,
    naive=1.7, broken=(), beyond=False, tricky=True, steady=False,
):  # fmt: skip
    """A record with a known truth: the tile number `fastest` of 32 … 1024 is it, at the largest n.

    Args:
        left, right: what the smallest and the largest tile take, over the fastest.
        naive: likewise; None: it ran out of memory.
        broken: tiles that ran out of memory at the largest n.
        beyond: whether there is a further n at which everything tiled ran out of memory.
        tricky: whether another tile wins by the mean, and by the median (CPU) or the best (GPU).
        steady: whether all samples of a point are alike, so that any of them will do.
    """
    tiles, entries = (32, 64, 128, 256, 512, 1024), []

    def noisy(cost):
        off = torch.rand(21, generator=rng).tolist()
        return [cost * (1 + 0.01 * (off[0] if steady else x)) for x in off]

    def add(name, n, seconds, **keys):
        point = {"name": name, "n": n, "clock": clock, "seconds": seconds, "dtype": "float32"}
        entries.append(point | {"error": None if seconds else "out of memory"} | keys)

    for n in sizes:
        last = n == sizes[-1]
        best = fastest if last else 0  # at a smaller n another tile is the fastest
        cost = 1e-9 * n**2 * (1 + torch.rand(1, generator=rng).item())
        usable = [i for i in range(len(tiles)) if not (last and tiles[i] in broken)]
        for i, tile in enumerate(tiles):
            if i not in usable:
                add("tiled", n, [], tile=tile)
                continue
            factor = 1.25 + 0.05 * abs(i - best)
            factor = left if i == usable[0] else right if i == usable[-1] else factor
            seconds = noisy(cost * (1 if i == best else factor))
            if tricky and i == best and clock == "cpu":
                seconds[4:] = [1.6 * s for s in seconds[4:]]  # another program came in
            elif tricky and i == best:
                seconds[3] *= 30  # one wild sample: the mean is elsewhere
            elif tricky and clock == "events" and abs(i - best) == 1:
                seconds[7] *= 0.3
            add("tiled", n, seconds, tile=tile)
        add("naive", n, [] if last and naive is None else noisy(cost * (naive or 1.3)))
        add("fused", n, noisy(cost * 0.4))
    if beyond:
        for tile in tiles:
            add("tiled", 2 * sizes[-1], [], tile=tile)
        add("fused", 2 * sizes[-1], noisy(4e-9 * sizes[-1] ** 2))
    order = torch.randperm(len(entries), generator=rng).tolist()
    record = {"lab": "lab6_write_flash", "machine": {}, "predictions": {}}
    return {"record": record | {"points": [entries[i] for i in order]}}


def tile_probes(rng):
    return {
        "a valley": sweep(rng, tricky=False),
        "a busy CPU": sweep(rng),
        "a GPU": sweep(rng, "events", fastest=2),
        "the fastest is the largest": sweep(rng, fastest=5, right=1.0, tricky=False),
        "a flat end": sweep(rng, right=1.06, tricky=False),
        "a flat beginning": sweep(rng, "events", left=1.05, fastest=1, tricky=False),
        "naive is faster": sweep(rng, naive=0.6, tricky=False),
        "naive ran out": sweep(rng, naive=None, tricky=False),
        "tiles ran out": sweep(rng, "events", broken=(1024,), fastest=2, right=1.5),
        "all ran out beyond": sweep(rng, beyond=True, tricky=False),
        "one size": sweep(rng, sizes=(1024,), tricky=False),
    }


CONCLUSIONS = ("n", "tile", "u_shaped", "speedup")


def said(best_tile):
    """What the answer concludes, without what else it may say, and with Python's own numbers."""

    def function(record):
        found = best_tile(record)
        if found is None:
            return None
        fields(found, ())
        kept = {name: found[name] for name in CONCLUSIONS if name in found}
        return {name: x.item() if hasattr(x, "item") else x for name, x in kept.items()}

    return function


def says(answer, inputs, *keys):
    """Assert that the answer says these things of a record."""
    got, expected = answer(inputs), answer.expected(inputs)
    for key in keys:
        if key not in got:
            raise Failure(f'There is no "{key}" in your result.', inputs)
        mine, ours = got[key], expected[key]
        number = isinstance(ours, float) and isinstance(mine, int | float)
        close = number and math.isclose(mine, ours, rel_tol=1e-3)
        if not close and (mine != ours or isinstance(mine, bool) != isinstance(ours, bool)):
            raise Failure(
                f'"{key}" is {mine!r}; for this record (made up, with a known truth) it is '
                f"{ours!r}.",
                None,
                expected,
                got,
            )


task = Task(
    reference.best_tile,
    number=4,
    returns=dict,
    difficulty=3,
    minutes=10,
    section="conclude",
    probes=tile_probes,
    small=nothing,
    adapt=said,
)


@task.check(1)
def it_says_four_things(answer, rng):
    got = answer(sweep(rng))
    if len(got) < len(CONCLUSIONS):
        raise Failure(
            "The result is a dict with the keys n, tile, u_shaped and speedup; of these yours has "
            f"{', '.join(got) or 'none'}."
        )
    if not isinstance(got["u_shaped"], bool):
        raise Failure(f'"u_shaped" is True or False; yours is {got["u_shaped"]!r}.')


@task.check(1)
def the_fastest_tile_is_found_at_the_largest_length(answer, rng):
    for sizes in ((512, 1024, 2048), (1024,), (256, 4096)):
        says(answer, sweep(rng, sizes=sizes, tricky=False), "n", "tile")


ONE = (1024,)  # what is largest among several has checks of its own


@task.check(1, "tile and speedup are right on a CPU, where the best time counts")
def on_a_cpu_the_best_time_counts(answer, rng):
    for fastest in (1, 2, 3, 4):
        says(answer, sweep(rng, sizes=ONE, fastest=fastest), "tile", "speedup")


@task.check(1, "tile and speedup are right on a GPU, where the median counts")
def on_a_gpu_the_median_counts(answer, rng):
    for fastest in (1, 2, 3, 4):
        says(answer, sweep(rng, "events", ONE, fastest=fastest), "tile", "speedup")


@task.check(1)
def a_valley_has_two_slopes_and_nothing_else_is_one(answer, rng):
    for left, right in ((2, 2), (2, 1.06), (1.05, 2), (1.5, 1.2), (1.03, 1.04)):
        says(answer, sweep(rng, sizes=ONE, left=left, right=right, tricky=False), "u_shaped")
    says(answer, sweep(rng, sizes=ONE, fastest=5, right=1.0, tricky=False), "u_shaped", "tile")
    says(answer, sweep(rng, sizes=ONE, fastest=0, left=1.0, tricky=False), "u_shaped", "tile")


@task.check(1)
def the_speedup_is_naive_over_the_fastest_tile_at_that_length(answer, rng):
    for naive in (0.6, 1.2, 3.0):
        says(answer, sweep(rng, sizes=ONE, naive=naive, tricky=False, steady=True), "speedup")


def right_as_usual(answer):
    """Assert that all is right where all have a time: what is not has other checks."""
    rng, calm = torch.Generator().manual_seed(0), {"tricky": False, "steady": True}
    for left, right in ((2, 2), (2, 1.06), (1.02, 2)):
        says(answer, sweep(rng, left=left, right=right, **calm), *CONCLUSIONS)


@task.check(1)
def all_is_right_where_something_ran_out_of_memory(answer, rng):
    calm = {"tricky": False, "steady": True}
    with following(lambda: right_as_usual(answer)):
        says(answer, sweep(rng, naive=None, **calm), "n", "tile", "speedup")
        says(answer, sweep(rng, broken=(1024,), fastest=2, **calm), "tile", "u_shaped")
        says(answer, sweep(rng, broken=(32,), fastest=2, left=1.02, **calm), "tile", "u_shaped")
        says(answer, sweep(rng, beyond=True, **calm), "n", "tile", "speedup")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, sweep(rng))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Best:
    def timed(points):
        return [point for point in points if point["seconds"] and not point["error"]]

    def largest(timed, points):
        return max(point["n"] for point in timed if point["name"] == "tiled")

    def number(point):
        return min(point["seconds"]) if point["clock"] == "cpu" else median(point)

    def without_tiles(n):
        raise ValueError(f"nothing tiled has a time at n = {n}")

    def fastest(tiles):
        return min(tiles, key=tiles.get)

    def valley(tiles, best):
        return min(tiles[min(tiles)], tiles[max(tiles)]) >= 1.1 * best

    def rival(self, timed, n):
        found = [self.number(p) for p in timed if p["name"] == "naive" and p["n"] == n]
        return found[0] if found else None

    def ratio(naive, tiles, best):
        return naive / best

    def without_naive():
        return None

    def __call__(self, record):
        timed = self.timed(record["points"])
        n = self.largest(timed, record["points"])
        here = [point for point in timed if point["name"] == "tiled" and point["n"] == n]
        tiles = {point["tile"]: self.number(point) for point in here}
        if not tiles:
            return self.without_tiles(n)
        tile = self.fastest(tiles)
        best, naive = tiles[tile], self.rival(timed, n)
        speedup = self.without_naive() if naive is None else self.ratio(naive, tiles, best)
        return {"n": n, "tile": tile, "u_shaped": self.valley(tiles, best), "speedup": speedup}


task.spelling(fastest=lambda tiles: sorted(tiles, key=tiles.get)[0])


def median(point):
    return statistics.median(point["seconds"])


def of_the_shortest(points):
    n = min(point["n"] for point in points)
    return Best.timed([point for point in points if point["n"] == n])


def with_no_time(points):
    return [point | {"seconds": point["seconds"] or [1e-12]} for point in points]


def nobody(n):
    return {"n": n, "tile": None, "u_shaped": False, "speedup": None}


def beside_the_best(tiles, best):
    ordered = [tiles[tile] for tile in sorted(tiles)]
    place = ordered.index(best)
    return (
        0 < place < len(ordered) - 1 and min(ordered[place - 1], ordered[place + 1]) >= 1.1 * best
    )


# --- faults -------------------------------------------------------------------------------------


def by_clock(cpu, gpu):
    return lambda point: (cpu if point["clock"] == "cpu" else gpu)(point["seconds"])


task.fault(
    "L6-MEAN",
    number=(
        lambda point: statistics.mean(point["seconds"]),
        by_clock(min, statistics.mean),
        by_clock(statistics.mean, statistics.median),
    ),
)
task.fault("L6-CLOCKS-TURNED", number=by_clock(statistics.median, min))
task.fault("L6-FIRST-SAMPLE", number=lambda point: point["seconds"][0])
task.fault("L6-SLOWEST-SAMPLE", number=lambda point: max(point["seconds"]))
task.fault("L6-MEDIAN-ALWAYS", number=median)
task.fault("L6-BEST-ALWAYS", number=lambda point: min(point["seconds"]))
lengths = task.fault("L6-ALL-LENGTHS", timed=of_the_shortest)


@lengths
class FastestOfAll(Best):
    def __call__(self, record):
        timed = self.timed(record["points"])
        n = self.largest(timed, record["points"])
        tiled = [point for point in timed if point["name"] == "tiled"]
        here = {point["tile"]: self.number(point) for point in tiled if point["n"] == n}
        fastest = min(tiled, key=self.number)
        best, naive = self.number(fastest), self.rival(timed, n)
        speedup = self.without_naive() if naive is None else self.ratio(naive, here, best)
        said = {"n": n, "tile": fastest["tile"], "speedup": speedup}
        return said | {"u_shaped": self.valley(here, best)}


@lengths
class ItsTileAlone(Best):
    def __call__(self, record):
        said = super().__call__(record)
        tiled = [point for point in self.timed(record["points"]) if point["name"] == "tiled"]
        return said | {"tile": min(tiled, key=self.number)["tile"]}


task.fault(
    "L6-LARGEST-IN-RECORD",
    largest=(
        *(lambda timed, points: max(point["n"] for point in points),) * 2,
        *(lambda timed, points: max(point["n"] for point in timed),) * 2,
    ),
    without_tiles=(..., nobody, ..., nobody),
)
task.fault(
    "L6-BOTH-TIMED",
    largest=lambda timed, points: max(
        point["n"]
        for point in timed
        if point["name"] == "tiled"
        and any(each["name"] == "naive" and each["n"] == point["n"] for each in timed)
    ),
)
task.fault("L6-ZERO-SPEEDUP", without_naive=lambda: 0)
task.fault("L6-SPEEDUP-OF-1", without_naive=lambda: 1.0)
task.fault("L6-ENDLESS-SPEEDUP", without_naive=lambda: math.inf)
task.fault(
    "L6-VALLEY-BY-PLACE",
    valley=lambda tiles, best: best not in (tiles[min(tiles)], tiles[max(tiles)]),
)
task.fault(
    "L6-ONE-SLOPE",
    valley=lambda tiles, best: max(tiles[min(tiles)], tiles[max(tiles)]) >= 1.1 * best,
)
task.fault("L6-FIRST-SLOPE", valley=lambda tiles, best: tiles[min(tiles)] >= 1.1 * best)
task.fault("L6-LAST-SLOPE", valley=lambda tiles, best: tiles[max(tiles)] >= 1.1 * best)
task.fault(
    "L6-ALL-SLOWER",
    valley=lambda tiles, best: all(each >= 1.1 * best for each in tiles.values() if each != best),
)
task.fault("L6-NEIGHBORS", valley=beside_the_best)
task.fault(
    "L6-IN-PERCENT",
    ratio=(
        lambda naive, tiles, best: naive / best - 1,
        lambda naive, tiles, best: 100 * (naive / best - 1),
    ),
)
task.fault("L6-DIFFERENCE", ratio=lambda naive, tiles, best: naive - best)
task.fault("L6-SLOWEST-TILE", ratio=lambda naive, tiles, best: naive / max(tiles.values()))
task.fault("L6-MEAN-TILE", ratio=lambda naive, tiles, best: naive / statistics.mean(tiles.values()))
task.fault("L6-OVER-SLOWEST", ratio=lambda naive, tiles, best: max(tiles.values()) / best)
task.fault("L6-UPSIDE-DOWN", ratio=lambda naive, tiles, best: best / naive)
task.fault(
    "L6-OVER-FUSED",
    rival=lambda self, timed, n: next(
        self.number(p) for p in timed if p["name"] == "fused" and p["n"] == n
    ),
)
task.fault(
    "L6-NAIVE-ELSEWHERE",
    rival=lambda self, timed, n: self.number(
        max((p for p in timed if p["name"] == "naive"), key=lambda p: p["n"])
    ),
)


def without_a_rival():
    raise IndexError("naive has no time there")


task.fault("L6-NAIVE-ALWAYS-THERE", without_naive=without_a_rival)
task.fault("L6-LARGEST-TILE", ratio=lambda naive, tiles, best: naive / tiles[max(tiles)])
task.fault("L6-SMALLEST-TILE", ratio=lambda naive, tiles, best: naive / tiles[min(tiles)])
task.fault("L6-NO-TIME", timed=with_no_time)

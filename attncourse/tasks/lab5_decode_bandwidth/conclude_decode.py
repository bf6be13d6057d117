import math
import statistics

import torch

from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.roofline import attention_flops, decode_bytes
from attncourse.lab.timing import headline
from attncourse.tasks.lab5_decode_bandwidth import CONCLUSIONS, LAB, WIDTHS, said

T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4"}
T4_ROOF = {"flops_per_second": {"float16": 24e12, "float32": 4e12}, "bytes_per_second": 240e9}
CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread"}
CPU_ROOF = {"flops_per_second": {"float32": 100e9}, "bytes_per_second": 15e9}


def a_record(
    rng,
    *,
    machine=T4,
    roof=T4_ROOF,
    dtype="float16",
    b=8,
    h=32,
    sizes=(512, 1024, 2048, 4096, 8192),
    rate=0.7,
    fixed=4e-5,
    near=0,
    near_rate=4,
    failed=(),
    predicted=1.1,
    disturbed=None,
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        rate: at which a cache is read, over that of a copy.
        fixed: seconds of a step that have nothing to do with its cache.
        near: caches of so many bytes or fewer wait in a cache of the processor.
        near_rate: at which they are read at most, over that of a copy.
        failed: (name, n) that ran out of memory.
        predicted: the predicted speed-up over the true one.
        disturbed: the name whose samples at the largest n are partly many times too long; or
            "all", for the samples of all points.

    Returns:
        record, truth.
    """
    d, copy = 128, roof["bytes_per_second"]
    width = WIDTHS[dtype]
    made, times = [], {}
    for n in sizes:
        for name, kv_heads in (("MHA", h), ("GQA-8", 8), ("MQA", 1), ("expanded", 8)):
            moved, flops = decode_bytes(b, kv_heads, n, d, width), attention_flops(b, h, 1, d, n)
            reading, computing = moved / (rate * copy), flops / roof["flops_per_second"][dtype]
            true = fixed + max(reading, 1.1 * computing)
            if moved <= near:
                true = max(moved / (near_rate * copy), 1.1 * computing)
            if name == "expanded":
                true = 3 * (fixed + h * moved / 8 / (rate * copy))
                if h * moved / 8 <= near:
                    true = moved / (near_rate / 2 * copy)
            error = "out of memory" if (name, n) in failed else None
            if not error:
                times[name, n] = true, moved, flops
            factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
            samples = [round(true * factor, 12) for factor in factors]
            if disturbed == "all" or (name == disturbed and n == max(sizes)):
                last = 16 if machine is CPU else 10  # where the shortest counts, most are disturbed
                samples[3:last] = [4 * each for each in samples[3:last]]
                if machine is not CPU:
                    samples[12:15] = [0.7 * each for each in samples[12:15]]
            if slow_first:
                samples[0] *= 20 if name == "MHA" else 5
            if name == "MHA" and n == max(sizes):
                samples[-1] *= 3
            made.append(
                {
                    "name": name,
                    "n": n,
                    "b": b,
                    "h": h,
                    "kv_heads": kv_heads,
                    "d": d,
                    "seconds": [] if error else samples,
                    "clock": "cpu" if machine is CPU else "events",
                    "started": [],
                    "bytes": moved,
                    "flops": flops,
                    "peak_bytes": None if error else 3 * b * h * n * width,
                    "backend": None,
                    "dtype": dtype,
                    "error": error,
                    "label": None,
                }
            )
    own = [n for name, n in times if name == "MHA"]
    seconds, moved, _ = times["MHA", max(own)]
    n = max(n for n in own if ("MQA", n) in times)
    (many, many_bytes, _), (one, one_bytes, flops) = times["MHA", n], times["MQA", n]
    products = roof["flops_per_second"][dtype]
    truth = {
        "bytes_per_second": moved / seconds,
        "share": moved / seconds / copy,
        "ideal": many_bytes / one_bytes,
        "speed_up": many / one,
        "computes": flops / products > one_bytes / copy,
        "from_cache": sum(moved / true > 1.5 * copy for true, moved, _ in times.values()),
        "held": 1 / 1.5 <= predicted <= 1.5,
    }
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {"share": 0.9, "speed_up": round(predicted * many / one, 3), "expanded": 1.5}
    record = {
        "lab": LAB,
        "machine": {**machine, "ceilings": roof},
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, truth


ON_A_CPU = {"machine": CPU, "roof": CPU_ROOF, "dtype": "float32", "b": 1, "fixed": 2e-4}
RECORDS = {
    "T4": {},
    "CPU": {**ON_A_CPU, "predicted": 2.4},
    "small caches wait": {**ON_A_CPU, "near": 17_000_000, "predicted": 0.75},
    "reading is faster than copying": {"rate": 1.25, "fixed": 0, "predicted": 0.4},
    "MHA ran out of memory": {"failed": (("MHA", 8192), ("expanded", 8192)), "predicted": 1.3},
    "MQA was interrupted": {"failed": (("MQA", 8192),), "h": 16, "fixed": 1e-3, "predicted": 0.8},
    "disturbed MHA": {"disturbed": "MHA", "predicted": 0.6},
    "disturbed MQA": {**ON_A_CPU, "disturbed": "MQA", "slow_first": True, "predicted": 0.75},
    "slow arithmetic": {
        **ON_A_CPU,
        "roof": {"flops_per_second": {"float32": 5e9}, "bytes_per_second": 15e9},
        "predicted": 2.7,
    },
    "16 heads": {"dtype": "float32", "h": 16, "rate": 0.4, "predicted": 1.4},
    "between two ridges": {"dtype": "float32", "h": 64, "predicted": 1.8},
    "all disturbed": {"rate": 1.25, "fixed": 0, "disturbed": "all", "predicted": 0.8},
    "all disturbed on a CPU": {
        **ON_A_CPU,
        **{"near": 17_000_000, "disturbed": "all", "predicted": 1.2},
    },
    "a slow cache": {**ON_A_CPU, "near": 17_000_000, "near_rate": 1.75, "predicted": 1.2},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


LIMITS = {"bytes_per_second": 0.08, "share": 0.08, "ideal": 0.001, "speed_up": 0.08}
WORDS = {
    "bytes_per_second": "bytes that MHA reads a second, at its largest n",
    "share": "the share of a copy's speed that MHA reaches",
    "ideal": "cache bytes of MHA over those of MQA, at the largest n that both have",
    "speed_up": "MHA's time over MQA's, at the largest n that both have",
    "computes": "MQA lies beyond the ridge (1 = yes)",
    "from_cache": "points faster than 1.5 times a copy",
    "held": "prediction within a factor of 1.5 of the speed-up (1 = yes)",
}


def says(answer, rng, name, *kinds):
    """Assert that one conclusion is right about these records."""
    for kind in kinds or RECORDS:
        record, truth = a_record(rng, **RECORDS[kind])
        got = answer({"record": record})[CONCLUSIONS.index(name)].item()
        expected = float(truth[name])
        if math.isnan(got):
            raise Failure(f'Your result has no "{name}", or one that is no number.')
        if not abs(got - expected) <= LIMITS.get(name, 0) * expected:
            dtype = record["points"][0]["dtype"]
            raise Failure(
                f"In a made-up record ({kind}, {dtype}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}.",
                whole=name,
            )


task = Task(
    reference.conclude_decode,
    number=6,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=18,
    section="lab5-conclude",
    probes=conclude_probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


UNDISTURBED = ("T4", "CPU", "MHA ran out of memory", "MQA was interrupted")
DISTURBED = ("disturbed MHA", "disturbed MQA")


def misses_the_speed_up(answer):
    """Whether it is wrong in records that are the same in two checks."""
    for kinds in (UNDISTURBED, DISTURBED):
        try:
            says(answer, torch.Generator().manual_seed(0), "speed_up", *kinds)
        except Failure:
            return True
    return False


def held_for_its_speed_up(answer, rng):
    """Whether "held" is right for the speedup that the answer says, in all records."""
    for how in RECORDS.values():
        record, _ = a_record(rng, **how)
        found = dict(zip(CONCLUSIONS, answer({"record": record}), strict=True))
        own, held = (found[name].item() for name in ("speed_up", "held"))
        ratio = record["predictions"]["speed_up"]["value"] / own if own > 0 else math.nan
        if math.isnan(ratio) or held != (1 / 1.5 <= ratio <= 1.5):
            return False
    return True


@task.check(2, "the bytes a second are right, of MHA at its largest n")
def the_bytes_a_second_are_those_of_mha_at_its_largest_n(answer, rng):
    kinds = ("T4", "CPU", "MHA ran out of memory", "disturbed MHA")
    says(answer, rng, "bytes_per_second", *kinds, "small caches wait", "MQA was interrupted")


@task.check(1)
def the_share_in_a_copy_on_the_same_machine_is_right(answer, rng):
    kinds = ("T4", "CPU", "reading is faster than copying")
    says(answer, rng, "share", *kinds, "small caches wait", "MQA was interrupted")


@task.check(1, "the ideal is MHA's bytes over those of MQA")
def the_ideal_is_the_ratio_of_the_bytes(answer, rng):
    says(answer, rng, "ideal", "T4", "MQA was interrupted", "16 heads")


@task.check(2, "the speedup is right where both have a time")
def the_speed_up_is_taken_where_both_have_a_time(answer, rng):
    says(answer, rng, "speed_up", *UNDISTURBED)
    says(answer, torch.Generator().manual_seed(0), "speed_up", *UNDISTURBED)


@task.check(1, "the speedup is right beside disturbed samples")
def a_few_disturbed_samples_do_not_move_the_speed_up(answer, rng):
    says(answer, rng, "speed_up", *DISTURBED)
    says(answer, torch.Generator().manual_seed(0), "speed_up", *DISTURBED)


@task.check(1, "it says whether MQA still waits for memory")
def it_says_whether_mqa_still_waits_for_memory(answer, rng):
    says(answer, rng, "computes")


@task.check(2)
def it_says_how_many_points_came_from_a_cache(answer, rng):
    says(answer, rng, "from_cache")


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    try:
        says(answer, rng, "held")
    except Failure:
        if not misses_the_speed_up(answer) or not held_for_its_speed_up(answer, rng):
            raise


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Conclusions:
    number = headline

    def speed(self):
        return self.speeds["MHA", self.sizes("MHA")[-1]]

    def share(self, speed):
        return speed / self.copy

    def ideal(self):
        return self.ratio(self.bytes, "MQA")

    def speed_up(self):
        return self.ratio(self.times, "MQA")

    def intensity(self):
        return self.flops_a_byte["MQA", self.sizes("MHA", "MQA")[-1]]

    def ridge(self):
        return self.products[self.dtype] / self.copy

    def computes(intensity, ridge):
        return intensity > ridge

    def from_cache(self):
        return sum(speed > 1.5 * self.copy for speed in self.speeds.values())

    def predicted(speed_up, ideal):
        return speed_up  # what the prediction is compared with

    def held(predicted, found):
        return found / 1.5 <= predicted <= 1.5 * found

    def said(found):
        return found

    def sizes(self, *names):
        """Sizes at which all of them have a time."""
        return sorted(n for name, n in self.times if all((each, n) in self.times for each in names))

    def ratio(self, of, name, place=-1):
        """MHA over that name, at a size that both have."""
        n = self.sizes("MHA", name)[place]
        return of["MHA", n] / of[name, n]

    def __call__(self, record):
        done = {(p["name"], p["n"]): p for p in record["points"] if not p["error"]}
        self.samples = {at: point["seconds"] for at, point in done.items()}
        self.times = {at: self.number(point) for at, point in done.items()}
        self.bytes = {at: point["bytes"] for at, point in done.items()}
        self.speeds = {at: self.bytes[at] / self.times[at] for at in done}
        self.flops_a_byte = {at: point["flops"] / point["bytes"] for at, point in done.items()}
        self.dtype = record["points"][0]["dtype"]
        roof = record["machine"]["ceilings"]
        self.copy, self.products = roof["bytes_per_second"], roof["flops_per_second"]
        guess = record["predictions"]["speed_up"]["value"]
        found = {"bytes_per_second": self.speed(), "ideal": self.ideal()}
        found |= {"share": self.share(found["bytes_per_second"]), "speed_up": self.speed_up()}
        found |= {"computes": self.computes(self.intensity(), self.ridge())}
        found |= {"from_cache": self.from_cache()}
        found |= {"held": self.held(guess, self.predicted(found["speed_up"], found["ideal"]))}
        return self.said(found)


def at(table, name):
    """A step: the entry at the largest n of that name."""
    return lambda self: getattr(self, table)[name, self.sizes(name)[-1]]


def of_gqa(table):
    """A step: MHA over GQA-8."""
    return lambda self: self.ratio(getattr(self, table), "GQA-8")


def fast(times, *but):
    """A step: how many points are so many times as fast as a copy."""
    return lambda self: sum(
        speed > times * self.copy for (name, _), speed in self.speeds.items() if name not in but
    )


def cached_by(middle):
    """A step: the same at 1.5, by another time of each point."""
    return lambda self: sum(
        self.bytes[at] / middle(samples) > 1.5 * self.copy for at, samples in self.samples.items()
    )


def instead(name, change):
    """A step: what is said in the end, one number of it changed."""
    return lambda found: found | {name: change(found[name])}


def by(middle):
    return lambda point: middle(point["seconds"])


# --- faults -------------------------------------------------------------------------------------

BANDWIDTH, RIDGE, PREDICT, LESS = "lab5-bandwidth", "lab5-ridge", "lab5-predict", "lab5-less"

task.fault("C-FASTEST-SAMPLE", number=by(min))
task.fault("C-MEDIAN-EVERYWHERE", number=by(statistics.median))
task.fault("L5-MEAN", number=by(statistics.mean))
task.fault("L5-FIRST-SAMPLE", number=by(lambda samples: samples[0]))
task.fault("L5-LAST-SAMPLE", number=by(lambda samples: samples[-1]))
task.fault("L5-SLOWEST", number=by(max))
task.fault("L5-IDEAL-AS-MEASURED", section=LESS, speed_up=Conclusions.ideal)
task.fault("L5-ALWAYS-32", ideal=lambda self: 32)
task.fault(
    "L5-GQA-FOR-MQA",
    ideal=of_gqa("bytes"),
    speed_up=(of_gqa("times"), ...),
)
task.fault(
    "L5-DIFFERENT-N",
    speed_up=lambda self: at("times", "MHA")(self) / at("times", "MQA")(self),
    entire=[
        {
            "speed_up": lambda self: at("times", "MHA")(self) / at("times", "MQA")(self),
            "ideal": lambda self: at("bytes", "MHA")(self) / at("bytes", "MQA")(self),
            "intensity": at("flops_a_byte", "MQA"),
        }
    ],
)
task.fault("L5-SMALLEST-N", section=LESS, speed_up=lambda self: self.ratio(self.times, "MQA", 0))
task.fault(
    "L5-UPSIDE-DOWN",
    speed_up=(lambda self: 1 / self.ratio(self.times, "MQA"), ...),
    said=(..., instead("speed_up", lambda x: 1 / x)),
)
task.fault("L5-MQA-SPEED", section=BANDWIDTH, speed=at("speeds", "MQA"))
task.fault(
    "L5-FASTEST-POINT",
    section=BANDWIDTH,
    speed=lambda self: max(self.speeds["MHA", n] for n in self.sizes("MHA")),
)
task.fault(
    "L5-SPEED-AT-COMMON-N",
    section=BANDWIDTH,
    speed=lambda self: self.speeds["MHA", self.sizes("MHA", "MQA")[-1]],
)
task.fault(
    "L5-GIGABYTES", section=BANDWIDTH, said=instead("bytes_per_second", lambda speed: speed / 1e9)
)
task.fault("L5-DATA-SHEET", section=BANDWIDTH, share=lambda self, speed: speed / 320e9)
task.fault("L5-SHARE-INVERTED", section=BANDWIDTH, share=lambda self, speed: self.copy / speed)
task.fault(
    "L5-FLOAT32-RIDGE", section=RIDGE, ridge=lambda self: self.products["float32"] / self.copy
)
task.fault(
    "L5-LARGEST-RIDGE", section=RIDGE, ridge=lambda self: max(self.products.values()) / self.copy
)
task.fault(
    "L5-RIDGE-UPSIDE-DOWN", section=RIDGE, ridge=lambda self: self.copy / self.products[self.dtype]
)
task.fault("L5-ALWAYS-MEMORY", section=RIDGE, computes=lambda intensity, ridge: False)
task.fault("L5-RIDGE-OF-MHA", section=RIDGE, intensity=at("flops_a_byte", "MHA"))
task.fault("L5-RIDGE-INVERTED", section=RIDGE, computes=lambda intensity, ridge: intensity <= ridge)
task.fault("L5-FASTER-THAN-A-COPY", section=BANDWIDTH, from_cache=fast(1.0))
task.fault(
    "L5-CACHE-BY-ANOTHER-TIME",
    section=BANDWIDTH,
    from_cache=cached_by(statistics.median),
    entire=[{"from_cache": cached_by(min)}],
)
task.fault("L5-NEVER-FROM-CACHE", section=BANDWIDTH, from_cache=lambda self: 0)
task.fault(
    "L5-WITHOUT-EXPANDED",
    section=BANDWIDTH,
    from_cache=fast(1.5, "expanded"),
    entire=[
        {"from_cache": fast(1.5, "expanded", "GQA-8", "MQA")},
        {"from_cache": fast(1.5, "expanded", "GQA-8")},
    ],
)
task.fault(
    "L5-HELD-EXACTLY",
    section=PREDICT,
    held=lambda predicted, found: abs(predicted / found - 1) < 0.01,
)
task.fault(
    "L5-HELD-HALF",
    section=PREDICT,
    held=lambda predicted, found: abs(predicted / found - 1) <= 0.5,
    entire=[{"held": lambda predicted, found: abs(found / predicted - 1) <= 0.5}],
)
task.fault(
    "L5-HELD-DIFFERENCE",
    section=PREDICT,
    held=lambda predicted, found: abs(predicted - found) < 1.5 * found,
    entire=[{"held": lambda predicted, found: abs(predicted - found) <= 1.5}],
)
task.fault("L5-HELD-IDEAL", section=PREDICT, predicted=lambda speed_up, ideal: ideal)
task.fault(
    "L5-HELD-ONE-SIDED", section=PREDICT, held=lambda predicted, found: predicted <= 1.5 * found
)
task.fault(
    "L5-HELD-OTHER-SIDE", section=PREDICT, held=lambda predicted, found: found <= 1.5 * predicted
)

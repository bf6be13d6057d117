import functools
import statistics

import torch

from attncourse.checks.answer import Failure, following, known, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab.timing import headline
from attncourse.tasks.lab3_who_computed_it import (
    CALLS,
    CONCLUSIONS,
    KINDS,
    LAB,
    NAMES,
    PREDICTED,
    WIDTHS,
    _bound,
    said,
)

MACHINES = {
    "T4": {
        "device": "cuda",
        "label": "T4",
        "ceilings": {
            "flops_per_second": {"float16": 24e12, "float32": 7.5e12},
            "bytes_per_second": 0.26e12,
        },
    },
    "H100": {
        "device": "cuda",
        "label": "H100",
        "ceilings": {
            "flops_per_second": {"float32": 50e12, "float16": 700e12},
            "bytes_per_second": 3e12,
        },
    },
    "CPU": {
        "device": "cpu",
        "label": "CPU, 1 thread",
        "ceilings": {"flops_per_second": {"float32": 90e9}, "bytes_per_second": 18e9},
    },
}


FUSED = {"T4": "EFFICIENT", "H100": "CUDNN", "CPU": "FLASH"}  # who computes a plain call


def a_record(
    rng,
    *,
    machine="T4",
    dtype="float16",
    d=64,
    sizes=(128, 512, 1024, 2048, 4096, 8192),
    ends=4096,
    share=0.5,
    fell_back=("dropout", "bfloat16"),
    costs=(2.0, 5.0),
    flash_label=False,
    fused_fell=False,
    failed=(),
    unseen=(),
    disturbed=False,
):
    """A made-up record whose truth is known.

    Args:
        ends: the largest n that naive attention reaches.
        share: the speed of naive attention at that n, over its roof.
        fell_back: calls that MATH computed, and `costs`: their times over the plain call's.
        flash_label: whether a call with "flash" in its name fell back, too (at no cost).
        fused_fell: whether MATH computed the points of fused attention (which are no calls).
        failed: calls that ran out of memory.
        unseen: calls that ran out of memory before anybody saw who computed them.
        disturbed: whether some samples are many times too long and some a little too short.

    Returns:
        record, truth.
    """
    b, h, width = 1, 16, WIDTHS[dtype]
    ceilings, fused = MACHINES[machine]["ceilings"], FUSED[machine]
    peaks = ceilings["flops_per_second"][dtype], ceilings["bytes_per_second"]

    def samples(seconds, wild=False):
        factors = (0.012 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
        made = [round(seconds * factor, 12) for factor in factors]
        if wild:
            # Where the shortest counts, most are disturbed, and none is too short.
            on_a_cpu = machine == "CPU"
            late, short = (range(3, 16), ()) if on_a_cpu else (range(3, 9), (10, 14, 17))
            for factor, places in ((2.5, [0]), (4, late), (0.8, short)):
                for place in places:
                    made[place] *= factor
        return made

    made, bounds = [], {}
    for n in sizes:
        work = reference.attention_work(b, h, n, d, width, causal=False, backward=False)
        for name in ("naive", "fused"):
            under = reference.roof_over(work["flops"], work[f"{name}_bytes"], *peaks)
            bounds[name, n] = under["bound"]
            lost = name == "naive" and n > ends
            reached = share if name == "naive" else 0.4
            # Smaller ones are further from their roof, so another n gives another share.
            seconds = work["flops"] / (under["roof"] * reached) * (1 + 0.4 * ends / n) / 1.4
            made.append(
                {
                    **{"name": name, "n": n, "b": b, "h": h, "d": d, "dtype": dtype},
                    "seconds": [] if lost else samples(seconds, disturbed and n == ends),
                    "clock": "cpu" if machine == "CPU" else "events",
                    "flops": work["flops"],
                    "bytes": work[f"{name}_bytes"],
                    "backend": "NAIVE" if name == "naive" else "MATH" if fused_fell else fused,
                    "error": "out of memory" if lost else None,
                }
            )
    price = dict(zip(fell_back, costs, strict=True))
    names = ["plain", *CALLS] + ["flash with a mask"] * flash_label
    for call in names:
        math = call in price or call == "flash with a mask"
        lost = call in failed or call in unseen
        seconds = 2e-3 * price.get(call, 1.1 + 0.1 * names.index(call) / 8)
        # A fused kernel may be slow, too: with a mask it has more to read.
        seconds = 2e-3 * 7 if call == "mask" and not math else seconds
        # With fewer keys it has less to read, and may be faster than the plain call.
        seconds = 2e-3 * 0.6 if call == "grouped heads" and not math else seconds
        seconds = 2e-3 if call == "plain" else seconds
        made.append(
            {
                **{"name": "call", "call": call, "n": 1024, "b": b, "h": h, "d": d},
                "dtype": "bfloat16" if call == "bfloat16" else dtype,
                "seconds": [] if lost else samples(seconds, disturbed),
                "clock": "cpu" if machine == "CPU" else "events",
                "flops": None,
                "bytes": None,
                "backend": None if call in unseen else "MATH" if math else fused,
                "error": "out of memory" if lost else None,
            }
        )
    paid = [cost for call, cost in price.items() if call not in failed]
    if flash_label and "flash with a mask" not in failed:
        paid.append(1.1 + 0.1 * names.index("flash with a mask") / 8)
    truth = {
        "naive_bound": bounds["naive", ends] == "memory",
        "fused_bound": bounds["fused", ends] == "memory",
        "naive_share": share,
        "fell_back": [*price] + ["flash with a mask"] * flash_label,
        "cost": max(paid, default=1.0),
    }
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    record = {
        "lab": LAB,
        "machine": dict(MACHINES[machine]),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in zip(PREDICTED, [*["FLASH"] * 6, "memory", 2], strict=True)
        },
        "points": [made[place] for place in order],
    }
    return record, truth


CPU_RECORD = {"machine": "CPU", "dtype": "float32", "sizes": (256, 512, 1024, 2048), "ends": 2048}


RECORDS = {
    "T4": {},
    "T4 in float32": {"dtype": "float32", "d": 256, "share": 0.3},
    "CPU": {**CPU_RECORD, "fell_back": ("three axes", "strided key"), "costs": (6.0, 2.5)},
    "CPU, narrow heads": {**CPU_RECORD, "d": 16, "share": 0.8},
    "H100, short": {
        **{"machine": "H100", "sizes": (128, 256, 512), "ends": 256, "share": 0.2},
        **{"fell_back": (), "costs": ()},
    },
    "H100, very short": {
        **{"machine": "H100", "sizes": (64, 128, 256), "ends": 128, "share": 0.2},
        **{"fell_back": (), "costs": ()},
    },
    "disturbed": {"disturbed": True, "share": 0.35},
    "disturbed on a CPU": {**CPU_RECORD, "disturbed": True, "share": 0.35},
    "a misleading name": {"flash_label": True, "fell_back": ("three axes",), "costs": (2.0,)},
    "fused attention fell back": {"fused_fell": True},
    "the plain call fell back": {"fell_back": ("plain", "dropout"), "costs": (1.0, 3.0)},
    "one call ran out of memory": {"failed": ("bfloat16",)},
    "nobody saw a call that ran out of memory": {"unseen": ("strided key",)},
}

FURTHER = {  # no probes
    "T4, wide heads": {"d": 128},
    "H100 in float32, short": {
        **{"machine": "H100", "dtype": "float32", "sizes": (128, 256, 512), "ends": 256},
    },
}


def probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


def says(answer, rng, name, *kinds):
    """Assert that one conclusion is right about these records."""
    for kind in kinds:
        record, truth = a_record(rng, **(RECORDS | FURTHER)[kind])
        got = answer({"record": record})[CONCLUSIONS.index(name)]
        known(got, name, KINDS.get(name, "a number"))
        about = f"In a made-up record ({kind}), {name}"
        if name == "fell_back":
            got = sorted(call for call, is_in in zip(NAMES, got, strict=True) if is_in)
            compare_lists(about, got, sorted(truth[name]))
        elif name.endswith("bound"):
            if bool(got) != truth[name]:
                said = f"{about} is {_bound(truth[name])}; you say {_bound(got.item())}."
                raise Failure(said, whole=name)
        elif not abs(got.item() - truth[name]) <= 0.08 * truth[name]:
            said = f"{about} is {truth[name]:.3g}; your function says {got.item():.3g}."
            raise Failure(said, whole=name)


def compare_lists(about, got, expected):
    if got != expected:
        raise Failure(
            f"{about}: {', '.join(expected) or 'nothing'}; you say {', '.join(got) or 'nothing'}."
        )


IN_NUMBERS = {
    **dict.fromkeys(("naive_bound", "fused_bound"), " (memory 1, compute 0)"),
    "fell_back": f" (1 = in the list: {', '.join(NAMES)})",
}


task = Task(
    reference.who_computed_it,
    number=7,
    returns=tuple(f"{name}{IN_NUMBERS.get(name, '')}" for name in CONCLUSIONS),
    difficulty=3,
    minutes=15,
    section="lab3-conclude",
    probes=probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


@task.check(2)
def what_naive_attention_waits_for_is_right_on_every_machine_and_in_every_format(answer, rng):
    says(answer, rng, "naive_bound", "T4", "CPU", "CPU, narrow heads", "T4 in float32")
    says(answer, rng, "naive_bound", "T4, wide heads")


@task.check(1)
def what_fused_attention_waits_for_is_right_under_the_same_roof(answer, rng):
    says(answer, rng, "fused_bound", "T4", "CPU", "H100, short", "CPU, narrow heads")
    says(answer, rng, "fused_bound", "H100 in float32, short")


@task.check(2)
def the_share_is_the_measured_speed_over_the_roof_at_the_largest_n(answer, rng):
    says(answer, rng, "naive_share", "T4", "CPU", "T4 in float32", "CPU, narrow heads")
    says(answer, rng, "naive_share", "T4, wide heads")


@task.check(2, "the calls that fell back are those whose backend is MATH, whatever their name")
def what_fell_back_is_read_from_the_backend_and_not_from_the_name(answer, rng):
    says(answer, rng, "fell_back", "T4", "CPU", "H100, short", "a misleading name")
    says(answer, rng, "fell_back", "fused attention fell back", "the plain call fell back")
    says(answer, rng, "fell_back", "one call ran out of memory")
    says(answer, rng, "fell_back", "nobody saw a call that ran out of memory")


@task.check(2)
def the_cost_is_that_of_the_slowest_fallback(answer, rng):
    listed = "T4", "CPU", "a misleading name"
    with following(lambda: says(answer, rng, "fell_back", *listed)):
        says(answer, rng, "cost", *listed, "one call ran out of memory")


@task.check(1)
def without_a_fallback_the_cost_is_one(answer, rng):
    with following(lambda: says(answer, rng, "fell_back", "H100, short")):
        says(answer, rng, "cost", "H100, short")


@task.check(1)
def disturbed_samples_do_not_move_it(answer, rng):
    for name in ("naive_share", "cost"):
        with following(functools.partial(says, answer, rng, name, "T4", "CPU")):
            says(answer, rng, name, "disturbed", "disturbed on a CPU")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Conclusions:
    number = headline

    def points(points):
        return points

    def done(point):
        return not point["error"]

    def size(sizes):
        return max(sizes)

    def fused_size(sizes, n):
        return n

    def peak(peaks, dtype):
        return peaks[dtype]

    def naive_bound(intensity, ridge):
        return "memory" if intensity < ridge else "compute"

    def beside(fused, naive):
        return fused

    def fused_bound(intensity, ridge):
        return "memory" if intensity < ridge else "compute"

    def share(speed, intensity, peak, bandwidth):
        return speed / min(peak, intensity * bandwidth)

    def fell_back(points, time):
        return [p["call"] for p in points if p["name"] == "call" and p["backend"] == "MATH"]

    def cost(slow, time):
        return max(slow) / time["plain"] if slow else 1.0

    def __call__(self, record):
        points, limits = self.points(record["points"]), record["machine"]["ceilings"]
        bandwidth = limits["bytes_per_second"]
        done = {(p["name"], p["n"]): p for p in points if p["name"] != "call" and self.done(p)}
        n = self.size([n for name, n in done if name == "naive"])
        m = self.fused_size([size for name, size in done if name == "fused"], n)
        naive = done["naive", n]
        fused = self.beside(done["fused", m], naive)
        peak = self.peak(limits["flops_per_second"], naive["dtype"])
        intensity = naive["flops"] / naive["bytes"]
        calls = [p for p in points if p["name"] == "call" and p["seconds"]]
        time = {p["call"]: self.number(p) for p in calls}
        fell_back = self.fell_back(points, time)
        speed = naive["flops"] / self.number(naive)
        return {
            "naive_bound": self.naive_bound(intensity, peak / bandwidth),
            "fused_bound": self.fused_bound(fused["flops"] / fused["bytes"], peak / bandwidth),
            "naive_share": self.share(speed, intensity, peak, bandwidth),
            "fell_back": fell_back,
            "cost": self.cost([time[call] for call in fell_back if call in time], time),
        }


def by(middle):
    return lambda point: middle(point["seconds"])


# --- faults -------------------------------------------------------------------------------------


def swapped(intensity, ridge):
    return "memory" if intensity > ridge else "compute"


def calls(chosen):
    """What fell back, chosen by another rule."""
    return lambda points, time: [p["call"] for p in points if p["name"] == "call" and chosen(p)]


def slow(points, time):
    return [call for call, seconds in time.items() if seconds > 1.8 * time["plain"]]


def of_every_point(points, time):
    return [p.get("call", p["name"]) for p in points if p["backend"] == "MATH"]


def with_a_time(points):
    for point in points:
        point["time"] = min(point["seconds"], default=None)
    return points


def and_naive(points, time):
    return [*Conclusions.fell_back(points, time), "naive"]


ROOFLINE, TRACE = {"section": "lab3-roofline"}, {"section": "lab3-trace"}

task.fault("L3-NAIVE-ALWAYS-MEMORY", **ROOFLINE, naive_bound=lambda intensity, ridge: "memory")
task.fault("L3-FUSED-ALWAYS-COMPUTE", **ROOFLINE, fused_bound=lambda intensity, ridge: "compute")
task.fault(
    "L3-SHARE-OF-PEAK", **ROOFLINE, share=lambda speed, intensity, peak, bandwidth: speed / peak
)
task.fault(
    "L3-SHARE-OF-BANDWIDTH",
    **ROOFLINE,
    share=lambda speed, intensity, peak, bandwidth: speed / intensity / bandwidth,
)
task.fault(
    "L3-PERCENT",
    share=lambda speed, intensity, peak, bandwidth: 100 * speed / min(peak, intensity * bandwidth),
)
task.fault(
    "L3-SHARE-INVERTED",
    **ROOFLINE,
    share=lambda speed, intensity, peak, bandwidth: min(peak, intensity * bandwidth) / speed,
)
task.fault(
    "L3-LARGER",
    **ROOFLINE,
    share=lambda speed, intensity, peak, bandwidth: speed / max(peak, intensity * bandwidth),
)
task.fault("L3-BOUND-SWAPPED", **ROOFLINE, naive_bound=swapped, fused_bound=swapped)
task.fault("L3-ONE-BOUND", **ROOFLINE, beside=lambda fused, naive: naive)
task.fault("C-WRITES-INTO-POINTS", points=with_a_time)
task.fault("L3-SMALLEST-N", size=min)
task.fault("L3-FUSED-LARGEST-N", fused_size=lambda sizes, n: max(sizes))
task.fault("L3-FAILED-POINT", done=lambda point: True)
task.fault("L3-FIRST-CEILING", **ROOFLINE, peak=lambda peaks, dtype: next(iter(peaks.values())))
task.fault("L3-FLOAT32-CEILING", **ROOFLINE, peak=lambda peaks, dtype: peaks["float32"])
task.fault("L3-LARGEST-CEILING", **ROOFLINE, peak=lambda peaks, dtype: max(peaks.values()))
task.fault("L3-FASTEST", number=by(min))
task.fault("C-MEDIAN-EVERYWHERE", number=by(statistics.median))
task.fault("L3-FIRST-SAMPLE", number=by(lambda seconds: seconds[0]))
task.fault("L3-MEAN", number=by(statistics.mean))
task.fault("L3-SLOWEST", number=by(max))
task.fault(
    "L3-BELIEVES-THE-NAME",
    **TRACE,
    fell_back=calls(lambda p: p["backend"] == "MATH" and "flash" not in p["call"]),
)
task.fault("L3-SLOW-IS-MATH", **TRACE, fell_back=slow)
task.fault(
    "L3-NO-TIME-NO-FALLBACK", fell_back=calls(lambda p: p["backend"] == "MATH" and not p["error"])
)
task.fault("L3-NOT-FLASH", **TRACE, fell_back=and_naive)
task.fault(
    "L3-OTHER-KERNEL",
    **TRACE,
    fell_back=calls(lambda p: p["backend"] != "FLASH"),
    entire=[
        {"fell_back": calls(lambda p: p["backend"] != "FLASH" and p["call"] != "plain")},
        {"fell_back": calls(lambda p: p["backend"] not in ("FLASH", None))},
    ],
)
task.fault("L3-FAILED-FELL", fell_back=calls(lambda p: p["backend"] == "MATH" or p["error"]))
task.fault(
    "L3-NOT-PLAIN",
    **TRACE,
    fell_back=calls(lambda p: p["backend"] == "MATH" and p["call"] != "plain"),
)
task.fault("L3-ALL-POINTS", fell_back=of_every_point)
task.fault("L3-CHEAPEST", cost=lambda slow, time: min(slow) / time["plain"] if slow else 1.0)
task.fault(
    "L3-AVERAGE-COST",
    cost=lambda slow, time: statistics.mean(slow) / time["plain"] if slow else 1.0,
)
task.fault("L3-SUM-OF-COSTS", cost=lambda slow, time: sum(slow) / time["plain"] if slow else 1.0)
task.fault("L3-SLOWEST-CALL", cost=lambda slow, time: max(time.values()) / time["plain"])
task.fault(
    "L3-OVER-THE-FASTEST", cost=lambda slow, time: max(slow) / min(time.values()) if slow else 1.0
)
task.fault("L3-COST-INVERTED", cost=lambda slow, time: time["plain"] / max(slow) if slow else 1.0)
task.fault("L3-COST-ZERO", cost=lambda slow, time: max(slow) / time["plain"] if slow else 0.0)

"""who_computed_it."""

import statistics

import torch

from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.tasks.lab3_who_computed_it import (
    CALLS,
    CONCLUSIONS,
    LAB,
    NAMES,
    PREDICTED,
    WIDTHS,
    _bound,
    said,
)
from attncourse.tasks.lab3_who_computed_it._faults import middle, roof

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
            for factor, places in ((2.5, [0]), (4, range(3, 9)), (0.8, (10, 14, 17))):
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
    "disturbed": {"disturbed": True, "share": 0.35},
    "a misleading name": {"flash_label": True, "fell_back": ("three axes",), "costs": (2.0,)},
    "fused attention fell back": {"fused_fell": True},
    "the plain call fell back": {"fell_back": ("plain", "dropout"), "costs": (1.0, 3.0)},
    "one call ran out of memory": {"failed": ("bfloat16",)},
    "nobody saw a call that ran out of memory": {"unseen": ("strided key",)},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


def says(answer, rng, name, *kinds):
    """Assert that one conclusion is right about these records."""
    for kind in kinds:
        record, truth = a_record(rng, **RECORDS[kind])
        got = answer({"record": record})[CONCLUSIONS.index(name)]
        about = f"In a made-up record ({kind}), {name}"
        if name == "fell_back":
            got = sorted(call for call, is_in in zip(NAMES, got, strict=True) if is_in)
            compare_lists(about, got, sorted(truth[name]))
        elif name.endswith("bound"):
            if bool(got) != truth[name]:
                raise Failure(f"{about} is {_bound(truth[name])}; you say {_bound(got.item())}.")
        elif not abs(got.item() - truth[name]) <= 0.08 * truth[name]:
            raise Failure(f"{about} is {truth[name]:.3g}; your function says {got.item():.3g}.")


def compare_lists(about, got, expected):
    if got != expected:
        raise Failure(
            f"{about}: {', '.join(expected) or 'nothing'}; you say {', '.join(got) or 'nothing'}."
        )


task = Task(
    reference.who_computed_it,
    number=7,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=15,
    section="lab3-conclude",
    hints=(
        "Sort the points first: naive by n, fused by n, calls by their name. Which have times?",
        "The machine's ceilings are by dtype: take that of the naive point. Bound "
        "and roof are those of task 4; the share is the measured speed over the roof.",
        "n = the largest with a naive time. For the points there: intensity and ridge, and the "
        "smaller of the two limits for naive. fell_back: the `call` of every point whose "
        "backend is MATH. cost: the longest of their medians over that of plain.",
    ),
    probes=conclude_probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


@task.check(2)
def whether_naive_attention_waits_for_memory_depends_on_the_machine(answer, rng):
    says(answer, rng, "naive_bound", "T4", "CPU", "CPU, narrow heads", "T4 in float32")


@task.check(1)
def fused_attention_stands_elsewhere_under_the_same_roof(answer, rng):
    says(answer, rng, "fused_bound", "T4", "CPU", "H100, short", "CPU, narrow heads")


@task.check(2)
def the_share_is_the_measured_speed_over_the_roof(answer, rng):
    says(answer, rng, "naive_share", "T4", "CPU", "T4 in float32", "CPU, narrow heads")


@task.check(1)
def a_few_disturbed_samples_do_not_move_it(answer, rng):
    for name in ("naive_share", "cost"):
        says(answer, rng, name, "disturbed")


@task.check(2)
def what_fell_back_is_read_from_the_backend_and_not_from_the_name(answer, rng):
    says(answer, rng, "fell_back", "T4", "CPU", "H100, short", "a misleading name")
    says(answer, rng, "fell_back", "fused attention fell back", "the plain call fell back")
    says(answer, rng, "fell_back", "one call ran out of memory")
    says(answer, rng, "fell_back", "nobody saw a call that ran out of memory")


@task.check(2)
def the_cost_is_that_of_the_slowest_fallback(answer, rng):
    says(answer, rng, "cost", "T4", "CPU", "a misleading name", "one call ran out of memory")


@task.check(1)
def without_a_fallback_the_cost_is_one(answer, rng):
    says(answer, rng, "cost", "H100, short")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- faults ---------------------------------------------------------------------------------------


def concluded(record, *, at=max, average=statistics.median, **instead):
    """Right conclusions, but for what is replaced."""
    points = record["points"]
    done = {(p["name"], p["n"]): p for p in points if p["name"] != "call" and not p["error"]}
    n = at(n for name, n in done if name == "naive")
    naive, fused = done["naive", n], done["fused", n]
    limits = record["machine"]["ceilings"]
    peak = limits["flops_per_second"][instead.get("dtype") or naive["dtype"]]
    under = roof(naive["flops"], naive["bytes"], peak, limits["bytes_per_second"])
    of_fused = roof(fused["flops"], fused["bytes"], peak, limits["bytes_per_second"])
    calls = {p["call"]: p for p in points if p["name"] == "call"}
    fell_back = instead.get("fell_back")
    if fell_back is None:
        fell_back = sorted(call for call, p in calls.items() if p["backend"] == "MATH")
    slow = [middle(calls[call], average) for call in fell_back if calls[call]["seconds"]]
    over = instead.get("over", max)
    speed = naive["flops"] / middle(naive, average)
    found = {
        "naive_bound": under["bound"],
        "fused_bound": of_fused["bound"],
        "naive_share": speed / under["roof"],
        "fell_back": fell_back,
        "cost": over(slow) / middle(calls["plain"], average) if slow else 1.0,
    }
    return found | {name: instead[name] for name in found if name in instead}


@task.fault(
    "L3-NAIVE-ALWAYS-MEMORY",
    thinks="Naive attention is memory-bound, everybody says so.",
    why="On GPUs it is, where the ridge lies at a hundred operations a byte or more. A CPU's ridge "
    "is at five or so. Compare the intensity with the ridge of this record.",
    section="lab3-roofline",
)
def naive_waits_for_memory(record):
    return concluded(record, naive_bound="memory")


@task.fault(
    "L3-FUSED-ALWAYS-COMPUTE",
    thinks="Fused attention is compute-bound, that is what it was made for.",
    why="From some length on: its intensity grows with n. For a short text on a fast GPU it lies "
    "below the ridge as well.",
    section="lab3-roofline",
)
def fused_computes(record):
    return concluded(record, fused_bound="compute")


@task.fault(
    "L3-SHARE-OF-PEAK",
    thinks="The share is the speed over the peak of the machine.",
    why="Below the ridge nobody can reach the peak. The share of the roof says how well the "
    "program uses what it could reach.",
    section="lab3-roofline",
)
def share_of_the_peak(record):
    found = concluded(record)
    done = [p for p in record["points"] if p["name"] == "naive" and not p["error"]]
    naive = max(done, key=lambda p: p["n"])
    peak = record["machine"]["ceilings"]["flops_per_second"][naive["dtype"]]
    return found | {"naive_share": naive["flops"] / middle(naive) / peak}


@task.fault(
    "L3-SMALLEST-N",
    thinks="Any n will do for the share, say the first.",
    why="At small n much of the time is the call itself, and every share is small. Take the "
    "largest n that naive attention reached.",
)
def at_the_smallest(record):
    return concluded(record, at=min)


@task.fault(
    "L3-FIRST-CEILING",
    thinks="The ceiling is the first number in the record.",
    why="There is one for each format. A roof of float32 over points in float16, or the other way "
    "around, is a roof over another house.",
    section="lab3-roofline",
)
def first_ceiling(record):
    first = next(iter(record["machine"]["ceilings"]["flops_per_second"]))
    return concluded(record, dtype=first)


@task.fault(
    "L3-LARGEST-CEILING",
    thinks="The ceiling is the largest number in the record.",
    why="That is the speed of another format. Points in float32 cannot reach what the machine does "
    "in float16.",
    section="lab3-roofline",
)
def largest_ceiling(record):
    peaks = record["machine"]["ceilings"]["flops_per_second"]
    return concluded(record, dtype=max(peaks, key=peaks.get))


@task.fault(
    "L3-FASTEST",
    thinks="What disturbs makes slower, so the fastest sample is the true one.",
    why="On a CPU that is nearly so. The clock of a GPU goes up as well as down, and a lucky "
    "sample is as rare as an unlucky one. A median stays where most of them are.",
)
def fastest_samples(record):
    return concluded(record, average=min)


@task.fault(
    "L3-FIRST-SAMPLE",
    thinks="One sample is a measurement, so I take the first.",
    why="The first is the one most often disturbed. The record holds all of them for a reason: "
    "take their median.",
)
def first_samples(record):
    return concluded(record, average=lambda seconds: seconds[0])


@task.fault(
    "L3-MEAN",
    thinks="The time of a point is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it. A median "
    "stays where most of them are.",
)
def means(record):
    return concluded(record, average=statistics.mean)


@task.fault(
    "L3-SLOWEST",
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it. It is no safe side; it is somebody "
    "else's time.",
)
def slowest_samples(record):
    return concluded(record, average=max)


@task.fault(
    "L3-BELIEVES-THE-NAME",
    thinks="A call that is named flash did not fall back.",
    why="A name is what somebody hoped for. The field `backend` is what was seen.",
    section="lab3-trace",
)
def believes_the_name(record):
    found = concluded(record)["fell_back"]
    return concluded(record, fell_back=[call for call in found if "flash" not in call])


@task.fault(
    "L3-SLOW-IS-MATH",
    thinks="What takes twice as long as the plain call has fallen back.",
    why="A fused kernel may be slow for other reasons, a mask has to be read, for instance; and a "
    "fallback may be fast at a small n. The backend is in the record.",
    section="lab3-trace",
)
def slow_is_math(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call" and p["seconds"]}
    plain = middle(calls["plain"])
    return concluded(
        record, fell_back=sorted(c for c, p in calls.items() if middle(p) > 1.8 * plain)
    )


@task.fault(
    "L3-NO-TIME-NO-FALLBACK",
    thinks="A call that ran out of memory tells nothing.",
    why="It has no time, but its backend was seen, and MATH is why the memory ended. It fell back; "
    "only its cost is unknown.",
)
def failed_calls_left_out(record):
    done = {p["call"]: p for p in record["points"] if p["name"] == "call" and not p["error"]}
    return concluded(record, fell_back=sorted(c for c, p in done.items() if p["backend"] == "MATH"))


@task.fault(
    "L3-NOT-FLASH",
    thinks="Everything that was expected to be FLASH and is MATH counts, naive attention too.",
    why="Naive attention never asked for a kernel: it is written out on purpose. Only a call of "
    "torch's function can fall back.",
    section="lab3-trace",
)
def naive_fell_back_too(record):
    found = concluded(record)
    return found | {"fell_back": sorted([*found["fell_back"], "naive"])}


@task.fault(
    "L3-OTHER-KERNEL",
    thinks="What FLASH did not compute has fallen back.",
    why="EFFICIENT and CUDNN are fused kernels, too: on a T4 there is nothing better. A fallback "
    "is a call that none of them took.",
    section="lab3-trace",
)
def all_but_flash(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    return concluded(record, fell_back=sorted(c for c in calls if calls[c]["backend"] != "FLASH"))


@task.fault(
    "L3-FAILED-FELL",
    thinks="A call that ran out of memory has fallen back: only MATH needs so much.",
    why="It is likely, and nobody saw it: a fused kernel can run out, too. Only what has MATH for "
    "its backend counts.",
)
def what_failed_fell_back(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    fell = sorted(c for c, p in calls.items() if p["backend"] == "MATH" or p["error"])
    return concluded(record, fell_back=fell)


@task.fault(
    "L3-NOT-PLAIN",
    thinks="The plain call is the fused one, so it never counts as a fallback.",
    why="On some machines or formats no fused kernel takes even that. Ask its backend as well.",
    section="lab3-trace",
)
def never_the_plain_one(record):
    found = concluded(record)
    return found | {"fell_back": [call for call in found["fell_back"] if call != "plain"]}


@task.fault(
    "L3-ALL-POINTS",
    thinks="Every point whose backend is MATH is a call that fell back.",
    why="The record holds naive and fused attention at several n as well. Asked for are the calls: "
    "points with the name “call”.",
)
def every_point_counts(record):
    found = concluded(record)
    more = {p["name"] for p in record["points"] if p["name"] != "call" and p["backend"] == "MATH"}
    return found | {"fell_back": [*found["fell_back"], *sorted(more)]}


@task.fault(
    "L3-CHEAPEST",
    thinks="A fallback costs what the mildest of them costs.",
    why="Then one harmless case hides the others. Asked for is the worst.",
)
def the_mildest(record):
    return concluded(record, over=min)


@task.fault(
    "L3-AVERAGE-COST",
    thinks="The cost is the average over the fallbacks.",
    why="An average over calls that nobody makes equally often says nothing. Asked for is the "
    "worst.",
)
def cost_on_average(record):
    return concluded(record, over=statistics.mean)


@task.fault(
    "L3-COST-INVERTED",
    thinks="The cost is the share of its speed that a call keeps.",
    why="That is the inverse, 0.2 instead of 5. Here the time of the fallback stands above the "
    "fraction bar.",
)
def cost_upside_down(record):
    return concluded(record, cost=1 / concluded(record)["cost"])


@task.fault(
    "L3-COST-ZERO",
    thinks="Without a fallback the cost is 0.",
    why="The cost is a factor, and a factor that changes nothing is 1.",
)
def nothing_costs_zero(record):
    found = concluded(record)
    return found if found["fell_back"] else found | {"cost": 0.0}

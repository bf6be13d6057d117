"""conclude_decode."""

import statistics

import torch

from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.roofline import attention_flops, decode_bytes
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
    failed=(),
    predicted=1.1,
    disturbed=None,
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        rate: at which a cache is read, over that of a copy.
        fixed: seconds of a step that have nothing to do with its cache.
        near: caches of so many bytes or fewer wait in a cache of the processor, and are read
            at up to four times the bandwidth of a copy.
        failed: (name, n) that ran out of memory.
        predicted: the predicted speed-up over the true one.
        disturbed: the name whose samples at the largest n are partly many times too long.

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
                true = max(moved / (4 * copy), 1.1 * computing)
            if name == "expanded":
                true = 3 * (fixed + h * moved / 8 / (rate * copy))
            error = "out of memory" if (name, n) in failed else None
            if not error:
                times[name, n] = true, moved, flops
            factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
            samples = [round(true * factor, 12) for factor in factors]
            if name == disturbed and n == max(sizes):
                samples[3:10] = [4 * each for each in samples[3:10]]
            if slow_first:
                samples[0] *= 20 if name == "MHA" else 5
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
        "predicted": 0.5,
    },
    "16 heads": {"dtype": "float32", "h": 16, "rate": 0.4, "predicted": 1.4},
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
        if not abs(got - expected) <= LIMITS.get(name, 0) * expected:
            dtype = record["points"][0]["dtype"]
            raise Failure(
                f"In a made-up record ({kind}, {dtype}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}."
            )


task = Task(
    reference.conclude_decode,
    number=6,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=18,
    section="lab5-conclude",
    hints=(
        "Begin with order: leave out what failed, and make a dict (name, n) → median seconds "
        "and one (name, n) → point.",
        "A point knows its bytes and its flops. Bytes over seconds is its speed; flops over "
        "bytes its intensity. The ridge is the flops per second of a product, in the dtype of "
        "the point, over the bytes per second of a copy.",
        "bytes_per_second: the MHA point with the largest n. ideal and speed_up: the largest n "
        "for which MHA and MQA both have a time. computes: MQA's intensity > ridge, there. "
        "from_cache: count all points with bytes / seconds > 1.5 · copy. held: speed_up / 1.5 "
        "<= predicted <= 1.5 · speed_up.",
    ),
    probes=conclude_probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


@task.check(2)
def the_bytes_a_second_are_those_of_mha_at_its_largest_n(answer, rng):
    kinds = ("T4", "CPU", "MHA ran out of memory", "disturbed MHA")
    says(answer, rng, "bytes_per_second", *kinds, "small caches wait", "MQA was interrupted")


@task.check(1)
def the_share_is_that_in_a_copy_on_the_same_machine(answer, rng):
    kinds = ("T4", "CPU", "reading is faster than copying")
    says(answer, rng, "share", *kinds, "small caches wait", "MQA was interrupted")


@task.check(1)
def the_ideal_is_the_ratio_of_the_bytes(answer, rng):
    says(answer, rng, "ideal", "T4", "MQA was interrupted", "16 heads")


@task.check(2)
def the_speed_up_is_taken_where_both_have_a_time(answer, rng):
    kinds = ("T4", "CPU", "MHA ran out of memory", "MQA was interrupted")
    says(answer, rng, "speed_up", *kinds)


@task.check(1)
def a_few_slow_samples_do_not_move_the_speed_up(answer, rng):
    says(answer, rng, "speed_up", "disturbed MHA", "disturbed MQA")


@task.check(1)
def it_says_whether_mqa_still_waits_for_memory(answer, rng):
    says(answer, rng, "computes")


@task.check(2)
def it_counts_what_came_from_a_cache(answer, rng):
    says(answer, rng, "from_cache")


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    says(answer, rng, "held")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- faults ---------------------------------------------------------------------------------------


def summary(record, average=statistics.median, **instead):
    """Right conclusions, with this average, less what is replaced."""
    points = {(p["name"], p["n"]): p for p in record["points"] if not p["error"]}
    times = {place: average(point["seconds"]) for place, point in points.items()}
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]
    own = [n for name, n in points if name == "MHA"]
    n = max(n for n in own if ("MQA", n) in points)
    many, one = points["MHA", n], points["MQA", n]
    speed = points["MHA", max(own)]["bytes"] / times["MHA", max(own)]
    speed_up = instead.get("speed_up", times["MHA", n] / times["MQA", n])
    predicted = record["predictions"]["speed_up"]["value"]
    edge = roof["flops_per_second"][one["dtype"]] / copy
    return {
        "bytes_per_second": speed,
        "share": instead.get("bytes_per_second", speed) / copy,
        "ideal": many["bytes"] / one["bytes"],
        "speed_up": speed_up,
        "computes": one["flops"] / one["bytes"] > edge,
        "from_cache": sum(points[at]["bytes"] / times[at] > 1.5 * copy for at in points),
        "held": speed_up / 1.5 <= predicted <= 1.5 * speed_up,
    } | instead


def medians_of(record, name):
    """n -> median seconds."""
    return {
        p["n"]: statistics.median(p["seconds"])
        for p in record["points"]
        if p["name"] == name and not p["error"]
    }


def points_of(record, name):
    """n -> point."""
    return {p["n"]: p for p in record["points"] if p["name"] == name and not p["error"]}


@task.fault(
    "L5-MEAN",
    thinks="The time of a point is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 double it. A median stays "
    "where most of them are.",
)
def means(record):
    return summary(record, statistics.mean)


@task.fault(
    "L5-FIRST-SAMPLE",
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
)
def first_samples(record):
    return summary(record, lambda samples: samples[0])


@task.fault(
    "L5-SLOWEST",
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it. It is no safe side; it is somebody "
    "else's time.",
)
def slowest_samples(record):
    return summary(record, max)


@task.fault(
    "L5-IDEAL-AS-MEASURED",
    thinks="A cache 32 times smaller is read 32 times faster, so that is the speed-up.",
    why="That is the ideal. A step has costs that do not shrink with its cache, and beyond the "
    "ridge it computes. The speed-up is the ratio of the times.",
    section="lab5-less",
)
def ideal_for_measured(record):
    return summary(record, speed_up=summary(record)["ideal"])


@task.fault(
    "L5-ALWAYS-32",
    thinks="There are 32 heads, so the ideal is 32.",
    why="A record may be of 16 heads. Bytes are in the points: divide those of MHA by those of "
    "MQA.",
)
def always_32(record):
    return summary(record, ideal=32)


@task.fault(
    "L5-GQA-FOR-MQA",
    thinks="The speed-up of fewer heads: MHA over GQA-8.",
    why="Asked for is MQA, one cached head for all queries. GQA-8 lies between.",
)
def against_gqa(record):
    many, few = medians_of(record, "MHA"), medians_of(record, "GQA-8")
    n = max(many.keys() & few.keys())
    bytes_of = {name: points_of(record, name)[n]["bytes"] for name in ("MHA", "GQA-8")}
    return summary(record, speed_up=many[n] / few[n], ideal=bytes_of["MHA"] / bytes_of["GQA-8"])


@task.fault(
    "L5-DIFFERENT-N",
    thinks="The speed-up is that of the two largest caches.",
    why="One of them may have run out of memory earlier. Compare them at an n where both have a "
    "time.",
)
def each_at_its_own_end(record):
    many, one = medians_of(record, "MHA"), medians_of(record, "MQA")
    return summary(record, speed_up=many[max(many)] / one[max(one)])


@task.fault(
    "L5-SMALLEST-N",
    thinks="The speed-up can be read off at any size, say the first.",
    why="At the smallest size a step is mostly fixed cost, so the ratio is near one whatever the "
    "heads. Take the largest that both have.",
    section="lab5-less",
)
def at_the_smallest(record):
    many, one = medians_of(record, "MHA"), medians_of(record, "MQA")
    n = min(many.keys() & one.keys())
    return summary(record, speed_up=many[n] / one[n])


def upside_down_but_for_held(record):
    right = summary(record)
    return right | {"speed_up": 1 / right["speed_up"]}


@task.fault(
    "L5-UPSIDE-DOWN",
    thinks="The speed-up says which share of MHA's time MQA needs.",
    why="That is the inverse: 0.05 instead of 20. Here MHA stands above the fraction bar.",
    forms=(upside_down_but_for_held,),
)
def upside_down(record):
    return summary(record, speed_up=1 / summary(record)["speed_up"])


@task.fault(
    "L5-MQA-SPEED",
    thinks="The bytes a second are those of the fastest, MQA.",
    why="MQA takes the least time, but it has few bytes to read: its speed in bytes a second is "
    "often the lowest. Asked for is MHA.",
    section="lab5-bandwidth",
)
def speed_of_mqa(record):
    one = points_of(record, "MQA")
    speed = one[max(one)]["bytes"] / medians_of(record, "MQA")[max(one)]
    return summary(record, bytes_per_second=speed)


@task.fault(
    "L5-FASTEST-POINT",
    thinks="The speed of MHA is that of its fastest point.",
    why="A small cache may wait in the processor and be read faster than memory can. The largest n "
    "is the one that surely comes from memory.",
    section="lab5-bandwidth",
)
def fastest_point_of_mha(record):
    times = medians_of(record, "MHA")
    speed = max(point["bytes"] / times[n] for n, point in points_of(record, "MHA").items())
    return summary(record, bytes_per_second=speed)


@task.fault(
    "L5-SPEED-AT-COMMON-N",
    thinks="All is read off at the largest n that MHA and MQA share.",
    why="Only what compares the two needs that. The bytes a second are of MHA alone, and may be "
    "taken where its cache is largest.",
)
def speed_at_the_common_n(record):
    times, points = medians_of(record, "MHA"), points_of(record, "MHA")
    n = max(times.keys() & points_of(record, "MQA").keys())
    return summary(record, bytes_per_second=points[n]["bytes"] / times[n])


@task.fault(
    "L5-GIGABYTES",
    thinks="Bandwidth is best said in GB/s.",
    why="For people, yes. The key says bytes_per_second, and the copy's bandwidth beside it is in "
    "bytes a second. Divide when you print.",
    section="lab5-bandwidth",
)
def in_gigabytes(record):
    right = summary(record)
    return right | {"bytes_per_second": right["bytes_per_second"] / 1e9}


@task.fault(
    "L5-DATA-SHEET",
    thinks="The share is that of the 320 GB/s in the data sheet.",
    why="Not every record is of a T4, and no program reaches its sheet. This machine's own copy is "
    'in record["machine"]["ceilings"].',
    section="lab5-bandwidth",
)
def share_of_the_sheet(record):
    right = summary(record)
    return right | {"share": right["bytes_per_second"] / 320e9}


@task.fault(
    "L5-SHARE-INVERTED",
    thinks="The share says how many times as fast a copy is.",
    why="That is its inverse. A share of a copy's speed is 1 if the step reads as fast as a copy, "
    "and less if it is slower.",
    section="lab5-bandwidth",
)
def inverted_share(record):
    right = summary(record)
    return right | {"share": 1 / right["share"]}


@task.fault(
    "L5-FLOAT32-RIDGE",
    thinks="The arithmetic is that of float32.",
    why="On a CPU, yes. A GPU's record is in float16, and multiplies that several times as fast. "
    "Each point says its dtype.",
    section="lab5-ridge",
)
def ridge_of_float32(record):
    roof = record["machine"]["ceilings"]
    one, many = points_of(record, "MQA"), points_of(record, "MHA")
    point = one[max(one.keys() & many.keys())]
    edge = roof["flops_per_second"]["float32"] / roof["bytes_per_second"]
    return summary(record, computes=point["flops"] / point["bytes"] > edge)


@task.fault(
    "L5-ALWAYS-MEMORY",
    thinks="Decoding waits for memory, that is known.",
    why="With one query for each key, yes. With 32 queries for a key there are 32 times the "
    "operations for each byte, and on a machine that computes slowly that is beyond the ridge.",
    section="lab5-ridge",
)
def never_computes(record):
    return summary(record, computes=False)


@task.fault(
    "L5-RIDGE-OF-MHA",
    thinks="One intensity for all: that of MHA.",
    why="The operations are the same, but MQA has a 32nd of the bytes, so its intensity is 32 "
    "times as high. Asked for is MQA.",
    section="lab5-ridge",
)
def intensity_of_mha(record):
    roof = record["machine"]["ceilings"]
    many = points_of(record, "MHA")
    point = many[max(many)]
    edge = roof["flops_per_second"][point["dtype"]] / roof["bytes_per_second"]
    return summary(record, computes=point["flops"] / point["bytes"] > edge)


@task.fault(
    "L5-RIDGE-INVERTED",
    thinks="Above the ridge a program waits for memory.",
    why="The other way round: many operations for each byte keep the arithmetic busy, and memory "
    "waits. Below the ridge a program waits for memory.",
    section="lab5-ridge",
)
def above_waits(record):
    return summary(record, computes=not summary(record)["computes"])


@task.fault(
    "L5-FASTER-THAN-A-COPY",
    thinks="Whatever is faster than the copy came from a cache.",
    why="A copy reads and writes; reading alone can be up to 1.5 times as fast. Only beyond that "
    "is it certain.",
    section="lab5-bandwidth",
)
def beyond_one_copy(record):
    copy = record["machine"]["ceilings"]["bytes_per_second"]
    done = [p for p in record["points"] if not p["error"]]
    fast = [p for p in done if p["bytes"] / statistics.median(p["seconds"]) > copy]
    return summary(record, from_cache=len(fast))


@task.fault(
    "L5-NEVER-FROM-CACHE",
    thinks="What is read from a tensor is read from memory, or a label says otherwise.",
    why="A small tensor that was read a moment ago may still lie in a cache of the processor, with "
    "no label. It shows: more bytes a second than memory can give.",
    section="lab5-bandwidth",
)
def never_from_cache(record):
    return summary(record, from_cache=0)


@task.fault(
    "L5-HELD-EXACTLY",
    thinks="A prediction holds if it is the right number.",
    why="No prediction of a measurement is right to the digit. A factor of 1.5 either way was "
    "agreed before, and that is what makes it a test.",
    section="lab5-predict",
)
def held_within_one_percent(record):
    predicted, found = record["predictions"]["speed_up"]["value"], summary(record)["speed_up"]
    return summary(record, held=abs(predicted / found - 1) < 0.01)


@task.fault(
    "L5-HELD-IDEAL",
    thinks="The prediction is held against what the bytes say.",
    why="It was made of the time. What the bytes say, the ideal, is another guess. Only the "
    "measured speed-up can test either.",
    section="lab5-predict",
)
def held_against_the_ideal(record):
    predicted, ideal = record["predictions"]["speed_up"]["value"], summary(record)["ideal"]
    return summary(record, held=ideal / 1.5 <= predicted <= 1.5 * ideal)


@task.fault(
    "L5-HELD-ONE-SIDED",
    thinks="The prediction held if the speed-up was at least what I predicted.",
    why="A factor of 1.5 goes both ways: who predicts 2 when it is 20 has not been right.",
    section="lab5-predict",
)
def held_one_sided(record):
    predicted, found = record["predictions"]["speed_up"]["value"], summary(record)["speed_up"]
    return summary(record, held=predicted <= 1.5 * found)

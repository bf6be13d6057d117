from attncourse.checks.answer import Failure, following
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.roofline import decode_bytes
from attncourse.tasks import made_up, receipts
from attncourse.tasks.lab5_decode_bandwidth import LAB, WIDTHS
from attncourse.tasks.receipts import pasted, points, record_of, timed

METHODS = ("MHA", "GQA-8", "MQA")


PREDICTED = ("share", "speed_up", "expanded")


LARGE = 2048  # a quick run ends at 256; with little memory one may have chosen smaller sizes


def common_sizes(record):
    return sorted(set.intersection(*(set(timed(record, name)) for name in METHODS)))


def copy_bandwidth(record):
    """Bytes a second of the machine's own copy, and whether its products were timed, too."""
    ceilings = record["machine"].get("ceilings") or {}
    dtypes = {p.get("dtype") for name in METHODS for p in timed(record, name).values()}
    products = ceilings.get("flops_per_second") or {}
    return ceilings.get("bytes_per_second") or 0, all((products.get(d) or 0) > 0 for d in dtypes)


def wrong_bytes(record):
    """Points whose bytes are not those of their cache: name, n, said, counted."""
    found = []
    for name in METHODS:
        for n, p in timed(record, name).items():
            b, h, kv_heads, d = (p.get(key) or 1 for key in ("b", "h", "kv_heads", "d"))
            right = {"MHA": h, "MQA": 1}.get(name, kv_heads)
            counted_bytes = decode_bytes(b, right, n, d, WIDTHS.get(p.get("dtype"), 4))
            if p.get("bytes") != counted_bytes or kv_heads != right:
                found.append((name, n, p.get("bytes") or 0, counted_bytes))
    return found


def unlabeled(record):
    """Points that are faster than memory can be, and do not say so: name, n, times a copy."""
    copy, _ = copy_bandwidth(record)
    found = []
    for name in METHODS:
        for n, p in timed(record, name).items():
            seconds = sorted(p["seconds"])[len(p["seconds"]) // 2]
            times = (p.get("bytes") or 0) / max(seconds, 1e-12) / copy if copy else 0
            label = (p.get("label") or "").lower()
            if times > 1.6 and "cache" not in label and "l2" not in label:
                found.append((name, n, times))
    return found


def at_the_largest(record):
    """name, n and point of the methods that have a time, each at its largest n."""
    every = {name: timed(record, name) for name in METHODS}
    return [(name, max(of), of[max(of)]) for name, of in every.items() if of]


def without_peak(record):
    """Methods of which nobody has measured how much memory a step takes."""
    return [name for name, _, point in at_the_largest(record) if point.get("peak_bytes") is None]


def copies(record):
    """Methods whose step allocates well above its cache, at the largest n: name, n, peak, bytes."""
    found = []
    for name, n, point in at_the_largest(record):
        peak, cache = (point.get(key) or 0 for key in ("peak_bytes", "bytes"))
        if peak >= cache + 2**24:  # a GPU's libraries keep a workspace
            found.append((name, n, peak, cache))
    return found


task = Task(reference.lab5_receipt, number=5, section="lab5-receipt", **receipts.TASK)


@task.check(2, "three kinds of cache were timed at four sizes or more, one of them large")
def three_kinds_of_cache_were_timed_at_four_sizes_or_more(answer):
    common = common_sizes(record_of(answer))
    if len(common) < 4 or common[-1] < max(8 * common[0], LARGE):
        raise Failure(
            f"Sizes at which MHA, GQA-8 and MQA all have times: {common or 'none'}. Four or "
            "more are needed, the largest at least 8 times the smallest and at least "
            f"{LARGE:,}. A quick run is too small; one without memory for its largest n is not."
        )


@task.check(1)
def a_copy_and_a_product_of_the_same_machine_were_timed(answer):
    copy, products = copy_bandwidth(record_of(answer))
    if not copy > 0 or not products:
        raise Failure(
            "The record does not say how fast this machine copies and multiplies, so it cannot "
            "show which share of that a step reaches. The measuring cell measures both first."
        )


def has_common_sizes(record):
    """Assert that there is something to look at; how many sizes there are has its own check."""
    if not common_sizes(record):
        raise Failure("There is no size at which MHA, GQA-8 and MQA all have times.", open=True)


def has_right_bytes(record):
    for name, n, said, right in wrong_bytes(record):
        raise Failure(
            f"{name} at n = {n}: the receipt says {said:,} bytes. Keys and values of its cache "
            f"are {right:,}."
        )


@task.check(2)
def the_bytes_are_those_of_the_cache(answer):
    record = record_of(answer)
    has_common_sizes(record)
    has_right_bytes(record)


@task.check(2, "the peaks show that no step allocates well above its cache")
def no_step_allocates_well_above_its_cache(answer):
    record = record_of(answer)
    has_common_sizes(record)
    for name in without_peak(record):
        raise Failure(
            f"The record does not say how much memory a step with {name} takes at its largest "
            "n, so it cannot show that nothing was copied. The measuring cell records it."
        )
    for name, n, peak, cache in copies(record):
        raise Failure(
            f"{name} at n = {n}: the step's peak is {peak:,} bytes, its cache {cache:,}. So "
            "the cache was copied on the way. Measure again with your mended `decode_step`."
        )


@task.check(1)
def what_is_faster_than_memory_says_where_its_bytes_were(answer):
    record = record_of(answer)
    with following(lambda: has_right_bytes(record)):  # by wrong bytes the speed is wrong, too
        for name, n, times in unlabeled(record):
            raise Failure(
                f"{name} at n = {n} reads {times:.1f} times as fast as this machine copies. Its "
                'bytes came from a cache of the processor: such a point needs the label "cache".'
            )


def evidence(record):
    common = common_sizes(record)
    copy, products = copy_bandwidth(record)
    return {
        **{name: bool(timed(record, name)) for name in METHODS},
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "large sizes": not common or common[-1] >= LARGE,
        "copy measured": copy > 0,
        "product measured": products,
        "right bytes": not wrong_bytes(record),
        "labels": not unlabeled(record),
        "peaks": not without_peak(record),
        "no copies": not copies(record),
    }


T4 = made_up.with_roofs(made_up.T4, "float16", 2.4e13, 2.4e11)
CPU = made_up.with_roofs(made_up.CPU, "float32", 9e10, 1.7e10)


def a_record(
    machine=T4,
    sizes=(512, 1024, 2048, 4096, 8192),
    d=128,
    ends=10**9,
    near=0,
    with_expanded=True,
    predicted=(0.8, 20, 3),
    **how,
):
    """A record as this machine could have measured it.

    Args:
        ends: the largest n for which MHA and the expanded cache have memory.
        near: caches of so many bytes or fewer wait in a cache of the processor, and say so.
    """
    b, width = (8, 2) if made_up.on_gpu(machine) else (1, 4)
    ((products,), copy) = (
        machine["ceilings"]["flops_per_second"].values(),
        machine["ceilings"]["bytes_per_second"],
    )

    def point(n, name, kv_heads):
        more = name == "expanded"
        cache, flops = decode_bytes(b, kv_heads, n, d, width), 4.0 * b * 32 * n * d
        seconds = max(cache * (9 if more else 1) / (0.7 * copy), 1.1 * flops / products)
        lost, hot = name in ("MHA", "expanded") and n > ends, cache <= near
        return {
            **{"name": name, "n": n, "b": b, "h": 32, "kv_heads": kv_heads, "d": d},
            **{"bytes": cache, "flops": flops, "label": "cache" if hot else None},
            "seconds": max(cache / (3 * copy), 1.1 * flops / products)
            if hot
            else (5e-5 if width == 2 else 1e-4) + seconds,
            "peak_bytes": None if lost else 2 * b * 32 * n * width + (4 * cache if more else 0),
            "error": "out of memory" if lost else None,
        }

    kinds = [("MHA", 32), ("GQA-8", 8), ("MQA", 1)] + [("expanded", 8)] * with_expanded
    groups = [[point(n, *kind) for kind in kinds] for n in sizes]
    guesses = dict(zip(PREDICTED, predicted, strict=True))
    return made_up.record(LAB, machine, guesses, groups, **how)


# --- faults -------------------------------------------------------------------------------------


def without_ceilings(record):
    record["machine"]["ceilings"] = None


def at_900_gigabytes_a_second(point):
    now = sum(point["seconds"]) / len(point["seconds"])
    return [each / now * point["bytes"] / 9e11 for each in point["seconds"]]


receipts.shared(
    task,
    a_record,
    PREDICTED,
    evidence=evidence,
    predict="lab5-predict",
)
task.fault(
    "L5-ONLY-MHA", forms=[pasted(a_record, receipts.only(lambda point: point["name"] == "MHA"))]
)
task.fault("L5-FEW-SIZES", forms=[pasted(a_record, sizes=(2048, 4096, 8192))])
task.fault("L5-QUICK-RUN", forms=[pasted(a_record, sizes=(32, 64, 128, 256), d=16)])
task.fault("L5-NO-ROOF", forms=[pasted(a_record, without_ceilings)])
task.fault(
    "L5-MHA-BYTES",
    section="lab5-step",
    forms=[pasted(a_record, points(bytes=lambda point: point["bytes"] * 32 // point["kv_heads"]))],
)
task.fault(
    "L5-CACHE-COPIED",
    section="lab5-step",
    forms=[
        pasted(
            a_record,
            points(peak_bytes=lambda point: point["peak_bytes"] + 2**25 + 3 * point["bytes"]),
        )
    ],
)
task.fault("L5-NO-PEAK", forms=[pasted(a_record, points(peak_bytes=None))])
task.fault(
    "L5-HOT-CACHE",
    section="lab5-bandwidth",
    forms=[
        pasted(
            a_record,
            points("MQA", where=lambda p: p["n"] <= 1024, seconds=at_900_gigabytes_a_second),
        )
    ],
)

"""lab5_receipt."""

import random

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab5_decode_bandwidth as reference
from attncourse.lab.receipts import encode
from attncourse.lab.roofline import decode_bytes
from attncourse.tasks.lab5_decode_bandwidth import LAB, WIDTHS
from attncourse.tasks.receipts import as_text, grave, read, record_of, timed

METHODS = ("MHA", "GQA-8", "MQA")


PREDICTED = ("share", "speed_up", "expanded")


LARGE = 2048  # a quick run ends at 256; with little memory one may have chosen smaller sizes


def common_sizes(record):
    return sorted(set.intersection(*(set(timed(record, name)) for name in METHODS)))


def predictions(record):
    """name -> prediction, of those that are numbers."""
    made = {name: record["predictions"].get(name) for name in PREDICTED}
    return {
        name: each
        for name, each in made.items()
        if isinstance(each, dict)
        and isinstance(each.get("value"), int | float)
        and not isinstance(each["value"], bool)
    }


def predicted_late(record):
    """What was predicted when something had been measured already."""
    return [name for name, each in predictions(record).items() if each.get("points") != 0]


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


AUDITED = (
    *("units", "faster_than_peak", "faster_than_memory", "overlap", "out_of_memory_as_time"),
    *("too_regular", "copied_samples", "too_few_samples", "warm_up_counted", "edited"),
    *("wrong_result", "clock_mismatch", "reserved_not_allocated", "peak_not_reset"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    if record["lab"] != LAB:
        return {"readable": True, "cut off": False, "of this lab": False}
    common, found = common_sizes(record), {each.name for each in grave(record)}
    copy, products = copy_bandwidth(record)
    return {
        "readable": True,
        "cut off": False,
        "of this lab": True,
        "predicted": len(predictions(record)) == len(PREDICTED),
        "predicted in time": not predicted_late(record),
        **{name: bool(timed(record, name)) for name in METHODS},
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "large sizes": not common or common[-1] >= LARGE,
        "copy measured": copy > 0,
        "product measured": products,
        "right bytes": not wrong_bytes(record),
        "labels": not unlabeled(record),
        "peaks": not without_peak(record),
        "no copies": not copies(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


task = Task(
    reference.lab5_receipt,
    number=5,
    returns=list,
    difficulty=1,
    minutes=5,
    section="lab5-receipt",
    hints=(
        "Run the measuring cell to its end. It prints the receipt.",
        "The receipt is a long text that begins with attn1:. Put it between three quotes, "
        "after `return`; line breaks and spaces inside do not matter.",
        'return """attn1:…""" with all that stands between the quotes of the printed RECEIPT.',
    ),
    probes=lambda rng: {"receipt": {}},
    small=lambda rng: iter(()),
    adapt=as_text,
    traits=receipt_traits,
)


@task.check(1)
def the_receipt_can_be_read(answer):
    read(answer)


@task.check(1)
def it_is_the_receipt_of_this_lab(answer):
    record_of(answer)


@task.check(2)
def predictions_were_written_before_the_first_measurement(answer):
    record = record_of(answer)
    late, made = predicted_late(record), predictions(record)
    missing = [name for name in PREDICTED if name not in made or name in late]
    if missing:
        raise Failure(
            f"Not predicted as a number before the first measurement: {', '.join(missing)}. "
            "A prediction need not be right; it has to come first. Move the .jsonl file away, "
            "write your numbers and measure again."
        )


@task.check(2)
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
            "The record does not say how fast this machine copies and multiplies, so nobody "
            "can say which share of that a step reaches. The measuring cell does it first."
        )


@task.check(2)
def the_bytes_are_those_of_the_cache(answer):
    record = record_of(answer)
    if not common_sizes(record):
        raise Failure("There is no size at which MHA, GQA-8 and MQA all have times.")
    for name, n, said, right in wrong_bytes(record):
        raise Failure(
            f"{name} at n = {n}: the receipt says {said:,} bytes. Keys and values of its cache "
            f"are {right:,}."
        )


@task.check(2)
def no_step_allocates_well_above_its_cache(answer):
    record = record_of(answer)
    if not common_sizes(record):
        raise Failure("There is no size at which MHA, GQA-8 and MQA all have times.")
    for name in without_peak(record):
        raise Failure(
            f"The record does not say how much memory a step with {name} takes at its largest "
            "n, so nobody can see that nothing was copied. The measuring cell does."
        )
    for name, n, peak, cache in copies(record):
        raise Failure(
            f"{name} at n = {n}: the step's peak is {peak:,} bytes, its cache {cache:,}. So "
            "the cache was copied on the way. Measure again with your mended `decode_step`."
        )


@task.check(1)
def what_is_faster_than_memory_says_where_its_bytes_were(answer):
    for name, n, times in unlabeled(record_of(answer)):
        raise Failure(
            f"{name} at n = {n} reads {times:.1f} times as fast as this machine copies. Its "
            'bytes came from a cache of the processor: such a point needs the label "cache".'
        )


@task.check(4)
def nothing_in_it_is_impossible_or_contradicts_itself(answer):
    found = grave(record_of(answer))
    if found:
        more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
        raise Failure(f"{found[0]}{more}")


# --- faults ---------------------------------------------------------------------------------------


def a_record(sizes=(512, 1024, 2048, 4096, 8192), samples=20, d=128):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(7), 2.0, []
    for n in sizes:
        together = []
        for name, kv_heads in (("MHA", 32), ("GQA-8", 8), ("MQA", 1), ("expanded", 8)):
            cache = 8 * 2 * kv_heads * n * d * 2
            scores = 8 * 32 * n * 2
            together.append(
                {
                    "name": name,
                    "n": n,
                    "b": 8,
                    "h": 32,
                    "kv_heads": kv_heads,
                    "d": d,
                    "dtype": "float16",
                    "seconds": [],
                    "started": [],
                    "clock": "events",
                    "bytes": cache,
                    "flops": 4.0 * 8 * 32 * n * d,
                    "peak_bytes": 2 * scores + (4 * cache if name == "expanded" else 0),
                    "backend": None,
                    "label": None,
                    "error": None,
                    "wall_over_cpu": 1.0,
                    "reference_error": 5e-4,
                    "true": 5e-5 + cache * (9 if name == "expanded" else 1) / 1.9e11,
                }
            )
        for _ in range(samples):
            for point in together:
                point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                point["started"].append(now)
                now += point["true"] + 2e-3
        for point in together:
            del point["true"]
        made += together
    guess = {"share": 0.8, "speed_up": 20, "expanded": 3}
    roofs = {"flops_per_second": {"float16": 2.4e13}, "bytes_per_second": 2.4e11}
    return {
        "lab": "lab5_decode_bandwidth",
        "machine": {
            "device": "cuda",
            "name": "Tesla T4",
            "capability": [7, 5],
            "memory_bytes": 15_828_320_256,
            "l2_bytes": 4_194_304,
            "threads": 1,
            "torch": "2.11.0+cu128",
            "python": "3.13.15",
            "cuda": "12.8",
            "label": "T4",
            "ceilings": roofs,
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@task.fault(
    "L5-CUT-OFF",
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
)
def cut_off():
    receipt = encode(a_record())
    return receipt[: len(receipt) * 2 // 3]


@task.fault(
    "L5-OTHER-LAB",
    thinks="A receipt is a receipt.",
    why="This one is of another lab. Each lab prints its own, at the end of its measuring cell.",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab2_quadratic_wall"})


def one_prediction_forgotten():
    record = a_record()
    del record["predictions"]["share"]
    return encode(record)


@task.fault(
    "L5-NO-PREDICTION",
    thinks="Measuring is what counts; a prediction may be left out.",
    why="Without it nobody can say what surprised you, you included. There are three, each is a "
    "number, and none has to be right.",
    section="lab5-predict",
    forms=(one_prediction_forgotten,),
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@task.fault(
    "L5-AFTERWARD",
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab5-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 20
    return encode(record)


@task.fault(
    "L5-ONLY-MHA",
    thinks="Decoding is decoding: I have measured it with MHA.",
    why="The question is what fewer cached heads bring, so GQA-8 and MQA belong to it, in the same "
    "run.",
)
def mha_only():
    record = a_record()
    record["points"] = [point for point in record["points"] if point["name"] == "MHA"]
    return encode(record)


@task.fault(
    "L5-FEW-SIZES",
    thinks="Two or three sizes show the trend.",
    why="A short cache costs little more than the call, or waits in a cache of the processor. With "
    "four sizes or more, over a range of 8, one sees where that ends.",
)
def three_sizes():
    return encode(a_record(sizes=(2048, 4096, 8192)))


@task.fault(
    "L5-QUICK-RUN",
    thinks="A quick run writes a receipt, too.",
    why="It tries the notebook out: caches so small never leave the processor, so they say nothing "
    "about memory. Measure without it.",
)
def of_a_quick_run():
    return encode(a_record(sizes=(32, 64, 128, 256), d=16))


@task.fault(
    "L5-NO-ROOF",
    thinks="The data sheet says how fast the memory is, so I have left the copy out.",
    why="A sheet says what nobody reaches. The share that counts is that of the bandwidth which "
    "this machine reached in this session.",
)
def without_ceilings():
    record = a_record()
    record["machine"]["ceilings"] = None
    return encode(record)


@task.fault(
    "L5-MHA-BYTES",
    thinks="Each of the 32 heads reads all keys, so GQA and MQA move the bytes of MHA, too.",
    why="A group reads its keys together. The bytes of a point are those of its cache; with fewer "
    "cached heads there are fewer.",
    section="lab5-step",
)
def bytes_of_all_heads():
    record = a_record()
    for point in record["points"]:
        point["bytes"] = point["bytes"] * 32 // point["kv_heads"]
    return encode(record)


@task.fault(
    "L5-CACHE-COPIED",
    thinks="How decode_step is written does not matter for the measurement.",
    why="The peak says that the cache was copied at each step. Then time and bytes do not belong "
    "together. Mend `decode_step` and measure again.",
    section="lab5-step",
)
def with_copies():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] += 2**25 + 3 * point["bytes"]
    return encode(record)


@task.fault(
    "L5-NO-PEAK",
    thinks="Time and bytes are enough; the peak of memory may be left out.",
    why="The peak is what shows that a step copies nothing. Without it the bytes of a point are "
    "only what somebody says.",
)
def without_peaks():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = None
    return encode(record)


@task.fault(
    "L5-HOT-CACHE",
    thinks="900 GB a second on a T4: decoding is faster than I thought.",
    why="Its memory gives 320. What is faster was not read from memory: it waited in the L2 cache, "
    "or the clock stopped early. Such a point has to say so.",
    section="lab5-bandwidth",
)
def faster_than_memory():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "MQA" and point["n"] <= 1024:
            now = sum(point["seconds"]) / len(point["seconds"])
            true = point["bytes"] / 9e11
            point["seconds"] = [each / now * true for each in point["seconds"]]
    return encode(record)


@task.fault(
    "L5-MILLISECONDS",
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
)
def in_milliseconds():
    record = a_record()
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


@task.fault(
    "L5-THREE-SAMPLES",
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
)
def three_samples():
    return encode(a_record(samples=3))

"""lab2_receipt."""

import random

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.lab.receipts import encode
from attncourse.tasks.lab2_quadratic_wall import LAB
from attncourse.tasks.receipts import as_text, grave, read, record_of, timed


def predictions_missing(record):
    """What was not predicted as a number before the first measurement."""
    return [
        name
        for name in ("time_exponent", "ratio", "wall")
        if not isinstance((made := _prediction(record, name)).get("value"), int | float)
        or isinstance(made.get("value"), bool)
        or made.get("points") != 0
    ]


def _prediction(record, name):
    made = record["predictions"].get(name)
    return made if isinstance(made, dict) else {}


def common_sizes(record):
    return sorted(timed(record, "naive").keys() & timed(record, "fused").keys())


WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def wrong_peaks(record):
    """Of naive attention from n = 1024 on: n, bytes measured, bytes expected."""
    found = []
    for n, p in timed(record, "naive").items():
        b, h, d = (p.get(key) or 1 for key in "bhd")
        counted = b * h * (2 * n * n + n * d) * WIDTHS.get(p.get("dtype"), 4)
        peak = p.get("peak_bytes") or 0
        # Other ways to write it keep one table more or less; a GPU rounds and adds a workspace.
        if n >= 1024 and not 0.45 * counted <= peak <= 1.6 * counted + 2**25:
            found.append((n, peak, counted))
    return found


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    common, found = common_sizes(record), {each.name for each in grave(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": record["lab"] == LAB,
        "predicted": "wall" in record["predictions"],
        "predicted in time": not predictions_missing(record),
        "naive": bool(timed(record, "naive")),
        "fused": bool(timed(record, "fused")),
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "right peaks": not wrong_peaks(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("peak_not_reset", "reserved_not_allocated", "too_regular", "not_interleaved"),
    *("mixed_dtypes", "copied_samples", "too_few_samples", "warm_up_counted", "edited"),
    *("wrong_result", "math_called_flash"),
)


task = Task(
    reference.lab2_receipt,
    number=5,
    returns=list,
    difficulty=1,
    minutes=5,
    section="lab2-receipt",
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
    missing = predictions_missing(record_of(answer))
    if missing:
        raise Failure(
            f"Not predicted as a number before the first measurement: {', '.join(missing)}. "
            "A prediction need not be right; it has to come first. Move the .jsonl file away, "
            "write your numbers and measure again."
        )


@task.check(2)
def naive_and_fused_attention_were_timed_at_four_sizes_or_more(answer):
    record = record_of(answer)
    common = common_sizes(record)
    if len(common) < 4 or common[-1] < 8 * common[0]:
        raise Failure(
            f'Sizes at which both "naive" and "fused" have times: {common or "none"}. An '
            "exponent needs four or more, the largest at least 8 times the smallest."
        )


@task.check(2)
def the_peaks_of_naive_attention_are_two_tables_of_n_by_n(answer):
    record = record_of(answer)
    if not any(n >= 1024 for n in timed(record, "naive")):
        raise Failure('No point "naive" with n of 1,024 or more has a time and a peak.')
    for n, peak, counted in wrong_peaks(record):
        raise Failure(
            f"Naive attention at n = {n}: the receipt says a peak of {peak:,} bytes. Scores, "
            f"weights and output are {counted:,}. Measure the peak of the call alone, in bytes."
        )


@task.check(4)
def nothing_in_it_is_impossible_or_contradicts_itself(answer):
    found = grave(record_of(answer))
    if found:
        more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
        raise Failure(f"{found[0]}{more}")


# --- faults ---------------------------------------------------------------------------------------


def a_record(sizes=(256, 512, 1024, 2048, 4096, 8192, 16384), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(7), 2.0, []
    for n in sizes:
        both = []
        for name, true in (
            ("naive", max(2e-5, 2.2e-10 * 3.0 * n * n)),
            ("fused", max(1.5e-5, 3.6e-10 * n * n)),
        ):
            failed = name == "naive" and n > 8192
            both.append(
                {
                    "name": name,
                    "n": n,
                    "b": 1,
                    "h": 16,
                    "d": 64,
                    "dtype": "float16",
                    "seconds": [],
                    "started": [],
                    "clock": "events",
                    "peak_bytes": None
                    if failed
                    else 32 * (2 * n * n + n * 64 if name == "naive" else n * 66),
                    "flops": 4096.0 * n * n,
                    "backend": "EFFICIENT" if name == "fused" else None,
                    "error": "out of memory" if failed else None,
                    "wall_over_cpu": 1.0,
                    "reference_error": 5e-4,
                    "true": true,
                }
            )
        for _ in range(samples):
            for point in both:
                if not point["error"]:
                    point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                    point["started"].append(now)
                    now += point["true"] + 2e-3
        for point in both:
            del point["true"]
        made += both
    guess = {"time_exponent": 2, "ratio": 3, "wall": 12000}
    return {
        "lab": "lab2_quadratic_wall",
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
            "ceilings": None,
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@task.fault(
    "L2-CUT-OFF",
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
)
def cut_off():
    return encode(a_record())[:-300]


@task.fault(
    "L2-OTHER-LAB",
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name, and so "
    "has what is printed above the receipt.",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab1_time_it_right"})


@task.fault(
    "L2-NO-PREDICTION",
    thinks="The measurement is what counts; a guess adds nothing.",
    why="Who has not guessed is not surprised, and surprise is what one learns from. A prediction "
    "need not be right; it has to be there before the first measurement.",
    section="lab2-predict",
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@task.fault(
    "L2-AFTERWARD",
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab2-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 14
    return encode(record)


@task.fault(
    "L2-ONLY-NAIVE",
    thinks="The lab is about naive attention, so I have measured that.",
    why="Without the fused call in the same run nobody can say what the table costs: a slow "
    "machine and a slow method look alike.",
)
def naive_only():
    record = a_record()
    record["points"] = [point for point in record["points"] if point["name"] == "naive"]
    return encode(record)


@task.fault(
    "L2-FEW-SIZES",
    thinks="Two or three sizes show the trend.",
    why="Through two points goes any line. With four or more, over a range of 8, one sees where "
    "the fixed cost ends, and whether it is a line at all.",
    section="lab2-fit",
)
def three_sizes():
    return encode(a_record(sizes=(1024, 2048, 4096)))


@task.fault(
    "L2-MILLISECONDS",
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
    "L2-OOM-AS-TIME",
    thinks="It failed after some seconds, so I record these seconds.",
    why="A run that ends in an error has done no attention, so it has no time. Out of memory is a "
    "result of its own: record the error, and no samples.",
    section="lab2-wall",
)
def failure_with_a_time():
    record = a_record()
    for point in record["points"]:
        if point["error"]:
            point["seconds"] = [0.31 + 0.007 * i % 0.02 for i in range(20)]
    return encode(record)


@task.fault(
    "L2-PEAK-NOT-RESET",
    thinks="max_memory_allocated tells the peak of the last call.",
    why="It tells the largest since the last reset, here that of the naive call before. So the "
    "fused call seems to need n × n, too. Reset it before each call.",
    section="lab2-peak",
)
def peak_of_the_call_before():
    record = a_record(sizes=(256, 512, 1024, 2048, 4096, 8192))
    for naive, fused in zip(record["points"][::2], record["points"][1::2], strict=True):
        fused["peak_bytes"] = naive["peak_bytes"]
    return encode(record)


@task.fault(
    "L2-RESERVED",
    thinks="nvidia-smi or memory_reserved shows how much attention needs.",
    why="They show what the allocator keeps, freed or not, so the number is the same for every n. "
    "Ask for the peak of what was allocated.",
    section="lab2-peak",
)
def what_the_allocator_keeps():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = None if point["error"] else 9_663_676_416
    return encode(record)


@task.fault(
    "L2-PEAK-IN-MIB",
    thinks="Peaks are best kept in mebibytes.",
    why="The field holds bytes, and everything computed from it believes that. Keep bytes; divide "
    "when you print.",
    section="lab2-peak",
)
def peaks_in_mebibytes():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = point["peak_bytes"] and point["peak_bytes"] / 2**20
    return encode(record)


@task.fault(
    "L2-ONE-AFTER-THE-OTHER",
    thinks="First all runs of one, then all runs of the other.",
    why="A GPU's clock falls as it heats up, so what comes second looks slower. In turn, A B A B, "
    "both suffer alike; `lab.compare` does that.",
)
def one_after_the_other():
    record = a_record()
    now = 2.0
    for name in ("naive", "fused"):
        for point in record["points"]:
            if point["name"] == name and point["seconds"]:
                point["started"] = [now + i * 0.5 for i in range(len(point["seconds"]))]
                now += 20.0
    return encode(record)


@task.fault(
    "L2-HALF-AGAINST-FULL",
    thinks="Naive in float32, as I wrote it; fused in float16, as it is meant to be used.",
    why="Half the bytes is no better method. Part of the ratio is then the format. Compare both in "
    "the same.",
)
def two_formats():
    record = a_record(sizes=(256, 512, 1024, 2048, 4096))
    for point in record["points"][::2]:
        point["dtype"], point["peak_bytes"] = "float32", 2 * point["peak_bytes"]
    return encode(record)


@task.fault(
    "L2-THREE-SAMPLES",
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
)
def three_samples():
    return encode(a_record(samples=3))

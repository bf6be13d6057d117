"""lab4_receipt."""

import random

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.lab.receipts import encode
from attncourse.tasks.lab4_sequential_or_parallel import LAB
from attncourse.tasks.receipts import as_text, grave, read, record_of, timed

NAMES = ("loop", "fused", "attention")


PREDICTED = ("crossover", "batch_loop", "batch_attention")


def predictions_missing(record):
    """What was not predicted as a number before the first measurement."""
    return [
        name
        for name in PREDICTED
        if not isinstance((made := _prediction(record, name)).get("value"), int | float)
        or isinstance(made.get("value"), bool)
        or made.get("points") != 0
    ]


def _prediction(record, name):
    made = record["predictions"].get(name)
    return made if isinstance(made, dict) else {}


def common_sizes(record, b):
    """Sizes at which all three have a time."""
    return sorted(set.intersection(*(set(timed(record, name, b=b)) for name in NAMES)))


def enough(sizes):
    return len(sizes) >= 4 and sizes[-1] >= 8 * sizes[0]


LONG = 1024  # a quick run, which is for trying the cells out, stops far below


def long_enough(sizes):
    return not sizes or sizes[-1] >= LONG


def unlike(record):
    """The first point whose result was not compared with float64, or differs from it."""
    for b in (1, 8):
        for name in NAMES:
            for n, p in sorted(timed(record, name, b=b).items()):
                error = p.get("reference_error")
                if not isinstance(error, int | float) or not error < 1e-2:
                    return f"{name} at b = {b}, n = {n}", error
    return None


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("too_regular", "not_interleaved", "mixed_dtypes", "copied_samples", "too_few_samples"),
    *("warm_up_counted", "edited", "wrong_result", "grad_on", "clock_mismatch"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    found = {each.name for each in grave(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": record["lab"] == LAB,
        "predicted": "crossover" in record["predictions"],
        "predicted in time": not predictions_missing(record),
        **{f"{name}, b = {b}": bool(timed(record, name, b=b)) for name in NAMES for b in (1, 8)},
        "enough sizes": all(enough(common_sizes(record, b)) for b in (1, 8)),
        "long enough": all(long_enough(common_sizes(record, b)) for b in (1, 8)),
        "compared": not unlike(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


task = Task(
    reference.lab4_receipt,
    number=5,
    returns=list,
    difficulty=1,
    minutes=5,
    section="lab4-receipt",
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
def all_three_were_timed_for_one_sentence_and_for_eight(answer):
    record = record_of(answer)
    for b in (1, 8):
        common = common_sizes(record, b)
        if not enough(common):
            raise Failure(
                f"With b = {b}, sizes at which loop, fused and attention all have times: "
                f"{', '.join(map(str, common)) or 'none'}. Four or more are needed, the "
                "largest at least 8 times the smallest."
            )
        if not long_enough(common):
            raise Failure(
                f"With b = {b}, the largest n at which all three have times is {common[-1]}; "
                f"{LONG:,} or more is needed. A quick run is no result: start again without "
                "ATTNCOURSE_QUICK, and measure."
            )


@task.check(2)
def the_results_were_compared_with_the_truth(answer):
    found = unlike(record_of(answer))
    if found:
        where, error = found
        raise Failure(
            f"{where}: "
            + (
                "nobody has compared the result with one in float64."
                if error is None
                else f"the result is off by {error}, so this is another computation."
            )
        )


@task.check(4)
def nothing_in_it_is_impossible_or_contradicts_itself(answer):
    found = grave(record_of(answer))
    if found:
        more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
        raise Failure(f"{found[0]}{more}")


# --- faults ---------------------------------------------------------------------------------------


def a_record(sizes=(128, 256, 512, 1024, 2048), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(4), 2.0, []
    for n in sizes:
        for b in (1, 8):
            gru = 6 * b * n * 128**2
            together = []
            for name, true, flops in (
                ("loop", 9e-5 * n, 2 * gru),
                ("fused", 1.1e-5 * n * (1 + 0.02 * b), 2 * gru),
                (
                    "attention",
                    6e-5 + b * n * (3e-8 + n * 1.4e-10),
                    2 * b * (4 * n * 128**2 + 2 * n * n * 128),
                ),
            ):
                together.append(
                    {
                        "name": name,
                        "n": n,
                        "b": b,
                        "d": 128,
                        "dtype": "float32",
                        "seconds": [],
                        "started": [],
                        "clock": "events",
                        "peak_bytes": None,
                        "flops": flops,
                        "backend": "EFFICIENT" if name == "attention" else None,
                        "error": None,
                        "wall_over_cpu": 1.0,
                        "reference_error": 2e-6,
                        "true": true,
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
    guess = {"crossover": 500, "batch_loop": 2, "batch_attention": 8}
    return {
        "lab": "lab4_sequential_or_parallel",
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


def only(record, keep):
    return encode(record | {"points": [point for point in record["points"] if keep(point)]})


@task.fault(
    "L4-CUT-OFF",
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
)
def cut_off():
    return encode(a_record(sizes=(128, 256, 512, 1024)))[:-300]


@task.fault(
    "L4-OTHER-LAB",
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name, and so "
    "has what is printed above the receipt.",
)
def of_another_lab():
    return encode(a_record(sizes=(128, 256, 512, 1024)) | {"lab": "lab2_quadratic_wall"})


@task.fault(
    "L4-NO-PREDICTION",
    thinks="The measurement is what counts; a guess adds nothing.",
    why="Who has not guessed is not surprised, and surprise is what one learns from. A prediction "
    "need not be right; it has to be there before the first measurement.",
    section="lab4-predict",
)
def without_predictions():
    return encode(a_record(sizes=(128, 256, 512, 1024)) | {"predictions": {}})


@task.fault(
    "L4-AFTERWARD",
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab4-predict",
)
def predicted_afterward():
    record = a_record(sizes=(128, 256, 512, 1024))
    for made in record["predictions"].values():
        made["points"] = 30
    return encode(record)


@task.fault(
    "L4-ONE-SENTENCE-ONLY",
    thinks="One sentence is the case that matters, so b = 1 was enough.",
    why="With one sentence a machine is half idle, and whoever can use idle workers looks good. "
    "Eight sentences show what happens when there is work for all.",
    section="lab4-batch",
)
def one_sentence():
    return only(a_record(), lambda point: point["b"] == 1)


@task.fault(
    "L4-NO-LOOP",
    thinks="The loop is slow anyway, so I have left it out.",
    why="Without it nobody can say what the fused call gains, nor how much of the difference is "
    "Python and how much is the model.",
)
def no_loop():
    return only(a_record(), lambda point: point["name"] != "loop")


@task.fault(
    "L4-NO-FUSED",
    thinks="A loop in Python against attention: that is the comparison.",
    why="It compares Python with a library as much as two models. The fused GRU computes the very "
    "same states in one call; that is the fair rival.",
)
def no_fused():
    return only(a_record(), lambda point: point["name"] != "fused")


@task.fault(
    "L4-FEW-SIZES",
    thinks="Two or three sizes show who wins.",
    why="Who wins depends on n: that is the question of this lab. Four sizes or more, over a range "
    "of 8, show where it turns.",
)
def three_sizes():
    return encode(a_record(sizes=(512, 1024, 2048)))


@task.fault(
    "L4-QUICK-RUN",
    thinks="The quick run has printed a receipt, too.",
    why="It only tries out whether the cells work. With 128 positions and fewer it shows nothing "
    "of where the lines cross. Start without ATTNCOURSE_QUICK and measure.",
)
def of_a_quick_run():
    return encode(a_record(sizes=(16, 32, 64, 128)))


@task.fault(
    "L4-NOT-COMPARED",
    thinks="Speed is what is measured here; the results will be right.",
    why="A fast wrong answer has no speed. Compare each result with one in float64 before you time "
    "it, and record the difference.",
)
def not_compared():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        point["reference_error"] = None
    return encode(record)


@task.fault(
    "L4-OTHER-WEIGHTS",
    thinks="The loop has a cell of its own; the time does not depend on its weights.",
    why="The time may not, but then nobody can tell whether the loop does the same steps. Give "
    "both the same weights: their states must agree.",
)
def other_weights():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        if point["name"] == "loop":
            point["reference_error"] = 0.8
    return encode(record)


@task.fault(
    "L4-MILLISECONDS",
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
)
def in_milliseconds():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


@task.fault(
    "L4-NO-SYNCHRONIZE",
    thinks="I have stopped the clock when the call came back.",
    why="On a GPU a call comes back when the work is queued. Attention over 2,048 positions would "
    "beat the peak of the machine. Let the GPU's own events hold the clock.",
)
def launch_times():
    record, chance = a_record(sizes=(128, 256, 512, 1024, 2048)), random.Random(8)
    for point in record["points"]:
        if point["name"] == "attention":
            point["seconds"] = [4e-5 * chance.lognormvariate(0, 0.05) for _ in range(20)]
            point["started"] = [round(each, 3) for each in point["started"]]
        else:  # thinner, so that it fits
            point["started"] = [round(each, 2) for each in point["started"]]
    return encode(record)


@task.fault(
    "L4-ONE-AFTER-THE-OTHER",
    thinks="First all runs of one, then all runs of the next.",
    why="A GPU's clock falls as it heats up, so what comes later looks slower. In turn, A B C A B "
    "C, all suffer alike; `lab.compare` does that.",
)
def one_after_the_other():
    record = a_record(sizes=(128, 256, 512, 1024))
    now = 2.0
    for name in ("loop", "fused", "attention"):
        for point in record["points"]:
            if point["name"] == name:
                point["started"] = [now + i * 0.5 for i in range(len(point["seconds"]))]
                now += 20.0
    return encode(record)


@task.fault(
    "L4-HALF-AGAINST-FULL",
    thinks="The GRU in float32, attention in float16, as everybody uses it.",
    why="Half the bits is no better model. Part of the difference is then the format. Compare all "
    "in the same.",
)
def two_formats():
    record = a_record(sizes=(128, 256, 512, 1024))
    for point in record["points"]:
        if point["name"] == "attention":
            point["dtype"] = "float16"
    return encode(record)


@task.fault(
    "L4-THREE-SAMPLES",
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
)
def three_samples():
    return encode(a_record(samples=3))

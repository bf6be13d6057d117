"""lab3_receipt."""

import random

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import backends
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.lab.receipts import encode
from attncourse.tasks.lab3_who_computed_it import CALLS, LAB, PREDICTED, WIDTHS
from attncourse.tasks.receipts import as_text, grave, read, record_of, timed

AS_MADE = {  # as `sdpa_call` makes them
    "mask": {"mask": "bool"},
    "dropout": {"dropout": 0.1},
    "three axes": {"layout": "h n d"},
    "strided key": {"layout": "b h d n"},
    "grouped heads": {"h": 8, "kv_heads": 2},
    "bfloat16": {"dtype": "bfloat16"},
}


LARGE = 512  # a slow machine may stop here; a quick run, which is for trying out, ends at 256


def called(record):
    """call -> point, of the single calls."""
    return {p["call"]: p for p in record["points"] if p["name"] == "call" and p.get("call")}


def predictions_missing(record):
    """What was not predicted before the first measurement."""
    made = record["predictions"]
    return [
        name
        for name in PREDICTED
        if not isinstance(made.get(name), dict)
        or made[name].get("value") in (None, "")
        or made[name].get("points") != 0
    ]


def ceilings_missing(record):
    ceilings = record["machine"].get("ceilings") or {}
    dtypes = {p.get("dtype") for p in timed(record, "naive").values()}
    return not ceilings.get("bytes_per_second") or not dtypes <= set(
        ceilings.get("flops_per_second") or {}
    )


def miscounted(record):
    """name, n, key, said, expected: of the work of naive and fused attention."""
    found = []
    for name in ("naive", "fused"):
        for n, p in timed(record, name).items():
            b, h, d = (p.get(key) or 1 for key in "bhd")
            width = WIDTHS.get(p.get("dtype"), 4)
            work = reference.attention_work(b, h, n, d, width, causal=False, backward=False)
            for key, expected in (("flops", work["flops"]), ("bytes", work[f"{name}_bytes"])):
                said = p.get(key) or 0
                if not abs(said - expected) <= 0.02 * expected:
                    found.append((name, n, key, said, expected))
    return found


def impossible_calls(record):
    """call, backend said, those that the rules allow."""
    machine = record["machine"]
    capability = tuple(machine["capability"]) if machine.get("capability") else "cpu"
    version = str(machine["torch"]).split("+")[0]
    found = []
    for call, point in called(record).items():
        if call not in AS_MADE or point.get("backend") is None:
            continue
        dtype = point.get("dtype") or ("float32" if capability == "cpu" else "float16")
        made = backends.sdpa_call(**{"dtype": dtype, "d": point.get("d") or 64} | AS_MADE[call])
        verdicts = backends.may_run(capability, **made, torch_version=version)
        allowed = [verdict.backend for verdict in verdicts if verdict.runs]
        if point["backend"] not in allowed:
            found.append((call, point["backend"], allowed))
    return found


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("backend_impossible", "math_called_flash", "not_interleaved", "mixed_dtypes"),
    *("copied_samples", "too_few_samples", "warm_up_counted", "too_regular", "edited"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    if record["lab"] != LAB:  # whatever else differs follows from that
        return {"readable": True, "cut off": False, "of this lab": False}
    found, calls = {each.name for each in grave(record)}, called(record)
    wrong = {(name, key) for name, _, key, _, _ in miscounted(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": True,
        "predicted": bool(record["predictions"]),
        "predicted in time": not predictions_missing(record),
        "ceilings": not ceilings_missing(record),
        "naive": len(timed(record, "naive")) >= 3,
        "fused": len(timed(record, "fused")) >= 3,
        "large": max(timed(record, "naive"), default=0) >= LARGE,
        **{f"{name} {key}": (name, key) in wrong for name in ("naive", "fused")
           for key in ("flops", "bytes")},
        "all calls": set(CALLS) | {"plain"} <= calls.keys(),
        "their backends": all(p.get("backend") for p in calls.values()),
        "possible calls": not impossible_calls(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }  # fmt: skip


task = Task(
    reference.lab3_receipt,
    number=6,
    returns=list,
    difficulty=1,
    minutes=5,
    section="lab3-receipt",
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
            f"Not predicted before the first measurement: {', '.join(missing)}. A prediction "
            "need not be right; it has to come first. Move the .jsonl file away, write your "
            "predictions and measure again."
        )


@task.check(1)
def the_ceilings_of_the_machine_were_measured(answer):
    if ceilings_missing(record_of(answer)):
        raise Failure(
            "No ceilings for the format of these points. A roofline needs the speed of a large "
            "product in that dtype and the bytes/s of a large copy, measured in this run."
        )


@task.check(2)
def naive_and_fused_attention_were_timed_and_their_work_counted(answer):
    record = record_of(answer)
    for name in ("naive", "fused"):
        if len(timed(record, name)) < 3:
            raise Failure(f'"{name}" has times at fewer than three sizes.')
        if max(timed(record, name)) < LARGE:
            raise Failure(
                f'The largest n at which "{name}" has a time is {max(timed(record, name))}; '
                f"{LARGE} or more is needed. A quick run is no result: start again without "
                "ATTNCOURSE_QUICK, and measure."
            )
    for name, n, key, said, expected in miscounted(record):
        raise Failure(
            f"{name} at n = {n}: the receipt says {said:,.0f} {key}; by the formulas of "
            f"attention_work it is {expected:,.0f}."
        )


@task.check(2)
def every_call_of_the_table_has_a_backend_that_could_have_run(answer):
    record = record_of(answer)
    calls = called(record)
    missing = [c for c in ("plain", *CALLS) if not (calls.get(c) or {}).get("backend")]
    if missing:
        raise Failure(f"No backend is recorded for: {', '.join(missing)}.")
    for call, said, allowed in impossible_calls(record):
        raise Failure(
            f'The call "{call}": the receipt says {said}; on this machine only '
            f"{' or '.join(allowed)} takes it. Record what the trace shows."
        )


@task.check(4)
def nothing_in_it_is_impossible_or_contradicts_itself(answer):
    found = grave(record_of(answer))
    if found:
        more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
        raise Failure(f"{found[0]}{more}")


# --- faults ---------------------------------------------------------------------------------------


WrongCALLS = {
    "plain": ("EFFICIENT", 1.0),
    "mask": ("EFFICIENT", 1.3),
    "dropout": ("EFFICIENT", 1.4),
    "three axes": ("MATH", 4.0),
    "strided key": ("MATH", 4.2),
    "grouped heads": ("MATH", 4.4),
    "bfloat16": ("MATH", 9.0),
}


def a_record(sizes=(512, 1024, 2048, 4096), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(11), 2.0, []

    def measure(points):
        nonlocal now
        for _ in range(samples):
            for point in points:
                point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                point["started"].append(now)
                now += point["true"] + 2e-3
        for point in points:
            del point["true"]
        made.extend(points)

    def a_point(name, n, true, **more):
        return {
            **{"name": name, "n": n, "b": 1, "h": 16, "d": 64, "dtype": "float16"},
            **{"seconds": [], "started": [], "clock": "events", "error": None},
            **{"wall_over_cpu": 1.0, "reference_error": 5e-4, "true": true, **more},
        }

    for n in sizes:
        flops = 4096.0 * n * n
        naive = {"bytes": 32 * (6 * n * n + 256 * n), "backend": "NAIVE"}
        fused = {"bytes": 32 * 256 * n, "backend": "EFFICIENT"}
        measure(
            [
                a_point("naive", n, max(2e-5, flops / 4e12), flops=flops, **naive),
                a_point("fused", n, max(1.5e-5, flops / 12e12), flops=flops, **fused),
            ]
        )
    measure(
        [
            a_point("call", 1024, 6e-4 * times, call=call, backend=backend)
            | ({"dtype": "bfloat16"} if call == "bfloat16" else {})
            for call, (backend, times) in WrongCALLS.items()
        ]
    )
    guess = dict.fromkeys(list(WrongCALLS)[1:], "EFFICIENT") | {"naive bound": "memory", "cost": 2}
    return {
        "lab": "lab3_who_computed_it",
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
            "ceilings": {
                "flops_per_second": {"float16": 24e12, "float32": 7.5e12},
                "bytes_per_second": 0.26e12,
            },
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@task.fault(
    "L3-CUT-OFF",
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
)
def cut_off():
    return encode(a_record())[:-300]


@task.fault(
    "L3-QUICK",
    thinks="It ran through and printed a receipt, so I have measured.",
    why="With ATTNCOURSE_QUICK set, sizes are tiny: that is for trying the cells out. The times "
    "are then those of launching a call, not of attention.",
)
def a_quick_run():
    return encode(a_record(sizes=(64, 128, 256)))


@task.fault(
    "L3-OTHER-LAB",
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name.",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab2_quadratic_wall"})


@task.fault(
    "L3-NO-PREDICTION",
    thinks="The trace will tell; there is nothing to guess.",
    why="Silent fallbacks are dangerous because one expects something else. Write down what you "
    "expect, and you will know which of them would have caught you.",
    section="lab3-predict",
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@task.fault(
    "L3-AFTERWARD",
    thinks="I have filled in the predictions from the table that was printed.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab3-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 15
    return encode(record)


@task.fault(
    "L3-DATA-SHEET",
    thinks="The ceilings stand in the data sheet, so I have not measured them.",
    why="A T4 reaches about a third of the 65 TFLOP/s of its sheet before its power limit slows "
    "it. Only a ceiling measured in the same run is one for your points.",
    section="lab3-roofline",
)
def without_ceilings():
    record = a_record()
    record["machine"]["ceilings"] = None
    return encode(record)


@task.fault(
    "L3-OTHER-FORMAT",
    thinks="One ceiling is enough, that of float32.",
    why="The tensor cores of a GPU work in 16 bits, many times as fast. A roof belongs to a "
    "format: measure that of your points.",
    section="lab3-roofline",
)
def ceiling_of_another_format():
    record = a_record()
    record["machine"]["ceilings"]["flops_per_second"] = {"float32": 7.5e12}
    return encode(record)


@task.fault(
    "L3-FLOPS-HALVED",
    thinks="Multiplications are what counts.",
    why="All points have half the operations that the two products take, so every speed is half of "
    "what it was, while the ceiling was counted in full.",
    section="lab3-work",
)
def half_the_operations():
    record = a_record()
    for point in record["points"]:
        if point.get("flops"):
            point["flops"] /= 2
    return encode(record)


@task.fault(
    "L3-SAME-BYTES",
    thinks="Naive and fused attention compute the same, so they move the same bytes.",
    why="Naive attention writes and reads its table six times. With the bytes of the fused one it "
    "gets a place in the roofline that it does not have.",
    section="lab3-work",
)
def bytes_of_the_fused():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "naive":
            point["bytes"] = 32 * 256 * point["n"]
    return encode(record)


@task.fault(
    "L3-CALLED-FLASH",
    thinks="F.scaled_dot_product_attention is FlashAttention, so I write FLASH everywhere.",
    why="It is a door with several rooms behind it, and on a T4 there is no FLASH among them. "
    "Record what the trace shows.",
    section="lab3-rules",
)
def flash_everywhere():
    record = a_record()
    for point in record["points"]:
        if point["name"] != "naive":
            point["backend"] = "FLASH"
    return encode(record)


@task.fault(
    "L3-NOT-LOOKED",
    thinks="The times tell enough.",
    why="A slow call may be slow for many reasons. Which kernel ran is known only if one looks; "
    "that is the question of this lab.",
    section="lab3-trace",
)
def backends_not_recorded():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "call":
            point["backend"] = None
    return encode(record)


@task.fault(
    "L3-FEW-CALLS",
    thinks="Two or three calls show the point.",
    why="Each call of the table falls back for a reason of its own, and on some machine it does "
    "not. Try them all.",
    section="lab3-rules",
)
def two_calls():
    record = a_record()
    kept = ("plain", "mask", "dropout")
    record["points"] = [p for p in record["points"] if p.get("call", "plain") in kept]
    return encode(record)


@task.fault(
    "L3-MILLISECONDS",
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
)
def in_milliseconds():
    record = a_record()
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)

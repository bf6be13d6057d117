from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import backends
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.tasks import made_up, receipts
from attncourse.tasks.lab3_who_computed_it import CALLS, LAB, PREDICTED, WIDTHS
from attncourse.tasks.receipts import pasted, points, record_of, timed

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


task = Task(reference.lab3_receipt, number=6, section="lab3-receipt", **receipts.TASK)


@task.check(1)
def the_ceilings_of_the_machine_were_measured(answer):
    if ceilings_missing(record_of(answer)):
        raise Failure(
            "No ceilings for the format of these points. A roofline needs the speed of a large "
            "product in that dtype and the bytes/s of a large copy, measured in this run."
        )


@task.check(2)
def naive_and_fused_attention_were_timed_up_to_large_n_and_their_work_counted_right(answer):
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


def evidence(record):
    calls = called(record)
    wrong = {(name, key) for name, _, key, _, _ in miscounted(record)}
    return {
        "ceilings": not ceilings_missing(record),
        "any ceilings": bool(record["machine"].get("ceilings")),
        "naive": len(timed(record, "naive")) >= 3,
        "fused": len(timed(record, "fused")) >= 3,
        "large": max(timed(record, "naive"), default=0) >= LARGE,
        **{f"{name} {key}": (name, key) in wrong for name in ("naive", "fused")
           for key in ("flops", "bytes")},
        "all calls": set(CALLS) | {"plain"} <= calls.keys(),
        "their backends": all(p.get("backend") for p in calls.values()),
        "possible calls": not impossible_calls(record),
    }  # fmt: skip


MACHINES = {
    "T4": made_up.with_roofs(made_up.T4, "float16", 24e12, 0.26e12),
    "L4": made_up.with_roofs(made_up.L4, "float16", 90e12, 0.25e12),
    "CPU": made_up.with_roofs(made_up.CPU, "float32", 90e9, 18e9),
}
FUSED = {"T4": "EFFICIENT", "L4": "FLASH", "CPU": "FLASH"}  # who computes a plain call
FELL_BACK = {
    "T4": ("three axes", "strided key", "grouped heads", "bfloat16"),
    "L4": ("three axes", "strided key"),
    "CPU": ("dropout", "three axes", "strided key"),
}


def a_record(machine="T4", sizes=(512, 1024, 2048, 4096), lost=(), **how):
    """A record as this machine could have measured it; naive attention has `lost` some n."""
    about = MACHINES[machine]
    gpu, ceilings = made_up.on_gpu(about), about["ceilings"]
    (peak,), bandwidth = ceilings["flops_per_second"].values(), ceilings["bytes_per_second"]
    h, width = (16, 2) if gpu else (4, 4)

    def group(n):
        work = reference.attention_work(1, h, n, 64, width, causal=False, backward=False)
        flops, reached = work["flops"], min(peak, work["flops"] / work["naive_bytes"] * bandwidth)
        same = {"n": n, "h": h, "d": 64, "flops": flops}
        naive = {"name": "naive", "bytes": work["naive_bytes"], "backend": "NAIVE"}
        naive |= {"seconds": flops / (0.5 * reached) + 2e-5}
        naive |= {"error": "out of memory"} if n in lost else {}
        fused = {"name": "fused", "bytes": work["fused_bytes"], "backend": FUSED[machine]}
        return [same | naive, same | fused | {"seconds": flops / (0.4 * peak) + 2e-5}]

    def single(place, call):
        fell = call in FELL_BACK[machine]
        other = "EFFICIENT" if (machine, call) == ("L4", "mask") else FUSED[machine]
        point = {"name": "call", "call": call, "n": 1024, "h": h, "d": 64}
        point |= {"dtype": "bfloat16"} if call == "bfloat16" else {}
        point |= {"seconds": (1 + place / 10) * (4 if fell else 1) * (6e-4 if gpu else 2e-2)}
        return point | {"backend": "MATH" if fell else other}

    calls = [single(place, call) for place, call in enumerate(("plain", *CALLS))]
    guesses = dict.fromkeys(CALLS, "EFFICIENT") | {"naive bound": "memory", "cost": 2}
    return made_up.record(LAB, about, guesses, [*map(group, sizes), calls], **how)


# --- faults -------------------------------------------------------------------------------------

ROOFLINE, WORK, RULES = "lab3-roofline", "lab3-work", "lab3-rules"


def without_ceilings(record):
    record["machine"]["ceilings"] = None


def ceiling_of_another_format(record):
    record["machine"]["ceilings"]["flops_per_second"] = {"float32": 7.5e12}


receipts.shared(
    task,
    a_record,
    PREDICTED,
    receipts.is_something,
    evidence=evidence,
    predict="lab3-predict",
)
task.fault("L3-QUICK", forms=[pasted(a_record, sizes=(64, 128, 256))])
task.fault("L3-DATA-SHEET", section=ROOFLINE, forms=[pasted(a_record, without_ceilings)])
task.fault("L3-OTHER-FORMAT", section=ROOFLINE, forms=[pasted(a_record, ceiling_of_another_format)])
task.fault(
    "L3-FLOPS-HALVED",
    section=WORK,
    forms=[pasted(a_record, points("naive", "fused", flops=lambda point: point["flops"] / 2))],
)
task.fault(
    "L3-SAME-BYTES",
    section=WORK,
    forms=[pasted(a_record, points("naive", bytes=lambda point: 32 * 256 * point["n"]))],
)
task.fault(
    "L3-CALLED-FLASH",
    section=RULES,
    forms=[pasted(a_record, points("fused", "call", backend="FLASH"))],
)
task.fault(
    "L3-NOT-LOOKED", section="lab3-trace", forms=[pasted(a_record, points("call", backend=None))]
)
task.fault(
    "L3-FEW-CALLS",
    section=RULES,
    forms=[
        pasted(
            a_record,
            receipts.only(lambda p: p.get("call", "plain") in ("plain", "mask", "dropout")),
        )
    ],
)

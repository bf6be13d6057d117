"""Right answers of lab 3 in many styles: the judge must accept every one of them, on every seed."""

import itertools
import math
import re

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attncourse import lab
from attncourse.lab.receipts import encode, wrap
from attncourse.tasks.lab3_who_computed_it.lab3_receipt import a_record
from corpus.correct.lab2_quadratic_wall import shortest_or_middle

# --- which_backend

SIGNS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}
ORDER = {"mm": "p", "bmm": "p", "_softmax": "s"}


def signs_in_a_loop(fn):
    names = lab.trace(fn)
    for name in names:
        for sign in SIGNS:
            if sign in name:
                return SIGNS[sign]
    kept = [name for name in names if name in ("mm", "bmm", "_softmax")]
    for before, name, after in zip(kept, kept[1:], kept[2:], strict=False):
        if before != "_softmax" and name == "_softmax" and after != "_softmax":
            return "NAIVE"
    return "NONE"


def one_long_text(fn):
    names = " ".join(lab.trace(fn))
    for sign, backend in SIGNS.items():
        if sign in names:
            return backend
    return "NAIVE" if re.search(r"\b(b?mm)\b.* _softmax\b.* (b?mm)\b", names) else "NONE"


def any_after_any(fn):
    names = lab.trace(fn)

    def has(part):
        return any(part in name for name in names)

    if has("flash"):
        return "FLASH"
    if has("efficient"):
        return "EFFICIENT"
    if has("cudnn"):
        return "CUDNN"
    if has("_native_multi_head"):
        return "NATIVE_MHA"
    if has("_safe_softmax"):
        return "MATH"
    if not has("softmax"):
        return "NONE"
    place = next(i for i, name in enumerate(names) if "softmax" in name)
    sides = names[:place], names[place:]
    return "NAIVE" if all(any("mm" in name for name in side) for side in sides) else "NONE"


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def with_a_mode_of_its_own(fn):
    with Names() as names:
        fn()
    found = [backend for sign, backend in SIGNS.items() if any(sign in n for n in names.seen)]
    if found:
        return found[0]
    softmax = [i for i, n in enumerate(names.seen) if n == "_softmax"]
    products = [i for i, n in enumerate(names.seen) if n in ("mm", "bmm")]
    between = softmax and products and products[0] < softmax[0] < products[-1]
    return "NAIVE" if between else "NONE"


def with_the_meter(fn):
    with lab.meters.Meter() as meter:
        fn()
    operations = [name.removeprefix("aten::") for name in meter.names]
    hits = (b for name in operations for sign, b in SIGNS.items() if sign in name)
    spelled = re.search("p.*s.*p", "".join(ORDER.get(name, "") for name in operations))
    return next(hits, "NAIVE" if spelled else "NONE")


def with_match(fn):
    answer, products, softmaxes = "NONE", 0, 0
    for name in lab.trace(fn):
        match name:
            case _ if "flash_attention" in name:
                return "FLASH"
            case _ if "efficient_attention" in name:
                return "EFFICIENT"
            case _ if "cudnn_attention" in name:
                return "CUDNN"
            case "_native_multi_head_attention":
                return "NATIVE_MHA"
            case "_safe_softmax":
                return "MATH"
            case "mm" | "bmm":
                products += 1
                answer = "NAIVE" if softmaxes else answer
            case "_softmax":
                softmaxes += products > 0
    return answer


# --- backends_for


def a_dict_of_conditions(capability, call):
    if call["axes"] != 4 or call["last_stride"] != 1:
        return ["MATH"]
    if capability == "cpu":
        return ["FLASH", "MATH"] if call["dropout"] == 0 else ["MATH"]
    half = call["dtype"] in ("float16", "bfloat16")
    new = capability >= (8, 0)
    may = {
        "CUDNN": capability == (9, 0) and half and call["d"] <= 128 and call["d"] % 8 == 0,
        "FLASH": new
        and half
        and not call["mask"]
        and call["d"] <= 256
        and not (call["causal"] and call["queries"] != call["keys"]),
        "EFFICIENT": call["heads"] == call["kv_heads"]
        and (call["dtype"] in ("float16", "float32") or (new and half))
        and call["d"] % (8 if half else 4 if new else 1) == 0,
    }
    return [name for name, condition in may.items() if condition] + ["MATH"]


def refusals_collected(capability, call):
    refused = {"MATH": False}
    general = call["axes"] != 4 or call["last_stride"] > 1
    grouped = call["kv_heads"] != call["heads"]
    if capability == "cpu":
        return ["MATH"] if general or call["dropout"] else ["FLASH", "MATH"]
    sixteen = call["dtype"].endswith("float16")
    refused["CUDNN"] = general or capability != (9, 0) or not sixteen
    refused["CUDNN"] |= call["d"] > 128 or call["d"] % 8 > 0
    crossed = call["causal"] and call["keys"] - call["queries"]
    refused["FLASH"] = bool(general or capability[0] < 8 or not sixteen or call["mask"] or crossed)
    refused["FLASH"] |= call["d"] > 256
    step = 8 if sixteen else 4 if capability[0] >= 8 else 1
    refused["EFFICIENT"] = general or grouped or call["d"] % step != 0
    refused["EFFICIENT"] |= call["dtype"] == "float64"
    refused["EFFICIENT"] |= call["dtype"] == "bfloat16" and capability[0] < 8
    return [b for b in ("CUDNN", "FLASH", "EFFICIENT", "MATH") if not refused[b]]


def one_after_the_other(capability, call):
    found = []
    dtype, d = call["dtype"], call["d"]
    readable = call["axes"] == 4 and call["last_stride"] == 1
    if capability == "cpu":
        if readable and not call["dropout"] > 0:
            found.append("FLASH")
        return [*found, "MATH"]
    sm = capability[0] * 10 + capability[1]
    if readable:
        if sm == 90 and dtype != "float32" and dtype != "float64" and d % 8 == 0 and d <= 128:
            found.append("CUDNN")
        square = call["queries"] == call["keys"] or not call["causal"]
        if sm >= 80 and "16" in dtype and not call["mask"] and d <= 256 and square:
            found.append("FLASH")
        formats = {"float16": 8, "float32": 4 if sm >= 80 else 1}
        if sm >= 80:
            formats["bfloat16"] = 8
        if dtype in formats and d % formats[dtype] == 0 and call["heads"] == call["kv_heads"]:
            found.append("EFFICIENT")
    found.append("MATH")
    return found


def as_a_tuple(capability, call):
    return tuple(a_dict_of_conditions(capability, call))


def by_functions(capability, call):
    def cudnn():
        wide = call["d"] % 8 == 0 and call["d"] <= 128
        return capability == (9, 0) and call["dtype"] in ("float16", "bfloat16") and wide

    def flash():
        if capability == "cpu":
            return not call["dropout"]
        if capability < (8, 0) or call["mask"] or call["d"] > 256:
            return False
        if call["causal"] and call["queries"] != call["keys"]:
            return False
        return call["dtype"] in {"float16", "bfloat16"}

    def efficient():
        if capability == "cpu" or call["kv_heads"] < call["heads"]:
            return False
        if call["dtype"] == "float32":
            return capability < (8, 0) or call["d"] % 4 == 0
        if call["dtype"] == "bfloat16" and capability < (8, 0):
            return False
        return call["dtype"] != "float64" and call["d"] % 8 == 0

    fused = {"CUDNN": cudnn, "FLASH": flash, "EFFICIENT": efficient}
    if (call["axes"], call["last_stride"]) != (4, 1):
        fused = {}
    return [name for name, runs in fused.items() if runs()] + ["MATH"]


def removing_from_all(capability, call):
    left = ["CUDNN", "FLASH", "EFFICIENT", "MATH"]

    def out(*names):
        for name in names:
            if name in left:
                left.remove(name)

    if call["axes"] != 4 or call["last_stride"] != 1:
        out("CUDNN", "FLASH", "EFFICIENT")
    if capability == "cpu":
        out("CUDNN", "EFFICIENT", *(["FLASH"] if call["dropout"] else []))
        return left
    if capability != (9, 0) or call["d"] > 128 or call["d"] % 8:
        out("CUDNN")
    if capability < (8, 0):
        out("FLASH")
        if call["dtype"] == "bfloat16":
            out("EFFICIENT")
    if call["dtype"] in ("float32", "float64"):
        out("CUDNN", "FLASH")
    if call["dtype"] == "float64":
        out("EFFICIENT")
    if call["mask"] or call["d"] > 256:
        out("FLASH")
    if call["causal"] and call["queries"] != call["keys"]:
        out("FLASH")
    if call["heads"] != call["kv_heads"]:
        out("EFFICIENT")
    multiple = 8 if "16" in call["dtype"] else (4 if capability >= (8, 0) else 1)
    if call["d"] % multiple:
        out("EFFICIENT")
    return left


# --- attention_work


def term_by_term(b, h, n, d, bytes_per_number, causal, backward):
    flops = 4 * b * h * n * n * d
    if causal:
        flops /= 2
    if backward:
        flops *= 3.5
    naive = b * h * (6 * n * n + 4 * n * d) * bytes_per_number
    fused = b * h * 4 * n * d * bytes_per_number
    return {"flops": flops, "naive_bytes": naive, "fused_bytes": fused}


def two_products(b, h, n, d, bytes_per_number, causal, backward):
    scores = 2 * n * n * d
    output = 2 * n * n * d
    both = b * h * (scores + output) / (1 + causal)
    table, vector = n * n, n * d
    return {
        "flops": both + (2.5 * both if backward else 0),
        "naive_bytes": bytes_per_number * b * h * (2 * vector + table + 2 * table + 2 * table
                                                   + table + vector + vector),
        "fused_bytes": bytes_per_number * b * h * (3 * vector + vector),
    }  # fmt: skip


def exactly_causal(b, h, n, d, bytes_per_number, causal, backward):
    flops = math.prod((4, b, h, n, n, d)) * {True: 0.5, False: 1.0}[bool(causal)]
    return dict(
        flops=flops * (1 + 2.5 * backward),
        naive_bytes=bytes_per_number * b * h * n * (6 * n + 4 * d),
        fused_bytes=bytes_per_number * b * h * n * 4 * d,
    )


def by_adding_up_tensors(b, h, n, d, bytes_per_number, causal, backward):
    vector, table = b * h * n * d, b * h * n * n
    naive = sum([vector, vector, table, table, table, table, table, table, vector, vector])
    factor = 3.5 if backward else 1
    factor *= 0.5 if causal else 1
    return {
        "flops": torch.tensor(factor * 4.0 * table * d, dtype=torch.float64),
        "naive_bytes": naive * bytes_per_number,
        "fused_bytes": 4 * vector * bytes_per_number,
        "remark": "one head has a table of its own",
    }


def with_numpy(b, h, n, d, bytes_per_number, causal, backward):
    heads = np.float64(b * h)
    flops = heads * 4 * n**2 * d * np.where(causal, 0.5, 1) * np.where(backward, 3.5, 1)
    moved = heads * bytes_per_number * np.array([6 * n * n + 4 * n * d, 4 * n * d])
    return {"flops": flops, "naive_bytes": moved[0], "fused_bytes": moved[1]}


def passes_by_name(b, h, n, d, bytes_per_number, causal, backward):
    passes = {"product": 1, "scale": 2, "softmax": 2, "weights times values": 1}
    fused = 4 * b * h * n * d * bytes_per_number
    naive = fused + sum(passes.values()) * b * h * n * n * bytes_per_number
    flops = 2 * (2 * b * h * n * n * d)
    flops = flops // 2 if causal else flops
    flops = flops * 7 / 2 if backward else flops
    return {"naive_bytes": naive, "fused_bytes": fused, "flops": flops}


# --- roof_over


def the_smaller(flops, moved_bytes, flops_per_second, bytes_per_second):
    intensity = flops / moved_bytes
    ridge = flops_per_second / bytes_per_second
    roof = min(flops_per_second, intensity * bytes_per_second)
    bound = "memory" if intensity < ridge else "compute"
    return {"intensity": intensity, "ridge": ridge, "roof": roof, "bound": bound}


def from_times(flops, moved_bytes, flops_per_second, bytes_per_second):
    computing, moving = flops / flops_per_second, moved_bytes / bytes_per_second
    return {
        "intensity": flops / moved_bytes,
        "ridge": flops_per_second / bytes_per_second,
        "roof": flops / max(computing, moving),
        "bound": "compute" if computing >= moving else "memory",
    }


def with_branches(flops, moved_bytes, flops_per_second, bytes_per_second):
    found = {"intensity": flops / moved_bytes, "ridge": flops_per_second / bytes_per_second}
    if found["intensity"] < found["ridge"]:
        found["bound"] = "memory"
        found["roof"] = flops / moved_bytes * bytes_per_second
    else:
        found["bound"] = "compute"
        found["roof"] = flops_per_second
    return found


def scaled_by_the_ridge(flops, moved_bytes, flops_per_second, bytes_per_second):
    intensity, ridge = flops / moved_bytes, flops_per_second / bytes_per_second
    share = min(1.0, intensity / ridge)
    bound = ("memory", "compute")[int(share == 1.0)]
    return {
        "intensity": intensity,
        "ridge": ridge,
        "roof": share * flops_per_second,
        "bound": bound,
    }


def in_tensors(flops, moved_bytes, flops_per_second, bytes_per_second):
    numbers = (flops, moved_bytes, flops_per_second, bytes_per_second)
    f, m, peak, bandwidth = torch.tensor(numbers, dtype=torch.float64)
    roof = torch.minimum(peak, f / m * bandwidth)
    bound = "memory" if roof < peak else "compute"
    return {"intensity": f / m, "ridge": peak / bandwidth, "roof": roof, "bound": bound}


def sorted_limits(flops, moved_bytes, flops_per_second, bytes_per_second):
    slope = flops * bytes_per_second / moved_bytes
    (roof, bound), _ = sorted([(flops_per_second, "compute"), (slope, "memory")])
    return {
        "bound": bound,
        "roof": np.float64(roof),
        "ridge": flops_per_second / bytes_per_second,
        "intensity": flops / moved_bytes,
    }


# --- sees_future


def every_cut(fn, x):
    before = fn(x)
    for cut in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, cut:] += torch.randn_like(changed[:, cut:])
        if not torch.allclose(fn(changed)[:, :cut], before[:, :cut], atol=1e-5):
            return True
    return False


def one_position_at_a_time(fn, x):
    before = fn(x)
    for place in range(x.shape[1]):
        changed = x.clone()
        changed[:, place] = torch.randn_like(changed[:, place]) * 2
        moved = (fn(changed) - before).abs().amax(dim=(0, 2)) > 1e-5
        if moved[:place].any():
            return True
    return False


def another_ending(fn, x):
    b, n, d = x.shape
    other = torch.randn(b, n, d, device=x.device)
    return any(
        (fn(torch.cat([x[:, :cut], other[:, cut:]], dim=1)) - fn(x))[:, :cut].abs().max() > 2e-5
        for cut in range(1, n)
    )


def a_dependency_map(fn, x):
    n = x.shape[1]
    depends = torch.zeros(n, n, dtype=torch.bool, device=x.device)
    before = fn(x)
    for j in range(n):
        push = torch.zeros_like(x)
        push[:, j] = torch.linspace(1, 3, x.shape[2]).cos() + 0.5
        difference = (fn(x + push) - before).abs()
        depends[:, j] = (difference > 1e-5).any(-1).any(0)
    return depends.triu(1).any()


def largest_difference(fn, x):
    largest, y = 0.0, fn(x)
    directions = torch.tensor([1.0, -2.0, 0.5, 3.0], device=x.device).repeat(x.shape[2])[
        : x.shape[2]
    ]
    for place in range(1, x.shape[1]):
        z = x.clone()
        z[:, place:] = z[:, place:] + directions
        largest = max(largest, (fn(z)[:, :place] - y[:, :place]).abs().max().item())
    return largest > 5e-6


def with_numpy_and_permutations(fn, x):
    y = fn(x).numpy()
    noise = np.random.default_rng(0).normal(size=x.shape).astype("float32")
    for cut in range(1, x.shape[1]):
        keep = (np.arange(x.shape[1]) < cut)[None, :, None]
        z = fn(torch.from_numpy(np.where(keep, x.numpy(), noise))).numpy()
        if not np.allclose(z[:, :cut], y[:, :cut], rtol=1e-5, atol=1e-5):
            return np.bool_(True)
    return np.bool_(False)


# --- lab3_receipt


def on_a_t4():
    return encode(a_record())


def on_an_l4():
    return encode(a_record("L4", seed=1))


def on_a_cpu():
    return encode(a_record("CPU", seed=2))


def in_lines_with_its_name():
    return f'\n    RECEIPT = """\n{wrap(encode(a_record(seed=3)))}\n"""\n'


def on_a_busy_computer():  # it is asked to measure again, and loses nothing
    return encode(a_record("CPU", seed=4, busy=3.0, noise=0.3, samples=20))


def where_naive_attention_ended():
    return encode(a_record(seed=5, sizes=(512, 1024, 2048, 8192, 16384), lost=(16384,)))


# --- who_computed_it


def step_by_step(record):
    naive, fused, calls = {}, {}, {}
    for point in record["points"]:
        if point["name"] == "call":
            calls[point["call"]] = point
        elif point["seconds"]:
            {"naive": naive, "fused": fused}[point["name"]][point["n"]] = point
    n = max(naive)
    limits = record["machine"]["ceilings"]
    peak = limits["flops_per_second"][naive[n]["dtype"]]
    bandwidth = limits["bytes_per_second"]
    ridge = peak / bandwidth

    def bound(point):
        return "memory" if point["flops"] / point["bytes"] < ridge else "compute"

    roof = min(peak, naive[n]["flops"] / naive[n]["bytes"] * bandwidth)
    speed = naive[n]["flops"] / shortest_or_middle(naive[n])
    fell_back = [call for call, point in calls.items() if point["backend"] == "MATH"]
    plain = shortest_or_middle(calls["plain"])
    cost = 1
    for call in fell_back:
        if not calls[call]["error"]:
            cost = max(cost, shortest_or_middle(calls[call]) / plain)
    return {
        "naive_bound": bound(naive[n]),
        "fused_bound": bound(fused[n]),
        "naive_share": speed / roof,
        "fell_back": sorted(fell_back),
        "cost": cost,
    }


def in_any_order(record):
    found = step_by_step(record)
    return {key: found[key] for key in reversed(found)} | {"fell_back": found["fell_back"][::-1]}


def as_a_set(record):
    found = step_by_step(record)
    return found | {"fell_back": set(found["fell_back"]), "remark": "mine"}


def numbers_of_numpy(record):
    points = [p for p in record["points"] if p["seconds"]]
    naive = max((p for p in points if p["name"] == "naive"), key=lambda p: p["n"])
    fused = next(p for p in points if p["name"] == "fused" and p["n"] == naive["n"])
    limits = record["machine"]["ceilings"]
    peak, speed = limits["flops_per_second"][naive["dtype"]], limits["bytes_per_second"]
    computing = np.array([p["flops"] / peak for p in (naive, fused)])
    moving = np.array([p["bytes"] / speed for p in (naive, fused)])
    bounds = np.where(moving > computing, "memory", "compute").tolist()
    least = np.maximum(computing, moving)[0]
    math_calls = [p for p in record["points"] if p.get("call") and p["backend"] == "MATH"]
    plain = next(shortest_or_middle(p) for p in points if p.get("call") == "plain")
    costs = [shortest_or_middle(p) / plain for p in math_calls if p["seconds"]]
    return {
        "naive_bound": bounds[0],
        "fused_bound": bounds[1],
        "naive_share": least / shortest_or_middle(naive),
        "fell_back": sorted(p["call"] for p in math_calls),
        "cost": np.max(costs, initial=1.0),
    }


def the_best_sample_counts_on_a_cpu(record):
    found = step_by_step(record)
    if record["machine"]["device"] == "cpu":
        times = [
            (p["n"], p["flops"], min(p["seconds"]), p)
            for p in record["points"]
            if p["name"] == "naive" and p["seconds"]
        ]
        _, flops, seconds, p = max(times, key=lambda each: each[0])
        limits = record["machine"]["ceilings"]
        sizes = limits["flops_per_second"][p["dtype"]], limits["bytes_per_second"]
        found["naive_share"] = flops / seconds / the_smaller(p["flops"], p["bytes"], *sizes)["roof"]
    return found


def with_groups(record):
    key = lambda p: p["name"]  # noqa: E731
    groups = {k: list(g) for k, g in itertools.groupby(sorted(record["points"], key=key), key)}
    naive = max((p for p in groups["naive"] if not p["error"]), key=lambda p: p["n"])
    (fused,) = (p for p in groups["fused"] if p["n"] == naive["n"])
    ceilings = record["machine"]["ceilings"]
    machine = ceilings["flops_per_second"][naive["dtype"]], ceilings["bytes_per_second"]
    one, two = (with_branches(p["flops"], p["bytes"], *machine) for p in (naive, fused))
    middle = {p["call"]: (p["seconds"] and shortest_or_middle(p)) or 0 for p in groups["call"]}
    fell_back = sorted(p["call"] for p in groups["call"] if p["backend"] == "MATH")
    return {
        "naive_bound": one["bound"],
        "fused_bound": two["bound"],
        "naive_share": torch.tensor(naive["flops"] / shortest_or_middle(naive) / one["roof"]),
        "fell_back": tuple(fell_back),
        "cost": max([middle[call] / middle["plain"] for call in fell_back], default=1),
    }


CORRECT = {
    "which_backend": [
        signs_in_a_loop,
        one_long_text,
        any_after_any,
        with_a_mode_of_its_own,
        with_the_meter,
        with_match,
    ],
    "backends_for": [
        a_dict_of_conditions,
        refusals_collected,
        one_after_the_other,
        as_a_tuple,
        by_functions,
        removing_from_all,
    ],
    "attention_work": [
        term_by_term,
        two_products,
        exactly_causal,
        by_adding_up_tensors,
        with_numpy,
        passes_by_name,
    ],
    "roof_over": [
        the_smaller,
        from_times,
        with_branches,
        scaled_by_the_ridge,
        in_tensors,
        sorted_limits,
    ],
    "sees_future": [
        every_cut,
        one_position_at_a_time,
        another_ending,
        a_dependency_map,
        largest_difference,
        with_numpy_and_permutations,
    ],
    "lab3_receipt": [
        on_a_t4,
        on_an_l4,
        on_a_cpu,
        in_lines_with_its_name,
        on_a_busy_computer,
        where_naive_attention_ended,
    ],
    "who_computed_it": [
        step_by_step,
        in_any_order,
        as_a_set,
        numbers_of_numpy,
        the_best_sample_counts_on_a_cpu,
        with_groups,
    ],
}

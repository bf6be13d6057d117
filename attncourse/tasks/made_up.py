"""Records of labs, made up: measured nowhere, so their truth is known."""

import copy
import random


def _machine(**own) -> dict:
    usual = {"capability": None, "l2_bytes": None, "threads": 1, "python": "3.13.15", "cuda": None}
    return usual | {"ceilings": None, "precision": "highest"} | own


def _gpu(label, name, capability, memory_bytes, l2_bytes) -> dict:
    return _machine(
        **{"device": "cuda", "name": name, "label": label, "capability": capability},
        **{"memory_bytes": memory_bytes, "l2_bytes": l2_bytes},
        **{"torch": "2.11.0+cu128", "cuda": "12.8"},
    )


CPU = _machine(
    **{"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread"},
    **{"memory_bytes": 25_000_000_000, "torch": "2.11.0+cpu"},
)
T4 = _gpu("T4", "Tesla T4", [7, 5], 15_828_320_256, 4_194_304)
L4 = _gpu("L4", "NVIDIA L4", [8, 9], 23_034_000_000, 50_331_648)
H100 = _gpu("H100", "NVIDIA H100 80GB HBM3", [9, 0], 85_000_000_000, 52_428_800)


def with_roofs(machine: dict, dtype: str, flops: float, copied: float) -> dict:
    """The machine with ceilings, in FLOP/s of that dtype and in bytes/s."""
    return machine | {"ceilings": {"flops_per_second": {dtype: flops}, "bytes_per_second": copied}}


def on_gpu(machine: dict) -> bool:
    return machine["device"] == "cuda"


def record(
    lab: str,
    machine: dict,
    predicted: dict,
    groups,
    *,
    samples: int = 20,
    noise: float = 0.02,
    busy: float = 1.0,
    seed: int = 0,
) -> dict:
    """What a lab would have written.

    Args:
        predicted: name -> value, all before the first measurement.
        groups: of points that were measured in turn, A B A B. A point is a dict of what is special
            about it; its `seconds` are the true time of one call. With an `error` it has none.
        noise: spread of the samples around the true time, relative.
        busy: time on the wall over processor time.
    """
    chance, now, points = random.Random(seed), 2.0, []
    gpu = on_gpu(machine)
    usual = {
        **{"b": 1, "dtype": "float16" if gpu else "float32", "clock": "events" if gpu else "cpu"},
        **{"peak_bytes": None, "backend": None, "error": None, "wall_over_cpu": busy},
        **{"reference_error": 5e-4 if gpu else 2e-7, "session": 0},
    }
    for group in groups:
        group = [usual | point for point in group]
        made = [point | {"seconds": [], "started": []} for point in group]
        for _ in range(samples):
            for point, true in zip(made, group, strict=True):
                if not point["error"]:
                    point["seconds"].append(true["seconds"] * chance.lognormvariate(0, noise))
                    point["started"].append(now)
                    now += point["seconds"][-1] * busy + 2e-3
        points += made
    guesses = {
        name: {"value": value, "at": 1.0, "session": 0, "points": 0}
        for name, value in predicted.items()
    }
    machine = copy.deepcopy(machine)  # whoever changes it, changes this one
    return {"lab": lab, "machine": machine, "predictions": guesses, "points": points}

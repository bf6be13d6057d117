"""The record as a whole: its clocks, its machine, its predictions."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from attncourse.lab.audit.reading import IMPOSSIBLE, NOTE, Finding, Point, Reading, unit_of


def _timestamps(book: Reading) -> Iterator[Finding]:
    sessions = defaultdict(list)
    for point in book.timed:
        if point.started.size:
            sessions[point["session"]].append(point)
    for points in sessions.values():
        backward = False
        for point in points:
            steps = np.diff(point.started)
            if (steps < 0).any() or point.started[0] < 0:
                backward = True
                yield point.complain(
                    "time_backward",
                    IMPOSSIBLE,
                    "A later sample began before an earlier one. Keep samples and their start "
                    "times together and in order.",
                    largest_step_back=float(-steps.min()) if steps.size else 0.0,
                )
        if not backward:
            yield from _overlapping(book, points)


def _overlapping(book: Reading, points: list[Point]) -> Iterator[Finding]:
    """Samples that began before the one before them ended."""
    # Processor time adds up over threads; the time on the wall is at least its share.
    threads = max(book.machine.get("threads") or 1, 1)
    busy = [p.seconds / (threads if p["clock"] == "cpu" else 1) for p in points]
    owner = np.repeat(np.arange(len(points)), [p.seconds.size for p in points])
    started, busy = np.concatenate([p.started for p in points]), np.concatenate(busy)
    order = np.lexsort((busy, started))  # rounded to the same start, the shorter was first
    started, busy, owner = started[order], busy[order], owner[order]
    slack = 1e-5 + 2 * max(unit_of(point.started) for point in points)
    room = np.diff(started) + slack
    over = busy[:-1] > 1.1 * room
    if over.sum() < max(3, 0.02 * over.size):
        return
    ratio = float(np.median(busy[:-1][over] / room[over]))
    # Milliseconds taken for seconds: nearly all overlap, and none would at a thousandth.
    thousand = over.mean() > 0.8 and (busy[:-1] / 1e3 <= 1.1 * room).mean() > 0.98
    yield points[owner[:-1][over][0]].complain(
        "units" if thousand and ratio > 10 else "overlap",
        IMPOSSIBLE,
        "A sample lasts far longer than the time until the next one began, about a thousandfold: "
        "events speak in milliseconds. Record seconds."
        if thousand and ratio > 10
        else "Samples overlap in time, although they ran one after another. Keep each sample with "
        "its own start time.",
        samples=int(over.sum()),
        lasts_over_room=ratio,
    )


# First torch release whose wheels had this CUDA or this Python (PyTorch, RELEASE.md, "Release
# Compatibility Matrix"; the lists of its wheels).
FIRST_CUDA = {
    "12.1": (2, 1),
    "12.4": (2, 4),
    "12.6": (2, 6),
    "12.8": (2, 7),
    "12.9": (2, 8),
    "13.0": (2, 9),
    "13.2": (2, 12),
}
LAST_CUDA_11 = (2, 7)
FIRST_PYTHON = {"3.11": (2, 0), "3.12": (2, 2), "3.13": (2, 5), "3.14": (2, 9)}

# Compute capability and memory of the largest variant (NVIDIA's data sheets; H100 NVL has 94 GB).
GPUS = {
    "V100": ((7, 0), 32e9),
    "T4": ((7, 5), 16e9),
    "A100": ((8, 0), 80e9),
    "A10G": ((8, 6), 24e9),
    "L4": ((8, 9), 24e9),
    "L40S": ((8, 9), 48e9),
    "H100": ((9, 0), 94e9),
    "H200": ((9, 0), 141e9),
}


def _versions(book: Reading) -> Iterator[Finding]:
    machine = book.machine
    spelled = re.fullmatch(r"(\d+)\.(\d+)\.\d+(?:\+(cpu|cu\d+))?", str(machine.get("torch")))
    if spelled is None:
        return  # a build from source may combine what it likes
    torch = int(spelled[1]), int(spelled[2])
    cuda, build = machine.get("cuda"), spelled[3]
    python = ".".join(str(machine.get("python")).split(".")[:2])
    reasons = []
    if cuda and (
        torch < FIRST_CUDA.get(cuda, (0, 0)) or (cuda.startswith("11.") and torch > LAST_CUDA_11)
    ):
        reasons.append(f"torch {machine['torch']} was never built for CUDA {cuda}")
    if torch < FIRST_PYTHON.get(python, (0, 0)):
        reasons.append(f"torch {machine['torch']} came before Python {python}")
    if build and build != "cpu" and cuda and build != "cu" + cuda.replace(".", ""):
        reasons.append(f"torch {machine['torch']} does not hold CUDA {cuda}")
    if book.gpu and (build == "cpu" or not cuda):
        reasons.append(f"torch {machine['torch']} without CUDA cannot use a GPU")
    for reason in reasons:
        yield Finding(
            "versions_impossible",
            IMPOSSIBLE,
            "the machine",
            {},
            f"{reason[0].upper()}{reason[1:]}. Let the lab record the versions itself.",
        )


def _device(book: Reading) -> Iterator[Finding]:
    machine, reasons = book.machine, []
    if machine.get("device") == "cpu" and machine.get("capability"):
        reasons.append("A CPU has no compute capability")
    for gpu, (capability, memory) in GPUS.items():
        if not book.gpu or not re.search(rf"\b{gpu}\b", str(machine.get("name"))):
            continue
        if list(machine.get("capability") or []) != list(capability):
            reasons.append(f"A {gpu} has compute capability {capability[0]}.{capability[1]}")
        if (machine.get("memory_bytes") or 0) > 1.1 * memory:
            reasons.append(f"A {gpu} has at most {memory / 1e9:.0f} GB")
    for reason in reasons:
        yield Finding(
            "device_mismatch",
            IMPOSSIBLE,
            "the machine",
            {},
            f"{reason}, so this record mixes two machines. Measure it on one.",
        )


def _predictions(book: Reading) -> Iterator[Finding]:
    for name, made in book.predictions.items():
        if isinstance(made, Mapping) and (made.get("points") or 0) > 0:
            yield Finding(
                "predicted_afterwards",
                NOTE,
                f"prediction of {name}",
                {"points_before": made["points"]},
                "Written down after some points were measured. Predict first: that teaches most.",
            )


DETECTORS = (_timestamps, _versions, _device, _predictions)

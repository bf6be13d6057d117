"""The audit: honest records pass on any machine and in any noise, and each mistake has its name."""

import copy
import json
import math

import numpy as np
import pytest
import torch

from attncourse.lab import timing
from attncourse.lab.audit import SEVERITIES, audit, passed, summary
from attncourse.lab.fits import fit_exponent
from attncourse.lab.receipts import decode, encode

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
SAMPLES = 30

T4 = {
    "device": "cuda",
    "name": "Tesla T4",
    "capability": [7, 5],
    "memory_bytes": 15_828_320_256,
    "l2_bytes": 4 * 2**20,
    "threads": 2,
    "torch": "2.11.0+cu128",
    "python": "3.13.15",
    "cuda": "12.8",
    "label": "T4",
    "ceilings": {"flops_per_second": {"float16": 24e12}, "bytes_per_second": 260e9},
    "precision": "highest",
}
A100 = T4 | {
    "name": "NVIDIA A100-SXM4-40GB",
    "capability": [8, 0],
    "memory_bytes": 42_474_471_424,
    "l2_bytes": 40 * 2**20,
    "threads": 12,
    "label": "A100-SXM4-40GB",
    "ceilings": {"flops_per_second": {"float16": 250e12}, "bytes_per_second": 1.3e12},
}
CPU = T4 | {
    "device": "cpu",
    "name": "AMD EPYC 7B12",
    "capability": None,
    "memory_bytes": 13_605_830_656,
    "l2_bytes": None,
    "threads": 1,
    "torch": "2.13.0+cpu",
    "cuda": None,
    "label": "CPU, 1 thread",
    "ceilings": {"flops_per_second": {"float32": 9e10}, "bytes_per_second": 17e9},
}
MACHINES = {"T4": T4, "A100": A100, "CPU": CPU}

# Where each implementation is bound: launch seconds, FLOP/s, bytes/s (measured or published
# orders of magnitude; nothing below depends on the exact values).
SPEED = {
    "T4": {"naive": (60e-6, 15e12, 230e9), "fused": (35e-6, 11e12, 230e9)},
    "A100": {"naive": (45e-6, 150e12, 1.2e12), "fused": (25e-6, 140e12, 1.2e12)},
    "CPU": {"naive": (40e-6, 4e10, 9e9), "fused": (30e-6, 6e10, 9e9)},
}
BACKEND = {"T4": "EFFICIENT", "A100": "FLASH", "CPU": "FLASH"}
TICK = {"T4": 1.024e-6, "A100": 32e-9, "CPU": 1e-9}


class Weather:
    """What disturbs a machine for the length of a lab; all of it drawn from the seed."""

    def __init__(self, kind: str, seed: int, storm: bool) -> None:
        self.random = random = np.random.default_rng([seed, len(kind)])
        cpu = kind == "CPU"
        self.noise = random.uniform(0.01, 0.08 if cpu else 0.02) * (3 if storm else 1)
        self.floor = random.uniform(0.0005, 0.003)  # of each implementation alone
        self.outliers = random.uniform(0, 0.15 if storm else 0.05)
        self.throttle = random.uniform(1, 2) if storm or random.random() < 0.3 else 1.0
        self.onset = random.uniform(0, 30)  # seconds after the start
        self.contention = random.uniform(1.2, 4) if cpu and (storm or random.random() < 0.3) else 1

    def factor(self, t: float, common: float) -> float:
        """How many times as long a sample takes that starts at `t`."""
        heat = 1 + (self.throttle - 1) / (1 + math.exp(-(t - self.onset) / 2))
        slow = self.random.uniform(1.5, 8) if self.random.random() < self.outliers else 1
        return common * heat * slow * math.exp(self.floor * self.random.standard_normal())

    def common(self) -> float:
        """What a round shares: the clock of the moment, another program."""
        return math.exp(abs(self.noise * self.random.standard_normal()))


def honest(kind: str = "T4", seed: int = 0, storm: bool = False, samples: int = SAMPLES) -> dict:
    """A record of naive and fused attention over n as this machine could have measured it."""
    machine, weather = MACHINES[kind], Weather(kind, seed, storm)
    cpu = kind == "CPU"
    b, h, d, width = 1, 4 if cpu else 16, 64, 4 if cpu else 2
    now, points, broken = 2.0, [], False
    for n in SIZES[: 5 if cpu else 7]:
        group = []
        for name in ("naive", "fused"):
            flops = 4 * b * h * n * n * d
            scores, inputs = b * h * n * n * width, 4 * b * h * n * d * width
            moved = 6 * scores + inputs if name == "naive" else inputs
            peak = 8_519_680 + inputs + (2 * scores if name == "naive" else 4 * b * h * n)
            launch, compute, memory = SPEED[kind][name]
            if name == "naive" and kind == "A100" and moved < 8 * machine["l2_bytes"]:
                memory *= 2  # the scores of a step are still in the L2 cache at the next
            fails = name == "naive" and peak > 0.93 * machine["memory_bytes"]
            broken |= fails
            group.append(
                {
                    "name": name,
                    "n": n,
                    "b": b,
                    "h": h,
                    "d": d,
                    "seconds": [],
                    "clock": "cpu" if cpu else "events",
                    "started": [],
                    "session": 1,
                    "peak_bytes": None if fails else peak,
                    "backend": BACKEND[kind] if name == "fused" else None,
                    "dtype": "float32" if cpu else "float16",
                    "flops": float(flops),
                    "bytes": float(moved),
                    "error": "out of memory" if fails else None,
                    "wall_over_cpu": 1.0,
                    "reference_error": 3e-7 if cpu else 8e-4,
                    "true": max(launch, flops / compute, moved / memory),
                }
            )
        for _ in range(samples):
            common = weather.common()
            for point in group:
                if point["error"]:
                    continue
                lasts = point["true"] * weather.factor(now, common)
                lasts = max(round(lasts / TICK[kind]), 1) * TICK[kind]
                point["seconds"].append(lasts)
                point["started"].append(now)
                # A GPU's cache is flushed before each sample; a busy CPU is taken away.
                flush = 2 * 2**28 / machine["ceilings"]["bytes_per_second"]
                now += lasts * weather.contention + 2e-5 if cpu else flush + lasts + 5e-5
        for point in group:
            del point["true"]
            point["wall_over_cpu"] = weather.contention if cpu else 1.0
        points += group
        now += weather.random.uniform(0.1, 2)
    predictions = {"exponent": {"value": 2, "at": 1.0, "session": 1, "points": 0}}
    lab = "lab2_quadratic_wall"
    return {"lab": lab, "machine": dict(machine), "predictions": predictions, "points": points}


def decode_record(kind: str, seed: int) -> dict:
    """One step of decoding with a cache, with all, a quarter and one of the heads for the keys."""
    record, weather = honest(kind, seed), Weather(kind, seed, False)
    now, points = 1.0, []
    for n in (1024, 2048, 4096, 8192):
        group = []
        for name, heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
            template = record["points"][1] | {"name": name, "n": n, "kv_heads": heads, "h": 32}
            moved = 4.0 * 8 * heads * n * 128
            group.append(
                template
                | {
                    "bytes": moved,
                    "flops": 4.0 * 8 * 32 * n * 128,
                    "peak_bytes": int(moved) + 30_000_000,
                    "backend": None,
                    "seconds": [],
                    "started": [],
                }
            )
        _, compute, memory = SPEED[kind]["fused"]
        for _ in range(SAMPLES):
            for point in group:
                lasts = max(40e-6, 2 * point["bytes"] / memory, point["flops"] / compute)
                lasts *= weather.factor(now, weather.common())
                point["seconds"].append(lasts)
                point["started"].append(now)
                now += 1.3 * lasts + 1e-4
        points += group
    return record | {"lab": "lab5_decode_bandwidth", "points": points}


def names(findings) -> set[str]:
    return {finding.name for finding in findings}


def grave(findings) -> set[str]:
    return {finding.name for finding in findings if not passed([finding])}


# Honest records


@pytest.mark.parametrize("storm", [False, True], ids=["fair weather", "storm"])
@pytest.mark.parametrize("kind", MACHINES)
def test_an_honest_record_loses_no_points_whatever_the_noise(kind, storm):
    for seed in range(8):
        findings = audit(honest(kind, seed, storm))
        assert passed(findings), (seed, summary(findings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MACHINES)
def test_honest_records_raise_no_alarm(kind, seeds=range(16)):  # 200: tests/bench/sweeps.py
    for seed in seeds:
        for record in (honest(kind, seed, storm=bool(seed % 2)), decode_record(kind, seed)):
            assert not grave(audit(record)), (seed, summary(audit(record)))
            assert not grave(audit(decode(encode(record)))), seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", MACHINES)
def test_an_honest_decoding_lab_passes(kind):
    for seed in range(10):
        findings = audit(decode_record(kind, seed))
        assert passed(findings), summary(findings)


@pytest.mark.slow
def test_a_really_measured_record_passes_even_on_a_busy_machine():
    points = []
    for n in (64, 128, 256, 512):
        q, k, v = torch.randn(3, 1, 2, n, 32)
        fns = {
            "naive": lambda q=q, k=k, v=v: (q @ k.mT / 32**0.5).softmax(-1) @ v,
            "fused": lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v
            ),
        }
        for sample in timing.compare(fns, samples=24, progress=False).values():
            flops = 4.0 * 2 * n * n * 32
            points.append(sample.as_point(n=n, b=1, h=2, d=32, flops=flops))
    machine = timing.machine("cpu")
    record = {"lab": "lab2_quadratic_wall", "machine": machine, "predictions": {}, "points": points}
    assert not grave(audit(record)), summary(audit(record))
    assert not grave(audit(decode(encode(record))))


def test_a_throttled_machine_is_asked_to_measure_again():
    record = honest("T4")
    for point in record["points"]:
        point["seconds"] = [s * (1 + i / 20) for i, s in enumerate(point["seconds"])]
        point["started"] = [4 * t for t in point["started"]]
    findings = audit(record)
    assert "drift" in names(findings) and passed(findings)
    assert "no points are lost" in summary(findings)


def test_a_contended_cpu_is_asked_to_measure_again():
    record = honest("CPU", storm=True)
    findings = audit(record)
    assert "contended" in names(findings) and passed(findings)


# Mistakes and forgeries: (machines, the name it must get, what to do to an honest record)

CORRUPTIONS = {}


def corruption(finding: str, kinds: str = "T4 A100 CPU"):
    def keep(change):
        CORRUPTIONS[change.__name__] = (kinds.split(), finding, change)
        return change

    return keep


def of(record: dict, name: str) -> list[dict]:
    return [point for point in record["points"] if point["name"] == name]


def scale(record: dict, factor: float) -> None:
    for point in record["points"]:
        point["seconds"] = [s * factor for s in point["seconds"]]


@corruption("launch_time", "T4 A100")
def no_synchronize(record, random):
    for point in of(record, "fused"):
        point["seconds"] = (2e-5 * random.lognormal(0, 0.05, SAMPLES)).tolist()


@corruption("units")
def milliseconds_as_seconds(record, random):
    scale(record, 1e3)


@corruption("units")
def kiloseconds(record, random):
    scale(record, 1e-3)


@corruption("faster_than_peak", "T4 A100")
def five_times_the_peak(record, random):
    peak = 65e12 if "T4" in record["machine"]["name"] else 312e12
    point = of(record, "fused")[5]
    seconds = point["flops"] / (5 * peak)
    point["seconds"] = (seconds * random.lognormal(0, 0.01, SAMPLES)).tolist()


@corruption("faster_than_memory", "T4 A100")
def bytes_beyond_the_bus(record, random):
    point = of(record, "naive")[-2]
    seconds = point["bytes"] / 9e12
    point["flops"] = None
    point["seconds"] = (seconds * random.lognormal(0, 0.01, SAMPLES)).tolist()


@corruption("hot_l2", "T4 A100")
def cache_not_flushed(record, random):
    for point in of(record, "fused")[:3]:
        seconds = point["bytes"] / 6e12
        point["flops"] = None
        point["seconds"] = (seconds * random.lognormal(0, 0.01, SAMPLES)).tolist()


@corruption("warm_up_counted")
def first_calls_counted(record, random):
    for point in record["points"]:
        if point["seconds"]:
            first, late = point["started"][0], random.uniform(30, 300) * point["seconds"][0]
            point["seconds"][0] += late
            for other in record["points"]:  # everything after waits for it
                other["started"] = [t + late * (t > first) for t in other["started"]]


@corruption("too_few_samples")
def one_sample(record, random):
    for point in record["points"]:
        for key in ("seconds", "started"):
            point[key] = point[key][:1]


@corruption("too_few_samples")
def ten_samples(record, random):
    for point in record["points"]:
        for key in ("seconds", "started"):
            point[key] = point[key][:10]


@corruption("mean_reported")
def mean_as_headline(record, random):
    for point in record["points"]:
        if point["seconds"]:
            point["seconds"][7] *= 9
            point["headline"] = float(np.mean(point["seconds"]))
            point["started"] = []


@corruption("headline_from_elsewhere")
def headline_invented(record, random):
    for point in record["points"]:
        point["headline"] = float(np.median(point["seconds"] or [1]) / 2)


@corruption("different_sizes")
def other_sizes_for_the_other(record, random):
    for point in of(record, "fused"):
        point["n"] = point["n"] * 3 // 2


@corruption("not_interleaved")
def one_after_the_other(record, random):
    for point in of(record, "fused"):
        point["started"] = [t + 1000 for t in point["started"]]


@corruption("contended", "CPU")
def busy_processor(record, random):
    for point in record["points"]:
        point["wall_over_cpu"] = 2.5


@corruption("hidden_threads", "CPU")
def threads_that_nobody_mentioned(record, random):
    for point in record["points"]:
        point["wall_over_cpu"] = 0.5


@corruption("grad_on")
def grad_left_on(record, random):
    for point in record["points"]:
        point["grad"] = True


@corruption("peak_not_reset")
def peak_of_the_naive_one(record, random):
    for naive, fused in zip(of(record, "naive"), of(record, "fused"), strict=True):
        fused["peak_bytes"] = naive["peak_bytes"]


@corruption("peak_not_reset")
def old_peaks_shine_through(record, random):
    for point in record["points"]:
        if point["peak_bytes"]:
            point["peak_bytes"] = int(3e6 * point["n"] ** 0.4)


@corruption("reserved_not_allocated")
def reserved_memory(record, random):
    for point in record["points"]:
        if point["peak_bytes"]:
            point["peak_bytes"] = 6 * 2**30


@corruption("more_memory_than_there_is")
def memory_in_the_wrong_unit(record, random):
    for point in record["points"]:
        if point["peak_bytes"]:
            point["peak_bytes"] *= 1024


@corruption("out_of_memory_as_time", "T4 A100")
def time_of_an_error(record, random):
    point = of(record, "naive")[-1]
    point["error"] = "out of memory"
    point["seconds"] = random.lognormal(-7, 0.1, SAMPLES).tolist()
    point["started"] = []


@corruption("out_of_memory_as_time")
def time_beyond_the_wall(record, random):
    point = of(record, "naive")[2]
    point |= {"error": "out of memory", "seconds": [], "started": []}


@corruption("mixed_dtypes", "T4 A100")
def half_against_single(record, random):
    for point in of(record, "naive"):
        point["dtype"] = "float32"


@corruption("mixed_precision", "CPU A100")
def tf32_on_one_side(record, random):
    for point in record["points"]:
        point["precision"] = "high" if point["name"] == "naive" else "highest"


@corruption("backend_impossible", "T4")
def flash_on_a_t4(record, random):
    for point in of(record, "fused"):
        point["backend"] = "FLASH"


@corruption("backend_impossible", "T4")
def bfloat16_on_a_t4(record, random):
    for point in record["points"]:
        point["dtype"] = "bfloat16"


@corruption("backend_impossible", "A100")
def flash_with_a_mask(record, random):
    for point in record["points"]:
        point["mask"] = True


@corruption("backend_impossible", "CPU")
def cudnn_on_a_cpu(record, random):
    for point in of(record, "fused"):
        point["backend"] = "CUDNN"


@corruption("math_called_flash")
def math_with_another_name(record, random):
    for naive, fused in zip(of(record, "naive"), of(record, "fused"), strict=True):
        fused["peak_bytes"] = naive["peak_bytes"] and 2 * naive["peak_bytes"]
        naive["peak_bytes"] = naive["peak_bytes"] and naive["peak_bytes"] // 2


@corruption("math_called_flash")
def flash_that_fell_back(record, random):
    for point in of(record, "fused"):
        point |= {"name": "flash", "backend": "MATH"}


@corruption("copied_samples")
def same_samples_twice(record, random):
    first, second = of(record, "fused")[-3:-1]
    second["seconds"] = list(first["seconds"])


@corruption("copied_samples")
def same_samples_shuffled(record, random):
    first, second = of(record, "naive")[2:4]
    first["seconds"] = random.permutation(second["seconds"]).tolist()


@corruption("copied_samples")
def same_samples_times_four(record, random):
    first, second = of(record, "fused")[-2:]
    second["seconds"] = [4.1 * s for s in first["seconds"]]
    second["started"] = [second["started"][0] + 5 * i for i in range(SAMPLES)]


def forge(record: dict, pattern: np.ndarray) -> None:
    """Replace the samples of one point by invented ones of about its own time."""
    point = of(record, "fused")[-1]
    typical = float(f"{0.7 * np.median(point['seconds']):.1e}")
    point["seconds"] = [float(f"{typical * each:.4g}") for each in pattern]


@corruption("too_regular")
def the_same_number_thirty_times(record, random):
    forge(record, np.ones(SAMPLES))


@corruption("too_regular")
def samples_on_a_line(record, random):
    forge(record, np.linspace(1, 1.1, SAMPLES))


@corruption("too_regular")
def samples_that_repeat(record, random):
    forge(record, np.tile(random.lognormal(0, 0.03, 6), 5))


@corruption("too_regular")
def samples_typed_by_hand(record, random):
    point = of(record, "fused")[-1]
    typical = 0.7 * np.median(point["seconds"])
    point["seconds"] = [float(f"{typical * each:.1e}") for each in random.uniform(1, 1.5, SAMPLES)]


@corruption("sorted_samples")
def samples_put_in_order(record, random):
    for point in record["points"]:
        point["seconds"].sort()


@corruption("time_backward")
def clock_that_runs_backward(record, random):
    for point in record["points"]:
        point["started"].reverse()


@corruption("overlap")
def start_times_invented(record, random):
    for point in of(record, "fused"):
        gap = point["seconds"][0] / 3
        point["started"] = [point["started"][0] + gap * i for i in range(SAMPLES)]


@corruption("versions_impossible")
def torch_before_its_python(record, random):
    record["machine"] |= {"torch": "2.3.1", "python": "3.13.1"}


@corruption("versions_impossible", "T4 A100")
def torch_without_that_cuda(record, random):
    record["machine"] |= {"torch": "2.9.1", "cuda": "13.2"}


@corruption("versions_impossible", "T4 A100")
def gpu_without_cuda(record, random):
    record["machine"] |= {"torch": "2.11.0+cpu", "cuda": None}


@corruption("clock_mismatch")
def clock_of_another_device(record, random):
    other = "events" if record["machine"]["device"] == "cpu" else "cpu"
    for point in record["points"]:
        point["clock"] = other


@corruption("device_mismatch", "T4 A100")
def capability_of_another_gpu(record, random):
    record["machine"]["capability"] = [9, 0]


@corruption("device_mismatch", "T4")
def memory_of_another_gpu(record, random):
    record["machine"]["memory_bytes"] = 80 * 10**9


@corruption("wrong_result")
def fast_and_wrong(record, random):
    for point in of(record, "fused"):
        point["reference_error"] = 0.7


@corruption("wrong_result")
def not_a_number(record, random):
    for point in of(record, "fused"):
        point |= {"reference_error": None, "not_finite": ["reference_error"]}


@corruption("not_a_time")
def no_time_at_all(record, random):
    of(record, "fused")[0]["seconds"][3] = 0.0


@corruption("edited")
def edited_by_hand(record, random):
    record["points"][3]["edited"] = True


@corruption("faster_when_larger")
def error_swallowed(record, random):
    point = of(record, "fused")[3 if record["machine"]["device"] == "cpu" else 5]
    point["seconds"] = (4e-5 * random.lognormal(0, 0.05, SAMPLES)).tolist()
    point["flops"] = point["bytes"] = None


@corruption("noisy")
def scattered(record, random):
    point = of(record, "fused")[2]
    point["seconds"] = (0.001 * random.lognormal(0, 0.5, SAMPLES)).tolist()
    point["started"] = []


def fastest(record):
    return max(p["flops"] / np.median(p["seconds"]) for p in record["points"] if p["seconds"])


@corruption("above_ceiling", "T4 A100 CPU")
def above_its_own_ceiling(record, random):
    roofs = record["machine"]["ceilings"]["flops_per_second"]
    roofs |= dict.fromkeys(roofs, fastest(record) / 2)


@corruption("far_above_ceiling", "T4 A100 CPU")
def far_above_its_own_ceiling(record, random):
    roofs = record["machine"]["ceilings"]["flops_per_second"]
    roofs |= dict.fromkeys(roofs, fastest(record) / 5)


@corruption("predicted_afterwards")
def predicted_after_measuring(record, random):
    record["predictions"]["exponent"]["points"] = 5


CASES = [(name, kind) for name, (kinds, *_) in CORRUPTIONS.items() for kind in kinds]


def corrupted(name: str, kind: str, seed: int) -> dict:
    record = copy.deepcopy(honest(kind, seed))
    CORRUPTIONS[name][2](record, np.random.default_rng(seed))
    return record


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", CASES, ids=lambda part: part)
def test_a_mistake_is_called_by_its_name(name, kind):
    record = corrupted(name, kind, seed=1)
    finding = CORRUPTIONS[name][1]
    assert finding in names(audit(record)), summary(audit(record))
    assert finding in names(audit(decode(encode(record)))), "lost in the receipt"
    for found in audit(record):
        assert found.severity in SEVERITIES and found.configuration
        assert found.sentence.endswith(".") and "!" not in found.sentence
        assert all(isinstance(number, int | float) for number in found.numbers.values())


def test_there_are_twenty_kinds_of_mistakes_and_more():
    assert len(CORRUPTIONS) >= 20 and len({finding for _, finding, _ in CORRUPTIONS.values()}) >= 20


# What a finding says


def test_the_gravest_finding_comes_first():
    record = corrupted("milliseconds_as_seconds", "T4", 0)
    record["points"][0]["grad"] = True
    order = [SEVERITIES.index(finding.severity) for finding in audit(record)]
    assert order == sorted(order) and order[0] == 0


def test_the_audit_says_that_it_is_evidence_and_not_proof():
    assert "evidence, not proof" in summary(audit(honest()))


def test_the_same_record_gives_the_same_findings_and_stays_as_it_was():
    record = corrupted("first_calls_counted", "T4", 0)
    before = json.dumps(record)
    assert audit(record) == audit(record) and json.dumps(record) == before


def test_what_is_no_record_gets_an_error_that_says_where():
    with pytest.raises(ValueError, match="machine"):
        audit({"lab": "x", "points": [], "predictions": {}})
    with pytest.raises(ValueError, match=r"points\[0\]"):
        audit({"lab": "x", "machine": {}, "points": [{}], "predictions": {}})


@pytest.mark.slow
def test_a_nonsensical_record_is_refused_or_judged_but_never_breaks_the_audit():
    nonsense = [None, -1, 0, 1e29, "x", [], {}, [1, 2], {"a": [1]}, True, 0.5, ["a"], [None]]
    random = np.random.default_rng(0)
    judged = 0
    for seed in range(300):
        record = corrupted("error_swallowed", "T4", seed % 7)
        places = [record, record["machine"], record["predictions"], *record["points"]]
        for _ in range(2):
            place = places[random.integers(len(places))]
            extra = ["attempts", "samples", "headline", "mask", "not_finite", "edited", "kv_heads"]
            key = random.choice([*place, *extra])
            place[key] = nonsense[random.integers(len(nonsense))]
        try:
            judged += bool(summary(audit(record)))
        except ValueError as error:
            assert len(str(error)) > 10
    assert judged > 50


def test_samples_shorter_than_a_microsecond_are_not_taken_for_rounded_ones():
    seconds = (3e-7 * np.random.default_rng(0).lognormal(0, 0.05, SAMPLES)).tolist()
    record = {"lab": "x", "machine": {}, "points": [{"name": "a", "seconds": seconds}]}
    assert passed(audit(record | {"predictions": {}}))


def test_a_record_without_points_and_one_without_details_are_fine():
    empty = {"lab": "x", "machine": {}, "points": [], "predictions": {}}
    assert audit(empty) == []
    assert passed(
        audit(empty | {"points": [{"name": "a", "seconds": [0.123, 0.131, 0.1276] * 10}]})
    )


# Exponents


@pytest.mark.parametrize("floor", ["sum", "max"])
@pytest.mark.parametrize("exponent", [1, 2])
def test_an_exponent_is_found_behind_an_overhead(exponent, floor):
    n = np.array(SIZES, float)
    work, overhead = 1e-3 * (n / 1024) ** exponent, 5e-4
    values = work + overhead if floor == "sum" else np.maximum(work, overhead)
    for seed in range(20):
        noise = np.random.default_rng(seed).lognormal(0, 0.02, len(n))
        fit = fit_exponent(n, values * noise)
        assert fit.exponent == pytest.approx(exponent, abs=0.12)
        assert fit.kind == floor or exponent == 1
        assert fit.n[0] >= 512 and fit(2048) == pytest.approx(values[3], rel=0.1)


def test_a_pure_power_law_needs_no_overhead():
    fit = fit_exponent(SIZES, [3e-9 * n**2 for n in SIZES])
    assert (fit.exponent, fit.overhead, fit.kind) == (pytest.approx(2), 0, "power")
    assert [slope for _, slope in fit.slopes] == pytest.approx([2] * 6)
    assert "n^2.00" in str(fit)


def test_one_wild_value_hardly_moves_an_exponent():
    for row in range(len(SIZES)):
        values = [1e-9 * n**2 for n in SIZES]
        values[row] *= 8
        assert fit_exponent(SIZES, values).exponent == pytest.approx(2, abs=0.15)


def test_flat_times_have_exponent_zero():
    random = np.random.default_rng(0)
    assert abs(fit_exponent(SIZES, 5e-5 * random.lognormal(0, 0.03, 7)).exponent) < 0.1


def test_bytes_beside_a_large_fixed_cost_have_an_exact_exponent():
    assert fit_exponent(SIZES, [8_519_680 + 512 * n for n in SIZES]).exponent == pytest.approx(1)


@pytest.mark.parametrize(
    "n, seconds, says",
    [
        ([1, 2], [1, 2], "three different sizes"),
        ([1, 2, 3], [1, 2], "3 sizes and 2 values"),
        ([1, 2, 3], [1, 0, 3], "out of memory"),
        ([1, 2, 3], [1, math.nan, 3], "positive"),
    ],
)
def test_a_fit_that_cannot_be_says_why(n, seconds, says):
    with pytest.raises(ValueError, match=says):
        fit_exponent(n, seconds)

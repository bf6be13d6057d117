"""Lab 1: its reference against closed forms and known truths, and what its page claims."""

import json
import random
import statistics
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

from attncourse import lab
from attncourse.checks import engine, registry
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab.audit import audit, passed
from attncourse.lab.receipts import decode
from attncourse.lab.stopwatches import SCENARIOS, accepts
from attncourse.lab.virtual_gpu import Hardware, VirtualGPU
from attncourse.tasks import lab1_time_it_right as checks
from attncourse.tasks import receipts
from attncourse.tasks.lab1_time_it_right import lab1_receipt as of_a_receipt

ROOT = Path(__file__).parent.parent
LAB = "lab1_time_it_right"


def in_time(record):
    return not receipts.not_predicted(record, ("timers",), receipts.is_something)


# --- the reference


@pytest.mark.parametrize("seed", range(6))
def test_the_stopwatch_is_right_in_every_scenario(seed):
    ratios = lab.panel(reference.bench, seed)
    assert all(accepts(scenario, value) for scenario, value in ratios.items()), ratios


def test_without_noise_the_stopwatch_is_right_to_its_tick():
    with VirtualGPU(Hardware(noise=0), reference.bench) as gpu:
        samples = reference.bench(gpu.kernel(1e-3), gpu.flush)
    assert len(samples) >= 20
    assert samples == pytest.approx([1e-3] * len(samples), abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 20, 21, 33])
def test_the_summary_is_numpys(n):
    chance = random.Random(n)
    samples = [chance.lognormvariate(0, 1) for _ in range(n)]
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75])
    assert reference.summarize(samples) == pytest.approx((median, high - low), rel=1e-12)


def test_the_inputs_are_standard_normal_and_nobody_elses():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    tensors = reference.make_inputs(2, 4, 64, 32, seed=5)
    assert torch.equal(torch.rand(3), expected)
    numbers = torch.cat([each.flatten() for each in tensors])
    assert {each.shape for each in tensors} == {(2, 4, 64, 32)}
    assert abs(numbers.mean()) < 0.02 and abs(numbers.std() - 1) < 0.02
    assert all(map(torch.equal, tensors, reference.make_inputs(2, 4, 64, 32, seed=5)))


@pytest.mark.parametrize("mistake", checks.NAMES)
def test_a_mistake_is_named_on_virtual_gpus_that_no_check_uses(mistake):
    for form in range({"earlier work counted": 3, "wrong unit": 4}.get(mistake, 2)):
        for seed in (1001, 1002):  # checks draw below 1000
            assert reference.name_the_mistake(checks.hidden_panel(mistake, form, seed)) == mistake


def test_the_courses_receipt_is_real_and_passes_its_audit():
    text = reference.lab1_receipt()
    record = decode(text)
    assert len("".join(text.split())) <= 4096
    assert passed(audit(record))
    assert record["machine"]["label"] == "CPU, 1 thread"
    assert of_a_receipt.enough(record) and of_a_receipt.roofs_follow(record) and in_time(record)


# --- the judge


@pytest.mark.slow
def test_the_packages_own_stopwatch_is_no_answer():
    report = engine.run("bench", lambda fn, flush: lab.measure(fn, flush=flush).seconds)
    assert report.earned == 0
    assert "attncourse's own stopwatch" in str(report)


def test_no_verdict_asks_a_real_clock(monkeypatch):
    import time

    def broken():
        raise AssertionError("a check looked at a real clock")

    for name in ("bench", "name_the_mistake", "lab1_receipt"):
        task = registry.find(name)
        answer = {"bench": checks.flawed("none", 0)}.get(name, task.reference)
        probes = task.probes(torch.Generator().manual_seed(0))
        with monkeypatch.context() as patch:
            patch.setattr(time, "perf_counter", broken)
            patch.setattr(time, "process_time", broken)
            seen = [task.observe(answer, inputs) for inputs in probes.values()]
        assert not any("real clock" in str(each) for each in seen)


# --- what the page claims


def test_a_timer_that_does_not_wait_shows_the_same_for_ten_times_the_work():
    with VirtualGPU(Hardware(noise=0)) as gpu:
        short, long = (
            statistics.median(checks.flawed("no synchronize", 0)(gpu.kernel(s), gpu.flush))
            for s in (0.5e-3, 5e-3)
        )
    assert long < 1.5 * short < 50e-6


def test_do_bench_is_right_everywhere_with_its_median_and_not_with_its_mean():
    median, mean = (lab.panel(lab.FAMOUS[f"do_bench, {kind}"].timer) for kind in ("median", "mean"))
    assert all(accepts(name, value) for name, value in median.items())
    assert [name for name, value in mean.items() if not accepts(name, value)] == ["outliers"]


@pytest.mark.slow
def test_the_median_of_block_averages_is_a_mean_in_disguise():
    ratios = lab.panel(lab.FAMOUS["torch Timer, blocked"].timer)
    assert ratios["outliers"] > 1.5 and ratios["hot L2"] < 0.7


@pytest.mark.slow
def test_a_counted_flush_may_take_ten_times_the_short_kernel():
    ratios = [
        checks.hidden_panel("earlier work counted", 0, seed)["short kernel"] for seed in range(12)
    ]
    assert min(ratios) > 5 and max(ratios) > 10


@pytest.mark.slow
def test_nine_timers_in_the_notebook_have_nine_names():
    names = run_cells("# attncourse: nine timers", "# attncourse: hold all timers")
    said = [reference.name_the_mistake(ratios) for ratios in names["panels"].values()]
    assert sorted(said[:9]) == sorted(checks.NAMES)
    assert set(SCENARIOS) == set(names["panels"]["A"])


def run_cells(*beginnings) -> dict:
    """The names that some code cells of the solution define, run as in the notebook."""
    import matplotlib.pyplot as plt

    names = {"lab": lab, "torch": torch, "plt": plt, "use": lambda name: reference.bench}
    names["time"] = __import__("time")
    plt.switch_backend("agg")
    for cell in notebook("solutions").cells:
        if cell.source.startswith(beginnings):
            exec(cell.source, names)
    plt.close("all")
    return names


def notebook(folder: str):
    return nbformat.read(ROOT / folder / LAB / f"{LAB}.ipynb", as_version=4)


# --- the notebook


def test_colab_is_asked_for_a_gpu():
    for folder in ("solutions", "exercises"):
        metadata = notebook(folder).metadata
        assert metadata["accelerator"] == "GPU"
        assert metadata["colab"] == {"gpuType": "T4", "provenance": []}


@pytest.mark.slow
@pytest.mark.usefixtures("warm_kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_receipt_from_the_notebook_passes(tmp_path, monkeypatch):
    """Predict, measure, paste: the whole way of a student, with small sizes."""
    monkeypatch.setenv("ATTNCOURSE_QUICK", "1")
    content = notebook("exercises")
    for cell in content.cells:
        if cell.source.startswith("# attncourse: predict"):
            cell.source = cell.source.replace(": None", ": 1")
    NotebookClient(content, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        output.get("text", "")
        for cell in content.cells
        if cell.source.startswith("# attncourse: measure")
        for output in cell.outputs
    )
    record = decode(printed)
    assert of_a_receipt.enough(record) and not receipts.not_predicted(
        record, ("timers",), receipts.is_something
    )
    assert of_a_receipt.roofs_follow(record)
    (file,) = tmp_path.glob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1].partition(" ")[2])["ceilings"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_measured_before_a_prediction(tmp_path, monkeypatch):
    for name in ("ATTNCOURSE_QUICK", "NBGRADER_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    content = notebook("exercises")
    NotebookClient(content, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = json.dumps(content)
    assert "predict first" in text and "RECEIPT = " not in text.split("Nothing is measured yet")[-1]

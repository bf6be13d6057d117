"""The stopwatch of the labs: exact on a virtual GPU, honest about everything that spoils a time."""

import gc
import json
import os
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch

from attncourse import lab
from attncourse.lab import timing
from attncourse.lab.timing import Sample, compare, is_out_of_memory, machine, measure, threads
from attncourse.lab.virtual_gpu import Hardware, VirtualGPU

matplotlib.use("Agg")

HERE = {"device": "cpu", "label": "CPU, 1 thread"}


def sample(seconds, **fields):
    fields = {"clock": "cpu", "machine": HERE} | fields
    return Sample("naive", list(seconds), [0.1 * i for i in range(len(seconds))], **fields)


def computing(gpu, seconds, waiting=0.0):
    """A function of the CPU that computes, and waits for others to leave the processor."""

    def fn():
        gpu.host += seconds + waiting
        gpu.slept += waiting
        return torch.ones(1)

    return fn


# A sample and what it says.


def test_statistics_are_numpys():
    values = np.random.default_rng(0).lognormal(size=31)
    seen = sample(values)
    assert seen.median == pytest.approx(np.median(values))
    assert seen.iqr == pytest.approx(np.subtract(*np.percentile(values, [75, 25])))
    assert seen.best == values.min()


def test_the_headline_is_the_best_of_a_cpu_and_the_median_of_a_gpu():
    assert sample([3, 1, 2]).headline == 1
    assert sample([3, 1, 2], clock="events").headline == 2
    assert sample([3, 1, 2], clock="wall").headline == 2


def test_without_samples_there_is_no_number():
    empty = sample([], error="out of memory")
    assert np.isnan([empty.median, empty.iqr, empty.best, empty.headline]).all()
    assert "out of memory" in str(empty)


def test_the_label_says_where_a_time_is_from():
    assert sample([1], dtype="float32").label == "CPU, 1 thread"
    assert sample([1], dtype="float64").label == "CPU, 1 thread, fp64"
    t4 = {"device": "cuda", "label": "T4"}
    assert sample([1], machine=t4, dtype="float16").label == "T4, fp16"
    assert sample([1], machine=t4, dtype="float32").label == "T4, fp32"
    assert sample([1], machine=t4).label == "T4"


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (1.534e-3, "1.53 ms"), (2e-5, "20 µs"), (0, "0 µs")]
)
def test_seconds_are_printed_with_their_unit(seconds, text):
    assert timing.human(seconds) == text


def test_it_prints_one_line_that_can_be_quoted():
    text = str(sample([0.002] * 20 + [0.003] * 20, dtype="float32"))
    assert text.startswith("naive: 2 ms best of 40 (median 2.5 ms, IQR 1 ms) [CPU, 1 thread]")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seconds": [1.0] * 30 + [1.4] * 10}, "the clock fell"),
        ({"seconds": [1.4] * 10 + [1.0] * 30}, "not warm yet"),
        ({"seconds": [1.0] * 20, "wall_over_cpu": 1.3}, "contended"),
        ({"seconds": [1.0, 2.0] * 20}, "Unsteady"),
        ({"seconds": [0.1] * 7}, "7 samples are few"),
        ({"seconds": [1.0] * 20, "stopped": True}, "Stopped by hand after 20"),
        ({"seconds": [], "error": "out of memory"}, "out of memory"),
        ({"seconds": [1e-4] * 20, "clock": "events", "launch": 2e-4}, "waits for Python"),
        ({"seconds": [5e-6] * 20, "clock": "events"}, "Below 10 µs"),
    ],
)
def test_what_spoils_a_time_is_said_in_words(fields, words):
    (note,) = sample(**fields).notes
    assert words in note
    assert note in str(sample(**fields))


def test_a_clean_sample_has_no_notes():
    assert sample([1.0, 1.05] * 20, wall_over_cpu=1.1).notes == []
    assert sample([5e-6] * 20, clock="events", calls=20).notes == []


def test_a_point_of_a_record_has_the_keys_that_all_labs_use():
    point = sample([1.0, 2.0], dtype="float32", backend="MATH").as_point(n=1024, flops=1e9)
    assert point == {
        "name": "naive",
        "seconds": [1.0, 2.0],
        "clock": "cpu",
        "started": [0.0, 0.1],
        "peak_bytes": None,
        "backend": "MATH",
        "dtype": "float32",
        "flops": 1e9,
        "bytes": None,
        "error": None,
        "wall_over_cpu": 1.0,
        "reference_error": None,
        "n": 1024,
    }
    assert json.loads(json.dumps(point)) == point


def test_a_figure_says_where_its_times_are_from():
    axes = sample([0.001] * 20, dtype="float32").plot()
    assert axes.get_title() == "[CPU, 1 thread]"
    assert axes.get_ylabel() == "milliseconds"
    assert axes.get_legend_handles_labels()[1] == ["naive: 1 ms"]
    sample([0.002] * 20, dtype="float32").plot(axes)
    assert axes.get_title() == "[CPU, 1 thread]"
    sample([], error="out of memory", machine={"device": "cuda", "label": "T4"}).plot(axes)
    assert axes.get_title() == "[CPU, 1 thread] [T4]"
    assert axes.get_legend_handles_labels()[1][-1] == "naive: out of memory"


# Measuring on a GPU whose truth is known.


def test_a_gpu_is_measured_between_events():
    with VirtualGPU() as gpu:
        fn = gpu.kernel(1e-3)
        seen = measure(lambda: fn(), name="kernel", backend="FLASH")
    assert seen.median == pytest.approx(1e-3, rel=0.02)
    assert (seen.clock, seen.device, seen.backend) == ("events", "cuda", "FLASH")
    assert len(seen.seconds) == len(seen.started) == 50
    assert seen.wall_over_cpu == 1.0
    assert seen.machine["capability"] == [8, 0]
    assert seen.label == "Virtual GPU"
    assert seen.notes == []


def test_a_falling_clock_is_noticed():
    with VirtualGPU(Hardware(heat=0.06, drop=1.5)) as gpu:
        seen = measure(gpu.kernel(1e-3))
    assert any("the clock fell" in note for note in seen.notes)


def test_a_falling_clock_is_fair_to_both():
    with VirtualGPU(Hardware(heat=0.11, drop=1.5)) as gpu:
        one, other = gpu.kernel(1e-3), gpu.kernel(2e-3)
        seen = compare({"one": one, "other": other})
    assert seen["other"].median / seen["one"].median == pytest.approx(2, rel=0.05)


def test_a_kernel_shorter_than_its_launch_is_noticed():
    with VirtualGPU(Hardware(launch=5e-5)) as gpu:
        seen = measure(gpu.kernel(2e-5))
    assert seen.launch > 4e-5
    assert any("waits for Python" in note for note in seen.notes)


def test_several_calls_make_one_sample_of_a_short_kernel():
    with VirtualGPU() as gpu:
        fn = gpu.kernel(6e-6)
        assert any("calls=20" in note for note in measure(fn).notes)
        seen = measure(fn, calls=20)
    assert seen.median == pytest.approx(6e-6, rel=0.1)
    assert seen.calls == 20
    assert not any("calls=20" in note for note in seen.notes)


def fake_nvidia_smi(folder, monkeypatch, text):
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_clocks_and_power_are_recorded(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, "1590, 68.31, 70.00, 61")
    with VirtualGPU() as gpu:
        seen = measure(gpu.kernel(1e-3))
    says = {
        "sm_megahertz": 1590,
        "power_watts": 68.31,
        "power_limit_watts": 70,
        "celsius": 61,
    }
    assert seen.clocks == {"before": says, "after": says}


@pytest.mark.parametrize("text", ["1590, [N/A], [N/A], 61", "", "No devices were found"])
def test_what_nvidia_smi_does_not_know_is_left_out(tmp_path, monkeypatch, text):
    fake_nvidia_smi(tmp_path, monkeypatch, text)
    with VirtualGPU() as gpu:
        clocks = measure(gpu.kernel(1e-3)).clocks
    assert clocks is None or clocks["before"]["power_watts"] is None


def test_a_gpu_with_little_power_is_warmed_up_for_a_second(tmp_path, monkeypatch):
    def calls(text):
        fake_nvidia_smi(tmp_path, monkeypatch, text)
        with VirtualGPU() as gpu:
            measure(gpu.kernel(10e-3), samples=20)
            return gpu.calls

    assert 20 + 95 < calls("1590, 30, 70.00, 61") < 20 + 105
    assert calls("1590, 30, 400.00, 61") == 20 + 1 + 3


# What may happen on the way.


@pytest.mark.slow
def test_running_out_of_memory_is_a_result_and_the_others_go_on():
    with VirtualGPU() as gpu:
        fn, calls = gpu.kernel(1e-3), []

        def large():
            calls.append(1)
            if len(calls) > 40:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32 GiB")
            fn()

        def too_large():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")

        seen = compare({"fits": fn, "large": large, "too large": too_large}, device="cuda")
    assert [each.error for each in seen.values()] == [None, "out of memory", "out of memory"]
    assert len(seen["fits"].seconds) == 50
    assert seen["large"].seconds == seen["too large"].seconds == []
    assert seen["large"].as_point(n=1)["error"] == "out of memory"


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, answer):
    assert is_out_of_memory(error) is answer


@pytest.mark.slow
def test_a_real_allocation_that_cannot_be():
    seen = measure(lambda: torch.empty(2**60), name="huge")
    assert seen.error == "out of memory" and seen.seconds == []


def test_other_errors_come_through_and_nothing_stays_changed():
    torch_threads = torch.get_num_threads()
    with threads(2):
        with pytest.raises(ZeroDivisionError):
            measure(lambda: 1 / 0)
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == torch_threads
    assert gc.isenabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("call", [1, 2, 30])
def test_ctrl_c_keeps_every_sample(call):
    with VirtualGPU() as gpu:
        fn, calls = gpu.kernel(10e-3), []

        def interrupted():
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt
            fn()

        seen = compare({"first": fn, "second": interrupted})
    assert seen["first"].stopped and seen["second"].stopped
    taken = max(0, call - 1 - 4)  # four calls warm it up
    assert len(seen["second"].seconds) == len(seen["second"].started) == taken
    assert len(seen["first"].seconds) == (taken + 1 if taken else 0)
    assert f"Stopped by hand after {taken} samples." in seen["second"].notes


def test_it_stops_when_patience_ends_but_never_before_20():
    with VirtualGPU() as gpu:
        both = compare({"a": gpu.kernel(0.4), "b": gpu.kernel(0.4)}, samples=30)
        assert [len(sample.seconds) for sample in both.values()] == [20, 20]
        assert 24 <= len(measure(gpu.kernel(0.4), samples=30).seconds) <= 27


def test_where_a_call_takes_half_a_second_five_samples_are_enough_and_two_calls_warm_it_up():
    calls = []
    with VirtualGPU() as gpu:
        slow = gpu.kernel(3)
        fns = {
            "slow": lambda: calls.append(slow()),
            "half": gpu.kernel(0.6),
            "1 ms": gpu.kernel(0.001),
        }
        seen = compare(fns, samples=30)
    assert {name: len(sample.seconds) for name, sample in seen.items()} == {
        "slow": 5,
        "half": 5,
        "1 ms": 20,
    }
    assert len(calls) == 2 + 5
    assert not any("samples are few" in note for note in seen["slow"].notes)


def test_functions_take_turns():
    order = []
    fns = {name: lambda name=name: order.append(name) for name in "abc"}
    with VirtualGPU():
        seen = compare(fns, samples=20)
    assert "".join(order[-60:]) == "abc" * 20
    starts = [seen[name].started[i] for i in range(20) for name in "abc"]
    assert starts == sorted(starts)


@pytest.mark.parametrize(("grad", "inference"), [(False, True), (True, False)])
def test_gradients_are_off_unless_asked_for(grad, inference):
    seen = []
    measure(lambda: seen.append(torch.is_inference_mode_enabled()), samples=1, grad=grad)
    assert set(seen) == {inference}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="nothing to time"):
        compare({})
    with pytest.raises(ValueError, match="start at 1"):
        measure(lambda: None, samples=0)
    with pytest.raises(ValueError, match="cpu and meta"):
        compare({"a": lambda: torch.ones(1), "b": lambda: torch.ones(1, device="meta")})
    with pytest.raises(ValueError, match="knows cpu and cuda"):
        measure(lambda: [{"x": torch.ones(1, device="meta")}])


# Measuring on a CPU.


def test_a_cpu_is_measured_in_processor_time():
    with VirtualGPU() as gpu:
        seen = measure(computing(gpu, 1e-3, waiting=2e-3))
    assert seen.clock == "cpu" and seen.dtype == "float32" and seen.label == "CPU, 1 thread"
    assert seen.headline == pytest.approx(1e-3, rel=1e-3)
    assert seen.wall_over_cpu == pytest.approx(3, rel=1e-2)
    assert any("contended" in note for note in seen.notes)


def test_several_threads_are_measured_on_the_wall():
    with VirtualGPU() as gpu:
        seen = measure(computing(gpu, 1e-3, waiting=1e-4), threads=2)
    assert seen.clock == "wall" and seen.label == "CPU, 2 threads"
    assert seen.headline == pytest.approx(1.1e-3, rel=1e-2)


def test_a_real_product_of_matrices():
    a = torch.randn(64, 64)
    seen = measure(lambda: (a @ a, None), name="product", samples=20)
    assert (seen.clock, seen.dtype, seen.machine["threads"]) == ("cpu", "float32", 1)
    assert len(seen.seconds) == 20 and 0 < seen.best <= seen.median
    assert seen.launch is None and seen.clocks is None
    assert seen.started == sorted(seen.started)


def test_torch_works_on_one_thread_meanwhile_and_garbage_waits():
    seen = []
    with threads(2):
        measure(lambda: seen.append((torch.get_num_threads(), gc.isenabled())), samples=1)
        assert torch.get_num_threads() == 2
    assert set(seen) == {(1, False)}


def test_a_name_comes_from_the_function():
    def naive():
        return torch.ones(1)

    assert measure(naive, samples=1).name == "naive"
    assert measure(torch.nn.Identity().train, samples=1).name == "train"


# The machine, and the first cell.

KEYS = "device name capability memory_bytes l2_bytes threads torch python cuda label ceilings"


def test_a_machine_is_plain_data():
    here = machine("cpu")
    assert list(here) == [*KEYS.split(), "precision"]
    assert json.loads(json.dumps(here)) == here
    assert (here["label"], here["threads"]) == ("CPU, 1 thread", 1)
    assert machine("cpu", threads=4)["label"] == "CPU, 4 threads"
    assert here["name"] and here["memory_bytes"] > 2**28
    with VirtualGPU():
        assert list(machine()) == [*KEYS.split(), "precision"]
        assert (machine()["device"], machine()["capability"]) == ("cuda", [8, 0])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_gpu_has_a_short_name(name, label, monkeypatch):
    with VirtualGPU():
        properties = torch.cuda.get_device_properties(0)
        properties.name = name
        assert machine()["label"] == label


def test_start_says_what_it_runs_on(capsys, monkeypatch):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    timing.start("lab1_time_it_right")
    first = capsys.readouterr().out
    timing.start("lab1_time_it_right")
    assert capsys.readouterr().out == first
    for words in ("lab1", "[CPU, 1 thread]", torch.__version__, "T4 GPU", "same points"):
        assert words in first


def test_start_knows_which_half_precision_a_gpu_has(capsys, monkeypatch):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    with VirtualGPU():
        timing.start("lab1")
        assert "Use float16 or bfloat16." in capsys.readouterr().out
        properties = torch.cuda.get_device_properties(0)
        properties.name, properties.major, properties.minor = "Tesla T4", 7, 5
        timing.start("lab1")
        said = capsys.readouterr().out
    assert "[T4]" in said and "7.5" in said and "only emulates bfloat16" in said
    assert "quota" not in said


def test_start_is_silent_under_a_grader(capsys, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    timing.start("lab1")
    assert capsys.readouterr() == ("", "")


def test_no_bar_where_nobody_watches(capsys):
    with VirtualGPU() as gpu:
        measure(gpu.kernel(1.0))
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_lab_loads_nothing_until_it_is_used():
    code = (
        "import sys; from attncourse import lab; loaded = set(sys.modules); "
        "assert not any(n.startswith('attncourse.lab.') for n in loaded), loaded; "
        "lab.measure; assert 'attncourse.lab.timing' in sys.modules; "
        "heavy = {'matplotlib', 'triton', 'nbgrader', 'IPython'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_lab_is_there():
    for name in dir(lab):
        assert getattr(lab, name) is not None
    with pytest.raises(AttributeError, match="no 'stopwatch'"):
        _ = lab.stopwatch
    assert lab.measure is measure and lab.timing is timing

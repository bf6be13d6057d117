"""Lab 4's promises: its counts are the meter's, its receipt is real, its claims hold."""

import math
import statistics

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attncourse import lab
from attncourse.checks import registry, run
from attncourse.checks.task import answer_of
from attncourse.lab import lab4_sequential_or_parallel as course
from attncourse.tasks.lab4_sequential_or_parallel.longest_chain import (
    attending,
    recurrent,
    scattered,
    tree,
)
from attncourse.tasks.lab4_sequential_or_parallel.operators import MODELS, _Runs, real
from attncourse.tasks.lab4_sequential_or_parallel.verdict import RECORDS, a_record

STEM = "lab4_sequential_or_parallel"
TASKS = [task.name for task in registry.of_chapter(STEM)]


@pytest.fixture(scope="module")
def record():
    return lab.receipts.decode(course.lab4_receipt())


def times(record, name, b):
    """n -> seconds."""
    points = [p for p in record["points"] if (p["name"], p["b"]) == (name, b)]
    return {p["n"]: statistics.median(p["seconds"]) for p in points}


def same_weights(fused, cell):
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in fused.state_dict().items()})
    return fused.requires_grad_(False), cell.requires_grad_(False)


# --- the reference


@pytest.mark.parametrize(("whole", "step"), [(nn.GRU, nn.GRUCell), (nn.RNN, nn.RNNCell)])
def test_the_loop_gives_the_states_of_the_fused_layer(whole, step):
    options = {"dtype": torch.float64}
    fused, cell = same_weights(whole(5, 5, batch_first=True, **options), step(5, 5, **options))
    inputs, state = torch.randn(3, 7, 5, **options), torch.randn(3, 5, **options)
    theirs, _ = fused(inputs, state[None])
    torch.testing.assert_close(course.step_loop(cell, inputs, state), theirs)


def test_a_count_is_a_straight_line():
    cell, state = nn.RNNCell(4, 4), torch.zeros(1, 4)
    inputs = torch.randn(1, 64, 4)

    def model(n):
        return course.step_loop(cell, inputs[:, :n], state)

    with torch.inference_mode():
        fixed, per_position = course.operators(model)
        for n in (1, 5, 64):
            assert lab.count(model, n).total == fixed + per_position * n


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_recurrent_layers_overlap_and_attention_is_as_deep_as_it_has_layers(layers, n):
    assert course.longest_chain(recurrent(layers, n)) == n + layers - 1
    assert course.longest_chain(attending(layers, n)) == layers


@pytest.mark.parametrize(("b", "n", "d"), [(1, 7, 3), (3, 16, 16), (2, 5, 40)])
def test_the_work_is_what_torch_counts(b, n, d):
    x, state = torch.randn(b, n, d), torch.zeros(b, d)
    w = torch.randn(d, d)

    def attention():
        q, k, v = x @ w, x @ w, x @ w
        return torch.softmax(q @ k.mT, -1) @ v @ w

    for layer, model in (
        ("rnn", lambda: course.step_loop(nn.RNNCell(d, d), x, state)),
        ("gru", lambda: course.step_loop(nn.GRUCell(d, d), x, state)),
        ("attention", attention),
    ):
        with FlopCounterMode(display=False) as counter:
            model()
        assert counter.get_total_flops() == 2 * course.multiplications(layer, b, n, d)


@pytest.mark.parametrize("kind", RECORDS)
def test_the_conclusions_are_the_truth_of_made_up_records(kind):
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        record, truth = a_record(rng, **RECORDS[kind])
        found = course.verdict(record)
        for name in ("always_faster", "crossover_1", "crossover_8", "held"):
            assert (found[name] or 0) == truth[name]
        for name in ("batch_loop", "batch_attention"):
            assert math.isclose(found[name], truth[name], rel_tol=0.04)


def test_the_made_up_records_tell_all_conclusions_apart():
    rng = torch.Generator().manual_seed(0)
    truths = [a_record(rng, **how)[1] for how in RECORDS.values()]
    for name in ("always_faster", "held"):
        assert {truth[name] for truth in truths} == {True, False}
    assert len({truth["crossover_8"] for truth in truths}) >= 4


# --- the receipt measured here


def test_its_results_are_those_of_float64(record):
    assert max(point["reference_error"] for point in record["points"]) < 1e-4


# --- what the page says, and a sceptic would doubt


def test_the_record_refutes_that_attention_is_always_faster(record):
    own = course.verdict(record)
    assert not own["always_faster"]
    assert own["crossover_8"] == 1024 and not own["held"]
    assert times(record, "attention", 8)[2048] > 2 * times(record, "fused", 8)[2048]
    assert times(record, "attention", 8)[2048] > times(record, "loop", 8)[2048]
    assert times(record, "attention", 1)[128] < times(record, "fused", 1)[128] / 3


def test_with_one_sentence_the_two_are_nearly_even_at_the_end(record):
    ours, theirs = times(record, "attention", 1)[2048], times(record, "fused", 1)[2048]
    assert ours < theirs < 1.05 * ours


def test_eight_sentences_cost_attention_eight_times_and_the_loop_far_less(record):
    own = course.verdict(record)
    assert own["batch_loop"] < 3 < 7 < own["batch_attention"] < 10


def test_a_multiplication_costs_more_in_small_steps(record):
    def price(name, b, n):
        layer = "attention" if name == "attention" else "gru"
        return times(record, name, b)[n] / course.multiplications(layer, b, n, 128)

    assert price("loop", 1, 128) > 1.5 * price("fused", 1, 128) > 4 * price("attention", 1, 128)
    assert price("fused", 1, 128) > 2 * price("fused", 8, 2048) > 2 * price("attention", 8, 2048)


def test_on_a_cpu_the_fused_gru_is_a_loop_with_the_products_of_the_inputs_taken_out():
    fused, cell = same_weights(nn.GRU(8, 8, batch_first=True), nn.GRUCell(8, 8))
    inputs, state = torch.randn(1, 32, 8), torch.zeros(1, 8)
    with torch.inference_mode():
        loop = lab.count(course.step_loop, cell, inputs, state).operations
        whole = lab.count(fused, inputs).operations
        _, per_position = course.operators(lambda n: fused(inputs[:, :n]))
    products = [sum(count for name, count in c.items() if "mm" in name) for c in (loop, whole)]
    assert products == [2 * 32, 32 + 1]
    assert per_position > 1


def test_attention_takes_the_same_few_operators_whatever_n():
    for model in MODELS:
        _, per_position = course.operators(_Runs(**real(model)))
        assert (per_position == 0) == (model == "attention")


def test_no_schedule_beats_depth_or_work_and_a_busy_one_takes_at_most_their_sum():
    def rounds(needs, workers):
        done, count = set(), 0
        while len(done) < len(needs):
            ready = [s for s in needs if s not in done and done.issuperset(needs[s])]
            done.update(ready[:workers])
            count += 1
        return count

    rng = torch.Generator().manual_seed(1)
    graphs = [scattered(rng, 30) for _ in range(20)]
    for needs in (*graphs, recurrent(2, 8), attending(2, 8), tree(16)):
        depth, work = course.longest_chain(needs), len(needs)
        for workers in (1, 2, 3, 8):
            taken = rounds(needs, workers)
            assert max(depth, work / workers) <= taken <= depth + work / workers
    assert [rounds(recurrent(2, 8), p) for p in (1, 2, 8)] == [16, 9, 9]
    assert [rounds(attending(2, 8), p) for p in (1, 2, 8)] == [16, 8, 2]


def test_a_linear_recurrence_needs_only_log_n_rounds():
    decay, inputs = torch.rand(100, dtype=torch.float64), torch.randn(100, dtype=torch.float64)
    h, states = torch.zeros((), dtype=torch.float64), []
    for a, x in zip(decay, inputs, strict=True):
        h = a * h + x
        states.append(h)
    # Position t holds what steps t − reach + 1 to t do together: h -> a·h + x.
    a, x, reach, rounds = decay, inputs, 1, 0
    while reach < 100:
        a_before = torch.cat([torch.ones(reach, dtype=a.dtype), a[:-reach]])
        x_before = torch.cat([torch.zeros(reach, dtype=x.dtype), x[:-reach]])
        a, x = a * a_before, a * x_before + x
        reach, rounds = 2 * reach, rounds + 1
    torch.testing.assert_close(x, torch.stack(states))
    assert rounds == math.ceil(math.log2(100))


# --- the judge


def test_starts_that_were_rounded_to_the_same_millisecond_are_no_overlap():
    points = []
    for name, first, seconds in (("loop", 0.0, 4.3e-3), ("fused", 4.4e-3, 2e-3)):
        points.append({"name": name, "n": 128, "first": first, "seconds": seconds})
    points.append({"name": "attention", "n": 128, "first": 6.5e-3, "seconds": 4e-4})
    for point in points:
        first, seconds = point.pop("first"), point["seconds"]
        point["started"] = [round(2 + first + 6.95e-3 * i, 3) for i in range(20)]
        point["seconds"] = [seconds * (1 + 0.01 * math.sin(7 * i + seconds)) for i in range(20)]
        point |= {"dtype": "float32", "clock": "cpu", "error": None, "b": 1}
    machine = {"device": "cpu", "label": "CPU, 1 thread", "threads": 1}
    record = {"lab": STEM, "machine": machine, "predictions": {}, "points": points}
    assert lab.audit.passed(lab.audit.audit(record))


def test_a_cell_that_is_called_with_the_wrong_axes_says_so():
    report = run("step_loop", lambda cell, inputs, state: cell(inputs, state))
    assert "the cell expects input with the axes (b d)" in " ".join(str(report).split())
    assert report.diagnosis.id is None


def wrong(id):
    found = [f for task in registry.of_chapter(STEM) for f in task.faults.values() if f.id == id]
    return answer_of(registry.find(found[0].task), found[0].forms[0])


def messages(task, answer):
    """What the failed checks say."""
    return [result.message for result in run(task, answer).results if not result.passed]


def test_the_receipt_of_another_lab_is_told_that_and_nothing_else():
    report = run("lab4_receipt", wrong("L4-OTHER-LAB"))
    assert report.earned == 1
    (said,) = set(messages("lab4_receipt", wrong("L4-OTHER-LAB")))
    assert "lab2_quadratic_wall" in said


def test_a_loop_that_never_calls_the_cell_is_told_a_whole_sentence():
    said = " ".join(messages("step_loop", lambda cell, inputs, state: torch.zeros_like(inputs)))
    assert "calls the cell 0 times. It should be called once" in said


def test_a_loop_that_gives_the_cell_no_position_is_told_so():
    def step_loop(cell, inputs, state):
        return cell(torch.zeros_like(state), state)[:, None].expand_as(inputs)

    said = " ".join(messages("step_loop", step_loop))
    assert "1 time, with something that is no position of the input. It should" in said


def test_a_wrong_shape_is_no_matter_of_gradients():
    assert not any("gradient" in said for said in messages("step_loop", wrong("L4-STACK-AXIS")))


def test_what_held_is_said_in_words():
    said = " ".join(messages("verdict", wrong("L4-NEVER-HELD")))
    assert "the prediction held: True. Your function says False." in said

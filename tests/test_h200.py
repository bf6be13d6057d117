"""The labs' records from a GPU: real, whole, and what the pages say of them."""

import statistics

import pytest

from attncourse import lab
from attncourse.lab import (
    h200,
    lab2_quadratic_wall,
    lab3_who_computed_it,
    lab4_sequential_or_parallel,
    lab5_decode_bandwidth,
    lab6_write_flash,
)
from attncourse.lab.audit import audit, passed
from attncourse.lab.receipts import decode
from attncourse.tasks.lab1_time_it_right import lab1_receipt as task

LABS = (
    "lab1_time_it_right",
    "lab2_quadratic_wall",
    "lab3_who_computed_it",
    "lab4_sequential_or_parallel",
    "lab5_decode_bandwidth",
    "lab6_write_flash",
)


def median(of_lab: str, **where) -> float:
    """Of the one point of a lab's record with these values, in seconds."""
    (point,) = [p for p in h200.record(of_lab)["points"] if where.items() <= p.items()]
    return statistics.median(point["seconds"])


@pytest.mark.parametrize("name", LABS)
def test_a_record_was_made_on_one_gpu_and_the_audit_finds_it_possible(name):
    record = h200.record(name)
    assert record["lab"] == name and record["machine"]["name"] == "NVIDIA H200"
    assert record["predictions"], "predicted first"
    assert passed(audit(record))
    assert {point["clock"] for point in record["points"]} == {"events"}
    assert record["machine"]["torch"] in h200.where()


def test_storing_again_what_a_folder_holds_gives_the_same_receipts(tmp_path, monkeypatch):
    monkeypatch.setattr(h200, "STORED", tmp_path / "h200.json")
    monkeypatch.setattr(h200, "_stored", h200._stored.__wrapped__)
    recorder = lab.Recorder("lab1_time_it_right", tmp_path / "nb", machine=lab.machine())
    recorder.predict("timers", [0])
    recorder.add({"name": "copy", "n": 8, "seconds": [1.0] * 20, "bytes": 16, "clock": "cpu"})
    h200.main(tmp_path)
    assert h200.record("lab1_time_it_right")["points"][0]["seconds"] == [1.0] * 20


def test_lab1_the_roof_is_that_of_the_large_product():
    assert task.enough(h200.record(LABS[0]))
    small = 1024**3 / median(LABS[0], n=1024)
    assert small < 0.5 * 4096**3 / median(LABS[0], n=4096)


def test_lab2_the_exponents_agree_the_wall_is_where_arithmetic_puts_it_and_there_is_no_step():
    record = h200.record(LABS[1])
    own = lab2_quadratic_wall.conclude(record)
    cpu = lab2_quadratic_wall.conclude(decode(lab2_quadratic_wall.lab2_receipt()))
    for key in ("time_exponent", "memory_exponent"):
        assert own[key] == pytest.approx(cpu[key], abs=0.03)
    wall = lab2_quadratic_wall.largest_n(record["machine"]["memory_bytes"], 1, 16, 64, 2)
    assert own["wall"] == pytest.approx(wall, rel=0.02)

    def steepest(record, of):
        time = {p["n"]: of(p["seconds"]) for p in record["points"] if p["name"] == "naive"}
        return max(slope for _, slope in lab.fit_exponent([*time], [*time.values()]).slopes)

    there = steepest(record, statistics.median)
    assert there < 2.3 < 3 < steepest(decode(lab2_quadratic_wall.lab2_receipt()), min)


def test_lab3_torchs_rules_foretold_who_computed_it():
    record = h200.record(LABS[2])
    plain = {
        **{"dtype": "float16", "d": 64, "axes": 4, "last_stride": 1, "mask": False},
        **{"dropout": 0.0, "causal": False, "queries": 1024, "keys": 1024},
        **{"heads": 8, "kv_heads": 8},
    }
    changes = {
        **{"plain": {}, "mask": {"mask": True}, "dropout": {"dropout": 0.1}},
        **{"three axes": {"axes": 3}, "strided key": {"last_stride": 1024}},
        **{"grouped heads": {"kv_heads": 2}, "bfloat16": {"dtype": "bfloat16"}},
    }
    seen = {p["call"]: p["backend"] for p in record["points"] if p["name"] == "call"}
    ruled = {
        call: lab3_who_computed_it.backends_for((9, 0), plain | change)[0]
        for call, change in changes.items()
    }
    assert seen == ruled
    own = lab3_who_computed_it.who_computed_it(record)
    assert own["fell_back"] == ["strided key", "three axes"] and own["naive_bound"] == "memory"


def test_lab4_attention_is_always_ahead_and_one_sentence_does_not_fill_the_gpu():
    own = lab4_sequential_or_parallel.verdict(h200.record(LABS[3]))
    assert own["always_faster"] and own["crossover_1"] is own["crossover_8"] is None
    assert own["batch_attention"] < 2
    cpu = lab4_sequential_or_parallel.verdict(decode(lab4_sequential_or_parallel.lab4_receipt()))
    assert 7 < cpu["batch_attention"] < 9 and not cpu["always_faster"]


def test_lab5_mha_reads_as_a_copy_does_and_mqa_gains_far_less_than_its_bytes():
    own = lab5_decode_bandwidth.conclude_decode(h200.record(LABS[4]))
    assert own["share"] > 0.9 and not own["computes"]
    assert own["speed_up"] < own["ideal"] / 4
    cpu = lab5_decode_bandwidth.conclude_decode(decode(lab5_decode_bandwidth.lab5_receipt()))
    assert own["speed_up"] < cpu["speed_up"] and cpu["computes"]
    times = {name: median(LABS[4], name=name, n=8192) for name in ("expanded", "GQA-8")}
    assert times["expanded"] > 1.2 * 9 * times["GQA-8"]


def test_lab6_the_largest_tile_is_the_best_and_a_small_tile_costs_the_same_whatever_its_size():
    own = lab6_write_flash.best_tile(h200.record(LABS[5]))
    assert own["tile"] == 4096 and not own["u_shaped"]
    each = [median(LABS[5], n=8192, tile=tile) * (tile / 8192) ** 2 for tile in (64, 128, 256, 512)]
    assert max(each) < 1.15 * min(each)


def test_lab6_the_slow_points_have_fewer_samples_and_all_others_twenty():
    points = h200.record(LABS[5])["points"]
    few = {(p["n"], p.get("tile")) for p in points if len(p["seconds"]) < 20}
    slow = {(p["n"], p.get("tile")) for p in points if min(p["seconds"]) >= 0.5}
    assert few and few <= slow

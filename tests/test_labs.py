"""Every lab's promises: its notebook asks for a GPU, its receipt is real and is judged fairly."""

import json

import pytest
from conftest import ROOT

from attncourse import lab
from attncourse.checks import registry, run

LABS = sorted(path.name for path in (ROOT / "solutions").glob("lab*"))

POINTS = {  # a term's totals stand on them
    "lab2_quadratic_wall": {
        "naive_attention": 8, "peak_bytes": 6, "largest_n": 7,
        "fit_growth": 10, "lab2_receipt": 12, "conclude": 11,
    },
    "lab3_who_computed_it": {
        "which_backend": 12, "backends_for": 13, "attention_work": 9, "roof_over": 6,
        "sees_future": 13, "lab3_receipt": 13, "who_computed_it": 12,
    },
    "lab4_sequential_or_parallel": {
        "step_loop": 9, "operators": 7, "longest_chain": 9,
        "multiplications": 8, "lab4_receipt": 12, "verdict": 12,
    },
    "lab5_decode_bandwidth": {
        "cache_bytes": 4, "append_to_cache": 10, "decode_step": 14,
        "tokens_per_second": 5, "lab5_receipt": 16, "conclude_decode": 12,
    },
}  # fmt: skip


def receipt_of(stem: str) -> tuple[str, str]:
    """The receipt's task, and the course's own answer."""
    name = f"{stem.partition('_')[0]}_receipt"
    return name, registry.find(name).reference()


@pytest.mark.parametrize("stem", LABS)
def test_it_asks_colab_for_a_gpu(stem):
    for folder in ("solutions", "exercises"):
        path = ROOT / folder / stem / f"{stem}.ipynb"
        metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
        assert metadata["accelerator"] == "GPU"
        assert metadata["colab"] == {"gpuType": "T4", "provenance": []}


@pytest.mark.parametrize("stem", LABS)
def test_the_courses_receipt_passes_the_audit_and_says_where_it_is_from(stem):
    _, receipt = receipt_of(stem)
    record = lab.receipts.decode(receipt)
    assert lab.audit.passed(lab.audit.audit(record))
    assert record["lab"] == stem and record["machine"]["label"] == "CPU, 1 thread"
    assert len("".join(receipt.split())) <= 4096


@pytest.mark.parametrize("stem", LABS)
def test_a_busy_machine_loses_no_points(stem):
    name, receipt = receipt_of(stem)
    record = lab.receipts.decode(receipt)
    for point in record["points"]:
        point["wall_over_cpu"] = 4.0
    busy = lab.receipts.encode(record)
    assert run(name, lambda: receipt).passed
    assert run(name, lambda: busy).passed


@pytest.mark.parametrize("stem", LABS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("attn1:", "damaged"),
        ("hello", "no receipt here"),
        ("", "empty"),
        ("attn9:12:12345678:abc", "version 9"),
    ],
)
def test_every_exception_of_a_receipt_is_a_sentence(stem, text, said):
    report = run(receipt_of(stem)[0], lambda: text)
    assert report.earned == 0 and said in str(report)


@pytest.mark.parametrize("stem", POINTS)
def test_points_are_as_the_term_counts_them(stem):
    assert {task.name: task.points for task in registry.of_chapter(stem)} == POINTS[stem]

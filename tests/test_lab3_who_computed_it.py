"""Lab 3's promises: its rules are torch's, its counts the meter's, its claims hold."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from corpus.correct import CORRECT
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attncourse import lab
from attncourse.checks import registry, run
from attncourse.lab import lab2_quadratic_wall, roofline
from attncourse.lab import lab3_who_computed_it as course
from attncourse.tasks.lab3_who_computed_it.backends_for import DEVICES, PLAIN
from attncourse.tasks.lab3_who_computed_it.roof_over import ROOF
from attncourse.tasks.lab3_who_computed_it.sees_future import (
    KINDS,
    a_function,
    layer_of_torch,
    perturbed,
    question,
)
from attncourse.tasks.lab3_who_computed_it.which_backend import (
    CASES,
    FALLBACKS,
    FLASHES,
    ON_GPUS,
    PROJECTED,
    watched,
)
from attncourse.tasks.lab3_who_computed_it.who_computed_it import FURTHER, RECORDS, a_record

STEM = "lab3_who_computed_it"
TASKS = [task.name for task in registry.of_chapter(STEM)]


@pytest.fixture(scope="module")
def record():
    return lab.receipts.decode(course.lab3_receipt())


# --- the reference


@pytest.mark.parametrize("name", CASES | PROJECTED)
def test_the_detective_agrees_with_the_packages(name):
    case = (CASES | PROJECTED)[name]
    with torch.set_grad_enabled(case.get("grad", True)):
        fn = watched(case)
        # Of two, the package names both: "NAIVE+FLASH".
        assert course.which_backend(fn) == (lab.backend_of(fn) or "NONE").split("+")[-1]


def test_every_case_is_what_its_group_says():
    """On this torch; another may differ, and the judge asks the one it runs on."""
    for cases, expected in ((FLASHES, "FLASH"), (FALLBACKS, "MATH")):
        for name, case in cases.items():
            assert course.which_backend(watched(case)) == expected, name
    for name, case in ON_GPUS.items():
        assert course.which_backend(watched(case)) == name.split()[0]


def as_a_call(call):
    """The arguments of torch's function that a call of the lab describes."""
    layout = "h n d" if call["axes"] == 3 else "b h n d" if call["last_stride"] == 1 else "b h d n"
    made = lab.sdpa_call(
        call["dtype"],
        h=call["heads"],
        kv_heads=call["kv_heads"],
        n=call["queries"],
        n_keys=call["keys"],
        d=call["d"],
        mask="bool" if call["mask"] else None,
        is_causal=call["causal"] and not call["mask"],
        dropout=call["dropout"],
        layout=layout,
    )
    return made


@pytest.mark.parametrize("capability", DEVICES, ids=str)
def test_the_rules_are_those_of_torch(capability):
    grid = itertools.product(
        ("float16", "bfloat16", "float32", "float64"),
        (16, 30, 60, 64, 128, 136, 256, 320),
        (
            *({}, {"mask": True}, {"dropout": 0.25}, {"kv_heads": 2}, {"axes": 3}),
            *({"last_stride": 64}, {"causal": True}, {"queries": 64}),
            {"causal": True, "queries": 64},
        ),
    )
    for dtype, d, unlike in grid:
        call = PLAIN | {"queries": 128, "keys": 128, "dtype": dtype, "d": d} | unlike
        verdicts = lab.may_run(capability, **as_a_call(call), torch_version="2.11.0")
        names = [verdict.backend for verdict in verdicts if verdict.runs]
        # What comes after MATH runs only on request.
        expected = names[: names.index("MATH") + 1]
        assert course.backends_for(capability, call) == expected, call


def test_the_rules_of_the_cpu_are_what_the_trace_shows():
    for unlike in ({}, {"mask": True}, {"dropout": 0.25}, {"kv_heads": 2}, {"axes": 3}):
        call = PLAIN | {"queries": 16, "keys": 16, "dtype": "float32", "d": 8} | unlike
        arguments = {
            key: torch.zeros_like(value, device="cpu") if torch.is_tensor(value) else value
            for key, value in as_a_call(call).items()
        }
        seen = course.which_backend(lambda a=arguments: F.scaled_dot_product_attention(**a))
        assert seen == course.backends_for("cpu", call)[0], unlike


@pytest.mark.parametrize("sizes", [(1, 1, 4, 2), (2, 3, 40, 8), (1, 2, 64, 64), (3, 1, 5, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_naive_bytes_are_what_the_meter_counts(sizes, dtype):
    def naive(q, k, v):
        return torch.softmax(q @ k.mT / math.sqrt(sizes[-1]), dim=-1) @ v

    counts = lab.count(naive, *(torch.randn(*sizes, dtype=dtype) for _ in "qkv"))
    work = course.attention_work(*sizes, dtype.itemsize, causal=False, backward=False)
    assert work["naive_bytes"] == counts.moved_bytes


def test_the_work_is_that_of_the_packages_formulas():
    for causal, backward, width in itertools.product((True, False), (True, False), (2, 4)):
        work = course.attention_work(2, 3, 50, 7, width, causal, backward)
        assert work["flops"] == roofline.attention_flops(2, 3, 50, 7, None, causal, backward)
        assert work["naive_bytes"] == roofline.naive_bytes(2, 3, 50, 7, element_bytes=width)
        assert work["fused_bytes"] == roofline.fused_bytes(2, 3, 50, 7, element_bytes=width)


def test_the_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    q = torch.randn(2, 3, 32, 8)
    with FlopCounterMode(display=False) as counter:
        torch.softmax(q @ q.mT, dim=-1) @ q
    work = course.attention_work(2, 3, 32, 8, 4, causal=False, backward=False)
    assert work["flops"] == counter.get_total_flops()


def test_the_roof_is_that_of_the_package():
    sheet = roofline.DATASHEETS["A100-80"]
    peak, bandwidth = sheet["flops_per_second"]["float16"], sheet["bytes_per_second"]
    for flops in (1e9, 1e11, 1e13):
        there = course.roof_over(flops, 1e9, peak, bandwidth)
        assert there["roof"] == roofline.attainable(sheet, flops, 1e9)
        assert there["ridge"] == roofline.ridge(sheet)
        assert (there["bound"] == "compute") == (there["roof"] == peak)


@pytest.mark.parametrize("kind", [*KINDS, "faint in output 0"])
def test_the_perturbation_test_agrees_with_the_packages(kind):
    for seed in range(5):
        inputs = question(torch.Generator().manual_seed(seed), kind)
        ours = perturbed(course.sees_future)(**inputs)
        if kind == "rounding":
            assert not ours  # the package's looks at seven digits: it is about exact kernels
        else:
            fn = a_function(kind, inputs["x"])
            with torch.no_grad():
                if kind.endswith("of torch"):
                    fn = layer_of_torch(inputs["x"], "mask" in kind)
                assert ours == lab.sees_future(fn, inputs["x"])


@pytest.mark.parametrize("kind", RECORDS | FURTHER)
def test_the_conclusions_are_the_truth_of_made_up_records(kind):
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        record, truth = a_record(rng, **(RECORDS | FURTHER)[kind])
        found = course.who_computed_it(record)
        assert (found["naive_bound"] == "memory") == truth["naive_bound"]
        assert (found["fused_bound"] == "memory") == truth["fused_bound"]
        assert found["fell_back"] == sorted(truth["fell_back"])
        assert math.isclose(found["naive_share"], truth["naive_share"], rel_tol=0.04)
        assert math.isclose(found["cost"], truth["cost"], rel_tol=0.04)


def test_the_made_up_records_differ_in_every_conclusion():
    truths = [a_record(torch.Generator(), **how)[1] for how in RECORDS.values()]
    for name in ("naive_bound", "fused_bound"):
        assert {truth[name] for truth in truths} == {True, False}


# --- the receipt measured here


def test_its_points_stay_below_the_ceilings(record):
    peak = record["machine"]["ceilings"]["flops_per_second"]["float32"]
    for point in record["points"]:
        if point["name"] != "call":
            assert point["flops"] / min(point["seconds"]) < 1.1 * peak


# --- what the page says, and a sceptic would doubt


def test_three_calls_fell_back_and_cost_more_than_twice(record):
    found = course.who_computed_it(record)
    assert found["fell_back"] == ["dropout", "strided key", "three axes"]
    calls = {p["call"]: min(p["seconds"]) for p in record["points"] if p["name"] == "call"}
    assert all(calls[call] > 2 * calls["plain"] for call in found["fell_back"])
    assert all(calls[call] < 1.5 * calls["plain"] for call in ("mask", "grouped heads"))


def test_naive_attention_is_on_the_compute_side_of_one_cpu_thread(record):
    found = course.who_computed_it(record)
    assert found["naive_bound"] == found["fused_bound"] == "compute"
    assert found["naive_share"] < 0.5


def test_a_fallback_changes_nothing_in_the_output():
    q, k, v = torch.randn(3, 1, 4, 64, 16)
    plain = F.scaled_dot_product_attention(q, k, v)
    fallback = F.scaled_dot_product_attention(q[0], k[0], v[0])
    torch.testing.assert_close(plain[0], fallback)
    assert course.which_backend(lambda: F.scaled_dot_product_attention(q, k, v)) == "FLASH"
    assert course.which_backend(lambda: F.scaled_dot_product_attention(q[0], k[0], v[0])) == "MATH"


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch gives its reasons as warnings
def test_a_switch_that_is_on_says_nothing_about_what_runs():
    q = torch.randn(1, 2, 8, 4)
    assert torch.backends.cuda.flash_sdp_enabled()
    fallback = lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)  # noqa: E731
    assert course.which_backend(fallback) == "MATH"
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match=r"[Nn]o .*kern"),
    ):
        fallback()


def test_math_gives_0_to_a_row_that_may_look_nowhere():
    q = torch.randn(1, 1, 3, 4)
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert (output[0, 0, 1] == 0).all()


def test_the_layers_hint_is_refused_with_gradients_and_tested_without():
    """What the page says of gradients on; for gradients off only that the two tests agree."""
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 8, 16)

    def hinted(x):
        return layer(x, x, x, need_weights=False, is_causal=True)[0]

    with pytest.raises(RuntimeError, match="attn_mask"):
        hinted(x)
    with torch.no_grad():
        try:
            assert course.sees_future(hinted, x) == lab.sees_future(hinted, x)
        except RuntimeError as error:  # a newer torch refuses here, too
            assert "attn_mask" in str(error)


def test_watching_without_gradients_changes_what_the_layer_does():
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 8, 16)
    call = lambda: layer(x, x, x, need_weights=False)  # noqa: E731
    on = course.which_backend(call)
    with torch.no_grad():
        off = course.which_backend(call)
    assert (on, off) == ("FLASH", "NATIVE_MHA")


def test_published_naive_speeds_stay_under_the_slope_and_fused_ones_walk_away_from_it():
    sheet = roofline.DATASHEETS["H100"]

    def points(kernel):
        found = lab.published("H100", d=128, causal=False, backward=False, kernel=kernel)
        return [point.as_point() for point in found]

    for point in points("PyTorch"):
        n = point["n"]
        # Their code scales within the product (baddbmm): four passes, not the six of the lab.
        moved = 2 * (16384 // n) * 16 * (4 * n * n + 4 * n * 128)
        assert 50 < point["flops"] / moved < 64
        assert point["flops_per_second"] < roofline.attainable(sheet, point["flops"], moved)
    first, *_, last = points("FA3")
    assert last["flops"] / last["bytes"] > 20 * first["flops"] / first["bytes"]
    best = max(point["flops_per_second"] for point in points("FA3"))
    assert 0.6 < best / sheet["flops_per_second"]["float16"] < 0.7


def test_a_t4_is_as_the_page_says():
    sheet = roofline.DATASHEETS["T4"]
    assert sheet["flops_per_second"]["float16"] == 65e12 and sheet["bytes_per_second"] == 320e9
    assert roofline.compute_bound_from(sheet, 64, fused=False) == math.inf


# --- the judge


def test_a_receipt_of_another_lab_is_said_once():
    receipt = lab2_quadratic_wall.lab2_receipt()
    report = run("lab3_receipt", lambda: receipt)
    assert report.earned == 1 and report.diagnosis.id == "L3-OTHER-LAB"
    assert str(report).count("This receipt is of") == 1


def test_an_answer_that_raises_is_told_so():
    def which_backend(fn):
        fn()
        return 3

    assert "a text such as" in str(run("which_backend", which_backend))
    assert run("sees_future", lambda fn, x: None).diagnosis.id == "NOT-ANSWERED"
    assert "a list such as" in str(run("backends_for", lambda capability, call: "FLASH"))
    assert '"memory" or "compute"' in str(
        run("roof_over", lambda *a, **k: dict.fromkeys(ROOF, 1.0) | {"bound": "both"})
    )


def test_the_packages_own_functions_work_again_after_a_check():
    run("which_backend", lambda fn: lab.backend_of(fn) or "NONE")
    q = torch.randn(1, 1, 4, 4)
    assert lab.which_backend(q, q, q) == "FLASH"
    assert lab.attention_flops(1, 1, 2, 3) == 48


# --- the released notebook


@pytest.mark.parametrize("factor", [10, 50])
def test_a_receipt_far_above_its_own_roof_is_refused(record, factor):
    """Times fifty: a thousand times below what the datasheet of any CPU would forbid."""
    edited = copy.deepcopy(record)
    for point in edited["points"]:
        if point["name"] == "fused":
            point["seconds"] = [each / factor for each in point["seconds"]]
    report = run("lab3_receipt", lambda: lab.receipts.encode(edited))
    assert report.earned < report.points and "measure both again" in str(report).replace("\n", " ")


def test_a_roof_may_call_its_parameters_as_it_likes():
    def roof_over(work, moved, F, B):
        bound = "memory" if work / moved < F / B else "compute"
        numbers = {"intensity": work / moved, "ridge": F / B, "roof": min(F, work / moved * B)}
        return numbers | {"bound": bound}

    assert run("roof_over", roof_over).passed


def test_a_slip_in_the_order_costs_the_point_of_the_order_alone():
    order = ["FLASH", "CUDNN", "EFFICIENT", "MATH"]

    def backends_for(capability, call):
        return sorted(CORRECT["backends_for"][0](capability, call), key=order.index)

    report = run("backends_for", backends_for)
    assert report.earned == report.points - 1
    assert report.diagnosis.id == "L3-NO-CUDNN"


def test_the_best_ten_of_twenty_samples_do_not_pass(record):
    edited = copy.deepcopy(record)
    for point in edited["points"]:
        best = sorted(range(len(point["seconds"])), key=point["seconds"].__getitem__)[:10]
        for key in ("seconds", "started"):
            point[key] = [point[key][i] for i in sorted(best)]
    report = run("lab3_receipt", lambda: lab.receipts.encode(edited))
    assert report.earned < report.points
    assert "take 20 or more of each point" in str(report).replace("\n", " ")

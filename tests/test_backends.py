"""Which attention runs: what is observed here, and what the rules say about other machines."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attncourse import scaled_dot_product
from attncourse.lab.backends import (
    FUSED,
    backend_of,
    default_backend,
    may_run,
    mha_cases,
    sdpa_call,
    sees_future,
    which_backend,
)

T4, A100, L4, H100, G4 = (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)


def cpu_call(**options):
    return sdpa_call(options.pop("dtype", torch.float32), n=8, d=16, device="cpu", **options)


def naive(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


# Observed


@pytest.mark.parametrize(
    "options, backend",
    [
        ({}, "FLASH"),
        ({"dtype": torch.bfloat16}, "FLASH"),
        ({"dtype": torch.float64}, "FLASH"),
        ({"mask": "bool"}, "FLASH"),
        ({"is_causal": True, "n_keys": 5}, "FLASH"),
        ({"kv_heads": 2}, "FLASH"),
        ({"layout": "b n h d"}, "FLASH"),
        ({"requires_grad": True}, "FLASH"),
        ({"dropout": 0.5}, "MATH"),
        ({"layout": "h n d"}, "MATH"),
        ({"layout": "b h d n"}, "MATH"),
        ({"mask": "learned"}, "MATH"),
        ({"value_width": 8}, "MATH"),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_ran_on_the_cpu(options, backend, mode):
    with mode():
        assert which_backend(**cpu_call(**options)) == backend


@pytest.mark.filterwarnings("ignore:Flash attention kernel not used", "ignore:Both fused kernels")
def test_a_forced_backend_is_seen_and_an_impossible_one_raises():
    with sdpa_kernel(SDPBackend.MATH):
        assert which_backend(**cpu_call()) == "MATH"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError):
        which_backend(**cpu_call(dropout=0.5))


def test_attention_by_hand_is_naive():
    q, k, v = (torch.ones(1, 2, 8, 4) for _ in range(3))
    assert backend_of(naive, q, k, v) == "NAIVE"
    assert backend_of(naive, q[0, 0], k[0, 0], v[0, 0]) == "NAIVE"
    assert backend_of(scaled_dot_product.scaled_dot_product_attention, q, k, v) == "NAIVE"
    with torch.inference_mode():
        assert backend_of(naive, q, k, v) == "NAIVE"

    def scaled_like_math(q, k, v):
        return torch.softmax((q * 0.7) @ (k.mT * 0.7), dim=-1) @ v

    assert backend_of(scaled_like_math, q, k, v) == "NAIVE"


def test_what_is_not_attention_has_no_backend():
    x = torch.ones(2, 8, 16)
    assert backend_of(nn.GRU(16, 16, batch_first=True), x) is None
    assert backend_of(nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1)), x) is None
    assert backend_of(torch.matmul, x, x.mT) is None
    assert backend_of(lambda: x.softmax(-1) @ x.mT) is None  # given weights, not scores
    assert backend_of(lambda: (x @ x.mT).softmax(-1)) is None


def test_several_backends_are_named_in_order():
    q, k, v = (torch.ones(1, 2, 8, 4) for _ in range(3))

    def checked(q, k, v):
        return naive(q, k, v) - F.scaled_dot_product_attention(q, k, v)

    assert backend_of(checked, q, k, v) == "NAIVE+FLASH"


def test_the_operations_that_are_looked_for_exist():
    for name in FUSED:
        assert hasattr(torch.ops.aten, name), name


@pytest.mark.parametrize(
    "operation, arguments, backend",
    [
        ("_scaled_dot_product_flash_attention", (), "FLASH"),
        ("_scaled_dot_product_efficient_attention", (None, False), "EFFICIENT"),
        ("_scaled_dot_product_cudnn_attention", (None, False), "CUDNN"),
    ],
)
def test_the_kernels_of_gpus_are_recognized(operation, arguments, backend):
    q = torch.empty(1, 2, 8, 64, dtype=torch.float16, device="meta")
    assert backend_of(getattr(torch.ops.aten, operation), q, q, q, *arguments) == backend


# Rules, on the CPU against what torch does


@pytest.mark.slow
def test_the_cpu_rules_say_what_torch_does():
    dtypes = torch.float16, torch.bfloat16, torch.float32, torch.float64
    masks = (None, False), (None, True), ("bool", False), ("float", False), ("learned", False)
    layouts = "b h n d", "b n h d", "b h d n", "h n d"
    grid = itertools.product(
        dtypes, masks, (0.0, 0.5), layouts, (False, True), (None, 2), (None, 7), (None, 8)
    )
    wrong = []
    for number, case in enumerate(grid):
        if number % 3:  # a third of 2560, in all combinations of any two
            continue
        dtype, (mask, is_causal), dropout, layout, requires_grad, kv_heads, n_keys, width = case
        call = sdpa_call(
            dtype,
            **{"h": 4, "n": 5, "d": 16, "n_keys": n_keys, "kv_heads": kv_heads},
            **{"mask": mask, "is_causal": is_causal, "dropout": dropout, "layout": layout},
            **{"value_width": width, "requires_grad": requires_grad, "device": "cpu"},
        )
        if which_backend(**call) != default_backend("cpu", **call):
            wrong.append(case)
    assert wrong == []


@pytest.mark.parametrize("shape", [(8, 8), (1, 8), (2, 4, 8, 8), (1, 1, 8, 8), (4, 8, 8), (1, 1)])
def test_the_cpu_rules_know_the_shapes_of_masks(shape):
    call = cpu_call(b=2, h=4) | {"attn_mask": torch.ones(shape, dtype=torch.bool)}
    assert which_backend(**call) == default_backend("cpu", **call)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_transposed_mask_is_for_the_cpu_alone(kind):
    call = cpu_call(mask=kind)
    call |= {"attn_mask": call["attn_mask"].mT}
    assert which_backend(**call) == default_backend("cpu", **call) == "FLASH"
    assert default_backend(A100, **call, torch_version="2.11.0") == "MATH"


@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 1, 1)])
def test_the_cpu_rules_know_that_a_batch_is_not_broadcast(sizes):
    q, k, v = (torch.ones(b, 2, 4, 8) for b in sizes)
    assert which_backend(q, k, v) == default_backend("cpu", q, k, v) == "MATH"


@pytest.mark.parametrize(
    "options, word",
    [
        ({"dropout": 0.1}, "dropout"),
        ({"layout": "h n d"}, "4 axes"),
        ({"layout": "b h d n"}, "stride 1"),
        ({"mask": "learned"}, "gradient"),
        ({"value_width": 8}, "one width"),
    ],
)
def test_a_refusal_says_why(options, word):
    flash, math_ = may_run("cpu", **cpu_call(**options))
    assert flash.backend == "FLASH" and not flash.runs and word in str(flash)
    assert math_.backend == "MATH" and math_.runs and str(math_) == "MATH: yes"


# Rules, on GPUs that are not here


@pytest.mark.parametrize(
    "capability, options, backend",
    [
        (T4, {}, "EFFICIENT"),
        (T4, {"dtype": torch.float32}, "EFFICIENT"),
        (T4, {"dtype": torch.bfloat16}, "MATH"),  # silently
        (T4, {"dtype": torch.float64}, "MATH"),
        (T4, {"mask": "bool"}, "EFFICIENT"),
        (T4, {"is_causal": True, "n_keys": 200}, "EFFICIENT"),
        (T4, {"kv_heads": 2}, "MATH"),  # silently
        (T4, {"d": 60}, "MATH"),
        (T4, {"d": 61, "dtype": torch.float32}, "EFFICIENT"),
        (T4, {"layout": "h n d"}, "MATH"),
        (T4, {"layout": "b h d n"}, "MATH"),
        (T4, {"layout": "b n h d"}, "EFFICIENT"),
        (L4, {}, "FLASH"),
        (L4, {"dtype": torch.bfloat16, "is_causal": True}, "FLASH"),
        (L4, {"d": 208, "requires_grad": True}, "EFFICIENT"),
        (L4, {"d": 208}, "FLASH"),
        (L4, {"d": 256, "requires_grad": True}, "FLASH"),
        (L4, {"d": 256, "requires_grad": True, "dropout": 0.1}, "EFFICIENT"),
        (A100, {"d": 208, "requires_grad": True}, "FLASH"),
        (A100, {"d": 264}, "EFFICIENT"),
        (A100, {"d": 61}, "FLASH"),  # pads
        (A100, {"dtype": torch.float32}, "EFFICIENT"),
        (A100, {"d": 62, "dtype": torch.float32}, "MATH"),
        (A100, {"dtype": torch.float64}, "MATH"),
        (A100, {"mask": "bool"}, "EFFICIENT"),
        (A100, {"mask": "learned"}, "EFFICIENT"),
        (A100, {"is_causal": True, "n_keys": 200}, "EFFICIENT"),
        (A100, {"kv_heads": 2}, "FLASH"),
        (A100, {"kv_heads": 2, "mask": "bool"}, "MATH"),
        (A100, {"value_width": 32}, "EFFICIENT"),
        (A100, {"dropout": 0.1}, "FLASH"),
        (H100, {}, "CUDNN"),
        (H100, {"mask": "bool", "kv_heads": 2}, "CUDNN"),
        (H100, {"d": 256}, "FLASH"),
        (H100, {"n_keys": 1}, "FLASH"),
        (H100, {"dtype": torch.float32}, "EFFICIENT"),
        (G4, {}, "FLASH"),
        (G4, {"d": 208, "requires_grad": True}, "EFFICIENT"),
    ],
    ids=str,
)
def test_the_default_backend_of_a_gpu(capability, options, backend):
    call = sdpa_call(**options)
    assert default_backend(capability, **call, torch_version="2.11.0+cu128") == backend


def test_versions_change_the_answer():
    grouped = sdpa_call(kv_heads=2)
    assert default_backend(T4, **grouped, torch_version="2.13.0") == "MATH"
    assert default_backend(T4, **grouped, torch_version="2.14.0") == "EFFICIENT"
    assert default_backend(H100, **sdpa_call(), torch_version="2.9.1") == "FLASH"
    assert default_backend(H100, **sdpa_call(), cudnn_version=91002) == "FLASH"
    assert default_backend(H100, **sdpa_call(), cudnn_version=91900) == "CUDNN"
    dropping = sdpa_call(dropout=0.1)
    assert default_backend(H100, **dropping, torch_version="2.11.0") == "CUDNN"
    assert default_backend(H100, **dropping, torch_version="2.13.0") == "FLASH"
    shifted = torch.empty(2 * 8 * 16 * 64 + 1, dtype=torch.float32, device="meta")[1:]
    q = shifted.view(2, 8, 16, 64)
    assert default_backend(A100, q, q, q, torch_version="2.11.0") == "EFFICIENT"
    assert default_backend(A100, q, q, q, torch_version="2.13.0") == "MATH"


def test_a_width_that_only_the_backward_pass_refuses_runs_without_gradients():
    call = sdpa_call(d=208, requires_grad=True)
    with torch.no_grad():
        assert default_backend(L4, **call, torch_version="2.11.0") == "FLASH"


def test_backends_come_in_the_order_in_which_torch_tries_them():
    def order(capability):
        return [each.backend for each in may_run(capability, **sdpa_call(), torch_version="2.11")]

    assert order("cpu") == ["FLASH", "MATH"]
    assert order(T4) == order(A100) == ["FLASH", "EFFICIENT", "MATH", "CUDNN"]
    assert order(H100) == ["CUDNN", "FLASH", "EFFICIENT", "MATH"]


def test_a_t4_says_why_it_has_no_flash():
    flash, efficient, _, cudnn = may_run(T4, **sdpa_call(torch.bfloat16), torch_version="2.11.0")
    assert "from sm80 to sm121; this is sm75" in str(flash) and "sm75" in str(cudnn)
    assert "bfloat16" in str(efficient)


def test_cudnn_refuses_what_is_not_deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        assert default_backend(H100, **sdpa_call(), torch_version="2.11.0") == "FLASH"
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_mask_and_is_causal_are_one_too_many():
    with pytest.raises(ValueError, match="attn_mask or is_causal"):
        may_run(T4, **sdpa_call(mask="bool", is_causal=True))


def test_a_device_is_no_capability():
    with pytest.raises(ValueError, match="get_device_capability"):
        may_run("cuda", **sdpa_call())


def test_a_record_can_be_asked_about_in_its_own_words():
    assert default_backend([7, 5], **sdpa_call("bfloat16"), torch_version="2.11.0") == "MATH"
    assert default_backend(None, **sdpa_call("bfloat16")) == "FLASH"


def test_asking_needs_no_memory():
    call = sdpa_call(b=64, h=128, n=2**20, d=128)
    assert call["query"].device.type == "meta"
    assert default_backend(A100, **call) == "FLASH"


# nn.MultiheadAttention


@pytest.fixture(scope="module")
def cases():
    return {case.call: case for case in mha_cases()}


def test_multi_head_attention_changes_its_algorithm_with_the_mode(cases):
    assert cases["train: mha(x, x, x)"].backend == "NAIVE"
    assert cases["train: mha(x, x, x, need_weights=False)"].backend == "FLASH"
    assert cases["train: mha(x, x, x, …) with dropout=0.5"].backend == "MATH"
    assert cases["eval: mha(x, x, x)"].backend == "NAIVE"
    # Whether there is a fast path, and whom it serves, is torch's to change.
    fast = {"NATIVE_MHA", "NATIVE_ENCODER_LAYER", "FLASH", "NAIVE"}
    assert {case.backend for call, case in cases.items() if "no_grad" in call} <= fast | {None}


def test_every_case_ran_or_says_why_not(cases):
    assert len(cases) == 33
    for case in cases.values():
        assert (case.backend is None) == (case.error is not None)
        assert (case.sees_future is None) == (not case.causal or case.error is not None)


def test_a_mask_keeps_the_future_hidden(cases):
    masked = [case for call, case in cases.items() if "attn_mask=hidden" in call]
    assert len(masked) == 6 and not any(case.leaks for case in masked)


def test_a_leak_is_reported_as_it_is_observed(cases):
    """Whatever the installed torch does with is_causal=True and no mask: seen, not assumed."""
    case = cases["eval, no_grad: mha(x, x, x, is_causal=True)"]
    mha = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
    other = torch.cat([x[:, :3], -x[:, 3:]], dim=1)
    options = {"need_weights": False, "is_causal": True}
    with torch.no_grad():
        try:
            first, second = mha(x, x, x, **options)[0], mha(other, other, other, **options)[0]
        except RuntimeError as error:
            assert case.error is not None and case.error in str(error)
            return
    assert case.leaks == (not torch.allclose(first[:, :3], second[:, :3], atol=1e-6))


def test_seeing_the_future_is_measured():
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert not sees_future(lambda x: x.cumsum(1), x)
    assert not sees_future(lambda x: F.layer_norm(x, (3,)), x)
    assert sees_future(lambda x: x.flip(1), x)
    assert sees_future(lambda x: x.roll(-1, 1), x)
    assert sees_future(lambda x: torch.cat([x[:, 1:] * 1e-3, x[:, :1]], 1), x)


def test_perturbing_leaves_gradients_as_they_are():
    modes = []
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            sees_future(lambda x: modes.append(torch.is_grad_enabled()) or x, torch.ones(1, 2, 3))
    assert set(modes[:2]) == {True} and set(modes[2:]) == {False}


def test_looking_at_torch_leaves_its_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    mha_cases()
    assert torch.equal(torch.rand(3), expected)

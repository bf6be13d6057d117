"""The checks of lab 3. Each one's name is the sentence a teacher would say.

No clock is read and no GPU is needed: what computes attention is watched on the CPU and on the
device "meta", rules are asked about made-up calls, times are made up or come from the student's own
receipt.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attncourse.checks.common import as_number, causal, fields, moves_nothing, normal
from attncourse.checks.observe import Unusable
from attncourse.checks.receipt import as_text, grave, read, record_of, timed
from attncourse.checks.task import Failure, Task, Unanswered, describe
from attncourse.lab import backends, roofline
from attncourse.lab import lab3_who_computed_it as reference

points = pytest.mark.points
LAB = "lab3_who_computed_it"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


def the_courses_own(*_, **__):
    raise RuntimeError("the package does this task; write it yourself, then compare the two.")


@contextlib.contextmanager
def without(*functions):
    """The package's own functions for a task refuse to work here."""
    codes = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = the_courses_own.__code__
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code


# --- which_backend ------------------------------------------------------------------------------

DETECTIVES = (backends.which_backend, backends.backend_of)


def sdpa(only_math=False, **call):
    return {"how": "sdpa", "only_math": only_math, "call": call}


def mha(*, train=False, grad=True, weights=True, mask=False):
    return {"how": "mha", "train": train, "grad": grad, "weights": weights, "mask": mask}


FLASHES = {
    "the plain call": sdpa(),
    "a mask of bools": sdpa(mask="bool"),
    "a mask of numbers": sdpa(mask="float"),
    "is_causal": sdpa(is_causal=True),
    "fewer key heads": sdpa(h=4, kv_heads=2),
    "more keys than queries": sdpa(n_keys=24),
    "bfloat16": sdpa(dtype="bfloat16"),
    "float64": sdpa(dtype="float64"),
    "keys as a projection leaves them": sdpa(layout="b n h d"),
}
FALLBACKS = {
    "dropout": sdpa(dropout=0.25),
    "three axes": sdpa(layout="h n d"),
    "a strided last axis": sdpa(layout="b h d n"),
    "a mask that learns": sdpa(mask="learned"),
    "values of another width": sdpa(value_width=4),
    "dropout and a mask": sdpa(dropout=0.5, mask="bool"),
}
FORCED = {
    "the plain call, only MATH allowed": sdpa(only_math=True),
    "a mask, only MATH allowed": sdpa(only_math=True, mask="bool"),
}
ON_GPUS = {
    "FLASH on a GPU": {"how": "aten", "op": "_scaled_dot_product_flash_attention"},
    "EFFICIENT on a GPU": {"how": "aten", "op": "_scaled_dot_product_efficient_attention"},
    "CUDNN on a GPU": {"how": "aten", "op": "_scaled_dot_product_cudnn_attention"},
}
SPELLED = {
    "matmul, softmax, matmul": {"how": "spelled"},
    "one head, spelled out": {"how": "one head"},
}
BESIDE = {"a product, a softmax and a product, then the plain call": {"how": "beside"}}
LAYERS = {
    "MultiheadAttention, training": mha(train=True),
    "MultiheadAttention, training, no weights": mha(train=True, weights=False),
    "MultiheadAttention, eval, no weights": mha(weights=False),
    "MultiheadAttention, eval, no_grad": mha(grad=False),
    "MultiheadAttention, eval, no_grad, masked": mha(grad=False, weights=False, mask=True),
}
NOTHING = {
    "a linear layer": {"how": "linear"},
    "a softmax alone": {"how": "softmax"},
    "a product, then a softmax": {"how": "classifier"},
    "two products, then a softmax": {"how": "two before"},
    "a softmax, then two products": {"how": "two after"},
}
CASES = FLASHES | FALLBACKS | FORCED | ON_GPUS | SPELLED | BESIDE | LAYERS | NOTHING


def watched(case):
    """The function of no arguments that a case is about."""
    how = case["how"]
    if how == "sdpa":
        made = {"dtype": "float32", "h": 2, "n": 16, "d": 8} | case["call"]
        arguments = backends.sdpa_call(device="cpu", **made)

        def fn():
            only = sdpa_kernel(SDPBackend.MATH) if case["only_math"] else contextlib.nullcontext()
            with only:
                return F.scaled_dot_product_attention(**arguments)

    elif how == "aten":
        q = torch.empty(1, 2, 16, 8, dtype=torch.float16, device="meta")
        more = () if "flash" in case["op"] else (None, False)

        def fn():  # what torch calls on a GPU; on "meta" it has a shape, and computes nothing
            return getattr(torch.ops.aten, case["op"])(q, q, q, *more)

    elif how in ("spelled", "one head"):
        q = torch.ones(2, 3, 8, 4) if how == "spelled" else torch.ones(8, 4)

        def fn():
            return torch.softmax(q @ q.mT / 2, dim=-1) @ q

    elif how == "mha":
        layer = nn.MultiheadAttention(8, 2, batch_first=True).train(case["train"])
        x = torch.ones(2, 5, 8)
        hidden = ~causal(5) if case["mask"] else None

        def fn():
            return layer(x, x, x, need_weights=case["weights"], attn_mask=hidden)

    elif how == "beside":
        q = torch.ones(1, 2, 16, 8)

        def fn():  # such as a gate that shares its input with the attention
            gate = (q @ q.mT).softmax(-1) @ q
            return gate + F.scaled_dot_product_attention(q, q, q)

    else:
        layer, x = nn.Linear(8, 8), torch.ones(8, 8)

        def fn():
            return {
                "linear": lambda: layer(x),
                "softmax": lambda: x.softmax(-1),
                "classifier": lambda: (x @ x).softmax(-1),
                "two before": lambda: (x @ x @ x).softmax(-1),
                "two after": lambda: x.softmax(-1) @ x @ x,
            }[how]()

    return fn


def detected(which_backend, view="said"):
    """What the answer says of a case, and how often it ran it."""

    def function(case):
        runs = [0]
        with torch.random.fork_rng([]), torch.set_grad_enabled(case.get("grad", True)):
            torch.default_generator.manual_seed(0)
            fn = watched(case)

            def counted():
                runs[0] += 1
                return fn()

            with without(*DETECTIVES):
                said = which_backend(counted)
        if said is None:
            return None
        if not isinstance(said, str):
            raise Unusable(f'returned {describe(said)}; a text such as "FLASH" is expected.')
        return [runs[0]] if view == "runs" else [str(said)]

    return function


def times_run(which_backend):
    return detected(which_backend, "runs")


def names_what_ran(answer, cases):
    """Assert that the answer says what the reference sees, here and with this torch."""
    for name, case in cases.items():
        (got,), (expected,) = answer({"case": case}), answer.expected({"case": case})
        if got != expected:
            raise Failure(
                f"Case “{name}”, by the trace of torch {torch.__version__}: {expected}; you say "
                f"{got}."
            )


def detective_traits(answer):
    seen = answer.observe({"case": CASES["the plain call"]}, adapt=times_run)
    return {"runs it once": seen.returned == [1]}


class TestWhichBackend:
    task = Task(
        name="which_backend",
        reference=reference.which_backend,
        returns=list,
        difficulty=2,
        minutes=12,
        section="lab3-trace",
        hints=(
            "`lab.trace(fn)` runs `fn` once and returns the names of all its operations. Print it "
            "for two calls that differ, such as with and without dropout.",
            "A fused kernel is one operation, and its name tells which. MATH is no operation of "
            "its own: `_safe_softmax` gives it away. Look for these first.",
            "For each name of the trace and each sign of the table: if the sign is in the name, "
            "return the backend. After the loop: a softmax between two products is NAIVE, "
            "all else NONE.",
        ),
        probes=lambda rng: {name: {"case": case} for name, case in CASES.items()},
        small=lambda rng: iter(()),
        adapt=detected,
        traits=detective_traits,
    )

    @points(2)
    def test_the_cpus_fused_kernel_is_flash(self, answer):
        names_what_ran(answer, FLASHES)

    @points(2)
    def test_a_silent_fallback_is_math(self, answer):
        names_what_ran(answer, FALLBACKS)

    @points(1)
    def test_it_is_observed_and_not_derived_from_the_call(self, answer):
        names_what_ran(answer, FORCED)

    @points(2)
    def test_the_kernels_of_a_gpu_are_told_apart(self, answer):
        names_what_ran(answer, ON_GPUS)

    @points(1)
    def test_attention_spelled_out_is_naive(self, answer):
        names_what_ran(answer, SPELLED | BESIDE)

    @points(2)
    def test_a_layer_is_what_its_mode_makes_it(self, answer):
        names_what_ran(answer, LAYERS)

    @points(1)
    def test_without_attention_it_says_none(self, answer):
        names_what_ran(answer, NOTHING)

    @points(1)
    def test_it_runs_the_function_once(self, answer):
        seen = answer.observe({"case": CASES["the plain call"]}, adapt=times_run)
        if seen.returned is None:
            answer({"case": CASES["the plain call"]})  # says what went wrong
            raise Unanswered("Your answer returned None: is a `return` missing?")
        if seen.returned != [1]:
            raise Failure(
                f"`fn` was run {seen.returned[0]} times. Run it once, under the trace: another run "
                "need not be like the first, and a function may be slow."
            )


# --- backends_for -------------------------------------------------------------------------------

RULES = (backends.may_run, backends.default_backend)
T4, A100, L4, H100, CPU = (7, 5), (8, 0), (8, 9), (9, 0), "cpu"
DEVICES = (T4, A100, L4, H100, CPU)
PLAIN = {
    "dtype": "float16",
    "d": 64,
    "axes": 4,
    "last_stride": 1,
    "mask": False,
    "dropout": 0.0,
    "causal": False,
    "queries": 1024,
    "keys": 1024,
    "heads": 8,
    "kv_heads": 8,
}


def asked(capability, **unlike):
    return {"capability": capability, "call": PLAIN | unlike}


def ruled(backends_for):
    """The answer's list, without the package's own rules."""

    def function(capability, call):
        if isinstance(capability, list):
            capability = tuple(capability)
        with without(*RULES):
            found = backends_for(capability, call)
        if found is None:
            return None
        if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
            raise Unusable(
                f'returned {describe(found)}; a list such as ["FLASH", "MATH"] is expected.'
            )
        return [str(each) for each in found]

    return function


QUESTIONS = {
    "dtype": ({"dtype": "bfloat16"}, {"dtype": "float32"}, {"dtype": "float64"}),
    "layout": ({"axes": 3}, {"axes": 5}, {"last_stride": 1024}),
    "mask": ({"mask": True}, {"mask": True, "dtype": "float32"}),
    "dropout": ({"dropout": 0.125}, {"dropout": 0.5, "dtype": "float32"}),
    "grouped heads": ({"kv_heads": 2}, {"kv_heads": 1, "dtype": "bfloat16"}),
    "width": (
        *({"d": 60}, {"d": 80}, {"d": 256}, {"d": 320}, {"d": 136}),
        *({"d": 60, "dtype": "float32"}, {"d": 30, "dtype": "float32"}),
    ),
    "crossed": (
        *({"causal": True, "queries": 1, "keys": 512}, {"causal": True}),
        *({"queries": 64, "keys": 512}, {"causal": True, "queries": 512, "keys": 64}),
    ),
}


def backends_probes(rng):
    probes = {}
    for place, device in enumerate(DEVICES):
        probes[f"plain {place}"] = asked(device)
        for name, questions in QUESTIONS.items():
            for number, unlike in enumerate(questions):
                probes[f"{name} {number} {place}"] = asked(device, **unlike)
    return probes


def in_words(capability, call):
    differs = {key: value for key, value in call.items() if value != PLAIN[key]}
    where = "the CPU" if capability == "cpu" else f"compute capability {capability}"
    said = ", ".join(f"{key} = {value!r}" for key, value in differs.items())
    return f"On {where}" + (f", with {said}" if said else ", the plain call in float16")


def may_compute(answer, devices, *questions):
    """Assert that the list is right for each of these calls on each of these devices."""
    for device in devices:
        for unlike in questions or ({},):
            inputs = asked(device, **unlike)
            got, expected = answer(inputs), answer.expected(inputs)
            if got != expected:
                raise Failure(
                    f"{in_words(**inputs)}: {_list(expected)} may compute it; you say "
                    f"{_list(got)}.",
                )


def _list(names):
    return ", then ".join(names) if names else "nothing"


GPUS = (T4, A100, L4, H100)


class TestBackendsFor:
    task = Task(
        name="backends_for",
        reference=reference.backends_for,
        returns=list,
        difficulty=3,
        minutes=15,
        section="lab3-rules",
        hints=(
            "Turn the table into code column by column: for each backend one condition that is "
            "true if nothing in the call stands against it.",
            "First what stops every fused kernel, then the CPU, then the GPUs. Tuples compare as "
            "you would wish: (7, 5) < (8, 0) < (8, 9).",
            "A dict from backend to condition, in the order CUDNN, FLASH, EFFICIENT, MATH, whose "
            "condition is True. CUDNN's begins with `capability == (9, 0)`. Return the names whose "
            "condition holds.",
        ),
        probes=backends_probes,
        small=lambda rng: iter(()),
        adapt=ruled,
    )

    @points(2)
    def test_a_t4_has_no_flash(self, answer):
        may_compute(answer, [T4], {}, {"dtype": "float32"})

    @points(1)
    def test_newer_gpus_have_flash_and_efficient(self, answer):
        may_compute(answer, [A100, L4], {}, {"d": 128})

    @points(1)
    def test_an_h100_asks_cudnn_first(self, answer):
        may_compute(answer, [H100], {}, {"d": 136}, {"dtype": "float32"})

    @points(2)
    def test_each_kernel_has_its_formats(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["dtype"])

    @points(1)
    def test_a_mask_keeps_flash_away_and_nobody_else(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["mask"])

    @points(1)
    def test_three_axes_or_a_strided_last_axis_leave_only_math(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["layout"])

    @points(1)
    def test_dropout_stops_the_cpu_and_no_gpu(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["dropout"])

    @points(1)
    def test_grouped_heads_keep_efficient_away(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["grouped heads"])

    @points(1)
    def test_widths_have_to_fit(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["width"])

    @points(1)
    def test_a_causal_call_with_other_keys_than_queries_is_not_for_flash(self, answer):
        may_compute(answer, DEVICES, *QUESTIONS["crossed"])

    @points(1)
    def test_several_rules_at_once(self, answer, rng):
        for _ in range(12):
            unlike = {
                "dtype": pick(rng, "float16", "bfloat16", "float32"),
                "d": pick(rng, 64, 60, 128, 256),
                "mask": pick(rng, True, False),
                "dropout": pick(rng, 0.0, 0.25),
                "kv_heads": pick(rng, 8, 2),
            }
            may_compute(answer, [pick(rng, *DEVICES)], unlike)


# --- attention_work -----------------------------------------------------------------------------

WORK = ("flops", "naive_bytes", "fused_bytes")


def sizes(b, h, n, d, width=2, causal=False, backward=False):
    return {
        **{"b": b, "h": h, "n": n, "d": d, "bytes_per_number": width},
        **{"causal": causal, "backward": backward},
    }


def worked_out(attention_work):
    """The three numbers, without the package's own formulas."""

    def function(**inputs):
        with without(roofline.attention_flops, roofline.naive_bytes, roofline.fused_bytes):
            found = attention_work(**inputs)
        if found is None:
            return None
        return [as_number(*pair) for pair in zip(fields(found, WORK), WORK, strict=True)]

    return function


def work_probes(rng):
    return {
        "large": sizes(2, 16, 4096, 64),
        "float32": sizes(1, 3, 1000, 32, width=4),
        "causal": sizes(3, 2, 512, 128, causal=True),
        "backward": sizes(1, 4, 256, 80, backward=True),
        "both": sizes(2, 5, 96, 48, 4, causal=True, backward=True),
        "short": sizes(2, 3, 8, 64),
    }


def work_small(rng):
    yield sizes(1, 1, 1, 1, 1)
    yield sizes(1, 1, 2, 1, 1)
    yield sizes(1, 1, 2, 3, 2)
    yield sizes(1, 1, 2, 3, 2, causal=True)
    yield sizes(1, 1, 2, 3, 2, backward=True)
    yield sizes(2, 3, 4, 5, 4)


def counted(answer, name, *cases):
    """Assert that one of the three numbers is right, within a percent."""
    place = WORK.index(name)
    for inputs in cases:
        got, expected = answer(inputs)[place].item(), answer.expected(inputs)[place].item()
        if not abs(got - expected) <= 0.01 * expected:
            words = ", ".join(f"{key} = {value}" for key, value in inputs.items())
            raise Failure(
                f"For {words}: {name} is {expected:,.0f}; you say {got:,.0f}, "
                f"{got / expected:.3g} times that.",
                inputs,
                expected,
                got,
            )


class TestAttentionWork:
    task = Task(
        name="attention_work",
        reference=reference.attention_work,
        returns=WORK,
        difficulty=2,
        minutes=10,
        section="lab3-work",
        hints=(
            "Count for one head first. How many scores are there, and how many multiplications "
            "and additions does each take?",
            "There are two matrix products, scores and output, of n·n·d multiplications each, "
            "every one with an addition. For the bytes, go through the lines and note what each "
            "reads and writes.",
            "flops = 4·b·h·n·n·d, half of it if causal, times 3.5 with the backward pass. Naive: "
            "6 times n·n numbers and 4 times n·d a head; fused: only the latter.",
        ),
        probes=work_probes,
        small=work_small,
        adapt=worked_out,
        tolerance=0.002,
    )

    @points(2)
    def test_the_operations_are_those_of_two_products(self, answer, rng):
        n = pick(rng, 640, 1024, 3000)
        counted(answer, "flops", sizes(2, 16, n, 64), sizes(1, 3, 64, 100, width=4))

    @points(1)
    def test_causal_counts_half(self, answer, rng):
        counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, causal=True))

    @points(1)
    def test_with_the_backward_pass_it_is_three_and_a_half_times(self, answer, rng):
        counted(answer, "flops", sizes(2, 4, pick(rng, 128, 512), 64, backward=True))
        counted(answer, "flops", sizes(1, 2, 256, 32, causal=True, backward=True))

    @points(2)
    def test_naive_attention_passes_six_times_over_its_scores(self, answer, rng):
        counted(answer, "naive_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
        counted(answer, "naive_bytes", sizes(3, 2, 16, pick(rng, 64, 128), width=4))

    @points(2)
    def test_fused_attention_moves_its_inputs_and_its_output(self, answer, rng):
        counted(answer, "fused_bytes", sizes(2, 16, pick(rng, 1024, 4096), 64))
        counted(answer, "fused_bytes", sizes(3, 2, 16, 64, width=4))

    @points(1)
    def test_the_bytes_are_those_of_the_forward_pass_causal_or_not(self, answer):
        for name in ("naive_bytes", "fused_bytes"):
            counted(answer, name, sizes(2, 4, 512, 64, causal=True, backward=True))


# --- roof_over ----------------------------------------------------------------------------------

ROOF = ("intensity", "ridge", "roof", "bound")


def bound_as_number(value):
    if value not in ("memory", "compute"):
        said = repr(str(value)) if isinstance(value, str) else describe(value)
        raise Unusable(f'says that the bound is {said}; "memory" or "compute" is expected.')
    return torch.tensor(float(value == "memory"), dtype=torch.float64)


def under_the_roof(roof_over):
    """Three numbers, and the bound as 1 (memory) or 0 (compute)."""

    def function(**inputs):
        with without(roofline.ridge, roofline.attainable, roofline.intensity):
            found = roof_over(**inputs)
        if found is None:
            return None
        *values, bound = fields(found, ROOF)
        return [*map(as_number, values, ROOF[:3]), bound_as_number(bound)]

    return function


def program(intensity, peak=24e12, bandwidth=0.26e12, size=3e9):
    return {
        **{"flops": intensity * size, "moved_bytes": size},
        **{"flops_per_second": peak, "bytes_per_second": bandwidth},
    }


def roof_probes(rng):
    return {
        "naive on a T4": program(21.0),
        "fused on a T4": program(2048.0),
        "decoding": program(1.0, 250e12, 2e12, 5e8),
        "a CPU": program(10.7, 90e9, 18e9, 1e8),
        "near the ridge": program(80.0),
        "beyond the ridge": program(110.0),
    }


def roof_small(rng):
    yield {"flops": 2, "moved_bytes": 1, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 12, "moved_bytes": 2, "flops_per_second": 8, "bytes_per_second": 2}
    yield {"flops": 3, "moved_bytes": 6, "flops_per_second": 100, "bytes_per_second": 10}


def roofs(answer, name, *cases):
    place = ROOF.index(name)
    for inputs in cases:
        got, expected = answer(inputs)[place].item(), answer.expected(inputs)[place].item()
        if not abs(got - expected) <= 0.005 * expected:
            said = f"is {expected:,.4g}; you say {got:,.4g}"
            if name == "bound":
                said = f"is {_bound(expected)}; you say {_bound(got)}"
            words = ", ".join(f"{key} = {value:.3g}" for key, value in inputs.items())
            raise Failure(f"For {words}: the {name} {said}.", inputs)


def _bound(number):
    return "memory" if number else "compute"


class TestRoofOver:
    task = Task(
        name="roof_over",
        reference=reference.roof_over,
        returns=(*ROOF[:3], "bound (memory 1, compute 0)"),
        difficulty=2,
        minutes=8,
        section="lab3-roofline",
        hints=(
            "Two things take time: computing and moving. They overlap, so the slower of them "
            "decides.",
            "Intensity and ridge have the same unit, operations per byte: the first of the "
            "program, the second of the machine. Below the ridge a program waits for memory.",
            "roof = the smaller of flops_per_second and intensity times bytes_per_second.",
        ),
        probes=roof_probes,
        small=roof_small,
        adapt=under_the_roof,
        tolerance=0.001,
    )

    @points(1)
    def test_intensity_is_operations_per_byte(self, answer, rng):
        roofs(answer, "intensity", program(21.4), program(pick(rng, 0.5, 2.0, 700.0)))

    @points(1)
    def test_the_ridge_belongs_to_the_machine(self, answer):
        roofs(answer, "ridge", program(21.0), program(1000.0), program(3.0, 90e9, 18e9))

    @points(1)
    def test_below_the_ridge_the_roof_slopes(self, answer, rng):
        roofs(answer, "roof", program(pick(rng, 2.0, 21.0, 60.0)), program(1.0, 90e9, 18e9))

    @points(1)
    def test_beyond_the_ridge_the_roof_is_flat(self, answer, rng):
        roofs(answer, "roof", program(pick(rng, 150.0, 512.0)), program(11.0, 90e9, 18e9))

    @points(1)
    def test_near_the_ridge_it_is_still_the_smaller_of_the_two(self, answer):
        roofs(answer, "roof", program(85.0), program(100.0))

    @points(1)
    def test_it_says_what_the_program_waits_for(self, answer):
        roofs(answer, "bound", *(program(i) for i in (1.0, 21.0, 85.0, 100.0, 2048.0)))


# --- sees_future --------------------------------------------------------------------------------


def attend(x, allowed):
    """Self-attention without weights of its own; a row that may see nothing gives 0."""
    scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ x


def layer_of_torch(x, masked):
    """Torch's own layer, which with some versions forgets a mask that is only hinted at."""
    # Two heads: with an odd number the fast path, whose behavior is the question, is not taken.
    layer = nn.MultiheadAttention(x.shape[-1], 2, batch_first=True, dtype=x.dtype).eval()
    hidden = ~causal(x.shape[1]) if masked else None

    def fn(x):
        try:
            return layer(x, x, x, need_weights=False, attn_mask=hidden, is_causal=True)[0]
        except RuntimeError:  # it refuses instead: nothing leaks
            return attend(x, causal(x.shape[1]))

    return fn


def a_function(kind, x):
    """A function of (b n d) whose dependence on the future is known."""
    n, original = x.shape[1], x.clone()
    past, everything = causal(n), torch.ones(n, n, dtype=torch.bool)

    def shared(x, place, seen, share=0.5):
        y = attend(x, past)
        row = torch.zeros(n, 1, dtype=x.dtype)
        row[place] = share
        return y + row * x[:, seen : seen + 1]

    def rounded(x):  # other sums, other last digits, also of a number near zero
        noise = torch.sin(1e4 * x.sum((1, 2), keepdim=True))
        return attend(x, past) * (torch.arange(x.shape[2]) > 0) + 3e-7 * noise

    def moved(x, sign):
        y = attend(x, past)
        y[:, 1] += sign * 0.5 * (x[:, n - 1] - original[:, n - 1]).abs()
        return y

    def last_feature(x):
        y = attend(x, past)
        y[:, 0, :2] += 0.5 * x[:, n - 1, -1:] * torch.tensor([1.0, -1.0])
        return y

    def second_sentence(x):
        y = attend(x, past)
        y[1] = attend(x[1], everything)
        return y

    def without_gradients(x):
        return attend(x, past if torch.is_grad_enabled() else everything)

    return {
        "causal": lambda x: attend(x, past),
        "sees all": lambda x: attend(x, everything),
        "one word ahead": lambda x: attend(x, everything.tril(1)),
        "early": lambda x: shared(x, 0, 2),
        "late": lambda x: shared(x, n - 2, n - 1),
        "first": lambda x: shared(x, 0, 1),
        "faint": lambda x: shared(x, 1, n - 1, 3e-4),
        "raises": lambda x: moved(x, 1),
        "lowers": lambda x: moved(x, -1),
        "last feature": last_feature,
        "running sum": lambda x: x.cumsum(1),
        "second sentence": second_sentence,
        "rounding": rounded,
        "normed": lambda x: attend(F.layer_norm(x, x.shape[2:]), everything),
        "scaled": lambda x: attend(F.normalize(x, dim=-1), everything),
        "without gradients": without_gradients,
        "only the future": lambda x: attend(x, past.mT),
        "zeros ahead": lambda x: attend(x, everything),
        "one position": lambda x: attend(x, everything),
        "the hint of torch": lambda x: None,
        "the mask of torch": lambda x: None,
    }[kind]


KINDS = (
    *("causal", "sees all", "one word ahead", "early", "late", "faint", "second sentence"),
    *("first", "raises", "lowers", "last feature", "running sum"),
    *("rounding", "normed", "scaled", "without gradients", "only the future", "zeros ahead"),
    *("one position", "the hint of torch", "the mask of torch"),
)


def perturbed(sees_future, view="said"):
    """What the answer says of one kind of function; gradients are off, as when a model is used."""

    def function(kind, x):
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(3)
            fn = a_function(kind, x)
            if kind.endswith("of torch"):
                fn = layer_of_torch(x, masked="mask" in kind)
            kept = x.clone()
            with without(backends.sees_future):
                said = sees_future(fn, x)
        if view == "edited":
            return not torch.equal(kept, x)
        if isinstance(said, torch.Tensor) or type(said).__module__ == "numpy":
            said = said.item()
        if said is not None and not isinstance(said, bool):
            raise Unusable(f"returned {describe(said)}; True or False is expected.")
        return said

    return function


def edits_its_input(sees_future):
    return perturbed(sees_future, "edited")


def question(rng, kind, b=2, n=5, d=4):
    x = normal(rng, b, 1 if kind == "one position" else n, d)
    if kind == "zeros ahead":
        x[:, 1:] = 0
    return {"kind": kind, "x": x}


def future_probes(rng):
    return {kind: question(rng, kind) for kind in KINDS}


def future_traits(answer):
    inputs = question(torch.Generator().manual_seed(0), "causal")
    return {"edits x": answer.observe(inputs, adapt=edits_its_input).returned is True}


WHAT = {
    "causal": "attention with a causal mask",
    "sees all": "attention without a mask",
    "one word ahead": "attention that also sees the next position",
    "early": "causal attention with half of input 2 added to output 0",
    "late": "causal attention with half of the last input added to the output before it",
    "first": "causal attention with half of input 1 added to output 0",
    "faint": "causal attention with 0.0003 of the last input added to output 1",
    "raises": "causal attention whose output 1 rises, however the last input changes",
    "lowers": "causal attention whose output 1 falls, however the last input changes",
    "last feature": "causal attention with the last input's last feature added to one feature of "
    "output 0 and taken from another",
    "running sum": "the sum of the inputs so far",
    "second sentence": "a causal mask for the first sentence of the batch only",
    "rounding": "causal attention whose last digits (3e-7) depend on how it is summed up",
    "normed": "attention without a mask, after a layer norm",
    "scaled": "attention without a mask, of inputs scaled to length one",
    "without gradients": "attention that is causal only while gradients are on",
    "only the future": "attention that sees the present and the future, not the past",
    "zeros ahead": "attention without a mask, of an input that ends in zeros",
    "one position": "attention over a single position",
    "the hint of torch": "torch's nn.MultiheadAttention in eval mode, is_causal=True and no mask",
    "the mask of torch": "torch's nn.MultiheadAttention in eval mode, with a causal attn_mask",
}


def knows(answer, rng, *kinds):
    for kind in kinds:
        inputs = question(rng, kind, n=pick(rng, 5, 6))
        got, expected = answer(inputs), answer.expected(inputs)
        if got != expected:
            does = "changes an earlier output" if expected else "changes no earlier output"
            raise Failure(
                f"{WHAT[kind][0].upper()}{WHAT[kind][1:]}: changing later inputs {does}; you "
                f"say {got}."
            )


class TestSeesFuture:
    task = Task(
        name="sees_future",
        reference=reference.sees_future,
        returns=bool,
        difficulty=3,
        minutes=12,
        section="lab3-leak",
        hints=(
            "If nothing before position i may depend on position i, what must stay as it is when "
            "only the inputs from i on change?",
            "For each cut i from 1 to n − 1: copy x, add noise from i on, run fn again, and "
            "compare the outputs before i with the old ones. Compare all sentences.",
            "`changed = x.clone()`; `changed[:, i:] += torch.randn_like(changed[:, i:])`; compare "
            "`fn(changed)[:, :i]` with `before[:, :i]` by `torch.allclose` with an atol of 1e-5. "
            "One difference is enough for True.",
        ),
        probes=future_probes,
        small=lambda rng: iter(()),
        adapt=perturbed,
        traits=future_traits,
        chance=True,
    )

    @points(2)
    def test_it_tells_a_causal_mask_from_none(self, answer, rng):
        knows(answer, rng, "causal", "sees all", "one word ahead", "causal")

    @points(1)
    def test_it_looks_ahead_and_not_back(self, answer, rng):
        knows(answer, rng, "only the future", "running sum", "causal")

    @points(2)
    def test_a_leak_anywhere_is_found(self, answer, rng):
        knows(answer, rng, "early", "late", "first", "second sentence")
        knows(answer, rng, "raises", "lowers", "last feature")

    @points(1)
    def test_a_faint_leak_counts_and_rounding_does_not(self, answer, rng):
        knows(answer, rng, "faint", "rounding")

    @points(2)
    def test_a_norm_or_a_padding_hides_nothing(self, answer, rng):
        knows(answer, rng, "normed", "scaled", "zeros ahead")

    @points(1)
    def test_it_leaves_gradients_as_they_are(self, answer, rng):
        knows(answer, rng, "without gradients")

    @points(1)
    def test_it_says_what_torchs_own_layer_does_here(self, answer, rng):
        knows(answer, rng, "the hint of torch", "the mask of torch")

    @points(1)
    def test_one_position_has_no_future(self, answer, rng):
        knows(answer, rng, "one position")

    @points(1)
    def test_it_leaves_x_as_it_is(self, answer, rng):
        inputs = question(rng, "causal")
        answer(inputs)
        if answer.observe(inputs, adapt=edits_its_input).returned:
            raise Failure("Your answer changed `x` itself. Change a copy: `x.clone()`.")


# --- lab3_receipt -------------------------------------------------------------------------------

CALLS = ("mask", "dropout", "three axes", "strided key", "grouped heads", "bfloat16")
AS_MADE = {  # as `sdpa_call` makes them
    "mask": {"mask": "bool"},
    "dropout": {"dropout": 0.1},
    "three axes": {"layout": "h n d"},
    "strided key": {"layout": "b h d n"},
    "grouped heads": {"h": 8, "kv_heads": 2},
    "bfloat16": {"dtype": "bfloat16"},
}
PREDICTED = (*CALLS, "naive bound", "cost")
LARGE = 512  # a slow machine may stop here; a quick run, which is for trying out, ends at 256
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def called(record):
    """call -> point, of the single calls."""
    return {p["call"]: p for p in record["points"] if p["name"] == "call" and p.get("call")}


def predictions_missing(record):
    """What was not predicted before the first measurement."""
    made = record["predictions"]
    return [
        name
        for name in PREDICTED
        if not isinstance(made.get(name), dict)
        or made[name].get("value") in (None, "")
        or made[name].get("points") != 0
    ]


def ceilings_missing(record):
    ceilings = record["machine"].get("ceilings") or {}
    dtypes = {p.get("dtype") for p in timed(record, "naive").values()}
    return not ceilings.get("bytes_per_second") or not dtypes <= set(
        ceilings.get("flops_per_second") or {}
    )


def miscounted(record):
    """name, n, key, said, expected: of the work of naive and fused attention."""
    found = []
    for name in ("naive", "fused"):
        for n, p in timed(record, name).items():
            b, h, d = (p.get(key) or 1 for key in "bhd")
            width = WIDTHS.get(p.get("dtype"), 4)
            work = reference.attention_work(b, h, n, d, width, causal=False, backward=False)
            for key, expected in (("flops", work["flops"]), ("bytes", work[f"{name}_bytes"])):
                said = p.get(key) or 0
                if not abs(said - expected) <= 0.02 * expected:
                    found.append((name, n, key, said, expected))
    return found


def impossible_calls(record):
    """call, backend said, those that the rules allow."""
    machine = record["machine"]
    capability = tuple(machine["capability"]) if machine.get("capability") else "cpu"
    version = str(machine["torch"]).split("+")[0]
    found = []
    for call, point in called(record).items():
        if call not in AS_MADE or point.get("backend") is None:
            continue
        dtype = point.get("dtype") or ("float32" if capability == "cpu" else "float16")
        made = backends.sdpa_call(**{"dtype": dtype, "d": point.get("d") or 64} | AS_MADE[call])
        verdicts = backends.may_run(capability, **made, torch_version=version)
        allowed = [verdict.backend for verdict in verdicts if verdict.runs]
        if point["backend"] not in allowed:
            found.append((call, point["backend"], allowed))
    return found


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("backend_impossible", "math_called_flash", "not_interleaved", "mixed_dtypes"),
    *("copied_samples", "too_few_samples", "warm_up_counted", "too_regular", "edited"),
)


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    if record["lab"] != LAB:  # whatever else differs follows from that
        return {"readable": True, "cut off": False, "of this lab": False}
    found, calls = {each.name for each in grave(record)}, called(record)
    wrong = {(name, key) for name, _, key, _, _ in miscounted(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": True,
        "predicted": bool(record["predictions"]),
        "predicted in time": not predictions_missing(record),
        "ceilings": not ceilings_missing(record),
        "naive": len(timed(record, "naive")) >= 3,
        "fused": len(timed(record, "fused")) >= 3,
        "large": max(timed(record, "naive"), default=0) >= LARGE,
        **{f"{name} {key}": (name, key) in wrong for name in ("naive", "fused")
           for key in ("flops", "bytes")},
        "all calls": set(CALLS) | {"plain"} <= calls.keys(),
        "their backends": all(p.get("backend") for p in calls.values()),
        "possible calls": not impossible_calls(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }  # fmt: skip


class TestReceipt:
    task = Task(
        name="lab3_receipt",
        reference=reference.lab3_receipt,
        returns=list,
        difficulty=1,
        minutes=5,
        section="lab3-receipt",
        hints=(
            "Run the measuring cell to its end. It prints the receipt.",
            "The receipt is a long text that begins with attn1:. Put it between three quotes, "
            "after `return`; line breaks and spaces inside do not matter.",
            'return """attn1:…""" with all that stands between the quotes of the printed RECEIPT.',
        ),
        probes=lambda rng: {"receipt": {}},
        small=lambda rng: iter(()),
        adapt=as_text,
        traits=receipt_traits,
    )

    @points(1)
    def test_the_receipt_can_be_read(self, answer):
        read(answer)

    @points(1)
    def test_it_is_the_receipt_of_this_lab(self, answer):
        record_of(answer)

    @points(2)
    def test_predictions_were_written_before_the_first_measurement(self, answer):
        missing = predictions_missing(record_of(answer))
        if missing:
            raise Failure(
                f"Not predicted before the first measurement: {', '.join(missing)}. A prediction "
                "need not be right; it has to come first. Move the .jsonl file away, write your "
                "predictions and measure again."
            )

    @points(1)
    def test_the_ceilings_of_the_machine_were_measured(self, answer):
        if ceilings_missing(record_of(answer)):
            raise Failure(
                "No ceilings for the format of these points. A roofline needs the speed of a large "
                "product in that dtype and the bytes/s of a large copy, measured in this run."
            )

    @points(2)
    def test_naive_and_fused_attention_were_timed_and_their_work_counted(self, answer):
        record = record_of(answer)
        for name in ("naive", "fused"):
            if len(timed(record, name)) < 3:
                raise Failure(f'"{name}" has times at fewer than three sizes.')
            if max(timed(record, name)) < LARGE:
                raise Failure(
                    f'The largest n at which "{name}" has a time is {max(timed(record, name))}; '
                    f"{LARGE} or more is needed. A quick run is no result: start again without "
                    "ATTNCOURSE_QUICK, and measure."
                )
        for name, n, key, said, expected in miscounted(record):
            raise Failure(
                f"{name} at n = {n}: the receipt says {said:,.0f} {key}; by the formulas of "
                f"attention_work it is {expected:,.0f}."
            )

    @points(2)
    def test_every_call_of_the_table_has_a_backend_that_could_have_run(self, answer):
        record = record_of(answer)
        calls = called(record)
        missing = [c for c in ("plain", *CALLS) if not (calls.get(c) or {}).get("backend")]
        if missing:
            raise Failure(f"No backend is recorded for: {', '.join(missing)}.")
        for call, said, allowed in impossible_calls(record):
            raise Failure(
                f'The call "{call}": the receipt says {said}; on this machine only '
                f"{' or '.join(allowed)} takes it. Record what the trace shows."
            )

    @points(4)
    def test_nothing_in_it_is_impossible_or_contradicts_itself(self, answer):
        found = grave(record_of(answer))
        if found:
            more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
            raise Failure(f"{found[0]}{more}")


# --- who_computed_it ----------------------------------------------------------------------------

CONCLUSIONS = ("naive_bound", "fused_bound", "naive_share", "fell_back", "cost")
NAMES = (*CALLS, "flash with a mask", "plain", "naive", "fused")  # what may be said to fall back


def said(who_computed_it):
    """What the answer concludes; the calls that fell back as a row of 0 and 1."""

    def function(record):
        found = who_computed_it(record)
        if found is None:
            return None
        naive, fused, share, fell_back, cost = fields(found, CONCLUSIONS)
        if isinstance(fell_back, set | frozenset | tuple):
            fell_back = sorted(fell_back)
        if not isinstance(fell_back, list) or not all(isinstance(c, str) for c in fell_back):
            raise Unusable(
                f"says that 'fell_back' is {describe(fell_back)}; a list of calls is expected."
            )
        strange = [call for call in fell_back if call not in NAMES]
        if strange:
            raise Unusable(f"says that {strange[0][:60]!r} fell back; no call has that name.")
        row = [float(name in fell_back) for name in NAMES]
        return [
            bound_as_number(naive),
            bound_as_number(fused),
            as_number(share, "naive_share"),
            torch.tensor(row, dtype=torch.float64),
            as_number(cost, "cost"),
        ]

    return function


MACHINES = {
    "T4": {
        "device": "cuda",
        "label": "T4",
        "ceilings": {
            "flops_per_second": {"float16": 24e12, "float32": 7.5e12},
            "bytes_per_second": 0.26e12,
        },
    },
    "H100": {
        "device": "cuda",
        "label": "H100",
        "ceilings": {
            "flops_per_second": {"float32": 50e12, "float16": 700e12},
            "bytes_per_second": 3e12,
        },
    },
    "CPU": {
        "device": "cpu",
        "label": "CPU, 1 thread",
        "ceilings": {"flops_per_second": {"float32": 90e9}, "bytes_per_second": 18e9},
    },
}


FUSED = {"T4": "EFFICIENT", "H100": "CUDNN", "CPU": "FLASH"}  # who computes a plain call


def a_record(
    rng,
    *,
    machine="T4",
    dtype="float16",
    d=64,
    sizes=(128, 512, 1024, 2048, 4096, 8192),
    ends=4096,
    share=0.5,
    fell_back=("dropout", "bfloat16"),
    costs=(2.0, 5.0),
    flash_label=False,
    fused_fell=False,
    failed=(),
    unseen=(),
    disturbed=False,
):
    """A made-up record whose truth is known.

    Args:
        ends: the largest n that naive attention reaches.
        share: the speed of naive attention at that n, over its roof.
        fell_back: calls that MATH computed, and `costs`: their times over the plain call's.
        flash_label: whether a call with "flash" in its name fell back, too (at no cost).
        fused_fell: whether MATH computed the points of fused attention (which are no calls).
        failed: calls that ran out of memory.
        unseen: calls that ran out of memory before anybody saw who computed them.
        disturbed: whether some samples are many times too long and some a little too short.

    Returns:
        record, truth.
    """
    b, h, width = 1, 16, WIDTHS[dtype]
    ceilings, fused = MACHINES[machine]["ceilings"], FUSED[machine]
    peaks = ceilings["flops_per_second"][dtype], ceilings["bytes_per_second"]

    def samples(seconds, wild=False):
        factors = (0.012 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
        made = [round(seconds * factor, 12) for factor in factors]
        if wild:
            for factor, places in ((2.5, [0]), (4, range(3, 9)), (0.8, (10, 14, 17))):
                for place in places:
                    made[place] *= factor
        return made

    made, bounds = [], {}
    for n in sizes:
        work = reference.attention_work(b, h, n, d, width, causal=False, backward=False)
        for name in ("naive", "fused"):
            under = reference.roof_over(work["flops"], work[f"{name}_bytes"], *peaks)
            bounds[name, n] = under["bound"]
            lost = name == "naive" and n > ends
            reached = share if name == "naive" else 0.4
            # Smaller ones are further from their roof, so another n gives another share.
            seconds = work["flops"] / (under["roof"] * reached) * (1 + 0.4 * ends / n) / 1.4
            made.append(
                {
                    **{"name": name, "n": n, "b": b, "h": h, "d": d, "dtype": dtype},
                    "seconds": [] if lost else samples(seconds, disturbed and n == ends),
                    "clock": "cpu" if machine == "CPU" else "events",
                    "flops": work["flops"],
                    "bytes": work[f"{name}_bytes"],
                    "backend": "NAIVE" if name == "naive" else "MATH" if fused_fell else fused,
                    "error": "out of memory" if lost else None,
                }
            )
    price = dict(zip(fell_back, costs, strict=True))
    names = ["plain", *CALLS] + ["flash with a mask"] * flash_label
    for call in names:
        math = call in price or call == "flash with a mask"
        lost = call in failed or call in unseen
        seconds = 2e-3 * price.get(call, 1.1 + 0.1 * names.index(call) / 8)
        # A fused kernel may be slow, too: with a mask it has more to read.
        seconds = 2e-3 * 7 if call == "mask" and not math else seconds
        # With fewer keys it has less to read, and may be faster than the plain call.
        seconds = 2e-3 * 0.6 if call == "grouped heads" and not math else seconds
        seconds = 2e-3 if call == "plain" else seconds
        made.append(
            {
                **{"name": "call", "call": call, "n": 1024, "b": b, "h": h, "d": d},
                "dtype": "bfloat16" if call == "bfloat16" else dtype,
                "seconds": [] if lost else samples(seconds, disturbed),
                "clock": "cpu" if machine == "CPU" else "events",
                "flops": None,
                "bytes": None,
                "backend": None if call in unseen else "MATH" if math else fused,
                "error": "out of memory" if lost else None,
            }
        )
    paid = [cost for call, cost in price.items() if call not in failed]
    if flash_label and "flash with a mask" not in failed:
        paid.append(1.1 + 0.1 * names.index("flash with a mask") / 8)
    truth = {
        "naive_bound": bounds["naive", ends] == "memory",
        "fused_bound": bounds["fused", ends] == "memory",
        "naive_share": share,
        "fell_back": [*price] + ["flash with a mask"] * flash_label,
        "cost": max(paid, default=1.0),
    }
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    record = {
        "lab": LAB,
        "machine": dict(MACHINES[machine]),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in zip(PREDICTED, [*["FLASH"] * 6, "memory", 2], strict=True)
        },
        "points": [made[place] for place in order],
    }
    return record, truth


CPU_RECORD = {"machine": "CPU", "dtype": "float32", "sizes": (256, 512, 1024, 2048), "ends": 2048}
RECORDS = {
    "T4": {},
    "T4 in float32": {"dtype": "float32", "d": 256, "share": 0.3},
    "CPU": {**CPU_RECORD, "fell_back": ("three axes", "strided key"), "costs": (6.0, 2.5)},
    "CPU, narrow heads": {**CPU_RECORD, "d": 16, "share": 0.8},
    "H100, short": {
        **{"machine": "H100", "sizes": (128, 256, 512), "ends": 256, "share": 0.2},
        **{"fell_back": (), "costs": ()},
    },
    "disturbed": {"disturbed": True, "share": 0.35},
    "a misleading name": {"flash_label": True, "fell_back": ("three axes",), "costs": (2.0,)},
    "fused attention fell back": {"fused_fell": True},
    "the plain call fell back": {"fell_back": ("plain", "dropout"), "costs": (1.0, 3.0)},
    "one call ran out of memory": {"failed": ("bfloat16",)},
    "nobody saw a call that ran out of memory": {"unseen": ("strided key",)},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


def says(answer, rng, name, *kinds):
    """Assert that one conclusion is right about these records."""
    for kind in kinds:
        record, truth = a_record(rng, **RECORDS[kind])
        got = answer({"record": record})[CONCLUSIONS.index(name)]
        about = f"In a made-up record ({kind}), {name}"
        if name == "fell_back":
            got = sorted(call for call, is_in in zip(NAMES, got, strict=True) if is_in)
            compare_lists(about, got, sorted(truth[name]))
        elif name.endswith("bound"):
            if bool(got) != truth[name]:
                raise Failure(f"{about} is {_bound(truth[name])}; you say {_bound(got.item())}.")
        elif not abs(got.item() - truth[name]) <= 0.08 * truth[name]:
            raise Failure(f"{about} is {truth[name]:.3g}; your function says {got.item():.3g}.")


def compare_lists(about, got, expected):
    if got != expected:
        raise Failure(
            f"{about}: {', '.join(expected) or 'nothing'}; you say {', '.join(got) or 'nothing'}."
        )


class TestWhoComputedIt:
    task = Task(
        name="who_computed_it",
        reference=reference.who_computed_it,
        returns=CONCLUSIONS,
        difficulty=3,
        minutes=15,
        section="lab3-conclude",
        hints=(
            "Sort the points first: naive by n, fused by n, calls by their name. Which have times?",
            "The machine's ceilings are by dtype: take that of the naive point. Bound "
            "and roof are those of task 4; the share is the measured speed over the roof.",
            "n = the largest with a naive time. For the points there: intensity and ridge, and the "
            "smaller of the two limits for naive. fell_back: the `call` of every point whose "
            "backend is MATH. cost: the longest of their medians over that of plain.",
        ),
        probes=conclude_probes,
        small=lambda rng: iter(()),
        adapt=said,
        tolerance=0.04,
    )

    @points(2)
    def test_whether_naive_attention_waits_for_memory_depends_on_the_machine(self, answer, rng):
        says(answer, rng, "naive_bound", "T4", "CPU", "CPU, narrow heads", "T4 in float32")

    @points(1)
    def test_fused_attention_stands_elsewhere_under_the_same_roof(self, answer, rng):
        says(answer, rng, "fused_bound", "T4", "CPU", "H100, short", "CPU, narrow heads")

    @points(2)
    def test_the_share_is_the_measured_speed_over_the_roof(self, answer, rng):
        says(answer, rng, "naive_share", "T4", "CPU", "T4 in float32", "CPU, narrow heads")

    @points(1)
    def test_a_few_disturbed_samples_do_not_move_it(self, answer, rng):
        for name in ("naive_share", "cost"):
            says(answer, rng, name, "disturbed")

    @points(2)
    def test_what_fell_back_is_read_from_the_backend_and_not_from_the_name(self, answer, rng):
        says(answer, rng, "fell_back", "T4", "CPU", "H100, short", "a misleading name")
        says(answer, rng, "fell_back", "fused attention fell back", "the plain call fell back")
        says(answer, rng, "fell_back", "one call ran out of memory")
        says(answer, rng, "fell_back", "nobody saw a call that ran out of memory")

    @points(2)
    def test_the_cost_is_that_of_the_slowest_fallback(self, answer, rng):
        says(answer, rng, "cost", "T4", "CPU", "a misleading name", "one call ran out of memory")

    @points(1)
    def test_without_a_fallback_the_cost_is_one(self, answer, rng):
        says(answer, rng, "cost", "H100, short")

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, {"record": a_record(rng)[0]})

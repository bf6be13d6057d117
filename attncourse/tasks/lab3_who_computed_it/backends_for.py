"""backends_for."""

import torch

from attncourse.checks.answer import Failure, describe
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import backends
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.tasks.lab3_who_computed_it import A100, CPU, H100, L4, T4, pick, without

RULES = (backends.may_run, backends.default_backend)


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


task = Task(
    reference.backends_for,
    number=2,
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


@task.check(2)
def a_t4_has_no_flash(answer):
    may_compute(answer, [T4], {}, {"dtype": "float32"})


@task.check(1)
def newer_gpus_have_flash_and_efficient(answer):
    may_compute(answer, [A100, L4], {}, {"d": 128})


@task.check(1)
def an_h100_asks_cudnn_first(answer):
    may_compute(answer, [H100], {}, {"d": 136}, {"dtype": "float32"})


@task.check(2)
def each_kernel_has_its_formats(answer):
    may_compute(answer, DEVICES, *QUESTIONS["dtype"])


@task.check(1)
def a_mask_keeps_flash_away_and_nobody_else(answer):
    may_compute(answer, DEVICES, *QUESTIONS["mask"])


@task.check(1)
def three_axes_or_a_strided_last_axis_leave_only_math(answer):
    may_compute(answer, DEVICES, *QUESTIONS["layout"])


@task.check(1)
def dropout_stops_the_cpu_and_no_gpu(answer):
    may_compute(answer, DEVICES, *QUESTIONS["dropout"])


@task.check(1)
def grouped_heads_keep_efficient_away(answer):
    may_compute(answer, DEVICES, *QUESTIONS["grouped heads"])


@task.check(1)
def widths_have_to_fit(answer):
    may_compute(answer, DEVICES, *QUESTIONS["width"])


@task.check(1)
def a_causal_call_with_other_keys_than_queries_is_not_for_flash(answer):
    may_compute(answer, DEVICES, *QUESTIONS["crossed"])


@task.check(1)
def several_rules_at_once(answer, rng):
    for _ in range(12):
        unlike = {
            "dtype": pick(rng, "float16", "bfloat16", "float32"),
            "d": pick(rng, 64, 60, 128, 256),
            "mask": pick(rng, True, False),
            "dropout": pick(rng, 0.0, 0.25),
            "kv_heads": pick(rng, 8, 2),
        }
        may_compute(answer, [pick(rng, *DEVICES)], unlike)


# --- faults ---------------------------------------------------------------------------------------


def rules(capability, call, **unlike):
    """Right, but for what `unlike` says about single rules."""
    dtype, d, half = call["dtype"], call["d"], call["dtype"] in ("float16", "bfloat16")
    if call["axes"] != 4 and not unlike.get("any_axes"):
        return ["MATH"]
    if call["last_stride"] != 1 and not unlike.get("any_stride"):
        return ["MATH"]
    grouped = call["heads"] != call["kv_heads"]
    if grouped and unlike.get("no_groups"):
        return ["MATH"]
    if call["mask"] and unlike.get("no_mask"):
        return ["MATH"]
    if capability == "cpu":
        stopped = call["dropout"] > 0 and not unlike.get("cpu_dropout")
        return ["MATH"] if stopped else ["FLASH"] if unlike.get("no_math") else ["FLASH", "MATH"]
    if call["dropout"] > 0 and unlike.get("no_dropout"):
        return ["MATH"]
    ampere = capability >= (8, 0)
    crossed = call["causal"] and call["queries"] != call["keys"]
    wide = d % (8 if half else 4 if ampere else 1) == 0 or unlike.get("any_width")
    formats = ["float16", "float32"] + ["bfloat16"] * (ampere or unlike.get("t4_bfloat16", False))
    cudnn = half and d <= 128 and d % 8 == 0 and ampere
    cudnn = cudnn and (capability == (9, 0) or unlike.get("cudnn_everywhere", False))
    runs = {
        "CUDNN": cudnn and not unlike.get("no_cudnn"),
        "FLASH": (ampere or unlike.get("t4_flash"))
        and (half or (dtype == "float32" and unlike.get("flash_float32")))
        and (not call["mask"] or unlike.get("flash_mask"))
        and d <= (128 if unlike.get("flash_128") else 256)
        and (not crossed or unlike.get("crossed")),
        "EFFICIENT": dtype in formats and wide and (not grouped or unlike.get("groups")),
        "MATH": not unlike.get("no_math"),
    }
    return [backend for backend, may in runs.items() if may] or ["MATH"]


@task.fault(
    "L3-T4-FLASH",
    thinks="Every GPU with tensor cores has FLASH.",
    why="FlashAttention-2 was written for compute capability 8.0 and newer. A T4 has 7.5: there "
    "torch takes EFFICIENT, which has the same idea.",
)
def flash_on_every_gpu(capability, call):
    return rules(capability, call, t4_flash=True)


@task.fault(
    "L3-T4-BFLOAT16",
    thinks="bfloat16 is as good as float16, so the same kernels take it.",
    why="A T4 has no bfloat16 units; torch emulates it. The fused kernels refuse there, and MATH "
    "runs without a word.",
)
def bfloat16_on_every_gpu(capability, call):
    return rules(capability, call, t4_bfloat16=True)


@task.fault(
    "L3-FLASH-FLOAT32",
    thinks="FLASH is exact, so it works in float32 as well.",
    why="Exact means that it leaves nothing out, not that it takes all formats. On a GPU it "
    "computes in 16 bits only; in float32 EFFICIENT takes over.",
)
def flash_in_float32(capability, call):
    return rules(capability, call, flash_float32=True)


@task.fault(
    "L3-FLASH-MASK",
    thinks="FLASH takes any mask.",
    why="It knows only is_causal. With an attn_mask torch passes it over, even if the mask is the "
    "causal one.",
)
def flash_with_a_mask(capability, call):
    return rules(capability, call, flash_mask=True)


@task.fault(
    "L3-MASK-STOPS-ALL",
    thinks="With a mask no fused kernel runs.",
    why="Only FLASH on a GPU refuses it. EFFICIENT, CUDNN and the CPU's kernel read a mask.",
)
def no_kernel_with_a_mask(capability, call):
    return rules(capability, call, no_mask=True)


@task.fault(
    "L3-DROPOUT-STOPS-ALL",
    thinks="Dropout has to change the weights, and fused kernels have none to change.",
    why="Kernels on a GPU draw it inside their tiles. It is the CPU's kernel that has no dropout.",
)
def no_kernel_with_dropout(capability, call):
    return rules(capability, call, no_dropout=True)


@task.fault(
    "L3-CPU-DROPOUT",
    thinks="The CPU's kernel does what those of a GPU do.",
    why="It has no dropout: with any, MATH runs instead, and the scores are in memory again.",
)
def dropout_on_the_cpu(capability, call):
    return rules(capability, call, cpu_dropout=True)


@task.fault(
    "L3-GROUPS-EFFICIENT",
    thinks="enable_gqa works with every fused kernel.",
    why="In torch 2.11 EFFICIENT does not know it. On a T4, which has nothing else, grouped heads "
    "end in MATH, which copies the keys for every head.",
)
def efficient_with_groups(capability, call):
    return rules(capability, call, groups=True)


@task.fault(
    "L3-GROUPS-STOP-ALL",
    thinks="Grouped heads always end in MATH.",
    why="FLASH, CUDNN and the CPU's kernel take them. Only EFFICIENT refuses.",
)
def no_kernel_with_groups(capability, call):
    return rules(capability, call, no_groups=True)


@task.fault(
    "L3-THREE-AXES",
    thinks="The batch axis may be missing; torch adds it.",
    why="The call works, so one does not notice. But the fused kernels want four axes (b h n d), "
    "and nobody adds one: MATH runs.",
)
def three_axes_will_do(capability, call):
    return rules(capability, call, any_axes=True)


@task.fault(
    "L3-STRIDE",
    thinks="How a tensor lies in memory is torch's business.",
    why="The kernels read a position's numbers as neighbors. Where the last axis has another "
    "stride they refuse, and MATH runs.",
)
def any_stride_will_do(capability, call):
    return rules(capability, call, any_stride=True)


@task.fault(
    "L3-NO-MATH",
    thinks="MATH is what is left if nothing else runs, so it is listed only then.",
    why="It may always run, after the others. With the switch of `sdpa_kernel` you can ask for it "
    "on any call. It belongs at the end of every list.",
)
def math_only_if_nothing_else(capability, call):
    return rules(capability, call, no_math=True)


@task.fault(
    "L3-CROSSED",
    thinks="is_causal works with as many queries as you like.",
    why="With other keys than queries there are two ways to lay the triangle, by the first or by "
    "the last positions. FLASH lays it the other way, so torch does not let it.",
)
def causal_with_any_lengths(capability, call):
    return rules(capability, call, crossed=True)


@task.fault(
    "L3-WIDTH",
    thinks="Heads may have any width.",
    why="EFFICIENT reads 16 bytes at a time, eight numbers of 16 bits. A width of 60 does not "
    "divide by eight, and it refuses.",
)
def any_width_will_do(capability, call):
    return rules(capability, call, any_width=True)


@task.fault(
    "L3-CUDNN-EVERYWHERE",
    thinks="cuDNN is on every new GPU, so it is tried on each.",
    why="It is there, but torch takes it by itself only on an H100. Elsewhere it runs when you ask "
    "for it.",
)
def cudnn_on_every_gpu(capability, call):
    return rules(capability, call, cudnn_everywhere=True)


@task.fault(
    "L3-NO-CUDNN",
    thinks="FLASH comes first on every GPU that has it.",
    why="On an H100 torch asks cuDNN before, whose kernel is written for that GPU. FLASH, made for "
    "the A100, comes second.",
)
def flash_before_all(capability, call):
    return rules(capability, call, no_cudnn=True)


@task.fault(
    "L3-FLASH-128",
    thinks="FLASH takes heads up to a width of 128.",
    why="That was its first version. Torch's takes 256; 128 is the limit of cuDNN's kernel.",
)
def flash_to_128(capability, call):
    return rules(capability, call, flash_128=True)


@task.fault(
    "L3-FIRST-ONLY",
    thinks="Only the one that runs is interesting.",
    why="It is the first of the list, but not the list: if it is switched off, or another version "
    "refuses, the next one runs. Return all that may.",
)
def first_only(capability, call):
    return rules(capability, call)[:1]


@task.fault(
    "L3-ALPHABET",
    thinks="The order does not matter.",
    why="Torch takes the first that may run, so the order decides. MATH is last.",
)
def in_alphabetical_order(capability, call):
    return sorted(rules(capability, call))


@task.fault(
    "L3-COURSES-RULES",
    thinks="The package has may_run, so I call that.",
    why="Compare with it when you have your own. Here the table is to become your code.",
)
def calls_may_run(capability, call):
    q = torch.empty(1, 8, 16, 64, dtype=torch.float16, device="meta")
    verdicts = backends.may_run(capability, q, q, q)
    return [verdict.backend for verdict in verdicts if verdict.runs]

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


def probes(rng):
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


def may_compute(answer, devices, *questions, ordered=False):
    """Assert that these calls on these devices have the right backends, in whatever order."""
    for device in devices:
        for unlike in questions or ({},):
            inputs = asked(device, **unlike)
            got, expected = answer(inputs), answer.expected(inputs)
            if got != expected if ordered else sorted(got) != sorted(expected):
                said = "torch tries" if ordered else "what may compute it:"
                between = ", then " if ordered else ", "
                right, yours = (between.join(names) or "nothing" for names in (expected, got))
                raise Failure(f"{in_words(**inputs)}, {said} {right}; you say {yours}.")


task = Task(
    reference.backends_for,
    number=2,
    returns=list,
    difficulty=3,
    minutes=15,
    section="lab3-rules",
    probes=probes,
    small=lambda rng: iter(()),
    adapt=ruled,
    ready_made=RULES,
)


@task.check(1, "a T4 has no flash kernel")
def a_t4_has_no_flash(answer):
    may_compute(answer, [T4], {}, {"dtype": "float32"})


@task.check(1, "newer GPUs have the flash and the memory-efficient kernel")
def newer_gpus_have_flash_and_efficient(answer):
    may_compute(answer, [A100, L4], {}, {"d": 128})


@task.check(1, "an H100 has cuDNN as well")
def an_h100_has_cudnn_as_well(answer):
    may_compute(answer, [H100], {}, {"d": 136}, {"dtype": "float32"})


@task.check(2)
def each_kernel_has_its_formats(answer):
    may_compute(answer, DEVICES, *QUESTIONS["dtype"])


@task.check(1, "a mask keeps the flash kernel away, and no other")
def a_mask_keeps_flash_away_and_nobody_else(answer):
    may_compute(answer, DEVICES, *QUESTIONS["mask"])


@task.check(1, "three axes, or a strided last axis, leave only the math kernel")
def three_axes_or_a_strided_last_axis_leave_only_math(answer):
    may_compute(answer, DEVICES, *QUESTIONS["layout"])


@task.check(1, "dropout rules kernels out on a CPU, and not on a GPU")
def dropout_stops_the_cpu_and_no_gpu(answer):
    may_compute(answer, DEVICES, *QUESTIONS["dropout"])


@task.check(1, "grouped heads keep the memory-efficient kernel away")
def grouped_heads_keep_efficient_away(answer):
    may_compute(answer, DEVICES, *QUESTIONS["grouped heads"])


@task.check(1)
def widths_have_to_fit(answer):
    may_compute(answer, DEVICES, *QUESTIONS["width"])


@task.check(1, "a causal call with unequal numbers of queries and keys is not for flash")
def a_causal_call_with_other_keys_than_queries_is_not_for_flash(answer):
    may_compute(answer, DEVICES, *QUESTIONS["crossed"])


@task.check(1, "the order is the one in which PyTorch asks")
def the_order_is_torchs(answer):
    may_compute(answer, DEVICES, ordered=True)


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


# --- steps --------------------------------------------------------------------------------------


HALF = ("float16", "bfloat16")


def stops_all(axes=True, stride=True, mask=False, dropout=False, groups=False):
    """What of these stops every fused kernel."""

    def stopped(call):
        return (
            (axes and call["axes"] != 4)
            or (stride and call["last_stride"] != 1)
            or (mask and call["mask"])
            or (dropout and call["dropout"] > 0)
            or (groups and call["heads"] != call["kv_heads"])
        )

    return stopped


def cudnn(on=(H100,)):
    def may(capability, call):
        return (
            capability in on and call["dtype"] in HALF and call["d"] % 8 == 0 and call["d"] <= 128
        )

    return may


def crossed(call):
    return call["causal"] and call["queries"] != call["keys"]


def flash(since=A100, dtypes=HALF, masked=False, width=256, multiple=1, refused=crossed):
    def may(capability, call):
        fits = call["d"] <= width and call["d"] % multiple == 0
        wanted = capability >= since and call["dtype"] in dtypes and (masked or not call["mask"])
        return wanted and fits and not refused(call)

    return may


def efficient(
    bfloat16=A100, groups=False, more=(), multiple=lambda half, ampere: 8 if half else 4**ampere
):
    def may(capability, call):
        dtypes = ["float16", "float32"] + ["bfloat16"] * (capability >= bfloat16) + [*more]
        step = multiple(call["dtype"] in HALF, capability >= A100)
        fits = call["d"] % step == 0 and (groups or call["heads"] == call["kv_heads"])
        return call["dtype"] in dtypes and fits

    return may


@task.steps
class Rules:
    stopped, cudnn, flash, efficient = stops_all(), cudnn(), flash(), efficient()

    def on_the_cpu(call):
        return call["dropout"] == 0

    def listed(runs):
        return [backend for backend, may in runs.items() if may]

    def __call__(self, capability, call):
        runs = {}
        if self.stopped(call):
            pass
        elif capability == CPU:
            runs = {"FLASH": self.on_the_cpu(call)}
        else:
            fused = {"CUDNN": self.cudnn, "FLASH": self.flash, "EFFICIENT": self.efficient}
            runs = {name: may(capability, call) for name, may in fused.items()}
        return self.listed(runs | {"MATH": True})


# --- faults -------------------------------------------------------------------------------------


ORDER = ("FLASH", "CUDNN", "EFFICIENT", "MATH")


def only_what_is_left(runs):
    return [name for name, may in runs.items() if may and name != "MATH"] or ["MATH"]


task.fault("L3-T4-FLASH", flash=flash(since=T4))
task.fault("L3-T4-BFLOAT16", efficient=efficient(bfloat16=T4))
task.fault("L3-FLASH-FLOAT32", flash=flash(dtypes=(*HALF, "float32")))
task.fault("L3-FLASH-MASK", flash=flash(masked=True))
task.fault("L3-MASK-STOPS-ALL", stopped=stops_all(mask=True))
task.fault("L3-DROPOUT-STOPS-ALL", stopped=stops_all(dropout=True))
task.fault("L3-CPU-DROPOUT", on_the_cpu=lambda call: True)
task.fault("L3-GROUPS-EFFICIENT", efficient=efficient(groups=True))
task.fault("L3-GROUPS-STOP-ALL", stopped=stops_all(groups=True))
task.fault(
    "L3-CPU-GROUPS",
    on_the_cpu=lambda call: call["dropout"] == 0 and call["heads"] == call["kv_heads"],
)
task.fault(
    "L3-CPU-AS-GPU",
    on_the_cpu=(
        lambda call: call["dropout"] == 0 and not call["mask"],
        lambda call: call["dropout"] == 0 and not crossed(call),
        lambda call: call["dropout"] == 0 and not call["mask"] and not crossed(call),
        lambda call: not call["mask"] and not crossed(call),
    ),
)
task.fault("L3-FLOAT64", efficient=efficient(more=("float64",)))
task.fault("L3-THREE-AXES", stopped=stops_all(axes=False))
task.fault("L3-STRIDE", stopped=stops_all(stride=False))
task.fault("L3-NO-MATH", listed=only_what_is_left)
task.fault("L3-CROSSED", flash=flash(refused=lambda call: False))
task.fault("L3-CROSSED-ALWAYS", flash=flash(refused=lambda call: call["queries"] != call["keys"]))
task.fault("L3-CAUSAL-NO-FLASH", flash=flash(refused=lambda call: call["causal"]))
task.fault("L3-WIDTH", efficient=efficient(multiple=lambda half, ampere: 1))
task.fault(
    "L3-ONE-MULTIPLE",
    efficient=(
        efficient(multiple=lambda half, ampere: 8),
        efficient(multiple=lambda half, ampere: 8 if half else 4),
    ),
)
task.fault("L3-FLASH-EIGHT", flash=flash(multiple=8))
task.fault("L3-CUDNN-EVERYWHERE", cudnn=(cudnn(on=(A100, L4, H100)), cudnn(on=(L4, H100))))
task.fault(
    "L3-NO-CUDNN",
    cudnn=(cudnn(on=()), ...),
    listed=(..., lambda runs: [name for name in ORDER if runs.get(name)]),
)
task.fault("L3-FLASH-128", flash=flash(width=128))
task.fault("L3-FIRST-ONLY", listed=lambda runs: [name for name, may in runs.items() if may][:1])
task.fault("L3-ALPHABET", listed=lambda runs: sorted(name for name, may in runs.items() if may))


@task.fault("L3-COURSES-RULES")
def calls_may_run(capability, call):
    q = torch.empty(1, 8, 16, 64, dtype=torch.float16, device="meta")
    return [rule.backend for rule in backends.may_run(capability, q, q, q) if rule.runs]

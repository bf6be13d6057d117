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
        *({"d": 60}, {"d": 80}, {"d": 128}, {"d": 256}, {"d": 320}, {"d": 136}),
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


def beside_the_plain(answer, device, expected, **dtype):
    """What an answer that is wrong about the plain call, of this dtype, has to say of another one.

    What was wrong there has a check of its own: here counts what is added and taken away.
    """
    plain = asked(device, **dtype)
    own, right = (set(each(plain)) for each in (answer, answer.expected))
    return own - (right - set(expected)) | (set(expected) - right)


def may_compute(answer, devices, *questions, ordered=False, several=False):
    """Assert that these calls on these devices have the right backends, in whatever order.

    Or `ordered`: that those which the answer has, too, come in the right order. If `several` rules
    are asked for, that of the dtype is one of them.
    """
    for device in devices:
        for unlike in questions or ({},):
            inputs = asked(device, **unlike)
            got, expected = answer(inputs), answer.expected(inputs)
            bases = [{}] if unlike and not ordered else []
            if bases and "dtype" in unlike and len(unlike) > 1 and not several:
                bases.append({"dtype": unlike["dtype"]})
            beside = (beside_the_plain(answer, device, expected, **base) for base in bases)
            if any(sorted(got) == sorted(each) for each in beside):
                continue
            shared = [name for name in expected if name in got]
            if ordered and [x for x in got if x in expected] == shared:
                continue
            if got != expected if ordered else sorted(got) != sorted(expected):
                said = "torch tries" if ordered else "what may compute it:"
                between = ", then " if ordered else ", "
                right, yours = (between.join(names) or "nothing" for names in (expected, got))
                said = f"{in_words(**inputs)}, {said} {right}; you say {yours}."
                raise Failure(said, whole="result")


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


@task.check(1, "a T4 has EFFICIENT and MATH alone, a CPU FLASH and MATH")
def a_t4_has_no_flash(answer):
    may_compute(answer, [T4, CPU])


@task.check(1, "an A100 and an L4 have the flash and the memory-efficient kernel, and not cuDNN")
def newer_gpus_have_flash_and_efficient(answer):
    may_compute(answer, [A100, L4], {}, {"d": 128})


@task.check(1, "an H100 has cuDNN as well")
def an_h100_has_cudnn_as_well(answer):
    may_compute(answer, [H100])


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


@task.check(1, "unequal numbers of queries and keys keep a causal call from flash, and no other")
def a_causal_call_with_other_keys_than_queries_is_not_for_flash(answer):
    may_compute(answer, DEVICES, *QUESTIONS["crossed"])


@task.check(1, "the order is the one in which PyTorch asks")
def the_order_is_torchs(answer):
    asks = list(map(asked, DEVICES))
    if all(len({*answer(each)} & {*answer.expected(each)}) < 2 for each in asks):
        may_compute(answer, DEVICES)  # one alone has no order
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
        may_compute(answer, [pick(rng, *DEVICES)], unlike, several=True)


# --- steps: the table of the task, a kernel's column each -----------------------------------------


HALF = ("float16", "bfloat16")


def yes(capability, call):
    return True


def no(capability, call):
    return False


def since(oldest):
    return lambda capability, call: capability >= oldest


def on(*devices):
    return lambda capability, call: capability in devices


def of(*dtypes):
    return lambda capability, call: call["dtype"] in dtypes


def wide(most, multiple=1):
    return lambda capability, call: call["d"] <= most and call["d"] % multiple == 0


def in_steps(half=8, ampere=4, older=1):
    """Widths: a multiple of this many numbers; of 32 bits, on newer and older GPUs."""

    def fits(capability, call):
        single = ampere if capability >= A100 else older
        return call["d"] % (half if call["dtype"] in HALF else single) == 0

    return fits


def unmasked(capability, call):
    return not call["mask"]


def without_dropout(capability, call):
    return call["dropout"] == 0


def as_many_heads(capability, call):
    return call["heads"] == call["kv_heads"]


def aligned(capability, call):
    return not call["causal"] or call["queries"] == call["keys"]


ROWS = ("where", "dtype", "width", "mask", "dropout", "heads", "causal")


@task.steps
class Rules:
    cudnn_where, cudnn_dtype, cudnn_width = on(H100), of(*HALF), wide(128, multiple=8)
    cudnn_mask = cudnn_dropout = cudnn_heads = cudnn_causal = yes

    flash_where, flash_dtype, flash_width = since(A100), of(*HALF), wide(256)
    flash_mask, flash_dropout, flash_heads, flash_causal = unmasked, yes, yes, aligned

    efficient_where, efficient_width = yes, in_steps()
    efficient_mask, efficient_dropout, efficient_heads, efficient_causal = (
        yes,
        yes,
        as_many_heads,
        yes,
    )

    cpu_where = cpu_dtype = cpu_width = cpu_mask = cpu_heads = cpu_causal = yes
    cpu_dropout = without_dropout

    def efficient_dtype(capability, call):
        return call["dtype"] in ("float16", "float32") or (
            call["dtype"] == "bfloat16" and capability >= A100
        )

    def axes(call):
        return call["axes"] == 4

    def stride(call):
        return call["last_stride"] == 1

    def listed(runs):
        return [backend for backend, may in runs.items() if may]

    def may(self, kernel, capability, call):
        rules = (getattr(self, f"{kernel}_{row}") for row in ROWS)
        laid_out = self.axes(call) and self.stride(call)
        return laid_out and all(rule(capability, call) for rule in rules)

    def __call__(self, capability, call):
        kernels = {"CUDNN": "cudnn", "FLASH": "flash", "EFFICIENT": "efficient"}
        if capability == CPU:
            kernels = {"FLASH": "cpu"}
        runs = {name: self.may(kernel, capability, call) for name, kernel in kernels.items()}
        return self.listed(runs | {"MATH": True})


# --- faults: where ------------------------------------------------------------------------------

task.fault("L3-T4-FLASH", flash_where=yes)
task.fault("L3-FLASH-NEWER", flash_where=lambda capability, call: capability > A100)
task.fault("L3-T4-MATH", efficient_where=since(A100))
task.fault("L3-CUDNN-EVERYWHERE", cudnn_where=(since(A100), on(L4, H100), yes))


def in_order(*names):
    return lambda runs: [name for name in (*names, "MATH") if runs.get(name)]


task.fault(
    "L3-NO-CUDNN",
    cudnn_where=(no, ...),
    listed=(..., in_order("FLASH", "CUDNN", "EFFICIENT"), in_order("FLASH", "EFFICIENT", "CUDNN")),
)
task.fault("L3-CPU-MATH", cpu_where=no)

# --- faults: dtypes -----------------------------------------------------------------------------

task.fault("L3-T4-BFLOAT16", efficient_dtype=of(*HALF, "float32"))
task.fault("L3-EFFICIENT-NO-BFLOAT16", efficient_dtype=of("float16", "float32"))
task.fault("L3-FLASH-FLOAT32", flash_dtype=(of(*HALF, "float32"), yes))
task.fault("L3-CUDNN-FLOAT32", cudnn_dtype=(of(*HALF, "float32"), yes))
task.fault(
    "L3-EFFICIENT-16-BITS",
    efficient_dtype=lambda capability, call: (
        call["dtype"] == "float16" or (call["dtype"] == "bfloat16" and capability >= A100)
    ),
)
task.fault(
    "L3-FLOAT64",
    efficient_dtype=lambda capability, call: call["dtype"] != "bfloat16" or capability >= A100,
)
task.fault(
    "L3-NO-BFLOAT16",
    cudnn_dtype=of("float16"),
    flash_dtype=of("float16"),
    efficient_dtype=(..., of("float16", "float32")),
)

# --- faults: widths -----------------------------------------------------------------------------

task.fault("L3-WIDTH", efficient_width=yes)
task.fault("L3-ONE-MULTIPLE", efficient_width=(in_steps(8, 8, 8), in_steps(8, 4, 4)))
task.fault("L3-FLOAT32-ANY-WIDTH", efficient_width=in_steps(8, 1, 1))
task.fault(
    "L3-EFFICIENT-256",
    efficient_width=lambda capability, call: in_steps()(capability, call) and call["d"] <= 256,
)
task.fault("L3-FLASH-EIGHT", flash_width=wide(256, multiple=8))
task.fault("L3-FLASH-128", flash_width=wide(128))
task.fault("L3-FLASH-ANY-WIDTH", flash_width=yes)
task.fault("L3-CUDNN-WIDER", cudnn_width=(wide(256, multiple=8), wide(1024, multiple=8)))
task.fault("L3-CUDNN-ANY-MULTIPLE", cudnn_width=wide(128))
task.fault(
    "L3-LESS-THAN",
    cudnn_width=(wide(127, multiple=8), wide(127, multiple=8), ...),
    flash_width=(wide(255), ..., wide(255)),
)

# --- faults: masks, dropout, heads, triangles ---------------------------------------------------

task.fault("L3-FLASH-MASK", flash_mask=yes)
task.fault("L3-CUDNN-MASK", cudnn_mask=unmasked)
task.fault("L3-EFFICIENT-MASK", efficient_mask=unmasked)
task.fault("L3-MASK-STOPS-ALL", cudnn_mask=unmasked, efficient_mask=unmasked, cpu_mask=unmasked)
task.fault(
    "L3-DROPOUT-STOPS-ALL",
    cudnn_dropout=without_dropout,
    flash_dropout=without_dropout,
    efficient_dropout=without_dropout,
)
task.fault("L3-FLASH-DROPOUT", flash_dropout=without_dropout)
task.fault("L3-EFFICIENT-DROPOUT", efficient_dropout=without_dropout)
task.fault("L3-CPU-DROPOUT", cpu_dropout=yes)
task.fault("L3-GROUPS-EFFICIENT", efficient_heads=yes)
task.fault("L3-FLASH-GROUPS", flash_heads=as_many_heads)
task.fault(
    "L3-GROUPS-STOP-ALL",
    cudnn_heads=as_many_heads,
    flash_heads=as_many_heads,
    cpu_heads=as_many_heads,
)
task.fault("L3-CPU-GROUPS", cpu_heads=as_many_heads)
task.fault(
    "L3-CPU-AS-GPU",
    cpu_mask=(unmasked, ..., unmasked, unmasked, ..., unmasked, ...),
    cpu_causal=(..., aligned, aligned, aligned, ..., aligned, ...),
    cpu_dropout=(..., ..., ..., yes, ..., ..., ...),
    cpu_dtype=(..., ..., ..., ..., of(*HALF), of(*HALF), of(*HALF, "float32")),
)
task.fault("L3-CROSSED", flash_causal=yes)
task.fault(
    "L3-CROSSED-ALWAYS", flash_causal=lambda capability, call: call["queries"] == call["keys"]
)
task.fault("L3-CAUSAL-NO-FLASH", flash_causal=lambda capability, call: not call["causal"])

# --- faults: how tensors lie, and the list ------------------------------------------------------

task.fault("L3-THREE-AXES", axes=lambda call: True)
task.fault("L3-MORE-AXES", axes=lambda call: call["axes"] >= 4)
task.fault("L3-STRIDE", stride=lambda call: True)


def only_what_is_left(runs):
    return [name for name, may in runs.items() if may and name != "MATH"] or ["MATH"]


task.fault("L3-NO-MATH", listed=only_what_is_left)
task.fault("L3-FIRST-ONLY", listed=lambda runs: [name for name, may in runs.items() if may][:1])
task.fault("L3-ALPHABET", listed=lambda runs: sorted(name for name, may in runs.items() if may))


@task.fault("L3-COURSES-RULES")
def calls_may_run(capability, call):
    q = torch.empty(1, 8, 16, 64, dtype=torch.float16, device="meta")
    return [rule.backend for rule in backends.may_run(capability, q, q, q) if rule.runs]

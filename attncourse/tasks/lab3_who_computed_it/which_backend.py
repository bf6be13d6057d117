import contextlib
import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attncourse.checks.answer import Failure, Unanswered, describe, following
from attncourse.checks.inputs import causal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import backends, meters
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.tasks.lab3_who_computed_it import without

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
PROJECTED = {"a product, then matmul, softmax, matmul": {"how": "projected"}}  # no probe


class OnAGPU(TorchDispatchMode):
    """Kernels of a GPU, which compute nothing here; for their shapes torch would import SymPy."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in lab/meters.py

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = func._schema.returns
        return tuple(args[0] if type(each.type) is torch.TensorType else 0 for each in returns)


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

        def fn():  # what torch calls on a GPU
            return getattr(torch.ops.aten, case["op"])(q, q, q, *more)

    elif how in ("spelled", "one head", "projected"):
        x = torch.ones(8, 4) if how == "one head" else torch.ones(2, 3, 8, 4)

        def fn():
            q = x @ torch.ones(4, 4) if how == "projected" else x
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
        case = (CASES | PROJECTED)[case]
        runs = [0]
        with torch.random.fork_rng([]), torch.set_grad_enabled(case.get("grad", True)):
            torch.default_generator.manual_seed(0)
            fn = watched(case)

            def counted():
                runs[0] += 1
                return fn()

            gpu = OnAGPU() if case["how"] == "aten" else contextlib.nullcontext()
            with gpu, without(*DETECTIVES):
                said = which_backend(counted)
        if said is None:
            return None
        if not isinstance(said, str):
            raise Unusable(f'returned {describe(said)}; a text such as "FLASH" is expected.')
        return [runs[0]] if view == "runs" else [str(said)]

    return function


def times_run(which_backend):
    return detected(which_backend, "runs")


def names_what_ran(answer, names):
    """Assert that the answer says what the reference sees, here and with this torch."""
    for name in names:
        (got,), (expected,) = answer({"case": name}), answer.expected({"case": name})
        if got != expected:
            raise Failure(
                f"Case “{name}”, by the trace of torch {torch.__version__}: {expected}; you say "
                f"{got}."
            )


def follows_what_ran(answer, name):
    """Assert that a case counts as dropout's kernel or as the plain call's, as it does in truth."""
    cases = name, "dropout", "the plain call"
    said, seen = ([each({"case": case})[0] for case in cases] for each in (answer, answer.expected))
    if [said[0] == other for other in said[1:]] != [seen[0] == other for other in seen[1:]]:
        raise Failure(
            f"Case “{name}”, by the trace of torch {torch.__version__}: {seen[0]}. You say "
            f"{said[0]}, of “{cases[1]}” {said[1]}, and of “{cases[2]}” {said[2]}."
        )


BACKENDS = ("FLASH", "EFFICIENT", "CUDNN", "MATH", "NATIVE_MHA", "NAIVE", "NONE")


def says_a_backend(answer, name):
    """Assert that what is said of a case is one of the words, be it the right one or not."""
    (got,) = answer({"case": name})
    if got not in BACKENDS:
        raise Failure(f"Case “{name}”: {got!r} is no backend.")


RUN_ONCE = ("the plain call", "dropout", "a linear layer")  # found at once, later, not at all


def traits(answer):
    seen = [answer.observe({"case": name}, adapt=times_run).returned for name in RUN_ONCE]
    alike = all(each == seen[0] for each in seen)
    return {"runs it once": seen[0] == [1], "runs it as often whatever it calls": alike}


task = Task(
    reference.which_backend,
    number=1,
    returns=list,
    difficulty=2,
    minutes=12,
    section="lab3-trace",
    probes=lambda rng: {name: {"case": name} for name in CASES},
    small=lambda rng: iter(()),
    adapt=detected,
    ready_made=DETECTIVES,
    traits=traits,
)


@task.check(2, "the CPU's fused kernel is FLASH")
def the_cpus_fused_kernel_is_flash(answer):
    names_what_ran(answer, FLASHES)


@task.check(2, "a silent fallback is MATH")
def a_silent_fallback_is_math(answer):
    names_what_ran(answer, FALLBACKS)


@task.check(1)
def it_is_observed_and_not_derived_from_the_call(answer):
    for name in FORCED:
        follows_what_ran(answer, name)


@task.check(2, "the kernels of a GPU are told apart")
def the_kernels_of_a_gpu_are_told_apart(answer):
    with following(lambda: says_a_backend(answer, "the plain call")):
        names_what_ran(answer, ON_GPUS)


@task.check(1, "attention spelled out is NAIVE, unless a kernel shows as well")
def attention_spelled_out_is_naive(answer):
    names_what_ran(answer, SPELLED | PROJECTED | BESIDE)


@task.check(2)
def a_layer_is_what_its_mode_makes_it(answer):
    names_what_ran(answer, LAYERS)


@task.check(1, "without attention it says NONE")
def without_attention_it_says_none(answer):
    names_what_ran(answer, NOTHING)


@task.check(1)
def it_runs_the_function_once(answer):
    for name in RUN_ONCE:
        seen = answer.observe({"case": name}, adapt=times_run)
        if seen.returned is None:
            answer({"case": name})  # says what went wrong
            raise Unanswered("Your answer returned None: is a `return` missing?")
        if seen.returned != [1]:
            raise Failure(
                f"Case “{name}”: `fn` was run {seen.returned[0]} times. Run it once, under the "
                "trace: another run need not be like the first, and a function may be slow."
            )


# --- steps --------------------------------------------------------------------------------------


SIGNS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}
FULL_NAMES = {f"_scaled_dot_product_{sign}": SIGNS[sign] for sign in tuple(SIGNS)[:3]}
KINDS = {"mm": "p", "bmm": "p", "_softmax": "s"}


def by(signs, has=operator.contains):
    """Looks for a kernel by these signs."""

    def kernel(names):
        found = (signs[sign] for name in names for sign in signs if has(name, sign))
        return next(found, None)

    return kernel


@task.steps
class Detective:
    kernel = by(SIGNS)

    def trace(fn):
        return meters.trace(fn)

    def kinds(names):
        """The order of products and softmaxes, such as "psp"."""
        return "".join(KINDS.get(name, "") for name in names)

    def spelled(kinds):
        return "s" in kinds and 0 < kinds.index("s") < len(kinds) - 1

    def first(kernel, spelled):
        return kernel or ("NAIVE" if spelled else "NONE")

    def __call__(self, fn):
        names = self.trace(fn)
        return self.first(self.kernel(names), self.spelled(self.kinds(names)))


# --- faults -------------------------------------------------------------------------------------


def without_gradients(fn):
    with torch.no_grad():
        return meters.trace(fn)


def after_a_run(fn):
    fn()
    return meters.trace(fn)


task.fault(
    "L3-ELSE-MATH",
    kernel=lambda names: "FLASH" if any("flash" in name for name in names) else "MATH",
)
task.fault(
    "L3-MATH-IS-NAIVE", trace=lambda fn: [name.replace("_safe", "") for name in meters.trace(fn)]
)
task.fault("L3-ANY-ATTENTION", kernel=by({"attention": "FLASH", "_safe_softmax": "MATH"}))
task.fault(
    "L3-THIS-MACHINE",
    kernel=by(
        SIGNS | {"_scaled_dot_product_flash_attention_for_cpu": "FLASH"},
        lambda name, sign: name == sign,
    ),
)
task.fault(
    "L3-EXACT-NAME",
    kernel=(
        by(SIGNS, operator.eq),
        by(SIGNS | FULL_NAMES, operator.eq),
        by(SIGNS, lambda name, sign: name.strip("_") == sign),
    ),
)
task.fault("L3-OBSERVER", section="lab3-layer", trace=without_gradients)
task.fault("L3-WARM-UP", trace=after_a_run)
each_sign = task.fault("L3-TRACE-EACH")


@each_sign
class TracesForEachSign(Detective):
    signs = tuple(SIGNS)

    def kernel(self, fn):
        found = (SIGNS[x] for x in self.signs if any(x in name for name in self.trace(fn)))
        return next(found, None)

    def __call__(self, fn):
        return self.first(self.kernel(fn), self.spelled(self.kinds(self.trace(fn))))


@each_sign
class OnlyWhereNoKernelShows(TracesForEachSign):
    def __call__(self, fn):
        return self.kernel(fn) or self.first(None, self.spelled(self.kinds(self.trace(fn))))


@each_sign
class OnceMoreForProducts(Detective):
    def __call__(self, fn):
        kernel = self.kernel(self.trace(fn))
        return kernel or self.first(None, self.spelled(self.kinds(self.trace(fn))))


@each_sign
class MathFirst(OnlyWhereNoKernelShows):
    signs = tuple(reversed(SIGNS))


task.fault(
    "L3-WHOLE-NAME",
    kernel=lambda names: next((n for n in names if "attention" in n or "softmax" in n), "NONE"),
)
task.fault(
    "L3-NO-LAYER",
    section="lab3-layer",
    kernel=by({sign: name for sign, name in SIGNS.items() if name != "NATIVE_MHA"}),
)
task.fault(
    "L3-MATH-UNKNOWN",
    kernel=by({sign: name for sign, name in SIGNS.items() if name != "MATH"}),
)
ANY_SOFTMAX = {sign: name for sign, name in SIGNS.items() if name != "MATH"} | {"softmax": "MATH"}


def sign_by_sign(names):
    return next((ANY_SOFTMAX[x] for x in ANY_SOFTMAX if any(x in name for name in names)), None)


task.fault("L3-ANY-SOFTMAX", kernel=(by(ANY_SOFTMAX), sign_by_sign))
task.fault(
    "L3-NOTHING-IS-MATH",
    first=lambda kernel, spelled: kernel or ("NAIVE" if spelled else "MATH"),
)
task.fault("L3-ALL-SPELLED", spelled=lambda kinds: True)
task.fault("L3-NOT-SPELLED", spelled=lambda kinds: False)
task.fault(
    "L3-ONLY-BMM",
    kinds=lambda names: "".join(KINDS[name] for name in names if name in ("bmm", "_softmax")),
)
task.fault(
    "L3-ONLY-MM",
    kinds=lambda names: "".join(KINDS[name] for name in names if name in ("mm", "_softmax")),
)
task.fault(
    "L3-ONE-PRODUCT",
    spelled=(
        lambda kinds: "ps" in kinds,
        lambda kinds: "s" in kinds,
        lambda kinds: "s" in kinds and "p" in kinds,
    ),
)
task.fault(
    "L3-THREE-ALONE",
    spelled=(lambda kinds: kinds[:2] == "ps" and len(kinds) > 2, lambda kinds: kinds == "psp"),
)
task.fault("L3-ANY-ORDER", spelled=lambda kinds: kinds.count("p") > 1 and "s" in kinds)
task.fault(
    "L3-SPELLED-FIRST", first=lambda kernel, spelled: "NAIVE" if spelled else kernel or "NONE"
)
task.fault(
    "L3-LOWER-CASE",
    first=(
        lambda kernel, spelled: (kernel or ("NAIVE" if spelled else "NONE")).lower(),
        lambda kernel, spelled: kernel.lower() if kernel else "NAIVE" if spelled else "NONE",
    ),
)


@task.fault("L3-ALLOWED")
def what_is_switched_on(fn):
    fn()
    return "FLASH" if torch.backends.cuda.flash_sdp_enabled() else "MATH"


@task.fault("L3-COURSES-DETECTIVE")
def calls_the_package(fn):
    return backends.backend_of(fn) or "NONE"

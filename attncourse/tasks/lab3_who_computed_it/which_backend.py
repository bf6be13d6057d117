"""A detective: what computed the attention in a function, read from its trace."""

import contextlib
import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attncourse.checks.answer import Failure, Unanswered, describe
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


def traits(answer):
    seen = answer.observe({"case": CASES["the plain call"]}, adapt=times_run)
    return {"runs it once": seen.returned == [1]}


task = Task(
    reference.which_backend,
    number=1,
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
    ready_made=DETECTIVES,
    traits=traits,
)


@task.check(2)
def the_cpus_fused_kernel_is_flash(answer):
    names_what_ran(answer, FLASHES)


@task.check(2)
def a_silent_fallback_is_math(answer):
    names_what_ran(answer, FALLBACKS)


@task.check(1)
def it_is_observed_and_not_derived_from_the_call(answer):
    names_what_ran(answer, FORCED)


@task.check(2)
def the_kernels_of_a_gpu_are_told_apart(answer):
    names_what_ran(answer, ON_GPUS)


@task.check(1)
def attention_spelled_out_is_naive(answer):
    names_what_ran(answer, SPELLED | BESIDE)


@task.check(2)
def a_layer_is_what_its_mode_makes_it(answer):
    names_what_ran(answer, LAYERS)


@task.check(1)
def without_attention_it_says_none(answer):
    names_what_ran(answer, NOTHING)


@task.check(1)
def it_runs_the_function_once(answer):
    seen = answer.observe({"case": CASES["the plain call"]}, adapt=times_run)
    if seen.returned is None:
        answer({"case": CASES["the plain call"]})  # says what went wrong
        raise Unanswered("Your answer returned None: is a `return` missing?")
    if seen.returned != [1]:
        raise Failure(
            f"`fn` was run {seen.returned[0]} times. Run it once, under the trace: another run "
            "need not be like the first, and a function may be slow."
        )


# --- steps --------------------------------------------------------------------------------------


SIGNS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}
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
    "What is not FLASH is MATH.",
    "On a CPU that is nearly so. A T4 has no FLASH and answers with EFFICIENT, and torch's own "
    "layer has ways of its own. Look for each by its sign.",
    kernel=lambda names: "FLASH" if any("flash" in name for name in names) else "MATH",
)
task.fault(
    "L3-MATH-IS-NAIVE",
    "Two products and a softmax in the trace: that is attention spelled out.",
    "MATH is made of them as well, inside one call of torch's function. What tells the two apart "
    "is the name of the softmax.",
    trace=lambda fn: [name.replace("_safe", "") for name in meters.trace(fn)],
)
task.fault(
    "L3-ANY-ATTENTION",
    "One operation with attention in its name is FLASH.",
    "EFFICIENT, CUDNN and the fast path of torch's layer are single operations, too, with "
    "attention in their names. Read the whole name.",
    kernel=by({"attention": "FLASH", "_safe_softmax": "MATH"}),
)
task.fault(
    "L3-THIS-MACHINE",
    "The name that my trace shows is the name of the kernel.",
    "Here it ends in “for_cpu”; on a GPU it ends otherwise, and versions differ. Ask whether the "
    "sign is in the name, not whether it is the name.",
    kernel=by(
        SIGNS | {"_scaled_dot_product_flash_attention_for_cpu": "FLASH"},
        lambda name, sign: name == sign,
    ),
)
task.fault(
    "L3-OBSERVER",
    "Looking needs no gradients, so I switch them off meanwhile.",
    "Torch looks at them, too: without gradients, its own layer takes another path in eval mode. "
    "Then you report what your measurement caused. Leave the mode as you find it.",
    section="lab3-layer",
    trace=without_gradients,
)
task.fault(
    "L3-WARM-UP",
    "First a run to warm up, then the one that counts.",
    "That is good for a stopwatch. A trace has no clock: one run shows all, and a function that is "
    "slow or draws random numbers should not run more often than it must.",
    trace=after_a_run,
)
task.fault(
    "L3-WHOLE-NAME",
    "The name of the first operation with attention in it is the answer.",
    "It is the evidence. The answer is one of the words of the table: names differ between devices "
    "and versions, and MATH has no operation of its own.",
    kernel=lambda names: next((n for n in names if "attention" in n or "softmax" in n), "NONE"),
)
task.fault(
    "L3-NO-LAYER",
    "Only F.scaled_dot_product_attention computes attention, or someone's own lines.",
    "Torch's own layer has a third way, an operation that contains its projections as well. "
    "Without it you say that there was no attention.",
    section="lab3-layer",
    kernel=by({sign: name for sign, name in SIGNS.items() if name != "NATIVE_MHA"}),
)
task.fault(
    "L3-ALL-SPELLED",
    "If no kernel shows, the attention was spelled out.",
    "Or there was none. A linear layer is a product, too; attention has a softmax between two "
    "products.",
    spelled=lambda kinds: True,
)
task.fault(
    "L3-NOT-SPELLED",
    "If no kernel shows, there was no attention.",
    "Two products with a softmax between them are attention, whoever wrote the lines; torch's own "
    "layer does it so when it has to return weights.",
    spelled=lambda kinds: False,
)
task.fault(
    "L3-ONLY-BMM",
    "The products of attention are those of whole batches, `bmm`.",
    "With one head and no batch they are `mm`, products of plain matrices. Look for both.",
    kinds=lambda names: "".join(KINDS[name] for name in names if name in ("bmm", "_softmax")),
)
task.fault(
    "L3-ONE-PRODUCT",
    "A product and then a softmax: that is attention.",
    "A classifier ends like that, too. Attention multiplies its weights with the values afterward: "
    "look for a product on both sides of the softmax.",
    spelled=(lambda kinds: "ps" in kinds, lambda kinds: "s" in kinds),
)
task.fault(
    "L3-THREE-ALONE",
    "The trace of attention begins with a product and a softmax, in this order.",
    "A layer has projections, too, which are products before and after. What counts is that one "
    "stands somewhere before the softmax and one somewhere after.",
    spelled=(lambda kinds: kinds[:2] == "ps" and len(kinds) > 2, lambda kinds: kinds == "psp"),
)
task.fault(
    "L3-ANY-ORDER",
    "Two products and a softmax are attention, in any order.",
    "Their order says what was done: scores, weights, output. The softmax has to stand between two "
    "products.",
    spelled=lambda kinds: kinds.count("p") > 1 and "s" in kinds,
)
task.fault(
    "L3-SPELLED-FIRST",
    "Product, softmax, product in the trace: NAIVE, whatever else is there.",
    "A program may do that beside its attention, in a gate, for instance. A kernel's name is the "
    "stronger sign, so look for those first.",
    first=lambda kernel, spelled: "NAIVE" if spelled else kernel or "NONE",
)
task.fault(
    "L3-LOWER-CASE",
    "Small letters say the same as capitals.",
    "To a reader; a program compares letter by letter. The words are those of the table.",
    first=lambda kernel, spelled: (kernel or ("NAIVE" if spelled else "NONE")).lower(),
)


@task.fault(
    "L3-ALLOWED",
    "torch.backends.cuda.flash_sdp_enabled() says whether FLASH is used.",
    "It says whether FLASH may be used: the switch is on by default, whatever runs. A permission "
    "is no observation; look at the operations that a call dispatches.",
)
def what_is_switched_on(fn):
    fn()
    return "FLASH" if torch.backends.cuda.flash_sdp_enabled() else "MATH"


@task.fault(
    "L3-COURSES-DETECTIVE",
    "The package has backend_of, so I call that.",
    "In the measurement you may. Here the point is to read a trace yourself; `lab.trace` gives you "
    "the names.",
)
def calls_the_package(fn):
    return backends.backend_of(fn) or "NONE"

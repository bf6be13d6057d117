"""Wrong answers of lab 3. Each differs from a right one in one thought."""

import random
import statistics

import torch

from attncourse.lab import backends, meters, roofline
from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- which_backend ------------------------------------------------------------------------------

WHICH = "which_backend"

SIGNS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}


def read(names, signs=None, spelled="NAIVE", nothing="NONE"):
    """Right, with these signs and words."""
    for name in names:
        for sign, backend in (signs or SIGNS).items():
            if sign in name:
                return backend
    between = [name for name in names if name in ("mm", "bmm", "_softmax")]
    return spelled if between[1:2] == ["_softmax"] and len(between) > 2 else nothing


@wrong(
    "L3-ALLOWED",
    WHICH,
    thinks="torch.backends.cuda.flash_sdp_enabled() says whether FLASH is used.",
    why="It says whether FLASH may be used: the switch is on by default, whatever runs. A "
    "permission is no observation; look at the operations that a call dispatches.",
    section="lab3-trace",
)
def what_is_switched_on(fn):
    fn()
    return "FLASH" if torch.backends.cuda.flash_sdp_enabled() else "MATH"


@wrong(
    "L3-ELSE-MATH",
    WHICH,
    thinks="What is not FLASH is MATH.",
    why="On a CPU that is nearly so. A T4 has no FLASH and answers with EFFICIENT, and torch's own "
    "layer has ways of its own. Look for each by its sign.",
    section="lab3-trace",
)
def flash_or_math(fn):
    return "FLASH" if any("flash" in name for name in meters.trace(fn)) else "MATH"


@wrong(
    "L3-MATH-IS-NAIVE",
    WHICH,
    thinks="Two products and a softmax in the trace: that is attention spelled out.",
    why="MATH is made of them as well, inside one call of torch's function. What tells the two "
    "apart is the name of the softmax.",
    section="lab3-trace",
)
def math_taken_for_naive(fn):
    return read([name.replace("_safe_softmax", "_softmax") for name in meters.trace(fn)])


@wrong(
    "L3-ANY-ATTENTION",
    WHICH,
    thinks="One operation with attention in its name is FLASH.",
    why="EFFICIENT, CUDNN and the fast path of torch's layer are single operations, too, with "
    "attention in their names. Read the whole name.",
    section="lab3-trace",
)
def any_attention_is_flash(fn):
    return read(meters.trace(fn), {"attention": "FLASH", "_safe_softmax": "MATH"})


@wrong(
    "L3-OBSERVER",
    WHICH,
    thinks="Looking needs no gradients, so I switch them off meanwhile.",
    why="Torch looks at them, too: without gradients, its own layer takes another path in eval "
    "mode. Then you report what your measurement caused. Leave the mode as you find it.",
    section="lab3-layer",
)
def gradients_switched_off(fn):
    with torch.no_grad():
        return read(meters.trace(fn))


@wrong(
    "L3-WARM-UP",
    WHICH,
    thinks="First a run to warm up, then the one that counts.",
    why="That is good for a stopwatch. A trace has no clock: one run shows all, and a function "
    "that is slow or draws random numbers should not run more often than it must.",
    section="lab3-trace",
)
def runs_it_twice(fn):
    fn()
    return read(meters.trace(fn))


@wrong(
    "L3-WHOLE-NAME",
    WHICH,
    thinks="The name of the first operation with attention in it is the answer.",
    why="It is the evidence. The answer is one of the words of the table: names differ between "
    "devices and versions, and MATH has no operation of its own.",
    section="lab3-trace",
)
def the_operations_name(fn):
    names = meters.trace(fn)
    return next((name for name in names if "attention" in name or "softmax" in name), "NONE")


@wrong(
    "L3-NO-LAYER",
    WHICH,
    thinks="Only F.scaled_dot_product_attention computes attention, or someone's own lines.",
    why="Torch's own layer has a third way, an operation that contains its projections as well. "
    "Without it you say that there was no attention.",
    section="lab3-layer",
)
def without_the_fast_path(fn):
    signs = {sign: name for sign, name in SIGNS.items() if name != "NATIVE_MHA"}
    return read(meters.trace(fn), signs)


@wrong(
    "L3-ALL-SPELLED",
    WHICH,
    thinks="If no kernel shows, the attention was spelled out.",
    why="Or there was none. A linear layer is a product, too; attention has a softmax between two "
    "products.",
    section="lab3-trace",
)
def no_kernel_is_naive(fn):
    return read(meters.trace(fn), nothing="NAIVE")


@wrong(
    "L3-NOT-SPELLED",
    WHICH,
    thinks="If no kernel shows, there was no attention.",
    why="Two products with a softmax between them are attention, whoever wrote the lines; torch's "
    "own layer does it so when it has to return weights.",
    section="lab3-trace",
)
def naive_not_seen(fn):
    return read(meters.trace(fn), spelled="NONE")


def kinds_of(names):
    """The order of products and softmaxes, such as "psp"."""
    kept = {"mm": "p", "bmm": "p", "_softmax": "s"}
    return "".join(kept.get(name, "") for name in names)


@wrong(
    "L3-ONE-PRODUCT",
    WHICH,
    thinks="A product and then a softmax: that is attention.",
    why="A classifier ends like that, too. Attention multiplies its weights with the values "
    "afterward: look for a product on both sides of the softmax.",
    section="lab3-trace",
)
def the_second_product_forgotten(fn):
    names = meters.trace(fn)
    return read(names, nothing="NAIVE" if "ps" in kinds_of(names) else "NONE")


@wrong(
    "L3-ANY-ORDER",
    WHICH,
    thinks="Two products and a softmax are attention, in any order.",
    why="Their order says what was done: scores, weights, output. The softmax has to stand between "
    "two products.",
    section="lab3-trace",
)
def in_any_order(fn):
    names = meters.trace(fn)
    seen = kinds_of(names)
    return read(names, nothing="NAIVE" if seen.count("p") > 1 and "s" in seen else "NONE")


@wrong(
    "L3-SPELLED-FIRST",
    WHICH,
    thinks="Product, softmax, product in the trace: NAIVE, whatever else is there.",
    why="A program may do that beside its attention, in a gate, for instance. A kernel's name is "
    "the stronger sign, so look for those first.",
    section="lab3-trace",
)
def spelled_out_comes_first(fn):
    names = meters.trace(fn)
    return "NAIVE" if "psp" in kinds_of(names) else read(names)


def asks_backend_of(fn):
    return backends.backend_of(fn) or "NONE"


@wrong(
    "L3-COURSES-DETECTIVE",
    WHICH,
    thinks="The package has backend_of, so I call that.",
    why="In the measurement you may. Here the point is to read a trace yourself; `lab.trace` gives "
    "you the names.",
    section="lab3-trace",
)
def calls_the_package(fn):
    return asks_backend_of(fn)


# --- backends_for -------------------------------------------------------------------------------

RULES = "backends_for"


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


@wrong(
    "L3-T4-FLASH",
    RULES,
    thinks="Every GPU with tensor cores has FLASH.",
    why="FlashAttention-2 was written for compute capability 8.0 and newer. A T4 has 7.5: there "
    "torch takes EFFICIENT, which has the same idea.",
    section="lab3-rules",
)
def flash_on_every_gpu(capability, call):
    return rules(capability, call, t4_flash=True)


@wrong(
    "L3-T4-BFLOAT16",
    RULES,
    thinks="bfloat16 is as good as float16, so the same kernels take it.",
    why="A T4 has no bfloat16 units; torch emulates it. The fused kernels refuse there, and MATH "
    "runs without a word.",
    section="lab3-rules",
)
def bfloat16_on_every_gpu(capability, call):
    return rules(capability, call, t4_bfloat16=True)


@wrong(
    "L3-FLASH-FLOAT32",
    RULES,
    thinks="FLASH is exact, so it works in float32 as well.",
    why="Exact means that it leaves nothing out, not that it takes all formats. On a GPU it "
    "computes in 16 bits only; in float32 EFFICIENT takes over.",
    section="lab3-rules",
)
def flash_in_float32(capability, call):
    return rules(capability, call, flash_float32=True)


@wrong(
    "L3-FLASH-MASK",
    RULES,
    thinks="FLASH takes any mask.",
    why="It knows only is_causal. With an attn_mask torch passes it over, even if the mask is the "
    "causal one.",
    section="lab3-rules",
)
def flash_with_a_mask(capability, call):
    return rules(capability, call, flash_mask=True)


@wrong(
    "L3-MASK-STOPS-ALL",
    RULES,
    thinks="With a mask no fused kernel runs.",
    why="Only FLASH on a GPU refuses it. EFFICIENT, CUDNN and the CPU's kernel read a mask.",
    section="lab3-rules",
)
def no_kernel_with_a_mask(capability, call):
    return rules(capability, call, no_mask=True)


@wrong(
    "L3-DROPOUT-STOPS-ALL",
    RULES,
    thinks="Dropout has to change the weights, and fused kernels have none to change.",
    why="Kernels on a GPU draw it inside their tiles. It is the CPU's kernel that has no dropout.",
    section="lab3-rules",
)
def no_kernel_with_dropout(capability, call):
    return rules(capability, call, no_dropout=True)


@wrong(
    "L3-CPU-DROPOUT",
    RULES,
    thinks="The CPU's kernel does what those of a GPU do.",
    why="It has no dropout: with any, MATH runs instead, and the scores are in memory again.",
    section="lab3-rules",
)
def dropout_on_the_cpu(capability, call):
    return rules(capability, call, cpu_dropout=True)


@wrong(
    "L3-GROUPS-EFFICIENT",
    RULES,
    thinks="enable_gqa works with every fused kernel.",
    why="In torch 2.11 EFFICIENT does not know it. On a T4, which has nothing else, grouped heads "
    "end in MATH, which copies the keys for every head.",
    section="lab3-rules",
)
def efficient_with_groups(capability, call):
    return rules(capability, call, groups=True)


@wrong(
    "L3-GROUPS-STOP-ALL",
    RULES,
    thinks="Grouped heads always end in MATH.",
    why="FLASH, CUDNN and the CPU's kernel take them. Only EFFICIENT refuses.",
    section="lab3-rules",
)
def no_kernel_with_groups(capability, call):
    return rules(capability, call, no_groups=True)


@wrong(
    "L3-THREE-AXES",
    RULES,
    thinks="The batch axis may be missing; torch adds it.",
    why="The call works, so one does not notice. But the fused kernels want four axes (b h n d), "
    "and nobody adds one: MATH runs.",
    section="lab3-rules",
)
def three_axes_will_do(capability, call):
    return rules(capability, call, any_axes=True)


@wrong(
    "L3-STRIDE",
    RULES,
    thinks="How a tensor lies in memory is torch's business.",
    why="The kernels read a position's numbers as neighbors. Where the last axis has another "
    "stride they refuse, and MATH runs.",
    section="lab3-rules",
)
def any_stride_will_do(capability, call):
    return rules(capability, call, any_stride=True)


@wrong(
    "L3-NO-MATH",
    RULES,
    thinks="MATH is what is left if nothing else runs, so it is listed only then.",
    why="It may always run, after the others. With the switch of `sdpa_kernel` you can ask for it "
    "on any call. It belongs at the end of every list.",
    section="lab3-rules",
)
def math_only_if_nothing_else(capability, call):
    return rules(capability, call, no_math=True)


@wrong(
    "L3-CROSSED",
    RULES,
    thinks="is_causal works with as many queries as you like.",
    why="With other keys than queries there are two ways to lay the triangle, by the first or by "
    "the last positions. FLASH lays it the other way, so torch does not let it.",
    section="lab3-rules",
)
def causal_with_any_lengths(capability, call):
    return rules(capability, call, crossed=True)


@wrong(
    "L3-WIDTH",
    RULES,
    thinks="Heads may have any width.",
    why="EFFICIENT reads 16 bytes at a time, eight numbers of 16 bits. A width of 60 does not "
    "divide by eight, and it refuses.",
    section="lab3-rules",
)
def any_width_will_do(capability, call):
    return rules(capability, call, any_width=True)


@wrong(
    "L3-CUDNN-EVERYWHERE",
    RULES,
    thinks="cuDNN is on every new GPU, so it is tried on each.",
    why="It is there, but torch takes it by itself only on an H100. Elsewhere it runs when you ask "
    "for it.",
    section="lab3-rules",
)
def cudnn_on_every_gpu(capability, call):
    return rules(capability, call, cudnn_everywhere=True)


@wrong(
    "L3-NO-CUDNN",
    RULES,
    thinks="FLASH comes first on every GPU that has it.",
    why="On an H100 torch asks cuDNN before, whose kernel is written for that GPU. FLASH, made for "
    "the A100, comes second.",
    section="lab3-rules",
)
def flash_before_all(capability, call):
    return rules(capability, call, no_cudnn=True)


@wrong(
    "L3-FLASH-128",
    RULES,
    thinks="FLASH takes heads up to a width of 128.",
    why="That was its first version. Torch's takes 256; 128 is the limit of cuDNN's kernel.",
    section="lab3-rules",
)
def flash_to_128(capability, call):
    return rules(capability, call, flash_128=True)


@wrong(
    "L3-FIRST-ONLY",
    RULES,
    thinks="Only the one that runs is interesting.",
    why="It is the first of the list, but not the list: if it is switched off, or another version "
    "refuses, the next one runs. Return all that may.",
    section="lab3-rules",
)
def first_only(capability, call):
    return rules(capability, call)[:1]


@wrong(
    "L3-ALPHABET",
    RULES,
    thinks="The order does not matter.",
    why="Torch takes the first that may run, so the order decides. MATH is last.",
    section="lab3-rules",
)
def in_alphabetical_order(capability, call):
    return sorted(rules(capability, call))


@wrong(
    "L3-COURSES-RULES",
    RULES,
    thinks="The package has may_run, so I call that.",
    why="Compare with it when you have your own. Here the table is to become your code.",
    section="lab3-rules",
)
def calls_may_run(capability, call):
    q = torch.empty(1, 8, 16, 64, dtype=torch.float16, device="meta")
    verdicts = backends.may_run(capability, q, q, q)
    return [verdict.backend for verdict in verdicts if verdict.runs]


# --- attention_work -----------------------------------------------------------------------------

WORK = "attention_work"


def work(b, h, n, d, width, causal, backward, **unlike):
    """Right, but for the factors that `unlike` replaces."""
    return {
        "flops": unlike.get("flops", 4) * b * h * n * n * d
        * (unlike.get("half", 0.5) if causal else 1)
        * (unlike.get("both", 3.5) if backward else 1),
        "naive_bytes": width * b * h * (unlike.get("passes", 6) * n * n
                                        + unlike.get("vectors", 4) * n * d),
        "fused_bytes": width * b * h * unlike.get("fused", 4) * n * d,
    }  # fmt: skip


@wrong(
    "L3-MULTIPLY-ONLY",
    WORK,
    thinks="Each of the n·n·d products counts once.",
    why="Each product is also added to a sum: two operations. All published speeds and data "
    "sheets count both, and a formula that does not finds half of every speed.",
    section="lab3-work",
)
def without_additions(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, flops=2)


@wrong(
    "L3-SOFTMAX-COUNTED",
    WORK,
    thinks="Softmax is a third product's worth of work, so it counts as well.",
    why="It has a few operations per score, not d of them, and by convention is left out: the "
    "count is of the two matrix products.",
    section="lab3-work",
)
def softmax_as_a_product(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, flops=6)


@wrong(
    "L3-CAUSAL-FULL",
    WORK,
    thinks="A causal mask hides scores that were computed anyway.",
    why="A naive program does compute them. The count is of the work that has to be done, half of "
    "it, so that a kernel which skips the hidden half gets its due.",
    section="lab3-work",
)
def causal_counts_all(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, half=1)


@wrong(
    "L3-BACKWARD-ALONE",
    WORK,
    thinks="The backward pass is 2.5 times the forward pass, so the factor is 2.5.",
    why="That is the backward pass alone. Before it comes the forward pass, which counts as well.",
    section="lab3-work",
)
def backward_without_forward(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, both=2.5)


@wrong(
    "L3-BACKWARD-TWICE",
    WORK,
    thinks="Backward is twice forward, as for any matrix product: three times in all.",
    why="For a product, yes. A fused kernel has not kept the scores and computes them again, "
    "half a forward pass more.",
    section="lab3-work",
)
def backward_of_a_product(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, both=3)


@wrong(
    "L3-TABLE-ONCE",
    WORK,
    thinks="The scores are written once and read once.",
    why="By three operations one after the other: the product writes, scaling reads and writes, "
    "softmax reads and writes, the second product reads. Traffic counts every pass.",
    section="lab3-work",
)
def two_passes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, passes=2)


@wrong(
    "L3-WRITES-ONLY",
    WORK,
    thinks="Three tables are written: scores, scaled scores and weights.",
    why="And each of them is read again by the next operation, which takes as long.",
    section="lab3-work",
)
def three_writes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, passes=3)


@wrong(
    "L3-TABLES-ALONE",
    WORK,
    thinks="Beside the tables, q, k, v and the output are nothing.",
    why="For long texts they are little. For short ones with wide heads they are most of it, and "
    "for fused attention they are all.",
    section="lab3-work",
)
def without_the_vectors(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, vectors=0)


@wrong(
    "L3-FUSED-WRITES-SCORES",
    WORK,
    thinks="A fused kernel reads q, k, v, and has to write the scores once.",
    why="It never does: a tile of scores lives on the chip and is gone when its part of the output "
    "is done. That is the whole idea.",
    section="lab3-work",
)
def fused_with_a_table(b, h, n, d, bytes_per_number, causal, backward):
    found = work(b, h, n, d, bytes_per_number, causal, backward)
    return found | {"fused_bytes": bytes_per_number * b * h * (n * n + 4 * n * d)}


@wrong(
    "L3-INPUTS-ONLY",
    WORK,
    thinks="A fused kernel reads three tensors: q, k and v.",
    why="And writes one, the output, as large as each of them.",
    section="lab3-work",
)
def fused_without_output(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, bytes_per_number, causal, backward, fused=3)


@wrong(
    "L3-NUMBERS",
    WORK,
    thinks="The traffic is the count of numbers that move.",
    why="A memory's speed is in bytes a second, and a number has two or four of them.",
    section="lab3-work",
)
def numbers_not_bytes(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, h, n, d, 1, causal, backward)


@wrong(
    "L3-CAUSAL-BYTES",
    WORK,
    thinks="Causal is half of everything, bytes as well.",
    why="Half the scores are hidden, but naive attention writes the whole table, and fused "
    "attention still reads all of q, k and v.",
    section="lab3-work",
)
def causal_halves_bytes(b, h, n, d, bytes_per_number, causal, backward):
    found = work(b, h, n, d, bytes_per_number, causal, backward)
    half = 0.5 if causal else 1
    return {name: value * (1 if name == "flops" else half) for name, value in found.items()}


@wrong(
    "L3-ONE-HEAD",
    WORK,
    thinks="The heads share the width among them, so they cost nothing.",
    why="d is what each head has. Every head has its own products and its own table.",
    section="lab3-work",
)
def without_heads(b, h, n, d, bytes_per_number, causal, backward):
    return work(b, 1, n, d, bytes_per_number, causal, backward)


@wrong(
    "L3-COURSES-FORMULAS",
    WORK,
    thinks="The package has attention_flops and naive_bytes, so I call them.",
    why="In the measurement they are used. Here the point is to count yourself, once.",
    section="lab3-work",
)
def calls_the_formulas(b, h, n, d, bytes_per_number, causal, backward):
    return {"flops": roofline.attention_flops(b, h, n, d, None, causal, backward)}


# --- roof_over ----------------------------------------------------------------------------------

ROOF = "roof_over"


def roof(flops, moved_bytes, flops_per_second, bytes_per_second, **instead):
    """Right, but for what is replaced."""
    intensity, ridge = flops / moved_bytes, flops_per_second / bytes_per_second
    return {
        "intensity": intensity,
        "ridge": ridge,
        "roof": min(flops_per_second, intensity * bytes_per_second),
        "bound": "memory" if intensity < ridge else "compute",
    } | instead


@wrong(
    "L3-ALWAYS-PEAK",
    ROOF,
    thinks="The roof is what the machine can compute.",
    why="Only for a program that brings enough work for each byte. Below the ridge the memory "
    "cannot deliver fast enough.",
    section="lab3-roofline",
)
def the_peak_as_roof(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops_per_second)


@wrong(
    "L3-NO-CEILING",
    ROOF,
    thinks="Operations per byte times bytes per second: the roof.",
    why="That line rises without end. Beyond the ridge the units are busy all the time, and the "
    "roof is flat.",
    section="lab3-roofline",
)
def slope_without_end(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops / moved_bytes * bytes_per_second)


@wrong(
    "L3-LARGER",
    ROOF,
    thinks="The roof is the larger of the two limits.",
    why="A program has to keep to both, so the smaller one decides.",
    section="lab3-roofline",
)
def the_larger_limit(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=max(flops_per_second, flops / moved_bytes * bytes_per_second))


@wrong(
    "L3-ONE-AFTER-THE-OTHER",
    ROOF,
    thinks="First the bytes move, then the machine computes: the times add up.",
    why="They overlap: while one tile is computed, the next is on its way. The roof is for the "
    "best case, where the longer of the two hides the other.",
    section="lab3-roofline",
)
def times_added(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    seconds = flops / flops_per_second + moved_bytes / bytes_per_second
    return roof(*sizes, roof=flops / seconds)


@wrong(
    "L3-UPSIDE-DOWN",
    ROOF,
    thinks="Intensity is how many bytes each operation needs.",
    why="That is its inverse. Operations stand above the fraction bar: the more work a byte "
    "brings, the higher the intensity.",
    section="lab3-roofline",
)
def bytes_per_operation(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, intensity=moved_bytes / flops)


@wrong(
    "L3-RIDGE-INVERTED",
    ROOF,
    thinks="The ridge is the bandwidth over the speed.",
    why="Then its unit is bytes per operation, and it cannot be compared with an intensity. The "
    "two have to have one unit.",
    section="lab3-roofline",
)
def ridge_upside_down(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, ridge=bytes_per_second / flops_per_second)


@wrong(
    "L3-BOUND-SWAPPED",
    ROOF,
    thinks="Much work for each byte: then it is the memory that has to wait.",
    why="The memory may well wait; the program waits for the units. The bound is what the program "
    "waits for.",
    section="lab3-roofline",
)
def bounds_swapped(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    bound = "memory" if roof(*sizes)["bound"] == "compute" else "compute"
    return roof(*sizes, bound=bound)


@wrong(
    "L3-BOUND-BY-COUNT",
    ROOF,
    thinks="More operations than bytes: compute-bound.",
    why="A machine does many operations in the time of one byte, how many is its ridge. More than "
    "one a byte is not enough.",
    section="lab3-roofline",
)
def more_operations_than_bytes(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, bound="compute" if flops > moved_bytes else "memory")


@wrong(
    "L3-SECONDS",
    ROOF,
    thinks="The roof is the least time that the program can take.",
    why="That is a good number, and another one. The roof of a roofline is a speed, operations per "
    "second.",
    section="lab3-roofline",
)
def a_time_as_roof(flops, moved_bytes, flops_per_second, bytes_per_second):
    sizes = flops, moved_bytes, flops_per_second, bytes_per_second
    return roof(*sizes, roof=flops / roof(*sizes)["roof"])


# --- sees_future --------------------------------------------------------------------------------

LEAK = "sees_future"


def look(fn, x, *, cuts=None, push=torch.randn_like, before=slice(None), close=None):
    """Right, but for what is replaced."""
    close = close or (lambda a, b: torch.allclose(a, b, rtol=1e-5, atol=1e-5))
    first = fn(x)
    for place in cuts or range(1, x.shape[1]):
        changed = x.clone()
        changed[:, place:] += push(changed[:, place:])
        if not close(fn(changed)[before, :place], first[before, :place]):
            return True
    return False


@wrong(
    "L3-PAST",
    LEAK,
    thinks="Change earlier inputs and see whether later outputs move.",
    why="They should: that is what attention is for. Causality says that earlier outputs do not "
    "move when later inputs do.",
    section="lab3-leak",
)
def looks_back(fn, x):
    first = fn(x)
    for place in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, :place] += torch.randn_like(changed[:, :place])
        if not torch.allclose(fn(changed)[:, place:], first[:, place:], rtol=1e-5, atol=1e-5):
            return True
    return False


@wrong(
    "L3-ALL-OUTPUTS",
    LEAK,
    thinks="Change a later input: if the output changes, there is a leak.",
    why="The output at the changed position may change, it sees itself. Only the outputs before it "
    "have to stay.",
    section="lab3-leak",
)
def compares_all_outputs(fn, x):
    changed = x.clone()
    changed[:, -1] += torch.randn_like(changed[:, -1])
    return not torch.allclose(fn(changed), fn(x), rtol=1e-5, atol=1e-5)


@wrong(
    "L3-OWN-POSITION",
    LEAK,
    thinks="What comes up to the changed position, that one included, has to stay.",
    why="An output may see its own input, so at the first changed position it moves. Compare only "
    "the outputs that lie before every change.",
    section="lab3-leak",
)
def compares_its_own_position(fn, x):
    first = fn(x)
    for place in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, place:] += torch.randn_like(changed[:, place:])
        upto = slice(0, place + 1)
        if not torch.allclose(fn(changed)[:, upto], first[:, upto], rtol=1e-5, atol=1e-5):
            return True
    return False


@wrong(
    "L3-ONE-FEATURE",
    LEAK,
    thinks="To change an input, one of its features will do.",
    why="A layer may look ahead by another one. Change all features, by different amounts.",
    section="lab3-leak",
)
def pushes_one_feature(fn, x):
    def push(future):
        noise = torch.zeros_like(future)
        noise[..., 0] = torch.randn_like(noise[..., 0])
        return noise

    return look(fn, x, push=push)


def falls_unseen(fn, x):
    return look(fn, x, close=lambda a, b: (a - b).max() < 1e-5)


@wrong(
    "L3-ONE-SIDED",
    LEAK,
    thinks="The difference is larger than the tolerance, or it is not: no need for abs.",
    why="A difference of −3 is smaller than any tolerance. An output that only falls, or only "
    "rises, slips through. Take the size of the difference.",
    section="lab3-leak",
    variants=(falls_unseen,),
)
def rises_unseen(fn, x):
    return look(fn, x, close=lambda a, b: (b - a).max() < 1e-5)


@wrong(
    "L3-LAST-ONLY",
    LEAK,
    thinks="If the last input changes nothing before it, no later input does.",
    why="A leak can be anywhere, such as from position 2 to position 0. Try every cut.",
    section="lab3-leak",
)
def last_input_only(fn, x):
    return look(fn, x, cuts=range(max(1, x.shape[1] - 1), x.shape[1]))


@wrong(
    "L3-FIRST-OUTPUT",
    LEAK,
    thinks="The first output sees the most future, so the first cut is enough.",
    why="A leak can be anywhere, such as from the last position to the one before. Look at every "
    "output that lies before a change; only after the last cut is it False.",
    section="lab3-leak",
)
def first_output_only(fn, x):
    return look(fn, x, cuts=range(1, min(2, x.shape[1])))


@wrong(
    "L3-ONE-CUT",
    LEAK,
    thinks="One cut in the middle is a fair sample.",
    why="It sees what crosses the middle. A leak from one position to its neighbor, in the first "
    "or the second half, does not. Try every cut.",
    section="lab3-leak",
)
def in_the_middle(fn, x):
    middle = x.shape[1] // 2
    return bool(middle) and look(fn, x, cuts=range(middle, middle + 1))


@wrong(
    "L3-IN-PLACE",
    LEAK,
    thinks="I add the noise to x, position by position.",
    why="Then x is no longer what the first output was made of: at the second cut the noise of the "
    "first is still there, and everything seems to leak. Change a copy.",
    section="lab3-leak",
)
def noise_that_stays(fn, x):
    first = fn(x)
    for place in range(1, x.shape[1]):
        x[:, place:] += torch.randn_like(x[:, place:])
        if not torch.allclose(fn(x)[:, :place], first[:, :place], rtol=1e-5, atol=1e-5):
            return True
    return False


@wrong(
    "L3-FIRST-SENTENCE",
    LEAK,
    thinks="All sentences of a batch are treated alike, so the first will do.",
    why="A mask has a row for each sentence in some calls, and padding differs. Compare the whole "
    "batch; it costs nothing.",
    section="lab3-leak",
)
def first_sentence_only(fn, x):
    return look(fn, x, before=slice(0, 1))


def equal_by_default(fn, x):
    return look(fn, x, close=lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-8))


@wrong(
    "L3-EXACT",
    LEAK,
    thinks="Causal means that not a single bit may change.",
    why="A kernel may sum in another order when other numbers are in the tile, and the last digits "
    "move. Allow for rounding; a leak is larger.",
    section="lab3-leak",
    variants=(equal_by_default,),
)
def bit_by_bit(fn, x):
    return look(fn, x, close=torch.equal)


@wrong(
    "L3-LOOSE",
    LEAK,
    thinks="Small differences are noise.",
    why="In float32 noise is a ten-millionth. A model in training finds a leak of a thousandth and "
    "uses it.",
    section="lab3-leak",
)
def within_five_percent(fn, x):
    return look(fn, x, close=lambda a, b: torch.allclose(a, b, rtol=0.05, atol=0.05))


@wrong(
    "L3-CONSTANT",
    LEAK,
    thinks="Add 1 to every later input.",
    why="A layer norm subtracts the mean over the features and so takes the same 1 out again. "
    "Change the features by different amounts.",
    section="lab3-leak",
)
def adds_one(fn, x):
    return look(fn, x, push=torch.ones_like)


@wrong(
    "L3-DOUBLED",
    LEAK,
    thinks="Double the later inputs.",
    why="What norms its inputs to one length takes the factor out again, and zeros stay zeros. Add "
    "something that has another direction.",
    section="lab3-leak",
)
def doubles(fn, x):
    return look(fn, x, push=lambda future: future)


@wrong(
    "L3-ZEROED",
    LEAK,
    thinks="Set the later inputs to zero, or multiply them by something.",
    why="If they are zeros already, as padding is, nothing has changed, and every function passes.",
    section="lab3-leak",
)
def sets_to_zero(fn, x):
    return look(fn, x, push=lambda future: -future)


@wrong(
    "L3-NAN",
    LEAK,
    thinks="Set the later inputs to NaN and see whether it spreads.",
    why="It spreads through any product, also through a weight of exactly zero: 0 times NaN is "
    "NaN. So a causal mask seems to leak.",
    section="lab3-leak",
)
def fills_with_nan(fn, x):
    return look(fn, x, push=lambda future: torch.full_like(future, float("nan")))


@wrong(
    "L3-GRADIENT",
    LEAK,
    thinks="The gradient of an early output with respect to later inputs shows it exactly.",
    why="It needs gradients on, and torch computes attention in another way then. What leaks "
    "without gradients is not seen; change the inputs and leave the mode.",
    section="lab3-layer",
)
def by_gradients(fn, x):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = fn(x)
        for place in range(1, x.shape[1]):
            (g,) = torch.autograd.grad(y[:, :place].pow(2).sum(), x, retain_graph=True)
            if g[:, place:].abs().max() > 1e-5:
                return True
    return False


@wrong(
    "L3-INVERTED",
    LEAK,
    thinks="True means that the function passed.",
    why="The question in its name is whether it sees the future. Passing means False.",
    section="lab3-leak",
)
def says_whether_it_is_causal(fn, x):
    return not look(fn, x)


@wrong(
    "L3-COURSES-PERTURBATION",
    LEAK,
    thinks="The package has sees_future, so I call that.",
    why="In the measurement it is used. Here the point is to write the test that you will need "
    "when the model is your own.",
    section="lab3-leak",
)
def calls_the_packages(fn, x):
    return backends.sees_future(fn, x)


# --- lab3_receipt -------------------------------------------------------------------------------

RECEIPT = "lab3_receipt"
CALLS = {
    "plain": ("EFFICIENT", 1.0),
    "mask": ("EFFICIENT", 1.3),
    "dropout": ("EFFICIENT", 1.4),
    "three axes": ("MATH", 4.0),
    "strided key": ("MATH", 4.2),
    "grouped heads": ("MATH", 4.4),
    "bfloat16": ("MATH", 9.0),
}


def a_record(sizes=(512, 1024, 2048, 4096), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(11), 2.0, []

    def measure(points):
        nonlocal now
        for _ in range(samples):
            for point in points:
                point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                point["started"].append(now)
                now += point["true"] + 2e-3
        for point in points:
            del point["true"]
        made.extend(points)

    def a_point(name, n, true, **more):
        return {
            **{"name": name, "n": n, "b": 1, "h": 16, "d": 64, "dtype": "float16"},
            **{"seconds": [], "started": [], "clock": "events", "error": None},
            **{"wall_over_cpu": 1.0, "reference_error": 5e-4, "true": true, **more},
        }

    for n in sizes:
        flops = 4096.0 * n * n
        naive = {"bytes": 32 * (6 * n * n + 256 * n), "backend": "NAIVE"}
        fused = {"bytes": 32 * 256 * n, "backend": "EFFICIENT"}
        measure(
            [
                a_point("naive", n, max(2e-5, flops / 4e12), flops=flops, **naive),
                a_point("fused", n, max(1.5e-5, flops / 12e12), flops=flops, **fused),
            ]
        )
    measure(
        [
            a_point("call", 1024, 6e-4 * times, call=call, backend=backend)
            | ({"dtype": "bfloat16"} if call == "bfloat16" else {})
            for call, (backend, times) in CALLS.items()
        ]
    )
    guess = dict.fromkeys(list(CALLS)[1:], "EFFICIENT") | {"naive bound": "memory", "cost": 2}
    return {
        "lab": "lab3_who_computed_it",
        "machine": {
            "device": "cuda",
            "name": "Tesla T4",
            "capability": [7, 5],
            "memory_bytes": 15_828_320_256,
            "l2_bytes": 4_194_304,
            "threads": 1,
            "torch": "2.11.0+cu128",
            "python": "3.13.15",
            "cuda": "12.8",
            "label": "T4",
            "ceilings": {
                "flops_per_second": {"float16": 24e12, "float32": 7.5e12},
                "bytes_per_second": 0.26e12,
            },
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@wrong(
    "L3-CUT-OFF",
    RECEIPT,
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
    section="lab3-receipt",
)
def cut_off():
    return encode(a_record())[:-300]


@wrong(
    "L3-QUICK",
    RECEIPT,
    thinks="It ran through and printed a receipt, so I have measured.",
    why="With ATTNCOURSE_QUICK set, sizes are tiny: that is for trying the cells out. The times "
    "are then those of launching a call, not of attention.",
    section="lab3-receipt",
)
def a_quick_run():
    return encode(a_record(sizes=(64, 128, 256)))


@wrong(
    "L3-OTHER-LAB",
    RECEIPT,
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name.",
    section="lab3-receipt",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab2_quadratic_wall"})


@wrong(
    "L3-NO-PREDICTION",
    RECEIPT,
    thinks="The trace will tell; there is nothing to guess.",
    why="Silent fallbacks are dangerous because one expects something else. Write down what you "
    "expect, and you will know which of them would have caught you.",
    section="lab3-predict",
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@wrong(
    "L3-AFTERWARD",
    RECEIPT,
    thinks="I have filled in the predictions from the table that was printed.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab3-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 15
    return encode(record)


@wrong(
    "L3-DATA-SHEET",
    RECEIPT,
    thinks="The ceilings stand in the data sheet, so I have not measured them.",
    why="A T4 reaches about a third of the 65 TFLOP/s of its sheet before its power limit slows "
    "it. Only a ceiling measured in the same run is one for your points.",
    section="lab3-roofline",
)
def without_ceilings():
    record = a_record()
    record["machine"]["ceilings"] = None
    return encode(record)


@wrong(
    "L3-OTHER-FORMAT",
    RECEIPT,
    thinks="One ceiling is enough, that of float32.",
    why="The tensor cores of a GPU work in 16 bits, many times as fast. A roof belongs to a "
    "format: measure that of your points.",
    section="lab3-roofline",
)
def ceiling_of_another_format():
    record = a_record()
    record["machine"]["ceilings"]["flops_per_second"] = {"float32": 7.5e12}
    return encode(record)


@wrong(
    "L3-FLOPS-HALVED",
    RECEIPT,
    thinks="Multiplications are what counts.",
    why="All points have half the operations that the two products take, so every speed is half of "
    "what it was, while the ceiling was counted in full.",
    section="lab3-work",
)
def half_the_operations():
    record = a_record()
    for point in record["points"]:
        if point.get("flops"):
            point["flops"] /= 2
    return encode(record)


@wrong(
    "L3-SAME-BYTES",
    RECEIPT,
    thinks="Naive and fused attention compute the same, so they move the same bytes.",
    why="Naive attention writes and reads its table six times. With the bytes of the fused one it "
    "gets a place in the roofline that it does not have.",
    section="lab3-work",
)
def bytes_of_the_fused():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "naive":
            point["bytes"] = 32 * 256 * point["n"]
    return encode(record)


@wrong(
    "L3-CALLED-FLASH",
    RECEIPT,
    thinks="F.scaled_dot_product_attention is FlashAttention, so I write FLASH everywhere.",
    why="It is a door with several rooms behind it, and on a T4 there is no FLASH among them. "
    "Record what the trace shows.",
    section="lab3-rules",
)
def flash_everywhere():
    record = a_record()
    for point in record["points"]:
        if point["name"] != "naive":
            point["backend"] = "FLASH"
    return encode(record)


@wrong(
    "L3-NOT-LOOKED",
    RECEIPT,
    thinks="The times tell enough.",
    why="A slow call may be slow for many reasons. Which kernel ran is known only if one looks; "
    "that is the question of this lab.",
    section="lab3-trace",
)
def backends_not_recorded():
    record = a_record()
    for point in record["points"]:
        if point["name"] == "call":
            point["backend"] = None
    return encode(record)


@wrong(
    "L3-FEW-CALLS",
    RECEIPT,
    thinks="Two or three calls show the point.",
    why="Each call of the table falls back for a reason of its own, and on some machine it does "
    "not. Try them all.",
    section="lab3-rules",
)
def two_calls():
    record = a_record()
    kept = ("plain", "mask", "dropout")
    record["points"] = [p for p in record["points"] if p.get("call", "plain") in kept]
    return encode(record)


@wrong(
    "L3-MILLISECONDS",
    RECEIPT,
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
    section="lab3-receipt",
)
def in_milliseconds():
    record = a_record()
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


# --- who_computed_it ----------------------------------------------------------------------------

CONCLUDE = "who_computed_it"


def middle(point, average=statistics.median):
    return average(point["seconds"])


def concluded(record, *, at=max, average=statistics.median, **instead):
    """Right conclusions, but for what is replaced."""
    points = record["points"]
    done = {(p["name"], p["n"]): p for p in points if p["name"] != "call" and not p["error"]}
    n = at(n for name, n in done if name == "naive")
    naive, fused = done["naive", n], done["fused", n]
    limits = record["machine"]["ceilings"]
    peak = limits["flops_per_second"][instead.get("dtype") or naive["dtype"]]
    under = roof(naive["flops"], naive["bytes"], peak, limits["bytes_per_second"])
    of_fused = roof(fused["flops"], fused["bytes"], peak, limits["bytes_per_second"])
    calls = {p["call"]: p for p in points if p["name"] == "call"}
    fell_back = instead.get("fell_back")
    if fell_back is None:
        fell_back = sorted(call for call, p in calls.items() if p["backend"] == "MATH")
    slow = [middle(calls[call], average) for call in fell_back if calls[call]["seconds"]]
    over = instead.get("over", max)
    speed = naive["flops"] / middle(naive, average)
    found = {
        "naive_bound": under["bound"],
        "fused_bound": of_fused["bound"],
        "naive_share": speed / under["roof"],
        "fell_back": fell_back,
        "cost": over(slow) / middle(calls["plain"], average) if slow else 1.0,
    }
    return found | {name: instead[name] for name in found if name in instead}


@wrong(
    "L3-NAIVE-ALWAYS-MEMORY",
    CONCLUDE,
    thinks="Naive attention is memory-bound, everybody says so.",
    why="On GPUs it is, where the ridge lies at a hundred operations a byte or more. A CPU's ridge "
    "is at five or so. Compare the intensity with the ridge of this record.",
    section="lab3-roofline",
)
def naive_waits_for_memory(record):
    return concluded(record, naive_bound="memory")


@wrong(
    "L3-FUSED-ALWAYS-COMPUTE",
    CONCLUDE,
    thinks="Fused attention is compute-bound, that is what it was made for.",
    why="From some length on: its intensity grows with n. For a short text on a fast GPU it lies "
    "below the ridge as well.",
    section="lab3-roofline",
)
def fused_computes(record):
    return concluded(record, fused_bound="compute")


@wrong(
    "L3-SHARE-OF-PEAK",
    CONCLUDE,
    thinks="The share is the speed over the peak of the machine.",
    why="Below the ridge nobody can reach the peak. The share of the roof says how well the "
    "program uses what it could reach.",
    section="lab3-roofline",
)
def share_of_the_peak(record):
    found = concluded(record)
    done = [p for p in record["points"] if p["name"] == "naive" and not p["error"]]
    naive = max(done, key=lambda p: p["n"])
    peak = record["machine"]["ceilings"]["flops_per_second"][naive["dtype"]]
    return found | {"naive_share": naive["flops"] / middle(naive) / peak}


@wrong(
    "L3-SMALLEST-N",
    CONCLUDE,
    thinks="Any n will do for the share, say the first.",
    why="At small n much of the time is the call itself, and every share is small. Take the "
    "largest n that naive attention reached.",
    section="lab3-conclude",
)
def at_the_smallest(record):
    return concluded(record, at=min)


@wrong(
    "L3-FIRST-CEILING",
    CONCLUDE,
    thinks="The ceiling is the first number in the record.",
    why="There is one for each format. A roof of float32 over points in float16, or the other way "
    "around, is a roof over another house.",
    section="lab3-roofline",
)
def first_ceiling(record):
    first = next(iter(record["machine"]["ceilings"]["flops_per_second"]))
    return concluded(record, dtype=first)


@wrong(
    "L3-LARGEST-CEILING",
    CONCLUDE,
    thinks="The ceiling is the largest number in the record.",
    why="That is the speed of another format. Points in float32 cannot reach what the machine does "
    "in float16.",
    section="lab3-roofline",
)
def largest_ceiling(record):
    peaks = record["machine"]["ceilings"]["flops_per_second"]
    return concluded(record, dtype=max(peaks, key=peaks.get))


@wrong(
    "L3-FASTEST",
    CONCLUDE,
    thinks="What disturbs makes slower, so the fastest sample is the true one.",
    why="On a CPU that is nearly so. The clock of a GPU goes up as well as down, and a lucky "
    "sample is as rare as an unlucky one. A median stays where most of them are.",
    section="lab3-conclude",
)
def fastest_samples(record):
    return concluded(record, average=min)


@wrong(
    "L3-FIRST-SAMPLE",
    CONCLUDE,
    thinks="One sample is a measurement, so I take the first.",
    why="The first is the one most often disturbed. The record holds all of them for a reason: "
    "take their median.",
    section="lab3-conclude",
)
def first_samples(record):
    return concluded(record, average=lambda seconds: seconds[0])


@wrong(
    "L3-MEAN",
    CONCLUDE,
    thinks="The time of a point is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it. A median "
    "stays where most of them are.",
    section="lab3-conclude",
)
def means(record):
    return concluded(record, average=statistics.mean)


@wrong(
    "L3-SLOWEST",
    CONCLUDE,
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it. It is no safe side; it is somebody "
    "else's time.",
    section="lab3-conclude",
)
def slowest_samples(record):
    return concluded(record, average=max)


@wrong(
    "L3-BELIEVES-THE-NAME",
    CONCLUDE,
    thinks="A call that is named flash did not fall back.",
    why="A name is what somebody hoped for. The field `backend` is what was seen.",
    section="lab3-trace",
)
def believes_the_name(record):
    found = concluded(record)["fell_back"]
    return concluded(record, fell_back=[call for call in found if "flash" not in call])


@wrong(
    "L3-SLOW-IS-MATH",
    CONCLUDE,
    thinks="What takes twice as long as the plain call has fallen back.",
    why="A fused kernel may be slow for other reasons, a mask has to be read, for instance; and a "
    "fallback may be fast at a small n. The backend is in the record.",
    section="lab3-trace",
)
def slow_is_math(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call" and p["seconds"]}
    plain = middle(calls["plain"])
    return concluded(
        record, fell_back=sorted(c for c, p in calls.items() if middle(p) > 1.8 * plain)
    )


@wrong(
    "L3-NO-TIME-NO-FALLBACK",
    CONCLUDE,
    thinks="A call that ran out of memory tells nothing.",
    why="It has no time, but its backend was seen, and MATH is why the memory ended. It fell back; "
    "only its cost is unknown.",
    section="lab3-conclude",
)
def failed_calls_left_out(record):
    done = {p["call"]: p for p in record["points"] if p["name"] == "call" and not p["error"]}
    return concluded(record, fell_back=sorted(c for c, p in done.items() if p["backend"] == "MATH"))


@wrong(
    "L3-NOT-FLASH",
    CONCLUDE,
    thinks="Everything that was expected to be FLASH and is MATH counts, naive attention too.",
    why="Naive attention never asked for a kernel: it is written out on purpose. Only a call of "
    "torch's function can fall back.",
    section="lab3-trace",
)
def naive_fell_back_too(record):
    found = concluded(record)
    return found | {"fell_back": sorted([*found["fell_back"], "naive"])}


@wrong(
    "L3-OTHER-KERNEL",
    CONCLUDE,
    thinks="What FLASH did not compute has fallen back.",
    why="EFFICIENT and CUDNN are fused kernels, too: on a T4 there is nothing better. A fallback "
    "is a call that none of them took.",
    section="lab3-trace",
)
def all_but_flash(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    return concluded(record, fell_back=sorted(c for c in calls if calls[c]["backend"] != "FLASH"))


@wrong(
    "L3-FAILED-FELL",
    CONCLUDE,
    thinks="A call that ran out of memory has fallen back: only MATH needs so much.",
    why="It is likely, and nobody saw it: a fused kernel can run out, too. Only what has MATH for "
    "its backend counts.",
    section="lab3-conclude",
)
def what_failed_fell_back(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    fell = sorted(c for c, p in calls.items() if p["backend"] == "MATH" or p["error"])
    return concluded(record, fell_back=fell)


@wrong(
    "L3-NOT-PLAIN",
    CONCLUDE,
    thinks="The plain call is the fused one, so it never counts as a fallback.",
    why="On some machines or formats no fused kernel takes even that. Ask its backend as well.",
    section="lab3-trace",
)
def never_the_plain_one(record):
    found = concluded(record)
    return found | {"fell_back": [call for call in found["fell_back"] if call != "plain"]}


@wrong(
    "L3-ALL-POINTS",
    CONCLUDE,
    thinks="Every point whose backend is MATH is a call that fell back.",
    why="The record holds naive and fused attention at several n as well. Asked for are the calls: "
    "points with the name “call”.",
    section="lab3-conclude",
)
def every_point_counts(record):
    found = concluded(record)
    more = {p["name"] for p in record["points"] if p["name"] != "call" and p["backend"] == "MATH"}
    return found | {"fell_back": [*found["fell_back"], *sorted(more)]}


@wrong(
    "L3-CHEAPEST",
    CONCLUDE,
    thinks="A fallback costs what the mildest of them costs.",
    why="Then one harmless case hides the others. Asked for is the worst.",
    section="lab3-conclude",
)
def the_mildest(record):
    return concluded(record, over=min)


@wrong(
    "L3-AVERAGE-COST",
    CONCLUDE,
    thinks="The cost is the average over the fallbacks.",
    why="An average over calls that nobody makes equally often says nothing. Asked for is the "
    "worst.",
    section="lab3-conclude",
)
def cost_on_average(record):
    return concluded(record, over=statistics.mean)


@wrong(
    "L3-COST-INVERTED",
    CONCLUDE,
    thinks="The cost is the share of its speed that a call keeps.",
    why="That is the inverse, 0.2 instead of 5. Here the time of the fallback stands above the "
    "fraction bar.",
    section="lab3-conclude",
)
def cost_upside_down(record):
    return concluded(record, cost=1 / concluded(record)["cost"])


@wrong(
    "L3-COST-ZERO",
    CONCLUDE,
    thinks="Without a fallback the cost is 0.",
    why="The cost is a factor, and a factor that changes nothing is 1.",
    section="lab3-conclude",
)
def nothing_costs_zero(record):
    found = concluded(record)
    return found if found["fell_back"] else found | {"cost": 0.0}

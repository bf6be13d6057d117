"""Which attention ran, and which could have. Torch chooses silently: here is how to see it.

`F.scaled_dot_product_attention` is one function in front of several kernels:

FLASH       tiles that never write the scores to memory (FlashAttention-2; the CPU has its own)
EFFICIENT   the same idea for more GPUs, dtypes and masks (CUTLASS, from xFormers)
CUDNN       NVIDIA's library
MATH        two matrix products and a softmax, the scores in memory: what is left if all refuse

What runs is observed (`which_backend`, `backend_of`); what may run follows from rules (`may_run`)
that hold for torch 2.9 to 2.13 and say where 2.14 differs.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncourse.lab.meters import trace

# Operations that are attention by themselves.
FUSED = {
    "_scaled_dot_product_flash_attention_for_cpu": "FLASH",
    "_scaled_dot_product_flash_attention": "FLASH",
    "_flash_attention_forward": "FLASH",
    "_scaled_dot_product_efficient_attention": "EFFICIENT",
    "_efficient_attention_forward": "EFFICIENT",
    "_scaled_dot_product_cudnn_attention": "CUDNN",
    "_cudnn_attention_forward": "CUDNN",
    "_scaled_dot_product_fused_attention_overrideable": "OVERRIDEABLE",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_transformer_encoder_layer_fwd": "NATIVE_ENCODER_LAYER",
}
# MATH is no operation of its own, but nothing else in torch calls the softmax that gives an
# all-masked row 0 instead of NaN.
FUSED |= {"_safe_softmax": "MATH", "_scaled_dot_product_attention_math_for_mps": "MATH"}

# Attention spelled out: a product, then one of these, then a product.
PRODUCTS = {"mm", "bmm", "mv", "baddbmm"}
SOFTMAXES = {"_softmax", "_masked_softmax", "exp", "exp_", "exp2", "exp2_"}


def which_backend(query: Tensor, key: Tensor, value: Tensor, **options) -> str:
    """Run `F.scaled_dot_product_attention(query, key, value, **options)` once; what computed it.

    Returns:
        "FLASH", "EFFICIENT", "CUDNN" or "MATH".

    Raises:
        RuntimeError: no backend that `sdpa_kernel` left switched on can do it.
    """
    return backend_of(F.scaled_dot_product_attention, query, key, value, **options)


def backend_of(fn: Callable, *args, **kwargs) -> str | None:
    """Run `fn(*args, **kwargs)` once and say which attention it used.

    >>> backend_of(nn.MultiheadAttention(16, 4).eval(), x, x, x)

    Returns:
        "FLASH", "EFFICIENT", "CUDNN" or "MATH" for `F.scaled_dot_product_attention`; "NAIVE" for
        products and a softmax spelled out; "NATIVE_MHA" and "NATIVE_ENCODER_LAYER" for the fast
        path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, whose insides are not
        seen; several joined by "+" in the order of their first use; None if there was none.
        Compiled functions and Triton kernels are not seen.
    """
    found: dict[str, None] = {}
    scored = weighted = False
    for name in trace(fn, *args, **kwargs):
        if name in FUSED:
            found[FUSED[name]] = None
            scored = weighted = False
        elif name in PRODUCTS:
            if weighted:
                found["NAIVE"] = None
            scored, weighted = True, False
        elif name in SOFTMAXES:
            weighted = scored
    return "+".join(found) or None


# ---------------------------------------------------------------------------------------------
# What may run


@dataclass(frozen=True)
class Verdict:
    """Whether one backend takes a call; `refusals` says why not, and is empty if it does."""

    backend: str
    refusals: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return not self.refusals

    def __str__(self) -> str:
        return f"{self.backend}: " + ("yes" if self.runs else "no, " + "; ".join(self.refusals))


def may_run(
    capability: Sequence[int] | str | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    torch_version: str | None = None,
    cudnn_version: int | None = None,
) -> list[Verdict]:
    """Judge every backend for a call of `F.scaled_dot_product_attention`, on any NVIDIA GPU.

    The tensors are not computed with. They may be on the device "meta", where they need no
    memory, and `sdpa_call` makes them: `may_run((7, 5), **sdpa_call(torch.bfloat16))`.

    Args:
        capability: of the GPU, such as (7, 5) for a T4; "cpu", or None as in a record, for a CPU.
        query, key, value, …: as for `F.scaled_dot_product_attention`. Whether gradients are
            needed is read from them and from `torch.is_grad_enabled()`.
        torch_version: such as "2.11.0"; the installed one if None.
        cudnn_version: such as 91900 for 9.19; if None, that of the installed torch, or the one
            that `torch_version` came with.

    Returns:
        One verdict a backend in the order in which torch tries them. The first that runs is
        taken. What comes after MATH runs only on request (`torch.nn.attention.sdpa_kernel`).

    Raises:
        ValueError: a mask and `is_causal` together, of which backends make different things; or
            a capability that is none.

    Source: PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, sdp_utils_cpp.cpp and
    sdp_utils_cpp.h; the note on GQA of `F.scaled_dot_product_attention`.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("give attn_mask or is_causal=True; put the causal mask into attn_mask")
    capability = "cpu" if capability in (None, "cpu") else tuple(capability)
    if capability != "cpu" and list(map(type, capability)) != [int, int]:
        raise ValueError(
            'capability must be "cpu" or a pair such as torch.cuda.get_device_capability(); '
            f"got {capability}"
        )
    release = _release(torch_version or torch.__version__)
    if cudnn_version is None and torch_version is None:
        cudnn_version = torch.backends.cudnn.version()
    if cudnn_version is None:
        cudnn_version = 91900 if release >= (2, 11) else 91002  # what the wheels came with
    call = _Call(
        *(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa),
        capability=capability,
        release=release,
        cudnn=cudnn_version,
    )
    if capability == "cpu":
        rules = {"FLASH": _refused_by_flash_on_cpu, "MATH": _refused_by_math}
    else:
        rules = {
            "FLASH": _refused_by_flash,
            "EFFICIENT": _refused_by_efficient,
            "MATH": _refused_by_math,
            "CUDNN": _refused_by_cudnn,
        }
        # check_prefer_cudnn_attention: Hopper and data-center Blackwell, cuDNN after 9.15.
        if capability in ((9, 0), (10, 0), (10, 3)) and cudnn_version > 91500:
            rules = {"CUDNN": rules.pop("CUDNN"), **rules}
    return [Verdict(backend, tuple(refused(call))) for backend, refused in rules.items()]


def default_backend(capability: Sequence[int] | str | None, *args, **kwargs) -> str:
    """The backend that torch takes by itself; arguments as for `may_run`."""
    return next(verdict.backend for verdict in may_run(capability, *args, **kwargs) if verdict.runs)


def sdpa_call(
    dtype: torch.dtype | str = torch.float16,
    *,
    b: int = 1,
    h: int = 8,
    n: int = 128,
    d: int = 64,
    n_keys: int | None = None,
    kv_heads: int | None = None,
    value_width: int | None = None,
    mask: str | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    layout: str = "b h n d",
    requires_grad: bool = False,
    device: str = "meta",
) -> dict:
    """Make the arguments of one call: `F.scaled_dot_product_attention(**sdpa_call(…))`.

    Args:
        dtype: of query, key and value, such as torch.float16 or "float16".
        b, h, n, d: batch, heads, positions, width.
        n_keys: positions of key and value; n if None.
        kv_heads: heads of key and value; fewer than h switch `enable_gqa` on.
        value_width: d if None.
        mask: None; "bool"; "float"; or "learned", a float mask that needs a gradient.
        is_causal, dropout: as for `F.scaled_dot_product_attention`.
        layout: how key and value lie in memory. "b h n d"; "b n h d", transposed as a projection
            leaves them; "b h d n", whose last axis is strided; "h n d": no batch axis at all,
            neither for the query.
        requires_grad: of query, key and value.
        device: "meta" to ask `may_run`, "cpu" or "cuda" to run it; the numbers are all alike.
    """
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    kv_heads, n_keys, value_width = kv_heads or h, n_keys or n, value_width or d

    def tensor(heads: int, positions: int, width: int, layout: str) -> Tensor:
        sizes = {"b": b, "h": heads, "n": positions, "d": width}
        axes = layout.split()
        made = torch.full([sizes[axis] for axis in axes], 0.5, dtype=dtype, device=device)
        made = made.permute([axes.index(axis) for axis in "bhnd" if axis in axes])
        return made.requires_grad_(requires_grad)

    def allowed() -> Tensor:
        every = torch.ones(n, n_keys, dtype=torch.bool, device=device)
        # On "meta" there are no numbers to clear, and `tril` would import torch._dynamo: 1.5 s.
        return every if every.is_meta else every.tril()

    masks = {
        None: lambda: None,
        "bool": allowed,
        "float": lambda: torch.zeros(n, n_keys, dtype=dtype, device=device),
        "learned": lambda: torch.zeros(n, n_keys, dtype=dtype, device=device, requires_grad=True),
    }
    return {
        "query": tensor(h, n, d, "h n d" if layout == "h n d" else "b h n d"),
        "key": tensor(kv_heads, n_keys, d, layout),
        "value": tensor(kv_heads, n_keys, value_width, layout),
        "attn_mask": masks[mask](),
        "dropout_p": dropout,
        "is_causal": is_causal,
        "enable_gqa": kv_heads != h,
    }


@dataclass(frozen=True)
class _Call:
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    gqa: bool
    capability: tuple[int, int] | str
    release: tuple[int, int]  # of torch
    cudnn: int

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def widths(self) -> tuple[int, int, int]:
        return tuple(tensor.shape[-1] for tensor in self.inputs)

    @property
    def lengths(self) -> tuple[int, int]:
        return self.query.shape[-2], self.key.shape[-2]

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(tensor.shape[-3] if tensor.ndim > 2 else 1 for tensor in self.inputs)

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.inputs)

    @property
    def gpu(self) -> str:
        return "sm{}{}".format(*self.capability)


def _refused_by_math(call: _Call) -> Iterator[str]:
    return iter(())  # never


def _refused_by_flash(call: _Call) -> Iterator[str]:
    yield from _refused_by_all(call)
    yield from _refused_gpu(call, (8, 0))
    yield from _refused_dtype(call, torch.float16, torch.bfloat16)
    if call.mask is not None:
        yield "it takes no attn_mask, only is_causal"
    if len(set(call.widths)) > 1 or max(call.widths) > 256:
        yield f"query, key and value must have one width of at most 256; got {call.widths}"
    if call.is_causal and call.lengths[0] != call.lengths[1]:
        yield "is_causal needs as many queries as keys: its mask starts at the bottom right"
    small = (8, 6) <= call.capability <= (8, 9) or (12, 0) <= call.capability <= (12, 1)
    width = call.widths[0]
    if call.needs_grad and small and width > 192 and not (width > 224 and call.dropout == 0):
        yield f"its backward pass has no room for width {width} on {call.gpu}"


def _refused_by_efficient(call: _Call) -> Iterator[str]:
    # Grouped heads since torch 2.14 (pull request #191085).
    yield from _refused_by_all(call, grouped=call.release >= (2, 14))
    yield from _refused_gpu(call, (5, 0))
    ampere = call.capability >= (8, 0)
    bfloat16 = (torch.bfloat16,) if ampere else ()
    yield from _refused_dtype(call, torch.float16, torch.float32, *bfloat16)
    # Tensor cores load from multiples of 16 bytes.
    half = call.query.element_size() == 2
    multiple = 8 if half else 4 if ampere else 1
    q, k, v = call.widths
    if q != k or q % multiple or v % multiple:
        yield f"query and key must be equally wide, all a multiple of {multiple}; got {call.widths}"
    offsets = [tensor.storage_offset() * tensor.element_size() for tensor in call.inputs]
    if ampere and call.release >= (2, 13) and any(offset % 16 for offset in offsets):
        yield "query, key and value must begin at a multiple of 16 bytes in their storage"


def _refused_by_cudnn(call: _Call) -> Iterator[str]:
    yield from _refused_by_all(call)
    yield from _refused_gpu(call, (8, 0))
    yield from _refused_dtype(call, torch.float16, torch.bfloat16)
    yield from _refused_mask(call)
    q, _, v = call.widths
    big = call.capability[0] in (9, 10) and call.cudnn >= 91100 and (q, v) == (192, 128)
    if q % 8 or v % 8 or (max(q, v) > 128 and not big):
        yield f"widths must be a multiple of 8 and at most 128; got {call.widths}"
    if call.lengths[1] == 1 or (call.lengths[0] == 1 and call.dropout > 0):
        yield "it takes no single key, and no dropout for a single query"
    if call.dropout > 0 and 91100 < call.cudnn < 91400:
        yield "cuDNN 9.11 to 9.13 have no dropout"
    if call.release >= (2, 13) and call.dropout * 16 % 1:
        yield f"dropout must be a multiple of 1/16; got {call.dropout}"
    if torch.are_deterministic_algorithms_enabled():
        yield "it is not deterministic, and torch.use_deterministic_algorithms is on"


def _refused_by_flash_on_cpu(call: _Call) -> Iterator[str]:
    yield from _refused_by_all(call)
    yield from _refused_dtype(call, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    yield from _refused_mask(call)
    if call.dropout > 0:
        yield "it has no dropout"
    if len(set(call.widths)) > 1:
        yield f"query, key and value must have one width; got {call.widths}"


def _refused_by_all(call: _Call, grouped: bool = True) -> Iterator[str]:
    """What no fused kernel takes."""
    ranks = [tensor.ndim for tensor in call.inputs]
    if ranks != [4, 4, 4]:
        yield f"query, key and value must have 4 axes (b h n d); got {ranks}"
    elif len({tensor.shape[0] for tensor in call.inputs}) > 1:
        yield "query, key and value must have one batch size; expand them first"
    if len(set(call.heads)) > 1 and not (call.gqa and grouped):
        yield f"query, key and value must have as many heads; got {call.heads}"
    if 0 in call.lengths:
        yield "there must be a query and a key"
    if any(tensor.stride(-1) != 1 for tensor in call.inputs):
        yield "neighbors on the last axis must be neighbors in memory (stride 1); copy to make so"
    if call.mask is not None and call.mask.stride(-1) != 1 and call.capability != "cpu":
        yield "the last axis of attn_mask must have stride 1"


def _refused_gpu(call: _Call, oldest: tuple[int, int]) -> Iterator[str]:
    if not oldest <= call.capability <= (12, 1):
        yield "it needs a GPU from sm{}{} to sm121; this is {}".format(*oldest, call.gpu)


def _refused_dtype(call: _Call, *allowed: torch.dtype) -> Iterator[str]:
    if call.query.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        yield f"it computes in {names}; got {str(call.query.dtype).removeprefix('torch.')}"


def _refused_mask(call: _Call) -> Iterator[str]:
    if call.mask is None:
        return
    if call.mask.requires_grad:
        yield "attn_mask needs a gradient"
    full = (call.query.shape[0], call.heads[0], *call.lengths)
    fits = all(
        have in (1, want) for have, want in zip(call.mask.shape[::-1], full[::-1], strict=False)
    )
    if call.mask.ndim not in (2, 4) or not fits:
        yield f"attn_mask must be (q k) or (b h q k); got {tuple(call.mask.shape)}"


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


# ---------------------------------------------------------------------------------------------
# nn.MultiheadAttention: one class, four algorithms


@dataclass(frozen=True)
class MhaCase:
    """One way to call torch's multi-head attention, and what was observed.

    Args:
        call: as it is written.
        backend: as `backend_of` returns it; None if it raised.
        causal: whether the call asks for causality.
        sees_future: whether an earlier output changed with a later input; None if not tried.
        error: what it raised, or None.
    """

    call: str
    backend: str | None
    causal: bool = False
    sees_future: bool | None = None
    error: str | None = None

    @property
    def leaks(self) -> bool:
        """Causality was asked for, and not given."""
        return self.causal and bool(self.sees_future)


def sees_future(fn: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether any output position of `fn` changes when later input positions do.

    Unlike `masking.dependency_map`, it leaves gradients on or off as they are: torch computes
    attention differently with and without.

    Args:
        fn: takes (b n d) and returns (b n …).
        x: (b n d), floating point.
    """
    before = fn(x).detach()
    tolerance = 1e-6 * (1 + before.nan_to_num(0, 0, 0).abs().max().item())
    push = torch.arange(x.shape[2], device=x.device).cos().to(x)  # not the same in all features
    for place in range(1, x.shape[1]):
        changed = torch.cat([x[:, :place], x[:, place:] + push * (1 + x[:, place:].abs())], dim=1)
        after = fn(changed).detach()[:, :place]
        if not after.isclose(before[:, :place], 0, tolerance, equal_nan=True).all():
            return True
    return False


def mha_cases(device: str = "cpu") -> list[MhaCase]:
    """Call `nn.MultiheadAttention` and its relatives in every mode and see what computes them.

    Nothing here is known beforehand: each case is run with the installed torch.
    """
    gpus = [torch.cuda.current_device()] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(gpus), warnings.catch_warnings():
        torch.default_generator.manual_seed(0)  # and the caller's random numbers go on as before
        warnings.simplefilter("ignore")  # of nested tensors: a prototype
        return _mha_cases(device)


def _mha_cases(device: str) -> list[MhaCase]:
    width, heads, b, n = 16, 4, 2, 8
    x = torch.randn(b, n, width).to(device)
    memory = x.flip(1)
    mha = nn.MultiheadAttention(width, heads, batch_first=True).to(device)
    dropping = nn.MultiheadAttention(width, heads, 0.5, batch_first=True).to(device)
    time_first = nn.MultiheadAttention(width, heads).to(device)
    layer = nn.TransformerEncoderLayer(width, heads, 32, 0.0, batch_first=True).to(device)
    encoder = nn.TransformerEncoder(layer, 1)
    hidden = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)  # True = may not attend
    padding = torch.zeros(b, n, dtype=torch.bool, device=device)
    padding[0, -2:] = True

    modes = {"train": (True, True), "eval": (False, True), "eval, no_grad": (False, False)}

    def case(mode: str, call: str, fn: Callable[[Tensor], object], causal: bool = False) -> MhaCase:
        def output(x: Tensor) -> Tensor:
            result = fn(x)
            return result[0] if isinstance(result, tuple) else result

        train, grad = modes[mode]
        for module in (mha, dropping, time_first, encoder, layer):
            module.train(train)
        try:
            with torch.set_grad_enabled(grad):
                backend = backend_of(output, x)
                future = sees_future(output, x) if causal else None
        except RuntimeError as error:
            return MhaCase(f"{mode}: {call}", None, causal, error=str(error).split(". ")[0])
        return MhaCase(f"{mode}: {call}", backend, causal, future)

    quick, hint = {"need_weights": False}, {"is_causal": True}
    masked = quick | {"attn_mask": hidden}
    asked = [
        ("mha(x, x, x)", lambda x: mha(x, x, x)),
        ("mha(x, x, x, need_weights=False)", lambda x: mha(x, x, x, **quick)),
        ("mha(x, memory, memory, need_weights=False)", lambda x: mha(x, memory, memory, **quick)),
        ("mha(x, x, x, …) with batch_first=False", lambda x: time_first(x, x, x, **quick)),
        ("mha(x, x, x, …) with dropout=0.5", lambda x: dropping(x, x, x, **quick)),
        ("encoder(x)", lambda x: encoder(x)),
        ("encoder(x, src_key_padding_mask=padding)", lambda x: encoder(x, None, padding)),
    ]
    asked_causal = [
        ("mha(x, x, x, attn_mask=hidden)", lambda x: mha(x, x, x, **masked)),
        ("mha(…, attn_mask=hidden, is_causal=True)", lambda x: mha(x, x, x, **masked, **hint)),
        ("mha(x, x, x, is_causal=True)", lambda x: mha(x, x, x, **quick, **hint)),
        ("layer(x, is_causal=True)", lambda x: layer(x, **hint)),
    ]
    cases = [case(mode, *call) for mode in modes for call in asked]
    return cases + [case(mode, *call, causal=True) for mode in modes for call in asked_causal]

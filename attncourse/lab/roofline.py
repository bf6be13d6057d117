"""How fast attention could be: floating-point operations, bytes, and the roofs over both.

A machine computes at most F operations a second and moves at most B bytes a second. A program
with `intensity` I = operations per byte therefore reaches at most min(F, I·B): below the ridge
F/B it waits for memory, above it computes. Source: Williams, Waterman and Patterson (2009),
"Roofline: An Insightful Visual Performance Model for Multicore Architectures".

Axes: b batch, h heads, n positions, d width of a head. Bytes are of one pass through memory.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attncourse import extras

# ---------------------------------------------------------------------------------------------
# Formulas


def attention_flops(
    b: int,
    h: int,
    n: int,
    d: int,
    n_keys: int | None = None,
    causal: bool = False,
    backward: bool = False,
) -> float:
    """Operations of the two matrix products QKᵀ and PV: 4·b·h·n·n_keys·d. Softmax is not counted.

    Args:
        n_keys: n if None; the length of the cache when decoding, with n = 1.
        causal: half of it, the convention of all published figures (exactly (n + 1)/2n).
        backward: with the backward pass of a fused kernel, 2.5 times the forward pass, because
            it computes the scores again: 3.5 times altogether.

    Source: flash-attention, benchmarks/benchmark_flash_attention.py.
    """
    n_keys = n if n_keys is None else n_keys
    return 4.0 * b * h * n * n_keys * d * (0.5 if causal else 1) * (3.5 if backward else 1)


def naive_bytes(
    b: int,
    h: int,
    n: int,
    d: int,
    n_keys: int | None = None,
    element_bytes: int = 2,
    mask: bool = False,
) -> int:
    """Bytes that `softmax(q @ k.mT / √d) @ v` moves, operation by operation.

    Six passes over the scores (write; read and write to scale; read and write in softmax; read),
    two more to add a mask, and one each over query, key, value and output.
    """
    n_keys = n if n_keys is None else n_keys
    return element_bytes * b * h * ((8 if mask else 6) * n * n_keys + 2 * (n + n_keys) * d)


def fused_bytes(
    b: int, h: int, n: int, d: int, n_keys: int | None = None, element_bytes: int = 2
) -> int:
    """Bytes that a fused kernel moves at least: query, key, value and output, once each."""
    n_keys = n if n_keys is None else n_keys
    return element_bytes * b * h * 2 * (n + n_keys) * d


def decode_bytes(b: int, kv_heads: int, n: int, d: int, element_bytes: int = 2) -> int:
    """Bytes of the key and value cache, all read for one new position: 2·b·kv_heads·n·d numbers.

    With `attention_flops(b, h, 1, d, n)` the intensity is h/kv_heads in two-byte numbers,
    whatever b, n and d are: decoding waits for memory.
    """
    return element_bytes * b * 2 * kv_heads * n * d


def cache_bytes_per_token(layers: int, kv_heads: int, d: int, element_bytes: int = 2) -> int:
    """Bytes by which a key and value cache grows with each position of one sequence."""
    return element_bytes * layers * 2 * kv_heads * d


def intensity(flops: float, moved_bytes: float) -> float:
    """Operations per byte."""
    return flops / moved_bytes


# ---------------------------------------------------------------------------------------------
# Ceilings. Plain data, as in a record: {"flops_per_second": {dtype: …}, "bytes_per_second": …}


def _sheet(float16, float32, gigabytes, l2_megabytes, memory_gigabytes, source, bfloat16=None):
    flops = {"float16": float16 * 1e12, "float32": float32 * 1e12}
    if bfloat16:
        flops["bfloat16"] = bfloat16 * 1e12
    return {
        "flops_per_second": flops,
        "bytes_per_second": gigabytes * 1e9,
        "l2_bytes": l2_megabytes * 2**20,
        "memory_bytes": memory_gigabytes * 10**9,
        "source": source,
    }


# Dense numbers: with tensor cores for 16 bits, without (and without TF32) for 32.
DATASHEETS = {
    "T4": _sheet(65, 8.1, 320, 4, 16, "NVIDIA T4 datasheet (70 W; no bfloat16)"),
    "L4": _sheet(
        *(121, 30.3, 300, 48, 24),
        "NVIDIA L4 datasheet: 242 TFLOP/s with sparsity, halved here",
        bfloat16=121,
    ),
    "A100-40": _sheet(
        *(312, 19.5, 1555, 40, 40),
        "NVIDIA A100 datasheet: 312 TFLOP/s dense, 624 with sparsity",
        bfloat16=312,
    ),
    "A100-80": _sheet(
        *(312, 19.5, 2039, 40, 80),
        "NVIDIA A100 80GB datasheet (SXM): 312 TFLOP/s dense, 624 with sparsity",
        bfloat16=312,
    ),
    "H100": _sheet(
        *(989, 67, 3350, 50, 80),
        "NVIDIA H100 datasheet (SXM): 1979 TFLOP/s with sparsity, halved here",
        bfloat16=989,
    ),
    "H200": _sheet(
        *(989, 67, 4800, 50, 141),
        "NVIDIA H200 datasheet (SXM): 1979 TFLOP/s with sparsity, halved here",
        bfloat16=989,
    ),
}

# What the driver calls them. Cards of the same family with other memory (H100 PCIe) are not here.
_NAMES = {
    "T4": r"\bT4\b",
    "L4": r"\bL4\b",
    "A100-40": r"\bA100.*40GB",
    "A100-80": r"\bA100-SXM.*80GB",
    "H100": r"\bH100 80GB HBM3",
    "H200": r"\bH200\b(?! NVL)",
}


def datasheet(name: str) -> dict | None:
    """The ceilings of a GPU by the name its driver gives, such as "Tesla T4"; None if unknown."""
    return next((DATASHEETS[key] for key, known in _NAMES.items() if re.search(known, name)), None)


def ridge(ceiling: Mapping, dtype: str = "float16") -> float:
    """The intensity, in operations per byte, from which on a machine computes at full speed."""
    return ceiling["flops_per_second"][dtype] / ceiling["bytes_per_second"]


def attainable(ceiling: Mapping, flops: float, moved_bytes: float, dtype: str = "float16") -> float:
    """The roof over a program, in operations per second: min(F, I·B)."""
    return min(
        ceiling["flops_per_second"][dtype],
        intensity(flops, moved_bytes) * ceiling["bytes_per_second"],
    )


def compute_bound_from(
    ceiling: Mapping, d: int, fused: bool, dtype: str = "float16", element_bytes: int = 2
) -> float:
    """The number of positions from which on attention (not causal) stops waiting for memory.

    Fused, the intensity is n / element_bytes, whatever d is. Naive, it is below d / 3 in two-byte
    numbers however long the text: the answer is infinity unless the ridge lies below that.
    """
    edge = ridge(ceiling, dtype) * element_bytes
    if fused:
        return edge
    # 4·n²·d / (6·n² + 4·n·d) = edge, solved for n
    return 4 * d * edge / (4 * d - 6 * edge) if 4 * d > 6 * edge else math.inf


def measured_ceilings(device: str = "cpu", dtypes: Iterable[str] = ("float32",), **how) -> dict:
    """Measure the roofs of this machine: a big square matrix product, and a big copy.

    Args:
        device: "cpu" (one thread) or "cuda".
        dtypes: of the products, such as "float16". On a CPU, float16 takes very long.
        how: for `timing.measure`, such as samples=20.

    Returns:
        {"flops_per_second": {dtype: …}, "bytes_per_second": …}; a copy of n bytes moves 2n.
    """
    import torch

    from attncourse.lab.timing import measure

    side, copied = (4096, 2**28) if device == "cuda" else (1024, 2**27)
    speeds = {}
    for dtype in dtypes:
        left, right = (torch.randn(side, side, device=device) for _ in range(2))
        left, right = left.to(getattr(torch, dtype)), right.to(getattr(torch, dtype))
        product = torch.empty_like(left)
        sample = measure(
            lambda a=left, b=right, out=product: torch.mm(a, b, out=out),
            **{"name": f"product, {dtype}", **how},
        )
        speeds[dtype] = 2 * side**3 / sample.headline
    source = torch.ones(copied // 4, device=device)
    target = torch.empty_like(source)
    sample = measure(lambda: target.copy_(source), **{"name": "copy", **how})
    return {"flops_per_second": speeds, "bytes_per_second": 2 * copied / sample.headline}


# ---------------------------------------------------------------------------------------------
# Published measurements


@dataclass(frozen=True)
class Published:
    """One speed that somebody else measured. Width of the model 2048, b·n = 16384, 16 bits.

    Args:
        gpu: "A100-80" or "H100": names in DATASHEETS.
        kernel: what ran: "PyTorch" (naive), "FA1", "xFormers", "Triton", "FA2", "cuDNN", "FA3".
        d: width of a head.
        causal: with a causal mask, and its operations halved.
        backward: the speed of forward and backward pass together.
        n: positions.
        tflops: 10¹² operations per second, counted as `attention_flops` does.
        source: where the figure is.
    """

    gpu: str
    kernel: str
    d: int
    causal: bool
    backward: bool
    n: int
    tflops: float
    source: str

    def as_point(self) -> dict:
        """For `plot_roofline`; b·h = 16384/n · 2048/d, and bytes of the forward pass."""
        b, h = 16384 // self.n, 2048 // self.d
        flops = attention_flops(b, h, self.n, self.d, None, self.causal)
        moved = fused_bytes(b, h, self.n, self.d)
        if self.kernel == "PyTorch":  # its product scales the scores, too: two passes fewer
            moved = naive_bytes(b, h, self.n, self.d, mask=self.causal) - 2 * 2 * b * h * self.n**2
        return {
            "name": f"{self.kernel}, d={self.d} (published)",
            "n": self.n,
            "flops": flops,
            "bytes": moved,
            "flops_per_second": self.tflops * 1e12,
        }


_FA2 = "flash-attention README, figure of FlashAttention-2 on the {}"
_FA3 = "flash-attention README, figure of FlashAttention-3 on the H100"

# gpu, backward, source, kernels, then (d, causal): one column a length n, kernels as above.
_FIGURES = [
    (
        *("A100-80", True, _FA2.format("A100"), "PyTorch FA1 xFormers Triton FA2"),
        "512 1024 2048 4096 8192 16384",
        {
            (64, False): "36/91/68/90/132 40/92/73/102/153 43/104/76/98/162 45/108/77/98/171 "
            "46/110/75/100/175 -/110/75/100/176",
            (128, False): "53/76/83/78/151 67/72/91/85/173 76/76/95/90/187 79/80/96/93/196 "
            "86/82/97/95/201 -/83/98/95/203",
            (64, True): "15/58/51/59/88 16/70/60/75/119 17/77/66/79/140 18/87/68/76/156 "
            "18/92/69/79/165 -/97/67/80/171",
            (128, True): "23/55/58/50/99 28/62/72/61/133 32/69/82/68/155 32/76/87/74/173 "
            "34/80/91/78/182 -/83/92/80/189",
        },
    ),
    (
        *("H100", True, _FA2.format("H100"), "PyTorch FA1 FA2"),
        "512 8192 16384",
        {
            (64, False): "62/157/215 87/166/294 -/168/296",
            (128, False): "93/127/248 167/137/335 -/139/338",
            (64, True): "26/104/141 32/149/273 -/156/284",
            (128, True): "40/98/163 63/135/308 -/137/328",
        },
    ),
    (
        *("H100", False, _FA3, "PyTorch FA2 Triton cuDNN FA3"),
        "512 1024 2048 4096 8192 16384",
        {
            (64, False): "52/282/340/335/333 63/306/382/373/392 67/318/396/395/460 "
            "72/321/400/408/476 73/322/401/412/496 -/324/403/413/497",
            (64, True): "16/180/152/225/197 18/229/291/288/265 18/262/342/334/371 "
            "18/284/363/363/420 18/295/376/379/460 -/299/363/388/473",
            (128, False): "74/309/323/497/467 100/350/372/574/565 119/362/389/617/625 "
            "133/368/389/609/638 139/370/392/600/646 -/370/395/595/648",
            (128, True): "26/191/146/315/292 31/260/273/410/423 34/298/323/484/521 "
            "35/319/353/518/579 35/333/369/529/602 -/335/378/539/616",
        },
    ),
    (
        *("H100", False, _FA3, "FA2 cuDNN FA3"),
        "512 1024 2048 4096 8192 16384",
        {(256, False): "275/470/482 313/546/630 321/580/707 323/581/736 324/580/746 326/581/756"},
    ),
]

PUBLISHED = tuple(
    Published(gpu, kernel, d, causal, backward, int(n), float(tflops), source)
    for gpu, backward, source, kernels, lengths, rows in _FIGURES
    for (d, causal), row in rows.items()
    for n, column in zip(lengths.split(), row.split(), strict=True)
    for kernel, tflops in zip(kernels.split(), column.split("/"), strict=True)
    if tflops != "-"  # out of memory
)


def published(gpu: str, **like) -> list[Published]:
    """The published speeds of one GPU, e.g. `published("H100", d=64, backward=False)`."""
    wanted = {"gpu": gpu, **like}
    return [
        point
        for point in PUBLISHED
        if all(getattr(point, key) == value for key, value in wanted.items())
    ]


# ---------------------------------------------------------------------------------------------
# Plot


def plot_roofline(
    points: Iterable[Mapping],
    ceilings: Mapping[str, Mapping],
    label: str,
    dtype: str = "float16",
    ax=None,
):
    """Draw points under the roofs: across, operations per byte; up, operations per second.

    Args:
        points: of a record: name, flops, bytes and either seconds (all samples, with their clock)
            or flops_per_second; n if there is one. Points of one name are joined by a line.
            Points without a time, such as those out of memory, are left out.
        ceilings: what to call it -> `measured_ceilings(…)` or a row of DATASHEETS. The first is
            drawn as a line, the others are dashed.
        label: where this was measured, such as "T4, fp16"; goes into the title.
        dtype: whose roof to draw.
        ax: where to draw; a new figure if None.

    Returns:
        The axes that were drawn on.
    """
    if not ceilings:
        raise ValueError('give at least one roof, such as {"measured": measured_ceilings()}')
    plt = extras.load("notebook", "matplotlib.pyplot")

    from attncourse.plots import ORANGE, STYLE, TEAL

    series: dict[str, list[tuple[float, float, object]]] = {}
    for point in points:
        speed = _speed(point)
        if speed is not None:
            at = intensity(point["flops"], point["bytes"])
            series.setdefault(point["name"], []).append((at, speed, point.get("n")))
    with plt.rc_context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=(4.8, 3.8))
        peaks = [ceiling["flops_per_second"][dtype] for ceiling in ceilings.values()]
        across = [x for line in series.values() for x, _, _ in line]
        across += [ridge(ceiling, dtype) for ceiling in ceilings.values()]
        left, right = min(across) / 5, max(across) * 6
        gray = "#767676"
        for place, (name, flat) in enumerate(zip(ceilings, peaks, strict=True)):
            bandwidth = ceilings[name]["bytes_per_second"]
            xs = [left, flat / bandwidth, right]
            ys = [left * bandwidth, flat, flat]
            ax.plot(xs, ys, color=gray, linestyle="--" if place else "-", zorder=1)
            text = f"{name}: {_short(flat)}FLOP/s, {_short(bandwidth)}B/s"
            ax.annotate(
                text,
                (right, flat),
                xytext=(0, 9),  # above the points that reach the roof
                textcoords="offset points",
                ha="right",
                color="#5f5f5f",
                fontsize=8.5,
            )
        colors = [ORANGE, TEAL, "#5b5fc7", "#a3336f", "#4d6b00", "#00688b"]
        markers = "osD^vP"
        written: set[tuple] = set()
        for place, (name, line) in enumerate(series.items()):
            style = {"color": colors[place % 6], "marker": markers[place % 6]}
            # Joined in the order of n: that of the measurement may be another.
            line.sort(key=lambda at: (at[2] is None, at[2] or 0))
            xs, ys, lengths = zip(*line, strict=True)
            ax.plot(xs, ys, label=name, linewidth=1.2, markersize=5, **style)
            for end, side in ((0, "right"), (-1, "left")):
                where = lengths[end], xs[end]
                if lengths[end] is None or where in written:
                    continue
                written.add(where)  # points below each other share one text
                ax.annotate(
                    f"n={lengths[end]}",
                    (xs[end], ys[end]),
                    xytext=(-8 if end == 0 else 8, -3),
                    textcoords="offset points",
                    ha=side,
                    color=style["color"],
                    fontsize=8.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )
        speeds = [y for line in series.values() for _, y, _ in line] + peaks
        bottom = min(min(speeds) / 4, max(speeds) / 30)
        ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, max(speeds) * 3))
        ax.set(xlabel="FLOP per byte", ylabel="FLOP per second", title=f"Roofline [{label}]")
        if series:
            ax.legend(fontsize=8.5, loc="lower right")
    return ax


def _speed(point: Mapping) -> float | None:
    """Operations per second of a point: best of processor times, else the median."""
    if point.get("flops_per_second"):
        return point["flops_per_second"]
    if not point.get("seconds") or not point.get("flops") or not point.get("bytes"):
        return None
    headline = min if point.get("clock") == "cpu" else statistics.median
    return point["flops"] / headline(point["seconds"])


def _short(number: float) -> str:
    """65e12 -> "65 T"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "

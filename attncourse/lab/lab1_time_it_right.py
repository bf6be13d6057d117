"""Lab 1: a stopwatch for a GPU, and how to tell from its numbers what is wrong with another one.

The answers of the lab, short. What the course measures with is `attncourse.lab.timing`: the same
method, and a good deal of care for machines that misbehave.
"""

import time
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["bench", "lab1_receipt", "make_inputs", "name_the_mistake", "summarize"]


def bench(fn: Callable[[], object], flush: Callable[[], object]) -> list[float]:
    """Time a function on a GPU, call by call.

    Args:
        fn: queues the work to be timed; no arguments.
        flush: queues a write that is larger than the L2 cache, so that no input waits in it.

    Returns:
        Seconds of each of 30 calls of `fn`, and of nothing else.

    The method is that of triton.testing.do_bench, with each sample kept.
    """
    fn()  # the first call compiles and loads; the loop below must not spend its time on that
    torch.cuda.synchronize()
    began = time.perf_counter()
    while time.perf_counter() - began < 0.03:  # a clock that sleeps needs work, not calls
        fn()
        torch.cuda.synchronize()

    samples = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush()  # queued before `start`: the GPU does it before it takes the time
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()  # an event can be read only when the GPU has reached it
        samples.append(start.elapsed_time(end) / 1000)  # it speaks in milliseconds
    return samples


def summarize(samples: list[float]) -> tuple[float, float]:
    """Middle and spread of some samples; one disturbed sample moves neither.

    Args:
        samples: at least two numbers, in any order.

    Returns:
        Median and interquartile range, in the unit of the samples. With n samples in order,
        counted from 0, the quartiles lie at places (n − 1) / 4, (n − 1) / 2 and 3 (n − 1) / 4; a
        place between two samples is shared in proportion (as numpy.quantile does by default).
    """
    in_order = sorted(samples)

    def at(share: float) -> float:
        place = share * (len(in_order) - 1)
        left = int(place)
        right = min(left + 1, len(in_order) - 1)
        return in_order[left] + (place - left) * (in_order[right] - in_order[left])

    return at(0.5), at(0.75) - at(0.25)


def make_inputs(
    b: int, h: int, n: int, d: int, seed: int
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
    """Query, key and value to time attention on, float32, on the CPU.

    Args:
        b, h, n, d: batch, heads, positions, width of a head.
        seed: the same seed gives the same numbers, whatever was drawn elsewhere.

    Returns:
        Three tensors of independent standard normal numbers. Zeros would be unfair: a chip draws
        less power for them, so that a GPU at its power limit computes them faster.
    """
    own = torch.Generator().manual_seed(seed)  # the global generator stays as it is
    query, key, value = torch.randn(3, b, h, n, d, generator=own)
    return query, key, value


def name_the_mistake(ratios: Mapping[str, float]) -> str:
    """Say what is wrong with a timer, from its panel alone.

    Args:
        ratios: scenario -> measured time over true time, as `lab.panel` returns them.

    Returns:
        One of "none", "no synchronize", "earlier work counted", "first call counted",
        "single sample", "mean", "hot cache", "allocation inside", "wrong unit".
    """
    low, high = min(ratios.values()), max(ratios.values())
    # A unit is one factor for every kernel. A launch takes one time for every kernel, so that it
    # is another share of each.
    if high < 10 * low and not 0.1 < low < 10:
        return "wrong unit"
    if ratios["long kernel"] < 0.5:
        return "no synchronize"
    if ratios["first call"] > 3:
        return "first call counted"
    # A flush of some hundred microseconds drowns a kernel of 25, a full queue drowns all others.
    if ratios["short kernel"] > 3 or ratios["dirty queue"] > 3:
        return "earlier work counted"
    if ratios["slow malloc"] > 1.5:
        return "allocation inside"
    if ratios["hot L2"] < 0.8:
        return "hot cache"
    if ratios["outliers"] > 4:
        return "single sample"
    return "mean" if ratios["outliers"] > 1.3 else "none"


def lab1_receipt() -> str:
    """What this lab measured on the course's own machine: a CPU, one thread."""
    return """
attn1:2200:ace21139:c-pO(UvC??62-qtu&<>I{wLRO7i}Le(3d_GL18HJwicpDf-L942>jjqJ
F~00eyDDPG!C^(ayT3g&zzb4GVInLhFkrHyYu$bbhka<owmO}oCi02T5le<`)RoSGTcv}w;SGu&G
Ctu{rZzS|M~9^?|%I0m+u+btdHvt+uip3JlyV|b~{#2pAM(zyARLj>2bJ?CAM08^r5<87caxJ==t
F^t?%gu-VdkE1G?i)NH_kwdB5ZH`Qfl<G~I-7)3o2y{ra*T<EI^y-~aTpdl%l#+9We!(Ej&F9pJa!
;rMuWoKAO-)8??hU&hww6xr6t-bQc#Zv2ZI%(^$yF_c)+tHkj%ZMKhFGwK0<O^@ec9=_jh&Wzix^
61IlKCgFAxa|EZIPZeH{POp!8`kIH7PY>(;c<GLwR)5tw)-=y{maX1=lz$9_m8K;{nJJlH5;kP=2
FTitu?#Y*drv@imTqOVs)$BXu+*&a;wr@@!hQg{YJkr-^RZ*WNURXGT+_EYY3={X>_TNF0|}SU7F
Qti$bfxb(0-O7xU=GjtcKIRm$8_bfL3+3>`}w^3sGUk;$BC5vOc+ht0=75%+jrpUx8(@xHp!YwtL
)fTdKsODIq5nKCUET9O-RkrptwFXPC?@wKUcX;shadd3gAu%NOSKcs@992ccwSuiUO30S+VrBzZg
Wn83}t=YCm)MX76+1M6=zSx*J>v39td>axU)|-!$fH!yV&(BBQ`316W2J~>t1|>`R@MigRIvq}z&
i~fC-QD3cXqGQ;<4p}EwVoq~9eaq$4X5e1=``&()7_hudj)R&D=J^yRs4aM5ie#=7<_YM1TV=2o<
d^m00p;YfC;QRSIy=OfPgBvfdTF?GVIW>3JvT9?_dplJ!%-Z3Prqh=0-FGS`v6rHKP%MpxKCjQ7L
tSpB9BI<^;3olbOa~a6mnPXcV=61$jjW=@H}+6q!|ApU<2uqNM0RfU3r7w;zHZU6UAL9dSS%8~vg
Qd7``42~5JHV|`Jy$c%{Bf+wJw#f~?hp$Z3h)<o8XJQfY1rAe(^-RI>IhoN7>$V9@r_J&B{$yGEn
wqTOhU{CU<yvn$5f?=#Z6Dh*V*Wj?k5%kv7(%1s7xPrsN75;M^a`;>oip~PlP!gb<s53jE!64)yL
j>Rvfh!s*24S>H3@A!c7huEuu0&Z-Srdd<W5OC26_z|JQ6KIF5O9u7b(0oQ`OkjEfWOLm0@UQMpb
i9$TrK8sPX(M3@B|pjQBk;X(h`T@osCKfE`$9F<q+dU5sm079=gOK1)8iyYmgx}YLt9L5Av2M3Qz
h_cIMy(EG3|nr9X=6IEG|`Y~WpN2`)1z)E;_PvPuP5vZ*3dm@go@l>TiP3%Oxag=W77WF##Z*q2;
$4K?O#Afph-e}l5k;rRRpVwT=;-RQwY!}o#fRC){I{A$^0RF|KmC)2t7nFRyWE2c`7E61+vLbzu!
SJo9IPghA<XbB><SZ1~}O<gxq1m4IUw`DJ1E?Kk~%Cxx=Vw;VKVX+{Jl~fWKp9Y(|<Y$Ji;E@R8X
gx*MFqvO**-So5GuEOt@l{^N^&E|{=J#$-6)TpCLwe1uzAf{0S>Km-N$tEtY4cufmQ!V-m|IA2o)
__YqrrL4xaf(CykzP(VRDgPYFsFlJa8S5;RYziN($~|hIBpo2A_Lr^`Al#zN!VD%2rUV#^qwOiZI
boQScMr&R9y62nz6US3+8V7R7l&Gld*_#0gv*s=63-=FK^anhp_~C24V^Qgo>L8RG&aag^)D$dP;
C7V?~>(QQbjc9Y7It|s0@40kJ<`3*|iRRB+@#;m4;6Nyb6otAls8Vf|7Dpf^pp@{^`yq0=HQ5HD+
sH|x+N(B@GB2TTas-#8N*>u@jg>F&42Usu>Uj;TlO1?>E-p}-#4v4YFSr7V3YyTeLUW>o$h{L!}t
y&?MURCv6gIsN`#qc$lOLFX`c!Qm?Rk~KV;TeUnQWD6hR))wW;Keehm37gUH4E%AYFvcCN?>c8sV
pRx31X};vaDMPq)(YBK<U<D9Qoeo1&CG!&ISKU6tIeh(P|l4!0Qsyb_D`o)n*x7IXbC`q#)y4CS6
U;nQF>AKUex$-$d9+6vc3PatIC<afKZSz$R)hxkbB}drGj6f~c?*YXLA-c{Xk`&AuWc;Il6b)+Y>
3R$(x&GS1jj>#MaKmM;=9tIx)Q$x0u6_>`G7*~31XqE(guA`8Bjg8wHmk7J;op{&i_i{!3=l24`p
Ec+W&{`&F<1YjXp
"""

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
attn1:2109:6dcf9986:c-pO3O>f&c5dABKu1f_Re$%(2yT=83*~6kJ3`bTQqmFIZN*6(q|Gw`H<
;FSGZP6x>NRh*t;mqS3`b)Q6-F6GUWjSr`$K_^P9ycHFrp|QttKn|58@t7qZase94Cr;k;Q=$d)j
dC6|NZByzux})1|!4ju)5uBH`8Oc*gb5wSUukFkB`gS$7wuu3m08Z(K;*1bX#{GZlcrOaa^tODd_
Ky!yR<H8}T>xk7n=iINj}c81*+IH<|Vx)~oY!I6rPN`R46E=9Ro^+9)%^q20$5H}GM*Kb)3_@why
V!+y7($5xYfFl(I@+x~9slj+pE7t$_xU+S~O;W!SP(?*@TL%hb*)V1ODW|%OpRvFQw_CBw+4+z=2
UW_$j&Tss`H{ELL7Eo)Q=}zORX|+(c-|Qx=wogybAMd`LqklN=*AD{|)tuyHHo?|v`dFjsi{O>LH
N9kOT*xN*Y<vnvkcD2X@y_(A7$+u5hD*^!ld=(N5KI}2_O2QX_Z)P|goKt|s0~qPeN4uSE^);K=u
O-o48Tf4$2V)iBrf$naQ9pQ?NOK3fG`Z({qX54#!l1fIE@JXI~eszYVcU*6Kr{JJidaBCWK%@5fd
W59kws?V=G#CgPjL~47M4ZL!aZ)##Ht^#uhrDzs&{RiH=9~oo(yb!tday1NN<-<zibC;;fgx)eAe
bA5yW?!?^nN@(A3nhEF4b);`zM<AFIoL)0_?cMI=h3;}uTUMwGv$NlmA@!x8@UG6^vy^Q2SfUH<-
$<ax&#g$^Z<M?4bj=N!8zF4{AK~0w^d@@(@#$;q>G9t~c1jR!in0$2cM#d3!WLyA^5={=KWK$qOt
o0QKAc#Q%V*!p-LWKfBsw;X0FyWktm_Rfa^q{jR%00na4DH1RH*v%p@?tQLRtU_bCLsVcBd3BqI$
N)xj`?#E2|5RtJ&%j$et}qD+XL4<j}*N1k)SLW4-6H`Lng*~EGcj~=R=;yxYo5X)sHbxn;1jrzUt
69$Oik|ce(k%F=RmdJd8NQUwuuEzWoyDTq?oGKxF(B>Ripf_?V@5CAV**E{gjJ)J5Ye!rmvME@iR
|u+oQm#zm-jMawaMIuJ%*5fejXfXbDUgsa)d_V5DkfTK)6C6fRgoRi)YNB}2t3FQv)6~r88UsNT8
42=?GAUm;`h)%H%9ucGuD<c(KrBXb=oxm}*848r76tAE#kih@}0D?RW{~Zp$1IxHz=N8){!ZYbNz
)^+=a^!rRFHdWwszsN$9uFAJ!&wi<5lYNU`*r{)*wEXoI$G=Je$YN!eRv=+kJMhYw%MZn>gII-At
DA}e+`5ZG6I%xW_}KZ7Hg_6Dfz;9TtOl30pS}k9QKFD7Z}7QL&dfQ2Tn|7=D}(K2yvdt##2Pgq#!
7y8w~<vMN1+k2^XNvwqmLb%2z~SdnS*;WEl>cMb*PH3VJ;&shlPMvK;kfV$6%uFO5=v&@XbRQlO4
k+v>ZVr+5@-uFgaWomVi4dxXS{SXEvb6e3ujOM_n_6fu?w!Ny-aTkShHxqOx*T)5V^ewyc0rnGgc
yUydYopgTcJQttsv7avF)qa|7gjpuc>*&v~735iZzUA7QNdVu&WUN&X^9t-#3x>Li$xvcWKMKoa3
J4#C9z=wqh`Oo7gm2K0;Bl;~q%n{e5-6;|C}m_hLP1b*1-PinV3;6%=2m5aB<R*EO3Y=#lvP%XF6
mQ8satP~dL?X^#YCRVt>vW;+=uekgB^OLp$B7-Y18#fU;;EHXT3XG5-uub1<_ZytSxUD)^mnm+&(
ToMh`WDz#a>~wc-4NcNLJWfJDUxE7-8WpMo-7psYX_h{F^d&w~0@U^OE!1?eclexAp1gMkwTCA~s
1=a_{eT-Rg^GC-M(y=Go<z>c|4?l;2k`EvL@PE66)XcL$b{Nu0UFXfzxrym3$!VIPcr6{@REg!oy
$Tlk`AEl}=KR^I+f(R*kQY)rSR(XweQ}hP}e{5(;7E~$8zLi@?iU1e$rw6FSlku7`Th>RMd#ATdV
je|ZV1(=kfapzBq$=@UFT<&_pix@pCpAZ?T#9OGPq}CdqtT9`1g!$k^Vk=W>Ek?Jn=Da`lhzJoY%
*?cc|g@(p4a5rhM(tCTSGY>YL_njtWCF<-^h2*7sKyX;aYsjfPV=%64wCdQOp3j@&a-1pZ*8bfEv
~
"""

"""Who computed my attention? (lab 3): the kernel that ran, and how fast it could have been.

Letters: b batch, h heads, n positions, d width of a head. Sizes in bytes, times in seconds.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attncourse.lab.meters import trace
from attncourse.lab.timing import headline

# Part of an operation's name -> what computed the attention.
SIGNS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}


def which_backend(fn: Callable[[], object]) -> str:
    """Run `fn()` once and say what computed the attention in it.

    Returns:
        "FLASH", "EFFICIENT", "CUDNN", "MATH", "NATIVE_MHA"; "NAIVE" for a product, a softmax and
        a product spelled out; "NONE" without attention.
    """
    names = trace(fn)
    for name in names:
        for sign, backend in SIGNS.items():
            if sign in name:
                return backend
    # Spelled out: the softmax stands between two matrix products.
    kept = [name for name in names if name in ("mm", "bmm", "_softmax")]
    if "_softmax" not in kept:
        return "NONE"
    place = kept.index("_softmax")
    return "NAIVE" if 0 < place < len(kept) - 1 else "NONE"


def backends_for(capability: tuple[int, int] | str, call: Mapping[str, object]) -> list[str]:
    """The backends that may compute a call of torch's attention, in the order torch tries them.

    Args:
        capability: of the GPU, such as (7, 5) for a T4, or "cpu".
        call: dtype, d, axes, last_stride, mask, dropout, causal, queries, keys, heads, kv_heads.

    Source: PyTorch 2.11, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h.
    """
    dtype, d, mask = call["dtype"], call["d"], call["mask"]
    if call["axes"] != 4 or call["last_stride"] != 1:
        return ["MATH"]  # no fused kernel reads that
    if capability == "cpu":
        return ["MATH"] if call["dropout"] > 0 else ["FLASH", "MATH"]
    half, ampere = dtype in ("float16", "bfloat16"), capability >= (8, 0)
    crossed = call["causal"] and call["queries"] != call["keys"]
    grouped = call["heads"] != call["kv_heads"]
    multiple = 8 if half else 4 if ampere else 1  # tensor cores load 16 bytes at a time
    runs = {
        "CUDNN": capability == (9, 0) and half and d % 8 == 0 and d <= 128,
        "FLASH": ampere and half and not mask and d <= 256 and not crossed,
        "EFFICIENT": dtype in ("float16", "float32", *(["bfloat16"] if ampere else []))
        and d % multiple == 0
        and not grouped,
        "MATH": True,
    }
    return [backend for backend, may in runs.items() if may]


def attention_work(
    b: int, h: int, n: int, d: int, bytes_per_number: int, causal: bool, backward: bool
) -> dict[str, float]:
    """Operations of attention, and the bytes it moves, naive and fused.

    Args:
        bytes_per_number: 4 for float32, 2 for float16.
        causal: half the operations, as all published figures count it.
        backward: with the backward pass of a fused kernel, 2.5 times the forward pass.

    Returns:
        flops of the two matrix products; naive_bytes and fused_bytes, of the forward pass.

    Source: Dao (2023), flash-attention, benchmarks/benchmark_flash_attention.py.
    """
    tables, vectors = b * h * n * n, b * h * n * d  # numbers in one n × n table; in q, k, v or o
    return {
        "flops": 4 * tables * d * (0.5 if causal else 1) * (3.5 if backward else 1),
        # Scores written, read and written to scale, read and written by softmax, read again.
        "naive_bytes": (6 * tables + 4 * vectors) * bytes_per_number,
        "fused_bytes": 4 * vectors * bytes_per_number,
    }


def roof_over(
    flops: float, moved_bytes: float, flops_per_second: float, bytes_per_second: float
) -> dict[str, float | str]:
    """Where a program stands under the roofline of a machine.

    Args:
        flops, moved_bytes: of the program.
        flops_per_second, bytes_per_second: the most that the machine does.

    Returns:
        intensity: operations per byte.
        ridge: the intensity from which on the machine computes at full speed.
        roof: the most operations per second that the program can reach there.
        bound: "memory" or "compute", whichever it waits for.

    Source: Williams, Waterman and Patterson (2009), "Roofline".
    """
    intensity, ridge = flops / moved_bytes, flops_per_second / bytes_per_second
    return {
        "intensity": intensity,
        "ridge": ridge,
        "roof": min(flops_per_second, intensity * bytes_per_second),
        "bound": "memory" if intensity < ridge else "compute",
    }


def sees_future(fn: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether an output of `fn` changes when only later inputs do.

    Args:
        fn: takes (b n d) and returns (b n d).
        x: (b n d).
    """
    before = fn(x)
    for place in range(1, x.shape[1]):
        changed = x.clone()
        # Noise, not a constant: a layer norm would take that out again.
        changed[:, place:] += torch.randn_like(changed[:, place:])
        if not torch.allclose(fn(changed)[:, :place], before[:, :place], rtol=1e-5, atol=1e-5):
            return True
    return False


def lab3_receipt() -> str:
    """The course's own record of who computed its attention, on a CPU with one thread."""
    return """
attn1:3127:7c68f16c:c-p;L{cjt&5&c(;{k2?!9De(^;6Bg-z2bnj2NcD@kmXG*M3DqZ&eaI=z
xTc2%CRr9H;Ie{kyp#*kX*ibZ)T_u-Ewx-UGT5J{NrYQIbXlq-0p|#%f-Gk-MiWRX0aN&ix1uP@P
0AJw{E_<#go<S9dBO!^5fZ0zy9Y3w9IFl+0|mX*xz**tJ~!g*2BB?_U`iPZa?h03yG3bv|?Q{-BJ
$Ct?T|~JIt<e>+pTOo!?+=Id}ft{-w>gx!d2YS7`O;&Yfq@cY8fMm}B|F5)Xg)_21^qowd=}XTXA
1Z+3iv*UR;0cexq1m%CxUUR{rEv%Qz@q9*HY`*&_Xnobw@s56!?Hht=`*$(r?ZlP<sS-iO!cKfb1
UoYl+wCkkrX1lk%zMm~`xnIA$`qy8vuGzl3z%VwNZa3`OC>F-+#cB^bj(@#fZ`QZ_hsHnu{nbAoT
GywoxdX%5?0>`VnE{+UJ-}|iU0e^>XK#nQr`PYo(*wNOu5ULO;HKgF<PhoUA+8i2m!5lt{IvOMws
=3BU9E2$)`t<ASAN+L^Y!i_0&;I8?kS^>pKkv9;Xo5zN=Fkq6CWj0V>PZM)4OPDHND5zD8?mkdMR
i|Tfj9q(^n&bkBzfv5L2S@#Y8p8X!X_<F$q0=Kw~hj27^oQi}rU}e#hG^*Ymgc4BqW$TM!*<i6&J
ml8rS2mkeTIpRqV=BE}Kx@f~AgR+oz|+Uayzudd*EPR6HX#CdI#=rD#g2~NtZD^+b{Ef^2>70+|V
bBBd(hS}T4dT=$Hza5BM_m5Y9`|T$z_j-S~;Z`0fYZ{@ui<F%$C54f+-9`4nS`Vy-?RLFAjQGcFx
x8Gz2c!A=7w+6k^)_QsAqp(K>9)h`VLPnm!{ulx=LL^bt+C`>Y;<YpE!<^AIe_C{sa`>=Fgezm9?
{{WxrhJt?QXdK6Z}P?H`oUee8E-%TWl^pA!-9~>j4T;6+)Q-CDAeT6np|3odGhvz)H{>u=}AJco5#
d0q@Nu^d4qbAr2T%p$1gRr4jb3P|+P+DI=tZe%bhlXBE?6{d5DtHbl6OSQ%}rwkN^jYJ7M<0sVpN
Uk<&qp+t;50ewt9SMe#>;JkO`DD*Yk0^W#A*+Trk4f)TB4+Oyh2affE-OprouddKn1v01;6xZ;_o
)LJs14Y2IYl1;m4{-XQH*^5>fp6%TAwPq8Fd4oU6mr0U?gAGisj;8}Fhl$5I0KZ$1$=yIZSXGQ4!?
AmQy;^{V2lOB7I^co4u|hmO!cP{Tv7=>2Ho~CmB^B$PU8%0L&_3t_ReMq>E}4Z8LH0#p{!bXC)j=
ubYy%yh2lPeMty>cdeDp*E3?tibJt0D$fZXkUIi*-=(_ZZ3_|wUJ1`{z91uLvm?J=Idkqnc1aMy7!
A}@VApJUa1XLkRH~@vZ$vwHKwnQJMq%E`ruCL7u1fI@-TkIgGY|deu7tl$hL7w%0VswI!;5$?Sgs
*Zc&yRS3t=Yvd(D-7pa;XW>3IgIW2guby-X%FWL2<=>n*)5#bVN={bhOHHV5VgE5J$zU<o1l57H!
NB;Hohlv-J4rGZ+9=ke=8kgizRJ(F;NY4RDv_dAv&iTP-{ixL^$LNmWconZbR)@YP23(gJOdKsqq
e1TGhngB&Gbssw3(c%t3nK8;te;{|-YXACK=9bV(TJ(c|+F8GO@;xm=Eb_#x}AwmJD;ngB`evW=Q
Pss!KQ1NO=f-1l-3O;xcPN6?265()>3Q#HANR~-p?mAU~>WMe#k@_)KJM1zAA4?(adq!99R5OZ-J
hL#bX(0?F@8MsywL481pyPUt6Rv<4hAU(^5E+#{U<FhG{^%J8z}SQp)<C}v>Ke$C;Dm4kNIjAug&
Kr`JHZZb2bpdC99_w3|NHyM7qPrQRR)f@Lco4{?8KBK6ep#4NCsj#*mg_?EYbnUOu!rnxewyN*Ll
J*9YE?7nWq!i1~PN|L`Dn12dV^ClYUk7pxTZsIy-|*#o#Rw(wWTxVA_`Y491=s4p+h8kP-pD0>==?
`~f}!OoeG0Fc-`Qal{pUkz8mSGe-D=Ff&CA5-u{F9K@kN;8=zdKfn$|Mm9L9;&>Yfl8=&@lf`41d
OCM0RqR*B`@+G?J&(bYavF~#2@}XwMq016S{-Y*+_bc3Z0UnmTujxp%}cAFkV7H{!T}HtBUl$1x;
^NV`~-?YnTp*9I!UuML4uBG2$Zr$7e!3yMx{L$qKh`xV65H1W<@Zv&Zws{@Cb^<BLnANPhl8KMas
{r%PV7#VCW_0h;-YRltI*Q#Bh$e|CEVgOVB-Qh2&UqGv@{zeWpGa%Ws%VZ$VZ@?acTJu7yhev>X{
_jwo?CK*(AdBW}3oVZ?T^v<_ObK@dYwQDmGXz#-)E8HKfK+|+(5&|YIP>nRjF8lO?~oC@P;@X-2s
^pLJ1>8u{$M~GxSf?l)Ky}#%-%h_Vp9aGQpmDnMOu(0g$@{oWQ;WS<X5&%amSsnpA&rR;3mX!gq)
ut%ywY;vbsVcKpJAoFQ@DW=62wEeGidNFhh@q7IBEzW`b_n+gXvOc3mesS0z?2s+?ZXsWdPw;)V8
KxmPbZKhcqk@=Nzb6gXwq|^da4q>xpuH6g%Qm%L_(n8?Ve!>kP44AA`c9(hv=E6P(weW;~FxEvJE
vL!<w3?jk#(=Esv;?V~}{<C%k&%krc}FEO`R8@f7m~DJB-7xnlKNk4#~9I39i(*iavkPW%*Qi)JZ
2qHs>@3q43w&b7!!Rtbv-O+LkDEpjuXQ4|)D6L3Y?w-Q1>(Kp#sSO^<QXWPBX;dl>u4seW!K%7`6
sU$j{XMA_KQVLKVtg6&{{0Qk0UJnlBUkWl5>fAQ~6De<n2QDoB^+bT=a(W<~+kqklF=$rjSVZdSB
T{-MeM(Z9K#b+qD1Y~e5gi!=R~QjXBVwtMYmA_Y)dQ;r_*3H9agy(jn5~H60^E{i(J}$p!yiCi1~
KGqNx4HfSkq$<dq%IQC4u1qt`IS+s4-rFc{~mzqoQ7T0?Y!uPURda*L%3)sD)Y2cN@X-7|CjbPT{
KU5Xu1_o(1q+3fh<owb6b5oCAviwGjRVm0OsMVvm1tdLhV)mfp-Tr2QI0%=l9b>om`^ErkvNjX%x
sWLuAJS<F{W#yyiaW*`%IWvf}oqx|rISNw#Ro~s=2DlI?6vxu1!Gh9{`mFGuai`V^cZKp&qo~Og5
P^cxI3r+y`V9GDV>i3WT2h-gR9{
"""


def who_computed_it(record: Mapping[str, object]) -> dict[str, object]:
    """What a record of this lab says.

    Args:
        record: as `attncourse.lab.receipts.decode` returns it.

    Returns:
        naive_bound, fused_bound: "memory" or "compute", at the largest n with a naive time.
        naive_share: the speed of naive attention there, over its roof.
        fell_back: the calls that MATH computed, sorted.
        cost: the longest time of these over that of the call "plain"; 1 if there are none.
    """
    done = [point for point in record["points"] if not point["error"]]
    at = {(p["name"], p["n"]): p for p in done}
    n = max(n for name, n in at if name == "naive")
    naive, fused = at["naive", n], at["fused", n]
    ceilings = record["machine"]["ceilings"]
    machine = ceilings["flops_per_second"][naive["dtype"]], ceilings["bytes_per_second"]
    over_naive = roof_over(naive["flops"], naive["bytes"], *machine)
    speed = naive["flops"] / headline(naive)
    calls = [point for point in record["points"] if point["name"] == "call"]
    fell_back = sorted(point["call"] for point in calls if point["backend"] == "MATH")
    times = {p["call"]: headline(p) for p in calls if p["seconds"]}
    slow = [times[call] for call in fell_back if call in times]
    return {
        "naive_bound": over_naive["bound"],
        "fused_bound": roof_over(fused["flops"], fused["bytes"], *machine)["bound"],
        "naive_share": speed / over_naive["roof"],
        "fell_back": fell_back,
        "cost": max(slow) / times["plain"] if slow else 1.0,
    }

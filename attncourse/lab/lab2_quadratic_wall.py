"""The quadratic wall (lab 2): what n × n scores cost, in bytes and in seconds.

Letters: b batch, h heads, n positions, d width of a head. Sizes in bytes, times in seconds.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attncourse.lab.fits import fit_exponent
from attncourse.lab.timing import headline


def naive_attention(
    q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n d"]
) -> Float[Tensor, "b h n d"]:
    """Attention as the formula says it, one table after the other: softmax(qkᵀ/√d)v.

    Args:
        q: (b h n d), k: (b h n d), v: (b h n d).

    Returns:
        (b h n d), of the same dtype.

    Source: Vaswani et al. (2017), "Attention Is All You Need", equation 1.
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # b h n n
    weights = torch.softmax(scores, dim=-1)  # b h n n
    return weights @ v  # b h n d


def peak_bytes(b: int, h: int, n: int, d: int, bytes_per_number: int) -> int:
    """The most that `naive_attention` has allocated at once: scores, weights, output.

    Args:
        bytes_per_number: 4 for float32, 2 for float16.

    Returns:
        Bytes, without q, k and v, which were there before.
    """
    numbers = 2 * n * n + n * d  # of one head; the last product reads the weights, and the
    return b * h * numbers * bytes_per_number  # scores still have a name


def fit_growth(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The p of time ~ nᵖ at the largest sizes, beside a fixed cost and a few wild values.

    Args:
        sizes: n, in any order.
        seconds: one time a size.

    Source: Sen (1968), "Estimates of the Regression Coefficient Based on Kendall's Tau".
    """
    points = sorted(zip(sizes, seconds, strict=True))
    # Where a call takes ten times the least time, at most a tenth of it is fixed cost.
    beyond = [(n, s) for n, s in points if s > 10 * min(seconds)]
    # Between two points a power law has the slope p, and most pairs hold no wild value.
    slopes = [
        math.log(late / early) / math.log(large / small)
        for (small, early), (large, late) in itertools.combinations(beyond, 2)
    ]
    return statistics.median(slopes)


def largest_n(memory_bytes: int, b: int, h: int, d: int, bytes_per_number: int) -> int:
    """The largest n at which q, k, v and the peak of `naive_attention` fit into a memory.

    Args:
        memory_bytes: of the device.

    Returns:
        Positions; 0 if not even one fits.
    """
    # b·h·(2n² + nd + 3nd) numbers have to fit: n² + 2dn <= room, which is (n + d)² <= room + d².
    room = memory_bytes // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d


def lab2_receipt() -> str:
    """The course's own record of naive and fused attention over n, on a CPU with one thread."""
    return """
attn1:3843:4b4f5ac1:c-pO+TW=i45rzMXv9FmWx~uPcGn@o@NB{#t9s<J<R^-|uOpy#pDG?0)_
k5?C7iG1kyvx{L?o7}0%xs@ir%u)Q*VV=5&FYo@+UtM4-<;iS?#@qN|9f+Bv07H|Hm7gTFSn~#zp
l=<AI?wNTAg0M=g8&eop!$c+aJIA)A#@Uj*-*N_2$j_#rfUG)vL?*7Z=RlzPq~l`1;MqyY21jl@)
8X1Pie)s|$M=o~Pcuz1eQg*o|yo-JHJV+IAAtN%+IO-}T44w^x^prjr;?n(p`hZ1XUkr{7+1@VoE
-v3wK1nOD;}TOR20=f~Sz-)v9MZ_oWgZ_j^zyS=?zee&V6^V2)VZ}n5}&fjfcZ~t?Bb-BH~)4+$##
e06OEvpUt;UvVgtZuir^GbmWT%BLuF*k5AE#TGuS@pMP`GP-9N`ZeKC)#h#`}DN)!><pRTyD-kY*
(6cdUdHa{h=<o)g|`2n2jZlu&mp%j)hNOVzng(wg<b3Gs05C!r0KKGRS|KkFLOWV$(DldtPGnN$c
2_*v7mDcNyhJ7XRYv^p{7%+}>?&?zU$<O<7WmR{9c{UY4G?FjwTM`p|#FxOPYy7-fmMlx2)1bBjD
QB`+iTc|jAC_J;l@_L??zti-2_@+{Ze%`Xp(<E&A0Usi86r@w43&mPEecK7jG>-W>e)#ff4&&<{}
6H+QA=VT|W{r|9bdvkMj^ROcXUtfLL-n`Ziew9uvSQ?$@ZqY(5Fk}1E_GWu|3c2P)J4v03hhn2eF
c{l)XvCI+1+KjDaCqw!;wfwXoCcqkN5Fr2f4e=~1-yU=0G8s2tP_|gU`s3yy9Q<{E>@RXoe9Qf%y
B9Ar?Pxd1(xuaMd#kE*xLF$)HOJ-XG_V?fL#T4G9CjYEOcEKkl<a1TiszC!YT<u;hF_G%Me2YSRN
}UHgX?*89B{qP;+RBMurRo%19hcFn0`5NFV05z|j=vP8@xg2Ppx}XEa#-`LEyp{V%KkKNBLW+k*9
4a;T%Gy;NY8y0xzJdbDK6abaKZb7hdqwp5mTZ62~7>|sf5v7#|#Axjn{0Mdp`loFc^G1W;_h6p9{
G|0e+;2BOAhS_I+GpEYB_UGf@#;A&a-77XYL~2+}A`*B^>pTT_H)jDvuH3G4sR9f&cE}@(Lf9ZAg
UsdTg)<GfYo0TVlQ=jSWT4Dh24iZq9V)=jGGNQ^mV{RFXt^Cm1d}9K3Jo&!Na*k3K|C2Y4AlswhZ
<^Zk32{{zf2Q|D8Q7g!zc$;!4{+re5CEsr9z6zN#Y17)TK4YJi1hjg?zD=T8x=Cq_UjAI=kj_4pE
wPv5=l;0ZERTfRuO!0c89fQ%XV#VF65t4k1Spq0E!JOtCKaSPE>rpF&s_ft|w~Owu-`HnhQt&J<0
|2MI*6VpkBv%EJWVNFF32-8#f)BNLqacu>Qr;zCKJkeupqJlLlP+|uExGpfO$Bwy+^dkVGcvM)5&
@(Ki*7H(Y?*p93IFk@jfW`Pe6lpdrUR$UsZa<6*`I23Dpo(iRvK2rpu!xg$Fxxo;0ED{@1a(zr9)
3rl3P)0zsP*_9>Yv4zTv3aE=d(+URobE4Bd_xlvt*mq;m5{`8yR<`yoJ-AzIE9#4+6J@-@*xlC-w
1=+b5knZM+hVJ)HJFyhsSy(L?HxUCJbFrON)clp4IU{cZbOGud4$tI6);u1*|*BG9GADXI|;qC&@
NOp_20qVR^G6*o4cXNY{;`eT5W&>7-zKcX4SBm{4{Yg|JPeb=X9Pq%_rh55p**5k(&O?B|LD2!X@
id_zYjJ+#5>>efjb!|xWFyU79t$%o0rvAhT+Myz4BR%BZD(xQwJdf@7fCm-34qs2a*;GS`5EQ={&
5C=)fN4dxBD!*<b2rh!y!~M${W>ErHwI*34#Wa|8Wd=WA^6lPYEgQdfp%KZFTu4?(&%x&$CHD%M5
aG4}no;w_V<a9A5#dp#Z=lGdThpVFjCcZ_V^Sl8BXLV0WZaw~Ciw$V<2UFWF(=mO<0_i4j*D0arF
W<>dI~v&14@a&#YXS_PzRX}Y*Rz`YK?n~378OK?q#$=oYnf2FqrkiVj`gBEQo>(3xSDct$?b_y~*
yews^0u;MUIC(?1wt{DnevQCXwLa-q=`!c&NnhD3s|+GataGE*!lU!g!5q5yf3j0L2kAk$NycF%(
H*WAwBGjZ8er&UmB7rs?wqzA~kh6Es4^m!2<U{b6$Gvht{`nfw4NModWU=?vB38)hT1x~4G6?tiY
lHk`BGB<yq{jlRm@TD3^L%SPA#XcV|{;C_jlpeoy3aeTj%X~jrpT2~gyUK^FWT%B+tj#a>;<MPZ3
Qfg>cLWG)3bG{=q8Z*`mN?EBv`lh@8s}`vHon1KD#k4^SI&!qw@pYwg`<QIBF8+Qq;Rc_e(HLXjs
kzv7vT>hLM(^W4JB17yb%vJjHM0KG&L$jaM*`Dm1XR0AP{h1Jhc+Y=`X4q%F-12su)<0;ZDCzkEc
O`s&wCTB``mxVv9izsN!If5(S~A!Rq}beJNLPiXtC)WHM^`3i9Tihf;?}bYV~E)bNC&#Jv#F8H-R!
M49|vl$?qZMD>JGK{u(4tYe~Viu~%#Q81T2)q+5}|K3HuB+Cbu3P(ea)TwC1^99wZ`@_B>`91Vj2
L(wiN232_+{>yJFYV+6iJlzf>!g?x{M4pm3%ovkV9v9i^kSgTwt{&|2yPA&Z0h}apk-w$=MVLu)Y
NO*#^$x^?VTn{;V>XO#j5&9aT!(Ji80UP0h<bkuIiP2B)nre`!uk-XeJ`7#CnL)M}tNgr5uhXwMM
C}g<e9h`z&2QiG@-WCqw$Au91fK2__tRq0?8RL#8WwuO}BTkctX9@B2l!^ls#4U8D|R_5zQiqj;l
7-l{8xfjWC{u`24(Tl`kdUxC(CF#?BdJp53ncBtDcNL^Zjf7BqtT{)~n@ag7!np(P{JM^s!+6FDu?
Nfn}cWZhCu^rgtI~rT0reP|Q!mz}$A6k-krh*PN;#bm<(C*96Rb6@FK;4?2+)5*Rt$XiAZM$w$hP
7T^(@A(4R6mE~b($~);~D&tjz@0^cS%F_w*Ycms?AI-IXN$H>$RujDfn9lRcyYmnoutp)DJGZ(TK
+_E$0JVwJ4Q4)H}4kvhLLrSXXp@FJx8PO2EomV|q(}gv>&Ip|7@PDnVg&QT?r^yegZhcE^}6W=5W
+xH6Zrl<H;~G5M6}k<89uFY8RbAW>iUD+p4Js`)Au<bU<Pr6zBUS~Tyq`FNO~S8X<&#bW+gDzPSt
k^#L5h-0@xj-lpppea5YL%cMrgkDnUlV11P;&xIoi~KIDN|e!##Bg7FjGe45yQ^+k^IB1c)B7Tom
C86ry?rZLMXvm@Y>&!iCCco57jK=ZZ<W1&qGr8>7bpKbkX6zxJ0&Xwi9&I!Qvj!6atojp_4Ar}YZ
T+`2Dl_yxBD^KAT`hR?kC4xAaO*sNp634EP`R|Nw0bi?v3}*D9bB8e1yIi#z=ja2S%vzujNM=lRD
ck^0?L4e%2?#vCY>WdU2%?RSD=eM%C)tgTTw*b)0Q;^}=<A_eRHf9=4|b8B0E9-BN}eEs#|?)abQ
_!-H-Yx!iOQXK52Yj@Q7Pc3<y&QInFzcLen7@pn9K)KE}Zjp~8<&U-Z!vz9HSh~)`A*^$8QOM6LT
rXF-u7omGUO5JPqBh^UI3j=RJs=A-eY;RS1CtGKbDD!hE&(sv~*A(i21{qC%0o}d99p=U7$NUZS)
BeM;Ft<(Lb+?<?0>wl<B*Z#(4?#d#aHv6vW(7lK4R<y6BL$9dd?d09WzmyCL0jv~LX35QlWO<Lc*
t=^Z~rLM%<h6(M_xXvIn(tn8o#HqP)g}<8}&Zh3?u&)z=k~n7Vgo~tLEze`@jV1z7ZAcXJFYASUT
qK5_UC_6iKo<EVzzGjO0w&h)J>`^!9p6(<>+{g@htR|DOncKV(0C`Y%<rAdd
"""


def conclude(record: Mapping[str, object]) -> dict[str, float | bool]:
    """What a record of this lab says.

    Args:
        record: as `attncourse.lab.receipts.decode` returns it.

    Returns:
        time_exponent: p of the fused time ~ nᵖ, beyond the fixed cost.
        memory_exponent: p of the naive peak bytes ~ nᵖ.
        ratio: naive over fused time at the largest n that both have a time for.
        wall: n at which the naive peak would be the memory of the machine.
        held: whether the predicted wall is within a factor of 1.5 of that.
    """
    done = [point for point in record["points"] if not point["error"]]
    time = {  # name -> n -> seconds
        name: {p["n"]: headline(p) for p in done if p["name"] == name}
        for name in ("naive", "fused")
    }
    peak = {p["n"]: p["peak_bytes"] for p in done if p["name"] == "naive"}
    n = max(time["naive"].keys() & time["fused"].keys())
    memory_exponent = fit_exponent([*peak], [*peak.values()]).exponent
    # Bytes ~ nᵖ: if the peak may grow by a factor, n may grow by its p-th root.
    last = max(peak)
    wall = last * (record["machine"]["memory_bytes"] / peak[last]) ** (1 / memory_exponent)
    predicted = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": fit_exponent([*time["fused"]], [*time["fused"].values()]).exponent,
        "memory_exponent": memory_exponent,
        "ratio": time["naive"][n] / time["fused"][n],
        "wall": wall,
        "held": wall / 1.5 <= predicted <= 1.5 * wall,
    }

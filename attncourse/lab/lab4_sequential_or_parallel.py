"""Sequential or parallel (lab 4): how much work a layer is, and how much of it has to wait.

Letters: b sentences of a batch, n positions, d width. Times in seconds.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attncourse.lab.meters import count
from attncourse.lab.timing import headline

# Products of a layer whose two matrices are (n d) and (d d): n·d² multiplications each.
PRODUCTS = {
    "rnn": 2,  # the input's and the state's
    "gru": 2 * 3,  # the same for two gates and the candidate
    "attention": 4,  # queries, keys, values, output
}


def step_loop(
    cell: Callable[[Tensor, Tensor], Tensor],
    inputs: Float[Tensor, "b n d"],
    state: Float[Tensor, "b d"],
) -> Float[Tensor, "b n d"]:
    """Run a recurrent cell over all positions, one after the other.

    Args:
        cell: one step: input (b d) and state (b d) -> the next state (b d).
        inputs: (b n d), one vector a position.
        state: (b d), before the first position.

    Returns:
        The state after each position, (b n d).

    Source: Elman (1990), "Finding Structure in Time".
    """
    states = []
    for position in inputs.unbind(1):  # b d
        state = cell(position, state)  # needs the state before it: this is what cannot be parallel
        states.append(state)
    return torch.stack(states, dim=1)  # b n d


def operators(run: Callable[[int], object]) -> tuple[float, float]:
    """How many operators a model dispatches: so many, plus so many for each position.

    Args:
        run: runs the model once on n positions, n >= 1.

    Returns:
        fixed, per position: the count is fixed + per position · n.
    """
    small, large = 8, 16
    few, many = (count(run, n).total for n in (small, large))
    per_position = (many - few) / (large - small)
    return few - per_position * small, per_position


def longest_chain(needs: Mapping[str, Sequence[str]]) -> int:
    """How many steps have to be done one after the other, however many workers there are.

    Args:
        needs: step -> the steps that it waits for. Each step is listed after those.

    Returns:
        The number of steps in the longest chain; 0 if there are none.

    Source: Brent (1974), "The Parallel Evaluation of General Arithmetic Expressions".
    """
    length = {}  # step -> of the longest chain that ends with it
    for step, before in needs.items():
        length[step] = 1 + max((length[other] for other in before), default=0)
    return max(length.values(), default=0)


def multiplications(layer: str, b: int, n: int, d: int) -> int:
    """How many numbers one layer multiplies in its matrix products.

    Args:
        layer: "rnn", "gru" or "attention" (one head of width d, with its four projections).

    Returns:
        A whole number.

    Source: Vaswani et al. (2017), "Attention Is All You Need", table 1, with its constants.
    """
    projected = PRODUCTS[layer] * n * d * d
    looked_up = 2 * n * n * d if layer == "attention" else 0  # scores, and weights · values
    return b * (projected + looked_up)


def lab4_receipt() -> str:
    """The course's own record of a loop, a fused GRU and attention, on a CPU with one thread."""
    return """
attn1:3625:2be7be0d:c-qxk+iv5?5&e~cUeh%Ce(~F4FUUgzED+=&SS$=#=B$O$NRA{=U<~Hpb
51pBX>3`PECKcarkmaDCdE2kRi~=>bu=4ak1qM&U#;5z-naAhbUeFSEU)gy%kga1&PHnVc|5tD&f
C%D*U?S;WjevxXmWRtEA#PZc7FQjFCTvW{XairWHP=RUr%S#^~30Lem|RGb^Cd-e7L%PShuUur42
U4pshAhjb^qVu2a{y%XWN&uEF_YIl0BX?S*j{`fv4lcMt2^#T=vV!kCN1=iT3o`{j5G{NBsa&%gg
$eJ~&D-8iSk51Rk=_?Ww8JDIMga--YnU$^aQJ^CiYH`B=)<14=EWVu+a7GK&WJ731Ld%UT!S&hc)
(WSo78b5N?uIha>mM^CBHCAfe>UzAM++NKVi@WW`7vYG-<Mo<g@cQE&4te;uP3MoVJwWnHxMH%HQ
@(#h<x0-VB(EC&MP<BIjSZ?PMH!=21Av;GRKl<;stF0xl8R1wWwKWe7a|wO68?mYXN$?F$9=I{kC
*HA1`i6#>J+tBTJe9<wLSEFyPr1ac;H<-{`CFsxgJkGwey?4d$WGH<GX*HEyinS@vCrlCtJ|Okgd
mx?d9!qxmfm{|6%W65&SE@5TJvMm+i-P+0G~JRX5ePjZRR4ZeLu>zP;&s8+5*@M;t!huiBd@K$u*
jvd%#Ir6PdS0MSD5-YEx^FpyOw07Vg{#EZ@w<&@D8LQ%#BJ%B>igD4E4@&t+Zfr2|4g^g-$BaxJ+
ggj745UR6~eIg7{jwWQlVjy=DDn=Q=p_h}uW#qC^DQ1PMK0qs!&1MJ^yAzUQ6lEKdJOs(;w}1Tfu
fLDZj*8g<OFkNwXGSWhoJ7nK!YbJ9p2~qA2k!x+#13WeEdMzb02m%gOae3lP>4ol3+?ivP9g091h
;iI5f78OTq_GRXkG1Fi#Bbp$x*sFrkkU?>!HrKr>cm?yTwrK$vWbnfsv24RM^uFnt+W>JYad?5$G
t4rlHC*+5n}dKmj03PrKAW9NCEQjSiR(=TXhv01_?=5~)g6BwRMFNI6wW_vnc9%hvV0)h};?ggFZ
oyUi7RMk?IiIQWWm52-*2tO_=&7&#1APA#FQhwBI$(#HWKMm$WZp50P$2rK3~KY)w3g3C+VQ94Za
X-B_S%bJrd*4dP#9F5Eli&bz73wPk?ARzY!s$hzvMi^k?9N80mLxg&WHFNw&x@GA@Y-i!Ru9!9wF
*BqvIc!YVwuy=zAfW@I2g&0gc(yy-v-Tu~3EDXmeLh`ZHtyYm6upjQVP7W$xxi>yIut7+RpP^~wW
|6QNFCCT@?Qur>=ro}gaM<5zX1edCIYgpV<+L<weg8rN_!-~Ie!BL&H}(o2CF!D3<)pDkSrauRwT
aI=B6aY0dg!%YiOZ7T@4*etl>vdrCtbj0E*-up$I1{!Y~xWRw^c=bB?F8-FP$_JB$=GAyUkNEK2h
qfRP9!_GC%8E@-d~K_y<%@F7{DM^i2qNjwJB3U6iUeN5hq3b!Lsake`kSqB6h5CHS8=Qupaa~+p9
cjN4b+UI=qPf`%C;WivY*^_Nlcm~RA=oK8YxB#KEv_AkMm~MnbDA55Y2GnF%O<^eLBsOtTt^hGd)
uP5&gooJ<AmSwc5G05Q9zxzFXoL+K-gN!6K|@fmb)46Ej`qhzWVg}6=BJ1$Q%7g672`im1yMi)F=
Lc-Mj99<1@_<o=#z3GAcR$89Fhirpa@@3i@c>4Wrte03L3%b)Pn7)1}nIjlP>0*vB#lM?6O!fGS2
~S3k$@E+$D$T5JJX19W)?_Rgf^lN(j=FB)O~x<SR0Uq!M`v2Qi1PUGK%j+agp~Ha&467N%}?+nXm
}$1I&neA1@wJU)({q#Q=;7@aNgjA^SN@V+i>l_&%oC{FSymnH21*5T>Wp~RVFODmB#(<js#h8v6n
8@d9Z!ZGR=BSq3P7_R-G^ge_FE*&tT143`WIuH=HZvo2wxbRR^UW^L^439y;(FhANps#_30)9HcP
g`bmqXZ_jXN=r2pIi&LaRHY#85ahiup4)7s`zPtY<Z#^PhkjEf1ZuUcN7Y`qruo=vz)WEONcNK7J
_gp2j+=Aj%b@+974z5FHF8mHcKF(|6qF82ZSBWDmnne`+%)+>OdG6OezGWK=3f%DzgPZ9L)eEr8>
@*92u+>irlrjwmH->nRj9kl67!8!j+tn_x6Y!PqE;z;i};qoN!sOP|O-)_tyxIQ6Ez({a;eVr&A6
n&3@TiBl=ccl{Muq2Q#y-Yhx#8w<Y&p_OaqctmOECW&aYHV#-_Gw1@R!vKG7E6tX0bz$12EB9L)e
2@9J*??9!&#2{*b^;8RnhXZ){Ks+dOk$-ri2fmYckB8gnfMnA-&v)ypuAFM1Ohia!Y;y6Od67dw*
=3@bCHJ+wA(A)MFTjyQS;UPqS|`CRHRCQ`+zH<`E=ZzXTLz7Lu}H>>ZUo;Q?n%odc1P$Azhgef6O
*0qCZD@ie$rAmd1V#QQze+KEy9H)OG`%}fjE00yIF!PCJud(>P8k`3x?ZBrHXtQ&IUvZWXGve@&G
C!JfgA-5nrV(sPxi*dc8-a&V7INjzd9tiA|*}vAEI_>d{e{NOxXSikjY8aYmwHlMq~L=f2C#OO6G
TVB*X`+A5hO;rMq@Y;XK<l!9>XxzbkpoK@OG5qV~>yx3)@K|ZCz#%<612(-paR7Zguo{7OK^(0n;%
b2fAu;@D1V;w($Fnf&`!ps8JjOTgQc9SGp4B^bYp@gRBgGFEmfPUeq<5n}BX@qmgHO#l9gT|c}bG
*`t?9Gxqg7O+x<tYWnBgw&PpOi05&D+)-mDFDq^CZj{Dv9<4B2~el=h=%x(TQp(0fY0B1{1j#e#e
qK9BhS@_(;OtOR`@u$VKMM+PeM+#$mU)5>G1?SqOs(5b#%eYx)($Tn)_<EfUj*j5SDptz@aB7|5z
FOSjCF?1zH6$qf`NaB<t$l3qPGF?F?$s&^YGQiX`>0CUQ|J!8H~pYGD_@o?<mR?*NWb6>N50m+N4
U~VKp573oQOqw9+LSH}q;m?OqC{gC+L#Ifr3OchF5#yMvW3-<(2a8=&-yqDE31)$t6-7ChIY!D~h
5@JR*YbLLi(Kyh`jhtg)fGUS=^0qLzzedZ;cF3)?t~shSgjY+1g>kP8Wp0rcflY?Mjq`D4A}qMFf
b3y@m$ZP+Gy+fcTiFFQY}$!AYl7mQtJMA99|3q6JziCjUhi*Kt~EvBBq9~9pqy}A-??P4M7U_Xe0
xZpitL*u0(D7@$mdqatja2UhoKA$<NeQu9qtJek@oqhu`CoPR>$+cNA0jA;$SKxd%hCgH(}pQ|hJ
vo()!;Z)(M!3xzcq_Dphx^66Dg;nLG{7gL*(<k>?M^2HBF?S5FYvqGsc*RzyDgz*DBix^B1K>UFT#
Uv?Z97WM;Mm!_|CU8=;@OClC5&db_%7GwQ8+<x0^q_OtS9<C}c@3$`BuKrV=J&bc$E}hqpdy#)*p
_5^Yus*BsNXGcn@gV89N;;!hw>4NP_gh#jR6Z*R6Og6@K%{)5w{0kg_=lSorP^M-xUM%B@V2^v0(
NlSlIJm@e;A(r%zpEArS=YPg${`AwdN$8Y!H+YTF5nR`t_FRX^b|l54M@EQ0n7fD)_~P+SECo7_v>
A1Y9Iyk}CMA3GW<3jm=ef>|Y|00amC1Y#Val`;F1lUK!o?7~>PBY{bWS+3o{{Q2$w&9d*B
"""


def verdict(record: Mapping[str, object]) -> dict[str, float | bool | None]:
    """What a record of this lab says.

    Args:
        record: as `attncourse.lab.receipts.decode` returns it.

    Returns:
        always_faster: whether attention beat the loop and the fused GRU wherever both have a time.
        crossover_1, crossover_8: for b = 1 and b = 8, the smallest measured n from which on
            attention takes longer than the fused GRU; None if there is none.
        batch_loop, batch_attention: time with b = 8 over time with b = 1, at the largest n.
        held: whether the predicted crossover at b = 8 is within a factor of 2; 0 predicts None.
    """
    time = {  # (name, b) -> n -> seconds
        (name, b): {
            p["n"]: headline(p)
            for p in record["points"]
            if (p["name"], p["b"]) == (name, b) and not p["error"]
        }
        for name in ("loop", "fused", "attention")
        for b in (1, 8)
    }

    def faster(b: int, other: str) -> dict[int, bool]:
        """n -> whether attention is faster than the other, in ascending order."""
        ours, theirs = time["attention", b], time[other, b]
        return {n: ours[n] < theirs[n] for n in sorted(ours.keys() & theirs.keys())}

    def crossover(b: int) -> int | None:
        found = None
        for n, ahead in reversed(faster(b, "fused").items()):
            if ahead:
                break
            found = n
        return found

    def batch(name: str) -> float:
        one, eight = time[name, 1], time[name, 8]
        n = max(one.keys() & eight.keys())
        return eight[n] / one[n]

    predicted, at_8 = record["predictions"]["crossover"]["value"], crossover(8)
    return {
        "always_faster": all(
            ahead
            for b in (1, 8)
            for other in ("loop", "fused")
            for ahead in faster(b, other).values()
        ),
        "crossover_1": crossover(1),
        "crossover_8": at_8,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": at_8 / 2 <= predicted <= 2 * at_8 if at_8 else predicted == 0,
    }

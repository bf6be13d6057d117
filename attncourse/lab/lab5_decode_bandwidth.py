"""Decoding waits for memory (lab 5): a key and value cache, and what one new position costs.

Letters: b batch, h heads of the query, c heads of the cache, g = h/c queries that share a cached
head, n positions, t new positions, d width of a head. Sizes in bytes, times in seconds.
"""

import math
from collections.abc import Mapping

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from attncourse.lab.roofline import ridge
from attncourse.lab.timing import headline


def cache_bytes(b: int, layers: int, kv_heads: int, n: int, d: int, bytes_per_number: int) -> int:
    """The size of a key and value cache: one key and one value a position, cached head and layer.

    Args:
        b: texts.
        kv_heads: heads of the cache; as many as of the query in MHA, one in MQA.
        bytes_per_number: 4 for float32, 2 for float16.

    Returns:
        Bytes. With b = n = 1: those of a token.
    """
    keys_and_values = 2
    return b * layers * keys_and_values * kv_heads * n * d * bytes_per_number


def append_to_cache(
    key_cache: Float[Tensor, "b c room d"],
    value_cache: Float[Tensor, "b c room d"],
    length: int,
    key: Float[Tensor, "b c t d"],
    value: Float[Tensor, "b c t d"],
) -> tuple[Float[Tensor, "b c n d"], Float[Tensor, "b c n d"]]:
    """Write new positions behind those that are there, into memory allocated beforehand.

    Args:
        key_cache, value_cache: (b c room d), changed in place.
        length: positions that are filled already.
        key, value: (b c t d), of the t new positions.

    Returns:
        keys, values: (b c n d) with n = length + t, views of the caches: nothing is copied.

    Raises:
        ValueError: there is no room for t more positions.
    """
    n, room = length + key.shape[2], key_cache.shape[2]
    # A slice beyond the end is empty, and to assign one position to it is no error.
    if n > room:
        raise ValueError(f"the cache has room for {room} positions; {n} are too many")
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    return key_cache[:, :, :n], value_cache[:, :, :n]


def decode_step(
    query: Float[Tensor, "b h d"], keys: Float[Tensor, "b c n d"], values: Float[Tensor, "b c n d"]
) -> Float[Tensor, "b h d"]:
    """Attention of one new position over all cached ones; h/c heads in a row share a cached head.

    Args:
        query: (b h d), of the newest position, whose key and value are in the cache already.
        keys, values: (b c n d).

    Returns:
        (b h d), of the same dtype.

    Source: Ainslie et al. (2023), "GQA: Training Generalized Multi-Query Transformer Models from
    Multi-Head Checkpoints", section 2; with c = h Vaswani et al. (2017), with c = 1 Shazeer (2019).
    """
    # The heads of a group are rows of one product with their keys, so no key is copied or read
    # twice. No mask: the newest position may attend to all that came before, and to itself.
    query = rearrange(query, "b (c g) d -> b c g d", c=keys.shape[1])
    scores = einsum(query, keys, "b c g d, b c n d -> b c g n") / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores, dim=-1)  # b c g n
    output = einsum(weights, values, "b c g n, b c n d -> b c g d")
    return rearrange(output, "b c g d -> b (c g) d")


def tokens_per_second(
    b: int, n: int, bytes_per_token: int, weight_bytes: int, bytes_per_second: float
) -> float:
    """The most tokens that b texts gain in a second, if a step does no more than read.

    Args:
        n: positions in the cache, of each text.
        bytes_per_token: by which the cache of one text grows with each position.
        weight_bytes: of the model's weights, which all texts of a step share.
        bytes_per_second: of the memory.

    Source: Pope et al. (2023), "Efficiently Scaling Transformer Inference", section 2.
    """
    seconds = (weight_bytes + b * n * bytes_per_token) / bytes_per_second  # of one step
    return b / seconds


def lab5_receipt() -> str:
    """The course's own record of decoding with MHA, GQA and MQA, on a CPU with one thread."""
    return """
attn1:3852:89c656ce:c-p<1NpD=o6@~wb(c8Rk)I4x!I6<;8U@x)=jDTp7ZIcj95+o%@F!bN^o
m-F1G2K*1NkH>WRrTuCIrrS5^ylJi{cdrfzxnWZb98aMIefQ1KmOzN_~v9WEq-4got&O;76*SWjy
E4qk2qT#U4G!n`TBQVeE;KLzx&%y|N4PDN9)V=yVJANn@@{_^ABfd^xph_arNo&-KU$)_2MApP)l
~f`7$le!tL$R^ycJhvp(k1bAEAkbi&wS<>SizWxVh5)6L1nId|jA`&HHZJ{+%ayEFgI84rK>>7Ub
g{<|@n+H9E6`ES?yfM3rpF0T(SH&=((eCYY{d~bad!{VTa;%jjFw{oASg-z~3<Ir+y^{&O`)#m8*
`qbuha{AlJ=K5waZXcf>-EiMtdVR9KvgP}@KKsClTeWGizR`(ueCze*dW_-ddU1MwLobbfeYx2jA
AY#J*EP5o_1ygD5&$>H_j<;=j^TfG{Cs!u%b&OC{`imY7wVuD(1S9C+}u>#v`l{Tc?!Nxi7W5<xj
3~lmF%a&!|JEt+T?w$dfrBZWpI63<}|r!8OJb7&zI>u>%5n#{~O@WE{@)B$##9SzPiyT{gS8Tdf_
$9BE`wOtUs|bC+;w#%1f&6JatnG+;@4L=P-3<TWT7=mL>qFEp2?XcBT8N#>kO&Ei;YF&HDW<QGKc
@L)~}lqxTyzVo>k+=F_Ft>Xu5=All-f#ny^zD>t)=5lXE!i2j?atBb4K5&l@8ogH3$glqcR0}o6w
g%*3N)kC{JEv`1dZmu@xN1MaBXIn)dV<|DE620r2C2PF^)a-%yo!JpK6uEf+@$h8WmadpLV{R>G%
;1g^pQkPOfB*UWWqSmFEnOHdQv$xJ2v4qRm`a#fxR3xB@Iwaw0RF)qF2QCA2E1QP$rJq&kAntTa&
Y?)@5Y!K9bgyz$)Hw1kgqNs^x#kJ{7M}xNO|fIvo@YrkhQjq5IFi|h!?1){xxvk0_XM35l_CS=+b
_`Q!h2jRvdVSX8`vr=~E89mQZ@DH3E6v3wiqz#DDzxp}AM=oA2*3OmN3iJU9R$79F_B$8mx!r6Mc
t;7*gkv^)p_y^KBybU3`M(ab$1hAnLhT_!*Iq7hx$#{th8d2s;qp?MmAYMw2gch;D(cxOk$8KQKo
UPrTdal`PQmBKg>1|I^VWeVcnoC7&v%xymfdP7@9m*ymJPbm;q*_Dz@j=Z4NkYB_A|0N9AI**5DA
2SLo`)z(gZ7Q~&hw1wv_PkPWST<}sO$|O|?`E+NfGe#pj8jb>mYv&ZtVV($JkDZDt9vN`hXBcm0y
WMuAc%2@NTrFliN5`Sx;kTTP4y`Sj0RzdzWPcAYSH;)3c!+7YWOxnkYdXv`H(8M_LKyp<C|Lj6DO
a$T)D&>l$(5eW+>swlnCSC14m?73SNZ_07ppxP0$2-psfRVg#i{FG&SJN7s3X3f==v!JE0TZ&{l{
c9(jCAgewt(=@@j5Wk&fMITy@4%IT;bo@um!k5%W4lfr19<G2qmxPF9ns7>GcVx(_f`aP(zjSPz6
1ztYX-uX^ExmM*_FP~BRj?Kl?bIw~g?;Q&FwfsB);VS{1UpCQ>KpCK~Z&GsraDo&>Sx;;&Kn6q{Y
@E@g+v@rztLA**Kh7B>c&S3%jed4XV+naO1{{yjQ;^|pY|LX^gLFVvq5=?cEi;QOru4xO6d)?r*d
osR2@J#n&fgyW+4T2<kCr+XgB3&7(zDoepRgd5>N=5LeHr$za`;5=ChRhObM6YqmpE(S+CpfcpqV
n~WVwLw#QK7OW;Q_675q=ge2B&%7Qa}$x6kOaqx~)HIF(inK2{6pfsxlme6_(2+>xb=L4uNuh%pU
uF?eZb?L|8oeRKAlC4YO^y-O|E{gJ)zfQc4HB&&t;Y@mm0%e|5-2YeI^*t+?hz`x$lV;RwcvF)EM
ufJ?lH<>p~mnc9dgkO>gAj%fs`)nsl%H;JG@dxXZ_JLg<*m&!Yz@D#Vzq~G1sZAPS%g#fb!4~*#Z
XbstDN+&Gp+5pU#>UO!zKNA%;-0vfOirm<-{sHW(5jy}bPSbnOJ-<4^V{CeqVQtbB5*~Ceh}!(Ms
S`a1zveEQ$w`VM55JYoy{xm=ku55T<gdL0=CGfk{|At_FVCJj6x(!R?d;YP|+1Dq^z4G_ps@#oQ`>
AT9-a@xT1Wn)VZDFcKRj7{%Hh(PHo8k!{h8dC-+4m+^rYC2YMkp0QUVsoX@#|Iq^%9(|j(H=Q-gl
@ds`W?|EnAbZB2OfsaXoZJBqp8jPwjA_y_OymV2-hpqWKq9-N#3GHT5WJ02cf_WOrK9#&H`KCWX7
&%MqiUj>0_=~bV;IAYK?H>GsRrMnvq(xTTj)%|8MkyMZ&v=eIQt?LVyIl+Zl;?C_ZA6Fo_VB;FdQ%
DDV+d818Jy5l{L9MY))UH*Q}K+s_3b<1f2D7?Vj0Gd@|Kak=@eW|wWC3&TndXLJC``nN5LIZaLX5
^d{(m~ewUh{3(}H(7GKiV;!(kekOODdJF#?vxXK)}rD?QdE`oDdez^xZ)-LL(;v<XiO6S_!Lyl*v
iaht{?&Rb?IX<G7`h304r$)qAiR6I1`j;X8dZ&(#4!|Vd;kF3dM(|cl@Ku~ER-a9(=F+IgZn@I3V
xwVHXva}pk@y$kX*E6wF0J6kUfow|SS)C;pbqr$9mAk+S%BeV=*oR_DOT69Hm3Xep5b#pi7ku=b5
sMeT26SJ(2>$7q4RA_KP0q26W(F|eW$yBLqmV$?umdy)G`h^_bQWPq~za<0VM4FQGP$EHm5~4d6!
f0Vbo%rnY)NmEiRDWtAq!6b*4+V3+yOmSL`?nL(-V>HjnG@QM&?uT*CvKAQo-+w{37i_!ljK9ivt
KtYRbv+qr)n+NmV?MUmaDN52m>KHFCnkM@^pLIvth{y~=0o(<*6EPR9D&C{~Bt(Vs(##i+6_*NBK
q~Wfq5KDNbR0(~Bpz`=}zHU=)!D=c=h|9%$#n@4u6->KPy;X|WyA}L`m4H>f^|4wEDNo>OwVM&D2#
OJ^8`XiZkT<mR%m^`MW<k<@vBQs}eqvIXkJ0LX4;c~MS75};>p3JHJ-F&nIBiZmB}81|kyzDE4j9
qHaF^8YWW;M7e}|q?g*jO+;A)dC*dC1K0+ubKuvx{KqO~tpXQ!=lzB0UqM4=cy%aE;>?=^&pfp+p#
+)b_QBZ0|+nRUA-3k)2S>68I)vT%<CB8&aXBNBvfM1q&sZwm{pl&@m-^%)N2Rq?rCKe;EGzl;EHk
=#Q%!%+44NjYCO|4)WzK3&F$%OWe8aK4x~3|0luVg%LgZI36;iJuBHODp90?#50}^LwBVX8#6V8+
L8By$kv_|Nd|2V-77SdiW*^fd4F>=+x!Z+_Tl4t^a>Rdw=5pV~g{iN)B@=hj?D)yQs}?*1Bjnh2$
<;A;rLi2HKY)EC|F2s`M`{R8WHGb|MRNf|Uh*9JL&;w4hjx*3Lt*3Vk4&w4?G1zD=ovihRNLg6Yc
)NB_s6eDDDIB{AIAi{B6C2_9p%&AffJS+CMmZzQ*^X8*irCw|7#W6DT*_jT*q<paKAWgaxGj5@WE
hbx7%|AQehE>?k;gxmV7l9QZ8c4ozsh>!=SG3~>&6vH&#VX7T|jjyr8*nv^eC&aPyYxfM(vBMI=J
P+5t7N##Q$&^ky*j*u(B{^@;*JPS6&bioJZ?)a!<U0|4rE69l*orA5F(WQ7Cbhnd3Y|8(eUW-r)O
hT4W;eFg6C&QT#d!3@Osnm}@58m$2et}MR-3Ogu6giByJ|>pKt+aa2HOA%DSZoEUtV90_}QrDuCY
u{VNI(_F2X8%7b*#Ecp0p3;c$JiSV@ty5Gw;I?R~4VIo2@he@tjED=9%9`)%IzP#BF~P31Vn*>NA
V&23G#-Gg>MH)!J{Xu}L`o}u;ghHHHe+A7D^d-z61Yv$USr^pa@dDGXL=)XVz7Y7-OkN
"""


def conclude_decode(record: Mapping[str, object]) -> dict[str, float | int | bool]:
    """What a record of this lab says.

    Args:
        record: as `attncourse.lab.receipts.decode` returns it.

    Returns:
        bytes_per_second: that MHA reads from its cache, at the largest n that it has a time for.
        share: of that in the bandwidth of a copy on the same machine.
        ideal: cache bytes of MHA over those of MQA, at the largest n that both have a time for.
        speed_up: MHA's time over MQA's, there.
        computes: whether MQA lies beyond the ridge, where arithmetic takes longer than reading.
        from_cache: points faster than 1.5 times a copy, so that their bytes waited in a cache.
        held: whether the predicted speed-up is within a factor of 1.5 of the measured one.
    """
    done = [point for point in record["points"] if not point["error"]]
    of = {(point["name"], point["n"]): point for point in done}
    seconds = {place: headline(point) for place, point in of.items()}
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]

    longest = "MHA", max(n for name, n in of if name == "MHA")
    speed = of[longest]["bytes"] / seconds[longest]
    n = max(n for name, n in of if name == "MHA" and ("MQA", n) in of)
    many, one = of["MHA", n], of["MQA", n]
    speed_up = seconds["MHA", n] / seconds["MQA", n]
    predicted = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": speed,
        "share": speed / copy,
        "ideal": many["bytes"] / one["bytes"],
        "speed_up": speed_up,
        "computes": one["flops"] / one["bytes"] > ridge(roof, one["dtype"]),
        # A copy reads and writes, and a processor may fetch what it is about to overwrite: three
        # transfers where two are counted. Reading alone is at most 1.5 times as fast.
        "from_cache": sum(of[place]["bytes"] / seconds[place] > 1.5 * copy for place in of),
        "held": speed_up / 1.5 <= predicted <= 1.5 * speed_up,
    }

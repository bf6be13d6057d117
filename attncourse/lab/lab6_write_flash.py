"""Lab 6: attention that never holds more than a tile of its scores.

A tile of keys gives a partial result, two partial results merge exactly, and so the softmax over
all keys is reached without ever having all scores at once. Backward computes the weights again,
tile by tile, from one number a query that forward kept: its logsumexp.

Letters: b batch, h heads, q queries, k keys, d width of a query and a key, v width of a value.
"""

import math
from collections.abc import Mapping

import torch
from einops import einsum
from torch import Tensor

from attncourse.lab.timing import headline

Part = tuple[Tensor, Tensor, Tensor]  # weighted (… q v), maximum (… q), total (… q)


def merge(one: Part, two: Part) -> Part:
    """Join what two sets of keys gave, exactly as if they had been one set.

    A part knows of its keys j: the maximum of the scores s_j; the total Σ e^(s_j − maximum); and
    the values so weighted, Σ e^(s_j − maximum) v_j. A part without keys is (0, −∞, 0).

    Args:
        one, two: weighted (… q v), maximum (… q) and total (… q) over different keys.

    Returns:
        The part of all their keys; weighted / total is the output of attention.

    Source: Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", section 3.
    """
    (weighted_1, maximum_1, total_1), (weighted_2, maximum_2, total_2) = one, two
    maximum = torch.maximum(maximum_1, maximum_2)
    # Both count in units of e^(own maximum): rescale each to the common one, by 1 or less.
    shrink_1 = (maximum_1 - _finite(maximum)).exp()  # … q
    shrink_2 = (maximum_2 - _finite(maximum)).exp()
    weighted = shrink_1[..., None] * weighted_1 + shrink_2[..., None] * weighted_2
    return weighted, maximum, shrink_1 * total_1 + shrink_2 * total_2


def part_of(scores: Tensor, value: Tensor) -> Part:
    """The part of one tile: scores (… q k), −∞ where hidden, and values (… k v)."""
    maximum = scores.amax(-1)
    weights = (scores - _finite(maximum)[..., None]).exp()  # … q k
    return weights @ value, maximum, weights.sum(-1)


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, tile: int, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention, softmax(q·kᵀ / √d)·v, from tiles of `tile` queries by `tile` keys.

    Args:
        query, key, value: (b h q d), (b h k d) and (b h k v), of one dtype.
        tile: positions in a tile, 1 or more; the last tile may be shorter.
        causal: the queries are the last q of k positions, and see no later key. With q > k the
            first q − k queries see nothing.

    Returns:
        The output (b h q v), in the dtype of the query, and the logarithm of the sum of the
        exponentials of each query's scores (b h q), in float32 (float64 for float64). A query that
        sees nothing gets 0 and −∞. Everything is computed in that wider dtype.

    Source: Dao (2024), "FlashAttention-2", algorithm 1.
    """
    (q, d), k, v = query.shape[-2:], key.shape[-2], value.shape[-1]
    wide = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], v)
    logsumexp = query.new_zeros(query.shape[:-1], dtype=wide)
    for row in range(0, q, tile):
        rows = slice(row, row + tile)
        queries = query[..., rows, :].to(wide) / math.sqrt(d)
        zero = queries[..., 0] * 0  # b h q
        state = (zero[..., None].expand(*zero.shape, v), zero - math.inf, zero)  # no keys yet
        for column in _columns(row, tile, q, k, causal):
            columns = slice(column, column + tile)
            scores = einsum(queries, key[..., columns, :].to(wide), "b h q d, b h k d -> b h q k")
            if causal:
                scores = _hide_later(scores, row + k - q, column)
            state = merge(state, part_of(scores, value[..., columns, :].to(wide)))
        weighted, maximum, total = state
        # The largest score counts e⁰ = 1, so a total below 1 is 0: this query saw nothing.
        output[..., rows, :] = weighted / total.clamp(min=1)[..., None]
        logsumexp[..., rows] = maximum + total.log()
    return output, logsumexp


def tiled_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    tile: int,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `tiled_attention`, with the weights computed again tile by tile.

    Args:
        query, key, value, tile, causal: as forward got them.
        output, logsumexp: what forward returned, (b h q v) and (b h q).
        grad_output: the gradient of the loss with respect to the output, (b h q v).

    Returns:
        The gradients with respect to query, key and value, each like the tensor it belongs to.

    Source: Dao (2024), "FlashAttention-2", algorithm 2.
    """
    (q, d), k = query.shape[-2:], key.shape[-2]
    wide = logsumexp.dtype
    # Σ_j w_ij g_ij of softmax's gradient is known without the weights: it is grad · output.
    mean = (grad_output.to(wide) * output.to(wide)).sum(-1)  # b h q
    grads = [torch.zeros_like(x, dtype=wide) for x in (query, key, value)]
    grad_query, grad_key, grad_value = grads
    for row in range(0, q, tile):
        rows = slice(row, row + tile)
        queries = query[..., rows, :].to(wide) / math.sqrt(d)
        upstream = grad_output[..., rows, :].to(wide)
        for column in _columns(row, tile, q, k, causal):
            columns = slice(column, column + tile)
            keys, values = key[..., columns, :].to(wide), value[..., columns, :].to(wide)
            scores = einsum(queries, keys, "b h q d, b h k d -> b h q k")
            if causal:
                scores = _hide_later(scores, row + k - q, column)
            # The very weights of forward: e^(score − logsumexp) needs no other tile.
            weights = (scores - _finite(logsumexp[..., rows])[..., None]).exp()  # b h q k
            grad_weights = einsum(upstream, values, "b h q v, b h k v -> b h q k")
            grad_scores = weights * (grad_weights - mean[..., rows, None])
            grad_value[..., columns, :] += weights.mT @ upstream
            grad_query[..., rows, :] += grad_scores @ keys / math.sqrt(d)
            grad_key[..., columns, :] += grad_scores.mT @ queries  # scaled already
    return tuple(grad.to(query.dtype) for grad in grads)


def best_tile(record: Mapping) -> dict:
    """What a record of the lab says about tile sizes, at the largest n with a time for "tiled".

    A point's one number is the best of a CPU's processor times, else the median.

    Args:
        record: as `Recorder.record()` returns it. Points are named "tiled" (with a `tile`),
            "naive" and "fused"; one that ran out of memory has an `error` and no seconds.

    Returns:
        n; tile, the fastest there; u_shaped, whether the smallest and the largest tile both take
        at least 1.1 times as long as the fastest; speedup, seconds of naive over seconds of the
        fastest tile at this n, None if naive has no time there.
    """
    timed = [point for point in record["points"] if point["seconds"] and not point["error"]]
    n = max(point["n"] for point in timed if point["name"] == "tiled")
    here = [point for point in timed if point["n"] == n]
    tiles = {point["tile"]: headline(point) for point in here if point["name"] == "tiled"}
    naive = [headline(point) for point in here if point["name"] == "naive"]
    tile = min(tiles, key=tiles.get)
    ends = tiles[min(tiles)], tiles[max(tiles)]
    return {
        "n": n,
        "tile": tile,
        "u_shaped": min(ends) >= 1.1 * tiles[tile],
        "speedup": naive[0] / tiles[tile] if naive else None,
    }


def lab6_receipt() -> str:
    """What the sweep gave on a busy CPU of two cores: 20 processor times a configuration."""
    return RECEIPT


def _finite(maximum: Tensor) -> Tensor:
    """0 in place of −∞: where nothing was seen, −∞ − (−∞) would be NaN, and −∞ − 0 is −∞."""
    return maximum.masked_fill(maximum == -math.inf, 0)


def _columns(row: int, tile: int, q: int, k: int, causal: bool) -> range:
    """Where the tiles of keys begin that any query of this tile of rows may see."""
    last = min(row + tile, q) - 1 + k - q  # the last query's own position among the keys
    return range(0, min(k, last + 1) if causal else k, tile)


def _hide_later(scores: Tensor, position: int, column: int) -> Tensor:
    """−∞ where a key comes after the query.

    Args:
        scores: a tile (… q k).
        position: of its first query among all keys.
        column: of its first key.
    """
    q, k = scores.shape[-2:]
    queries = torch.arange(position, position + q, device=scores.device)
    keys = torch.arange(column, column + k, device=scores.device)
    return scores.masked_fill(keys > queries[:, None], -math.inf)


RECEIPT = """
attn1:2773:93ca5e2d:c-qC8O>Y}F7lr>yFx!`7@ba796>XOVy6K`Q3PYABwGc%zWI2Tq_`kpBT
vE0ZE0XPnie#*rA?HK);koya`Z_FUm%};#ri*_!i|usraXGua9?bB0Hoso1rs4eSa5a5d%&|AjZ|
=~tntkTMPrv>0;n&~){26EFvzyuFV!7Df59h19<q}s<pVyoFi_81%bUU28=yHnISxIJCy4~s4b$h
*;W>+{A?5{WTYuwwNi9fUdYtOs6-(Ig*IP1?u&N82OcQxBxj#r<SX#Dy2Kg<XD(C)@Q6JBWb&*Ni
mHq(4@yU-h5FaEinZnwjOp1xYlw>W>xuX>5oAGV97e(x`{<sEj!6*J7X!@0%tgBfn8+jbv|%h!w5
7FXJbho^(TzV2eQnk~Le1237cSNx8DB_mRt$zqb2Q6!qt7o0O=4JP5J1T#9H@Fx}HEIupxaYL(Q9
2-PYyffYe|2Mwqay|d_2<LV?+ia&RJSi9{vD9d+iPf6qqe&Le2;QWG4R=U_&wy94(PW4AV%squl?
3e-TP`L_>H7{3yqRX7zD0OBn}3>CSG&Wj?fnhE{m12cw)GBgg}s}n-p?<cHk<Wkcku6Qxx83^nKl>
vGUxuR#u`dZ*13$RIWuggkJDya&8Lfgp`S*ZF(!xeh!-BNbr|7I(l?+U%p;PIcem5kcStI}JA!Ti
8j*5hyj3hC9w`<ly^(;>BMcyc_A!73+lkL=ztIs~ItHZTb_j9?l!)M$s6ZlyMDl=xfslMvAjMV;6
YdMz(N=pqfz;afPYT4HWw7umxSVaYvF-t4&+J=pP;1}gkPtJ23lU@lI3hrTyNwXvNCgH^!N?s$Kr
ca<pb<1B970ctTJhP$Tults2m~Y+aP4t8&{u<_FjOr8!IySS1qj=*UrLAL(C(kX!9#2LZ{XAn!H1
dvCky2M5{?{DOUru53a<y{QUVsQf&e3CD-iL-;!9R&h@~K^6)cg@h=wA<u*V24IP@g!kPD%)(MNX#
QSt~j5FiC6>lF`^S*+YI4HxiaJTgO+DWGq14M)e5s3oW{;>p>T(<U@mi+C#q$;^7|{ks@xL3+KKV
r0=_wXqZtYltAfI0#1|VYEV7EI3h^$++hU1rifhBjhQm(359B)TG>QCsmHY3N{f|Z3zu&16r{PD|
_E6k<H&#9)b#8XSF3dyl9Gm>*8r)Nv={+esZz4#<Z{eRKO|+Vd?q3u=bgQ5ExxVpBqKvne?1v>@(
F9D7Zj88R9C;l}58A$`A$Ukf=N@0w^QSyqyb&RK>)YF)(l`4F~YMnA;}`kpm|O@*EK^ai8}?-{4z
&<Rf`5^sTV{#6>Cig8vw#IVTM7mzct%rl5iFUYp<}WrA@{GltqkGe#a5!s_54Ce4RYeH#;^!9V<G
g;Gla)c~8z$9Mobc_6-S7h`Uv^N_ZWhbbG4yKm>Tt#(E{Ur*1Yq#DH|&86t+a(-+QUQ6R;Uc;!5F
wv1x$pm8Q06+x68ew{w;n=Q3013X1rcHYQgt|E9JJgYQlm=Y^EKj2ldh{RF!Q<T3;hxdx<VXVGm4
qs(o;Zuasa0D`kQnw_Xm>~)?{EbbA)^Ijbw`Q!OkhaoUR?p)8>|!Nf>0Alk%t;-mVY$TCm@}WCQ3
qq>lOywl_QX<RY<W1ngRDcH7OL^QdcaRA)BPaGr34hT?C0|x_D~q21W^a+_B!2!?xgul-}kGBI__
mElNkCr`C$^po`j*Ty2({W`G+QvZ8S2<C)Ni4bt<t)HCO~V?wH+&`XCh>U_v5NoTc7ccqIcKM5?P
r%h9xJ+XHyxo{PuSWhFmhf#WT13zT+7CXR7&eX>Fz8K^mRvp?kRSrCpLFg=Tp<<6fk(!x9RuWZ`=
)nOhAZH_Mzu<Lg0wv>GE;Im$KrE8bhPRhQTY^svF>!bkTqX3Ch=ZQzzHa`sP^`7NU<MM9GD^iP?2
t!epZ67iM8wldsdqNM8?;1IT#29<T_4c38%<=C5)LdovD|<~I0hms2)J@iWV36*B><?R?fV8pL8J
ylgP&U;{p?%FCkBxP3a<E@;l$#BqW@Y7FOycFFGYMSO&2HWT3m`__G&X22*ql}7(<(sQWmWLoQkm
c)29X1lN_um1d>F7FvxZfklisJ8l|a1`|gym1CpAO!ilGv7Red59o}B5kB3Xj9wcur{FrqkBaQ0F
iaKN@_{`NVRur#BOxMc-4^<IJU%__C5R*L&M1)!sx@f8(OAD~3C)-k1>M6@puwIu*wGaF1@=$JyV
V_V>T;ofrIr)TQm!#JB0eO=}_MB#;tgF>!crfzmQo95o2d=1b`H{VJd4^L<uS=X<aYJ6yX@8AJ$a
u|NKIz0$Qhi3G%Z2ix3`kG6+GSKanbKsWgzTv;awwQZAOlyv`%5tSPziav`GQ%BG+Z=NTqI)<xbl
&GTS#Lqc8v_jFgP*Ea1p+*!Hjs=n058jGN*anJHjX=WmGz!-1&4a+}|n6@9I#mEy}2NM(#hVFPOh
zZk4S~)rb5(NSp(_1(L4uTO=yZ4NyTGvl>P+XOf(tw^ab<FW2h6G&Ihttq!^@;M&TWsrrM@5lGFA
1=bte0>7&@-$QbJX`6;zA>~%5R6xGfozvDFq_~QTgA%O252U@6;&Dnp_Q-oFA*mXj*IAeV#E@E{o
n;N+Y70#mtMkY;d(JocYYi^o+Gg<785aWRd}$>{S9OUk9RsD6jcQHh+l;56+!H*PpIlvx9h7uq5Z
bvYCkB<WkEw)Eg3Ir#L~V-mYIEQdm&xFUIo;Mwr@zzC0Eo_E^!HHKBcpr}9POfj(lPVQ`H5{>NcG
7EeB;%+H+!7HNXL<$6`q}L>Z!dNX2Grsib2Zxoj_W{Ga!FI{2xv7i^2
"""

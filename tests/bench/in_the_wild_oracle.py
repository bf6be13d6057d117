"""Is an answer right? Asked without the judge: by loops, by the formulas, by torch's own functions.

    python tests/bench/in_the_wild_oracle.py FOLDER [--items 60]

draws items of the sample of chapter 14 (see in_the_wild.md), asks the judge and this oracle, and
prints where the two disagree; how often they agree is stored beside the rows. The oracle imports
nothing of `attncourse.checks` or `attncourse.tasks`, and looks only at what the texts of the tasks
ask for.
"""

import argparse
import itertools
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ORACLES = {}


def oracle(task):
    return lambda function: ORACLES.setdefault(task, function)


def near(found, expected, tolerance=1e-4):
    """Shapes, and every number up to a share of the largest."""
    found = torch.as_tensor(found)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.dtype == torch.bool or not expected.dtype.is_floating_point:
        assert torch.equal(found.to(expected.dtype), expected)
        return
    off = (found.double() - expected.double()).abs()
    assert not off.isnan().any() and off.max() <= tolerance * max(1, expected.abs().max().item())


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def attended(query, key, value, mask=None):
    """Row by row, in float64."""
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
    shape = *leading, query.shape[-2], key.shape[-2]
    mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
    weights = torch.zeros(shape, dtype=torch.float64)
    for place in itertools.product(*map(range, shape[:-1])):
        seen = mask[place].nonzero().flatten()
        if len(seen):
            scores = key[place[:-1]][seen].double() @ query[place].double()
            weights[*place, seen] = F.softmax(scores / math.sqrt(query.shape[-1]), 0)
    return weights @ value.double(), weights


@oracle("softmax")
def _(answer):
    for shape, dim in (((4, 5), -1), ((4, 5), 0), ((2, 3, 4), 1), ((7,), 0)):
        x = 3 * normal(*shape)
        before = x.clone()
        near(answer(x, dim), F.softmax(x, dim))
        assert torch.equal(x, before)
    big = torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]])
    near(answer(big), F.softmax(big, -1))
    half = torch.randn(3, 4).half()
    assert answer(half).dtype == torch.float16


def masks(shape):
    """Causal and padding like, and one that hides everything from a query."""
    *_, q, k = shape
    some = torch.rand(shape) < 0.6
    some[..., 0] = True
    dead = some.clone()
    dead[..., 0, :] = False
    return None, torch.ones(q, k, dtype=torch.bool).tril(k - q), some, dead


@oracle("scaled_dot_product_attention")
def _(answer):
    for leading in ((), (2,), (2, 3)):
        query, key, value = normal(*leading, 4, 6), normal(*leading, 5, 6), normal(*leading, 5, 3)
        for mask in masks((*leading, 4, 5)):
            output, weights = answer(query, key, value, mask)
            expected = attended(query, key, value, mask)
            near(output, expected[0])
            near(weights, expected[1])
    query = 200 * normal(1, 3, 4, dtype=torch.float32)
    near(answer(query, query, query)[0], attended(query, query, query)[0])


@oracle("grouped_query_attention")
def _(answer):
    for h, c in ((4, 2), (6, 1), (2, 2), (6, 3)):
        query, key, value = normal(2, h, 3, 4), normal(2, c, 5, 4), normal(2, c, 5, 2)
        for mask in masks((2, h, 3, 5)):
            output, weights = answer(query, key, value, mask)
            several = [x.repeat_interleave(h // c, 1) for x in (key, value)]
            expected = attended(query, *several, mask)
            near(output, expected[0])
            near(weights, expected[1])


@oracle("linear_attention")
def _(answer):
    for leading in ((), (2,), (2, 3)):
        query, key, value = normal(*leading, 6, 4), normal(*leading, 6, 4), normal(*leading, 6, 3)
        scores = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
        scores = scores * torch.ones(6, 6, dtype=torch.float64).tril()
        near(answer(query, key, value), scores / scores.sum(-1, keepdim=True) @ value)


@oracle("MultiHeadAttention")
def _(answer):
    for width, heads in ((8, 2), (6, 3), (4, 1)):
        layer = answer(width, heads).double().eval()
        theirs = nn.MultiheadAttention(width, heads, batch_first=True).double().eval()
        parts = layer.q_proj, layer.k_proj, layer.v_proj
        for part in (*parts, layer.out_proj):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            theirs.out_proj.weight.copy_(layer.out_proj.weight)
            theirs.out_proj.bias.copy_(layer.out_proj.bias)
        query, key = normal(2, 4, width), normal(2, 5, width)
        for mask in masks((2, 4, 5)):
            output, weights = layer(query, key, key, mask)
            hidden = None if mask is None else ~mask.expand(2, 4, 5).repeat_interleave(heads, 0)
            expected = theirs(query, key, key, attn_mask=hidden, average_attn_weights=False)
            dead = expected[1].isnan()
            near(weights, expected[1].masked_fill(dead, 0))
            bias = layer.out_proj.bias.expand_as(output)
            near(output, torch.where(expected[0].isnan(), bias, expected[0]))
    dropping = answer(4, 2, 0.5).train()
    x = normal(1, 6, 4, dtype=torch.float32)
    assert any(not torch.allclose(dropping(x, x, x)[0], dropping(x, x, x)[0]) for _ in range(5))


@oracle("causal_mask")
def _(answer):
    for q, k in ((1, None), (4, None), (3, 5), (1, 6), (5, 5)):
        found = answer(q) if k is None else answer(q, k)
        k = k or q
        near(found, torch.tensor([[j <= i + k - q for j in range(k)] for i in range(q)]))


@oracle("padding_mask")
def _(answer):
    for lengths, most in (([3, 1, 4], 4), ([0, 2], 5), ([1], 1)):
        expected = torch.tensor([[[j < n for j in range(most)]] for n in lengths])
        near(answer(torch.tensor(lengths), most), expected)


@oracle("sinusoidal_positions")
def _(answer):
    for length, width in ((6, 8), (300, 16), (1, 2), (5, 7), (4, 1)):
        expected = torch.zeros(length, width, dtype=torch.float64)
        for p, f in itertools.product(range(length), range(width)):
            angle = p / 10_000 ** ((f - f % 2) / width)
            expected[p, f] = math.cos(angle) if f % 2 else math.sin(angle)
        near(answer(length, width), expected, 1e-3)


@oracle("rotate")
def _(answer):
    for shape, base in (((5, 8), 10_000.0), ((2, 3, 4, 6), 10_000.0), ((3, 2), 500.0)):
        x, places = normal(*shape), torch.randint(0, 40, shape[-2:-1])
        expected = torch.zeros_like(x)
        for n, i in itertools.product(range(shape[-2]), range(shape[-1] // 2)):
            angle = places[n].item() * base ** (-2 * i / shape[-1])
            a, b = x[..., n, 2 * i], x[..., n, 2 * i + 1]
            expected[..., n, 2 * i] = a * math.cos(angle) - b * math.sin(angle)
            expected[..., n, 2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
        near(answer(x, places, base), expected)


@oracle("alibi_bias")
def _(answer):
    for heads, q, k in ((8, 4, 4), (4, 2, 5), (1, 3, 3), (6, 3, 3), (12, 2, 4)):
        power = 2 ** int(math.log2(heads))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
        expected = [
            [[-m * abs(j - (i + k - q)) for j in range(k)] for i in range(q)] for m in slopes
        ]
        near(answer(heads, q, k), torch.tensor(expected))


@oracle("relative_buckets")
def _(answer):
    def bucket(offset, many, most, both):
        many = many // 2 if both else many
        begin = many if both and offset > 0 else 0
        distance = abs(offset) if both else max(0, -offset)
        near_ones = many // 2
        if distance < near_ones:
            return begin + distance
        share = math.log(distance / near_ones) / math.log(most / near_ones)
        return begin + min(many - 1, near_ones + int(share * (many - near_ones)))

    for many, most, both in ((32, 128, True), (32, 128, False), (8, 20, True), (16, 50, False)):
        offsets = torch.arange(-200, 201)
        expected = torch.tensor([bucket(o, many, most, both) for o in offsets.tolist()])
        differs = torch.as_tensor(answer(offsets, many, most, both)) != expected
        assert differs.sum() <= 8  # at borders, where a logarithm's rounding decides


@oracle("additive_scores")
def _(answer):
    query, keys, w_query, w_key = normal(2, 3), normal(2, 5, 4), normal(3, 6), normal(4, 6)
    v = normal(6)
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for b, k in itertools.product(range(2), range(5)):
        expected[b, k] = v @ torch.tanh(query[b] @ w_query + keys[b, k] @ w_key)
    near(answer(query, keys, w_query, w_key, v), expected)


@oracle("patches")
def _(answer):
    for shape, (height, width) in (
        ((2, 3, 4, 6), (2, 3)),
        ((1, 1, 4, 4), (4, 2)),
        ((1, 2, 6, 6), (2, 2)),
    ):
        image = normal(*shape)
        rows, columns = shape[2] // height, shape[3] // width
        expected = torch.stack(
            [
                image[:, :, r * height : (r + 1) * height, c * width : (c + 1) * width].flatten(1)
                for r, c in itertools.product(range(rows), range(columns))
            ],
            1,
        )
        near(answer(image, (height, width)), expected)


@oracle("contrastive_loss")
def _(answer):
    for b, m, temperature in ((4, 6, 0.1), (1, 3, 1.0), (5, 2, 0.5)):
        images, texts = 3 * normal(b, m), normal(b, m)
        scores = F.cosine_similarity(images[:, None], texts[None], dim=-1) / temperature
        names = torch.arange(b)
        expected = (F.cross_entropy(scores, names) + F.cross_entropy(scores.mT, names)) / 2
        near(torch.as_tensor(answer(images, texts, temperature)).reshape(()), expected)


@oracle("byte_pairs")
def _(answer):
    def learned(words, merges):
        pieces = {word: list(word) for word in words}
        age = {letter: n for n, letter in enumerate(sorted(set("".join(words))))}
        made = []
        for _ in range(merges):
            counts = Counter()
            for word, parts in pieces.items():
                for pair in itertools.pairwise(parts):
                    counts[pair] += words[word]
            if not counts:
                break
            best = min(counts, key=lambda pair: (-counts[pair], age[pair[0]], age[pair[1]]))
            made.append(best)
            age.setdefault("".join(best), len(age))
            for word, parts in pieces.items():
                joined = []
                for part in parts:
                    if joined and (joined[-1], part) == best and joined[-1] is not None:
                        joined[-1] = "".join(best)
                        joined.append(None)  # what was merged is not merged on
                    else:
                        joined.append(part)
                pieces[word] = [part for part in joined if part is not None]
        return made

    for words in (
        {"hundred": 5, "thousand": 3, "hand": 2},
        {"aaaa": 2, "aab": 3, "ba": 1},
        {"low": 5, "lower": 2, "newest": 6, "widest": 3},
    ):
        for merges in (1, 4, 30):
            assert list(map(tuple, answer(dict(words), merges))) == learned(words, merges)


@oracle("beam_search")
def _(answer):
    vocabulary, bos, eos = 5, 0, 1
    cases = [(seed, 1 + seed % 4, 3 + seed % 3) for seed in range(12)] + [(12, 8, 3)]
    for seed, width, longest in cases:
        chance = torch.Generator().manual_seed(seed)
        table = torch.randn(2, 40, vocabulary, vocabulary, generator=chance).double()

        def step(token, state, table=table):
            row, time = state[:, 0], state[:, 1]
            return table[row, time, token], torch.stack([row, time + 1], 1)

        state = torch.tensor([[0, 0], [1, 0]])
        found = torch.as_tensor(answer(step, state, bos, eos, width, longest)).tolist()
        for b in range(2):
            beam = [((), 0.0)]
            for time in range(longest):
                more = []
                for words, total in beam:
                    if eos in words:
                        more.append((words, total))
                        continue
                    chances = table[b, time, words[-1] if words else bos].log_softmax(-1).tolist()
                    more += [((*words, w), total + each) for w, each in enumerate(chances)]
                beam = sorted(more, key=lambda each: -each[1])[:width]
            best = beam[0][0]
            row = tuple(found[b])
            padded = best + (eos,) * (longest - len(best))
            assert row == padded[: len(row)] and set(padded[len(row) :]) <= {eos}
            assert len(row) <= longest


@oracle("sample")
def _(answer):
    def chances(logits, temperature, top_k, top_p):
        logits = logits / temperature
        order = logits.argsort(descending=True).tolist()
        if top_k is not None:
            order = order[:top_k]
        probabilities = torch.softmax(logits[order], 0)
        if top_p is not None:
            total, kept = 0.0, 0
            while kept < len(order) and total < top_p - 1e-9:
                total, kept = total + probabilities[kept].item(), kept + 1
            order = order[:kept]
            probabilities = torch.softmax(logits[order], 0)
        expected = torch.zeros(len(logits), dtype=torch.float64)
        expected[order] = probabilities.double()
        return expected

    many = 4000
    logits = torch.tensor([2.0, 1.0, 0.3, -0.5, -1.2, 0.7])
    for temperature, top_k, top_p in (
        (1.0, None, None), (0.5, None, None), (1.0, 2, None), (1.0, 50, None), (1.0, None, 0.7),
        (1.0, None, 0.3), (2.0, 4, 0.6), (1.0, None, 1.0), (1.0, 1, None),
    ):  # fmt: skip
        torch.manual_seed(0)
        rows = logits.repeat(many, 1)
        drawn = torch.as_tensor(answer(rows.clone(), temperature, top_k, top_p))
        assert drawn.shape == (many,)
        shares = torch.bincount(drawn.long(), minlength=6).double() / many
        expected = chances(logits, temperature, top_k, top_p)
        assert not shares[expected == 0].any()
        assert (shares - expected).abs().max() < 0.04


def right(task, answer) -> str:
    """What is wrong, or "". The seed is the same for all, so that a verdict can be had again."""
    torch.manual_seed(0)
    try:
        ORACLES[task](answer)
    except Exception as error:  # of code that anybody wrote
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def main() -> None:
    sys.path.append(str(Path(__file__).parent))
    import in_the_wild

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, default=60)
    asked = parser.parse_args()
    kept, _ = in_the_wild.once(asked.folder, sorted((asked.folder / "adapters").glob("*.py")))
    chosen = random.Random(0).sample(kept, min(asked.items, len(kept)))
    counts = Counter()
    for adapter in chosen:
        row = in_the_wild.in_time(asked.folder, adapter, in_the_wild.judged)
        about = in_the_wild.in_time(asked.folder, adapter, asked_here)
        judge = "right" if not row.get("failed") and not row.get("not theirs") else "wrong"
        if "error" in row:
            judge = "error"
        here = "wrong" if about.get("wrong") else "error" if "error" in about else "right"
        counts[judge, here] += 1
        if judge != here:
            print(adapter.stem, judge, here, row.get("failed") or row, about, sep=" | ")
    for (judge, here), count in sorted(counts.items()):
        print(f"judge {judge}, oracle {here}: {count}")
    path = in_the_wild.DATA / "in_the_wild.json"
    stored = json.loads(path.read_text("utf-8"))
    agreement = {f"{judge}, {here}": count for (judge, here), count in sorted(counts.items())}
    text = json.dumps({"oracle": agreement} | stored | {"oracle": agreement}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def asked_here(folder: Path, adapter: Path) -> dict:
    """The oracle's verdict on one item."""
    import in_the_wild

    task, answer = in_the_wild.answer_of(folder, adapter)
    torch.set_num_threads(1)
    return {"wrong": right(task, answer)}


if __name__ == "__main__":
    main()

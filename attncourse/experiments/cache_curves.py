"""Chapter 10's measurements: decoders that keep less and less, trained once by `make curves`.

    >>> measured = cache_curves.measured()                    # what was measured
    >>> model, source, target = cache_curves.load("MHA")      # a trained decoder and its words

Run as a program it measures again (`python -m attncourse.experiments.cache_curves --help`).
"""

import copy
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.cache import (
    CachedGPT,
    GroupedAttention,
    LatentAttention,
    bytes_per_token,
    left_padded,
    pooled_heads,
    write,
)
from attncourse.number_words import BOS, EOS, MARKS, PAD, Pairs, Vocabulary, corpus
from attncourse.one_stack import Continuation
from attncourse.pretrained import DATA
from attncourse.training import command, side_by_side, train, without_error

WIDTH, HEADS, LAYERS, HIDDEN = 64, 4, 2, 128  # of the decoder with all heads cached
STEPS, BATCH, SEEDS = 300, 64, (0, 1, 2)
CHECKED = 1000  # sentences that are written in every way
UPTRAINED, PARTS = 60, 3  # steps after the heads were made fewer, and how often to look
NARROW = 16  # heads in the same width, for another look at that


@dataclass(frozen=True)
class Scheme:
    """What a decoder keeps: how its attention is made, and what says so to `bytes_per_token`."""

    attention: Callable[[], nn.Module]
    kind: str
    sizes: dict[str, int]


def _grouped(kind: str, kv_heads: int) -> Scheme:
    make = partial(GroupedAttention, WIDTH, HEADS, kv_heads)
    return Scheme(make, kind, {"kv_heads": kv_heads})


def _latent(latent: int, rope: int = 8) -> Scheme:
    sizes = {"latent_width": latent, "rope_width": rope}
    make = partial(LatentAttention, WIDTH, HEADS, WIDTH // HEADS, latent, rope)
    return Scheme(make, "MLA", sizes)


def _without_norm(latent: int, rope: int = 8) -> Scheme:
    def make() -> LatentAttention:
        layer = LatentAttention(WIDTH, HEADS, WIDTH // HEADS, latent, rope)
        layer.norm = nn.Identity()
        return layer

    return replace(_latent(latent, rope), attention=make)


SCHEMES = {
    "MHA": _grouped("MHA", HEADS),
    "GQA-2": _grouped("GQA", 2),
    "MQA": _grouped("MQA", 1),
    "MLA 56+8": _latent(56),
    "MLA 24+8": _latent(24),
    "MLA 8+8": _latent(8),
}
# Does a latent learn well because it is small, or because it is normalized? Not in the plot.
CONTROLS = {"MLA 56+8 without norm": _without_norm(56)}
STORED = {"MHA": "cache_mha", "MLA 24+8": "cache_mla"}  # the weights that pages load
# How a trained decoder's cached heads become fewer: how many before, how many after.
FEWER = {"MHA": (HEADS, 2), "narrow heads": (NARROW, 4)}
RUNS = [*SCHEMES, *CONTROLS, "narrow heads"]


def text_words() -> tuple[Vocabulary, Vocabulary]:
    """The words of both languages of the running task."""
    task = corpus()
    return task.source_words, task.target_words


def as_texts(pairs: Pairs, source_words: int) -> Pairs:
    """The pairs with one vocabulary: French ids begin where the English ones end."""
    shift = source_words - len(MARKS)
    return replace(
        pairs, target=torch.where(pairs.target > EOS, pairs.target + shift, pairs.target)
    )


def as_french(ids: Tensor, source: Vocabulary, target: Vocabulary) -> list[str]:
    """The words of what a decoder wrote; English ones, if it wrote any, as they are."""
    words = (*source.words, *target.words[len(MARKS) :])
    ids = ids.tolist()
    return [words[id] for id in ids[: ids.index(EOS) if EOS in ids else None]]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(name: str) -> CachedGPT:
    """Make a decoder, untrained; what its attention has less, its network has more.

    Raises:
        ValueError: there is no such scheme.
    """
    schemes = SCHEMES | CONTROLS
    if name not in schemes:
        raise ValueError(f"there is no scheme {name!r}; there are {', '.join(schemes)}")
    attention, full = (schemes[each].attention() for each in (name, "MHA"))
    spare = parameters(full) - parameters(attention)
    hidden = HIDDEN + round(spare / (2 * WIDTH + 1))  # a hidden feature has so many weights
    return decoder(schemes[name].attention, hidden)


def decoder(attention: Callable[[], nn.Module], hidden: int = HIDDEN) -> CachedGPT:
    source, target = text_words()
    words = len(source) + len(target) - len(MARKS)
    return CachedGPT(words, [attention() for _ in range(LAYERS)], WIDTH, hidden)


def load(name: str) -> tuple[CachedGPT, Vocabulary, Vocabulary]:
    """Load a trained decoder with the words of its source and of its target.

    Raises:
        ValueError: the weights of this scheme are not stored.
    """
    if name not in STORED:
        raise ValueError(f"weights are stored of {', '.join(STORED)}; not of {name!r}")
    weights = load_file(DATA / f"{STORED[name]}.safetensors")
    model = build(name)
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return model.eval(), *text_words()


def measured(folder: Path = DATA) -> dict:
    """What the training measured.

    Returns:
        `schemes`: name -> `bytes` a token, `parameters`, `exact_match` (one share a seed), `loss`
        (on the test, one a seed), `seconds`; `controls`: the same, of `CONTROLS`; `differ`:
        name -> way of writing -> sentences of `checked` that differ from those written without a
        cache; `seconds`: list of batch, words, seconds without and with a cache; `fewer`: key of
        `FEWER` -> for each seed, how the fewer heads began -> losses after `fewer_steps`, and
        `before`; `steps`, `batch`, `seeds`, `versions`.
    """
    return json.loads((folder / "cache.json").read_text(encoding="utf-8"))


# --- measuring ------------------------------------------------------------------------------------


def _trained(model: CachedGPT, seed: int, steps: int = STEPS) -> CachedGPT:
    source, _ = text_words()
    pairs = as_texts(corpus().train, len(source))
    train(Continuation(model), pairs, steps, batch_size=BATCH, learning_rate=3e-3, seed=seed,
          progress=False)  # fmt: skip
    return model


def held_out(rows: int | None = None) -> Pairs:
    """The test's pairs, or so many of them."""
    source, _ = text_words()
    pairs = as_texts(corpus().test, len(source))
    return pairs.spread(rows or len(pairs))


@torch.no_grad()
def _loss(model: CachedGPT, pairs: Pairs) -> float:
    """Mean loss a French word, in nats."""
    logits = Continuation(model)(pairs.source, teacher_inputs(pairs.target, BOS))
    return sequence_loss(logits, pairs.target, PAD).item()


def sentences(written: Tensor) -> list[list[int]]:
    """Ids of each row up to its first <eos>."""
    rows = written.tolist()
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


@torch.no_grad()
def _differ(model: CachedGPT, pairs: Pairs) -> dict[str, int]:
    """How many sentences come out otherwise than without a cache, for each way to keep one.

    Those with a word that is not the likeliest, without a cache, after the words before it. In
    float64: in half as many digits two words may be equally likely, and rounding decides.
    """
    model, prompt = copy.deepcopy(model).double(), left_padded(pairs.source, PAD)

    def read_in(chunks: int) -> list[list[int]]:
        real, caches, start = prompt != PAD, None, 0
        for piece in prompt.split(chunks, dim=1):
            start += piece.shape[1]
            _, caches = model.step(piece, caches, real[:, :start])
        return sentences(write(_Begun(model, caches), prompt, BOS, EOS, longest, PAD))

    def differ(written: list[list[int]]) -> int:
        rows = [torch.tensor([*row, EOS][:longest]) for row in written]
        target = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return int((~without_error(Continuation(model), replace(pairs, target=target))).sum())

    longest, alone = 30, {}  # texts of one length at a time need no padding
    for length in pairs.lengths.unique().tolist():
        rows = (pairs.lengths == length).nonzero().flatten()
        source = pairs.source[rows, :length]
        written = sentences(write(model, source, BOS, EOS, longest))
        alone |= zip(rows.tolist(), written, strict=True)
    ways = {
        "the prompt in one piece": read_in(prompt.shape[1]),
        "the prompt word by word": read_in(1),
        "the prompt in pieces of 5": read_in(5),
        "without padding": [alone[row] for row in range(len(pairs))],
    }
    return {name: differ(written) for name, written in ways.items()}


class _Begun:
    """A model that has read its prompt already."""

    def __init__(self, model: CachedGPT, caches: list):
        self.model, self.caches, self.embedding = model, caches, model.embedding

    def step(self, words: Tensor, caches: list | None = None, real: Tensor | None = None):
        return (None, self.caches) if caches is None else self.model.step(words, caches, real)


@torch.no_grad()
def _seconds(model: CachedGPT, batch: int, words: int) -> tuple[float, float]:
    """To write a text of so many words without a cache, and with one."""
    text = torch.randint(3, 60, (batch, words), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    for n in range(1, words + 1):
        model(text[:, :n])
    between, caches = time.perf_counter(), None
    for n in range(words):
        _, caches = model.step(text[:, n : n + 1], caches)
    return round(between - start, 4), round(time.perf_counter() - between, 4)


def _fewer(model: CachedGPT, kv_heads: int, seed: int) -> dict[str, list[float]]:
    """Losses while a trained decoder learns to live with fewer cached heads, by how they began."""
    pairs, attention = held_out(500), model.layers[0].self_attention
    members = attention.kv_heads // kv_heads
    hidden = model.layers[0].linear1.out_features
    found = {"before": [_loss(model, pairs)]}
    for start in ("mean", "first", "random"):
        torch.manual_seed(seed)
        make = partial(GroupedAttention, WIDTH, attention.num_heads, kv_heads)
        fewer = decoder(make, hidden)
        fresh = fewer.state_dict()
        for key, tensor in model.state_dict().items():
            if "k_proj" not in key and "v_proj" not in key:
                fresh[key] = tensor
            elif start == "first":
                cut = tensor.unflatten(0, (kv_heads, members, -1))
                fresh[key] = cut[:, 0].flatten(0, 1)
        fewer.load_state_dict(fresh)
        if start == "mean":
            for old, new in zip(model.layers, fewer.layers, strict=True):
                new.self_attention = pooled_heads(old.self_attention, kv_heads)
        losses = [_loss(fewer, pairs)]
        for part in range(PARTS):
            losses.append(_loss(_trained(fewer, seed + part, UPTRAINED // PARTS), pairs))
        found[start] = losses
    return {start: [round(loss, 4) for loss in losses] for start, losses in found.items()}


def measure(name: str, seed: int, folder: Path) -> dict:
    """Train one decoder, round its weights to float16, and test what is kept of it."""
    torch.set_num_threads(1)  # two decoders train side by side on two cores
    torch.manual_seed(seed)
    if name in SCHEMES | CONTROLS:
        model = build(name)
    else:
        model = decoder(partial(GroupedAttention, WIDTH, *2 * FEWER[name][:1]))
    start = time.process_time()
    _trained(model, seed)
    found = {"seconds": round(time.process_time() - start, 1), "parameters": parameters(model)}
    weights = {key: tensor.half() for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    if seed == SEEDS[0] and name in STORED:
        save_file(weights, folder / f"{STORED[name]}.safetensors")
    if name in SCHEMES | CONTROLS:
        right = without_error(Continuation(model), held_out())
        found["exact_match"] = round(right.double().mean().item(), 4)
        found["loss"] = round(_loss(model, held_out(1000)), 4)
        if seed == SEEDS[0] and name in SCHEMES:
            found["differ"] = _differ(model, held_out(CHECKED))
    if name in FEWER:
        found["fewer"] = _fewer(model, FEWER[name][1], seed)
    return found


def make(names: list[str], folder: Path = DATA, jobs: int = 2) -> None:
    """Measure side by side; a run is stored as soon as all its seeds are ready."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cache.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found |= {
        "steps": STEPS,
        "batch": BATCH,
        "seeds": list(SEEDS),
        "checked": CHECKED,
        "fewer_steps": [UPTRAINED // PARTS * part for part in range(PARTS + 1)],
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    names = sorted(names, key=lambda name: name not in FEWER)  # those take longest
    queue = [(name, seed) for name in names for seed in SEEDS]
    ready: dict[str, dict[int, dict]] = {name: {} for name in names}
    for (name, seed), result in side_by_side(
        partial(measure, folder=folder), queue, jobs, "decoders"
    ):
        ready[name][seed] = result
        if len(ready[name]) == len(SEEDS):
            _add(found, name, [ready[name][seed] for seed in SEEDS])
            _store(found, path)
    if "MHA" in names:  # when nobody else computes; how long it takes does not depend on weights
        torch.set_num_threads(1)
        texts = [(batch, words) for batch in (1, 64) for words in (16, 32, 128)]
        found["seconds"] = [[*text, *_seconds(build("MHA"), *text)] for text in texts]
        _store(found, path)


def _add(found: dict, name: str, runs: list[dict]) -> None:
    """Sort what the seeds of a run found into the places where `measured` has it."""
    for part, those in (("schemes", SCHEMES), ("controls", CONTROLS)):
        if name in those:
            kind, sizes = those[name].kind, those[name].sizes
            found.setdefault(part, {})[name] = {
                "bytes": bytes_per_token(kind, LAYERS, HEADS, WIDTH // HEADS, 4, **sizes),
                "parameters": runs[0]["parameters"],
                **{key: [run[key] for run in runs] for key in ("exact_match", "loss", "seconds")},
            }
    if name in SCHEMES:
        found.setdefault("differ", {})[name] = runs[0]["differ"]
    if name in FEWER:
        found.setdefault("fewer", {})[name] = [run["fewer"] for run in runs]


def _store(found: dict, path: Path) -> None:
    orders = {"schemes": SCHEMES, "controls": CONTROLS, "differ": SCHEMES, "fewer": FEWER}
    for part, order in orders.items():
        if part in found:
            found[part] = {name: found[part][name] for name in order if name in found[part]}
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    command(
        make,
        "Train chapter 10's decoders and store what they show.",
        names=RUNS,
        folder=DATA,
        jobs=(2, "models at a time"),
    )


if __name__ == "__main__":
    main()

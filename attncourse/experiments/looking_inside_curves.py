"""Chapter 12's measurements: a model that learns to repeat, and the heads of a translator.

    >>> model = looking_inside_curves.load("varying", seed=0)   # a trained model of attention alone
    >>> measured = looking_inside_curves.measured()

Run as a program it measures again, in two minutes
(`python -m attncourse.experiments.looking_inside_curves`).
"""

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attncourse import pretrained
from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.looking_inside import (
    AttentionOnly,
    ablated,
    head_outputs,
    induction_score,
    previous_token_score,
    rollout,
    shuffled,
)
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, MARKS, PAD, Pairs, corpus
from attncourse.positions import BucketAttention
from attncourse.pretrained import DATA
from attncourse.self_attention import sinusoidal_positions
from attncourse.training import command, side_by_side

LONGEST = 24  # words in a block at most; a text is twice as long
STEPS, EVERY, BATCH, LEARNING_RATE, SEEDS = 400, 25, 32, 5e-3, 3
SENTENCES = 200  # of the translator's test
CHANCES = 3  # times that weights are shuffled


# --- A block of words, read again and again -------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A model of attention alone, and the texts that it learns from.

    Args:
        layers: of the model.
        varies: whether every text has a period of its own, from LONGEST/2 to LONGEST.
        different: whether no word occurs twice in a block.
        places: "offsets", a learned number for every offset and head (chapter 8); or "vectors",
            learned ones, or "sinusoids", added to the words.
    """

    layers: int = 2
    varies: bool = True
    different: bool = True
    places: str = "offsets"


KINDS = {
    "varying": Kind(),
    "varying, any words": Kind(different=False),
    "varying, sinusoids": Kind(places="sinusoids"),
    # One layer: what makes the shortcut? The period, the places or the words?
    "one layer": Kind(layers=1),
    "one layer, vectors, any words": Kind(layers=1, different=False, places="vectors"),
    "fixed, offsets": Kind(layers=1, varies=False),
    "fixed, offsets, any words": Kind(layers=1, varies=False, different=False),
    "fixed, vectors": Kind(layers=1, varies=False, places="vectors"),
    "fixed": Kind(layers=1, varies=False, different=False, places="vectors"),
}
KEPT = "varying", "fixed"  # of these the weights are stored


def number_words() -> list[str]:
    """The words of the texts: English ones that numbers are made of."""
    return [word for word in corpus().source_words.words[len(MARKS) :] if word != "and"]


def texts(
    count: int, rng: torch.Generator, period: int | Tensor = LONGEST, different: bool = True
) -> Int[Tensor, "b n"]:
    """Blocks of words at random, each repeated until 2 · LONGEST words are full.

    Args:
        count: b
        rng: where chance comes from.
        period: words in a block; one for all, or (b 1). At most LONGEST, or as many as there are
            words if they are different.
        different: whether no word occurs twice in a block.
    """
    words = len(number_words())
    if different:
        block = torch.rand(count, words, generator=rng).argsort(1)
    else:
        block = torch.randint(words, (count, LONGEST), generator=rng)
    place = torch.arange(2 * LONGEST) % torch.as_tensor(period)
    return block.gather(1, place.expand(count, -1))


def predictable(text: Tensor, period: int | Tensor) -> Tensor:
    """Where the next word can be known: this word has occurred before, with one behind it."""
    return (torch.arange(text.shape[1] - 1) >= torch.as_tensor(period)).expand(len(text), -1)


@torch.no_grad()
def accuracy(model: nn.Module, text: Tensor, period: int) -> float:
    """Share of the predictable words that are predicted."""
    right = model(text)[:, :-1].argmax(-1) == text[:, 1:]
    return right[predictable(text, period)].float().mean().item()


def build(kind: str, wrap: Callable = lambda attend: attend) -> AttentionOnly:
    """Make a model, untrained; it has no opinion on offsets yet. `wrap` changes its `attend`."""

    def by_offset() -> Callable:
        attend = BucketAttention(2, 4 * LONGEST, 2 * LONGEST + 1, bidirectional=False)
        nn.init.zeros_(attend.bias.weight)
        return wrap(attend)

    about, words = KINDS[kind], len(number_words())
    if about.places == "offsets":
        return AttentionOnly(words, num_layers=about.layers, attend=by_offset)
    model = AttentionOnly(words, num_layers=about.layers, positions=sinusoidal_positions)
    if about.places == "vectors":
        model.positions = LearnedTable(2 * LONGEST, 32)
    return model


@torch.no_grad()
def by_brute_force() -> AttentionOnly:
    """One layer, weights set by hand, that continues every text of period LONGEST/2 to LONGEST.

    For each period p there are two heads. One looks p − 1 words back. The other looks p words back
    if this very word stands there, and else p − 1 words back, too. The output is their difference:
    nothing if p is not the period, else "the word after it, and not this word".

    So the layer grows with the number of distances. That is what Sanford et al. (2024), "One-layer
    transformers fail to solve the induction heads task", say it must.
    """
    periods, words = range(LONGEST // 2, LONGEST + 1), len(number_words())
    h, width = 2 * len(periods), words
    attend = BucketAttention(h, 4 * LONGEST, 2 * LONGEST + 1, bidirectional=False)
    model = AttentionOnly(words, h * width, h, num_layers=1, attend=lambda: attend)
    attention, one_of_each = model.layers[0].attention, torch.eye(words)
    for parameter in (*attention.parameters(), model.embedding.weight, model.output.weight):
        parameter.zero_()
    model.output.bias.zero_()
    model.embedding.weight[:, :words] = model.output.weight[:, :words] = one_of_each
    attend.bias.weight.zero_()
    # A normed word has numbers of about √(h·width): a match is worth 40, a distance hundreds.
    match = math.sqrt(40 / (h * math.sqrt(width)))
    for number, period in enumerate(periods):
        for head, sign in ((2 * number, -1), (2 * number + 1, 1)):
            rows = slice(head * width, (head + 1) * width)
            attention.q_proj.weight[rows, :words] = match * one_of_each
            attention.k_proj.weight[rows, :words] = match * one_of_each
            attention.v_proj.weight[rows, :words] = one_of_each
            attention.out_proj.weight[:words, rows] = sign * one_of_each
            attend.bias.weight[period - 1, head] = 220
        attend.bias.weight[period, 2 * number] = 200
    return model.eval()


class LearnedTable(nn.Module):
    """Learned vectors for places, called as sinusoids are."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width))

    def forward(self, n: int, m: int) -> Float[Tensor, "n m"]:
        """Return the first n vectors."""
        return self.table[:n]


def learn(kind: str, seed: int, **options) -> tuple[AttentionOnly, dict]:
    """Train one model, and look at it every EVERY steps; options are `build`'s."""
    about = KINDS[kind]
    torch.manual_seed(seed)
    model, rng = build(kind, **options), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    seen = texts(64, torch.Generator().manual_seed(1000 + seed), different=about.different)
    found = {"loss": [], "accuracy": [], "induction": [], "previous": []}
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            look(model, seen, found)
        period = torch.full((BATCH, 1), LONGEST)
        if about.varies:
            period = torch.randint(LONGEST // 2, LONGEST + 1, (BATCH, 1), generator=rng)
        text = texts(BATCH, rng, period, about.different)
        loss = _loss(model, text, period)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.load_state_dict({key: x.half().float() for key, x in model.state_dict().items()})
    return model.eval(), found


def _loss(model: nn.Module, text: Tensor, period: int | Tensor) -> Tensor:
    asked = predictable(text, period)
    return F.cross_entropy(model(text)[:, :-1][asked], text[:, 1:][asked])


@torch.no_grad()
def look(model: nn.Module, text: Tensor, found: dict[str, list]) -> None:
    """Note how good the model is on texts of period LONGEST, and the scores of its heads."""
    maps = attention_maps(model, text).values()
    found["loss"].append(round(_loss(model, text, LONGEST).item(), 4))
    found["accuracy"].append(round(accuracy(model, text, LONGEST), 4))
    for name, score in (
        ("induction", lambda w: induction_score(w, LONGEST)),
        ("previous", previous_token_score),
    ):
        found[name].append([[round(x, 4) for x in score(w).mean(0).tolist()] for w in maps])


# --- The translator of chapter 7 ------------------------------------------------------------------


def sentences(least: int = 0) -> Pairs:
    """Pairs of the test, spread over all lengths from `least` words on."""
    pairs = corpus().test
    pairs = pairs.pick((pairs.lengths >= least).nonzero().flatten())
    return pairs.spread(SENTENCES)


@torch.no_grad()
def judged(model: nn.Module, pairs: Pairs) -> dict[str, float]:
    """Loss a word, and the share of sentences right in every word, given the right words before."""
    logits = model(pairs.source, teacher_inputs(pairs.target, BOS))
    right = (logits.argmax(-1) == pairs.target) | (pairs.target == PAD)
    return {
        "loss": round(sequence_loss(logits, pairs.target, PAD).item(), 4),
        "exact": round(right.all(1).float().mean().item(), 4),
    }


@torch.no_grad()
def without_heads(model: nn.Module, pairs: Pairs) -> dict:
    """Each head by itself ablated in three ways, and all heads of an attention together by 0."""
    inputs = pairs.source, teacher_inputs(pairs.target, BOS)
    others = torch.arange(len(pairs)).roll(1)
    said, found = head_outputs(model, *inputs), {"whole": judged(model, pairs)}
    real = {  # of the queries' side
        name: (pairs.source if "encoder" in name else pairs.target) != PAD for name in said
    }
    for name, heads in said.items():
        silent = model
        for head in range(heads.shape[1]):
            spoken = heads[:, head]
            values = {"zero": 0.0, "mean": spoken[real[name]].mean(0), "exchanged": spoken[others]}
            for way, value in values.items():
                result = judged(ablated(model, name, head, value), pairs)
                found.setdefault(name, {}).setdefault(way, []).append(result)
            silent = ablated(silent, name, head, 0.0)
        found[name]["all"] = judged(silent, pairs)
    for name, weights in attention_maps(model, *inputs).items():  # b h q k
        largest = weights.amax(-1).movedim(1, -1)[real[name]]
        found[name]["largest"] = [round(x, 4) for x in largest.mean(0).tolist()]
    return found


@torch.no_grad()
def with_weights_shuffled(model: nn.Module, pairs: Pairs) -> dict:
    """Share of words, and of sentences, that stay the same when one attention's are shuffled."""
    inputs, real = (pairs.source, teacher_inputs(pairs.target, BOS)), pairs.target != PAD
    before, found = model(*inputs).argmax(-1), {}
    for name in attention_maps(model, *inputs):
        for chance in range(CHANCES):
            rng = torch.Generator().manual_seed(chance)
            same = shuffled(model, name, rng)(*inputs).argmax(-1) == before
            shares = same[real].float().mean(), (same | ~real).all(1).float().mean()
            for what, share in zip(("words", "sentences"), shares, strict=True):
                found.setdefault(name, {}).setdefault(what, []).append(round(share.item(), 4))
    return found


def erased(model: nn.Module, source: Tensor, target: Tensor) -> Float[Tensor, "t n"]:
    """How much log-probability each target word loses when one source word becomes a mean word.

    Args:
        source: (1 n) ids without padding.
        target: (1 t).
    """
    n, words = source.shape[1], teacher_inputs(target, BOS)
    mean = model.source_embedding.weight[len(MARKS) :].mean(0)

    def one_a_row(_, inputs: tuple, output: Tensor) -> Tensor:
        output = output.clone()
        output[torch.arange(n), torch.arange(n)] = mean
        return output

    with torch.no_grad():
        whole = _log_probability(model(source, words), target)
        hook = model.source_embedding.register_forward_hook(one_a_row)
        try:
            without = _log_probability(model(source.expand(n, -1), words.expand(n, -1)), target)
        finally:
            hook.remove()
    return (whole - without).T


def _log_probability(logits: Tensor, target: Tensor) -> Tensor:
    chosen = target.expand(len(logits), -1)[..., None]
    return logits.log_softmax(-1).gather(-1, chosen)[..., 0]


def rolled_out(
    maps: dict[str, Tensor], without: Sequence[str] = (), share: float = 0.5
) -> Float[Tensor, "t n"]:
    """What of the source arrives at each target word, through the attentions of the translator.

    Source and target stand one behind the other; in each step one of them reads, and the other
    stays what it is. (The paper has one stack only; this is the course's extension.)

    Args:
        maps: attention's name -> weights (1 h q k).
        without: names of attentions that are left out.
        share: of each word, how much self-attention replaces; rollout says a half.
    """
    n, t = maps["decoder.0.cross_attention"].shape[:1:-1]
    steps = []
    for name, weights in maps.items():
        if name in without:
            continue
        step = torch.eye(n + t).repeat(1, weights.shape[1], 1, 1)
        rows = slice(n) if "encoder" in name else slice(n, None)
        columns = slice(n, None) if "decoder" in name and "self" in name else slice(n)
        if "self" in name:  # rollout halves what it gets
            weights = 2 * share * weights + (1 - 2 * share) * torch.eye(weights.shape[-1])
        step[..., rows, :] = 0
        step[..., rows, columns] = weights
        steps.append(step)
    return rollout(steps)[0, n:, :n]


def by_gradient(model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How each target word's log-probability depends on each source word's vector, twice (t n).

    Returns:
        The gradient's length; and gradient × input, the size of its product with the vector, which
        would be what the word is worth if the model were linear.
    """
    vectors = []
    hook = model.source_embedding.register_forward_hook(
        lambda _, inputs, output: vectors.append(output.detach().requires_grad_()) or vectors[-1]
    )
    try:
        said = _log_probability(model(source, teacher_inputs(target, BOS)), target)[0]
    finally:
        hook.remove()
    slopes = torch.stack(
        [torch.autograd.grad(word, vectors[0], retain_graph=True)[0][0] for word in said]
    )  # t n m
    return slopes.norm(dim=-1), (slopes * vectors[0][0].detach()).sum(-1).abs()


def rank_correlation(one: Float[Tensor, "t n"], two: Float[Tensor, "t n"]) -> Tensor:
    """Spearman's, row by row: (t)."""
    ranks = [table.argsort(-1).argsort(-1).double() for table in (one, two)]
    one, two = (F.normalize(rank - rank.mean(-1, keepdim=True), dim=-1) for rank in ranks)
    return (one * two).sum(-1)


def explanations(model: nn.Module, pairs: Pairs) -> dict[str, dict]:
    """How well maps of source words agree with what erasing these words costs.

    Returns:
        map -> `rank` (mean rank correlation over target words), `top` (share of target words of
        which the most important source word is the same), and of a sentence's mean rank
        correlation `more`, how far it is above rollout's: mean and standard error over sentences.
    """
    found: dict[str, list] = {}
    rng = torch.Generator().manual_seed(0)
    for source, target in zip(pairs.source, pairs.target, strict=True):
        source, target = source[source != PAD][None], target[target != PAD][None]
        truth = erased(model, source, target)
        maps = attention_maps(model, source, teacher_inputs(target, BOS))
        cross = [maps[f"decoder.{i}.cross_attention"][0].mean(0) for i in (0, 1)]
        slope, product = by_gradient(model, source, target)
        tables = {
            "cross-attention, mean": sum(cross) / 2,
            "cross-attention, layer 0": cross[0],
            "cross-attention, layer 1": cross[1],
            "rollout": rolled_out(maps),
            "rollout, not the encoder's first": rolled_out(maps, ["encoder.0.self_attention"]),
            "rollout, not the encoder's second": rolled_out(maps, ["encoder.1.self_attention"]),
            "rollout, cross-attention alone": rolled_out(maps, [n for n in maps if "self" in n]),
            "rollout, self-attention 0.3": rolled_out(maps, share=0.3),
            "rollout, self-attention 0.1": rolled_out(maps, share=0.1),
            "gradient": slope,
            "gradient × input": product,
            "chance": torch.rand(truth.shape, generator=rng),
        }
        for name, table in tables.items():
            same = table.argmax(-1) == truth.argmax(-1)
            row = torch.stack([rank_correlation(table, truth), same.double()])
            found.setdefault(name, []).append(row)
    joined: dict = {}
    of_sentence = {name: torch.stack([r[0].mean() for r in rows]) for name, rows in found.items()}
    for name, rows in found.items():
        rank, top = torch.cat(rows, 1).mean(1).tolist()
        more = of_sentence[name] - of_sentence["rollout"]
        mean, error = more.mean().item(), more.std().item() / math.sqrt(len(more))
        joined[name] = {
            "rank": round(rank, 4),
            "top": round(top, 4),
            "more": [round(mean, 4), round(error, 4)],
        }
    return joined


# --- Storing and loading --------------------------------------------------------------------------


def load(kind: str, seed: int = 0) -> AttentionOnly:
    """A trained model of attention alone.

    Raises:
        ValueError: the weights of this kind, or seed, are not stored.
    """
    if kind not in KEPT or seed not in range(SEEDS):
        known = " and ".join(KEPT)
        raise ValueError(f"stored are {known}, seeds 0 to {SEEDS - 1}; not {kind!r}, {seed!r}")
    model, prefix = build(kind), f"{kind}.{seed}."
    weights = load_file(DATA / "looking_inside.safetensors")
    state = {k.removeprefix(prefix): x.float() for k, x in weights.items() if k.startswith(prefix)}
    model.load_state_dict(state)
    return model.eval()


def measured(folder: Path = DATA) -> dict:
    """What was measured.

    Returns:
        `learned`: kind -> one a seed: `loss`, `accuracy`, `induction` and `previous` (for each
        head of each layer) after each of `steps`, and accuracy `at` other periods; of the
        translator `heads` (attention -> way -> one a head: `loss`, `exact`; `largest` weight of
        each head, mean over the words that look), `shuffled`
        (attention -> `words`, `sentences`, one a chance) and `explanations`; `versions`.
    """
    return json.loads((folder / "looking_inside.json").read_text(encoding="utf-8"))


def measure(what: str, seed: int) -> tuple[dict, float, dict]:
    """On one thread, one of `KINDS` or of `MEASURED`: findings, processor seconds and weights."""
    torch.set_num_threads(1)
    start = time.process_time()
    if what in MEASURED:
        model, _, _ = pretrained.load("transformer")
        return MEASURED[what](model), round(time.process_time() - start, 1), {}
    model, run = learn(what, seed)
    seconds = round(time.process_time() - start, 1)
    run["at"] = {}
    for period in (12, 18, LONGEST):
        rng = torch.Generator().manual_seed(period)
        text = texts(200, rng, period, KINDS[what].different)
        run["at"][period] = round(accuracy(model, text, period), 4)
    return run, seconds, {key: x.half().numpy() for key, x in model.state_dict().items()}


def make(folder: Path = DATA, jobs: int = 2) -> None:
    """Measure everything, side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict = {
        "steps": list(range(0, STEPS + 1, EVERY)),
        "sentences": SENTENCES,
        "learned": {},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    learned = [(kind, seed) for kind in KINDS for seed in range(SEEDS)]
    queue = [*((name, 0) for name in MEASURED), *learned]
    results = dict(side_by_side(measure, queue, jobs, "looking inside", "measurement"))
    weights = {}
    for kind, seed in learned:
        run, seconds, state = results[kind, seed]
        found["learned"].setdefault(kind, []).append(run | {"cpu_seconds": seconds})
        if kind in KEPT:
            weights |= {f"{kind}.{seed}.{key}": torch.tensor(x) for key, x in state.items()}
    save_file(weights, folder / "looking_inside.safetensors")
    for name in MEASURED:
        found[name], found[f"{name}_cpu_seconds"], _ = results[name, 0]
    text = json.dumps(found, ensure_ascii=False, indent=1)
    (folder / "looking_inside.json").write_text(text + "\n", encoding="utf-8")


MEASURED: dict[str, Callable[[nn.Module], dict]] = {  # of the translator
    "explanations": lambda model: explanations(model, sentences(least=5)),  # takes longest
    "heads": lambda model: without_heads(model, sentences()),
    "shuffled": lambda model: with_weights_shuffled(model, sentences()),
}


def main() -> None:
    command(
        make,
        "Train chapter 12's models, look into them and into the translator.",
        folder=DATA,
        jobs=(2, "at a time"),
    )


if __name__ == "__main__":
    main()

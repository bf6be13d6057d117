"""Chapter 8's measurements: translators that learned from short sentences meet longer ones.

    >>> measured = positions_curves.load()
    >>> measured["runs"]["rope"]["exact_match"]   # for each seed: source length -> share

Run as a program it trains and measures them again
(`python -m attncourse.experiments.positions_curves --help`).
"""

import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncourse.cross_attention import Transformer
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, Pairs, corpus
from attncourse.positions import BucketAttention, RotaryAttention, exchange, ntk_base
from attncourse.pretrained import DATA
from attncourse.training import (
    command,
    count_lengths,
    exact_match,
    side_by_side,
    train,
    without_error,
)

LONGEST = 14  # source words in training
STEPS, BATCH, LEARNING_RATE, SEEDS = 400, 64, 4e-3, 3
LONGER = 4  # times as many steps in the runs that end in "longer"
EACH = 12  # test sentences of a length at most
# What is exchanged in chapter 7's model: the scheme, and where.
BOTH = "encoder", "decoder"
RUNS = {
    "sinusoidal": ("sinusoidal", BOTH),
    "learned": ("learned", BOTH),
    "none": ("none", BOTH),
    "shaw": ("shaw", BOTH),
    "t5": ("t5", BOTH),
    "t5, started wide": ("t5", BOTH),
    "alibi": ("alibi", BOTH),
    "rope": ("rope", BOTH),
    "rope in the encoder": ("rope", ["encoder"]),
    "rope in the decoder": ("rope", ["decoder"]),
    "rope in all three": ("rope", [*BOTH, "cross"]),
    "rope, more billions": ("rope", BOTH),
}
RUNS |= {f"{name}, longer": RUNS[name] for name in ("sinusoidal", "rope", "rope in all three")}
COMPARED = ["sinusoidal", "rope", "rope, more billions", "rope in all three", *list(RUNS)[-3:]]
GROUPS = [range(first, first + 3) for first in range(3, 24, 3)]  # lengths that are joined
FACTORS = (1.1, 1.25, 1.5)  # by which the first seed of `SQUEEZED` is squeezed, untrained
SQUEEZED = ("rope, longer", "rope in all three, longer")
BILLIONS = 20  # times that "more billions" shows each number from a billion on
SAME_WORD, PLACES = 24, (4, 11, 18)  # words in the sentence of `profiles`, and where one looks from


def build(name: str, source_words: int, target_words: int) -> Transformer:
    """Make the model of a run, untrained."""
    model = exchange(Transformer(source_words, target_words), *RUNS[name])
    if "wide" in name:
        for module in model.modules():
            if isinstance(module, BucketAttention):
                nn.init.normal_(module.bias.weight)  # eight times as wide as T5 begins
    return model


def short_and_test(billions: int = 1) -> tuple[Pairs, Pairs]:
    """What is learned from, up to `LONGEST` source words; what is tested on, of every length.

    Args:
        billions: how often each number from a billion on is learned from. Short sentences hold few.
    """
    task = corpus()
    numbers, short = torch.tensor(task.train.numbers), task.train.lengths <= LONGEST
    seen = torch.where(numbers >= 10**9, billions, 1) * short
    learned = torch.arange(len(numbers)).repeat_interleave(seen)
    rows = []
    for length in task.test.lengths.unique():
        alike = (task.test.lengths == length).nonzero().flatten()
        rows.append(alike[torch.linspace(0, len(alike) - 1, min(len(alike), EACH)).long()])
    return task.train.pick(learned), task.test.pick(torch.cat(rows))


def by_size(model: nn.Module, pairs: Pairs) -> list[list[tuple[int, int]]]:
    """How many are right, of how many: for each of `GROUPS`, below a billion and from there on."""
    right, large = without_error(model, pairs), torch.tensor(pairs.numbers) >= 10**9
    return [
        [
            (int(right[here & kind].sum()), int((here & kind).sum()))
            for here in [(pairs.lengths >= group[0]) & (pairs.lengths <= group[-1])]
            for kind in (~large, large)
        ]
        for group in GROUPS
    ]


def squeezed(model: nn.Module, pairs: Pairs) -> dict[str, list[float]]:
    """Exact match of `GROUPS` from 12 words on, with places divided or another base, untrained."""
    turns = [module for module in model.modules() if isinstance(module, RotaryAttention)]
    width = model.source_embedding.embedding_dim // model.encoder[0].self_attention.num_heads
    ways = {"as trained": (1.0, 1e4)}
    for factor in FACTORS:
        ways[f"places {factor}"] = factor, 1e4
        ways[f"base {factor}"] = 1.0, ntk_base(1e4, factor, width)
    found, long = {}, pairs.pick(pairs.lengths >= GROUPS[3][0])
    for name, (stretch, base) in ways.items():
        for turn in turns:
            turn.stretch, turn.base = stretch, base
        rows = torch.tensor(by_size(model, long)).sum(1)[3:].double()  # group right-and-all
        found[name] = [round(share, 4) for share in (rows[:, 0] / rows[:, 1]).tolist()]
    return found


def profiles(model: Transformer, source_words: int) -> Float[Tensor, "p h k"]:
    """How the first encoder layer scores places when all words are the same.

    Each sentence is one word, `SAME_WORD` times, so only places make a difference. The logarithm of
    a weight is its score up to a constant.

    Returns:
        For a query at each of `PLACES` and each head, the score of every place minus that of the
        query's own; the average over all words of the vocabulary.
    """
    source = torch.arange(3, source_words)[:, None].expand(-1, SAME_WORD)  # b n
    maps = attention_maps(model, source, torch.full((len(source), 1), BOS))
    scores = maps["encoder.0.self_attention"].log()  # b h q k
    rows = [scores[:, :, i] - scores[:, :, i, i, None] for i in PLACES]
    return torch.stack(rows).mean(1)


def measure(name: str, seed: int) -> dict:
    """Train one model on one thread, and test it."""
    torch.set_num_threads(1)  # two models train side by side on two cores
    short, test = short_and_test(BILLIONS if "billions" in name else 1)
    task = corpus()
    torch.manual_seed(seed)
    model = build(name, len(task.source_words), len(task.target_words))
    start = time.process_time()
    options = {"batch_size": BATCH, "learning_rate": LEARNING_RATE, "seed": seed}
    steps = STEPS * (LONGER if "longer" in name else 1)
    losses = train(model, short, steps, **options, progress=False)
    seconds = time.process_time() - start
    shares = exact_match(model, test)
    result = {
        "exact_match": {length: round(share, 4) for length, share in shares.items()},
        "loss": round(sum(losses[-20:]) / 20, 4),
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    if seed == 0:
        result["profiles"] = [
            [[round(score, 2) for score in head] for head in place]
            for place in profiles(model, len(task.source_words)).tolist()
        ]
    if name in COMPARED:
        result["by_size"] = by_size(model, task.test)
    if name in SQUEEZED and seed == 0:  # last: it changes the model
        result["squeezed"] = squeezed(model, task.test)
    return result


def load(folder: Path = DATA) -> dict:
    """What was measured.

    Returns:
        `runs`: name -> field of `measure` -> one entry a seed (`profiles` and `squeezed`: the
        first seed's alone; `by_size`: of `COMPARED`); `counts` (source length -> sentences in the
        test), `steps`, `batch_size`, `learning_rate`, `longest`, `versions`.
    """
    measured = json.loads((folder / "positions.json").read_text(encoding="utf-8"))
    measured["counts"] = {int(length): n for length, n in measured["counts"].items()}
    for run in measured["runs"].values():
        run["exact_match"] = [
            {int(length): share for length, share in seed.items()} for seed in run["exact_match"]
        ]
    return measured


def make(names: list[str], folder: Path = DATA, seeds: int = SEEDS, jobs: int = 2) -> None:
    """Train models side by side; a run is stored as soon as all its seeds are ready."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "positions.json"
    measured = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}}
    measured |= {
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "steps": STEPS,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "longest": LONGEST,
        "counts": count_lengths(short_and_test()[1]),
    }
    queue = [(name, seed) for name in names for seed in range(seeds)]
    found: dict[str, dict[int, dict]] = {name: {} for name in names}
    for (name, seed), result in side_by_side(measure, queue, jobs, "training"):
        found[name][seed] = result
        if len(found[name]) == seeds:
            measured["runs"][name] = _by_field([found[name][seed] for seed in range(seeds)])
            ordered = {key: measured["runs"][key] for key in RUNS if key in measured["runs"]}
            text = json.dumps(measured | {"runs": ordered}, ensure_ascii=False, indent=None)
            path.write_text(text.replace('}, "', '},\n"') + "\n", encoding="utf-8")


def _by_field(results: list[dict]) -> dict:
    first = {key: results[0][key] for key in ("profiles", "squeezed") if key in results[0]}
    return {key: [each[key] for each in results] for key in results[-1] if key not in first} | first


def main() -> None:
    command(
        make,
        "Train chapter 8's translators on short sentences and measure them on long.",
        names=RUNS,
        folder=DATA,
        seeds=(SEEDS, "models a run"),
        jobs=(2, "models at a time"),
    )


if __name__ == "__main__":
    main()

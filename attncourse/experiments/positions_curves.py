"""Chapter 8's measurements: translators that learned from short sentences meet longer ones.

    >>> measured = positions_curves.load()
    >>> measured["runs"]["rope"]["exact_match"]   # for each seed: source length -> share
    >>> model, english, french = positions_curves.translator()

Run as a program it trains and measures them again
(`python -m attncourse.experiments.positions_curves --help`).
"""

import json
import platform
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attncourse.bottleneck import teacher_inputs
from attncourse.cross_attention import Transformer
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, PAD, Pairs, Vocabulary, corpus
from attncourse.positions import exchange
from attncourse.pretrained import DATA
from attncourse.training import (
    command,
    count_lengths,
    exact_match,
    side_by_side,
    train,
    translations,
)

LONGEST = 14  # source words in training
STEPS, BATCH, LEARNING_RATE, SEEDS = 400, 64, 4e-3, 3
EACH = 12  # test sentences of a length at most
# What is exchanged in chapter 7's model: the scheme, and where.
BOTH = "encoder", "decoder"
RUNS = {
    "sinusoidal": ("sinusoidal", BOTH),
    "learned": ("learned", BOTH),
    "none": ("none", BOTH),
    "shaw": ("shaw", BOTH),
    "t5": ("t5", BOTH),
    "alibi": ("alibi", BOTH),
    "rope": ("rope", BOTH),
    "rope in the encoder": ("rope", ["encoder"]),
    "rope in the decoder": ("rope", ["decoder"]),
    "rope in all three": ("rope", [*BOTH, "cross"]),
    "rope, more billions": ("rope", BOTH),
}
BILLIONS = 20  # times that "more billions" shows each number from a billion on
STORED = "rope"  # the weights of its first seed are kept
SAME_WORD, PLACES = 24, (4, 11, 18)  # words in the sentence of `profiles`, and where one looks from


def build(name: str, source_words: int, target_words: int) -> Transformer:
    """Make the model of a run, untrained."""
    return exchange(Transformer(source_words, target_words), *RUNS[name])


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


@torch.no_grad()
def right_by_place(model: nn.Module, pairs: Pairs) -> list[float]:
    """Share of right next words at each place of the target, all words before it being right."""
    right = model(pairs.source, teacher_inputs(pairs.target, BOS)).argmax(-1) == pairs.target
    real = pairs.target != PAD
    return ((right & real).sum(0) / real.sum(0)).tolist()


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


def first_wrong(written: list[str], target: list[str]) -> int:
    """The place of the first word that differs; the target's length if none does."""
    same = [one == two for one, two in zip([*written, None], [*target, None], strict=False)]
    return same.index(False) if False in same else len(target)


def measure(name: str, seed: int, folder: Path = DATA) -> dict:
    """Train one model on one thread, and test it."""
    torch.set_num_threads(1)  # two models train side by side on two cores
    short, test = short_and_test(BILLIONS if "billions" in name else 1)
    task = corpus()
    torch.manual_seed(seed)
    model = build(name, len(task.source_words), len(task.target_words))
    start = time.process_time()
    options = {"batch_size": BATCH, "learning_rate": LEARNING_RATE, "seed": seed}
    losses = train(model, short, STEPS, **options, progress=False)
    seconds = time.process_time() - start
    if name == STORED and seed == 0:
        weights = {key: tensor.half() for key, tensor in model.state_dict().items()}
        model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
        save_file(weights, folder / "positions.safetensors")
    shares = exact_match(model, test)
    by_place = right_by_place(model, test.pick(test.lengths > LONGEST + 3))
    longer = test.pick(test.lengths > LONGEST)
    written = translations(model, longer, task.target_words)
    targets = [task.target_words.decode(row) for row in longer.target]
    result = {
        "exact_match": {length: round(share, 4) for length, share in shares.items()},
        "right_by_place": [round(share, 3) for share in by_place],
        # Of sentences longer than all in training: words wanted, words written, first wrong one.
        "ends": [
            (len(target), len(words), first_wrong(words, target))
            for words, target in zip(written, targets, strict=True)
        ],
        "loss": round(sum(losses[-20:]) / 20, 4),
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    if seed == 0:
        result["profiles"] = [
            [[round(score, 2) for score in head] for head in place]
            for place in profiles(model, len(task.source_words)).tolist()
        ]
        result["written"] = {
            number: " ".join(words)
            for number, words, length in zip(
                longer.numbers, written, longer.lengths.tolist(), strict=True
            )
            if length in (LONGEST + 2, LONGEST + 5)
        }
    return result


def load(folder: Path = DATA) -> dict:
    """What was measured.

    Returns:
        `runs`: name -> field of `measure` -> one entry a seed (`profiles` and `written`: the first
        seed's alone); `counts` (source length -> sentences in the test), `steps`, `batch_size`,
        `learning_rate`, `longest`, `versions`.
    """
    measured = json.loads((folder / "positions.json").read_text(encoding="utf-8"))
    measured["counts"] = {int(length): n for length, n in measured["counts"].items()}
    for run in measured["runs"].values():
        run["exact_match"] = [
            {int(length): share for length, share in seed.items()} for seed in run["exact_match"]
        ]
        run["written"] = {int(number): words for number, words in run["written"].items()}
    return measured


def translator(folder: Path = DATA) -> tuple[Transformer, Vocabulary, Vocabulary]:
    """The trained model of `STORED` with the vocabularies of its source and its target."""
    task = corpus()
    model = build(STORED, len(task.source_words), len(task.target_words))
    weights = load_file(folder / "positions.safetensors")
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return model.eval(), task.source_words, task.target_words


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
    work = partial(measure, folder=folder)
    for (name, seed), result in side_by_side(work, queue, jobs, "training"):
        found[name][seed] = result
        if len(found[name]) == seeds:
            measured["runs"][name] = _by_field([found[name][seed] for seed in range(seeds)])
            ordered = {key: measured["runs"][key] for key in RUNS if key in measured["runs"]}
            text = json.dumps(measured | {"runs": ordered}, ensure_ascii=False, indent=None)
            path.write_text(text.replace('}, "', '},\n"') + "\n", encoding="utf-8")


def _by_field(results: list[dict]) -> dict:
    first = ("profiles", "written")
    fields = {key: [each[key] for each in results] for key in results[0] if key not in first}
    return fields | {key: results[0][key] for key in first}


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

"""What the commonest defects of public code cost the book's translator (chapter 14).

    >>> measured = in_the_wild_curves.measured()
    >>> measured["put in"]["a fill of -10"]        # share right, of a translator trained without
    >>> measured["trained"]["no √d"]               # share right, one for each seed

A defect is *put in* a trained translator, as who copies a layer and loads weights does; or a small
translator is *trained* with it. Run as a program it does both again, in a minute
(`python -m attncourse.experiments.in_the_wild_curves`).
"""

import json
import math
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attncourse import pretrained
from attncourse.bottleneck import teacher_inputs
from attncourse.cross_attention import Transformer
from attncourse.experiments import cross_attention_curves
from attncourse.number_words import BOS, PAD, Pairs, corpus
from attncourse.pretrained import DATA
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.training import command, side_by_side

SEEDS, SHOWN = 3, 2000  # SHOWN: sentences that a translator with a defect translates
Attend = Callable[..., tuple[Tensor, Tensor]]


def filled(query, key, value, mask=None, dropout=None, *, fill: float = -1e9, scale=None):
    """Attention as public code writes it: a finite number, or −∞, in place of hidden scores.

    Args:
        query, key, value, mask, dropout: as of `scaled_dot_product_attention`.
        fill: what hidden scores become.
        scale: what scores are divided by; by default √d.
    """
    scores = query @ key.mT / (math.sqrt(query.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, fill)
    weights = scores.softmax(-1)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def always_dropping(query, key, value, mask=None, dropout=None, *, share: float):
    """`F.dropout(weights, p)`: without `training=self.training`, it also drops in a test."""
    drops = partial(nn.functional.dropout, p=share)
    return scaled_dot_product_attention(query, key, value, mask, drops)


def unshifted(query, key, value, mask=None, dropout=None):
    """exp of the scores over their sum, as on paper."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    grown = (scores if mask is None else scores.masked_fill(~mask, -1e9)).exp()
    weights = grown / grown.sum(-1, keepdim=True)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def in_pairs(length: int, width: int) -> Float[Tensor, "length width"]:
    """Sinusoids for even widths: at an odd one there is a cosine too many."""
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


def one_frequency_each(length: int, width: int) -> Float[Tensor, "length width"]:
    """Sinusoids in which sine and cosine of a pair turn at two speeds."""
    speeds = 10_000 ** (-torch.arange(width) / width)
    angles = torch.arange(length)[:, None] * speeds
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())


ATTENDS: dict[str, Attend] = {
    "right": scaled_dot_product_attention,
    "a fill of -∞": partial(filled, fill=-math.inf),
    "a fill of -1e9": filled,
    "a fill of -10,000": partial(filled, fill=-1e4),
    "a fill of -100": partial(filled, fill=-100.0),
    "a fill of -10": partial(filled, fill=-10.0),
    "a fill of -1": partial(filled, fill=-1.0),
    "a fill of 1e-9, its minus lost": partial(filled, fill=1e-9),
    "exp without a shift": unshifted,
    "no √d": partial(filled, scale=1.0),
    "√m in place of √d": partial(filled, scale=8.0),  # of the stored translator's 64 features
    "dropout 0.1, never off": partial(always_dropping, share=0.1),
    "dropout 0.3, never off": partial(always_dropping, share=0.3),
}
POSITIONS = {
    "a table for even widths": in_pairs,
    "a frequency for each feature": one_frequency_each,
}
# What a small translator is trained with: defect, and whether each batch is filled up by a row
# without a word, as loaders do that need equal batches.
TRAINED = {
    "right": ("right", False),
    "right, with an empty row": ("right", True),
    "a fill of -∞, with an empty row": ("a fill of -∞", True),
    "a fill of -1e9, with an empty row": ("a fill of -1e9", True),
    "no √d": ("no √d", False),
    "a frequency for each feature": ("a frequency for each feature", False),
}


def with_defect(model: nn.Module, defect: str) -> nn.Module:
    """Put a defect into every attention of a model, or into its positions."""
    if defect in POSITIONS:
        model.positions = POSITIONS[defect]
        return model
    for part in model.modules():
        if hasattr(part, "attend"):
            part.attend = ATTENDS[defect]
    return model


@torch.no_grad()
def share_right(model: nn.Module, pairs: Pairs) -> float:
    """Share of sentences without an error, in batches of short and long ones as they come."""
    right = 0
    for rows in torch.arange(len(pairs)).split(100):
        part = pairs.pick(rows)
        likeliest = model(part.source, teacher_inputs(part.target, BOS)).argmax(-1)
        right += ((likeliest == part.target) | (part.target == PAD)).all(1).sum().item()
    return right / len(pairs)


def put_in(defect: str) -> float:
    """Share right of chapter 7's translator, trained without the defect and tested with it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # of dropout
    task = corpus()
    model, *_ = pretrained.load("transformer")
    return round(share_right(with_defect(model, defect), task.test.pick(range(SHOWN))), 4)


class FilledUp(nn.Module):
    """A translator whose batches get a row without a word behind them, which nothing reads."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source: Int[Tensor, "b k"], words: Int[Tensor, "b t"]) -> Tensor:
        filled = (nn.functional.pad(ids, (0, 0, 0, 1), value=PAD) for ids in (source, words))
        return self.model(*filled)[:-1]


def learn(name: str, seed: int) -> float:
    """Train chapter 7's small translator with a defect; the share of the test that is right."""
    torch.set_num_threads(1)
    defect, with_empty = TRAINED[name]

    def make(*sizes, **options):
        model = with_defect(Transformer(*sizes, **options), defect)
        return FilledUp(model) if with_empty else model

    share = cross_attention_curves.learn(corpus(digits=3, size=1000), seed, rate=0.01, make=make)
    return round(share, 4)


def _measure(name: str, seed: int | None) -> float:
    return put_in(name) if seed is None else learn(name, seed)


def measured(folder: Path = DATA) -> dict:
    """What was measured: `put in`, `trained` (one for each seed), `versions`."""
    return json.loads((folder / "in_the_wild_curves.json").read_text("utf-8"))


def make(folder: Path = DATA, jobs: int = 2) -> None:
    """Measure every defect, side by side."""
    queue = [(name, seed) for name in TRAINED for seed in range(SEEDS)]
    queue += [(name, None) for name in [*ATTENDS, *POSITIONS]]
    found = dict(side_by_side(_measure, queue, jobs, "measuring"))
    result = {
        "put in": {name: found[name, None] for name in [*ATTENDS, *POSITIONS]},
        "trained": {name: [found[name, seed] for seed in range(SEEDS)] for name in TRAINED},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in_the_wild_curves.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    command(
        make,
        "Measure what the commonest defects cost, and store it.",
        folder=DATA,
        jobs=(2, "measurements at a time"),
    )


if __name__ == "__main__":
    main()

"""Chapter 7's trainings: what a schedule, a lower rate and dropout do for a small Transformer.

    >>> shares = cross_attention_curves.measured()["shares"]   # recipe -> share right, one a seed

Run as a program it trains them again, in a quarter of a minute
(`python -m attncourse.experiments.cross_attention_curves`).
"""

import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.cross_attention import Transformer
from attncourse.number_words import BOS, PAD, Corpus, batches, corpus
from attncourse.pretrained import DATA
from attncourse.training import command, side_by_side, without_error

RECIPES = {
    "0.01, rises and falls": {"rate": 0.01},
    "the same, dropout 0.1": {"rate": 0.01, "dropout": 0.1},
    "0.02, rises and falls": {"rate": 0.02},
    "0.02, constant": {"rate": 0.02, "scheduled": False},
}
SEEDS, STEPS = 3, 150


def learn(
    task: Corpus,
    seed: int,
    rate: float,
    scheduled: bool = True,
    dropout: float = 0.0,
    make: Callable[..., nn.Module] = Transformer,
) -> float:
    """Train a small Transformer and see which share of the test it gets right.

    Args:
        make: what makes it; chapter 14 makes it with a defect.
    """
    torch.manual_seed(seed)
    sizes = len(task.source_words), len(task.target_words)
    model = make(*sizes, model_width=32, hidden_width=64, num_layers=1)
    for part in model.modules():
        if isinstance(part, nn.Dropout):  # of the weights of attention
            part.p = dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    if scheduled:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=STEPS + 1, pct_start=0.1, cycle_momentum=False
        )
    for _, batch in zip(range(STEPS), batches(task.train, size=32, seed=seed), strict=False):
        logits = model(batch.source, teacher_inputs(batch.target, BOS))
        loss = sequence_loss(logits, batch.target, PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if scheduled:
            schedule.step()
    return without_error(model.eval(), task.test).double().mean().item()


def measured(folder: Path = DATA) -> dict:
    """What was measured: `shares` (recipe -> one a seed), `versions`."""
    return json.loads((folder / "cross_attention.json").read_text("utf-8"))


def measure(recipe: str, seed: int) -> float:
    torch.set_num_threads(1)  # two models train side by side on two cores
    task = corpus(digits=3, size=1000, progress=False)
    return round(learn(task, seed, **RECIPES[recipe]), 4)


def make(folder: Path = DATA, jobs: int = 2) -> None:
    """Train every recipe with every seed, side by side."""
    queue = [(recipe, seed) for recipe in RECIPES for seed in range(SEEDS)]
    found = dict(side_by_side(measure, queue, jobs, "training"))
    shares = {recipe: [found[recipe, seed] for seed in range(SEEDS)] for recipe in RECIPES}
    versions = {"python": platform.python_version(), "torch": version("torch")}
    text = json.dumps({"shares": shares, "versions": versions}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cross_attention.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    command(
        make,
        "Train chapter 7's small Transformers and store how much they got right.",
        folder=DATA,
        jobs=(2, "models at a time"),
    )


if __name__ == "__main__":
    main()

"""The training of the translators that `attncourse.pretrained` loads, and what it measured.

Run as a program it trains them again (`python -m attncourse.experiments.translator_curves --help`).
"""

import json
import platform
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file

from attncourse.number_words import corpus
from attncourse.pretrained import DATA, RECIPES, STORED, build
from attncourse.training import command, count_lengths, exact_match, side_by_side, train


def measure(name: str, folder: Path = DATA, seed: int = 0) -> dict:
    """Train one model on one thread, round its weights to float16, and test what is stored."""
    torch.set_num_threads(1)  # two models train side by side on two cores
    recipe = RECIPES[name]
    task = corpus(target=recipe.target)
    torch.manual_seed(seed)
    model = build(name, len(task.source_words), len(task.target_words))
    start = time.process_time()  # on a busy machine a clock would count what others do
    losses = train(
        model,
        task.train,
        recipe.steps,
        learning_rate=recipe.learning_rate,
        seed=seed,
        progress=False,
    )
    seconds = time.process_time() - start
    weights = {key: tensor.half() for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    shares = exact_match(model, task.test)
    if name in STORED:
        save_file(weights, folder / f"{name}.safetensors")
    words = {} if recipe.target == "fr" else {"target_words": task.target_words.words}
    return words | {
        "exact_match": {length: round(share, 4) for length, share in shares.items()},
        "losses": [round(part.mean().item(), 4) for part in torch.tensor(losses).split(20)],
        "steps": len(losses),
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def make(names: list[str], folder: Path = DATA, seed: int = 0, jobs: int = 2) -> None:
    """Train models side by side; each is stored as soon as it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "curves.json"
    measured = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"models": {}}
    task = corpus()
    measured |= {
        "seed": seed,
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "source_words": task.source_words.words,
        "target_words": task.target_words.words,
        "counts": count_lengths(task.test),
    }
    # The longest first, so that no core waits at the end.
    queue = sorted(names, key=lambda name: -RECIPES[name].steps * (1 + ("fixed" not in name)))
    work = partial(measure, folder=folder, seed=seed)
    for (name,), result in side_by_side(work, [(name,) for name in queue], jobs, "training"):
        measured["models"][name] = result
        ordered = {key: measured["models"][key] for key in RECIPES if key in measured["models"]}
        text = json.dumps(measured | {"models": ordered}, ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    command(
        make,
        "Train the book's translators and store their weights and curves.",
        names=RECIPES,
        folder=DATA,
        seed=(0, "of weights and batches"),
        jobs=(2, "models at a time"),
    )


if __name__ == "__main__":
    main()

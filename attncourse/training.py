"""One loop that trains every translator of the course, and one measure to compare them."""

import argparse
import multiprocessing
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from tqdm import tqdm

from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.cross_attention import translate
from attncourse.number_words import BOS, EOS, PAD, Pairs, Vocabulary, batches


def teacher_forced(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The loss of a translator that predicts each word from the right words before it."""
    return sequence_loss(model(source, teacher_inputs(target, BOS)), target, PAD)


def train(
    model: nn.Module,
    pairs: Pairs,
    steps: int,
    *,
    batch_size: int = 128,
    learning_rate: float = 5e-3,
    seed: int = 0,
    progress: bool = True,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = teacher_forced,
) -> list[float]:
    """Train a translator in place, by teacher forcing; the same seed gives the same losses.

    Adam; the learning rate rises over the first tenth of the steps and falls to zero in the end;
    gradients are clipped to norm 1.

    Args:
        model: called as `model(source (b n), words (b t)) -> (b t vocab)`.
        pairs: to learn from.
        steps: batches to learn from.
        batch_size: pairs in a batch.
        learning_rate: at its highest.
        seed: of the order of the batches.
        progress: whether to show a progress bar.
        loss: `loss(model, source (b n), target (b t))`, in nats; what is made small.

    Returns:
        The loss of every step, in nats a token. Ctrl-C stops early and keeps what was learned. The
        model is left in evaluation mode.
    """
    device = next(model.parameters()).device
    # One call for all parameters: the same numbers sooner.
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False
    )
    model.train()
    losses = []
    bar = tqdm(total=steps, desc="training", unit="step", disable=not progress)
    try:
        for batch, _ in zip(batches(pairs, batch_size, seed), range(steps), strict=False):
            source, target = batch.source.to(device), batch.target.to(device)
            lost = loss(model, source, target)
            optimizer.zero_grad()
            lost.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(lost.item())
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    except KeyboardInterrupt:
        bar.write(f"stopped after {len(losses)} of {steps} steps")
    finally:
        bar.close()
        model.eval()
    return losses


def translations(
    model: nn.Module, pairs: Pairs, vocabulary: Vocabulary, batch_size: int = 256
) -> list[list[str]]:
    """Translate every source sentence, the likeliest word at a time.

    Args:
        model: called as `model(source (b n), words (b t)) -> (b t vocab)`.
        pairs: whose sources to translate.
        vocabulary: of the target.
        batch_size: sentences at once; the longest decides how long a batch takes, so sentences of
            similar length go together.
    """
    if not len(pairs):
        return []
    device = next(model.parameters(), pairs.source).device
    longest = pairs.target.shape[1] + 4  # room for a word too many
    written: dict[int, list[str]] = {}
    was_training = model.training
    model.eval()
    for rows in pairs.lengths.argsort(stable=True).split(batch_size):
        output = translate(model, pairs.pick(rows).source.to(device), BOS, EOS, longest)
        for row, ids in zip(rows.tolist(), output, strict=True):
            written[row] = vocabulary.decode(ids)
    model.train(was_training)
    return [written[row] for row in range(len(pairs))]


@torch.no_grad()
def without_error(model: nn.Module, pairs: Pairs, batch_size: int = 256) -> Bool[Tensor, " b"]:
    """Which sentences would be translated without an error, the likeliest word at a time.

    Those of which every word is the likeliest after the right words before it. So the model reads
    each right translation once, and writes none.

    Args:
        model, pairs, batch_size: as for `translations`.
    """
    device = next(model.parameters(), pairs.source).device
    found = torch.zeros(len(pairs), dtype=torch.bool)
    if not len(pairs):
        return found
    was_training = model.training
    model.eval()
    for rows in pairs.lengths.argsort(stable=True).split(batch_size):
        part = pairs.pick(rows)
        source, target = part.source.to(device), part.target.to(device)
        likeliest = model(source, teacher_inputs(target, BOS)).argmax(-1)
        found[rows] = ((likeliest == target) | (target == PAD)).all(1).cpu()
    model.train(was_training)
    return found


def exact_match(model: nn.Module, pairs: Pairs) -> dict[int, float]:
    """Share of sentences translated without an error, for every source length in words."""
    return shares_by(pairs.lengths, without_error(model, pairs))


def shares_by(what: Int[Tensor, " b"], right: Bool[Tensor, " b"]) -> dict[int, float]:
    """Share of those that are right among all of one length, or of one other number."""
    return {n: right[what == n].double().mean().item() for n in what.unique().tolist()}


def by_bucket(shares: dict[int, float], counts: dict[int, int], width: int = 4) -> dict[str, float]:
    """Join the shares of neighboring lengths: 0–3, 4–7, … words.

    Args:
        shares: length -> share, as `exact_match` returns it.
        counts: length -> number of sentences.
        width: lengths in a bucket.
    """
    hits, total = defaultdict(float), defaultdict(int)
    for length, share in sorted(shares.items()):
        first = length // width * width
        hits[first] += share * counts[length]
        total[first] += counts[length]
    return {f"{first}–{first + width - 1}": hits[first] / total[first] for first in total}


def count_lengths(pairs: Pairs) -> dict[int, int]:
    """How many sentences of each length there are."""
    return dict(enumerate(torch.bincount(pairs.lengths).tolist()))


def as_source(sentence: list[str], vocabulary: Vocabulary) -> Tensor:
    """One sentence as a batch (1 n) of ids."""
    return torch.tensor([vocabulary.encode(sentence)], dtype=torch.long)


def side_by_side(
    work: Callable, queue: Sequence[tuple], jobs: int, label: str, unit: str = "model"
) -> Iterator[tuple[tuple, object]]:
    """Do `work(*arguments)` for all of a queue in processes, and show how far it is.

    Args:
        work: what a new process can import; its result comes back.
        queue: arguments of each call, those that take longest first.
        jobs: processes at a time.
        label, unit: for the bar.

    Yields:
        Arguments and result of each call, as soon as it is ready. Ctrl-C ends all processes.
    """
    tqdm.set_lock(threading.RLock())  # its default outlives the pool, and Python complains
    with multiprocessing.get_context("spawn").Pool(jobs, _begin) as pool:
        done = pool.imap_unordered(partial(_with_arguments, work), queue)
        yield from tqdm(done, label, len(queue), unit=unit)


def _begin() -> None:
    """What a worker does first."""
    tqdm.set_lock(threading.RLock())
    # It ends with the process that made it: `train` would stop at Ctrl-C and half a model be kept.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _with_arguments(work: Callable, arguments: tuple) -> tuple[tuple, object]:
    return arguments, work(*arguments)


def command(
    make: Callable,
    description: str,
    *,
    folder: Path,
    names: Sequence[str] = (),
    **numbers: tuple[int, str],
) -> None:
    """Let a module that trains and stores be called as a program.

    Args:
        make: called by keyword with `folder`, with `numbers`, and with `names` if there are any.
        description: what it does, for `--help`.
        folder: where to store, unless `--folder` says otherwise.
        names: what can be made one by one; all, unless some are given.
        numbers: option -> (default, help).
    """
    program = f"python -m attncourse.experiments.{Path(sys.argv[0]).stem}"
    parser = argparse.ArgumentParser(prog=program, description=description)
    if names:
        parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--folder", type=Path, default=folder, help="where to store (%(default)s)")
    for name, (default, text) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (%(default)s)")
    given = vars(parser.parse_args())
    if names:
        if unknown := set(given["names"]) - set(names):
            parser.error(f"no {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
        given["names"] = given["names"] or list(names)
    start = time.perf_counter()
    try:
        make(**given)
    except KeyboardInterrupt:
        go_on = " Name the rest to go on." if names else ""
        sys.exit(f"stopped; what was finished is stored.{go_on}")
    print(f"stored in {given['folder']} after {time.perf_counter() - start:.0f} s")

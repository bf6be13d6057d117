"""Chapter 8's measurements: a translator that learned from short sentences meets longer ones.

    measured = positions_curves.load()
    measured["runs"]["rope"]["exact_match"]   # one dict of length -> share for each seed

Run as a program it trains and measures again (`python -m attncourse.positions_curves --help`).
"""

import argparse
import json
import multiprocessing
import platform
import signal
import threading
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from tqdm import tqdm

from attncourse.bottleneck import teacher_inputs
from attncourse.cross_attention import Transformer
from attncourse.numbers import BOS, PAD, Pairs, Vocabulary, corpus
from attncourse.positions import exchange
from attncourse.pretrained import DATA
from attncourse.training import exact_match, train, translations

LONGEST = 14  # source words in training
STEPS, BATCH, LEARNING_RATE, SEEDS = 400, 64, 3e-3, 3
EACH = 12  # test sentences of a length at most
BOTH = "encoder", "decoder"
# What is exchanged in chapter 7's model, in this order: (scheme, parts).
RUNS = {
    "sinusoidal": [("sinusoidal", BOTH)],
    "learned": [("learned", BOTH)],
    "none": [("none", BOTH)],
    "shaw": [("shaw", BOTH)],
    "t5": [("t5", BOTH)],
    "alibi": [("alibi", BOTH)],
    "rope": [("rope", BOTH)],
    "rope in the encoder": [("rope", ["encoder"])],
    "rope in the decoder": [("rope", ["decoder"])],
    "rope in all three": [("rope", [*BOTH, "cross"])],
}
STORED = "rope"  # the weights of its first seed are kept


def build(name: str, source_words: int, target_words: int) -> Transformer:
    """Make the model of a run, untrained."""
    model = Transformer(source_words, target_words)
    for scheme, parts in RUNS[name]:
        exchange(model, scheme, parts)
    return model


def short_and_test() -> tuple[Pairs, Pairs]:
    """What is learned from, up to `LONGEST` source words, and what is tested on, of all lengths."""
    task = corpus()
    lengths = task.test.lengths
    rows = [
        row
        for length in lengths.unique().tolist()
        for row in (lengths == length).nonzero().flatten().tolist()[:EACH]
    ]
    return task.train.pick(task.train.lengths <= LONGEST), task.test.pick(torch.tensor(rows))


@torch.no_grad()
def right_by_place(model: nn.Module, pairs: Pairs) -> list[float]:
    """Share of right next words at each place of the target, all words before it being right."""
    right = model(pairs.source, teacher_inputs(pairs.target, BOS)).argmax(-1) == pairs.target
    real = pairs.target != PAD
    return ((right & real).sum(0) / real.sum(0)).tolist()

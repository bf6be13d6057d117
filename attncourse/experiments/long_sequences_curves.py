"""Chapter 11's measurements, made once by `make curves`.

    >>> measured = long_sequences_curves.measured()

Run as a program it measures again, in minutes, what a state remembers, what LSH finds, how far
heads look, and what a ring of processes sends
(`python -m attncourse.experiments.long_sequences_curves`).
"""

import copy
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attncourse.cross_attention import Transformer
from attncourse.experiments.looking_inside_curves import accuracy, learn, texts
from attncourse.long_sequences import (
    Pattern,
    SpanAttention,
    any_of,
    causally,
    feature_map,
    fixed,
    global_tokens,
    lsh_buckets,
    mask_of,
    process_ring_attention,
    ring_bytes,
    same_bucket,
    strided,
    window,
    window_mask,
    windowed_attention,
)
from attncourse.number_words import PAD, corpus
from attncourse.pretrained import DATA, load
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.training import command, side_by_side, teacher_forced, train, without_error

SEEDS = 0, 1, 2
WIDTH, VALUES = 16, 16  # of a key, and how many different values there are to remember
PAIRS = 4, 8, 16, 24, 32, 64
STEPS, BATCH = 300, 32
KEYS = 4, 8, 16  # each written twice
POSITIONS, BUCKETS, NEAREST, ROUNDS = 512, 16, 8, (1, 2, 4, 8, 16)  # of the search by hashing
SPAN_STEPS, LONGEST, START, RAMP, PENALTY = 300, 32, 9.6, 2.0, 3e-4  # of the spans
PROCESSES = 2, 4


def measured(folder: Path = DATA) -> dict:
    """What was measured.

    Returns:
        `capacity`: kind of memory -> for each seed, the share recalled for each of `pairs`;
        `untrained`: the same, without training, for d = 32; `update`: kind -> for each seed, the
        share recalled for each of `keys` written twice; `hashing`: kind of keys -> for each seed,
        [recall, share of pairs looked at] for each of `rounds`; `distance`: pattern -> `scores` a
        row, and for each seed the share `right` for each of `periods`; `spans`: for each seed,
        `exact_match`, of the same model without spans `whole`, and `spans` by layer and head;
        `seconds`: list of n, dense, blocks; `ring`: for each number of processes `error`, `sent`,
        `formula`, `seconds` (ring, and all of it); `settings`, `cpu_seconds`, `versions`.
    """
    return json.loads((folder / "long_sequences.json").read_text(encoding="utf-8"))


# --- what a state remembers ---------------------------------------------------------------------

Memory = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # query (q d), key (k d), value (b k v) -> b q v


def softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value)[0]


def elu_plus_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = feature_map(query) @ feature_map(key).T
    return weights / weights.sum(-1, keepdim=True) @ value


def signed_sum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Σ k vᵀ with keys of length 1, below 0 as often as above, and nothing to divide by."""
    return F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).T @ value


def delta(query: Tensor, key: Tensor, value: Tensor, strength: float | Tensor = 1.0) -> Tensor:
    """What `delta_rule` holds after all pairs, without a loop; the same β for all of them.

    What is written for key i is β times vᵢ less what is there: uᵢ = β (vᵢ − Σ_(j<i) (kⱼ·kᵢ) uⱼ), a
    triangle of equations.
    """
    key = F.normalize(key, dim=-1)
    triangle = strength * (key @ key.T).tril(-1) + torch.eye(len(key)).to(key)
    written = torch.linalg.solve_triangular(
        triangle, strength * value, upper=False, unitriangular=True
    )
    return F.normalize(query, dim=-1) @ key.T @ written


class LearnedDelta(nn.Module):
    """`delta` whose β is learned: one number, between 0 and 1, ½ at first."""

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return delta(query, key, value, self.strength.sigmoid())


class FadingSum(nn.Module):
    """`signed_sum` of which a learned share is left after each word; RetNet has a fixed one."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.tensor(2.0))  # as a sigmoid: 0.88

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ago = torch.arange(len(key)).flip(0)
        weights = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).T
        return weights * self.left.sigmoid() ** ago @ value


class SoftmaxWithPositions(nn.Module):
    """Softmax that loses a learned amount for every word between: chapter 8's ALiBi, one slope."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ago = torch.arange(len(key), 0, -1)
        scores = query @ key.T / math.sqrt(query.shape[-1]) - self.slope * ago
        return scores.softmax(-1) @ value


def not_divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`elu_plus_one` without its division."""
    return feature_map(query) @ feature_map(key).T @ value


def centered(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with features that point to all sides: less what they are on average."""
    mean = feature_map(torch.randn(10_000, generator=torch.Generator().manual_seed(0))).mean()
    return (feature_map(query) - mean) @ (feature_map(key) - mean).T @ value


MEMORIES = {"softmax": softmax, "elu+1": elu_plus_one, "signed sum": signed_sum, "delta": delta}
LEARNED = {"delta, β learned": LearnedDelta()}


class Recall(nn.Module):
    """One layer that is asked for the value that was written under a key."""

    def __init__(self, memory: Memory, keys: int):
        super().__init__()
        self.memory = copy.deepcopy(memory)  # a memory that learns something begins anew
        self.keys = nn.Embedding(keys, WIDTH)
        self.values = nn.Embedding(VALUES, WIDTH)
        self.q_proj, self.k_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.output = nn.Linear(WIDTH, VALUES)

    def forward(self, asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Asked (q), keys (k) in the order of writing, values (b k) -> logits (b q values)."""
        query, key = self.q_proj(self.keys(asked)), self.k_proj(self.keys(keys))
        return self.output(self.memory(query, key, self.values(values)))


def recalled(memory: Memory, keys: int, times: int, seed: int) -> float:
    """Train, and say how many of the keys get the value that was written under them last.

    Args:
        keys: how many different ones, all of which are written.
        times: how often each is written, with a value of its own each time.
    """
    torch.manual_seed(seed)
    model = Recall(memory, keys)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=STEPS + 1)
    asked = torch.arange(keys)

    def draw(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        order = asked.repeat(times)[torch.randperm(keys * times)]
        values = torch.randint(VALUES, (rows, keys * times))
        last = torch.zeros(keys, dtype=torch.long).scatter_reduce(
            0, order, torch.arange(keys * times), "amax"
        )
        return order, values, values[:, last]

    for _ in range(STEPS):
        order, values, right = draw(BATCH)
        loss = F.cross_entropy(model(asked, order, values).flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        shares = []
        for _ in range(20):
            order, values, right = draw(100)
            shares.append((model(asked, order, values).argmax(-1) == right).float().mean().item())
    return round(statistics.mean(shares), 4)


def untrained(memory: Memory, keys: int, width: int, seed: int, draws: int = 20) -> float:
    """Share of random keys whose answer is nearest to the value that was written, of all values."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(draws):
        key = torch.randn(keys, width, generator=generator)
        value = F.normalize(torch.randn(keys, width, generator=generator), dim=-1)
        answer = memory(key, key, value)
        found.append(((answer @ value.T).argmax(-1) == torch.arange(keys)).float().mean().item())
    return round(statistics.mean(found), 4)


# --- what hashing finds -------------------------------------------------------------------------


def scattered(width: int, generator: torch.Generator) -> Tensor:
    return torch.randn(POSITIONS, width, generator=generator)


def clustered(width: int, generator: torch.Generator) -> Tensor:
    """32 directions, and something of one's own."""
    centers = torch.randn(32, width, generator=generator)
    centers = centers[torch.randint(32, (POSITIONS,), generator=generator)]
    return centers + 0.5 * torch.randn(POSITIONS, width, generator=generator)


@torch.no_grad()
def trained(generator: torch.Generator) -> Tensor:
    """Keys of a head of the translator's second encoder layer, for words of the test."""
    model, keys = load("transformer")[0], []
    attention = model.encoder[1].self_attention
    hook = attention.k_proj.register_forward_hook(lambda _, inputs, key: keys.append(key))
    source = corpus().test.spread(200).source
    model.encode(source)
    hook.remove()
    by_head = keys[0][source != PAD].unflatten(-1, (attention.num_heads, -1))  # n h d
    return by_head[:POSITIONS, torch.randint(4, (), generator=generator)]


def hashed(draw: Callable[[torch.Generator], Tensor], seed: int) -> list[list[float]]:
    """Recall of the keys with the highest scores, and share of pairs looked at, by rounds."""
    generator = torch.Generator().manual_seed(seed)
    x = F.normalize(draw(generator), dim=-1)
    scores = (x @ x.T).fill_diagonal_(-torch.inf)
    nearest = scores.topk(NEAREST).indices
    rotations = torch.randn(max(ROUNDS), x.shape[1], BUCKETS // 2, generator=generator)
    buckets = lsh_buckets(x, rotations)
    rows = []
    for rounds in ROUNDS:
        met = same_bucket(buckets[:rounds], buckets[:rounds]).fill_diagonal_(False)
        looked_at = met.sum() / (POSITIONS * (POSITIONS - 1))
        rows.append([met.gather(1, nearest).float().mean().item(), looked_at.item()])
    return [[round(x, 4) for x in row] for row in rows]


# --- what a pattern loses ------------------------------------------------------------------------

LOOKS = {  # of about equal cost on texts of 48 words, but for the first
    "full": window(48),
    "window": window(9),
    "window, first word": any_of(window(8), global_tokens(1)),
    "strided": strided(7),
    "fixed": fixed(8),
}
PERIODS = tuple(range(12, 25))


class Seeing(nn.Module):
    """An `attend` that sees what a pattern shows, of what its mask shows."""

    def __init__(self, attend: Callable, pattern: Pattern):
        super().__init__()
        self.attend, self.visible = attend, mask_of(pattern, 48)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple:
        n = query.shape[-2]
        return self.attend(query, key, value, mask & self.visible[:n, :n])


def by_distance(name: str, seed: int) -> list[float]:
    """Train chapter 12's model with a pattern in both layers; right words by period.

    The word asked for stands period − 1 places back.
    """
    model, _ = learn("varying", seed, wrap=lambda attend: Seeing(attend, LOOKS[name]))
    rng = torch.Generator().manual_seed(0)
    return [round(accuracy(model, texts(200, rng, period), period), 4) for period in PERIODS]


# --- how far heads look -------------------------------------------------------------------------


def spans(seed: int) -> dict:
    """Chapter 7's Transformer, and one in whose decoder every head learns how far it looks back."""
    whole, _ = _translator(seed, learns_spans=False)
    match, layers = _translator(seed, learns_spans=True)
    found = [[round(x, 2) for x in layer.spans().tolist()] for layer in layers]
    return {"whole": whole, "exact_match": match, "spans": found}


def _translator(seed: int, learns_spans: bool) -> tuple[float, list[SpanAttention]]:
    """Train it; its exact match, and the decoder's layers that learn spans."""
    task, layers = corpus(), []
    torch.manual_seed(seed)
    model = Transformer(len(task.source_words), len(task.target_words))
    for layer in model.decoder if learns_spans else ():
        attention = layer.self_attention
        del attention.attend  # torch lets no function take the place of a module
        attention.attend = SpanAttention(attention.num_heads, LONGEST, START, RAMP)
        layers.append(attention.attend)

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        lost = teacher_forced(model, source, target)
        return lost + PENALTY * sum(layer.spans().sum() for layer in layers)

    train(model, task.train, SPAN_STEPS, batch_size=64, learning_rate=4e-3, seed=seed,
          progress=False, loss=loss)  # fmt: skip
    pairs = task.test.spread(400)
    return round(without_error(model, pairs).double().mean().item(), 4), layers


# --- seconds, and real processes ----------------------------------------------------------------


@torch.no_grad()
def seconds(n: int) -> list[float]:
    """n; for attention with a masked table of all pairs, and for blocks (4 heads, w = 32)."""
    query, key, value = torch.randn(3, 1, 4, n, 16)
    mask = window_mask(n, 32)
    found = []
    for attend in (
        lambda: scaled_dot_product_attention(query, key, value, mask),
        lambda: windowed_attention(query, key, value, 32),
    ):
        attend()
        times = []
        for _ in range(3):
            start = time.perf_counter()
            attend()
            times.append(time.perf_counter() - start)
        found.append(round(min(times), 5))
    return [n, *found]


def ring(processes: int) -> dict:
    """Attention of 512 positions in a ring of processes, against all of it in one."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = processes, f"{folder}/meet", results
        torch.multiprocessing.spawn(_member, arguments, nprocs=processes)  # raises what one raises
    found = [results.get() for _ in range(processes)]
    _, key, value = _ring_text()
    return {
        "error": max(error for error, _, _ in found),
        "sent": sorted({sent for _, sent, _ in found}),
        "formula": ring_bytes(processes, key, value),
        "seconds": [
            round(max(took for _, _, took in found), 3),
            round(time.perf_counter() - start, 1),
        ],
    }


def _ring_text() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 1, 2, 512, 16, generator=generator, dtype=torch.float64)


def _member(rank: int, processes: int, file: str, results) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=processes)
    qkv, worst, took = _ring_text(), 0.0, 0.0
    i = torch.arange(qkv.shape[-2])
    for places in (None, i.chunk(processes), [i[r::processes] for r in range(processes)]):
        mine = (places or i.chunk(processes))[rank]
        dist.barrier()
        start = time.perf_counter()
        output, sent = process_ring_attention(*qkv[..., mine, :], places and mine)
        took = max(took, time.perf_counter() - start)
        full = F.scaled_dot_product_attention(*qkv, is_causal=places is not None)
        worst = max(worst, (output - full[..., mine, :]).abs().max().item())
    results.put((worst, sent, took))
    dist.barrier()
    dist.destroy_process_group()


# --- all of it ----------------------------------------------------------------------------------


def _each_seed(function: Callable, sizes: tuple) -> list[list[float]]:
    return [[function(size, seed) for size in sizes] for seed in SEEDS]


def capacity() -> dict:
    return {
        name: _each_seed(lambda n, seed, m=memory: recalled(m, n, 1, seed), PAIRS)
        for name, memory in (MEMORIES | LEARNED).items()
    }


def distance() -> dict:
    return {
        name: {
            "scores": round(mask_of(causally(pattern), 48).sum().item() / 48, 1),
            "right": [by_distance(name, seed) for seed in SEEDS],
        }
        for name, pattern in LOOKS.items()
    }


def capacity_untrained() -> dict:
    sizes = tuple(32 * n // 4 for n in (1, 2, 4, 8, 16, 32))
    changed = {"elu+1, not divided": not_divided, "elu+1, centered": centered}
    return {
        name: _each_seed(lambda n, seed, m=memory: untrained(m, n, 32, seed), sizes)
        for name, memory in (MEMORIES | changed).items()
    }


def update() -> dict:
    memories = MEMORIES | LEARNED | {"sum that fades": FadingSum()}
    memories |= {"softmax with positions": SoftmaxWithPositions()}
    return {
        name: _each_seed(lambda n, seed, m=memory: recalled(m, n, 2, seed), KEYS)
        for name, memory in memories.items()
    }


def hashing() -> dict:
    kinds = {
        "random, d = 16": partial(scattered, 16),
        "random, d = 64": partial(scattered, 64),
        "clustered, d = 64": partial(clustered, 64),
        "trained, d = 16": trained,
    }
    return {name: [hashed(kind, seed) for seed in SEEDS] for name, kind in kinds.items()}


PARTS = {  # those that take longest first
    "spans": lambda: [spans(seed) for seed in SEEDS],
    "distance": distance,
    "capacity": capacity,
    "update": update,
    "untrained": capacity_untrained,
    "hashing": hashing,
    "seconds": lambda: [seconds(n) for n in (256, 512, 1024, 2048)],
    "ring": lambda: {str(p): ring(p) for p in PROCESSES},
}
ALONE = "seconds", "ring"  # when nobody else computes


def measure(name: str) -> tuple[object, float]:
    """One of `PARTS`, on one thread: what was found, and processor seconds."""
    torch.set_num_threads(1)
    start = time.process_time()
    return PARTS[name](), round(time.process_time() - start, 1)


def make(names: list[str], folder: Path = DATA, jobs: int = 2) -> None:
    """Measure some parts again side by side; each is stored as soon as it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "long_sequences.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found["settings"] = {
        "seeds": list(SEEDS), "pairs": list(PAIRS), "keys": list(KEYS), "rounds": list(ROUNDS),
        "width": WIDTH, "values": VALUES, "steps": STEPS,
        "periods": list(PERIODS), "nearest": NEAREST, "buckets": BUCKETS,
        "positions": POSITIONS, "span_steps": SPAN_STEPS, "ramp": RAMP, "penalty": PENALTY,
        "start": START, "untrained_width": 32,
    }  # fmt: skip
    found["versions"] = {"python": platform.python_version(), "torch": version("torch")}
    together = [(name,) for name in PARTS if name in names and name not in ALONE]
    alone = (((name,), measure(name)) for name in ALONE if name in names)
    for (name,), result in chain(
        side_by_side(measure, together, jobs, "chapter 11", "part"), alone
    ):
        found[name], found.setdefault("cpu_seconds", {})[name] = result
        path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    command(
        make,
        "Measure what chapter 11 shows, and store it.",
        names=PARTS,
        folder=DATA,
        jobs=(2, "parts at a time"),
    )


if __name__ == "__main__":
    main()

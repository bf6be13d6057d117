"""Chapter 9's measurements: made by `make curves`, stored with the package, loaded by the page.

    >>> model, vocabulary = one_stack_curves.load("gpt")
    >>> shares = one_stack_curves.measured()["gpt, seed 0"]["exact_match"]   # length -> share

Run as a program it measures them again
(`python -m attncourse.experiments.one_stack_curves --help`).
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attncourse import pretrained
from attncourse.bottleneck import exact_match_by_length, sequence_loss, teacher_inputs
from attncourse.number_words import BOS, EOS, MARKS, PAD, Corpus, Pairs, Vocabulary, corpus
from attncourse.one_stack import (
    BERT,
    GPT,
    NOT_ASKED,
    Continuation,
    all_at_once,
    beam_search,
    by_confidence,
    close_gaps,
    fill_in,
    half_each_round,
    left_to_right,
    log_probability,
    masked_words,
    with_rotation,
)
from attncourse.training import (
    command,
    exact_match,
    side_by_side,
    teacher_forced,
    train,
    translations,
    without_error,
)

DATA = pretrained.DATA / "one_stack"
MASK = len(MARKS)  # id of the fourth mark, which only this chapter's vocabulary has
ORDERS = (all_at_once, half_each_round, left_to_right, by_confidence)
SEEDS = range(3)
GPT_BATCH = 64  # texts in a step of the large decoder; the others take 128
WIDTHS = (4, 8)  # of the beams in which sentences compete by log p a word
EVERY = 3  # of the test's sentences, one in so many is filled in, and asked of small decoders

# --- One text, one vocabulary ---------------------------------------------------------------------


def one_vocabulary(task: Corpus) -> Corpus:
    """The same pairs, with one list of words for both languages and a mark for a mask."""
    both = {*task.source_words.words, *task.target_words.words} - set(MARKS)
    words = Vocabulary((*MARKS, "<mask>", *sorted(both)))

    def renumbered(pairs: Pairs) -> Pairs:
        source, target = (
            torch.tensor(words.encode(known.words))[ids]
            for known, ids in ((task.source_words, pairs.source), (task.target_words, pairs.target))
        )
        return Pairs(pairs.numbers, source, target)

    return Corpus(words, words, renumbered(task.train), renumbered(task.test))


def as_text(source: Tensor, target: Tensor) -> Tensor:
    """One row a pair: the source, <bos> where a reader would see an equals sign, the target."""
    between = target.new_full((len(target), 1), BOS)
    return close_gaps(torch.cat([source, between, target], dim=1), PAD)


def of_target(text: Tensor) -> Tensor:
    """Where the words behind <bos> stand: boolean, as the text."""
    return ((text == BOS).cumsum(1) > 0) & (text != BOS) & (text != PAD)


# --- Losses ---------------------------------------------------------------------------------------


def next_word_loss(translator: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Every word of the text has to be guessed from those before it, the source's, too."""
    text = as_text(source, target)
    return sequence_loss(translator.model(text[:, :-1]), text[:, 1:], PAD)


@torch.no_grad()
def nats_a_word(translator: nn.Module, pairs: Pairs) -> dict[str, float]:
    """Mean −ln p of the words of the questions and of the answers, each after all before it.

    The <bos> that closes a question is one of its words. The power of e is the perplexity.
    """
    lost, counted = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
    for rows in pairs.lengths.argsort(stable=True).split(256):
        part = pairs.pick(rows)
        text = as_text(part.source, part.target)
        logits, asked = translator.model(text[:, :-1]), text[:, 1:]
        nats = F.cross_entropy(logits.transpose(1, 2), asked, reduction="none")
        answer = of_target(text)[:, 1:]
        for which, where in enumerate(((asked != PAD) & ~answer, answer)):
            lost[which] += nats[where].double().sum()
            counted[which] += where.sum()
    return dict(zip(("question", "answer"), (lost / counted).tolist(), strict=True))


def masked_loss(rng: torch.Generator) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Words of the target are hidden and have to be guessed; each sentence has its own share."""

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        text = as_text(source, target)
        share = torch.rand(len(text), 1, generator=rng)
        words = model.embedding.num_embeddings
        inputs, targets = masked_words(text, share, MASK, words, rng)
        asked = of_target(text)
        logits = model(torch.where(asked, inputs, text))
        targets = targets.masked_fill(~asked, NOT_ASKED)
        return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=NOT_ASKED)

    return loss


# --- Beams ----------------------------------------------------------------------------------------


@torch.no_grad()
def normalized_beam_search(
    step: Callable, state: Tensor, bos: int, eos: int, width: int, max_length: int, power: float
) -> Tensor:
    """`beam_search` whose beginnings compete by log p / length^power; with 0 it is `beam_search`.

    The length counts `eos`. It stops when all beginnings have ended: one that goes on may gain.

    Source: Wu et al. (2016), section 7, without the smoothing of the length.
    """
    b = len(state)
    state = state.repeat_interleave(width, 0)
    token = torch.full((b * width,), bos)
    written = token.new_empty(b * width, 0)
    total, length = torch.full((b, width), -torch.inf), torch.zeros(b, width)
    total[:, 0] = 0.0
    finished = torch.zeros_like(token, dtype=torch.bool)
    while not finished.all() and written.shape[1] < max_length:
        logits, state = step(token, state)
        log_p = logits.log_softmax(-1).masked_fill(finished[:, None], -torch.inf)
        log_p[finished, eos] = 0.0
        every = (total.flatten()[:, None] + log_p).view(b, width, -1)
        length = length + ~finished.view(b, width)
        place = (every / length[..., None] ** power).flatten(1).topk(width).indices  # b w
        total, origin = every.flatten(1).gather(1, place), place // logits.shape[-1]
        length = length.gather(1, origin)
        row = (origin + width * torch.arange(b)[:, None]).flatten()
        token = (place % logits.shape[-1]).flatten()
        state, written = state[row], torch.cat([written[row], token[:, None]], dim=1)
        finished = finished[row] | (token == eos)
    return written[::width]


def closed(ids: Tensor) -> Tensor:
    """The ids up to the first eos, padding behind it."""
    after = (ids == EOS).cumsum(1) - (ids == EOS).int() > 0
    return ids.masked_fill(after, PAD)


@torch.no_grad()
def judged(model: nn.Module, pairs: Pairs, written: Tensor, known: Vocabulary) -> dict[str, float]:
    """Exact match of what a search wrote, and how many of its errors are of which kind."""

    def log_p(target: Tensor) -> Tensor:
        return log_probability(model(pairs.source, teacher_inputs(target, BOS)), target, PAD)

    lines = [(known.decode(a), known.decode(b)) for a, b in zip(written, pairs.target, strict=True)]
    wrong = torch.tensor([line != right for line, right in lines])
    search = wrong & (log_p(pairs.target) > log_p(closed(written)))
    return {
        "exact match": 1 - wrong.double().mean().item(),
        "search errors": int(search.sum()),
        "model errors": int((wrong & ~search).sum()),
        "too short": sum(len(line) < len(right) for line, right in lines),
    }


# --- Runs -----------------------------------------------------------------------------------------


def make_gpt(words: int) -> nn.Module:
    """As many parameters as chapter 7's model has (within one per cent)."""
    return Continuation(with_rotation(GPT(words, hidden_width=192, num_layers=4)), PAD)


def make_small_gpt(words: int) -> nn.Module:
    """Half of that, for comparisons that need several seeds."""
    return Continuation(with_rotation(GPT(words, hidden_width=128, num_layers=2)), PAD)


def make_bert(words: int) -> nn.Module:
    """Three layers, the least that learned well here."""
    return with_rotation(BERT(words, hidden_width=128, num_layers=3, pad=PAD))


STEPS = {"gpt": 1400, "gpt, French only": 1400, "bert": 500, "french": 200, "everything": 200}
LOSSES = {  # of the decoders: what is asked
    "gpt": next_word_loss,
    "gpt, French only": teacher_forced,
    "everything": next_word_loss,
    "french": teacher_forced,
}
STORED = {"gpt": make_gpt, "bert": make_bert}  # the page loads the weights of their first seeds
RUNS = [*(f"{what}, seed {seed}" for what in STEPS for seed in SEEDS), "errors", "beam"]


def rounded(shares: dict[int, float]) -> dict[int, float]:
    return {length: round(share, 4) for length, share in shares.items()}


def one_in(every: int, pairs: Pairs) -> Pairs:
    """Fewer pairs, of all lengths."""
    return pairs.pick(torch.arange(0, len(pairs), every))


def run_gpt(what: str, steps: int, seed: int):
    """Train a decoder alone, and let it translate and guess sentences of the test."""
    task = one_vocabulary(corpus())
    large = what.startswith("gpt")
    test = task.test if large else one_in(EVERY, task.test)
    torch.manual_seed(seed)
    model = (make_gpt if large else make_small_gpt)(len(task.source_words))
    start = time.process_time()
    batch = GPT_BATCH if large else 128
    losses = _train(model, task.train, steps, seed, LOSSES[what], batch)
    seconds = time.process_time() - start
    model.load_state_dict({key: x.half().float() for key, x in model.state_dict().items()})
    return model, {
        "exact_match": rounded(exact_match(model, test)),
        "nats": {part: round(nats, 4) for part, nats in nats_a_word(model, test).items()},
        "losses": _means(losses),
        "cpu_seconds": round(seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def run_bert(steps: int, seed: int):
    """Train an encoder alone, and let it fill in a part of the words, then all, in four orders."""
    task = one_vocabulary(corpus())
    torch.manual_seed(seed)
    model = make_bert(len(task.source_words))
    start = time.process_time()
    rng = torch.Generator().manual_seed(seed)
    losses = _train(model, task.train, steps, seed, masked_loss(rng))
    seconds = time.process_time() - start
    model.load_state_dict({key: x.half().float() for key, x in model.state_dict().items()})
    few = one_in(EVERY, task.test)
    return model, {
        "found": {share: round(_found(model, few, share), 4) for share in (0.15, 0.5, 1.0)},
        "orders": {order.__name__: _filled(model, few, task, order) for order in ORDERS},
        "losses": _means(losses),
        "cpu_seconds": round(seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


@torch.no_grad()
def _found(model: nn.Module, pairs: Pairs, share: float) -> float:
    """Share of the masked words that are found, where so many of the target's are masked."""
    text = as_text(pairs.source, pairs.target)
    rng = torch.Generator().manual_seed(0)
    masked = of_target(text) & torch.bernoulli(torch.full(text.shape, share), generator=rng).bool()
    found = model(text.masked_fill(masked, MASK)).argmax(-1)
    return (found == text)[masked].float().mean().item()


def _filled(model: nn.Module, pairs: Pairs, task: Corpus, order: Callable) -> dict[int, float]:
    """Exact match by length where the whole target is filled in."""
    written, right = [], []
    for rows in pairs.lengths.argsort(stable=True).split(256):
        part = pairs.pick(rows)
        text = as_text(part.source, part.target)
        asked = of_target(text)
        filled = fill_in(model, text.masked_fill(asked, MASK), MASK, order)
        written += [line[where].tolist() for line, where in zip(filled, asked, strict=True)]
        right += [line[where].tolist() for line, where in zip(text, asked, strict=True)]
    lengths = pairs.lengths.sort(stable=True).values.tolist()
    return rounded(exact_match_by_length(written, right, lengths))


def run_errors():
    """Which numbers of the test the book's two good translators get wrong, and what they write."""
    task, found = corpus(), {}
    for name in ("additive", "transformer"):
        model, _, french = pretrained.load(name)
        wrong = task.test.pick(~without_error(model, task.test))
        written = translations(model, wrong, french)
        found[name] = {
            number: " ".join(line) for number, line in zip(wrong.numbers, written, strict=True)
        }
    return None, found


def run_beam():
    """What competing by log p a word does, and what a beam mends where little is wrong."""
    task = corpus()
    longest = task.test.target.shape[1] + 4
    model, _, french = pretrained.load("fixed-64")
    with torch.no_grad():
        state = model.start(task.test.source)
    found = {"a word": {}, "mended": {}}
    for width in WIDTHS:
        ids = normalized_beam_search(model.step, state, BOS, EOS, width, longest, power=1.0)
        found["a word"][width] = judged(model, task.test, ids, french)
    for name in ("additive", "transformer"):
        model, _, french = pretrained.load(name)
        wrong = task.test.pick(~without_error(model, task.test))
        found["mended"][name] = {
            width: len(wrong) - _wrong_by_beam(model, wrong, width, longest) for width in WIDTHS
        }
    return None, found


def _wrong_by_beam(model: nn.Module, pairs: Pairs, width: int, longest: int) -> int:
    """How many sentences a beam writes wrongly; its state is the source and the words so far."""
    n = pairs.source.shape[1]

    def step(token: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        text = torch.cat([text, token[:, None]], dim=1)
        return model(text[:, :n], text[:, n:])[:, -1], text

    ids = closed(beam_search(step, pairs.source, BOS, EOS, width, longest))
    target = F.pad(pairs.target, (0, longest), value=PAD)[:, : ids.shape[1]]
    return int((ids != target).any(1).sum())


WITHOUT_TRAINING = {"errors": run_errors, "beam": run_beam}


def _train(model, pairs, steps, seed, loss, batch=128) -> list[float]:
    return train(model, pairs, steps, batch_size=batch, learning_rate=2e-3, seed=seed,
                 progress=False, loss=loss)  # fmt: skip


def _means(losses: list[float]) -> list[float]:
    return [round(part.mean().item(), 4) for part in torch.tensor(losses).split(20)]


def run(name: str) -> tuple[nn.Module | None, dict]:
    """One of `RUNS`: the model and what was measured."""
    torch.set_num_threads(1)  # two runs side by side on two cores
    if name in WITHOUT_TRAINING:
        return WITHOUT_TRAINING[name]()
    what, _, seed = name.partition(", seed ")
    steps, seed = STEPS[what], int(seed)
    if what == "bert":
        return run_bert(steps, seed)
    return run_gpt(what, steps, seed)


# --- Storing and loading --------------------------------------------------------------------------


def measured(folder: Path = DATA) -> dict[str, dict]:
    """What the runs measured: name of the run -> its results; keys that are numbers are numbers."""

    def numbered(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {_number(key): numbered(inner) for key, inner in value.items()}

    return numbered(json.loads((folder / "measured.json").read_text(encoding="utf-8")))


def _number(key: str) -> str | int | float:
    try:
        return int(key)
    except ValueError:
        return float(key) if key.replace(".", "", 1).isdigit() else key


def load(name: str) -> tuple[nn.Module, Vocabulary]:
    """A trained model, "gpt" or "bert", and the words that it knows.

    Raises:
        ValueError: the weights of this model are not stored.
    """
    if name not in STORED:
        raise ValueError(f"weights are stored of {', '.join(STORED)}; not of {name!r}")
    words = one_vocabulary(corpus()).source_words
    model = STORED[name](len(words))
    weights = load_file(DATA / f"{name}.safetensors")
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return model.eval(), words


def _run_and_store(name: str, folder: Path) -> dict:
    model, result = run(name)
    what, _, seed = name.partition(", seed ")
    if what in STORED and seed == "0":
        weights = {key: tensor.half() for key, tensor in model.state_dict().items()}
        save_file(weights, folder / f"{what}.safetensors")
    return result


def make(names: list[str], folder: Path = DATA, jobs: int = 2) -> None:
    """Run side by side; each result is stored as soon as it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "measured.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    work, queue = partial(_run_and_store, folder=folder), [(name,) for name in names]
    for (name,), result in side_by_side(work, queue, jobs, "measuring", "run"):
        results[name] = result
        ordered = {key: results[key] for key in RUNS if key in results}
        path.write_text(json.dumps(ordered, ensure_ascii=False, indent=1) + "\n", "utf-8")


def main() -> None:
    command(
        make,
        "Train chapter 9's models and store what was measured.",
        names=RUNS,
        folder=DATA,
        jobs=(2, "runs at a time"),
    )


if __name__ == "__main__":
    main()

"""Chapter 13's measurements: drawn numbers, and models that read them.

    >>> measured = pictures_curves.measured()
    >>> reader, french = pictures_curves.reader()
    >>> drawn = pictures_curves.draw([47, 182], random.Random(0))
    >>> french.decode(read(reader, drawn.noisy(torch.Generator()))[1])

Run as a program it trains and measures again, in minutes
(`python -m attncourse.experiments.pictures_curves`).
"""

import json
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attncourse.bottleneck import sequence_loss, teacher_inputs
from attncourse.multihead import attention_maps
from attncourse.number_words import BOS, EOS, MARKS, PAD, Pairs, Vocabulary, words
from attncourse.one_stack import BERT, GPT
from attncourse.pictures import (
    Flamingo,
    Reader,
    TwoTowers,
    patches,
    positions_2d,
    read,
    standardized,
)
from attncourse.pretrained import DATA
from attncourse.self_attention import sinusoidal_positions
from attncourse.training import command, side_by_side, teacher_forced, train

HEIGHT, WIDTH, PATCH = 16, 48, (16, 8)  # pixels
FONTS = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono"
SIZES = range(13, 17)  # of letters, in pixels
NEW_FONT = "DejaVuSerif-Bold"  # none of the pictures to learn from has it
LIGHT, NOISE = (0.7, 1.0), 0.1  # how light digits are; deviation of the noise
SEEDS = 3
PICTURES, STEPS, BATCH, RATE = 30_000, 1600, 128, 3e-3  # of the readers' training
LINES = {  # positions on two lines: name -> function of rows, columns and features
    "row and column": positions_2d,
    "one number": lambda rows, columns, m: sinusoidal_positions(rows * columns, m),
    "column alone": lambda rows, columns, m: sinusoidal_positions(columns, m).repeat(rows, 1),
    "none": lambda rows, columns, m: torch.zeros(rows * columns, m),
}
CUTS = {  # what else a picture could be as six words: name -> function of pictures
    "strips": lambda image: standardized(image).reshape(len(image), 6, -1),
    "not standardized": lambda image: patches(image, PATCH),
}
LINES_STEPS, MODEL_STEPS, GATED_STEPS, TOWER_STEPS = 200, 300, 400, 500
CHOICES = 100  # names among which a picture has to find its own
SMALL = {"num_heads": 4, "hidden_width": 128}

# --- Numbers and their pictures -------------------------------------------------------------------


@cache
def unseen() -> dict[int, tuple[int, ...]]:
    """Numbers that no model is trained on: a fifth of those of one, two and three digits.

    Zero is not among them, for no other name has its word.
    """
    chance = random.Random(0)
    ranges = {1: range(1, 10), 2: range(10, 100), 3: range(100, 1000)}
    return {k: tuple(chance.sample(r, round(len(r) / 5))) for k, r in ranges.items()}


@cache
def known() -> dict[int, tuple[int, ...]]:
    """The numbers to learn from, by digits."""
    ranges = {1: range(10), 2: range(10, 100), 3: range(100, 1000)}
    return {k: tuple(n for n in r if n not in unseen()[k]) for k, r in ranges.items()}


@cache
def french() -> Vocabulary:
    """The words of all French names below 1,000."""
    every = {word for number in range(1000) for word in words(number, "fr")}
    return Vocabulary((*MARKS, *sorted(every)))


def names(numbers: Sequence[int]) -> Int[Tensor, "b t"]:
    """French names as ids, each closed by <eos>, padded on the right."""
    rows = [[*french().encode(words(number, "fr")), EOS] for number in numbers]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@dataclass(frozen=True)
class Drawn:
    """Pictures of numbers, white on black.

    Attributes:
        numbers: what they show.
        images: (b 1 y x), 0 to 255.
        boxes: for each picture, where its digits are: (top, left, bottom, right) in pixels.
    """

    numbers: tuple[int, ...]
    images: UInt8[Tensor, "b 1 y x"]
    boxes: tuple[tuple[tuple[int, int, int, int], ...], ...]

    def noisy(self, generator: torch.Generator) -> Float[Tensor, "b 1 y x"]:
        """As models see them: 0 to 1, with noise."""
        return noisy(self.images, generator)


def noisy(images: UInt8[Tensor, "b 1 y x"], generator: torch.Generator) -> Tensor:
    """Make light 0 to 1, and add noise of deviation `NOISE`."""
    return images / 255 + NOISE * torch.randn(images.shape, generator=generator)


@cache
def _glyph(digit: str, font: str, size: int) -> np.ndarray:
    """A digit's pixels (y x), 0 to 255, with no margin."""
    import matplotlib  # only who draws needs it, and the fonts that come with it
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    letters = ImageFont.truetype(str(folder / f"{font}.ttf"), size)
    left, top, right, bottom = map(round, letters.getbbox(digit))
    image = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(image).text((-left, -top), digit, fill=255, font=letters)
    return np.asarray(image)


def _line(text: str, chance: random.Random, fonts: Sequence[str]) -> tuple[np.ndarray, list]:
    """One line of digits somewhere in a picture: its pixels, and the digits' boxes."""
    font, size = chance.choice(fonts), chance.choice(SIZES)
    glyphs = [_glyph(digit, font, size) for digit in text]
    gaps = [chance.randint(1, 2) for _ in text[1:]]
    x = chance.randint(0, WIDTH - sum(gaps) - sum(glyph.shape[1] for glyph in glyphs))
    top = chance.randint(1, HEIGHT - 1 - max(glyph.shape[0] for glyph in glyphs))
    light = chance.uniform(*LIGHT)
    pixels, boxes = np.zeros((HEIGHT, WIDTH), np.uint8), []
    for glyph, gap in zip(glyphs, [*gaps, 0], strict=True):
        y = top + chance.randint(-1, 1)  # digits dance a little
        bottom, right = y + glyph.shape[0], x + glyph.shape[1]
        pixels[y:bottom, x:right] = light * glyph
        boxes.append((y, x, bottom, right))
        x = right + gap
    return pixels, boxes


def draw(
    numbers: Sequence[int],
    chance: random.Random,
    *,
    two_lines: bool = False,
    fonts: Sequence[str] = FONTS,
) -> Drawn:
    """Draw numbers of up to three digits: in any of the fonts and sizes, anywhere in the picture.

    Args:
        numbers: what to draw.
        chance: decides on font, size, light and place.
        two_lines: one digit above the other; numbers of two digits.
        fonts: names of fonts that come with matplotlib.
    """
    images, boxes = [], []
    for number in numbers:
        drawn = [
            _line(part, chance, fonts) for part in (str(number) if two_lines else [str(number)])
        ]
        images.append(np.concatenate([pixels for pixels, _ in drawn]))
        boxes.append(
            tuple(
                (top + row * HEIGHT, left, bottom + row * HEIGHT, right)
                for row, (_, line) in enumerate(drawn)
                for top, left, bottom, right in line
            )
        )
    return Drawn(tuple(numbers), torch.from_numpy(np.stack(images))[:, None], tuple(boxes))


# --- Training -------------------------------------------------------------------------------------


def learn(
    model: nn.Module,
    drawn: Drawn,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = teacher_forced,
) -> list[float]:
    """Train on pictures and names, with new noise in every batch; the losses.

    Args:
        loss: `loss(model, image (b c y x), name (b t))`.
    """
    # The course's loop knows source and target as ids; here both are the number of a picture.
    rows = torch.arange(1, len(drawn.numbers) + 1)[:, None]
    every, noise = names(drawn.numbers), torch.Generator().manual_seed(seed)

    def seen(model: nn.Module, row: Tensor, _: Tensor) -> Tensor:
        row = row[:, 0] - 1
        name = every[row]
        return loss(model, noisy(drawn.images[row], noise), name[:, (name != PAD).any(0)])

    options = {"batch_size": batch, "learning_rate": rate, "seed": seed, "progress": False}
    return train(model, Pairs(drawn.numbers, rows, rows), steps, loss=seen, **options)


def _mixture(chance: random.Random, count: int) -> list[int]:
    """Numbers to learn from, long ones more often, for there are more of them."""
    digits = chance.choices((1, 2, 3), (1, 2, 5), k=count)
    return [chance.choice(known()[k]) for k in digits]


def darker(image: Tensor) -> Tensor:
    """A quarter of the contrast, and a little gray everywhere."""
    return image / 4 + 0.1


def written(
    model: nn.Module, drawn: Drawn, seed: int = 0, change: Callable = lambda image: image
) -> list[list[str]]:
    """What the model writes for each picture, after `change` of it."""
    image = change(drawn.noisy(torch.Generator().manual_seed(seed)))
    return [french().decode(ids) for ids in read(model, image, BOS, EOS)]


def right(model: nn.Module, drawn: Drawn, seed: int = 0, **options) -> list[bool]:
    """Of which pictures the model writes the name without an error."""
    names_ = written(model, drawn, seed, **options)
    return [n == words(number, "fr") for n, number in zip(names_, drawn.numbers, strict=True)]


def exact_match(
    model: nn.Module,
    numbers: dict[int, tuple[int, ...]],
    change: Callable = lambda image: image,
    **options,
) -> dict[int, float]:
    """Share of pictures read without an error, by digits; 360 pictures each."""
    shares = {}
    for digits, some in numbers.items():
        drawn = draw([some[i % len(some)] for i in range(360)], random.Random(digits), **options)
        shares[digits] = sum(right(model, drawn, change=change)) / 360
    return shares


def written_alone(model: nn.Module, digit: int) -> dict[str, float]:
    """What the model writes for 180 pictures of one digit: name -> share, the likeliest first."""
    drawn = draw([digit] * 180, random.Random(digit))
    found = Counter(" ".join(name) for name in written(model, drawn))
    return {name: count / 180 for name, count in found.most_common(3)}


def new_reader(seed: int = 0) -> Reader:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Reader(len(french()), PATCH, **SMALL)


# --- What is measured -----------------------------------------------------------------------------


def _to_learn_from(seed: int) -> Drawn:
    chance = random.Random(seed)
    return draw(_mixture(chance, PICTURES), chance)


def measure_reader(model: Reader, seed: int) -> tuple[dict, Reader]:
    """Train a reader in place; test it on numbers that other pictures showed, and on new ones."""
    losses = learn(model, _to_learn_from(seed), STEPS, BATCH, RATE, seed)
    result = {
        "losses": [sum(losses[i : i + 50]) / 50 for i in range(0, STEPS, 50)],
        "known": exact_match(model, known()),
        "unseen": exact_match(model, unseen()),
        "new_font": exact_match(model, unseen(), fonts=[NEW_FONT]),
        "alone": {digit: written_alone(model, digit) for digit in unseen()[1]},
        "agreement": agreement(model),
    }
    return result, model


@torch.no_grad()
def erased(model: Reader, drawn: Drawn, noise_seed: int = 0) -> list[Float[Tensor, "t i"]]:
    """What it costs to erase a digit: log-probability that each word of the name loses.

    Returns:
        For each picture, (t i): words (and <eos>) by digits.
    """
    costs = []
    for row, boxes in enumerate(drawn.boxes):
        images = drawn.images[row].repeat(1 + len(boxes), 1, 1, 1)
        for place, (top, left, bottom, right_) in enumerate(boxes, 1):
            images[place, :, top:bottom, left:right_] = 0
        # The same noise in all of them.
        noise = NOISE * torch.randn(
            images[:1].shape, generator=torch.Generator().manual_seed(noise_seed + row)
        )
        name = names([drawn.numbers[row]])
        inputs = teacher_inputs(name, BOS).expand(len(images), -1)
        log_p = model(images / 255 + noise, inputs).log_softmax(-1)  # 1+i t vocab
        of_name = log_p.gather(-1, name.expand(len(images), -1)[..., None])[..., 0]
        costs.append((of_name[:1] - of_name[1:]).T)
    return costs


@torch.no_grad()
def looked_at(
    model: Reader, drawn: Drawn, layer: int, noise_seed: int = 0
) -> list[Float[Tensor, "h t n"]]:
    """Cross-attention of a decoder layer while each name is written: (h t n) for each picture."""
    weights = []
    for row, number in enumerate(drawn.numbers):
        noise = NOISE * torch.randn(
            drawn.images[:1].shape, generator=torch.Generator().manual_seed(noise_seed + row)
        )
        inputs = teacher_inputs(names([number]), BOS)
        maps = attention_maps(model, drawn.images[row : row + 1] / 255 + noise, inputs)
        weights.append(maps[f"decoder.{layer}.cross_attention"][0])
    return weights


def on_digits(weights: Float[Tensor, "... n"], boxes: Sequence[tuple]) -> Float[Tensor, "... i"]:
    """Weight of each digit, if a patch's weight is spread evenly over its columns of pixels."""
    columns = (weights / PATCH[1]).repeat_interleave(PATCH[1], dim=-1)  # … x
    return torch.stack([columns[..., left:right_].sum(-1) for _, left, _, right_ in boxes], -1)


def agreement(model: Reader) -> dict[str, float]:
    """How often the digit with most weight is the digit whose erasing costs most.

    Of pictures of three digits that are read rightly; of words that lose more than 1 nat by some
    digit.

    Returns:
        For each decoder layer ("layer 0", …), the share of such words, the mean of heads as
        weights; `words`, how many there are; `chance`: the share for the digit in the middle.
    """
    drawn = draw(unseen()[3][:120], random.Random(3))
    reads = right(model, drawn)
    costs = erased(model, drawn)
    per_layer = [looked_at(model, drawn, layer) for layer in range(len(model.decoder))]
    hits, count, middle = [0] * len(per_layer), 0, 0
    for row, cost in enumerate(costs):
        if not reads[row]:
            continue
        matters = cost.amax(-1) > 1
        worst = cost.argmax(-1)
        count += int(matters.sum())
        middle += int(((worst == 1) & matters).sum())
        for layer, weights in enumerate(per_layer):
            most = on_digits(weights[row].mean(0), drawn.boxes[row]).argmax(-1)
            hits[layer] += int(((most == worst) & matters).sum())
    shares = {f"layer {layer}": hit / max(1, count) for layer, hit in enumerate(hits)}
    return shares | {"words": count, "middle": middle / max(1, count)}


def measure_cuts(_, seed: int) -> tuple[dict[str, dict], None]:
    """Readers trained as `measure_reader` does, to which pictures come in another way."""
    drawn, found = _to_learn_from(seed), {}
    for name, cut in CUTS.items():
        model = new_reader(seed)
        embedding, table = model.source_embedding, positions_2d(1, 6, 64)
        embedding.forward = lambda image, cut=cut, e=embedding, table=table: (
            e.norm(e.linear(cut(image))) + table
        )
        learn(model, drawn, STEPS, BATCH, RATE, seed)
        found[name] = {
            "known": exact_match(model, known()),
            "unseen": exact_match(model, unseen()),
            "dark": exact_match(model, unseen(), change=darker),
        }
    return found, None


def exchanged(model: Reader) -> dict[str, list[float]]:
    """Which is on top? Of numbers of two different digits that were not in training.

    Returns:
        [share read rightly, share read with the two digits exchanged]: for numbers of which the
        exchanged one was in training (`other known`), and for those of which neither was.
    """
    found = {}
    for name, was in (("other known", True), ("other unseen", False)):
        some = [n for n in unseen()[2] if n % 11 and (_turned(n) in known()[2]) == was]
        drawn = draw([some[i % len(some)] for i in range(180)], random.Random(2), two_lines=True)
        names_ = written(model, drawn)
        found[name] = [
            sum(n == words(which(k), "fr") for n, k in zip(names_, drawn.numbers, strict=True))
            / 180
            for which in (int, _turned)
        ]
    return found


def _turned(number: int) -> int:
    return int(str(number)[::-1])


def measure_lines(reader: Reader, seed: int) -> tuple[dict, None]:
    """Two digits above each other: exact match for each kind of position, from the same start.

    Returns:
        kind -> exact match; `exchanged`: kind -> as the function of this name returns it.
    """
    chance = random.Random(seed)
    numbers = [chance.choice(known()[2]) for _ in range(6000)]
    drawn = draw(numbers, chance, two_lines=True)
    shares: dict = {"exchanged": {}}
    for name, positions in LINES.items():
        model = new_reader()
        model.load_state_dict(reader.state_dict())
        model.source_embedding.positions = positions
        learn(model, drawn, LINES_STEPS, 64, 2e-3, seed)
        shares[name] = exact_match(model, {2: unseen()[2]}, two_lines=True)[2]
        shares["exchanged"][name] = exchanged(model)
    return shares, None


def new_language_model(seed: int = 0) -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(len(french()), num_layers=2, **SMALL)


def next_word_loss(model: GPT, image: Tensor, name: Tensor) -> Tensor:
    """Of a language model, which does not look at the picture."""
    return sequence_loss(model(teacher_inputs(name, BOS)), name, PAD)


def measure_flamingo(reader: Reader, seed: int) -> tuple[dict, Flamingo]:
    """A language model of French names learns to see by gated layers alone."""
    chance = random.Random(seed)
    drawn = draw(_mixture(chance, 12_000), chance)
    language_model = new_language_model(seed)
    losses = learn(language_model, drawn, MODEL_STEPS, BATCH, 4e-3, seed, next_word_loss)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Flamingo(language_model.eval(), reader.eval(), **SMALL)
    test = draw(unseen()[3], random.Random(9))
    image, inputs = (
        test.noisy(torch.Generator().manual_seed(0)),
        teacher_inputs(names(test.numbers), BOS),
    )
    before = {key: value.clone() for key, value in language_model.state_dict().items()}
    with torch.no_grad():
        equal = torch.equal(model(image, inputs), language_model(inputs))
    blind = exact_match(model, unseen())
    learn(model, drawn, GATED_STEPS, BATCH, 4e-3, seed)
    frozen = all(torch.equal(v, before[k]) for k, v in language_model.state_dict().items())
    gates = [
        [layer.attention_gate.tanh().item(), layer.network_gate.tanh().item()]
        for layer in model.gated
    ]
    result = {
        "language_model_loss": sum(losses[-20:]) / 20,
        "equal_bit_for_bit": equal,
        "language_model_unchanged": frozen,
        "blind": blind,
        "unseen": exact_match(model, unseen()),
        "gates": gates,
    }
    return result, model


def tower_loss(model: TwoTowers, image: Tensor, name: Tensor) -> Tensor:
    """The contrastive loss; of a number that is there twice, one picture is left out."""
    _, which = name.unique(dim=0, return_inverse=True)
    first = [i for i, each in enumerate(which.tolist()) if each not in which[:i].tolist()]
    return model(image[first], name[first])


@torch.no_grad()
def retrieval(model: TwoTowers, numbers: Sequence[int], seed: int) -> dict[str, float]:
    """How often a picture finds its name among those of all `numbers`, and a name its picture."""
    drawn, own = draw(numbers, random.Random(seed)), torch.arange(len(numbers))
    images = model.of_images(drawn.noisy(torch.Generator().manual_seed(seed)))
    texts = model.of_texts(names(numbers))
    scores = nn.functional.normalize(images, dim=-1) @ nn.functional.normalize(texts, dim=-1).T
    best = scores.topk(5).indices
    return {
        "name": (best[:, 0] == own).float().mean().item(),
        "name in five": (best == own[:, None]).any(1).float().mean().item(),
        "picture": (scores.argmax(0) == own).float().mean().item(),
    }


def measure_towers(reader: Reader, seed: int) -> tuple[dict, TwoTowers]:
    """Pictures and names in one space; the eye begins as the reader's, and goes on learning."""
    chance = random.Random(seed)
    drawn = draw([chance.choice(known()[3]) for _ in range(12_000)], chance)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        eye = new_reader()
        eye.load_state_dict(reader.state_dict())
        eye.requires_grad_(False)
        for part in (eye.source_embedding, eye.encoder, eye.encoder_norm):
            part.requires_grad_(True)
        m = eye.target_embedding.embedding_dim
        model = TwoTowers(eye, BERT(len(french()), num_layers=1, **SMALL), m, 4)
    choices = unseen()[3][:CHOICES]
    before = retrieval(model.eval(), choices, 0)
    learn(model, drawn, TOWER_STEPS, 64, 3e-3, seed, tower_loss)
    rounds = [retrieval(model, choices, seed) for seed in range(5)]  # other pictures of the same
    result = {
        "before": before["name"],
        **{key: sum(each[key] for each in rounds) / len(rounds) for key in rounds[0]},
        "temperature": model.log_temperature.exp().item(),
    }
    return result, model


PARTS = {  # what is measured of each seed; the reader first, for the others begin with it
    "reader": measure_reader,
    "flamingo": measure_flamingo,
    "lines": measure_lines,
    "towers": measure_towers,
    "cuts": measure_cuts,
}

# --- Storing and loading --------------------------------------------------------------------------


def measure(seed: int, folder: Path = DATA) -> dict[str, dict]:
    """Everything, for one seed, on one thread; the first seed's model that sees is stored.

    Returns:
        `reader`, `lines`, `flamingo`, `towers` and `cuts`: what the functions above measured, and
        processor `seconds`.
    """
    torch.set_num_threads(1)
    reader, results = new_reader(seed), {}
    for part, measured_by in PARTS.items():
        start = time.process_time()
        results[part], model = measured_by(reader, seed)
        results[part]["seconds"] = round(time.process_time() - start, 1)
        if part == "flamingo" and seed == 0:
            store(model, folder)
    return results


def store(model: Flamingo, folder: Path = DATA) -> None:
    """Keep a model that sees, with its eye, in half precision."""
    weights = {key: tensor.half().contiguous() for key, tensor in model.state_dict().items()}
    save_file(weights, folder / "pictures.safetensors")


def store_measured(results: Sequence[dict[str, dict]], folder: Path = DATA) -> None:
    """Keep what was measured, one dict a seed; a seed may lack parts."""
    settings = {
        "pictures": PICTURES,
        "steps": STEPS,
        "batch": BATCH,
        "lines_steps": LINES_STEPS,
        "gated_steps": GATED_STEPS,
        "tower_steps": TOWER_STEPS,
        "choices": CHOICES,
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    parts = {part: [_rounded(seed[part]) for seed in results if part in seed] for part in PARTS}
    text = json.dumps({"settings": settings} | parts, ensure_ascii=False, indent=1)
    (folder / "pictures.json").write_text(text + "\n", encoding="utf-8")


def measured(folder: Path = DATA) -> dict:
    """What was measured.

    Returns:
        `reader`, `lines`, `flamingo`, `towers`, `cuts`: one dict a seed, as `measure` returns
        them; keys that count digits are strings. `settings`: steps and sizes.
    """
    return json.loads((folder / "pictures.json").read_text(encoding="utf-8"))


@cache
def flamingo(folder: Path = DATA) -> tuple[Flamingo, Vocabulary]:
    """The stored model that sees, and the words that it knows."""
    model = Flamingo(new_language_model(), new_reader(), **SMALL)
    weights = load_file(folder / "pictures.safetensors")
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return model.eval(), french()


def reader(folder: Path = DATA) -> tuple[Reader, Vocabulary]:
    """The stored reader, which is also that model's eye, and the words that it knows."""
    return flamingo(folder)[0].eye, french()


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def make(seeds: int = SEEDS, folder: Path = DATA, jobs: int = SEEDS) -> None:
    """Train and measure with several seeds side by side; a seed is stored when it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[int, dict] = {}
    queue = [(seed,) for seed in range(seeds)]
    for (seed,), result in side_by_side(partial(measure, folder=folder), queue, jobs, "measuring"):
        results[seed] = result
        store_measured([results[seed] for seed in sorted(results)], folder)


def main() -> None:
    command(
        make,
        "Train chapter 13's models and store what was measured.",
        folder=DATA,
        seeds=(SEEDS, "models of a kind"),
        jobs=(SEEDS, "seeds at a time"),
    )


if __name__ == "__main__":
    main()

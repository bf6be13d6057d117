"""The running task: number names of one language into those of another, word by word."""

import copy
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import torch
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from attncourse import extras

PAD, BOS, EOS = 0, 1, 2  # ids of the three marks that are no words
MARKS = ("<pad>", "<bos>", "<eos>")
MOST_WORDS = 200  # English has 33 number words. A language with more than this glues them together
SEAMS = {"de": "hundert|tausend|und"}  # words that stand inside one long word


def words(number: int, language: str) -> list[str]:
    """Write a number in words: 94 in French is quatre, vingt, quatorze.

    German glues 94 to one word, which is cut again: vier, und, neunzig.

    Args:
        number: the number.
        language: a code that num2words knows, such as "en", "fr", "es" or "vi".

    Raises:
        NotImplementedError: num2words does not know the language, or no name for so large a number.
    """
    try:
        small = abs(number) < 10**12
        converter = _converter(language)
        name = (
            converter.to_cardinal(number) if small else _library().num2words(number, lang=language)
        )
    except (KeyError, NotImplementedError, OverflowError):  # none names the language
        raise NotImplementedError(f"num2words cannot write {number} in {language!r}") from None
    if language in SEAMS:
        name = re.sub(SEAMS[language], r" \g<0> ", name)
    return re.findall(r"[^\s,-]+", name)


def _library():
    return extras.load("notebook", "num2words")


@cache
def _converter(language: str):
    """What num2words uses for a language, for numbers below 10¹².

    For each part of each number it goes through all its names, from 10⁶⁰⁰ down. Here it goes from
    10¹² down, and knows the parts that it has met: names are there in a tenth of the time.
    """
    known = _library().CONVERTER_CLASSES
    converter = copy.copy(known[language if language in known else language[:2]])
    if hasattr(converter, "cards"):
        names = {number: name for number, name in converter.cards.items() if number < 10**12}
        converter.cards = type(converter.cards)(names)
        if type(converter).splitnum is _library().base.Num2Word_Base.splitnum:
            split = converter.splitnum
            converter.splitnum = lru_cache(2**13)(lambda part: [converter.clean(split(part))])
    return converter


def _letters(number: int, language: str) -> list[str]:
    return list(" ".join(words(number, language)))


def _is_glued(language: str) -> bool:
    """Whether the language writes much of a number as one long word."""
    sample = range(0, 10**6, 1999)
    return len({word for number in sample for word in words(number, language)}) > MOST_WORDS


@dataclass(frozen=True)
class Vocabulary:
    """The words a model knows. The id of a word is its place in the list.

    Attributes:
        words: the three marks, then every word in alphabetical order.
    """

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """From words back to ids."""
        return {word: place for place, word in enumerate(self.words)}

    def encode(self, sentence: Sequence[str]) -> list[int]:
        """Turn words into ids.

        Raises:
            ValueError: the vocabulary lacks a word.
        """
        unknown = [word for word in sentence if word not in self.ids]
        if unknown:
            raise ValueError(f"not in the vocabulary: {', '.join(unknown)}")
        return [self.ids[word] for word in sentence]

    def decode(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Turn ids into words, up to the first <eos>; <pad> and <bos> are left out."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if EOS in ids:
            ids = ids[: ids.index(EOS)]
        return [self.words[place] for place in ids if place not in (PAD, BOS)]


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, one row a pair, padded on the right.

    Attributes:
        numbers: the numbers that are written in words.
        source: (b n) ids.
        target: (b t) ids, each row closed by <eos>.
    """

    numbers: tuple[int, ...]
    source: Int[Tensor, "b n"]
    target: Int[Tensor, "b t"]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """Words in each source sentence."""
        return (self.source != PAD).sum(-1)

    def pick(self, rows: Sequence[int] | Tensor) -> "Pairs":
        """Some of the pairs, with no more padding than they need.

        Args:
            rows: their places, or one True or False for every pair, as in `pairs.lengths > 9`.
        """
        rows = torch.as_tensor(rows)
        chosen = rows.nonzero().flatten() if rows.dtype == torch.bool else rows.long()
        source, target = self.source[chosen], self.target[chosen]
        return Pairs(
            tuple(self.numbers[row] for row in chosen.tolist()),
            source[:, (source != PAD).any(0)],
            target[:, (target != PAD).any(0)],
        )

    def spread(self, rows: int) -> "Pairs":
        """So many of the pairs, at equal distances; all, if there are not more."""
        return self.pick(torch.arange(len(self))[:: max(1, len(self) // rows)][:rows])


@dataclass(frozen=True)
class Corpus:
    """A translation task: two vocabularies, and pairs to learn from and to be tested on.

    Attributes:
        source_words, target_words: what may occur on either side.
        train, test: pairs; no number is in both.
    """

    source_words: Vocabulary
    target_words: Vocabulary
    train: Pairs
    test: Pairs


@cache
def corpus(
    source: str = "en",
    target: str = "fr",
    *,
    size: int = 20_000,
    digits: int = 12,
    seed: int = 0,
    progress: bool = False,
) -> Corpus:
    """Make the corpus: number names in two languages, from one digit up to `digits`.

    How many digits a number may have is drawn first, 1 to `digits`, so short numbers occur several
    times. A fifth of all different numbers is held out for the test; of these, the few with a word
    that is not in the training sentences are left out. A language that writes a number as one long
    word, such as Dutch, is cut into letters instead of words.

    Args:
        source, target: codes of languages that num2words knows.
        size: numbers to draw; a fifth of the different ones goes into the test.
        digits: of the longest numbers.
        seed: of the draw. The same arguments always give the same corpus.
        progress: whether to show a progress bar.

    Raises:
        NotImplementedError: num2words does not know one of the languages, or not up to `digits`.
        ValueError: so few numbers that nothing is left for the test.
    """
    if size < 20 or digits < 1:
        raise ValueError(f"a corpus needs size >= 20 and digits >= 1; got {size} and {digits}")
    chance = random.Random(seed)
    draws = [chance.randrange(10 ** chance.randint(1, digits)) for _ in range(size)]
    different = sorted(set(draws))
    held_out = set(chance.sample(different, len(different) // 5))
    write = {language: _letters if _is_glued(language) else words for language in (source, target)}
    names = {}
    for number in tqdm(different, "writing numbers in words", disable=not progress):
        names[number] = write[source](number, source), write[target](number, target)

    train = [number for number in draws if number not in held_out]
    test = sorted(held_out)
    # The vocabulary, too, may know the training sentences only.
    source_words, target_words = (
        Vocabulary((*MARKS, *sorted({word for number in train for word in names[number][side]})))
        for side in (0, 1)
    )

    def pairs(numbers: list[int]) -> Pairs:
        return Pairs(
            tuple(numbers),
            _padded([source_words.encode(names[number][0]) for number in numbers]),
            _padded([[*target_words.encode(names[number][1]), EOS] for number in numbers]),
        )

    known = [
        number
        for number in test
        if set(names[number][0]) <= source_words.ids.keys()
        and set(names[number][1]) <= target_words.ids.keys()
    ]
    if not known:
        raise ValueError(
            f"{len(different)} different numbers are too few: "
            "each of the test's has a word that the training sentences lack; raise size or digits"
        )
    return Corpus(source_words, target_words, pairs(train), pairs(known))


def _padded(rows: list[list[int]]) -> Int[Tensor, "b n"]:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def batches(pairs: Pairs, size: int, seed: int) -> Iterator[Pairs]:
    """Yield batches for ever: shuffled, yet of sentences of similar length, so with little padding.

    Args:
        pairs: to draw from.
        size: pairs in a batch.
        seed: of the shuffling.

    Raises:
        ValueError: `size` < 1, or no pairs.
    """
    if size < 1 or not len(pairs):
        raise ValueError(f"batches need size >= 1 and pairs; got {size} and {len(pairs)} pairs")
    generator = torch.Generator().manual_seed(seed)
    lengths = pairs.lengths + (pairs.target != PAD).sum(-1)
    while True:
        # A little noise on the lengths: other neighbors in every round.
        noise = torch.rand(len(pairs), generator=generator)
        by_length = (lengths + 2 * noise).argsort()
        rows = by_length.split(size)
        for place in torch.randperm(len(rows), generator=generator).tolist():
            yield pairs.pick(rows[place])

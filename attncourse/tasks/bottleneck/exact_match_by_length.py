import functools
import itertools
import numbers
import operator

import torch

from attncourse import bottleneck as reference
from attncourse import training
from attncourse.checks.answer import (
    Failure,
    agree_plain,
    compare_plain,
    following,
    moves_nothing,
    of_the_whole,
)
from attncourse.checks.task import Task
from attncourse.tasks.bottleneck import ids


def chance(rng, highest):
    """A whole number from 0 up to, not including, `highest`."""
    return ids(rng, 1, words=highest).item()


WORDS = ("cent", "deux", "dix", "mille", "quatre", "six", "sept", "trente", "vingt")


# Ways to spoil a translation. Each gets a list of words and gives another one.
SPOILED = {
    "right": lambda words: words,
    "last word missing": lambda words: words[:-1],
    "a word too many": lambda words: [*words, words[0]],
    "two words swapped": lambda words: [*words[:-2], words[-1], words[-2]],
    "first word wrong": lambda words: ["zéro", *words[1:]],
    "last word wrong": lambda words: [*words[:-1], "zéro"],
    "nothing": lambda words: [],
    "all wrong": lambda words: ["zéro"] * len(words),
    "first word missing": lambda words: words[1:],
    "a word in front": lambda words: ["zéro", *words],
}


def translated(rng, *kinds, lengths=None, more=0):
    """Translations, each right or spoiled in the given way; lengths have gaps."""
    right, written = [], []
    for kind in kinds:
        size = 2 + chance(rng, 4) + more
        start, stride = chance(rng, 9), 1 + chance(rng, 8) % 2
        words = [WORDS[(start + stride * place) % 9] for place in range(size)]  # 9 different ones
        right.append(words)
        written.append(list(SPOILED[kind](words)))
    lengths = lengths or [(1, 3, 4, 8)[chance(rng, 4)] for _ in kinds]
    return {"predictions": written, "targets": right, "lengths": lengths}


# First two with the same letters or digits, cut into other words; then two right ones.
CUT_ELSEWHERE = {
    "predictions": [["ab", "c"], [11, 2], ["a", "bc"], [1, 12]],
    "targets": [["a", "bc"], [1, 12], ["a", "bc"], [1, 12]],
    "lengths": [2, 2, 4, 2],
}


def probes(rng):
    every = list(SPOILED)
    rights = ["right"] * 4
    return {
        "mixed": translated(rng, *every, *rights, *every, *rights),
        "all right": translated(rng, *rights, *rights),
        "missing words": translated(rng, "last word missing", "right", "last word missing"),
        "words too many": translated(rng, "a word too many", "right", "a word too many"),
        "another order": translated(rng, "two words swapped", "right", "two words swapped"),
        "last words": translated(rng, "last word wrong", "right", "last word wrong"),
        "first words": translated(rng, "first word wrong", "right", "first word wrong"),
        "none right": translated(rng, *every[1:]),
        "right, then wrong": translated(
            rng, "right", "right", "all wrong", "right", "all wrong", lengths=[4, 4, 4, 2, 2]
        ),
        "wrong, then right": translated(
            rng, "all wrong", "right", "all wrong", "right", "right", lengths=[4, 4, 6, 6, 6]
        ),
        "far apart": translated(rng, "right", "all wrong", "right", "right", lengths=[2, 9, 9, 5]),
        "ids": {
            "predictions": [[5, 6, 2], [5, 6], [7, 2]],
            "targets": [[5, 6, 2], [5, 2], [7, 2]],
            "lengths": [3, 3, 1],
        },
        "thirds": translated(
            rng, *rights, "all wrong", *rights, lengths=[7, 7, 7, 2, 7, 7, 2, 2, 2]
        ),
        "cut elsewhere": CUT_ELSEWHERE,
    }


def small(rng):
    def example(predictions, targets, lengths):
        sides = ([list(text) for text in side] for side in (predictions, targets))
        return dict(zip(("predictions", "targets", "lengths"), (*sides, lengths), strict=True))

    yield example(["a"], ["a"], [1])
    yield example(["b"], ["a"], [1])
    yield example(["a"], ["a"], [2])
    for prediction in ("a", "abb", "ba", "cb", "ac", ""):
        yield example([prediction], ["ab"], [2])
    yield example(["a", "b"], ["a", "a"], [1, 1])
    yield example(["b", "a"], ["a", "a"], [1, 1])
    yield example(["a", "b"], ["a", "a"], [1, 3])
    yield example(["a", "a", "b"], ["a", "a", "a"], [2, 2, 2])
    yield example(["a", "b", "b"], ["a", "a", "a"], [2, 2, 2])
    for _ in range(4):
        yield translated(rng, *list(SPOILED)[:5])


def traits(answer):
    inputs = {"predictions": [["a"], ["b"]], "targets": [["a"], ["a"]]}
    first = answer(inputs | {"lengths": [1, 2]})
    answer(inputs | {"lengths": [2, 1]})
    return {"differs from call to call": answer(inputs | {"lengths": [1, 2]}) != first}


task = Task(
    reference.exact_match_by_length,
    number=5,
    returns=dict,
    difficulty=1,
    minutes=10,
    section="the-cliff",
    probes=probes,
    small=small,
    ready_made=(training.shares_by,),
    traits=traits,
)


def counts(answer, inputs):
    """`matches`, but for lengths that do not occur: these have a check of their own."""
    got, expected = answer(inputs), answer.expected(inputs)
    shares = {length: share for length, share in got.items() if length in expected}
    if not agree_plain(shares, expected):
        with of_the_whole(), following(lambda: leaves_nothing_over(answer)):
            compare_plain(got, expected, inputs)


def leaves_nothing_over(answer):
    moves_nothing(answer, translated(torch.Generator().manual_seed(0), *SPOILED, "right"))


@task.check(1)
def it_returns_a_dictionary_of_shares(answer, rng):
    for inputs in (
        translated(rng, *SPOILED, "right", "right", lengths=[4, 2, 4, 7] * 3),
        translated(rng, "right", "right", "all wrong", "right", lengths=[2, 2, 2, 2]),
    ):
        shares = answer(inputs)
        for share in shares.values():
            if not isinstance(share, numbers.Real | torch.Tensor) or not 0 <= share <= 1:
                raise Failure(f"Every share lies between 0 and 1; got {shares}.", inputs)


@task.check(1)
def right_sentences_are_counted_by_their_length(answer, rng):
    for _ in range(3):
        counts(answer, translated(rng, *["right", "all wrong", "right"] * 5))
    every = ["right", "right", "all wrong"]
    counts(answer, translated(rng, *every, lengths=[3, 3, 3]))
    counts(answer, translated(rng, *every[::-1], lengths=[3, 3, 3]))


@task.check(1)
def one_wrong_word_makes_a_sentence_wrong(answer, rng):
    for kind in ("first word wrong", "last word wrong", "all wrong"):
        for more in (0, 15):  # long translations, too
            kinds = kind, "right", kind, "right"
            counts(answer, translated(rng, *kinds, lengths=[2, 2, 5, 5], more=more))


@task.check(1, "missing words, extra words and their order count")
def missing_words_extra_words_and_their_order_count(answer, rng):
    for kind in (
        "last word missing",
        "first word missing",
        "a word too many",
        "a word in front",
        "two words swapped",
        "nothing",
    ):
        counts(answer, translated(rng, kind, "right", kind, "right", lengths=[2, 2, 5, 5]))


@task.check(1)
def every_length_that_occurs_is_there_and_no_other(answer, rng):
    inputs = translated(rng, "right", "all wrong", "right", "right", lengths=[9, 2, 4, 9])
    more = translated(rng, "nothing", "last word missing", lengths=[5, 7])
    with following(lambda: leaves_nothing_over(answer)):
        for each in (inputs, {name: inputs[name] + more[name] for name in inputs}):
            shares = answer(each)
            due = sorted(set(each["lengths"]))
            if sorted(map(str, shares)) != list(map(str, due)):
                first, last = ", ".join(map(str, due[:-1])), due[-1]
                raise Failure(
                    f"The sentences have lengths {first} and {last}; yours are {list(shares)}. "
                    "A length without a right translation has the share 0.",
                    each,
                    answer.expected(each),
                    shares,
                )
    answer.holds_of_the_right(inputs)


@task.check(1)
def words_may_be_ids(answer, rng):
    numbers = {word: place for place, word in enumerate((*WORDS, "zéro"))}
    inputs = translated(rng, *SPOILED, "right", "right")
    in_ids = {
        name: [[numbers[word] for word in words] for words in inputs[name]]
        for name in ("predictions", "targets")
    }
    with following(lambda: counts(answer, inputs)):
        counts(answer, inputs | in_ids)
        counts(answer, CUT_ELSEWHERE)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, translated(rng, *SPOILED, "right"))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Matches:
    def counts(prediction, target):
        return True

    def read(prediction, target, length):
        return prediction, target

    def verdict(prediction, target):
        return float(prediction == target)

    def key(length, prediction, target):
        return length

    def collect(verdicts, lengths):
        found = {}
        for verdict, length in zip(verdicts, lengths, strict=True):
            found.setdefault(length, []).append(verdict)
        return found

    def share(verdicts, found):
        return sum(verdicts) / len(verdicts)

    def number(share):
        return share

    def result(shares, found):
        return shares

    def __call__(self, predictions, targets, lengths):
        verdicts, keys = [], []
        for prediction, target, length in zip(predictions, targets, lengths, strict=True):
            if not self.counts(prediction, target):
                continue
            prediction, target = self.read(prediction, target, length)
            verdicts.append(self.verdict(prediction, target))
            keys.append(self.key(length, prediction, target))
        found = self.collect(verdicts, keys)
        shares = {length: self.number(self.share(each, found)) for length, each in found.items()}
        return self.result(shares, found)


# --- faults: when a translation is right ----------------------------------------------------------


def right_words(prediction, target):
    return sum(p == t for p, t in zip(prediction, target, strict=False))


def hits_and_words(prediction, target):
    return right_words(prediction, target), len(target)


def hits_over_words(verdicts, found):
    hits, words = zip(*verdicts, strict=True)
    return sum(hits) / sum(words)


def glued(words):
    return "".join(map(str, words))


task.fault(
    "C-SHARE-OF-WORDS",
    verdict=(
        lambda prediction, target: right_words(prediction, target) / len(target),
        lambda prediction, target: (
            right_words(prediction, target) / max(len(prediction), len(target))
        ),
        hits_and_words,
    ),
    share=(..., ..., hits_over_words),
)
task.fault("C-COUNTS-WORDS", verdict=right_words)
task.fault(
    "C-ZIP-STOPS-EARLY",
    verdict=lambda prediction, target: float(
        right_words(prediction, target) == min(len(prediction), len(target))
    ),
)
task.fault(
    "C-PREFIX-OF-PREDICTION",
    verdict=lambda prediction, target: float(prediction[: len(target)] == target),
)
task.fault(
    "C-PREFIX-OF-TARGET",
    verdict=lambda prediction, target: float(target[: len(prediction)] == prediction),
)
task.fault(
    "C-CONTAINED",
    verdict=lambda prediction, target: float(all(word in prediction for word in target)),
)
task.fault(
    "C-ANY-ORDER",
    verdict=(
        lambda prediction, target: float(sorted(prediction) == sorted(target)),
        lambda prediction, target: float(set(prediction) == set(target)),
    ),
)
task.fault("C-GLUED", verdict=lambda prediction, target: float(glued(prediction) == glued(target)))
task.fault(
    "C-ANY-WORD",
    verdict=(
        lambda prediction, target: float(right_words(prediction, target) > 0),
        lambda prediction, target: float(bool(set(prediction) & set(target))),
    ),
)
task.fault("C-FIRST-WORD", verdict=lambda prediction, target: float(prediction[:1] == target[:1]))
task.fault(
    "C-SAME-LENGTH-IS-ENOUGH",
    verdict=lambda prediction, target: float(len(prediction) == len(target)),
)
task.fault(
    "S-STRIP-EOS",
    section="bottleneck-breaks",
    read=lambda prediction, target, length: (prediction[:-1], target[:-1]),
)
task.fault(
    "C-STRIPS-BOS",
    section="bottleneck-breaks",
    read=lambda prediction, target, length: (prediction[1:], target[1:]),
)
task.fault(
    "C-STRIPS-ONE-SIDE",
    section="bottleneck-breaks",
    read=lambda prediction, target, length: (prediction[:-1], target),
)
task.fault(
    "C-STRIPS-THE-TARGET",
    section="bottleneck-breaks",
    read=lambda prediction, target, length: (prediction, target[:-1]),
)
task.fault(
    "C-STRIPS-BOS-OF-ONE",
    section="bottleneck-breaks",
    read=lambda prediction, target, length: (prediction[1:], target),
)
task.fault(
    "C-CUT-TO-LENGTH",
    read=(
        lambda prediction, target, length: (prediction[:length], target[:length]),
        lambda prediction, target, length: (prediction[:length], target),
    ),
)
task.fault("C-ERROR-RATE", verdict=lambda prediction, target: float(prediction != target))

# --- faults: sentences of one length --------------------------------------------------------------


def with_gaps(start):
    """Entries of 0 for all lengths between the one it gives and the longest."""
    return lambda shares, found: dict.fromkeys(range(start(found), max(found) + 1), 0.0) | shares


task.fault(
    "C-OWN-LENGTHS",
    key=(
        lambda length, prediction, target: len(target),
        lambda length, prediction, target: len(prediction),
    ),
)
task.fault("C-BUCKETS", key=lambda length, prediction, target: length // 4 * 4)
task.fault("C-LENGTHS-AS-TEXT", key=lambda length, prediction, target: str(length))
task.fault(
    "C-ZEROS-MISSING",
    result=lambda shares, found: {length: share for length, share in shares.items() if share},
)
task.fault(
    "C-GAPS-FILLED", result=(with_gaps(lambda found: 0), with_gaps(lambda found: 1), with_gaps(min))
)
task.fault("C-EMPTY-LEFT-OUT", counts=lambda prediction, target: bool(prediction))
task.fault(
    "C-OTHER-SIZES-LEFT-OUT", counts=lambda prediction, target: len(prediction) == len(target)
)


def entered_nowhere(verdicts, lengths):
    found = {}
    for verdict, length in zip(verdicts, lengths, strict=True):
        found[length].append(verdict)
    return found


@task.fault("C-KEY-NEVER-MADE", collect=entered_nowhere)
def counts_hits_from_nothing(predictions, targets, lengths):
    hits = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        if prediction == target:
            hits[length] += 1
    return hits


def neighbors(verdicts, lengths):
    found = {}
    for length, each in itertools.groupby(zip(lengths, verdicts, strict=True), lambda x: x[0]):
        found[length] = [verdict for _, verdict in each]
    return found


task.fault("C-NEIGHBORS-GROUPED", collect=neighbors)
task.fault("C-LAST-ONE-WINS", share=lambda verdicts, found: verdicts[-1])
task.fault("C-FIRST-ONE-COUNTS", share=lambda verdicts, found: verdicts[0])
task.fault(
    "C-FIRST-NOT-COUNTED",
    share=(
        lambda verdicts, found: sum(verdicts[1:]) / max(1, len(verdicts) - 1),
        lambda verdicts, found: sum(verdicts[1:]) / len(verdicts),
    ),
)
task.fault(
    "C-HALVES",
    share=lambda verdicts, found: functools.reduce(lambda old, new: (old + new) / 2, verdicts),
)
task.fault(
    "C-HALVES-FROM-ZERO",
    share=lambda verdicts, found: functools.reduce(lambda old, new: (old + new) / 2, verdicts, 0),
)

# --- faults: the share ----------------------------------------------------------------------------


def of_all(verdicts):
    return sum(map(sum, verdicts)), sum(map(len, verdicts))


task.fault(
    "C-COUNTS-FROM-ONE",
    share=(
        lambda verdicts, found: sum(verdicts) / (len(verdicts) + 1),
        lambda verdicts, found: (sum(verdicts) + 1) / len(verdicts),
    ),
)
task.fault("C-PERCENT", number=lambda share: 100 * share)
task.fault("C-COUNTS", share=lambda verdicts, found: sum(verdicts))
task.fault(
    "C-RIGHT-OVER-WRONG",
    share=(
        lambda verdicts, found: sum(verdicts) / (len(verdicts) - sum(verdicts)),
        lambda verdicts, found: sum(verdicts) / max(1, len(verdicts) - sum(verdicts)),
    ),
)
task.fault(
    "C-PAIR-OF-NUMBERS",
    share=(
        lambda verdicts, found: (sum(verdicts), len(verdicts)),
        lambda verdicts, found: [sum(verdicts), len(verdicts)],
    ),
)
task.fault(
    "C-VERDICTS-KEPT",
    share=(
        lambda verdicts, found: verdicts,
        lambda verdicts, found: [bool(verdict) for verdict in verdicts],
    ),
)
task.fault("C-LIST-OF-PAIRS", result=lambda shares, found: list(shares.items()))
task.fault(
    "C-SHARE-OF-ALL", share=lambda verdicts, found: sum(verdicts) / of_all(found.values())[1]
)
task.fault(
    "C-SHARE-OF-RIGHT",
    share=(
        lambda verdicts, found: sum(verdicts) / max(1, of_all(found.values())[0]),
        lambda verdicts, found: sum(verdicts) / of_all(found.values())[0],
    ),
)
task.fault(
    "C-DIVIDED-BY-LENGTH",
    result=lambda shares, found: {length: sum(found[length]) / length for length in found},
)
task.fault("C-ALL-OR-NOTHING", share=lambda verdicts, found: float(all(verdicts)))
task.fault("C-ONE-IS-ENOUGH", share=lambda verdicts, found: float(any(verdicts)))
task.fault("C-ROUNDED", number=(lambda share: round(share, 2), lambda share: round(share, 1)))
task.fault("C-ONE-MEAN", share=lambda verdicts, found: operator.truediv(*of_all(found.values())))

# --- faults: what stays between calls, and what is edited -----------------------------------------


@task.fault("C-TALLY-OF-ALL-CALLS")
class TallyOfAllCalls(Matches):
    def __init__(self):
        self.found = {}

    def collect(self, verdicts, lengths):
        for verdict, length in zip(verdicts, lengths, strict=True):
            self.found.setdefault(length, []).append(verdict)
        return self.found


@task.fault("C-EATS-THE-LISTS")
class EatsTheLists(Matches):
    def __call__(self, predictions, targets, lengths):
        shares = super().__call__(predictions, targets, lengths)
        for each in (predictions, targets, lengths):
            each.clear()
        return shares

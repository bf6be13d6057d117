"""Counting, for each length, the translations without any error."""

import functools
import numbers
import operator

import torch

from attncourse import bottleneck as reference
from attncourse import training
from attncourse.checks.answer import Failure, moves_nothing
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
    hints=(
        "For each sentence: is the translation the target, word for word? Python compares two "
        "lists with ==. Then collect these verdicts by length.",
        "A dictionary from length to a list of verdicts keeps everything needed: sentences of "
        "that length and how many are right. A length whose sentences are all wrong is in it, "
        "too.",
        "verdicts = {}; for each prediction, target and length (zip gives all three): append "
        "prediction == target to the list of its length. Then, for each length: the sum of "
        "its list divided by its size.",
    ),
    probes=probes,
    small=small,
    ready_made=(training.shares_by,),
    traits=traits,
)


@task.check(1)
def it_returns_a_share_for_each_length(answer, rng):
    inputs = translated(rng, *SPOILED, "right", "right", lengths=[4, 2, 4, 7] * 3)
    shares = answer(inputs)
    for share in shares.values():
        if not isinstance(share, numbers.Real | torch.Tensor) or not 0 <= share <= 1:
            raise Failure(f"Every share lies between 0 and 1; got {shares}.", inputs)


@task.check(1)
def right_sentences_are_counted_by_their_length(answer, rng):
    for _ in range(3):
        answer.matches(translated(rng, *["right", "all wrong", "right"] * 5))
    every = ["right", "right", "all wrong"]
    answer.matches(translated(rng, *every, lengths=[3, 3, 3]))
    answer.matches(translated(rng, *every[::-1], lengths=[3, 3, 3]))


@task.check(1)
def one_wrong_word_makes_a_sentence_wrong(answer, rng):
    for kind in ("first word wrong", "last word wrong", "all wrong"):
        for more in (0, 15):  # long translations, too
            kinds = kind, "right", kind, "right"
            answer.matches(translated(rng, *kinds, lengths=[2, 2, 5, 5], more=more))


@task.check(1)
def missing_words_extra_words_and_their_order_count(answer, rng):
    for kind in (
        "last word missing",
        "first word missing",
        "a word too many",
        "a word in front",
        "two words swapped",
        "nothing",
    ):
        answer.matches(translated(rng, kind, "right", kind, "right", lengths=[2, 2, 5, 5]))


@task.check(1)
def every_length_that_occurs_is_there_and_no_other(answer, rng):
    inputs = translated(rng, "right", "all wrong", "right", "right", lengths=[9, 2, 4, 9])
    shares = answer(inputs)
    if sorted(map(str, shares)) != ["2", "4", "9"]:
        raise Failure(
            f"The sentences have lengths 2, 4 and 9; yours are {list(shares)}. "
            "A length without a right translation has the share 0.",
            inputs,
            {2: 0.0, 4: 1.0, 9: 1.0},
            shares,
        )
    answer.matches(inputs)


@task.check(1)
def words_may_be_ids(answer, rng):
    numbers = {word: place for place, word in enumerate((*WORDS, "zéro"))}
    inputs = translated(rng, *SPOILED, "right", "right")
    for name in ("predictions", "targets"):
        inputs[name] = [[numbers[word] for word in words] for words in inputs[name]]
    answer.matches(inputs)
    answer.matches(CUT_ELSEWHERE)


@task.check(1)
def the_lists_stay_as_they_were(answer, rng):
    moves_nothing(answer, translated(rng, *SPOILED, "right"))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Matches:
    def read(prediction, target):
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

    def result(shares, found):
        return shares

    def __call__(self, predictions, targets, lengths):
        verdicts, keys = [], []
        for prediction, target, length in zip(predictions, targets, lengths, strict=True):
            prediction, target = self.read(prediction, target)
            verdicts.append(self.verdict(prediction, target))
            keys.append(self.key(length, prediction, target))
        found = self.collect(verdicts, keys)
        shares = {length: self.share(each, found) for length, each in found.items()}
        return self.result(shares, found)


# --- faults: when a translation is right ----------------------------------------------------------


def right_words(prediction, target):
    return sum(p == t for p, t in zip(prediction, target, strict=False))


def words_by_length(predictions, targets, lengths):
    hits, words = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        hits[length] += right_words(prediction, target)
        words[length] += len(target)
    return {length: hits[length] / words[length] for length in hits}


def glued(words):
    return "".join(map(str, words))


task.fault(
    "C-SHARE-OF-WORDS",
    "A translation with 9 of 10 words right counts 0.9.",
    "A number with one wrong word is a wrong number. Exact match counts whole sentences: 1 without "
    "any error, else 0.",
    verdict=(
        lambda prediction, target: right_words(prediction, target) / len(target),
        lambda prediction, target: (
            right_words(prediction, target) / max(len(prediction), len(target))
        ),
    ),
)(words_by_length)
task.fault(
    "C-ZIP-STOPS-EARLY",
    "Two sentences are equal if all pairs of words are equal.",
    "`zip` stops at the shorter one, so the beginning of a sentence counts as the whole, and an "
    "empty translation as right. Words that are missing or too many are errors.",
    verdict=lambda prediction, target: float(
        right_words(prediction, target) == min(len(prediction), len(target))
    ),
)
task.fault(
    "C-PREFIX-OF-PREDICTION",
    "What comes after the last word of the target does not matter.",
    "A translation that goes on after the number is another number, or none. A word too many is an "
    "error, too.",
    verdict=lambda prediction, target: float(prediction[: len(target)] == target),
)
task.fault(
    "C-PREFIX-OF-TARGET",
    "What was written is right as far as it goes.",
    "A translation that stops too early is the name of another number, or of none; an empty one "
    "would always be right. A missing word is an error, too.",
    verdict=lambda prediction, target: float(target[: len(prediction)] == prediction),
)
task.fault(
    "C-CONTAINED",
    "A translation is right if every word of the target occurs in it.",
    "Then words may be added, and their order does not count: “cent deux” is 102, and “deux cent” "
    "is 200. Compare the lists as they are.",
    verdict=lambda prediction, target: float(all(word in prediction for word in target)),
)
task.fault(
    "C-ANY-ORDER",
    "A translation with the same words is right.",
    "The order belongs to it: “cent deux” is 102, and “deux cent” is 200. Compare the lists as "
    "they are.",
    verdict=(
        lambda prediction, target: float(sorted(prediction) == sorted(target)),
        lambda prediction, target: float(set(prediction) == set(target)),
    ),
)
task.fault(
    "C-GLUED",
    "Glued together, equal sentences are equal texts.",
    "So they are, and some unequal ones, too: “ab c” and “a bc”, or the ids 1 12 and 11 2, give "
    "the same text. Compare the lists, or keep a mark between the words.",
    verdict=lambda prediction, target: float(glued(prediction) == glued(target)),
)
task.fault(
    "C-ANY-WORD",
    "A translation with a right word in it counts.",
    "A number with one wrong word is a wrong number. All words must be right, not any.",
    verdict=(
        lambda prediction, target: float(right_words(prediction, target) > 0),
        lambda prediction, target: float(bool(set(prediction) & set(target))),
    ),
)
task.fault(
    "C-FIRST-WORD",
    "The first word shows whether a translation is right.",
    "It may begin well and go wrong later; the longer the sentence, the likelier. All its words "
    "have to be compared.",
    verdict=lambda prediction, target: float(prediction[:1] == target[:1]),
)
task.fault(
    "C-SAME-LENGTH-IS-ENOUGH",
    "A translation of the right length matches.",
    "Length says how the results are sorted, not whether one is right. A translation matches if "
    "all its words do.",
    verdict=lambda prediction, target: float(len(prediction) == len(target)),
)
task.fault(
    "S-STRIP-EOS",
    "The last token is <eos>, so I cut it off before I compare.",
    "These are lists of words, and their <eos> is gone already. You cut off a real word, and "
    "whether it was right no longer counts.",
    section="bottleneck-breaks",
    read=lambda prediction, target: (prediction[:-1], target[:-1]),
)
task.fault(
    "C-STRIPS-BOS",
    "The first token is <bos>, so I cut it off before I compare.",
    "These are lists of words, and no mark stands in front of them. You cut off a real word, and "
    "whether it was right no longer counts.",
    section="bottleneck-breaks",
    read=lambda prediction, target: (prediction[1:], target[1:]),
)
task.fault(
    "C-STRIPS-ONE-SIDE",
    "The decoder's output still ends with <eos>; the target does not.",
    "Both lists come without marks. Cut on one side only, right translations count as wrong, and "
    "those with a word too many as right.",
    section="bottleneck-breaks",
    read=lambda prediction, target: (prediction[:-1], target),
)
task.fault(
    "C-ERROR-RATE",
    "The result is how often the translator fails.",
    "That is 1 minus what is asked for. Exact match is 1 for a perfect translator.",
    verdict=lambda prediction, target: float(prediction != target),
)

# --- faults: sentences of one length --------------------------------------------------------------


def with_gaps(start):
    """Entries of 0 for all lengths between the one it gives and the longest."""
    return lambda shares, found: dict.fromkeys(range(start(found), max(found) + 1), 0.0) | shares


task.fault(
    "C-OWN-LENGTHS",
    "The length of a sentence is the length of its list.",
    "`lengths` says by what to sort, such as the words of the source; a target has another number "
    "of words. You never look at `lengths`.",
    key=(
        lambda length, prediction, target: len(target),
        lambda length, prediction, target: len(prediction),
    ),
)
task.fault(
    "C-BUCKETS",
    "Neighboring lengths are put together: 0–3, 4–7, …",
    "That is done later, where a table has to be short. Here every length has a share of its own.",
    key=lambda length, prediction, target: length // 4 * 4,
)
task.fault(
    "C-LENGTHS-AS-TEXT",
    'The keys of the result are names, such as "4".',
    "The lengths come as whole numbers and go back as such: a curve is drawn over numbers, and as "
    "texts “10” stands before “9”.",
    key=lambda length, prediction, target: str(length),
)
task.fault(
    "C-ZEROS-MISSING",
    "Every right translation is entered under its length.",
    "Then a length of which no sentence is right has no entry, and the curve ends before it "
    "reaches 0. These are the lengths we want to see.",
    result=lambda shares, found: {length: share for length, share in shares.items() if share},
)
task.fault(
    "C-GAPS-FILLED",
    "Every length up to the longest gets an entry, 0 where there is no sentence.",
    "A share of 0 says that all were wrong. Of a length without sentences nothing is known, so it "
    "has no entry.",
    result=(with_gaps(lambda found: 0), with_gaps(lambda found: 1), with_gaps(min)),
)
task.fault(
    "C-EMPTY-LEFT-OUT",
    "Where nothing was written there is nothing to compare.",
    "A translator that says nothing has failed. Left out, its failures make the share larger; an "
    "empty translation counts as a wrong one.",
    key=lambda length, prediction, target: length if prediction else None,
    result=lambda shares, found: {length: shares[length] for length in shares if length},
)
task.fault(
    "C-OTHER-SIZES-LEFT-OUT",
    "Only translations of the right number of words can be compared.",
    "One with a word too many or too few is wrong, and counts as that. Left out, it makes the "
    "share larger than it is.",
    key=lambda length, prediction, target: length if len(prediction) == len(target) else None,
    result=lambda shares, found: {length: shares[length] for length in shares if length},
)


def entered_nowhere(verdicts, lengths):
    found = {}
    for verdict, length in zip(verdicts, lengths, strict=True):
        found[length].append(verdict)
    return found


@task.fault(
    "C-KEY-NEVER-MADE",
    "A dictionary starts each new key at 0, or with an empty list.",
    "A plain `dict` raises a KeyError for a key that it has never met. `get` and `setdefault` take "
    "a first value, and so does a `defaultdict`.",
    collect=entered_nowhere,
)
def counts_hits_from_nothing(predictions, targets, lengths):
    hits = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        if prediction == target:
            hits[length] += 1
    return hits


task.fault(
    "C-LAST-ONE-WINS",
    "For each sentence, `shares[length] = verdict`.",
    "A key of a dictionary holds one value: every sentence overwrites the one before, and only the "
    "last of each length counts. Collect them first.",
    share=lambda verdicts, found: verdicts[-1],
)
task.fault(
    "C-FIRST-ONE-COUNTS",
    "For each sentence, `shares.setdefault(length, verdict)`.",
    "`setdefault` writes only where nothing stands yet: the first sentence of each length decides, "
    "and all others are ignored. Collect them first.",
    share=lambda verdicts, found: verdicts[0],
)
task.fault(
    "C-FIRST-NOT-COUNTED",
    "`if length not in found` makes the entry, `else` counts.",
    "Then the first sentence of each length only opens the entry and is never counted. Make the "
    "entry if it is missing, and count in any case.",
    share=(
        lambda verdicts, found: sum(verdicts[1:]) / max(1, len(verdicts) - 1),
        lambda verdicts, found: sum(verdicts[1:]) / len(verdicts),
    ),
)
task.fault(
    "C-HALVES",
    "The mean is updated as (old + new) / 2.",
    "Then the last sentence counts half, the one before a quarter, and so on. In a mean all count "
    "the same; keep sum and number apart.",
    share=lambda verdicts, found: functools.reduce(lambda old, new: (old + new) / 2, verdicts),
)
task.fault(
    "C-HALVES-FROM-ZERO",
    "The mean starts at 0 and is updated as (old + new) / 2.",
    "Then even a length without any error never reaches 1, and the last sentence counts half. In a "
    "mean all count the same; keep sum and number apart.",
    share=lambda verdicts, found: functools.reduce(lambda old, new: (old + new) / 2, verdicts, 0),
)

# --- faults: the share ----------------------------------------------------------------------------


def of_all(verdicts):
    return sum(map(sum, verdicts)), sum(map(len, verdicts))


task.fault(
    "C-PERCENT",
    "A share is given in percent.",
    "Here it is a number between 0 and 1; whoever prints it may multiply by 100.",
    share=lambda verdicts, found: 100 * sum(verdicts) / len(verdicts),
)
task.fault(
    "C-COUNTS",
    "The result says how many sentences of each length are right.",
    "Lengths are not equally frequent, so counts cannot be compared. Divide by the number of "
    "sentences of that length.",
    share=lambda verdicts, found: sum(verdicts),
)
task.fault(
    "C-RIGHT-OVER-WRONG",
    "A share is the right ones divided by the wrong ones.",
    "That is a ratio, as in a bet: 3 to 1. A share divides by all sentences of that length, the "
    "right and the wrong ones together.",
    share=(
        lambda verdicts, found: sum(verdicts) / (len(verdicts) - sum(verdicts)),
        lambda verdicts, found: sum(verdicts) / max(1, len(verdicts) - sum(verdicts)),
    ),
)
task.fault(
    "C-PAIR-OF-NUMBERS",
    "The result keeps two numbers for each length: right ones and all.",
    "With both one can compute the share, and that is what is asked for: one number between 0 and "
    "1 for each length.",
    share=(
        lambda verdicts, found: (sum(verdicts), len(verdicts)),
        lambda verdicts, found: [sum(verdicts), len(verdicts)],
    ),
)
task.fault(
    "C-VERDICTS-KEPT",
    "A list of verdicts for each length says everything.",
    "It does, and it is the step before the last one. A share is one number for each length: how "
    "many of its verdicts are right, divided by how many there are.",
    share=(
        lambda verdicts, found: verdicts,
        lambda verdicts, found: [bool(verdict) for verdict in verdicts],
    ),
)
task.fault(
    "C-LIST-OF-PAIRS",
    "A list of pairs (length, share) is as good.",
    "It holds the same numbers. But whoever wants the share of length 7 has to look for it; a "
    "dictionary finds it by its key, and a dictionary is asked for.",
    result=lambda shares, found: list(shares.items()),
)
task.fault(
    "C-SHARE-OF-ALL",
    "The share is taken of all sentences.",
    "Then the shares of all lengths add up to one number, and a rare length looks bad. Each length "
    "has a total of its own.",
    share=lambda verdicts, found: sum(verdicts) / of_all(found.values())[1],
)
task.fault(
    "C-SHARE-OF-RIGHT",
    "Divide the right ones of a length by all right ones.",
    "That says how right sentences are spread over lengths. The question is: of the sentences with "
    "this length, how many are right?",
    share=(
        lambda verdicts, found: sum(verdicts) / max(1, of_all(found.values())[0]),
        lambda verdicts, found: sum(verdicts) / of_all(found.values())[0],
    ),
)
task.fault(
    "C-DIVIDED-BY-LENGTH",
    "The share of a length is its right ones divided by the length.",
    "The length is the number of words in one sentence, not the number of sentences. Divide by how "
    "many sentences have that length.",
    result=lambda shares, found: {length: sum(found[length]) / length for length in found},
)
task.fault(
    "C-ALL-OR-NOTHING",
    "A length gets 1 if all its sentences are right, and else 0.",
    "The share may lie between: with two right ones of three it is 2/3. `all` drops the fraction, "
    "and so does the division `//`. The curve would be a step.",
    share=lambda verdicts, found: float(all(verdicts)),
)
task.fault(
    "C-ONE-IS-ENOUGH",
    "A length gets 1 as soon as one of its sentences is right.",
    "One hit may be luck, or the easiest sentence of that length. The share says how many of them "
    "are right: count all.",
    share=lambda verdicts, found: float(any(verdicts)),
)
task.fault(
    "C-ROUNDED",
    "A share is rounded, as in a table.",
    "Rounding is for printing. Here it makes thirds unequal to thirds: whoever goes on computing "
    "needs all digits.",
    share=(
        lambda verdicts, found: round(sum(verdicts) / len(verdicts), 2),
        lambda verdicts, found: round(sum(verdicts) / len(verdicts), 1),
    ),
)
task.fault(
    "C-ONE-MEAN",
    "All lengths get the mean over all sentences.",
    "One mean hides what we want to see: short sentences right, long ones wrong. Each length needs "
    "its own.",
    share=lambda verdicts, found: operator.truediv(*of_all(found.values())),
)

# --- faults: what stays between calls, and what is edited -----------------------------------------


@task.fault(
    "C-TALLY-OF-ALL-CALLS",
    "`found={}` in the line of `def` makes an empty dictionary for each call.",
    "Python makes it once, when the function is defined. The second call adds to the verdicts of "
    "the first. Make it inside the function.",
)
class TallyOfAllCalls(Matches):
    def __init__(self):
        self.found = {}

    def collect(self, verdicts, lengths):
        for verdict, length in zip(verdicts, lengths, strict=True):
            self.found.setdefault(length, []).append(verdict)
        return self.found


@task.fault(
    "C-EATS-THE-LISTS",
    "Taking the sentences off their lists one by one is a loop, too.",
    "`pop` empties the caller's lists; whoever wants to look at the errors afterwards finds none. "
    "Go through them with `zip` instead.",
)
class EatsTheLists(Matches):
    def __call__(self, predictions, targets, lengths):
        shares = super().__call__(predictions, targets, lengths)
        for each in (predictions, targets, lengths):
            each.clear()
        return shares

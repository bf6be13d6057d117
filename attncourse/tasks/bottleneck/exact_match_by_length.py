"""exact_match_by_length."""

import numbers

import torch

from attncourse import bottleneck as reference
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


def match_probes(rng):
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
    }


def match_small(rng):
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


def match_traits(answer):
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
    probes=match_probes,
    small=match_small,
    traits=match_traits,
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


@task.check(1)
def the_lists_stay_as_they_were(answer, rng):
    moves_nothing(answer, translated(rng, *SPOILED, "right"))


# --- faults ---------------------------------------------------------------------------------------


def shares(verdicts, lengths):
    """Mean of the verdicts for each length."""
    found = {}
    for verdict, length in zip(verdicts, lengths, strict=True):
        found.setdefault(length, []).append(float(verdict))
    return {length: sum(found[length]) / len(found[length]) for length in sorted(found)}


def right_words_by_longer(predictions, targets, lengths):
    verdicts = [
        sum(p == t for p, t in zip(prediction, target, strict=False))
        / max(len(prediction), len(target))
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


def right_words_of_all(predictions, targets, lengths):
    hits, words = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        hits[length] += sum(p == t for p, t in zip(prediction, target, strict=False))
        words[length] += len(target)
    return {length: hits[length] / words[length] for length in hits}


@task.fault(
    "C-SHARE-OF-WORDS",
    thinks="A translation with 9 of 10 words right counts 0.9.",
    why="A number with one wrong word is a wrong number. Exact match counts whole sentences: "
    "1 without any error, else 0.",
    forms=(right_words_by_longer, right_words_of_all),
)
def share_of_words(predictions, targets, lengths):
    verdicts = [
        sum(p == t for p, t in zip(prediction, target, strict=False)) / len(target)
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


@task.fault(
    "C-ZIP-STOPS-EARLY",
    thinks="Two sentences are equal if all pairs of words are equal.",
    why="`zip` stops at the shorter one, so the beginning of a sentence counts as the whole, and "
    "an empty translation as right. Words that are missing or too many are errors.",
)
def compares_pairs(predictions, targets, lengths):
    verdicts = [
        all(p == t for p, t in zip(prediction, target, strict=False))
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


@task.fault(
    "C-PREFIX-OF-PREDICTION",
    thinks="What comes after the last word of the target does not matter.",
    why="A translation that goes on after the number is another number, or none. A word too many "
    "is an error, too.",
)
def ignores_extra_words(predictions, targets, lengths):
    verdicts = [
        prediction[: len(target)] == target
        for prediction, target in zip(predictions, targets, strict=True)
    ]
    return shares(verdicts, lengths)


def same_words_as_sets(predictions, targets, lengths):
    verdicts = [set(p) == set(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-ANY-ORDER",
    thinks="A translation with the same words is right.",
    why="The order belongs to it: “cent deux” is 102, and “deux cent” is 200. Compare the lists as "
    "they are.",
    forms=(same_words_as_sets,),
)
def same_words_in_any_order(predictions, targets, lengths):
    verdicts = [sorted(p) == sorted(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-SAME-LENGTH-IS-ENOUGH",
    thinks="A translation of the right length matches.",
    why="Length says how the results are sorted, not whether one is right. A translation matches "
    "if all its words do.",
)
def compares_lengths_only(predictions, targets, lengths):
    verdicts = [len(p) == len(t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "S-STRIP-EOS",
    thinks="The last token is <eos>, so I cut it off before I compare.",
    why="These are lists of words, and their <eos> is gone already. You cut off a real word, and "
    "whether it was right no longer counts.",
    section="bottleneck-breaks",
)
def cuts_both(predictions, targets, lengths):
    verdicts = [p[:-1] == t[:-1] for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-STRIPS-ONE-SIDE",
    thinks="The decoder's output still ends with <eos>; the target does not.",
    why="Both lists come without marks. Cut on one side only, right translations count as wrong, "
    "and those with a word too many as right.",
    section="bottleneck-breaks",
)
def cuts_the_prediction(predictions, targets, lengths):
    verdicts = [p[:-1] == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-PERCENT",
    thinks="A share is given in percent.",
    why="Here it is a number between 0 and 1; whoever prints it may multiply by 100.",
)
def in_percent(predictions, targets, lengths):
    verdicts = [100 * (p == t) for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-COUNTS",
    thinks="The result says how many sentences of each length are right.",
    why="Lengths are not equally frequent, so counts cannot be compared. Divide by the number of "
    "sentences of that length.",
)
def counts_of_right_ones(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return found


@task.fault(
    "C-SHARE-OF-ALL",
    thinks="The share is taken of all sentences.",
    why="Then the shares of all lengths add up to one number, and a rare length looks bad. Each "
    "length has a total of its own.",
)
def divides_by_all_sentences(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return {length: hits / len(targets) for length, hits in found.items()}


@task.fault(
    "C-SHARE-OF-RIGHT",
    thinks="Divide the right ones of a length by all right ones.",
    why="That says how right sentences are spread over lengths. The question is: of the sentences "
    "with this length, how many are right?",
)
def divides_by_all_right_ones(predictions, targets, lengths):
    found = dict.fromkeys(sorted(lengths), 0)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] += prediction == target
    return {length: hits / max(1, sum(found.values())) for length, hits in found.items()}


def by_length_of_the_prediction(predictions, targets, lengths):
    return by_length_of(predictions, predictions, targets)


def by_length_of(rows, predictions, targets):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, [len(row) for row in rows])


@task.fault(
    "C-OWN-LENGTHS",
    thinks="The length of a sentence is the length of its list.",
    why="`lengths` says by what to sort, such as the words of the source; a target has another "
    "number of words. You never look at `lengths`.",
    forms=(by_length_of_the_prediction,),
)
def by_length_of_the_target(predictions, targets, lengths):
    return by_length_of(targets, predictions, targets)


@task.fault(
    "C-ZEROS-MISSING",
    thinks="Every right translation is entered under its length.",
    why="Then a length of which no sentence is right has no entry, and the curve ends before it "
    "reaches 0. These are the lengths we want to see.",
)
def only_lengths_with_hits(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: share for length, share in shares(verdicts, lengths).items() if share}


def all_lengths_from_one(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(range(1, max(lengths) + 1), 0.0) | shares(verdicts, lengths)


def all_lengths_between(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    gaps = dict.fromkeys(range(min(lengths), max(lengths) + 1), 0.0)
    return gaps | shares(verdicts, lengths)


@task.fault(
    "C-GAPS-FILLED",
    thinks="Every length up to the longest gets an entry, 0 where there is no sentence.",
    why="A share of 0 says that all were wrong. Of a length without sentences nothing is known, so "
    "it has no entry.",
    forms=(all_lengths_from_one, all_lengths_between),
)
def all_lengths_up_to_the_longest(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(range(max(lengths) + 1), 0.0) | shares(verdicts, lengths)


def counts_hits_from_nothing(predictions, targets, lengths):
    hits = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        if prediction == target:
            hits[length] += 1
    return hits


@task.fault(
    "C-KEY-NEVER-MADE",
    thinks="A dictionary starts each new key at 0, or with an empty list.",
    why="A plain `dict` raises a KeyError for a key that it has never met. `get` and `setdefault` "
    "take a first value, and so does a `defaultdict`.",
    forms=(counts_hits_from_nothing,),
)
def key_never_made(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length].append(prediction == target)
    return found


@task.fault(
    "C-LAST-ONE-WINS",
    thinks="For each sentence, `shares[length] = verdict`.",
    why="A key of a dictionary holds one value: every sentence overwrites the one before, and only "
    "the last of each length counts. Collect them first.",
)
def last_sentence_wins(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found[length] = float(prediction == target)
    return found


@task.fault(
    "C-FIRST-ONE-COUNTS",
    thinks="For each sentence, `shares.setdefault(length, verdict)`.",
    why="`setdefault` writes only where nothing stands yet: the first sentence of each length "
    "decides, and all others are ignored. Collect them first.",
)
def first_sentence_counts(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found.setdefault(length, float(prediction == target))
    return found


@task.fault(
    "C-HALVES",
    thinks="The mean is updated as (old + new) / 2.",
    why="Then the last sentence counts half, the one before a quarter, and so on. In a mean all "
    "count the same; keep sum and number apart.",
)
def halves(predictions, targets, lengths):
    found = {}
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        verdict = float(prediction == target)
        found[length] = (found[length] + verdict) / 2 if length in found else verdict
    return found


@task.fault(
    "C-ALL-OR-NOTHING",
    thinks="A length gets 1 if all its sentences are right, and else 0.",
    why="The share may lie between: with two right ones of three it is 2/3. `all` drops the "
    "fraction, and so does the division `//`. The curve would be a step.",
)
def whole_division(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: float(share == 1) for length, share in shares(verdicts, lengths).items()}


@task.fault(
    "C-ONE-IS-ENOUGH",
    thinks="A length gets 1 as soon as one of its sentences is right.",
    why="One hit may be luck, or the easiest sentence of that length. The share says how many of "
    "them are right: count all.",
)
def one_hit_is_enough(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return {length: float(share > 0) for length, share in shares(verdicts, lengths).items()}


@task.fault(
    "C-BUCKETS",
    thinks="Neighboring lengths are put together: 0–3, 4–7, …",
    why="That is done later, where a table has to be short. Here every length has a share of its "
    "own.",
)
def in_buckets(predictions, targets, lengths):
    verdicts = [p == t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, [length // 4 * 4 for length in lengths])


@task.fault(
    "C-ERROR-RATE",
    thinks="The result is how often the translator fails.",
    why="That is 1 minus what is asked for. Exact match is 1 for a perfect translator.",
)
def error_rate(predictions, targets, lengths):
    verdicts = [p != t for p, t in zip(predictions, targets, strict=True)]
    return shares(verdicts, lengths)


@task.fault(
    "C-ONE-MEAN",
    thinks="All lengths get the mean over all sentences.",
    why="One mean hides what we want to see: short sentences right, long ones wrong. Each length "
    "needs its own.",
)
def one_mean_for_all(predictions, targets, lengths):
    verdicts = [float(p == t) for p, t in zip(predictions, targets, strict=True)]
    return dict.fromkeys(sorted(lengths), sum(verdicts) / len(verdicts))


@task.fault(
    "C-TALLY-OF-ALL-CALLS",
    thinks="`found={}` in the line of `def` makes an empty dictionary for each call.",
    why="Python makes it once, when the function is defined. The second call adds to the verdicts "
    "of the first. Make it inside the function.",
)
def tally_of_all_calls(predictions, targets, lengths, found={}):  # noqa: B006
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        found.setdefault(length, []).append(float(prediction == target))
    return {length: sum(verdicts) / len(verdicts) for length, verdicts in found.items()}


@task.fault(
    "C-EATS-THE-LISTS",
    thinks="Taking the sentences off their lists one by one is a loop, too.",
    why="`pop` empties the caller's lists; whoever wants to look at the errors afterwards finds "
    "none. Go through them with `zip` instead.",
)
def eats_the_lists(predictions, targets, lengths):
    verdicts, order = [], []
    while targets:
        verdicts.append(predictions.pop() == targets.pop())
        order.append(lengths.pop())
    return shares(verdicts, order)

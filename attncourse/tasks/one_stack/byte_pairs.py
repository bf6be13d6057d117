import contextlib
import functools
import itertools
import math
from collections import Counter

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks.one_stack import merged, merged_as_text, merged_from_the_right, merged_once

LOW = {"low": 5, "lower": 2, "newest": 6, "widest": 3}  # of Sennrich et al. (2016)


def learned(num_merges, **words):
    return {"words": words, "num_merges": num_merges}


def drawn(rng, num_merges, letters="abcd", words=6, longest=6):
    """Made-up words of a few letters, so that pairs are often equally frequent."""
    import torch

    def number(high, low=0):
        return torch.randint(low, high, (), generator=rng, device="cpu").item()

    made = {}
    for _ in range(words):
        word = "".join(letters[number(len(letters))] for _ in range(number(longest + 1, 2)))
        made[word] = number(6, 1)
    return {"words": made, "num_merges": num_merges}


def probes(rng):
    return {
        "low, lower, newest, widest": {"words": LOW, "num_merges": 10},
        "counts differ": learned(1, ab=1, bc=2),
        "one word, once": learned(3, hundred=1),
        "twice in a word": learned(1, abxab=2, cd=3),
        "a run": learned(4, aaaa=3, baaab=2),
        "a run against a pair": learned(1, aaa=2, bc=3),
        "a run of three": learned(2, aaa=3, aab=2, bb=4),
        "a tie, met in the other order": learned(2, cd=2, ab=2),
        "a tie on the left": learned(2, ac=1, ab=1),
        "a tie of a letter and a piece": learned(3, xyb=9, za=2, xya=2),
        "a tie of two pieces": learned(4, dea=9, dec=8, bca=9, bcc=8),
        "a tie, left against right": learned(1, ad=2, bc=2, ca=1),
        "a piece that is born twice": learned(9, abc=4, bcx=5, xabc=3, aab=4, xaab=1),
        "borders of words": learned(3, ab=3, ba=3, b=9),
        "pieces inside pieces": learned(5, cab=5, ab=7, dcab=2, xcaxb=3, caab=4),
        "nothing is left": learned(20, abc=2, cb=1),
        "no pair at all": learned(4, a=3, b=1),
        "no merges": learned(0, abc=3, ab=2),
        "drawn": drawn(rng, 8),
        "drawn, two letters": drawn(rng, 8, "ab"),
        "drawn, many letters": drawn(rng, 8, "hgfedcba", 8),
        "drawn, long words": drawn(rng, 10, "cab", 4, 12),
    }


def small(rng):
    yield learned(1, ab=1)
    yield learned(2, ab=1)
    yield learned(1, ab=1, cd=2)
    yield learned(1, cd=1, ab=1)
    yield learned(2, abc=1)
    yield learned(2, aaa=1)
    yield learned(2, abab=1)
    yield learned(2, ba=2, ab=2)
    yield learned(3, abc=1, bc=2)
    for _ in range(6):
        yield drawn(rng, 3, "abc", 3, 4)


def traits(answer):
    inputs = learned(2, abc=2, bcd=3)
    first = answer(inputs)
    return {
        "differs from call to call": answer(inputs) != first,
        "pairs are texts": any(isinstance(pair, str) for pair in first),
    }


task = Task(
    reference.byte_pairs,
    number=1,
    returns=list,
    difficulty=3,
    minutes=25,
    section="byte-level",
    probes=probes,
    small=small,
    traits=traits,
)


TIES = (
    (learned(2, cd=2, ab=2), "both occur twice; a is older than c"),
    (learned(2, ac=2, ab=2), "the same left piece; b is older than c"),
    (learned(1, ad=2, bc=2), "the left piece decides first"),
    (learned(3, xyb=9, za=2, xya=2), "among equals, letters are older than pieces"),
    (learned(4, dea=9, dec=8, bca=9, bcc=8), "pieces by their birth, not by the alphabet"),
)


def as_frequent(got, inputs):
    """Whether each pair is among the most frequent ones, and none is missing or too much."""
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in got):
        return False
    words = {word: list(word) for word in inputs["words"]}
    for place in range(inputs["num_merges"] + 1):
        counts = Counter()
        for word, pieces in words.items():
            for pair in itertools.pairwise(pieces):
                counts[pair] += inputs["words"][word]
        if place == len(got):
            return place == inputs["num_merges"] or not counts
        if not counts or counts[tuple(got[place])] < max(counts.values()):
            return False
        words = {word: merged(pieces, got[place]) for word, pieces in words.items()}
    return False


def learns(answer, inputs, what, equals=False):
    """Assert that the answer learns what is expected.

    Which of equals wins has a check (`equals`): elsewhere an answer that fails there may choose.
    """
    got, expected = answer(inputs), answer.expected(inputs)
    if not equals and got != expected and as_frequent(got, inputs):
        with contextlib.suppress(Failure):
            for each, _ in TIES:
                learns(answer, each, "", equals=True)
            equals = True
        if not equals:
            return
    for place, (ours, theirs) in enumerate(itertools.zip_longest(expected, got)):
        if isinstance(theirs, list):
            theirs = tuple(theirs)
        if ours != theirs:
            should = "should not be there" if ours is None else f"should be {ours}"
            found = "your list ends before it" if theirs is None else f"yours is {theirs}"
            raise Failure(
                f"Pair {place}, counted from 0, {should}; {found} ({what}).",
                inputs,
                expected,
                got,
                whole="result",
                open=equals and not as_frequent(got, inputs),
            )


@task.check(1)
def it_returns_a_list_of_pairs(answer):
    inputs = {"words": LOW, "num_merges": 4}
    for pair in answer(inputs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Failure(
                f"Each entry is a pair (left piece, right piece); one of yours is {pair!r}.", inputs
            )
        if not all(isinstance(piece, str) and piece for piece in pair):
            raise Failure(f"A piece is a text; one of your pairs is {pair!r}.", inputs)


@task.check(2)
def the_most_frequent_pair_is_merged_first(answer):
    learns(answer, learned(1, ab=1, bc=2), "bc occurs twice, ab once")
    learns(answer, learned(1, ab=5, cd=3, xcd=4), "cd stands in two words, 7 times in all")
    learns(answer, learned(1, abxab=2, cd=3), "ab stands twice in a word")
    learns(answer, learned(1, aaa=2, bc=3), "aa stands twice in aaa")


@task.check(2)
def each_round_sees_what_the_rounds_before_merged(answer):
    learns(answer, learned(2, abc=4, bx=1), "after ab, the word abc is made of ab and c")
    learns(answer, {"words": LOW, "num_merges": 3}, "low, lower, newest, widest")
    learns(answer, learned(5, cab=5, ab=7, dcab=2, xcaxb=3, caab=4), "pieces inside pieces")


@task.check(1, "a pair is merged from the left, wherever it stands and nowhere else")
def a_pair_is_merged_from_the_left_wherever_it_stands_and_nowhere_else(answer):
    learns(answer, learned(4, aaaa=3, baaab=2), "a run of one letter")
    learns(answer, learned(3, ababx=3, xc=1), "twice in one word")
    learns(answer, learned(4, cab=5, ab=6, xaab=2), "pieces that end alike")
    learns(answer, learned(3, ab=10, abc=2, bc=5), "ab and c are no pair (b, c)")


@task.check(1)
def words_stay_apart(answer):
    with following(lambda: learns(answer, learned(2, ab=3), "")):  # nothing is left to merge
        learns(answer, learned(3, ab=3, ba=3, b=9), "a word's end and the next word's begin")


@task.check(2)
def among_equals_the_oldest_pieces_win(answer, rng):
    for inputs, what in TIES:
        learns(answer, inputs, what, equals=True)
    for _ in range(6):
        inputs = drawn(rng, 6)
        often = {word: 2 * count for word, count in inputs["words"].items()}  # no pair occurs once
        learns(answer, {**inputs, "words": often}, "made-up words", equals=True)


@task.check(1)
def it_ends_when_nothing_is_left_to_merge(answer):
    learns(answer, learned(20, abc=2, cb=1), "three pairs make every word one piece")
    learns(answer, learned(4, a=3, b=1), "words of one letter have no pairs")
    learns(answer, learned(0, abc=3), "no merges were asked for")


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, {"words": LOW, "num_merges": 6})


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Learning:
    def count(words):
        return dict(words)

    def letters(word):
        return list(word)

    def ages(words):
        return {letter: place for place, letter in enumerate(sorted(set().union(*words)))}

    def neighbors(parts):
        return list(itertools.pairwise(parts))

    def tally(self, pieces, counts):
        pairs = Counter()
        for word, parts in pieces.items():
            for pair in self.neighbors(parts):
                pairs[pair] += counts[word]
        return pairs

    def leave(pairs):
        return not pairs

    def choose(pairs, age):
        return min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))

    def born(age, piece):
        age.setdefault(piece, len(age))

    def merge(parts, pair):
        return merged(parts, pair)

    def rounds(num_merges, letters):
        return range(num_merges)

    def say(pair):
        return pair

    def result(merges):
        return merges

    def __call__(self, words, num_merges):
        counts = self.count(words)
        pieces = {word: self.letters(word) for word in words}
        age, merges = self.ages(words), []
        for _ in self.rounds(num_merges, len(age)):
            pairs = self.tally(pieces, counts)
            if self.leave(pairs):
                break
            pair = self.choose(pairs, age)
            self.born(age, "".join(pair))
            merges.append(self.say(pair))
            pieces = {word: self.merge(parts, pair) for word, parts in pieces.items()}
        return self.result(merges)


# --- faults: counting ---------------------------------------------------------------------------

task.fault("B-EACH-WORD-ONCE", count=lambda words: dict.fromkeys(words, 1))
task.fault("B-ONCE-A-WORD", neighbors=lambda parts: list(dict.fromkeys(itertools.pairwise(parts))))
task.fault(
    "B-NO-OVERLAP",
    neighbors=lambda parts: [
        pair
        for place, pair in enumerate(itertools.pairwise(parts))
        if not (
            pair[0] == pair[1]
            and sum(1 for _ in itertools.takewhile(pair[0].__eq__, parts[:place][::-1])) % 2
        )
    ],
)
task.fault(
    "B-EVERY-SECOND",
    neighbors=lambda parts: list(zip(parts[::2], parts[1::2], strict=False)),
)
task.fault("B-ANY-DISTANCE", neighbors=lambda parts: list(itertools.combinations(parts, 2)))
task.fault("B-LETTER-PAIRS-ONLY")(lambda words, num_merges: most_common(words, num_merges))


def most_common(words, num_merges):
    pairs = Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            pairs[pair] += count
    return sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:num_merges]


across = task.fault("B-ACROSS-WORDS")


@across
def in_one_text(words, num_merges):
    return Learning()({"".join(word * count for word, count in words.items()): 1}, num_merges)


@across
class Joined(Learning):
    def tally(self, pieces, counts):
        pairs = Learning.tally(self, pieces, counts)
        known = list(counts)
        for one, two in itertools.pairwise(known):
            pairs[one[-1], two[0]] += 1
        return pairs

    def choose(pairs, age):
        known = [pair for pair in pairs if pair[0] in age and pair[1] in age]
        return Learning.choose({pair: pairs[pair] for pair in known}, age)


# --- faults: choosing ---------------------------------------------------------------------------

task.fault(
    "B-FIRST-MET",
    choose=(
        lambda pairs, age: max(pairs, key=pairs.get),
        lambda pairs, age: pairs.most_common(1)[0][0],
        lambda pairs, age: max(reversed(pairs), key=pairs.get),
    ),
)
task.fault(
    "B-ALPHABET", choose=lambda pairs, age: min(pairs, key=lambda pair: (-pairs[pair], pair))
)
task.fault(
    "B-YOUNGEST",
    choose=(
        lambda pairs, age: max(pairs, key=lambda p: (pairs[p], age[p[0]], age[p[1]])),
        lambda pairs, age: max(pairs, key=lambda p: (pairs[p], age[p[0]], -age[p[1]])),
        lambda pairs, age: max(pairs, key=lambda p: (pairs[p], -age[p[0]], age[p[1]])),
    ),
)
task.fault(
    "B-LAST-IN-THE-ALPHABET",
    choose=(lambda pairs, age: max(pairs, key=lambda p: (pairs[p], p)), ...),
    ages=(
        ...,
        lambda words: {
            letter: place for place, letter in enumerate(sorted(set().union(*words), reverse=True))
        },
    ),
)
task.fault(
    "B-RIGHT-BEFORE-LEFT",
    choose=lambda pairs, age: min(pairs, key=lambda p: (-pairs[p], age[p[1]], age[p[0]])),
)
task.fault(
    "B-LEFT-ONLY",
    choose=lambda pairs, age: max(pairs, key=lambda pair: (pairs[pair], -age[pair[0]])),
)
task.fault(
    "B-SHORTER-IS-OLDER",
    choose=(
        lambda pairs, age: min(pairs, key=lambda p: (-pairs[p], len(p[0]), p[0], len(p[1]), p[1])),
        lambda pairs, age: min(
            pairs, key=lambda p: (-pairs[p], len(p[0] + p[1]), age[p[0]], age[p[1]])
        ),
    ),
)
task.fault(
    "B-AGES-ADDED",
    choose=lambda pairs, age: min(pairs, key=lambda p: (-pairs[p], age[p[0]] + age[p[1]])),
)
task.fault("B-PIECES-FIRST", born=lambda age, piece: age.setdefault(piece, -len(age)))
task.fault(
    "B-AGE-BY-OCCURRENCE",
    ages=lambda words: {
        letter: age for age, letter in enumerate(dict.fromkeys(itertools.chain(*words)))
    },
)


@task.fault("B-WORDPIECE")
class WordPiece(Learning):
    def tally(self, pieces, counts):
        alone = Counter()
        for word, parts in pieces.items():
            for piece in parts:
                alone[piece] += counts[word]
        pairs = super().tally(pieces, counts)
        return Counter({(a, b): n / (alone[a] * alone[b]) for (a, b), n in pairs.items()})


task.fault(
    "B-LEAST-FREQUENT",
    choose=lambda pairs, age: min(pairs, key=lambda p: (pairs[p], age[p[0]], age[p[1]])),
)
task.fault(
    "B-LONGEST-PIECE",
    choose=lambda pairs, age: min(
        pairs, key=lambda p: (-pairs[p], -len(p[0] + p[1]), age[p[0]], age[p[1]])
    ),
)
# --- faults: merging ----------------------------------------------------------------------------

task.fault("B-NOT-MERGED", merge=lambda parts, pair: parts)
task.fault("B-MERGED-ONCE", merge=merged_once)


def _ages_as_met(pairs, age):
    """Pieces that no merge has made are born when they are met."""
    for pair in pairs:
        for piece in pair:
            age.setdefault(piece, len(age))
    return Learning.choose(pairs, age)


def _ages_of_known(pairs, age):
    """Pieces that no merge has made are the youngest of all."""
    return Learning.choose(pairs, {piece: age.get(piece, math.inf) for p in pairs for piece in p})


task.fault("B-TEXT-REPLACED", merge=merged_as_text, choose=(..., _ages_as_met, _ages_of_known))
task.fault("B-FROM-THE-RIGHT", merge=merged_from_the_right)

# What tokenizers and students mark a word with; some are older than its letters, some younger.
MARKS = ("_", "</w>", "▁", "Ġ", "<w>", "#", "$", "^", " ", "·", "<s>", "</s>", "@@")


def _with_marks(words):
    """The ages of letters, and of letters with a mark."""
    joined = {side for word in words for x in word for m in MARKS for side in (m + x, x + m)}
    return Learning.ages([*words, joined])


def _and_marks(words):
    """The ages of letters and marks."""
    return Learning.ages([*words, MARKS])


def _marked(*ways):
    return tuple(functools.partial(way, mark) for way in ways for mark in MARKS)


AGES_OF_MARKED = tuple(ages for ages in (_and_marks, _with_marks) for _ in MARKS)


task.fault(
    "B-END-MARK",
    letters=_marked(
        lambda mark, word: [*word, mark],
        lambda mark, word: [*word[:-1], word[-1:] + mark],
    ),
    ages=AGES_OF_MARKED,
)
task.fault(
    "B-MARK-IN-FRONT",
    letters=_marked(
        lambda mark, word: [mark, *word],
        lambda mark, word: [mark + word[:1], *word[1:]],
    ),
    ages=AGES_OF_MARKED,
)

# --- faults: the end ----------------------------------------------------------------------------

task.fault("B-AT-LEAST-TWICE", leave=lambda pairs: not pairs or max(pairs.values()) < 2)
task.fault("B-ONE-MERGE-LESS", rounds=lambda num_merges, letters: range(1, num_merges))
task.fault("B-NO-END", leave=lambda pairs: False)
task.fault("B-PIECES", say=lambda pair: "".join(pair))
task.fault("B-PAIR-TURNED", say=lambda pair: pair[::-1])
task.fault("B-LAST-ONLY", result=lambda merges: merges[-1:])
task.fault("B-SIZE-OF-VOCABULARY", rounds=lambda num_merges, letters: range(num_merges - letters))


@task.fault("B-USES-UP-WORDS")
class UsesUp(Learning):
    def __call__(self, words, num_merges):
        merges = super().__call__(dict(words), num_merges)
        for word in list(words):
            words["-".join(word)] = words.pop(word)
        return merges

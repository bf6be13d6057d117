from itertools import pairwise

from attncourse import one_stack as reference
from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.task import Task
from attncourse.one_stack import byte_letters, byte_words
from attncourse.tasks.one_stack import merged, merged_as_text, merged_from_the_right, merged_once

# Learned from a text about numbers, so to speak; Ġ is the blank before a word.
NAMES = [
    *(("n", "d"), ("h", "u"), ("r", "e"), ("hu", "nd"), ("hund", "re"), ("hundre", "d")),
    *(("Ġ", "hundred"), ("Ġ", "f"), ("o", "u"), ("ou", "r"), ("Ġf", "our")),
]
RUNS = [("a", "a"), ("aa", "a"), ("a", "b")]
BLANKS = [("Ġ", "Ġ"), ("Ġ", "b"), ("ĠĠ", "Ġ"), ("a", "Ġ"), ("Ċ", "Ċ")]
ACCENTS = [("Ã", "©"), ("t", "Ã©"), ("æ", "ķ")]  # é is two bytes, 数 begins with these two
ORDER = [("b", "c"), ("a", "b"), ("a", "bc"), ("c", "d"), ("bc", "d")]
TWICE = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("abc", "d"), ("x", "abc")]
ENDS = [("a", "b"), ("c", "a"), ("b", "ca"), ("ca", "b"), ("b", "b")]


def of(text, merges=()):
    return {"text": text, "merges": [tuple(pair) for pair in merges]}


def drawn(rng, merges, letters, length=12):
    import torch

    places = torch.randint(len(letters), (length,), generator=rng, device="cpu").tolist()
    return of("".join(letters[place] for place in places), merges)


def probes(rng):
    return {
        "bytes": of("ab z"),
        "an accent and a sign": of("é数!"),
        "accents, merged": of("été 数", ACCENTS),
        "a face": of("🙂"),
        "control characters": of("a\x00\n\tb\x7f\xa0\xad"),
        "names": of("one hundred four", NAMES),
        "a new word": of("hundreds of fourths", NAMES),
        "a blank at the start": of(" hundred", NAMES),
        "capitals": of("Hundred FOUR", NAMES),
        "runs": of("aaaaa aab", RUNS),
        "blanks": of("a  b   c \n\n b", BLANKS),
        "blanks at the ends": of("  ab  ", BLANKS),
        "a merge across a blank": of("a b", [("a", "Ġ"), ("Ġ", "b"), ("aĠ", "b")]),
        "the order of the merges": of("abcd bcd", ORDER),
        "a piece that is born twice": of("abcd bc xabc", TWICE),
        "pieces that end alike": of("cab abca cabb", ENDS),
        "nothing": of("", NAMES),
        "drawn": drawn(rng, ORDER, "abcd "),
        "drawn, runs": drawn(rng, RUNS, "ab"),
        "drawn, twice": drawn(rng, TWICE, "abcdx ", 16),
        "drawn, ends": drawn(rng, ENDS, "abc", 14),
    }


def small(rng):
    yield of("a")
    yield of(" ")
    yield of("é")
    yield of("ab", [("a", "b")])
    yield of("a b", [("a", "b")])
    yield of("aaa", [("a", "a")])
    yield of("abab", [("a", "b")])
    yield of("abc", [("b", "c"), ("a", "b")])
    yield of("a b", [("a", "Ġ")])
    yield of("a  b", [("Ġ", "b"), ("Ġ", "Ġ")])
    yield of("cab", [("c", "a"), ("a", "b")])
    yield of("cab", [("c", "a"), ("b", "a"), ("a", "b")])
    yield of("abc", TWICE[:4])
    for _ in range(6):
        yield drawn(rng, ORDER, "abcd ", 6)
        yield drawn(rng, ENDS, "abc", 6)


def traits(answer):
    ids = answer(of("ab", [("a", "b")]))
    return {"whole numbers": all(type(each) is int for each in ids)}


task = Task(
    reference.encode_text,
    number=2,
    returns=list,
    difficulty=2,
    minutes=15,
    section="byte-level",
    probes=probes,
    small=small,
    traits=traits,
)


def encodes(answer, inputs):
    got, expected = answer(inputs), answer.expected(inputs)
    for each in got:
        if isinstance(each, list | tuple | str):
            said = f"Each entry is an id, a whole number; one of yours is {each!r}."
            with following(lambda: it_returns_a_list_of_ids(answer)):
                raise Failure(said, inputs)
    if list(got) != expected:
        raise Failure(
            f"{inputs['text']!r} has the ids {expected}; yours are {list(got)}.",
            inputs,
            expected,
            got,
            whole="result",
        )


@task.check(1)
def it_returns_a_list_of_ids(answer):
    for text in ("a", "ab z", ""):
        ids = answer(of(text))
        for each in ids:
            if isinstance(each, bool) or not isinstance(each, int):
                raise Failure(f"An id is a whole number; one of yours is {each!r}.", of(text))


@task.check(1)
def without_merges_every_byte_has_its_id(answer):
    for text in ("ab z", "é数!", "🙂", "a\x00\n\tb\x7f\xa0\xad", "Ab, 104.", " ab "):
        encodes(answer, of(text))


@task.check(2)
def neighbors_are_merged_in_the_order_of_the_merges(answer, rng):
    for inputs in (
        of("one hundred four", NAMES),
        of("hundreds of fourths", NAMES),
        of("abcd bcd", ORDER),
        of("abc cabc", [("b", "c"), ("a", "b")]),
        of("cab", ENDS),
        *(evenly(drawn(rng, ORDER, "abcd ")) for _ in range(4)),
    ):
        encodes(answer, inputs)


def evenly(inputs):
    """One blank between words: what becomes of others has a check of its own."""
    return inputs | {"text": " ".join(inputs["text"].split())}


@task.check(1, "a pair is merged from the left, wherever it stands and nowhere else")
def a_pair_is_merged_from_the_left_wherever_it_stands_and_nowhere_else(answer, rng):
    encodes(answer, of("aaaaa aab", RUNS))
    encodes(answer, of("abab xab", [("a", "b")]))
    encodes(answer, of("cab abca cabb", ENDS))
    for _ in range(4):
        encodes(answer, drawn(rng, RUNS, "ab"))
        encodes(answer, drawn(rng, ENDS, "abc", 14))


def merges_rightly(answer):
    for inputs in (of("one hundred four", NAMES), of("abcd bcd", ORDER), of("aaaaa aab", RUNS)):
        encodes(answer, inputs)


@task.check(1)
def nothing_is_merged_across_a_blank_and_no_blank_is_lost(answer):
    with following(lambda: merges_rightly(answer)):
        for text in ("a  b   c \n\n b", "  ab  ", "a b"):
            encodes(answer, of(text, BLANKS))
        encodes(answer, of("a b", [("a", "Ġ"), ("Ġ", "b"), ("aĠ", "b")]))


@task.check(1)
def any_text_has_ids(answer):
    with following(lambda: merges_rightly(answer)):
        for text in ("été 数", "Hundred FOUR", "", "ŭnknown"):
            encodes(answer, of(text, ACCENTS + NAMES))


@task.check(1)
def a_piece_has_one_id(answer, rng):
    with following(lambda: merges_rightly(answer)):
        encodes(answer, of("abcd bc xabc", TWICE))
        for _ in range(4):
            encodes(answer, evenly(drawn(rng, TWICE, "abcdx ", 16)))


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, of("one hundred four", NAMES))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Encoding:
    def read(text):
        return text

    def cut(text):
        return byte_words(text)

    def letters(word):
        return list(word)

    def alphabet(words):
        return sorted(byte_letters())

    def named(merges):
        return map("".join, merges)

    def number(letters, merged):
        return {piece: place for place, piece in enumerate(dict.fromkeys([*letters, *merged]))}

    def learned(merges):
        return merges

    def merge(pieces, pair):
        return merged(pieces, pair)

    def pieces(self, word, merges):
        parts = self.letters(word)
        for pair in self.learned(merges):
            parts = self.merge(parts, pair)
        return parts

    def look_up(ids, piece):
        return ids[piece]

    def result(ids):
        return [each for part in ids for each in part]

    def __call__(self, text, merges):
        words = self.cut(self.read(text))
        ids = self.number(self.alphabet(words), self.named(merges))
        words = [self.pieces(word, merges) for word in words]
        return self.result([[self.look_up(ids, piece) for piece in word] for word in words])


# --- faults: cutting ----------------------------------------------------------------------------

LETTER = byte_letters()

task.fault(
    "B-CHARACTERS",
    cut=(
        lambda text: ["".join(LETTER[min(ord(letter), 255)] for letter in text)] if text else [],
        lambda text: text.replace(" ", " Ġ").split(" "),
    ),
    look_up=(..., lambda ids, piece: ids.get(piece, 0), lambda ids, piece: ids[piece]),
)
task.fault(
    "B-BLANKS-LOST",
    cut=(
        lambda text: [part for word in text.split() for part in byte_words(word)],
        lambda text: byte_words(" ".join(text.split())),
        lambda text: [part for word in text.split(" ") for part in byte_words(word)],
        lambda text: [word.lstrip("Ġ") for word in byte_words(text)],
    ),
)
task.fault(
    "B-BLANK-APART",
    cut=lambda text: [
        part
        for word in byte_words(text)
        for part in (["Ġ", word[1:]] if word[0] == "Ġ" and word != "Ġ" else [word])
    ],
)
task.fault("B-NOT-CUT", cut=lambda text: ["".join(byte_words(text))])
task.fault("B-LOWERED", read=(lambda text: text.lower(), lambda text: text.casefold()))
task.fault("B-STRIPPED", read=lambda text: text.strip())
task.fault(
    "B-BLANK-IN-FRONT",
    read=(
        lambda text: " " + text,
        lambda text: text if text.startswith(" ") else " " + text,
        lambda text: " " + text if text else text,
    ),
)
task.fault("B-UNKNOWN-DROPPED", read=lambda text: text.encode("ascii", "ignore").decode())

# --- faults: merging ----------------------------------------------------------------------------


def by_what_stands_first(word, merges):
    """Again and again the first pair of neighbors that is anywhere in the list."""
    parts, known = list(word), set(merges)
    place = 0
    while place < len(parts) - 1:
        if (parts[place], parts[place + 1]) in known:
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            place = 0
        else:
            place += 1
    return parts


def longest_first(word, merges):
    known = {left + right for left, right in merges} | set(LETTER)
    parts, place = [], 0
    while place < len(word):
        size = max(n for n in range(1, len(word) - place + 1) if word[place : place + n] in known)
        parts.append(word[place : place + size])
        place += size
    return parts


task.fault("B-NOT-MERGED", merge=lambda pieces, pair: pieces)
task.fault("B-MERGED-ONCE", merge=merged_once)


def merged_and_skipped(pieces, pair):
    """From the left, in place; the piece after a new one is passed over."""
    pieces, place = list(pieces), 0
    while place < len(pieces) - 1:
        if (pieces[place], pieces[place + 1]) == tuple(pair):
            pieces[place : place + 2] = ["".join(pair)]
            place += 1
        place += 1
    return pieces


task.fault("B-SKIPS-AFTER-A-MERGE", merge=merged_and_skipped)
task.fault(
    "B-TEXT-REPLACED",
    merge=merged_as_text,
    look_up=(..., *(lambda ids, piece, no=no: ids.get(piece, no) for no in (-1, 0))),
)
task.fault("B-FROM-THE-RIGHT", merge=merged_from_the_right)


def the_latest_known(word, merges):
    """Again and again the pair of neighbors that was learned last."""
    parts, rank = list(word), {pair: place for place, pair in enumerate(merges)}
    while True:
        found = [(rank[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in rank]
        if not found:
            return parts
        place = max(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


task.fault(
    "B-LAST-MERGE-FIRST",
    learned=(lambda merges: merges[::-1], ...),
    pieces=(..., lambda word, merges: the_latest_known(word, merges)),
)
task.fault("B-LAST-MERGE-MISSING", learned=lambda merges: merges[:-1])


@task.fault("B-LEFTMOST-PAIR")
class Leftmost(Encoding):
    def pieces(self, word, merges):
        return by_what_stands_first(word, merges)


def in_one_go(again, whole):
    """From the left, whatever pair is known; `whole`: a new piece may be the left of a pair."""

    class InOneGo(Encoding):
        def pieces(self, word, merges):
            known, parts = set(merges), self.letters(word)
            while True:
                new = []
                made = False  # the last piece
                for part in parts:
                    if new and (whole or not made) and (new[-1], part) in known:
                        new[-1] += part
                        made = True
                    else:
                        new.append(part)
                        made = False
                if new == parts or not again:
                    return new
                parts = new

    return InOneGo


for way in (in_one_go(False, True), in_one_go(False, False), in_one_go(True, False)):
    task.faults["B-LEFTMOST-PAIR"].forms.append(way)


@task.fault("B-LONGEST-PIECE")
class Longest(Encoding):
    def pieces(self, word, merges):
        return longest_first(word, merges)


@task.fault("B-WHOLE-WORD-FIRST")
class WholeWords(Encoding):
    def pieces(self, word, merges):
        known = any(left + right == word for left, right in merges)
        return [word] if known else super().pieces(word, merges)


# --- faults: ids --------------------------------------------------------------------------------


def numbered(pieces):
    return {piece: place for place, piece in enumerate(pieces)}


def learned_from(first):
    """Letters first; the first learned piece gets the given id."""
    return lambda letters, merged: {
        piece: place if place < len(letters) else place - len(letters) + first
        for place, piece in enumerate(dict.fromkeys([*letters, *merged]))
    }


def behind_marks(marks):
    return lambda letters, merged: {
        piece: place for place, piece in enumerate(dict.fromkeys([*letters, *merged]), marks)
    }


task.fault("B-BYTE-IS-ID", alphabet=lambda words: list(LETTER))
task.fault(
    "B-LETTERS-OF-THE-TEXT",
    alphabet=lambda words: sorted({letter for word in words for letter in word}),
    look_up=(lambda ids, piece: ids[piece], lambda ids, piece: ids.get(piece, 0)),
)
task.fault(
    "B-CODE-POINTS",
    look_up=lambda ids, piece: ids[piece] if len(piece) > 1 else ord(piece),
)
task.fault(
    "B-IDS-FROM-ZERO",
    number=(
        lambda letters, merged: numbered(letters) | numbered(dict.fromkeys(merged)),
        lambda letters, merged: numbered(letters) | numbered(merged),
    ),
)
task.fault("B-ONE-ID-FREE", number=learned_from(257))
task.fault("B-MARKS-FIRST", number=tuple(map(behind_marks, (2, 3, 4))))
task.fault("B-ALL-SORTED", number=lambda letters, merged: numbered(sorted({*letters, *merged})))
task.fault(
    "B-MERGES-SORTED",
    named=(
        lambda merges: sorted(map("".join, merges)),
        lambda merges: sorted(map("".join, merges), key=len),
    ),
)
task.fault(
    "B-PIECES-FIRST",
    number=lambda letters, merged: numbered(dict.fromkeys([*merged, *letters])),
)
task.fault("B-OFF-BY-ONE", look_up=lambda ids, piece: ids[piece] + 1)
task.fault(
    "B-BORN-AGAIN",
    number=(
        lambda letters, merged: numbered([*letters, *merged]),
        lambda letters, merged: {  # its first id, and the later merge takes one, too
            piece: place for place, piece in reversed([*enumerate([*letters, *merged])])
        },
    ),
)
task.fault("B-PIECES", look_up=lambda ids, piece: piece)
task.fault("B-NESTED", result=lambda ids: ids)

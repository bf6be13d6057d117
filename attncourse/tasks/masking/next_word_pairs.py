import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks.masking import still_answers

SENTENCE = ["nine", "hundred", "ninety", "four"]
REPEATED = ["two", "hundred", "two", "thousand", "two"]
IDS = [5, 0, 7, 0, 2]  # 0 is an id like any other


def pairs_of(*tokens):
    return {"tokens": list(tokens)}


def probes(rng):
    return {
        "four words": pairs_of(*SENTENCE),
        "two words": pairs_of("nine", "hundred"),
        "one word": pairs_of("nine"),
        "repeated words": pairs_of(*REPEATED),
        "one word again and again": pairs_of("two", "two", "two"),
        "ids": pairs_of(3, 1, 4),
        "ids, some of them 0": pairs_of(*IDS),
    }


def traits(answer):
    inputs = pairs_of("six", "seven", "eight")
    first, second = answer(inputs), answer(pairs_of("nine", "ten", "eleven"))
    parts = [x for pair in first if isinstance(pair, list | tuple) and len(pair) == 2 for x in pair]
    return {
        "differs from call to call": first != answer(inputs),
        "earlier words come back": any(word in repr(second) for word in inputs["tokens"]),
        "a context is a tuple": any(isinstance(part, tuple) for part in parts),
    }


def small(rng):
    yield pairs_of("nine")
    for n in (2, 3, 4):
        yield pairs_of(*SENTENCE[:n])
    yield pairs_of("two", "two")
    yield pairs_of("two", "one", "two")
    yield pairs_of(*REPEATED)
    for n in (2, 3, 5):
        yield pairs_of(*IDS[:n])


def in_pairs(answer, inputs):
    """The pairs, whatever their parts are, or a Failure that says which one is none."""
    pairs = answer(inputs)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Failure(
                f"Each entry is a pair (words so far, next word); one of yours is {pair!r}.", inputs
            )
    return pairs


def well_formed(answer, inputs):
    """The pairs, or a Failure that says which one is none or has no list in front."""
    pairs = in_pairs(answer, inputs)
    for pair in pairs:
        if not isinstance(pair[0], list):
            raise Failure(
                "The first part of a pair is the list of words so far; one of yours is "
                f"{pair[0]!r}.",
                inputs,
            )
    return pairs


def same_but_for_order(one, two) -> bool:
    rest = list(two)
    for each in one:
        if each not in rest:
            return False
        rest.remove(each)
    return not rest


task = Task(
    reference.next_word_pairs,
    number=1,
    returns=list,
    difficulty=1,
    minutes=10,
    section="all-positions",
    probes=probes,
    small=small,
    traits=traits,
)


@task.check(1)
def it_returns_a_list_of_pairs(answer):
    well_formed(answer, pairs_of(*SENTENCE))
    well_formed(answer, pairs_of(3, 1, 4))


@task.check(1)
def every_word_but_the_first_is_guessed_once(answer):
    for tokens in (SENTENCE, SENTENCE[:2], SENTENCE[:1], IDS):
        inputs = pairs_of(*tokens)
        guessed = [pair[1] for pair in in_pairs(answer, inputs)]
        if not same_but_for_order(guessed, tokens[1:]):
            raise Failure(
                f"Of the sentence {tokens!r}, the words to be guessed are {tokens[1:]!r}; "
                f"yours are {guessed!r}.",
                inputs,
                tokens[1:],
                guessed,
            )


@task.check(1, "contexts are the beginnings of the sentence from the shortest on")
def a_context_is_all_that_stands_before(answer):
    for tokens in (
        SENTENCE,
        SENTENCE[:2],
        REPEATED,
        ["zero", "one", "two", "three", "four", "five"],
    ):
        inputs = pairs_of(*tokens)
        for place, (context, _) in enumerate(well_formed(answer, inputs), 1):
            if context != tokens[:place]:
                raise Failure(
                    f"The context of pair {place - 1}, counted from 0, is all that stands "
                    f"before place {place}: {tokens[:place]!r}; yours is {context!r}.",
                    inputs,
                    tokens[:place],
                    context,
                )


@task.check(1)
def a_word_may_come_twice_and_an_id_may_be_0(answer):
    with following(lambda: answer.matches(pairs_of(*SENTENCE))):
        for tokens in (REPEATED, ["two", "two", "two"], IDS, [0, 0], torch.arange(9).tolist()):
            answer.matches(pairs_of(*tokens))


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, pairs_of(*SENTENCE))
    still_answers(answer, pairs_of("six", "million", "one", "hundred"), pairs_of(*SENTENCE))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Pairs:
    def read(tokens):
        return tokens

    def first():
        return 1

    def end(tokens):
        return len(tokens)

    def kept(tokens, places):
        return places

    def context(tokens, place):
        return tokens[:place]

    def shown(words):
        return words

    def word(tokens, place):
        return tokens[place]

    def pair(context, word):
        return context, word

    def collect(self, tokens, places):
        return [
            self.pair(self.shown(self.context(tokens, p)), self.word(tokens, p)) for p in places
        ]

    def result(pairs):
        return pairs

    def __call__(self, tokens):
        tokens = self.read(tokens)
        places = self.kept(tokens, range(self.first(), self.end(tokens)))
        return self.result(self.collect(tokens, places))


# --- faults -------------------------------------------------------------------------------------


def word_or(end):
    return lambda tokens, place: tokens[place] if place < len(tokens) else end


def with_end(mark):
    return lambda tokens: [*tokens, mark]


def with_begin(mark):
    return lambda tokens: [mark, *tokens]


def two_lists(pairs):
    return [[context for context, _ in pairs], [word for _, word in pairs]]


def pair_by_pair(self, tokens, places):
    pairs = []
    for place in places:
        words = self.shown(self.context(tokens, place))
        pairs.append(self.pair(words, self.word(tokens, place)))
    return pairs


def without_last(tokens, places):
    return places[:-1]


task.fault(
    "S-SHIFT",
    word=lambda tokens, place: tokens[place - 1],
    end=(..., lambda tokens: len(tokens) + 1),
    collect=(..., pair_by_pair),  # not in one list, where it looks like a word too many
)
task.fault("C-NEXT-INSIDE", context=lambda tokens, place: tokens[: place + 1])
task.fault("C-BIGRAM", context=lambda tokens, place: tokens[place - 1 : place])
task.fault(
    "C-WINDOW",
    context=(
        lambda tokens, place: tokens[max(0, place - 2) : place],
        lambda tokens, place: tokens[max(0, place - 3) : place],
    ),
)
task.fault("C-ALL-THE-OTHERS", context=lambda tokens, place: tokens[:place] + tokens[place + 1 :])
task.fault(
    "C-WORDS-AFTER",
    first=lambda: 0,
    end=lambda tokens: len(tokens) - 1,
    context=lambda tokens, place: tokens[place + 1 :],
)
task.fault("C-NEWEST-FIRST", shown=lambda words: words[::-1])
task.fault("C-LONGEST-FIRST", kept=lambda tokens, places: places[::-1])
task.fault("C-EMPTY-CONTEXT", first=lambda: 0)
task.fault("C-FROM-THE-THIRD", first=lambda: 2)
task.fault(
    "C-AFTER-THE-END",
    end=(*(lambda tokens: len(tokens) + 1,) * 3, ...),
    word=(*map(word_or, (None, "<eos>", "")), ...),
    read=(..., ..., ..., *map(with_end, ("<eos>", "</s>", None))),
)
task.fault("C-BEGIN-MARK", read=tuple(map(with_begin, ("<bos>", "<s>", None, 0))))
task.fault("C-LAST-TO-GUESS", word=lambda tokens, place: tokens[-1])
task.fault("C-FROM-PLACE-1", context=lambda tokens, place: tokens[1:place])
task.fault("C-REST-TO-GUESS", word=lambda tokens, place: tokens[place:])
task.fault("C-WORD-IN-A-LIST", word=lambda tokens, place: tokens[place : place + 1])
task.fault(
    "C-TWO-AHEAD",
    context=(lambda tokens, place: tokens[: place - 1], ..., ...),
    word=(
        ...,
        lambda tokens, place: tokens[place + 1],
        lambda tokens, place: word_or(None)(tokens, place + 1),
    ),
    kept=(..., without_last, ...),
)
task.fault("C-ONE-BY-ONE", result=lambda pairs: (pair for pair in pairs))
task.fault("C-DICT", result=lambda pairs: {tuple(context): word for context, word in pairs})
task.fault("C-CONTEXTS-AND-WORDS", result=(two_lists, lambda pairs: tuple(two_lists(pairs))))
task.fault("C-LAST-MISSED", end=lambda tokens: len(tokens) - 1)
task.fault(
    "C-FIRST-OCCURRENCE",
    context=(
        lambda tokens, place: tokens[: tokens.index(tokens[place])],
        ...,
        lambda tokens, place: tokens[: tokens.index(tokens[place - 1]) + 1],
        ...,
    ),
    word=(..., ..., ..., lambda tokens, place: tokens[tokens.index(tokens[place - 1]) + 1]),
    kept=(..., lambda tokens, places: [tokens.index(tokens[p - 1]) + 1 for p in places], ...),
)
task.fault(
    "C-ZERO-SKIPPED",
    read=(lambda tokens: [token for token in tokens if token], ...),
    kept=(..., lambda tokens, places: [p for p in places if tokens[p]]),
)
task.fault(
    "C-WITHOUT-REPEATS",
    kept=(lambda tokens, places: [p for p in places if tokens[p] not in tokens[:p]], ...),
    read=(..., lambda tokens: list(dict.fromkeys(tokens))),
)
task.fault("C-CONTEXT-OF-KINDS", shown=lambda words: list(dict.fromkeys(words)))
task.fault("C-PAIR-SWAPPED", pair=lambda context, word: (word, context))
task.fault("C-BEGINNINGS", pair=lambda context, word: [*context, word])
task.fault("C-CONTEXTS-ONLY", pair=lambda context, word: context)
task.fault("C-PAIR-WITH-NAMES", pair=lambda context, word: {"context": context, "following": word})
task.fault("C-JOINED", shown=lambda words: " ".join(map(str, words)))
task.fault("C-TUPLE", shown=tuple)
task.fault("C-NEIGHBORS-ONLY", context=lambda tokens, place: tokens[place - 1])
task.fault(
    "C-TWO-SHIFTED-LISTS",
    forms=(lambda tokens: [(tokens[:-1], tokens[1:])], lambda tokens: [tokens[:-1], tokens[1:]]),
)


def in_one_list(self, tokens, places):
    context, pairs = [], []
    for place in places:
        context.extend(tokens[len(context) : place])
        pairs.append(self.pair(context, self.word(tokens, place)))
    if isinstance(shown := self.shown(context), list):
        context[:] = shown  # as if each word had been put in there
    return pairs


def in_one_list_to_the_end(self, tokens, places):
    pairs = in_one_list(self, tokens, places)
    for context, _ in pairs[:1]:
        context.extend(tokens[len(context) :])
    return pairs


task.fault("C-ONE-LIST", collect=(in_one_list, in_one_list_to_the_end))


@task.fault(
    "C-WORDS-USED-UP",
    read=lambda tokens: tokens.append("<eos>") or tokens,
    end=lambda tokens: len(tokens) - 1,
)
def takes_words_off(tokens):
    pairs = []
    while len(tokens) > 1:
        following = tokens.pop()
        pairs.insert(0, (list(tokens), following))
    return pairs


@task.fault("C-KEPT-CONTEXT")
def default_list(tokens, context=[]):  # noqa: B006
    pairs = []
    for word in tokens:
        if context:
            pairs.append((list(context), word))
        context.append(word)
    return pairs

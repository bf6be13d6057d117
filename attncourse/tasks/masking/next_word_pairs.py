"""What a sentence teaches: what is promised, the reference in steps, what goes wrong."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, moves_nothing
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
    contexts = [pair[0] for pair in first if isinstance(pair, list | tuple) and len(pair) == 2]
    return {
        "differs from call to call": first != answer(inputs),
        "earlier words come back": any(word in repr(second) for word in inputs["tokens"]),
        "a context is a tuple": any(isinstance(context, tuple) for context in contexts),
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


def well_formed(answer, inputs):
    """The pairs, or a Failure that says which one is none."""
    pairs = answer(inputs)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Failure(
                f"Each entry is a pair (words so far, next word); one of yours is {pair!r}.", inputs
            )
        if not isinstance(pair[0], list):
            raise Failure(
                "The first part of a pair is the list of words so far; one of yours is "
                f"{pair[0]!r}.",
                inputs,
            )
    return pairs


task = Task(
    reference.next_word_pairs,
    number=1,
    returns=list,
    difficulty=1,
    minutes=10,
    section="all-positions",
    hints=(
        "Cover a sentence with your hand and uncover it word by word. Before each new word "
        "you could ask: what comes next? Which word is the first that can be guessed?",
        "A pair belongs to a place in the sentence: what stands before this place, and what "
        "stands at it. The place of the first word has nothing before it, so it gives no "
        "pair. A slice makes a new list; `append` changes the old one.",
        "for place from 1 to the last: the pair (tokens up to, but without, place; tokens at "
        "place). Return the list of all these pairs.",
    ),
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
        guessed = [pair[1] for pair in well_formed(answer, inputs)]
        if guessed != tokens[1:]:
            raise Failure(
                f"Of the sentence {tokens!r}, the words to be guessed are {tokens[1:]!r}; "
                f"yours are {guessed!r}.",
                inputs,
                tokens[1:],
                guessed,
            )


@task.check(1)
def a_context_is_all_that_stands_before(answer):
    for tokens in (SENTENCE, SENTENCE[:2], ["zero", "one", "two", "three", "four", "five"]):
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

    def places(tokens):
        return range(1, len(tokens))

    def context(tokens, place):
        return tokens[:place]

    def word(tokens, place):
        return tokens[place]

    def pair(context, word):
        return context, word

    def __call__(self, tokens):
        tokens = self.read(tokens)
        places = self.places(tokens)
        return [self.pair(self.context(tokens, p), self.word(tokens, p)) for p in places]


# --- faults -------------------------------------------------------------------------------------


def word_or(end):
    return lambda tokens, place: tokens[place] if place < len(tokens) else end


task.fault(
    "S-SHIFT",
    "The word that belongs to a context is its last one.",
    "The context ends with that word, so there is nothing to guess: a network would learn to "
    "repeat the last word it read. The word to be guessed comes one place later.",
    word=lambda tokens, place: tokens[place - 1],
)
task.fault(
    "C-NEXT-INSIDE",
    "The words so far include the one that comes next.",
    "Then the answer stands in the question, and a network would learn to copy it. A slice ends "
    "before its second number.",
    context=lambda tokens, place: tokens[: place + 1],
)
task.fault(
    "C-BIGRAM",
    "The context of a word is the word before it.",
    "That is a part of it. Attention can use everything that came before, and what follows "
    "“hundred” may depend on the first word of the sentence.",
    context=lambda tokens, place: tokens[place - 1 : place],
)
task.fault(
    "C-WINDOW",
    "The last few words are context enough.",
    "Older models cut there, since their memory was short. Attention reads everything that came "
    "before, so a context begins at the first word.",
    context=(
        lambda tokens, place: tokens[max(0, place - 2) : place],
        lambda tokens, place: tokens[max(0, place - 3) : place],
    ),
)
task.fault(
    "C-ALL-THE-OTHERS",
    "The context of a word is all the other words, on both sides.",
    "That is how one fills a gap. Who writes word by word has only the left side: the words on "
    "the right do not exist yet.",
    context=lambda tokens, place: tokens[:place] + tokens[place + 1 :],
)
task.fault(
    "C-WORDS-AFTER",
    "The context of a word is what comes after it.",
    "That is the future, read backward. A sentence is written from its beginning: the context is "
    "what stands to the left.",
    places=lambda tokens: range(len(tokens) - 1),
    context=lambda tokens, place: tokens[place + 1 :],
)
task.fault(
    "C-NEWEST-FIRST",
    "The word before is the most important one, so a context begins with it.",
    "A context is a piece of the sentence, in the sentence's order. Read backward it is another "
    "sentence; where a word stands says how near it is.",
    context=lambda tokens, place: tokens[:place][::-1],
)
task.fault(
    "C-LONGEST-FIRST",
    "The order of the pairs is free, so I begin with the whole sentence.",
    "The list promises place after place, the shortest context first: pair i ends at word i + 1. "
    "All pairs are there; they stand in the opposite order.",
    places=lambda tokens: range(len(tokens) - 1, 0, -1),
)
task.fault(
    "C-EMPTY-CONTEXT",
    "The first word is guessed too, from an empty context.",
    "A sentence of n words gives n − 1 pairs here: before the first word there is nothing that "
    "attention could look at. (A translator puts the mark <bos> there, which makes it a word.)",
    places=lambda tokens: range(len(tokens)),
)
task.fault(
    "C-FROM-THE-THIRD",
    "A context needs at least two words.",
    "One word is a context: after “nine” something follows as well. The first pair is lost in "
    "every sentence, and a sentence of two words gives none.",
    places=lambda tokens: range(2, len(tokens)),
)
task.fault(
    "C-AFTER-THE-END",
    "The whole sentence is a context as well; nothing follows it.",
    "A pair needs a word that follows. If the end should be learned, the caller puts a mark for "
    "it into the tokens, and then it is a word like any other.",
    places=lambda tokens: range(1, len(tokens) + 1),
    word=(word_or(None), word_or("<eos>")),
)
task.fault(
    "C-LAST-MISSED",
    "There are n − 1 pairs, so the range ends at n − 1.",
    "A range leaves its end out. From 1 to n − 1 it gives one place too few, and the last word of "
    "every sentence is never learned.",
    places=lambda tokens: range(1, len(tokens) - 1),
)
task.fault(
    "C-FIRST-OCCURRENCE",
    "`tokens.index(word)` tells me where a word stands.",
    "It tells where the word stands first. When “two” comes again, its context is cut off at the "
    "earlier one. Count the places instead of looking words up.",
    context=lambda tokens, place: tokens[: tokens.index(tokens[place])],
)
task.fault(
    "C-ZERO-SKIPPED",
    "Id 0 is padding, or nothing at all, and can be left out.",
    "Here a token is whatever the caller gives, 0 too. A test like `if token` is False for the id "
    "0, so words vanish without a message.",
    read=lambda tokens: [token for token in tokens if token],
)
task.fault(
    "C-WITHOUT-REPEATS",
    "A word that has come before teaches nothing new.",
    "It does: each pair is about its context, and that is longer now. How often a word comes is "
    "also something to learn.",
    places=lambda tokens: [p for p in range(1, len(tokens)) if tokens[p] not in tokens[:p]],
)
task.fault(
    "C-PAIR-SWAPPED",
    "A pair is the word, and then its context.",
    "Both are right, in the other order: first what is given, then what is asked.",
    pair=lambda context, word: (word, context),
)
task.fault(
    "C-JOINED",
    "A context is a text, so I join its words.",
    "A network takes words as a list, each with its own id. Joined, they would have to be taken "
    "apart again; leave them as they are.",
    context=lambda tokens, place: " ".join(map(str, tokens[:place])),
)
task.fault(
    "C-TUPLE",
    "A tuple of words is as good as a list.",
    "Nearly: it holds the same words, but `context == ['nine']` is False for a tuple. The task "
    "asks for a list of the words so far.",
    context=lambda tokens, place: tuple(tokens[:place]),
)
task.fault(
    "C-NEIGHBORS-ONLY",
    "`zip` (or `pairwise`) of the words with the next words makes the pairs.",
    "It pairs each word with the next one, so the first part is a single word and not the list of "
    "all the words so far.",
    context=lambda tokens, place: tokens[place - 1],
)
task.fault(
    "C-TWO-SHIFTED-LISTS",
    "Inputs are the words without the last, targets the words without the first; that says it all.",
    "It does, to a network with a causal mask, which sees the beginnings by itself. Here the "
    "beginnings are to be written out, one pair for each.",
    forms=(lambda tokens: [(tokens[:-1], tokens[1:])], lambda tokens: [tokens[:-1], tokens[1:]]),
)


@task.fault(
    "C-ONE-LIST",
    "I collect the words in one list, and each pair gets the list as it is at that moment.",
    "Each pair gets the same list, and sees everything that is appended later: all contexts end "
    "up equal, with the answers inside. A pair needs a copy.",
)
def one_list_for_all(tokens):
    context, pairs = [], []
    for place in range(1, len(tokens)):
        context.append(tokens[place - 1])
        pairs.append((context, tokens[place]))
    return pairs


@task.fault(
    "C-WORDS-USED-UP",
    "I take words off the list, or put a mark on it, as my work needs it.",
    "The list belongs to the caller, who finds it changed afterward. Slices and indices read "
    "without taking away; `pop`, `append` and `+=` change the list itself.",
    read=lambda tokens: tokens.append("<eos>") or tokens,
    places=lambda tokens: range(1, len(tokens) - 1),
)
def takes_words_off(tokens):
    pairs = []
    while len(tokens) > 1:
        following = tokens.pop()
        pairs.insert(0, (list(tokens), following))
    return pairs


@task.fault(
    "C-KEPT-CONTEXT",
    "An empty list as a default argument is a fresh start at every call.",
    "Python makes the default once, and every call fills the same list. The first call is right; "
    "from the second on, contexts begin with earlier sentences.",
)
def default_list(tokens, context=[]):  # noqa: B006
    pairs = []
    for word in tokens:
        if context:
            pairs.append((list(context), word))
        context.append(word)
    return pairs

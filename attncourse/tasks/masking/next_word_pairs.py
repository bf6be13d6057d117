"""next_word_pairs."""

import itertools

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


def pair_probes(rng):
    return {
        "four words": pairs_of(*SENTENCE),
        "two words": pairs_of("nine", "hundred"),
        "one word": pairs_of("nine"),
        "repeated words": pairs_of(*REPEATED),
        "one word again and again": pairs_of("two", "two", "two"),
        "ids": pairs_of(3, 1, 4),
        "ids, some of them 0": pairs_of(*IDS),
    }


def pair_traits(answer):
    inputs = pairs_of("six", "seven", "eight")
    first, second = answer(inputs), answer(pairs_of("nine", "ten", "eleven"))
    contexts = [pair[0] for pair in first if isinstance(pair, list | tuple) and len(pair) == 2]
    return {
        "differs from call to call": first != answer(inputs),
        "earlier words come back": any(word in repr(second) for word in inputs["tokens"]),
        "a context is a tuple": any(isinstance(context, tuple) for context in contexts),
    }


def pair_small(rng):
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
    probes=pair_probes,
    small=pair_small,
    traits=pair_traits,
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


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "S-SHIFT",
    thinks="The word that belongs to a context is its last one.",
    why="The context ends with that word, so there is nothing to guess: a network would learn to "
    "repeat the last word it read. The word to be guessed comes one place later.",
)
def last_word_of_the_context(tokens):
    return [(tokens[:place], tokens[place - 1]) for place in range(1, len(tokens))]


@task.fault(
    "C-NEXT-INSIDE",
    thinks="The words so far include the one that comes next.",
    why="Then the answer stands in the question, and a network would learn to copy it. A slice "
    "ends before its second number.",
)
def context_with_the_next_word(tokens):
    return [(tokens[: place + 1], tokens[place]) for place in range(1, len(tokens))]


@task.fault(
    "C-BIGRAM",
    thinks="The context of a word is the word before it.",
    why="That is a part of it. Attention can use everything that came before, and what follows "
    "“hundred” may depend on the first word of the sentence.",
)
def only_the_word_before(tokens):
    return [(tokens[place - 1 : place], tokens[place]) for place in range(1, len(tokens))]


@task.fault(
    "C-ALL-THE-OTHERS",
    thinks="The context of a word is all the other words, on both sides.",
    why="That is how one fills a gap. Who writes word by word has only the left side: the words "
    "on the right do not exist yet.",
)
def words_on_both_sides(tokens):
    return [(tokens[:p] + tokens[p + 1 :], tokens[p]) for p in range(1, len(tokens))]


@task.fault(
    "C-WORDS-AFTER",
    thinks="The context of a word is what comes after it.",
    why="That is the future, read backward. A sentence is written from its beginning: the context "
    "is what stands to the left.",
)
def words_after(tokens):
    return [(tokens[place + 1 :], tokens[place]) for place in range(len(tokens) - 1)]


@task.fault(
    "C-EMPTY-CONTEXT",
    thinks="The first word is guessed too, from an empty context.",
    why="A sentence of n words gives n − 1 pairs here: before the first word there is nothing that "
    "attention could look at. (A translator puts the mark <bos> there, which makes it a word.)",
)
def from_nothing_too(tokens):
    return [(tokens[:place], tokens[place]) for place in range(len(tokens))]


def ends_with_a_mark(tokens):
    followed = [*tokens, "<eos>"]
    return [(followed[:place], followed[place]) for place in range(1, len(followed))]


@task.fault(
    "C-AFTER-THE-END",
    thinks="The whole sentence is a context as well; nothing follows it.",
    why="A pair needs a word that follows. If the end should be learned, the caller puts a mark "
    "for it into the tokens, and then it is a word like any other.",
    forms=(ends_with_a_mark,),
)
def with_the_end(tokens):
    following = [*tokens[1:], None]
    return [(tokens[: place + 1], following[place]) for place in range(len(tokens))]


@task.fault(
    "C-LAST-MISSED",
    thinks="There are n − 1 pairs, so the range ends at n − 1.",
    why="A range leaves its end out. From 1 to n − 1 it gives one place too few, and the last word "
    "of every sentence is never learned.",
)
def last_word_missed(tokens):
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens) - 1)]


def grows_one_list_by_slices(tokens):
    context, pairs = [], []
    for place in range(1, len(tokens)):
        context += tokens[place - 1 : place]
        pairs.append((context, tokens[place]))
    return pairs


@task.fault(
    "C-ONE-LIST",
    thinks="I collect the words in one list, and each pair gets the list as it is at that moment.",
    why="Each pair gets the same list, and sees everything that is appended later: all contexts "
    "end up equal, with the answers inside. A pair needs a copy.",
    forms=(grows_one_list_by_slices,),
)
def one_list_for_all(tokens):
    context, pairs = [], []
    for place in range(1, len(tokens)):
        context.append(tokens[place - 1])
        pairs.append((context, tokens[place]))
    return pairs


@task.fault(
    "C-FIRST-OCCURRENCE",
    thinks="`tokens.index(word)` tells me where a word stands.",
    why="It tells where the word stands first. When “two” comes again, its context is cut off "
    "at the earlier one. Count the places instead of looking words up.",
)
def looks_words_up(tokens):
    return [(tokens[: tokens.index(word)], word) for word in tokens[1:]]


@task.fault(
    "C-ZERO-SKIPPED",
    thinks="Id 0 is padding, or nothing at all, and can be left out.",
    why="Here a token is whatever the caller gives, 0 too. A test like `if token` is False for the "
    "id 0, so words vanish without a message.",
)
def zeros_skipped(tokens):
    tokens = [token for token in tokens if token]
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens))]


@task.fault(
    "C-WITHOUT-REPEATS",
    thinks="A word that has come before teaches nothing new.",
    why="It does: each pair is about its context, and that is longer now. How often a word comes "
    "is also something to learn.",
)
def repeats_left_out(tokens):
    return [(tokens[:p], tokens[p]) for p in range(1, len(tokens)) if tokens[p] not in tokens[:p]]


def adds_a_mark_for_the_end(tokens):
    tokens.append("<eos>")
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens) - 1)]


@task.fault(
    "C-WORDS-USED-UP",
    thinks="I take words off the list, or put a mark on it, as my work needs it.",
    why="The list belongs to the caller, who finds it changed afterward. Slices and indices read "
    "without taking away; `pop`, `append` and `+=` change the list itself.",
    forms=(adds_a_mark_for_the_end,),
)
def takes_words_off(tokens):
    pairs = []
    while len(tokens) > 1:
        following = tokens.pop()
        pairs.insert(0, (list(tokens), following))
    return pairs


@task.fault(
    "C-PAIR-SWAPPED",
    thinks="A pair is the word, and then its context.",
    why="Both are right, in the other order: first what is given, then what is asked.",
)
def word_before_context(tokens):
    return [(tokens[place], tokens[:place]) for place in range(1, len(tokens))]


@task.fault(
    "C-JOINED",
    thinks="A context is a text, so I join its words.",
    why="A network takes words as a list, each with its own id. Joined, they would have to be "
    "taken apart again; leave them as they are.",
)
def context_as_text(tokens):
    return [(" ".join(map(str, tokens[:p])), tokens[p]) for p in range(1, len(tokens))]


@task.fault(
    "C-TUPLE",
    thinks="A tuple of words is as good as a list.",
    why="Nearly: it holds the same words, but `context == ['nine']` is False for a tuple. The task "
    "asks for a list of the words so far.",
)
def context_as_tuple(tokens):
    return [(tuple(tokens[:place]), tokens[place]) for place in range(1, len(tokens))]


@task.fault(
    "C-TWO-SHIFTED-LISTS",
    thinks="Inputs are the words without the last, targets the words without the first; that says "
    "it all.",
    why="It does, to a network with a causal mask, which sees the beginnings by itself. Here the "
    "beginnings are to be written out, one pair for each.",
)
def inputs_and_targets(tokens):
    return [(tokens[:-1], tokens[1:])]


@task.fault(
    "C-NEIGHBORS-ONLY",
    thinks="`zip` (or `pairwise`) of the words with the next words makes the pairs.",
    why="It pairs each word with the next one, so the first part is a single word and not the list "
    "of all the words so far.",
)
def zipped(tokens):
    return list(itertools.pairwise(tokens))


@task.fault(
    "C-KEPT-CONTEXT",
    thinks="An empty list as a default argument is a fresh start at every call.",
    why="Python makes the default once, and every call fills the same list. The first call is "
    "right; from the second on, contexts begin with earlier sentences.",
)
def default_list(tokens, context=[]):  # noqa: B006
    pairs = []
    for word in tokens:
        if context:
            pairs.append((list(context), word))
        context.append(word)
    return pairs

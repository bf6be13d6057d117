"""padding_mask."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, compare, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks.masking import a_mask, still_answers


def sentences(*lengths, k, dtype=torch.int64):
    return {"lengths": torch.tensor(lengths, dtype=dtype), "max_length": k}


def padding_probes(rng):
    return {
        "three sentences": sentences(3, 1, 4, k=5),
        "longest first": sentences(5, 4, 2, k=5),
        "as many sentences as places": sentences(2, 4, 1, 3, k=4),
        "nobody fills the table": sentences(2, 1, 3, k=6),
        "one sentence": sentences(2, k=4),
        "one place": sentences(1, 1, k=1),
        "an empty sentence": sentences(2, 0, 3, k=4),
        "all full": sentences(3, 3, k=3),
        "int32": sentences(3, 2, k=5, dtype=torch.int32),
        "long": sentences(257, 260, k=300),
    }


def padding_small(rng):
    yield sentences(1, k=1)
    for length in (1, 2):
        yield sentences(length, k=2)
    yield sentences(1, k=3)
    yield sentences(2, 1, k=2)
    yield sentences(1, 2, k=2)
    yield sentences(1, 2, k=3)
    yield sentences(2, 1, 3, k=3)
    yield sentences(0, 2, k=2)
    yield sentences(0, k=2)
    yield sentences(257, k=300)


def hides(answer, inputs):
    """Assert that each sentence shows its own words, and say which one does not."""
    expected = answer.expected(inputs)
    mask = a_mask(answer, inputs, tuple(expected.shape), "(b 1 k)")
    for row, length in enumerate(inputs["lengths"].tolist()):
        ours, theirs = expected[row, 0], mask[row, 0]
        if not torch.equal(ours, theirs):
            raise Failure(
                f"Sentence {row}, counted from 0, has {length} real tokens of "
                f"{inputs['max_length']}: {_brief(ours)} may be seen. With your mask "
                f"{_brief(theirs)} may.",
                inputs,
                expected,
                mask,
            )


def _brief(row) -> str:
    places = row.nonzero().flatten().tolist()
    if len(places) > 12:
        return f"{len(places)} places, from {places[0]} to {places[-1]},"
    return f"places {places}" if places else "no place"


task = Task(
    reference.padding_mask,
    number=3,
    returns=("mask",),
    difficulty=2,
    minutes=15,
    section="padding",
    hints=(
        "Number the places of a sentence: 0, 1, 2, … A place holds a word as long as its "
        "number is smaller than something. Than what?",
        "Compare all places with all lengths at once: places along one axis, sentences along "
        "another. `torch.arange` makes the places; `lengths[:, None]` makes room beside the "
        "sentences. Then the result lacks one axis: the one for the queries.",
        "places (k) < lengths (b 1) gives (b k), True at words. Put an axis of length 1 in the "
        "middle, for all queries alike: (b 1 k).",
    ),
    probes=padding_probes,
    small=padding_small,
)


@task.check(1)
def one_row_for_all_queries_of_a_sentence(answer):
    for inputs, b, k in (
        (sentences(3, 1, 4, k=5), 3, 5),
        (sentences(2, 4, 1, 3, k=4), 4, 4),
        (sentences(2, k=3), 1, 3),
        (sentences(1, 1, k=1), 2, 1),
    ):
        a_mask(answer, inputs, (b, 1, k), "(b 1 k)")


@task.check(2)
def words_may_be_seen_and_padding_may_not(answer, rng):
    lengths = 1 + torch.randperm(5, generator=rng, device="cpu")
    hides(answer, sentences(*lengths.tolist(), k=6))
    hides(answer, sentences(3, 1, 4, k=5))
    hides(answer, sentences(2, k=3))
    hides(answer, sentences(5, 2, 3, k=5, dtype=torch.int32))


@task.check(1)
def every_sentence_has_its_own_length(answer):
    hides(answer, sentences(2, 4, 1, 3, k=4))  # as many sentences as places
    hides(answer, sentences(1, 3, 2, k=3))
    inputs = sentences(2, 5, 3, k=5)
    together = a_mask(answer, inputs, (3, 1, 5), "(b 1 k)")
    for row, length in enumerate(inputs["lengths"].tolist()):
        alone = answer(sentences(length, k=5))
        compare("the mask of a sentence on its own", alone, together[row : row + 1], inputs)


@task.check(1)
def the_caller_says_how_long_the_table_is(answer):
    for k in (3, 4, 7):
        a_mask(answer, sentences(2, 3, k=k), (2, 1, k), "(b 1 k)")
        hides(answer, sentences(2, 3, k=k))
    hides(answer, sentences(257, 260, k=300))  # one byte cannot count so far
    hides(answer, sentences(2049, 2051, k=2060))  # nor can float16


@task.check(1)
def a_full_sentence_shows_all_and_an_empty_one_nothing(answer):
    hides(answer, sentences(3, 3, k=3))
    hides(answer, sentences(1, 1, k=1))
    hides(answer, sentences(4, 0, 2, k=4))
    hides(answer, sentences(0, k=2))


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, sentences(3, 1, 4, k=5))
    still_answers(answer, sentences(4, 2, 6, k=9), sentences(7, 1, 5, k=9))


# --- faults ---------------------------------------------------------------------------------------


def places(lengths, max_length):
    """(b k), True at real tokens."""
    return torch.arange(max_length) < lengths[:, None]


@task.fault(
    "M-POLARITY",
    thinks="The mask marks the padding.",
    why="In this course True means: may be attended to. Yours lets everybody look at the padding, "
    "and at nothing else. (`nn.MultiheadAttention` would want it that way.)",
    section="mask-conventions",
)
def true_at_padding(lengths, max_length):
    return ~places(lengths, max_length)[:, None]


@task.fault(
    "M-SHAPE-BT",
    thinks="A sentence has one row of places, so the mask is (b k).",
    why="Beside scores (b q k), the b is taken for q: an error, or, with as many sentences as "
    "words, a wrong result without any message. An axis for the queries is missing.",
    forms=(
        lambda lengths, max_length: ~places(lengths, max_length),
        lambda lengths, max_length: torch.arange(max_length) <= lengths[:, None],
    ),
)
def without_query_axis(lengths, max_length):
    return places(lengths, max_length)


@task.fault(
    "M-QUERY-PAD",
    thinks="Padding is hidden as a query, too: a table (b k k) for each sentence.",
    why="A padded query hurts nobody: its output is not read, and the loss leaves it out. Hiding "
    "it makes dead rows. It is the padded keys that have to go.",
)
def hides_padded_queries(lengths, max_length):
    real = places(lengths, max_length)
    return real[:, :, None] & real[:, None, :]


@task.fault(
    "C-QUERIES-ONLY",
    thinks="The axis of length 1 comes last: (b k 1).",
    why="That hides the padded queries, all their row, and leaves the padded keys visible to "
    "everybody else. Keys are the last axis.",
)
def axis_at_the_end(lengths, max_length):
    return places(lengths, max_length)[:, :, None]


@task.fault(
    "C-HEAD-AXIS",
    thinks="There must be axes for the heads and for the queries: (b 1 1 k).",
    why="Beside scores (b h q k) that works. But this function promises (b 1 k); the layer that "
    "knows its heads puts their axis in.",
)
def axis_for_heads(lengths, max_length):
    return places(lengths, max_length)[:, None, None]


@task.fault(
    "C-COPIES-FOR-QUERIES",
    thinks="All queries of a sentence need their own copy of its row.",
    why="There may be any number of queries, and a single row serves them all: an axis of length 1 "
    "stretches by itself. Yours fits only where there are as many queries as keys.",
)
def copies_for_queries(lengths, max_length):
    return places(lengths, max_length)[:, None].repeat(1, max_length, 1)


@task.fault(
    "C-ONE-MORE",
    thinks="Places up to the length are real.",
    why="Places are counted from 0, so a sentence of 3 words has the places 0, 1, 2. Yours shows "
    "one pad, unless the sentence fills the table.",
)
def one_place_more(lengths, max_length):
    return (torch.arange(max_length) <= lengths[:, None])[:, None]


@task.fault(
    "C-ONE-LESS",
    thinks="Places are counted from 1.",
    why="They are counted from 0. Your mask hides the last real word of every sentence.",
)
def one_place_less(lengths, max_length):
    return (1 + torch.arange(max_length) < lengths[:, None])[:, None]


@task.fault(
    "C-PADDED-LEFT",
    thinks="The padding comes first, then the words.",
    why="Some programs pad on the left; here, as in all batches of this course, words come first. "
    "You hide the beginning of every sentence and show its padding.",
)
def padding_on_the_left(lengths, max_length):
    return places(lengths, max_length).flip(-1)[:, None]


@task.fault(
    "C-LONGEST",
    thinks="The table is as long as the longest sentence.",
    why="The caller knows how long it is and says so: `max_length`. The batch may be padded "
    "further than its longest sentence; then the shapes no longer fit.",
)
def as_long_as_the_longest(lengths, max_length):
    return places(lengths, int(lengths.max()))[:, None]


@task.fault(
    "C-LENGTHS-ALONG-PLACES",
    thinks="torch compares places and lengths by itself; each sentence meets its own length.",
    why="It lines axes up from the right, so place 0 meets the length of sentence 0, place 1 that "
    "of sentence 1. With as many sentences as places nobody complains.",
    forms=(
        lambda lengths, max_length: torch.arange(max_length) < lengths,
        lambda lengths, max_length: (torch.arange(max_length) < lengths)[:, None],
        lambda lengths, max_length: (torch.arange(max_length) < lengths)[None, None],
    ),
)
def lengths_along_places(lengths, max_length):
    return (torch.arange(max_length) < lengths).expand(len(lengths), 1, max_length)


@task.fault(
    "C-SHORTEST-FOR-ALL",
    thinks="One length is enough for the batch: the shortest keeps all padding out.",
    why="It does, and it hides the ends of all longer sentences as well. Each sentence has its own "
    "row, so it can have its own length.",
)
def shortest_for_all(lengths, max_length):
    return places(lengths.min().expand(len(lengths)), max_length)[:, None]


@task.fault(
    "C-LONGEST-FOR-ALL",
    thinks="What matters is that no word is hidden, so the longest sentence decides.",
    why="Then the padding of all shorter sentences is read like words. Each sentence has its own "
    "row, so it can have its own length.",
)
def longest_for_all(lengths, max_length):
    return places(lengths.max().expand(len(lengths)), max_length)[:, None]


@task.fault(
    "C-SORTED",
    thinks="Sentences have to be sorted by length first, longest first.",
    why="Some recurrent networks want that, and then the sentences are sorted too. Here the rows "
    "of the mask no longer belong to their sentences, unless they came sorted.",
)
def longest_first(lengths, max_length):
    return places(lengths.sort(descending=True).values, max_length)[:, None]


@task.fault(
    "C-NEVER-EMPTY",
    thinks="A sentence has at least one word; to be safe I let the first place be seen.",
    why="A sentence of length 0 is all padding, and this place too. What happens to its dead rows "
    "is the softmax's business; it must not read padding.",
    section="dead-rows",
)
def at_least_one_place(lengths, max_length):
    return places(lengths.clamp(min=1), max_length)[:, None]


@task.fault(
    "C-MINUS-ZERO",
    thinks="The padding is the last max_length − length places: `mask[row, :, -pads:] = False`.",
    why="Without padding, `-pads` is −0, which is 0, and the slice is the whole row: exactly the "
    "full sentences vanish. Count from the front.",
)
def counted_from_the_end(lengths, max_length):
    mask = torch.ones(len(lengths), 1, max_length, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        mask[row, :, -(max_length - length) :] = False
    return mask


def whole_numbers(lengths, max_length):
    return places(lengths, max_length)[:, None].long()


@task.fault(
    "C-NOT-BOOLEAN",
    thinks="Ones at words and zeros at padding are a mask.",
    why="The places are right. But a mask of numbers is added to the scores, where a 1 hides "
    "nothing, and it cannot be combined with `&`. Return True and False.",
    section="mask-conventions",
    forms=(whole_numbers,),
)
def ones_at_words(lengths, max_length):
    return places(lengths, max_length)[:, None].float()


@task.fault(
    "P-LOWPREC",
    thinks="A place is a small number, so half precision is enough for it.",
    why="In bfloat16, whole numbers are exact up to 256: place 257 becomes 256, and in a long "
    "sentence a pad is taken for a word. Whole numbers have dtypes of their own.",
    section="half-precision",
)
def low_precision_places(lengths, max_length):
    counted = torch.arange(max_length).to(torch.bfloat16)
    return (counted < lengths[:, None])[:, None]


@task.fault(
    "C-LENGTHS-EDITED",
    thinks="I turn lengths into last places first: `lengths -= 1`.",
    why="The mask is right, but `lengths` belongs to the caller, whose sentences are all one "
    "shorter after your call. `lengths - 1` makes a new tensor.",
)
def edits_the_lengths(lengths, max_length):
    lengths -= 1
    return (torch.arange(max_length) <= lengths[:, None])[:, None]

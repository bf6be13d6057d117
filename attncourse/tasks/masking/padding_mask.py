"""Nobody reads padding: what is promised, the reference in steps, what goes wrong."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, compare, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.masking import a_mask, still_answers


def sentences(*lengths, k, dtype=torch.int64):
    return {"lengths": torch.tensor(lengths, dtype=dtype), "max_length": k}


def probes(rng):
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


def small(rng):
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
    probes=probes,
    small=small,
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


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Mask:
    def places(max_length, lengths):
        return torch.arange(max_length)

    def sizes(lengths):
        return lengths

    def real(places, lengths):
        return places < lengths[:, None]  # b k

    def axes(real, lengths):
        return real[:, None]

    def give(mask):
        return mask

    def __call__(self, lengths, max_length):
        places = self.places(max_length, lengths)
        return self.give(self.axes(self.real(places, self.sizes(lengths)), lengths))


# --- faults -------------------------------------------------------------------------------------


def up_to(places, lengths):
    return places <= lengths[:, None]


def along_places(places, lengths):
    return places < lengths


def counted_from_the_end(places, lengths):
    mask = torch.ones(len(lengths), len(places), dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        mask[row, -(len(places) - length) :] = False
    return mask


task.fault(
    "M-POLARITY",
    "The mask marks the padding.",
    "In this course True means: may be attended to. Yours lets everybody look at the padding, and "
    "at nothing else. (`nn.MultiheadAttention` would want it that way.)",
    section="mask-conventions",
    give=lambda mask: ~mask,
)
task.fault(
    "M-SHAPE-BT",
    "A sentence has one row of places, so the mask is (b k).",
    "Beside scores (b q k), the b is taken for q: an error, or, with as many sentences as words, "
    "a wrong result without any message. An axis for the queries is missing.",
    real=(..., ..., up_to),
    axes=as_is,
    give=(..., lambda mask: ~mask, ...),
)
task.fault(
    "M-QUERY-PAD",
    "Padding is hidden as a query, too: a table (b k k) for each sentence.",
    "A padded query hurts nobody: its output is not read, and the loss leaves it out. Hiding it "
    "makes dead rows. It is the padded keys that have to go.",
    axes=lambda real, lengths: real[:, :, None] & real[:, None, :],
)
task.fault(
    "C-QUERIES-ONLY",
    "The axis of length 1 comes last: (b k 1).",
    "That hides the padded queries, all their row, and leaves the padded keys visible to "
    "everybody else. Keys are the last axis.",
    axes=lambda real, lengths: real[:, :, None],
)
task.fault(
    "C-HEAD-AXIS",
    "There must be axes for the heads and for the queries: (b 1 1 k).",
    "Beside scores (b h q k) that works. But this function promises (b 1 k); the layer that knows "
    "its heads puts their axis in.",
    axes=lambda real, lengths: real[:, None, None],
)
task.fault(
    "C-AXIS-IN-FRONT",
    "The missing axis of length 1 comes first: (1 b k).",
    "Beside scores (b q k), its b is taken for q: the length of sentence 1 holds for query 1, in "
    "every sentence. The batch stays first, and the new axis stands where the queries are.",
    axes=lambda real, lengths: real[None],
)
task.fault(
    "C-COPIES-FOR-QUERIES",
    "All queries of a sentence need their own copy of its row.",
    "There may be any number of queries, and a single row serves them all: an axis of length 1 "
    "stretches by itself. Yours fits only where there are as many queries as keys.",
    axes=lambda real, lengths: real[:, None].repeat(1, real.shape[-1], 1),
)
task.fault(
    "C-ONE-MORE",
    "Places up to the length are real.",
    "Places are counted from 0, so a sentence of 3 words has the places 0, 1, 2. Yours shows one "
    "pad, unless the sentence fills the table.",
    real=up_to,
)
task.fault(
    "C-ONE-LESS",
    "Places are counted from 1.",
    "They are counted from 0. Your mask hides the last real word of every sentence.",
    places=lambda max_length, lengths: 1 + torch.arange(max_length),
)
task.fault(
    "C-PADDED-LEFT",
    "The padding comes first, then the words.",
    "Some programs pad on the left; here, as in all batches of this course, words come first. You "
    "hide the beginning of every sentence and show its padding.",
    real=lambda places, lengths: (places < lengths[:, None]).flip(-1),
)
task.fault(
    "C-LONGEST",
    "The table is as long as the longest sentence.",
    "The caller knows how long it is and says so: `max_length`. The batch may be padded further "
    "than its longest sentence; then the shapes no longer fit.",
    places=lambda max_length, lengths: torch.arange(int(lengths.max())),
)
task.fault(
    "C-LENGTHS-ALONG-PLACES",
    "torch compares places and lengths by itself; each sentence meets its own length.",
    "It lines axes up from the right, so place 0 meets the length of sentence 0, place 1 that of "
    "sentence 1. With as many sentences as places nobody complains.",
    real=along_places,
    axes=(
        lambda real, lengths: real.expand(len(lengths), 1, -1),
        as_is,
        ...,
        lambda real, lengths: real[None, None],
    ),
)
task.fault(
    "C-SHORTEST-FOR-ALL",
    "One length is enough for the batch: the shortest keeps all padding out.",
    "It does, and it hides the ends of all longer sentences as well. Each sentence has its own "
    "row, so it can have its own length.",
    sizes=lambda lengths: lengths.min().expand(len(lengths)),
)
task.fault(
    "C-LONGEST-FOR-ALL",
    "What matters is that no word is hidden, so the longest sentence decides.",
    "Then the padding of all shorter sentences is read like words. Each sentence has its own row, "
    "so it can have its own length.",
    sizes=lambda lengths: lengths.max().expand(len(lengths)),
)
task.fault(
    "C-FIRST-FOR-ALL",
    "The first sentence says how long the sentences of the batch are.",
    "It says so for itself. The others are longer or shorter: their words vanish, or their padding "
    "is read. Each sentence has its own row, so it can have its own length.",
    sizes=lambda lengths: lengths[:1].expand(len(lengths)),
)
task.fault(
    "C-SORTED",
    "Sentences have to be sorted by length first, longest first.",
    "Some recurrent networks want that, and then the sentences are sorted too. Here the rows of "
    "the mask no longer belong to their sentences, unless they came sorted.",
    sizes=lambda lengths: lengths.sort(descending=True).values,
)
task.fault(
    "C-NEVER-EMPTY",
    "A sentence has at least one word; to be safe I let the first place be seen.",
    "A sentence of length 0 is all padding, and this place too. What happens to its dead rows is "
    "the softmax's business; it must not read padding.",
    section="dead-rows",
    sizes=lambda lengths: lengths.clamp(min=1),
)
task.fault(
    "C-MINUS-ZERO",
    "The padding is the last max_length − length places: `mask[row, :, -pads:] = False`.",
    "Without padding, `-pads` is −0, which is 0, and the slice is the whole row: exactly the full "
    "sentences vanish. Count from the front.",
    real=counted_from_the_end,
)
task.fault(
    "C-ONLY-THE-LAST",
    "The length is the place to be marked.",
    "It tells how many words there are, and all of them may be seen: every place *below* the "
    "length. You mark a single place for each sentence.",
    real=(
        lambda places, lengths: places == lengths[:, None],
        lambda places, lengths: places == lengths[:, None] - 1,
    ),
)
task.fault(
    "C-ADDITIVE-MASK",
    "A mask holds 0 at words and −∞ at padding.",
    "Such a mask is added to the scores, and other libraries use it. In this course a mask is "
    "boolean: True = may attend.",
    section="mask-conventions",
    give=(
        lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),
        lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -1e9),
    ),
)
task.fault(
    "C-NOT-BOOLEAN",
    "Ones at words and zeros at padding are a mask.",
    "The places are right. But a mask of numbers is added to the scores, where a 1 hides nothing, "
    "and it cannot be combined with `&`. Return True and False.",
    section="mask-conventions",
    give=(lambda mask: mask.float(), lambda mask: mask.long()),
)
task.fault(
    "P-LOWPREC",
    "A place is a small number, so half precision is enough for it.",
    "In bfloat16, whole numbers are exact up to 256: place 257 becomes 256, and in a long "
    "sentence a pad is taken for a word. Whole numbers have dtypes of their own.",
    section="half-precision",
    places=lambda max_length, lengths: torch.arange(max_length).to(torch.bfloat16),
)
task.fault(
    "C-LENGTHS-EDITED",
    "I turn lengths into last places first: `lengths -= 1`.",
    "The mask is right, but `lengths` belongs to the caller, whose sentences are all one shorter "
    "after your call. `lengths - 1` makes a new tensor.",
    sizes=lambda lengths: lengths.sub_(1),
    real=up_to,
)

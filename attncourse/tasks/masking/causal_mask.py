"""Nobody sees the future: what is promised, the reference in steps, what goes wrong."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.observe import CAUSAL_MASK
from attncourse.checks.task import Task
from attncourse.tasks.masking import a_mask, remembers, still_answers


def lengths_of(q, *k):
    return {"query_length": q} | dict(zip(("key_length",), k, strict=False))


def probes(rng):
    return {
        "four": lengths_of(4),
        "one": lengths_of(1),
        "three and three": lengths_of(3, 3),
        "six, None": lengths_of(6, None),
        "one of four": lengths_of(1, 4),
        "two of four": lengths_of(2, 4),
        "three of five": lengths_of(3, 5),
        "four of five": lengths_of(4, 5),
        "two of seven": lengths_of(2, 7),
        "two of eight": lengths_of(2, 8),
        "three of seven": lengths_of(3, 7),
    }


def traits(answer):
    stale = any(
        not remembers(answer, before, before) and remembers(answer, before, after)
        for before, after in (
            (lengths_of(23, 31), lengths_of(23, 29)),  # sizes that no check has used
            (lengths_of(27), lengths_of(26)),
            (lengths_of(24), lengths_of(25)),
            (lengths_of(14, 33), lengths_of(15, 33)),
        )
    )
    return {"remembers an earlier call": stale, "differs from call to call": stale}


def small(rng):
    for n in (1, 2, 3):
        yield lengths_of(n)
    for q, k in ((1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (2, 4), (3, 4), (3, 5)):
        yield lengths_of(q, k)
    yield lengths_of(2, None)


def seen_by(row) -> str:
    keys = row.nonzero().flatten().tolist()
    return f"key {keys[0]}" if len(keys) == 1 else f"keys {keys}" if keys else "no key at all"


def sees(answer, q, *k):
    """Assert that every query sees the keys it should, and say which one does not."""
    inputs = lengths_of(q, *k)
    expected = answer.expected(inputs)
    mask = a_mask(answer, inputs, tuple(expected.shape), "(q k)")
    for place, (ours, theirs) in enumerate(zip(expected, mask, strict=True)):
        if not torch.equal(ours, theirs):
            raise Failure(
                f"Of {q} queries and {expected.shape[1]} keys, counted from 0: query {place} may "
                f"see {seen_by(ours)}; with your mask it sees {seen_by(theirs)}.",
                inputs,
                expected,
                mask,
            )


task = Task(
    reference.causal_mask,
    number=2,
    returns=("mask",),
    difficulty=2,
    minutes=15,
    section="causal",
    hints=(
        "Draw the table for four words: a row for each query, a column for each key, a cross "
        "where the query may look. Where does the first word look, where the last?",
        "With as many keys as queries the crosses fill a triangle; `torch.tril` cuts one out "
        "of a full table. With more keys, the queries are the last words: move the edge of "
        "the triangle to the right until the last row is full. By how much?",
        "A table of q rows and k columns full of True (k is q if it is not given), then tril "
        "with its second argument, the diagonal: 0 when k = q, and one more for every further "
        "key.",
    ),
    probes=probes,
    small=small,
    forbidden=CAUSAL_MASK,
    traits=traits,
)


@task.check(1)
def a_row_for_every_query_and_a_column_for_every_key(answer):
    for q, k in ((4, 4), (3, 5), (1, 4), (1, 1)):
        a_mask(answer, lengths_of(q, k), (q, k), "(q k)")


@task.check(1)
def a_word_sees_itself_and_nothing_later(answer):
    for n in (1, 2, 4, 5):
        inputs = lengths_of(n, n)
        mask = a_mask(answer, inputs, (n, n), "(q k)")
        if not mask.diagonal().all():
            raise Failure("Some word does not see it", inputs, got=mask)
        if mask.triu(1).any():
            raise Failure(
                "Some word sees a later one, which it will have to predict.", inputs, got=mask
            )


@task.check(1)
def a_word_sees_all_that_came_before(answer):
    for n in (1, 2, 4, 5):
        sees(answer, n, n)


@task.check(1)
def one_length_is_enough(answer):
    for n in (1, 3, 6):
        sees(answer, n)
        sees(answer, n, None)


@task.check(1)
def the_last_query_sees_every_key(answer):
    for q, k in ((1, 4), (2, 5), (3, 4), (4, 7), (1, 1)):
        inputs = lengths_of(q, k)
        mask = a_mask(answer, inputs, (q, k), "(q k)")
        if not mask[-1].all():
            who = f"{q} queries are" if q > 1 else "one query is"
            raise Failure(
                f"The {who} the last of {k} words, so the last query comes after all others. "
                f"With your mask it sees {seen_by(mask[-1])}.",
                inputs,
                got=mask,
            )


@task.check(1)
def every_query_sees_one_key_more_than_the_query_before(answer):
    for q, k in ((2, 3), (2, 7), (3, 5), (4, 5), (5, 6), (2, 300)):
        sees(answer, q, k)


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, lengths_of(3, 5))
    for before, after in (
        ((17,), (16,)),
        ((12,), (13,)),
        ((11, 19), (11, 15)),
        ((9, 21), (10, 21)),
    ):
        still_answers(answer, lengths_of(*before), lengths_of(*after))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Mask:
    def keys(query_length, key_length):
        return query_length if key_length is None else key_length

    def offset(q, k):
        return k - q

    def cut(everything, offset):
        return everything.tril(offset)

    def give(mask, offset):
        return mask

    def __call__(self, query_length, key_length=None):
        k = self.keys(query_length, key_length)
        offset = self.offset(query_length, k)
        everything = torch.ones(query_length, k, dtype=torch.bool)
        return self.give(self.cut(everything, offset), offset)


# --- faults -------------------------------------------------------------------------------------


def zero(q, k):
    return 0


def opposite(mask, offset):
    return ~mask


def as_numbers(mask, offset):
    return mask.float()


def lowered(number):
    return lambda mask, offset: torch.zeros(mask.shape).masked_fill(~mask, number)


def turned(everything, offset):
    return everything.mT


task.fault(
    "M-POLARITY",
    "True marks what is masked, that is, hidden.",
    "In `nn.MultiheadAttention` it does. In this course, as in `F.scaled_dot_product_attention`, "
    "True means: may attend. Your table shows the future and hides the past.",
    section="mask-conventions",
    offset=(..., zero, zero),
    give=(opposite, opposite, lambda mask, offset: (~mask).float()),
)
task.fault(
    "M-TRIU-DIAG",
    "A word may look at the words before it.",
    "And at itself. Without the diagonal the first word has nothing at all to look at: its row is "
    "dead.",
    offset=(lambda q, k: k - q - 1, lambda q, k: -1),
)
task.fault(
    "M-TRIL-ONE",
    "The triangle has to be one wider, so that the diagonal is in it.",
    "`tril` with 0 keeps the diagonal already. One wider, and each word sees the next, the very "
    "one that is to be predicted.",
    section="dependency-maps",
    offset=(lambda q, k: k - q + 1, lambda q, k: 1),
)
task.fault(
    "M-TRANSPOSED",
    "The triangle goes to the upper right.",
    "Rows are queries. In an upper triangle each word sees itself and all that follows. In "
    "pictures with queries as columns it would be right.",
    offset=(..., zero, zero),
    cut=(torch.triu, torch.triu, lambda everything, offset: everything.mT.triu()),
)
task.fault(
    "M-TOPLEFT",
    "The triangle starts at the top left, whatever the shape.",
    "With more keys than queries, the queries are the last words, not the first. A single query, "
    "the newest word, would see the first key only.",
    offset=zero,
    give=(..., as_numbers),
)
task.fault(
    "C-SHIFT-OTHER-WAY",
    "The diagonal is moved by query_length − key_length.",
    "The sign is the other way: a positive diagonal moves the edge to the right and shows more. "
    "With yours, further keys make the queries see less.",
    offset=lambda q, k: q - k,
)
task.fault(
    "C-ONE-KEY-MORE",
    "If there are more keys than queries, the triangle moves by one.",
    "It moves by as many places as there are further keys. With one further key that is the same; "
    "with two, the last query already misses one.",
    offset=lambda q, k: min(k - q, 1),
)
task.fault(
    "C-PAST-HIDDEN",
    "The triangle belongs at the right end; the keys before it are done with.",
    "The triangle is in its place. But the earlier keys are the past, which every query may see: "
    "that is why somebody kept them.",
    give=lambda mask, offset: mask & torch.ones_like(mask).cumsum(1).gt(offset),
)
task.fault(
    "C-ALL-WITH-MORE-KEYS",
    "With more keys than queries everything is the past, so nothing is hidden.",
    "That holds for a single query. When several words come at once, the first of them must not "
    "see the ones behind it.",
    cut=lambda everything, offset: everything if offset else everything.tril(),
)
task.fault(
    "C-SQUARE",
    "The mask is square, since every word is a query and a key.",
    "Not when the keys of earlier words were kept: then there are fewer queries than keys, and "
    "the table has a row only for each query.",
    cut=lambda everything, offset: everything[:1].expand(everything.shape[1], -1).tril(),
)
task.fault(
    "C-KEYS-IGNORED",
    "The number of queries settles everything.",
    "It settles the rows. The columns are the keys, and `key_length` says how many there are; "
    "yours have as many columns as rows.",
    keys=lambda query_length, key_length: query_length,
)
task.fault(
    "C-ROWS-ARE-KEYS",
    "The mask has a row for each key.",
    "Scores have a row for each query and a column for each key, and the mask has to lie on top "
    "of them. Yours fits only when the two lengths are equal.",
    cut=(
        lambda everything, offset: everything.tril(offset).mT if offset else everything.tril(),
        lambda everything, offset: everything.mT.tril(offset),
    ),
)
task.fault(
    "C-ADDITIVE-MASK",
    "A mask holds 0 where one may look and −∞ where not.",
    "Such a mask is added to the scores, and other libraries use it. In this course a mask is "
    "boolean: True = may attend.",
    section="mask-conventions",
    give=(lowered(-torch.inf), lowered(-1e9)),
)
task.fault(
    "C-NOT-BOOLEAN",
    "Ones and zeros are as good as True and False.",
    "Not to PyTorch: `~` of a number is something else, and as a mask numbers are added to the "
    "scores, where a 1 hides nothing. The places are right, the dtype is not.",
    section="mask-conventions",
    give=(as_numbers, lambda mask, offset: mask.long()),
)
task.fault(
    "C-ONLY-THE-NEIGHBOR",
    "Each word sees itself and the word before it.",
    "And all the words before that. Two diagonals are too few: a word far back would be "
    "forgotten, as attention is there to prevent.",
    cut=lambda everything, offset: everything.tril(offset).triu(offset - 1),
)
task.fault(
    "C-ONLY-ITSELF",
    "To be safe, a word sees nothing but itself.",
    "It is safe, and deaf: the words before it are known and may be used. Everything up to the "
    "diagonal is allowed.",
    cut=lambda everything, offset: everything.tril(offset).triu(offset),
)
task.fault(
    "C-NOTHING-HIDDEN",
    "A mask full of True, and the model learns by itself what not to look at.",
    "It learns the opposite: to copy the word that it should predict, which is the easiest way to "
    "a small loss. Then it cannot write.",
    cut=lambda everything, offset: everything,
)
task.fault(
    "C-WINDOW",
    "Words far back no longer matter, so each word sees the last three.",
    "Some models cut there to save memory, and lose what stood before. Here a word sees *all* that "
    "came before it, however far back.",
    cut=lambda everything, offset: everything.tril(offset).triu(offset - 2),
)
task.fault(
    "C-MIRRORED",
    "Time runs from right to left in the table.",
    "Column 0 is the first key, and row 0 the first query. Mirrored, the first word sees the last "
    "one and what lies before it is hidden: the triangle's long side starts at the top left.",
    give=(lambda mask, offset: mask.flip(-1), lambda mask, offset: mask.flip(0)),
)
task.fault(
    "C-BATCH-AXES",
    "A mask needs axes for the batch and the heads.",
    "They may be there and broadcast, but this function promises (q k). An axis too many breaks "
    "whoever combines it with `&` or cuts out rows.",
    give=(lambda mask, offset: mask[None, None], lambda mask, offset: mask[None]),
)
task.fault(
    "C-TWO-LENGTHS-NEEDED",
    "The caller always gives both lengths.",
    "With as many keys as queries one is enough: `key_length` may be left out, or be None, and "
    "then it is the same as `query_length`.",
    keys=lambda query_length, key_length: key_length,
)


@task.fault(
    "K-STALE",
    "A mask depends on the number of queries, so I keep one for each number.",
    "It depends on both lengths. For as many queries and another number of keys your answer gives "
    "the table of the first call.",
)
class KeptByQueries(Mask):
    def __call__(self, query_length, key_length=None):
        kept = vars(self)
        if str(query_length) not in kept:
            kept[str(query_length)] = super().__call__(query_length, key_length)
        return kept[str(query_length)]

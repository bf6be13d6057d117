"""causal_mask."""

import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks.masking import a_mask, remembers, still_answers


def lengths_of(q, *k):
    return {"query_length": q} | dict(zip(("key_length",), k, strict=False))


def causal_probes(rng):
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


def causal_traits(answer):
    stale = any(
        remembers(answer, before, after)
        for before, after in (
            (lengths_of(11, 17), lengths_of(11, 13)),
            (lengths_of(19), lengths_of(17)),
            (lengths_of(17), lengths_of(19)),
            (lengths_of(2, 11), lengths_of(3, 11)),
        )
        if not remembers(answer, after, after)
    )
    return {"remembers an earlier call": stale, "differs from call to call": stale}


def causal_small(rng):
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
    probes=causal_probes,
    small=causal_small,
    traits=causal_traits,
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


# --- faults ---------------------------------------------------------------------------------------


def table(query_length, key_length=None):
    """Everything allowed, and by how much the queries' places lie behind."""
    key_length = query_length if key_length is None else key_length
    return torch.ones(query_length, key_length, dtype=torch.bool), key_length - query_length


def triangle(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset)


def future_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].triu(1)


def future_in_ones_and_zeros(query_length, key_length=None):
    return future_from_the_left(query_length, key_length).float()


@task.fault(
    "M-POLARITY",
    thinks="True marks what is masked, that is, hidden.",
    why="In `nn.MultiheadAttention` it does. In this course, as in "
    "`F.scaled_dot_product_attention`, True means: may attend. Your table shows the future and "
    "hides the past.",
    section="mask-conventions",
    forms=(future_from_the_left, future_in_ones_and_zeros),
)
def true_means_hidden(query_length, key_length=None):
    return ~triangle(query_length, key_length)


def strictly_before_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].tril(-1)


@task.fault(
    "M-TRIU-DIAG",
    thinks="A word may look at the words before it.",
    why="And at itself. Without the diagonal the first word has nothing at all to look at: its row "
    "is dead.",
    forms=(strictly_before_from_the_left,),
)
def without_the_diagonal(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset - 1)


@task.fault(
    "M-TRIL-ONE",
    thinks="The triangle has to be one wider, so that the diagonal is in it.",
    why="`tril` with 0 keeps the diagonal already. One wider, and each word sees the next, the "
    "very one that is to be predicted.",
    section="dependency-maps",
)
def one_step_too_wide(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset + 1)


def upper_from_the_left(query_length, key_length=None):
    return table(query_length, key_length)[0].triu()


def columns_are_queries(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return torch.arange(key_length)[:, None] <= torch.arange(query_length)


@task.fault(
    "M-TRANSPOSED",
    thinks="The triangle goes to the upper right.",
    why="Rows are queries. In an upper triangle each word sees itself and all that follows. In "
    "pictures with queries as columns it would be right.",
    forms=(upper_from_the_left, columns_are_queries),
)
def upper_triangle(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.triu(offset)


def ones_from_the_top_left(query_length, key_length=None):
    return table(query_length, key_length)[0].float().tril()


def corner_of_a_larger_one(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return triangle(key_length)[:query_length]


@task.fault(
    "M-TOPLEFT",
    thinks="The triangle starts at the top left, whatever the shape.",
    why="With more keys than queries, the queries are the last words, not the first. A single "
    "query, the newest word, would see the first key only.",
    forms=(corner_of_a_larger_one, ones_from_the_top_left),
)
def from_the_top_left(query_length, key_length=None):
    return table(query_length, key_length)[0].tril()


@task.fault(
    "C-SHIFT-OTHER-WAY",
    thinks="The diagonal is moved by query_length − key_length.",
    why="The sign is the other way: a positive diagonal moves the edge to the right and shows "
    "more. With yours, further keys make the queries see less.",
)
def shifted_to_the_left(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(-offset)


@task.fault(
    "C-ONE-KEY-MORE",
    thinks="If there are more keys than queries, the triangle moves by one.",
    why="It moves by as many places as there are further keys. With one further key that is the "
    "same; with two, the last query already misses one.",
)
def moved_by_one(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(min(offset, 1))


@task.fault(
    "C-PAST-HIDDEN",
    thinks="The triangle belongs at the right end; the keys before it are done with.",
    why="The triangle is in its place. But the earlier keys are the past, which every query may "
    "see: that is why somebody kept them.",
)
def only_the_new_words(query_length, key_length=None):
    mask, offset = triangle(query_length, key_length), table(query_length, key_length)[1]
    mask[:, :offset] = False
    return mask


@task.fault(
    "C-ALL-WITH-MORE-KEYS",
    thinks="With more keys than queries everything is the past, so nothing is hidden.",
    why="That holds for a single query. When several words come at once, the first of them must "
    "not see the ones behind it.",
)
def all_with_more_keys(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything if offset else everything.tril()


@task.fault(
    "C-SQUARE",
    thinks="The mask is square, since every word is a query and a key.",
    why="Not when the keys of earlier words were kept: then there are fewer queries than keys, and "
    "the table has a row only for each query.",
)
def always_square(query_length, key_length=None):
    return triangle(query_length if key_length is None else key_length)


@task.fault(
    "C-KEYS-IGNORED",
    thinks="The number of queries settles everything.",
    why="It settles the rows. The columns are the keys, and `key_length` says how many there are; "
    "yours have as many columns as rows.",
)
def ignores_the_keys(query_length, key_length=None):
    return triangle(query_length)


@task.fault(
    "C-ROWS-ARE-KEYS",
    thinks="The mask has a row for each key.",
    why="Scores have a row for each query and a column for each key, and the mask has to lie on "
    "top of them. Yours fits only when the two lengths are equal.",
)
def keys_as_rows(query_length, key_length=None):
    mask = triangle(query_length, key_length)
    return mask if mask.shape[0] == mask.shape[1] else mask.mT


@task.fault(
    "C-ADDITIVE-MASK",
    thinks="A mask holds 0 where one may look and −∞ where not.",
    why="Such a mask is added to the scores, and other libraries use it. In this course a mask is "
    "boolean: True = may attend.",
    section="mask-conventions",
)
def zeros_and_infinities(query_length, key_length=None):
    mask = triangle(query_length, key_length)
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def whole_ones_and_zeros(query_length, key_length=None):
    return triangle(query_length, key_length).long()


@task.fault(
    "C-NOT-BOOLEAN",
    thinks="Ones and zeros are as good as True and False.",
    why="Not to PyTorch: `~` of a number is something else, and as a mask numbers are added to the "
    "scores, where a 1 hides nothing. The places are right, the dtype is not.",
    section="mask-conventions",
    forms=(whole_ones_and_zeros,),
)
def ones_and_zeros(query_length, key_length=None):
    return triangle(query_length, key_length).float()


@task.fault(
    "C-ONLY-THE-NEIGHBOR",
    thinks="Each word sees itself and the word before it.",
    why="And all the words before that. Two diagonals are too few: a word far back would be "
    "forgotten, as attention is there to prevent.",
)
def two_diagonals(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset) & everything.triu(offset - 1)


@task.fault(
    "C-ONLY-ITSELF",
    thinks="To be safe, a word sees nothing but itself.",
    why="It is safe, and deaf: the words before it are known and may be used. Everything up to the "
    "diagonal is allowed.",
)
def diagonal_only(query_length, key_length=None):
    everything, offset = table(query_length, key_length)
    return everything.tril(offset) & everything.triu(offset)


@task.fault(
    "C-NOTHING-HIDDEN",
    thinks="A mask full of True, and the model learns by itself what not to look at.",
    why="It learns the opposite: to copy the word that it should predict, which is the easiest way "
    "to a small loss. Then it cannot write.",
)
def hides_nothing(query_length, key_length=None):
    return table(query_length, key_length)[0]


@task.fault(
    "C-BATCH-AXES",
    thinks="A mask needs axes for the batch and the heads.",
    why="They may be there and broadcast, but this function promises (q k). An axis too many "
    "breaks whoever combines it with `&` or cuts out rows.",
    forms=(lambda query_length, key_length=None: triangle(query_length, key_length)[None],),
)
def axes_for_batch_and_heads(query_length, key_length=None):
    return triangle(query_length, key_length)[None, None]


@task.fault(
    "C-TWO-LENGTHS-NEEDED",
    thinks="The caller always gives both lengths.",
    why="With as many keys as queries one is enough: `key_length` may be left out, or be None, and "
    "then it is the same as `query_length`.",
)
def needs_both_lengths(query_length, key_length):
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(key_length - query_length)


_tables = {}


@task.fault(
    "K-STALE",
    thinks="A mask depends on the number of queries, so I keep one for each number.",
    why="It depends on both lengths. For as many queries and another number of keys your answer "
    "gives the table of the first call.",
)
def kept_by_queries(query_length, key_length=None):
    if query_length not in _tables:
        _tables[query_length] = triangle(query_length, key_length)
    return _tables[query_length]

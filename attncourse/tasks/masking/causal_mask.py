import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, following, moves_nothing
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


def sees(answer, q, *k, earlier=False):
    """Assert that every query sees the keys it should, and say which one does not.

    `earlier`: without a cache, of the keys before its own place alone.
    """
    inputs = lengths_of(q, *k)
    expected = answer.expected(inputs)
    mask = a_mask(answer, inputs, tuple(expected.shape), "(q k)")
    for place, (ours, theirs) in enumerate(zip(expected, mask, strict=True)):
        looked_at = slice(place) if earlier else slice(None)
        if not torch.equal(ours[looked_at], theirs[looked_at]):
            raise Failure(
                f"q = {q}, k = {expected.shape[1]}, counted from 0: query {place} may see "
                f"{seen_by(ours)}; with your mask it sees {seen_by(theirs)}.",
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
    probes=probes,
    small=small,
    forbidden=CAUSAL_MASK,
    traits=traits,
)


@task.check(1)
def a_table_of_booleans_with_a_row_for_every_query_and_a_column_for_every_key(answer):
    for q, k in ((4, 4), (3, 5), (1, 4), (1, 1)):
        a_mask(answer, lengths_of(q, k), (q, k), "(q k)")


@task.check(1, "without a cache a word sees itself and nothing later")
def a_word_sees_itself_and_nothing_later(answer):
    for n in (1, 2, 4, 5):
        inputs = lengths_of(n, n)
        mask = a_mask(answer, inputs, (n, n), "(q k)")
        if not mask.diagonal().all():
            raise Failure("Some word does not see itself.", inputs, got=mask)
        if mask.triu(1).any():
            raise Failure(
                "Some word sees a later one, which it will have to predict.", inputs, got=mask
            )


@task.check(1, "without a cache a word sees all that came before")
def a_word_sees_all_that_came_before(answer):
    for n in (1, 2, 4, 5):
        sees(answer, n, n, earlier=True)


@task.check(1)
def one_length_is_enough(answer):
    for n in (1, 3, 6):
        with following(lambda n=n: sees(answer, n, n)):
            sees(answer, n)
            sees(answer, n, None)


@task.check(1)
def the_last_query_sees_every_key(answer):
    for q, k in ((1, 4), (2, 5), (3, 4), (4, 7), (1, 1)):
        inputs = lengths_of(q, k)
        mask = a_mask(answer, inputs, (q, k), "(q k)")
        if not mask[-1].all():
            who = "one query" if q == 1 else f"last of {q} queries"
            raise Failure(
                f"The {who} is the last of {k} words and may see them all. With your mask it sees "
                f"{seen_by(mask[-1])}.",
                inputs,
                got=mask,
            )


@task.check(1)
def with_more_keys_than_queries_every_query_sees_the_right_keys(answer):
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

    def table(q, k):
        return torch.ones(q, k, dtype=torch.bool)

    def offset(q, k):
        return k - q

    def edge(offset):
        return offset

    def cut(everything, offset):
        return everything.tril(offset)

    def marked(mask, offset):
        return mask

    def give(mask, offset):
        return mask

    def __call__(self, query_length, key_length=None):
        k = self.keys(query_length, key_length)
        offset = self.edge(self.offset(query_length, k))
        mask = self.marked(self.cut(self.table(query_length, k), offset), offset)
        return self.give(mask, offset)


# --- faults -------------------------------------------------------------------------------------


def zero(q, k):
    return 0


def opposite(mask, offset):
    return ~mask


def as_numbers(mask, offset):
    return mask.float()


def as_type(kind):
    return lambda mask, offset: mask.to(kind)


def lowered(number):
    return lambda mask, offset: torch.zeros(mask.shape).masked_fill(~mask, number)


def first_row_kept(mask, offset):
    """In the first row, which would see too little, the word itself stays."""
    first = torch.zeros_like(mask)
    first[:1, max(0, offset + 1) : max(0, offset + 2)] = True
    return mask | first


def turned(everything, offset):
    return everything.mT


task.fault("M-POLARITY", section="mask-conventions", marked=opposite)
task.fault("M-TRIU-DIAG", edge=lambda offset: offset - 1, marked=(..., first_row_kept))
task.fault("M-TRIL-ONE", section="dependency-maps", edge=lambda offset: offset + 1)
task.fault(
    "M-TRANSPOSED",
    cut=(
        lambda everything, offset: everything.triu(offset),
        lambda everything, offset: everything.triu(),
    ),
    table=(..., lambda q, k: torch.ones(k, q, dtype=torch.bool)),
)
task.fault("M-TOPLEFT", offset=zero)
task.fault("C-SHIFT-OTHER-WAY", offset=lambda q, k: q - k)
task.fault("C-ONE-KEY-MORE", offset=lambda q, k: min(k - q, 1))
task.fault("C-ONE-PLACE-TOO-FAR", offset=lambda q, k: k - q + (k > q))
task.fault(
    "C-PAST-HIDDEN", marked=lambda mask, offset: mask & torch.ones_like(mask).cumsum(1).gt(offset)
)
task.fault(
    "C-ALL-WITH-MORE-KEYS",
    cut=lambda everything, offset: everything if offset else everything.tril(),
)
task.fault(
    "C-SQUARE", cut=lambda everything, offset: everything[:1].expand(everything.shape[1], -1).tril()
)
task.fault("C-KEYS-IGNORED", keys=lambda query_length, key_length: query_length)
task.fault(
    "C-ROWS-ARE-KEYS",
    marked=(
        lambda mask, offset: mask.mT if offset else mask,
        ...,
        lambda mask, offset: mask.mT,
    ),
    table=(..., lambda q, k: torch.ones(k, q, dtype=torch.bool), ...),
)
task.fault("C-ADDITIVE-MASK", section="mask-conventions", give=(lowered(-torch.inf), lowered(-1e9)))
task.fault(
    "C-NO-TENSOR", give=(lambda mask, offset: mask.tolist(), lambda mask, offset: mask.numpy())
)
task.fault(
    "C-NOT-BOOLEAN",
    section="mask-conventions",
    give=(as_numbers, *(as_type(kind) for kind in (torch.int64, torch.float64, torch.int32))),
)
task.fault(
    "C-ONLY-THE-NEIGHBOR", cut=lambda everything, offset: everything.tril(offset).triu(offset - 1)
)
task.fault("C-ONLY-ITSELF", cut=lambda everything, offset: everything.tril(offset).triu(offset))
task.fault("C-NOTHING-HIDDEN", marked=lambda mask, offset: torch.ones_like(mask))
task.fault("C-WINDOW", cut=lambda everything, offset: everything.tril(offset).triu(offset - 2))
task.fault(
    "C-MIRRORED", marked=(lambda mask, offset: mask.flip(-1), lambda mask, offset: mask.flip(0))
)
task.fault(
    "C-BATCH-AXES", give=(lambda mask, offset: mask[None, None], lambda mask, offset: mask[None])
)
task.fault("C-TWO-LENGTHS-NEEDED", keys=lambda query_length, key_length: key_length)


@task.fault("K-STALE")
class KeptByQueries(Mask):
    def __call__(self, query_length, key_length=None):
        kept = vars(self)
        if str(query_length) not in kept:
            kept[str(query_length)] = super().__call__(query_length, key_length)
        return kept[str(query_length)]

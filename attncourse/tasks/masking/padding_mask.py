import torch

from attncourse import masking as reference
from attncourse.checks.answer import Failure, compare, following, moves_nothing
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
    if len(places) == 1:
        return f"place {places[0]}"
    return f"places {places}" if places else "no place"


task = Task(
    reference.padding_mask,
    number=3,
    returns=("mask",),
    difficulty=2,
    minutes=15,
    section="padding",
    probes=probes,
    small=small,
)


@task.check(1)
def booleans_in_one_row_for_all_queries_of_a_sentence(answer):
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
    with following(lambda: (hides(answer, sentences(2, k=3)), hides(answer, sentences(3, k=3)))):
        hides(answer, sentences(2, 4, 1, 3, k=4))  # as many sentences as places
        hides(answer, sentences(1, 3, 2, k=3))
    inputs = sentences(2, 5, 3, k=5)
    together = a_mask(answer, inputs, (3, 1, 5), "(b 1 k)")
    for row, length in enumerate(inputs["lengths"].tolist()):
        alone = answer(sentences(length, k=5))
        compare("the mask of a sentence on its own", alone, together[row : row + 1], inputs)


def right_as_usual(answer):
    """Assert that tables of the usual length come out right: what is wrong there has a check."""
    hides(answer, sentences(3, 1, 4, k=5))
    hides(answer, sentences(5, 2, 3, k=5))


@task.check(1)
def the_caller_says_how_long_the_table_is(answer):
    for k in (3, 4, 7):
        a_mask(answer, sentences(2, 3, k=k), (2, 1, k), "(b 1 k)")
    with following(lambda: right_as_usual(answer)):
        for k in (3, 4, 7):
            hides(answer, sentences(2, 3, k=k))
        hides(answer, sentences(257, 260, k=300))  # one byte cannot count so far
        hides(answer, sentences(2049, 2051, k=2060))  # nor can float16


@task.check(1)
def a_full_sentence_shows_all_and_an_empty_one_nothing(answer):
    hides(answer, sentences(3, 3, k=3))
    hides(answer, sentences(1, 1, k=1))
    hides(answer, sentences(4, 0, 4, k=4))
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

    def side(real):
        return real

    def axes(real, lengths):
        return real[:, None]

    def give(mask):
        return mask

    def __call__(self, lengths, max_length):
        places = self.places(max_length, lengths)
        real = self.side(self.real(places, self.sizes(lengths)))
        return self.give(self.axes(real, lengths))


# --- faults -------------------------------------------------------------------------------------


def up_to(places, lengths):
    return places <= lengths[:, None]


def along_places(places, lengths):
    return places < lengths


def row_by_row(of):
    """Each row filled by a slice, whose ends may turn out to be counted from the end."""

    def real(places, lengths):
        mask = torch.zeros(len(lengths), len(places), dtype=torch.bool)
        for row, length in enumerate(lengths.tolist()):
            mask[row, of(length)] = True
        return mask

    return real


def as_type(kind):
    return lambda mask: mask.to(kind)


def counted_from_the_end(places, lengths):
    mask = torch.ones(len(lengths), len(places), dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        mask[row, -(len(places) - length) :] = False
    return mask


task.fault("M-POLARITY", section="mask-conventions", give=lambda mask: ~mask)
task.fault("M-SHAPE-BT", axes=as_is)
task.fault("M-QUERY-PAD", axes=lambda real, lengths: real[:, :, None] & real[:, None, :])
task.fault("C-QUERIES-ONLY", axes=lambda real, lengths: real[:, :, None])
task.fault(
    "M-ALWAYS-CAUSAL",
    section="mask-conventions",
    axes=lambda real, lengths: (
        real[:, None] & torch.ones(real.shape[-1], real.shape[-1], dtype=torch.bool).tril()
    ),
)
task.fault("C-HEAD-AXIS", axes=lambda real, lengths: real[:, None, None])
task.fault("C-AXIS-IN-FRONT", axes=lambda real, lengths: real[None])
task.fault(
    "C-COPIES-FOR-QUERIES", axes=lambda real, lengths: real[:, None].repeat(1, real.shape[-1], 1)
)
task.fault("C-ONE-MORE", real=up_to)
task.fault(
    "C-ONE-LESS",
    places=(lambda max_length, lengths: 1 + torch.arange(max_length), ...),
    real=(..., row_by_row(lambda length: slice(length - 1))),
)
task.fault("C-FROM-ONE", real=lambda places, lengths: (places > 0) & (places <= lengths[:, None]))
task.fault(
    "C-PADDED-LEFT",
    side=(lambda real: real.flip(-1), ...),
    real=(..., row_by_row(lambda length: slice(-length, None))),
)
task.fault("C-PLACES-FIRST", side=lambda real: real.mT)
task.fault("C-LONGEST", places=lambda max_length, lengths: torch.arange(int(lengths.max())))
task.fault(
    "C-LENGTHS-ALONG-PLACES",
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
    sizes=(lambda lengths: lengths.min().expand(len(lengths)), lambda lengths: lengths.min()[None]),
)
task.fault(
    "C-LONGEST-FOR-ALL",
    sizes=(lambda lengths: lengths.max().expand(len(lengths)), lambda lengths: lengths.max()[None]),
)
task.fault(
    "C-FIRST-FOR-ALL",
    sizes=(lambda lengths: lengths[:1].expand(len(lengths)), lambda lengths: lengths[:1]),
)
task.fault(
    "C-SORTED",
    sizes=(
        lambda lengths: lengths.sort(descending=True).values,
        lambda lengths: lengths.sort().values,
    ),
)
task.fault("C-NEVER-EMPTY", section="dead-rows", sizes=lambda lengths: lengths.clamp(min=1))
task.fault("C-MINUS-ZERO", real=counted_from_the_end)
task.fault(
    "C-ONLY-THE-LAST",
    real=(
        lambda places, lengths: places == lengths[:, None],
        lambda places, lengths: places == lengths[:, None] - 1,
        row_by_row(lambda length: length - 1),
    ),
)
task.fault(
    "C-ADDITIVE-MASK",
    section="mask-conventions",
    give=(
        lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),
        lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -1e9),
    ),
)
task.fault("C-NO-TENSOR", give=(lambda mask: mask.tolist(), lambda mask: mask.numpy()))
task.fault(
    "C-NOT-BOOLEAN",
    section="mask-conventions",
    give=tuple(map(as_type, (torch.float32, torch.int64, torch.float64, torch.int32))),
)
task.fault(
    "P-LOWPREC",
    section="half-precision",
    places=lambda max_length, lengths: torch.arange(max_length).to(torch.bfloat16),
)
task.fault("C-LENGTHS-EDITED", sizes=lambda lengths: lengths.sub_(1), real=up_to)

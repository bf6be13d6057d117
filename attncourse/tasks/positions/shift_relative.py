import torch
from torch.nn.functional import pad

from attncourse import positions as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.axes import of_fixed_axes


def shift_inputs(rng, *batch, q=3, k=5, dtype=torch.float32):
    return {"scores": normal(rng, *batch, q, q + k - 1, dtype=dtype)}


def said_by_offset(*batch, q=3, k=5):
    """Every score is its own offset: what comes back has to be j − i."""
    offsets = torch.arange(1.0 - k, q, device="cpu")
    return {"scores": offsets.expand(*batch, q, -1).clone()}


def probes(rng):
    return {
        "plain": shift_inputs(rng, 2),
        "square": shift_inputs(rng, 2, q=4, k=4),
        "two leading axes": shift_inputs(rng, 2, 3, q=3, k=4),
        "no leading axis": shift_inputs(rng, q=4, k=6),
        "one query": shift_inputs(rng, 2, q=1, k=4),
        "one key": shift_inputs(rng, 2, q=3, k=1),
        "two queries": shift_inputs(rng, 3, q=2, k=6),
        "more queries than keys": shift_inputs(rng, 2, q=5, k=3),
        "all equal": shift_inputs(rng, 3, 3, q=3, k=3),
        "offsets": said_by_offset(q=4, k=4),
        "double": shift_inputs(rng, 2, dtype=torch.float64),
    }


def small(rng):
    for q, k in ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (3, 4)):
        yield {"scores": said_by_offset(q=q, k=k)["scores"] + 10 * torch.arange(q)[:, None]}
    yield {"scores": torch.arange(12.0).reshape(2, 2, 3)}


def maps(rng):
    return [("one sentence, three queries, four keys", shift_inputs(rng, 1, q=3, k=4), ("scores",))]


task = Task(
    reference.shift_relative,
    number=5,
    returns=("shifted",),
    difficulty=4,
    minutes=30,
    section="transformer-xl",
    probes=probes,
    differentiated=("plain",),
    small=small,
    maps=maps,
    features=1,
)


@task.check(1)
def one_score_for_every_query_and_key(answer, rng):
    for batch, q, k in (((2,), 3, 5), ((2, 3), 4, 4), ((), 2, 6)):
        inputs = shift_inputs(rng, *batch, q=q, k=k)
        has_shape("shifted", answer(inputs), "(… q k)", *batch, q, k, inputs=inputs)


@task.check(2, "without leading axes every score comes from its offset")
def every_score_comes_from_its_offset(answer, rng):
    for q, k in ((4, 4), (3, 6), (2, 3), (1, 5)):
        inputs = said_by_offset(q=q, k=k)
        got = answer(inputs)
        has_shape("shifted", got, "(q k)", q, k, inputs=inputs)
        expected = answer.expected(inputs)
        wrong = (got != expected).nonzero()
        if len(wrong):
            i, j = wrong[0].tolist()
            due, came = answer.apart(expected[i, j], got[i, j], ".0f")
            known = (inputs["scores"][0] == got[i, j]).any()
            raise Failure(
                f"{q} queries are the last of {k} keys. Query {i} stands at place {i + k - q}, so "
                f"key {j} has offset {due}; yours "
                + (
                    f"comes from offset {came}." if known else f"is {came}, the score of no offset."
                ),
                inputs,
                expected,
                got,
            )


@task.check(1)
def all_scores_come_out_right(answer, rng):
    answer.matches(shift_inputs(rng, 2))
    answer.matches(shift_inputs(rng, 2, q=4, k=4))
    answer.matches(shift_inputs(rng, q=4, k=6))
    answer.matches(shift_inputs(rng, 2, dtype=torch.float64))


@task.check(1)
def it_is_right_with_any_leading_axes(answer, rng):
    answer.matches(shift_inputs(rng, 2, 3, q=3, k=4))
    answer.matches(shift_inputs(rng, 3, 3, q=3, k=3))
    answer.matches(shift_inputs(rng, q=2, k=2))


@task.check(1)
def it_is_right_with_one_query_or_one_key(answer, rng):
    answer.matches(shift_inputs(rng, 2, q=1, k=4))
    answer.matches(shift_inputs(rng, 2, q=3, k=1))
    answer.matches(shift_inputs(rng, 2, q=5, k=3))


@task.check(1)
def gradients_are_right_and_nothing_else_changes(answer, rng):
    answer.gradients_match(shift_inputs(rng, 2))
    moves_nothing(answer, shift_inputs(rng, 2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Shift:
    read = as_is
    axes = as_is
    table = as_is

    def keys(q, r):
        return r - q + 1

    def zero(q, k, r):
        """The column of offset 0, in the row of the first query's."""
        return q - 1

    def start(zero, i):
        return zero - i

    def places(q, k):
        """Columns of the result."""
        return torch.arange(k)

    def column(start, j):
        return start + j

    def pick(scores, columns, k):
        columns = columns.clamp(0, scores.shape[-1] - 1)
        return scores.gather(-1, columns.expand(*scores.shape[:-1], -1))

    def hide(shifted):
        return shifted

    def turn(shifted):
        return shifted

    def result(shifted, scores):
        return shifted

    def __call__(self, scores):
        scores = self.axes(self.read(scores))
        q, r = scores.shape[-2:]
        k = self.keys(q, r)
        start = self.start(self.zero(q, k, r), torch.arange(q)[:, None])
        columns = self.column(start, self.places(q, k))
        shifted = self.turn(self.hide(self.pick(self.table(scores), columns, k)))
        return self.result(shifted, scores)


# --- faults: which column -----------------------------------------------------------------------

BREAK = {"section": "relative-breaks"}


def around(scores, columns, k):
    """Before the first column comes the last one, as with Python's indices and `roll`."""
    return Shift.pick(scores, columns.remainder(scores.shape[-1]), k)


def in_one_list(scores, columns, k):
    """Beside a row stand a zero and the next row, as in Transformer-XL's trick."""
    q, r = scores.shape[-2:]
    beside = 2 * (q + r)  # zeros before the first row and after the last
    listed = pad(pad(scores, (1, 0)).flatten(-2), (beside, beside))
    return listed[..., beside + 1 + (r + 1) * torch.arange(q)[:, None] + columns]


task.spelling(pick=around)
task.spelling(pick=in_one_list)

task.fault("C-SHIFT-NONE", start=(lambda zero, i: 0 * i, lambda zero, i: 0 * i + zero))
task.fault("C-SHIFT-OTHER-WAY", start=lambda zero, i: i)
task.fault("C-SHIFT-FIRST-ROW-STAYS", zero=lambda q, k, r: 0)
task.fault("C-SHIFT-ONE-MORE", zero=lambda q, k, r: q)
task.fault("C-SHIFT-OTHER-END-CUT", zero=lambda q, k, r: -1, pick=in_one_list)
task.fault("C-SHIFT-ROLLED-RIGHT", zero=lambda q, k, r: -1, pick=around)
task.fault("C-SHIFT-ONE-LESS", zero=lambda q, k, r: q - 2)
task.fault("C-SHIFT-OFFSET-IS-COLUMN", column=lambda start, j: start + j - j[-1], pick=around)
task.fault("C-SHIFT-TWICE", start=lambda zero, i: 2 * (zero - i))
# By the count of keys, which may be wrong itself; or by the table.
task.fault(
    "C-SHIFT-FROM-THE-FIRST-KEY",
    **BREAK,
    zero=(lambda q, k, r: k - 1, lambda q, k, r: r - q),
)
task.fault(
    "C-SHIFT-BACKWARD",
    column=(lambda start, j: start + j.flip(-1), lambda start, j: start - j),
)
task.fault("C-SHIFT-MIRRORED", table=lambda scores: scores.flip(-1))
task.fault(
    "C-SHIFT-DISTANCE", column=lambda start, j: torch.minimum(start + j, 2 * (j[-1]) - start - j)
)

# --- faults: how many columns -------------------------------------------------------------------


task.fault("C-SHIFT-NOT-CUT", places=lambda q, k: torch.arange(q + k - 1), pick=in_one_list)
task.fault("C-SHIFT-CUT-LEFT", places=lambda q, k: torch.arange(q - 1, q + k - 1), pick=in_one_list)
task.fault(
    "C-SHIFT-PAST-ONLY",
    pick=lambda scores, columns, k: (
        pad(scores[..., :k], (1, 0))
        .flatten(-2)[..., scores.shape[-2] :]
        .unflatten(-1, (scores.shape[-2], k))
    ),
)
task.fault("C-SHIFT-SQUARE", keys=lambda q, r: q)
task.fault("C-SHIFT-KEYS-MINUS-ONE", keys=lambda q, r: r - q)
task.fault(
    "C-SHIFT-KEYS-MINUS-TWO",
    keys=(lambda q, r: r - q - 1, lambda q, r: max(0, r - q - 1)),
)
task.fault("C-SHIFT-HALF", keys=(lambda q, r: (r + 1) // 2, lambda q, r: r // 2 + 1))

# --- faults: how --------------------------------------------------------------------------------


def reshaped(scores, columns, k):
    q = scores.shape[-2]
    return scores.flatten(-2)[..., : q * k].unflatten(-1, (q, k))


task.fault("C-SHIFT-RESHAPED", pick=reshaped)
task.fault(
    "C-SHIFT-ONE-LIST",
    pick=lambda scores, columns, k: (
        pad(scores, (0, 1))
        .flatten()[scores.shape[-2] - 1 :][: scores.numel()]
        .view(scores.shape)[..., :k]
    ),
)
task.fault(
    "C-SHIFT-ONE-ROW",
    table=(
        lambda scores: scores[..., :1, :].expand_as(scores),
        lambda scores: scores[..., -1:, :].expand_as(scores),
    ),
)
task.fault(
    "M-ALWAYS-CAUSAL",
    hide=(
        lambda shifted: shifted.tril(shifted.shape[-1] - shifted.shape[-2]),
        lambda shifted: shifted.masked_fill(
            ~torch.ones_like(shifted, dtype=torch.bool).tril(shifted.shape[-1] - shifted.shape[-2]),
            -torch.inf,
        ),
    ),
)
task.fault("C-SHIFT-LAST-QUERY-FIRST", turn=lambda shifted: shifted.flip(-2))
task.fault("C-TURNED", turn=lambda shifted: shifted.mT)
of_fixed_axes(task, 3, 4, 2)
task.fault("C-SCORES-ARE-WEIGHTS", result=lambda shifted, scores: shifted.softmax(-1))
task.fault("C-FLOAT32", result=lambda shifted, scores: shifted.float())
task.fault("C-DETACHED", read=torch.detach)


def written_into(shifted, scores):
    """The first columns of the caller's table, in place."""
    k = shifted.shape[-1]
    with torch.no_grad():
        scores[..., :k] = shifted
    return scores[..., :k]


task.fault("C-INPLACE", result=written_into)

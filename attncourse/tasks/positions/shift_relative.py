"""From scores by offset to scores by key: task 5 of chapter 8."""

import torch

from attncourse import positions as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import thoughts


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
    hints=(
        "Write the table of offsets for q = 3, k = 3: five columns, −2 to 2. Mark in each row the "
        "three that you need. How does the mark move from row to row?",
        "One place to the left with every row. A table is a long list, cut into rows: give every "
        "row one number more, and cut the list again into rows of the old length. Where does each "
        "row begin now?",
        "Pad one column on the right and flatten the last two axes; drop the first q − 1 numbers, "
        "keep q · r, unflatten to (q, r), keep the first k = r − q + 1 columns. (Indices work, "
        "too: column j + q − 1 − i of row i.)",
    ),
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


@task.check(2)
def every_score_comes_from_its_offset(answer, rng):
    for q, k in ((4, 4), (3, 6), (2, 3), (1, 5)):
        inputs = said_by_offset(q=q, k=k)
        got = answer(inputs)
        has_shape("shifted", got, "(q k)", q, k, inputs=inputs)
        expected = answer.expected(inputs)
        wrong = (got != expected).nonzero()
        if len(wrong):
            i, j = wrong[0].tolist()
            raise Failure(
                f"{q} queries are the last of {k} keys. Query {i} stands at place {i + k - q}, so "
                f"key {j} has offset {expected[i, j]:.0f}; yours comes from offset "
                f"{got[i, j]:.0f}.",
                inputs,
                expected,
                got,
            )


@task.check(1)
def all_scores_of_a_row_are_its_own(answer, rng):
    answer.matches(shift_inputs(rng, 2))
    answer.matches(shift_inputs(rng, 2, q=4, k=4))
    answer.matches(shift_inputs(rng, q=4, k=6))
    answer.matches(shift_inputs(rng, 2, dtype=torch.float64))


@task.check(1)
def any_leading_axes_work(answer, rng):
    answer.matches(shift_inputs(rng, 2, 3, q=3, k=4))
    answer.matches(shift_inputs(rng, 3, 3, q=3, k=3))
    answer.matches(shift_inputs(rng, q=2, k=2))


@task.check(1)
def one_query_or_one_key_is_enough(answer, rng):
    answer.matches(shift_inputs(rng, 2, q=1, k=4))
    answer.matches(shift_inputs(rng, 2, q=3, k=1))
    answer.matches(shift_inputs(rng, 2, q=5, k=3))


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    answer.gradients_match(shift_inputs(rng, 2))
    moves_nothing(answer, shift_inputs(rng, 2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Shift:
    def read(scores):
        return scores

    def keys(q, r):
        return r - q + 1

    def start(i, q, k):
        return q - 1 - i

    def column(start, j):
        return start + j

    def pick(scores, columns, k):
        columns = columns.clamp(0, scores.shape[-1] - 1)
        return scores.gather(-1, columns.expand(*scores.shape[:-1], -1))

    def result(shifted, scores):
        return shifted

    def __call__(self, scores):
        scores = self.read(scores)
        q, r = scores.shape[-2:]
        k = self.keys(q, r)
        start = self.start(torch.arange(q)[:, None], q, k)
        columns = self.column(start, torch.arange(k))
        return self.result(self.pick(scores, columns, k), scores)


# --- faults: which column -----------------------------------------------------------------------

BREAK = {"section": "relative-breaks"}


def around(scores, columns, k):
    """Before the first column comes the last one, as with Python's indices and `roll`."""
    return Shift.pick(scores, columns.remainder(scores.shape[-1]), k)


task.fault(
    "C-SHIFT-NONE",
    "The columns are the keys.",
    "They are offsets: the same column is another key for every query. Each row has to be moved, "
    "and the farther down the less.",
    start=(lambda i, q, k: 0 * i, lambda i, q, k: 0 * i + q - 1),
)
task.fault(
    "C-SHIFT-OTHER-WAY",
    "Each row begins one column farther right than the one above.",
    "One column farther left: the next query stands one word later, so the same key is one step "
    "farther back for it.",
    start=lambda i, q, k: i,
)
task.fault(
    "C-SHIFT-FIRST-ROW-STAYS",
    "The first row is in its place, and each row below moves one farther to the right.",
    "Column 0 is the offset −(k − 1). That is how far key 0 stands from the *last* query, so the "
    "last row is in its place; the rows above move to the left, the first by q − 1.",
    start=lambda i, q, k: -i,
    pick=(..., around),
)
task.fault(
    "C-SHIFT-ONE-MORE",
    "The first row begins at column q.",
    "That is for a table with one column more, for the offset −k, as XLNet has it. Here column 0 "
    "is −(k − 1), so the first row begins at q − 1 and the last at 0.",
    start=lambda i, q, k: q - i,
    pick=(..., around),
)
task.fault(
    "C-SHIFT-ONE-LESS",
    "The last row begins one column before the first one.",
    "Counted from 0, the last row is q − 1 and begins at column 0. Yours begins before that, and "
    "every score comes from one offset too far back.",
    start=lambda i, q, k: q - 2 - i,
    pick=(..., around),
)
task.fault(
    "C-SHIFT-OFFSET-IS-COLUMN",
    "The score of offset o stands in column o.",
    "Column 0 is the offset −(k − 1), so k − 1 is added. Without it a negative offset is a column "
    "counted from the right: Python does so, without a word.",
    column=lambda start, j: start + j - j[-1],
    pick=around,
)
task.fault(
    "C-SHIFT-TWICE",
    "Two rows are two words apart.",
    "Neighboring queries stand one word apart, so neighboring rows begin one column apart.",
    start=lambda i, q, k: 2 * (q - 1 - i),
)
task.fault(
    "C-SHIFT-FROM-THE-FIRST-KEY",
    "The first query stands at the first key.",
    "With more keys than queries, the queries are the last words. Counted so, column 0 is not the "
    "offset −(k − 1), and every row begins too far right.",
    **BREAK,
    start=lambda i, q, k: k - 1 - i,
)
task.fault(
    "C-SHIFT-BACKWARD",
    "The columns count distances: 0 first, then farther and farther back.",
    "They count offsets from −(k − 1) up: the farthest key comes first. Yours reads each row from "
    "right to left.",
    column=lambda start, j: start + j.flip(-1),
)
task.fault(
    "C-SHIFT-MIRRORED",
    "Whether offsets or keys are counted from the left or the right makes no difference.",
    "Both count up: with the next key, the offset is larger by one. In your table every row is "
    "taken from the mirrored columns.",
    pick=lambda scores, columns, k: Shift.pick(scores.flip(-1), columns, k),
)
task.fault(
    "C-SHIFT-DISTANCE",
    "Before and after lie equally far away.",
    "They have columns of their own, below and above offset 0. Yours reads what comes after as if "
    "it came before.",
    column=lambda start, j: torch.minimum(start + j, 2 * (j[-1]) - start - j),
)

# --- faults: how many columns -------------------------------------------------------------------


def padded(scores, k):
    """Transformer-XL's trick: a column in front, the list cut anew, the first row dropped."""
    q, r = scores.shape[-2:]
    wide = torch.nn.functional.pad(scores, (1, 0)).flatten(-2)
    return wide[..., q:].unflatten(-1, (q, r))


task.fault(
    "C-SHIFT-NOT-CUT",
    "After the shift the table is ready.",
    "Each row is in its place at the left, and behind it stand numbers of the next row. Only the "
    "first k = r − q + 1 columns are keys.",
    pick=lambda scores, columns, k: padded(scores, k),
)
task.fault(
    "C-SHIFT-CUT-LEFT",
    "The last k columns are the keys.",
    "After the shift the *first* k are; behind them stand numbers that belong to the next row.",
    pick=lambda scores, columns, k: padded(scores, k)[..., -k:],
)
task.fault(
    "C-SHIFT-SQUARE",
    "There are as many keys as queries.",
    "Not when earlier words were kept. The number of keys follows from the table: r = q + k − 1.",
    keys=lambda q, r: q,
)
task.fault(
    "C-SHIFT-KEYS-MINUS-ONE",
    "There are r − q keys.",
    "One more: q queries and k keys have q + k − 1 different offsets, for offset 0 is counted "
    "once.",
    keys=lambda q, r: r - q,
)
task.fault(
    "C-SHIFT-HALF",
    "Half of the columns are before, half after, so there are (r + 1) / 2 keys.",
    "Only with as many keys as queries. In general r = q + k − 1.",
    keys=lambda q, r: (r + 1) // 2,
)

# --- faults: how --------------------------------------------------------------------------------


def reshaped(scores, columns, k):
    q = scores.shape[-2]
    return scores.flatten(-2)[..., : q * k].unflatten(-1, (q, k))


task.fault(
    "C-SHIFT-RESHAPED",
    "The first q · k numbers, cut into rows of k.",
    "Rows of k from a list whose rows have r = k + q − 1 begin q − 1 places too early each time, "
    "and soon hold numbers of other queries. One number more a row, and rows of r, is what moves "
    "each by one.",
    pick=reshaped,
)
task.fault(
    "C-SHIFT-ONE-LIST",
    "The whole table is one list, with its leading axes.",
    "For each sentence and head its own: in one list for all, every further table begins farther "
    "off, and its first scores come from the one before. Flatten the last two axes.",
    pick=lambda scores, columns, k: (
        torch.nn.functional.pad(scores, (0, 1))
        .flatten()[scores.shape[-2] - 1 :][: scores.numel()]
        .view(scores.shape)[..., :k]
    ),
)
task.fault(
    "C-SHIFT-ONE-ROW",
    "The first row shows how to shift, and the others follow it.",
    "Every query has scores of its own. Yours copies those of one query into all rows.",
    pick=(
        lambda scores, columns, k: Shift.pick(scores[..., :1, :].expand_as(scores), columns, k),
        lambda scores, columns, k: Shift.pick(scores[..., -1:, :].expand_as(scores), columns, k),
    ),
)
task.fault(
    "M-ALWAYS-CAUSAL",
    "What comes after a query is 0.",
    "In Transformer-XL's program it is, for a decoder's sake. Here it has offsets of its own, up "
    "to q − 1, and the mask decides what is seen.",
    result=(
        lambda shifted, scores: shifted.tril(shifted.shape[-1] - shifted.shape[-2]),
        lambda shifted, scores: shifted.masked_fill(
            ~torch.ones_like(shifted[..., :, :], dtype=torch.bool).tril(
                shifted.shape[-1] - shifted.shape[-2]
            ),
            -torch.inf,
        ),
    ),
)
task.fault(
    "C-SHIFT-LAST-QUERY-FIRST",
    "The last query, whose row is in its place, comes first.",
    "The rows are moved, and not exchanged: row i stays the row of query i.",
    result=lambda shifted, scores: shifted.flip(-2),
)
task.fault(
    "C-TURNED",
    "A row for each key.",
    "A row belongs to a query: (… q k).",
    result=lambda shifted, scores: shifted.mT,
)
task.fault(
    "C-SCORES-ARE-WEIGHTS",
    "Scores sum to one.",
    "Weights do, and they come later: these scores are only one of two terms. Move them, and leave "
    "their values alone.",
    result=lambda shifted, scores: shifted.softmax(-1),
)
task.fault(thoughts.FLOAT32, result=lambda shifted, scores: shifted.float())
task.fault(thoughts.DETACHED, read=torch.detach)

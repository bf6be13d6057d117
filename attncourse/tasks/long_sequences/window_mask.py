import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.task import Task


def mask_inputs(n, width, global_tokens=0):
    return {"n": n, "width": width, "global_tokens": global_tokens}


def probes(rng):
    sizes = (
        *((7, 2, 0), (9, 3, 0), (8, 1, 2), (9, 2, 1), (10, 4, 3), (6, 0, 0), (6, 0, 2), (5, 9, 0)),
        *((4, 1, 4), (1, 2, 1), (11, 2, 2), (12, 5, 1), (13, 3, 3)),
    )
    return {f"{n} words, width {w}, {g} global": mask_inputs(n, w, g) for n, w, g in sizes}


def small(rng):
    for n in (1, 2, 3, 4, 5):
        for width in (1, 2, 0, 3):
            for first in (0, 1, 2):
                yield mask_inputs(n, width, first)


task = Task(
    reference.window_mask,
    number=1,
    returns=("mask",),
    difficulty=1,
    minutes=10,
    section="who-looks",
    probes=probes,
    small=small,
)


@task.check(1)
def it_is_a_square_of_booleans(answer, rng):
    for n, width, first in ((5, 1, 0), (3, 2, 1)):
        inputs = mask_inputs(n, width, first)
        has_shape("mask", answer(inputs), "(n n)", n, n, inputs=inputs, dtype=torch.bool)


def a_square(answer, inputs):
    """The mask; that it is one of booleans is a check of its own."""
    mask, n = answer(inputs), inputs["n"]
    has_shape("mask", mask, "(n n)", n, n, inputs=inputs, dtype=mask.dtype)
    return mask


def are_true(entries, said, mask, inputs):
    """Assert that these entries of the mask are True; without booleans, 0 may mean anything."""
    if not entries.bool().all():
        has_shape("mask", mask, "(n n)", *mask.shape, inputs=inputs, dtype=torch.bool)
        raise Failure(said, inputs, got=mask)


@task.check(1)
def everybody_sees_oneself(answer, rng):
    for n, width, first in ((5, 1, 0), (6, 0, 0), (4, 2, 1)):
        inputs = mask_inputs(n, width, first)
        mask = a_square(answer, inputs)
        said = "Every word should see itself: the diagonal should be True throughout."
        are_true(mask.diagonal(), said, mask, inputs)


@task.check(2)
def without_global_tokens_the_window_is_all_that_is_seen(answer, rng):
    for n, width in ((7, 2), (9, 3), (5, 1), (8, 4), (5, 9)):
        answer.matches(mask_inputs(n, width))


@task.check(1)
def width_0_is_the_word_alone(answer, rng):
    answer.matches(mask_inputs(5, 0))
    answer.matches(mask_inputs(1, 0))


@task.check(1)
def global_tokens_look_at_all(answer, rng):
    for n, width, first in ((8, 1, 2), (9, 2, 1), (6, 0, 3)):
        inputs = mask_inputs(n, width, first)
        mask = a_square(answer, inputs)
        said = f"The first {first} of {n} words should see all words."
        are_true(mask[:first], said, mask, inputs)


@task.check(2)
def all_look_at_global_tokens(answer, rng):
    for n, width, first in ((8, 1, 2), (9, 2, 1), (6, 0, 3), (4, 1, 4)):
        inputs = mask_inputs(n, width, first)
        mask = a_square(answer, inputs)
        said = f"All words should see the first {first} of {n} words."
        are_true(mask[:, :first], said, mask, inputs)
        answer.holds_of_the_right(inputs)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, mask_inputs(7, 2, 1))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Mask:
    def distance(i, n):
        return (i - i[:, None]).abs()

    def near(distance, width, i):
        return distance <= width

    def first(i, count):
        return i < count

    def rows(first):
        return first[:, None]

    def columns(first):
        return first[None]

    def join(near, rows, columns):
        return near | rows | columns

    def result(mask):
        return mask

    def __call__(self, n, width, global_tokens=0):
        i = torch.arange(n)
        near = self.near(self.distance(i, n), width, i)
        first = self.first(i, global_tokens)
        return self.result(self.join(near, self.rows(first), self.columns(first)))


def nobody(first):
    return torch.zeros_like(first)[None]


# --- faults: the window -------------------------------------------------------------------------

task.fault(
    "W-WIDTH-WHOLE",
    near=(
        lambda distance, width, i: distance <= width // 2,
        lambda distance, width, i: distance <= (width - 1) // 2,
    ),
)
task.fault(
    "W-WIDTH-STRICT",
    near=(
        lambda distance, width, i: distance < width,
        lambda distance, width, i: distance < max(width, 1),
    ),
)
task.fault(
    "W-ZERO-IS-ALL",
    near=lambda distance, width, i: (distance <= width) | (torch.as_tensor(width) == 0),
)
task.fault("W-ONE-MORE", near=lambda distance, width, i: distance <= width + 1)
task.fault("W-AT-LEAST-ONE", near=lambda distance, width, i: distance <= max(width, 1))
task.fault(
    "W-PAST-ONLY",
    near=(
        lambda distance, width, i: (distance <= width) & (i <= i[:, None]),
        lambda distance, width, i: (distance <= width) & (i >= i[:, None]),
    ),
)
task.fault("W-ALL-CAUSAL", result=lambda mask: mask.tril())
task.fault(
    "W-NOT-ITSELF",
    near=(lambda distance, width, i: (distance <= width) & (distance > 0), ...),
    result=(..., lambda mask: mask & ~torch.eye(len(mask), dtype=torch.bool)),
)


def in_pieces_of(size):
    def near(distance, width, i):
        return i // size(width) == i[:, None] // size(width)

    return near


task.fault(
    "W-BLOCKS",
    near=(
        in_pieces_of(lambda width: width + 1),
        in_pieces_of(lambda width: max(width, 1)),
        in_pieces_of(lambda width: width),
        in_pieces_of(lambda width: 2 * width + 1),
    ),
)
task.fault("W-STRIDE", near=lambda distance, width, i: distance % max(1, width) == 0)
task.fault("W-EXACTLY", near=lambda distance, width, i: (distance == width) | (distance == 0))
task.fault(
    "W-CIRCLE", distance=lambda i, n: torch.minimum((i - i[:, None]) % n, (i[:, None] - i) % n)
)


def sliced(distance, width, i):
    """What `near[i, i - width : i + width + 1] = True` makes of each row."""
    near = torch.zeros(distance.shape, dtype=torch.bool)
    for row in range(len(near)):
        near[row, row - width : row + width + 1] = True
    return near


task.fault("W-SLICE-BELOW-ZERO", near=sliced)
task.fault(
    "W-SLICE-END",
    near=(
        lambda distance, width, i: (distance <= width) & (i != i[:, None] + width),
        lambda distance, width, i: (
            (distance == 0) | ((distance <= width) & (i != i[:, None] + width))
        ),
    ),
)

# --- faults: global tokens ----------------------------------------------------------------------

task.fault("W-GLOBAL-IGNORED", first=lambda i, count: i < 0)
task.fault("W-GLOBAL-LOOKS", columns=nobody)
task.fault("W-GLOBAL-LOOKED-AT", rows=nobody)
task.fault("W-GLOBAL-AMONG-THEMSELVES", join=lambda near, rows, columns: near | (rows & columns))
task.fault(
    "W-GLOBAL-NOT-ITSELF",
    join=lambda near, rows, columns: (
        (near | rows | columns) & ~(torch.eye(len(near), dtype=torch.bool) & rows)
    ),
)
task.fault("W-JOIN-AND", join=lambda near, rows, columns: near & (rows | columns))
task.fault(
    "W-GLOBAL-INDEX",
    first=(
        lambda i, count: i == count,
        lambda i, count: i == count - 1,
        lambda i, count: (i == count) & (count > 0),
    ),
)
task.fault(
    "W-GLOBAL-ONE-MORE",
    first=(lambda i, count: i <= count, lambda i, count: (i <= count) & (count > 0)),
)
task.fault(
    "W-GLOBAL-ONE",
    first=(lambda i, count: i < min(1, count), lambda i, count: i == 0),
)
task.fault(
    "W-NO-WINDOW",
    join=(
        lambda near, rows, columns: (rows | columns) if columns.any() else near,
        lambda near, rows, columns: rows | columns,
    ),
)
task.fault("W-GLOBAL-LAST", first=lambda i, count: i >= len(i) - count)

# --- faults: what comes back --------------------------------------------------------------------

task.fault("W-POLARITY", words="M-POLARITY", result=lambda mask: ~mask)
task.fault("W-ADDITIVE", result=lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf))
task.fault(
    "W-NUMBERS",
    result=(lambda mask: mask.float(), lambda mask: mask.long(), lambda mask: mask.int()),
)
task.fault("W-BATCH-AXES", result=(lambda mask: mask[None], lambda mask: mask[None, None]))

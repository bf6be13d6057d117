"""A window and global tokens as a mask: task 1 of chapter 11."""

from dataclasses import replace

import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.task import Task
from attncourse.tasks import thoughts


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
    hints=(
        "Two questions for each pair of places: are they near each other, and is one of them a "
        "global token?",
        "A table of distances (n n) comes from one row of places against one column. Near is a "
        "comparison of it. Global is a row of booleans, and it holds twice: along a row, and down "
        "a column.",
        "i = torch.arange(n); near = (i[:, None] − i).abs() <= width; first = i < global_tokens; "
        "near or first[:, None] or first, joined by |.",
    ),
    probes=probes,
    small=small,
)


@task.check(1)
def it_is_a_square_of_booleans(answer, rng):
    for n, width, first in ((5, 1, 0), (3, 2, 1)):
        inputs = mask_inputs(n, width, first)
        mask = answer(inputs)
        if mask.shape != (n, n) or mask.dtype != torch.bool:
            raise Failure(
                f"mask has shape {shape_of(mask)} and dtype {mask.dtype}; expected ({n} {n}), "
                "torch.bool.",
                inputs,
            )


@task.check(1)
def everybody_sees_oneself(answer, rng):
    for n, width, first in ((5, 1, 0), (6, 0, 0), (4, 2, 1)):
        inputs = mask_inputs(n, width, first)
        mask = answer(inputs)
        if mask.shape != (n, n) or not mask.diagonal().bool().all():
            raise Failure(
                "Every word should see itself: the diagonal should be True throughout.",
                inputs,
                got=mask,
            )


@task.check(2)
def a_window_reaches_width_places_to_both_sides(answer, rng):
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
        mask = answer(inputs)
        if mask.shape != (n, n) or not mask[:first].bool().all():
            raise Failure(f"The first {first} of {n} words should see everybody.", inputs, got=mask)


@task.check(2)
def all_look_at_global_tokens(answer, rng):
    for n, width, first in ((8, 1, 2), (9, 2, 1), (6, 0, 3), (4, 1, 4)):
        answer.matches(mask_inputs(n, width, first))


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
    "The width is that of the whole window.",
    "It is in Longformer's configuration, where 512 means 256 to each side. Here `width` counts "
    "the places on *each* side, so a window has 2 · width + 1.",
    near=(
        lambda distance, width, i: distance <= width // 2,
        lambda distance, width, i: distance <= (width - 1) // 2,
    ),
)
task.fault(
    "W-WIDTH-STRICT",
    "Near is less than `width` places away.",
    "Up to `width` places, that one included. Yours ends a place too early, and with width 0 a "
    "word does not even see itself.",
    near=lambda distance, width, i: distance < width,
)
task.fault(
    "W-ONE-MORE",
    "The window goes one place further, for the word itself takes one.",
    "The word itself is at distance 0. Places at distance `width` are the last that are seen.",
    near=lambda distance, width, i: distance <= width + 1,
)
task.fault(
    "W-PAST-ONLY",
    "A window looks back.",
    "In a decoder it does. This one is an encoder's: a word sees as many places after itself as "
    "before. Whoever needs a causal one joins this with the triangle.",
    near=(
        lambda distance, width, i: (distance <= width) & (i <= i[:, None]),
        lambda distance, width, i: (distance <= width) & (i >= i[:, None]),
    ),
)
task.fault(
    "W-ALL-CAUSAL",
    "No word may look ahead, global or not.",
    "Then global tokens at the beginning see nobody, and all of it is a decoder's mask. The course "
    "has a mask for that; here both directions are open.",
    result=lambda mask: mask.tril(),
)
task.fault(
    "W-NOT-ITSELF",
    "A word knows itself already, so it need not look at itself.",
    "The residual carries it, but attention has its own way of reading: without the diagonal a "
    "word cannot weigh itself against its neighbors, and with width 0 the row is empty.",
    near=lambda distance, width, i: (distance <= width) & (distance > 0),
)
task.fault(
    "W-BLOCKS",
    "The text is cut into pieces of `width`, and each piece sees itself.",
    "Those are blocks: the last word of one never sees the first of the next. A window moves along "
    "with the word.",
    near=lambda distance, width, i: (
        (i // (width + 1) == i[:, None] // (width + 1)) | (distance == 0)
    ),
)
task.fault(
    "W-STRIDE",
    "A width of 3 means every third word.",
    "That is a stride, a pattern of its own. A window sees *all* places up to a distance.",
    near=lambda distance, width, i: distance % max(1, width) == 0,
)
task.fault(
    "W-EXACTLY",
    "Look at the words that are `width` places away.",
    "At those, and at all between. Yours jumps over its neighbors.",
    near=lambda distance, width, i: (distance == width) | (distance == 0),
)
task.fault(
    "W-CIRCLE",
    "Places are counted in a circle.",
    "The last word is not the neighbor of the first. At both ends a window is cut off.",
    distance=lambda i, n: torch.minimum((i - i[:, None]) % n, (i[:, None] - i) % n),
)


def sliced(distance, width, i):
    """What `near[i, i - width : i + width + 1] = True` makes of each row."""
    near = torch.zeros(distance.shape, dtype=torch.bool)
    for row in range(len(near)):
        near[row, row - width : row + width + 1] = True
    return near


task.fault(
    "W-SLICE-BELOW-ZERO",
    "In row i the columns i − width to i + width are set by a slice.",
    "Near the beginning i − width is below 0, and there Python counts from the *end*: the slice is "
    "empty, or begins at another word. `max(0, i - width)` is where it starts.",
    near=sliced,
)
task.fault(
    "W-SLICE-END",
    "The slice from i − width to i + width ends at i + width.",
    "It ends *before* its second number: the last place to the right is missing. Add 1.",
    near=(
        lambda distance, width, i: (distance <= width) & (i != i[:, None] + width),
        lambda distance, width, i: (
            (distance == 0) | ((distance <= width) & (i != i[:, None] + width))
        ),
    ),
)

# --- faults: global tokens ----------------------------------------------------------------------

task.fault(
    "W-GLOBAL-IGNORED",
    "Windows are all there is.",
    "Your mask is the same for every number of global tokens. Without them a far word is many "
    "layers away.",
    first=lambda i, count: i < 0,
)
task.fault(
    "W-GLOBAL-LOOKS",
    "A global token looks at everybody.",
    "And everybody looks at it. Yours collects and hands nothing on: its row is full, its column "
    "is not.",
    columns=nobody,
)
task.fault(
    "W-GLOBAL-LOOKED-AT",
    "A global token is one that everybody looks at.",
    "And it looks at everybody. Yours is heard by all, and has nothing to tell but its window: "
    "its column is full, its row is not.",
    rows=nobody,
)
task.fault(
    "W-GLOBAL-AMONG-THEMSELVES",
    "Global tokens see each other, wherever they stand.",
    "That is both at once: *and* where there should be *or*. A pair is visible as soon as one of "
    "the two is global.",
    join=lambda near, rows, columns: near | (rows & columns),
)
task.fault(
    "W-JOIN-AND",
    "A pair must be near, and one of the two global.",
    "Either reason is enough: the window for the neighbors, the global tokens for everybody else. "
    "Join them by |.",
    join=lambda near, rows, columns: near & (rows | columns),
)
task.fault(
    "W-GLOBAL-INDEX",
    "`global_tokens` says which token is global.",
    "It says how many: the first so many are. Yours makes one of them global, or none.",
    first=(
        lambda i, count: i == count,
        lambda i, count: i == count - 1,
    ),
)
task.fault(
    "W-GLOBAL-ONE-MORE",
    "The tokens from 0 to `global_tokens` are global.",
    "Counting from 0, the first two are 0 and 1. Yours has one too many, and one even where none "
    "is asked for.",
    first=lambda i, count: i <= count,
)
task.fault(
    "W-GLOBAL-LAST",
    "Global tokens stand at the end.",
    "In this course they are the first ones, as BERT's [CLS] is.",
    first=lambda i, count: i >= len(i) - count,
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    replace(thoughts.POLARITY, id="W-POLARITY"),
    "True in the mask means: hide this pair.",
    "In some libraries it does. Here, as in `F.scaled_dot_product_attention`, True means: may "
    "attend. Your mask hides the window.",
    result=lambda mask: ~mask,
)
task.fault(
    "W-ADDITIVE",
    "A mask holds 0 and −∞, to be added to the scores.",
    "That is another kind of mask. This course's are boolean, and joined with & and |; adding "
    "happens inside attention.",
    result=lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),
)
task.fault(
    "W-NUMBERS",
    "0 and 1 are as good as False and True.",
    "`~mask` of whole numbers is −1 and −2, and both count as True. A mask of numbers is refused "
    "by attention; say `.bool()`, or compare.",
    result=(lambda mask: mask.float(), lambda mask: mask.long()),
)
task.fault(
    "W-BATCH-AXES",
    "A mask needs axes for the batch and for the heads.",
    "It broadcasts over both as it is: (n n).",
    result=(lambda mask: mask[None], lambda mask: mask[None, None]),
)

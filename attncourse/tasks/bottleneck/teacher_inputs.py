"""What the decoder takes in while it is taught: bos, then the target without its last word."""

import torch

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.task import Task
from attncourse.tasks.bottleneck import targets


def padded_targets(rng, *lengths, n, bos=1, eos=2, pad=0):
    """As the course's batches are: words, eos, padding."""
    inputs = targets(rng, len(lengths), n, bos)
    for row, length in zip(inputs["target"], lengths, strict=True):
        row[length - 1] = eos
        row[length:] = pad
    return inputs


def probes(rng):
    return {
        "words": targets(rng, 3, 4, bos=7),
        "square": targets(rng, 4, 4, bos=2),
        "padded": padded_targets(rng, 3, 5, 2, n=5),
        "padded, no eos": {"target": torch.tensor([[4, 5, 0, 0], [6, 7, 8, 0]]), "bos": 1},
        "bos is 0": targets(rng, 2, 5, bos=0),
        "one row": targets(rng, 1, 4, bos=8),
        "one word": targets(rng, 3, 1, bos=5),
        "wide": targets(rng, 2, 7, bos=40, words=50),
        "a word is bos": {"target": torch.tensor([[4, 1, 5, 2], [1, 6, 2, 0]]), "bos": 1},
    }


def small(rng):
    for b, n in ((1, 1), (1, 2), (1, 3), (2, 2), (2, 3)):
        for bos in (1, 8, 0):
            yield targets(rng, b, n, bos)
    yield padded_targets(rng, 2, n=3)
    yield padded_targets(rng, 2, 3, n=4)


def maps(rng):
    return [("two rows of three words", targets(rng, 2, 3, words=8), ("target",))]


task = Task(
    reference.teacher_inputs,
    number=2,
    returns=("decoder inputs",),
    difficulty=1,
    minutes=10,
    section="teacher-forcing",
    hints=(
        "While the decoder predicts word t, which word does it take in? Write both rows below "
        "each other for “cent quatre <eos>”.",
        "Word t is predicted from word t − 1, so the row moves one place to the right. "
        "Something has to stand before the first word, and one word falls off at the end.",
        "Join two pieces along the axis of positions: a column (b 1) filled with bos, and the "
        "target without its last column.",
    ),
    probes=probes,
    small=small,
    maps=maps,
)


@task.check(1)
def one_input_for_each_word_to_predict(answer, rng):
    for b, n in ((3, 5), (4, 4), (2, 1), (1, 6)):
        inputs = targets(rng, b, n)
        got = answer(inputs)
        if got.shape != (b, n):
            raise Failure(
                f"Your inputs have shape {shape_of(got)}; expected (b n) = ({b} {n}), one "
                "input for each word to predict.",
                inputs,
            )
        if got.dtype != torch.int64:
            raise Failure(f"Your inputs are {got.dtype}; ids stay whole numbers, int64.")


@task.check(1)
def every_row_begins_with_bos(answer, rng):
    for bos in (1, 8, 0):
        inputs = targets(rng, 3, 4, bos)
        got = answer(inputs)
        if got.ndim != 2 or got.shape[1] == 0 or (got[:, 0] != bos).any():
            first = got[:, :1] if got.ndim == 2 else got
            raise Failure(
                f"With bos = {bos}, the rows begin with {first.flatten().tolist()}.", inputs
            )


@task.check(1)
def every_word_comes_one_place_later(answer, rng):
    answer.matches(targets(rng, 3, 5, bos=7))
    answer.matches(targets(rng, 4, 4, bos=2))
    answer.matches(targets(rng, 2, 9, bos=30, words=40))
    answer.matches(targets(rng, 1, 6))
    answer.matches(targets(rng, 5, 1))
    turned = targets(rng, 3, 5)
    answer.matches(turned | {"target": turned["target"].T.contiguous().T})


@task.check(1)
def eos_and_padding_move_like_any_other_token(answer, rng):
    answer.matches(padded_targets(rng, 3, 5, 2, n=5))
    answer.matches(padded_targets(rng, 3, 5, 1, n=6, eos=7, pad=8, bos=2))
    answer.matches({"target": torch.tensor([[1, 0, 1, 2], [0, 0, 2, 2]]), "bos": 1})


@task.check(1)
def the_target_stays_as_it_was(answer, rng):
    moves_nothing(answer, targets(rng, 3, 5))
    moves_nothing(answer, padded_targets(rng, 3, 5, 2, n=5))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Shift:
    def first(target, bos):
        return torch.full_like(target[:, :1], bos)

    def rest(target, bos):
        return target[:, :-1]

    def join(first, rest):
        return torch.cat([first, rest], dim=1)

    def result(inputs, target, bos):
        return inputs

    def __call__(self, target, bos):
        inputs = self.join(self.first(target, bos), self.rest(target, bos))
        return self.result(inputs, target, bos)


# --- faults: what moves, and where to -------------------------------------------------------------


def all_but_first(target, bos):
    return target[:, 1:]


def behind(first, rest):
    return torch.cat([rest, first], dim=1)


task.fault(
    "S-SHIFT",
    "Teacher forcing hands the decoder the target.",
    "Then it takes in the very word that it must predict. Copying is learned at once, the loss "
    "falls to 0, and at the test there is nothing to copy from.",
    section="bottleneck-breaks",
    result=lambda inputs, target, bos: target.clone(),
)
task.fault(
    "C-SHIFT-LEFT",
    "The decoder takes in the next word, so the row moves to the left.",
    "The next word is the one to be predicted, or lies even further on. What the decoder may know "
    "is what comes before.",
    first=(
        ...,
        lambda target, bos: torch.zeros_like(target[:, :1]),
        lambda target, bos: torch.full_like(target[:, :1], 2),
        lambda target, bos: target[:, :1],
    ),
    rest=all_but_first,
    join=behind,
)
task.fault(
    "C-BOS-BEHIND",
    "bos is appended to the words.",
    "It stands for the beginning: the first word is predicted from it. Yours comes last, and no "
    "word has moved.",
    join=behind,
)
task.fault(
    "C-NOTHING-DROPPED",
    "Put bos in front, and the target behind it.",
    "Now there is one input more than there are words to predict. After the last word nothing is "
    "to be predicted, so one input is of no use.",
    rest=lambda target, bos: target,
)
task.fault(
    "C-BOTH-ENDS-DROPPED",
    "The target's own first token goes, and so does its last.",
    "Its first token would go if it were a bos. Here it is a word: without it the row is one place "
    "short, and the second word is predicted from nothing.",
    rest=lambda target, bos: target[:, 1:-1],
)
task.fault(
    "C-NO-BOS",
    "The inputs are the target without its last word.",
    "That is the whole story where the target begins with bos already. Here it does not: the first "
    "word has no input from which it could be predicted.",
    join=lambda first, rest: rest,
)
task.fault(
    "C-WRAPS-AROUND",
    "`roll` shifts a row to the right.",
    "It does, and brings the last word round to the front. There the decoder should find bos; "
    "instead it is told how the sentence ends.",
    first=lambda target, bos: target[:, -1:],
)
task.fault(
    "C-SHIFTS-ROWS",
    "Shifting moves everything one place along the first axis.",
    "The first axis is the batch: each sentence now takes in the words of its neighbor. Positions "
    "lie on axis 1.",
    first=(lambda target, bos: torch.full_like(target[:1], bos), ...),
    rest=(lambda target, bos: target[:-1], lambda target, bos: target.roll(1, 0)[:, 1:]),
    join=(lambda first, rest: torch.cat([first, rest]), ...),
)
task.fault(
    "C-FLAT-SHIFT",
    "The batch is one long list of ids that moves by one place.",
    "At the border of two rows a word crosses over: all rows but the first begin with the last "
    "word of the row above. Every row needs a bos of its own.",
    first=lambda target, bos: torch.cat([target.new_tensor([[bos]]), target[:-1, -1:]]),
)
task.fault(
    "C-REPLACES-THE-FIRST",
    "The first word becomes bos, and the others stay.",
    "Then from the second word on the decoder takes in the word that it must predict, and the "
    "first word is lost. The others have to move.",
    rest=all_but_first,
)
task.fault(
    "C-TWO-PLACES",
    "Bos goes in front, and the word before goes in as well: two places.",
    "One place is enough: word t is predicted from word t − 1. Yours sees word t − 2 last and has "
    "to guess what came between.",
    first=lambda target, bos: torch.full_like(target[:, :2], bos),
    rest=lambda target, bos: target[:, :-2],
)
task.fault(
    "C-COPIES-THE-FIRST",
    "Assigning the words one place further, from the front, shifts the row.",
    "The second word is overwritten by the first before it could move on, and so down the row: all "
    "words end up equal. Read from the old row, write to a new one.",
    rest=(
        lambda target, bos: target[:, :1].expand(-1, target.shape[1] - 1),
        lambda target, bos: torch.full_like(target[:, 1:], bos),
    ),
)

# --- faults: ids ----------------------------------------------------------------------------------

task.fault(
    "S-BOS-MISMATCH",
    "The free place in front is filled with 0.",
    "0 is the padding in this course. Decoding will start from bos, a token with which your "
    "decoder has then never seen a sentence begin.",
    section="bottleneck-breaks",
    first=lambda target, bos: torch.zeros_like(target[:, :1]),
)
task.fault(
    "C-BOS-BY-HEART",
    "The id of bos is 1.",
    "In this course it is. The function is told the id as an argument, so that it works with any "
    "vocabulary.",
    first=lambda target, bos: torch.ones_like(target[:, :1]),
)
task.fault(
    "C-IDS-AS-FLOATS",
    "`torch.ones` times bos makes a column of bos.",
    "It makes a column of floats, and joined to it all ids become floats. An embedding looks rows "
    "up by whole numbers.",
    section="ids-to-vectors",
    first=lambda target, bos: bos * torch.ones(len(target), 1),
)
task.fault(
    "C-SHIFTS-AROUND-PADDING",
    "Padding stays where it is; only real words move.",
    "`teacher_inputs` is not told which id pads: 0 may be a word. Nor does it matter what stands "
    "before a pad, since that position has no loss.",
    result=lambda inputs, target, bos: torch.where(target == 0, target, inputs),
)
task.fault(
    "C-EOS-TAKEN-OUT",
    "The decoder must not take in eos, so it becomes padding.",
    "Taking it in does no harm: what comes out at that place has no loss. And the function is not "
    "told which id is eos; in another vocabulary 2 is a word.",
    rest=lambda target, bos: target[:, :-1].masked_fill(target[:, :-1] == 2, 0),
)

# --- faults: what is returned, and what is edited -------------------------------------------------

task.fault(
    "C-LISTS-OF-IDS",
    "A list of ids for each row is as good as a tensor.",
    "An embedding takes in one tensor, a rectangle of ids, and so does the loss. `torch.tensor` "
    "makes one from such lists.",
    result=lambda inputs, target, bos: inputs.tolist(),
)
task.fault(
    "C-EDITS-THE-TARGET",
    "Working within the target saves a copy.",
    "The caller still needs the target for the loss, and finds it changed: the decoder would learn "
    "to predict something else. Make a new tensor.",
    result=lambda inputs, target, bos: target.copy_(inputs),
)

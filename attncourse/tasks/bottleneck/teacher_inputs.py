"""teacher_inputs."""

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


def teacher_probes(rng):
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


def teacher_small(rng):
    for b, n in ((1, 1), (1, 2), (1, 3), (2, 2), (2, 3)):
        for bos in (1, 8, 0):
            yield targets(rng, b, n, bos)
    yield padded_targets(rng, 2, n=3)
    yield padded_targets(rng, 2, 3, n=4)


def teacher_maps(rng):
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
    probes=teacher_probes,
    small=teacher_small,
    maps=teacher_maps,
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


# --- faults ---------------------------------------------------------------------------------------


def shifted(target, first):
    """Behind `first` (b 1), the target without its last word."""
    return torch.cat([first, target[:, :-1]], dim=1)


@task.fault(
    "S-SHIFT",
    thinks="Teacher forcing hands the decoder the target.",
    why="Then it takes in the very word that it must predict. Copying is learned at once, the loss "
    "falls to 0, and at the test there is nothing to copy from.",
    section="bottleneck-breaks",
)
def no_shift(target, bos):
    return target.clone()


@task.fault(
    "C-SHIFT-LEFT",
    thinks="The decoder takes in the next word, so the row moves to the left.",
    why="The next word is the one to be predicted, or lies even further on. What the decoder may "
    "know is what comes before.",
)
def shift_left(target, bos):
    return torch.cat([target[:, 1:], torch.full_like(target[:, :1], bos)], dim=1)


@task.fault(
    "C-NOTHING-DROPPED",
    thinks="Put bos in front, and the target behind it.",
    why="Now there is one input more than there are words to predict. After the last word nothing "
    "is to be predicted, so one input is of no use.",
)
def drops_nothing(target, bos):
    return torch.cat([torch.full_like(target[:, :1], bos), target], dim=1)


@task.fault(
    "C-NO-BOS",
    thinks="The inputs are the target without its last word.",
    why="That is the whole story where the target begins with bos already. Here it does not: the "
    "first word has no input from which it could be predicted.",
)
def drops_the_last_word_only(target, bos):
    return target[:, :-1]


@task.fault(
    "C-WRAPS-AROUND",
    thinks="`roll` shifts a row to the right.",
    why="It does, and brings the last word round to the front. There the decoder should find bos; "
    "instead it is told how the sentence ends.",
)
def rolls(target, bos):
    return target.roll(1, dims=1)


@task.fault(
    "C-SHIFTS-ROWS",
    thinks="Shifting moves everything one place along the first axis.",
    why="The first axis is the batch: each sentence now takes in the words of its neighbor. "
    "Positions lie on axis 1.",
)
def shifts_rows(target, bos):
    return torch.cat([torch.full_like(target[:1], bos), target[:-1]], dim=0)


@task.fault(
    "C-FLAT-SHIFT",
    thinks="The batch is one long list of ids that moves by one place.",
    why="At the border of two rows a word crosses over: all rows but the first begin with the last "
    "word of the row above. Every row needs a bos of its own.",
)
def shifts_the_flat_list(target, bos):
    flat = torch.cat([target.new_tensor([bos]), target.flatten()[:-1]])
    return flat.view_as(target)


@task.fault(
    "C-REPLACES-THE-FIRST",
    thinks="The first word becomes bos, and the others stay.",
    why="Then from the second word on the decoder takes in the word that it must predict, and the "
    "first word is lost. The others have to move.",
)
def replaces_the_first_word(target, bos):
    inputs = target.clone()
    inputs[:, 0] = bos
    return inputs


@task.fault(
    "C-TWO-PLACES",
    thinks="Bos goes in front, and the word before goes in as well: two places.",
    why="One place is enough: word t is predicted from word t − 1. Yours sees word t − 2 last and "
    "has to guess what came between.",
)
def shifts_by_two(target, bos):
    first = torch.full_like(target[:, :2], bos)
    return torch.cat([first, target[:, :-2]], dim=1)


@task.fault(
    "S-BOS-MISMATCH",
    thinks="The free place in front is filled with 0.",
    why="0 is the padding in this course. Decoding will start from bos, a token with which your "
    "decoder has then never seen a sentence begin.",
    section="bottleneck-breaks",
)
def fills_with_zero(target, bos):
    return torch.nn.functional.pad(target[:, :-1], (1, 0))


@task.fault(
    "C-BOS-BY-HEART",
    thinks="The id of bos is 1.",
    why="In this course it is. The function is told the id as an argument, so that it works with "
    "any vocabulary.",
)
def bos_is_one(target, bos):
    return shifted(target, torch.ones_like(target[:, :1]))


def shifts_in_place_backward(target, bos):
    for place in range(target.shape[1] - 1, 0, -1):
        target[:, place] = target[:, place - 1]
    target[:, 0] = bos
    return target


@task.fault(
    "C-EDITS-THE-TARGET",
    thinks="Working within the target saves a copy.",
    why="The caller still needs the target for the loss, and finds it changed: the decoder would "
    "learn to predict something else. Make a new tensor.",
    forms=(shifts_in_place_backward,),
)
def shifts_in_place(target, bos):
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = bos
    return target


@task.fault(
    "C-COPIES-THE-FIRST",
    thinks="Assigning the words one place further, from the front, shifts the row.",
    why="The second word is overwritten by the first before it could move on, and so down the "
    "row: all words end up equal. Read from the old row, write to a new one.",
)
def shifts_over_itself(target, bos):
    inputs = target.clone()
    for place in range(1, inputs.shape[1]):
        inputs[:, place] = inputs[:, place - 1]
    inputs[:, 0] = bos
    return inputs


@task.fault(
    "C-IDS-AS-FLOATS",
    thinks="`torch.ones` times bos makes a column of bos.",
    why="It makes a column of floats, and joined to it all ids become floats. An embedding looks "
    "rows up by whole numbers.",
    section="ids-to-vectors",
)
def ids_as_floats(target, bos):
    return shifted(target, bos * torch.ones(len(target), 1))


@task.fault(
    "C-SHIFTS-AROUND-PADDING",
    thinks="Padding stays where it is; only real words move.",
    why="`teacher_inputs` is not told which id pads: 0 may be a word. Nor does it matter what "
    "stands before a pad, since that position has no loss.",
)
def padding_stays(target, bos):
    return torch.where(target == 0, target, shifted(target, torch.full_like(target[:, :1], bos)))


@task.fault(
    "C-EOS-TAKEN-OUT",
    thinks="The decoder must not take in eos, so it becomes padding.",
    why="Taking it in does no harm: what comes out at that place has no loss. And the function is "
    "not told which id is eos; in another vocabulary 2 is a word.",
)
def eos_becomes_padding(target, bos):
    inputs = shifted(target, torch.full_like(target[:, :1], bos))
    inputs[:, 1:][inputs[:, 1:] == 2] = 0
    return inputs

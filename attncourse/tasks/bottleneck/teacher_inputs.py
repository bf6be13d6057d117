import torch

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, of_the_whole, shape_of
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
    probes=probes,
    small=small,
    maps=maps,
)


@task.check(1)
def one_id_for_each_word_to_predict(answer, rng):
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


@task.check(1, "every row begins with BOS")
def every_row_begins_with_bos(answer, rng):
    for bos in (1, 8, 0):
        inputs = targets(rng, 3, 4, bos)
        got = answer(inputs)
        if got.ndim != 2 or got.shape[1] == 0 or (got[:, 0] != bos).any():
            first = got[:, :1] if got.ndim == 2 else got
            raise Failure(
                f"With bos = {bos}, the rows begin with {first.flatten().tolist()}.", inputs
            )


def moves_later(answer, inputs):
    """`matches`, but for the first column, which has a check of its own."""
    got, expected = answer(inputs), answer.expected(inputs)
    if got.shape != expected.shape or (got != expected)[:, 1:].any():
        with of_the_whole():
            compare("decoder inputs", got, expected, inputs)


@task.check(1)
def every_word_comes_one_place_later(answer, rng):
    moves_later(answer, targets(rng, 3, 5, bos=7))
    moves_later(answer, targets(rng, 4, 4, bos=2))
    moves_later(answer, targets(rng, 2, 9, bos=30, words=40))
    moves_later(answer, targets(rng, 1, 6))
    moves_later(answer, targets(rng, 5, 1))
    turned = targets(rng, 3, 5)
    moves_later(answer, turned | {"target": turned["target"].T.contiguous().T})


@task.check(1, "EOS and padding move like any other token")
def eos_and_padding_move_like_any_other_token(answer, rng):
    moves_later(answer, padded_targets(rng, 3, 5, 2, n=5))
    moves_later(answer, padded_targets(rng, 3, 5, 1, n=6, eos=7, pad=8, bos=2))
    moves_later(answer, {"target": torch.tensor([[1, 0, 1, 2], [0, 0, 2, 2]]), "bos": 1})


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


def in_the_first_row(ids, bos):
    return torch.cat([torch.full_like(ids[:1], bos), ids[1:]])


def behind(first, rest):
    return torch.cat([rest, first], dim=1)


task.fault(
    "S-SHIFT", section="bottleneck-breaks", result=lambda inputs, target, bos: target.clone()
)
task.fault(
    "C-SHIFT-LEFT",
    first=(
        ...,
        lambda target, bos: torch.zeros_like(target[:, :1]),
        lambda target, bos: torch.full_like(target[:, :1], 2),
        lambda target, bos: target[:, :1],
    ),
    rest=all_but_first,
    join=behind,
)
task.fault("C-BOS-BEHIND", join=behind)
task.fault("C-NOTHING-DROPPED", rest=lambda target, bos: target)
task.fault("C-BOTH-ENDS-DROPPED", rest=lambda target, bos: target[:, 1:-1])
task.fault("C-NO-BOS", join=lambda first, rest: rest)
task.fault("C-WRAPS-AROUND", first=lambda target, bos: target[:, -1:])
task.fault(
    "C-SHIFTS-ROWS",
    first=(lambda target, bos: torch.full_like(target[:1], bos), ...),
    rest=(lambda target, bos: target[:-1], lambda target, bos: target.roll(1, 0)[:, 1:]),
    join=(lambda first, rest: torch.cat([first, rest]), ...),
)
task.fault(
    "C-FLAT-SHIFT",
    first=lambda target, bos: torch.cat([target.new_tensor([[bos]]), target[:-1, -1:]]),
)
task.fault("C-REPLACES-THE-FIRST", rest=all_but_first)
task.fault(
    "C-TWO-PLACES",
    first=lambda target, bos: torch.full_like(target[:, :2], bos),
    rest=lambda target, bos: target[:, :-2],
)
task.fault(
    "C-COPIES-THE-FIRST",
    rest=(
        lambda target, bos: target[:, :1].expand(-1, target.shape[1] - 1),
        lambda target, bos: torch.full_like(target[:, 1:], bos),
    ),
)

task.fault("C-JOINED-AS-ROWS", join=lambda first, rest: torch.cat([first, rest]))

# --- faults: ids ----------------------------------------------------------------------------------

task.fault(
    "S-BOS-MISMATCH",
    section="bottleneck-breaks",
    first=lambda target, bos: torch.zeros_like(target[:, :1]),
)
task.fault("C-BOS-BY-HEART", first=lambda target, bos: torch.ones_like(target[:, :1]))
task.fault("C-STARTS-WITH-EOS", first=lambda target, bos: torch.full_like(target[:, :1], 2))
task.fault(
    "C-BOS-IN-ONE-ROW",
    first=(
        lambda target, bos: in_the_first_row(torch.zeros_like(target[:, :1]), bos),
        lambda target, bos: target[:, -1:],
        lambda target, bos: torch.zeros_like(target[:, :1]),
        lambda target, bos: target[:, :1],
        lambda target, bos: in_the_first_row(target[:, -1:], bos),
        lambda target, bos: in_the_first_row(target[:, :1], bos),
    ),
    result=(..., *[lambda inputs, target, bos: in_the_first_row(inputs, bos)] * 3, ...),
)
task.fault(
    "C-IDS-AS-FLOATS",
    section="ids-to-vectors",
    first=lambda target, bos: bos * torch.ones(len(target), 1),
)
task.fault(
    "C-SHIFTS-AROUND-PADDING",
    result=lambda inputs, target, bos: torch.where(target == 0, target, inputs),
)
task.fault(
    "C-EOS-TAKEN-OUT", rest=lambda target, bos: target[:, :-1].masked_fill(target[:, :-1] == 2, 0)
)

# --- faults: what is returned, and what is edited -------------------------------------------------

task.fault("C-LISTS-OF-IDS", result=lambda inputs, target, bos: inputs.tolist())
task.fault("C-EDITS-THE-TARGET", result=lambda inputs, target, bos: target.copy_(inputs))

import torch

from attncourse import multihead as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.multihead import split_small


def split_inputs(rng, b=2, n=3, h=4, d=5, dtype=torch.float32):
    return {"x": normal(rng, b, n, h * d, dtype=dtype), "num_heads": h}


def probes(rng):
    return {
        "plain": split_inputs(rng),
        "as many words as heads": split_inputs(rng, 2, 3, 3, 4),
        "as many sentences as words": split_inputs(rng, 3, 3, 2, 4),
        "as many sentences as heads": split_inputs(rng, 2, 3, 2, 4),
        "as many heads as features": split_inputs(rng, 2, 5, 3, 3),
        "all equal": split_inputs(rng, 3, 3, 3, 3),
        "two heads": split_inputs(rng, 3, 4, 2, 5),
        "one head": split_inputs(rng, 2, 3, 1, 4),
        "heads of width one": split_inputs(rng, 2, 4, 3, 1),
        "one sentence": split_inputs(rng, 1, 4, 2, 3),
        "one word": split_inputs(rng, 3, 1, 2, 4),
        "double": split_inputs(rng, 2, 3, 2, 4, dtype=torch.float64),
    }


def maps(rng):
    return [
        ("one sentence of four words, two heads", split_inputs(rng, 1, 4, 2, 2), ("x",)),
        ("two sentences of two words, two heads", split_inputs(rng, 2, 2, 2, 2), ("x",)),
    ]


task = Task(
    reference.split_heads,
    number=1,
    returns=("heads",),
    difficulty=2,
    minutes=10,
    section="project-split",
    probes=probes,
    differentiated=("plain",),
    small=split_small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def the_heads_have_an_axis_of_their_own_in_front_of_the_words(answer, rng):
    for b, n, h, d in ((2, 3, 4, 5), (5, 4, 3, 2), (3, 2, 6, 4)):
        inputs = split_inputs(rng, b, n, h, d)
        has_shape("heads", answer(inputs), "(b h n d)", b, h, n, d, inputs=inputs)


@task.check(1)
def a_head_holds_its_piece_of_every_word(answer, rng):
    for b, n, h, d in ((3, 4, 2, 3), (2, 5, 3, 4), (3, 2, 4, 5)):
        inputs = split_inputs(rng, b, n, h, d)
        heads = answer(inputs)
        has_shape("heads", heads, "(b h n d)", b, h, n, d, inputs=inputs)
        for i in range(h):
            piece = inputs["x"][:, :, i * d : (i + 1) * d]
            if not torch.equal(heads[:, i], piece):
                raise Failure(
                    f"Head {i + 1} of {h} should hold the numbers {i * d + 1} to "
                    f"{(i + 1) * d} of every word, and word after word; it holds others.",
                    inputs,
                    expected=piece,
                    got=heads[:, i],
                )


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    for sizes in ((2, 3, 3, 4), (3, 3, 2, 4), (2, 3, 2, 4), (2, 5, 3, 3), (4, 4, 4, 4)):
        answer.matches(split_inputs(rng, *sizes))
    for sizes in ((1, 3, 2, 4), (2, 1, 3, 4), (2, 3, 1, 4), (2, 3, 4, 1), (1, 1, 1, 1)):
        answer.matches(split_inputs(rng, *sizes))


@task.check(1)
def any_memory_order_and_float64_work(answer, rng):
    inputs = split_inputs(rng, 2, 3, 4, 5)
    for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
        turned = inputs["x"].permute(order).contiguous()
        back = turned.permute(*(order.index(axis) for axis in range(3)))  # not contiguous
        answer.matches(inputs | {"x": back})
    answer.matches(split_inputs(rng, 2, 3, 2, 4, dtype=torch.float64))


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    inputs = split_inputs(rng)
    answer.gradients_match(inputs)
    moves_nothing(answer, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Heads:
    def read(x):
        return x

    def pieces(x, num_heads):
        return num_heads

    def cut(x, num_heads):
        return x.unflatten(-1, (num_heads, -1))  # b n h d

    def move(x):
        return x.transpose(1, 2)

    def order(heads):
        return heads

    def kind(heads):
        return heads

    def give(heads):
        return heads

    def __call__(self, x, num_heads):
        x = self.read(x)
        heads = self.move(self.cut(x, self.pieces(x, num_heads)))
        return self.give(self.kind(self.order(heads)))


# --- faults -------------------------------------------------------------------------------------


def stretched(x, num_heads):
    """Every head gets all of x."""
    return x[:, :, None].expand(-1, -1, num_heads, -1)


task.fault(
    "H-VIEW-SPLIT",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(x.shape[0], num_heads, x.shape[1], -1),
    move=as_is,
)


def viewed(x, num_heads):
    return x.reshape(*x.shape[:2], num_heads, -1)


task.fault("C-SPLIT-NO-SWAP", move=as_is)
task.fault(
    "C-SPLIT-WRONG-SWAP",
    # With other pieces, the first two would be H-FUSED-LAYOUT without a swap, or turned.
    pieces=(Heads.pieces, Heads.pieces, ...),
    cut=(viewed, viewed, ...),
    move=(
        lambda x: x.transpose(2, 3),
        lambda x: x.transpose(1, 3),
        lambda x: x.transpose(0, 2),
        lambda x: x.transpose(0, 1),
    ),
)
task.fault("H-FUSED-LAYOUT", cut=lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).mT)
task.fault("C-SPLIT-WIDTH", pieces=lambda x, num_heads: x.shape[-1] // num_heads)
task.fault("C-SPLIT-REVERSED", order=lambda heads: heads.flip(1))
task.fault(
    "C-SPLIT-WORDS",
    cut=lambda x, num_heads: torch.stack(x.chunk(num_heads, 1), 1),
    move=as_is,
)


@task.fault("C-SPLIT-ONE-LEFT")
class OneLeft(Heads):
    def __call__(self, x, num_heads):
        return x if num_heads == 1 else super().__call__(x, num_heads)


task.fault("C-SPLIT-LIST", give=lambda heads: list(heads.unbind(1)))
task.fault(
    "C-SPLIT-ONE-HEAD",
    give=(lambda heads: heads[:, 0], lambda heads: heads[:, :1], lambda heads: heads[:, -1]),
)
task.fault("C-SPLIT-HEADS-FIRST", give=lambda heads: heads.transpose(0, 1))
task.fault("C-SPLIT-FOLDED", give=lambda heads: heads.flatten(0, 1))
task.fault("C-SPLIT-TURNED", give=lambda heads: heads.mT)
task.fault(
    "C-SPLIT-SAME-PIECE",
    cut=lambda x, num_heads: stretched(x[..., : x.shape[-1] // num_heads], num_heads),
)
task.fault("C-SPLIT-WHOLE", section="whole-embedding", cut=stretched)
task.fault("H-BATCH-FIRST", section="multihead-parity", read=lambda x: x.transpose(0, 1))
task.fault("C-SPLIT-TWO", pieces=lambda x, num_heads: 2)
task.fault("C-SPLIT-SQUEEZED", give=torch.squeeze)
task.fault("C-SPLIT-DETACHED", read=torch.detach)
task.fault("C-SPLIT-FLOAT32", kind=torch.Tensor.float)
task.fault(
    "C-SPLIT-TWISTED",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(x.shape[0], num_heads, -1, x.shape[1]).mT,
    move=as_is,
)
task.fault(
    "C-SPLIT-SWAPPED-FIRST",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.mT.reshape(x.shape[0], num_heads, x.shape[1], -1),
    move=as_is,
)
task.fault(
    "C-SPLIT-BATCH-MIXED",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(num_heads, *x.shape[:2], -1).transpose(0, 1),
    move=as_is,
)

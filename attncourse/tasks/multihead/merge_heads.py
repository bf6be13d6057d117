import torch

from attncourse import multihead as reference
from attncourse.checks.answer import Failure, has_shape, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.multihead import split_small


def merge_inputs(rng, b=2, h=4, n=3, d=5, dtype=torch.float32):
    return {"x": normal(rng, b, h, n, d, dtype=dtype)}


def probes(rng):
    return {
        "plain": merge_inputs(rng),
        "as many words as heads": merge_inputs(rng, 2, 3, 3, 4),
        "as many sentences as words": merge_inputs(rng, 3, 2, 3, 4),
        "as many sentences as heads": merge_inputs(rng, 2, 2, 3, 4),
        "as many words as features": merge_inputs(rng, 2, 3, 4, 4),
        "as many heads as features": merge_inputs(rng, 2, 3, 5, 3),
        "all equal": merge_inputs(rng, 3, 3, 3, 3),
        "one head": merge_inputs(rng, 2, 1, 3, 4),
        "heads of width one": merge_inputs(rng, 2, 3, 4, 1),
        "one sentence": merge_inputs(rng, 1, 2, 4, 3),
        "one word": merge_inputs(rng, 3, 2, 1, 4),
        "double": merge_inputs(rng, 2, 2, 3, 4, dtype=torch.float64),
    }


def small(rng):
    for inputs in split_small(rng):
        yield {"x": reference.split_heads(inputs["x"], inputs["num_heads"]).contiguous()}


def maps(rng):
    return [
        ("one sentence of three words, two heads", merge_inputs(rng, 1, 2, 3, 2), ("x",)),
        ("two sentences of two words, two heads", merge_inputs(rng, 2, 2, 2, 2), ("x",)),
    ]


task = Task(
    reference.merge_heads,
    number=2,
    returns=("merged",),
    difficulty=2,
    minutes=10,
    section="project-split",
    probes=probes,
    differentiated=("plain",),
    small=small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_word_gets_one_vector_of_full_width(answer, rng):
    for b, h, n, d in ((2, 4, 3, 5), (5, 3, 4, 2), (3, 6, 2, 4)):
        inputs = merge_inputs(rng, b, h, n, d)
        has_shape("merged", answer(inputs), "(b n (h d))", b, n, h * d, inputs=inputs)


@task.check(1)
def the_pieces_of_a_word_stand_side_by_side(answer, rng):
    for b, h, n, d in ((3, 2, 4, 3), (2, 3, 5, 4), (3, 4, 2, 5)):
        inputs = merge_inputs(rng, b, h, n, d)
        merged = answer(inputs)
        has_shape("merged", merged, "(b n (h d))", b, n, h * d, inputs=inputs)
        for i in range(h):
            got, piece = merged[:, :, i * d : (i + 1) * d], inputs["x"][:, i]
            if not torch.equal(got, piece):
                raise Failure(
                    f"The numbers {i * d + 1} to {(i + 1) * d} of every word should be those "
                    f"of head {i + 1}, for that word; they are others.",
                    inputs,
                    expected=piece,
                    got=got,
                )


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    for sizes in ((2, 3, 3, 4), (3, 2, 3, 4), (2, 2, 3, 4), (2, 3, 4, 4), (4, 4, 4, 4)):
        answer.matches(merge_inputs(rng, *sizes))
    answer.matches(merge_inputs(rng, 2, 3, 5, 3))
    for sizes in ((1, 3, 2, 4), (2, 1, 3, 4), (2, 3, 1, 4), (2, 3, 4, 1), (1, 1, 1, 1)):
        answer.matches(merge_inputs(rng, *sizes))


@task.check(1)
def any_memory_order_and_float64_work(answer, rng):
    inputs = merge_inputs(rng)
    for order in ((0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)):
        turned = inputs["x"].permute(order).contiguous()
        back = turned.permute(*(order.index(axis) for axis in range(4)))  # not contiguous
        answer.matches({"x": back})
    answer.matches(merge_inputs(rng, 2, 2, 3, 4, dtype=torch.float64))


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    inputs = merge_inputs(rng)
    answer.gradients_match(inputs)
    moves_nothing(answer, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Merged:
    def read(x):
        return x

    def swap(x):
        return x.transpose(1, 2)  # b n h d

    def join(x):
        return x.flatten(2)

    def kind(merged):
        return merged

    def give(merged):
        return merged

    def __call__(self, x):
        return self.give(self.kind(self.join(self.swap(self.read(x)))))


# --- faults -------------------------------------------------------------------------------------


def one_of(join):
    """One vector for each word: as it is, once for each head, or with an axis for heads."""
    return join, lambda x: join(x).repeat(1, 1, x.shape[2]), lambda x: join(x)[:, None]


task.fault(
    "H-VIEW-MERGE",
    section="multihead-breaks",
    swap=lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1], -1),
)
task.fault("H-CONTIGUOUS", section="multihead-breaks", join=lambda x: x.view(*x.shape[:2], -1))
task.fault("C-MERGE-SUM", section="sum-over-heads", join=one_of(lambda x: x.sum(2)))
task.fault("C-MERGE-MEAN", section="one-row", join=one_of(lambda x: x.mean(2)))
task.fault("C-MERGE-MAX", join=one_of(lambda x: x.amax(2)))
task.fault("H-FUSED-LAYOUT", join=lambda x: x.mT.flatten(2))
task.fault("C-MERGE-HALF-WAY", join=as_is)
task.fault("C-MERGE-BELOW", swap=as_is, join=lambda x: x.flatten(1, 2))
task.fault("C-MERGE-NO-SWAP", swap=as_is)
task.fault(
    "C-MERGE-WRONG-SWAP",
    section="multihead-breaks",
    swap=(
        lambda x: x.transpose(2, 3),
        lambda x: x.transpose(1, 3),
        lambda x: x.permute(0, 3, 1, 2),
    ),
    join=(
        lambda x: x.reshape(x.shape[0], x.shape[3], -1),
        lambda x: x.reshape(x.shape[0], x.shape[2], -1),
        lambda x: x.reshape(x.shape[0], x.shape[3], -1),
    ),
)
task.fault("H-BATCH-FIRST", section="multihead-parity", give=lambda merged: merged.transpose(0, 1))
task.fault("C-MERGE-TURNED", give=lambda merged: merged.mT)
task.fault("C-MERGE-ONE-TABLE", give=lambda merged: merged.flatten(0, 1))
task.fault("C-MERGE-REVERSED", read=lambda x: x.flip(1))
task.fault(
    "C-MERGE-FIRST-HEAD",
    section="one-row",
    join=(*one_of(lambda x: x[:, :, 0]), lambda x: x[:, :, -1]),
)


@task.fault("C-MERGE-ONE-LEFT")
class OneLeft(Merged):
    def __call__(self, x):
        return x if x.shape[1] == 1 else super().__call__(x)


task.fault(
    "C-MERGE-OVER-SENTENCES",
    swap=as_is,
    join=(
        lambda x: torch.cat(list(x), -1),
        lambda x: torch.cat(list(x), -1).reshape(x.shape[0], x.shape[2], -1),
    ),
)
task.fault(
    "C-MERGE-FOLDED",
    swap=as_is,
    join=(lambda x: x.flatten(0, 1), lambda x: x.transpose(0, 1).flatten(0, 1)),
)
task.fault("C-MERGE-SQUEEZED", give=torch.squeeze)
task.fault("C-MERGE-DETACHED", read=torch.detach)
task.fault("C-MERGE-FLOAT32", kind=torch.Tensor.float)

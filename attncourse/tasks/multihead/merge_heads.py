"""Join the heads again: what is promised, the reference in steps, what goes wrong."""

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
    hints=(
        "This is `split_heads` read backwards: what happened last there is undone first here.",
        "The features of one word must become neighbors again: first its piece of head 1, "
        "then its piece of head 2, and so on. As it comes, all words of head 1 lie together.",
        "In einops, turn your pattern of `split_heads` around. In torch: swap the axes of "
        "heads and words, then join the last two axes (`reshape` copies where it must, `view` "
        "refuses).",
    ),
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
    for b, h, n, d in ((1, 2, 4, 3), (2, 3, 5, 4), (3, 4, 2, 5)):
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

    def give(merged):
        return merged

    def __call__(self, x):
        return self.give(self.join(self.swap(self.read(x))))


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "H-VIEW-MERGE",
    "The shape (b n h·d) is what is wanted, so I reshape to it.",
    "In memory all words of head 1 come first. A reshape cuts that row anew, so that one output "
    "word holds several words of one head; under a causal mask this leaks the future.",
    section="multihead-breaks",
    swap=as_is,
    join=lambda x: x.reshape(x.shape[0], x.shape[2], -1),
)
task.fault(
    "H-CONTIGUOUS",
    "After swapping the axes, `view` joins the last two.",
    "`view` never copies, and after a swap the numbers of one word no longer lie in order, so it "
    "raises an error. Deleting the swap silences the error and scrambles the words; something "
    "else copies where it must.",
    section="multihead-breaks",
    join=lambda x: x.view(*x.shape[:2], -1),
)
task.fault(
    "C-MERGE-SUM",
    "The layer adds up its heads, so merging is a sum.",
    "It adds them after each head has its own block of W^O. Added here, before, all heads would "
    "share one block, and nobody could tell their answers apart.",
    section="sum-over-heads",
    join=lambda x: x.sum(2),
)
task.fault(
    "C-MERGE-MEAN",
    "Several opinions become one by averaging.",
    "An average of two answers is no answer to either question: that was the trouble with one row "
    "of weights. Heads stand side by side, and the last projection decides what to do with them.",
    section="one-row",
    join=lambda x: x.mean(2),
)
task.fault(
    "C-MERGE-MAX",
    "The strongest head should win in each feature.",
    "Feature 3 of one head and feature 3 of another mean different things, so there is nothing to "
    "compare. No head is chosen: their vectors are laid side by side.",
    join=lambda x: x.amax(2),
)
task.fault(
    "H-FUSED-LAYOUT",
    "The first features of all heads come first, then the second ones, and so on.",
    "That is the layout (d h). Here a word's vector is (h d): all of head 1, then all of head 2. "
    "Weights trained in one layout are nonsense in the other.",
    join=lambda x: x.mT.flatten(2),
)
task.fault(
    "C-MERGE-HALF-WAY",
    "Swapping the axes back undoes the split.",
    "It undoes its last step. The heads still have an axis of their own, (b n h d), and a linear "
    "layer would treat each head's piece as a word of its own.",
    join=as_is,
)
task.fault(
    "C-MERGE-BELOW",
    "Concatenating heads means putting one after the other along the words.",
    "Then a sentence becomes h times as long, and no word has more than one head's answer. They "
    "are joined along the features: each word collects its pieces.",
    swap=as_is,
    join=lambda x: x.flatten(1, 2),
)
task.fault(
    "C-MERGE-NO-SWAP",
    "Heads are joined by flattening the last two axes.",
    "As it comes, those two are words and features: you get one long vector a head. Where h = n "
    "and the shape fits, it is wrong all the same. First bring heads and features together.",
    swap=as_is,
)
task.fault(
    "C-MERGE-WRONG-SWAP",
    "Any swap of axes before the reshape will do.",
    "The swap must bring the axis of heads beside the features. You swapped words and features, "
    "so a word's numbers end up in several output words. Number a small tensor and look.",
    section="multihead-breaks",
    swap=(lambda x: x.transpose(2, 3), lambda x: x.transpose(1, 3)),
    join=(
        lambda x: x.reshape(x.shape[0], x.shape[3], -1),
        lambda x: x.reshape(x.shape[0], x.shape[2], -1),
    ),
)
task.fault(
    "H-BATCH-FIRST",
    "The result has words first and sentences second.",
    "Here the batch is first, (b n m), as in all of this course. Some of PyTorch's layers have "
    "the other default; mix the two, and words attend to other sentences.",
    section="multihead-parity",
    give=lambda merged: merged.transpose(0, 1),
)
task.fault(
    "C-MERGE-TURNED",
    "The vectors of the words stand side by side, as columns: (b m n).",
    "On paper they may. In this course a row is a word, (b n m), and the last projection, like "
    "every nn.Linear, reads the last axis as features.",
    give=lambda merged: merged.mT,
)
task.fault(
    "C-MERGE-ONE-TABLE",
    "The words of all sentences go into one table, (b·n m).",
    "Then nobody knows where a sentence ends, and what is added later, (b n m), no longer fits. "
    "Only heads and features are joined; the axis of sentences stays.",
    give=lambda merged: merged.flatten(0, 1),
)
task.fault(
    "C-MERGE-REVERSED",
    "New pieces are put in front, so that the last head comes first.",
    "The order of heads is free, but it must be the one in which they were split and in which W^O "
    "was trained: head 1 first. `merge` after `split` should give back what went in.",
    read=lambda x: x.flip(1),
)
task.fault(
    "C-MERGE-FIRST-HEAD",
    "All heads say much the same, so one of them is enough.",
    "You return d numbers a word instead of h·d: all heads but one are lost. Their questions "
    "differ, and so do their answers.",
    section="one-row",
    join=(lambda x: x[:, :, 0], lambda x: x[:, :, -1]),
)
task.fault(
    "C-MERGE-SQUEEZED",
    "Axes of length one carry nothing, so I squeeze them away.",
    "A batch of one sentence, or a sentence of one word, still needs three axes (b n m). "
    "`squeeze()` without an axis removes whatever happens to be 1 today.",
    give=torch.squeeze,
)
task.fault(
    "C-MERGE-DETACHED",
    "Only the numbers matter, so I rearrange them outside autograd.",
    "The values are right, but no gradient flows back through your copy, so no head would ever "
    "learn. Use torch's own operations from end to end.",
    read=torch.detach,
)
task.fault(
    "C-MERGE-FLOAT32",
    "What comes out is float32, as nearly everything in PyTorch is.",
    "It is what the heads are. `torch.zeros(shape)` and `.float()` give float32 always, so "
    "float64 loses half its digits. A new tensor should be made like the one it is filled from.",
    give=lambda merged: merged.float(),
)

"""Cut every vector into heads: what is promised, the reference in steps, what goes wrong."""

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
    hints=(
        "Two things happen: each vector is cut into `num_heads` pieces, and the pieces' axis "
        "moves in front of the words. Which of the two can a reshape do alone?",
        "A reshape keeps the order in which numbers lie in memory. So it may cut the last "
        "axis in two, and nothing else. To move an axis, swap it with another.",
        "In einops, one pattern: left, the last axis written as (h d), heads first; right, h "
        "between b and n. In torch: cut the last axis into two axes, h and d; then swap axes "
        "1 and 2.",
    ),
    probes=probes,
    differentiated=("plain",),
    small=split_small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_head_gets_an_axis_of_its_own(answer, rng):
    for b, n, h, d in ((2, 3, 4, 5), (5, 4, 3, 2), (3, 2, 6, 4)):
        inputs = split_inputs(rng, b, n, h, d)
        has_shape("heads", answer(inputs), "(b h n d)", b, h, n, d, inputs=inputs)


@task.check(1)
def a_head_holds_its_piece_of_every_word(answer, rng):
    for b, n, h, d in ((1, 4, 2, 3), (2, 5, 3, 4), (3, 2, 4, 5)):
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

    def cut(x, num_heads):
        return x.unflatten(-1, (num_heads, -1))  # b n h d

    def move(x):
        return x.transpose(1, 2)

    def give(heads):
        return heads

    def __call__(self, x, num_heads):
        return self.give(self.move(self.cut(self.read(x), num_heads)))


# --- faults -------------------------------------------------------------------------------------


def stretched(x, num_heads):
    """Every head gets all of x."""
    return x[:, :, None].expand(-1, -1, num_heads, -1)


task.fault(
    "H-VIEW-SPLIT",
    "The shape (b h n d) is what is wanted, so I reshape to it.",
    "A reshape keeps the order in memory, and there the features of one word are neighbors. So "
    "your head 1 holds the first words, whole, and no piece of the others. Cutting and moving an "
    "axis are two steps.",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(x.shape[0], num_heads, x.shape[1], -1),
    move=as_is,
)
task.fault(
    "C-SPLIT-NO-SWAP",
    "Once the last axis is cut into heads and features, the heads have their axis.",
    "They have one, but behind the words: (b n h d). Attention compares along the last two axes, "
    "so there heads of one word would look at each other. With n = h not even the shape shows it.",
    move=as_is,
)
task.fault(
    "C-SPLIT-WRONG-SWAP",
    "A swap of two axes makes room for the heads; which two does not matter.",
    "After the cut the axes are (b n h d), and only the heads' axis is in the wrong place, behind "
    "the words. Any other swap moves sentences or features. Write the axes beside the line.",
    move=(
        lambda x: x.transpose(2, 3),
        lambda x: x.transpose(1, 3),
        lambda x: x.transpose(0, 2),
        lambda x: x.transpose(0, 1),
    ),
)
task.fault(
    "H-FUSED-LAYOUT",
    "Features are dealt to the heads like cards: one for each, then the next round.",
    "That is the layout (d h). In (h d), heads come first: the first d numbers belong to head 1, "
    "the next d to head 2. Weights trained in one layout are nonsense in the other.",
    cut=lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).mT,
)
task.fault(
    "C-SPLIT-WIDTH",
    "The number I get says how wide each piece is.",
    "It says how many pieces there are; their width is what is left over, m / h. Only where heads "
    "and features are equally many do both readings agree.",
    cut=lambda x, num_heads: x.unflatten(-1, (-1, num_heads)),
)
task.fault(
    "C-SPLIT-LIST",
    "Several heads are several tensors, so I return a list of them.",
    "Then every later step needs a loop. Heads are one more axis of one tensor: attention treats "
    "it like the batch, and all heads are computed at once.",
    give=lambda heads: list(heads.unbind(1)),
)
task.fault(
    "C-SPLIT-ONE-HEAD",
    "One head at a time: I return the first, and the others when they are needed.",
    "Nobody calls again. All heads come back at once, as one tensor with an axis for them; yours "
    "holds a single head. (Is there a `return` inside a loop?)",
    give=(lambda heads: heads[:, 0], lambda heads: heads[:, :1], lambda heads: heads[:, -1]),
)
task.fault(
    "C-SPLIT-HEADS-FIRST",
    "Heads stand outermost: first the head, then the sentence.",
    "Then the axes are (h b n d). The batch stays first everywhere in this course; a mask (b 1 q "
    "k) would meet the heads here. Where b = h nobody notices by the shape.",
    give=lambda heads: heads.transpose(0, 1),
)
task.fault(
    "C-SPLIT-FOLDED",
    "Heads are independent like sentences, so they join the batch: (b·h n d).",
    "That works inside one function, and older code does it. Here the heads keep an axis of their "
    "own, so that weights can be read by head and a mask can say which axis it means.",
    give=lambda heads: heads.flatten(0, 1),
)
task.fault(
    "C-SPLIT-TURNED",
    "I put the features before the words, since the product with the keys needs it so.",
    "Queries, keys and values are all split by this function, and only keys are ever turned. The "
    "product's own pattern does that; here the axes are (b h n d).",
    give=lambda heads: heads.mT,
)
task.fault(
    "C-SPLIT-SAME-PIECE",
    "Each head takes the first d features; they will learn different things anyway.",
    "All your heads hold the same numbers, so they ask the same question, and all other features "
    "of the projection are thrown away. Head i has the i-th piece.",
    cut=lambda x, num_heads: stretched(x[..., : x.shape[-1] // num_heads], num_heads),
)
task.fault(
    "C-SPLIT-WHOLE",
    "Each head reads the whole vector, so each gets a copy of all features.",
    "It has read the whole vector already, in the projection: there every number is a mixture of "
    "all features. What is split here are the results, and each head gets its own d of them.",
    section="whole-embedding",
    cut=stretched,
)
task.fault(
    "H-BATCH-FIRST",
    "The first axis holds the words and the second the sentences.",
    "Some of PyTorch's layers have that default. Here the batch is first, (b n m). Read the other "
    "way, words of different sentences would attend to each other, and all shapes would still "
    "fit.",
    section="multihead-parity",
    read=lambda x: x.transpose(0, 1),
)
task.fault(
    "C-SPLIT-TWO",
    "There are two heads, as in the chapter's example.",
    "The example has two; the caller chooses by `num_heads`. Your answer never uses that argument.",
    cut=lambda x, num_heads: x.unflatten(-1, (2, -1)),
)
task.fault(
    "C-SPLIT-SQUEEZED",
    "Axes of length one carry nothing, so I squeeze them away.",
    "One head, one word or one sentence are ordinary cases, and the next line counts on four "
    "axes. `squeeze()` without an axis removes whatever happens to be 1 today.",
    give=torch.squeeze,
)
task.fault(
    "C-SPLIT-DETACHED",
    "Only the numbers matter, so I rearrange them outside autograd.",
    "The values are right, but no gradient flows back through your copy: the projections before "
    "it would never learn. Use torch's own operations from end to end.",
    read=torch.detach,
)
task.fault(
    "C-SPLIT-FLOAT32",
    "The heads are float32, as nearly everything in PyTorch is.",
    "They are what `x` is. `torch.zeros(shape)` and `.float()` give float32 always, so float64 "
    "loses half its digits. A new tensor should be made like the one it is filled from.",
    give=lambda heads: heads.float(),
)
task.fault(
    "C-SPLIT-TWISTED",
    "I reshape until the sizes are there, and turn the last two axes so that they fit.",
    "The shape is right and the content is not: the reshape has already mixed words and features, "
    "and turning axes afterwards does not separate them. Number the entries of a small x and "
    "look.",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(x.shape[0], num_heads, -1, x.shape[1]).mT,
    move=as_is,
)
task.fault(
    "C-SPLIT-BATCH-MIXED",
    "I cut off the heads first and let the other axes follow in the reshape.",
    "(h b n d) by a reshape takes the first numbers in memory for head 1: those of the first "
    "sentences. Your map shows sentences going into one head each. Cut the last axis only.",
    section="multihead-breaks",
    cut=lambda x, num_heads: x.reshape(num_heads, *x.shape[:2], -1).transpose(0, 1),
    move=as_is,
)

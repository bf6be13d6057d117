"""Wrong answers of chapter 5. Ids C-… are our own, all others the course catalogue's.

Each answer below differs from a right one in one thought. Everything else about it is right, so
that the judge can recognize that thought.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from attncourse.misconceptions import Collection
from attncourse.scaled_dot_product import scaled_dot_product_attention

collection = Collection()
wrong = collection.misconception

# --- split_heads --------------------------------------------------------------------------------


def right_split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


@wrong(
    "H-VIEW-SPLIT",
    "split_heads",
    thinks="The shape (b h n d) is what is wanted, so I reshape to it.",
    why="A reshape keeps the order in memory, and there the features of one word are neighbors. "
    "So your head 1 holds the first words, whole, and no piece of the others. Cutting and moving "
    "an axis are two steps.",
    section="multihead-breaks",
)
def split_by_reshape(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, num_heads, n, m // num_heads)


def split_as_stack_of_pieces(x, num_heads):
    return torch.stack(x.chunk(num_heads, -1), dim=2)


@wrong(
    "C-SPLIT-NO-SWAP",
    "split_heads",
    thinks="Once the last axis is cut into heads and features, the heads have their axis.",
    why="They have one, but behind the words: (b n h d). Attention compares along the last two "
    "axes, so there heads of one word would look at each other. With n = h not even the shape "
    "shows it.",
    section="project-split",
    variants=(split_as_stack_of_pieces,),
)
def split_without_swap(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, n, num_heads, m // num_heads)


def split_with_a_stride(x, num_heads):
    return torch.stack([x[..., i::num_heads] for i in range(num_heads)], dim=1)


@wrong(
    "H-FUSED-LAYOUT",
    "split_heads",
    thinks="Features are dealt to the heads like cards: one for each, then the next round.",
    why="That is the layout (d h). In (h d), heads come first: the first d numbers belong to head "
    "1, the next d to head 2. Weights trained in one layout are nonsense in the other.",
    section="project-split",
    variants=(split_with_a_stride,),
)
def split_interleaved(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


@wrong(
    "C-SPLIT-WIDTH",
    "split_heads",
    thinks="The number I get says how wide each piece is.",
    why="It says how many pieces there are; their width is what is left over, m / h. Only where "
    "heads and features are equally many do both readings agree.",
    section="project-split",
)
def split_into_pieces_of_that_width(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).transpose(1, 2)


def split_to_a_list(x, num_heads):
    return list(x.split(x.shape[-1] // num_heads, dim=-1))


@wrong(
    "C-SPLIT-LIST",
    "split_heads",
    thinks="Several heads are several tensors, so I return a list of them.",
    why="Then every later step needs a loop. Heads are one more axis of one tensor: attention "
    "treats it like the batch, and all heads are computed at once.",
    section="project-split",
    variants=(split_to_a_list,),
)
def split_to_chunks(x, num_heads):
    return x.chunk(num_heads, dim=-1)


def split_by_permuting_heads_first(x, num_heads):
    return right_split(x, num_heads).transpose(0, 1)


@wrong(
    "C-SPLIT-HEADS-FIRST",
    "split_heads",
    thinks="Heads stand outermost: first the head, then the sentence.",
    why="Then the axes are (h b n d). The batch stays first everywhere in this course; a mask "
    "(b 1 q k) would meet the heads here. Where b = h nobody notices by the shape.",
    section="project-split",
    variants=(split_by_permuting_heads_first,),
)
def split_stacked_in_front(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1))


def split_stacked_below_each_other(x, num_heads):
    return right_split(x, num_heads).flatten(0, 1)


@wrong(
    "C-SPLIT-FOLDED",
    "split_heads",
    thinks="Heads are independent like sentences, so they join the batch: (b·h n d).",
    why="That works inside one function, and older code does it. Here the heads keep an axis of "
    "their own, so that weights can be read by head and a mask can say which axis it means.",
    section="project-split",
    variants=(split_stacked_below_each_other,),
)
def split_into_the_batch(x, num_heads):
    b, n, m = x.shape
    heads = x.reshape(b, n, num_heads, m // num_heads).transpose(1, 2)
    return heads.reshape(b * num_heads, n, m // num_heads)


def split_features_before_heads(x, num_heads):
    return right_split(x, num_heads).permute(0, 2, 3, 1)


@wrong(
    "C-SPLIT-TURNED",
    "split_heads",
    thinks="I put the features before the words, since the product with the keys needs it so.",
    why="Queries, keys and values are all split by this function, and only keys are ever turned. "
    "The product's own pattern does that; here the axes are (b h n d).",
    section="project-split",
)
def split_for_the_product(x, num_heads):
    return right_split(x, num_heads).mT


@wrong(
    "C-SPLIT-SAME-PIECE",
    "split_heads",
    thinks="Each head takes the first d features; they will learn different things anyway.",
    why="All your heads hold the same numbers, so they ask the same question, and all other "
    "features of the projection are thrown away. Head i has the i-th piece.",
    section="project-split",
)
def split_first_piece_for_all(x, num_heads):
    piece = x[..., : x.shape[-1] // num_heads]
    return piece[:, None].expand(-1, num_heads, -1, -1)


@wrong(
    "C-SPLIT-WHOLE",
    "split_heads",
    thinks="Each head reads the whole vector, so each gets a copy of all features.",
    why="It has read the whole vector already, in the projection: there every number is a mixture "
    "of all features. What is split here are the results, and each head gets its own d of them.",
    section="whole-embedding",
)
def split_by_copying(x, num_heads):
    return x[:, None].expand(-1, num_heads, -1, -1)


@wrong(
    "H-BATCH-FIRST",
    "split_heads",
    thinks="The first axis holds the words and the second the sentences.",
    why="Some of PyTorch's layers have that default. Here the batch is first, (b n m). Read the "
    "other way, words of different sentences would attend to each other, and all shapes would "
    "still fit.",
    section="multihead-parity",
)
def split_words_first(x, num_heads):
    return right_split(x.transpose(0, 1), num_heads)


@wrong(
    "C-SPLIT-TWO",
    "split_heads",
    thinks="There are two heads, as in the chapter's example.",
    why="The example has two; the caller chooses by `num_heads`. Your answer never uses that "
    "argument.",
    section="project-split",
)
def split_in_two(x, num_heads):
    return right_split(x, 2)


@wrong(
    "C-SPLIT-SQUEEZED",
    "split_heads",
    thinks="Axes of length one carry nothing, so I squeeze them away.",
    why="One head, one word or one sentence are ordinary cases, and the next line counts on four "
    "axes. `squeeze()` without an axis removes whatever happens to be 1 today.",
    section="project-split",
)
def split_and_squeeze(x, num_heads):
    return right_split(x, num_heads).squeeze()


def split_copy_by_values(x, num_heads):
    return right_split(torch.tensor(x.tolist(), dtype=x.dtype), num_heads)


@wrong(
    "C-SPLIT-DETACHED",
    "split_heads",
    thinks="Only the numbers matter, so I rearrange them outside autograd.",
    why="The values are right, but no gradient flows back through your copy: the projections "
    "before it would never learn. Use torch's own operations from end to end.",
    section="project-split",
    variants=(split_copy_by_values,),
)
def split_detached(x, num_heads):
    return right_split(x.detach(), num_heads)


def split_to_float(x, num_heads):
    return right_split(x, num_heads).float()


@wrong(
    "C-SPLIT-FLOAT32",
    "split_heads",
    thinks="The heads are float32, as nearly everything in PyTorch is.",
    why="They are what `x` is. `torch.zeros(shape)` and `.float()` give float32 always, so float64 "
    "loses half its digits. A new tensor should be made like the one it is filled from.",
    section="project-split",
    variants=(split_to_float,),
)
def split_into_zeros(x, num_heads):
    b, n, m = x.shape
    d = m // num_heads
    heads = torch.zeros(b, num_heads, n, d)
    for i in range(num_heads):
        heads[:, i] = x[..., i * d : (i + 1) * d]
    return heads


@wrong(
    "C-SPLIT-TWISTED",
    "split_heads",
    thinks="I reshape until the sizes are there, and turn the last two axes so that they fit.",
    why="The shape is right and the content is not: the reshape has already mixed words and "
    "features, and turning axes afterwards does not separate them. Number the entries of a small "
    "x and look.",
    section="multihead-breaks",
)
def split_reshaped_and_turned(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, num_heads, m // num_heads, n).mT


@wrong(
    "C-SPLIT-BATCH-MIXED",
    "split_heads",
    thinks="I cut off the heads first and let the other axes follow in the reshape.",
    why="(h b n d) by a reshape takes the first numbers in memory for head 1: those of the first "
    "sentences. Your map shows sentences going into one head each. Cut the last axis only.",
    section="multihead-breaks",
)
def split_reshaped_heads_first(x, num_heads):
    b, n, m = x.shape
    return x.reshape(num_heads, b, n, m // num_heads).transpose(0, 1)


# --- merge_heads --------------------------------------------------------------------------------


def right_merge(x):
    return x.transpose(1, 2).flatten(2)


def merge_by_a_view_of_a_copy(x):
    b, _, n, _ = x.shape
    return x.contiguous().view(b, n, -1)


@wrong(
    "H-VIEW-MERGE",
    "merge_heads",
    thinks="The shape (b n h·d) is what is wanted, so I reshape to it.",
    why="In memory all words of head 1 come first. A reshape cuts that row anew, so that one "
    "output word holds several words of one head; under a causal mask this leaks the future.",
    section="multihead-breaks",
    variants=(merge_by_a_view_of_a_copy,),
)
def merge_by_reshape(x):
    b, h, n, d = x.shape
    return x.reshape(b, n, h * d)


@wrong(
    "H-CONTIGUOUS",
    "merge_heads",
    thinks="After swapping the axes, `view` joins the last two.",
    why="`view` never copies, and after a swap the numbers of one word no longer lie in order, so "
    "it raises an error. Deleting the swap silences the error and scrambles the words; something "
    "else copies where it must.",
    section="multihead-breaks",
)
def merge_by_view(x):
    b, h, n, d = x.shape
    return x.transpose(1, 2).view(b, n, h * d)


@wrong(
    "C-MERGE-SUM",
    "merge_heads",
    thinks="The layer adds up its heads, so merging is a sum.",
    why="It adds them after each head has its own block of W^O. Added here, before, all heads "
    "would share one block, and nobody could tell their answers apart.",
    section="sum-over-heads",
)
def merge_by_sum(x):
    return x.sum(1)


@wrong(
    "C-MERGE-MEAN",
    "merge_heads",
    thinks="Several opinions become one by averaging.",
    why="An average of two answers is no answer to either question: that was the trouble with one "
    "row of weights. Heads stand side by side, and the last projection decides what to do with "
    "them.",
    section="one-row",
)
def merge_by_mean(x):
    return x.mean(1)


@wrong(
    "C-MERGE-MAX",
    "merge_heads",
    thinks="The strongest head should win in each feature.",
    why="Feature 3 of one head and feature 3 of another mean different things, so there is nothing "
    "to compare. No head is chosen: their vectors are laid side by side.",
    section="project-split",
)
def merge_by_max(x):
    return x.amax(1)


def merge_by_stacking_last(x):
    return torch.stack(x.unbind(1), dim=-1).flatten(2)


@wrong(
    "H-FUSED-LAYOUT",
    "merge_heads",
    thinks="The first features of all heads come first, then the second ones, and so on.",
    why="That is the layout (d h). Here a word's vector is (h d): all of head 1, then all of head "
    "2. Weights trained in one layout are nonsense in the other.",
    section="project-split",
    variants=(merge_by_stacking_last,),
)
def merge_interleaved(x):
    return x.permute(0, 2, 3, 1).flatten(2)


@wrong(
    "C-MERGE-HALF-WAY",
    "merge_heads",
    thinks="Swapping the axes back undoes the split.",
    why="It undoes its last step. The heads still have an axis of their own, (b n h d), and a "
    "linear layer would treat each head's piece as a word of its own.",
    section="project-split",
)
def merge_without_joining(x):
    return x.transpose(1, 2)


@wrong(
    "C-MERGE-BELOW",
    "merge_heads",
    thinks="Concatenating heads means putting one after the other along the words.",
    why="Then a sentence becomes h times as long, and no word has more than one head's answer. "
    "They are joined along the features: each word collects its pieces.",
    section="project-split",
)
def merge_along_the_words(x):
    return torch.cat(x.unbind(1), dim=1)


@wrong(
    "C-MERGE-NO-SWAP",
    "merge_heads",
    thinks="Heads are joined by flattening the last two axes.",
    why="As it comes, those two are words and features: you get one long vector a head. Where "
    "h = n and the shape fits, it is wrong all the same. First bring heads and features together.",
    section="project-split",
)
def merge_last_two_axes(x):
    return x.flatten(2)


@wrong(
    "C-MERGE-WRONG-SWAP",
    "merge_heads",
    thinks="Any swap of axes before the reshape will do.",
    why="The swap must bring the axis of heads beside the features. You swapped words and "
    "features, so a word's numbers end up in several output words. Number a small tensor and "
    "look.",
    section="multihead-breaks",
)
def merge_with_the_wrong_swap(x):
    b, h, n, d = x.shape
    return x.transpose(2, 3).reshape(b, n, h * d)


@wrong(
    "H-BATCH-FIRST",
    "merge_heads",
    thinks="The result has words first and sentences second.",
    why="Here the batch is first, (b n m), as in all of this course. Some of PyTorch's layers have "
    "the other default; mix the two, and words attend to other sentences.",
    section="multihead-parity",
)
def merge_words_first(x):
    return right_merge(x).transpose(0, 1)


@wrong(
    "C-MERGE-REVERSED",
    "merge_heads",
    thinks="New pieces are put in front, so that the last head comes first.",
    why="The order of heads is free, but it must be the one in which they were split and in which "
    "W^O was trained: head 1 first. `merge` after `split` should give back what went in.",
    section="project-split",
)
def merge_last_head_first(x):
    return right_merge(x.flip(1))


@wrong(
    "C-MERGE-FIRST-HEAD",
    "merge_heads",
    thinks="All heads say much the same, so one of them is enough.",
    why="You return d numbers a word instead of h·d: all heads but one are lost. Their questions "
    "differ, and so do their answers.",
    section="one-row",
)
def merge_first_head(x):
    return x[:, 0]


@wrong(
    "C-MERGE-SQUEEZED",
    "merge_heads",
    thinks="Axes of length one carry nothing, so I squeeze them away.",
    why="A batch of one sentence, or a sentence of one word, still needs three axes (b n m). "
    "`squeeze()` without an axis removes whatever happens to be 1 today.",
    section="project-split",
)
def merge_and_squeeze(x):
    return right_merge(x).squeeze()


@wrong(
    "C-MERGE-DETACHED",
    "merge_heads",
    thinks="Only the numbers matter, so I rearrange them outside autograd.",
    why="The values are right, but no gradient flows back through your copy, so no head would "
    "ever learn. Use torch's own operations from end to end.",
    section="project-split",
)
def merge_detached(x):
    return right_merge(x.detach())


def merge_to_float(x):
    return right_merge(x).float()


@wrong(
    "C-MERGE-FLOAT32",
    "merge_heads",
    thinks="What comes out is float32, as nearly everything in PyTorch is.",
    why="It is what the heads are. `torch.zeros(shape)` and `.float()` give float32 always, so "
    "float64 loses half its digits. A new tensor should be made like the one it is filled from.",
    section="project-split",
    variants=(merge_to_float,),
)
def merge_into_zeros(x):
    b, h, n, d = x.shape
    merged = torch.zeros(b, n, h * d)
    for i in range(h):
        merged[..., i * d : (i + 1) * d] = x[:, i]
    return merged


# --- MultiHeadAttention -------------------------------------------------------------------------


class Layer(nn.Module):
    """A right answer in pieces, so that a wrong one can replace one of them."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.head_width)

    def aligned(self, mask):
        return mask[:, None] if mask.ndim == 3 else mask

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)

    def average(self, weights, v):
        return self.dropout(weights) @ v

    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


class SlicesOfFullWidth(Layer):
    """Each head reads only its own slice: the blocks on the diagonal of the projections."""

    def project(self, query, key, value):
        d = self.head_width
        blocks = torch.block_diag(*[torch.ones(d, d)] * self.num_heads).to(query)
        return [
            F.linear(x, blocks * linear.weight, linear.bias)
            for x, linear in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        ]


@wrong(
    "H-SPLIT-EMBED",
    "MultiHeadAttention",
    thinks="Each head gets its own slice of the embedding and works on that.",
    why="Then a head can never use a feature outside its slice. The projections come first and see "
    "the whole vector, from width m to width m; what is cut into pieces are their results.",
    section="whole-embedding",
    variants=(SlicesOfFullWidth,),
)
class Slices(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        d = model_width // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))

    def split(self, x):
        return x

    def project(self, query, key, value):
        q, k, v = (Layer.split(self, x) for x in (query, key, value))
        return self.q_proj(q), self.k_proj(k), self.v_proj(v)


@wrong(
    "H-VIEW-SPLIT",
    "MultiHeadAttention",
    thinks="To split, I reshape the projections to (b h n d).",
    why="The shape is right, but a reshape keeps the order in memory: each head holds a few whole "
    "words instead of a piece of every word. With a causal mask, outputs then see the future.",
    section="multihead-breaks",
)
class SplitByReshape(Layer):
    def split(self, x):
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_width)


@wrong(
    "C-NO-SWAP",
    "MultiHeadAttention",
    thinks="Once each vector is cut into heads and features, attention can begin.",
    why="Attention compares along the last two axes. Yours are heads and features, so the heads of "
    "one word look at each other, and no word looks at another. The heads' axis belongs in front "
    "of the words.",
    section="project-split",
)
class SplitWithoutSwap(Layer):
    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1))

    def merge(self, x):
        return x.flatten(2)


@wrong(
    "H-VIEW-MERGE",
    "MultiHeadAttention",
    thinks="To merge, I reshape what the heads return to (b n m).",
    why="All words of head 1 lie together there, so your output mixes several words into one. The "
    "shape is right, and with a causal mask the future leaks.",
    section="multihead-breaks",
)
class MergeByReshape(Layer):
    def merge(self, x):
        b, h, n, d = x.shape
        return x.reshape(b, n, h * d)


@wrong(
    "H-VIEW-BOTH",
    "MultiHeadAttention",
    thinks="I split by a reshape and merge by a reshape, so one undoes the other.",
    why="Nothing leaks and the model trains, but each head holds a part of the words, whole, and "
    "the words of one part never see the others. The dependency map shows the blocks.",
    section="multihead-breaks",
)
class SplitAndMergeByReshape(Layer):
    def split(self, x):
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_width)

    def merge(self, x):
        b, h, n, d = x.shape
        return x.reshape(b, n, h * d)


@wrong(
    "H-CONTIGUOUS",
    "MultiHeadAttention",
    thinks="After swapping the axes back, `view` joins heads and features.",
    why="`view` never copies, and after the swap the numbers of one word no longer lie in order: "
    "an error. Do not delete the swap; use what copies where it must.",
    section="multihead-breaks",
)
class MergeByView(Layer):
    def merge(self, x):
        b, h, n, d = x.shape
        return x.transpose(1, 2).view(b, n, h * d)


@wrong(
    "H-FUSED-LAYOUT",
    "MultiHeadAttention",
    thinks="Head i takes every h-th feature of a projection, beginning with the i-th.",
    why="Trained from scratch it would work as well, but this layer must load weights that others "
    "trained, and theirs are laid out as (h d): the first d rows belong to head 1.",
    section="project-split",
)
class Interleaved(Layer):
    def split(self, x):
        return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)

    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


class TransposedInward(Layer):
    def project(self, query, key, value):
        inward = ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        return tuple(x @ each.weight + each.bias for x, each in inward)


class TransposedAll(TransposedInward):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        merged = self.merge(self.average(weights, v))
        return merged @ self.out_proj.weight + self.out_proj.bias, weights


@wrong(
    "H-WO-SHAPE",
    "MultiHeadAttention",
    thinks="The weight of an nn.Linear is the matrix that I multiply by from the right.",
    why="nn.Linear keeps its matrix as (out, in), the transpose of the formula's. As both sizes "
    "are m here, no error tells you. Calling the layer does it right.",
    section="sum-over-heads",
    variants=(TransposedInward, TransposedAll),
)
class TransposedOut(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        merged = self.merge(self.average(weights, v))
        return merged @ self.out_proj.weight + self.out_proj.bias, weights


class WithoutOutLayer(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        del self.out_proj

    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.merge(self.average(weights, v)), weights


@wrong(
    "H-NO-WO",
    "MultiHeadAttention",
    thinks="The merged heads have the right width already, so nothing is left to do.",
    why="Without the last projection each head can write only into its own d numbers, and no two "
    "heads can add to the same feature. W^O lets each of them reach all.",
    section="sum-over-heads",
    variants=(WithoutOutLayer,),
)
class WithoutOut(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.merge(self.average(weights, v)), weights


@wrong(
    "H-BATCH-FIRST",
    "MultiHeadAttention",
    thinks="Words come first and sentences second, as in PyTorch's own layer.",
    why="Here the batch is first, (b n m). Your words attend to words at the same place of other "
    "sentences: change one sentence, and the others' outputs change.",
    section="multihead-parity",
)
class WordsFirst(Layer):
    def split(self, x):
        return super().split(x.transpose(0, 1))

    def merge(self, x):
        return super().merge(x).transpose(0, 1)


def mean_of_heads(weights):
    return weights.mean(1)


@wrong(
    "H-AVG-WEIGHTS",
    "MultiHeadAttention",
    thinks="One map of weights is returned: the mean over the heads.",
    why="A mean looks like a head, but no head need look like it: one reads *ninety*, another "
    "*four*. Return them all, (b h q k); whoever wants the mean can take it.",
    section="multihead-parity",
)
class AveragedWeights(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output, mean_of_heads(weights)


@wrong(
    "C-RETURNS-SCORES",
    "MultiHeadAttention",
    thinks="The scores show where a head looks, so I return those.",
    why="Scores are numbers of any sign and size; they are comparable only within a row. Weights "
    "are what the values were averaged with: after the softmax, each row with sum one.",
    section="project-split",
)
class ReturnsScores(Layer):
    def forward(self, query, key, value, mask=None):
        output, _ = super().forward(query, key, value, mask)
        q, k, _ = (self.split(x) for x in self.project(query, key, value))
        scores = self.score(q, k)
        if mask is not None:
            scores = scores.masked_fill(~self.aligned(mask), torch.finfo(scores.dtype).min)
        return output, scores


@wrong(
    "C-OUTPUT-ALONE",
    "MultiHeadAttention",
    thinks="A layer returns its output; the weights are an inner matter.",
    why="Pictures and chapter 7's alignments need the weights. Return the pair: output (b q m), "
    "weights (b h q k).",
    section="multihead-code",
)
class OutputAlone(Layer):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask)[0]


@wrong(
    "D-SCALE-DMODEL",
    "MultiHeadAttention",
    thinks="Scores are divided by the root of the model's width.",
    why="A score inside a head is a sum of d products, not of m, so its variance is d. Divided by "
    "√m, scores are too small and all weights too equal, the more so the more heads.",
    section="multihead-breaks",
)
class ScaledByModelWidth(Layer):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.q_proj.in_features)


@wrong(
    "D-NO-SCALE",
    "MultiHeadAttention",
    thinks="The projections can learn the right size of the scores, so no scale is needed.",
    why="At the start they have not learned it: scores vary by √d, the softmax sits on one key, "
    "and its gradient nearly vanishes. Chapter 3's scale applies inside every head.",
    section="multihead-breaks",
)
class Unscaled(Layer):
    def score(self, q, k):
        return q @ k.mT


@wrong(
    "D-SCALE-DK",
    "MultiHeadAttention",
    thinks="Scores are divided by the width of a head.",
    why="The variance of a score is d, so its typical size is the *root* of d. Dividing by d "
    "itself makes scores too small and the weights nearly equal.",
    section="multihead-breaks",
)
class ScaledByWidth(Layer):
    def score(self, q, k):
        return q @ k.mT / self.head_width


@wrong(
    "C-SCALE-HEADS",
    "MultiHeadAttention",
    thinks="With h heads, scores are divided by the root of h.",
    why="How many heads there are plays no part in one head's score: it is a sum over the d "
    "features of that head. Where h = d both give the same, by luck.",
    section="multihead-breaks",
)
class ScaledByHeads(Layer):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.num_heads)


@wrong(
    "D-SCALE-AFTER",
    "MultiHeadAttention",
    thinks="First the softmax, then the division by √d.",
    why="After the softmax the damage is done: it has seen unscaled scores. And the rows no longer "
    "sum to one but to 1/√d.",
    section="multihead-breaks",
)
class ScaledAfterwards(Layer):
    def score(self, q, k):
        return q @ k.mT

    def weigh(self, scores, mask):
        return super().weigh(scores, mask) / math.sqrt(self.head_width)


@wrong(
    "D-SOFTMAX-DIM",
    "MultiHeadAttention",
    thinks="The softmax runs over the queries.",
    why="Keys compete for the attention of one query, so each row, the last axis, sums to one. "
    "With four axes it is easy to take the wrong one; naming them helps.",
    section="project-split",
)
class SoftmaxOverQueries(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-2)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-2).masked_fill(~mask, 0.0)


@wrong(
    "C-SOFTMAX-HEADS",
    "MultiHeadAttention",
    thinks="The heads compete with each other, so the softmax runs over axis 1.",
    why="That axis was another one while there were no heads. Now it holds the heads, and heads "
    "never compete: each has a budget of one for every query, spent on keys.",
    section="one-row",
)
class SoftmaxOverHeads(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(1)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(1).masked_fill(~mask, 0.0)


@wrong(
    "C-ONE-WIDE-HEAD",
    "MultiHeadAttention",
    thinks="All heads can share one table of weights, computed from the whole queries and keys.",
    why="Then there is one row of weights a query again, however many heads it is copied to: the "
    "budget of a single head. Split before the scores, so that each head asks for itself.",
    section="one-row",
)
class OneWideHead(Layer):
    def score(self, q, k):
        q, k = self.merge(q), self.merge(k)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores[:, None].expand(-1, self.num_heads, -1, -1)


@wrong(
    "C-SHARED-PROJECTION",
    "MultiHeadAttention",
    thinks="Queries, keys and values come from the same sentence, so one projection does for all.",
    why="A word asks with one vector and is found by another: *four* looks for *ninety*, not for "
    "itself. Three roles, three matrices; keys projected like queries mostly find themselves.",
    section="project-split",
)
class SharedProjection(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.q_proj(key), self.q_proj(value)


@wrong(
    "C-SELF-ONLY",
    "MultiHeadAttention",
    thinks="It is self-attention: queries, keys and values all come from the first argument.",
    why="Often all three are the same sentence, but the caller decides. In chapter 7 the queries "
    "come from the translation, keys and values from the source.",
    section="project-split",
)
class SelfOnly(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(query), self.v_proj(query)


@wrong(
    "C-VALUE-FROM-KEY",
    "MultiHeadAttention",
    thinks="Keys and values belong to the same words, so the values are computed from `key`.",
    why="They belong to the same words but may be different vectors, and they come as two "
    "arguments. Yours never looks at `value`.",
    section="project-split",
)
class ValueFromKey(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), self.v_proj(key)


@wrong(
    "X-WRONG-KV",
    "MultiHeadAttention",
    thinks="Keys and values go together, so it does not matter which is which.",
    why="Keys are compared with the queries, values are averaged. You compare with the projected "
    "values and average the projected keys.",
    section="project-split",
)
class SwappedRoles(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.v_proj(value), self.k_proj(key)


@wrong(
    "C-SWAPPED-QUERY-KEY",
    "MultiHeadAttention",
    thinks="A dot product does not care about the order, so query and key may change places.",
    why="The product does not, but each has its own projection and its own axis. You project the "
    "queries with the keys' matrix and the keys with the queries'.",
    section="project-split",
)
class SwappedProjections(Layer):
    def project(self, query, key, value):
        return self.k_proj(query), self.q_proj(key), self.v_proj(value)


@wrong(
    "C-FORGOTTEN-PROJECTION",
    "MultiHeadAttention",
    thinks="The values are what the words have to say, so they need no projection.",
    why="Unprojected, head i passes on features of its own slice only. `v_proj` lets every head "
    "choose what it passes on, from the whole vector.",
    section="whole-embedding",
)
class RawValues(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), value


@wrong(
    "C-RESIDUAL",
    "MultiHeadAttention",
    thinks="Attention adds what it found to the query.",
    why="The Transformer does that, around this layer: chapter 7's layers add, and normalize. Done "
    "here too, the input would be counted twice.",
    section="multihead-code",
)
class WithResidual(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output + query, weights


@wrong(
    "C-NO-BIAS",
    "MultiHeadAttention",
    thinks="A projection is a matrix, so the linear layers need no bias.",
    why="The formula has none, and many models do without. This layer has biases like PyTorch's: "
    "the task says so, since weights are copied in by name.",
    section="multihead-parity",
)
class WithoutBias(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(model_width, model_width, bias=False))


class FormulaNames(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (
            self.q_proj,
            self.k_proj,
            self.v_proj,
            self.out_proj,
        )
        del self.q_proj, self.k_proj, self.v_proj, self.out_proj

    def forward(self, query, key, value, mask=None):
        q, k, v = map(self.split, (self.W_q(query), self.W_k(key), self.W_v(value)))
        weights = self.weigh(self.score(q, k), mask)
        return self.W_o(self.merge(self.average(weights, v))), weights


@wrong(
    "C-OWN-NAMES",
    "MultiHeadAttention",
    thinks="What the parts of my class are called is my own business.",
    why="Inside a program, yes. But weights are saved, loaded and copied by these names, here and "
    "everywhere in PyTorch. The task gives four: q_proj, k_proj, v_proj, out_proj.",
    section="multihead-code",
    variants=(FormulaNames,),
)
class OwnNames(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.query = nn.Linear(model_width, model_width)
        self.key = nn.Linear(model_width, model_width)
        self.value = nn.Linear(model_width, model_width)
        self.output = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k = self.split(self.query(query)), self.split(self.key(key))
        v = self.split(self.value(value))
        scores = q @ k.mT / math.sqrt(self.head_width)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            mask = mask[:, None] if mask.ndim == 3 else mask
            low = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)
        heads = self.dropout(weights) @ v
        return self.output(heads.transpose(1, 2).flatten(2)), weights


@wrong(
    "C-QUERY-LENGTH",
    "MultiHeadAttention",
    thinks="All three have the length of the query, so I reshape with that.",
    why="In self-attention they have. In cross-attention there are q queries and k keys, and the "
    "two lengths have nothing to do with each other.",
    section="project-split",
)
class LengthOfTheQuery(Layer):
    def forward(self, query, key, value, mask=None):
        b, n, _ = query.shape
        q, k, v = (
            x.view(b, n, self.num_heads, self.head_width).transpose(1, 2)
            for x in self.project(query, key, value)
        )
        weights = self.weigh(self.score(q, k), mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


# masks


@wrong(
    "M-IGNORED",
    "MultiHeadAttention",
    thinks="The mask concerns whoever calls the layer.",
    why="The layer alone can keep a hidden key out of the competition: before the softmax. Yours "
    "takes the mask and never uses it.",
    section="multihead-code",
)
class IgnoresMask(Layer):
    def weigh(self, scores, mask):
        return scores.softmax(-1)


@wrong(
    "M-POLARITY",
    "MultiHeadAttention",
    thinks="True marks the keys to leave out, as in nn.MultiheadAttention.",
    why="There it does. In this course True means *may attend*, as in "
    "F.scaled_dot_product_attention: your layer looks at exactly what it should not.",
    section="multihead-parity",
)
class OppositeMask(Layer):
    def aligned(self, mask):
        return ~super().aligned(mask)


class MaskMeetsChapter3(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        _, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


@wrong(
    "C-MASK-MEETS-HEADS",
    "MultiHeadAttention",
    thinks="A mask broadcasts by itself, whatever axes it has.",
    why="Axes are matched from the right: the b of a mask (b q k) meets the h of the scores "
    "(b h q k). If b = h, sentence 1's mask is laid on head 1, and no error says so.",
    section="multihead-code",
    variants=(MaskMeetsChapter3,),
)
class MaskMeetsHeads(Layer):
    def aligned(self, mask):
        return mask


def mask_with_a_head_axis(mask):
    return mask.unsqueeze(1)


@wrong(
    "C-MASK-ALWAYS-BATCHED",
    "MultiHeadAttention",
    thinks="Every mask gets an axis for the heads, right after the first.",
    why="That is right for (b q k). A mask (q k) becomes (q 1 k): its queries now meet the heads, "
    "which fails, or hides the wrong words where h = q.",
    section="multihead-code",
)
class MaskAlwaysBatched(Layer):
    def aligned(self, mask):
        return mask_with_a_head_axis(mask)


@wrong(
    "M-REPEAT-HEADS",
    "MultiHeadAttention",
    thinks="Heads are folded into the batch, so the mask is repeated h times.",
    why="`repeat` lays whole batches one after another: 1 2 3 1 2 3. The folded heads need each "
    "sentence's mask h times in a row: 1 1 2 2 3 3. Better, keep the heads' axis.",
    section="multihead-code",
)
class RepeatedMask(Layer):
    def weigh(self, scores, mask):
        if mask is not None:
            b, h, q, k = scores.shape
            mask = mask.expand(b, q, k).repeat(h, 1, 1).reshape(b, h, q, k)
        if mask is None:
            return scores.softmax(-1)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)


@wrong(
    "C-MASK-FIRST-HEAD",
    "MultiHeadAttention",
    thinks="One mask belongs to one head; the others are free to look.",
    why="What is hidden is hidden from the layer: a single head that sees the future is enough to "
    "leak it. All heads obey the same mask.",
    section="multihead-code",
)
class MaskInFirstHead(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask).expand_as(scores).clone()
        mask[:, 1:] = True
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)


@wrong(
    "M-AFTER-SOFTMAX",
    "MultiHeadAttention",
    thinks="Hidden keys get weight zero, after the softmax.",
    why="By then they have taken their share: what is left sums to less than one. A hidden key "
    "must lose before the competition.",
    section="multihead-code",
)
class MaskAfterSoftmax(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights * self.aligned(mask)


class MaskZeroesScores(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores * self.aligned(mask)).softmax(-1)


class RenormalizedWithClamp(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)


class RenormalizedPlainly(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / weights.sum(-1, keepdim=True)


@wrong(
    "M-AFTER-RENORMALIZED",
    "MultiHeadAttention",
    thinks="I set hidden weights to zero after the softmax, and divide each row by its sum again.",
    why="On paper that is the same. But if a hidden key has by far the best score, it takes all "
    "the weight; to the visible keys nothing is left that could be divided. Hide it before the "
    "softmax.",
    section="multihead-code",
    variants=(RenormalizedWithClamp, RenormalizedPlainly),
)
class Renormalized(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / (weights.sum(-1, keepdim=True) + 1e-9)


@wrong(
    "M-ADD-BOOL",
    "MultiHeadAttention",
    thinks="Adding the mask to the scores hides what it should.",
    why="A boolean mask adds 1 or 0, which hides nothing: it only favors the visible keys a "
    "little. A hidden score must become so low that its exponential is 0.",
    section="multihead-code",
)
class MaskAdded(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + self.aligned(mask)).softmax(-1)


@wrong(
    "C-MASK-ZERO-SCORE",
    "MultiHeadAttention",
    thinks="A hidden key gets the score 0, so nobody looks at it.",
    why="Zero is an ordinary score: exp(0) is 1, and next to negative scores it even wins. Scores "
    "have no zero point; only the lowest possible score is out of the race.",
    section="multihead-code",
    variants=(MaskZeroesScores,),
)
class MaskFillsZero(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~self.aligned(mask), 0)).softmax(-1)


class DeadRowsSpread(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~self.aligned(mask), torch.finfo(scores.dtype).min).softmax(-1)


class DeadRowsPatched(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        hidden = torch.where(self.aligned(mask), 0.0, -torch.inf).to(scores)
        return (scores + hidden).softmax(-1).nan_to_num(0.0)


@wrong(
    "M-DEAD-ROW",
    "MultiHeadAttention",
    thinks="Every query has some key to look at, so filling the hidden scores is all.",
    why="Padding and other masks together can leave a query nothing. Then −∞ everywhere gives NaN, "
    "also in the gradient, and a finite fill gives equal weights to what is hidden. Wanted: "
    "weights 0.",
    section="multihead-code",
    variants=(DeadRowsSpread, DeadRowsPatched),
)
class DeadRowsFail(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~self.aligned(mask), -torch.inf).softmax(-1)


@wrong(
    "C-DEAD-OUTPUT-ZERO",
    "MultiHeadAttention",
    thinks="A query with nothing to attend to gets the output zero.",
    why="Its heads return zero. But their zeros still pass through the last projection, which adds "
    "its bias. Erasing that afterwards makes this row obey another rule than all others.",
    section="multihead-code",
)
class DeadOutputsErased(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        alive = weights.sum((1, 3)) > 0  # b q
        return output * alive[..., None], weights


class FillOfTenThousand(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return scores.masked_fill(~mask, -1e4).softmax(-1) * mask.any(-1, keepdim=True)


class AddedTenThousand(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return (scores - 1e4 * ~mask).softmax(-1).masked_fill(~mask, 0.0)


@wrong(
    "M-SMALL-FILL",
    "MultiHeadAttention",
    thinks="A score of −100 or −10,000 is low enough to hide a key.",
    why="Real scores can lie below it, or be larger than what you subtract; then the hidden keys "
    "win. The lowest number of the dtype is never beaten.",
    section="multihead-code",
    variants=(FillOfTenThousand, AddedTenThousand),
)
class FillOfHundred(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return scores.masked_fill(~mask, -100.0).softmax(-1) * mask.any(-1, keepdim=True)


@wrong(
    "C-ALWAYS-CAUSAL",
    "MultiHeadAttention",
    thinks="A word may look only at earlier words, always.",
    why="That holds where a model predicts the next word. An encoder reads the whole sentence, and "
    "in cross-attention *earlier* has no meaning. The caller says it by a mask.",
    section="multihead-code",
)
class AlwaysCausal(Layer):
    def weigh(self, scores, mask):
        earlier = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return super().weigh(scores, earlier if mask is None else self.aligned(mask) & earlier)


@wrong(
    "M-TRAIN-ONLY",
    "MultiHeadAttention",
    thinks="The mask keeps the model from cheating in training; later it is not needed.",
    why="A model that learned without the hidden words meets them for the first time in "
    "evaluation, and padding is never to be read. The mask holds in both modes; only dropout asks "
    "which one it is.",
    section="multihead-code",
)
class MaskInTrainingOnly(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask if self.training else None)


@wrong(
    "M-INPLACE",
    "MultiHeadAttention",
    thinks="Giving the mask its axis in place saves a copy.",
    why="The mask belongs to the caller, who uses it for the next layer, and finds it with another "
    "shape. A name without the trailing underscore returns a new view and costs nothing either.",
    section="multihead-code",
)
class MaskTurnedInPlace(Layer):
    def aligned(self, mask):
        return mask.unsqueeze_(1) if mask.ndim == 3 else mask


@wrong(
    "C-MASK-KEPT",
    "MultiHeadAttention",
    thinks="The mask is the same for every call, so I keep the first one in `self`.",
    why="The next batch has other lengths, and the same layer may be called with another mask or "
    "none. What depends on a call must not outlive it.",
    section="multihead-code",
)
class KeepsFirstMask(Layer):
    kept = None

    def forward(self, query, key, value, mask=None):
        if self.kept is None:
            self.kept = mask
        return super().forward(query, key, value, self.kept)


@wrong(
    "C-WEIGHTS-KEPT",
    "MultiHeadAttention",
    thinks="Keys and values do not change, so they are computed once and kept in `self`.",
    why="They change with every sentence. Your layer answers the second call from the first "
    "one's words, where the lengths allow it. A cache is passed in and out by the caller.",
    section="multihead-code",
)
class KeepsKeysAndValues(Layer):
    kept = None

    def project(self, query, key, value):
        q, k, v = super().project(query, key, value)
        if self.kept is None:
            self.kept = (k, v)
        return q, *self.kept


# dropout, precision, gradients


@wrong(
    "D-DROPOUT-PLACE",
    "MultiHeadAttention",
    thinks="Dropout hides some scores before the softmax.",
    why="A dropped score is 0, not hidden: exp(0) is 1, and the softmax spreads the rest anew. "
    "Dropout comes after the softmax, on the weights.",
    section="weights-dropout",
)
class DropsScores(Layer):
    def weigh(self, scores, mask):
        return super().weigh(self.dropout(scores), mask)

    def average(self, weights, v):
        return weights @ v


@wrong(
    "C-DROPOUT-RETURNED",
    "MultiHeadAttention",
    thinks="The weights that I return are those that were used, after dropout.",
    why="Then in training the rows do not sum to one, and every picture of them has holes. What "
    "the layer *wanted* to look at are the weights before dropout.",
    section="weights-dropout",
)
class ReturnsDropped(Layer):
    def weigh(self, scores, mask):
        return self.dropout(super().weigh(scores, mask))

    def average(self, weights, v):
        return weights @ v


@wrong(
    "D-SDPA-DROPOUT",
    "MultiHeadAttention",
    thinks="F.dropout knows by itself whether the model is training.",
    why="It does not: a function has no mode, and its default is to drop. A translator would lose "
    "words at random, in use. `self.training` tells the mode, or nn.Dropout asks it for you.",
    section="weights-dropout",
)
class DropsAlways(Layer):
    def average(self, weights, v):
        return F.dropout(weights, self.dropout.p) @ v


@wrong(
    "C-DROPOUT-NEVER",
    "MultiHeadAttention",
    thinks="`dropout` is an option for later, so I leave it out for now.",
    why="The layer accepts it and does nothing: training would quietly go on without. It acts "
    "between the softmax and the average.",
    section="weights-dropout",
)
class DropsNothing(Layer):
    def average(self, weights, v):
        return weights @ v


@wrong(
    "C-DROPOUT-DEFAULT",
    "MultiHeadAttention",
    thinks="A dropout of 0.1 is a good default.",
    why="Often it is, but the signature says 0.0: who asks for nothing gets nothing. Otherwise two "
    "layers with the same weights give different results in training.",
    section="weights-dropout",
)
class DropsByDefault(Layer):
    def __init__(self, model_width, num_heads, dropout=0.1):
        super().__init__(model_width, num_heads, dropout)


@wrong(
    "C-DROPOUT-OUTPUT",
    "MultiHeadAttention",
    thinks="Dropout belongs at the end of a layer, on its output.",
    why="Models often have one there, too, outside of this layer. Here it acts on the weights: for "
    "one step a head does not see some of the *words*, with all their features.",
    section="weights-dropout",
)
class DropsOutput(Layer):
    def average(self, weights, v):
        return weights @ v

    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return self.dropout(output), weights


@wrong(
    "C-DROPOUT-VALUES",
    "MultiHeadAttention",
    thinks="Dropping features of the values comes to the same as dropping weights.",
    why="A dropped value is lost to all queries at once, feature by feature. A dropped weight "
    "takes one word from one query in one head.",
    section="weights-dropout",
)
class DropsValues(Layer):
    def average(self, weights, v):
        return weights @ self.dropout(v)


@wrong(
    "C-DROPOUT-SHRINKS",
    "MultiHeadAttention",
    thinks="Dropout sets some weights to zero, and that is all.",
    why="Then outputs are smaller in training than in use. What is kept is divided by the share "
    "that is kept, so that the mean stays as it was.",
    section="weights-dropout",
)
class DropsWithoutScale(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            weights = weights * (torch.rand_like(weights) >= self.dropout.p)
        return weights @ v


class DropsMost(Layer):
    def average(self, weights, v):
        share = self.dropout.p and 1 - self.dropout.p
        return F.dropout(weights, share, self.training) @ v


@wrong(
    "C-DROPOUT-KEEP",
    "MultiHeadAttention",
    thinks="`dropout` is the share of the weights that is kept.",
    why="Some libraries count that way. Here, as in nn.Dropout, it is the share that is lost: with "
    "0.25 you set three of four weights to zero and multiply the rest by four.",
    section="weights-dropout",
    variants=(DropsMost,),
)
class KeepsTheShare(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, 1 - dropout if dropout else 0.0)


class DropsAndShrinksLater(Layer):
    def average(self, weights, v):
        return super().average(weights, v) * (1.0 if self.training else 1 - self.dropout.p)


@wrong(
    "C-DROPOUT-SCALED-LATER",
    "MultiHeadAttention",
    thinks="In use, all weights are multiplied by the share that was kept in training.",
    why="The first papers did that. Here what is kept is enlarged in training, where dropout acts, "
    "and in evaluation the layer does nothing special. Otherwise its rows of weights would no "
    "longer average the values.",
    section="weights-dropout",
    variants=(DropsAndShrinksLater,),
)
class ShrinksInUse(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            return (weights * (torch.rand_like(weights) >= self.dropout.p)) @ v
        return weights @ v * (1 - self.dropout.p)


@wrong(
    "C-DROPOUT-NORMALIZED",
    "MultiHeadAttention",
    thinks="After dropout each row must be brought back to the sum one.",
    why="A row of one draw need not sum to one; its mean over many draws does, since what is kept "
    "is divided by the share that is kept. Dividing by the row's sum undoes part of the dropout.",
    section="weights-dropout",
)
class DropsAndNormalizes(Layer):
    def average(self, weights, v):
        used = self.dropout(weights)
        if self.training and self.dropout.p:
            used = used / used.sum(-1, keepdim=True).clamp(min=1e-9)
        return used @ v


@wrong(
    "C-DROPOUT-SEEDED",
    "MultiHeadAttention",
    thinks="Fixing the seed before dropout makes training repeatable.",
    why="It makes every step drop the same weights, and all other draws of the program repeat, "
    "too: there is one generator for everybody. Whoever starts the training sets the seed, once.",
    section="weights-dropout",
)
class DropsWithASeed(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            torch.manual_seed(0)
        return super().average(weights, v)


@wrong(
    "C-HALF-DIGITS",
    "MultiHeadAttention",
    thinks="The softmax is safer in float32, so I convert to it and back.",
    why="For float16 that would help. From float64 it throws half of the digits away. Filling with "
    "the dtype's own lowest number is safe in every precision.",
    section="multihead-code",
)
class SoftmaxInFloat32(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores.float(), mask).to(scores.dtype)


@wrong(
    "C-NO-GRADIENT-WEIGHTS",
    "MultiHeadAttention",
    thinks="The weights only say where to look, so they need no gradient.",
    why="Where to look is what has to be learned: without a gradient, `q_proj` and `k_proj` stay "
    "as random as they began.",
    section="multihead-code",
)
class WeightsWithoutGradient(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask).detach()


@wrong(
    "C-QUERY-SCALED-IN-PLACE",
    "MultiHeadAttention",
    thinks="Scaling the query before its projection, in place, is the cheapest way.",
    why="`query` belongs to the caller, who still needs it, in self-attention even as key and "
    "value. And the bias of the projection then misses the scale.",
    section="multihead-code",
)
class ScalesInPlace(Layer):
    def project(self, query, key, value):
        query /= math.sqrt(self.head_width)
        return super().project(query, key, value)

    def score(self, q, k):
        return q @ k.mT


@wrong(
    "C-TRANSPOSED-WEIGHTS",
    "MultiHeadAttention",
    thinks="Weights are returned with the keys first, as columns of the picture.",
    why="In this course a row belongs to a query and a column to a key: (b h q k). With q = k the "
    "shape hides the difference; the sums do not: rows sum to one.",
    section="project-split",
)
class WeightsTurned(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output, weights.mT


@wrong(
    "C-TWO-ERRORS",
    "MultiHeadAttention",
    thinks="A layer is a view, a product with √m, and a view back.",
    why="Two things at once: the views give each head a part of the words instead of a piece of "
    "every word, and a score inside a head is a sum of d products, not of m.",
    section="multihead-breaks",
)
class ViewsAndModelScale(SplitAndMergeByReshape):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.q_proj.in_features)


# --- attention_parameters -----------------------------------------------------------------------


@wrong(
    "H-HEADCOUNT",
    "attention_parameters",
    thinks="GPT-3 has 96 heads, so I count 96 heads.",
    why="It has 96 in *each* of 96 layers. You counted one layer; every layer has heads of its "
    "own, with their own matrices.",
    section="gpt3-parameters",
)
def parameters_of_one_layer(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_heads * 4 * model_width * head_width


@wrong(
    "H-COST",
    "attention_parameters",
    thinks="Every head is a full attention of the model's width, so h heads cost h times as much.",
    why="A head is h times narrower than the model, and the factor h cancels. With the usual width "
    "the count does not depend on h at all.",
    section="heads-cost",
)
def parameters_of_wide_heads(model_width, num_heads, num_layers, head_width=None):
    return num_layers * num_heads * 4 * model_width * (head_width or model_width)


@wrong(
    "C-PARAMETERS-NO-OUT",
    "attention_parameters",
    thinks="A head has three matrices: query, key and value.",
    why="And a way back: its block of W^O, which turns d numbers into m again. It holds as many "
    "parameters as each of the others.",
    section="gpt3-parameters",
)
def parameters_without_out(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * num_heads * 3 * model_width * head_width


@wrong(
    "C-PARAMETERS-BIASES",
    "attention_parameters",
    thinks="The biases of the four linear layers count, too.",
    why="They are parameters, but this count leaves them out, as the task says: it is a count of "
    "matrices. For GPT-3 biases change one part in ten thousand.",
    section="gpt3-parameters",
)
def parameters_with_biases(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (4 * model_width * inner + 3 * inner + model_width)


@wrong(
    "C-PARAMETERS-FIXED-WIDTH",
    "attention_parameters",
    thinks="A layer has four matrices of m × m, whatever its heads look like.",
    why="That is true for heads of width m / h. The caller may choose another `head_width`, and "
    "then the matrices are m × (h · d).",
    section="low-rank",
)
def parameters_ignoring_head_width(model_width, num_heads, num_layers, head_width=None):
    return num_layers * 4 * model_width**2


@wrong(
    "C-PARAMETERS-ONE-HEAD",
    "attention_parameters",
    thinks="The heads share their matrices, so one head's are counted.",
    why="Each head has matrices of its own; otherwise all would ask the same question. What they "
    "share is the layer they stand in.",
    section="project-split",
)
def parameters_of_one_head(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * 4 * model_width * head_width


def parameters_as_a_float_product(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return 4.0 * model_width * head_width * num_heads * num_layers


@wrong(
    "C-PARAMETERS-FLOAT",
    "attention_parameters",
    thinks="m / h is a whole number when h divides m.",
    why="In Python `/` always gives a float, and everything multiplied with it becomes one. `//` "
    "keeps whole numbers whole, however large they grow.",
    section="gpt3-parameters",
    variants=(parameters_as_a_float_product,),
)
def parameters_as_float(model_width, num_heads, num_layers, head_width=None):
    head_width = model_width / num_heads if head_width is None else float(head_width)
    return num_layers * num_heads * 4 * model_width * head_width


@wrong(
    "H-SPLIT-EMBED",
    "attention_parameters",
    thinks="Each head projects its own slice of the embedding, d numbers to d numbers.",
    why="Each head reads the whole vector, so its matrices have m rows and d columns. Only their "
    "results are narrow.",
    section="whole-embedding",
)
def parameters_of_slices(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    return num_layers * num_heads * 4 * head_width**2


@wrong(
    "H-WO-SHAPE",
    "attention_parameters",
    thinks="W^O keeps the width: it is m × m, however wide the heads are.",
    why="It receives the merged heads, h · d numbers, and returns m. Where h · d = m nobody can "
    "tell; give a `head_width`, and the two differ.",
    section="gpt3-parameters",
)
def parameters_with_square_out(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (3 * model_width * inner + model_width**2)


@wrong(
    "C-PARAMETERS-OUT-EACH",
    "attention_parameters",
    thinks="Each head has its own whole W^O.",
    why="There is one W^O a layer, and each head owns a block of it: d rows, m columns. The blocks "
    "of all heads together are the whole matrix.",
    section="sum-over-heads",
)
def parameters_with_an_out_for_each(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    out = num_heads * head_width * model_width
    return num_layers * num_heads * (3 * model_width * head_width + out)


@wrong(
    "C-PARAMETERS-WHOLE-LAYER",
    "attention_parameters",
    thinks="A layer of a Transformer has 12 m² parameters.",
    why="A third of them: 8 m² are in the two-layer network after the attention. Here only the "
    "attention is counted.",
    section="gpt3-parameters",
)
def parameters_of_the_whole_layer(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (4 * model_width * inner + 8 * model_width**2)


@wrong(
    "C-PARAMETERS-TOTAL-WIDTH",
    "attention_parameters",
    thinks="`head_width` is the width of all heads together.",
    why="It is the width of one head; together they have num_heads times that. With the largest T5 "
    "that makes a factor of 128.",
    section="low-rank",
)
def parameters_with_total_width(model_width, num_heads, num_layers, head_width=None):
    return num_layers * 4 * model_width * (head_width or model_width)


@wrong(
    "C-PARAMETERS-ROUNDED",
    "attention_parameters",
    thinks="A tensor can do the multiplication.",
    why="float32 knows about seven digits: small counts are right, large ones are rounded. "
    "(GPT-3's sizes hide it: they are full of factors 2.) Python's own whole numbers never round.",
    section="gpt3-parameters",
)
def parameters_in_float32(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    sizes = torch.tensor([4.0, model_width, head_width, num_heads, num_layers])
    return int(sizes.prod())


def parameters_in_int32(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    sizes = torch.tensor([4, model_width, head_width, num_heads, num_layers], dtype=torch.int32)
    return int(sizes.prod(dtype=torch.int32))


@wrong(
    "C-PARAMETERS-OVERFLOW",
    "attention_parameters",
    thinks="32 bits are enough to count parameters.",
    why="They end at 2,147,483,647, and larger products wrap around without a word. GPT-3 has 27 "
    "times as many. Python's own whole numbers have no end.",
    section="gpt3-parameters",
)
def parameters_of_32_bits(model_width, num_heads, num_layers, head_width=None):
    return parameters_in_int32(model_width, num_heads, num_layers, head_width)


@wrong(
    "C-PARAMETERS-FLOOR-ALWAYS",
    "attention_parameters",
    thinks="The heads together are as wide as the model, so all I need is m // h.",
    why="Here `head_width` is given and you do not use it; and m // h times h is less than m where "
    "h does not divide m.",
    section="low-rank",
)
def parameters_by_division_only(model_width, num_heads, num_layers, head_width=None):
    return num_layers * num_heads * 4 * model_width * (model_width // num_heads)

"""Wrong answers of chapter 7. Ids X-…, M-…, H-…, S-…, K-… are the course catalogue's, C-… our own.

Each answer below differs from a right one in one thought. Everything else about it is right, so
that the judge can recognize that thought.
"""

import torch
import torch.nn.functional as F
from torch import nn

from attncourse.misconceptions import Collection
from attncourse.multihead import MultiHeadAttention

collection = Collection()
wrong = collection.misconception

# --- cross_attention ----------------------------------------------------------------------------


@wrong(
    "X-WRONG-KV",
    "cross_attention",
    thinks="Only queries and keys see different data; the values stay with the target.",
    why="A key is what an entry is found by, a value what it hands over: both belong to the same "
    "entry. With your values nothing of the source can reach the output.",
    section="whose-values",
)
def values_of_target(target, memory, attention, memory_mask=None):
    return attention(target, memory, target, memory_mask)


@wrong(
    "C-KEYS-OF-TARGET",
    "cross_attention",
    thinks="Words of the target are compared with each other; the source only gives the values.",
    why="Then nobody looks at the source to decide what to read. A word of the target has to be "
    "compared with the entries it looks up.",
    section="whose-values",
)
def keys_of_target(target, memory, attention, memory_mask=None):
    return attention(target, target, memory, memory_mask)


@wrong(
    "C-SOURCE-ASKS",
    "cross_attention",
    thinks="The source comes first, so it gives the queries, and the target the keys and values.",
    why="Count the rows: the output should have one for each word that is being written. So who "
    "has to ask?",
    section="two-sequences",
)
def source_asks(target, memory, attention, memory_mask=None):
    return attention(memory, target, target, memory_mask)


@wrong(
    "X-LEAK",
    "cross_attention",
    thinks="Query, key and value are the target, as everywhere in the decoder.",
    why="That is self-attention: the memory is not used at all. Replace the memory, and your "
    "output stays the same.",
    section="three-attentions",
)
def target_asks_itself(target, memory, attention, memory_mask=None):
    return attention(target, target, target, memory_mask)


@wrong(
    "C-SOURCE-ASKS-ITSELF",
    "cross_attention",
    thinks="The memory is what attention works on, so it plays all three parts.",
    why="That is what the encoder did before. Here somebody new comes and asks: change the "
    "target, and your output stays the same.",
    section="three-attentions",
)
def source_asks_itself(target, memory, attention, memory_mask=None):
    return attention(memory, memory, memory, memory_mask)


@wrong(
    "C-BOTH-ANSWER",
    "cross_attention",
    thinks="A word should be able to look at the source and at the target, so both are joined.",
    why="The words of the target have had their own attention before. Here every column of the "
    "weights is a word of the source.",
    section="two-sequences",
)
def both_answer(target, memory, attention, memory_mask=None):
    joined = torch.cat([memory, target], dim=1)
    if memory_mask is not None:
        shape = torch.broadcast_shapes(memory_mask.shape, (*target.shape[:2], memory.shape[1]))
        visible = torch.ones(*target.shape[:2], target.shape[1], dtype=torch.bool)
        memory_mask = torch.cat([memory_mask.expand(shape), visible], dim=-1)
    return attention(target, joined, joined, memory_mask)


@wrong(
    "X-NOMASK",
    "cross_attention",
    thinks="Cross-attention needs no mask, because the whole source is known.",
    why="It needs no causal mask. But in a batch short sources are padded, and padding has keys "
    "and values like any word: somebody has to hide them.",
    section="source-mask",
)
def without_mask(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory)


def causal_and_no_padding(target, memory, attention, memory_mask=None):
    mask = torch.ones(target.shape[1], memory.shape[1], dtype=torch.bool).tril()
    return attention(target, memory, memory, mask)


def causal_from_the_end(target, memory, attention, memory_mask=None):
    q, k = target.shape[1], memory.shape[1]
    mask = torch.ones(q, k, dtype=torch.bool).tril(k - q)
    return attention(target, memory, memory, mask if memory_mask is None else mask & memory_mask)


@wrong(
    "X-CAUSAL",
    "cross_attention",
    thinks="A decoder must not look ahead, so the causal mask applies here, too.",
    why="What it must not see is later words of the *target*. The source is known to its end "
    "before the first word is written, and word order differs between languages.",
    section="source-mask",
    variants=(causal_and_no_padding, causal_from_the_end),
)
def causal_on_the_source(target, memory, attention, memory_mask=None):
    mask = torch.ones(target.shape[1], memory.shape[1], dtype=torch.bool).tril()
    return attention(target, memory, memory, mask if memory_mask is None else mask & memory_mask)


@wrong(
    "X-TGTMASK",
    "cross_attention",
    thinks="The mask belongs to those who ask, so it runs along the queries.",
    why="A mask hides *keys*, and keys are words of the source. Along the queries it has another "
    "length, and where both lengths agree it hides the wrong words.",
    section="source-mask",
)
def mask_along_the_queries(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, None if memory_mask is None else memory_mask.mT)


@wrong(
    "M-POLARITY",
    "cross_attention",
    thinks="True in a mask means: hide this.",
    why="Libraries differ, so read the convention first: here True means that a query may attend. "
    "You read what should be hidden, and hide the rest.",
    section="source-mask",
)
def opposite_mask(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, None if memory_mask is None else ~memory_mask)


def first_row_of_mask(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3 and memory_mask.shape[1] == 1:
        memory_mask = memory_mask.squeeze(1)
    return attention(target, memory, memory, memory_mask)


@wrong(
    "M-SHAPE-BT",
    "cross_attention",
    thinks="One row of True and False for each sentence, (b k), is a complete mask.",
    why="An attention reads two axes as (q k): one row for each *query*. It fails unless there are "
    "as many sentences as queries, and then it mixes up who may see what.",
    section="source-mask",
    variants=(first_row_of_mask,),
)
def mask_without_its_query_axis(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3:
        memory_mask = memory_mask[:, 0]
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-FIRST-MASK",
    "cross_attention",
    thinks="One mask serves the whole batch.",
    why="The sentences of a batch differ in length: padding begins somewhere else in each. You "
    "give all of them the mask of the first.",
    section="source-mask",
)
def mask_of_first_sentence(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3:
        memory_mask = memory_mask[:1].expand_as(memory_mask)
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-ZEROED-MEMORY",
    "cross_attention",
    thinks="If I set the vectors of the padding to zero, nobody reads them.",
    why="A vector of zeros is still an entry: after the projection it has a key, a score and "
    "therefore a weight, which the real words lose. Its key must be hidden.",
    section="source-mask",
)
def zeros_instead_of_mask(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3 and memory_mask.shape[1] == 1:
        return attention(target, memory.masked_fill(~memory_mask.mT, 0.0), memory * memory_mask.mT)
    return attention(target, memory, memory, memory_mask)


@wrong(
    "M-AFTER-SOFTMAX",
    "cross_attention",
    thinks="I let the attention do its work and cross out the hidden weights afterwards.",
    why="Then the output was computed with them, and the weights that are left no longer sum to "
    "one. A hidden key must lose before the competition.",
    section="source-mask",
)
def masked_afterwards(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory)
    if memory_mask is not None:
        weights = weights * (memory_mask if memory_mask.ndim == 2 else memory_mask[:, None])
    return output, weights


@wrong(
    "M-TRAIN-ONLY",
    "cross_attention",
    thinks="Padding only exists in training, so the mask is used there only.",
    why="A batch is padded whenever several sentences are translated at once. Your answer treats "
    "the same input differently in evaluation.",
    section="source-mask",
)
def mask_in_training_only(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask if attention.training else None)


@wrong(
    "C-RESCUED-ROW",
    "cross_attention",
    thinks="A query that may attend to nothing would give NaN, so I open one key for it.",
    why="The attention you are given handles such rows. What you opened was hidden for a reason: "
    "now that query reads padding.",
    section="source-mask",
)
def opened_for_dead_rows(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask = memory_mask.clone()
        memory_mask[..., 0] |= ~memory_mask.any(-1)
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-DEAD-OUTPUT",
    "cross_attention",
    thinks="A query that may attend to nothing gets output 0, whatever the attention returns.",
    why="Its weights are 0, yes. But behind them the attention still adds the bias of its last "
    "layer, and that result is yours to hand on, not to correct.",
    section="two-sequences",
)
def zeros_for_dead_rows(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    if memory_mask is not None:
        output = output * memory_mask.any(-1, keepdim=True)
    return output, weights


@wrong(
    "C-OPEN-MASK",
    "cross_attention",
    thinks="I may mend the mask in place, it is only a helper.",
    why="The mask belongs to the caller, who uses it again in the next layer and now finds it "
    "changed. And the key that you opened should have stayed hidden.",
    section="source-mask",
)
def mask_in_place(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask[..., 0] = True
    return attention(target, memory, memory, memory_mask)


@wrong(
    "H-AVG-WEIGHTS",
    "cross_attention",
    thinks="One table of weights is enough, so I average over the heads.",
    why="Each head asks a question of its own, and an average is an answer to none of them. "
    "Return the weights as the attention gives them.",
    section="two-sequences",
)
def averaged_heads(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return output, weights.mean(1)


@wrong(
    "H-BATCH-FIRST",
    "cross_attention",
    thinks="Attention layers want the word axis first, so I turn the inputs and turn back.",
    why="Some libraries do; this course is batch-first everywhere. Turned around, each sentence "
    "looks at the other sentences of its batch.",
    section="two-sequences",
)
def words_first(target, memory, attention, memory_mask=None):
    memory = memory.transpose(0, 1)
    output, weights = attention(target.transpose(0, 1), memory, memory, memory_mask)
    return output.transpose(0, 1), weights


def residual_and_norm(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return F.layer_norm(target + output, target.shape[-1:]), weights


@wrong(
    "C-RESIDUAL-INSIDE",
    "cross_attention",
    thinks="Every part of a Transformer adds its input again, so I do it here.",
    why="It does, but the decoder layer around this function adds it. Done in both places, the "
    "input counts twice.",
    section="residual-connection",
    variants=(residual_and_norm,),
)
def residual_inside(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return target + output, weights


@wrong(
    "C-NORMALIZED-MEMORY",
    "cross_attention",
    thinks="What goes into an attention has to be normalized, the memory as well.",
    why="The encoder's last norm has done that. This function hands over what it was given; "
    "whoever calls it decides about norms.",
    section="layer-normalization",
)
def normalized_memory(target, memory, attention, memory_mask=None):
    memory = F.layer_norm(memory, memory.shape[-1:])
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-SCALED-TWICE",
    "cross_attention",
    thinks="Scores have to be divided by a root, so I shrink the queries first.",
    why="The attention scales its scores itself. Scaled twice, the weights become flatter than "
    "they should be.",
    section="two-sequences",
)
def scaled_twice(target, memory, attention, memory_mask=None):
    return attention(target / target.shape[-1] ** 0.5, memory, memory, memory_mask)


@wrong(
    "C-MEMORY-DETACHED",
    "cross_attention",
    thinks="The encoder's result is finished, so no gradient has to go back into it.",
    why="The encoder learns only from what the decoder does with its memory. Cut off here, it "
    "stays as it was at the start.",
    section="whole-transformer",
)
def detached_memory(target, memory, attention, memory_mask=None):
    memory = memory.detach()
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-VALUES-DETACHED",
    "cross_attention",
    thinks="Gradients through the keys are enough, the values are only read.",
    why="The output is made of values. Without their gradient the encoder learns where it is "
    "looked at, and hardly what it should say there.",
    section="whole-transformer",
)
def detached_values(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory.detach(), memory_mask)


@wrong(
    "C-NO-GRADIENT",
    "cross_attention",
    thinks="The numbers are right, so the answer is right.",
    why="The values are, but under `no_grad` nothing arrives where it is needed: neither target "
    "nor memory nor the attention could learn.",
    section="whole-transformer",
)
@torch.no_grad()
def without_gradient(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-SWITCHES-MODE",
    "cross_attention",
    thinks="An attention has to be in evaluation mode to give clean weights.",
    why="Mode is the caller's decision. After your call the attention stays in evaluation mode, "
    "and from then on a training loop trains without dropout.",
    section="two-sequences",
)
def switches_mode(target, memory, attention, memory_mask=None):
    attention.eval()
    return attention(target, memory, memory, memory_mask)


@wrong(
    "C-OUTPUT-ONLY",
    "cross_attention",
    thinks="The output is the result; the weights are only an intermediate step.",
    why="The weights are what you look at to see where the model looks, so they are returned, "
    "too: a pair.",
    section="two-sequences",
)
def output_only(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)[0]


@wrong(
    "C-PAIR-TURNED",
    "cross_attention",
    thinks="Weights come first, since they are computed first.",
    why="The order of a pair is an agreement: output first, weights second, as in every attention "
    "of this course.",
    section="two-sequences",
)
def pair_turned(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return weights, output


@wrong(
    "C-FLOAT32",
    "cross_attention",
    thinks="Networks compute in float32, so the result is turned into it.",
    why="The caller chose the precision. Of inputs in float64 you return half of the digits.",
    section="two-sequences",
)
def in_float32(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return output.float(), weights.float()


# --- DecoderLayer -------------------------------------------------------------------------------


class Parts(nn.Module):
    """What a decoder layer is made of; the answers below differ in what they do with it."""

    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.self_attention(y, y, y, mask)[0]

    def ask_memory(self, x, memory, mask):
        return x + self.cross_attention(self.norm2(x), memory, memory, mask)[0]

    def network(self, x):
        return self.linear2(self.linear1(x).relu())

    def think(self, x):
        return x + self.network(self.norm3(x))

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        return self.think(self.ask_memory(x, memory, memory_mask))


class ValuesFromMemoryOnly(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, y, memory, mask)[0]


@wrong(
    "X-WRONG-KV",
    "DecoderLayer",
    thinks="In cross-attention only two of the three inputs differ from self-attention: query and "
    "key, or query and value.",
    why="Keys and values are two sides of one entry: found by the one, handed over by the other. "
    "Both are words of the source.",
    section="whose-values",
    variants=(ValuesFromMemoryOnly,),
)
class ValuesFromTarget(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, memory, y, mask)[0]


@wrong(
    "C-SOURCE-ASKS",
    "DecoderLayer",
    thinks="The memory asks the target what it has to deliver.",
    why="Then there is one result for each word of the *source*, and it cannot be added to the "
    "target's. Who is being written asks.",
    section="two-sequences",
)
class SourceAsks(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(memory, y, y, mask)[0]


@wrong(
    "X-LEAK",
    "DecoderLayer",
    thinks="The second attention works on the target, like the first.",
    why="Then nothing of the source ever reaches the target, and the target's words are open to "
    "each other behind the causal mask.",
    section="three-attentions",
)
class TargetTwice(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, y, y)[0]


@wrong(
    "C-NO-CROSS",
    "DecoderLayer",
    thinks="A decoder layer is an encoder layer with a causal mask.",
    why="In a language model, yes. In a translator it has a third part in the middle, the only "
    "way from the source to the target.",
    section="decoder-layer",
)
class NoCrossAttention(Parts):
    def ask_memory(self, x, memory, mask):
        return x


@wrong(
    "C-NO-SELF",
    "DecoderLayer",
    thinks="The source holds all the information, so the target only asks the source.",
    why="What was written before decides what comes next: behind *quatre* may stand *cent* or "
    "*vingt*. Words of the target have to hear the words before them.",
    section="decoder-layer",
)
class NoSelfAttention(Parts):
    def ask_target(self, x, mask):
        return x


@wrong(
    "C-NO-NETWORK",
    "DecoderLayer",
    thinks="After both attentions the word knows everything, so the layer is done.",
    why="Attention only mixes vectors. The third part, two linear layers with a ReLU between "
    "them, works on what the mixing brought, word by word.",
    section="feed-forward",
)
class NoNetwork(Parts):
    def think(self, x):
        return x


@wrong(
    "C-ASKS-UNCHANGED",
    "DecoderLayer",
    thinks="The question to the source is the target as it came in.",
    why="It is the target *after* the first part: with what a word has heard from the words "
    "before it, it knows better what to ask.",
    section="decoder-layer",
)
class AsksUnchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm2(target), memory, memory, memory_mask)[0]
        return self.think(x)


@wrong(
    "X-NOMASK",
    "DecoderLayer",
    thinks="Cross-attention is unmasked: the decoder may see all of the source.",
    why="All *words* of the source. In a batch it also contains padding, which has keys and "
    "values, and takes weight unless `memory_mask` hides it.",
    section="source-mask",
)
class NoMemoryMask(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory, None)


@wrong(
    "C-NO-TARGET-MASK",
    "DecoderLayer",
    thinks="The target that is handed in has been written already, so nothing has to be hidden.",
    why="In training it is the whole sentence, and a position would read the very word it has to "
    "predict. `target_mask` prevents that.",
    section="three-attentions",
)
class NoTargetMask(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, None)


class TargetMaskTwice(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        return self.think(self.ask_memory(x, memory, target_mask))


@wrong(
    "X-TGTMASK",
    "DecoderLayer",
    thinks="It does not matter much which of the two masks goes where, if one is there.",
    why="A mask hides keys. In the first attention these are words of the target, in the second "
    "words of the source: each has a mask made for it.",
    section="three-attentions",
    variants=(TargetMaskTwice,),
)
class MasksExchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, memory_mask)
        return self.think(self.ask_memory(x, memory, target_mask))


@wrong(
    "X-CAUSAL",
    "DecoderLayer",
    thinks="A decoder must not look ahead, in the source neither.",
    why="The source is known to its end before the first word is written. With a triangle the "
    "first target word sees one source word only.",
    section="decoder-layer",
)
class CausalOnSource(Parts):
    def ask_memory(self, x, memory, mask):
        triangle = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool).tril()
        return super().ask_memory(x, memory, triangle if mask is None else triangle & mask)


class CausalWithoutMask(Parts):
    def ask_target(self, x, mask):
        if mask is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().ask_target(x, mask)


@wrong(
    "C-ALWAYS-CAUSAL",
    "DecoderLayer",
    thinks="A decoder is causal, so the layer makes its triangle itself.",
    why="The caller decides through `target_mask`: without one, every word may see every other. "
    "A triangle of your own cannot be taken away.",
    section="three-attentions",
    variants=(CausalWithoutMask,),
)
class AlwaysCausal(Parts):
    def ask_target(self, x, mask):
        triangle = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().ask_target(x, triangle if mask is None else triangle & mask)


class OneModuleTwoNames(Parts):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.cross_attention = self.self_attention


class OnlyCrossAttentionUsed(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.cross_attention(y, y, y, mask)[0]


@wrong(
    "X-REUSE",
    "DecoderLayer",
    thinks="Attention is attention: one module can do both.",
    why="The mechanism is the same, the projections are not. Asking one's own sentence and asking "
    "another need weights of their own; half of yours never learn.",
    section="decoder-layer",
    variants=(OneModuleTwoNames, OnlyCrossAttentionUsed),
)
class SelfAttentionForBoth(Parts):
    def ask_memory(self, x, memory, mask):
        return x + self.self_attention(self.norm2(x), memory, memory, mask)[0]


def opposite(mask):
    return None if mask is None else ~mask


class TargetMaskOpposite(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, opposite(mask))


class MemoryMaskOpposite(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory, opposite(mask))


@wrong(
    "M-POLARITY",
    "DecoderLayer",
    thinks="In a mask True marks what has to be hidden.",
    why="In some libraries. In this course True means *may attend*, and the attention you call "
    "reads it so. You show what should be hidden and hide the rest.",
    section="source-mask",
    variants=(TargetMaskOpposite, MemoryMaskOpposite),
)
class MasksOpposite(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        return super().forward(target, memory, opposite(target_mask), opposite(memory_mask))


class TargetMaskInTraining(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, mask if self.training else None)


@wrong(
    "M-TRAIN-ONLY",
    "DecoderLayer",
    thinks="Masks are for training, where the whole target is known.",
    why="In evaluation the model is often given a whole target, too, and sources are padded as "
    "before. The same input must mean the same in both modes.",
    section="cross-breaks",
    variants=(TargetMaskInTraining,),
)
class MasksInTraining(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        if not self.training:
            target_mask = memory_mask = None
        return super().forward(target, memory, target_mask, memory_mask)


@wrong(
    "C-MASK-ORDER",
    "DecoderLayer",
    thinks="Callers use names, so I may put `memory_mask` before `target_mask`.",
    why="The Transformer of this course passes both masks by position, target's first. Then yours "
    "are exchanged without any error.",
    section="decoder-layer",
)
class MemoryMaskFirst(Parts):
    def forward(self, target, memory, memory_mask=None, target_mask=None):
        return super().forward(target, memory, target_mask, memory_mask)


class PostNormWithoutMemoryMask(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory)[0])
        return self.norm3(x + self.network(x))


@wrong(
    "C-POST-NORM",
    "DecoderLayer",
    thinks="Normalize after each sum, as in the paper.",
    why="The paper did, and it works with a slow warm-up. Here it is pre-norm: the norm stands in "
    "front of each part, inside the sum.",
    section="layer-normalization",
    variants=(PostNormWithoutMemoryMask,),
)
class PostNorm(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.network(x))


@wrong(
    "C-NORM-OF-RESULT",
    "DecoderLayer",
    thinks="What a part returns is normalized before it is added: x + norm(part(x)).",
    why="Pre-norm normalizes what goes *into* a part. Your parts get sums that nobody has "
    "normalized, and what they return has always the same size.",
    section="layer-normalization",
)
class NormOfResult(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = x + self.norm1(self.self_attention(x, x, x, target_mask)[0])
        x = x + self.norm2(self.cross_attention(x, memory, memory, memory_mask)[0])
        return x + self.norm3(self.network(x))


@wrong(
    "C-SUM-OF-FIRST",
    "DecoderLayer",
    thinks="Each part adds to the target as it came into the layer.",
    why="Each adds to what the part before it returned. In your layer the sum around a part "
    "leaves out what the parts before it had added.",
    section="residual-connection",
)
class SumOfFirst(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = target + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return target + self.network(self.norm3(x))


@wrong(
    "C-SUM-OF-NORMED",
    "DecoderLayer",
    thinks="What goes into a part is what is added again behind it: the normalized vector.",
    why="Then nothing of the vector itself gets through the layer, only its normalized shadow. "
    "The line around a part starts *before* the norm.",
    section="residual-connection",
)
class SumOfNormed(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        x = x + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(x)
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        x = self.norm3(x)
        return x + self.network(x)


@wrong(
    "C-NO-SUM-SELF",
    "DecoderLayer",
    thinks="The first attention replaces each word by what it found.",
    why="What it found is an average of values. Without the sum around the self-attention, a word "
    "no longer has its own vector.",
    section="residual-connection",
)
class NoSumAroundSelfAttention(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return self.self_attention(y, y, y, mask)[0]


@wrong(
    "C-NO-SUM-CROSS",
    "DecoderLayer",
    thinks="The second attention replaces each word by what it found in the source.",
    why="Then what was written so far shows only in how the weights fell. Around the "
    "cross-attention, too, leads a line that adds what was there.",
    section="residual-connection",
)
class NoSumAroundCrossAttention(Parts):
    def ask_memory(self, x, memory, mask):
        return self.cross_attention(self.norm2(x), memory, memory, mask)[0]


@wrong(
    "C-NO-SUM-NETWORK",
    "DecoderLayer",
    thinks="The network's output is the layer's output.",
    why="Everything that both attentions brought would have to pass through its narrow ReLU. The "
    "third part adds to the word as well.",
    section="residual-connection",
)
class NoSumAroundNetwork(Parts):
    def think(self, x):
        return self.network(self.norm3(x))


@wrong(
    "C-NO-SUMS",
    "DecoderLayer",
    thinks="The parts stand in a row: each takes what the one before returns.",
    why="Averages of averages resemble each other: after a few such layers all words are one "
    "vector. Something has to lead around each part.",
    section="residual-connection",
)
class NoSums(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)[0]
        x = self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return self.network(self.norm3(x))


@wrong(
    "C-ONE-SUM",
    "DecoderLayer",
    thinks="One residual connection from the layer's input to its end is enough.",
    why="There are three, one around each part, so that the second part sees word and notes of "
    "the first together.",
    section="residual-connection",
)
class OneSum(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)[0]
        x = self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return target + self.network(self.norm3(x))


@wrong(
    "C-PARALLEL",
    "DecoderLayer",
    thinks="Three parts, three contributions: all are computed from the same target and added.",
    why="They come one after the other: the question to the source is asked by a word that has "
    "already read what was written before it.",
    section="decoder-layer",
)
class AllAtOnce(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        first = self.ask_target(x, target_mask) - x
        second = self.ask_memory(x, memory, memory_mask) - x
        return x + first + second + self.network(self.norm3(x))


@wrong(
    "C-SOURCE-FIRST",
    "DecoderLayer",
    thinks="The source comes first, then the target looks at itself.",
    why="The other way round: a word reads what was written so far, and with that it knows what "
    "to ask the source.",
    section="decoder-layer",
)
class SourceFirst(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_memory(target, memory, memory_mask)
        return self.think(self.ask_target(x, target_mask))


@wrong(
    "C-THINKS-TOO-EARLY",
    "DecoderLayer",
    thinks="The network stands behind the self-attention, as in the encoder layer.",
    why="It works on what *both* attentions brought, so it comes last. In the middle it cannot "
    "know what the source said.",
    section="decoder-layer",
)
class NetworkInTheMiddle(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.think(self.ask_target(target, target_mask))
        return self.ask_memory(x, memory, memory_mask)


@wrong(
    "C-MEMORY-NORMALIZED",
    "DecoderLayer",
    thinks="Pre-norm means that everything is normalized before an attention, the memory too.",
    why="The encoder's last norm has done that once, for all decoder layers. Here only what asks "
    "is normalized.",
    section="decoder-layer",
)
class MemoryNormalized(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, self.norm2(memory), mask)


@wrong(
    "C-QUERY-NORMED-ONLY",
    "DecoderLayer",
    thinks="In self-attention only the query is normalized.",
    why="All three come from the same vectors, and pre-norm normalizes these before any of the "
    "three projections.",
    section="layer-normalization",
)
class OnlyQueryNormalized(Parts):
    def ask_target(self, x, mask):
        return x + self.self_attention(self.norm1(x), x, x, mask)[0]


@wrong(
    "C-NO-NORMS",
    "DecoderLayer",
    thinks="Norms make training easier; the result does not depend on them.",
    why="They belong to what the layer computes: each part works on `norm(x)`. You have made "
    "the three norms, and `forward` does not call them.",
    section="layer-normalization",
)
class NoNorms(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target + self.self_attention(target, target, target, target_mask)[0]
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        return x + self.network(x)


@wrong(
    "C-NO-NORM1",
    "DecoderLayer",
    thinks="What comes in has been normalized by the layer before.",
    why="In pre-norm no layer normalizes what it returns: that is a sum, and it grows from layer "
    "to layer. The first attention needs `norm1` like the others theirs.",
    section="layer-normalization",
)
class NoNorm1(Parts):
    def ask_target(self, x, mask):
        return x + self.self_attention(x, x, x, mask)[0]


@wrong(
    "C-NO-NORM2",
    "DecoderLayer",
    thinks="The memory is normalized already, so the cross-attention needs no norm.",
    why="The memory is, the question is not: sums are never normalized by themselves. What asks "
    "goes through `norm2` first.",
    section="layer-normalization",
)
class NoNorm2(Parts):
    def ask_memory(self, x, memory, mask):
        return x + self.cross_attention(x, memory, memory, mask)[0]


@wrong(
    "C-NO-NORM3",
    "DecoderLayer",
    thinks="Norms are for attention; the network takes the vector as it is.",
    why="By then two sums have been added to it. The network, too, should not have to care how "
    "large they have become.",
    section="layer-normalization",
)
class NoNorm3(Parts):
    def think(self, x):
        return x + self.network(x)


@wrong(
    "C-ONE-NORM",
    "DecoderLayer",
    thinks="A norm has hardly any weights, so one can serve all three parts.",
    why="Each part has its own learned scale and shift, for what it needs. Two of your three "
    "norms never learn.",
    section="layer-normalization",
)
class OneNorm(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm1(x), memory, memory, memory_mask)[0]
        return x + self.network(self.norm1(x))


@wrong(
    "C-NORMS-MOVED",
    "DecoderLayer",
    thinks="Whichever norm stands where makes no difference, they are all the same.",
    why="At the start of training they are. Afterwards each has learned for its own part; with "
    "copied weights, exchanged norms give other numbers.",
    section="layer-normalization",
)
class NormsExchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm3(x), memory, memory, memory_mask)[0]
        return x + self.network(self.norm2(x))


@wrong(
    "C-NORM-AT-END",
    "DecoderLayer",
    thinks="A layer should hand on normalized vectors.",
    why="Then the lines around the parts end at each layer. In pre-norm the sums stay as they "
    "are; one last norm stands behind the last layer.",
    section="layer-normalization",
)
class NormAtTheEnd(Parts):
    def forward(self, *args, **kwargs):
        x = super().forward(*args, **kwargs)
        return F.layer_norm(x, x.shape[-1:])


class NormOverWords(nn.Module):
    """Normalizes a whole sentence at once."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias


class NormOverBatch(NormOverWords):
    """Normalizes each feature over all words of all sentences."""

    def forward(self, x):
        mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
        return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias


class NormOfUnbiased(NormOverWords):
    """Divides by the standard deviation as torch computes it by default."""

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / (x.std(-1, keepdim=True) + 1e-6) * self.weight + self.bias


class NormsOverBatch(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOverBatch(model_width) for _ in range(3))


@wrong(
    "C-NORM-OVER-WORDS",
    "DecoderLayer",
    thinks="Layer normalization uses the mean over the whole layer: all words, all features.",
    why="Then each word hears all others through mean and variance, later ones included, behind "
    "the mask's back. Each word is normalized alone.",
    section="layer-normalization",
    variants=(NormsOverBatch,),
)
class NormsOverWords(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOverWords(model_width) for _ in range(3))


@wrong(
    "C-NORM-UNBIASED",
    "DecoderLayer",
    thinks="A norm subtracts the mean and divides by `x.std(-1)`.",
    why="Nearly. `std` divides by m − 1 where the norm divides by m, and the tiny number belongs "
    "under the root. For short vectors that shows.",
    section="layer-normalization",
)
class UnbiasedNorms(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOfUnbiased(model_width) for _ in range(3))


@wrong(
    "C-NO-RELU",
    "DecoderLayer",
    thinks="Two linear layers in a row are a network.",
    why="Two linear maps in a row are one linear map. Something that bends has to stand between "
    "them.",
    section="feed-forward",
)
class NoReLU(Parts):
    def network(self, x):
        return self.linear2(self.linear1(x))


@wrong(
    "C-GELU",
    "DecoderLayer",
    thinks="Modern models bend with GELU or a relative, so I take that.",
    why="A fine choice for a model of your own. Here it is the paper's ReLU, and with copied "
    "weights another bend gives other numbers.",
    section="feed-forward",
)
class GELU(Parts):
    def network(self, x):
        return self.linear2(F.gelu(self.linear1(x)))


class ReLUOnlyBehind(Parts):
    def network(self, x):
        return self.linear2(self.linear1(x)).relu()


@wrong(
    "C-RELU-BEHIND",
    "DecoderLayer",
    thinks="Every linear layer has its ReLU behind it.",
    why="Behind the second one it forbids negative numbers, so the network could only ever add "
    "to a word and never take away.",
    section="feed-forward",
    variants=(ReLUOnlyBehind,),
)
class ReLUBehindBoth(Parts):
    def network(self, x):
        return super().network(x).relu()


@wrong(
    "C-DROPOUT",
    "DecoderLayer",
    thinks="A Transformer layer has dropout, as in the paper.",
    why="The paper's has, ours has none: the task says so. In training mode your layer gives "
    "other numbers on each call.",
    section="whole-transformer",
)
class Dropout(Parts):
    def think(self, x):
        return x + F.dropout(self.network(self.norm3(x)), 0.1, self.training)


class KeptMask(Parts):
    kept = None

    def ask_target(self, x, mask):
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = super().ask_target(x, mask)
        return self.kept


@wrong(
    "K-STALE",
    "DecoderLayer",
    thinks="The memory stays the same while a sentence is written, so I keep it from the first "
    "call.",
    why="The next sentence has another memory. What is kept in the layer answers for a sentence "
    "that nobody is asking about; hand such things in and out instead.",
    section="writing-greedily",
    variants=(KeptMask,),
)
class KeptMemory(Parts):
    kept = None

    def ask_memory(self, x, memory, mask):
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory
        return super().ask_memory(x, self.kept, mask)


@wrong(
    "C-MEMORY-DETACHED",
    "DecoderLayer",
    thinks="The encoder is finished when the decoder begins, so its memory needs no gradient.",
    why="It is finished reading, not learning. The only way for the encoder to learn leads "
    "through this layer.",
    section="whole-transformer",
)
class MemoryDetached(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory.detach(), mask)


@wrong(
    "C-IN-PLACE",
    "DecoderLayer",
    thinks="`target += …` is a shorter way to write the sum.",
    why="It writes into the caller's own tensor. `x += y` edits, `x = x + y` makes a new one.",
    section="residual-connection",
)
class InPlace(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        x += self.self_attention(y, y, y, mask)[0]
        return x


@wrong(
    "C-WITH-WEIGHTS",
    "DecoderLayer",
    thinks="A layer returns its output and the weights, like an attention.",
    why="An attention does. A layer's output goes straight into the next layer, so it is one "
    "tensor; an attention returns a pair, and the layer takes its first half.",
    section="decoder-layer",
)
class WithWeights(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        y, weights = self.cross_attention(self.norm2(x), memory, memory, memory_mask)
        return self.think(x + y), weights


class PairHandedOn(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)
        return self.think(self.ask_memory(x, memory, memory_mask))


@wrong(
    "C-PAIR-ADDED",
    "DecoderLayer",
    thinks="What an attention returns is its output.",
    why="It returns a pair: the output, and the weights beside it. Only the first of the two is "
    "added to the words; as a whole a pair cannot be added.",
    section="decoder-layer",
    variants=(PairHandedOn,),
)
class PairAdded(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.self_attention(y, y, y, mask)


@wrong(
    "C-FLOAT32",
    "DecoderLayer",
    thinks="Layers compute in float32, so the result is turned into it.",
    why="The caller chose the precision of the layer. Of inputs in float64 you return half of "
    "the digits.",
    section="decoder-layer",
)
class Float32(Parts):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs).float()


class OwnAttention(MultiHeadAttention):
    """Multi-head attention whose ways to split and merge can be changed."""

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def last(self, x):
        return self.out_proj(x)

    def scale(self, d):
        return d**-0.5

    def forward(self, query, key, value, mask=None):
        q = self.split(self.q_proj(query))
        k, v = self.split(self.k_proj(key)), self.split(self.v_proj(value))
        scores = q @ k.mT * self.scale(q.shape[-1])
        if mask is None:
            weights = scores.softmax(-1)
        else:
            mask = mask if mask.ndim == 2 else mask[:, None]
            lowest = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
        return self.last(self.merge(weights @ v)), weights


class WithOwn(Parts):
    """A decoder layer with another attention inside."""

    attention = OwnAttention

    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.self_attention = self.attention(model_width, num_heads)
        self.cross_attention = self.attention(model_width, num_heads)


class ViewSplit(OwnAttention):
    def split(self, x):
        return x.reshape(len(x), self.num_heads, x.shape[1], -1)


class ViewMerge(OwnAttention):
    def merge(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class ViewBoth(ViewSplit, ViewMerge):
    pass


class NoScale(OwnAttention):
    def scale(self, d):
        return 1.0


class ScaleByModelWidth(OwnAttention):
    def scale(self, d):
        return (d * self.num_heads) ** -0.5


class NoLastProjection(OwnAttention):
    def last(self, x):
        return x


class ViewSplitLayer(WithOwn):
    attention = ViewSplit


class ViewMergeLayer(WithOwn):
    attention = ViewMerge


class ViewBothLayer(WithOwn):
    attention = ViewBoth


class ScaleByModelWidthLayer(WithOwn):
    attention = ScaleByModelWidth


class NoScaleLayer(WithOwn):
    attention = NoScale


class NoLastProjectionLayer(WithOwn):
    attention = NoLastProjection


wrong(
    "H-VIEW-SPLIT",
    "DecoderLayer",
    thinks="To get heads I reshape to (b, h, n, d) at once: the shape is right.",
    why="The shape is, the content is not: a reshape cuts along the *words*, so one head gets "
    "words that belong to others. Width is cut first, then axes change places.",
    section="three-attentions",
)(ViewSplitLayer)
wrong(
    "H-VIEW-MERGE",
    "DecoderLayer",
    thinks="To put the heads back together I reshape to (b, n, m) at once.",
    why="Heads and words still have to change places: as it is, pieces of different words end up "
    "in one vector, later words included.",
    section="three-attentions",
)(ViewMergeLayer)
wrong(
    "H-VIEW-BOTH",
    "DecoderLayer",
    thinks="If splitting and merging undo each other, the heads are right.",
    why="They undo each other, yet in between each head had only a part of the *words*. No word "
    "of the target sees all the words it may see.",
    section="three-attentions",
)(ViewBothLayer)
wrong(
    "D-NO-SCALE",
    "DecoderLayer",
    thinks="With normalized inputs the scores need no scaling any more.",
    why="The norm keeps the vectors in bounds, but a score still sums over the width of a head. "
    "Without the root, the softmax saturates.",
    section="layer-normalization",
    variants=(ScaleByModelWidthLayer,),
)(NoScaleLayer)
wrong(
    "H-NO-WO",
    "DecoderLayer",
    thinks="Merged heads are the output of an attention.",
    why="Behind the merge stands `out_proj`, which mixes what the heads have found. In your layer "
    "it never learns.",
    section="three-attentions",
)(NoLastProjectionLayer)


# --- translate ----------------------------------------------------------------------------------


def start(source, bos):
    return torch.full((len(source), 1), bos)


def begin_with_eos(model, source, bos, eos, max_length):
    return written_from(eos, model, source, eos, max_length)


def begin_with_one(model, source, bos, eos, max_length):
    return written_from(1, model, source, eos, max_length)


def written_from(first, model, source, eos, max_length):
    words, finished = start(source, first), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


@wrong(
    "S-BOS-MISMATCH",
    "translate",
    thinks="Some word has to stand at the start; 0, 1 or the end mark will do.",
    why="The model was trained with `bos` there, and the caller says which id that is. After any "
    "other it begins somewhere in the middle.",
    section="writing-greedily",
    variants=(begin_with_eos, begin_with_one),
)
def begin_with_zero(model, source, bos, eos, max_length):
    return written_from(0, model, source, eos, max_length)


def strip_all_ends(model, source, bos, eos, max_length):
    words = written_from(bos, model, source, eos, max_length)
    return words[:, : int((words != eos).sum(1).max())]


@wrong(
    "S-STRIP-EOS",
    "translate",
    thinks="The end mark is no word, so I cut the last column off.",
    why="It tells where a row ends. And where the largest length stopped a row, the last column "
    "holds a real word, which is lost.",
    section="writing-greedily",
    variants=(strip_all_ends,),
)
def strip_last(model, source, bos, eos, max_length):
    return written_from(bos, model, source, eos, max_length)[:, :-1]


def keep_begin_within_limit(model, source, bos, eos, max_length):
    return torch.cat([start(source, bos), written_from(bos, model, source, eos, max_length)], 1)[
        :, :max_length
    ]


def keep_begin_and_talk_on(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
    return words


@wrong(
    "C-BOS-KEPT",
    "translate",
    thinks="The sentence begins with its begin mark, so I return that as well.",
    why="`bos` was put there by you, not said by the model. A translation begins with the first "
    "word that the model chose.",
    section="writing-greedily",
    variants=(keep_begin_within_limit, keep_begin_and_talk_on),
)
def keep_begin(model, source, bos, eos, max_length):
    return torch.cat([start(source, bos), written_from(bos, model, source, eos, max_length)], 1)


@wrong(
    "C-TALKS-ON",
    "translate",
    thinks="A row says eos, and the loop ends when all rows have said it.",
    why="Until the last row is done, the others go on, and a model does not stop by itself: your "
    "finished rows get words behind their end.",
    section="writing-greedily",
)
def talks_on(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], 1)
        if finished.all():
            break
    return words[:, 1:]


@wrong(
    "C-NO-END",
    "translate",
    thinks="The model writes `eos` where the sentence ends, so I need not look for it.",
    why="It writes it and then goes on, since nobody stopped it. You have to remember which rows "
    "have ended, and write eos for them from there on.",
    section="writing-greedily",
)
def never_looks_for_eos(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


@wrong(
    "C-ENDED-NOW",
    "translate",
    thinks="I stop as soon as every row says eos in the same step.",
    why="Rows end at different steps. Somebody has to remember who has ended; yours say eos once "
    "and then talk on.",
    section="writing-greedily",
)
def ended_at_the_same_step(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
        if (word == eos).all():
            break
    return words[:, 1:]


def all_end_with_the_first(model, source, bos, eos, max_length):
    words, finished = start(source, bos), False
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        if finished:
            word = torch.full_like(word, eos)
        finished = finished or bool((word == eos).any())
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


def first_row_decides(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
        if word[0] == eos:
            break
    return words[:, 1:]


@wrong(
    "C-FIRST-END-STOPS",
    "translate",
    thinks="When somebody says eos, the translation is over.",
    why="For that row. The other sentences of the batch are still being written, and yours break "
    "off in the middle.",
    section="writing-greedily",
    variants=(all_end_with_the_first, first_row_decides),
)
def any_end_stops(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
        if (word == eos).any():
            break
    return words[:, 1:]


@wrong(
    "C-PAD-BEHIND",
    "translate",
    thinks="Behind the end of a row there is padding, id 0.",
    why="The agreement here is another: behind its first eos a row holds only eos. And 0 may be "
    "a word in somebody's vocabulary.",
    section="writing-greedily",
)
def padded_with_zero(model, source, bos, eos, max_length):
    words = written_from(bos, model, source, eos, max_length)
    return words.masked_fill((words == eos).cumsum(1) > 1, 0)


@wrong(
    "C-END-TOO-LATE",
    "translate",
    thinks="I first write the word, and ask afterwards who had ended before.",
    why="You look at the step before the last, so each row says one more word behind its eos.",
    section="writing-greedily",
)
def one_word_too_many(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (words[:, 1:] == eos).any(1)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


@wrong(
    "C-FIRST-POSITION",
    "translate",
    thinks="The first position of the scores belongs to the next word.",
    why="Position t scores the word that follows word t. The next word follows the *last* one; "
    "the first position always says the same.",
    section="writing-greedily",
)
def first_position(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, 0].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


def all_positions_and_begin(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        words = torch.cat([words, model(source, words).argmax(-1)], 1)
    return words


@wrong(
    "C-ALL-POSITIONS",
    "translate",
    thinks="What the model returns is the continuation, so I append all of it.",
    why="It returns scores for *every* position: also for words that are there already. Appended "
    "as a whole, the row doubles each time. Only one position is news.",
    section="writing-greedily",
    variants=(all_positions_and_begin,),
)
def all_positions(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        words = torch.cat([words, model(source, words).argmax(-1)], 1)
    return words[:, 1:]


def one_sentence_by_truth(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
        if word == eos:
            break
    return words[:, 1:]


def one_sentence_as_list(model, source, bos, eos, max_length):
    words = [bos]
    for _ in range(max_length):
        word = model(source, torch.tensor([words]))[0, -1].argmax().item()
        if word == eos:
            break
        words.append(word)
    return words[1:]


def one_sentence_as_row(model, source, bos, eos, max_length):
    words = [bos]
    for _ in range(max_length):
        words.append(int(model(source, torch.tensor([words]))[0, -1].argmax()))
        if words[-1] == eos:
            break
    return torch.tensor([words[1:]])


@wrong(
    "C-ONE-SENTENCE",
    "translate",
    thinks="There is one sentence, so its next word is one number: `.item()`.",
    why="With one sentence it works. A batch has a next word for each row, and `if` or `.item()` "
    "cannot decide for all of them: remember for each row whether it has ended.",
    section="writing-greedily",
    variants=(one_sentence_by_truth, one_sentence_as_list, one_sentence_as_row),
)
def one_sentence(model, source, bos, eos, max_length):
    words = start(source, bos)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1)
        words = torch.cat([words, word[:, None]], 1)
        if word.item() == eos:
            break
    return words[:, 1:]


@wrong(
    "C-LAST-WORD-ONLY",
    "translate",
    thinks="The model gets the last word, as the decoder of chapter 1 did.",
    why="That decoder carried a state from word to word. A Transformer carries none: what was "
    "said before the last word is in `words` or nowhere.",
    section="writing-greedily",
)
def last_word_only(model, source, bos, eos, max_length):
    word, finished = start(source, bos)[:, 0], torch.zeros(len(source), dtype=torch.bool)
    said = []
    for _ in range(max_length):
        word = model(source, word[:, None])[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        said.append(word)
    return torch.stack(said, 1)


@wrong(
    "C-NOTHING-FED-BACK",
    "translate",
    thinks="The model knows the source, so it can be asked again and again for the next word.",
    why="It has no memory of what it said. Asked the same question, it gives the same word each "
    "time: what it wrote has to be handed back.",
    section="writing-greedily",
)
def nothing_fed_back(model, source, bos, eos, max_length):
    words, finished, said = start(source, bos), torch.zeros(len(source), dtype=torch.bool), []
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        said.append(word)
    return torch.stack(said, 1)


@wrong(
    "C-ONE-PASS",
    "translate",
    thinks="The Transformer handles all positions at once, so one call writes the sentence.",
    why="At once if the words are known, as in training. In writing, word 2 has to wait until "
    "word 1 is chosen.",
    section="writing-greedily",
)
def one_pass(model, source, bos, eos, max_length):
    words = start(source, bos).expand(-1, max_length)
    words = model(source, words).argmax(-1)
    return words.masked_fill((words == eos).cumsum(1) > 0, eos)


@wrong(
    "C-WORDS-TURNED",
    "translate",
    thinks="The newest word goes in front.",
    why="The model reads `words` from left to right: bos first, the newest word last. Otherwise "
    "bos is not at the start and the scores you read belong to another word.",
    section="writing-greedily",
)
def newest_in_front(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        words = torch.cat([word[:, None], words], 1)
    return words[:, :-1].flip(1)


@wrong(
    "C-EXCHANGED",
    "translate",
    thinks="The model is called with the words first and the source second.",
    why="The agreement is `model(source, words)`, in the order of reading and writing. As you "
    "call it, it reads your translation and continues the source.",
    section="writing-greedily",
)
def exchanged(model, source, bos, eos, max_length):
    return written_from(bos, lambda source, words: model(words, source), source, eos, max_length)


@wrong(
    "C-NO-LIMIT",
    "translate",
    thinks="The loop ends when every row has said eos.",
    why="A model may never say it. Then your loop never ends: `max_length` is there for that.",
    section="writing-greedily",
)
def without_limit(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    while not finished.all():
        word = model(source, words)[:, -1].argmax(-1).masked_fill(finished, eos)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


@wrong(
    "C-LIMIT-COUNTS-BOS",
    "translate",
    thinks="`max_length` counts everything in the row, the begin mark too.",
    why="It counts words of the translation, and bos is none: your longest rows are one word "
    "short.",
    section="writing-greedily",
)
def one_too_few(model, source, bos, eos, max_length):
    return written_from(bos, model, source, eos, max(1, max_length - 1))


@wrong(
    "C-LIMIT-AND-EOS",
    "translate",
    thinks="A row that reaches the largest length still has to end with eos.",
    why="It was cut off, and an eos would hide that. Your eos takes the place of the model's "
    "last word.",
    section="writing-greedily",
)
def eos_at_the_limit(model, source, bos, eos, max_length):
    words = written_from(bos, model, source, eos, max_length).clone()
    words[:, -1] = eos
    return words


@wrong(
    "C-LENGTH-OF-SOURCE",
    "translate",
    thinks="A translation has as many words as its source.",
    why="*ninety* is one word and *quatre-vingt-dix* three. How long a sentence becomes, the "
    "model says by eos.",
    section="writing-greedily",
)
def as_long_as_source(model, source, bos, eos, max_length):
    return written_from(bos, model, source, eos, min(max_length, source.shape[1]))


@wrong(
    "C-EVAL-KEPT",
    "translate",
    thinks="Before translating I switch the model to evaluation mode.",
    why="A good habit, if you leave everything as you found it. After your call a training loop "
    "goes on in evaluation mode and does not notice.",
    section="writing-greedily",
)
def leaves_evaluation_mode(model, source, bos, eos, max_length):
    model.eval()
    return written_from(bos, model, source, eos, max_length)


@wrong(
    "C-TRAIN-KEPT",
    "translate",
    thinks="I switch to evaluation mode and afterwards back to training mode.",
    why="*Back* is only right if it was in training mode before. A model that came in evaluation "
    "mode leaves your function in another one.",
    section="writing-greedily",
)
def leaves_training_mode(model, source, bos, eos, max_length):
    model.eval()
    words = written_from(bos, model, source, eos, max_length)
    model.train()
    return words


@wrong(
    "C-GRADIENTS-OFF",
    "translate",
    thinks="Writing needs no gradients, so I switch them off.",
    why="For your function, a `with` block is enough. As you do it they stay off for the whole "
    "program, and the next training step fails.",
    section="writing-greedily",
)
def gradients_off(model, source, bos, eos, max_length):
    torch.set_grad_enabled(False)
    return written_from(bos, model, source, eos, max_length)


@wrong(
    "C-FROZEN",
    "translate",
    thinks="To save memory I tell the parameters that they need no gradient.",
    why="They keep that in mind: after one translation the model cannot be trained any more. "
    "What you want is a switch that goes back by itself.",
    section="writing-greedily",
)
def frozen_parameters(model, source, bos, eos, max_length):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return written_from(bos, model, source, eos, max_length)


@wrong(
    "C-EOS-FIXED",
    "translate",
    thinks="The end mark has id 2.",
    why="In this course's vocabularies, yes. The caller says which id it is in theirs.",
    section="writing-greedily",
)
def eos_is_two(model, source, bos, eos, max_length):
    return written_from(bos, model, source, 2, max_length)


def samples_by_gumbel(model, source, bos, eos, max_length):
    def noisy(source, words):
        logits = model(source, words)
        return logits - (-torch.rand_like(logits).log()).log()

    return written_from(bos, noisy, source, eos, max_length)


@wrong(
    "C-SAMPLES",
    "translate",
    thinks="The scores are probabilities, so the next word is drawn from them.",
    why="That is a way to write, and gives something else each time. Greedy means: always the "
    "likeliest word, without chance.",
    section="writing-greedily",
    variants=(samples_by_gumbel,),
)
def samples(model, source, bos, eos, max_length):
    words, finished = start(source, bos), torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        shares = model(source, words)[:, -1].softmax(-1)
        word = torch.multinomial(shares, 1)[:, 0].masked_fill(finished, eos)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


@wrong(
    "C-SMALLEST",
    "translate",
    thinks="Scores are like losses: the smallest is the best.",
    why="A score says how much a word fits: the larger, the likelier.",
    section="writing-greedily",
)
def smallest(model, source, bos, eos, max_length):
    return written_from(bos, lambda *x: -model(*x), source, eos, max_length)


@wrong(
    "C-BEST-OF-POSITIVE",
    "translate",
    thinks="Scores are positive, so I look for the largest, starting from 0.",
    why="Scores have no zero point: add −100 to all of them and nothing changes. Then none beats "
    "your 0.",
    section="writing-greedily",
)
def largest_above_zero(model, source, bos, eos, max_length):
    return written_from(bos, lambda *x: model(*x).clamp(min=0), source, eos, max_length)


@wrong(
    "C-LARGEST-SIZE",
    "translate",
    thinks="The score that is farthest from 0 is the strongest.",
    why="A score of −9 is a strong no. The sign counts.",
    section="writing-greedily",
)
def largest_size(model, source, bos, eos, max_length):
    return written_from(bos, lambda *x: model(*x).abs(), source, eos, max_length)


def exp_only(model, source, bos, eos, max_length):
    return written_from(bos, lambda *x: model(*x).exp(), source, eos, max_length)


@wrong(
    "D-NAIVE-SOFTMAX",
    "translate",
    thinks="Scores become probabilities by exp, then the largest is taken.",
    why="exp of a large score is infinite, so several words are equally large, and infinity over "
    "infinity is no number. The order of the scores is all you need, and it is there before any "
    "exp.",
    section="writing-greedily",
    variants=(exp_only,),
)
def naive_softmax(model, source, bos, eos, max_length):
    def shares(*x):
        e = model(*x).exp()
        return e / e.sum(-1, keepdim=True)

    return written_from(bos, shares, source, eos, max_length)


@wrong(
    "C-HALF",
    "translate",
    thinks="To find the largest score, half precision is exact enough.",
    why="In float16 everything above 65,504 is infinite and close scores become equal. Then the "
    "first of them wins instead of the largest.",
    section="writing-greedily",
)
def in_half(model, source, bos, eos, max_length):
    return written_from(bos, lambda *x: model(*x).half(), source, eos, max_length)


@wrong(
    "C-NEVER-TWICE",
    "translate",
    thinks="A sentence does not say a word twice, so words that were said are ruled out.",
    why="*quatre cent quatre* does. What may be repeated, the model has learned; greedy takes "
    "its likeliest word as it is.",
    section="writing-greedily",
)
def never_twice(model, source, bos, eos, max_length):
    def without_said(source, words):
        logits = model(source, words)
        said = nn.functional.one_hot(words[:, 1:], logits.shape[-1]).sum(1)
        said[:, eos] = 0
        return logits.masked_fill(said[:, None] > 0, -torch.inf)

    return written_from(bos, without_said, source, eos, max_length)


@wrong(
    "C-ONE-WORD-FOR-ALL",
    "translate",
    thinks="`argmax` finds the best word.",
    why="Without an axis, or over the batch, it finds one for all sentences together. Each row "
    "chooses among the words of the vocabulary for itself.",
    section="writing-greedily",
)
def one_word_for_all(model, source, bos, eos, max_length):
    return written_from(
        bos, lambda *x: model(*x).sum(0, keepdim=True).expand(len(source), -1, -1), source, eos,
        max_length,
    )  # fmt: skip


@wrong(
    "C-SQUEEZED",
    "translate",
    thinks="`squeeze()` removes the axis of length one that I do not need.",
    why="It removes *every* such axis. With a single sentence the batch axis goes, too, and what "
    "comes back has no rows.",
    section="writing-greedily",
)
def squeezed(model, source, bos, eos, max_length):
    return written_from(bos, model, source, eos, max_length).squeeze()


@wrong(
    "C-LISTS",
    "translate",
    thinks="A list of words for each sentence, each as long as it is.",
    why="Handy for reading. But the task asks for one tensor of ids, (b t), so that rows of "
    "different lengths end with eos.",
    section="writing-greedily",
)
def lists(model, source, bos, eos, max_length):
    rows = written_from(bos, model, source, eos, max_length).tolist()
    return [row[: row.index(eos)] if eos in row else row for row in rows]


@wrong(
    "C-FLOAT-IDS",
    "translate",
    thinks="A tensor for the result is made with `torch.zeros` and filled in.",
    why="That makes floating-point numbers. Ids are whole numbers; an embedding would refuse "
    "yours.",
    section="writing-greedily",
)
def float_ids(model, source, bos, eos, max_length):
    return written_from(bos, model, source, eos, max_length).float()


@wrong(
    "C-EATS-SOURCE",
    "translate",
    thinks="The source is not needed any more once the translation is there, so I write over it.",
    why="It belongs to the caller, who may translate it again with another model and finds your "
    "numbers in it.",
    section="writing-greedily",
)
def eats_source(model, source, bos, eos, max_length):
    words = written_from(bos, model, source.clone(), eos, max_length)
    source.fill_(eos)
    return words

"""Right answers in many styles: the judge must accept every one of them, on every seed."""

import collections
import copy
import functools
import math

import einops
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from attncourse.bottleneck import greedy_decode
from attncourse.cross_attention import cross_attention as course_cross_attention
from attncourse.multihead import MultiHeadAttention, merge_heads, split_heads

# --- cross_attention


def straight(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)


def by_keywords(target, memory, attention, memory_mask=None):
    output, weights = attention(query=target, key=memory, value=memory, mask=memory_mask)
    return output, weights


def as_a_list(target, memory, attention, memory_mask=None):
    return list(attention(target, memory, value=memory, mask=memory_mask))


def without_a_mask_of_none(target, memory, attention, memory_mask=None):
    if memory_mask is None:
        return attention(target, memory, memory)
    return attention(target, memory, memory, mask=memory_mask)


def full_mask(target, memory, attention, memory_mask=None):
    b, q, k = len(target), target.shape[1], memory.shape[1]
    if memory_mask is None:
        memory_mask = target.new_ones(k, dtype=torch.bool)
    return attention(target, memory, memory, torch.broadcast_to(memory_mask, (b, q, k)))


def query_by_query(target, memory, attention, memory_mask=None):
    """A query's output does not depend on the other queries."""
    b, q, k = len(target), target.shape[1], memory.shape[1]
    rows = []
    for i in range(q):
        mask = None
        if memory_mask is not None:
            mask = memory_mask.expand(b, q, k)[:, i : i + 1]
        rows.append(attention(target[:, i : i + 1], memory, memory, mask))
    return torch.cat([row[0] for row in rows], 1), torch.cat([row[1] for row in rows], 2)


def sentence_by_sentence(target, memory, attention, memory_mask=None):
    outputs, weights = [], []
    for i in range(len(target)):
        mask = memory_mask
        if mask is not None and mask.ndim == 3:
            mask = mask[i]  # (1 k) or (q k)
            mask = mask.expand(target.shape[1], -1)
        output, weight = attention(target[i : i + 1], memory[i : i + 1], memory[i : i + 1], mask)
        outputs.append(output[0])
        weights.append(weight[0])
    return torch.stack(outputs), torch.stack(weights)


def shuffled_memory(target, memory, attention, memory_mask=None):
    """The order of the memory does not matter, if weights and mask are put back in order."""
    memory = memory.flip(1)
    mask = None if memory_mask is None else memory_mask.flip(-1)
    output, weights = attention(target, memory, memory, mask)
    return output, weights.flip(-1)


def copies(target, memory, attention, memory_mask=None):
    return attention(target.clone(), memory.contiguous(), memory * 1, memory_mask)


def one_more_source_word(target, memory, attention, memory_mask=None):
    """A word that nobody may attend to changes nothing."""
    k = memory.shape[1]
    if memory_mask is None:
        memory_mask = torch.ones(target.shape[1], k, dtype=torch.bool)
    memory, memory_mask = F.pad(memory, (0, 0, 0, 1)), F.pad(memory_mask, (0, 1), value=False)
    output, weights = attention(target, memory, memory, memory_mask)
    return output, weights[..., :k]


def through_its_layers(target, memory, attention, memory_mask=None):
    """Computes what the attention would, with the attention's own layers."""
    q, k, v = (
        einops.rearrange(layer(x), "b n (h d) -> b h n d", h=attention.num_heads)
        for layer, x in (
            (attention.q_proj, target),
            (attention.k_proj, memory),
            (attention.v_proj, memory),
        )
    )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if memory_mask is None:
        weights = scores.softmax(-1)
    else:
        mask = memory_mask if memory_mask.ndim == 2 else memory_mask[:, None]
        weights = scores.masked_fill(~mask, -1e9).softmax(-1) * mask
    return attention.out_proj(einops.rearrange(weights @ v, "b h q d -> b q (h d)")), weights


def mode_put_back(target, memory, attention, memory_mask=None):
    was = attention.training
    attention.eval()
    try:
        return attention(target, memory, memory, memory_mask)
    finally:
        attention.train(was)


def named_pair(target, memory, attention, memory_mask=None):
    Pair = collections.namedtuple("Pair", "output weights")
    return Pair(*attention.forward(target, memory, memory, mask=memory_mask))


def by_any_name(*inputs, memory_mask=None, **ignored):
    target, memory, attention, *mask = inputs
    return attention(target, *[memory] * 2, *(mask or [memory_mask]))


class CrossAttention:
    def __call__(self, target, memory, attention, memory_mask=None):
        return straight(target, memory, attention, memory_mask)


class CrossAttentionModule(nn.Module):
    def forward(self, target, memory, attention, memory_mask=None):
        return straight(target, memory, attention, memory_mask)


CROSS_ATTENTION = [
    straight,
    by_keywords,
    as_a_list,
    without_a_mask_of_none,
    full_mask,
    query_by_query,
    sentence_by_sentence,
    shuffled_memory,
    copies,
    one_more_source_word,
    through_its_layers,
    mode_put_back,
    named_pair,
    by_any_name,
    torch.compile(straight, backend="eager"),
    CrossAttention(),
    CrossAttention().__call__,
    CrossAttentionModule(),
    functools.partial(straight),
    lambda *args, **kwargs: straight(*args, **kwargs),
]


# --- DecoderLayer


class Plain(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        target = target + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(target)
        target = target + self.cross_attention(x, memory, memory, memory_mask)[0]
        return target + self.linear2(torch.relu(self.linear1(self.norm3(target))))


class WithCrossAttention(Plain):
    """By the course's own function of another task, and keywords."""

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        heard, _ = self.self_attention(query=x, key=x, value=x, mask=target_mask)
        target = heard + target
        read, _ = course_cross_attention(
            self.norm2(target), memory, self.cross_attention, memory_mask=memory_mask
        )
        target = read + target
        return target + self.linear2(F.relu(self.linear1(self.norm3(target))))


class OwnHeads(nn.Module):
    """Attention written by hand: other buffers, -1e9 as fill, the two-step split."""

    def __init__(self, width, heads):
        super().__init__()
        self.h, self.d = heads, width // heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(width, width))
        self.register_buffer("scale", torch.tensor(1.0 / math.sqrt(self.d), dtype=torch.float64))

    def heads_of(self, x):
        return x.view(x.size(0), x.size(1), self.h, self.d).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            self.heads_of(layer(x))
            for layer, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d)
        if mask is not None:
            mask = mask.unsqueeze(0) if mask.dim() == 2 else mask
            mask = mask.unsqueeze(1)
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights * mask
        out = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.out_proj(out.view(out.size(0), out.size(1), -1)), weights


class WithOwnHeads(Plain):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.self_attention = OwnHeads(model_width, num_heads)
        self.cross_attention = OwnHeads(model_width, num_heads)
        self.register_buffer("steps", torch.zeros(()))


class HeadByHead(nn.Module):
    """One head after the other; what is returned is only the output."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x, y, mask):
        q, k, v = self.q_proj(x), self.k_proj(y), self.v_proj(y)
        done = []
        for part in zip(*(t.chunk(self.heads, -1) for t in (q, k, v)), strict=True):
            scores = torch.einsum("bqd,bkd->bqk", part[0], part[1]) * part[0].shape[-1] ** -0.5
            if mask is not None:
                scores = torch.where(mask, scores, -torch.inf)
                dead = ~mask.any(-1, keepdim=True)
                scores = scores.masked_fill(dead, 0.0)
                weights = scores.softmax(-1).masked_fill(dead, 0.0)
            else:
                weights = scores.softmax(-1)
            done.append(torch.einsum("bqk,bkd->bqd", weights, part[2]))
        return self.out_proj(torch.cat(done, -1))


class WithHeadByHead(Plain):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.self_attention = HeadByHead(model_width, num_heads)
        self.cross_attention = HeadByHead(model_width, num_heads)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        for norm, attention, seen, mask in (
            (self.norm1, self.self_attention, None, target_mask),
            (self.norm2, self.cross_attention, memory, memory_mask),
        ):
            y = norm(x)
            x = x + attention(y, y if seen is None else seen, mask)
        hidden = self.linear1(self.norm3(x)).clamp(min=0)
        return x + self.linear2(hidden)


class OwnNorm(nn.Module):
    """Layer normalization by hand."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class WithOwnNorms(Plain):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (OwnNorm(model_width) for _ in range(3))
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(0.0)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        def residual(x, norm, part):
            return x + self.dropout(part(norm(x)))

        x = residual(target, self.norm1, lambda y: self.self_attention(y, y, y, target_mask)[0])
        x = residual(
            x, self.norm2, lambda y: self.cross_attention(y, memory, memory, memory_mask)[0]
        )
        return residual(x, self.norm3, lambda y: self.linear2(self.relu(self.linear1(y))))


class Functional(Plain):
    """Weights taken out of the layers; einops; one mask for all heads."""

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        def attend(layer, query, seen, mask):
            h = layer.num_heads
            q = split_heads(F.linear(query, layer.q_proj.weight, layer.q_proj.bias), h)
            k = einops.rearrange(layer.k_proj(seen), "b k (h d) -> b h k d", h=h)
            v = einops.rearrange(layer.v_proj(seen), "b k (h d) -> b h k d", h=h)
            scores = einops.einsum(q, k, "b h q d, b h k d -> b h q k") / q.shape[-1] ** 0.5
            if mask is None:
                weights = scores.softmax(-1)
            else:
                mask = mask.expand(len(q), q.shape[2], k.shape[2])[:, None]
                scores = scores + torch.zeros_like(scores).masked_fill(~mask, -1e9)
                weights = scores.softmax(-1) * mask.any(-1, keepdim=True) * mask
            return layer.out_proj(merge_heads(weights @ v))

        x = F.layer_norm(target, target.shape[-1:], self.norm1.weight, self.norm1.bias)
        one = target + attend(self.self_attention, x, x, target_mask)
        two = one + attend(self.cross_attention, self.norm2(one), memory, memory_mask)
        hidden = torch.maximum(self.linear1(self.norm3(two)), torch.zeros((), dtype=two.dtype))
        return torch.add(two, self.linear2(hidden))


class Double(Plain):
    """Everything computed in float64, the result in the precision that came."""

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        weights = {name: weight.double() for name, weight in self.named_parameters()}
        inputs = target.double(), memory.double(), target_mask, memory_mask
        with torch.random.fork_rng(devices=[]):  # making a layer draws its first weights
            plain = Plain(target.shape[-1], self.self_attention.num_heads, len(self.linear1.bias))
        return functional_call(plain, weights, inputs).to(target.dtype)


class Sublayers(nn.Module):
    """Helper modules beside the seven parts, without weights of their own."""

    class Residual(nn.Module):
        def forward(self, x, update):
            return x + update

    def __init__(self, model_width: int, num_heads: int, hidden_width: int, **_):
        super().__init__()
        sizes = model_width, num_heads
        self.linear2 = nn.Linear(hidden_width, model_width)  # in another order
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.norm3, self.norm2, self.norm1 = (nn.LayerNorm(model_width) for _ in range(3))
        self.cross_attention, self.self_attention = (MultiHeadAttention(*sizes) for _ in "12")
        self.add = self.Residual()

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.add(target, self.self_attention(y, y, y, target_mask)[0])
        if memory_mask is None:
            memory_mask = torch.ones(1, memory.shape[1], dtype=torch.bool).expand(y.shape[1], -1)
        x = self.add(x, self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0])
        return self.add(x, self.linear2(nn.ReLU()(self.linear1(self.norm3(x)))))


class AliasedSequential(Plain):
    """The network a second time under another name: the same two layers."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.network = nn.Sequential(self.norm3, self.linear1, nn.ReLU(), self.linear2)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        target = target + self.self_attention(x, x, x, target_mask)[0]
        target = target + self.cross_attention(self.norm2(target), memory, memory, memory_mask)[0]
        return target + self.network(target)


class InPlaceOnCopies(Plain):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        normed, x = self.norm1(target), target.clone()
        x += self.self_attention(normed, normed, normed, target_mask)[0]
        y = x.clone()
        y += self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        z = y.clone()
        z += self.linear2(F.relu(self.linear1(self.norm3(y)), inplace=True))
        return z


class WordByWord(Plain):
    """Behind the self-attention no word of the target needs another."""

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        normed, (b, q, _) = self.norm1(target), target.shape
        x = target + self.self_attention(normed, normed, normed, target_mask)[0]
        if memory_mask is not None:
            memory_mask = memory_mask.expand(b, q, memory.shape[1])
        rows = []
        for i in range(q):
            row, mask = x[:, [i]], None if memory_mask is None else memory_mask[:, [i]]
            row = row + self.cross_attention(self.norm2(row), memory, memory, mask)[0]
            rows.append(row + self.linear2(self.linear1(self.norm3(row)).relu()))
        return torch.cat(rows, 1)


class DoubleNorms(Plain):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        def norm(layer, x):
            weight, bias = layer.weight.double(), layer.bias.double()
            return F.layer_norm(x.double(), x.shape[-1:], weight, bias).to(x.dtype)

        y = norm(self.norm1, target)
        x = target + self.self_attention(y, y, y, target_mask)[0]
        x = x + self.cross_attention(norm(self.norm2, x), memory, memory, memory_mask)[0]
        flat = norm(self.norm3, x).flatten(0, 1)
        return x + self.linear2(F.threshold(self.linear1(flat), 0, 0)).unflatten(0, x.shape[:2])


class Watched(Plain):
    """With a hook, a gain of its own, other first weights, and masks that are always there."""

    def __init__(self, model_width=64, num_heads=4, hidden_width=128, *, device=None):
        super().__init__(model_width, num_heads, hidden_width)
        self.seen, self.gain = [], nn.Parameter(torch.ones(()))
        self.cross_attention.register_forward_hook(lambda m, i, o: self.seen.append(o[1].shape))
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        b, q, k = len(target), target.shape[1], memory.shape[1]
        if target_mask is None:
            target_mask = torch.ones(q, q, dtype=torch.bool)
        if memory_mask is None:
            memory_mask = torch.ones(b, 1, k, dtype=torch.bool)
        masks = target_mask.expand(b, q, q), memory_mask.expand(b, q, k)
        return self.gain * super().forward(target, memory, *masks)


class CompiledForward(Plain):
    forward = torch.compile(Plain.forward, backend="eager")


def compiled(*sizes):
    layer = Plain(*sizes)
    layer.compile(backend="eager")
    return layer


def made_by_a_function(model_width, num_heads, hidden_width):
    return copy.deepcopy(Plain(model_width, num_heads, hidden_width))


DECODER_LAYER = [
    Plain,
    WithCrossAttention,
    WithOwnHeads,
    WithHeadByHead,
    WithOwnNorms,
    Functional,
    Double,
    Sublayers,
    AliasedSequential,
    InPlaceOnCopies,
    WordByWord,
    DoubleNorms,
    Watched,
    CompiledForward,
    compiled,
    made_by_a_function,
    functools.partial(Plain),
]


# --- translate


def step_by_step(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos, dtype=torch.long)
    finished = torch.zeros(source.shape[0], dtype=torch.bool)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(dim=-1)
        word = torch.where(finished, torch.full_like(word, eos), word)
        words = torch.cat((words, word.unsqueeze(1)), dim=1)
        finished |= word == eos
        if finished.all():
            break
    return words[:, 1:]


@torch.no_grad()
def to_the_end(model, source, bos, eos, max_length):
    """Never stops early, and clears up afterwards."""
    words = source.new_full((len(source), 1), bos)
    for _ in range(max_length):
        words = torch.cat([words, model(source, words)[:, -1:].argmax(-1)], 1)
    words = words[:, 1:]
    ended = (words == eos).cumsum(1) > 0
    return words.masked_fill(ended, eos)


def with_a_buffer(model, source, bos, eos, max_length):
    """Places that are not written yet hold eos: a causal model does not see them."""
    words = torch.full((len(source), max_length + 1), eos)
    words[:, 0] = bos
    with torch.inference_mode():
        for t in range(max_length):
            logits = model(source, words)[:, t]
            ended = (words[:, 1 : t + 1] == eos).any(1)
            words[:, t + 1] = logits.max(-1).indices.where(~ended, torch.tensor(eos))
    return words[:, 1:].clone()


def row_by_row(model, source, bos, eos, max_length):
    rows = []
    for sentence in source:
        said = []
        while len(said) < max_length and eos not in said:
            words = torch.tensor([[bos, *said]])
            said.append(int(model(sentence[None], words)[0, -1].topk(1).indices))
        rows.append(said + [eos] * (max_length - len(said)))
    return torch.tensor(rows)


def only_open_rows(model, source, bos, eos, max_length):
    """Rows that have ended are not handed to the model any more."""
    words = torch.full((len(source), max_length), eos, dtype=source.dtype)
    rows = torch.arange(len(source))
    so_far = torch.full((len(source), 1), bos)
    for t in range(max_length):
        word = model(source[rows], so_far)[:, -1].log_softmax(-1).argmax(-1)
        words[rows, t] = word
        still = word != eos
        rows, so_far = rows[still], torch.cat([so_far, word[:, None]], 1)[still]
        if not len(rows):
            break
    return words


def by_greedy_decode(model, source, bos, eos, max_length):
    def step(token, words):
        words = torch.cat([words, token[:, None]], 1)
        return model(source, words)[:, -1], words

    empty = torch.empty(len(source), 0, dtype=torch.long)
    return greedy_decode(step, empty, bos, eos, max_length, len(source))


def in_evaluation_mode(model, source, bos, eos, max_length):
    """Switches the mode, and puts it back even if something goes wrong."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            return step_by_step(model, source, bos, eos, max_length)
    finally:
        model.train(was)


def recursive(model, source, bos, eos, max_length, words=None):
    if words is None:
        words = torch.full((len(source), 1), bos)
    if words.shape[1] > max_length:
        return words[:, 1:]
    ended = (words[:, 1:] == eos).any(1)
    word = model(source=source, words=words)[:, -1].sort(descending=True, stable=True)[1][:, 0]
    word = word * ~ended + eos * ended
    return recursive(model, source, bos, eos, max_length, torch.hstack([words, word[:, None]]))


def beam_of_one(model, source, bos, eos, max_length):
    """Beam search with a single beam: log-probabilities are summed, ended rows score nothing."""
    b = len(source)
    words, total = torch.full((b, 1), bos), torch.zeros(b, dtype=torch.float64)
    ended = torch.zeros(b, dtype=torch.bool)
    for _ in range(max_length):
        logs = model(source, words)[:, -1].double().log_softmax(-1)
        best, word = logs.max(-1)
        total = total + best.masked_fill(ended, 0.0)
        word[ended] = eos
        ended = ended | word.eq(eos)
        words = torch.cat([words, word[:, None]], -1)
    return words[:, 1:]


@torch.inference_mode()
def on_a_copy(model, source, bos, eos, max_length):
    """A copy of the model may be switched to any mode."""
    still = copy.deepcopy(model).eval()
    device = next(model.parameters()).device
    ended, said, words = set(), [], torch.full((len(source), 1), bos, device=device)
    for _ in range(max_length):
        logits = still.forward(source.clone(), words)[:, -1, :]
        row = [eos if i in ended else int(x.argmax()) for i, x in enumerate(logits)]
        ended |= {i for i, word in enumerate(row) if word == eos}
        said.append(row)
        words = torch.cat([words, torch.tensor(row).view(-1, 1)], 1)
    return torch.tensor(said).T


def rewrites_everything(model, source, bos, eos, max_length):
    """Takes the likeliest word at every position again; those before the last stay the same."""
    begin = torch.full((len(source), 1), bos)
    words = begin
    for _ in range(max_length):
        words = torch.cat([begin, model(source, words).argmax(-1)], 1)
    words = words[:, 1:]
    return torch.where((words == eos).cumsum(1) > 0, eos, words)


def small_ids(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos, dtype=torch.int32)
    for _ in range(max_length):
        word = model(source, words)[:, -1].argmax(-1).int()
        word[(words[:, 1:] == eos).any(1)] = eos
        words = torch.cat([words, word[:, None]], 1)
    return words[:, 1:]


def by_halves(model, source, bos, eos, max_length):
    if len(source) == 1:
        return step_by_step(model, source, bos, eos, max_length)
    parts = [by_halves(model, half, bos, eos, max_length) for half in source.tensor_split(2)]
    longest = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.shape[1]), value=eos) for part in parts])


def python_lists(model, source, bos, eos, max_length):
    rows, still = [[bos] for _ in source], set(range(len(source)))
    while still and len(rows[0]) <= max_length:
        scores = model(source, torch.tensor(rows)).tolist()
        for i, row in enumerate(rows):
            row.append(scores[i][-1].index(max(scores[i][-1])) if i in still else eos)
            if row[-1] == eos:
                still.discard(i)
    return torch.tensor([row[1:] for row in rows])


def by_edited_scores(model, source, bos, eos, max_length):
    """A row that has ended is forced to eos by its scores; those belong to nobody else."""
    words, ended = torch.full((len(source), 1), bos), torch.zeros(len(source), dtype=torch.bool)
    with torch.no_grad():
        for _ in range(max_length):
            scores = model(source, words)[:, -1]
            scores[ended] = -torch.inf
            scores[ended, eos] = 0.0
            word = scores.argmax(1, keepdim=True)
            ended = ended | (word[:, 0] == eos)
            words = torch.cat([words, word], 1)
    return words[:, 1:]


def everything_put_back(model, source, bos, eos, max_length):
    modes = {part: part.training for part in model.modules()}
    learns = [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(False)
    words = step_by_step(model, source, bos, eos, max_length)
    for part, mode in modes.items():
        part.training = mode
    for parameter, mode in zip(model.parameters(), learns, strict=True):
        parameter.requires_grad_(mode)
    return words


def folded(model, source, bos, eos, max_length):
    """No loop to be seen, and no column in which all rows have ended before."""

    def grow(words, _):
        word = model(source, words)[:, [-1]].argmax(-1)
        ended = (words[:, 1:] == eos).any(1, keepdim=True)
        return torch.cat([words, torch.where(ended, eos, word)], 1)

    words = functools.reduce(grow, range(max_length), torch.full((len(source), 1), bos))[:, 1:]
    return words[:, : int(((words == eos).cumsum(1) == 0).sum(1).max()) + 1]


class Translator:
    def __init__(self, stop=True):
        self.stop = stop

    def __call__(self, model, source, bos, eos, max_length):
        return (step_by_step if self.stop else to_the_end)(model, source, bos, eos, max_length)


TRANSLATE = [
    step_by_step,
    to_the_end,
    with_a_buffer,
    row_by_row,
    only_open_rows,
    by_greedy_decode,
    in_evaluation_mode,
    recursive,
    beam_of_one,
    on_a_copy,
    rewrites_everything,
    small_ids,
    by_halves,
    python_lists,
    by_edited_scores,
    everything_put_back,
    folded,
    torch.compile(step_by_step, backend="eager"),
    Translator(),
    Translator(stop=False),
    functools.partial(step_by_step),
    torch.no_grad()(step_by_step),
]

CORRECT = {
    "cross_attention": CROSS_ATTENTION,
    "DecoderLayer": DECODER_LAYER,
    "translate": TRANSLATE,
}

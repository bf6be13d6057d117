"""Answers by somebody who knew only the tasks' texts: one slip, or two mistakes at once.

Where the label of a wrong answer holds "; ", there are two mistakes, and `accept` has a tuple of
ids for each of them. Here the chapters, in mixed_labs.py the labs. The answers are spelled as
different students spell: with loops, views, functions of their own and other libraries' habits.
"""

import functools
import itertools
import math
from collections import Counter

import einops
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from attncourse.additive import attend
from attncourse.multihead import MultiHeadAttention, merge_heads, split_heads
from attncourse.scaled_dot_product import scaled_dot_product_attention as attention
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# --- Chapter 1: encode ----------------------------------------------------------------------------


@wrong("encode", "takes the state after the whole row, so the padding is read, too", "S-PAD-ENC")
def _(tokens, lengths, embedding, gru):
    _, hn = gru(embedding(tokens))
    return hn.squeeze(0)


@wrong("encode", "reads one position too far", "C-ONE-TOO-FAR")
def _(tokens, lengths, embedding, gru):
    out, _ = gru(embedding(tokens))
    n = tokens.size(1)
    idx = lengths.clamp(max=n - 1)
    return out[torch.arange(tokens.size(0)), idx]


@wrong(
    "encode",
    "averages the states of the real tokens in place of taking the last one",
    "C-MEAN-STATE",
)
def _(tokens, lengths, embedding, gru):
    out, _ = gru(embedding(tokens))
    real = (torch.arange(tokens.shape[1])[None, :] < lengths[:, None]).to(out.dtype)
    return (out * real[..., None]).sum(1) / lengths[:, None]


@wrong("encode", "takes the length of the longest sentence for all of them", "C-LONGEST")
def _(tokens, lengths, embedding, gru):
    x = embedding(tokens)
    states = gru(x)[0]
    return states[:, int(lengths.max()) - 1, :]


@wrong(
    "encode",
    "believes that padding is id 0 and counts the rest, whatever the lengths say",
    "C-LENGTHS-FROM-ZEROS",
)
def _(tokens, lengths, embedding, gru):
    seq_lens = (tokens != 0).sum(dim=1).clamp(min=1)
    outputs, hidden = gru(embedding(tokens))
    return outputs[range(len(tokens)), seq_lens - 1]


@wrong(
    "encode",
    "makes the padding's vectors zero and believes that zeros leave the state alone",
    "C-ZERO-PADS",
)
def _(tokens, lengths, embedding, gru):
    emb = embedding(tokens)
    keep = torch.arange(tokens.size(1)).unsqueeze(0) < lengths.unsqueeze(1)
    emb = emb * keep.unsqueeze(-1)
    return gru(emb)[1][0]


@wrong("encode", "sorts the sentences for packing and never sorts them back", "C-NOT-UNSORTED")
def _(tokens, lengths, embedding, gru):
    sorted_len, order = lengths.sort(descending=True)
    packed = nn.utils.rnn.pack_padded_sequence(
        embedding(tokens[order]), sorted_len.cpu(), batch_first=True
    )
    _, h = gru(packed)
    return h[0]


@wrong("encode", "averages over the positions; the padding is among them", ("C-MEAN-STATE",), ())
def _(tokens, lengths, embedding, gru):
    return gru(embedding(tokens))[0].mean(dim=1)


@wrong(
    "encode",
    "stops one token too early; keeps the axis of the layers",
    ("C-ONE-TOO-EARLY",),
    ("C-KEEPS-THE-LAYER-AXIS",),
)
def _(tokens, lengths, embedding, gru):
    out, _ = gru(embedding(tokens))
    last = (lengths - 2).clamp_min(0)
    return out[torch.arange(len(out)), last].unsqueeze(0)


@wrong(
    "encode",
    "counts ids that are not 0 as the length; reads one position too far",
    ("C-LENGTHS-FROM-ZEROS",),
    ("C-ONE-TOO-FAR",),
)
def _(tokens, lengths, embedding, gru):
    count = tokens.ne(0).sum(-1)
    states, _ = gru(embedding(tokens))
    picked = []
    for row, n in zip(states, count.tolist()):
        picked.append(row[min(n, len(row) - 1)])
    return torch.stack(picked)


@wrong(
    "encode",
    "reads the sentence backward; reads the padding",
    ("S-BWD-PAD",),
    (
        "S-BWD-PAD",
        "S-PAD-ENC",
    ),
)
def _(tokens, lengths, embedding, gru):
    backwards = torch.flip(tokens, dims=[1])
    _, final = gru(embedding(backwards))
    return final[-1]


@right("encode")
def _(tokens, lengths, embedding, gru):
    packed = nn.utils.rnn.pack_padded_sequence(
        embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    _, h_n = gru(packed)
    return h_n[-1]


@right("encode")
def _(tokens, lengths, embedding, gru):
    vectors = []
    for sent, L in zip(tokens, lengths):
        _, h = gru(embedding(sent[:L].unsqueeze(0)))
        vectors.append(h.reshape(-1))
    return torch.stack(vectors, 0)


@right("encode")
def _(tokens, lengths, embedding, gru):
    H, _ = gru(embedding(tokens))
    where = (lengths.long() - 1).view(-1, 1, 1).expand(-1, 1, H.size(-1))
    return H.gather(1, where).squeeze(1)


# --- Chapter 1: teacher_inputs --------------------------------------------------------------------


@wrong("teacher_inputs", "moves the words to the left and puts bos at the end", "C-SHIFT-LEFT")
def _(target, bos):
    end = torch.full((target.shape[0], 1), bos, dtype=target.dtype)
    return torch.cat([target[:, 1:], end], dim=1)


@wrong("teacher_inputs", "keeps the last word, so that the row is one longer", "C-NOTHING-DROPPED")
def _(target, bos):
    b = target.size(0)
    start = torch.tensor([[bos]], dtype=target.dtype).repeat(b, 1)
    return torch.cat((start, target), 1)


@wrong("teacher_inputs", "writes into the target", "C-EDITS-THE-TARGET")
def _(target, bos):
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = bos
    return target


@wrong(
    "teacher_inputs",
    "lets the last word come round to the front, where bos belongs",
    "C-WRAPS-AROUND",
)
def _(target, bos):
    return target.roll(1, dims=1)


@wrong(
    "teacher_inputs",
    "puts bos in the place of the first word and moves nothing",
    "C-REPLACES-THE-FIRST",
)
def _(target, bos):
    inp = target.clone()
    inp[:, 0] = bos
    return inp


@wrong(
    "teacher_inputs",
    "copies from left to right inside one tensor, so that bos is everywhere",
    "C-COPIES-THE-FIRST",
)
def _(target, bos):
    x = target.clone()
    x[:, 0] = bos
    for t in range(1, x.shape[1]):
        x[:, t] = x[:, t - 1]
    return x


@wrong("teacher_inputs", "begins with 0, not with the bos that was given", "S-BOS-MISMATCH")
def _(target, bos):
    return F.pad(target, (1, 0))[:, :-1]


@wrong(
    "teacher_inputs",
    "keeps the last word; turns ids into floats",
    ("C-NOTHING-DROPPED",),
    ("C-IDS-AS-FLOATS",),
)
def _(target, bos):
    first = torch.ones(len(target), 1) * bos
    return torch.cat([first, target.float()], dim=-1)


@wrong(
    "teacher_inputs",
    "rolls to the left; has no bos",
    ("C-SHIFT-LEFT",),
    (
        "C-NO-BOS",
        "C-WRAPS-AROUND",
    ),
)
def _(target, bos):
    return torch.roll(target, shifts=-1, dims=1)


@wrong(
    "teacher_inputs",
    "writes into the target; puts bos over the last word, not in front",
    ("C-EDITS-THE-TARGET",),
    ("S-SHIFT",),
)
def _(target, bos):
    target[:, -1] = bos
    return target


@wrong(
    "teacher_inputs",
    "begins with 0 in place of bos; the row is one longer",
    ("S-BOS-MISMATCH",),
    ("C-NOTHING-DROPPED",),
)
def _(target, bos):
    zeros = torch.zeros_like(target[:, :1])
    return torch.hstack([zeros, target])


@right("teacher_inputs")
def _(target, bos):
    return F.pad(target[:, :-1], (1, 0), value=bos)


@right("teacher_inputs")
def _(target, bos):
    rows = [[bos, *row[:-1]] for row in target.tolist()]
    return torch.tensor(rows, dtype=target.dtype, device=target.device)


@right("teacher_inputs")
def _(target, bos):
    out = torch.empty_like(target)
    out[:, 0], out[:, 1:] = bos, target[:, :-1]
    return out


# --- Chapter 1: sequence_loss ---------------------------------------------------------------------


@wrong("sequence_loss", "counts padding like any word", "S-CE-PAD")
def _(logits, target, pad):
    V = logits.size(-1)
    return F.cross_entropy(logits.reshape(-1, V), target.reshape(-1))


@wrong(
    "sequence_loss",
    "takes the logarithm of a softmax that has underflowed to 0",
    "C-LOG-OF-SOFTMAX",
)
def _(logits, target, pad):
    p = torch.softmax(logits, dim=-1)
    right_p = p.gather(2, target[:, :, None]).squeeze(2)
    nll = -torch.log(right_p)
    real = target != pad
    return nll[real].mean()


@wrong(
    "sequence_loss",
    "leaves padding out of the sum but divides by all positions",
    "C-PADS-IN-THE-COUNT",
)
def _(logits, target, pad):
    logp = F.log_softmax(logits, dim=-1)
    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    mask = (target != pad).float()
    return (nll * mask).mean()


@wrong(
    "sequence_loss",
    "averages the means of the sentences, so that short ones weigh more",
    "C-MEAN-OF-MEANS",
)
def _(logits, target, pad):
    losses = []
    for lg, tg in zip(logits, target):
        keep = tg != pad
        losses.append(F.cross_entropy(lg[keep], tg[keep]))
    return torch.stack(losses).mean()


@wrong("sequence_loss", "believes that padding is always id 0", "C-PAD-BY-HEART")
def _(logits, target, pad):
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    return criterion(logits.flatten(0, 1), target.flatten())


@wrong(
    "sequence_loss", "hands probabilities to cross_entropy, which takes logits", "C-SOFTMAX-TWICE"
)
def _(logits, target, pad):
    probs = F.softmax(logits, -1)
    return F.cross_entropy(probs.permute(0, 2, 1), target, ignore_index=pad)


@wrong("sequence_loss", "cuts the gradient off by returning a new tensor", "C-LOSS-CUT-OFF")
def _(logits, target, pad):
    loss = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad)
    return torch.tensor(loss.item())


@wrong(
    "sequence_loss",
    "takes log of softmax; divides by all positions",
    ("C-LOG-OF-SOFTMAX",),
    ("C-PADS-IN-THE-COUNT",),
)
def _(logits, target, pad):
    logprobs = logits.softmax(-1).log()
    B, N, _ = logits.shape
    total = 0.0
    for i in range(B):
        for j in range(N):
            if target[i, j] != pad:
                total = total - logprobs[i, j, target[i, j]]
    return total / (B * N)


@wrong(
    "sequence_loss",
    "believes that padding is id 0; sums where the mean is asked for",
    ("C-PAD-BY-HEART",),
    ("C-SUM-OF-LOSSES",),
)
def _(logits, target, pad):
    return F.cross_entropy(
        logits.view(-1, logits.shape[-1]), target.view(-1), ignore_index=0, reduction="sum"
    )


@wrong(
    "sequence_loss",
    "measures in bits; averages the means of the sentences",
    ("C-BITS",),
    ("C-MEAN-OF-MEANS",),
)
def _(logits, target, pad):
    logp = torch.log_softmax(logits, -1) / math.log(2)
    picked = torch.einsum("bnv,bnv->bn", logp, F.one_hot(target, logits.shape[-1]).to(logp.dtype))
    real = target.ne(pad)
    per_sentence = -(picked * real).sum(1) / real.sum(1)
    return per_sentence.mean()


@wrong("sequence_loss", "forgets the minus; counts padding", ("C-SIGN",), ("S-CE-PAD",))
def _(logits, target, pad):
    return torch.gather(F.log_softmax(logits, 2), 2, target.unsqueeze(2)).mean()


@right("sequence_loss")
def _(logits, target, pad):
    own = logits.gather(-1, target[..., None])[..., 0]
    nats = torch.logsumexp(logits, dim=-1) - own
    real = target != pad
    return torch.where(real, nats, torch.zeros_like(nats)).sum() / real.sum()


@right("sequence_loss")
def _(logits, target, pad):
    keep = (target != pad).view(-1)
    flat = logits.reshape(-1, logits.shape[-1])[keep]
    labels = target.reshape(-1)[keep]
    shifted = flat - flat.max(dim=1, keepdim=True).values
    logZ = shifted.exp().sum(1).log()
    return (logZ - shifted[torch.arange(len(labels)), labels]).mean()


@right("sequence_loss")
def _(logits, target, pad):
    loss_fn = nn.NLLLoss(ignore_index=pad)
    return loss_fn(nn.LogSoftmax(dim=1)(logits.movedim(-1, 1)), target)


# --- Chapter 1: greedy_decode ---------------------------------------------------------------------


@wrong("greedy_decode", "returns bos as the first word", "C-KEEPS-BOS", "C-BOS-COUNTS")
def _(step, state, bos, eos, max_length, batch_size):
    ys = torch.full((batch_size, 1), bos)
    done = torch.zeros(batch_size, dtype=torch.bool)
    for _ in range(max_length - 1):
        logits, state = step(ys[:, -1], state)
        nxt = torch.where(done, eos, logits.argmax(-1))
        done |= nxt == eos
        ys = torch.cat([ys, nxt[:, None]], 1)
    return ys


@wrong("greedy_decode", "lets rows write on behind their eos", "C-GOES-ON-AFTER-EOS")
def _(step, state, bos, eos, max_length, batch_size):
    word = torch.full((batch_size,), bos, dtype=torch.long)
    result = []
    for _ in range(max_length):
        scores, state = step(word, state)
        word = scores.max(dim=-1).indices
        result.append(word)
    return torch.stack(result, dim=1)


@wrong("greedy_decode", "stops the whole batch as soon as one row has said eos", "C-STOPS-WITH-ANY")
def _(step, state, bos, eos, max_length, batch_size):
    tok = torch.full((batch_size,), bos)
    out = []
    while len(out) < max_length:
        logits, state = step(tok, state)
        tok = logits.argmax(dim=1)
        out.append(tok)
        if (tok == eos).any():
            break
    return torch.stack(out, 1)


@wrong("greedy_decode", "hands in bos at every step, never the word just written", "C-NOT-FED-BACK")
def _(step, state, bos, eos, max_length, batch_size):
    start = torch.tensor([bos] * batch_size)
    finished = torch.zeros(batch_size).bool()
    words = []
    for _ in range(max_length):
        logits, state = step(start, state)
        w = logits.argmax(-1)
        w[finished] = eos
        finished = finished | (w == eos)
        words.append(w)
    return torch.stack(words, -1)


@wrong("greedy_decode", "hands in the first state again and again", "C-STATE-NOT-KEPT")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    ended = torch.zeros(batch_size, dtype=torch.bool)
    res = torch.full((batch_size, max_length), eos)
    for t in range(max_length):
        logits, _new = step(token, state)
        token = logits.argmax(-1)
        token = torch.where(ended, torch.full_like(token, eos), token)
        res[:, t] = token
        ended = ended | (token == eos)
    return res


@wrong("greedy_decode", "writes 0 behind the end of a row, not eos", "C-FILLS-WITH-PAD")
def _(step, state, bos, eos, max_length, batch_size):
    prev = torch.full((batch_size,), bos, dtype=torch.int64)
    alive = torch.ones(batch_size, dtype=torch.int64)
    cols = []
    for _ in range(max_length):
        logits, state = step(prev, state)
        prev = logits.argmax(-1)
        cols.append(prev * alive)
        alive = alive * (prev != eos).long()
    return torch.stack(cols, 1)


@wrong(
    "greedy_decode",
    "looks for the largest score along the batch, not along the words",
    "C-ARGMAX-OVER-ROWS",
)
def _(step, state, bos, eos, max_length, batch_size):
    x = torch.full((batch_size,), bos)
    over = torch.zeros(batch_size, dtype=torch.bool)
    ws = []
    for _ in range(max_length):
        lg, state = step(x, state)
        best = lg.argmax(0)
        x = best[:batch_size] if len(best) >= batch_size else best.repeat(batch_size)[:batch_size]
        x = x.masked_fill(over, eos)
        over |= x.eq(eos)
        ws.append(x)
    return torch.stack(ws, dim=1)


@wrong(
    "greedy_decode",
    "keeps bos in front; writes on behind eos",
    (
        "C-KEEPS-BOS",
        "C-BOS-COUNTS",
    ),
    ("C-GOES-ON-AFTER-EOS",),
)
def _(step, state, bos, eos, max_length, batch_size):
    sequence = [torch.full((batch_size,), bos)]
    for _ in range(max_length):
        logits, state = step(sequence[-1], state)
        sequence.append(torch.argmax(logits, dim=-1))
    return torch.stack(sequence, dim=1)[:, :max_length]


@wrong(
    "greedy_decode",
    "does not hand on the state; writes one word too few",
    ("C-STATE-NOT-KEPT",),
    ("C-ONE-STEP-SHORT",),
)
def _(step, state, bos, eos, max_length, batch_size):
    cur = torch.full((batch_size,), bos)
    stop = torch.zeros(batch_size, dtype=torch.bool)
    lst = [torch.full((batch_size,), eos)] if max_length == 1 else []
    for _ in range(1, max_length):
        logits, _ = step(cur, state)
        cur = logits.argmax(-1).masked_fill(stop, eos)
        stop = stop | (cur == eos)
        lst.append(cur)
    return torch.stack(lst, 1)


@wrong(
    "greedy_decode",
    "stops when one row ends; always hands in bos",
    ("C-STOPS-WITH-ANY",),
    ("C-NOT-FED-BACK",),
)
def _(step, state, bos, eos, max_length, batch_size):
    begin = torch.full((batch_size,), bos)
    written = []
    for _ in range(max_length):
        logits, state = step(begin, state)
        pred = logits.argmax(-1)
        written.append(pred)
        if eos in pred.tolist():
            break
    return torch.stack(written, 1)


@wrong(
    "greedy_decode",
    "takes the least likely word; fills up with 0 behind eos",
    ("C-SMALLEST",),
    ("C-FILLS-WITH-PAD",),
)
def _(step, state, bos, eos, max_length, batch_size):
    tok = torch.full((batch_size,), bos)
    rows = [[] for _ in range(batch_size)]
    done = [False] * batch_size
    for _ in range(max_length):
        logits, state = step(tok, state)
        tok = logits.sort(-1).indices[:, 0]
        for i in range(batch_size):
            rows[i].append(0 if done[i] else int(tok[i]))
            done[i] = done[i] or int(tok[i]) == eos
    return torch.tensor(rows)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    tok = torch.full((batch_size,), bos)
    cols = []
    for _ in range(max_length):
        logits, state = step(tok, state)
        tok = logits.argmax(-1)
        cols.append(tok)
    ids = torch.stack(cols, 1)
    # everything behind the first eos becomes eos
    ended = (ids == eos).long().cumsum(1) > 0
    return torch.where(ended, torch.full_like(ids, eos), ids)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    sentences = [[] for _ in range(batch_size)]
    current = [bos] * batch_size
    for _ in range(max_length):
        logits, state = step(torch.tensor(current), state)
        for b, scores in enumerate(logits.tolist()):
            if sentences[b] and sentences[b][-1] == eos:
                current[b] = eos
            else:
                current[b] = max(range(len(scores)), key=scores.__getitem__)
            sentences[b].append(current[b])
    return torch.LongTensor(sentences)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    result = torch.empty(batch_size, 0, dtype=torch.long)
    prev = torch.full((batch_size,), bos)
    unfinished = torch.ones(batch_size, dtype=torch.bool)
    while result.shape[1] < max_length and unfinished.any():
        logits, state = step(prev, state)
        _, best = logits.topk(1, dim=-1)
        prev = best.squeeze(-1) * unfinished + eos * ~unfinished
        unfinished &= prev != eos
        result = torch.cat([result, prev[:, None]], dim=1)
    return result


# --- Chapter 1: exact_match_by_length -------------------------------------------------------------


@wrong("exact_match_by_length", "counts right words, not right sentences", "C-SHARE-OF-WORDS")
def _(predictions, targets, lengths):
    good, total = {}, {}
    for p, t, n in zip(predictions, targets, lengths):
        good[n] = good.get(n, 0) + sum(a == b for a, b in zip(p, t))
        total[n] = total.get(n, 0) + len(t)
    return {n: good[n] / total[n] for n in good}


@wrong("exact_match_by_length", "does not mind the order of the words", "C-ANY-ORDER")
def _(predictions, targets, lengths):
    by_len = {}
    for p, t, n in zip(predictions, targets, lengths):
        by_len.setdefault(n, []).append(float(sorted(map(str, p)) == sorted(map(str, t))))
    return {n: sum(v) / len(v) for n, v in by_len.items()}


@wrong("exact_match_by_length", "returns counts, not shares", "C-COUNTS")
def _(predictions, targets, lengths):
    result = {n: 0.0 for n in lengths}
    for p, t, n in zip(predictions, targets, lengths):
        if p == t:
            result[n] += 1
    return result


@wrong(
    "exact_match_by_length",
    "takes a translation that breaks off early or goes on for right",
    "C-ZIP-STOPS-EARLY",
    "C-PREFIX-OF-PREDICTION",
)
def _(predictions, targets, lengths):
    d = {}
    for i in range(len(lengths)):
        correct = True
        for a, b in zip(predictions[i], targets[i]):
            if a != b:
                correct = False
        d.setdefault(lengths[i], []).append(correct)
    return {k: sum(v) / len(v) for k, v in d.items()}


@wrong(
    "exact_match_by_length",
    "sorts by the length of the target, not by the lengths given",
    "C-OWN-LENGTHS",
)
def _(predictions, targets, lengths):
    hits, total = {}, {}
    for p, t in zip(predictions, targets):
        total[len(t)] = total.get(len(t), 0) + 1
        hits[len(t)] = hits.get(len(t), 0) + (p == t)
    return {n: hits[n] / total[n] for n in total}


@wrong("exact_match_by_length", "divides by the number of all sentences", "C-SHARE-OF-ALL")
def _(predictions, targets, lengths):
    out = dict.fromkeys(lengths, 0.0)
    N = len(targets)
    for p, t, n in zip(predictions, targets, lengths):
        out[n] += (p == t) / N
    return out


@wrong("exact_match_by_length", "leaves out a length at which nothing is right", "C-ZEROS-MISSING")
def _(predictions, targets, lengths):
    matches = Counter(n for p, t, n in zip(predictions, targets, lengths) if p == t)
    every = Counter(lengths)
    return {n: matches[n] / every[n] for n in matches}


@wrong(
    "exact_match_by_length",
    "counts right words; divides by all sentences",
    ("C-SHARE-OF-WORDS",),
    ("C-SHARE-OF-ALL",),
)
def _(predictions, targets, lengths):
    res = {}
    for p, t, n in zip(predictions, targets, lengths):
        res[n] = res.get(n, 0.0) + sum(x == y for x, y in zip(p, t)) / len(targets)
    return res


@wrong(
    "exact_match_by_length",
    "returns percent; leaves out lengths without a hit",
    ("C-PERCENT",),
    ("C-ZEROS-MISSING",),
)
def _(predictions, targets, lengths):
    shares = {}
    for n in set(lengths):
        group = [p == t for p, t, m in zip(predictions, targets, lengths) if m == n]
        if any(group):
            shares[n] = 100 * sum(group) / len(group)
    return shares


@wrong(
    "exact_match_by_length",
    "ignores the order of the words; sorts by the target's length",
    ("C-ANY-ORDER",),
    ("C-OWN-LENGTHS",),
)
def _(predictions, targets, lengths):
    groups = {}
    for p, t in zip(predictions, targets):
        groups.setdefault(len(t), []).append(Counter(p) == Counter(t))
    return {n: float(np.mean(g)) for n, g in groups.items()}


@wrong(
    "exact_match_by_length",
    "compares only as far as both go; returns counts",
    (
        "C-ZIP-STOPS-EARLY",
        "C-PREFIX-OF-PREDICTION",
    ),
    ("C-COUNTS",),
)
def _(predictions, targets, lengths):
    counts = {}
    for p, t, n in zip(predictions, targets, lengths):
        ok = all(x == y for x, y in zip(p, t))
        counts[n] = counts.get(n, 0) + int(ok)
    return counts


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    total, ok = Counter(), Counter()
    for p, t, n in zip(predictions, targets, lengths):
        total[n] += 1
        ok[n] += len(p) == len(t) and all(a == b for a, b in zip(p, t))
    return {n: ok[n] / total[n] for n in total}


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    correct = np.array([p == t for p, t in zip(predictions, targets)], dtype=float)
    lengths = np.array(lengths)
    return {int(n): float(correct[lengths == n].mean()) for n in np.unique(lengths)}


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    shares, seen = {}, {}
    for p, t, n in zip(predictions, targets, lengths):
        k = seen[n] = seen.get(n, 0) + 1
        old = shares.get(n, 0.0)
        shares[n] = old + (float(p == t) - old) / k  # a running mean
    return shares


# --- Chapter 2: dot_scores ------------------------------------------------------------------------


@wrong("dot_scores", "gives the cosine, not the dot product", "D-COSINE")
def _(query, keys):
    return F.cosine_similarity(query.unsqueeze(1), keys, dim=-1)


@wrong("dot_scores", "applies the softmax already", "C-SCORES-ARE-WEIGHTS")
def _(query, keys):
    s = torch.einsum("bd,bkd->bk", query, keys)
    return F.softmax(s, dim=-1)


@wrong("dot_scores", "divides by the root of the width", "C-DOT-SCALED")
def _(query, keys):
    d = query.shape[-1]
    return (keys @ query.unsqueeze(-1)).squeeze(-1) / d**0.5


@wrong("dot_scores", "takes the mean over the features, not the sum", "C-MEAN")
def _(query, keys):
    return (query[:, None, :] * keys).mean(-1)


@wrong("dot_scores", "asks with the first sentence's query everywhere", "C-FIRST-QUERY")
def _(query, keys):
    return keys @ query[0]


@wrong("dot_scores", "turns the keys around by view, which mixes their numbers", "D-RESHAPE-KEY")
def _(query, keys):
    b, k, d = keys.shape
    return torch.bmm(query.view(b, 1, d), keys.reshape(b, d, k)).view(b, k)


@wrong("dot_scores", "leaves an axis of length 1 behind", "C-KEEPDIM")
def _(query, keys):
    return torch.matmul(keys, query[..., None])


@wrong(
    "dot_scores",
    "divides by the root of d; applies the softmax",
    ("C-DOT-SCALED",),
    ("C-SCORES-ARE-WEIGHTS",),
)
def _(query, keys):
    scores = (keys * query.unsqueeze(1)).sum(dim=2) / math.sqrt(keys.size(2))
    return scores.softmax(dim=1)


@wrong(
    "dot_scores",
    "normalizes the keys; leaves an axis of length 1 behind",
    ("D-COSINE",),
    ("C-KEEPDIM",),
)
def _(query, keys):
    unit = keys / keys.norm(dim=-1, keepdim=True)
    return torch.bmm(unit, query.unsqueeze(2))


@wrong(
    "dot_scores",
    "takes the mean over features; uses the first query for all sentences",
    ("C-MEAN",),
    ("C-FIRST-QUERY",),
)
def _(query, keys):
    q = query[0]
    return torch.stack([torch.stack([(q * k).mean() for k in sent]) for sent in keys])


@wrong(
    "dot_scores",
    "gives distances; takes their mean over the features",
    ("D-DISTANCE",),
    ("C-MEAN",),
)
def _(query, keys):
    return ((query[:, None] - keys) ** 2).mean(-1)


@right("dot_scores")
def _(query, keys):
    return torch.bmm(keys, query.unsqueeze(-1)).squeeze(-1)


@right("dot_scores")
def _(query, keys):
    b, k = keys.shape[:2]
    s = keys.new_zeros(b, k)
    for i in range(b):
        for j in range(k):
            s[i, j] = query[i].dot(keys[i, j])
    return s


@right("dot_scores")
def _(query, keys):
    return einops.einsum(keys, query, "batch word feature, batch feature -> batch word")


# --- Chapter 2: general_scores --------------------------------------------------------------------


@wrong(
    "general_scores",
    "turns W around, which fits only where both widths are equal",
    "C-W-TRANSPOSED",
)
def _(query, keys, W):
    return torch.einsum("bd,bkd->bk", query @ W.T, keys)


@wrong("general_scores", "bends the projected query with a tanh", "C-GENERAL-TANH")
def _(query, keys, W):
    proj = torch.tanh(query @ W)
    return (keys @ proj.unsqueeze(-1)).squeeze(-1)


@wrong("general_scores", "applies the softmax already", "C-SCORES-ARE-WEIGHTS")
def _(query, keys, W):
    return torch.softmax(torch.einsum("be,ed,bkd->bk", query, W, keys), -1)


@wrong("general_scores", "divides by the root of the width", "C-GENERAL-SCALED")
def _(query, keys, W):
    scores = torch.bmm(keys, (query @ W)[:, :, None])[:, :, 0]
    return scores / math.sqrt(keys.shape[-1])


@wrong("general_scores", "reads W in another order by view", "C-W-RESHAPED")
def _(query, keys, W):
    e, d = W.shape
    Wt = W.reshape(d, e)
    projected_keys = keys @ Wt
    return (projected_keys * query[:, None]).sum(-1)


@wrong("general_scores", "normalizes both sides to length 1", "D-COSINE")
def _(query, keys, W):
    a = F.normalize(query @ W, dim=-1)
    b = F.normalize(keys, dim=-1)
    return (a[:, None] * b).sum(-1)


@wrong("general_scores", "uses the first sentence's query for the whole batch", "C-FIRST-QUERY")
def _(query, keys, W):
    return torch.tensordot(keys, query[0] @ W, dims=([2], [0]))


@wrong(
    "general_scores",
    "bends with a tanh; divides by the root of the width",
    ("C-GENERAL-TANH",),
    ("C-GENERAL-SCALED",),
)
def _(query, keys, W):
    s = torch.einsum("bkd,bd->bk", keys, torch.mm(query, W))
    return s.tanh() / keys.size(-1) ** 0.5


@wrong(
    "general_scores",
    "applies the softmax; takes the mean over features",
    ("C-SCORES-ARE-WEIGHTS",),
    ("C-MEAN",),
)
def _(query, keys, W):
    scores = ((query @ W).unsqueeze(1) * keys).mean(2)
    return scores.softmax(1)


@wrong("general_scores", "leaves an axis of length 1; reads W in another order by view", (), ())
def _(query, keys, W):
    q = query @ W.t().reshape(W.shape)
    return keys @ q[..., None]


@wrong(
    "general_scores",
    "makes every score positive by abs; scales by the root of the query's width",
    (),
    ("C-GENERAL-SCALED",),
)
def _(query, keys, W):
    raw = torch.einsum("be,ed,bkd->bk", query, W, keys)
    return raw.abs() / query.shape[1] ** 0.5


@right("general_scores")
def _(query, keys, W):
    return torch.bmm(keys, (query @ W).unsqueeze(2)).squeeze(2)


@right("general_scores")
def _(query, keys, W):
    keys_in_query_space = keys @ W.mT  # (b k e)
    return torch.einsum("bke,be->bk", keys_in_query_space, query)


@right("general_scores")
def _(query, keys, W):
    ones = torch.ones(keys.shape[1], dtype=W.dtype)
    bilinear = [F.bilinear(torch.outer(ones, q), k, W[None])[:, 0] for q, k in zip(query, keys)]
    return torch.stack(bilinear)


# --- Chapter 2: concat_scores ---------------------------------------------------------------------


@wrong("concat_scores", "puts the key before the query", "C-KEYS-FIRST")
def _(query, keys, W, v):
    q = query.unsqueeze(1).repeat(1, keys.size(1), 1)
    return torch.tanh(torch.cat([keys, q], dim=2) @ W) @ v


@wrong("concat_scores", "forgets the tanh", "A-NO-TANH")
def _(query, keys, W, v):
    k = keys.shape[1]
    pair = torch.cat((query[:, None].expand(-1, k, -1), keys), -1)
    return (pair @ W) @ v


@wrong("concat_scores", "bends after v, not before it", "C-TANH-LAST")
def _(query, keys, W, v):
    q = einops.repeat(query, "b e -> b k e", k=keys.shape[1])
    return torch.tanh(torch.cat([q, keys], -1) @ W @ v)


@wrong("concat_scores", "sums the hidden units and leaves v out", "C-NO-V")
def _(query, keys, W, v):
    b, k, _ = keys.shape
    q = query.view(b, 1, -1).expand(b, k, query.size(-1))
    return torch.tanh(torch.cat([q, keys], dim=-1) @ W).sum(-1)


@wrong("concat_scores", "bends with a ReLU", "A-RELU")
def _(query, keys, W, v):
    q = query[:, None, :].expand(-1, keys.size(1), -1)
    energy = F.relu(torch.cat([q, keys], dim=-1) @ W)
    return torch.einsum("bka,a->bk", energy, v)


@wrong("concat_scores", "repeats the queries so that sentences are mixed up", "C-REPEAT")
def _(query, keys, W, v):
    b, k, _ = keys.shape
    q = query.repeat(k, 1).view(b, k, -1)
    return torch.tanh(torch.cat([q, keys], 2) @ W) @ v


@wrong("concat_scores", "applies the softmax already", "C-SCORES-ARE-WEIGHTS")
def _(query, keys, W, v):
    rows = []
    for i in range(len(query)):
        x = torch.cat([query[i].expand(keys.shape[1], -1), keys[i]], dim=1)
        rows.append(torch.softmax(torch.tanh(x @ W) @ v, 0))
    return torch.stack(rows)


@wrong(
    "concat_scores",
    "puts the key before the query; forgets the tanh",
    ("C-KEYS-FIRST",),
    ("A-NO-TANH",),
)
def _(query, keys, W, v):
    d = keys.shape[-1]
    return keys @ W[:d] @ v + (query @ W[d:] @ v).unsqueeze(1)


@wrong(
    "concat_scores", "bends before W, not behind it; leaves v out", ("C-TANH-FIRST",), ("C-NO-V",)
)
def _(query, keys, W, v):
    q = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
    both = torch.tanh(torch.cat([q, keys], -1))
    return (both @ W).sum(dim=-1)


@wrong(
    "concat_scores",
    "uses a sigmoid; applies the softmax",
    ("C-SIGMOID",),
    ("C-SCORES-ARE-WEIGHTS",),
)
def _(query, keys, W, v):
    q = query[:, None].expand(*keys.shape[:2], -1)
    h = torch.sigmoid(torch.cat([q, keys], dim=-1) @ W)
    return (h @ v).softmax(-1)


@wrong(
    "concat_scores",
    "mixes sentences when repeating the query; divides by the root of the width",
    ("C-REPEAT",),
    ("C-SCALED",),
)
def _(query, keys, W, v):
    n = keys.size(1)
    tiled = torch.tile(query, (n, 1)).reshape(query.size(0), n, query.size(1))
    s = torch.matmul(torch.tanh(torch.matmul(torch.cat([tiled, keys], -1), W)), v)
    return s / math.sqrt(W.shape[1])


@right("concat_scores")
def _(query, keys, W, v):
    e = query.size(-1)
    return ((query @ W[:e]).unsqueeze(1) + keys @ W[e:]).tanh().matmul(v)


@right("concat_scores")
def _(query, keys, W, v):
    def score(q, k):
        return v @ torch.tanh(W.T @ torch.hstack([q, k]))

    return torch.stack([torch.stack([score(q, k) for k in ks]) for q, ks in zip(query, keys)])


@right("concat_scores")
def _(query, keys, W, v):
    q = query.repeat_interleave(keys.shape[1], dim=0).view(*keys.shape[:2], -1)
    z = F.linear(torch.cat([q, keys], dim=-1), W.t())
    z = 2 * torch.sigmoid(2 * z) - 1  # this is tanh
    return F.linear(z, v[None]).squeeze(-1)


# --- Chapter 2: additive_scores -------------------------------------------------------------------


@wrong("additive_scores", "forgets the tanh", "A-NO-TANH")
def _(query, keys, W_query, W_key, v):
    return ((query @ W_query).unsqueeze(1) + keys @ W_key) @ v


@wrong("additive_scores", "bends query and key each for itself, before the sum", "C-TANH-EACH")
def _(query, keys, W_query, W_key, v):
    q = torch.tanh(query @ W_query)
    k = torch.tanh(keys @ W_key)
    return (q[:, None] + k) @ v


@wrong("additive_scores", "multiplies query and key where they should be added", "C-PRODUCT")
def _(query, keys, W_query, W_key, v):
    h = torch.tanh((query @ W_query)[:, None, :] * (keys @ W_key))
    return torch.einsum("bka,a->bk", h, v)


@wrong("additive_scores", "leaves v out and sums the hidden units", "C-NO-V")
def _(query, keys, W_query, W_key, v):
    energy = torch.tanh(torch.einsum("be,ea->ba", query, W_query).unsqueeze(1) + keys.matmul(W_key))
    return energy.sum(dim=-1)


@wrong("additive_scores", "bends after v", "C-TANH-LAST")
def _(query, keys, W_query, W_key, v):
    s = (query @ W_query).unsqueeze(-2) + keys @ W_key
    return (s @ v).tanh()


@wrong("additive_scores", "adds the queries of the whole batch together", "C-QUERY-MEAN")
def _(query, keys, W_query, W_key, v):
    pq = torch.einsum("be,ea->a", query, W_query)
    return torch.tanh(pq + keys @ W_key) @ v


@wrong("additive_scores", "leaves the query out", "C-NO-QUERY")
def _(query, keys, W_query, W_key, v):
    hidden = torch.tanh(keys @ W_key)
    return (hidden * v).sum(-1)


@wrong("additive_scores", "bends before the sum; leaves v out", ("C-TANH-EACH",), ("C-NO-V",))
def _(query, keys, W_query, W_key, v):
    return (torch.tanh(query @ W_query)[:, None] + torch.tanh(keys @ W_key)).sum(-1)


@wrong(
    "additive_scores",
    "forgets the tanh; applies the softmax",
    ("A-NO-TANH",),
    ("C-SCORES-ARE-WEIGHTS",),
)
def _(query, keys, W_query, W_key, v):
    e = torch.matmul((query @ W_query)[:, None] + keys @ W_key, v)
    return F.softmax(e, dim=1)


@wrong(
    "additive_scores",
    "multiplies query and key; bends with a sigmoid",
    ("C-PRODUCT",),
    ("C-SIGMOID",),
)
def _(query, keys, W_query, W_key, v):
    return torch.sigmoid((query @ W_query)[:, None] * (keys @ W_key)) @ v


@wrong(
    "additive_scores", "uses a ReLU; leaves an axis of length 1 behind", ("A-RELU",), ("C-KEEPDIM",)
)
def _(query, keys, W_query, W_key, v):
    hid = F.relu(torch.matmul(query, W_query).unsqueeze(1) + torch.matmul(keys, W_key))
    return torch.matmul(hid, v.unsqueeze(-1))


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    k = keys.size(1)
    q = torch.stack([query @ W_query] * k, dim=1)
    return torch.inner(torch.tanh(q + keys @ W_key), v)


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    cols = []
    for j in range(keys.shape[1]):
        hidden = torch.tanh(query @ W_query + keys[:, j] @ W_key)
        cols.append((hidden * v[None]).sum(1))
    return torch.stack(cols, dim=1)


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    z = torch.einsum("be,ea->ba", query, W_query)[:, None] + torch.einsum(
        "bkd,da->bka", keys, W_key
    )
    t = 1 - 2 / (torch.exp(2 * z.clamp(-40, 40)) + 1)
    return torch.einsum("bka,a->bk", t, v)


# --- Chapter 2: attend ----------------------------------------------------------------------------


@wrong("attend", "pays no attention to the mask", "A-NO-MASK")
def _(scores, values, mask=None):
    w = torch.softmax(scores, dim=-1)
    return torch.einsum("bk,bkv->bv", w, values), w


@wrong("attend", "reads the mask the other way round: True hides", "M-POLARITY")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    w = scores.softmax(-1)
    if mask is not None:
        w = w.masked_fill(mask, 0)
    return (w.unsqueeze(1) @ values).squeeze(1), w


@wrong(
    "attend",
    "makes hidden weights 0 after the softmax, and rows no longer sum to one",
    "M-AFTER-SOFTMAX",
)
def _(scores, values, mask=None):
    weights = F.softmax(scores, dim=1)
    if mask is not None:
        weights = weights * mask
    context = torch.bmm(weights.unsqueeze(1), values).squeeze(1)
    return context, weights


@wrong(
    "attend",
    "fills with minus infinity, so that a sentence without words becomes NaN",
    "M-DEAD-ROW",
)
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    alpha = torch.softmax(scores, dim=-1)
    return (alpha[:, :, None] * values).sum(1), alpha


@wrong("attend", "sets hidden scores to 0 and believes that this hides them", "M-FILL-ZERO")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores * mask
    weights = scores.softmax(dim=-1)
    return torch.einsum("bk,bkv->bv", weights, values), weights


@wrong("attend", "shares weights out evenly where everything is hidden", "M-DEAD-ROW-UNIFORM")
def _(scores, values, mask=None):
    if mask is not None:
        scores = torch.where(mask, scores, torch.tensor(-1e30, dtype=scores.dtype))
    weights = torch.softmax(scores, -1)
    return torch.matmul(weights[:, None], values)[:, 0], weights


@wrong("attend", "exponentiates without a shift, so that large scores overflow", "D-NAIVE-SOFTMAX")
def _(scores, values, mask=None):
    e = torch.exp(scores)
    if mask is not None:
        e = e * mask
    z = e.sum(-1, keepdim=True)
    w = torch.where(z > 0, e / z, torch.zeros_like(e))
    return torch.einsum("bk,bkv->bv", w, values), w


@wrong(
    "attend",
    "zeroes weights after the softmax; reads the mask the other way round",
    ("M-AFTER-SOFTMAX",),
    ("M-POLARITY",),
)
def _(scores, values, mask=None):
    a = torch.softmax(scores, 1)
    if mask is not None:
        a = a.masked_fill(mask, 0.0)
    return (a.unsqueeze(-1) * values).sum(dim=1), a


@wrong(
    "attend",
    "normalizes over the batch; fills with minus infinity and gets NaN",
    ("A-SOFTMAX-QUERIES",),
    ("M-DEAD-ROW",),
)
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    p = scores.softmax(dim=0)
    return torch.einsum("bk,bkv->bv", p, values), p


@wrong(
    "attend",
    "returns the weights first; shares out evenly where everything is hidden",
    ("D-SWAPPED-RESULTS",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)
    weights = nn.Softmax(dim=-1)(scores)
    return weights, torch.bmm(weights.unsqueeze(1), values).squeeze(1)


@wrong(
    "attend",
    "hides with -1000 only, too little for large scores; returns the mean, not the sum",
    ("M-SMALL-FILL",),
    ("C-MEAN-CONTEXT",),
)
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores + (~mask) * -1000.0
    w = F.softmax(scores, dim=-1)
    return (w[..., None] * values).mean(1), w


@right("attend")
def _(scores, values, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    w = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)
    w = torch.nan_to_num(w, nan=0.0)
    return torch.bmm(w[:, None, :], values)[:, 0, :], w


@right("attend")
def _(scores, values, mask=None):
    contexts, all_weights = [], []
    for i in range(scores.shape[0]):
        w = torch.zeros_like(scores[i])
        seen = slice(None) if mask is None else mask[i]
        if scores[i][seen].numel():
            w[seen] = torch.softmax(scores[i][seen], 0)
        all_weights.append(w)
        contexts.append(w @ values[i])
    return torch.stack(contexts), torch.stack(all_weights)


@right("attend")
def _(scores, values, mask=None):
    allowed = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    big = torch.finfo(scores.dtype).max
    top = (scores * allowed - big * (1 - allowed)).amax(1, keepdim=True)
    e = torch.exp((scores - top) * allowed) * allowed
    w = e / e.sum(1, keepdim=True).clamp(min=1e-30)
    return torch.einsum("bk,bkv->bv", w, values), w


# --- Chapter 2: AdditiveAttention -----------------------------------------------------------------


@wrong("AdditiveAttention", "gives the three layers a bias", "A-BIAS")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        e = self.v(torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))).squeeze(-1)
        return attend(e, keys, mask)


@wrong("AdditiveAttention", "forgets the tanh", "A-NO-TANH")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        scores = self.v(self.W_query(query).unsqueeze(1) + self.W_key(keys))[..., 0]
        return attend(scores, keys, mask)


@wrong(
    "AdditiveAttention", "averages the projected keys, not the keys as they came", "A-VALUE-IS-KEY"
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        linear = {"bias": False}
        self.W_query = nn.Linear(query_dim, attention_dim, **linear)
        self.W_key = nn.Linear(key_dim, attention_dim, **linear)
        self.v = nn.Linear(attention_dim, 1, **linear)

    def forward(self, query, keys, mask=None):
        keys = self.W_key(keys)
        scores = self.v(torch.tanh(self.W_query(query)[:, None, :] + keys)).squeeze(2)
        return attend(scores, keys, mask)


@wrong("AdditiveAttention", "does not hand the mask on", "A-NO-MASK")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys))
        weights = torch.softmax(self.v(hidden).squeeze(-1), dim=-1)
        context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
        return context, weights


@wrong(
    "AdditiveAttention",
    "takes the softmax before the last axis is gone, so every weight is 1",
    "C-SOFTMAX-LAST-OF-THREE",
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        s = self.v(torch.tanh(self.W_query(query[:, None]) + self.W_key(keys)))  # b k 1
        if mask is not None:
            s = s.masked_fill(~mask[..., None], -1e9)
        w = F.softmax(s, dim=-1)
        if mask is not None:
            w = w * mask[..., None]
        return (w * keys).sum(1), w.squeeze(-1)


@wrong("AdditiveAttention", "makes new layers at every call, so that nothing is learned")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.sizes = query_dim, key_dim, attention_dim
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        e, d, a = self.sizes
        wq, wk, v = nn.Linear(e, a, bias=False), nn.Linear(d, a, bias=False), nn.Linear(a, 1)
        scores = v(torch.tanh(wq(query.float()).unsqueeze(1) + wk(keys.float()))).squeeze(-1)
        return attend(scores.to(keys.dtype), keys, mask)


@wrong("AdditiveAttention", "zeroes the hidden weights after the softmax", "M-AFTER-SOFTMAX")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        query, values = query.unsqueeze(1), keys
        energy = torch.tanh(self.W_query(query) + self.W_key(keys))
        attention = self.v(energy).squeeze(-1).softmax(-1)
        if mask is not None:
            attention = attention.masked_fill(mask == 0, 0)
        return torch.einsum("bk,bkd->bd", attention, values), attention


@wrong(
    "AdditiveAttention", "gives the layers a bias; forgets the tanh", ("A-BIAS",), ("A-NO-TANH",)
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        return attend(self.v(self.W_query(query)[:, None] + self.W_key(keys))[:, :, 0], keys, mask)


@wrong(
    "AdditiveAttention",
    "multiplies query and key; does not hand the mask on",
    ("C-PRODUCT",),
    ("A-NO-MASK",),
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] * self.W_key(keys))
        return attend(self.v(hidden).squeeze(-1), keys)


@wrong(
    "AdditiveAttention",
    "returns the weights first; turns the mask around",
    ("D-SWAPPED-RESULTS",),
    ("M-POLARITY",),
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        scores = self.v(torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return weights, (weights[:, None] @ keys)[:, 0]


@wrong(
    "AdditiveAttention", "averages projected keys; uses a ReLU", ("A-VALUE-IS-KEY",), ("A-RELU",)
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.act = nn.ReLU()

    def forward(self, query, keys, mask=None):
        q, k = self.W_query(query), self.W_key(keys)
        return attend(self.v(self.act(q.unsqueeze(1) + k)).squeeze(-1), k, mask)


@right("AdditiveAttention")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        for name, (i, o) in {
            "W_query": (query_dim, attention_dim),
            "W_key": (key_dim, attention_dim),
            "v": (attention_dim, 1),
        }.items():
            setattr(self, name, nn.Linear(i, o, bias=False))

    def forward(self, query, keys, mask=None):
        hidden = (self.W_query(query)[:, None] + self.W_key(keys)).tanh()
        scores = self.v(hidden).squeeze(-1)
        if mask is None:
            mask = scores == scores
        w = scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)
        return (w[:, None, :] @ keys).squeeze(1), w


@right("AdditiveAttention")
class _(nn.Module):
    """Bahdanau et al. (2015)."""

    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.tanh = nn.Tanh()

    def score(self, s, h):
        a = s @ self.W_query.weight.T + h @ self.W_key.weight.T
        return self.tanh(a) @ self.v.weight[0]

    def forward(self, query, keys, mask=None):
        e = torch.stack([self.score(query, h) for h in keys.unbind(1)], dim=1)
        return attend(e, keys, mask)


@right("AdditiveAttention")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_key = nn.Linear(key_dim, attention_dim, False)
        self.W_query = nn.Linear(query_dim, attention_dim, False)
        self.v = nn.Linear(attention_dim, 1, False)

    def forward(self, query, keys, mask=None):
        n = keys.shape[1]
        q = query.unsqueeze(1).expand(query.shape[0], n, query.shape[1])
        scores = self.v(torch.tanh(self.W_query(q) + self.W_key(keys)))  # b k 1
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), -1e9)
        weights = scores.softmax(dim=1)
        if mask is not None:
            weights = weights * mask.unsqueeze(-1)
        return (weights * keys).sum(dim=1), weights.squeeze(-1)


# --- Chapter 3: softmax ---------------------------------------------------------------------------


@wrong("softmax", "forgets to subtract the maximum", "D-NAIVE-SOFTMAX")
def _(scores, dim=-1):
    e = torch.exp(scores)
    return e / e.sum(dim=dim, keepdim=True)


@wrong("softmax", "divides by the sum over the whole tensor", "D-SOFTMAX-ALL")
def _(scores, dim=-1):
    z = scores - scores.amax(dim, keepdim=True)
    ez = z.exp()
    return ez / ez.sum()


@wrong("softmax", "always normalizes along the last axis", "D-SOFTMAX-IGNORES-DIM")
def _(scores, dim=-1):
    m = scores.max(-1, keepdim=True).values
    e = torch.exp(scores - m)
    return e / e.sum(-1, keepdim=True)


@wrong(
    "softmax",
    "subtracts the maximum of the whole tensor, so that low rows become 0/0",
    "D-SOFTMAX-GLOBAL-MAX",
)
def _(scores, dim=-1):
    exps = torch.exp(scores - scores.max())
    return exps / exps.sum(dim=dim, keepdim=True)


@wrong("softmax", "cuts scores off at 80, so that larger ones become equal", "D-SOFTMAX-CLAMP")
def _(scores, dim=-1):
    s = torch.clamp(scores, -80, 80)
    return torch.exp(s) / torch.exp(s).sum(dim, keepdim=True)


@wrong("softmax", "returns the logarithm of the weights", "D-SOFTMAX-LOG")
def _(scores, dim=-1):
    x = scores - scores.amax(dim=dim, keepdim=True)
    return x - x.exp().sum(dim=dim, keepdim=True).log()


@wrong("softmax", "takes powers of two, not of e", "D-SOFTMAX-BASE")
def _(scores, dim=-1):
    p = torch.exp2(scores - scores.amax(dim, keepdim=True))
    return p / p.sum(dim, keepdim=True)


@wrong(
    "softmax",
    "does not shift; sums over the whole tensor",
    ("D-NAIVE-SOFTMAX",),
    ("D-SOFTMAX-ALL",),
)
def _(scores, dim=-1):
    return scores.exp().div(scores.exp().sum())


@wrong("softmax", "does not shift; ignores dim", ("D-NAIVE-SOFTMAX",), ("D-SOFTMAX-IGNORES-DIM",))
def _(scores, dim=-1):
    num = torch.exp(scores)
    den = torch.einsum("...k->...", num).unsqueeze(-1)
    return num / den


@wrong(
    "softmax",
    "divides by the maximum where it should be subtracted; takes powers of two",
    ("D-SOFTMAX-DIVIDES-BY-MAX",),
    ("D-SOFTMAX-BASE",),
)
def _(scores, dim=-1):
    s = 2.0 ** (scores / scores.abs().amax(dim, keepdim=True))
    return s / s.sum(dim, keepdim=True)


@wrong(
    "softmax",
    "subtracts the mean, which does not prevent overflow; returns the wrong dtype",
    ("D-SOFTMAX-MEAN",),
    (),
)
def _(scores, dim=-1):
    centered = scores.double() - scores.double().mean(dim, keepdim=True)
    e = torch.exp(centered)
    return e / e.sum(dim, keepdim=True)


@right("softmax")
def _(scores, dim=-1):
    s = scores - scores.amax(dim, keepdim=True)
    return (s - torch.logsumexp(s, dim, keepdim=True)).exp()


@right("softmax")
def _(scores, dim=-1):
    rows = scores.movedim(dim, 0)
    top = rows[0]
    for row in rows:
        top = torch.maximum(top, row)
    exps = [torch.exp(row - top) for row in rows]
    return torch.stack([e / sum(exps) for e in exps]).movedim(0, dim)


@right("softmax")
def _(scores, dim=-1):
    # weight i is 1 / sum_j exp(s_j - s_i)
    s = scores.transpose(dim, -1)
    gaps = s.unsqueeze(-2) - s.unsqueeze(-1)
    return gaps.exp().sum(-1).reciprocal().transpose(dim, -1)


# --- Chapter 3: scaled_dot_product_attention ------------------------------------------------------


@wrong("scaled_dot_product_attention", "does not scale", "D-NO-SCALE")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is None:
        w = scores.softmax(-1)
    else:
        w = scores.masked_fill(~mask, -1e30).softmax(-1) * mask
    return w @ value, w


@wrong("scaled_dot_product_attention", "divides by the width, not by its root", "D-SCALE-DK")
def _(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-1, -2)) / d_k
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    p_attn = torch.nan_to_num(F.softmax(scores, dim=-1))
    return torch.matmul(p_attn, value), p_attn


@wrong("scaled_dot_product_attention", "normalizes over the queries", "D-SOFTMAX-DIM")
def _(query, key, value, mask=None):
    logits = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(key.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, -1e30)
    A = torch.softmax(logits, dim=-2)
    if mask is not None:
        A = A * mask
    return torch.einsum("...qk,...kv->...qv", A, value), A


@wrong("scaled_dot_product_attention", "hides where the mask says True", "M-POLARITY")
def _(query, key, value, mask=None):
    attn_bias = torch.zeros(query.size(-2), key.size(-2), dtype=query.dtype)
    if mask is not None:
        attn_bias = attn_bias.masked_fill(mask, -1e30)
    w = (query @ key.mT * query.size(-1) ** -0.5 + attn_bias).softmax(dim=-1)
    if mask is not None:
        w = w * ~mask
    return w @ value, w


@wrong(
    "scaled_dot_product_attention", "makes NaN of a query that may attend to nothing", "M-DEAD-ROW"
)
def _(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value), p_attn


@wrong(
    "scaled_dot_product_attention",
    "takes the mean of the values where nothing may be attended to",
    "M-DEAD-ROW-UNIFORM",
)
def _(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value), p_attn


@wrong(
    "scaled_dot_product_attention", "scales by the number of keys, not by the width", "D-SCALE-KEYS"
)
def _(query, key, value, mask=None):
    n_keys = key.shape[-2]
    s = query @ key.mT / n_keys**0.5
    ok = torch.ones_like(s, dtype=torch.bool) if mask is None else mask.expand_as(s)
    e = torch.exp(s - s.masked_fill(~ok, -1e30).amax(-1, keepdim=True)).masked_fill(~ok, 0)
    w = e / e.sum(-1, keepdim=True).clamp(min=1e-20)
    return w @ value, w


@wrong(
    "scaled_dot_product_attention",
    "forgets the root; zeroes hidden weights after the softmax",
    ("D-SCALE-DK",),
    ("M-AFTER-SOFTMAX",),
)
def _(query, key, value, mask=None):
    att = (query @ key.transpose(-1, -2)) / query.shape[-1]
    att = F.softmax(att, -1)
    if mask is not None:
        att = att * mask.float()
    return att @ value, att


@wrong(
    "scaled_dot_product_attention",
    "does not scale; NaN where everything is hidden",
    ("D-NO-SCALE",),
    ("M-DEAD-ROW",),
)
def _(query, key, value, mask=None):
    energy = torch.einsum("...qd,...kd->...qk", [query, key])
    if mask is not None:
        energy = energy.masked_fill(~mask, float("-inf"))
    attention = torch.softmax(energy, dim=-1)
    return torch.einsum("...qk,...kv->...qv", [attention, value]), attention


@wrong(
    "scaled_dot_product_attention",
    "hides where the mask says True; normalizes over the queries",
    ("M-POLARITY",),
    ("D-SOFTMAX-DIM",),
)
def _(query, key, value, mask=None):
    z = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        z = z.masked_fill(mask, -1e9)
    w = z.softmax(-2)
    return w @ value, w


@wrong(
    "scaled_dot_product_attention",
    "divides the weights, not the scores; adds the mask as 0 and 1",
    ("D-SCALE-AFTER",),
    ("M-ADD-BOOL",),
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1) / math.sqrt(query.shape[-1])
    return weights @ value, weights


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    p_attn = scores.softmax(dim=-1)
    if mask is not None:
        p_attn = torch.where(mask, p_attn, torch.zeros_like(p_attn))
    return torch.matmul(p_attn, value), p_attn


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    root = query.shape[-1] ** 0.25
    s = torch.einsum("...id,...jd->...ij", query / root, key / root)
    bias = torch.zeros_like(s)
    if mask is not None:
        bias = bias.masked_fill(mask.logical_not(), -torch.inf)
    s = s + bias
    top = s.amax(-1, keepdim=True)
    e = torch.exp(s - torch.where(top.isinf(), 0.0, top))
    norm = e.sum(-1, keepdim=True)
    w = e / torch.where(norm == 0, 1.0, norm)
    return torch.einsum("...ij,...jc->...ic", w, value), w


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    outs, ws = [], []
    for i in range(query.shape[-2]):
        qi = query[..., i : i + 1, :]
        s = (qi * key).sum(-1) / query.shape[-1] ** 0.5
        if mask is not None:
            m = mask[..., i if mask.shape[-2] > 1 else 0, :] if mask.ndim > 1 else mask
            s = s.masked_fill(~m, torch.finfo(s.dtype).min)
        w = torch.softmax(s, dim=-1)
        if mask is not None:
            w = w.masked_fill(~m, 0)
        ws.append(w)
        outs.append((w.unsqueeze(-1) * value).sum(-2))
    return torch.stack(outs, -2), torch.stack(ws, -2)


# --- Chapter 3: score_variance --------------------------------------------------------------------


@wrong("score_variance", "divides by d, not by its root", "V-SCALE-DK")
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    s = (q * k).sum(1)
    if scaled:
        s = s / d
    return s.var().item()


@wrong("score_variance", "returns the standard deviation", "V-STANDARD-DEVIATION")
def _(d, samples, scaled):
    q = torch.randn(samples, d)
    k = torch.randn(samples, d)
    dots = torch.einsum("sd,sd->s", q, k)
    return float((dots / math.sqrt(d) if scaled else dots).std())


@wrong("score_variance", "draws uniform numbers, not normal ones", "V-UNIFORM")
def _(d, samples, scaled):
    q, k = torch.rand(2, samples, d)
    scores = (q * k).sum(-1)
    if scaled:
        scores = scores / d**0.5
    return scores.var().item()


@wrong("score_variance", "scales when it is told not to", "V-INVERTED")
def _(d, samples, scaled):
    a = np.random.randn(samples, d)
    b = np.random.randn(samples, d)
    dot = (a * b).sum(axis=1)
    return float(np.var(dot if scaled else dot / np.sqrt(d)))


@wrong("score_variance", "compares every vector with itself", "V-ONE-VECTOR")
def _(d, samples, scaled):
    x = torch.randn(samples, d)
    scores = (x * x).sum(-1)
    return (scores / math.sqrt(d)).var().item() if scaled else scores.var().item()


@wrong("score_variance", "asks all keys with one and the same query", "V-ONE-QUERY")
def _(d, samples, scaled):
    query = torch.randn(d)
    keys = torch.randn(samples, d)
    s = keys @ query
    return (s / (math.sqrt(d) if scaled else 1)).var().item()


@wrong(
    "score_variance", "never adds the products up, so each is a score of its own", "V-NOT-SUMMED"
)
def _(d, samples, scaled):
    prod = torch.randn(samples, d) * torch.randn(samples, d)
    if scaled:
        prod = prod / d**0.5
    return prod.var().item()


@wrong(
    "score_variance",
    "divides by d, not by the root; returns the standard deviation",
    ("V-SCALE-DK",),
    ("V-STANDARD-DEVIATION",),
)
def _(d, samples, scaled):
    vals = []
    for _ in range(samples):
        s = torch.dot(torch.randn(d), torch.randn(d)).item()
        vals.append(s / d if scaled else s)
    return float(np.std(vals))


@wrong(
    "score_variance",
    "draws uniform numbers; divides the variance by the root of d",
    ("V-UNIFORM",),
    ("V-SCALES-THE-VARIANCE",),
)
def _(d, samples, scaled):
    scores = (torch.rand(samples, d) * torch.rand(samples, d)).sum(1)
    v = scores.var()
    return float(v / math.sqrt(d)) if scaled else float(v)


@wrong("score_variance", "ignores scaled; returns a tensor", ("V-IGNORES-SCALED",), ("V-TENSOR",))
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    return torch.var(torch.sum(q * k, dim=1))


@wrong(
    "score_variance",
    "compares vectors with themselves; scales the wrong way round",
    ("V-ONE-VECTOR",),
    ("V-INVERTED",),
)
def _(d, samples, scaled):
    q = torch.normal(0.0, 1.0, (samples, d))
    s = (q**2).sum(-1)
    return s.var().item() if scaled else (s / d**0.5).var().item()


@right("score_variance")
def _(d, samples, scaled):
    q = torch.randn(samples, 1, d)
    k = torch.randn(samples, d, 1)
    s = torch.bmm(q, k).flatten()
    return s.var().item() / (d if scaled else 1)


@right("score_variance")
def _(d, samples, scaled):
    rng = np.random.default_rng()
    dots = np.einsum("ij,ij->i", *rng.standard_normal((2, samples, d)))
    return float(np.var(dots / np.sqrt(d) if scaled else dots, ddof=1))


@right("score_variance")
def _(d, samples, scaled):
    scores = [float(torch.randn(d) @ torch.randn(d)) for _ in range(samples)]
    if scaled:
        scores = [s / d**0.5 for s in scores]
    mean = sum(scores) / samples
    return sum((s - mean) ** 2 for s in scores) / (samples - 1)


# --- Chapter 3: hidden_scale ----------------------------------------------------------------------


@wrong("hidden_scale", "returns 1/c", "C-INVERSE")
def _(scores, weights):
    num = den = 0.0
    for s, w in zip(scores.double(), weights.double()):
        s, w = s[w > 0], w[w > 0]
        if len(w) > 1:
            p = w**2 / (w**2).sum()
            x, y = s - (p * s).sum(), w.log() - (p * w.log()).sum()
            num, den = num + (w**2 * x * y).sum(), den + (w**2 * x * x).sum()
    return (num / den).item()


@wrong("hidden_scale", "does not leave the masked keys out, so log 0 spoils it", "C-LOG-ZERO")
def _(scores, weights):
    x = scores - scores.mean(-1, keepdim=True)
    y = weights.log()
    y = y - y.mean(-1, keepdim=True)
    return ((x * x).sum() / (x * y).sum()).item()


@wrong(
    "hidden_scale",
    "believes that log w is s / c and forgets the row's normalizer",
    "C-NO-NORMALIZER",
)
def _(scores, weights):
    on = weights > 0
    s, lw = scores[on], torch.log(weights[on])
    return ((s * s).sum() / (s * lw).sum()).item()


@wrong("hidden_scale", "returns the root of the factor, as if it had been d", "C-ROOT")
def _(scores, weights):
    keep = weights > 0
    best, best_c = float("inf"), 1.0
    for c in np.geomspace(0.05, 50, 2000):
        z = (scores.double() / c).masked_fill(~keep, -1e30)
        err = ((z.softmax(-1) - weights) ** 2).sum().item()
        if err < best:
            best, best_c = err, float(c)
    return best_c**0.5


@wrong("hidden_scale", "tries whole numbers only", "C-COARSE-GRID")
def _(scores, weights):
    def error(c):
        z = (scores / c).masked_fill(weights == 0, -1e30)
        return ((torch.softmax(z, -1) - weights) ** 2).sum().item()

    return float(min(range(1, 101), key=error))


@wrong(
    "hidden_scale",
    "averages the quotients of all pairs, where nearly equal scores spoil it",
    "C-MEAN-OF-PAIRS",
)
def _(scores, weights):
    cs = []
    for s, w in zip(scores.tolist(), weights.tolist()):
        for i in range(len(s)):
            for j in range(i):
                if w[i] > 0 and w[j] > 0 and w[i] != w[j]:
                    cs.append((s[i] - s[j]) / math.log(w[i] / w[j]))
    return sum(cs) / len(cs)


@wrong("hidden_scale", "takes logarithms to base ten", "C-LOG-BASE")
def _(scores, weights):
    slopes, trust = 0.0, 0.0
    for s, w in zip(scores, weights):
        seen = w > 0
        s, w = s[seen].double(), w[seen].double()
        t = w**2 / (w**2).sum()
        dx = s - (t * s).sum()
        dy = w.log10() - (t * w.log10()).sum()
        slopes += (w**2 * dx * dy).sum()
        trust += (w**2 * dx**2).sum()
    return float(trust / slopes)


@wrong("hidden_scale", "forgets the normalizer; returns 1/c", ("C-NO-NORMALIZER",), ("C-INVERSE",))
def _(scores, weights):
    m = weights > 0
    return (weights[m].log() / scores[m].clamp(min=0.01)).mean().item()


@wrong(
    "hidden_scale",
    "takes logarithms to base two; returns the square",
    ("C-LOG-BASE",),
    ("C-SQUARED",),
)
def _(scores, weights):
    a = b = 0.0
    for s, w in zip(scores.double(), weights.double()):
        ok = w > 0
        s, w = s[ok], w[ok]
        t = w**2 / (w**2).sum()
        dx, dy = s - (t * s).sum(), torch.log2(w) - (t * torch.log2(w)).sum()
        a, b = a + (w**2 * dx * dx).sum(), b + (w**2 * dx * dy).sum()
    return float(a / b) ** 2


@wrong("hidden_scale", "masked keys stay in; looks for whole numbers only", ("C-LOG-ZERO",), ())
def _(scores, weights):
    cands = torch.arange(1, 100)
    errs = [((scores / c).softmax(-1) - weights).abs().sum() for c in cands]
    return float(cands[int(torch.stack(errs).argmin())])


@wrong("hidden_scale", "uses only two keys of the first row; returns a tensor", (), ("C-TENSOR",))
def _(scores, weights):
    return (scores[0, 0] - scores[0, 1]) / (weights[0, 0] / weights[0, 1]).log()


@right("hidden_scale")
def _(scores, weights):
    hidden = weights == 0

    def off(c):
        w = torch.softmax((scores.double() / c).masked_fill(hidden, -1e30), -1)
        return float((w - weights.double()).square().sum())

    cs = np.geomspace(1e-3, 1e3, 4001)
    errors = [off(c) for c in cs]
    return float(cs[int(np.argmin(errors))])


@right("hidden_scale")
def _(scores, weights):
    # weighted least squares: rows have intercepts of their own, one common slope
    S, W = scores.double().numpy(), weights.double().numpy()
    rows, y = [], []
    for i in range(S.shape[0]):
        for j in range(S.shape[1]):
            if W[i, j] > 0:
                one_hot = np.zeros(S.shape[0])
                one_hot[i] = 1
                rows.append(np.r_[S[i, j], one_hot] * W[i, j])
                y.append(np.log(W[i, j]) * W[i, j])
    solution, *_ = np.linalg.lstsq(np.array(rows), np.array(y), rcond=None)
    return float(1 / solution[0])


@right("hidden_scale")
def _(scores, weights):
    s, w = scores.double(), weights.double()
    seen = w > 0
    beta = torch.zeros((), dtype=torch.float64)
    for _ in range(200):  # Newton's method for the log likelihood of 1/c
        p = (s * beta).masked_fill(~seen, -1e30).softmax(-1)
        mean = (p * s).sum(-1, keepdim=True)
        slope = (w * s).sum() - (w.sum(-1, keepdim=True) * p * s).sum()
        bend = (w.sum(-1, keepdim=True) * p * (s - mean) ** 2).sum()
        beta = beta + (slope / bend.clamp(min=1e-12)).clamp(-1, 1)
    return 1 / beta.item()


# --- Chapter 4: self_attention --------------------------------------------------------------------


@wrong("self_attention", "does not scale", "D-NO-SCALE")
def _(x, W_query, W_key, W_value):
    Q, K, V = x @ W_query, x @ W_key, x @ W_value
    A = torch.softmax(Q @ K.transpose(1, 2), dim=-1)
    return A @ V, A


@wrong("self_attention", "averages the words themselves, not their values", "C-RAW-VALUES")
def _(x, W_query, W_key, W_value):
    q, k = x @ W_query, x @ W_key
    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return w @ x, w


@wrong("self_attention", "scales by the width of a word, not of a query", "D-SCALE-DMODEL")
def _(x, W_query, W_key, W_value):
    b, n, m = x.shape
    q = torch.einsum("bnm,md->bnd", x, W_query)
    k = torch.einsum("bnm,md->bnd", x, W_key)
    v = torch.einsum("bnm,mv->bnv", x, W_value)
    alpha = F.softmax(torch.einsum("bid,bjd->bij", q, k) / m**0.5, dim=-1)
    return torch.einsum("bij,bjv->biv", alpha, v), alpha


@wrong("self_attention", "normalizes the columns: over the words that ask", "D-SOFTMAX-DIM")
def _(x, W_query, W_key, W_value):
    queries, keys, values = x.matmul(W_query), x.matmul(W_key), x.matmul(W_value)
    scores = queries.matmul(keys.transpose(-2, -1)) / keys.size(-1) ** 0.5
    weights = F.softmax(scores, dim=1)
    return weights.matmul(values), weights


@wrong("self_attention", "projects keys with the queries' matrix", "A-TIED-PROJ")
def _(x, W_query, W_key, W_value):
    q = x @ W_query
    k = x @ W_query
    v = x @ W_value
    w = torch.softmax(q @ k.mT / math.sqrt(W_query.shape[1]), -1)
    return w @ v, w


@wrong("self_attention", "hides later words, though nothing is to be hidden", "C-CAUSAL")
def _(x, W_query, W_key, W_value):
    B, T, C = x.shape
    k, q, v = x @ W_key, x @ W_query, x @ W_value
    wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
    tril = torch.tril(torch.ones(T, T))
    wei = wei.masked_fill(tril == 0, float("-inf"))
    wei = F.softmax(wei, dim=-1)
    return wei @ v, wei


@wrong(
    "self_attention", "lets keys ask the queries: the scores are turned around", "C-ROLES-SWAPPED"
)
def _(x, W_query, W_key, W_value):
    q, k, v = (x @ W for W in (W_query, W_key, W_value))
    w = torch.softmax(k @ q.mT / math.sqrt(q.shape[-1]), dim=-1)
    return w @ v, w


@wrong(
    "self_attention",
    "does not scale; normalizes over the words that ask",
    (
        "D-NO-SCALE",
        "C-NO-SCALE-AND-COLUMNS",
    ),
    (
        "D-SOFTMAX-DIM",
        "C-NO-SCALE-AND-COLUMNS",
    ),
)
def _(x, W_query, W_key, W_value):
    s = torch.bmm(x @ W_query, (x @ W_key).permute(0, 2, 1))
    w = s.softmax(dim=-2)
    return torch.bmm(w, x @ W_value), w


@wrong(
    "self_attention",
    "divides by d without the root; hides later words",
    ("D-SCALE-DK",),
    ("C-CAUSAL",),
)
def _(x, W_query, W_key, W_value):
    n = x.shape[1]
    s = (x @ W_query) @ (x @ W_key).mT / W_key.shape[1]
    s = s + torch.full((n, n), -1e9).triu(1)
    w = torch.softmax(s, -1)
    return w @ (x @ W_value), w


@wrong(
    "self_attention",
    "averages the words, not the values; turns queries and keys around",
    ("C-RAW-VALUES",),
    ("C-ROLES-SWAPPED",),
)
def _(x, W_query, W_key, W_value):
    q, k = x @ W_query, x @ W_key
    scores = torch.einsum("bjd,bid->bij", q, k) / math.sqrt(q.size(-1))
    w = F.softmax(scores, dim=-1)
    return torch.einsum("bij,bjm->bim", w, x), w


@wrong(
    "self_attention", "does not scale; gives only the output", ("D-NO-SCALE",), ("D-OUTPUT-ONLY",)
)
def _(x, W_query, W_key, W_value):
    return ((x @ W_query) @ (x @ W_key).mT).softmax(dim=2) @ (x @ W_value)


@right("self_attention")
def _(x, W_query, W_key, W_value):
    d = W_query.shape[1]
    M = W_query @ W_key.T / math.sqrt(d)  # one matrix for both
    scores = torch.einsum("bim,mn,bjn->bij", x, M, x)
    w = scores.softmax(dim=-1)
    return w @ x @ W_value, w


@right("self_attention")
def _(x, W_query, W_key, W_value):
    outputs, tables = [], []
    for sentence in x:
        q, k, v = sentence @ W_query, sentence @ W_key, sentence @ W_value
        rows = []
        for word in q:
            e = (k @ word / len(word) ** 0.5).sub_((k @ word / len(word) ** 0.5).max()).exp()
            rows.append(e / e.sum())
        tables.append(torch.stack(rows))
        outputs.append(tables[-1] @ v)
    return torch.stack(outputs), torch.stack(tables)


@right("self_attention")
def _(x, W_query, W_key, W_value):
    d, v = W_query.size(1), W_value.size(1)
    qkv = torch.cat([W_query, W_key, W_value], dim=1)
    Q, K, V = (x @ qkv).split([d, d, v], dim=-1)
    S = torch.baddbmm(torch.zeros_like(x[:, :, :1]), Q, K.transpose(1, 2), alpha=d**-0.5)
    P = nn.functional.softmax(S, dim=2)
    return torch.bmm(P, V), P


# --- Chapter 4: is_permutation_equivariant --------------------------------------------------------


@wrong(
    "is_permutation_equivariant", "tests invariance: expects the very same output", "C-INVARIANT"
)
def _(layer, x):
    for _ in range(5):
        p = torch.randperm(x.shape[1])
        if not torch.allclose(layer(x[:, p]), layer(x), atol=1e-4):
            return False
    return True


@wrong(
    "is_permutation_equivariant", "compares exactly, so that rounding looks like order", "C-EXACT"
)
def _(layer, x):
    y = layer(x)
    for _ in range(5):
        perm = torch.randperm(x.size(1))
        if not torch.equal(layer(x[:, perm]), y[:, perm]):
            return False
    return True


@wrong("is_permutation_equivariant", "tries only the order from back to front", "C-ONLY-REVERSED")
def _(layer, x):
    flipped = layer(torch.flip(x, dims=[1]))
    return torch.allclose(flipped, torch.flip(layer(x), dims=[1]), atol=1e-4)


@wrong("is_permutation_equivariant", "shuffles the sentences, not the words", "C-SENTENCES-MOVED")
def _(layer, x):
    out = layer(x)
    for _ in range(4):
        order = torch.randperm(x.shape[0])
        if not torch.allclose(layer(x[order]), out[order], atol=1e-4):
            return False
    return True


@wrong("is_permutation_equivariant", "compares only the sums over the words", "C-SUMS-COMPARED")
def _(layer, x):
    base = layer(x).sum(dim=1)
    for _ in range(6):
        p = torch.randperm(x.shape[1])
        if not torch.allclose(layer(x[:, p]).sum(dim=1), base, atol=1e-3):
            return False
    return True


@wrong("is_permutation_equivariant", "reseeds torch's generator for everybody", "C-SEEDED")
def _(layer, x):
    torch.manual_seed(42)
    y = layer(x)
    ps = [torch.randperm(x.shape[1]) for _ in range(8)]
    return all(torch.allclose(layer(x[:, p]), y[:, p], atol=1e-4) for p in ps)


@wrong(
    "is_permutation_equivariant",
    "only asks whether the mean difference is small",
    "C-LOOSE",
    "C-SUMS-COMPARED",
)
def _(layer, x):
    y = layer(x)
    diffs = []
    for _ in range(5):
        p = torch.randperm(x.size(1))
        diffs.append((layer(x[:, p]) - y[:, p]).mean())
    return bool(torch.stack(diffs).abs().max() < 0.5)


@wrong(
    "is_permutation_equivariant",
    "tests invariance; compares exactly",
    ("C-INVARIANT",),
    ("C-EXACT",),
)
def _(layer, x):
    idx = torch.randperm(x.shape[1])
    return bool((layer(x[:, idx]) == layer(x)).all())


@wrong(
    "is_permutation_equivariant",
    "only turns the sentence round; reseeds the generator for everybody",
    ("C-ONLY-REVERSED",),
    ("C-SEEDED",),
)
def _(layer, x):
    torch.manual_seed(0)
    a = layer(x.flip(1))
    b = layer(x).flip(1)
    return torch.allclose(a, b, atol=1e-5)


@wrong(
    "is_permutation_equivariant",
    "shuffles sentences; returns a tensor, not a bool",
    ("C-SENTENCES-MOVED",),
    ("C-TENSOR-BOOL",),
)
def _(layer, x):
    i = torch.randperm(len(x))
    return ((layer(x[i]) - layer(x)[i]).abs() < 1e-4).all()


@wrong(
    "is_permutation_equivariant",
    "shuffles the features; compares exactly",
    ("C-FEATURES-MOVED",),
    ("C-EXACT",),
)
def _(layer, x):
    f = torch.randperm(x.shape[-1])
    y = layer(x)
    out = layer(x[..., f])
    return torch.equal(out, y[..., f]) if y.shape == x.shape else torch.equal(out, y)


@right("is_permutation_equivariant")
def _(layer, x):
    y = layer(x)
    n = x.shape[1]
    for i in range(n - 1):  # every swap of neighbors; all orders are chains of them
        order = torch.arange(n)
        order[[i, i + 1]] = order[[i + 1, i]]
        if not torch.allclose(layer(x[:, order]), y[:, order], rtol=1e-4, atol=1e-4):
            return False
    return True


@right("is_permutation_equivariant")
def _(layer, x):
    gen = torch.Generator().manual_seed(7)  # of its own
    y = layer(x)
    for _ in range(20):
        p = torch.randperm(x.shape[1], generator=gen)
        back = torch.argsort(p)
        again = layer(x[:, p])[:, back]
        if (again - y).abs().max().item() > 1e-4 * (1 + y.abs().max().item()):
            return False
    return True


@right("is_permutation_equivariant")
def _(layer, x):
    import random

    base = layer(x)
    results = []
    for _ in range(12):
        order = random.sample(range(x.size(1)), x.size(1))
        P = torch.eye(x.size(1), dtype=x.dtype)[order]
        moved = layer(torch.einsum("ij,bjm->bim", P, x))
        wanted = torch.einsum("ij,bj...->bi...", P.to(base.dtype), base)
        results.append(torch.allclose(moved, wanted, rtol=1e-3, atol=1e-4))
    return all(results)


# --- Chapter 4: sinusoidal_positions --------------------------------------------------------------


@wrong("sinusoidal_positions", "puts all sines first and all cosines behind them", "C-HALVES")
def _(length, width):
    pos = torch.arange(length)[:, None].float()
    i = torch.arange(0, width, 2).float()
    angle = pos / 10000 ** (i / width)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]


@wrong("sinusoidal_positions", "counts positions from 1", "C-FROM-ONE")
def _(length, width):
    pe = torch.zeros(length, width)
    position = torch.arange(1, length + 1).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)[:, : width // 2]
    return pe


@wrong(
    "sinusoidal_positions",
    "gives every feature a frequency of its own, the cosine another one",
    "C-FREQ-EACH",
    "C-COSINE-NEXT",
)
def _(length, width):
    table = torch.zeros(length, width)
    for p in range(length):
        for j in range(width):
            a = p / 10000 ** (j / width)
            table[p, j] = math.sin(a) if j % 2 == 0 else math.cos(a)
    return table


@wrong("sinusoidal_positions", "breaks at an odd width", "P-ODD")
def _(length, width):
    pe = torch.zeros(length, width)
    position = torch.arange(0, length).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe


@wrong(
    "sinusoidal_positions",
    "makes hands faster and faster: multiplies by the power of 10,000",
    "C-SPEEDS-RISE",
)
def _(length, width):
    p = np.arange(length)[:, None]
    rates = 10000.0 ** (np.arange(0, width, 2) / width)
    out = np.zeros((length, width), dtype=np.float32)
    out[:, ::2] = np.sin(p * rates)
    out[:, 1::2] = np.cos(p * rates)[:, : width // 2]
    return torch.from_numpy(out)


@wrong("sinusoidal_positions", "begins every pair with the cosine", "C-COSINE-FIRST")
def _(length, width):
    pos = torch.arange(length, dtype=torch.float64).unsqueeze(-1)
    freq = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    pair = torch.stack((torch.cos(pos * freq), torch.sin(pos * freq)), dim=-1)
    return pair.reshape(length, -1)[:, :width].float()


@wrong("sinusoidal_positions", "counts with 1000 in place of 10,000", "C-BASE")
def _(length, width):
    hands = [1000 ** (2 * i / width) for i in range((width + 1) // 2)]
    rows = []
    for p in range(length):
        row = []
        for h in hands:
            row += [math.sin(p / h), math.cos(p / h)]
        rows.append(row[:width])
    return torch.tensor(rows)


@wrong(
    "sinusoidal_positions",
    "counts positions from 1; sines first, then cosines",
    ("C-FROM-ONE",),
    ("C-HALVES",),
)
def _(length, width):
    pos = torch.arange(1, length + 1, dtype=torch.float32)
    inv = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
    ang = torch.outer(pos, inv)
    return torch.hstack([ang.sin(), ang.cos()])[:, :width]


@wrong(
    "sinusoidal_positions",
    "forgets the 2 in the exponent; begins with the cosine",
    ("C-EXPONENT-HALVED",),
    ("C-COSINE-FIRST",),
)
def _(length, width):
    half = (width + 1) // 2
    angle = torch.arange(length).unsqueeze(1) / 10000 ** (torch.arange(half) / width)
    pe = torch.empty(length, 2 * half)
    pe[:, 0::2] = angle.cos()
    pe[:, 1::2] = angle.sin()
    return pe[:, :width]


@wrong(
    "sinusoidal_positions",
    "rounds an odd width up in the exponent; returns float64",
    ("C-ODD-ROUNDED-UP",),
    ("C-FLOAT64-TABLE",),
)
def _(length, width):
    w = width + width % 2
    p = torch.arange(length, dtype=torch.float64)[:, None]
    a = p / 10000.0 ** (torch.arange(0, w, 2, dtype=torch.float64) / w)
    return torch.stack([a.sin(), a.cos()], 2).flatten(1)[:, :width]


@wrong(
    "sinusoidal_positions",
    "lets hands run with degrees, not radians; turns the table around",
    (),
    ("C-TURNED",),
)
def _(length, width):
    p = torch.arange(length).float()
    a = torch.deg2rad(p[None] / 10000 ** (torch.arange(0, width, 2)[:, None] / width))
    return einops.rearrange([a.sin(), a.cos()], "two i p -> (i two) p")[:width]


@right("sinusoidal_positions")
def _(length, width):
    pe = torch.zeros(length, width)
    position = torch.arange(0, length, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term[: width // 2])
    return pe


@right("sinusoidal_positions")
def _(length, width):
    def cell(p, j):
        angle = p / 10_000 ** (2 * (j // 2) / width)
        return math.cos(angle) if j % 2 else math.sin(angle)

    flat = [cell(p, j) for p in range(length) for j in range(width)]
    return torch.tensor(flat, dtype=torch.float32).view(length, width)


@right("sinusoidal_positions")
def _(length, width):
    j = np.arange(width)
    phase = (j % 2) * np.pi / 2  # a cosine is a sine, a quarter turn ahead
    angle = np.arange(length)[:, None] / 10000 ** ((j - j % 2) / width)
    return torch.tensor(np.sin(angle + phase), dtype=torch.float32)


# --- Chapter 5: split_heads -----------------------------------------------------------------------


@wrong("split_heads", "reshapes right away, which mixes words", "H-VIEW-SPLIT")
def _(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, num_heads, n, m // num_heads)


@wrong("split_heads", "gives every head each h-th number, not a piece in one", "H-FUSED-LAYOUT")
def _(x, num_heads):
    return einops.rearrange(x, "b n (d h) -> b h n d", h=num_heads)


@wrong("split_heads", "leaves the heads behind the words", "C-SPLIT-NO-SWAP")
def _(x, num_heads):
    return x.unflatten(-1, (num_heads, -1))


@wrong("split_heads", "takes num_heads for the width of a head", "C-SPLIT-WIDTH")
def _(x, num_heads):
    b, n, m = x.shape
    return x.view(b, n, m // num_heads, num_heads).transpose(1, 2)


@wrong("split_heads", "gives every head the whole vector", "C-SPLIT-WHOLE")
def _(x, num_heads):
    return x.unsqueeze(1).repeat(1, num_heads, 1, 1)


@wrong("split_heads", "swaps the last two axes, not the middle ones", "C-SPLIT-TURNED")
def _(x, num_heads):
    B, T, C = x.size()
    return x.view(B, T, num_heads, C // num_heads).permute(0, 2, 3, 1)


@wrong("split_heads", "cuts the words, not the vector of a word", "H-VIEW-SPLIT")
def _(x, num_heads):
    parts = x.flatten(1).chunk(num_heads, dim=1)
    return torch.stack(parts, dim=1).reshape(x.shape[0], num_heads, x.shape[1], -1)


@wrong(
    "split_heads",
    "interleaves the heads' numbers; leaves heads behind the words",
    ("H-FUSED-LAYOUT",),
    ("C-SPLIT-NO-SWAP",),
)
def _(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, n, m // num_heads, num_heads).transpose(-1, -2)


@wrong(
    "split_heads",
    "gives every head the whole vector; heads before the batch",
    ("C-SPLIT-WHOLE",),
    ("C-SPLIT-HEADS-FIRST",),
)
def _(x, num_heads):
    return torch.stack([x] * num_heads)


@wrong(
    "split_heads",
    "reshapes without a swap; takes num_heads for the width",
    ("H-VIEW-SPLIT",),
    ("C-SPLIT-WIDTH",),
)
def _(x, num_heads):
    bs, seq, width = x.shape
    return x.contiguous().view(bs, width // num_heads, seq, num_heads)


@wrong(
    "split_heads",
    "heads come in reverse order; the words stand last",
    ("C-SPLIT-REVERSED",),
    ("C-SPLIT-TURNED",),
)
def _(x, num_heads):
    pieces = torch.chunk(x, num_heads, dim=-1)[::-1]
    return torch.stack(pieces, dim=1).mT


@right("split_heads")
def _(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


@right("split_heads")
def _(x, num_heads):
    b, n, m = x.shape
    d = m // num_heads
    out = x.new_empty(b, num_heads, n, d)
    for h in range(num_heads):
        out[:, h] = x[:, :, h * d : (h + 1) * d]
    return out


@right("split_heads")
def _(x, num_heads):
    return x.mT.unflatten(1, (num_heads, x.shape[-1] // num_heads)).mT


# --- Chapter 5: merge_heads -----------------------------------------------------------------------


@wrong("merge_heads", "reshapes without swapping heads and words", "H-VIEW-MERGE")
def _(x):
    b, h, n, d = x.shape
    return x.reshape(b, n, h * d)


@wrong("merge_heads", "interleaves the numbers of the heads", "H-FUSED-LAYOUT")
def _(x):
    return einops.rearrange(x, "b h n d -> b n (d h)")


@wrong("merge_heads", "averages the heads", "C-MERGE-MEAN")
def _(x):
    return x.mean(dim=1)


@wrong("merge_heads", "puts the heads one below the other, along the words", "C-MERGE-BELOW")
def _(x):
    return torch.cat(list(x.unbind(1)), dim=1)


@wrong("merge_heads", "swaps the words with the width in place of the heads", "C-MERGE-WRONG-SWAP")
def _(x):
    b, h, n, d = x.shape
    return x.transpose(-1, -2).reshape(b, n, h * d)


@wrong("merge_heads", "adds the heads up", "C-MERGE-SUM")
def _(x):
    return torch.einsum("bhnd->bnd", x)


@wrong("merge_heads", "swaps the axes but does not join them", "C-MERGE-HALF-WAY")
def _(x):
    return x.permute(0, 2, 1, 3).contiguous()


@wrong(
    "merge_heads",
    "interleaves the heads; last head first",
    ("H-FUSED-LAYOUT",),
    ("C-MERGE-REVERSED",),
)
def _(x):
    b, h, n, d = x.shape
    return x.flip(1).permute(0, 2, 3, 1).reshape(b, n, d * h)


@wrong(
    "merge_heads",
    "reshapes without a swap; leaves the heads apart",
    ("H-VIEW-MERGE",),
    ("C-MERGE-HALF-WAY",),
)
def _(x):
    b, h, n, d = x.size()
    return x.contiguous().view(b, n, h, d)


@wrong("merge_heads", "joins batch and heads; adds an axis in front", (), ())
def _(x):
    b, h, n, d = x.shape
    return x.reshape(b * h, n, d)[None]


@wrong(
    "merge_heads", "takes only the largest head; repeats it to the full width", ("C-MERGE-MAX",), ()
)
def _(x):
    return x.amax(1).repeat(1, 1, x.shape[1])


@right("merge_heads")
def _(x):
    return torch.cat(x.unbind(dim=1), dim=-1)


@right("merge_heads")
def _(x):
    b, h, n, d = x.shape
    words = [torch.cat([x[:, i, t] for i in range(h)], dim=1) for t in range(n)]
    return torch.stack(words, dim=1)


@right("merge_heads")
def _(x):
    return x.swapaxes(1, 2).flatten(start_dim=2)


# --- Chapter 5: MultiHeadAttention ----------------------------------------------------------------


@wrong("MultiHeadAttention", "scales by the width of the model, not of a head", "D-SCALE-DMODEL")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.m, self.h = model_width, num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.h)
        k = split_heads(self.k_proj(key), self.h)
        v = split_heads(self.v_proj(value), self.h)
        scores = q @ k.mT / math.sqrt(self.m)
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask.unsqueeze(1)
            scores = scores.masked_fill(~mask, -1e9)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask
        return self.out_proj(merge_heads(self.drop(weights) @ v)), weights


@wrong("MultiHeadAttention", "forgets the last projection", "H-NO-WO")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(model_width, model_width) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            split_heads(proj(x), self.num_heads)
            for proj, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]
        _, weights = attention(q, k, v, mask)
        return merge_heads(self.dropout(weights) @ v), weights


@wrong("MultiHeadAttention", "merges by view without swapping heads and words", "H-VIEW-MERGE")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        assert model_width % num_heads == 0
        self.d_k = model_width // num_heads
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        q, k, v = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip((self.q_proj, self.k_proj, self.v_proj), (query, key, value))
        ]
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        p = scores.softmax(dim=-1)
        if mask is not None:
            p = p.masked_fill(~mask, 0.0)
        x = torch.matmul(self.dropout(p), v)
        x = x.contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.out_proj(x), p


@wrong("MultiHeadAttention", "makes NaN of a query from which everything is hidden", "M-DEAD-ROW")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.head_dim = model_width // num_heads
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        b, q_len, m = query.shape
        q = self.q_proj(query).view(b, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(key).view(b, -1, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(value).view(b, -1, self.num_heads, self.head_dim).transpose(1, 2)
        attn = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(attn, dim=-1)
        out = self.attn_dropout(attn) @ v
        return self.out_proj(out.transpose(1, 2).reshape(b, q_len, m)), attn


@wrong("MultiHeadAttention", "returns the weights after dropout", "C-DROPOUT-RETURNED")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = einops.rearrange(self.q_proj(query), "b q (h d) -> b h q d", h=self.h)
        k = einops.rearrange(self.k_proj(key), "b k (h d) -> b h k d", h=self.h)
        v = einops.rearrange(self.v_proj(value), "b k (h d) -> b h k d", h=self.h)
        _, weights = attention(
            q, k, v, mask[:, None] if mask is not None and mask.ndim == 3 else mask
        )
        weights = self.dropout(weights)
        return self.out_proj(einops.rearrange(weights @ v, "b h q d -> b q (h d)")), weights


@wrong(
    "MultiHeadAttention", "projects key and value with the queries' layer", "C-SHARED-PROJECTION"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.n_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = (split_heads(self.q_proj(x), self.n_heads) for x in (query, key, value))
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        _, w = attention(q, k, v, mask)
        return self.out_proj(merge_heads(self.dropout(w) @ v)), w


@wrong(
    "MultiHeadAttention", "returns the mean of the heads' weights, as PyTorch does", "H-AVG-WEIGHTS"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.heads)
        k = split_heads(self.k_proj(key), self.heads)
        v = split_heads(self.v_proj(value), self.heads)
        if mask is not None:
            mask = mask.view(-1, 1, *mask.shape[-2:])
        _, w = attention(q, k, v, mask)
        return self.out_proj(merge_heads(self.dropout(w) @ v)), w.mean(dim=1)


@wrong(
    "MultiHeadAttention",
    "drops nothing; scales by the width of the model",
    ("C-DROPOUT-NEVER",),
    ("D-SCALE-DMODEL",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(query.shape[-1])
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask[:, None]
            s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
        w = torch.softmax(s, dim=-1)
        if mask is not None:
            w = w.masked_fill(~mask, 0)
        return self.out_proj(merge_heads(torch.einsum("bhqk,bhkd->bhqd", w, v))), w


@wrong(
    "MultiHeadAttention", "does not scale; turns the mask around", ("D-NO-SCALE",), ("M-POLARITY",)
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.h)
        k = split_heads(self.k_proj(key), self.h)
        v = split_heads(self.v_proj(value), self.h)
        s = q @ k.mT
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask[:, None]
            s = s.masked_fill(mask, -1e9)
        w = s.softmax(-1)
        if mask is not None:
            w = w * ~mask
        return self.out_proj(merge_heads(self.dropout(w) @ v)), w


@wrong(
    "MultiHeadAttention",
    "splits by a bare view; leaves the biases out",
    (
        "H-VIEW-SPLIT",
        "H-VIEW-BOTH",
    ),
    ("C-NO-BIAS",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h, self.d = num_heads, model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width, bias=False)
        self.k_proj = nn.Linear(model_width, model_width, bias=False)
        self.v_proj = nn.Linear(model_width, model_width, bias=False)
        self.out_proj = nn.Linear(model_width, model_width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        B = query.shape[0]
        q = self.q_proj(query).view(B, self.h, -1, self.d)
        k = self.k_proj(key).view(B, self.h, -1, self.d)
        v = self.v_proj(value).view(B, self.h, -1, self.d)
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        _, w = attention(q, k, v, mask)
        o = (self.dropout(w) @ v).reshape(B, -1, self.h * self.d)
        return self.out_proj(o), w


@wrong(
    "MultiHeadAttention",
    "zeroes hidden weights after the softmax; averages the heads' weights",
    ("M-AFTER-SOFTMAX",),
    ("H-AVG-WEIGHTS",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.h)
        k = split_heads(self.k_proj(key), self.h)
        v = split_heads(self.v_proj(value), self.h)
        w = F.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), dim=-1)
        if mask is not None:
            w = w * (mask if mask.ndim == 2 else mask.unsqueeze(1))
        out = self.out_proj(merge_heads(self.dropout(w) @ v))
        return out, w.sum(1) / self.h


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.d = model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.p = dropout

    def one_head(self, i, Q, K, V, mask):
        cut = slice(i * self.d, (i + 1) * self.d)
        q, k, v = Q[..., cut], K[..., cut], V[..., cut]
        s = q @ k.mT * self.d**-0.5
        if mask is not None:
            s = s.masked_fill(~mask, -1e9)
        w = s.softmax(-1)
        if mask is not None:
            w = w * mask
        return F.dropout(w, self.p, training=self.training) @ v, w

    def forward(self, query, key, value, mask=None):
        Q, K, V = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        answers, tables = zip(*(self.one_head(i, Q, K, V, mask) for i in range(self.h)))
        return self.out_proj(torch.cat(answers, dim=-1)), torch.stack(tables, dim=1)


@right("MultiHeadAttention")
class _(nn.Module):
    """In the style of The Annotated Transformer."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.d_k, self.h = model_width // num_heads, num_heads
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        for name in names:
            self.add_module(name, nn.Linear(model_width, model_width))
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip((self.q_proj, self.k_proj, self.v_proj), (query, key, value))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(mask == 0, -torch.inf)
        p_attn = torch.nan_to_num(scores.softmax(dim=-1))
        x = torch.matmul(self.dropout(p_attn), value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.out_proj(x), p_attn


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.heads = num_heads
        make = functools.partial(nn.Linear, model_width, model_width)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = make(), make(), make(), make()
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        h = self.heads
        Q, K, V = (
            einops.rearrange(x, "b n (h d) -> (b h) n d", h=h)
            for x in (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        )
        S = torch.bmm(Q, K.mT) / Q.shape[-1] ** 0.5
        S = einops.rearrange(S, "(b h) q k -> b h q k", h=h)
        if mask is None:
            mask = torch.ones(S.shape[-2:], dtype=torch.bool)
        seen = mask.reshape(-1, 1, *mask.shape[-2:])
        E = torch.where(
            seen, S - S.detach().masked_fill(~seen, -1e30).amax(-1, keepdim=True), -1e30
        )
        E = E.exp() * seen
        W = E / E.sum(-1, keepdim=True).clamp_min(1e-12)
        out = torch.bmm(self.dropout(W).flatten(0, 1), V)
        return self.out_proj(einops.rearrange(out, "(b h) q d -> b q (h d)", h=h)), W


# --- Chapter 5: attention_parameters --------------------------------------------------------------


@wrong("attention_parameters", "forgets the output projection", "C-PARAMETERS-NO-OUT")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    return num_layers * 3 * model_width * num_heads * d


@wrong("attention_parameters", "multiplies by the number of heads once more", "H-COST")
def _(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        head_width = model_width // num_heads
    per_head = 4 * model_width * (num_heads * head_width)
    return num_layers * num_heads * per_head


@wrong("attention_parameters", "forgets the layers", "H-HEADCOUNT")
def _(model_width, num_heads, num_layers, head_width=None):
    width = model_width if head_width is None else num_heads * head_width
    return 4 * model_width * width


@wrong(
    "attention_parameters", "ignores the head width and takes m by m", "C-PARAMETERS-FIXED-WIDTH"
)
def _(model_width, num_heads, num_layers, head_width=None):
    return 4 * model_width**2 * num_layers


@wrong("attention_parameters", "counts biases", "C-PARAMETERS-BIASES")
def _(model_width, num_heads, num_layers, head_width=None):
    hd = num_heads * (head_width if head_width is not None else model_width // num_heads)
    qkv = 3 * (model_width * hd + hd)
    out = hd * model_width + model_width
    return (qkv + out) * num_layers


@wrong(
    "attention_parameters",
    "believes that the output projection is m by m whatever the heads are",
    "H-WO-SHAPE",
)
def _(model_width, num_heads, num_layers, head_width=None):
    inner = num_heads * (head_width or model_width // num_heads)
    return num_layers * (3 * model_width * inner + model_width * model_width)


@wrong("attention_parameters", "returns a float", "C-PARAMETERS-FLOAT")
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width / num_heads if head_width is None else head_width
    return 4.0 * num_layers * num_heads * model_width * d


@wrong(
    "attention_parameters",
    "forgets the output projection; counts biases",
    ("C-PARAMETERS-NO-OUT",),
    ("C-PARAMETERS-BIASES",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width // num_heads if head_width is None else head_width
    return num_layers * num_heads * 3 * d * (model_width + 1)


@wrong(
    "attention_parameters",
    "multiplies by heads once more; ignores the head width",
    ("H-COST",),
    ("C-PARAMETERS-FIXED-WIDTH",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    return sum(4 * model_width * model_width for _ in range(num_layers * num_heads))


@wrong(
    "attention_parameters",
    "forgets the layers; forgets the output projection",
    ("H-HEADCOUNT",),
    ("C-PARAMETERS-NO-OUT",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    Wq = Wk = Wv = model_width * d
    return num_heads * (Wq + Wk + Wv)


@wrong(
    "attention_parameters",
    "takes one head for all; counts the biases, too",
    ("C-PARAMETERS-ONE-HEAD",),
    ("C-PARAMETERS-BIASES",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    return num_layers * (3 * (model_width * d + d) + d * model_width + model_width)


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    total = 0
    for _ in range(num_layers):
        for _ in range(num_heads):
            d = model_width // num_heads if head_width is None else head_width
            total += model_width * d  # queries
            total += model_width * d  # keys
            total += model_width * d  # values
            total += d * model_width  # its rows of W_O
    return total


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    inner = model_width if head_width is None else head_width * num_heads
    layer = nn.ModuleDict(
        {
            "qkv": nn.Linear(model_width, 3 * inner, bias=False, device="meta"),
            "out": nn.Linear(inner, model_width, bias=False, device="meta"),
        }
    )
    return num_layers * sum(p.numel() for p in layer.parameters())


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    m, h, d = model_width, num_heads, head_width or divmod(model_width, num_heads)[0]
    return math.prod([m, h, d, num_layers]) << 2


# --- Chapter 6: next_word_pairs -------------------------------------------------------------------


@wrong("next_word_pairs", "begins with an empty context", "C-EMPTY-CONTEXT")
def _(tokens):
    return [(tokens[:i], tokens[i]) for i in range(len(tokens))]


@wrong("next_word_pairs", "gives the last word only as context", "C-BIGRAM", "C-NEIGHBORS-ONLY")
def _(tokens):
    return [([a], b) for a, b in itertools.pairwise(tokens)]


@wrong("next_word_pairs", "forgets the last pair", "C-LAST-MISSED")
def _(tokens):
    pairs = []
    for i in range(1, len(tokens) - 1):
        pairs.append((tokens[:i], tokens[i]))
    return pairs


@wrong("next_word_pairs", "puts one and the same growing list into all pairs", "C-ONE-LIST")
def _(tokens):
    context, result = [], []
    for now, nxt in zip(tokens, tokens[1:]):
        context.append(now)
        result.append((context, nxt))
    return result


@wrong(
    "next_word_pairs",
    "lets the context hold the word that is to be guessed",
    "C-NEXT-INSIDE",
    "S-SHIFT",
)
def _(tokens):
    return [(tokens[: i + 1], tokens[i]) for i in range(1, len(tokens))]


@wrong("next_word_pairs", "goes from the longest context to the shortest", "C-LONGEST-FIRST")
def _(tokens):
    pairs, rest = [], list(tokens)
    while len(rest) > 1:
        last = rest.pop()
        pairs.append((list(rest), last))
    return pairs


@wrong("next_word_pairs", "gives the rest of the sentence, not the next word", "C-REST-TO-GUESS")
def _(tokens):
    return [(tokens[:i], tokens[i:]) for i in range(1, len(tokens))]


@wrong(
    "next_word_pairs",
    "begins with an empty context; gives only one word as context",
    ("C-EMPTY-CONTEXT",),
    (
        "C-BIGRAM",
        "C-NEIGHBORS-ONLY",
    ),
)
def _(tokens):
    return [([], tokens[0])] + [([tokens[i - 1]], tokens[i]) for i in range(1, len(tokens))]


@wrong(
    "next_word_pairs",
    "leaves out id 0; goes from the longest to the shortest",
    ("C-ZERO-SKIPPED",),
    (),
)
def _(tokens):
    out = []
    for i in range(len(tokens) - 1, 0, -1):
        if tokens[i]:
            out.append((tokens[:i], tokens[i]))
    return out


@wrong(
    "next_word_pairs",
    "looks a word up by its first place, wrong when it comes twice; context is a tuple",
    ("C-FIRST-OCCURRENCE",),
    ("C-TUPLE",),
)
def _(tokens):
    return [(tuple(tokens[: tokens.index(t)]), t) for t in tokens[1:]]


@wrong(
    "next_word_pairs",
    "holds the answer in the context; forgets the last pair",
    (
        "C-NEXT-INSIDE",
        "S-SHIFT",
    ),
    ("C-LAST-MISSED",),
)
def _(tokens):
    return [(list(tokens[:i]), tokens[i - 1]) for i in range(2, len(tokens))]


@right("next_word_pairs")
def _(tokens):
    contexts = itertools.accumulate(([t] for t in tokens), lambda a, b: a + b)
    return list(zip(contexts, tokens[1:]))


@right("next_word_pairs")
def _(tokens):
    pairs, so_far = [], []
    for token in tokens:
        if so_far:
            pairs.append((so_far.copy(), token))
        so_far.append(token)
    return pairs


@right("next_word_pairs")
def _(tokens):
    if len(tokens) < 2:
        return []
    *begin, last = tokens
    earlier = [(list(tokens[: i + 1]), begin[i + 1]) for i in range(len(begin) - 1)]
    return [*earlier, (begin, last)]


# --- Chapter 6: causal_mask -----------------------------------------------------------------------


@wrong("causal_mask", "is True above the diagonal: marks what is hidden", "M-POLARITY")
def _(query_length, key_length=None):
    k = key_length or query_length
    return torch.triu(torch.ones(query_length, k), diagonal=1 + k - query_length).bool()


@wrong("causal_mask", "hides the word itself", "M-TRIU-DIAG")
def _(query_length, key_length=None):
    k = query_length if key_length is None else key_length
    return torch.ones(query_length, k, dtype=torch.bool).tril(k - query_length - 1)


@wrong("causal_mask", "takes the queries for the first words when there are more keys", "M-TOPLEFT")
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    return torch.tril(torch.ones((query_length, key_length), dtype=torch.bool))


@wrong("causal_mask", "returns numbers, not booleans", "C-NOT-BOOLEAN")
def _(query_length, key_length=None):
    k = key_length or query_length
    i = torch.arange(query_length)[:, None] + (k - query_length)
    return (torch.arange(k)[None] <= i).float()


@wrong("causal_mask", "ignores key_length", "C-KEYS-IGNORED", "C-SQUARE")
def _(query_length, key_length=None):
    i = torch.arange(query_length)
    return i[:, None] >= i[None, :]


@wrong("causal_mask", "lets everybody see one word ahead", "M-TRIL-ONE")
def _(query_length, key_length=None):
    n = key_length if key_length is not None else query_length
    offset = n - query_length
    rows = [[j <= i + offset + 1 for j in range(n)] for i in range(query_length)]
    return torch.tensor(rows)


@wrong(
    "causal_mask",
    "exchanges rows and columns: every word sees itself and later ones",
    "M-TRANSPOSED",
)
def _(query_length, key_length=None):
    n = key_length if key_length is not None else query_length
    past = n - query_length
    q = torch.arange(past, n).unsqueeze(1)
    k = torch.arange(n).unsqueeze(0)
    return q <= k


@wrong(
    "causal_mask",
    "marks what is hidden; takes the queries for the first words",
    ("M-POLARITY",),
    ("M-TOPLEFT",),
)
def _(query_length, key_length=None):
    key_length = key_length or query_length
    return torch.ones(query_length, key_length).triu(1) == 1


@wrong(
    "causal_mask",
    "hides the word itself; ignores key_length",
    ("M-TRIU-DIAG",),
    (
        "C-KEYS-IGNORED",
        "C-SQUARE",
    ),
)
def _(query_length, key_length=None):
    return torch.tril(torch.ones(query_length, query_length), diagonal=-1) > 0


@wrong(
    "causal_mask",
    "gives minus infinity and 0 to be added; takes the queries for the first words",
    ("C-ADDITIVE-MASK",),
    ("M-TOPLEFT",),
)
def _(query_length, key_length=None):
    sz = query_length if key_length is None else key_length
    m = torch.full((query_length, sz), float("-inf"))
    return torch.triu(m, diagonal=1)


@wrong(
    "causal_mask",
    "lets everybody see one word ahead; returns numbers",
    ("M-TRIL-ONE",),
    ("C-NOT-BOOLEAN",),
)
def _(query_length, key_length=None):
    n = query_length if key_length is None else key_length
    m = np.tri(query_length, n, k=n - query_length + 1)
    return torch.from_numpy(m)


@right("causal_mask")
def _(query_length, key_length=None):
    total = query_length if key_length is None else key_length
    whole = torch.tril(torch.ones(total, total, dtype=torch.bool))
    return whole[total - query_length :]


@right("causal_mask")
def _(query_length, key_length=None):
    n = key_length if key_length is not None else query_length
    hidden = torch.full((query_length, n), True).triu(diagonal=n - query_length + 1)
    return ~hidden


@right("causal_mask")
def _(query_length, key_length=None):
    n = query_length if key_length is None else key_length
    return torch.from_numpy(np.tri(query_length, n, n - query_length, dtype=bool))


# --- Chapter 6: padding_mask ----------------------------------------------------------------------


@wrong("padding_mask", "is True at padding", "M-POLARITY")
def _(lengths, max_length):
    return (torch.arange(max_length)[None, :] >= lengths[:, None]).unsqueeze(1)


@wrong("padding_mask", "takes in one padding of every sentence", "C-ONE-MORE")
def _(lengths, max_length):
    pos = torch.arange(max_length)
    return pos.view(1, 1, -1) <= lengths.view(-1, 1, 1)


@wrong("padding_mask", "forgets the axis of the queries", "M-SHAPE-BT")
def _(lengths, max_length):
    return torch.arange(max_length).expand(len(lengths), -1) < lengths.unsqueeze(1)


@wrong("padding_mask", "ends the table at the longest sentence of the batch", "C-LONGEST")
def _(lengths, max_length):
    longest = int(lengths.max())
    m = torch.arange(longest).unsqueeze(0) < lengths.unsqueeze(1)
    return m[:, None, :]


@wrong("padding_mask", "believes that the padding stands on the left", "C-PADDED-LEFT")
def _(lengths, max_length):
    pads = max_length - lengths
    return (torch.arange(max_length)[None] >= pads[:, None])[:, None]


@wrong("padding_mask", "returns numbers, not booleans", "C-NOT-BOOLEAN")
def _(lengths, max_length):
    mask = torch.zeros(len(lengths), 1, max_length)
    for i, L in enumerate(lengths):
        mask[i, 0, :L] = 1
    return mask


@wrong("padding_mask", "puts the axis of length 1 behind the keys", "C-QUERIES-ONLY")
def _(lengths, max_length):
    return (torch.arange(max_length) < lengths[:, None]).unsqueeze(-1)


@wrong(
    "padding_mask",
    "is True at padding; forgets the axis of the queries",
    ("M-POLARITY",),
    ("M-SHAPE-BT",),
)
def _(lengths, max_length):
    rows = [[j >= n for j in range(max_length)] for n in lengths.tolist()]
    return torch.tensor(rows)


@wrong("padding_mask", "takes in one padding; returns numbers", ("C-ONE-MORE",), ("C-NOT-BOOLEAN",))
def _(lengths, max_length):
    a = np.arange(max_length)[None, None, :] <= lengths.numpy()[:, None, None]
    return torch.tensor(a.astype(np.float32))


@wrong(
    "padding_mask",
    "ends at the longest sentence; is True at padding",
    ("C-LONGEST",),
    ("M-POLARITY",),
)
def _(lengths, max_length):
    idx = torch.arange(lengths.max())
    return torch.stack([idx >= n for n in lengths]).unsqueeze(1)


@wrong(
    "padding_mask", "pads on the left; hides one word too many", ("C-PADDED-LEFT",), ("C-ONE-LESS",)
)
def _(lengths, max_length):
    return (torch.arange(max_length - 1, -1, -1) < lengths.view(-1, 1) - 1)[:, None, :]


@right("padding_mask")
def _(lengths, max_length):
    rows = [torch.arange(max_length) < n for n in lengths]
    return torch.stack(rows)[:, None]


@right("padding_mask")
def _(lengths, max_length):
    table = torch.ones(max_length + 1, max_length, dtype=torch.bool).tril(-1)  # row n: n words
    return table[lengths.long()].unsqueeze(-2)


@right("padding_mask")
def _(lengths, max_length):
    b = lengths.numel()
    out = torch.zeros((b, 1, max_length), dtype=torch.bool)
    for i in range(b):
        out[i, :, : int(lengths[i])] = True
    return out


# --- Chapter 6: masked_softmax --------------------------------------------------------------------


@wrong("masked_softmax", "makes NaN of dead rows", "M-DEAD-ROW")
def _(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)


@wrong("masked_softmax", "makes hidden weights 0 only behind the softmax", "M-AFTER-SOFTMAX")
def _(scores, mask):
    p = F.softmax(scores, dim=-1)
    return p.masked_fill(mask.logical_not(), 0.0)


@wrong("masked_softmax", "shares out evenly in dead rows", "M-DEAD-ROW-UNIFORM")
def _(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1)


@wrong(
    "masked_softmax",
    "fills with -1e9, which float16 does not have",
    "M-HALF-FILL",
    "C-MINUS-A-BILLION",
)
def _(scores, mask):
    return scores.masked_fill(~mask, -1e9).softmax(-1) * mask


@wrong(
    "masked_softmax",
    "replaces NaN by 0 afterward, but the gradient stays NaN",
    "M-DEAD-ROW-GRADIENT",
)
def _(scores, mask):
    bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    w = torch.softmax(scores + bias, dim=-1)
    w = torch.where(torch.isnan(w), torch.zeros_like(w), w)
    return w


@wrong("masked_softmax", "writes minus infinity into the caller's scores", "M-INPLACE")
def _(scores, mask):
    with torch.no_grad():
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) * mask


@wrong(
    "masked_softmax",
    "normalizes again after the softmax, and loses rows whose mass was all hidden",
    "M-AFTER-RENORMALIZED",
)
def _(scores, mask):
    w = scores.softmax(dim=-1) * mask
    total = w.sum(-1, keepdim=True)
    return w / torch.where(total == 0, torch.ones_like(total), total)


@wrong(
    "masked_softmax",
    "takes True for hidden; shares out evenly in dead rows",
    ("M-POLARITY",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(scores, mask):
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(mask, low).softmax(-1)


@wrong(
    "masked_softmax",
    "sets hidden scores to 0; normalizes over the queries",
    ("M-FILL-ZERO",),
    ("D-SOFTMAX-DIM",),
)
def _(scores, mask):
    return torch.softmax(scores * mask, dim=-2)


@wrong(
    "masked_softmax",
    "exponentiates without a shift; divides by 0 in dead rows",
    ("D-NAIVE-SOFTMAX",),
    ("D-NAIVE-SOFTMAX",),
)
def _(scores, mask):
    e = scores.exp() * mask
    return e / e.sum(dim=-1, keepdim=True)


@wrong(
    "masked_softmax",
    "hides by -100, which is too little; writes into the scores",
    ("M-SMALL-FILL",),
    ("M-INPLACE",),
)
def _(scores, mask):
    with torch.no_grad():
        scores += (~mask) * -100.0
    return torch.softmax(scores, dim=-1) * mask


@right("masked_softmax")
def _(scores, mask):
    low = torch.finfo(scores.dtype).min
    w = torch.softmax(scores.masked_fill(~mask, low), dim=-1)
    return torch.where(mask, w, torch.zeros((), dtype=w.dtype))


@right("masked_softmax")
def _(scores, mask):
    dead = ~mask.any(dim=-1, keepdim=True)
    open_mask = mask | dead  # a dead row sees everything for a moment
    w = scores.masked_fill(~open_mask, -math.inf).softmax(-1)
    return w.masked_fill(dead, 0)


@right("masked_softmax")
def _(scores, mask):
    x = scores.float() if scores.dtype == torch.float16 else scores
    seen = mask.expand_as(x)
    top = x.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True).detach()
    gap = torch.where(seen, x - torch.where(top.isinf(), 0, top), 0)
    e = gap.exp() * seen
    total = e.sum(-1, keepdim=True)
    return (e / torch.where(total > 0, total, 1)).to(scores.dtype)


# --- Chapter 7: cross_attention -------------------------------------------------------------------


@wrong("cross_attention", "lets the source ask the target", "C-SOURCE-ASKS")
def _(target, memory, attention, memory_mask=None):
    return attention(memory, target, target, memory_mask)


@wrong("cross_attention", "takes the values from the target", "X-WRONG-KV")
def _(target, memory, attention, memory_mask=None):
    return attention(target, memory, target, memory_mask)


@wrong("cross_attention", "forgets the mask", "X-NOMASK")
def _(target, memory, attention, memory_mask=None):
    out, w = attention(target, memory, memory, None)
    return out, w


@wrong("cross_attention", "is self-attention of the target", "X-LEAK")
def _(target, memory, attention, memory_mask=None):
    return attention(query=target, key=target, value=target, mask=None)


@wrong("cross_attention", "turns the mask around", "M-POLARITY")
def _(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask = ~memory_mask
    return attention(target, memory, memory, memory_mask)


@wrong("cross_attention", "returns the output only", "C-OUTPUT-ONLY")
def _(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)[0]


@wrong("cross_attention", "adds the target, which is the layer's task", "C-RESIDUAL-INSIDE")
def _(target, memory, attention, memory_mask=None):
    out, weights = attention(target, memory, memory, memory_mask)
    return target + out, weights


@wrong(
    "cross_attention",
    "takes the keys from the target; forgets the mask",
    ("C-KEYS-OF-TARGET",),
    ("X-NOMASK",),
)
def _(target, memory, attention, memory_mask=None):
    n = min(target.size(1), memory.size(1))
    return attention(target, target[:, :n], memory[:, :n], None)


@wrong("cross_attention", "lets the source ask; drops the mask", ("C-SOURCE-ASKS",), ("X-NOMASK",))
def _(target, memory, attention, memory_mask=None):
    output, w = attention(memory, target, target, None)
    return output, w


@wrong(
    "cross_attention",
    "turns the mask around; returns the output only",
    ("M-POLARITY",),
    ("C-OUTPUT-ONLY",),
)
def _(target, memory, attention, memory_mask=None):
    m = None if memory_mask is None else memory_mask.logical_not()
    y, _ = attention(target, memory, memory, m)
    return y


@wrong(
    "cross_attention",
    "hands a causal mask on in place of the memory's; adds the target",
    ("X-CAUSAL",),
    ("C-RESIDUAL-INSIDE",),
)
def _(target, memory, attention, memory_mask=None):
    q, k = target.shape[1], memory.shape[1]
    tril = torch.ones(q, k, dtype=torch.bool).tril()
    out, w = attention(target, memory, memory, tril)
    return out + target, w


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    kv = memory
    result = attention(target, kv, kv, memory_mask)
    return result[0], result[1]


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    if memory_mask is None:
        b, k = memory.shape[:2]
        memory_mask = torch.ones(b, 1, k, dtype=torch.bool, device=memory.device)
    return attention(target, memory, memory, memory_mask)


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    queries, keys, values = target, memory, memory.clone()
    output, weights = attention(queries, keys, values, memory_mask)
    return (output, weights)


# --- Chapter 7: DecoderLayer ----------------------------------------------------------------------


class Parts(nn.Module):
    """The seven parts of the layer, for answers that go wrong in forward only."""

    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)


@wrong("DecoderLayer", "norms after the sum, as in the first Transformer", "C-POST-NORM")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.linear2(F.relu(self.linear1(x))))


@wrong("DecoderLayer", "forgets the sum around the cross-attention", "C-NO-SUM-CROSS")
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        target = target + self.self_attention(x, x, x, target_mask)[0]
        target, _ = self.cross_attention(self.norm2(target), memory, memory, memory_mask)
        return target + self.linear2(torch.relu(self.linear1(self.norm3(target))))


@wrong("DecoderLayer", "forgets the ReLU", "C-NO-RELU")
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        n = self.norm1(target)
        h = target + self.self_attention(n, n, n, target_mask)[0]
        h = h + self.cross_attention(self.norm2(h), memory, memory, memory_mask)[0]
        return h + self.linear2(self.linear1(self.norm3(h)))


@wrong("DecoderLayer", "norms the memory once more", "C-MEMORY-NORMALIZED")
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        normed = self.norm1(target)
        sa, _ = self.self_attention(normed, normed, normed, target_mask)
        x = target + sa
        mem = self.norm2(memory)
        ca, _ = self.cross_attention(self.norm2(x), mem, mem, memory_mask)
        x = x + ca
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


@wrong("DecoderLayer", "asks the source first, then the words written so far", "C-SOURCE-FIRST")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        for i in (1, 2, 3):
            setattr(self, f"norm{i}", nn.LayerNorm(model_width))
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = target
        y = y + self.cross_attention(self.norm1(y), memory, memory, memory_mask)[0]
        z = self.norm2(y)
        y = y + self.self_attention(z, z, z, target_mask)[0]
        return y + self.linear2(self.linear1(self.norm3(y)).relu())


@wrong("DecoderLayer", "does not hide later words of the target", "C-NO-TARGET-MASK")
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        t = self.norm1(target)
        target = target + self.self_attention(t, t, t)[0]
        t = self.norm2(target)
        target = target + self.cross_attention(t, memory, memory, memory_mask)[0]
        return target + self.linear2(F.relu(self.linear1(self.norm3(target))))


@wrong(
    "DecoderLayer",
    "norms only the queries of the self-attention, not its keys and values",
    "C-QUERY-NORMED-ONLY",
)
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        target = target + self.self_attention(self.norm1(target), target, target, target_mask)[0]
        target = target + self.cross_attention(self.norm2(target), memory, memory, memory_mask)[0]
        return target + self.linear2(self.linear1(self.norm3(target)).clamp(min=0))


@wrong("DecoderLayer", "norms after the sum; forgets the ReLU", ("C-POST-NORM",), ("C-NO-RELU",))
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target + self.self_attention(target, target, target, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.linear2(self.linear1(x)))


@wrong(
    "DecoderLayer",
    "does not hide later words of the target; does not hide the padding of the source",
    ("C-NO-TARGET-MASK", "C-NO-MASKS"),
    ("X-NOMASK", "C-NO-MASKS"),
)
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        n = self.norm1(target)
        x = target + self.self_attention(n, n, n)[0]
        x = x + self.cross_attention(self.norm2(x), memory, memory)[0]
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


@wrong(
    "DecoderLayer",
    "attends to the target in place of the memory; forgets the last sum",
    ("X-LEAK",),
    ("C-NO-SUM-NETWORK",),
)
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        n = self.norm1(target)
        target = target + self.self_attention(n, n, n, target_mask)[0]
        n = self.norm2(target)
        target = target + self.cross_attention(n, n, n, target_mask)[0]
        return self.linear2(F.relu(self.linear1(self.norm3(target))))


@wrong(
    "DecoderLayer",
    "adds the normed vector, not the raw one; uses GELU in place of ReLU",
    ("C-SUM-OF-NORMED",),
    ("C-GELU",),
)
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        x = x + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(x)
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        x = self.norm3(x)
        return x + self.linear2(F.gelu(self.linear1(x)))


@right("DecoderLayer")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(model_width) for _ in range(3))
        self.self_attention, self.cross_attention = (
            MultiHeadAttention(model_width, num_heads) for _ in range(2)
        )
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def _sa_block(self, x, mask):
        return self.self_attention(x, x, x, mask)[0]

    def _mha_block(self, x, mem, mask):
        return self.cross_attention(x, mem, mem, mask)[0]

    def _ff_block(self, x):
        return self.linear2(F.relu(self.linear1(x)))

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = x + self._sa_block(self.norm1(x), target_mask)
        x = x + self._mha_block(self.norm2(x), memory, memory_mask)
        return x + self._ff_block(self.norm3(x))


@right("DecoderLayer")
class _(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        def residual(x, norm, part):
            return x + part(norm(x))

        x = residual(target, self.norm1, lambda y: self.self_attention(y, y, y, target_mask)[0])
        x = residual(
            x, self.norm2, lambda y: self.cross_attention(y, memory, memory, memory_mask)[0]
        )
        return residual(x, self.norm3, lambda y: self.linear2(torch.relu(self.linear1(y))))


@right("DecoderLayer")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)
        self.relu = nn.ReLU()

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        shortcut = target
        a = self.norm1(target)
        a, _ = self.self_attention(a, a, a, target_mask)
        a = a.add(shortcut)
        b, _ = self.cross_attention(self.norm2(a), memory, memory, memory_mask)
        b = b.add(a)
        return self.linear2(self.relu(self.linear1(self.norm3(b)))).add(b)


# --- Chapter 7: translate -------------------------------------------------------------------------


@wrong("translate", "returns bos as the first word", "C-BOS-KEPT")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    done = torch.zeros(len(source), dtype=torch.bool)
    with torch.no_grad():
        for _ in range(max_length):
            nxt = model(source, words)[:, -1].argmax(-1)
            nxt = torch.where(done, eos, nxt)
            done = done | (nxt == eos)
            words = torch.cat([words, nxt[:, None]], 1)
    return words


@wrong("translate", "keeps what the model writes behind eos", "C-NO-END", "C-TALKS-ON")
def _(model, source, bos, eos, max_length):
    ys = torch.ones(source.size(0), 1).fill_(bos).type_as(source)
    for _ in range(max_length):
        out = model(source, ys)
        next_word = out[:, -1].argmax(dim=-1, keepdim=True)
        ys = torch.cat([ys, next_word], dim=1)
    return ys[:, 1:]


@wrong("translate", "takes the score of the first position every time", "C-FIRST-POSITION")
def _(model, source, bos, eos, max_length):
    seq = torch.full((source.shape[0], 1), bos, dtype=torch.long)
    fin = torch.zeros(source.shape[0], 1, dtype=torch.bool)
    for _ in range(max_length):
        tok = model(source, seq)[:, 0].argmax(-1, keepdim=True)
        tok = tok.masked_fill(fin, eos)
        fin |= tok == eos
        seq = torch.cat((seq, tok), dim=-1)
    return seq[:, 1:]


@wrong("translate", "hands in only the last word, not all words so far", "C-LAST-WORD-ONLY")
def _(model, source, bos, eos, max_length):
    word = torch.full((source.size(0), 1), bos)
    ended = torch.zeros(source.size(0), dtype=torch.bool)
    outs = []
    for _ in range(max_length):
        scores = model(source, word)
        w = scores[:, -1].argmax(-1)
        w[ended] = eos
        ended |= w == eos
        outs.append(w)
        word = w.unsqueeze(1)
    return torch.stack(outs, 1)


@wrong("translate", "stops when the first row has ended", "C-FIRST-END-STOPS")
def _(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos)
    while words.shape[1] <= max_length:
        new = model(source, words)[:, -1, :].max(-1)[1]
        words = torch.cat([words, new.unsqueeze(-1)], -1)
        if (new == eos).any():
            break
    return words[:, 1:]


@wrong("translate", "writes one word too few", "C-LIMIT-COUNTS-BOS")
def _(model, source, bos, eos, max_length):
    b = source.shape[0]
    out = torch.full((b, max_length), eos)
    out[:, 0] = bos
    finished = torch.zeros(b, dtype=torch.bool)
    for t in range(1, max_length):
        best = model(source, out[:, :t])[:, t - 1].argmax(-1)
        out[:, t] = torch.where(finished, eos, best)
        finished |= out[:, t] == eos
    return out[:, 1:] if max_length > 1 else torch.full((b, 1), eos)


@wrong("translate", "puts the model into evaluation mode and leaves it there", "C-EVAL-KEPT")
def _(model, source, bos, eos, max_length):
    model.eval()
    words = torch.full((source.shape[0], 1), bos)
    over = torch.zeros(source.shape[0], dtype=torch.bool)
    for _ in range(max_length):
        w = model(source, words)[:, -1].argmax(-1).masked_fill(over, eos)
        over = over | w.eq(eos)
        words = torch.cat([words, w[:, None]], dim=1)
    return words[:, 1:]


@wrong(
    "translate",
    "keeps bos; goes on behind eos",
    ("C-BOS-KEPT",),
    (
        "C-NO-END",
        "C-TALKS-ON",
    ),
)
def _(model, source, bos, eos, max_length):
    tgt = [[bos] for _ in range(source.shape[0])]
    for _ in range(max_length):
        logits = model(source, torch.tensor(tgt))
        for row, s in zip(tgt, logits[:, -1]):
            row.append(int(s.argmax()))
    return torch.tensor(tgt)


@wrong(
    "translate",
    "hands in the last word only; stops when the first row ends",
    ("C-LAST-WORD-ONLY",),
    ("C-FIRST-END-STOPS",),
)
def _(model, source, bos, eos, max_length):
    cur = torch.full((len(source), 1), bos)
    res = []
    for _ in range(max_length):
        cur = model(source, cur).argmax(-1)[:, -1:]
        res.append(cur)
        if eos in cur:
            break
    return torch.cat(res, 1)


@wrong(
    "translate",
    "asks once for everything; writes on behind eos",
    ("C-ONE-PASS",),
    (
        "C-NO-END",
        "C-TALKS-ON",
    ),
)
def _(model, source, bos, eos, max_length):
    words = torch.full((source.size(0), max_length), bos)
    return model(source, words).argmax(dim=-1)


@wrong(
    "translate",
    "leaves the model in evaluation mode; fills up with 0 behind eos",
    ("C-EVAL-KEPT",),
    ("C-PAD-BEHIND",),
)
def _(model, source, bos, eos, max_length):
    model.eval()
    words = torch.full((source.shape[0], 1), bos)
    for _ in range(max_length):
        words = torch.hstack([words, model(source, words)[:, -1].argmax(-1)[:, None]])
    ids = words[:, 1:].clone()
    for row in ids:
        where = (row == eos).nonzero()
        if len(where):
            row[int(where[0]) + 1 :] = 0
    return ids


@right("translate")
def _(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos, dtype=torch.long, device=source.device)
    for _ in range(max_length):
        logits = model(source, words)[:, -1]
        words = torch.cat([words, logits.argmax(-1, keepdim=True)], dim=1)
    out = words[:, 1:]
    said = (out == eos).int().cummax(dim=1).values.bool()
    return out.masked_fill(said, eos)


@right("translate")
@torch.inference_mode()
def _(model, source, bos, eos, max_length):
    rows = [[bos] for _ in source]
    for _ in range(max_length):
        if all(row[-1] == eos for row in rows):
            break
        best = model(source, torch.tensor(rows)).argmax(-1)[:, -1].tolist()
        for row, word in zip(rows, best):
            row.append(eos if row[-1] == eos else word)
    return torch.tensor([row[1:] for row in rows])


@right("translate")
def _(model, source, bos, eos, max_length):
    b = source.size(0)
    buffer = torch.full((b, max_length + 1), eos)
    buffer[:, 0] = bos
    alive = torch.arange(b)
    with torch.no_grad():
        for t in range(max_length):
            nxt = model(source, buffer[:, : t + 1])[:, t].argmax(-1)
            buffer[alive, t + 1] = nxt[alive]
            alive = alive[nxt[alive] != eos]
            if alive.numel() == 0:
                break
    return buffer[:, 1:]

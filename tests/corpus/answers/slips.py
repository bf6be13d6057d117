"""Answers by somebody who knew only the tasks' texts: one slip each. See __init__.py beside it.

Spelled as students spell: with loops, old-fashioned names and detours, all on purpose.
"""

import functools
import itertools
import math
import statistics
from collections import Counter, defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attncourse.multihead import MultiHeadAttention, merge_heads, split_heads
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

# --- Chapter 1: the bottleneck --------------------------------------------------------------------


@wrong("encode", "takes the last position, padding or not", "S-PAD-ENC")
def _(tokens, lengths, embedding, gru):
    x = embedding(tokens)
    _, h = gru(x)
    return h[0]


@wrong("encode", "sorts by length for packing and does not sort back", "C-NOT-UNSORTED")
def _(tokens, lengths, embedding, gru):
    sorted_lengths, order = torch.sort(lengths, descending=True)
    packed = pack_padded_sequence(embedding(tokens[order]), sorted_lengths, batch_first=True)
    _, hidden = gru(packed)
    return hidden.squeeze(0)


@wrong("encode", "takes id 0 for padding and ignores lengths", "C-LENGTHS-FROM-ZEROS")
def _(tokens, lengths, embedding, gru):
    real = (tokens != 0).sum(dim=1).clamp(min=1)
    output, _ = gru(embedding(tokens))
    return torch.stack([output[i, real[i] - 1] for i in range(output.size(0))])


@wrong("encode", "stops one word too early", "C-ONE-TOO-EARLY")
def _(tokens, lengths, embedding, gru):
    vecs = []
    for row, n in zip(tokens, lengths.tolist()):
        h = torch.zeros(1, 1, gru.hidden_size, dtype=gru.weight_hh_l0.dtype)
        for t in range(n - 1):
            _, h = gru(embedding(row[t]).view(1, 1, -1), h)
        vecs.append(h.view(-1))
    return torch.stack(vecs)


@wrong("encode", "carries the state from one sentence into the next", "C-STATE-CARRIED")
def _(tokens, lengths, embedding, gru):
    state = None
    result = []
    for i in range(tokens.shape[0]):
        sentence = embedding(tokens[i, : lengths[i]]).unsqueeze(0)
        out, state = gru(sentence, state)
        result.append(state[0, 0])
    return torch.stack(result, dim=0)


@wrong(
    "encode", "takes the state after the first pad: lengths instead of lengths - 1", "C-ONE-TOO-FAR"
)
def _(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens))
    last = torch.clamp(lengths, max=tokens.shape[1] - 1).long()
    idx = last.view(-1, 1, 1).expand(-1, 1, states.shape[2])
    return torch.gather(states, 1, idx).squeeze(1)


@wrong("encode", "indexes all rows with all lengths: (b b hidden)", "C-ALL-BY-ALL")
def _(tokens, lengths, embedding, gru):
    out, _ = gru(embedding(tokens))
    return out[:, lengths - 1]


@wrong("encode", "averages the states of the real tokens", "C-MEAN-STATE")
def _(tokens, lengths, embedding, gru):
    out = gru(embedding(tokens))[0]
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    return (out * mask[..., None]).sum(1) / lengths[:, None]


@wrong("encode", "makes the padding's vectors 0 and lets the GRU run on", "C-ZERO-PADS")
def _(tokens, lengths, embedding, gru):
    b, n = tokens.shape
    keep = (torch.arange(n).repeat(b, 1) < lengths.unsqueeze(1)).unsqueeze(2)
    emb = embedding(tokens).masked_fill(~keep, 0)
    return gru(emb)[1].squeeze(0)


@wrong("encode", "keeps no gradient", "C-ENCODER-FROZEN")
def _(tokens, lengths, embedding, gru):
    with torch.no_grad():
        states, _ = gru(embedding(tokens))
    return states[range(len(tokens)), lengths - 1]


@wrong("encode", "squeezes the batch away when it is one sentence", "C-SQUEEZED")
def _(tokens, lengths, embedding, gru):
    packed = pack_padded_sequence(
        embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1].squeeze()


@wrong("encode", "cuts the whole batch to the length of the first sentence", "C-FIRST-LENGTH")
def _(tokens, lengths, embedding, gru):
    states, last = gru(embedding(tokens[:, : int(lengths[0])]))
    return last[-1]


@right("encode")
def _(tokens, lengths, embedding, gru):
    packed = pack_padded_sequence(embedding(tokens), lengths.cpu(), True, enforce_sorted=False)
    states, sizes = pad_packed_sequence(gru(packed)[0], batch_first=True)
    return torch.stack([s[k - 1] for s, k in zip(states, sizes)])


@right("encode")
def _(tokens, lengths, embedding, gru):
    return torch.cat([gru(embedding(t[:n])[None])[1][0] for t, n in zip(tokens, lengths)])


@right("encode")
def _(tokens, lengths, embedding, gru):
    h_all, _ = gru(embedding(tokens))
    onehot = F.one_hot(lengths.long() - 1, tokens.shape[1]).to(h_all)
    return torch.einsum("bn,bnh->bh", onehot, h_all)


@wrong("teacher_inputs", "shifts to the left", "C-SHIFT-LEFT")
def _(target, bos):
    out = torch.empty_like(target)
    out[:, :-1] = target[:, 1:]
    out[:, -1] = bos
    return out


@wrong(
    "teacher_inputs", "puts bos in front and keeps the last word: one too long", "C-NOTHING-DROPPED"
)
def _(target, bos):
    start = torch.tensor([[bos]] * target.shape[0])
    return torch.cat((start, target), dim=1)


@wrong("teacher_inputs", "writes into target", "C-EDITS-THE-TARGET")
def _(target, bos):
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = bos
    return target


@wrong("teacher_inputs", "lets the last word come round to the front", "C-WRAPS-AROUND")
def _(target, bos):
    return torch.roll(target, shifts=1, dims=1)


@wrong(
    "teacher_inputs",
    "puts bos in the place of the first word, without a shift",
    "C-REPLACES-THE-FIRST",
)
def _(target, bos):
    inputs = target.clone()
    inputs[:, 0] = bos
    return inputs


@wrong(
    "teacher_inputs",
    "leaves 0 as it stood, as if it were always padding",
    "C-SHIFTS-AROUND-PADDING",
)
def _(target, bos):
    b, n = target.shape
    begin = target.new_full((b, 1), bos)
    moved = torch.hstack([begin, target[:, : n - 1]])
    return torch.where(target == 0, target, moved)


@wrong("teacher_inputs", "gives bos to the first sentence only", "S-BOS-MISMATCH")
def _(target, bos):
    shifted = torch.zeros_like(target)
    for j in range(1, target.size(1)):
        shifted[:, j] = target[:, j - 1]
    shifted[0][0] = bos
    return shifted


@wrong("teacher_inputs", "writes bos down as 1", "C-BOS-BY-HEART")
def _(target, bos):
    ones = torch.ones(len(target), 1, dtype=target.dtype)
    return torch.cat([ones, target[:, :-1]], 1)


@wrong("teacher_inputs", "returns floats", "C-IDS-AS-FLOATS")
def _(target, bos):
    out = torch.zeros(target.shape)
    out[:, 0] = bos
    out[:, 1:] = target[:, :-1]
    return out


@wrong("teacher_inputs", "shifts along the batch", "C-SHIFTS-ROWS")
def _(target, bos):
    first = torch.full((1, target.shape[1]), bos, dtype=target.dtype)
    return torch.cat([first, target[:-1]])


@wrong("teacher_inputs", "copies from the copy, so bos smears over the row", "C-COPIES-THE-FIRST")
def _(target, bos):
    new = target.clone()
    new[:, 0] = bos
    t = 1
    while t < new.shape[1]:
        new[:, t] = new[:, t - 1]
        t += 1
    return new


@right("teacher_inputs")
def _(target, bos):
    flat = target.roll(1)
    flat[:, 0] = bos
    return flat


@right("teacher_inputs")
def _(target, bos):
    return F.pad(target, (1, -1), value=bos)


@right("teacher_inputs")
def _(target, bos):
    rows = [[bos] + row[:-1] for row in target.tolist()]
    return torch.tensor(rows, dtype=target.dtype)


@wrong("sequence_loss", "averages over the padding too", "S-CE-PAD")
def _(logits, target, pad):
    b, n, v = logits.shape
    return F.cross_entropy(logits.reshape(b * n, v), target.reshape(b * n))


@wrong("sequence_loss", "leaves padding out above the line, not below it", "C-PADS-IN-THE-COUNT")
def _(logits, target, pad):
    logp = logits.log_softmax(-1)
    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    real = (target != pad).float()
    return (nll * real).mean()


@wrong("sequence_loss", "averages the sentences' averages", "C-MEAN-OF-MEANS")
def _(logits, target, pad):
    losses = []
    for scores, words in zip(logits, target):
        ok = words != pad
        losses.append(F.cross_entropy(scores[ok], words[ok]))
    return torch.stack(losses).mean()


@wrong("sequence_loss", "takes 0 for the padding, whatever pad is", "C-PAD-BY-HEART")
def _(logits, target, pad):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


@wrong("sequence_loss", "takes the logarithm of a softmax that has become 0", "C-LOG-OF-SOFTMAX")
def _(logits, target, pad):
    probs = torch.softmax(logits, dim=-1)
    p = torch.gather(probs, 2, target[:, :, None])[:, :, 0]
    keep = target != pad
    return -torch.log(p[keep]).mean()


@wrong(
    "sequence_loss",
    "adds a small number inside the logarithm, so the loss has a ceiling",
    "C-LOG-OF-SOFTMAX",
)
def _(logits, target, pad):
    probs = F.softmax(logits, -1)
    mask = target.ne(pad)
    picked = probs[mask].gather(1, target[mask].view(-1, 1))
    return -(picked + 1e-9).log().mean()


@wrong("sequence_loss", "sums instead of averaging", "C-SUM-OF-LOSSES")
def _(logits, target, pad):
    crit = nn.CrossEntropyLoss(ignore_index=pad, reduction="sum")
    return crit(logits.transpose(1, 2), target)


@wrong("sequence_loss", "counts in bits", "C-BITS")
def _(logits, target, pad):
    ls = logits - logits.logsumexp(dim=2, keepdim=True)
    right_ones = ls.gather(2, target.unsqueeze(2)).squeeze(2)
    bits = right_ones / math.log(2)
    w = (target != pad).to(bits.dtype)
    return -(bits * w).sum() / w.sum()


@wrong("sequence_loss", "forgets the minus", "C-SIGN")
def _(logits, target, pad):
    logp = F.log_softmax(logits, dim=-1)
    B, N = target.shape
    i, j = torch.meshgrid(torch.arange(B), torch.arange(N), indexing="ij")
    logp = logp[i, j, target]
    return logp[target != pad].mean()


@wrong("sequence_loss", "returns a plain number without gradient", "C-LOSS-CUT-OFF")
def _(logits, target, pad):
    loss = F.cross_entropy(logits.permute(0, 2, 1), target, ignore_index=pad)
    return torch.tensor(loss.item())


@wrong("sequence_loss", "lets positions compete instead of words", "C-POSITIONS-COMPETE")
def _(logits, target, pad):
    logp = torch.log_softmax(logits, dim=1)
    nll = -logp.gather(2, target.unsqueeze(-1)).squeeze(-1)
    return nll[target != pad].mean()


@wrong(
    "sequence_loss", "views (b n vocab) as (b vocab n) instead of turning it", "C-RESHAPED-CLASSES"
)
def _(logits, target, pad):
    b, n, vocab = logits.shape
    return F.cross_entropy(logits.reshape(b, vocab, n), target, ignore_index=pad)


@wrong(
    "sequence_loss", "hands probabilities to a loss that takes a softmax itself", "C-SOFTMAX-TWICE"
)
def _(logits, target, pad):
    p = logits.softmax(dim=-1)
    return F.cross_entropy(p.view(-1, p.size(-1)), target.view(-1), ignore_index=pad)


@wrong("sequence_loss", "divides by the sentences, not by the tokens", "C-PER-SENTENCE")
def _(logits, target, pad):
    total = 0.0
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            if target[i, j] != pad:
                total = total + torch.logsumexp(logits[i, j], 0) - logits[i, j, target[i, j]]
    return total / target.shape[0]


@right("sequence_loss")
def _(logits, target, pad):
    where_words = (target != pad).nonzero(as_tuple=True)
    z = logits[where_words]
    return (z.logsumexp(-1) - z[torch.arange(len(z)), target[where_words]]).mean()


@right("sequence_loss")
def _(logits, target, pad):
    shifted = logits - logits.max(-1, keepdim=True).values.detach()
    logp = shifted - shifted.exp().sum(-1, keepdim=True).log()
    hot = F.one_hot(target, logits.shape[-1]).to(logits) * (target != pad)[..., None]
    return -torch.where(hot > 0, logp, 0).sum() / hot.sum()


@right("sequence_loss")
def _(logits, target, pad):
    all_losses = F.cross_entropy(logits.mT, target, reduction="none")
    return torch.masked_select(all_losses, target != pad).mean()


@wrong("greedy_decode", "feeds bos at every step", "C-NOT-FED-BACK")
def _(step, state, bos, eos, max_length, batch_size):
    words = []
    start = torch.full((batch_size,), bos)
    done = torch.zeros(batch_size, dtype=torch.bool)
    for _ in range(max_length):
        logits, state = step(start, state)
        token = logits.argmax(dim=-1)
        token = torch.where(done, torch.tensor(eos), token)
        done |= token == eos
        words.append(token)
    return torch.stack(words, 1)


@wrong("greedy_decode", "goes on writing after eos", "C-GOES-ON-AFTER-EOS")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.tensor([bos] * batch_size)
    out = []
    ended = set()
    for _ in range(max_length):
        scores, state = step(token, state)
        token = scores.argmax(-1)
        out.append(token)
        ended |= {i for i in range(batch_size) if token[i] == eos}
        if len(ended) == batch_size:
            break
    return torch.stack(out, dim=1)


@wrong("greedy_decode", "stops as soon as one row has ended", "C-STOPS-WITH-ANY")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos, dtype=torch.long)
    result = torch.empty(batch_size, 0, dtype=torch.long)
    while result.shape[1] < max_length:
        logits, state = step(token, state)
        token = logits.max(dim=1)[1]
        result = torch.cat([result, token[:, None]], dim=1)
        if (token == eos).any():
            break
    return result


@wrong("greedy_decode", "returns bos as well", "C-KEEPS-BOS")
def _(step, state, bos, eos, max_length, batch_size):
    seq = [torch.full((batch_size,), bos)]
    finished = torch.zeros(batch_size, dtype=bool)
    while len(seq) <= max_length and not finished.all():
        logits, state = step(seq[-1], state)
        nxt = logits.argmax(1)
        nxt[finished] = eos
        finished = finished | (nxt == eos)
        seq.append(nxt)
    return torch.stack(seq, dim=1)


@wrong("greedy_decode", "hands on the first state every time", "C-STATE-NOT-KEPT")
def _(step, state, bos, eos, max_length, batch_size):
    cur = torch.full([batch_size], bos)
    alive = torch.ones(batch_size).bool()
    table = torch.full((batch_size, max_length), eos)
    for t in range(max_length):
        logits, _ = step(cur, state)
        cur = torch.where(alive, logits.argmax(-1), eos)
        table[:, t] = cur
        alive = alive & (cur != eos)
    return table


@wrong("greedy_decode", "draws words instead of taking the likeliest", "C-SAMPLES")
def _(step, state, bos, eos, max_length, batch_size):
    tok = torch.full((batch_size,), bos)
    fin = torch.zeros(batch_size, dtype=torch.bool)
    outs = []
    for _ in range(max_length):
        logits, state = step(tok, state)
        probs = torch.softmax(logits.float(), -1)
        tok = torch.multinomial(probs, 1).squeeze(1)
        tok = tok.masked_fill(fin, eos)
        fin = fin | tok.eq(eos)
        outs.append(tok)
    return torch.stack(outs, 1)


@wrong("greedy_decode", "writes one word too many: does not count eos", "C-ONE-STEP-LONG")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = token != token
    written = []
    for i in range(max_length + 1):
        logits, state = step(token, state)
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        written.append(token)
        if bool(finished.all()):
            break
    return torch.stack(written, dim=1)


@wrong("greedy_decode", "stacks the steps as rows: (n b)", "C-WORDS-BY-TIME")
def _(step, state, bos, eos, max_length, batch_size):
    y = torch.full((batch_size,), bos)
    stop = torch.zeros_like(y).bool()
    ys = []
    for _ in range(max_length):
        scores, state = step(y, state)
        y = torch.where(stop, eos, scores.argmax(dim=-1))
        stop = stop | (y == eos)
        ys.append(y)
    return torch.stack(ys)


@wrong("greedy_decode", "fills finished rows with 0 instead of eos", "C-FILLS-WITH-PAD")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    running = torch.ones(batch_size, dtype=torch.long)
    ids = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1) * running
        ids.append(token)
        running = running * (token != eos).long()
        if running.sum() == 0:
            break
    return torch.stack(ids, dim=1)


@wrong("greedy_decode", "remembers only for one step that a row has ended", "C-FORGETS-FINISHED")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    output = []
    for _ in range(max_length):
        logits, state = step(token, state)
        best = logits.argmax(-1)
        token = torch.where(finished, torch.full_like(best, eos), best)
        finished = best == eos
        output.append(token)
    return torch.stack(output, dim=1)


@wrong("greedy_decode", "starts from eos")
def _(step, state, bos, eos, max_length, batch_size):
    word = torch.full((batch_size,), eos)
    over = torch.zeros(batch_size, dtype=torch.bool)
    sentence = []
    for _ in range(max_length):
        logits, state = step(word, state)
        word = logits.argmax(-1)
        word[over] = eos
        over |= word == eos
        sentence.append(word.clone())
    return torch.stack(sentence, 1)


@wrong(
    "greedy_decode", "looks at the first row only to decide whether to stop", "C-STOPS-WITH-ROW-0"
)
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    hist = []
    finished = [False] * batch_size
    for _ in range(max_length):
        logits, state = step(token, state)
        picks = logits.argmax(-1).tolist()
        for r in range(batch_size):
            if finished[r]:
                picks[r] = eos
            if picks[r] == eos:
                finished[r] = True
        token = torch.tensor(picks)
        hist.append(token)
        if picks[0] == eos:
            break
    return torch.stack(hist, dim=1)


@wrong(
    "greedy_decode",
    "keeps the eos out of the sentence: drops the last column",
    "C-EOS-NOT-WRITTEN",
    "S-STRIP-EOS",
)
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    columns = [torch.empty(batch_size, 0, dtype=torch.long)]
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        if finished.all():
            break
        columns.append(token[:, None])
    return torch.cat(columns, dim=1)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    raw = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = logits.argmax(-1)
        raw.append(token)
    raw = torch.stack(raw, 1)
    ended_before = ((raw == eos).cumsum(1) - (raw == eos).long()) > 0
    return raw.masked_fill(ended_before, eos)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    def write(token, state, left, done):
        if left == 0 or all(done):
            return []
        logits, state = step(token, state)
        best = [eos if d else int(row.argmax()) for row, d in zip(logits, done)]
        done = [d or w == eos for d, w in zip(done, best)]
        token = torch.tensor(best)
        return [token, *write(token, state, left - 1, done)]

    begin = torch.tensor([bos] * batch_size)
    return torch.stack(write(begin, state, max_length, [False] * batch_size), dim=-1)


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    result = torch.full((batch_size, max_length), eos)
    token = torch.full((batch_size,), bos)
    active = torch.ones(batch_size, dtype=torch.bool)
    t = 0
    while t < max_length and active.any():
        scores, state = step(token, state)
        token = torch.topk(scores, 1).indices[:, 0]
        token = token * active + eos * ~active
        result[:, t] = token
        active = torch.logical_and(active, token != eos)
        t = t + 1
    return result


@wrong("exact_match_by_length", "ignores the order of the words", "C-ANY-ORDER")
def _(predictions, targets, lengths):
    right, total = Counter(), Counter()
    for p, t, n in zip(predictions, targets, lengths):
        total[n] += 1
        right[n] += sorted(p) == sorted(t)
    return {n: right[n] / total[n] for n in total}


@wrong("exact_match_by_length", "compares only as far as the shorter one goes", "C-ZIP-STOPS-EARLY")
def _(predictions, targets, lengths):
    groups = {}
    for p, t, n in zip(predictions, targets, lengths):
        same = all(a == b for a, b in zip(p, t))
        groups.setdefault(n, []).append(same)
    return {n: sum(g) / len(g) for n, g in groups.items()}


@wrong("exact_match_by_length", "measures the share of right words", "C-SHARE-OF-WORDS")
def _(predictions, targets, lengths):
    hits = defaultdict(list)
    for p, t, n in zip(predictions, targets, lengths):
        correct = sum(1 for a, b in zip(p, t) if a == b)
        hits[n].append(correct / max(len(p), len(t), 1))
    return {n: sum(h) / len(h) for n, h in hits.items()}


@wrong("exact_match_by_length", "sorts by the length of the target", "C-OWN-LENGTHS")
def _(predictions, targets, lengths):
    scores = {}
    for p, t in zip(predictions, targets):
        scores.setdefault(len(t), []).append(float(p == t))
    return {k: np.mean(v).item() for k, v in scores.items()}


@wrong("exact_match_by_length", "returns counts", "C-COUNTS")
def _(predictions, targets, lengths):
    result = {n: 0 for n in lengths}
    for i in range(len(predictions)):
        if predictions[i] == targets[i]:
            result[lengths[i]] += 1
    return result


@wrong("exact_match_by_length", "leaves out lengths without a hit", "C-ZEROS-MISSING")
def _(predictions, targets, lengths):
    good = Counter(n for p, t, n in zip(predictions, targets, lengths) if p == t)
    every = Counter(lengths)
    return {n: c / every[n] for n, c in good.items()}


@wrong("exact_match_by_length", "divides by all sentences", "C-SHARE-OF-ALL")
def _(predictions, targets, lengths):
    res = dict.fromkeys(lengths, 0.0)
    for p, t, n in zip(predictions, targets, lengths):
        if p == t:
            res[n] += 1 / len(predictions)
    return res


@wrong("exact_match_by_length", "returns percent", "C-PERCENT")
def _(predictions, targets, lengths):
    out = {}
    for n in sorted(set(lengths)):
        rows = [i for i, m in enumerate(lengths) if m == n]
        out[n] = 100 * sum(predictions[i] == targets[i] for i in rows) / len(rows)
    return out


@wrong(
    "exact_match_by_length",
    "divides without a remainder, so only 0 and 1 are left",
    "C-ALL-OR-NOTHING",
)
def _(predictions, targets, lengths):
    right, seen = defaultdict(int), defaultdict(int)
    for p, t, n in zip(predictions, targets, lengths):
        seen[n] += 1
        if list(p) == list(t):
            right[n] += 1
    return {n: float(right[n] // seen[n]) for n in seen}


@wrong("exact_match_by_length", "each sentence overwrites the one before it", "C-LAST-ONE-WINS")
def _(predictions, targets, lengths):
    return {n: float(p == t) for p, t, n in zip(predictions, targets, lengths)}


@wrong("exact_match_by_length", "skips sentences with nothing written", "C-EMPTY-LEFT-OUT")
def _(predictions, targets, lengths):
    table = defaultdict(lambda: [0, 0])
    for p, t, n in zip(predictions, targets, lengths):
        if not p:
            continue
        table[n][0] += p == t
        table[n][1] += 1
    return {n: a / b for n, (a, b) in table.items()}


@wrong("exact_match_by_length", "one list is shared by all lengths", "C-ONE-MEAN")
def _(predictions, targets, lengths):
    buckets = dict.fromkeys(lengths, [])
    for p, t, n in zip(predictions, targets, lengths):
        buckets[n].append(p == t)
    return {n: sum(b) / len(b) for n, b in buckets.items()}


@wrong("exact_match_by_length", "glues words together before comparing", "C-GLUED")
def _(predictions, targets, lengths):
    def text(words):
        return "".join(str(w) for w in words)

    acc = {}
    for p, t, n in zip(predictions, targets, lengths):
        ok, all_ = acc.get(n, (0, 0))
        acc[n] = (ok + (text(p) == text(t)), all_ + 1)
    return {n: ok / all_ for n, (ok, all_) in acc.items()}


@wrong("exact_match_by_length", "adds lengths that do not occur", "C-GAPS-FILLED")
def _(predictions, targets, lengths):
    shares = {}
    for n in range(1, max(lengths) + 1):
        marks = [p == t for p, t, m in zip(predictions, targets, lengths) if m == n]
        shares[n] = sum(marks) / len(marks) if marks else 0.0
    return shares


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups = itertools.groupby(order, key=lambda i: lengths[i])
    return {n: statistics.mean(float(predictions[i] == targets[i]) for i in g) for n, g in groups}


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    share, seen = {}, {}
    for i, n in enumerate(lengths):
        p, t = predictions[i], targets[i]
        good = len(p) == len(t) and all(a == b for a, b in zip(p, t))
        seen[n] = seen.get(n, 0) + 1
        share[n] = share.get(n, 0.0) + (good - share.get(n, 0.0)) / seen[n]
    return share


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    ns = np.array(lengths)
    ok = np.array([tuple(p) == tuple(t) for p, t in zip(predictions, targets)], dtype=float)
    return {int(n): float(ok[ns == n].mean()) for n in np.unique(ns)}


# --- Chapter 2: additive attention ----------------------------------------------------------------


@wrong("dot_scores", "sums over the keys instead of the features", "C-SUMMED-OVER-KEYS")
def _(query, keys):
    return (query.unsqueeze(1) * keys).sum(dim=1)


@wrong("dot_scores", "measures the angle: cosine similarity", "D-COSINE")
def _(query, keys):
    return F.cosine_similarity(query[:, None, :], keys, dim=-1)


@wrong("dot_scores", "divides by the root of d", "C-DOT-SCALED")
def _(query, keys):
    d = query.shape[-1]
    return torch.einsum("bd,bkd->bk", query, keys) / d**0.5


@wrong("dot_scores", "returns weights: takes a softmax", "C-SCORES-ARE-WEIGHTS")
def _(query, keys):
    scores = torch.bmm(keys, query[:, :, None])[:, :, 0]
    return torch.softmax(scores, dim=-1)


@wrong("dot_scores", "adds up the keys of all sentences", "C-ALL-PAIRS")
def _(query, keys):
    return torch.einsum("bd,ckd->bk", query, keys)


@wrong("dot_scores", "keeps an axis of length 1", "C-KEEPDIM")
def _(query, keys):
    return torch.bmm(keys, query.unsqueeze(2))


@wrong("dot_scores", "squeezes every axis of length 1", "C-SQUEEZE")
def _(query, keys):
    q = query.unsqueeze(1)
    return (q @ keys.transpose(1, 2)).squeeze()


@wrong("dot_scores", "asks with the first sentence's query everywhere", "C-FIRST-QUERY")
def _(query, keys):
    return keys @ query[0]


@wrong("dot_scores", "takes the mean of the products", "C-MEAN")
def _(query, keys):
    prod = keys * query[:, None]
    return prod.mean(-1)


@wrong("dot_scores", "views the keys as (b d k) instead of turning them", "D-RESHAPE-KEY")
def _(query, keys):
    b, k, d = keys.shape
    return torch.matmul(query.reshape(b, 1, d), keys.reshape(b, d, k))[:, 0]


@wrong("dot_scores", "scores by the negative distance", "D-DISTANCE")
def _(query, keys):
    return -torch.cdist(query[:, None], keys).squeeze(1)


@wrong(
    "dot_scores",
    "builds the table from plain numbers and loses the gradient",
    "C-DETACHED",
    "C-FLOAT32",
)
def _(query, keys):
    table = []
    for q, ks in zip(query, keys):
        table.append([torch.dot(q, k).item() for k in ks])
    return torch.tensor(table)


@right("dot_scores")
def _(query, keys):
    return torch.stack([torch.mv(K, q) for K, q in zip(keys, query)])


@right("dot_scores")
def _(query, keys):
    out = []
    for j in range(keys.size(1)):
        out.append(torch.linalg.vecdot(query, keys[:, j]))
    return torch.stack(out, dim=1)


@right("dot_scores")
def _(query, keys):
    return torch.diagonal(torch.tensordot(query, keys, dims=([1], [2])), dim1=0, dim2=1).T


@wrong("general_scores", "divides by the root of the key's width", "C-GENERAL-SCALED")
def _(query, keys, W):
    return ((query @ W)[:, None, :] * keys).sum(-1) / math.sqrt(keys.shape[-1])


@wrong("general_scores", "takes a softmax at once", "C-SCORES-ARE-WEIGHTS")
def _(query, keys, W):
    s = torch.einsum("be,ed,bkd->bk", query, W, keys)
    return s.softmax(1)


@wrong("general_scores", "bends the projected query with a tanh", "C-GENERAL-TANH")
def _(query, keys, W):
    projected = torch.tanh(query @ W)
    return torch.einsum("bd,bkd->bk", projected, keys)


@wrong("general_scores", "sums over the keys", "C-SUMMED-OVER-KEYS")
def _(query, keys, W):
    q = torch.matmul(query, W)
    return (q.unsqueeze(1) * keys).sum(1)


@wrong("general_scores", "turns W around by a reshape", "C-W-TRANSPOSED", "C-W-RESHAPED")
def _(query, keys, W):
    e, d = W.shape
    mapped = keys @ W.reshape(d, e)
    return (mapped * query[:, None]).sum(dim=2)


@wrong("general_scores", "multiplies by W the wrong way around", "C-W-TRANSPOSED")
def _(query, keys, W):
    q = query @ W.T
    return torch.bmm(keys, q.unsqueeze(-1)).squeeze(-1)


@wrong("general_scores", "leaves W out", "C-NO-W")
def _(query, keys, W):
    d = min(query.shape[-1], keys.shape[-1])
    return torch.einsum("bd,bkd->bk", query[:, :d], keys[..., :d])


@wrong("general_scores", "adds up the keys of all sentences", "C-ALL-PAIRS")
def _(query, keys, W):
    return torch.einsum("be,ed,ckd->bk", query, W, keys)


@wrong("general_scores", "keeps an axis of length 1", "C-KEEPDIM")
def _(query, keys, W):
    return keys @ (query @ W).unsqueeze(-1)


@wrong("general_scores", "asks with the last sentence's query everywhere", "C-FIRST-QUERY")
def _(query, keys, W):
    for i in range(len(query)):
        q = query[i] @ W
    return keys @ q


@wrong("general_scores", "W learns nothing: uses its data", "C-FROZEN-W")
def _(query, keys, W):
    q = F.linear(query, W.data.t())
    return torch.stack([k @ v for k, v in zip(keys, q)])


@wrong("general_scores", "takes the mean over the features", "C-MEAN")
def _(query, keys, W):
    q = torch.mm(query, W)
    return torch.mean(q[:, None] * keys, dim=-1)


@wrong("general_scores", "squeezes away axes that happen to be 1", "C-SQUEEZE")
def _(query, keys, W):
    return torch.matmul(keys, (query @ W)[..., None]).squeeze()


@right("general_scores")
def _(query, keys, W):
    return F.bilinear(
        query[:, None].repeat(1, keys.shape[1], 1).flatten(0, 1), keys.flatten(0, 1), W[None]
    ).view(keys.shape[:2])


@right("general_scores")
def _(query, keys, W):
    in_query_space = torch.einsum("bkd,ed->bke", keys, W)
    return torch.baddbmm(torch.zeros(1).to(query), in_query_space, query[:, :, None]).squeeze(2)


@right("general_scores")
def _(query, keys, W):
    scores = query.new_zeros(keys.shape[0], keys.shape[1])
    for i in range(keys.shape[0]):
        for j in range(keys.shape[1]):
            scores[i, j] = query[i] @ W @ keys[i, j]
    return scores


@wrong("concat_scores", "puts the key before the query", "C-KEYS-FIRST")
def _(query, keys, W, v):
    q = query.unsqueeze(1).expand(-1, keys.size(1), -1)
    return torch.tanh(torch.cat([keys, q], dim=-1) @ W) @ v


@wrong("concat_scores", "forgets the tanh", "A-NO-TANH")
def _(query, keys, W, v):
    k = keys.shape[1]
    pair = torch.cat((query[:, None].repeat(1, k, 1), keys), 2)
    return torch.matmul(pair, W).matmul(v)


@wrong("concat_scores", "bends the score instead of the hidden units", "C-TANH-LAST")
def _(query, keys, W, v):
    q = repeat(query, "b e -> b k e", k=keys.shape[1])
    return torch.tanh(torch.cat([q, keys], -1) @ W @ v)


@wrong("concat_scores", "takes a sigmoid", "C-SIGMOID")
def _(query, keys, W, v):
    q = query[:, None, :].expand(query.shape[0], keys.shape[1], query.shape[1])
    hidden = torch.sigmoid(torch.cat([q, keys], dim=2) @ W)
    return torch.einsum("bka,a->bk", hidden, v)


@wrong("concat_scores", "adds up the hidden units without v", "C-NO-V")
def _(query, keys, W, v):
    q = torch.stack([query] * keys.shape[1], dim=1)
    return torch.cat([q, keys], dim=-1).matmul(W).tanh().sum(-1)


@wrong("concat_scores", "repeats the batch in the wrong order, so sentences mix", "C-REPEAT")
def _(query, keys, W, v):
    b, k, d = keys.shape
    q = query.repeat(k, 1).view(b, k, -1)
    return (torch.tanh(torch.cat([q, keys], -1) @ W) * v).sum(-1)


@wrong("concat_scores", "returns weights: takes a softmax", "C-SCORES-ARE-WEIGHTS")
def _(query, keys, W, v):
    q = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
    energy = torch.tanh(torch.cat([q, keys], -1) @ W) @ v
    return F.softmax(energy, dim=1)


@wrong("concat_scores", "keeps an axis of length 1", "C-KEEPDIM")
def _(query, keys, W, v):
    q = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
    h = torch.tanh(torch.matmul(torch.cat([q, keys], -1), W))
    return torch.matmul(h, v.unsqueeze(1))


@wrong("concat_scores", "uses the first sentence's query for all sentences", "C-FIRST-QUERY")
def _(query, keys, W, v):
    rows = []
    for sent in keys:
        q = query[0].expand(len(sent), -1)
        rows.append(torch.tanh(torch.hstack([q, sent]) @ W) @ v)
    return torch.stack(rows)


@wrong("concat_scores", "makes v sum to one", "C-V-SHARES")
def _(query, keys, W, v):
    q = query[:, None].expand(-1, keys.shape[1], -1)
    hidden = torch.tanh(torch.cat([q, keys], dim=-1) @ W)
    return hidden @ torch.softmax(v, 0)


@wrong("concat_scores", "takes the mean over the hidden units", "C-MEAN")
def _(query, keys, W, v):
    q = query[:, None].expand(-1, keys.shape[1], -1)
    hidden = torch.cat([q, keys], dim=-1).matmul(W).tanh()
    return (hidden * v).mean(dim=2)


@wrong("concat_scores", "bends the inputs instead of the hidden units", "C-TANH-FIRST")
def _(query, keys, W, v):
    scores = []
    for t in range(keys.shape[1]):
        both = torch.cat([query, keys[:, t, :]], dim=1)
        scores.append(torch.tanh(both) @ W @ v)
    return torch.stack(scores, dim=1)


@wrong("concat_scores", "divides by the root of the hidden width", "C-SCALED")
def _(query, keys, W, v):
    q = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
    return torch.tanh(torch.cat([q, keys], -1) @ W) @ v / math.sqrt(v.numel())


@right("concat_scores")
def _(query, keys, W, v):
    e = query.size(-1)
    return ((query @ W[:e])[:, None] + keys @ W[e:]).tanh() @ v


@right("concat_scores")
def _(query, keys, W, v):
    b, k, d = keys.shape
    q = query.repeat_interleave(k, dim=0)
    flat = torch.cat([q, keys.reshape(b * k, d)], 1)
    return torch.tanh(flat @ W).mv(v).reshape(b, k)


@right("concat_scores")
def _(query, keys, W, v):
    def score(q, k):
        return torch.dot(v, torch.tanh(W.t() @ torch.cat([q, k])))

    return torch.stack([torch.stack([score(q, k) for k in ks]) for q, ks in zip(query, keys)])


@wrong("additive_scores", "multiplies the projections instead of adding them", "C-PRODUCT")
def _(query, keys, W_query, W_key, v):
    q = (query @ W_query).unsqueeze(1)
    return torch.tanh(q * (keys @ W_key)) @ v


@wrong("additive_scores", "forgets the tanh", "A-NO-TANH")
def _(query, keys, W_query, W_key, v):
    hidden = (query @ W_query)[:, None] + keys @ W_key
    return torch.einsum("bka,a->bk", hidden, v)


@wrong("additive_scores", "bends query and key apart, before they are added", "C-TANH-EACH")
def _(query, keys, W_query, W_key, v):
    q = torch.tanh(torch.matmul(query, W_query))
    k = torch.tanh(torch.matmul(keys, W_key))
    return (q[:, None, :] + k).matmul(v)


@wrong(
    "additive_scores",
    "lines the queries up with the keys' axis instead of the batch",
    "A-BROADCAST",
)
def _(query, keys, W_query, W_key, v):
    q = query @ W_query
    k = keys @ W_key
    return torch.tanh(q.unsqueeze(0) + k) @ v


@wrong("additive_scores", "ignores v", "C-NO-V")
def _(query, keys, W_query, W_key, v):
    q = rearrange(query @ W_query, "b a -> b 1 a")
    return torch.tanh(q + keys @ W_key).sum(dim=-1)


@wrong("additive_scores", "sums over the keys")
def _(query, keys, W_query, W_key, v):
    hidden = torch.tanh((query @ W_query).unsqueeze(1) + keys @ W_key)
    return (hidden * v).sum(1)


@wrong("additive_scores", "divides by the root of a", "C-SCALED")
def _(query, keys, W_query, W_key, v):
    a = W_query.shape[1]
    hidden = torch.tanh((query @ W_query)[:, None] + keys @ W_key)
    return hidden @ v / a**0.5


@wrong("additive_scores", "returns weights", "C-SCORES-ARE-WEIGHTS")
def _(query, keys, W_query, W_key, v):
    pre = torch.einsum("be,ea->ba", query, W_query)[:, None] + keys @ W_key
    scores = pre.tanh() @ v
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


@wrong("additive_scores", "leaves the query out", "C-NO-QUERY")
def _(query, keys, W_query, W_key, v):
    return torch.tanh(keys @ W_key) @ v


@wrong("additive_scores", "takes a relu", "A-RELU")
def _(query, keys, W_query, W_key, v):
    q = query @ W_query
    return torch.stack(
        [torch.relu(q + keys[:, j] @ W_key) @ v for j in range(keys.shape[1])], dim=-1
    )


@wrong("additive_scores", "bends the score instead of the hidden units", "C-TANH-LAST")
def _(query, keys, W_query, W_key, v):
    q_part = (query @ W_query @ v)[:, None]
    k_part = keys @ W_key @ v
    return torch.tanh(q_part + k_part)


@wrong("additive_scores", "repeats the queries in the wrong order, so sentences mix", "A-BROADCAST")
def _(query, keys, W_query, W_key, v):
    B, K, _ = keys.shape
    q = (query @ W_query).repeat(K, 1).reshape(B, K, -1)
    return torch.matmul(torch.tanh(q + keys @ W_key), v)


@wrong("additive_scores", "lets v learn nothing", "C-FROZEN-V")
def _(query, keys, W_query, W_key, v):
    h = torch.tanh((query @ W_query).unsqueeze(-2) + keys @ W_key)
    return h @ v.detach()


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    W = torch.vstack([W_query, W_key])
    q = query.unsqueeze(1).expand(*keys.shape[:2], -1)
    return F.linear(F.linear(torch.cat([q, keys], -1), W.T).tanh(), v[None]).squeeze(-1)


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    K = torch.einsum("bkd,da->kba", keys, W_key)
    return torch.inner(torch.tanh(K + query @ W_query), v).T


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    x = (query @ W_query)[:, None] + keys @ W_key
    tanh = 2 * torch.sigmoid(2 * x) - 1
    return torch.tensordot(tanh, v, dims=1)


@wrong("attend", "takes the mask the wrong way around", "M-POLARITY")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(mask, 0)
    return torch.einsum("bk,bkv->bv", weights, values), weights


@wrong("attend", "gives hidden keys the score 0", "M-FILL-ZERO")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores * mask
    w = F.softmax(scores, dim=1)
    if mask is not None:
        w = w * mask.any(1, keepdim=True)
    return torch.bmm(w[:, None, :], values)[:, 0], w


@wrong("attend", "hides after the softmax and does not share out again", "M-AFTER-SOFTMAX")
def _(scores, values, mask=None):
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    context = (weights.unsqueeze(-1) * values).sum(dim=1)
    return context, weights


@wrong("attend", "lets the sentences of the batch compete", "A-SOFTMAX-QUERIES")
def _(scores, values, mask=None):
    if mask is not None:
        scores = torch.where(mask, scores, torch.tensor(-1e30, dtype=scores.dtype))
    weights = F.softmax(scores, dim=0)
    if mask is not None:
        weights = weights * mask
    return torch.matmul(weights.unsqueeze(1), values).squeeze(1), weights


@wrong("attend", "a row with everything hidden becomes NaN", "M-DEAD-ROW")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    alpha = torch.softmax(scores, -1)
    c = alpha.unsqueeze(1).bmm(values).squeeze(1)
    return c, alpha


@wrong("attend", "a row with everything hidden shares out evenly", "M-DEAD-ROW-UNIFORM")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    alpha = F.softmax(scores, dim=-1)
    return torch.einsum("bk,bkd->bd", alpha, values), alpha


@wrong("attend", "its exp overflows", "D-NAIVE-SOFTMAX")
def _(scores, values, mask=None):
    e = torch.exp(scores)
    if mask is not None:
        e = e * mask.to(e.dtype)
    total = e.sum(1, keepdim=True)
    weights = torch.where(total > 0, e / total, torch.zeros_like(e))
    return (weights[..., None] * values).sum(1), weights


@wrong("attend", "does not use the mask", "A-NO-MASK")
def _(scores, values, mask=None):
    weights = torch.softmax(scores, dim=1)
    return (weights[:, None] @ values)[:, 0], weights


@wrong("attend", "returns the pair the wrong way around", "D-SWAPPED-RESULTS")
def _(scores, values, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    w = torch.softmax(scores.masked_fill(~mask, -1e38), -1) * mask
    return w, torch.einsum("bk,bkv->bv", w, values)


@wrong("attend", "writes into the scores", "M-INPLACE")
def _(scores, values, mask=None):
    if mask is not None:
        scores[~mask] = torch.finfo(scores.dtype).min
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights * mask
    return torch.einsum("bk,bkv->bv", weights, values), weights


@wrong(
    "attend", "shifts by the largest score of the whole batch, so low rows vanish", "D-GLOBAL-MAX"
)
def _(scores, values, mask=None):
    e = (scores - scores.max()).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    w = e / e.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.einsum("bk,bkv->bv", w, values), w


@wrong("attend", "hides the values, not the scores: padding still takes its share", "M-VALUES")
def _(scores, values, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        values = values * mask.unsqueeze(-1)
    return torch.bmm(weights.unsqueeze(1), values).squeeze(1), weights


@wrong("attend", "keeps an axis of length 1 in the context", "C-KEEPDIM")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return weights.unsqueeze(1) @ values, weights


@wrong("attend", "shifts by a maximum that includes hidden scores", "M-AFTER-RENORMALIZED")
def _(scores, values, mask=None):
    top = scores.max(dim=-1, keepdim=True).values
    exp = torch.exp(scores - top)
    if mask is not None:
        exp = torch.where(mask, exp, 0.0)
    norm = exp.sum(-1, keepdim=True)
    weights = exp / torch.where(norm == 0, 1.0, norm)
    return (weights.unsqueeze(2) * values).sum(1), weights


@wrong("attend", "hides with -1e4, which is not below every score", "M-SMALL-FILL")
def _(scores, values, mask=None):
    if mask is not None:
        scores = torch.where(mask, scores, torch.full_like(scores, -1e4))
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask.any(dim=-1, keepdim=True)
    return torch.einsum("bk,bkv->bv", weights, values), weights


@wrong("attend", "the context is the plain mean of the visible values")
def _(scores, values, mask=None):
    if mask is None:
        mask = torch.ones(scores.shape, dtype=torch.bool)
    w = torch.softmax(scores.masked_fill(~mask, -1e38), dim=-1).masked_fill(~mask, 0)
    n = mask.sum(1, keepdim=True).clamp(min=1)
    return (values * mask[..., None]).sum(1) / n, w


@right("attend")
def _(scores, values, mask=None):
    contexts, tables = [], []
    for i in range(len(scores)):
        seen = torch.arange(scores.shape[1]) if mask is None else mask[i].nonzero()[:, 0]
        w = torch.zeros_like(scores[i])
        w = w.index_put((seen,), torch.softmax(scores[i][seen], 0))
        tables.append(w)
        contexts.append(w @ values[i])
    return torch.stack(contexts), torch.stack(tables)


@right("attend")
def _(scores, values, mask=None):
    if mask is None:
        mask = scores == scores
    low = torch.finfo(scores.dtype).min
    log_w = torch.where(mask, scores, low).log_softmax(-1)
    w = log_w.exp() * mask
    return torch.bmm(values.transpose(1, 2), w[..., None]).squeeze(-1), w


@right("attend")
def _(scores, values, mask=None):
    m = torch.ones_like(scores) if mask is None else mask.to(scores)
    hidden = torch.where(m > 0, scores, scores.new_tensor(float("-inf")))
    peak = hidden.amax(1, keepdim=True)
    peak = torch.where(peak.isinf(), torch.zeros_like(peak), peak)
    e = (hidden - peak).exp()
    w = e / e.sum(1, keepdim=True).clamp(min=1e-12)
    return torch.einsum("bkv,bk->bv", values, w), w


@wrong("AdditiveAttention", "keeps the biases", "A-BIAS")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        s = self.v(torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))).squeeze(-1)
        if mask is not None:
            s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
        w = torch.softmax(s, -1)
        if mask is not None:
            w = w * mask
        return torch.einsum("bk,bkd->bd", w, keys), w


@wrong("AdditiveAttention", "calls its layers by other names", "C-NAMES")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attention_dim, bias=False)
        self.key_layer = nn.Linear(key_dim, attention_dim, bias=False)
        self.energy_layer = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        q = self.query_layer(query).unsqueeze(1)
        s = self.energy_layer(torch.tanh(q + self.key_layer(keys))).squeeze(2)
        if mask is not None:
            s = s.masked_fill(~mask, -1e30)
        w = F.softmax(s, dim=-1)
        if mask is not None:
            w = w.masked_fill(~mask, 0)
        return torch.bmm(w.unsqueeze(1), keys).squeeze(1), w


@wrong("AdditiveAttention", "averages the projected keys", "A-VALUE-IS-KEY")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        keys = self.W_key(keys)
        scores = self.v(torch.tanh(self.W_query(query).unsqueeze(1) + keys)).squeeze(-1)
        return attend(scores, keys, mask)


@wrong("AdditiveAttention", "forgets the tanh", "A-NO-TANH")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        hidden = self.W_query(query)[:, None, :] + self.W_key(keys)
        return attend(self.v(hidden)[..., 0], keys, mask)


@wrong("AdditiveAttention", "takes True for hidden", "M-POLARITY")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, False)
        self.W_key = nn.Linear(key_dim, attention_dim, False)
        self.v = nn.Linear(attention_dim, 1, False)

    def energy(self, query, keys):
        return self.v((self.W_query(query).unsqueeze(1) + self.W_key(keys)).tanh()).squeeze(-1)

    def forward(self, query, keys, mask=None):
        e = self.energy(query, keys)
        if mask is not None:
            e = e.masked_fill(mask, -1e30)
        w = e.softmax(-1)
        if mask is not None:
            w = w * (~mask)
        return (w[..., None] * keys).sum(1), w


@wrong(
    "AdditiveAttention",
    "takes the softmax along an axis of length 1: all weights are 1",
    "C-SOFTMAX-LAST-OF-THREE",
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        scores = self.v(torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys)))
        weights = torch.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights * mask.unsqueeze(-1)
        return (weights * keys).sum(dim=1), weights.squeeze(-1)


@wrong("AdditiveAttention", "projects the keys once and keeps them for later calls", "C-STALE-KEYS")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.projected = None

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        if self.projected is None or self.projected.shape[:2] != keys.shape[:2]:
            self.projected = self.W_key(keys)
        s = self.v(torch.tanh(self.W_query(query)[:, None] + self.projected)).squeeze(-1)
        return attend(s, keys, mask)


@wrong("AdditiveAttention", "does not use the mask", "A-NO-MASK")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(rearrange(self.W_query(query), "b a -> b 1 a") + self.W_key(keys))
        weights = rearrange(self.v(hidden), "b k 1 -> b k").softmax(dim=1)
        context = torch.einsum("bk,bkd->bd", weights, keys)
        return context, weights


@wrong("AdditiveAttention", "a row with everything hidden becomes NaN", "M-DEAD-ROW")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        scores = self.v(torch.tanh(self.W_query(query[:, None]) + self.W_key(keys))).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(torch.logical_not(mask), -math.inf)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights[:, None], keys)[:, 0], weights


@wrong("AdditiveAttention", "draws a new v at every call", "C-UNREGISTERED")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.attention_dim = attention_dim

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        v = nn.Linear(self.attention_dim, 1, bias=False)
        scores = v(torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys))).squeeze(-1)
        return attend(scores, keys, mask)


@wrong("AdditiveAttention", "searches without gradient", "D-DETACHED-WEIGHTS")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    @torch.no_grad()
    def weigh(self, query, keys, mask):
        s = self.v(torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys))).squeeze(-1)
        if mask is None:
            return s.softmax(-1)
        return s.masked_fill(~mask, -1e30).softmax(-1) * mask

    def forward(self, query, keys, mask=None):
        weights = self.weigh(query, keys, mask)
        return torch.einsum("bk,bkd->bd", weights, keys), weights


@wrong("AdditiveAttention", "returns scores instead of weights", "D-SCORES-AS-WEIGHTS")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        h = torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))
        scores = (h @ self.v.weight.T).squeeze(-1)
        context, _ = attend(scores, keys, mask)
        return context, scores


@wrong("AdditiveAttention", "divides the scores by the root of the attention's width", "C-SCALED")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.scale = attention_dim**0.5

    def forward(self, query, keys, mask=None):
        from attncourse.additive import attend

        h = torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))
        return attend(self.v(h).squeeze(2) / self.scale, keys, mask)


@right("AdditiveAttention")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        for name, sizes in {
            "W_query": (query_dim, attention_dim),
            "W_key": (key_dim, attention_dim),
            "v": (attention_dim, 1),
        }.items():
            setattr(self, name, nn.Linear(*sizes, bias=False))

    def forward(self, query, keys, mask=None):
        contexts, weights = [], []
        for b in range(query.shape[0]):
            s = self.v(torch.tanh(self.W_query(query[b]) + self.W_key(keys[b])))[:, 0]
            seen = torch.ones_like(s, dtype=torch.bool) if mask is None else mask[b]
            w = torch.zeros_like(s)
            if seen.any():
                w = w.masked_scatter(seen, s[seen].softmax(0))
            weights.append(w)
            contexts.append(w @ keys[b])
        return torch.stack(contexts), torch.stack(weights)


@right("AdditiveAttention")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.v = nn.Linear(in_features=attention_dim, out_features=1, bias=False)
        self.W_key = nn.Linear(in_features=key_dim, out_features=attention_dim, bias=False)
        self.W_query = nn.Linear(in_features=query_dim, out_features=attention_dim, bias=False)

    def forward(self, query, keys, mask=None):
        joint = torch.cat([self.W_query.weight, self.W_key.weight], dim=1)
        pair = torch.cat([query.unsqueeze(1).expand(-1, keys.shape[1], -1), keys], dim=2)
        logits = self.v(F.linear(pair, joint).tanh()).flatten(1)
        allowed = torch.ones_like(logits) if mask is None else mask.to(logits)
        logits = logits + (1 - allowed) * -1e9
        weights = logits.softmax(1) * allowed
        return (weights[:, None] @ keys).flatten(1), weights


@right("AdditiveAttention")
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query, self.W_key, self.v = (
            nn.Linear(i, o, bias=False)
            for i, o in [(query_dim, attention_dim), (key_dim, attention_dim), (attention_dim, 1)]
        )

    def forward(self, query, keys, mask=None):
        q, k = self.W_query(query), self.W_key(keys)
        scores = torch.einsum("bka,a->bk", torch.tanh(q[:, None] + k), self.v.weight[0])
        if mask is None:
            weights = scores.softmax(-1)
        else:
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
            e = (scores - scores.max(-1, keepdim=True)[0]).exp() * mask
            weights = e / (e.sum(-1, keepdim=True) + (e.sum(-1, keepdim=True) == 0))
        return torch.einsum("bk,bkd->bd", weights, keys), weights


# --- Chapter 3: scaled dot-product attention ------------------------------------------------------


@wrong("softmax", "always normalizes along the last axis", "D-SOFTMAX-IGNORES-DIM")
def _(scores, dim=-1):
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)


@wrong("softmax", "forgets keepdim below the fraction line", "D-SOFTMAX-KEEPDIM")
def _(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim)


@wrong("softmax", "does not shift: exp overflows", "D-NAIVE-SOFTMAX")
def _(scores, dim=-1):
    return scores.exp() / scores.exp().sum(dim=dim, keepdim=True)


@wrong("softmax", "shifts by the largest score of all: low rows become 0/0", "D-SOFTMAX-GLOBAL-MAX")
def _(scores, dim=-1):
    z = torch.exp(scores - torch.max(scores))
    return z / torch.sum(z, dim, keepdim=True)


@wrong("softmax", "divides by the sum over everything", "D-SOFTMAX-ALL")
def _(scores, dim=-1):
    e = torch.exp(scores - scores.max())
    return e / e.sum()


@wrong("softmax", "shifts by the mean", "D-SOFTMAX-MEAN")
def _(scores, dim=-1):
    centered = scores - scores.mean(dim, keepdim=True)
    e = torch.exp(centered)
    return e / e.sum(dim, keepdim=True)


@wrong("softmax", "cuts scores off at 80", "D-SOFTMAX-CLAMP")
def _(scores, dim=-1):
    safe = torch.clamp(scores, min=-80, max=80)
    num = torch.exp(safe)
    return num / num.sum(dim).unsqueeze(dim)


@wrong(
    "softmax", "divides by the largest score instead of subtracting it", "D-SOFTMAX-DIVIDES-BY-MAX"
)
def _(scores, dim=-1):
    biggest = scores.abs().amax(dim, keepdim=True)
    scaled = scores / biggest
    return scaled.exp() / scaled.exp().sum(dim, keepdim=True)


@wrong("softmax", "takes powers of 2", "D-SOFTMAX-BASE")
def _(scores, dim=-1):
    m, _ = scores.max(dim, keepdim=True)
    p = 2 ** (scores - m)
    return p / p.sum(dim, keepdim=True)


@wrong("softmax", "returns float32 for everything", "D-SOFTMAX-FLOAT32")
def _(scores, dim=-1):
    x = scores.float()
    x = x - x.max(dim, keepdim=True)[0]
    return torch.exp(x) / torch.exp(x).sum(dim, keepdim=True)


@wrong("softmax", "writes into the scores", "D-SOFTMAX-INPLACE")
def _(scores, dim=-1):
    scores -= scores.max(dim=dim, keepdim=True).values
    exps = torch.exp(scores)
    return exps / exps.sum(dim=dim, keepdim=True)


@wrong("softmax", "forgets exp: shares of the scores", "D-SOFTMAX-LINEAR", "D-SOFTMAX-FROM-MINIMUM")
def _(scores, dim=-1):
    positive = scores - scores.amin(dim, keepdim=True) + 1e-6
    return positive / positive.sum(dim, keepdim=True)


@wrong("softmax", "shifts along the last axis, whatever dim is", "D-SOFTMAX-SHIFT-AXIS")
def _(scores, dim=-1):
    shifted = scores - scores.max(-1, keepdim=True)[0]
    e = shifted.exp()
    return e / e.sum(dim, keepdim=True)


@wrong("softmax", "returns the logarithms", "D-SOFTMAX-LOG")
def _(scores, dim=-1):
    shifted = scores - scores.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@wrong("softmax", "leaves torch for numpy, and the gradient there", "D-SOFTMAX-DETACH")
def _(scores, dim=-1):
    a = scores.detach().numpy()
    a = np.exp(a - a.max(axis=dim, keepdims=True))
    return torch.from_numpy(a / a.sum(axis=dim, keepdims=True))


@right("softmax")
def _(scores, dim=-1):
    return torch.exp(scores - torch.logsumexp(scores, dim, keepdim=True))


@right("softmax")
def _(scores, dim=-1):
    last_first = scores.movedim(dim, 0)
    top = last_first[0]
    for s in last_first:
        top = torch.maximum(top, s)
    e = torch.stack([(s - top).exp() for s in last_first])
    return (e / sum(e)).movedim(0, dim)


@right("softmax")
def _(scores, dim=-1):
    total = functools.reduce(torch.logaddexp, scores.unbind(dim)).unsqueeze(dim)
    return (scores - total).exp()


@wrong("scaled_dot_product_attention", "divides by d instead of its root", "D-SCALE-DK")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.size(-1)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


@wrong("scaled_dot_product_attention", "divides by the root of the value's width", "D-SCALE-DV")
def _(query, key, value, mask=None):
    d_k = value.shape[-1]
    scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(d_k)
    if mask is not None:
        scores = torch.where(mask, scores, -1e30)
    w = torch.softmax(scores, dim=-1)
    if mask is not None:
        w = w * mask
    return torch.einsum("...qk,...kv->...qv", w, value), w


@wrong("scaled_dot_product_attention", "divides by the root of the number of keys", "D-SCALE-KEYS")
def _(query, key, value, mask=None):
    scores = torch.matmul(query, key.mT)
    scores = scores / scores.shape[-1] ** 0.5
    if mask is None:
        attn = F.softmax(scores, -1)
    else:
        attn = F.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1)
        attn = attn.masked_fill(~mask, 0.0)
    return torch.matmul(attn, value), attn


@wrong("scaled_dot_product_attention", "does not scale", "D-NO-SCALE")
def _(query, key, value, mask=None):
    logits = query.matmul(key.swapaxes(-1, -2))
    if mask is not None:
        logits = logits.masked_fill(mask == False, -1e30)
    alpha = logits.softmax(dim=-1)
    if mask is not None:
        alpha = alpha * mask.to(alpha.dtype)
    return alpha.matmul(value), alpha


@wrong("scaled_dot_product_attention", "multiplies by the root of d", "D-SCALE-TIMES")
def _(query, key, value, mask=None):
    scale = math.sqrt(key.shape[-1])
    s = (query * scale) @ key.transpose(-1, -2)
    if mask is not None:
        s = s.masked_fill(~mask, -1e30)
    p = s.softmax(-1)
    if mask is not None:
        p = p.masked_fill(~mask, 0)
    return p @ value, p


@wrong("scaled_dot_product_attention", "lets the queries compete", "D-SOFTMAX-DIM")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-2)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return weights @ value, weights


@wrong("scaled_dot_product_attention", "takes the mask the wrong way around", "M-POLARITY")
def _(query, key, value, mask=None):
    scores = torch.einsum("...id,...jd->...ij", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask, -1e30)
    weights = F.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(mask, 0)
    return torch.einsum("...ij,...jv->...iv", weights, value), weights


@wrong("scaled_dot_product_attention", "NaN for a query that may see nothing", "M-DEAD-ROW")
def _(query, key, value, mask=None):
    d = query.shape[-1]
    scores = (query / math.sqrt(d)) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


@wrong(
    "scaled_dot_product_attention",
    "a query that may see nothing sees everything a little",
    "M-DEAD-ROW-UNIFORM",
)
def _(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value), p_attn


@wrong(
    "scaled_dot_product_attention",
    "masks after the softmax and does not share out again",
    "M-AFTER-SOFTMAX",
)
def _(query, key, value, mask=None):
    weights = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), dim=-1)
    if mask is not None:
        weights = torch.where(mask, weights, 0.0)
    return weights @ value, weights


@wrong(
    "scaled_dot_product_attention",
    "returns the scores instead of the weights",
    "D-SCORES-AS-WEIGHTS",
)
def _(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    w = torch.softmax(scores, -1)
    if mask is not None:
        w = w * mask
    return w @ value, scores


@wrong(
    "scaled_dot_product_attention", "swaps axes 1 and 2: right only for (b k d)", "D-TRANSPOSE-12"
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    w = torch.softmax(scores, -1)
    if mask is not None:
        w = w.masked_fill(~mask, 0)
    return w @ value, w


@wrong("scaled_dot_product_attention", "scales the weights, not the scores", "D-SCALE-AFTER")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1) / math.sqrt(query.shape[-1])
    if mask is not None:
        weights = weights * mask
    return weights @ value, weights


@wrong("scaled_dot_product_attention", "adds the boolean mask to the scores", "M-ADD-BOOL")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


@wrong("scaled_dot_product_attention", "writes the width down: divides by 8", "D-SCALE-CONSTANT")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / 8.0
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


@wrong("scaled_dot_product_attention", "multiplies the scores by the mask", "M-FILL-ZERO")
def _(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores * mask
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask.any(-1, keepdim=True)
    return weights @ value, weights


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    q = query * (1.0 / math.sqrt(query.shape[-1]))
    scores = torch.stack([(q * k.unsqueeze(-2)).sum(-1) for k in key.unbind(-2)], dim=-1)
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    w = torch.softmax(scores, -1) * mask
    return torch.einsum("...qk,...kv->...qv", w, value), w


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    root = query.shape[-1] ** 0.25
    s = (query / root).matmul((key / root).transpose(-1, -2))
    if mask is None:
        w = s.softmax(-1)
    else:
        mask = mask.broadcast_to(s.shape)
        alive = mask.any(-1, keepdim=True)
        w = s.masked_fill(alive & ~mask, -math.inf).softmax(-1).where(alive, 0.0)
    return w.matmul(value), w


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    scale = torch.rsqrt(torch.tensor(query.shape[-1], dtype=query.dtype))
    s = scale * (query @ key.mT)
    bias = torch.zeros_like(s)
    if mask is not None:
        bias = bias.masked_fill(~mask, torch.finfo(s.dtype).min / 2)
    out = (s + bias).softmax(-1)
    if mask is not None:
        out = out * mask
    return out @ value, out


@wrong("score_variance", "returns the standard deviation", "V-STANDARD-DEVIATION")
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    scores = (q * k).sum(-1)
    if scaled:
        scores = scores / math.sqrt(d)
    return scores.std().item()


@wrong("score_variance", "draws uniform numbers", "V-UNIFORM")
def _(d, samples, scaled):
    q = torch.rand(samples, d)
    k = torch.rand(samples, d)
    s = torch.einsum("nd,nd->n", q, k)
    return float((s / d**0.5 if scaled else s).var())


@wrong("score_variance", "divides by d", "V-SCALE-DK")
def _(d, samples, scaled):
    query = torch.randn(samples, d)
    key = torch.randn(samples, d)
    scores = (query * key).sum(dim=1)
    if scaled:
        scores /= d
    return torch.var(scores).item()


@wrong("score_variance", "never scales", "V-IGNORES-SCALED")
def _(d, samples, scaled):
    a = np.random.randn(samples, d)
    b = np.random.randn(samples, d)
    return float(np.var((a * b).sum(1)))


@wrong("score_variance", "scales when it should not, and the other way around", "V-INVERTED")
def _(d, samples, scaled):
    x, y = torch.randn(2, samples, d)
    s = (x * y).sum(1)
    s = s if scaled else s / math.sqrt(d)
    return s.var().item()


@wrong("score_variance", "compares every query with itself", "V-ONE-VECTOR")
def _(d, samples, scaled):
    q = k = torch.randn(samples, d)
    scores = (q * k).sum(-1)
    if scaled:
        scores = scores / math.sqrt(d)
    return scores.var().item()


@wrong("score_variance", "draws one query for all keys", "V-ONE-QUERY")
def _(d, samples, scaled):
    q = torch.randn(d)
    scores = []
    for _ in range(samples):
        k = torch.randn(d)
        s = torch.dot(q, k)
        scores.append(s / math.sqrt(d) if scaled else s)
    return torch.stack(scores).var().item()


@wrong("score_variance", "returns a tensor", "V-TENSOR")
def _(d, samples, scaled):
    q, k = torch.randn(2, samples, d).unbind()
    s = torch.linalg.vecdot(q, k)
    return torch.var(s / d**0.5) if scaled else torch.var(s)


@wrong("score_variance", "does not sum over the features", "V-NOT-SUMMED")
def _(d, samples, scaled):
    scores = torch.randn(samples, d) * torch.randn(samples, d)
    if scaled:
        scores = scores / math.sqrt(d)
    return scores.var().item()


@wrong("score_variance", "believes the formula and measures nothing", "V-FORMULA")
def _(d, samples, scaled):
    return 1.0 if scaled else float(d)


@wrong(
    "score_variance",
    "divides the variance, not the scores, by the root of d",
    "V-SCALES-THE-VARIANCE",
)
def _(d, samples, scaled):
    scores = torch.tensor([torch.randn(d) @ torch.randn(d) for _ in range(samples)])
    v = scores.var().item()
    return v / math.sqrt(d) if scaled else v


@wrong("score_variance", "divides by the root of the number of samples", "V-SCALE-SAMPLES")
def _(d, samples, scaled):
    q = torch.normal(0.0, 1.0, (samples, d))
    k = torch.normal(0.0, 1.0, (samples, d))
    s = (q * k).sum(1)
    if scaled:
        s = s / math.sqrt(len(s))
    return s.var().item()


@wrong("score_variance", "sums over the samples instead of the features", "V-SUMMED-OVER-SAMPLES")
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    s = (q * k).sum(0)
    if scaled:
        s = s / math.sqrt(d)
    return float(s.var(unbiased=False))


@wrong("score_variance", "returns the mean of the scores", "V-MEAN")
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    scores = torch.bmm(q.unsqueeze(1), k.unsqueeze(2)).flatten()
    return (scores / math.sqrt(d) if scaled else scores).mean().item()


@right("score_variance")
def _(d, samples, scaled):
    drawn = []
    for _ in range(samples):
        q, k = torch.randn(d), torch.randn(d)
        drawn.append(float(q @ k) / (math.sqrt(d) if scaled else 1))
    return statistics.variance(drawn)


@right("score_variance")
def _(d, samples, scaled):
    rng = np.random.default_rng()
    q, k = rng.standard_normal((2, samples, d))
    s = np.einsum("nd,nd->n", q, k)
    return float(((s - s.mean()) ** 2).sum() / (samples - 1) / (d if scaled else 1))


@right("score_variance")
def _(d, samples, scaled):
    q = torch.empty(samples, 1, d, dtype=torch.float64).normal_()
    k = torch.empty(samples, d, 1, dtype=torch.float64).normal_()
    s = (q @ k).flatten() * (d**-0.5 if scaled else 1.0)
    return torch.cov(s).item()


@wrong("hidden_scale", "returns 1 / c", "C-INVERSE")
def _(scores, weights):
    num, den = 0.0, 0.0
    for s, w in zip(scores.double(), weights.double()):
        for i in range(len(s)):
            for j in range(i):
                if w[i] > 0 and w[j] > 0:
                    trust = (w[i] * w[j]) ** 2
                    num += trust * (s[i] - s[j]) * (w[i].log() - w[j].log())
                    den += trust * (s[i] - s[j]) ** 2
    return float(num / den)


@wrong("hidden_scale", "believes that it is the root of the row's length")
def _(scores, weights):
    return math.sqrt(scores.shape[1])


@wrong("hidden_scale", "looks at one pair of weights only", "C-ONE-PAIR")
def _(scores, weights):
    ds = scores[0, 0] - scores[0, 1]
    dw = torch.log(weights[0, 0]) - torch.log(weights[0, 1])
    return (ds / dw).item()


@wrong("hidden_scale", "takes the logarithm of weights that are 0", "C-LOG-ZERO")
def _(scores, weights):
    logw = weights.log()
    y = logw - logw.mean(-1, keepdim=True)
    x = scores - scores.mean(-1, keepdim=True)
    return ((x * x).sum() / (x * y).sum()).item()


@wrong("hidden_scale", "gives masked keys a tiny weight and fits them too", "C-ZERO-AS-TINY")
def _(scores, weights):
    y = torch.log(weights + 1e-9)
    y = y - y.mean(dim=1, keepdim=True)
    x = scores - scores.mean(dim=1, keepdim=True)
    slope = (x * y).sum() / (x**2).sum()
    return float(1 / slope)


@wrong("hidden_scale", "forgets that each row has a normalizer of its own", "C-ROWS-MIXED")
def _(scores, weights):
    seen = weights > 0
    x, y = scores[seen].double(), weights[seen].double().log()
    w = weights[seen].double() ** 2
    x = x - (w * x).sum() / w.sum()
    y = y - (w * y).sum() / w.sum()
    return float((w * x * x).sum() / (w * x * y).sum())


@wrong("hidden_scale", "averages the ratios of all pairs, and one of two equal weights is infinite")
def _(scores, weights):
    ratios = []
    for s, w in zip(scores, weights):
        for i, j in itertools.combinations(range(len(s)), 2):
            if w[i] > 0 and w[j] > 0:
                ratios.append((s[i] - s[j]) / (w[i].log() - w[j].log()))
    return torch.stack(ratios).mean().item()


@wrong("hidden_scale", "returns a tensor", "C-TENSOR")
def _(scores, weights):
    best, best_err = None, float("inf")
    hide = weights == 0
    for c in torch.logspace(-3, 3, 2001):
        p = torch.softmax((scores / c).masked_fill(hide, -1e30), -1) * ~hide
        err = ((p - weights) ** 2).sum()
        if err < best_err:
            best, best_err = c, err
    return best


@wrong("hidden_scale", "tries whole numbers only", "C-COARSE-GRID")
def _(scores, weights):
    def error(c):
        p = torch.softmax((scores / c).masked_fill(weights == 0, -1e30), dim=-1)
        return (p - weights).abs().sum().item()

    return float(min(range(1, 101), key=error))


@wrong("hidden_scale", "takes the logarithm to base 2", "C-LOG-BASE")
def _(scores, weights):
    seen = weights > 0
    w = torch.where(seen, weights, 0).double() ** 2
    w = w / w.sum(-1, keepdim=True).clamp(min=1e-12)
    y = torch.where(seen, weights.double().log2(), 0.0)
    x = torch.where(seen, scores.double(), 0.0)
    x = x - (w * x).sum(-1, keepdim=True)
    y = y - (w * y).sum(-1, keepdim=True)
    return ((w * x * x).sum() / (w * x * y).sum()).item()


@wrong(
    "hidden_scale",
    "does not leave masked keys out of the softmax",
    "C-ZERO-AS-TINY",
    "C-LOG-ZERO",
    "C-GRID-UNMASKED",
)
def _(scores, weights):
    errs = {}
    for c in np.geomspace(0.01, 100, 3000).tolist():
        p = torch.softmax(scores / c, dim=-1)
        errs[c] = (p - weights).pow(2).sum().item()
    return min(errs, key=errs.get)


@wrong("hidden_scale", "searches only above 1", "C-BOUNDED-GRID")
def _(scores, weights):
    seen = weights > 0
    grid = torch.linspace(1, 60, 5901).tolist()
    losses = []
    for c in grid:
        p = torch.softmax(torch.where(seen, scores / c, torch.tensor(-1e30)), -1)
        losses.append(float((p - weights).square().sum()))
    return grid[losses.index(min(losses))]


@wrong("hidden_scale", "lets the columns compete", "C-GRID-COLUMNS")
def _(scores, weights):
    grid = [1.01**i for i in range(-400, 500)]
    hidden = weights == 0

    def loss(c):
        table = (scores / c).masked_fill(hidden, -1e30).softmax(dim=0)
        return (table - weights).square().mean().item()

    return min(grid, key=loss)


@wrong(
    "hidden_scale",
    "compares the scores with the weights themselves",
    "C-NO-LOGARITHM",
    "C-WEIGHTS-AS-LOGS",
)
def _(scores, weights):
    seen = weights > 0
    x = scores[seen] - scores[seen].mean()
    y = weights[seen] - weights[seen].mean()
    return float((x * x).sum() / (x * y).sum())


@wrong("hidden_scale", "stops its gradient descent after ten steps")
def _(scores, weights):
    c = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([c], lr=0.1)
    for _ in range(10):
        p = torch.softmax((scores / c).masked_fill(weights == 0, -1e30), -1)
        loss = F.mse_loss(p, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return c.item()


@right("hidden_scale")
def _(scores, weights):
    scores, weights = scores.double(), weights.double()
    hidden = weights == 0

    def loss(c):
        p = (scores / c).masked_fill(hidden, -1e300).softmax(-1).masked_fill(hidden, 0)
        return (p - weights).square().sum().item()

    return min((1.005**i for i in range(-1600, 1600)), key=loss)


@right("hidden_scale")
def _(scores, weights):
    top = bottom = 0.0
    for s, w in zip(scores.tolist(), weights.tolist()):
        for (s1, w1), (s2, w2) in itertools.combinations(zip(s, w), 2):
            if w1 > 0 and w2 > 0:
                precision = 1 / (1 / w1**2 + 1 / w2**2)
                top += precision * (s1 - s2) ** 2
                bottom += precision * (s1 - s2) * math.log(w1 / w2)
    return top / bottom


@right("hidden_scale")
def _(scores, weights):
    seen = weights > 0
    log_c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    s = scores.double()
    optimizer = torch.optim.LBFGS([log_c], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        logp = (s * torch.exp(-log_c)).masked_fill(~seen, -1e30).log_softmax(-1)
        loss = -(weights.double() * logp.masked_fill(~seen, 0)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return log_c.exp().item()


# --- Chapter 4: self-attention --------------------------------------------------------------------


@wrong("self_attention", "averages the words themselves, without W_value", "C-RAW-VALUES")
def _(x, W_query, W_key, W_value):
    q, k = x @ W_query, x @ W_key
    weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ x, weights


@wrong("self_attention", "makes keys with W_query", "A-TIED-PROJ")
def _(x, W_query, W_key, W_value):
    from attncourse.scaled_dot_product import scaled_dot_product_attention

    return scaled_dot_product_attention(x @ W_query, x @ W_query, x @ W_value)


@wrong("self_attention", "does not scale", "D-NO-SCALE")
def _(x, W_query, W_key, W_value):
    Q, K, V = (torch.matmul(x, W) for W in (W_query, W_key, W_value))
    weights = F.softmax(torch.bmm(Q, K.mT), dim=-1)
    return torch.bmm(weights, V), weights


@wrong("self_attention", "divides by the root of the word's width", "D-SCALE-DMODEL")
def _(x, W_query, W_key, W_value):
    q = torch.einsum("bnm,md->bnd", x, W_query)
    k = torch.einsum("bnm,md->bnd", x, W_key)
    v = torch.einsum("bnm,mv->bnv", x, W_value)
    scores = torch.einsum("bid,bjd->bij", q, k) / x.size(-1) ** 0.5
    w = scores.softmax(-1)
    return torch.einsum("bij,bjv->biv", w, v), w


@wrong("self_attention", "divides by the root of the value's width", "C-SCALE-DV")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    attn = (q @ k.permute(0, 2, 1)).div(math.sqrt(v.shape[-1])).softmax(-1)
    return attn @ v, attn


@wrong("self_attention", "divides by d", "D-SCALE-DK")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    d = k.shape[2]
    w = torch.softmax(torch.einsum("bqd,bkd->bqk", q, k) / d, dim=2)
    return w @ v, w


@wrong("self_attention", "lets the queries compete for a key", "D-SOFTMAX-DIM")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1]), dim=1)
    return w @ v, w


@wrong("self_attention", "lets keys ask and queries answer", "C-ROLES-SWAPPED")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    scores = torch.bmm(k, q.transpose(1, 2)) / math.sqrt(q.shape[-1])
    weights = scores.softmax(dim=2)
    return torch.bmm(weights, v), weights


@wrong("self_attention", "averages with the table turned around", "C-COLUMNS-AVERAGED")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    w = torch.softmax(torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5, -1)
    return torch.einsum("bij,biv->bjv", w, v), w


@wrong("self_attention", "lets words read other sentences of the batch", "C-ONE-LONG-SENTENCE")
def _(x, W_query, W_key, W_value):
    b, n, m = x.shape
    flat = x.reshape(b * n, m)
    q, k, v = flat @ W_query, flat @ W_key, flat @ W_value
    w = torch.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=-1)
    out = (w @ v).reshape(b, n, -1)
    return out, torch.stack([w[i * n : (i + 1) * n, i * n : (i + 1) * n] for i in range(b)])


@wrong("self_attention", "hides later words", "C-CAUSAL")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    n = x.shape[1]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.triu(torch.ones(n, n), 1).bool(), float("-inf"))
    weights = scores.softmax(-1)
    return weights @ v, weights


@wrong("self_attention", "forbids a word to read itself", "C-NOT-ITSELF")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    eye = torch.eye(x.shape[1], dtype=torch.bool)
    weights = torch.softmax(scores.masked_fill(eye, -1e9), dim=-1)
    return weights @ v, weights


@wrong("self_attention", "adds the value to the output, as a residual", "C-RESIDUAL")
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    weights = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return v + weights @ v, weights


@wrong(
    "self_attention",
    "multiplies by the matrices turned around, as nn.Linear keeps them",
    "C-LINEAR-LAYOUT",
    "C-MATRIX-LEFT",
)
def _(x, W_query, W_key, W_value):
    q, k, v = F.linear(x, W_query), F.linear(x, W_key), F.linear(x, W_value)
    weights = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v, weights


@right("self_attention")
def _(x, W_query, W_key, W_value):
    bilinear = W_query @ W_key.T / math.sqrt(W_query.shape[1])
    weights = torch.einsum("bim,mp,bjp->bij", x, bilinear, x).softmax(-1)
    return (weights @ x) @ W_value, weights


@right("self_attention")
def _(x, W_query, W_key, W_value):
    outs, tables = [], []
    for sent in x:
        q, k, v = torch.split(
            sent @ torch.hstack([W_query, W_key, W_value]),
            [W_query.shape[1], W_key.shape[1], W_value.shape[1]],
            dim=-1,
        )
        table = torch.stack([torch.softmax(k @ qi / math.sqrt(len(qi)), 0) for qi in q])
        outs.append(table @ v)
        tables.append(table)
    return torch.stack(outs), torch.stack(tables)


@right("self_attention")
def _(x, W_query, W_key, W_value):
    class Head(nn.Module):
        def forward(self, x):
            self.w = torch.softmax(self.q(x) @ self.k(x).mT * W_key.shape[1] ** -0.5, dim=-1)
            return self.w @ (x @ W_value)

        def q(self, x):
            return F.linear(x, W_query.T)

        def k(self, x):
            return F.linear(x, W_key.T)

    head = Head()
    out = head(x)
    return out, head.w


@wrong(
    "is_permutation_equivariant",
    "asks whether the outputs stay, not whether they move along",
    "C-INVARIANT",
)
def _(layer, x):
    y = layer(x)
    for _ in range(5):
        p = torch.randperm(x.shape[1])
        if not torch.allclose(layer(x[:, p]), y, atol=1e-5):
            return False
    return True


@wrong("is_permutation_equivariant", "asks for equality to the last bit", "C-EXACT")
def _(layer, x):
    out = layer(x)
    for _ in range(10):
        order = torch.randperm(x.size(1))
        if not torch.equal(layer(x[:, order]), out[:, order]):
            return False
    return True


@wrong("is_permutation_equivariant", "only reverses the sentence", "C-ONLY-REVERSED")
def _(layer, x):
    return torch.allclose(layer(x.flip(1)), layer(x).flip(1), atol=1e-4)


@wrong("is_permutation_equivariant", "shuffles the features", "C-FEATURES-MOVED")
def _(layer, x):
    y = layer(x)
    for _ in range(4):
        p = torch.randperm(x.shape[-1])
        moved = layer(x[..., p])
        if moved.shape[-1] != len(p) or not torch.allclose(moved, y[..., p], atol=1e-4):
            return False
    return True


@wrong("is_permutation_equivariant", "shuffles the sentences of the batch", "C-SENTENCES-MOVED")
def _(layer, x):
    results = []
    for _ in range(4):
        perm = torch.randperm(x.shape[0])
        results.append(torch.allclose(layer(x[perm]), layer(x)[perm], atol=1e-4))
    return all(results)


@wrong(
    "is_permutation_equivariant",
    "takes the outputs back with the same order, not its inverse",
    "C-INVERSE",
)
def _(layer, x):
    y = layer(x)
    for _ in range(6):
        p = torch.randperm(x.shape[1])
        if (layer(x[:, p])[:, p] - y).abs().max() > 1e-4:
            return False
    return True


@wrong("is_permutation_equivariant", "returns a tensor", "C-TENSOR-BOOL")
def _(layer, x):
    y = layer(x)
    worst = torch.tensor(0.0)
    for _ in range(6):
        p = torch.randperm(x.shape[1])
        worst = torch.maximum(worst, (layer(x[:, p]) - y[:, p]).abs().max().float())
    return worst < 1e-4


@wrong(
    "is_permutation_equivariant", "one order that fits is enough", "C-ANY-ORDER", "C-NOTHING-MOVED"
)
def _(layer, x):
    y = layer(x)
    orders = [torch.randperm(x.shape[1]) for _ in range(10)] + [torch.arange(x.shape[1])]
    return any(torch.allclose(layer(x[:, p]), y[:, p], atol=1e-4) for p in orders)


@wrong("is_permutation_equivariant", "reseeds the generator for everybody", "C-SEEDED")
def _(layer, x):
    torch.manual_seed(0)
    y = layer(x)
    perms = [torch.randperm(x.shape[1]) for _ in range(8)]
    return all(torch.allclose(layer(x[:, p]), y[:, p], atol=1e-4) for p in perms)


@wrong("is_permutation_equivariant", "tries one order, which may be the usual one", "C-ONE-DRAW")
def _(layer, x):
    p = torch.randperm(x.shape[1])
    return bool(torch.isclose(layer(x[:, p]), layer(x)[:, p], atol=1e-4).all())


@wrong("is_permutation_equivariant", "compares sums over the words", "C-SUMS-COMPARED")
def _(layer, x):
    total = layer(x).sum(dim=1)
    for _ in range(6):
        p = torch.randperm(x.shape[1])
        if not torch.allclose(layer(x[:, p]).sum(dim=1), total, atol=1e-3):
            return False
    return True


@wrong("is_permutation_equivariant", "tolerates differences up to one half", "C-LOOSE")
def _(layer, x):
    ref = layer(x)
    n = x.shape[1]
    return all(
        torch.allclose(layer(x[:, p]), ref[:, p], atol=0.5)
        for p in ([*range(1, n), 0], torch.randperm(n), list(range(n))[::-1])
    )


@wrong("is_permutation_equivariant", "shuffles the caller's x in place", "C-INPLACE")
def _(layer, x):
    before = layer(x)
    ok = True
    for i in range(x.shape[1] - 1):
        order = list(range(x.shape[1]))
        order[i], order[i + 1] = order[i + 1], order[i]
        x[:, :] = x[:, order]
        before = before[:, order]
        ok = ok and torch.allclose(layer(x), before, atol=1e-4)
    return ok


@wrong("is_permutation_equivariant", "only shifts the words round", "C-ONLY-SHIFTS")
def _(layer, x):
    y = layer(x)
    for shift in range(1, x.shape[1]):
        if not torch.allclose(layer(x.roll(shift, 1)), y.roll(shift, 1), atol=1e-4):
            return False
    return True


@wrong("is_permutation_equivariant", "only swaps the first two words", "C-ONE-SWAP")
def _(layer, x):
    if x.shape[1] < 2:
        return True
    order = torch.arange(x.shape[1])
    order[0], order[1] = 1, 0
    return torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-4)


@right("is_permutation_equivariant")
def _(layer, x):
    y = layer(x)
    n = x.shape[1]
    swaps = []
    for i in range(n - 1):
        order = list(range(n))
        order[i], order[i + 1] = order[i + 1], order[i]
        swaps.append(order)
    size = 1 + float(y.abs().max())
    return all(bool(((layer(x[:, o]) - y[:, o]).abs() <= 1e-4 * size).all()) for o in swaps)


@right("is_permutation_equivariant")
def _(layer, x):
    y = layer(x)
    n = x.shape[1]
    orders = list(itertools.islice(itertools.permutations(range(n)), 1, 24))
    orders += [np.random.permutation(n).tolist() for _ in range(20)]
    for order in orders:
        inverse = torch.argsort(torch.tensor(order))
        back = layer(x[:, list(order)])[:, inverse]
        if not torch.allclose(back, y, rtol=1e-3, atol=1e-4 * (1 + y.abs().max().item())):
            return False
    return True


@right("is_permutation_equivariant")
def _(layer, x):
    n = x.shape[1]
    with torch.no_grad():
        y = layer(x)
        scale = max(1.0, y.abs().max().item())
        worst = 0.0
        for k in range(2, n + 1):
            order = torch.arange(n)
            order[:k] = order[:k].flip(0)
            diff = layer(x.index_select(1, order)) - y.index_select(1, order)
            worst = max(worst, diff.abs().max().item())
    return worst < 1e-4 * scale


@wrong("sinusoidal_positions", "puts all sines first, then all cosines", "C-HALVES")
def _(length, width):
    p = torch.arange(length, dtype=torch.float64)[:, None]
    i = torch.arange(0, width, 2, dtype=torch.float64)
    angle = p / 10000 ** (i / width)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width].float()


@wrong("sinusoidal_positions", "swaps sine and cosine", "C-COSINE-FIRST")
def _(length, width):
    pe = torch.zeros(length, width)
    for p in range(length):
        for j in range(width):
            angle = p / 10000 ** (2 * (j // 2) / width)
            pe[p, j] = math.cos(angle) if j % 2 == 0 else math.sin(angle)
    return pe


@wrong("sinusoidal_positions", "takes i / width instead of 2i / width", "C-EXPONENT-HALVED")
def _(length, width):
    pos = torch.arange(length).unsqueeze(1).double()
    hands = torch.arange((width + 1) // 2).double()
    angle = pos / torch.pow(torch.tensor(10000.0).double(), hands / width)
    pe = torch.zeros(length, width)
    pe[:, 0::2] = torch.sin(angle).float()
    pe[:, 1::2] = torch.cos(angle)[:, : width // 2].float()
    return pe


@wrong("sinusoidal_positions", "doubles an exponent that was already even", "P-FREQ")
def _(length, width):
    even = torch.arange(0, width, 2)
    freq = 10000.0 ** (-2 * even / width)
    ang = torch.arange(length)[:, None] * freq
    return torch.stack([ang.sin(), ang.cos()], -1).flatten(1)[:, :width]


@wrong("sinusoidal_positions", "counts positions from 1", "C-FROM-ONE")
def _(length, width):
    position = torch.arange(1, length + 1, dtype=torch.float64).unsqueeze(1)
    div = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * div).float()
    table[:, 1::2] = torch.cos(position * div[: width // 2]).float()
    return table


@wrong("sinusoidal_positions", "takes 1000 for 10 000", "C-BASE")
def _(length, width):
    rows = []
    for p in range(length):
        row = []
        for i in range((width + 1) // 2):
            a = p / 1000 ** (2 * i / width)
            row += [math.sin(a), math.cos(a)]
        rows.append(row[:width])
    return torch.tensor(rows)


@wrong("sinusoidal_positions", "rounds an odd width up in the exponent", "C-ODD-ROUNDED-UP")
def _(length, width):
    full = width + width % 2
    p = torch.arange(length, dtype=torch.float64).view(-1, 1)
    angle = p / (10000 ** (torch.arange(0, full, 2, dtype=torch.float64) / full))
    pe = torch.empty(length, full)
    pe[:, ::2], pe[:, 1::2] = angle.sin(), angle.cos()
    return pe[:, :width]


@wrong("sinusoidal_positions", "returns float64", "C-FLOAT64-TABLE")
def _(length, width):
    p = np.arange(length)[:, None]
    j = np.arange(width)[None, :]
    angle = p / np.power(10000, 2 * (j // 2) / width)
    angle[:, 0::2] = np.sin(angle[:, 0::2])
    angle[:, 1::2] = np.cos(angle[:, 1::2])
    return torch.from_numpy(angle)


@wrong("sinusoidal_positions", "gives the cosine a frequency of its own", "C-FREQ-EACH")
def _(length, width):
    j = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (j / width)
    even = (torch.arange(width) % 2 == 0).expand(length, width)
    return torch.where(even, angle.sin(), angle.cos()).float()


@wrong("sinusoidal_positions", "multiplies by the power instead of dividing", "C-SPEEDS-RISE")
def _(length, width):
    i = torch.arange(0, width, 2, dtype=torch.float64)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), 10000 ** (i / width))
    pe = torch.zeros(length, width)
    pe[:, 0::2] = angle.sin().float()
    pe[:, 1::2] = angle.cos()[:, : width // 2].float()
    return pe


@wrong(
    "sinusoidal_positions",
    "divides without a remainder in the exponent: all hands run alike",
    "C-EXPONENT-INTEGER",
)
def _(length, width):
    pe = torch.zeros(length, width)
    for p in range(length):
        for i in range(0, width, 2):
            a = p / 10000 ** (i // width)
            pe[p, i] = math.sin(a)
            if i + 1 < width:
                pe[p, i + 1] = math.cos(a)
    return pe


@wrong("sinusoidal_positions", "turns the table around: (width length)", "C-TURNED")
def _(length, width):
    j = torch.arange(width).unsqueeze(1)
    angle = torch.arange(length).double() / 10000 ** (2 * (j // 2).double() / width)
    return torch.where(j % 2 == 0, angle.sin(), angle.cos()).float()


@wrong("sinusoidal_positions", "leaves the last feature of an odd width empty", "C-ODD-SILENT")
def _(length, width):
    pe = torch.zeros(length, width)
    position = torch.arange(length).double()
    for i in range(width // 2):
        angle = position / 10000 ** (2 * i / width)
        pe[:, 2 * i] = angle.sin().float()
        pe[:, 2 * i + 1] = angle.cos().float()
    return pe


@wrong("sinusoidal_positions", "an even width only: raises for an odd one", "P-ODD")
def _(length, width):
    pe = torch.zeros(length, width)
    position = torch.arange(0, length, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe


@right("sinusoidal_positions")
def _(length, width):
    j = torch.arange(width, dtype=torch.float64)
    hand = torch.div(j, 2, rounding_mode="floor")
    angle = torch.arange(length, dtype=torch.float64)[:, None] / 10_000 ** (2 * hand / width)
    return torch.sin(angle + (j % 2) * math.pi / 2).float()


@right("sinusoidal_positions")
def _(length, width):
    i = torch.arange((width + 1) // 2, dtype=torch.float64)
    step = 1j * torch.exp(-2 * i / width * math.log(10000))
    hands = torch.exp(torch.arange(length)[:, None] * step)
    return torch.view_as_real(hands).flip(-1).reshape(length, -1)[:, :width].float()


@right("sinusoidal_positions")
def _(length, width):
    def feature(p, j):
        angle = p / 10000 ** ((j - j % 2) / width)
        return (math.sin, math.cos)[j % 2](angle)

    table = [feature(p, j) for p in range(length) for j in range(width)]
    return torch.tensor(table, dtype=torch.float32).reshape(length, width)


# --- Chapter 5: multi-head attention --------------------------------------------------------------


@wrong("split_heads", "views as (b h n d) at once", "H-VIEW-SPLIT")
def _(x, num_heads):
    b, n, m = x.shape
    return x.reshape(b, num_heads, n, m // num_heads)


@wrong("split_heads", "leaves the heads behind the words", "C-SPLIT-NO-SWAP")
def _(x, num_heads):
    b, n, m = x.size()
    return x.view(b, n, num_heads, m // num_heads)


@wrong("split_heads", "deals the numbers out in turn: (d h)", "H-FUSED-LAYOUT")
def _(x, num_heads):
    return rearrange(x, "b n (d h) -> b h n d", h=num_heads)


@wrong("split_heads", "cuts the words apart, not the features", "C-SPLIT-WORDS")
def _(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=1), dim=1)


@wrong("split_heads", "takes the number of heads for the width of one", "C-SPLIT-WIDTH")
def _(x, num_heads):
    return torch.stack(x.split(num_heads, dim=-1), dim=1)


@wrong("split_heads", "stacks the heads in front of the batch", "C-SPLIT-HEADS-FIRST")
def _(x, num_heads):
    return torch.stack(torch.chunk(x, num_heads, dim=2))


@wrong("split_heads", "gives every head the whole word", "C-SPLIT-WHOLE")
def _(x, num_heads):
    return x.unsqueeze(1).repeat(1, num_heads, 1, 1)


@wrong("split_heads", "writes the number of heads down", "C-SPLIT-TWO")
def _(x, num_heads):
    heads = 2
    b, n, m = x.shape
    return x.view(b, n, heads, -1).permute(0, 2, 1, 3)


@wrong("split_heads", "folds the heads into the batch: (b h) n d", "C-SPLIT-FOLDED")
def _(x, num_heads):
    b, n, m = x.shape
    d = m // num_heads
    return x.view(b, n, num_heads, d).transpose(1, 2).reshape(b * num_heads, n, d)


@wrong("split_heads", "cuts the link to the gradient", "C-SPLIT-DETACHED")
def _(x, num_heads):
    d = x.shape[-1] // num_heads
    out = torch.zeros(x.shape[0], num_heads, x.shape[1], d, dtype=x.dtype)
    for h in range(num_heads):
        out[:, h] = x.data[..., h * d : (h + 1) * d]
    return out


@wrong("split_heads", "turns the heads around: last piece first", "C-SPLIT-REVERSED")
def _(x, num_heads):
    d = x.shape[-1] // num_heads
    pieces = []
    for h in range(num_heads, 0, -1):
        pieces.append(x[:, :, (h - 1) * d : h * d])
    return torch.stack(pieces, dim=1)


@wrong(
    "split_heads", "swaps the axes first and then views", "C-SPLIT-SWAPPED-FIRST", "C-SPLIT-TWISTED"
)
def _(x, num_heads):
    b, n, m = x.shape
    y = x.transpose(1, 2).contiguous()
    return y.view(b, num_heads, n, m // num_heads)


@wrong("split_heads", "swaps words and features: (b h d n)", "C-SPLIT-TURNED")
def _(x, num_heads):
    b, n, m = x.shape
    return x.view(b, n, num_heads, m // num_heads).permute(0, 2, 3, 1)


@right("split_heads")
def _(x, num_heads):
    return torch.stack(x.tensor_split(num_heads, dim=-1), dim=1)


@right("split_heads")
def _(x, num_heads):
    d = x.size(2) // num_heads
    return x.unfold(2, d, d).transpose(1, 2)


@right("split_heads")
def _(x, num_heads):
    b, n, m = x.shape
    idx = torch.arange(m).reshape(num_heads, 1, -1).expand(-1, n, -1)
    return x[:, torch.arange(n)[None, :, None], idx]


@wrong("merge_heads", "views without moving the heads back", "H-VIEW-MERGE")
def _(x):
    b, h, n, d = x.shape
    return x.reshape(b, n, h * d)


@wrong("merge_heads", "deals the heads' numbers in turn: (d h)", "H-FUSED-LAYOUT")
def _(x):
    return x.permute(0, 2, 3, 1).flatten(2)


@wrong("merge_heads", "averages the heads", "C-MERGE-MEAN")
def _(x):
    return x.mean(dim=1)


@wrong("merge_heads", "adds the heads up and repeats the sum", "C-MERGE-SUM")
def _(x):
    return x.sum(1).repeat(1, 1, x.shape[1])


@wrong("merge_heads", "lays the heads behind each other as words", "C-MERGE-BELOW")
def _(x):
    return torch.cat([x[:, i] for i in range(x.shape[1])], dim=1)


@wrong("merge_heads", "swaps the heads with the features", "C-MERGE-WRONG-SWAP")
def _(x):
    b, h, n, d = x.shape
    return x.transpose(1, 3).reshape(b, n, h * d)


@wrong("merge_heads", "lays the last head first", "C-MERGE-REVERSED")
def _(x):
    heads = list(x.unbind(1))
    heads.reverse()
    return torch.cat(heads, dim=-1)


@wrong("merge_heads", "views a tensor that is not contiguous: raises", "H-CONTIGUOUS")
def _(x):
    b, h, n, d = x.shape
    return x.transpose(1, 2).view(b, n, h * d)


@wrong("merge_heads", "leaves a single head as it came", "C-MERGE-ONE-LEFT")
def _(x):
    if x.shape[1] == 1:
        return x
    return torch.cat(torch.unbind(x, dim=1), dim=-1)


@wrong("merge_heads", "joins words and features instead of heads and features", "C-MERGE-NO-SWAP")
def _(x):
    return rearrange(x, "b h n d -> b h (n d)")


@wrong("merge_heads", "keeps the first head only", "C-MERGE-FIRST-HEAD")
def _(x):
    first, *others = x.unbind(dim=1)
    for other in others:
        torch.cat([first, other], dim=-1)
    return first


@wrong("merge_heads", "cuts the link to the gradient", "C-MERGE-DETACHED")
def _(x):
    return torch.tensor(
        [[sum((head[i] for head in sent), []) for i in range(len(sent[0]))] for sent in x.tolist()],
        dtype=x.dtype,
    )


@right("merge_heads")
def _(x):
    return torch.einsum("bhnd->bnhd", x).flatten(start_dim=2)


@right("merge_heads")
def _(x):
    b, h, n, d = x.shape
    out = x.new_empty(b, n, h * d)
    for i in range(h):
        out[:, :, i * d : i * d + d] = x[:, i]
    return out


@right("merge_heads")
def _(x):
    b, h, n, d = x.shape
    return torch.stack([torch.hstack(list(sent)) for sent in x]).reshape(b, n, -1)


@wrong("MultiHeadAttention", "divides by the root of the model's width", "D-SCALE-DMODEL")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.h)
        k = split_heads(self.k_proj(key), self.h)
        v = split_heads(self.v_proj(value), self.h)
        scores = q @ k.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0)
        return self.out_proj(merge_heads(self.drop(weights) @ v)), weights


@wrong("MultiHeadAttention", "does not scale", "D-NO-SCALE")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d = model_width // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(model_width, model_width) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        B = query.shape[0]
        q = self.q_proj(query).view(B, -1, self.num_heads, self.d).transpose(1, 2)
        k = self.k_proj(key).view(B, -1, self.num_heads, self.d).transpose(1, 2)
        v = self.v_proj(value).view(B, -1, self.num_heads, self.d).transpose(1, 2)
        att = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask[:, None]
            att = torch.where(mask, att, -1e30)
        att = F.softmax(att, dim=-1)
        if mask is not None:
            att = att * mask
        y = torch.einsum("bhqk,bhkd->bqhd", self.dropout(att), v)
        return self.out_proj(y.reshape(B, -1, self.num_heads * self.d)), att


@wrong("MultiHeadAttention", "has no biases", "C-NO-BIAS")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width, bias=False)
        self.k_proj = nn.Linear(model_width, model_width, bias=False)
        self.v_proj = nn.Linear(model_width, model_width, bias=False)
        self.out_proj = nn.Linear(model_width, model_width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        from attncourse.scaled_dot_product import scaled_dot_product_attention

        q, k, v = (
            split_heads(proj(x), self.num_heads)
            for proj, x in [(self.q_proj, query), (self.k_proj, key), (self.v_proj, value)]
        )
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        _, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(merge_heads(self.dropout(weights) @ v)), weights


@wrong(
    "MultiHeadAttention",
    "cuts the heads apart with a view and joins them with a view",
    "H-VIEW-BOTH",
    "H-VIEW-SPLIT",
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def heads(self, x):
        return x.view(x.shape[0], self.num_heads, x.shape[1], self.head_dim)

    def forward(self, query, key, value, mask=None):
        q, k = self.heads(self.q_proj(query)), self.heads(self.k_proj(key))
        v = self.heads(self.v_proj(value))
        s = q @ k.mT / math.sqrt(self.head_dim)
        if mask is not None:
            mask = mask.unsqueeze(-3)
            s = s.masked_fill(~mask, -1e30)
        w = s.softmax(-1)
        if mask is not None:
            w = w * mask
        y = (self.dropout(w) @ v).reshape(query.shape)
        return self.out_proj(y), w


@wrong("MultiHeadAttention", "lays a mask (b q k) over the heads' axis", "C-MASK-MEETS-HEADS")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e30)
        weights = torch.softmax(scores, dim=3)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0)
        return self.out_proj(merge_heads(self.dropout(weights) @ v)), weights


@wrong("MultiHeadAttention", "takes True for hidden", "M-POLARITY")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.n_head = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.n_head) for t in (q, k, v))
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            m = mask if mask.dim() == 2 else rearrange(mask, "b q k -> b 1 q k")
            s = s.masked_fill(m, -1e30)
        w = s.softmax(dim=-1)
        if mask is not None:
            w = w.masked_fill(m, 0.0)
        y = rearrange(self.attn_dropout(w) @ v, "b h q d -> b q (h d)")
        return self.out_proj(y), w


@wrong("MultiHeadAttention", "returns the weights from after dropout", "C-DROPOUT-RETURNED")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        weights = self.dropout(weights)
        return self.out_proj(merge_heads(weights @ v)), weights


@wrong("MultiHeadAttention", "drops from the output instead of the weights", "C-DROPOUT-OUTPUT")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        from attncourse.scaled_dot_product import scaled_dot_product_attention

        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        heads, weights = scaled_dot_product_attention(
            split_heads(self.q_proj(query), self.num_heads),
            split_heads(self.k_proj(key), self.num_heads),
            split_heads(self.v_proj(value), self.num_heads),
            mask,
        )
        return self.dropout(self.out_proj(merge_heads(heads))), weights


@wrong("MultiHeadAttention", "forgets the last projection", "H-NO-WO")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        if mask is None:
            w = F.softmax(s, -1)
        else:
            mask = mask.unsqueeze(-3)
            w = F.softmax(s.masked_fill(~mask, -1e30), -1) * mask
        return merge_heads(self.dropout(w) @ v), w


@wrong("MultiHeadAttention", "merges the heads without moving them back", "H-VIEW-MERGE")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        b, n, m = query.shape
        q = self.q_proj(query).reshape(b, n, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(key).reshape(b, key.shape[1], self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(value).reshape(b, key.shape[1], self.num_heads, -1).transpose(1, 2)
        scores = q @ k.mT / math.sqrt(m // self.num_heads)
        if mask is not None:
            mask = mask.unsqueeze(-3)
            scores = scores.masked_fill(~mask, -1e30)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0)
        out = (self.dropout(weights) @ v).reshape(b, n, m)
        return self.out_proj(out), weights


@wrong("MultiHeadAttention", "returns the mean of the heads' tables", "H-AVG-WEIGHTS")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        from attncourse.scaled_dot_product import scaled_dot_product_attention

        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        if mask is not None and mask.ndim > 2:
            mask = mask[:, None, :, :]
        weights = scaled_dot_product_attention(q, k, v, mask)[1]
        output = self.out_proj(merge_heads(self.dropout(weights) @ v))
        return output, weights.mean(dim=1)


@wrong("MultiHeadAttention", "makes the values from the keys", "C-VALUE-FROM-KEY")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(key), self.num_heads)
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(k.shape[-1])
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask.unsqueeze(1)
            s = s.masked_fill(~mask, -1e30)
        w = s.softmax(-1)
        w = w if mask is None else w * mask
        return self.out_proj(merge_heads(self.dropout(w) @ v)), w


@wrong("MultiHeadAttention", "NaN where everything is hidden", "M-DEAD-ROW")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        assert model_width % num_heads == 0
        self.d_k = model_width // num_heads
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        nb = query.size(0)
        q, k, v = [
            lin(x).view(nb, -1, self.num_heads, self.d_k).transpose(1, 2)
            for lin, x in zip((self.q_proj, self.k_proj, self.v_proj), (query, key, value))
        ]
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(mask == 0, float("-inf"))
        p_attn = F.softmax(scores, dim=-1)
        x = torch.matmul(self.dropout(p_attn), v)
        x = x.transpose(1, 2).contiguous().view(nb, -1, self.num_heads * self.d_k)
        return self.out_proj(x), p_attn


@wrong("MultiHeadAttention", "drops weights in evaluation too", "D-SDPA-DROPOUT")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.p = dropout
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            mask = mask.unsqueeze(-3)
            s = s.masked_fill(~mask, -1e30)
        w = s.softmax(-1)
        if mask is not None:
            w = w.masked_fill(~mask, 0)
        return self.out_proj(merge_heads(F.dropout(w, self.p) @ v)), w


@wrong(
    "MultiHeadAttention", "silences the bias too where everything is hidden", "C-DEAD-OUTPUT-ZERO"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(model_width, model_width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is None:
            mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
        w = s.masked_fill(~mask.unsqueeze(-3), -1e30).softmax(-1) * mask.unsqueeze(-3)
        out = self.out_proj(merge_heads(self.dropout(w) @ v))
        return out * mask.any(-1, keepdim=True), w


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.d = model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        outs, tables = [], []
        for q, k, v in zip(
            self.q_proj(query).split(self.d, -1),
            self.k_proj(key).split(self.d, -1),
            self.v_proj(value).split(self.d, -1),
        ):
            s = torch.bmm(q, k.mT) / math.sqrt(self.d)
            if mask is not None:
                s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
            w = s.softmax(-1)
            if mask is not None:
                w = w.masked_fill(~mask, 0)
            tables.append(w)
            outs.append(self.dropout(w).bmm(v))
        return self.out_proj(torch.cat(outs, dim=-1)), torch.stack(tables, dim=1)


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.drop = dropout

    def forward(self, query, key, value, mask=None):
        def fold(x):
            return rearrange(x, "b n (h d) -> (b h) n d", h=self.h)

        q, k, v = fold(self.q_proj(query)), fold(self.k_proj(key)), fold(self.v_proj(value))
        s = torch.baddbmm(torch.zeros(()).to(q), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
        if mask is not None:
            mask = mask.expand(len(query), query.shape[1], key.shape[1])
            mask = mask.repeat_interleave(self.h, 0)
            s = torch.where(mask, s, -1e30)
        w = s.softmax(-1)
        if mask is not None:
            w = w * mask
        y = torch.bmm(F.dropout(w, self.drop, self.training), v)
        y = rearrange(y, "(b h) n d -> b n (h d)", h=self.h)
        return self.out_proj(y), w.unflatten(0, (-1, self.h))


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        h = self.num_heads
        q = self.q_proj(query).unflatten(-1, (h, -1))
        k = self.k_proj(key).unflatten(-1, (h, -1))
        v = self.v_proj(value).unflatten(-1, (h, -1))
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        allowed = torch.ones_like(logits, dtype=torch.bool)
        if mask is not None:
            allowed = allowed & (mask if mask.ndim == 2 else mask[:, None])
        dead = ~allowed.any(-1, keepdim=True)
        weights = logits.masked_fill(~(allowed | dead), -torch.inf).softmax(-1) * ~dead
        mixed = torch.einsum("bhqk,bkhd->bqhd", self.dropout(weights), v).flatten(2)
        return self.out_proj(mixed), weights


@wrong("attention_parameters", "forgets the last projection: three matrices", "C-PARAMETERS-NO-OUT")
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width // num_heads if head_width is None else head_width
    return num_layers * num_heads * 3 * model_width * d


@wrong("attention_parameters", "counts one layer", "H-HEADCOUNT")
def _(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or model_width // num_heads
    q = k = v = o = model_width * num_heads * head_width
    return q + k + v + o


@wrong("attention_parameters", "counts biases too", "C-PARAMETERS-BIASES")
def _(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        head_width = model_width // num_heads
    inner = num_heads * head_width
    qkv = 3 * (model_width * inner + inner)
    out = inner * model_width + model_width
    return num_layers * (qkv + out)


@wrong("attention_parameters", "every head is as wide as the model", "H-COST")
def _(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        head_width = model_width
    return num_layers * 4 * model_width * num_heads * head_width


@wrong("attention_parameters", "ignores head_width", "C-PARAMETERS-FIXED-WIDTH")
def _(model_width, num_heads, num_layers, head_width=None):
    return num_layers * 4 * model_width**2


@wrong("attention_parameters", "returns a float", "C-PARAMETERS-FLOAT")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width if head_width is not None else model_width / num_heads
    return sum(4 * model_width * num_heads * d for _ in range(num_layers))


@wrong("attention_parameters", "takes the last projection for square", "H-WO-SHAPE")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width if head_width else model_width // num_heads
    per_head = 3 * model_width * d
    return num_layers * (num_heads * per_head + model_width * model_width)


@wrong("attention_parameters", "counts one head", "C-PARAMETERS-ONE-HEAD")
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width // num_heads if head_width is None else head_width
    return int(num_layers * (3 * model_width * d + d * model_width))


@wrong(
    "attention_parameters",
    "lets head_width act on queries and keys only",
    "C-PARAMETERS-WIDTH-OF-KEYS",
    "H-WO-SHAPE",
)
def _(model_width, num_heads, num_layers, head_width=None):
    usual = model_width // num_heads
    d = usual if head_width is None else head_width
    qk = 2 * model_width * num_heads * d
    v_and_out = 2 * model_width * num_heads * usual
    return num_layers * (qk + v_and_out)


@wrong("attention_parameters", "counts the feed-forward network too", "C-PARAMETERS-WHOLE-LAYER")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    total = 0
    for _ in range(num_layers):
        total += 4 * model_width * num_heads * d
        total += 2 * model_width * 4 * model_width
    return total


@wrong(
    "attention_parameters",
    "gives every head a last projection of the whole width",
    "C-PARAMETERS-OUT-EACH",
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    head = 3 * model_width * d + model_width * num_heads * d
    return num_layers * num_heads * head


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    inner = model_width if head_width is None else head_width * num_heads
    shapes = [(model_width, inner)] * 3 + [(inner, model_width)]
    return num_layers * sum(map(math.prod, shapes))


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width if head_width is not None else model_width // num_heads
    count = 0
    for layer in range(num_layers):
        for head in range(num_heads):
            for matrix in "QKVO":
                count += model_width * d
    return count


@right("attention_parameters")
def _(model_width, num_heads, num_layers, head_width=None):
    with torch.device("meta"):
        inner = num_heads * (head_width or model_width // num_heads)
        layer = [nn.Linear(model_width, inner, bias=False) for _ in range(3)]
        layer.append(nn.Linear(inner, model_width, bias=False))
    return num_layers * sum(linear.weight.numel() for linear in layer)


# --- Chapter 6: masking ---------------------------------------------------------------------------


@wrong("next_word_pairs", "begins with an empty context", "C-EMPTY-CONTEXT")
def _(tokens):
    return [(tokens[:i], tokens[i]) for i in range(len(tokens))]


@wrong("next_word_pairs", "keeps only the last word as context", "C-BIGRAM", "C-NEIGHBORS-ONLY")
def _(tokens):
    return [([a], b) for a, b in zip(tokens, tokens[1:])]


@wrong(
    "next_word_pairs",
    "the word to be guessed is already in the context",
    "C-NEXT-INSIDE",
    "S-SHIFT",
)
def _(tokens):
    pairs = []
    for i in range(1, len(tokens)):
        pairs.append((tokens[: i + 1], tokens[i]))
    return pairs


@wrong("next_word_pairs", "goes from the longest context to the shortest", "C-LONGEST-FIRST")
def _(tokens):
    result = []
    left = list(tokens)
    while len(left) > 1:
        nxt = left.pop()
        result.append((list(left), nxt))
    return result


@wrong("next_word_pairs", "puts the same list into every pair", "C-ONE-LIST")
def _(tokens):
    context, pairs = [], []
    for here, after in itertools.pairwise(tokens):
        context.append(here)
        pairs.append((context, after))
    return pairs


@wrong("next_word_pairs", "leaves out the last pair", "C-LAST-MISSED")
def _(tokens):
    out = []
    i = 1
    while i < len(tokens) - 1:
        out.append((tokens[0:i], tokens[i]))
        i += 1
    return out


@wrong("next_word_pairs", "glues the context together to a string", "C-JOINED")
def _(tokens):
    return [(" ".join(map(str, tokens[:i])), tokens[i]) for i in range(1, len(tokens))]


@wrong("next_word_pairs", "packs the next word into a list", "C-WORD-IN-A-LIST")
def _(tokens):
    return [(tokens[:i], tokens[i : i + 1]) for i in range(1, len(tokens))]


@wrong("next_word_pairs", "takes the id 0 for nothing and skips it", "C-ZERO-SKIPPED")
def _(tokens):
    pairs, seen = [], []
    for t in tokens:
        if seen and t:
            pairs.append((seen.copy(), t))
        seen.append(t)
    return pairs


@wrong(
    "next_word_pairs",
    "looks words up by name: a word that comes twice breaks it",
    "C-FIRST-OCCURRENCE",
)
def _(tokens):
    return [(tokens[: tokens.index(t)], t) for t in tokens[1:]]


@wrong("next_word_pairs", "empties the caller's list", "C-WORDS-USED-UP")
def _(tokens):
    pairs = []
    context = [tokens.pop(0)]
    while tokens:
        nxt = tokens.pop(0)
        pairs.append((list(context), nxt))
        context.append(nxt)
    return pairs


@wrong("next_word_pairs", "gives a generator instead of a list", "C-ONE-BY-ONE")
def _(tokens):
    for i in range(1, len(tokens)):
        yield tokens[:i], tokens[i]


@wrong("next_word_pairs", "drops the last word of every context", "C-TWO-AHEAD")
def _(tokens):
    return [(tokens[:i], tokens[i + 1]) for i in range(1, len(tokens) - 1)]


@right("next_word_pairs")
def _(tokens):
    contexts = itertools.accumulate(([t] for t in tokens[:-1]), lambda a, b: a + b)
    return list(zip(contexts, tokens[1:]))


@right("next_word_pairs")
def _(tokens):
    if len(tokens) < 2:
        return []
    *before, last = tokens
    shorter = []
    for i, t in enumerate(before):
        if i:
            shorter.append((before[:i], t))
    return shorter + [(before, last)]


@right("next_word_pairs")
def _(tokens):
    pairs, history = [], ()
    for t in tokens:
        if history:
            pairs.append((list(history), t))
        history = (*history, t)
    return pairs


@wrong("causal_mask", "a word may not look at itself", "M-TRIU-DIAG")
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    ones = torch.ones(query_length, key_length).bool()
    return torch.tril(ones, diagonal=key_length - query_length - 1)


@wrong("causal_mask", "lets words see what comes later, and hides what came before", "M-TRANSPOSED")
def _(query_length, key_length=None):
    k = key_length if key_length is not None else query_length
    return torch.triu(torch.ones(query_length, k, dtype=torch.bool), diagonal=k - query_length)


@wrong("causal_mask", "returns ones and zeros as floats", "C-NOT-BOOLEAN")
def _(query_length, key_length=None):
    key_length = key_length or query_length
    return torch.tril(torch.ones(query_length, key_length), key_length - query_length)


@wrong("causal_mask", "True for hidden", "M-POLARITY")
def _(query_length, key_length=None):
    k_len = query_length if key_length is None else key_length
    offset = k_len - query_length
    return torch.ones(query_length, k_len, dtype=torch.bool).triu(1 + offset)


@wrong("causal_mask", "takes the queries for the first words, not for the last", "M-TOPLEFT")
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    i = torch.arange(query_length)[:, None]
    j = torch.arange(key_length)[None, :]
    return j <= i


@wrong("causal_mask", "ignores key_length", "C-KEYS-IGNORED")
def _(query_length, key_length=None):
    rows = [[col <= row for col in range(query_length)] for row in range(query_length)]
    return torch.tensor(rows, dtype=torch.bool)


@wrong(
    "causal_mask",
    "sees one word too many when there are more keys",
    "C-ONE-PLACE-TOO-FAR",
    "M-TRIL-ONE",
)
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    shift = 0 if key_length == query_length else key_length - query_length + 1
    q = torch.arange(query_length).view(-1, 1) + shift
    return torch.arange(key_length).view(1, -1) <= q


@wrong("causal_mask", "turns the table around: (k q)", "C-ROWS-ARE-KEYS", "M-TRANSPOSED")
def _(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    past = key_length - query_length
    m = torch.zeros(key_length, query_length, dtype=torch.bool)
    for q in range(query_length):
        for k in range(key_length):
            m[k, q] = k <= q + past
    return m


@wrong("causal_mask", "returns 0 and minus infinity, to be added", "C-ADDITIVE-MASK")
def _(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    mask = torch.full((query_length, key_length), float("-inf"))
    return torch.triu(mask, diagonal=1 + key_length - query_length)


@wrong("causal_mask", "has an axis for the batch", "C-BATCH-AXES")
def _(query_length, key_length=None):
    n = query_length if key_length is None else key_length
    whole = torch.ones(1, n, n, dtype=torch.bool).tril()
    return whole[:, n - query_length :]


@wrong("causal_mask", "hides the words that were kept", "C-PAST-HIDDEN")
def _(query_length, key_length=None):
    square = torch.tril(torch.ones(query_length, query_length, dtype=torch.bool))
    if key_length is None:
        return square
    kept = torch.zeros(query_length, key_length - query_length, dtype=torch.bool)
    return torch.cat([kept, square], dim=1)


@wrong("causal_mask", "looks into the future by one word", "M-TRIL-ONE")
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    positions = torch.arange(key_length)
    return (
        positions[None] <= positions[-query_length:, None] + 1
        if query_length
        else positions[:0, None] < positions[None]
    )


@right("causal_mask")
def _(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    rows = [[True] * (key_length - query_length + i + 1) for i in range(query_length)]
    rows = [row + [False] * (key_length - len(row)) for row in rows]
    return torch.tensor(rows, dtype=torch.bool).reshape(query_length, key_length)


@right("causal_mask")
def _(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    table = torch.ones(query_length, key_length)
    return torch.rot90(torch.triu(torch.rot90(table, 2)), 2) == 1


@right("causal_mask")
def _(query_length, key_length=None):
    k = query_length if key_length is None else key_length
    when = torch.arange(k)
    return torch.ge(when[k - query_length :].unsqueeze(-1), when)


@wrong("padding_mask", "forgets the axis of the queries", "M-SHAPE-BT")
def _(lengths, max_length):
    return torch.arange(max_length) < lengths[:, None]


@wrong("padding_mask", "True for padding", "M-POLARITY")
def _(lengths, max_length):
    idx = torch.arange(max_length).expand(len(lengths), max_length)
    return (idx >= lengths.unsqueeze(1)).unsqueeze(1)


@wrong("padding_mask", "lets the first pad pass", "C-ONE-MORE")
def _(lengths, max_length):
    place = torch.arange(max_length)[None, None, :]
    return place <= lengths[:, None, None]


@wrong("padding_mask", "is as long as the longest sentence, whatever max_length is", "C-LONGEST")
def _(lengths, max_length):
    longest = int(lengths.max())
    return (torch.arange(longest) < lengths.unsqueeze(-1))[:, None]


@wrong("padding_mask", "hides rows instead of columns: (b k 1)", "C-QUERIES-ONLY")
def _(lengths, max_length):
    return (torch.arange(max_length)[None] < lengths[:, None]).unsqueeze(-1)


@wrong("padding_mask", "expects the padding on the left", "C-PADDED-LEFT")
def _(lengths, max_length):
    mask = torch.zeros(lengths.shape[0], 1, max_length, dtype=torch.bool)
    for i, n in enumerate(lengths):
        mask[i, 0, max_length - n :] = True
    return mask


@wrong("padding_mask", "returns ones and zeros", "C-NOT-BOOLEAN")
def _(lengths, max_length):
    rows = [[1] * n + [0] * (max_length - n) for n in lengths.tolist()]
    return torch.tensor(rows)[:, None, :]


@wrong("padding_mask", "hides the padding's own queries too: (b k k)", "M-QUERY-PAD")
def _(lengths, max_length):
    real = torch.arange(max_length) < lengths[:, None]
    return real[:, :, None] & real[:, None, :]


@wrong(
    "padding_mask", "counts places from 1 and compares as if from 0: one word is lost", "C-ONE-LESS"
)
def _(lengths, max_length):
    steps = torch.arange(1, max_length + 1)
    return torch.lt(steps, lengths.view(-1, 1)).view(-1, 1, max_length)


@wrong("padding_mask", "cuts off -0 places, which is everything", "C-MINUS-ZERO")
def _(lengths, max_length):
    masks = []
    for n in lengths.tolist():
        row = torch.ones(max_length, dtype=torch.bool)
        pad = max_length - n
        row[-pad:] = False
        masks.append(row)
    return torch.stack(masks).unsqueeze(1)


@wrong("padding_mask", "puts the extra axis in front", "M-SHAPE-BT", "C-AXIS-IN-FRONT")
def _(lengths, max_length):
    return (torch.arange(max_length) < lengths.reshape(-1, 1)).unsqueeze(0)


@wrong("padding_mask", "gives an empty sentence one word", "C-NEVER-EMPTY")
def _(lengths, max_length):
    at_least_one = lengths.clamp(min=1)
    return torch.arange(max_length).repeat(len(lengths), 1, 1) < at_least_one[:, None, None]


@wrong("padding_mask", "uses the first sentence's length for all", "C-FIRST-FOR-ALL")
def _(lengths, max_length):
    mask = torch.zeros(len(lengths), 1, max_length, dtype=torch.bool)
    mask[:, :, : lengths[0]] = True
    return mask


@right("padding_mask")
def _(lengths, max_length):
    ends = F.one_hot(lengths.long(), max_length + 1)
    return (ends.cumsum(-1) == 0)[:, None, :-1]


@right("padding_mask")
def _(lengths, max_length):
    table = torch.tril(torch.ones(max_length + 1, max_length, dtype=torch.bool), -1)
    return table[lengths.long()].unsqueeze(-2)


@right("padding_mask")
def _(lengths, max_length):
    mask = torch.empty(len(lengths), 1, max_length, dtype=torch.bool)
    for b in range(mask.size(0)):
        for k in range(mask.size(2)):
            mask[b, 0, k] = bool(lengths[b] > k)
    return mask


@wrong("masked_softmax", "hides after the softmax and does not share out again", "M-AFTER-SOFTMAX")
def _(scores, mask):
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


@wrong("masked_softmax", "NaN in dead rows", "M-DEAD-ROW")
def _(scores, mask):
    return F.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)


@wrong("masked_softmax", "dead rows share out evenly", "M-DEAD-ROW-UNIFORM")
def _(scores, mask):
    low = torch.finfo(scores.dtype).min
    return torch.where(mask, scores, low).softmax(-1)


@wrong("masked_softmax", "takes the mask the wrong way around", "M-POLARITY")
def _(scores, mask):
    w = scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return w * ~mask


@wrong("masked_softmax", "repairs NaN afterwards: the gradient is still NaN", "M-DEAD-ROW-GRADIENT")
def _(scores, mask):
    weights = torch.softmax(scores + mask.to(scores.dtype).log(), -1)
    return torch.nan_to_num(weights, nan=0.0)


@wrong("masked_softmax", "writes into the scores", "M-INPLACE")
def _(scores, mask):
    allowed = mask.expand_as(scores)
    scores.data[~allowed] = torch.finfo(scores.dtype).min
    return torch.softmax(scores, dim=-1).masked_fill(~allowed, 0)


@wrong("masked_softmax", "multiplies the scores by the mask", "M-FILL-ZERO")
def _(scores, mask):
    m = mask.to(scores.dtype)
    w = torch.softmax(scores * m, dim=-1)
    return w * mask.any(dim=-1, keepdim=True)


@wrong("masked_softmax", "lets the queries compete", "D-SOFTMAX-DIM")
def _(scores, mask):
    hidden = ~mask.broadcast_to(scores.shape)
    w = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-2)
    return w.masked_fill(hidden, 0)


@wrong(
    "masked_softmax",
    "hides after the softmax and divides: 0/0 if a hidden score is far above",
    "M-AFTER-RENORMALIZED",
)
def _(scores, mask):
    w = torch.softmax(scores, -1) * mask
    total = w.sum(-1, keepdim=True)
    return w / torch.where(total == 0, torch.ones_like(total), total)


@wrong("masked_softmax", "returns float32 for everything", "C-FLOAT32-RETURNED")
def _(scores, mask):
    s = scores.float().masked_fill(~mask, -1e38)
    return torch.softmax(s, dim=-1) * mask.float()


@wrong("masked_softmax", "hides with -1e4, which is not below every score", "M-SMALL-FILL")
def _(scores, mask):
    w = torch.where(mask, scores, torch.tensor(-1e4, dtype=scores.dtype)).softmax(-1)
    alive = mask.broadcast_to(scores.shape).any(-1, keepdim=True)
    return torch.where(alive, w, torch.zeros_like(w))


@wrong("masked_softmax", "shifts by a maximum that includes hidden scores", "M-AFTER-RENORMALIZED")
def _(scores, mask):
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    e = torch.where(mask, e, torch.zeros_like(e))
    return e / e.sum(-1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)


@wrong("masked_softmax", "opens dead rows in the caller's mask", "C-MASK-OPENED")
def _(scores, mask):
    dead = ~mask.any(-1, keepdim=True)
    mask |= dead
    w = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return w.masked_fill(~mask | dead, 0)


@wrong(
    "masked_softmax",
    "knows dead rows only if the whole mask is False",
    "M-DEAD-ROW",
    "M-LEFTPAD-CAUSAL",
)
def _(scores, mask):
    if not mask.any():
        return torch.zeros_like(scores)
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)


@wrong("masked_softmax", "hides with -1e9: raises for float16", "M-HALF-FILL", "C-MINUS-A-BILLION")
def _(scores, mask):
    filled = scores.masked_fill(~mask, -1e9)
    return torch.softmax(filled, dim=-1).masked_fill(~mask, 0)


@wrong(
    "masked_softmax",
    "adds the lowest number to the score: minus infinity in float16",
    "M-DOUBLE-MIN",
)
def _(scores, mask):
    penalty = torch.zeros_like(scores).masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores + penalty, dim=-1).masked_fill(~mask, 0)


@wrong("masked_softmax", "gives every mask an axis for the heads", "C-HEADS-AXIS")
def _(scores, mask):
    mask = mask.unsqueeze(1)
    w = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return w.masked_fill(~mask, 0)


@right("masked_softmax")
def _(scores, mask):
    mask = mask.broadcast_to(scores.shape)
    alive = mask.any(-1, keepdim=True)
    safe = torch.where(alive & ~mask, -torch.inf, scores)
    safe = torch.where(alive, safe, torch.zeros_like(safe))
    return torch.softmax(safe, -1) * alive


@right("masked_softmax")
def _(scores, mask):
    shape = scores.shape
    flat_m = mask.expand(shape).reshape(-1, shape[-1])
    flat_s = scores.reshape(-1, shape[-1])
    rows = []
    for s, m in zip(flat_s, flat_m):
        row = torch.zeros_like(s)
        if m.any():
            row = row.masked_scatter(m, torch.softmax(s[m], dim=0))
        rows.append(row)
    return torch.stack(rows).view(shape)


@right("masked_softmax")
def _(scores, mask):
    lowest = torch.finfo(scores.dtype).min
    shown = scores.where(mask, lowest)
    top = shown.amax(-1, keepdim=True).clamp(min=lowest / 2)
    e = (shown - top).clamp(min=lowest).double().exp().where(mask, 0.0)
    total = e.sum(-1, keepdim=True)
    return (e / total.where(total > 0, 1.0)).to(scores.dtype)


@right("masked_softmax")
def _(scores, mask):
    weights = torch.softmax(scores.masked_fill(mask == False, float("-inf")), -1)
    return torch.nan_to_num(weights, nan=0.0)


# --- Chapter 7: cross-attention and the Transformer -----------------------------------------------


@wrong("cross_attention", "lets the target ask itself", "X-LEAK")
def _(target, memory, attention, memory_mask=None):
    return attention(target, target, target, memory_mask)


@wrong("cross_attention", "lets the source ask the target", "C-SOURCE-ASKS")
def _(target, memory, attention, memory_mask=None):
    output, weights = attention(memory, target, target, memory_mask)
    return output, weights


@wrong("cross_attention", "takes the values from the target", "X-WRONG-KV")
def _(target, memory, attention, memory_mask=None):
    q, k, v = target, memory, target
    return attention(q, k, v, memory_mask)


@wrong("cross_attention", "does not pass the mask on", "X-NOMASK")
def _(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, None)


@wrong("cross_attention", "turns the mask's meaning around", "M-POLARITY")
def _(target, memory, attention, memory_mask=None):
    hidden = None if memory_mask is None else ~memory_mask
    return attention(target, memory, memory, hidden)


@wrong("cross_attention", "returns the output only", "C-OUTPUT-ONLY")
def _(target, memory, attention, memory_mask=None):
    out, _ = attention(target, memory, memory, memory_mask)
    return out


@wrong("cross_attention", "takes the keys from the target", "C-KEYS-OF-TARGET")
def _(target, memory, attention, memory_mask=None):
    return attention(target, target, memory, memory_mask)


@wrong("cross_attention", "adds the target to the output", "C-RESIDUAL-INSIDE")
def _(target, memory, attention, memory_mask=None):
    context, weights = attention(target, memory, memory, memory_mask)
    return target + context, weights


@wrong("cross_attention", "averages the heads' tables", "H-AVG-WEIGHTS")
def _(target, memory, attention, memory_mask=None):
    context, alignment = attention(target, memory, memory, memory_mask)
    return context, alignment.mean(1)


@wrong("cross_attention", "lets no gradient through to the source", "C-MEMORY-DETACHED")
def _(target, memory, attention, memory_mask=None):
    frozen = memory.detach()
    return attention(target, frozen, frozen, memory_mask)


@wrong("cross_attention", "makes a causal mask", "X-CAUSAL")
def _(target, memory, attention, memory_mask=None):
    q, k = target.shape[1], memory.shape[1]
    causal = torch.ones(q, k, dtype=torch.bool).tril()
    if memory_mask is not None:
        causal = causal & memory_mask
    return attention(target, memory, memory, causal)


@wrong("cross_attention", "sets padding to 0 instead of hiding it", "C-ZEROED-MEMORY")
def _(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3 and memory_mask.shape[1] == 1:
        memory = memory * memory_mask.transpose(1, 2)
        memory_mask = None
    return attention(target, memory, memory, memory_mask)


@wrong("cross_attention", "lets the target read itself as well as the source", "C-BOTH-ANSWER")
def _(target, memory, attention, memory_mask=None):
    both = torch.cat([memory, target], dim=1)
    if memory_mask is not None:
        b, q = target.shape[:2]
        memory_mask = memory_mask.expand(b, q, memory.shape[1])
        memory_mask = torch.cat([memory_mask, torch.ones(b, q, q, dtype=torch.bool)], dim=2)
    return attention(target, both, both, memory_mask)


@wrong("cross_attention", "keeps only the first row of the mask", "M-ONE-ROW")
def _(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask = memory_mask[..., :1, :]
    return attention(target, memory, memory, memory_mask)


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    arguments = dict(zip(("query", "key", "value", "mask"), (target, memory, memory, memory_mask)))
    return attention(*arguments.values())


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    if memory_mask is None:
        b, q, k = len(target), target.shape[1], memory.shape[1]
        memory_mask = torch.ones(b, q, k, dtype=torch.bool)
    output, weights = attention(target, memory, memory, memory_mask)
    return (output, weights)


@right("cross_attention")
def _(target, memory, attention, memory_mask=None):
    ask = functools.partial(attention, target)
    return ask(*[memory] * 2, memory_mask)


@wrong("DecoderLayer", "normalizes after the sum: post-norm", "C-POST-NORM")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target + self.self_attention(target, target, target, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.linear2(F.relu(self.linear1(x))))


@wrong("DecoderLayer", "normalizes the memory as well", "C-MEMORY-NORMALIZED")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(model_width) for _ in range(3))
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        n = self.norm1(target)
        x = target + self.self_attention(n, n, n, target_mask)[0]
        m = self.norm2(memory)
        x = x + self.cross_attention(self.norm2(x), m, m, memory_mask)[0]
        return x + self.linear2(torch.relu(self.linear1(self.norm3(x))))


@wrong("DecoderLayer", "leads no sum around the cross-attention", "C-NO-SUM-CROSS")
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
        h = self.norm1(target)
        out, _ = self.self_attention(h, h, h, target_mask)
        target = target + out
        target, _ = self.cross_attention(self.norm2(target), memory, memory, memory_mask)
        ff = self.linear2(self.linear1(self.norm3(target)).relu())
        return target + ff


@wrong("DecoderLayer", "takes memory_mask before target_mask", "C-MASK-ORDER")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        for i in (1, 2, 3):
            setattr(self, f"norm{i}", nn.LayerNorm(model_width))
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, memory_mask=None, target_mask=None):
        h = self.norm1(target)
        target = target + self.self_attention(h, h, h, target_mask)[0]
        h = self.norm2(target)
        target = target + self.cross_attention(h, memory, memory, memory_mask)[0]
        return target + self.linear2(F.relu(self.linear1(self.norm3(target))))


@wrong("DecoderLayer", "lets the target read the source's padding: no memory_mask", "X-NOMASK")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        y = target + self.self_attention(y, y, y, target_mask)[0]
        z = y + self.cross_attention(self.norm2(y), memory, memory)[0]
        return z + self.linear2(nn.functional.relu(self.linear1(self.norm3(z))))


@wrong("DecoderLayer", "lets words see later ones: no target_mask", "C-NO-TARGET-MASK")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        a, _ = self.self_attention(x, x, x)
        target = target + a
        c, _ = self.cross_attention(self.norm2(target), memory, memory, memory_mask)
        target = target + c
        return target + self.linear2(self.linear1(self.norm3(target)).clamp(min=0))


@wrong("DecoderLayer", "forgets the ReLU", "C-NO-RELU")
class _(nn.Module):
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
        x = target
        n = self.norm1(x)
        x = x + self.self_attention(n, n, n, target_mask)[0]
        x = x + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        x = x + self.linear2(self.linear1(self.norm3(x)))
        return x


@wrong(
    "DecoderLayer", "normalizes the queries only, not the keys and values", "C-QUERY-NORMED-ONLY"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target + self.self_attention(self.norm1(target), target, target, target_mask)[0]
        x = x + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


@wrong(
    "DecoderLayer",
    "uses norm2 twice and norm3 never",
    "C-ONE-NORM",
    "C-NORMS-MOVED",
    "C-NORM-AGAIN",
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        q = self.norm1(target)
        x = target + self.self_attention(q, q, q, target_mask)[0]
        x = x + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return x + self.linear2(F.relu(self.linear1(self.norm2(x))))


@wrong("DecoderLayer", "leads the sum around from behind the norm", "C-SUM-OF-NORMED")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        x = x + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(x)
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        x = self.norm3(x)
        return x + self.linear2(self.linear1(x).relu())


@wrong("DecoderLayer", "asks the source first, then itself", "C-SOURCE-FIRST")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = x + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        n = self.norm1(x)
        x = x + self.self_attention(n, n, n, target_mask)[0]
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


@wrong("DecoderLayer", "takes a GELU for the ReLU", "C-GELU")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)
        self.activation = nn.GELU()

    def feed_forward(self, x):
        return self.linear2(self.activation(self.linear1(x)))

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        normed = self.norm1(target)
        target = target + self.self_attention(normed, normed, normed, target_mask)[0]
        normed = self.norm2(target)
        target = target + self.cross_attention(normed, memory, memory, memory_mask)[0]
        return target + self.feed_forward(self.norm3(target))


@wrong("DecoderLayer", "all three parts read the same x, side by side", "C-PARALLEL")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        n1, n2, n3 = self.norm1(target), self.norm2(target), self.norm3(target)
        a = self.self_attention(n1, n1, n1, target_mask)[0]
        c = self.cross_attention(n2, memory, memory, memory_mask)[0]
        f = self.linear2(self.linear1(n3).relu())
        return target + a + c + f


@wrong("DecoderLayer", "adds into the caller's target", "C-IN-PLACE")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        target += self.self_attention(x, x, x, target_mask)[0]
        target = target + self.cross_attention(self.norm2(target), memory, memory, memory_mask)[0]
        return target + self.linear2(F.relu(self.linear1(self.norm3(target))))


@right("DecoderLayer")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        for place in range(1, 4):
            self.register_module(f"norm{place}", nn.LayerNorm(model_width))
        for name in ("self_attention", "cross_attention"):
            self.register_module(name, MultiHeadAttention(model_width, num_heads))
        self.linear1, self.linear2 = (
            nn.Linear(*sizes)
            for sizes in ((model_width, hidden_width), (hidden_width, model_width))
        )

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        parts = (
            (self.norm1, lambda y: self.self_attention(y, y, y, target_mask)[0]),
            (self.norm2, lambda y: self.cross_attention(y, memory, memory, memory_mask)[0]),
            (self.norm3, lambda y: self.linear2(self.linear1(y).relu())),
        )
        return functools.reduce(lambda x, part: x + part[1](part[0](x)), parts, target)


@right("DecoderLayer")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.linear2 = nn.Linear(hidden_width, model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm1 = nn.LayerNorm(model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        residual = target
        hidden_states = self.norm1(target)
        hidden_states, _ = self.self_attention(
            hidden_states, hidden_states, hidden_states, mask=target_mask
        )
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.norm2(hidden_states)
        hidden_states, _ = self.cross_attention(hidden_states, memory, memory, mask=memory_mask)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.norm3(hidden_states)
        hidden_states = torch.maximum(self.linear1(hidden_states), torch.zeros(()).to(target))
        return residual + self.linear2(hidden_states)


@right("DecoderLayer")
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        norms = [nn.LayerNorm(model_width) for _ in range(3)]
        self.norm1, self.norm2, self.norm3 = norms
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def _sa(self, x, mask):
        out, weights = self.self_attention(x, x, x, mask)
        return out

    def _ca(self, x, memory, mask):
        out, weights = self.cross_attention(x, memory, memory, mask)
        return out

    def _ff(self, x):
        x = self.linear1(x)
        return self.linear2(x * (x > 0))

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = torch.add(target, self._sa(self.norm1(target), target_mask))
        x = x + self._ca(self.norm2(x), memory, memory_mask)
        return x + self._ff(self.norm3(x))


@wrong("translate", "shows the model only the last word", "C-LAST-WORD-ONLY")
def _(model, source, bos, eos, max_length):
    word = torch.full((source.shape[0], 1), bos)
    done = torch.zeros(source.shape[0], dtype=torch.bool)
    out = []
    for _ in range(max_length):
        scores = model(source, word)[:, -1]
        nxt = scores.argmax(-1).masked_fill(done, eos)
        done = done | (nxt == eos)
        out.append(nxt)
        word = nxt.unsqueeze(1)
    return torch.stack(out, 1)


@wrong("translate", "reads the scores of the first position", "C-FIRST-POSITION")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    ended = torch.zeros(len(source)).bool()
    for _ in range(max_length):
        best = model(source, words)[:, 0, :].argmax(dim=-1)
        best = torch.where(ended, eos, best)
        ended |= best == eos
        words = torch.cat([words, best[:, None]], dim=1)
    return words[:, 1:]


@wrong("translate", "returns bos as well", "C-BOS-KEPT")
def _(model, source, bos, eos, max_length):
    ys = source.new_full((source.size(0), 1), bos)
    for _ in range(max_length):
        logits = model(source, ys)[:, -1, :]
        nxt = logits.argmax(-1, keepdim=True)
        over = (ys == eos).any(dim=1, keepdim=True)
        nxt = nxt.masked_fill(over, eos)
        ys = torch.cat([ys, nxt], dim=1)
        if (ys == eos).any(1).all():
            break
    return ys


@wrong("translate", "goes on writing after eos", "C-TALKS-ON")
def _(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos, dtype=torch.long)
    for _ in range(max_length):
        scores = model(source, words)
        words = torch.cat((words, scores[:, -1].argmax(-1).unsqueeze(-1)), dim=-1)
        if all(eos in row for row in words[:, 1:].tolist()):
            break
    return words[:, 1:]


@wrong("translate", "stops as soon as one row has ended", "C-FIRST-END-STOPS")
def _(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos)
    while words.shape[1] <= max_length:
        nxt = model(source, words)[:, -1].max(-1).indices
        words = torch.cat([words, nxt[:, None]], 1)
        if (nxt == eos).any():
            break
    return words[:, 1:]


@wrong("translate", "leaves the model in evaluation mode", "C-EVAL-KEPT")
def _(model, source, bos, eos, max_length):
    model.eval()
    b = source.shape[0]
    words = torch.full((b, 1), bos)
    finished = torch.zeros(b, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(max_length):
            nxt = model(source, words)[:, -1].argmax(-1)
            nxt[finished] = eos
            finished |= nxt == eos
            words = torch.cat([words, nxt.unsqueeze(1)], dim=1)
            if finished.all():
                break
    return words[:, 1:]


@wrong("translate", "starts from bos once, and later from its own first word", "S-BOS-MISMATCH")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    for _ in range(max_length):
        guesses = model(source, words).argmax(-1)
        words = torch.cat([guesses[:, :1], guesses], dim=1)
    out = words[:, 1:]
    after = (out == eos).cumsum(1) - (out == eos).long() > 0
    return out.masked_fill(after, eos)


@wrong("translate", "counts bos as a word: one word too few", "C-LIMIT-COUNTS-BOS")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    done = torch.zeros(len(source), 1, dtype=torch.bool)
    while words.shape[1] < max_length:
        nxt = model(source, words)[:, -1:].argmax(-1)
        nxt = torch.where(done, eos, nxt)
        done = done | (nxt == eos)
        words = torch.cat([words, nxt], dim=1)
    return words[:, 1:]


@wrong("translate", "draws words instead of taking the likeliest", "C-SAMPLES")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    for _ in range(max_length):
        p = model(source, words)[:, -1].softmax(-1)
        nxt = torch.multinomial(p, 1)
        stop = (words[:, 1:] == eos).any(1, keepdim=True)
        words = torch.cat([words, torch.where(stop, eos, nxt)], dim=1)
    return words[:, 1:]


@wrong("translate", "cuts eos off", "S-STRIP-EOS", "C-END-NOT-WRITTEN")
def _(model, source, bos, eos, max_length):
    b = len(source)
    words = torch.full((b, 1), bos)
    ended = torch.zeros(b, dtype=torch.bool)
    for _ in range(max_length):
        nxt = model(source, words)[:, -1].argmax(-1).masked_fill(ended, eos)
        ended = ended | (nxt == eos)
        if ended.all():
            break
        words = torch.hstack([words, nxt[:, None]])
    return words[:, 1:]


@wrong("translate", "never appends: always asks for the word after bos", "C-NOTHING-FED-BACK")
def _(model, source, bos, eos, max_length):
    start = torch.full((len(source), 1), bos)
    columns, done = [], torch.zeros(len(source), dtype=torch.bool)
    for _ in range(max_length):
        nxt = model(source, start)[:, -1].argmax(-1)
        nxt = torch.where(done, torch.full_like(nxt, eos), nxt)
        done = done | nxt.eq(eos)
        columns.append(nxt)
    return torch.stack(columns, dim=1)


@wrong("translate", "fills up with 0 after eos", "C-PAD-BEHIND")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    going = torch.ones(len(source), dtype=torch.long)
    for _ in range(max_length):
        nxt = model(source, words)[:, -1].argmax(dim=-1) * going
        going = going * nxt.ne(eos)
        words = torch.cat([words, nxt.unsqueeze(-1)], dim=-1)
    return words[:, 1:]


@wrong("translate", "writes one word too many: does not count eos", "C-LIMIT-ONE-MORE")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), bos)
    done = torch.zeros(len(source), dtype=torch.bool)
    for step in range(max_length + 1):
        nxt = model(source, words)[:, -1].argmax(-1)
        nxt[done] = eos
        done |= nxt == eos
        words = torch.cat([words, nxt[:, None]], 1)
    return words[:, 1:]


@wrong("translate", "starts from eos", "S-BOS-MISMATCH")
def _(model, source, bos, eos, max_length):
    words = torch.full((len(source), 1), eos)
    out = []
    done = [False] * len(source)
    for _ in range(max_length):
        picks = model(source, words)[:, -1].argmax(-1).tolist()
        picks = [eos if d else p for d, p in zip(done, picks)]
        done = [d or p == eos for d, p in zip(done, picks)]
        out.append(picks)
        words = torch.cat([words, torch.tensor(picks)[:, None]], dim=1)
    return torch.tensor(out).T


@wrong("translate", "translates the first sentence for all rows", "C-ONE-SENTENCE")
def _(model, source, bos, eos, max_length):
    words = torch.tensor([[bos]])
    for _ in range(max_length):
        nxt = int(model(source[:1], words)[0, -1].argmax())
        words = torch.cat([words, torch.tensor([[nxt]])], dim=1)
        if nxt == eos:
            break
    return words[:, 1:].repeat(len(source), 1)


@right("translate")
def _(model, source, bos, eos, max_length):
    rows = []
    for i in range(len(source)):
        row = [bos]
        while len(row) <= max_length and (len(row) == 1 or row[-1] != eos):
            scores = model(source[i : i + 1], torch.tensor([row]))
            row.append(scores[0, -1].argmax().item())
        rows.append(torch.tensor(row[1:]))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=eos)


@right("translate")
@torch.no_grad()
def _(model, source, bos, eos, max_length):
    canvas = torch.full((source.size(0), max_length + 1), eos)
    canvas[:, 0] = bos
    alive = torch.ones(source.size(0), dtype=torch.bool)
    for t in range(max_length):
        best = model(source, canvas[:, : t + 1])[:, t].argmax(-1)
        canvas[alive, t + 1] = best[alive]
        alive &= canvas[:, t + 1] != eos
    return canvas[:, 1:]


@right("translate")
def _(model, source, bos, eos, max_length):
    def go_on(words):
        written = words[:, 1:]
        ended = (written == eos).any(dim=1)
        if written.shape[1] == max_length or bool(ended.all()):
            return written
        best = model(source, words)[:, -1].argmax(-1)
        return go_on(torch.column_stack([words, torch.where(ended, eos, best)]))

    return go_on(torch.full((len(source), 1), bos))

"""Right answers to chapter 1 in many styles: the judge must accept every one, on every seed."""

import functools
import itertools
import statistics
from collections import Counter, defaultdict
from fractions import Fraction

import einops
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attncourse.bottleneck import gru_step

# --- encode


def by_two_indices(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens))
    return states[torch.arange(tokens.size(0)), lengths - 1]


def packed(tokens, lengths, embedding, gru):
    gru.flatten_parameters()
    sequence = pack_padded_sequence(
        embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    _, last = gru(sequence)
    return last.squeeze(0)


def packed_and_unpacked(tokens, lengths, embedding, gru):
    sequence = pack_padded_sequence(embedding(tokens), lengths.tolist(), True, False)
    states, sizes = pad_packed_sequence(gru(sequence)[0], batch_first=True)
    return torch.stack([row[size - 1] for row, size in zip(states, sizes, strict=True)])


def sorted_and_put_back(tokens, lengths, embedding, gru):
    sizes, order = lengths.sort(descending=True)
    _, last = gru(pack_padded_sequence(embedding(tokens[order]), sizes, batch_first=True))
    return last[-1][order.argsort()]


def gathered(tokens, lengths, embedding, gru):
    states = gru(embedding(tokens))[0]
    place = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, place).squeeze(1)


def one_sentence_at_a_time(tokens, lengths, embedding, gru):
    vectors = []
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        _, last = gru(embedding(row[:length])[None])
        vectors.append(last[0, 0])
    return torch.stack(vectors)


def by_one_hot(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens), None)
    pick = F.one_hot(lengths - 1, tokens.shape[1]).to(states.dtype)
    return einops.einsum(pick, states, "b n, b n hidden -> b hidden")


def stops_row_by_row(tokens, lengths, embedding, gru):
    """Step by step; a row that has ended keeps its state."""
    state = embedding.weight.new_zeros(1, len(tokens), gru.hidden_size)
    for t in range(tokens.shape[1]):
        _, new = gru(embedding(tokens[:, t : t + 1]), state)
        state = torch.where((t < lengths)[None, :, None], new, state)
    return state[0]


def with_own_cell(tokens, lengths, embedding, gru):
    x = embedding(tokens)
    h = x.new_zeros(len(tokens), gru.hidden_size)
    kept = torch.zeros_like(h)
    for t, word in enumerate(x.unbind(1), start=1):
        h = torch.gru_cell(
            word, h, gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0
        )
        kept = kept + h * (lengths == t).unsqueeze(1)
    return kept


def with_the_books_step(tokens, lengths, embedding, gru):
    h = torch.zeros(len(tokens), gru.hidden_size, dtype=embedding.weight.dtype)
    states = []
    for word in embedding.weight[tokens].transpose(0, 1):
        h = gru_step(word, h, *gru.parameters())
        states.append(h)
    return torch.stack(states)[lengths - 1, torch.arange(len(tokens))]


def last_of_the_cut_row(tokens, lengths, embedding, gru):
    n = int(lengths.max())
    states, _ = gru(embedding(tokens[:, :n].contiguous()))
    b, _, hidden = states.shape
    return states.reshape(b * n, hidden)[torch.arange(b) * n + lengths - 1]


def sentences_of_one_length_together(tokens, lengths, embedding, gru):
    vectors = embedding.weight.new_empty(len(tokens), gru.hidden_size)
    for n in lengths.unique().tolist():
        rows = lengths == n
        vectors[rows] = gru(embedding(tokens[rows, :n]))[1][-1]
    return vectors


def rolled_to_the_end(tokens, lengths, embedding, gru):
    states = gru(embedding(tokens))[0]
    n = states.shape[1]
    return torch.stack(
        [row.roll(n - size, 0)[-1] for row, size in zip(states, lengths.tolist(), strict=True)]
    )


def chosen_by_a_mask(tokens, lengths, embedding, gru):
    states = gru(embedding(tokens))[0]
    return states[torch.arange(states.shape[1]) == (lengths - 1)[:, None]]


def packed_time_first(tokens, lengths, embedding, gru):
    """What is packed has no batch axis: the order only has to be the packing's."""
    return gru(pack_padded_sequence(embedding(tokens.T), lengths, enforce_sorted=False))[1][-1]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.ones((), dtype=torch.long))

    def forward(self, tokens, lengths, embedding, gru):
        print("encoding", tokens.shape)  # harmless, and common
        states, _ = gru(embedding(tokens))
        return states[range(len(tokens)), lengths - self.one]


ENCODE = [
    by_two_indices,
    packed,
    packed_and_unpacked,
    sorted_and_put_back,
    gathered,
    one_sentence_at_a_time,
    by_one_hot,
    stops_row_by_row,
    with_own_cell,
    with_the_books_step,
    last_of_the_cut_row,
    sentences_of_one_length_together,
    rolled_to_the_end,
    chosen_by_a_mask,
    packed_time_first,
    Encoder(),
    torch.compile(by_two_indices, backend="eager"),
    functools.partial(by_two_indices),
]


# --- teacher_inputs


def joined(target, bos):
    column = torch.full((target.shape[0], 1), bos, dtype=target.dtype)
    return torch.cat((column, target[:, :-1]), dim=-1)


def rolled(target, bos):
    inputs = target.roll(1, 1)
    inputs[:, 0] = bos
    return inputs


def rolled_flat(target, bos):
    inputs = torch.roll(target, 1)  # all rows in one list: only first words cross a border
    inputs[..., 0] = bos
    return inputs


def filled(target, bos):
    inputs = torch.empty_like(target)
    inputs[:, 0] = bos
    inputs[:, 1:] = target[:, :-1]
    return inputs


def padded_on_the_left(target, bos):
    return F.pad(target, (1, 0), value=bos)[:, :-1]


def padded_by_minus_one(target, bos):
    return F.pad(target, (1, -1), value=bos)


def as_lists(target, bos):
    return torch.tensor([[bos, *row[:-1]] for row in target.tolist()])


def by_places(target, bos):
    places = torch.arange(target.shape[1])
    before = target[:, (places - 1).clamp(min=0)]
    return torch.where(places == 0, bos, before)


def words_and_rows(target, bos):
    words = list(target.unbind(dim=1))
    return torch.stack([torch.full_like(words[0], bos), *words[:-1]], dim=1)


def with_numpy(target, bos):
    moved = np.concatenate([np.full((len(target), 1), bos), target.numpy()[:, :-1]], axis=1)
    return torch.from_numpy(moved)


def by_slice_scatter(target, bos):
    return torch.slice_scatter(torch.full_like(target, bos), target[:, :-1], dim=1, start=1)


def from_the_back(target, bos):
    inputs = target.clone()
    for place in range(target.shape[1] - 1, 0, -1):
        inputs[:, place] = inputs[:, place - 1]
    inputs[:, 0] = bos
    return inputs


TEACHER = [
    joined,
    rolled,
    rolled_flat,
    filled,
    padded_on_the_left,
    padded_by_minus_one,
    as_lists,
    by_places,
    words_and_rows,
    with_numpy,
    by_slice_scatter,
    from_the_back,
    torch.no_grad()(joined),
    lambda *args: joined(*args),
]


# --- sequence_loss


def with_flat_rows(logits, target, pad):
    flat = logits.reshape(-1, logits.size(-1))
    return F.cross_entropy(flat, target.reshape(-1), ignore_index=pad)


def with_turned_axes(logits, target, pad):
    return nn.CrossEntropyLoss(ignore_index=pad)(logits.permute(0, 2, 1), target)


def masked_mean(logits, target, pad):
    loss = F.cross_entropy(logits.mT, target, reduction="none")
    real = (target != pad).to(loss.dtype)
    return (loss * real).sum() / real.sum()


def picked(logits, target, pad):
    real = target != pad
    return F.cross_entropy(logits[real], target[real])


def by_hand(logits, target, pad):
    log_p = logits.log_softmax(dim=-1).gather(2, target.unsqueeze(2)).squeeze(2)
    return -log_p.masked_fill(target == pad, 0).sum() / (target != pad).sum()


def by_log_sum_exp(logits, target, pad):
    right = torch.take_along_dim(logits, target[..., None], dim=-1)[..., 0]
    return (logits.logsumexp(-1) - right)[target.ne(pad)].mean()


def shifted_by_hand(logits, target, pad):
    shifted = logits - logits.amax(-1, keepdim=True)
    log_p = shifted - shifted.exp().sum(-1, keepdim=True).log()
    chosen = einops.einsum(
        log_p, F.one_hot(target, logits.shape[-1]).to(log_p), "b n v, b n v -> b n"
    )
    return -chosen[target != pad].mean()


def weighted_classes(logits, target, pad):
    weight = torch.ones(logits.shape[-1], dtype=logits.dtype)
    weight[pad] = 0
    return F.cross_entropy(logits.transpose(1, 2), target, weight=weight)


def marked_by_minus_hundred(logits, target, pad):
    marked = target.masked_fill(target == pad, -100)
    return F.nll_loss(F.log_softmax(logits, 2).flatten(0, 1), marked.flatten())


def position_by_position(logits, target, pad):
    total, count = logits.new_zeros(()), 0
    for scores, words in zip(logits, target, strict=True):
        for score, word in zip(scores, words, strict=True):
            if word != pad:
                total = total - torch.distributions.Categorical(logits=score).log_prob(word)
                count += 1
    return total / count


def double_inside(logits, target, pad):
    return with_flat_rows(logits.double(), target, pad).to(logits.dtype)


def sum_over_count(logits, target, pad):
    total = F.cross_entropy(logits.transpose(-1, -2), target, ignore_index=pad, reduction="sum")
    return total / target.ne(pad).sum().item()


def by_lengths(logits, target, pad):
    """Rows cut at their lengths, as padding stands on the right."""
    lengths = (target != pad).sum(1).tolist()
    scores = torch.cat([row[:n] for row, n in zip(logits, lengths, strict=True)])
    words = torch.cat([row[:n] for row, n in zip(target, lengths, strict=True)])
    return F.cross_entropy(scores, words)


def nan_mean(logits, target, pad):
    loss = F.cross_entropy(logits.mT, target, reduction="none")
    return torch.where(target == pad, torch.nan, loss).nanmean()


def means_weighted_by_lengths(logits, target, pad):
    total, count = logits.new_zeros(()), 0
    for scores, words in zip(logits, target, strict=True):
        real = int((words != pad).sum())
        if real:  # the mean of a row without tokens is NaN
            total = total + real * F.cross_entropy(scores, words, ignore_index=pad)
            count += real
    return total / count


def log_sum_exp_word_by_word(logits, target, pad):
    total = functools.reduce(torch.logaddexp, logits.unbind(-1))
    right = logits.gather(-1, target[..., None])[..., 0]
    return (total - right)[target != pad].mean()


def ratio_of_means(logits, target, pad):
    real = (target != pad).to(logits.dtype)
    return (F.cross_entropy(logits.mT, target, reduction="none") * real).mean() / real.mean()


LOSS = [
    with_flat_rows,
    with_turned_axes,
    masked_mean,
    picked,
    by_hand,
    by_log_sum_exp,
    shifted_by_hand,
    weighted_classes,
    marked_by_minus_hundred,
    position_by_position,
    double_inside,
    sum_over_count,
    by_lengths,
    nan_mean,
    means_weighted_by_lengths,
    log_sum_exp_word_by_word,
    ratio_of_means,
    functools.partial(with_flat_rows),
]


# --- greedy_decode


def usual(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        token = torch.where(finished, eos, logits.argmax(dim=-1))
        finished |= token == eos
        written.append(token)
        if finished.all():
            break
    return torch.stack(written, dim=1)


def never_early(step, state, bos, eos, max_length, batch_size):
    written = torch.full((batch_size, max_length), eos)
    token = written.new_full((batch_size,), bos)
    for place in range(max_length):
        scores, state = step(token, state)
        token = scores.max(-1).indices
        if place:  # eos once, eos for ever
            token = token.masked_fill(written[:, place - 1] == eos, eos)
        written[:, place] = token
    return written


def cleaned_afterwards(step, state, bos, eos, max_length, batch_size):
    """Writes on, and wipes what follows eos in the end."""
    words = torch.ones(batch_size, 1, dtype=torch.long) * bos
    for _ in range(max_length):
        logits, state = step(words[:, -1], state)
        words = torch.cat([words, logits.topk(1).indices], dim=1)
    words = words[:, 1:]
    ended = (words == eos).long().cumsum(1) > 0
    return torch.where(ended, eos, words)


@torch.no_grad()
def with_lists(step, state, bos, eos, max_length, batch_size):
    rows = [[] for _ in range(batch_size)]
    token = torch.tensor([bos] * batch_size)
    while len(rows[0]) < max_length and not all(row and row[-1] == eos for row in rows):
        logits, state = step(token, state)
        for row, scores in zip(rows, logits.tolist(), strict=True):
            row.append(eos if row[-1:] == [eos] else scores.index(max(scores)))
        token = torch.tensor([row[-1] for row in rows])
    return torch.tensor(rows)


def by_recursion(step, state, bos, eos, max_length, batch_size):
    def rest(token, state, finished, places):
        if places == 0 or finished.all():
            return []
        logits, state = step(token, state)
        word = logits.softmax(-1).argmax(-1).masked_fill(finished, eos)
        return [word, *rest(word, state, finished | (word == eos), places - 1)]

    start = torch.zeros(batch_size, dtype=torch.bool)
    words = rest(torch.full((batch_size,), bos), state, start, max_length)
    return torch.stack(words, 1)


def by_lengths_of_rows(step, state, bos, eos, max_length, batch_size):
    token = torch.LongTensor([bos]).repeat(batch_size)
    ends = torch.full((batch_size,), max_length)
    columns = []
    for place in range(max_length):
        logits, state = step(token, state)
        _, token = torch.log_softmax(logits, dim=1).max(dim=1)
        columns.append(token.clone())
        ends = torch.where((token == eos) & (ends == max_length), place, ends)
        if (ends < max_length).all():
            break
    written = einops.rearrange(columns, "n b -> b n")
    written[torch.arange(written.shape[1]) >= ends[:, None]] = eos
    return written


def hands_pad_to_finished_rows(step, state, bos, eos, max_length, batch_size):
    """What a finished row takes in does not matter."""
    token = torch.full([batch_size], bos, dtype=torch.int32)
    alive = torch.ones(batch_size, dtype=torch.int32)
    columns = []
    for _ in range(max_length):
        logits, state = step(token, state)
        word = logits.argmax(1).int()
        columns.append(alive * word + (1 - alive) * eos)
        alive = alive * (columns[-1] != eos)
        token = alive * word
    return torch.stack(columns, dim=-1)


class Greedy:
    def __init__(self):
        self.calls = 0

    def __call__(self, step, state, bos, eos, max_length, batch_size):
        self.calls += 1
        return usual(step, state, bos, eos, max_length, batch_size)


def by_beams_of_one(step, state, bos, eos, max_length, batch_size):
    best = torch.full((batch_size, 1), bos)
    score = torch.zeros(batch_size, 1)
    for _ in range(max_length):
        logits, state = step(best[:, -1], state)
        over = (best[:, 1:] == eos).any(1, keepdim=True)
        log_p = logits.log_softmax(-1)
        only_eos = torch.full_like(log_p, -torch.inf)
        only_eos[:, eos] = 0
        total = score + torch.where(over, only_eos, log_p)
        score, word = total.max(-1, keepdim=True)
        best = torch.cat([best, word], dim=1)
    return best[:, 1:]


def by_cumulative_product(step, state, bos, eos, max_length, batch_size):
    words = torch.full((batch_size, 1), bos)
    for _ in range(max_length):
        logits, state = step(words[:, -1], state)
        words = torch.cat([words, logits.argmax(-1, keepdim=True)], dim=1)
    goes_on = (words[:, 1:-1] != eos).long().cumprod(1)
    goes_on = torch.cat([goes_on.new_ones(batch_size, 1), goes_on], dim=1)
    return words[:, 1:] * goes_on + eos * (1 - goes_on)


def forces_scores_in_place(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        logits, state = step(token, state)
        logits[finished] = -1e9  # they are this step's own
        logits[finished, eos] = 1e9
        token = logits.argmax(-1)
        finished |= token == eos
        written.append(token)
    return torch.stack(written, dim=1)


def cut_behind_the_last_eos(step, state, bos, eos, max_length, batch_size):
    written = usual(step, state, bos, eos, max_length, batch_size)
    longest = int((written != eos).sum(1).max())
    return written[:, : longest + 1].int()


def with_numpy_words(step, state, bos, eos, max_length, batch_size):
    token = np.full(batch_size, bos, dtype=np.int64)
    finished, written = np.zeros(batch_size, bool), []
    for _ in range(max_length):
        logits, state = step(torch.from_numpy(token), state)
        token = np.where(finished, eos, logits.numpy().argmax(-1))
        finished = finished | (token == eos)
        written.append(token)
    return torch.from_numpy(np.stack(written, axis=1))


DECODE = [
    usual,
    never_early,
    cleaned_afterwards,
    with_lists,
    by_recursion,
    by_lengths_of_rows,
    hands_pad_to_finished_rows,
    Greedy(),
    by_beams_of_one,
    by_cumulative_product,
    forces_scores_in_place,
    cut_behind_the_last_eos,
    with_numpy_words,
    torch.inference_mode()(usual),
    lambda *args: usual(*args),
]


# --- exact_match_by_length


def lists_of_verdicts(predictions, targets, lengths):
    verdicts = defaultdict(list)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        verdicts[length].append(prediction == target)
    return {length: sum(found) / len(found) for length, found in verdicts.items()}


def two_counters(predictions, targets, lengths):
    total = Counter(lengths)
    hits = Counter(
        n for p, t, n in zip(predictions, targets, lengths, strict=True) if tuple(p) == tuple(t)
    )
    return {length: hits[length] / total[length] for length in sorted(total, reverse=True)}


def a_filter_for_each(predictions, targets, lengths):
    shares = {}
    for length in set(lengths):
        rows = [i for i in range(len(lengths)) if lengths[i] == length]
        shares[length] = statistics.mean(float(predictions[i] == targets[i]) for i in rows)
    return shares


def in_groups(predictions, targets, lengths):
    rows = sorted(zip(lengths, map(list.__eq__, predictions, targets), strict=True))
    shares = {}
    for length, group in itertools.groupby(rows, key=lambda row: row[0]):
        verdicts = [verdict for _, verdict in group]
        shares[length] = verdicts.count(True) / len(verdicts)
    return shares


def with_arrays(predictions, targets, lengths):
    right = np.array([p == t for p, t in zip(predictions, targets, strict=True)])
    sizes = np.array(lengths)
    return {int(n): right[sizes == n].mean() for n in np.unique(sizes)}


def with_tensors(predictions, targets, lengths):
    sizes = torch.tensor(lengths)
    right = torch.tensor([float(p == t) for p, t in zip(predictions, targets, strict=True)])
    return {n: right[sizes == n].mean().item() for n in sizes.unique().tolist()}


def with_running_means(predictions, targets, lengths):
    mean, seen = {}, {}
    for p, t, n in zip(predictions, targets, lengths, strict=True):
        seen[n] = seen.get(n, 0) + 1
        old = mean.get(n, 0.0)
        mean[n] = old + ((1.0 if p == t else 0.0) - old) / seen[n]
    return mean


def with_fractions(predictions, targets, lengths):
    shares = defaultdict(lambda: (0, 0))
    for p, t, n in zip(predictions, targets, lengths, strict=True):
        same = len(p) == len(t) and all(a == b for a, b in zip(p, t, strict=True))
        hits, all_ = shares[n]
        shares[n] = (hits + same, all_ + 1)
    return {n: Fraction(*pair) for n, pair in shares.items()}


def as_texts(predictions, targets, lengths):
    hits, misses = Counter(), Counter()
    for p, t, n in zip(predictions, targets, lengths, strict=True):
        same = " ".join(map(str, p)) == " ".join(map(str, t))
        (hits if same else misses)[n] += 1
    return {n: hits[n] / (hits[n] + misses[n]) for n in hits.keys() | misses.keys()}


def with_bin_counts(predictions, targets, lengths):
    right = [p == t for p, t in zip(predictions, targets, strict=True)]
    total, hits = np.bincount(lengths), np.bincount(lengths, weights=right)
    return {n: hits[n] / total[n] for n in np.flatnonzero(total)}  # keys are numpy's int64


def to_the_longer_end(predictions, targets, lengths):
    verdicts = defaultdict(list)
    for p, t, n in zip(predictions, targets, lengths, strict=True):
        verdicts[n].append(all(a == b for a, b in itertools.zip_longest(p, t)))
    return {n: torch.tensor(found, dtype=torch.float64).mean() for n, found in verdicts.items()}


def adds_shares_up(predictions, targets, lengths):
    shares, total = defaultdict(float), Counter(lengths)
    for p, t, n in zip(predictions, targets, lengths, strict=True):
        shares[n] += (p == t) / total[n]
    return shares


MATCH = [
    lists_of_verdicts,
    two_counters,
    a_filter_for_each,
    in_groups,
    with_arrays,
    with_tensors,
    with_running_means,
    with_fractions,
    as_texts,
    with_bin_counts,
    to_the_longer_end,
    adds_shares_up,
    functools.partial(lists_of_verdicts),
]

CORRECT = {
    "encode": ENCODE,
    "teacher_inputs": TEACHER,
    "sequence_loss": LOSS,
    "greedy_decode": DECODE,
    "exact_match_by_length": MATCH,
}

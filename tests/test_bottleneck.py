"""Chapter 1's reference code against torch and a byte-pair tokenizer, its properties, bad input."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensors import (
    DEVICES,
    Call,
    assert_all_agree,
    assert_equal_to,
    randn,
    seeded,
    steadily,
    word_by_word,
)
from tokenizers.models import BPE
from torch import nn

from attncourse.bottleneck import (
    EncoderDecoder,
    apply_merges,
    byte_pairs,
    encode,
    exact_match_by_length,
    greedy_decode,
    gru_step,
    lstm_step,
    rnn_step,
    sequence_loss,
    teacher_inputs,
)
from attncourse.cross_attention import translate

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, N, D, HIDDEN, WORDS = 3, 5, 4, 7, 11
PAD, BOS, EOS = 0, 1, 2


def tokens(*shape, words=WORDS, seed=0, low=3):
    """Random ids that are no marks."""
    return torch.randint(low, words, shape, generator=torch.Generator().manual_seed(seed))


# --- Byte-pair encoding ---

# The example of Sennrich et al. (2016): how often each word occurs.
COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
MERGES = ["e s", "es t", "l o", "lo w", "e w", "n ew", "new est", "d est", "i dest", "w idest"]
# The first merges of GPT-2; Ġ stands for the space before a word.
GPT2 = (
    "Ġ t|Ġ a|h e|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f|in g"
)


def tokenizer(word, merges):
    """What a production tokenizer makes of a word: the earliest learned pair first."""
    pieces = [*word, *(piece for left, right in merges for piece in (left, right, left + right))]
    ids = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    return [token.value for token in BPE(vocab=ids, merges=list(merges)).tokenize(word)]


def test_the_papers_example_is_merged_in_this_order():
    merges = [tuple(pair.split()) for pair in MERGES]
    assert byte_pairs(COUNTS, len(MERGES)) == merges
    assert byte_pairs(COUNTS, 3) == merges[:3], "fewer merges are the first of more"
    assert apply_merges("newest", merges) == ["newest"]
    assert apply_merges("lowest", merges) == ["low", "est"], "a word that was never seen"
    assert apply_merges("lowest", []) == list("lowest")


def test_a_pair_counts_as_often_as_its_word():
    assert byte_pairs({"ab": 1, "bc": 2}, 1) == [("b", "c")]
    assert byte_pairs({"abab": 2, "bc": 3}, 1) == [("a", "b")], "and twice where it stands twice"


def test_among_equally_frequent_pairs_the_one_of_the_oldest_pieces_wins():
    for counts in ({"ab": 2, "cd": 2}, {"cd": 2, "ab": 2}):  # whichever is met first
        assert byte_pairs(counts, 2) == [("a", "b"), ("c", "d")]
    assert byte_pairs({"ac": 1, "ab": 1}, 2) == [("a", "b"), ("a", "c")]
    assert byte_pairs({"xyb": 9, "za": 2, "xya": 2}, 3) == [("x", "y"), ("xy", "b"), ("z", "a")]


@pytest.mark.parametrize("counts", [{}, {"": 3}, {"a": 3, "b": 4}])
def test_without_neighbors_there_is_nothing_to_merge(counts):
    assert byte_pairs(counts, 5) == []


def test_learning_ends_when_every_word_is_one_piece():
    assert byte_pairs({"aaa": 1}, 99) == [("a", "a"), ("aa", "a")]
    assert byte_pairs(COUNTS, 0) == []


def test_an_empty_word_has_no_pieces():
    assert apply_merges("", [("a", "b")]) == []


@pytest.mark.parametrize(
    ("word", "pieces"),
    {"aaa": "aa a", "aaaa": "aa aa", "aaaaa": "aa aa a", "baaab": "b aa a b"}.items(),
)
def test_a_run_of_letters_is_merged_from_the_left_each_letter_once(word, pieces):
    assert apply_merges(word, [("a", "a")]) == pieces.split()


def test_a_merge_is_of_these_two_pieces_not_of_others_with_the_same_letters():
    assert apply_merges("abc", [("b", "c"), ("ab", "c")]) == ["a", "bc"]


def test_a_merge_is_not_applied_to_its_own_result():
    assert apply_merges("aaaa", [("a", "a")]) == ["aa", "aa"]
    assert apply_merges("aaaa", [("a", "a"), ("aa", "aa")]) == ["aaaa"]
    assert apply_merges("abb", [("a", "b")]) == ["ab", "b"]


@pytest.mark.parametrize(
    ("word", "pieces"),
    {"Ġthe": "Ġthe", "Ġthere": "Ġthe re", "Ġeating": "Ġ e at ing", "heron": "he r on"}.items(),
)
def test_gpt2s_own_merges_cut_as_gpt2_does(word, pieces):
    merges = [tuple(pair.split()) for pair in GPT2.split("|")]
    assert apply_merges(word, merges) == tokenizer(word, merges) == pieces.split()


@steadily
@given(
    st.dictionaries(st.text("abc", max_size=8), st.integers(1, 9), max_size=8), st.integers(0, 12)
)
def test_words_are_cut_as_a_tokenizer_cuts_them_and_nothing_is_lost(counts, num_merges):
    merges = byte_pairs(counts, num_merges)
    assert len(set(merges)) == len(merges) <= num_merges
    assert merges == byte_pairs(dict(counts), num_merges)
    for word in counts:
        pieces = apply_merges(word, merges)
        assert "".join(pieces) == word
        assert pieces == tokenizer(word, merges)


@steadily
@given(st.dictionaries(st.text("abc", max_size=8), st.integers(1, 9), max_size=8))
def test_each_merge_is_of_a_most_frequent_pair(counts):
    merges = byte_pairs(counts, 10)
    for done, pair in enumerate(merges):
        pairs = Counter()
        for word, count in counts.items():
            for neighbors in pairwise(apply_merges(word, merges[:done])):
                pairs[neighbors] += count
        assert pairs[pair] == max(pairs.values())


# --- One step of a recurrent network, again and again, is torch's layer ---


def unrolled(kind, layer, x, state):
    """All outputs and the last state from a loop over one of the steps."""
    W_input, W_hidden, b_input, b_hidden = layer.parameters()
    outputs = []
    for word in x.unbind(1):
        if kind is nn.GRU:
            state = gru_step(word, state, W_input, W_hidden, b_input, b_hidden)
        elif kind is nn.LSTM:
            state = lstm_step(word, state, W_input, W_hidden, b_input + b_hidden)
        else:
            state = rnn_step(word, state, W_input, W_hidden, b_input + b_hidden)
        outputs.append(state[0] if kind is nn.LSTM else state)
    return torch.stack(outputs, 1), *(state if kind is nn.LSTM else [state])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "sizes", [(B, N, D, HIDDEN), (4, 4, 4, 4), (1, 1, 1, 1), (2, 9, 5, 3)], ids=str
)
def test_a_loop_over_steps_is_torchs_layer(kind, sizes):
    b, n, d, hidden = sizes
    layer = seeded(kind, d, hidden, batch_first=True)
    x, h, c = (randn(*s, seed=i) for i, s in enumerate([(b, n, d), (b, hidden), (b, hidden)]))
    state = (h, c) if kind is nn.LSTM else h
    inputs = [t.requires_grad_() for t in ((x, h, c) if kind is nn.LSTM else (x, h))]
    outputs, last = layer(x, (h[None], c[None]) if kind is nn.LSTM else h[None])
    expected = outputs, *(t[0] for t in (last if kind is nn.LSTM else [last]))
    assert_all_agree(expected, unrolled(kind, layer, x, state), [*inputs, *layer.parameters()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_steps_keep_their_dtype(dtype):
    x, h = randn(B, D, dtype=dtype), randn(B, HIDDEN, dtype=dtype)

    def weights(gates):
        rows = gates * HIDDEN
        return [randn(*shape, dtype=dtype) for shape in ((rows, D), (rows, HIDDEN), (rows,))]

    assert rnn_step(x, h, *weights(1)).dtype == dtype
    assert [t.dtype for t in lstm_step(x, (h, h), *weights(4))] == [dtype, dtype]
    *W, bias = weights(3)
    assert gru_step(x, h, *W, bias, bias).dtype == dtype


# --- Why a gradient vanishes, and how a gate keeps it ---


@pytest.mark.parametrize("steps", [1, 5, 40])
@pytest.mark.parametrize("scale", [0.8, 1.0, 1.1])
def test_the_gradient_of_a_linear_network_shrinks_or_grows_like_a_power(steps, scale):
    # With input and state 0 the slope of tanh is 1 at every step: the network is linear.
    rotation = torch.linalg.qr(randn(HIDDEN, HIDDEN)).Q
    x, zero = torch.zeros(1, D).double(), torch.zeros(HIDDEN).double()

    def last(h):
        h = h[None]
        for _ in range(steps):
            h = rnn_step(x, h, randn(HIDDEN, D), scale * rotation, zero)
        return h[0]

    jacobian = torch.autograd.functional.jacobian(last, zero)
    assert_equal_to(torch.linalg.matrix_power(scale * rotation, steps), jacobian)
    norm = torch.linalg.matrix_norm(jacobian, 2).item()
    assert norm == pytest.approx(scale**steps, rel=1e-9)


def test_the_gradient_through_tanh_is_a_product_of_slopes_and_weights():
    x, W_input, W_hidden, bias = randn(N, D), randn(HIDDEN, D), randn(HIDDEN, HIDDEN), randn(HIDDEN)
    states = []

    def last(h):
        for word in x:
            h = rnn_step(word[None], h[None], W_input, W_hidden, bias)[0]
            states.append(h)
        return h

    jacobian = torch.autograd.functional.jacobian(last, randn(HIDDEN, seed=5))
    product = torch.eye(HIDDEN).double()
    for h in states:
        product = (1 - h.detach() ** 2).diag() @ W_hidden @ product
    assert_equal_to(product, jacobian)


def test_an_open_forget_gate_hands_the_gradient_through_unchanged():
    bias = torch.tensor([-50.0, 50.0, 0.0, 0.0]).repeat_interleave(HIDDEN).double()  # i f g o
    zeros = torch.zeros(4 * HIDDEN, D).double(), torch.zeros(4 * HIDDEN, HIDDEN).double()
    memory = randn(1, HIDDEN).requires_grad_()
    state = torch.zeros(1, HIDDEN).double(), memory
    for _ in range(100):
        state = lstm_step(randn(1, D), state, *zeros, bias)
    assert_equal_to(memory, state[1])
    assert_equal_to(torch.ones(1, HIDDEN).double(), torch.autograd.grad(state[1].sum(), memory)[0])


def test_a_closed_update_gate_hands_the_state_through_unchanged():
    # z near 1 keeps h; the paper's z, and torch's, weighs the old state.
    bias = torch.tensor([0.0, 50.0, 0.0]).repeat_interleave(HIDDEN).double()  # r z n
    h = randn(1, HIDDEN)
    weights = torch.zeros(3 * HIDDEN, D).double(), torch.zeros(3 * HIDDEN, HIDDEN).double()
    assert_equal_to(h, gru_step(randn(1, D), h, *weights, bias, torch.zeros_like(bias)))
    assert_equal_to(
        torch.zeros_like(h), gru_step(randn(1, D), h, *weights, -bias, torch.zeros_like(bias))
    )


# --- A sentence into a vector ---


@pytest.fixture(scope="module")
def layers():
    return make_layers()


def packed(sentences, lengths, embedding, gru):
    """The last state from torch's own way with padding."""
    rows = nn.utils.rnn.pack_padded_sequence(
        embedding(sentences), lengths, batch_first=True, enforce_sorted=False
    )
    return gru(rows)[1][0]


@pytest.mark.parametrize(
    "lengths", [[5, 5, 5], [1, 1, 1], [2, 5, 3], [5, 1, 4], [4, 2, 3]], ids=str
)
def test_encode_agrees_with_torchs_packing(lengths, layers):
    lengths, sentences = torch.tensor(lengths), tokens(B, N)
    parameters = [p for layer in layers for p in layer.parameters()]
    assert_all_agree(
        [packed(sentences, lengths, *layers)], [encode(sentences, lengths, *layers)], parameters
    )


@pytest.mark.parametrize("b", [1, N, 0], ids=["one sentence", "b = n", "none"])
def test_encode_reads_a_batch_of_any_size(b, layers):
    lengths = torch.arange(1, b + 1).clamp(max=N)
    sentences = tokens(b, N)
    states = encode(sentences, lengths, *layers)
    assert states.shape == (b, HIDDEN)
    for sentence, length, state in zip(sentences, lengths, states, strict=True):
        assert_equal_to(layers[1](layers[0](sentence[:length]))[1][0], state)


@steadily
@given(st.integers(0, WORDS - 1), st.integers(0, 3), st.integers(0, 999))
def test_padding_does_not_matter_whatever_it_is_and_however_long(layers, pad, more, seed):
    sentences, lengths = tokens(B, N, low=0, seed=seed), torch.tensor([3, 1, N])
    expected = encode(sentences, lengths, *layers)
    padded = F.pad(sentences, (0, more), value=pad)
    padded[torch.arange(N + more) >= lengths[:, None]] = pad
    assert_equal_to(expected, encode(padded, lengths, *layers))


def test_padding_gets_no_gradient(layers):
    embedding, gru = layers
    sentences = torch.tensor([[3, 4, 9, 9, 9], [5, 9, 9, 9, 9]])
    loss = encode(sentences, torch.tensor([2, 1]), embedding, gru).sum()
    (gradient,) = torch.autograd.grad(loss, embedding.weight)
    assert (gradient[9] == 0).all() and (gradient[[3, 4, 5]] != 0).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_lengths_are_whole_numbers_of_any_kind(dtype, layers):
    lengths, sentences = torch.tensor([2, 5, 1]), tokens(B, N)
    expected = encode(sentences, lengths, *layers)
    assert torch.equal(expected, encode(sentences, lengths.to(dtype), *layers))
    assert_equal_to(expected, encode(sentences.int(), lengths, *layers))


@pytest.mark.parametrize("device", DEVICES)
def test_encode_works_where_its_layers_are(device):
    embedding = seeded(nn.Embedding, WORDS, D).to(device)
    gru = seeded(nn.GRU, D, HIDDEN, batch_first=True).to(device)
    sentences, lengths = tokens(B, N).to(device), torch.tensor([2, 5, 1])
    for place in ("cpu", device):  # lengths often stay behind
        states = encode(sentences, lengths.to(place), embedding, gru)
        assert states.device.type == device
        assert_equal_to(packed(sentences, lengths, embedding, gru), states)


IDS, LENGTHS = tokens(B, N), torch.tensor([2, 5, 1])


@pytest.mark.parametrize(
    ("words", "error", "changes"),
    [
        ("tokens must be a torch.Tensor; got list", TypeError, {0: [[1]]}),
        ("tokens must hold whole numbers; got torch.float32", TypeError, {0: IDS.float()}),
        ("tokens must hold whole numbers; got torch.bool", TypeError, {0: IDS > 0}),
        (r"tokens must have axes \(b n\); got shape \(5\)", ValueError, {0: IDS[0]}),
        ("lengths must be a torch.Tensor; got list", TypeError, {1: [2, 5, 1]}),
        ("lengths must hold whole numbers; got torch.float32", TypeError, {1: LENGTHS.float()}),
        (r"lengths must have axes \(b\); got shape \(3 1\)", ValueError, {1: LENGTHS[:, None]}),
        (
            r"lengths \(2\) has axes \(b\), so b = 2; but tokens has b = 3",
            ValueError,
            {1: LENGTHS[1:]},
        ),
        ("1 to n = 5 real tokens; lengths go from 0 to 4", ValueError, {1: LENGTHS - 1}),
        ("1 to n = 5 real tokens; lengths go from 2 to 6", ValueError, {1: LENGTHS + 1}),
        ("1 to n = 4 real tokens; lengths go from 1 to 5", ValueError, {0: IDS[:, 1:]}),
        ("one layer, one direction", ValueError, {3: nn.GRU(D, 2, 2, batch_first=True)}),
        ("batch_first=True", ValueError, {3: nn.GRU(D, 2)}),
        ("one direction", ValueError, {3: nn.GRU(D, 2, batch_first=True, bidirectional=True)}),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_name(words, error, changes):
    arguments = [IDS, LENGTHS, nn.Embedding(WORDS, D), nn.GRU(D, HIDDEN, batch_first=True)]
    with pytest.raises(error, match=words):
        encode(*(changes.get(i, argument) for i, argument in enumerate(arguments)))


# --- Teacher forcing ---


def test_the_decoder_sees_the_word_before_the_one_it_predicts():
    target = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
    assert teacher_inputs(target, BOS).tolist() == [[BOS, 5, 6], [BOS, 7, EOS]]


@steadily
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, WORDS - 1))
def test_inputs_are_the_target_moved_on_by_one_place(b, n, bos):
    target = tokens(b, n)
    before = target.clone()
    inputs = teacher_inputs(target, bos)
    assert torch.equal(inputs[:, 1:], target[:, :-1]) and (inputs[:, 0] == bos).all()
    assert torch.equal(target, before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_inputs_keep_the_dtype_of_the_target(dtype):
    assert teacher_inputs(tokens(B, N).to(dtype), BOS).dtype == dtype


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ([[1, 2]], TypeError, "target must be a torch.Tensor; got list"),
        (randn(B, N), TypeError, "target must hold whole numbers; got torch.float64"),
        (IDS[0], ValueError, r"target must have axes \(b n\); got shape \(5\)"),
    ],
)
def test_what_cannot_be_shifted_is_refused_by_name(target, error, words):
    with pytest.raises(error, match=words):
        teacher_inputs(target, BOS)


# --- The loss of a sentence ---


@pytest.mark.parametrize("pad", [0, 3, WORDS - 1])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 1], [1, 1, 1]], ids=str)
def test_the_loss_is_the_mean_over_real_tokens(pad, lengths):
    logits = randn(B, N, WORDS).requires_grad_()
    target = (pad + tokens(B, N, low=1)) % WORDS  # never the padding itself
    target[torch.arange(N) >= torch.tensor(lengths)[:, None]] = pad
    losses = [
        -torch.log_softmax(logits[b, n], -1)[target[b, n]]
        for b in range(B)
        for n in range(lengths[b])
    ]
    expected = torch.stack(losses).mean()
    assert_all_agree([expected], [sequence_loss(logits, target, pad)], [logits])
    flat = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad)
    assert_equal_to(flat, sequence_loss(logits, target, pad))


@pytest.mark.parametrize("n", [N, WORDS])
def test_a_model_that_knows_nothing_loses_the_logarithm_of_the_vocabulary(n):
    loss = sequence_loss(torch.zeros(B, n, WORDS), tokens(B, n), PAD)
    assert loss.shape == () and loss.item() == pytest.approx(math.log(WORDS))


def test_padding_has_no_loss_and_no_gradient():
    logits = randn(B, N, WORDS).requires_grad_()
    target = tokens(B, N)
    target[1, 2:] = PAD
    (gradient,) = torch.autograd.grad(sequence_loss(logits, target, PAD), logits)
    assert (gradient[1, 2:] == 0).all() and (gradient[1, :2] != 0).all()
    assert sequence_loss(logits, torch.zeros_like(target), PAD).isnan(), "nothing but padding"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_the_target_may_be_of_any_whole_dtype(dtype):
    logits, target = randn(B, N, WORDS), tokens(B, N)
    expected = sequence_loss(logits, target, PAD)
    assert torch.equal(expected, sequence_loss(logits, target.to(dtype), PAD))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_loss_keeps_the_dtype_of_the_logits(dtype):
    logits, target = randn(B, N, WORDS).to(dtype), tokens(B, N)
    loss = sequence_loss(logits, target, PAD)
    assert loss.dtype == dtype
    expected = sequence_loss(logits.double(), target, PAD)
    assert_equal_to(expected, loss.double(), atol=16 * torch.finfo(dtype).eps)


LOGITS = randn(B, N, WORDS)


@pytest.mark.parametrize(
    ("words", "error", "changes"),
    [
        ("logits must be a torch.Tensor; got list", TypeError, {0: [[[1.0]]]}),
        ("logits must hold floating-point numbers; got torch.int64", TypeError, {0: LOGITS.long()}),
        (r"logits must have axes \(b n vocab\); got shape \(5 11\)", ValueError, {0: LOGITS[0]}),
        ("target must hold whole numbers; got torch.float64", TypeError, {1: IDS.double()}),
        (r"target must have axes \(b n\); got shape \(3 5 1\)", ValueError, {1: IDS[..., None]}),
        (r"target \(3 4\) .* so n = 4; but logits has n = 5", ValueError, {1: IDS[:, 1:]}),
        (r"target \(2 5\) .* so b = 2; but logits has b = 3", ValueError, {1: IDS[1:]}),
    ],
)
def test_logits_and_targets_that_do_not_fit_are_refused_by_name(words, error, changes):
    with pytest.raises(error, match=words):
        sequence_loss(changes.get(0, LOGITS), changes.get(1, IDS), PAD)


# --- Writing word after word ---


class Script:
    """A decoder that says what is written for each row, and remembers what it was told."""

    def __init__(self, *rows):
        self.rows, self.told, self.states = torch.tensor(rows), [], []

    def __call__(self, token, state):
        self.told.append(token.tolist())
        self.states.append(state)
        return F.one_hot(self.rows[:, len(self.told) - 1], WORDS).double(), (state, "next")


def test_every_word_is_told_to_the_next_step_and_the_first_is_bos():
    script = Script([5, 6, EOS])
    assert greedy_decode(script, None, BOS, EOS, 9, 1).tolist() == [[5, 6, EOS]]
    assert script.told == [[BOS], [5], [6]]


def test_the_state_is_handed_on():
    script = Script([5, 6, EOS])
    greedy_decode(script, "state", BOS, EOS, 9, 1)
    assert script.states == ["state", ("state", "next"), (("state", "next"), "next")]


def test_after_its_eos_a_row_says_only_eos_while_others_go_on():
    script = Script([5, EOS, 7, 8, 9], [5, 6, 7, EOS, 9], [EOS, 3, 3, 3, 3])
    written = greedy_decode(script, None, BOS, EOS, 9, 3)
    assert written.tolist() == [[5, EOS, EOS, EOS], [5, 6, 7, EOS], [EOS] * 4]
    assert len(script.told) == 4, "it stops when the last row has said eos"
    assert written.dtype == torch.int64


@pytest.mark.parametrize("max_length", [1, 2, 4])
def test_nothing_is_longer_than_max_length(max_length):
    script = Script([5, 6, 7, 8], [6, 7, 8, 9])
    written = greedy_decode(script, None, BOS, EOS, max_length, 2)
    assert torch.equal(written, script.rows[:, :max_length])
    assert len(script.told) == max_length


@pytest.mark.parametrize("eos", [0, 2, WORDS - 1])
def test_any_id_may_close_a_sentence(eos):
    script = Script([5, eos, 7], [eos, 5, 7])
    assert greedy_decode(script, None, BOS, eos, 9, 2).tolist() == [[5, eos], [eos, eos]]


def test_the_likeliest_word_is_written_though_all_logits_are_negative():
    logits = -1e4 - torch.arange(WORDS).flip(0).double()[None]
    assert greedy_decode(lambda t, s: (logits, s), None, BOS, EOS, 1, 1).tolist() == [[WORDS - 1]]


def test_no_gradient_is_kept():
    weight = randn(1, WORDS).requires_grad_()
    seen = []

    def step(token, state):
        seen.append((weight * 2).requires_grad)
        return weight, state

    greedy_decode(step, None, BOS, EOS, 2, 1)
    assert seen == [False, False] and torch.is_grad_enabled()


@steadily
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 999))
def test_rows_are_written_independently(b, max_length, seed):
    table = randn(b, WORDS, WORDS, seed=seed)

    def step(token, state):
        return state[torch.arange(len(token)), token], state

    expected = []
    for row in table:
        token, words = BOS, []
        while len(words) < max_length and EOS not in words:
            token = int(row[token].argmax())
            words.append(token)
        expected.append(words)
    longest = max(map(len, expected))
    expected = [words + [EOS] * (longest - len(words)) for words in expected]
    assert greedy_decode(step, table, BOS, EOS, max_length, b).tolist() == expected


class Arrived(Exception):
    pass


@pytest.mark.parametrize("kind", [lambda t: t, lambda t: (t, 5), lambda t: (t, (t,))])
def test_the_words_are_written_where_the_state_is(kind):
    def step(token, state):
        assert token.device.type == "meta"
        raise Arrived

    with pytest.raises(Arrived):
        greedy_decode(step, kind(torch.ones(2, device="meta")), BOS, EOS, 3, 2)


def next_number(token, state):
    return F.one_hot(token + 1, WORDS).double(), state


@pytest.mark.parametrize("state", [None, (), [1], {"cache": 2}, "seen"])
def test_a_state_may_be_anything(state):
    assert greedy_decode(next_number, state, 2, 5, 9, 2).tolist() == [[3, 4, 5]] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_words_are_written_on_any_device(device):
    written = greedy_decode(next_number, torch.zeros(2, HIDDEN, device=device), 2, 5, 9, 2)
    assert written.device.type == device and written.tolist() == [[3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("logits", "max_length", "error", "words"),
    [
        (randn(2, WORDS), 0, ValueError, "max_length must be at least 1; got 0"),
        (randn(2, WORDS), -1, ValueError, "max_length must be at least 1; got -1"),
        (randn(2, 1, WORDS), 3, ValueError, r"logits must have axes \(b vocab\).*\(2 1 11\)"),
        (randn(1, WORDS), 3, ValueError, "so b = 1; but token has b = 2"),
        ([[1.0]], 3, TypeError, "logits must be a torch.Tensor; got list"),
    ],
)
def test_what_cannot_be_decoded_is_refused(logits, max_length, error, words):
    with pytest.raises(error, match=words):
        greedy_decode(lambda token, state: (logits, state), None, BOS, EOS, max_length, 2)


# --- Exact match ---


def test_a_translation_counts_only_without_a_single_error():
    targets = [["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"], ["a"], []]
    predictions = [["a", "b"], ["a"], ["b", "a"], ["a", "b", "b"], ["a"], []]
    shares = exact_match_by_length(predictions, targets, [4, 4, 4, 4, 2, 3])
    assert shares == {2: 1.0, 3: 1.0, 4: 0.25}
    assert list(shares) == [2, 3, 4], "shortest first"
    assert all(type(n) is int and type(share) is float for n, share in shares.items())


def test_sentences_and_lengths_may_be_tensors():
    predictions = torch.tensor([[5, EOS], [6, EOS]])
    targets = torch.tensor([[5, EOS], [7, EOS]])
    assert exact_match_by_length(predictions, targets, torch.tensor([1, 1])) == {1: 0.5}
    assert exact_match_by_length([("a", "b")], [["a", "b"]], [1]) == {1: 1.0}, "a tuple or a list"


def test_no_sentences_have_no_lengths():
    assert exact_match_by_length([], [], []) == {}


@steadily
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_shares_are_means(rows):
    predictions, targets = [["a"]] * len(rows), [["a"] if right else [] for right, _ in rows]
    shares = exact_match_by_length(predictions, targets, [length for _, length in rows])
    for length, share in shares.items():
        of_this_length = [right for right, other in rows if other == length]
        assert share == sum(of_this_length) / len(of_this_length)
    assert shares.keys() == {length for _, length in rows}


@pytest.mark.parametrize("sizes", [(2, 3, 3), (3, 2, 3), (3, 3, 2)])
def test_lists_of_different_length_are_refused(sizes):
    lists = [[["a"]] * sizes[0], [["a"]] * sizes[1], [1] * sizes[2]]
    with pytest.raises(ValueError, match="got {}, {} and {}".format(*sizes)):
        exact_match_by_length(*lists)


# --- The translator through one vector ---

SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, PAD, PAD, PAD], [4, PAD, PAD, PAD, PAD]])


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def test_teacher_forcing_is_decoding_step_by_step(translator):
    words = tokens(B, 6, words=WORDS + 2)
    assert translator.start(SOURCE).shape == (B, HIDDEN), "one vector a sentence, and nothing else"
    expected = word_by_word(translator, SOURCE, words)
    assert_all_agree([expected], [translator(SOURCE, words)], translator.parameters())


def test_the_vector_is_the_state_after_the_last_real_word(translator):
    lengths = torch.tensor([5, 2, 1])
    expected = packed(SOURCE, lengths, translator.source_embedding, translator.encoder)
    assert_equal_to(expected, translator.start(SOURCE))


def test_padding_changes_neither_scores_nor_translation(translator):
    words = tokens(B, 4)
    together = translator(F.pad(SOURCE, (0, 3), value=PAD), words)
    both = translate(translator, SOURCE, BOS, EOS, 8)
    for row, length in enumerate([5, 2, 1]):
        alone = SOURCE[row : row + 1, :length]
        assert_equal_to(translator(alone, words[row : row + 1])[0], together[row])
        (alone,) = translate(translator, alone, BOS, EOS, 8)
        assert torch.equal(alone, both[row, : len(alone)])
        assert (both[row, len(alone) :] == EOS).all()


def test_another_id_may_be_the_padding():
    model = seeded(EncoderDecoder, WORDS, WORDS, width=D, hidden=HIDDEN, pad=9)
    source, words = torch.tensor([[3, 0, 5], [4, 9, 9]]), tokens(2, 4)
    assert_equal_to(model(source[1:, :1], words[1:])[0], model(source, words)[1])


def test_translating_again_from_the_start_or_from_the_state_is_the_same(translator):
    state = translator.start(SOURCE)
    stepwise = greedy_decode(translator.step, state, BOS, EOS, 8, B)
    assert torch.equal(stepwise, translate(translator, SOURCE, BOS, EOS, 8))


def test_a_word_does_not_know_those_after_it(translator):
    words = tokens(B, 6)
    changed = words.clone()
    changed[:, 3:] = 1
    before, after = translator(SOURCE, words), translator(SOURCE, changed)
    assert torch.equal(before[:, :3], after[:, :3]) and (before[:, 3:] != after[:, 3:]).all()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (SOURCE * 0, ValueError, "1 to n = 5 real tokens; lengths go from 0 to 0"),
        (SOURCE[0], ValueError, r"tokens must have axes \(b n\); got shape \(5\)"),
        (SOURCE.float(), TypeError, "tokens must hold whole numbers; got torch.float32"),
    ],
    ids=["nothing but padding", "no batch", "float"],
)
def test_a_source_that_cannot_be_read_is_refused(translator, source, error, words):
    with pytest.raises(error, match=words):
        translator(source, tokens(B, 4))


# --- What test_contract.py holds every mechanism to ---


def rows(gates):
    """The weights of a step, in the order of torch's layers."""
    return [randn(gates * HIDDEN, D), randn(gates * HIDDEN, HIDDEN), randn(gates * HIDDEN)]


def make_layers():
    return seeded(nn.Embedding, WORDS, D), seeded(nn.GRU, D, HIDDEN, batch_first=True)


def make_translator():
    return seeded(EncoderDecoder, WORDS, WORDS + 2, width=D, hidden=HIDDEN)


STATE = randn(B, HIDDEN, seed=1)
CALLS = [
    Call(rnn_step, lambda: [randn(B, D), STATE, *rows(1)], (B, HIDDEN)),
    Call(lstm_step, lambda: [randn(B, D), (STATE, STATE), *rows(4)], [(B, HIDDEN)] * 2),
    Call(gru_step, lambda: [randn(B, D), STATE, *rows(3), rows(3)[2]], (B, HIDDEN)),
    Call(encode, lambda: [IDS, LENGTHS, *make_layers()], (B, HIDDEN)),
    Call(teacher_inputs, lambda: [IDS, BOS], (B, N)),
    Call(sequence_loss, lambda: [LOGITS, IDS, PAD], ()),
    Call(greedy_decode, lambda: [Script([5, EOS]), None, BOS, EOS, 3, 1], (1, 2)),
    Call(exact_match_by_length, lambda: [[["a"]], [["a"]], [1]], equals={1: 1.0}),
    Call(byte_pairs, lambda: [dict(COUNTS), 1], equals=[("e", "s")]),
    Call(apply_merges, lambda: ["es", [("e", "s")]], equals=["es"]),
    Call(EncoderDecoder.start, lambda: [make_translator(), SOURCE], (B, HIDDEN)),
    Call(
        EncoderDecoder.step,
        lambda: [make_translator(), IDS[:, 0], STATE],
        [(B, WORDS + 2), (B, HIDDEN)],
    ),
    Call(EncoderDecoder.forward, lambda: [make_translator(), SOURCE, IDS], (B, N, WORDS + 2)),
]

"""The checks of chapter 1. Each one's name is the sentence a teacher would say."""

import math
import numbers

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from attncourse import bottleneck as reference
from attncourse.checks.common import integers, made, moves_nothing, normal, with_weights
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Failure, Task, compare, describe, shape_of

points = pytest.mark.points


def ids(rng, *shape, words=9, low=0):
    return torch.randint(low, words, shape, generator=rng, device="cpu")


def chance(rng, highest):
    """A whole number from 0 up to, not including, `highest`."""
    return ids(rng, 1, words=highest).item()


def differ_from_call_to_call(answer, inputs):
    one, two = answer(inputs), answer(inputs)
    same = torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
    return {"differs from call to call": not same}


# --- encode -------------------------------------------------------------------------------------


class Reader(nn.Module):
    """What an answer reads with."""

    def __init__(self, words, width, hidden):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, encode, tokens, lengths):
        return encode(tokens, lengths, self.embedding, self.gru)


def with_a_reader(encode):
    """`encode` as a function of tokens, lengths and all weights."""

    def function(tokens, lengths, **weights):
        words, width = weights["embedding.weight"].shape
        reader = made(Reader, words, width, weights["gru.weight_hh_l0"].shape[1])
        state = with_weights(reader, weights, encode, tokens, lengths)
        if isinstance(state, PackedSequence):
            raise Unusable("returned a PackedSequence; one tensor (b hidden) is expected.")
        return state

    return function


def weights(rng, words=9, width=5, hidden=7, dtype=torch.float32):
    shapes = {
        "embedding.weight": (words, width),
        "gru.weight_ih_l0": (3 * hidden, width),
        "gru.weight_hh_l0": (3 * hidden, hidden),
        "gru.bias_ih_l0": (3 * hidden,),
        "gru.bias_hh_l0": (3 * hidden,),
    }
    return {name: 0.8 * normal(rng, *shape, dtype=dtype) for name, shape in shapes.items()}


def sentences(rng, *lengths, n=None, words=9, **sizes):
    """Sentences of these lengths. Any id may be a word, 0 too, and any id may be padding."""
    return {
        "tokens": ids(rng, len(lengths), n or max(lengths), words=words),
        "lengths": torch.tensor(lengths),
        **weights(rng, words, **sizes),
    }


EQUAL = {"width": 4, "hidden": 4}
DOUBLE = {"dtype": torch.float64}


def zeros_among_words(rng):
    """Word 0 in every sentence, and padding that is never 0."""
    inputs = sentences(rng, 2, 4, 3, n=4)
    real = torch.arange(4) < inputs["lengths"][:, None]
    inputs["tokens"] = inputs["tokens"].clamp(min=1)
    inputs["tokens"][:, 1] = 0
    inputs["tokens"][~real] = 3
    return inputs


def zero_pads(rng, *lengths, n):
    """As batches of the course are: words from 3 on, padding 0."""
    inputs = sentences(rng, *lengths, n=n)
    inputs["tokens"] = inputs["tokens"].clamp(min=3)
    inputs["tokens"][torch.arange(n) >= inputs["lengths"][:, None]] = 0
    return inputs


def encode_probes(rng):
    return {
        "padded": sentences(rng, 2, 4, 1, n=4),
        "full": sentences(rng, 4, 4, 4, n=4),
        "wider than the longest": sentences(rng, 2, 3, 1, n=5),
        "longest first": sentences(rng, 4, 3, 2, n=4),
        "square": sentences(rng, 4, 2, 3, 1, n=4, **EQUAL),
        "pads are 0": zero_pads(rng, 3, 1, 4, n=5),
        "a word is 0": zeros_among_words(rng),
        "one sentence": sentences(rng, 2, n=3),
        "one word each": sentences(rng, 1, 1, n=1),
        "double": sentences(rng, 1, 3, n=3, **DOUBLE),
        "equal lengths, padded": sentences(rng, 2, 2, 2, n=4),
    }


def encode_small(rng):
    for lengths, n in (
        ((1,), 1),
        ((2,), 2),
        ((1,), 2),
        ((1, 1), 1),
        ((1, 1), 2),
        ((2, 1), 2),
        ((1, 2), 2),
        ((2, 2), 2),
        ((1, 2), 3),
        ((2, 3, 1), 3),
        ((2, 3, 1), 4),
    ):
        yield sentences(rng, *lengths, n=n, width=2, hidden=2)


def encode_maps(rng):
    inputs = sentences(rng, 2, 3, n=4)
    inputs["tokens"] = inputs["tokens"].clamp(max=7)  # so that each has a next id
    title = "two sentences of four positions, the first with two pads, the second with one"
    return [(title, inputs, ("tokens",))]


def encode_traits(answer):
    return differ_from_call_to_call(answer, encode_probes(torch.Generator().manual_seed(0))["full"])


class TestEncode:
    task = Task(
        name="encode",
        reference=reference.encode,
        returns=("state",),
        difficulty=2,
        minutes=20,
        section="last-real-token",
        hints=(
            "The GRU returns its state after every position, padding too: (b n hidden). Which "
            "position belongs to a sentence with 3 real tokens? Counting starts at 0.",
            "Every row needs another position, so one slice for all cannot do it. Two tensors of "
            "length b as an index, tensor[rows, places], pick one place from each row. Or let "
            "PyTorch skip the padding: pack_padded_sequence.",
            "states, _ = gru(embedding(tokens)); rows = 0, 1, …, b − 1 (torch.arange); places = "
            "lengths − 1; return states at (rows, places).",
        ),
        probes=encode_probes,
        adapt=with_a_reader,
        differentiated=("padded", "square"),
        small=encode_small,
        maps=encode_maps,
        features=1,
        traits=encode_traits,
    )

    @points(1)
    def test_one_vector_for_each_sentence(self, answer, rng):
        for b, n in ((3, 4), (1, 4), (2, 1)):
            inputs = sentences(rng, *[n] * b)
            state = answer(inputs)
            if state.shape != (b, 7):
                raise Failure(
                    f"Your answer has shape {shape_of(state)}; expected (b hidden) = ({b} 7), "
                    "one vector for each sentence.",
                    inputs,
                )
            if state.dtype != torch.float32:
                raise Failure(f"Your answer is {state.dtype}; the weights are float32.", inputs)

    @points(1)
    def test_without_padding_it_is_the_last_state(self, answer, rng):
        answer.matches(sentences(rng, 4, 4, 4))
        answer.matches(sentences(rng, 4, 4, 4, 4, words=4, **EQUAL))
        answer.matches(sentences(rng, 5, 5, **DOUBLE))
        answer.matches(sentences(rng, 6))
        answer.matches(sentences(rng, 1, 1, 1))
        turned = sentences(rng, 4, 4, 4)  # the same numbers, not contiguous
        answer.matches(turned | {"tokens": turned["tokens"].T.contiguous().T})

    @points(2)
    def test_padding_changes_nothing(self, answer, rng):
        inputs = sentences(rng, 3, 5, 1, n=5)
        before = self.read(answer, inputs, 3)
        longer = torch.cat([inputs["tokens"], ids(rng, 3, 4)], dim=1)
        hidden = torch.arange(9) >= inputs["lengths"][:, None]
        for padding in (0, 8, ids(rng, 3, 9)):
            tokens = torch.where(hidden, padding, longer)
            after = self.read(answer, inputs | {"tokens": tokens}, 3)
            if not torch.allclose(before, after, atol=1e-5):
                raise Failure(
                    "Four more pads behind each sentence, and the vectors change by up to "
                    f"{(before - after).abs().max():.2g}. They should not notice.",
                    inputs | {"tokens": tokens},
                    before,
                    after,
                )

    @points(1)
    def test_every_sentence_stops_at_its_own_length(self, answer, rng):
        answer.matches(sentences(rng, 2, 4, 1, n=4))
        answer.matches(sentences(rng, 4, 3, 2, 1, n=4, **EQUAL))  # b = n = hidden
        answer.matches(sentences(rng, 1, 3, 2, n=6))  # nobody is as long as the rectangle
        answer.matches(sentences(rng, 2, 2, n=4))
        answer.matches(sentences(rng, 3, n=5))
        answer.matches(sentences(rng, 2, 1, 3, n=3, **DOUBLE))

    @points(1)
    def test_the_lengths_decide_and_not_the_ids(self, answer, rng):
        answer.matches(zeros_among_words(rng))
        answer.matches(zero_pads(rng, 3, 1, 2, n=4))

    @points(1)
    def test_the_neighbors_in_the_batch_change_nothing(self, answer, rng):
        inputs = sentences(rng, 3, 5, 2, n=5)
        together = self.read(answer, inputs, 3)
        for row, length in enumerate(inputs["lengths"].tolist()):
            tokens = inputs["tokens"][row : row + 1, :length]  # alone, it needs no padding
            alone = inputs | {"tokens": tokens, "lengths": inputs["lengths"][row : row + 1]}
            vector = self.read(answer, alone, 1)[0]
            compare(f"sentence {row}, alone and in the batch", vector, together[row])

    @points(1)
    def test_gradients_reach_the_embedding_and_the_gru(self, answer, rng):
        answer.gradients_match(sentences(rng, 2, 4, 1, n=4))
        answer.gradients_match(sentences(rng, 3, 3, n=3))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, sentences(rng, 2, 4, 1, n=5))

    @staticmethod
    def read(answer, inputs, b):
        state = answer(inputs)
        if state.shape != (b, 7):
            raise Failure(f"Your answer has shape {shape_of(state)}; expected ({b} 7).", inputs)
        return state


# --- teacher_inputs -----------------------------------------------------------------------------


def targets(rng, b, n, bos=1, words=9):
    """Full rows of words from 3 on."""
    return {"target": ids(rng, b, n, words=words, low=3), "bos": bos}


def padded_targets(rng, *lengths, n, bos=1, eos=2, pad=0):
    """As the course's batches are: words, eos, padding."""
    inputs = targets(rng, len(lengths), n, bos)
    for row, length in zip(inputs["target"], lengths, strict=True):
        row[length - 1] = eos
        row[length:] = pad
    return inputs


def teacher_probes(rng):
    return {
        "words": targets(rng, 3, 4, bos=7),
        "square": targets(rng, 4, 4, bos=2),
        "padded": padded_targets(rng, 3, 5, 2, n=5),
        "padded, no eos": {"target": torch.tensor([[4, 5, 0, 0], [6, 7, 8, 0]]), "bos": 1},
        "bos is 0": targets(rng, 2, 5, bos=0),
        "one row": targets(rng, 1, 4, bos=8),
        "one word": targets(rng, 3, 1, bos=5),
        "wide": targets(rng, 2, 7, bos=40, words=50),
        "a word is bos": {"target": torch.tensor([[4, 1, 5, 2], [1, 6, 2, 0]]), "bos": 1},
    }


def teacher_small(rng):
    for b, n in ((1, 1), (1, 2), (1, 3), (2, 2), (2, 3)):
        for bos in (1, 8, 0):
            yield targets(rng, b, n, bos)
    yield padded_targets(rng, 2, n=3)
    yield padded_targets(rng, 2, 3, n=4)


def teacher_maps(rng):
    return [("two rows of three words", targets(rng, 2, 3, words=8), ("target",))]


class TestTeacherInputs:
    task = Task(
        name="teacher_inputs",
        reference=reference.teacher_inputs,
        returns=("decoder inputs",),
        difficulty=1,
        minutes=10,
        section="teacher-forcing",
        hints=(
            "While the decoder predicts word t, which word does it take in? Write both rows below "
            "each other for “cent quatre <eos>”.",
            "Word t is predicted from word t − 1, so the row moves one place to the right. "
            "Something has to stand before the first word, and one word falls off at the end.",
            "Join two pieces along the axis of positions: a column (b 1) filled with bos, and the "
            "target without its last column.",
        ),
        probes=teacher_probes,
        small=teacher_small,
        maps=teacher_maps,
    )

    @points(1)
    def test_one_input_for_each_word_to_predict(self, answer, rng):
        for b, n in ((3, 5), (4, 4), (2, 1), (1, 6)):
            inputs = targets(rng, b, n)
            got = answer(inputs)
            if got.shape != (b, n):
                raise Failure(
                    f"Your inputs have shape {shape_of(got)}; expected (b n) = ({b} {n}), one "
                    "input for each word to predict.",
                    inputs,
                )
            if got.dtype != torch.int64:
                raise Failure(f"Your inputs are {got.dtype}; ids stay whole numbers, int64.")

    @points(1)
    def test_every_row_begins_with_bos(self, answer, rng):
        for bos in (1, 8, 0):
            inputs = targets(rng, 3, 4, bos)
            got = answer(inputs)
            if got.ndim != 2 or got.shape[1] == 0 or (got[:, 0] != bos).any():
                first = got[:, :1] if got.ndim == 2 else got
                raise Failure(
                    f"With bos = {bos}, the rows begin with {first.flatten().tolist()}.", inputs
                )

    @points(1)
    def test_every_word_comes_one_place_later(self, answer, rng):
        answer.matches(targets(rng, 3, 5, bos=7))
        answer.matches(targets(rng, 4, 4, bos=2))
        answer.matches(targets(rng, 2, 9, bos=30, words=40))
        answer.matches(targets(rng, 1, 6))
        answer.matches(targets(rng, 5, 1))
        turned = targets(rng, 3, 5)
        answer.matches(turned | {"target": turned["target"].T.contiguous().T})

    @points(1)
    def test_eos_and_padding_move_like_any_other_token(self, answer, rng):
        answer.matches(padded_targets(rng, 3, 5, 2, n=5))
        answer.matches(padded_targets(rng, 3, 5, 1, n=6, eos=7, pad=8, bos=2))
        answer.matches({"target": torch.tensor([[1, 0, 1, 2], [0, 0, 2, 2]]), "bos": 1})

    @points(1)
    def test_the_target_stays_as_it_was(self, answer, rng):
        moves_nothing(answer, targets(rng, 3, 5))
        moves_nothing(answer, padded_targets(rng, 3, 5, 2, n=5))


# --- sequence_loss ------------------------------------------------------------------------------


def scored(rng, *lengths, n=None, words=7, pad=0, dtype=torch.float32, size=1.0):
    """Logits, and targets of these lengths; a real token is never `pad`."""
    n = n or max(lengths)
    target = (pad + ids(rng, len(lengths), n, words=words, low=1)) % words
    target[torch.arange(n) >= torch.tensor(lengths)[:, None]] = pad
    logits = size * normal(rng, len(lengths), n, words, dtype=dtype)
    return {"logits": logits, "target": target, "pad": pad}


def far_logits(rng, offset, words=5):
    """Whole numbers around `offset`, in which a wrong word lies 300 above the others."""
    inputs = scored(rng, 3, 2, n=4, words=words, pad=4)
    logits = integers(rng, 2, 4, words) + offset
    logits.scatter_(2, ((inputs["target"] + 1) % words)[:, :, None], offset + 300.0)
    return inputs | {"logits": logits}


def sure_of_pads(rng):
    """Logits that say at each padded position: padding, for certain."""
    inputs = scored(rng, 2, 5, 1, n=5)
    inputs["logits"][inputs["target"] == 0] = torch.tensor([20.0] + [0.0] * 6)
    return inputs


def loss_probes(rng):
    return {
        "full": scored(rng, 4, 4, 4),
        "padded": scored(rng, 2, 5, 1, n=5),
        "sure of pads": sure_of_pads(rng),
        "all padded": scored(rng, 2, 3, 1, n=5),
        "pad is 6": scored(rng, 2, 3, n=4, pad=6),
        "pad is 3, words are 0": scored(rng, 4, 2, 1, n=4, words=4, pad=3),
        "square": scored(rng, 4, 2, 3, 4, n=4, words=4),
        "two classes": scored(rng, 3, 2, n=3, words=2, pad=1),
        "one word": scored(rng, 1, 1, n=1),
        "large": scored(rng, 2, 3, n=4, size=9.0),
        "far apart": far_logits(rng, 0.0),
        "far away": far_logits(rng, 1e4),
        "double": scored(rng, 2, 3, n=3, **DOUBLE),
    }


def loss_small(rng):
    for lengths, n, words in (
        ((1,), 1, 2),
        ((1,), 1, 3),
        ((2,), 2, 2),
        ((2,), 2, 3),
        ((1,), 2, 3),
        ((2, 2), 2, 3),
        ((2, 1), 2, 3),
        ((3, 1), 3, 4),
    ):
        for pad in (0, words - 1):
            inputs = scored(rng, *lengths, n=n, words=words, pad=pad)
            yield inputs | {"logits": integers(rng, *inputs["logits"].shape)}
    yield {
        "logits": torch.tensor([[[0.0, 0.0, 300.0]]]),
        "target": torch.tensor([[1]]),
        "pad": 0,
    }


def loss_maps(rng):
    inputs = scored(rng, 3, 2, n=4, words=5)
    return [("two rows of four positions, the last one and the last two padded", inputs, LOGITS)]


LOGITS = ("logits",)


class TestSequenceLoss:
    task = Task(
        name="sequence_loss",
        reference=reference.sequence_loss,
        returns=("loss",),
        difficulty=2,
        minutes=15,
        section="token-loss",
        hints=(
            "The loss of one position is −ln p, where p is the probability that softmax gives the "
            "right word. Which positions of the rectangle count, and by what do you divide?",
            "Two routes. By hand: log-probabilities, the one of each target (gather), then a sum "
            "over positions where target is not pad. Or F.cross_entropy, which expects the classes "
            "on axis 1 and has an argument for an id to be left out.",
            "Put one position in each row: logits as (b·n, vocab), target as (b·n). Then "
            "F.cross_entropy on these two, with ignore_index=pad; it takes the mean itself.",
        ),
        probes=loss_probes,
        differentiated=("padded", "square", "far apart"),
        small=loss_small,
        maps=loss_maps,
        features=1,
    )

    @points(1)
    def test_the_loss_is_one_number(self, answer, rng):
        for lengths in ((4, 4, 4), (2, 5, 1), (1,)):
            inputs = scored(rng, *lengths)
            loss = answer(inputs)
            if loss.shape != ():
                raise Failure(
                    f"Your loss has shape {shape_of(loss)}; one number for the whole batch is "
                    "expected, of shape ().",
                    inputs,
                )
            if loss.dtype != torch.float32:
                raise Failure(f"Your loss is {loss.dtype}; the logits are float32.", inputs)

    @points(1)
    def test_a_blind_guess_loses_the_logarithm_of_the_vocabulary(self, answer, rng):
        for words in (7, 3, 5):
            inputs = scored(rng, 5, 2, 1, n=5, words=words)
            inputs["logits"] *= 0
            loss = answer(inputs)
            if loss.numel() != 1 or not abs(loss.item() - math.log(words)) < 1e-4:
                raise Failure(
                    f"All {words} words of the vocabulary get the same score, so the loss of each "
                    f"token is ln {words} ≈ {math.log(words):.3f}; your loss is "
                    f"{f'{loss.item():.4g}' if loss.numel() == 1 else describe(loss)}.",
                    inputs,
                )

    @points(2)
    def test_it_is_the_mean_of_minus_log_p(self, answer, rng):
        answer.matches(scored(rng, 4, 4, 4))
        answer.matches(scored(rng, 4, 4, 4, 4, words=4))
        answer.matches(scored(rng, 7, 7))  # n = vocab
        answer.matches(scored(rng, 3, 3, words=2, pad=1))
        answer.matches(scored(rng, 1))
        answer.matches(scored(rng, 5, 5, 5, words=6, pad=4, **DOUBLE))

    @points(2)
    def test_padding_does_not_count(self, answer, rng):
        for pad in (0, 6, 3):
            inputs = scored(rng, 2, 5, 1, n=5, pad=pad)
            before = answer(inputs)
            answer.matches(inputs)
            more = scored(rng, 1, 1, 1, n=3, pad=pad)
            more["target"][:] = pad
            longer = {
                name: torch.cat([inputs[name], size * more[name]], dim=1)
                for name, size in (("logits", 30), ("target", 1))
            }
            after = answer(inputs | longer)
            if not torch.allclose(before, after, atol=1e-4):
                raise Failure(
                    f"Three more pads behind each row change the loss from {before.item():.4g} to "
                    f"{after.item():.4g}. They should not count.",
                    inputs | longer,
                    before,
                    after,
                )
        answer.matches(sure_of_pads(rng))
        answer.matches(scored(rng, 2, 1, n=6, **DOUBLE))
        answer.matches(scored(rng, 3, 0, 2))  # a row of nothing but padding

    @points(1)
    def test_every_token_counts_the_same(self, answer, rng):
        inputs = scored(rng, 8, 1, n=8)
        inputs["logits"][1] *= 20  # a short sentence with a loss of its own
        answer.matches(inputs)
        answer.matches(scored(rng, 1, 2, 4, 4, n=4, words=4, pad=2))

    @points(1)
    def test_extreme_logits_stay_finite(self, answer, rng):
        # A log-sum-exp of 1e4 is known to 1e-3 in float32, so nothing sharper is asked.
        for offset in (0.0, 1e4, -1e4):
            answer.matches(far_logits(rng, offset), tolerance=5e-3)

    @points(1)
    def test_gradients_reach_the_logits_of_real_tokens_only(self, answer, rng):
        answer.gradients_match(scored(rng, 2, 5, 1, n=5))
        answer.gradients_match(scored(rng, 4, 2, 3, 4, n=4, words=4, pad=3))
        answer.gradients_match(far_logits(rng, 0.0))
        inputs = scored(rng, 2, 5, 1, n=5)
        gradient = answer.observe(inputs, gradient=True).gradients["logits"]
        largest = gradient[inputs["target"] == 0].abs().max()
        if largest > 1e-6:
            raise Failure(
                f"Logits of padded positions get a gradient of up to {largest:.2g}. The loss must "
                "not depend on them.",
                inputs,
            )

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, scored(rng, 2, 5, 1, n=5))
        moves_nothing(answer, scored(rng, 4, 3, n=4, pad=5))


# --- greedy_decode ------------------------------------------------------------------------------

NOTHING = -1  # stands where a row stops without having said eos


def with_a_decoder(greedy_decode):
    """`greedy_decode` as a function of a table: which word comes next, by row, time and word.

    `state` counts the steps of each row. What may differ between right answers is made equal: the
    dtype of the ids, and whether decoding goes on after all rows have ended.
    """

    def function(next_word, state, bos, eos, max_length, state_as="tensor"):
        held = HELD[state_as]
        b, words = next_word.shape[0], next_word.shape[-1]
        table = next_word if next_word.ndim == 3 else next_word[:, None]  # b t words
        calls = 0

        def step(token, state):
            nonlocal calls
            calls += 1
            if calls > 4 * max_length + 8:
                raise Unusable(f"does not stop: {calls - 1} steps with max_length = {max_length}.")
            check_token(token, b, words)
            count = counted(state)
            if type(state) is not type(first) or count is None or count.shape != (b,):
                raise Unusable("hands `step` a state that `step` never returned.")
            best = table[torch.arange(b), count % table.shape[1], token.long()]
            # All negative or all positive, and the best by little: only the order may matter.
            rank = (torch.arange(words) - best[:, None]) % words
            logits = torch.where(count[:, None] % 2 == 0, -3.0, words) - 0.5 * rank
            return logits, held(count + 1)

        first = held(state)
        written = greedy_decode(step, first, bos, eos, max_length, b)
        if isinstance(written, list | tuple):
            kind = f"a {type(written).__name__} of {len(written)}"
            raise Unusable(f"returned {kind}; one tensor (b, at most max_length) is expected.")
        if not isinstance(written, torch.Tensor) or written.ndim != 2 or len(written) != b:
            return written
        if written.is_floating_point() or written.dtype == torch.bool:
            return written
        written = written.long()
        ended = (written == eos).any(1, keepdim=True)
        missing = max(0, max_length - written.shape[1])
        rest = torch.where(ended, eos, NOTHING).expand(b, missing)
        return torch.cat([written, rest], dim=1)

    return function


# What decoders keep: a GRU's vector, an LSTM's pair, a layer's only state, a state with names.
HELD = {
    "tensor": lambda count: count,
    "pair": lambda count: (count, count.float()),
    "tuple of one": lambda count: (count,),
    "dict": lambda count: {"steps": count},
}


def counted(state):
    """The counter in a state; None if there is none."""
    if isinstance(state, tuple):
        state = state[0] if state else None
    elif isinstance(state, dict):
        state = state.get("steps")
    return state if isinstance(state, torch.Tensor) else None


def check_token(token, b, words):
    """Raise Unusable unless a decoder could take the token in."""
    if not isinstance(token, torch.Tensor):
        raise Unusable(f"hands `step` {describe(token)} as token; expected a tensor (b).")
    if token.shape != (b,):
        raise Unusable(
            f"hands `step` a token of shape {shape_of(token)}; expected (b) = ({b}), one id a row."
        )
    if token.is_floating_point() or token.dtype == torch.bool:
        raise Unusable(f"hands `step` a token of {token.dtype}; ids are whole numbers.")
    if token.min() < 0 or token.max() >= words:
        raise Unusable(
            f"hands `step` the ids {token.tolist()}; the vocabulary goes from 0 to {words - 1}."
        )


def decoder(next_word, bos=1, eos=2, max_length=5, start=0, state_as=None):
    state = torch.zeros(len(next_word), dtype=torch.long) + torch.as_tensor(start)
    inputs = {"next_word": next_word, "state": state, "bos": bos, "eos": eos}
    return inputs | {"max_length": max_length} | ({"state_as": state_as} if state_as else {})


def by_word(rng, b, words, never, **others):
    """The next word depends on the last one only, and `never` is not said."""
    table = ids(rng, b, words, words=words - 1)
    return decoder(table + (table >= never), **others)


def by_time(*rows, words=7, **others):
    """Each row says this, whatever it is told."""
    script = torch.tensor(rows)
    return decoder(script[:, :, None].expand(*script.shape, words).clone(), **others)


def by_all(rng, b, t, words, **others):
    """The next word depends on the row, the time and the last word."""
    return decoder(ids(rng, b, t, words, words=words), **others)


ENDINGS = ([5, 2, 4, 3, 6, 5], [3, 4, 6, 2, 5, 5], [2, 6, 2, 4, 3, 3])


def decode_probes(rng):
    return {
        "by word": by_word(rng, 2, 6, never=2, max_length=4),
        "by word, bos is 4": by_word(rng, 3, 6, never=2, bos=4, max_length=4),
        "bos is 0": by_word(rng, 3, 6, never=5, bos=0, eos=5, max_length=4),
        "rows end": by_time(*ENDINGS, max_length=6),
        "the first row ends last": by_time([3, 4, 6, 5, 2], [4, 2, 3, 1, 5], max_length=5),
        "eos is 0": by_time([5, 0, 4, 3], [3, 4, 0, 5], bos=2, eos=0, max_length=4),
        "no row ends": by_time([3, 4, 5, 6, 3, 4], [4, 6, 1, 3, 3, 5], max_length=4),
        "all end at once": by_time([3, 2, 4, 3], [5, 2, 6, 6], max_length=4),
        "end at the limit": by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3),
        "by all": by_all(rng, 3, 4, 6, bos=3, eos=5, max_length=6, start=[0, 2, 1]),
        "square": by_all(rng, 4, 4, 4, bos=0, eos=3, max_length=4),
        "one word": by_all(rng, 3, 2, 5, max_length=1),
        "pair": by_all(rng, 2, 3, 5, eos=4, max_length=4, state_as="pair"),
    }


def decode_small(rng):
    yield decoder(torch.tensor([[2, 0, 1]]), bos=1, eos=2, max_length=1)
    for max_length in (1, 2, 3, 4):
        yield decoder(torch.tensor([[0, 3, 3, 0]]), bos=1, eos=2, max_length=max_length)
    yield decoder(torch.tensor([[2, 0, 0]]), max_length=3)
    yield decoder(torch.tensor([[2, 0, 1]]), max_length=3)
    yield decoder(torch.tensor([[2, 2, 1]]), max_length=2)
    yield decoder(torch.tensor([[1, 0, 2]]), bos=2, eos=1, max_length=3)
    yield decoder(torch.tensor([[0, 2, 1], [2, 0, 0]]), max_length=3)
    yield decoder(torch.tensor([[2, 0, 0], [0, 2, 1]]), max_length=3)
    yield decoder(torch.tensor([[1, 0, 2], [0, 2, 1]]), bos=2, eos=1, max_length=3)
    yield decoder(torch.tensor([[[3, 3, 3, 3], [0, 0, 0, 0]]]), max_length=2)
    for _ in range(6):
        yield by_all(rng, 2, 3, 4, max_length=4)
        yield by_all(rng, 3, 2, 4, max_length=4, bos=0, eos=3)


def decode_traits(answer):
    inputs = by_time([3, 4, 2, 5], [4, 2, 5, 6], max_length=4)
    return differ_from_call_to_call(answer, inputs)


def in_words(row):
    return "[" + " ".join("nothing" if word == NOTHING else str(word) for word in row) + "]"


def writes(answer, inputs):
    """Assert that the answer writes what is expected, row by row."""
    got, expected = answer(inputs), answer.expected(inputs)
    evidence = inputs, expected, got
    if got.is_floating_point() or got.dtype == torch.bool:
        raise Failure(f"What is written is {got.dtype}; ids are whole numbers.", *evidence)
    if got.shape != expected.shape:
        b, longest = expected.shape
        raise Failure(
            f"What is written has shape {shape_of(got)}; expected (b, at most max_length), here "
            f"b = {b} and max_length = {longest}.",
            *evidence,
        )
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if ours != theirs:
            raise Failure(
                f"bos = {inputs['bos']}, eos = {inputs['eos']}: row {row} should be "
                f"{in_words(ours)}; your answer wrote {in_words(theirs)}.",
                *evidence,
            )


class TestGreedyDecode:
    task = Task(
        name="greedy_decode",
        reference=reference.greedy_decode,
        returns=("words",),
        difficulty=3,
        minutes=25,
        section="greedy-decoding",
        hints=(
            "It is a loop, at most max_length rounds. Two things go from one round to the next: "
            "the words written last, one for each row, and the state that `step` returned. Write "
            "it for rows that never end first.",
            "A finished row must stay finished. Keep a boolean tensor (b), `finished`: what does a "
            "row write once it is True, and when does it become True? The loop may end early only "
            "when all of it is True.",
            "token = b times bos; then each round: logits, state = step(token, state); token = "
            "logits.argmax(-1), but eos where finished; finished = finished | (token == eos); "
            "append token; stop if all are finished. Stack what was written along axis 1.",
        ),
        probes=decode_probes,
        adapt=with_a_decoder,
        small=decode_small,
        traits=decode_traits,
    )

    @points(1)
    def test_one_row_of_ids_for_each_sentence(self, answer, rng):
        for b, max_length in ((3, 4), (1, 5), (4, 4)):
            inputs = by_word(rng, b, 6, never=2, max_length=max_length)
            written = answer(inputs)
            if written.is_floating_point() or written.dtype == torch.bool:
                raise Failure(f"What is written is {written.dtype}; ids are whole numbers.", inputs)
            if written.shape != (b, max_length):
                raise Failure(
                    f"Nobody says eos, so {max_length} words are due in each of {b} rows. What is "
                    f"written has shape {shape_of(written)}; expected ({b} {max_length}).",
                    inputs,
                )

    @points(1)
    def test_decoding_starts_from_bos(self, answer, rng):
        for bos in (1, 5, 0, 3):  # after bos comes 4, after anything else another word
            first = torch.full((3, 6), 3)
            first[:, bos] = 4
            writes(answer, decoder(first, bos=bos, eos=2, max_length=1))
            writes(answer, by_word(rng, 2, 7, never=2, bos=bos, max_length=3))

    @points(1)
    def test_every_word_written_is_read_next(self, answer, rng):
        counting = torch.tensor([[3, 3, 2, 4, 5, 6, 0], [3, 5, 2, 6, 0, 4, 3]])
        writes(answer, decoder(counting, max_length=4))
        writes(answer, by_word(rng, 4, 8, never=2, max_length=6))
        writes(answer, by_word(rng, 4, 4, never=2, max_length=4))

    @points(1)
    def test_the_state_is_handed_on(self, answer, rng):
        writes(answer, by_time([3, 4, 5, 6], [6, 5, 4, 3], max_length=4))
        writes(answer, by_all(rng, 3, 5, 7, eos=6, max_length=5, start=[4, 1, 3]))
        for kind in HELD:  # a state is nobody's business but the decoder's
            writes(answer, by_all(rng, 2, 3, 6, max_length=4, state_as=kind))

    @points(1)
    def test_the_likeliest_word_wins(self, answer, rng):
        for b, words in ((3, 6), (5, 5), (2, 9), (1, 4)):
            writes(answer, by_all(rng, b, 2, words, eos=words - 1, max_length=1))
        writes(answer, by_time([1, 0, 1, 3], [4, 3, 0, 1], max_length=4))  # marks, too

    @points(2)
    def test_after_its_eos_a_row_says_only_eos(self, answer, rng):
        writes(answer, by_time(*ENDINGS, max_length=6))
        writes(answer, by_time([5, 0, 4, 0, 3], [3, 4, 5, 6, 1], bos=2, eos=0, max_length=5))
        for _ in range(3):
            writes(answer, by_all(rng, 4, 5, 4, eos=3, max_length=7))

    @points(1)
    def test_no_row_ends_because_another_does(self, answer):
        writes(answer, by_time([2, 3, 3, 3], [3, 4, 5, 6], [4, 4, 2, 3], max_length=4))
        writes(answer, by_time([3, 4, 5, 6], [2, 3, 3, 3], [4, 2, 3, 3], max_length=4))

    @points(1)
    def test_eos_is_written_and_nothing_is_cut(self, answer):
        writes(answer, by_time([3, 2, 4, 3], [5, 2, 6, 6], max_length=4))
        writes(answer, by_time([2, 3], [2, 4], [2, 5], max_length=2))
        writes(answer, by_time([3, 4, 2], max_length=3))

    @points(1)
    def test_no_row_is_longer_than_max_length(self, answer, rng):
        for max_length in (1, 2, 5):
            writes(answer, by_word(rng, 3, 6, never=2, max_length=max_length))
        writes(answer, by_time([3, 4, 2, 5], [5, 6, 2, 3], max_length=3))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, by_all(rng, 3, 4, 6, max_length=5, start=[3, 1, 2]))
        moves_nothing(answer, by_time(*ENDINGS, max_length=6))


# --- exact_match_by_length ----------------------------------------------------------------------

WORDS = ("cent", "deux", "dix", "mille", "quatre", "six", "sept", "trente", "vingt")

# Ways to spoil a translation. Each gets a list of words and gives another one.
SPOILED = {
    "right": lambda words: words,
    "last word missing": lambda words: words[:-1],
    "a word too many": lambda words: [*words, words[0]],
    "two words swapped": lambda words: [*words[:-2], words[-1], words[-2]],
    "first word wrong": lambda words: ["zéro", *words[1:]],
    "last word wrong": lambda words: [*words[:-1], "zéro"],
    "nothing": lambda words: [],
    "all wrong": lambda words: ["zéro"] * len(words),
    "first word missing": lambda words: words[1:],
    "a word in front": lambda words: ["zéro", *words],
}


def translated(rng, *kinds, lengths=None, more=0):
    """Translations, each right or spoiled in the given way; lengths have gaps."""
    right, written = [], []
    for kind in kinds:
        size = 2 + chance(rng, 4) + more
        start, stride = chance(rng, 9), 1 + chance(rng, 8) % 2
        words = [WORDS[(start + stride * place) % 9] for place in range(size)]  # 9 different ones
        right.append(words)
        written.append(list(SPOILED[kind](words)))
    lengths = lengths or [(1, 3, 4, 8)[chance(rng, 4)] for _ in kinds]
    return {"predictions": written, "targets": right, "lengths": lengths}


def match_probes(rng):
    every = list(SPOILED)
    rights = ["right"] * 4
    return {
        "mixed": translated(rng, *every, *rights, *every, *rights),
        "all right": translated(rng, *rights, *rights),
        "missing words": translated(rng, "last word missing", "right", "last word missing"),
        "words too many": translated(rng, "a word too many", "right", "a word too many"),
        "another order": translated(rng, "two words swapped", "right", "two words swapped"),
        "last words": translated(rng, "last word wrong", "right", "last word wrong"),
        "first words": translated(rng, "first word wrong", "right", "first word wrong"),
        "none right": translated(rng, *every[1:]),
        "right, then wrong": translated(
            rng, "right", "right", "all wrong", "right", "all wrong", lengths=[4, 4, 4, 2, 2]
        ),
        "wrong, then right": translated(
            rng, "all wrong", "right", "all wrong", "right", "right", lengths=[4, 4, 6, 6, 6]
        ),
        "far apart": translated(rng, "right", "all wrong", "right", "right", lengths=[2, 9, 9, 5]),
        "ids": {
            "predictions": [[5, 6, 2], [5, 6], [7, 2]],
            "targets": [[5, 6, 2], [5, 2], [7, 2]],
            "lengths": [3, 3, 1],
        },
    }


def match_small(rng):
    def example(predictions, targets, lengths):
        sides = ([list(text) for text in side] for side in (predictions, targets))
        return dict(zip(("predictions", "targets", "lengths"), (*sides, lengths), strict=True))

    yield example(["a"], ["a"], [1])
    yield example(["b"], ["a"], [1])
    yield example(["a"], ["a"], [2])
    for prediction in ("a", "abb", "ba", "cb", "ac", ""):
        yield example([prediction], ["ab"], [2])
    yield example(["a", "b"], ["a", "a"], [1, 1])
    yield example(["b", "a"], ["a", "a"], [1, 1])
    yield example(["a", "b"], ["a", "a"], [1, 3])
    yield example(["a", "a", "b"], ["a", "a", "a"], [2, 2, 2])
    yield example(["a", "b", "b"], ["a", "a", "a"], [2, 2, 2])
    for _ in range(4):
        yield translated(rng, *list(SPOILED)[:5])


def match_traits(answer):
    inputs = {"predictions": [["a"], ["b"]], "targets": [["a"], ["a"]]}
    first = answer(inputs | {"lengths": [1, 2]})
    answer(inputs | {"lengths": [2, 1]})
    return {"differs from call to call": answer(inputs | {"lengths": [1, 2]}) != first}


class TestExactMatchByLength:
    task = Task(
        name="exact_match_by_length",
        reference=reference.exact_match_by_length,
        returns=dict,
        difficulty=1,
        minutes=10,
        section="the-cliff",
        hints=(
            "For each sentence: is the translation the target, word for word? Python compares two "
            "lists with ==. Then collect these verdicts by length.",
            "A dictionary from length to a list of verdicts keeps everything needed: sentences of "
            "that length and how many are right. A length whose sentences are all wrong is in it, "
            "too.",
            "verdicts = {}; for each prediction, target and length (zip gives all three): append "
            "prediction == target to the list of its length. Then, for each length: the sum of "
            "its list divided by its size.",
        ),
        probes=match_probes,
        small=match_small,
        traits=match_traits,
    )

    @points(1)
    def test_it_returns_a_share_for_each_length(self, answer, rng):
        inputs = translated(rng, *SPOILED, "right", "right", lengths=[4, 2, 4, 7] * 3)
        shares = answer(inputs)
        for share in shares.values():
            if not isinstance(share, numbers.Real | torch.Tensor) or not 0 <= share <= 1:
                raise Failure(f"Every share lies between 0 and 1; got {shares}.", inputs)

    @points(1)
    def test_right_sentences_are_counted_by_their_length(self, answer, rng):
        for _ in range(3):
            answer.matches(translated(rng, *["right", "all wrong", "right"] * 5))
        every = ["right", "right", "all wrong"]
        answer.matches(translated(rng, *every, lengths=[3, 3, 3]))
        answer.matches(translated(rng, *every[::-1], lengths=[3, 3, 3]))

    @points(1)
    def test_one_wrong_word_makes_a_sentence_wrong(self, answer, rng):
        for kind in ("first word wrong", "last word wrong", "all wrong"):
            for more in (0, 15):  # long translations, too
                kinds = kind, "right", kind, "right"
                answer.matches(translated(rng, *kinds, lengths=[2, 2, 5, 5], more=more))

    @points(1)
    def test_missing_words_extra_words_and_their_order_count(self, answer, rng):
        for kind in (
            "last word missing",
            "first word missing",
            "a word too many",
            "a word in front",
            "two words swapped",
            "nothing",
        ):
            answer.matches(translated(rng, kind, "right", kind, "right", lengths=[2, 2, 5, 5]))

    @points(1)
    def test_every_length_that_occurs_is_there_and_no_other(self, answer, rng):
        inputs = translated(rng, "right", "all wrong", "right", "right", lengths=[9, 2, 4, 9])
        shares = answer(inputs)
        if sorted(map(str, shares)) != ["2", "4", "9"]:
            raise Failure(
                f"The sentences have lengths 2, 4 and 9; yours are {list(shares)}. "
                "A length without a right translation has the share 0.",
                inputs,
                {2: 0.0, 4: 1.0, 9: 1.0},
                shares,
            )
        answer.matches(inputs)

    @points(1)
    def test_words_may_be_ids(self, answer, rng):
        numbers = {word: place for place, word in enumerate((*WORDS, "zéro"))}
        inputs = translated(rng, *SPOILED, "right", "right")
        for name in ("predictions", "targets"):
            inputs[name] = [[numbers[word] for word in words] for words in inputs[name]]
        answer.matches(inputs)

    @points(1)
    def test_the_lists_stay_as_they_were(self, answer, rng):
        moves_nothing(answer, translated(rng, *SPOILED, "right"))

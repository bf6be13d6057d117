"""The one training loop, and the measures by which the course's translators are compared."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensors import DEVICES, assert_equal_to, seeded, steadily
from torch import nn
from torch.optim import optimizer as optimizers

from attncourse.additive import AttentionEncoderDecoder
from attncourse.bottleneck import EncoderDecoder, sequence_loss, teacher_inputs
from attncourse.cross_attention import Transformer
from attncourse.number_words import BOS, EOS, MARKS, PAD, Pairs, Vocabulary, batches, corpus
from attncourse.training import (
    as_source,
    by_bucket,
    count_lengths,
    exact_match,
    train,
    translations,
    without_error,
)


@pytest.fixture(scope="module")
def small():
    return corpus(size=400, digits=6)


def make(kind, task, seed=0, **options):
    return seeded(
        kind, len(task.source_words), len(task.target_words), seed=seed, **options
    ).float()


def small_model(task, seed=0):
    return make(EncoderDecoder, task, seed, width=16, hidden=16)


# --- Training ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        (EncoderDecoder, {"width": 32, "hidden": 32}, 150),
        (AttentionEncoderDecoder, {"width": 32, "hidden": 32}, 100),
        (Transformer, {"model_width": 32, "num_layers": 1}, 100),
    ],
    ids=["fixed vector", "additive", "transformer"],
)
def test_a_translator_learns_a_few_pairs_by_heart(small, kind, options, steps):
    few = small.train.pick(small.train.lengths.argsort(descending=True)[:60:6])
    model = make(kind, small, **options)
    losses = train(model, few, steps, learning_rate=2e-2, batch_size=5, progress=False)
    assert losses[0] > 2 and max(losses[-5:]) < 0.05
    shares = exact_match(model, few)
    assert set(shares.values()) == {1.0}
    few_targets = [small.target_words.decode(row) for row in few.target]
    assert translations(model, few, small.target_words) == few_targets


@pytest.mark.slow
def test_the_loss_falls_on_the_running_task(small):
    model = small_model(small)
    losses = train(model, small.train, 60, batch_size=32, learning_rate=0.02, progress=False)
    assert len(losses) == 60 and all(math.isfinite(loss) for loss in losses)
    assert losses[0] == pytest.approx(math.log(len(small.target_words)), rel=0.15)
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_the_same_seed_gives_the_same_losses_and_weights(small):
    runs = []
    for seed, chance in ((0, 1), (0, 2), (5, 1)):
        model = small_model(small)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chance)
            losses = train(model, small.train, 8, batch_size=16, seed=seed, progress=False)
        runs.append((losses, [p.detach() for p in model.parameters()]))
    (one, weights), (again, same), (other, _) = runs
    assert one == again != other
    assert all(torch.equal(*pair) for pair in zip(weights, same, strict=True))


def test_training_leaves_chance_and_threads_alone(small):
    chance, threads = torch.get_rng_state(), torch.get_num_threads()
    train(small_model(small), small.train, 3, progress=False)
    assert torch.equal(chance, torch.get_rng_state()) and torch.get_num_threads() == threads


def test_the_losses_are_those_of_teacher_forcing_before_each_step(small):
    model, copy = small_model(small), small_model(small)
    losses = train(model, small.train, 1, batch_size=16, seed=3, progress=False)
    batch = next(batches(small.train, 16, seed=3))
    expected = sequence_loss(
        copy(batch.source, teacher_inputs(batch.target, BOS)), batch.target, PAD
    )
    assert losses == [expected.item()]
    assert len(batch) == 16


@pytest.fixture
def optimizer_steps():
    """The learning rate and the size of the gradient at every step of any optimizer."""
    seen = []

    def look(optimizer, *_):
        (group,) = optimizer.param_groups
        norms = [p.grad.norm() for p in group["params"]]
        seen.append((group["lr"], torch.stack(norms).norm().item()))

    handle = optimizers.register_optimizer_step_pre_hook(look)
    yield seen
    handle.remove()


def test_the_learning_rate_rises_over_a_tenth_of_the_steps_and_falls_to_zero(
    small, optimizer_steps
):
    train(small_model(small), small.train, 50, batch_size=4, learning_rate=0.02, progress=False)
    rates = [rate for rate, _ in optimizer_steps]
    highest = rates.index(max(rates))
    assert 3 <= highest <= 6 and rates[highest] == pytest.approx(0.02, rel=0.05)
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[0] < 0.002 and rates[-1] < 0.0001


def test_gradients_are_clipped_to_norm_one(small, optimizer_steps):
    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.linspace(0, 100, len(small.target_words)))

        def forward(self, source, words):
            return (self.slope * 50).expand(*words.shape, -1)

    train(Steep(), small.train, 2, batch_size=4, progress=False)
    assert [norm for _, norm in optimizer_steps] == [pytest.approx(1.0, abs=1e-3)] * 2
    optimizer_steps.clear()
    train(small_model(small), small.train, 2, batch_size=4, progress=False)
    assert all(norm < 1 for _, norm in optimizer_steps), "small gradients stay as they are"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_model_may_take_a_few_steps_or_none(small, steps):
    model = small_model(small)
    before = [p.detach().clone() for p in model.parameters()]
    assert len(train(model, small.train, steps, progress=False)) == steps
    same = [torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
    assert all(same) if steps == 0 else not any(same)


class Moody(nn.Module):
    """A model that is in training mode while it learns, and is interrupted at its third step."""

    def __init__(self, size, error):
        super().__init__()
        self.score = nn.Parameter(torch.zeros(size))
        self.modes, self.error = [], error

    def forward(self, source, words):
        self.modes.append(self.training)
        if len(self.modes) == 3:
            raise self.error
        return self.score.expand(*words.shape, -1)


def test_ctrl_c_stops_early_and_keeps_what_was_learned(small, capfd):
    model = Moody(len(small.target_words), KeyboardInterrupt()).eval()
    losses = train(model, small.train, 10, progress=False)
    assert len(losses) == 2 and model.modes == [True] * 3
    assert model.score.abs().min() > 0 and not model.training
    assert capfd.readouterr().out == "stopped after 2 of 10 steps\n"


def test_another_error_is_not_hidden(small):
    model = Moody(len(small.target_words), RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        train(model, small.train, 10, progress=False)
    assert not model.training
    with pytest.raises(ValueError, match="0 pairs"):
        train(model, small.train.pick([]), 10, progress=False)


@pytest.mark.parametrize("progress", [True, False])
def test_a_progress_bar_is_shown_unless_it_is_switched_off(small, progress, capfd):
    train(small_model(small), small.train, 2, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    if progress:
        assert "training" in err and "2/2" in err and "loss=" in err
    else:
        assert err == ""


@pytest.mark.parametrize("device", DEVICES)
def test_pairs_follow_the_model_to_its_device(small, device):
    model = small_model(small).to(device)
    few = small.train.pick(range(4))
    losses = train(model, few, 2, progress=False)
    assert len(losses) == 2 and next(model.parameters()).device.type == device
    assert len(translations(model, few, small.target_words)) == 4


# --- Translating and counting ---

TARGET_WORDS = Vocabulary((*MARKS, "un", "deux", "trois", "cent"))
PAIRS = Pairs(
    (11, 12, 13, 14, 15),
    torch.tensor([[3, 4, 5], [3, PAD, PAD], [4, 5, PAD], [5, PAD, PAD], [4, 3, PAD]]),
    torch.tensor([[3, 4, EOS], [5, EOS, PAD], [6, 6, EOS], [3, EOS, PAD], [EOS, PAD, PAD]]),
)
FRENCH = [["un", "deux"], ["trois"], ["cent", "cent"], ["un"], []]


class Parrot(nn.Module):
    """Knows each translation by heart, by its source, except those that it is told to miss."""

    def __init__(self, pairs=PAIRS, wrong=(), never_ends=False):
        super().__init__()
        self.known = {
            tuple(word for word in source if word != PAD): target
            for source, target in zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
        }
        self.wrong = {
            tuple(word for word in pairs.source[row].tolist() if word != PAD) for row in wrong
        }
        self.never_ends = never_ends
        self.batches = []

    def forward(self, source, words):
        assert not self.training and (words[:, 0] == BOS).all()
        if words.shape[1] == 1:
            self.batches.append(len(source))
        logits = torch.zeros(*words.shape, len(TARGET_WORDS))
        for row, sentence in enumerate(source.tolist()):
            key = tuple(word for word in sentence if word != PAD)
            for place in range(words.shape[1]):
                target = self.known[key]
                word = target[place] if place < len(target) else EOS
                if key in self.wrong and place == 0:
                    word = 4
                logits[row, place, 3 if self.never_ends else word] = 1
        return logits


@pytest.mark.parametrize("batch_size", [1, 2, 3, 256])
def test_translations_come_in_the_order_of_the_pairs(batch_size):
    model = Parrot()
    assert translations(model, PAIRS, TARGET_WORDS, batch_size) == FRENCH
    assert sum(model.batches) == len(PAIRS) and max(model.batches) == min(batch_size, 5)
    assert model.training, "the mode is what it was before"


def test_a_translator_that_is_in_evaluation_mode_stays_there(small):
    model = small_model(small).eval()
    translations(model, small.test.pick([0]), small.target_words)
    assert not model.training


def test_translating_keeps_no_gradient_and_leaves_chance_alone(small):
    model, chance = small_model(small), torch.get_rng_state()
    before = [p.detach().clone() for p in model.parameters()]
    first = translations(model, small.test, small.target_words)
    assert first == translations(model, small.test, small.target_words, batch_size=7)
    assert torch.equal(chance, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_a_translation_that_does_not_end_is_cut_off_and_is_wrong():
    model = Parrot(never_ends=True)
    sentences = translations(model, PAIRS, TARGET_WORDS)
    longest = PAIRS.target.shape[1]
    assert all(set(sentence) == {"un"} for sentence in sentences)
    assert all(longest < len(sentence) <= longest + 10 for sentence in sentences)
    assert set(exact_match(model, PAIRS).values()) == {0.0}


@pytest.mark.parametrize(
    ("wrong", "shares"),
    [
        ([], {1: 1.0, 2: 1.0, 3: 1.0}),
        ([0], {1: 1.0, 2: 1.0, 3: 0.0}),
        ([1, 2, 4], {1: 0.5, 2: 0.0, 3: 1.0}),
    ],
)
def test_exact_match_is_the_share_without_an_error_for_each_source_length(wrong, shares):
    assert exact_match(Parrot(wrong=wrong), PAIRS) == shares


@pytest.mark.parametrize("kind", [EncoderDecoder, AttentionEncoderDecoder, Transformer])
def test_nothing_is_translated_into_nothing(small, kind):
    assert translations(make(kind, small), small.test.pick([]), small.target_words) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EncoderDecoder, AttentionEncoderDecoder, Transformer])
def test_a_sentence_is_without_error_if_its_translation_is_the_target(small, kind):
    model = make(kind, small).double()
    few = small.train.pick(small.train.lengths.argsort()[::20])
    train(model, few, 20, learning_rate=1e-2, batch_size=8, progress=False)
    pairs = zip(translations(model, few, small.target_words), few.target, strict=True)
    right = [written == small.target_words.decode(target) for written, target in pairs]
    assert without_error(model, few, batch_size=7).tolist() == right and len(set(right)) == 2


def test_nothing_is_counted_as_nothing():
    nothing = PAIRS.pick([])
    assert translations(Parrot(), nothing, TARGET_WORDS) == []
    assert exact_match(Parrot(), nothing) == count_lengths(nothing) == {}
    assert by_bucket({}, {}) == {}


def test_lengths_are_counted():
    assert count_lengths(PAIRS) == {0: 0, 1: 2, 2: 2, 3: 1}


def test_buckets_weigh_each_length_by_its_sentences():
    shares, counts = {1: 1.0, 3: 0.5, 4: 0.2, 9: 0.0}, {0: 0, 1: 3, 2: 0, 3: 1, 4: 5, 9: 2}
    assert by_bucket(shares, counts) == {
        "0–3": pytest.approx(3.5 / 4),
        "4–7": pytest.approx(0.2),
        "8–11": 0.0,
    }
    assert by_bucket(shares, counts, width=10) == {"0–9": pytest.approx(4.5 / 11)}
    assert list(by_bucket(dict(reversed(shares.items())), counts)) == ["0–3", "4–7", "8–11"]


@steadily
@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_a_bucket_is_the_share_of_all_its_sentences(sentences, width):
    by_length = {}
    for length, right in sentences:
        by_length.setdefault(length, []).append(right)
    shares = {length: sum(rights) / len(rights) for length, rights in by_length.items()}
    counts = {length: len(rights) for length, rights in by_length.items()}
    for name, share in by_bucket(shares, counts, width).items():
        first, last = map(int, name.split("–"))
        assert first % width == 0 and last == first + width - 1
        inside = [right for length, right in sentences if first <= length <= last]
        assert share == pytest.approx(sum(inside) / len(inside))


def test_a_sentence_becomes_a_batch_of_one():
    assert as_source(["un", "cent", "deux"], TARGET_WORDS).tolist() == [[3, 6, 4]]
    assert as_source([], TARGET_WORDS).shape == (1, 0)
    assert all(as_source(each, TARGET_WORDS).dtype == torch.int64 for each in ([], ["un"]))
    with pytest.raises(ValueError, match="not in the vocabulary: quatre"):
        as_source(["quatre"], TARGET_WORDS)


def test_a_pair_is_translated_alone_as_among_others(small):
    model = small_model(small).double()
    few = small.test.pick(range(6))
    alone = [translations(model, few.pick([row]), small.target_words)[0] for row in range(6)]
    # Alone the longest target is another, and so is the place where endless sentences are cut.
    for one, among in zip(alone, translations(model, few, small.target_words), strict=True):
        assert one == among[: len(one)]
    logits = model(few.source, teacher_inputs(few.target, BOS))
    source = few.pick([0]).source
    assert_equal_to(logits[:1], model(source, teacher_inputs(few.target[:1], BOS)))

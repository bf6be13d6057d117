"""Sentences of chapter 2 that a skeptic would doubt. Each docstring quotes one from the page."""

import copy
import re
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from einops import einsum
from tensors import word_by_word
from torch import nn

from attncourse import number_words, pretrained
from attncourse.additive import AttentionEncoderDecoder, attend
from attncourse.bottleneck import EncoderDecoder, greedy_decode, teacher_inputs
from attncourse.number_words import BOS, EOS, PAD, words
from attncourse.pretrained import linear_concat_scores
from attncourse.training import as_source, by_bucket

PAGE = Path(__file__).parents[2] / "book" / "02_additive.md"


@pytest.fixture(autouse=True)
def sentence_is_still_on_the_page(request):
    told = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert re.sub(r"\s+", " ", request.function.__doc__) in told


@pytest.fixture(scope="module")
def translator():
    return pretrained.load("additive")


class Told(nn.Module):
    """Attention with the weights it is told (b k)."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, query, keys, mask=None):
        return einsum(self.weights, keys, "b k, b k d -> b d"), self.weights


@torch.no_grad()
def look(translator, number):
    """Words written, and the weights (t k) of each."""
    model, english, french = translator
    source = as_source(words(number, "en"), english)
    written = greedy_decode(model.step, model.start(source), BOS, EOS, 30, 1)
    _, weights = model.align(source, teacher_inputs(written, BOS))
    return [french.words[place] for place in written[0]], weights[0]


@torch.no_grad()
def forced(translator, number, step, place):
    """The likeliest word at a step of the right translation, with all weight on one place."""
    model, english, french = translator
    source = as_source(words(number, "en"), english)
    state = model.start(source)
    before = [BOS, *french.encode(words(number, "fr"))]
    for word in before[:step]:
        _, state, _ = model.look_and_step(torch.tensor([word]), state)
    puppet = copy.deepcopy(model)
    puppet.attention = Told(F.one_hot(torch.tensor([place]), source.shape[1]).float())
    logits, _, _ = puppet.look_and_step(torch.tensor([before[step]]), state)
    return french.words[logits.argmax()]


def test_linear_score():
    """A score that only adds a term of the query and a term of the key gives weights that do not
    depend on the query."""
    torch.manual_seed(0)
    keys = torch.randn(1, 7, 5).double()
    w = torch.randn(3 + 5).double()
    rows = [
        attend(linear_concat_scores(10 * torch.randn(1, 3).double(), keys, w), keys)[1]
        for _ in range(20)
    ]
    assert (torch.cat(rows) - rows[0]).abs().max() < 1e-12


def test_three_scores_hold_and_the_linear_one_does_not():
    """The cliff does come back: with the linear score the fall is somewhat later. The three scores
    that see the query translate sentences of every length, two of them after far fewer steps."""
    measured = pretrained.curves()
    one_vector, linear, *others = (
        by_bucket(measured["models"][name]["exact_match"], measured["counts"])
        for name in ("fixed-64", "score-linear", "score-dot", "score-general", "additive")
    )
    assert one_vector["12–15"] < linear["12–15"] < 0.8 and linear["20–23"] < 0.2
    assert all(min(shares.values()) > 0.88 for shares in others)


def test_neither_more_time_nor_more_parameters_are_the_reason():
    """In the third row the small model had {glue:text}`longest_steps` steps, as much time as
    attention took. The fourth model had more parameters and more time. Neither
    model comes near the translator with attention."""
    models = pretrained.curves()["models"]
    small, wide, additive = (models[name] for name in ("fixed-64", "fixed-128", "additive"))
    of_small, of_wide = (each["seconds"] / each["steps"] for each in (small, wide))
    longest, both = (models[f"fixed-{name}"] for name in ("64-longest", "128-longer"))
    assert longest["steps"] * of_small >= additive["seconds"]
    assert both["steps"] * of_wide > additive["seconds"]
    assert both["parameters"] > additive["parameters"]
    for each in (longest, both):
        assert max(each["exact_match"][length] for length in (21, 22, 23)) < 0.8


@pytest.mark.slow
def test_what_takes_the_time():
    """most of the difference goes into scoring all words of the source before each word"""

    class NoScores(nn.Module):
        def forward(self, query, keys, mask=None):
            return keys[:, 0], None

    ids = torch.randint(3, 30, (128, 16))
    models = {
        "one vector": EncoderDecoder(36, 34),
        "no scores": AttentionEncoderDecoder(36, 34, attention=NoScores()),
        "attention": AttentionEncoderDecoder(36, 34),
    }
    models["no scores"].forward = partial(word_by_word, models["no scores"])

    def seconds(model):
        begun = time.process_time()
        model(ids, ids).sum().backward()
        return time.process_time() - begun

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    least = {name: min(seconds(model) for _ in range(8)) for name, model in models.items()}
    torch.set_num_threads(threads)
    of_scores = least["attention"] - least["no scores"]
    assert of_scores > 0.5 * (least["attention"] - least["one vector"])


def test_a_shuffle_does_not_tell_whether_the_context_is_used(translator):
    """Another order changes nothing but rounding: each score and each weight moves along with its
    annotation."""
    model, english, french = translator
    source = as_source(words(349_956_962_497, "en"), english)
    given = torch.tensor([[BOS, *french.encode(words(349_956_962_497, "fr"))]])

    @torch.no_grad()
    def logits(change):
        hidden, annotations, mask = model.start(source)
        state, every = (hidden, change(annotations), mask), []
        for word in given.unbind(1):
            scores, state = model.step(word, state)
            every.append(scores)
        return torch.stack(every)

    usual = logits(lambda annotations: annotations)
    turned = logits(lambda annotations: annotations.flip(1))
    assert (turned - usual).abs().max() < 1e-4
    assert (logits(torch.zeros_like) - usual).abs().max() > 1


def test_the_annotation_carries_the_ten(translator):
    """The annotation of *four* has passed over *ninety* and carries it along."""
    model, english, french = translator
    puppet = copy.deepcopy(model)
    puppet.attention = Told(torch.tensor([[0.0, 1.0]]))  # all weight on the second word
    with torch.no_grad():
        for mine, other in ((85, 95), (95, 85), (83, 93)):
            before = torch.tensor([BOS, *french.encode(["quatre", "vingt"])])
            state = model.start(as_source(words(mine, "en"), english))
            for word in before[:2]:
                _, state = model.step(word[None], state)
            _, annotations, mask = model.start(as_source(words(other, "en"), english))
            logits, _ = puppet.step(before[2:], (state[0], annotations, mask))
            assert french.words[logits.argmax()] == words(other, "fr")[2] != words(mine, "fr")[2]


def test_the_query_does_not_know_the_word_before(translator):
    """So the look for a word cannot depend on the word right before it."""
    model, english, french = translator
    source = as_source(words(349_956, "en"), english)
    given = torch.tensor([[BOS, *french.encode(words(349_956, "fr"))]])
    with torch.no_grad():
        _, usual = model.align(source, given)
        for place in range(1, given.shape[1] - 1):
            other = given.clone()
            wrong = "un" if given[0, place] == french.ids["mille"] else "mille"
            other[0, place] = french.ids[wrong]
            _, looks = model.align(source, other)
            assert torch.equal(looks[:, : place + 1], usual[:, : place + 1])
            assert not torch.allclose(looks[:, place + 1], usual[:, place + 1], atol=1e-3)


def test_pads_take_most_of_the_weight(translator):
    """With eight pads, most of the weight is on padding."""
    model, english, _ = translator
    with torch.no_grad():
        padded = F.pad(as_source(words(94, "en"), english), (0, 8), value=PAD)
        state, annotations, mask = model.start(padded)
        _, plain = model.attention(state, annotations)
        _, masked = model.attention(state, annotations, mask)
    assert not annotations[0, 2:].any()
    assert plain[0, 2:].sum() > 0.5
    assert masked[0, 2:].sum() == 0


def test_flat_line():
    """Through one vector (orange, violet) it falls with the length. With a look back before every
    word (teal) it does not."""
    models = pretrained.curves()["models"]
    assert min(models["additive"]["exact_match"].values()) > 0.95
    for name in ("fixed-64", "fixed-128"):
        match = models[name]["exact_match"]
        assert match[5] > 0.95
        assert max(match[length] for length in (21, 22, 23)) < 0.5
    assert models["fixed-128"]["parameters"] > models["additive"]["parameters"]


@pytest.mark.slow
def test_no_round_million_was_seen(monkeypatch):
    """Fewer than one in a million of them is a round million, and the training sentences contain
    none."""
    # Which numbers are drawn does not depend on their names, and writing names takes seconds.
    monkeypatch.setattr(number_words, "words", lambda number, language: ["word"])
    trained_on = number_words.corpus.__wrapped__().train.numbers
    assert len(trained_on) > 15_000
    assert not [number for number in trained_on if number and number % 10**6 == 0]
    # Of the 10^d numbers with at most d digits, 10^(d-6) - 1 are round millions.
    assert all(10 ** (d - 6) - 1 < 10**d / 10**6 for d in range(7, 13))


def test_three_million(translator):
    """After *trois millions* the model does not stop."""
    written, _ = look(translator, 3_000_000)
    assert written[:2] == ["trois", "millions"]
    assert len(written) == 30
    assert "<eos>" not in written


def test_before_three_billion_it_stops(translator):
    """Before *milliards* the model stops."""
    stops = [look(translator, n * 10**9)[0] == [*words(n, "fr"), "<eos>"] for n in range(2, 30)]
    assert sum(stops) > len(stops) / 2


def test_first_figure(translator):
    """The row soixante is filled at seventy, dix and sept at seven, mille at thousand, quatre at
    ninety, vingt is shared by ninety and four, quatorze and the end mark are filled at four."""
    written, weights = look(translator, 77_094)
    source = words(77_094, "en")
    assert written == [*words(77_094, "fr"), "<eos>"]
    tops = [source[place] for place in weights.argmax(-1)]
    assert tops == ["seventy", "seven", "seven", "thousand", "ninety", "ninety", "four", "four"]
    assert weights.amax(-1).min() > 0.6
    assert weights[5, 4:].sum() > 0.95


def test_ninety_four(translator):
    """With a look at *ninety* alone the model writes *quatre-vingt-dix*, which is 90. With a look
    at *four* alone it still writes *quatorze*."""
    assert words(90, "fr") == ["quatre", "vingt", "dix"]
    assert forced(translator, 94, 2, 0) == "dix"
    assert forced(translator, 94, 2, 1) == "quatorze"


def test_german_looks_backward():
    """The ones are said before the tens, so the look runs backward and the lines cross."""
    model, english, german = pretrained.load("german")
    source = as_source(words(349_956, "en"), english)
    given = torch.tensor([[BOS, *german.encode(words(349_956, "de"))]])
    with torch.no_grad():
        logits, weights = model.align(source, given)
    assert german.decode(logits[0].argmax(-1)) == words(349_956, "de")
    tops = dict(zip(words(349_956, "de"), weights[0].argmax(-1).tolist(), strict=False))
    place = words(349_956, "en").index
    assert tops["vierzig"] == place("forty") and tops["fünfzig"] == place("fifty")
    assert tops["sechs"] == place("six") > place("fifty")


def test_both_directions_solve_one_riddle_and_not_the_other(translator):
    """One surprise goes: to write *quatre* of 404, the second model looks at the first *four*. The
    other surprise stays."""
    both_ways, english, french = pretrained.load("bidirectional")
    for number in range(222, 1000, 111):
        _, one = look(translator, number)
        written, both = look((both_ways, english, french), number)
        assert written == [*words(number, "fr"), "<eos>"]
        assert both[0].argmax() == 0 and both[0, 0] > one[0, 0] + 0.2
    written, weights = look((both_ways, english, french), 404)
    assert weights[0, 0] > 0.8 and weights[1, 2:].sum() > 0.5


@pytest.mark.slow
def test_cent_looks_at_what_follows(translator):
    """Nearly all the weight lies *behind* the word *hundred*."""
    wrong = []
    for number in range(211, 1000, 34):
        assert number % 100
        written, weights = look(translator, number)
        step, hundred = written.index("cent"), words(number, "en").index("hundred")
        assert weights[step, hundred + 1 :].sum() > 0.9
        wrong.append(forced(translator, number, step, hundred) == "cents")
    assert sum(wrong) > len(wrong) / 2
    for number in range(200, 1000, 100):
        written, weights = look(translator, number)
        assert weights[written.index("cents"), 1] > 0.9

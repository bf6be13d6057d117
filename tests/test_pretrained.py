"""The book's trained models: what is stored, what it promises, and that it can be made again."""

import json
import signal
import sys
from itertools import islice

import pytest
import torch
import warm
from safetensors.torch import load_file
from torch import nn

from attncourse import pretrained, training
from attncourse.additive import AttentionEncoderDecoder, BidirectionalEncoderDecoder
from attncourse.bottleneck import EncoderDecoder
from attncourse.cross_attention import Transformer
from attncourse.experiments import cache_curves, translator_curves
from attncourse.experiments.translator_curves import main, make, measure
from attncourse.number_words import batches, corpus, words
from attncourse.pretrained import RECIPES, STORED, build, curves, load
from attncourse.training import as_source, by_bucket, count_lengths, exact_match


@pytest.fixture(scope="module")
def stored():
    return curves()


def buckets(measured, name):
    return by_bucket(measured["models"][name]["exact_match"], measured["counts"])


# --- What the book promises ---

SHORT_SENTENCES = ("0–3", "4–7")


def test_one_vector_translates_short_sentences_and_fails_on_long_ones(stored):
    shares = buckets(stored, "fixed-64")
    assert all(shares[name] >= 0.95 for name in SHORT_SENTENCES)
    assert shares["20–23"] <= 0.15
    assert list(shares.values()) == sorted(shares.values(), reverse=True), "longer is never better"


@pytest.mark.parametrize(
    "name", ["fixed-128", "fixed-64-longer", "fixed-128-longer", "fixed-64-longest"]
)
def test_a_wider_vector_or_longer_training_moves_the_cliff_and_does_not_remove_it(stored, name):
    before, after = buckets(stored, "fixed-64"), buckets(stored, name)
    assert all(after[bucket] >= before[bucket] for bucket in list(before)[1:])
    assert after["12–15"] > before["12–15"] + 0.2
    assert after["20–23"] < 0.8 * min(after[bucket] for bucket in SHORT_SENTENCES)


@pytest.mark.parametrize("name", ["additive", "transformer"])
def test_attention_translates_sentences_of_every_length(stored, name):
    shares = buckets(stored, name)
    assert list(shares) == ["0–3", "4–7", "8–11", "12–15", "16–19", "20–23"]
    assert min(shares.values()) >= 0.98


def test_a_linear_score_fails_on_long_sentences_and_the_others_do_not(stored):
    assert buckets(stored, "score-linear")["20–23"] < 0.2
    for name in ("score-dot", "score-general", "bidirectional", "german"):
        assert min(buckets(stored, name).values()) > 0.88


def test_what_is_compared_has_learned_for_the_same_number_of_steps(stored):
    steps = {name: model["steps"] for name, model in stored["models"].items()}
    assert steps == {name: recipe.steps for name, recipe in RECIPES.items()}, "none was cut short"
    others = {name for name in steps if "longe" in name}
    others |= {"score-dot", "score-general", "bidirectional", "german"}
    assert {n for name, n in steps.items() if name not in others} == {pretrained.STEPS}
    assert steps["fixed-64-longer"] == steps["fixed-128-longer"] == 2 * steps["fixed-64"]


# --- What is stored ---


def test_the_store_is_small_and_complete():
    sizes = {path.stem: path.stat().st_size for path in pretrained.DATA.glob("*.safetensors")}
    later = {"looking_inside", "pictures", *cache_curves.STORED.values()}
    assert sizes.keys() == {*STORED, *later}
    mine = sum(sizes[name] for name in STORED) + (pretrained.DATA / "curves.json").stat().st_size
    assert mine <= 2_000_000
    every = pretrained.DATA.rglob("*.safetensors")
    assert sum(path.stat().st_size for path in every) <= 4_000_000


def test_versions_and_seed_are_stored(stored):
    assert stored["versions"].keys() == {"python", "torch"}
    assert all(version[0].isdigit() for version in stored["versions"].values())
    assert isinstance(stored["seed"], int)


@pytest.mark.slow
def test_sentences_of_the_test_are_counted(stored):
    assert stored["counts"] == count_lengths(corpus().test)


@pytest.mark.parametrize("name", RECIPES)
def test_every_model_has_its_measures(stored, name):
    model, counts = stored["models"][name], stored["counts"]
    assert model["exact_match"].keys() == {length for length, n in counts.items() if n}
    for length, share in model["exact_match"].items():
        assert 0 <= share <= 1
        right = share * counts[length]
        assert right == pytest.approx(round(right), abs=5e-5 * counts[length] + 1e-9)
    assert len(model["losses"]) == model["steps"] // 20
    assert model["losses"][0] > 3 and model["losses"][-1] < 0.5 and model["seconds"] > 0
    target_words = (stored | model)["target_words"]
    built = build(name, len(stored["source_words"]), len(target_words))
    assert model["parameters"] == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "fixed-64": EncoderDecoder,
        "additive": AttentionEncoderDecoder,
        "transformer": Transformer,
        "bidirectional": BidirectionalEncoderDecoder,
        "german": BidirectionalEncoderDecoder,
    }.items(),
)
def test_a_stored_model_is_ready_for_use(stored, name, kind):
    model, english, foreign = load(name)
    assert isinstance(model, kind) and not model.training
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert list(english.words) == stored["source_words"]
    assert list(foreign.words) == (stored | stored["models"][name])["target_words"]
    target = words(1994, RECIPES[name].target)
    inputs = as_source(words(1994, "en"), english), as_source(["<bos>", *target], foreign)
    written = model(*inputs).argmax(-1)[0]
    right = [*foreign.encode(target), foreign.ids["<eos>"]]
    assert (written == torch.tensor(right)).float().mean() > 0.7
    other = load(name)[0]
    nn.init.zeros_(next(other.parameters()))
    assert next(model.parameters()).abs().max() > 0, "each call gives a model of one's own"


# Both ends, and lengths where the first model sometimes errs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lengths"),
    {
        "fixed-64": (1, 2, 9, 15, 23),
        "additive": (2, 4, 22),
        "transformer": (2, 4, 21),
        "bidirectional": (4, 22),
        "german": (4, 22),
    }.items(),
)
def test_the_stored_weights_translate_as_well_as_the_stored_curve_says(stored, name, lengths):
    model, *_ = load(name)
    test = corpus(target=RECIPES[name].target).test
    chosen = test.pick(torch.isin(test.lengths, torch.tensor(lengths)))
    shares = exact_match(model, chosen)
    assert shares.keys() == set(lengths)
    for length, share in shares.items():
        # On another machine a sum may round differently and turn one sentence.
        one = 1 / stored["counts"][length]
        assert share == pytest.approx(stored["models"][name]["exact_match"][length], abs=1.01 * one)


@pytest.mark.parametrize("name", ["fixed-128", "score-dot", "gru"])
def test_weights_that_are_not_stored_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"of fixed-64, additive, .*, german; not of '{name}'"):
        load(name)


def test_a_model_that_does_not_exist_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"no model 'gru'; there are fixed-64, fixed-128, .*german"
    ):
        build("gru", 9, 9)


def test_two_models_of_one_recipe_share_nothing():
    with torch.random.fork_rng(devices=[]):
        one, other = (build("score-general", 9, 9) for _ in range(2))
    assert one.attention is not other.attention
    assert not torch.equal(one.attention.weights["W"], other.attention.weights["W"])


# --- Making them again ---


@pytest.fixture
def tiny(monkeypatch):
    """A small corpus and two short recipes in the place of the book's."""
    task = corpus(size=400, digits=6)
    monkeypatch.setattr(translator_curves, "corpus", lambda **_: task)
    recipe = pretrained.Recipe(lambda *sizes: EncoderDecoder(*sizes, 8, 8), steps=50)
    for name in ("fixed-64", "fixed-128"):
        monkeypatch.setitem(RECIPES, name, recipe)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield task
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_what_is_stored_is_what_was_measured(tiny, tmp_path):
    result = measure("fixed-64", tmp_path, seed=3)
    assert result["steps"] == 50 and len(result["losses"]) == 3
    assert result["losses"][0] == pytest.approx(3.3, abs=0.3) and result["seconds"] > 0
    assert result["losses"][2] < result["losses"][1] < result["losses"][0]
    weights = load_file(tmp_path / "fixed-64.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    model = build("fixed-64", len(tiny.source_words), len(tiny.target_words))
    model.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    shares = exact_match(model, tiny.test)
    assert result["exact_match"] == {length: round(share, 4) for length, share in shares.items()}


@pytest.mark.slow
def test_the_seed_decides_and_only_some_weights_are_stored(tiny, tmp_path):
    results = [measure("fixed-128", tmp_path, seed) for seed in (0, 0, 1)]
    losses = [result["losses"] for result in results]
    assert losses[0] == losses[1] != losses[2]
    assert list(tmp_path.iterdir()) == []


def pretend(name, folder, seed):
    """What a worker does, without the training; it also says whether Ctrl-C would reach it."""
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {"exact_match": {12: 0.5, 4: 1.0}, "seed": seed, "ignores": ignores}


@pytest.mark.slow
def test_make_writes_what_curves_reads(tiny, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(translator_curves, "measure", pretend)
    folder = tmp_path / "new" / "folder"
    make(["fixed-128", "fixed-64"], folder, seed=4, jobs=1)
    made = curves(folder)
    assert list(made["models"]) == ["fixed-64", "fixed-128"], "in the order of the recipes"
    for model in made["models"].values():
        # `train` takes Ctrl-C for "stop here", and half a training would be stored as a whole one.
        assert model == {"exact_match": {12: 0.5, 4: 1.0}, "seed": 4, "ignores": True}
    assert made["seed"] == 4 and made["versions"].keys() == {"python", "torch"}
    assert made["counts"] == count_lengths(tiny.test)
    assert tuple(made["source_words"]) == tiny.source_words.words
    assert tuple(made["target_words"]) == tiny.target_words.words
    assert "2/2" in capfd.readouterr().err


def test_making_one_model_keeps_the_others(tiny, tmp_path, monkeypatch):
    class Here:
        """A pool of processes that has only this one."""

        def __init__(self, *_):
            self.imap_unordered = map

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(
        training.multiprocessing, "get_context", lambda _: type("", (), {"Pool": Here})
    )
    monkeypatch.setattr(
        translator_curves, "measure", lambda name, **_: {"exact_match": {1: len(name) / 9}}
    )
    make(["additive"], tmp_path)
    make(["fixed-64", "score-dot"], tmp_path)
    monkeypatch.setattr(translator_curves, "measure", lambda name, **_: {"exact_match": {1: 1.0}})
    make(["score-dot"], tmp_path)
    made = curves(tmp_path)["models"]
    assert {name: model["exact_match"][1] for name, model in made.items()} == {
        "fixed-64": 8 / 9,
        "additive": 8 / 9,
        "score-dot": 1.0,
    }
    assert list(made) == ["fixed-64", "additive", "score-dot"]
    text = (tmp_path / "curves.json").read_text(encoding="utf-8")
    assert text.endswith("}\n") and json.loads(text)["models"].keys() == made.keys()


# --- The command line ---


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["translator_curves", *map(str, arguments)])
    main()


@pytest.mark.slow
def test_help_names_every_model_and_where_they_are_stored():
    _, out, _ = warm.run("attncourse.experiments.translator_curves", "--help")
    said = "".join(out.split())  # lines break anywhere
    assert "python-mattncourse.experiments.translator_curves" in said
    assert all(name in said for name in RECIPES)
    assert "--seed" in said and "--jobs" in said and "--folder" in said


def test_the_command_line_makes_the_models_it_is_told(monkeypatch, capsys, tmp_path):
    calls = []
    monkeypatch.setattr(translator_curves, "make", lambda **given: calls.append(given))
    run(monkeypatch)
    run(monkeypatch, "additive", "score-dot", "--folder", tmp_path, "--seed", 7, "--jobs", 1)
    assert calls == [
        {"names": list(RECIPES), "folder": pretrained.DATA, "seed": 0, "jobs": 2},
        {"names": ["additive", "score-dot"], "folder": tmp_path, "seed": 7, "jobs": 1},
    ]
    assert f"stored in {tmp_path} after 0 s" in capsys.readouterr().out


def test_an_unknown_model_is_refused_before_anything_is_trained(monkeypatch, capsys):
    monkeypatch.setattr(translator_curves, "make", None)
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "additive", "gru", "elman")
    assert "no elman, gru; choose from fixed-64" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(translator_curves, "make", interrupted)
    with pytest.raises(SystemExit, match="stopped; what was finished is stored"):
        run(monkeypatch)


# From the first number to the last: tests/bench/sweeps.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_a_stored_model_begins_as_it_did_when_it_was_trained(name, stored, tmp_path, monkeypatch):
    """The same data, weights, batches and rates of learning: the same losses."""
    first_steps = lambda *arguments: islice(batches(*arguments), 60)  # noqa: E731
    monkeypatch.setattr("attncourse.training.batches", first_steps)
    monkeypatch.setattr(translator_curves, "exact_match", lambda *_: {})
    with torch.random.fork_rng(devices=[]):
        losses = measure(name, tmp_path, stored["seed"])["losses"]
    # Another seed is 0.01 away; another processor may round differently.
    assert losses == pytest.approx(stored["models"][name]["losses"][:3], abs=4e-3)

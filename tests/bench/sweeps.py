"""What `make test` proves on a few seeds or steps, proved on many; minutes.

`python -m pytest tests/bench/sweeps.py` (a part of `make bench`)
"""

import itertools
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent.parent))

import test_audit
import test_book
import test_grading
import test_judge
import test_live
import test_virtual_gpu
from browser import needs_browser
from corpus.odd import odd_answers
from test_book import soups  # noqa: F401  a fixture
from test_live import show  # noqa: F401  a fixture
from test_pretrained import buckets

from attncourse import pretrained
from attncourse.checks import compositions, engine, registry
from attncourse.experiments import positions_curves
from attncourse.experiments.translator_curves import make
from attncourse.number_words import corpus
from attncourse.pretrained import RECIPES, STORED, curves, load
from attncourse.training import by_bucket, exact_match


@pytest.fixture(scope="module")
def stored():
    return curves()


def test_the_cheapest_stored_model_can_be_made_again(stored, tmp_path):
    # About 45 s on one core. A processor that rounds differently trains to other weights.
    make(["fixed-64"], tmp_path, seed=stored["seed"], jobs=1)
    made = curves(tmp_path)
    assert made["counts"] == stored["counts"]
    for bucket, share in buckets(stored, "fixed-64").items():
        assert buckets(made, "fixed-64")[bucket] == pytest.approx(share, abs=0.1), bucket
    old, new = (
        load_file(folder / "fixed-64.safetensors") for folder in (pretrained.DATA, tmp_path)
    )
    assert {key: t.shape for key, t in old.items()} == {key: t.shape for key, t in new.items()}


def test_a_model_of_chapter_8_can_be_made_again():
    stored = positions_curves.load()["runs"]["alibi"]
    again = positions_curves.measure("alibi", 0)
    assert again["parameters"] == stored["parameters"][0]
    assert again["loss"] == pytest.approx(stored["loss"][0], rel=0.3)  # another machine rounds


def test_all_sentences_of_the_test_are_translated_as_the_stored_curves_say(stored):
    for name in STORED:
        test = corpus(target=RECIPES[name].target).test
        model, *_ = load(name)
        shares = by_bucket(exact_match(model, test), stored["counts"])
        for bucket, share in buckets(stored, name).items():
            assert shares[bucket] == pytest.approx(share, abs=0.003), (name, bucket)


@pytest.mark.parametrize("task", registry.all_tasks())
def test_every_form_of_a_misconception_is_named(task):
    for each in compositions.singles(registry.find(task)):
        test_judge.assert_named(task, each.faults[0], each.make())


@pytest.mark.parametrize("task", test_judge.TASKS)
def test_every_misconception_is_rejected_on_another_seed(task):
    about = registry.find(task)
    for fault in about.faults.values():
        results = engine.judge(about, test_judge.answer_of(about, fault.forms[0]), seed=4)
        assert not all(result.passed for result in results), fault.id


@pytest.mark.parametrize("task", test_judge.TASKS)
def test_every_wrapped_answer_gets_the_same_verdict(task):
    test_judge.test_a_wrapped_answer_gets_the_same_verdict(task)


@pytest.mark.parametrize("task", test_judge.TASKS)
def test_no_report_on_many_odd_answers_says_what_cannot_be_true(task):
    for answer in itertools.islice(odd_answers(registry.find(task)), 6):
        test_judge.assert_nothing_false(engine.run(task, answer))


@pytest.mark.parametrize("chapter", sorted(registry.chapters()))
def test_every_misconception_is_named_through_the_wall(chapter, zygote):
    for task in registry.of_chapter(chapter):
        test_grading.assert_named(test_grading.with_sources(task), zygote)


@needs_browser
def test_every_code_that_is_searched_leads_to_its_entry(soups, tab):  # noqa: F811
    tab.open(test_book.HTML / "search.html")
    tab.run("await bookSearch.load()")
    test_book.assert_codes_lead_to_their_entries(soups, tab, step=1)


@needs_browser
@pytest.mark.parametrize("name", test_live.live_figures.KINDS)
def test_all_logits_in_the_page_are_the_packages(show, name):  # noqa: F811
    test_live.assert_logits_are_the_packages(show, name, test_live.THOUSAND)


@pytest.mark.parametrize("kind", test_audit.MACHINES)
def test_two_hundred_honest_records_raise_no_alarm(kind):
    test_audit.test_honest_records_raise_no_alarm(kind, range(200))


@pytest.mark.parametrize("seed", range(60))
def test_timers_on_many_virtual_gpus(seed):
    test_virtual_gpu.test_every_good_timer_passes(seed)
    test_virtual_gpu.test_every_faulty_timer_fails_with_its_signature_and_its_name(seed)

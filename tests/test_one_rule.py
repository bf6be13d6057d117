"""One rule in all labs: a CPU's time is its shortest sample, a GPU's the median."""

import statistics

import pytest
from corpus.correct import CORRECT

from attncourse.checks import run
from attncourse.lab import timing

CONCLUSIONS = ("conclude", "who_computed_it", "verdict", "conclude_decode", "best_tile")


def with_samples(answer, middle):
    """The answer, of a record in which every point has one sample: `middle` of those it had."""

    def changed(record):
        points = [
            point | {"seconds": [middle(point)] * len(point["seconds"])}
            if point["seconds"]
            else point
            for point in record["points"]
        ]
        return answer(record | {"points": points})

    return changed


@pytest.mark.parametrize("task", CONCLUSIONS)
def test_the_rule_gets_all_points_in_every_lab(task):
    assert run(task, with_samples(CORRECT[task][0], timing.headline)).passed


@pytest.mark.slow
@pytest.mark.parametrize("task", CONCLUSIONS)
def test_the_shortest_sample_of_a_gpu_is_no_time(task):
    report = run(task, with_samples(CORRECT[task][0], lambda point: min(point["seconds"])))
    assert report.earned < report.points
    assert report.diagnosis.ids[0] in ("C-FASTEST-SAMPLE", "L3-FASTEST", "L6-BEST-ALWAYS")


def test_the_median_of_a_busy_cpu_is_not_its_time():
    def median(point):
        return statistics.median(point["seconds"])

    report = run("best_tile", with_samples(CORRECT["best_tile"][0], median))
    assert report.earned < report.points and report.diagnosis.ids == ["L6-MEDIAN-ALWAYS"]

import functools
import operator

import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def with_a_list(rollout):
    """The answer as a function of one tensor (l b h n n): it gets a list, a layer each."""

    def function(*, weights):
        return rollout(list(weights.unbind(0)))

    return function


def list_kept(rollout):
    """Whether the list holds the same layers, in the same order, when the answer returns."""

    def function(*, weights):
        given = list(weights.unbind(0))
        before = list(given)
        if rollout(given) is None:
            return None
        return len(given) == len(before) and all(map(operator.is_, given, before))

    return function


def layers(rng, count=2, b=2, h=3, n=4, dtype=torch.float32):
    return {"weights": normal(rng, count, b, h, n, n, dtype=dtype).mul(1.5).softmax(-1)}


def probes(rng):
    return {
        "two layers": layers(rng),
        "three layers": layers(rng, 3, h=2),
        "four layers": layers(rng, 4, n=3),
        "one layer": layers(rng, 1, n=5),
        "one head": layers(rng, 2, h=1),
        "one text": layers(rng, 3, b=1, n=5),
        "all equal": layers(rng, 3, 3, 3, 3),
        "one word": layers(rng, 2, n=1),
        "double": layers(rng, 2, dtype=torch.float64),
    }


def small(rng):
    for count, b, h, n in (
        (1, 1, 1, 2),
        (2, 1, 1, 2),
        (1, 1, 2, 2),
        (2, 1, 2, 2),
        (3, 1, 1, 2),
        (2, 2, 1, 2),
        (2, 1, 1, 3),
    ):
        yield layers(rng, count, b, h, n)


def maps(rng):
    return [("one text of four words, two layers", layers(rng, 2, b=1, h=2), ("weights",))]


task = Task(
    reference.rollout,
    number=4,
    returns=("arrived",),
    difficulty=2,
    minutes=15,
    section="rollout",
    probes=probes,
    adapt=with_a_list,
    differentiated=("two layers",),
    small=small,
)


@task.check(1)
def a_table_for_every_text(answer, rng):
    for count, b, h, n in ((2, 2, 3, 4), (1, 3, 2, 5), (3, 1, 1, 2)):
        inputs = layers(rng, count, b, h, n)
        got = answer(inputs)
        if got.shape != (b, n, n):
            raise Failure(
                f"{b} texts of {n} words give (b n n) = ({b} {n} {n}); yours {shape_of(got)}.",
                inputs,
            )


@task.check(1)
def every_row_sums_to_one(answer, rng):
    for count in (1, 2, 4):
        inputs = layers(rng, count)
        total = answer(inputs).sum(-1)
        if not torch.allclose(total, torch.ones_like(total), atol=1e-4):
            worst = total.flatten()[(total - 1).abs().nan_to_num(torch.inf).argmax()]
            came, _ = answer.apart(worst, 1.0)
            raise Failure(
                f"Each row shares out 1, however many layers there are. With {count}, a row of "
                f"yours sums to {came}.",
                inputs,
            )


@task.check(1)
def one_layer_is_half_its_mean_head_and_half_the_word_itself(answer, rng):
    answer.matches(layers(rng, 1))
    answer.matches(layers(rng, 1, h=1, n=5))


@task.check(3)
def it_is_right_for_several_layers(answer, rng):
    for count, h in ((2, 1), (2, 3), (3, 2), (4, 2)):
        answer.matches(layers(rng, count, h=h))
    answer.matches(layers(rng, 3, 3, 3, 3))


@task.check(1)
def it_is_right_for_any_number_of_texts(answer, rng):
    answer.matches(layers(rng, 2, b=4, n=3))
    answer.matches(layers(rng, 2, b=1, n=6))


@task.check(1, "precision and gradients are right, and nothing else changes")
def precision_and_gradients_are_right_and_nothing_else_changes(answer, rng):
    answer.matches(layers(rng, 3, dtype=torch.float64))
    seen = answer.observe(layers(rng), gradient=True)  # its value depends on what is normalized
    if seen.gradients.get("weights") is None:
        raise Failure("No gradient reaches the weights.", layers(rng))
    moves_nothing(answer, layers(rng))
    inputs = layers(rng, 3)
    if not answer.returned(inputs, adapt=list_kept):
        raise Failure(
            "After your answer, the list that it was given holds other layers, or the same ones in "
            "another order. The caller still needs it: work on a list of your own.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Rollout:
    def read(weights):
        return weights

    def heads(layer):
        return layer.mean(1)

    def kept(mean):
        return (mean + torch.eye(mean.shape[-1], dtype=mean.dtype)) / 2

    def begin(kept):
        return kept

    def chosen(maps):
        return maps

    def then(result, kept):
        return kept @ result

    def all(maps, begin, then):
        return functools.reduce(then, maps[1:], begin(maps[0]))

    def result(arrived):
        return arrived

    def __call__(self, weights):
        maps = [self.kept(self.heads(layer)) for layer in self.read(weights)]
        return self.result(self.all(self.chosen(maps), self.begin, self.then))


task.fault("I-NO-RESIDUAL", kept=as_is)
task.fault("I-NOT-HALVED", kept=lambda mean: mean + torch.eye(mean.shape[-1], dtype=mean.dtype))


def shared_out(table):
    """Rows that sum to 1."""
    return table / table.sum(-1, keepdim=True)


task.fault(
    "I-HALF-OF-ONE",
    kept=(
        lambda mean: mean / 2 + torch.eye(mean.shape[-1], dtype=mean.dtype),
        lambda mean: mean + torch.eye(mean.shape[-1], dtype=mean.dtype) / 2,
    ),
)
task.fault("I-EYE-FLOAT32", begin=lambda kept: kept @ torch.eye(kept.shape[-1]))
task.fault(
    "I-COLUMNS-SHARED-OUT",
    kept=(
        lambda mean: shared_out((mean + torch.eye(mean.shape[-1], dtype=mean.dtype)).mT).mT,
        lambda mean: mean + torch.eye(mean.shape[-1], dtype=mean.dtype),
    ),
    result=(..., lambda arrived: shared_out(arrived.mT).mT),
)
task.fault("I-PLUS-ONE", kept=(lambda mean: (mean + 1) / 2, lambda mean: shared_out(mean + 1)))


@task.fault("I-RESIDUAL-ONCE")
class ResidualOnce(Rollout):
    def __call__(self, weights):
        maps = [self.heads(layer) for layer in self.read(weights)]
        return self.result(self.kept(self.all(self.chosen(maps), self.begin, self.then)))


task.fault(
    "I-RESIDUAL-FIRST",
    kept=as_is,
    begin=(lambda kept: Rollout.kept(kept), ...),
    chosen=(
        ...,
        lambda maps: (
            [shared_out(maps[0] + torch.eye(maps[0].shape[-1]).to(maps[0]))]
            + [shared_out(each) for each in maps[1:]]
        ),
    ),
)
task.fault(
    "I-IDENTITY-EACH-TIME",
    then=lambda result, kept: kept @ result + (torch.eye(kept.shape[-1]).to(kept) - result) / 2,
)
task.fault("I-ORDER", then=lambda result, kept: result @ kept)
task.fault("I-LAYERS-AVERAGED", all=lambda maps, begin, then: torch.stack(maps).mean(0))
task.fault("I-LAYERS-SUMMED", all=lambda maps, begin, then: sum(maps))
task.fault("I-ELEMENTWISE", then=lambda result, kept: kept * result)
task.fault("I-LAST-LAYER-ONLY", all=lambda maps, begin, then: maps[-1])
task.fault("I-FIRST-LAYER-ONLY", all=lambda maps, begin, then: maps[0])
task.fault(
    "I-FIRST-LAYER-LOST",
    chosen=lambda maps: maps[1:] or [torch.eye(maps[0].shape[-1]).to(maps[0]).expand_as(maps[0])],
)
task.fault(
    "I-LAST-LAYER-LOST",
    chosen=(
        lambda maps: maps[:-1] or [torch.eye(maps[0].shape[-1]).to(maps[0]).expand_as(maps[0])],
        lambda maps: maps[:-1] or maps,
    ),
)
task.fault(
    "I-HEADS-SUMMED",
    heads=lambda layer: layer.sum(1),
    kept=(
        ...,
        lambda all: shared_out(all + torch.eye(all.shape[-1], dtype=all.dtype)),
        lambda all: all + torch.eye(all.shape[-1], dtype=all.dtype),
    ),
    result=(..., ..., shared_out),
)


task.fault(
    "I-HEADS-MAX",
    heads=(
        lambda layer: layer.amax(1),
        lambda layer: shared_out(layer.amax(1)),
        lambda layer: layer.amax(1),
        lambda layer: layer.amax(1),
    ),
    kept=(
        ...,
        ...,
        lambda most: shared_out(most + torch.eye(most.shape[-1], dtype=most.dtype)),
        lambda most: most + torch.eye(most.shape[-1], dtype=most.dtype),
    ),
    result=(..., ..., ..., shared_out),
)
task.fault("I-FIRST-HEAD", heads=lambda layer: layer[:, 0])
task.fault("I-TURNED", result=lambda arrived: arrived.mT)
task.fault("I-EACH-HEAD-ALONE", heads=as_is, result=lambda arrived: arrived.mean(1))
task.fault(
    "I-FIRST-TEXT",
    result=(
        lambda arrived: arrived[:1].expand_as(arrived),
        lambda arrived: arrived[:1],
        lambda arrived: arrived[0],
    ),
)
task.fault("I-NO-BATCH-AXIS", heads=lambda layer: layer.mean(0))
task.fault(
    "I-TEXTS-AVERAGED",
    heads=(
        lambda layer: layer.mean((0, 1)).expand(len(layer), -1, -1),
        lambda layer: layer.mean((0, 1)),
    ),
)
task.fault(
    "I-IDENTITY-AT-THE-END",
    begin=(lambda kept: kept @ Rollout.kept(torch.zeros_like(kept)) * 2 @ kept, ...),
    all=(..., lambda maps, begin, then: functools.reduce(then, maps, begin(maps[0]))),
)
task.fault("C-FLOAT32", result=lambda arrived: arrived.float())
task.fault("C-DETACHED", read=lambda weights: [layer.detach() for layer in weights])

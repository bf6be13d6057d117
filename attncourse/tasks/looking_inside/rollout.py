"""Weights of all layers multiplied: what is promised, the reference in steps, what goes wrong."""

import functools

import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts


def with_a_list(rollout):
    """The answer as a function of one tensor (l b h n n): it gets a list, a layer each."""

    def function(*, weights):
        return rollout(list(weights.unbind(0)))

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
    hints=(
        "One layer first. The heads are taken as one: their mean. And a word keeps itself: the "
        "residual connection hands x on beside what attention adds. Half and half.",
        "Two layers: what arrives at a word in the end is what arrived at the words it reads. "
        "That is a product of matrices. Which of the two stands on the left?",
        "kept = (layer.mean(1) + torch.eye(n)) / 2 for each layer; result = kept for the first; "
        "then result = kept @ result, from the second layer to the last.",
    ),
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
            raise Failure(
                f"Each row shares out 1, however many layers there are. With {count}, a row of "
                f"yours sums to {total.flatten()[0].item():.3g}.",
                inputs,
            )


@task.check(1)
def one_layer_is_half_its_mean_head_and_half_the_word_itself(answer, rng):
    answer.matches(layers(rng, 1))
    answer.matches(layers(rng, 1, h=1, n=5))


@task.check(3)
def later_layers_read_what_earlier_ones_left(answer, rng):
    for count, h in ((2, 1), (2, 3), (3, 2), (4, 2)):
        answer.matches(layers(rng, count, h=h))
    answer.matches(layers(rng, 3, 3, 3, 3))


@task.check(1)
def every_text_has_its_own(answer, rng):
    answer.matches(layers(rng, 2, b=4, n=3))
    answer.matches(layers(rng, 2, b=1, n=6))


@task.check(1)
def precision_gradients_and_everything_else_stay(answer, rng):
    answer.matches(layers(rng, 3, dtype=torch.float64))
    seen = answer.observe(layers(rng), gradient=True)  # its value depends on what is normalized
    if seen.gradients.get("weights") is None:
        raise Failure("No gradient reaches the weights.", layers(rng))
    moves_nothing(answer, layers(rng))


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


task.fault(
    "I-NO-RESIDUAL",
    "The maps of the layers are multiplied.",
    "A layer adds to x, and x goes on: each word also keeps itself. Without that half, a few "
    "layers wash everything out.",
    kept=as_is,
)
task.fault(
    "I-NOT-HALVED",
    "The residual connection adds the identity.",
    "Then rows sum to 2, and after L layers to 2 to the power L. Shares have to sum to 1.",
    kept=lambda mean: mean + torch.eye(mean.shape[-1], dtype=mean.dtype),
)


def shared_out(table):
    """Rows that sum to 1."""
    return table / table.sum(-1, keepdim=True)


task.fault(
    "I-HALF-OF-ONE",
    "`mean / 2 + I` is half of both.",
    "The half is taken of one of the two only, and rows sum to 1.5. It is of the sum: put "
    "parentheses around it.",
    kept=(
        lambda mean: mean / 2 + torch.eye(mean.shape[-1], dtype=mean.dtype),
        lambda mean: mean + torch.eye(mean.shape[-1], dtype=mean.dtype) / 2,
    ),
)
task.fault(
    "I-EYE-FLOAT32",
    "`torch.eye(n)` fits every table.",
    "It is float32, and a product of it with float64 stops with an error. Say "
    "`dtype=weights[0].dtype`, or begin with the first layer.",
    begin=lambda kept: kept @ torch.eye(kept.shape[-1]),
)
task.fault(
    "I-COLUMNS-SHARED-OUT",
    "Dividing by the sum makes rows sum to 1.",
    "By the sum over the *last* axis. In (b n n) axis 1 are the rows: summed over them, columns "
    "share out 1, and rows do not.",
    kept=lambda mean: shared_out((mean + torch.eye(mean.shape[-1], dtype=mean.dtype)).mT).mT,
)
task.fault(
    "I-PLUS-ONE",
    "The identity is added by `+ 1`.",
    "That adds 1 to *every* entry, as if each word kept all the others, too. The identity has "
    "its ones on the diagonal: `torch.eye(n)`.",
    kept=lambda mean: (mean + 1) / 2,
)
task.fault(
    "I-RESIDUAL-ONCE",
    "The identity is added once, to the product of all maps.",
    "Each layer has a residual connection of its own; a word may be kept by one and read by the "
    "next.",
    kept=as_is,
    result=lambda arrived: Rollout.kept(arrived),
)
task.fault(
    "I-ORDER",
    "The first layer stands on the left, since it comes first.",
    "Rows are who reads. The last layer reads what the earlier ones left, so it stands on the "
    "left of their product.",
    then=lambda result, kept: result @ kept,
)
task.fault(
    "I-LAYERS-AVERAGED",
    "The layers' maps are averaged.",
    "They happen one after the other: the second reads vectors that are mixtures already. That is "
    "a product, not a mean.",
    all=lambda maps, begin, then: torch.stack(maps).mean(0),
)
task.fault(
    "I-LAYERS-SUMMED",
    "What every layer brings is added.",
    "They happen one after the other, so their maps are multiplied; in a sum, rows no longer share "
    "out 1.",
    all=lambda maps, begin, then: sum(maps),
)
task.fault(
    "I-ELEMENTWISE",
    "`*` multiplies two matrices.",
    "It multiplies entry by entry. A path goes through any word between: sum over it, with `@`.",
    then=lambda result, kept: kept * result,
)
task.fault(
    "I-LAST-LAYER-ONLY",
    "The last layer's weights say where the output comes from.",
    "They say which *positions* it reads. What stands there is no longer one word: that is what "
    "rollout is about.",
    all=lambda maps, begin, then: maps[-1],
)
task.fault(
    "I-FIRST-LAYER-ONLY",
    "Only the first layer reads words.",
    "And the later ones read what it left; their maps decide how much of it arrives.",
    all=lambda maps, begin, then: maps[0],
)
task.fault(
    "I-FIRST-LAYER-LOST",
    "The product begins with the identity, and the loop with the second layer.",
    "One of the two: if you begin with the identity, the first layer has to be multiplied, too.",
    chosen=lambda maps: maps[1:] or [torch.eye(maps[0].shape[-1]).to(maps[0]).expand_as(maps[0])],
)
task.fault(
    "I-LAST-LAYER-LOST",
    "The last layer's result is the output, so it is no longer part of the way.",
    "It reads like all others, and what it reads arrives at the output.",
    chosen=lambda maps: maps[:-1] or [torch.eye(maps[0].shape[-1]).to(maps[0]).expand_as(maps[0])],
)
task.fault(
    "I-HEADS-SUMMED",
    "The heads' weights are added.",
    "Then a row of h heads sums to h. Their mean is what one head of that layer would be.",
    heads=lambda layer: layer.sum(1),
)


task.fault(
    "I-HEADS-MAX",
    "The strongest head decides.",
    "Some published variants take the largest; rows then no longer sum to 1, unless each is "
    "divided by its sum. Here the mean is asked for.",
    heads=(
        lambda layer: layer.amax(1),
        lambda layer: shared_out(layer.amax(1)),
        lambda layer: layer.amax(1),
    ),
    kept=(..., ..., lambda most: shared_out(most + torch.eye(most.shape[-1], dtype=most.dtype))),
)
task.fault(
    "I-FIRST-HEAD",
    "One head shows it.",
    "Heads differ. You use the first and forget the rest.",
    heads=lambda layer: layer[:, 0],
)
task.fault(
    "I-TURNED",
    "Columns are who reads.",
    "Rows are: row q says where q looks. Your table is turned around, and its rows do not sum to "
    "1.",
    result=lambda arrived: arrived.mT,
)
task.fault(
    "I-EACH-HEAD-ALONE",
    "Every head follows its own path through the layers, and the paths are averaged.",
    "Between two layers the heads are mixed by `out_proj`: head 1 of the second layer reads what "
    "all heads of the first have left.",
    heads=as_is,
    result=lambda arrived: arrived.mean(1),
)
task.fault(
    "I-FIRST-TEXT",
    "One text shows it.",
    "Every text has its own weights; yours gives all of them the map of the first.",
    result=lambda arrived: arrived[:1].expand_as(arrived),
)
task.fault(
    "I-NO-BATCH-AXIS",
    "Axis 0 holds the heads.",
    "Axis 0 holds the texts, axis 1 the heads. You average over texts.",
    heads=lambda layer: layer.mean(0),
)
task.fault(
    "I-IDENTITY-AT-THE-END",
    "A share of the residual comes last, as in the picture of a layer.",
    "You begin with the half of a word that keeps itself, and count one layer more than there is.",
    begin=lambda kept: kept @ Rollout.kept(torch.zeros_like(kept)) * 2 @ kept,
)
task.fault(thoughts.FLOAT32, result=lambda arrived: arrived.float())
task.fault(thoughts.DETACHED, read=lambda weights: [layer.detach() for layer in weights])

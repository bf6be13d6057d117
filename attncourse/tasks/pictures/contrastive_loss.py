"""Pictures find their texts, and texts their pictures: task 5 of chapter 13."""

import math

import torch
import torch.nn.functional as F

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, compare, describe, moves_nothing
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def pairs(rng, b=4, m=6, temperature=0.5, like=0.0, dtype=torch.float32, learned=False):
    """Vectors of pictures and texts; the more `like`, the more a text resembles its picture."""
    images = normal(rng, b, m, dtype=dtype)
    texts = normal(rng, b, m, dtype=dtype) + like * images
    if learned:
        temperature = torch.tensor(temperature, dtype=dtype)
    return {"images": images, "texts": texts, "temperature": temperature}


def stretched(rng, b=4, m=6, **options):
    """The same directions, of very different lengths."""
    inputs = pairs(rng, b, m, **options)
    lengths = torch.tensor([0.1, 3.0, 40.0, 1.0, 0.5, 9.0])[:b, None]
    return inputs | {
        "images": lengths * inputs["images"],
        "texts": lengths.flip(0) * inputs["texts"],
    }


def probes(rng):
    return {
        "plain": pairs(rng),
        "alike": pairs(rng, like=2.0),
        "as many pairs as features": pairs(rng, b=5, m=5),
        "two pairs": pairs(rng, b=2, m=3),
        "one pair": pairs(rng, b=1, m=4),
        "stretched": stretched(rng),
        "stretched, alike": stretched(rng, like=1.0, temperature=0.2),
        "cold": pairs(rng, temperature=0.05, like=0.5),
        "very cold": pairs(rng, temperature=0.005),
        "warm": pairs(rng, temperature=1.0),
        "hot": pairs(rng, temperature=4.0),
        "many": pairs(rng, b=12, m=4),
        "learned": pairs(rng, b=3, temperature=0.3, learned=True),
        "double": stretched(rng, dtype=torch.float64),
    }


def small(rng):
    for b, m, temperature in (
        *((1, 1, 1.0), (2, 1, 1.0), (2, 2, 1.0), (2, 2, 0.5), (2, 2, 2.0), (3, 2, 1.0)),
        *((3, 3, 0.5), (2, 2, 0.01), (4, 3, 0.2)),
    ):
        for _ in range(3):
            inputs = pairs(rng, b, m, temperature)
            whole = {name: integers(rng, b, m) for name in ("images", "texts")}
            for vectors in whole.values():
                vectors[:, 0] += 3 * (vectors == 0).all(1)  # a vector of zeros has no direction
            yield inputs | whole
    yield pairs(rng, 2, 2, 1.0, learned=True)


task = Task(
    reference.contrastive_loss,
    number=5,
    returns=("loss",),
    difficulty=3,
    minutes=25,
    section="contrastive",
    hints=(
        "A batch of b pictures and b texts makes a table of b × b scores. Where in it are the "
        "pairs, and what would you like each row to say? And each column?",
        "A row is a classification: which of the b texts is mine? The right class of row i is i. "
        "The same for the columns. Scores are cosines, divided by the temperature.",
        "Divide each vector by its length; scores = images @ texts.T / temperature; own = "
        "arange(b); the mean of cross_entropy(scores, own) and cross_entropy(scores.T, own).",
    ),
    probes=probes,
    differentiated=("plain", "stretched", "learned"),
    small=small,
)


@task.check(1)
def the_loss_is_one_number(answer, rng):
    for b in (4, 2, 1):
        inputs = pairs(rng, b)
        loss = answer(inputs)
        if loss.shape != () or loss.dtype != torch.float32:
            raise Failure(
                f"Your loss is {describe(loss)}; one float32 number for the batch is expected.",
                inputs,
            )


def number(loss, inputs):
    if loss.numel() != 1:
        raise Failure(f"Your loss is {describe(loss)}; one number is expected.", inputs)
    return loss.item()


@task.check(1)
def vectors_that_tell_nothing_apart_lose_the_logarithm_of_the_batch(answer, rng):
    for b in (2, 5, 8):
        inputs = pairs(rng, b)
        inputs["images"] = inputs["texts"] = normal(rng, 1, 6).expand(b, 6).contiguous()
        loss = number(answer(inputs), inputs)
        if abs(loss - math.log(b)) > 1e-3:
            raise Failure(
                f"All {b} pictures and all {b} texts are one vector, so each guess is one of {b}, "
                f"and the loss is ln {b} ≈ {math.log(b):.3f}; yours is {loss:.4g}.",
                inputs,
            )


@task.check(1)
def lengths_of_vectors_do_not_matter(answer, rng):
    inputs = pairs(rng, like=0.5)
    longer = inputs | {
        "images": inputs["images"] * torch.tensor([[0.2], [5.0], [1.0], [30.0]]),
        "texts": inputs["texts"] * 7,
    }
    compare("the loss with longer vectors", answer(longer), answer(inputs), longer)


@task.check(2)
def each_picture_looks_for_its_text(answer, rng):
    for options in ({}, {"b": 5, "m": 5}, {"b": 2, "m": 3}, {"like": 2.0}, {"b": 12, "m": 4}):
        answer.matches(pairs(rng, **options))
    answer.matches(stretched(rng, dtype=torch.float64))


@task.check(1)
def pictures_and_texts_may_change_places(answer, rng):
    inputs = stretched(rng, like=0.5)
    other = inputs | {"images": inputs["texts"], "texts": inputs["images"]}
    compare("the loss with pictures and texts exchanged", answer(other), answer(inputs), inputs)
    answer.matches(inputs)


@task.check(1)
def scores_are_divided_by_the_temperature(answer, rng):
    for temperature in (0.05, 0.2, 1.0, 4.0):
        answer.matches(pairs(rng, temperature=temperature, like=0.3))
    answer.matches(pairs(rng, temperature=0.3, learned=True))


@task.check(1)
def a_low_temperature_stays_finite(answer, rng):
    for temperature in (0.01, 0.005):
        answer.matches(pairs(rng, temperature=temperature), tolerance=1e-3)


@task.check(2)
def gradients_reach_both_towers_and_the_temperature(answer, rng):
    answer.gradients_match(pairs(rng, like=0.5))
    answer.gradients_match(stretched(rng))
    answer.gradients_match(pairs(rng, temperature=0.3, learned=True))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, pairs(rng))
    moves_nothing(answer, stretched(rng, learned=True))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Loss:
    def image_side(self, images):
        return self.unit(images)

    def text_side(self, texts):
        return self.unit(texts)

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    def compare(images, texts):
        return images @ texts.mT

    def cool(scores, temperature):
        return scores / temperature

    def own(scores):
        return torch.arange(len(scores))

    def lose(scores, own):
        return -scores.log_softmax(-1)[torch.arange(len(own)), own].mean()

    def both(self, scores):
        own = self.own(scores)
        return (self.lose(scores, own) + self.lose(scores.mT, own)) / 2

    def result(loss):
        return loss

    def __call__(self, images, texts, temperature):
        scores = self.compare(self.image_side(images), self.text_side(texts))
        return self.result(self.both(self.cool(scores, temperature)))


# --- faults: scores -----------------------------------------------------------------------------

task.fault(
    "C-PAIRS-NO-NORM",
    "The score is the dot product.",
    "Then long vectors win against all others, and a model lowers its loss by growing. The score "
    "is the cosine: vectors of length 1.",
    unit=as_is,
)
task.fault(
    "C-PAIRS-ONE-NORM",
    "It is enough if one of the two has length 1.",
    "Then the other's length still counts: like a temperature of its own for each.",
    image_side=(lambda self, x: x, lambda self, x: self.unit(x)),
    text_side=(lambda self, x: self.unit(x), lambda self, x: x),
)
task.fault(
    "C-PAIRS-NORM-OF-COLUMNS",
    "`normalize` works on the first axis.",
    "The first axis are the pairs of the batch. Each *vector* gets length 1: the last axis.",
    unit=lambda x: x / x.norm(dim=0, keepdim=True),
)
task.fault(
    "C-PAIRS-NORM-OF-ALL",
    "The whole table is divided by its length.",
    "Then vectors keep their different lengths, and in a larger batch all become shorter.",
    unit=lambda x: x / x.norm(),
)
task.fault(
    "C-PAIRS-LAYER-NORM",
    "Normalized means mean 0 and variance 1.",
    "In a layer norm it does. Here it means: of length 1. Your vectors have the length √m, and "
    "lost their mean.",
    unit=(
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: (
            (x - x.mean(-1, keepdim=True))
            / (x - x.mean(-1, keepdim=True)).norm(dim=-1, keepdim=True)
        ),
    ),
)
task.fault(
    "C-PAIRS-SUM-OF-ONE",
    "Vectors are divided by the sum of their numbers.",
    "That is for shares. A length is the root of the sum of squares.",
    unit=(
        lambda x: x / x.abs().sum(-1, keepdim=True),
        lambda x: x.softmax(-1),
    ),
)
task.fault(
    "C-PAIRS-SQUARED-LENGTH",
    "A vector is divided by its dot product with itself.",
    "That is the length *squared*. Long vectors become short, and short ones long.",
    unit=lambda x: x / x.square().sum(-1, keepdim=True),
)
task.fault(
    "C-PAIRS-DISTANCE",
    "The score is minus the distance.",
    "For vectors of length 1 it orders the candidates as the cosine does. But it is another "
    "number, and so are loss and gradient.",
    compare=(
        lambda images, texts: -(images[:, None] - texts[None]).norm(dim=-1),
        lambda images, texts: -(images[:, None] - texts[None]).square().sum(-1),
    ),
)
task.fault(
    "C-PAIRS-TIMES",
    "Scores are multiplied by the temperature.",
    "A low temperature makes choices sharp: scores become *larger*. Divide. (CLIP's code "
    "multiplies by a learned factor, the inverse of the temperature.)",
    cool=lambda scores, temperature: scores * temperature,
)
task.fault(
    "C-PAIRS-NO-TEMPERATURE",
    "A cosine is a score.",
    "Cosines lie between −1 and 1: with a batch of 100, even a perfect model could not get its "
    "loss below 3. The temperature stretches them.",
    cool=as_is,
)


@task.fault(
    "C-PAIRS-TEMPERATURE-LAST",
    "The temperature divides the loss.",
    "That makes steps of training longer and no choice sharper: a softmax has to see *scores* that "
    "are divided.",
)
class TemperatureLast(Loss):
    def __call__(self, images, texts, temperature):
        return super().__call__(images, texts, 1.0) / temperature


task.fault(
    "C-PAIRS-ROOT",
    "Scores are divided by the root of the temperature.",
    "The root belongs to the width of attention's keys. A temperature divides as it is.",
    cool=lambda scores, temperature: scores / temperature**0.5,
)
task.fault(
    "C-PAIRS-LOGARITHM",
    "The temperature comes as its logarithm.",
    "Models learn the logarithm, so that it stays above 0; this function gets the temperature "
    "itself.",
    cool=(
        lambda scores, temperature: scores * torch.as_tensor(temperature).exp(),
        lambda scores, temperature: scores / torch.as_tensor(temperature).exp(),
    ),
)
task.fault(
    "D-SCALE-TWICE",
    "Scores are divided by √m, as in attention, and by the temperature.",
    "Attention does that because its vectors grow with their width. These have length 1 already.",
    compare=lambda images, texts: images @ texts.mT / images.shape[-1] ** 0.5,
)

# --- faults: which one is mine ------------------------------------------------------------------

task.fault(
    "C-PAIRS-PICTURES-ONLY",
    "Each picture looks for its text, and that is all.",
    "Rows, and no columns: two pictures may then choose the same text, and no text complains. The "
    "texts look, too. (A turned table with its softmax turned as well is the first half again.)",
    both=lambda self, scores: self.lose(scores, self.own(scores)),
)
task.fault(
    "C-PAIRS-TEXTS-ONLY",
    "Each text looks for its picture, and that is all.",
    "Columns, and no rows. The pictures look, too.",
    both=lambda self, scores: self.lose(scores.mT, self.own(scores)),
)
task.fault(
    "C-PAIRS-SUM",
    "The loss is the sum of both halves.",
    "A mean was asked for, so that it can be compared with ln b, a blind guess.",
    both=lambda self, scores: (
        self.lose(scores, self.own(scores)) + self.lose(scores.mT, self.own(scores))
    ),
)
task.fault(
    "C-PAIRS-OVER-ALL",
    "One softmax over the whole table.",
    "Then b · b cells share one budget, and b right ones cannot all win it. Each row has a budget "
    "of one, and each column.",
    both=lambda self, scores: (
        -scores.flatten().log_softmax(0).reshape(scores.shape).diagonal().mean()
    ),
)
task.fault(
    "C-PAIRS-YES-OR-NO",
    "Each cell of the table is a question: do these two belong together?",
    "That is another good loss (SigLIP's). Here the candidates of a row compete in a softmax.",
    both=(
        lambda self, scores: F.binary_cross_entropy_with_logits(
            scores, torch.eye(len(scores), dtype=scores.dtype)
        ),
        lambda self, scores: F.binary_cross_entropy_with_logits(scores, torch.eye(len(scores))),
        lambda self, scores: (
            -F.logsigmoid(scores * (2 * torch.eye(len(scores), dtype=scores.dtype) - 1)).sum()
            / len(scores)
        ),
    ),
)
task.fault(
    "C-PAIRS-ATTRACT-ONLY",
    "Pairs are pulled together; that is what is wanted.",
    "Then all vectors can move to one point, and the loss is as low as it gets. Each has to score "
    "*higher than the others*.",
    cool=(..., ..., lambda scores, temperature: (scores - 1) / temperature),
    both=(
        lambda self, scores: -scores.diagonal().mean(),
        lambda self, scores: (1 - scores.diagonal()).mean(),
        lambda self, scores: -scores.diagonal().mean(),
    ),
)
task.fault(
    "C-PAIRS-WITHOUT-ITSELF",
    "The pair itself is no competitor, so it is left out of the sum.",
    "Some losses do that. In a cross-entropy the right one is among the candidates, and the loss "
    "cannot fall below 0.",
    lose=lambda scores, own: (
        scores.masked_fill(torch.eye(len(own), dtype=torch.bool), -1e9).logsumexp(-1)
        - scores.diagonal()
    ).mean(),
)
task.fault(
    "C-PAIRS-FIRST",
    "The right text stands in column 0.",
    "In a list of candidates it might. In this table row i belongs to column i.",
    own=lambda scores: torch.zeros(len(scores), dtype=torch.long),
)
task.fault(
    "C-PAIRS-MARGIN",
    "A wrong text must score lower by a margin.",
    "A hinge loss forgets whoever is far enough away. The cross-entropy of CLIP weighs all.",
    lose=lambda scores, own: (
        (1 + scores - scores.diagonal()[:, None]).relu().fill_diagonal_(0).sum(-1).mean()
    ),
)

# --- faults: the cross-entropy ------------------------------------------------------------------

task.fault(
    "C-PAIRS-SOFTMAX-TWICE",
    "`cross_entropy` takes probabilities.",
    "It takes scores, and applies the softmax itself. Applied twice, differences nearly vanish.",
    lose=lambda scores, own: F.cross_entropy(scores.softmax(-1), own),
)
task.fault(
    "C-PAIRS-PROBABILITY",
    "The loss is minus the probability of the right one.",
    "Who is hopelessly wrong then gets no gradient. The loss is its *logarithm*, with a minus.",
    lose=(
        lambda scores, own: -scores.softmax(-1).diagonal().mean(),
        lambda scores, own: 1 - scores.softmax(-1).diagonal().mean(),
    ),
)
task.fault(
    "C-PAIRS-SUM-OF-BATCH",
    "The loss of a batch is the sum over its pairs.",
    "Then it grows with the batch. The mean over pairs is asked for.",
    lose=lambda scores, own: -scores.log_softmax(-1).diagonal().sum(),
)
task.fault(
    "C-PAIRS-EACH",
    "A loss for each pair.",
    "One number is asked for: the mean.",
    lose=lambda scores, own: -scores.log_softmax(-1).diagonal(),
)
task.fault(
    "C-PAIRS-SIGN",
    "The log-probability of the right one is the loss.",
    "Training makes a loss small, so the right ones would become unlikely. A minus is missing.",
    result=lambda loss: -loss,
)
task.fault(
    "C-PAIRS-NAIVE",
    "The softmax is exp over the sum of exps.",
    "With a low temperature scores reach 200, exp is infinite in float32, and infinity over "
    "infinity is NaN.",
    lose=lambda scores, own: (
        -(scores.exp() / scores.exp().sum(-1, keepdim=True)).log().diagonal().mean()
    ),
)
task.fault(
    "C-PAIRS-BITS",
    "The loss is measured in bits.",
    "It is in nats, as all losses of this course: the natural logarithm.",
    result=lambda loss: loss / math.log(2),
)

# --- faults: gradients --------------------------------------------------------------------------

task.fault(
    "C-PAIRS-ONE-TOWER",
    "The texts are the targets, so no gradient goes through them.",
    "Both towers learn: what a vector means is agreed on between them.",
    text_side=(lambda self, x: self.unit(x).detach(), ...),
    image_side=(..., lambda self, x: self.unit(x).detach()),
)
task.fault(
    "C-PAIRS-LENGTH-DETACHED",
    "A length is only a number to divide by.",
    "It depends on the vector. Left out of the gradient, steps also stretch the vector, which "
    "changes nothing about the loss.",
    unit=lambda x: x / x.norm(dim=-1, keepdim=True).detach(),
)
task.fault(
    "C-PAIRS-TEMPERATURE-DETACHED",
    "The temperature is a setting, `float(temperature)`.",
    "CLIP learns it. As a plain number it gets no gradient.",
    cool=lambda scores, temperature: scores / float(temperature),
)

import itertools
import math
import operator

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
            due, came = answer.apart(math.log(b), loss, ".4g")
            raise Failure(
                f"All {b} pictures and all {b} texts are one vector, so each guess is one of {b}, "
                f"and the loss is ln {b} ≈ {due}; yours is {came}.",
                inputs,
            )


@task.check(1)
def lengths_of_vectors_do_not_matter(answer, rng):
    inputs = pairs(rng, like=0.5)
    longer = inputs | {
        "images": inputs["images"] * torch.tensor([[0.2], [5.0], [1.0], [30.0]]),
        "texts": inputs["texts"] * torch.tensor([[7.0], [0.3], [20.0], [1.0]]),
    }
    compare("the loss with longer vectors", answer(longer), answer(inputs), longer)


@task.check(2)
def it_is_right_for_any_pictures_and_texts(answer, rng):
    for options in ({}, {"b": 5, "m": 5}, {"b": 2, "m": 3}, {"like": 2.0}, {"b": 12, "m": 4}):
        answer.matches(pairs(rng, **options))
    answer.matches(stretched(rng, dtype=torch.float64))


@task.check(1)
def pictures_and_texts_may_change_places(answer, rng):
    inputs = stretched(rng, like=0.5)
    other = inputs | {"images": inputs["texts"], "texts": inputs["images"]}
    compare("the loss with pictures and texts exchanged", answer(other), answer(inputs), inputs)
    answer.holds_of_the_right(inputs)


@task.check(1)
def it_is_right_at_any_temperature(answer, rng):
    for temperature in (0.05, 0.2, 1.0, 4.0):
        answer.matches(pairs(rng, temperature=temperature, like=0.3))
    answer.matches(pairs(rng, temperature=0.3, learned=True))


@task.check(1)
def it_is_right_at_low_temperatures(answer, rng):
    for temperature in (0.01, 0.005):
        answer.matches(pairs(rng, temperature=temperature), tolerance=1e-3)
        # A score of 88.8 and more: its exponential is infinite in float32.
        answer.matches(pairs(rng, temperature=temperature, like=2.0), tolerance=1e-3)
    for sign in (1, -1):  # all scores near 100, or near -100
        inputs = pairs(rng, like=0.1, temperature=0.005)
        inputs["texts"] = sign * (inputs["images"][:1] + 0.3 * inputs["texts"])
        inputs["images"] = inputs["images"][:1] + 0.3 * normal(rng, 4, 6)
        answer.matches(inputs, tolerance=1e-3)


@task.check(2)
def gradients_are_right_for_both_towers_and_the_temperature(answer, rng):
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

    def heat(temperature):
        return temperature

    def cool(scores, temperature):
        return scores / temperature

    def sides(scores):
        return scores, scores.mT

    def own(scores):
        return torch.arange(len(scores))

    def lose(scores, own):
        return -scores.log_softmax(-1)[torch.arange(len(own)), own].mean()

    def both(self, scores, turned):
        own = self.own(scores)
        return (self.lose(scores, own) + self.lose(turned, own)) / 2

    def result(loss):
        return loss

    def __call__(self, images, texts, temperature):
        scores = self.compare(self.image_side(images), self.text_side(texts))
        temperature = self.heat(temperature)
        cooled = [self.cool(side, temperature) for side in self.sides(scores)]
        return self.result(self.both(*cooled))


@torch.no_grad()
def unit_in_place(x):
    return x.div_(x.norm(dim=-1, keepdim=True))


# --- faults: scores -----------------------------------------------------------------------------

task.fault("C-PAIRS-NO-NORM", unit=as_is)
task.fault(
    "C-PAIRS-ONE-NORM",
    image_side=(lambda self, x: x, lambda self, x: self.unit(x)),
    text_side=(lambda self, x: self.unit(x), lambda self, x: x),
)
task.fault("C-PAIRS-NORM-IN-PLACE", unit=unit_in_place)
task.fault("C-PAIRS-NORM-OF-COLUMNS", unit=lambda x: x / x.norm(dim=0, keepdim=True))
task.fault("C-PAIRS-NORM-OF-ALL", unit=lambda x: x / x.norm())
task.fault(
    "C-PAIRS-LAYER-NORM",
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
    unit=(
        lambda x: x / x.abs().sum(-1, keepdim=True),
        lambda x: x.softmax(-1),
    ),
)
task.fault("C-PAIRS-SQUARED-LENGTH", unit=lambda x: x / x.square().sum(-1, keepdim=True))
task.fault(
    "C-PAIRS-DISTANCE",
    compare=(
        lambda images, texts: -(images[:, None] - texts[None]).norm(dim=-1),
        lambda images, texts: -(images[:, None] - texts[None]).square().sum(-1),
    ),
)
task.fault(
    "C-PAIRS-SCORES-NORMALIZED",
    unit=as_is,
    compare=lambda images, texts: F.normalize(images @ texts.mT, dim=-1),
)
task.fault("C-PAIRS-TIMES", cool=lambda scores, temperature: scores * temperature)
task.fault("C-PAIRS-NO-TEMPERATURE", cool=as_is)


@task.fault("C-PAIRS-TEMPERATURE-LAST")
class TemperatureLast(Loss):
    def __call__(self, images, texts, temperature):
        return super().__call__(images, texts, 1.0) / temperature


@task.fault("C-PAIRS-TEMPERATURE-IN-FRONT")
class TemperatureInFront(Loss):
    def __call__(self, images, texts, temperature):
        return super().__call__(images, texts, temperature) * temperature


soft = task.fault("C-PAIRS-SOFT-TARGETS")


def softly(cooled, of_texts, fixed):
    """Targets from how alike all are, `of_texts` those of the texts, with a gradient or `fixed`."""

    class SoftTargets(Loss):
        def targets(alike, temperature):
            goal = cooled(alike, temperature).softmax(-1)
            return goal.detach() if fixed else goal

        def __call__(self, images, texts, temperature):
            images, texts = self.image_side(images), self.text_side(texts)
            goal = self.targets((images @ images.mT + texts @ texts.mT) / 2, temperature)
            scores = images @ texts.mT / temperature
            lost = goal * scores.log_softmax(-1), of_texts(goal) * scores.mT.log_softmax(-1)
            return -(lost[0].sum(-1) + lost[1].sum(-1)).mean() / 2

    return SoftTargets


for of_texts, fixed in itertools.product((lambda goal: goal.mT, as_is), (False, True)):
    for cooled in operator.truediv, operator.mul:
        soft(softly(cooled, of_texts, fixed))


task.fault("C-PAIRS-ROOT", cool=lambda scores, temperature: scores / temperature**0.5)
task.fault(
    "C-PAIRS-LOGARITHM",
    cool=(
        lambda scores, temperature: scores * torch.as_tensor(temperature).exp(),
        lambda scores, temperature: scores / torch.as_tensor(temperature).exp(),
    ),
)
task.fault(
    "D-SCALE-TWICE", compare=lambda images, texts: images @ texts.mT / images.shape[-1] ** 0.5
)

# --- faults: which one is mine ------------------------------------------------------------------

task.fault("C-PAIRS-PICTURES-ONLY", sides=lambda scores: (scores, scores))
task.fault("C-PAIRS-TEXTS-ONLY", sides=lambda scores: (scores.mT, scores.mT))
task.fault(
    "C-PAIRS-SUM",
    both=lambda self, scores, turned: (
        self.lose(scores, self.own(scores)) + self.lose(turned, self.own(scores))
    ),
)
task.fault(
    "C-PAIRS-MIRRORED",
    both=(
        lambda self, scores, turned: self.lose((scores + scores.mT) / 2, self.own(scores)),
        lambda self, scores, turned: self.lose(scores + scores.mT, self.own(scores)),
    ),
)
task.fault(
    "C-PAIRS-MEAN-OF-SHARES",
    both=(
        lambda self, scores, turned: (
            -((scores.softmax(-1) + scores.mT.softmax(-1)) / 2).log().diagonal().mean()
        ),
        lambda self, scores, turned: (
            -((scores.softmax(-1) + scores.mT.softmax(-1)) / 2).diagonal().mean().log()
        ),
    ),
)
task.fault(
    "C-PAIRS-OVER-ALL",
    both=(
        lambda self, scores, turned: (
            -scores.flatten().log_softmax(0).reshape(scores.shape).diagonal().mean()
        ),
        lambda self, scores, turned: scores.flatten().logsumexp(0) - scores.diagonal().logsumexp(0),
    ),
)
task.fault(
    "C-PAIRS-YES-OR-NO",
    both=(
        lambda self, scores, turned: F.binary_cross_entropy_with_logits(
            scores, torch.eye(len(scores), dtype=scores.dtype)
        ),
        lambda self, scores, turned: F.binary_cross_entropy_with_logits(
            scores, torch.eye(len(scores))
        ),
        lambda self, scores, turned: (
            -F.logsigmoid(scores * (2 * torch.eye(len(scores), dtype=scores.dtype) - 1)).sum()
            / len(scores)
        ),
        lambda self, scores, turned: F.mse_loss(scores, torch.eye(len(scores), dtype=scores.dtype)),
    ),
)
task.fault(
    "C-PAIRS-ATTRACT-ONLY",
    cool=(..., ..., lambda scores, temperature: (scores - 1) / temperature),
    both=(
        lambda self, scores, turned: -scores.diagonal().mean(),
        lambda self, scores, turned: (1 - scores.diagonal()).mean(),
        lambda self, scores, turned: -scores.diagonal().mean(),
    ),
)
task.fault(
    "C-PAIRS-WITHOUT-ITSELF",
    lose=(
        lambda scores, own: (
            scores.masked_fill(torch.eye(len(own), dtype=torch.bool), -1e9).logsumexp(-1)
            - scores.diagonal()
        ).mean(),
        lambda scores, own: (
            scores.masked_fill(torch.eye(len(own), dtype=torch.bool), -torch.inf).logsumexp(-1)
            - scores.diagonal()
        ).mean(),
    ),
)


@task.fault("C-PAIRS-ALL-AGAINST-ALL")
class AllAgainstAll(Loss):
    def __call__(self, images, texts, temperature):
        every = torch.cat([self.image_side(images), self.text_side(texts)])
        scores = self.cool(self.compare(every, every), self.heat(temperature))
        scores = scores.masked_fill(torch.eye(len(every), dtype=torch.bool), -torch.inf)
        return self.result(self.lose(scores, torch.arange(len(every)).roll(len(images))))


task.fault("C-PAIRS-FIRST", own=lambda scores: torch.zeros(len(scores), dtype=torch.long))
task.fault(
    "C-PAIRS-MARGIN",
    lose=lambda scores, own: (
        (1 + scores - scores.diagonal()[:, None]).relu().fill_diagonal_(0).sum(-1).mean()
    ),
)

# --- faults: the cross-entropy ------------------------------------------------------------------

task.fault(
    "C-PAIRS-SOFTMAX-TWICE",
    lose=(
        lambda scores, own: F.cross_entropy(scores.softmax(-1), own),
        lambda scores, own: F.cross_entropy(scores, own),
    ),
    both=(
        ...,
        lambda self, scores, turned: Loss.both(self, scores.softmax(-1), scores.softmax(-1).mT),
    ),
)
task.fault(
    "C-PAIRS-PROBABILITY",
    lose=(
        lambda scores, own: -scores.softmax(-1).diagonal().mean(),
        lambda scores, own: 1 - scores.softmax(-1).diagonal().mean(),
    ),
)
task.fault(
    "C-PAIRS-SUM-OF-BATCH", lose=lambda scores, own: -scores.log_softmax(-1).diagonal().sum()
)
task.fault(
    "C-PAIRS-MEAN-OF-TABLE",
    lose=lambda scores, own: -scores.log_softmax(-1).diagonal().sum() / scores.numel(),
)
task.fault("C-PAIRS-EACH", lose=lambda scores, own: -scores.log_softmax(-1).diagonal())
task.fault("C-PAIRS-SIGN", result=lambda loss: -loss)
task.fault(
    "C-PAIRS-NAIVE",
    lose=(
        lambda scores, own: (
            -(scores.exp() / scores.exp().sum(-1, keepdim=True)).log().diagonal().mean()
        ),
        lambda scores, own: (scores.exp().sum(-1).log() - scores.diagonal()).mean(),
    ),
)


def _log_of(bounded):
    """The loss of shares that are kept away from 0 before their logarithm."""
    return lambda scores, own: -bounded(scores.softmax(-1)).log().diagonal().mean()


EPSILONS = (1e-9, 1e-8, 1e-10, 1e-12, 1e-7, 1e-6, 1e-5)
task.fault(
    "C-PAIRS-EPSILON",
    lose=(
        *(_log_of(lambda share, few=few: share + few) for few in EPSILONS),
        *(_log_of(lambda share, few=few: share.clamp(min=few)) for few in EPSILONS),
    ),
)
task.fault("C-PAIRS-BITS", result=lambda loss: loss / math.log(2))

# --- faults: gradients --------------------------------------------------------------------------

task.fault(
    "C-PAIRS-ONE-TOWER",
    text_side=(lambda self, x: self.unit(x).detach(), ...),
    image_side=(..., lambda self, x: self.unit(x).detach()),
)
task.fault("C-PAIRS-LENGTH-DETACHED", unit=lambda x: x / x.norm(dim=-1, keepdim=True).detach())
task.fault("C-PAIRS-TEMPERATURE-DETACHED", heat=float)

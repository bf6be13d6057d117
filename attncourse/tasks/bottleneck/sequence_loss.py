import math

import torch
import torch.nn.functional as F

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, describe, following, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.bottleneck import DOUBLE, ids


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


def sure_of_pads(rng, *lengths):
    """Logits that say at each padded position: padding, for certain."""
    inputs = scored(rng, *lengths, n=5)
    inputs["logits"][inputs["target"] == 0] = torch.tensor([20.0] + [0.0] * 6)
    return inputs


def probes(rng):
    return {
        "full": scored(rng, 4, 4, 4),
        "padded": scored(rng, 2, 5, 1, n=5),
        "sure of pads": sure_of_pads(rng, 2, 5, 1),
        "all padded": scored(rng, 2, 3, 1, n=5),
        "pad is 6": scored(rng, 2, 3, n=4, pad=6),
        "pad is 3, words are 0": scored(rng, 4, 2, 1, n=4, words=4, pad=3),
        "square": scored(rng, 4, 2, 3, 4, n=4, words=4),
        "two classes": scored(rng, 3, 2, n=3, words=2, pad=1),
        "one word": scored(rng, 1, 1, n=1),
        "an empty row": scored(rng, 3, 0, 2),
        "large": scored(rng, 2, 3, n=4, size=9.0),
        "far apart": far_logits(rng, 0.0),
        "far away": far_logits(rng, 1e4),
        "a hundred higher": {**scored(rng, 3, 2, n=3), "logits": 100 + integers(rng, 2, 3, 7)},
        "double": scored(rng, 2, 3, n=3, **DOUBLE),
    }


def small(rng):
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


def maps(rng):
    inputs = scored(rng, 3, 2, n=4, words=5)
    return [
        ("two rows of four positions, the last one and the last two padded", inputs, ("logits",))
    ]


task = Task(
    reference.sequence_loss,
    number=3,
    returns=("loss",),
    difficulty=2,
    minutes=15,
    section="token-loss",
    probes=probes,
    differentiated=("padded", "square", "far apart"),
    small=small,
    maps=maps,
    features=1,
)


@task.check(1)
def the_loss_is_a_tensor_of_one_number(answer, rng):
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


@task.check(1)
def a_blind_guess_loses_the_logarithm_of_the_vocabulary(answer, rng):
    for words in (7, 3, 5):
        inputs = scored(rng, 5, 2, 1, n=5, words=words)
        inputs["logits"] *= 0
        loss = answer(inputs)
        one = loss.numel() == 1
        if not one or not abs(loss.item() - math.log(words)) < 1e-4:
            due, came = answer.apart(math.log(words), loss.item() if one else math.nan, ".4g")
            raise Failure(
                f"All {words} words of the vocabulary get the same score, so the loss of each "
                f"token is ln {words} ≈ {due}; your loss is {came if one else describe(loss)}.",
                inputs,
            )


@task.check(2, "it is the mean of −log p")
def it_is_the_mean_of_minus_log_p(answer, rng):
    answer.matches(scored(rng, 4, 4, 4))
    answer.matches(scored(rng, 4, 4, 4, 4, words=4))
    answer.matches(scored(rng, 7, 7))  # n = vocab
    answer.matches(scored(rng, 3, 3, words=2, pad=1))
    answer.matches(scored(rng, 1))
    answer.matches(scored(rng, 5, 5, 5, words=6, pad=4, **DOUBLE))


@task.check(2)
def padding_does_not_count(answer, rng):
    for pad in (0, 6, 3):  # in sentences of one length: who counts sentences, counts no padding
        inputs = scored(rng, 3, 3, 3, n=5, pad=pad)
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
            one, two = answer.apart(before.item(), after.item(), ".4g")
            raise Failure(
                f"Three more pads after each row change the loss from {one} to {two}. They should "
                "not count.",
                inputs | longer,
                before,
                after,
            )
    answer.matches(sure_of_pads(rng, 2, 2, 2))
    answer.matches(scored(rng, 2, 2, n=6, **DOUBLE))


@task.check(1)
def every_token_counts_the_same(answer, rng):
    inputs = scored(rng, 8, 1, n=8)
    inputs["logits"][1] *= 20  # a short sentence with a loss of its own
    answer.matches(inputs)
    answer.matches(scored(rng, 1, 2, 4, 4, n=4, words=4, pad=2))
    answer.matches(scored(rng, 3, 0, 2))  # a row of nothing but padding


@task.check(1)
def extreme_logits_stay_finite(answer, rng):
    # A log-sum-exp of 1e4 is known to 1e-3 in float32, so nothing sharper is asked.
    with following(lambda: answer.matches(scored(rng, 2, 5, 1, n=5))):
        for offset in (0.0, 1e4, -1e4):
            answer.matches(far_logits(rng, offset), tolerance=5e-3)


@task.check(1)
def gradients_reach_the_logits_of_real_tokens_only(answer, rng):
    answer.gradients_match(scored(rng, 2, 5, 1, n=5))
    answer.gradients_match(scored(rng, 4, 2, 3, 4, n=4, words=4, pad=3))
    far = far_logits(rng, 0.0)
    with following(lambda: answer.matches(far, tolerance=5e-3)):
        answer.gradients_match(far)
    inputs = scored(rng, 2, 5, 1, n=5)
    gradient = answer.observe(inputs, gradient=True).gradients["logits"]
    largest = gradient[inputs["target"] == 0].abs().max()
    if largest > 1e-6:
        raise Failure(
            f"Logits of padded positions get a gradient of up to {largest:.2g}. The loss must "
            "not depend on them.",
            inputs,
        )


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, scored(rng, 2, 5, 1, n=5))
    moves_nothing(answer, scored(rng, 4, 3, n=4, pad=5))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Loss:
    def align(logits, target, pad):
        return logits, target

    def real(target, pad, logits):
        return target != pad

    def enter(logits):
        return logits

    def allowed(logits, pad):
        return logits

    def axis():
        return -1  # of the words, of which one is right

    def log_p(self, logits):
        return logits.log_softmax(self.axis())

    def pick(log_p, target):
        return log_p.gather(-1, target[:, :, None])[:, :, 0]

    def lose(log_p):
        return -log_p

    def average(losses, real):
        return losses[real].mean()

    def unit(loss):
        return loss

    def result(loss):
        return loss

    def __call__(self, logits, target, pad):
        logits, target = self.align(logits, target, pad)
        losses = self.lose(self.pick(self.log_p(self.allowed(self.enter(logits), pad)), target))
        return self.result(self.unit(self.average(losses, self.real(target, pad, logits))))


def over_count(losses, real):
    return losses.masked_fill(~real, 0).sum() / real.sum()


def over_count_if_any(losses, real):
    return losses.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)


def everywhere(target, pad, logits):
    return torch.ones_like(target, dtype=torch.bool)


task.spelling(average=over_count)
task.spelling(average=lambda losses, real: (losses * real).sum() / real.sum())

# --- faults: which tokens count -------------------------------------------------------------------


def zero_at_pads(logits, target, pad):
    return logits * (target != pad)[:, :, None], target


def each_sentence(losses, real):
    return (losses * real).sum(1) / real.sum(1)


def each_sentence_or_zero(losses, real):
    return (losses * real).sum(1) / real.sum(1).clamp(min=1)


task.fault("S-CE-PAD", real=everywhere)
task.fault(
    "C-PADS-IN-THE-COUNT",
    average=(
        lambda losses, real: losses.masked_fill(~real, 0).mean(),
        lambda losses, real: (losses * real).mean(),
    ),
)
task.fault("C-PADS-IN-THE-SUM", average=lambda losses, real: losses.sum() / real.sum())
task.fault("C-LOGITS-OF-PADS-ZEROED", align=zero_at_pads, real=everywhere)
task.fault(
    "C-MASK-INVERTED",
    real=lambda target, pad, logits: target == pad,
    average=(..., over_count_if_any),
)
task.fault("C-SUM-OF-LOSSES", average=lambda losses, real: losses[real].sum())
task.fault(
    "C-MEAN-OF-MEANS",
    average=(
        lambda losses, real: each_sentence(losses, real).mean(),
        lambda losses, real: each_sentence(losses, real).nanmean(),
        lambda losses, real: each_sentence_or_zero(losses, real).mean(),
    ),
)
task.fault("C-PER-SENTENCE", average=lambda losses, real: losses[real].sum() / len(losses))
task.fault(
    "C-PER-PLACE", average=lambda losses, real: losses.masked_fill(~real, 0).sum() / losses.shape[1]
)
task.fault(
    "C-PAD-BY-HEART", real=lambda target, pad, logits: target != 0, average=(..., over_count_if_any)
)
task.fault(
    "C-MASKED-BY-PREDICTION",
    real=(
        lambda target, pad, logits: (target != pad) & (logits.argmax(-1) != pad),
        lambda target, pad, logits: (target != pad) & (logits.argmax(-1) != pad),
        lambda target, pad, logits: logits.argmax(-1) != pad,
    ),
    average=(over_count_if_any, ...),
)
task.fault(
    "C-SHIFTS-AGAIN",
    section="teacher-forcing",
    align=lambda logits, target, pad: (logits[:, :-1], target[:, 1:]),
)

task.fault(
    "C-FIRST-LEFT-OUT",
    section="teacher-forcing",
    align=lambda logits, target, pad: (logits[:, 1:], target[:, 1:]),
)
task.fault(
    "C-LAST-LEFT-OUT",
    section="teacher-forcing",
    align=lambda logits, target, pad: (logits[:, :-1], target[:, :-1]),
)

# --- faults: minus the logarithm of p -------------------------------------------------------------


def reshaped(logits):
    b, n, words = logits.shape
    return logits.reshape(b, words, n).mT.log_softmax(-1)


def without_pad(logits, pad):
    hidden = torch.arange(logits.shape[-1]) == pad
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min)


def log_of_more(epsilon):
    return lambda self, logits: (logits.softmax(self.axis()) + epsilon).log()


def log_of_at_least(epsilon):
    return lambda self, logits: logits.softmax(self.axis()).clamp(min=epsilon).log()


def yes_or_no(logits, target):
    right = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, right, reduction="none")


def squares(p, target):
    return (p - F.one_hot(target, p.shape[-1])).square()


task.fault("C-RESHAPED-CLASSES", log_p=reshaped)
task.fault(
    "C-CLASSES-LAST",
    forms=(lambda logits, target, pad: F.cross_entropy(logits, target, ignore_index=pad),),
)
task.fault(
    "C-SOFTMAX-TWICE",
    log_p=lambda self, logits: logits.softmax(self.axis()).log_softmax(self.axis()),
)
task.fault(
    "C-NO-LOGARITHM",
    lose=(lambda log_p: 1 - log_p.exp(), lambda log_p: -log_p.exp(), ...),
    log_p=(..., ..., lambda self, logits: logits.softmax(self.axis())),
)
task.fault(
    "C-SQUARED-ERROR",
    log_p=lambda self, logits: logits.softmax(self.axis()),
    pick=(
        lambda p, target: squares(p, target).sum(-1),
        lambda p, target: squares(p, target).mean(-1),
    ),
    lose=as_is,
)
task.fault(
    "C-BINARY",
    log_p=as_is,
    pick=(
        lambda logits, target: yes_or_no(logits, target).mean(-1),
        lambda logits, target: yes_or_no(logits, target).sum(-1),
    ),
    lose=as_is,
)
task.fault(
    "C-LABEL-SMOOTHING",
    pick=lambda log_p, target: 0.9 * Loss.pick(log_p, target) + 0.1 * log_p.mean(-1),
)
task.fault("C-ENTROPY", pick=lambda log_p, target: (log_p.exp() * log_p).sum(-1))
task.fault("C-OWN-GUESS", pick=lambda log_p, target: log_p.amax(-1))
task.fault("C-SIGN", lose=as_is)
task.fault("C-PERPLEXITY", unit=lambda loss: loss.exp())
task.fault("C-BITS", unit=lambda loss: loss / math.log(2))
task.fault("C-BASE-10", unit=lambda loss: loss / math.log(10))
task.fault("C-NO-SOFTMAX", log_p=as_is)
task.fault("C-POSITIONS-COMPETE", axis=lambda: 1)
task.fault("C-SENTENCES-COMPETE", axis=lambda: 0)
task.fault("C-PAD-NEVER-PREDICTED", allowed=without_pad)
task.fault(
    "C-LOG-OF-SOFTMAX",
    log_p=(
        lambda self, logits: logits.softmax(self.axis()).log(),
        *(log_of_more(10.0**-n) for n in (6, 7, 8, 9, 10, 12)),
        *(log_of_at_least(10.0**-n) for n in (6, 7, 8, 9, 10, 12)),
        *[lambda self, logits: logits.softmax(self.axis())] * 2,
    ),
    lose=(*[...] * 13, lambda p: -p.log(), as_is),
    average=(*[...] * 14, lambda p, real: -p[real].log().mean()),
)
task.fault(
    "C-NAIVE-LOG-SUM",
    log_p=(
        lambda self, logits: (logits.exp() / logits.exp().sum(self.axis(), keepdim=True)).log(),
        lambda self, logits: logits - logits.exp().sum(self.axis(), keepdim=True).log(),
    ),
)

# --- faults: what is returned, and what is edited -------------------------------------------------


def wiped(logits, target, pad):
    with torch.no_grad():
        logits[target == pad] = 0
    return logits, target


task.fault(
    "C-LOSS-CUT-OFF",
    section="bottleneck-training",
    result=(lambda loss: loss.detach(), lambda loss: torch.tensor(loss.item())),
)
task.fault("C-LOSS-AS-FLOAT", section="bottleneck-training", result=lambda loss: loss.item())
task.fault(
    "C-NOT-AVERAGED",
    average=(lambda losses, real: losses[real], lambda losses, real: losses * real),
)
task.fault("C-LOSS-EACH-SENTENCE", average=(each_sentence, each_sentence_or_zero))
task.fault("C-LOSS-FLOAT32", enter=torch.Tensor.float)
task.fault("C-EDITS-THE-LOGITS", align=wiped)


@task.fault("C-MARKS-THE-TARGET")
def marks_the_target(logits, target, pad):
    target[target == pad] = -100
    return F.cross_entropy(logits.transpose(1, 2), target)

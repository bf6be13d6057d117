"""The loss of a batch of sentences: the mean of −ln p over real tokens."""

import math

import torch
import torch.nn.functional as F

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, describe, moves_nothing, shape_of
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


def sure_of_pads(rng):
    """Logits that say at each padded position: padding, for certain."""
    inputs = scored(rng, 2, 5, 1, n=5)
    inputs["logits"][inputs["target"] == 0] = torch.tensor([20.0] + [0.0] * 6)
    return inputs


def probes(rng):
    return {
        "full": scored(rng, 4, 4, 4),
        "padded": scored(rng, 2, 5, 1, n=5),
        "sure of pads": sure_of_pads(rng),
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
    hints=(
        "The loss of one position is −ln p, where p is the probability that softmax gives the "
        "right word. Which positions of the rectangle count, and by what do you divide?",
        "Two routes. By hand: log-probabilities, the one of each target (gather), then a sum "
        "over positions where target is not pad. Or F.cross_entropy, which expects the classes "
        "on axis 1 and has an argument for an id to be left out.",
        "Put one position in each row: logits as (b·n, vocab), target as (b·n). Then "
        "F.cross_entropy on these two, with ignore_index=pad; it takes the mean itself.",
    ),
    probes=probes,
    differentiated=("padded", "square", "far apart"),
    small=small,
    maps=maps,
    features=1,
)


@task.check(1)
def the_loss_is_one_number(answer, rng):
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
        if loss.numel() != 1 or not abs(loss.item() - math.log(words)) < 1e-4:
            raise Failure(
                f"All {words} words of the vocabulary get the same score, so the loss of each "
                f"token is ln {words} ≈ {math.log(words):.3f}; your loss is "
                f"{f'{loss.item():.4g}' if loss.numel() == 1 else describe(loss)}.",
                inputs,
            )


@task.check(2)
def it_is_the_mean_of_minus_log_p(answer, rng):
    answer.matches(scored(rng, 4, 4, 4))
    answer.matches(scored(rng, 4, 4, 4, 4, words=4))
    answer.matches(scored(rng, 7, 7))  # n = vocab
    answer.matches(scored(rng, 3, 3, words=2, pad=1))
    answer.matches(scored(rng, 1))
    answer.matches(scored(rng, 5, 5, 5, words=6, pad=4, **DOUBLE))


@task.check(2)
def padding_does_not_count(answer, rng):
    for pad in (0, 6, 3):
        inputs = scored(rng, 2, 5, 1, n=5, pad=pad)
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
            raise Failure(
                f"Three more pads behind each row change the loss from {before.item():.4g} to "
                f"{after.item():.4g}. They should not count.",
                inputs | longer,
                before,
                after,
            )
    answer.matches(sure_of_pads(rng))
    answer.matches(scored(rng, 2, 1, n=6, **DOUBLE))
    answer.matches(scored(rng, 3, 0, 2))  # a row of nothing but padding


@task.check(1)
def every_token_counts_the_same(answer, rng):
    inputs = scored(rng, 8, 1, n=8)
    inputs["logits"][1] *= 20  # a short sentence with a loss of its own
    answer.matches(inputs)
    answer.matches(scored(rng, 1, 2, 4, 4, n=4, words=4, pad=2))


@task.check(1)
def extreme_logits_stay_finite(answer, rng):
    # A log-sum-exp of 1e4 is known to 1e-3 in float32, so nothing sharper is asked.
    for offset in (0.0, 1e4, -1e4):
        answer.matches(far_logits(rng, offset), tolerance=5e-3)


@task.check(1)
def gradients_reach_the_logits_of_real_tokens_only(answer, rng):
    answer.gradients_match(scored(rng, 2, 5, 1, n=5))
    answer.gradients_match(scored(rng, 4, 2, 3, 4, n=4, words=4, pad=3))
    answer.gradients_match(far_logits(rng, 0.0))
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

    def log_p(logits, pad):
        return logits.log_softmax(-1)

    def pick(log_p, target):
        return log_p.gather(-1, target[:, :, None])[:, :, 0]

    def lose(log_p):
        return -log_p

    def average(losses, real):
        return losses[real].mean()

    def result(loss):
        return loss

    def __call__(self, logits, target, pad):
        logits, target = self.align(logits, target, pad)
        losses = self.lose(self.pick(self.log_p(logits, pad), target))
        return self.result(self.average(losses, self.real(target, pad, logits)))


def over_count(losses, real):
    return losses.masked_fill(~real, 0).sum() / real.sum()


def over_count_if_any(losses, real):
    return losses.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)


def everywhere(target, pad, logits):
    return torch.ones_like(target, dtype=torch.bool)


task.spelling(average=over_count)

# --- faults: which tokens count -------------------------------------------------------------------


def zero_at_pads(logits, target, pad):
    return logits * (target != pad)[:, :, None], target


def each_sentence(losses, real):
    return (losses * real).sum(1) / real.sum(1)


def each_sentence_or_zero(losses, real):
    return (losses * real).sum(1) / real.sum(1).clamp(min=1)


task.fault(
    "S-CE-PAD",
    "The mean goes over all positions.",
    "Padding is easy to predict, so a batch with much of it looks better than it is. The loss must "
    "not change when more padding is appended.",
    real=everywhere,
)
task.fault(
    "C-PADS-IN-THE-COUNT",
    "Set the loss of padding to 0, then take the mean.",
    "The sum is right now, but the mean still divides by all positions. With more padding your "
    "loss sinks. By how many tokens should it divide?",
    average=lambda losses, real: (losses * real).mean(),
)
task.fault(
    "C-PADS-IN-THE-SUM",
    "Dividing by the number of real tokens leaves the padding out.",
    "The divisor is right, but the sum above it still contains the loss of every pad. Both halves "
    "of the mean have to leave them out.",
    average=lambda losses, real: losses.sum() / real.sum(),
)
task.fault(
    "C-LOGITS-OF-PADS-ZEROED",
    "With logits of 0 a padded position costs nothing.",
    "Equal scores are a blind guess, and it costs ln V, the logarithm of the vocabulary's size. A "
    "position that does not count must be left out of the sum and of the number.",
    align=zero_at_pads,
    real=everywhere,
)
task.fault(
    "C-MASK-INVERTED",
    "`target == pad` says which positions count.",
    "It is True at the padding, so you measure what the model makes of pads and leave out all "
    "words. The real tokens are those that are *not* pad.",
    real=lambda target, pad, logits: target == pad,
    average=(..., over_count_if_any),
)
task.fault(
    "C-SUM-OF-LOSSES",
    "The loss of a batch is the sum over its tokens.",
    "Then a batch with twice the words has twice the loss, and twice the gradient. A mean can be "
    "compared from batch to batch.",
    average=lambda losses, real: losses[real].sum(),
)
task.fault(
    "C-MEAN-OF-MEANS",
    "First a mean for each sentence, then the mean of those.",
    "Then a word of a short sentence counts more than a word of a long one. The loss here is a "
    "mean over tokens: each counts the same.",
    average=(
        lambda losses, real: each_sentence(losses, real).mean(),
        lambda losses, real: each_sentence(losses, real).nanmean(),
        lambda losses, real: each_sentence_or_zero(losses, real).mean(),
    ),
)
task.fault(
    "C-PER-SENTENCE",
    "Divide the sum by the number of sentences.",
    "That is the loss of a whole sentence, and it grows with its length. The mean over tokens is "
    "asked for.",
    average=lambda losses, real: losses[real].sum() / len(losses),
)
task.fault(
    "C-PER-PLACE",
    "Divide the sum by n, the length of the rows.",
    "n is the number of places in one row, padding included; there are several rows, and the "
    "longer the rectangle, the smaller your loss. Divide by the number of real tokens.",
    average=lambda losses, real: losses.masked_fill(~real, 0).sum() / losses.shape[1],
)
task.fault(
    "C-PAD-BY-HEART",
    "Padding is id 0.",
    "In this course it is. The function is told the id as `pad`; with another vocabulary 0 is a "
    "word like any other, and yours would leave it out.",
    real=lambda target, pad, logits: target != 0,
    average=(..., over_count_if_any),
)
task.fault(
    "C-MASKED-BY-PREDICTION",
    "Positions where the model says padding are padding.",
    "A model that says pad in the middle of a sentence would not pay for it. The target tells "
    "which positions are real.",
    real=(
        lambda target, pad, logits: (target != pad) & (logits.argmax(-1) != pad),
        lambda target, pad, logits: (target != pad) & (logits.argmax(-1) != pad),
        lambda target, pad, logits: logits.argmax(-1) != pad,
    ),
    average=(over_count_if_any, over_count, over_count),
)
task.fault(
    "C-SHIFTS-AGAIN",
    "Logits at place t predict the word at t + 1, so they are compared with a shift.",
    "The shift is made already: `teacher_inputs` moved the inputs, so logits and target stand at "
    "the same place. Shifted twice, the decoder learns to skip a word.",
    section="teacher-forcing",
    align=lambda logits, target, pad: (logits[:, :-1], target[:, 1:]),
)

# --- faults: minus the logarithm of p -------------------------------------------------------------


def reshaped(logits, pad):
    b, n, words = logits.shape
    return logits.reshape(b, words, n).mT.log_softmax(-1)


def without_pad(logits, pad):
    hidden = torch.arange(logits.shape[-1]) == pad
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).log_softmax(-1)


def log_of_more(epsilon):
    return lambda logits, pad: (logits.softmax(-1) + epsilon).log()


def log_of_at_least(epsilon):
    return lambda logits, pad: logits.softmax(-1).clamp(min=epsilon).log()


def yes_or_no(logits, target):
    right = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, right, reduction="none")


def squares(p, target):
    return (p - F.one_hot(target, p.shape[-1])).square()


task.fault(
    "C-RESHAPED-CLASSES",
    "Reshaping (b n vocab) into (b vocab n) puts the classes on axis 1.",
    "A reshape cuts the same list of numbers into other rows; it never moves one. The shape is "
    "right, but scores of several positions are mixed up.",
    log_p=reshaped,
)
task.fault(
    "C-CLASSES-LAST",
    "`cross_entropy` finds the classes on the last axis.",
    "It expects them on axis 1: (b vocab n). It complains here, except where n equals the size of "
    "the vocabulary; there it computes something else without a word.",
    forms=(lambda logits, target, pad: F.cross_entropy(logits, target, ignore_index=pad),),
)
task.fault(
    "C-SOFTMAX-TWICE",
    "Cross-entropy needs probabilities, so softmax comes first.",
    "`cross_entropy` takes logits and applies softmax itself. Applied twice, even a certain and "
    "right answer keeps a large loss, and gradients are small.",
    log_p=lambda logits, pad: logits.softmax(-1).log_softmax(-1),
)
task.fault(
    "C-NO-LOGARITHM",
    "The loss is one minus the probability of the right word.",
    "Cross-entropy is −ln p. At p near 1 the two agree; near 0 the logarithm grows without limit, "
    "so a confident error hurts.",
    lose=(lambda log_p: 1 - log_p.exp(), lambda log_p: -log_p.exp()),
)
task.fault(
    "C-SQUARED-ERROR",
    "The loss is the squared distance between the probabilities and the right word's one-hot row.",
    "It is never above 2, however sure the model is of a wrong word, and its gradient is then "
    "nearly 0. Cross-entropy looks at the right word's probability alone: −ln p.",
    log_p=lambda logits, pad: logits.softmax(-1),
    pick=(
        lambda p, target: squares(p, target).sum(-1),
        lambda p, target: squares(p, target).mean(-1),
    ),
    lose=as_is,
)
task.fault(
    "C-BINARY",
    "Each word of the vocabulary is a question of its own: is it the right one, yes or no?",
    "That is binary cross-entropy, for labels that can hold at the same time. Exactly one word is "
    "right here, so they share one softmax, and the loss is −ln p of that word.",
    log_p=as_is,
    pick=(
        lambda logits, target: yes_or_no(logits, target).mean(-1),
        lambda logits, target: yes_or_no(logits, target).sum(-1),
    ),
    lose=as_is,
)
task.fault(
    "C-ENTROPY",
    "Cross-entropy is −Σ p ln p.",
    "That is the entropy of the model's own distribution: how unsure it is, right or wrong. In the "
    "*cross*-entropy the target's distribution stands in front, and it is 1 at the right word.",
    pick=lambda log_p, target: (log_p.exp() * log_p).sum(-1),
)
task.fault(
    "C-OWN-GUESS",
    "The loss is −ln of the largest probability.",
    "That is the word the model likes best, and it need not be the right one: a confident error "
    "would cost nothing. Look up the probability of the target.",
    pick=lambda log_p, target: log_p.amax(-1),
)
task.fault(
    "C-SIGN",
    "The loss is the mean log-probability of the right words.",
    "Log-probabilities are negative, and better when they are larger. A loss must get smaller when "
    "the model gets better. One sign is missing.",
    lose=as_is,
)
task.fault(
    "C-PERPLEXITY",
    "A translator is measured by its perplexity, exp of the cross-entropy.",
    "Perplexity is a way to report the loss. Asked for is the mean of −ln p itself, in nats a "
    "token.",
    result=lambda loss: loss.exp(),
)
task.fault(
    "C-BITS",
    "Information is counted in bits, with the logarithm to base 2.",
    "It can be, but here the loss is in nats: the natural logarithm, as everywhere in PyTorch. A "
    "blind guess among V words loses ln V.",
    result=lambda loss: loss / math.log(2),
)
task.fault(
    "C-BASE-10",
    "The logarithm is the one with base 10.",
    "In this formula it is the natural one, as `log` everywhere in PyTorch and NumPy. A blind "
    "guess among V words loses ln V.",
    result=lambda loss: loss / math.log(10),
)
task.fault(
    "C-NO-SOFTMAX",
    "The score of the right word, with a minus, is its loss.",
    "A score means little by itself: add 5 to all of them and nothing has changed for the model. "
    "The softmax compares the right word with the others.",
    log_p=as_is,
)
task.fault(
    "C-POSITIONS-COMPETE",
    "The softmax runs over axis 1.",
    "Axis 1 holds the positions, so words at different places compete with each other. The words "
    "of the vocabulary compete, at each position by itself; they are on the last axis.",
    log_p=lambda logits, pad: logits.log_softmax(1),
)
task.fault(
    "C-SENTENCES-COMPETE",
    "The softmax runs over axis 0.",
    "Axis 0 holds the sentences, so they compete with each other. The words of the vocabulary "
    "compete, at each position by itself; they are on the last axis.",
    log_p=lambda logits, pad: logits.log_softmax(0),
)
task.fault(
    "C-PAD-NEVER-PREDICTED",
    "Nobody should predict padding, so its score is left out of the softmax.",
    "`pad` says which targets do not count. Its score still takes part in every softmax, else the "
    "model may give it any probability for free.",
    log_p=without_pad,
)
task.fault(
    "C-LOG-OF-SOFTMAX",
    "Softmax first, then the logarithm of it.",
    "A probability of exp(−300) is 0 in float32, and its logarithm infinite; a small number added "
    "hides how wrong the model is. Both steps in one (log_softmax) stay exact.",
    log_p=(
        lambda logits, pad: logits.softmax(-1).log(),
        *(log_of_more(10.0**-n) for n in (6, 7, 8, 9, 10, 12)),
        *(log_of_at_least(10.0**-n) for n in (6, 7, 8, 9, 10, 12)),
    ),
)
task.fault(
    "C-NAIVE-LOG-SUM",
    "The formula has exp of the logits, so that is what I compute.",
    "exp(89) is infinite in float32. PyTorch's own log_softmax, logsumexp and cross_entropy move "
    "the largest logit to 0 first; that changes no probability.",
    log_p=(
        lambda logits, pad: (logits.exp() / logits.exp().sum(-1, keepdim=True)).log(),
        lambda logits, pad: logits - logits.exp().sum(-1, keepdim=True).log(),
    ),
)

# --- faults: what is returned, and what is edited -------------------------------------------------


def wiped(logits, target, pad):
    with torch.no_grad():
        logits[target == pad] = 0
    return logits, target


task.fault(
    "C-LOSS-CUT-OFF",
    "The loss is a number, and the number is right.",
    "It is, but `.item()`, `.detach()` or `no_grad` cut it off from the logits. Training needs a "
    "loss through which gradients flow back.",
    section="bottleneck-training",
    result=lambda loss: loss.detach(),
)
task.fault(
    "C-LOSS-AS-FLOAT",
    "One number is returned as a Python float.",
    "A float has no graph behind it, so no gradient can flow back through it. Return the tensor; "
    "whoever wants to print it calls `.item()` later.",
    section="bottleneck-training",
    result=lambda loss: loss.item(),
)
task.fault(
    "C-NOT-AVERAGED",
    "Each token has its loss, so I return them all.",
    "Every token does, but a step of training needs one number for the batch. Take the mean over "
    "the real ones.",
    average=(lambda losses, real: losses[real], lambda losses, real: losses * real),
)
task.fault(
    "C-LOSS-EACH-SENTENCE",
    "Each sentence has its loss, the mean over its words.",
    "It has, but a step of training needs one number for the batch, in which every token counts "
    "the same: one mean over the real tokens of all sentences.",
    average=(each_sentence, each_sentence_or_zero),
)
task.fault(
    "C-LOSS-FLOAT32",
    "A loss is a float32.",
    "It has the dtype of the logits. From float64 you drop half of the digits on the way.",
    log_p=lambda logits, pad: logits.float().log_softmax(-1),
)
task.fault(
    "C-EDITS-THE-LOGITS",
    "I may wipe the logits of padding before I compare.",
    "They belong to the caller, who finds them changed. Choose which losses to keep instead.",
    align=wiped,
)


@task.fault(
    "C-MARKS-THE-TARGET",
    "`target[target == pad] = -100` is the usual trick.",
    "It works, and it also writes −100 into the caller's target, where the next call finds an id "
    "that no vocabulary has. Let `torch.where` make a new tensor, or name the id to ignore.",
)
def marks_the_target(logits, target, pad):
    target[target == pad] = -100
    return F.cross_entropy(logits.transpose(1, 2), target)

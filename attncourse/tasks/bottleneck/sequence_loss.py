"""sequence_loss."""

import math
from functools import partial

import torch

from attncourse import bottleneck as reference
from attncourse.checks.answer import Failure, describe, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.task import Task
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


def loss_probes(rng):
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
        "large": scored(rng, 2, 3, n=4, size=9.0),
        "far apart": far_logits(rng, 0.0),
        "far away": far_logits(rng, 1e4),
        "double": scored(rng, 2, 3, n=3, **DOUBLE),
    }


def loss_small(rng):
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


def loss_maps(rng):
    inputs = scored(rng, 3, 2, n=4, words=5)
    return [("two rows of four positions, the last one and the last two padded", inputs, LOGITS)]


LOGITS = ("logits",)


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
    probes=loss_probes,
    differentiated=("padded", "square", "far apart"),
    small=loss_small,
    maps=loss_maps,
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


# --- faults ---------------------------------------------------------------------------------------


def losses(logits, target):
    """−log p(target) at every position (b n)."""
    return -logits.log_softmax(-1).gather(-1, target[:, :, None])[:, :, 0]


def over(loss, real):
    """Mean of (b n) over real positions."""
    return loss[real].mean()


@task.fault(
    "S-CE-PAD",
    thinks="The mean goes over all positions.",
    why="Padding is easy to predict, so a batch with much of it looks better than it is. The loss "
    "must not change when more padding is appended.",
)
def mean_over_everything(logits, target, pad):
    return losses(logits, target).mean()


@task.fault(
    "C-PADS-IN-THE-COUNT",
    thinks="Set the loss of padding to 0, then take the mean.",
    why="The sum is right now, but the mean still divides by all positions. With more padding "
    "your loss sinks. By how many tokens should it divide?",
)
def divides_by_all_positions(logits, target, pad):
    return (losses(logits, target) * (target != pad)).mean()


@task.fault(
    "C-PADS-IN-THE-SUM",
    thinks="Dividing by the number of real tokens leaves the padding out.",
    why="The divisor is right, but the sum above it still contains the loss of every pad. Both "
    "halves of the mean have to leave them out.",
)
def sums_over_all_positions(logits, target, pad):
    return losses(logits, target).sum() / (target != pad).sum()


@task.fault(
    "C-SUM-OF-LOSSES",
    thinks="The loss of a batch is the sum over its tokens.",
    why="Then a batch with twice the words has twice the loss, and twice the gradient. A mean can "
    "be compared from batch to batch.",
)
def sum_over_tokens(logits, target, pad):
    return losses(logits, target)[target != pad].sum()


@task.fault(
    "C-MEAN-OF-MEANS",
    thinks="First a mean for each sentence, then the mean of those.",
    why="Then a word of a short sentence counts more than a word of a long one. The loss here is a "
    "mean over tokens: each counts the same.",
)
def mean_of_means(logits, target, pad):
    real = target != pad
    each = (losses(logits, target) * real).sum(1) / real.sum(1)
    return each.mean()


@task.fault(
    "C-PER-SENTENCE",
    thinks="Divide the sum by the number of sentences.",
    why="That is the loss of a whole sentence, and it grows with its length. The mean over tokens "
    "is asked for.",
)
def divides_by_sentences(logits, target, pad):
    return losses(logits, target)[target != pad].sum() / len(target)


@task.fault(
    "C-PAD-BY-HEART",
    thinks="Padding is id 0.",
    why="In this course it is. The function is told the id as `pad`; with another vocabulary 0 is "
    "a word like any other, and yours would leave it out.",
)
def pad_is_zero(logits, target, pad):
    real = target != 0
    return losses(logits, target)[real].sum() / real.sum().clamp(min=1)


def reshapes_and_flattens(logits, target, pad):
    b, n, words = logits.shape
    classes = logits.reshape(b, words, n).transpose(1, 2)
    return over(losses(classes, target), target != pad)


@task.fault(
    "C-RESHAPED-CLASSES",
    thinks="Reshaping (b n vocab) into (b vocab n) puts the classes on axis 1.",
    why="A reshape cuts the same list of numbers into other rows; it never moves one. The shape is "
    "right, but scores of several positions are mixed up.",
    forms=(reshapes_and_flattens,),
)
def reshapes_instead_of_turning(logits, target, pad):
    b, n, words = logits.shape
    classes = logits.reshape(b, words, n)
    return torch.nn.functional.cross_entropy(classes, target, ignore_index=pad)


@task.fault(
    "C-CLASSES-LAST",
    thinks="`cross_entropy` finds the classes on the last axis.",
    why="It expects them on axis 1: (b vocab n). It complains here, except where n equals the size "
    "of the vocabulary; there it computes something else without a word.",
)
def classes_on_the_last_axis(logits, target, pad):
    return torch.nn.functional.cross_entropy(logits, target, ignore_index=pad)


@task.fault(
    "C-SOFTMAX-TWICE",
    thinks="Cross-entropy needs probabilities, so softmax comes first.",
    why="`cross_entropy` takes logits and applies softmax itself. Applied twice, even a certain "
    "and right answer keeps a large loss, and gradients are small.",
)
def softmax_twice(logits, target, pad):
    return over(losses(logits.softmax(-1), target), target != pad)


def minus_probability(logits, target, pad):
    return -over((-losses(logits, target)).exp(), target != pad)


@task.fault(
    "C-NO-LOGARITHM",
    thinks="The loss is one minus the probability of the right word.",
    why="Cross-entropy is −ln p. At p near 1 the two agree; near 0 the logarithm grows without "
    "limit, so a confident error hurts.",
    forms=(minus_probability,),
)
def one_minus_probability(logits, target, pad):
    return over(1 - (-losses(logits, target)).exp(), target != pad)


@task.fault(
    "C-SIGN",
    thinks="The loss is the mean log-probability of the right words.",
    why="Log-probabilities are negative, and better when they are larger. A loss must get smaller "
    "when the model gets better. One sign is missing.",
)
def without_the_minus(logits, target, pad):
    return over(-losses(logits, target), target != pad)


@task.fault(
    "C-PERPLEXITY",
    thinks="A translator is measured by its perplexity, exp of the cross-entropy.",
    why="Perplexity is a way to report the loss. Asked for is the mean of −ln p itself, in nats a "
    "token.",
)
def perplexity(logits, target, pad):
    return over(losses(logits, target), target != pad).exp()


@task.fault(
    "C-BITS",
    thinks="Information is counted in bits, with the logarithm to base 2.",
    why="It can be, but here the loss is in nats: the natural logarithm, as everywhere in PyTorch. "
    "A blind guess among V words loses ln V.",
)
def in_bits(logits, target, pad):
    return over(losses(logits, target), target != pad) / torch.tensor(2.0).log().to(logits)


@task.fault(
    "C-NO-SOFTMAX",
    thinks="The score of the right word, with a minus, is its loss.",
    why="A score means little by itself: add 5 to all of them and nothing has changed for the "
    "model. The softmax compares the right word with the others.",
)
def minus_the_score(logits, target, pad):
    return over(-logits.gather(-1, target[:, :, None])[:, :, 0], target != pad)


@task.fault(
    "C-POSITIONS-COMPETE",
    thinks="The softmax runs over axis 1.",
    why="Axis 1 holds the positions, so words at different places compete with each other. The "
    "words of the vocabulary compete, at each position by itself; they are on the last axis.",
)
def softmax_over_positions(logits, target, pad):
    right = logits.log_softmax(1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-right, target != pad)


@task.fault(
    "C-PAD-NEVER-PREDICTED",
    thinks="Nobody should predict padding, so its score is left out of the softmax.",
    why="`pad` says which targets do not count. Its score still takes part in every softmax, "
    "else the model may give it any probability for free.",
)
def pad_out_of_the_softmax(logits, target, pad):
    real = target != pad
    hidden = torch.arange(logits.shape[-1]) == pad
    masked = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    safe = torch.where(real, target, (target + 1) % logits.shape[-1])
    return over(losses(masked, safe), real)


@task.fault(
    "C-MASKED-BY-PREDICTION",
    thinks="Positions where the model says padding are padding.",
    why="A model that says pad in the middle of a sentence would not pay for it. The target "
    "tells which positions are real.",
)
def masks_by_prediction(logits, target, pad):
    real = (target != pad) & (logits.argmax(-1) != pad)
    return losses(logits, target)[real].sum() / real.sum().clamp(min=1)


@task.fault(
    "C-SHIFTS-AGAIN",
    thinks="Logits at place t predict the word at t + 1, so they are compared with a shift.",
    why="The shift is made already: `teacher_inputs` moved the inputs, so logits and target stand "
    "at the same place. Shifted twice, the decoder learns to skip a word.",
    section="teacher-forcing",
)
def shifts_again(logits, target, pad):
    return over(losses(logits[:, :-1], target[:, 1:]), target[:, 1:] != pad)


def log_of_softmax_plus_epsilon(logits, target, pad, epsilon=1e-9):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-(p + epsilon).log(), target != pad)


def log_of_softmax_clamped(logits, target, pad, epsilon=1e-12):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-p.clamp(min=epsilon).log(), target != pad)


OTHER_EPSILONS = (
    *(partial(log_of_softmax_plus_epsilon, epsilon=10.0**-n) for n in (6, 7, 8, 10, 12)),
    *(partial(log_of_softmax_clamped, epsilon=10.0**-n) for n in (6, 7, 8, 9, 10)),
)


@task.fault(
    "C-LOG-OF-SOFTMAX",
    thinks="Softmax first, then the logarithm of it.",
    why="A probability of exp(−300) is 0 in float32, and its logarithm infinite; a small number "
    "added hides how wrong the model is. Both steps in one (log_softmax) stay exact.",
    forms=(log_of_softmax_plus_epsilon, log_of_softmax_clamped, *OTHER_EPSILONS),
)
def log_of_softmax(logits, target, pad):
    p = logits.softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
    return over(-p.log(), target != pad)


def naive_log_sum(logits, target, pad):
    right = logits.gather(-1, target[:, :, None])[:, :, 0]
    return over(logits.exp().sum(-1).log() - right, target != pad)


@task.fault(
    "C-NAIVE-LOG-SUM",
    thinks="The formula has exp of the logits, so that is what I compute.",
    why="exp(89) is infinite in float32. PyTorch's own log_softmax, logsumexp and cross_entropy "
    "move the largest logit to 0 first; that changes no probability.",
    forms=(naive_log_sum,),
)
def naive_softmax(logits, target, pad):
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return over(-p.gather(-1, target[:, :, None])[:, :, 0].log(), target != pad)


def loss_from_a_number(logits, target, pad):
    return torch.tensor(over(losses(logits, target), target != pad).item(), dtype=logits.dtype)


@task.fault(
    "C-LOSS-CUT-OFF",
    thinks="The loss is a number, and the number is right.",
    why="It is, but `.item()`, `.detach()` or `no_grad` cut it off from the logits. Training needs "
    "a loss through which gradients flow back.",
    section="bottleneck-training",
    forms=(loss_from_a_number,),
)
def loss_detached(logits, target, pad):
    return over(losses(logits, target), target != pad).detach()


@task.fault(
    "C-LOSS-AS-FLOAT",
    thinks="One number is returned as a Python float.",
    why="A float has no graph behind it, so no gradient can flow back through it. Return the "
    "tensor; whoever wants to print it calls `.item()` later.",
    section="bottleneck-training",
)
def loss_as_float(logits, target, pad):
    return over(losses(logits, target), target != pad).item()


def zeros_at_padding(logits, target, pad):
    return losses(logits, target) * (target != pad)


@task.fault(
    "C-NOT-AVERAGED",
    thinks="Each token has its loss, so I return them all.",
    why="Every token does, but a step of training needs one number for the batch. Take the mean "
    "over the real ones.",
    forms=(zeros_at_padding,),
)
def not_averaged(logits, target, pad):
    return losses(logits, target)[target != pad]


@task.fault(
    "C-LOSS-FLOAT32",
    thinks="A loss is a float32.",
    why="It has the dtype of the logits. From float64 you drop half of the digits on the way.",
)
def loss_in_float32(logits, target, pad):
    return over(losses(logits.float(), target), target != pad)


@task.fault(
    "C-EDITS-THE-LOGITS",
    thinks="I may wipe the logits of padding before I compare.",
    why="They belong to the caller, who finds them changed. Choose which losses to keep instead.",
)
def wipes_logits(logits, target, pad):
    loss = over(losses(logits, target), target != pad)
    with torch.no_grad():
        logits[target == pad] = 0
    return loss


@task.fault(
    "C-MARKS-THE-TARGET",
    thinks="`target[target == pad] = -100` is the usual trick.",
    why="It works, and it also writes −100 into the caller's target, where the next call finds an "
    "id that no vocabulary has. Let `torch.where` make a new tensor, or name the id to ignore.",
)
def marks_the_target(logits, target, pad):
    target[target == pad] = -100
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), target)

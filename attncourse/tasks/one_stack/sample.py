import functools
import random

import torch

from attncourse import one_stack as reference
from attncourse.checks.answer import Failure, following
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.tasks.top_p import Nucleus, of_top_p

# So many draws know a share to 0.035, 0.020 and 0.011 (one standard deviation).
FEW, DRAWS, MANY = 200, 600, 2_000


def shares_of(sample, draws):
    """`sample` as a function that says how often each word is drawn: (b vocab).

    Each row is handed in many times, all in one call: a batch of many equal rows.
    """

    def function(logits, temperature, top_k=None, top_p=None):
        b, vocab = logits.shape
        many = logits.repeat_interleave(draws, 0)
        words = sample(many, temperature, top_k, top_p)
        if not isinstance(words, torch.Tensor):
            return words
        if words.shape != (b * draws,):
            raise Unusable(
                f"returned a tensor of shape ({' '.join(map(str, words.shape))}) for logits of "
                f"shape ({b * draws} {vocab}); expected ({b * draws}), one id a row."
            )
        if words.is_floating_point() or words.dtype == torch.bool:
            raise Unusable(f"returned words of {words.dtype}; ids are whole numbers.")
        if words.min() < 0 or words.max() >= vocab:
            raise Unusable(
                f"drew the ids {words.min()} to {words.max()}; they go from 0 to {vocab - 1}."
            )
        counts = [torch.bincount(row, minlength=vocab) for row in words.long().view(b, draws)]
        return torch.stack(counts) / draws

    return function


def from_a_column(sample):
    """`sample`, also where the words come as a column: what else is wrong shows beside that."""

    def flat(*inputs):
        words = sample(*inputs)
        return words[:, 0] if _is_column(words, len(inputs[0])) else words

    return flat


def leniently(sample):
    return as_shares(from_a_column(sample))


def at_a_lenient_glance(sample):
    return at_a_glance(from_a_column(sample))


def _is_column(words, b):
    return isinstance(words, torch.Tensor) and words.shape == (b, 1)


def at_a_glance(sample):
    return shares_of(sample, FEW)


def as_shares(sample):
    return shares_of(sample, DRAWS)


def closely(sample):
    return shares_of(sample, MANY)


def by_default(sample):
    """The same of an answer that is given the logits alone."""
    return as_shares(lambda logits, *_: sample(logits))


# Shares of the words, from which logits are made. No two of a row are equal, and no sum of the
# likeliest is a top_p of below: rounding would decide.
LADDER = [0.40, 0.24, 0.15, 0.11, 0.07, 0.03]
STEEP = [0.62, 0.20, 0.09, 0.05, 0.03, 0.01]
FLAT = [0.225, 0.195, 0.185, 0.16, 0.13, 0.105]
TINY = 1e-9  # of float32, 1 − TINY is 1
SHUFFLE = [3, 0, 5, 1, 4, 2]


def logits_of(*rows, shift=0.0):
    """Logits (b vocab) with these shares, the words in another order in every row."""
    mixed = [
        [row[(place + 2 * turn) % len(row)] for place in SHUFFLE] for turn, row in enumerate(rows)
    ]
    return torch.tensor(mixed).log() + shift


def drawing(logits, temperature=1.0, top_k=None, top_p=None):
    return {"logits": logits, "temperature": temperature, "top_k": top_k, "top_p": top_p}


def probes(rng):
    two, three = logits_of(STEEP, FLAT), logits_of(*THREE)
    return {
        "as they are": drawing(two),
        "cold": drawing(two, 0.5),
        "warm": drawing(two, 2.0),
        "top 1": drawing(two, top_k=1),
        "top 2": drawing(two, top_k=2),
        "top 4": drawing(two, top_k=4),
        "one more than there are": drawing(three, top_k=7),
        "more than there are": drawing(two, top_k=50),
        "nucleus, next to nothing": drawing(logits_of(FLAT, LADDER), top_p=TINY),
        "nucleus 0.3": drawing(two, top_p=0.3),
        "nucleus 0.6": drawing(two, top_p=0.6),
        "nucleus 0.75": drawing(two, top_p=0.75),
        "nucleus 0.95": drawing(two, top_p=0.95),
        "cold, top 3": drawing(three, 0.5, 3),
        "warm, nucleus 0.7": drawing(three, 2.0, None, 0.7),
        "cold, nucleus 0.7": drawing(three, 0.5, None, 0.7),
        "top 3, nucleus 0.7": drawing(three, 1.0, 3, 0.7),
        "top 2, nucleus 0.5": drawing(logits_of(FLAT, LADDER), 1.0, 2, 0.5),
        "top 4, nucleus 0.3": drawing(logits_of(LADDER, STEEP), 1.0, 4, 0.3),
        "hot, nucleus 0.4": drawing(two, 4.0, None, 0.4),
        "all of it": drawing(three, 1.5, 4, 0.8),
        "high scores": drawing(logits_of(FLAT, LADDER, shift=5.0), 1.0, 3, 0.9),
        "scores far apart": drawing(
            logits_of(FLAT, LADDER, shift=torch.tensor([[200.0], [-200.0]])), 1.0, 3, 0.9
        ),
        "low scores": drawing(logits_of(FLAT, LADDER, shift=-40.0), 1.0, 3, 0.9),
    }


def small(rng):
    one = logits_of(LADDER)
    yield drawing(one)
    yield drawing(one, 0.5)
    yield drawing(one, 2.0)
    yield drawing(one, top_k=1)
    yield drawing(one, top_k=2)
    yield drawing(one, top_p=0.3)
    yield drawing(one, top_p=0.5)
    yield drawing(logits_of(LADDER, STEEP), top_k=2)
    yield drawing(logits_of(LADDER, STEEP), top_p=0.7)
    yield drawing(one, 2.0, None, 0.7)
    yield drawing(one, 1.0, 3, 0.7)


THREE = (LADDER, STEEP, FLAT)
EDITED = (
    drawing(logits_of(*THREE), 2.0),
    drawing(logits_of(*THREE), 1.0, 2),
    drawing(logits_of(*THREE), 1.0, None, 0.6),
)


def plainly(sample):
    """`sample` as it is, to see what becomes of its logits."""

    def function(logits, temperature, top_k=None, top_p=None):
        return sample(logits, temperature, top_k, top_p)

    return function


def _edits(answer, inputs):
    return "logits" in answer.observe(inputs, adapt=plainly).edited


SEEDS = range(1, 9)


def drawn_alike(answer, inputs, adapt=at_a_glance):
    """Whether all states of the random generator give the same.

    Two are enough for an answer that draws many words. One word for a whole batch may be the same
    by chance: in one of 30,000 such answers it is the likeliest eight times.
    """
    first = answer(inputs, seed=SEEDS[0], adapt=adapt)
    others = (answer(inputs, seed=seed, adapt=adapt) for seed in SEEDS[1:])
    return all(torch.equal(first, each) for each in others)


def traits(answer):
    inputs = drawing(logits_of(FLAT))
    return (
        {
            "same for any random numbers": drawn_alike(answer, inputs, at_a_lenient_glance),
            "resets the random state": answer.resets_random_state(inputs, adapt=plainly),
            "draws elsewhere": answer.draws_elsewhere(inputs, adapt=plainly),
            "returns a column": _is_column(
                answer.observe(EDITED[0], adapt=plainly).returned, len(THREE)
            ),
            "edits the logits": any(_edits(answer, each) for each in EDITED),
        }
        | how_many(answer)
        | of_numbers(answer)
    )


def how_many(answer):
    """Whether more words are left, or fewer, than the filters leave: whichever words they are."""
    seen = {}
    for name, top_k, top_p in (
        ("top-k leaves", 2, None),
        ("top-p leaves", None, 0.6),
        ("both filters leave", 2, 0.5),
    ):
        inputs = drawing(logits_of(FLAT, LADDER), 1.0, top_k, top_p)
        due = (reference.sampling_distribution(*inputs.values()) > 0).sum(-1)
        came = (answer(inputs, adapt=at_a_lenient_glance) > 0).sum(-1)
        seen[f"{name} too many words"] = bool((came > due).any())
        seen[f"{name} too few words"] = bool((came < due).any())
    return seen


def of_numbers(answer):
    """What a temperature and a large top_k do, whichever words are drawn."""
    cold, warm = (
        answer(drawing(logits_of(STEEP), each), adapt=at_a_lenient_glance).max()
        for each in (0.5, 2.0)
    )
    large = answer.observe(drawing(logits_of(STEEP), top_k=50), adapt=at_a_lenient_glance)
    return {
        "a low temperature sharpens less than a high one": bool(cold < warm + 0.25),
        "fails where top_k is large": large.error is not None,
    }


task = Task(
    reference.sample,
    number=4,
    returns=(f"shares in a batch of {DRAWS:,} such rows",),
    difficulty=4,
    minutes=30,
    section="sampling",
    probes=probes,
    adapt=leniently,
    small=small,
    traits=traits,
    chance=True,
    tolerance=0.2,
)


# How the words are looked at; how near a share may be to be right, and how far off, to be wrong
# for sure. In between, more are drawn. The last look decides, at five standard deviations. A right
# answer mostly stops at the first: one that goes from row to row is a hundred times as slow.
LOOKS = (
    (dict(adapt=at_a_glance), 0.08, 0.2),
    (dict(adapt=as_shares), 0.07, 0.11),
    (dict(adapt=closely), 0.055, 0.055),
)


def draws(answer, inputs, what, looks=LOOKS):
    """Assert that the words are drawn as often as they should."""
    expected = reference.sampling_distribution(*inputs.values())
    for how, near, far in looks:
        got = answer(inputs, **how)
        off = (got - expected).abs()
        impossible = (got > 0) & (expected == 0)
        if impossible.any() or off.max() > far:
            break
        if off.max() <= near:
            return
    row, word = divmod((off + impossible).argmax().item(), got.shape[1])
    due, came = answer.apart(expected[row, word], got[row, word], ".0%")
    raise Failure(
        f"{what}: of many rows of logits like row {row}, given in one call, word {word} should be "
        f"drawn in {due}; in yours it comes in {came}.",
        inputs,
        expected,
        got,
        whole="result",
    )


@task.check(1)
def one_id_for_each_row(answer):
    for rows in ((LADDER,), (LADDER, FLAT)):
        answer(drawing(logits_of(*rows)), adapt=at_a_glance)


@task.check(1)
def words_come_as_often_as_they_are_likely(answer):
    draws(answer, drawing(logits_of(*THREE)), "As the model scores them")
    draws(answer, drawing(logits_of(*THREE, shift=30.0)), "With 30 more on every score")
    far = torch.tensor([[200.0], [0.0], [-200.0]])
    said = "With 200 more on the scores of one row, 200 less on those of another"
    draws(answer, drawing(logits_of(*THREE, shift=far)), said)
    alone = ((dict(adapt=by_default), 0.1, 0.1),)
    draws(answer, drawing(logits_of(*THREE)), "With the logits alone", alone)


@task.check(1)
def a_low_temperature_sharpens_and_a_high_one_flattens(answer):
    for temperature in (0.25, 0.5, 2.0, 4.0):
        draws(answer, drawing(logits_of(*THREE), temperature), f"Temperature {temperature}")


@task.check(2, "top-k leaves the k likeliest of each row")
def top_k_leaves_the_k_likeliest_of_each_row(answer):
    with following(lambda: draws(answer, drawing(logits_of(*THREE)), "")):
        for k in (1, 2, 4, 6, 50):
            draws(answer, drawing(logits_of(*THREE), 1.0, k), f"top_k = {k}")
        draws(answer, drawing(logits_of(*THREE, shift=-40.0), 1.0, 3), "top_k = 3, low scores")


@task.check(2, "top-p leaves the fewest words that reach it")
def top_p_leaves_the_fewest_words_that_reach_it(answer):
    for p in (TINY, 0.1, 0.3, 0.6, 0.75, 0.95, 1.0):
        draws(answer, drawing(logits_of(*THREE, shift=2.0), 1.0, None, p), f"top_p = {p}")


def each_alone(answer, temperature, k, p):
    """Assert that each of the three is right without the others."""
    for alone in ((temperature, None, None), (1.0, k, None), (1.0, None, p)):
        draws(answer, drawing(logits_of(*THREE, shift=2.0), *alone), "")


@task.check(1, "temperature comes first, then top-k, then top-p")
def temperature_comes_first_then_top_k_then_top_p(answer):
    for temperature, k, p in ((2.0, None, 0.7), (0.5, None, 0.7), (1.0, 3, 0.7), (1.5, 4, 0.8)):
        said = f"temperature = {temperature}, top_k = {k}, top_p = {p}"
        with following(functools.partial(each_alone, answer, temperature, k, p)):
            draws(answer, drawing(logits_of(*THREE), temperature, k, p), said)


@task.check(1, "every row is drawn anew by torch's own generator and nothing is reset")
def every_row_is_drawn_anew_and_nothing_is_reset(answer):
    inputs = drawing(logits_of(FLAT))
    if drawn_alike(answer, inputs):
        raise Failure(
            f"{FEW:,} draws from {len(SEEDS)} states of the random generator came out exactly "
            "alike. Do you draw at random?",
            inputs,
        )
    if (answer(inputs, seed=1, adapt=at_a_glance).amax(-1) == 1).all():
        raise Failure(
            f"In a batch of {FEW:,} equal rows all came out as one word, and in another call as "
            "another one. Each row needs a chance of its own.",
            inputs,
        )
    if answer.draws_elsewhere(inputs, adapt=plainly):
        raise Failure(
            "Your answer draws from another random generator than torch's own, such as Python's or "
            "NumPy's. With `torch.manual_seed`, a caller can repeat what comes from torch's; yours "
            "cannot be repeated.",
            inputs,
        )
    if answer.resets_random_state(inputs, adapt=plainly):
        raise Failure(
            "After your answer, the global random generator is always in the same state: a "
            "`manual_seed` inside a function makes all later draws of the program repeat.",
            inputs,
        )


@task.check(1)
def the_logits_stay_as_they_were(answer):
    for inputs in EDITED:
        with following(functools.partial(each_alone, answer, 2.0, 2, 0.6)):
            answer(inputs, adapt=at_a_glance)
        if _edits(answer, inputs):
            raise Failure("Your answer changed the logits that it was given.", inputs)
        answer.leaves_settings(inputs, adapt=plainly)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Drawing(Nucleus):
    def before(self):
        pass

    def own(logits):
        return logits

    def temper(logits, temperature):
        return logits / temperature

    def tempered(self, logits, temperature):
        return self.temper(self.own(logits), temperature)

    def number(k, vocab):
        return min(k, vocab)

    def least(logits, k):
        return logits.topk(k).values[:, -1:]

    def threshold(self, logits, k):
        return self.least(logits, self.number(k, logits.shape[-1]))

    def cut_off(logits, least):
        return logits.masked_fill(logits < least, -torch.inf)

    def axis():
        return -1

    def shares(self, logits):
        return logits.softmax(self.axis())

    def warm(p, temperature):
        return p

    def nucleus(self, p, top_p):
        likely, order = self.sort(p)
        return p * self.back(self.stays(likely, top_p), order)

    def afterwards(p, temperature):
        return p

    def draw(p):
        return torch.multinomial(p, 1)[:, 0]

    def result(words):
        return words

    def limit(self, logits, top_k):
        return logits if top_k is None else self.cut_off(logits, self.threshold(logits, top_k))

    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        self.before()
        logits = self.tempered(logits, temperature)
        p = self.warm(self.shares(self.limit(logits, top_k)), temperature)
        if top_p is not None:
            p = self.nucleus(p, top_p)
        return self.result(self.draw(self.afterwards(p, temperature)))


# --- faults: chance -----------------------------------------------------------------------------

task.fault("P-GREEDY", draw=lambda p: p.argmax(-1))
evenly = task.fault("P-UNIFORM", draw=lambda p: torch.multinomial((p > 0).float(), 1)[:, 0])


def by_one_number(p):
    return ((p / p.sum(-1, keepdim=True)).cumsum(-1) < torch.rand(1)).sum(-1)


def by_one_number_the_likeliest_first(p):
    p, words = p.sort(descending=True)
    return words.gather(-1, by_one_number(p)[:, None])[:, 0]


task.fault(
    "P-ONE-DRAW",
    draw=(
        lambda p: torch.multinomial(p[0], 1).expand(len(p)),
        by_one_number,
        by_one_number_the_likeliest_first,
    ),
)
task.fault("P-FIRST-ROW", draw=lambda p: torch.multinomial(p[0], len(p), replacement=True))
task.fault("P-COLUMN", result=lambda words: words[:, None])
task.fault(
    "P-SHARE-NOT-PLACE",
    draw=lambda p: torch.multinomial(p.sort(dim=-1, descending=True).values, 1)[:, 0],
)


def likeliest_first(self, logits, top_k):
    return logits if top_k is None else logits.topk(min(top_k, logits.shape[-1])).values


def ranked(self, p, top_p):
    return (likely := self.sort(p)[0]) * self.stays(likely, top_p)


task.fault(
    "P-RANK-AFTER-FILTER",
    limit=(
        likeliest_first,
        ...,
        likeliest_first,
    ),
    back=(lambda keep, order: keep, ..., ...),
    nucleus=(*(ranked,) * 2, ...),
)

task.fault(
    "P-OTHER-CHANCE",
    draw=lambda p: torch.tensor([random.choices(range(len(row)), row)[0] for row in p.tolist()]),
)


task.fault(
    "P-OWN-GENERATOR",
    draw=lambda p: torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0],
)


@task.fault("P-RESEED")
class Reseeds(Drawing):
    def before(self):
        torch.default_generator.manual_seed(0)


@evenly
class EvenlyFromAFilter(Drawing):
    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        p = self.shares(self.limit(self.tempered(logits, temperature), top_k))
        if top_p is not None:
            p = self.nucleus(p, top_p)
        filtered = top_k is not None or top_p is not None
        return self.result(self.draw((p > 0).float() if filtered else p))


# --- faults: the softmax ---


task.fault("P-SOFTMAX-OVER-ROWS", axis=lambda: 0)
task.fault(
    "D-NAIVE-SOFTMAX",
    shares=lambda self, logits: logits.exp() / logits.exp().sum(self.axis(), True),
)

task.fault(
    "P-SOFTMAX-TWICE",
    afterwards=(
        lambda p, temperature: p.softmax(-1),
        lambda p, temperature: (p / p.sum(-1, keepdim=True)).softmax(-1),
        lambda p, temperature: torch.where(p > 0, p, -torch.inf).softmax(-1),
    ),
)
task.fault(
    "P-NOT-SHARES",
    shares=(
        lambda self, logits: logits.exp(),
        lambda self, logits: (logits - logits.amax(self.axis(), keepdim=True)).exp(),
    ),
)

# --- faults: temperature ------------------------------------------------------------------------

task.fault("P-TEMPERATURE-TIMES", temper=lambda logits, temperature: logits * temperature)
task.fault("P-TEMPERATURE-IGNORED", temper=lambda logits, temperature: logits)
task.fault("P-TEMPERATURE-SQUARED", temper=lambda logits, temperature: logits / temperature**2)

task.fault(
    "P-TEMPERATURE-ON-SHARES",
    temper=lambda logits, temperature: logits,
    warm=lambda p, temperature: p / temperature,
)

# --- faults: top-k ------------------------------------------------------------------------------

task.fault("P-TOP-K-IGNORED", limit=lambda self, logits, top_k: logits)
task.fault(
    "P-TOP-K-SMALLEST",
    least=lambda logits, k: logits.sort(dim=-1).values[:, k - 1, None],
)
task.fault(
    "P-TOP-K-ONE-LESS",
    cut_off=(
        lambda logits, least: torch.where(
            (logits <= least) & (logits < logits.amax(-1, keepdim=True)), -torch.inf, logits
        ),
        lambda logits, least: logits.masked_fill(logits <= least, -torch.inf),
    ),
)
task.fault(
    "P-TOP-K-ONE-MORE",
    number=lambda k, vocab: min(k + 1, vocab),
)


def of_the_rows(one):
    """One of the thresholds of all rows, or what is made of them."""
    return lambda self, logits, k: one(self.least(logits, self.number(k, logits.shape[-1])))


def to_a_low_number(logits, least):
    return logits.masked_fill(logits < least, -1e30)


ONE_OF_ALL = (lambda least: least[0], lambda least: least[-1], torch.min, torch.max, torch.mean)

task.fault(
    "P-TOP-K-FIRST-ROW",
    threshold=tuple(map(of_the_rows, ONE_OF_ALL)) * 2,
    cut_off=(*(...,) * len(ONE_OF_ALL), *(to_a_low_number,) * len(ONE_OF_ALL)),
)
task.fault(
    "P-TOP-K-OF-ALL-ROWS",
    threshold=lambda self, logits, k: self.least(
        logits.flatten()[None], self.number(k, logits.shape[-1])
    ),
    cut_off=lambda logits, least: logits.masked_fill(
        (logits < least) & (logits < logits.amax(-1, keepdim=True)), -torch.inf
    ),
)
task.fault(
    "P-TOP-K-REMOVED",
    cut_off=(
        lambda logits, least: torch.where(
            (logits >= least) & (logits.amin(-1, keepdim=True) < least), -torch.inf, logits
        ),
        lambda logits, least: logits.masked_fill(logits >= least, -torch.inf),
        lambda logits, least: logits.masked_fill(logits >= least, -1e9),
    ),
)
task.fault("P-TOP-K-TOO-LARGE", number=lambda k, vocab: k)
task.fault("P-FILL-ZERO", cut_off=lambda logits, least: logits.masked_fill(logits < least, 0.0))

# --- faults: top-p ------------------------------------------------------------------------------

task.fault("P-TOP-P-IGNORED", nucleus=lambda self, p, top_p: p)
of_top_p(task)


def one_more(likely, top_p):
    keep = likely.cumsum(-1) - likely < top_p
    return torch.cat([torch.ones_like(keep[..., :1]), keep[..., :-1]], -1)


task.fault("P-TOP-P-ONE-MORE", stays=one_more)
task.fault(
    "P-TOP-P-OF-THE-LIKELIEST", stays=lambda likely, top_p: likely >= top_p * likely[..., :1]
)
task.fault(
    "P-TOP-P-OF-THE-WORDS",
    stays=lambda likely, top_p: (
        torch.arange(likely.shape[-1]) < max(1, int(top_p * likely.shape[-1]))
    ).expand(likely.shape),
)


@task.fault("P-TOP-P-BEFORE-TOP-K")
class NucleusFirst(Drawing):
    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        self.before()
        tempered = self.tempered(logits, temperature)
        p = self.shares(self.limit(tempered, top_k))
        if top_p is not None:
            p = p * (self.nucleus(self.shares(tempered), top_p) > 0)
        return self.result(self.draw(self.afterwards(p, temperature)))


one_of_two = task.fault("P-ONE-FILTER")


@one_of_two
class OneFilter(Drawing):
    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        return super().__call__(logits, temperature, top_k, None if top_k is not None else top_p)


@one_of_two
class OneFilterTheOther(Drawing):
    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        return super().__call__(logits, temperature, None if top_p is not None else top_k, top_p)


task.fault(
    "P-TEMPERATURE-LAST",
    tempered=lambda self, logits, temperature: self.own(logits),
    afterwards=lambda self, p, temperature: self.temper(p.log(), temperature).softmax(-1),
)


edits = task.fault("P-EDITS-LOGITS", temper=lambda logits, temperature: logits.div_(temperature))


@edits
class Edits(Drawing):
    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        words = super().__call__(logits, temperature, top_k, top_p)
        logits /= temperature
        logits[self.limit(logits, top_k) == -torch.inf] = -torch.inf
        if top_p is not None:
            logits[self.nucleus(self.shares(logits), top_p) == 0] = -torch.inf
        return words

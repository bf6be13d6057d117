import torch

from attncourse import one_stack as reference
from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task

MOST = 0.035  # two measurements of the same share lie nearer than this: see `facts`
MANY = 1000  # exchanged words, of which two means are as near


def with_facts(masked_words):
    """`masked_words` as a function of sizes and of a seed: what can be seen of its chance.

    The words are drawn from `lowest_id` on, with another generator. Right answers may use theirs in
    any order, so shares are compared, and not the words.
    """

    def function(share, rows, columns, mask_id, vocabulary_size, seed, lowest_id=None):
        low = vocabulary_size // 2 if lowest_id is None else lowest_id
        drawn = torch.Generator().manual_seed(1000 + seed)
        tokens = torch.randint(low, vocabulary_size, (rows, columns), generator=drawn, device="cpu")

        def call(tokens, seed):
            given = tokens.clone()
            rng = torch.Generator().manual_seed(seed)
            returned = masked_words(given, share, mask_id, vocabulary_size, rng)
            if returned is None:  # not answered yet
                return None, False
            return _pair(returned, tokens), not torch.equal(given, tokens)

        returned, edited = call(tokens, seed)
        if returned is None:
            return None
        first, again, other = (call(tokens[:5], each)[0] for each in (seed, seed, seed + 1))
        return facts(tokens, *returned, mask_id, vocabulary_size) | {
            "tokens changed": float(edited),
            "same draw for the same rng": float(_same(first, again)),
            "same draw for another rng": float(_same(first, other)),
        }

    return function


def _pair(returned, tokens):
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise Unusable("returned something else than a pair (inputs, targets).")
    for name, value in zip(("inputs", "targets"), returned, strict=True):
        if not isinstance(value, torch.Tensor):
            raise Unusable(f"returned {name} that are no tensor.")
        if value.shape != tokens.shape:
            raise Unusable(
                f"returned {name} of shape ({' '.join(map(str, value.shape))}); expected that of "
                f"tokens, ({' '.join(map(str, tokens.shape))})."
            )
        if value.is_floating_point() or value.dtype == torch.bool:
            raise Unusable(f"returned {name} of {value.dtype}; ids are whole numbers.")
    return [value.long() for value in returned]


def _same(one, two):
    return all(torch.equal(*pair) for pair in zip(one, two, strict=True))


ZEROS = "share of words with id 0 that are asked for"


def _number(where):
    return where.count_nonzero().item()  # `sum` takes twice as long


def _share(where, of):
    return _number(where & of) / max(1, _number(of))


def _uneven(both, asked, share, axis):
    """How much the masked part of what is asked differs by line, beyond chance: 0 to 1."""
    asked = asked.sum(axis)
    part = both.sum(axis) / asked.clamp(min=1)
    by_chance = share * (1 - share) / asked.mean().clamp(min=1)
    most = share * (1 - share) - by_chance
    return ((part.var() - by_chance) / most).clamp(0, 1).item() if most > 0 else 0.0


def _alike(ids, where):
    """Whether words that follow each other in a row are mostly the same one: 0 or 1.

    A few are so by chance; where there are few, this is not said.
    """
    places = where.nonzero(as_tuple=True)
    row, words = places[0], ids[places]
    neighbors = row[1:] == row[:-1]
    same = (words[1:] == words[:-1]) & neighbors
    return float(neighbors.sum() >= 20 and 2 * same.sum() > neighbors.sum())


def facts(tokens, inputs, targets, mask_id, vocabulary_size):
    """What came of the words, as shares between 0 and 1."""
    asked = targets != reference.NOT_ASKED
    masked, left = inputs == mask_id, inputs == tokens
    exchanged = asked & ~masked & ~left
    new = inputs[~masked & ~left].double() / max(1, vocabulary_size - 1)  # asked for or not
    different = len(new.unique())
    chosen = asked.double()
    counts = chosen.sum(1)
    by_chance = asked.shape[1] * chosen.mean() * (1 - chosen.mean())
    expected = chosen.mean() * (1 - chosen.mean()) + 1e-9
    both = (masked & asked).double()
    share = both.sum() / chosen.sum().clamp(min=1)
    zeros = tokens == 0
    of_zeros = {ZEROS: _share(asked, zeros)} if zeros.any() else {}
    return of_zeros | {
        "share of words asked for": chosen.mean().item(),
        "masked share of words asked for": _share(masked, asked),
        "unchanged share of words asked for": _share(left, asked),
        "exchanged share of words asked for": _share(exchanged, asked),
        "share of words asked for that are their own target": _share(targets == tokens, asked),
        "changed share of all other words": _share(~left, ~asked),
        "mean id of exchanged words (1 = the largest id)": new.mean().item()
        if len(new) >= MANY and different > 1
        else 0.5,
        "share of the vocabulary among exchanged words": different / vocabulary_size,
        "change of the number asked for from row to row (1 = yes)": float(
            by_chance > 0 and counts.var() > by_chance / 2
        ),
        "likeness of rows": (chosen.mean(0).var() / expected).clamp(max=1).item(),
        "likeness of columns": (chosen.mean(1).var() / expected).clamp(max=1).item(),
        "unevenness of masks from row to row": _uneven(both, chosen, share, 1),
        "unevenness of masks from column to column": _uneven(both, chosen, share, 0),
        "one word for all exchanged ones of a row (1 = yes)": _alike(inputs, exchanged),
        "one word for all exchanged ones of a column (1 = yes)": _alike(inputs.T, exchanged.T),
    }


def hidden(share, rows=300, columns=100, mask_id=3, vocabulary_size=20, seed=0, **others):
    return others | {
        "share": share,
        "rows": rows,
        "columns": columns,
        "mask_id": mask_id,
        "vocabulary_size": vocabulary_size,
        "seed": seed,
    }


def probes(rng):
    # Where nearly all are asked for, words of every id stand in the text, so that one word for all
    # exchanged ones shows the same, whichever it is.
    # Answers are watched on the first and on the last: one that goes from word to word takes long.
    # Known faults are looked at first where a probe has few words, and all are asked for.
    return {
        "none": hidden(0.0, 50, 50, seed=9),
        "all": hidden(1.0, 200, 60, mask_id=2, seed=7, lowest_id=0),
        "a sixth": hidden(0.15),
        "a half": hidden(0.5, mask_id=0, seed=3),
        "nearly all": hidden(0.9, 250, 100, mask_id=1, vocabulary_size=12, seed=5, lowest_id=0),
        "with padding": hidden(0.9, mask_id=9, vocabulary_size=5, lowest_id=0, seed=13),
        "two words": hidden(1.0, 200, 60, mask_id=9, vocabulary_size=2, seed=15),
        "two words, one of them the mask": hidden(
            1.0, 200, 60, mask_id=0, vocabulary_size=2, seed=17
        ),
        "square": hidden(0.3, 150, 150, mask_id=4, vocabulary_size=30, seed=11),
        "none, of many": hidden(0.0, 50, 50, mask_id=4, vocabulary_size=30, seed=19),
    }


def small(rng):
    yield hidden(0.0, 20, 30)
    yield hidden(1.0, 150)
    yield hidden(0.5, 150)
    yield hidden(0.15)
    yield hidden(0.9, mask_id=9, vocabulary_size=5, lowest_id=0)
    yield hidden(0.8, mask_id=9, vocabulary_size=2)
    yield hidden(0.8, mask_id=0, vocabulary_size=2)


task = Task(
    reference.masked_words,
    number=3,
    returns=dict,
    difficulty=3,
    minutes=20,
    section="masked-words",
    probes=probes,
    adapt=with_facts,
    small=small,
    tolerance=MOST,
)


GLANCE = 14  # columns: an answer that goes from word to word is a hundred times as slow as another


def _off(answer, inputs, names, off=MOST, at_once=False):
    """The first fact that is not as expected, on all columns; None if none is.

    A few columns are enough where the facts are twice as near as they need to be; with `at_once`,
    all are looked at from the first.
    """
    looks = ((GLANCE, off / 2), (inputs["columns"], off))
    for columns, near in looks[at_once:]:
        look = inputs | {"columns": min(columns, inputs["columns"])}
        got, expected = answer(look), answer.expected(look)
        wrong = [name for name in names if not abs(got[name] - expected[name]) <= near]
        if not wrong:
            return None
    return wrong[0], look, expected, got


def sees(answer, inputs, *names, off=MOST, at_once=False):
    """Assert that these facts are as expected."""
    if found := _off(answer, inputs, names, off, at_once):
        name, look, expected, got = found
        due, came = answer.apart(expected[name], got[name], ".2f")
        raise Failure(
            f"With share = {inputs['share']}: the {name} should be {due}; yours is {came}.",
            look,
            expected,
            got,
            whole=name,
        )


@task.check(1, "as many words are asked for as `share` says")
def so_many_words_are_asked_for(answer):
    for share, seed in ((0.15, 1), (0.5, 2), (0.9, 3)):
        sees(answer, hidden(share, seed=seed), "share of words asked for")
    sees(answer, hidden(1.0, 20, 30), "share of words asked for", off=0)
    sees(answer, hidden(0.0, 20, 30), "share of words asked for", off=0)


@task.check(1)
def the_target_is_the_word_that_stood_there(answer):
    for share in (0.15, 0.6, 0.9):
        sees(
            answer,
            hidden(share, seed=4),
            "share of words asked for that are their own target",
            off=0,
        )


@task.check(1)
def words_that_are_not_asked_for_stay_as_they_are(answer):
    for share in (0.0, 0.15, 0.6):
        sees(answer, hidden(share, seed=6), "changed share of all other words", off=0)


@task.check(2, "of ten, eight are masked, one is exchanged, one is left")
def eight_of_ten_are_masked_one_is_exchanged_one_is_left(answer):
    for share, columns, seed in ((0.3, 100, 8), (0.7, 45, 9), (0.9, 45, 10)):
        facts = (
            "masked share of words asked for",
            "unchanged share of words asked for",
            "exchanged share of words asked for",
        )
        # No exchanged word is the mask: whether it may be any has a check of its own.
        inputs = hidden(share, columns=columns, mask_id=20, seed=seed)
        sees(answer, inputs, *facts, at_once=True)


def exchanges(answer, inputs):
    if answer(inputs)["exchanged share of words asked for"] == 0:
        raise Failure("No word is exchanged.", inputs)


@task.check(1)
def an_exchanged_word_may_be_any_of_the_vocabulary(answer):
    inputs = hidden(0.8, seed=12)
    with following(lambda: exchanges(answer, inputs)):
        sees(answer, inputs, "share of the vocabulary among exchanged words", off=0.01)
        sees(answer, inputs, "mean id of exchanged words (1 = the largest id)", off=0.06)
        for line in ("row", "column"):
            sees(answer, inputs, f"one word for all exchanged ones of a {line} (1 = yes)", off=0)
    left = "unchanged share of words asked for"
    if _off(answer, inputs, [left]):
        return  # charged above
    for mask_id in (9, 0):  # of two words it is often the same one by chance, or the mask
        sees(answer, hidden(0.8, mask_id=mask_id, vocabulary_size=2, seed=13), left)


@task.check(1)
def every_word_is_decided_on_its_own(answer):
    for share in (0.15, 0.5):
        inputs = hidden(share, seed=14)
        if answer(inputs)["share of words asked for"] == 1:
            break  # charged above
        sees(answer, inputs, "likeness of rows", "likeness of columns", off=0.15)
        sees(
            answer,
            inputs,
            "unevenness of masks from row to row",
            "unevenness of masks from column to column",
            off=0.3,
        )
        sees(answer, inputs, "change of the number asked for from row to row (1 = yes)", off=0)
    for columns in (GLANCE, 100):
        inputs = hidden(0.5, columns=columns, lowest_id=0, seed=15)
        got = answer(inputs)
        zeros, every = (
            got[ZEROS],
            got["share of words asked for"],
        )
        if abs(zeros - every) <= 0.1:
            break
    else:
        raise Failure(
            f"Of all words {every:.0%} are asked for, of those with the id 0 {zeros:.0%}: every id "
            "should have the same chance.",
            inputs,
        )


@task.check(1)
def all_chance_comes_from_rng(answer):
    inputs = hidden(0.5, 40, 30, seed=16)
    sees(answer, inputs, "same draw for the same rng", "same draw for another rng", off=0)
    if answer.observe(inputs).random_state_moved:
        raise Failure(
            "Your answer drew from a global generator, or reset one; draw everything from the "
            "generator that it is given, `rng`.",
            inputs,
        )


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    inputs = hidden(0.5, 40, 30, seed=18)
    if answer(inputs)["tokens changed"]:
        raise Failure(
            "After the call, `tokens` holds other ids than before. Work on a copy.", inputs
        )
    moves_nothing(answer, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Masking:
    def own(tokens):
        return tokens.clone()

    def before(inputs):
        return inputs.clone()

    def start(rng):
        return rng

    def draw(shape, chance, rng):
        return torch.rand(shape, generator=rng) < chance

    def chance(share):
        return share

    def ask(self, tokens, share, rng):
        return self.draw(tokens.shape, share, rng)

    def mask(self, tokens, asked, rng):
        return asked & self.draw(tokens.shape, 0.8, rng)

    def exchange(self, tokens, asked, masked, rng):
        return asked & ~masked & self.draw(tokens.shape, 0.5, rng)

    def many(vocabulary_size):
        return vocabulary_size

    def ids(many, shape, rng):
        return torch.randint(0, many, shape, generator=rng)

    def moved(others, tokens, mask_id):
        return others

    def anything(self, tokens, exchanged, many, rng):
        return self.ids(many, tokens.shape, rng)

    def others(self, tokens, exchanged, mask_id, vocabulary_size, rng):
        every = self.anything(tokens, exchanged, self.many(vocabulary_size), rng)
        return self.moved(every, tokens, mask_id)

    def counted(asked, masked, exchanged):
        return asked

    def targets(tokens, inputs, counted):
        return torch.where(counted, tokens, -100)

    def result(inputs, targets):
        return inputs, targets

    def __call__(self, tokens, share, mask_id, vocabulary_size, rng):
        rng, inputs = self.start(rng), self.own(tokens)
        asked = self.ask(tokens, self.chance(share), rng)
        masked = self.mask(tokens, asked, rng)
        exchanged = self.exchange(tokens, asked, masked, rng)
        others = self.others(tokens, exchanged, mask_id, vocabulary_size, rng)
        before = self.before(inputs)
        inputs[masked] = mask_id
        inputs[exchanged] = others[exchanged]
        counted = self.counted(asked, masked, exchanged)
        return self.result(inputs, self.targets(before, inputs, counted))


# --- faults: which words ------------------------------------------------------------------------

task.fault("W-SHARE-INVERTED", chance=lambda share: 1 - share)
task.fault("W-FIXED-SHARE", chance=lambda share: 0.15)
task.fault(
    "W-ONE-ROW",
    ask=lambda self, tokens, share, rng: self.draw(tokens.shape[1:], share, rng).expand_as(tokens),
)
task.fault(
    "W-WHOLE-ROWS",
    ask=lambda self, tokens, share, rng: self.draw((len(tokens), 1), share, rng).expand_as(tokens),
)
task.fault(
    "W-EXACT-NUMBER",
    ask=lambda self, tokens, share, rng: (
        torch.rand(tokens.shape, generator=rng).argsort(1).argsort(1)
        < round(share * tokens.shape[1])
    ),
)
task.fault(
    "W-FIRST-WORDS",
    ask=lambda self, tokens, share, rng: (
        torch.arange(tokens.shape[1]) < round(share * tokens.shape[1])
    ).expand_as(tokens),
)

task.fault(
    "W-PADDING-SPARED",
    ask=lambda self, tokens, share, rng: self.draw(tokens.shape, share, rng) & (tokens != 0),
)

# --- faults: what becomes of them ---------------------------------------------------------------

task.fault("W-ALL-MASKED", mask=lambda self, tokens, asked, rng: asked)
task.fault(
    "W-MASK-SHARE-INVERTED",
    mask=lambda self, tokens, asked, rng: asked & self.draw(tokens.shape, 0.2, rng),
)
task.fault("W-NONE-LEFT", exchange=lambda self, tokens, asked, masked, rng: asked & ~masked)
task.fault(
    "W-NONE-EXCHANGED", exchange=lambda self, tokens, asked, masked, rng: torch.zeros_like(asked)
)
task.fault(
    "W-TENTH-OF-A-FIFTH",
    exchange=lambda self, tokens, asked, masked, rng: (
        asked & ~masked & self.draw(tokens.shape, 0.1, rng)
    ),
)
task.fault(
    "W-EXCHANGED-OVER-MASKED",
    exchange=lambda self, tokens, asked, masked, rng: asked & self.draw(tokens.shape, 0.1, rng),
)
task.fault(
    "W-MASKS-ANYWHERE", mask=lambda self, tokens, asked, rng: self.draw(tokens.shape, 0.8, rng)
)
task.fault(
    "W-EXCHANGED-ANYWHERE",
    exchange=(
        lambda self, tokens, asked, masked, rng: ~masked & self.draw(tokens.shape, 0.1, rng),
        lambda self, tokens, asked, masked, rng: (
            ~masked
            & torch.where(
                asked, self.draw(tokens.shape, 0.5, rng), self.draw(tokens.shape, 0.1, rng)
            )
        ),
    ),
)
task.fault(
    "W-KIND-OF-A-ROW",
    mask=(
        lambda self, tokens, asked, rng: asked & self.draw((len(tokens), 1), 0.8, rng),
        lambda self, tokens, asked, rng: asked & self.draw(tokens.shape[1:], 0.8, rng),
    ),
    exchange=(
        lambda self, tokens, asked, masked, rng: (
            asked & ~masked.any(1, keepdim=True) & self.draw((len(tokens), 1), 0.5, rng)
        ),
        lambda self, tokens, asked, masked, rng: (
            asked & ~masked.any(0) & self.draw(tokens.shape[1:], 0.5, rng)
        ),
    ),
)
task.fault(
    "W-WORDS-OF-THE-TEXT",
    anything=lambda self, tokens, exchanged, many, rng: tokens.flatten()[
        torch.randperm(tokens.numel(), generator=rng)
    ].view_as(tokens),
)
task.fault(
    "W-NEVER-ITSELF",
    many=lambda vocabulary_size: max(1, vocabulary_size - 1),
    moved=lambda others, tokens, mask_id: others + (others >= tokens),
)
task.fault(
    "W-NEVER-THE-MASK",
    many=lambda vocabulary_size: max(1, vocabulary_size - 1),
    moved=lambda others, tokens, mask_id: others + (others >= mask_id),
)


def from_id(low):
    return lambda many, shape, rng: torch.randint(min(low, many - 1), many, shape, generator=rng)


task.fault("W-NEVER-ZERO", ids=tuple(map(from_id, (1, 3, 4))))
task.fault(
    "W-LAST-ID",
    ids=lambda many, shape, rng: torch.randint(0, max(1, many - 1), shape, generator=rng),
)
task.fault(
    "W-ONE-ID-MORE",
    ids=lambda many, shape, rng: torch.randint(0, many + 1, shape, generator=rng),
)


def the_nth_draw(n):
    return lambda self, tokens, exchanged, many, rng: self.ids(many, (n + 1,), rng)[n].expand_as(
        tokens
    )


def by_a_number(self, tokens, share, rng):
    """What becomes of a word is decided with what is asked for: right so far."""
    self.share, self.numbers = share, torch.rand(tokens.shape, generator=rng)
    return self.numbers < share


def masked_by_number(self, tokens, asked, rng):
    return asked & (self.numbers < 0.8 * self.share)


def masked_by_another(self, tokens, asked, rng):
    self.share, self.numbers = 1.0, torch.rand(tokens.shape, generator=rng)
    return masked_by_number(self, tokens, asked, rng)


def exchanged_by_number(self, tokens, asked, masked, rng):
    return asked & ~masked & (self.numbers < 0.9 * self.share)


# Of two words it is one or the other by chance, and of more it may be the mask: that depends on
# what is drawn before.
task.fault(
    "W-ONE-WORD-FOR-ALL",
    anything=(*map(the_nth_draw, range(4)), the_nth_draw(0), the_nth_draw(0)),
    ask=(*(...,) * 4, by_a_number, ...),
    mask=(*(...,) * 4, masked_by_number, masked_by_another),
    exchange=(*(...,) * 4, exchanged_by_number, exchanged_by_number),
)
task.fault(
    "W-ONE-WORD-FOR-A-ROW",
    anything=(
        lambda self, tokens, exchanged, many, rng: self.ids(many, (len(tokens), 1), rng).expand_as(
            tokens
        ),
        lambda self, tokens, exchanged, many, rng: self.ids(many, tokens.shape[1:], rng).expand_as(
            tokens
        ),
    ),
)


@task.fault("W-ONE-NUMBER")
class OneNumber(Masking):
    def __call__(self, tokens, share, mask_id, vocabulary_size, rng):
        number = torch.rand(tokens.shape, generator=rng)
        asked = number < share
        others = self.others(tokens, asked, mask_id, vocabulary_size, rng)
        inputs = torch.where(asked & (number < 0.9), others, tokens)
        inputs = torch.where(asked & (number < 0.8), mask_id, inputs)
        return inputs, torch.where(asked, tokens, -100)


@task.fault("W-THREE-DRAWS")
class ThreeDraws(Masking):
    def __call__(self, tokens, share, mask_id, vocabulary_size, rng):
        masked, exchanged, left = (
            self.draw(tokens.shape, part * share, rng) for part in (0.8, 0.1, 0.1)
        )
        others = self.others(tokens, exchanged, mask_id, vocabulary_size, rng)
        inputs = torch.where(exchanged & ~masked, others, tokens.masked_fill(masked, mask_id))
        return inputs, torch.where(masked | exchanged | left, tokens, -100)


# --- faults: what is asked ----------------------------------------------------------------------

task.fault("W-ALL-ASKED", counted=lambda asked, masked, exchanged: torch.ones_like(asked))
task.fault("W-ONLY-MASKS-ASKED", counted=lambda asked, masked, exchanged: masked)
task.fault(
    "W-LEFT-NOT-ASKED",
    counted=(lambda asked, masked, exchanged: masked | exchanged, ...),
    targets=(..., lambda tokens, inputs, counted: torch.where(inputs == tokens, -100, tokens)),
)
task.fault("W-TARGETS-INVERTED", counted=lambda asked, masked, exchanged: ~asked)
task.fault(
    "W-TARGETS-OF-INPUTS",
    targets=lambda tokens, inputs, counted: torch.where(counted, inputs, -100),
)
task.fault(
    "W-NOTHING-IS-ZERO",
    targets=(
        lambda tokens, inputs, counted: torch.where(counted, tokens, 0),
        lambda tokens, inputs, counted: torch.where(counted, tokens, -1),
    ),
)
task.fault("W-SWAPPED", result=lambda inputs, targets: (targets, inputs))

# --- faults: chance -----------------------------------------------------------------------------

task.fault(
    "W-GLOBAL-CHANCE",
    draw=(lambda shape, chance, rng: torch.rand(shape) < chance, ..., ...),
    ids=(..., lambda many, shape, rng: torch.randint(0, many, shape), ...),
    anything=(
        ...,
        ...,
        lambda self, tokens, exchanged, many, rng: torch.zeros_like(tokens).masked_scatter(
            exchanged, torch.randint(many, (int(exchanged.sum()),))
        ),
    ),
)
task.fault("W-ALWAYS-THE-SAME", start=lambda rng: torch.Generator().manual_seed(0))
task.fault("W-EDITS-TOKENS", own=lambda tokens: tokens, before=(..., lambda inputs: inputs))

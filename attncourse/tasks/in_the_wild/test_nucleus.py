import torch

from attncourse import in_the_wild as reference
from attncourse.checks.task import Task
from attncourse.tasks import in_the_wild as shared
from attncourse.tasks.in_the_wild._tests import Testing, of_every_test, of_refusing_all, traits_of

# --- implementations, with the defect and without it --------------------------------------------


def shown(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    total = likely.cumsum(dim=-1)
    out = total > top_p
    return logits.masked_fill(out.scatter(-1, order, out), -torch.inf)


def sorted_out(out_of):
    """Top-p that says of the sorted probabilities which are out."""

    def nucleus(logits, top_p):
        likely, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
        out = out_of(likely, top_p)
        return logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)

    return nucleus


def moved_by_one(likely, top_p):
    out = likely.cumsum(-1) > top_p
    out[..., 1:] = out[..., :-1].clone()
    out[..., 0] = False
    return out


def first(out):
    return torch.arange(out.shape[-1]) == 0


def counted(likely, top_p):
    """How many words it takes, found by a search."""
    goal = torch.full_like(likely[..., :1], top_p)
    takes = torch.searchsorted(likely.cumsum(-1), goal)
    return torch.arange(likely.shape[-1]) > takes


def from_the_unlikely_end(logits, top_p):
    unlikely, order = logits.softmax(-1).sort(-1)
    out = unlikely.cumsum(-1) <= 1 - top_p
    out[..., -1] = False
    return logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)


def word_by_word(may_go_on):
    """A loop over the words of each row, the likeliest first.

    Args:
        may_go_on: whether the next word stays, by what is there, its own share, and top_p.
    """

    def nucleus(logits, top_p):
        result = torch.full_like(logits, -torch.inf)
        for row, shares in enumerate(logits.softmax(-1).tolist()):
            total = 0.0
            for word in sorted(range(len(shares)), key=shares.__getitem__, reverse=True):
                if not may_go_on(total, shares[word], top_p):
                    break
                total += shares[word]
                result[row, word] = logits[row, word]
        return result

    return nucleus


def in_double_precision(logits, top_p):
    out = sorted_out(lambda likely, top_p: likely.cumsum(-1) - likely >= top_p)
    return logits.masked_fill(out(logits.double(), top_p) == -torch.inf, -torch.inf)


RIGHT = {
    "by what the likelier words have together": sorted_out(
        lambda likely, top_p: likely.cumsum(-1) - likely >= top_p
    ),
    "decisions moved by one place": sorted_out(moved_by_one),
    "by how many words it takes": sorted_out(counted),
    "from the unlikely end": from_the_unlikely_end,
    "word by word": word_by_word(lambda total, share, top_p: total < top_p),
    "in double precision": in_double_precision,
}

THE_ONE = "the one that the notebook shows"
KEPT, LOOP = "the same, and the likeliest word always stays", "a loop that ends before it crosses"
COUNTED, AT_LEAST = "a word less than it takes", "words stay while their sum is below top_p"
KEPT_BELOW = "the same below top_p, and the likeliest word always stays"
WRONG = {
    THE_ONE: shown,
    KEPT: sorted_out(lambda likely, top_p: (likely.cumsum(-1) > top_p) & ~first(likely)),
    AT_LEAST: sorted_out(lambda likely, top_p: likely.cumsum(-1) >= top_p),
    KEPT_BELOW: sorted_out(lambda likely, top_p: (likely.cumsum(-1) >= top_p) & ~first(likely)),
    LOOP: word_by_word(lambda total, share, top_p: total + share <= top_p),
    COUNTED: sorted_out(
        lambda likely, top_p: (
            torch.arange(likely.shape[-1])
            >= (likely.cumsum(-1) < top_p).sum(-1, keepdim=True).clamp(min=1)
        )
    ),
}


def filled(number):
    return lambda logits, top_p: torch.full_like(logits, number)


def in_another_shape(logits, top_p):
    return RIGHT["word by word"](logits, top_p)[None]


def raises(logits, top_p):
    raise AssertionError("something is wrong inside")


def shares_anew(logits, top_p):
    """The right words, whose logits are the logarithms of what they have among themselves."""
    return in_double_precision(logits, top_p).log_softmax(-1)


LENIENT = {
    "−∞ everywhere": filled(-torch.inf),
    "all words stay": lambda logits, top_p: logits.clone(),
    "all words stay, with other logits": lambda logits, top_p: 2 * logits,
    "the right words, with logits whose exponentials sum to one": shares_anew,
    "the right words, with their probabilities": lambda logits, top_p: in_double_precision(
        logits.log_softmax(-1), top_p
    ).exp(),
    "the right words, with probabilities that sum to one": lambda logits, top_p: shares_anew(
        logits, top_p
    ).exp(),
}
IMPLEMENTATIONS = (
    RIGHT
    | WRONG
    | LENIENT
    | {name: filled(number) for name, number in shared.GARBAGE.items()}
    | {shared.OTHER_SHAPE: in_another_shape, shared.RAISES: raises}
)


def tried(test_nucleus):
    """Whether the test refuses an implementation, by its name."""
    return lambda implementation: shared.verdict(test_nucleus, IMPLEMENTATIONS[implementation])


def crosses(logits, top_p):
    """Whether some row has a word with which the sum crosses top_p, and is not just there."""
    total = logits.double().softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    return ((total - top_p).abs().amin(-1) > 1e-5).any()


def seen(test_nucleus):
    """What the test does with an implementation."""
    return lambda implementation: shared.facts(
        test_nucleus, IMPLEMENTATIONS[implementation], crosses
    )


def traits(answer):
    found = traits_of(answer, seen, next(iter(RIGHT)), THE_ONE)
    looks = not found["refuses no numbers"] and not found["refuses shapes alone"]
    accepted = {
        f"accepts {each}": looks and not answer.returned(shared.of(each), seen)["refused"]
        for each in LENIENT
    }
    return found | accepted


task = Task(
    reference.test_nucleus,
    number=5,
    returns=bool,
    difficulty=3,
    minutes=15,
    section="wild-top-p",
    adapt=tried,
    probes=lambda rng: {each: shared.of(each) for each in (*RIGHT, *WRONG)},
    small=lambda rng: (shared.of(each) for each in (THE_ONE, *RIGHT, *WRONG)),
    traits=traits,
    chance=True,
)


@task.check(2)
def it_refuses_what_the_notebook_shows(answer):
    shared.refuses_all(answer, seen, THE_ONE, why="It breaks one of the promises.")


@task.check(2)
def right_implementations_pass_in_any_style(answer):
    shared.accepts_all(answer, seen, *RIGHT)


@task.check(2)
def one_word_that_always_stays_mends_nothing(answer):
    why = "At least one word stays, and still a word is missing."
    shared.refuses_all(answer, seen, KEPT, KEPT_BELOW, COUNTED, why=why)


@task.check(1)
def the_route_makes_no_difference(answer):
    why = "It breaks the same promise by another route."
    shared.refuses_all(answer, seen, AT_LEAST, LOOP, why=why)


@task.check(1)
def its_verdict_needs_no_luck(answer):
    shared.decides_alike(answer, THE_ONE, *[*RIGHT][:2])


# --- the reference in steps ---------------------------------------------------------------------

MIXED = [0.1, 0.5, 0.06, 0.3, 0.04]


@task.steps
class Crossing(Testing):
    def cases():
        return [(MIXED, 0.6, [1, 3]), (MIXED, 0.2, [1]), (MIXED, 0.85, [0, 1, 3])]

    def logits(shares):
        return torch.tensor([shares]).log()

    def left(result):
        return (result[0] > -torch.inf).nonzero().flatten().tolist()

    def equal(found, expected, case):
        return found == expected

    def holds(self, implementation, case):
        shares, top_p, expected = case
        return self.equal(self.left(implementation(self.logits(shares), top_p)), expected, case)


# --- faults -------------------------------------------------------------------------------------

of_every_test(task, shown, RIGHT["decisions moved by one place"])
of_refusing_all(task)


@task.fault("T-SHAPES")
class ShapesAlone(Crossing):
    def holds(self, implementation, case):
        logits = self.logits(case[0])
        return implementation(logits, case[1]).shape == logits.shape


task.fault(
    "T-ON-THE-EDGE",
    cases=(
        lambda: [([0.25, 0.25, 0.25, 0.25], 0.75, [0, 1, 2])],
        lambda: [([0.5, 0.5], 0.5, [0])],
        lambda: [(MIXED, 0.5, [1]), (MIXED, 0.8, [1, 3])],
        lambda: [(MIXED, 1.0, [0, 1, 2, 3, 4])],
        lambda: [([0.5, 0.3, 0.15, 0.05], 0.8, [0, 1])],
    ),
    equal=(
        lambda found, expected, case: len(found) == len(expected),
        lambda found, expected, case: len(found) == len(expected),
        ...,
        ...,
        ...,
    ),
)
task.fault(
    "T-ONE-IS-LEFT",
    cases=(
        ...,
        lambda: [(MIXED, 0.2, [1])],
        lambda: [([0.03, 0.9, 0.07], 0.5, [1])],
        lambda: [(MIXED, 0.6, [1, 3])],
    ),
    equal=(
        lambda found, expected, case: len(found) > 0,
        Crossing.equal,
        Crossing.equal,
        lambda found, expected, case: len(found) > 0,
    ),
)


def at_most(found, expected, case):
    return sum(case[0][word] for word in found) <= case[1]


below = task.fault(
    "T-BELOW",
    equal=(at_most, Crossing.equal, at_most, Crossing.equal),
    cases=(
        lambda: [(MIXED, 0.6, [1]), (MIXED, 0.85, [1, 3])],
        lambda: [(MIXED, 0.6, [1]), (MIXED, 0.85, [1, 3])],
        ...,
        lambda: [(MIXED, 0.2, []), (MIXED, 0.6, [1]), (MIXED, 0.85, [1, 3])],
    ),
)


@below
class SharesOfTheResult(Crossing):
    """What a word has is read off its logit, in rows that begin with logarithms."""

    def holds(self, implementation, case):
        result = implementation(self.logits(case[0]), case[1])
        return bool((result.exp().sum(-1) <= case[1]).all())


@below
class SomeSharesOfTheResult(SharesOfTheResult):
    def cases():
        return [(MIXED, 0.6, [1]), (MIXED, 0.85, [1, 3])]

    def holds(self, implementation, case):
        result = implementation(self.logits(case[0]), case[1])
        total = result.exp().sum(-1)
        return bool(((total > 0) & (total <= case[1])).all())


def one_text(shares):
    return torch.tensor(shares).log()


def only_text(result):
    return (result.reshape(-1) > -torch.inf).nonzero().flatten().tolist()


task.fault("T-ONE-TEXT", logits=one_text, left=only_text)
task.fault("T-LOOSE", equal=lambda found, expected, case: abs(len(found) - len(expected)) <= 1)

task.fault("T-AT-MOST", equal=lambda found, expected, case: len(found) <= len(expected))


@task.fault("T-LOGITS-STAY")
class LogitsStay(Crossing):
    def holds(self, implementation, case):
        logits = self.logits(case[0])
        result = implementation(logits, case[1])
        stays = result > -torch.inf
        return torch.equal(result[stays], logits[stays])


sum_of_one = task.fault("T-SUM-OF-ONE")


@sum_of_one
class SharesComeBack(Crossing):
    def holds(self, implementation, case):
        result = implementation(self.logits(case[0]), case[1])
        return torch.allclose(result.sum(-1), torch.ones(1))


@sum_of_one
class LogarithmsOfSharesComeBack(Crossing):
    def equal(found, expected, case):
        return len(found) >= len(expected)

    def holds(self, implementation, case):
        result = implementation(self.logits(case[0]), case[1])
        sums = torch.allclose(result.exp().sum(-1), torch.ones(1))
        return sums and super().holds(implementation, case)


@sum_of_one
class SharesAnewComeBack(Crossing):
    def holds(self, implementation, case):
        logits = self.logits(case[0])
        expected = shares_anew(logits, case[1]).exp()
        return torch.allclose(implementation(logits, case[1]).exp(), expected)


@sum_of_one
class NothingElseThanShares(Crossing):
    def holds(self, implementation, case):
        logits = self.logits(case[0])
        expected = shares_anew(logits, case[1]).exp()
        return torch.allclose(implementation(logits, case[1]), expected)


out_is_zero = task.fault(
    "T-OUT-IS-ZERO", left=lambda result: (result[0] != 0).nonzero().flatten().tolist()
)


@out_is_zero
class ZeroWhereItIsOut(Crossing):
    def holds(self, implementation, case):
        result = implementation(self.logits(case[0]), case[1])[0]
        out = [word for word in range(len(result)) if word not in case[2]]
        return bool((result[out] == 0).all())


@out_is_zero
class FiniteWhereItStays(Crossing):
    def holds(self, implementation, case):
        shares, top_p, _ = case
        result = implementation(self.logits(shares), top_p)[0]
        stays = result != 0
        enough = (torch.tensor(shares) * stays).sum() >= top_p
        return bool(enough and (result[stays] > -torch.inf).all())


old_shares = task.fault("T-OLD-SHARES")


def with_their_shares(result, logits):
    shares = result.softmax(-1)
    return torch.allclose(shares[shares > 0], logits.softmax(-1)[shares > 0], atol=1e-5)


@old_shares
class SharesStay(Crossing):
    def holds(self, implementation, case):
        logits = self.logits(case[0])
        return with_their_shares(implementation(logits, case[1]), logits)


@old_shares
class SharesStayAndReach(Crossing):
    def equal(found, expected, case):
        return len(found) >= len(expected)

    def holds(self, implementation, case):
        logits = self.logits(case[0])
        stay = with_their_shares(implementation(logits, case[1]), logits)
        return stay and super().holds(implementation, case)


def drawn(many):
    """The words that come up when so many are drawn."""

    def left(result):
        shares = result.softmax(-1).nan_to_num(1.0)
        return sorted({*torch.multinomial(shares[0], many, replacement=True).tolist()})

    return left


task.fault("T-UNSEEDED", left=(drawn(3), drawn(2)), cases=lambda: [(MIXED, 0.6, [1, 3])])

import math

import torch
import torch.nn.functional as F

from attncourse import in_the_wild as reference
from attncourse.checks.inputs import causal, normal
from attncourse.checks.task import Task
from attncourse.tasks import in_the_wild as shared
from attncourse.tasks.in_the_wild._tests import Testing, of_every_test, of_refusing_all, traits_of

# --- implementations, with the defect and without it --------------------------------------------


def scored(query, key):
    return query @ key.mT / math.sqrt(query.shape[-1])


def seen_by(mask, scores):
    """The mask as large as the scores."""
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    return torch.broadcast_to(mask, scores.shape)


def shown(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = F.softmax(scores, dim=-1)
    return weights @ value, weights


def hidden_by(fill, clear=lambda weights, mask: weights):
    """Attention that hides by `fill` and mends by `clear`."""

    def attention(query, key, value, mask=None):
        scores = scored(query, key)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            weights = clear(fill(scores, mask).softmax(-1), mask)
        return weights @ value, weights

    return attention


def with_the_lowest(scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def with_infinity(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


def to_zero(weights, mask):
    return weights.masked_fill(~mask, 0.0)


def a_little_otherwise(attention):
    """The same but for the last bits, as if sums had been added up in another order."""

    def other(query, key, value, mask=None):
        results = attention(query, key, value, mask)
        return tuple(x * (1 - 2 * torch.finfo(x.dtype).eps) for x in results)

    return other


def only_rows_that_see(query, key, value, mask=None):
    scores = scored(query, key)
    mask = seen_by(mask, scores)
    some = mask.any(-1, keepdim=True)
    weights = scores.masked_fill(some & ~mask, -torch.inf).softmax(-1) * some
    return weights @ value, weights


def exponentials_times_the_mask(query, key, value, mask=None):
    scores = scored(query, key)
    mask = seen_by(mask, scores)
    top = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    e = (scores - top).masked_fill(~mask, -torch.inf).exp()
    whole = e.sum(-1, keepdim=True)
    weights = e / whole.masked_fill(whole == 0, 1)
    return weights @ value, weights


def row_by_row(query, key, value, mask=None):
    scores = scored(query, key)
    rows = []
    for row, seen in zip(scores.flatten(0, -2), seen_by(mask, scores).flatten(0, -2), strict=True):
        share = row[seen].softmax(0) if seen.any() else row[seen]
        rows.append(torch.zeros_like(row).masked_scatter(seen, share))
    weights = torch.stack(rows).view(scores.shape)
    return weights @ value, weights


def in_double_precision(query, key, value, mask=None):
    attention = hidden_by(with_the_lowest, to_zero)
    results = attention(query.double(), key.double(), value.double(), mask)
    return tuple(x.to(query.dtype) for x in results)


def key_by_key(query, key, value, mask=None):
    """One pass over the keys: a running maximum, a running sum."""
    scores = scored(query, key)
    mask = seen_by(mask, scores)
    lowest = torch.finfo(scores.dtype).min
    top, whole = torch.full_like(scores[..., :1], lowest), torch.zeros_like(scores[..., :1])
    for each, seen in zip(scores.split(1, -1), mask.split(1, -1), strict=True):
        new = torch.where(seen, torch.maximum(top, each), top)
        whole = whole * (top - new).exp() + (each - new).masked_fill(~seen, -torch.inf).exp()
        top = new
    e = (scores - top).masked_fill(~mask, -torch.inf).exp()
    weights = e / whole.masked_fill(whole == 0, 1)
    return weights @ value, weights


def query_divided_first(query, key, value, mask=None):
    query = query / math.sqrt(query.shape[-1])
    mask = seen_by(mask, scores := query @ key.mT)
    weights = to_zero(with_the_lowest(scores, mask).softmax(-1), mask)
    return weights @ value, weights


OTHERS = {
    "−∞ as a fill, in rows that see something": only_rows_that_see,
    "exponentials, 0 for hidden keys": exponentials_times_the_mask,
    "row by row, over the visible keys": row_by_row,
    "in double precision": in_double_precision,
    "key by key, in one pass": key_by_key,
    "the query divided first": query_divided_first,
}
RIGHT = {"the lowest number as a fill, then zeros": hidden_by(with_the_lowest, to_zero)} | {
    shared.ROUNDED.format(name): a_little_otherwise(each) for name, each in OTHERS.items()
}


def first_key_instead(scores, mask):
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return with_infinity(scores, mask | (first & ~mask.any(-1, keepdim=True)))


def where_all_is_hidden(weights, mask):
    return weights if mask.any() else torch.zeros_like(weights)


def a_trace_of_the_first(weights, mask):
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return to_zero(weights, mask) + 3e-4 * (first & ~mask.any(-1, keepdim=True))


def output_alone(query, key, value, mask=None):
    output, weights = shown(query, key, value, mask)
    some = seen_by(mask, weights).any(-1, keepdim=True)
    return output.masked_fill(~some, 0.0), weights


def weights_alone(query, key, value, mask=None):
    output, weights = shown(query, key, value, mask)
    return output, to_zero(weights, seen_by(mask, weights))


def weights_alone_and_nan(query, key, value, mask=None):
    output, weights = hidden_by(with_infinity)(query, key, value, mask)
    return output, weights.nan_to_num(0.0)


THE_ONE = "the one that the notebook shows"
INFINITY, NAN_IN_THE_OUTPUT = "−∞ as a fill, so NaN", "NaN in the output, zeros in the weights"
TRACE = "0.0003 for the first key, if all are hidden"
OUTPUT, WEIGHTS = (
    "zeros in the output, not in the weights",
    "zeros in the weights, not in the output",
)
WRONG = {
    THE_ONE: shown,
    "the lowest number as a fill": hidden_by(with_the_lowest),
    INFINITY: hidden_by(with_infinity),
    "the logarithm of the mask added, so NaN": hidden_by(lambda s, mask: s + mask.to(s).log()),
    NAN_IN_THE_OUTPUT: weights_alone_and_nan,
    "10,000 taken from hidden scores": hidden_by(lambda s, mask: s - 1e4 * ~mask),
    "the first key, if all are hidden": hidden_by(first_key_instead),
    "zeros if the whole mask is False": hidden_by(with_the_lowest, where_all_is_hidden),
    TRACE: hidden_by(with_the_lowest, a_trace_of_the_first),
    OUTPUT: output_alone,
    WEIGHTS: weights_alone,
    "True taken for hidden": lambda q, k, v, mask=None: shown(
        q, k, v, None if mask is None else ~mask
    ),
}


def filled(number):
    def attention(query, key, value, mask=None):
        return tuple(torch.full_like(x, number) for x in shown(query, key, value, mask))

    return attention


def in_another_shape(query, key, value, mask=None):
    return tuple(x[None] for x in hidden_by(with_the_lowest, to_zero)(query, key, value, mask))


def true_for_hidden(query, key, value, mask=None):
    """Right, if True meant that a key is hidden."""
    mask = None if mask is None else ~mask
    return hidden_by(with_the_lowest, to_zero)(query, key, value, mask)


def raises(query, key, value, mask=None):
    raise AssertionError("something is wrong inside")


TURNED = "right, if True hides"
IMPLEMENTATIONS = (
    RIGHT
    | WRONG
    | {name: filled(number) for name, number in shared.GARBAGE.items()}
    | {shared.OTHER_SHAPE: in_another_shape, shared.RAISES: raises, TURNED: true_for_hidden}
    | {shared.TO_THE_BIT.format(name): attention for name, attention in OTHERS.items()}
)


def tried(test_attention):
    """Whether the test refuses an implementation, by its name."""
    return lambda implementation: shared.verdict(test_attention, IMPLEMENTATIONS[implementation])


def has_a_dead_row(query, key, value, mask=None):
    return mask is not None and not mask.any(-1).all()


def seen(test_attention):
    """What the test does with an implementation."""
    return lambda implementation: shared.facts(
        test_attention, IMPLEMENTATIONS[implementation], has_a_dead_row
    )


def traits(answer):
    right = next(iter(RIGHT))
    refused, turned = (
        answer.returned(shared.of(each), seen)["refused"] for each in (right, TURNED)
    )
    return traits_of(answer, seen, right, THE_ONE) | {
        "asks for each bit": shared.is_exact(answer, seen, OTHERS),
        "takes True for hidden": refused and not turned,
    }


task = Task(
    reference.test_attention,
    number=1,
    returns=bool,
    difficulty=3,
    minutes=20,
    section="wild-test",
    adapt=tried,
    probes=lambda rng: {each: shared.of(each) for each in (*RIGHT, *WRONG)},
    small=lambda rng: (shared.of(each) for each in (THE_ONE, *RIGHT, *WRONG)),
    traits=traits,
    chance=True,
)


@task.check(2)
def it_refuses_what_the_notebook_shows(answer):
    why = "It breaks one of the promises, and ends no test by itself."
    shared.refuses_all(answer, seen, THE_ONE, why=why)


@task.check(2)
def right_implementations_pass_in_any_style(answer):
    shared.accepts_all(answer, seen, *RIGHT)


@task.check(1, "NaN is refused where zeros are promised")
def nan_is_refused_where_zeros_are_promised(answer):
    why = "NaN comes where zeros are promised."
    shared.refuses_all(
        *(answer, seen, INFINITY, "the logarithm of the mask added, so NaN", NAN_IN_THE_OUTPUT),
        why=why,
    )


@task.check(1)
def it_refuses_to_have_only_one_of_the_two_results_mended(answer):
    shared.refuses_all(answer, seen, OUTPUT, WEIGHTS, why="One of the two results breaks it.")


@task.check(2)
def it_refuses_any_other_way_to_look_at_hidden_keys(answer):
    shared.refuses_all(
        *(answer, seen),
        *("the lowest number as a fill", "10,000 taken from hidden scores"),
        *("the first key, if all are hidden", "zeros if the whole mask is False", TRACE),
        why="It breaks the same promise by another route.",
    )


@task.check(1)
def its_verdict_needs_no_luck(answer):
    shared.decides_alike(answer, THE_ONE, *[*RIGHT][:2])


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class DeadRows(Testing):
    def cases():
        mask = torch.ones(4, 5, dtype=torch.bool)
        mask[0, 3:] = False
        mask[1] = False
        return [mask]

    def inputs():
        rng = torch.Generator().manual_seed(0)
        return [normal(rng, 2, n, 3) for n in (4, 5, 5)]

    def rows(mask):
        return ~mask.any(-1)

    def parts(output, weights):
        return output, weights

    def right(found):
        return bool((found == 0).all())

    def others(results, inputs, mask):
        """What is asked of the other rows: nothing."""
        return True

    def holds(self, implementation, mask):
        inputs = self.inputs()
        results = implementation(*inputs, mask)
        asked = all(self.right(part[:, self.rows(mask)]) for part in self.parts(*results))
        return asked and self.others(results, inputs, mask)


# --- faults -------------------------------------------------------------------------------------

SECTION = {"section": "wild-dead-row"}

of_every_test(task, shown, hidden_by(with_the_lowest, to_zero))
of_refusing_all(task)


def no_dead_row():
    return [causal(5)[:4]]


ordinary = task.fault("T-NO-DEAD-ROW", **SECTION, cases=no_dead_row)


@ordinary
class RowsOfOrdinaryMasks(DeadRows):
    def cases():
        return no_dead_row()

    def holds(self, implementation, mask):
        _, weights = implementation(*self.inputs(), mask)
        return torch.allclose(weights.sum(-1), torch.ones(2, 4))


@ordinary
class HiddenKeys(DeadRows):
    def cases():
        return no_dead_row()

    def holds(self, implementation, mask):
        _, weights = implementation(*self.inputs(), mask)
        return bool((weights[:, ~mask] == 0).all())


task.fault("T-ONLY-NAN", **SECTION, right=lambda found: not found.isnan().any())
task.fault(
    "T-NAN-SLIPS",
    **SECTION,
    right=(
        lambda found: not (found.abs() > 1e-6).any(),
        lambda found: not ((found < 0) | (found > 0)).any(),
        lambda found: not (found.abs() > 1e-3).any(),
    ),
)
uniform = task.fault(
    "T-ONLY-UNIFORM",
    **SECTION,
    parts=lambda output, weights: [weights],
    right=lambda found: not torch.allclose(found, torch.tensor(1 / 5)),
)


@uniform
class OutputIsNoMean(DeadRows):
    def holds(self, implementation, mask):
        query, key, value = self.inputs()
        output, _ = implementation(query, key, value, mask)
        return not torch.allclose(output[:, self.rows(mask)], value.mean(1, keepdim=True))


task.fault("T-OUTPUT-ONLY", **SECTION, parts=lambda output, weights: [output])
task.fault("T-WEIGHTS-ONLY", **SECTION, parts=lambda output, weights: [weights])


def all_hidden():
    return torch.zeros(4, 5, dtype=torch.bool)


task.fault(
    "T-ALL-HIDDEN",
    **SECTION,
    cases=(
        lambda: [all_hidden()],
        lambda: [~all_hidden(), all_hidden()],
        lambda: [*no_dead_row(), all_hidden()],
    ),
)
task.fault(
    "T-LOOSE",
    right=(
        lambda found: bool((found.abs() < 0.9).all()),
        lambda found: bool((found.abs() < 1e-3).all()),
    ),
)


def one_row_of_true():
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0, 3:] = True
    mask[1] = True
    return [mask]


task.fault("T-TRUE-HIDES", **SECTION, cases=one_row_of_true, rows=lambda mask: mask.all(-1))


@task.fault("T-ROWS-SUM-TO-ONE", **SECTION)
class RowsSumToOne(DeadRows):
    def holds(self, implementation, mask):
        _, weights = implementation(*self.inputs(), mask)
        return torch.allclose(weights.sum(-1), torch.ones(2, 4))


def bit_for_bit(attention):
    """All rows that see something, compared with this attention's."""

    def others(results, inputs, mask):
        some, expected = mask.any(-1), attention(*inputs, mask)
        both = zip(results, expected, strict=True)
        return all(torch.equal(one[:, some], two[:, some]) for one, two in both)

    return others


exact = task.fault(
    "T-EXACT",
    others=(bit_for_bit(hidden_by(with_infinity)), bit_for_bit(in_double_precision)),
)


@exact
class EqualBitForBit(DeadRows):
    def right(both):
        return torch.equal(*both)

    def holds(self, implementation, mask):
        inputs = self.inputs()
        expected = hidden_by(with_the_lowest, to_zero)(*inputs, mask)
        found = implementation(*inputs, mask)
        return all(map(self.right, zip(self.parts(*found), self.parts(*expected), strict=True)))


task.fault(
    "T-UNSEEDED",
    cases=(lambda: [torch.rand(4, 5) > 0.6], lambda: [torch.rand(4, 5) > 0.5]),
)


@task.fault("T-SHAPES")
class ShapesAlone(DeadRows):
    def holds(self, implementation, mask):
        output, weights = implementation(*self.inputs(), mask)
        return output.shape == (2, 4, 3) and weights.shape == (2, 4, 5)

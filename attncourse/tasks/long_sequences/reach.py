import itertools

import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, compare, has_shape, moves_nothing
from attncourse.checks.task import Task


def by_place(answer):
    """The answer as a function of names; elsewhere a mask comes last, here it comes first."""

    def function(*, mask, layers):
        return answer(mask, layers)

    return function


def reach_inputs(mask, layers):
    return {"mask": mask, "layers": layers}


def band(n, back, ahead=0):
    ago = torch.arange(n)[:, None] - torch.arange(n)
    return (ago <= back) & (ago >= -ahead)


def ago(n):
    return (torch.arange(n)[:, None] - torch.arange(n)).abs()


def drawn(rng, n, share=0.3, diagonal=True):
    """A random mask, of which no column, and no row, is like another by design."""
    mask = torch.rand(n, n, generator=rng, device="cpu") < share
    mask[torch.arange(n), torch.arange(n)] = diagonal
    return mask


def circle(n):
    """Everybody looks at the one before, and not at oneself."""
    return torch.eye(n, dtype=torch.bool).roll(-1, 1)


def one_way(steps, others):
    """A way from the first word on, and words beside it at which all words of the way look.

    If attention is shared equally, 42⁻³⁰ arrives after 30 steps beside 40 words: 0 in float32.
    """
    place = torch.arange(steps + 1 + others)
    on_the_way = place <= steps
    following = (place == place[:, None] + 1) & on_the_way
    return on_the_way[:, None] & (following | ~on_the_way)


def steps_of(*widths):
    """Groups of words, each of which looks at all words of the group before."""
    group = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
    return group[:, None] == group + 1


def two_groups(n):
    """The first look at all others, the rest at all others of the rest."""
    first = torch.arange(2 * n) < n
    return (first[:, None] | ~first) & ~torch.eye(2 * n, dtype=torch.bool)


def probes(rng):
    return {
        "a window that looks back": reach_inputs(band(8, 2), 2),
        "to both sides": reach_inputs(band(9, 1, 1), 3),
        "ahead only": reach_inputs(band(7, 0, 1), 2),
        "one layer": reach_inputs(drawn(rng, 6), 1),
        "no layer": reach_inputs(drawn(rng, 5), 0),
        "two layers, drawn": reach_inputs(drawn(rng, 8, 0.15), 2),
        "three layers, drawn": reach_inputs(drawn(rng, 9, 0.1), 3),
        "four layers, drawn": reach_inputs(drawn(rng, 12, 0.06), 4),
        "nobody looks at oneself": reach_inputs(circle(7), 3),
        "drawn, without oneself": reach_inputs(drawn(rng, 8, 0.2, diagonal=False), 2),
        "as many layers as words": reach_inputs(band(5, 1), 5),
        "some look nowhere": reach_inputs(drawn(rng, 6) & (torch.arange(6)[:, None] != 2), 2),
        "many layers": reach_inputs(circle(9), 6),
        "256 paths": reach_inputs(steps_of(1, 4, 4, 4, 4, 1), 5),
        "one way among many words": reach_inputs(one_way(30, 40), 30),
        "many paths": reach_inputs(~torch.eye(16, dtype=torch.bool), 18),  # 2^68: 0 in int64
        "40 layers": reach_inputs(two_groups(16), 40),  # 2^160 paths: 0 in int64, ∞ in float32
    }


def small(rng):
    for layers in (1, 2, 0):
        for n in (1, 2, 3):
            yield reach_inputs(band(n, 1), layers)
            yield reach_inputs(circle(n), layers)
            yield reach_inputs(band(n, 0, 1), layers)
            yield reach_inputs(drawn(rng, n, 0.4), layers)
    for n in (4, 5):
        yield reach_inputs(band(n, 1), 2)
        yield reach_inputs(drawn(rng, n, 0.2, diagonal=False), 3)
    yield reach_inputs(band(6, 1), 3)


task = Task(
    reference.reach,
    number=2,
    returns=("reached",),
    difficulty=2,
    minutes=20,
    section="reach",
    probes=probes,
    adapt=by_place,
    small=small,
)


@task.check(1)
def it_is_a_square_of_booleans(answer, rng):
    for n, layers in ((5, 1), (7, 3)):
        inputs = reach_inputs(band(n, 1), layers)
        is_a_square(answer(inputs), inputs)


def is_a_square(reached, inputs):
    n = len(inputs["mask"])
    has_shape("reached", reached, "(n n)", n, n, inputs=inputs, dtype=torch.bool)


@task.check(1)
def without_a_layer_everybody_knows_only_oneself(answer, rng):
    answer.matches(reach_inputs(drawn(rng, 5), 0))
    answer.matches(reach_inputs(circle(4), 0))


@task.check(1)
def one_layer_is_the_mask_and_oneself(answer, rng):
    answer.matches(reach_inputs(drawn(rng, 6), 1))
    answer.matches(reach_inputs(circle(6), 1))


@task.check(2)
def a_window_reaches_one_width_further_with_every_layer(answer, rng):
    for layers in (2, 3, 5):
        answer.matches(reach_inputs(band(12, 2), layers))
        answer.matches(reach_inputs(band(9, 1, 1), layers))
    answer.matches(reach_inputs(band(9, 0, 2), 3))


@task.check(2)
def any_mask_is_followed_step_by_step(answer, rng):
    for n, share, layers in ((8, 0.15, 2), (9, 0.1, 3), (12, 0.06, 4), (15, 0.05, 5)):
        answer.matches(reach_inputs(drawn(rng, n, share), layers))
    answer.matches(reach_inputs(steps_of(1, 4, 4, 4, 4, 1), 5))  # 256 paths: 0 in uint8
    answer.matches(reach_inputs(~torch.eye(16, dtype=torch.bool), 18))  # 2^68 paths: 0 in int64
    answer.matches(reach_inputs(one_way(8, 3), 3))
    answer.matches(reach_inputs(one_way(30, 40), 30))
    answer.matches(reach_inputs(two_groups(16), 40))  # 2^160 paths: ∞ in float32


@task.check(2)
def nobody_forgets(answer, rng):
    lonely = drawn(rng, 6) & (torch.arange(6)[:, None] != 2)
    for mask, layers in (
        *((circle(7), 3), (lonely, 2)),
        *((drawn(rng, 8, 0.2, diagonal=False), layers) for layers in (2, 3)),
    ):
        inputs = reach_inputs(mask, layers)
        tables = [answer(reach_inputs(mask, n)) for n in range(1, layers + 1)]
        for each in tables:
            is_a_square(each, inputs)
        for n, (before, after) in enumerate(itertools.pairwise(tables), 1):
            if (before & ~after).any():
                said = f"After {n + 1} layers some word has lost what it knew after {n}."
                raise Failure(said, reach_inputs(mask, n + 1))
        answer.holds_of_the_right(inputs)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, reach_inputs(band(7, 1), 2))
    moves_nothing(answer, reach_inputs(circle(6), 2))  # to look at oneself is easily written in
    inputs = reach_inputs(drawn(rng, 6, 0.2), 3)
    turned = inputs | {"mask": inputs["mask"].T.contiguous().T}
    compare("reached, from a mask in another memory order", answer(turned), answer(inputs))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Reach:
    def given(mask):
        return mask

    def start(mask):
        return torch.eye(len(mask), dtype=torch.bool)

    def rounds(layers):
        return layers

    def hear(mask, known):
        return mask.float() @ known.float()

    def told(heard, mask):
        return heard > 0

    def join(heard, known):
        return heard | known

    def keep(self, heard, known):
        return self.join(heard, known)

    def result(known, mask, layers):
        return known

    def __call__(self, mask, layers):
        mask = self.given(mask)
        known = self.start(mask)
        for _ in range(self.rounds(layers)):
            known = self.keep(self.told(self.hear(mask, known), mask), known)
        return self.result(known, mask, layers)


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "R-FORGETS",
    keep=lambda heard, known: heard,
    result=(
        ...,
        lambda self, known, mask, layers: self.join(known, torch.eye(len(mask), dtype=torch.bool)),
    ),
)


def from_all_known(mask, known):
    """From the second layer on, a word looks at all of whom it has heard."""
    begins = torch.equal(known, torch.eye(len(known), dtype=torch.bool))
    return (mask if begins else known).float() @ known.float()


task.fault("R-DOUBLES", hear=from_all_known)


def row_by_row(mask, known):
    known = known.clone()
    for i in range(len(mask)):
        known[i] |= known[mask[i]].any(0)
    return known.float()


task.fault("R-IN-PLACE", hear=row_by_row)
task.fault("R-TO-THE-END", rounds=(lambda layers: 20 * layers, lambda layers: 200))
task.fault(
    "R-BY-DISTANCE",
    result=lambda known, mask, layers: ago(len(mask)) <= layers * (ago(len(mask)) * mask).max(),
)
task.fault("R-ONE-LESS", rounds=lambda layers: layers - 1)
task.fault("R-ONE-MORE", rounds=lambda layers: layers + 1)
task.fault(
    "R-BEGINS-WITH-THE-MASK",
    start=lambda mask: mask,
    keep=lambda self, heard, known: self.join(known, heard),  # who forgets has R-ONE-MORE with it
)
task.fault("R-BEGINS-EMPTY", start=torch.zeros_like)
task.fault(
    "R-NOTHING-WITHOUT-A-LAYER",
    result=lambda known, mask, layers: known if layers else torch.zeros_like(known),
)
task.fault("R-AT-LEAST-ONE", rounds=lambda layers: max(1, layers))
task.fault("R-ONE-LAYER", rounds=lambda layers: min(1, layers))
task.fault(
    "R-OTHER-WAY",
    given=(lambda mask: mask.T, ...),
    result=(..., lambda known, mask, layers: known.T),
)
task.fault("R-INTO-THE-MASK", given=lambda mask: mask.fill_diagonal_(True))
task.fault("R-SYMMETRIC", given=lambda mask: mask | mask.T)
task.fault("R-ENTRY-BY-ENTRY", hear=lambda mask, known: mask.float() * known.float())
task.fault(
    "R-SQUARES",
    start=lambda mask: mask | torch.eye(len(mask), dtype=torch.bool),
    hear=lambda mask, known: known.float() @ known.float(),
)
task.fault("R-ALL-OF-THEM", told=lambda heard, mask: heard == mask.sum(-1, keepdim=True))
of_paths = task.fault(
    "R-PATHS",
    told=lambda heard, mask: heard,
    join=lambda heard, known: heard + known.float(),
    start=lambda mask: torch.eye(len(mask)),
)


def counted(kind):
    """Paths are counted, in whole numbers that begin again at 0 behind their largest."""

    class Counted(Reach):
        def __call__(self, mask, layers):
            mask = self.given(mask)
            step = mask.to(kind) + torch.eye(len(mask), dtype=kind)
            paths = torch.eye(len(mask), dtype=kind)
            for _ in range(self.rounds(layers)):
                paths = step @ paths
            return self.result(paths != 0, mask, layers)

    return Counted


@of_paths
class PathsInWholeNumbers(Reach):
    def __call__(self, mask, layers):
        mask = self.given(mask)
        step = mask.long() + torch.eye(len(mask), dtype=torch.long)
        paths = torch.eye(len(mask), dtype=torch.long)
        for _ in range(self.rounds(layers)):
            paths = step @ paths
        return self.result(paths, mask, layers)


task.fault("R-PATHS-OVERFLOW", forms=[*map(counted, (torch.uint8, torch.int8, torch.int64))])


def in_floats(power):
    """Paths are counted in floats; behind their largest comes ∞, and 0 times ∞ is NaN."""

    class InFloats(Reach):
        def __call__(self, mask, layers):
            mask = self.given(mask)
            step = mask.float() + torch.eye(len(mask))
            return self.result(power(step, self.rounds(layers)) > 0, mask, layers)

    return InFloats


def step_by_step(multiply):
    def power(step, layers):
        paths = torch.eye(len(step))
        for _ in range(layers):
            paths = multiply(step, paths)
        return paths

    return power


task.fault(
    "R-PATHS-INFINITE",
    forms=[
        in_floats(step_by_step(lambda step, paths: step @ paths)),
        in_floats(step_by_step(lambda step, paths: paths @ step)),
        in_floats(torch.linalg.matrix_power),
    ],
)
task.fault(
    "R-NUMBERS",
    result=(
        lambda known, mask, layers: known.float(),
        lambda known, mask, layers: known.long(),
        lambda known, mask, layers: known.int(),
    ),
)


def clamped(mask, layers):
    """Paths in floats, at most 1: NaN stays NaN."""
    step = mask.float() + torch.eye(len(mask))
    return step_by_step(lambda step, paths: step @ paths)(step, layers).clamp(max=1)


task.faults["R-NUMBERS"].forms.append(clamped)
task.fault("R-POLARITY", given=lambda mask: ~mask)
task.fault(
    "R-CAUSAL",
    given=(torch.tril, ...),
    result=(..., lambda known, mask, layers: known.tril()),
)
task.fault("R-NOT-YET", result=lambda known, mask, layers: ~known)
task.fault("R-HOW-MANY", result=lambda known, mask, layers: known.sum(-1))
task.fault("R-LAST-WORD", result=lambda known, mask, layers: known[-1])
task.fault("R-EVERYBODY", result=lambda known, mask, layers: known.all())
task.fault("R-SHARE", result=lambda known, mask, layers: known.float().mean())
task.fault(
    "R-WITHOUT-ONESELF",
    result=lambda known, mask, layers: known & ~torch.eye(len(known), dtype=torch.bool),
)
task.fault(
    "R-NEW-ONLY",
    result=lambda known, mask, layers: known & ~Reach()(mask, layers - 1) if layers else known,
)


@task.fault("R-SHARES-VANISH")
class Shares(Reach):
    """Everybody hands on equal shares of everything known; a small share is no number at last."""

    def __call__(self, mask, layers):
        mask = self.given(mask)
        flow = (mask | torch.eye(len(mask), dtype=torch.bool)).float()
        flow, arrived = flow / flow.sum(-1, keepdim=True), torch.eye(len(mask))
        for _ in range(self.rounds(layers)):
            arrived = flow @ arrived
        return self.result(arrived > 0, mask, layers)

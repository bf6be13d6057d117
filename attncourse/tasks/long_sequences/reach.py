"""Who has heard of whom after some layers: task 2 of chapter 11."""

import torch

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
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
    hints=(
        "Before the first layer everybody knows only oneself. What does a word know after one "
        "layer more? And can it forget?",
        "Keep a table: row i says of whom i knows. One layer: i hears what all those know that it "
        "looks at. “Any of them knows j” is a product of two tables of 0 and 1 that is above 0. "
        "What i knew before stays, by the residual connection.",
        "known = torch.eye(n, dtype=torch.bool); then, `layers` times: known = known | "
        "(mask.float() @ known.float() > 0).",
    ),
    probes=probes,
    adapt=by_place,
    small=small,
)


@task.check(1)
def it_is_a_square_of_booleans(answer, rng):
    for n, layers in ((5, 1), (7, 3)):
        inputs = reach_inputs(band(n, 1), layers)
        reached = answer(inputs)
        if reached.shape != (n, n) or reached.dtype != torch.bool:
            raise Failure(
                f"reached has shape {shape_of(reached)} and dtype {reached.dtype}; expected "
                f"({n} {n}), torch.bool.",
                inputs,
            )


@task.check(1)
def without_a_layer_everybody_knows_only_oneself(answer, rng):
    answer.matches(reach_inputs(drawn(rng, 5), 0))
    answer.matches(reach_inputs(circle(4), 0))


@task.check(1)
def one_layer_is_the_mask_and_oneself(answer, rng):
    answer.matches(reach_inputs(drawn(rng, 6), 1))
    answer.matches(reach_inputs(circle(6), 1))


@task.check(2)
def a_window_reaches_further_with_every_layer(answer, rng):
    for layers in (2, 3, 5):
        answer.matches(reach_inputs(band(12, 2), layers))
        answer.matches(reach_inputs(band(9, 1, 1), layers))
    answer.matches(reach_inputs(band(9, 0, 2), 3))


@task.check(2)
def any_mask_is_followed_step_by_step(answer, rng):
    for n, share, layers in ((8, 0.15, 2), (9, 0.1, 3), (12, 0.06, 4), (15, 0.05, 5)):
        answer.matches(reach_inputs(drawn(rng, n, share), layers))


@task.check(2)
def nobody_forgets(answer, rng):
    answer.matches(reach_inputs(circle(7), 3))
    for layers in (2, 3):
        answer.matches(reach_inputs(drawn(rng, 8, 0.2, diagonal=False), layers))
    lonely = drawn(rng, 6) & (torch.arange(6)[:, None] != 2)
    answer.matches(reach_inputs(lonely, 2))


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

    def keep(heard, known):
        return heard | known

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
    "After a layer a word knows what those knew that it looked at.",
    "And what it knew itself: the residual connection goes around the attention. Yours forgets, "
    "which shows wherever a word does not look at itself.",
    keep=lambda heard, known: heard,
)


@task.fault(
    "R-DOUBLES",
    "In each layer all that is known is passed on as far again.",
    "Then the way doubles from layer to layer. In a layer a word looks once, where the mask allows "
    "it: what is known moves by one step of the mask.",
)
def doubles(mask, layers):
    known = torch.eye(len(mask), dtype=torch.bool)
    for layer in range(layers):
        known = known | ((mask if layer == 0 else known).float() @ known.float() > 0)
    return known


@task.fault(
    "R-IN-PLACE",
    "The table is filled in row by row.",
    "Then a later row already hears what an earlier one has learned in the *same* layer, and news "
    "travel several steps at once. All rows of a layer read the table as it was before.",
)
def in_place(mask, layers):
    known = torch.eye(len(mask), dtype=torch.bool)
    for _ in range(layers):
        for i in range(len(mask)):
            known[i] |= known[mask[i]].any(0)
    return known


task.fault(
    "R-TO-THE-END",
    "Go on until nobody hears anything new.",
    "That is what any number of layers could bring. Each layer brings one step, and only as many "
    "as are asked for are there.",
    rounds=lambda layers: 20 * layers,
)
task.fault(
    "R-BY-DISTANCE",
    "What is within layers times the window's width has been heard.",
    "For a plain window that is so. A mask may have holes, look to one side, or be wider in one "
    "row than in another: follow it step by step.",
    result=lambda known, mask, layers: ago(len(mask)) <= layers * (ago(len(mask)) * mask).max(),
)
task.fault(
    "R-ONE-LESS",
    "The mask is the first layer's work, and it is there already.",
    "Before the first layer everybody knows only oneself. Count the layers again: with one layer "
    "the mask is what comes out, with none the diagonal.",
    rounds=lambda layers: layers - 1,
)
task.fault(
    "R-ONE-MORE",
    "I begin with the mask, and then add the layers.",
    "Beginning with the mask is one layer already. With 0 layers everybody knows only oneself.",
    rounds=lambda layers: layers + 1,
)
task.fault(
    "R-BEGINS-WITH-THE-MASK",
    "What is known at the beginning is the mask.",
    "The mask says who looks, and looking takes a layer. At the beginning everybody knows oneself, "
    "also where the mask has no diagonal.",
    start=lambda mask: mask,
)
task.fault(
    "R-AT-LEAST-ONE",
    "A model has at least one layer.",
    "This one may have none: then nobody has heard of anybody else.",
    rounds=lambda layers: max(1, layers),
)
task.fault(
    "R-ONE-LAYER",
    "Who looks at whom is the same in every layer, so the number of layers does not matter.",
    "The mask is the same; what those know that a word looks at grows with every layer. Yours "
    "stops after the first.",
    rounds=lambda layers: min(1, layers),
)
task.fault(
    "R-OTHER-WAY",
    "i hears of j if j looks at i.",
    "Looking is asking: row i of the mask says at whom i looks, and from those it hears. Row i of "
    "the answer says of whom i has heard. Yours goes against the arrows.",
    given=(lambda mask: mask.T, ...),
    result=(..., lambda known, mask, layers: known.T),
)
task.fault(
    "R-SYMMETRIC",
    "If i can hear of j, then j can hear of i.",
    "Not under a causal mask, nor with a token that is looked at and looks nowhere. Only symmetric "
    "masks reach symmetrically.",
    given=lambda mask: mask | mask.T,
)
task.fault(
    "R-ENTRY-BY-ENTRY",
    "The mask to the power of the layers, entry by entry.",
    "0 and 1 stay what they are under any such power. Steps follow each other in a product of "
    "matrices: row times column, `@` and not `*`.",
    hear=lambda mask, known: mask.float() * known.float(),
)
task.fault(
    "R-SQUARES",
    "In each layer the reach is multiplied with itself.",
    "Then it doubles: after l layers as far as 2 to the l steps. A layer adds one step, with the "
    "mask it has.",
    start=lambda mask: mask | torch.eye(len(mask), dtype=torch.bool),
    hear=lambda mask, known: known.float() @ known.float(),
)
task.fault(
    "R-ALL-OF-THEM",
    "i hears of j if all know of j that it looks at.",
    "One is enough: attention mixes all values, and any of them may bring j. *Any*, not *all*.",
    told=lambda heard, mask: heard == mask.sum(-1, keepdim=True),
)
task.fault(
    "R-PATHS",
    "The product of the masks is the result.",
    "Its entries count the ways from j to i. What is asked is whether there is one: True or False.",
    told=lambda heard, mask: heard,
    keep=lambda heard, known: heard + known.float(),
    start=lambda mask: torch.eye(len(mask)),
)
task.fault(
    "R-NUMBERS",
    "0 and 1 are as good as False and True.",
    "For counting, yes. But this is used as a mask, and `~` of numbers is an error or −1 and −2. "
    "Return booleans.",
    result=(
        lambda known, mask, layers: known.float(),
        lambda known, mask, layers: known.long(),
    ),
)
task.fault(
    "R-POLARITY",
    "True in the mask means: hide this pair.",
    "Here True means: may attend. Yours goes exactly where nobody may look.",
    given=lambda mask: ~mask,
)
task.fault(
    "R-CAUSAL",
    "Nobody hears of what comes later.",
    "That is the mask's business. Where a mask lets a word look ahead, it hears of what stands "
    "there.",
    given=lambda mask: mask.tril(),
)
task.fault(
    "R-LAST-WORD",
    "What counts is what the last word has heard.",
    "That is one row of the answer. Asked is the whole table, a row for each word.",
    result=lambda known, mask, layers: known[-1],
)
task.fault(
    "R-EVERYBODY",
    "The question is whether everybody has heard of everybody.",
    "That is one True or False. Asked is for each pair, so that one can see who is missing.",
    result=lambda known, mask, layers: known.all(),
)
task.fault(
    "R-SHARE",
    "Reach is the share of pairs that have heard of each other.",
    "A good number to print, made from the table. The table itself is asked for.",
    result=lambda known, mask, layers: known.float().mean(),
)
task.fault(
    "R-WITHOUT-ONESELF",
    "Nobody hears of oneself.",
    "Everybody knows oneself, from the beginning. The diagonal is True.",
    result=lambda known, mask, layers: known & ~torch.eye(len(known), dtype=torch.bool),
)
task.fault(
    "R-NEW-ONLY",
    "A layer adds those that are new, so I return those.",
    "What a word heard earlier it still knows. Yours shows only what the last layer brought.",
    result=lambda known, mask, layers: known & ~Reach()(mask, layers - 1) if layers else known,
)

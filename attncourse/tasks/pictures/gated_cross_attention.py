import functools

import torch
from torch import nn
from torch.func import functional_call

from attncourse import pictures as reference
from attncourse.checks.answer import Failure, compare, following, has_shape, moves_nothing
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, weights_of
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.multihead import MultiHeadAttention
from attncourse.tasks import as_is

like = functools.cache(made)  # modules of which only names and shapes are looked at


class Asked(nn.Module):
    """Holds the attention that an answer is given, so that its weights can be swapped."""

    def __init__(self, answer, attention):
        super().__init__()
        self.answer, self.attention = answer, attention

    def forward(self, text, memory, *gate_and_mask):
        return self.answer(text, memory, self.attention, *gate_and_mask)


def with_an_attention(answer):
    """The answer as a function of tensors: it is given chapter 5's attention with these weights."""

    def function(*, text, memory, gate, num_heads, memory_mask=None, **weights):
        attention = made(MultiHeadAttention, text.shape[-1], num_heads).to(text.dtype)
        weights = {f"attention.{name}": tensor for name, tensor in weights.items()}
        mask = () if memory_mask is None else (memory_mask,)
        asked = Asked(answer, attention)
        return functional_call(asked, weights, (text, memory, gate, *mask))

    return function


def gated(rng, b=2, q=3, k=5, m=6, h=2, gate=0.5, mask=None, dtype=torch.float32):
    return {
        "text": normal(rng, b, q, m, dtype=dtype),
        "memory": normal(rng, b, k, m, dtype=dtype),
        "gate": torch.tensor(gate, dtype=dtype),
        "memory_mask": mask,
        "num_heads": h,
        **weights_of(like(MultiHeadAttention, m, h), rng, dtype),
    }


def probes(rng):
    return {
        "plain": gated(rng),
        "closed": gated(rng, gate=0.0),
        "nearly closed": gated(rng, gate=0.05),
        "wide open": gated(rng, gate=3.0),
        "below zero": gated(rng, gate=-0.8),
        "far below zero": gated(rng, gate=-2.5),
        "as many words as patches": gated(rng, q=4, k=4, gate=-0.8),
        "one picture of two patches": gated(rng, b=1, q=2, k=2, gate=1.0),
        "all equal": gated(rng, b=4, q=4, k=4, m=4, h=4),
        "one word": gated(rng, q=1, gate=1.2),
        "mask (q k)": gated(rng, mask=mixed_mask(rng, 3, 5)),
        "mask (b 1 k)": gated(rng, b=3, mask=mixed_mask(rng, 3, 1, 5), gate=-1.0),
        "mask (b q k)": gated(rng, mask=mixed_mask(rng, 2, 3, 5), gate=1.5),
        "mask (q k), all equal": gated(rng, b=4, q=4, k=4, m=4, h=4, mask=mixed_mask(rng, 4, 4)),
        "mask, closed": gated(rng, mask=mixed_mask(rng, 2, 3, 5), gate=0.0),
        "dead row": gated(rng, mask=dead_mask(rng, 2, 3, 5)),
        "double": gated(rng, b=3, gate=0.7, dtype=torch.float64),
    }


def small(rng):
    def example(b, q, k, gate, mask=None):
        inputs = gated(rng, b, q, k, 2, 1, gate, mask)
        return inputs | {"text": integers(rng, b, q, 2), "memory": integers(rng, b, k, 2)}

    for b, q, k in ((1, 1, 1), (1, 1, 2), (1, 2, 2), (1, 2, 3), (2, 2, 2)):
        for gate in (1.0, 0.0, -1.0, 3.0):
            yield example(b, q, k, gate)
    yield example(1, 1, 2, 1.0, torch.tensor([[[True, False]]]))
    yield example(1, 2, 2, 1.0, torch.tensor([[True, False], [True, True]]))
    yield example(1, 2, 2, 0.0, torch.tensor([[True, False], [True, True]]))
    yield example(1, 2, 2, 1.0, torch.tensor([[False, False], [True, True]]))
    yield example(2, 1, 2, 1.0, torch.tensor([[[True, False]], [[True, True]]]))


task = Task(
    reference.gated_cross_attention,
    number=4,
    returns=("text", "weights"),
    difficulty=2,
    minutes=15,
    section="gated",
    probes=probes,
    adapt=with_an_attention,
    differentiated=("plain", "closed", "below zero", "mask (b q k)"),
    small=small,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_the_text_and_the_weights(answer, rng):
    inputs = gated(rng, b=2, q=3, k=5, m=8, h=4)
    text, weights = answer(inputs)
    has_shape("text", text, "(b q m)", 2, 3, 8, inputs=inputs)
    has_shape("weights", weights, "(b h q k)", 2, 4, 3, 5, inputs=inputs)


@task.check(2)
def a_closed_gate_leaves_the_text_bit_for_bit(answer, rng):
    leaves_the_text(answer, gated(rng, gate=0.0))
    with following(lambda: right_with_a_mask(answer)):
        leaves_the_text(answer, gated(rng, gate=0.0, mask=mixed_mask(rng, 2, 3, 5)))


def right_with_a_mask(answer):
    rng = torch.Generator().manual_seed(0)
    answer.matches(gated(rng, mask=mixed_mask(rng, 2, 3, 5)))


def leaves_the_text(answer, inputs):
    text, _ = answer(inputs)
    has_shape("text", text, "(b q m)", 2, 3, 6, inputs=inputs)
    if not torch.equal(text, inputs["text"]):
        raise Failure(
            "With the gate at 0 the text should come out as it went in, to the last bit; it "
            f"is off by up to {(text - inputs['text']).abs().max():.2g}.",
            inputs,
            inputs["text"],
            text,
        )


def text_matches(answer, inputs):
    compare("text", answer(inputs)[0], answer.expected(inputs)[0], inputs)


@task.check(2)
def an_open_gate_adds_its_share_of_what_was_found(answer, rng):
    for gate in (0.05, 0.5, 1.2, 3.0):
        text_matches(answer, gated(rng, gate=gate))
    text_matches(answer, gated(rng, b=4, q=4, k=4, m=4, h=4))
    text_matches(answer, gated(rng, b=3, gate=0.7, dtype=torch.float64))


@task.check(1)
def it_is_right_with_a_gate_below_zero(answer, rng):
    for gate in (-0.05, -0.8, -2.5):
        text_matches(answer, gated(rng, gate=gate))


@task.check(1)
def a_gate_never_lets_more_through_than_all(answer, rng):
    inputs = gated(rng, gate=60.0)
    open_wide = answer(inputs)[0]
    has_shape("text", open_wide, "(b q m)", 2, 3, 6, inputs=inputs)
    fully = answer(inputs | {"gate": torch.tensor(30.0)})[0]
    compare("the text with a gate of 60, beside one of 30", open_wide, fully, inputs)
    answer.holds_of_the_right(inputs)


@task.check(1)
def it_is_right_with_a_mask(answer, rng):
    answer.matches(gated(rng, mask=mixed_mask(rng, 3, 5)))
    answer.matches(gated(rng, b=3, mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(gated(rng, b=4, q=4, k=4, m=4, mask=mixed_mask(rng, 4, 4, 4)))
    answer.matches(gated(rng, mask=dead_mask(rng, 2, 3, 5)))


@task.check(1)
def the_weights_are_those_of_the_attention(answer, rng):
    behind = [gated(torch.Generator().manual_seed(7), gate=g) for g in (0.0, 0.5)]
    (text, closed), (_, half) = map(answer, behind)
    has_shape("text", text, "(b q m)", 2, 3, 6, inputs=behind[0])
    compare("the weights behind a closed gate, beside a half-open one", closed, half)
    for options in ({}, {"gate": -0.8}, {"b": 4, "q": 4, "k": 4, "m": 4, "h": 4}):
        inputs = gated(rng, **options)
        compare("weights", answer(inputs)[1], answer.expected(inputs)[1], inputs)
    inputs = gated(rng, b=3, gate=0.7, dtype=torch.float64)
    compare("weights", answer(inputs)[1], answer.expected(inputs)[1], inputs)
    inputs = gated(rng, mask=mixed_mask(rng, 2, 3, 5))
    weights = answer(inputs)[1]
    compare("the sums of the rows of weights", weights.sum(-1), torch.ones(2, 2, 3), inputs)


@task.check(2)
def gradients_are_right_behind_open_and_closed_gates(answer, rng):
    answer.gradients_match(gated(rng, gate=0.0))
    answer.gradients_match(gated(rng, gate=0.6))
    answer.gradients_match(gated(rng, gate=-0.6, mask=mixed_mask(rng, 2, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, gated(rng))
    with following(lambda: right_with_a_mask(answer)):
        moves_nothing(answer, gated(rng, gate=0.0, mask=mixed_mask(rng, 2, 3, 5)))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Gated:
    def at_once(text, gate):
        """What is returned without a look at the picture, if anything is."""
        return None

    def enters(text, memory, gate):
        return text, memory

    def roles(text, memory):
        return text, memory, memory

    def visible(mask):
        return mask

    def ask(attention, query, key, value, mask):
        return attention(query, key, value, mask)

    def share(gate):
        return gate.tanh()

    def passes(share, found, gate):
        return share * found

    def add(text, passed, share):
        return text + passed

    def results(text, weights, share):
        return text, weights

    def __call__(self, text, memory, attention, gate, memory_mask=None):
        if (returned := self.at_once(text, gate)) is not None:
            return returned
        asking, memory = self.enters(text, memory, gate)
        roles, mask = self.roles(asking, memory), self.visible(memory_mask)
        found, weights = self.ask(attention, *roles, mask)
        share = self.share(gate)
        return self.results(self.add(text, self.passes(share, found, gate), share), weights, share)


def if_given(change):
    """What is done to a mask, if there is one."""
    return lambda mask: None if mask is None else change(mask)


# --- faults: the gate ---------------------------------------------------------------------------

task.fault("C-GATE-NO-TANH", share=as_is)
task.fault("C-GATE-SIGMOID", share=(lambda gate: gate.sigmoid(), lambda gate: 2 * gate.sigmoid()))
task.fault("C-GATE-TAN", share=torch.tan)
task.fault("C-GATE-ONE-MORE", share=lambda gate: 1 + gate.tanh())
task.fault(
    "C-GATE-POSITIVE",
    share=(
        lambda gate: gate.tanh().relu(),
        lambda gate: gate.tanh().abs(),
        lambda gate: gate.relu().tanh(),
        lambda gate: gate.clamp(0, 1),
    ),
)
task.fault("C-GATE-NONE", passes=lambda share, found, gate: found + 0 * share)
task.fault(
    "C-GATE-TANH-INSIDE",
    passes=(
        lambda share, found, gate: gate * found.tanh(),
        lambda share, found, gate: (gate * found).tanh(),
        lambda share, found, gate: share * found.tanh(),
    ),
)
task.fault(
    "C-GATE-DETACHED",
    share=(
        lambda gate: gate.detach().tanh(),
        lambda gate: gate.tanh().item(),
    ),
)


task.fault(
    "C-GATE-IF-CLOSED",
    passes=(
        lambda share, found, gate: torch.zeros_like(found) if gate == 0 else share * found,
        ...,
        ...,
        lambda share, found, gate: torch.zeros_like(found) if gate == 0 else share * found,
    ),
    results=(
        ...,
        ...,
        ...,
        lambda text, weights, share: (text, weights if share else torch.zeros_like(weights)),
    ),
    at_once=(
        ...,
        lambda text, gate: (text, None) if gate == 0 else None,
        lambda text, gate: text if gate == 0 else None,
        ...,
    ),
)


# --- faults: the text ---------------------------------------------------------------------------

task.fault("C-GATE-NO-TEXT", add=lambda text, passed, share: passed)
task.fault(
    "C-GATE-MIXED",
    add=(
        lambda text, passed, share: (1 - share) * text + passed,
        lambda text, passed, share: (1 - share.abs()) * text + passed,
    ),
)
task.fault("C-GATE-OVER-ALL", add=lambda text, passed, share: share * text + passed)
task.fault(
    "C-GATE-ON-TEXT",
    passes=lambda share, found, gate: found,
    add=lambda text, passed, share: share * text + passed,
)
task.fault(
    "C-GATE-TWICE",
    enters=(
        lambda text, memory, gate: (gate.tanh() * text, memory),
        lambda text, memory, gate: (text, gate.tanh() * memory),
    ),
)
task.fault(
    "C-GATE-IN-FRONT",
    enters=lambda text, memory, gate: (text, gate.tanh() * memory),
    passes=lambda share, found, gate: found,
)


def normalized(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


task.fault(
    "C-GATE-NORM",
    enters=(lambda text, memory, gate: (normalized(text), memory), ...),
    results=(..., lambda text, weights, share: (normalized(text), weights)),
)
task.fault("C-GATE-IN-PLACE", add=lambda text, passed, share: text.add_(passed))

# --- faults: who asks whom ----------------------------------------------------------------------

task.fault(
    "C-GATE-TEXT-TOO",
    roles=(
        lambda text, memory: (text, *2 * [torch.cat([memory, text], 1)]),
        lambda text, memory: (text, *2 * [torch.cat([text, memory], 1)]),
    ),
)


def cut_to_the_text(attention, query, key, value, mask):
    """As many rows of what was found as the text has words: so it can be added."""
    found, weights = attention(query, key, value, mask)
    return found[:, : key.shape[1]], weights


reversed_roles = task.fault(
    "X-REVERSED",
    roles=lambda text, memory: (memory, text, text),
    ask=(..., cut_to_the_text),
)


@reversed_roles
class TextForThePicture(Gated):
    """The picture asks, and gets what the text says."""

    def __call__(self, text, memory, attention, gate, memory_mask=None):
        return super().__call__(memory, text, attention, gate, None)


task.fault(
    "X-WRONG-KV",
    roles=(lambda text, memory: (text, memory, text), lambda text, memory: (text, text, memory)),
)
task.fault(
    "X-SELF",
    roles=lambda text, memory: (text, text, text),
    visible=(..., lambda mask: None),
)
task.fault("M-IGNORED", visible=lambda mask: None)
task.fault("M-IF-MASK", visible=if_given(lambda mask: mask if mask else None))
task.fault("M-ONE-AXIS-MORE", visible=if_given(lambda mask: mask[:, None]))
task.fault("M-POLARITY", visible=if_given(torch.logical_not))
task.fault("M-ONE-ROW", visible=if_given(lambda mask: mask[..., :1, :]))

# --- faults: what comes back --------------------------------------------------------------------

task.fault("C-GATE-WEIGHTS", results=lambda text, weights, share: (text, share * weights))
task.fault("D-SWAPPED-RESULTS", results=lambda text, weights, share: (weights, text))
task.fault("D-OUTPUT-ONLY", results=lambda text, weights, share: text)

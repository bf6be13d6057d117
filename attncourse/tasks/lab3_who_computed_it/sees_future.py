"""An experiment: does an output change when only later inputs do?"""

import torch
import torch.nn.functional as F
from torch import nn

from attncourse.checks.answer import Failure, describe
from attncourse.checks.device import elsewhere, mixed, stays_with
from attncourse.checks.inputs import causal, normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import backends
from attncourse.lab import lab3_who_computed_it as reference
from attncourse.tasks import thoughts
from attncourse.tasks.lab3_who_computed_it import pick, without


def attend(x, allowed):
    """Self-attention without weights of its own; a row that may see nothing gives 0."""
    scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ x


def layer_of_torch(x, masked):
    """Torch's own layer, which with some versions forgets a mask that is only hinted at."""
    # Two heads: with an odd number the fast path, whose behavior is the question, is not taken.
    layer = nn.MultiheadAttention(x.shape[-1], 2, batch_first=True, dtype=x.dtype).eval()
    hidden = ~causal(x.shape[1]) if masked else None

    def fn(x):
        try:
            return layer(x, x, x, need_weights=False, attn_mask=hidden, is_causal=True)[0]
        except RuntimeError:  # it refuses instead: nothing leaks
            return attend(x, causal(x.shape[1]))

    return fn


def a_function(kind, x):
    """A function of (b n d) whose dependence on the future is known."""
    n, original = x.shape[1], x.clone()
    past, everything = causal(n), torch.ones(n, n, dtype=torch.bool)

    def shared(x, place, seen, share=0.5):
        y = attend(x, past)
        row = torch.zeros(n, 1, dtype=x.dtype)
        row[place] = share
        return y + row * x[:, seen : seen + 1]

    def rounded(x):  # other sums, other last digits, also of a number near zero
        noise = torch.sin(1e4 * x.sum((1, 2), keepdim=True))
        return attend(x, past) * (torch.arange(x.shape[2]) > 0) + 3e-7 * noise

    def moved(x, sign):
        y = attend(x, past)
        y[:, 1] += sign * 0.5 * (x[:, n - 1] - original[:, n - 1]).abs()
        return y

    def last_feature(x):
        y = attend(x, past)
        y[:, 0, :2] += 0.5 * x[:, n - 1, -1:] * torch.tensor([1.0, -1.0])
        return y

    def second_sentence(x):
        y = attend(x, past)
        y[1] = attend(x[1], everything)
        return y

    def without_gradients(x):
        return attend(x, past if torch.is_grad_enabled() else everything)

    return {
        "causal": lambda x: attend(x, past),
        "sees all": lambda x: attend(x, everything),
        "one word ahead": lambda x: attend(x, everything.tril(1)),
        "early": lambda x: shared(x, 0, 2),
        "late": lambda x: shared(x, n - 2, n - 1),
        "first": lambda x: shared(x, 0, 1),
        "faint": lambda x: shared(x, 1, n - 1, 3e-4),
        "raises": lambda x: moved(x, 1),
        "lowers": lambda x: moved(x, -1),
        "last feature": last_feature,
        "running sum": lambda x: x.cumsum(1),
        "second sentence": second_sentence,
        "rounding": rounded,
        "normed": lambda x: attend(F.layer_norm(x, x.shape[2:]), everything),
        "scaled": lambda x: attend(F.normalize(x, dim=-1), everything),
        "without gradients": without_gradients,
        "only the future": lambda x: attend(x, past.mT),
        "zeros ahead": lambda x: attend(x, everything),
        "one position": lambda x: attend(x, everything),
        "the hint of torch": lambda x: None,
        "the mask of torch": lambda x: None,
    }[kind]


KINDS = (
    *("causal", "sees all", "one word ahead", "early", "late", "faint", "second sentence"),
    *("first", "raises", "lowers", "last feature", "running sum"),
    *("rounding", "normed", "scaled", "without gradients", "only the future", "zeros ahead"),
    *("one position", "the hint of torch", "the mask of torch"),
)


def perturbed(sees_future, view="said"):
    """What the answer says of one kind of function; gradients are off, as when a model is used."""

    def function(kind, x):
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(3)
            fn = a_function(kind, x)
            if kind.endswith("of torch"):
                fn = layer_of_torch(x, masked="mask" in kind)
            kept = x.clone()
            with without(backends.sees_future):
                said = sees_future(fn, x)
        if view == "edited":
            return not torch.equal(kept, x)
        if isinstance(said, torch.Tensor) or type(said).__module__ == "numpy":
            said = said.item()
        if said is not None and not isinstance(said, bool):
            raise Unusable(f"returned {describe(said)}; True or False is expected.")
        return said

    return function


def of_a_running_sum(sees_future):
    """The answer, of a function that makes no tensors of its own."""
    return elsewhere(lambda kind, x: sees_future(lambda x: x.cumsum(1), x))


def edits_its_input(sees_future):
    return perturbed(sees_future, "edited")


def question(rng, kind, b=2, n=5, d=4):
    x = normal(rng, b, 1 if kind == "one position" else n, d)
    if kind == "zeros ahead":
        x[:, 1:] = 0
    return {"kind": kind, "x": x}


def probes(rng):
    return {kind: question(rng, kind) for kind in KINDS}


def traits(answer):
    inputs = question(torch.Generator().manual_seed(0), "causal")
    return {
        "edits x": answer.observe(inputs, adapt=edits_its_input).returned is True,
        "mixes devices": bool(mixed(answer, inputs, of_a_running_sum)),
    }


WHAT = {
    "causal": "attention with a causal mask",
    "sees all": "attention without a mask",
    "one word ahead": "attention that also sees the next position",
    "early": "causal attention with half of input 2 added to output 0",
    "late": "causal attention with half of the last input added to the output before it",
    "first": "causal attention with half of input 1 added to output 0",
    "faint": "causal attention with 0.0003 of the last input added to output 1",
    "raises": "causal attention whose output 1 rises, however the last input changes",
    "lowers": "causal attention whose output 1 falls, however the last input changes",
    "last feature": "causal attention with the last input's last feature added to one feature of "
    "output 0 and taken from another",
    "running sum": "the sum of the inputs so far",
    "second sentence": "a causal mask for the first sentence of the batch only",
    "rounding": "causal attention whose last digits (3e-7) depend on how it is summed up",
    "normed": "attention without a mask, after a layer norm",
    "scaled": "attention without a mask, of inputs scaled to length one",
    "without gradients": "attention that is causal only while gradients are on",
    "only the future": "attention that sees the present and the future, not the past",
    "zeros ahead": "attention without a mask, of an input that ends in zeros",
    "one position": "attention over a single position",
    "the hint of torch": "torch's nn.MultiheadAttention in eval mode, is_causal=True and no mask",
    "the mask of torch": "torch's nn.MultiheadAttention in eval mode, with a causal attn_mask",
}


def knows(answer, rng, *kinds):
    for kind in kinds:
        inputs = question(rng, kind, n=pick(rng, 5, 6))
        got, expected = answer(inputs), answer.expected(inputs)
        if got != expected:
            does = "changes an earlier output" if expected else "changes no earlier output"
            raise Failure(
                f"{WHAT[kind][0].upper()}{WHAT[kind][1:]}: changing later inputs {does}; you "
                f"say {got}."
            )


task = Task(
    reference.sees_future,
    number=5,
    returns=bool,
    difficulty=3,
    minutes=12,
    section="lab3-leak",
    hints=(
        "If nothing before position i may depend on position i, what must stay as it is when "
        "only the inputs from i on change?",
        "For each cut i from 1 to n − 1: copy x, add noise from i on, run fn again, and "
        "compare the outputs before i with the old ones. Compare all sentences.",
        "`changed = x.clone()`; `changed[:, i:] += torch.randn_like(changed[:, i:])`; compare "
        "`fn(changed)[:, :i]` with `before[:, :i]` by `torch.allclose` with an atol of 1e-5. "
        "One difference is enough for True.",
    ),
    probes=probes,
    small=lambda rng: iter(()),
    adapt=perturbed,
    ready_made=(backends.sees_future,),
    traits=traits,
    chance=True,
)


@task.check(2)
def it_tells_a_causal_mask_from_none(answer, rng):
    knows(answer, rng, "causal", "sees all", "one word ahead", "causal")


@task.check(1)
def it_looks_ahead_and_not_back(answer, rng):
    knows(answer, rng, "only the future", "running sum", "causal")


@task.check(2)
def a_leak_anywhere_is_found(answer, rng):
    knows(answer, rng, "early", "late", "first", "second sentence")
    knows(answer, rng, "raises", "lowers", "last feature")


@task.check(1)
def a_faint_leak_counts_and_rounding_does_not(answer, rng):
    knows(answer, rng, "faint", "rounding")


@task.check(2)
def a_norm_or_a_padding_hides_nothing(answer, rng):
    knows(answer, rng, "normed", "scaled", "zeros ahead")


@task.check(1)
def it_leaves_gradients_as_they_are(answer, rng):
    knows(answer, rng, "without gradients")


@task.check(1)
def it_says_what_torchs_own_layer_does_here(answer, rng):
    knows(answer, rng, "the hint of torch", "the mask of torch")


@task.check(1)
def one_position_has_no_future(answer, rng):
    knows(answer, rng, "one position")


@task.check(1)
def its_noise_is_made_where_x_is(answer, rng):
    stays_with(answer, question(rng, "running sum"), of_a_running_sum)


@task.check(1)
def it_leaves_x_as_it_is(answer, rng):
    inputs = question(rng, "causal")
    answer(inputs)
    if answer.observe(inputs, adapt=edits_its_input).returned:
        raise Failure("Your answer changed the `x` it was given. Change a copy: `x.clone()`.")


# --- steps --------------------------------------------------------------------------------------


@task.steps
class Experiment:
    def cuts(n):
        return range(1, n)

    def copy(x):
        return x.clone()

    def moved(place):
        return slice(place, None)

    def push(inputs):
        return torch.randn_like(inputs)

    def compared(place):
        return slice(None, place)

    def sentences(y):
        return y

    def equal(before, after):
        return torch.allclose(after, before, rtol=1e-5, atol=1e-5)

    def conclusion(leaks):
        return leaks

    def __call__(self, fn, x):
        before = fn(x)
        for place in self.cuts(x.shape[1]):
            changed, moved, compared = self.copy(x), self.moved(place), self.compared(place)
            changed[:, moved] += self.push(changed[:, moved])
            pair = (self.sentences(y)[:, compared] for y in (before, fn(changed)))
            if not self.equal(*pair):
                return self.conclusion(True)
        return self.conclusion(False)


# --- faults -------------------------------------------------------------------------------------


def within(**tolerances):
    return lambda before, after: torch.allclose(after, before, **tolerances)


task.fault(thoughts.ON_THE_CPU, push=lambda inputs: torch.randn(inputs.shape, dtype=inputs.dtype))
task.fault(
    "L3-PAST",
    "Change earlier inputs and see whether later outputs move.",
    "They should: that is what attention is for. Causality says that earlier outputs do not move "
    "when later inputs do.",
    moved=lambda place: slice(None, place),
    compared=lambda place: slice(place, None),
)
task.fault(
    "L3-ALL-OUTPUTS",
    "Change a later input: if the output changes, there is a leak.",
    "The output at the changed position may change, it sees itself. Only the outputs before it "
    "have to stay.",
    cuts=lambda n: [n - 1],
    compared=lambda place: slice(None),
)
task.fault(
    "L3-OWN-POSITION",
    "What comes up to the changed position, that one included, has to stay.",
    "An output may see its own input, so at the first changed position it moves. Compare only the "
    "outputs that lie before every change.",
    compared=lambda place: slice(None, place + 1),
)
task.fault(
    "L3-ONE-FEATURE",
    "To change an input, one of its features will do.",
    "A layer may look ahead by another one. Change all features, by different amounts.",
    push=lambda inputs: torch.randn_like(inputs) * (torch.arange(inputs.shape[-1]) == 0),
)
task.fault(
    "L3-ONE-SIDED",
    "The difference is larger than the tolerance, or it is not: no need for abs.",
    "A difference of −3 is smaller than any tolerance. An output that only falls, or only rises, "
    "slips through. Take the size of the difference.",
    equal=(
        lambda before, after: (before - after).max() < 1e-5,
        lambda before, after: (after - before).max() < 1e-5,
    ),
)
task.fault(
    "L3-LAST-ONLY",
    "If the last input changes nothing before it, no later input does.",
    "A leak can be anywhere, such as from position 2 to position 0. Try every cut.",
    cuts=lambda n: range(1, n)[-1:],
)
task.fault(
    "L3-FIRST-OUTPUT",
    "The first output sees the most future, so the first cut is enough.",
    "A leak can be anywhere, such as from the last position to the one before. Look at every "
    "output that lies before a change; only after the last cut is it False.",
    cuts=lambda n: range(1, n)[:1],
)
task.fault(
    "L3-ONE-CUT",
    "One cut in the middle is a fair sample.",
    "It sees what crosses the middle. A leak from one position to its neighbor, in the first or "
    "the second half, does not. Try every cut.",
    cuts=lambda n: [n // 2] if n > 1 else [],
)
task.fault(
    "L3-IN-PLACE",
    "I add the noise to x, position by position.",
    "Then x is no longer what the first output was made of: at the second cut the noise of the "
    "first is still there, and everything seems to leak. Change a copy.",
    copy=lambda x: x,
)
task.fault(
    "L3-FIRST-SENTENCE",
    "All sentences of a batch are treated alike, so the first will do.",
    "A mask has a row for each sentence in some calls, and padding differs. Compare the whole "
    "batch; it costs nothing.",
    sentences=lambda y: y[:1],
)
task.fault(
    "L3-EXACT",
    "Causal means that not a single bit may change.",
    "A kernel may sum in another order when other numbers are in the tile, and the last digits "
    "move. Allow for rounding; a leak is larger.",
    equal=(torch.equal, within(rtol=0, atol=1e-8)),
)
task.fault(
    "L3-LOOSE",
    "Small differences are noise.",
    "In float32 noise is a ten-millionth. A model in training finds a leak of a thousandth and "
    "uses it.",
    equal=within(rtol=0.05, atol=0.05),
)
task.fault(
    "L3-CONSTANT",
    "Add 1 to every later input.",
    "A layer norm subtracts the mean over the features and so takes the same 1 out again. Change "
    "the features by different amounts.",
    push=torch.ones_like,
)
task.fault(
    "L3-DOUBLED",
    "Double the later inputs.",
    "What norms its inputs to one length takes the factor out again, and zeros stay zeros. Add "
    "something that has another direction.",
    push=lambda inputs: inputs,
)
task.fault(
    "L3-ZEROED",
    "Set the later inputs to zero, or multiply them by something.",
    "If they are zeros already, as padding is, nothing has changed, and every function passes.",
    push=lambda inputs: -inputs,
)
task.fault(
    "L3-NAN",
    "Set the later inputs to NaN and see whether it spreads.",
    "It spreads through any product, also through a weight of exactly zero: 0 times NaN is NaN. So "
    "a causal mask seems to leak.",
    push=lambda inputs: torch.full_like(inputs, torch.nan),
)
task.fault(
    "L3-INVERTED",
    "True means that the function passed.",
    "The question in its name is whether it sees the future. Passing means False.",
    conclusion=lambda leaks: not leaks,
)


@task.fault(
    "L3-CUT-SHORT",
    "Leave the future out: run `fn` on the first positions alone, and compare.",
    "A function may be made for one length, with its mask or its positions, and refuses a shorter "
    "text or treats it in another way. Keep the length, and change the numbers.",
)
class CutShort(Experiment):
    def __call__(self, fn, x):
        before = fn(x)
        return any(
            not self.equal(before[:, :place], fn(x[:, :place])) for place in range(1, x.shape[1])
        )


@task.fault(
    "L3-GRADIENT",
    "The gradient of an early output with respect to later inputs shows it exactly.",
    "It needs gradients on, and torch computes attention in another way then. What leaks without "
    "gradients is not seen; change the inputs and leave the mode.",
    section="lab3-layer",
)
def by_gradients(fn, x):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = fn(x)
        for place in range(1, x.shape[1]):
            (g,) = torch.autograd.grad(y[:, :place].pow(2).sum(), x, retain_graph=True)
            if g[:, place:].abs().max() > 1e-5:
                return True
    return False


@task.fault(
    "L3-COURSES-PERTURBATION",
    "The package has sees_future, so I call that.",
    "In the measurement it is used. Here the point is to write the test that you will need when "
    "the model is your own.",
)
def calls_the_packages(fn, x):
    return backends.sees_future(fn, x)

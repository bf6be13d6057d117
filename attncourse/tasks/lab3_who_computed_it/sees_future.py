import torch
import torch.nn.functional as F
from torch import nn

from attncourse.checks.answer import Failure, describe, following
from attncourse.checks.device import elsewhere, mixed, stays_with
from attncourse.checks.inputs import causal, normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import backends
from attncourse.lab import lab3_who_computed_it as reference
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
        "faint": lambda x: shared(x, 1, n - 1, 3e-4),  # a probe, and in no check
        "faint in output 0": lambda x: shared(x, 0, n - 1, 3e-4),
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
    "faint in output 0": "causal attention with 0.0003 of the last input added to output 0",
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
    with following(lambda: knows(answer, rng, "sees all")):
        knows(answer, rng, "only the future")
    with following(lambda: knows(answer, rng, "causal")):
        knows(answer, rng, "running sum", "causal")


@task.check(2)
def a_leak_anywhere_is_found(answer, rng):
    knows(answer, rng, "early", "late", "first", "second sentence")
    knows(answer, rng, "raises", "lowers", "last feature")


@task.check(1)
def a_faint_leak_counts_and_rounding_does_not(answer, rng):
    with following(lambda: knows(answer, rng, "causal", "sees all")):
        knows(answer, rng, "faint in output 0", "rounding")


@task.check(2)
def a_norm_or_a_padding_hides_nothing(answer, rng):
    knows(answer, rng, "normed", "scaled", "zeros ahead")


@task.check(1)
def it_leaves_gradients_as_they_are(answer, rng):
    with following(lambda: knows(answer, rng, "causal", "sees all")):
        knows(answer, rng, "without gradients")


@task.check(1, "it says what PyTorch's own layer does here")
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


task.spelling(equal=lambda before, after: (after - before).abs().max() <= 1e-5)

# --- faults -------------------------------------------------------------------------------------


def within(**tolerances):
    return lambda before, after: torch.allclose(after, before, **tolerances)


task.fault("C-ON-THE-CPU", push=lambda inputs: torch.randn(inputs.shape, dtype=inputs.dtype))
task.fault(
    "L3-PAST", moved=lambda place: slice(None, place), compared=lambda place: slice(place, None)
)
task.fault(
    "L3-ALL-OUTPUTS",
    cuts=(lambda n: [n - 1], lambda n: range(n)),
    compared=(lambda place: slice(None), lambda place: slice(None, place + 1)),
)
task.fault("L3-OWN-POSITION", compared=lambda place: slice(None, place + 1))
task.fault(
    "L3-ONE-FEATURE",
    push=lambda inputs: torch.randn_like(inputs) * (torch.arange(inputs.shape[-1]) == 0),
)
task.fault(
    "L3-ONE-SIDED",
    equal=(
        lambda before, after: (before - after).max() < 1e-5,
        lambda before, after: (after - before).max() < 1e-5,
    ),
)
task.fault("L3-LAST-ONLY", cuts=(lambda n: range(1, n)[-1:], lambda n: [n - 1]))
task.fault("L3-ONE-CUT-LESS", cuts=(lambda n: range(1, n - 1), lambda n: range(2, n)))
task.fault(
    "L3-FIRST-OUTPUT",
    cuts=(lambda n: range(1, n)[:1], ...),
    compared=(..., lambda place: slice(None, 1)),
)
task.fault("L3-ONE-CUT", cuts=(lambda n: [n // 2] if n > 1 else [], lambda n: [n // 2]))
task.fault(
    "L3-IN-PLACE",
    copy=lambda x: x,
    cuts=(..., lambda n: range(n - 1, 0, -1), lambda n: range(n - 1, 0, -1)),
    moved=(..., ..., lambda place: slice(place, place + 1)),
)
task.fault("L3-FIRST-SENTENCE", sentences=lambda y: y[:1])
task.fault("L3-EXACT", equal=(torch.equal, within(rtol=0, atol=1e-8)))
task.fault("L3-LOOSE", equal=(within(rtol=0.05, atol=0.05), within(rtol=0, atol=1e-2)))
task.fault("L3-CONSTANT", push=torch.ones_like)
task.fault("L3-DOUBLED", push=lambda inputs: inputs)
task.fault("L3-ZEROED", push=lambda inputs: -inputs)
task.fault("L3-NAN", push=lambda inputs: torch.full_like(inputs, torch.nan))
task.fault("L3-INVERTED", conclusion=lambda leaks: not leaks)


@task.fault("L3-CUT-SHORT")
class CutShort(Experiment):
    def __call__(self, fn, x):
        before = self.sentences(fn(x))
        return any(
            not self.equal(before[:, :place], self.sentences(fn(x[:, :place])))
            for place in range(1, x.shape[1])
        )


@task.fault("L3-GRADIENT", section="lab3-layer")
def by_gradients(fn, x):
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = fn(x)
        for place in range(1, x.shape[1]):
            (g,) = torch.autograd.grad(y[:, :place].pow(2).sum(), x, retain_graph=True)
            if g[:, place:].abs().max() > 1e-5:
                return True
    return False


@task.fault("L3-GRADIENT-OFF", section="lab3-layer")
def by_gradients_that_are_off(fn, x):
    x = x.clone().requires_grad_()
    y = fn(x)
    for place in range(1, x.shape[1]):
        (g,) = torch.autograd.grad(y[:, :place].sum(), x, retain_graph=True)
        if g[:, place:].abs().max() > 1e-5:
            return True
    return False


@task.fault("L3-COURSES-PERTURBATION")
def calls_the_packages(fn, x):
    return backends.sees_future(fn, x)

import copy

import torch
from torch import nn

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, compare, describe, following, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.modules import as_its_owner_left_it, disturbed, standing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.multihead import merge_heads, split_heads
from attncourse.tasks import as_is
from attncourse.tasks.looking_inside import (
    HEADS,
    WIDTH,
    a_text,
    model_numbers,
    model_of,
    said_before,
    says_as_it_should,
)


def with_a_model(ablated):
    """The answer as a function of tensors: what its model says, and what the given one still says.

    With `then`, a head of the copy is ablated, too.
    """

    def function(*, text, layer, head, value, then=None, **made):
        model = model_of(made["model.numbers"], made["model.layers"])
        changed = ablated(model, layer, head, value)
        if changed is None:
            return None
        if then is not None:
            changed = ablated(changed, *then, 0.0)
        if not callable(changed):
            raise Unusable(
                f"returned {describe(changed)}; a model is expected, called with a text."
            )
        said = changed(text)
        if not isinstance(said, torch.Tensor):
            raise Unusable(f"returned a model that gives {describe(said)}; scores are expected.")
        return [said, model(text)]

    return function


def left_behind(ablated):
    """What the answer leaves otherwise in the given model than its caller had set it."""

    def function(*, text, layer, head, value, then=None, **made):
        model = as_its_owner_left_it(model_of(made["model.numbers"], made["model.layers"]))
        before = standing(model)
        ablated(model, layer, head, value)
        return disturbed(before, standing(model))

    return function


def leaves_behind(answer, inputs):
    return answer.observe(inputs, adapt=left_behind).returned or ""


def without(rng, b=2, n=5, layer=None, head=1, value=0.0, layers=2, then=None, dtype=torch.float32):
    """One head of a model ablated; of one layer, where more would only take longer."""
    layer = layers - 1 if layer is None else layer
    return {
        "model.numbers": model_numbers(rng, layers, dtype),  # with a dot: not shown to a student
        "model.layers": layers,
        "text": a_text(rng, b, n),
        "layer": f"layers.{layer}.attention",
        "head": head,
        "value": value,
        "then": then,
    }


def saying(rng, *shape, **options):
    """A head that says so much: value is (… d)."""
    return without(rng, value=normal(rng, *shape, WIDTH), **options)


def probes(rng):
    return {
        "silent": without(rng),
        "first layer": without(rng, layer=0, head=2),
        "first head": without(rng, head=0),
        "last head": without(rng, head=2, layer=0, n=4),
        "always the same": saying(rng, layers=1),
        "by place": saying(rng, 5, layer=0),
        "by text and place": saying(rng, 2, 5, layers=1),
        "three texts": saying(rng, 3, 4, b=3, n=4, head=0, layers=1),
        "by text": saying(rng, 2, 1, layers=1, head=2),
        "another number": without(rng, value=0.7, head=2, layers=1),
        "one text, one word": saying(rng, b=1, n=1, layers=1),
        "three layers": without(rng, layers=3, layer=1, head=0),
        "two heads": without(rng, then=("layers.1.attention", 2)),
        "two heads of two layers": without(rng, then=("layers.0.attention", 0)),
        "double": without(rng, layers=1, dtype=torch.float64),
    }


def small(rng):
    for n in (1, 2, 3):
        yield without(rng, 1, n, layers=1)
    yield saying(rng, b=1, n=1, layers=1)
    yield saying(rng, 2, b=1, n=2, layers=1)
    yield saying(rng, 2, 2, b=2, n=2, layers=1)
    yield without(rng, 1, 2, layer=0, head=2)
    yield without(rng, 1, 2, then=("layers.1.attention", 2))


def traits(answer):
    left = leaves_behind(answer, without(torch.Generator().manual_seed(0), layers=1))
    return {"leaves a hook": "hook" in left, "leaves another mode": "mode" in left}


task = Task(
    reference.ablated,
    number=1,
    returns=("scores without the head", "scores of the given model, afterwards"),
    difficulty=3,
    minutes=25,
    section="heads-off",
    probes=probes,
    adapt=with_a_model,
    small=small,
    traits=traits,
)


@task.check(2)
def the_scores_are_right_with_a_silent_head(answer, rng):
    for layer, head in ((1, 1), (0, 2)):
        says_as_it_should(answer, without(rng, layer=layer, head=head))
    says_as_it_should(answer, without(rng, layers=1, head=0))
    says_as_it_should(answer, without(rng, layers=3, layer=1, head=0))


@task.check(2)
def the_head_says_the_value_whatever_its_axes(answer, rng):
    for shape in ((), (5,), (2, 5), (2, 1), (1, 5)):
        says_as_it_should(answer, saying(rng, *shape, layers=1))
    says_as_it_should(answer, without(rng, value=0.7))
    says_as_it_should(answer, saying(rng, b=1, n=1, layers=1))
    says_as_it_should(answer, saying(rng, layer=0, head=0))


@task.check(2)
def the_model_that_was_given_stays_as_it_was(answer, rng):
    for inputs in (
        *(without(rng), saying(rng, layers=1), without(rng, layers=3, layer=1, head=0)),
        *(
            without(rng, then=("layers.1.attention", 2)),
            without(rng, layers=1, dtype=torch.float64),
        ),
    ):
        with following(lambda: says_as_it_should(answer, without(rng, head=2))):
            _, afterwards = answer(inputs)
        before = said_before(inputs, inputs["text"])
        compare(answer.task.returns[1], afterwards, before, inputs)
        if left := leaves_behind(answer, inputs):
            raise Failure(f"After your answer, the given model {left}.", inputs)


@task.check(1)
def only_this_head_falls_silent(answer, rng):
    for layer, head in ((1, HEADS - 1), (0, 0)):
        inputs = without(rng, layer=layer, head=head)
        before, (said, _) = said_before(inputs, inputs["text"]), answer(inputs)
        model = model_of(inputs["model.numbers"])
        out = model.layers[layer].attention.out_proj.weight.data
        out[:, head * WIDTH : (head + 1) * WIDTH] = 0
        if torch.equal(said, before):
            raise Failure("Your model gives the same scores as with the head.", inputs)
        name = f"the scores without head {head} of layer {layer}"
        compare(name, said, model(inputs["text"]).detach(), inputs)


@task.check(1)
def it_is_right_with_two_heads_ablated(answer, rng):
    for then in (("layers.1.attention", 2), ("layers.0.attention", 0)):
        says_as_it_should(answer, without(rng, then=then))


@task.check(1)
def it_is_right_in_double_precision_and_nothing_else_changes(answer, rng):
    moves_nothing(answer, without(rng, layers=1), draws=True)  # a new layer draws its weights
    says_as_it_should(answer, without(rng, layers=1, dtype=torch.float64))
    says_as_it_should(answer, without(rng, layers=1, b=3, n=3, head=0))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Ablated:
    def copied(model):
        return copy.deepcopy(model)

    def name(model, layer):
        return layer

    def watched(attention):
        return attention.out_proj

    def numbers(head, h):
        return [head]

    def cut(x, h):
        return split_heads(x, h)

    def meant(value, heads):
        return value

    def says(heads, head, value):
        heads[:, head] = value
        return heads

    def join(heads):
        return merge_heads(heads)

    def mend(attention):
        return attention

    def before(module, hook):
        module.register_forward_pre_hook(lambda module, inputs: hook(inputs[0]))

    def __call__(self, model, layer, head, value):
        model = self.copied(model)
        attention = self.mend(model.get_submodule(self.name(model, layer)))
        h = attention.num_heads

        def hook(x):
            heads = self.cut(x, h).clone()
            for number in self.numbers(head, h):
                heads = self.says(heads, number, self.meant(value, heads))
            return self.join(heads)

        self.before(self.watched(attention), hook)
        return model


def afterward(module, hook):
    module.register_forward_hook(lambda module, inputs, output: hook(output))


# --- faults: where ------------------------------------------------------------------------------


def in_front(module, hook):
    """Another `forward`, without a hook."""
    projected = module.forward
    module.forward = lambda x: projected(hook(x))


task.fault("I-NO-COPY", copied=as_is, before=(..., in_front))
task.fault("I-OTHER-MODE", copied=lambda model: copy.deepcopy(model.eval()))
task.fault("I-AFTER-W-O", before=afterward)


def instead(module, hook):
    module.register_forward_hook(lambda module, inputs, output: hook(inputs[0]))


task.fault("I-NOT-PROJECTED", before=instead)
task.fault("I-VALUES-REPLACED", watched=lambda attention: attention.v_proj, before=afterward)
task.fault(
    "I-QUERY-SILENCED",
    watched=(lambda attention: attention.q_proj, lambda attention: attention.k_proj),
    before=afterward,
)
task.fault("I-FIRST-LAYER", name=lambda model, layer: "layers.0.attention")
task.fault("I-LAST-LAYER", name=lambda model, layer: f"layers.{len(model.layers) - 1}.attention")


def no_bias(attention):
    attention.out_proj.bias.data.zero_()
    return attention


task.fault("I-BIAS-GONE", mend=no_bias)


def without_hooks(attention):
    attention.out_proj._forward_pre_hooks.clear()
    return attention


task.fault("I-HOOKS-CLEARED", mend=without_hooks)


def without_rows(projection):
    def ablated(model, layer, head, value):
        model = copy.deepcopy(model)
        attention = model.get_submodule(layer)
        weight = attention.get_submodule(projection).weight
        d = len(weight) // attention.num_heads
        weight.data[head * d : (head + 1) * d] = 0
        return model

    return ablated


def value_through_rows(model, layer, head, value):
    """The rows are 0, and the value, times the rows as they were, is added to the result."""
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    weight = attention.out_proj.weight
    d = len(weight) // attention.num_heads
    lost = weight.data[head * d : (head + 1) * d].clone()
    weight.data[head * d : (head + 1) * d] = 0
    value = torch.as_tensor(value, dtype=weight.dtype)

    def say(module, inputs, output):
        return output + value.expand(*output.shape[:2], d) @ lost

    attention.out_proj.register_forward_hook(say)
    return model


task.fault("I-ROWS-OF-W-O", forms=[without_rows("out_proj"), value_through_rows])


# --- faults: which head -------------------------------------------------------------------------


def into_a_slice(heads, head, value):
    """Of numbers from head · d to (head + 1) · d: for head −1, these are none."""
    heads[:, head, :, : None if head >= 0 else 0] = value
    return heads


task.fault(
    "I-HEAD-FROM-ONE",
    numbers=lambda head, h: [head - 1],
    says=(..., into_a_slice),
)
task.fault("I-HEAD-FROM-THE-END", numbers=lambda head, h: [h - 1 - head])
task.fault("I-ALL-HEADS", numbers=(lambda head, h: range(h), lambda head, h: [slice(None)]))


def others(head, h):
    return [each for each in range(h) if each != head]


task.fault("I-ONLY-THIS-HEAD", numbers=(others, lambda head, h: [others(head, h)]))
task.fault(
    "I-INTERLEAVED",
    cut=lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
    join=lambda heads: heads.permute(0, 2, 3, 1).flatten(-2),
)
task.fault(
    "I-VIEW-WITHOUT-TURNING",
    cut=lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
    join=lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1),
)

# --- faults: what it says -----------------------------------------------------------------------


def says(change):
    def step(heads, head, value):
        return change(heads, head, torch.as_tensor(value, dtype=heads.dtype))

    return step


def assigned(heads, place, value):
    heads[place] = value
    return heads


task.fault("I-TEXT-FOR-HEAD", says=says(lambda heads, head, value: assigned(heads, head, value)))
task.fault("I-HOOK-UNHEARD", says=lambda heads, head, value: heads)
always_zero = task.fault("I-ALWAYS-ZERO", meant=lambda value, heads: 0.0)


@always_zero
class ColumnsOfZeros(Ablated):
    """The columns of its features are 0 in what projects them."""

    def __call__(self, model, layer, head, value):
        model = self.copied(model)
        attention = self.mend(model.get_submodule(self.name(model, layer)))
        weight = self.watched(attention).weight
        for number in self.numbers(head, attention.num_heads):
            weight.data.unflatten(-1, (attention.num_heads, -1))[:, number] = 0
        return model


task.fault(
    "I-MULTIPLIED",
    says=says(
        lambda heads, head, value: assigned(heads, (slice(None), head), heads[:, head] * value)
    ),
)
task.fault(
    "I-ADDED",
    says=says(
        lambda heads, head, value: assigned(heads, (slice(None), head), heads[:, head] + value)
    ),
)
task.fault(
    "I-SUBTRACTED",
    says=says(
        lambda heads, head, value: assigned(heads, (slice(None), head), heads[:, head] - value)
    ),
)
task.fault(
    "I-OWN-MEAN",
    says=lambda heads, head, value: assigned(
        heads, (slice(None), head), heads[:, head].mean(-2, keepdim=True)
    ),
)
task.fault(
    "I-LAST-PLACE-ONLY",
    says=says(
        lambda heads, head, value: assigned(
            heads,
            (slice(None), head, -1),
            value if value.ndim < 2 else value[..., -1, :],
        )
    ),
)
task.fault(
    "I-FIRST-TEXT-ONLY",
    says=says(
        lambda heads, head, value: assigned(heads, (0, head), value if value.ndim < 3 else value[0])
    ),
)


def meant(change):
    return lambda value, heads: change(torch.as_tensor(value, dtype=heads.dtype))


task.fault(
    "I-ONE-VALUE-FOR-ALL-TEXTS",
    meant=meant(lambda value: value if value.ndim < 3 else value[0]),
)
task.fault(
    "I-VALUE-AVERAGED",
    meant=meant(lambda value: value if value.ndim < 2 else value.mean(-2, keepdim=True)),
)
task.fault("I-ONE-NUMBER", meant=meant(torch.mean))


def removed(heads, head, value):
    left = others(head, heads.shape[1])
    return torch.cat([heads[:, left], torch.zeros_like(heads[:, :1])], 1)


task.fault("I-REMOVED", says=removed)
task.fault("I-WEIGHTS-GONE")(without_rows("v_proj"))


def redrawn(model):
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    return model


task.fault("I-RANDOM-COPY", copied=redrawn)

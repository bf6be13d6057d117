"""A model without one head: what is promised, the reference in steps, what goes wrong."""

import copy

import torch
from torch import nn

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, compare, describe, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.multihead import merge_heads, split_heads
from attncourse.tasks import as_is
from attncourse.tasks.looking_inside import HEADS, WIDTH, a_text, model_numbers, model_of


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


task = Task(
    reference.ablated,
    number=1,
    returns=("scores without the head", "scores of the given model, afterwards"),
    difficulty=3,
    minutes=25,
    section="heads-off",
    hints=(
        "Where do heads still stand side by side? In the attention, after each has averaged its "
        "values and before `out_proj` mixes them. That is the input of `out_proj`.",
        "Work on a copy of the model (`copy.deepcopy`), find the attention by its name "
        "(`model.get_submodule(layer)`), and let PyTorch call a function of yours before "
        "`out_proj`: `register_forward_pre_hook(hook)`, where `hook(module, inputs)` may return "
        "another input.",
        "In the hook: heads = split_heads(inputs[0], attention.num_heads).clone(), which is "
        "(b h q d); heads[:, head] = value; return merge_heads(heads). Then return the copy.",
    ),
    probes=probes,
    adapt=with_a_model,
    small=small,
)


@task.check(2)
def a_silent_head_hands_on_zeros(answer, rng):
    for layer, head in ((1, 1), (0, 2), (1, 0)):
        answer.matches(without(rng, layer=layer, head=head))
    answer.matches(without(rng, layers=3, layer=1, head=0))


@task.check(2)
def the_head_says_the_value_whatever_its_axes(answer, rng):
    for shape in ((), (5,), (2, 5), (2, 1), (1, 5)):
        answer.matches(saying(rng, *shape, layer=len(shape) % 2))
    answer.matches(without(rng, value=0.7))
    answer.matches(saying(rng, b=1, n=1))


@task.check(2)
def the_model_that_was_given_stays_as_it_was(answer, rng):
    for inputs in (without(rng), saying(rng, layer=0)):
        _, afterwards = answer(inputs)
        compare(answer.task.returns[1], afterwards, answer.expected(inputs)[1], inputs)


@task.check(1)
def other_heads_are_heard_as_before(answer, rng):
    inputs = without(rng, layer=1, head=HEADS - 1)
    before, (said, _) = answer.expected(inputs)[1], answer(inputs)
    model = model_of(inputs["model.numbers"])
    model.layers[1].attention.out_proj.weight.data[:, (HEADS - 1) * WIDTH :] = 0
    if torch.equal(said, before):
        raise Failure("Your model says what it said with the head.", inputs)
    compare("the scores without the last head", said, model(inputs["text"]).detach(), inputs)


@task.check(1)
def of_the_copy_another_head_can_be_ablated(answer, rng):
    for then in (("layers.1.attention", 2), ("layers.0.attention", 0)):
        answer.matches(without(rng, then=then))


@task.check(1)
def nothing_else_changes(answer, rng):
    moves_nothing(answer, without(rng))
    answer.matches(without(rng, dtype=torch.float64))
    answer.matches(without(rng, b=3, n=3, head=0))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Ablated:
    def copied(model):
        return copy.deepcopy(model)

    def name(model, layer):
        return layer

    def watched(attention):
        return attention.out_proj

    def number(head, h):
        return head

    def cut(x, h):
        return split_heads(x, h)

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
            return self.join(self.says(self.cut(x, h).clone(), self.number(head, h), value))

        self.before(self.watched(attention), hook)
        return model


def afterward(module, hook):
    module.register_forward_hook(lambda module, inputs, output: hook(output))


# --- faults: where ------------------------------------------------------------------------------

task.fault(
    "I-NO-COPY",
    "The hook is put into the model.",
    "Then the model itself has lost the head, for everybody and for good: the next measurement "
    "compares with a broken one. Change a copy, by `copy.deepcopy`: `copy.copy` shares the layers.",
    copied=as_is,
)
task.fault(
    "I-AFTER-W-O",
    "A head's part of the output is its slice of the attention's output.",
    "After `out_proj` there are no heads any more: every feature is a mixture of all. The slice "
    "you replace belongs to nobody. Reach in before the projection.",
    before=afterward,
)


def instead(module, hook):
    module.register_forward_hook(lambda module, inputs, output: hook(inputs[0]))


task.fault(
    "I-NOT-PROJECTED",
    "What a hook returns is what `out_proj` reads.",
    "Of a hook that is called *before* it. Yours is called after it, and what you return stands in "
    "place of the projection's output: the heads go on unprojected. "
    "`register_forward_pre_hook`.",
    before=instead,
)
task.fault(
    "I-VALUES-REPLACED",
    "Replacing the head's value vectors replaces what it says.",
    "It says an *average* of them. For zeros, or for one vector that stands everywhere, that is "
    "the same; for values that differ by place it is not.",
    watched=lambda attention: attention.v_proj,
    before=afterward,
)
task.fault(
    "I-QUERY-SILENCED",
    "A head without queries is off.",
    "A query of zeros scores all keys alike: the head goes on talking and says the mean of its "
    "values. Replace what it hands on.",
    watched=lambda attention: attention.q_proj,
    before=afterward,
)
task.fault(
    "I-FIRST-LAYER",
    "Heads are in `layers.0.attention`.",
    "In this layer and in every other. The argument says which one is meant.",
    name=lambda model, layer: "layers.0.attention",
)
task.fault(
    "I-LAST-LAYER",
    "What matters happens in the last layer.",
    "The argument says which layer is meant; yours always reaches into the last.",
    name=lambda model, layer: f"layers.{len(model.layers) - 1}.attention",
)


def no_bias(attention):
    attention.out_proj.bias.data.zero_()
    return attention


task.fault(
    "I-BIAS-GONE",
    "A head that is off adds nothing, so the projection's bias goes, too.",
    "The bias of `out_proj` belongs to the whole attention and to no head. It is added as before.",
    mend=no_bias,
)


def without_rows(projection):
    def ablated(model, layer, head, value):
        model = copy.deepcopy(model)
        attention = model.get_submodule(layer)
        weight = attention.get_submodule(projection).weight
        d = len(weight) // attention.num_heads
        weight.data[head * d : (head + 1) * d] = 0
        return model

    return ablated


task.fault(
    "I-ROWS-OF-W-O",
    "A head is a block of rows in `out_proj`'s weights.",
    "`nn.Linear` keeps them as (out, in): a row makes one output, of all heads. What a head says "
    "meets the *columns* of its features. And weights of 0 say 0, never another value.",
)(without_rows("out_proj"))


# --- faults: which head -------------------------------------------------------------------------

task.fault(
    "I-HEAD-FROM-ONE",
    "Heads are counted from 1.",
    "From 0, as everything in Python. You switch off the neighbor.",
    number=lambda head, h: head - 1,
)
task.fault(
    "I-HEAD-FROM-THE-END",
    "Whether heads are counted from the left or the right makes no difference.",
    "It names another one: head 0 has the first features.",
    number=lambda head, h: h - 1 - head,
)
task.fault(
    "I-ALL-HEADS",
    "Ablating is done by layers.",
    "You replace what all heads of the layer say. One head was asked for; the others speak on.",
    number=lambda head, h: slice(None),
)
task.fault(
    "I-ONLY-THIS-HEAD",
    "To see what a head does, keep it and switch off the others.",
    "That is another experiment. Here this head goes, and the others stay.",
    number=lambda head, h: [each for each in range(h) if each != head],
)
task.fault(
    "I-INTERLEAVED",
    "The heads take turns: head 0 has features 0, h, 2h, …",
    "Each head has d features in a row: the first has 0 to d − 1. Split as (h d), not as (d h).",
    cut=lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
    join=lambda heads: heads.permute(0, 2, 3, 1).flatten(-2),
)
task.fault(
    "I-VIEW-WITHOUT-TURNING",
    "Reshaping to (b h n d) splits the heads.",
    "It cuts the *text* into h pieces: what you replace are some places of all heads. First split "
    "the features, then turn the axes.",
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


task.fault(
    "I-TEXT-FOR-HEAD",
    "The first axis counts the heads.",
    "It counts the texts: (b h q d). You replace what all heads say about one text.",
    says=says(lambda heads, head, value: assigned(heads, head, value)),
)
task.fault(
    "I-HOOK-UNHEARD",
    "A hook has done its work when the heads in it are changed.",
    "Your model says what it said with the head: nobody reads the changed heads. What the hook "
    "*returns* is read in place of the input, if it is put into the copy that you return.",
    says=lambda heads, head, value: heads,
)
task.fault(
    "I-ALWAYS-ZERO",
    "A head that is off says 0.",
    "That is one way. `value` may also be its mean, or what it says about other texts, and these "
    "can give quite another answer.",
    says=says(lambda heads, head, value: assigned(heads, (slice(None), head), 0.0)),
)
task.fault(
    "I-MULTIPLIED",
    "`value` says how much of the head is left.",
    "With 0 that is the same. But a mean, or what the head says about other texts, stands "
    "*instead* of what it would say here.",
    says=says(
        lambda heads, head, value: assigned(heads, (slice(None), head), heads[:, head] * value)
    ),
)
task.fault(
    "I-ADDED",
    "The value is added to the head's output.",
    "Then the head is still heard; with value 0 nothing changes at all. The value stands *instead* "
    "of what it says.",
    says=says(
        lambda heads, head, value: assigned(heads, (slice(None), head), heads[:, head] + value)
    ),
)
task.fault(
    "I-LAST-PLACE-ONLY",
    "The prediction is read at the last place, so the head is silenced there.",
    "Every place predicts a word here, and what a head says at an earlier place is read by later "
    "layers. Replace it everywhere.",
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
    "One text is enough to see it.",
    "The model reads several at once, and only the first has lost its head.",
    says=says(
        lambda heads, head, value: assigned(heads, (0, head), value if value.ndim < 3 else value[0])
    ),
)
task.fault(
    "I-ONE-VALUE-FOR-ALL-TEXTS",
    "The value of the first text serves for all.",
    "With axes (b q d) each text has a value of its own.",
    says=says(
        lambda heads, head, value: assigned(
            heads, (slice(None), head), value if value.ndim < 3 else value[0]
        )
    ),
)
task.fault(
    "I-VALUE-AVERAGED",
    "The head's value is one vector, the mean over the places.",
    "If it has an axis of places, each place has its own. Whether to average is the caller's "
    "business.",
    says=says(
        lambda heads, head, value: assigned(
            heads,
            (slice(None), head),
            value if value.ndim < 2 else value.mean(-2, keepdim=True),
        )
    ),
)


@task.fault(
    "I-REMOVED",
    "A head that is off is cut out of the model, and the others move up.",
    "Its features are columns of the next projection: with fewer heads that does not fit, and with "
    "zeros moved to the end the others are read by the wrong columns. The place stays, only what "
    "stands there changes.",
)
class Removed(Ablated):
    def says(heads, head, value):
        left = [each for each in range(heads.shape[1]) if each != head]
        return torch.cat([heads[:, left], torch.zeros_like(heads[:, :1])], 1)


task.fault(
    "I-WEIGHTS-GONE",
    "Setting a head's weights in `v_proj` to zero switches it off.",
    "The bias of `v_proj` is still there, and it passes through any average. And it says 0 at "
    "best, never another value.",
)(without_rows("v_proj"))


@task.fault(
    "I-RANDOM-COPY",
    "A new model of the same class is a copy.",
    "It has the same parts and other numbers, drawn anew. `copy.deepcopy` takes the numbers along.",
)
class Redrawn(Ablated):
    def copied(model):
        model = copy.deepcopy(model)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        return model

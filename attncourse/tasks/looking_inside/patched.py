import copy

import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, compare, describe, has_shape, moves_nothing
from attncourse.checks.modules import as_its_owner_left_it, disturbed, standing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.multihead import attention_maps, merge_heads, split_heads
from attncourse.tasks import as_is
from attncourse.tasks.looking_inside import (
    a_text,
    model_numbers,
    model_of,
    said_before,
    says_as_it_should,
)


def with_a_model(patched):
    """The answer as a function of tensors: its scores, and those of the model afterwards."""

    def function(*, clean, corrupted, place, **made):
        model = model_of(made["model.numbers"], made["model.layers"])
        said = patched(model, clean, corrupted, place)
        if said is None:
            return None
        if not isinstance(said, torch.Tensor):
            raise Unusable(f"returned {describe(said)}; scores (b n vocab) are expected.")
        return [said, model(corrupted)]

    return function


def left_behind(patched):
    """What the answer leaves otherwise in the given model than its caller had set it.

    One layer of the model is in training, and one of its parameters is not learned.
    """

    def function(*, clean, corrupted, place, **made):
        model = as_its_owner_left_it(model_of(made["model.numbers"], made["model.layers"]))
        before = standing(model)
        patched(model, clean, corrupted, place)
        return disturbed(before, standing(model))

    return function


def read_otherwise(patched):
    """Whether the given model reads a third text otherwise afterwards."""

    def function(*, clean, corrupted, place, **made):
        model = model_of(made["model.numbers"], made["model.layers"])
        third = (clean + corrupted) % 11
        before = model(third)
        patched(model, clean, corrupted, place)
        return not torch.equal(before, model(third))

    return function


def leaves_behind(answer, inputs):
    return answer.observe(inputs, adapt=left_behind).returned or ""


def pair(rng, b=2, n=5, layer=0, head=1, position=2, layers=2, dtype=torch.float32):
    """Two texts and a place; in a model of one layer, where more would only take longer."""
    clean = a_text(rng, b, n)
    return {
        "model.numbers": model_numbers(rng, layers, dtype),  # with a dot: not shown to a student
        "model.layers": layers,
        "clean": clean,
        "corrupted": (clean + 1 + a_text(rng, b, n) % 5) % 11,  # every word is another one
        "place": (f"layers.{layer}.attention", head, position),
    }


def probes(rng):
    return {
        "plain": pair(rng),
        "second layer": pair(rng, layer=1, head=2),
        "first head, first place": pair(rng, head=0, position=0),
        "last place": pair(rng, layers=1, head=2, position=4),
        "counted from the end": pair(rng, layers=1, position=-1),
        "three texts": pair(rng, b=3, n=4, layers=1, position=1),
        "three layers": pair(rng, layers=3, layer=1, head=0),
        "last of three layers": pair(rng, layers=3, layer=2),
        "one text": pair(rng, b=1, layer=1, position=3),
        "double": pair(rng, layers=1, dtype=torch.float64),
    }


def small(rng):
    for n, position in ((1, 0), (2, 0), (2, 1), (3, 1)):
        for layer in (1, 0):
            yield pair(rng, b=1, n=n, position=position, layer=layer, layers=layer + 1)
    yield pair(rng, n=2, position=0, layers=1)
    yield pair(rng, b=1, n=1, position=-1, layers=1)


def traits(answer):
    inputs = pair(torch.Generator().manual_seed(0), layers=1)
    left = leaves_behind(answer, inputs)
    return {
        "leaves a hook": "hook" in left,
        "leaves another mode": "mode" in left,
        "leaves another model": bool(answer.observe(inputs, adapt=read_otherwise).returned),
    }


task = Task(
    reference.patched,
    number=5,
    returns=("scores", "scores of the given model, afterwards"),
    difficulty=4,
    minutes=30,
    section="patching",
    probes=probes,
    adapt=with_a_model,
    small=small,
    traits=traits,
)


@task.check(2)
def the_scores_are_those_of_the_corrupted_text_with_this_place_clean(answer, rng):
    says_as_it_should(answer, pair(rng))
    says_as_it_should(answer, pair(rng, layer=1, head=2))
    says_as_it_should(answer, pair(rng, layers=3, layer=1, head=0))


@task.check(2)
def before_the_place_nothing_changes(answer, rng):
    inputs = pair(rng, layer=0, position=3)
    (said, _), corrupted = answer(inputs), said_before(inputs, inputs["corrupted"])
    has_shape("scores", said, "(b n vocab)", 2, 5, 11, inputs=inputs)
    if not torch.allclose(said[:, :3], corrupted[:, :3], atol=1e-4):  # of another kind, maybe
        corrupted, _ = answer(inputs | {"clean": inputs["corrupted"]})
    compare("the scores before the place", said[:, :3], corrupted[:, :3], inputs)
    if torch.equal(said, corrupted):
        why = "Your scores are those of the corrupted text: nothing is patched."
        raise Failure(why, inputs, open=True)


@task.check(2)
def it_is_right_for_any_head_and_place(answer, rng):
    corners = (0, 0, 0), (1, 2, 4), (0, 2, -1), (1, 0, -5)
    for layer, head, position in (*corners, (0, 0, 2), (0, 2, 1)):
        inputs = pair(rng, layer=layer, head=head, position=position, layers=layer + 1)
        says_as_it_should(answer, inputs)


@task.check(1)
def it_is_right_for_any_number_of_texts(answer, rng):
    says_as_it_should(answer, pair(rng, b=3, n=4, position=1, layers=1))
    says_as_it_should(answer, pair(rng, b=1, n=3, layer=1, head=2, position=1))


@task.check(2)
def the_model_stays_as_it_was(answer, rng):
    for inputs in (
        *(pair(rng), pair(rng, layer=1), pair(rng, layers=3, layer=1, head=0)),
        *(pair(rng, b=1, n=3, position=-1), pair(rng, layers=1, dtype=torch.float64)),
    ):
        _, afterwards = answer(inputs)
        before = said_before(inputs, inputs["corrupted"])
        compare(answer.task.returns[1], afterwards, before, inputs)
        if left := leaves_behind(answer, inputs):
            raise Failure(f"After your answer, the given model {left}.", inputs)


@task.check(1)
def it_is_right_in_double_precision_and_nothing_else_changes(answer, rng):
    moves_nothing(answer, pair(rng, layers=1), draws=True)  # a new layer draws its weights
    says_as_it_should(answer, pair(rng, head=2, layers=1, dtype=torch.float64))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Patched:
    def copied(model):
        return copy.deepcopy(model)

    def texts(clean, corrupted):
        return clean, corrupted

    def heard_in(model, layer):
        return layer

    def cut(x, h):
        return split_heads(x, h)

    def join(heads):
        return merge_heads(heads)

    def listen(self, model, layer, clean, corrupted):
        heard = []
        attention = model.get_submodule(layer)
        hook = attention.out_proj.register_forward_pre_hook(
            lambda module, inputs: heard.append(self.cut(inputs[0], attention.num_heads))
        )
        with torch.no_grad():
            model(clean)
        hook.remove()
        return heard[0]

    def meant(heard):
        return heard

    def number(head, h):
        return head

    def where(position, n):
        return position

    def replace(heads, heard, head, position):
        heads[:, head, position] = heard[:, head, position]
        return heads

    def result(scores, model, corrupted, position):
        return scores

    def __call__(self, model, clean, corrupted, place):
        layer, head, position = place
        clean, corrupted = self.texts(clean, corrupted)
        heard = self.meant(self.listen(model, self.heard_in(model, layer), clean, corrupted))
        changed = self.copied(model)
        attention = changed.get_submodule(layer)
        h = attention.num_heads
        number, where = self.number(head, h), self.where(position, clean.shape[1])

        def hook(module, inputs):
            heads = self.cut(inputs[0], h).clone()
            return self.join(self.replace(heads, heard, number, where))

        attention.out_proj.register_forward_pre_hook(hook)
        return self.result(changed(corrupted), model, corrupted, position)


# --- faults: which run --------------------------------------------------------------------------

task.fault("I-DIRECTION", texts=lambda clean, corrupted: (corrupted, clean))
task.fault("I-NOT-PATCHED", texts=lambda clean, corrupted: (corrupted, corrupted))
task.fault("I-ALL-CLEAN", texts=lambda clean, corrupted: (clean, clean))
task.fault("I-NO-COPY", copied=as_is)


def listen_for_ever(model, layer, clean, corrupted):
    heard = []
    attention = model.get_submodule(layer)
    attention.out_proj.register_forward_pre_hook(
        lambda module, inputs: heard.append(split_heads(inputs[0], attention.num_heads))
    )
    with torch.no_grad():
        model(clean)
    return heard[0]


task.fault("I-STILL-LISTENING", listen=listen_for_ever)

# --- faults: which place ------------------------------------------------------------------------

task.fault("I-ALL-PLACES", where=lambda position, n: slice(None))
task.fault("I-FROM-THERE-ON", where=lambda position, n: slice(position % n, None))
task.fault("I-UP-TO-THERE", where=lambda position, n: slice(0, position % n + 1))
task.fault("I-EMPTY-SLICE", where=lambda position, n: slice(position, position + 1))
task.fault(
    "I-PLACE-FROM-ONE",
    where=(
        lambda position, n: position - 1 if position else 0,
        lambda position, n: position - 1,
    ),
)
task.fault("I-LAST-PLACE", where=lambda position, n: -1)
task.fault("I-ALL-HEADS", number=lambda head, h: slice(None))
task.fault(
    "I-HEAD-FROM-ONE",
    number=(
        lambda head, h: head - 1,
        lambda head, h: head - 1 if head else slice(0, 0),  # a slice from −d to 0 is empty
    ),
)
task.fault("I-HEAD-FROM-THE-END", number=lambda head, h: h - 1 - head)
task.fault(
    "I-VIEW-WITHOUT-TURNING",
    cut=lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
    join=lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1),
)
task.fault(
    "I-INTERLEAVED",
    cut=lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
    join=lambda heads: heads.permute(0, 2, 3, 1).flatten(-2),
)
task.fault(
    "I-OTHER-LAYER",
    heard_in=(
        lambda model, layer: "layers.0.attention",
        lambda model, layer: f"layers.{len(model.layers) - 1}.attention",
    ),
)

# --- faults: what is put there ------------------------------------------------------------------


def put(change):
    def step(heads, heard, head, position):
        heads[:, head, position] = change(heads[:, head, position], heard[:, head, position])
        return heads

    return step


task.fault("I-ZERO-INSTEAD", replace=put(lambda own, heard: torch.zeros_like(own)))
task.fault("I-ADDED", replace=put(lambda own, heard: own + heard))
task.fault("I-HALF-AND-HALF", replace=put(lambda own, heard: (own + heard) / 2))
task.fault("I-DIFFERENCE", replace=put(lambda own, heard: heard - own))
task.fault("I-MEAN-OF-TEXTS", meant=lambda heard: heard.mean(0, keepdim=True).expand_as(heard))
task.fault("I-ONE-TEXT-FOR-ALL", meant=lambda heard: heard[:1].expand_as(heard))
task.fault("I-FIRST-TEXT-ONLY", replace=put(lambda own, heard: torch.cat([heard[:1], own[1:]])))


def by_weights(model, layer, clean, corrupted):
    """Clean weights over corrupted values."""
    values = []
    attention = model.get_submodule(layer)
    hook = attention.v_proj.register_forward_hook(
        lambda module, inputs, output: values.append(split_heads(output, attention.num_heads))
    )
    with torch.no_grad():
        model(corrupted)
    hook.remove()
    return attention_maps(model, clean)[layer] @ values[0]


@task.fault("I-WORD-PATCHED")
class WordPatched(Patched):
    def __call__(self, model, clean, corrupted, place):
        clean, corrupted = self.texts(clean, corrupted)
        mixed, where = corrupted.clone(), self.where(place[2], clean.shape[1])
        mixed[:, where] = clean[:, where]
        return self.result(model(mixed), model, corrupted, place[2])


def behind(projection):
    """Heard and replaced in what a projection gives."""

    class Behind(Patched):
        def __call__(self, model, clean, corrupted, place):
            layer, head, position = place
            clean, corrupted = self.texts(clean, corrupted)
            changed = self.copied(model)
            attention, heard = changed.get_submodule(layer), []
            number = self.number(head, attention.num_heads)
            where = self.where(position, clean.shape[1])

            def hook(module, inputs, output):
                heads = self.cut(output, attention.num_heads).clone()
                for clean in heard:  # none in the first run
                    heads = self.replace(heads, self.meant(clean), number, where)
                heard.append(heads)
                return self.join(heads)

            attention.get_submodule(projection).register_forward_hook(hook)
            changed(clean)
            return self.result(changed(corrupted), model, corrupted, position)

    return Behind


task.fault("I-AFTER-W-O")(behind("out_proj"))
task.fault("I-VALUES-PATCHED")(behind("v_proj"))
task.fault("I-WEIGHTS-PATCHED", listen=by_weights)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "I-CHANGE-RETURNED", result=lambda scores, model, corrupted, position: scores - model(corrupted)
)
task.fault(
    "I-SCORES-OF-THE-PLACE", result=lambda scores, model, corrupted, position: scores[:, position]
)
task.fault("I-LAST-SCORES-ONLY", result=lambda scores, model, corrupted, position: scores[:, -1])
task.fault(
    "I-PROBABILITIES",
    result=(
        lambda scores, model, corrupted, position: scores.softmax(-1),
        lambda scores, model, corrupted, position: scores.log_softmax(-1),
    ),
)


@task.fault("I-OTHER-MODE")
class OtherMode(Patched):
    def listen(self, model, layer, clean, corrupted):
        return super().listen(model.eval(), layer, clean, corrupted)

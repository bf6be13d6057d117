"""One place as it was in another run: what is promised, the reference in steps, what goes wrong."""

import copy

import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, compare, describe, moves_nothing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.multihead import attention_maps, merge_heads, split_heads
from attncourse.tasks import as_is
from attncourse.tasks.looking_inside import a_text, model_numbers, model_of


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


def hooks_left(patched):
    """How many functions the answer leaves in the given model, to be called in every later run."""

    def function(*, clean, corrupted, place, **made):
        model = model_of(made["model.numbers"], made["model.layers"])
        patched(model, clean, corrupted, place)
        return sum(
            len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()
        )

    return function


def leaves_a_hook(answer, inputs):
    return bool(answer.observe(inputs, adapt=hooks_left).returned)


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
    yield pair(rng, n=2, position=0)
    yield pair(rng, b=1, n=1, position=-1)


def traits(answer):
    return {
        "leaves a hook": leaves_a_hook(answer, pair(torch.Generator().manual_seed(0), layers=1))
    }


task = Task(
    reference.patched,
    number=5,
    returns=("scores", "scores of the given model, afterwards"),
    difficulty=4,
    minutes=30,
    section="patching",
    hints=(
        "Two runs. In the first the model reads the clean text, and you only listen to one head. "
        "In the second it reads the corrupted text, and at one place that head says what you "
        "heard.",
        "As in task 1, heads can be heard and replaced where they enter `out_proj`. Keep what you "
        "heard as a tensor (b h n d); replace (batch, head, position) and nothing else.",
        "Run 1, with a hook that stores split_heads(inputs[0], h): model(clean). Run 2, with a "
        "hook that sets heads[:, head, position] = heard[:, head, position] and returns "
        "merge_heads(heads): model(corrupted). Remove both hooks, or work on copies.",
    ),
    probes=probes,
    adapt=with_a_model,
    small=small,
    traits=traits,
)


@task.check(2)
def the_corrupted_text_is_read_and_one_place_is_clean(answer, rng):
    answer.matches(pair(rng))
    answer.matches(pair(rng, layer=1, head=2))
    answer.matches(pair(rng, layers=3, layer=1, head=0))


@task.check(2)
def before_the_place_nothing_changes(answer, rng):
    inputs = pair(rng, layer=0, position=3)
    (said, _), (_, corrupted) = answer(inputs), answer.expected(inputs)
    compare("the scores before the place", said[:, :3], corrupted[:, :3], inputs)
    if torch.equal(said, corrupted):
        raise Failure("Your scores are those of the corrupted text: nothing is patched.", inputs)


@task.check(2)
def any_head_and_place_can_be_patched(answer, rng):
    for layer, head, position in ((0, 0, 0), (1, 2, 4), (0, 2, -1), (1, 0, -5)):
        answer.matches(pair(rng, layer=layer, head=head, position=position))


@task.check(1)
def every_text_gets_its_own_patch(answer, rng):
    answer.matches(pair(rng, b=3, n=4, position=1))
    answer.matches(pair(rng, b=1, n=3, layer=1, position=1))


@task.check(2)
def the_model_stays_as_it_was(answer, rng):
    for layer in (0, 1):
        inputs = pair(rng, layer=layer)
        _, afterwards = answer(inputs)
        compare(answer.task.returns[1], afterwards, answer.expected(inputs)[1], inputs)
        if leaves_a_hook(answer, inputs):
            raise Failure(
                "The given model says what it said, but it still calls a function of yours in "
                "every run. Remove each hook (`handle.remove()`), or work on a copy.",
                inputs,
            )


@task.check(1)
def nothing_else_changes(answer, rng):
    moves_nothing(answer, pair(rng))
    answer.matches(pair(rng, dtype=torch.float64))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Patched:
    def copied(model):
        return copy.deepcopy(model)

    def texts(clean, corrupted):
        return clean, corrupted

    def heard_in(model, layer):
        return layer

    def listen(model, layer, clean, corrupted):
        heard = []
        attention = model.get_submodule(layer)
        hook = attention.out_proj.register_forward_pre_hook(
            lambda module, inputs: heard.append(split_heads(inputs[0], attention.num_heads))
        )
        with torch.no_grad():
            model(clean)
        hook.remove()
        return heard[0]

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
        heard = self.listen(model, self.heard_in(model, layer), clean, corrupted)
        changed = self.copied(model)
        attention = changed.get_submodule(layer)
        h = attention.num_heads
        number, where = self.number(head, h), self.where(position, clean.shape[1])

        def hook(module, inputs):
            heads = split_heads(inputs[0], h).clone()
            return merge_heads(self.replace(heads, heard, number, where))

        attention.out_proj.register_forward_pre_hook(hook)
        return self.result(changed(corrupted), model, corrupted, position)


# --- faults: which run --------------------------------------------------------------------------

task.fault(
    "I-DIRECTION",
    "One text is read and the other patched in; which is which makes no difference.",
    "It does: here the *corrupted* text is read, and what comes back is what this place carries. "
    "The other way around one sees what breaks without it.",
    texts=lambda clean, corrupted: (corrupted, clean),
)
task.fault(
    "I-NOT-PATCHED",
    "The second run hears its own head.",
    "The value has to come from the clean run. Yours is the corrupted run as it was.",
    texts=lambda clean, corrupted: (corrupted, corrupted),
)
task.fault(
    "I-ALL-CLEAN",
    "The model reads the clean text, and the place is clean, too.",
    "Then nothing was corrupted, and nothing can be learned from what comes out. The second run "
    "reads the corrupted text.",
    texts=lambda clean, corrupted: (clean, clean),
)
task.fault(
    "I-NO-COPY",
    "The hook stays in the model.",
    "Then every later run hears the old text in this place. Remove the hook when you are done, or "
    "work on a copy (`copy.deepcopy`).",
    copied=as_is,
)


def listen_for_ever(model, layer, clean, corrupted):
    heard = []
    attention = model.get_submodule(layer)
    attention.out_proj.register_forward_pre_hook(
        lambda module, inputs: heard.append(split_heads(inputs[0], attention.num_heads))
    )
    with torch.no_grad():
        model(clean)
    return heard[0]


task.fault(
    "I-STILL-LISTENING",
    "A hook that only listens may stay in the model.",
    "It changes no score, but every later run calls it, and it keeps what it hears. Remove it when "
    "you have heard enough, or listen to a copy.",
    listen=listen_for_ever,
)

# --- faults: which place ------------------------------------------------------------------------

task.fault(
    "I-ALL-PLACES",
    "A head is patched as a whole.",
    "One place of it. Patched everywhere, one no longer sees *where* the information passes.",
    where=lambda position, n: slice(None),
)
task.fault(
    "I-FROM-THERE-ON",
    "From this place on, everything is clean.",
    "Only this place. What comes later reads it, and changes by itself.",
    where=lambda position, n: slice(position % n, None),
)
task.fault(
    "I-UP-TO-THERE",
    "All up to this place is clean.",
    "Only this place; the others stay corrupted, or one cannot tell which of them mattered.",
    where=lambda position, n: slice(0, position % n + 1),
)
task.fault(
    "I-EMPTY-SLICE",
    "`[position : position + 1]` is this place, whatever the position.",
    "Not at −1: from the last place up to place 0 there is nothing, so nothing is patched. Index "
    "with the position itself.",
    where=lambda position, n: slice(position, position + 1),
)
task.fault(
    "I-PLACE-FROM-ONE",
    "Places are counted from 1.",
    "From 0. You patch the word before.",
    where=lambda position, n: position - 1 if position else 0,
)
task.fault(
    "I-LAST-PLACE",
    "The prediction is read at the last place, so that is patched.",
    "Information may pass through any word before it. The place is an argument.",
    where=lambda position, n: -1,
)
task.fault(
    "I-ALL-HEADS",
    "The attention of this layer is patched.",
    "One head of it. With all heads one cannot tell which of them carries what is looked for.",
    number=lambda head, h: slice(None),
)
task.fault(
    "I-HEAD-FROM-ONE",
    "Heads are counted from 1.",
    "From 0. You patch the neighbor.",
    number=lambda head, h: head - 1,
)
task.fault(
    "I-OTHER-LAYER",
    "What was heard in the first layer holds for all.",
    "Each layer's heads say something of their own. Yours puts the first layer's words into the "
    "mouth of another.",
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


task.fault(
    "I-ZERO-INSTEAD",
    "Patching means switching the head off in one place.",
    "That is ablation. Here the place says what it said about the clean text.",
    replace=put(lambda own, heard: torch.zeros_like(own)),
)
task.fault(
    "I-ADDED",
    "What was heard is added.",
    "Then both texts speak at once. The clean value stands *instead* of the corrupted one.",
    replace=put(lambda own, heard: own + heard),
)
task.fault(
    "I-HALF-AND-HALF",
    "The two runs are averaged.",
    "The clean value stands there as it is; half of the corrupted one would still be heard.",
    replace=put(lambda own, heard: (own + heard) / 2),
)
task.fault(
    "I-DIFFERENCE",
    "What the clean text has more is put there.",
    "The difference leaves the head with less than it said in either run. Put the clean value.",
    replace=put(lambda own, heard: heard - own),
)
task.fault(
    "I-ONE-TEXT-FOR-ALL",
    "What was heard in the first text is put into all.",
    "Each text has its own clean partner.",
    replace=put(lambda own, heard: heard[:1].expand_as(own)),
)
task.fault(
    "I-FIRST-TEXT-ONLY",
    "One text is enough.",
    "The others are still corrupted in this place.",
    replace=put(lambda own, heard: torch.cat([heard[:1], own[1:]])),
)


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


@task.fault(
    "I-WORD-PATCHED",
    "A place is a word of the text, so the clean word is put there.",
    "Then every head of every layer reads another word. What passes through *one* head is asked "
    "for: the text stays corrupted, and this head says in this place what it said before.",
)
def _(model, clean, corrupted, place):
    mixed = corrupted.clone()
    mixed[:, place[2]] = clean[:, place[2]]
    return model(mixed)


@task.fault(
    "I-AFTER-W-O",
    "A head's part of the output is its slice of the attention's output.",
    "After `out_proj` there are no heads any more: every feature is a mixture of all. Listen and "
    "speak before the projection.",
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    model = copy.deepcopy(model)
    attention, heard = model.get_submodule(layer), []

    def hook(module, inputs, output):
        heads = split_heads(output, attention.num_heads).clone()
        for clean in heard:  # none in the first run
            heads[:, head, position] = clean[:, head, position]
        heard.append(heads)
        return merge_heads(heads)

    attention.out_proj.register_forward_hook(hook)
    model(clean)
    return model(corrupted)


task.fault(
    "I-WEIGHTS-PATCHED",
    "The clean attention weights are put there.",
    "Where a head looks is half of what it says. With corrupted values behind them, clean weights "
    "say something that was said in neither run.",
    listen=by_weights,
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "I-CHANGE-RETURNED",
    "What matters is the change, so the difference is returned.",
    "The caller can subtract. What is asked for are the scores of the patched run.",
    result=lambda scores, model, corrupted, position: scores - model(corrupted),
)
task.fault(
    "I-SCORES-OF-THE-PLACE",
    "The scores at the patched place are the result.",
    "What is patched at one place is read at later ones: scores of all positions are asked for.",
    result=lambda scores, model, corrupted, position: scores[:, position],
)
task.fault(
    "I-LAST-SCORES-ONLY",
    "The next word is read at the last place, so its scores are the result.",
    "The caller may ask about any word of the text. Return the scores of all positions, as the "
    "model does.",
    result=lambda scores, model, corrupted, position: scores[:, -1],
)
task.fault(
    "I-PROBABILITIES",
    "A model returns probabilities.",
    "It returns scores, and the caller may want these. Hand on what the model says.",
    result=lambda scores, model, corrupted, position: scores.softmax(-1),
)

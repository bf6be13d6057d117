"""AdditiveAttention."""

import zlib

import torch
from torch import nn

from attncourse import additive as reference
from attncourse.checks.answer import Failure, Unanswered, compare, moves_nothing, shape_of
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.additive import (
    ignores_padding,
    returns_a_pair,
    rows_sum_to_one,
    turned,
)
from attncourse.tasks.additive._faults import average, finished, masked_softmax, naive_weights

SIZES = ("query_dim", "key_dim", "attention_dim")


LAYERS = ("W_query", "W_key", "v")


def as_function(cls):
    """The module as a function of sizes, inputs and weights.

    `training` switches it to training mode. `earlier_query` and `earlier_keys` are what the same
    module has seen in a call before.
    """

    def function(*, query, keys, mask=None, training=False, **rest):
        module = made(cls, *(rest.pop(size) for size in SIZES), training=training).to(query.dtype)
        earlier = [rest.pop(name) for name in ("earlier_query", "earlier_keys") if name in rest]
        names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        # Where a layer is missing, `forward` has the first word: perhaps it is not begun.
        if not names >= rest.keys() and module(query, keys) is None:
            return None
        # A bias is nobody's input. Its numbers depend on its name only, not on chance.
        for name, parameter in module.named_parameters():
            if name.endswith(".bias") and name not in rest:
                own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                with torch.no_grad():
                    parameter.copy_(torch.randn(parameter.shape, generator=own))
        if earlier:
            with_weights(module, rest, *earlier)
        masks = {} if mask is None else {"mask": mask}
        return with_weights(module, rest, query, keys, **masks)

    return function


def module_inputs(rng, b=2, k=4, e=3, d=5, a=6, mask=None, dtype=torch.float32, **others):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "mask": mask,
        "query_dim": e,
        "key_dim": d,
        "attention_dim": a,
        "W_query.weight": normal(rng, a, e, dtype=dtype) / 2,
        "W_key.weight": normal(rng, a, d, dtype=dtype) / 2,
        "v.weight": normal(rng, 1, a, dtype=dtype) * 2,
        **others,
    }


def second_call(rng, **options):
    inputs = module_inputs(rng, **options)
    for name in ("query", "keys"):
        inputs[f"earlier_{name}"] = normal(rng, *inputs[name].shape)
    return inputs


def layers_of(answer) -> dict[str, object]:
    """What the module is made of, looked at from outside; a Failure if it cannot be made."""
    seen = answer.observe(dict(zip(SIZES, (3, 5, 6), strict=True)), adapt=parts_of)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        where = f" ({seen.error_line})" if seen.error_line else ""
        raise Failure(f"Your answer {seen.error}{where}")
    return dict(seen.returned)


def _differ(one, two) -> bool:
    """Whether two observations hold different numbers."""
    if not isinstance(one.returned, list) or not isinstance(two.returned, list):
        return False
    return any(
        isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and not torch.equal(x, y)
        for x, y in zip(one.returned, two.returned, strict=False)
    )


def module_traits(answer):
    layers = layers_of(answer)
    weights = sum(torch.Size(shape).numel() for shape in layers.values())
    seen = answer.observe(second_call(torch.Generator().manual_seed(0)))
    fresh = second_call(torch.Generator().manual_seed(0))
    del fresh["earlier_query"], fresh["earlier_keys"]
    alone = answer.observe(fresh)
    remembers = bool(seen.error) != bool(alone.error) or _differ(seen, alone)
    training = module_inputs(torch.Generator().manual_seed(0), training=True)
    return {
        "differs from call to call": _differ(*(answer.observe(training, seed=s) for s in (1, 2))),
        "remembers the call before": remembers,
        "has biases": any(f"{name}.bias" in layers for name in LAYERS),
        "has no weights": not layers,
        "has fewer weights": 0 < weights < 54,
        "has bare parameters": any("." not in name for name in layers),
    }


def module_probes(rng):
    return {
        "plain": module_inputs(rng),
        "as many sentences as keys": module_inputs(rng, b=4, k=4),
        "all equal": module_inputs(rng, b=4, k=4, e=4, d=4, a=4),
        "one sentence": module_inputs(rng, b=1),
        "mask": module_inputs(rng, b=3, k=6, mask=mixed_mask(rng, 3, 6)),
        "dead row": module_inputs(rng, b=3, mask=dead_mask(rng, 3, 4)),
        "training": module_inputs(rng, b=3, k=6, training=True),
        "double": module_inputs(rng, mask=mixed_mask(rng, 2, 4), dtype=torch.float64),
        "large": large_keys(rng),
    }


def large_keys(rng, k=4):
    """Whole numbers, keys of 10,000: sums are exact, and the tanh is far outside."""
    inputs = module_inputs(rng, k=k)
    for name in ("query", "keys", *(f"{layer}.weight" for layer in LAYERS)):
        inputs[name] = integers(rng, *inputs[name].shape)
    inputs["keys"] *= 1e4
    inputs["v.weight"] *= 60  # scores are up to some hundreds
    return inputs


def module_small(rng):
    for b, k, e, d, a in ((1, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 2, 1, 2, 2), (2, 2, 2, 3, 2)):
        for hidden in (None, -1):
            for _ in range(3):
                inputs = module_inputs(rng, b, k, e, d, a)
                for name in ("query", "keys"):
                    inputs[name] = integers(rng, *inputs[name].shape)
                if hidden is not None and k > 1:
                    inputs["mask"] = torch.ones(b, k, dtype=torch.bool)
                    inputs["mask"][:, hidden] = False
                yield inputs
    yield module_inputs(rng, 1, 2, 1, 1, 1, mask=torch.zeros(1, 2, dtype=torch.bool))


def module_maps(rng):
    padded = torch.tensor([[True, True, False], [True, False, False]])
    return [
        ("three sentences of three keys", module_inputs(rng, 3, 3), ("query",)),
        (
            "two sentences of three keys, the last and the last two hidden",
            module_inputs(rng, 2, 3, mask=padded),
            ("keys",),
        ),
    ]


def turned_module(inputs):
    names = ("query", "keys")
    return dict(inputs, **turned({name: inputs[name] for name in names}))


task = Task(
    reference.AdditiveAttention,
    number=6,
    returns=("context", "weights"),
    difficulty=3,
    minutes=20,
    section="soft-search",
    hints=(
        "A module holds what is learned. Which three matrices of `additive_scores` are "
        "learned, how wide is what goes in, and how wide is what comes out?",
        "`nn.Linear(i, o, bias=False)` computes x @ weight.T with a weight (o i), so you may "
        "call the layers instead of multiplying yourself. `v` leads from attention_dim to 1, "
        "and that last axis of length 1 has to go.",
        "hidden = tanh(self.W_query(query) with a new axis 1 + self.W_key(keys)); scores = "
        "self.v(hidden) without its last axis; then what `attend` does, with scores, keys "
        "and mask: the values are the keys as they came.",
    ),
    probes=module_probes,
    small=module_small,
    adapt=as_function,
    differentiated=("plain", "mask", "dead row"),
    maps=module_maps,
    traits=module_traits,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def the_layers_have_the_names_of_the_task_and_no_bias(answer, rng):
    layers = layers_of(answer)
    if not layers:
        answer(module_inputs(rng))  # says if it is not begun
    for name, shape in zip(LAYERS, ((6, 3), (6, 5), (1, 6)), strict=True):
        got = layers.get(f"{name}.weight")
        there = ", ".join(layers) or "none at all"
        if got is None:
            raise Failure(
                f"There is no `{name}.weight`; the module's parameters are: {there}. The names "
                "are part of the task, so that weights can be copied."
            )
        if got != shape:
            raise Failure(
                f"With query_dim 3, key_dim 5 and attention_dim 6, `{name}.weight` has shape "
                f"{shape_of(torch.empty(got))}; expected {shape_of(torch.empty(shape))}."
            )
        if f"{name}.bias" in layers:
            raise Failure(f"`{name}` has a bias; the formula has none.")


@task.check(1)
def it_returns_a_context_and_the_weights(answer, rng):
    returns_a_pair(answer, module_inputs(rng), 2, 4, 5)


@task.check(1)
def every_row_of_weights_sums_to_one(answer, rng):
    rows_sum_to_one(answer, module_inputs(rng, b=3), 3)


@task.check(1)
def the_context_averages_the_keys_as_they_came(answer, rng):
    inputs = module_inputs(rng, d=6)  # as wide as the alignment
    context, weights = answer(inputs)
    if weights.shape != (2, 4):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (2 4).", inputs)
    average = (weights[:, :, None] * inputs["keys"]).sum(1)
    compare("context", context, average, inputs)


@task.check(2)
def with_the_same_weights_it_gives_the_same_results(answer, rng):
    answer.matches(module_inputs(rng))
    answer.matches(module_inputs(rng, b=3, k=7, e=5, d=4, a=9))
    answer.matches(module_inputs(rng, b=3, dtype=torch.float64))
    answer.matches(turned_module(module_inputs(rng, b=3)))
    answer.matches(large_keys(rng), tolerance=5e-3)


@task.check(1)
def the_query_decides_which_key_wins(answer, rng):
    inputs = module_inputs(rng, b=3, k=5, e=6, a=8)
    other = dict(inputs, query=-2 * inputs["query"])
    one, two = (answer(each)[1] for each in (inputs, other))
    if (one - two).abs().max() < 1e-4:
        raise Failure(
            "Two different queries give the same weights: your scores add the same number to "
            "every key, and the softmax ignores that.",
            inputs,
        )


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(module_inputs(rng, b=4, k=4))
    answer.matches(module_inputs(rng, b=4, k=4, e=4, d=4, a=4))
    answer.matches(module_inputs(rng, b=1))
    answer.matches(module_inputs(rng, b=3, k=1))
    answer.matches(module_inputs(rng, b=1, k=1, e=1, d=1, a=1))


@task.check(1)
def padding_changes_nothing(answer, rng):
    inputs = module_inputs(rng, b=3)
    longer = dict(inputs, keys=torch.cat([inputs["keys"], normal(rng, 3, 3, 5)], 1))
    longer["mask"] = (torch.arange(7) < 4).expand(3, 7)
    ignores_padding(answer, inputs, longer, 4)
    answer.matches(module_inputs(rng, b=3, mask=mixed_mask(rng, 3, 4)))


@task.check(1)
def a_row_with_nothing_to_attend_to_gets_zeros(answer, rng):
    answer.matches(module_inputs(rng, b=3, mask=dead_mask(rng, 3, 4)), gradient=True)
    answer.matches(module_inputs(rng, b=1, mask=torch.zeros(1, 4, dtype=torch.bool)))


@task.check(1)
def gradients_reach_query_keys_and_all_three_layers(answer, rng):
    answer.gradients_match(module_inputs(rng))
    answer.gradients_match(module_inputs(rng, mask=mixed_mask(rng, 2, 4)))


@task.check(1)
def training_mode_and_earlier_calls_make_no_difference(answer, rng):
    answer.matches(module_inputs(rng, b=3, training=True))
    answer.matches(second_call(rng))
    answer.matches(second_call(rng, b=4, k=4, e=4, d=4, a=4))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, module_inputs(rng))
    moves_nothing(answer, module_inputs(rng, mask=mixed_mask(rng, 2, 4)))


# --- faults ---------------------------------------------------------------------------------------


class Layers(nn.Module):
    """The right layers, and right results as long as no piece is replaced."""

    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))

    def scores(self, query, keys):
        return self.v(self.hidden(query, keys))[..., 0]

    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, mask)


class TanhOfEach(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query))[:, None] + torch.tanh(self.W_key(keys))


@task.fault(
    "A-NO-TANH",
    thinks="Two linear layers and a sum are the alignment model; the tanh is decoration.",
    why="Without a bend after the sum, the query adds the same number to the score of every key. "
    "The softmax ignores it: your weights never depend on the query.",
    section="linear-score",
    forms=(TanhOfEach,),
)
class NoTanh(Layers):
    def hidden(self, query, keys):
        return self.W_query(query)[:, None] + self.W_key(keys)


@task.fault(
    "A-RELU",
    thinks="A hidden layer has ReLU units.",
    why="It sees the query, and could be trained. But it is not the chapter's alignment model: "
    "with the same weights it gives other results.",
)
class Relu(Layers):
    def hidden(self, query, keys):
        return torch.relu(self.W_query(query)[:, None] + self.W_key(keys))


@task.fault(
    "C-SIGMOID",
    thinks="A hidden layer has sigmoid units.",
    why="A sigmoid runs from 0 to 1, the tanh of the formula from −1 to 1 and steeper. With the "
    "same weights the results differ.",
)
class Sigmoid(Layers):
    def hidden(self, query, keys):
        return torch.sigmoid(self.W_query(query)[:, None] + self.W_key(keys))


def with_biases(*names):
    class WithBiases(Layers):
        def __init__(self, query_dim, key_dim, attention_dim):
            super().__init__(query_dim, key_dim, attention_dim)
            for name in names:
                layer = getattr(self, name)
                setattr(self, name, nn.Linear(layer.in_features, layer.out_features))

    return WithBiases


@task.fault(
    "A-BIAS",
    thinks="`nn.Linear` has a bias, and it does no harm.",
    why="It does little harm, and it is not in the formula: with copied weights your results "
    "differ. The one of `v` cancels in the softmax and can never learn.",
    forms=(
        with_biases("W_query", "W_key"),
        with_biases("W_query"),
        with_biases("W_key"),
        with_biases("v"),
    ),
)
class WithAllBiases(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


class OneLayerForKeys(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_key(query)[:, None] + self.W_key(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


class BothByKeyLayer(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_key(query)[:, None] + self.W_key(keys))


class BothByQueryLayer(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query)[:, None] + self.W_query(keys))


@task.fault(
    "A-TIED-PROJ",
    thinks="One layer projects query and keys alike.",
    why="Then asking and being found are the same thing, and both must be equally wide. The module "
    "has two: one reads the decoder's state, one the annotations.",
    forms=(OneLayerForKeys, BothByKeyLayer, BothByQueryLayer),
)
class OneLayerForBoth(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] + self.W_query(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


@task.fault(
    "A-VALUE-IS-KEY",
    thinks="The projected keys are the values.",
    why="The projection is there to compare. What the decoder reads are the annotations as they "
    "came: your context is as wide as the alignment model, not as a key.",
)
class ProjectedKeysAsValues(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), self.W_key(keys), mask)


@task.fault(
    "C-NAMES",
    thinks="What the layers are called is up to me.",
    why="Weights are copied in by name, here and whenever a trained model is loaded: the names "
    "`W_query`, `W_key` and `v` are part of the task.",
    forms=(
        lambda query_dim, key_dim, attention_dim: renamed(
            Layers(query_dim, key_dim, attention_dim), "W_key"
        ),
        lambda query_dim, key_dim, attention_dim: renamed(
            Layers(query_dim, key_dim, attention_dim), "v"
        ),
    ),
)
class OwnNames(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attention_dim, bias=False)
        self.key_layer = nn.Linear(key_dim, attention_dim, bias=False)
        self.score_layer = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.query_layer(query)[:, None] + self.key_layer(keys))
        return finished(self.score_layer(hidden)[..., 0], keys, mask)


def renamed(module, name):
    """The module with another name for one of its layers."""
    setattr(module, f"my_{name}", getattr(module, name))
    delattr(module, name)
    return module


@task.fault(
    "C-BARE-PARAMETERS",
    thinks="Instead of a linear layer I can hold its matrix as a parameter.",
    why="It computes the same. But `W_query` is then a matrix and has no `.weight`, so weights "
    "cannot be copied in by name. The task asks for three `nn.Linear`.",
)
class BareParameters(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(query_dim, attention_dim))
        self.W_key = nn.Parameter(torch.randn(key_dim, attention_dim))
        self.v = nn.Parameter(torch.randn(attention_dim))

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh((query @ self.W_query)[:, None] + keys @ self.W_key)
        return finished(hidden @ self.v, keys, mask)


class LayersInForward(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.sizes = query_dim, key_dim, attention_dim

    def forward(self, query, keys, mask=None):
        layers = Layers(*self.sizes).to(query.dtype)
        return layers(query, keys, mask)


@task.fault(
    "C-UNREGISTERED",
    thinks="PyTorch finds my layers wherever I keep them.",
    why="It finds only those that are attributes of the module itself, set in `__init__`. Layers "
    "in a list, or made in `forward`, are no parameters: nothing trains them.",
    forms=(LayersInForward,),
)
class LayersInAList(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        sizes = (query_dim, attention_dim), (key_dim, attention_dim), (attention_dim, 1)
        self.layers = [nn.Linear(*size, bias=False) for size in sizes]

    def forward(self, query, keys, mask=None):
        from_query, from_keys, v = (layer.to(query.dtype) for layer in self.layers)
        hidden = torch.tanh(from_query(query)[:, None] + from_keys(keys))
        return finished(v(hidden)[..., 0], keys, mask)


@task.fault(
    "C-TURNED-LAYERS",
    thinks="`nn.Linear` takes first what comes out, then what goes in.",
    why="It takes in_features first, out_features second, and stores a weight of shape (out in). "
    "That its weight is turned around is its own affair.",
)
class TurnedLayers(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(attention_dim, query_dim, bias=False)
        self.W_key = nn.Linear(attention_dim, key_dim, bias=False)
        self.v = nn.Linear(1, attention_dim, bias=False)

    def forward(self, query, keys, mask=None):
        one, two = query @ self.W_query.weight, keys @ self.W_key.weight
        return finished((torch.tanh(one[:, None] + two) @ self.v.weight)[..., 0], keys, mask)


@task.fault(
    "A-BROADCAST",
    thinks="The two projections can be added as they are; torch lines them up.",
    why="(b a) and (b k a) are lined up from the right, so b meets k. That is an error, or, if "
    "b = k, every key is scored with the query of another sentence.",
    section="additive-breaks",
)
class NoNewAxis(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query) + self.W_key(keys))


@task.fault(
    "A-SOFTMAX-QUERIES",
    thinks="The softmax runs over the first axis.",
    why="That axis are the sentences of the batch: they compete with each other for each place, "
    "and rows do not sum to one. The keys are on the last axis.",
    section="additive-breaks",
)
class SoftmaxOverSentences(Layers):
    def forward(self, query, keys, mask=None):
        weights = masked_softmax(self.scores(query, keys), mask, dim=0)
        return average(weights, keys), weights


@task.fault(
    "C-SOFTMAX-LAST-OF-THREE",
    thinks="`v` leaves scores (b k 1), and softmax over the last axis normalizes them.",
    why="The last axis then has length 1, and a lone number always gets weight 1: every key counts "
    "fully. Remove that axis before the softmax.",
)
class SoftmaxOverAnAxisOfOne(Layers):
    def forward(self, query, keys, mask=None):
        mask = None if mask is None else mask[..., None]
        weights = masked_softmax(self.v(self.hidden(query, keys)), mask)[..., 0]
        return average(weights, keys), weights


@task.fault(
    "A-NO-MASK",
    thinks="The module takes a mask; using it can wait.",
    why="Your weights are the same with and without it. Padding gets its share, and a translation "
    "depends on how long the other sentences of the batch are.",
    section="padding-in-softmax",
)
class NoMask(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, None)


@task.fault(
    "M-POLARITY",
    thinks="The mask is True where there is padding.",
    why="Here True means: may be attended to. Your module reads the padding and skips the words.",
    section="padding-in-softmax",
)
class OppositeMask(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, None if mask is None else ~mask)


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="The mask sets weights to zero after the softmax.",
    why="Too late: the hidden keys have taken their share, and what is left sums to less than one. "
    "Hide them before.",
    section="padding-in-softmax",
)
class MaskAfterSoftmax(Layers):
    def forward(self, query, keys, mask=None):
        weights = torch.softmax(self.scores(query, keys), -1)
        weights = weights if mask is None else weights * mask
        return average(weights, keys), weights


@task.fault(
    "M-DEAD-ROW",
    thinks="With −∞ for every hidden key the mask is done.",
    why="A sentence in which everything is hidden then gives 0/0, which is NaN. Its weights and "
    "its context have to be 0.",
    section="padding-in-softmax",
)
class NanOnDeadRows(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.scores(query, keys)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        weights = torch.softmax(scores, -1)
        return average(weights, keys), weights


@task.fault(
    "M-DEAD-ROW-UNIFORM",
    thinks="With −1e9 for every hidden key the mask is done.",
    why="A sentence in which everything is hidden then has equal scores, and the softmax shares "
    "the weight evenly among the hidden. Its weights have to be 0.",
    section="padding-in-softmax",
)
class UniformOnDeadRows(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.scores(query, keys)
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, -1)
        return average(weights, keys), weights


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="tanh keeps everything small, so exp cannot overflow.",
    why="It keeps each unit small. But v is learned and may be large, and so may be the score: exp "
    "of 89 is infinite in float32, and infinity over infinity NaN.",
)
class NaiveSoftmax(Layers):
    def forward(self, query, keys, mask=None):
        return naive_weights(self.scores(query, keys), keys, mask)


@task.fault(
    "C-DROPOUT",
    thinks="A module that is trained needs dropout on its weights.",
    why="This one has none. In training mode some of your weights vanish at random and the others "
    "grow; rows no longer sum to one.",
)
class WithDropout(Layers):
    def forward(self, query, keys, mask=None):
        weights = masked_softmax(self.scores(query, keys), mask)
        weights = torch.dropout(weights, 0.1, self.training)
        return average(weights, keys), weights


@task.fault(
    "C-STALE-KEYS",
    thinks="The keys' projection does not change, so I keep it from the first call.",
    why="Within one sentence it does not. The next sentence brings other keys, and your module "
    "still scores the old ones: right on the first call only.",
    section="score-family",
)
class KeepsTheFirstKeys(Layers):
    kept = None

    def hidden(self, query, keys):
        if self.kept is None or self.kept.shape[:2] != keys.shape[:2]:
            self.kept = self.W_key(keys)
        return torch.tanh(self.W_query(query)[:, None] + self.kept)


@task.fault(
    "C-DETACHED-VALUES",
    thinks="The keys are averaged only; the gradient through the scores is enough.",
    why="The encoder then learns to be found, and not what to hand over. The numbers are right, "
    "but half of the keys' gradient is cut.",
)
class DetachedValues(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys.detach(), mask)


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` removes the axis of length 1 that `v` leaves.",
    why="It removes all of them: a batch of one sentence or a sentence of one word loses an axis "
    "that belongs there. Say which axis.",
    section="score-family",
)
class SqueezedScores(Layers):
    def scores(self, query, keys):
        return self.v(self.hidden(query, keys)).squeeze()


@task.fault(
    "D-SWAPPED-RESULTS",
    thinks="`forward` returns weights, then context.",
    why="Both are right, in the other order: the context comes first.",
)
class SwappedResults(Layers):
    def forward(self, query, keys, mask=None):
        context, weights = super().forward(query, keys, mask)
        return weights, context


@task.fault(
    "D-OUTPUT-ONLY",
    thinks="The decoder needs the context, so that is all I return.",
    why="The weights are the other half of the answer: they show where the model looked. Return "
    "the pair (context, weights).",
    section="alignments",
)
class ContextOnly(Layers):
    def forward(self, query, keys, mask=None):
        return super().forward(query, keys, mask)[0]


@task.fault(
    "C-NO-TANH-NO-MASK",
    thinks="Two linear layers, a sum, a softmax: that is all there is to it.",
    why="Two things are missing: the bend, without which the weights ignore the query; and the "
    "mask, without which padding gets a share.",
    section="additive-breaks",
)
class NoTanhAndNoMask(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.v(self.W_query(query)[:, None] + self.W_key(keys))[..., 0]
        return finished(scores, keys, None)


@task.fault(
    "C-FLOAT32",
    thinks="Inside the module everything may be float32.",
    why="A module moved to float64 has float64 weights and gets float64 keys; its results have to "
    "be float64, with all their digits.",
)
class Float32Inside(Layers):
    def forward(self, query, keys, mask=None):
        context, weights = super().forward(query, keys, mask)
        return context.float(), weights.float()

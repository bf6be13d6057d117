import math
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import additive as reference
from attncourse.checks.answer import Failure, Unanswered, following, moves_nothing, shape_of
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.additive import (
    averages,
    averages_if_masked,
    gives_zeros,
    ignores_padding,
    returns_a_pair,
    rows_sum_to_one,
    turned,
)
from attncourse.tasks.additive._scores import repeated
from attncourse.tasks.additive.attend import (
    Attend,
    divided,
    hard,
    low,
    mean_of_all,
    mean_of_visible,
    naive,
    naive_if_alive,
    only_dead_rows,
    unless_none,
    weighted,
)
from attncourse.tasks.attention import minus_infinity, of_dead_neighbors

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
        "mask, all equal": module_inputs(rng, 4, 4, 4, 4, 4, mask=mixed_mask(rng, 4, 4)),
        "low scores, masked": low_scores(rng, mixed_mask(rng, 2, 4)),
        "hidden winner": hidden_winner(rng),
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


def hidden_winner(rng):
    """The key that would win by far is hidden, in both sentences."""
    inputs = low_scores(rng, torch.tensor([[True, False, True, True]]).expand(2, 4).clone())
    inputs["v.weight"] = torch.full((1, 6), 100.0)
    inputs["keys"] *= torch.tensor([-1.0, 1.0, -1.0, -1.0])[:, None]
    return inputs


def low_scores(rng, mask):
    """All scores lie near −20,000, where −10,000 would be a high one."""
    inputs = large_keys(rng) | {"mask": mask}
    inputs["W_query.weight"] *= 0
    inputs["W_key.weight"] = torch.ones_like(inputs["W_key.weight"])
    inputs["keys"] = inputs["keys"].abs() / 100 + 100  # so that each unit is 1
    inputs["v.weight"] = -20_000.0 / 6 + inputs["v.weight"] / 60
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
                f"Your answer makes a module without the parameter `{name}.weight`; it has: "
                f"{there}. The names are part of the task, so that weights can be copied."
            )
        if got != shape:
            raise Failure(
                "With query_dim 3, key_dim 5 and attention_dim 6, your answer makes a module "
                f"whose `{name}.weight` has the shape {shape_of(torch.empty(got))}; expected "
                f"{shape_of(torch.empty(shape))}."
            )
        if f"{name}.bias" in layers:
            raise Failure(f"`{name}` has a bias; the formula has none.")


@task.check(1)
def it_returns_a_context_and_the_weights(answer, rng):
    returns_a_pair(answer, module_inputs(rng), 2, 4, 5)


@task.check(1)
def without_a_mask_every_row_of_weights_sums_to_one(answer, rng):
    rows_sum_to_one(answer, module_inputs(rng, b=3), 3)


@task.check(1, "the context is the keys averaged by your weights")
def the_context_averages_the_keys_as_they_came(answer, rng):
    inputs = module_inputs(rng, d=6)  # as wide as the alignment
    averages(answer, inputs, inputs["keys"])
    masked = inputs | {"mask": mixed_mask(rng, 2, 4)}
    averages_if_masked(answer, masked, masked["keys"])


@task.check(2)
def with_the_same_weights_it_gives_the_same_results(answer, rng):
    answer.matches(module_inputs(rng))
    answer.matches(module_inputs(rng, b=3, k=7, e=5, d=4, a=9))
    answer.matches(module_inputs(rng, b=3, dtype=torch.float64))
    answer.matches(turned_module(module_inputs(rng, b=3)))
    answer.matches(large_keys(rng), tolerance=5e-3)


@task.check(1, "another query shares the weights out otherwise")
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
    with following(lambda: answer.matches(low_scores(rng, None), tolerance=5e-3)):
        answer.matches(low_scores(rng, mixed_mask(rng, 2, 4)), tolerance=5e-3)
        answer.matches(hidden_winner(rng), tolerance=5e-3)


@task.check(1, "a row with nothing to attend to gives zeros, and harms nothing else")
def a_row_with_nothing_to_attend_to_gives_zeros_and_harms_nothing_else(answer, rng):
    dead = module_inputs(rng, b=3, mask=dead_mask(rng, 3, 4))
    masked = module_inputs(rng, b=3, mask=mixed_mask(rng, 3, 4))
    gives_zeros(answer, dead)
    with following(lambda: answer.matches(masked)):
        answer.matches(dead)
        answer.matches(module_inputs(rng, b=1, mask=torch.zeros(1, 4, dtype=torch.bool)))
    with following(lambda: answer.gradients_match(masked)):
        answer.gradients_match(dead)


@task.check(1, "gradients reach query, keys and all three layers")
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


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Layer(nn.Module, Attend):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.make(query_dim, key_dim, attention_dim)

    def make(self, e, d, a):
        self.W_query = nn.Linear(e, a, bias=False)
        self.W_key = nn.Linear(d, a, bias=False)
        self.v = nn.Linear(a, 1, bias=False)

    def of_query(self, query):
        return self.W_query(query)

    def of_keys(self, keys):
        return self.W_key(keys)

    def line_up(query):
        return query[:, None]

    def for_every_key(query, keys):
        return query

    def meet(query, keys):
        return query + keys

    def bend(hidden):
        return hidden.tanh()

    def weigh(self, hidden):
        return self.v(hidden)

    def drop_axis(scores):
        return scores[..., 0]

    def values(self, keys):
        return keys

    def enter(keys, mask):
        return keys

    def forward(self, query, keys, mask=None):
        keys = self.enter(keys, mask)
        asked, known = self.line_up(self.of_query(query)), self.of_keys(keys)
        hidden = self.bend(self.meet(self.for_every_key(asked, known), known))
        return self.attend(self.drop_axis(self.weigh(hidden)), self.values(keys), mask)


task.spelling(clear=only_dead_rows)
task.spelling(
    hide=lambda scores, mask: scores.masked_fill(mask.any(-1, keepdim=True) & ~mask, -torch.inf)
)

# --- faults: the layers -------------------------------------------------------------------------


def layers(*biases, **names):
    """Layers of which some have a bias, another name, or no name and are missing."""

    def make(self, e, d, a):
        for name, i, o in (("W_query", e, a), ("W_key", d, a), ("v", a, 1)):
            if own := names.get(name, name):
                setattr(self, own, nn.Linear(i, o, bias=name in biases))

    return make


def by_key_layer(self, x):
    return self.W_key(x)


def by_query_layer(self, x):
    return self.W_query(x)


def turned_layers(self, e, d, a):
    self.W_query = nn.Linear(a, e, bias=False)
    self.W_key = nn.Linear(a, d, bias=False)
    self.v = nn.Linear(1, a, bias=False)


def of_keys_width(self, e, d, a):
    Layer.make(self, d, d, a)


def of_query_width(self, e, d, a):
    Layer.make(self, e, e, a)


def of_swapped_widths(self, e, d, a):
    Layer.make(self, d, e, a)


def bare_v(self, e, d, a):
    Layer.make(self, e, d, a)
    self.v = nn.Parameter(torch.randn(a))


def bare_parameters(self, e, d, a):
    self.W_query = nn.Parameter(torch.randn(e, a))
    self.W_key = nn.Parameter(torch.randn(d, a))
    self.v = nn.Parameter(torch.randn(a))


task.fault(
    "A-BIAS",
    make=(
        layers("W_query", "W_key", "v"),
        layers("W_query", "W_key"),
        layers("W_query"),
        layers("W_key"),
        layers("v"),
    ),
)


task.fault(
    "A-TIED-PROJ",
    make=(..., ..., layers(W_key=None), layers(W_query=None)),
    of_query=(by_key_layer, ..., ..., by_key_layer),
    of_keys=(..., by_query_layer, by_query_layer, ...),
)
task.fault("C-SWAPPED-PROJ", of_query=by_key_layer, of_keys=by_query_layer)
task.fault("C-ONE-WIDTH", make=(of_keys_width, of_query_width, of_swapped_widths))
task.fault(
    "C-NAMES",
    make=(
        layers(W_query="query_layer", W_key="key_layer", v="score_layer"),
        layers(W_key="my_W_key"),
        layers(v="my_v"),
        layers(W_key="my_W_key"),
        layers(v="my_v"),
    ),
    of_query=(lambda self, query: self.query_layer(query), ...),
    of_keys=(lambda self, keys: self.key_layer(keys), lambda self, keys: self.my_W_key(keys), ...),
    weigh=(lambda self, x: self.score_layer(x), ..., lambda self, x: self.my_v(x), ...),
)
task.fault(
    "C-BARE-PARAMETERS",
    make=(bare_parameters, bare_v),
    of_query=(lambda self, query: query @ self.W_query, ...),
    of_keys=(lambda self, keys: keys @ self.W_key, ...),
    weigh=lambda self, hidden: hidden @ self.v[:, None],
)
task.fault(
    "C-TURNED-LAYERS",
    make=turned_layers,
    of_query=lambda self, query: query @ self.W_query.weight,
    of_keys=lambda self, keys: keys @ self.W_key.weight,
    weigh=lambda self, hidden: hidden @ self.v.weight,
)
task.fault(
    "C-W-TRANSPOSED",
    of_query=lambda self, query: query @ self.W_query.weight,
    of_keys=lambda self, keys: keys @ self.W_key.weight,
)
task.fault(
    "C-FROZEN-LAYERS",
    of_query=lambda self, query: F.linear(query, self.W_query.weight.data),
    of_keys=lambda self, keys: F.linear(keys, self.W_key.weight.data),
    weigh=(..., lambda self, hidden: F.linear(hidden, self.v.weight.data)),
)


class LayersInAList(Layer):
    def make(self, e, d, a):
        self.layers = [nn.Linear(*size, bias=False) for size in ((e, a), (d, a), (a, 1))]

    def forward(self, query, keys, mask=None):
        W_query, W_key, v = (layer.to(query.dtype) for layer in self.layers)
        hidden = torch.tanh(W_query(query)[:, None] + W_key(keys))
        return self.attend(v(hidden)[..., 0], keys, mask)


class LayersInForward(Layer):
    def make(self, e, d, a):
        self.sizes = e, d, a

    def forward(self, query, keys, mask=None):
        return Layer(*self.sizes).to(query.dtype)(query, keys, mask)


class LayersSetInForward(LayersInForward):
    def forward(self, query, keys, mask=None):
        Layer.make(self, *self.sizes)
        return Layer.forward(self, query, keys, mask)


class LayersSetAside(Layer):
    def make(self, e, d, a):
        super().make(e, d, a)
        self.sizes = e, d, a

    def forward(self, query, keys, mask=None):
        return Layer(*self.sizes).to(query.dtype)(query, keys, mask)


class FreshScoreLayer(Layer):
    def weigh(self, hidden):
        return nn.Linear(hidden.shape[-1], 1, bias=False).to(hidden.dtype)(hidden)


class WithoutSuper(Layer):
    def __init__(self, query_dim, key_dim, attention_dim):
        self.make(query_dim, key_dim, attention_dim)


task.fault(
    "C-UNREGISTERED",
    forms=(LayersInAList, LayersInForward, LayersSetInForward, LayersSetAside, FreshScoreLayer),
)
task.fault("C-NO-SUPER", forms=(WithoutSuper,))

# --- faults: scores -----------------------------------------------------------------------------

LINEAR, BREAKS, PADDING = "linear-score", "additive-breaks", {"section": "padding-in-softmax"}


class KeepsTheFirstKeys(Layer):
    kept = None

    def of_keys(self, keys):
        if self.kept is None or self.kept.shape[:2] != keys.shape[:2]:
            self.kept = self.W_key(keys)
        return self.kept


task.fault(
    "A-NO-TANH",
    section=LINEAR,
    bend=as_is,
    meet=(
        ...,
        lambda query, keys: query.tanh() + keys.tanh(),
        lambda query, keys: query + keys.tanh(),
        lambda query, keys: query.tanh() + keys,
    ),
)
task.fault("A-RELU", bend=torch.relu)
task.fault("C-SIGMOID", bend=torch.sigmoid)
task.fault(
    "C-TANH-LAST", section=LINEAR, bend=as_is, weigh=lambda self, hidden: self.v(hidden).tanh()
)
task.fault("C-PRODUCT", meet=torch.mul)
task.fault("C-DIFFERENCE", meet=(torch.sub, lambda query, keys: keys - query))
task.fault("C-SCALED", weigh=lambda self, hidden: self.v(hidden) / math.sqrt(hidden.shape[-1]))
task.fault("C-NO-V", weigh=lambda self, hidden: hidden.sum(-1, keepdim=True))
task.fault("C-V-SHARES", weigh=lambda self, hidden: hidden @ self.v.weight.softmax(-1).mT)
task.fault("C-NO-QUERY", meet=lambda query, keys: keys)
task.fault("C-FIRST-QUERY", line_up=lambda query: query[:1, None])
task.fault("C-QUERY-MEAN", line_up=lambda query: query.mean(0, keepdim=True)[:, None])
task.fault("A-BROADCAST", section=BREAKS, line_up=as_is)
task.fault("C-REPEAT", section=BREAKS, for_every_key=repeated)
task.fault("C-STALE-KEYS", section="score-family", forms=(KeepsTheFirstKeys,))
task.fault(
    "C-SQUEEZE",
    section="score-family",
    drop_axis=torch.squeeze,
    average=(..., lambda weights, values, mask: (weights[..., None] * values).sum(1)),
)

# --- faults: softmax and mask -------------------------------------------------------------------

task.fault("A-SOFTMAX-QUERIES", section=BREAKS, share=lambda scores, mask: scores.softmax(0))
task.fault(
    "C-SOFTMAX-LAST-OF-THREE", share=lambda scores, mask: scores[..., None].softmax(-1)[..., 0]
)
task.fault("D-NAIVE-SOFTMAX", share=(naive_if_alive, naive, naive), clear=(..., ..., as_is))
task.fault("D-NO-SOFTMAX", share=lambda scores, mask: scores.clone(), hide=as_is)
task.fault("D-HARD-ATTENTION", share=hard)
task.fault("A-NO-MASK", **PADDING, visible=lambda mask, scores: None)
task.fault("M-POLARITY", **PADDING, visible=unless_none(torch.logical_not))
task.fault("M-AFTER-SOFTMAX", **PADDING, hide=as_is, clear=lambda weights, mask: weights * mask)
task.fault(
    "M-KEYS-ZEROED",
    **PADDING,
    enter=lambda keys, mask: keys if mask is None else keys * mask[..., None],
    hide=as_is,
    clear=(as_is, only_dead_rows),
)
task.fault("M-DEAD-ROW", **PADDING, hide=minus_infinity, clear=as_is)
of_dead_neighbors(task, **PADDING)
task.fault("M-DEAD-ROW-UNIFORM", **PADDING, hide=low(-1e9), clear=as_is)
task.fault(
    "M-DEAD-ROW-GRADIENT",
    **PADDING,
    hide=lambda scores, mask: scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf),
    clear=lambda weights, mask: weights.nan_to_num(0.0),
)
task.fault(
    "M-FILL-ZERO",
    **PADDING,
    hide=(low(0.0), lambda scores, mask: scores * mask),
    clear=(as_is, as_is, only_dead_rows, ...),
)
task.fault("M-SMALL-FILL", **PADDING, hide=low(-1e4), clear=(only_dead_rows, as_is))
task.fault("M-ADD-BOOL", **PADDING, hide=lambda scores, mask: scores + mask, clear=(as_is, ...))
task.fault(
    "M-MAPS-UNMASKED",
    **PADDING,
    results=lambda context, weights, scores, mask: (context, scores.softmax(-1)),
)
task.fault(
    "M-VALUES",
    **PADDING,
    hide=as_is,
    clear=as_is,
    average=lambda weights, values, mask: torch.einsum(
        "bk,bkv->bv", weights, values if mask is None else values * mask[:, :, None]
    ),
)
task.fault("C-FIRST-MASK", **PADDING, visible=unless_none(lambda mask: mask[:1].expand_as(mask)))
task.fault("M-IF-MASK", **PADDING, visible=lambda mask, scores: mask if mask else None)


@task.fault("M-NO-DEFAULT", **PADDING)
class NoDefault(Layer):
    def forward(self, query, keys, mask):
        return super().forward(query, keys, mask)


# --- faults: what is averaged and returned ------------------------------------------------------

task.fault("A-VALUE-IS-KEY", values=by_key_layer)
task.fault("C-ALL-PAIRS", section=BREAKS, average=lambda weights, values, mask: weights @ values)
task.fault("C-MEAN-CONTEXT", average=lambda *all: weighted(*all).mean(1))
task.fault("C-PLAIN-MEAN", average=(mean_of_visible, mean_of_all))
task.fault("C-NOT-SUMMED", average=weighted)
task.fault("C-KEEPDIM", average=lambda weights, values, mask: weights[:, None] @ values)
task.fault(
    "C-WEIGHTS-KEEPDIM",
    results=(
        lambda context, weights, scores, mask: (context, weights[:, :, None]),
        lambda context, weights, scores, mask: (context, weights[:, None]),
    ),
)
task.fault(
    "C-DROPOUT", after=lambda self, weights, scores: torch.dropout(weights, 0.1, self.training)
)
task.fault("C-DETACHED-VALUES", values=lambda self, keys: keys.detach())
task.fault("D-DETACHED-WEIGHTS", after=lambda weights, scores: weights.detach())
task.fault("D-SCORES-AS-WEIGHTS", results=lambda context, weights, scores, mask: (context, scores))
task.fault("D-SWAPPED-RESULTS", results=lambda context, weights, scores, mask: (weights, context))
task.fault(
    "D-OUTPUT-ONLY", section="alignments", results=lambda context, weights, scores, mask: context
)
task.fault(
    "C-FLOAT32", results=lambda context, weights, scores, mask: (context.float(), weights.float())
)
task.fault(
    "M-AFTER-RENORMALIZED",
    **PADDING,
    hide=as_is,
    clear=(divided(lambda total: total.clamp(min=1e-9)), divided(as_is)),
)

"""What every mechanism of the book promises, held over the tables that the chapters' tests fill."""

import importlib
import inspect

import pytest
import torch
from tensors import assert_equal_to, assert_refused, randn, typed
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from attncourse.checks import registry

CHAPTERS = [stem for stem in registry.stems() if not stem.startswith("lab")]
TABLES = {chapter: importlib.import_module(f"test_{chapter}").CALLS for chapter in CHAPTERS}
CALLS = {
    " ".join(filter(None, (chapter, call.function.__qualname__, call.case))): call
    for chapter, table in TABLES.items()
    for call in table
}


def tensors_in(value) -> list[Tensor]:
    """Tensors of lists, pairs and layers, in their order."""
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, nn.Module):
            found += leaf.state_dict().values()
        elif isinstance(leaf, Tensor):
            found.append(leaf)
    return found


def test_every_call_has_a_name_of_its_own():
    assert len(CALLS) == sum(map(len, TABLES.values()))


ELSEWHERE = {"process_ring_attention"}  # other processes have to answer it


def mechanisms(chapter):
    """Public functions and methods of a chapter that say the axes of a tensor."""
    module = importlib.import_module(f"attncourse.{chapter}")
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        for function in vars(thing).values() if inspect.isclass(thing) else [thing]:
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                notes = [str(note) for note in function.__annotations__.values()]
                if any("[Tensor, " in note and "Callable" not in note for note in notes):
                    yield function.__qualname__


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_mechanism_stands_in_its_chapters_table(chapter):
    listed = {call.function.__qualname__ for call in TABLES[chapter]}
    missing = {*mechanisms(chapter)} - listed - ELSEWHERE
    assert not missing, f"each needs a line in CALLS of tests/test_{chapter}.py"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_annotations_hold(call):
    with torch.random.fork_rng(devices=[]):
        result = typed(call.function)(*call.inputs())
    if isinstance(call.equals, type):
        assert isinstance(result, call.equals)
    elif call.equals is not None:
        assert result == call.equals
    shapes = [tuple(tensor.shape) for tensor in tensors_in(result)]
    if call.shapes is not None:
        several = isinstance(call.shapes, list)
        assert shapes == [tuple(shape) for shape in (call.shapes if several else [call.shapes])]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_inputs_stay_as_they_were_and_chance_is_not_touched(call):
    inputs, chance = call.inputs(), torch.get_rng_state()
    before = [tensor.clone() for tensor in tensors_in(inputs)]
    with torch.random.fork_rng(devices=[], enabled=call.draws):
        first = tensors_in(call.function(*inputs))
    assert torch.equal(chance, torch.get_rng_state())
    assert all(torch.equal(*pair) for pair in zip(before, tensors_in(inputs), strict=True))
    with torch.random.fork_rng(devices=[], enabled=call.draws):
        second = tensors_in(call.function(*call.inputs()))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


# What does not fit here is not always refused by name. Most are parts of a model or steps of a
# loop, whose callers have asked; some take more than tensors of one kind.
UNASKED = {
    "rnn_step": "x h W_input W_hidden bias",
    "lstm_step": "x W_input W_hidden bias",
    "gru_step": "x h W_input W_hidden bias_input bias_hidden",
    "EncoderDecoder.start": "source",
    "EncoderDecoder.step": "word state",
    "EncoderDecoder.forward": "source words",
    "AttentionEncoderDecoder.start": "source",
    "AttentionEncoderDecoder.look_and_step": "word",
    "AttentionEncoderDecoder.step": "word",
    "AttentionEncoderDecoder.align": "source words",
    "AttentionEncoderDecoder.forward": "source words",
    "BidirectionalEncoderDecoder.start": "source",
    "cross_attention": "memory_mask",
    "EncoderLayer.forward": "x",
    "DecoderLayer.forward": "target target_mask memory_mask",
    "Transformer.decode": "memory_mask",
    "rotate": "positions",  # between whole numbers, too
    "attend_by": "value",
    "ShawAttention.forward": "value",
    "AlibiAttention.forward": "query key value",
    "RotaryAttention.forward": "query key",
    "Sinusoids.forward": "x",
    "GPTLayer.forward": "x",
    "BERTLayer.forward": "x",
    "embed": "text",
    "close_gaps": "text",
    "Continuation.forward": "source words",
    "fill_in": "text",
    "beam_search": "state",  # of any kind
    "extend": "value",  # of any dtype in a new text
    "rolling_attention": "value",
    "GroupedAttention.forward": "mask",
    "GroupedAttention.step": "mask",
    "LatentAttention.forward": "mask",
    "LatentAttention.step": "mask",
    "CachedLayer.forward": "x",
    "CachedLayer.step": "x",
    "CachedGPT.step": "real",
    "hear": "mask known",
    "same_bucket": "query_buckets key_buckets",
    "span_mask": "distance",  # of any kind
    "SpanAttention.forward": "query key value mask",
    "feature_map": "x",
    "ring_bytes": "keys values",
    "AttentionLayer.forward": "x",
    "through": "text",
    "gated_cross_attention": "text gate",
    "GatedLayer.forward": "text",
    "contrastive_loss": "temperature",  # a number, too
    "Pool.forward": "x",
}
ANY_DTYPE = {"hidden_scale weights"}  # of another dtype than the tensors before it


def misfits(good, is_first):
    """What does not fit where `good` does, by what a refusal says of it."""
    yield "must be a ... torch.Tensor ... got list", good.tolist()
    if good.dtype == torch.bool:
        yield "must be boolean ... got torch.float64", good.double()
    elif good.is_floating_point():
        yield "must hold floating-point numbers; got torch.int64", good.long()
        if not is_first:
            yield "... torch.float32", good.float()
    else:
        yield "must hold whole numbers; got torch.float64", good.double()


def is_refused(call, words, inputs):
    try:
        assert_refused((TypeError, ValueError), words, lambda: call.function(*inputs))
    except (Exception, pytest.fail.Exception):
        return False
    return True


def unrefused(call):
    """(argument, words that no refusal said) for each tensor among the arguments."""
    inputs, is_first = list(call.inputs()), True
    arguments = inspect.signature(call.function).parameters.values()
    for place, (argument, good) in enumerate(zip(arguments, inputs, strict=False)):
        if isinstance(good, Tensor) and argument.kind is not argument.VAR_POSITIONAL:
            any_dtype = f"{call.function.__qualname__} {argument.name}" in ANY_DTYPE
            for words, bad in misfits(good, is_first or any_dtype):
                changed = [*inputs[:place], bad, *inputs[place + 1 :]]
                if not is_refused(call, f"{argument.name} {words}", changed):
                    yield argument.name, words
            is_first = is_first and not good.is_floating_point()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_not_a_fitting_tensor_is_refused_by_name(call):
    unasked = UNASKED.get(call.function.__qualname__, "").split()
    assert [each for each in unrefused(call) if each[0] not in unasked] == []


@pytest.mark.parametrize("name", UNASKED)
def test_the_list_of_what_is_not_asked_gets_shorter(name):
    calls = [call for call in CALLS.values() if call.function.__qualname__ == name]
    found = {argument for call in calls for argument, _ in unrefused(call)}
    assert found == {*UNASKED[name].split()}, "take out what is refused by name now"


GRAPHS = {name: call for name, call in CALLS.items() if call.graph}


@pytest.mark.slow
@pytest.mark.parametrize("call", GRAPHS.values(), ids=GRAPHS)
def test_it_compiles_to_one_graph_with_the_same_results_and_gradients(call):
    torch.compiler.reset()
    inputs = tree_map_only(Tensor, learning, list(call.inputs()))
    leaves = [leaf for leaf in learned_by(inputs) if leaf.requires_grad]
    compiled = torch.compile(call.function, fullgraph=True, backend=call.graph)
    expected, actual = (tensors_in(each(*inputs)) for each in (call.function, compiled))
    for want, got in zip(expected, actual, strict=True):
        assert_equal_to(want, got)
    for want, got in zip(slopes(expected, leaves), slopes(actual, leaves), strict=True):
        assert_equal_to(want, got)


def learning(tensor):
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def learned_by(inputs):
    """Tensors, and parameters of layers."""
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, nn.Module):
            yield from leaf.parameters()
        elif isinstance(leaf, Tensor):
            yield leaf


def slopes(results, leaves):
    """Gradients of a random projection of the results; 0 for what has no part in them."""
    parts = [(r * randn(*r.shape, seed=i)).sum() for i, r in enumerate(results) if r.requires_grad]
    return torch.autograd.grad(sum(parts), leaves, materialize_grads=True) if parts else []

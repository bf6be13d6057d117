"""Each row of the Rosetta page, tried on the library it speaks of.

PyTorch is the course's own, transformers comes with the tests. For the rows of JAX, Flax and Keras:
`pip install jax flax keras keras-hub` (without them these tests are skipped).
"""

import inspect
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attncourse.cache import (
    LatentAttention,
    extend,
    grouped_query_attention,
    rolling_attention,
)
from attncourse.long_sequences import window_mask
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.one_stack import BERT, GPT, BERTLayer, GPTLayer
from attncourse.pictures import contrastive_loss, patches, positions_2d
from attncourse.positions import (
    BucketAttention,
    alibi_bias,
    relative_buckets,
    rotary_frequencies,
    rotate,
)
from attncourse.scaled_dot_product import scaled_dot_product_attention

PAGE = Path(__file__).parent.parent / "book" / "rosetta.md"

# Four words, two sentences, two heads. The mask hides word 2 from word 0.
B, H, N, D = 2, 2, 4, 4
MAY = torch.ones(N, N, dtype=torch.bool)
MAY[0, 2] = False
DEAD = MAY.clone()
DEAD[1] = False  # nothing at all for word 1
TO_BE_ADDED = torch.zeros(N, N).masked_fill(~MAY, -1e9).numpy()


def heads(seed=0, length=N):
    """(b h n d), and values whose average is the weights themselves."""
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(B, H, n, D, generator=generator) for n in (length, N))
    return query, key, torch.eye(N).expand(B, H, N, N)


def sentence(seed=0):
    return torch.randn(B, N, H * D, generator=torch.Generator().manual_seed(seed))


def hears(layer, x, listener=0, speaker=2):
    """Whether the output at `listener` changes when the input at `speaker` does."""
    changed = x.clone()
    changed[:, speaker] += torch.arange(x.shape[-1]).cos()
    return not torch.allclose(layer(x)[:, listener], layer(changed)[:, listener], atol=1e-6)


# --- this course ---------------------------------------------------------------------------------


def attncourse_mask():
    output, _ = scaled_dot_product_attention(*heads(), MAY)
    assert (output[..., 0, 2] == 0).all() and (output[..., 1, 2] > 0).all()
    with pytest.raises(TypeError, match="mask"):
        scaled_dot_product_attention(*heads(), MAY.float())


def attncourse_causal():
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    output, _ = scaled_dot_product_attention(*heads(), DEAD)
    assert (output[..., 1, :] == 0).all()


def attncourse_heads():
    layer = MultiHeadAttention(H * D, H)
    output, weights = layer(sentence(), sentence(), sentence())
    assert output.shape == (B, N, H * D) and weights.shape == (B, H, N, N)
    assert layer.q_proj.weight.shape == (H * D, H * D)


def shared_inputs():
    """(b h n d) for four heads of queries, two of keys; and the keys written out, in a row."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(B, 4, N, D, generator=generator)
    key, value = torch.randn(2, B, 2, N, D, generator=generator)
    written_out = [x[:, [0, 0, 1, 1]] for x in (key, value)]
    return query, key, value, scaled_dot_product_attention(query, *written_out)[0]


def attncourse_shared():
    query, key, value, expected = shared_inputs()
    assert torch.allclose(grouped_query_attention(query, key, value)[0], expected, atol=1e-6)


# --- PyTorch -------------------------------------------------------------------------------------


def sdpa_mask():
    output = F.scaled_dot_product_attention(*heads(), attn_mask=MAY)
    assert (output[..., 0, 2] == 0).all() and (output[..., 1, 2] > 0).all()
    added = torch.zeros(N, N).masked_fill(~MAY, -torch.inf)
    assert torch.allclose(output, F.scaled_dot_product_attention(*heads(), attn_mask=added))


def sdpa_causal():
    weights = F.scaled_dot_product_attention(*heads(length=2), is_causal=True)
    assert (weights[..., 1, 2:] == 0).all() and (weights[..., 1, :2] > 0).all()


def bias_causal():
    from torch.nn.attention.bias import causal_lower_right  # loads torch._dynamo, 3 s

    mask = causal_lower_right(2, 4)
    weights = F.scaled_dot_product_attention(*heads(length=2), attn_mask=mask)
    assert torch.equal(weights > 0, causal_mask(2, 4).expand(B, H, 2, N))


def sdpa_heads():
    query, key, value = heads()
    assert F.scaled_dot_product_attention(query, key, value).shape == (B, H, N, N)
    ours, _ = scaled_dot_product_attention(query, key, value)
    assert torch.allclose(ours, F.scaled_dot_product_attention(query, key, value), atol=1e-6)


def sdpa_shared():
    query, key, value, expected = shared_inputs()
    output = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert torch.allclose(output, expected, atol=1e-6)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(query, key, value)


def torch_mha(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(H * D, H, batch_first=True, **options)


def mha_mask():
    layer, x = torch_mha(), sentence()
    _, weights = layer(x, x, x, attn_mask=~MAY)
    assert (weights[:, 0, 2] == 0).all()
    assert layer(x, x, x, attn_mask=(~MAY).repeat(B * H, 1, 1))[1].shape == (B, N, N)
    added = torch.zeros(N, N).masked_fill(~MAY, -torch.inf)
    assert torch.allclose(layer(x, x, x, attn_mask=added)[1], weights)


def mha_padding():
    ignore = torch.zeros(B, N, dtype=torch.bool)
    ignore[1, 2:] = True
    x = sentence()
    _, weights = torch_mha()(x, x, x, key_padding_mask=ignore)
    assert (weights[1, :, 2:] == 0).all() and (weights[0] > 0).all()


def mha_causal():
    x = sentence()
    with pytest.raises(RuntimeError, match="attn_mask"):
        torch_mha()(x, x, x, is_causal=True)
    square = nn.Transformer.generate_square_subsequent_mask(3)
    assert square.tolist() == [[0, -torch.inf, -torch.inf], [0, 0, -torch.inf], [0, 0, 0]]


def mha_heads():
    x = sentence()
    output, weights = torch_mha()(x, x, x)
    _, each = torch_mha()(x, x, x, average_attn_weights=False)
    assert output.shape == x.shape and weights.shape == (B, N, N) and each.shape == (B, H, N, N)
    assert torch.allclose(each.mean(1), weights)
    assert torch_mha().in_proj_weight.shape == (3 * H * D, H * D)
    time_first = nn.MultiheadAttention(H * D, H)
    assert time_first(x, x, x)[1].shape == (N, B, B)  # b and n have changed places


def flex_mask():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    blocks = flex.create_block_mask(
        lambda b, h, q, k: (q != 0) | (k != 2), B, H, N, N, device="cpu"
    )
    output = flex.flex_attention(*heads(), block_mask=blocks)
    assert torch.allclose(
        output, F.scaled_dot_product_attention(*heads(), attn_mask=MAY), atol=1e-6
    )


def flex_causal():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    blocks = flex.create_block_mask(lambda b, h, q, k: q + 2 >= k, B, H, 2, N, device="cpu")
    weights = flex.flex_attention(*heads(length=2), block_mask=blocks)
    assert torch.equal(weights > 0, causal_mask(2, N).expand(B, H, 2, N))


def flex_dead():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    blocks = flex.create_block_mask(lambda b, h, q, k: q != 1, B, H, N, N, device="cpu")
    assert (flex.flex_attention(*heads(), block_mask=blocks)[..., 1, :] == 0).all()


# --- Hugging Face transformers -------------------------------------------------------------------


def bert(**options):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=H * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        intermediate_size=16,
        **options,
    )
    torch.manual_seed(0)
    return transformers.BertModel(config).eval()


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=9, n_embd=H * D, n_layer=1, n_head=H)
    torch.manual_seed(0)
    return transformers.GPT2Model(config).eval()


def huggingface_mask():
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]])
    other = torch.tensor([[1, 2, 3, 4], [1, 2, 7, 8]])
    model = bert()
    one, two = (model(i, attention_mask=real).last_hidden_state for i in (ids, other))
    assert torch.allclose(one[1, :2], two[1, :2], atol=1e-6)
    assert not torch.allclose(model(ids)[0][1, :2], model(other)[0][1, :2], atol=1e-4)


def huggingface_causal():
    model = gpt2()
    assert not hears(lambda x: model(inputs_embeds=x)[0], sentence(), listener=0, speaker=1)
    assert hears(lambda x: model(inputs_embeds=x)[0], sentence(), listener=1, speaker=0)
    # With a cache, the last query sees every key: one word at a time is as good as all at once.
    ids = torch.tensor([[1, 2, 3, 4]])
    past = model(ids[:, :2], use_cache=True).past_key_values
    rest = model(ids[:, 2:], past_key_values=past).last_hidden_state
    assert torch.allclose(rest, model(ids).last_hidden_state[:, 2:], atol=1e-5)


def huggingface_cache():
    model, ids = gpt2(), torch.tensor([[1, 2, 3, 4]])
    first = model(ids[:, :2], use_cache=True).past_key_values
    assert type(first).__name__ == "DynamicCache" and first.get_seq_length() == 2
    second = model(ids[:, 2:], past_key_values=first).past_key_values
    assert second is first and first.get_seq_length() == 4


def static_cache():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": H * D, "num_attention_heads": H, "num_key_value_heads": H}
    config = transformers.LlamaConfig(num_hidden_layers=1, intermediate_size=8, **sizes)
    cache = transformers.StaticCache(config=config, max_cache_len=6)
    _, key, value = heads()
    first, _ = cache.update(key[:, :, :3], value[:, :, :3], 0)
    assert first.shape == (B, H, 6, D) and (first[:, :, 3:] == 0).all()
    second, _ = cache.update(key[:, :, 3:], value[:, :, 3:], 0)
    assert second is first or second.data_ptr() == first.data_ptr()
    assert torch.equal(second[:, :, :4], key) and cache.get_seq_length() == 4


def huggingface_heads():
    model = bert(attn_implementation="eager")
    attentions = model(torch.tensor([[1, 2, 3]] * B), output_attentions=True).attentions
    assert isinstance(attentions, tuple) and len(attentions) == 3
    assert attentions[0].shape == (B, H, 3, 3)
    assert gpt2().h[0].attn.c_attn.weight.shape == (H * D, 3 * H * D)
    assert model.encoder.layer[0].attention.self.query.weight.shape == (H * D, H * D)


# --- JAX, Flax, Keras ----------------------------------------------------------------------------


def huggingface_shared():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    query, key, value, expected = shared_inputs()
    written_out = (llama.repeat_kv(x, 2) for x in (key, value))
    assert torch.allclose(scaled_dot_product_attention(query, *written_out)[0], expected)
    config = llama.LlamaConfig(num_attention_heads=4, num_key_value_heads=2)
    assert config.num_attention_heads // config.num_key_value_heads == 2


def jax_heads_in():
    jnp = pytest.importorskip("jax.numpy")
    return [jnp.asarray(t.transpose(1, 2).numpy()) for t in heads()]  # b n h d


def back(array):
    import numpy

    return torch.from_numpy(numpy.array(array))


def jax_mask():
    jax = pytest.importorskip("jax")
    weights = back(jax.nn.dot_product_attention(*jax_heads_in(), mask=MAY.numpy()[None, None]))
    expected = F.scaled_dot_product_attention(*heads(), attn_mask=MAY).transpose(1, 2)
    assert torch.allclose(weights, expected, atol=1e-6)
    with pytest.raises(ValueError, match="mask"):
        jax.nn.dot_product_attention(*jax_heads_in(), mask=TO_BE_ADDED[None, None])


def jax_causal():
    jax = pytest.importorskip("jax")
    query, key, value = jax_heads_in()
    weights = back(jax.nn.dot_product_attention(query[:, :2], key, value, is_causal=True))
    assert (weights[:, 1, :, 2:] == 0).all() and (weights[:, 1, :, :2] > 0).all()


def jax_dead():
    jax = pytest.importorskip("jax")
    query, key, value = jax_heads_in()
    dead = back(jax.nn.dot_product_attention(query, key, value, mask=DEAD.numpy()[None, None]))
    assert torch.allclose(dead[:, 1], torch.tensor(1 / N))


def jax_heads():
    jax = pytest.importorskip("jax")
    query, key, value = jax_heads_in()
    assert query.shape == (B, N, H, D)
    assert jax.nn.dot_product_attention(query, key, value).shape == (B, N, H, N)


def jax_shared():
    jax = pytest.importorskip("jax")
    *inputs, expected = shared_inputs()
    output = jax.nn.dot_product_attention(*(x.transpose(1, 2).numpy() for x in inputs))
    assert torch.allclose(back(output).transpose(1, 2), expected, atol=1e-6)


def jax_positions():
    """A number for each head and pair of places, added before the softmax; by Flax, too."""
    jax, nnx = pytest.importorskip("jax"), pytest.importorskip("flax.nnx")
    bias = alibi_bias(H, N, N)
    expected = F.scaled_dot_product_attention(*heads(), attn_mask=bias).transpose(1, 2)
    for attend in (jax.nn.dot_product_attention, nnx.dot_product_attention):
        output = back(attend(*jax_heads_in(), bias=bias.numpy()[None]))
        assert torch.allclose(output, expected, atol=1e-6)


def flax_layer():
    nnx = pytest.importorskip("flax.nnx")
    return nnx.MultiHeadAttention(num_heads=H, in_features=H * D, decode=False, rngs=nnx.Rngs(0))


def flax_mask():
    layer = flax_layer()
    mask = MAY.numpy()[None, None]
    assert not hears(lambda x: back(layer(x.numpy(), mask=mask)), sentence())
    assert hears(lambda x: back(layer(x.numpy())), sentence())
    added = TO_BE_ADDED[None, None]  # cast to booleans: word 0 now hears word 2 alone
    assert hears(lambda x: back(layer(x.numpy(), mask=added)), sentence())
    assert not hears(lambda x: back(layer(x.numpy(), mask=added)), sentence(), speaker=1)


def flax_causal():
    layer, query = flax_layer(), sentence().numpy()[:, :2]
    attend = lambda x: back(layer(query, x.numpy(), is_causal=True))  # noqa: E731
    assert hears(attend, sentence(), listener=1, speaker=1)
    assert not hears(attend, sentence(), listener=1, speaker=2)


def flax_dead():
    layer, x = flax_layer(), sentence()
    dead = back(layer(x.numpy(), mask=DEAD.numpy()[None, None]))
    uniform = back(layer(x.numpy(), mask=torch.zeros(N, N).bool().numpy()[None, None]))
    assert torch.allclose(dead[:, 1], uniform[:, 2], atol=1e-6)  # the average of all values


def flax_heads():
    layer = flax_layer()
    assert layer.query.kernel.shape == (H * D, H, D) and layer.out.kernel.shape == (H, D, H * D)
    assert layer(sentence().numpy()).shape == (B, N, H * D)


def flax_shared():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.MultiHeadAttention(
        num_heads=4, num_kv_heads=2, in_features=4 * D, decode=False, rngs=nnx.Rngs(0)
    )
    assert layer.query.kernel.shape == (4 * D, 4, D) and layer.key.kernel.shape == (4 * D, 2, D)
    x = torch.randn(B, N, 4 * D, generator=torch.Generator().manual_seed(0))
    q, k, v = (
        back(project(x.numpy())).transpose(1, 2)
        for project in (layer.query, layer.key, layer.value)
    )
    expected, _ = grouped_query_attention(q, k, v)
    expected = layer.out(expected.transpose(1, 2).numpy())
    assert torch.allclose(back(layer(x.numpy())), back(expected), atol=1e-6)


def flax_cache():
    nnx = pytest.importorskip("flax.nnx")
    decoder = nnx.MultiHeadAttention(num_heads=H, in_features=H * D, decode=True, rngs=nnx.Rngs(0))
    x, at_once = sentence().numpy(), back(flax_layer()(sentence().numpy(), is_causal=True))

    def write(length):
        decoder.init_cache((B, length, H * D))
        steps = [back(decoder(x[:, [place]])) for place in range(N)]
        assert decoder.cached_key.shape == (B, length, H, D)
        return torch.cat(steps, dim=1)

    assert torch.allclose(write(N), at_once, atol=1e-6)
    with pytest.raises(ValueError, match="shape"):
        decoder(x[:, :2])
    too_short = write(N - 1)  # no error: the last word is put where the one before it was
    assert torch.allclose(too_short[:, :-1], at_once[:, :-1], atol=1e-6)
    assert not torch.allclose(too_short[:, -1], at_once[:, -1], atol=1e-4)


def keras_on_jax():
    pytest.importorskip("jax")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    return pytest.importorskip("keras")


def keras_shared():
    layer = keras_on_jax().layers.GroupQueryAttention(
        head_dim=D, num_query_heads=4, num_key_value_heads=2
    )
    x = torch.randn(B, N, 4 * D, generator=torch.Generator().manual_seed(0))
    _, weights = layer(x.numpy(), x.numpy(), return_attention_scores=True)
    q, k, v = (
        back(project(x.numpy())).transpose(1, 2)
        for project in (layer._query_dense, layer._key_dense, layer._value_dense)
    )
    assert q.shape == (B, 4, N, D) and k.shape == v.shape == (B, 2, N, D)
    assert torch.allclose(back(weights), grouped_query_attention(q, k, v)[1], atol=1e-6)


def keras_hub_layers():
    keras_on_jax()
    return pytest.importorskip("keras_hub").layers


def kerashub_positions():
    layers = keras_hub_layers()
    turn = layers.RotaryEmbedding()
    rotated = lambda x: back(turn(x.transpose(1, 2).numpy())).transpose(1, 2)  # noqa: E731
    assert turned_with(rotated) == [0, 4]
    added = back(layers.AlibiBias()(torch.zeros(1, H, N, N).numpy()))
    # One row for all queries: that of the last place. The others are a constant apart.
    assert torch.allclose(added[0], alibi_bias(H, N, N)[:, -1:].expand(H, N, N), atol=1e-6)


def kerashub_cache():
    layer = keras_hub_layers().CachedMultiHeadAttention(num_heads=H, key_dim=D)
    x, mask = sentence().numpy(), causal_mask(N)[None].numpy()
    at_once = back(layer(x, x, attention_mask=mask))
    cache, steps = torch.zeros(B, 2, N, H, D).numpy(), []
    for place in range(N):
        one = x[:, [place]]
        output, longer = layer(
            one, one, attention_mask=mask[:, [place]], cache=cache, cache_update_index=place
        )
        assert longer.shape == cache.shape
        cache = longer
        steps.append(back(output))
    assert torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-6)


def keras_layer(**options):
    keras = keras_on_jax()
    layer = keras.layers.MultiHeadAttention(num_heads=H, key_dim=D + 1)
    x = sentence().numpy()
    return layer, [back(t) for t in layer(x, x, return_attention_scores=True, **options)]


def keras_mask():
    _, (_, weights) = keras_layer(attention_mask=MAY.numpy()[None])
    assert (weights[:, :, 0, 2] == 0).all() and (weights[:, :, 1, 2] > 0).all()
    _, (_, weights) = keras_layer(attention_mask=TO_BE_ADDED[None])
    assert torch.equal(weights[:, :, 0] > 0, (~MAY[0]).expand(B, H, N))


def keras_causal():
    layer, (_, weights) = keras_layer(use_causal_mask=True)
    assert torch.equal(weights > 0, causal_mask(N).expand(B, H, N, N))
    x = sentence().numpy()
    weights = layer(x[:, :2], x, use_causal_mask=True, return_attention_scores=True)[1]
    assert (back(weights)[:, :, 1] > 0).sum(-1).eq(2).all()


def keras_dead():
    layer, (_, weights) = keras_layer(attention_mask=DEAD.numpy()[None])
    assert (weights[:, :, 1] == 0).all()
    x, nothing = sentence().numpy(), torch.zeros(1, N, N).bool().numpy()
    dead = back(layer(x, x, attention_mask=DEAD.numpy()[None]))  # no weights asked for
    uniform = back(layer(x, x, attention_mask=nothing))
    assert torch.allclose(dead[:, 1], uniform[:, 2], atol=1e-6)  # the average of all values
    assert uniform.abs().max() > 1e-3


def keras_heads():
    layer, (output, weights) = keras_layer()
    assert output.shape == (B, N, H * D) and weights.shape == (B, H, N, N)
    assert torch.allclose(weights.sum(-1), torch.ones(B, H, N))  # weights, though called scores
    assert layer.query_dense.kernel.shape == (H * D, H, D + 1)
    assert layer.output_dense.kernel.shape == (H, D + 1, H * D)
    # The second argument is the value; the key comes third.
    x, other = sentence().numpy(), sentence(1).numpy()
    assert not torch.allclose(back(layer(x, x, other)), back(layer(x, other, x)), atol=1e-4)


def stacked(layer, norm_first, bend):
    """The layer's own attention and linear parts, put together by hand."""
    x = sentence()
    attention, network = layer.self_attention, lambda y: layer.linear2(bend(layer.linear1(y)))
    if norm_first:
        normed = layer.norm1(x)
        y = x + attention(normed, normed, normed)[0]
        expected = y + network(layer.norm2(y))
    else:
        y = layer.norm1(x + attention(x, x, x)[0])
        expected = layer.norm2(y + network(y))
    assert torch.allclose(expected, layer(x), atol=1e-6)
    assert layer.norm1.eps == layer.norm2.eps == 1e-5


def by_tanh(x):
    return F.gelu(x, approximate="tanh")


def embedded(model):
    """What one word is before the first layer, no positions added."""
    first, seen = next(iter(model.layers)), []
    model.positions = torch.zeros
    first.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    model(torch.tensor([[3]]))
    return seen[0], model.embedding.weight[3] * (H * D) ** 0.5


def gpt_stack():
    stacked(GPTLayer(H * D, H, 9), True, by_tanh)
    x, expected = embedded(GPT(5, H * D, H, 9, 1))
    assert torch.allclose(x[0, 0], expected)


def bert_stack():
    stacked(BERTLayer(H * D, H, 9), False, F.gelu)
    x, expected = embedded(BERT(5, H * D, H, 9, 1))
    assert torch.allclose(x[0, 0], F.layer_norm(expected, (H * D,)), atol=1e-6)


def gpt2_stack():
    """That all parts fit together is tested in test_one_stack.py, number by number."""
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    block = gpt2.GPT2Block(gpt2.GPT2Config(n_embd=H * D, n_head=H), layer_idx=0)
    x = torch.linspace(-3, 3, 9)
    assert torch.allclose(block.mlp.act(x), by_tanh(x), atol=1e-6)
    assert not torch.allclose(by_tanh(x), F.gelu(x), atol=1e-5)
    assert block.ln_1.eps == 1e-5


def bertmodel_stack():
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(hidden_size=H * D, num_attention_heads=H)
    x = torch.linspace(-3, 3, 9)
    assert torch.allclose(bert.BertIntermediate(config).intermediate_act_fn(x), F.gelu(x))
    assert bert.BertEmbeddings(config).LayerNorm.eps == 1e-12


# --- Positions, caches, latents ------------------------------------------------------------------


def turned_with(rotated):
    """Which features feature 0 is turned into; `rotated` maps (b h n d) at places 0, 1, …"""
    x = torch.zeros(1, 1, 2, 8)
    x[..., 0] = 1
    return rotated(x)[0, 0, 1].nonzero().flatten().tolist()


def attncourse_positions():
    assert turned_with(lambda x: rotate(x, torch.arange(2))) == [0, 1]
    query, key, value = heads()
    bias = BucketAttention(H, bidirectional=False)
    scores = query @ key.mT / D**0.5
    offset = relative_buckets(torch.arange(N) - torch.arange(N)[:, None], 32, 128, False)
    expected = (scores + bias.bias(offset).movedim(-1, 0)).softmax(-1)
    assert torch.allclose(bias(query, key, value)[0], expected, atol=1e-6)


def sdpa_positions():
    query, key, value = heads()
    expected = (query @ key.mT / D**0.5 + alibi_bias(H, N, N)).softmax(-1)
    actual = F.scaled_dot_product_attention(query, key, value, attn_mask=alibi_bias(H, N, N))
    assert torch.allclose(actual, expected, atol=1e-6)


def llama_positions():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=8, num_attention_heads=1)
    assert config.rope_parameters["rope_theta"] == 10_000
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(2)[None])
    assert turned_with(lambda x: llama.apply_rotary_pos_emb(x, x, cos, sin)[0]) == [0, 4]


def gptj_positions():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    sin, cos = gptj.create_sinusoidal_positions(2, 8)[None].chunk(2, dim=-1)
    rotated = lambda x: gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)  # noqa: E731
    assert turned_with(rotated) == [0, 1]
    assert gptj.GPTJConfig().rotary_dim == 64


def deepseek_positions():
    """Scores are those of neighbors turned, in whatever order the features come out."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    angle = torch.arange(N)[:, None] * rotary_frequencies(8)
    cos, sin = (torch.cat([f(angle)] * 2, -1)[None].float() for f in (torch.cos, torch.sin))
    q, k = torch.randn(2, 1, 1, N, 8, generator=torch.Generator().manual_seed(0))
    theirs = deepseek.apply_rotary_pos_emb_interleave(q, k, cos, sin)
    ours = [rotate(x, torch.arange(N)) for x in (q, k)]
    assert torch.allclose(theirs[0] @ theirs[1].mT, ours[0] @ ours[1].mT, atol=1e-5)


def t5_positions():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=64, d_kv=16, num_heads=4, d_ff=8, num_layers=1, vocab_size=9)
    torch.manual_seed(0)
    layer = t5.T5EncoderModel(config).encoder.block[0].layer[0].SelfAttention
    assert layer.relative_attention_bias.weight.shape == (32, 4)
    assert layer.scaling == 1
    smaller = layer.k.weight.std() / layer.q.weight.std()
    assert abs(smaller / config.d_kv**0.5 - 1) < 0.05


def bloom_positions():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bias = bloom.build_alibi_tensor(torch.ones(1, N).long(), H, torch.float32)  # h 1 k
    ours = alibi_bias(H, N, N)[:, -1:]  # BLOOM counts from the first word: a constant apart
    assert torch.allclose(bias - bias[..., -1:], ours, atol=1e-6)


def torch_cache():
    for layer in (nn.MultiheadAttention, nn.TransformerDecoderLayer, nn.TransformerDecoder):
        taken = " ".join(inspect.signature(layer.forward).parameters)
        assert "cache" not in taken and "past" not in taken


def attncourse_cache():
    _, key, value = heads()
    cache = extend(None, key[..., :1, :], value[..., :1, :])
    longer = extend(cache, key[..., 1:, :], value[..., 1:, :])
    assert cache[0].shape[-2] == 1 and torch.equal(longer[0], key)


def attncourse_latent():
    layer = LatentAttention(H * D, H, head_width=D, latent_width=5, rope_width=2)
    _, kept = layer.step(sentence(), None)
    assert sorted(part.shape[-1] for part in kept) == [2, 5]


def deepseek_latent():
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = deepseek.DeepseekV3Config(
        hidden_size=H * D,
        num_attention_heads=H,
        kv_lora_rank=5,
        qk_rope_head_dim=2,
        qk_nope_head_dim=D,
        v_head_dim=D,
    )
    layer = deepseek.DeepseekV3Attention(config, layer_idx=0)
    assert layer.kv_a_proj_with_mqa.weight.shape == (5 + 2, H * D)
    assert layer.kv_b_proj.weight.shape == (H * (D + D), 5)


def attncourse_window():
    assert window_mask(12, width=4)[5].nonzero().flatten().tolist() == [*range(1, 10)]


def rolling_window():
    x = torch.randn(12, 1)
    output, _ = rolling_attention(x, x, torch.eye(12), None, width=4)
    assert (output[5] > 0).nonzero().flatten().tolist() == [2, 3, 4, 5]


def longformer_window():
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = longformer.LongformerConfig(
        hidden_size=H * D, num_attention_heads=H, attention_window=[4]
    )
    layer, x = longformer.LongformerSelfAttention(config, 0).eval(), torch.randn(1, 16, H * D)
    nobody = torch.zeros(1, 16, dtype=torch.bool)

    def at_six(x):
        return layer(x, torch.zeros(1, 16), nobody, nobody, False)[0][:, 6]

    changed = torch.autograd.functional.jacobian(at_six, x).abs().sum((0, 1, 2, 4))
    assert (changed > 0).nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


def jax_window():
    jax = pytest.importorskip("jax")
    like, value = jax.numpy.zeros((1, 12, 1, 12)), jax.numpy.eye(12)[None, :, None]
    weights = back(jax.nn.dot_product_attention(like, like, value, local_window_size=4))
    assert weights[0, 5, 0].nonzero().flatten().tolist() == [*range(1, 10)]


def keras_window():
    layer = keras_on_jax().layers.MultiHeadAttention(num_heads=H, key_dim=D, sliding_window=4)
    x = torch.randn(1, 12, H * D, generator=torch.Generator().manual_seed(0)).numpy()
    for options, seen in (({}, range(2, 9)), ({"use_causal_mask": True}, range(2, 6))):
        weights = back(layer(x, x, return_attention_scores=True, **options)[1])
        assert (weights[0, 0, 5] > 0).nonzero().flatten().tolist() == [*seen]


def huggingface_window():
    masks = pytest.importorskip("transformers.masking_utils")
    visible = masks.sliding_window_causal_mask_function(4)(0, 0, torch.tensor(5), torch.arange(12))
    assert visible.nonzero().flatten().tolist() == [2, 3, 4, 5]


def attncourse_pictures():
    image = torch.arange(2 * 2 * 4.0).reshape(1, 2, 2, 4)  # b c y x
    assert patches(image, (2, 2))[0, 1].tolist() == [2, 3, 6, 7, 10, 11, 14, 15]


def torch_pictures():
    image = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    cut = patches(image, (2, 3))
    assert torch.equal(F.unfold(image, (2, 3), stride=(2, 3)).mT, cut)
    layer = nn.Conv2d(3, 5, (2, 3), (2, 3))
    by_window = layer(image).flatten(2).mT
    assert torch.allclose(by_window, F.linear(cut, layer.weight.flatten(1), layer.bias), atol=1e-5)


def vit_pictures():
    vit = pytest.importorskip("transformers.models.vit.modeling_vit")
    config = vit.ViTConfig(image_size=(4, 6), patch_size=(2, 3), hidden_size=8)
    embeddings = vit.ViTEmbeddings(config)
    assert embeddings.patch_embeddings.projection.stride == (2, 3)
    assert embeddings.position_embeddings.shape == (1, 1 + 4, 8)  # learned, one for the class token
    assert isinstance(embeddings.position_embeddings, nn.Parameter)


def detr_pictures():
    detr = pytest.importorskip("transformers.models.detr.modeling_detr")
    theirs = detr.DetrSinePositionEmbedding(8)(torch.Size((1, 1, 2, 3)), "cpu", torch.float32)
    ours = positions_2d(3, 4, 16).unflatten(0, (3, 4))[1:, 1:]
    assert torch.allclose(theirs[0].permute(1, 2, 0), ours, atol=1e-6)


def clip_pictures():
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    images, texts = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    scores = F.normalize(texts, dim=-1) @ F.normalize(images, dim=-1).T
    scale = torch.tensor(clip.CLIPConfig().logit_scale_init_value)
    expected = clip.image_text_contrastive_loss(scores * scale.exp())
    assert torch.allclose(contrastive_loss(images, texts, 1 / scale.exp()), expected, atol=1e-4)


def mllama_pictures():
    mllama = pytest.importorskip("transformers.models.mllama.modeling_mllama")
    config = mllama.MllamaTextConfig(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=2, intermediate_size=8
    )
    layer = mllama.MllamaCrossAttentionDecoderLayer(config, layer_idx=0)
    text, picture = torch.randn(2, 1, 3, 8, generator=torch.Generator().manual_seed(0))
    for gate in (layer.cross_attn_attn_gate, layer.cross_attn_mlp_gate):
        assert gate.shape == (1,) and gate == 0
    assert torch.equal(layer(text, picture, None, None, None), text)


KINDS = "mask|padding|causal|dead|heads|stack|shared|latent|positions|cache|window|pictures"
ROWS = {
    name: test
    for name, test in globals().items()
    if re.fullmatch(
        f"[a-z0-9]+_({KINDS})",
        name,
    )
    and test.__module__ == __name__
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("row", ROWS)
def test_the_row_is_true(row):
    ROWS[row]()


def test_every_row_of_the_page_is_tested_and_every_test_has_a_row():
    shown = re.findall(r"<!-- (\w+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(ROWS)

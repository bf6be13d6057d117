"""Chapter 13's reference code against Hugging Face's models, its own properties and bad input."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from tensors import (
    DEVICES,
    Call,
    assert_all_agree,
    assert_equal_to,
    assert_refused,
    filled,
    make_mask,
    randn,
    steadily,
)
from torch import nn

from attncourse.cross_attention import cross_attention
from attncourse.multihead import MultiHeadAttention
from attncourse.one_stack import BERT, GPT
from attncourse.pictures import (
    Flamingo,
    GatedLayer,
    PatchEmbedding,
    Pool,
    Reader,
    TwoTowers,
    contrastive_loss,
    gated_cross_attention,
    patches,
    positions_2d,
    read,
    standardized,
)
from attncourse.self_attention import sinusoidal_positions

# Pairwise different, so that no two axes can be mixed up unnoticed.
B, C, ROWS, COLUMNS, M, HEADS, VOCABULARY = 2, 3, 4, 5, 8, 2, 11
SIZE = 2, 3
N, P = ROWS * COLUMNS, C * SIZE[0] * SIZE[1]
SMALL = {"model_width": M, "num_heads": HEADS, "hidden_width": 7}


def picture(b=B, c=C, rows=ROWS, columns=COLUMNS, size=SIZE, seed=0):
    return randn(b, c, rows * size[0], columns * size[1], seed=seed).requires_grad_()


# --- Patches ---


def test_patches_agree_with_torchs_unfold():
    image = picture()
    expected = F.unfold(image, SIZE, stride=SIZE).mT
    assert_all_agree([expected], [patches(image, SIZE)], [image])


def test_a_linear_layer_on_patches_is_vits_convolution():
    vit = pytest.importorskip("transformers.models.vit.modeling_vit")
    size = ROWS * SIZE[0], COLUMNS * SIZE[1]
    config = vit.ViTConfig(image_size=size, patch_size=SIZE, num_channels=C, hidden_size=M)
    theirs, image = filled(vit.ViTPatchEmbeddings(config)), picture()
    weight, bias = theirs.projection.weight, theirs.projection.bias
    actual = F.linear(patches(image, SIZE), weight.flatten(1), bias)
    assert_all_agree([theirs(image)], [actual], [image, weight, bias])


@steadily
@given(*(st.integers(1, 4) for _ in range(6)))
def test_patches_put_back_are_the_picture(b, c, rows, columns, height, width):
    image = picture(b, c, rows, columns, (height, width))
    cut = patches(image, (height, width))
    assert cut.shape == (b, rows * columns, c * height * width)
    axes = "b (i j) (c y x) -> b c (i y) (j x)"
    assert torch.equal(rearrange(cut, axes, i=rows, c=c, y=height), image)


def test_a_patch_is_what_a_slice_holds():
    image = picture()
    part = image[:, :, 2:4, 9:12]  # row 1, column 3
    assert torch.equal(patches(image, SIZE)[:, 1 * COLUMNS + 3], part.flatten(1))


# --- Positions ---


def test_positions_agree_with_detrs_counted_from_one():
    detr = pytest.importorskip("transformers.models.detr.modeling_detr")
    theirs = detr.DetrSinePositionEmbedding(M // 2)
    shape = torch.Size((1, 1, ROWS, COLUMNS))
    expected = theirs(shape, "cpu", torch.float64)[0].permute(1, 2, 0)  # i j m
    ours = positions_2d(ROWS + 1, COLUMNS + 1, M).unflatten(0, (ROWS + 1, COLUMNS + 1))
    assert_equal_to(expected, ours[1:, 1:].double(), atol=1e-6)  # made in float32


@steadily
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9))
def test_each_half_tells_its_own_number(rows, columns, half):
    table = positions_2d(rows, columns, 2 * half)
    assert table.shape == (rows * columns, 2 * half)
    for n, vector in enumerate(table):
        row, column = divmod(n, columns)
        assert torch.equal(vector[:half], sinusoidal_positions(rows, half)[row])
        assert torch.equal(vector[half:], sinusoidal_positions(columns, half)[column])


# --- The reader ---


def a_reader(seed=0, **changes):
    options = {"size": SIZE, "channels": C, "num_layers": 2} | SMALL | changes
    return filled(Reader(VOCABULARY, **options), seed).eval()


def test_the_encoder_is_vits():
    vit = pytest.importorskip("transformers.models.vit.modeling_vit")
    reader, image = a_reader(), picture()
    config = vit.ViTConfig(
        hidden_size=M,
        num_attention_heads=HEADS,
        intermediate_size=7,
        hidden_act="relu",  # as in chapter 7; ViT itself has GELU
        layer_norm_eps=1e-5,
        attn_implementation="sdpa",  # the other one shares out in float32
    )
    x = reader.source_embedding(image).detach().requires_grad_()
    for ours in reader.encoder:
        theirs = vit.ViTLayer(config).double().eval()
        attention, network = ours.self_attention, (ours.linear1, ours.linear2)
        weights = dict(zip(dict(theirs.mlp.named_parameters()), _parameters(network), strict=True))
        parameters = {f"mlp.{name}": value for name, value in weights.items()}
        for here, there in (
            ("q_proj",) * 2,
            ("k_proj",) * 2,
            ("v_proj",) * 2,
            ("out_proj", "o_proj"),
        ):
            for name, value in getattr(attention, here).named_parameters():
                parameters[f"attention.{there}.{name}"] = value
        for here, there in ((ours.norm1, "layernorm_before"), (ours.norm2, "layernorm_after")):
            parameters |= {f"{there}.{name}": value for name, value in here.named_parameters()}
        assert parameters.keys() == dict(theirs.named_parameters()).keys()
        expected = torch.func.functional_call(theirs, parameters, (x,))
        assert_all_agree([expected], [ours(x)], [x, *ours.parameters()])
        x = ours(x).detach().requires_grad_()
    memory, mask = reader.encode(image)
    assert_equal_to(reader.encoder_norm(x), memory)
    assert mask is None


def _parameters(layers):
    return [parameter for layer in layers for parameter in layer.parameters()]


def test_without_positions_a_picture_is_a_bag_of_patches():
    reader, image = a_reader(), picture()
    reader.source_embedding.positions = lambda rows, columns, m: torch.zeros(rows * columns, m)
    turned = torch.roll(image, (SIZE[0], 2 * SIZE[1]), (2, 3))  # whole patches
    words = torch.tensor([[1, 4, 5]] * B)
    assert_equal_to(reader(image, words), reader(turned, words))
    reader.source_embedding.positions = positions_2d
    assert (reader(image, words) - reader(turned, words)).abs().max() > 1e-3


@steadily
@given(st.floats(0.1, 50), st.floats(-20, 20), st.integers(0, 9))
def test_light_and_contrast_do_not_matter(contrast, light, seed):
    image = picture(seed=seed)
    assert_equal_to(standardized(image), standardized(contrast * image + light))


def test_a_picture_of_one_shade_stays_finite():
    assert (standardized(torch.ones(B, C, 4, 4)) == 0).all()


def greedily(model, image, bos, eos, max_length):
    """Row by row, looking again for every word."""
    rows = []
    for one in image.split(1):
        words = [bos]
        while len(words) <= max_length and eos not in words[1:]:
            words.append(model(one, torch.tensor([words]))[0, -1].argmax().item())
        rows.append(words[1:])
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_reading_is_greedy_decoding_row_by_row(seed):
    model, image = a_reader(seed), picture(5, seed=seed)
    model.output.bias.data[2] += 1.5  # so that some rows end
    written = read(model, image, bos=1, eos=2, max_length=6)
    for row, expected in zip(written.tolist(), greedily(model, image, 1, 2, 6), strict=True):
        assert row[: len(expected)] == expected and set(row[len(expected) :]) <= {2}


def test_the_picture_is_looked_at_once_and_nothing_is_learned():
    model, looks = a_reader(), []
    model.source_embedding.register_forward_hook(lambda *_: looks.append(1))
    written = read(model, picture(), bos=1, eos=VOCABULARY, max_length=5)
    assert looks == [1] and written.shape == (B, 5) and not written.requires_grad


# --- Gated cross-attention ---


def gated_inputs(q=4, k=6, gate=0.7):
    text, memory = randn(B, q, M, seed=1).requires_grad_(), randn(B, k, M, seed=2).requires_grad_()
    return text, memory, torch.tensor(gate, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("gate", [0.0, 0.7, -1.3])
def test_a_gated_layer_agrees_with_mllamas(gate):
    """Their layer, with our norms, attention and network as its parts."""
    mllama = pytest.importorskip("transformers.models.mllama.modeling_mllama")
    ours, (text, memory, _) = filled(GatedLayer(M, HEADS, 7)), gated_inputs()
    theirs = object.__new__(mllama.MllamaCrossAttentionDecoderLayer)
    nn.Module.__init__(theirs)
    ours.attention_gate.data, ours.network_gate.data = torch.tensor([[gate], [gate / 2]]).double()

    class Attention(nn.Module):
        def forward(self, hidden_states, cross_attention_states, **_):
            return ours.cross_attention(
                hidden_states, cross_attention_states, cross_attention_states
            )

    theirs.cross_attn, theirs.input_layernorm = Attention(), ours.norm1
    theirs.post_attention_layernorm = ours.norm2
    theirs.mlp = nn.Sequential(ours.linear1, nn.GELU(), ours.linear2)
    theirs.cross_attn_attn_gate, theirs.cross_attn_mlp_gate = ours.attention_gate, ours.network_gate
    expected = mllama.MllamaCrossAttentionDecoderLayer.forward(
        theirs, text, memory, None, None, None
    )
    inputs = [text, memory, ours.attention_gate, ours.network_gate, ours.linear1.weight]
    assert_all_agree([expected], [ours(text, memory)], inputs)


def test_a_gate_passes_tanh_of_what_plain_cross_attention_finds():
    attention, (text, memory, gate) = filled(MultiHeadAttention(M, HEADS)), gated_inputs()
    mask = make_mask(B, 4, 6)
    found, weights = cross_attention(text, memory, attention, mask)
    actual = gated_cross_attention(text, memory, attention, gate, mask)
    expected = text + torch.tanh(gate) * found, weights
    assert_all_agree(expected, actual, [text, memory, gate, *attention.parameters()])


def test_a_closed_gate_changes_nothing_and_still_learns():
    attention, (text, memory, gate) = filled(MultiHeadAttention(M, HEADS)), gated_inputs(gate=0.0)
    output, _ = gated_cross_attention(text, memory, attention, gate)
    assert torch.equal(output, text)
    by_gate, by_memory = torch.autograd.grad(output.square().sum(), [gate, memory])
    assert by_gate != 0 and (by_memory == 0).all()


def a_flamingo():
    model = GPT(VOCABULARY, num_layers=3, **SMALL)
    return Flamingo(filled(model), a_reader(), HEADS, 7).double().eval()


def test_a_flamingo_begins_as_its_language_model_bit_for_bit():
    flamingo, image = a_flamingo(), picture()
    words = torch.arange(B * 6).reshape(B, 6) % VOCABULARY
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        flamingo = flamingo.to(dtype)
        assert torch.equal(flamingo(image.to(dtype), words), flamingo.language_model(words))


def test_only_the_gated_layers_of_a_flamingo_learn():
    flamingo, image = a_flamingo(), picture()
    before = {name: value.clone() for name, value in flamingo.state_dict().items()}
    words = torch.arange(B * 6).reshape(B, 6) % VOCABULARY
    optimizer = torch.optim.Adam(flamingo.parameters(), 0.05)
    for _ in range(3):
        loss = F.cross_entropy(flamingo(image, words).flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = {name for name, value in flamingo.state_dict().items() if (value != before[name]).any()}
    # A key's bias adds the same to all scores of a row, so nothing moves it.
    learned = {name for name in before if name.startswith("gated") and "k_proj.bias" not in name}
    assert {name for name in moved if "k_proj.bias" not in name} == learned
    assert (flamingo(image, words) - flamingo.language_model(words)).abs().max() > 1e-3
    assert read(flamingo, image, max_length=4).shape[0] == B


def test_a_flamingos_words_see_the_picture_and_no_later_word():
    flamingo, image = a_flamingo(), picture()
    for layer in flamingo.gated:
        layer.attention_gate.data.fill_(1.0)
    words = torch.arange(B * 5).reshape(B, 5) % VOCABULARY
    logits = flamingo(image, words)
    later = words.clone()
    later[:, 3] = (later[:, 3] + 1) % VOCABULARY
    changed = (flamingo(image, later) - logits).abs().amax((0, 2)) > 1e-12
    assert changed.tolist() == [False] * 3 + [True] * 2
    assert ((flamingo(picture(seed=5), words) - logits).abs().amax((0, 2)) > 1e-6).all()


# --- Pictures and names ---


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_the_loss_agrees_with_clips(temperature):
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    images, texts = (randn(5, M, seed=i).requires_grad_() for i in (3, 4))
    heat = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    directions = [x / x.norm(dim=-1, keepdim=True) for x in (images, texts)]
    expected = clip.image_text_contrastive_loss(directions[1] @ directions[0].T / heat)
    actual = contrastive_loss(images, texts, heat)
    assert_all_agree([expected], [actual], [images, texts, heat])
    assert torch.equal(actual, contrastive_loss(images, texts, temperature))


def test_the_loss_is_what_a_whole_clip_model_reports():
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    config = clip.CLIPConfig(
        text_config={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "vocab_size": 99, "eos_token_id": 2},
        vision_config={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        projection_dim=6,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = clip.CLIPModel(config).double().eval()
    ids = torch.tensor([[5, 6, 2], [7, 2, 2], [8, 9, 2]])
    with torch.no_grad():
        out = model(ids, randn(3, 3, 8, 8), attention_mask=torch.ones_like(ids), return_loss=True)
        ours = contrastive_loss(out.image_embeds, out.text_embeds, (-model.logit_scale).exp())
    assert_equal_to(out.loss, ours)


@steadily
@given(st.integers(1, 6), st.integers(1, 5), st.floats(0.05, 3), st.integers(0, 9))
def test_lengths_and_order_and_sides_do_not_matter(b, m, temperature, seed):
    images, texts = randn(b, m, seed=seed), randn(b, m, seed=seed + 50)
    loss = contrastive_loss(images, texts, temperature)
    assert loss >= 0
    order = torch.randperm(b, generator=torch.Generator().manual_seed(seed))
    assert_equal_to(loss, contrastive_loss(images[order], texts[order], temperature))
    assert_equal_to(loss, contrastive_loss(texts, images, temperature))
    assert_equal_to(loss, contrastive_loss(7 * images, texts / 9, temperature))


def test_vectors_that_tell_nothing_apart_lose_log_b_and_perfect_ones_nothing():
    same = randn(1, M).expand(6, M)
    assert_equal_to(torch.tensor(6.0).double().log(), contrastive_loss(same, same, 0.3))
    assert contrastive_loss(torch.eye(6), torch.eye(6), 0.01) < 1e-9


def test_pooling_leaves_padding_out_and_takes_any_number():
    pool, x = filled(Pool(M, HEADS)), randn(B, 5, M).requires_grad_()
    mask = torch.tensor([[[True] * 5], [[True, True, False, False, False]]])
    pooled = pool(x, mask)
    assert pooled.shape == (B, M)
    assert_equal_to(pool(x[1:, :2]), pooled[1:])


def test_two_towers_meet_in_the_loss_of_their_vectors():
    towers = two_towers()
    towers.log_temperature.data = torch.tensor(0.2).double().log()
    image, text = picture(), torch.tensor([[3, 4, 0], [5, 6, 7]])
    vectors = towers.of_images(image), towers.of_texts(text)
    assert vectors[0].shape == vectors[1].shape == (B, M)
    assert_equal_to(contrastive_loss(*vectors, 0.2), towers(image, text))
    longer = F.pad(text, (0, 2))
    assert_equal_to(vectors[1], towers.of_texts(longer))
    towers(image, text).backward()
    assert towers.log_temperature.grad != 0


# --- Precise, compiled, typed ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_mechanisms_keep_dtype_and_device_and_come_close_to_float64(dtype, device):
    layer, embedding = filled(GatedLayer(M, HEADS, 7)), filled(PatchEmbedding(SIZE, M, C))
    text, memory, _ = gated_inputs()
    image, vectors = picture(), (randn(4, M, seed=3), randn(4, M, seed=4))
    runs = {
        patches: lambda x: patches(x(image), SIZE),
        embedding: lambda x: embedding.to(x(image))(x(image)),
        layer: lambda x: layer.to(x(text))(x(text), x(memory)),
        contrastive_loss: lambda x: contrastive_loss(*map(x, vectors), 0.5),
    }
    for run in runs.values():
        got = run(lambda tensor: tensor.detach().to(device, dtype))
        assert got.dtype == dtype and got.device.type == device
        # The oracle sees the already rounded numbers: only the arithmetic is on trial.
        expected = run(lambda tensor: tensor.detach().to(dtype).double())
        assert_equal_to(expected, got.cpu().double(), atol=100 * torch.finfo(dtype).eps)


# --- Bad input ---

BAD_PICTURES = {
    "image must have axes (b c y x); got shape (3 8 15)": (randn(C, 8, 15), SIZE),
    "patches of 3 × 3 pixels do not fill a picture of y = 8 and x = 15": (
        randn(1, C, 8, 15),
        (3, 3),
    ),
    "patches of 2 × 4 pixels do not fill ... image has shape (1 3 8 15)": (
        randn(1, C, 8, 15),
        (2, 4),
    ),
    "height must be a whole number of at least 1; got 0": (randn(1, C, 8, 15), (0, 3)),
    "width must be a whole number of at least 1; got 2.0": (randn(1, C, 8, 15), (2, 2.0)),
}


@pytest.mark.parametrize(("words", "given"), BAD_PICTURES.items(), ids=BAD_PICTURES)
def test_pictures_that_cannot_be_cut_are_refused(words, given):
    assert_refused(ValueError, words, patches, image=given[0], size=given[1])


def test_what_is_no_picture_or_no_size_is_refused():
    words = "image must hold floating-point numbers; got torch.uint8"
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    assert_refused(TypeError, words, patches, image=image, size=(2, 2))
    words = "size must be (height, width) of a patch, in pixels; got 16"
    assert_refused(TypeError, words, patches, image=picture(), size=16)
    words = "width must be even, half for rows and half for columns; got 7"
    assert_refused(ValueError, words, positions_2d, rows=2, columns=3, width=7)
    words = "rows must be a whole number of at least 1; got 0"
    assert_refused(ValueError, words, positions_2d, rows=0, columns=3, width=8)
    words = "image must have axes (b c y x)"
    assert_refused(ValueError, words, read, model=a_reader(), image=randn(2, 3))
    assert_refused(ValueError, words, standardized, image=randn(8, 15))


@pytest.mark.parametrize(
    "model", [PatchEmbedding(SIZE, M, C), Reader(VOCABULARY, SIZE, C, **SMALL)]
)
def test_pictures_of_other_colors_are_refused(model):
    look = getattr(model, "encode", model)
    words = "image (2 1 8 15) has axes (b c y x), so c = 1; but the layer has c = 3"
    assert_refused(ValueError, words, look, image=picture(c=1))


def test_gates_that_are_not_one_number_are_refused():
    text, memory, _ = gated_inputs()
    given = {"text": text, "memory": memory, "attention": filled(MultiHeadAttention(M, HEADS))}
    words = "gate must be one number; got shape (8)"
    assert_refused(ValueError, words, gated_cross_attention, gate=torch.zeros(M), **given)
    words = "gate must be a torch.Tensor; got float"
    assert_refused(TypeError, words, gated_cross_attention, gate=0.0, **given)
    given["memory"] = randn(B, 6, M + 1)
    words = "memory (2 6 9) has axes (b k m), so m = 9; but target has m = 8"
    assert_refused(ValueError, words, gated_cross_attention, gate=torch.zeros(()), **given)


BAD_PAIRS = {
    "texts (3 4) has axes (b m), so b = 3; but images has b = 2": (randn(3, 4), 0.1),
    "texts (2 5) has axes (b m), so m = 5; but images has m = 4": (randn(2, 5), 0.1),
    "temperature must be above 0; got 0": (randn(2, 4), 0),
    "temperature must be above 0; got -0.5": (randn(2, 4), torch.tensor(-0.5)),
    "temperature must be one number; got shape (2)": (randn(2, 4), torch.ones(2)),
}


@pytest.mark.parametrize(("words", "given"), BAD_PAIRS.items(), ids=BAD_PAIRS)
def test_pairs_that_do_not_fit_are_refused(words, given):
    texts, temperature = given
    arguments = {"images": randn(2, 4), "texts": texts, "temperature": temperature}
    assert_refused(ValueError, words, contrastive_loss, **arguments)
    words = "temperature must be a number; got str"
    arguments |= {"texts": randn(2, 4), "temperature": "warm"}
    assert_refused(TypeError, words, contrastive_loss, **arguments)


def test_words_that_the_language_model_does_not_know_are_refused():
    flamingo, unknown = a_flamingo(), torch.tensor([[3, VOCABULARY]] * B)
    words = "words holds ids from 3 to 11; known are 0 to 10"
    assert_refused(ValueError, words, lambda: flamingo(picture(), unknown))


# --- What test_contract.py holds every mechanism to ---


def image():
    return picture().detach()


def gated():
    return [x.detach() for x in gated_inputs()]


def two_towers():
    return filled(TwoTowers(a_reader(), BERT(VOCABULARY, num_layers=1, **SMALL), M, HEADS))


def small_flamingo():
    return Flamingo(
        filled(GPT(VOCABULARY, num_layers=1, **SMALL)), a_reader(num_layers=1), HEADS, 7
    ).double()


SEEN = randn(B, N, M, seed=3)
ROW = torch.ones(B, 4, dtype=torch.long)
CALLS = [
    Call(patches, lambda: [image(), SIZE], (B, N, P)),
    Call(positions_2d, lambda: [ROWS, COLUMNS, M], (N, M)),
    Call(standardized, lambda: [image()], image().shape),
    Call(PatchEmbedding.forward, lambda: [a_reader().source_embedding, image()], (B, N, M)),
    Call(Reader.encode, lambda: [a_reader(), image()], (B, N, M)),
    Call(read, lambda: [a_reader(), image(), 1, 2, 3], None),
    Call(
        gated_cross_attention,
        lambda: [*gated()[:2], filled(MultiHeadAttention(M, 2)), gated()[2]],
        None,
    ),
    Call(
        GatedLayer.forward,
        lambda: [a_flamingo().gated[0], *gated()[:2]],
        (B, 4, M),
    ),
    Call(Flamingo.encode, lambda: [a_flamingo(), image()], (B, N, M)),
    Call(Flamingo.decode, lambda: [a_flamingo(), ROW, SEEN], (B, 4, VOCABULARY)),
    Call(Flamingo.forward, lambda: [a_flamingo(), image(), ROW], (B, 4, VOCABULARY)),
    Call(
        Flamingo.forward,
        lambda: [small_flamingo(), image(), ROW],
        (B, 4, VOCABULARY),
        "one layer",
        graph="eager",
    ),
    *(
        Call(
            contrastive_loss,
            lambda temperature=temperature: [randn(4, M), randn(4, M, seed=1), temperature],
            (),
            name,
            graph="eager",
        )
        for name, temperature in {"number": 0.3, "tensor": torch.tensor(0.3).double()}.items()
    ),
    Call(
        Pool.forward, lambda: [filled(Pool(M, HEADS)), randn(B, 4, M), make_mask(B, 1, 4)], (B, M)
    ),
    Call(TwoTowers.of_images, lambda: [two_towers(), image()], None),
    Call(TwoTowers.of_texts, lambda: [two_towers(), ROW], None),
    Call(TwoTowers.forward, lambda: [two_towers(), image(), ROW], None),
]

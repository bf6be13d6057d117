"""Right answers to chapter 12's tasks, in styles the course does not use."""

import copy
import functools

import einops
import numpy as np
import torch
from torch import nn

# --- ablated


def by_hook(model, layer, head, value):
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads

    def hook(module, inputs):
        (merged,) = inputs
        merged = merged.clone()
        merged[..., head * d : (head + 1) * d] = value
        return (merged,)

    attention.out_proj.register_forward_pre_hook(hook)
    return model


class Muted(nn.Module):
    """A layer around the last projection."""

    def __init__(self, projection, features, value):
        super().__init__()
        self.projection, self.features, self.value = projection, features, value

    def forward(self, merged):
        left, right = merged[..., : self.features.start], merged[..., self.features.stop :]
        value = torch.as_tensor(self.value, dtype=merged.dtype)
        width = self.features.stop - self.features.start
        value = value.expand(*merged.shape[:-1], width)
        return self.projection(torch.cat([left, value, right], -1))


def by_wrapping_the_projection(model, layer, head, value):
    model = copy.deepcopy(model)
    attention = dict(model.named_modules())[layer]
    d = attention.q_proj.out_features // attention.num_heads
    attention.out_proj = Muted(attention.out_proj, slice(head * d, head * d + d), value)
    return model


def by_another_attend(model, layer, head, value):
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    attend = attention.attend

    def with_one_replaced(query, key, value_, mask=None):
        heads, weights = attend(query, key, value_, mask)
        keep = torch.arange(heads.shape[1]) != head
        new = torch.as_tensor(value, dtype=heads.dtype).expand_as(heads[:, 0])[:, None]
        return torch.where(keep[:, None, None], heads, new), weights

    attention.attend = with_one_replaced
    return model


def by_a_hook_that_comes_and_goes(model, layer, head, value):
    """No copy: a function that changes the model for one call."""

    class Temporarily(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = model

        def get_submodule(self, name):
            return self.inside.get_submodule(name)

        def forward(self, text):
            attention = model.get_submodule(layer)

            def hook(module, inputs):
                heads = einops.rearrange(inputs[0], "b n (h d) -> h b n d", h=attention.num_heads)
                heads = [value + 0 * x if i == head else x for i, x in enumerate(heads)]
                return einops.rearrange(heads, "h b n d -> b n (h d)")

            handle = attention.out_proj.register_forward_pre_hook(hook)
            try:
                return self.inside(text)
            finally:
                handle.remove()

    return Temporarily()


def by_subtracting(model, layer, head, value):
    """What the head wrote is taken out of the output, and the value put in."""
    other = copy.deepcopy(model)
    last, heads = other.get_submodule(layer + ".out_proj"), other.get_submodule(layer).num_heads
    mine = torch.arange(last.in_features).unflatten(0, (heads, -1))[head]
    said = []
    last.register_forward_pre_hook(lambda _, given: said.append(given[0][..., mine]))
    last.register_forward_hook(
        lambda _, given, written: written + (value - said.pop()) @ last.weight[:, mine].T
    )
    return other


def by_another_class(model, layer, head, value):
    """The projection becomes one of a class that replaces a part of what it gets."""
    model = copy.deepcopy(model)
    attention = functools.reduce(
        lambda part, name: part[int(name)] if name.isdigit() else getattr(part, name),
        layer.split("."),
        model,
    )
    projection = attention.out_proj
    before, h = type(projection), attention.num_heads

    def forward(self, merged):
        heads = list(merged.chunk(h, dim=-1))
        heads[head] = heads[head] * 0 + value
        return before.forward(self, torch.cat(heads, -1))

    projection.__class__ = type("Muted", (before,), {"forward": forward})
    return model


ABLATED = [
    by_hook,
    by_wrapping_the_projection,
    by_another_attend,
    by_a_hook_that_comes_and_goes,
    by_subtracting,
    by_another_class,
]

# --- induction_score


def score_by_loop(weights, period):
    n = weights.shape[-1]
    return sum(weights[..., i, i - period + 1] for i in range(period, n)) / (n - period)


def score_by_diagonal(weights, period):
    return torch.diagonal(weights, 1 - period, -2, -1)[..., 1:].mean(dim=-1)


def score_by_index(weights, period):
    rows = torch.arange(period, weights.shape[-1])
    return weights[..., rows, rows - period + 1].mean(-1)


def score_by_gather(weights, period):
    rows = weights[..., period:, :]
    columns = torch.arange(1, rows.shape[-2] + 1)[:, None].expand(*rows.shape[:-1], 1)
    return rows.gather(-1, columns).squeeze(-1).sum(-1) / rows.shape[-2]


def score_by_a_mask(weights, period):
    n = weights.size(-1)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    there = ((i - j) == period - 1) & (i >= period)
    return (weights * there).sum((-2, -1)) / there.sum()


def score_by_smaller_table(weights, period):
    """Without the first rows and the first column, it is the main diagonal."""
    inner = weights[..., period:, 1:]
    k = min(inner.shape[-2:])
    return torch.einsum("...ii->...i", inner[..., :k, :k]).mean(-1)


def score_by_stack(weights, period):
    rows = weights.unbind(-2)
    return torch.stack([rows[i][..., i + 1 - period] for i in range(period, len(rows))]).mean(0)


def score_by_unfolding(weights, period):
    """Each row, moved so that what it should look at stands first."""
    n = weights.shape[-1]
    found = 0
    for place in range(period, n):
        found = found + torch.roll(weights[..., place, :], period - 1 - place, -1)[..., 0]
    return found / (n - period)


SCORE = [
    score_by_loop,
    score_by_diagonal,
    score_by_index,
    score_by_gather,
    score_by_a_mask,
    score_by_smaller_table,
    score_by_stack,
    score_by_unfolding,
]

# --- copying_score


def copying(W_OV, W_E, W_U):
    eigenvalues = torch.linalg.eigvals(W_E @ W_OV @ W_U)
    return float(eigenvalues.real.sum() / eigenvalues.abs().sum())


def copying_in_the_small(W_OV, W_E, W_U):
    values = torch.linalg.eigvals(W_OV.double() @ W_U.double() @ W_E.double())
    return (sum(values) / sum(abs(v) for v in values)).real.item()


def copying_by_the_trace(W_OV, W_E, W_U):
    table = W_E.double() @ W_OV.double() @ W_U.double()
    return (table.trace() / torch.linalg.eigvals(table).abs().sum()).item()


def copying_by_numpy(W_OV, W_E, W_U):
    values = np.linalg.eigvals(W_E.numpy() @ W_OV.numpy() @ W_U.numpy())
    return float(np.real(values).sum() / np.abs(values).sum())


def copying_with_vectors(W_OV, W_E, W_U):
    values, _ = torch.linalg.eig((W_E.double() @ W_OV.double()) @ W_U.double())
    return values.sum().real.div(values.abs().sum()).item()


def copying_by_parts(W_OV, W_E, W_U):
    values = torch.view_as_real(torch.linalg.eigvals(W_U.double() @ W_E.double() @ W_OV.double()))
    real, imaginary = values.unbind(-1)
    return (real.sum() / torch.hypot(real, imaginary).sum()).item()


def copying_by_einsum(W_OV, W_E, W_U):
    table = torch.einsum("vm,mn,nw->vw", W_E.double(), W_OV.double(), W_U.double())
    values = torch.linalg.eigvals(table).tolist()
    return sum(v.real for v in values) / sum(map(abs, values))


COPYING = [
    copying,
    copying_in_the_small,
    copying_by_the_trace,
    copying_by_numpy,
    copying_with_vectors,
    copying_by_parts,
    copying_by_einsum,
]

# --- rollout


def rollout(weights):
    arrived = None
    for layer in weights:
        kept = 0.5 * layer.mean(dim=1) + 0.5 * torch.eye(layer.shape[-1], dtype=layer.dtype)
        arrived = kept if arrived is None else kept @ arrived
    return arrived


def rollout_from_the_identity(weights):
    arrived = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    for layer in weights:
        arrived = layer.mean(1) @ arrived / 2 + arrived / 2
    return arrived


def rollout_normalized(weights):
    """As in the paper: add the identity, and divide by the row's sum."""
    maps = []
    for layer in weights:
        table = layer.sum(1) / layer.size(1) + torch.eye(layer.size(-1)).to(layer)
        maps.append(table / table.sum(-1, keepdim=True))
    return functools.reduce(lambda below, above: above.matmul(below), maps)


def rollout_from_the_top(weights):
    """From the last layer down."""
    eye = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    maps = [(einops.reduce(layer, "b h q k -> b q k", "mean") + eye) / 2 for layer in weights]
    arrived = maps.pop()
    while maps:
        arrived = torch.bmm(arrived, maps.pop())
    return arrived


def rollout_recursive(weights):
    *below, last = weights
    kept = last.mean(1).add(torch.diag_embed(torch.ones_like(last[:, 0, 0]))).mul(0.5)
    return torch.matmul(kept, rollout_recursive(below)) if below else kept


def rollout_by_multi_dot(weights):
    eye = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    texts = zip(*(((layer.mean(1) + eye) / 2).unbind(0) for layer in weights), strict=True)
    rows = [torch.linalg.multi_dot(t[::-1]) if len(t) > 1 else t[0] for t in map(list, texts)]
    return torch.stack(rows)


def rollout_stacked(weights):
    stacked = torch.stack(tuple(weights)).mean(2)  # l b n n
    eye = torch.eye(stacked.shape[-1], dtype=stacked.dtype).expand_as(stacked)
    stacked = torch.lerp(eye, stacked, 0.5)
    arrived = stacked[0]
    for i in range(1, len(stacked)):
        arrived = stacked[i] @ arrived
    return arrived


ROLLOUT = [
    rollout,
    rollout_from_the_identity,
    rollout_normalized,
    rollout_from_the_top,
    rollout_recursive,
    rollout_by_multi_dot,
    rollout_stacked,
]

# --- patched


def patched_in_two_runs(model, clean, corrupted, place):
    layer, head, position = place
    projection = model.get_submodule(layer).out_proj
    d = projection.in_features // model.get_submodule(layer).num_heads
    features, heard = slice(head * d, head * d + d), {}
    handle = projection.register_forward_pre_hook(lambda _, inputs: heard.update(x=inputs[0]))
    model(clean)
    handle.remove()

    def hook(_, inputs):
        merged = inputs[0].clone()
        merged[:, position, features] = heard["x"][:, position, features]
        return (merged,)

    handle = projection.register_forward_pre_hook(hook)
    try:
        return model(corrupted)
    finally:
        handle.remove()


def patched_in_one_run(model, clean, corrupted, place):
    """Both texts in one batch: the first half is copied into the second."""
    layer, head, position = place
    model = copy.deepcopy(model)
    attention, b = model.get_submodule(layer), len(clean)

    def hook(_, inputs):
        heads = list(inputs[0].chunk(attention.num_heads, -1))
        mixed = heads[head].clone()
        mixed[b:, position] = mixed[:b, position]
        heads[head] = mixed
        return torch.cat(heads, -1)

    attention.out_proj.register_forward_pre_hook(hook)
    return model(torch.cat([clean, corrupted]))[b:]


def patched_by_attend(model, clean, corrupted, place):
    layer, head, position = place
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    attend, heard = attention.attend, []

    def listening(query, key, value, mask=None):
        output, weights = attend(query, key, value, mask)
        heard.append(output.clone())
        return output, weights

    def speaking(query, key, value, mask=None):
        output, weights = attend(query, key, value, mask)
        there = torch.zeros_like(output[:1, :, :, :1], dtype=torch.bool)
        there[:, head, position] = True
        return torch.where(there, heard[0], output), weights

    attention.attend = listening
    with torch.no_grad():
        model(clean)
    attention.attend = speaking
    return model(corrupted)


def patched_by_ablation(model, clean, corrupted, place):
    """With task 1: the head's own words in the second run, with one place exchanged."""
    layer, head, position = place
    said = []
    attention = model.get_submodule(layer)
    handle = attention.out_proj.register_forward_pre_hook(
        lambda _, inputs: said.append(
            inputs[0].unflatten(-1, (attention.num_heads, -1))[:, :, head]
        )
    )
    for text in (clean, corrupted):
        model(text)
    handle.remove()
    value = said[1].clone()
    value[:, position] = said[0][:, position]
    return by_hook(model, layer, head, value)(corrupted)


def patched_by_adding(model, clean, corrupted, place):
    """What the head writes into the sum of the layer, exchanged there."""
    layer, head, position = place
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads
    columns = slice(head * d, (head + 1) * d)
    inputs_seen = []
    attention.out_proj.register_forward_pre_hook(lambda _, inputs: inputs_seen.append(inputs[0]))
    model(clean)

    def hook(module, inputs, output):
        before, now = inputs_seen[0], inputs_seen[-1]
        gap = (before - now)[:, position, columns] @ module.weight[:, columns].T
        output = output.clone()
        output[:, position] += gap
        return output

    attention.out_proj.register_forward_hook(hook)
    return model(corrupted)


def patched_text_by_text(model, clean, corrupted, place):
    pairs = zip(clean.split(1), corrupted.split(1), strict=True)
    rows = [patched_in_two_runs(model, one, other, place) for one, other in pairs]
    return torch.cat(rows)


PATCHED = [
    patched_in_two_runs,
    patched_in_one_run,
    patched_by_attend,
    patched_by_ablation,
    patched_by_adding,
    patched_text_by_text,
]

CORRECT = {
    "ablated": ABLATED,
    "induction_score": SCORE,
    "copying_score": COPYING,
    "rollout": ROLLOUT,
    "patched": PATCHED,
}

"""How sharp is attention? A task of somebody else's, in a package of its own."""

import torch

from attncourse.author import task


@task(
    inputs=[
        {"weights": torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])},
        {"weights": torch.tensor([0.9, 0.1])},
    ],
    hints=("What is 0 · log 0?", "torch.special knows it.", "entr of each weight, then the sum."),
)
def entropy(weights):
    return torch.special.entr(weights).sum(-1)


@entropy.fault("E-NAN", "0 · log 0 is 0.", "log 0 is minus infinity, and 0 times that is NaN.")
def _(weights):
    return -(weights * weights.log()).sum(-1)


@entropy.fault("E-BITS", "Entropy is measured in bits.", "Here in nats, as losses are.")
def _(weights):
    return torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))

"""What wrong answers to several tasks of lab 1 share."""

import torch


def own(seed):
    return torch.Generator().manual_seed(seed)

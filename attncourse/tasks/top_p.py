"""Top-p: its steps, and their faults."""

import torch

from attncourse.checks.task import Task


class Nucleus:
    @staticmethod
    def sort(p):
        return p.sort(dim=-1, descending=True)

    @staticmethod
    def stays(likely, top_p):
        return likely.cumsum(-1) - likely < top_p

    @staticmethod
    def back(keep, order):
        return torch.zeros_like(keep).scatter(-1, order, keep)


def moved_left(keep):
    """Each word is judged by the sum that ends with the next; the last by its own."""
    return torch.cat([keep[..., 1:], keep[..., -1:]], -1)


def of_top_p(task: Task, **about) -> None:
    """Faults of `sort` (p -> likely, order), `stays` (likely, top_p -> keep) and `back`.

    Args:
        about: of each fault, such as the section to read again.
    """
    task.fault(
        "P-TOP-P-WITHOUT-THE-LAST",
        **about,
        stays=(
            lambda likely, top_p: likely.cumsum(-1) <= top_p,
            lambda likely, top_p: (
                (likely.cumsum(-1) <= top_p) | (torch.arange(likely.shape[-1]) == 0)
            ),
        ),
    )
    task.fault(
        "P-TOP-P-MOVED-LEFT",
        **about,
        stays=(
            lambda likely, top_p: moved_left(likely.cumsum(-1) <= top_p),
            lambda likely, top_p: (
                moved_left(likely.cumsum(-1) <= top_p) | (torch.arange(likely.shape[-1]) == 0)
            ),
        ),
    )
    task.fault(
        "P-TOP-P-THRESHOLD",
        **about,
        stays=(
            lambda likely, top_p: likely >= top_p,
            lambda likely, top_p: likely >= 1 - top_p,
            lambda likely, top_p: (likely >= top_p) | (torch.arange(likely.shape[-1]) == 0),
            lambda likely, top_p: (likely >= 1 - top_p) | (torch.arange(likely.shape[-1]) == 0),
        ),
    )
    task.fault(
        "P-TOP-P-OUT",
        **about,
        stays=lambda likely, top_p: (
            (likely.cumsum(-1) - likely < 1 - top_p) | (torch.arange(likely.shape[-1]) == 0)
        ),
    )
    task.fault(
        "P-TOP-P-NOTHING-LEFT",
        **about,
        stays=lambda likely, top_p: likely.flip(-1).cumsum(-1).flip(-1) > 1 - top_p,
    )
    task.fault(
        "P-TOP-P-ORDER-OF-THE-FIRST",
        **about,
        sort=lambda p: (
            (order := p[:1].argsort(dim=-1, descending=True).expand(p.shape)),
            (p.gather(-1, order), order),
        )[1],
    )
    task.fault(
        "P-TOP-P-UNSORTED", **about, sort=lambda p: (p, torch.arange(p.shape[-1]).expand(p.shape))
    )
    task.fault("P-TOP-P-SORTED-UPWARD", **about, sort=lambda p: p.sort(dim=-1))
    task.fault("P-TOP-P-NOT-PUT-BACK", **about, back=lambda keep, order: keep)
    task.fault("P-TOP-P-GATHERED", **about, back=lambda keep, order: keep.gather(-1, order))
    task.fault(
        "P-TOP-P-FIRST-ROW",
        **about,
        stays=lambda likely, top_p: (likely.cumsum(-1) - likely < top_p)[:1].expand(likely.shape),
    )

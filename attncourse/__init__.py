"""attncourse: attention from the bottleneck up. Reference code, a judge, and the course's tools."""

from attncourse.checks import check, hint, run, use

__all__ = ["check", "hint", "run", "use", "welcome"]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # a fortieth of a second, which few need

    return version("attncourse")


def welcome() -> None:
    """The first cell of every notebook: say what it runs on, and get the judge ready."""
    import torch

    import attncourse
    from attncourse.checks import warm_up

    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    warm_up()
    versions = f"attncourse {attncourse.__version__}, torch {torch.__version__}"
    print(f"{versions}, {device}. The judge is ready.")

"""attncourse: attention from the bottleneck up. Reference code, a judge, and the course's tools."""

from attncourse.checks import check, hint, run, use

__all__ = ["check", "hint", "run", "use", "welcome"]
__version__ = "0.1.0"  # here alone: pyproject.toml reads it, and nothing needs to be installed


def welcome() -> None:
    """The first cell of every notebook: say what it runs on, and get the judge ready."""
    import torch

    from attncourse.checks import warm_up

    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    warm_up()
    versions = f"attncourse {__version__}, torch {torch.__version__}"
    print(f"{versions}, {device}. The judge is ready.")

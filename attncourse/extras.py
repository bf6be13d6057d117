"""Packages that not everybody needs: loaded where they are used, and missed with the way out."""

import importlib
from types import ModuleType

# Builds of torch without CUDA: a tenth of the size, and all that a computer without a GPU needs.
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


class Missing(ImportError):
    """A package that an extra of the course brings is not installed; says which extra."""


def cure(extra: str) -> str:
    """What installs an extra, to be copied."""
    return f"pip install 'attncourse[{extra}]'"


def load(extra: str, module: str) -> ModuleType:
    """Import a module that an extra brings.

    Raises:
        Missing: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # it is there, and misses something itself
            raise
        said = f"this needs {package}; get it with `{cure(extra)}`"
        raise Missing(said, name=package) from None

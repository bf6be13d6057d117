"""Notebooks for students: nbgrader's release step, and the one cell that Colab needs."""

from pathlib import Path

import yaml
from nbgrader.preprocessors import NbGraderPreprocessor

import attncourse

MARKER = "# attncourse: bootstrap"


def repository() -> str:
    """The course's address, which is written in _config.yml and nowhere else."""
    config = yaml.safe_load(Path("_config.yml").read_text(encoding="utf-8"))
    return config["repository"]["url"]


class ColabBootstrap(NbGraderPreprocessor):
    """Let a released notebook install the course on Colab; elsewhere the cell does nothing new."""

    def preprocess(self, nb, resources):
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.source.startswith(MARKER):
                package = f"attncourse @ git+{repository()}@v{attncourse.__version__}"
                cell.source = cell.source.replace(
                    MARKER,
                    f'{MARKER}\nimport sys\n\nif "google.colab" in sys.modules:\n'
                    f'    %pip install -q "{package}"\n',
                    1,
                )
        return nb, resources

"""Notebooks for students: nbgrader's release step, and the one cell that Colab needs."""

from pathlib import Path
from urllib.parse import urlsplit

import yaml
from nbgrader.preprocessors import NbGraderPreprocessor

import attncourse

MARKER = "# attncourse: bootstrap"


def configuration() -> dict:
    """The book's: the course's address is written there and nowhere else."""
    return yaml.safe_load(Path("_config.yml").read_text(encoding="utf-8"))


class ColabBootstrap(NbGraderPreprocessor):
    """Let a released notebook open in Colab and install the course there; elsewhere nothing new."""

    def preprocess(self, nb, resources):
        config = configuration()
        address, branch = config["repository"]["url"], config["repository"]["branch"]
        name = resources["nbgrader"]["assignment"]
        link = f"{config['launch_buttons']['colab_url']}/github/{urlsplit(address).path.strip('/')}"
        link += f"/blob/{branch}/exercises/{name}/{name}.ipynb"
        title, rest = nb.cells[0].source.split("\n", 1)
        nb.cells[0].source = f"{title}\n\n[Open in Colab]({link})\n{rest}"
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.source.startswith(MARKER):
                package = f"attncourse @ git+{address}@v{attncourse.__version__}"
                cell.source = cell.source.replace(
                    MARKER,
                    f'{MARKER}\nimport sys\n\nif "google.colab" in sys.modules:\n'
                    f'    %pip install -q "{package}"\n',
                    1,
                )
        return nb, resources

"""Three promises the book keeps by itself, whoever builds it and however.

1. No stale output. jupyter-cache looks only at a page's own cells, so a change in `attncourse/`
   would leave yesterday's numbers on the page. Here the cache lives under a hash of the package.
2. No dead button. Colab opens notebooks only, so a Markdown page has a Colab button only where
   an .ipynb of the same name stands beside it.
3. No lost figure. A shell (or a CI) that sets MPLBACKEND=agg would keep pictures out of the pages.
"""

import hashlib
import os
import shutil
from pathlib import Path


def package_hash(root: Path) -> str:
    """Hash what the pages' outputs depend on besides their own cells."""
    digest = hashlib.sha256((root / "requirements.txt").read_bytes())
    for path in sorted((root / "attncourse").rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def key_the_cache(app, config):
    caches = Path(app.outdir).parent / ".jupyter_cache"
    current = caches / package_hash(Path(app.srcdir))
    for outdated in set(caches.glob("*")) - {current}:
        shutil.rmtree(outdated) if outdated.is_dir() else outdated.unlink()
    config.nb_execution_cache_path = str(current)


def drop_dead_colab_button(app, pagename, templatename, context, doctree):
    page = Path(app.env.doc2path(pagename))
    if page.suffix == ".md" and not page.with_suffix(".ipynb").exists():
        context["header_buttons"] = [
            button
            for button in context.get("header_buttons", [])
            if button.get("label") != "launch-buttons"
        ]


def setup(app):
    os.environ.pop("MPLBACKEND", None)
    app.connect("config-inited", key_the_cache)
    app.connect("html-page-context", drop_dead_colab_button, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Seven promises the book keeps by itself, whoever builds it and however.

1. No stale output. jupyter-cache looks only at a page's own cells, so a change in `attncourse/`
   would leave yesterday's numbers on the page. Here the cache lives under a hash of the package.
2. No failure forgotten. Sphinx warns of a failing cell when it reads the page, and reads a page
   only once; so every build reads all pages again (seconds, as their outputs are cached).
3. No dead button. Colab opens notebooks and no Markdown, so a page's button opens its twin there
   (colab_twins.py), which is also what one downloads, and a link beside an exercise's download
   opens the exercise. A page without code has no button.
4. No lost figure. A shell (or a CI) that sets MPLBACKEND=agg would keep pictures out of the pages.
5. No waiting in line. Sphinx executes one page after the other, so the pages whose outputs are not
   in the cache are executed before, as many at a time as there are cores, each on one thread; where
   they are many, in kernels that share what they load. It reads and writes pages side by side, too.
6. No page without its sources. Each lists what it cites; sphinxcontrib-bibtex wants the keys of two
   such lists to differ, so they get the page's name in front, and the pages are written without.
7. No way out to what is here. A judge's report links the published book; on a page of the book such
   a link stays in the book, so it can be followed offline.
"""

import functools
import gc
import hashlib
import logging
import multiprocessing
import os
import re
import shutil
import sys
from pathlib import Path

import forked_kernels
import pybtex.plugin
import zmq
from jupyter_cache import entry_points, get_cache
from jupyter_cache.executors.basic import ExecutionWorkerLocalMProc, ProcessData
from jupyter_client import KernelManager
from jupyter_client.provisioning import local_provisioner
from sphinx.util import logging as sphinx_logging
from sphinx_external_toc.parsing import parse_toc_yaml


def package_hash(root: Path) -> str:
    """Hash what the pages' outputs depend on besides their own cells, however lines end."""
    digest = hashlib.sha256()
    package = root / "attncourse"
    data = (path for path in (package / "data").rglob("*") if path.is_file())
    for path in [root / "requirements.txt", *sorted([*package.rglob("*.py"), *data])]:
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def key_the_cache(app, config):
    caches = Path(app.outdir).parent / ".jupyter_cache"
    current = caches / package_hash(Path(app.srcdir))
    for outdated in set(caches.glob("*")) - {current}:
        shutil.rmtree(outdated) if outdated.is_dir() else outdated.unlink()
    config.nb_execution_cache_path = str(current)


def hash_of(app) -> str:
    """The package's hash in this build; it names the cache."""
    return Path(app.config.nb_execution_cache_path).name


# Both change pages one by one, and number nothing before all are read; they only do not say so.
SILENT = {"sphinx_multitoc_numbering", "sphinx_jupyterbook_latex"}


def read_and_write_in_parallel(app, env, pages):
    # Jupyter Book has no option for it. Sphinx deals the pages out in chunks that take unequally
    # long: twice as many processes as cores keep the cores busy. More than eight only take memory.
    if sys.platform == "linux":  # elsewhere, what has loaded torch is not safely forked
        app.parallel = min(8, 2 * (os.cpu_count() or 1))
    for name in SILENT & app.extensions.keys():
        app.extensions[name].parallel_read_safe = True
    # The page made of docstrings takes as long as all others: it begins first, beside short ones.
    pages.sort(key=lambda page: (page != "book/api", Path(env.doc2path(page)).stat().st_size))


def read_every_page(app, config):
    shutil.rmtree(app.doctreedir, ignore_errors=True)


def execute_in_parallel(app, config):
    source = Path(app.srcdir)
    pages = [source / f"{name}.md" for name in parse_toc_yaml(source / "_toc.yml")]
    notebooks = [
        page for page in pages if page.exists() and "format_name: myst" in page.read_text("utf-8")
    ]
    cache = get_cache(config.nb_execution_cache_path)
    for notebook in notebooks:
        cache.add_nb_to_project(str(notebook), read_data={"name": "myst_nb_md", "type": "plugin"})
    waiting = cache.list_unexecuted()
    if not waiting:
        return
    at_once = min(os.cpu_count() or 1, len(waiting))
    told = sphinx_logging.getLogger(__name__)
    told.info(f"executing {len(waiting)} pages, {at_once} at a time")
    # What fails here, Sphinx executes again and reports.
    multiprocessing.get_logger().setLevel(logging.CRITICAL)
    timeout, usual = config.nb_execution_timeout, local_provisioner.launch_kernel
    if sys.platform == "linux" and len(waiting) > at_once:
        local_provisioner.launch_kernel = forked_kernels.Popen
    pages = [ProcessData(page.pk, page.uri, cache, timeout, False) for page in waiting]
    with multiprocessing.Pool(at_once) as pool:
        done = pool.imap_unordered(ExecutionWorkerLocalMProc(), pages)
        for number, (_, page) in enumerate(done, 1):
            told.info(f"executed {number} of {len(pages)}: {Path(page).stem}")
    local_provisioner.launch_kernel = usual


def in_colab(app, notebook: Path) -> str:
    """Where Colab opens a notebook of the repository; "" if there is none."""
    if not (Path(app.srcdir) / notebook).exists():
        return ""
    options = app.config.html_theme_options
    repository = options["repository_url"].removeprefix("https://github.com/")
    colab, branch = options["launch_buttons"]["colab_url"], options["repository_branch"]
    return f"{colab}/github/{repository}/blob/{branch}/{notebook.as_posix()}"


def aim_colab_button(app, pagename, templatename, context, doctree):
    address = in_colab(app, Path(f"{pagename}.ipynb"))
    kept = []
    for button in context.get("header_buttons", []):
        if button.get("label") == "launch-buttons":
            if not address:
                continue
            for each in button["buttons"]:
                each["url"] = address
        kept.append(button)
    context["header_buttons"] = kept


def offer_twins(app, problem):
    """What a page's button downloads reads as well as what Colab opens."""
    for notebook in Path(app.outdir, "_sources").rglob("*.ipynb"):
        twin = Path(app.srcdir) / notebook.relative_to(Path(app.outdir, "_sources"))
        if twin.exists():
            shutil.copy(twin, notebook)


def link_to_colab(app, docname, source):
    name = docname.rpartition("/")[2]
    address = in_colab(app, Path("exercises", name, f"{name}.ipynb"))
    link = rf"\g<0> ([open in Colab]({address}))"
    source[0] = re.sub(r"\{download\}`[^`]+\.ipynb <[^`]+>`", link, source[0])


def prefix_citations(app, docname, source):
    prefix = docname.rpartition("/")[2] + "-"

    def cite(found):
        return found[1] + re.sub(r"[^,\s][^,]*", lambda key: prefix + key[0], found[2]) + "`"

    text = re.sub(r"(\{cite(?::\w+)?\}`)([^`]+)`", cite, source[0])
    source[0] = text.replace("```{bibliography}\n", f"```{{bibliography}}\n:keyprefix: {prefix}\n")


def stay_in_the_book(app, pagename, templatename, context, doctree):
    published, here = app.config.html_baseurl.rstrip("/") + "/", "../" * pagename.count("/")
    if "body" in context:
        context["body"] = context["body"].replace(f'href="{published}', f'href="{here}')


def setup(app):
    # The trees of all pages are kept to the end, so there is nothing to collect.
    gc.disable()
    # All that is installed would be looked through for each page and each citation.
    entry_points.eps = functools.cache(entry_points.eps)
    pybtex.plugin.entry_points = functools.cache(pybtex.plugin.entry_points)
    os.environ.pop("MPLBACKEND", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    encryption = KernelManager.class_traits().get("transport_encryption")
    if encryption and zmq.has("curve"):  # or each kernel warns that others may listen
        encryption.default_value = "auto"
    app.connect("config-inited", key_the_cache)
    app.connect("config-inited", read_every_page)
    app.connect("config-inited", execute_in_parallel, priority=900)
    app.connect("env-before-read-docs", read_and_write_in_parallel)
    app.connect("source-read", prefix_citations)
    app.connect("source-read", link_to_colab)
    app.connect("html-page-context", aim_colab_button, priority=900)
    app.connect("build-finished", offer_twins)
    app.connect("html-page-context", stay_in_the_book)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

# `make course` builds everything a visitor wants to see; `make test` proves it works.
# Needs Python 3.11-3.13, pip and make. Everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ASSIGNMENT ?= 03_scaled_dot_product
SINCE ?= main
# Test processes: three keep two cores busy, as some wait for a jail's limit or for a browser.
WORKERS ?= 3
# Those of `fast-test` wait for nothing, and each of its processes takes ten seconds to begin.
FAST_WORKERS ?= 2
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Hundreds of processes would compile the package again, each for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help live fingerprints course install book book-fresh readme-picture pdf zip pictures twins curves exercises class grade report test test-changed fast-test fuzz bench lint format lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

course: install book exercises class grade report  ## book, exercises, a graded sample class
	@echo "The book: file://$(CURDIR)/_build/html/index.html"

install: $(STAMP)  ## make .venv and install the pinned requirements

$(STAMP): requirements.txt pyproject.toml
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else f"attncourse needs Python 3.11-3.13, and $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -r requirements.txt
	@# pip would compile on one core; some packages hold files that are no Python, on purpose
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

lock:  ## pin every version again
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --all-extras --strip-extras --allow-unsafe \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file requirements.txt pyproject.toml
	@# a build of torch made for one machine says so after a +; the pin must fit them all
	sed -i.bak 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' requirements.txt && rm requirements.txt.bak

book: $(STAMP)  ## build the book into _build/html (executed, cached, warnings are errors)
	$(BIN)/jupyter-book build . -W -n --keep-going

book-fresh:  ## the same, from nothing
	rm -rf _build
	@$(MAKE) --no-print-directory book

readme-picture: book  ## photograph the README's picture from the book (needs chromium)
	$(BIN)/python tests/readme_picture.py

pdf: book  ## print the whole book into _build/pdf (needs chromium)
	$(BIN)/python book/on_paper.py

zip: book  ## pack the book to take along: unpack, open index.html
	cd _build && rm -f book.zip && $(CURDIR)/$(BIN)/python -m zipfile -c book.zip html

pictures: book  ## photograph every page into _build/pictures, ask axe about it, walk through it by keyboard
	$(BIN)/python tests/bench/pictures.py

twins: $(STAMP)  ## write the pages' notebooks for Colab, book/*.ipynb
	$(BIN)/python book/colab_twins.py

curves: $(STAMP)  ## train the book's models again (three quarters of an hour on two cores) and store them in attncourse/data
	$(BIN)/python -m attncourse.experiments.translator_curves
	$(BIN)/python -m attncourse.experiments.cross_attention_curves
	$(BIN)/python -m attncourse.experiments.positions_curves
	$(BIN)/python -m attncourse.experiments.one_stack_curves
	$(BIN)/python -m attncourse.experiments.cache_curves
	$(BIN)/python -m attncourse.experiments.long_sequences_curves
	$(BIN)/python -m attncourse.experiments.looking_inside_curves
	$(BIN)/python -m attncourse.experiments.pictures_curves
	$(BIN)/python -m attncourse.experiments.in_the_wild_curves

exercises: $(STAMP)  ## release the students' notebooks from solutions/
	@$(BIN)/python -m attncourse.checks.pages
	@$(BIN)/attncourse release

class: $(STAMP)  ## make up a sample class in submitted/
	@$(BIN)/attncourse sample-class $(ASSIGNMENT)

grade: $(STAMP)  ## autograde what is new in submitted/
	@$(BIN)/attncourse grade $(ASSIGNMENT)

report: $(STAMP)  ## show the graded class
	@$(BIN)/attncourse report $(ASSIGNMENT)

test: $(STAMP) lint  ## everything: style, reference, judge, notebooks, book, command line
	$(BIN)/python -m pytest -n $(WORKERS) --durations 25

test-changed: $(STAMP) lint  ## what your changes since SINCE (main) can break: the chapters, labs and tasks they name
	$(BIN)/python -m pytest -n $(WORKERS) --changed-since $(SINCE)

fast-test: $(STAMP)  ## what takes no fifth of a second each: a minute in all
	$(BIN)/python -m pytest -n $(FAST_WORKERS) -m "not slow"

fuzz: $(STAMP)  ## look for an hour for files and messages that break what reads them
	ATTNCOURSE_FUZZ=300 $(BIN)/python -m pytest tests/test_fuzz.py

bench: $(STAMP)  ## measure the judge: how quick, how often right, which broken references pass; many seeds
	$(BIN)/python tests/bench/speed.py
	$(BIN)/python tests/bench/verdicts.py
	$(BIN)/python tests/bench/answers.py
	$(BIN)/python tests/bench/mutants.py
	$(BIN)/python -m pytest tests/bench/sweeps.py
	ATTNCOURSE_FUZZ=5 $(BIN)/python -m pytest tests/test_fuzz.py
	$(BIN)/python tests/bench/colab/run.py --twins
	$(BIN)/python tests/bench/pages.py now=_build/html

fingerprints: $(STAMP)  ## store what tells a task's explanations apart, where that is out of date (seconds to minutes a task)
	$(BIN)/python -m attncourse.checks.tables

live: $(STAMP)  ## draw the first states of the book's live figures again (needs chromium)
	$(BIN)/python tests/test_live.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove everything that was made, but not .venv
	rm -rf _build submitted autograded feedback gradebook.db* .nbgrader.log

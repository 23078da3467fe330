# Every command a person runs; each sets itself up. `make` alone lists them.
PYTHON ?= python3
PORT ?= 8000

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help book pdf epub serve lab notebooks check test test-browser bench links clean

# One thread for each process: results do not depend on the machine's cores, and small models are no slower.
export OMP_NUM_THREADS := 1

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
TWINS := $(wildcard book/chapters/*.md) book/bug_museum.md
NOTEBOOKS := $(TWINS:.md=.ipynb)
BUILD := $(BIN)/jupyter-book build . -W -n --keep-going -q
NBVAL := $(PYTEST) --nbval --nbval-current-env --nbval-cell-timeout=600 -n 2 --dist loadfile \
	tests/test_notebooks.py $(NOTEBOOKS)
# One line of a terminal that shows which package pip is at.
PROGRESS := while read -r verb what _; do \
	[[ ! -t 1 || $$verb != @(Collecting|Downloading|Installing) ]] || printf '\r\033[K%.78s' "$$verb $$what"; \
	done; [[ ! -t 1 ]] || echo

help: ## list these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

book: $(READY) ## build the site into _build/html
	@# A failed build leaves pages that the next one would not read again, and so not warn about.
	@$(BUILD) >/dev/null || { rm -rf _build/.doctrees; exit 1; }
	@echo "The book is built: _build/html/index.html"

pdf: book ## print the book into _build/pdf (needs Chromium or Chrome)
	@$(BIN)/python book/_ext/pdf.py
	@echo "The book is printed: _build/pdf/attention-step-by-step.pdf"

epub: $(READY) ## write the book for e-readers into _build/epub (needs Chromium or Chrome)
	@rm -rf _build/epub
	@$(BUILD) --builder custom --custom-builder epub --path-output _build/epub >/dev/null
	@mv _build/epub/_build/epub/attention-step-by-step.epub _build/epub
	@echo "The book is written: _build/epub/attention-step-by-step.epub"

serve: book ## serve the site on this machine (PORT=8000)
	@$(BIN)/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || \
		{ echo "error: port $(PORT) is in use; try another: make serve PORT=$$(($(PORT) + 1))" >&2; exit 1; }
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

lab: $(READY) ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab book/chapters

notebooks: $(READY) ## bring each .ipynb and its .md twin together, then execute the notebooks
	@$(BIN)/jupytext --sync $(TWINS)
	@$(BIN)/jupyter nbconvert --to notebook --inplace --execute \
		--ExecutePreprocessor.record_timing=False $(NOTEBOOKS)
	@$(BIN)/jupytext --sync $(TWINS)

check: $(READY) ## lint, types and unit tests: under a minute
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(PYTEST) -n 2 -m "not slow" --ignore tests/test_site.py --ignore tests/browser

test: check ## everything that must hold: check, the notebooks on two kinds of CPU, the built site
	@$(PYTEST) -n 2 -m slow
	@rm -rf _build/html _build/.doctrees _build/again
	@$(MAKE) --no-print-directory book
	@$(BUILD) --path-output _build/again >/dev/null
	@diff -rq _build/html _build/again/_build/html || { echo "error: two builds of the site differ" >&2; exit 1; }
	@rm -rf _build/again
	@$(PYTEST) tests/test_site.py tests/browser
	@$(NBVAL)
	@echo "Once more, as a CPU without vector extensions computes"
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(NBVAL)

test-browser: book ## look at every page in Chromium, installed first where apt-get is
	@command -v chromium >/dev/null || { sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$sudo apt-get update -q && $$sudo apt-get install -qy --no-install-recommends chromium; }
	@$(PYTEST) tests/browser

bench: $(READY) ## time attention beside other implementations, and write book/speed.md (half an hour)
	@$(BIN)/python tests/benchmarks/attention_speed.py --output book/speed.md

links: $(READY) ## try every link to another site (needs the network)
	@$(BIN)/jupyter-book build . -W -n --keep-going -q --builder linkcheck --path-output _build/links

clean: ## remove what was built (.venv stays)
	@rm -rf _build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find book companion tests -name __pycache__ -prune -exec rm -r {} +

# The stamp is made last and goes first: an interrupted installation starts afresh.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
		"error: $(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
		"error: $(PYTHON) cannot make environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@[ -e $@ ] || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	@echo "Installing requirements.txt into .venv: 1.8 GB, some minutes (log: .venv/install.log)"
	@$(BIN)/pip install -r requirements.txt 2>&1 | tee .venv/install.log | { $(PROGRESS); } || { echo \
		"error: installing failed: is PyPI reachable? .venv/install.log has the reason; then run make again" >&2; exit 1; }
	@touch $@

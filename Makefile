# Each target creates .venv by itself; nothing but Python (3.10 or newer) and pip is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q --no-compile -c constraints.txt
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of processes, which would compile all they import once more each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: browser clean demo docs format fuzz quick stacks test torchmetrics versions

demo: $(VENV)/.demo-ready
	$(BIN)/gapless check --no-loader --gpu A40 examples/metrics/naive.py --size 224 --batch 128 --classes 1000 --log-every 100

# The tests of the pages use a browser where there is one, and are skipped otherwise. This installs one, as root.
BROWSERS := chromium chromium-browser google-chrome
APT := timeout 300 apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20

browser:
	@for name in $(BROWSERS); do command -v $$name && exit 0; done; \
	echo "installing the Debian package chromium on this machine …" && \
	  $(APT) -qq update && DEBIAN_FRONTEND=noninteractive $(APT) -qq install -y --no-install-recommends chromium

test: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2

# Some tests of each kind, for the loop of edit and try.
quick: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n 2 @tests/quick.txt

# The property tests with new random examples: `make test` draws the same ones each time.
fuzz: $(VENV)/.test-ready
	GAPLESS_EXAMPLES=random $(BIN)/python -m pytest -q -n 2 -m hypothesis

docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in site/"

# Each supported version of torch in an environment of its own: hours, and a gigabyte of download for each.
versions: $(VENV)/.demo-ready
	$(BIN)/python benchmarks/versions.py $(ONLY)

stacks: $(VENV)/.demo-ready
	$(BIN)/python benchmarks/stacks.py $(ONLY)

# TorchMetrics' own tests, from a checkout of it, with its metrics and with ours in their place.
torchmetrics: $(VENV)/.test-ready
	$(PIP_INSTALL) cachier cloudpickle fairlearn jiwer lightning monai netcal nltk permetrics psutil \
	  pytorch-msssim rouge-score scikit-image scikit-learn statsmodels
	$(BIN)/python benchmarks/torchmetrics_suite.py $(SUITE) $(OPTIONS)

format: $(VENV)/.test-ready
	$(BIN)/python tools/metric_names.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Where the venv module is missing (Debian splits it off), virtualenv does the same work.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  $(PYTHON) -m pip install -q --target build/virtualenv virtualenv && \
	  PYTHONPATH=build/virtualenv $(PYTHON) -m virtualenv -q $(VENV); }

$(VENV)/.demo-ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Gapless and what the examples need into $(VENV) …"
	$(PIP_INSTALL) -e ".[examples]"
	@touch $@

$(VENV)/.test-ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Gapless and what the tests need into $(VENV) …"
	$(PIP_INSTALL) -e ".[test]"
	@touch $@ $(VENV)/.demo-ready

$(VENV)/.docs-ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Gapless and what the documentation needs into $(VENV) …"
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@ $(VENV)/.demo-ready

clean:
	rm -rf $(VENV) build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Everything runs in .venv, made on first use. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MLFLOW := .venv-mlflow
DOCUMENTS := .venv-documents
STAMP := $(VENV)/.installed
EXTRAS := cpu,connect,docs,mlflow,notebook,sweep,test
# For the tests alone, and not of an extra: what it depends on is all of tensorflow, put over tensorflow-cpu.
LEGACY_KERAS := tf-keras>=2.21,<2.22
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# As if .venv were activated, for Spark too, whose Python workers are otherwise whatever python3 is on the PATH.
ACTIVATE := export PATH="$(CURDIR)/$(BIN):$$PATH" PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python"; unset PYSPARK_DRIVER_PYTHON;
WITH_JAVA := JAVA_HOME="$$(tools/java.sh)" || exit 1; export JAVA_HOME; $(ACTIVATE)
# Jupyter asks root to say so; in a container there is nobody else. It listens on loopback, behind a token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
TWO_AT_ONCE := -n 2 --dist loadfile --no-loadscope-reorder --durations=25

.DEFAULT_GOAL := help
.PHONY: help env java chromium demo lab docs dist lint test soak canary matrix test-fast binder images outputs pictures pins badge clean

help:
	@echo "make demo       run notebooks/00_quickstart.ipynb without a browser and say what happened"
	@echo "make lab        open JupyterLab on notebooks/"
	@echo "make docs       build the documentation, to be read without a network, in build/docs/html"
	@echo "make test       lint, types and the test suite (a quarter of an hour on two cores)"
	@echo "make soak       what takes longer: every program of the corpus, every tutorial, every case of long tests"
	@echo "make canary     tests of training with the newest Keras and TensorFlow, in an environment of their own"
	@echo "make matrix     smoke tests with each Spark from 4.0 on, the oldest and the newest Keras; ONLY=pyspark-4.0 runs one"
	@echo "make test-fast  unit tests (under a minute)"
	@echo "make lint       ruff and mypy"
	@echo "make dist       build wheel and source archive in dist/, check them, and load the extension from the wheel"
	@echo "make binder     replay Binder's build and start in an empty environment (downloads about 1 GB)"
	@echo "make images     replay the images for Kubernetes without Docker, as root, and try them (downloads about 1 GB)"
	@echo "make outputs    run the tutorials and keep their outputs for the documentation; ONLY=00_quickstart runs one"
	@echo "make pictures   make the moving pictures of README, from its own cells in JupyterLab"
	@echo "make pins       pin anew, in binder/environment.yml, what Binder installs"
	@echo "make badge      print the Binder badge of this clone, from where it was cloned"
	@echo "make env        only make .venv, with everything the above need"
	@echo "make clean      delete what runs and builds leave behind (.venv stays)"

env: $(STAMP)

$(STAMP): setup.py pyproject.toml
	@tools/venv.sh "$(PYTHON)" "$(VENV)"
	@echo "Installing tfos_magic[$(EXTRAS)] into $(VENV) (about 2 GB, some minutes on first use) ..."
	@$(PIP) install --editable ".[$(EXTRAS)]"
	@$(PIP) install --no-deps "$(LEGACY_KERAS)"
	@touch $@

java:
	@tools/java.sh > /dev/null

chromium:
	@tools/chromium.sh

demo: java $(STAMP)
	@$(WITH_JAVA) python tools/demo.py $(NOTEBOOK)

lab: java $(STAMP)
	@$(WITH_JAVA) python -m tfos_magic.spark.class_archive || true
	@$(WITH_JAVA) exec jupyter lab --notebook-dir=notebooks $(AS_ROOT)

docs: $(STAMP)
	@$(BIN)/python tools/docs.py

dist: $(STAMP)
	@$(BIN)/python tools/dist.py

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# An archive for the tests' JVMs is made beside lint, which leaves a core idle.
test: java chromium $(STAMP)
	@$(WITH_JAVA) python -m tests.jvm & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
	@$(WITH_JAVA) python -m pytest tests -m "not soak" $(TWO_AT_ONCE)

soak: java chromium $(STAMP) $(MLFLOW)/bin/mlflow $(DOCUMENTS)/etc
	@$(WITH_JAVA) python -m pytest tests -m soak $(TWO_AT_ONCE)

canary: java
	@PYTHON="$(PYTHON)" $(PYTHON) tools/matrix.py --canary --upgrade

matrix: java
	@PYTHON="$(PYTHON)" $(PYTHON) tools/matrix.py $(ONLY)

# Its server, for the tests: it wants other versions of libraries than TensorFlow has.
$(MLFLOW)/bin/mlflow:
	@tools/venv.sh "$(PYTHON)" "$(MLFLOW)"
	@$(MLFLOW)/bin/pip --disable-pip-version-check --quiet install "mlflow>=3.0"

# Documents kept by Jupyter's server, for one test: installed for all, they would change every other page.
$(DOCUMENTS)/etc: $(STAMP)
	@$(PIP) install --upgrade --no-deps --target "$(DOCUMENTS)" jupyter_server_documents jupyter-collaboration-ui \
		jupyter-docprovider jupyter-ydoc jupyter_server_fileid pycrdt
	@touch $@

test-fast: $(STAMP)
	$(BIN)/python -m pytest tests/unit -m "not soak and not slow" -n 2 --dist worksteal --durations=10

binder: $(STAMP)
	@$(BIN)/python tools/binder.py

images: $(STAMP)
	@$(BIN)/python tools/images.py

outputs: java $(STAMP)
	@$(WITH_JAVA) python tools/outputs.py $(ONLY)

pictures: java chromium $(STAMP)
	@$(WITH_JAVA) python tools/pictures.py

pins: $(STAMP)
	@$(BIN)/python tools/pins.py

badge: $(STAMP)
	@$(BIN)/python tools/badge.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache spark-warehouse metastore_db derby.log
	rm -rf notebooks/executed notebooks/data notebooks/runs tests/artefacts benchmarks/results
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

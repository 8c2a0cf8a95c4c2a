# Everything a newcomer or CI needs: `make help`. All is installed into .venv, nothing outside.
#
# Stamps in .venv say what has been installed, so that a second `make test` starts at once. Installing is
# two steps: the project itself, again whenever its native sources change, and the packages of an extra,
# for which the project need not be built again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
NATIVE := $(wildcard native/*.cc native/*.h native/tensorflow/*.cc native/tensorflow/*.h)
NATIVE_TESTS := $(wildcard native/tests/*.cc native/tests/*.h)
TYPECHECK := build/typecheck
PYTEST_ARGS ?=
ROUNDS ?= 200
SEED ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test sanitize fault-injection lint format docs clean

help:
	@echo "make demo     install into .venv and train a small Keras model on two ranks"
	echo "make test     install what the tests need and run them; PYTEST_ARGS='-k launcher' for some"
	echo "make sanitize run the native code's own tests under the address, undefined behaviour and thread sanitizers"
	echo "make fault-injection   kill and stop ranks at random moments; ROUNDS=200 SEED=3"
	echo "make lint     check format, style, types and the native code's format"
	echo "make format   rewrite the sources in the project's format"
	echo "make docs     write the pages that are generated from the sources"
	echo "make clean    remove .venv and everything built"

demo: $(STAMPS)/demo
	@$(BIN)/sirtakirun -np 2 $(BIN)/python examples/keras_digits.py

test: $(STAMPS)/test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

# Needs the compiler only, no Python.
sanitize:
	@command -v $${CXX:-g++} > /dev/null || { echo "A C++17 compiler is missing (Debian: apt install g++)." >&2; exit 1; }
	for kind in address,undefined thread; do
	    echo 'int main() {}' | $${CXX:-g++} -x c++ -fsanitize=$$kind -o /dev/null - 2> /dev/null || {
	        echo "The compiler $${CXX:-g++} cannot build with -fsanitize=$$kind: its sanitizer libraries are missing" \
	            "(Debian: apt install g++, which brings libasan, libubsan and libtsan)." >&2
	        exit 1
	    }
	done
	for mode in address thread; do
	    $(MAKE) --no-print-directory -s -j "$$(nproc)" -f native/tests/Makefile MODE=$$mode
	done

fault-injection: $(STAMPS)/test
	@$(BIN)/python tests/fault_injection.py --rounds $(ROUNDS) --seed $(SEED)

lint: $(STAMPS)/lint $(STAMPS)/project
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	# The import names exist in installed trees only; mypy gets a tree of links that looks like one.
	rm -rf $(TYPECHECK) && mkdir -p $(TYPECHECK)/sirtaki
	ln -s $(CURDIR)/collectives/* $(TYPECHECK)/sirtaki/
	ln -s $(CURDIR)/tf_bindings $(TYPECHECK)/sirtaki/tensorflow
	ln -s $(CURDIR)/tf_bindings/horovod_keras $(TYPECHECK)/sirtaki/keras
	ln -s $(CURDIR)/benchmarks $(TYPECHECK)/sirtaki/benchmarks
	MYPYPATH=$(TYPECHECK) $(BIN)/mypy -p sirtaki | sed -e 's#$(TYPECHECK)/sirtaki/tensorflow/#tf_bindings/#' \
	    -e 's#$(TYPECHECK)/sirtaki/benchmarks/#benchmarks/#' -e 's#$(TYPECHECK)/sirtaki/#collectives/#'
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(NATIVE_TESTS)

format: $(STAMPS)/lint
	@$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE) $(NATIVE_TESTS)
	$(BIN)/ruff check --fix .

docs: $(STAMPS)/project
	@$(BIN)/python -c 'from sirtaki.config import as_markdown; print(as_markdown(), end="")' > docs/settings.md
	$(BIN)/python -c 'from sirtaki.dtypes import as_markdown; print(as_markdown(), end="")' > docs/types.md

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -f collectives/*.so tf_bindings/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is missing (Debian: apt install python3)." >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "$(PYTHON) is too old: Python 3.10 or later is needed; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || \
	    { echo "Python's venv module is missing (Debian: apt install python3-venv)." >&2; exit 1; }
	echo "installing into $(VENV); the first time takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	# Debian's pip is older than the metadata of some packages.
	$(BIN)/pip install --quiet --upgrade pip
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/project: $(STAMPS)/venv setup.py pyproject.toml $(NATIVE)
	@command -v $${CXX:-g++} > /dev/null || { echo "A C++17 compiler is missing (Debian: apt install g++)." >&2; exit 1; }
	$(BIN)/python -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2> /dev/null || \
	    { echo "Python's header files are missing (Debian: apt install python3-dev)." >&2; exit 1; }
	# setuptools warns at length about every editable installation.
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --editable .
	touch $@

# The project is installed already, so pip adds only what the extras name.
$(STAMPS)/demo: $(STAMPS)/project
	@$(BIN)/pip install --quiet 'sirtaki[tensorflow,mpi,examples]'
	touch $@

$(STAMPS)/test: $(STAMPS)/project
	@$(BIN)/pip install --quiet 'sirtaki[tensorflow,mpi,examples,test]'
	touch $@

$(STAMPS)/lint: $(STAMPS)/project
	@$(BIN)/pip install --quiet 'sirtaki[mpi,lint]'
	touch $@

"""What the documentation says is what the code does."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import sirtaki
import sirtaki.benchmarks
from sirtaki import _native, dtypes
from sirtaki.config import as_markdown

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    module.name
    for package in (sirtaki, sirtaki.benchmarks)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    if not module.ispkg and module.name not in ("sirtaki._native",)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("name", sorted(set(sirtaki.__all__) - {"__version__", "errors"}))
def test_public_names_are_documented(name):
    assert inspect.getdoc(getattr(sirtaki, name)), f"sirtaki.{name} has no docstring"


def test_public_functions_have_examples():
    functions = [name for name in sirtaki.__all__ if inspect.isroutine(getattr(sirtaki, name))]
    assert len(functions) > 40
    missing = [name for name in functions if ">>>" not in inspect.getdoc(getattr(sirtaki, name))]
    assert not missing, f"no example in the docstring of {missing}"


def test_settings_page_is_up_to_date():
    assert (ROOT / "docs" / "settings.md").read_text() == as_markdown(), "run: make docs"


def test_types_page_is_up_to_date():
    assert (ROOT / "docs" / "types.md").read_text() == dtypes.as_markdown(), "run: make docs"


def test_table_of_types_is_the_engines():
    for name, cells in dtypes.CELLS.items():
        for op in sirtaki.ReduceOp:
            possible = not cells[op.name].startswith("no: ")
            assert _native.is_reducible(dtypes.dtype_code(_dtype(name)), op) == possible, (name, op)


def _dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def test_every_page_that_is_linked_exists():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in page.read_text().split("](")[1:]:
            target = link.split(")")[0].split("#")[0]
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"

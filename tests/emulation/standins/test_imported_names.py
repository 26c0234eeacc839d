"""What libraries import of packages: each name is there, fails like a missing package's, or refuses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import gapless
from gapless.emulation.standins import finder
from gapless.errors import NotEmulated


class Imported(NamedTuple):
    """A name that a library imports from a module, and how; "-" is the module itself."""

    library: str
    module: str
    name: str
    how: str

    @property
    def statements(self) -> str:
        """What the library writes, which leaves the name's value in ``value``."""
        if self.how == "attribute":
            return f"import {self.module} as module\nvalue = module.{self.name}\n"
        text = f"import {self.module} as value" if self.name == "-" else self.imported
        if self.how == "plain":
            return f"{text}\n"
        return f"try:\n    {text}\nexcept ImportError:\n    value = None\n"

    @property
    def imported(self) -> str:
        return f"from {self.module} import {self.name} as value"


ROWS = [
    Imported(*line.split())
    for line in Path(__file__).with_name("imported_names.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def emulated() -> Iterator[Any]:
    with gapless.emulate("H100") as emulation:  # which has what needs Hopper, too
        yield emulation


def run(path: Path, text: str) -> dict[str, Any]:
    """The names that the code `text` leaves, run as a file of the user's own."""
    path.write_text(text)
    values: dict[str, Any] = {"__name__": "users"}
    exec(compile(text, str(path), "exec"), values)
    return values


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.library}-{row.module}.{row.name}-{row.how}")
def test_each_name(row: Imported, emulated: Any, tmp_path: Path) -> None:
    package = finder.package_of(row.module.partition(".")[0])
    assert package is not None
    value = run(tmp_path / "one.py", row.statements)["value"]
    if value is None:
        assert row.how == "guarded"  # the library goes on as without the package
        return
    lacks = getattr(type(value), "lacks", None) or vars(value).get("lacks")
    if row.how != "guarded" and lacks:
        assert not isinstance(1, value)
        with pytest.raises(NotEmulated, match=rf"no `{row.module}\.{row.name}`"):
            value()


def test_a_class_that_is_missing_can_be_derived_from_and_names_what_it_lacks(
    emulated: Any, tmp_path: Path
) -> None:
    values = run(
        tmp_path / "derived.py",
        "from transformer_engine.pytorch.tensor import QuantizedTensor\n"
        "import transformer_engine.pytorch as te\n"
        "class Attention(te.MultiheadAttention):\n    pass\n"
        "is_quantized = isinstance(3, QuantizedTensor)\n"
        "has = hasattr(te, 'TransformerLayer')\n",
    )
    assert (values["is_quantized"], values["has"]) == (False, False)
    with pytest.raises(NotEmulated, match=r"transformer-engine has no `.*MultiheadAttention`.*derived.py"):
        run(tmp_path / "derived.py", "import transformer_engine.pytorch as te\nte.MultiheadAttention(3)\n")
    with pytest.raises(NotEmulated, match=r"QuantizedTensor\.make_like"):
        values["QuantizedTensor"].make_like()


def test_an_attribute_fails_as_the_handler_around_it_expects(emulated: Any, tmp_path: Path) -> None:
    text = (
        "def read(kind):\n    pass\n"
        "try:\n    import transformer_engine.pytorch as te\n    layer = te.Gone\n"
        "except {error}:\n    layer = None\n"
    )
    for error in ("ImportError", "(ImportError, OSError)", "AttributeError", "Exception"):
        assert run(tmp_path / f"{len(error)}.py", text.format(error=error))["layer"] is None


def test_a_module_that_is_missing_is_looked_for_in_vain(emulated: Any) -> None:
    assert importlib.util.find_spec("transformer_engine") is not None
    assert importlib.util.find_spec("transformer_engine.no_such_module") is None
    assert "transformer_engine.no_such_module" not in sys.modules

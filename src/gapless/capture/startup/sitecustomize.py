"""Runs when a Python process below a run of Gapless starts, and begins the emulated device there.

It must cost almost nothing if torch is never imported, so Gapless is imported only after torch. Another
`sitecustomize` that this one shadows still runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _run_original() -> None:
    """Import the `sitecustomize` that Python would have found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # the next one on the path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


class _AfterTorch:
    """An import finder that begins the emulation once torch has been imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]  # a finder, as far as importlib asks
        spec = importlib.util.find_spec("torch")
        loader = getattr(spec, "loader", None)
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        run = loader.exec_module

        def exec_module(module: object) -> None:
            del loader.exec_module
            run(module)
            _begin()

        loader.exec_module = exec_module
        return spec


def _begin() -> None:
    try:
        from gapless.capture.children import begin
    except ImportError:  # another Python than the one Gapless is installed for
        return
    begin()


try:
    _run_original()
finally:
    if os.environ.get("GAPLESS_CHILDREN"):
        sys.meta_path.insert(0, _AfterTorch())  # type: ignore[arg-type]

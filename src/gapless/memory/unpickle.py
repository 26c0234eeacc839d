"""Read pickles of plain containers without running any code in them."""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

from gapless.errors import UnreadableInput
from gapless.memory.opcodes import check_pickle


class _NoImports:
    """Loads dictionaries, lists, tuples, numbers and text; refuses everything that must be imported."""

    def find_class(self, module: str, name: str) -> Any:
        raise _NeedsImport(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _NeedsImport("an object from another file")


class _FastUnpickler(_NoImports, pickle.Unpickler):
    """The C implementation."""


_Python: Any = pickle._Unpickler  # the Python implementation


class _TextKeyUnpickler(_NoImports, _Python):  # type: ignore[misc]  # base class without declaration
    """Allows only text as keys: other keys can be chosen to collide."""

    stack: list[Any]

    def load_dict(self) -> None:
        _require_text(self.stack[::2])
        _Python.load_dict(self)

    def load_setitems(self) -> None:
        _require_text(self.stack[::2])
        _Python.load_setitems(self)

    def load_setitem(self) -> None:
        _require_text(self.stack[-2:-1])
        _Python.load_setitem(self)

    dispatch: ClassVar[dict[int, Any]] = {
        **_Python.dispatch,
        pickle.DICT[0]: load_dict,
        pickle.SETITEMS[0]: load_setitems,
        pickle.SETITEM[0]: load_setitem,
    }


def _require_text(keys: list[Any]) -> None:
    for key in keys:
        if type(key) is not str:
            raise _NotASnapshot(f"a large dictionary with keys that are not text ({type(key).__name__})")


_MAX_ERROR_CHARACTERS = 120
"""An error may quote the whole file."""


class _NotASnapshot(Exception):
    """Contents that no snapshot has."""


class _NeedsImport(Exception):
    """The pickle contains something that is no plain value."""


def load_plain(data: bytes, name: str) -> Any:
    """Load the pickle `data`; `name` is used in messages.

    Raises:
        UnreadableInput: it is damaged, or needs an import.
    """
    problem, careful = check_pickle(data)
    if problem:
        raise UnreadableInput(f"{name} is not a pickle, or is damaged: {problem}")
    kind: type[Any] = _TextKeyUnpickler if careful else _FastUnpickler
    try:
        return kind(io.BytesIO(data)).load()
    except _NotASnapshot as error:
        raise UnreadableInput(f"{name} is not a memory snapshot: it has {error}") from None
    except _NeedsImport as error:
        raise UnreadableInput(
            f"{name} is a pickle that imports {error}: a memory snapshot contains only plain values, and "
            "Gapless reads nothing else"
        ) from None
    except (MemoryError, RecursionError):
        raise UnreadableInput(
            f"{name} is a pickle that is too large or too deeply nested to be a snapshot"
        ) from None
    except Exception as error:  # damaged pickles raise anything
        reason = str(error).partition("\n")[0][:_MAX_ERROR_CHARACTERS] or type(error).__name__
        raise UnreadableInput(f"{name} is not a pickle, or is damaged: {reason}") from None

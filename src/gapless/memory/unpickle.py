"""Pickles of plain containers, read without running anything that is in them."""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

from gapless.errors import UnreadableInput
from gapless.memory.opcodes import survey


class _Nothing:
    """Knows dictionaries, lists, tuples, numbers and text, and nothing that has to be imported."""

    def find_class(self, module: str, name: str) -> Any:
        raise _Foreign(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Foreign("an object from another file")


class _Plain(_Nothing, pickle.Unpickler):
    """The fast one."""


_Python: Any = pickle._Unpickler  # the one that is written in Python


class _Careful(_Nothing, _Python):  # type: ignore[misc]  # of a class that is not declared
    """Takes text alone for a key: of other keys someone may choose many that collide."""

    stack: list[Any]

    def load_dict(self) -> None:
        _all_text(self.stack[::2])
        _Python.load_dict(self)

    def load_setitems(self) -> None:
        _all_text(self.stack[::2])
        _Python.load_setitems(self)

    def load_setitem(self) -> None:
        _all_text(self.stack[-2:-1])
        _Python.load_setitem(self)

    dispatch: ClassVar[dict[int, Any]] = {
        **_Python.dispatch,
        pickle.DICT[0]: load_dict,
        pickle.SETITEMS[0]: load_setitems,
        pickle.SETITEM[0]: load_setitem,
    }


def _all_text(keys: list[Any]) -> None:
    for key in keys:
        if type(key) is not str:
            raise _Odd(f"a large dictionary with keys that are not text ({type(key).__name__})")


_SAID = 120
"""Characters of an error that are repeated: it may quote all of the file."""


class _Odd(Exception):
    """What no snapshot has."""


class _Foreign(Exception):
    """The pickle wants something that is no plain value."""


def plain(data: bytes, name: str) -> Any:
    """The value in the pickle `data`; `name` stands for it in messages.

    Raises:
        UnreadableInput: it is damaged, or wants to import something.
    """
    why_not, careful = survey(data)
    if why_not:
        raise UnreadableInput(f"{name} is not a pickle, or is damaged: {why_not}")
    kind: type[Any] = _Careful if careful else _Plain
    try:
        return kind(io.BytesIO(data)).load()
    except _Odd as error:
        raise UnreadableInput(f"{name} is not a memory snapshot: it has {error}") from None
    except _Foreign as error:
        raise UnreadableInput(
            f"{name} is a pickle that imports {error}: a memory snapshot contains only plain values, and "
            "Gapless reads nothing else"
        ) from None
    except (MemoryError, RecursionError):
        raise UnreadableInput(
            f"{name} is a pickle that is too large or too deeply nested to be a snapshot"
        ) from None
    except Exception as error:  # what a damaged pickle raises is anything at all
        reason = str(error).partition("\n")[0][:_SAID] or type(error).__name__
        raise UnreadableInput(f"{name} is not a pickle, or is damaged: {reason}") from None

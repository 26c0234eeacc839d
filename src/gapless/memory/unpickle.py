"""Pickles of plain containers, read without running anything that is in them."""

from __future__ import annotations

import io
import pickle
from typing import Any

from gapless.errors import UnreadableInput
from gapless.memory.opcodes import problem


class _Plain(pickle.Unpickler):
    """Knows dictionaries, lists, tuples, numbers and text, and nothing that has to be imported."""

    def find_class(self, module: str, name: str) -> Any:
        raise _Foreign(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Foreign("an object of another file")


class _Foreign(Exception):
    """The pickle wants something that is no plain value."""


def plain(data: bytes, name: str) -> Any:
    """The value in the pickle `data`; `name` stands for it in messages.

    Raises:
        UnreadableInput: it is damaged, or wants to import something.
    """
    why_not = problem(data)
    if why_not:
        raise UnreadableInput(f"{name} is no pickle, or a damaged one: {why_not}")
    try:
        return _Plain(io.BytesIO(data)).load()
    except _Foreign as error:
        raise UnreadableInput(
            f"{name} is a pickle that imports {error}: a memory snapshot has plain values only, "
            "and nothing else is read"
        ) from None
    except (MemoryError, RecursionError):
        raise UnreadableInput(f"{name} is a pickle that is too large or too deep to be a snapshot") from None
    except Exception as error:  # what a damaged pickle raises is anything at all
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UnreadableInput(f"{name} is no pickle, or a damaged one: {reason}") from None

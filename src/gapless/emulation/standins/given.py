"""Replacements that users register for CUDA code of their own: `gapless.standin`."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from gapless.errors import GaplessError, UsageError

F = TypeVar("F", bound=Callable[..., Any])


class KernelReplacement(NamedTuple):
    """A function that replaces a kernel, and how often the real one makes the CPU wait."""

    function: Callable[..., Any]
    waits: int


_replacements: dict[str, KernelReplacement] = {}


def standin(name: str, *, waits: int = 0) -> Callable[[F], F]:
    """Compute `name` with the decorated function, in plain torch, if there is no GPU.

    `name` is an operator (``"mylib::scan"``) or a function of a CUDA extension (``"my_ext.scan"``). The
    function gets the arguments of the real one. All its operators together count as one kernel, and `waits`
    says how often the real one makes the CPU wait. On a real GPU this does nothing.

    Raises:
        UsageError: `name` names neither, or `waits` is negative.

    >>> @standin("mylib::double")
    ... def double(x):
    ...     return 2 * x
    """
    owner, colons, inner = name.partition("::")
    if not colons:
        owner, _, inner = name.rpartition(".")
    if not owner or not inner:
        raise UsageError(f'standin({name!r}): an operator is "library::name", a function "extension.name"')
    if waits < 0:
        raise UsageError(f"standin({name!r}): waits={waits} must not be negative")

    def register(function: F) -> F:
        _replacements[name] = KernelReplacement(function, waits)
        return function

    return register


def read(files: Iterable[str]) -> None:
    """Run files that register replacements, each as a script of its own.

    Raises:
        UsageError: a file does not exist or fails.
    """
    for file in files:
        if not os.path.isfile(file):
            raise UsageError(f"--standin {file}: there is no such file")
        try:
            runpy.run_path(file, run_name="standins")
        except GaplessError:
            raise
        except Exception as error:  # anybody's code
            raise UsageError(f"--standin {file} failed: {type(error).__name__}: {error}") from error


def find_replacement(*names: str) -> KernelReplacement | None:
    """Return the replacement for the first of `names` that has one."""
    return next((_replacements[name] for name in names if name in _replacements), None)

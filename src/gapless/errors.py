"""The exceptions of Gapless, each with its exit status."""

from __future__ import annotations

import importlib.util

EXIT_OK = 0
"""Exit status of a command without findings or errors."""
EXIT_FINDINGS = 1
"""Exit status for findings, or a script that failed: what a linter returns."""
EXIT_USAGE = 2
"""Exit status for a wrong command line, as click's."""
EXIT_UNREADABLE = 3
"""Exit status for a file that cannot be read."""


class GaplessError(Exception):
    """An error that the user can act on, shown as one or two lines without a traceback.

    The message says what was found and what to do about it.
    """

    exit_code = EXIT_UNREADABLE


class UsageError(GaplessError):
    """The command line or a call asks for something that does not exist."""

    exit_code = EXIT_USAGE


class UnreadableInput(GaplessError):
    """A file cannot be read as what it should be."""


class NotEmulated(GaplessError, RuntimeError):
    """The script needs something that cannot exist without a real CUDA device."""


class EmulationDefect(NotEmulated):
    """Gapless itself failed while emulating the device; the script is not at fault."""


class RaceError(GaplessError, RuntimeError):
    """Nothing orders two accesses to the same memory inside :func:`gapless.no_waits`."""

    exit_code = EXIT_FINDINGS


class WaitError(GaplessError, RuntimeError):
    """The host waited for the device inside :func:`gapless.no_waits`."""

    exit_code = EXIT_FINDINGS


def require_torch(activity: str) -> None:
    """Import torch or say why not; `activity` is what needs it: ``gapless check runs your script``.

    Raises:
        UsageError: torch is not installed, or its import fails.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ModuleNotFoundError, ValueError):  # refused by an import hook; a stub without a spec
        spec = None
    if spec is None:
        raise UsageError(f"{activity} and so needs PyTorch: pip install torch")
    try:
        importlib.import_module("torch")
    except Exception as error:  # whatever a broken installation raises
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UsageError(f"{activity} and so needs PyTorch, whose import fails: {why}") from None

"""The exceptions of Gapless and the exit status each one carries."""

from __future__ import annotations

import importlib.util

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_UNREADABLE = 3


class GaplessError(Exception):
    """Something the user can act on: shown as one or two lines, never as a traceback.

    The message says what was seen and what to do about it.
    """

    exit_code = EXIT_UNREADABLE


class UsageError(GaplessError):
    """The command line or the call asks for something that does not exist."""

    exit_code = EXIT_USAGE


class UnreadableInput(GaplessError):
    """A file that was named cannot be read as what it should be."""


class NotEmulated(GaplessError, RuntimeError):
    """The script needs something that cannot exist without a real CUDA device."""


class EmulationDefect(NotEmulated):
    """Gapless itself failed while it emulated the device: its own mistake, and not the script's."""


class RaceError(GaplessError, RuntimeError):
    """Two accesses to the same memory, inside :func:`gapless.no_waits`, that nothing orders."""

    exit_code = EXIT_FINDINGS


class WaitError(GaplessError, RuntimeError):
    """The host waited for the device inside :func:`gapless.no_waits`."""

    exit_code = EXIT_FINDINGS


def require_torch(activity: str) -> None:
    """Raise unless torch is installed; `activity` says what needs it: ``gapless check runs your script``.

    Nothing is imported, so a torch that is installed but broken still fails with its own error.

    Raises:
        UsageError: torch is not installed.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ModuleNotFoundError, ValueError):  # refused by an import hook; a stub without a spec
        spec = None
    if spec is None:
        raise UsageError(f"{activity} and so needs PyTorch: pip install torch")

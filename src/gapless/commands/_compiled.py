"""What ``gapless check`` does about compiled code: compiles it after the run, in a copy of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gapless.commands._loaders import can_measure, undisturbed
from gapless.model import Session

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

BUDGET = 60.0
"""Seconds of the CPU's time for all that a script compiles."""
PATIENCE = 180.0
"""Seconds after which it is left alone, on a busy machine."""
_SWITCH = "--no-compile-pass skips this"
_DROPPED = (
    "compiled code was not analyzed: the script dropped it before its end, and it uses what cannot be copied"
)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that are about compiled code."""
    passed = click.option(
        "--compile-pass/--no-compile-pass",
        "compiled",
        default=True,
        help="After the run, compile what the script compiles, to find graph breaks and recompilations; on "
        "by default.",
    )
    what_if = click.option(
        "--what-if",
        type=click.Choice(["compile"]),
        multiple=True,
        help="Also estimate the step with its forward and backward pass compiled.",
    )
    return what_if(passed(command))


def with_compiled(session: Session, emulator: Emulator, tell: Callable[[str], object]) -> Session:
    """`session` with what torch.compile would make of what the run compiled; where that cannot be told, with
    a note that says why."""
    calls = emulator.compiled
    if not calls.targets and calls.uncopied:
        return _noted(session, _DROPPED)
    if not calls.targets or not can_measure(session):
        return session
    from gapless.loading.forked import LoaderError, TooSlow, available
    from gapless.torch_internals import off, supports_compile_pass

    if not supports_compile_pass:
        return _noted(session, off("supports_compile_pass"))
    if not available():
        return _noted(session, "compiled code was not analyzed: this system cannot fork a process")
    if calls.failed:
        return _noted(session, f"calls of compiled code could not be saved: {calls.failed}")
    tell(f"compiling the script's compiled functions ({_SWITCH})")
    try:
        return _compiled(session, emulator)
    except TooSlow:
        why = f"compiling took longer than {PATIENCE:.0f} s ({_SWITCH})"
    except LoaderError as error:
        why = f"the compiler failed: {str(error).rpartition(': ')[2]}"
    except Exception as error:  # what was seen in the run is not to be lost for it
        why = f"the compiler failed: {type(error).__name__}: {error}".split("\n")[0]
    return _noted(session, f"graph breaks and recompilations were not checked: {why}")


def _compiled(session: Session, emulator: Emulator) -> Session:
    """For the GPU; where that is more than this torch can do, as it would be compiled for the CPU."""
    from gapless.capture.compiled.again import Pass, compile_again
    from gapless.loading.forked import Ended, measured

    def made(on_gpu: bool) -> Pass:
        with undisturbed():
            return measured(
                lambda tell: compile_again(emulator, BUDGET, on_gpu), Pass, PATIENCE, lambda part: None
            )

    try:
        found = made(True)
    except Ended:
        found = made(False)
    else:
        if any(one.failed for one in found.compiled):
            other = made(False).compiled
            both = zip(found.compiled, other, strict=True)
            better = tuple(two if one.failed and not two.failed else one for one, two in both)
            found = msgspec.structs.replace(found, compiled=better)
    session = msgspec.structs.replace(session, compiled=found.compiled)
    if found.cut:
        calls = f"{found.cut} of {len(emulator.compiled.kept)} calls"
        return _noted(session, f"{calls} were not compiled again: the limit of {BUDGET:.0f} s was reached")
    return session


def _noted(session: Session, note: str) -> Session:
    return msgspec.structs.replace(session, notes=(*session.notes, note))

"""Compile a script's compiled functions once more, after the run, in a copy of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gapless.commands._loaders import can_measure, without_recording
from gapless.model import Session

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator

COMPILE_BUDGET = 60.0
"""CPU seconds for everything that a script compiles."""
MAX_COMPILE_SECONDS = 180.0
"""Seconds after which the compile pass is given up, on a busy machine."""
_SWITCH = "--no-compile-pass skips this"
_DROPPED = (
    "compiled code was not analyzed: the script dropped it before its end, and it uses what cannot be copied"
)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about compiled code to a command."""
    passed = click.option(
        "--compile-pass/--no-compile-pass",
        "compiled",
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


def add_compile_results(session: Session, emulator: Emulator, tell: Callable[[str], object]) -> Session:
    """Return `session` with the graph breaks and recompilations of what it compiled, or a note why not."""
    calls = emulator.compiled
    if not calls.targets and calls.uncopied:
        return _add_note(session, _DROPPED)
    if not calls.targets or not can_measure(session):
        return session
    from gapless.loading.forked import LoaderError, TooSlow, can_fork
    from gapless.torch_internals import missing_note, supports_compile_pass

    if not supports_compile_pass:
        return _add_note(session, missing_note("supports_compile_pass"))
    if not can_fork():
        return _add_note(session, "compiled code was not analyzed: this system cannot fork a process")
    if calls.failed:
        return _add_note(session, f"calls of compiled code could not be saved: {calls.failed}")
    tell(f"compiling the script's compiled functions ({_SWITCH})")
    try:
        return _compile_again(session, emulator)
    except TooSlow:
        why = f"compiling took longer than {MAX_COMPILE_SECONDS:.0f} s ({_SWITCH})"
    except LoaderError as error:
        why = f"the compiler failed: {str(error).rpartition(': ')[2]}"
    except Exception as error:  # a failing compiler must not lose what the run recorded
        why = f"the compiler failed: {type(error).__name__}: {error}".split("\n")[0]
    return _add_note(session, f"graph breaks and recompilations were not checked: {why}")


def _compile_again(session: Session, emulator: Emulator) -> Session:
    """Compile for the GPU, or for the CPU where this torch cannot."""
    from gapless.capture.compiled.again import Pass, compile_again
    from gapless.loading.forked import Ended, run_in_copy

    def compile_in_copy(on_gpu: bool) -> Pass:
        with without_recording():
            return run_in_copy(
                lambda tell: compile_again(emulator, COMPILE_BUDGET, on_gpu),
                Pass,
                MAX_COMPILE_SECONDS,
                lambda part: None,
            )

    try:
        compile_pass = compile_in_copy(True)
    except Ended:
        compile_pass = compile_in_copy(False)
    else:
        if any(call.failed for call in compile_pass.compiled):
            other = compile_in_copy(False).compiled
            both = zip(compile_pass.compiled, other, strict=True)
            better = tuple(
                cpu_call if call.failed and not cpu_call.failed else call for call, cpu_call in both
            )
            compile_pass = msgspec.structs.replace(compile_pass, compiled=better)
    session = msgspec.structs.replace(session, compiled=compile_pass.compiled)
    if compile_pass.cut:
        calls = f"{compile_pass.cut} of {len(emulator.compiled.kept)} calls"
        return _add_note(
            session, f"{calls} were not compiled again: the limit of {COMPILE_BUDGET:.0f} s was reached"
        )
    return session


def _add_note(session: Session, note: str) -> Session:
    return msgspec.structs.replace(session, notes=(*session.notes, note))

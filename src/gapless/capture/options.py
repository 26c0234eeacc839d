"""`CaptureOptions`: how a script is captured; the same in each of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gapless.emulation.options import EmulatorOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.emulation.emulator import Emulator
    from gapless.model import StepMark
    from gapless.model.assumption import Switch


class CaptureOptions(msgspec.Struct, frozen=True):
    """The machine that a script runs on, and when and how its run is measured.

    `steps`: steady steps to run for; None runs the whole script.
    `loader`: measure the loaders that feed the steps, in the first rank, for about `loader_budget`
    seconds.
    `standin_files`: the user's own stand-ins, run before the script.
    """

    emulator: EmulatorOptions = EmulatorOptions(lasting=True, inference=True)
    steps: int | None = 10
    loader: bool = True
    loader_budget: float = 6.0
    standin_files: tuple[str, ...] = ()

    def emulating(self, **changes: Any) -> CaptureOptions:
        """Return these options with `changes` of the emulator's."""
        return msgspec.structs.replace(self, emulator=msgspec.structs.replace(self.emulator, **changes))

    def make_emulator(
        self,
        on_mark: Callable[[StepMark], None],
        between_marks: Callable[[float], None] | None = None,
        on_switch: Callable[[Switch], None] | None = None,
    ) -> Emulator:
        """Make the device; see :class:`Emulator` for the functions that it calls.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        from gapless.emulation.emulator import Emulator
        from gapless.emulation.standins.given import read

        read(self.standin_files)
        return Emulator(self.emulator, on_mark=on_mark, between_marks=between_marks, on_switch=on_switch)

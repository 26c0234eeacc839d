"""`EmulatorOptions`: which machine is emulated, and what is recorded on it."""

from __future__ import annotations

import msgspec

from gapless.emulation.distributed.world import World
from gapless.model.gpus import Gpu


class EmulatorOptions(msgspec.Struct, frozen=True):
    """A machine with `devices` GPUs of the kind `gpu`, and what is recorded on it.

    `gpu`: a name (``"H100"``) or a `Gpu`; None is the A100 80GB.
    `devices`: None is the number of ranks that torchrun started on this machine, or 1; with a `world_size`
    up to 8.
    `world_size`, `rank`: this process is that rank of so many, and runs without the others.
    `launched`: the process was started from within such a world, whose environment is no launcher's.
    `programme`: record the device work of the last steps. `graphs`: with the source line of each entry.
    `memory`: record the requests for device memory.
    `compiled`: keep the calls of compiled functions, and the functions, to be compiled after the run.
    `dry`: run without values of large tensors; None computes them until that costs too much.
    `assume`: the values that reads return in a dry run, by ``file:line``.
    `late_copies`: copies to the host arrive only when something waits for them.
    `standins`: who sees stand-ins for packages that are not installed: code that imports or asks for them
    (None), everyone (True), or nobody (False).
    `lasting`: stay on until the process ends, and start sooner: import no part of torch that the script may
    never use.
    `own`: folders, files and packages whose code is the user's own although it is installed.
    `inference`: also count the calls of models, for scripts that train nothing.
    """

    gpu: Gpu | str | None = None
    devices: int | None = None
    world_size: int | None = None
    rank: int | None = None
    launched: bool = False
    programme: bool = False
    graphs: bool = False
    memory: bool = False
    compiled: bool = False
    dry: bool | None = False
    assume: dict[str, float] = {}
    late_copies: bool = False
    standins: bool | None = None
    own: tuple[str, ...] = ()
    lasting: bool = False
    inference: bool = False

    def world(self) -> World | None:
        """Return the ranks that are simulated, if any.

        Raises:
            UsageError: there is no such rank, or a launcher started this process as one of several.
        """
        if self.world_size is None:
            return None
        return World.of(self.world_size, self.rank or 0, self.devices, launched=self.launched)

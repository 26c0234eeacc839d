"""What the emulated device remembers per thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from gapless.emulation.support.places import HOST


class Local(threading.local):
    """One thread's state.

    `device`: current device index. `quiet`: waits are not counted while > 0 (they are inside a call that
    counts as one). `call`: the Python call under way where it tells more than the operator. `explicit`: a
    Python factory call is under way, so a tensor without a device is the host's by the user's wish.
    `host_asked`: that call asked for the host in so many words. `backward`: device of the backward pass
    under way. `entering`: the torch Python function whose body was entered last, with the mode on.
    `orphaned`: some C++ code has made a tensor without saying where. `above`: the stack that started this
    thread. `host_values`: numbers of the autograd nodes of assignments whose value was on the host.
    `made`: this thread's calls that made autograd nodes. `scaled`: the optimizer whose step a
    GradScaler decides upon. `stepping`: what is known of the optimizer's step under way. `modules`: so many
    modules are being called, one from the other. `target`: the device that a copy under way goes to.
    `coalescing`: collectives are being gathered, and are one. `graphed`: the capture under way has seen the
    operator that runs. `compiled`: code runs that the script compiled; `compiled_nodes`: numbers of the
    autograd nodes that such code made, from and to. `fused`: operators stand for one kernel that a compiler
    makes of them, with their constants in it: nothing waits. `constants`: storages on the host that code has
    made which inductor compiles, by their number: where they go to the device, the compiler makes them there.
    """

    def __init__(self) -> None:
        self.device = 0
        self.quiet = 0
        self.call = ""
        self.explicit = False
        self.host_asked = False
        self.backward = HOST
        self.entering: object = None
        self.orphaned = False
        self.above: tuple[int, ...] = ()
        self.host_values: set[int] = set()
        self.made: Any = None
        self.scaled: Any = None
        self.stepping: Any = None
        self.modules = 0
        self.target = HOST
        self.coalescing = 0
        self.graphed = False
        self.compiled = False
        self.fused = False
        self.constants: dict[int, Any] | None = None
        self.compiled_nodes: deque[tuple[int, int]] = deque(maxlen=4096)


local = Local()

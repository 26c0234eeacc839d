"""State of the emulated device per thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from gapless.emulation.support.places import HOST


class Local(threading.local):
    """One thread's state.

    `device`: current device index. `quiet`: waits are not counted while > 0 (they are inside a call that
    counts as one). `call`: the Python call under way if it says more than the operator. `explicit`: a Python
    factory call is under way, so a tensor without a device was meant for the host. `host_asked`: that call
    names the host explicitly. `backward`: device of the running backward pass. `entering`: the torch Python
    function whose body was entered last, with the mode on. `orphaned`: C++ code has created a tensor without
    a known device. `above`: the stack that started this thread. `host_values`: sequence numbers of autograd
    nodes of assignments whose value was on the host. `forward_calls`: this thread's calls that created
    autograd nodes. `scaled`: the optimizer whose step a GradScaler decides on. `stepping`: the optimizer step
    under way (`Stepping`). `modules`: depth of nested module calls. `target`: destination device of the copy
    under way. `coalescing`: > 0 while collectives are gathered into one. `graphed`: the current capture has
    recorded the running operator. `compiled`: code runs that the script compiled; `compiled_nodes`: ranges
    (from, to) of sequence numbers of autograd nodes that such code created. `fused`: operators stand for one
    kernel that a compiler makes of them, constants included: nothing waits. `constants`: host storages, by
    address, created by code that inductor compiles: it creates them on the device instead.
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
        self.forward_calls: Any = None
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

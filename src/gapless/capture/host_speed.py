"""How fast this machine's CPU works through small operators, beside a usual one: half a second, once.

A training step of few elements on CPU tensors is all Python, dispatcher and autograd. Its time in parts of
what it takes on a usual host is `HostSpeed.factor`. The result is kept in the user's cache directory for this
processor, torch and Python.

It runs in a copy of the process (`os.fork`), so that the script finds a torch in which nothing has happened;
where there is no fork nothing is measured.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gapless.errors import UnreadableInput
from gapless.files.output import write_whole
from gapless.model.programme import HostSpeed

USUAL = 800_000.0
"""Nanoseconds that the probe takes on a usual host. `benchmarks/sheets/host.md` says how that was found."""
SECONDS = 0.5
_LIMIT = 3.0
"""Seconds after which a measurement that has not come back is given up."""
_QUIET = 0.9
"""The share of a core that the measurement must have had to be kept."""
_ROOM = (0.1, 10.0)
"""Factors outside of these are no CPU's."""


def host_speed(
    probe: Callable[[], tuple[float, float]] | None = None, cache: Path | None = None
) -> HostSpeed | None:
    """This machine's speed, from the cache or measured now; None where it cannot be.

    What was measured while others used the machine is not kept.

    Args:
        probe: gives what `timed` gives, instead of the measurement in a copy of this process.
        cache: the file it is kept in, instead of the one in the user's cache directory.
    """
    file = cache or _cache()
    key = f"{processor()} | torch {_torch()} | Python {platform.python_version()}"
    known = _read(file)
    factor = known.get(key, 0.0)
    if not _ROOM[0] <= factor <= _ROOM[1]:
        time, had = (probe or _apart)()
        factor = round(time / USUAL, 3)
        if not _ROOM[0] <= factor <= _ROOM[1]:
            return None
        if had >= _QUIET:
            _write(file, {**known, key: factor})
    return HostSpeed(factor=factor, measured=True, cpu=processor(), apart=not _has_gpu())


def _has_gpu() -> bool:
    """Whether a driver of a GPU is on this machine."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def processor() -> str:
    """The CPU's model name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def probe_step() -> Callable[[], object]:
    """The step that is timed: layers of eight elements forward, backward, and an update as an optimizer's.

    No `torch.optim`, whose first use imports for a second what this has no use for.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    with torch.random.fork_rng(devices=[]):
        layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(6)]
    model = nn.Sequential(*layers)
    weights = list(model.parameters())
    momenta = [torch.zeros_like(one) for one in weights]
    x = torch.ones(2, 8)

    def step() -> None:
        y = x
        for layer in model:
            y = y + functional.relu(layer(y)).transpose(0, 1).contiguous().transpose(0, 1) * 0.5
        gradients = torch.autograd.grad(y.pow(2).mean(), weights)
        with torch.no_grad():
            for weight, momentum, gradient in zip(weights, momenta, gradients, strict=True):
                momentum.mul_(0.9).add_(gradient)
                weight.sub_(momentum, alpha=1e-3)

    return step


def timed(step: Callable[[], object], seconds: float = SECONDS) -> tuple[float, float]:
    """Nanoseconds of this thread for a call, as the quickest tenth have it (others disturb the rest), and the
    share of a core that it had."""
    for _ in range(10):
        step()
    found: list[int] = []
    began, worked = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds or len(found) < 20:
        before = time.thread_time_ns()
        step()
        found.append(time.thread_time_ns() - before)
    had = (time.thread_time() - worked) / max(time.monotonic() - began, 1e-9)
    return float(statistics.quantiles(found, n=10)[0]), had


def _apart() -> tuple[float, float]:
    """The probe's times, measured in a copy of this process; zero where that cannot be."""
    if not hasattr(os, "fork") or sys.platform == "darwin":
        return 0.0, 0.0
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads of this process do not go on in the copy
        child = os.fork()
    if not child:
        with suppress(BaseException):
            os.close(receive)
            os.write(send, json.dumps(timed(probe_step())).encode())
        os._exit(0)
    os.close(send)
    try:
        came = select.select([receive], [], [], _LIMIT)[0]
        if not came:
            os.kill(child, signal.SIGKILL)
        told = os.read(receive, 200) if came else b""
    finally:
        os.close(receive)
        os.waitpid(child, 0)
    time_taken, had = json.loads(told or b"[0, 0]")
    return float(time_taken), float(had)


def _torch() -> str:
    import torch

    return str(torch.__version__)


def _cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(folder) if folder else Path.home() / ".cache") / "gapless" / "host.json"


def _read(file: Path) -> dict[str, float]:
    """What is kept; nothing where the file is missing or no such file."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {key: float(one) for key, one in told.items() if isinstance(one, int | float)}


def _write(file: Path, told: dict[str, float]) -> None:
    """Keep it, where that is possible; as a whole or not at all."""
    with suppress(OSError, UnreadableInput):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(json.dumps(told, indent=1).encode(), file)

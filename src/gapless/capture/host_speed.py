"""The speed of this machine's CPU in small operators relative to a usual host: half a second, measured once.

A training step of few elements on CPU tensors is all Python, dispatcher and autograd. `HostSpeed.factor` is
its time divided by that on a usual host. The result is cached in the user's cache directory per processor,
torch and Python.

It runs in a copy of the process (`os.fork`), so that the script finds torch untouched; without fork nothing
is measured.
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

import msgspec

from gapless.errors import UnreadableInput
from gapless.files.output import write_whole
from gapless.model.programme import HostSpeed

USUAL = 800_000.0
"""Nanoseconds that the probe takes on a usual host; `benchmarks/sheets/host.md` says how it was measured."""
SECONDS = 0.5
"""Seconds of measuring: enough for hundreds of steps, short enough before each first run."""
_TIME_LIMIT = 3.0
"""Seconds after which a measurement that has not returned is given up."""
_MIN_CORE_SHARE = 0.9
"""Share of a core that the measurement must have had to be cached."""
_PLAUSIBLE_FACTORS = (0.1, 10.0)
"""Range of plausible factors; a measurement outside is discarded."""


def host_speed(
    probe: Callable[[], tuple[float, float]] | None = None, cache: Path | None = None
) -> HostSpeed | None:
    """Return this machine's speed, cached or measured now; None if it cannot be measured.

    A measurement disturbed by other programs is not cached.

    Args:
        probe: returns what `time_step` returns, instead of measuring in a copy of this process.
        cache: the cache file, instead of the one in the user's cache directory.
    """
    file = cache or _cache()
    key = f"{processor()} | torch {_torch()} | Python {platform.python_version()}"
    cached = _read_cache(file)
    factor = cached.get(key, 0.0)
    if not _PLAUSIBLE_FACTORS[0] <= factor <= _PLAUSIBLE_FACTORS[1]:
        time, core_share = (probe or _time_in_fork)()
        factor = round(time / USUAL, 3)
        if not _PLAUSIBLE_FACTORS[0] <= factor <= _PLAUSIBLE_FACTORS[1]:
            return None
        if core_share >= _MIN_CORE_SHARE:
            _write_cache(file, {**cached, key: factor})
    return HostSpeed(factor=factor, measured=True, cpu=processor(), apart=not _has_gpu())


def _has_gpu() -> bool:
    """Whether a GPU driver is on this machine."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def processor() -> str:
    """Return the CPU's model name, if the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def probe_step() -> Callable[[], object]:
    """Make the step to time: layers of eight elements forward and backward, and an optimizer-like update.

    It avoids `torch.optim`, whose first use spends a second on imports.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    with torch.random.fork_rng(devices=[]):
        layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(6)]
    model = nn.Sequential(*layers)
    weights = list(model.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]
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


def time_step(step: Callable[[], object], seconds: float = SECONDS) -> tuple[float, float]:
    """Return the nanoseconds of thread time per call (the quickest tenth, as others disturb the rest), and
    the share of a core that this thread had.
    """
    for _ in range(10):
        step()
    times: list[int] = []
    began, worked = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds or len(times) < 20:
        before = time.thread_time_ns()
        step()
        times.append(time.thread_time_ns() - before)
    core_share = (time.thread_time() - worked) / max(time.monotonic() - began, 1e-9)
    return float(statistics.quantiles(times, n=10)[0]), core_share


def _time_in_fork() -> tuple[float, float]:
    """Return the probe's times measured in a copy of this process; zeros if that is impossible."""
    if not hasattr(os, "fork") or sys.platform == "darwin":
        return 0.0, 0.0
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads of this process do not go on in the copy
        child = os.fork()
    if not child:
        with suppress(BaseException):
            os.close(receive)
            os.write(send, json.dumps(time_step(probe_step())).encode())
        os._exit(0)
    os.close(send)
    try:
        ready = select.select([receive], [], [], _TIME_LIMIT)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
        answer = os.read(receive, 200) if ready else b""
    finally:
        os.close(receive)
        os.waitpid(child, 0)
    time_taken, core_share = json.loads(answer or b"[0, 0]")
    return float(time_taken), float(core_share)


def _torch() -> str:
    import torch

    return str(torch.__version__)


def _cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(folder) if folder else Path.home() / ".cache") / "gapless" / "host.json"


def _read_cache(file: Path) -> dict[str, float]:
    """Return the cached factors; none if the file is missing or damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (OSError, ValueError):  # errors of msgspec are ValueErrors
        return {}


def _write_cache(file: Path, factors: dict[str, float]) -> None:
    """Write the cache whole or not at all; failures are ignored."""
    with suppress(OSError, UnreadableInput):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(json.dumps(factors, indent=1).encode(), file)

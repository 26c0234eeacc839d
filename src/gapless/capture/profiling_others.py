"""Disable the script's own profiler while Gapless profiles: only one can run at a time."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any

import torch.autograd.profiler
import torch.profiler
from torch.autograd.profiler_util import EventList

from gapless.emulation.support.patches import Patches
from gapless.torch_internals import KinetoProfile

_EMPTY = '{"schemaVersion": 1, "traceEvents": []}\n'
_QUIET = ("prepare_trace", "start_trace", "stop_trace", "add_metadata", "add_metadata_json")
"""Methods of both classes that do nothing on a disabled profiler."""


class DisabledProfilers(AbstractContextManager["DisabledProfilers"]):
    """Makes every profiler except `ours` record nothing; ``on_step()`` is called when a script steps its own.

    ``with profile() as p: …`` still works; `p` has no results afterwards.
    """

    def __init__(self, on_step: Callable[[], object]) -> None:
        self.ours: list[Any] = []
        self.met = False
        self._on_step = on_step
        self._patches = Patches()

    def __enter__(self) -> DisabledProfilers:
        self._install_methods()
        self._install_results()
        self._install_legacy()
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.undo()

    def _is_ours(self, profiler: Any) -> bool:
        return any(profiler is ours for ours in self.ours)

    def _disable(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        """Replace a method for all profilers except ours."""
        real = getattr(owner, name, None)
        if real is None:  # of another version of torch
            return

        @wraps(real)
        def method(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours(profiler):
                return real(profiler, *args, **kwargs)
            self.met = True
            return instead(*args, **kwargs)

        self._patches.set(owner, name, method)

    def _install_methods(self) -> None:
        def nothing(*_: Any, **__: Any) -> None:
            return None

        for owner in (torch.profiler.profile, KinetoProfile):
            self._disable(owner, "start", nothing)
            self._disable(owner, "stop", nothing)
        for name in _QUIET:
            self._disable(KinetoProfile, name, nothing)
        self._disable(torch.profiler.profile, "step", self._handle_step)

    def _handle_step(self, *_: Any, **__: Any) -> None:
        self._on_step()

    def _install_results(self) -> None:
        self._disable(KinetoProfile, "events", _no_events)
        self._disable(KinetoProfile, "key_averages", _no_events)
        self._disable(KinetoProfile, "export_chrome_trace", _write_empty)
        self._disable(KinetoProfile, "export_stacks", lambda path, *_, **__: _write(path, ""))
        self._disable(KinetoProfile, "export_memory_timeline", lambda path, *_, **__: _write(path, ""))

    def _install_legacy(self) -> None:
        """Disable ``torch.autograd.profiler.profile``, which our profilers use inside without entering it."""
        legacy = torch.autograd.profiler.profile

        def enter(profiler: Any) -> Any:
            self.met = True
            profiler.enabled = False
            # What is asked for is this attribute, or in newer versions a property over the other one.
            for name in ("function_events", "_function_events"):
                with suppress(AttributeError):
                    setattr(profiler, name, _no_events())
            return profiler

        self._patches.set(legacy, "__enter__", wraps(legacy.__enter__)(enter))


def _no_events(*_: Any, **__: Any) -> Any:
    return EventList([])  # type: ignore[no-untyped-call]  # torch's own


def _write_empty(path: str, *_: Any, **__: Any) -> None:
    _write(path, _EMPTY)


def _write(path: str, text: str) -> None:
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "wt") as file:
        file.write(text)

"""What a stand-in's file declares: a package, and what its modules hold."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

PACKAGES = "gapless.emulation.standins.packages"
"""The folder of stand-ins: each file there is imported when somebody asks for the package it is named for."""

T = TypeVar("T")


class Package:
    """A package that another one stands in for.

    `name` is how it is imported, `distribution` how it is installed, `version` what it says of itself: the
    release whose source was read for it. `lacks` says what the stand-in does not do. It is there on GPUs of
    at least that compute `capability`: who has another seldom installs the package. `parts` are the modules
    beside its declaration that provide something. They are imported with the package alone: who only asks
    whether it is installed would else find its classes among the subclasses of torch's.

    >>> package = Package("fastops", "fast-ops", "1.2", lacks="computes in float32")
    >>> @package.provides("fastops", "fastops.ops")
    ... def double(x):
    ...     return 2 * x
    >>> sorted(package.modules["fastops.ops"])
    ['double']
    """

    def __init__(
        self,
        name: str,
        distribution: str,
        version: str,
        *,
        lacks: str,
        capability: tuple[int, int] = (0, 0),
        requests: tuple[str, ...] = (),
        parts: tuple[str, ...] = (),
    ) -> None:
        self.name, self.distribution, self.version, self.lacks = name, distribution, version, lacks
        self.capability, self.requests = capability, requests
        self._parts = [f"{PACKAGES}.{name}.{part}" for part in parts]
        self._modules: dict[str, dict[str, Any]] = {name: {"__version__": version}}

    @property
    def modules(self) -> dict[str, dict[str, Any]]:
        """What its modules hold, by name; imports its parts."""
        while self._parts:
            importlib.import_module(self._parts.pop(0))
        return self._modules

    def provides(self, *modules: str, name: str = "") -> Callable[[T], T]:
        """Register a function or class in these modules, under its own name or `name`."""

        def register(value: T) -> T:
            for module in modules:
                self.holds(module)[name or value.__name__] = value  # type: ignore[attr-defined]
            return value

        return register

    def holds(self, module: str, **values: Any) -> dict[str, Any]:
        """Register `values` in the module of that name, which there is from now on, and those around it."""
        parent = module.rpartition(".")[0]
        if parent:
            self.holds(parent)
        held = self._modules.setdefault(module, {})
        held.update(values)
        return held

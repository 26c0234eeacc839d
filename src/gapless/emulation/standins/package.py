"""The declaration of a stand-in: a package, and the contents of its modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

PACKAGES = "gapless.emulation.standins.packages"
"""The folder of declarations: each is imported when its package is asked for."""

T = TypeVar("T")


class Package:
    """A package that has a stand-in.

    `name` is its import name, `distribution` its name in the index, `version` the release that the stand-in
    follows. `lacks` says what the stand-in does not do. It is available on GPUs of at least that compute
    `capability`. `parts` are modules beside the declaration that provide something. They are imported only
    with the package: otherwise a mere query would add their classes to the subclasses of torch's.

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
        """The contents of its modules by module name; imports its parts."""
        while self._parts:
            importlib.import_module(self._parts.pop(0))
        return self._modules

    def provides(self, *modules: str, name: str = "") -> Callable[[T], T]:
        """Return a decorator that registers a function or class in `modules`, under its name or `name`."""

        def register(value: T) -> T:
            for module in modules:
                self.holds(module)[name or value.__name__] = value  # type: ignore[attr-defined]
            return value

        return register

    def holds(self, module: str, **values: Any) -> dict[str, Any]:
        """Register `values` in `module`, creating it and its parents; return the module's contents."""
        parent = module.rpartition(".")[0]
        if parent:
            self.holds(parent)
        held = self._modules.setdefault(module, {})
        held.update(values)
        return held

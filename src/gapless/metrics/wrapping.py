"""What is put around the ``update``, ``compute`` and ``forward`` of classes written for TorchMetrics."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gapless.metrics import declared
from gapless.metrics.checks import warn
from gapless.trees import mapped

ELSEWHERE = "Expected all tensors to be on"
"""How torch begins to say that an operator's tensors are on different devices."""


class OwnAttributes:
    """The names of a module's attributes beyond those that every module has: nothing for TorchScript."""

    def __get__(self, module: Any, kind: Any = None) -> list[str]:
        if module is None:
            return []
        return [name for name in (*vars(module), *module._modules) if name not in PLAIN]


PLAIN = frozenset(vars(nn.Module()))


def forward_declared(metric: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``forward`` of a metric that declares states does, by itself or in metrics inside."""
    holders = metric._holders()
    mergeable = all(one.full_state_update is False for one in holders)
    if not mergeable and not metric._parts:
        # What an update does depends on the states before it: once onto them, once for the batch alone.
        metric.update(*args, **kwargs)
        before = [(one, one._ledger.count, one._ledger.updated) for one in {*holders, metric}]
        with apart(holders, keep=False):
            found = once(metric, args, kwargs)
        for one, count, updated in before:
            one._ledger.count, one._ledger.updated = count, updated
    else:
        with apart(holders, keep=True):
            found = once(metric, args, kwargs)
    for one in holders:
        lists_to_host(one)
    metric._ledger.computed.clear()
    return found


def once(metric: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value of a batch, from an update with gradients."""
    metric.__dict__["_enable_grad"] = True
    try:
        with metric.batch_only():
            metric.update(*args, **kwargs)
            with metric.sync_context(should_sync=metric.dist_sync_on_step):
                return mapped(metric._squeezed_result(), Tensor.clone)
    finally:
        metric.__dict__["_enable_grad"] = False


@contextmanager
def apart(holders: Sequence[Any], keep: bool) -> Iterator[None]:
    """Declared states inside the block are those of a batch, at its end added to the rest or dropped."""
    wholes = []
    for one in holders:
        held = {name: getattr(one, name) for name in one._own_defaults}
        for name in held:  # A list that is kept must not be emptied.
            setattr(one, name, [] if isinstance(held[name], list) else held[name])
        declared.cleared(one)
        wholes.append((one, held))
    try:
        yield
    except BaseException:
        keep = False
        raise
    finally:
        for one, held in wholes:
            batch = declared.put(one, held)
            if keep:
                with torch.no_grad():
                    declared.put(one, mapped(batch, Tensor.detach))
                    declared.merge(one, held, one._ledger.count)


def lists_to_host(metric: Any) -> None:
    """Move states that are lists to the CPU, where the metric was told to."""
    if metric.compute_on_cpu:
        for name in metric._own_defaults:
            held = getattr(metric, name)
            if isinstance(held, list):
                setattr(metric, name, mapped(held, Tensor.cpu))


def known(parameters: Iterable[inspect.Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments that a function with these parameters takes."""
    parameters = list(parameters)
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return given
    names = {one.name for one in parameters if one.kind is not one.VAR_POSITIONAL}
    return {name: value for name, value in given.items() if name in names}


def computing(compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute` of a subclass: over all processes, with a warning of no data, kept until the next update."""

    @functools.wraps(compute)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._bare:
            return compute(self, *args, **kwargs)
        warn_of_no_data(self)
        if self._computed is not None:
            return self._computed
        if self._parts:
            self._watch.look(self._watched())
        with self.sync_context(should_sync=self.sync_on_compute and not self._is_synced), bare(self):
            found = squeezed(compute(self, *args, **kwargs))
            found = mapped(found, Tensor.clone)
        if self.compute_with_cache:
            self._computed = found
        return found

    wrapped.__dict__["wraps_compute"] = True
    return wrapped


def squeezed(value: Any) -> Any:
    """`value`, its tensors of one element without dimensions; how many there are is known to the host."""
    return mapped(value, lambda one: one.squeeze() if one.dim() and one.numel() == 1 else one)


@contextmanager
def bare(metric: Any) -> Iterator[None]:
    """Inside the block ``compute`` is what the class wrote, without what is around it."""
    own = metric.__dict__
    before, own["_bare"] = own["_bare"], True
    try:
        yield
    finally:
        own["_bare"] = before


def updating(update: Callable[..., Any]) -> Callable[..., Any]:
    """`update` of a subclass that declares its states: counted, and without gradients outside ``forward``."""

    @functools.wraps(update)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        own = self.__dict__
        if own["_updating"]:
            update(self, *args, **kwargs)
            return
        self._ledger.updated_once(torch.compiler.is_compiling())
        own["_updating"] = True
        try:
            with torch.set_grad_enabled(own["_enable_grad"] and torch.is_grad_enabled()):
                update(self, *args, **kwargs)
        except RuntimeError as error:
            if ELSEWHERE not in str(error):
                raise
            raise RuntimeError(elsewhere(type(self).__name__)) from error
        finally:
            own["_updating"] = False
        if not own["_enable_grad"]:
            lists_to_host(self)

    wrapped.__dict__["wraps_update"] = True
    return wrapped


def elsewhere(name: str) -> str:
    """What to say where a metric and its arguments are on different devices."""
    return (
        "Encountered different devices in metric calculation (see stacktrace for details). This could be due"
        f" to the metric class not being on the same device as input: use `{name}(...).to(device)` with the"
        " device of the input."
    )


def warn_of_no_data(metric: Any) -> None:
    """Warn where there was no update since the last reset."""
    if not metric._ledger.updated and not torch.compiler.is_compiling():
        warn(
            f"The ``compute`` method of metric {type(metric).__name__} was called before the ``update`` "
            "method: the result does not include any data"
        )


def adapt(cls: Any, base: Any) -> None:
    """Prepare `cls`, a subclass of the metric `base`, for what it defines itself."""
    native = cls.value is not base.value
    if not own(cls, "compute", base):
        cls._computes_itself = True
        if not hasattr(cls.compute, "wraps_compute"):
            cls.compute = computing(cls.compute)
    if native and cls.full_state_update is None:
        cls.full_state_update = False
    if not native and not own(cls, "update", base) and not hasattr(cls.update, "wraps_update"):
        cls.update = updating(cls.update)
    if not native and cls._computes_itself:
        cls.direct = True
    if native and not own(cls, "update", base) and sum("update" in vars(one) for one in cls.__mro__) > 2:
        cls.direct = True  # What it does to the arguments first must be done in a collection too.
    cls.__jit_unused_properties__ = properties_of(cls)


def properties_of(cls: type) -> list[str]:
    """The names of the properties of a class: nothing for TorchScript."""
    return [name for one in cls.__mro__ for name, value in vars(one).items() if isinstance(value, property)]


def own(cls: Any, method: str, base: Any) -> bool:
    """Whether the `method` of `cls` is one of this package."""
    owner = next(one for one in cls.__mro__ if method in vars(one))
    return owner is base or owner.__module__.startswith("gapless.metrics.")

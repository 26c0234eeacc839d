"""Wrap the ``update``, ``compute`` and ``forward`` of classes written for TorchMetrics."""

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
from gapless.trees import map_tensors, mark_result

DEVICE_ERROR = "Expected all tensors to be on"
"""Start of torch's error message about tensors on different devices."""


class OwnAttributes:
    """Names of a module's attributes that not every module has, which TorchScript ignores."""

    def __get__(self, module: Any, kind: Any = None) -> list[str]:
        if module is None:
            return []
        return [name for name in (*vars(module), *module._modules) if name not in MODULE_ATTRIBUTES]


MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def forward_declared(metric: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``forward`` of a metric with declared states, of its own or in metrics inside."""
    holders = metric._declaring_metrics()
    mergeable = all(metric_with_states.full_state_update is False for metric_with_states in holders)
    if not mergeable and not metric.all_statistics():
        # An update depends on the previous states: run it once on them, and once for the batch alone.
        metric.update(*args, **kwargs)
        before = [
            (
                metric_with_states,
                metric_with_states.update_history.count,
                metric_with_states.update_history.updated,
            )
            for metric_with_states in {*holders, metric}
        ]
        with batch_states(holders, keep=False):
            result = batch_result(metric, args, kwargs)
        for metric_with_states, count, updated in before:
            metric_with_states.update_history.count, metric_with_states.update_history.updated = (
                count,
                updated,
            )
    else:
        with batch_states(holders, keep=True):
            result = batch_result(metric, args, kwargs)
    for metric_with_states in holders:
        move_lists_to_host(metric_with_states)
    metric.update_history.computed.clear()
    return result


def batch_result(metric: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result over a batch, from an update with gradients enabled."""
    metric.__dict__["_enable_grad"] = True
    try:
        with metric.batch_only():
            metric.update(*args, **kwargs)
            with metric.sync_context(should_sync=metric.dist_sync_on_step):
                return map_tensors(metric._squeezed_result(), Tensor.clone)
    finally:
        metric.__dict__["_enable_grad"] = False


@contextmanager
def batch_states(holders: Sequence[Any], keep: bool) -> Iterator[None]:
    """Inside the block, declared states are those of a batch; at its end it is merged or (`keep` unset)
    dropped.
    """
    total_states = []
    for metric in holders:
        held = {name: getattr(metric, name) for name in metric._own_defaults}
        for name in held:  # The saved list must not be emptied in place.
            setattr(metric, name, [] if isinstance(held[name], list) else held[name])
        declared.reset_states(metric)
        total_states.append((metric, held))
    try:
        yield
    except BaseException:
        keep = False
        raise
    finally:
        for metric, held in total_states:
            batch = declared.swap_states(metric, held)
            if keep:
                with torch.no_grad():
                    declared.swap_states(metric, map_tensors(batch, Tensor.detach))
                    declared.merge_states(metric, held, metric.update_history.count)


def move_lists_to_host(metric: Any) -> None:
    """Move states that are lists to the CPU, if the metric has `compute_on_cpu`."""
    if metric.compute_on_cpu:
        for name in metric._own_defaults:
            held = getattr(metric, name)
            if isinstance(held, list):
                setattr(metric, name, map_tensors(held, Tensor.cpu))


def select_known(parameters: Iterable[inspect.Parameter], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that a function with these parameters accepts."""
    parameters = list(parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return kwargs
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    return {name: value for name, value in kwargs.items() if name in names}


def wrap_compute(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `compute` of a subclass: sync over processes, warn without data, cache until the next update."""

    @functools.wraps(compute)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_unwrapped:
            return compute(self, *args, **kwargs)
        warn_of_no_data(self)
        if self._computed is not None:
            return self._computed
        if self.all_statistics():
            self._watch.look(self._named_statistics())
        with (
            self.sync_context(should_sync=self.sync_on_compute and not self._is_synced),
            without_wrapper(self),
        ):
            result = squeeze_result(compute(self, *args, **kwargs))
            result = map_tensors(result, Tensor.clone)
        if self.compute_with_cache:
            self._computed = result
        return result

    wrapped.__dict__["wraps_compute"] = True
    return wrapped


def squeeze_result(value: Any) -> Any:
    """Return `value` with its tensors of one element made 0-dim (shapes are known to the host)."""
    return map_tensors(
        value,
        lambda tensor: mark_result(tensor.squeeze() if tensor.dim() and tensor.numel() == 1 else tensor),
    )


@contextmanager
def without_wrapper(metric: Any) -> Iterator[None]:
    """Inside the block, ``compute`` runs the class's own code only."""
    own = metric.__dict__
    before, own["_is_unwrapped"] = own["_is_unwrapped"], True
    try:
        yield
    finally:
        own["_is_unwrapped"] = before


def wrap_update(update: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `update` of a subclass with declared states: count it, without gradients outside ``forward``."""

    @functools.wraps(update)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        own = self.__dict__
        if own["_updating"]:
            update(self, *args, **kwargs)
            return
        self.record_update()
        own["_updating"] = True
        try:
            with torch.set_grad_enabled(own["_enable_grad"] and torch.is_grad_enabled()):
                update(self, *args, **kwargs)
        except RuntimeError as error:
            if DEVICE_ERROR not in str(error):
                raise
            raise RuntimeError(device_error(type(self).__name__)) from error
        finally:
            own["_updating"] = False
        if not own["_enable_grad"]:
            move_lists_to_host(self)

    wrapped.__dict__["wraps_update"] = True
    return wrapped


def device_error(name: str) -> str:
    """Return the message for a metric and arguments on different devices."""
    return (
        "Encountered different devices in metric calculation (see stacktrace for details). This could be due"
        f" to the metric class not being on the same device as input: use `{name}(...).to(device)` with the"
        " device of the input."
    )


def warn_of_no_data(metric: Any) -> None:
    """Warn if there was no update since the last reset."""
    if not metric.update_history.updated and not torch.compiler.is_compiling():
        warn(
            f"The ``compute`` method of metric {type(metric).__name__} was called before the ``update`` "
            "method: the result does not include any data"
        )


def adapt(cls: Any, base: Any) -> None:
    """Wrap the methods that `cls`, a subclass of the metric `base`, defines, and set its flags."""
    native = cls.value is not base.value
    if not is_own_method(cls, "compute", base):
        cls._computes_itself = True
        if not hasattr(cls.compute, "wraps_compute"):
            cls.compute = wrap_compute(cls.compute)
    if native and cls.full_state_update is None:
        cls.full_state_update = False
    if not native and not is_own_method(cls, "update", base) and not hasattr(cls.update, "wraps_update"):
        cls.update = wrap_update(cls.update)
    if not native and cls._computes_itself:
        cls.direct = True
    if (
        native
        and not is_own_method(cls, "update", base)
        and sum("update" in vars(parent) for parent in cls.__mro__) > 2
    ):
        cls.direct = True  # It may change the arguments first, which a collection must do too.
    cls.__jit_unused_properties__ = properties_of(cls)


def properties_of(cls: type) -> list[str]:
    """Return the names of the properties of a class, which TorchScript ignores."""
    return [
        name for parent in cls.__mro__ for name, value in vars(parent).items() if isinstance(value, property)
    ]


def is_own_method(cls: Any, method: str, base: Any) -> bool:
    """Whether the `method` of `cls` is defined in this package."""
    owner = next(parent for parent in cls.__mro__ if method in vars(parent))
    return owner is base or owner.__module__.startswith("gapless.metrics.")

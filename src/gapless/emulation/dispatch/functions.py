"""The function mode that sees calls from Python before ATen does.

It sees what the user wrote (a device, a factory without one, a read), which is no longer visible below the
dispatcher. Handlers are looked up by the function's identity; all other calls pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.functional
import torch.nn.functional
from torch.overrides import TorchFunctionMode

from gapless import torch_internals, trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dispatch.inside import without_override_check
from gapless.emulation.support import faults
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, ORPHAN
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import WaitCondition, waits_table
from gapless.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunction,
    DispatchKey,
    Operator,
    has_any_kernel,
    has_kernel,
    key_is_excluded,
    sequence_number,
)

Tensor = torch.Tensor
Handler = Callable[["FunctionMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_BUFFER: Any = getattr(torch.nn, "Buffer", torch.nn.Parameter)  # since torch 2.5
_PLAIN = frozenset({Tensor, torch.nn.Parameter, _BUFFER, torch.nn.UninitializedParameter})
_AUTOGRAD: Any = DispatchKey.AutogradFunctionality

_Device = torch.device  # the real one: `device_type` replaces it

HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the decorated handler for these functions, identified by object."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


class FunctionMode(TorchFunctionMode):
    """Sees every overridable torch call made from Python."""

    def __init__(self, core: EmulationCore) -> None:
        super().__init__()
        self.core = core
        handlers = {**HANDLERS, **_table_handlers()}
        self.handlers: dict[Any, Handler] = {**handlers, **_operator_handlers(handlers)}
        self._unasking: dict[Any, Any] = {}
        self._originals: dict[FunctionType, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        handler = self.handlers.get(func)
        if handler is None and type(func) is FunctionType:
            wrapper = func
            func = self._originals.get(wrapper)
            if func is None:
                func = self._originals[wrapper] = original_function(wrapper)
            handler = self.handlers.get(func)
        before = sequence_number()
        try:
            if handler is not None:
                out = handler(self, func, args, kwargs)
            elif kwargs and kwargs.get("device") is not None:
                out = self.run_on_named_device(func, args, kwargs)
            elif type(func) is FunctionType:
                out = self.run_body(func, types, args, kwargs)
            else:
                out = func(*args, **kwargs)
            if sequence_number() != before:
                self.core.created_nodes(before)
            if local.orphaned:
                self.adopt(out, args, kwargs)
        except Exception as error:
            if faults.find_failure(error):
                raise self._handler_error(error, func, args, kwargs) from error
            raise
        return out

    # -- parts -------------------------------------------------------------------------------------

    def _handler_error(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Exception:
        """The error to raise if a handler failed: torch's own for these arguments, if it raises one."""
        operator = faults.running_operator(error)
        if not operator:
            try:
                with DisableTorchFunction(), DisableTorchDispatch():
                    func(*args, **kwargs)
            except (TypeError, ValueError, IndexError) as real:
                return real.with_traceback(None)
            except Exception:  # a device that does not exist, most likely
                pass
        return self.core.report_defect(error, operator or faults.display_name(func))

    def run_body(self, func: FunctionType, types: Any, args: Any, kwargs: Any) -> Any:
        """Run a torch Python function with this mode on in its body."""
        if types and not _PLAIN.issuperset(types):
            return func(*args, **kwargs)  # a subclass overrides it
        try:
            copy = self._unasking[func]
        except KeyError:
            copy = self._unasking[func] = without_override_check(func)
        if copy is None:
            return func(*args, **kwargs)
        if local.entering is func:  # it checks for overrides in some other way
            self._unasking[func] = None
            return func(*args, **kwargs)
        local.entering = func
        try:
            with self:
                return copy(*args, **kwargs)
        finally:
            local.entering = None

    def run_on_named_device(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call that names a device; if the host is named, operators below know it was explicit."""
        if isinstance(func, Operator) and key_is_excluded(_AUTOGRAD):
            return func(*args, **kwargs)  # a dispatch mode of the script's hands on what C++ told it
        device = as_device(kwargs["device"])
        kwargs = {**kwargs, "device": device}
        if device.type == "cuda":
            index = self.core.index_of(device)
            if kwargs.get("out") is not None:
                kwargs = _into_out(self.core, kwargs, index)
            return func(*args, **kwargs)
        before = local.host_asked
        local.host_asked = True
        try:
            return func(*args, **kwargs)
        finally:
            local.host_asked = before

    def plain(self, handler: Handler | None, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call without the waits that the table lists for it."""
        if handler is not None:
            return handler(self, func, args, kwargs)
        if kwargs.get("device") is not None:
            return self.run_on_named_device(func, args, kwargs)
        return func(*args, **kwargs)

    def adopt(self, out: Any, args: Any, kwargs: Any) -> None:
        """Place results that C++ created without a device where the call's arguments are."""
        local.orphaned = False
        placement = self.core.placement
        orphans = [tensor for tensor in trees.tensors(out) if placement.state_of(tensor) == ORPHAN]
        if orphans:
            index = max(
                (placement.device_of(tensor) for tensor in trees.tensors((args, kwargs))), default=HOST
            )
            for tensor in orphans if index >= 0 else ():
                placement.put(tensor, index)

    def on_device(self, value: Any) -> bool:
        return isinstance(value, Tensor) and self.core.placement.state_of(value) >= 0


def _into_out(core: EmulationCore, kwargs: dict[str, Any], index: int) -> dict[str, Any]:
    """Drop `device` from a factory's `kwargs`, which must be that of its ``out=``."""
    out = kwargs["out"]
    if isinstance(out, Tensor) and core.device_of(out) != index:
        raise RuntimeError(
            f"device type cuda does not match device type of out parameter ({out.device.type})"
        )
    return {name: value for name, value in kwargs.items() if name != "device"}


class ForkedMode(TorchFunctionMode):
    """For a forked child, where CUDA cannot be used: naming the device raises CUDA's error."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = kwargs.get("device")
        if named is None and func is Tensor.to and len(args) > 1 and isinstance(args[1], (str, int, _Device)):
            named = args[1]
        if func is Tensor.cuda or (named is not None and as_device(named).type == "cuda"):
            torch_internals.cuda_lazy_init()
        return func(*args, **kwargs)


def as_device(device: Any) -> torch.device:
    """Convert a user's device to `torch.device`; a bare index means CUDA."""
    if isinstance(device, _Device):
        return device
    if isinstance(device, int) and not isinstance(device, bool):
        return _Device("cuda", device)
    return _Device(device)


def resolve_path(dotted: str) -> Any:
    """The object at a dotted path such as ``torch.nn.functional.one_hot``; None if torch lacks it."""
    value: Any = torch
    for name in dotted.split(".")[1:]:
        value = getattr(value, name, None)
        if value is None:
            return None
    return value


def _table_handlers() -> dict[Any, Handler]:
    """Make handlers for the Python calls in the table of waits."""
    handlers: dict[Any, Handler] = {}
    for dotted in waits_table().calls():
        function = resolve_path(dotted)
        if function is not None:
            function = original_function(function) if type(function) is FunctionType else function
            handlers[function] = _counting_handler(
                dotted, waits_table().for_call(dotted), HANDLERS.get(function)
            )
    return handlers


def _operator_handlers(handlers: dict[Any, Handler]) -> dict[Any, Handler]:
    """Make handlers for ATen overloads that do what the Python function of that name does.

    Only those that the operator mode does not see, such as ``torch.ops.aten.to.device``.
    """
    overload_handlers: dict[Any, Handler] = {}
    for function, handler in handlers.items():
        name = "" if type(function) is FunctionType else getattr(function, "__name__", "")
        packet = None if not name or name.startswith("__") else getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        whole = [
            overload
            for overload in overloads
            if not has_any_kernel(overload.name()) or _is_composite(overload)
        ]
        if len(whole) == len(overloads):
            whole.append(packet)
        overload_handlers.update(dict.fromkeys(whole, _handled_as(function, handler)))
    return overload_handlers


def _is_composite(operator: Any) -> bool:
    return has_kernel(operator.name(), "CompositeImplicitAutograd")


def _handled_as(function: Any, handler: Handler) -> Handler:
    def as_python(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if key_is_excluded(_AUTOGRAD):
            return func(*args, **kwargs)  # a dispatch mode of the script's hands on what C++ told it
        options = {name: value for name, value in kwargs.items() if value is not None and name != "layout"}
        return handler(mode, function, args, options)

    return as_python


def _counting_handler(dotted: str, rows: tuple[WaitCondition, ...], otherwise: Handler | None) -> Handler:
    """Make a handler that counts the waits of `rows` that apply, instead of those inside the call."""
    applies = tuple((row, PREDICATES[row.when]) for row in rows)
    name = dotted.removeprefix("torch.")

    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(func, args, kwargs, mode.on_device)
        matches = [(row, times) for row, predicate in applies if (times := int(predicate(call)))]
        if not matches:
            return mode.plain(otherwise, func, args, kwargs)
        for row, times in matches:
            waits = row.waits * times
            mode.core.wait(
                dotted,
                row.mechanism,
                call=name,
                waits=waits,
                basis=row.basis,
                about=(*args, *kwargs.values()),
            )
        local.quiet += 1
        try:
            out = mode.plain(otherwise, func, args, kwargs)
        finally:
            local.quiet -= 1
        if mode.core.races.full:
            _record_race_access(mode.core, name, args, kwargs, out)
        return out

    return handler


def _record_race_access(core: EmulationCore, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Tell the race detector that the call read its arguments and that the host waited for it."""
    tensors = list(trees.tensors((args, kwargs)))
    index = max(map(core.device_of, tensors), default=HOST)
    if index >= 0:
        written = tensors[:1] if name.endswith("__setitem__") else []
        core.races.record_launch(name, tensors, [*written, *trees.tensors(out)], index)
        core.races.order_host_after_current()


_OWNERS: tuple[Any, ...] = (torch.Tensor, torch.nn.functional, torch.functional)
_real: tuple[dict[str, Any], ...] = tuple(
    {name: getattr(owner, name) for name in dir(owner) if callable(getattr(owner, name, None))}
    for owner in _OWNERS
)


def original_function(function: FunctionType) -> Any:
    """The torch function that `function` replaced; `function` itself if it replaced none."""
    for owner, real in zip(_OWNERS, _real, strict=True):
        for name, value in real.items():
            if owner.__dict__.get(name) is function:
                return value
    return function

"""What Python asks: the function mode that sees calls before ATen does.

It knows what the user asked for in so many words — a device, a factory without one, a read — which below the
dispatcher is no longer visible. Handlers are looked up by the function's identity; all else goes straight on.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gapless import torch_internals, trees
from gapless.emulation.core.core import Core
from gapless.emulation.dispatch.inside import unasking
from gapless.emulation.dispatch.originals import original
from gapless.emulation.support import faults
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, ORPHAN
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import Row, waits_table
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

_Device = torch.device  # the real one: `device_type` puts another in its place

HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for these functions, told apart by identity."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


class FunctionMode(TorchFunctionMode):
    """Sees every overridable torch call made from Python."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        handlers = {**HANDLERS, **_from_table()}
        self.handlers: dict[Any, Handler] = {**handlers, **_of_operators(handlers)}
        self._unasking: dict[Any, Any] = {}
        self._originals: dict[FunctionType, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        handler = self.handlers.get(func)
        if handler is None and type(func) is FunctionType:
            asked = func
            func = self._originals.get(asked)
            if func is None:
                func = self._originals[asked] = original(asked)
            handler = self.handlers.get(func)
        before = sequence_number()
        try:
            if handler is not None:
                out = handler(self, func, args, kwargs)
            elif kwargs and kwargs.get("device") is not None:
                out = self.asked(func, args, kwargs)
            elif type(func) is FunctionType:
                out = self.run_body(func, types, args, kwargs)
            else:
                out = func(*args, **kwargs)
            if sequence_number() != before:
                self.core.created_nodes(before)
            if local.orphaned:
                self.adopt(out, args, kwargs)
        except Exception as error:
            if faults.place(error):
                raise self._failed(error, func, args, kwargs) from error
            raise
        return out

    # -- parts -------------------------------------------------------------------------------------

    def _failed(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Exception:
        """What to raise where a handler failed: torch's own error for what it was given, if it has one."""
        operator = faults.operator(error)
        if not operator:
            try:
                with DisableTorchFunction(), DisableTorchDispatch():
                    func(*args, **kwargs)
            except (TypeError, ValueError, IndexError) as real:
                return real.with_traceback(None)
            except Exception:  # a device that is not there, most likely
                pass
        return self.core.report_defect(error, operator or faults.display_name(func))

    def run_body(self, func: FunctionType, types: Any, args: Any, kwargs: Any) -> Any:
        """Run a torch Python function with this mode on in its body."""
        if types and not _PLAIN.issuperset(types):
            return func(*args, **kwargs)  # a subclass wants to be asked
        try:
            copy = self._unasking[func]
        except KeyError:
            copy = self._unasking[func] = unasking(func)
        if copy is None:
            return func(*args, **kwargs)
        if local.entering is func:  # it asks in a way not known here after all
            self._unasking[func] = None
            return func(*args, **kwargs)
        local.entering = func
        try:
            with self:
                return copy(*args, **kwargs)
        finally:
            local.entering = None

    def asked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call that names a device, so that below "the host" means the host."""
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
        """Run a call as if the table of waits had nothing to say about it."""
        if handler is not None:
            return handler(self, func, args, kwargs)
        if kwargs.get("device") is not None:
            return self.asked(func, args, kwargs)
        return func(*args, **kwargs)

    def adopt(self, out: Any, args: Any, kwargs: Any) -> None:
        """Results that C++ code made without saying where are where the call's arguments are."""
        local.orphaned = False
        placement = self.core.placement
        made = [one for one in trees.tensors(out) if placement.state_of(one) == ORPHAN]
        if made:
            index = max((placement.device_of(one) for one in trees.tensors((args, kwargs))), default=HOST)
            for one in made if index >= 0 else ():
                placement.put(one, index)

    def on_device(self, value: Any) -> bool:
        return isinstance(value, Tensor) and self.core.placement.state_of(value) >= 0


def _into_out(core: Core, kwargs: dict[str, Any], index: int) -> dict[str, Any]:
    """`kwargs` of a factory that writes into ``out=``, without the device, which is the one of `out`."""
    out = kwargs["out"]
    if isinstance(out, Tensor) and core.device_of(out) != index:
        raise RuntimeError(
            f"device type cuda does not match device type of out parameter ({out.device.type})"
        )
    return {name: value for name, value in kwargs.items() if name != "device"}


class ForkedMode(TorchFunctionMode):
    """In a forked child CUDA cannot be used: naming the device raises its error, all else is the host's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = kwargs.get("device")
        if named is None and func is Tensor.to and len(args) > 1 and isinstance(args[1], (str, int, _Device)):
            named = args[1]
        if func is Tensor.cuda or (named is not None and as_device(named).type == "cuda"):
            torch_internals.cuda_lazy_init()
        return func(*args, **kwargs)


def as_device(device: Any) -> torch.device:
    """A user's device as `torch.device`; a bare index means CUDA."""
    if isinstance(device, _Device):
        return device
    if isinstance(device, int) and not isinstance(device, bool):
        return _Device("cuda", device)
    return _Device(device)


def resolve_path(dotted: str) -> Any:
    """The object at a dotted path such as ``torch.nn.functional.one_hot``, or None where torch lacks it."""
    found: Any = torch
    for name in dotted.split(".")[1:]:
        found = getattr(found, name, None)
        if found is None:
            return None
    return found


def _from_table() -> dict[Any, Handler]:
    """Handlers for the Python calls in the table of waits."""
    handlers: dict[Any, Handler] = {}
    for dotted in waits_table().calls():
        function = resolve_path(dotted)
        if function is not None:
            function = original(function) if type(function) is FunctionType else function
            handlers[function] = _counted(dotted, waits_table().for_call(dotted), HANDLERS.get(function))
    return handlers


def _of_operators(handlers: dict[Any, Handler]) -> dict[Any, Handler]:
    """The same for ``torch.ops.aten.to.device`` and its kin, which do what calls of that name do in Python.

    Other operators are seen by the operator mode.
    """
    found: dict[Any, Handler] = {}
    for function, handler in handlers.items():
        name = "" if type(function) is FunctionType else getattr(function, "__name__", "")
        packet = None if not name or name.startswith("__") else getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        whole = [one for one in overloads if not has_any_kernel(one.name()) or _is_composite(one)]
        if len(whole) == len(overloads):
            whole.append(packet)
        found.update(dict.fromkeys(whole, _asked_as(function, handler)))
    return found


def _is_composite(operator: Any) -> bool:
    return has_kernel(operator.name(), "CompositeImplicitAutograd")


def _asked_as(function: Any, handler: Handler) -> Handler:
    def as_python(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if key_is_excluded(_AUTOGRAD):
            return func(*args, **kwargs)  # a dispatch mode of the script's hands on what C++ told it
        given = {name: value for name, value in kwargs.items() if value is not None and name != "layout"}
        return handler(mode, function, args, given)

    return as_python


def _counted(dotted: str, rows: tuple[Row, ...], otherwise: Handler | None) -> Handler:
    """Where a row applies, it replaces what waits inside the call; else the call is as any other."""
    applies = tuple((row, PREDICATES[row.when]) for row in rows)
    name = dotted.removeprefix("torch.")

    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(func, args, kwargs, mode.on_device)
        found = [(row, times) for row, predicate in applies if (times := int(predicate(call)))]
        if not found:
            return mode.plain(otherwise, func, args, kwargs)
        for row, times in found:
            waits = row.waits * times
            mode.core.wait(dotted, row.mechanism, call=name, waits=waits, basis=row.basis)
        local.quiet += 1
        try:
            out = mode.plain(otherwise, func, args, kwargs)
        finally:
            local.quiet -= 1
        if mode.core.races.full:
            _booked(mode.core, name, args, kwargs, out)
        return out

    return handler


def _booked(core: Core, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Tell the books of a call that counts as one: it has read its arguments, and the host waited for it."""
    given = list(trees.tensors((args, kwargs)))
    index = max(map(core.device_of, given), default=HOST)
    if index >= 0:
        written = given[:1] if name.endswith("__setitem__") else []
        core.races.record_launch(name, given, [*written, *trees.tensors(out)], index)
        core.races.order_host_after_current()

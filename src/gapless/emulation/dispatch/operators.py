"""What ATen runs: the dispatch mode that places results, counts waits and refuses mixed devices.

It sits below autograd, so backward passes through it too, and it is entered once per operator: the fast path
is a flat loop over the arguments and a look-up of each storage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation import kernels
from gapless.emulation.core import constants
from gapless.emulation.core.core import Core
from gapless.emulation.core.transfers import unpacks_itself
from gapless.emulation.cuda_api import kernel_generator
from gapless.emulation.dispatch import custom_ops, higher_order
from gapless.emulation.kernels import halves, wider
from gapless.emulation.placement import devices
from gapless.emulation.standins.known import rows_for as known_rows
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, ORPHAN, PINNED
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import Row, waits_table
from gapless.torch_internals import (
    DisableTorchFunction,
    DispatchModeKey,
    HigherOrderOperator,
    OperatorOverload,
    TorchDispatchMode,
    asks_functions,
    current_node,
    dispatch_mode_of,
    has_storage,
)

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
Handler = Callable[["OperatorMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_CPU = torch.device("cpu")
_SCALAR = torch.ops.aten.scalar_tensor.default
"""Python numbers among the arguments of operators become tensors by it, wherever the others are."""

_SILENT = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_",
        "set_", "detach_", "_local_scalar_dense", "is_same_size", "_unsafe_view", "_has_same_storage_numel",
        "_version", "size", "stride", "sym_size", "is_pinned", "record_stream", "unsqueeze_", "squeeze_",
        "t_", "transpose_", "as_strided_", "swapaxes_", "result_type", "_nested_tensor_size", "_is_any_true",
        "unsafe_split", "unsafe_split_with_sizes",
    )
) | {"_c10d_functional::_wrap_tensor_autograd", "inductor::resize_storage_bytes_"}  # fmt: skip
"""Operators that launch nothing (or whose only work is the copy of the wait that is recorded for them)."""

_RESIZING = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_", "inductor::resize_storage_bytes_"})
"""Operators that give a storage another size, besides those that write into ``out=``."""

HANDLERS: dict[str, Handler] = {}
"""Operators that need more than the rule "results are where the arguments are", by qualified name."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for operators such as ``aten::copy_``."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class Plan:
    """What is known beforehand of one operator overload."""

    __slots__ = (
        "by_name", "call", "draws", "func", "handler", "launches", "lenient", "lists", "makes", "name",
        "on_host", "open", "parts", "plain", "random", "reads", "resizes", "rows", "run", "strict", "view",
        "views", "wide", "workspace", "written",
    )  # fmt: skip

    def __init__(self, func: Any, mode: OperatorMode) -> None:
        schema = func._schema
        self.func = func
        self.name: str = schema.name
        self.handler = HANDLERS.get(schema.name)
        self.makes = any(argument.name == "device" for argument in schema.arguments)
        # Few operators take the device by position: their arguments are given by name from there on.
        names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        self.by_name = names if "device" in names else None
        self.resizes = schema.name in _RESIZING or any(
            one.kwarg_only and one.alias_info is not None for one in schema.arguments
        )
        self.draws = any(argument.name == "generator" for argument in schema.arguments)
        # Dropout and attention may draw nothing; where they do, it is by one of these.
        self.random = schema.name.startswith("aten::rand") or (self.draws and "rrelu" not in schema.name)
        overload = schema.overload_name
        self.rows: tuple[tuple[Row, Callable[[Call], bool | int]], ...] = tuple(
            (row, PREDICATES[row.when]) for row in waits_table().for_op(schema.name, overload)
        )
        known = known_rows(schema.name) if func.namespace != "aten" else None
        self.rows += known or ()
        self.launches = launches(func)
        self.lenient = devices.accepts_mixed(func)
        self.strict = devices.is_strict(func)
        self.open = custom_ops.opener(func, mode)
        self.parts = custom_ops.decomposer(func, mode)
        self.run = custom_ops.runner(func, mode, mode.core.note, known is not None)
        self.on_host, self.workspace = kernels.host_results(func), kernels.workspace(func)
        self.wide = halves.widen_func(func)
        # What `OpOverload.__call__` calls, without a Python function in between.
        self.call = func._op if type(func).__call__ is OperatorOverload.__call__ else func
        holding = tuple(n for n, one in enumerate(schema.arguments) if _may_hold_tensors(one.type))
        # Whether tensors may stand in lists, too.
        self.lists = any(str(schema.arguments[n].type) not in _ONE_TENSOR for n in holding)
        self.written = _written(schema)
        self.reads = _reads(schema.name, self.launches)
        self.views = bool(schema.returns) and all(one.alias_info is not None for one in schema.returns)
        known_more = self.draws, self.makes, self.rows, self.run, self.wide, self.resizes, self.on_host
        self.plain = not (any(known_more) or self.workspace is not None)
        self.view = (
            self.views and self.plain and not self.launches and holding == (0,)
            and self.handler is None and self.parts is None
            and not any(one.alias_info.is_write for one in schema.returns)
        )  # fmt: skip
        if mode.core.values is not None:
            mode.core.values.take_over(self)


class OperatorMode(TorchDispatchMode):
    """Runs every operator on CPU values and keeps the books of the device."""

    supports_higher_order_operators = True

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.placement = core.placement
        self.races = core.races
        self.graphs = core.graphs
        self.plans: dict[int, Plan] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under emulation; torch's guard against it would cost 1 µs an operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`: what has nothing to place goes its own way here, all the rest to `placed`."""
        if asks_functions():  # in backward, whose operators no function mode has passed on
            with DisableTorchFunction():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if types and any(unpacks_itself(cls) for cls in types):
            if _faking():
                # Fakes are made below this mode, and have nothing to place.
                return func(*args, **kwargs or {})
            return NotImplemented  # the subclass unpacks itself; what it runs inside comes here again
        plan = self.plans.get(id(func))  # its own hash is a Python function
        if plan is None:
            if isinstance(func, HigherOrderOperator):
                return higher_order.run(self, func, args, kwargs or {})
            plan = self.of(func)
        if kwargs is None:
            kwargs = {}
        if self.graphs.enabled and not local.graphed:
            return self.graphs.dispatch(self, func, types, args, kwargs)
        memory = self.placement.memory
        if plan.view and memory is None and isinstance(args[0], Tensor) and has_storage(args[0]):
            return plan.call(*args, **kwargs)  # it lies where its argument does, and launches nothing
        if memory is not None:
            memory.operator = plan.name
            memory.record_use(args, kwargs)
        if plan.handler is not None:
            return plan.handler(self, func, args, kwargs)
        if plan.parts is not None and not (args and getattr(args[0], "is_nested", False)):
            return plan.parts(args, kwargs)
        return self.placed(plan, args, kwargs)

    # -- parts -------------------------------------------------------------------------------------

    def placed(self, plan: Plan, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: C901 - flat for speed
        """Run an operator where its arguments are, and place what it gives."""
        placement, where = self.placement, self.placement.where
        index, mixed, stored = HOST, False, True
        orphans: list[Tensor] | None = None
        given = (*args, *kwargs.values()) if kwargs else args
        if plan.lists:
            given = [one for arg in given for one in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        for item in given:
            if not isinstance(item, Tensor):
                continue
            try:
                state = where.get(item.untyped_storage()._cdata, HOST)
            except (NotImplementedError, RuntimeError):
                state, stored = placement.state_of(item), False
            if state >= 0:
                if index == HOST:
                    index = state
                elif index != state:
                    mixed = True
            elif state == ORPHAN:
                orphans = [item] if orphans is None else [*orphans, item]
            elif not mixed and (plan.strict or item.dim() > 0):
                mixed = True
        if orphans is not None:
            index = self._adopted(orphans, index)
        if mixed and index >= 0:
            if not plan.lenient:
                devices.check(plan.func, args, kwargs, placement)
            if plan.open is not None:
                return plan.open(args, kwargs)
        races = self.races
        if races.busy and index < 0:
            races.check_host_operator(plan, args, kwargs)
        if not plan.plain or not stored:
            return self._run(plan, args, kwargs, index)
        try:
            out = plan.call(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            if index < 0 or not wider.is_dtype_refusal(error):
                raise
            out = wider.run_widened(plan.func, args, kwargs, error)
        if index != HOST and not plan.views:  # which lie where their arguments do
            try:
                storage = out.untyped_storage() if type(out) is Tensor else None
            except (NotImplementedError, RuntimeError):  # it is sparse
                storage = None
            if storage is None:
                self.put(out, index, args)
            elif storage._cdata not in where:
                placement.put_storage(storage, index)
        if index >= 0:
            memory, programme = placement.memory, self.core.recorder.programme
            if memory is not None:
                memory.record_operator(plan.name, index, args)
            if programme is not None and plan.launches:
                programme.operator(plan.func, args, kwargs, out, -1)
            if races.full:
                races.record_operator(plan, args, kwargs, out, index)
        elif local.constants:
            constants.note_operator(plan, args, kwargs, out)
        return out

    def of(self, func: Any) -> Plan:
        """What is known of `func`."""
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plans[id(func)] = Plan(func, self)  # which keeps `func`, and so its id
        return plan

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run `func` itself, for a handler."""
        return self.of(func).call(*args, **kwargs)

    def _adopted(self, orphans: list[Tensor], index: int) -> int:
        """Where an operator is that has orphans among its arguments: they go where the others are."""
        if index < 0:
            return ORPHAN
        for item in orphans:
            self.core.placement.put(item, index)
        return index

    def _run(self, plan: Plan, args: Any, kwargs: dict[str, Any], index: int) -> Any:
        """Run an operator whose arguments are at `index`, and keep the books of it."""
        if plan.draws and kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": kernel_generator(kwargs["generator"])}
        if plan.makes:
            if plan.by_name is not None:
                args, kwargs = (), {**dict(zip(plan.by_name, args, strict=False)), **kwargs}
            index, kwargs = self._made_at(plan.func, args, kwargs, index)
        races = self.races
        if plan.random and index >= 0:
            races.draw(kwargs.get("generator"), index, plan.name)
        waits = races.waits
        at = self.count(plan, args, kwargs) if plan.rows and index >= 0 else -1
        try:
            if plan.wide is not None and index >= 0 and halves.has_slow_tensor(args):
                out = plan.wide(args, kwargs)
            else:
                out = plan.call(*args, **kwargs) if plan.run is None else plan.run(index, args, kwargs)
        except (RuntimeError, TypeError) as error:
            if index < 0 or not wider.is_dtype_refusal(error):
                raise
            out = wider.run_widened(plan.func, args, kwargs, error)
        if index != HOST:
            if plan.on_host:
                self.put([one for position, one in enumerate(out) if position not in plan.on_host], index)
            else:
                self.put(out, index, args)
            if index >= 0:
                self._ran(plan, args, kwargs, out, index, at)
                if races.full:
                    races.record_operator(plan, args, kwargs, out, index)
                    if races.waits != waits:  # what was launched for it is done
                        races.order_host_after_current()
        elif local.constants is not None:
            constants.note_operator(plan, args, kwargs, out)
        return out

    def _ran(self, plan: Plan, args: Any, kwargs: dict[str, Any], out: Any, index: int, at: int) -> None:
        """Tell the records of an operator that has run on device `index`."""
        if plan.resizes:
            self._resized(args, kwargs)
        memory, programme = self.placement.memory, self.core.recorder.programme
        if memory is not None:
            if plan.workspace is not None:
                self.put([torch.empty(shape) for shape in plan.workspace(*args, **kwargs)], index)
            memory.record_operator(plan.name, index, args)
        if programme is not None and plan.launches:
            programme.operator(plan.func, args, kwargs, out, at)

    def _resized(self, args: Any, kwargs: dict[str, Any]) -> None:
        for one in trees.tensors((args, kwargs)):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                storage = one.untyped_storage()
                if self.core.placement.update_size(storage):
                    self.races.record_resize(storage)

    def count(self, plan: Plan, args: Any, kwargs: Any) -> int:
        """Record the waits the table has for this call.

        Gives where in the programme the operator stands: before the waits for its own results, behind copies
        that it needs; -1: behind everything.
        """
        if local.quiet:
            return -1
        programme = self.core.recorder.programme
        at = -1
        call = Call(plan.func, args, kwargs, self.on_device)
        for row, applies in plan.rows:
            times = int(applies(call))
            if times:
                if programme is not None and row.mechanism != "h2d" and at < 0:
                    at = programme.position
                waits, detail = row.waits * times, row.detail
                if row.mechanism == "read" and local.stepping is not None and args:
                    detail = detail or local.stepping.read(args[0], self.on_device)
                self.core.wait(plan.name, row.mechanism, detail=detail, waits=waits, basis=row.basis)
        return at

    def launched(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Tell of an operator that a handler has run on the device."""
        if self.core.recorder.programme is not None:
            self.core.recorder.programme.operator(func, args, kwargs, out, -1)
        if self.races.full:
            index = max((self.core.device_of(one) for one in trees.tensors(out)), default=HOST)
            self.races.record_operator(self.of(func), args, kwargs, out, max(index, 0))

    def on_device(self, tensor: Tensor) -> bool:
        return self.core.placement.state_of(tensor) >= 0

    def put(self, out: Any, index: int, args: Any = ()) -> None:
        """Say that the tensors in `out` are at `index`, unless their storage has a place already."""
        placement = self.core.placement
        if isinstance(out, Tensor):
            if args and out is args[0]:
                return
            try:
                storage = out.untyped_storage()
                if storage._cdata not in placement.where:
                    placement.put_storage(storage, index)
            except (NotImplementedError, RuntimeError):
                placement.put(out, index)
        elif isinstance(out, (list, tuple)):
            for item in out:
                self.put(item, index)

    def _made_at(
        self, func: Any, args: Any, kwargs: dict[str, Any], index: int
    ) -> tuple[int, dict[str, Any]]:
        """Where a factory's result goes, and its keyword arguments with the CPU in place of the device.

        ATen's own C++ code reads the device off storages, which are the CPU's here, and passes it on: only a
        host the user asked for in Python counts as asked for.
        """
        device = kwargs.get("device")
        pinned = bool(kwargs.get("pin_memory"))
        if device is not None and device.type == "cuda":
            index = HOST if _faking() else self.core.index_of(device)
            kwargs = {**kwargs, "device": _CPU, "pin_memory": False} if pinned else {**kwargs, "device": _CPU}
            return index, kwargs
        if device is not None and device.type != "cpu":
            return HOST, kwargs
        if pinned:
            return PINNED, {**kwargs, "pin_memory": False}
        if local.host_asked:
            return HOST, kwargs
        if index != HOST or local.explicit:
            return index, kwargs
        if device is None and args and isinstance(args[0], Tensor):
            return HOST, kwargs  # like a tensor that is known to be the host's: no orphan
        if local.backward != HOST and func is not _SCALAR:
            return HOST if _assigns_from_host() else local.backward, kwargs
        local.orphaned = True
        return ORPHAN, kwargs


_ONE_TENSOR = ("Tensor", "Optional[Tensor]")
_SCALARS = re.compile(r"(?:(?:Optional|List)\[)*(?:int|float|bool|number|str|complex|Device|Generator)\b")


def _may_hold_tensors(kind: Any) -> bool:
    """Whether an argument of this type in a schema may be a tensor, or have some in it."""
    return _SCALARS.match(str(kind)) is None


def _reads(name: str, launches: bool) -> bool:
    """Whether an operator looks at values of its arguments, and not at their shapes alone."""
    shapes = name.endswith("_like") or name.startswith("aten::new_")
    return name == "aten::_local_scalar_dense" or (launches and not shapes)


def _written(schema: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that an operator writes into."""
    own = [
        n for n, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write
    ]
    return frozenset((*own, *(schema.arguments[n].name for n in own)))


def launches(func: Any) -> bool:
    """Whether the overload `func` may launch work: views and tensors without values do not."""
    schema = func._schema
    if schema.name in _SILENT:
        return False
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
    return not aliases or any(one.is_write for one in aliases)


def _assigns_from_host() -> bool:
    """Whether the autograd node that runs belongs to an assignment of a value on the host."""
    if not local.host_values:
        return False
    node = current_node()
    return node is not None and node._sequence_nr() in local.host_values


def _faking() -> bool:
    """Whether a `FakeTensorMode` is on: torch keeps it below every other mode."""
    return dispatch_mode_of(DispatchModeKey.FAKE) is not None

"""The dispatch mode: runs ATen's operators, places results, counts waits and refuses mixed devices.

It sits below autograd, so it sees backward, too. It is entered once per operator: the fast path is a flat
loop over the arguments with one look-up per storage.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless import trees
from gapless.emulation import kernels
from gapless.emulation.core import constants
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.core.transfers import unpacks_itself
from gapless.emulation.cuda_api import kernel_generator
from gapless.emulation.dispatch import custom_ops, higher_order
from gapless.emulation.kernels import halves, wider
from gapless.emulation.placement import devices
from gapless.emulation.standins.known import rows_for as known_rows
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST, ORPHAN, PINNED
from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import WaitCondition, waits_table
from gapless.model.event import METRIC_RESULT
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
"""The operator that wraps Python numbers among operator arguments in tensors."""

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
"""Operators that launch nothing (or only the copy of the wait recorded for them)."""

_RESIZING = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_", "inductor::resize_storage_bytes_"})
"""Operators that resize a storage, besides those that write into ``out=``."""

HANDLERS: dict[str, Handler] = {}
"""Handlers of operators whose results are not simply where the arguments are, by qualified name."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated handler for operators such as ``aten::copy_``."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class OperatorPlan:
    """How to run one operator overload: all that can be decided before its first call."""

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
        # Few operators take the device by position: their arguments are passed by name.
        names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        self.by_name = names if "device" in names else None
        self.resizes = schema.name in _RESIZING or any(
            argument.kwarg_only and argument.alias_info is not None for argument in schema.arguments
        )
        self.draws = any(argument.name == "generator" for argument in schema.arguments)
        # Dropout and attention may draw nothing; if they draw, they call one of these.
        self.random = schema.name.startswith("aten::rand") or (self.draws and "rrelu" not in schema.name)
        overload = schema.overload_name
        self.rows: tuple[tuple[WaitCondition, Callable[[Call], bool | int]], ...] = tuple(
            (row, PREDICATES[row.when]) for row in waits_table().for_op(schema.name, overload)
        )
        operator_rows = known_rows(schema.name) if func.namespace != "aten" else None
        self.rows += operator_rows or ()
        self.launches = launches(func)
        self.lenient = devices.accepts_mixed(func)
        self.strict = devices.is_strict(func)
        self.open = custom_ops.mixed_device_runner(func, mode)
        self.parts = custom_ops.decomposer(func, mode)
        self.run = custom_ops.runner(func, mode, mode.core.note, operator_rows is not None)
        self.on_host, self.workspace = kernels.host_results(func), kernels.workspace(func)
        self.wide = halves.widen_func(func)
        # What `OpOverload.__call__` calls, called directly for speed.
        self.call = func._op if type(func).__call__ is OperatorOverload.__call__ else func
        holding = tuple(n for n, argument in enumerate(schema.arguments) if _may_hold_tensors(argument.type))
        # Whether lists among the arguments may hold tensors.
        self.lists = any(str(schema.arguments[n].type) not in _ONE_TENSOR for n in holding)
        self.written = _written_arguments(schema)
        self.reads = _reads(schema.name, self.launches)
        self.views = bool(schema.returns) and all(result.alias_info is not None for result in schema.returns)
        known_more = self.draws, self.makes, self.rows, self.run, self.wide, self.resizes, self.on_host
        self.plain = not (any(known_more) or self.workspace is not None)
        self.view = (
            self.views and self.plain and not self.launches and holding == (0,)
            and self.handler is None and self.parts is None
            and not any(result.alias_info.is_write for result in schema.returns)
        )  # fmt: skip
        if mode.core.values is not None:
            mode.core.values.take_over(self)


class OperatorMode(TorchDispatchMode):
    """Runs every operator on CPU values and records what it does on the device."""

    supports_higher_order_operators = True

    def __init__(self, core: EmulationCore) -> None:
        super().__init__()
        self.core = core
        self.placement = core.placement
        self.races = core.races
        self.graphs = core.graphs
        self.origins = core.origins
        self.plans: dict[int, OperatorPlan] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under emulation; torch's guard against it would cost 1 µs an operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`: by its handler, parts or graph if it has one, else by `placed`."""
        if asks_functions():  # in backward, whose operators passed no function mode
            with DisableTorchFunction():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if types and any(unpacks_itself(cls) for cls in types):
            if _faking():
                # Fakes are made below this mode, and have nothing to place.
                return func(*args, **kwargs or {})
            return NotImplemented  # the subclass unpacks itself; its inner operators arrive here again
        plan = self.plans.get(id(func))  # by id, as its own hash is a slow Python function
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
            return plan.call(*args, **kwargs)  # a view: placed with its argument's storage, launches nothing
        if memory is not None:
            memory.operator = plan.name
            memory.record_use(args, kwargs)
        if plan.handler is not None:
            return plan.handler(self, func, args, kwargs)
        if plan.parts is not None and not (args and getattr(args[0], "is_nested", False)):
            return plan.parts(args, kwargs)
        return self.placed(plan, args, kwargs)

    # -- parts -------------------------------------------------------------------------------------

    def placed(self, plan: OperatorPlan, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: C901 - flat for speed
        """Run an operator on the device of its arguments, and place its results there."""
        placement, where = self.placement, self.placement.where
        index, mixed, stored = HOST, False, True
        orphans: list[Tensor] | None = None
        values = (*args, *kwargs.values()) if kwargs else args
        if plan.lists:
            values = _without_lists(values)
        for item in values:
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
            index = self._adopt_orphans(orphans, index)
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
        if index != HOST and not plan.views:  # views share their arguments' storage
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
            if plan.launches:
                races.distances.launches += 1
                if programme is not None:
                    programme.operator(plan.func, args, kwargs, out, -1)
            if races.full:
                races.record_operator(plan, args, kwargs, out, index)
        else:
            if local.constants:
                constants.note_operator(plan, args, kwargs, out)
            if self.origins.enabled:
                self.origins.note_host_operator(plan, values, out)
        return out

    def of(self, func: Any) -> OperatorPlan:
        """Return the plan of `func`, made at its first call."""
        plan = self.plans.get(id(func))
        if plan is None:
            # The plan keeps `func` alive, and so its id unique.
            plan = self.plans[id(func)] = OperatorPlan(func, self)
        return plan

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run `func` itself, for a handler."""
        return self.of(func).call(*args, **kwargs)

    def _adopt_orphans(self, orphans: list[Tensor], index: int) -> int:
        """Place orphans among an operator's arguments on `index`; return where the operator runs."""
        if index < 0:
            return ORPHAN
        for item in orphans:
            self.core.placement.put(item, index)
        return index

    def _run(self, plan: OperatorPlan, args: Any, kwargs: dict[str, Any], index: int) -> Any:
        """Run an operator that needs more than the fast path on device `index`, and record it."""
        if plan.draws and kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": kernel_generator(kwargs["generator"])}
        if plan.makes:
            if plan.by_name is not None:
                args, kwargs = (), {**dict(zip(plan.by_name, args, strict=False)), **kwargs}
            index, kwargs = self._factory_target(plan.func, args, kwargs, index)
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
                self.put(
                    [result for position, result in enumerate(out) if position not in plan.on_host], index
                )
            else:
                self.put(out, index, args)
            if index >= 0:
                self._record_run(plan, args, kwargs, out, index, at)
                if races.full:
                    races.record_operator(plan, args, kwargs, out, index)
                    if races.waits != waits:  # the host waited, so its launches are done
                        races.order_host_after_current()
        else:
            self.note_host_operator(plan, args, kwargs, out)
        return out

    def note_host_operator(self, plan: OperatorPlan, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Note that an operator ran on the host: what its results come from."""
        if local.constants is not None:
            constants.note_operator(plan, args, kwargs, out)
        if self.origins.enabled:
            values = (*args, *kwargs.values())
            self.origins.note_host_operator(plan, _without_lists(values) if plan.lists else values, out)

    def _record_run(
        self, plan: OperatorPlan, args: Any, kwargs: dict[str, Any], out: Any, index: int, at: int
    ) -> None:
        """Record an operator that ran on device `index` in memory and programme."""
        if plan.resizes:
            self._record_resizes(args, kwargs)
        memory, programme = self.placement.memory, self.core.recorder.programme
        if memory is not None:
            if plan.workspace is not None:
                self.put([torch.empty(shape) for shape in plan.workspace(*args, **kwargs)], index)
            memory.record_operator(plan.name, index, args)
        if plan.launches:
            self.races.distances.launches += 1
            if programme is not None:
                programme.operator(plan.func, args, kwargs, out, at)

    def _record_resizes(self, args: Any, kwargs: dict[str, Any]) -> None:
        for tensor in trees.tensors((args, kwargs)):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                storage = tensor.untyped_storage()
                if self.core.placement.update_size(storage):
                    self.races.record_resize(storage)

    def count(self, plan: OperatorPlan, args: Any, kwargs: Any) -> int:
        """Record the waits that the table lists for this call.

        Returns the operator's position in the programme: before the waits for its own results, after the
        copies it needs; -1 means at the end.
        """
        if local.quiet:
            return -1
        programme = self.core.recorder.programme
        at = -1
        call = Call(plan.func, args, kwargs, self.on_device)
        about = (*args, *kwargs.values())
        for row, applies in plan.rows:
            times = int(applies(call))
            if times:
                if programme is not None and row.mechanism != "h2d" and at < 0:
                    at = programme.position
                waits, detail = row.waits * times, row.detail
                if row.mechanism == "read" and local.stepping is not None and args:
                    detail = detail or local.stepping.read(args[0], self.on_device)
                if row.mechanism == "read" and args and trees.is_result(args[0]):
                    detail = METRIC_RESULT
                self.core.wait(
                    plan.name, row.mechanism, detail=detail, waits=waits, basis=row.basis, about=about
                )
        return at

    def launched(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator that a handler ran on the device."""
        self.races.distances.launches += 1
        if self.core.recorder.programme is not None:
            self.core.recorder.programme.operator(func, args, kwargs, out, -1)
        if self.races.full:
            index = max((self.core.device_of(tensor) for tensor in trees.tensors(out)), default=HOST)
            self.races.record_operator(self.of(func), args, kwargs, out, max(index, 0))

    def on_device(self, tensor: Tensor) -> bool:
        return self.core.placement.state_of(tensor) >= 0

    def put(self, out: Any, index: int, args: Any = ()) -> None:
        """Place the tensors in `out` on `index`, unless their storage is placed already."""
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

    def _factory_target(
        self, func: Any, args: Any, kwargs: dict[str, Any], index: int
    ) -> tuple[int, dict[str, Any]]:
        """Return the device of a factory's result, and its `kwargs` with the CPU as device.

        ATen's C++ passes on the device of storages, the CPU here: the host counts as requested only if the
        user named it in Python.
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
            return HOST, kwargs  # like a tensor known to be on the host: no orphan
        if local.backward != HOST and func is not _SCALAR:
            return HOST if _assigns_from_host() else local.backward, kwargs
        local.orphaned = True
        return ORPHAN, kwargs


_ONE_TENSOR = ("Tensor", "Optional[Tensor]")
_SCALARS = re.compile(r"(?:(?:Optional|List)\[)*(?:int|float|bool|number|str|complex|Device|Generator)\b")


def _may_hold_tensors(kind: Any) -> bool:
    """Whether an argument of this schema type may be or contain a tensor."""
    return _SCALARS.match(str(kind)) is None


def _reads(name: str, launches: bool) -> bool:
    """Whether an operator reads the values of its arguments, not only their shapes."""
    shapes = name.endswith("_like") or name.startswith("aten::new_")
    return name == "aten::_local_scalar_dense" or (launches and not shapes)


def _without_lists(values: Iterable[Any]) -> list[Any]:
    """Return an operator's arguments with the items of lists in place of the lists."""
    return [item for arg in values for item in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def _written_arguments(schema: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that an operator writes."""
    own = [
        n
        for n, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return frozenset((*own, *(schema.arguments[n].name for n in own)))


def launches(func: Any) -> bool:
    """Whether the overload `func` may launch kernels; views and uninitialized tensors do not."""
    schema = func._schema
    if schema.name in _SILENT:
        return False
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    return not aliases or any(alias.is_write for alias in aliases)


def _assigns_from_host() -> bool:
    """Whether the running autograd node belongs to the assignment of a host value."""
    if not local.host_values:
        return False
    node = current_node()
    return node is not None and node._sequence_nr() in local.host_values


def _faking() -> bool:
    """Whether a `FakeTensorMode` is on; torch keeps it below every other mode."""
    return dispatch_mode_of(DispatchModeKey.FAKE) is not None

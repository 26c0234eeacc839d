"""`GuessedValues`: how operators run on storages that have no values.

An operator is computed if all its arguments are known and small. Otherwise its results are uninitialised
tensors, whose memory is never used, with a guess of their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dry import filling, forks, host_reads, operator_calls, settling, sizes, specials
from gapless.emulation.dry.budget import (
    MAX_CHEAP_ELEMENTS,
    MAX_CHEAP_MATRIX_ELEMENTS,
    MAX_FREE_ELEMENTS,
    WATCHED_STEPS,
    Budget,
)
from gapless.emulation.dry.guess_table import ValueTable, dense_part
from gapless.emulation.dry.guesses import RULES, guess_result
from gapless.emulation.dry.guesses.guess import Guess, anything, constant, mix
from gapless.emulation.dry.guesses.rules import OperatorResult, is_whole
from gapless.emulation.dry.kinds import OperatorKind
from gapless.emulation.dry.operator_calls import Compute
from gapless.emulation.dry.shapes import NewTensor, ResultShapes, ShapeCache, ShapeUnknown
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST
from gapless.emulation.support.refusals import requested_at
from gapless.errors import NotEmulated
from gapless.model.assumption import Switch
from gapless.torch_internals import (
    DisableTorchDispatch,
    DispatchModeKey,
    dispatch_mode_of,
    has_storage,
)

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

MAX_COMPUTED_ELEMENTS = 1 << 22
"""Elements up to which results of tensors with values are computed."""
MAX_CHEAP_RESULT = 1 << 11
"""Elements of arguments up to which every operator is cheap."""
MAX_MATRIX_ELEMENTS = 1 << 14
"""Elements up to which matrices with values are multiplied."""
MAX_DRAWN_ELEMENTS = 1 << 14
"""Elements up to which floating point numbers are drawn on the device, and constants written."""
MAX_COPIED_ELEMENTS = 1 << 18
"""Floating point numbers up to which a copy from the host to the device has values."""
MAX_HOST_COPY_ELEMENTS = 1 << 20
"""Floating point numbers up to which copies within the host have values whatever was copied before."""
MAX_HOST_ELEMENTS = 1 << 25
"""Floating point numbers drawn and copied on the host in all; later ones have no values."""
_ALWAYS_RUN = ("c10d", "_c10d_functional", "profiler")


class GuessedValues(ValueTable):
    """The table of guesses, and the rules by which operators run on it.

    With a `budget` operators are computed, whatever their size, until it is used up; `switch` says where.
    """

    def __init__(
        self, core: EmulationCore, user_values: dict[str, float] | None = None, budget: Budget | None = None
    ) -> None:
        super().__init__(core, user_values or {})
        self.placement = core.placement
        self.shapes = ShapeCache()
        self.budget = budget
        self.switch: Switch | None = None
        self._host_elements_left: float = MAX_HOST_ELEMENTS
        core.races.flights.digests = budget is not None  # without values nothing in memory can be compared

    @property
    def dry(self) -> bool:
        """Whether the run leaves out values now."""
        return self.budget is None

    def after_fork(self) -> None:
        """Compute all draws and copies in a forked child, whose tensors go to other processes."""
        self._host_elements_left = math.inf
        if self.budget is not None:
            self.budget.endless = True

    def install(self, patches: Patches) -> None:
        """Patch file writing, loading and forking for missing values."""
        host_reads.install(self, patches)
        forks.watch_forks(self)

    def handlers(self, existing: dict[Any, Any]) -> dict[Any, Any]:
        """Return handlers for Python calls that read values, which go on to the `existing` ones."""
        return host_reads.make_handlers(self, existing)

    # -- into the operator mode ------------------------------------------------------------------------

    def take_over(self, plan: Any) -> None:
        """Change `plan` (an `operators.Plan`) so that its operator handles arguments without values."""
        kind = OperatorKind(plan.func)
        if kind.view or plan.parts is not None:
            return
        compute = operator_calls.computation_of(plan)
        if plan.func.namespace in _ALWAYS_RUN:
            plan.call = self._make_sealed_call(kind, plan.call)
            return
        if plan.run is not None and plan.func.namespace not in ("aten", "prims"):
            return  # its body is run; `wrap` is for operators without one
        plan.call = self._make_call(kind, compute)
        plan.wide = None
        if plan.run is not None or not plan.plain:
            plan.run = self._make_run(kind, compute)

    def wrap(self, func: Any, run: Compute) -> Compute:
        """Return `run`, which computes the overload `func`, extended to arguments without values."""
        return self._make_run(OperatorKind(func), run)

    def _make_call(self, kind: OperatorKind, compute: Compute) -> Callable[..., Any]:
        if kind.afresh or kind.sized or kind.makes or kind.grows or kind.name in specials.SPECIAL_OPERATORS:

            def special(*args: Any, **kwargs: Any) -> Any:
                return self.run(kind, compute, local.target, args, kwargs)

            return special
        records, limit = self.records, MAX_MATRIX_ELEMENTS if kind.heavy else MAX_CHEAP_RESULT

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.budget is not None:
                if self._fits_budget(kind, HOST, args, kwargs):
                    return compute(HOST, args, kwargs)
                return self.run(kind, compute, HOST, args, kwargs)
            total = 0
            special = False
            for arg in (*args, *kwargs.values()) if kwargs else args:
                of = type(arg)
                for tensor in arg if of is list or of is tuple else (arg,):
                    if not isinstance(tensor, Tensor):
                        continue
                    try:
                        record = records.get(tensor.untyped_storage()._cdata)
                    except (NotImplementedError, RuntimeError):
                        return self.run(kind, compute, HOST, args, kwargs)
                    if record is not None:
                        if not record.exact and not record.filled:
                            return self._run_unknown(kind, compute, args, kwargs)
                        special = True
                    total += tensor.numel()
            if special or total > limit:
                return self.run(kind, compute, HOST, args, kwargs)
            return compute(HOST, args, kwargs)

        return call

    def _run_unknown(self, kind: OperatorKind, compute: Compute, args: Any, kwargs: dict[str, Any]) -> Any:
        if dispatch_mode_of(DispatchModeKey.FAKE) is not None:
            return compute(HOST, args, kwargs)
        return self.run_without_values(kind, compute, HOST, args, kwargs)

    def _make_run(self, kind: OperatorKind, compute: Compute) -> Compute:
        def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
            return self.run(kind, compute, index, args, kwargs)

        return run

    def _make_sealed_call(self, kind: OperatorKind, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, a collective, that always runs; its results have values if all its arguments do."""

        def run(*args: Any, **kwargs: Any) -> Any:
            tensors = [tensor for tensor in trees.tensors((args, kwargs)) if has_storage(tensor)]
            records = [record for record in map(self.record_of, tensors) if record is not None]
            is_settled = all(record.exact or record.filled for record in records)
            for result in tensors if records and is_settled else ():
                is_settled = self.fill(result) and is_settled
            out = call(*args, **kwargs)
            if records:
                arguments = kind.arguments(args, kwargs)
                written = list(trees.tensors([arguments[n] for n in kind.written if n < len(arguments)]))
                for result in (*written, *(t for t in trees.tensors(out) if has_storage(t))):
                    if result.layout is torch.strided:
                        like = anything(kind.base, result.dtype)
                        self.mark(result, like.copy_as_filled() if is_settled else like)
            return out

        return run

    # -- running ---------------------------------------------------------------------------------------

    def run(self, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator whose results go to device `index`, computing it if that is possible and cheap."""
        if self.budget is not None and self._fits_budget(kind, index, args, kwargs):
            return compute(index, args, kwargs)
        tensors = list(trees.tensors((args, kwargs)))
        if operator_calls.has_no_data(tensors, kwargs):
            return compute(index, args, kwargs)
        special = specials.SPECIAL_OPERATORS.get(kind.name)
        if special is not None:
            result = special(self, kind, compute, index, args, kwargs)
            if result is not NotImplemented:
                return result
        target = operator_calls.overwritten_tensor(kind, args, kwargs)
        records = [
            None if tensor is target or kind.shaped_like else self.record_of(tensor) for tensor in tensors
        ]
        if kind.sized and any(record is not None and not record.exact for record in records):
            return sizes.run_sized(self, kind, compute, index, args, kwargs)
        unknown = any(record is not None and not (record.exact or record.filled) for record in records)
        if not unknown and self._is_affordable(kind, index, args, kwargs, tensors, records):
            if target is not None:
                self.forget(target)
            return self._compute(kind, compute, index, args, kwargs, tensors, records)
        return self.run_without_values(kind, compute, index, args, kwargs)

    def _fits_budget(self, kind: OperatorKind, index: int, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the budget allows the operator; if not, this is a dry run from now on."""
        total = 0
        for arg in (*args, *kwargs.values()) if kwargs else args:
            of = type(arg)
            if isinstance(arg, Tensor):
                total += arg.numel()
            elif of is list or of is tuple:
                for item in arg:  # includes sizes of a factory
                    total += item.numel() if isinstance(item, Tensor) else MAX_FREE_ELEMENTS
        least = MAX_FREE_ELEMENTS
        if self.core.recorder.tick >= WATCHED_STEPS and not kind.makes:
            least = MAX_CHEAP_MATRIX_ELEMENTS if kind.heavy else MAX_CHEAP_ELEMENTS
        if total <= least or dispatch_mode_of(DispatchModeKey.FAKE) is not None:
            return True
        budget = self.budget
        switch = budget.charge(kind, index, args, kwargs) if budget is not None else None
        if budget is None or switch is None:
            return True
        self.budget, self.switch = None, switch
        self.core.races.flights.digests = False
        budget.on_switch(switch)
        return False

    def _is_affordable(
        self, kind: OperatorKind, index: int, args: Any, kwargs: dict[str, Any], tensors: list[Tensor],
        records: list[Guess | None],
    ) -> bool:  # fmt: skip
        """Whether to compute an operator whose arguments all have values or are constants."""
        on_host = index < 0 and not any(self.placement.state_of(tensor) >= 0 for tensor in tensors)
        if kind.afresh and (
            not kind.sets or operator_calls.overwritten_tensor(kind, args, kwargs) is not None
        ):
            return self._is_worth_writing(kind, args, kwargs, tensors, on_host)
        constants = [record for record in records if record is not None and record.exact]
        if on_host and tensors and not constants:
            return True  # the script computes from its data
        total = sum(tensor.numel() for tensor in tensors)
        if kind.heavy:
            return total <= MAX_MATRIX_ELEMENTS
        if total <= MAX_CHEAP_RESULT and not kind.grows:
            return True
        if constants and len(constants) == len(records) and self._stays_constant(kind, args, kwargs):
            return False
        return (
            total <= MAX_COMPUTED_ELEMENTS
            and self._count_results(kind, args, kwargs) <= MAX_COMPUTED_ELEMENTS
        )

    def _stays_constant(self, kind: OperatorKind, args: Any, kwargs: dict[str, Any]) -> bool:
        first = next(trees.tensors((args, kwargs)))
        return kind.base in RULES and self._guess_result(kind, args, kwargs, first, 0).exact

    def _is_worth_writing(
        self, kind: OperatorKind, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], on_host: bool
    ) -> bool:
        """Whether to write the values of a draw, a constant or a copy."""
        count = max(self._count_results(kind, args, kwargs), tensors[0].numel() if tensors else 0)
        dtype = kwargs.get("dtype") or (tensors[0].dtype if tensors else torch.get_default_dtype())
        copies = kind.base in ("_to_copy", "copy")
        if copies and on_host and count <= MAX_HOST_COPY_ELEMENTS:
            return True
        if kind.whole_numbers or (not dtype.is_floating_point and (kind.draws or copies)):
            return count <= MAX_COMPUTED_ELEMENTS
        if on_host and (kind.draws or copies):
            if count > self._host_elements_left or (
                kind.draws and count > MAX_COMPUTED_ELEMENTS and self._host_elements_left < math.inf
            ):
                return False
            self._host_elements_left -= count
            return True
        if copies:
            return count <= MAX_COPIED_ELEMENTS
        return count <= (MAX_COMPUTED_ELEMENTS if on_host else MAX_DRAWN_ELEMENTS)

    def _count_results(self, kind: OperatorKind, args: Any, kwargs: dict[str, Any]) -> int:
        """Return the number of elements of the results; 0 if unknown."""
        if kind.sized:
            return 0
        if kind.alike:
            return next(trees.tensors((args, kwargs))).numel()
        if kind.size >= 0:
            return math.prod(args[kind.size] if kind.size < len(args) else kwargs["size"])
        try:
            return self.shapes.of(kind, args, kwargs).numel
        except ShapeUnknown:
            return 0

    def _compute(
        self, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any],
        tensors: list[Tensor], records: list[Guess | None],
    ) -> Any:  # fmt: skip
        """Compute an operator: write constant arguments first, and mark results of made-up values."""
        made_up = False
        for tensor, record in zip(tensors, records, strict=True):
            if record is not None:
                made_up = made_up or record.filled
                if record.exact and self.record_of(tensor) is record:
                    self.fill(tensor)
        out = compute(index, args, kwargs)
        if kind.unset and index >= 0:  # the content of memory differs from run to run
            with DisableTorchDispatch():
                out.zero_()
        if made_up:
            arguments = kind.arguments(args, kwargs)
            written = [arguments[n] for n in kind.written if n < len(arguments)]
            for results in (written, [out] if isinstance(out, Tensor) else out):
                for n, result in enumerate(trees.tensors(results)):
                    if has_storage(dense_part(result)) and self.record_of(result) is None:
                        self.mark(result, self._guess_result(kind, args, kwargs, result, n).copy_as_filled())
        return out

    def run_without_values(
        self, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator without computing it.

        Raises:
            NotEmulated: its results depend on values, and its arguments are too large to make some up.
        """
        if kind.sized:
            return sizes.run_sized(self, kind, compute, index, args, kwargs)
        return self.run_shaped(kind, compute, index, args, kwargs)

    def run_shaped(
        self, kind: OperatorKind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator without computing it; its result sizes follow from its argument sizes."""
        if kind.lists and kind.written and not kind.func._schema.returns:
            self._write(kind, args, kwargs)
            return None
        try:
            results = self.shapes.of(kind, args, kwargs)
        except ShapeUnknown as error:
            if kind.written and isinstance(error.cause, NotImplementedError) and -1 not in kind.returned:
                results = ResultShapes(None, [], False, {})
            else:
                return self._run_made_up(kind, compute, index, args, kwargs, error)
        if results.aliases and not kind.written:
            return compute(index, args, kwargs)
        if settling.should_settle(kind, args, results):
            settled = settling.settle(self, kind, compute, index, args, kwargs, results)
            if settled is not NotImplemented:
                return settled
        if kind.written:
            return self._run_writing(kind, args, kwargs, results)
        items = results.items
        if results.kind is None and type(items[0]) is NewTensor:
            return self._new_result(kind, args, kwargs, items[0], 0)
        outs = [self._new_result(kind, args, kwargs, item, n) for n, item in enumerate(items)]
        return operator_calls.pack_results(results.kind, outs, args, kwargs)

    def _new_result(
        self, kind: OperatorKind, args: Any, kwargs: dict[str, Any], item: Any, position: int
    ) -> Any:
        """Return the result that `item` describes."""
        if type(item) is list:
            return [self._new_result(kind, args, kwargs, part, position) for part in item]
        if type(item) is not NewTensor:
            return item
        result = filling.untouched_tensor(item.size, item.stride, item.dtype)
        if item.room:
            result = filling.untouched_tensor((item.room,), (1,), item.dtype).as_strided(
                item.size, item.stride
            )
        self.mark(result, self._guess_result(kind, args, kwargs, result, position))
        return result

    def _guess_result(
        self, kind: OperatorKind, args: Any, kwargs: dict[str, Any], result: Tensor, position: int
    ) -> Guess:
        """Return a guess for `result`, the one at `position`; an error code is 0, as for any valid matrix."""
        if position == kind.status:
            result_guess = Guess(0.0, 0.0, 0.0, 0.0)
            result_guess.maker = kind.base
            return result_guess
        if kind.base not in RULES:
            if kind.constant:
                return constant(0.0)
            if local.backward != HOST and result.dtype.is_floating_point:
                return _gradient_guess(kind.base, result.numel())
            return anything(kind.base, result.dtype)
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and kind.lists and position < len(first):
            args = (first[position], *args[1:])
            first = first[position]
        ratio = 1.0
        if isinstance(first, Tensor):
            ratio = max(1.0, first.numel() / max(1, result.numel()))
        if kwargs:
            args = tuple(kind.arguments(args, kwargs))
        query = OperatorResult(kind.base, args, result.dtype, position, ratio, self.guess_of, self.are_same)
        result_guess = guess_result(query)
        if not result_guess.maker:
            result_guess.maker = kind.base
            source = self.record_of(first) if isinstance(first, Tensor) else None
            result_guess.source = "" if source is None else source.maker
        return result_guess

    # -- writing ---------------------------------------------------------------------------------------

    def _run_writing(
        self, kind: OperatorKind, args: Any, kwargs: dict[str, Any], results: ResultShapes
    ) -> Any:
        """Run an operator that writes into its arguments; return its results."""
        tensors = list(trees.tensors((args, kwargs)))
        for position, new in results.resized.items():
            tensors[position].resize_(new.size)
        self._write(kind, args, kwargs)
        arguments = kind.arguments(args, kwargs)
        outs = []
        for n, at in enumerate(kind.returned):
            if at >= 0:
                outs.append(arguments[at])
            elif n < len(results.items):
                outs.append(self._new_result(kind, args, kwargs, results.items[n], n))
        if not kind.returned:
            return None
        return outs[0] if len(kind.returned) == 1 else operator_calls.pack_results(tuple, outs, args, kwargs)

    def _write(self, kind: OperatorKind, args: Any, kwargs: dict[str, Any]) -> None:
        arguments = kind.arguments(args, kwargs)
        for at in kind.written:
            target = arguments[at] if at < len(arguments) else None
            if isinstance(target, Tensor):
                self._overwrite(target, self._guess_result(kind, args, kwargs, target, 0))
            elif isinstance(target, (list, tuple)):
                for n, part in enumerate(target):
                    before = self.record_of(part)
                    if before is None or before.exact or before.filled:
                        self._overwrite(part, self._guess_result(kind, args, kwargs, part, n))

    def _overwrite(self, target: Tensor, like: Guess) -> None:
        """Update the guess for a storage of which `target` has been written."""
        if not is_whole(target):
            before = self.guess_of(target)
            share = target.numel() * target.element_size() / max(1, target.untyped_storage().nbytes())
            if before is not None:
                maker, source = like.maker, like.source
                like = mix(before, like, min(1.0, share))
                like.maker, like.source = maker, source
        self.mark(target, like)

    # -- values that are made up -------------------------------------------------------------------------

    def _run_made_up(
        self,
        kind: OperatorKind,
        compute: Compute,
        index: int,
        args: Any,
        kwargs: dict[str, Any],
        error: ShapeUnknown,
    ) -> Any:
        """Compute an operator with made-up values, as its result shapes depend on them."""
        tensors = [tensor for tensor in trees.tensors((args, kwargs)) if self.record_of(tensor) is not None]
        largest = max((dense_part(tensor).untyped_storage().nbytes() for tensor in tensors), default=0)
        if largest > filling.MAX_FILLED_BYTES:
            if not isinstance(error.cause, NotImplementedError) and operator_calls.is_argument_error(
                error.cause
            ):
                raise error.cause
            size = f"{largest / 2**20:.0f} MB"
            raise NotEmulated(
                f"The result of {kind.name} depends on values, which a dry run does not have{requested_at()}"
                f": its argument of {size} is too large to make up values. Check it with values, or at a "
                "smaller size."
            )
        for tensor in tensors:
            self.fill(tensor)
        records = [self.record_of(tensor) for tensor in tensors]
        return self._compute(kind, compute, index, args, kwargs, tensors, records)


def _gradient_guess(maker: str, count: int) -> Guess:
    """Return a guess for gradients: their norm is about 0.1, whatever their number."""
    small = Guess(0.0, 0.1 / math.sqrt(max(1, count)))
    small.maker = maker
    return small

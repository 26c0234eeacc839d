"""`Values`: how operators run on storages that have no values.

An operator runs as ever where all that it is given is
known and small; else its results are tensors that nobody has written to, so that their memory is never
used, with a record of what their values are like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.dry import calls, filling, forks, host, settling, sizes, specials
from gapless.emulation.dry.budget import LITTLE, LITTLE_HEAVY, SMALL, WATCHED, Budget
from gapless.emulation.dry.calls import Compute
from gapless.emulation.dry.guesses import RULES, guess
from gapless.emulation.dry.guesses.guess import Guess, anything, constant, mixed
from gapless.emulation.dry.guesses.made import Made, is_whole
from gapless.emulation.dry.kinds import Kind
from gapless.emulation.dry.shapes import New, Results, Shapes, Unshaped
from gapless.emulation.dry.table import Table, stored
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

KNOWN = 1 << 22
"""Elements up to which results of known tensors are computed."""
CHEAP = 1 << 11
"""Elements that no operator makes too many of."""
HEAVY = 1 << 14
"""Elements up to which known matrices are multiplied."""
DRAWN = 1 << 14
"""Elements up to which floating point numbers are drawn on the device, and constants written."""
COPIED = 1 << 18
"""Floating point numbers up to which a copy from the host to the device has values."""
COPIED_ON_HOST = 1 << 20
"""Floating point numbers up to which copies within the host have values whatever was copied before."""
MADE_ON_HOST = 1 << 25
"""Floating point numbers that are drawn and copied on the host before the rest has no values."""
_SEALED = ("c10d", "_c10d_functional", "profiler")


class Values(Table):
    """The table of records, and what runs operators by it.

    With a `budget` operators are computed, whatever their size, until it is used up; `switch` says where that
    was.
    """

    def __init__(
        self, core: Core, given: dict[str, float] | None = None, budget: Budget | None = None
    ) -> None:
        super().__init__(core, given or {})
        self.placement = core.placement
        self.shapes = Shapes()
        self.budget = budget
        self.switch: Switch | None = None
        self._left: float = MADE_ON_HOST
        core.races.flights.digests = budget is not None  # without values nothing in memory can be compared

    @property
    def dry(self) -> bool:
        """Whether it goes on without values."""
        return self.budget is None

    def forked(self) -> None:
        """In a forked child, whose tensors go to other processes, what is drawn and copied is computed."""
        self._left = math.inf
        if self.budget is not None:
            self.budget.endless = True

    def install(self, patches: Patches) -> None:
        """Write files without values, until `patches` are undone."""
        host.install(self, patches)
        forks.watch(self)

    def handlers(self, others: dict[Any, Any]) -> dict[Any, Any]:
        """Handlers for calls from Python that look at values, besides the `others` that there are."""
        return host.handlers(self, others)

    # -- into the operator mode ------------------------------------------------------------------------

    def take_over(self, plan: Any) -> None:
        """Run the operator of `plan` (an `operators.Plan`) by what is known of its arguments."""
        kind = Kind(plan.func)
        if kind.view or plan.parts is not None:
            return
        compute = calls.computing(plan)
        if plan.func.namespace in _SEALED:
            plan.call = self._sealed(kind, plan.call)
            return
        if plan.run is not None and plan.func.namespace not in ("aten", "prims"):
            return  # its body is run, and `wrapped` is for what has none
        plan.call = self._called(kind, compute)
        plan.wide = None
        if plan.run is not None or not plan.plain:
            plan.run = self._run(kind, compute)

    def wrapped(self, func: Any, run: Compute) -> Compute:
        """`run`, which computes the overload `func`, for arguments that may have no values."""
        return self._run(Kind(func), run)

    def _called(self, kind: Kind, compute: Compute) -> Callable[..., Any]:
        if kind.afresh or kind.sized or kind.makes or kind.grows or kind.name in specials.SPECIAL:

            def special(*args: Any, **kwargs: Any) -> Any:
                return self.run(kind, compute, local.target, args, kwargs)

            return special
        records, most = self.records, HEAVY if kind.heavy else CHEAP

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.budget is not None:
                if self._computes(kind, HOST, args, kwargs):
                    return compute(HOST, args, kwargs)
                return self.run(kind, compute, HOST, args, kwargs)
            total = 0
            special = False
            for arg in (*args, *kwargs.values()) if kwargs else args:
                of = type(arg)
                for one in arg if of is list or of is tuple else (arg,):
                    if not isinstance(one, Tensor):
                        continue
                    try:
                        record = records.get(one.untyped_storage()._cdata)
                    except (NotImplementedError, RuntimeError):
                        return self.run(kind, compute, HOST, args, kwargs)
                    if record is not None:
                        if not record.exact and not record.filled:
                            return self._unknown(kind, compute, args, kwargs)
                        special = True
                    total += one.numel()
            if special or total > most:
                return self.run(kind, compute, HOST, args, kwargs)
            return compute(HOST, args, kwargs)

        return call

    def _unknown(self, kind: Kind, compute: Compute, args: Any, kwargs: dict[str, Any]) -> Any:
        if dispatch_mode_of(DispatchModeKey.FAKE) is not None:
            return compute(HOST, args, kwargs)
        return self.without(kind, compute, HOST, args, kwargs)

    def _run(self, kind: Kind, compute: Compute) -> Compute:
        def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
            return self.run(kind, compute, index, args, kwargs)

        return run

    def _sealed(self, kind: Kind, call: Callable[..., Any]) -> Callable[..., Any]:
        """Collectives run; what they make of values that are not there is not there either, and what they
        make of settled ones is."""

        def run(*args: Any, **kwargs: Any) -> Any:
            given = [one for one in trees.tensors((args, kwargs)) if has_storage(one)]
            records = [record for record in map(self.of, given) if record is not None]
            settled = all(one.exact or one.filled for one in records)
            for one in given if records and settled else ():
                settled = self.fill(one) and settled
            out = call(*args, **kwargs)
            if records:
                arguments = kind.arguments(args, kwargs)
                written = list(trees.tensors([arguments[n] for n in kind.written if n < len(arguments)]))
                for one in (*written, *(t for t in trees.tensors(out) if has_storage(t))):
                    if one.layout is torch.strided:
                        like = anything(kind.base, one.dtype)
                        self.mark(one, like.as_filled() if settled else like)
            return out

        return run

    # -- running ---------------------------------------------------------------------------------------

    def run(self, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator whose results go to `index`, computing what can be known."""
        if self.budget is not None and self._computes(kind, index, args, kwargs):
            return compute(index, args, kwargs)
        tensors = list(trees.tensors((args, kwargs)))
        if calls.passes(tensors, kwargs):
            return compute(index, args, kwargs)
        special = specials.SPECIAL.get(kind.name)
        if special is not None:
            found = special(self, kind, compute, index, args, kwargs)
            if found is not NotImplemented:
                return found
        target = calls.set_whole(kind, args, kwargs)
        records = [None if one is target or kind.shaped_like else self.of(one) for one in tensors]
        if kind.sized and any(one is not None and not one.exact for one in records):
            return sizes.settled(self, kind, compute, index, args, kwargs)
        unknown = any(one is not None and not (one.exact or one.filled) for one in records)
        if not unknown and self._affordable(kind, index, args, kwargs, tensors, records):
            if target is not None:
                self.forget(target)
            return self._computed(kind, compute, index, args, kwargs, tensors, records)
        return self.without(kind, compute, index, args, kwargs)

    def _computes(self, kind: Kind, index: int, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the budget allows for the operator; where it does not, this is a dry run from now on."""
        total = 0
        for arg in (*args, *kwargs.values()) if kwargs else args:
            of = type(arg)
            if isinstance(arg, Tensor):
                total += arg.numel()
            elif of is list or of is tuple:
                for one in arg:  # sizes of a factory, too
                    total += one.numel() if isinstance(one, Tensor) else SMALL
        least = SMALL
        if self.core.recorder.tick >= WATCHED and not kind.makes:
            least = LITTLE_HEAVY if kind.heavy else LITTLE
        if total <= least or dispatch_mode_of(DispatchModeKey.FAKE) is not None:
            return True
        budget = self.budget
        switch = budget.exceeded(kind, index, args, kwargs) if budget is not None else None
        if budget is None or switch is None:
            return True
        self.budget, self.switch = None, switch
        self.core.races.flights.digests = False
        budget.switched(switch)
        return False

    def _affordable(
        self, kind: Kind, index: int, args: Any, kwargs: dict[str, Any], tensors: list[Tensor],
        records: list[Guess | None],
    ) -> bool:  # fmt: skip
        """Whether the operator is to be computed, all of whose arguments have values or are constants."""
        on_host = index < 0 and not any(self.placement.state_of(one) >= 0 for one in tensors)
        if kind.afresh and (not kind.sets or calls.set_whole(kind, args, kwargs) is not None):
            return self._worth_writing(kind, args, kwargs, tensors, on_host)
        constants = [one for one in records if one is not None and one.exact]
        if on_host and tensors and not constants:
            return True  # what the script computes from its data
        total = sum(one.numel() for one in tensors)
        if kind.heavy:
            return total <= HEAVY
        if total <= CHEAP and not kind.grows:
            return True
        if constants and len(constants) == len(records) and self._stays_constant(kind, args, kwargs):
            return False
        return total <= KNOWN and self._made(kind, args, kwargs) <= KNOWN

    def _stays_constant(self, kind: Kind, args: Any, kwargs: dict[str, Any]) -> bool:
        first = next(trees.tensors((args, kwargs)))
        return kind.base in RULES and self._guessed(kind, args, kwargs, first, 0).exact

    def _worth_writing(
        self, kind: Kind, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], on_host: bool
    ) -> bool:
        """Whether a draw, a constant or a copy is written."""
        count = max(self._made(kind, args, kwargs), tensors[0].numel() if tensors else 0)
        dtype = kwargs.get("dtype") or (tensors[0].dtype if tensors else torch.get_default_dtype())
        copies = kind.base in ("_to_copy", "copy")
        if copies and on_host and count <= COPIED_ON_HOST:
            return True
        if kind.whole_numbers or (not dtype.is_floating_point and (kind.draws or copies)):
            return count <= KNOWN
        if on_host and (kind.draws or copies):
            if count > self._left or (kind.draws and count > KNOWN and self._left < math.inf):
                return False
            self._left -= count
            return True
        if copies:
            return count <= COPIED
        return count <= (KNOWN if on_host else DRAWN)

    def _made(self, kind: Kind, args: Any, kwargs: dict[str, Any]) -> int:
        """How many elements the results have; 0 where there is no telling."""
        if kind.sized:
            return 0
        if kind.alike:
            return next(trees.tensors((args, kwargs))).numel()
        if kind.size >= 0:
            return math.prod(args[kind.size] if kind.size < len(args) else kwargs["size"])
        try:
            return self.shapes.of(kind, args, kwargs).numel
        except Unshaped:
            return 0

    def _computed(
        self, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any],
        tensors: list[Tensor], records: list[Guess | None],
    ) -> Any:  # fmt: skip
        """Compute it; constants get their values first, and what comes of made-up values is made up."""
        made_up = False
        for tensor, record in zip(tensors, records, strict=True):
            if record is not None:
                made_up = made_up or record.filled
                if record.exact and self.of(tensor) is record:
                    self.fill(tensor)
        out = compute(index, args, kwargs)
        if kind.unset and index >= 0:  # what memory happens to hold differs from run to run
            with DisableTorchDispatch():
                out.zero_()
        if made_up:
            arguments = kind.arguments(args, kwargs)
            written = [arguments[n] for n in kind.written if n < len(arguments)]
            for given in (written, [out] if isinstance(out, Tensor) else out):
                for n, one in enumerate(trees.tensors(given)):
                    if has_storage(stored(one)) and self.of(one) is None:
                        self.mark(one, self._guessed(kind, args, kwargs, one, n).as_filled())
        return out

    def without(self, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator without computing it.

        Raises:
            NotEmulated: what it makes cannot be told without values, and it is too large to make some up.
        """
        if kind.sized:
            return sizes.settled(self, kind, compute, index, args, kwargs)
        return self.unknown(kind, compute, index, args, kwargs)

    def unknown(self, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator without computing it, whose results have sizes that follow from its arguments'."""
        if kind.lists and kind.written and not kind.func._schema.returns:
            self._write(kind, args, kwargs)
            return None
        try:
            results = self.shapes.of(kind, args, kwargs)
        except Unshaped as error:
            if kind.written and isinstance(error.cause, NotImplementedError) and -1 not in kind.returned:
                results = Results(None, [], False, {})
            else:
                return self._made_up(kind, compute, index, args, kwargs, error)
        if results.aliases and not kind.written:
            return compute(index, args, kwargs)
        if settling.settles(kind, args, results):
            found = settling.settled(self, kind, compute, index, args, kwargs, results)
            if found is not NotImplemented:
                return found
        if kind.written:
            return self._written(kind, args, kwargs, results)
        items = results.items
        if results.kind is None and type(items[0]) is New:
            return self._new(kind, args, kwargs, items[0], 0)
        outs = [self._new(kind, args, kwargs, one, n) for n, one in enumerate(items)]
        return calls.packed(results.kind, outs, args, kwargs)

    def _new(self, kind: Kind, args: Any, kwargs: dict[str, Any], item: Any, position: int) -> Any:
        """The result that `item` describes."""
        if type(item) is list:
            return [self._new(kind, args, kwargs, one, position) for one in item]
        if type(item) is not New:
            return item
        made = filling.untouched(item.size, item.stride, item.dtype)
        if item.room:
            made = filling.untouched((item.room,), (1,), item.dtype).as_strided(item.size, item.stride)
        self.mark(made, self._guessed(kind, args, kwargs, made, position))
        return made

    def _guessed(self, kind: Kind, args: Any, kwargs: dict[str, Any], made: Tensor, position: int) -> Guess:
        """What the result `made` is like; a matrix of which nothing is known can be factorized."""
        if position == kind.status:
            found = Guess(0.0, 0.0, 0.0, 0.0)
            found.maker = kind.base
            return found
        if kind.base not in RULES:
            if kind.constant:
                return constant(0.0)
            if local.backward != HOST and made.dtype.is_floating_point:
                return _gradient(kind.base, made.numel())
            return anything(kind.base, made.dtype)
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and kind.lists and position < len(first):
            args = (first[position], *args[1:])
            first = first[position]
        ratio = 1.0
        if isinstance(first, Tensor):
            ratio = max(1.0, first.numel() / max(1, made.numel()))
        if kwargs:
            args = tuple(kind.arguments(args, kwargs))
        asked = Made(kind.base, args, made.dtype, position, ratio, self.guess_of, self.same)
        found = guess(asked)
        if not found.maker:
            found.maker = kind.base
            source = self.of(first) if isinstance(first, Tensor) else None
            found.source = "" if source is None else source.maker
        return found

    # -- writing ---------------------------------------------------------------------------------------

    def _written(self, kind: Kind, args: Any, kwargs: dict[str, Any], results: Results) -> Any:
        """The results of an operator that writes into its arguments."""
        given = list(trees.tensors((args, kwargs)))
        for position, new in results.resized.items():
            given[position].resize_(new.size)
        self._write(kind, args, kwargs)
        arguments = kind.arguments(args, kwargs)
        outs = []
        for n, at in enumerate(kind.returned):
            if at >= 0:
                outs.append(arguments[at])
            elif n < len(results.items):
                outs.append(self._new(kind, args, kwargs, results.items[n], n))
        if not kind.returned:
            return None
        return outs[0] if len(kind.returned) == 1 else calls.packed(tuple, outs, args, kwargs)

    def _write(self, kind: Kind, args: Any, kwargs: dict[str, Any]) -> None:
        arguments = kind.arguments(args, kwargs)
        for at in kind.written:
            target = arguments[at] if at < len(arguments) else None
            if isinstance(target, Tensor):
                self._overwrite(target, self._guessed(kind, args, kwargs, target, 0))
            elif isinstance(target, (list, tuple)):
                for n, one in enumerate(target):
                    before = self.of(one)
                    if before is None or before.exact or before.filled:
                        self._overwrite(one, self._guessed(kind, args, kwargs, one, n))

    def _overwrite(self, target: Tensor, like: Guess) -> None:
        """Part of a storage, or all of it, has been written."""
        if not is_whole(target):
            before = self.guess_of(target)
            share = target.numel() * target.element_size() / max(1, target.untyped_storage().nbytes())
            if before is not None:
                maker, source = like.maker, like.source
                like = mixed(before, like, min(1.0, share))
                like.maker, like.source = maker, source
        self.mark(target, like)

    # -- values that are made up -------------------------------------------------------------------------

    def _made_up(
        self, kind: Kind, compute: Compute, index: int, args: Any, kwargs: dict[str, Any], error: Unshaped
    ) -> Any:
        """Compute with values that are made up, where nothing less will do."""
        tensors = [one for one in trees.tensors((args, kwargs)) if self.of(one) is not None]
        largest = max((stored(one).untyped_storage().nbytes() for one in tensors), default=0)
        if largest > filling.MOST:
            if not isinstance(error.cause, NotImplementedError) and calls.about_arguments(error.cause):
                raise error.cause
            size = f"{largest / 2**20:.0f} MB"
            raise NotEmulated(
                f"The result of {kind.name} depends on values, which a dry run does not have{requested_at()}"
                f": its argument of {size} is too large to make up values. Check it with values, or at a "
                "smaller size."
            )
        for one in tensors:
            self.fill(one)
        records = [self.of(one) for one in tensors]
        return self._computed(kind, compute, index, args, kwargs, tensors, records)


def _gradient(maker: str, count: int) -> Guess:
    """Gradients are small: their norm is some tenth, however many they are."""
    found = Guess(0.0, 0.1 / math.sqrt(max(1, count)))
    found.maker = maker
    return found

"""`Capture`: one capture under way. It records, refuses what CUDA refuses, and executes nothing in the
end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.graphs import words
from gapless.emulation.graphs.host import HostWork
from gapless.emulation.graphs.slots import View, storage_of
from gapless.emulation.graphs.tape import Constant, Tape
from gapless.emulation.graphs.words import Failure
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction, sequence_number

Tensor = torch.Tensor
Stream = tuple[int, int]
"""Device and stream."""
_COPIES = ("aten::copy_", "aten::_to_copy")
_UNDECLARED = "running_"
"""How the arguments are called that batch norms write without saying so in their schema."""


class Capture:
    """What is recorded on `stream` and on those that it forks into, in the thread that began it.

    `core` is the emulation's, `mode` the capture error mode, `generators` those that the graph manages.
    """

    def __init__(self, core: Any, stream: Stream, mode: str, generators: set[int]) -> None:
        self.core = core
        self.stream = stream
        self.mode = mode
        self.thread = threading.get_ident()
        self.tape = Tape()
        self.place = stacks.capture(2)
        self.failed = False
        self.earlier: list[Any] = []  # graphs of the pool whose memory it may be given
        self.streams: set[Stream] = {stream}
        self.work: dict[Stream, int] = {}
        self.joined: dict[Stream, int] = {}
        self.host = HostWork(core)
        self._generators = generators
        self._copies = False  # what runs reads the host's memory when it is replayed
        self._drawn: dict[int, tuple[Any, Tensor]] = {}
        self._states: dict[tuple[int, tuple[int, int]], Tensor] = {}
        self._seed = torch.default_generator.get_state()
        self.begun = sequence_number()

    # -- whose it is ---------------------------------------------------------------------------------

    def holds(self, unsafe: bool = True) -> bool:
        """Whether this thread is under the rules of the capture; others are for calls that are `unsafe`."""
        return threading.get_ident() == self.thread or (unsafe and self.mode == "global")

    def at(self) -> Stream:
        """The stream that this thread launches on."""
        index = local.device
        return index, self.core.graphs.stream_id(index)

    def refuse(self, failure: Failure, what: str) -> RuntimeError:
        """The error to raise for `what`, which ends the capture."""
        self.failed = True
        self.core.graphs.refused(self, failure.words, what)
        return words.error(failure)

    def intact(self) -> None:
        """Raises CUDA's error where something has failed in this capture before."""
        if self.failed:
            raise words.error(words.INVALIDATED)

    # -- streams -------------------------------------------------------------------------------------

    def recorded(self, stream: Stream) -> tuple[Any, Stream, int] | None:
        """What an event recorded in `stream` stands for in this capture; None: for nothing in it."""
        return (self, stream, self.work.get(stream, 0)) if stream in self.streams else None

    def awaited(self, stream: Stream, moment: Any, recorded: bool, external: bool) -> None:
        """`stream` waits for an event with that moment."""
        if external or not recorded:
            return
        inside = moment is not None and moment[0] is self
        if inside and stream[1] == 0 and stream not in self.streams:
            raise self.refuse(words.IMPLICIT, "the default stream waits for a stream of the capture")
        if inside:
            self.streams.add(stream)
            self.joined[moment[1]] = max(self.joined.get(moment[1], -1), moment[2])
        elif stream in self.streams:
            raise self.refuse(words.ISOLATION, "a stream of the capture waits for work outside it")

    def unjoined(self) -> bool:
        """Whether a stream that forked off has work that nothing in the capture waits for."""
        return any(self.joined.get(one, 0) < self.work.get(one, 0) for one in self.streams - {self.stream})

    # -- operators -----------------------------------------------------------------------------------

    def operator(self, mode: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator for its shapes, and record it if it is launched in the capture."""
        plan = mode.of(func)
        self._copies = plan.name in _COPIES
        if plan.view:
            return mode.__torch_dispatch__(func, types, args, kwargs)
        given = list(trees.tensors((args, kwargs)))
        state_of = self.core.placement.state_of
        device = local.target >= 0 or any(state_of(one) >= 0 for one in given)
        names_one = plan.makes and _is_cuda(args, kwargs)
        if not (device or names_one):
            out = mode.__torch_dispatch__(func, types, args, kwargs)
            if not any(state_of(one) >= 0 for one in trees.tensors(out)):
                self.host.operator(plan, args, kwargs)
                self.host.made(out)
                return out
            self._record(plan, func, self._given(args), self._given(kwargs), out)
            return out
        if self.at() not in self.streams:
            return self._uncaptured(mode, plan, func, types, args, kwargs)
        self.intact()
        self._draws(plan, kwargs)
        self._saved(plan, args, kwargs)
        given_args, given_kwargs = (self._given(args), self._given(kwargs)) if plan.launches else ((), {})
        out = mode.__torch_dispatch__(func, types, args, kwargs)
        self._record(plan, func, given_args, given_kwargs, out)
        return out

    def call(
        self, name: str, run: Callable[..., Any], args: Any, writes: Iterable[Tensor], body: Callable[[], Any]
    ) -> Any:
        """Run `body`, a launch that is no operator, and record that replays call `run` with `args`."""
        if self.at() not in self.streams:
            return body()
        self.intact()
        for one in writes:
            self._save(one)
        given = self._given(args)
        out = body()
        self.tape.add(run, given, {}, self._made(out), name)
        self._count()
        return out

    def _record(self, plan: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        made = self._made(out)
        if plan.launches:
            self.tape.add(func, args, kwargs, made, plan.name)
            self._count()

    def _count(self) -> None:
        at = self.at()
        self.work[at] = self.work.get(at, 0) + 1

    def _given(self, value: Any) -> Any:
        return self.tape.replaced(value, self._argument)

    def _argument(self, tensor: Tensor) -> Any:
        storage = storage_of(tensor)
        if storage is None:
            return tensor
        index = self.core.placement.where.get(storage._cdata, HOST)
        if index < 0 and tensor.dim() == 0 and local.target < 0 and not self._copies:
            return Constant(_copied(tensor), weakref.ref(tensor))
        return View.of(tensor, self.tape.slot(storage, False, index))

    def _made(self, out: Any) -> Any:
        def result(tensor: Tensor) -> Any:
            storage = storage_of(tensor)
            if storage is None:
                return tensor
            index = self.core.placement.where.get(storage._cdata, HOST)
            return View.of(tensor, self.tape.slot(storage, True, index if index >= 0 else self.stream[0]))

        return trees.mapped(out, result)

    # -- what is put back ----------------------------------------------------------------------------

    def _saved(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        names = [one.name for one in plan.func._schema.arguments]
        for at, value in (*enumerate(args), *kwargs.items()):
            name = names[at] if isinstance(at, int) and at < len(names) else str(at)
            if at in plan.written or name in plan.written or name.startswith(_UNDECLARED):
                for one in trees.tensors(value):
                    self._save(one)

    def _save(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        index = self.core.placement.where.get(storage._cdata, HOST)
        slot = self.tape.slot(storage, False, index)
        slot.written = True
        if not self.core.dry:
            slot.save()

    def _draws(self, plan: Any, kwargs: dict[str, Any]) -> None:
        """Random numbers come from generators that the graph manages."""
        generator = kwargs.get("generator") if plan.draws else None
        default: Any = torch.default_generator
        if generator is None or generator._cdata == default._cdata:
            return
        if generator._cdata not in self._generators:
            self.core.graphs.refused(self, words.GENERATOR, plan.name)
            raise RuntimeError(words.GENERATOR)
        own = getattr(generator, "drawn_from", generator)  # the dispatcher hands on a plain one
        self._drawn.setdefault(generator._cdata, (own, own.get_state()))

    def keeps(self, generator: Any, state: tuple[int, int]) -> None:
        """The script has the state of `generator`: at this place replays keep the one they have then."""
        key = (id(generator), state)

        def keep() -> None:
            self._states[key] = generator.drawn_from.get_state()

        keep()
        self.tape.add(keep, (), {}, None, "")

    def puts_back(self, generator: Any, state: tuple[int, int]) -> bool:
        """Whether `generator` had that state in the capture; replays put back the one they have kept."""
        key = (id(generator), state)
        if key not in self._states:
            return False
        self.tape.add(lambda: generator.drawn_from.set_state(self._states[key]), (), {}, None, "")
        return True

    def close(self) -> None:
        """The capture is over: whatever it wrote is as it was before."""
        for slot in self.tape.slots:
            slot.restore()
        for generator, state in self._drawn.values():
            generator.set_state(state)
        if not self.host.drew:
            torch.default_generator.set_state(self._seed)
        self.tape.finish()

    # -- what is not in it ---------------------------------------------------------------------------

    def _uncaptured(
        self, mode: Any, plan: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """An operator on a stream that is not captured: it runs now, and never again."""
        before = self.core.placement.placed
        out = mode.__torch_dispatch__(func, types, args, kwargs)
        if self.at()[1] and self.core.placement.placed != before and self.mode != "relaxed":
            raise self.refuse(
                words.UNSUPPORTED, f"{plan.name} allocates memory on a stream that is not captured"
            )
        if plan.launches:
            self.core.graphs.found.uncaptured(self, plan.name)
        return out


def _is_cuda(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a factory is asked for something on the device."""
    named = [kwargs.get("device"), *(one for one in args if isinstance(one, _Device))]
    return any(isinstance(one, _Device) and one.type == "cuda" for one in named)


def _copied(tensor: Tensor) -> Tensor:
    with DisableTorchDispatch(), DisableTorchFunction():
        return tensor.detach().clone()


_Device = torch.device

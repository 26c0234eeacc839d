"""`GraphCapture`: a capture under way records launches, refuses what CUDA refuses, and undoes its writes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.graphs import words
from gapless.emulation.graphs.host_work import HostWork
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
_COPY_OPERATORS = ("aten::copy_", "aten::_to_copy")
"""Operators whose replays read CPU scalars again, where kernels keep the captured value."""
"""Operators whose replays read CPU scalars again, where kernels keep the captured value."""
_UNDECLARED_PREFIX = "running_"
"""Name prefix of arguments that batch norms write although their schema does not say so."""


class GraphCapture:
    """Records what the beginning thread launches on `stream` and on the streams that it forks into.

    `core` is the emulation's, `mode` the capture error mode, `generators` the keys of the graph's generators.
    """

    def __init__(self, core: Any, stream: Stream, mode: str, generators: set[int]) -> None:
        self.core = core
        self.stream = stream
        self.mode = mode
        self.thread = threading.get_ident()
        self.tape = Tape()
        self.place = stacks.capture(2)
        self.failed = False
        self.earlier: list[Any] = []  # graphs of the pool whose memory this one may reuse
        self.streams: set[Stream] = {stream}
        self.work: dict[Stream, int] = {}
        self.joined: dict[Stream, int] = {}
        self.host = HostWork(core)
        self._generators = generators
        self._copies = False  # the running operator reads host memory at each replay
        self._generator_states: dict[int, tuple[Any, Tensor]] = {}
        self._states: dict[tuple[int, tuple[int, int]], Tensor] = {}
        self._seed = torch.default_generator.get_state()
        self.first_node = sequence_number()

    # -- who is capturing ----------------------------------------------------------------------------

    def applies_here(self, unsafe: bool = True) -> bool:
        """Whether the capture's rules bind this thread; in mode "global" `unsafe` calls of any thread."""
        return threading.get_ident() == self.thread or (unsafe and self.mode == "global")

    def current_stream(self) -> Stream:
        """Return device index and id of the stream that this thread launches on."""
        index = local.device
        return index, self.core.graphs.stream_id(index)

    def refuse(self, failure: Failure, subject: str) -> RuntimeError:
        """Fail the capture because of `subject`; return the error to raise."""
        self.failed = True
        self.core.graphs.record_refusal(self, failure.words, subject)
        return words.error(failure)

    def check_valid(self) -> None:
        """Raise CUDA's error if something in this capture has failed before."""
        if self.failed:
            raise words.error(words.INVALIDATED)

    # -- streams -------------------------------------------------------------------------------------

    def event_moment(self, stream: Stream) -> tuple[Any, Stream, int] | None:
        """Return (capture, stream, launches so far) for an event recorded now; None if not captured."""
        return (self, stream, self.work.get(stream, 0)) if stream in self.streams else None

    def wait_for_event(self, stream: Stream, moment: Any, recorded: bool, external: bool) -> None:
        """Make `stream` wait for an event recorded at `moment`; refuse what would leave the capture."""
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

    def has_unjoined_work(self) -> bool:
        """Whether a forked stream has work that nothing in the capture waits for."""
        return any(
            self.joined.get(stream, 0) < self.work.get(stream, 0) for stream in self.streams - {self.stream}
        )

    # -- operators -----------------------------------------------------------------------------------

    def operator(self, mode: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator for its result shapes, and record it if it launches in the capture."""
        plan = mode.of(func)
        self._copies = plan.name in _COPY_OPERATORS
        if plan.view:
            return mode.__torch_dispatch__(func, types, args, kwargs)
        tensors = list(trees.tensors((args, kwargs)))
        state_of = self.core.placement.state_of
        device = local.target >= 0 or any(state_of(tensor) >= 0 for tensor in tensors)
        names_device = plan.makes and _is_cuda(args, kwargs)
        if not (device or names_device):
            out = mode.__torch_dispatch__(func, types, args, kwargs)
            if not any(state_of(tensor) >= 0 for tensor in trees.tensors(out)):
                self.host.operator(plan, args, kwargs)
                self.host.record_results(out)
                return out
            self._record(plan, func, self._record_arguments(args), self._record_arguments(kwargs), out)
            return out
        if self.current_stream() not in self.streams:
            return self._run_outside_capture(mode, plan, func, types, args, kwargs)
        self.check_valid()
        self._check_generator(plan, kwargs)
        self._save_written(plan, args, kwargs)
        recorded_args, recorded_kwargs = (
            (self._record_arguments(args), self._record_arguments(kwargs)) if plan.launches else ((), {})
        )
        out = mode.__torch_dispatch__(func, types, args, kwargs)
        self._record(plan, func, recorded_args, recorded_kwargs, out)
        return out

    def launch(
        self, name: str, run: Callable[..., Any], args: Any, writes: Iterable[Tensor], body: Callable[[], Any]
    ) -> Any:
        """Run `body`, a launch that is no operator; replays will call ``run(*args)``."""
        if self.current_stream() not in self.streams:
            return body()
        self.check_valid()
        for tensor in writes:
            self._save(tensor)
        recorded_args = self._record_arguments(args)
        out = body()
        self.tape.add(run, recorded_args, {}, self._record_results(out), name)
        self._count_launch()
        return out

    def _record(self, plan: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        results = self._record_results(out)
        if plan.launches:
            self.tape.add(func, args, kwargs, results, plan.name)
            self._count_launch()

    def _count_launch(self) -> None:
        at = self.current_stream()
        self.work[at] = self.work.get(at, 0) + 1

    def _record_arguments(self, value: Any) -> Any:
        return self.tape.replace_tensors(value, self._recorded_argument)

    def _recorded_argument(self, tensor: Tensor) -> Any:
        storage = storage_of(tensor)
        if storage is None:
            return tensor
        index = self.core.placement.where.get(storage._cdata, HOST)
        if index < 0 and tensor.dim() == 0 and local.target < 0 and not self._copies:
            return Constant(_clone(tensor), weakref.ref(tensor))
        return View.of(tensor, self.tape.slot(storage, False, index))

    def _record_results(self, out: Any) -> Any:
        def result(tensor: Tensor) -> Any:
            storage = storage_of(tensor)
            if storage is None:
                return tensor
            index = self.core.placement.where.get(storage._cdata, HOST)
            return View.of(tensor, self.tape.slot(storage, True, index if index >= 0 else self.stream[0]))

        return trees.map_tensors(out, result)

    # -- restoring state after the capture -----------------------------------------------------------

    def _save_written(self, plan: Any, args: Any, kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in plan.func._schema.arguments]
        for at, value in (*enumerate(args), *kwargs.items()):
            name = names[at] if isinstance(at, int) and at < len(names) else str(at)
            if at in plan.written or name in plan.written or name.startswith(_UNDECLARED_PREFIX):
                for tensor in trees.tensors(value):
                    self._save(tensor)

    def _save(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        index = self.core.placement.where.get(storage._cdata, HOST)
        slot = self.tape.slot(storage, False, index)
        slot.is_written = True
        if not self.core.dry:
            slot.save()

    def _check_generator(self, plan: Any, kwargs: dict[str, Any]) -> None:
        """Refuse a draw from a generator that the graph does not manage; remember the state of others."""
        generator = kwargs.get("generator") if plan.draws else None
        default: Any = torch.default_generator
        if generator is None or generator._cdata == default._cdata:
            return
        if generator._cdata not in self._generators:
            self.core.graphs.record_refusal(self, words.GENERATOR, plan.name)
            raise RuntimeError(words.GENERATOR)
        own = getattr(generator, "drawn_from", generator)  # the dispatcher passes a plain generator
        self._generator_states.setdefault(generator._cdata, (own, own.get_state()))

    def keep_generator_state(self, generator: Any, state: tuple[int, int]) -> None:
        """Record that the script read `state`: replays save their own generator state at this point."""
        key = (id(generator), state)

        def keep() -> None:
            self._states[key] = generator.drawn_from.get_state()

        keep()
        self.tape.add(keep, (), {}, None, "")

    def restore_generator_state(self, generator: Any, state: tuple[int, int]) -> bool:
        """Whether `state` was read in this capture; if so replays restore the state that they saved."""
        key = (id(generator), state)
        if key not in self._states:
            return False
        self.tape.add(lambda: generator.drawn_from.set_state(self._states[key]), (), {}, None, "")
        return True

    def close(self) -> None:
        """End the capture: restore all that it wrote, and the random states."""
        for slot in self.tape.slots:
            slot.restore()
        for generator, state in self._generator_states.values():
            generator.set_state(state)
        if not self.host.drew:
            torch.default_generator.set_state(self._seed)
        self.tape.finish()

    # -- outside the capture -------------------------------------------------------------------------

    def _run_outside_capture(
        self, mode: Any, plan: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator on a stream that is not captured, and report that replays lack it."""
        before = self.core.placement.placed
        out = mode.__torch_dispatch__(func, types, args, kwargs)
        if self.current_stream()[1] and self.core.placement.placed != before and self.mode != "relaxed":
            raise self.refuse(
                words.UNSUPPORTED, f"{plan.name} allocates memory on a stream that is not captured"
            )
        if plan.launches:
            self.core.graphs.faults.add_outside_capture(self, plan.name)
        return out


def _is_cuda(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a factory's arguments name a CUDA device."""
    devices = [kwargs.get("device"), *(arg for arg in args if isinstance(arg, _Device))]
    return any(isinstance(device, _Device) and device.type == "cuda" for device in devices)


def _clone(tensor: Tensor) -> Tensor:
    with DisableTorchDispatch(), DisableTorchFunction():
        return tensor.detach().clone()


_Device = torch.device

"""`Emulator`: switches the emulated CUDA device on and off."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gapless import torch_internals
from gapless._version import __version__
from gapless.emulation import cuda_api, standins
from gapless.emulation.compiled import compilers
from gapless.emulation.compiled.compiled_calls import CompiledCalls
from gapless.emulation.core import forwards, optimizers, steps, threads
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.cuda_api import profilers, smi
from gapless.emulation.dispatch import (
    attention_choice,
    autocast,
    composites,
    copy_operators,
    cudnn_benchmark,
    device_type,
    factories,
    foreach,
    fourier,
    functions,
    indexing,
    methods,
    nodes,
    operators,
    placement_properties,
    recurrent,
    serialization,
    tensor_methods,
)
from gapless.emulation.distributed import process_groups as distributed
from gapless.emulation.distributed.world import enter, leave
from gapless.emulation.memory.requests import MemoryRecorder, reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.recording.programme import ProgrammeRecorder
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.recording.value_uses import add_uses
from gapless.emulation.standins import cuda_sources, extensions
from gapless.emulation.standins.fallbacks import find_fallbacks
from gapless.emulation.support import stacks, warning_lines
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.projects import installed_from
from gapless.emulation.triton import hooks as triton_hooks
from gapless.errors import UsageError
from gapless.model import Ending, Environment, Session, StepMark, gpus
from gapless.model.assumption import Switch
from gapless.model.tally import ADVANCING, InTurn, StepTally, step_ends
from gapless.torch_internals import (
    current_dispatch_mode,
    current_function_mode,
    lift_only_cpu_tensors,
    pop_dispatch_mode,
    pop_function_mode,
)

_HANDLERS = (  # importing these modules registers their handlers
    attention_choice,
    copy_operators,
    cudnn_benchmark,
    factories,
    fourier,
    indexing,
    recurrent,
    tensor_methods,
)
_current: Emulator | None = None
step_listeners: list[Callable[[], None]] = []
"""Also called by :func:`step`: the profiler of a real device."""


_LATE = (
    "copies to the CPU arrived only when something waited for them (--late-copies): values read earlier "
    "are NaN, or a number out of range"
)
_NO_RACES = (
    f"several streams are used, but races were not checked: torch {torch.__version__} does not report when "
    "memory is freed (2.10 and later do)"
)


class Emulator:
    """The machine of `options`, for everything torch does between `start` and `stop`.

    `on_mark` is called with each step mark and may raise to stop the script; so may `between_marks`, called
    with the seconds since the start at each wait and batch between marks. `on_switch` is called when a run
    that decides by itself whether to compute values does so no longer.
    Use it as a context manager, or through :func:`gapless.emulate`.

    Raises:
        UsageError: no GPU of that name, fewer than one device, no such rank, or options that exclude each
            other.
    """

    def __init__(
        self,
        options: EmulatorOptions = EmulatorOptions(),  # noqa: B008 - frozen
        *,
        on_mark: Callable[[StepMark], None] | None = None,
        between_marks: Callable[[float], None] | None = None,
        on_switch: Callable[[Switch], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options = options
        self.world = options.world()
        self.devices = self._count_devices()
        gpu = options.gpu
        self.gpu = gpus.DEFAULT if gpu is None else gpus.find(gpu) if isinstance(gpu, str) else gpu
        self.recorder = WaitRecorder(clock)
        self.recorder.on_mark = on_mark
        self.recorder.between_marks = between_marks
        if options.programme:
            self.recorder.programme = ProgrammeRecorder(self.gpu, self.devices, options.graphs)
        self.core = EmulationCore(self.gpu, self.devices, self.recorder, clock)
        self._choose_values(on_switch)
        if options.memory:
            self._record_memory()
        self.on_fork: Callable[[], None] | None = None  # called in a forked child that may have the device
        self.in_turn: InTurn = lambda first, second: False  # see `StepTally`; set once sources are read
        self.compiled = CompiledCalls(self.core.device_of, values=not options.dry, wanted=options.compiled)
        replays = self.compiled.replays
        replays.watch = lambda: self.core.graphs.watch_replays(replays)
        self._patches = Patches()
        self._modes: contextlib.ExitStack | None = None
        self._left: contextlib.ExitStack | None = None
        self._hook: Any = None
        self._optimizer_hook: Any = None
        self._environment: dict[str, str | None] = {}

    def _count_devices(self) -> int:
        devices = self.options.devices
        if devices is None:
            devices = distributed.local_world_size() if self.world is None else self.world.node
        if devices < 1:
            raise UsageError(f"{devices} devices: an emulated machine needs at least one")
        return devices

    def _choose_values(self, on_switch: Callable[[Switch], None] | None) -> None:
        """Run large operators without values where wanted, or let copies arrive late."""
        dry, late = self.options.dry, self.options.late_copies
        if late and dry:
            raise UsageError("a dry run has no values, so none can arrive late")
        if late:
            self.core.races.late = True
            self.core.note(_LATE)
        elif dry is not False:
            self._leave_out_values(dry is None, on_switch)

    def _leave_out_values(self, if_slow: bool, on_switch: Callable[[Switch], None] | None) -> None:
        """Run large operators without values: from the start or, `if_slow`, once values take too long."""
        from gapless.emulation.dry.budget import Budget
        from gapless.emulation.dry.values import GuessedValues

        budget = Budget(self.core, on_switch) if if_slow else None
        self.core.values = GuessedValues(self.core, dict(self.options.assume), budget)

    def _record_memory(self) -> None:
        """Record requests for device memory.

        Raises:
            UsageError: this torch does not report when storages are freed.
        """
        if not reports_storage_ends():
            raise UsageError(f"torch {torch.__version__} does not report when memory is freed")
        recorder = MemoryRecorder(self.gpu)
        recorder.forward_of = self.core._forward_call
        recorder.step_ends = lambda: _step_ends(self.recorder.marks(), self.in_turn)
        self.recorder.memory = self.core.placement.memory = recorder

    # -- on and off --------------------------------------------------------------------------------

    def start(self) -> Emulator:
        """Switch the device on in this thread and in every thread started from now on."""
        global _current
        if _current is not None:
            raise UsageError("an emulated device is already active: emulations cannot be nested")
        if torch.cuda.is_available():
            self.core.note(f"this machine has a GPU; the script runs on an emulated {self.gpu.name} instead")
        if untried := torch_internals.untested_note():
            self.core.note(untried)
        _current = self
        self.core.enabled = True
        self.core.races.enabled = reports_storage_ends()
        self._environment = enter(self.world)
        stacks.set_own((*self.options.own, *installed_from(".")))
        patches = self._patches
        try:
            device_type.install(patches)
            placement_properties.install(self.core, patches)
            cuda_api.install(self.core, patches)
            attention_choice.install(self.core, patches)
            composites.install(self.core.device_of)
            foreach.install(self.core, patches)
            profilers.install(self.core, patches)
            distributed.install(self.core, patches)
            compilers.install(self.core.note, patches, self.options.lasting, self.compiled)
            triton_hooks.install(self.core, patches)
            autocast.install(self.core.device_of, patches, self.core.note)
            serialization.install(self.core)
            extensions.install(self.core, patches)
            cuda_sources.install(self.core, patches)
            smi.install(patches)
            standins.install(self.core, patches, self.options.standins)
            self._hook = steps.install(self.core, patches)
            if self.options.inference:
                self._hook.callback(forwards.install(self.core).close)
            self._optimizer_hook = optimizers.install(self.core, patches)
            if self.core.values is not None:
                self.core.values.install(patches)
            threads.install(self, patches)
            warning_lines.install(patches)
            methods.install(self.core, patches)
            self.core.origins.install(patches)
            # Values are built on the CPU, and only then go where they are wanted, by an operator seen below.
            lift_only_cpu_tensors(True)
            self._modes = contextlib.ExitStack()
            self._modes.enter_context(self.modes())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, *, forget: bool = True) -> None:
        """Switch the device off; the record stays.

        With ``forget=False`` placements are kept too, for a later `start`.
        """
        global _current
        if _current is not self:
            return
        try:
            self._switch_off()
        finally:  # whatever fails, the next emulation can begin
            _current = None
        if forget:
            self.core.placement.clear()
            local.device = 0
            if self.core.values is not None:
                self.core.values.clear()

    def _switch_off(self) -> None:
        self.core.races.flights.end()
        self.core.enabled = self.core.races.enabled = False
        lift_only_cpu_tensors(False)
        if self._modes is not None:
            self._modes.close()
            self._modes = None
        threads.uninstall()
        if self._hook is not None:
            self._hook.close()
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
        serialization.uninstall()
        standins.uninstall()
        autocast.uninstall()
        composites.uninstall()
        self._patches.undo()
        leave(self._environment)

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Enter both modes in the calling thread."""
        function_mode = functions.FunctionMode(self.core)
        function_mode.handlers.update(nodes.handlers())
        if self.core.values is not None:
            function_mode.handlers.update(self.core.values.handlers(function_mode.handlers))
        operator_mode = operators.OperatorMode(self.core)
        with function_mode, operator_mode:
            yield

    def leave_in_child(self) -> None:
        """In a forked child, stop recording; if CUDA was in use, refuse the device and run on the host."""
        self.core.enabled = self.core.races.enabled = False
        self.recorder.on_mark = None
        if self.core.values is not None:
            self.core.values.after_fork()
        if not (
            self.core.used or torch_internals.in_bad_fork()
        ):  # forked before CUDA's first use: may have it
            if self.on_fork is not None:
                self.on_fork()
            return
        if isinstance(current_function_mode(), functions.FunctionMode):
            pop_function_mode()
        if isinstance(current_dispatch_mode(), operators.OperatorMode):
            pop_dispatch_mode()
        functions.ForkedMode().__enter__()

    def leave_in_copy(self) -> None:
        """In a forked copy of this process whose modes are gone, undo all patches but keep placements."""
        global _current
        self._left, self._modes = self._modes, None
        _current = self
        self.stop(forget=False)

    def count_afresh(self) -> None:
        """Start a new, empty record."""
        self.recorder = self.core.recorder = WaitRecorder(self.core.clock)
        self.core.races.log.clear()
        self.core.graphs.faults.clear()
        self.core.origins.forget_sites()
        if self.core.values is not None:
            self.core.values.reads.reset()

    def record_afresh(self, on_mark: Callable[[StepMark], None] | None) -> None:
        """In a forked child that may use the device, start a record of its own."""
        programme = self.recorder.programme
        self.recorder = self.core.recorder = WaitRecorder(self.core.clock)
        self.core.races.log.clear()
        self.core.graphs.faults.clear()
        self.core.origins.forget_sites()
        if programme is not None:
            self.recorder.programme = ProgrammeRecorder(self.gpu, self.devices, programme.lines)
        if self.core.placement.memory is not None:
            self._record_memory()
        self.recorder.on_mark = distributed.leave_together(on_mark) if on_mark is not None else None
        self.core.optimizers.clear()
        self.core.optimizers_seen = 0
        self.core.enabled = True
        self.core.races.enabled = reports_storage_ends()

    # -- reading the record ----------------------------------------------------------------------------

    def session(self, script: tuple[str, ...] = (), ending: Ending | None = None) -> Session:
        """Return everything recorded so far as a `Session`."""
        recorder, values = self.recorder, self.core.values
        marks = recorder.marks()
        sites, defects = add_uses(
            zip(self.core.origins.add_causes(recorder.sites()), recorder.raw_stacks(), strict=True),
            self.core.origins.named,
        )
        return Session(
            script=script,
            environment=environment(self.gpu.name, unused=not self.core.used, dry=self.core.dry),
            ending=ending or Ending(),
            sites=sites,
            events=recorder.events(),
            later=recorder.later(),
            marks=marks,
            strands=_parents(recorder),
            races=self.core.races.races(),
            graphs=self.core.graphs.faults.all(),
            notes=(
                *recorder.notes(),
                *cudnn_benchmark.notes(recorder),
                *recorder.strands.notes(),
                *((_NO_RACES,) if self.core.races.has_streams and not reports_storage_ends() else ()),
                *standins.notes(ending.message if ending is not None else ""),
                *(values.reads.unused_values() if values is not None else ()),
                *defects,
            ),
            unknown=recorder.unknowns(),
            fallbacks=find_fallbacks(standins.finder.requests.refusals),
            asked=tuple(self.core.askers),
            duration=recorder.duration(),
            programme=recorder.programme.programme() if recorder.programme is not None else None,
            memory=recorder.memory.runs(_step_ends(marks, self.in_turn))
            if recorder.memory is not None
            else (),
            assumptions=values.reads.assumptions() if values is not None else (),
            switch=values.switch if values is not None else None,
            optimizers=recorder.optimizers.uses(),
        )


def _step_ends(marks: tuple[StepMark, ...], in_turn: InTurn) -> list[int]:
    """Return the numbers of the marks that end steps, counting from 1 the marks that advance the tick.

    Of several training loops side by side the first counts. Empty if only backward passes mark steps.
    """
    tally = StepTally(in_turn)
    for mark in marks:
        tally.add(mark)
    if tally.kind == "gradients":
        return []
    advancing = [mark for mark in marks if mark.kind in ADVANCING]
    _, first = next(step_ends(advancing, tally), (frozenset(), []))
    return [position + 1 for position in first]


def _parents(recorder: WaitRecorder) -> tuple[int, ...]:
    """Return which strand started each strand; empty if there is only one."""
    parents = tuple(recorder.strands.parents)
    return parents if len(parents) > 1 else ()


def environment(device: str, unused: bool = False, dry: bool = False) -> Environment:
    """Return versions and devices of this process."""
    rank, world = distributed.rank_and_world()
    return Environment(
        gapless=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=f"{platform.system()} {platform.machine()}",
        device=device,
        emulated=True,
        unused=unused,
        dry=dry,
        world_size=world,
        rank=rank,
    )


def current() -> Emulator | None:
    """Return the active emulation, if any."""
    return _current


def step() -> None:
    """Mark the end of a training step that Gapless cannot see (no optimizer, no profiler)."""
    if _current is not None:
        _current.recorder.mark("user", "gapless.step", depth=1)
    for listener in tuple(step_listeners):
        listener()

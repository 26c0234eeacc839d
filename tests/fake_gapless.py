"""The command line with a device that only counts waits and steps: ``python fake_gapless.py check SCRIPT``.

Scripts find it as the module `gpu`: `gpu.wait()` waits, `gpu.step()` ends a step, `gpu.evaluate()` begins an
evaluation. No torch is needed.
"""

from __future__ import annotations

import linecache
import os
import sys
from types import ModuleType, SimpleNamespace

import gapless.commands.check as check_module
from gapless.commands import main
from gapless.errors import NotEmulated
from gapless.model import Ending, Environment, Event, Session, Site, SourceLine, StepMark

DEVICE = "NVIDIA Counting Frame"


class FakeCapture:
    """Records what scripts tell it, with their own frames as stacks."""

    gpu = SimpleNamespace(name=DEVICE)
    compiled = SimpleNamespace(targets=(), uncopied=0)

    def __init__(self, on_mark) -> None:
        self.on_mark = on_mark
        self.sites: list[Site] = []
        self.events: list[Event] = []
        self.marks: list[StepMark] = []
        self.phase = "train"
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def wait(self, times: int = 1) -> None:
        site = Site(
            operator="aten::_local_scalar_dense", mechanism="read", call="Tensor.item", stack=_stack()
        )
        if site not in self.sites:
            self.sites.append(site)
        self.events.append(Event(site=self.sites.index(site), tick=self.tick, waits=times, phase=self.phase))

    @property
    def tick(self) -> int:
        return len(self.marks)

    def step(self) -> None:
        mark = StepMark(kind="optimizer", tick=self.tick, time=0.0, name="SGD.step#0", stack=_stack())
        self.marks.append(mark)
        self.on_mark(mark)

    def evaluate(self) -> None:
        self.phase = "eval"

    def impossible(self) -> None:
        raise NotEmulated("a Triton kernel needs a GPU: run it on one")

    def session(self, *, script: tuple[str, ...], ending: Ending) -> Session:
        return Session(
            script=script,
            ending=ending,
            environment=Environment(device=DEVICE, emulated=True),
            sites=tuple(self.sites),
            events=tuple(self.events),
            marks=tuple(self.marks),
        )


def _stack() -> tuple[SourceLine, ...]:
    lines = []
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if f"{os.sep}gapless{os.sep}" in file or file == __file__:
            break
        code = linecache.getline(file, frame.f_lineno).strip()
        lines.append(SourceLine(file, frame.f_lineno, frame.f_code.co_name, code))
        frame = frame.f_back
    return tuple(lines)


def install(options: object, stopper: object, watch: object) -> FakeCapture:
    """Stands in for the making of an emulator."""
    capture = FakeCapture(stopper)
    module = ModuleType("gpu")
    for name in ("wait", "step", "evaluate", "impossible"):
        setattr(module, name, getattr(capture, name))
    module.capture = capture
    sys.modules["gpu"] = module
    return capture


if __name__ == "__main__":
    check_module._make_emulator = install
    raise SystemExit(main())

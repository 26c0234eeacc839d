"""Sessions made by hand, in few words."""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.model import Ending, Environment, Event, Mark, Session, Site, SourceLine

SITE_PACKAGES = "/venv/lib/python3.11/site-packages/"


def line(number: int, file: str = "/work/train.py", function: str = "train", code: str = "") -> SourceLine:
    """A line of the user's."""
    return SourceLine(file, number, function, code)


def library_line(number: int, path: str, function: str = "f", code: str = "") -> SourceLine:
    """A line of the library that `path` begins with."""
    return SourceLine(SITE_PACKAGES + path, number, function, code, path.split("/", 1)[0])


@dataclass
class Simulation:
    """Records a training loop as an emulator would. Each place is a line number of ``/work/train.py``.

    `code` gives the text of lines. `outer` are the frames that called the loop.
    """

    code: dict[int, str] = field(default_factory=dict)
    outer: tuple[SourceLine, ...] = ()
    sites: list[Site] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    tick: int = 0
    phase: str = "train"

    def stack(self, number: int) -> tuple[SourceLine, ...]:
        return (line(number, code=self.code.get(number, "")), *self.outer)

    def wait(self, number: int, times: int = 1, below: tuple[SourceLine, ...] = (), **site: object) -> None:
        """The host waits at line `number`, or in the library frames `below` it."""
        fields = {"operator": "aten::_local_scalar_dense", "mechanism": "read", "call": "Tensor.item", **site}
        made = Site(stack=below + self.stack(number), **fields)
        if made not in self.sites:
            self.sites.append(made)
        self.events.append(Event(site=self.sites.index(made), tick=self.tick, waits=times, phase=self.phase))

    def mark(self, kind: str, number: int, name: str = "") -> None:
        self.marks.append(Mark(kind=kind, tick=self.tick, time=0.0, name=name, stack=self.stack(number)))
        self.tick += kind in ("optimizer", "profiler", "user")

    def step(self, number: int = 100, name: str = "SGD.step#0") -> None:
        self.mark("optimizer", number, name)

    def session(self, **fields: object) -> Session:
        given = {
            "script": ("train.py",),
            "environment": Environment(device="NVIDIA A100-SXM4-80GB", emulated=True),
            "ending": Ending(),
            **fields,
        }
        return Session(sites=tuple(self.sites), events=tuple(self.events), marks=tuple(self.marks), **given)

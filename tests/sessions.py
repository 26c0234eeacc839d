"""Build sessions by hand: lines, waits, marks and whole simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.analyze import report
from gapless.model import Ending, Environment, Event, Report, Session, Site, SourceLine, StepMark

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
    marks: list[StepMark] = field(default_factory=list)
    tick: int = 0
    phase: str = "train"

    def stack(self, number: int) -> tuple[SourceLine, ...]:
        return (line(number, code=self.code.get(number, "")), *self.outer)

    def wait(self, number: int, times: int = 1, below: tuple[SourceLine, ...] = (), **site: object) -> None:
        """The host waits at line `number`, or in the library frames `below` it."""
        fields = {"operator": "aten::_local_scalar_dense", "mechanism": "read", "call": "Tensor.item", **site}
        waiting = Site(stack=below + self.stack(number), **fields)
        if waiting not in self.sites:
            self.sites.append(waiting)
        self.events.append(
            Event(site=self.sites.index(waiting), tick=self.tick, waits=times, phase=self.phase)
        )

    def mark(self, kind: str, number: int, name: str = "") -> None:
        self.marks.append(StepMark(kind=kind, tick=self.tick, time=0.0, name=name, stack=self.stack(number)))
        self.tick += kind not in ("backward", "batch")

    def step(self, number: int = 100, name: str = "SGD.step#0") -> None:
        self.mark("optimizer", number, name)

    def steps(self, waits: Sequence[Sequence[tuple[int, int, str]]], backward: int, step: int) -> Simulation:
        """Steps with the `waits` of each (line, times, train or eval); the last ones follow the end."""
        for number, each in enumerate(waits):
            for where, times, phase in each:
                self.phase = phase
                self.wait(where, times)
            if number < len(waits) - 1:
                self.mark("backward", backward)
                self.step(step)
        return self

    def session(self, **fields: object) -> Session:
        settings = {
            "script": ("train.py",),
            "environment": Environment(device="NVIDIA A100-SXM4-80GB", emulated=True),
            "ending": Ending(),
            **fields,
        }
        return Session(
            sites=tuple(self.sites), events=tuple(self.events), marks=tuple(self.marks), **settings
        )


REMEDIES = {
    "GAP101": "keep `loss` on the device, and read it once every N steps",
    "GAP110": "keep the mask `target == background` and its fixed size: `torch.where(mask, a, b)`, "
    "`masked_fill`, or a sum weighted by it",
    "GAP120": "pinned memory and `non_blocking=True`",
    "GAP141": '`nan_strategy="disable"`',
}
STOPPED = Ending(how="enough-steps")
MAIN = (line(200, function="main", code="train()"), line(210, function="<module>", code="main()"))
CODE = {
    5: "model.to('cuda')",
    50: "loss_metric.update(loss)",
    60: "inds = torch.nonzero(target == background, as_tuple=True)",
    70: "print('loss', loss.item())",
    120: "correct += (predicted == labels).sum().item()",
}
AGGREGATOR = (
    library_line(
        101, "torchmetrics/aggregation.py", "BaseAggregator._cast_and_nan_check_input", "if nans.any():"
    ),
    library_line(380, "torchmetrics/aggregation.py", "MeanMetric.update", "value = self._cast(value)"),
    library_line(
        560, "torchmetrics/metric.py", "Metric._wrap_update.wrapped_func", "update(*args, **kwargs)"
    ),
)


def example(ending: Ending = STOPPED) -> Report:
    """A report with a finding of every kind."""
    run = Simulation(code=CODE, outer=MAIN)
    run.wait(5, times=60, operator="cudaMemcpyAsync", mechanism="h2d", call="Tensor.to", detail="pageable")
    for step in range(12):
        run.wait(50, times=2, below=AGGREGATOR, call="Tensor.__bool__")
        run.wait(60, operator="aten::nonzero", mechanism="size", call="")
        if step % 5 == 0:
            run.wait(70)
        run.step(95)
        if step == 6:
            run.phase = "eval"
            run.wait(120, times=12)
            run.phase = "train"
    notes = ("torch.compile ran eagerly",)
    full_report = report(run.session(ending=ending, notes=notes), lambda file: "")
    # The rules' own words may change; what is shown of a report must not change with them.
    findings = [
        msgspec.structs.replace(finding, remedy=REMEDIES[finding.code]) for finding in full_report.findings
    ]
    return msgspec.structs.replace(full_report, findings=tuple(findings))

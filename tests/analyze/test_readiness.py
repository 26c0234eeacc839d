"""How much of a step a CUDA graph could hold, and what keeps the rest out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gapless.analyze import report
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Compiled, Report
from gapless.model.session import decode, encode
from gapless.render import Style, renderer

SCRIPT = """\
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable={capturable})
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + {lower} * step))
for step in range(12):
    x = torch.randn(16, 64).pin_memory().cuda(non_blocking=True)
    out = net(x){shape}
    {read}
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
"""


def checked(folder: Path, **changes: object) -> Report:
    code = SCRIPT.format(**{"capturable": True, "lower": 0, "shape": "", "read": "pass", **changes})
    path = folder / "train.py"
    path.write_text(code)
    with Emulator(EmulatorOptions(programme=True, graphs=True)) as emulator:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    return report(decode(encode(emulator.session(("train.py",)))))


def test_all_of_a_step(tmp_path: Path) -> None:
    document = checked(tmp_path)
    ready = document.readiness
    assert ready is not None
    (whole,) = ready.stretches
    assert whole.launches == ready.launches > 30
    assert whole.first is not None
    assert whole.last is not None
    assert (whole.first.line, whole.last.line) == (7, 12)
    (batch,) = ready.obstacles
    assert batch.input
    assert batch.line is not None
    assert batch.line.line == 6
    assert whole.saved is not None
    assert ready.step is not None
    assert 0 < whole.saved.least <= whole.saved.likely <= whole.saved.most < ready.step.most
    assert whole.saved == ready.whole
    assert document.verdict.sentence.startswith(
        f"A CUDA graph could hold 100 % of a step as it is ({ready.launches} of {ready.launches} launches, "
        "train.py:7–12): a replay saves "
    )
    for name in ("text", "markdown", "html"):
        assert "Could be captured" in renderer(name)(document, Style())
    assert msgspec.json.decode(renderer("json")(document, Style()))["readiness"]["launches"] == ready.launches


@pytest.mark.parametrize(
    ("changes", "line", "reason", "change"),
    [
        ({"read": "out.sum().item()"}, 8, "the CPU waits: Tensor.item", "delete the read"),
        (
            {"capturable": False},
            12,
            "Adam.step() without capturable=True",
            "create Adam with `capturable=True`",
        ),
        ({"lower": 1}, 12, "the learning rate of Adam changes", "create Adam with `lr=torch.tensor("),
        ({"read": "torch.cuda.manual_seed(1)"}, 8, "torch.cuda.manual_seed", "set, save and restore random"),
        ({"shape": "[: 4 + step % 3]"}, 9, "operators or shapes change from step to step", "give the graph"),
    ],
    ids=["read", "optimizer", "rate", "seed", "shapes"],
)
def test_what_stops_it(
    tmp_path: Path, changes: dict[str, object], line: int, reason: str, change: str
) -> None:
    document = checked(tmp_path, **changes)
    ready = document.readiness
    assert ready is not None
    (stop,) = [obstacle for obstacle in ready.obstacles if not obstacle.input]
    assert stop.line is not None
    assert (stop.line.line, stop.steps) == (line, ready.steps)
    assert stop.reason.startswith(reason)
    assert stop.change.startswith(change)
    assert ready.stretches[0].launches < ready.launches
    if "Adam" in reason:  # no part of its step is capturable, and all else is one stretch
        assert len(ready.stretches) == 1
    assert any(change.what == stop.change for change in document.verdict.do_first)
    assert document.verdict.why[0] == f"Main obstacle: {stop.reason} at train.py:{line}"


def test_a_step_that_is_a_graph_already(tmp_path: Path) -> None:
    code = """\
import torch
weight = torch.ones(64, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (weight @ weight).sum().backward()
    optimizer.step()
for step in range(12):
    graph.replay()
"""
    path = tmp_path / "train.py"
    path.write_text(code)
    with Emulator(EmulatorOptions(programme=True, graphs=True)) as emulator:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    document = report(emulator.session(("train.py",)))
    assert document.readiness is not None
    assert document.readiness.eager == 0
    assert document.verdict.sentence.startswith("CUDA graphs already launch the whole step")
    assert document.estimate is not None
    assert not document.estimate.refused


def test_a_step_of_which_a_part_is_a_graph_already(tmp_path: Path) -> None:
    code = """\
import torch
weight, x = torch.ones(64, 64, device="cuda", requires_grad=True), torch.zeros(64, 64, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.1)
graph, total = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda")
for step in range(3):
    (x @ weight).mean().backward()
    optimizer.step()
with torch.cuda.graph(graph):
    loss = (x @ weight).sum()
    loss.backward()
    optimizer.step()
for step in range(8):
    graph.replay()
    total += loss.detach()
"""
    path = tmp_path / "train.py"
    path.write_text(code)
    with Emulator(EmulatorOptions(programme=True, graphs=True)) as emulator:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    document = report(emulator.session(("train.py",)))
    ready = document.readiness
    assert ready is not None
    assert (ready.eager, ready.held > 0, ready.obstacles) == (1, True, ())  # eager warm-up is none
    assert document.verdict.sentence.startswith("CUDA graphs already launch ")
    assert "of a step; another one could hold " in document.verdict.sentence


def test_nothing_unrequested_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(capturable=True, lower=0, shape="", read="pass"))
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    document = report(emulator.session(("train.py",)))
    assert document.readiness is None
    assert "graph" not in document.verdict.sentence


def test_a_short_batch_now_and_then_does_not_cut(tmp_path: Path) -> None:
    document = checked(tmp_path, shape="[: 8 if step % 4 == 3 else 16]")
    ready = document.readiness
    assert ready is not None
    assert ready.stretches[0].launches == ready.launches
    (short,) = [obstacle for obstacle in ready.obstacles if not obstacle.input]
    assert short.line is not None
    assert (short.line.line, short.steps) == (9, 3)
    assert "drop_last=True" in short.change
    assert not any(reason.startswith("Main obstacle") for reason in document.verdict.why)


@pytest.mark.parametrize(("options", "is_noted"), [(('mode="reduce-overhead"',), True), ((), False)])
def test_code_the_compiler_already_captures_is_reported(
    tmp_path: Path, options: tuple[str, ...], is_noted: bool
) -> None:
    code = SCRIPT.format(capturable=True, lower=0, shape="", read="pass")
    with Emulator(EmulatorOptions(programme=True, graphs=True)) as emulator:
        exec(compile(code, str(tmp_path / "train.py"), "exec"), {"__name__": "__main__"})
    session = emulator.session(("train.py",))
    document = report(msgspec.structs.replace(session, compiled=(Compiled(name="Net", options=options),)))
    assert any("already turns Net into CUDA graphs" in reason for reason in document.verdict.why) is is_noted

"""CUDA graphs: the rules' own examples, and what reports say of them."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest

import gapless
from gapless.analyze import report
from gapless.analyze.findings.graph_faults import findings
from gapless.model import GraphFault, GraphRule, Session
from gapless.model.session import decode, encode
from gapless.render import Style, renderer
from gapless.rules import rules_of_kind

RULES = rules_of_kind(GraphRule)
RIGHT = Path(__file__).parent / "right_graphs"


def ran(code: str, folder: Path) -> tuple[GraphFault, ...]:
    """The faults of a script; an exception of CUDA's ends it."""
    path = folder / "example.py"
    path.write_text("import torch\n" + code)
    with gapless.emulate() as emulated, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(RuntimeError):
            exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    assert emulated.races == ()
    return emulated.session.graphs


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_example_is_found_and_its_replacement_is_not(rule: GraphRule, tmp_path: Path) -> None:
    sections = rule.sections()
    (wrong,), (right,) = (
        re.findall(r"```python\n(.*?)```", sections[title], flags=re.DOTALL)
        for title in ("Example", "Use instead")
    )
    assert {finding.code for finding in findings(ran(wrong, tmp_path))} == {rule.code}
    assert ran(right, tmp_path) == ()


@pytest.mark.parametrize("path", sorted(RIGHT.glob("*.py")), ids=lambda path: path.stem)
def test_graphs_as_they_are_rightly_used_have_no_finding(path: Path, tmp_path: Path) -> None:
    assert ran(path.read_text(), tmp_path) == ()


STALE_ROWS = """
net = torch.nn.Linear(8, 1).cuda()
x, scale = torch.zeros(4, 8, device="cuda"), torch.ones((), device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    rows = net(x)
    loss = (rows * scale).mean()
for count in (4, 4, 2):
    x[:count].copy_(torch.ones(count, 8, device="cuda"))
    scale.fill_(2)
    g.replay()
"""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("loss = (rows * scale).mean()", "loss = rows * scale"),
        ("torch.ones((), device", "torch.ones(4, 1, device"),
        ("for count in (4, 4, 2)", "for count in (4, 4, 4)"),
    ],
    ids=["rows stay apart", "a mask says which count", "all are filled"],
)
def test_stale_rows_matter_where_they_come_together_with_others(
    wrong: str, right: str, tmp_path: Path
) -> None:
    assert [fault.kind for fault in ran(STALE_ROWS, tmp_path)] == ["part"]
    assert ran(STALE_ROWS.replace(wrong, right), tmp_path) == ()


def test_columns_are_as_stale_as_rows(tmp_path: Path) -> None:
    """As where batches are padded to a bucket: the end of each sequence."""
    columns = STALE_ROWS.replace(
        "x[:count].copy_(torch.ones(count, 8", "x[:, : 2 * count].copy_(torch.ones(4, 2 * count"
    )
    (fault,) = ran(columns, tmp_path)
    assert fault.kind == "part"
    assert fault.told[0].startswith("64 of its 128 bytes were written")
    assert (
        ran(columns.replace("    scale.fill_", "    x[:, 2 * count :].zero_()\n    scale.fill_"), tmp_path)
        == ()
    )


WRONG = """
x = torch.ones(4, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
"""


def test_what_is_refused_comes_first_with_what_to_write(tmp_path: Path) -> None:
    (fault,) = ran(WRONG, tmp_path)
    assert (fault.what, fault.said) == (
        "Tensor.__bool__",
        "operation not permitted when stream is capturing",
    )
    session = decode(encode(Session(script=("example.py",), graphs=(fault,))))
    results = report(session)
    assert session.graphs == (fault,)
    (finding,) = results.findings
    assert finding.line is not None
    assert (finding.code, finding.line.line) == ("GAP520", 7)
    assert finding.remedy.startswith("GAP102: ")
    assert results.verdict.sentence == "CUDA refuses to capture a graph (example.py:7)"
    assert results.verdict.level == "failed"
    for name in ("text", "markdown", "html", "json", "sarif", "csv", "junit"):
        assert "GAP520" in renderer(name)(results, Style())


def test_more_numbers_that_captures_take_along(tmp_path: Path) -> None:
    """Counters of loops, numbers in the CPU's memory, settings of modules, and Python's random numbers."""
    code = """
import random
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.scale = 0, 2.0
    def forward(self, x, step):
        self.calls += 1
        return x * self.scale * (step + 10) + random.random()
net, g = Net(), torch.cuda.CUDAGraph()
x, factor = torch.ones(4, device="cuda"), torch.tensor(3.0)
for step in range(6):
    if step == 2:
        with torch.cuda.graph(g):
            y = net(x, step) * factor
    elif step > 2:
        net.scale = float(step)
        factor.fill_(step)
        g.replay()
"""
    faults = ran(code.replace("(step + 10)", "step"), tmp_path)
    assert sorted((fault.kind, fault.what) for fault in faults) == [
        ("frozen", "Net.scale"),
        ("frozen", "a tensor in CPU memory"),
        ("frozen", "random"),
        ("frozen", "step"),
        ("not-replayed", "net.calls"),
    ]


RIGHT = """
class Runner:
    def __init__(self):
        self.x = torch.zeros(4, 8, device="cuda")
        self.losses = []
        self.weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.graphs = {}
    def forward(self, rows):
        return (self.x[:rows] * self.weight).sum()
    def capture(self, rows):
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            out = self.forward(rows)
            out.backward()
        self.graphs[rows] = graph, out, self.weight.grad
    def run(self, x):
        rows = len(x)
        graph, out, grad = self.graphs[rows]
        self.x[:rows].copy_(x)
        graph.replay()
        self.weight.grad = grad
        self.optimizer.step()
        self.losses.append(out.detach().clone())
runner = Runner()
for rows in (2, 4):
    runner.capture(rows)
for step in range(8):
    x = torch.full((4 if step % 2 else 2, 8), float(step), device="cuda")
    runner.run(x)
total = torch.stack(runner.losses).sum()
x = torch.zeros(4, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = x + 1
for x in torch.ones(3, 4, device="cuda"):
    pass
"""


def test_graphs_by_shape_with_eager_steps_are_silent(tmp_path: Path) -> None:
    assert ran(RIGHT, tmp_path) == ()

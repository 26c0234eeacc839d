"""Graphs that no backward pass uses, and checkpoints that stay on the GPU beside what is made of them."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gapless.analyze.memory_report import replay_memory  # noqa: E402
from gapless.emulation.emulator import Emulator  # noqa: E402
from gapless.emulation.memory.requests import reports_storage_ends  # noqa: E402
from gapless.emulation.options import EmulatorOptions  # noqa: E402
from gapless.model.memory_report import MemoryReport  # noqa: E402

pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason="torch 2.10 and later tell when a storage ends"
)

HEAD = """import io
import torch
from torch import nn
def model():
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda()
net = model()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
def data():
    return torch.randn(512, 512, device="cuda")
def train(out):
    optimizer.zero_grad()
    out.pow(2).mean().backward()
    optimizer.step()
"""
LAYER = 512 * 512 * 4

UNUSED = {
    "evaluation that keeps its results": """
        for _ in range(3):
            train(net(data()))
            net.eval()
            kept = []
            for _ in range(4):
                kept.append(net(data()))  # unused
            torch.cat(kept).mean()
            net.train()
        """,
    "evaluation that drops them": """
        for _ in range(3):
            train(net(data()))
            net.eval()
            net(data()).argmax(1)  # unused
            net.train()
        """,
    "evaluation in a function": """
        def evaluate(net):
            net.eval()
            for _ in range(2):
                out = net(data())  # unused
                out.mean()
            net.train()
        for _ in range(3):
            train(net(data()))
            evaluate(net)
        """,
    "rollout in training mode": """
        for _ in range(4):
            for _ in range(3):
                net(data()).argmax(1)  # unused
            train(net(data()))
        """,
    "evaluation in training mode": """
        for _ in range(4):
            train(net(data()))
            net(data()).argmax(1)  # unused
        """,
}
USED = {
    "training": "for _ in range(4):\n    train(net(data()))\n",
    "evaluation under no_grad": """
        for _ in range(3):
            train(net(data()))
            net.eval()
            with torch.no_grad():
                net(data())
            net.train()
        """,
    "inference mode": """
        for _ in range(3):
            train(net(data()))
            net.eval()
            with torch.inference_mode():
                net(data())
            net.train()
        """,
    "frozen layers in evaluation mode": """
        net.eval()
        for _ in range(3):
            train(net(data()))
        """,
    "accumulation": """
        for _ in range(3):
            for _ in range(3):
                net(data()).mean().backward()
            optimizer.step()
        """,
    "two models in one loss": """
        other = model()
        for _ in range(3):
            first, second = net(data()), other(data())
            train(first + second)
        """,
    "backward that comes late": """
        for _ in range(3):
            rewards = [net(data()).mean() for _ in range(3)]
            train(torch.stack(rewards))
        """,
    "a generator's graph that two passes share": """
        critic = model()
        other = torch.optim.SGD(critic.parameters(), 1e-3)
        for _ in range(4):
            fake = net(data())
            critic(fake.detach()).mean().backward()
            other.step()
            train(critic(fake))
        """,
    "checkpointed": """
        from torch.utils.checkpoint import checkpoint
        class Checkpointed(nn.Module):
            def __init__(self, inner, reentrant):
                super().__init__()
                self.inner, self.reentrant = inner, reentrant
            def forward(self, x):
                return checkpoint(self.inner, x, use_reentrant=self.reentrant)
        for reentrant in (False, True):
            wrapped = Checkpointed(net, reentrant)
            for _ in range(3):
                train(wrapped(data().requires_grad_()))
        """,
    "gradients of the inputs in evaluation": """
        for _ in range(3):
            train(net(data()))
            net.eval()
            x = data().requires_grad_()
            torch.autograd.grad(net(x).sum(), x)
            net.train()
        """,
    "a step that is left out": """
        for n in range(4):
            out = net(data())
            if n != 1:
                train(out)
        """,
}


def replay_script(body: str, folder: Path, dry: bool = True) -> tuple[MemoryReport, list[int]]:
    """Return the replay's report on the script `body`, and the numbers of the lines marked ``# unused``."""
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body).lstrip("\n"))
    linecache.checkcache(str(path))
    with Emulator(EmulatorOptions("t4", memory=True, dry=dry)) as emulator:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "played"})
        (run,) = emulator.session().memory
    lines = path.read_text().splitlines()
    return replay_memory(run), [number for number, line in enumerate(lines, 1) if "# unused" in line]


@pytest.mark.parametrize("case", UNUSED)
def test_a_graph_that_no_backward_pass_uses_is_named(case: str, tmp_path: Path) -> None:
    report, lines = replay_script(UNUSED[case], tmp_path)
    findings = [finding for finding in report.findings if finding.code == "GAP409"]
    assert [finding.line.line for finding in findings if finding.line] == lines
    assert "torch.no_grad()" in findings[0].change
    assert ("evaluation" in findings[0].change) == ("training mode" not in case)


@pytest.mark.parametrize("case", USED)
def test_a_graph_that_is_used_is_not_named(case: str, tmp_path: Path) -> None:
    report, _ = replay_script(USED[case], tmp_path)
    assert not report.unused_graphs
    assert "GAP409" not in {finding.code for finding in report.findings}


def test_what_it_costs_is_what_no_grad_saves(tmp_path: Path) -> None:
    """Under no_grad the activations of each layer end with the next one: the replay says the same."""
    case = UNUSED["evaluation that keeps its results"]
    report, _ = replay_script(case, tmp_path)
    (graph,) = report.unused_graphs
    mended, _ = replay_script(case.replace("net.eval()", "net.eval(); torch.set_grad_enabled(False)").replace(
        "net.train()", "net.train(); torch.set_grad_enabled(True)"), tmp_path)  # fmt: skip
    assert graph.bytes >= 4 * 6 * LAYER
    assert report.baseline.peak_reserved > mended.baseline.peak_reserved
    assert abs(graph.needs - mended.baseline.peak_reserved) <= 4 << 20
    (change,) = [each for each in report.answer.do_first if "GAP409" in each.codes]
    assert (change.before, change.after) == (report.baseline.peak_reserved, graph.needs)


LOADED = """
    saved = io.BytesIO()
    train(net(data()))
    torch.save({{"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}}, saved)
    saved.seek(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    def main():
        checkpoint = torch.load(saved, map_location="{where}")  # unused
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        {more}
        for _ in range(6):
            train(net(data()))
    main()
    """


def test_a_checkpoint_that_stays_on_the_gpu_is_named_with_its_bytes(tmp_path: Path) -> None:
    report, lines = replay_script(LOADED.format(where="cuda", more="pass"), tmp_path)
    (finding,) = [each for each in report.findings if each.code == "GAP410"]
    weights = 6 * (LAYER + 512 * 4)
    assert finding.line is not None
    assert [finding.line.line] == lines
    assert finding.bytes == weights  # the optimizer goes on with the states that were loaded
    assert "`checkpoint` keeps" in finding.evidence[0]
    assert finding.change == '`map_location="cpu"`, then `del checkpoint`'
    (loaded,) = report.checkpoints
    mended, _ = replay_script(LOADED.format(where="cpu", more="pass"), tmp_path)
    assert abs(loaded.needs - mended.baseline.peak_reserved) <= 4 << 20


@pytest.mark.parametrize(("where", "more"), [("cpu", "pass"), ("cuda", "del checkpoint")])
def test_what_is_loaded_to_the_cpu_or_dropped_is_not(where: str, more: str, tmp_path: Path) -> None:
    report, _ = replay_script(LOADED.format(where=where, more=more), tmp_path)
    assert not report.checkpoints
    assert "GAP410" not in {finding.code for finding in report.findings}


def test_parts_of_a_checkpoint_have_their_bytes(tmp_path: Path) -> None:
    body = """
        saved = io.BytesIO()
        train(net(data()))
        torch.save({"model": net.state_dict(), "ema": model().state_dict()}, saved)
        saved.seek(0)
        def main():
            checkpoint = torch.load(saved, map_location="cuda")
            net.load_state_dict(checkpoint["model"])
            for _ in range(6):
                train(net(data()))
        main()
        """
    report, _ = replay_script(body, tmp_path)
    (loaded,) = report.checkpoints
    weights = 6 * (LAYER + 512 * 4)
    assert dict(loaded.entries) == {'checkpoint["model"]': weights, 'checkpoint["ema"]': weights}

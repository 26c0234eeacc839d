"""Which module asks for memory on the emulated device, and which one it belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.support.module_paths import ModulePaths, display_names
from gapless.memory.kept import find_kept
from gapless.memory.report import report
from gapless.model.memory import ALLOC, FREE, MemoryRun, check
from gapless.torch_internals import VERSION

pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason=f"torch 2.{VERSION[1]} does not tell when storages end"
)

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x).exp()


def train_net(wrap=lambda net: net, **options) -> MemoryRun:
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        net = wrap(Net(**options).cuda())
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.ones(8, WIDTH).cuda()).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        (run,) = emulator.session().memory
    assert check(run) == ""
    return run


def modules(run: MemoryRun, kind: str) -> set[str]:
    return {run.places[at].module for act, at in zip(run.action, run.place, strict=True)
            if act == ALLOC and run.places[at].kind == kind}  # fmt: skip


LINEAR = {f"blocks[{n}].mlp.{m}" for n in range(3) for m in (0, 2)}


@pytest.mark.parametrize("wrap", [lambda net: net, nn.DataParallel, torch.compile])
def test_every_kind_knows_its_module(wrap):
    run = train_net(wrap)
    assert modules(run, "parameter") == modules(run, "gradient") == {*LINEAR, "head"}
    assert modules(run, "optimizer") - {""} == {*LINEAR, "head"}
    paths = modules(run, "activation")
    assert {"blocks[1]", "blocks[1].mlp.0", "blocks[1].mlp.1", "head", "Net"} <= paths
    assert not any("_orig_mod" in path or path.startswith("module") for path in paths)


def test_modules_of_other_models_are_distinguished():
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        first, two, other = Block().cuda(), Block().cuda(), Net().cuda()
        kept_alive = [first(torch.ones(1, WIDTH).cuda()), two(torch.ones(1, WIDTH).cuda()), other]
        (run,) = emulator.session().memory
        del kept_alive
    assert {"Block.mlp.0", "Block#2.mlp.0", "Net.head"} <= modules(run, "parameter")


class Hiding(nn.Module):
    """Has a part that it does not know as a child."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.parts = [nn.ReLU()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[0](self.head(x))


def test_a_part_that_is_no_child_has_its_class():
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        net = Hiding().cuda()
        out = net(torch.ones(1, WIDTH).cuda())
        (run,) = emulator.session().memory
        del out
    assert "ReLU" in {place.module for place in run.places}


def test_what_is_recomputed_is_asked_for_by_its_module():
    run = train_net(recomputes=True)
    assert {"blocks[0].mlp.0", "blocks[2].mlp.1"} <= modules(run, "backward") | modules(run, "activation")


def test_what_is_called_outside_of_the_model_has_no_module():
    paths = ModulePaths()
    assert paths.at(None) == ""
    assert paths.of(torch.ones(1)) == ""
    assert display_names(["A:", "A:x.y", ""]) == {"A:": "A", "A:x.y": "x.y", "": ""}
    assert display_names(["A:x", "B:y"]) == {"A:x": "A.x", "B:y": "B.y"}
    assert display_names(["A:0.x", "A:[1]"]) == {"A:0.x": "A.0.x", "A:[1]": "A[1]"}


def test_parts_of_the_model_hold_all_that_has_a_module():
    memory = report(train_net())
    named = sum(part.bytes for part in memory.peak.modules)
    assert named == sum(part.bytes for part in memory.peak.owners if part.module)
    assert memory.peak.modules[0].module == "blocks[*]"
    assert memory.peak.modules[0].modules == 3


def test_uses_are_recorded():
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        tensor = torch.ones(8, device="cuda")
        two = torch.ones(8, device="cuda")
        three = tensor + two
        four = three * 2
        tensor.add_(1)
        del tensor, two, three, four
        (run,) = emulator.session().memory
    rows = [row for row, act in enumerate(run.action) if act == ALLOC]
    ends = [row for row, act in enumerate(run.action) if act == FREE]
    # `three` is needed until `four` is there; `two` until `three` is; `tensor` up to its end.
    assert [run.used[row] for row in rows][:3] == [ends[0], rows[3], ends[0]]


def test_a_result_that_only_a_name_holds_is_found_with_its_name():
    rows = 1 << 15
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        net = nn.Sequential(nn.Linear(8, 64)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            logits = net(torch.ones(rows, 8).cuda())
            loss = torch.log_softmax(logits, 1).exp().sum()  # whose backward needs no logits
            loss.backward()
            optimizer.step()
        (run,) = emulator.session().memory
    source = Path(__file__).read_text(encoding="utf-8")
    results = {result.name: result for result in find_kept(run, lambda file: source)}
    assert results["logits"].bytes == rows * 64 * 4
    assert results["logits"].sure


def test_weights_that_nothing_trains_are_weights() -> None:
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        with torch.device("cuda"):
            net, adapter = Net(), nn.Linear(WIDTH, WIDTH)
        net.requires_grad_(False)
        optimizer = torch.optim.Adam(adapter.parameters())
        for _ in range(3):
            net(adapter(torch.ones(8, WIDTH).cuda())).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        (run,) = emulator.session().memory
    (weights,) = (part for part in report(run).peak.parts if part.kind == "parameter")
    held = [*net.parameters(), *adapter.parameters()]
    assert weights.bytes == sum(4 * part.numel() for part in held)

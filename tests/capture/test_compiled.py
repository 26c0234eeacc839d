"""The compile pass makes as many graphs of each function as torch.compile does in the script alone."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch

from gapless.capture.compiled.watching import CompilerWatch
from gapless.emulation.compiled.reach import reach_of
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Compiled
from gapless.model.session import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be copied here")

SCRIPT = """
import json
from collections import Counter, deque
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
graphs = Counter()
x = torch.randn(4, 8, device=device)


@torch.compiler.disable
def kept_out(x):
    return x.detach().sum().item()


@torch.compiler.disable(recursive=False)
def passes_on(x):
    return inner(x) + 1


def inner(x):
    return x.sin() * 2


def compiled(function):
    def backend(graph, inputs):
        graphs[function.__qualname__] += 1
        return graph.forward

    return torch.compile(function, backend=backend)


@compiled
def disabled(x):
    return kept_out(x * 2) + x


@compiled
def disabled_alone(x):
    return passes_on(x.cos()).relu()


@compiled
def in_a_stance(x):
    return x + 1


@compiled
def not_again(x, by):
    return x * by


scale, settings, rates = 1.0, {"kind": "mean"}, []


def callee(x):
    return x * scale if scale < 2 else x


@compiled
def by_a_callee(x):
    return callee(x) + 1


@compiled
def by_a_table(x):
    return x.mean() if settings["kind"] == "mean" else x.sum()


@compiled
def by_a_list(x):
    for rate in rates:
        x = x * rate
    return x.exp()


class Schedule:
    def __init__(self):
        self.warm, self.done = True, 0

    def scaled(self, x):
        return x / 2 if self.warm else x

    def step(self, x):
        return self.scaled(x) + 1


schedule = Schedule()
step = compiled(schedule.step)
gru = torch.nn.GRUCell(8, 8).to(device)


@compiled
def cell(x):
    return gru(x)


frozen_linear = torch.nn.Linear(8, 8).to(device)


@compiled
def frozen(x):
    return frozen_linear(x + plain)


@compiled
def given_containers(x, sizes, latest, options):
    x = x * sum(sizes) * sum(latest)
    return x.sin() if options["schedule"].warm else x.cos()


class Fitting:
    def __init__(self):
        self.schedule, self.epoch, self.itself = Schedule(), 0, self
        self.linear = torch.nn.Linear(8, 8).to(device)
        self.linear.rate = 0.1
        self.data = [(at, at) for at in range(100_000)]

    @compiled
    def fit(self, x):
        x = self.linear(x) * self.linear.rate
        return x if self.epoch < 2 and self.schedule.warm else x.relu()


fitting, given, sizes, latest = Fitting(), Schedule(), [], deque(maxlen=2)
plain = torch.ones(8, device=device, requires_grad=True)
for at in range(3):
    disabled(x)
    disabled_alone(x)
    with torch.compiler.set_stance("force_eager" if at == 1 else "default"):
        in_a_stance(x if at != 1 else x.double())
    with torch.compiler.set_stance("eager_on_recompile" if at else "default"):
        not_again(x, at)
    scale = 1.0 + at
    by_a_callee(x)
    settings["kind"] = "sum" if at else "mean"
    by_a_table(x)
    by_a_list(x)
    rates.append(0.5)
    schedule.warm = at < 1
    step(x)
    schedule.done += 1
    cell(x)
    frozen(x).sum().backward()
    frozen_linear.requires_grad_(at > 0)
    sizes.append(at)
    latest.append(at)
    given.warm = at < 2
    given_containers(x, sizes, latest, {"schedule": given})
    fitting.fit(x)
    fitting.epoch = at
    fitting.schedule.warm = at > 0
    fitting.linear.rate = 0.1 if at < 1 else 0.2
if device == "cpu":
    print(json.dumps(graphs))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "script.py").write_text(SCRIPT)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, int]:
    """How many graphs of each function torch makes where the script runs by itself, on the CPU."""
    done = fork_server.run((str(folder / "script.py"),), folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def compiled_by_name(folder: Path) -> dict[str, Compiled]:
    saved = folder / "run.gapless.json"
    words = ("check", "--steps", "all", "--no-loader", "--no-prices", "-q", "-o", str(saved))
    done = fork_server.run(("-m", "gapless", *words, str(folder / "script.py")), folder)
    assert done.returncode == 0, done.stderr
    return {compiled.name: compiled for compiled in load(str(saved)).compiled}


def test_as_many_graphs_as_torch_makes(alone: dict[str, int], compiled_by_name: dict[str, Compiled]) -> None:
    assert {name: function.graphs for name, function in compiled_by_name.items()} == alone


def test_nothing_fails_and_what_is_kept_out_breaks_once(compiled_by_name: dict[str, Compiled]) -> None:
    assert not [value.failed for value in compiled_by_name.values() if value.failed]
    assert compiled_by_name["disabled"].broken == compiled_by_name["disabled_alone"].broken == 1
    assert compiled_by_name["in_a_stance"].signatures == 1


def test_what_is_read_is_found_by_way_of_functions_methods_and_objects() -> None:
    source = (
        "limit, other = 3, 4\n"
        "class Owner:\n"
        "    def __init__(self): self.rate = 0.1\n"
        "    def main(self, x): return self.beside(x)\n"
        "    def beside(self, x): return helper(x) * self.rate\n"
        "def helper(x): return [one for one in x if one < limit]\n"
    )
    space: dict[str, Any] = {}
    exec(compile(source, "train.py", "exec"), space)
    names = {name for _, name in reach_of(space["Owner"]().main).names}
    assert {"limit", "rate", "helper"} <= names
    assert "other" not in names


@pytest.mark.parametrize("repeats", [False, True], ids=["bound", "an argument"])
def test_what_changes_at_every_call_does_not_have_every_call_kept(repeats: bool) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.number, self.losses, self.warm = 0, [0.0], True
            compiled: Any = torch.compile(Trainer.call_once if repeats else self.call_once)
            self.step = partial(compiled, self) if repeats else compiled

        def call_once(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.warm

    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        trainer, x = Trainer(), torch.ones(2, device="cuda")
        for trainer.number in range(200):
            trainer.losses.append(0.5)
            trainer.warm = trainer.number < 150
            trainer.step(x)
        kept = [call.number for call in emulator.compiled.kept]
    assert len(kept) < 60
    assert 1 in kept
    assert 151 in kept  # a flag that changed late


def test_a_stand_in_is_no_break() -> None:
    """The package that it stands in for has an operator there."""
    said = (
        "Attempted to call function marked as skipped\n  Explanation: Dynamo developers have intentionally "
        "marked that the function `{}` should not be traced.\n  Hint: Avoid it.\n\n  Developer debug "
        "context: module: {}, qualname: {}, skip reason: <missing reason>\n"
    )
    watch = CompilerWatch()
    module = "gapless.emulation.standins.packages.flash_attn.interface"
    watch._record_break(RuntimeError(), said.format("flash_attn_func", module, "flash_attn_func"))
    assert "stand-in for flash_attn_func" in watch.heard.unable
    watch.record_error(RuntimeError())
    assert not watch.heard.breaks
    other = CompilerWatch()
    other._record_break(RuntimeError(), said.format("flash_attn_func", "mine.interface", "flash_attn_func"))
    assert len(other.heard.breaks) == 1
    assert not other.heard.unable

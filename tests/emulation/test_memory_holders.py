"""The name that keeps what step after step leaves behind, and the line that adds to it."""

from __future__ import annotations

import gc
import linecache
import sys
import textwrap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from gapless.analyze.memory_report import replay_memory  # noqa: E402
from gapless.emulation.emulator import Emulator  # noqa: E402
from gapless.emulation.memory.requests import reports_storage_ends  # noqa: E402
from gapless.emulation.options import EmulatorOptions  # noqa: E402
from gapless.emulation.support.stacks import library_of  # noqa: E402
from gapless.model.memory import MemoryRun  # noqa: E402

pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason="torch 2.10 and later tell when a storage ends"
)

HEAD = """import functools
from collections import defaultdict, deque
import numpy as np
import torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
def data():
    return torch.randn(32, 64, device="cuda")
def train(out):
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

HELD = {
    "list": (
        "bank",
        """
        bank = []
        for _ in range(12):
            out = net(data())
            train(out)
            bank.append(out)  # adds
        """,
    ),
    "in a function": (
        "bank",
        """
        def main():
            bank = []
            for _ in range(12):
                out = net(data())
                train(out)
                bank.append(out.detach())  # adds
        main()
        """,
    ),
    "set": (
        "seen",
        """
        seen = set()
        for _ in range(12):
            out = net(data())
            train(out)
            seen.add(out)  # adds
        """,
    ),
    "dict": (
        "store",
        """
        store = {}
        for n in range(12):
            out = net(data())
            train(out)
            store[n] = out  # adds
        """,
    ),
    "entry of a dict": (
        'history["out"]',
        """
        history = defaultdict(list)
        for _ in range(12):
            out = net(data())
            train(out)
            history["out"].append(out.detach())  # adds
        """,
    ),
    "array of objects": (
        "array",
        """
        array = np.empty(20, dtype=object)
        for n in range(12):
            out = net(data())
            train(out)
            array[n] = out.detach()  # adds
        """,
    ),
    "attribute": (
        "self.bank",
        """
        class Trainer:
            def __init__(self):
                self.bank = []
            def run(self):
                for _ in range(12):
                    out = net(data())
                    train(out)
                    self.bank += [out]  # adds
        Trainer().run()
        """,
    ),
    "slot": (
        "meter.log",
        """
        class Meter:
            __slots__ = ("log",)
            def __init__(self):
                self.log = []
            def update(self, value):
                self.log.append(value)  # adds
        meter = Meter()
        for _ in range(12):
            out = net(data())
            train(out)
            meter.update(out)
        """,
    ),
    "class attribute": (
        "Trainer.cache",
        """
        class Trainer:
            cache = []
        for _ in range(12):
            out = net(data())
            train(out)
            Trainer.cache.append(out)  # adds
        """,
    ),
    "closure": (
        "kept",
        """
        def collector():
            kept = []
            def push(value):
                kept.append(value)  # adds
            return push
        push = collector()
        for _ in range(12):
            out = net(data())
            train(out)
            push(out)
        """,
    ),
    "generator": (
        "kept",
        """
        def collector():
            kept = []
            while True:
                kept.append((yield))  # adds
        collect = collector()
        next(collect)
        for _ in range(12):
            out = net(data())
            train(out)
            collect.send(out)
        """,
    ),
    "cache of a function": (
        "features",
        """
        @functools.lru_cache(maxsize=None)  # adds
        def features(n):
            with torch.no_grad():
                return net(data())
        for n in range(12):
            features(n)
            train(net(data()))
        """,
    ),
    "tracebacks": (
        "errors",
        """
        def fail(value):
            more = value * 2
            raise ValueError
        errors = []
        for _ in range(12):
            out = net(data())
            train(out)
            try:
                fail(out.detach())
            except ValueError as error:
                errors.append(error)  # adds
        """,
    ),
    "hook": (
        "acts",
        """
        acts = []
        def keep(module, given, out):
            acts.append(out)  # adds
        net[0].register_forward_hook(keep)
        for _ in range(12):
            train(net(data()))
        """,
    ),
    "handed over": (
        "store",
        """
        def log(into, value):
            into += [value]
        def main():
            store = []
            for _ in range(12):
                out = net(data())
                train(out)
                log(store, out)  # adds
        main()
        """,
    ),
    "list of every third step": (
        "history",
        """
        history = []
        for n in range(13):
            out = net(data())
            train(out)
            if n % 3 == 0:
                history.append(out)  # adds
        """,
    ),
    "results of each epoch": (
        "outputs",
        """
        outputs = {}
        for epoch in range(4):
            for _ in range(4):
                train(net(data()))
            with torch.no_grad():
                outputs[epoch] = net(data())  # adds
        """,
    ),
    "models of folds": (
        "results",
        """
        results = []
        for fold in range(4):
            model = nn.Linear(64, 64).cuda()
            for _ in range(4):
                train(net(data()))
            results.append((fold, model))  # adds
        """,
    ),
    "buffer with a sample of it": (
        "buffer.entries",
        """
        class Buffer:
            def __init__(self):
                self.entries = []
            def push(self, entry):
                self.entries.append(entry)  # adds
        buffer = Buffer()
        for _ in range(13):
            out = net(data())
            train(out)
            buffer.push((out.detach(), 0))
            sample = buffer.entries[-10:]
        """,
    ),
    "a library's meter": (
        "watch.recorded",
        """
        import types
        watch = types.SimpleNamespace(recorded=[])
        for _ in range(12):
            out = net(data())
            train(out)
            watch.recorded.append(out)  # adds
        """,
    ),
}
IN_GRAPHS = {
    "running sum": (
        "meter",
        """
        meter = 0.0
        for _ in range(12):
            train(net(data()))
            meter += net(data()).pow(2).mean()  # adds
        """,
    ),
    "moving average": (
        "mean",
        """
        mean = 0.0
        for _ in range(12):
            train(net(data()))
            mean = 0.9 * mean + 0.1 * net(data()).mean()  # adds
        """,
    ),
    "hidden state": (
        "h",
        """
        cell = nn.GRUCell(64, 64).cuda()
        h = torch.zeros(32, 64, device="cuda")
        for _ in range(12):
            h = cell(data(), h)  # adds
            train(net(data()))
        """,
    ),
    "attribute of a meter": (
        "meter.sum",
        """
        class Meter:
            def __init__(self):
                self.sum = 0
            def update(self, value):
                self.sum += value  # adds
        meter = Meter()
        for _ in range(12):
            train(net(data()))
            meter.update(net(data()).mean())
        """,
    ),
    "losses that no backward pass goes through": (
        "losses",
        """
        losses = []
        for _ in range(12):
            train(net(data()))
            losses.append(net(data()).mean())  # adds
        """,
    ),
}
NOT_HELD = {
    "plain training": "for _ in range(12):\n    train(net(data()))\n",
    "optimizer state": """
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(12):
            train(net(data()))
        """,
    "full buffer": """
        buffer = deque(maxlen=3)
        for _ in range(12):
            out = net(data())
            train(out)
            buffer.append(out.detach())
        """,
    "list that is cut": """
        buffer = []
        for _ in range(12):
            out = net(data())
            train(out)
            buffer.append(out.detach())
            del buffer[:-3]
        """,
    "growing cache of one call": """
        def generate():
            cache = []
            with torch.no_grad():
                for _ in range(8):
                    cache.append(net(data()))
        for _ in range(12):
            generate()
            train(net(data()))
        """,
    "best model so far": """
        import copy
        best = None
        for epoch in range(4):
            for _ in range(3):
                train(net(data()))
            before, best = best, copy.deepcopy(net.state_dict())
        """,
    "models of folds that end": """
        for fold in range(4):
            model = nn.Linear(64, 64).cuda()
            for _ in range(3):
                train(net(data()))
        """,
    "warm-up": """
        warm = []
        for n in range(12):
            out = net(data())
            train(out)
            if n < 2:
                warm.append(out)
        """,
    "gradients that accumulate": """
        for _ in range(12):
            for _ in range(3):
                net(data()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
}


@contextmanager
def modules_of_script(folder: Path) -> Iterator[None]:
    """Leave only those of the program's modules loaded that are in `folder`, as if there were no test run.

    Its modules are no part of the script, and hold more objects than it does.
    """
    ours = {
        name: module
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None))
        and not (library_of(file) or file.startswith(str(folder)))
    }
    for name in ours:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(ours)


def run_script(body: str, folder: Path, dry: bool = True, **names: object) -> tuple[MemoryRun, int]:
    """Run the script `body`; return its memory run and the number of the line marked ``# adds``."""
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body).lstrip("\n"))
    linecache.checkcache(str(path))
    space = {"__name__": "played", **names}
    code = compile(path.read_text(), str(path), "exec")
    with modules_of_script(folder), Emulator(EmulatorOptions("t4", memory=True, dry=dry)) as emulator:
        exec(code, space)
        (run,) = emulator.session().memory
    lines = path.read_text().splitlines()
    return run, next((n for n, line in enumerate(lines, 1) if "# adds" in line), 0)


@pytest.mark.parametrize("case", [*HELD, *IN_GRAPHS])
def test_what_keeps_growing_memory_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    name, body = {**HELD, **IN_GRAPHS}[case]
    run, line = run_script(body, tmp_path)
    (held,) = run.holders
    assert held.name == name
    assert held.line is not None
    assert held.line.line == line
    assert (2 * held.in_graphs > held.bytes) == (case in IN_GRAPHS)
    report = replay_memory(run)
    (finding,) = [finding for finding in report.findings if finding.code == "GAP405"]
    assert finding.line == held.line
    assert f"`{name}`" in " ".join(finding.evidence)
    if case in IN_GRAPHS:
        assert "detach()" in finding.change


@pytest.mark.parametrize("case", NOT_HELD)
def test_what_does_not_grow_is_not_named(case: str, tmp_path: Path) -> None:
    run, _ = run_script(NOT_HELD[case], tmp_path)
    assert not run.holders
    assert "GAP405" not in {finding.code for finding in replay_memory(run).findings}


def test_it_is_the_same_with_values(tmp_path: Path) -> None:
    run, line = run_script(IN_GRAPHS["running sum"][1], tmp_path, dry=False)
    assert [(holder.name, holder.line.line if holder.line else 0) for holder in run.holders] == [
        ("meter", line)
    ]


def test_a_container_with_a_bound_grows_only_until_it_is_full(tmp_path: Path) -> None:
    body = """
        buffer = deque(maxlen={})
        for _ in range(12):
            out = net(data())
            train(out)
            buffer.append(out.detach())  # adds
        """
    run, _ = run_script(body.format(1000), tmp_path)
    (held,) = run.holders
    assert (held.most, held.entries) == (1000, 11)
    assert held.in_the_end == 989 * 32 * 64 * 4
    assert "GAP405" not in {each.code for each in replay_memory(run).findings}  # 8 MiB when it is full
    run, _ = run_script(body.format(10_000_000), tmp_path)
    (finding,) = [each for each in replay_memory(run).findings if each.code == "GAP405"]
    assert any("at most 10,000,000 entries" in each for each in finding.evidence)


def test_a_cache_with_a_bound_grows_only_until_it_is_full(tmp_path: Path) -> None:
    body = """
        @functools.lru_cache(maxsize={})
        def mask(n):  # adds
            return torch.ones(32, 64, device="cuda").tril(n)
        for n in range(12):
            train(net(data() * mask(n)))
        """
    run, _ = run_script(body.format(100), tmp_path)
    (held,) = run.holders
    assert (held.name, held.most, held.entries) == ("mask", 100, 12)
    assert not {"GAP402", "GAP405"} & {each.code for each in replay_memory(run).findings}
    run, _ = run_script(body.format(None), tmp_path)
    (finding,) = [each for each in replay_memory(run).findings if each.code == "GAP405"]
    assert "lru_cache(maxsize=…)" in finding.change


def test_variables_above_the_script_are_not_its_own(tmp_path: Path) -> None:
    kept: list[object] = []
    body = """
        for _ in range(12):
            out = net(data())
            train(out)
            keep(out)
        """
    run, _ = run_script(body, tmp_path, keep=kept.append)
    assert len(kept) == 12
    assert not run.holders


def test_names_that_differ_in_a_number_are_grouped(tmp_path: Path) -> None:
    body = """
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.cache = nn.Linear(64, 64), []
            def forward(self, x):
                out = self.linear(x)
                self.cache.append(out.detach())  # adds
                return out
        model = nn.Sequential(*[Layer() for _ in range(40)]).cuda()
        for _ in range(12):
            train(net(model(data())))
        """
    run, line = run_script(body, tmp_path)
    (held,) = run.holders
    assert (held.name, held.alike, held.line.line if held.line else 0) == ("model.0.cache", 39, line)
    (finding,) = [each for each in replay_memory(run).findings if each.code == "GAP405"]
    assert "the list `model.0.cache` and 39 more like it keep 320 KiB more in each step" in finding.evidence


HAND_BOUNDED = {
    "a list that is cut": """
        class Buffer:
            def __init__(self, size):
                self.size, self.entries = size, []
            def push(self, value):
                self.entries.append(value)  # adds
                if len(self.entries) > self.size:
                    self.entries.pop(0)
        """,
    "a ring": """
        class Buffer:
            def __init__(self, size):
                self.size, self.entries, self.at = size, [], 0
            def push(self, value):
                if len(self.entries) < self.size:
                    self.entries.append(value)  # adds
                else:
                    self.entries[self.at] = value
                self.at = (self.at + 1) % self.size
        """,
}


@pytest.mark.parametrize("size", [20, 10_000_000])
@pytest.mark.parametrize("case", HAND_BOUNDED)
def test_a_buffer_that_the_program_bounds_grows_only_until_it_is_full(
    case: str, size: int, tmp_path: Path
) -> None:
    body = (
        HAND_BOUNDED[case]
        + f"""
        buffer = Buffer({size})
        for _ in range(12):
            out = net(data())
            train(out)
            buffer.push(out.detach())
        """
    )
    run, _ = run_script(body, tmp_path)
    (held,) = run.holders
    assert (held.name, held.entries, held.most) == ("buffer.entries", 11, size + 1)
    assert ("GAP405" in {finding.code for finding in replay_memory(run).findings}) == (size > 20)


def test_a_length_that_begins_the_training_is_no_bound(tmp_path: Path) -> None:
    body = """
        entries = []
        for _ in range(12):
            out = net(data())
            train(out)
            entries.append(out.detach())  # adds
            if len(entries) < 32:
                continue
            if len(entries) > 3:
                print("enough")
        """
    run, _ = run_script(body, tmp_path)
    (held,) = run.holders
    assert held.most == -1
    assert "GAP405" in {finding.code for finding in replay_memory(run).findings}


def test_another_file_may_call_something_else_by_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its additions nor its limits are taken for those of the list that grows."""
    other = tmp_path / "other.py"
    other.write_text(
        "def keep(bank, x):\n"
        "    for _ in range(3):\n"
        "        bank.append(x)\n"
        "        if len(bank) > 4:\n"
        "            bank.pop(0)\n"
    )
    module = ModuleType("a_file_before_the_script")
    module.__file__ = str(other)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    body = """
        def add(entries, x):
            entries[:] = [*entries, x]
        bank = []
        for _ in range(12):
            out = net(data())
            train(out)
            add(bank, out.detach())  # adds
        """
    run, line = run_script(body, tmp_path)
    (held,) = run.holders
    assert (held.name, held.line.line if held.line else 0, held.most) == ("bank", line, -1)


def test_the_search_keeps_nothing_alive(tmp_path: Path) -> None:
    """Variables of a function that runs go when the function lets them go, as without the search."""
    body = """
        def main():
            bank = []
            for _ in range(12):
                out = net(data())
                train(out)
                bank.append(out)
            watch.append(weakref.ref(out))
            watch.append(weakref.ref(bank[5]))
            del out, bank
            dead.extend(one() is None for one in watch)
        watch, dead = [], []
        import weakref
        main()
        assert dead == [True, True], dead
        """
    gc.disable()
    try:
        run, _ = run_script(body, tmp_path)
    finally:
        gc.enable()
    assert run.holders


def test_what_locals_gave_stays_as_it_was(tmp_path: Path) -> None:
    body = """
        def main():
            bank, number = [], 7
            mine = locals()
            for _ in range(12):
                out = net(data())
                train(out)
                bank.append(out)
            assert mine["number"] == 7
        main()
        """
    run, _ = run_script(body, tmp_path)
    assert [holder.name.rpartition("[")[0] or holder.name for holder in run.holders] in (["bank"], ["mine"])


def test_nothing_of_the_program_runs_for_it(tmp_path: Path) -> None:
    body = """
        class Loud:
            def __getattr__(self, name):
                raise AssertionError(name)
            @property
            def size(self):
                raise AssertionError
            def __len__(self):
                raise AssertionError
            def __eq__(self, other):
                raise AssertionError
            __hash__ = None
        class Entries(list):
            def __iter__(self):
                raise AssertionError
            def __len__(self):
                raise AssertionError
        loud, bank = Loud(), Entries()
        unpacked = []
        def pack(tensor):
            return [tensor]
        def unpack(packed):
            unpacked.append(1)
            return packed[0]
        kept = []
        for _ in range(12):
            train(net(data()))
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                kept.append(net(data()).mean())  # adds
            before = len(unpacked)
        assert not unpacked
        """
    run, line = run_script(body, tmp_path)
    assert [(holder.name, holder.line.line if holder.line else 0) for holder in run.holders] == [
        ("kept", line)
    ]


def test_the_sheet_of_an_unknown_source_names_no_line(tmp_path: Path) -> None:
    space = {"__name__": "played"}
    with modules_of_script(tmp_path), Emulator(EmulatorOptions("t4", memory=True, dry=True)) as emulator:
        exec(compile(HEAD + textwrap.dedent(HELD["list"][1]), str(tmp_path / "gone.py"), "exec"), space)
        (run,) = emulator.session().memory
    (held,) = run.holders
    assert (held.name, held.lines) == ("bank", ())
    (finding,) = [each for each in replay_memory(run).findings if each.code == "GAP405"]
    assert "`bank`" in finding.change


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a frame keeps no dictionary of its variables")
def test_a_frame_keeps_no_copy_of_its_variables() -> None:
    from gapless.emulation.support.stacks import variables

    class Thing:
        pass

    thing = Thing()
    watch = weakref.ref(thing)
    assert "thing" in dict(variables(sys._getframe()))
    del thing
    assert watch() is None

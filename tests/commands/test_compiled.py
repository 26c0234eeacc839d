"""What becomes of a run whose compile pass fails, and of what child processes compile."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import gapless.capture.compiled.again as again
from gapless.analyze.findings.compiled_code import notes
from gapless.commands import _compiled
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.loading import forked
from gapless.model import Session
from gapless.model.session import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be copied here")


SPAWNS = """
import torch
import torch.multiprocessing as mp

def work(rank):
    @torch.compile
    def read(x):
        return x * x.sum().item()

    for _ in range(3):
        read(torch.ones(4, device="cuda"))

if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""


def fails(*_: Any) -> NoReturn:
    raise ValueError("a graph of no kind")


def dies(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hangs(*_: Any) -> NoReturn:
    time.sleep(600)
    raise AssertionError


def leaves(*_: Any) -> NoReturn:
    os._exit(3)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (fails, "the compiler failed: a graph of no kind"),
        (dies, "the compiler failed: a crash in native code, or out of memory"),
        (leaves, "the compiler failed: a crash in native code, or out of memory"),
        (hangs, "compiling took longer than 0 s (--no-compile-pass skips this)"),
    ],
)
def test_a_compiler_that_fails_costs_a_note(
    end: Callable[..., NoReturn], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "compile_again", end)
    monkeypatch.setattr(_compiled, "MAX_COMPILE_SECONDS", 0.3)
    monkeypatch.setattr(forked, "_GRACE_SECONDS", 0.0 if end is hangs else 60.0)
    session = Session(notes=("before",))
    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        torch.compile(lambda x: x + 1)(torch.zeros(2, device="cuda"))
        compiled = _compiled.add_compile_results(session, emulator, lambda text: None)
    assert compiled.compiled == ()
    assert compiled.notes == ("before", f"graph breaks and recompilations were not checked: {said}")


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu()


@pytest.mark.parametrize("dry", [True, False])
def test_callables_that_share_a_graph_have_one_each(dry: bool) -> None:
    with Emulator(EmulatorOptions(dry=dry, compiled=True)) as emulator:
        first = torch.compile(Net())
        second = torch.compile(Net())
        for net in (first, second, second):
            net(torch.ones(4, device="cuda"))
        compiled = _compiled.add_compile_results(Session(), emulator, lambda text: None)
    assert [(callable_.calls, callable_.graphs, callable_.shapes) for callable_ in compiled.compiled] == [
        (1, 1, 1),
        (2, 1, 1),
    ]
    assert not list(notes(compiled.compiled))


def test_what_a_child_process_compiles_is_compiled_again(
    write: Callable[..., Path], python: Callable[..., Any], tmp_path: Path
) -> None:
    write("spawns.py", SPAWNS)
    saved = tmp_path / "run.gapless.json"
    process = python(
        "-m", "gapless", "check", "--no-loader", "--no-prices", "-q", "-o", str(saved), "spawns.py"
    )
    assert process.returncode == 0, process.stderr
    (compiled,) = load(str(saved)).compiled
    assert (compiled.name, compiled.calls, compiled.broken) == ("work.read", 3, 1)

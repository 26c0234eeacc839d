"""Child processes: emulated, recorded, gathered; and left alone where there is nothing to record."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sessions import Simulation, line

from gapless.capture import children
from gapless.capture.children import ChildPlan, environment_for_children, merge
from gapless.capture.options import CaptureOptions
from gapless.emulation.options import EmulatorOptions
from gapless.model import Ending, Environment, Session
from gapless.model.session import load, save

START = "gapless.commands._child:start"
Python = Callable[..., Any]
Write = Callable[[str, str], Path]


# -- the environment -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, "/somewhere"])
def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    before = dict(os.environ)
    plan = ChildPlan(START, capture=CaptureOptions(EmulatorOptions("H100", assume={"a.py:3": 0.5}), steps=3))
    with environment_for_children(plan) as folder:
        folders = os.environ["PYTHONPATH"].split(os.pathsep)
        assert os.path.isfile(os.path.join(folders[0], "sitecustomize.py"))
        assert folders[1:] == ([] if path is None else [path])
        assert children.plan_for_this_process() == msgspec.structs.replace(plan, directory=str(folder))
        assert folder.is_dir()
    assert dict(os.environ) == before
    assert not folder.exists()


def test_an_unreadable_plan_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert children.plan_for_this_process() is None
    monkeypatch.setenv(children.VARIABLE, "not a plan")
    assert children.plan_for_this_process() is None
    children.begin()  # and does nothing


# -- real children ---------------------------------------------------------------------------------


@pytest.fixture
def child(python: Python, tmp_path: Path) -> Callable[..., tuple[Any, list[Session]]]:
    """``child(*words)`` runs Python below a run of Gapless and gives what it printed and left."""

    def run(*words: str, steps: int | None = 3, path: str = "") -> tuple[Any, list[Session]]:
        with environment_for_children(
            ChildPlan(START, capture=CaptureOptions(steps=steps, loader=False))
        ) as folder:
            environment = {
                children.VARIABLE: os.environ[children.VARIABLE],
                "PYTHONPATH": os.pathsep.join(filter(None, (os.environ["PYTHONPATH"], path, *sys.path))),
            }
            done = python(*words, **environment)
            return done, children.collect(folder)

    return run


def test_a_child_without_torch_costs_nothing_and_keeps_its_own_sitecustomize(
    child: Callable[..., Any], write: Write, tmp_path: Path
) -> None:
    write("own/sitecustomize.py", "import builtins\nbuiltins.mine = True\n")
    script = write(
        "script.py",
        "import sys, sitecustomize, builtins\n"
        "print(builtins.mine, sitecustomize.__file__)\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('gapless', 'torch', 'msgspec')])\n"
        "print([p for p in sys.path if p.endswith('startup')])\n",
    )
    done, sessions = child(str(script), path=str(tmp_path / "own"))
    assert done.stdout.splitlines() == [f"True {tmp_path / 'own' / 'sitecustomize.py'}", "[]", "[]"]
    assert done.stderr == ""
    assert sessions == []


def test_a_child_that_never_uses_the_device_leaves_nothing(child: Callable[..., Any], write: Write) -> None:
    script = write(
        "script.py", "import torch\nprint(torch.cuda.is_available(), torch.ones(3).sum().item())\n"
    )
    done, sessions = child(str(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 3.0\n", "")
    assert sessions == []


TRAINING = """\
import atexit, sys
import torch
atexit.register(lambda: print("goodbye"))
parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
optimizer = torch.optim.SGD([parameter], 0.1)
for step in range(100):
    loss = parameter.sum()
    loss.backward()
    optimizer.step()
    loss.item()
    if step == int(sys.argv[1]):
        raise ValueError("so it goes")
print("the end")
"""


def test_a_child_stops_when_the_steps_are_enough(child: Callable[..., Any], write: Write) -> None:
    done, sessions = child(str(write("train.py", TRAINING)), "-1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "goodbye\n", "")
    (session,) = sessions
    assert session.ending == Ending(how="enough-steps")
    assert sum(mark.kind == "optimizer" for mark in session.marks) == 5  # two to warm up, three steady ones
    reads = [site for site in session.sites if site.call == "Tensor.item"]
    assert [site.line.line for site in reads if site.line is not None] == [10]


def test_a_child_that_fails_keeps_its_traceback_and_status(child: Callable[..., Any], write: Write) -> None:
    script = write("train.py", TRAINING)
    done, sessions = child(str(script), "1", steps=None)
    assert done.returncode == 1
    assert done.stdout == "goodbye\n"
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.splitlines()[-1] == "ValueError: so it goes"
    assert "gapless" not in done.stderr
    (session,) = sessions
    assert session.ending == Ending(how="error", status=1, message="ValueError: so it goes")
    assert session.script == (str(script), "1")


def test_processes_that_are_spawned_and_their_workers(python: Python, write: Write, tmp_path: Path) -> None:
    script = write("train.py", SPAWNING)
    done = python(
        *("-m", "gapless", "check", "--no-loader", "--devices", "2", "--steps", "3", "-q", "-f", "json"),
        *("-o", "run.gapless.json", str(script)),
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed.count("all done") == printed.count("worker has True") == 1
    session = load(tmp_path / "run.gapless.json")
    assert session.ending.how == "enough-steps"
    assert sum(mark.kind == "optimizer" for mark in session.marks) == 5
    assert "loss.item()" in {site.line.code for site in session.sites if site.line is not None}
    tolist = SPAWNING.splitlines().index("            loss.tolist()") + 1
    called, elsewhere = session.notes[-2:]
    assert called == "2 processes were recorded; this is rank 0"
    assert elsewhere.startswith(f"rank 1 syncs elsewhere too: {script.name}:{tolist} (")
    assert "," not in elsewhere.removeprefix("rank 1 syncs elsewhere too")


SPAWNING = """\
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        if number == 0 and os.environ["RANK"] == "0":
            print("worker has", torch.utils.data.get_worker_info() is not None, flush=True)
        return torch.ones(4)


def work(rank, folder):
    os.environ["RANK"] = str(rank)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"} if rank == 0 else {}
    for batch in DataLoader(Numbers(), batch_size=4, pin_memory=True, **workers):
        loss = net(batch.to(rank, non_blocking=True)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if rank == 1:
            loss.tolist()


if __name__ == "__main__":
    mp.spawn(work, args=(os.getcwd(),), nprocs=2)
    print("all done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_that_are_forked(python: Python, write: Write, tmp_path: Path) -> None:
    script = write("train.py", FORKING)
    done = python(
        *("-m", "gapless", "check", "--steps", "3", "-q", "-o", "run.gapless.json", str(script)),
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert done.returncode == 0, done.stderr
    assert "exit status [0]" in done.stdout
    session = load(tmp_path / "run.gapless.json")
    assert session.ending.how == "enough-steps"
    assert sum(mark.kind == "optimizer" for mark in session.marks) == 5
    assert {site.line.code for site in session.sites if site.line is not None} == {"loss.item()"}
    assert session.notes == ()


FORKING = """\
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def work():
    weight = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for batch in DataLoader(torch.ones(64, 4), batch_size=4, num_workers=1, pin_memory=True):
        loss = (weight * batch.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    process = mp.get_context("fork").Process(target=work)
    process.start()
    process.join()
    print("exit status", [process.exitcode])
"""


# -- merging ---------------------------------------------------------------------------------------


def rank_view(
    rank: int, *, steps: int = 3, waits: tuple[int, ...] = (10,), ending: Ending | None = None
) -> Session:
    simulation = Simulation()
    for _ in range(steps):
        for number in waits:
            simulation.wait(number)
        simulation.mark("optimizer", 20, "SGD.step#0")
    return Session(
        script=(f"rank{rank}.py",),
        environment=Environment(rank=rank, world_size=2),
        ending=ending or Ending(),
        sites=tuple(simulation.sites),
        events=tuple(simulation.events),
        marks=tuple(simulation.marks),
    )


LAUNCHER = Session(script=("-m", "torch.distributed.run", "train.py"), duration=9.0)


def test_alone_nothing_is_merged() -> None:
    assert merge(LAUNCHER, []) is LAUNCHER


def test_a_launcher_lets_the_lowest_rank_speak() -> None:
    enough = Ending(how="enough-steps")
    merged = merge(LAUNCHER, [rank_view(0, ending=enough), rank_view(1, ending=enough)])
    assert merged.environment.rank == 0
    assert merged.ending == enough
    assert merged.script == ("rank0.py",)
    assert merged.duration == 9.0
    assert merged.events == rank_view(0).events
    assert merged.notes == ("2 processes were recorded; this is rank 0",)


def test_a_main_process_that_trains_speaks_itself() -> None:
    merged = merge(rank_view(0), [rank_view(1)])
    assert merged.script == ("rank0.py",)
    assert merged.notes == ("2 processes were recorded; this is rank 0",)


def test_a_failed_launcher_has_failed() -> None:
    failed = Ending(how="error", status=1, message="ChildFailedError")
    merged = merge(msgspec.structs.replace(LAUNCHER, ending=failed), [rank_view(0), rank_view(1)])
    assert merged.ending == failed


def test_what_failed_in_a_child_is_named() -> None:
    launcher = msgspec.structs.replace(
        LAUNCHER, ending=Ending(how="error", status=3, message="a child failed")
    )
    raised = Ending(how="error", status=1, message="ValueError: so it goes")
    merged = merge(launcher, [rank_view(0), rank_view(1, ending=raised)])
    assert merged.ending.message == "ValueError: so it goes, on rank 1"


def test_one_child_is_reported_as_if_it_were_alone() -> None:
    assert merge(LAUNCHER, [rank_view(0)]).notes == ()


def test_where_another_rank_waits_is_noted() -> None:
    merged = merge(LAUNCHER, [rank_view(0, waits=(10,)), rank_view(1, waits=(10, 11, 12, 13, 14, 15))])
    place = line(11).where
    note = f"rank 1 syncs elsewhere too: {place} (aten::_local_scalar_dense), "
    assert merged.notes[1].startswith(note)
    assert merged.notes[1].endswith(" and 2 other places")


def test_without_steps_the_child_with_most_to_say_speaks() -> None:
    quiet, busy = rank_view(0, steps=0), msgspec.structs.replace(rank_view(1), marks=())
    assert merge(LAUNCHER, [quiet, busy]).events == busy.events


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "00000-1.gapless.json").write_text("half a sess")
    save(rank_view(1), tmp_path / "00001-2.gapless.json")
    save(rank_view(0), tmp_path / "00002-3.gapless.json")
    assert [session.environment.rank for session in children.collect(tmp_path)] == [0, 1]


def test_children_that_still_run_are_waited_for_a_while_only(tmp_path: Path) -> None:
    (tmp_path / f"{os.getpid()}.running").touch()
    (tmp_path / "not-a-process.running").touch()
    assert children.collect(tmp_path, seconds=0) == []
    children.remove_marker(str(tmp_path))
    assert children.collect(tmp_path, seconds=1000) == []  # nobody is left to wait for


def test_an_error_because_another_rank_was_stopped(tmp_path: Path) -> None:
    lost = RuntimeError("gloo: Connection closed by peer [127.0.0.1]:19677")
    assert not children.lost_connection(lost, str(tmp_path))
    children.record_stop(str(tmp_path))
    assert children.lost_connection(lost, str(tmp_path))
    assert not children.lost_connection(RuntimeError("shapes do not match"), str(tmp_path))


def test_a_run_of_its_own_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = type("_AfterTorch", (), {"__module__": "sitecustomize"})()
    other = type("_AfterTorch", (), {"__module__": "elsewhere"})()
    monkeypatch.setattr(sys, "meta_path", [finder, other, *sys.meta_path])
    children.stand_down()
    assert finder not in sys.meta_path
    assert other in sys.meta_path


FAILING_RANK = """
import sys, threading, torch
import torch.multiprocessing as mp

def work(rank, stepped):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        model.bias.sum().item()
    if rank == 0:
        stepped.set()
        threading.Event().wait()  # until the launcher ends this rank, because the other one has failed
    stepped.wait()
    raise ValueError("rank 1 fails")

if __name__ == "__main__":
    mp.spawn(work, (mp.get_context("spawn").Event(),), nprocs=2)
"""


def test_a_rank_that_is_ended_because_another_failed_is_reported(write: Write, python: Python) -> None:
    write("train.py", FAILING_RANK)
    process = python("-m", "gapless", "check", "--no-loader", "--steps", "all", "train.py")
    assert process.returncode == 1
    assert "ValueError: rank 1 fails" in process.stderr
    assert "SystemExit" not in process.stderr
    assert "train.py:11" in process.stdout
    assert "1 sync in every step" in process.stdout
    assert "2 processes were recorded" in " ".join(process.stdout.split())

"""However a measurement ends, and whoever ends it, no process stays behind."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import weakref
from pathlib import Path

import pytest
from conftest import finish, start
from loading import datasets as d
from torch.utils.data import DataLoader

from gapless.loading.forked import run_in_copy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc")
SCRIPT = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

ALIVE = os.open("alive", os.O_WRONLY)  # held by every process that has come here, and by its copies

class Photos(Dataset):
    told = False

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if get_worker_info() is not None and not self.told:
            self.told = os.write(ALIVE, b"w")
        time.sleep(0.001)
        return torch.full((8,), float(index))

def make_loader():
    return DataLoader(Photos(), batch_size=4, num_workers=2)

def make_spawned():
    return DataLoader(Photos(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
"""


class Run:
    """``gapless loader`` on a loader whose processes hold a pipe."""

    def __init__(self, folder: Path, *words: str) -> None:
        os.mkfifo(folder / "alive")
        self.reader = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        (folder / "photos.py").write_text(SCRIPT)
        self.process = start("-m", "gapless", "loader", *words, cwd=folder)

    def worker(self) -> None:
        """Wait until a worker is at work."""
        assert select.select([self.reader], [], [], 60)[0], "no worker within a minute"
        assert os.read(self.reader, 1) == b"w"

    def gone(self) -> None:
        """Wait until no process holds the pipe any more."""
        while select.select([self.reader], [], [], 30)[0]:
            if not os.read(self.reader, 64):
                os.close(self.reader)
                return
        pytest.fail("processes are left behind 30 s after the end")


@pytest.mark.parametrize(
    ("number", "status", "maker"),
    [
        (signal.SIGINT, 130, "make_loader"),
        (signal.SIGTERM, -signal.SIGTERM, "make_spawned"),
        (signal.SIGKILL, -signal.SIGKILL, "make_loader"),
    ],
    ids=["interrupted", "terminated", "killed"],
)
def test_a_signal_ends_all(tmp_path, number, status, maker):
    run = Run(tmp_path, f"photos.py:{maker}", "--budget", "6s", "--step-ms", "5")
    run.worker()
    run.process.send_signal(number)
    finished = finish(run.process)
    assert finished.returncode == status
    if number == signal.SIGINT:  # the others end one after the other, and some say so
        assert "Traceback" not in finished.stderr
    run.gone()


def test_a_report_that_nobody_reads(tmp_path):
    run = Run(tmp_path, "photos.py:make_loader", "--budget", "1s", "--step-ms", "5", "-q")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.stdout = None
    finished = finish(run.process)
    assert (finished.returncode, finished.stderr) == (0, "")
    run.gone()


def test_a_loop_that_is_under_way_goes_on():
    """Its iterator may be part of a cycle: in the copy it would end them all."""
    iterator = iter(DataLoader(d.Table(12), batch_size=2, num_workers=2, timeout=30))
    first = next(iterator)
    cycle = [iterator]
    cycle.append(cycle)
    reference = weakref.ref(iterator)
    gc.disable()
    try:
        del iterator, cycle
        run_in_copy(lambda tell: gc.collect(), int, 20, lambda part: None)
        left = reference()
        assert left is not None
        assert [*first.flatten().tolist(), *(at for batch in left for at in batch.flatten().tolist())] == [
            *range(12)
        ]
    finally:
        gc.enable()

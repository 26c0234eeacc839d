"""What a process waits for, on processes made of files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from gapless.loading.blocked import WaitSampler
from gapless.model.loading import Fetch


class Process:
    """A folder as /proc has it, of a process with the number 7."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocked = WaitSampler(str(folder), "x86_64")
        (folder / "7" / "fd").mkdir(parents=True)

    def thread(self, number: int, state: str, call: str) -> None:
        at = self.folder / "7" / "task" / str(number)
        at.mkdir(parents=True, exist_ok=True)
        (at / "stat").write_text(f"{number} (a (strange) name) {state} 1 2 3")
        (at / "syscall").write_text(call)

    def file(self, number: int, target: str) -> None:
        os.symlink(target, self.folder / "7" / "fd" / str(number))

    def waits(self) -> dict[str, int]:
        self.blocked(7)
        return self.blocked.waits()


@pytest.fixture
def process(tmp_path) -> Process:
    report = Process(tmp_path)
    report.file(3, "/data/train.bin")
    report.file(4, "socket:[77]")
    report.file(5, "pipe:[78]")
    report.file(6, "anon_inode:[eventfd]")
    return report


ARGUMENTS = " 0x3 0x0 0x0 0x0 0x0 0x7ffd 0x7fff"


@pytest.mark.parametrize(
    ("state", "call", "waits"),
    [
        ("R", "running", {}),
        ("S", "running", {}),
        ("D", "0 0x3 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"io": 1}),  # read
        ("S", "17 0x3 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"io": 1}),  # pread64
        ("S", "45 0x4 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"io": 1}),  # recvfrom
        ("S", "0 0x5 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"process": 1}),
        ("S", "0 0x6 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"": 1}),
        ("S", "0 0x9 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"": 1}),  # a file that is closed by now
        ("S", "230 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", {"sleep": 1}),
        ("S", "202 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", {"lock": 1}),
        ("S", "61 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f", {"process": 1}),
        ("S", "23 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"sleep": 1}),  # select of nothing
        ("S", "23 0x5 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"": 1}),
        ("S", "7 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"sleep": 1}),  # poll of nothing
        ("S", "999 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", {"": 1}),
        ("D", "-1 0x7f 0x7f", {"io": 1}),  # a page that has to be read
        ("S", "-1 0x7f 0x7f", {"": 1}),
        ("S", "", {"": 1}),
        ("S", "nonsense", {"": 1}),
    ],
)
def test_one_thread(process, state, call, waits):
    process.thread(7, state, call)
    assert process.waits() == waits


def test_what_is_polled_is_read_from_its_memory(process):
    process.thread(7, "S", "7 0x8 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f")
    (process.folder / "7" / "mem").write_bytes(bytes(8) + struct.pack("i", 4))
    assert process.waits() == {"io": 1}


def test_who_waits_for_a_thread_waits_for_what_it_waits_for(process):
    process.thread(7, "S", "202 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f")
    process.thread(8, "S", "202 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f")
    assert process.waits() == {"lock": 1}
    process.thread(9, "S", "0 0x3 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f")
    assert process.waits() == {"lock": 1, "io": 1}
    process.thread(9, "R", "running")
    assert process.waits() == {"lock": 1, "io": 1}


def test_a_process_that_is_gone_or_not_shown_says_nothing(tmp_path):
    blocked = WaitSampler(str(tmp_path))
    blocked(7)
    assert blocked.counts == {}


def test_another_processor_has_other_numbers(process):
    process.blocked = WaitSampler(str(process.folder), "riscv64")
    process.thread(7, "S", "230 0x1 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f")
    assert process.waits() == {"": 1}


@pytest.mark.parametrize(
    ("waits", "word"),
    [
        ({}, "waiting"),
        ({"io": 4}, "waiting"),  # too few looks
        ({"io": 5}, "waiting for I/O"),
        ({"io": 80, "": 20}, "waiting for I/O"),
        ({"io": 50, "lock": 50}, "waiting"),
        ({"": 100}, "waiting"),
        ({"sleep": 90, "io": 3}, "sleeping"),
        ({"lock": 90}, "waiting for a lock"),
        ({"process": 90}, "waiting for another process"),
    ],
)
def test_only_what_was_seen_is_named(waits, word):
    assert Fetch(waits=waits).waiting == word

"""The lines that a batch's time is charged to: samples of the stack, shared out by notes of the time."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gapless.loading import forked
from gapless.loading.forked import run_in_copy
from gapless.loading.hot_lines import TimeNote, find_hot_lines, note_time, time_by_place

HEADER = "Stack (most recent call first):\n"


def nothing(part: float) -> None:
    """Takes word of progress."""


def stack(*frames: tuple[str, int, str]) -> bytes:
    rows = [f'  File "{file}", line {line} in {function}\n' for file, line, function in frames]
    return (HEADER + "".join(rows)).encode()


def lines_of(loader: DataLoader, seconds: float = 0.5) -> list[dict]:
    return run_in_copy(lambda tell: find_hot_lines(loader, seconds, tell), list, 20, nothing, note_time)


class Rows(Dataset):
    """All its time goes into a subscript, with calls before and after it."""

    def __init__(self) -> None:
        self.data = np.zeros((200_000, 7), np.float32)
        self.order = np.random.default_rng(1).permutation(200_000)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        before = np.arange(index, index + 10)
        order = self.order
        rows = self.data[order]  # the gather
        after = np.arange(10)
        return torch.from_numpy(rows[after] + before[:, None])


class Stream(IterableDataset):
    def __iter__(self):
        rows = Rows()
        for index in range(1000):
            data, order = rows.data, rows.order
            taken = data[order]  # the gather
            yield torch.from_numpy(np.ascontiguousarray(taken[:3])) + index


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Rows(), batch_size=2),
        lambda: DataLoader(Rows(), batch_size=None, num_workers=2),
        lambda: DataLoader(Stream(), batch_size=2, num_workers=1),
    ],
)
def test_time_without_a_call_is_charged_to_its_own_line(make):
    lines = lines_of(make())
    assert lines[0]["line"]["code"].endswith("# the gather")
    assert lines[0]["share"] > 0.7


def test_a_collating_function_and_a_wait_are_lines_too():
    def collate(items):
        time.sleep(0.004)
        return torch.stack(items)

    lines = lines_of(DataLoader(torch.zeros(4000, 2), batch_size=2, collate_fn=collate), 0.2)
    assert (lines[0]["line"]["code"], lines[0]["line"]["function"]) == ("time.sleep(0.004)", "collate")


def test_sampling_leaves_signals_as_they_were():
    def work(tell):
        import signal

        before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGURG)
        find_hot_lines(DataLoader(torch.zeros(40, 2)), 0.02, tell)
        after = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGURG)
        return [before == after, signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)]

    assert run_in_copy(work, list, 10, nothing) == [True, True]


def test_a_process_that_samples_nothing_ignores_a_request_for_the_time():
    note_time(os.getpid())
    assert threading.main_thread().is_alive()


def test_samples_between_two_notes_share_the_time():
    first, other = stack(("/x/a.py", 1, "load")), stack(("/x/a.py", 2, "load"))
    size = len(first)
    # A read that cannot be interrupted leaves a single sample, however long it takes.
    notes = [TimeNote(0, 0), TimeNote(size, 30), TimeNote(size, 40), TimeNote(3 * size, 44)]
    assert time_by_place(first + other + other, notes) == {
        ("/x/a.py", 1, "load"): 30,
        ("/x/a.py", 2, "load"): 14,
    }


def test_the_innermost_line_of_the_users_counts_and_telling_of_progress_does_not():
    library = (torch.__file__, 7, "stack")
    inner, outer = ("/x/a.py", 1, "load"), ("/x/a.py", 9, "outer")
    own = stack(library, inner, outer)
    torch_only = stack(library, (find_hot_lines.__globals__["__file__"], 80, "_make_batches"), outer)
    telling = stack((forked.__file__, 200, "__call__"), ("/x/a.py", 9, "outer"))
    written = own + torch_only + telling
    spent = time_by_place(written, [TimeNote(0, 0), TimeNote(len(written), 3)])
    assert spent == {inner: 1, ("", 0, ""): 1, None: 1}


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters='\0\n\r"'), min_size=1))
def test_names_of_files_come_back_as_they_were(name):
    escaped = "".join(
        character
        if " " <= character <= "~"
        else f"\\x{ord(character):02x}"
        if ord(character) < 256
        else f"\\u{ord(character):04x}"
        if ord(character) < 65536
        else f"\\U{ord(character):08x}"
        for character in name
    )
    if "\\" in name:
        return  # a backslash is not escaped: such a name is looked for on the disk
    spent = time_by_place(stack((f"/x/{escaped}.py", 3, "load")), [TimeNote(0, 0), TimeNote(1000, 5)])
    assert spent == {(f"/x/{name}.py", 3, "load"): 5}


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=30), st.data())
def test_times_add_up_to_what_passed_until_the_last_sample(samples, data):
    texts = [stack(("/x/a.py", line, "load")) for line, _ in samples]
    notes, size, now = [TimeNote(0, 0)], 0, 0
    last = 0
    for text, (_, passed) in zip(texts, samples, strict=True):
        size, now = size + len(text), now + passed
        if data.draw(st.booleans()):
            notes.append(TimeNote(size, now))
            last = now
    spent = Counter(time_by_place(b"".join(texts), notes))
    assert sum(spent.values()) == pytest.approx(last)


@given(st.binary(max_size=400))
def test_anything_can_be_written(written):
    assert sum(time_by_place(written, [TimeNote(0, 0), TimeNote(len(written), 9)]).values()) in (
        0,
        pytest.approx(9),
    )

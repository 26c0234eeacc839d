"""The device prefetcher: same batches, same order, no waits; left early, nothing stays behind."""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import gapless
from gapless.errors import UsageError
from gapless.loading import DevicePrefetcher
from gapless.loading.nested import each_tensor


@pytest.fixture
def emulation() -> Iterator[Any]:
    with gapless.emulate() as emulation:
        yield emulation


Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str
    total: int = dataclasses.field(init=False, default=3)


class Graph:
    """An object that knows how to move itself."""

    def __init__(self, x: torch.Tensor, pinned: bool = False) -> None:
        self.x, self.pinned = x, pinned

    def pin_memory(self) -> Graph:
        return Graph(self.x.pin_memory(), True)

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        assert non_blocking
        return Graph(self.x.to(device, non_blocking=non_blocking), self.pinned)


class Plain:
    """Its ``to`` takes a device and no more."""

    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any) -> Plain:
        return Plain(self.x.to(device))


class Closed:
    """Nobody sees what is in it."""

    __slots__ = ("_get",)

    def __init__(self, x: torch.Tensor) -> None:
        self._get = lambda: x

    def to(self, device: Any) -> Closed:
        return Closed(self._get().to(device))


def batch(at: int) -> dict[str, Any]:
    x = torch.full((2, 3), float(at))
    return {
        "tensor": x,
        "tuple": (x + 1, "text", None),
        "list": [x + 2, at],
        "named": Pair(x + 3, at),
        "ordered": OrderedDict(a=x + 4),
        "user": UserDict(a=x + 5),
        "data": Sample(x + 6, "name"),
        "packed": pack_sequence([torch.arange(3.0), torch.arange(2.0)], enforce_sorted=False),
        "graph": Graph(x + 7),
        "plain": Plain(x + 8),
        "empty": torch.empty(0, 3),
    }


def on_host(value: Any) -> list[Any]:
    return [tensor.cpu().tolist() for tensor in each_tensor(value)]


def test_any_batch_arrives_whole_and_in_order(emulation: Any) -> None:
    items = list(DevicePrefetcher([batch(at) for at in range(4)], "cuda"))
    assert len(items) == 4
    for at, arrived in enumerate(items):
        assert on_host(arrived) == on_host(batch(at))
        named = {key: type(value) for key, value in batch(at).items()}
        assert {key: type(value) for key, value in arrived.items()} == named
        sizes = arrived["packed"].batch_sizes
        assert all(tensor.is_cuda for tensor in each_tensor(arrived) if tensor is not sizes)
        assert not sizes.is_cuda
        assert arrived["graph"].pinned
        assert arrived["tuple"][1:] == ("text", None)
        assert arrived["data"].total == 3
        torch.testing.assert_close(
            torch.nn.utils.rnn.pad_packed_sequence(arrived["packed"])[1], torch.tensor([3, 2])
        )


def test_nothing_waits(emulation: Any) -> None:
    loader = DataLoader(TensorDataset(torch.randn(32, 3), torch.arange(32)), batch_size=4)
    model = torch.nn.Linear(3, 1).cuda()
    before = emulation.waits
    for inputs, _labels in DevicePrefetcher(loader, "cuda"):
        model(inputs).sum().backward()
    assert emulation.waits == before
    for inputs, _labels in loader:
        model(inputs.to("cuda"))
    assert emulation.waits == before + 8


def test_pinned_batches_are_not_pinned_again(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = [torch.ones(3).pin_memory() for _ in range(3)]
    monkeypatch.setattr(torch.Tensor, "pin_memory", None)
    assert len(list(DevicePrefetcher(pinned, "cuda"))) == 3


def test_memory_is_kept_for_the_loops_stream(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[torch.Tensor, Any]] = []
    copied: list[Any] = []
    recorded, moved = torch.Tensor.record_stream, torch.Tensor.to

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        kept.append((self, stream))
        recorded(self, stream)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copied.append(torch.cuda.current_stream())
        return moved(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    monkeypatch.setattr(torch.Tensor, "to", to)
    loop = torch.cuda.Stream()
    with torch.cuda.stream(loop):
        arrived = list(DevicePrefetcher([Graph(torch.ones(2)), {"a": torch.ones(3)}], "cuda"))
    tensors = list(each_tensor(arrived))
    assert [id(tensor) for tensor, _ in kept] == [id(tensor) for tensor in tensors]
    assert all(stream == loop for _, stream in kept)
    assert len(copied) == 2
    assert all(stream != loop for stream in copied)


def test_what_cannot_be_seen_through_is_copied_by_the_loops_stream(emulation: Any) -> None:
    (arrived,) = DevicePrefetcher([Closed(torch.ones(2))], "cuda")
    assert arrived._get().is_cuda
    ((other, tensor),) = DevicePrefetcher([(Closed(torch.ones(2)), torch.ones(3))], "cuda")
    assert other._get().is_cuda
    assert tensor.is_cuda


class Counting:
    """A loader that counts what is asked of it and whether its iterators are closed."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.count, self.fails_at = count, fails_at
        self.asked = self.closed = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            for at in range(self.count):
                self.asked += 1
                if at == self.fails_at:
                    raise RuntimeError("the disk is gone")
                yield torch.tensor([at])
        finally:
            self.closed += 1


def test_ahead_by_depth_and_no_more(emulation: Any) -> None:
    @given(count=st.integers(0, 9), depth=st.integers(1, 4), stop=st.integers(1, 9))
    def check(count: int, depth: int, stop: int) -> None:
        loader = Counting(count)
        batches = iter(DevicePrefetcher(loader, "cuda", depth=depth))
        got = [int(tensor) for tensor in itertools.islice(batches, stop)]
        assert got == list(range(min(count, stop)))
        assert loader.asked == min(count, stop + depth)
        batches.close()  # type: ignore[attr-defined]
        assert loader.closed == 1

    check()


def test_what_came_before_a_failure_is_given_first(emulation: Any) -> None:
    loader = Counting(5, fails_at=3)
    batches = iter(DevicePrefetcher(loader, "cuda", depth=2))
    got = [int(tensor) for tensor in itertools.islice(batches, 3)]
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(batches)
    assert got == [0, 1, 2]
    assert loader.closed == 1


def test_a_loop_that_breaks_closes_the_loaders_iterator(emulation: Any) -> None:
    loader = Counting(5)
    for _ in DevicePrefetcher(loader, "cuda"):
        break
    assert loader.closed == 1


def test_workers_end_with_a_loop_that_breaks(emulation: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=2, num_workers=1)
    batches = iter(DevicePrefetcher(loader, "cuda"))
    next(batches)
    workers = [child for child in torch.multiprocessing.active_children() if child.is_alive()]
    assert workers
    batches.close()  # type: ignore[attr-defined]
    for worker in workers:
        worker.join(20)
        assert not worker.is_alive()


def test_a_wrapped_loader_can_be_repeated_and_keeps_length_and_names(emulation: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    ahead = DevicePrefetcher(loader, "cuda")
    assert len(ahead) == 3
    assert ahead.dataset is loader.dataset
    first, second = ([int(x.sum()) for (x,) in ahead] for _ in range(2))
    assert first == second == [1, 5, 9]
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ahead.no_such_name
    with pytest.raises(TypeError, match="no length"):
        len(DevicePrefetcher((x for x in [1]), "cuda"))


def test_on_the_cpu_batches_pass_as_they_are() -> None:
    batches = [batch(at) for at in range(3)]
    for device in ("cpu", None):
        items = list(DevicePrefetcher(batches, device))
        assert all(received is other for received, other in zip(items, batches, strict=True))


class Stateful(Counting):
    """Its state is how many batches it has given."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in range(1, self.count + 1):
            self.at = at
            yield torch.tensor([at])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}


def test_a_state_is_that_of_the_batch_in_hand(emulation: Any) -> None:
    ahead = DevicePrefetcher(Stateful(5), "cuda", depth=2)
    assert [(int(tensor), ahead.state_dict()["at"]) for tensor in ahead] == [(n, n) for n in range(1, 6)]


def test_the_next_batch_must_be_at_least_one_ahead() -> None:
    with pytest.raises(UsageError, match="depth=0"):
        DevicePrefetcher([], "cuda", depth=0)


def test_a_packed_sequence_keeps_its_order(emulation: Any) -> None:
    packed = pack_sequence([torch.arange(2.0), torch.arange(4.0)], enforce_sorted=False)
    (arrived,) = DevicePrefetcher([packed], "cuda")
    assert isinstance(arrived, PackedSequence)
    assert arrived.unsorted_indices.is_cuda
    assert arrived.unsorted_indices.tolist() == packed.unsorted_indices.tolist()

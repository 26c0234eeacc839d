"""Datasets whose time goes into lines of every kind: what Python computes, what C does, what waits."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info


class Items(Dataset):
    """Sixty thousand items, each returned by `load`."""

    def __len__(self) -> int:
        return 60_000

    def __getitem__(self, index: int) -> Any:
        return self.load(index)

    def load(self, index: int) -> Any:
        raise NotImplementedError


class NumpyRows(Items):
    """A gather by an index array, without a call."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal((60_000, 7)).astype(np.float32)
        self.order = np.random.default_rng(1).permutation(60_000)

    def load(self, index: int) -> Any:
        self.shuffle()
        first = np.arange(8)
        return self.rows[first]

    def shuffle(self) -> None:
        order = self.order
        self.rows = self.data[order]


class NumpyOperators(Items):
    """Array arithmetic by operators."""

    def __init__(self) -> None:
        self.a, self.b = np.random.default_rng(0).standard_normal((2, 200_000))

    def load(self, index: int) -> Any:
        a, b = self.a, self.b
        power = a**2.5 if index < 0 else abs(a) ** 2.5
        added = a + b
        ratio = added / b
        return power[:4] + ratio[:4]


class Loops(Items):
    """Python loops in two functions, one twice as long."""

    def load(self, index: int) -> Any:
        return torch.tensor(self.count(index) + self.words(index))

    def count(self, index: int) -> int:
        total = 0
        for at in range(20_000):
            total += at & index
        return total

    def words(self, index: int) -> int:
        total = 0
        for at in range(10_000):
            total += at ^ index
        return total


class Comprehensions(Items):
    """A list, a dictionary and a generator, each in a function of its own."""

    def load(self, index: int) -> Any:
        return torch.tensor(self.squares(index) + self.table(index) + self.summed(index))

    def squares(self, index: int) -> int:
        return len([at * at for at in range(12_000)])

    def table(self, index: int) -> int:
        return len({at: at ^ index for at in range(6_000)})

    def summed(self, index: int) -> int:
        return sum(at & 7 for at in range(3_000))


class Jpeg(Items):
    """Decodes and resizes an image in C."""

    def __init__(self) -> None:
        small = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(small).resize((384, 384), Image.Resampling.BICUBIC).save(buffer, "jpeg")
        self.data = buffer.getvalue()

    def load(self, index: int) -> Any:
        opened = Image.open(io.BytesIO(self.data))
        decoded = opened.convert("RGB")
        smaller = decoded.resize((224, 224), Image.Resampling.BICUBIC)
        array = np.asarray(smaller).astype(np.float32) / 255
        return torch.from_numpy(array)


class Zipped(Items):
    """Inflates text without the GIL and parses it holding the GIL."""

    def __init__(self) -> None:
        rows = [{"at": at, "words": "a photo of a dog " * 4} for at in range(1500)]
        self.data = zlib.compress(json.dumps(rows).encode())

    def load(self, index: int) -> Any:
        text = zlib.decompress(self.data)
        rows = json.loads(text)
        digest = hashlib.sha256(text).digest()
        return torch.tensor([len(rows), digest[0]])


class Sleeping(Items):
    """A sleep, then a computation."""

    def load(self, index: int) -> Any:
        time.sleep(0.004)
        order = np.random.default_rng(index).permutation(60_000)
        return torch.from_numpy(order[:4])


class FilesRead(Items):
    """Reads and sums a file for each item."""

    def __init__(self, root: Path) -> None:
        self.file = root / "item.bin"
        self.file.write_bytes(np.random.default_rng(0).bytes(1 << 20))

    def load(self, index: int) -> Any:
        data = self.file.read_bytes()
        array = np.frombuffer(data, np.uint8)
        total = array.sum(dtype=np.int64)
        return torch.tensor(total)


class Nested(Items):
    """Nested calls; time is in the innermost and in the middle function."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal(60_000)

    def load(self, index: int) -> Any:
        return self.outer(index)

    def outer(self, index: int) -> Any:
        kept = self.middle(index)
        return torch.from_numpy(kept[:4])

    def middle(self, index: int) -> Any:
        rows = self.inner(index)
        rows = rows * 2 + rows / 3
        return rows

    def inner(self, index: int) -> Any:
        ordered = np.sort(self.data)
        return ordered


class Generated(Items):
    """Collects an item from a generator that does the work."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal((4, 20_000))

    def load(self, index: int) -> Any:
        return torch.tensor([float(row[0]) for row in self.rows()])

    def rows(self) -> Iterator[Any]:
        for row in self.data:
            ordered = np.sort(row)
            yield ordered
            yield row * row


class Stream(IterableDataset):
    """A stream split among workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        data = np.random.default_rng(0).standard_normal(60_000)
        for at in range(worker.id if worker else 0, 60_000, worker.num_workers if worker else 1):
            ordered = np.sort(data)
            spread = np.exp(ordered)
            yield torch.from_numpy(spread[: 4 + at % 1])


class Collated(Items):
    """Cheap items; the collate function below does the work."""

    def load(self, index: int) -> Any:
        return np.full(6_000, index, np.float32)


def collate(items: list[Any]) -> Any:
    """Pad, sort and stack."""
    longest = max(len(item) for item in items)
    padded = [np.concatenate([item, np.zeros(longest + 10 - len(item), np.float32)]) for item in items]
    ordered = [np.sort(item)[::-1].copy() for item in padded]
    return default_collate(ordered)


class MultipleLines(Items):
    """Expressions over several lines."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal(60_000)

    def load(self, index: int) -> Any:
        data = self.data
        both = np.concatenate(
            [
                np.sort(data),
                np.exp(data),
            ]
        )
        return torch.tensor(
            float(both[0])
            + data.dot(data)
            + np.tanh(
                data,
            )[0]
        )


class Recursive(Items):
    """A function that calls itself and works at the bottom and on the way back."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal(16_384)

    def load(self, index: int) -> Any:
        return torch.from_numpy(self.sorted(self.data, 4)[:4].copy())

    def sorted(self, data: Any, depth: int) -> Any:
        if depth == 0:
            return np.sort(data)
        half = len(data) // 2
        left = self.sorted(data[:half], depth - 1)
        right = self.sorted(data[half:], depth - 1)
        both = np.concatenate([left, right])
        both = both * 1.0001 + np.cos(both)
        return both


class LongCalls(Items):
    """One long C call per line, for milliseconds."""

    def __init__(self) -> None:
        self.words = [str(at * 7919 % 10_007) for at in range(10_000)]

    def load(self, index: int) -> Any:
        ordered = sorted(self.words)
        joined = " ".join(ordered)
        parts = joined.split(" ")
        return torch.tensor(len(parts) + int("1" * 2_000) % 7)


class Tensors(Items):
    """Tensors, by operators and subscripts."""

    def __init__(self) -> None:
        self.data = torch.randn(60_000, 8)
        self.order = torch.randperm(60_000)

    def load(self, index: int) -> Any:
        rows = self.data[self.order]
        product = rows.T @ rows
        doubled = rows * 2
        return product[0] + doubled[0]


class Strings(Items):
    """Strings, by operators: no call of Python functions."""

    def __init__(self) -> None:
        self.text = "a photo of a dog, " * 40_000

    def load(self, index: int) -> Any:
        text = self.text
        longer = text + "!" * 200_000
        contained = "no such words" in longer
        return torch.tensor([len(longer), contained])


class Together(Items):
    """Loads all items of a batch at once."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal((60_000, 64)).astype(np.float32)

    def __getitems__(self, indices: list[int]) -> Any:
        rows = self.data[indices * 256]
        scaled = rows - rows.mean(0)
        return list(torch.from_numpy(scaled[: len(indices)]))


class Guarded(Items):
    """`with`, `try` and `finally` around the work."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).standard_normal(60_000)

    def load(self, index: int) -> Any:
        try:
            with np.errstate(all="ignore"):
                root = np.sqrt(self.data)
            raise KeyError(index)
        except KeyError:
            ordered = np.sort(root)
        finally:
            logarithm = np.log(abs(self.data))
        return torch.from_numpy(ordered[:2] + logarithm[:2])


class Database(Items):
    """A query of an in-memory database."""

    def __init__(self) -> None:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table rows (at integer, value real)")
        self.base.executemany("insert into rows values (?, ?)", [(at, at / 7) for at in range(20_000)])

    def load(self, index: int) -> Any:
        rows = self.base.execute("select value from rows order by value * ?", (index % 5,)).fetchall()
        array = np.array(rows)
        return torch.from_numpy(array[:4])


class Case(NamedTuple):
    """A loader; with `functions` its reference clock times functions instead of lines.

    A line clock takes longer than a short line, so it cannot time Python loops.
    """

    name: str
    make: Callable[[Path], DataLoader]
    functions: bool = False


def _case(kind: Any, functions: bool = False, **settings: Any) -> Case:
    settings = {"batch_size": 2, **settings}
    return Case(kind.__name__, lambda root: DataLoader(kind(), **settings), functions)


CASES = (
    _case(NumpyRows, batch_size=None),
    _case(NumpyOperators),
    _case(Loops, functions=True),
    _case(Comprehensions, functions=True),
    _case(Jpeg),
    _case(Zipped),
    _case(Sleeping),
    Case("FilesRead", lambda root: DataLoader(FilesRead(root), batch_size=2)),
    _case(Nested),
    _case(Generated),
    _case(Stream),
    _case(Collated, batch_size=16, collate_fn=collate),
    _case(MultipleLines),
    _case(Recursive),
    _case(LongCalls),
    _case(Tensors),
    _case(Strings),
    _case(Together, batch_size=16),
    _case(Guarded),
    _case(Database),
    Case("Stream, 2 workers", lambda root: DataLoader(Stream(), batch_size=2, num_workers=2)),
    Case("NumpyRows, 2 workers", lambda root: DataLoader(NumpyRows(), batch_size=2, num_workers=2)),
)

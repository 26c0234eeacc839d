"""Ten datasets of generated files, as people write them: images, audio, text, tables, streams, graphs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import tarfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

Make = Callable[[int], DataLoader]


def _picture(rng: np.random.Generator, side: int) -> Image.Image:
    """Return an image of smooth colours with noise, which compresses about as a photo does."""
    small = rng.integers(0, 255, (side // 16, side // 16, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = np.clip(large + rng.integers(-12, 12, large.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy)


class Pictures(Dataset):
    """Image files in a folder per class; cropped, flipped, normalized."""

    def __init__(self, root: Path, size: int) -> None:
        self.files = sorted(root.glob("*/*"))
        self.classes = {name: at for at, name in enumerate(sorted({file.parent.name for file in self.files}))}
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        left, top = (int(torch.randint(0, most - self.size + 1, ())) for most in image.size)
        image = image.crop((left, top, left + self.size, top + self.size))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        array = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        return (array - 0.45) / 0.25, self.classes[file.parent.name]


def pictures(root: Path, kind: str, side: int, size: int, batch: int) -> Make:
    rng = np.random.default_rng(1)
    for at in range(240):
        folder = root / f"class{at % 4}"
        folder.mkdir(exist_ok=True)
        _picture(rng, side).save(folder / f"{at}.{kind}")
    return lambda workers: DataLoader(Pictures(root, size), batch, shuffle=True, num_workers=workers)


class Speech(Dataset):
    """One second of each recording as a log spectrogram."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.glob("*.wav"))
        self.window = torch.hann_window(400)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with wave.open(str(self.files[index])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
        begin = int(torch.randint(0, len(samples) - 16000, ()))
        sound = torch.from_numpy(samples[begin : begin + 16000].astype(np.float32)) / 32768
        spectrum = torch.stft(sound, 400, 160, window=self.window, return_complex=True)
        return (spectrum.abs().square() + 1e-6).log()


def speech(root: Path) -> Make:
    rng = np.random.default_rng(2)
    for at in range(200):
        with wave.open(str(root / f"{at}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((rng.normal(0, 3000, 48000)).astype(np.int16).tobytes())
    return lambda workers: DataLoader(Speech(root), 16, shuffle=True, num_workers=workers)


def _worker_share() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(f"w{number}" for number in rng.zipf(1.3, count) % 9000)


class Lines(IterableDataset):
    """Documents in compressed files, one per line, as word ids."""

    def __init__(self, files: list[Path], length: int = 512) -> None:
        self.files, self.length = files, length
        self.vocabulary = {f"w{number}": number for number in range(9000)}

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker, workers = _worker_share()
        for file in self.files[worker::workers]:
            with gzip.open(file, "rt") as rows:
                for row in rows:
                    words = [self.vocabulary.get(word, 0) for word in row.split()][: self.length]
                    yield torch.tensor(words + [0] * (self.length - len(words)))


def lines(root: Path) -> Make:
    rng = np.random.default_rng(3)
    for at in range(12):
        with gzip.open(root / f"{at}.txt.gz", "wt") as file:
            file.writelines(_words(rng, int(rng.integers(100, 600))) + "\n" for _ in range(160))
    files = sorted(root.glob("*.gz"))
    return lambda workers: DataLoader(Lines(files), 32, num_workers=workers)


class Tokens(Dataset):
    """Windows of a long file of word ids."""

    def __init__(self, file: Path, length: int = 1024) -> None:
        self.tokens = np.memmap(file, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = int(torch.randint(0, len(self.tokens) - self.length - 1, ()))
        window = torch.from_numpy(self.tokens[begin : begin + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]


def tokens(root: Path) -> Make:
    np.random.default_rng(4).integers(0, 50_000, 4_000_000, dtype=np.uint16).tofile(root / "tokens.bin")
    return lambda workers: DataLoader(Tokens(root / "tokens.bin"), 64, num_workers=workers)


class Shards(IterableDataset):
    """Pairs of an image and its label from archives."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker, workers = _worker_share()
        for name in self.files[worker::workers]:
            with tarfile.open(name) as archive:
                pair: dict[str, bytes] = {}
                for member in archive:
                    opened = archive.extractfile(member)
                    assert opened is not None
                    pair[member.name.rpartition(".")[2]] = opened.read()
                    if len(pair) == 2:
                        image = np.asarray(Image.open(io.BytesIO(pair["jpg"])).resize((112, 112)))
                        label = json.loads(pair["json"])["label"]
                        yield torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255, label
                        pair = {}


def shards(root: Path) -> Make:
    rng = np.random.default_rng(5)
    for at in range(12):
        with tarfile.open(root / f"{at:02}.tar", "w") as archive:
            for number in range(60):
                held = io.BytesIO()
                _picture(rng, 192).save(held, "JPEG")
                texts = {"jpg": held.getvalue(), "json": json.dumps({"label": number % 9}).encode()}
                for kind, data in texts.items():
                    info = tarfile.TarInfo(f"{number:04}.{kind}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    files = sorted(root.glob("*.tar"))
    return lambda workers: DataLoader(Shards(files), 16, num_workers=workers)


class Rows(IterableDataset):
    """Rows of tables, with numbers and categories."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        worker, workers = _worker_share()
        for name in self.files[worker::workers]:
            with name.open(newline="") as opened:
                for row in csv.DictReader(opened):
                    numbers = torch.tensor([float(row[f"x{at}"]) for at in range(20)])
                    kinds = torch.tensor([hash(row[f"c{at}"]) % 1000 for at in range(6)])
                    yield numbers, kinds, float(row["y"])


def rows(root: Path) -> Make:
    rng = np.random.default_rng(6)
    names = [f"x{at}" for at in range(20)] + [f"c{at}" for at in range(6)] + ["y"]
    for part in range(12):
        with (root / f"{part}.csv").open("w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(names)
            for _ in range(4000):
                values = [f"{value:.4f}" for value in rng.normal(size=20)]
                writer.writerow([*values, *(f"k{value}" for value in rng.integers(0, 99, 6)), "1.0"])
    files = sorted(root.glob("*.csv"))
    return lambda workers: DataLoader(Rows(files), 256, num_workers=workers)


class Stored(Dataset):
    """Rows of a database, with one connection per process."""

    def __init__(self, file: Path, count: int) -> None:
        self.file, self.count = file, count
        self.connection: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.connection is None:
            self.connection = sqlite3.connect(self.file)
        query = "SELECT vector, label FROM samples WHERE id = ?"
        vector, label = self.connection.execute(query, (index,)).fetchone()
        return torch.from_numpy(np.frombuffer(vector, dtype=np.float32).copy()), label


def stored(root: Path) -> Make:
    rng, count = np.random.default_rng(7), 20_000
    connection = sqlite3.connect(root / "samples.db")
    connection.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, vector BLOB, label INTEGER)")
    records = ((at, rng.normal(size=256).astype(np.float32).tobytes(), at % 7) for at in range(count))
    connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", records)
    connection.commit()
    connection.close()
    file = root / "samples.db"
    return lambda workers: DataLoader(Stored(file, count), 256, shuffle=True, num_workers=workers)


class Graphs(Dataset):
    """Neighbourhoods of nodes, sampled from a large graph."""

    def __init__(self, nodes: int = 50_000, degree: int = 12) -> None:
        rng = np.random.default_rng(8)
        self.neighbours = rng.integers(0, nodes, (nodes, degree))
        self.features = torch.randn(nodes, 64)

    def __len__(self) -> int:
        return len(self.neighbours)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = np.random.default_rng(index)
        visited, frontier, edges = [np.array([index])], np.array([index]), []
        for fan in (8, 5):
            chosen = rng.integers(0, self.neighbours.shape[1], (len(frontier), fan))
            reached = self.neighbours[frontier[:, None], chosen]
            edges.append(np.stack([reached.ravel(), frontier.repeat(fan)]))
            frontier = np.unique(reached)
            visited.append(frontier)
        nodes, where = np.unique(np.concatenate(visited), return_inverse=True)
        del where
        ends = np.searchsorted(nodes, np.concatenate(edges, axis=1))
        return self.features[torch.from_numpy(nodes)], torch.from_numpy(ends)


def together(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge graphs into one with separate components."""
    begins = np.cumsum([0, *(len(nodes) for nodes, _ in parts)])
    ends = [edges + int(begin) for (_, edges), begin in zip(parts, begins, strict=False)]
    return torch.cat([nodes for nodes, _ in parts]), torch.cat(ends, dim=1)


def graphs(root: Path) -> Make:
    whole = Graphs()
    return lambda workers: DataLoader(whole, 64, shuffle=True, collate_fn=together, num_workers=workers)


class Volumes(Dataset):
    """Random crops of compressed volumes."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.glob("*.npz"))

    def __len__(self) -> int:
        return 8 * len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with np.load(self.files[index % len(self.files)]) as held:
            image, mask = held["image"], held["mask"]
        z, y, x = (int(torch.randint(0, side - 32 + 1, ())) for side in image.shape)
        part = (slice(z, z + 32), slice(y, y + 32), slice(x, x + 32))
        return torch.from_numpy(image[part].astype(np.float32)), torch.from_numpy(mask[part].copy())


def volumes(root: Path) -> Make:
    rng = np.random.default_rng(9)
    for at in range(40):
        image = (rng.normal(size=(48, 64, 64)) * 20).astype(np.int16)
        np.savez_compressed(root / f"{at}.npz", image=image, mask=(image > 10).astype(np.uint8))
    return lambda workers: DataLoader(Volumes(root), 2, shuffle=True, num_workers=workers)


DATASETS: dict[str, Callable[[Path], Make]] = {
    "png": lambda root: pictures(root, "png", 160, 128, 8),
    "jpeg": lambda root: pictures(root, "jpg", 288, 224, 8),
    "wav": speech,
    "text.gz": lines,
    "memmap": tokens,
    "tar": shards,
    "csv": rows,
    "sqlite": stored,
    "graphs": graphs,
    "npz": volumes,
}
"""By name: a function that writes the files and returns a maker of loaders for a number of workers."""


def write_dataset(name: str, folder: Path) -> Make:
    """Write the files of one dataset into `folder`; return its maker of loaders."""
    root = folder / name
    root.mkdir(parents=True)
    return DATASETS[name](root)


def shape(batch: Any) -> str:
    """Return the size of a batch in MB, for the sheet."""
    parts = batch if isinstance(batch, list | tuple) else [batch]
    total = sum(part.numel() * part.element_size() for part in parts if isinstance(part, torch.Tensor))
    return f"{total / 1e6:.2f} MB"

"""The constants of `gapless.analyze.kernel_times.products` and `cards`, fitted to measured products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from _kernel_tables import GPUS, Row
from scipy.optimize import minimize

from gapless.analyze.kernel_times import durations as kernels
from gapless.analyze.kernel_times.cards import reach
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.products import BATCHED, SKINNY, SPLITS, TILES, Form

Array = np.ndarray


@dataclass(frozen=True)
class Sized:
    """Measured products of one GPU and source as columns: sizes, bytes moved and those of them that are in no
    cache, microseconds."""

    sizes: Array
    moved: Array
    cold: Array
    us: Array


@dataclass(frozen=True)
class Constants:
    """What is fitted together: the form, the start in nanoseconds, and what the L2 cache adds."""

    form: Form
    start: float
    cached: float

    def flat(self) -> list[float]:
        return [*self.form[:6], self.start, self.cached]

    @classmethod
    def of(cls, flat: Sequence[float], fp32: bool) -> Constants:
        return cls(Form(*map(float, flat[:6]), fp32=fp32), float(flat[6]), float(flat[7]))


def sized(rows: Sequence[Row]) -> Sized:
    sizes = np.array([one.dims for one in rows], float)
    batch, m, n, k = sizes.T
    size = 4 if rows[0].dtype == "fp32" else 2
    bias = np.array([one.op == "linear" for one in rows]) * n
    cold = np.array([one.work.cold for one in rows])
    moved = (batch * (m * k + k * n + m * n) + bias) * size
    return Sized(sizes, moved, cold, np.array([one.us for one in rows]))


def product_times(rows: Sized, gpu: str, share: float, memory: float, c: Constants, half: bool) -> Array:
    """Microseconds by the formulas of `gapless.analyze.estimate`, for all rows at once."""
    card, form = GPUS[gpu], c.form
    batch, m, n, k = rows.sizes.T
    procs = card.multiprocessors
    rate = (card.fp16 if half else card.fp32) * 1e3 * share
    bandwidth = card.bandwidth * memory
    edge = form.edge * (min(card.fp16 / procs / kernels.FAST, 1.0) if half else 1.0)
    best = np.full(len(m), np.inf)
    single = (batch > 1) & ("A100" in gpu) & (not half) & (m > SKINNY)
    for tall, wide in TILES:
        tiles = batch * np.ceil(m / tall) * np.ceil(n / wide)
        side = tall * wide / (tall + wide)
        each = 2 * tall * wide * procs / (rate * side / (side + edge) * (64 + edge) / 64)
        for split in SPLITS:
            full = tiles * split / procs
            waves = form.whole * np.ceil(full) + (1 - form.whole) * np.maximum(full, 1)
            time = waves * each * (k / split + form.ahead)
            if split > 1:
                time = time + form.split + 8 * batch * m * n * split / bandwidth
                time[(k < 64 * split) | (tiles * split / 2 >= 4 * procs)] = np.inf
            if (tall, wide) not in BATCHED or split > 1:
                time = np.where(single, np.inf, time)
            best = np.minimum(best, time)
    warm = (1 - rows.cold / rows.moved) / (1 + (rows.moved / card.l2_bytes) ** 2)
    moving = rows.moved / form.memory * ((1 - warm) / bandwidth + warm / max(c.cached * procs, bandwidth))
    alone = (m == 1) | (n == 1)
    joined = np.maximum(best, moving) + form.beside * np.minimum(best, moving)
    joined = np.where(alone, moving, joined)
    flops = 2 * batch * m * n * k / ((card.fp16 if half else card.fp32) * 1e3)
    return (c.start + np.maximum(joined, flops)) / 1e3


def _errors(rows: Sized, *more: object) -> Array:
    return np.log(product_times(rows, *more) / rows.us)  # type: ignore[arg-type]


def fit(
    groups: Mapping[tuple[str, str], Sequence[Row]],
    begin: Constants,
    shares: Mapping[str, float],
    memory: Mapping[str, float],
    half: bool,
    most: int = 900,
    rounds: int = 4,
) -> tuple[Constants, dict[str, float]]:
    """The constants for these rows by GPU and source, and each GPU's share of its peak.

    Each GPU and source weighs the same, whatever it has of rows; within one, short and long times do.
    """
    rng = np.random.default_rng(0)
    chosen = {key: sized(_balanced(rows, most, rng)) for key, rows in sorted(groups.items())}
    gpus = sorted({gpu for gpu, _ in chosen})
    found = dict(shares)
    scale = np.array(begin.flat())

    def loss(flat: Array) -> float:
        if (flat < 0).any() or flat[1] > 1 or flat[5] > 1.2:
            return 9.0
        c = Constants.of(flat * scale, not half)
        if c.form.whole > 1:
            return 9.0
        each = [
            np.minimum(np.abs(_errors(rows, key[0], found[key[0]], memory[key[0]], c, half)), 1).mean()
            for key, rows in chosen.items()
        ]
        return float(np.mean(each))

    # Times with the host's part in them tell nothing of the start, nor of what the cache does.
    free = range(len(scale) if half else 6)
    flat = np.ones(len(scale))
    for _ in range(rounds):

        def moved(part: Array, flat: Array = flat) -> Array:
            return np.array([*part, *flat[len(part) :]])

        simplex = np.array([flat[list(free)]] * (len(free) + 1))
        simplex[1:] *= 1 + 0.3 * np.eye(len(free))
        result = minimize(
            lambda part: loss(moved(part)), simplex[0], method="Nelder-Mead",
            options={"maxfev": 160, "fatol": 1e-4, "xatol": 0.01, "initial_simplex": simplex},
        )  # fmt: skip
        flat = moved(result.x)
        c = Constants.of(flat * scale, not half)
        found = {gpu: _share(gpu, found[gpu], chosen, memory, c, half) for gpu in gpus}
    return Constants.of(flat * scale, not half), found


def _share(
    gpu: str,
    before: float,
    chosen: Mapping[tuple[str, str], Sized],
    memory: Mapping[str, float],
    c: Constants,
    half: bool,
) -> float:
    """The share of its peak near `before` at which long products of this GPU are off least."""
    mine = [_long(rows) for key, rows in chosen.items() if key[0] == gpu]

    def off(share: float) -> float:
        errors = [np.median(np.abs(_errors(rows, gpu, share, memory[gpu], c, half))) for rows in mine]
        return float(np.mean(errors))

    return float(min(before * np.geomspace(0.86, 1.17, 21), key=off))


def _long(rows: Sized) -> Sized:
    keep = rows.us > min(50, np.quantile(rows.us, 0.6))
    return Sized(*(column[keep] for column in (rows.sizes, rows.moved, rows.cold, rows.us)))


def _balanced(rows: Sequence[Row], most: int, rng: np.random.Generator) -> list[Row]:
    """At most so many, of all lengths alike."""
    if len(rows) <= most:
        return list(rows)
    bins = np.digitize(np.log10([one.us for one in rows]), [0.7, 1, 1.3, 1.7, 2, 2.5, 3, 4])
    weight = 1 / np.bincount(bins)[bins]
    chosen = rng.choice(len(rows), most, replace=False, p=weight / weight.sum())
    return [rows[place] for place in sorted(chosen)]


def by_source(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in rows:
        groups[one.gpu, one.source].append(one)
    return dict(groups)


# All the rest, through the model itself ---------------------------------------------------------------


def times(rows: Sequence[Row]) -> Array:
    """Microseconds that the model gives these rows."""
    return np.array([device_time(one.work, GPUS[one.gpu]) for one in rows]) / 1e3


def log_errors(rows: Sequence[Row]) -> Array:
    return np.log(times(rows) / np.array([one.us for one in rows]))


@contextmanager
def constants(**values: object) -> Iterator[None]:
    """The model with other constants than it has."""
    before = {name: getattr(kernels, name) for name in values}
    try:
        for name, value in values.items():
            setattr(kernels, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(kernels, name, value)


def search(names: Sequence[str], groups: Mapping[tuple[str, str], Sequence[Row]]) -> dict[str, float]:
    """The values of these constants that come closest to the rows, each GPU weighing the same."""
    begin = np.array([getattr(kernels, name) for name in names])

    def loss(part: Array) -> float:
        if (part <= 0).any():
            return 9.0
        with constants(**dict(zip(names, map(float, part * begin), strict=True))):
            return float(
                np.mean([np.minimum(np.abs(log_errors(rows)), 1).mean() for rows in groups.values()])
            )

    simplex = np.ones((len(names) + 1, len(names)))
    simplex[1:] *= 1 + 0.3 * np.eye(len(names))
    result = minimize(
        loss, simplex[0], method="Nelder-Mead",
        options={"maxfev": 40 * len(names), "fatol": 1e-4, "xatol": 0.01, "initial_simplex": simplex},
    )  # fmt: skip
    return dict(zip(names, map(float, result.x * begin), strict=True))


def share_of(rows: Sequence[Row], field: str) -> float:
    """The share of the data sheet at which the model's median error on these rows of one GPU is none."""
    (gpu,) = {one.gpu for one in rows}
    usual = getattr(reach(GPUS[gpu]), field)
    return float(usual * np.exp(np.median(log_errors(rows))))


def by_columns(rows: Sequence[Row], table: Sequence[float]) -> list[float]:
    """A table of shares by columns, from 2⁸ on, at which the median error around each place is none."""
    errors = log_errors(rows)
    places = np.log2([one.dims[1] for one in rows]) - 8
    found = list(table)
    for place in range(len(table)):
        near = np.abs(places - place) < 0.5
        if near.sum() > 10:
            found[place] = float(table[place] * np.exp(np.median(errors[near])))
    return found

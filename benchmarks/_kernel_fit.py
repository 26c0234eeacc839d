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
from gapless.analyze.kernel_times.products import BATCHED, MAX_SKINNY_ROWS, SPLITS, TILES, TileCosts

Array = np.ndarray


@dataclass(frozen=True)
class ProductColumns:
    """Measured products of one GPU and source as columns: sizes, bytes moved, bytes not in a cache, and
    microseconds.
    """

    sizes: Array
    moved: Array
    cold: Array
    us: Array


@dataclass(frozen=True)
class Constants:
    """The constants fitted together: the form, the launch time in ns, and the L2 cache's extra bandwidth."""

    form: TileCosts
    start: float
    cached: float

    def flat(self) -> list[float]:
        return [*self.form[:6], self.start, self.cached]

    @classmethod
    def of(cls, flat: Sequence[float], fp32: bool) -> Constants:
        return cls(TileCosts(*map(float, flat[:6]), fp32=fp32), float(flat[6]), float(flat[7]))


def product_columns(rows: Sequence[Row]) -> ProductColumns:
    sizes = np.array([row.dims for row in rows], float)
    batch, m, n, k = sizes.T
    size = 4 if rows[0].dtype == "fp32" else 2
    bias = np.array([row.op == "linear" for row in rows]) * n
    cold = np.array([row.work.cold_bytes for row in rows])
    moved = (batch * (m * k + k * n + m * n) + bias) * size
    return ProductColumns(sizes, moved, cold, np.array([row.us for row in rows]))


def product_times(
    rows: ProductColumns, gpu: str, share: float, memory: float, c: Constants, half: bool
) -> Array:
    """Return microseconds by the formulas of `gapless.analyze.estimate`, for all rows at once."""
    card, form = GPUS[gpu], c.form
    batch, m, n, k = rows.sizes.T
    procs = card.multiprocessors
    rate = (card.fp16 if half else card.fp32) * 1e3 * share
    bandwidth = card.bandwidth * memory
    edge = form.half_speed_edge * (
        min(card.fp16 / procs / kernels.FAST_TFLOPS_PER_PROCESSOR, 1.0) if half else 1.0
    )
    best = np.full(len(m), np.inf)
    single = (batch > 1) & ("A100" in gpu) & (not half) & (m > MAX_SKINNY_ROWS)
    for tall, wide in TILES:
        tiles = batch * np.ceil(m / tall) * np.ceil(n / wide)
        side = tall * wide / (tall + wide)
        each = 2 * tall * wide * procs / (rate * side / (side + edge) * (64 + edge) / 64)
        for split in SPLITS:
            full = tiles * split / procs
            waves = form.wave_rounding * np.ceil(full) + (1 - form.wave_rounding) * np.maximum(full, 1)
            time = waves * each * (k / split + form.overhead_steps)
            if split > 1:
                time = time + form.split_ns + 8 * batch * m * n * split / bandwidth
                time[(k < 64 * split) | (tiles * split / 2 >= 4 * procs)] = np.inf
            if (tall, wide) not in BATCHED or split > 1:
                time = np.where(single, np.inf, time)
            best = np.minimum(best, time)
    warm = (1 - rows.cold / rows.moved) / (1 + (rows.moved / card.l2_bytes) ** 2)
    moving = rows.moved / form.memory * ((1 - warm) / bandwidth + warm / max(c.cached * procs, bandwidth))
    alone = (m == 1) | (n == 1)
    joined = np.maximum(best, moving) + form.unhidden_share * np.minimum(best, moving)
    joined = np.where(alone, moving, joined)
    flops = 2 * batch * m * n * k / ((card.fp16 if half else card.fp32) * 1e3)
    return (c.start + np.maximum(joined, flops)) / 1e3


def _errors(rows: ProductColumns, *more: object) -> Array:
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
    """Fit the constants to rows grouped by (GPU, source); return them and each GPU's share of its peak.

    Every group has the same weight, and within a group short and long times have.
    """
    rng = np.random.default_rng(0)
    chosen = {key: product_columns(_sample_balanced(rows, most, rng)) for key, rows in sorted(groups.items())}
    gpus = sorted({gpu for gpu, _ in chosen})
    fitted_shares = dict(shares)
    scale = np.array(begin.flat())

    def loss(flat: Array) -> float:
        if (flat < 0).any() or flat[1] > 1 or flat[5] > 1.2:
            return 9.0
        c = Constants.of(flat * scale, not half)
        if c.form.wave_rounding > 1:
            return 9.0
        each = [
            np.minimum(
                np.abs(_errors(rows, key[0], fitted_shares[key[0]], memory[key[0]], c, half)), 1
            ).mean()
            for key, rows in chosen.items()
        ]
        return float(np.mean(each))

    # Times that include the host's part say nothing about the launch or the cache.
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
        fitted_shares = {gpu: _share(gpu, fitted_shares[gpu], chosen, memory, c, half) for gpu in gpus}
    return Constants.of(flat * scale, not half), fitted_shares


def _share(
    gpu: str,
    before: float,
    chosen: Mapping[tuple[str, str], ProductColumns],
    memory: Mapping[str, float],
    c: Constants,
    half: bool,
) -> float:
    """Return the share of peak near `before` with the smallest error on this GPU's long products."""
    mine = [_long_products(rows) for key, rows in chosen.items() if key[0] == gpu]

    def off(share: float) -> float:
        errors = [np.median(np.abs(_errors(rows, gpu, share, memory[gpu], c, half))) for rows in mine]
        return float(np.mean(errors))

    return float(min(before * np.geomspace(0.86, 1.17, 21), key=off))


def _long_products(rows: ProductColumns) -> ProductColumns:
    keep = rows.us > min(50, np.quantile(rows.us, 0.6))
    return ProductColumns(*(column[keep] for column in (rows.sizes, rows.moved, rows.cold, rows.us)))


def _sample_balanced(rows: Sequence[Row], most: int, rng: np.random.Generator) -> list[Row]:
    """Sample at most `most` rows, evenly over durations."""
    if len(rows) <= most:
        return list(rows)
    bins = np.digitize(np.log10([row.us for row in rows]), [0.7, 1, 1.3, 1.7, 2, 2.5, 3, 4])
    weight = 1 / np.bincount(bins)[bins]
    chosen = rng.choice(len(rows), most, replace=False, p=weight / weight.sum())
    return [rows[place] for place in sorted(chosen)]


def by_source(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.gpu, row.source].append(row)
    return dict(groups)


# All the rest, through the model itself ---------------------------------------------------------------


def times(rows: Sequence[Row]) -> Array:
    """Return the model's estimates for these rows in microseconds."""
    return np.array([device_time(row.work, GPUS[row.gpu]) for row in rows]) / 1e3


def log_errors(rows: Sequence[Row]) -> Array:
    return np.log(times(rows) / np.array([row.us for row in rows]))


@contextmanager
def constants(**values: object) -> Iterator[None]:
    """Replace constants of the model for a while."""
    before = {name: getattr(kernels, name) for name in values}
    try:
        for name, value in values.items():
            setattr(kernels, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(kernels, name, value)


def search(names: Sequence[str], groups: Mapping[tuple[str, str], Sequence[Row]]) -> dict[str, float]:
    """Return the values of these constants that fit the rows best, each group having the same weight."""
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
    """Return the share of the data sheet's value that makes the median error on these rows of one GPU
    zero."""
    (gpu,) = {row.gpu for row in rows}
    usual = getattr(reach(GPUS[gpu]), field)
    return float(usual * np.exp(np.median(log_errors(rows))))


def by_columns(rows: Sequence[Row], table: Sequence[float]) -> list[float]:
    """Return the table of shares by columns (from 2⁸ on), each corrected to a median error of zero around
    it."""
    errors = log_errors(rows)
    places = np.log2([row.dims[1] for row in rows]) - 8
    corrected = list(table)
    for place in range(len(table)):
        near = np.abs(places - place) < 0.5
        if near.sum() > 10:
            corrected[place] = float(table[place] * np.exp(np.median(errors[near])))
    return corrected

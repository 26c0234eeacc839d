"""How far off the times of single kernels and of whole models are, and where their constants come from.

    python benchmarks/kernel_times.py FOLDER            # print the sheet
    python benchmarks/kernel_times.py FOLDER --write    # writes benchmarks/sheets/kernel_times.md
    python benchmarks/kernel_times.py FOLDER --fit      # print the constants that fit the tables best

FOLDER holds tables of measured kernels (`_kernel_tables.py` says of what form and whose). A fifth of all
shapes is kept from the fit, and the sheet tells of those alone; then of each GPU with constants that were
fitted without it. Needs scipy, which Gapless does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import _kernel_fit as fitting
import _sheet
import msgspec
import numpy as np
from _kernel_before import kernel_time_before
from _kernel_models import ModelRun, runs
from _kernel_small import one_by_one
from _kernel_spread import spreads
from _kernel_tables import GPUS, Row, rows

from gapless.analyze.estimate.spread import time_spread
from gapless.analyze.kernel_times import cards, products
from gapless.analyze.kernel_times import durations as kernels
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.programme import GpuRates

MAX_ROWS_PER_CELL = 1_500
"""Larger cells are sampled."""
SERVERS = ("P100", "V100", "A100", "H100", "H200", "B200")
LENGTHS = ((0, 20), (20, 100), (100, 1e9))


def _format_errors(guess: np.ndarray, real: np.ndarray) -> str:
    error = np.abs(guess / real - 1)
    return f"{np.median(error):.1%} / {error.mean():.0%}"


def draw(cell_rows: Sequence[Row], most: int = MAX_ROWS_PER_CELL) -> list[Row]:
    rng = np.random.default_rng(0)
    return [cell_rows[place] for place in sorted(rng.permutation(len(cell_rows))[:most])]


# -- the constants -------------------------------------------------------------------------------------


def _select(measured: Sequence[Row], family: str, half: bool | None = None) -> list[Row]:
    return [
        row for row in measured
        if row.family == family and row.tells_of_kernel and (half is None or (row.dtype != "fp32") == half)
    ]  # fmt: skip


def _initial_constants(half: bool) -> fitting.Constants:
    form = products.HALF if half else products.FP32
    return fitting.Constants(form, 2_800.0 if half else 3_000.0, kernels.PRODUCT_CACHE_BYTES_PER_NS)


def fit(measured: Sequence[Row]) -> None:
    """Fit and print the constants, in the order in which they build on each other."""
    used = [row for row in measured if not row.kept]
    for field, name in (("memory", "pointwise"),):
        for key, mine in sorted(fitting.by_source(_select(used, name)).items()):
            print(f"{field} of {key}: {fitting.share_of(draw(mine), field):.3f}")
    norms = _select(used, "layer norm") + _select(used, "softmax")
    for key, mine in sorted(fitting.by_source(norms).items()):
        print(f"norms of {key}: {fitting.share_of(draw(mine), 'norms'):.3f}")
    for half in (False, True):
        chosen = [row for row in _select(used, "matmul", half) if row.gpu != "P4"]
        constants, shares = fitting.fit(
            fitting.by_source(chosen), _initial_constants(half), *_shares(half), half=half
        )
        print(constants)
        print({gpu: round(share, 3) for gpu, share in shares.items()})
    print("share of columns, layer norm and softmax, by GPU:")
    for family, table in (("layer norm", kernels.NORM_SHARES), ("softmax", kernels.SOFTMAX_SHARES)):
        for key, mine in fitting.by_source(_select(used, family, half=False)).items():
            print(key, [round(share, 2) for share in fitting.by_columns(draw(mine), table)])
    few = {
        family: {key: draw(mine, 350) for key, mine in fitting.by_source(_select(used, family)).items()}
        for family in ("convolution", "attention")
    }
    print(fitting.search(["DIRECT_FACTOR", "WINOGRAD_FACTOR"], few["convolution"]))
    print(fitting.search(["BLOCK_OVERHEAD_KEYS", "SOFTMAX_HEAD_ELEMENTS"], few["attention"]))
    for (gpu, _), mine in few["attention"].items():
        print(gpu, "attention", round(fitting.share_of([row for row in mine if row.us > 50], "attention"), 3))


def _shares(half: bool) -> tuple[dict[str, float], dict[str, float]]:
    field = "half" if half else "fp32"
    share = {gpu: getattr(cards.reach(card), field) for gpu, card in GPUS.items()}
    return share, {gpu: cards.reach(card).memory for gpu, card in GPUS.items()}


# -- kernels -------------------------------------------------------------------------------------------


def kernel_rows(measured: Sequence[Row]) -> list[list[object]]:
    """Return by family, precision, source and GPU the errors before and now, and the share inside the
    interval."""
    groups: defaultdict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in measured:
        if row.kept and row.tells_of_kernel:
            groups[row.family, "fp32" if row.dtype == "fp32" else "16 bits", row.source, row.gpu].append(row)
    table: list[list[object]] = []
    for (family, width, source, gpu), mine in sorted(groups.items()):
        for low, high in LENGTHS:
            chosen = draw([row for row in mine if low <= row.us < high])
            if len(chosen) >= 20:
                length = f"{low}–{high} µs" if high < 1e9 else f"≥ {low} µs"
                table.append([family, width, source, gpu, length, len(chosen), *_cells(chosen, GPUS[gpu])])
    return table


def _cells(chosen: Sequence[Row], card: GpuRates) -> list[object]:
    real = np.array([row.us for row in chosen])
    entries = [row.entry for row in chosen]
    before = np.array([kernel_time_before(entry, card) for entry in entries]) / 1e3
    now = np.array([device_time(row.work, card) for row in chosen]) / 1e3
    wide = np.array([1.2816 * time_spread(row.work, card) for row in chosen])
    inside = (np.abs(np.log(real / now)) <= wide).mean()
    return [
        _format_errors(before, real),
        _format_errors(now, real),
        f"{np.median(now / real):.2f}",
        f"{inside:.0%}",
    ]


# -- a GPU that was left out ---------------------------------------------------------------------------


class FitWithoutGpu(NamedTuple):
    """Constants for a GPU without using its own rows: fitted on other GPUs, with the mean arithmetic and
    bandwidth shares of its class."""

    constants: fitting.Constants
    share: float
    memory: float


def fit_without(measured: Sequence[Row], half: bool, gpu: str) -> FitWithoutGpu:
    """Fit the products' constants without `gpu` and its other variants."""
    model = gpu.split("-")[0]
    used = [row for row in _select(measured, "matmul", half) if row.gpu != "P4" and not row.kept]
    used = [row for row in used if row.gpu != gpu and (model == "RTX" or not row.gpu.startswith(model))]
    shares, memory = _shares(half)
    constants, fitted = fitting.fit(
        fitting.by_source(used), _initial_constants(half), shares, memory, half, most=250, rounds=2
    )
    memory = {name: share for name, share in memory.items() if model == "RTX" or not name.startswith(model)}
    return FitWithoutGpu(constants, *_class_shares(gpu, fitted, memory))


def unseen_rows(measured: Sequence[Row]) -> list[list[object]]:
    """Return for each GPU the errors of products and other kernels with constants fitted without it."""
    table: list[list[object]] = []
    for half in (False, True):
        chosen = _select(measured, "matmul", half)
        for gpu in sorted({row.gpu for row in chosen} - {"P4"}):
            constants, share, reached = fit_without(measured, half, gpu)
            kept = fitting.product_columns(draw([row for row in chosen if row.gpu == gpu and row.kept]))
            now = fitting.product_times(kept, gpu, share, reached, constants, half)
            width = "16 bits" if half else "fp32"
            table.append(
                [f"products, {width}", gpu, len(kept.us), f"{share:.2f}", _format_errors(now, kept.us)]
            )
    for family in ("pointwise", "layer norm", "softmax"):
        chosen = _select(measured, family, half=False)
        for gpu in sorted({row.gpu for row in chosen}):
            mine = draw([row for row in chosen if row.gpu == gpu and row.kept])
            _, memory = _shares(False)
            _, reached = _class_shares(gpu, memory, memory)
            own = cards.reach(GPUS[gpu])
            now = fitting.times(mine) * own.memory / reached
            if family != "pointwise":
                now *= own.norms
            table.append(
                [
                    family,
                    gpu,
                    len(mine),
                    f"{reached:.2f}",
                    _format_errors(now, np.array([o.us for o in mine])),
                ]
            )
    return table


def _class_shares(gpu: str, fitted: dict[str, float], memory: dict[str, float]) -> tuple[float, float]:
    """Return the mean shares of the other GPUs of its class."""

    def of(name: str) -> str:
        if name in ("P4", "T4", "L4"):
            return "modest"
        if name in ("RTX-3090", "RTX-4090"):
            return "games"
        return "server" if name.split("-")[0] in SERVERS else "board"

    same = [other for other in fitted if other != gpu and of(other) == of(gpu)] or [
        other for other in fitted if other != gpu
    ]
    near = [other for other in memory if other != gpu and of(other) == of(gpu)]
    return float(np.mean([fitted[other] for other in same])), float(
        np.mean([memory[other] for other in near])
    )


# -- whole models --------------------------------------------------------------------------------------


def model_rows(model_runs: Sequence[ModelRun], rows: Sequence[Row]) -> list[list[object]]:
    table: list[list[object]] = []
    fits: dict[str, FitWithoutGpu] = {}
    for model_run in sorted(model_runs, key=lambda run: (run.gpu, run.trains, run.name)):
        card = GPUS[model_run.gpu]
        if model_run.gpu not in fits:
            fits[model_run.gpu] = fit_without(rows, False, model_run.gpu)
        before = sum(times * kernel_time_before(entry, card) for entry, times in model_run.entries()) / 1e3
        now = model_time(model_run, card)
        other = model_time(model_run, of_its_class(card))
        left_out = model_time_without(model_run, card, fits[model_run.gpu])
        listed = sum(
            each.times * (each.forward_us + each.backward_us) for each in model_run.operators if each.forward
        )
        table.append(
            [model_run.gpu, model_run.name, f"{model_run.us / 1e3:.1f}", f"{before / model_run.us:.2f}",
             f"{now / model_run.us:.2f}", f"{other / model_run.us:.2f}", f"{left_out / model_run.us:.2f}",
             f"{listed / model_run.us:.2f}"]
        )  # fmt: skip
    return table


def of_its_class(card: GpuRates) -> GpuRates:
    """Return the GPU under a name that only tells its class."""
    return msgspec.structs.replace(card, name="T400" if cards.reach(card).modest else "GB300")


def model_time(run: ModelRun, card: GpuRates) -> float:
    """Return the microseconds of all operators of a run."""
    return sum(times * device_time(work(entry), card) for entry, times in run.entries()) / 1e3


def model_time_without(run: ModelRun, card: GpuRates, fitted: FitWithoutGpu) -> float:
    """Return the microseconds of a run with constants fitted without its GPU."""
    can = cards.reach(of_its_class(card))._replace(fp32=fitted.share, memory=fitted.memory)
    with fitting.constants(reach=lambda _: can, FP32=fitted.constants.form):
        return model_time(run, card)


def summary(table: Sequence[Sequence[object]], column: int) -> str:
    off = np.abs(np.array([float(str(row[column])) for row in table]) - 1)
    return f"mean {off.mean():.1%}, worst {off.max():.0%}"


# -- the sheet -----------------------------------------------------------------------------------------


def sheet(folder: Path) -> str:
    measured = rows(folder)
    text = _sheet.header(
        "Times of kernels, against open tables",
        "python benchmarks/kernel_times.py FOLDER --write",
        "rows whose shape was kept from the fit, at most 1,500 of a cell; errors are "
        "|estimated / measured − 1|, median / mean; *before* are the formulas that this replaced",
    )
    text += SOURCES
    text += "\n## Kernels of shapes that were kept from the fit\n\n"
    text += "*Inside*: how many lie in the interval that four fifths should.\n\n"
    heads = [
        "family",
        "numbers",
        "source",
        "GPU",
        "length",
        "rows",
        "before",
        "now",
        "estimated / measured",
        "inside",
    ]
    text += _sheet.table(heads, kernel_rows(measured))
    text += "\n## How far off, by a rule\n\n"
    text += (
        "Standard deviations of ln(measured / estimated) of those rows: within a GPU, between GPUs (of the\n"
        "next one, by Student's distribution; where fewer than five have that length, of all lengths), and\n"
        "both. Products without cards that are unsteady themselves.\n\n"
    )
    by_cell: defaultdict[tuple[str, bool, str, str], list[Row]] = defaultdict(list)
    for row in measured:
        if row.kept and row.tells_of_kernel:
            by_cell[row.family, row.dtype == "fp32", row.gpu, row.source].append(row)
    kept = [row for mine in by_cell.values() for row in draw(mine)]
    text += _sheet.table(["kind", "length", "GPUs", "within", "between", "spread"], spreads(kept))
    text += "\n## Elements moved one by one\n\n"
    text += "By a multiprocessor in a nanosecond, in the operators of NeuSight's models in fp32.\n\n"
    text += _sheet.table(["how", "GPU", "rows", "elements"], one_by_one(folder))
    text += "\n## GPUs that were left out\n\n"
    text += "Products fitted anew without any row of that GPU; at the mean shares of its class's others.\n\n"
    text += _sheet.table(["family", "GPU", "rows", "share", "now"], unseen_rows(measured))
    text += models(runs(folder), measured)
    return text


def models(model_runs: Sequence[ModelRun], rows: Sequence[Row]) -> str:
    text = "\n## Whole models in fp32\n\n"
    text += (
        "Estimated / measured; *class* with the shares of the GPU's class instead of its own; *left out*\n"
        "with products that were fitted anew without any row of that GPU, at the mean shares of its\n"
        "class's others. The last column are the operators' own measured times, with what the host adds to\n"
        "each, over the run's: how well the labels agree with each other.\n\n"
    )
    chosen = [run for run in model_runs if run.gpu in GPUS]
    table = model_rows(chosen, rows)
    heads = ["GPU", "run", "measured, ms", "before", "now", "class", "left out", "operators"]
    text += _sheet.table(heads, table) + "\n"
    for label, gpus in GROUPS.items():
        mine = [row for row in table if row[0] in gpus]
        for kind in ("train", "inf"):
            of = [row for row in mine if f"-{kind}-" in str(row[1])]
            if of:
                text += (
                    f"- {label}, {'training' if kind == 'train' else 'inference'} ({len(of)}): before "
                    f"{summary(of, 3)}; now {summary(of, 4)}; class {summary(of, 5)}; left out "
                    f"{summary(of, 6)}\n"
                )
    return text


GROUPS = {
    "V100, A100, H100, L4": ("V100-PCIE-32GB", "A100-PCIE-40GB", "A100-PCIE-80GB", "H100-SXM-80GB", "L4"),
    "P100, P4, T4": ("P100-PCIE-16GB", "P4", "T4"),
}
SOURCES = """
| rows of | licence | what they are |
|---|---|---|
| neusight | MIT | fp32, single calls after a wait: with the host's part, which is taken off; from 150 µs on |
| vidur | MIT | fp16, a profiler's kernel times |
| llmservingsim | MIT | fp16 and bf16, a profiler's kernel times of the layers of a Llama 3.1 8B |
| aiconfigurator | Apache-2.0 | bf16, means over calls from a CUDA graph on data that stay in the cache |
"""


if __name__ == "__main__":
    _sheet.fit_main(__doc__ or "", "kernel_times", lambda folder: fit(rows(folder)), sheet)

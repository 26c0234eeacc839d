"""Loggers to pass to :meth:`MetricCollection.every`, called with values that have arrived.

Each is called as ``logger(update, values)``. The package it writes to is imported when it is created.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from gapless.metrics.checks import warn

MAX_ELEMENTS = 100
"""Results with more elements, such as confusion matrices, are not logged."""


class Logger:
    """Logs values by name; a subclass writes them in :meth:`write`.

    The elements of a larger result are logged as ``name/0``, ``name/1`` and so on. A result with more than
    `at_most` elements is left out, and a warning says so once.
    """

    def __init__(self, at_most: int = MAX_ELEMENTS) -> None:
        self.at_most = at_most
        self._left_out: set[str] = set()

    def __call__(self, update: int, values: Any) -> None:
        """Log `values`, the results after `update` updates."""
        self.write(update, dict(self._numbers("", values)))

    def write(self, update: int, numbers: dict[str, float]) -> None:
        """Write numbers by name."""
        raise NotImplementedError

    def _numbers(self, name: str, values: Any) -> Iterator[tuple[str, float]]:
        if isinstance(values, Mapping):
            for key, value in values.items():
                yield from self._numbers(f"{name}/{key}" if name else str(key), value)
        elif isinstance(values, (list, tuple)):
            for i, value in enumerate(values):
                yield from self._numbers(f"{name or 'value'}/{i}", value)
        elif not isinstance(values, Tensor) or values.dim() == 0:
            yield name or "value", float(values)
        elif values.numel() <= self.at_most:
            yield from self._numbers(name, values.tolist())
        elif name not in self._left_out:
            self._left_out.add(name)
            warn(
                f"{name or 'value'} has {values.numel()} elements and is not logged: {type(self).__name__} "
                f"takes at most {self.at_most}"
            )


class TensorBoard(Logger):
    """Writes scalars to TensorBoard.

    Args:
        writer: a ``SummaryWriter``, or the folder for a new one (None for the one TensorBoard chooses).
    """

    def __init__(self, writer: Any = None, at_most: int = MAX_ELEMENTS) -> None:
        super().__init__(at_most)
        if writer is None or isinstance(writer, (str, os.PathLike)):
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(None if writer is None else os.fspath(writer))  # type: ignore[no-untyped-call]
        self.writer = writer

    def write(self, update: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, update)


class WandB(Logger):
    """Logs to Weights & Biases.

    A run's own step only goes forward, and what arrives late would be dropped. So the update is logged beside
    the values, and is made their horizontal axis.

    Args:
        run: a run, or None for the current one.
        axis: the name under which the update is logged.
    """

    def __init__(self, run: Any = None, axis: str = "update", at_most: int = MAX_ELEMENTS) -> None:
        super().__init__(at_most)
        if run is None:
            run = import_module("wandb").run
            if run is None:
                raise RuntimeError(
                    "There is no run of Weights & Biases: call `wandb.init` first, or give a run"
                )
        self.run = run
        self.axis = axis
        self._known: set[str] = set()

    def write(self, update: int, numbers: dict[str, float]) -> None:
        for name in numbers:
            if name not in self._known:
                self._known.add(name)
                self.run.define_metric(name, step_metric=self.axis)
        self.run.log({**numbers, self.axis: update})


class MLflow(Logger):
    """Logs to the active run of MLflow.

    Args:
        options: for ``mlflow.log_metrics``, such as ``run_id="..."``. By default it waits for the server's
            answer; with ``synchronous=False`` (from MLflow 2.8) it does not.
    """

    def __init__(self, at_most: int = MAX_ELEMENTS, **options: Any) -> None:
        super().__init__(at_most)
        self._log_metrics = import_module("mlflow").log_metrics
        self.options = options

    def write(self, update: int, numbers: dict[str, float]) -> None:
        self._log_metrics(numbers, step=update, **self.options)


class CSV(Logger):
    """Appends a row per reading to a file: the update, then a column for each name of the first reading.

    A file that exists is continued if its columns are the same.

    Raises:
        ValueError: a reading has other names than the file has columns.
    """

    def __init__(self, path: str | os.PathLike[str], at_most: int = MAX_ELEMENTS) -> None:
        super().__init__(at_most)
        self.path = Path(path)
        self._columns: list[str] | None = None

    def write(self, update: int, numbers: dict[str, float]) -> None:
        columns = ["update", *numbers]
        if self._columns is None:
            self._columns = self._begin(columns)
        if set(columns) != set(self._columns):
            raise ValueError(
                f"{self.path} has the columns {self._columns}, but there are values for {columns}"
            )
        row = {"update": update, **numbers}
        self._append([row[name] for name in self._columns])

    def _begin(self, columns: list[str]) -> list[str]:
        """The columns of the file, which is begun if there is none yet."""
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="", encoding="utf-8") as file:
                return next(csv.reader(file))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._append(columns)
        return columns

    def _append(self, row: list[Any]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(row)

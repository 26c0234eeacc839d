"""Log the numbers of a report to TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import importlib
from typing import Any

from gapless.errors import UsageError
from gapless.model import Profile, Report

PREFIX = "gapless/"
_IMPORTED = ("tensorboard", "wandb", "mlflow")


def numbers(report: Report, prefix: str = PREFIX) -> dict[str, float]:
    """Return the numbers of `report` that are worth tracking from run to run, by name.

    ``waits_per_step`` (if steps were seen) and ``findings`` always; of a profile also ``step_ms``,
    ``gpu_utilization`` and ``gpu_idle`` in percent of the steps, and ``gpu_idle_by_cause/CAUSE`` for each
    cause; of a check its estimated ``step_ms``.
    """
    values: dict[str, float] = {"findings": float(len(report.findings))}
    if report.steps.seen:
        values["waits_per_step"] = report.steps.waits_per_step
    if report.profile is not None:
        values.update(_profile_numbers(report.profile))
    elif report.estimate is not None and not report.estimate.reasons:
        values["estimated_step_ms"] = report.estimate.step.likely / 1e6
    return {prefix + name: value for name, value in values.items()}


def _profile_numbers(profile: Profile) -> dict[str, float]:
    values: dict[str, float] = {}  # no name is the folder of another: some stores make files of them
    total = profile.steps.total
    if profile.utilization >= 0:
        values["gpu_utilization"] = 100 * profile.utilization
    if total:
        values["step_ms"] = profile.steps.mean / 1e6
    if total and profile.coverage.complete:
        values["gpu_idle"] = 100 * profile.idle / total
        causes = profile.idle_by_cause()
        values.update({f"gpu_idle_by_cause/{cause}": 100 * idle / total for cause, idle in causes})
    return values


def log(report: Report, writer: Any, step: int | None = None, *, prefix: str = PREFIX) -> None:
    """Log the numbers of `report` at `step`.

    Args:
        report: a report of `gapless.report` or of a callback of Gapless.
        writer: a `SummaryWriter` of TensorBoard; a run of Weights & Biases, or its module; the module
            `mlflow`; a logger of Lightning; or the name of one: ``"tensorboard"`` (a new writer), ``"wandb"``
            (the active run), ``"mlflow"`` (likewise).
        step: the training step, or None.
        prefix: the beginning of all names.

    Raises:
        UsageError: `writer` is none of these, is not installed, or has no active run.
    """
    values = numbers(report, prefix)
    if isinstance(writer, str):
        _by_name(writer, values, report, step)
    elif hasattr(writer, "add_scalar"):  # TensorBoard, and those that look like it
        _to_tensorboard(writer, values, report, step, prefix)
    elif hasattr(writer, "log_metrics"):  # MLflow, and the loggers of Lightning
        writer.log_metrics(values, step=step)
    elif hasattr(writer, "log"):  # Weights & Biases, and Accelerate
        writer.log(values, step=step)
    else:
        raise UsageError(
            f"{type(writer).__name__} is not a supported tracker: pass a SummaryWriter, a wandb run, "
            f"mlflow, a Lightning logger, or one of {', '.join(_IMPORTED)}"
        )


def _to_tensorboard(
    writer: Any, values: dict[str, float], report: Report, step: int | None, prefix: str
) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
    if hasattr(writer, "add_text"):
        from gapless.render import Style, renderer

        writer.add_text(f"{prefix}report", renderer("markdown")(report, Style()), step)


def _by_name(name: str, values: dict[str, float], report: Report, step: int | None) -> None:
    if name not in _IMPORTED:
        raise UsageError(f"unknown tracker {name!r}: choose one of {', '.join(_IMPORTED)}")
    try:
        if name == "tensorboard":
            with importlib.import_module("torch.utils.tensorboard").SummaryWriter() as writer:
                log(report, writer, step)
            return
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name} is not installed: pip install {error.name or name}") from None
    if name == "wandb":
        if module.run is None:
            raise UsageError("no wandb run is active: call wandb.init() first, or pass the run")
        module.run.log(values, step=step)
    else:
        module.log_metrics(values, step=step)

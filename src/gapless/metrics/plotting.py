"""Draw results with Matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Figure = tuple[Any, Any]
"""A figure and its axes."""


def pyplot() -> Any:
    """Return Matplotlib's interface; raise ModuleNotFoundError with what to install if it is missing."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Plot functions expect `matplotlib` to be installed: `pip install matplotlib`"
        ) from error
    return plt


def plot_values(metric: Any, val: Any, ax: Any = None) -> Figure:
    """Draw one result of `metric` as points, or several as lines over their steps.

    Args:
        metric: the metric, with its name, bounds and whether higher is better.
        val: a result (a tensor, or a dict of them) or a sequence of results.
        ax: the axes to draw in; None for a new figure.
    """
    plt = pyplot()
    figure, axes = (ax.get_figure(), ax) if ax is not None else plt.subplots()
    several = isinstance(val, Sequence)
    for label, points in labelled_points(val, metric.plot_legend_name or ""):
        if several:
            axes.plot(range(len(points)), points, marker="o", linestyle="-", label=label)
        else:
            axes.plot([label or "value"], points, marker="o", markersize=8, linestyle="None", label=label)
    if several:
        axes.set_xlabel("Step")
    draw_frame(axes, metric)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    return figure, axes


def labelled_points(val: Any, legend: str) -> list[tuple[str | None, list[float]]]:
    """Return labels with points: a result's elements, or each element over a sequence of results."""
    results = list(val) if isinstance(val, Sequence) else [val]
    numbers_of_results = [labelled_numbers(result, legend) for result in results]
    return [
        (label or None, [numbers[label] for numbers in numbers_of_results]) for label in numbers_of_results[0]
    ]


def labelled_numbers(result: Any, legend: str) -> dict[str, float]:
    """Return the numbers of one result by label. **Reads the values.**"""
    if isinstance(result, dict):
        return {
            f"{name} {inner}".strip(): number
            for name, value in result.items()
            for inner, number in labelled_numbers(value, legend).items()
        }
    if isinstance(result, Tensor) and result.dim():
        return {f"{legend} {i}".strip(): float(value) for i, value in enumerate(result.flatten().tolist())}
    return {"": float(result)}


def draw_frame(axes: Any, metric: Any) -> None:
    """Draw the title, the grid and the bounds of a metric's values, the better bound marked."""
    lower, upper = metric.plot_lower_bound, metric.plot_upper_bound
    low, high = axes.get_ylim()
    margin = 0.1 * (high - low) or 0.1
    axes.set_ylim(
        low - margin if lower is None else lower - margin, high + margin if upper is None else upper + margin
    )
    for bound, better in (
        (lower, metric.higher_is_better is False),
        (upper, metric.higher_is_better is True),
    ):
        if bound is not None:
            label = "Optimal value" if better else None
            axes.axhline(bound, linestyle="--", color="tab:green" if better else "black", label=label)
    axes.set_title("" if metric is MixedMetrics else type(metric).__name__)
    axes.grid(True)


def plot_collection(collection: Any, val: Any, ax: Any, together: bool) -> Any:
    """Draw every member of a collection in a figure of its own, or all `together` in one.

    Raises:
        ValueError: `together` is not a bool, or the number of axes differs from that of the members.
    """
    if not isinstance(together, bool):
        raise ValueError(f"Expected argument `together` to be a boolean, but got {type(together)}")
    members = list(collection.items())
    if ax is not None and together and isinstance(ax, Sequence):
        raise ValueError("Expected argument `ax` to be a single axis object when `together` is True")
    if ax is not None and not together and not (isinstance(ax, Sequence) and len(ax) == len(members)):
        raise ValueError(
            "Expected argument `ax` to be a sequence of axis objects, one for each of the"
            f" {len(members)} metrics, when `together` is False"
        )
    values = collection.compute() if val is None else val
    if together:
        return plot_values(MixedMetrics, values, ax)
    is_sequence = isinstance(values, Sequence)
    figures = []
    for i, (name, member) in enumerate(members):
        of_member = [result[name] for result in values] if is_sequence else values[name]
        figures.append(member.plot(of_member, ax=None if ax is None else ax[i]))
    return figures


class MixedMetrics:
    """The attributes of a metric for values of several metrics."""

    plot_lower_bound = plot_upper_bound = plot_legend_name = higher_is_better = None


def plot_tracker(tracker: Any, val: Any, ax: Any) -> Figure:
    """Draw the results of every step of a tracker."""
    results = tracker.compute_all() if val is None else val
    base = tracker[0] if len(tracker) else tracker._base_metric
    if isinstance(results, dict):
        steps = len(next(iter(results.values())))
        return plot_values(MixedMetrics, [{n: v[i] for n, v in results.items()} for i in range(steps)], ax)
    return plot_values(base, list(results), ax)


def plot_matrix(
    metric: Any, val: Tensor, ax: Any = None, add_text: bool = True, labels: Any = None, cmap: Any = None
) -> Figure:
    """Draw a matrix ``[C, C]`` as an image with its numbers, targets downwards; ``[L, 2, 2]`` as one per
    label.

    Raises:
        ValueError: the number of `labels` differs from that of the rows.
    """
    plt = pyplot()
    matrices = val if val.dim() == 3 else val[None]
    if labels is not None and len(labels) != matrices.shape[-1] and val.dim() == 2:
        raise ValueError(f"Expected {matrices.shape[-1]} `labels`, one for each class, but got {len(labels)}")
    if ax is None:
        figure, axes = plt.subplots(1, len(matrices), squeeze=False)
        axes = axes[0]
    else:
        axes = list(ax) if isinstance(ax, Sequence) else [ax]
        figure = axes[0].get_figure()
    names = labels if labels is not None and val.dim() == 2 else range(matrices.shape[-1])
    for i, (matrix, axis) in enumerate(zip(matrices.tolist(), axes, strict=True)):
        axis.imshow(matrix, cmap=cmap)
        axis.set_xticks(range(len(matrix)), [str(name) for name in names])
        axis.set_yticks(range(len(matrix)), [str(name) for name in names])
        axis.set_xlabel("Predicted class")
        axis.set_ylabel("True class")
        if val.dim() == 3:
            axis.set_title(f"Label {labels[i] if labels is not None else i}")
        for row, numbers in enumerate(matrix if add_text else []):
            for column, number in enumerate(numbers):
                axis.text(column, row, f"{number:.4g}", ha="center", va="center")
    return figure, axes[0] if len(matrices) == 1 else axes


def plot_curve(metric: Any, val: Any, ax: Any = None, score: Any = None) -> Figure:
    """Draw curves: the first of `val` on the x axis, the second on the y axis, one curve per class.

    A precision-recall curve, whose result has precision first, is drawn with recall on the x axis. `score` is
    a number for the legend (one for each class), or True for the areas.
    """
    plt = pyplot()
    figure, axes = (ax.get_figure(), ax) if ax is not None else plt.subplots()
    names = metric.curve_axes
    across, upwards = (val[1], val[0]) if names[0] == "Recall" else (val[0], val[1])
    single = isinstance(across, Tensor) and across.dim() == 1
    pairs = [(across, upwards)] if single else list(zip(across, upwards, strict=True))
    for i, (x, y) in enumerate(pairs):
        label = [] if single else [f"{metric.plot_legend_name or 'Class'} {i}"]
        if score is True:
            width = (x[1:] - x[:-1]).abs()
            label.append(f"AUC={float((width * (y[1:] + y[:-1]) / 2).sum()):.3f}")
        elif score is not None and score is not False:
            label.append(f"AUC={float(score if single else score[i]):.3f}")
        axes.plot(x.tolist(), y.tolist(), linestyle="-", linewidth=2, label=" ".join(label) or None)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.set_title(type(metric).__name__)
    axes.grid(True)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    return figure, axes


PLOTTERS: dict[str, Callable[..., Figure]] = {
    "values": plot_values,
    "matrix": plot_matrix,
    "curve": plot_curve,
}
"""Plot functions by `Metric.drawn_as`."""

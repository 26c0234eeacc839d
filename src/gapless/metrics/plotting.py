"""Results drawn with Matplotlib, which is imported only here and when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Drawn = tuple[Any, Any]
"""A figure and its axes."""


def pyplot() -> Any:
    """Matplotlib's interface; raises ModuleNotFoundError, saying what to install, where there is none."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Plot functions expect `matplotlib` to be installed: `pip install matplotlib`"
        ) from error
    return plt


def plot_values(metric: Any, val: Any, ax: Any = None) -> Drawn:
    """One result of `metric` as points, or several as lines over their steps.

    Args:
        metric: gives the name, the bounds, and which way is better.
        val: a result (a tensor, or a dict of them) or a sequence of results.
        ax: what to draw in; None for a new figure.
    """
    plt = pyplot()
    figure, axes = (ax.get_figure(), ax) if ax is not None else plt.subplots()
    several = isinstance(val, Sequence)
    for label, points in lines(val, metric.plot_legend_name or ""):
        if several:
            axes.plot(range(len(points)), points, marker="o", linestyle="-", label=label)
        else:
            axes.plot([label or "value"], points, marker="o", markersize=8, linestyle="None", label=label)
    if several:
        axes.set_xlabel("Step")
    frame(axes, metric)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    return figure, axes


def lines(val: Any, legend: str) -> list[tuple[str | None, list[float]]]:
    """Labels and points: a value's elements, or the course of each over a sequence of values."""
    results = list(val) if isinstance(val, Sequence) else [val]
    named = [elements(one, legend) for one in results]
    return [(label or None, [one[label] for one in named]) for label in named[0]]


def elements(result: Any, legend: str) -> dict[str, float]:
    """The numbers of one result by their labels. **Reads the values.**"""
    if isinstance(result, dict):
        return {
            f"{name} {inner}".strip(): number
            for name, one in result.items()
            for inner, number in elements(one, legend).items()
        }
    if isinstance(result, Tensor) and result.dim():
        return {f"{legend} {i}".strip(): float(one) for i, one in enumerate(result.flatten().tolist())}
    return {"": float(result)}


def frame(axes: Any, metric: Any) -> None:
    """The bounds of a metric's values, its name, and which of them is better."""
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
    axes.set_title("" if metric is Together else type(metric).__name__)
    axes.grid(True)


def plot_collection(collection: Any, val: Any, ax: Any, together: bool) -> Any:
    """Every member of a collection in a figure of its own, or all `together` in one.

    Raises:
        ValueError: `together` is no bool, or there are not as many axes as members.
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
        return plot_values(Together, values, ax)
    several = isinstance(values, Sequence)
    drawn = []
    for i, (name, member) in enumerate(members):
        of_member = [one[name] for one in values] if several else values[name]
        drawn.append(member.plot(of_member, ax=None if ax is None else ax[i]))
    return drawn


class Together:
    """What is known of the values of several metrics."""

    plot_lower_bound = plot_upper_bound = plot_legend_name = higher_is_better = None


def plot_tracked(tracker: Any, val: Any, ax: Any) -> Drawn:
    """The results of every step."""
    results = tracker.compute_all() if val is None else val
    base = tracker[0] if len(tracker) else tracker._base_metric
    if isinstance(results, dict):
        steps = len(next(iter(results.values())))
        return plot_values(Together, [{n: v[i] for n, v in results.items()} for i in range(steps)], ax)
    return plot_values(base, list(results), ax)


def plot_matrix(
    metric: Any, val: Tensor, ax: Any = None, add_text: bool = True, labels: Any = None, cmap: Any = None
) -> Drawn:
    """A matrix ``[C, C]`` as an image with its numbers, targets downwards; of ``[L, 2, 2]`` one per label.

    Raises:
        ValueError: there are not as many `labels` as rows.
    """
    plt = pyplot()
    several = val if val.dim() == 3 else val[None]
    if labels is not None and len(labels) != several.shape[-1] and val.dim() == 2:
        raise ValueError(f"Expected {several.shape[-1]} `labels`, one for each class, but got {len(labels)}")
    if ax is None:
        figure, axes = plt.subplots(1, len(several), squeeze=False)
        axes = axes[0]
    else:
        axes = list(ax) if isinstance(ax, Sequence) else [ax]
        figure = axes[0].get_figure()
    names = labels if labels is not None and val.dim() == 2 else range(several.shape[-1])
    for i, (one, place) in enumerate(zip(several.tolist(), axes, strict=True)):
        place.imshow(one, cmap=cmap)
        place.set_xticks(range(len(one)), [str(name) for name in names])
        place.set_yticks(range(len(one)), [str(name) for name in names])
        place.set_xlabel("Predicted class")
        place.set_ylabel("True class")
        if val.dim() == 3:
            place.set_title(f"Label {labels[i] if labels is not None else i}")
        for row, numbers in enumerate(one if add_text else []):
            for column, number in enumerate(numbers):
                place.text(column, row, f"{number:.4g}", ha="center", va="center")
    return figure, axes[0] if len(several) == 1 else axes


def plot_curve(metric: Any, val: Any, ax: Any = None, score: Any = None) -> Drawn:
    """Curves over each other: the first of `val` to the right, the second upwards, one for each class.

    A precision-recall curve, which gives precision first, is drawn with recall to the right. `score` is a
    number for the legend (one for each class), or True for the areas.
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


DRAWN: dict[str, Callable[..., Drawn]] = {"values": plot_values, "matrix": plot_matrix, "curve": plot_curve}

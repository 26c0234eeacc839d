"""Write the names of all metrics into stubs of their folders, for type checkers and editors.

    python tools/metric_names.py

`make format` runs it, and puts the lines in order.
"""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).resolve().parents[1] / "src" / "gapless" / "metrics"
HEAD = "# The metrics of this folder, found when it is imported. `make format` writes this file.\n\n"


def stub(metrics: dict[str, type]) -> str:
    """Return the stub of a folder: a line for each of its `metrics`."""
    lines = [f"from {metric.__module__} import {name} as {name}\n" for name, metric in metrics.items()]
    return HEAD + "".join(sorted(lines))


def main() -> None:
    from gapless.metrics.rooms import ROOMS, metrics_of

    for room in ROOMS:
        (HOME / room / "__init__.pyi").write_text(stub(metrics_of(room)), encoding="utf-8")


if __name__ == "__main__":
    main()

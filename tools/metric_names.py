"""Write the names of all metrics into the ``__init__`` of their folders, for type checkers and editors.

    python tools/metric_names.py

`make format` runs it, and puts the lines in order.
"""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1] / "src" / "gapless" / "metrics"
BLOCK = re.compile(r"(?<=^if TYPE_CHECKING:)(?P<why>[^\n]*\n).*?(?=^else:)", re.DOTALL | re.MULTILINE)


def written(text: str, metrics: dict[str, type]) -> str:
    """The text of an ``__init__`` with a line for each of `metrics`, which are those of its folder."""
    lines = [f"    from {metric.__module__} import {name} as {name}\n" for name, metric in metrics.items()]
    return BLOCK.sub(lambda found: found["why"] + "".join(sorted(lines)), text)


def main() -> None:
    from gapless.metrics.rooms import ROOMS, metrics_of

    for room in ROOMS:
        file = HOME / room / "__init__.py"
        file.write_text(written(file.read_text(encoding="utf-8"), metrics_of(room)), encoding="utf-8")


if __name__ == "__main__":
    main()

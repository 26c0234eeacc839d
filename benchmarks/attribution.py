"""How much of the GPU's idleness in real profiles is laid to a cause, and to a line.

    python benchmarks/attribution.py FOLDER            # every profile in it
    python benchmarks/attribution.py FOLDER --write    # writes benchmarks/sheets/attribution.md

Of each profile: the idleness within its steps, the sum of the parts it was divided into, the part without a
cause, and, where Python stacks were recorded, the part with a line. Exits with 1 where the parts do not add
up to the whole.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import _sheet

from gapless.analyze.profile.building import of_file
from gapless.errors import UnreadableInput
from gapless.model import Profile


@dataclass(frozen=True)
class Measured:
    """One profile: nanoseconds of idleness, of all its parts together, without a cause, with a line."""

    name: str
    idle: int
    parts: int
    unexplained: int
    placed: int
    stacks: bool
    device_rows: int
    largest: str

    @property
    def unknown(self) -> float:
        """The share without a cause."""
        return self.unexplained / self.parts if self.parts else 0.0


def measure(path: Path) -> Measured | None:
    """Attributes one profile; None where the GPU is never idle in it, or not seen at all."""
    try:
        found = of_file(str(path), priced=False)
    except UnreadableInput:
        return None
    if not found.idle:
        return None
    causes: Counter[str] = Counter()
    for cost in found.costs:
        causes[cost.cause] += cost.idle
    return Measured(
        path.name,
        found.idle,
        sum(causes.values()),
        causes["unknown"],
        sum(cost.idle for cost in found.costs if cost.site.stack),
        any(cost.site.stack for cost in found.costs),
        operations(found),
        causes.most_common(1)[0][0],
    )


def operations(found: Profile) -> int:
    """Kernels and copies on the device."""
    return sum(kernel.calls for kernel in found.kernels)


def short(name: str) -> str:
    """The name without its extension, its middle left out."""
    bare = re.sub(r"\.(pt\.trace\.)?json(\.gz)?$", "", name)
    return bare if len(bare) <= 48 else f"{bare[:30]}…{bare[-16:]}"


def sheet(found: list[Measured], folder: str) -> str:
    """The whole sheet."""
    method = (
        "each stretch in which the GPU idles within the profile's steps is laid to a cause and a place, as "
        "docs/trace.md defines them; what has no cause, and what has a line, is summed up"
    )
    command = f"python benchmarks/attribution.py {folder} --write"
    idle = sum(one.parts for one in found)
    unknown = sum(one.unexplained for one in found)
    lined = [one for one in found if one.stacks]
    lines = sum(one.placed for one in lined) / max(sum(one.parts for one in lined), 1)
    exact = sum(one.idle == one.parts for one in found)
    text = _sheet.header("Idleness of real profiles, laid to causes and lines", command, method)
    text += (
        f"- the parts add up to the idleness, to the nanosecond: {exact} of {len(found)}\n"
        f"- without a cause: {unknown / max(idle, 1):.1%} of {idle / 1e9:.2f} s in all, "
        f"{statistics.median(one.unknown for one in found):.2%} of a profile in the median\n"
        f"- with a line, where stacks were recorded ({len(lined)} profiles): {lines:.0%} of their idleness, "
        f"{statistics.median(one.placed / one.parts for one in lined):.0%} of a profile in the median\n\n"
    )
    columns = ["profile", "kernels", "idle ms", "without a cause", "with a line", "most of it"]
    rows: list[list[object]] = [
        [
            short(one.name),
            one.device_rows,
            f"{one.idle / 1e6:.2f}",
            f"{one.unknown:.1%}",
            f"{one.placed / one.parts:.0%}" if one.stacks else "no stacks",
            one.largest,
        ]
        for one in sorted(found, key=lambda one: -one.unknown)
    ]
    return text + _sheet.table(columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    paths = sorted(p for p in options.folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    found = [one for one in map(measure, paths) if one is not None]
    text = sheet(found, options.folder.name)
    print(text)
    if options.write:
        print(_sheet.write("attribution", text))
    return 0 if all(one.idle == one.parts for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

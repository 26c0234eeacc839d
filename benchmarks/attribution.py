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

from gapless.analyze.profile.building import profile_file
from gapless.errors import UnreadableInput
from gapless.model import Profile


@dataclass(frozen=True)
class ProfileIdleness:
    """One profile: nanoseconds of idleness, of all its parts, without a cause, with a line."""

    name: str
    idle: int
    parts: int
    unexplained: int
    with_line: int
    stacks: bool
    device_rows: int
    largest: str

    @property
    def share_unexplained(self) -> float:
        """The share of idleness without a cause."""
        return self.unexplained / self.parts if self.parts else 0.0


def measure(path: Path) -> ProfileIdleness | None:
    """Attribute one profile's idleness; None if the GPU is never idle or not recorded."""
    try:
        file_profile = profile_file(str(path), priced=False)
    except UnreadableInput:
        return None
    if not file_profile.idle:
        return None
    causes: Counter[str] = Counter()
    for cost in file_profile.costs:
        causes[cost.cause] += cost.idle
    return ProfileIdleness(
        path.name,
        file_profile.idle,
        sum(causes.values()),
        causes["unknown"],
        sum(cost.idle for cost in file_profile.costs if cost.site.stack),
        any(cost.site.stack for cost in file_profile.costs),
        operations(file_profile),
        causes.most_common(1)[0][0],
    )


def operations(file_profile: Profile) -> int:
    """Return the number of kernels and copies on the device."""
    return sum(kernel.calls for kernel in file_profile.kernels)


def shorten_name(name: str) -> str:
    """Return the file name without extension, shortened in the middle."""
    bare = re.sub(r"\.(pt\.trace\.)?json(\.gz)?$", "", name)
    return bare if len(bare) <= 48 else f"{bare[:30]}…{bare[-16:]}"


def sheet(measured: list[ProfileIdleness], folder: str) -> str:
    """Return the sheet."""
    method = (
        "each stretch in which the GPU idles within the profile's steps is laid to a cause and a place, as "
        "docs/trace.md defines them; what has no cause, and what has a line, is summed up"
    )
    command = f"python benchmarks/attribution.py {folder} --write"
    idle = sum(row.parts for row in measured)
    unknown = sum(row.unexplained for row in measured)
    lined = [row for row in measured if row.stacks]
    lines = sum(row.with_line for row in lined) / max(sum(row.parts for row in lined), 1)
    exact = sum(row.idle == row.parts for row in measured)
    text = _sheet.header("Idleness of real profiles, laid to causes and lines", command, method)
    text += (
        f"- the parts add up to the idleness, to the nanosecond: {exact} of {len(measured)}\n"
        f"- without a cause: {unknown / max(idle, 1):.1%} of {idle / 1e9:.2f} s in all, "
        f"{statistics.median(row.share_unexplained for row in measured):.2%} of a profile in the median\n"
        f"- with a line, where stacks were recorded ({len(lined)} profiles): {lines:.0%} of their idleness, "
        f"{statistics.median(row.with_line / row.parts for row in lined):.0%} of a profile in the median\n\n"
    )
    columns = ["profile", "kernels", "idle ms", "without a cause", "with a line", "most of it"]
    rows: list[list[object]] = [
        [
            shorten_name(row.name),
            row.device_rows,
            f"{row.idle / 1e6:.2f}",
            f"{row.share_unexplained:.1%}",
            f"{row.with_line / row.parts:.0%}" if row.stacks else "no stacks",
            row.largest,
        ]
        for row in sorted(measured, key=lambda row: -row.share_unexplained)
    ]
    return text + _sheet.table(columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    paths = sorted(p for p in options.folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    measured = [row for row in map(measure, paths) if row is not None]
    text = sheet(measured, options.folder.name)
    print(text)
    if options.write:
        print(_sheet.write("attribution", text))
    return 0 if all(row.idle == row.parts for row in measured) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Profiles from pairs of traces, in a process of its own: ``python -m gapless.commands._passes``.

`gapless profile` is in the script's process when it comes to reading what all ranks recorded, and processes
started from there would begin by running the script again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gapless.commands import _output
from gapless.commands._saved import nearby
from gapless.errors import UnreadableInput
from gapless.model import Profile
from gapless.model.profile import load, save


class Task(msgspec.Struct, frozen=True):
    """Which profiles to make: of `pairs` of files (times, stacks; "" for one there is not), into `output`.

    `ranks` is of how many, which a file says only where the script made a process group; `launch` names what
    launched them all, "" where not all are known to be of one.
    """

    pairs: tuple[tuple[str, str], ...]
    output: str
    ranks: int = 1
    launch: str = ""
    priced: bool = True
    quiet: bool = False


def of_pairs(task: Task) -> tuple[Profile, ...]:
    """The profiles of these files, which are saved in `output` as well; what cannot be read is said.

    Raises:
        UnreadableInput: nothing could be read.
    """
    if len(task.pairs) < 2:
        make(task)
    else:
        import subprocess

        home = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(task),
            # The user's folder may hold files with the names of modules.
            cwd=os.path.dirname(task.output),
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    if not os.path.exists(task.output):
        raise UnreadableInput("no trace could be read")
    return load(task.output)


def make(task: Task) -> None:
    """Read, and save what could be read."""
    from gapless.commands._reading import read_profiles

    Path(task.output).unlink(missing_ok=True)
    named = {times or stacks: (times, stacks) for times, stacks in task.pairs}
    one = partial(of_pair, named, task.ranks, priced=task.priced)
    profiles, failures = read_profiles(list(named), one, quiet=task.quiet)
    for failure in failures:
        _output.say(str(failure))
    if profiles:
        save([msgspec.structs.replace(one, launch=task.launch) for one in profiles], task.output)


def of_pair(
    pairs: dict[str, tuple[str, str]],
    ranks: int,
    path: str,
    progress: Callable[[int], None] | None = None,
    **wishes: Any,
) -> Profile:
    """The profile of the files that `path` names: a pair, or a trace for itself; `wishes` as for these."""
    from gapless.analyze.profile.building import profile_file
    from gapless.analyze.profile.join import profile_passes

    if path not in pairs:
        return profile_file(path, progress, **wishes)
    found = profile_passes(*pairs[path], progress, **wishes)
    if ranks == 1 or found.rank >= 0:
        return found
    number = os.path.basename(path).partition(".")[0].removeprefix("rank")
    if not number.isdigit():
        return found
    return msgspec.structs.replace(found, rank=int(number), world_size=ranks)


def joined(paths: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, str]], int]:
    """`paths` of which those that are the passes of one capture are one: what is left, the pairs by their
    first file, and how many ranks these are of.

    `gapless profile` keeps them as ``times/NAME`` and ``stacks/NAME`` of one folder.
    """
    known = set(paths)
    pairs: dict[str, tuple[str, str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        home, which = os.path.split(folder)
        other = os.path.join(home, "stacks", name)
        if which == "times" and other in known:
            pairs[path] = (path, other)
    seconds = {stacks for _, stacks in pairs.values()}
    ranks = {os.path.basename(path).partition(".")[0] for path in pairs}
    return [path for path in paths if path not in seconds], pairs, max(len(ranks), 1)


def find_pairs(files: Iterable[Path], passes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Those of `files` that exist, in pairs: a window of a rank each."""
    traces = {(path.parent.name, path.name): str(path) for path in files if path.exists()}
    names = {name for which, name in traces if which in passes}
    return tuple(
        (traces.get(("times", name), ""), traces.get(("stacks", name), "") if "stacks" in passes else "")
        for name in sorted(names, key=lambda name: (len(name), name))
    )


def source_of(folder: str) -> Callable[[str], str]:
    """What gives the text of a file that a profile names, in the process that was profiled.

    Profiles cut off the folder that a file was imported from. `folder` is where relative paths begin.
    """

    def read(file: str) -> str:
        for place in (folder, *sys.path):
            path = os.path.join(folder, place, file)
            if os.path.isfile(path):
                return nearby(path)
        return ""

    return read


if __name__ == "__main__":
    make(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))

"""Make profiles from pairs of traces in a separate process: ``python -m gapless.commands._passes``.

`gapless profile` runs in the script's process; worker processes started there would run the script again.
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
from gapless.commands._user_source import read_user_source
from gapless.errors import UnreadableInput
from gapless.model import Profile
from gapless.model.profile import load, save


class ReadTask(msgspec.Struct, frozen=True):
    """The traces to read: `pairs` of files (times, stacks; "" if missing); the profiles go to `output`.

    `ranks` is their number, which a trace says only if the script made a process group; `launch` identifies
    the launch of all ranks, "" if some may belong to another.
    """

    pairs: tuple[tuple[str, str], ...]
    output: str
    ranks: int = 1
    launch: str = ""
    priced: bool = True
    quiet: bool = False


def profiles_of_pairs(task: ReadTask) -> tuple[Profile, ...]:
    """Return the profiles of these traces and save them in `output`; unreadable ones are reported.

    Raises:
        UnreadableInput: no trace could be read.
    """
    if len(task.pairs) < 2:
        make_profiles(task)
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


def make_profiles(task: ReadTask) -> None:
    """Read the traces of `task` and save the profiles of those that could be read."""
    from gapless.commands._reading import read_profiles

    Path(task.output).unlink(missing_ok=True)
    named = {times or stacks: (times, stacks) for times, stacks in task.pairs}
    read_pair = partial(profile_of_pair, named, task.ranks, priced=task.priced)
    profiles, failures = read_profiles(list(named), read_pair, quiet=task.quiet)
    for failure in failures:
        _output.say(str(failure))
    if profiles:
        save([msgspec.structs.replace(profile, launch=task.launch) for profile in profiles], task.output)


def profile_of_pair(
    pairs: dict[str, tuple[str, str]],
    ranks: int,
    path: str,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of the pair of traces at `path`, or of that trace alone; `options` go to the
    reader."""
    from gapless.analyze.profile.building import profile_file
    from gapless.analyze.profile.join import profile_passes

    if path not in pairs:
        return profile_file(path, progress, **options)
    profile = profile_passes(*pairs[path], progress, **options)
    if ranks == 1 or profile.rank >= 0:
        return profile
    number = os.path.basename(path).partition(".")[0].removeprefix("rank")
    if not number.isdigit():
        return profile
    return msgspec.structs.replace(profile, rank=int(number), world_size=ranks)


def join_passes(paths: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, str]], int]:
    """Merge the passes of one capture: return the remaining paths, the pairs by their first file, and the
    number of ranks in the pairs.

    `gapless profile` saves passes as ``times/NAME`` and ``stacks/NAME`` in one folder.
    """
    all_paths = set(paths)
    pairs: dict[str, tuple[str, str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        home, which = os.path.split(folder)
        other = os.path.join(home, "stacks", name)
        if which == "times" and other in all_paths:
            pairs[path] = (path, other)
    seconds = {stacks for _, stacks in pairs.values()}
    ranks = {os.path.basename(path).partition(".")[0] for path in pairs}
    return [path for path in paths if path not in seconds], pairs, max(len(ranks), 1)


def find_pairs(files: Iterable[Path], passes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pair the existing `files` by name: one pair for each recorded window of a rank."""
    traces = {(path.parent.name, path.name): str(path) for path in files if path.exists()}
    names = {name for which, name in traces if which in passes}
    return tuple(
        (traces.get(("times", name), ""), traces.get(("stacks", name), "") if "stacks" in passes else "")
        for name in sorted(names, key=lambda name: (len(name), name))
    )


def source_reader(folder: str) -> Callable[[str], str]:
    """Return a function that reads a source file named in a profile, in the process that was profiled.

    Profiles cut off the folder that a file was imported from. Relative paths start at `folder`.
    """

    def read(file: str) -> str:
        for place in (folder, *sys.path):
            path = os.path.join(folder, place, file)
            if os.path.isfile(path):
                return read_user_source(path)
        return ""

    return read


if __name__ == "__main__":
    make_profiles(msgspec.json.decode(sys.stdin.buffer.read(), type=ReadTask))

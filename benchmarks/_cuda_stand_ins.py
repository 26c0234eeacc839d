"""CUDA's libraries for a torch that was built with CUDA, on a machine without a GPU: all names, no work.

Such a torch cannot be imported without the gigabytes of libraries it was linked with, and without a GPU it
calls none of them. These have the same names, and say what NVIDIA's say where there is no driver. Needs gcc
and binutils.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

_FAMILY = re.compile(r"lib(cu|nv|nccl)")
_DRIVER = "libcuda.so.1"
"""It is not to be had without a GPU, and what needs it is loaded where there is one."""
_NO_DRIVER = 35
"""``cudaErrorInsufficientDriver``: what the runtime answers where no driver is."""

_SPECIAL = {
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *version) { *version = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *version) { *version = 0; return 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { return "no driver"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "no driver"; }',
}
_HANDLES = ("__cuda", "nvtx")
"""What these begin with is called while libraries are loaded, and answers nothing."""


def provide(lib: Path) -> list[str]:
    """Write a library for each of CUDA's that those in `lib` (``torch/lib``) ask for; gives their names.

    Raises:
        subprocess.CalledProcessError: a compiler or ``readelf`` is missing, or fails.
    """
    asked: dict[str, set[str]] = {}
    versions: dict[str, set[str]] = {}
    unbound: set[str] = set()
    defined: set[str] = set()
    for library in sorted(lib.glob("*.so*")):
        for name in _needed(library):
            if _FAMILY.match(name) and name != _DRIVER and not any(lib.glob(f"{name}*")):
                asked.setdefault(name, set())
        homes = _homes(library)
        for symbol, version, there in _symbols(library):
            if there:
                defined.add(symbol)
            elif version in homes:
                asked.setdefault(homes[version], set()).add(symbol)
                versions.setdefault(homes[version], set()).add(version)
            elif not version:
                unbound.add(symbol)
    names = sorted(asked)
    if names:  # symbols without a version may be in any of them
        asked[names[0]] |= {one for one in unbound - defined if re.match(r"(cu|nv|nccl|__cuda)", one)}
    for name in names:
        _build(lib / name, asked[name], versions.get(name, ()))
    return names


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-d", str(library)))


def _homes(library: Path) -> dict[str, str]:
    """Versions of symbols that CUDA's libraries have, and the library that is to have each."""
    homes = {}
    home = ""
    for line in _run("readelf", "-W", "-V", str(library)).splitlines():
        if found := re.search(r"File: (\S+)", line):
            home = found[1]
        elif (found := re.search(r"Name: (\S+)", line)) and _FAMILY.match(home) and home != _DRIVER:
            homes[found[1]] = home
    return homes


def _symbols(library: Path) -> Iterable[tuple[str, str, bool]]:
    """Dynamic symbols: name, version it is asked in, and whether the library has it itself."""
    for line in _run("readelf", "-W", "--dyn-syms", str(library)).splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].endswith(":"):
            continue
        name, _, version = words[7].partition("@")
        yield name, version.lstrip("@"), words[6] != "UND"


def _build(path: Path, symbols: set[str], versions: Iterable[str]) -> None:
    lines = [_SPECIAL.get(one) or _function(one) for one in sorted(symbols)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.c")
        source.write_text("\n".join([*lines, ""]))
        words = [
            "gcc",
            "-shared",
            "-fPIC",
            "-w",
            "-O0",
            f"-Wl,-soname,{path.name}",
            "-o",
            str(path),
            str(source),
        ]
        if versions:
            script = Path(folder, "versions")
            script.write_text("".join(f"{one} {{ global: *; }};\n" for one in versions))
            words.append(f"-Wl,--version-script={script}")
        _run(*words)


def _function(name: str) -> str:
    return f"long {name}() {{ return {0 if name.startswith(_HANDLES) else _NO_DRIVER}; }}"

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
"""Not installable without a GPU, and loaded only where there is one."""
_NO_DRIVER = 35
"""``cudaErrorInsufficientDriver``: the runtime's answer without a driver."""

_SPECIAL = {
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *version) { *version = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *version) { *version = 0; return 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { return "no driver"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "no driver"; }',
}
_HANDLES = ("__cuda", "nvtx")
"""Prefixes of functions called while libraries load; they return 0."""


def provide(lib: Path) -> list[str]:
    """Write a stand-in for each CUDA library that those in `lib` (``torch/lib``) need; return their names.

    Raises:
    subprocess.CalledProcessError: a compiler or ``readelf`` is missing, or fails.
    """
    symbols_of: dict[str, set[str]] = {}
    versions: dict[str, set[str]] = {}
    unbound: set[str] = set()
    defined: set[str] = set()
    for library in sorted(lib.glob("*.so*")):
        for name in _needed_libraries(library):
            if _FAMILY.match(name) and name != _DRIVER and not any(lib.glob(f"{name}*")):
                symbols_of.setdefault(name, set())
        homes = _library_of_version(library)
        for symbol, version, is_defined in _symbols(library):
            if is_defined:
                defined.add(symbol)
            elif version in homes:
                symbols_of.setdefault(homes[version], set()).add(symbol)
                versions.setdefault(homes[version], set()).add(version)
            elif not version:
                unbound.add(symbol)
    names = sorted(symbols_of)
    if names:  # symbols without a version may be in any of them
        symbols_of[names[0]] |= {
            symbol for symbol in unbound - defined if re.match(r"(cu|nv|nccl|__cuda)", symbol)
        }
    for name in names:
        _build(lib / name, symbols_of[name], versions.get(name, ()))
    return names


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _needed_libraries(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-d", str(library)))


def _library_of_version(library: Path) -> dict[str, str]:
    """Return the version names of CUDA's symbols, each with the library to define it."""
    homes = {}
    home = ""
    for line in _run("readelf", "-W", "-V", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            home = match[1]
        elif (match := re.search(r"Name: (\S+)", line)) and _FAMILY.match(home) and home != _DRIVER:
            homes[match[1]] = home
    return homes


def _symbols(library: Path) -> Iterable[tuple[str, str, bool]]:
    """Yield each dynamic symbol: name, version, and whether the library defines it."""
    for line in _run("readelf", "-W", "--dyn-syms", str(library)).splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].endswith(":"):
            continue
        name, _, version = words[7].partition("@")
        yield name, version.lstrip("@"), words[6] != "UND"


def _build(path: Path, symbols: set[str], versions: Iterable[str]) -> None:
    lines = [_SPECIAL.get(symbol) or _stub_source(symbol) for symbol in sorted(symbols)]
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
            script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
            words.append(f"-Wl,--version-script={script}")
        _run(*words)


def _stub_source(name: str) -> str:
    return f"long {name}() {{ return {0 if name.startswith(_HANDLES) else _NO_DRIVER}; }}"

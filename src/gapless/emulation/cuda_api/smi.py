"""Provide an ``nvidia-smi`` that reports the emulated GPUs, for scripts that log or choose their GPU."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from gapless.emulation.support.patches import Patches

_NAME = "nvidia-smi"
_ANSWERS = """
import json, os, sys

given = json.load(open(os.path.join(os.path.dirname(__file__), "gpus.json")))
words = sys.argv[1:]
options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
for name in ("-i", "--id"):
    if name in words[:-1]:
        options["--id"] = words[words.index(name) + 1]
if options.get("--id"):
    wanted = options["--id"].split(",")
    given = [gpu for gpu in given if gpu["index"] in wanted or gpu["uuid"] in wanted]
fields = options.get("--query-gpu", "").replace(" ", "").split(",")
if "-L" in words or "--list-gpus" in words:
    for gpu in given:
        print("GPU {index}: {name} (UUID: {uuid})".format(**gpu))
elif fields[0]:
    form = options.get("--format", "csv").split(",")
    kinds = {"memory.total": " [MiB]", "memory.used": " [MiB]", "memory.free": " [MiB]"}
    units = {name: " [%]" if "utilization." in name else kinds.get(name, "") for name in fields}
    if "noheader" not in form:
        print(", ".join(name + ("" if "nounits" in form else units[name]) for name in fields))
    for gpu in given:
        told = [gpu.get(name, "[N/A]") for name in fields]
        if "nounits" not in form:
            told = [one + units[name].translate({91: None, 93: None}) for one, name in zip(told, fields)]
        print(", ".join(told))
else:
    print("NVIDIA-SMI emulated by Gapless")
    for gpu in given:
        used, total = gpu["memory.used"], gpu["memory.total"]
        print("| " + gpu["index"] + "  " + gpu["name"] + " | " + used + "MiB / " + total + "MiB |")
"""


def install(patches: Patches) -> None:
    """Let processes that the script starts find an ``nvidia-smi``, if the machine has none."""
    if shutil.which(_NAME) or sys.platform == "win32":
        return
    stands_in = _FakeProgram()
    begin, system = subprocess.Popen.__init__, os.system

    @functools.wraps(begin)
    def popen(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        if _names_program(args) and len(rest) <= 9:  # the environment is the eleventh argument
            kwargs["env"] = stands_in.environment(kwargs.get("env"))
        begin(self, args, *rest, **kwargs)

    @functools.wraps(system)
    def run(command: Any) -> int:
        if not _names_program(command):
            return system(command)
        before = os.environ.get("PATH", "")
        os.environ["PATH"] = stands_in.environment(None)["PATH"]
        try:
            return system(command)
        finally:
            os.environ["PATH"] = before

    patches.set(subprocess.Popen, "__init__", popen)
    patches.set(os, "system", run)


def _names_program(command: Any) -> bool:
    """Whether a command or shell line names ``nvidia-smi``."""
    words = command if isinstance(command, (list, tuple)) else [command]
    return any(_NAME in os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike)))


class _FakeProgram:
    """The stand-in program, written to a temporary folder at first use."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def environment(self, variables: Any) -> dict[str, str]:
        """Return `variables` (default: this process's) with the program at the end of the path."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gapless-smi-")
            folder = Path(self._folder.name)
            (folder / "answers.py").write_text(_ANSWERS)
            program = folder / _NAME
            command = shlex.join([sys.executable, "-S", "-E", str(folder / "answers.py")])
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)
        (Path(self._folder.name) / "gpus.json").write_text(json.dumps(_gpus()))
        result = dict(os.environ if variables is None else variables)
        result["PATH"] = os.pathsep.join(filter(None, (result.get("PATH", ""), self._folder.name)))
        return result


def _gpus() -> list[dict[str, str]]:
    """The fields of each emulated GPU, by the names of ``--query-gpu``."""
    gpus = []
    for index in range(torch.cuda.device_count()):
        of: Any = torch.cuda.get_device_properties(index)
        total, used = of.total_memory >> 20, torch.cuda.memory_reserved(index) >> 20
        gpus.append(
            {
                "index": str(index), "name": of.name, "gpu_name": of.name,
                "count": str(torch.cuda.device_count()),
                "uuid": f"GPU-{of.uuid}", "gpu_uuid": f"GPU-{of.uuid}", "driver_version": "[N/A]",
                "compute_cap": f"{of.major}.{of.minor}", "memory.total": str(total), "memory.used": str(used),
                "memory.free": str(total - used), "utilization.gpu": "0", "utilization.memory": "0",
            }
        )  # fmt: skip
    return gpus

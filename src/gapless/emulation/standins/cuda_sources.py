"""Kernels that a script compiles from CUDA sources (``torch.cuda._compile_kernel``): launched, and not run.

What a kernel writes is told by its signature: pointers to what is not const.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from gapless.emulation.core.core import Core
from gapless.emulation.standins.given import given_for
from gapless.emulation.standins.launch import unseen
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST, PINNED
from gapless.torch_internals import compile_kernel, place

_ASSIGNED = r"\b{}\s*(\[(?:[^\[\]]|\[[^\[\]]*\])*\])\s*=(?!=)"
"""``name[...] =``, with brackets in the brackets once."""
_NO_MORE = 48 << 10
"""Bytes of shared memory that a kernel has without asking for more."""


def install(core: Core, patches: Patches) -> None:
    """Compile nothing, and keep the source."""
    if compile_kernel is None:
        return

    @functools.wraps(compile_kernel)
    def kept(kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> SourceKernel:
        return SourceKernel(core, kernel_source, kernel_name)

    patches.set(*place("compile_kernel"), kept)


class SourceKernel:
    """One kernel, called as torch's own ``_CudaKernel`` is.

    Raises:
        ValueError: there is no kernel of that name in the source.
    """

    def __init__(self, core: Core, source: str, name: str) -> None:
        self.core = core
        self.name = re.sub(r"<.*", "", name).rpartition("::")[2]
        plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
        found = re.search(rf"__global__[^;{{}}]*?\b{re.escape(self.name)}\s*\(", plain)
        if found is None:
            raise ValueError(f"The CUDA source has no `__global__` function {self.name}.")
        given, rest = _until_closed(plain[found.end() :], "(", ")")
        body, _ = _until_closed(rest.partition("{")[2], "{", "}")
        self._constant = [_is_constant(one) for one in _split(given)]
        self._assigned = [_only_assigned(_name(one), body) for one in _split(given)]
        self._shared = 0

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Let launches ask for so many bytes of shared memory.

        Raises:
            RuntimeError: the GPU has not as many.
        """
        properties: Any = torch.cuda.get_device_properties()
        most = properties.shared_memory_per_block_optin
        if shared_mem_bytes > most:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({most} bytes). "
                "Consider reducing block size or shared memory usage."
            )
        self._shared = shared_mem_bytes

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: Any = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch it.

        Raises:
            ValueError, TypeError, RuntimeError: as torch's own.
        """
        given = list(args or ())
        self._check(given, shared_mem)
        run = functools.partial(self._launch, stream)
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        self.core.graphs.launch(f"cuda::{self.name}", run, given, tensors, lambda: run(*given))

    def _check(self, given: list[Any], shared_mem: int) -> None:
        for one in given:
            if isinstance(one, torch.Tensor):
                if self.core.device_of(one) < 0 and self.core.placement.state_of(one) != PINNED:
                    raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
            elif not isinstance(one, (int, float)):
                raise TypeError(f"Unsupported argument type: {type(one)}")
        if shared_mem >= _NO_MORE and shared_mem > self._shared:
            known = f"only {self._shared} bytes configured" if self._shared else "not configured"
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but {known}. "
                "Call kernel.set_shared_memory_config(shared_mem) after compilation and before launching the "
                "kernel."
            )

    def _launch(self, stream: Any, *given: Any) -> None:
        at = [place for place, one in enumerate(given) if isinstance(one, torch.Tensor)]
        written = [given[place] for place in at if not _of(self._constant, place)]
        with torch.cuda.stream(stream):
            self._count([given[place] for place in at], written)
        instead = given_for(f"cuda::{self.name}")
        if instead is not None:
            with unseen():
                instead.function(*given)
            return
        self.core.note(
            f"the CUDA kernel {self.name} was launched but not run, because its source cannot be compiled "
            "here: its outputs are zeros, or unchanged where it also reads them, so values that depend on "
            f'it are not known; @gapless.standin("cuda::{self.name}") can compute it'
        )
        if self.core.values is not None:
            self.core.values.written(self.name, written)
            return
        with unseen(), torch.no_grad():
            for place in at:
                if not _of(self._constant, place) and _of(self._assigned, place):
                    given[place].detach().zero_()

    def _count(self, tensors: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        core = self.core
        name = f"cuda::{self.name}"
        if core.placement.memory is not None:
            core.placement.memory.operator = name
            core.placement.memory.uses(tensors)
        if core.recorder.programme is not None and core.enabled:
            core.recorder.programme.launched(name, tensors, written)
        if core.races.full:
            core.races.record_launch(name, tensors, written, max(map(core.device_of, tensors), default=HOST))


def _of(known: list[bool], place: int) -> bool:
    return place < len(known) and known[place]


def _until_closed(text: str, opens: str, closes: str) -> tuple[str, str]:
    """What stands before the bracket that closes, and what behind it."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == opens) - (letter == closes)
        if not depth:
            return text[:at], text[at + 1 :]
    return text, ""


def _split(parameters: str) -> list[str]:
    """Parameters, at the commas between them and not within brackets."""
    found, depth = [""], 0
    for letter in parameters:
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def _name(parameter: str) -> str:
    words = re.findall(r"\w+", parameter.partition("=")[0].partition("[")[0])
    return words[-1] if words else ""


def _is_constant(parameter: str) -> bool:
    """Whether what it points to is const: ``const float* x``, ``float const* x``, not ``float* const x``."""
    return bool(re.search(r"\bconst\b", parameter.partition("*")[0]))


def _only_assigned(name: str, body: str) -> bool:
    """Whether each time that `name` occurs, an element of it is assigned to."""
    uses = len(re.findall(rf"\b{re.escape(name)}\b", body))
    return bool(name) and uses > 0 and uses == len(re.findall(_ASSIGNED.format(re.escape(name)), body))

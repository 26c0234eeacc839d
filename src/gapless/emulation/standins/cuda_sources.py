"""Kernels that a script compiles from CUDA sources (``torch.cuda._compile_kernel``): launched, but not run.

A kernel is taken to write what its non-const pointer parameters point to.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.standins.given import find_replacement
from gapless.emulation.standins.launch import without_emulation
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST, PINNED
from gapless.torch_internals import compile_kernel, place

_ASSIGNMENT_PATTERN = r"\b{}\s*(\[(?:[^\[\]]|\[[^\[\]]*\])*\])\s*=(?!=)"
"""``name[...] =``, with brackets nested one level."""
_DEFAULT_SHARED_BYTES = 48 << 10
"""Bytes of dynamic shared memory that CUDA gives a kernel without opting in."""


def install(core: EmulationCore, patches: Patches) -> None:
    """Replace torch's compilation of a kernel by a `SourceKernel` that keeps the source."""
    if compile_kernel is None:
        return

    @functools.wraps(compile_kernel)
    def compile_nothing(kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> SourceKernel:
        return SourceKernel(core, kernel_source, kernel_name)

    patches.set(*place("compile_kernel"), compile_nothing)


class SourceKernel:
    """One kernel, called as torch's own ``_CudaKernel`` is.

    Raises:
        ValueError: there is no kernel of that name in the source.
    """

    def __init__(self, core: EmulationCore, source: str, name: str) -> None:
        self.core = core
        self.name = re.sub(r"<.*", "", name).rpartition("::")[2]
        plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
        match = re.search(rf"__global__[^;{{}}]*?\b{re.escape(self.name)}\s*\(", plain)
        if match is None:
            raise ValueError(f"The CUDA source has no `__global__` function {self.name}.")
        parameters, rest = _split_at_bracket(plain[match.end() :], "(", ")")
        body, _ = _split_at_bracket(rest.partition("{")[2], "{", "}")
        self._constant = [_is_pointer_to_const(parameter) for parameter in _split_parameters(parameters)]
        self._assigned = [
            _is_only_assigned(_parameter_name(parameter), body) for parameter in _split_parameters(parameters)
        ]
        self._shared = 0

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Allow launches up to so many bytes of shared memory.

        Raises:
            RuntimeError: the GPU has less.
        """
        properties: Any = torch.cuda.get_device_properties()
        limit = properties.shared_memory_per_block_optin
        if shared_mem_bytes > limit:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({limit} bytes). "
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
        """Launch the kernel.

        Raises:
            ValueError, TypeError, RuntimeError: as torch's own.
        """
        arguments = list(args or ())
        self._check(arguments, shared_mem)
        run = functools.partial(self._launch, stream)
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        self.core.graphs.launch(f"cuda::{self.name}", run, arguments, tensors, lambda: run(*arguments))

    def _check(self, arguments: list[Any], shared_mem: int) -> None:
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                if self.core.device_of(argument) < 0 and self.core.placement.state_of(argument) != PINNED:
                    raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
            elif not isinstance(argument, (int, float)):
                raise TypeError(f"Unsupported argument type: {type(argument)}")
        if shared_mem >= _DEFAULT_SHARED_BYTES and shared_mem > self._shared:
            configured = f"only {self._shared} bytes configured" if self._shared else "not configured"
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but {configured}. "
                "Call kernel.set_shared_memory_config(shared_mem) after compilation and before launching the "
                "kernel."
            )

    def _launch(self, stream: Any, *arguments: Any) -> None:
        at = [place for place, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
        written = [arguments[place] for place in at if not _flag_at(self._constant, place)]
        with torch.cuda.stream(stream):
            self._record_launch([arguments[place] for place in at], written)
        replacement = find_replacement(f"cuda::{self.name}")
        if replacement is not None:
            with without_emulation():
                replacement.function(*arguments)
            return
        self.core.note(
            f"the CUDA kernel {self.name} was launched but not run, because its source cannot be compiled "
            "here: its outputs are zeros, or unchanged where it also reads them, so values that depend on "
            f'it are not known; @gapless.standin("cuda::{self.name}") can compute it'
        )
        if self.core.values is not None:
            self.core.values.mark_written(self.name, written)
            return
        with without_emulation(), torch.no_grad():
            for place in at:
                if not _flag_at(self._constant, place) and _flag_at(self._assigned, place):
                    arguments[place].detach().zero_()

    def _record_launch(self, tensors: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        core = self.core
        name = f"cuda::{self.name}"
        if core.placement.memory is not None:
            core.placement.memory.operator = name
            core.placement.memory.record_use(tensors)
        if core.recorder.programme is not None and core.enabled:
            core.recorder.programme.record_kernel(name, tensors, written)
        if core.races.full:
            core.races.record_launch(name, tensors, written, max(map(core.device_of, tensors), default=HOST))


def _flag_at(flags: list[bool], place: int) -> bool:
    return place < len(flags) and flags[place]


def _split_at_bracket(text: str, opens: str, closes: str) -> tuple[str, str]:
    """Return the text before and after the bracket that closes the one just opened."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == opens) - (letter == closes)
        if not depth:
            return text[:at], text[at + 1 :]
    return text, ""


def _split_parameters(parameters: str) -> list[str]:
    """Split a parameter list at its commas outside brackets."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _parameter_name(parameter: str) -> str:
    words = re.findall(r"\w+", parameter.partition("=")[0].partition("[")[0])
    return words[-1] if words else ""


def _is_pointer_to_const(parameter: str) -> bool:
    """Whether the pointee is const: ``const float* x``, ``float const* x``, not ``float* const x``."""
    return bool(re.search(r"\bconst\b", parameter.partition("*")[0]))


def _is_only_assigned(name: str, body: str) -> bool:
    """Whether every occurrence of `name` in `body` assigns to an element of it."""
    uses = len(re.findall(rf"\b{re.escape(name)}\b", body))
    return (
        bool(name) and uses > 0 and uses == len(re.findall(_ASSIGNMENT_PATTERN.format(re.escape(name)), body))
    )

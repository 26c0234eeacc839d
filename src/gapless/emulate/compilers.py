"""Compilers under emulation: `torch.compile` runs eagerly, exporting is refused, fakes stay on the CPU.

Generated code would need the GPU (and its compiler), and it makes the host wait where eager code does, so
nothing about waits is lost by running what was to be compiled as it stands.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import torch

from gapless.emulate import foreign, torchscript
from gapless.emulate.deferred import Part, defer
from gapless.emulate.imports import when_imported
from gapless.emulate.patches import Patches
from gapless.emulate.refusals import on_device, refuse
from gapless.torch_internals import path

Note = Callable[[str], None]

_EAGERLY = "torch.compile ran eagerly: what would be compiled runs as it stands, and waits at the same places"
_FAKES = 'fake tensors asked for on "cuda" were made on the CPU: there is no CUDA device to stand behind them'
_EXPORTERS = (
    ("torch.export", "export"),
    ("torch.export", "export_for_training"),
    ("torch.export", "draft_export"),
    ("torch.onnx", "export"),
    ("torch.onnx", "dynamo_export"),
    (path("inductor"), "aot_compile"),
    (path("inductor"), "aoti_compile_and_package"),
)


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return _as_it_is if function is None else function


_UNCOMPILED = {
    "graph_break": lambda *_, **__: None,
    "disable": _as_it_is,
    "is_compiling": lambda: False,
    # Asked for at each checkpoint, and passed on to what is compiled.
    "config": Part(f"{path('dynamo')}.config", {"error_on_nested_fx_trace": True}),
}
"""What eager code asks of the compiler, and is told where nothing is compiled."""


def install(note: Note, patches: Patches, lasting: bool = False) -> None:
    """Make every way of compiling, exporting or launching foreign kernels run eagerly or refuse clearly.

    `note` takes remarks for the report (the same one any number of times), `patches` what is replaced. Where
    that is `lasting`, to the end of the process, torch's compilers are changed when the script imports them.
    Else they are imported before anything is replaced, since they keep functions that they find then.
    """
    changes: list[tuple[str, Callable[[ModuleType], None]]] = [
        (path("dynamo"), partial(_run_eagerly, note, patches)),
        ("torch.nn.attention.flex_attention", partial(_flex_attention, patches)),
        (path("fake_tensors"), partial(_fakes_on_the_cpu, note, patches)),
        *((module, partial(_refuse_export, name, patches)) for module, name in _EXPORTERS),
    ]
    for name, change in changes:
        if not lasting:
            with suppress(ImportError):  # before torch 2.5 not all are there
                importlib.import_module(name)
        when_imported(name, change, patches)
    if lasting:
        defer(path("dynamo"), _UNCOMPILED, patches)
    # It separates steps inside compiled CUDA graphs, and loads the whole code generator to say so.
    patches.set_everywhere(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    torchscript.install(note, patches)
    foreign.install(patches)


# -- torch.compile -------------------------------------------------------------------------------------


def _run_eagerly(note: Note, patches: Patches, dynamo: Any) -> None:
    """Replace what `torch.compile` calls, so that its own checks of options, and wrappers of it, stay.

    What was compiled before the emulation began is told to run eagerly, too.
    """
    frames = sys.modules[path("dynamo_frames")]

    def optimize(*_: Any, disable: bool = False, **__: Any) -> Callable[[Any], Any]:
        if disable or _switched_off(dynamo):
            return lambda target: target
        # Compiling anything switches the default checks of all distributions off, and their waits with them.
        patches.set(torch.distributions.Distribution, "_validate_args", False)
        return lambda target: _eager(target, note, frames)

    patches.set_everywhere(dynamo, "optimize", optimize)
    patches.set_everywhere(dynamo, "optimize_assert", optimize)
    if hasattr(frames, "DynamoStance"):
        patches.set(frames, "_stance", frames.DynamoStance(stance="force_eager"))


def _switched_off(dynamo: Any) -> bool:
    return bool(dynamo.config.disable) or os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def _eager(target: Any, note: Note, frames: Any) -> Any:
    """What `torch.compile` returns for `target`: the same kind of object, running eagerly.

    Modules become an `OptimizedModule` as ever, with ``_orig_mod`` and its prefix in the state dict.
    """
    inner = frames.innermost_fn(target)
    if isinstance(inner, torch.nn.Module):
        note(_EAGERLY)
        return frames.DisableContext()(inner)
    if isinstance(inner, type):
        note(_EAGERLY)
        return inner
    if not callable(inner):
        raise AssertionError(f"A callable function is expected, but {type(inner)} is provided.")
    said = False

    @functools.wraps(inner)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:  # libraries decorate much that no script calls
            said = True
            note(_EAGERLY)
        return inner(*args, **kwargs)

    # How torch finds what is inside, when a compiled function is compiled again or disabled.
    compiled._torchdynamo_orig_callable = inner  # type: ignore[attr-defined]
    compiled._torchdynamo_wrapper_id = id(compiled)  # type: ignore[attr-defined]
    return compiled


def _flex_attention(patches: Patches, public: Any) -> None:
    """Run flex attention as the plain operators it stands for.

    Its own eager path compiles for the backward pass, and knows nothing of dispatch modes.
    """
    inner = importlib.import_module(path("flex_attention_operator"))
    if not hasattr(public, "flex_attention_hop") or not hasattr(inner, "sdpa_dense"):
        return

    def flex_attention_hop(*args: Any, **kwargs: Any) -> Any:
        return inner.sdpa_dense(*args, **kwargs)

    patches.set(public, "flex_attention_hop", flex_attention_hop)
    shown = getattr(public, "_WARNINGS_SHOWN", None)
    if shown is not None:
        # The advice to compile would reach people who do.
        patches.set(public, "_WARNINGS_SHOWN", {*shown, "flex_attention_performance"})


# -- fakes and exporting -------------------------------------------------------------------------------


def _fakes_on_the_cpu(note: Note, patches: Patches, module: Any) -> None:
    """Make fake tensors asked for on CUDA CPU fakes.

    A fake CUDA tensor that takes part in autograd ends the process where there is no CUDA device, and that
    cannot be caught.
    """
    fake = module.FakeTensor
    make = fake.__new__
    cpu = torch.device("cpu")

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_is_cuda(value) for value in (*args, *kwargs.values())):
            note(_FAKES)
            args = tuple(cpu if _is_cuda(value) else value for value in args)
            kwargs = {name: cpu if _is_cuda(value) else value for name, value in kwargs.items()}
        return make(cls, *args, **kwargs)

    patches.set(fake, "__new__", staticmethod(new))


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _refuse_export(name: str, patches: Patches, owner: ModuleType) -> None:
    """Refuse to export what lies on the device; what lies on the host is exported as ever."""
    original = vars(owner).get(name)
    if original is None:
        return

    @functools.wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        if on_device((*args, *kwargs.values())):
            raise refuse(
                f"{owner.__name__}.{name} of a model on the GPU", "Export it from the CPU: model.cpu() first."
            )
        return original(*args, **kwargs)

    patches.set(owner, name, export)

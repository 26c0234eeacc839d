"""Compilers under emulation: `torch.compile` runs eagerly, exporting is refused, fakes stay on the CPU.

Generated code would need the GPU (and its compiler). It makes the host wait where eager code does, so running
the original code finds the same waits.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from gapless.emulation.compiled import foreign, torchscript
from gapless.emulation.compiled.compiled_calls import CompiledCalls, Settings
from gapless.emulation.compiled.deferred import DeferredPart, defer
from gapless.emulation.compiled.disabled import disable
from gapless.emulation.dispatch import higher_order
from gapless.emulation.recording.programme import is_compiled
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import on_device, refuse
from gapless.torch_internals import path

Note = Callable[[str], None]

_EAGER_NOTE = (
    "torch.compile ran eagerly: code that would be compiled runs as it is, and syncs at the same places"
)
_FAKES_NOTE = 'fake tensors requested on "cuda" were created on the CPU, because there is no CUDA device'
_MAKERS_OF_FAKES = (
    "gapless.", "torch._compile", "torch._decomp", "torch._dynamo.eval_frame", "torch._library",
    "torch._meta", "torch._ops", "torch._prims", "torch._refs", "torch._subclasses", "torch._tensor",
    "torch.overrides", "torch.utils",
)  # fmt: skip
"""Modules between the code that requests a fake tensor and the constructor."""
_EXPORTERS = (
    ("torch.export", "export"),
    ("torch.export", "export_for_training"),
    ("torch.export", "draft_export"),
    ("torch.onnx", "export"),
    ("torch.onnx", "dynamo_export"),
    (path("inductor"), "aot_compile"),
    (path("inductor"), "aoti_compile_and_package"),
)


_ANSWERS_UNCOMPILED = {
    "graph_break": lambda *_, **__: None,
    "disable": disable,
    "is_compiling": lambda: False,
    # Read at each checkpoint, and passed on to compiled code.
    "config": DeferredPart(f"{path('dynamo')}.config", {"error_on_nested_fx_trace": True}),
}
"""What eager code reads from the compiler's module, with the values that hold if nothing is compiled."""


def install(note: Note, patches: Patches, lasting: bool = False, calls: CompiledCalls | None = None) -> None:
    """Make every way of compiling, exporting or launching foreign kernels run eagerly or refuse clearly.

    `calls` records what is compiled and how it is called; `note` receives remarks for the report (repetitions
    allowed); `patches` records replacements. If `lasting` (to the end of the process), torch's compilers are
    patched when the script imports them; else they are imported first, as they keep references to functions
    they find at import.
    """
    calls = calls or CompiledCalls(lambda tensor: -1)
    calls.install(patches)
    changes: list[tuple[str, Callable[[ModuleType], None]]] = [
        (path("dynamo"), partial(_run_eagerly, note, calls, patches)),
        ("torch.nn.attention.flex_attention", partial(_flex_attention, patches)),
        (path("fake_tensors"), partial(fakes_on_the_cpu, note, patches)),
        *((module, partial(_refuse_export, name, patches)) for module, name in _EXPORTERS),
    ]
    for name, change in changes:
        if not lasting:
            with suppress(ImportError):  # before torch 2.5 not all exist
                importlib.import_module(name)
        when_imported(name, change, patches)
    if lasting:
        defer(path("dynamo"), _ANSWERS_UNCOMPILED, patches)
    # It marks steps of compiled CUDA graphs, and would load the whole code generator.
    patches.set_everywhere(torch.compiler, "cudagraph_mark_step_begin", calls.replays.mark)
    _forgive_gradients(patches)
    torchscript.install(note, patches)
    higher_order.install(patches)
    foreign.install(patches)


# -- torch.compile -------------------------------------------------------------------------------------


def _forgive_gradients(patches: Patches) -> None:
    """Let a custom function's backward return too few gradients in compiled code, as the compiler does."""
    real = BackwardCFunction.apply

    @functools.wraps(real)
    def apply(self: Any, *args: Any) -> Any:
        out = real(self, *args)
        gradients = out if isinstance(out, tuple) else (out,)
        missing = len(self.needs_input_grad) - len(gradients)
        return (*gradients, *[None] * missing) if missing > 0 and is_compiled() else out

    patches.set(BackwardCFunction, "apply", apply)


def _run_eagerly(note: Note, calls: CompiledCalls, patches: Patches, dynamo: Any) -> None:
    """Replace what `torch.compile` calls, so that its own option checks and wrappers of it still work.

    Callables compiled before the emulation began run eagerly, too.
    """
    frames = sys.modules[path("dynamo_frames")]

    def compiling(name: str) -> Callable[..., Callable[[Any], Any]]:
        def optimize(*args: Any, disable: bool = False, **kwargs: Any) -> Callable[[Any], Any]:
            if disable or _switched_off(dynamo):
                return lambda target: target
            # Compiling anything disables the argument checks of all distributions, and so their waits.
            patches.set(torch.distributions.Distribution, "_validate_args", False)
            settings = name, args, kwargs
            return lambda target: _eager_callable(target, calls, settings, note, frames)

        return optimize

    for name in ("optimize", "optimize_assert"):
        patches.set_everywhere(dynamo, name, compiling(name))
    if hasattr(frames, "DynamoStance"):
        eagerly = frames.DynamoStance(stance="force_eager")
        patches.set(frames, "_stance", eagerly)
        calls.stance = lambda: "" if frames._stance is eagerly else frames._stance.stance


def _switched_off(dynamo: Any) -> bool:
    return bool(dynamo.config.disable) or os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def _eager_callable(target: Any, calls: CompiledCalls, settings: Settings, note: Note, frames: Any) -> Any:
    """Return what `torch.compile` returns for `target`, but running eagerly.

    A module becomes an `OptimizedModule`, with ``_orig_mod`` as prefix in the state dict.
    """
    inner = frames.innermost_fn(target)
    if isinstance(inner, torch.nn.Module):
        note(_EAGER_NOTE)
        return _module_wrapper(calls, settings, frames)(inner)
    if isinstance(inner, type):
        note(_EAGER_NOTE)
        return inner
    if not callable(inner):
        raise AssertionError(f"A callable function is expected, but {type(inner)} is provided.")
    called = calls.compiled(inner, settings)
    said = False

    @functools.wraps(inner)
    def call_eagerly(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:  # noted at the first call: libraries decorate much that is never called
            said = True
            note(_EAGER_NOTE)
        return called(*args, **kwargs)

    # How torch finds the inner function when this is compiled again, disabled or called by compiled code.
    call_eagerly._torchdynamo_orig_callable = inner  # type: ignore[attr-defined]
    call_eagerly._torchdynamo_inline = inner  # type: ignore[attr-defined]
    call_eagerly._torchdynamo_wrapper_id = id(call_eagerly)  # type: ignore[attr-defined]
    return call_eagerly


def _module_wrapper(calls: CompiledCalls, settings: Settings, frames: Any) -> Any:
    """Return the context that wraps a module and its copies as `OptimizedModule`; pickled: disabled."""

    class Eagerly(frames.DisableContext):  # type: ignore[misc]
        def __call__(self, target: Any) -> Any:
            if isinstance(target, torch.nn.Module):
                return super().__call__(target)
            return calls.compiled(target, settings)

        def __deepcopy__(self, _: Any) -> Any:
            return self

        def __reduce__(self) -> Any:
            return frames.DisableContext, ()

    return Eagerly()


def _flex_attention(patches: Patches, public: Any) -> None:
    """Run flex attention as plain operators.

    Its own eager path compiles for backward and ignores dispatch modes. Compiled, it is one kernel that
    creates no constant on the host (`local.fused`).
    """
    inner = importlib.import_module(path("flex_attention_operator"))
    if not hasattr(public, "flex_attention_hop") or not hasattr(inner, "sdpa_dense"):
        return

    def flex_attention_hop(*args: Any, **kwargs: Any) -> Any:
        before, local.fused = local.fused, local.compiled
        try:
            return inner.sdpa_dense(*args, **kwargs)
        finally:
            local.fused = before

    patches.set(public, "flex_attention_hop", flex_attention_hop)
    shown = getattr(public, "_WARNINGS_SHOWN", None)
    if shown is not None:
        # Else users who do compile would be advised to compile.
        patches.set(public, "_WARNINGS_SHOWN", {*shown, "flex_attention_performance"})


# -- fakes and exporting -------------------------------------------------------------------------------


def fakes_on_the_cpu(note: Note, patches: Patches, module: Any) -> None:
    """Create fake tensors requested on CUDA as CPU fakes.

    Without a CUDA device a fake CUDA tensor in autograd crashes the process, which cannot be caught.
    """
    fake = module.FakeTensor
    make = fake.__new__
    cpu = torch.device("cpu")

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_is_cuda(value) for value in (*args, *kwargs.values())):
            if not _for_torch_itself():
                note(_FAKES_NOTE)
            args = tuple(cpu if _is_cuda(value) else value for value in args)
            kwargs = {name: cpu if _is_cuda(value) else value for name, value in kwargs.items()}
        return make(cls, *args, **kwargs)

    patches.set(fake, "__new__", staticmethod(new))


def _for_torch_itself() -> bool:
    """Whether torch itself creates the fake tensor, as DTensor does to compute shapes."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_MAKERS_OF_FAKES):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.")


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _refuse_export(name: str, patches: Patches, owner: ModuleType) -> None:
    """Refuse to export models on the device; models on the host are exported as usual."""
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

"""TorchScript under emulation: scripted and traced code runs as its original Python.

TorchScript's interpreter reads devices from storages, the CPU here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from gapless import trees
from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction, jit_enabled, path

Note = Callable[[str], None]

_SCRIPTED = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
_EAGER_NOTE = (
    "torch.jit.{} ran eagerly: the original Python code runs instead of TorchScript, and operators that "
    "TorchScript would fuse are counted separately"
)

_GRAPH_DRAWERS = {"torch.utils.tensorboard._pytorch_graph", "tensorboardX.pytorch_graph"}
"""Modules that trace a model to draw its graph."""
_EMPTY_GRAPH_NOTE = "SummaryWriter.add_graph wrote an empty graph: the emulation creates no TorchScript"

_SCRIPT_ONLY = frozenset(
    ["code", "code_with_constants", "graph", "graph_for", "inlined_graph", "save", "save_to_buffer", "schema"]
)
"""Attributes that only scripted functions and modules have."""

_recipes: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()
"""Functions that create the requested TorchScript, by the object that runs in its place."""


def install(note: Note, patches: Patches) -> None:
    """Make `torch.jit.script` and `torch.jit.trace` return their argument, and remark it through `note`."""
    flag = jit_enabled
    save = vars(torch.jit)["save"]

    @contextlib.contextmanager
    def really() -> Iterator[None]:
        """A context with TorchScript on and the emulation's modes off, for writing files."""
        before, flag.enabled = flag.enabled, True
        try:
            with DisableTorchFunction(), DisableTorchDispatch():
                yield
        finally:
            flag.enabled = before

    def instead(name: str, subject: str) -> None:
        original = vars(torch.jit)[name]

        @functools.wraps(original)
        def eager(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.startswith(path("decompositions")):
                with really():  # forward-mode differentiation needs TorchScript graphs of its formulas
                    return original(*args, **kwargs)
            if caller in _GRAPH_DRAWERS:
                note(_EMPTY_GRAPH_NOTE)
                with really():
                    return original(torch.nn.Identity(), torch.zeros(1, device="cpu"))
            obj = args[0] if args else kwargs.get(subject)
            result = original(*args, **kwargs)
            if result is obj and callable(obj) and not isinstance(obj, _SCRIPTED):
                options = {key: value for key, value in kwargs.items() if key != subject}
                rest, options = trees.map_tensors((args[1:], options), _Example.of)
                _remember(obj, lambda target: original(target, *_with_zeros(rest), **_with_zeros(options)))
                if not stacks.library_of(sys._getframe(1).f_code.co_filename):
                    note(_EAGER_NOTE.format(name))
            return result

        patches.set_everywhere(torch.jit, name, eager)

    def jit_save(m: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        save(_make_torchscript(m, really), f, *args, **kwargs)

    patches.set(flag, "enabled", False)
    instead("script", "obj")
    instead("trace", "func")
    instead("trace_module", "mod")
    patches.set_everywhere(torch.jit, "save", jit_save)
    for name in ("freeze", "optimize_for_inference"):
        _pass_through(name, patches)
    _load_onto_the_device(patches)


def lacks(obj: Any, name: str) -> bool:
    """Whether `obj` replaces TorchScript that would have the attribute `name`."""
    with contextlib.suppress(TypeError):  # no weak reference possible, so it is not registered
        return name in _SCRIPT_ONLY and obj in _recipes
    return False


class _Example(NamedTuple):
    """Shape and dtype of an example input; a trace does not depend on its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> _Example:
        return _Example(tuple(tensor.shape), tensor.dtype)


def _with_zeros(value: Any) -> Any:
    """Replace example inputs in `value` by zeros."""
    if isinstance(value, _Example):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    held = trees.children(value)
    return value if held is None else trees.rebuild(value, [_with_zeros(part) for part in held])


def _remember(obj: Any, make: Callable[[Any], Any]) -> None:
    with contextlib.suppress(TypeError):  # builtins do not support weak references
        reference = weakref.ref(obj)
        _recipes[obj] = lambda: make(reference())
        if isinstance(obj, torch.nn.Module) and not hasattr(obj, "save"):
            obj.__dict__["save"] = _Saving(obj)


class _Saving:
    """``ScriptModule.save`` for the Python module that replaces the scripted one; holds it weakly."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    def __call__(self, f: Any, **kwargs: Any) -> None:
        torch.jit.save(self._module(), f, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Saving:
        module = self._module()
        return _Saving(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        return _Saving, (self._module(),)


def _make_torchscript(obj: Any, really: Callable[[], Any]) -> Any:
    """Return `obj` as TorchScript, if it replaces one.

    Raises:
        NotEmulated: TorchScript cannot be created from the emulated device's tensors.
    """
    make = _recipes.get(obj) if isinstance(obj, torch.nn.Module) or callable(obj) else None
    if make is None:
        return obj
    try:
        with really():
            return make()
    except Exception as error:
        raise refuse(
            f"the TorchScript of {type(obj).__name__}",
            "Create it from the model on the CPU: model.cpu() first.",
        ) from error


def _pass_through(name: str, patches: Patches) -> None:
    """Make ``torch.jit.<name>`` return its argument if that is not TorchScript."""
    original = vars(torch.jit)[name]

    @functools.wraps(original)
    def call_if_scripted(mod: Any, *args: Any, **kwargs: Any) -> Any:
        return original(mod, *args, **kwargs) if isinstance(mod, torch.jit.ScriptModule) else mod

    patches.set_everywhere(torch.jit, name, call_if_scripted)


def _load_onto_the_device(patches: Patches) -> None:
    """Make ``torch.jit.load(f, map_location="cuda")`` load on the CPU and move to the device."""
    original = vars(torch.jit)["load"]

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or torch.device(map_location).type != "cuda":
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to(map_location)

    patches.set_everywhere(torch.jit, "load", load)

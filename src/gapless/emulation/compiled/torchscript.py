"""TorchScript under emulation: scripted and traced code runs as the Python it was made from.

The interpreter reads devices off storages, past everything that says where a tensor is.
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
_EAGERLY = (
    "torch.jit.{} ran eagerly: the original Python code runs instead of TorchScript, and operators that "
    "TorchScript would fuse are counted separately"
)

_DRAWN = {"torch.utils.tensorboard._pytorch_graph", "tensorboardX.pytorch_graph"}
"""Who traces a model to draw it, and takes the graph from what tracing returns."""
_NOT_DRAWN = "SummaryWriter.add_graph wrote an empty graph: the emulation creates no TorchScript"

_ITS_OWN = frozenset(
    ["code", "code_with_constants", "graph", "graph_for", "inlined_graph", "save", "save_to_buffer", "schema"]
)
"""What scripted functions and modules have, and Python's have not."""

_recipes: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()
"""How to make the TorchScript that was asked for, by the object that runs in its place."""


def install(note: Note, patches: Patches) -> None:
    """Make `torch.jit.script` and `torch.jit.trace` return what they are given, and say so to `note`."""
    flag = jit_enabled
    save = vars(torch.jit)["save"]

    @contextlib.contextmanager
    def really() -> Iterator[None]:
        """TorchScript on again and the emulation's modes off: to write a file, nothing else."""
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
                with really():  # forward-mode differentiation takes its formulas as TorchScript's graphs
                    return original(*args, **kwargs)
            if caller in _DRAWN:
                note(_NOT_DRAWN)
                with really():
                    return original(torch.nn.Identity(), torch.zeros(1, device="cpu"))
            obj = args[0] if args else kwargs.get(subject)
            result = original(*args, **kwargs)
            if result is obj and callable(obj) and not isinstance(obj, _SCRIPTED):
                options = {key: value for key, value in kwargs.items() if key != subject}
                rest, options = trees.mapped((args[1:], options), _Example.of)
                _remember(obj, lambda target: original(target, *_made_up(rest), **_made_up(options)))
                if not stacks.library_of(sys._getframe(1).f_code.co_filename):
                    note(_EAGERLY.format(name))
            return result

        patches.set_everywhere(torch.jit, name, eager)

    def jit_save(m: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        save(_made(m, really), f, *args, **kwargs)

    patches.set(flag, "enabled", False)
    instead("script", "obj")
    instead("trace", "func")
    instead("trace_module", "mod")
    patches.set_everywhere(torch.jit, "save", jit_save)
    for name in ("freeze", "optimize_for_inference"):
        _pass_through(name, patches)
    _load_onto_the_device(patches)


def lacks(obj: Any, name: str) -> bool:
    """Whether `obj` runs in the place of TorchScript, which would have `name`."""
    with contextlib.suppress(TypeError):  # cannot be referred to weakly, and is not among them
        return name in _ITS_OWN and obj in _recipes
    return False


class _Example(NamedTuple):
    """An example input, by its form: a trace is made of what operators do, and not of values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> _Example:
        return _Example(tuple(tensor.shape), tensor.dtype)


def _made_up(value: Any) -> Any:
    """`value` with zeros in the place of example inputs."""
    if isinstance(value, _Example):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    held = trees.parts(value)
    return value if held is None else trees.rebuilt(value, [_made_up(one) for one in held])


def _remember(obj: Any, make: Callable[[Any], Any]) -> None:
    with contextlib.suppress(TypeError):  # builtins and the like cannot be referred to weakly
        reference = weakref.ref(obj)
        _recipes[obj] = lambda: make(reference())
        if isinstance(obj, torch.nn.Module) and not hasattr(obj, "save"):
            obj.__dict__["save"] = _Saving(obj)


class _Saving:
    """``ScriptModule.save`` for the module that runs in the scripted one's place, which it does not hold."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    def __call__(self, f: Any, **kwargs: Any) -> None:
        torch.jit.save(self._module(), f, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Saving:
        module = self._module()
        return _Saving(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        return _Saving, (self._module(),)


def _made(obj: Any, really: Callable[[], Any]) -> Any:
    """`obj` as TorchScript, made now.

    Raises:
        NotEmulated: it cannot be made from the emulated device's tensors.
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
    """`name` of torch.jit returns what it is given where that is no TorchScript."""
    original = vars(torch.jit)[name]

    @functools.wraps(original)
    def unless_scripted(mod: Any, *args: Any, **kwargs: Any) -> Any:
        return original(mod, *args, **kwargs) if isinstance(mod, torch.jit.ScriptModule) else mod

    patches.set_everywhere(torch.jit, name, unless_scripted)


def _load_onto_the_device(patches: Patches) -> None:
    """``torch.jit.load(f, map_location="cuda")``: the file's tensors are read here and moved from here."""
    original = vars(torch.jit)["load"]

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or torch.device(map_location).type != "cuda":
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to(map_location)

    patches.set_everywhere(torch.jit, "load", load)

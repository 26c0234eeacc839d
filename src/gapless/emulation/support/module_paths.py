"""Find the module of the model that a call comes from or that a parameter belongs to."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType

import torch
from torch import nn

from gapless.torch_internals import module_call

_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"))
_WRAPPED_MODEL = "module"
"""DataParallel's and similar wrappers' name for the wrapped model; a user may use the name anywhere else."""
_ROOT = ":"
"""Separates a model's class from the path in it; names of several models are told apart when shown."""


class ModulePaths:
    """Learns a model's names when its outermost module is first called or moved, then calls `on_learn`."""

    def __init__(self, on_learn: Callable[[nn.Module], None] = lambda model: None) -> None:
        self._call, self._on_learn = module_call.__code__, on_learn
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: Counter[str] = Counter()
        self.classes: dict[str, str] = {}

    def at(self, frame: FrameType | None) -> str:
        """Return the innermost module whose call `frame` is in, ``GPT:h[3].mlp``; "" outside of all."""
        inner: nn.Module | None = None
        outer: nn.Module | None = None
        while frame is not None:
            if frame.f_code is self._call:
                # This dictionary keeps nothing alive: the frame holds the arguments anyway.
                module = frame.f_locals.get("self")
                if isinstance(module, nn.Module):
                    if path := self._path_of(module):
                        return path if inner is None else self._below(inner, path)
                    inner, outer = inner or module, module
            frame = frame.f_back
        if inner is None or outer is None:
            return ""
        self.learn(outer)
        return self._path_of(inner) or self._below(inner, self._path_of(outer))

    def of(self, tensor: torch.Tensor) -> str:
        """Return the module that `tensor`, a parameter or a buffer, belongs to; "" if unknown."""
        owner = self._owners.get(id(tensor))
        return owner[1] if owner is not None and owner[0]() is tensor else ""

    def learn(self, model: nn.Module) -> None:
        """Record the names in `model`; a whole model's names replace those of its parts."""
        root = ""
        names = {"": ""}
        modules = dict(model.named_modules())
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            path = names[name] = _join_path(names[parent], last, module, modules[parent])
            before = self._path_of(module)
            if not before or (path and f".{path}".endswith("." + before.partition(_ROOT)[2])):
                root = root or self._root(model)
                before = f"{root}{_ROOT}{path}"
                self._modules[id(module)] = (weakref.ref(module), before)
                self.classes[before] = type(module).__name__
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if isinstance(tensor, torch.Tensor):
                    self._owners[id(tensor)] = (weakref.ref(tensor), before)
        self._on_learn(model)

    def _path_of(self, module: nn.Module) -> str:
        entry = self._modules.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else ""

    def _below(self, module: nn.Module, path: str) -> str:
        """Name a module unknown to its parent, such as one in a plain list, by its class."""
        own = type(module).__name__
        path = f"{path}.{own}" if path[-1] != _ROOT else path + own
        self._modules[id(module)] = (weakref.ref(module), path)
        return path

    def _root(self, model: nn.Module) -> str:
        """Return the class of `model` inside its wrappers; later models of one class are numbered."""
        inner: nn.Module = model
        while wrapped := [
            child for name, child in inner._modules.items() if name in _WRAPPERS or name == _WRAPPED_MODEL
        ]:
            if len(inner._modules) > 1 or wrapped[0] is None:
                break
            inner = wrapped[0]
        name = type(inner).__name__
        self._roots[name] += 1
        return f"{name}#{self._roots[name]}" if self._roots[name] > 1 else name


def _join_path(path: str, name: str, module: nn.Module, parent: nn.Module) -> str:
    """Append a name, ``encoder.layer[0]``: wrappers are skipped, repeated layers get an index in brackets."""
    if name in _WRAPPERS or (name == _WRAPPED_MODEL and not path):
        return path
    layer = name.isdigit() and (module._modules or isinstance(parent, nn.ModuleList))
    if layer and sum(type(sibling) is type(module) for sibling in parent._modules.values()) > 1:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def display_names(paths: Iterable[str], among: Iterable[str] | None = None) -> dict[str, str]:
    """Return the display name of each of `paths`, with the model's class where it tells them apart.

    `among` are all paths that are shown together (default: `paths`).
    """
    split = {path: path.partition(_ROOT) for path in paths}
    split_among = split.values() if among is None else [path.partition(_ROOT) for path in among]
    several = len({root for root, _, inside in split_among if inside}) > 1
    return {
        path: f"{root}{'' if inside[0] == '[' else '.'}{inside}"
        if inside and (several or inside[0] in "[0123456789")
        else inside or root
        for path, (root, _, inside) in split.items()
    }

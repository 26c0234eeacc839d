"""Which module of the model a call comes from, and which one a parameter belongs to."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType

import torch
from torch import nn

from gapless.torch_internals import module_call

_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"))
_FIRST = "module"
"""What DataParallel and its like call the model; anywhere else a user may use the name."""
_ROOT = ":"
"""Between a model's class and the path in it: names of several models are told apart at the end."""


class ModulePaths:
    """Learns a model's names when its outermost module is first seen, at a call or a move: tells `learnt`."""

    def __init__(self, learnt: Callable[[nn.Module], None] = lambda model: None) -> None:
        self._call, self._learnt = module_call.__code__, learnt
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._owners: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: Counter[str] = Counter()
        self.classes: dict[str, str] = {}

    def at(self, frame: FrameType | None) -> str:
        """The innermost module whose call `frame` is in, ``GPT:h[3].mlp``; "" outside of all."""
        inner: nn.Module | None = None
        outer: nn.Module | None = None
        while frame is not None:
            if frame.f_code is self._call:
                # What this dictionary holds, the arguments, the frame holds in any case.
                module = frame.f_locals.get("self")
                if isinstance(module, nn.Module):
                    if known := self._known(module):
                        return known if inner is None else self._below(inner, known)
                    inner, outer = inner or module, module
            frame = frame.f_back
        if inner is None or outer is None:
            return ""
        self.learn(outer)
        return self._known(inner) or self._below(inner, self._known(outer))

    def of(self, tensor: torch.Tensor) -> str:
        """The module that `tensor`, a parameter or a buffer, belongs to; "" where none is known."""
        owner = self._owners.get(id(tensor))
        return owner[1] if owner is not None and owner[0]() is tensor else ""

    def learn(self, model: nn.Module) -> None:
        """Take over the names in `model`; a whole model's names replace those of its parts."""
        root = ""
        names = {"": ""}
        modules = dict(model.named_modules())
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            path = names[name] = _joined(names[parent], last, module, modules[parent])
            before = self._known(module)
            if not before or (path and f".{path}".endswith("." + before.partition(_ROOT)[2])):
                root = root or self._root(model)
                before = f"{root}{_ROOT}{path}"
                self._modules[id(module)] = (weakref.ref(module), before)
                self.classes[before] = type(module).__name__
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if isinstance(tensor, torch.Tensor):
                    self._owners[id(tensor)] = (weakref.ref(tensor), before)
        self._learnt(model)

    def _known(self, module: nn.Module) -> str:
        found = self._modules.get(id(module))
        return found[1] if found is not None and found[0]() is module else ""

    def _below(self, module: nn.Module, path: str) -> str:
        """A module that the one around it does not know, as one in a plain list: by its class."""
        own = type(module).__name__
        path = f"{path}.{own}" if path[-1] != _ROOT else path + own
        self._modules[id(module)] = (weakref.ref(module), path)
        return path

    def _root(self, model: nn.Module) -> str:
        """The class of `model` within its wrappers; of several models of one class the later are numbered."""
        inner: nn.Module = model
        while wrapped := [one for name, one in inner._modules.items() if name in _WRAPPERS or name == _FIRST]:
            if len(inner._modules) > 1 or wrapped[0] is None:
                break
            inner = wrapped[0]
        name = type(inner).__name__
        self._roots[name] += 1
        return f"{name}#{self._roots[name]}" if self._roots[name] > 1 else name


def _joined(path: str, name: str, module: nn.Module, parent: nn.Module) -> str:
    """``encoder.layer[0]``: wrappers are left out, and layers that repeat have their number in brackets."""
    if name in _WRAPPERS or (name == _FIRST and not path):
        return path
    layer = name.isdigit() and (module._modules or isinstance(parent, nn.ModuleList))
    if layer and sum(type(one) is type(module) for one in parent._modules.values()) > 1:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def shown(paths: Iterable[str], among: Iterable[str] | None = None) -> dict[str, str]:
    """Each of `paths` as it is shown: with the model's class where there are several, or a number is all.

    `among` are the paths that are shown together; the same ones, where nothing else is said.
    """
    split = {path: path.partition(_ROOT) for path in paths}
    known = split.values() if among is None else [path.partition(_ROOT) for path in among]
    several = len({root for root, _, inside in known if inside}) > 1
    return {
        path: f"{root}{'' if inside[0] == '[' else '.'}{inside}"
        if inside and (several or inside[0] in "[0123456789")
        else inside or root
        for path, (root, _, inside) in split.items()
    }

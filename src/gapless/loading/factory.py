"""``train.py:make_loader``: the user's loader, made as the user says."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from gapless.errors import UsageError
from gapless.loading.feed import Feed, understood
from gapless.loading.forked import LoaderError, failure
from gapless.loading.uses import Uses

_ITEMS = (str, bytes, list, tuple, dict, torch.Tensor, numpy.ndarray, torch.nn.Module)
"""What can be gone through and is an item, or many, or something else: never what feeds a loop."""


def find(target: str) -> Feed:
    """What `target` names, and what it is taken for.

    `target` is ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``. NAME is a DataLoader, a dataset or anything else
    that yields batches, or a function without arguments that returns one; of several that it returns the
    first is taken, and of what has ``train_dataloader()`` that. The file is imported: what stands under
    ``if __name__ == "__main__"`` does not run.

    Raises:
        UsageError: there is no such thing.
        LoaderError: the user's code fails.
    """
    before = _threads()
    uses = Uses().start()
    try:
        thing, remarks = _feeding(_thing(target), target)
        feed = understood(thing, lambda: _feeding(_thing(target), target)[0], anew=_threads() > before)
    finally:
        uses.stop()
    return replace(feed, remarks=(*remarks, *feed.remarks), line=uses.line_of(feed.loader))


def maker_of(target: str) -> Callable[[], DataLoader]:
    """What makes that loader anew, with all that its file does on the way: as each rank would."""

    def make() -> DataLoader:
        loader = find(target).loader
        if loader is None:
            raise UsageError(f"{target} contains no DataLoader, so its ranks cannot be checked")
        return loader

    return make


def _threads() -> int:
    """Threads of this process, those of libraries included; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _thing(target: str) -> Any:
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target}: name the function that creates the loader: train.py:make_loader")
    module = _module(place)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise UsageError(f"{place} has no {name}{_close(part, thing)}")
        thing = getattr(thing, part)
    makes = inspect.isroutine(thing) or isinstance(thing, type | functools.partial)
    feeds = isinstance(thing, DataLoader | Dataset | list | tuple | dict) or hasattr(thing, "__iter__")
    feeds &= not isinstance(thing, str | bytes)
    if makes or not (feeds or hasattr(thing, "train_dataloader")):
        return _called(thing, target)
    return thing


def _close(name: str, module: Any) -> str:
    close = difflib.get_close_matches(name, [one for one in dir(module) if not one.startswith("_")], n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _module(place: str) -> ModuleType:
    """The imported file or module."""
    is_file = place.endswith(".py")
    folder = os.path.dirname(os.path.realpath(place)) if is_file else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and f"{place}.".startswith(f"{error.name}."):
                raise UsageError(f"no module named {error.name}") from None
            raise LoaderError(_imported(place, error)) from error
        except Exception as error:
            raise LoaderError(_imported(place, error)) from error
    if not os.path.isfile(place):
        raise UsageError(f"no such file: {place}")
    name = os.path.basename(place)[: -len(".py")]
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(place))
    if spec is None or spec.loader is None:
        raise UsageError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by this name workers that are not forked find it again
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise LoaderError(f"{place} exits with {error.code} when it is imported") from error
    except Exception as error:
        raise LoaderError(_imported(place, error)) from error
    return module


def _imported(place: str, error: BaseException) -> str:
    return failure(error).replace("making a batch fails", f"importing {place} fails")


def _called(thing: Any, target: str) -> Any:
    if not callable(thing):
        raise UsageError(
            f"{target} is a {type(thing).__name__}, neither a loader nor a function that returns one"
        )
    try:
        needed = [
            one.name
            for one in inspect.signature(thing).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise UsageError(f"{target} needs arguments ({', '.join(needed)}): name a function without arguments")
    try:
        return thing()
    except Exception as error:
        raise LoaderError(failure(error).replace("making a batch fails", f"{target} fails")) from error


def _feeding(thing: Any, target: str) -> tuple[Any, tuple[str, ...]]:
    """What batches come from, of all that `target` gives."""
    loaders = getattr(thing, "train_dataloader", None)
    if callable(loaders):
        return _feeding(_of_module(thing, target), f"{target}.train_dataloader()")
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        for kinds in ((DataLoader,), (Dataset, Iterable)):
            for number, one in enumerate(thing, 1):
                if isinstance(one, kinds) and not isinstance(one, _ITEMS):
                    several = (f"{target} returns {len(thing)} objects: this is number {number}",)
                    return one, several if len(thing) > 1 else ()
    return thing, ()


def _of_module(module: Any, target: str) -> Any:
    """The training loader of a Lightning module, set up as a trainer does."""
    try:
        for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
            getattr(module, name, lambda *_: None)(*arguments)
        return module.train_dataloader()
    except Exception as error:
        told = failure(error).replace("making a batch fails", f"{target} fails without a trainer")
        raise LoaderError(told) from error

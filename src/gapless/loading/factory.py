"""Find the loader named by ``train.py:make_loader``."""

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
from gapless.loading.feed import Feed, identify_feed
from gapless.loading.forked import LoaderError, failure
from gapless.loading.uses import Uses

_NOT_FEEDS = (str, bytes, list, tuple, dict, torch.Tensor, numpy.ndarray, torch.nn.Module)
"""Iterable types that are items or containers, and never feed a loop."""


def find_feed(target: str) -> Feed:
    """Return the feed that `target` names.

    `target` is ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``. NAME is a DataLoader, a dataset or anything else
    that yields batches, or a function without arguments that returns one; of several the first is used, and
    of an object with ``train_dataloader()`` its result. The file is imported: code under ``if __name__ ==
    "__main__"`` does not run.

    Raises:
        UsageError: there is no such object.
        LoaderError: the user's code fails.
    """
    before = _count_threads()
    uses = Uses().start()
    try:
        thing, remarks = _select_feed(_load_target(target), target)
        feed = identify_feed(
            thing, lambda: _select_feed(_load_target(target), target)[0], anew=_count_threads() > before
        )
    finally:
        uses.stop()
    return replace(feed, remarks=(*remarks, *feed.remarks), line=uses.line_of(feed.loader))


def loader_factory(target: str) -> Callable[[], DataLoader]:
    """Return a function that creates the loader anew, running its file as each rank would."""

    def make() -> DataLoader:
        loader = find_feed(target).loader
        if loader is None:
            raise UsageError(f"{target} contains no DataLoader, so its ranks cannot be checked")
        return loader

    return make


def _count_threads() -> int:
    """Return the threads of this process, including those of libraries; 0 if the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _load_target(target: str) -> Any:
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target}: name the function that creates the loader: train.py:make_loader")
    module = _import_target(place)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise UsageError(f"{place} has no {name}{_suggest(part, thing)}")
        thing = getattr(thing, part)
    makes = inspect.isroutine(thing) or isinstance(thing, type | functools.partial)
    feeds = isinstance(thing, DataLoader | Dataset | list | tuple | dict) or hasattr(thing, "__iter__")
    feeds &= not isinstance(thing, str | bytes)
    if makes or not (feeds or hasattr(thing, "train_dataloader")):
        return _call_target(thing, target)
    return thing


def _suggest(name: str, module: Any) -> str:
    close = difflib.get_close_matches(
        name, [candidate for candidate in dir(module) if not candidate.startswith("_")], n=1
    )
    return f" (did you mean {close[0]}?)" if close else ""


def _import_target(place: str) -> ModuleType:
    """Import the file or module."""
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
            raise LoaderError(_import_error(place, error)) from error
        except Exception as error:
            raise LoaderError(_import_error(place, error)) from error
    if not os.path.isfile(place):
        raise UsageError(f"no such file: {place}")
    name = os.path.basename(place)[: -len(".py")]
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(place))
    if spec is None or spec.loader is None:
        raise UsageError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # workers that are not forked import it by this name
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise LoaderError(f"{place} exits with {error.code} when it is imported") from error
    except Exception as error:
        raise LoaderError(_import_error(place, error)) from error
    return module


def _import_error(place: str, error: BaseException) -> str:
    return failure(error).replace("making a batch fails", f"importing {place} fails")


def _call_target(thing: Any, target: str) -> Any:
    if not callable(thing):
        raise UsageError(
            f"{target} is a {type(thing).__name__}, neither a loader nor a function that returns one"
        )
    try:
        needed = [
            parameter.name
            for parameter in inspect.signature(thing).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise UsageError(f"{target} needs arguments ({', '.join(needed)}): name a function without arguments")
    try:
        return thing()
    except Exception as error:
        raise LoaderError(failure(error).replace("making a batch fails", f"{target} fails")) from error


def _select_feed(thing: Any, target: str) -> tuple[Any, tuple[str, ...]]:
    """Select what yields batches from the value of `target`; also return remarks about the choice."""
    loaders = getattr(thing, "train_dataloader", None)
    if callable(loaders):
        return _select_feed(_lightning_loader(thing, target), f"{target}.train_dataloader()")
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        for kinds in ((DataLoader,), (Dataset, Iterable)):
            for number, candidate in enumerate(thing, 1):
                if isinstance(candidate, kinds) and not isinstance(candidate, _NOT_FEEDS):
                    several = (f"{target} returns {len(thing)} objects: this is number {number}",)
                    return candidate, several if len(thing) > 1 else ()
    return thing, ()


def _lightning_loader(module: Any, target: str) -> Any:
    """Return the training loader of a Lightning module, set up as by a trainer."""
    try:
        for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
            getattr(module, name, lambda *_: None)(*arguments)
        return module.train_dataloader()
    except Exception as error:
        message = failure(error).replace("making a batch fails", f"{target} fails without a trainer")
        raise LoaderError(message) from error

"""Read the user's call of DataLoader, and write it with other arguments."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from gapless.model.source import SourceLine

_PARAMETERS = tuple(inspect.signature(DataLoader.__init__).parameters)[1:]
_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
"""Arguments that are left out, as a recommended setting follows."""


@dataclass(frozen=True)
class LoaderCall:
    """A call of DataLoader: the text of its `function` and `arguments`, and the lines that go `before`.

    `names` are those that its file uses. `is_shortened`: it could not be read, and the arguments end with
    ``...``.
    """

    function: str
    arguments: dict[str, str]
    line: SourceLine | None = None
    before: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    is_shortened: bool = False

    def free_name(self, wanted: str) -> str:
        """Return `wanted`, or a name like it that the call's file does not use."""
        names = chain((wanted,), (f"{wanted}_{number}" for number in count(2)))
        return next(name for name in names if name not in self.names)

    def with_whole_batches(self, convert: str = "") -> str:
        """Write the call with a sampler that yields whole batches, passed through the function `convert`."""
        call = self._with_names()
        rest = dict(call.arguments)
        dataset, batch_size = rest.pop("dataset"), rest.pop("batch_size", "1")
        sampler, batch_sampler = rest.pop("sampler", ""), rest.pop("batch_sampler", "")
        shuffle, drop_last = rest.pop("shuffle", ""), rest.pop("drop_last", "False")
        rest.pop("collate_fn", None)
        generator = f", generator={rest['generator']}" if "generator" in rest else ""
        imported = [] if batch_sampler and not convert else ["BatchSampler"]
        before = list(call.before)
        if not batch_sampler:
            if not sampler:
                shuffled, ordered = f"RandomSampler({dataset}{generator})", f"SequentialSampler({dataset})"
                sampler = {"True": shuffled, "False": ordered, "": ordered}.get(
                    shuffle, f"{shuffled} if {shuffle} else {ordered}"
                )
                kinds = ("RandomSampler", "SequentialSampler")
                imported += [kind for kind in kinds if f"{kind}(" in sampler]
            kind = self.free_name("TensorBatches") if convert else "BatchSampler"
            batch_sampler = f"{kind}({sampler}, {batch_size}, drop_last={drop_last})"
        elif convert:
            return ""
        if convert:
            before.append(
                f"class {kind}(BatchSampler):\n"
                "    def __iter__(self):\n"
                f"        return map({convert}, super().__iter__())"
            )
        if imported:
            before.insert(0, f"from torch.utils.data import {', '.join(imported)}")
        arguments = {"dataset": dataset, "sampler": batch_sampler, "batch_size": "None", **rest}
        return replace(call, arguments=arguments, before=tuple(before)).text

    def with_items(self, name: str, definition: str) -> str:
        """Write the call over a list of all items, each passed through the function `name` that `definition`
        defines.
        """
        call = self._with_names()
        dataset, items = call.arguments["dataset"], self.free_name("tensor_items")
        stored = f"{items} = [{name}({dataset}[index]) for index in range(len({dataset}))]"
        arguments = {**call.arguments, "dataset": items}
        return replace(call, arguments=arguments, before=(definition, *call.before, stored)).text

    def with_collate(self, name: str, definition: str) -> str:
        """Write the call with the function `name` as ``collate_fn``, after its `definition`."""
        arguments = {**self.arguments, "collate_fn": name}
        return replace(self, arguments=arguments, before=(definition, *self.before)).text

    def _with_names(self) -> LoaderCall:
        """Return the call with dataset and generator as names, so that they can be written twice."""
        arguments, before = dict(self.arguments), list(self.before)
        for argument in ("dataset", "generator"):
            value = arguments.get(argument, argument)
            if all(part.isidentifier() for part in value.split(".")):
                continue
            name = self.free_name(argument)
            before.append(f"{name} = {value}")
            arguments[argument] = name
        return replace(self, arguments=arguments, before=tuple(before))

    @property
    def text(self) -> str:
        """The lines before the call, and the call."""
        dataset, *options = (
            value if name == "dataset" else f"{name}={value}" for name, value in self.arguments.items()
        )
        rest = ["..."] if self.is_shortened else []
        call = f"{self.function}({', '.join((dataset, *options, *rest))})"
        needs_torch = any("torch." in line.removeprefix("from torch.") for line in self.before)
        imported = ["import torch"] if needs_torch and "torch" not in self.names else []
        return "\n".join((*imported, *self.before, call))


def read_call(loader: DataLoader, line: SourceLine | None) -> LoaderCall:
    """Return the call that created `loader` at `line`, or one that shows the arguments that matter."""
    tree = _parse_file(line)
    call = _find_call(tree, line.line) if line is not None and type(loader) is DataLoader else None
    names = frozenset(_names(tree))
    arguments = _arguments(call) if call is not None else None
    if call is None or arguments is None:
        function = type(loader).__name__
        return LoaderCall(function, _known_arguments(loader), line, names=names, is_shortened=True)
    kept = {name: value for name, value in arguments.items() if name not in _SETTINGS and value != "None"}
    return LoaderCall(ast.unparse(call.func), kept, line, names=names)


def _parse_file(line: SourceLine | None) -> ast.Module:
    """Return the tree of the line's file; an empty one if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(line.file)) if line is not None else "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file reads, assigns, defines and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]


def _find_call(tree: ast.Module, line: int) -> ast.Call | None:
    """Return the only call of DataLoader that contains `line`."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and ast.unparse(node.func).split(".")[-1] == "DataLoader"
    ]
    return calls[0] if len(calls) == 1 else None


def _arguments(call: ast.Call) -> dict[str, str] | None:
    """Return the text of each argument by its name; None if some are unpacked."""
    if any(isinstance(value, ast.Starred) for value in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        return None
    named = dict(zip(_PARAMETERS, map(ast.unparse, call.args), strict=False))
    named.update({keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg})
    return named if "dataset" in named else None


def _known_arguments(loader: DataLoader) -> dict[str, str]:
    """Return the arguments that decide which batches come, as far as the loader tells them."""
    arguments = {"dataset": "dataset"}
    if loader.batch_size is None:
        own = {"batch_sampler": "batch_sampler"} if loader.batch_sampler is not None else {}
        return {**arguments, **own}
    arguments.update(batch_size=str(loader.batch_size), drop_last=str(loader.drop_last))
    if type(loader.sampler) is RandomSampler:
        arguments["shuffle"] = "True"
    elif type(loader.sampler) is not SequentialSampler:
        arguments["sampler"] = "sampler"
    return arguments

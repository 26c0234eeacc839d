"""Shell completion of arguments and options: files, codes of rules, GPUs."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, str], list[CompletionItem]]


def with_completion(command: click.Command) -> click.Command:
    """Return `command` with each parameter completed according to its metavar.

    Without this the shell would not even complete file names.
    """
    for param in command.params:
        complete = _completer_for(param)
        if complete is not None:
            setattr(param, "shell_complete", complete)  # noqa: B010 - a method, replaced for this one
    return command


def _completer_for(param: click.Parameter) -> Complete | None:
    metavar = param.metavar or param.name or ""
    if isinstance(param, click.Argument):
        if param.name == "name":
            return _documents
        return _codes if param.name == "code" else _files
    if metavar == "DIR":
        return lambda context, incomplete: [CompletionItem(incomplete, type="dir")]
    if metavar in ("FILE", "TRACE", "SESSION"):
        return _files
    if metavar == "CODES":
        return _codes
    if metavar in ("NAME", "NAME,...") and "--gpu" in param.opts:
        return _gpus
    return None


def _files(context: click.Context, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _codes(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Complete codes of rules; of a comma-separated list, the last."""
    from gapless.rules import all_rules

    before, comma, begun = incomplete.rpartition(",")
    return [
        CompletionItem(before + comma + rule.code, help=rule.name)
        for rule in all_rules()
        if rule.code.startswith(begun.upper())
    ]


def _documents(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from gapless.render._schema import KINDS

    return [
        CompletionItem(name, help=kind.written_by)
        for name, kind in KINDS.items()
        if name.startswith(incomplete)
    ]


def _gpus(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from gapless.model.gpus import CARDS, GPUS

    gpus = CARDS if context.command.name == "memory" else GPUS
    names = [name for gpu in gpus for name in gpu.aliases]
    before, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(begun.lower())]

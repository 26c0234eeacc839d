"""What the shell completes for arguments and options: files where one is named, codes of rules, GPUs."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, str], list[CompletionItem]]


def completing(command: click.Command) -> click.Command:
    """`command`, with its parameters completed by what their metavars say they are.

    Without this the shell would offer nothing at all where a file is meant.
    """
    for param in command.params:
        complete = _of(param)
        if complete is not None:
            setattr(param, "shell_complete", complete)  # noqa: B010 - a method, replaced for this one
    return command


def _of(param: click.Parameter) -> Complete | None:
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
    if metavar in ("NAME", "NAME,...") and param.name == "gpu":
        return _gpus
    return None


def _files(context: click.Context, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _codes(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Codes of rules; of several the last one."""
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

    known = CARDS if context.command.name == "memory" else GPUS
    names = [name for one in known for name in one.aliases]
    before, comma, begun = incomplete.rpartition(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(begun.lower())]

"""Pages of the documentation that are written in the code: rules, commands, metrics, operations."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from types import ModuleType
from typing import Any

import click

GROUPS = {
    "GAP1": "The CPU waits for the GPU",
    "GAP2": "Metrics and collectives",
    "GAP3": "Input",
    "GAP4": "Memory",
    "GAP5": "Launch-bound, compiled code, or the GPU is under-used",
    "GAP6": "Communication and ranks",
    "GAP7": "The measurement itself",
    "GAP8": "Races",
}


def pages() -> dict[str, str]:
    """Return all pages, by path in the site."""
    return {
        **_rules(),
        "reference/commands.md": _commands(),
        **_metrics(),
        "reference/ops.md": _operations(),
    }


def _rules() -> dict[str, str]:
    from gapless.rules import all_rules

    contents = {f"rules/{rule.code}.md": _rule(rule) for rule in all_rules()}
    index = ["# Rules", "", "`gapless rule CODE` shows the same in a terminal."]
    for prefix, rules in groupby(all_rules(), key=lambda rule: rule.code[:4]):
        index += ["", f"## {GROUPS.get(prefix, prefix + 'xx')}", "", "| code | pattern | |", "|---|---|---|"]
        index += [
            f"| [{rule.code}]({rule.code}.md) | {rule.name} | {_cell(rule.summary())} |" for rule in rules
        ]
    contents["rules/index.md"] = "\n".join(index) + "\n"
    return contents


def _rule(rule: Any) -> str:
    parts = [f"# {rule.code} {rule.name}", rule.summary()]
    parts += [f"## {title}\n\n{text}" for title, text in rule.sections().items()]
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    from gapless.commands import cli

    group = click.Context(cli, info_name="gapless", terminal_width=100, **cli.context_settings)
    parts = ["# Commands", "As `gapless COMMAND --help` tells it.", _fenced(cli.get_help(group))]
    for name in cli.list_commands(group):
        command = cli.get_command(group, name)
        if command is not None and not command.hidden:
            context = click.Context(command, parent=group, info_name=name)
            parts += [f"## gapless {name}", _fenced(command.get_help(context))]
    return "\n\n".join([*parts, "## Formats", _formats()]) + "\n"


def _formats() -> str:
    from gapless import render

    modules = {name: importlib.import_module(f"{render.__name__}.{name}") for name in render.formats()}
    rows = [f"| `-f {name}` | {_cell(_first(module))} |" for name, module in modules.items()]
    return "\n".join(["| every command with `-f` | |", "|---|---|", *rows])


def _metrics() -> dict[str, str]:
    """Return an index of the metrics, and a page for each family."""
    from gapless import metrics
    from gapless.metrics import functional

    index = [
        "# Metrics, by name",
        "All are in `gapless.metrics`, and take the arguments that TorchMetrics' metric of that name takes. "
        "[Metrics that do not wait](../../metrics.md) explains what they share.",
    ]
    contents = {}
    classes = sorted((value for _, value in _public(metrics) if inspect.isclass(value)), key=_family)
    for family, members in groupby(classes, key=_family):
        place = f"{family.split()[0]}.md"
        rows, parts = [], [f"# {family.capitalize()}"]
        for metric in members:
            name = metric.__name__
            rows.append(f"| [{name}]({place}#{name.lower()}) | {_cell(_first(metric))} |")
            prose = _prose(inspect.getdoc(metric) or "")
            parts += [f"## {name}", _fenced(_signature(name, metric), "python"), prose]
        index.append("\n".join([f"## {family.capitalize()}", "", "| metric | |", "|---|---|", *rows]))
        contents[f"reference/metrics/{place}"] = "\n\n".join(parts) + "\n"
    names = ", ".join(f"`{name}`" for name, value in _public(functional) if not inspect.isclass(value))
    index += ["## Functions", f"In `gapless.metrics.functional`, for one batch each: {names}."]
    return {"reference/metrics/index.md": "\n\n".join(index) + "\n", **contents}


def _family(metric: type) -> str:
    module = metric.__module__.split(".")
    return module[2] if len(module) > 3 else "aggregation and common parts"


def _operations() -> str:
    from gapless import ops

    parts = [
        "# Operations, by name",
        "All are in `gapless.ops`. [Operations that do not wait](../ops.md) tells which line each replaces.",
    ]
    for name, value in _public(ops):
        text = _prose(inspect.getdoc(value) or "")
        parts += [f"## {name}", _fenced(_signature(name, value), "python"), text]
    return "\n\n".join(parts) + "\n"


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in sorted(module.__all__):
        yield name, getattr(module, name)


def _signature(name: str, value: Callable[..., Any]) -> str:
    """Return the signature of `value` on one line, or with one argument per line; annotations as written."""
    signature = inspect.signature(value)
    parts = []
    for parameter in signature.parameters.values():
        before = [part for part in parts if not part.startswith("**")]
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in before):
            parts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        annotated = (
            f": {_annotation(parameter.annotation)}" if parameter.annotation is not parameter.empty else ""
        )
        equals = " = " if annotated else "="
        default = "" if parameter.default is parameter.empty else f"{equals}{parameter.default!r}"
        parts.append(f"{stars}{parameter.name}{annotated}{default}")
    result = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= 90:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _annotation(annotation: Any) -> str:
    return getattr(annotation, "__forward_arg__", None) or str(annotation)


def _prose(docstring: str) -> str:
    """Convert a docstring to Markdown: code marks, and headed lists of arguments and errors."""
    lines: list[str] = []
    listed = False
    for line in _marks(docstring).split("\n"):
        heading = re.fullmatch(r"(Args|Arguments|Returns|Raises|Yields):", line)
        listed = bool(heading) or (listed and line.startswith("    "))
        if heading:
            lines += ["", f"**{heading[1]}**", ""]
        elif listed and not line.startswith("     "):
            lines.append("- " + line.strip())
        else:
            lines.append(line)
    text = "\n".join(lines).replace("::\n", ":\n")
    # Sessions of the interpreter, which Markdown would take for quotations.
    return re.sub(r"^>>> .*(?:\n.+)*", lambda session: _fenced(session[0], "pycon"), text, flags=re.MULTILINE)


def _marks(text: str) -> str:
    """Return `text` with single backticks for code, and references by their name."""
    text = re.sub(r":\w+:`~(?:\w+\.)*(\w+)`", r"`\1`", text.replace("``", "`"))
    return re.sub(r":\w+:(`[^`]*`)", r"\1", text)


def _first(value: Any) -> str:
    """Return the first paragraph of the docstring of `value` on one line."""
    return " ".join(_marks((inspect.getdoc(value) or "").split("\n\n")[0]).split())


def _fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

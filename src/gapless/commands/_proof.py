"""The part of ``gapless compare`` for callables."""

from __future__ import annotations

import shlex
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from gapless.commands import _output
from gapless.errors import EXIT_FINDINGS, EXIT_OK, require_torch
from gapless.model.proof import Proof
from gapless.prove.options import CompareOptions
from gapless.prove.sweep import parse_sweep_option

_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--inputs",
        metavar="TARGET",
        help="For callables: their inputs, as a function that returns or yields arguments.",
    ),
    click.option(
        "--cases", metavar="TARGET", help="More inputs of your own: a dict from names to arguments."
    ),
    click.option("--case", "only", metavar="NAME", multiple=True, help="Run only this case, without timing."),
    click.option("--edge-cases/--no-edge-cases", help="Derive edge cases from the inputs; on by default."),
    click.option(
        "--grad", "gradients_of", metavar="NAME", multiple=True, help="Make this input require gradients."
    ),
    click.option("--backward/--no-backward", help="Compare gradients, if there are any; on by default."),
    click.option(
        "--bounded",
        is_flag=True,
        help="AFTER's tensors may have more rows; compare only as many as BEFORE's have.",
    ),
    click.option(
        "--contract",
        metavar="TARGET",
        help="A function that says, from a call's arguments, whether AFTER must give the same result; "
        "otherwise it may differ.",
    ),
    click.option(
        "--rtol",
        metavar="X",
        type=click.FloatRange(0),
        help="Relative tolerance (default: depends on the data type).",
    ),
    click.option(
        "--atol",
        metavar="X",
        type=click.FloatRange(0),
        help="Absolute tolerance (default: depends on the data type).",
    ),
    click.option(
        "--seconds",
        metavar="SECONDS",
        type=click.FloatRange(0),
        show_default=True,
        help="How long to measure time.",
    ),
    click.option(
        "--sweep",
        metavar="KEY=V,V,...",
        callback=lambda _context, _option, text: text and parse_sweep_option(text),
        help="Measure for several values of a keyword argument of the inputs.",
    ),
    click.option(
        "--seed",
        metavar="N",
        type=click.IntRange(0),
        show_default=True,
        help="Seed for random numbers.",
    ),
    click.option(
        "--gpu", metavar="NAME", help="The GPU to emulate for counting syncs: A100 (default), H100, ..."
    ),
    click.option(
        "--device", metavar="NAME", help="Where to compute and measure: cuda if available, otherwise cpu."
    ),
    _output.file_option("-o", "--output", help="Save the arguments of the first failing case to a file."),
    click.option("--fail-if-slower", is_flag=True, help="Exit with 1 if AFTER is slower."),
)


def options(command: Any) -> Any:
    """Add the options for callables to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def explicit_options() -> list[str]:
    """Return the options for callables that the user gave to the running command."""
    context = click.get_current_context()
    names = {option.name for option in options(lambda: None).__click_params__}
    return [
        (option.opts if context.params[option.name] else option.secondary_opts or option.opts)[0]
        for option in context.command.params
        if option.name in names and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]


def status(proof: Proof, fail_if_slower: bool) -> int:
    """Return the exit status for `proof`; warn if the second callable is slower and that matters."""
    slower = fail_if_slower and proof.time is not None and proof.time.faster == "before"
    if slower:
        _output.say("AFTER is slower (--fail-if-slower)")
    return EXIT_OK if proof.same and not slower else EXIT_FINDINGS


def proof(before: str, after: str, options: CompareOptions) -> Proof:
    """Compare two callables named on the command line.

    Raises:
        UsageError: torch, the inputs or a target is missing.
    """
    require_torch("comparing callables runs them")
    from gapless.prove.proving import prove

    result = prove(before, after, options)
    if not result.failed:  # a race is in no case of its own
        return result
    return msgspec.structs.replace(result, again=_again(before, after, options, result))


def _again(before: str, after: str, options: CompareOptions, proof: Proof) -> str:
    """Return the command that runs the first failing case alone."""
    words = ["gapless", "compare", before, after, "--inputs", options.inputs or ""]
    words += ["--cases", options.cases] if options.cases else []
    words += [word for name in options.gradients_of for word in ("--grad", name)]
    words += ["--bounded"] if options.bounded else []
    words += ["--contract", options.contract] if options.contract else []
    words += ["--seed", str(options.seed)] if options.seed else []
    return shlex.join([*words, "--case", proof.failed[0].name])

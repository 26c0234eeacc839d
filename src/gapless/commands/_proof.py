"""The part of ``gapless compare`` that takes callables."""

from __future__ import annotations

import shlex
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from gapless.commands import _output
from gapless.errors import EXIT_FINDINGS, EXIT_OK, require_torch
from gapless.model.proof import Proof

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
    click.option(
        "--edge-cases/--no-edge-cases", default=True, help="Derive edge cases from the inputs; on by default."
    ),
    click.option(
        "--grad", "gradients_of", metavar="NAME", multiple=True, help="Make this input require gradients."
    ),
    click.option(
        "--backward/--no-backward", default=True, help="Compare gradients, if there are any; on by default."
    ),
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
        default=5.0,
        show_default=True,
        help="How long to measure time.",
    ),
    click.option(
        "--sweep",
        metavar="KEY=V,V,...",
        help="Measure for several values of a keyword argument of the inputs.",
    ),
    click.option(
        "--seed",
        metavar="N",
        type=click.IntRange(0),
        default=0,
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
    """The options for callables."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given() -> list[str]:
    """The options for callables that the running command was given."""
    context = click.get_current_context()
    names = {one.name for one in options(lambda: None).__click_params__}
    return [
        (one.opts if context.params[one.name] else one.secondary_opts or one.opts)[0]
        for one in context.command.params
        if one.name in names and context.get_parameter_source(one.name) is not ParameterSource.DEFAULT
    ]


def status(proof: Proof, fail_if_slower: bool) -> int:
    """The exit status that follows from `proof`; that the second is slower is said where it matters."""
    slower = fail_if_slower and proof.time is not None and proof.time.faster == "before"
    if slower:
        _output.say("AFTER is slower (--fail-if-slower)")
    return EXIT_OK if proof.same and not slower else EXIT_FINDINGS


def proof(before: str, after: str, asked: dict[str, Any]) -> Proof:
    """The proof of two callables named on the command line; `asked` is what `Wishes` are called with.

    Raises:
        UsageError: torch is not there, or the inputs are not, or a target is not.
    """
    require_torch("comparing callables runs them")
    from gapless.prove.proving import prove
    from gapless.prove.setup import CompareOptions
    from gapless.prove.sweep import parse_sweep_option

    sweep = parse_sweep_option(asked["sweep"]) if asked.get("sweep") else None
    made = prove(CompareOptions(original=before, fixed=after, **{**asked, "sweep": sweep}))
    if not made.failed:  # a race is in no case of its own
        return made
    return msgspec.structs.replace(made, again=_again(before, after, asked, made))


def _again(before: str, after: str, asked: dict[str, Any], proof: Proof) -> str:
    """The command that runs the first failing case alone."""
    words = ["gapless", "compare", before, after, "--inputs", asked["inputs"] or ""]
    words += ["--cases", asked["cases"]] if asked.get("cases") else []
    words += [word for name in asked.get("gradients_of", ()) for word in ("--grad", name)]
    words += ["--bounded"] if asked.get("bounded") else []
    words += ["--contract", asked["contract"]] if asked.get("contract") else []
    words += ["--seed", str(asked["seed"])] if asked.get("seed") else []
    return shlex.join([*words, "--case", proof.failed[0].name])

"""``gapless prove``: whether an edit of a script changes anything but its waits."""

from __future__ import annotations

import click
import msgspec

from gapless.analyze import report
from gapless.capture.options import CaptureOptions
from gapless.capture.signals import Terminated, terminable
from gapless.commands import _output
from gapless.commands._options import takes
from gapless.commands._script import ScriptCommand
from gapless.emulation.options import EmulatorOptions
from gapless.errors import EXIT_FINDINGS, EXIT_OK, UsageError, require_torch


class ProveOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    shown: _output.Shown = _output.Shown()
    script_name: str = ""
    patch: str = ""
    revision: str = ""
    root: str | None = None
    steps: int | None = None
    seconds: float = 60.0
    rounding: float = 0.0
    seed: int = 0
    gpu: str | None = None
    devices: int | None = None


@takes(ProveOptions())
@click.command("prove", cls=ScriptCommand)
@click.option(
    "--script", "script_name", metavar="FILE", help="The script to run in two folders BEFORE and AFTER."
)
@click.option("--patch", metavar="FILE", help="AFTER is SCRIPT's project with this unified diff applied.")
@click.option("--git", "revision", metavar="REV", help="BEFORE is SCRIPT's project at this revision.")
@click.option(
    "--root",
    metavar="FOLDER",
    help="The project's folder, which is copied whole (default: the nearest with a pyproject.toml or a "
    "repository, else the current one).",
)
@click.option("--steps", metavar="N", type=click.IntRange(1), help="Stop both runs after N optimizer steps.")
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    show_default=True,
    help="Stop the run before the edit at its first step after so long, and the other one at the same step.",
)
@click.option(
    "--rounding",
    metavar="X",
    type=click.FloatRange(0),
    help="Let numbers differ by this share of a tensor's largest element (default: not by a bit).",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    show_default=True,
    help="Seed for random numbers that the script does not seed.",
)
@click.option("--gpu", metavar="NAME", help="The GPU to emulate: A100 (default), H100, ...")
@click.option("--devices", metavar="N", type=click.IntRange(1), help="How many GPUs to emulate.")
@_output.report_options
@click.argument("words", metavar="BEFORE AFTER | SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...], options: ProveOptions) -> int:
    """Run a script before and after an edit, and prove that only its waits changed, or name what else did.

    Both versions run on an emulated GPU in copies of the whole project, with the same seeds, and the two runs
    are compared: parameters and buffers after each optimizer step, printed lines (without times and rates),
    random numbers, races, how the runs end, and where the CPU waits. Options come first; everything after
    AFTER (or SCRIPT) is passed to the script.

    \b
    Examples:
      gapless prove train.py train_fixed.py --epochs 1
      gapless prove --script train.py old/ new/ --epochs 1
      gapless prove --patch fix.diff train.py         a patch
      gapless prove --git HEAD train.py               since the last commit
      gapless prove --rounding 1e-5 a.py b.py         sums in another order

    Exit status: 0 proved; 1 refused, or not provable; 2 usage error.
    """
    require_torch("gapless prove runs your script")
    from gapless.fixes.proof import ProofOptions, prove
    from gapless.fixes.proof.versions import of_patch, of_paths, of_revision

    _refuse_several_kinds(options)
    taken = 1 if options.patch or options.revision else 2
    if len(words) < taken:
        raise UsageError("name two versions: gapless prove train.py train_fixed.py")
    names, arguments = words[:taken], words[taken:]
    if options.patch:
        versions = of_patch(names[0], options.patch, options.root)
    elif options.revision:
        versions = of_revision(names[0], options.revision, options.root)
    else:
        versions = of_paths(names[0], names[1], options.script_name, options.root)
    emulator = EmulatorOptions(gpu=options.gpu, devices=options.devices, lasting=True, inference=True)
    how = ProofOptions(
        arguments=arguments[1:] if arguments[:1] == ("--",) else arguments,
        steps=options.steps,
        seconds=options.seconds,
        rounding=options.rounding,
        seed=options.seed,
        capture=CaptureOptions(emulator=emulator, steps=None, loader=False),
    )
    options.shown.refuse_terminal("gapless prove -f html a.py b.py")
    try:
        with terminable():  # a run under way ends with the command
            proof = prove(*versions, how)
    except Terminated as ended:
        return ended.status
    options.shown.write([report(proof)])
    return EXIT_OK if proof.is_same else EXIT_FINDINGS


def _refuse_several_kinds(options: ProveOptions) -> None:
    names = {"--script": options.script_name, "--patch": options.patch, "--git": options.revision}
    named = [name for name, value in names.items() if value]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other: each names the two versions")

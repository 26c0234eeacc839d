"""The command line, one file per subcommand: every module here with a `command` becomes one."""

from __future__ import annotations

import errno
import importlib
import pkgutil
import re
from collections.abc import Sequence

import click

from gapless._version import __version__
from gapless.commands._complete import with_completion
from gapless.errors import EXIT_UNREADABLE, GaplessError

_HELP = ("-h", "--help")
_SENTENCE = re.compile(r"(?<=\.) ")


class Commands(click.Group):
    """A group that imports a subcommand only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        # click makes the option once, with the names of whoever asks first: a parent is not always there.
        command.context_settings.setdefault("help_option_names", list(_HELP))
        return with_completion(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with its first whole sentence, which click would cut at the first line's end."""
        helps = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, _SENTENCE.split(" ".join((subcommand.help or "").split()))[0])
            for name, subcommand in helps
            if subcommand
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.list_commands(ctx) or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if name.endswith(".py"):
            ctx.fail(f"{name} is not a command: gapless check {name}")
        import difflib

        close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
        ctx.fail(f"no command {name!r}" + (f" (did you mean {close[0]}?)" if close else ""))


@click.group(cls=Commands, context_settings={"help_option_names": list(_HELP), "max_content_width": 100})
@click.version_option(__version__, prog_name="gapless", message="%(prog)s %(version)s")
def cli() -> None:
    """Find every place where PyTorch training makes the GPU wait.

    \b
    On any machine, with a GPU or without one:
      gapless check train.py --epochs 1     run it unmodified, report each sync
      gapless check -o run.gapless.json train.py
      gapless show run.gapless.json --all   the same report again, in full
      gapless trace trace.json.gz           explain a profile, or one per rank
      gapless fix train.py                  changes that remove syncs, as a diff
      gapless compare before.json after.json
      gapless compare losses.py:old losses.py:new --inputs losses.py:batches
      gapless memory snapshot.pickle        replay the allocator, try settings
      gapless profile train.py              on a GPU: record a profile, explain it
      gapless loader train.py:make_loader   why batches are late, and what to set
      gapless rule GAP112                   what a finding means, what to write
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return the exit status."""
    try:
        status = cli.main(
            args=None if arguments is None else list(arguments), prog_name="gapless", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except GaplessError as error:
        _say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except OSError as error:  # while writing a help text; reports handle their own
        if error.errno != errno.ENOSPC:
            raise
        _say(str(error.strerror))
        return EXIT_UNREADABLE
    return status if isinstance(status, int) else 0


def _say(text: str) -> None:
    from gapless.commands._output import say  # with what renders reports, which is not always needed

    say(text)

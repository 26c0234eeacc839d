"""``gapless show``: report a saved run again."""

from __future__ import annotations

import click
import msgspec

from gapless.analyze import report
from gapless.commands import _output
from gapless.commands._fixes import with_fixes
from gapless.commands._options import takes
from gapless.commands._user_source import read_user_source
from gapless.errors import UnreadableInput
from gapless.files.kinds import recognize
from gapless.model import Report


class ShowOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    shown: _output.Shown = _output.Shown()


@takes(ShowOptions())
@click.command("show")
@_output.report_options
@click.argument("saved", metavar="SESSION...", nargs=-1, required=True)
def command(saved: tuple[str, ...], options: ShowOptions) -> int:
    """Show a saved result of `gapless check -o` or `gapless trace -o` again, in any format, on any machine.

    Several sessions are shown one after the other; with -f html they become one page with a list of them.

    \b
    Examples:
      gapless show --all run.gapless.json
      gapless show -f html run.gapless.json > report.html
      gapless show -f html monday.json tuesday.json > both.html
      gapless show -f json run.gapless.json | jq .steps.waits_per_step
    """
    shown = options.shown
    shown.refuse_terminal(f"gapless show -f html {' '.join(saved)}")
    documents = [document for file in saved for document in reports(file, shown.form)]
    shown.write(documents)
    return 0


def reports(saved: str, form: str = "text") -> list[Report]:
    """Return a report for each session, run of profiles, memory run or loader diagnosis in the file `saved`.

    Each has what the format `form` shows.

    Raises:
        UnreadableInput: it cannot be read, or another command reports it.
    """
    recognized = recognize(saved)
    if recognized.foreign is not None:
        raise UnreadableInput(recognized.foreign.refusal(saved))
    name, drawn = recognized.name, form == "html"
    if name == "profile":
        from gapless.analyze.profile.profile_report import report_runs as of_runs
        from gapless.model.profile import load as load_profiles

        return of_runs(load_profiles(saved), read=read_user_source)
    if name == "memory":
        from gapless.model.memory import load as load_memory

        return [report(run, drawn=drawn) for run in load_memory(saved)]
    if name == "loader":
        from gapless.model.loading import load as load_diagnosis

        return [report(load_diagnosis(saved))]
    if name == "trace":
        raise UnreadableInput(f"{saved} is a PyTorch profiler trace: gapless trace {saved}")
    if name == "snapshot":
        raise UnreadableInput(f"{saved} is a PyTorch memory snapshot: gapless memory {saved}")
    from gapless.model.session import load

    session = load(saved)
    document = with_fixes(report(session, drawn=drawn), session, form)
    return [msgspec.structs.replace(document, path=saved)]

"""``gapless schema``: the JSON schema of what Gapless writes."""

from __future__ import annotations

import json
import sys

import click

from gapless.commands import _output
from gapless.render import _schema


@click.command("schema")
@click.argument("name", required=False)
def command(name: str | None) -> int:
    """Print the JSON schema of the documents called NAME, or list their names.

    A document's `version` changes when a field changes its meaning or goes away; new fields come without.
    Gapless reads the files that older versions of it have saved.

    \b
    Examples:
      gapless schema
      gapless schema report > report.schema.json
    """
    if name is None:
        rows = [
            f"{one:<15} version {kind.version}   {kind.written_by}" for one, kind in _schema.KINDS.items()
        ]
        text = "\n".join(rows)
    else:
        text = json.dumps(_schema.schema(name), indent=2, ensure_ascii=False)
    _output.write(sys.stdout, text + "\n")
    return 0

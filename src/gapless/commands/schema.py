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
    """Print the JSON schema of the document NAME, or list all names.

    A document's `version` changes when a field changes its meaning or is removed, not when fields are added.
    Gapless reads files that older versions of Gapless saved.

    \b
    Examples:
      gapless schema
      gapless schema report > report.schema.json
    """
    if name is None:
        text = _schema.listing(_output.style_for(sys.stdout, color=False))
    else:
        text = json.dumps(_schema.schema(name), indent=2) + "\n"
    _output.write(sys.stdout, text)
    return 0

"""Determine what a value that the CPU reads is used for: data flow over the user's source, from the read on.

`read_uses` follows a value from the expression that reads it through names, containers, calls and returns.
The order of modules: `source_files` (trees), `reaching` (names), `unseen` (uses that the text does
not show), `meaning` and `callees` (what an expression or a call is), `resolving` (calls), `conditions`,
`flow` with `arguments` and `methods` (the walk), `starts` (where it starts).
"""

from gapless.uses.starts import ReadExpression, RunningPlace, read_uses

__all__ = ["ReadExpression", "RunningPlace", "read_uses"]

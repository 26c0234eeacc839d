"""Run a script on the emulated device, write its fixes, and run what became of it."""

from __future__ import annotations

import contextlib
import io
import linecache
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

import gapless
from gapless.fixes.patches import edited_files
from gapless.fixes.planning import choose_fixes, plan_fixes
from gapless.loading.uses import Uses
from gapless.model import Session
from gapless.model.fix import Fix, FixLevel
from gapless.model.loader_use import LoaderUse

HEAD = """import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")
def train():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""
"""What the scripts of most tests begin with."""


@dataclass(frozen=True)
class Run:
    """What a script printed, and its session."""

    printed: str
    session: Session


@dataclass(frozen=True)
class Rewriting:
    """A script before and after its fixes."""

    before: Run
    after: Run
    fixes: tuple[Fix, ...]
    text: str

    @property
    def refusals(self) -> list[str]:
        return [fix.refusal for fix in self.fixes if fix.refusal]

    @property
    def waits(self) -> tuple[int, int]:
        return self.before.session.waits, self.after.session.waits


def run(path: Path) -> Run:
    """Run the script `path` in this process, on an emulated device of its own."""
    linecache.checkcache(str(path))
    out, uses = io.StringIO(), Uses()
    torch.manual_seed(0)
    code = compile(path.read_bytes(), str(path), "exec")
    with contextlib.redirect_stdout(out), gapless.emulate() as record:
        uses.start()
        try:
            exec(code, {"__name__": "__main__", "__file__": str(path)})
        finally:
            uses.stop()
        session = record.session
    loaders = tuple(LoaderUse(made=use.made, asked=use.asked, setting=use.setting) for use in uses.uses)
    return Run(out.getvalue(), msgspec.structs.replace(session, loaders=loaders))


def plan(path: Path, session: Session) -> tuple[Fix, ...]:
    """Return the fixes of a session of the script `path`."""
    return plan_fixes(session, path.parent, str(path))


def rewrite(
    folder: Path,
    text: str,
    head: str = HEAD,
    encoding: str = "utf-8",
    levels: tuple[FixLevel, ...] = ("exact", "rounding", "tried"),
) -> Rewriting:
    """Run a script, write its fixes of these levels, and run it again."""
    path = folder / "script.py"
    path.write_bytes((head + text).encode(encoding))
    before = run(path)
    fixes = plan(path, before.session)
    chosen, _ = choose_fixes(fix for fix in fixes if fix.level in levels)
    for name, (_, data) in edited_files(chosen, folder).items():
        (folder / name).write_bytes(data)
    return Rewriting(before, run(path), fixes, path.read_bytes().decode(encoding))

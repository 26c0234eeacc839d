"""Follow a remedy: run the code before and after it on the emulated device, and compare what both give.

The cases stand in ``remedies/gapNNN.txt``. Each begins with ``[case]`` and its options, followed by code:
``[setup]`` runs first, ``[before]`` has syncs or a race of the rule, ``[after]`` is what the remedy says.

- ``rows=0,7`` and ``dtypes=float32``: the variations in which the code runs, as the names `rows` and `dtype`.
- `out` has equal values behind both sides, to the last bit or within ``tolerance=`` (of the largest value);
  ``same=`` compares nothing.
- ``left=1``: so many syncs remain, fewer than before, which reads of values or the rules of ``leaves=`` find.
- ``words``: the remedy is followed in other words than those that it quotes.
- ``before_torch=15``: the case is one of torch below 2.15 only.
- ``code=GAP101``: the rule that gives the remedy, which reads in a file of its own what a value is used for.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gapless
from gapless import trees
from gapless.model import RaceRule, Session, Site
from gapless.rules import match_rule, rules_of_kind
from gapless.rules._by_use import leading_uses
from gapless.rules.causes import remedy_by_cause
from gapless.torch_internals import VERSION

PRELUDE = """
import math

import torch
import torch.nn.functional as F
from torch import nn

import gapless.metrics
import gapless.ops

device = "cuda"
torch.manual_seed(0)
x = torch.randn(rows, 4, device=device).to(dtype)
z = torch.randn(rows, 4, device=device).to(dtype)
mask = x > 0
labels = torch.arange(rows, device=device) % 3
losses = [torch.rand((), device=device).to(dtype) + 2 for _ in range(20)]


def training(layers, **options):
    model = layers.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

    def step():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""
"""What every case has: tensors of `rows` rows and of `dtype`, losses, and a step of training."""


class Followed(NamedTuple):
    """A case: options and code, as this module says."""

    setup: str
    before: str
    after: str
    rows: tuple[int, ...] = (0, 1, 7)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    tolerance: float = 0.0
    left: int = 0
    leaves: tuple[str, ...] = ()
    compares: bool = True
    words: bool = False
    before_torch: int = 99
    code: str = ""


class Outcome(NamedTuple):
    """What one side showed.

    These are syncs by code, remedies by code, codes of races, `out` by variation, and the kinds of uses that
    chose a remedy.
    """

    syncs: Counter[str]
    remedies: dict[str, set[str]]
    races: set[str]
    values: list[Any]
    kinds: set[str]


def read_cases(path: Path) -> list[Followed]:
    """Return the cases of a file."""
    parts = re.split(r"^\[case\]", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    cases = [_read_case(part) for part in parts]
    return [case for case in cases if (2, case.before_torch) > VERSION]


def _read_case(text: str) -> Followed:
    head, *sections = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    code = dict(zip(sections[::2], sections[1::2], strict=True))
    options: dict[str, Any] = {}
    for option in head.split():
        name, _, value = option.partition("=")
        items = tuple(filter(None, value.split(",")))
        options |= {
            "rows": {"rows": tuple(map(int, items)) if name == "rows" else ()},
            "dtypes": {"dtypes": tuple(getattr(torch, item, None) for item in items)},
            "tolerance": {"tolerance": float(value) if name == "tolerance" else 0.0},
            "left": {"left": int(value) if name == "left" else 0},
            "leaves": {"leaves": items},
            "same": {"compares": False},
            "words": {"words": True},
            "code": {"code": value},
            "before_torch": {"before_torch": int(value) if name == "before_torch" else 99},
        }[name]
    return Followed(code.get("setup", ""), code["before"], code["after"], **options)


def _variations(case: Followed) -> Iterator[dict[str, Any]]:
    for rows, dtype in itertools.product(case.rows, case.dtypes):
        yield {"rows": rows, "dtype": dtype}


@functools.cache
def run(case: Followed, side: str) -> Outcome:
    """Run one side of `case`, ``before`` or ``after``, in all its variations."""
    text = getattr(case, side)
    if not case.code:
        name = f"/followed/{side}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return _run_file(case, text, name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{side}.py"
        path.write_text(text, encoding="utf-8")
        return _run_file(case, text, str(path))


def _run_file(case: Followed, text: str, name: str) -> Outcome:
    """Run the text of one side as the file `name`."""
    code = compile(text, name, "exec")
    prepare = compile(PRELUDE + case.setup, "/followed/setup.py", "exec")
    values = []
    with warnings.catch_warnings(), gapless.emulate() as emulation:
        warnings.simplefilter("ignore")
        for variation in _variations(case):
            names: dict[str, Any] = {"__name__": "followed", **variation}
            exec(prepare, names)
            exec(code, names)
            if case.compares:
                values.append(trees.map_tensors(names["out"], lambda tensor: tensor.detach().cpu().clone()))
    return _summarize(emulation.session, name, values)


def _summarize(session: Session, file: str, values: list[Any]) -> Outcome:
    """Return what was found at the lines of `file`."""
    syncs: Counter[str] = Counter()
    remedies: dict[str, set[str]] = {}
    races, kinds = set(), set()
    by_line: dict[tuple[str, int], list[Site]] = {}
    for event in session.events:
        site = session.sites[event.site]
        if site.line is not None and site.line.file == file:
            rule = match_rule(site)
            kinds.update(use.kind for use in leading_uses(site))
            syncs[rule.code] += event.waits
            remedies.setdefault(rule.code, set()).add(remedy_by_cause(site, lines=2)[0] or rule.remedy(site))
            by_line.setdefault((rule.code, site.line.line), []).append(site)
    for (code, _), sites in by_line.items():
        if together := match_rule(sites[0]).remedy_together(sites):
            remedies[code] = remedies[code] - {match_rule(site).remedy(site) for site in sites} | {together}
    for race, race_rule in itertools.product(session.races, rules_of_kind(RaceRule)):
        hit = race_rule.of_race(race)
        if hit is not None:
            races.add(race_rule.code)
            remedies.setdefault(race_rule.code, set()).add(hit.remedy)
    return Outcome(syncs, remedies, races, values, kinds)


def difference(case: Followed, before: Any, after: Any) -> str:
    """Say how two values differ; "" if they are the same to the last bit, or within the tolerance."""
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        if len(before) != len(after):
            return f"{len(before)} values, then {len(after)}"
        return next(filter(None, (difference(case, *pair) for pair in zip(before, after, strict=True))), "")
    first, second = torch.as_tensor(before).double(), torch.as_tensor(after).double()
    if first.shape != second.shape:
        return f"shape {tuple(first.shape)}, then {tuple(second.shape)}"
    scale = max((abs(value) for value in first.flatten().tolist() if math.isfinite(value)), default=0.0)
    close = torch.isclose(first, second, rtol=0, atol=case.tolerance * max(scale, 1), equal_nan=True)
    several = (side.flatten()[:4].tolist() for side in (first, second))
    return "" if bool(close.all()) else "{}, then {}".format(*several)


def quoted_code(remedy: str) -> list[str]:
    """Return the pieces of code that a remedy quotes, without blanks."""
    return [re.sub(r"\s", "", piece) for piece in re.findall(r"`([^`]+)`", remedy)]

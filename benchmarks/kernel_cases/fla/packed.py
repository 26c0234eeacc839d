"""Cases again with two sequences in a row, as training on packed sequences launches the kernels (``cu_seqlens``)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch

from kernel_cases.cases import Case, Modules, changed
from kernel_cases.fla import decay, delta, scores

ENDS = (0, 30, 80)


def _run(case: Case, x: Any) -> Any:
    call_module = Modules.__call__

    def with_ends(modules: Modules, name: str) -> Any:
        return partial(call_module(modules, name), cu_seqlens=x.ends)

    with mock.patch.object(Modules, "__call__", with_ends):
        return case.run(x)


def _plain(case: Case, x: Any) -> torch.Tensor:
    """Each sequence by itself."""
    assert case.plain is not None
    parts = []
    for start, end in pairwise(ENDS):
        own = {
            name: value[:, start:end]
            for name, value in vars(x).items()
            if isinstance(value, torch.Tensor) and value.shape[:2] == (1, ENDS[-1])
        }
        parts.append(case.plain(changed(x, **own)))
    return torch.cat(parts, 1)


def packed(case: Case) -> Case:
    """The case with one row of two sequences in place of the batch."""
    return replace(
        case,
        name=f"{case.name}, packed",
        run=partial(_run, case),
        plain=partial(_plain, case),
        inputs=case.inputs.replace("=B", "=N"),
        fixed={**case.fixed, "ends": lambda: torch.tensor(ENDS)},
    )


def _taken(case: Case) -> bool:
    """Whether its function takes ``cu_seqlens`` and gives gradients then."""
    never = ("RWKV-4", "attention with", "HGRN, chunk", "TTT", "Based", "Rebased", "attention over", "native")
    return not case.name.startswith(never)


SPARSE = next(case for case in scores.CASES if case.name == "native sparse attention")
CASES = [
    *(packed(case) for case in (*decay.CASES, *delta.CASES, *scores.CASES) if _taken(case)),
    packed(replace(SPARSE, fixed={"blocks": lambda: torch.cat((scores.blocks(30), scores.blocks(50)), 1)})),
]

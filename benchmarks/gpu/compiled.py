"""Compiled code and CUDA graphs: predicted breaks, recompilations, skips and failed captures, and real ones.

    python benchmarks/gpu/compiled.py                 # on a machine with a GPU: writes compiled.md
    python benchmarks/gpu/compiled.py --self-check    # anywhere: on the CPU, and on the emulated device

The scripts of benchmarks/compiled_cases run on "cuda" with torch's own logs on, and under `gapless check`.
The functions of tests/capture/test_cudagraph_skips.py are compiled by inductor with CUDA graphs, and what it
logs of skips and cuts is beside what is predicted. The blocks of tests/emulate/graphs/test_refused.py are
captured, each in a process of its own: a capture that fails can take the device along.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import _experiment
import _sheet
import torch
from _experiment import Found

CASES = _experiment.HERE.parent / "compiled_cases"
KINDS = ("breaks", "lines", "recompiles", "functions", "graphs")
FEW = ("data_branch", "dynamic_batches", "item_read")
BLOCKS = ("item", "adam", "unjoined")
"""What the self-check runs."""
_OUTSIDE = re.compile(r"skipping cudagraph|cudagraph partition due to|, non-cudagraphable")
_LOOP = "other = dict(number="


def case(name: str) -> Found:
    """A script with torch alone, on whatever device it finds, and as it is predicted."""
    module = _experiment.of_benchmarks("compiled")
    real = module.plain(CASES / f"{name}.py")
    os.environ.update(_experiment.hidden())
    return {"real": real, "predicted": module.ours(CASES / f"{name}.py")}


class Hints(logging.Handler):
    """Keeps what the compiler says of CUDA graphs that it does not make."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if _OUTSIDE.search(record.getMessage()):
            self.told.append(" ".join(record.getMessage().split())[:200])

    def listen(self) -> None:
        """To the compiler's artifacts that tell it: which they are depends on torch's version."""
        import torch._inductor.compile_fx
        import torch._inductor.cudagraph_utils

        for artifact in ("perf_hints", "cudagraphs"):
            if artifact in torch._logging._internal.log_registry.artifact_names:
                torch._logging.set_logs(**{artifact: True})
                for name in list(logging.root.manager.loggerDict):
                    if name.endswith(f".__{artifact}"):
                        logger = logging.getLogger(name)
                        logger.handlers, logger.propagate = [self], False
                        logger.setLevel(logging.DEBUG)


def skips_real(emulated: bool) -> Found:
    """What inductor logs, function by function. Without a GPU one of them is compiled for the CPU."""
    _experiment.of_tests()
    from capture.test_cudagraph_skips import SCRIPT

    hints = Hints()
    hints.listen()
    source = SCRIPT.split(_LOOP)[0]
    source = source.replace('"cuda"', '"cpu"') if emulated else source
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "functions.py"  # dynamo wants a file
        script.write_text(source)
        space: Found = {"__name__": "functions", "__file__": str(script)}
        exec(compile(source, str(script), "exec"), space)
        space["other"] = {
            "number": torch.tensor(0.5),
            "number_right": torch.tensor(0.5, device=space["device"]),
        }
        names = [name for name, one in space.items() if hasattr(one, "_torchdynamo_orig_callable")]
        found: Found = {}
        for name in ["number_right"] if emulated else names:
            hints.told.clear()
            found[name] = one_function(name, space, hints)
        if emulated:  # nothing is captured on a CPU; what torch would say of it is heard all the same
            say = torch._inductor.cudagraph_utils.log_cudagraph_skip_and_bump_counter
            say("skipping cudagraphs due to -")
            found["number"] = hints.told
    return found


def one_function(name: str, space: Found, hints: Hints) -> list[str]:
    function, device = space[name], space["device"]
    try:
        for _ in range(3):  # warm-up, recording, replay
            x, cpu = torch.rand(4, 4, device=device), torch.rand(4, 4)
            if name in ("on_cpu", "whole_on_cpu"):
                function(x, cpu)
            elif name in space["other"]:
                function(x, space["other"][name])
            elif function._torchdynamo_orig_callable.__code__.co_argcount == 2:
                function(x, cpu.to(device))
            else:
                function(x)
    except Exception as error:  # what one function does is not the others' matter
        return [f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"]
    return list(dict.fromkeys(hints.told))


def skips_predicted() -> Found:
    _experiment.of_tests()
    from capture.test_cudagraph_skips import SCRIPT, compiled

    os.environ.update(_experiment.hidden())
    script = SCRIPT.split("torch._inductor.config.triton.cudagraphs = True")[0]
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in compiled(Path(folder), script):
            name = "number_right" if one.name == "number" and "number" in found else one.name
            found[name] = [f"{skip.skip} {skip.what}".strip() for skip in one.outside]
    return found


def block(name: str, emulated: bool) -> Found:
    """What a capture raises, and whether its twin goes through."""
    _experiment.of_tests()
    from emulate.graphs.test_refused import CASES as BLOCKS_OF_TESTS
    from emulate.graphs.test_refused import Case

    wrong, words, right = BLOCKS_OF_TESTS[name]
    found = {"words": words, "right": tried(emulated, Case, right, replay=True)}
    return found | {"wrong": tried(emulated, Case, wrong, replay=False)}


def tried(emulated: bool, kind: Any, run: Any, replay: bool) -> str:
    """The words of the errors that a capture raised; "" where it went through."""
    with _experiment.device(emulated):
        made = kind()
        try:
            made.capture(run)
            if replay:
                made.graph.replay()
        except Exception as error:
            told: list[str] = []
            chain: BaseException | None = error
            while chain is not None:
                told.append(str(chain))
                chain = chain.__context__
            return " / ".join(told)
    return ""


def part(name: str, emulated: bool) -> Any:
    kind, _, which = name.partition(" ")
    if kind == "case":
        return case(which)
    if kind == "block":
        return block(which, emulated)
    return skips_predicted() if which == "predicted" else skips_real(emulated)


def sheet(found: Found) -> tuple[str, list[str]]:
    module = _experiment.of_benchmarks("compiled")
    cases = {name[5:]: one for name, one in found.items() if name.startswith("case ")}
    wrong = [f"{name} differs" for name, one in cases.items() if one["real"] != one["predicted"]]
    text = f"## Breaks and recompilations\n\n{len(cases) - len(wrong)} of {len(cases)} scripts are equal.\n\n"
    rows: list[list[object]] = [
        [name, *(module._cell(one["real"][kind], one["predicted"][kind]) for kind in KINDS)]
        for name, one in cases.items()
    ]
    columns = ["script", "breaks", "at lines", "recompilations", "of functions at", "graphs"]
    text += _sheet.table(columns, rows)
    real, said = found.get("skips real"), found.get("skips predicted")
    if real is not None and said is not None:
        rows = [[name, "; ".join(told), "; ".join(said.get(name, []))] for name, told in real.items()]
        rows = [[*row, "yes" if bool(row[1]) == bool(row[2]) else "**no**"] for row in rows]
        agreed = sum(row[-1] == "yes" for row in rows)
        text += f"\n## Skipped and cut CUDA graphs\n\n{agreed} of {len(rows)} functions agree.\n\n"
        text += _sheet.table(["function", "the compiler says", "predicted", "agree"], rows).replace("``", "`")
        wrong += [f"skips of {row[0]}" for row in rows if row[-1] != "yes"]
    blocks = {name[6:]: one for name, one in found.items() if name.startswith("block ")}
    rows = []
    for name, one in blocks.items():
        refused = one["words"] in one["wrong"]
        through = one["right"] == ""
        told = one["wrong"].split("\n")[0][:160] if not refused else "as predicted"
        rows.append([name, told or "**captured**", "yes" if through else f"**{one['right'][:160]}**"])
        wrong += [f"block {name}"] if not (refused and through) else []
    rows = [[str(cell).replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    text += "\n## Captures that are refused\n\n" + _sheet.table(["block", "error", "twin captured"], rows)
    return text, wrong


def main() -> int:
    self_check = "--self-check" in sys.argv
    _experiment.of_tests()
    from emulate.graphs.test_refused import CASES as BLOCKS_OF_TESTS

    blocks = BLOCKS if self_check else BLOCKS_OF_TESTS
    scripts = FEW if self_check else sorted(path.stem for path in CASES.glob("*.py"))
    groups = [
        ([f"block {name}" for name in blocks], 8),
        (["skips real", "skips predicted"], 2),
        ([f"case {name}" for name in scripts], 8),
    ]
    return _experiment.Stage(
        __doc__, __file__, "Compiled code and CUDA graphs",
        "predicted by `gapless check`, which does not see the GPU; real: torch's own logs and errors",
        groups, part, sheet, 200,
    ).main()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

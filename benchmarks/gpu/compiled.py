"""Compiled code and CUDA graphs: predicted breaks, recompilations, skips and failed captures, and real ones.

    python benchmarks/gpu/compiled.py                 # on a machine with a GPU: writes compiled.md
    python benchmarks/gpu/compiled.py --self-check    # anywhere: on the CPU, and on the emulated device

The scripts of benchmarks/compiled_cases run on "cuda" with torch's own logs on, and under `gapless check`.
The functions of tests/capture/test_cudagraph_skips.py are compiled by inductor with CUDA graphs, and what it
logs of skips and cuts is beside what is predicted. The blocks of tests/emulation/graphs/test_refused.py are
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
from _experiment import Results

CASES = _experiment.HERE.parent / "compiled_cases"
KINDS = ("breaks", "lines", "recompiles", "functions", "graphs")
FEW = ("data_branch", "dynamic_batches", "item_read")
BLOCKS = ("item", "adam", "unjoined")
"""Run by the self-check."""
_OUTSIDE = re.compile(r"skipping cudagraph|cudagraph partition due to|, non-cudagraphable")
_LOOP = "other = dict(number="


def case(name: str) -> Results:
    """Return what the compiler logs of a script, and what is predicted."""
    module = _experiment.load_benchmark("compiled")
    real = module.log_of_compiler(CASES / f"{name}.py")
    os.environ.update(_experiment.environment_without_gpu())
    return {"real": real, "predicted": module.log_of_check(CASES / f"{name}.py")}


class Hints(logging.Handler):
    """Collects the compiler's messages on CUDA graphs that it does not make."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if _OUTSIDE.search(record.getMessage()):
            self.messages.append(" ".join(record.getMessage().split())[:200])

    def listen(self) -> None:
        """Listen to the artifacts with these messages, which differ between versions of torch."""
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


def skips_real(emulated: bool) -> Results:
    """Return inductor's messages for each function; without a GPU only one is compiled, for the CPU."""
    _experiment.add_tests_to_path()
    from capture.test_cudagraph_skips import SCRIPT

    hints = Hints()
    hints.listen()
    source = SCRIPT.split(_LOOP)[0]
    source = source.replace('"cuda"', '"cpu"') if emulated else source
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "functions.py"  # dynamo wants a file
        script.write_text(source)
        space: Results = {"__name__": "functions", "__file__": str(script)}
        exec(compile(source, str(script), "exec"), space)
        space["other"] = {
            "number": torch.tensor(0.5),
            "number_right": torch.tensor(0.5, device=space["device"]),
        }
        names = [name for name, value in space.items() if hasattr(value, "_torchdynamo_orig_callable")]
        logged: Results = {}
        for name in ["number_right"] if emulated else names:
            hints.messages.clear()
            logged[name] = function_hints(name, space, hints)
        if emulated:  # nothing is captured on a CPU; what torch would say of it is heard all the same
            say = torch._inductor.cudagraph_utils.log_cudagraph_skip_and_bump_counter
            say("skipping cudagraphs due to -")
            logged["number"] = hints.messages
    return logged


def function_hints(name: str, space: Results, hints: Hints) -> list[str]:
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
    return list(dict.fromkeys(hints.messages))


def skips_predicted() -> Results:
    _experiment.add_tests_to_path()
    from capture.test_cudagraph_skips import SCRIPT, compiled

    os.environ.update(_experiment.environment_without_gpu())
    script = SCRIPT.split("torch._inductor.config.triton.cudagraphs = True")[0]
    predicted_skips: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        for compiled_function in compiled(Path(folder), script):
            name = (
                "number_right"
                if compiled_function.name == "number" and "number" in predicted_skips
                else compiled_function.name
            )
            predicted_skips[name] = [f"{skip.skip} {skip.what}".strip() for skip in compiled_function.outside]
    return predicted_skips


def block(name: str, emulated: bool) -> Results:
    """Return the error of a capture, and of its corrected twin."""
    _experiment.add_tests_to_path()
    from emulation.graphs.test_refused import CASES as BLOCKS_OF_TESTS
    from emulation.graphs.test_refused import Case

    wrong, words, right = BLOCKS_OF_TESTS[name]
    outcome = {"words": words, "right": capture_error(emulated, Case, right, replay=True)}
    return outcome | {"wrong": capture_error(emulated, Case, wrong, replay=False)}


def capture_error(emulated: bool, kind: Any, run: Any, replay: bool) -> str:
    """Return the messages of a capture's errors; "" if it succeeds."""
    with _experiment.device(emulated):
        instance = kind()
        try:
            instance.capture(run)
            if replay:
                instance.graph.replay()
        except Exception as error:
            messages: list[str] = []
            chain: BaseException | None = error
            while chain is not None:
                messages.append(str(chain))
                chain = chain.__context__
            return " / ".join(messages)
    return ""


def part(name: str, emulated: bool) -> Any:
    kind, _, which = name.partition(" ")
    if kind == "case":
        return case(which)
    if kind == "block":
        return block(which, emulated)
    return skips_predicted() if kind == "predicted" else skips_real(emulated)


def sheet(results: Results) -> tuple[str, list[str]]:
    module = _experiment.load_benchmark("compiled")
    cases = {name[5:]: result for name, result in results.items() if name.startswith("case ")}
    wrong = [f"{name} differs" for name, result in cases.items() if result["real"] != result["predicted"]]
    text = f"## Breaks and recompilations\n\n{len(cases) - len(wrong)} of {len(cases)} scripts are equal.\n\n"
    rows: list[list[object]] = [
        [name, *(module._cell(result["real"][kind], result["predicted"][kind]) for kind in KINDS)]
        for name, result in cases.items()
    ]
    columns = ["script", "breaks", "at lines", "recompilations", "of functions at", "graphs"]
    text += _sheet.table(columns, rows)
    real, said = results.get("skips"), results.get("predicted skips")
    if real is not None and said is not None:
        rows = [
            [name, "; ".join(hints_real), "; ".join(said.get(name, []))] for name, hints_real in real.items()
        ]
        rows = [[*row, "yes" if bool(row[1]) == bool(row[2]) else "**no**"] for row in rows]
        agreed = sum(row[-1] == "yes" for row in rows)
        text += f"\n## Skipped and cut CUDA graphs\n\n{agreed} of {len(rows)} functions agree.\n\n"
        text += _sheet.table(["function", "the compiler says", "predicted", "agree"], rows).replace("``", "`")
        wrong += [f"skips of {row[0]}" for row in rows if row[-1] != "yes"]
    blocks = {name[6:]: result for name, result in results.items() if name.startswith("block ")}
    rows = []
    for name, result in blocks.items():
        refused = result["words"] in result["wrong"]
        through = result["right"] == ""
        error_text = result["wrong"].split("\n")[0][:160] if not refused else "as predicted"
        rows.append(
            [name, error_text or "**captured**", "yes" if through else f"**{result['right'][:160]}**"]
        )
        wrong += [f"block {name}"] if not (refused and through) else []
    rows = [[str(cell).replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    text += "\n## Captures that are refused\n\n" + _sheet.table(["block", "error", "twin captured"], rows)
    return text, wrong


def script() -> _experiment.Script:
    _experiment.add_tests_to_path()
    from emulation.graphs.test_refused import CASES as BLOCKS_OF_TESTS

    blocks = BLOCKS if _experiment.SELF_CHECK else list(BLOCKS_OF_TESTS)[:: _experiment.choose(1, 2)]
    cases = FEW if _experiment.SELF_CHECK else sorted(path.stem for path in CASES.glob("*.py"))
    cases = cases[:: _experiment.choose(1, 3)]
    parts = [f"case {name}" for name in cases] + [f"block {name}" for name in blocks]
    return _experiment.Script(
        __doc__, __file__, "Compiled code and CUDA graphs",
        "predicted by `gapless check`, which does not see the GPU; real: torch's own logs and errors",
        part, sheet, ["skips", "predicted skips", *parts], seconds=150,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())

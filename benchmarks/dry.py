"""Runs without values beside runs with them: metadata of operators, field scripts, memory, speed.

    python benchmarks/dry.py                       # everything; prints what it found
    python benchmarks/dry.py --part operators      # one part: operators, scripts, stacks, memory, large
    python benchmarks/dry.py --only 'linalg\\.'     # a subset of operators or scripts
    python benchmarks/dry.py --write               # writes benchmarks/sheets/dry.md and .json

Exits with 1 where a script or a model differs that the committed sheet's data have as equal.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _dry_models
import _sheet
import stacks as training_stacks
import torch
from _op_samples import sample_inputs
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import gapless
from gapless.analyze.run.assumed import decisions
from gapless.emulation.dry.guesses.guess import anything
from gapless.emulation.emulator import current
from gapless.model.session import Session, load

Tensor = torch.Tensor
SHEET = Path(__file__).with_name("sheets") / "dry.md"
RECORD = SHEET.with_suffix(".json")
SCRIPTS = Path(__file__).resolve().parents[1] / "tests" / "field" / "scripts"
SEED = 20
PARTS = ("operators", "scripts", "stacks", "memory", "large")
SINGLE = frozenset({"ddp", "fsdp2", "multi_gpu_model_parallel"})
"""Field scripts for several devices or processes; left out."""
METHOD = (
    "operators: every entry of `op_db` in float32, up to {samples} sample inputs, forward and backward, on "
    "the emulated device with values and in a dry run in which no input has values; compared are shape, "
    "stride, offset, dtype, aliasing, requires_grad, grad_fn, storage bytes and the gradients' metadata. "
    "Scripts: `gapless check --steps all` of each field script with `--values`, with `--dry`, without "
    "either, and with limits so low that it goes on without values in the first step; compared are waits by "
    "line, operator and step. Stacks: `gapless check` of each script of `stacks/` in the environment of "
    "`make stacks`, offline, with `--values` and with `--dry`, compared likewise. Memory: a training "
    "step of each model; `torch.cuda.max_memory_allocated()`. "
    "Large: a Llama of 7B parameters in bf16, checkpointed, AdamW, batch 1 of 4096 tokens"
)


# -- operators -------------------------------------------------------------------------------------


def compare_metadata(entries: list[Any], samples: int = 3) -> dict[str, dict[str, str]]:
    """Return the entries that look the same with and without values, those that differ and how, and those
    not tried."""
    tally: dict[str, dict[str, str]] = {"equal": {}, "different": {}, "not tried": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = {_name(op): list(_samples(op, samples)) for op in entries}
        with gapless.emulate():
            expected = {
                _name(op): [_describe(op, sample, _leave_values) for sample in tried[_name(op)]]
                for op in entries
            }
        with gapless.emulate(dry=True):
            for op in entries:
                outcome, text = _compare_entry(op, tried[_name(op)], expected[_name(op)])
                tally[outcome][_name(op)] = text
    return tally


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _samples(op: Any, samples: int) -> list[Any]:
    if torch.float32 not in op.supported_dtypes("cpu"):
        return []
    torch.manual_seed(SEED)
    inputs = sample_inputs(op, torch.float32, op.supports_autograd)
    first = list(itertools.islice(inputs, 24))
    return first[:: max(1, len(first) // samples)][:samples]


def _compare_entry(op: Any, tried: list[Any], expected: list[list[str]]) -> tuple[str, str]:
    """Return whether the entry looks the same without values, and the first difference."""
    pairs = [
        (sample, left)
        for sample, left in zip(tried, expected, strict=True)
        if not left[0].startswith("raises")
    ]
    for sample, left in pairs:
        right = _describe(op, sample, _without_values)
        if left != right:
            a, b = next((a, b) for a, b in itertools.zip_longest(left, right) if a != b)
            return "different", f"{b} in place of {a}"
    return ("equal", "") if pairs else ("not tried", "no float32, or it raises with values, too")


def _leave_values(tensor: Tensor) -> None:
    pass


def _without_values(tensor: Tensor) -> None:
    emulator = current()
    if tensor.layout is torch.strided and not tensor.is_nested and emulator is not None:
        emulator.core.values.mark(tensor, anything("input", tensor.dtype))


def _describe(op: Any, sample: Any, prepare: Callable[[Tensor], None]) -> list[str]:
    """Describe the entry's results and gradients, one line each."""
    torch.manual_seed(SEED)
    try:
        inputs, args, options = tree_map(_on_device, (sample.input, sample.args, sample.kwargs))
        leaves = [leaf for leaf in tree_flatten((inputs, args, options))[0] if isinstance(leaf, Tensor)]
        for leaf in leaves:
            prepare(leaf)
        out = op(inputs, *args, **options)
        shown = [tensor for tensor in tree_flatten(out)[0] if isinstance(tensor, Tensor)]
        storages: dict[int, int] = {}
        lines = [f"{len(shown)} results", *(_tensor_line(tensor, storages) for tensor in (*leaves, *shown))]
        roots = [
            root
            for root in tree_flatten(sample.output_process_fn_grad(out))[0]
            if isinstance(root, Tensor) and root.requires_grad
        ]
        if roots:
            torch.autograd.backward(roots, [torch.full_like(root, 0.5) for root in roots])
        lines += [
            _tensor_line(leaf.grad, {}) if leaf.grad is not None else "no gradient"
            for leaf in leaves
            if leaf.is_leaf
        ]
        return lines
    except Exception as error:
        return [f"raises {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"]


def _on_device(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return torch.device("cuda") if isinstance(value, torch.device) or value == "cpu" else value
    return value.detach().to("cuda", copy=True).requires_grad_(value.requires_grad)


def _tensor_line(tensor: Tensor, storages: dict[int, int]) -> str:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"{tensor.layout} {tuple(tensor.shape)} {tensor.dtype}"
    storage = tensor.untyped_storage()
    number = storages.setdefault(storage._cdata, len(storages))
    node = tensor.grad_fn.name() if tensor.grad_fn is not None else "-"
    return (
        f"{tuple(tensor.shape)} {tensor.stride()}+{tensor.storage_offset()} {tensor.dtype} memory {number} "
        f"of {storage.nbytes()} bytes, {tensor.requires_grad} {node} {tensor.device}"
    )


# -- scripts ---------------------------------------------------------------------------------------


def compare_scripts(only: str) -> dict[str, dict[str, Any]]:
    """Compare each field script's waits by line and step, with and without values."""
    runs = {}
    for path in sorted(SCRIPTS.glob("*.py")):
        if path.stem in SINGLE or not re.search(only, path.stem):
            continue
        (plain, seconds), (dry, dry_seconds) = _check(path, "--values"), _check(path, "--dry")
        itself, switched = _check(path)[0], _check(path, code=_SWITCHES_SOON)[0]
        if plain is None or dry is None or itself is None or switched is None:
            runs[path.stem] = {"same": False, "why": "no session"}
            continue
        expected, dry_waits, after = _waits(plain), _waits(dry), _waits(switched)
        different = sorted({key[0] for key in {*expected, *dry_waits} if expected[key] != dry_waits[key]})
        runs[path.stem] = {
            "same": expected == dry_waits,
            "waits": sum(expected.values()),
            "dry": sum(dry_waits.values()),
            "lines": different,
            "decided": len(decisions(dry.assumptions)),
            "same as ever": expected == _waits(itself) and itself.switch is None,
            "switched": "no" if switched.switch is None else "same" if expected == after else "different",
            "decided then": len(decisions(switched.assumptions)),
            "seconds": round(seconds, 1),
            "dry seconds": round(dry_seconds, 1),
        }
    return runs


_SWITCHES_SOON = """
import sys
from gapless.commands import main
from gapless.emulation.dry import budget
budget.MAX_OPERATOR_SECONDS, budget.MAX_STEP_SECONDS = 1e-5, 1e-4
sys.exit(main(sys.argv[1:]))
"""
"""A check that switches to a dry run early in a small script's first step."""


def compare_stacks(only: str) -> dict[str, dict[str, Any]]:
    """Compare for each script of the training stacks its progress and waits with and without values."""
    training_stacks.make_environment()
    runs = {}
    for path in sorted(training_stacks.SCRIPTS.glob("[!_]*.py")):
        if not re.search(only, path.stem):
            continue
        options = training_stacks.ALL_STEPS.get(path.stem, [])
        (plain, seconds), (dry, dry_seconds) = (
            _check(path, how, *options, python=training_stacks.PYTHON) for how in ("--values", "--dry")
        )
        if plain is None or dry is None:
            runs[path.stem] = {"same": False, "why": "no session", "reached": "no"}
            continue
        expected, dry_waits = _waits(plain), _waits(dry)
        steps = max((tick for _, _, tick in dry_waits), default=0)
        reached = steps >= 10 and dry.ending.how != "error" and not dry.ending.status
        runs[path.stem] = {
            "same": expected == dry_waits,
            "reached": "yes" if reached else dry.ending.message[:120] or f"ended in step {steps}",
            "waits": sum(expected.values()),
            "dry": sum(dry_waits.values()),
            "lines": sorted({key[0] for key in {*expected, *dry_waits} if expected[key] != dry_waits[key]}),
            "decided": len(decisions(dry.assumptions)),
            "seconds": round(seconds, 1),
            "dry seconds": round(dry_seconds, 1),
        }
        print(path.stem, runs[path.stem], file=sys.stderr)
    return runs


def _check(
    path: Path, *options: str, code: str = "", python: Path | None = None
) -> tuple[Session | None, float]:
    """Check `path`; return the session, if any, and seconds. `python` is the stacks' interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        words = ["check", "-q", "--no-loader", "--no-prices", "-o", str(saved), *options]
        offline = training_stacks.environment() if python is not None else {}
        began = time.perf_counter()
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [
                    str(python or sys.executable),
                    *(["-c", code] if code else ["-m", "gapless"]),
                    *(words if python is not None else [*words, "--steps", "all"]),
                    str(path),
                ],
                cwd=folder,
                env={**os.environ, **offline, "PYTHONHASHSEED": "0"},
                capture_output=True,
                check=False,
                timeout=training_stacks.TIMEOUT,
            )
        seconds = time.perf_counter() - began
        return (load(saved) if saved.exists() else None), seconds


def _waits(session: Session) -> Counter[tuple[str, str, int]]:
    counts: Counter[tuple[str, str, int]] = Counter()
    for event in session.events:
        site = session.sites[event.site]
        counts[site.line.short if site.line is not None else "", site.operator, event.tick] += event.waits
    return counts


# -- memory and speed ------------------------------------------------------------------------------


def measure_peaks() -> dict[str, dict[str, int]]:
    """Return the memory peak of each model's training step, with values and without."""
    peaks_of = {}
    for name, step in _dry_models.MODELS.items():
        peaks = []
        for dry in (False, True):
            torch.manual_seed(SEED)
            with gapless.emulate(dry=dry), contextlib.redirect_stdout(sys.stderr):
                step()
                peaks.append(torch.cuda.max_memory_allocated())
        peaks_of[name] = {"values": peaks[0], "dry": peaks[1]}
    return peaks_of


def measure_large() -> dict[str, float]:
    """Run a step of a 7B model in a process; return its seconds and memory."""
    code = "import _dry_models; _dry_models.print_large()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_sheet.HERE, capture_output=True, text=True, check=False
    )
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        raise SystemExit(f"the large model failed:\n{done.stderr[-2000:]}") from None


# -- the sheet ---------------------------------------------------------------------------------------


def sheet(results: dict[str, Any], samples: int) -> str:
    """Return the sheet in Markdown."""
    return "\n".join(_parts(results, samples))


def _parts(results: dict[str, Any], samples: int) -> Iterator[str]:
    yield _sheet.header(
        "Runs without values", "python benchmarks/dry.py --write", METHOD.format(samples=samples)
    )
    left = [part for part in PARTS if part not in results]
    if left:
        yield f"Not measured for this sheet: {', '.join(left)}.\n"
    for part, shown in zip(PARTS, (_operators, _scripts, _stacks, _memory, _large), strict=True):
        if part in results:
            yield from shown(results[part])


def _operators(tally: dict[str, dict[str, str]]) -> Iterator[str]:
    tried = len(tally["equal"]) + len(tally["different"])
    share = len(tally["equal"]) / max(1, tried)
    yield "## Operators\n"
    yield f"**{len(tally['equal'])} of {tried} entries look the same without values ({share:.1%}).**\n"
    yield f"{len(tally['not tried'])} entries were not tried: no float32, or they raise with values, too.\n"
    yield _sheet.table(
        ["entry", "how it differs"], [[f"`{n}`", text] for n, text in tally["different"].items()]
    )


def _scripts(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    same = sum(run["same"] for run in runs.values())
    yield "## Field scripts\n"
    yield f"**{same} of {len(runs)} scripts wait at the same lines in the same steps.**\n"
    left = [run for run in runs.values() if run.get("switched") != "no"]
    kept = sum(run.get("switched") == "same" for run in left)
    valued = sum(bool(run.get("same as ever")) for run in runs.values())
    yield (
        f"Left to itself, the check computed the values of {valued} of them, as `--values` does. Made to go "
        f"on without values in the first step, {kept} of {len(left)} wait at the same lines in the same "
        "steps. Every run that waits otherwise lists decisions that rest on assumed values.\n"
    )
    columns = (
        "same", "waits", "dry", "lines", "decided", "same as ever", "switched", "decided then", "seconds",
        "dry seconds",
    )  # fmt: skip
    rows = [[name, *(run.get(column, "") for column in columns)] for name, run in runs.items()]
    yield _sheet.table(["script", *columns], rows)


def _stacks(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    same, reached = (
        sum(run["same"] for run in runs.values()),
        sum(run["reached"] == "yes" for run in runs.values()),
    )
    yield "## Scripts of today's stacks\n"
    yield (
        f"**{reached} of {len(runs)} scripts reach step 10 without values; {same} wait at the same lines in "
        "the same steps.** Where others wait otherwise, decisions that rest on assumed values are listed "
        "by the run itself (decided).\n"
    )
    columns = ("reached", "same", "waits", "dry", "lines", "decided", "seconds", "dry seconds")
    rows = [[name, *(run.get(column, "") for column in columns)] for name, run in runs.items()]
    yield _sheet.table(["script", *columns], rows)


def _memory(peaks: dict[str, dict[str, int]]) -> Iterator[str]:
    same = sum(peak["values"] == peak["dry"] for peak in peaks.values())
    yield "## Peak of a training step, bytes\n"
    yield f"**{same} of {len(peaks)} models have the same peak, to the byte.**\n"
    rows = [[name, peak["values"], peak["dry"]] for name, peak in peaks.items()]
    yield _sheet.table(["model", "with values", "dry"], rows)


def _large(seven: dict[str, float]) -> Iterator[str]:
    yield "## A model of 7B parameters\n"
    rows: list[list[object]] = [
        ["built and moved", f"{seven['build']:.2f} s"],
        ["a step", f"{seven['step']:.2f} s"],
        ["memory of the process", f"{seven['resident'] / 1e9:.2f} GB"],
        ["peak on the GPU, allocated", f"{seven['peak'] / 2**30:.1f} GiB"],
    ]
    yield _sheet.table(["", ""], rows)


def worse(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """List what was equal in `before` and is not now."""
    regressions = [
        f"{name}: {text}"
        for name, text in now.get("operators", {}).get("different", {}).items()
        if name in before.get("operators", {}).get("equal", {})
    ]
    regressions += [
        f"{name}: waits differ at {', '.join(run.get('lines', ()))}"
        for name, run in now.get("scripts", {}).items()
        if not run["same"] and before.get("scripts", {}).get(name, {}).get("same")
    ]
    regressions += [
        f"{name}: waits differ though no decision rests on a value that was assumed"
        for name, run in now.get("scripts", {}).items()
        if (not run["same"] and not run.get("decided"))
        or (run.get("switched") == "different" and not run["decided then"])
    ]
    regressions += [
        f"{name}: {'waits differ' if run['reached'] == 'yes' else run['reached']}"
        for name, run in now.get("stacks", {}).items()
        if run["reached"] != "yes" or (not run["same"] and not run["decided"])
    ]
    regressions += [
        f"{name}: {peak['dry']} bytes in place of {peak['values']}"
        for name, peak in now.get("memory", {}).items()
        if peak["dry"] != peak["values"]
    ]
    return regressions


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--only", default="", help="a regular expression for names of operators and scripts")
    parser.add_argument("--samples", type=int, default=3, help="sample inputs per entry")
    parser.add_argument(
        "--write", action="store_true", help="write the sheet and its data, with the parts measured now"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    now: dict[str, Any] = {}
    for part in options.part or PARTS:
        if part == "operators":
            now[part] = compare_metadata(
                [op for op in op_db if re.search(options.only, op.name)], options.samples
            )
            print({name: len(entries) for name, entries in now[part].items()})
            for name, text in now[part]["different"].items():
                print(f"  {name}: {text}")
            continue
        now[part] = {
            "scripts": lambda: compare_scripts(options.only),
            "stacks": lambda: compare_stacks(options.only),
            "memory": measure_peaks,
            "large": measure_large,
        }[part]()
        print(json.dumps(now[part], indent=1))
    if options.write:
        data = {**before, **now}
        RECORD.write_text(json.dumps(data, indent=1) + "\n")
        _sheet.write(SHEET.stem, sheet(data, options.samples))
        return 0
    regressions = worse(now, before)
    for text in regressions:
        print(f"worse: {text}")
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())

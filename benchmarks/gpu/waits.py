"""Ground truth for the table of waits: what Gapless predicts without a GPU, beside what a real GPU does.

    python benchmarks/gpu/waits.py                 # on a machine with a GPU: measure, predict, compare,
    write the sheet python benchmarks/gpu/waits.py --self-check    # anywhere: the emulated device in the
    GPU's place, writes nothing

Each entry of torch's ``op_db`` runs forward and backward with its own sample inputs on the device while
torch's synchronization debug mode warns; every warning is a wait. The same calls then run on the emulated
device, in a process that cannot see the GPU. Debug mode does not see explicit waits, nor copies from
pageable memory that were asked not to block; neither occurs in these calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _sheet
import op_db
import torch

_WORDS = "synchronizing CUDA operation"
_TRUTH = Path(__file__).with_name("waits.json")

Counts = dict[str, int]


def count_all(only: str, samples: int) -> Counts:
    """Waits of each call by torch's debug mode, on whatever ``cuda`` is here; -1 where the call fails."""
    found: Counts = {}
    for op in op_db.op_db:
        if only not in op.name:
            continue
        try:
            cases = [case for case in op_db.cases(op, samples) if case.variant == "function"]
        except Exception:
            continue
        for case in cases:
            if case.dtype is cases[0].dtype:
                found[str(case)] = count(case)
    return found


def count(case: Any) -> int:
    """Waits of one call, forward and backward. The first run warms kernels and library handles up."""
    waits = -1
    for _ in range(2):
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                watched(case)
        except Exception:
            torch.cuda.set_sync_debug_mode("default")
            return -1
        waits = sum(_WORDS in str(one.message) for one in heard)
    return waits


def watched(case: Any) -> None:
    """Run the call with the debug mode on around the operator alone, not around the copying of its inputs."""
    sample = case.sample
    inputs = [op_db.copied(value, "cuda") for value in (sample.input, *sample.args)]
    options = op_db.copied(sample.kwargs, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        out = op_db.spelled(case)(*inputs, **options)
        if op_db._differentiable(case):
            op_db.backward(sample.output_process_fn_grad(out))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def predict(only: str, samples: int) -> Counts:
    """The same counts from the emulated device, in a process of its own that sees no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "predicted.json"
        command = [
            sys.executable,
            __file__,
            "--predict",
            str(target),
            "--only",
            only,
            "--samples",
            str(samples),
        ]
        subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        counts: Counts = json.loads(target.read_text())
    return counts


def compared(real: Counts, predicted: Counts) -> tuple[str, dict[str, float]]:
    """The comparison as Markdown, and its figures."""
    both = [name for name in real if real[name] >= 0 and predicted.get(name, -1) >= 0]
    waits = {name for name in both if real[name]}
    said = {name for name in both if predicted[name]}
    right = waits & said
    exact = sum(real[name] == predicted[name] for name in both)
    figures = {
        "calls": len(both),
        "wait": len(waits),
        "precision": len(right) / len(said) if said else 1.0,
        "recall": len(right) / len(waits) if waits else 1.0,
        "same count": exact / len(both) if both else 1.0,
    }
    rows: list[list[object]] = [
        ["calls that run on both", len(both)],
        ["calls that wait", len(waits)],
        ["precision: of the calls said to wait, those that do", f"{figures['precision']:.3f}"],
        ["recall: of the calls that wait, those said to", f"{figures['recall']:.3f}"],
        ["calls whose number of waits is right", f"{figures['same count']:.3f}"],
        ["calls that run only on the GPU", sum(real[name] >= 0 > predicted.get(name, -1) for name in real)],
        ["calls that run only emulated", sum(real[name] < 0 <= predicted.get(name, -1) for name in real)],
    ]
    wrong = sorted(name for name in both if real[name] != predicted[name])
    misses = _sheet.table(
        ["call", "GPU", "predicted"], [[name, real[name], predicted[name]] for name in wrong]
    )
    return _sheet.table(
        ["", ""], rows
    ) + f"\n## {len(wrong)} calls whose number differs\n\n" + misses, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="only entries whose name contains this")
    parser.add_argument("--samples", type=int, default=4, help="sample inputs per entry")
    parser.add_argument(
        "--self-check", action="store_true", help="put the emulated device in the GPU's place"
    )
    parser.add_argument("--predict", type=Path, help="write the prediction to this file, and no more")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.predict or options.self_check:
        from gapless.emulate.emulator import Emulator

        with Emulator():
            real = count_all(options.only, options.samples)
        if options.predict:
            options.predict.write_text(json.dumps(real))
            return 0
    elif not torch.cuda.is_available():
        print(
            "no GPU here: the ground truth is not measured (--self-check runs without one)", file=sys.stderr
        )
        return 2
    else:
        real = count_all(options.only, options.samples)
    text, figures = compared(real, predict(options.only, options.samples))
    if options.self_check:
        print(text)
        return 0 if figures["same count"] == 1.0 else 1
    _TRUTH.write_text(json.dumps(real, indent=0))
    method = (
        f"op_db, first type of each entry, {options.samples} samples, forward and backward, second run of two"
    )
    title = "The table of waits against a real GPU"
    _sheet.write(
        "waits", _sheet.header(title, "python benchmarks/gpu/waits.py", method) + text, _TRUTH.parent
    )
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

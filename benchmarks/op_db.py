"""Every operator of torch's own test catalogue, on the plain CPU and on the emulated device, compared.

    python benchmarks/op_db.py                      # everything, compared with benchmarks/sheets/op_db.json
    python benchmarks/op_db.py --only 'linalg\\.'    # a subset
    python benchmarks/op_db.py --write              # writes benchmarks/sheets/op_db.md and .json

Each entry of ``op_db`` runs with its own sample inputs as function, as method, in place and with ``out=``,
and backward where it can. Compared are values (bit for bit, then to rounding), types, the device of every
output and of every gradient, and errors. Exits with 1 when there is a miss that the committed sheet's data
do not have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _sheet
import torch
from _op_samples import sample_inputs
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

from gapless.emulation.emulator import Emulator, current

Tensor = torch.Tensor
SHEET = Path(__file__).with_name("sheets") / "op_db.md"
SEED = 20
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16)

UNINITIALISED = dict.fromkeys(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    ),
    "its values are whatever the memory held",
) | {"fft.ihfftn out=": "torch does not write its result for one-dimensional input"}
"""Entries (or spellings) whose values are not compared, and why."""

ON_HOST = frozenset({"tensor_split"})
"""Entries whose arguments after the first must stay on the host."""

REASONS: dict[str, str] = {}
"""Reasons for misses, by entry."""

ROUNDED = "to rounding"
TOLERANCES = {
    torch.complex64: {"rtol": 1e-3, "atol": 1e-3},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 5e-3, "atol": 5e-3},
}
"""Below a dispatch mode autograd takes other ways, so long sums and factorizations differ a little.
Attention of halves accumulates in float32 as on a GPU; the CPU's plain formula rounds each step."""

RECORD = SHEET.with_suffix(".json")
METHOD = (
    "every entry of `op_db` that can make inputs for the CPU, in float32 (all spellings: function, "
    "method, in place, `out=`), int64, bool, complex64 and float16 (the function), with up to {samples}"
    " of its own sample inputs each (half as many for the other types), and backward with a fixed "
    'gradient where it can. Each call runs on the plain CPU and, with its inputs moved to "cuda", under'
    " emulation, with the same seed and one thread"
)


@dataclass(frozen=True)
class Case:
    """One call: an entry, its spelling, and the number of its sample."""

    op: Any
    variant: str
    dtype: torch.dtype
    number: int
    sample: Any

    @property
    def name(self) -> str:
        full: str = self.op.name
        return f"{full}.{self.op.variant_test_name}" if self.op.variant_test_name else full

    def __str__(self) -> str:
        return f"{self.name} {self.variant} {str(self.dtype).removeprefix('torch.')} #{self.number}"


@dataclass
class Result:
    """The outcome of a call."""

    outputs: list[Any] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    gradient_devices: list[str] = field(default_factory=list)
    error: str = ""
    waits: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """Counts over all calls."""

    entries: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    misses: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, Counter[str]] = field(default_factory=dict)
    called: Counter[str] = field(default_factory=Counter)
    rounded: Counter[str] = field(default_factory=Counter)


# -- the calls -------------------------------------------------------------------------------------


def cases(op: Any, samples: int) -> Iterator[Case]:
    """Yield the calls of one entry: all spellings for its first dtype, the function for the others."""
    supported = [dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
    supported = supported or sorted(op.supported_dtypes("cpu"), key=str)[:1]
    for position, dtype in enumerate(supported):
        wanted = samples if position == 0 else max(1, samples // 2)
        for number, sample in enumerate(samples_of(op, dtype, wanted)):
            for variant in variants(op) if position == 0 else ("function",):
                yield Case(op, variant, dtype, number, sample)


def variants(op: Any) -> Iterator[str]:
    yield "function"
    if op.method_variant is not None:
        yield "method"
    if op.inplace_variant is not None:
        yield "in place"
    if op.supports_out:
        yield "out="


def samples_of(op: Any, dtype: torch.dtype, wanted: int) -> list[Any]:
    """Return `wanted` of the entry's sample inputs, spread over the first 48."""
    torch.manual_seed(SEED)
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    inputs = list(itertools.islice(sample_inputs(op, dtype, gradients), 48))
    if len(inputs) <= wanted:
        return inputs
    return [inputs[round(i * (len(inputs) - 1) / max(1, wanted - 1))] for i in range(wanted)]


def callable_of(case: Case) -> Callable[..., Any]:
    """Return the callable of the case's spelling, taking the sample's inputs."""
    if case.variant == "method":
        return case.op.method_variant  # type: ignore[no-any-return]
    if case.variant == "in place":
        return lambda first, *rest, **options: case.op.inplace_variant(first.clone(), *rest, **options)
    if case.variant == "out=":

        def call(*inputs: Any, **options: Any) -> Any:
            shaped = case.op(*inputs, **options)
            out = tree_map(
                lambda value: torch.empty_like(value) if isinstance(value, Tensor) else value, shaped
            )
            return case.op(*inputs, **options, out=out)

        return call
    return case.op  # type: ignore[no-any-return]


def copy_to(value: Any, device: str) -> Any:
    """Return `value` with its tensors copied to `device` as leaves, and the CPU's name replaced by the
    device's."""
    if isinstance(value, Tensor):
        fresh = value.detach().clone() if device == "cpu" else value.detach().to(device, copy=True)
        return fresh.requires_grad_(value.requires_grad)
    if device != "cpu" and (value == "cpu" if isinstance(value, (str, torch.device)) else False):
        return device
    if device != "cpu" and isinstance(value, torch.device) and value.type == "cpu":
        return torch.device(device)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(copy_to(item, device) for item in value) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: copy_to(item, device) for key, item in value.items()}
    return value


def perform(case: Case, device: str) -> Result:
    """Run the case on `device`; an error becomes part of the result."""
    result = Result()
    sample = case.sample
    rest = "cpu" if case.op.name in ON_HOST else device
    inputs = [copy_to(sample.input, device), *(copy_to(value, rest) for value in sample.args)]
    options = copy_to(sample.kwargs, rest)
    watched: list[str] = []
    emulator = _on_wait(watched) if device != "cpu" else None
    torch.manual_seed(SEED)
    inference = case.variant == "out=" or not _differentiable(case)
    try:
        with torch.set_grad_enabled(not inference):
            out = callable_of(case)(*inputs, **options)
        result.outputs = [value for value in tree_flatten(out)[0] if not callable(value)]
        if not inference:
            backward(sample.output_process_fn_grad(out))
    except Exception as error:
        result.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        if emulator is not None:
            emulator.clear()
    result.waits = watched
    leaves = [value for value in tree_flatten((inputs, options))[0] if isinstance(value, Tensor)]
    result.gradients = [leaf.grad for leaf in leaves if leaf.is_leaf and leaf.requires_grad]
    result.devices = [str(value.device) for value in result.outputs if isinstance(value, Tensor)]
    result.gradient_devices = [str(value.device) for value in result.gradients if value is not None]
    if not any(value.is_cuda for value in leaves) and options.get("device") is None and device not in inputs:
        result.devices = [
            name.replace("cpu", "cuda:0") for name in result.devices
        ]  # nothing says "cuda" here
    return result


def _differentiable(case: Case) -> bool:
    if not case.op.supports_autograd or case.dtype not in case.op.supported_backward_dtypes("cpu"):
        return False
    return case.variant != "in place" or case.op.supports_inplace_autograd


def backward(out: Any) -> None:
    """Run backward from all differentiable outputs, with fixed gradients."""
    roots = [value for value in tree_flatten(out)[0] if isinstance(value, Tensor) and value.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.full_like(root, 0.5) for root in roots])


def _on_wait(watched: list[str]) -> list[Any]:
    """Append waits of the active emulation to `watched` until the returned list is cleared."""
    emulator = current()
    assert emulator is not None
    listeners = emulator.recorder.on_wait
    listeners.append(lambda site: watched.append(_describe_wait(site)))
    return listeners


def _describe_wait(site: Any) -> str:
    where = f" in {site.node}" if site.node else ""
    detail = f", {site.detail}" if site.detail else ""
    call = f" ({site.call})" if site.call else ""
    return f"{site.operator}{call} [{site.mechanism}{detail}]{where}"


# -- the comparison --------------------------------------------------------------------------------


def differences(case: Case, plain: Result, emulated: Result) -> Iterator[tuple[str, str]]:
    """Yield the kind and description of every difference."""
    if emulated.error:
        kind = (
            "mixed devices"
            if "same device" in emulated.error or "should be the same" in emulated.error
            else "error"
        )
        yield kind, emulated.error
        return
    if any(name != "cuda:0" for name in emulated.devices):
        yield "output's device", f"outputs on {', '.join(emulated.devices)}"
    if any(name != "cuda:0" for name in emulated.gradient_devices):
        yield "gradient's device", f"gradients on {', '.join(emulated.gradient_devices)}"
    if not UNINITIALISED.keys() & {case.op.name, f"{case.op.name} {case.variant}"}:
        for compared_part, left, right in (
            ("values", plain.outputs, emulated.outputs),
            ("gradients", plain.gradients, emulated.gradients),
        ):
            if _unequal(left, right, exactly=True):
                problem = _unequal(left, right, exactly=False)
                yield (compared_part, f"{compared_part}: {problem}") if problem else (ROUNDED, "")


def _unequal(left: list[Any], right: list[Any], exactly: bool) -> str:
    if len(left) != len(right):
        return f"{len(right)} in place of {len(left)}"
    for a, b in zip(left, right, strict=True):
        if type(a) is not type(b):
            return f"a {type(b).__name__} in place of a {type(a).__name__}"
        if isinstance(a, Tensor):
            problem = _unequal_tensors(a.detach(), b.detach(), exactly)
            if problem:
                return problem
        elif a != b and not (a != a and b != b) and not isinstance(a, (torch.device, str)):
            return f"{b} in place of {a}"
    return ""


def _unequal_tensors(a: Tensor, b: Tensor, exactly: bool) -> str:
    if a.dtype != b.dtype or a.layout != b.layout:
        return f"{b.dtype} {b.layout} in place of {a.dtype} {a.layout}"
    if a.is_nested:
        return _unequal(list(a.unbind()), list(b.unbind()), exactly)
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.shape != b.shape:
        return f"shape {tuple(b.shape)} in place of {tuple(a.shape)}"
    tolerance: dict[str, Any] = {"rtol": 0, "atol": 0} if exactly else TOLERANCES.get(a.dtype, {})
    try:
        torch.testing.assert_close(b, a, equal_nan=True, **tolerance)
    except AssertionError as error:
        return str(error).replace("\n", " ").strip()[:90]
    return ""


def compare(op: Any, samples: int, tally: Tally) -> None:
    """Run one entry in all its spellings and count outcomes."""
    try:
        todo = list(cases(op, samples))
    except Exception as error:
        tally.skipped[op.name] = f"its sample inputs cannot be made: {type(error).__name__}"
        return
    plain = [perform(case, "cpu") for case in todo]
    with Emulator():
        emulated = [perform(case, "cuda") for case in todo]
    tally.entries += 1
    for case, left, right in zip(todo, plain, emulated, strict=True):
        if left.error:
            tally.kinds["refused by the CPU"] += 1
            continue
        tally.called[case.name] += 1
        tally.calls[case.variant] += 1
        differing = list(differences(case, left, right))
        for kind, text in differing:
            tally.kinds[kind] += 1
            if kind == ROUNDED:
                tally.rounded[case.name] += 1
            else:
                tally.misses.setdefault(f"{case.name} ({case.variant}): {kind}", f"{case}: {text}")
        tally.kinds["as on the CPU"] += not differing
        for wait in right.waits:
            tally.waiting.setdefault(case.name, Counter())[wait] += 1


def run(entries: list[Any], samples: int, progress: bool = False) -> Tally:
    """Compare all `entries`."""
    tally = Tally()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, op in enumerate(entries):
            if progress and sys.stderr.isatty():
                print(f"\r{number}/{len(entries)} {op.name:40.40}", end="", file=sys.stderr)
            compare(op, samples, tally)
    return tally


# -- the sheet -------------------------------------------------------------------------------------


def to_record(tally: Tally) -> dict[str, Any]:
    """Return what later runs are compared with: counts, misses and the waits of each entry."""
    return {
        "counts": dict(sorted(tally.kinds.items())),
        "misses": dict(sorted(tally.misses.items())),
        "waits": {name: sorted(waits) for name, waits in sorted(tally.waiting.items())},
    }


def worse(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """List misses and waits that the earlier record lacks."""
    worse_texts = [text for key, text in now["misses"].items() if key not in before["misses"]]
    for name, waits in now["waits"].items():
        waits_before = before["waits"].get(name, [])
        worse_texts += [f"{name} waits anew: {wait}" for wait in waits if wait not in waits_before]
    return worse_texts


def sheet(tally: Tally, samples: int, seconds: float) -> str:
    """Return the sheet in Markdown."""
    calls = sum(tally.calls.values())
    alike = tally.kinds["as on the CPU"]
    header = _sheet.header(
        "op_db under emulation", "python benchmarks/op_db.py --write", METHOD.format(samples=samples)
    )
    summary = (
        f"{tally.entries} of {len(op_db)} entries, {calls} calls, {seconds:.0f} s. **{alike} calls are "
        "bit for bit as on the CPU with every output and gradient on the device; "
        f"{len(tally.rounded)} entries differ by rounding in some calls; {len(tally.misses)} misses.** "
        f"{tally.kinds['refused by the CPU']} calls raise on the plain CPU and were left out.\n"
    )
    misses = [[f"`{text}`", REASONS.get(key.split(" ")[0], "")] for key, text in sorted(tally.misses.items())]
    waiting = [
        [
            f"`{name}`",
            tally.called[name],
            "; ".join(f"{count} × `{wait}`" for wait, count in sorted(waits.items())),
        ]
        for name, waits in sorted(tally.waiting.items())
    ]
    lines = [
        header,
        summary,
        _sheet.table(["calls", "number"], [list(count) for count in sorted(tally.calls.items())]),
        _sheet.table(["outcome", "number"], [list(count) for count in sorted(tally.kinds.items())]),
        "## Misses\n",
        _sheet.table(["call", "reason"], misses) if misses else "None.\n",
        "## Entries that differ by rounding\n",
        "Some backward formulas and composite operators of ATen choose another, equal way when a dispatch "
        "mode is on (`isTensorSubclassLike`), and vectorized kernels depend on the alignment of memory.\n",
        ", ".join(f"`{name}` ({count})" for name, count in sorted(tally.rounded.items())) + "\n",
        "## Not compared\n",
        _sheet.table(
            ["entry", "reason"], [[f"`{name}`", why] for name, why in (UNINITIALISED | tally.skipped).items()]
        ),
        "## Entries that wait\n",
        "All other entries make the host wait in none of their calls. The counts are waits over all "
        "calls of the entry, backward included; what each wait rests on stands in the table of waits "
        "(docs/waits.md).\n",
        _sheet.table(["entry", "calls", "waits"], waiting),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="a regular expression: only entries whose name has it")
    parser.add_argument("--samples", type=int, default=4, help="sample inputs per entry")
    parser.add_argument(
        "--write", action="store_true", help="write the sheet, and take it as the new reference"
    )
    options = parser.parse_args(arguments)
    entries = [op for op in op_db if re.search(options.only, op.name)]
    began = time.perf_counter()
    tally = run(entries, options.samples, progress=True)
    seconds = time.perf_counter() - began
    print(f"{tally.entries} entries, {sum(tally.calls.values())} calls, {seconds:.0f} s: {dict(tally.kinds)}")
    for text in tally.misses.values():
        print(f"miss: {text}")
    now = to_record(tally)
    if options.write:
        _sheet.write(SHEET.stem, sheet(tally, options.samples, seconds))
        RECORD.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {"misses": {}, "waits": {}}
    regressions = worse(now, before)
    for text in regressions:
        print(f"worse: {text}")
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(main())

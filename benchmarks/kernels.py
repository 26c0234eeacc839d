"""Triton kernels of libraries, evaluated on the emulated device and compared with plain torch.

    python benchmarks/kernels.py                 # what is installed of: Triton's tutorials, Liger, fla
    python benchmarks/kernels.py --only liger    # one of them
    python benchmarks/kernels.py --write         # writes benchmarks/sheets/kernels.md

Needs `triton`, and of `liger-kernel` and `fla-core` those that are to be tried (no GPU). Each case runs once
on the emulated device, forward and backward, and once in plain torch on the CPU: results and gradients may
differ by 2e-3 of the largest number in them. A kernel is a function under ``@triton.jit`` or ``@gluon.jit``
that is launched somewhere in the package; those that no case launches are listed with the reason, as are
modules that cannot be imported.
Exits with 1 where one that was launched could not be evaluated, or a value differs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _sheet
import torch

sys.path.insert(0, str(Path(__file__).parent))
from kernel_cases.cases import Case

import gapless
from gapless.emulation.triton import launches

Tensor = torch.Tensor
SETS = ("tutorials", "liger", "fla")


@dataclass
class Outcome:
    """The result of a case: `error` is "" if it ran; `difference` is the largest, relative."""

    case: Case
    error: str = ""
    difference: float = 0.0
    worst: str = ""
    waits: int = 0
    places: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    plain_seconds: float = 0.0
    launched: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        if self.case.refused:
            return self.error.startswith("CompilationError")
        return not self.error and not self.failed and self.difference <= self.case.tolerance

    @property
    def state_word(self) -> str:
        """The state in one word."""
        if not self.is_good:
            return "WRONG"
        return "refused" if self.case.refused else "right" if self.case.plain else "ran"


class LaunchWatch:
    """Records which kernels are launched inside its block, and which were not evaluated."""

    def __init__(self) -> None:
        self.launched: set[str] = set()
        self.failed: dict[str, str] = {}
        self._real = (launches.TritonLaunches._record, launches.TritonLaunches._note_unknown)

    def __enter__(self) -> LaunchWatch:
        record, unknown = self._real

        def recorded(this: Any, compiled: Any, *rest: Any) -> None:
            self.launched.add(full_name(compiled.src.fn))
            record(this, compiled, *rest)

        def refused(this: Any, compiled: Any, reason: str) -> None:
            self.failed[full_name(compiled.src.fn)] = reason
            unknown(this, compiled, reason)

        launches.TritonLaunches._record = recorded  # type: ignore[method-assign]
        launches.TritonLaunches._note_unknown = refused  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        launches.TritonLaunches._record, launches.TritonLaunches._note_unknown = self._real  # type: ignore[method-assign]


def full_name(kernel: Any) -> str:
    """Return ``package.module.kernel``."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return f"{kernel.__module__}.{kernel.__qualname__}"


def float_tensors(result: Any) -> list[Tensor]:
    """Return the floating-point tensors of a result."""
    items = result if isinstance(result, (list, tuple)) else (result,)
    return [tensor for tensor in items if isinstance(tensor, Tensor) and tensor.is_floating_point()]


def run(case: Case, device: str, begin: Callable[[], None] = lambda: None) -> dict[str, Tensor]:
    """Return the results and gradients of a case; `begin` is called once the inputs are on the device."""
    inputs = case.build_inputs()
    leaves: dict[str, Tensor] = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            moved = value.detach().to(device)
            setattr(inputs, name, moved.requires_grad_(value.requires_grad and case.backward))
            leaves[name] = getattr(inputs, name)
    begin()
    function = case.run if device == "cuda" else case.plain
    assert function is not None
    results = float_tensors(function(inputs))
    tensors = {f"result {n}": tensor for n, tensor in enumerate(results)}
    if case.backward:
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (result.float() * weights(result.shape, generator, device)).sum()
            for result in results
            if result.requires_grad
        )
        if isinstance(total, Tensor):
            total.backward()
        tensors |= {
            f"gradient of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None
        }
    return tensors


def weights(shape: torch.Size, generator: torch.Generator, device: str) -> Tensor:
    """Return weights to sum results with, copied without a wait so that only the case's waits count."""
    random = torch.randn(shape, generator=generator)
    return random if device == "cpu" else random.pin_memory().to(device, non_blocking=True)


def largest_difference(got: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """Return the largest difference relative to its tensor's largest number, and the tensor's name."""
    worst = (0.0, "")
    for name, wanted in expected.items():
        other = got.get(name)
        if other is None:
            return float("inf"), f"{name} is missing"
        if other.shape != wanted.shape:
            return float("inf"), f"{name} has shape {tuple(other.shape)}, not {tuple(wanted.shape)}"
        scale = max(float(wanted.float().abs().max()), 1e-6)
        difference = float((other.float() - wanted.float()).abs().max()) / scale
        worst = max(worst, (difference if difference == difference else float("inf"), name))
    return worst


def places(session: Any) -> Counter[str]:
    """Count waits by place, without those of this file's own copies."""
    counts_at: Counter[str] = Counter()
    for event in session.events:
        for line in session.sites[event.site].stack[:1]:
            if Path(line.file) != Path(__file__):
                short = line.file.rpartition("/site-packages/")[2].rpartition("/kernel_cases/")[2]
                counts_at[f"{short}:{line.line}"] += event.waits
    return counts_at


def try_case(case: Case) -> Outcome:
    """Run a case on the emulated device and in plain torch; compare."""
    outcome = Outcome(case)
    watch = LaunchWatch()
    try:
        with watch, gapless.emulate() as emulated, case.turned():
            start: list[float] = []
            got = run(case, "cuda", lambda: start.extend((time.perf_counter(), emulated.waits)))
            outcome.seconds = time.perf_counter() - start[0]
            outcome.waits = emulated.waits - int(start[1])
            outcome.places = places(emulated.session)
            got = {name: tensor.detach().cpu() for name, tensor in got.items()}
        if case.plain is not None:
            begin = time.perf_counter()
            expected = run(case, "cpu")
            outcome.plain_seconds = time.perf_counter() - begin
            outcome.difference, outcome.worst = largest_difference(
                got, {name: tensor.detach() for name, tensor in expected.items()}
            )
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}".split("\n")[0][:160]
        if "--trace" in sys.argv:
            traceback.print_exc()
    outcome.launched, outcome.failed = watch.launched, watch.failed
    return outcome


@dataclass
class Package:
    """A package's launched kernels with their source, and reasons why modules cannot be imported."""

    kernels: dict[str, str] = field(default_factory=dict)
    closed: dict[str, list[str]] = field(default_factory=dict)


def read_package(package: str) -> Package:
    """Import all modules of `package`; return the ``@triton.jit`` functions they launch."""
    from triton.runtime.jit import JITFunction

    package_kernels = Package()
    texts: list[str] = []
    for name in modules_of(package):
        try:
            module = importlib.import_module(name)
            texts.append(Path(module.__file__).read_text() if module.__file__ else "")
        except Exception as error:
            reason = re.sub(r" \(.*", "", f"{error}".split("\n")[0].split(". ")[0])
            package_kernels.closed.setdefault(reason, []).append(name)
            continue
        for value in vars(module).values():
            inner = value
            while not isinstance(inner, JITFunction) and hasattr(inner, "fn"):
                inner = inner.fn
            if isinstance(inner, JITFunction) and inner.fn.__module__.split(".")[0] == package.split(".")[0]:
                package_kernels.kernels[full_name(inner)] = inspect.getsource(inner.fn)
    launched = set(re.findall(r"(\w+)\s*\[", "\n".join(texts)))
    package_kernels.kernels = {
        name: source
        for name, source in package_kernels.kernels.items()
        if name.rpartition(".")[2] in launched
    }
    return package_kernels


def modules_of(package: str) -> list[str]:
    root = importlib.import_module(package)
    inner = pkgutil.walk_packages(getattr(root, "__path__", ()), f"{package}.", onerror=lambda _: None)
    return [package, *(info.name for info in inner)]


def result_line(outcome: Outcome) -> str:
    more = outcome.error or "; ".join(f"{k}: {v}" for k, v in outcome.failed.items())
    if not more and not outcome.is_good:
        more = f"{outcome.worst} differs by {outcome.difference:.1e}"
    return (
        f"{outcome.state_word:7} {outcome.case.name:45} {outcome.difference:8.1e} "
        f"{outcome.seconds:6.2f} s  {more}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=SETS)
    parser.add_argument("--case", default="", help="cases whose name holds this")
    parser.add_argument("--write", action="store_true", help="write the sheet")
    parser.add_argument("--trace", action="store_true", help="show where a case fails")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts, bad = [], 0
    for name in SETS:
        if options.only in (None, name):
            text, failures = run_set(name, options.case)
            parts.append(text)
            bad += failures
    if options.write:
        import triton

        text = _sheet.header(
            "Triton kernels on the emulated device",
            "python benchmarks/kernels.py --write",
            f"triton {triton.__version__}; each case once, forward and backward, beside plain torch in fp32; "
            "differences in parts of the largest number of a tensor; times include making TTIR, which the "
            "cache may hold",
        )
        print(_sheet.write("kernels", text + "\n".join(parts)))
    return 1 if bad else 0


def run_set(name: str, only: str) -> tuple[str, int]:
    """Run one set; return its part of the sheet and the number of failed cases."""
    try:
        cases = importlib.import_module(f"kernel_cases.{name}")
        with gapless.emulate():  # libraries ask for a GPU when they are imported
            package = read_package(cases.PACKAGE)
    except ModuleNotFoundError as error:
        print(f"{name}: left out, {error}")
        return f"## {name}\n\nNot installed ({error}).\n", 0
    results = []
    for case in cases.CASES:
        if only in case.name:
            results.append(try_case(case))
            print(result_line(results[-1]), flush=True)
    bad = [result for result in results if not result.is_good]
    counted = "\n".join((*summarize(cases, package, results), *list_absent(cases, package, results)))
    print(counted)
    return _text(cases, results, counted), len(bad)


def summarize(cases: Any, package: Package, results: list[Outcome]) -> list[str]:
    """Return lines that count launched and evaluated kernels, and cases that hold."""
    launched = {name for result in results for name in result.launched}
    failed = {name for result in results for name in result.failed}
    refused = {result.case.refused for result in results if result.state_word == "refused"}
    other, words = getattr(cases, "ELSEWHERE", ("", ""))
    lines = []
    for apart in ["", other] if other else [""]:
        names = {name for name in package.kernels if bool(other and other in name) == bool(apart)}
        here = names & launched
        where = f"{cases.PACKAGE} {words}" if apart else cases.PACKAGE
        text = f"- {len(names)} kernels are launched somewhere in {where}: "
        text += f"{len(here)} were here, {len(here - failed)} of them evaluated"
        if names & refused:
            text += f"; {len(names & refused)} are refused by Triton's own compiler"
        lines.append(f"{text}.")
    right = sum(result.is_good for result in results)
    where = sum((result.places for result in results), Counter[str]())
    return [
        *lines,
        f"- {right} of {len(results)} cases are as they should be "
        f"({sum(result.case.plain is None for result in results)} have no reference); "
        f"{sum(result.waits for result in results)} waits"
        + (": " if where else "")
        + ", ".join(f"{count} at `{place}`" for place, count in where.most_common())
        + ".",
    ]


def list_absent(cases: Any, package: Package, results: list[Outcome]) -> list[str]:
    """List kernels that no case launches and modules that cannot be imported, with reasons."""
    import triton

    launched = {name for result in results for name in result.launched}
    refused = {result.case.refused for result in results if result.state_word == "refused"}
    other, words = getattr(cases, "ELSEWHERE", ("", ""))
    groups: dict[str, list[str]] = {}
    for name in sorted(set(package.kernels) - launched):
        reason = "launched by no case" + (f", {words}" if other and other in name else "")
        if name in refused:
            reason = f"refused by Triton {triton.__version__} itself, in a case"
        elif "make_block_ptr" in package.kernels[name] and _no_block_pointers():
            reason = f"made of block pointers, which Triton {triton.__version__} refuses"
        groups.setdefault(reason, []).append(f"`{name}`")
    lines = [f"- {len(names)} {reason}: {', '.join(names)}." for reason, names in groups.items()]
    for reason, modules in sorted(package.closed.items()):
        count = f"{len(modules)} modules" if len(modules) > 1 else "1 module"
        lines.append(
            f"- {count} cannot be imported ({reason}): {', '.join(f'`{module}`' for module in modules)}."
        )
    return lines


def _no_block_pointers() -> bool:
    from triton.language import make_block_ptr

    return "removed" in inspect.getsource(inspect.unwrap(make_block_ptr))


def _text(cases: Any, results: list[Outcome], counted: str) -> str:
    try:
        version = f" {importlib.metadata.version(cases.DISTRIBUTION)}" if cases.DISTRIBUTION else ""
    except importlib.metadata.PackageNotFoundError:
        version = ""
    words = {"right": "yes", "ran": "not compared", "refused": "refused", "WRONG": "no"}
    rows: list[list[object]] = [
        [
            result.case.name,
            len(result.launched),
            words[result.state_word],
            f"{result.difference:.0e}" if result.case.plain and not result.error else "",
            result.waits,
            f"{result.seconds:.2f}",
            result.error
            or "; ".join(result.failed.values())
            or ("" if result.is_good else result.worst)
            or result.case.why,
        ]
        for result in results
    ]
    text = f"## {cases.DISTRIBUTION or cases.PACKAGE}{version}\n\n{counted}\n\n"
    text += _sheet.table(["case", "kernels", "right", "difference", "waits", "seconds", "remark"], rows)
    failed = {k: v for result in results for k, v in result.failed.items()}
    if failed:
        text += "\nNot evaluated: " + "; ".join(f"`{k}` ({v})" for k, v in sorted(failed.items())) + ".\n"
    return text


if __name__ == "__main__":
    sys.exit(main())

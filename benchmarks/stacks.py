"""Today's training stacks as their documentation starts them, under `gapless check` and plainly on the CPU.

Makes an environment in `build/stacks` on top of the running one, whose torch is used, and runs each script
of `stacks/` there, offline, with tiny models made in code. How each went is kept, and the sheet is written of
all that are there, so it can be run in pieces: `python benchmarks/stacks.py trl_sft detr`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import _sheet

ROOT = _sheet.HERE.parent
SCRIPTS = _sheet.HERE / "stacks"
FOLDER = ROOT / "build" / "stacks"
PYTHON = FOLDER / "environment" / "bin" / "python"
RESULTS = FOLDER / "results"

PACKAGES = (
    "accelerate", "datasets", "diffusers", "gymnasium", "lightning", "open-clip-torch", "peft",
    "stable-baselines3", "timm", "torch-geometric", "torchmetrics", "transformers", "trl",
    "einops", "hjson", "iopath", "msgpack", "ninja", "orjson", "py-cpuinfo", "pyre-extensions", "pyvers",
)  # fmt: skip
"""The stacks, and requirements of those in `ALONE`."""
ALONE = (
    "deepspeed", "fbgemm-gpu-cpu==1.8.*", "liger-kernel", "megatron-core", "opencv-python-headless", "polars",
    "polars-runtime-32", "tensordict", "torchrec==1.8.*", "torchvision==0.28.0", "triton==3.7.1",
    "ultralytics", "ultralytics-thop",
)  # fmt: skip
"""Installed without dependencies: they pin another torch, or need much that a small run does without."""

ALL_STEPS = {"optimizers": ["--steps", "all"]}
ON_GPU_ONLY = {
    "lightning_fsdp": "Lightning's FSDP strategy wants a GPU",
    "megatron_te": "Megatron-Core wants a GPU",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "YOLO_OFFLINE": "true", "WANDB_MODE": "off"}
TIMEOUT = 300
BY_HAND = re.compile(r"^# By hand: (\d+)(?: to (\d+))? in each step: (.*\n(?:# .*\n)*)", re.MULTILINE)


def make_environment() -> None:
    """Make the environment unless it exists."""
    marker = FOLDER / "made"
    if marker.exists():
        return
    import torch

    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = PYTHON.parents[1]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
    beside = next((folder / "lib").glob("python*/site-packages"))
    (beside / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    limits = FOLDER / "constraints.txt"
    limits.write_text(f"torch=={torch.__version__.partition('+')[0]}\ntorchvision==0.28.0\n")
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(limits)]
    subprocess.run([*pip, "--no-deps", *ALONE], check=True)
    subprocess.run([*pip, *PACKAGES], check=True)
    marker.touch()


def run(script: Path) -> dict[str, Any]:
    """Run a script under `gapless check` and plainly; return both results."""
    result: dict[str, Any] = {"commit": _sheet.commit(), "versions": versions(script)}
    options = ["-q", "--no-loader", "-f", "json", *ALL_STEPS.get(script.stem, [])]
    printed, result["emulated"] = run_script(script, "check", *options, str(script))
    try:
        report, _ = json.JSONDecoder().raw_decode(printed, printed.index('{"format"'))
    except ValueError:
        report = {}
    result["ending"] = report.get("ending") or {"how": "no report", "status": 1, "message": ""}
    result["steps"] = report.get("steps") or {}
    result["unknown"] = report.get("unknown") or []
    if script.stem not in ON_GPU_ONLY:
        result["plain"] = run_script(script, "plain", str(script))[1]
    return result


def run_script(script: Path, how: str, *words: str) -> tuple[str, float | None]:
    """Run a script; return its output, and seconds per step from the third to the twelfth."""
    times = FOLDER / "times.json"
    times.unlink(missing_ok=True)
    command = [str(PYTHON), str(_sheet.HERE / "_stack_run.py"), str(times), how, *words]
    with (RESULTS / f"{script.stem}.{how}.txt").open("w") as errors:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=TIMEOUT,
                cwd=FOLDER,
                env=environment(),
            )
        except subprocess.TimeoutExpired:
            return "", None
    stepped = json.loads(times.read_text()) if times.exists() else []
    return done.stdout, (stepped[-1] - stepped[1]) / (len(stepped) - 2) if len(stepped) > 2 else None


def environment() -> dict[str, str]:
    """Return the environment variables of a script, with the network off."""
    paths = os.pathsep.join((str(ROOT / "src"), str(SCRIPTS)))
    return {**os.environ, **OFFLINE, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def versions(script: Path) -> dict[str, str]:
    """Return the versions of the packages that the script and its helpers import."""
    modules: set[str] = set()
    for text in (script.read_text(), *(helper.read_text() for helper in SCRIPTS.glob("_deepspeed.py"))):
        if modules and "_deepspeed" not in modules:
            break
        nodes = list(ast.walk(ast.parse(text)))
        modules |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = sorted({name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"torch"})
    code = (
        "import json, sys; from importlib.metadata import packages_distributions, version\n"
        "known = packages_distributions()\n"
        "names = [known[name][0] for name in sys.argv[1:] if name in known]\n"
        "print(json.dumps({name: version(name) for name in names}))"
    )
    said = subprocess.run([str(PYTHON), "-c", code, *tops], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def row(script: Path, result: dict[str, Any]) -> list[object]:
    """Return a line of the sheet."""
    steps, ending = result["steps"], result["ending"]
    reached = steps.get("seen", 0) >= 10 and not ending["status"]
    least, most = steps.get("least"), steps.get("most")
    emulated, plain = result["emulated"], result.get("plain")
    versions_text = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return [
        f"`{script.name}`",
        versions_text or "torch alone",
        "yes" if reached else f"**no**: {ending['message'] or ending['how']}",
        "–" if least is None else f"{least}" if least == most else f"{least} to {most}",
        by_hand(script, least, most),
        f"{emulated * 1e3:.0f} ms" if emulated else "–",
        f"{plain * 1e3:.0f} ms" if plain else ON_GPU_ONLY.get(script.stem, "–"),
        f"{emulated / plain:.1f} ×" if emulated and plain else "–",
    ]


def by_hand(script: Path, least: int | None, most: int | None) -> str:
    """Say whether the script's comment explains as many syncs as were found."""
    said = BY_HAND.search(script.read_text())
    if said is None:
        return "not looked at"
    counted = (int(said[1]), int(said[2] or said[1]))
    if counted == (least, most):
        return "explained"
    return f"explained: {said[1]}" if said[2] is None else f"explained: {said[1]} to {said[2]}"


def remarks(script: Path, result: dict[str, Any]) -> list[str]:
    """Return notes on what explains the syncs, and on operators not known."""
    said = BY_HAND.search(script.read_text())
    counted = " ".join(said[3].replace("\n# ", " ").split()) if said else ""
    unknown = ", ".join(f"`{name}`" for name in result["unknown"])
    return [
        *([f"- `{script.name}`: {counted}\n"] if counted else []),
        *([f"- `{script.name}`: whether these wait is not known: {unknown}.\n"] if unknown else []),
    ]


def sheet() -> str:
    """Return the sheet of all results."""
    kept = [path for path in sorted(SCRIPTS.glob("[!_]*.py")) if (RESULTS / f"{path.stem}.json").exists()]
    results = [(path, json.loads((RESULTS / f"{path.stem}.json").read_text())) for path in kept]
    rows = [row(*result) for result in results]
    commits = ", ".join(sorted({result["commit"] for _, result in results}))
    columns = ["script", "with", "reached step 10", "syncs in a step", "by hand", "emulated", "CPU", "ratio"]
    method = (
        'each script once under `gapless check`, then once plainly with `device="cpu"`, on a machine that '
        "others used too, so that ratios are rough; times are of a step, from the end of the second "
        "optimizer step to that of the twelfth. By hand: with the report in view, its places were explained "
        "from the library's code and from what the operator does on CUDA; that is no independent count, no "
        "GPU was there, and syncs that a report lacks were not searched for throughout. Commits of the runs: "
        f"{commits}"
    )
    head = _sheet.header("Training stacks under `gapless check`", "make stacks", method)
    reached, explained = (
        sum(cells[2] == "yes" for cells in rows),
        sum(cells[4] == "explained" for cells in rows),
    )
    total = f"{reached} of {len(rows)} reach step 10; the syncs of {explained} are explained by hand.\n\n"
    notes = "".join(line for result in results for line in remarks(*result))
    return f"{head}{total}{_sheet.table(columns, rows)}\n## Explained by hand\n\n{notes}"


def main() -> None:
    """Run all scripts, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names of scripts in stacks/; default: all")
    parser.add_argument("--only-sheet", action="store_true", help="write the sheet of what is known")
    wanted = parser.parse_args()
    by_name = {path.stem: path for path in sorted(SCRIPTS.glob("[!_]*.py"))}
    missing = ", ".join(sorted(set(wanted.scripts) - set(by_name)))
    if missing:
        parser.error(f"there is no {missing} in {SCRIPTS}")
    if not wanted.only_sheet:
        make_environment()
        RESULTS.mkdir(exist_ok=True)
        for name in wanted.scripts or by_name:
            result = run(by_name[name])
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1))
            print(" | ".join(map(str, row(by_name[name], result))), flush=True)
    _sheet.write("stacks", sheet())


if __name__ == "__main__":
    main()

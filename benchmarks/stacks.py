"""Today's training stacks as their documentation starts them, each under `gapless check` and plainly on the CPU.

Makes an environment in `build/stacks` on top of the running one, whose torch is used, and runs each script of
`stacks/` there, offline, with tiny models made in code. How each went is kept, and the sheet is written of all
that are there, so it can be run in pieces: `python benchmarks/stacks.py trl_sft detr`.
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
    "datasets", "diffusers", "gymnasium", "open-clip-torch", "peft", "stable-baselines3", "timm",
    "torch-geometric", "transformers", "trl", "accelerate", "lightning", "torchmetrics",
    "einops", "hjson", "ninja", "py-cpuinfo", "pyvers", "orjson", "iopath", "pyre-extensions", "msgpack",
)  # fmt: skip
ALONE = (
    "deepspeed", "fbgemm-gpu-cpu==1.8.*", "liger-kernel", "opencv-python-headless", "polars",
    "polars-runtime-32", "tensordict", "torchrec==1.8.*", "torchvision==0.28.0", "triton==3.7.1", "ultralytics",
    "ultralytics-thop",
)  # fmt: skip
"""These ask for another torch, or for much that a small run does without; they come without what they ask for."""

ALL_STEPS = {"optimizers": ["--steps", "all"]}
ON_GPU_ONLY = {"lightning_fsdp": "Lightning's FSDP strategy wants a GPU"}
SECONDS = 300
BY_HAND = re.compile(r"^# By hand: (\d+)(?: to (\d+))? in each step(.*)$", re.MULTILINE)
NAMES = {"torch", "gapless"}


def make() -> None:
    """Make the environment where there is none."""
    made = FOLDER / "made"
    if made.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(PYTHON.parents[1])], check=True)
    beside = next((PYTHON.parents[1] / "lib").glob("python*/site-packages"))
    (beside / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    import torch

    limits = FOLDER / "constraints.txt"
    limits.write_text(f"torch=={torch.__version__.partition('+')[0]}\ntorchvision==0.28.0\n")
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(limits)]
    subprocess.run([*pip, "--no-deps", *ALONE], check=True)
    subprocess.run([*pip, *PACKAGES], check=True)
    made.touch()


def run(script: Path) -> dict[str, Any]:
    """Check a script, run it plainly, and say how both went."""
    result: dict[str, Any] = {"commit": _sheet.commit(), "versions": versions(script)}
    options = ["-q", "--no-loader", "-f", "json", *ALL_STEPS.get(script.stem, [])]
    done, result["emulated"] = started(script, "check", *options, str(script))
    try:
        report = json.loads(done[done.index('{"format"') :])  # what the script itself prints comes before
    except ValueError:
        report = {}
    result["ending"] = report.get("ending") or {"how": "no report", "status": 1, "message": done[-300:]}
    result["steps"] = report.get("steps") or {}
    result["phases"] = [(one["name"], one["waits"]) for one in report.get("phases", []) if "waits" in one]
    result["unknown"] = report.get("unknown") or []
    result["places"] = [
        [one["code"], one["frequency"]["per_step"], one["sites"][0]["operator"], str(one["sites"][0]["stack"][0])]
        for one in report.get("findings", [])
        if one["frequency"]["per_step"]
    ]
    if script.stem not in ON_GPU_ONLY:
        result["plain"] = started(script, "plain", str(script))[1]
    return result


def started(script: Path, how: str, *words: str) -> tuple[str, float | None]:
    """What it printed, and the seconds of a step from the third to the twelfth."""
    times = FOLDER / "times.json"
    times.unlink(missing_ok=True)
    paths = os.pathsep.join((str(ROOT / "src"), str(SCRIPTS)))
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "YOLO_OFFLINE": "true", "WANDB_MODE": "off"}
    environment = {**os.environ, **offline, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    log = RESULTS / f"{script.stem}.{how}.txt"
    command = [str(PYTHON), str(_sheet.HERE / "_stack_run.py"), str(times), how, *words]
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False, timeout=SECONDS,
                cwd=FOLDER, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "", None
    stepped = json.loads(times.read_text()) if times.exists() else []
    return done.stdout, (stepped[-1] - stepped[1]) / (len(stepped) - 2) if len(stepped) > 2 else None


def versions(script: Path) -> dict[str, str]:
    """Of each package that the script imports."""
    tree = ast.parse(script.read_text())
    found = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    found |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if "_deepspeed" in found:
        found |= {"deepspeed"}
    tops = sorted({name.partition(".")[0] for name in found} - sys.stdlib_module_names - NAMES)
    code = (
        "import json, sys; from importlib.metadata import packages_distributions as of, version\n"
        "known = of()\n"
        "print(json.dumps({known[name][0]: version(known[name][0]) for name in sys.argv[1:] if name in known}))"
    )
    said = subprocess.run([str(PYTHON), "-c", code, *tops], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def row(script: Path, result: dict[str, Any]) -> list[object]:
    """A line of the sheet."""
    steps, ending = result["steps"], result["ending"]
    reached = steps.get("steady", 0) + 2 >= 10 and ending["how"] != "no report" and not ending["status"]
    least, most = steps.get("least"), steps.get("most")
    known = ", ".join(f"{name} {number}" for name, number in result["versions"].items()) or "torch alone"
    emulated, plain = result["emulated"], result.get("plain")
    return [
        f"`{script.name}`",
        known,
        "yes" if reached else f"**no**: {ending.get('message') or ending['how']}",
        "–" if least is None else f"{least}" if least == most else f"{least} to {most}",
        by_hand(script, steps),
        f"{emulated * 1e3:.0f} ms" if emulated else "–",
        f"{plain * 1e3:.0f} ms" if plain else ON_GPU_ONLY.get(script.stem, "–"),
        f"{emulated / plain:.1f} ×" if emulated and plain else "–",
    ]


def by_hand(script: Path, steps: dict[str, Any]) -> str:
    """What the script's own comment says it waits for, and whether that was found."""
    said = BY_HAND.search(script.read_text())
    if said is None:
        return "not yet"
    least, most = int(said[1]), int(said[2] or said[1])
    if (steps.get("least"), steps.get("most")) == (least, most):
        return "yes, the same"
    return f"**{least}**" if least == most else f"**{least} to {most}**"


def sheet() -> str:
    """All that is known of the scripts."""
    rows, counted = [], []
    for script in sorted(SCRIPTS.glob("[!_]*.py")):
        kept = RESULTS / f"{script.stem}.json"
        if kept.exists():
            rows.append(row(script, json.loads(kept.read_text())))
            said = BY_HAND.search(script.read_text())
            counted += [f"- `{script.name}`: {said[0][11:]}\n"] if said else []
    reached, agreed = (sum(str(one[n]).startswith("yes") for one in rows) for n in (2, 4))
    columns = ["script", "with", "reached step 10", "syncs in a step", "by hand", "emulated", "CPU", "ratio"]
    method = (
        "each script once, under `gapless check` and plainly with `device=\"cpu\"`, one after the other on a machine "
        "that others use too; times are from the end of the second optimizer step to that of the twelfth, by step, "
        "start-up excluded; syncs counted by hand from the libraries' sources before they were compared"
    )
    head = _sheet.header("Training stacks under `gapless check`", "make stacks", method)
    total = f"{reached} of {len(rows)} reach step 10; {agreed} agree with a count by hand, {len(rows) - len(counted)} were not counted.\n\n"
    return head + total + _sheet.table(columns, rows) + "\n## Counted by hand\n\n" + "".join(counted)


def main() -> None:
    """Run all scripts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names of scripts in stacks/; default: all")
    parser.add_argument("--only-sheet", action="store_true", help="write the sheet of what is known")
    wanted = parser.parse_args()
    if not wanted.only_sheet:
        make()
        RESULTS.mkdir(exist_ok=True)
        for script in sorted(SCRIPTS.glob("[!_]*.py")):
            if not wanted.scripts or script.stem in wanted.scripts:
                result = run(script)
                (RESULTS / f"{script.stem}.json").write_text(json.dumps(result, indent=1))
                print(" | ".join(map(str, row(script, result))), flush=True)
    _sheet.write("stacks", sheet())


if __name__ == "__main__":
    main()

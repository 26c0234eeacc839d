"""Everything that only a GPU can tell, in one command that can be stopped and goes on where it was.

    python benchmarks/gpu/measure.py                         # with a GPU: each script writes its sheet
    python benchmarks/gpu/measure.py --short --budget 420    # samples: each gets its turn in 7 minutes
    python benchmarks/gpu/measure.py --predict               # anywhere, afterwards: predictions still missing
    python benchmarks/gpu/measure.py --self-check            # anywhere: the emulated device as the GPU

The scripts' parts run breadth first, in the order in which the scripts are worth most, each in a process of
its own: first what times nothing, as many at once as there are cores, then one by one what needs the machine
for itself. What has a result is not done again unless ``--again``. With ``--out FOLDER`` sheets, profiles and
results so far are packed into archives there after each part, so that a run that is ended loses nothing;
where they are unpacked here, the next run goes on, on another machine too (``.state`` has to travel with it).
MEASURED_COMMIT names the commit where there is no git.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import _experiment
import _sheet

SCRIPTS = {
    "waits": "the table of waits, call by call, and evidence for its rows",
    "lines": "lines that wait in the examples and the field scripts",
    "values": "values and synchronizations of every metric and operation",
    "copies": "copies by direction, memory, size, stride and stream",
    "metrics": "the experiment with metrics at the article's size",
    "loss": "the experiment with the masked loss at the article's size",
    "dry": "dry runs at real size",
    "fixes": "the gain of each fix",
    "written": "what `gapless fix` writes, before and after",
    "profiles": "profiles of the examples, before and after each step",
    "graphs": "a whole step in one CUDA graph",
    "compiled": "breaks, recompilations, CUDA graphs and captures",
    "races": "each race's wrong number",
    "memory": "allocator snapshots and their replay",
    "overheads": "what profiles, callbacks, guards and metrics cost",
}
"""What each script measures, most valuable first."""
SHARE = 0.45
"""The part of the budget in which what times nothing has to end."""
VOLUME = 14 << 20
"""Bytes of files in one archive."""


def load(names: list[str]) -> tuple[list[_experiment.Script], list[str]]:
    """Return the scripts, and why some cannot run here (a package is missing)."""
    scripts, problems = [], []
    for name in names:
        try:
            module = _experiment.load_script(HERE / f"{name}.py", f"measured_{name}")
            scripts.append(module.script())
        except ImportError as error:
            problems.append(f"{name}: {error}")
    return scripts, problems


def pack(folder: Path | None) -> None:
    """Pack sheets, figures and results into one archive in `folder`; profiles and snapshots into others,
    each at most `VOLUME`."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    sheets = sorted([*HERE.glob("*.md"), *HERE.glob("*.json"), *_experiment.STATE.rglob("*.json")])
    volumes, size = [sheets], VOLUME
    for path in sorted(path for path in _experiment.KEPT.rglob("*") if path.is_file()):
        length = path.stat().st_size
        if length > VOLUME:
            print(f"{path} is too large to be packed: {length >> 20} MiB", file=sys.stderr)
            continue
        size += length
        if size > VOLUME:
            volumes.append([])
            size = length
        volumes[-1].append(path)
    names = ["measured", *(f"kept-{number}" for number in range(1, len(volumes)))]
    for name, paths in zip(names, volumes, strict=True):
        if paths:
            with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
                for path in paths:
                    archive.add(path, path.relative_to(HERE))


def missing() -> list[str]:
    """Return the packages that Gapless needs and that are not installed."""
    return [name for name in ("click", "jinja2", "msgspec", "numpy", "rich") if find_spec(name) is None]


def outcomes(scripts: list[_experiment.Script], problems: list[str]) -> str:
    """Return how many parts of each script have a result, as a Markdown table."""
    rows: list[list[object]] = []
    for script in scripts:
        parts = [*script.together, *script.alone]
        results = script.kept.results
        count = f"{sum(name in results for name in parts)} of {len(parts)}"
        rows.append([script.name, count, SCRIPTS[script.name]])
    return _sheet.table(["script", "parts", "what"], rows) + "".join(
        f"\n- {problem}\n" for problem in problems
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-check", action="store_true", help="run the scripts small, without a GPU")
    parser.add_argument("--short", action="store_true", help="samples, and few repetitions")
    parser.add_argument("--predict", action="store_true", help="only the parts that need no GPU")
    parser.add_argument("--measure", action="store_true", help="leave predictions for `--predict`")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, help="these scripts alone")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for everything (3600)")
    parser.add_argument("--out", type=Path, help="keep sheets and results as archives in this folder")
    options = parser.parse_args()
    if not options.self_check and not options.predict and not _experiment.REAL:
        return _experiment.no_gpu()
    if lacking := missing():
        print(f"missing here: {', '.join(lacking)}", file=sys.stderr)
        return 2
    scripts, problems = load([name for name in SCRIPTS if not options.only or name in options.only])
    if options.predict and not _experiment.REAL:
        os.environ.update(measured_gpu(scripts))
    status = _experiment.run_scripts(
        scripts,
        options.budget,
        lambda _, name: not (options.measure if name.startswith("predicted") else options.predict),
        again=options.again,
        after=lambda: pack(options.out),
        share=SHARE,
    )
    print(f"\n{outcomes(scripts, problems)}")
    return status or bool(problems)


def measured_gpu(scripts: list[_experiment.Script]) -> dict[str, str]:
    """Return the variable that names the GPU of the measurements so far, if there are any."""
    for script in scripts:
        for facts in script.kept.facts():
            name = facts["hardware"].partition("GPU: ")[2]
            if name != "none":
                return {"MEASURED_GPU": name}
    return {}


if __name__ == "__main__":
    sys.exit(main())

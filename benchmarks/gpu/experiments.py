"""Everything of the two articles on a GPU in one call: metrics, loss, prices, memory, graphs.

    python benchmarks/gpu/experiments.py                 # on a machine with a GPU: each writes its sheet
    python benchmarks/gpu/experiments.py --self-check    # anywhere

Each script runs in a process of its own; one that fails does not keep the others from running.
"""

from __future__ import annotations

import subprocess
import sys

import _experiment
import torch

SCRIPTS = ("metrics", "loss", "prices", "memory", "graphs")


def main() -> int:
    options = _experiment.parser(__doc__).parse_args()
    if not options.self_check and not torch.cuda.is_available():
        return _experiment.no_gpu()
    flags = ["--self-check"] if options.self_check else []
    failed = []
    for name in SCRIPTS:
        print(f"\n{name}.py", flush=True)
        command = [sys.executable, str(_experiment.HERE / f"{name}.py"), *flags]
        if subprocess.run(command).returncode:
            failed.append(f"{name}.py")
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

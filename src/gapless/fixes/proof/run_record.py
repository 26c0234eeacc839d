"""`RunPlan` and `RunRecord`: what a child process is to run, and what it recorded."""

from __future__ import annotations

import msgspec

from gapless.capture.options import CaptureOptions
from gapless.model import Ending


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run in the copy `root` of a project, and where to leave what was recorded.

    - `script`, `folder`: the script and the working directory, relative to `root`.
    - `original`: the root of the project itself, which is not written to.
    - `results`: the folder for the record, the session, the printed text and the values.
    - `sources`: the Python files of the copy, by relative path, of which lines that run are noted.
    - `max_steps`: step marks after which the script is stopped; `seconds`: it is stopped at the first mark
      after so long.
    - `seed`: of all random numbers that the script does not seed itself.
    """

    root: str
    script: str
    folder: str
    original: str
    results: str
    sources: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    capture: CaptureOptions = CaptureOptions()
    max_steps: int | None = None
    seconds: float | None = None
    seed: int = 0


class TensorRecord(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A tensor at one moment: what it is, a digest of its bytes, and where a sample of its elements lies.

    The sample is every `stride`-th of its elements, `stored` of them, from byte `offset` of the file of
    values; none if `offset` is -1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes
    offset: int = -1
    stored: int = 0
    stride: int = 1


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What an optimizer's step left: parameters and buffers, learning rates, and how much was printed.

    `printed` are bytes on standard output and error until then; `idle` the states of modules that no
    optimizer trains, as averages of the trained ones, after some of the steps.
    """

    optimizer: str
    tensors: tuple[TensorRecord, ...]
    rates: tuple[tuple[str, float], ...] = ()
    printed: tuple[int, int] = (0, 0)
    idle: tuple[TensorRecord, ...] = ()


class ProcessRecord(msgspec.Struct, frozen=True, array_like=True):
    """The steps of a process that the script started."""

    rank: int
    steps: tuple[StepRecord, ...]


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run showed, beside its session and its printed text.

    - `ending`: how it ended.
    - `steps`: one for each optimizer step, in order; `marks`: the step marks that the stop counts.
    - `results`: outputs of the model in a script that trains nothing.
    - `final`: the optimizers' states, parameters and buffers at the end; `saved`: what `torch.save` wrote.
    - `random`: digests of the states of all generators at the end.
    - `outside`: files outside of the project that the script wrote; `processes` that it started.
    - `seconds`: how long the script ran.
    """

    ending: Ending
    steps: tuple[StepRecord, ...] = ()
    marks: int = 0
    results: tuple[TensorRecord, ...] = ()
    final: tuple[TensorRecord, ...] = ()
    saved: tuple[TensorRecord, ...] = ()
    random: dict[str, bytes] = {}
    outside: tuple[str, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    seconds: float = 0.0

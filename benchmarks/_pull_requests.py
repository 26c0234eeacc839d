"""Pull requests that removed syncs, and what their authors say of them: the cases of `pull_requests.py`."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A pull request, the code before it, and how to run that.

    - `owner`, `name`, `number`: of the repository on GitHub, and the pull request's own;
    - `before`: the commit before the change or, of a package, its version; `parts`: the folders and files of
      the repository that are imported;
    - `script`: a script in `benchmarks` with its arguments, and `options` of `gapless check` for it;
    - `changed`: the places that the authors changed, each ``file:line`` of the code before; the first is the
      cause that they name;
    - `syncs`: those of a step, before and after, as the authors count them;
    - `gain`: milliseconds that they gained, of steps of `step` milliseconds; of a step of 100 if they give
      no times but a share; None if they give neither; `spread`: how far off it may be, by what they say;
    - `alone`: whether the script runs only the part of the step that was changed, so that milliseconds are
      compared, not shares of the step;
    - `note`: what differs from their measurement.
    """

    owner: str
    name: str
    number: int
    before: str
    parts: tuple[str, ...]
    script: str
    options: str
    changed: tuple[str, ...]
    syncs: str
    gain: float | None = None
    step: float = 100.0
    spread: float = 0.0
    alone: bool = False
    note: str = ""

    @property
    def link(self) -> str:
        number = f"{self.name} #{self.number}"
        return f"[{number}](https://github.com/{self.owner}/{self.name}/pull/{self.number})"

    @property
    def packaged(self) -> bool:
        """Whether the code is a package's, not a commit's."""
        return "." in self.before

    @property
    def source(self) -> str:
        """What the folder of the checkout, or of the unpacked package, is called."""
        return f"{self.name}-{self.before}" if self.packaged else self.name


CASES = (
    Case(
        "lnccbrown", "LANfactory", 120, "f178bf805e25b87910ce4c6f3d6b74fc214f7b4a", ("src",),
        "pull_requests/lanfactory_120.py", "--gpu rtx3090", ("torch_mlp.py:720",), "1 → 1 an epoch",
        gain=0.08, step=1.97, note="batches lie on the GPU",
    ),
    Case(
        "pytorch", "torchtitan", 2440, "32f9c58f6368b24296d4b2d1c322b3b72a951397", ("torchtitan",),
        "pull_requests/torchtitan_2440.py", "--gpu h100",
        ("moe.py:162", "moe.py:163", "moe.py:172", "moe.py:174"), "4 lines → none", note="one small layer",
    ),
    Case(
        "pytorch", "torchtitan", 3274, "28b83bdf106930f1f2345376a9dd00dd18ba6261", ("torchtitan",),
        "pull_requests/torchtitan_3274.py", "--gpu h100 --world-size 8",
        ("token_dispatcher.py:374", "token_dispatcher.py:358"), "192 → 36", note="the dispatch alone",
    ),
    Case(
        "roboflow", "rf-detr", 1492, "1.10.1", (), "_published_rfdetr.py medium --batch 8 --solve-on-gpu",
        "--gpu rtx4090 --dry", ("_assignment.py:83",), "164.3 → 14.7", gain=0.23,
        spread=6.6, note="nine rounds from −12.5 %, under `torch.compile`, on a GPU that is not named",
    ),
    Case(
        "roboflow", "rf-detr", 1409, "1.9.4", (), "_published_rfdetr.py nano --batch 4", "--gpu l4 --dry",
        ("param_groups.py:61",), "none; 465 groups → 28", gain=23.0,
    ),
    Case(
        "LibreYOLO", "libreyolo", 761, "1.4.0", (), "pull_requests/libreyolo_761.py rfdetr",
        "--gpu rtx5070ti --dry",
        ("matcher.py:344", "loss.py:661", "trainer.py:912", "transformer.py:280", "trainer.py:2074",
         "matcher.py:247"),
        "17 → 6", gain=32.0, step=266.0,
        note="`fused=True` at the line of its read; `matcher.py:247` is a slow kernel, which reads nothing",
    ),
    Case(
        "LibreYOLO", "libreyolo", 772, "1.4.0", (), "pull_requests/libreyolo_761.py dfine",
        "--gpu rtx5070ti --dry",
        ("denoising.py:69", "loss.py:468", "loss.py:478", "matcher.py:173"), "19 → 3",
    ),
    Case(
        "huggingface", "diffusers", 14589, "58eb52c080", ("src",), "pull_requests/diffusers_14589.py",
        "--gpu l40s --dry --steps all --no-standins",
        ("pipeline_cogvideox.py:744", "scheduling_ddim_cogvideox.py:391", "scheduling_ddim_cogvideox.py:392"),
        "1 + 1 + 2 → none", gain=0.0,
        spread=0.5, note="no change of the wall clock, taken as less than 0.5 %",
    ),
    Case(
        "facebookresearch", "fairchem", 2203, "a73c95be1", ("src",), "pull_requests/fairchem_2203.py",
        "--gpu b200 --world-size 8",
        ("loss.py:87", "loss.py:117", "loss.py:120", "loss.py:121", "loss.py:125", "loss.py:129",
         "loss.py:163",
         "mlip_unit.py:207", "mlip_unit.py:211", "mlip_unit.py:283"),
        "15 or more at each line → none", gain=7.61, step=152.18, alone=True, note="the loss alone",
    ),
    Case(
        "NVIDIA", "Megatron-LM", 7076, "d98e8a64dd",
        ("megatron", "pretrain_gpt.py", "gpt_builders.py", "model_provider.py"),
        "pull_requests/megatron_7076.py", "--gpu b200 --dry --no-standins --world-size 64",
        ("rerun_state_machine.py:598", "common_utils.py:287", "common_utils.py:310", "clip_grads.py:138",
         "clip_grads.py:275", "training.py:4869", "training.py:3622", "timers.py:152"),
        "142 → 38, 74 of them at the first",
        note="a dense model; theirs a mixture of experts, of which 35 are left, on 256 GPUs",
    ),
)  # fmt: skip

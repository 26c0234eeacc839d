"""GAP145."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import bare_names, deciding_frame

_FILE = "transformers/trainer.py"
# The methods that hold the test, in older and newer versions of transformers, in training and evaluation.
_LOOPS = {"_run_epoch", "_inner_training_loop", "train", "evaluation_loop"}


class TrainerNanFilter(WaitRule):
    """Hugging Face `Trainer` tests each loss for NaN on the CPU (`logging_nan_inf_filter`).

    ## What waits
    With `logging_nan_inf_filter=True`, which is the default, `Trainer` tests the loss of each step with
    `torch.isnan(loss) or torch.isinf(loss)` before it adds it to the sum that is logged: two reads on the
    CPU.

    ## Why it costs
    The test follows backward, so the CPU waits for nearly the whole step, every step, and every profile
    of a `Trainer` with a small model shows the gap before the optimizer. The filter changes only what is
    logged, not the training.

    ## Example
    ```python
    arguments = TrainingArguments(output_dir, per_device_train_batch_size=4, max_steps=20)
    Trainer(model=model, args=arguments, train_dataset=dataset).train()
    ```

    ## Use instead
    ```python
    arguments = TrainingArguments(
        output_dir, per_device_train_batch_size=4, max_steps=20, logging_nan_inf_filter=False
    )
    Trainer(model=model, args=arguments, train_dataset=dataset).train()
    ```
    A NaN loss then shows up as NaN in the log, which is what most people want.

    ## When it is fine
    Where occasional bad steps are expected and must not affect the logged mean."""

    code = "GAP145"
    name = "trainer-nan-filter"
    priority = 100
    advice = (
        "`TrainingArguments(logging_nan_inf_filter=False)` disables the check; a NaN then shows up in the log"
    )
    change = "`TrainingArguments(logging_nan_inf_filter=False)`"

    def matches(self, site: Site) -> bool:
        frame = deciding_frame(site)
        if site.mechanism != "read" or frame is None or "__bool__" not in bare_names(site):
            return False
        in_trainer = frame.library == "transformers" and frame.file.replace("\\", "/").endswith(_FILE)
        return in_trainer and frame.function.rpartition(".")[2] in _LOOPS

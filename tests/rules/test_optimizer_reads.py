"""GAP151 names the tensor that an optimizer reads, and its remedy works: for all optimizers of torch."""

from __future__ import annotations

import inspect
import io
import warnings

import pytest
import torch

import gapless
from gapless.analyze import report
from gapless.model import Finding

OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
COUNTED = {"Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam"}
"""Those that read their step counts where they are on the GPU."""
STEPS = 4
NOT_HERE = {"SparseAdam": "takes sparse gradients only", "LBFGS": "takes a closure, and reads its loss"}
ELSEWISE = {"Adafactor": "norms", "ASGD": "rates"}
"""Optimizers that read more than these on the GPU, whatever is done."""


def optimizer_of(name: str, net: torch.nn.Module, **options: object) -> torch.optim.Optimizer:
    return OPTIMIZERS[name](net.parameters(), **{"lr": 0.01, **options})


def trained(prepare, name: str, **options: object) -> list[Finding]:
    """The findings of GAP151 in a few steps of training, after `prepare` had the optimizer.

    An option that is a function is called on the emulated GPU, for its tensors.
    """
    with gapless.emulate("a100") as emulated, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.nn.Linear(4, 3, bias=False, device="cuda")
        own = {key: value() if callable(value) else value for key, value in options.items()}
        optimizer = optimizer_of(name, net, **own)

        def step() -> None:
            optimizer.zero_grad()
            net(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

        step()
        prepare(optimizer)
        for _ in range(STEPS):
            step()
    all_findings = report(emulated.session).findings
    return [finding for finding in all_findings if finding.code == "GAP151" and finding.frequency.in_steps]


def as_it_is(optimizer: torch.optim.Optimizer) -> None:
    return


def moved(optimizer: torch.optim.Optimizer) -> None:
    """What a trainer does that moves every tensor of the state."""
    for state in optimizer.state.values():
        state.update({key: held.cuda() for key, held in state.items() if torch.is_tensor(held)})


def loaded(where: str):
    def load(optimizer: torch.optim.Optimizer) -> None:
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, map_location=where))

    return load


def names(findings: list[Finding]) -> str:
    return " ".join(finding.remedy for finding in findings)


def test_no_optimizer_of_torch_is_left_out():
    assert {"SGD", "Adam", "RMSprop", *COUNTED, *NOT_HERE} <= OPTIMIZERS.keys()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - NOT_HERE.keys()))
@pytest.mark.parametrize("prepare", [moved, loaded("cuda")], ids=["moved", "loaded"])
def test_a_step_count_on_the_gpu_is_named_and_left_on_the_cpu(name, prepare):
    usual = trained(as_it_is, name)
    of_step = [finding for finding in trained(prepare, name) if "state['step']" in finding.remedy]
    assert len(of_step) == (name in COUNTED)
    for finding in of_step:
        assert 'map_location="cpu"' in finding.remedy
        assert finding.change == "leave the optimizer's `step` on the CPU"
        assert "learning rate" not in finding.remedy
        takes = optimizer_of(name, torch.nn.Linear(1, 1)).defaults
        assert ("`capturable=True`" in finding.remedy) == ("capturable" in takes)
        assert ("`fused=True`" in finding.remedy) == ("fused" in takes)
    # The remedy: then it reads no more than it does in any case.
    after = [finding for finding in trained(loaded("cpu"), name) if "mu_product" not in finding.remedy]
    assert sum(finding.frequency.waits for finding in after) <= sum(
        finding.frequency.waits for finding in usual
    )


def test_loading_moves_a_number_that_nadam_reads_and_capturable_leaves_it_there():
    (finding,) = trained(loaded("cpu"), "NAdam")
    assert finding.change == "give the optimizer `capturable=True`"
    assert "`load_state_dict` moves `mu_product` to the GPU" in finding.remedy
    assert trained(loaded("cpu"), "NAdam", capturable=True) == []


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"])
def test_a_capturable_optimizer_reads_no_step_count(name):
    assert trained(moved, name, capturable=True) == []


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad"])
def test_a_fused_update_does_not_wait(name):
    assert trained(moved, name, fused=True) == []


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - NOT_HERE.keys() - ELSEWISE.keys()))
def test_a_learning_rate_on_the_gpu_is_named(name):
    try:
        of_rate = trained(as_it_is, name, lr=lambda: torch.tensor(0.01, device="cuda"), foreach=False)
    except (ValueError, TypeError, RuntimeError) as refused:
        pytest.skip(f"{name} takes no such learning rate: {refused}")
    for finding in of_rate:
        assert finding.change == "keep the learning rate a Python number"
        assert "state" not in finding.remedy
    assert trained(as_it_is, name, foreach=False) == []


def test_betas_on_the_gpu_are_named():
    def betas() -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(each, device="cuda") for each in (0.9, 0.99))

    (finding,) = trained(as_it_is, "Adam", betas=betas, foreach=False)
    assert finding.change == "keep the betas a Python number"

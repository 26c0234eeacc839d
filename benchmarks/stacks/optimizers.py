"""torch.optim: every optimizer in its single, foreach, fused and capturable forms, two steps each."""

import inspect

import _tiny
import torch
from torch import nn

device = torch.device(_tiny.device())
torch.manual_seed(0)
SPARSE = {"SparseAdam"}
for name in sorted(vars(torch.optim)):
    kind = getattr(torch.optim, name)
    if (
        not inspect.isclass(kind)
        or not issubclass(kind, torch.optim.Optimizer)
        or kind is torch.optim.Optimizer
    ):
        continue
    accepted = inspect.signature(kind).parameters
    forms = [{}] + [{form: True} for form in ("foreach", "fused", "capturable") if form in accepted]
    for options in forms:
        if options.get("capturable") and device.type == "cpu":
            continue
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
        if name in SPARSE:
            model = nn.Sequential(nn.Embedding(10, 8, sparse=True)).to(device)
        parameters = [parameter for parameter in model.parameters() if parameter.ndim == 2 or name != "Muon"]
        optimizer = kind(parameters, lr=1e-3, **options)
        for _ in range(2):
            inputs = (
                torch.randint(0, 10, (4,), device=device)
                if name in SPARSE
                else torch.randn(4, 8, device=device)
            )

            def closure(model=model, inputs=inputs, optimizer=optimizer):
                optimizer.zero_grad()
                loss = model(inputs).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure) if name == "LBFGS" else (closure(), optimizer.step())

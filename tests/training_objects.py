"""Create objects of each kind that training scripts use, for tests of when they are freed.

Each function creates some on a device, uses them and returns them by name. Without a GPU, a plain object
replaces what only a GPU has: it is freed when nothing refers to it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

Made = dict[str, Any]
KINDS: dict[str, Callable[[str], Made]] = {}


def kind(make: Callable[[str], Made]) -> Callable[[str], Made]:
    KINDS[make.__name__] = make
    return make


class Plain:
    """Stands where there is no GPU for what only a GPU has."""


class Rows(Dataset):
    def __init__(self) -> None:
        self.rows = torch.arange(32.0).view(8, 4)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Double(torch.autograd.Function):
    contexts: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        Double.contexts.append(ctx)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def network(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)


def batch(device: str) -> torch.Tensor:
    return torch.ones(8, 4, device=device)


def train(model: Any, optimizer: Any, device: str) -> torch.Tensor:
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(batch(device)).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def compiled(target: Any, device: str, **options: Any) -> Any:
    return torch.compile(target, backend="eager") if device == "cpu" else torch.compile(target, **options)


@kind
def module(device: str) -> Made:
    model = network(device)
    model.eval()
    model.train()
    return {"model": model, "weight": model[0].weight, "out": model(batch(device))}


@kind
def training(device: str) -> Made:
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss, weight = train(model, optimizer, device), model[0].weight
    state = optimizer.state[weight]["exp_avg"]
    return {"model": model, "optimizer": optimizer, "loss": loss, "gradient": weight.grad, "state": state}


@kind
def evaluation(device: str) -> Made:
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    train(model, optimizer, device)
    model.eval()
    with torch.no_grad():
        return {"model": model, "optimizer": optimizer, "out": model(batch(device)).cpu()}


@kind
def optimizers(device: str) -> Made:
    model = network(device)
    unused = torch.optim.SGD(model.parameters(), 1e-3)
    optimizer = torch.optim.SGD(model[0].parameters(), 1e-3, momentum=0.9)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(model, optimizer, device)
    scheduler.step()
    return {"unused": unused, "optimizer": optimizer, "scheduler": scheduler}


@kind
def optimizers_in_backward(device: str) -> Made:
    model = network(device)
    each = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        each[parameter].step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    model(batch(device)).mean().backward()
    return {"model": model, "optimizer": each[model[0].weight], "hook": step}


@kind
def scalers(device: str) -> Made:
    objects: Made = {}
    for name, scale in (("steps", 2.0), ("skips", 2.0**126)):
        model = network(device)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler(device, scale)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(batch(device)).mean()
        scaler.scale(loss * 1e30).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        objects.update({f"model {name}": model, f"optimizer {name}": optimizer, f"scaler {name}": scaler})
    return objects


@kind
def tensors(device: str) -> Made:
    tensor = torch.ones(8, 4, device=device)
    view, copied, mask = tensor[1:], tensor.cpu(), tensor > 0
    tensor.add_(1)
    assert tensor.sum().item() == 64
    assert bool(mask.all())
    return {
        "tensor": tensor, "view": view, "copy": copied, "array": copied.numpy(), "mask": mask,
        "some": tensor[mask], "unique": tensor.unique(), "random": F.dropout(torch.randn(4, device=device)),
        "sparse": torch.eye(4, device=device).to_sparse() @ tensor[:4],
    }  # fmt: skip


@kind
def copies(device: str) -> Made:
    pinned = torch.ones(8, 4).pin_memory() if device == "cuda" else torch.ones(8, 4)
    moved = pinned.to(device, non_blocking=True)
    back = moved.to("cpu", non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return {"pinned": pinned, "there": moved, "back": back}


@kind
def graphs_of_autograd(device: str) -> Made:
    weight = torch.ones(8, 4, device=device, requires_grad=True)
    hidden = (weight * 2).exp()
    loss = hidden.sum()
    loss.backward(retain_graph=True)
    (twice,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    assigned = weight * 1
    assigned[0] = torch.tensor(2.0)
    return {"weight": weight, "hidden": hidden, "loss": loss, "twice": twice, "assigned": assigned}


@kind
def checkpoints(device: str) -> Made:
    model, x = network(device), batch(device).requires_grad_()
    for reentrant in (False, True):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    return {"model": model, "x": x}


@kind
def contexts(device: str) -> Made:
    x = batch(device).requires_grad_()
    done, pending = Double.apply(x), Double.apply(x)
    done.sum().backward()
    objects = {"x": x, "pending": pending, "done": done}
    objects.update({f"context {at}": context for at, context in enumerate(Double.contexts)})
    Double.contexts.clear()
    return objects


@kind
def loaders(device: str) -> Made:
    rows, moved = Rows(), TensorDataset(torch.ones(8, 4, device=device))
    loader, copies_there = DataLoader(rows, 2, shuffle=True), DataLoader(moved, 2)
    iterator = iter(loader)
    first, whole = next(iterator).to(device), [row for (row,) in copies_there]
    return {
        "rows": rows, "loader": loader, "iterator": iterator, "batch": first, "moved": moved,
        "there": copies_there,
        "last": whole[-1],
    }  # fmt: skip


@kind
def generators(device: str) -> Made:
    generator = torch.Generator(device).manual_seed(3)
    drawn, state = torch.randn(4, device=device, generator=generator), generator.get_state()
    generator.set_state(state)
    return {"generator": generator, "drawn": drawn, "state": state}


@kind
def streams(device: str) -> Made:
    if device == "cpu":
        return {"stream": Plain(), "event": Plain(), "x": torch.ones(4), "y": torch.ones(4) + 1}
    stream, event, x = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.ones(4, device=device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x + 1
    event.record(stream)
    y.record_stream(torch.cuda.current_stream())
    event.synchronize()
    return {"stream": stream, "event": event, "x": x, "y": y}


@kind
def hooks(device: str) -> Made:
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    handles = [
        model.register_forward_hook(lambda *hook_arguments: None),
        model[0].register_full_backward_hook(lambda *hook_arguments: None),
        model[0].weight.register_hook(lambda gradient: gradient),
        model[0].bias.register_post_accumulate_grad_hook(lambda parameter: None),
        optimizer.register_step_post_hook(lambda *hook_arguments: None),
    ]
    train(model, optimizer, device)
    return {"model": model, **{f"handle {at}": handle for at, handle in enumerate(handles)}}


@kind
def compiled_modules(device: str) -> Made:
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    fast = compiled(model, device)
    return {"model": model, "compiled": fast, "optimizer": optimizer, "loss": train(fast, optimizer, device)}


@kind
def compiled_functions(device: str) -> Made:
    model, settings = network(device), Plain()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    settings.bias = torch.ones(1, device=device)  # type: ignore[attr-defined]

    def step(x: torch.Tensor, settings: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) + settings.bias).mean()
        loss.backward()
        optimizer.step()
        return loss

    fast, x = compiled(step, device), batch(device)
    return {"model": model, "compiled": fast, "x": x, "settings": settings, "loss": fast(x, settings)}


@kind
def compiled_graphs(device: str) -> Made:
    model, x = network(device), batch(device)
    fast = compiled(model, device, mode="reduce-overhead")
    for _ in range(3):
        loss = fast(x).mean()
        loss.backward()
    return {"model": model, "compiled": fast, "x": x, "loss": loss}


@kind
def graphs_of_cuda(device: str) -> Made:
    model, x = network(device), batch(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    train(model, optimizer, device)
    graph: Any = Plain()
    if device == "cuda":
        optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
        graph.replay()
    else:
        loss = model(x).mean()
    return {"graph": graph, "model": model, "optimizer": optimizer, "x": x, "loss": loss}


@kind
def scripted(device: str) -> Made:
    model = torch.jit.script(network(device))
    return {"model": model, "out": model(batch(device))}


@kind
def layers(device: str) -> Made:
    recurrent, images = (
        nn.LSTM(4, 4).to(device),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(device),
    )
    attention, lazy = nn.TransformerEncoderLayer(8, 2, 16).to(device), nn.LazyLinear(4).to(device)
    lazy(batch(device)).sum().backward()
    recurrent(torch.ones(3, 2, 4, device=device))[0].sum().backward()
    images(torch.ones(2, 1, 8, 8, device=device)).sum().backward()
    attention(torch.ones(2, 3, 8, device=device)).sum().backward()
    return {"recurrent": recurrent, "images": images, "attention": attention, "lazy": lazy}


@kind
def functional(device: str) -> Made:
    model, x = network(device), batch(device)
    out = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
    each, slope = torch.func.vmap(torch.sin)(x), torch.func.grad(lambda number: (number**2).sum())(x)
    return {"model": model, "x": x, "out": out, "each": each, "slope": slope}


@kind
def saved(device: str) -> Made:
    model = network(device)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, device)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file)
    again = copy.deepcopy(model)
    again.load_state_dict(weights)
    optimizer.load_state_dict(state)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return {
        "model": model,
        "again": again,
        "optimizer": optimizer,
        "weight": weights["0.weight"],
        "average": average,
    }


@kind
def threads(device: str) -> Made:
    objects: Made = {}

    def work() -> None:
        objects["model"] = network(device)
        objects["optimizer"] = torch.optim.SGD(objects["model"].parameters(), 1e-3)
        objects["loss"] = train(objects["model"], objects["optimizer"], device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        out = pool.submit(objects["model"], batch(device)).result()
    return {**objects, "thread": thread, "pool": pool, "out": out}


@kind
def failures(device: str) -> Made:
    model, x = network(device), batch(device)
    with contextlib.suppress(RuntimeError):
        model(torch.ones(8, 5, device=device))
    with contextlib.suppress(RuntimeError):
        model(x.cpu().double())
    with contextlib.suppress(IndexError):
        x.index_select(7, x.long())
    return {"model": model, "x": x}

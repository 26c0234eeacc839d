"""The kind of a use is what the code does with the value, by whatever way the value gets there."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from uses.following import kinds_of, place_of, uses_of

from gapless.model import SourceLine
from gapless.model.use import UNDECIDED
from gapless.uses import RunningPlace, read_uses
from gapless.uses.source_files import Project

CONSUMERS = {
    "size": "y = torch.zeros({v}, 3)",
    "slice": "y = x[:, :{v}]",
    "range": "for i in range({v}):\n    work(i)",
    "index": "y = x[{v}]",
    "condition": "if {v} > limit:\n    rate = 1.0\nelse:\n    rate = 2.0\nuse(rate)",
    "check": "if {v} > limit:\n    raise ValueError('too large')",
    "finite": "if not math.isfinite({v}):\n    x = x * 0",
    "tensor": "y = torch.ones(3) * {v}",
    "accumulator": "total += {v}",
    "append": "values.append({v})",
    "show": "print('loss', {v})",
    "stop": "for i in range(3):\n    if {v} < limit:\n        break",
    "best": "best = max(best, {v})",
    "numpy": "np.square({v})",
    "checkpoint": "torch.save({v}, 'last.pt')",
}
"""Code by the kind of use that it is of `{v}`."""

ROUTES = {
    "direct": ("", "{r}"),
    "assignment": ("n = {r}\n", "n"),
    "converted": ("n = float({r})\n", "n"),
    "chain of names": ("n = {r}\nm = n\n", "m"),
    "tuple": ("a, n = 1, {r}\n", "n"),
    "starred": ("a, *rest = 1, {r}\n", "rest[0]"),
    "dict": ("d = {{'a': 1, 'n': {r}}}\n", "d['n']"),
    "dict item": ("d = {{}}\nd['n'] = {r}\n", "d.get('n')"),
    "comprehension": ("ns = [{r} for _ in range(1)]\n", "ns[0]"),
    "arithmetic": ("n = 2 * {r} + 1\n", "n"),
    "both branches": ("if flag:\n    n = {r}\nelse:\n    n = 0\n", "n"),
    "nested function": ("def get():\n    return {r}\n", "get()"),
    "closure": ("n = {r}\ndef get():\n    return n\n", "get()"),
    "lambda": ("get = lambda: {r}\n", "get()"),
    "attribute": ("self.n = {r}\n", "self.n"),
    "attribute of another": ("state.n = {r}\n", "state.n"),
    "tuple of a call": ("def get():\n    return 0, {r}\n_, n = get()\n", "n"),
    "walrus": ("print_nothing(1) if (n := {r}) is None else 0\n", "n"),
    "with": ("with scope():\n    n = {r}\n", "n"),
    "try": ("try:\n    n = {r}\nexcept ValueError:\n    n = 0\n", "n"),
    "zip": ("for n, _ in zip([{r}], xs):\n    pass\n", "n"),
}
"""Code that carries what `{r}` reads to an expression."""


@pytest.mark.parametrize("route", ROUTES)
def test_every_way_leads_to_the_same_kind_or_is_undecided(route: str) -> None:
    before, after = ROUTES[route]
    for kind, consumer in CONSUMERS.items():
        code = before.format(r="loss.item()") + consumer.format(v=after if before else "loss.item()")
        body = textwrap.indent(code, "        ")
        text = f"class Trainer:\n    def step(self, x, loss, limit, best, total, values):\n{body}\n"
        kinds = kinds_of(text)
        assert kinds - UNDECIDED <= {kind}, f"{kinds} instead of {kind}:\n{text}"
        if route != "lambda":
            assert kinds == {kind}, f"{kinds} instead of {kind}:\n{text}"


@pytest.mark.parametrize(
    "define",
    [
        "def take(value):\n{body}\ntake(loss.item())",
        "def take(a, *, value):\n{body}\ntake(1, value=loss.item())",
        "class Meter:\n  def take(self, value):\n{body}\nmeter = Meter()\nmeter.take(loss.item())",
        "class Meter:\n  def __init__(self, value):\n    self.value = value\n"
        "  def show(self):\n    value = self.value\n{body}\n"
        "Meter(loss.item())",
    ],
)
def test_arguments_are_followed_into_the_project_functions(define: str) -> None:
    for kind, consumer in CONSUMERS.items():
        body = textwrap.indent(consumer.format(v="value"), "    ")
        assert kinds_of(define.format(body=body)) == {kind}, kind


def test_imported_functions_are_followed_by_their_other_name(tmp_path: Path) -> None:
    (tmp_path / "reports.py").write_text("def tell(value):\n    print(value)\n")
    script = tmp_path / "script.py"
    script.write_text("from reports import tell as say\nimport reports\nsay(loss.item())\n")
    project = Project(lambda path: Path(path).read_text())
    file = project.file(str(script))
    assert file is not None
    (use,) = read_uses(project, [place_of(file, file.calls["item"][0])], "read", "Tensor.item").uses
    assert (use.kind, use.line, use.file) == ("show", 2, str(tmp_path / "reports.py"))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("v = loss.item()\nif v is None:\n    stop()", {"unused"}),
        ("avg = loss.item()\nif avg >= 0:\n    log(avg)", {"show"}),
        ("d = {'loss': loss.item(), 'n': 3}\nfor i in range(d['n']):\n    pass", {"dict"}),
        ("v = loss.item()\ndef f():\n    v = 3\n    return x[:v]\n", {"unused"}),
        ("i = torch.multinomial(p.item(), 1)", {"tensor"}),
        ("y = loss.item() * torch.ones(2)", {"tensor"}),
        ("n = loss.item()\nn = 3\nx[:n]", {"unused"}),
        ("for i in r:\n    print(n)\n    n = loss.item()", {"show"}),
        ("n = loss.item()\nwhile n > 0:\n    n = 0", {"stop"}),
        ("s = f'{loss.item():.2f}'\nif s:\n    pass", {"show"}),
        ("a = loss.item()\nbest = a if a > best else best", {"best"}),
        ("raise ValueError(loss.item())", {"check"}),
        ("assert loss.item() > 0", {"check"}),
        ("norms = [0.0] * 3\nnorms[i] = loss.item()", {"append"}),
        ("g = torch.Generator()\ng.manual_seed(loss.item())", {"library"}),
        ("kept = []\nkept.append(loss.item())\nkept = torch.cat(kept)", {"append", "tensor"}),
        ("stats = {'loss': [loss.item()]}\nmeans = {k: 0 for k in stats}", {"dict"}),
        ("means = [v for v in [loss.item()] if not math.isnan(v)]", {"finite"}),
        ("ranks = loss.item()\ndist.new_group([ranks])", {"library"}),
        ("holder.data = loss.item()", {"stored"}),
        ("n = loss.item()\nassert n == 3, f'{n} is not 3'", {"check"}),
        ("n = loss.item()\nif n > most:\n    n = most\nx.mul_(n)", {"condition", "tensor"}),
        ("n = loss.item()\nif n > best:\n    best = n", {"best"}),
        ("ids = torch.ones(3)\nids = ids.sum().item()\nids += ids", {"accumulator"}),
        ("dist.broadcast_object_list([loss.item()])", {"library"}),
        ("d = {'n': loss.item()}\nif 'm' in d:\n    x = 1\nx[:d['n']]", {"slice"}),
        (
            "r = {'a': {}}\nr['a'][i] = loss.item()\nif r['a'][i] > 0:\n    n = 1\nelse:\n    n = 2",
            {"stored", "condition"},
        ),
        ("assert loss.item() == loss.item()", {"check"}),
        ("obs = env.step(loss.item())", {"environment"}),
        (
            "class Corridor:\n  def step(self, action):\n    self.x += 1 if action == 1 else -1\n"
            "env = Corridor()\nenv.step(loss.item())",
            {"environment"},
        ),
        ("d = {}\nd[loss.item()] = 1", {"key"}),
        ("unknown(loss.item())", {"library"}),
        ("x = x.to(torch.float32)\nn = loss.item()\nx.fill_(n)", {"tensor"}),
        ("losses = []\nlosses.append(loss.item())\nprint(sum(losses) / len(losses))", {"append", "show"}),
        ("x[loss.item():] = 0", {"slice"}),
        ("y = torch.tensor([loss.item(), 2.0], device=dev)", {"tensor"}),
        ("total = total + loss.item()\nprint(total)", {"accumulator", "show"}),
        ("for x in data:\n    total += loss.item()\nif total < best:\n    best = total", {"accumulator"}),
        (
            "for x in data:\n    total += loss.item()\n"
            "    if total > most:\n        x = 0\n    else:\n        x = 1",
            {"accumulator", "condition"},
        ),
        ("for x in data:\n    keep.append(loss.item())\nx = boxes[keep]", {"append"}),
    ],
)
def test_traps(text: str, kinds: set[str]) -> None:
    assert kinds_of(text) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("n = nonzero(mask).numel()", {"count"}),
        ("n = len(nonzero(mask))\nloss = loss / n", {"count"}),
        ("idx = nonzero(mask)\nif len(idx) == 0:\n    loss = loss * 0", {"count", "empty"}),
        ("idx = nonzero(mask)\ny = x[idx]", {"selection"}),
        ("idx = nonzero(mask)\nx[idx] = 0", {"selection"}),
        ("idx = nonzero(mask).squeeze(1)\nloss = F.relu(idx)", {"selection"}),
        ("idx = nonzero(mask)\nfor i in idx.tolist():\n    print(i)", {"selection", "show"}),
    ],
)
def test_selections(text: str, kinds: set[str]) -> None:
    assert kinds_of(text, "nonzero", "size", "torch.nonzero") == kinds


@pytest.mark.parametrize(
    "text",
    [
        "for t in torch.arange(9, device=d):\n    f(t.item())",
        "steps = torch.arange(9)\nfor i, t in enumerate(steps):\n    f(t.item())",
        "xs = torch.ones(3)\nfor i in range(len(xs)):\n    f(xs[i].item())",
        "xs = torch.ones(3)\nys = [a.item() for a in xs]",
        "xs = torch.ones(3)\nfor a, b in zip(names, xs):\n    f(a, b.item())",
    ],
)
def test_an_element_of_the_tensor_that_a_loop_walks(text: str) -> None:
    first = uses_of(text)[0]
    assert first.kind == "element"
    assert first.text in ("torch.arange(9, device=d)", "steps", "xs")


@pytest.mark.parametrize(
    "text",
    [
        "for p in model.parameters():\n    f(p.norm().item())",
        "for batch in loader:\n    f(batch.item())",
        "xs = torch.ones(3)\nfor i in range(3):\n    xs[i] = g(i)\n    f(xs[i].item())",
        "row, col = edge_index\nf(row.item())",
    ],
)
def test_no_element_of_a_tensor_that_a_loop_walks(text: str) -> None:
    assert "element" not in kinds_of(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("y = torch.full((3, 4), rate, device=d)", set()),
        ("y = torch.full((), rate, device=d)", set()),
        ("y = torch.full((n,), 1.0, device=d)", {"size"}),
    ],
)
def test_what_an_operator_reads_itself(text: str, kinds: set[str]) -> None:
    assert kinds_of(text, "full", "read", "torch.full") == kinds


def test_a_large_function_is_given_up_and_said_to_be_undecided() -> None:
    lines = ["v0 = loss.item()", *(f"v{i} = v{i - 1} + 1" for i in range(1, 600)), "print(v599)"]
    assert kinds_of("\n".join(lines)) == {"undecided"}


@pytest.mark.parametrize("text", ["model.cpu()", "t.data = t.data.cpu()"])
def test_what_is_moved_in_place_is_not_said_to_be_unused(text: str) -> None:
    assert kinds_of(text, "cpu", "d2h", "Tensor.cpu") & UNDECIDED


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("def step(loss):\n    v = loss.item()\n", {"unused"}),
        ("def step(loss):\n    loss.item()\n", {"unused"}),
        ("def step(loss):\n    v = loss.item()\n    print(locals())", {"stored"}),
        ("def step(loss, f):\n    v = loss.item()\n    f.query('x > @v')", {"stored"}),
        ("v = loss.item()\nexec(text)", {"stored"}),
        ("v = loss.item()\ndef __getattr__(name):\n    return globals()[name]", {"stored"}),
        ("class Limits:\n    top = loss.item()", {"stored"}),
        ("class Limits:\n    top = loss.item()\nx[:Limits.top]", {"slice"}),
        ("def step(loss):\n    global last\n    last = loss.item()", {"stored"}),
        ("begin = time.perf_counter()\nloss.item()\nprint(time.perf_counter() - begin)", {"timing"}),
        ("from time import time\ndef step(loss):\n    loss.item()", {"unused"}),
        ("def step(loss):\n    with Timer('step'):\n        loss.item()", {"timing"}),
        ("def step(loss):\n    with profile(loss):\n        loss.item()", {"undecided"}),
        ("def step(loss):\n    with torch.no_grad():\n        v = loss.item()", {"unused"}),
        ("try:\n    loss.item()\nexcept RuntimeError:\n    retry()", {"undecided"}),
        ("try:\n    loss.item()\nexcept KeyboardInterrupt:\n    pass", {"unused"}),
        ("def step(loss):\n    return loss.item()\nstep(x)", {"returned"}),
        (
            "class Base:\n  def log(self, v):\n    pass\n  def step(self):\n    self.log(loss.item())",
            {"undecided"},
        ),
        ("d = {'n': loss.item()}\nif d == last:\n    x = 1\nelse:\n    x = 2", {"condition"}),
        ("v = loss.item()\nassert isinstance(v, float)", {"undecided"}),
        ("v = [loss.item()]\nplace = v.index(3)", {"undecided"}),
    ],
)
def test_a_read_is_only_deleted_where_nothing_can_use_it(text: str, kinds: set[str]) -> None:
    assert kinds_of(text) == kinds


def test_variables_of_a_module_or_a_cell_may_be_read_elsewhere(tmp_path: Path) -> None:
    for path, kinds in {
        "script.py": {"unused"},
        "module.py": {"stored"},
        "/tmp/ipykernel_3/7.py": {"stored"},
    }.items():
        texts = {path: "v = loss.item()\n", "script.py": "import module\nv = loss.item()\n"}
        project = Project(texts.__getitem__)
        file, script = project.file(path), project.file("script.py")
        assert file is not None
        assert script is not None
        places = [place_of(file, file.calls["item"][0])]
        places += [RunningPlace(SourceLine("script.py", 1, "<module>"))] if path == "module.py" else []
        uses = read_uses(project, places, "read", "Tensor.item").uses
        assert {use.kind for use in uses} == kinds, path


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("names[f'layer{loss.item()}']", {"key"}),
        ("s = str(loss.item())\nif s == '3':\n    x = 1\nelse:\n    x = 2", {"condition"}),
        ("torch.load(f'last{loss.item()}.pt')", {"library"}),
        ("torch.save(x, f'last{loss.item()}.pt')", {"library"}),
        ("n = int(str(loss.item()))\nx[:n]", {"slice"}),
        ("lines = []\nlines.append(f'{loss.item()}')\nprint(lines)", {"show"}),
        ("print(', '.join([str(loss.item())]))", {"show"}),
        ("print('%d' % loss.item())", {"show"}),
        ("def report(v):\n    return x[:v]\nreport(loss.item())", {"slice"}),
        ("torch.full((3,), loss.item())", {"library"}),
        ("x.add_(y, alpha=loss.item())", {"library"}),
        ("names = ['a', 'b']\nnames[loss.item()]", {"key"}),
        ("if loss.item() > 3:\n    raise StopIteration", {"stop"}),
        ("if loss.item() > 3:\n    sys.exit(0)", {"stop"}),
        ("try:\n    if loss.item() > 3:\n        raise ValueError\nexcept ValueError:\n    skip()",
         {"condition"}),
        ("if loss.item() < best:\n    best = loss.item()\n    torch.save(m, 'best.pt')",
         {"condition"}),
        ("y = layers[n.item()](x)", {"key"}),
        ("y = layers[n.item()].weight", {"index"}),
    ],
)  # fmt: skip
def test_a_text_or_an_exit_is_used_as_what_it_is(text: str, kinds: set[str]) -> None:
    assert kinds_of(text) == kinds


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("h.append(loss.item())", False),
        ("mean.mul_(0.9)\nh.append(mean.item())", True),
        ("for x in xs:\n    mean += x\n    h.append(mean.detach().item())", True),
        ("mean[0] = 1\nh.append(mean.item())", True),
        ("torch.add(a, b, out=mean)\nh.append(mean.item())", True),
        ("h.append(self.mean.item())", True),
        ("h.append((mean * 2).item())\nmean.mul_(2)", False),
        ("F.relu(mean, inplace=True)\nh.append(mean.item())", True),
        ("from torch import nn\nnn.init.zeros_(mean)\nh.append(mean.item())", True),
        ("flat = mean.view(-1)\nflat += 1\nh.append(mean.item())", True),
        ("size = mean.shape\nsize += 1\nh.append(mean.item())", False),
        ("def grow(a, b):\n    b.add_(a)\ngrow(1, mean)\nh.append(mean.item())", True),
        ("def grow(a, b):\n    b.add_(a)\ngrow(mean, 1)\nh.append(mean.item())", False),
    ],
)
def test_a_tensor_that_changes_in_place_is_said_to(text: str, changes: bool) -> None:
    assert {use.changes for use in uses_of(text)} == {changes}


@pytest.mark.parametrize(
    ("loop", "changed", "stays"),
    [
        ("for t in x:\n    {}\n    s += t.item()", "t.mul_(2)", "t.mul(2)"),
        ("for t in x:\n    s += t.item()\n    {}", "x.zero_()", "y.zero_()"),
        ("for i, t in enumerate(x):\n    s += t.item()\n    {}", "grow(x)", "look(x)"),
        ("for i in range(6):\n    {}\n    s += x[i].item()", "F.relu(x, inplace=True)", "F.relu(x)"),
        ("v = x\nfor i in range(6):\n    {}\n    s += x[i].item()", "v[i + 1] += v[i]", "w[i + 1] += v[i]"),
    ],
)  # fmt: skip
def test_elements_are_read_at_once_only_of_what_the_loop_leaves_alone(
    loop: str, changed: str, stays: str
) -> None:
    before = "def grow(x):\n    x.add_(1)\ndef look(x):\n    return x + 1\nx = torch.arange(6)\ns = 0\n"
    assert "element" not in kinds_of(before + loop.format(changed))
    assert "element" in kinds_of(before + loop.format(stays))


def test_a_value_that_is_written_into_the_cpu_is_no_index():
    project = Project({"script.py": "for i in range(3):\n    out[i] = k[i]"}.__getitem__)
    file = project.file("script.py")
    assert file is not None
    target = file.tree.body[0].body[0].targets[0]  # type: ignore[attr-defined]
    assert not read_uses(project, [place_of(file, target)], "d2h", "Tensor.__setitem__").uses
    assert read_uses(project, [place_of(file, target)], "read", "Tensor.__setitem__").uses


COPIES = {
    "torch's functions": (
        "c = torch.nan_to_num(cost.cpu(), nan=1.0)\npairs = solve(c.split(3, -1))",
        {"numpy"},
    ),
    "each part": ("for part in cost.cpu().split(3, -1):\n    pairs = solve(part[0])", {"numpy"}),
    "shown": ("c = loss.cpu()\nprint(torch.exp(c))", {"show"}),
    "sent back": ("y = torch.exp(n.cpu())\nx = x * y.cuda()", {"tensor"}),
    "with a tensor of the GPU": ("y = torch.maximum(n.cpu(), limit)\nprint(y)", {"tensor"}),
    "its own mask": ("c = cost.cpu()\nbad = torch.isnan(c)\ntop = c[~bad].max()\nprint(top)", {"show"}),
    "another's index": ("i = rows.cpu()\ny = x[i]", {"index"}),
}
"""Code that copies a tensor, with the kinds of uses of the copy and of what is computed of it."""


@pytest.mark.parametrize(("text", "kinds"), COPIES.values(), ids=COPIES)
def test_what_is_computed_of_a_copy_is_followed_on_the_cpu(text: str, kinds: set[str]) -> None:
    imported = "from scipy.optimize import linear_sum_assignment as solve\n"
    assert kinds_of(imported + text, "cpu", "d2h", "Tensor.cpu") == kinds

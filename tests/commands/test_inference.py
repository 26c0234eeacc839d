"""Scripts that train nothing have a price and a verdict, in words of their own."""

from __future__ import annotations

import json
import re

import pytest
from pages import Page

from gapless.analyze.run.inference import waits_end_iterations
from gapless.analyze.run.steps import find_steps
from gapless.commands import main
from gapless.model import SourceLine

torch = pytest.importorskip("torch")

from gapless.emulation.emulator import Emulator  # noqa: E402 - needs torch
from gapless.emulation.options import EmulatorOptions  # noqa: E402

BEGIN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def images(n):
    return DataLoader(TensorDataset(torch.randn(n, 3, 16, 16), torch.arange(n) % 10), batch_size=8)
"""
DENOISING = """\
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Embedding(50, 8)

    def forward(self, x, t):
        return self.last(torch.relu(self.first(x)) + self.time(t)[:, :, None, None])

model, text = UNet().cuda().eval(), nn.Linear(8, 8).cuda()
timesteps = torch.linspace(49, 0, 20).long()

@torch.no_grad()
def sample():
    text(torch.randn(1, 8, device="cuda"))
    x = torch.randn(4, 3, 16, 16, device="cuda")
    for t in timesteps:
        x = x - 0.1 * model(x, torch.full((4,), int(t), device="cuda"))
        if x.abs().max() > 100:
            x = x.clamp(-100, 100)

for _ in range(3):
    sample()
"""
EVALUATION = """\
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).cuda()
right, loader = 0, images(320)
for x, y in loader:
    with torch.no_grad():
        right += (net(x.cuda()).argmax(1) == y.cuda()).sum().item()
"""
FEATURES = """\
encoder = nn.Sequential(nn.Flatten(), nn.Linear(768, 16)).cuda().eval()

@torch.no_grad()
def features(data):
    return torch.cat([encoder(x.cuda()).cpu() for x, _ in data])

bank, test = features(images(160)), features(images(80))
print(torch.cdist(test, bank).argmin(1).sum())
"""
SERVING = """\
import queue
model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 4)).cuda().eval()
requests = queue.Queue()
for n in range(30):
    requests.put(torch.randint(0, 100, (1, 6)))
while not requests.empty():
    with torch.inference_mode():
        answer = model(requests.get().to("cuda")).argmax(-1).tolist()
"""
OWN_GENERATION = """\
model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100)).cuda().eval()
tokens = torch.zeros(2, 1, dtype=torch.long, device="cuda")
max_new_tokens = 30
with torch.no_grad():
    for _ in range(max_new_tokens):
        following = model(tokens[:, -1:]).argmax(-1)
        tokens = torch.cat([tokens, following], 1)
        if (following == 99).all():
            pass
"""
LIBRARY_GENERATION = """\
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=1)
model = GPT2LMHeadModel(config).cuda().eval()
model.generate(torch.ones(2, 4, dtype=torch.long, device="cuda"), max_new_tokens=20, min_new_tokens=20)
"""
PLAIN = """\
model = nn.Linear(8, 8).cuda()
x = torch.randn(4, 8, device="cuda")
for i in range(30):
    x = model(x).detach()
    x.sum().item()
"""
REQUESTS = """\
import asyncio
model = nn.Linear(8, 8).cuda().eval()

async def handle():
    with torch.no_grad():
        y = model(torch.randn(1, 8, device="cuda"))
        await asyncio.sleep(0)
        return y.max().item()

async def serve():
    for _ in range(10):
        await asyncio.gather(*(handle() for _ in range(4)))

asyncio.run(serve())
"""

SCRIPTS = {
    "denoising": (DENOISING, "denoising step", "1 sync in every denoising step", "60 denoising steps"),
    "evaluation": (EVALUATION, "batch", "3 syncs in every batch", "40 batches"),
    "features": (FEATURES, "batch", "2 syncs in every batch", ""),
    "serving": (SERVING, "request", "2 syncs in every request", ""),
    "own tokens": (OWN_GENERATION, "token", "1 sync for every token", "30 tokens"),
    "plain": (PLAIN, "iteration", "1 sync in every iteration", "30 iterations"),
}


def checked(write, python, script: str, *options: str):
    write("infer.py", BEGIN + script)
    process = python("-m", "gapless", "check", "-q", "--no-loader", *options, "infer.py")
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(("script", "noun", "sentence", "loop"), SCRIPTS.values(), ids=SCRIPTS)
def test_iterations_are_priced_and_called_what_they_are(script, noun, sentence, loop, write, python):
    data = json.loads(checked(write, python, script, "-f", "json").splitlines()[-1])
    assert (data["steps"]["seen"], data["steps"]["noun"]) == (12, noun)
    assert data["ending"]["how"] == "enough-steps"
    assert data["verdict"].startswith(sentence)
    assert data["per"] == f"per {noun}"
    assert data["estimate"]["step"]["likely"] > 0
    assert data["do_first"][0]["before"] == data["estimate"]["step"]["likely"]
    facts = " ".join(data["facts"])
    assert ("samples/s" in facts) != (noun == "token")
    assert ("tokens/s" in facts) == (noun in ("token", "request"))
    assert loop in facts
    words = [data["verdict"], *data["why"], *data["facts"], *data["not_seen"], *data["notes"]]
    text = " ".join(re.sub(r"`[^`]*`", "", each).replace("denoising step", "") for each in words)
    assert not re.search(r"\bsteps?\b|training", text), text


def test_the_text_has_the_same_words(write, python):
    text = checked(write, python, EVALUATION)
    assert "10 batches, each ending with a call of Sequential" in " ".join(text.split())
    assert "per batch" in text
    assert not re.search(r"(?<![\w.`-])steps?\b(?! all)(?!\()", text), text


def test_tasks_that_answer_requests_are_iterations_of_one_loop(write, python):
    """Each of them calls the model once: none has a loop of its own."""
    data = json.loads(checked(write, python, REQUESTS, "--steps", "all", "-f", "json").splitlines()[-1])
    assert data["steps"]["seen"] == 40
    assert not data["steps"].get("side_by_side")
    assert data["steps"]["waits_per_step"] == pytest.approx(1, abs=0.15)
    assert "GAP101" in [finding["code"] for finding in data["findings"]]
    assert "Nothing worth fixing" not in data["verdict"]


def test_tokens_of_a_library(write, python):
    pytest.importorskip("transformers")
    data = json.loads(checked(write, python, LIBRARY_GENERATION, "-f", "json").splitlines()[-1])
    assert data["steps"]["noun"] == "token"
    assert data["per"] == "per token"
    assert "tokens/s" in " ".join(data["facts"])


def test_a_loop_of_functions_and_tensors_has_iterations_that_end_with_their_last_sync(write, python):
    script = """\
weights, right = torch.randn(768, 10).cuda(), 0
table = [torch.arange(5).cuda() for _ in range(6)]

def classify(x):
    for _ in range(3):
        x = torch.relu(x)
    return torch.softmax(x @ weights, -1)

for x, y in images(320):
    right += (classify(x.flatten(1).cuda()).argmax(1) == y.cuda()).sum().item()
"""
    data = json.loads(checked(write, python, script, "-f", "json").splitlines()[-1])
    assert (data["steps"]["seen"], data["steps"]["noun"]) == (40, "batch")
    assert data["verdict"].startswith("3 syncs in every batch")
    assert "the sync at infer.py:" in data["steps"]["source"]
    assert data["estimate"]["step"]["likely"] > 0
    assert "samples/s" in " ".join(data["facts"])
    set_up = [finding["frequency"] for finding in data["findings"] if finding["line"]["line"] == 8]
    assert {(frequency["when"], frequency["total"]) for frequency in set_up} == {("set-up", 6)}


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ("import torch\nx = torch.ones(3).cuda()\n", True),
        ("from torch.nn import functional as F\ny = torch.nn.functional.relu(x)\n", True),
        ("net = nn.Linear(3, 3)\n", False),
        ("class Net(torch.nn.Module):\n    pass\n", False),
        ("loss.backward()\n", False),
    ],
)
def test_syncs_end_iterations_only_where_there_are_no_modules_and_no_training(source, alone):
    own, library = SourceLine("infer.py", 1), SourceLine("/site/x/a.py", 1, library="x")
    assert waits_end_iterations((library, own), {"infer.py": source}.__getitem__) == alone
    assert not waits_end_iterations((library,), {}.__getitem__)


@pytest.mark.parametrize("programme", [True, False])
def test_syncs_without_work_before_them_end_no_iterations(programme):
    """However many weights a loop copies to the GPU, and values another one prints."""
    with Emulator(EmulatorOptions("l4", programme=programme)) as emulator:
        emulator.core.recorder.ends_iteration = lambda stack: True
        weights = [torch.ones(8, 8).cuda() for _ in range(20)]
        for _ in range(5):
            x = weights[0]
            for weight in weights:
                x = x @ weight
            x.sum().item()
        marks = emulator.session().marks
    assert [mark.kind for mark in marks] == ["wait"] * 5
    assert find_steps(marks).seen == 5


def test_a_list_that_grows_is_named_with_its_line_in_words_of_its_own(write, python, capsys, tmp_path):
    script = (
        "net = nn.Linear(768, 512).cuda().eval()\nkept = []\n"
        "with torch.no_grad():\n    for x, _ in images(160):\n"
        "        kept.append(net(x.flatten(1).cuda()))\n"
    )
    first = checked(write, python, script, "--memory", "--steps", "8", "-o", "run.json")
    assert "Memory grows by 16 KiB in every batch and would fill the GPU after" in " ".join(first.split())
    saved = str(tmp_path / "run.json")
    assert main(["memory", "-q", saved]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "bound `kept`, or clear it" in text
    assert "infer.py:11 │ kept.append(net(x.flatten(1).cuda()))" in text
    assert "the list `kept` keeps 16 KiB more in each batch" in text
    assert "· 10 batches ·" in text
    assert not re.search(r"\bsteps?\b", text), text
    assert main(["show", "-f", "html", saved]) == 0
    page = Page(capsys.readouterr().out)
    assert (page.drawn("memory")["noun"], page.drawn("memory")["nouns"]) == ("batch", "batches")
    own, _, _ = page.text.partition("What the rules mean")
    assert not re.search(r"(?<!--)\bsteps?\b", own), own


def test_a_script_that_trains_later_is_not_stopped_before(write, python):
    script = PLAIN + (
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for i in range(20):\n"
        "    model(x).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    data = json.loads(checked(write, python, script, "-f", "json").splitlines()[-1])
    assert data["steps"]["source"] == "SGD.step"
    assert data["steps"].get("noun", "step") == "step"
    assert data["verdict"].startswith("Nothing worth fixing: no syncs in 10 training steps")


def test_all_of_them_where_the_user_wants_all(write, python):
    data = json.loads(checked(write, python, EVALUATION, "--steps", "all", "-f", "json").splitlines()[-1])
    assert data["steps"]["seen"] == 40
    assert data["ending"].get("how", "finished") == "finished"

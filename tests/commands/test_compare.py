"""``gapless compare``: what it takes, what it says, and with which status it leaves."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from compared_profiles import at, fast, finding, slow, steps
from trace_builder import Trace

from gapless.analyze.compare import ComparisonSide, compare_profiles
from gapless.commands import main
from gapless.commands.compare import regression
from gapless.model import Ending, Event, Session, Site, SourceLine, StepMark
from gapless.model.comparison import Comparison, Measure, Side
from gapless.model.profile import save as save_profiles
from gapless.model.proof import Duration, Interval, Timing
from gapless.model.session import save
from gapless.prove.options import CompareOptions

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["compare", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def loop(path: Path, host: int, steps: int = 6, rank: int = -1) -> Path:
    """A trace of steps with 400 µs on the device each, for which the host needs `host` µs more."""
    trace = Trace(gpu="NVIDIA H100", rank=rank, world_size=2 if rank >= 0 else 0)
    length = 500 + host
    for number in range(steps):
        now = number * length
        trace.step(number, now, length)
        op = trace.operator("aten::mm", now + 10, 60)
        trace.launch("gemm", now + 20, 8, kernel=(now + 40, 400), external=op)
    return trace.write(path)


def session(path: Path, waits: int) -> Path:
    """A session of eight steps that wait so many times each."""
    line = SourceLine("/work/train.py", 7, "train", "loss.item()")
    mark = SourceLine("/work/train.py", 9, "train", "opt.step()")
    site = Site(operator="aten::_local_scalar_dense", mechanism="read", call="Tensor.item", stack=(line,))
    save(
        Session(
            script=("train.py",),
            sites=(site,),
            events=tuple(Event(site=0, tick=tick, waits=waits) for tick in range(8)) if waits else (),
            marks=tuple(StepMark(kind="user", tick=tick, time=0.0, stack=(mark,)) for tick in range(8)),
        ),
        path,
    )
    return path


def waiting(
    path: Path,
    lines: dict[int, str],
    file: str = "/work/train.py",
    times: int = 1,
    how: str = "finished",
    evaluated: bool = False,
) -> Path:
    """A session of eight steps in which each of `lines` waits."""
    sites = [
        Site(
            operator="aten::_local_scalar_dense",
            mechanism="read",
            call="Tensor.item",
            stack=(SourceLine(file, number, "train", code),),
        )
        for number, code in lines.items()
    ]
    events = [Event(site=i, tick=tick, waits=times) for tick in range(8) for i in range(len(sites))]
    if evaluated:
        sites.append(msgspec.structs.replace(sites[0], stack=(SourceLine(file, 70, "test", "hits.item()"),)))
        events.append(Event(site=len(lines), tick=8, phase="eval"))
    mark = SourceLine(file, 9, "train", "opt.step()")
    marks = tuple(StepMark(kind="user", tick=tick, time=0.0, stack=(mark,)) for tick in range(8))
    save(
        Session(
            script=(file,), sites=tuple(sites), events=tuple(events), marks=marks, ending=Ending(how=how)
        ),
        path,
    )
    return path


def test_two_traces(tmp_path, capsys):
    before, after = loop(tmp_path / "a.json", 500), loop(tmp_path / "b.json.gz", 100)
    status, out, err = run(capsys, before, after)
    assert (status, err) == (0, "")
    assert out.startswith("The step takes 600 µs instead of 1,000: 40 % less; the GPU is idle for 200 µs of")
    assert "NVIDIA H100" in " ".join(out.split())


def test_json(tmp_path, capsys):
    before, after = loop(tmp_path / "a.json", 500), loop(tmp_path / "b.json", 100)
    status, out, _ = run(capsys, "-f", "json", before, after)
    document = json.loads(out)
    assert status == 0
    assert (document["format"], document["version"], document["kind"]) == ("gapless-report", 2, "comparison")
    assert document["verdict"].startswith("The step takes 600 µs instead of 1,000")
    comparison = document["comparison"]
    assert (comparison["of"], comparison["per"]) == ("profiles", "step")
    assert comparison["length"]["after"] == pytest.approx(600_000)
    assert comparison["before"]["name"] == str(before)


def test_saved_profiles_and_traces_go_together(tmp_path, capsys):
    save_profiles([slow()], tmp_path / "slow.json")
    save_profiles([fast()], tmp_path / "fast.json")
    status, out, _ = run(capsys, tmp_path / "slow.json", tmp_path / "fast.json")
    assert status == 0
    assert out.startswith("The step takes 52 ms instead of 100: 48 % less")
    status, out, _ = run(capsys, loop(tmp_path / "trace.json", 100), tmp_path / "fast.json")
    assert status == 0
    assert "note: before ran on NVIDIA H100, after on NVIDIA A100-SXM4-80GB" in out


def test_the_slowest_rank_represents_a_folder(tmp_path, capsys):
    for rank, host in enumerate((100, 500)):
        (tmp_path / "old").mkdir(exist_ok=True)
        loop(tmp_path / "old" / f"rank{rank}.json", host, rank=rank)
    new = loop(tmp_path / "new.json", 100)
    status, out, _ = run(capsys, tmp_path / "old", new)
    assert status == 0
    assert out.startswith("The step takes 600 µs instead of 1,000")
    assert "note: before: rank 1, the slowest of 2 traces, represents them" in " ".join(out.split())
    pattern = str(tmp_path / "old" / "rank*.json")
    assert run(capsys, pattern, new)[1].splitlines()[0] == out.splitlines()[0]


def test_a_rank_that_cannot_be_read_is_left_out_and_said(tmp_path, capsys):
    for rank in range(3):
        loop(tmp_path / f"rank{rank}.json", 100, rank=rank)
    (tmp_path / "rank1.json").write_text('{"traceEvents": []}')
    status, out, _ = run(capsys, tmp_path / "rank*.json", tmp_path / "rank0.json")
    assert status == 0
    assert "note: before: a trace was skipped: " in " ".join(out.split())
    assert "the slowest of 2 traces" in " ".join(out.split())


def test_two_sessions(tmp_path, capsys):
    before, after = session(tmp_path / "a.gapless.json", 3), session(tmp_path / "b.gapless.json", 0)
    status, out, _ = run(capsys, before, after)
    assert status == 0
    assert out.startswith("No syncs per training step instead of 3; 1 finding gone.\n")
    assert "GAP101 item-read  gone  /work/train.py:7 train       3         per step\n" in out


@pytest.mark.parametrize("order", [1, -1])
def test_different_kinds_are_distinguished(order, tmp_path, capsys):
    both = [session(tmp_path / "a.json", 1), loop(tmp_path / "b.json", 100)][::order]
    status, out, err = run(capsys, *both)
    assert (status, out) == (2, "")
    assert f"{tmp_path / 'a.json'} is a session but {tmp_path / 'b.json'} is not: compare takes two" in err


def test_what_gapless_wrote_but_cannot_compare(tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"format":"gapless-report","version":1,"sentence":"x"}')
    status, _, err = run(capsys, tmp_path / "r.json", tmp_path / "r.json")
    assert status == 2
    assert "r.json is a saved report: compare takes two traces" in err


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", '{"format": "gapless-profile"', '{"format":"gapless-session"']
)
def test_unreadable_files_leave_with_3_and_a_line(text, tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    good = session(tmp_path / "good.json", 1) if "session" in text else loop(tmp_path / "good.json", 100)
    status, out, err = run(capsys, good, bad)
    assert (status, out) == (3, "")
    assert "bad.json" in err
    assert err.count("\n") == 1


def test_a_missing_file(tmp_path, capsys):
    status, _, err = run(capsys, loop(tmp_path / "a.json", 100), tmp_path / "nothing.json")
    assert status == 3
    assert "nothing.json" in err


def test_a_profile_without_profiles(tmp_path, capsys):
    save_profiles([], tmp_path / "none.json")
    assert run(capsys, tmp_path / "none.json", tmp_path / "none.json")[0] == 3


class TestTheGate:
    @pytest.mark.parametrize(("bound", "status"), [(50, 1), (66, 1), (67, 0), (100, 0)])
    def test_time(self, bound, status, tmp_path, capsys):
        fast, slow = loop(tmp_path / "a.json", 100), loop(tmp_path / "b.json", 500)
        result = run(capsys, "--fail-on-regression", bound, fast, slow)
        assert result[0] == status
        assert ("67 % more time than before, over the limit of" in result[2]) == bool(status)
        assert run(capsys, "--fail-on-regression", bound, slow, fast)[0] == 0

    def test_waits(self, tmp_path, capsys):
        none, some, more = (session(tmp_path / f"{n}.json", n) for n in (0, 3, 4))
        assert run(capsys, "--fail-on-regression", 30, some, more)[0] == 1
        assert run(capsys, "--fail-on-regression", 40, some, more)[0] == 0
        status, _, err = run(capsys, "--fail-on-regression", 1000, none, some)
        assert status == 1
        assert "more syncs than before, over the limit" in err

    def test_within_the_spread_is_no_regression(self):
        change = msgspec.structs.replace
        before = change(slow(), steps=steps([80, 90, 100, 110, 120, 100]))
        after = change(slow(), steps=steps([86, 96, 106, 116, 126, 106]))
        assert regression(compare_profiles(ComparisonSide("a", before), ComparisonSide("b", after)), 5) == []
        steady = change(slow(), steps=steps([108] * 6))
        comparison = compare_profiles(
            ComparisonSide("a", change(slow(), steps=steps([100] * 6))), ComparisonSide("b", steady)
        )
        assert regression(comparison, 5) == [
            "8.0 % more time than before, over the limit of 5.0 % (--fail-on-regression)"
        ]

    def test_nothing_to_divide_by(self):
        side = Side(name="x")
        length = Measure(name="waits", before=0, after=1, unit="waits")
        comparison = Comparison(
            sentence="", of="sessions", per="step", before=side, after=side, length=length
        )
        assert regression(comparison, 5)[0].startswith("more syncs than before")

    def test_each_new_finding_is_named_with_its_line(self, tmp_path, capsys):
        """Two waits are gone and two have come: as many as before, and no gate passes it."""
        before = waiting(tmp_path / "a.json", {7: "loss.item()", 8: "print(norm)", 9: "x[mask]"})
        after = waiting(tmp_path / "b.json", {7: "acc.item()", 8: "print(rate)", 9: "x[mask]"})
        status, out, err = run(capsys, "--fail-on-regression", 0, before, after)
        assert status == 1
        assert out.startswith("3 syncs per training step, as before; 2 findings gone, 2 new.")
        assert err.splitlines() == [
            "gapless: new: GAP101 item-read at /work/train.py:7: acc.item() (--fail-on-regression)",
            "gapless: new: GAP101 item-read at /work/train.py:8: print(rate) (--fail-on-regression)",
        ]
        assert run(capsys, "--fail-on-regression", 50, before, after)[0] == 0
        assert run(capsys, "--fail-on-regression", 20, before, after)[0] == 1

    def test_moved_code_changes_nothing(self, tmp_path, capsys):
        lines = {7: "loss.item()", 8: "print(norm)", 30: "x[mask]"}
        before = waiting(tmp_path / "a.json", lines)
        moved = {37: "x[mask]  # the border", 107: "loss.item( )", 95: "print(norm)"}
        for file in ("/work/train.py", "/elsewhere/loop.py"):
            after = waiting(tmp_path / "b.json", moved, file)
            status, _, err = run(capsys, "--fail-on-regression", 0, before, after)
            assert (status, err) == (0, "")

    def test_the_same_wait_a_second_time_is_new(self, tmp_path, capsys):
        before = waiting(tmp_path / "a.json", {7: "loss.item()", 8: "print(norm)"})
        after = waiting(tmp_path / "b.json", {7: "loss.item()", 8: "loss.item()"})
        status, _, err = run(capsys, "--fail-on-regression", 0, before, after)
        assert status == 1
        assert "new: GAP101 item-read at /work/train.py:8: loss.item()" in err

    def test_a_line_that_waits_more_often_is_named(self, tmp_path, capsys):
        before = waiting(tmp_path / "a.json", {7: "loss.item()", 8: "print(norm)"})
        after = waiting(tmp_path / "b.json", {7: "loss.item()"}, times=2)
        status, _, err = run(capsys, "--fail-on-regression", 0, before, after)
        assert status == 1
        assert "more: GAP101 item-read at /work/train.py:7, 2 syncs per step instead of 1 sync" in err

    def test_a_new_finding_of_a_trace(self):
        """Findings of traces have lines without their text: they move with their function."""
        after = (*(finding("GAP101", at(line)) for line in (140, 152)), finding("GAP112", at(160)))
        before = finding("GAP101", at(40)), finding("GAP101", at(52))
        comparison = compare_profiles(ComparisonSide("a", slow(), before), ComparisonSide("b", slow(), after))
        (reason,) = regression(comparison, 0)
        assert reason.startswith("new: GAP112 boolean-mask-read at /work/train.py:160")
        assert regression(comparison, 1) == []

    def test_what_the_run_before_did_not_reach_is_not_called_new(self, tmp_path, capsys):
        lines = {7: "loss.item()"}
        before = waiting(tmp_path / "a.json", lines, how="enough-steps")
        after = waiting(tmp_path / "b.json", lines, evaluated=True)
        status, out, err = run(capsys, "--fail-on-regression", 0, before, after)
        assert (status, err) == (0, "")
        assert "before ended after 8 steps: 1 finding of after came later" in " ".join(out.split())
        whole = waiting(tmp_path / "a.json", lines)
        assert run(capsys, "--fail-on-regression", 0, whole, after)[0] == 1

    @pytest.mark.parametrize("bound", ["-1", "many"])
    def test_a_bound_that_is_none(self, bound, capsys):
        status, _, err = run(capsys, "--fail-on-regression", bound, "a", "b")
        assert status == 2
        assert "--fail-on-regression" in err


LOSSES = """
import torch

def inputs(density=0.5):
    torch.manual_seed(1)
    return torch.randn(6, 4, requires_grad=True), torch.rand(6, 4) < density

def original(x, mask):
    return x[mask].mean()

def fixed(x, mask):
    return torch.where(mask, x, 0.0).sum() / mask.sum()

def wrong(x, mask):
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)

def early(x, mask):
    return x[mask].detach().mean().to("cpu", non_blocking=True).item()

def read(x, mask):
    return x[mask].detach().mean().item()

def broken(x, mask):
    raise RuntimeError("out of luck")

class Holder:
    def loss(self, x, mask):
        return fixed(x, mask)

holder = Holder()
corners = {"all ones": (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))}
"""


@pytest.fixture
def losses(tmp_path, monkeypatch):
    """``losses.py`` in the working directory."""
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "losses.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "losses.py"
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


class TestCallables:
    quick = ("--seconds", 0, "--inputs", "losses.py:inputs")

    def test_the_same(self, losses, capsys):
        status, out, err = run(capsys, "losses.py:original", "losses.py:fixed", *self.quick)
        assert (status, err) == (0, "")
        assert out.startswith("The same; no sync per call instead of 2.\n")
        assert "GAP112 boolean-mask-read" in out
        assert "losses.py:9 original" in out
        assert max(map(len, out.splitlines())) <= 80

    def test_not_the_same(self, losses, capsys):
        status, out, _ = run(capsys, "losses.py:original", "losses.py:wrong", *self.quick)
        assert status == 1
        assert out.startswith("Not the same: case `empty mask`, output is 0 instead of nan")
        again = next(line for line in out.splitlines() if line.startswith("  again "))
        words = shlex.split(again)
        assert words[:3] == ["again", "gapless", "compare"]
        words = words[3:]
        status, out, _ = run(capsys, *words)
        assert status == 1
        assert "cases   1 not the same, on " in out

    @pytest.mark.parametrize("form", ["text", "html", "json", "markdown", "github", "sarif", "junit", "csv"])
    def test_a_race_is_in_no_case(self, form, losses, capsys):
        status, out, err = run(capsys, "-f", form, "losses.py:read", "losses.py:early", *self.quick)
        assert (status, err) == (1, "")
        assert "GAP801" in out
        assert "--case" not in out

    def test_json(self, losses, capsys):
        status, out, _ = run(capsys, "-f", "json", "losses.py:original", "losses.py:wrong", *self.quick)
        document = json.loads(out)
        assert status == 1
        assert (document["kind"], document["level"]) == ("proof", "failed")
        proof = document["proof"]
        assert document["verdict"] == proof["verdict"]
        assert proof["same"] is False
        assert proof["time"] is None
        assert [cost["waits"] for cost in proof["costs"]] == [2, 0]
        failed = {case["name"]: case for case in proof["cases"] if case["outcome"] == "differs"}
        assert failed["empty mask"]["differences"][0]["where"] == "output"

    def test_methods_expressions_and_modules(self, losses, capsys):
        for name in ("losses.py:holder.loss", "losses.py:Holder().loss", "losses:fixed"):
            status, out, _ = run(capsys, "losses.py:original", name, *self.quick, "--no-edge-cases")
            assert status == 0, out

    def test_cases_of_the_users_own(self, losses, capsys):
        words = ("losses.py:original", "losses.py:fixed", *self.quick, "--cases", "losses.py:corners")
        status, out, _ = run(capsys, *words, "--no-edge-cases", "--all")
        assert status == 0
        assert "all ones" in out
        status, out, _ = run(capsys, *words, "--case", "all ones", "--case", "full mask")
        assert "cases   2 the same" in out

    def test_the_failing_arguments_are_saved_when_asked_for(self, losses, capsys):
        import torch

        words = ("losses.py:original", "losses.py:wrong", *self.quick)
        run(capsys, *words)
        assert [path.name for path in losses.parent.iterdir() if path.suffix == ".pt"] == []
        run(capsys, *words, "-o", "failed.pt")
        saved = torch.load("failed.pt")
        assert saved["case"] == "empty mask"
        assert not saved["args"][1].any()
        assert saved["before"].isnan()
        assert saved["after"] == 0
        status, _, err = run(capsys, *words, "-o", "no/such/folder/failed.pt")
        assert status == 3
        assert "cannot write no/such/folder/failed.pt" in err

    def test_time_is_measured_and_marked(self, losses, capsys):
        words = ("losses.py:original", "losses.py:fixed", "--inputs", "losses.py:inputs", "--seconds", 0.05)
        proof = json.loads(run(capsys, "-f", "json", *words, "--device", "cpu")[1])["proof"]
        assert proof["time"]["clock"] == "CPU"
        assert proof["time"]["rounds"] >= 8
        assert "CPU time" in run(capsys, *words, "--device", "cpu")[1]

    @pytest.mark.parametrize(("faster", "status"), [("before", 1), ("after", 0), ("neither", 0)])
    def test_slower_fails_where_it_is_asked_for(self, faster, status, losses, capsys, monkeypatch):
        from gapless.commands import _proof

        options = CompareOptions("losses.py:inputs", seconds=0)
        proof = _proof.proof("losses.py:original", "losses.py:fixed", options)
        interval_ = Interval(median=1.0, low=1.0, high=1.0)
        timing = Timing(
            before=Duration(total=interval_),
            after=Duration(total=interval_),
            ratio=interval_,
            faster=faster,
            clock="GPU",
            calls=(1, 1),
            rounds=6,
        )
        monkeypatch.setattr(_proof, "proof", lambda *_: msgspec.structs.replace(proof, time=timing))
        assert run(capsys, "losses.py:original", "losses.py:fixed")[0] == 0
        result = run(capsys, "losses.py:original", "losses.py:fixed", "--fail-if-slower")
        assert result[0] == status
        assert ("AFTER is slower" in result[2]) == bool(status)

    def test_a_sweep(self, losses, capsys):
        words = ("losses.py:original", "losses.py:fixed", "--inputs", "losses.py:inputs", "--device", "cpu")
        status, out, _ = run(
            capsys, *words, "--seconds", 0.02, "--sweep", "density=0.1,0.9", "--no-edge-cases"
        )
        assert status == 0
        table = out[out.index("density; CPU time") :].splitlines()
        assert [line.split()[0] for line in table[1:3]] == ["0.1", "0.9"]
        assert max(map(len, out.splitlines())) <= 80

    @pytest.mark.parametrize(
        ("words", "status", "message"),
        [
            (["losses.py:original", "losses.py:fixed"], 2, "inputs are needed: --inputs losses.py:batches"),
            (["losses.py:original", "losses.py"], 2, "losses.py is not a callable: write losses.py:function"),
            (["losses.py:original", "a.json"], 2, "a.json is not a callable"),
            (
                ["losses.py:original", "losses.py:fixe", "--inputs", "losses.py:inputs"],
                2,
                "(did you mean fixed?)",
            ),
            (
                ["losses.py:original", "losses.py:fixed", "--inputs", "losses.py:input"],
                2,
                "(did you mean inputs?)",
            ),
            (
                [
                    "losses.py:original",
                    "losses.py:fixed",
                    "--inputs",
                    "losses.py:inputs",
                    "--case",
                    "empty mas",
                ],
                2,
                "there is no case 'empty mas' (did you mean 'empty mask'?)",
            ),
            (
                ["losses.py:original", "losses.py:fixed", "--inputs", "losses.py:inputs", "--grad", "mask"],
                2,
                "there is no floating-point tensor 'mask' to take the gradient of (available: x)",
            ),
            (
                ["losses.py:original", "losses.py:fixed", "--inputs", "losses.py:inputs", "--sweep", "x"],
                2,
                "--sweep x: give a keyword",
            ),
            (
                ["losses.py:original", "losses.py:fixed", "--inputs", "losses.py:inputs", "--device", "tpu"],
                2,
                "no device tpu",
            ),
            (
                ["losses.py:original", "losses.py:fixed", "--fail-on-regression", "5"],
                2,
                "for callables use --fail-if-slower",
            ),
            (["a.json", "b.json", "--inputs", "losses.py:inputs"], 2, "--inputs is for callables"),
            (["a.py", "b.json"], 2, "a.py is a script but b.json is not"),
        ],
    )
    def test_errors_are_reported_in_one_line(self, words, status, message, losses, capsys):
        (losses.parent / "b.json").write_text('{"traceEvents": []}')
        result = run(capsys, *words)
        assert (result[0], result[1]) == (status, "")
        assert message in result[2]
        assert result[2].count("\n") == 1

    def test_an_original_that_raises_is_shown_with_its_own_frames(self, losses, capsys):
        status, out, err = run(capsys, "losses.py:broken", "losses.py:fixed", *self.quick)
        assert (status, out) == (3, "")
        assert err.startswith("gapless: losses.py:broken (as given) raises RuntimeError: out of luck\n")
        frames = [line for line in err.splitlines() if line.lstrip().startswith("File ")]
        assert len(frames) == 1
        assert "losses.py" in frames[0]

    def test_without_torch_it_says_how_to_get_it(self, plain_python, write):
        write("losses.py", LOSSES)
        code = (
            "import sys\n"
            "class Refuse:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] == 'torch':\n"
            "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
            "sys.meta_path.insert(0, Refuse())\n"
            "from gapless.commands import main\n"
            "sys.exit(main(['compare', 'losses.py:a', 'losses.py:b', '--inputs', 'losses.py:c']))\n"
        )
        process = plain_python("-c", code)
        assert (process.returncode, process.stdout) == (2, "")
        assert process.stderr == (
            "gapless: comparing callables runs them and so needs PyTorch: pip install torch\n"
        )


TRAIN = """
import sys
import torch

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.ones(2, 4, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "--read" in sys.argv:
        print("loss", loss.item())
sys.exit(3 if "--fail" in sys.argv else 0)
"""


class TestScripts:
    def test_two_scripts(self, tmp_path, write, capfd):
        write("train.py", TRAIN)
        script = tmp_path / "train.py"
        status = main(["compare", f"{script} --read", str(script)])
        out, err = capfd.readouterr()
        assert status == 0
        assert out.startswith("No syncs per training step instead of 1; 1 finding gone.\n")
        assert err.count("loss ") == 6

    def test_a_script_that_fails_keeps_its_status(self, tmp_path, write, capfd):
        write("train.py", TRAIN)
        script = tmp_path / "train.py"
        assert main(["compare", str(script), f"{script} --fail"]) == 3
        assert "train.py --fail ended with status 3: nothing to compare" in capfd.readouterr().err

    def test_a_script_that_is_not_there(self, capsys):
        status, _, err = run(capsys, "no_such.py", "no_such.py")
        assert status == 2
        assert "no such file: no_such.py" in err


def test_help_teaches_by_example(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "gapless compare before.pt.trace.json.gz after.pt.trace.json.gz" in out


@pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of public traces is absent")
class TestPublicTraces:
    """Pairs recorded before and after a change."""

    def compared(self, capsys, before: str, after: str) -> dict:
        names = [next(TRACES.glob(f"*{part}*.json.gz")) for part in (before, after)]
        status, out, _ = run(capsys, "-f", "json", *names)
        assert status == 0
        return json.loads(out)["comparison"]

    def test_four_workers_instead_of_none(self, capsys):
        """The TensorBoard plugin says 55.5 and 70.3 % utilization, and 33.4 % data loading in the first."""
        compared = self.compared(capsys, "resnet50_num_workers_0", "resnet50_num_workers_4")
        assert compared["per"] == "step"
        assert compared["length"]["after"] < 0.85 * compared["length"]["before"]
        causes = {row["name"]: row for row in compared["causes"]}
        assert causes["input"]["after"] < 0.1 * causes["input"]["before"]
        used = next(row for row in compared["measures"] if row["name"] == "GPU utilization")
        assert (used["before"], used["after"]) == (
            pytest.approx(0.555, abs=0.001),
            pytest.approx(0.703, abs=0.001),
        )
        loading = next(row for row in compared["split"] if row["name"] == "data loading")
        assert loading["before"] / compared["length"]["before"] == pytest.approx(0.334, abs=0.001)
        better = [row["before"]["code"] for row in compared["findings"] if row["state"] in ("gone", "less")]
        assert "GAP301" in better

    def test_masks_that_were_removed(self, capsys):
        compared = self.compared(capsys, "amg_example_trace-c14b", "asdf_True-41e7")
        assert compared["per"] == "trace"
        assert compared["idle"]["after"] < 0.5 * compared["idle"]["before"]
        assert any("no steps are marked" in note for note in compared["notes"])

    def test_two_steps_of_a_tiny_trace(self, capsys):
        compared = self.compared(capsys, "trace_compare-base", "trace_compare-test")
        assert compared["before"]["steps"] == compared["after"]["steps"] == 2

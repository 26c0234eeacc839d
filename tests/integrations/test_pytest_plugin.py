"""The pytest plugin, in test suites of its users."""

from __future__ import annotations

import importlib
import sys

import pytest

# What the suites below import is imported here: `pytester` forgets what a suite has imported, and torch
# cannot be imported twice.
for _name in (
    "torch._dynamo",
    "gapless.analyze",
    "gapless.capture.guard",
    "gapless.emulation.emulator",
    "gapless.integrations._pytest_watch",
):
    importlib.import_module(_name)

PLUGINS = ("-p", "gapless.integrations.pytest_plugin", "-p", "xdist")
"""Only these: others take their time."""

HEAD = """
import pytest, torch

def step(model, optimizer):
    loss = model(torch.ones(2, 4, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """``suite(body, *options)``: run a test file and give its result."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(body: str, *options: str, ini: str = "") -> pytest.RunResult:
        pytester.makepyfile(HEAD + body)
        pytester.makeini(f"[pytest]\naddopts = -p no:cacheprovider\n{ini}")
        return pytester.runpytest_inprocess(*PLUGINS, *options)

    return run


def test_a_test_that_waits_fails_with_its_line_and_what_to_write(suite):
    result = suite(
        """
@pytest.mark.max_waits(0)
def test_mask():
    x = torch.ones(3, device="cuda")
    total = x[x > 0].sum()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "1 sync in this test, 0 allowed",
            "GAP112 boolean-mask-read*once in the whole run",
            "*test_a_test_that_waits*.py:13*",
            "*total = x[[]x > 0].sum()",
            "*instead *torch.where*",
            "*syncs on an emulated NVIDIA A100-SXM4-80GB*",
            "1 sync in 1 test     GAP112 boolean-mask-read  *py:13",
            "1 test watched, 0 without a sync",
        ]
    )
    assert " in test_mask" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_bounds_are_met_and_missed(suite):
    suite(
        """
@pytest.mark.max_waits(2)
def test_met():
    x = torch.ones(3, device="cuda")
    x.sum().item(); x.max().item()

@pytest.mark.max_waits(1)
class TestMissed:
    def test_missed(self):
        x = torch.ones(3, device="cuda")
        x.sum().item(); x.max().item()

@pytest.mark.parametrize("reads", [0, pytest.param(3, marks=pytest.mark.max_waits(3)), 1])
@pytest.mark.max_waits(0)
def test_by_parameter(reads):
    x = torch.ones(3, device="cuda")
    for _ in range(reads):
        x.sum().item()
"""
    ).assert_outcomes(passed=3, failed=2)


def test_what_fixtures_wait_for_does_not_count(suite):
    suite(
        """
@pytest.fixture
def model():
    model = torch.nn.Linear(4, 4).to("cuda")
    torch.cuda.synchronize()
    yield model
    torch.cuda.synchronize()

@pytest.mark.max_waits(0)
def test_one(model):
    model(torch.ones(2, 4, device="cuda"))
"""
    ).assert_outcomes(passed=1)


def test_what_a_module_has_put_on_the_device_stays_there(suite):
    suite(
        """
@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(4, 4).to("cuda")

@pytest.mark.max_waits(0)
def test_first(model):
    model(torch.ones(2, 4, device="cuda"))

def test_on_the_host():
    assert not torch.cuda.is_available()
    assert torch.ones(2).sum() == 2

@pytest.mark.max_waits(0)
def test_second(model):
    assert model.weight.is_cuda
    model(torch.ones(2, 4, device="cuda"))
"""
    ).assert_outcomes(passed=3)


LOOP = """
@pytest.mark.max_waits(per_step={bound})
def test_loop():
    model = torch.nn.Linear(4, 4).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range({steps}):
        loss = step(model, optimizer)
        if {reads}:
            float(loss.detach())
"""


@pytest.mark.parametrize(
    ("steps", "bound", "reads", "said"),
    [
        (6, 0, "False", ""),
        (6, 1, "True", ""),
        (6, 0, "number < 1", ""),  # the first steps warm up
        (6, 0, "True", "1 sync per training step, 0 allowed"),
        (1, 0, "True", "only 1 training step"),
        (0, 0, "True", "no training step was seen"),
    ],
)
def test_bounds_per_step(suite, steps, bound, reads, said):
    result = suite(LOOP.format(steps=steps, bound=bound, reads=reads))
    result.assert_outcomes(**{"failed" if said else "passed": 1})
    if said:
        assert said in result.stdout.str()


def test_no_waits_as_a_block_and_for_the_whole_test(suite):
    result = suite(
        """
def test_outside_of_the_block(no_waits):
    x = torch.ones(3, device="cuda")
    x.sum().item()
    with no_waits():
        x * 2

def test_inside_of_the_block(no_waits):
    x = torch.ones(3, device="cuda")
    with no_waits():
        x.sum().item()

def test_without_a_block(no_waits):
    torch.ones(3, device="cuda").sum().item()
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["the CPU waits for the GPU at *py:19: x.sum().item()*"])


def test_the_fixture_waits_counts(suite):
    suite(
        """
def test_counted(waits):
    x = torch.ones(3, device="cuda")
    assert waits.count == 0
    x.sum().item()
    assert waits.count == 1
    assert waits.session.sites[0].call == "Tensor.item"
    waits.reset()
    assert waits.count == 0
"""
    ).assert_outcomes(passed=1)


def test_fixtures_of_the_same_name_are_the_suites_own(suite):
    result = suite(
        """
@pytest.fixture
def waits():
    return 7

def test_own(waits):
    assert waits == 7
    assert not torch.cuda.is_available()
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*watched*")


def test_other_outcomes_stay(suite):
    result = suite(
        """
import unittest
pytestmark = pytest.mark.max_waits(0)

def test_skipped():
    pytest.skip("not here")

@pytest.mark.xfail(strict=True)
def test_expected_to_wait():
    torch.ones(3, device="cuda").sum().item()

def test_raises():
    torch.ones(3, device="cuda")
    raise ValueError("its own")

class TestOfUnittest(unittest.TestCase):
    def test_waits(self):
        torch.ones(3, device="cuda").sum().item()
    def test_does_not(self):
        torch.ones(3, device="cuda")

@pytest.fixture
def broken():
    raise ValueError("in a fixture")

def test_broken(broken):
    pass

def test_after_all_of_them():
    torch.ones(3, device="cuda")
"""
    )
    result.assert_outcomes(skipped=1, xfailed=1, failed=2, passed=2, errors=1)
    result.stdout.fnmatch_lines(["E*ValueError: its own"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("", "takes a number of syncs"),
        ("-1", "max_waits is -1"),
        ("'a'", "max_waits is 'a'"),
        ("True", "max_waits is True"),
        ("per_steps=1", "takes a number of syncs"),
        ("1, 2", "takes a number of syncs"),
    ],
)
def test_a_wrong_mark_is_reported(suite, mark, said):
    result = suite(f"@pytest.mark.max_waits({mark})\ndef test_one():\n    pass\n")
    result.assert_outcomes(errors=1)
    assert said in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "ini", "said"),
    [
        (["--gapless-gpu", "nothing"], "", "nothing"),
        ([], "gapless_gpu = nothing", "nothing"),
        ([], "gapless_device = moon", "but must be auto, emulated or real"),
        (["--gapless-device", "real"], "", "no GPU that PyTorch can use"),
    ],
)
def test_a_device_that_cannot_be_had(suite, options, ini, said):
    result = suite("@pytest.mark.max_waits(0)\ndef test_one():\n    pass\n", *options, ini=ini)
    result.assert_outcomes(errors=1)
    assert said in result.stdout.str()


def test_nothing_on_the_device_is_no_success(suite):
    result = suite("@pytest.mark.max_waits(0)\ndef test_one():\n    torch.ones(3).sum().item()\n")
    result.assert_outcomes(failed=1)
    assert "put nothing on the GPU" in result.stdout.str()


BOTH = """
def test_waits():
    if torch.cuda.is_available():
        torch.ones(3, device="cuda").sum().item()

def test_does_not_wait():
    torch.ones(3)

@pytest.mark.max_waits(1)
def test_with_a_mark():
    torch.ones(3, device="cuda").sum().item()
"""


def test_all_tests_can_be_watched(suite):
    result = suite(BOTH, "--waits", "--gapless-gpu", "H100")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*syncs on an emulated NVIDIA H100*",
            "1 sync in 1 test*GAP101*",
            "3 tests watched, 1 without a sync",
        ]
    )


def test_tests_can_run_without_values(suite):
    body = """
@pytest.mark.max_waits(1)
def test_large():
    x = torch.randn(1 << 34, device="cuda")
    assert torch.isfinite(x).all().item()
    assert torch.cuda.memory_allocated() >= 1 << 36
"""
    suite(body, "--gapless-dry").assert_outcomes(passed=1)


def test_all_tests_can_be_bound(suite):
    suite(BOTH, ini="gapless_max_waits = 0").assert_outcomes(passed=2, failed=1)


def test_workers_of_xdist_send_what_they_saw(suite):
    pytest.importorskip("xdist")
    result = suite(BOTH, "--waits", "-n", "1")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["1 sync in 1 test*GAP101*", "3 tests watched, 1 without a sync"])


def test_the_reason_is_in_junit(suite, pytester):
    suite(
        "@pytest.mark.max_waits(0)\ndef test_one():\n    torch.ones(3, device='cuda').sum().item()\n",
        "--junitxml=o.xml",
    )
    assert "GAP101 item-read" in (pytester.path / "o.xml").read_text()


def test_an_emulation_inside_of_one_is_refused_in_a_line(suite):
    result = suite(
        """
import gapless

@pytest.mark.max_waits(0)
def test_one():
    with gapless.emulate():
        pass
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*UsageError: an emulated device is already active*"])


def test_a_suite_without_marks_loads_nothing(pytester):
    pytester.makepyfile(
        """
import sys

def test_one():
    assert "torch" not in sys.modules
    assert not [name for name in sys.modules if name.startswith("gapless.")
                and "integrations" not in name and name != "gapless._version"]
"""
    )
    result = pytester.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*watched*")


def test_the_mark_and_the_options_are_documented(pytester):
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.max_waits(limit, [*], per_step):*"])
    result = pytester.runpytest_inprocess("--help")
    result.stdout.fnmatch_lines(["*--gapless-gpu=NAME*"])


def test_a_test_that_must_have_no_race_fails_with_both_lines(suite):
    result = suite(
        """
def read(waits):
    host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    return host.sum()

@pytest.mark.no_races
@pytest.mark.parametrize("waits", [False, True])
def test_read(waits):
    read(waits)

@pytest.mark.no_races
def test_nothing_on_the_gpu():
    pass

def test_in_a_block(no_waits):
    with no_waits():
        read(False)
"""
    )
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "1 race in this test",
            "GAP801 copy-read-too-early *wrong numbers possible",
            "*put nothing on the GPU*",
            "*nothing orders two uses of the same memory*",
            "race in *test* GAP801 *",
        ]
    )
    result.stdout.fnmatch_lines(["4 tests watched, * without a sync"])

"""A comparison for a terminal (what it looks like is a file, to be read after a change), and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from building import example
from comparing import FAST_FINDINGS, MS, SLOW_FINDINGS, cost, fast, kernel, slow, steps
from gapless.render._comparison import as_json, as_text, short
from rich.cells import cell_len

from gapless.analyze.compare import Subject, compare_profiles, compare_reports
from gapless.model import Report, Site
from gapless.model.comparison import Comparison
from gapless.render import Style

HERE = Path(__file__).parent
STYLE = Style(folder="/work")


def profiles() -> Comparison:
    return compare_profiles(
        Subject("slow.json", slow(), SLOW_FINDINGS), Subject("fast.json", fast(), FAST_FINDINGS)
    )


def sessions() -> Comparison:
    before = example()
    kept = [one for one in before.findings if one.code != "GAP110"]
    steps = msgspec.structs.replace(before.steps, waits_per_step=2.2)
    after: Report = msgspec.structs.replace(before, findings=tuple(kept), steps=steps)
    return compare_reports(("before.gapless.json", before), ("after.gapless.json", after))


def shown(made: Comparison, **style: object) -> str:
    return as_text(made, msgspec.structs.replace(STYLE, **style))


@pytest.mark.parametrize(
    ("name", "made", "style"),
    [
        ("comparison", profiles, {}),
        ("comparison_ascii", profiles, {"unicode": False, "width": 64}),
        ("comparison_sessions", sessions, {}),
    ],
)
def test_it_looks_as_it_did(name, made, style):
    """After an intended change: delete the file, run the test twice, and read the new file."""
    path = HERE / "expected" / f"{name}.txt"
    text = shown(made(), **style)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was not there and has been written: read it")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unfold", [False, True])
def test_no_line_is_wider_than_the_terminal(width, unfold):
    long = [kernel("void " + "very_" * n + "long_kernel<float>(int)", 90, 6, "aten::long") for n in range(30)]
    made = compare_profiles(
        Subject("slow.json", slow(), SLOW_FINDINGS),
        Subject("fast.json", msgspec.structs.replace(fast(), kernels=tuple(long)), FAST_FINDINGS),
    )
    text = shown(made, width=width, unfold=unfold)
    assert max(map(cell_len, text.splitlines())) <= width
    assert not any(row.endswith(" ") for row in text.splitlines())


def test_colours_change_nothing_but_colours():
    plain = shown(profiles())
    colored = shown(profiles(), color="truecolor")
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert "\x1b" not in plain


def test_ascii_is_ascii():
    tiny = msgspec.structs.replace(slow(), steps=steps([0.3] * 6))
    text = shown(compare_profiles(Subject("a", tiny), Subject("b", tiny)), unicode=False)
    assert text.isascii()
    assert "per step, us" in text


def test_long_lists_are_cut_unless_unfolded():
    many = tuple(kernel(f"kernel_{chr(97 + n)}", 60, 6) for n in range(12))
    made = compare_profiles(Subject("a", slow()), Subject("b", msgspec.structs.replace(slow(), kernels=many)))
    assert "… and 7 more changed by less (--all)" in shown(made)
    unfolded = shown(made, unfold=True)
    assert "--all" not in unfolded
    assert all(one.name in unfolded for one in many)


def test_what_a_list_leaves_out_is_bounded():
    many = tuple(kernel(f"gemm_{chr(97 + n % 26)}{n // 26}_x", 6, 6) for n in range(40))
    made = compare_profiles(Subject("a", slow()), Subject("b", msgspec.structs.replace(slow(), kernels=many)))
    row = next(row for row in shown(made, unfold=True).splitlines() if "cub_nonzero" in row)
    assert row.split()[-6:] == ["3.3", "<1.0", "less", "1", "to", "?"]


def test_places_stand_where_no_line_is_known():
    site = Site(operator="aten::index", mechanism="size")
    after = msgspec.structs.replace(slow(), costs=(cost("wait", site, 90),))
    before = msgspec.structs.replace(slow(), costs=(cost("wait", site, 30),), lines=())
    text = shown(
        compare_profiles(Subject("a", before), Subject("b", msgspec.structs.replace(after, lines=())))
    )
    assert re.search(r"^GPU idle by place, ms .*\n  aten::index +5.0 +15.0 +.200 %$", text, re.MULTILINE)


def test_notes_and_unknown_numbers():
    after = msgspec.structs.replace(fast(), gpu="Tesla T4", utilization=-1.0)
    text = shown(compare_profiles(Subject("a", slow()), Subject("b", after)))
    assert "note: before ran on NVIDIA A100-SXM4-80GB, after on Tesla T4" in text
    assert re.search(r"GPU utilization +38.0 % +unknown$", text, re.MULTILINE)


def test_control_characters_do_not_reach_the_terminal():
    bad = msgspec.structs.replace(slow(), kernels=(kernel("evil\x1b[2J", 60, 6),), gpu="GPU\x07")
    text = shown(compare_profiles(Subject("a\x1b]0;x", fast()), Subject("b", bad)))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("made", [profiles, sessions])
def test_json_is_one_line_with_every_field(made):
    text = as_json(made(), Style())
    assert text.count("\n") == 1
    document = json.loads(text)
    assert (document["format"], document["version"]) == ("gapless-comparison", 1)
    assert set(Comparison.__struct_fields__) < set(document)
    assert document["length"]["unit"] in ("ns", "waits")
    assert as_json(made(), Style(unicode=False)).isascii()


def test_json_keeps_nanoseconds():
    document = json.loads(as_json(profiles(), Style()))
    assert document["length"] == {"name": "step", "before": 100.0 * MS, "after": 52.0 * MS, "unit": "ns"}
    assert [row["state"] for row in document["findings"]] == ["gone", "new", "less", "same"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("void at::native::(anonymous namespace)::cat<float, 4>(float*)", "cat"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("ncclDevKernel_AllReduce_Sum_f32(Args<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("(weird)", "(weird)"),
    ],
)
def test_short_names_of_kernels(name, text):
    assert short(name) == text

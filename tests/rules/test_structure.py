"""Every rule documents itself in the same shape, and its examples are Python."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import gapless.rules
from gapless.errors import UsageError
from gapless.model import (
    SECTIONS,
    CompiledRule,
    GraphRule,
    LoaderRule,
    MemoryRule,
    OptimizerRule,
    ProfileRule,
    RaceRule,
    RanksRule,
    Site,
    WaitRule,
)
from gapless.rules import all_rules, match_rule, rule, rules_of_kind

RULES = all_rules()
KINDS = {
    WaitRule: "matches",
    ProfileRule: "of_profile",
    RanksRule: "of_ranks",
    MemoryRule: "of_memory",
    LoaderRule: "of_loader",
    RaceRule: "of_race",
    GraphRule: "of_graph",
    CompiledRule: "of_compiled",
    OptimizerRule: "of_optimizer",
}
FOLDER = Path(gapless.rules.__file__).parent


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_every_file_of_a_rule_is_found() -> None:
    files = {path.stem for path in FOLDER.glob("gap[0-9]*.py")}
    assert len(files) == len(RULES)
    assert {file[:6].upper() for file in files} == {tested.code for tested in RULES}


def test_codes_and_names_are_unique() -> None:
    assert len({tested.code for tested in RULES}) == len(RULES)
    assert len({tested.name for tested in RULES}) == len(RULES)


def test_the_file_bears_code_and_name() -> None:
    for tested in RULES:
        module = type(tested).__module__.rpartition(".")[2]
        assert module == f"{tested.code.lower()}_{tested.name.replace('-', '_')}"


def test_the_summary_is_one_short_line() -> None:
    for tested in RULES:
        assert 20 < len(tested.summary()) < 110, tested.code
        assert tested.summary().endswith("."), tested.code


def test_the_sections_are_in_order_and_filled() -> None:
    for tested in RULES:
        sections = tested.sections()
        assert tuple(sections) == SECTIONS, tested.code
        assert all(sections.values()), tested.code


def test_examples_are_python() -> None:
    for tested in RULES:
        for title in ("Example", "Use instead"):
            code = blocks(tested.sections()[title])
            assert len(code) == 1, f"{tested.code}: {title} has {len(code)} blocks"
            ast.parse(code[0], filename=tested.code)


def test_text_outside_code_has_no_markdown_left_open() -> None:
    for tested in RULES:
        for text in (*tested.sections().values(), tested.advice, tested.change, tested.summary()):
            prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            assert prose.count("`") % 2 == 0, f"{tested.code}: {prose}"


def test_advice_is_a_clause_that_a_renderer_can_place() -> None:
    for tested in RULES:
        assert tested.advice, tested.code
        assert "\n" not in tested.advice, tested.code
        assert not tested.advice.endswith("."), tested.code


def test_changes_fit_into_a_list() -> None:
    for tested in RULES:
        assert 10 <= len(tested.change) <= 60, tested.code
        assert not tested.change.endswith("."), tested.code


def test_rules_say_cpu_and_gpu() -> None:
    """Host and device are words of CUDA's, for copies between them."""
    for tested in RULES:
        for text in (inspect.cleandoc(type(tested).__doc__ or ""), tested.advice, tested.change):
            prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
            word = re.search(r"(?<!-to-)\b(host|device)s?\b(?!-to-|-side)", prose, re.IGNORECASE)
            assert word is None, f"{tested.code} says {word[0]}"


def test_each_rule_looks_at_something() -> None:
    for tested in RULES:
        kinds = [kind for kind in KINDS if isinstance(tested, kind)]
        assert kinds, tested.code
        for kind in kinds:
            assert getattr(type(tested), KINDS[kind]) is not getattr(kind, KINDS[kind]), tested.code


def test_rules_are_looked_up_by_code_and_by_name() -> None:
    for tested in RULES:
        assert rule(tested.code.lower()) is tested
        assert rule(tested.name) is tested


def test_a_code_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no rule 'GAP000'"):
        rule("GAP000")


@pytest.mark.parametrize("mechanism", ["read", "size", "values", "status", "h2d", "d2h", "explicit", "free"])
def test_each_kind_of_wait_gets_a_name_even_where_nothing_is_known_of_it(mechanism: str) -> None:
    site = Site(operator="aten::never_heard_of", mechanism=mechanism)  # type: ignore[arg-type]
    named = match_rule(site)
    assert named.remedy(site)


def test_the_catch_all_comes_last() -> None:
    assert match_rule(Site(operator="cudaHostRegister", mechanism="explicit")).code == "GAP100"


def test_rules_by_kind() -> None:
    assert "GAP602" in {each.code for each in rules_of_kind(RanksRule)}
    assert {"GAP301", "GAP303"} <= {each.code for each in rules_of_kind(LoaderRule)}
    both = {each.code for each in rules_of_kind(MemoryRule)} & {
        each.code for each in rules_of_kind(ProfileRule)
    }
    assert {"GAP401", "GAP405"} <= both


def test_one_change_mends_what_all_rules_of_a_library_find() -> None:
    unwait = {rule(code).change for code in ("GAP141", "GAP156", "GAP157", "GAP158", "GAP159")}
    assert len(unwait) == 1
    same = [tested.change for tested in RULES if tested.change not in unwait]
    # One setting of the allocator is the remedy of two rules.
    assert len(set(same)) == len(same) - 1

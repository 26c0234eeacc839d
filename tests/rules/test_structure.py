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
    Rule,
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


@pytest.mark.parametrize("tested", RULES, ids=lambda tested: tested.code)
class TestRule:
    def test_file_bears_code_and_name(self, tested: Rule) -> None:
        module = type(tested).__module__.rpartition(".")[2]
        assert module == f"{tested.code.lower()}_{tested.name.replace('-', '_')}"

    def test_summary_is_one_short_line(self, tested: Rule) -> None:
        assert 20 < len(tested.summary()) < 110
        assert tested.summary().endswith(".")

    def test_has_the_sections_in_order_and_filled(self, tested: Rule) -> None:
        sections = tested.sections()
        assert tuple(sections) == SECTIONS
        assert all(sections.values())

    def test_examples_are_python(self, tested: Rule) -> None:
        sections = tested.sections()
        for title in ("Example", "Use instead"):
            code = blocks(sections[title])
            assert len(code) == 1, f"{title} has {len(code)} blocks"
            ast.parse(code[0])

    def test_text_outside_code_has_no_markdown_left_open(self, tested: Rule) -> None:
        for text in (*tested.sections().values(), tested.advice, tested.summary()):
            prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            assert prose.count("`") % 2 == 0, prose

    def test_advice_is_a_clause_that_a_renderer_can_place(self, tested: Rule) -> None:
        assert tested.advice
        assert "\n" not in tested.advice
        assert not tested.advice.endswith(".")

    def test_the_change_fits_into_a_list(self, tested: Rule) -> None:
        assert 10 <= len(tested.change) <= 60
        assert tested.change.count("`") % 2 == 0
        assert not tested.change.endswith(".")

    def test_says_cpu_and_gpu(self, tested: Rule) -> None:
        """Host and device are words of CUDA's, for copies between them."""
        texts = [inspect.cleandoc(type(tested).__doc__ or ""), tested.advice, tested.change]
        for text in texts:
            prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
            assert not re.search(r"(?<!-to-)\b(host|device)s?\b(?!-to-|-side)", prose, re.IGNORECASE)

    def test_looks_at_something(self, tested: Rule) -> None:
        kinds = [kind for kind in KINDS if isinstance(tested, kind)]
        assert kinds
        for kind in kinds:
            assert getattr(type(tested), KINDS[kind]) is not getattr(kind, KINDS[kind])

    def test_is_found_by_code_and_by_name(self, tested: Rule) -> None:
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

"""Count what makes the code hard to read, and print one line for each count.

    python tools/house.py            # all counts
    python tools/house.py --list constants_without_a_reason

`tests/test_house.py` keeps each count at or below the limit that is written there.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = frozenset(
    ("one", "found", "made", "told", "given", "asked", "seen", "there", "known", "others", "what")
)
"""Words that say nothing of the thing they name."""
SHORT_MODULE_LINES = 60
"""Below this a module with one importer is a part of that importer, unless it is a plugin."""
MAX_PARAMETERS = 7
"""More than this a caller cannot keep apart: they belong into a struct."""
PLUGINS = ("rules", "render", "commands", "standins", "integrations")
"""Folders whose modules are found by their place, and may be short."""
STANDIN_PACKAGES = "/standins/packages/"
"""Modules that stand in for those of other packages, and bear their names."""
NAMES_USERS_SPELL = {"GaplessCallback": "each framework imports its own, as the only one"}
"""Public classes that may share a name, each with the reason."""
MIRRORED_DECORATORS = {
    "kernel": "the parameters of an operator's schema",
    "cuda_parts": "the parameters of an operator's schema",
    "jit": "pointers and sizes: a GPU kernel takes no struct",
}
"""Decorators below which a function cannot choose its parameters, and why."""
MIRRORED_PLACES = {
    "src/gapless/emulation/standins/packages/": "public names of the packages that are stood in for",
    "src/gapless/metrics/classification/f_beta.py": "arguments of TorchMetrics' metric",
    "src/gapless/metrics/detection/mean_ap.py": "arguments of TorchMetrics' metric",
    "src/gapless/metrics/image/similarity.py": "arguments of TorchMetrics' metric",
    "src/gapless/ops/classes.py": "arguments of torch.nn.functional's function",
    "src/gapless/ops/losses.py": "arguments of torch.nn.functional's function",
}
"""Files, or a folder, whose public functions have the parameters of a function elsewhere, and of which."""
OWN_NAMES = ("attention_apart", "gated_norm")
"""Functions in those files that mirror nothing."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+")


class Module:
    """A source file, parsed."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.place = path.relative_to(root).as_posix()

    @cached_property
    def name(self) -> str:
        """The dotted name, for modules of the package."""
        parts = list(self.path.relative_to(self.root / "src").with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def comments(self) -> frozenset[int]:
        """The lines on which a comment stands."""
        with self.path.open("rb") as file:
            return frozenset(
                token.start[0] for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT
            )

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Each function and method, nested ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                yield node

    def docstrings(self) -> Iterator[str]:
        """Each docstring of the module, its classes and functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
                text = ast.get_docstring(node)
                if text:
                    yield text


class House:
    """The modules of the package, its tests, benchmarks and tools."""

    def __init__(self, root: Path = ROOT) -> None:
        self.package = [Module(path, root) for path in sorted((root / "src").rglob("*.py"))]
        self.beside = [
            Module(path, root)
            for folder in ("tests", "benchmarks", "tools")
            for path in sorted((root / folder).rglob("*.py"))
            if not {"scripts", "cases", "wild", "field", "stacks", "evidence"}
            & set(path.relative_to(root).parts[:-1])
        ]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules of the package that import each module of it."""
        names = {module.name for module in self.package}
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for module in self.package:
            for target in _imports(module, names):
                importers[target].add(module.name)
        return importers

    def banned_names(self) -> list[str]:
        """Bindings, functions and classes that bear a name which says nothing."""
        return [
            f"{module.place}:{line} {name}"
            for module in (*self.package, *self.beside)
            for line, name in sorted(_bindings(module.tree))
            if name.strip("_") in BANNED
        ]

    def participles(self) -> list[str]:
        """Functions of the package named by a participle, which neither order something nor name it."""
        return [
            f"{module.place}:{function.lineno} {function.name}"
            for module in self.package
            for function in module.functions()
            if re.search(r"[a-z]{3}ed$", function.name) and not _is_question(function)
        ]

    def ambiguous_classes(self) -> list[str]:
        """Class names that several modules of the package define, without those that users spell."""
        places: defaultdict[str, list[str]] = defaultdict(list)
        for module in self.package:
            if STANDIN_PACKAGES in module.place:
                continue
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and node.name not in NAMES_USERS_SPELL:
                    places[node.name].append(module.place)
        return [f"{name}: {', '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1]

    def constants_without_a_reason(self) -> list[str]:
        """Numeric constants of modules with neither a comment nor a docstring of their own."""
        return [
            f"{module.place}:{statement.lineno} {name}"
            for module in self.package
            for statement, following, name in _constants(module.tree)
            if not _is_text(following)
            and not module.comments & {statement.lineno - 1, statement.lineno, statement.end_lineno}
        ]

    def short_modules(self) -> list[str]:
        """Short modules that a single module imports, and that are no plugins."""
        return [
            f"{module.place} ({module.lines} lines, for {next(iter(self.importers[module.name]))})"
            for module in self.package
            if module.lines < SHORT_MODULE_LINES
            and module.path.name != "__init__.py"
            and len(self.importers.get(module.name, ())) == 1
            and not set(module.path.parts) & set(PLUGINS)
        ]

    def many_parameters(self) -> list[str]:
        """Functions of the package that choose to take more parameters than a caller keeps apart."""
        return [
            f"{module.place}:{function.lineno} {function.name} ({_parameters(function)})"
            for module in self.package
            for function in module.functions()
            if _parameters(function) > MAX_PARAMETERS and not _mirrors(function, module.place)
        ]

    def two_way_arrows(self) -> list[str]:
        """Pairs of a folder's own modules and a subfolder, or of two subfolders, that import each other.

        What a folder's `__init__` imports from inside it is what the folder shows to others, and no arrow.
        """
        folders = {module.name for module in self.package if module.path.name == "__init__.py"}
        arrows: Counter[tuple[str, str]] = Counter()
        for target, importers in self.importers.items():
            for importer in importers:
                if importer in folders and target.startswith(f"{importer}."):
                    continue
                ends = _folders(importer, target, folders)
                if ends is not None:
                    arrows[ends] += 1
        return [
            f"{a} -> {b} ({count}), back ({arrows[b, a]})"
            for (a, b), count in sorted(arrows.items())
            if a < b and (b, a) in arrows
        ]

    def module_names_twice(self) -> list[str]:
        """Module names that occur more than once in one room, without stand-ins, which mirror a package."""
        places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for module in self.package:
            parts = module.path.relative_to(module.root / "src" / "gapless").parts
            if len(parts) > 1 and parts[-1] != "__init__.py" and STANDIN_PACKAGES not in module.place:
                places[parts[0], parts[-1]].append(module.place)
        return [f"{', '.join(files)}" for _, files in sorted(places.items()) if len(files) > 1]

    def words_in_a_sentence(self) -> float:
        """The median number of words in a sentence of a docstring of the package."""
        lengths = [
            len(sentence.split())
            for module in self.package
            for text in module.docstrings()
            for sentence in _SENTENCE.split(re.sub(r"(?m)^\s*>>>.*$", "", text))
            if sentence.strip()
        ]
        return statistics.median(lengths)

    def lines_of_code(self) -> int:
        """Lines of the package without docstrings, comments and blank lines."""
        return sum(len(_code_lines(module)) for module in self.package)


LISTS: dict[str, Callable[[House], list[str]]] = {
    "banned_names": House.banned_names,
    "participles": House.participles,
    "ambiguous_classes": House.ambiguous_classes,
    "constants_without_a_reason": House.constants_without_a_reason,
    "short_modules": House.short_modules,
    "many_parameters": House.many_parameters,
    "two_way_arrows": House.two_way_arrows,
    "module_names_twice": House.module_names_twice,
}
"""Each count, with the method that lists what is counted."""


def _bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each variable, parameter, function and class that `tree` binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.ClassDef, *_FUNCTIONS)) or (
            isinstance(node, ast.ExceptHandler) and node.name
        ):
            yield node.lineno, node.name


def _is_question(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `function` answers yes or no: a participle is right for that."""
    return isinstance(function.returns, ast.Name) and function.returns.id == "bool"


def _constants(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.stmt | None, str]]:
    """Each module-level numeric constant, with the statement after it and its name."""
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=False):
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id.isupper() and _is_number(value):
            yield statement, following, target.id


def _is_number(value: ast.expr) -> bool:
    """Whether `value` is a number that is written out, maybe as a product."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.UnaryOp) and _is_number(value.operand)


def _is_text(statement: ast.stmt | None) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in names)


def _mirrors(function: ast.FunctionDef | ast.AsyncFunctionDef, place: str) -> bool:
    """Whether `function` has the parameters of a function elsewhere."""
    decorators = (node.func if isinstance(node, ast.Call) else node for node in function.decorator_list)
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in decorators}
    if names & MIRRORED_DECORATORS.keys():
        return True
    is_public = function.name == "__init__" or not function.name.startswith("_")
    return is_public and function.name not in OWN_NAMES and place.startswith(tuple(MIRRORED_PLACES))


def _imports(module: Module, names: set[str]) -> Iterator[str]:
    """The modules among `names` that `module` imports, in functions too, but not for types alone."""
    for node in _run_nodes(module.tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            targets = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in names else node.module
                for alias in node.names
            ]
        else:
            continue
        yield from (target for target in targets if target in names and target != module.name)


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of `tree`, without blocks under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _run_nodes(child)


def _folders(importer: str, target: str, folders: set[str]) -> tuple[str, str] | None:
    """The two folders, within one room, between which an import is an arrow; None where it is none."""
    a, b = (name.split(".") if name in folders else name.split(".")[:-1] for name in (importer, target))
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    if shared < 2 or a == b:  # between rooms the contracts decide
        return None
    return ".".join(a[: shared + 1]), ".".join(b[: shared + 1])


def _code_lines(module: Module) -> set[int]:
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    with module.path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type != tokenize.ENCODING]
    for before, token in zip([None, *tokens], tokens, strict=False):
        is_docstring = token.type == tokenize.STRING and (
            before is None or before.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL)
        )
        if token.type not in skipped and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def main() -> None:
    """Print the counts, or with ``--list`` what one of them counts."""
    parser = argparse.ArgumentParser(description="Count what makes the code hard to read.")
    parser.add_argument("--list", choices=sorted(LISTS), help="print what this count is made of")
    options = parser.parse_args()
    house = House()
    if options.list:
        print("\n".join(LISTS[options.list](house)))
        return
    for name, entries in LISTS.items():
        print(f"{len(entries(house)):6}  {name.replace('_', ' ')}")
    print(f"{house.words_in_a_sentence():6.0f}  words in a sentence of a docstring (median)")
    print(f"{house.lines_of_code():6}  lines of code without docstrings, comments and blank lines")


if __name__ == "__main__":
    main()

"""Follow a value through the source from where it is read to what uses it."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable

from gapless.model.use import Use, UseKind
from gapless.uses import callees, reaching, unseen
from gapless.uses.arguments import use_argument
from gapless.uses.conditions import Branching, kind_of_condition
from gapless.uses.followed import ANY, FollowedValue, ReachedPlace, fits_key, key_text
from gapless.uses.meaning import adds_to, is_dict, is_list, is_tensor
from gapless.uses.methods import use_attribute
from gapless.uses.resolving import CallGraph
from gapless.uses.source_files import (
    COMPREHENSIONS,
    FUNCTIONS,
    SourceFile,
    called_name,
    root_name,
)

_MAX_HOPS = 3
"""Calls, returns and attributes that a value is followed through."""
_MAX_NODES = 400
"""Places that one value is followed to, so that its analysis takes milliseconds."""
_MAX_LOADS = 12
"""Loads of one attribute that are followed."""
_OF_TEXT: dict[UseKind, UseKind] = {
    "append": "show", "dict": "show", "accumulator": "show",
    "tensor": "library", "numpy": "library", "size": "library", "checkpoint": "library", "index": "key",
}  # fmt: skip
"""What a use of a number is for the text that shows it: a name of a file is no tensor."""


class Flow:
    """The uses of one value.

    >>> file = SourceFile("", ast.parse("n = x.item()\\ny = z[:n]"), "n = x.item()\\ny = z[:n]")
    >>> from gapless.uses.source_files import Project
    >>> flow = Flow(file, CallGraph(Project(lambda path: ""), ()))
    >>> flow.follow(file.calls["item"][0], FollowedValue())
    >>> [(use.kind, use.text) for use in flow.uses()]
    [('slice', 'z[:n]')]
    """

    def __init__(self, file: SourceFile, calls: CallGraph) -> None:
        self._home = file
        self.calls = calls
        self._uses: dict[Use, None] = {}
        self._queue: deque[ReachedPlace] = deque()
        self._compared: set[str] = set()
        self._visited: set[tuple[ast.AST, FollowedValue]] = set()
        self._kept: tuple[ReachedPlace, UseKind, ast.AST | None] | None = None
        self._indexings: list[tuple[ReachedPlace, ast.AST, ast.AST]] = []
        """Where the value is an index, its use, and what is indexed."""

    def follow(self, node: ast.AST, held: FollowedValue) -> None:
        """Follow the value of the expression `node` of the file in which it is read."""
        start = ReachedPlace(self._home, node, 0, held)
        if unseen.is_watched(self._home, node):
            self.keep(start, "undecided", self._home.statement(node))
        self.go(start)
        while self._queue:
            at = self._queue.popleft()
            if len(self._visited) > _MAX_NODES:
                self.add(at, "undecided")
                break
            self._step(at)
        copies = {node for node, held in self._visited if held.role == "copy"}
        for at, use, owner in self._indexings:
            if owner not in copies:  # another that was copied is on the CPU, as its index is
                self.add(at, "index", use)

    def uses(self) -> tuple[Use, ...]:
        """Return the uses, the nearest first."""
        if not self._uses and self._kept is not None:
            self.add(*self._kept)
        if not self._uses:
            return (Use(kind="unused", line=0),)
        return tuple(self._uses)

    def go(self, at: ReachedPlace) -> None:
        key = at.node, at.held
        if key not in self._visited:
            self._visited.add(key)
            self._queue.append(at)

    def add(self, at: ReachedPlace, kind: UseKind, node: ast.AST | None = None) -> None:
        """Note a use at `node`, or where the value is; of a selection, that its rows are used."""
        if at.held.role == "selection" and kind not in ("selection", "count", "empty"):
            self.add(at, "selection", node)
        if at.held.role == "text":
            kind = _OF_TEXT.get(kind, kind)
        node = node if node is not None else at.node
        path = at.file.path if at.file is not self._home else ""
        line = getattr(node, "lineno", 0)
        text = self.calls.checked_text if kind == "finite" else SourceFile.text
        use = Use(kind=kind, line=line, text=text(at.file, node) if line else "", file=path)
        if not any((each.kind, each.line, each.file) == (kind, line, path) for each in self._uses):
            self._uses[use] = None

    def keep(self, at: ReachedPlace, kind: UseKind, node: ast.AST | None = None) -> None:
        """Note that the value may be used at `node`, if it is used nowhere else."""
        self._kept = self._kept or (at, kind, node)

    # -- one step outwards -------------------------------------------------------------------------

    def _step(self, at: ReachedPlace) -> None:
        parent = at.file.parents.get(at.node)
        statement = at.file.statement(at.node)
        # The text of an assert or a raise is only made where it fails.
        message = (
            statement.msg
            if isinstance(statement, ast.Assert)
            else statement
            if isinstance(statement, ast.Raise)
            else None
        )
        if message is not None and message in at.file.chain(at.node):
            self.add(at, "check")
            return
        for kinds, action in _STEPS:
            if isinstance(parent, kinds):
                action(self, at, parent)
                return
        self.add(at, "undecided")

    def _up(self, at: ReachedPlace, parent: ast.AST) -> None:
        self.go(at.move(parent))

    def _ignore(self, at: ReachedPlace, parent: ast.AST) -> None:
        """Do nothing: what happens here needs no value."""

    def _show(self, at: ReachedPlace, parent: ast.AST) -> None:
        self.keep(at, "show")
        self.go(at.move(parent, at.held.as_text()))

    def _raise(self, at: ReachedPlace, parent: ast.AST) -> None:
        self.add(at, "check", parent)

    def _keyword(self, at: ReachedPlace, parent: ast.keyword) -> None:
        owner = at.file.parents[parent]
        if isinstance(owner, ast.Call):
            use_argument(self, at, owner, parent.arg)

    def _call(self, at: ReachedPlace, parent: ast.Call) -> None:
        if at.node is parent.func:
            self.add(at, "undecided", parent)
        else:
            use_argument(self, at, parent, None)

    def _attribute(self, at: ReachedPlace, parent: ast.Attribute) -> None:
        use_attribute(self, at, parent)

    def _subscript(self, at: ReachedPlace, parent: ast.Subscript) -> None:
        if at.node is parent.value:
            if not isinstance(parent.ctx, ast.Load):
                if at.held.role == "selection":
                    self.add(at, "selection", parent)
                return
            if not at.held.path:
                self.go(at.move(parent))
            elif isinstance(parent.slice, ast.Slice):
                self.go(at.move(parent, at.held))
            elif fits_key(at.held.path[0], parent.slice):
                self.go(at.move(parent, at.held.take_out()))
        elif at.held.role == "selection":
            self.add(at, "selection", parent)
        else:
            outer = at.file.parents[parent]
            is_called = isinstance(outer, ast.Call) and outer.func is parent  # as no tensor is
            by_key = is_called or is_dict(at.file, parent.value) or is_list(at.file, parent.value)
            use = parent if isinstance(parent.ctx, ast.Load) else at.file.statement(parent)
            if by_key:
                self.add(at, "key", use)
            else:
                self._indexings.append((at, use, parent.value))

    def _slice(self, at: ReachedPlace, parent: ast.Slice) -> None:
        owner = next(each for each in at.file.chain(parent) if isinstance(each, ast.Subscript))
        self.add(at, "slice", owner)

    def _display(self, at: ReachedPlace, parent: ast.Tuple | ast.List) -> None:
        owner = at.file.parents.get(parent)
        if isinstance(owner, ast.Subscript) and owner.slice is parent:
            self._subscript(at.move(parent), owner)
        elif isinstance(at.node, ast.Starred):
            self.go(at.move(parent, at.held))
        else:
            place = parent.elts.index(at.node)  # type: ignore[arg-type]
            self.go(at.move(parent, at.held.put(f"#{place}")))

    def _set(self, at: ReachedPlace, parent: ast.Set) -> None:
        self.go(at.move(parent, at.held.put(ANY)))

    def _dict(self, at: ReachedPlace, parent: ast.Dict) -> None:
        if at.node in parent.keys:
            self.add(at, "key", parent)
            return
        key = next(key for key, value in zip(parent.keys, parent.values, strict=True) if value is at.node)
        self.keep(at, "dict")
        self.go(at.move(parent, at.held if key is None else at.held.put(key_text(key))))

    def _comprehension(self, at: ReachedPlace, parent: ast.expr) -> None:
        if isinstance(parent, ast.DictComp) and at.node is parent.key:
            self.add(at, "key", parent)
        else:
            self.go(at.move(parent, at.held.put(ANY)))

    def _generator(self, at: ReachedPlace, parent: ast.comprehension) -> None:
        if at.node is parent.iter:
            if at.held.has_keys:
                return  # a dict's keys
            self.bind(at.move(at.node, at.held.element()), parent.target, at.file.parents[parent])
        elif not at.held.path:
            finite = at.held.role == "finite" or self.calls.is_finiteness(at.file, at.node)
            self.add(at, "finite" if finite else "condition")

    def _loop(self, at: ReachedPlace, parent: ast.For | ast.AsyncFor) -> None:
        if at.held.has_keys:
            return  # a dict's keys
        self.bind(at.move(at.node, at.held.element()), parent.target, parent)

    def _condition(self, at: ReachedPlace, parent: Branching) -> None:
        if at.node is not parent.test:
            self.go(at.move(parent))
        elif not at.held.path and at.held.role != "text":
            if at.held.role == "finite" or self.calls.is_finiteness(at.file, parent.test):
                self.add(at, "finite", parent.test)
            else:
                counts = at.held.role in ("selection", "count")
                self.add(at, kind_of_condition(at.file, parent, counts, self._compared), parent.test)

    def _assert(self, at: ReachedPlace, parent: ast.Assert) -> None:
        if at.node is parent.test and not at.held.path:
            self.add(at, "finite" if self.calls.is_finiteness(at.file, parent.test) else "check", parent.test)

    def _compare(self, at: ReachedPlace, parent: ast.Compare) -> None:
        if isinstance(parent.ops[0], (ast.Is, ast.IsNot)):
            return
        if at.held.has_keys and isinstance(parent.ops[0], (ast.In, ast.NotIn)):
            return  # asks for a key of the dict
        if at.held.role == "selection":
            self.add(at, "selection", parent)
            return
        rest = [side for side in (parent.left, *parent.comparators) if side is not at.node]
        if not at.held.path and any(is_tensor(at.file, side) for side in rest):
            self.add(at, "tensor", parent)
            return
        self._compared.add(at.file.text(at.node))
        self.go(at.move(parent, at.held.without_keys().answer("compared")))

    def _bool(self, at: ReachedPlace, parent: ast.expr) -> None:
        signed = isinstance(parent, ast.UnaryOp) and not isinstance(parent.op, ast.Not)
        if signed or at.held.role == "text":
            self.go(at.move(parent))
        elif not at.held.path:
            self.go(at.move(parent, at.held.answer("compared")))

    def _arithmetic(self, at: ReachedPlace, parent: ast.BinOp) -> None:
        other = parent.right if at.node is parent.left else parent.left
        if isinstance(parent.op, ast.Mod) and at.node is parent.right and _is_text(parent.left):
            self._show(at, parent)
        elif at.held.role == "selection":
            self.add(at, "selection", parent)
        elif not at.held.path and is_tensor(at.file, other):
            self.add(at, "tensor", parent)
        else:
            self.go(at.move(parent))

    def _expression(self, at: ReachedPlace, parent: ast.Expr) -> None:
        """Nothing uses the value of a statement of its own, but it may be there for what it does."""
        if isinstance(at.node, ast.Call) and called_name(at.node) in ("cpu", "to", "cuda", "numpy"):
            self.add(at, "undecided")  # moves what it is called on
        elif unseen.is_typed(at.file):
            self.add(at, "show")
        elif self.calls.reads_clock(at.file):
            self.add(at, "timing")

    def _walrus(self, at: ReachedPlace, parent: ast.NamedExpr) -> None:
        self.bind(at, parent.target, parent)
        self.go(at.move(parent))

    # -- to where it is put --------------------------------------------------------------------------

    def _assign(self, at: ReachedPlace, parent: ast.Assign | ast.AnnAssign) -> None:
        if at.node is not parent.value:
            return
        for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
            if adds_to(parent.value, target):
                self.add(at, "accumulator", parent)
                self._bind_sum(at, target, parent)
            else:
                self.bind(at, target, parent)

    def _add_to(self, at: ReachedPlace, parent: ast.AugAssign) -> None:
        if at.node is not parent.value:
            return
        if at.held.role == "selection":
            self.add(at, "selection", parent)
        elif at.held.path:
            self.add(at, "append", parent)
            self.bind(at, parent.target, parent)
        elif is_tensor(at.file, parent.target):
            self.add(at, "tensor", parent)
        else:
            self.add(at, "accumulator" if isinstance(parent.op, (ast.Add, ast.Sub)) else "undecided", parent)
            self._bind_sum(at, parent.target, parent)

    def _bind_sum(self, at: ReachedPlace, target: ast.AST, binding: ast.AST) -> None:
        """Follow a sum into `target`; within its loop only, since behind it one read serves all terms."""
        if isinstance(target, ast.Name):
            for load in reaching.in_loop_of(
                at.file, binding, reaching.loads_after(at.file, target.id, binding)
            ):
                self.go(at.move(load))
        else:
            self.bind(at, target, binding)

    def bind(self, at: ReachedPlace, target: ast.AST, binding: ast.AST) -> None:
        """Follow the value into `target`, which `binding` assigns to."""
        if isinstance(target, ast.Name) and unseen.in_class(at.file, binding):
            self._bind_class_attribute(at, target)
        elif isinstance(target, ast.Name):
            if self._is_open(at.file, target):
                self.keep(at, "stored", binding)
            for load in reaching.loads_after(at.file, target.id, binding):
                self.go(at.move(load))
        elif isinstance(target, (ast.Tuple, ast.List)):
            path = at.held.path
            for place, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    inner = at.held.take_out().put(ANY) if path else at.held
                    self.bind(at.move(at.node, inner), element.value, binding)
                elif not path or path[0] in (ANY, f"#{place}"):
                    self.bind(at.move(at.node, at.held.take_out()), element, binding)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(at, target)
        elif isinstance(target, ast.Subscript):
            self._bind_element(at, target, binding)
        else:
            self.add(at, "undecided", target)

    def _is_open(self, file: SourceFile, target: ast.Name) -> bool:
        """Whether a variable may be read where the text does not name it."""
        scope = file.scope(target)
        if isinstance(scope, FUNCTIONS) and not reaching.is_declared(scope, target.id):
            return unseen.is_read_by_name(file, scope)
        outside = unseen.is_typed(file) or not self.calls.is_script(file)
        return outside or unseen.is_read_by_name(file, file.tree)

    def _bind_class_attribute(self, at: ReachedPlace, target: ast.Name) -> None:
        self.keep(at, "stored", target)
        loads = at.file.attributes.get(target.id, ())
        for load in loads if len(loads) <= _MAX_LOADS and at.hops < _MAX_HOPS else ():
            self.go(ReachedPlace(at.file, load, at.hops + 1, at.held))

    def _bind_attribute(self, at: ReachedPlace, target: ast.Attribute) -> None:
        self.keep(at, "stored")
        loads = _same_attributes(at.file, target)
        if root_name(target) == "self":
            around = at.file.around(target, ast.ClassDef)
            loads = [load for load in loads if at.file.around(load, ast.ClassDef) is around]
            rest = [
                load
                for load in at.file.attributes.get(target.attr, ())
                if load not in loads and not isinstance(at.file.parents[load], ast.Call)
            ]
            loads += rest if len(rest) <= _MAX_LOADS else []
        if at.hops >= _MAX_HOPS or not loads or len(loads) > _MAX_LOADS:
            self.add(at, "stored", target)
            return
        for load in loads:
            self.go(ReachedPlace(at.file, load, at.hops + 1, at.held))

    def _bind_element(self, at: ReachedPlace, target: ast.Subscript, binding: ast.AST) -> None:
        constant = isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str)
        if constant or isinstance(target.slice, ast.JoinedStr) or is_dict(at.file, target.value):
            self.keep(at, "dict")
            if at.hops >= _MAX_HOPS:
                self.add(at, "stored", target)
            else:
                held = at.held.put(key_text(target.slice))
                self.put(ReachedPlace(at.file, at.node, at.hops, held), target.value, binding)
        elif is_tensor(at.file, target.value):
            self.add(at, "tensor", target)
        else:
            self.add(at, "append" if is_list(at.file, target.value) else "stored", target)
            self.put(at.move(at.node, at.held.put(ANY)), target.value, binding)

    def put(self, at: ReachedPlace, container: ast.AST, binding: ast.AST) -> None:
        """Follow a value that `binding` puts into `container`, a variable or an attribute.

        A list that a loop fills is followed within the loop only, since behind it one read serves all.
        """
        loads: list[ast.expr] = []
        if isinstance(container, ast.Name):
            loads += reaching.in_loop_of(
                at.file, binding, reaching.loads_after(at.file, container.id, binding)
            )
        elif isinstance(container, ast.Attribute):
            loads += _same_attributes(at.file, container)
        elif isinstance(container, ast.Subscript):
            self.put(at.move(at.node, at.held.put(key_text(container.slice))), container.value, binding)
            return
        else:
            self.add(at, "undecided", container)
        for load in loads:
            if not _is_receiver(at.file, load):
                self.go(at.move(load))

    # -- out of a function ---------------------------------------------------------------------------

    def _leave(self, at: ReachedPlace, parent: ast.Return | ast.Yield | ast.YieldFrom | ast.Lambda) -> None:
        function = parent if isinstance(parent, ast.Lambda) else at.file.scope(parent)
        if not isinstance(function, FUNCTIONS):
            self.add(at, "undecided", parent)
            return
        held = at.held.put(ANY) if isinstance(parent, ast.Yield) else at.held
        self.keep(at, "returned", parent)  # a caller that was not recorded may use it
        if self.calls.is_recorded(function):
            caller = self.calls.recorded_caller(function)
            if caller is None or caller.node is None:
                self.add(at, "returned", parent)
            else:
                self.go(ReachedPlace(caller.file, caller.node, at.hops + 1, held))
            return
        callers = self.calls.callers(at.file, function) if not isinstance(function, ast.Lambda) else None
        if not callers or at.hops >= _MAX_HOPS:
            self.add(at, "returned", parent)
            return
        for caller in callers:
            if caller.node is not None:
                self.go(ReachedPlace(caller.file, caller.node, at.hops + 1, held))

    def enter(
        self, at: ReachedPlace, call: ast.Call, parameter: str, file: SourceFile, function: ast.AST
    ) -> None:
        """Follow an argument of `call` into the function that it reaches."""
        if at.hops >= _MAX_HOPS or not isinstance(function, FUNCTIONS):
            self.add(at, "library", call)
            return
        self.keep(at, "undecided", call)  # another class may have its own function of this name
        for load in reaching.loads_of_parameter(function, parameter):
            self.go(ReachedPlace(file, load, at.hops + 1, at.held))


def _same_attributes(file: SourceFile, attribute: ast.Attribute) -> list[ast.Attribute]:
    """Return the loads of the same attribute of the same expression."""
    owner = ast.dump(attribute.value)
    return [load for load in file.attributes.get(attribute.attr, ()) if ast.dump(load.value) == owner]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_receiver(file: SourceFile, load: ast.AST) -> bool:
    """Whether only more is put into the container at `load`."""
    parent = file.parents.get(load)
    if isinstance(parent, ast.Subscript):
        return parent.value is load and not isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Attribute) and parent.attr in (*callees.APPENDS, "clear", "update")


_STEPS: tuple[
    tuple[type[ast.AST] | tuple[type[ast.AST], ...], Callable[[Flow, ReachedPlace, ast.AST], None]], ...
] = (  # type: ignore[assignment]
    (ast.keyword, Flow._keyword),
    (ast.Call, Flow._call),
    (ast.Attribute, Flow._attribute),
    (ast.Subscript, Flow._subscript),
    (ast.Slice, Flow._slice),
    ((ast.Tuple, ast.List), Flow._display),
    (ast.Set, Flow._set),
    (ast.Dict, Flow._dict),
    (COMPREHENSIONS, Flow._comprehension),
    (ast.comprehension, Flow._generator),
    ((ast.For, ast.AsyncFor), Flow._loop),
    ((ast.If, ast.While, ast.IfExp), Flow._condition),
    (ast.Assert, Flow._assert),
    ((ast.Starred, ast.Await), Flow._up),
    ((ast.FormattedValue, ast.JoinedStr), Flow._show),
    (ast.Compare, Flow._compare),
    ((ast.BoolOp, ast.UnaryOp), Flow._bool),
    (ast.BinOp, Flow._arithmetic),
    ((ast.Assign, ast.AnnAssign), Flow._assign),
    (ast.AugAssign, Flow._add_to),
    (ast.NamedExpr, Flow._walrus),
    ((ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda), Flow._leave),
    (ast.Expr, Flow._expression),
    (ast.Raise, Flow._raise),
    ((ast.Delete, ast.Module), Flow._ignore),
)
"""What to do with a value by the kind of the node around it."""

"""The points at which a scheduled thread may be switched: before each access to shared data.

The source of a module is changed as it is loaded: the object of an access is passed through ``at``
just before (see ``scheduler``), so that ``self._op_outcome`` becomes
``__at__(self, 8)._op_outcome``. Points precede

* each load and store of a flag, and each step of a dict, list, deque or generator,
* each access to the lists and other state of a turn, if that is not the thread's own,

and the locks have theirs in ``cooperative_locks``. Incrementing a plain number is a load and a
store, as in the interpreter.

Three kinds of accesses are no points: reads of state that is constant once other threads see it;
reads of the few numbers that no promise depends on (``lateness``, ``failures``); and the read of a
dict's item by which something is claimed, which always follows a test that it is there (``"holder"
in turn and turn["holder"] is me``): the interpreter switches threads where it looks for signals,
and does neither there (see ``turn``).
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import CodeType, ModuleType

from tests.proofs.core.accesses import access, access_of_operation
from tests.proofs.core.scheduler import at, at_lists, at_operation

AT, AT_LISTS, AT_OPERATION = "__at__", "__at_lists__", "__at_operation__"

OPERATION = frozenset(
    {
        "_op_state",
        "_op_check_due",
        "_op_error",
        "_op_expiry_due",
        "_op_keys",
        "_op_listeners",
        "_op_outcome",
        "_op_retry",
        "_op_completed_by",
        "_op_stage",
        "_op_submitter",
        "_op_thresholds",
        "_op_forced_outcome",
        "_timer_entry",
        "interrupted",
        "gave_up_error",
        "is_closed",
        "on_completed",
        "reaper",
        "reaper_look_ns",
    }
)
"""Flags of operations and their books."""

IN_TURN = frozenset(
    {
        "_closers",
        "_closing",
        "by_key",
        "by_number",
        "callback_errors",
        "checks",
        "completing",
        "entries",
        "missed_wakeups",
        "numbers",
        "numbers_by_key",
        "pending",
        "admitted",
        "rejected",
        "still_checked",
        "total",
        "values",
    }
)
"""Data that changes in the turn of the lists."""

ADDED_TO = frozenset({"checks", "entries", "missed_wakeups", "rejected", "total"})
"""Numbers, among these."""

TIMER = frozenset(
    {
        "_closed",
        "_due",
        "_heap",
        "_active_buckets",
        "_sleepers",
        "_polled",
        "_timer_entry",
        "current_time_ms",
        "end_ms",
        "entries",
        "expiration_ms",
        "cascaded",
        "bucket",
        "number",
        "overflow_wheel",
        "task",
    }
)
PROGRAMS = frozenset({"calls", "inside", "may_be_called", "ready"})
"""Data of the programs' operations."""

CLAIMS = frozenset({"owner", "completer"})
"""Keys of the dict by which an operation is claimed: each is a place of its own."""

READING = frozenset({"copy", "get", "items", "values"})
WRITING = frozenset({"append", "clear", "pop", "popleft", "remove", "setdefault", "update"})
COPYING = frozenset({"dict", "list"})

LISTS = "the lists of a purgatory"


def instrumented(source: bytes, path: str) -> CodeType:
    """Compile ``source`` with its points."""
    tree = _Points(Path(path)).visit(ast.parse(source, path))
    code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec")
    return code


def give_points(module: ModuleType) -> None:
    """Add the functions that the points of ``module`` call to it."""
    vars(module)[AT] = at
    vars(module)[AT_LISTS] = at_lists
    vars(module)[AT_OPERATION] = at_operation


class _Points(ast.NodeTransformer):
    """Puts the points into one module."""

    def __init__(self, path: Path) -> None:
        folder, name = path.parent.name, path.name
        self._flags: frozenset[str] = frozenset()
        self._in_turn: frozenset[str] = frozenset()
        self._containers: str | None = LISTS
        if (folder, name) == ("timer", "clock.py"):
            self._flags = frozenset({"_now_ns"})
            self._containers = "who waits for a clock"
        elif (folder, name) == ("timer", "executor.py"):
            self._flags = frozenset({"gi_running"})
            self._containers = "an executor"
        elif folder == "timer":
            self._flags = TIMER
            self._containers = "the timer's dicts"
        elif (folder, name) == ("core", "operation.py"):
            self._flags, self._in_turn = OPERATION, IN_TURN
            self._containers = "listeners"
        elif folder == "core" and path.parent.parent.name == "purgatory":
            self._flags, self._in_turn = OPERATION, IN_TURN
        else:
            self._flags, self._containers = PROGRAMS, None

    # The use of a node.

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        self._mark(node, not isinstance(node.ctx, ast.Load))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target = node.target
        if isinstance(target, ast.Attribute) and target.attr in ADDED_TO & self._in_turn:
            loaded = ast.parse(ast.unparse(target), mode="eval").body
            assignment = ast.Assign([target], ast.BinOp(loaded, node.op, node.value))
            return ast.copy_location(self.visit_Assign(assignment), node)
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and _name(node.value.func) == "map":
            node.value = self._container_point(node.value, "", writes=True)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        function = node.func
        if isinstance(function, ast.Attribute):
            # The method itself is no flag, even if it is named like one.
            function.value = self.visit(function.value)
            node.args = [self.visit(argument) for argument in node.args]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            if _name(function.value) == "heapq":
                self._mark_written(node.args[0])
            elif function.attr in WRITING | READING:
                self._mark_method(node, function)
            return node
        self.generic_visit(node)
        if _name(function) in ("heappush", "heappop", "heapify"):
            self._mark_written(node.args[0])
        if _name(function) == "next" or (_name(function) in COPYING and node.args):
            is_next = _name(function) == "next"
            node.args[0] = self._container_point(node.args[0], "", writes=is_next)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        if isinstance(node.ctx, ast.Load):
            self.generic_visit(node)
            return node
        key = _key(node.slice)
        self.generic_visit(node)
        if isinstance(node.slice, ast.Slice):
            self._mark_written(node.value)
        elif key in CLAIMS:
            node.value = _claims(node.value, key, writes=True)
        else:
            node.slice = self._container_point(node.slice, key, writes=True)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        key = _key(node.left)
        self.generic_visit(node)
        if not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return node
        if key in CLAIMS:
            node.comparators[0] = _claims(node.comparators[0], key, writes=False)
        else:
            node.left = self._container_point(node.left, key, writes=False)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name):
            node.test = self._container_point(node.test, "", writes=False)
        return node

    def visit_Yield(self, node: ast.Yield) -> ast.Yield:
        self.generic_visit(node)
        if self._containers == "an executor" and node.value is not None:
            node.value = self._container_point(node.value, "", writes=True)
        return node

    # No other thread has an object under construction, and annotations are no code.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name != "__init__":
            node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    # The points.

    def _mark(self, node: ast.Attribute, writes: bool) -> None:
        name = node.attr
        if name in self._in_turn:
            node.value = _call(AT_LISTS, node.value, access(LISTS, writes))
        elif name in self._flags:
            # Reading whether a generator runs conflicts with running it.
            writes = writes or name in ("calls", "gi_running")
            if name.startswith("_op_"):
                node.value = _call(AT_OPERATION, node.value, access_of_operation(name, writes))
            else:
                node.value = _call(AT, node.value, access(name, writes))

    def _mark_written(self, node: ast.expr) -> None:
        """The loaded object is about to be changed itself."""
        if isinstance(node, ast.Attribute):
            self._mark(node, writes=True)

    def _mark_method(self, node: ast.Call, method: ast.Attribute) -> None:
        writes = method.attr in WRITING
        key = _key(node.args[0]) if node.args else ""
        if key in CLAIMS:
            method.value = _claims(method.value, key, writes)
        elif node.args:
            node.args[-1] = self._container_point(node.args[-1], key, writes)
        else:
            node.func = self._container_point(method, key, writes)

    def _container_point(self, node: ast.expr, key: str, writes: bool) -> ast.expr:
        if self._containers is None:
            return node
        return _call(
            AT_LISTS if self._containers == LISTS else AT, node, access(self._containers, writes)
        )


def _call(function: str, value: ast.expr, number: int) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [value, ast.Constant(number)], [])


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _key(node: ast.expr) -> str:
    """Return the constant that is the key of a dict, or nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _claims(claims: ast.expr, key: str, writes: bool) -> ast.expr:
    return _call(AT_OPERATION, claims, access_of_operation(key, writes))

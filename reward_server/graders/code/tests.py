"""Tests that are written in Python: which there are, and what they need. Pure.

A reference's ``tests`` is the source of a module: ``assert`` statements (MBPP), a function ``check(candidate)``
(HumanEval), ``test_…`` functions and ``Test…`` classes (pytest, unittest). What is a test is decided here, outside of
every box, so the number of tests is known whatever happens inside.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

MODULES = ("solution", "candidate", "main")
"""Names under which tests may import the candidate."""
MAX_TESTS = 1000
_DUNDERS = frozenset({"__name__", "__file__", "__builtins__", "__doc__", "__annotations__"})


class BadTests(ValueError):
    """Source that has no tests, or that needs what is nowhere defined."""


class Undefined(BadTests):
    """They need what is nowhere defined: the candidate's own names, where they share its process."""

    def __init__(self, plan: Plan, missing: list[str]) -> None:
        super().__init__(
            f"the tests use {', '.join(missing[:5])}, which neither they nor the prompt define: put it into "
            "`prefix`, name it in `functions` if the candidate defines it as a function, or say `allow_shared`"
        )
        self.plan = plan


@dataclass(frozen=True, slots=True)
class Test:
    kind: Literal["statement", "function", "check", "method"]
    name: str
    """Of the function, or ``Class.method``; of a statement, its line."""
    statements: tuple[int, ...]
    """Top-level statements of the module that run before it, and itself where it is one."""
    line: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tests of one reference are."""

    tests: tuple[Test, ...]
    functions: tuple[str, ...]
    """Of the candidate, the entry point first."""
    prompt_names: tuple[str, ...]
    """Names that the tests use and the prompt defines."""
    modules: tuple[str, ...]
    pytest: bool
    imports: tuple[str, ...]
    """Modules that the tests import."""


def parsed(source: str) -> ast.Module | None:
    """The syntax tree, or None for what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def whole(prompt: str) -> str | None:
    """The prompt as a module of its own: itself, or with a body for the function that it begins. None: no Python."""
    if parsed(prompt) is not None:
        return prompt
    lines = prompt.rstrip().split("\n")
    last = lines[-1]
    if not last.rstrip().endswith(":"):
        return None
    body = " " * (len(last) - len(last.lstrip()) + 4) + "pass\n"
    with_body = "\n".join([*lines, body])
    return with_body if parsed(with_body) is not None else None


def defined(tree: ast.Module) -> frozenset[str]:
    """Names that a module binds at its top level."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((a.asname or a.name).split(".")[0] for a in node.names)
        else:
            found.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _stores(n))
    return frozenset(found)


@lru_cache(maxsize=512)
def plan(source: str, functions: tuple[str, ...], prompt: str) -> Plan:
    """Raises BadTests."""
    tree = parsed(source)
    if tree is None:
        raise BadTests("the tests are no Python that can be parsed")
    imported = _of_the_candidate(tree)
    prompt_tree = parsed(prompt) if prompt else None
    available = defined(prompt_tree) if prompt_tree is not None else frozenset[str]()
    functions = tuple(dict.fromkeys([*functions, *imported]))
    if not functions:
        functions = _only_called(tree, _open_names(tree) - available)
    if not functions:
        raise BadTests(
            "name the function that is tested: entry_point, or import it from `solution`"
        )
    tests = _tests(tree)
    if not tests:
        raise BadTests("no tests: give assert statements, check(candidate), or test functions")
    if len(tests) > MAX_TESTS:
        raise BadTests(f"{len(tests)} tests; the limit is {MAX_TESTS}")
    open_names = _open_names(tree) - set(functions) - {"candidate"}
    missing = sorted(open_names - available)
    names = _imported(tree)
    found = Plan(
        tests,
        (*functions, *missing),
        tuple(sorted(open_names & available)),
        MODULES,
        "pytest" in names or _takes_fixtures(tree),
        tuple(sorted(names - set(MODULES))),
    )
    if missing:
        raise Undefined(found, missing)
    return found


def as_data(
    plan: Plan, source: str, prompt: str, *, shared: bool, candidate: str, most: int, token: str
) -> dict[str, Any]:
    """What the program in the box (``runner``) is told."""
    return {
        "token": token,
        "tests": source,
        "prompt": prompt,
        "prompt_names": list(plan.prompt_names),
        "functions": list(plan.functions),
        "modules": list(plan.modules),
        "pytest": plan.pytest,
        "shared": shared,
        "candidate": candidate if shared else "",
        "most": most,
        "list": [
            {"kind": t.kind, "name": t.name, "statements": list(t.statements)} for t in plan.tests
        ],
    }


# ── which statements are tests ───────────────────────────────────────────────────────────────────


def _tests(tree: ast.Module) -> tuple[Test, ...]:
    """Each top-level statement is set-up, a test, or the definition of some."""
    is_test = [_is_test(node) for node in tree.body]
    functions, methods, checks = [], [], []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            functions.append(node)
        elif isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            checks.append(node)
        elif isinstance(node, ast.ClassDef) and _is_test_class(node):
            methods += [
                (node, n)
                for n in node.body
                if isinstance(n, ast.FunctionDef) and n.name.startswith("test")
            ]
    setup = [n for n, test in enumerate(is_test) if not test and not _is_main_guard(tree.body[n])]
    found = []
    for number, node in enumerate(tree.body):
        if is_test[number]:
            before = tuple(n for n in setup if n < number)
            found.append(Test("statement", f"line {node.lineno}", (*before, number), node.lineno))
    everything = tuple(setup)
    called = {
        n.func.id
        for number, node in enumerate(tree.body)
        if is_test[number]
        for n in ast.walk(node)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    found += [
        Test("check", n.name, everything, n.lineno) for n in checks[-1:] if n.name not in called
    ]
    found += [
        Test("function", n.name, everything, n.lineno) for n in functions if n.name not in called
    ]
    found += [Test("method", f"{c.name}.{n.name}", everything, n.lineno) for c, n in methods]
    return tuple(sorted(found, key=lambda t: t.line))


def _is_test(node: ast.stmt) -> bool:
    """Whether a top-level statement tests something: an assert, a block with one, a call for its effect."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _is_setup_call(node.value)
    return any(isinstance(n, ast.Assert) for n in ast.walk(node)) and not _is_main_guard(node)


def _is_setup_call(call: ast.Call) -> bool:
    """``random.seed(0)``, ``sys.setrecursionlimit(…)``, ``print(…)`` set up or say something."""
    if isinstance(call.func, ast.Attribute):
        return not call.func.attr.startswith("assert")
    return isinstance(call.func, ast.Name) and call.func.id == "print"


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )


def _is_test_class(node: ast.ClassDef) -> bool:
    bases = [b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases]
    return node.name.startswith("Test") or "TestCase" in bases


def _takes_fixtures(tree: ast.Module) -> bool:
    return any(
        isinstance(n, ast.FunctionDef) and n.name.startswith("test") and n.args.args
        for n in tree.body
    )


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def _of_the_candidate(tree: ast.Module) -> list[str]:
    return [
        a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom) and n.module in MODULES
        for a in n.names
        if a.name != "*"
    ]


def _only_called(tree: ast.Module, names: set[str]) -> tuple[str, ...]:
    """The function that tests call and nobody defines, if it is all that they lack."""
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return tuple(names) if len(names) == 1 and names <= called else ()


def _imported(tree: ast.Module) -> set[str]:
    """Top-level packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def _stores(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _open_names(tree: ast.Module) -> set[str]:
    """Names that a module reads and nowhere binds."""
    read: set[str] = set()
    bound: set[str] = set(dir(builtins)) | _DUNDERS
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                (bound if _stores(node) else read).add(node.id)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.arg():
                bound.add(node.arg)
            case ast.Import() | ast.ImportFrom():
                if any(a.name == "*" for a in node.names):
                    return set()  # whatever it brings
                bound.update((a.asname or a.name).split(".")[0] for a in node.names)
            case ast.ExceptHandler() if node.name:
                bound.add(node.name)
            case ast.MatchAs() | ast.MatchStar() if node.name:
                bound.add(node.name)
            case ast.MatchMapping() if node.rest:
                bound.add(node.rest)
    return read - bound

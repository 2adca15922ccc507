"""Turns a function that exists into the config of a grader of kind ``python``.

Nothing of it is run or imported here.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from reward_server.cli.shared import Fail

_SPARE = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "self", "kwargs"}
)  # fmt: skip
_USUAL = ("answer", "solution", "ground_truth", "target", "label")


def config_of(target: str, signature: str) -> dict[str, Any]:
    """The config for ``module:function`` or ``path.py:function``. Raises Fail."""
    module, colon, function = target.rpartition(":")
    if not colon or not module or not function.isidentifier():
        raise Fail(f"{target}: name it as module:function, or path.py:function")
    path = Path(module) if module.endswith(".py") else _file_of(module)
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise Fail(f"{path}: {error}") from None
    config: dict[str, Any] = {"source": source, "signature": signature, "entry_point": function}
    if signature == "trl":
        config["reference_as"] = _reference_column(tree, function)
    return config


def _file_of(module: str) -> Path:
    """Where a module's source is, found without importing its packages."""
    places: list[str] | None = [".", *sys.path]
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            raise Fail(
                f"no module {name!r} here: run it where `import {name}` works, or give path.py:function"
            )
        places = list(spec.submodule_search_locations or [])
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise Fail(f"{module} is no module with a source")
    return Path(spec.origin)


def _reference_column(tree: ast.Module, function: str) -> str:
    """The parameter that is the reference: a usual name, or the only one that is none of TRL's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [a.arg for a in arguments if a.arg not in _SPARE]
            usual = [n for n in _USUAL if n in names]
            if usual or len(names) == 1:
                return (usual or names)[0]
    return _USUAL[0]

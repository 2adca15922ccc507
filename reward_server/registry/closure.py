"""The source hash of a kind: of everything in our packages that its module can reach by import.

The closure is computed from the import statements, also those inside functions, so that no list has to
be kept by hand. Each Python file is hashed as its tokens without comments, docstrings and layout, so a
comment-only edit changes nothing; other files in the folders of the closure's packages (grammars,
tables, templates) are hashed as bytes. The hash is the same for every Python that can run us.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("reward_server", "sandboxes")
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)
_SOURCE_SUFFIXES = frozenset({".py", ".pyc", ".pyi"})


@cache
def source_hash(module: str) -> str:
    """Hex SHA-256 over the import closure of ``module``."""
    return hash_sources(closure(module))


def hash_sources(files: Mapping[str, bytes]) -> str:
    """Hex SHA-256 of named files; Python by its tokens, anything else by its bytes."""
    total = hashlib.sha256()
    for name in sorted(files):
        data = files[name]
        essence = significant(data) if name.endswith(".py") else data
        total.update(f"{name}\0{len(essence)}\0".encode())
        total.update(essence)
    return total.hexdigest()


def closure(module: str) -> dict[str, bytes]:
    """Path (relative to the packages' parent) -> content of each file that ``module`` can reach."""
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _file_of(name)
        if path is None:
            continue
        source = path.read_bytes()
        files[_key(name, path)] = source
        if path.name == "__init__.py":
            files |= dict(_package_data(name, path.parent))
        todo.extend(_imports(name, source, is_package=path.name == "__init__.py"))
    return files


def significant(source: bytes) -> bytes:
    """The tokens of a Python source that can change what it does, with block structure."""
    text = source.decode("utf-8")
    docstrings = _docstring_lines(text)
    lines = text.splitlines(keepends=True)
    out: list[str] = []
    fstring_start: tuple[int, int] | None = None
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        # Since Python 3.12 an f-string is several tokens: put it together again as one.
        if name in ("FSTRING_START", "TSTRING_START"):
            if depth == 0:
                fstring_start = token.start
            depth += 1
            continue
        if depth:
            if name in ("FSTRING_END", "TSTRING_END"):
                depth -= 1
                if depth == 0 and fstring_start is not None:
                    out.append(_slice(lines, fstring_start, token.end))
            continue
        if token.type == tokenize.INDENT:
            out.append("\x01")
        elif token.type == tokenize.DEDENT:
            out.append("\x02")
        elif token.type == tokenize.NEWLINE:
            out.append("\n")
        elif token.type in _LAYOUT or (token.type == tokenize.STRING and token.start in docstrings):
            continue
        else:
            out.append(token.string)
    return "\0".join(out).encode()


def _docstring_lines(text: str) -> set[tuple[int, int]]:
    """Start positions of expression statements that are a string and nothing more.

    Module, class and function docstrings, and the strings below a field that describe it.
    """
    starts = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                starts.add((node.lineno, node.col_offset))
    return starts


def _slice(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, a), (last, b) = start, end
    if first == last:
        return lines[first - 1][a:b]
    return "".join([lines[first - 1][a:], *lines[first : last - 1], lines[last - 1][:b]])


def _imports(module: str, source: bytes, *, is_package: bool) -> Iterator[str]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from _with_parents(base)
            for alias in node.names:  # ``from package import module``
                yield from _with_parents(f"{base}.{alias.name}")


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    if parts[0] in PACKAGES:
        for n in range(1, len(parts) + 1):
            yield ".".join(parts[:n])


@cache
def _file_of(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None  # ``from module import name_of_an_object``
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _key(name: str, path: Path) -> str:
    stem = name.replace(".", "/")
    return f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}.py"


def _package_data(name: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix not in _SOURCE_SUFFIXES and file.name[0] != ".":
            yield f"{name.replace('.', '/')}/{file.name}", file.read_bytes()

"""The text of Lean files: of the challenge from a reference, of a submission from a completion. Pure.

The challenge is trusted. What a completion says is never searched for anything that decides: it is put where the mode
says, compiled, and the outcome compared with the compiled challenge.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_server.graders.lean.reference import LeanReference, Mode

if TYPE_CHECKING:
    from reward_server.graders.lean.kind import LeanConfig

Name = tuple[str | int, ...]
_NAME = r"(?:«[^»]*»|[^\s.:({\[⦃«]+)"
_DECLARED = re.compile(rf"\b(?:theorem|lemma)\s+({_NAME}(?:\.{_NAME})*)")
_PROOF = re.compile(r":=\s*(?:by\s+)?(?:sorry|_)?\s*\Z|:=\s*by\s*\Z")
_IMPORT = re.compile(r"(?:public\s+)?(?:meta\s+)?import\s+(?:all\s+)?(\S+)")
_COMMENT = re.compile(r"/-.*?-/|--[^\n]*", re.DOTALL)
_PART = re.compile(r"«([^»]*)»|([^.«»]+)")


class BadChallenge(ValueError):
    """A reference whose statement cannot be made a file of."""


@dataclass(frozen=True, slots=True)
class Challenge:
    text: str
    """With ``sorry`` for the proof."""
    head: str
    """The text before the proof, without ``:=``; empty where the reference is a file."""
    header: str
    theorem: Name
    imports: tuple[str, ...]
    prelude: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be compiled."""

    text: str
    first_line: int
    """Where the completion begins in it, from 1."""


def challenge(reference: LeanReference, config: LeanConfig) -> Challenge:
    """Raises BadChallenge."""
    if reference.file is not None:
        return _of_file(reference.file, reference, config)
    assert reference.statement is not None
    statement = _PROOF.sub("", reference.statement.strip()).rstrip()
    declared = _DECLARED.search(_COMMENT.sub(" ", statement))
    begins = _COMMENT.sub(" ", statement).lstrip()
    if declared and re.match(
        r"(?:@\[|private\b|protected\b|theorem\b|lemma\b|set_option\b|open\b)", begins
    ):
        written = declared[1]
    elif reference.theorem is None:
        raise BadChallenge("name the theorem: `theorem NAME … : T`, or the field theorem")
    else:
        written = reference.theorem
        statement = f"theorem {written} : {statement}"
    header = reference.header.strip("\n")
    head = f"{header}\n\n{statement}" if header.strip() else statement
    return Challenge(
        f"{head} := sorry\n",
        head,
        header,
        name_of(reference.theorem or written),
        tuple(reference.imports if reference.imports is not None else config.imports),
        config.prelude,
    )


def _of_file(text: str, reference: LeanReference, config: LeanConfig) -> Challenge:
    prelude, imports, rest = split_header(text)
    if reference.theorem is None:
        names = [m[1] for m in _DECLARED.finditer(_COMMENT.sub(" ", rest))]
        if len(names) != 1:
            raise BadChallenge(f"the file has {len(names)} theorems: name one in the field theorem")
        written = names[0]
    else:
        written = reference.theorem
    if reference.imports is not None:
        imports = reference.imports
    return Challenge(
        rest,
        "",
        "",
        name_of(written),
        tuple(imports or ([] if prelude else config.imports)),
        prelude or config.prelude,
    )


def split_header(text: str) -> tuple[bool, list[str], str]:
    """(whether it says ``prelude``, its imports, the file with blanks in place of both). Of trusted files."""
    at, prelude, imports = 0, False, []
    while True:
        space = re.compile(r"(?:\s|--[^\n]*|/-(?!-).*?-/)*", re.DOTALL).match(text, at)
        at = space.end() if space else at
        if word := re.compile(r"(prelude|module)\b").match(text, at):
            prelude = prelude or word[1] == "prelude"
            at = word.end()
        elif found := _IMPORT.match(text, at):
            imports.append(found[1])
            at = found.end()
        else:
            break
    kept = re.sub(r"[^\n]", " ", _COMMENT.sub(lambda m: m[0], text[:at]))
    return prelude, imports, kept + text[at:]


def submission(asked: Challenge, mode: Mode, text: str) -> Source:
    """The file that a completion makes."""
    match mode:
        case "file":
            return Source(text, 1)
        case "theorem":
            before = f"{asked.header}\n\n" if asked.header.strip() else ""
            return Source(before + text, before.count("\n") + 1)
        case "body":
            body = text.strip("\n").rstrip()
            if body.lstrip().startswith(":="):
                body = body.lstrip()[2:]
            before = f"{asked.head} :="
            return Source(f"{before} {body}\n", before.count("\n") + 1)
        case "tactics":
            lines = text.strip("\n").split("\n")
            before = f"{asked.head} := by\n"
            indented = "\n".join(f"  {line}" if line.strip() else "" for line in lines)
            return Source(f"{before}{indented}\n", before.count("\n") + 1)


def setup_json(asked: Challenge) -> bytes:
    """For ``--setup``: the header of the file, whatever the file itself says."""
    names = list(asked.imports)
    if not asked.prelude and "Init" not in names:
        names.insert(0, "Init")
    imports = [
        {"module": n, "importAll": False, "isExported": True, "isMeta": False} for n in names
    ]
    setup = {
        "name": "Submission", "isModule": False, "imports": imports, "importArts": {}, "dynlibs": [], "plugins": [],
        "options": {},
    }  # fmt: skip
    return json.dumps(setup).encode()


def with_header(asked: Challenge, text: str) -> str:
    """For toolchains without ``--setup``: the imports in the file itself. What a submission imports besides shows in
    what is compiled, and is refused then."""
    lines = ["prelude"] if asked.prelude else []
    lines += [f"import {n}" for n in asked.imports]
    return "\n".join([*lines, text])


def name_of(written: str) -> Name:
    """``a.«b c».d`` as its parts."""
    if "«" in written:
        return tuple(quoted or plain for quoted, plain in _PART.findall(written))
    return tuple(written.split("."))


def shown(name: Name) -> str:
    return ".".join(map(str, name))

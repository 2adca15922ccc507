"""The audit: compiled files are read as data in a box (``inside``), and what they rest on must be allowed."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from reward_server.graders.lean.sources import BadChallenge, Challenge, Name
from reward_server.graders.lean.toolchains import Workshop
from sandboxes.program import Execution, Limits, Run, Sandbox, Submission, Verdict

if TYPE_CHECKING:  # they run in a box, and decide verdicts
    from reward_server.graders.lean.inside import closure, compare, main, olean  # noqa: F401

_INSIDE = files(__package__).joinpath("inside")
_MAIN = _INSIDE.joinpath("main.py").read_text("utf-8")
_MODULES = {
    f"{n}.py": _INSIDE.joinpath(f"{n}.py").read_bytes() for n in ("closure", "compare", "olean")
}
_WARM = ("olean.py", "compare.py", "closure.py")
_PRELOAD = ("json", "mmap", "re")
_COMPARING = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=1024, disk_mb=256)
_CLOSING = Limits(cpu_s=600.0, wall_s=900.0, memory_mb=6144, disk_mb=256, output_kb=64 << 10)
_MOST_KNOWN = 32


class AuditFailed(Exception):
    """Our side of the audit failed, or the files of the toolchain cannot be read."""


@dataclass(frozen=True, slots=True)
class Audit:
    outcome: str
    """``clean``, ``statement_differs``, ``axioms``, ``unsafe``, ``malformed`` or ``audit_failed``."""
    detail: str = ""
    axioms: tuple[str, ...] = ()
    """All that the proof rests on."""
    constants: int = 0


@dataclass(slots=True)
class _Known:
    """Of one set of imports: what their constants rest on."""

    axioms: dict[Name, tuple[frozenset[Name], bool]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_known: OrderedDict[tuple[str, tuple[str, ...]], _Known] = OrderedDict()
"""Of toolchain, project and imports. They are files that nobody but the operator writes, so all graders share it."""


async def audit(
    pool: Sandbox,
    shop: Workshop,
    asked: Challenge,
    compiled_challenge: dict[str, bytes],
    compiled: dict[str, bytes],
    allowed: frozenset[str],
    start_by: float,
) -> Audit:
    """Raises AuditFailed, BadChallenge, and as the pool does."""
    done = await _run(
        pool,
        "compare",
        {"target": list(asked.theorem)},
        _COMPARING,
        start_by,
        {f"challenge{n}": c for n, c in compiled_challenge.items()}
        | {f"submission{n}": c for n, c in compiled.items()},
    )
    if done.verdict is Verdict.SANDBOX_FAILED:
        raise AuditFailed(f"the audit's box failed: {done.detail}")
    if not done.ok:
        return Audit(
            "audit_failed", f"{done.verdict} {done.stderr[-500:].decode(errors='replace')}"
        )
    told = json.loads(done.result or b"{}")
    for problem, outcome in (("malformed", "malformed"), ("differs", "statement_differs")):
        if problem in told:
            return Audit(outcome, str(told[problem]))
    if "broken" in told:
        raise BadChallenge(str(told["broken"]))
    elsewhere = [tuple(n) for n in told["elsewhere"]]
    rests = await _rests_on(pool, shop, asked, elsewhere, start_by)
    given = {_text(n) for n in told["given"]}
    own = {_text(n) for n in told["axioms"]}
    imported = {_text(n) for name in elsewhere for n in rests[name][0]}
    axioms = tuple(sorted(own | imported))
    # An axiom of the submission's own is none that is allowed, whatever its name.
    refused = sorted((own - (given & allowed)) | (imported - allowed))
    if refused:
        return Audit("axioms", f"it rests on {', '.join(refused)}", axioms, told["constants"])
    unsafe = [_text(n) for n in told["unsafe"]] + [_text(n) for n in elsewhere if rests[n][1]]
    if unsafe:
        return Audit(
            "unsafe", f"it rests on unsafe {', '.join(unsafe[:10])}", axioms, told["constants"]
        )
    return Audit("clean", "", axioms, told["constants"])


async def _rests_on(
    pool: Sandbox, shop: Workshop, asked: Challenge, names: list[Name], start_by: float
) -> dict[Name, tuple[frozenset[Name], bool]]:
    key = (shop.identity, asked.imports)
    known = _known.setdefault(key, _Known())
    _known.move_to_end(key)
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    async with known.lock:
        wanted = [n for n in names if n not in known.axioms]
        if wanted:
            known.axioms |= await _closed(pool, shop, asked, wanted, known.axioms, start_by)
    return known.axioms


async def _closed(
    pool: Sandbox,
    shop: Workshop,
    asked: Challenge,
    wanted: list[Name],
    known: dict[Name, tuple[frozenset[Name], bool]],
    start_by: float,
) -> dict[Name, tuple[frozenset[Name], bool]]:
    kinds: dict[frozenset[Name], int] = {}
    listed = [
        [list(name), kinds.setdefault(axioms, len(kinds)), unsafe]
        for name, (axioms, unsafe) in known.items()
    ]
    imports = [list(n.split(".")) for n in (*asked.imports, *(() if asked.prelude else ("Init",)))]
    question = {
        "paths": [*shop.paths, f"{shop.toolchain.inside}/lib/lean"],
        "imports": imports,
        "wanted": [list(n) for n in wanted],
        "kinds": [[list(n) for n in axioms] for axioms in kinds],
        "known": listed,
    }
    done = await _run(pool, "axioms", question, _CLOSING, start_by, {})
    if not done.ok:
        raise AuditFailed(
            f"reading the imported modules: {done.verdict} {done.detail} {done.stderr[-500:].decode(errors='replace')}"
        )
    told = json.loads(done.result or b"{}")
    if "problem" in told:
        raise AuditFailed(f"reading the imported modules: {told['problem']}")
    groups = [frozenset(tuple(n) for n in axioms) for axioms in told["kinds"]]
    return {tuple(name): (groups[kind], unsafe) for name, kind, unsafe in told["found"]}


async def _run(
    pool: Sandbox,
    what: str,
    question: dict[str, Any],
    limits: Limits,
    start_by: float,
    given: dict[str, bytes],
) -> Execution:
    run = Run(
        argv=(what,),
        files={"asked.json": json.dumps(question).encode(), **given},
        reports=True,
    )
    submission = Submission(
        "python", _MAIN, (run,), limits, files=_MODULES, preload=_PRELOAD, warm=_WARM, keep=True
    )
    return (await pool.run(submission, None, start_by)).runs[0]


def _text(name: list[str | int] | Name) -> str:
    return ".".join(map(str, name))

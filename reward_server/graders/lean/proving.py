"""One completion on its way to a verdict: challenge, submission, audit, replay. Each in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_server.graders.base import Context
from reward_server.graders.lean import messages, sources
from reward_server.graders.lean.audit import Audit, AuditFailed, audit
from reward_server.graders.lean.messages import Messages
from reward_server.graders.lean.reference import LEVELS, LeanReference, Level
from reward_server.graders.lean.sources import BadChallenge, Challenge
from reward_server.graders.lean.toolchains import Workshop
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored
from sandboxes.program import Execution, Limits, Run, Sandbox, Submission, Verdict

if TYPE_CHECKING:
    from reward_server.graders.lean.kind import LeanConfig

_PARTS = (".olean", ".olean.server", ".olean.private")
_LIMITS = frozenset(
    {Verdict.TIME_LIMIT, Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT, Verdict.DISK_LIMIT}
)
_MOST_CHALLENGES = 2048
_MOST_CHALLENGE_BYTES = 256 << 20
_SHOWN = 2000


class SandboxFailed(Exception):
    """A box failed; there is no verdict."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of a file that Lean compiled."""

    done: Execution
    said: Messages
    parts: dict[str, bytes]
    """``.olean`` and so on; empty where there is none."""

    @property
    def accepted(self) -> bool:
        return self.done.ok and not self.said.errors and bool(self.parts)


@dataclass(slots=True)
class Challenges:
    """Compiled challenges: of each, the files or what is wrong with it. Shared by the items of a grader."""

    _found: OrderedDict[str, asyncio.Future[dict[str, bytes]]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    async def compiled(self, key: str, make: Any) -> dict[str, bytes]:
        """``make`` is called once for all that ask at the same time. A failure is not kept."""
        while key in self._found:
            future = self._found[key]
            try:
                found = await asyncio.shield(future)
            except asyncio.CancelledError:
                if not future.cancelled():
                    raise
                continue  # whoever made it has gone: somebody else does it
            self._found.move_to_end(key)
            return found
        future = self._found[key] = asyncio.get_running_loop().create_future()
        try:
            made: dict[str, bytes] = await make()
        except BaseException as error:
            del self._found[key]
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
                future.exception()  # nobody may be waiting
            raise
        future.set_result(made)
        self._bytes += _size(made)
        while len(self._found) > _MOST_CHALLENGES or self._bytes > _MOST_CHALLENGE_BYTES:
            oldest, old = next(iter(self._found.items()))
            if oldest == key or not old.done():
                break
            del self._found[oldest]
            self._bytes -= _size(old.result())
        return made


class Proving:
    def __init__(
        self,
        config: LeanConfig,
        reference: LeanReference,
        shop: Workshop,
        challenges: Challenges,
        ctx: Context,
    ) -> None:
        self._config = config
        self._shop = shop
        self._challenges = challenges
        self._pool: Sandbox = ctx.sandbox
        limits = config.limits
        self._limits = Limits(
            limits.cpu_s, limits.wall_s, limits.memory_mb, 64, limits.output_kb, limits.disk_mb
        )
        self._deadline = ctx.deadline
        self._timings: dict[str, float] = {}
        try:
            self._asked = sources.challenge(reference, config)
        except BadChallenge as error:
            raise CannotScore(FailureKind.INVALID_REFERENCE, str(error)) from None

    async def run(self, text: str, found: dict[str, Any]) -> tuple[Outcome, bool]:
        """(outcome, whether Lean was starved of CPU). ``found``: how the text was found in the completion.

        Raises CannotScore, SandboxFailed, AuditFailed, and as the pool does.
        """
        challenge = await self._challenge()
        source = sources.submission(self._asked, self._config.mode, text)
        compiled = await self._compile(self._asked, source.text, "lean_s")
        raw: dict[str, Any] = {
            **found,
            **self._shop.described(),
            "theorem": sources.shown(self._asked.theorem),
            "mode": self._config.mode,
            "first_line": source.first_line,
            "messages": compiled.said.data(),
            "errors": compiled.said.errors,
            "timings": self._timings,
        }
        if not compiled.accepted:
            return self._refused(compiled, raw), compiled.done.starved
        audited = await self._audited(challenge, compiled)
        if audited is None:
            level: Level = "elaborated"
            raw["axioms"] = None
            if compiled.said.sorries:
                return self._scored(raw, "axioms", "it uses sorry", None), False
        else:
            raw |= {"axioms": list(audited.axioms), "constants": audited.constants}
            if audited.outcome != "clean":
                return self._scored(raw, audited.outcome, audited.detail, "elaborated"), False
            level = "axioms_audited"
        if LEVELS.index(self._config.min_level) > LEVELS.index("axioms_audited"):
            problem = await self._replayed(challenge, compiled.parts)
            if problem is not None:
                return self._scored(raw, "replay_failed", problem, level), False
            level = "kernel_replayed"
        return self._scored(raw, "proved", "", level), False

    # ── the steps ────────────────────────────────────────────────────────────────────────────────

    async def _challenge(self) -> dict[str, bytes]:
        asked = self._asked
        identity = repr((self._shop.identity, asked, sorted(self._config.options.items())))
        key = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()

        async def make() -> dict[str, bytes]:
            compiled = await self._compile(asked, asked.text, "challenge_s")
            if not compiled.accepted:
                said = next((m.text for m in compiled.said.found if m.severity == "error"), "")
                line = next((m.line for m in compiled.said.found if m.severity == "error"), 0)
                why = (
                    said
                    or f"{compiled.done.verdict} {compiled.done.stderr[-300:].decode(errors='replace')}"
                )
                raise CannotScore(
                    FailureKind.INVALID_REFERENCE,
                    f"the statement is not accepted by Lean {self._shop.toolchain.version}: line {line}: {why}"[
                        :1000
                    ],
                )
            if LEVELS.index(self._config.min_level) > LEVELS.index("axioms_audited"):
                problem = await self._replayed(compiled.parts, compiled.parts)
                if problem is not None:
                    raise CannotScore(
                        FailureKind.TOOLCHAIN_UNAVAILABLE,
                        f"the replayer refuses the challenge itself: {problem}"[:1000],
                    )
            return compiled.parts

        return await self._challenges.compiled(key, make)

    async def _compile(self, asked: Challenge, text: str, timing: str) -> Compiled:
        toolchain, options = self._shop.toolchain, []
        for name, value in sorted(self._config.options.items()):
            stated = str(value).lower() if isinstance(value, bool) else str(value)
            options.append(f"-D{name}={stated}")
        files = {}
        if toolchain.setup:
            options.append("--setup=setup.json")
            files["setup.json"] = sources.setup_json(asked)
        elif self._config.mode != "file" or text == asked.text:
            text = sources.with_header(asked, text)
        files["Submission.lean"] = text.encode("utf-8", "surrogatepass")
        argv = ("--json", *options, "-o", "Submission.olean", "Submission.lean")
        start_by = self._deadline - self._limits.cpu_s
        done = await self._execute(toolchain.lean, argv, files, start_by, fetch=True)
        self._timings[timing] = round(done.wall_s, 4)
        self._timings[timing.replace("_s", "_cpu_s")] = round(done.cpu_s, 4)
        parts: dict[str, bytes] = {}
        for part in _PARTS:
            content = done.files.get(f"Submission{part}")
            if content is None:
                break
            parts[part] = content
        return Compiled(done, messages.parsed(done.stdout), parts)

    async def _execute(
        self,
        program: str,
        argv: tuple[str, ...],
        files: dict[str, bytes],
        start_by: float,
        *,
        fetch: bool = False,
    ) -> Execution:
        run = Run(
            argv=argv,
            files=files,
            fetch=tuple(f"Submission{p}" for p in _PARTS) if fetch else (),
        )
        paths = [*self._shop.paths, "."]
        submission = Submission(
            "command", "", (run,), self._limits, keep=True, command=(program,),
            env={"LEAN_PATH": ":".join(paths), "LEAN_ABORT_ON_PANIC": "1"},
        )  # fmt: skip
        done = (await self._pool.run(submission, None, start_by)).runs[0]
        if done.verdict is Verdict.SANDBOX_FAILED:
            raise SandboxFailed(done.detail)
        return done

    async def _audited(self, challenge: dict[str, bytes], compiled: Compiled) -> Audit | None:
        """None where the toolchain's files cannot be read, and the grader does not insist."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        allowed = frozenset(self._config.allowed_axioms)
        try:
            return await audit(
                self._pool,
                self._shop,
                self._asked,
                challenge,
                compiled.parts,
                allowed,
                self._deadline,
            )
        except BadChallenge as error:
            raise CannotScore(FailureKind.INVALID_REFERENCE, str(error)) from None
        except AuditFailed as error:
            if self._config.min_level == "elaborated":
                return None
            raise CannotScore(
                FailureKind.TOOLCHAIN_UNAVAILABLE, f"the proof cannot be audited: {error}"[:1000]
            ) from None
        finally:
            self._timings["audit_s"] = round(loop.time() - began, 4)

    async def _replayed(self, challenge: dict[str, bytes], parts: dict[str, bytes]) -> str | None:
        """What the replayer has against a compiled file, or None."""
        if self._config.min_level == "comparator":
            raise CannotScore(
                FailureKind.TOOLCHAIN_UNAVAILABLE,
                "comparator is not supported yet: the highest level here is kernel_replayed",
            )
        replayer = self._shop.replayer
        if replayer is None:
            raise CannotScore(
                FailureKind.TOOLCHAIN_UNAVAILABLE,
                "nothing here replays proofs in a kernel: use a toolchain with leanchecker (Lean 4.28 or newer), or "
                "compile SafeVerify or lean4checker in the project, or choose min_level: axioms_audited",
            )
        name, program = replayer
        if name == "safe_verify":
            files = {f"Challenge{n}": c for n, c in challenge.items()}
            argv: tuple[str, ...] = ("Challenge.olean", "Submission.olean")
        else:
            files, argv = {}, ("Submission",)
        files |= {f"Submission{n}": c for n, c in parts.items()}
        done = await self._execute(program, argv, files, self._deadline)
        self._timings["replay_s"] = round(done.wall_s, 4)
        if done.ok:
            return None
        said = (done.stderr or done.stdout)[-_SHOWN:].decode("utf-8", "replace").strip()
        return f"{name}: {said or done.verdict}"

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────────

    def _refused(self, compiled: Compiled, raw: dict[str, Any]) -> Outcome:
        """Of what Lean did not accept."""
        done = compiled.done
        raw |= {
            "exit_code": done.exit_code,
            "signal": done.signal,
            "stderr": _shown(done.stderr),
            "killed_by": done.killed_by or None,
        }
        if done.verdict in _LIMITS:
            return self._scored(raw, done.verdict.value, "", None, Basis.LIMIT)
        if compiled.said.errors or done.exit_code == 1:
            return self._scored(raw, "lean_error", "", None)
        if not done.ok:
            return self._scored(raw, "crash", "", None, Basis.LIMIT)
        return self._scored(raw, "no_olean", "Lean ended without a compiled file", None)

    def _scored(
        self,
        raw: dict[str, Any],
        outcome: str,
        detail: str,
        level: Level | None,
        basis: Basis = Basis.VERDICT,
    ) -> Outcome:
        proved = outcome == "proved"
        raw = {"outcome": outcome, "level": level, **raw}
        if detail:
            raw["detail"] = detail
        return Scored(float(proved), {"correct": float(proved)}, raw=raw, basis=basis)


def _size(parts: dict[str, bytes]) -> int:
    return sum(map(len, parts.values()))


def _shown(stderr: bytes) -> str:
    """Its beginning, which says what panicked, and its end."""
    if len(stderr) > 2 * _SHOWN:
        stderr = stderr[:_SHOWN] + b"\n[...]\n" + stderr[-_SHOWN:]
    return stderr.decode("utf-8", "replace")

"""What the gradings of cases and of tests have in common."""

from __future__ import annotations

from collections.abc import Sequence

from reward_server.graders.code.reference import Limits
from sandboxes import program as sandbox
from sandboxes.program import Sandbox

_STDERR_TAIL = 2000


class Failed(Exception):
    """The sandbox failed; there is no verdict."""


async def require(pool: Sandbox, protections: Sequence[str], runtime: str | None) -> None:
    """Raises SandboxUnavailable where the host lacks a protection, or runs programs on something else."""
    if missing := sorted(set(protections) - set(await pool.active())):
        raise sandbox.SandboxUnavailable(
            f"this host lacks {missing}: run `reward-server doctor`, or leave them out of `required`"
        )
    if runtime is not None and pool.runtime != runtime:
        raise sandbox.SandboxUnavailable(
            f"the config names the runtime {runtime}, and this host has {pool.runtime}"
        )


def sandbox_limits(limits: Limits) -> sandbox.Limits:
    return sandbox.Limits(
        limits.cpu_s,
        limits.wall_s,
        limits.memory_mb,
        limits.pids,
        limits.output_kb,
        limits.disk_mb,
        limits.files,
    )


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def tail(text: bytes) -> str:
    return text[-_STDERR_TAIL:].decode("utf-8", "replace")

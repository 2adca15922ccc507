"""Runs the attacks in boxes and says what went wrong. Also a program of its own, for an unprivileged user:

python -m tests.attacks.code.attempt
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from sandboxes import languages, wire
from sandboxes.box import BubblewrapBackend, house
from sandboxes.keeper import Keeper
from sandboxes.program import Execution, Run, Submission, Verdict
from tests.attacks.code.programs import ATTACKS, Attack


def submit(keeper: Keeper, submission: Submission) -> tuple[Execution | None, list[Execution]]:
    """(compilation, runs)."""
    told: list[dict[str, Any]] = []
    ours, theirs = socket.socketpair()
    try:
        keeper.submit(submission, told.append, theirs)
    finally:
        ours.close()
        theirs.close()
    compilation = [wire.execution_in(m["compilation"]) for m in told if "compilation" in m]
    return (compilation[0] if compilation else None), [
        wire.execution_in(m["execution"]) for m in told if "run" in m
    ]


def problem_with(keeper: Keeper, attack: Attack) -> str | None:
    """What the attack got, or None. It runs twice in one box: the second run must find it as the first."""
    submission = Submission(attack.language, attack.source, (Run(attack.stdin),) * 2, attack.limits)
    compilation, runs = submit(keeper, submission)
    found = runs if compilation is None or compilation.ok else [compilation]
    for number, execution in enumerate(found):
        if b"HOLE" in execution.stdout or b"left" in execution.stdout:
            return f"run {number}: {execution.stdout.decode(errors='replace')[:1000]}"
        if execution.verdict not in attack.verdicts:
            return f"run {number}: {execution}"[:1500]
    return None


def alive_as(uid: int) -> list[str]:
    """Programs of this user that are still there (bubblewrap and all in its boxes)."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                with open(f"/proc/{name}/cmdline") as file:
                    found.append(file.read()[:100])
        except OSError:
            continue
    return found


def main() -> None:
    keeper = Keeper(BubblewrapBackend(house(None)), None)
    problems = {
        a.name: p
        for a in ATTACKS
        if languages.installed(a.language) and (p := problem_with(keeper, a)) is not None
    }
    alive, _ = submit(keeper, Submission("python", "print('fine')", (Run(),)))[1], None
    if alive[0].verdict is not Verdict.OK:
        problems["afterwards"] = str(alive[0])
    keeper.close()
    json.dump({"problems": problems, "attacks": len(ATTACKS), "uid": os.geteuid()}, sys.stdout)


if __name__ == "__main__":
    main()

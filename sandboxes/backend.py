"""What a way of making boxes has to offer: bubblewrap (``box``) and Docker (``container``) do."""

from __future__ import annotations

import socket
from typing import Protocol

from sandboxes.languages import Language
from sandboxes.program import Call, Execution, Limits


class BoxFailed(Exception):
    """The box, not the program, failed."""


class BoxLost(BoxFailed):
    """It failed under a program, and it cannot be told whose doing that is."""


class Box(Protocol):
    """A place for the runs of one program. Starts at once, in the background; everything else waits for it."""

    language: Language

    def wait_ready(self) -> None:
        """Raises BoxFailed."""

    def alive(self) -> bool: ...

    def close(self) -> None:
        """Ends everything in the box; :meth:`gone` tells when that is so."""

    def gone(self) -> bool:
        """Whether nothing of it is left. To be asked again until it is so."""
        ...

    def wait_until_gone(self) -> None: ...

    def setup(
        self,
        source: str,
        files: dict[str, bytes],
        imports: list[str],
        build_mb: int,
        env: dict[str, str],
        warm: tuple[str, ...] = (),
    ) -> None:
        """Gives the submission's files to process 1. Raises BoxFailed."""

    def install(self, files: dict[str, bytes]) -> None:
        """Puts compiled files where programs can read and run them. Raises BoxFailed."""

    def run(
        self,
        argv: list[str] | None,
        limits: Limits,
        *,
        stdin: bytes = b"",
        arguments: tuple[str, ...] = (),
        call: Call | None = None,
        files: dict[str, bytes] | None = None,
        fetch: tuple[str, ...] | None = (),
        stop: socket.socket | None = None,
        reports: bool = False,
        channel: socket.socket | None = None,
        serve: bool = False,
    ) -> Execution:
        """Runs the program (``argv``; None: the Python source in process 1's interpreter) once.

        ``fetch``: files to bring back from the working directory; None: all of the output folder.
        ``reports``: whether it gets a descriptor 3, whose content becomes the result. ``channel``: its
        descriptor 4, which is closed here. ``serve``: whether it answers calls over that.
        ``stop``: a socket whose becoming readable cancels the run. Raises BoxFailed.
        """
        ...


class Backend(Protocol):
    """Makes boxes on this machine."""

    @property
    def interpreter(self) -> str: ...

    @property
    def protections(self) -> tuple[str, ...]: ...

    @property
    def runtime(self) -> str:
        """What programs run on, by name: ``bubblewrap``, or the id of an image."""
        ...

    def box(self, language: Language) -> Box: ...

    def installed(self, name: str) -> str | None:
        """The full path of a language's program."""
        ...

    def version(self, name: str) -> str | None: ...

    def sweep(self) -> None:
        """Removes what crashed servers have left."""

"""Every knob of the service, in one place.

Each can be set by an environment variable with the prefix ``REWARD_``: ``REWARD_DATABASE_URL``,
``REWARD_WORKERS`` and so on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "reward-server"


class DockerSettings(BaseModel):
    """Containers of the backend ``docker``. ``REWARD_SANDBOX__DOCKER__IMAGE`` and so on."""

    model_config = ConfigDict(frozen=True)

    image: str = "reward-sandbox"
    """Made by ``make sandbox-image``. Its id is part of every grading's environment."""
    runtime: str | None = None
    """Another OCI runtime than the daemon's own, such as ``runsc`` (gVisor)."""
    url: str | None = None
    """Of the daemon; without one ``DOCKER_HOST``, or the usual socket."""
    memory_mb: int = Field(2048, ge=128)
    """Of a container; one whose submission may use more gets more."""
    disk_mb: int = Field(512, ge=16)
    """Of a container's scratch disk, the most that any submission can have."""


class SandboxSettings(BaseModel):
    """Where untrusted programs run. ``REWARD_SANDBOX__SLOTS`` and so on."""

    model_config = ConfigDict(frozen=True)

    backend: Literal["bubblewrap", "docker"] = "bubblewrap"
    docker: DockerSettings = Field(default_factory=DockerSettings)
    slots: int = Field(default_factory=lambda: max(2, (os.cpu_count() or 1) * 3 // 2), ge=1, le=256)
    """How many submissions run at once. More than there are cores: while one box starts, another works."""
    first_uid: int = Field(61_000, ge=1000, le=2**31)
    """Where the server is root: host users of the boxes, one a slot, from this one on."""
    memory_mb: int | None = Field(None, ge=64)
    """What all submissions may use together, by their limits; None: four fifths of what the machine has."""
    packages: list[Path] = []
    """Folders that Python programs may import from, such as one with numpy in it; read-only to them."""


class LeanSettings(BaseModel):
    """Where Lean is. ``REWARD_LEAN__TOOLCHAINS`` and so on."""

    model_config = ConfigDict(frozen=True)

    toolchains: dict[str, Path] = {}
    """Name -> prefix (the folder with ``bin/lean``)."""
    projects: dict[str, Path] = {}
    """Name -> a lake project that is built, or a folder of compiled modules."""
    look: bool = True
    """Whether toolchains of elan and on the PATH are offered as well."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="REWARD_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)

    data_dir: Path = Field(default_factory=_default_data_dir)
    database_url: str | None = None
    """SQLAlchemy URL. Without one: SQLite in ``data_dir``."""
    sqlite_synchronous: Literal["full", "normal"] = "full"
    """``full`` survives a power cut, ``normal`` only the death of the process. See docs/reference."""
    store_timeout_s: float = Field(10.0, gt=0)
    """How long a commit waits for a locked database before the request is answered 503."""
    retention_days: float | None = Field(None, gt=0)
    """Scores older than this are deleted, hourly. Without it they are kept."""

    workers: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=1024)
    """Grading processes."""
    worker_memory_mb: int = Field(1024, ge=64)
    """Address space a worker may add to what it starts with."""
    worker_max_items: int = Field(200_000, ge=1)
    """A worker is replaced after so many items, so that a leak in a library stays bounded."""

    max_queued_items: int = Field(16_384, ge=1)
    """Items admitted and not yet answered; beyond that, 503 with Retry-After."""
    max_queued_mb: int = Field(256, ge=1)
    """The same bound in megabytes of request bodies."""
    default_deadline_s: float = Field(60.0, gt=1)
    max_deadline_s: float = Field(3600.0, gt=1)
    """More than the CPU budget of every grader, or none could ever start."""
    shutdown_grace_s: float = Field(120.0, gt=0)
    """How long a stopping server finishes what it accepted."""

    max_body_mb: int = Field(64, ge=1)
    max_items: int = Field(8192, ge=1)
    max_completion_chars: int = Field(2_000_000, ge=1)
    max_cases: int = Field(256, ge=0)
    max_graders: int = Field(10_000, ge=1)
    """Registered versions in all."""

    lean: LeanSettings = Field(default_factory=LeanSettings)
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)

    reuse_cache_items: int = Field(20_000, ge=0)
    """Recent gradings kept in memory, in front of the database."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'reward.db'}"

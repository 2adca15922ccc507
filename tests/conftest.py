"""Fixtures: a service in this process, a real server in another, and real databases."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from starlette.testclient import TestClient

from reward_server.app import create_app
from reward_server.host import CATALOG
from reward_server.settings import Settings

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
"""Public data that is not part of the project; its tests skip where it is absent."""


@contextmanager
def serving(settings: Settings, *, catalog: str = CATALOG) -> Iterator[TestClient]:
    """The app with its host running, and a client of it."""
    app = create_app(settings, catalog=catalog)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", workers=2)


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with serving(settings) as started:
        yield started


def need(what: str) -> None:
    """Skips for a missing system component, except under CI, where it is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing under CI")
    pytest.skip(f"{what} is not installed")


@pytest.fixture(scope="session")
def postgres_admin() -> Iterator[str]:
    """URL of a real PostgreSQL, started for this test process on a socket of its own."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        need("PostgreSQL (apt-get install postgresql)")
        return
    binaries = Path(initdb).parent
    folder = Path(tempfile.mkdtemp(prefix="rs-pg-", dir="/tmp"))
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(folder, user)
    cluster = folder / "cluster"

    def run(*command: str) -> None:
        subprocess.run(
            command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=60
        )

    try:
        run(str(binaries / "initdb"), "-D", str(cluster), "-U", "test", "-A", "trust", "-N")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        control = str(binaries / "pg_ctl")
        run(control, "-D", str(cluster), "-w", "-o", options, "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql+psycopg://test@/postgres?host={folder}"
        finally:
            run(control, "-D", str(cluster), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged_user() -> str | None:
    """initdb refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None


@pytest.fixture
def postgres_url(postgres_admin: str) -> str:
    """A fresh database in it."""
    name = f"t{uuid4().hex[:12]}"
    engine = create_engine(postgres_admin, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres_admin.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each of the databases in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url

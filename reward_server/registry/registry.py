"""Names, versions and which of them is active: the registry's state and its transactions.

A version is immutable; what changes is which one a bare name means, and that change is one transaction.
The registry keeps a snapshot in memory, because resolving a name happens for every request; another
server on the same database is noticed through the ``events`` table (``stale``).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, func, insert, select, update

from reward_server.graders.base import Spec
from reward_server.graders.catalog import Catalog
from reward_server.problems import Conflict, FieldError, Invalid, NotFound
from reward_server.registry.digest import digest_of, ingredients, release
from reward_server.registry.versions import (
    MAX_DEPTH,
    MAX_LEAVES,
    Draft,
    StoredSpecs,
    Version,
    depth,
    leaves_of,
    unpinned_parts,
)
from reward_server.store import models
from reward_server.store.codec import to_json
from reward_server.store.database import Database, one_at_a_time, retrying
from reward_server.store.ids import now_ms

_REF = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.\-]{0,63})"
    r"(?:@(?:(?P<version>[1-9][0-9]{0,8})|(?P<digest>sha256:[0-9a-f]{64})))?"
)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    event: int
    by_number: Mapping[tuple[str, int], Version]
    by_digest: Mapping[tuple[str, str], Version]
    by_id: Mapping[int, Version]
    by_name: Mapping[str, list[Version]]
    """Oldest first."""
    active: Mapping[str, Version | None]


class Registry:
    """Synchronous; every method but ``resolve`` and the look-ups waits on the database."""

    def __init__(self, database: Database, catalog: Catalog, *, max_versions: int = 10_000) -> None:
        self._database = database
        self.catalog = catalog
        self._max_versions = max_versions
        self._loading = threading.Lock()
        self._snapshot = _Snapshot(-1, {}, {}, {}, {}, {})

    # ── looking up ───────────────────────────────────────────────────────────────────────────────

    def resolve(self, ref: str) -> Version:
        """``name``, ``name@3`` or ``name@sha256:…``, to a version that this server can run.

        Raises NotFound, or Conflict where the version exists but its code is gone.
        """
        return self.runnable(self.find(ref))

    def find(self, ref: str) -> Version:
        """Like ``resolve``, for reading: the version need not be runnable here."""
        match = _REF.fullmatch(ref)
        if match is None:
            raise NotFound(f"{ref[:200]!r} is no grader reference: name, name@3 or name@sha256:…")
        name = match["name"]
        if name not in self._snapshot.active:
            known = ", ".join(sorted(self._snapshot.active)[:20])
            raise NotFound(f"no grader is named {name!r}; there are: {known}")
        if match["version"]:
            version = self._snapshot.by_number.get((name, int(match["version"])))
        elif match["digest"]:
            version = self._snapshot.by_digest.get((name, match["digest"]))
        else:
            version = self._snapshot.active[name]
            if version is None:
                raise NotFound(f"no version of {name!r} is active; ask for one, like {name}@1")
        if version is None:
            raise NotFound(f"grader {name!r} has no version {ref.partition('@')[2]}")
        return version

    def runnable(self, version: Version) -> Version:
        if not version.runnable:
            raise Conflict(
                f"{version.label} ({version.spec.digest[:19]}…) was minted by {version.release} and "
                f"this server ({release()}, same or not) no longer has that code or those libraries: "
                f"install that release to use it, or name another version of {version.name!r}"
            )
        return version

    def by_id(self, version_id: int) -> Version | None:
        return self._snapshot.by_id.get(version_id)

    @property
    def names(self) -> list[str]:
        return sorted(self._snapshot.active)

    def active(self, name: str) -> Version | None:
        return self._snapshot.active.get(name)

    def versions(self, name: str) -> list[Version]:
        """All versions of a name, oldest first. Raises NotFound."""
        found = self._snapshot.by_name.get(name)
        if not found:
            raise NotFound(f"no grader is named {name[:64]!r}")
        return found

    # ── drafting ─────────────────────────────────────────────────────────────────────────────────

    def draft(self, kind_name: str, config: Mapping[str, Any], *, name: str | None = None) -> Draft:
        """Validates a config and computes its digest with the code at hand.

        Raises Invalid with the fields at fault.
        """
        if kind_name not in self.catalog:
            kinds = ", ".join(sorted(self.catalog.kinds))
            raise Invalid.field("kind", f"there is no kind {kind_name[:64]!r}; there are: {kinds}")
        kind = self.catalog[kind_name]
        try:
            validated = kind.validate_config(config)
        except ValidationError as error:
            raise Invalid.of(
                [
                    FieldError(
                        ".".join(["config", *map(str, e["loc"])]),
                        e["msg"].removeprefix("Value error, "),
                    )
                    for e in error.errors(include_url=False, include_context=False)
                ]
            ) from None
        refs = kind.parts(validated)
        parts = {part: self._part(part, ref) for part, ref in refs.items()}
        unpinned = frozenset(ref for ref in refs.values() if "@" not in ref)
        self._refuse_cycles(name, unpinned)
        canonical = kind.canonical_config(validated)
        made_of = ingredients(kind, canonical, {n: v.spec.digest for n, v in parts.items()})
        spec = Spec(kind.name, canonical, digest_of(made_of), {n: v.spec for n, v in parts.items()})
        if depth(spec) > MAX_DEPTH:
            raise Invalid.field("config.parts", f"composites nest at most {MAX_DEPTH} deep")
        if (leaves := leaves_of(spec)) > MAX_LEAVES:
            raise Invalid.field(
                "config.parts", f"{leaves} graders for one item; the limit is {MAX_LEAVES}"
            )
        try:
            self.catalog.build(spec)
        except ValueError as error:
            raise Invalid.field("config", str(error)) from None
        return Draft(kind, spec, made_of, unpinned)

    def _part(self, part: str, ref: str) -> Version:
        try:
            return self.resolve(ref)
        except (NotFound, Conflict) as error:
            raise Invalid.field("config.parts", f"part {part!r}: {error.detail}") from None

    def _refuse_cycles(self, name: str | None, unpinned: Iterable[str]) -> None:
        todo, seen = list(unpinned), set[str]()
        while todo:
            at = todo.pop()
            if at == name:
                raise Invalid.field("config.parts", f"{name!r} would be a part of itself")
            if at in seen:
                continue
            seen.add(at)
            if version := self._snapshot.active.get(at):
                todo.extend(unpinned_parts(self.catalog, version.spec))

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def mint(
        self,
        name: str,
        draft: Draft,
        *,
        description: str | None = None,
        cases: list[dict[str, Any]] | None = None,
        activate: bool,
        origin: str = "user",
        note: str | None = None,
        repeatability: Mapping[str, Any] | None = None,
    ) -> tuple[Version, bool]:
        """The version of ``name`` with this content, made where there is none; (version, made).

        One transaction, unique on name and digest: servers that race get the same version.
        """

        def transaction() -> tuple[int, bool]:
            with self._database.write() as connection:
                one_at_a_time(connection)
                return self._mint(
                    connection,
                    name,
                    draft,
                    description,
                    cases,
                    activate,
                    origin,
                    note,
                    repeatability,
                )

        version_id, made = retrying(transaction)
        self.load()
        version = self.by_id(version_id)
        assert version is not None
        return version, made

    def _mint(
        self,
        connection: Connection,
        name: str,
        draft: Draft,
        description: str | None,
        cases: list[dict[str, Any]] | None,
        activate: bool,
        origin: str,
        note: str | None,
        repeatability: Mapping[str, Any] | None,
    ) -> tuple[int, bool]:
        spec_id = _spec_id(connection, draft)
        v = models.versions
        found = connection.execute(
            select(v.c.id, v.c.version).where(v.c.name == name, v.c.spec_id == spec_id)
        ).first()
        if found is None:
            count, newest = connection.execute(
                select(
                    select(func.count()).select_from(v).scalar_subquery(),
                    select(func.max(v.c.version)).where(v.c.name == name).scalar_subquery(),
                )
            ).one()
            if count >= self._max_versions:
                raise Conflict(f"the registry is full ({count} versions): raise REWARD_MAX_GRADERS")
            number = (newest or 0) + 1
            version_id = connection.execute(
                insert(v).values(
                    name=name,
                    version=number,
                    spec_id=spec_id,
                    description=description,
                    cases=to_json(cases or []),
                    note=note,
                    repeatability=repeatability and json.dumps(repeatability),
                    origin=origin,
                    created_ms=now_ms(),
                )
            ).inserted_primary_key[0]  # type: ignore[index]
        else:
            version_id, number = found
            changes: dict[str, Any] = {}
            if description is not None:
                changes["description"] = description
            if cases:
                changes["cases"] = to_json(cases)
            if repeatability:
                changes["repeatability"] = json.dumps(repeatability)
            if changes:
                connection.execute(update(v).where(v.c.id == version_id).values(changes))
        made = found is None
        activated = _activate(connection, name, version_id if activate else None)
        if made or activated or (found is not None and (description is not None or cases)):
            kind = "minted" if made else "activated" if activated else "described"
            _event(connection, kind, {"grader": name, "version": number, "note": note})
        return version_id, made

    def activate(self, version: Version) -> None:
        """Makes a bare name mean this version. Raises Invalid where it would be a part of itself."""
        self._refuse_cycles(version.name, unpinned_parts(self.catalog, version.spec))

        def transaction() -> None:
            with self._database.write() as connection:
                one_at_a_time(connection)
                if _activate(connection, version.name, version.id):
                    _event(
                        connection, "activated", {"grader": version.name, "version": version.number}
                    )

        retrying(transaction)
        self.load()

    def stale(self) -> bool:
        """Whether the database has changed under the snapshot."""
        with self._database.read() as connection:
            newest = connection.execute(select(func.max(models.events.c.id))).scalar()
        return (newest or 0) != self._snapshot.event

    def load(self) -> None:
        """Takes a new snapshot of the database."""
        with self._loading:  # or an older snapshot could overwrite a newer one
            self._load()

    def _load(self) -> None:
        with self._database.read() as connection:
            event = connection.execute(select(func.max(models.events.c.id))).scalar() or 0
            spec_rows = {r.digest: r for r in connection.execute(select(models.specs))}
            version_rows = connection.execute(select(models.versions)).all()
            active_rows = connection.execute(select(models.graders)).all()
        specs = StoredSpecs(self.catalog, spec_rows)
        by_spec_id = {r.id: r for r in spec_rows.values()}
        known = self._snapshot.by_id
        versions = [
            known[row.id] if _unchanged(known.get(row.id), row) else specs.version(row, by_spec_id)
            for row in version_rows
        ]
        by_id = {v.id: v for v in versions}
        by_name: dict[str, list[Version]] = {}
        for version in sorted(versions, key=lambda v: v.number):
            by_name.setdefault(version.name, []).append(version)
        self._snapshot = _Snapshot(
            event=event,
            by_number={(v.name, v.number): v for v in versions},
            by_digest={(v.name, v.spec.digest): v for v in versions},
            by_id=by_id,
            by_name=by_name,
            active={
                r.name: by_id.get(r.active_version_id) if r.active_version_id else None
                for r in active_rows
            },
        )


def _unchanged(version: Version | None, row: Any) -> bool:
    return (
        version is not None
        and version.description == row.description
        and version.cases == json.loads(row.cases)
        and version.repeatability == (row.repeatability and json.loads(row.repeatability))
    )


def _spec_id(connection: Connection, draft: Draft) -> int:
    s = models.specs
    found = connection.execute(select(s.c.id).where(s.c.digest == draft.spec.digest)).scalar()
    if found is not None:
        return int(found)
    made = connection.execute(
        insert(s).values(
            digest=draft.spec.digest,
            kind=draft.spec.kind,
            config=draft.spec.config,
            ingredients=to_json(draft.ingredients),
            parts=to_json({n: p.digest for n, p in draft.spec.parts.items()}),
            release=release(),
            created_ms=now_ms(),
        )
    )
    return int(made.inserted_primary_key[0])  # type: ignore[index]


def _activate(connection: Connection, name: str, version_id: int | None) -> bool:
    """Points a name at a version; with None only makes sure the name exists. Whether it changed."""
    g = models.graders
    row = connection.execute(select(g.c.active_version_id).where(g.c.name == name)).first()
    if row is None:
        connection.execute(insert(g).values(name=name, active_version_id=version_id))
        return True
    if version_id is None or row.active_version_id == version_id:
        return False
    connection.execute(update(g).where(g.c.name == name).values(active_version_id=version_id))
    return True


def _event(connection: Connection, kind: str, detail: Mapping[str, Any]) -> None:
    connection.execute(
        insert(models.events).values(at_ms=now_ms(), kind=kind, detail=to_json(detail))
    )

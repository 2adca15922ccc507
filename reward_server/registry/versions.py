"""What a version is in memory: its spec, whether its code is here, and how large it is.

Pure, but for reading rows that were fetched; the transactions are in ``registry.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from reward_server.graders.base import Digest, Kind, LiveGrader, PureGrader, Spec
from reward_server.graders.catalog import Catalog
from reward_server.registry.digest import digest_of, ingredients

MAX_DEPTH = 8
"""Composites within composites."""
MAX_LEAVES = 256
"""Graders that one item of a composite is given to, parts of parts counted each time."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A grader's content before it has a name: what a digest stands for."""

    kind: Kind
    spec: Spec
    ingredients: Mapping[str, Any]
    part_names: frozenset[str]
    """Names of unpinned parts: when one gets a new version, so does this."""


@dataclass(frozen=True, eq=False)
class Version:
    """An immutable grader version, as stored, with what this server can do with it."""

    id: int
    name: str
    number: int
    spec_id: int
    spec: Spec
    description: str | None
    cases: list[dict[str, Any]]
    note: str | None
    origin: str
    created_ms: int
    ingredients: Mapping[str, Any]
    release: str
    grader: PureGrader | LiveGrader | None
    """None where this release no longer has the code that the digest states."""
    part_specs: Mapping[str, int] = field(default_factory=dict)
    """Digest -> spec id of every part, at any depth."""
    repeatability: Mapping[str, Any] | None = None
    """What was measured at registration, for kinds whose rewards may differ from run to run."""

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def runnable(self) -> bool:
        return self.grader is not None


class StoredSpecs:
    """Specs from their rows, parts and all, and whether this release has their code."""

    def __init__(self, catalog: Catalog, rows: Mapping[str, Any]) -> None:
        self._catalog = catalog
        self._rows = rows
        self._made: dict[str, tuple[Spec, bool]] = {}

    def version(self, row: Any, by_spec_id: Mapping[int, Any]) -> Version:
        spec_row = by_spec_id[row.spec_id]
        spec, present = self.spec(spec_row.digest)
        return Version(
            id=row.id,
            name=row.name,
            number=row.version,
            spec_id=row.spec_id,
            spec=spec,
            description=row.description,
            cases=json.loads(row.cases),
            note=row.note,
            origin=row.origin,
            created_ms=row.created_ms,
            ingredients=json.loads(spec_row.ingredients),
            release=spec_row.release,
            grader=self._build(spec) if present else None,
            repeatability=row.repeatability and json.loads(row.repeatability),
            part_specs={d: self._rows[d].id for d in _part_digests(spec)},
        )

    def spec(self, digest: str) -> tuple[Spec, bool]:
        """(spec, whether the code at hand gives the same digest)."""
        if digest not in self._made:
            row = self._rows[digest]
            parts = {n: self.spec(d) for n, d in json.loads(row.parts).items()}
            spec = Spec(
                row.kind, bytes(row.config), Digest(digest), {n: s for n, (s, _) in parts.items()}
            )
            present = all(p for _, p in parts.values()) and row.kind in self._catalog
            if present:
                kind = self._catalog[row.kind]
                digests = {n: s.digest for n, s in spec.parts.items()}
                present = digest_of(ingredients(kind, spec.config, digests)) == digest
            self._made[digest] = (spec, present)
        return self._made[digest]

    def _build(self, spec: Spec) -> PureGrader | LiveGrader | None:
        try:
            return self._catalog.build(spec)
        except (ValueError, KeyError):
            return None


def _part_digests(spec: Spec) -> set[str]:
    found: set[str] = set()
    for part in spec.parts.values():
        found.add(part.digest)
        found |= _part_digests(part)
    return found


def unpinned_parts(catalog: Catalog, spec: Spec) -> list[str]:
    if spec.kind not in catalog or not spec.parts:
        return []
    kind = catalog[spec.kind]
    try:
        refs = kind.parts(kind.config.model_validate_json(spec.config))
    except ValidationError:
        return []  # a config that this release no longer reads
    return [ref for ref in refs.values() if "@" not in ref]


def depth(spec: Spec) -> int:
    return 1 + max((depth(p) for p in spec.parts.values()), default=0)


def leaves_of(spec: Spec) -> int:
    return sum(map(leaves_of, spec.parts.values())) if spec.parts else 1

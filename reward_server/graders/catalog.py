"""The kinds that this release has, by name.

Importing this module imports every kind, so it belongs into the worker's preload and into the server,
not into a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reward_server.graders import composite, exact, format
from reward_server.graders.answer import kind as answer
from reward_server.graders.base import Grader, Kind, LiveGrader, PureGrader, Spec
from reward_server.graders.code import kind as code
from reward_server.graders.lean import kind as lean
from reward_server.graders.python import kind as python


class Catalog:
    """Kinds by name; builds graders from specs.

    A composite is made of graders of other kinds, so it is the catalog that completes it.
    """

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = {k.name: k for k in kinds}
        self._kinds["composite"] = self._composite()

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def __getitem__(self, name: str) -> Kind:
        return self._kinds[name]

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return self._kinds

    def build(self, spec: Spec) -> PureGrader | LiveGrader:
        """Raises KeyError for a kind that this release lacks, ValueError for a bad config."""
        return self._kinds[spec.kind].grader(spec)

    def budget_s(self, spec: Spec) -> float:
        """CPU seconds that must be left to a deadline for a unit of this spec to start."""
        own = self._kinds[spec.kind].budget.cpu_s if self._kinds[spec.kind].pure else 0.0
        return max([own, *(self.budget_s(p) for p in spec.parts.values())])

    def _composite(self) -> Kind:
        def build(config: Any, spec: Spec) -> LiveGrader:
            members: dict[str, Grader] = {n: self.build(s) for n, s in spec.parts.items()}
            return composite.CompositeGrader(config, members)

        return Kind(
            name="composite",
            summary="A weighted sum, product or gate of other graders, with costs of length.",
            config=composite.CompositeConfig,
            reference=Any,
            build=build,
            pure=False,
            parts=lambda config: {p.name: p.grader for p in config.parts},
        )


CATALOG = Catalog((answer.KIND, code.KIND, exact.KIND, format.KIND, lean.KIND, python.KIND))

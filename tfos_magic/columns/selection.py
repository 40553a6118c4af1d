"""Which columns of a DataFrame become what in the elements of its dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfos_magic.errors import DataError


@dataclass(frozen=True)
class Selection:
    """``features`` None means all columns but the ``label`` and the ``weight``.

    An element is ``(features, label, weight)`` as far as there are these, the features being one tensor for one column
    and a dict by name for several; without a label it is a dict of the columns. With ``matrix`` the features are one
    float32 tensor of the shape (rows, width): the columns side by side, in their order.
    """

    features: list[str] | None = None
    label: str | None = None
    weight: str | None = None
    matrix: bool = False

    @classmethod
    def of(
        cls,
        features: Sequence[str] | None = None,
        label: str | None = None,
        weight: str | None = None,
        matrix: bool = False,
    ) -> Selection:
        """As options say it. Raises :class:`DataError` for options that do not fit each other."""
        if weight is not None and label is None:
            raise DataError(f"the weight {weight!r} is of rows that have a label: name that as well")
        for role, name in (("label", label), ("weight", weight)):
            if features is not None and name is not None and name in features:
                raise DataError(f"column {name!r} is both the {role} and a feature: leave it out of the features")
        if weight is not None and weight == label:
            raise DataError(f"column {weight!r} is both the label and the weight")
        return cls(None if features is None else list(features), label, weight, matrix)

    @property
    def targets(self) -> list[str]:
        """The columns that are no features, in their order."""
        return [name for name in (self.label, self.weight) if name is not None]

    def role_of(self, name: str) -> str:
        """What to call a column in an error."""
        return {self.label: "label", self.weight: "weight"}.get(name, "column")

    def features_of(self, known: Iterable[str]) -> list[str]:
        """The columns among those ``known`` that are features."""
        return [name for name in known if name not in self.targets] if self.features is None else self.features


EVERYTHING = Selection()
"""All columns, by their names."""

"""What stands where something could not be sent."""

from __future__ import annotations

from typing import Any


class Unsent:
    """Stands for something that cannot leave its process, within something that did. Any use says what it was."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return f"<{self._what} that stayed where it was made>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"this {self._what} could not be sent from where it was made: it has no {name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"this {self._what} could not be sent from where it was made")

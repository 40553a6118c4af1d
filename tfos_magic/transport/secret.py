"""Secrets that tracebacks do not show: IPython's ``%xmode Verbose`` writes the ``repr`` of whatever a line names."""

from __future__ import annotations


class Secret(str):
    """A text to be used as any other, which its ``repr`` does not give away."""

    def __repr__(self) -> str:
        return "Secret(…)"


class SecretBytes(bytes):
    """Bytes to be used as any others, which their ``repr`` does not give away."""

    def __repr__(self) -> str:
        return "SecretBytes(…)"

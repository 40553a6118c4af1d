"""How numbers are written, the same in the panel, the card and the terminal."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Four significant digits, without noise: ``0.1234``, ``12350``, ``3e-5``, ``nan``; as ``number`` in nodes.js."""
    if value and math.isfinite(value) and not 1e-4 <= abs(value) < 1e5:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent):+d}"
    return f"{float(f'{value:.4g}'):g}"


def traffic(bytes_per_epoch: float) -> str:
    """What the workers sent each other in an epoch; empty when nothing."""
    return f"{size(int(bytes_per_epoch))} sent per epoch" if bytes_per_epoch >= 1 else ""


def pace(rows_per_second: float) -> str:
    if not math.isfinite(rows_per_second) or rows_per_second <= 0:
        return ""
    digits = 0 if rows_per_second >= 10 else 1
    return f"{rows_per_second:,.{digits}f} rows/s"


def duration(seconds: float) -> str:
    """``0.4 s`` under ten seconds, ``42 s`` under a minute, ``3:05``, ``1:02:03``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def moment(seconds: float) -> str:
    """What may be very short: ``85 µs``, ``4.1 ms``, ``850 ms``; as :func:`duration` from a second on."""
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return duration(seconds) if seconds >= 0.9995 else f"{value:.3g} {unit}"


def size(count: int) -> str:
    """Bytes in decimal units: ``812 B``, ``4.1 MB``."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def percent(share: float) -> str:
    """A share (0 to 1) in whole percent; empty for nothing."""
    return f"{100 * share:.0f}%" if share >= 0.005 else ""


def of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else f"{part:,}"


def count_of(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

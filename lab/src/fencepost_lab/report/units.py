"""Figures as people read them."""

_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def span(seconds: float | None) -> str:
    """A duration at the unit that suits it."""
    if seconds is None:
        return "-"
    for unit, size in _SECONDS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"

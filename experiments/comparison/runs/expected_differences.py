"""Differences that belong to a factor: environments differ if versions or machines do."""

from __future__ import annotations

from collections.abc import Iterable

from tracking.provenance import RELEASED_TOGETHER

ENVIRONMENT, VERSION = "tags.environment", "tags.version."
HARDWARE = ("tags.cpu", "tags.gpu")
# Levels that cannot run side by side in one campaign, as frameworks can.
APART = frozenset({"team", "user", "campaign", "machine", "cpu", "gpu", "environment", "commit"})


def is_apart(factor: str) -> bool:
    """Return whether the levels of a factor have separate campaigns by its nature."""
    plain = factor.removeprefix("tags.")
    return plain in APART or plain.startswith("version.")


def differs_by(factor: str, columns: Iterable[str]) -> frozenset[str]:
    """Return the columns of machine, environment and commit that differ with the factor."""
    plain = factor.removeprefix("tags.")
    if plain == "machine":
        return frozenset({"machine", ENVIRONMENT, *HARDWARE})
    if plain in ("cpu", "gpu"):
        return frozenset({"machine", ENVIRONMENT, f"tags.{plain}"})
    if plain == "environment":
        versions = [column for column in columns if column.startswith(VERSION)]
        return frozenset({ENVIRONMENT, *versions})
    if plain.startswith("version."):
        package = plain.removeprefix("version.")
        groups = [group for group in RELEASED_TOGETHER if package in group]
        packages = groups[0] if groups else {package}
        return frozenset({ENVIRONMENT, *(f"{VERSION}{name}" for name in packages)})
    return frozenset({"tags.commit"} if plain == "commit" else ())


def versions_and_hardware(factor: str, columns: Iterable[str]) -> list[str]:
    """Return the columns that must not differ although a factor makes environments differ.

    If environments do not differ with the factor, they are compared as a whole inside each block.
    """
    expected = differs_by(factor, columns)
    if ENVIRONMENT not in expected:
        return []
    shared = [name for name in columns if name in HARDWARE or name.startswith(VERSION)]
    return sorted(name for name in shared if name not in expected)

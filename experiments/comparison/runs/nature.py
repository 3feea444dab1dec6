"""What a factor changes by its nature: where versions or machines are compared, environments differ; all else must not."""

from __future__ import annotations

from collections.abc import Iterable

ENVIRONMENT, VERSION = "tags.environment", "tags.version."
HARDWARE = ("tags.cpu", "tags.gpu")
# Who, when and on what: nobody can be made to run side by side with others in one campaign, as frameworks can.
APART = frozenset({"team", "user", "campaign", "machine", "cpu", "gpu", "environment", "commit"})
# Packages of which every release is made for one release of the other.
RELEASED_TOGETHER = (frozenset({"torch", "torchvision"}), frozenset({"jax", "jaxlib"}))


def _plain(factor: str) -> str:
    return factor.removeprefix("tags.")


def is_apart(factor: str) -> bool:
    """Whether the levels of a factor have campaigns of their own by nature."""
    plain = _plain(factor)
    return plain in APART or plain.startswith("version.")


def differs_by(factor: str, columns: Iterable[str]) -> frozenset[str]:
    """The columns of `machine`, environment and commit that differ because the factor does."""
    plain = _plain(factor)
    if plain == "machine":
        return frozenset({"machine", ENVIRONMENT, *HARDWARE})
    if plain in ("cpu", "gpu"):
        return frozenset({"machine", ENVIRONMENT, f"tags.{plain}"})
    if plain == "environment":
        return frozenset(
            {ENVIRONMENT, *(column for column in columns if column.startswith(VERSION))}
        )
    if plain.startswith("version."):
        package = plain.removeprefix("version.")
        partners = next(
            (group for group in RELEASED_TOGETHER if package in group), frozenset({package})
        )
        return frozenset({ENVIRONMENT, *(f"{VERSION}{one}" for one in partners)})
    return frozenset({"tags.commit"} if plain == "commit" else ())


def versions_and_hardware(factor: str, columns: Iterable[str]) -> list[str]:
    """Those that must be the same on both sides, although a factor makes environments differ.

    Where environments do not differ by the factor, they are compared as a whole inside every block.
    """
    expected = differs_by(factor, columns)
    if ENVIRONMENT not in expected:
        return []
    return sorted(
        c for c in columns if (c in HARDWARE or c.startswith(VERSION)) and c not in expected
    )

"""Licences that the pinned packages declare: `python -m tests.licences > docs/licences.md`."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from tests.conftest import ROOT

# What a program under Apache-2.0 may depend on: nothing is asked beyond the notice, …
PERMISSIVE = (
    r"(?i)(apache|\bmit\b|bsd|[23]-clause|\bisc\b|psf-2|python software foundation|cnri-python|"
    r"zlib|bsl-1|cc0|"
    r"^permission is hereby granted, free of charge)"  # how MIT's text begins
)
# … or changes to the library itself stay open, and it is used as it is, …
WEAK = r"(?i)(mpl|mozilla public|lgpl|lesser general public)"
# … or it is fetched from its maker under the maker's terms, and is no part of evenhand.
PROPRIETARY = r"(?i)nvidia.proprietary"
NOTHING_IN_IT = {
    "cuda-toolkit": "none declared; a name without files, for the NVIDIA packages below"
}
HEAD = """# Licences of the pinned packages

The table lists the licence that each distribution in `constraints.txt` declares: the licence
expression of its metadata, or else its classifiers, its licence field, or the first line of its
licence file. `python -m tests.licences` <!-- not run: needs all extras --> writes this page on
Linux with every extra installed. Libraries inside a wheel (OpenBLAS, libpq, …) are described in
the wheel's licence files.

evenhand is Apache-2.0. It imports these packages unchanged and ships none of them: pip downloads
each from its publisher. `tests/test_dependencies.py` checks the kinds:

- *permissive*: allowed;
- *weak copyleft*: allowed; changes to the package itself must stay open (psycopg2 is LGPL with
  exceptions);
- *NVIDIA's own*: allowed for the CUDA libraries that PyTorch needs on Linux; NVIDIA's terms apply
  to anyone who redistributes them, for example in a container image;
- GPL, AGPL and packages without a licence: refused.

| package | version | licence | kind |
|---|---|---|---|
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Return the versions in constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def declared(package: Distribution) -> str:
    """Return the declared licence in a line, "" if there is none."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ")
    ]
    if named := [name for name in classifiers if name not in ("OSI Approved", "DFSG approved")]:
        return "; ".join(named)
    if field := (about.get("License") or "").strip():
        return field.splitlines()[0]
    files = [
        file for file in package.files or [] if re.search(r"dist-info/.*LICEN[CS]E", str(file))
    ]
    lines = [
        line.strip() for file in files for line in file.read_text().splitlines() if line.strip()
    ]
    terms = [line.replace('"', "") for line in lines if not line.startswith("Copyright")]
    return NOTHING_IN_IT.get(normal(about["Name"]), next(iter(terms), ""))


def kind(licence: str) -> str:
    """Return the kind of a licence, "" for one that the rule does not allow."""
    if licence in NOTHING_IN_IT.values():
        return "–"
    kinds = []
    for part in re.split(r" AND |; ", licence):
        for name, pattern in {
            "weak copyleft": WEAK,
            "NVIDIA's own": PROPRIETARY,
            "permissive": PERMISSIVE,
        }.items():
            if re.search(pattern, part) and not re.search(r"\b(A?GPL|GNU (Affero )?General)", part):
                kinds.append(name)
                break
        else:
            return ""
    return next((name for name in ("NVIDIA's own", "weak copyleft") if name in kinds), "permissive")


def main() -> None:
    if missing := [name for name in pins() if not installed(name)]:
        sys.exit(f"not installed: {', '.join(missing)}; every extra of pyproject.toml is needed")
    rows = []
    for name, version in pins().items():
        package = installed(name)
        licence = declared(package) if package else ""
        rows.append(f"| {name} | {version} | {licence} | {kind(licence)} |")
    print(HEAD + "\n".join(rows))


if __name__ == "__main__":
    main()

"""What single strata show beside the summary of all, in words: it may be open where most of them are settled."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.comparison.report import wording
from experiments.comparison.verdicts.decision import Decision
from experiments.comparison.verdicts.findings import Comparison, Finding

NOT_SETTLED = "not settled"
_TOLD = {
    Decision.NOT_COMPARABLE: "not comparable",
    Decision.IDENTICAL: "identical",
    Decision.CONSTANT: "different within the margin",
    Decision.WITHIN_MARGIN: "different within the margin",
    Decision.EQUIVALENT: "equivalent",
}


def of(summary: Finding, comparison: Comparison) -> list[Finding]:
    """The findings that a summary is of, stratum by stratum; none of a finding that is no summary."""
    if not summary.across:
        return []
    asked = (summary.row.metric, summary.row.a, summary.row.b)
    return [one for one in comparison.findings if (one.row.metric, one.row.a, one.row.b) == asked]


def is_told(summary: Finding, comparison: Comparison) -> bool:
    """Whether there is a verdict, of all strata together or of any by itself."""
    return summary.judged or any(one.judged for one in of(summary, comparison))


def clause(summary: Finding, comparison: Comparison) -> str:
    """A finding as a person says it; of a summary with what single strata show, where that is not the same everywhere."""
    found, told = of(summary, comparison), wording.clause(summary, comparison)
    if summary.across and summary.row.estimate is None:
        told = f"no verdict ({summary.row.reason})"
    if summary.judged:
        return f"{told} ({apart})" if (apart := counted(summary, comparison)) else told
    if not any(one.judged for one in found):
        return wording.clause(summary, comparison)
    first, *others = _groups(found).values()
    rest = "".join(f", in {len(group)} {_word(group[0])}" for group in others)
    return f"in {len(first)} of {len(found)} {_kind(found)} {_shown(first, comparison)}{rest}; together {told}"


def counted(summary: Finding, comparison: Comparison) -> str:
    """In 3 of 4 campaigns faster, in 1 not settled; empty where all show what the summary does, or where it is none."""
    found = of(summary, comparison)
    groups = _groups(found)
    return "" if list(groups) in ([], [_word(summary)]) else _counted(groups, found)


def _counted(groups: dict[str, list[Finding]], found: Sequence[Finding]) -> str:
    (word, first), *others = groups.items()
    told = [f"in {len(first)} of {len(found)} {_kind(found)} {word}"]
    return ", ".join([*told, *(f"in {len(group)} {word}" for word, group in others)])


def _groups(found: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Strata by what they show: what is settled first, then what most of them show."""
    groups: dict[str, list[Finding]] = {}
    for one in found:
        groups.setdefault(_word(one), []).append(one)
    return dict(sorted(groups.items(), key=lambda item: (not item[1][0].judged, -len(item[1]))))


def _word(one: Finding) -> str:
    return _TOLD.get(one.decision, one.row.verdict if one.judged else NOT_SETTLED)


def _kind(found: Sequence[Finding]) -> str:
    """Campaigns, machines, batch sizes: what the strata are, where they differ by one thing alone."""
    keys = {part.partition("=")[0] for one in found for part in one.row.stratum.split(", ")}
    if len(keys) > 1:
        return "strata"
    name = keys.pop().replace("_", " ")
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def _shown(group: Sequence[Finding], comparison: Comparison) -> str:
    """TensorFlow trains faster than PyTorch (1.12× to 1.31×): what these strata, which all show the same, show."""
    one, label, word = group[0], group[0].outcome.label, _word(group[0])
    if one.decision is not Decision.DIFFERENT:
        margin = (
            f" {wording.margin(one)}"
            if one.decision in (Decision.EQUIVALENT, Decision.WITHIN_MARGIN)
            else ""
        )
        return f"{label} is {word}{margin}"
    a, b = wording.spoken(one.row.a, comparison), wording.spoken(one.row.b, comparison)
    ordered = sorted(group, key=lambda one: abs(one.row.on_test_scale(one.row.estimate)))
    sizes = dict.fromkeys(
        wording.effect(one).removesuffix(f" {one.row.verdict}") for one in (ordered[0], ordered[-1])
    )
    shown, verb = " to ".join(sizes), one.outcome.verb
    return (
        f"{b} {verb} {word} than {a} ({shown})"
        if verb
        else f"{label} of {b} is {word} than that of {a} ({shown})"
    )

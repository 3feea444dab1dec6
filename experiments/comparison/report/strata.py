"""Results of single strata as text, which may be settled although their summary is open."""

from __future__ import annotations

from collections import Counter
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


def summarised_findings(summary: Finding, comparison: Comparison) -> list[Finding]:
    """Return the findings that a summary is of; none of a finding that is no summary."""
    if not summary.across:
        return []
    key = (summary.row.metric, summary.row.a, summary.row.b)
    return [
        finding
        for finding in comparison.findings
        if (finding.row.metric, finding.row.a, finding.row.b) == key
    ]


def is_told(summary: Finding, comparison: Comparison) -> bool:
    """Return whether there is a verdict, of all strata together or of any of them."""
    return summary.judged or any(
        finding.judged for finding in summarised_findings(summary, comparison)
    )


def clause(summary: Finding, comparison: Comparison) -> str:
    """Return a finding as prose; of a summary with what single strata show, if that differs."""
    text, apart = wording.clause(summary, comparison), counted(summary, comparison)
    return f"{text} ({apart})" if apart else text


def counted(summary: Finding, comparison: Comparison) -> str:
    """Return `in 3 of 4 campaigns faster, in 1 not settled`; empty if all agree."""
    findings = summarised_findings(summary, comparison)
    settled = {_word(finding) for finding in findings if finding.judged}
    counts = Counter(map(_word, findings)).items()
    groups = sorted(counts, key=lambda item: (item[0] not in settled, -item[1]))
    if not groups or [word for word, _ in groups] == [_word(summary)]:
        return ""
    (word, first), *others = groups
    parts = [f"in {first} of {len(findings)} {_kind(findings)} {word}"]
    return ", ".join([*parts, *(f"in {count} {word}" for word, count in others)])


def _word(finding: Finding) -> str:
    return _TOLD.get(finding.decision, finding.row.verdict if finding.judged else NOT_SETTLED)


def _kind(findings: Sequence[Finding]) -> str:
    keys = {
        part.partition("=")[0] for finding in findings for part in finding.row.stratum.split(", ")
    }
    if len(keys) > 1:
        return "strata"
    name = keys.pop().replace("_", " ")
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"

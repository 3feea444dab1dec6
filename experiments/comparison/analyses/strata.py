"""What the strata of a comparison show together, as `verdicts.strata` has summarised it."""

from __future__ import annotations

from experiments.comparison.analyses import Analysis, Evidence
from experiments.comparison.report import wording
from experiments.comparison.report.sections import Header, Line, Section
from experiments.comparison.report.tables import EFFECT, decimal, effect, number, under


def table(evidence: Evidence) -> list[Section]:
    comparison = evidence.comparison
    caption = (
        "Random-effects means over strata (Hartung and Knapp’s interval); no run is pooled. The prediction interval says "
        "where one more stratum is expected (Nagashima’s construction); I² is the share of what the strata differ by that chance "
        "does not explain. "
    )
    header: Header = (
        *("outcome", comparison.factor, under(""), number("strata")),
        *EFFECT,
        *map(number, ("p (Holm)", "prediction", "I²", "tau", "p, alike (Q)")),
    )
    rows: list[Line] = [
        (
            *(one.outcome.label, one.row.b, f"against {one.row.a}", str(len(across.names))),
            *effect(one),
            *(wording.p_value(one.row.p_holm), wording.prediction(one) or wording.NONE),
            *(
                decimal(across.i_squared_percent, "{:.0f} %"),
                wording.NONE if across.tau is None else wording.number(across.tau, 2),
            ),
            wording.p_value(across.q_p),
        )
        for one in comparison.summaries
        if (across := one.across)
    ]
    return (
        [Section("Across strata", caption + wording.rests_on(comparison), header, rows)]
        if rows
        else []
    )


ANALYSIS = Analysis(tables={80: table})

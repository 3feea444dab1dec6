"""From pairs to verdicts: strata, batch sizes, learning curves, hypotheses, controls, memory limits."""

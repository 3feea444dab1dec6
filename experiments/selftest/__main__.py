"""One probe in this process: `python -m experiments.selftest NAME OPTIONS`, its result as a line of JSON."""

from __future__ import annotations

import json
import os
import sys

from experiments.cell.lifetime import die_with_parent


def main() -> int:
    import signal

    die_with_parent(signal.SIGKILL)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever frameworks print
    from experiments.selftest import probes

    name, options = sys.argv[1], json.loads(sys.argv[2])
    function = probes.PROBES[name]
    print(
        json.dumps(
            function(lambda line: print(json.dumps(line), file=results, flush=True), **options)
        ),
        file=results,
    )
    results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

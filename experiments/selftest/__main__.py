"""Process of one probe: `python -m experiments.selftest NAME OPTIONS`.

Its result is a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from experiments.cell.lifetime import die_with_parent


def main() -> None:
    die_with_parent(signal.SIGKILL)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for the messages of frameworks
    from experiments.selftest import probes

    def send(value: Any) -> None:
        print(json.dumps(value), file=results, flush=True)

    name, options = sys.argv[1], json.loads(sys.argv[2])
    send(getattr(probes, name)(send, **options))


if __name__ == "__main__":
    main()

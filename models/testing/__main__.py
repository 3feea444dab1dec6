"""All checks of a framework, in this process: `python -m models.testing NAME FOLDER [MODEL …]`."""

import sys

from models.testing.framework_checks import main

if __name__ == "__main__":
    main(*sys.argv[1:])

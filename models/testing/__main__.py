"""All checks of a framework, in this process: `python -m models.testing NAME FOLDER [MODEL …] [--device cuda]`."""

import argparse

from models.testing.framework_checks import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("folder")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checks", default="", help="several with commas; none: all of them")
    options = parser.parse_args()
    checks = tuple(filter(None, options.checks.split(",")))
    main(options.framework, options.folder, options.models, device=options.device, checks=checks)

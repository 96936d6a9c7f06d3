"""Run a legacy script on stand-ins: `python -m neuronmigrate.runtime.legacy [--release R] SCRIPT [ARG...]`.

`neuronmigrate run --legacy` does the same; this needs nothing but torch and what the script imports, so it
also runs in the old environment of the script.
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from neuronmigrate.runtime.legacy import activate, explain


def main(argv: Sequence[str]) -> int:
    """Run the script; its own exit code, or 2 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m neuronmigrate.runtime.legacy", allow_abbrev=False)
    parser.add_argument("--release", help="release of optimum-neuron, 0.4.5 by default")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    try:
        source = options.script.read_bytes()
        session = activate(options.release)
    except (OSError, ValueError) as problem:
        print(f"{options.script}: {problem}", file=sys.stderr)
        return 2
    module = types.ModuleType("__main__")
    module.__file__ = str(options.script)
    sys.modules["__main__"] = module
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    try:
        exec(compile(source, str(options.script), "exec"), module.__dict__)
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        print(message, file=sys.stderr)
        return 2
    finally:
        if os.environ.get("RANK", "0") == "0":
            print(*session.summary(), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

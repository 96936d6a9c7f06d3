"""Make an environment in which legacy scripts run: `python -m tests.oracle.environment KIND FOLDER`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = {
    # The last release of torch_xla. Its CPU client needs no hardware; the wheel of torch brings CUDA along.
    "xla": ("torch==2.9.0", "torch-xla==2.9.0", "numpy", "safetensors"),
    # What optimum-neuron 0.4.5 asks for (its pyproject.toml), with this project's own torch: one cause less
    # for a difference.
    "stand_ins": (
        "torch==2.13.0",
        "transformers==4.57.3",
        "trl==0.24.0",
        "accelerate==1.8.1",
        "peft==0.17.0",
        "sentence-transformers==5.1.2",
        "diffusers==0.35.2",
        "datasets",
        "safetensors",
    ),
}


def main(argv: Sequence[str]) -> int:
    """Create a virtual environment and install what the kind needs."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.environment")
    parser.add_argument("kind", choices=sorted(REQUIREMENTS))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    subprocess.run([sys.executable, "-m", "venv", str(options.folder)], check=True)
    python = options.folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", *REQUIREMENTS[options.kind]], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a legacy script on stand-ins in a process of its own, as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run_legacy(
    script: Path, text: str, *arguments: str, processes: int = 1
) -> subprocess.CompletedProcess[str]:
    """Write the script and run it; output and exit code, whatever they are."""
    script.write_text(text, "utf-8")
    command = [sys.executable, "-W", "ignore"]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "neuronmigrate.runtime.legacy", *arguments, str(script)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True)

"""Record the before sides: `python -m tests.oracle.record KIND PYTHON [NAME...]`.

PYTHON is the interpreter of an oracle environment. Each script runs there on its own; what it printed and
its plain globals go to `recordings/KIND/NAME.json`, tensors to `NAME.safetensors` beside it. Those of WHOLE
are recorded as `neuronmigrate parity record` does it, into `recordings/whole/NAME/`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neuronmigrate.parity import running
from neuronmigrate.runtime import launch
from tests.oracle.cases import CASES, FIXTURES, PAIRS, WHOLE, Case
from tests.tiny_models import save_chat, save_classifier

VERSIONS = """
import importlib.metadata, json, platform
names = ["torch", "torch_xla", "transformers", "trl", "accelerate", "diffusers", "sentence-transformers"]
found = {"python": platform.python_version()}
for name in names:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""

CHOICES = replace(running.ALIGNED, calls=1, elements=64)
"""How those of WHOLE are recorded: small enough to be committed."""


def main(argv: Sequence[str]) -> int:
    """Record the cases of a kind, all of them or those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.record")
    parser.add_argument("kind", choices=sorted({case.kind for case in CASES}))
    parser.add_argument("python", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(argv)
    versions = json.loads(subprocess.check_output([str(options.python), "-c", VERSIONS], text=True))
    failed = 0
    for case in (*CASES, *PAIRS):
        if case.kind == options.kind and (not options.names or case.name in options.names):
            error = record(case, options.python, versions)
            print(f"{case.name}: {error or 'recorded'}")
            failed += bool(error)
    for case in WHOLE:
        if case.kind == options.kind and (not options.names or case.name in options.names):
            error = record_whole(case, options.python)
            print(f"{case.name}: {error or 'recorded whole'}")
            failed += bool(error)
    return 1 if failed else 0


def record(case: Case, python: Path, versions: dict[str, str]) -> str:
    """Run one script and write its recording; the script's own error output if it fails."""
    import torch
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "values.pt")
        script = FIXTURES / case.before
        command = [str(python)]
        if case.processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.processes}"]
        command += [str(Path(__file__).with_name("keep.py")), case.kind, case.release, str(kept), str(script)]
        command += [each.format(folder=folder) for each in case.arguments]
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        inputs = {}
        if case.model:
            model = save_model(case, Path(folder, "model"))
            environment["MODEL_DIR"] = str(model)
            inputs["model.safetensors"] = digest(model / "model.safetensors")
        done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True)
        if done.returncode:
            return f"exit code {done.returncode}\n{done.stderr}"
        values: dict[str, object] = torch.load(kept, weights_only=True)
        tensors = {name: value.contiguous() for name, value in values.items() if torch.is_tensor(value)}
        data = {
            "script": f"fixtures/{case.before}",
            "sha256": digest(script),
            "inputs": inputs,
            "versions": versions,
            "release": case.release if case.kind == "stand_ins" else None,
            "stdout": done.stdout.replace(folder, "{folder}"),
            "values": {
                name: _listed(value)
                for name, value in sorted(values.items())
                if name not in tensors and not (isinstance(value, str) and folder in value)
            },
            "tensors": sorted(tensors),
        }
        case.recording.parent.mkdir(parents=True, exist_ok=True)
        case.recording.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        stored = case.recording.with_suffix(".safetensors")
        stored.unlink(missing_ok=True)
        if tensors:
            save_file(tensors, stored)
        return ""


def record_whole(case: Case, python: Path) -> str:
    """Run one legacy script under the recorder; the script's own error output if it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(case, folder / "model")
        out = folder / "recording"
        script = FIXTURES / case.before
        orders = running.recording_orders(
            [str(script), *case.arguments], out, CHOICES, legacy=True, release=case.release
        )
        given = {
            "PYTHONPATH": str(FIXTURES.parent),
            "MODEL_DIR": "model",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        variables = launch.environment(orders, {**os.environ, **given})
        command = [str(python), *launch.command(orders, None)[1:]]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode:
            return f"exit code {done.returncode}\n{done.stderr}"
        lines = out / "rank0.run0.jsonl"
        head, newline, rest = lines.read_text("ascii").partition("\n")
        lines.write_text(
            json.dumps({**json.loads(head), "sources": sources(script)}) + newline + rest, "ascii"
        )
        shutil.rmtree(case.whole, ignore_errors=True)
        shutil.copytree(out, case.whole)
        return ""


def sources(script: Path) -> dict[str, str]:
    """The modules that stand with a script, by their digests."""
    return {path.name: digest(path) for path in sorted(script.parent.glob("*.py"))}


def save_model(case: Case, folder: Path) -> Path:
    """Write the model that a case reads, the same one every time."""
    save = save_chat if case.model == "chat" else save_classifier
    return save(folder)


def _listed(value: object) -> object:
    """The value with the tensors inside of lists and dicts as lists."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [_listed(each) for each in value]
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return value


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

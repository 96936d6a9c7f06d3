"""What is known of `torch.neuron` and the native `torch_neuronx`; by hand, as neither installs everywhere.

As of November 2026, for TorchNeuron 2.13.3 and 2.14.3 (public beta). None of it was run on a device. Each
name says where it is known from:

- `docs`: pages of the AWS Neuron documentation, release 2.33, read in October 2026
- `source`: an early copy of the package's own source, older than the release; names may have moved since
- `callers`: calls in released libraries, such as Accelerate 1.15 and Diffusers 0.42
- `reports`: notes of people who used it, in public repositories

A name that is missing here may exist all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

DATED = "2026-11"


@dataclass(frozen=True)
class Known:
    """A name, where it is known from, and its parameters if they are known."""

    source: str
    parameters: tuple[str, ...] | None = None


NAMES: dict[str, Known] = {
    # The device module, that torch makes of the backend's registration.
    "torch.neuron": Known("docs: overview of native PyTorch on Neuron"),
    "torch.neuron.Event": Known("source: device module"),
    "torch.neuron.Stream": Known("source: device module"),
    "torch.neuron.current_device": Known("source: device module", ()),
    "torch.neuron.current_stream": Known("source: device module"),
    "torch.neuron.default_stream": Known("source: device module"),
    "torch.neuron.device": Known("source: context manager of the device module"),
    "torch.neuron.device_count": Known("source: device module; docs: distributed guide", ()),
    "torch.neuron.empty_cache": Known("source: device module", ()),
    "torch.neuron.get_amp_supported_dtype": Known("source: float32, float16 and bfloat16", ()),
    "torch.neuron.get_device_name": Known("source: gives `neuron:<index>`"),
    "torch.neuron.get_device_properties": Known("source: has name and total_memory"),
    "torch.neuron.get_dynamo_metrics": Known("source; docs: torch.compile backend"),
    "torch.neuron.get_rng_state": Known("source: a byte tensor"),
    "torch.neuron.get_rng_state_all": Known("callers: Accelerate's checkpointing; not in the early source"),
    "torch.neuron.init": Known("source: device module", ()),
    "torch.neuron.initial_seed": Known("source: device module", ()),
    "torch.neuron.is_available": Known("source; callers: Accelerate and Transformers", ()),
    "torch.neuron.is_bf16_supported": Known("source: always true"),
    "torch.neuron.is_initialized": Known("source: device module", ()),
    "torch.neuron.manual_seed": Known("source: device module", ("seed",)),
    "torch.neuron.manual_seed_all": Known("source; callers: Accelerate's set_seed", ("seed",)),
    "torch.neuron.max_memory_allocated": Known("source; docs: memory guidelines"),
    "torch.neuron.max_memory_reserved": Known("source: device module"),
    "torch.neuron.mem_get_info": Known("callers: Diffusers' device helpers; not in the early source"),
    "torch.neuron.memory_allocated": Known("source; docs: memory guidelines"),
    "torch.neuron.memory_reserved": Known("source: device module"),
    "torch.neuron.memory_stats": Known("source; docs: memory guidelines"),
    "torch.neuron.memory_summary": Known("source; docs: memory guidelines"),
    "torch.neuron.reset_accumulated_memory_stats": Known("source: device module"),
    "torch.neuron.reset_dynamo_metrics": Known("source: device module"),
    "torch.neuron.reset_peak_memory_stats": Known("source: device module"),
    "torch.neuron.seed": Known("source: device module", ()),
    "torch.neuron.seed_all": Known("source: device module", ()),
    "torch.neuron.set_device": Known("source: an index or a torch.device", ("device",)),
    "torch.neuron.set_rng_state": Known("source: device module"),
    "torch.neuron.set_rng_state_all": Known("callers: Accelerate's checkpointing; not in the early source"),
    "torch.neuron.set_stream": Known("source: device module", ("stream",)),
    "torch.neuron.stream": Known("source: context manager of the device module", ("stream",)),
    "torch.neuron.synchronize": Known("source; docs: memory guidelines"),
    # What torch makes of the backend's name on its own classes.
    "torch.Tensor.is_neuron": Known("docs: overview of native PyTorch on Neuron"),
    "torch.Tensor.neuron": Known("docs: overview of native PyTorch on Neuron"),
    "torch.nn.Module.neuron": Known("docs: overview of native PyTorch on Neuron"),
    # The package.
    "torch_neuronx": Known("docs: release notes; the legacy package has the same name"),
    "torch_neuronx.__version__": Known("source"),
    "torch_neuronx.Event": Known("reports: its elapsed_time has no meaning"),
    "torch_neuronx.Stream": Known("source: exported by the package"),
    "torch_neuronx.clear_op_tracking": Known("source", ()),
    "torch_neuronx.current_device": Known("source: exported by the package"),
    "torch_neuronx.current_stream": Known("source: exported by the package"),
    "torch_neuronx.device_count": Known("source: exported by the package"),
    "torch_neuronx.empty_cache": Known("source: exported by the package"),
    "torch_neuronx.get_dynamo_metrics": Known("source: exported by the package"),
    "torch_neuronx.get_executed_ops": Known("source", ()),
    "torch_neuronx.get_fallback_ops": Known("source; docs: best practices", ()),
    "torch_neuronx.max_memory_allocated": Known("source: exported by the package"),
    "torch_neuronx.memory_allocated": Known("source: exported by the package"),
    "torch_neuronx.memory_reserved": Known("source: exported by the package"),
    "torch_neuronx.memory_stats": Known("source: exported by the package"),
    "torch_neuronx.memory_summary": Known("source: exported by the package"),
    "torch_neuronx.neuron_dynamo_backend": Known("docs: torch.compile backend; callers: Diffusers' tests"),
    "torch_neuronx.neuron_dynamo_backend.set_model_name": Known("callers: Diffusers' tests"),
    "torch_neuronx.nki": Known("docs: NKI kernels in PyTorch"),
    "torch_neuronx.nki_op": Known("source; docs: NKI kernels in PyTorch", ("name", "mutates_args")),
    "torch_neuronx.profiling": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.NeuronConfig": Known(
        "docs: profiles with Neuron Explorer", ("modes", "profile_output_dir")
    ),
    "torch_neuronx.profiling.NeuronProfiler": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.ProfileMode": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.ProfileMode.CPU_UTIL": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.ProfileMode.DEVICE": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.ProfileMode.HOST_MEMORY": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.profiling.ProfileMode.RUNTIME": Known("docs: profiles with Neuron Explorer"),
    "torch_neuronx.set_device": Known("source: exported by the package"),
    "torch_neuronx.stream": Known("source: exported by the package"),
    "torch_neuronx.synchronize": Known("source: exported by the package"),
    "torch_neuronx.wrap_nki": Known("source: exported by the package"),
}

ROOTS = ("torch.neuron", "torch_neuronx")

"""What a person is told about legacy names, in words of our own; read by generate.py alone.

Every text is one clause that can stand after "do this:", without a full stop. Where the corrections to
the mapping (training and inference by release) differ from the mapping's own notes, they are written
here, because texts here win over the notes of the inventories.
"""

from __future__ import annotations

REASONS = {
    "torch_xla": "torch_xla is not part of a native installation",
    "torch_neuronx": "the native torch_neuronx has no such name",
    "torch_neuron": "torch_neuron is for Inf1, which has no native backend",
    "torch.neuron": "only the Inf1 package had this name; the native torch.neuron is another module",
    "neuronx_distributed": "NeuronX Distributed is built on torch_xla",
    "neuronx_distributed_inference": "NeuronX Distributed Inference is built on torch_xla",
    "neuronx_distributed_training": "NeuronX Distributed Training is built on torch_xla",
    "transformers_neuronx": "transformers_neuronx is archived and does not run on the native device",
    "libneuronxla": "libneuronxla is the plug-in of torch_xla",
    "neuronxcc": "the native stack has its kernels in the package `nki`",
    "neuronperf": "neuronperf measures legacy compiled models only",
    "optimum": "Optimum Neuron does not run on the native device",
    "": "this belongs to the legacy stack",
}
"""Why a name cannot stay, by its root package."""

ROWS: dict[str, str] = {
    "01.01": "remove the import once nothing uses it, and torch_xla from the environment: "
    "Transformers and Accelerate prefer it to neuron while it can be imported",
    "01.02": "remove the import once nothing uses it",
    "01.03": "remove the import: the native process group registers itself, use the backend `neuron`",
    "01.04": "keep the import only if a native name of the package is used: torch loads the backend by "
    "itself",
    "01.05": "remove the import: `torch.neuron` is there after `import torch`",
    "01.06": 'use `torch.device("neuron")` without an index: under torchrun each process owns one device',
    "01.07": 'use `torch.device("neuron")` without an index: under torchrun each process owns one device',
    "01.08": "count with `torch.accelerator.device_count()`; start one process per device instead of a list",
    "01.09": "use `torch.accelerator.device_count()`",
    "01.10": "use `torch.neuron.get_device_name()` if the text is only shown",
    "01.11": "use `torch.accelerator.device_count()` for the number and `torch.accelerator.is_available()` "
    "for the test",
    "01.12": 'use `device.type`, which is "neuron" or "cpu"; "NEURON", "TPU" and "CPU" are not returned any '
    "more",
    "01.13": "use `torch.neuron.get_device_properties().name` and compare with its values, not the old ones",
    "01.14": 'use `tensor.device.type == "neuron"`',
    "01.15": "use the attributes of `torch.device(text)`",
    "01.16": "use `torch.accelerator.get_memory_info()` or `torch.neuron.memory_stats()`, whose keys differ, "
    "after a synchronize",
    "01.17": 'use `device.type` of the device in use and compare with "neuron"',
    "01.18": "choose the device where it is created instead",
    "01.19": "use `torch.neuron.is_bf16_supported()`, which is always true",
    "01.20": "use `torch.distributed.get_world_size()` for all processes and `LOCAL_WORLD_SIZE` for one "
    "host: "
    "a native process sees one device",
    "01.21": "read the instance type from the host; no native call for it is known",
    "01.22": 'write "neuron" where it is a device; leave it where it is a key, a text or another backend',
    "01.23": 'compare with "neuron", or drop the branch if it only worked around lazy tensors',
    "02.01": "remove the statement: operations run when they are called; use "
    "`torch.accelerator.synchronize()` "
    "before a clock is read",
    "02.02": "remove the statement: operations run when they are called; use "
    "`torch.accelerator.synchronize()` "
    "before a clock is read or where it waited",
    "02.03": "take the block or the decorator away: there is no step to close",
    "02.04": "use `torch.accelerator.synchronize()`",
    "02.05": "use `torch.accelerator.synchronize()`",
    "02.06": "call the function here; move the call to the old barrier if an argument is changed in place "
    "before it",
    "02.07": "remove it: closures are called where they stand",
    "02.08": "use `concurrent.futures.ThreadPoolExecutor` on values that were brought to the CPU",
    "02.09": "remove it: there is no graph to keep apart",
    "02.10": "remove it: eager is the native mode",
    "02.11": "remove it, or use `torch.accelerator.synchronize()` where it waited",
    "03.01": "use `torch.distributed.get_world_size()` behind `is_initialized()`, else `WORLD_SIZE`",
    "03.02": "use `torch.distributed.get_world_size()` behind `is_initialized()`, else `WORLD_SIZE`",
    "03.03": "use `torch.distributed.get_rank()` behind `is_initialized()`, else `RANK`",
    "03.04": "use `torch.distributed.get_rank()` behind `is_initialized()`, else `RANK`",
    "03.05": "use `LOCAL_RANK`, which torchrun and accelerate set",
    "03.06": "test `LOCAL_RANK` for the default, which is one process a host, and the rank for `local=False`",
    "03.07": "print behind a test of the rank; `fd=` becomes `file=`, `local=True` tests `LOCAL_RANK`",
    "03.08": "use `torch.distributed.get_rank()` and `get_world_size()`, `GROUP_RANK` and `LOCAL_WORLD_SIZE`",
    "03.09": "use `MASTER_ADDR`",
    "03.10": "use `torch.distributed` and the variables of torchrun",
    "03.11": "drop the branch: there is one runtime",
    "04.01": 'use `init_process_group("neuron")` before anything touches the device, without `xla://` or '
    "`pjrt://`; `cpu:gloo,neuron:neuron` when CPU tensors or objects are exchanged",
    "04.02": "check that every rank reaches this barrier: the old one returned at once, the native one waits",
    "04.03": "remove the patch",
    "04.04": "start the script with torchrun and call the function once, with `RANK` as its first argument",
    "04.05": "start the script with torchrun and call the function once, with `LOCAL_RANK` as its first "
    "argument",
    "04.06": "build the model in each process; use the meta device if host memory does not suffice",
    "04.07": "let the local main process go first, with a barrier after it",
    "04.08": "use DistributedDataParallel with one process per device",
    "04.09": "use `torchrun --nnodes`",
    "04.10": "use DistributedDataParallel without `device_ids`",
    "04.11": "broadcast parameters and buffers from rank 0, or leave it to DistributedDataParallel, which "
    "does so",
    "04.12": "remove it: the process group knows the replicas",
    "05.01": "use `torch.distributed.barrier()`, and `all_gather_object` where the payload is used; "
    "every rank has to reach it",
    "05.02": "gather with `all_gather_object` and reduce the list with the same function",
    "05.03": "call the function behind a test of the rank, then a barrier",
    "05.04": "use `torch.distributed.all_reduce`, on a clone where the old call returned the result; "
    "`groups=` become process groups and `scale=` a multiplication",
    "05.05": "use `torch.distributed.ReduceOp`; AND and OR are bitwise there",
    "05.06": "use `torch.distributed.all_gather_single` for dim 0, else gather a list and concatenate",
    "05.07": "use `torch.distributed.reduce_scatter_single`, then multiply by the scale",
    "05.08": "use `torch.distributed.all_to_all_single` for dim 0; splits have to be even",
    "05.09": "use `torch.distributed.batch_isend_irecv`; whether the native group can is not known",
    "05.10": "use `torch.distributed.broadcast` for each tensor",
    "05.11": "use `torch.distributed.send` and `recv`; whether the native group can is not known",
    "05.12": "use `torch.distributed.nn.functional`, whose all_gather reduces in the backward pass: the "
    "gradient "
    "is larger by the number of processes",
    "05.13": "use `torch.nn.SyncBatchNorm`; it was not tried natively",
    "05.14": "remove it: nothing is bucketed by hand",
    "06.01": "keep the loader and move each batch to the device inside the loop, or prepare it with "
    "Accelerate",
    "06.02": "keep the loader and move each batch to the device inside the loop",
    "06.03": "move each tensor with `.to(device)`; the old call returned a list",
    "06.04": "use a small generator of your own",
    "06.05": "use the standard library, or `torch.utils._pytree` for nested tensors",
    "06.06": "use fsspec or datasets",
    "06.07": "count with `time.perf_counter()`, after a synchronize",
    "06.08": "use `torch.utils.tensorboard.SummaryWriter`",
    "07.01": "call `optimizer.step()`; with several processes wrap the model in DistributedDataParallel or "
    "average "
    "the gradients before it, never both",
    "07.02": "let DistributedDataParallel average the gradients, or all-reduce them before the step, never "
    "both",
    "07.03": "collect `p.grad` over the optimizer's parameter groups",
    "07.04": "let DistributedDataParallel average the gradients (`bucket_cap_mb=`)",
    "07.05": "use the optimizer of the same name in `torch.optim`",
    "07.06": "remove the scaler for bf16; float16 needs another solution, since mixed precision in it is "
    "refused",
    "07.07": "use `torch.distributed.optim.ZeroRedundancyOptimizer` under DistributedDataParallel, or "
    "FSDP2, and "
    "clip gradients to 1.0, which the old one did by default",
    "07.08": "nothing to change: the plain function is used again",
    "07.09": "nothing to change",
    "07.10": "write the loop over micro-batches in Python",
    "07.11": "use `torch.optim.AdamW` on float32 parameters with autocast; double there meant float32",
    "08.01": "save CPU copies behind a test of the rank: `LOCAL_RANK` by default, the rank for "
    "`global_master=True`, "
    "no test for `master_only=False`",
    "08.02": "use `torch.save` on the main process, or `torch.distributed.checkpoint`",
    "08.03": "use `torch.load` for new files; files written by the old call have to be converted once",
    "08.04": "map `.detach().cpu()` over the tensors (`torch.utils._pytree.tree_map_only`)",
    "08.05": 'load with `map_location="cpu"` and move afterwards',
    "08.06": "use `torch.distributed.checkpoint`",
    "08.07": "set `TORCH_NEURONX_NEFF_CACHE_DIR` before the first compilation",
    "09.01": "use `torch.manual_seed(seed)`, which seeds the device too; random numbers differ from the old "
    "ones",
    "09.02": "use `torch.neuron.get_rng_state()`, a tensor where the old one was a number",
    "09.03": 'use `torch.random.fork_rng(device_type="neuron")`',
    "09.04": "seed with `torch.manual_seed(seed + tp_rank)`, or leave it to DTensor",
    "09.05": "nothing to change: the patches of the legacy package are gone, so numbers may move a little",
    "09.06": "remove it",
    "09.07": "use the plain torch operation, or an NKI kernel registered with `torch_neuronx.nki_op`",
    "10.01": 'use `torch.autocast("neuron", dtype=torch.bfloat16)`; left as it is, it does nothing in '
    "silence",
    "10.02": "remove the patch",
    "10.03": "choose the precision in code: autocast to bfloat16, or a bfloat16 model with stochastic "
    "rounding",
    "10.04": "write float32: double meant float32 under XLA_DOWNCAST_BF16, and float64 is not supported",
    "10.05": "remove the patch together with the test of XLA_USE_BF16 around it",
    "10.06": "remove the patch: DistributedDataParallel is wanted natively",
    "10.07": "remove the override: the backend has attention of its own",
    "10.08": "remove the override",
    "10.09": "expect float32 to stay float32: the old compiler cast matmuls by default",
    "10.10": "keep it; set it to 1 where XLA_USE_BF16 or XLA_DOWNCAST_BF16 goes and bfloat16 stays",
    "11.01": "remove it, or print `torch.neuron.get_dynamo_metrics()`",
    "11.02": "use `torch_neuronx.get_fallback_ops()` for operations that ran on the CPU; the counters are "
    "gone",
    "11.03": "record with `torch.profiler.profile` around the code to be seen",
    "11.04": "record with `torch.profiler.profile`, whose `start()` and `stop()` pair the same way",
    "11.05": "use `torch.profiler.record_function(name)`",
    "11.06": "use `torch.profiler.profile` with `torch_neuronx.profiling.NeuronConfig`",
    "11.07": "set `TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS=1` and `TORCH_NEURONX_DEBUG_DIR`, or "
    '`TORCH_LOGS="graph_code"`',
    "11.08": "remove it: it looks at lazy graphs",
    "11.09": "use `torch.distributed.tensor.debug.visualize_sharding`",
    "12.01": 'call the function, or compile the forward part with `torch.compile(backend="neuron", '
    "dynamic=False)`",
    "12.02": 'use `backend="neuron", dynamic=False`; `dynamic=True` is refused',
    "12.03": "write it in plain torch or as an NKI kernel; there is no native counterpart",
    "12.04": "write the operation in torch or as an NKI kernel; there is no native counterpart",
    "12.05": "use `torch.from_dlpack` on CPU tensors",
    "12.06": "keep it: each new shape is compiled natively too",
    "13.01": "use `torch.utils.checkpoint.checkpoint` with `use_reentrant=` written out; the old default "
    "was True",
    "13.02": "use FSDP2: `fully_shard` on each block, then on the model, before the optimizer is built",
    "13.03": "use `checkpoint_wrapper` of `torch.distributed.algorithms._checkpoint` before `fully_shard`",
    "13.04": "loop over the modules and call `fully_shard` on each block",
    "13.05": "consolidate old shards with torch_xla before migrating; use `dcp_to_torch_save` for new "
    "checkpoints",
    "13.06": "use FSDP2 on a mesh with a replicate and a shard dimension",
    "13.07": "use DTensor with one process per device; one process no longer drives many devices",
    "13.08": "use `init_device_mesh` with `distribute_tensor` or `parallelize_module`",
    "13.09": "use FSDP2: `fully_shard`",
    "14.01": 'move the model to the device and use `torch.compile(backend="neuron", fullgraph=True, '
    "dynamic=False)` "
    "under `torch.inference_mode()`; inputs move there, outputs come back",
    "14.02": "save the weights (`save_pretrained`): a compiled module cannot be saved, and old files hold "
    "programs "
    "for the old runtime",
    "14.03": "build the model, load its weights and compile it: the file holds a program for the old runtime",
    "14.04": "remove it: loading is not a step of its own",
    "14.05": "remove it: weights are ordinary parameters",
    "14.06": "pad to the shapes you compiled; each new batch size compiles once",
    "14.07": "start one process per device and split the batch between them",
    "14.08": "use `torch.accelerator.device_count()`",
    "14.09": 'remove it after `.to("neuron")`; choose a core with `NEURON_RT_VISIBLE_CORES`',
    "14.10": "use `model.load_state_dict(...)`: weights are ordinary parameters",
    "14.11": "choose the cores of a process with `NEURON_RT_VISIBLE_CORES`",
    "14.12": "see `torch_neuronx.get_fallback_ops()` after a run, or `torch._dynamo.explain`",
    "14.13": "call one compiled function with padded shapes: each shape is compiled once",
    "14.14": "keep it: padding still saves compilations",
    "15.01": "write an NKI kernel registered with `torch_neuronx.nki_op`, or plain torch",
    "15.02": "import from `nki` instead of `neuronxcc.nki` and check the kernel: the language changed",
    "15.03": "remove it: it works on the lazy stack",
    "15.04": 'use `importlib.metadata.version("torch-neuronx")`; tests for releases before 2.10 are dead '
    "code",
    "16.01": 'use `torch.compile(backend="neuron", fullgraph=True, dynamic=False)` on Trn2 or Trn3: Inf1 '
    "has no "
    "native backend",
    "16.02": "remove it, or see `torch_neuronx.get_fallback_ops()` after a run",
    "16.03": "start one process per device and split the batch between them",
    "16.04": "choose the cores of a process with `NEURON_RT_VISIBLE_CORES`",
    "16.05": "time a loop of your own, with a synchronize before the clock is read",
    "17.01": 'use `transformers.AutoModelForCausalLM.from_pretrained(path, dtype=...)` on "neuron"; '
    "`tp_degree` becomes "
    "a tensor-parallel plan under torchrun",
    "17.02": "use `model.generate(...)`; the old sample() drew with top_k=50, returned whole sequences and "
    "needed "
    "to_neuron() first",
    "17.03": "use the Transformers model itself",
    "17.04": "use `model.save_pretrained(dir)`",
    "17.05": "use `transformers.GenerationConfig` for sampling and leave the rest out",
    "17.06": "use `generate(assistant_model=...)`, or vLLM",
    "17.07": "use `transformers.StoppingCriteria`, whose call signature differs a little",
    "18.01": 'build a mesh: `init_device_mesh("neuron", (pp, dp, tp), mesh_dim_names=(...))`; its rank '
    "order is the same",
    "18.02": 'ask the mesh: `mesh["tp"].size()`, `mesh["tp"].get_local_rank()`, `mesh.get_group("tp")`',
    "18.03": "use `nn.Linear` with `ColwiseParallel()` in the plan of `parallelize_module`",
    "18.04": "use `nn.Linear` with `RowwiseParallel()` in the plan of `parallelize_module`",
    "18.05": "use `nn.Embedding` with `RowwiseParallel(input_layouts=Replicate())` in the plan",
    "18.06": "use three `nn.Linear` with `ColwiseParallel()`; repeating KV heads is left to you",
    "18.07": "shard by hand with DTensor",
    "18.08": "delete it inside layers that a plan shards, else use DTensor's `redistribute`",
    "18.09": 'use `F.cross_entropy(..., reduction="none")` under `loss_parallel()`, backward included',
    "18.10": "use `nn.LayerNorm`, with `SequenceParallel()` in the plan where it was on",
    "18.11": "use `torch.nn.utils.clip_grad_norm_` and let DDP or FSDP average",
    "18.12": "use `torch.distributed.checkpoint`; merge old shards with NeuronX Distributed first",
    "18.13": 'use `model.to(device)`, or `torch.device("meta")` with `to_empty`',
    "18.14": "use plain Python (`a // b`, `LOCAL_WORLD_SIZE`) or `torch.utils._pytree`; padding of heads is "
    "left to you",
    "18.15": "use the device, `logging` and the rank directly",
    "19.01": "build the mesh and set the parts one by one; clip gradients to 1.0, which this did by default",
    "19.02": "build the model, then `parallelize_module`, activation checkpointing and `fully_shard`",
    "19.03": "use the optimizer itself and clip before the step: the old one averaged and clipped",
    "19.04": "use `torch.distributed.optim.ZeroRedundancyOptimizer` under DistributedDataParallel, or "
    "FSDP2, and clip "
    "gradients by hand",
    "19.05": "use `torch.distributed.checkpoint` (`save`, `async_save`); the format of the files differs",
    "19.06": "use `torch.distributed.pipelining`",
    "19.07": "use `apply_activation_checkpointing` of "
    "`torch.distributed.algorithms._checkpoint.checkpoint_wrapper`",
    "19.08": "use the Transformers, PEFT or torch counterpart of the module",
    "19.09": "port the recipe to TorchTitan, TRL or Accelerate",
    "20.01": "load the model with a tensor-parallel plan and compile it under torchrun",
    "20.02": "load the model with a tensor-parallel plan and compile it under torchrun",
    "20.03": "use plain Transformers or vLLM: tp_degree becomes a plan, seq_len a cache size, sampling a "
    "GenerationConfig",
    "20.04": "use the Transformers class of the same architecture; compile() and load() go",
    "20.05": "use the Transformers model, `AutoConfig` and `GenerationConfig` directly",
    "20.06": "use `generate` loops of your own; `neuronmigrate parity` compares results",
    "21.01": "remove it: this is private to torch_xla and has no counterpart",
    "21.02": "remove it: this is private to the XLA plug-in and has no counterpart",
    "21.03": 'remove it: the objects of the old runtime are gone; "privateuseone" becomes "neuron"',
    "25.01": "keep the normal path: the variable is never set natively",
    "25.02": "keep the plain branch",
    "25.03": "drop the guarded block: the test is false on a native installation",
    "25.04": "nothing to change; it waits for the device as before",
    "25.05": "nothing to change",
    "25.06": 'compare `device.type`: `torch.device("neuron")` is not equal to `neuron:0`',
    "25.07": "choose Trn2 or Trn3: Inf1, Inf2 and Trn1 have no native backend",
    "22.01": "keep compiler options only; take `--cache_dir`, `--retry_failed_compilation` and `--target` "
    "out",
    "22.02": "use TORCH_NEURONX_NEFF_CACHE_DIR with a folder; an s3:// address has no counterpart",
    "22.03": "leave it out under torchrun, which starts one process per device; keep it for one process "
    "with many cores",
    "22.04": "leave it unset under torchrun: natively the value is taken literally by each process",
    "22.05": "carry the number into `torchrun --nproc-per-node`",
    "22.06": "use NEURON_RT_VISIBLE_CORES",
    "22.07": "remove it",
    "22.08": "remove it",
    "22.09": "remove it",
    "22.10": "remove it",
    "22.11": "keep it; set it by hand where XLA_USE_BF16 goes and bfloat16 stays",
    "22.12": "remove it: native execution is asynchronous; NEURON_LAUNCH_BLOCKING=1 makes it synchronous "
    "for debugging",
    "22.13": "remove it: the process group chooses it",
    "22.14": "keep it; it has to be the same when compiling and running",
    "22.15": "keep it",
    "22.16": "keep it",
    "22.17": "keep it, but not together with torch.profiler",
    "22.18": "use TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS=1 with TORCH_NEURONX_DEBUG_DIR",
    "22.19": "remove it together with the code it guards",
    "22.20": "remove it: there is no separate compilation run",
    "22.21": "remove it: eager is the native mode",
    "22.22": "keep it with trn2 or trn3; other targets have no native backend",
    "22.23": "use `torch_neuronx.profiling.NeuronConfig(profile_output_dir=...)`",
    "22.24": "keep it",
    "22.25": "keep it",
    "22.26": "say it in the shape of the mesh",
    "22.27": "leave it to torchrun, which sets RANK and WORLD_SIZE",
    "22.28": "remove it",
    "22.29": "remove it; for CPU runs choose the CPU as the device in code",
    "22.30": "choose the precision in code: a bfloat16 model or autocast",
    "22.31": "choose the precision in code: a bfloat16 model or autocast, and float32 where the code says "
    "double",
    "22.32": "remove it, unless Neuron Explorer needs it for its source view",
    "22.33": "remove it",
    "22.34": "remove it",
    "22.35": "use DTensor with one process per device",
    "22.36": "use TORCH_LOGS",
    "22.37": "remove it",
    "22.38": "use `bucket_cap_mb=` of DistributedDataParallel",
    "22.39": "keep it if you like: it does no harm",
    "22.40": "keep it: several hosts still need EFA",
    "22.41": "keep it: it is ignored",
    "22.42": "remove it",
    "22.43": "take libraries of the Neuron runtime out of it",
    "22.44": "run on the CPU with the gloo backend instead",
    "22.45": "remove it",
    "22.46": "use the NEFF cache folder, TORCH_NEURONX_NEFF_CACHE_DIR",
    "22.47": "remove it",
    "22.48": "set it to 0 only while torch_xla cannot be uninstalled",
    "22.49": "remove it, and `--tpu` of accelerate launch",
    "23.01": "remove it: transformer is the native default; keep another value",
    "23.02": "remove `none`, the native default; use autocast in code for the others",
    "23.03": "keep it together with --auto-cast",
    "23.04": "remove it",
    "23.05": "use TORCH_NEURONX_NEFF_CACHE_DIR: the option would reach the compiler natively",
    "23.06": "remove it: the option would reach the compiler natively",
    "23.07": "use TORCH_NEURONX_NEFF_DISABLE_CACHE=1",
    "23.13": "remove it, or name trn2 or trn3",
    "23.18": "use TORCH_NEURONX_DEBUG_DIR",
    "23.21": "use a tensor-parallel plan",
    "23.23": "pad batches in code",
    "24.01": "keep it; check the number of processes, since the number of cores differs by instance",
    "24.02": "run the command itself: the first run fills the cache",
    "24.03": "use torchrun",
    "24.04": "use `torchrun --nproc-per-node=N script.py`",
    "24.05": "use `torchrun --nnodes`",
    "24.06": "keep it without `--tpu`, with `--num_processes`",
    "24.07": "delete the command and give the original checkpoint back to whatever loaded its output",
    "24.08": "keep it",
    "24.09": "keep it",
    "24.10": "keep it",
    "24.11": "use neuron-explorer",
    "24.12": "not needed: the backend calls the compiler",
    "24.13": "remove it: Inf1 has no native backend",
    "24.14": "remove it",
    "24.15": "use vLLM with the Neuron plug-in, or a Transformers script",
    "24.16": "keep it; RANK, LOCAL_RANK and MASTER_* have to be set",
    "24.17": "keep it",
    "24.18": "install torch 2.13 with torch-neuronx 2.13.3, or 2.14 with 2.14.3, on Python 3.12 to 3.14",
    "24.19": "install the version that belongs to the native torch-neuronx",
    "24.20": "uninstall it: Transformers and Accelerate prefer torch_xla while it is there",
    "24.21": "install the native torch-neuronx on Trn2 or Trn3",
    "24.22": "uninstall it",
    "24.23": "uninstall it",
    "24.24": "uninstall it; install transformers 5.24, accelerate 1.15 and what else you use",
    "24.25": "keep driver, runtime, tools and collectives",
    "24.26": "keep it",
}
"""Advice for each curated row of the torch_xla inventory."""

PLAIN_FLAGS = {
    "keep": "keep it",
    "drop": "remove it",
    "rewrite": "remove it",
    "manual": "remove it and measure again: it tuned the old path",
}

ROW_NAMES: dict[str, tuple[str, ...]] = {
    "01.01": ("torch_xla",),
    "01.02": ("torch_xla.core.xla_model",),
    "01.03": (
        "torch_xla.distributed.xla_backend",
        "torch_xla.experimental.pjrt_backend",
        "torch_xla.experimental.xla_backend",
    ),
    "01.04": ("torch_neuronx",),
    "01.05": (
        "torch.neuron",
        "torch_neuron",
    ),
    "01.15": ("torch_xla.core.xla_model.parse_xla_device",),
    "02.01": ("neuronx_distributed.utils.mark_step",),
    "03.07": ("neuronx_distributed.utils.master_print",),
    "04.03": ("torch_xla.distributed.xla_backend.ProcessGroupXla",),
    "06.04": (
        "torch_xla.utils.utils.FnDataGenerator",
        "torch_xla.utils.utils.DataWrapper",
    ),
    "06.05": (
        "torch_xla.utils.utils: getenv_as check_env_flag parallel_work get_free_tcp_ports eprint",
        "torch_xla.utils.utils: timed TimedScope as_list for_each_instance for_each_instance_rewrite",
    ),
    "06.06": ("torch_xla.utils: tf_record_reader gcsfs cached_dataset",),
    "06.08": (
        "torch_xla.test.test_utils: get_summary_writer write_to_summary print_training_update",
        "torch_xla.test.test_utils: close_summary_writer",
    ),
    "07.05": (
        "torch_xla.amp.syncfree",
        "torch_xla.amp.syncfree: SGD Adam AdamW",
        "torch_xla.amp.syncfree.sgd.SGD",
        "torch_xla.amp.syncfree.adam.Adam",
        "torch_xla.amp.syncfree.adamw.AdamW",
    ),
    "07.07": ("torch_xla.distributed.zero_redundancy_optimizer",),
    "07.11": (
        "torch_neuronx.optim",
        "neuronx_distributed.utils.adamw_fp32_optim_params.AdamW_FP32OptimParams",
    ),
    "08.04": (
        "torch_xla.core.xla_model.ToXlaTensorArena",
        "neuronx_distributed.parallel_layers.utils.move_all_tensor_to_cpu",
    ),
    "08.06": (
        "torch_xla.experimental.distributed_checkpoint: CheckpointManager SPMDSavePlanner",
        "torch_xla.experimental.distributed_checkpoint: SPMDLoadPlanner prime_optimizer",
    ),
    "09.04": (
        "neuronx_distributed.parallel_layers.random: model_parallel_xla_manual_seed",
        "neuronx_distributed.parallel_layers.random: get_xla_rng_tracker XLARNGStatesTracker",
    ),
    "09.07": (
        "torch_neuronx.xla_impl.ops: RmsNorm Softmax xla_hlo_call",
        "torch_neuronx.xla_impl.ops: set_unload_prior_neuron_models_mode TransferWithStaticRing",
    ),
    "10.01": (
        "torch_xla.amp.autocast",
        "torch_xla.amp.autocast_mode.autocast",
    ),
    "10.08": ("torch_xla.utils.checkpoint",),
    "11.01": ("torch_xla.debug.metrics",),
    "11.03": ("torch_xla.debug.profiler",),
    "11.07": (
        "torch_xla._XLAC._get_xla_tensors_text",
        "torch_xla._XLAC._get_xla_tensors_dot",
        "torch_xla.stablehlo",
        "torch_xla.stablehlo.save_as_stablehlo",
    ),
    "11.08": (
        "torch_xla.debug",
        "torch_xla.debug: model_comparator metrics_compare_utils graph_saver frame_parser_util",
    ),
    "11.09": (
        "torch_xla.distributed.spmd.debugging.visualize_sharding",
        "torch_xla.distributed.spmd.debugging.visualize_tensor_sharding",
    ),
    "12.03": (
        "torch_xla.experimental",
        "torch_xla.experimental.scan.scan",
        "torch_xla.experimental.scan_layers.scan_layers",
        "torch_xla.experimental.fori_loop.fori_loop",
        "torch_xla.experimental.fori_loop.while_loop",
        "torch_xla.experimental.assume_pure.assume_pure",
        "torch_xla.experimental.custom_kernel: flash_attention paged_attention",
        "torch_xla.experimental.custom_kernel: make_kernel_from_pallas",
        "torch_xla.experimental: mark_pattern_utils plugins stablehlo_custom_call",
        "torch_xla.experimental: xla_quantized_matmul",
    ),
    "12.04": (
        "torch_xla.core.xla_op_registry",
        "torch_xla.core.xla_op_registry.register",
    ),
    "12.05": (
        "torch_xla.utils.dlpack.to_dlpack",
        "torch_xla.utils.dlpack.from_dlpack",
    ),
    "13.02": ("torch_xla.distributed.fsdp",),
    "13.04": (
        "torch_xla.distributed.fsdp.wrap: transformer_auto_wrap_policy size_based_auto_wrap_policy",
        "torch_xla.distributed.fsdp.wrap: always_wrap_policy lambda_auto_wrap_policy recursive_wrap",
    ),
    "13.05": (
        "torch_xla.distributed.fsdp: consolidate_sharded_model_checkpoints",
        "torch_xla.distributed.fsdp: consolidate_sharded_state_dicts state_dict_utils",
    ),
    "13.08": (
        "torch_xla.distributed.spmd",
        "torch_xla.experimental.xla_sharding",
        "torch_xla.distributed.spmd: xla_distribute_tensor xla_distribute_module auto_policy",
    ),
    "14.07": ("torch_neuronx.xla_impl.data_parallel.DataParallel",),
    "14.11": (
        "torch_neuronx.experimental: set_neuron_cores set_multicore neuron_cores_context",
        "torch_neuronx.experimental: multicore_context",
    ),
    "15.01": (
        "torch_neuronx.xla_impl.custom_op.load",
        "torch_neuronx.xla_impl.custom_op.load_library",
    ),
    "15.02": (
        "neuronxcc.nki",
        "neuronxcc.nki: language isa jit kernels _private_kernels",
        "torch_neuronx.nki_jit",
        "torch_neuronx.nki_call",
        "torch_neuronx.xla_impl.ops.nki_jit",
    ),
    "15.03": (
        "torch_neuronx: testing contexts xla parallel_compile initialization experimental utils",
        "torch_neuronx.initialization.initialize",
    ),
    "15.04": (
        "torch_xla.__version__",
        "torch_xla.version.__version__",
    ),
    "16.01": ("torch_neuron.trace",),
    "16.02": (
        "torch_neuron.analyze_model",
        "torch_neuron.get_supported_operations",
        "torch.neuron.get_supported_operations",
    ),
    "16.03": ("torch_neuron.DataParallel",),
    "16.04": (
        "torch_neuron.Optimization",
        "torch.neuron.Optimization",
        "torch.neuron.experimental",
        "torch_neuron.experimental: set_neuron_cores set_multicore neuron_cores_context",
        "torch_neuron.experimental: multicore_context",
    ),
    "16.05": (
        "neuronperf",
        "neuronperf.torch",
    ),
    "17.01": (
        "transformers_neuronx",
        "transformers_neuronx: LlamaForSampling GPT2ForSampling GPTJForSampling GPTNeoXForSampling",
        "transformers_neuronx: OPTForSampling BloomForSampling MistralForSampling MixtralForSampling",
        "transformers_neuronx: NeuronAutoModelForCausalLM",
        "transformers_neuronx.llama.model.LlamaForSampling",
        "transformers_neuronx.gpt2.model.GPT2ForSampling",
        "transformers_neuronx.gptj.model.GPTJForSampling",
        "transformers_neuronx.gptneox.model.GPTNeoXForSampling",
        "transformers_neuronx.opt.model.OPTForSampling",
        "transformers_neuronx.bloom.model.BloomForSampling",
        "transformers_neuronx.mistral.model.MistralForSampling",
        "transformers_neuronx.mixtral.model.MixtralForSampling",
    ),
    "17.03": (
        "transformers_neuronx.HuggingFaceGenerationModelAdapter",
        "transformers_neuronx.generation_utils",
        "transformers_neuronx.generation_utils.HuggingFaceGenerationModelAdapter",
    ),
    "17.05": (
        "transformers_neuronx.config: NeuronConfig GenerationConfig QuantizationConfig",
        "transformers_neuronx.config: ContinuousBatchingConfig SparseAttnConfig",
        "transformers_neuronx.config: KVCacheQuantizationConfig",
        "transformers_neuronx.GQA",
        "transformers_neuronx.constants",
        "transformers_neuronx.constants.LAYOUT_BSH",
    ),
    "17.06": (
        "transformers_neuronx.speculation: SpeculativeGenerator DraftModelForSpeculation",
        "transformers_neuronx.speculation: DefaultTokenAcceptor FusedSpeculativeDecoder",
        "transformers_neuronx.speculation: EagleSpeculativeDecoder",
    ),
    "17.07": (
        "transformers_neuronx.stopping_criteria.StoppingCriteria",
        "transformers_neuronx.stopping_criteria.StoppingCriteriaList",
    ),
    "18.01": (
        "neuronx_distributed.parallel_layers.initialize_model_parallel",
        "neuronx_distributed.parallel_layers.parallel_state.initialize_model_parallel",
    ),
    "18.02": (
        "neuronx_distributed.parallel_layers.parallel_state",
        "neuronx_distributed.parallel_layers.parallel_state: get_tensor_model_parallel_size",
        "neuronx_distributed.parallel_layers.parallel_state: get_tensor_model_parallel_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_tensor_model_parallel_group",
        "neuronx_distributed.parallel_layers.parallel_state: get_tensor_model_parallel_src_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_data_parallel_size",
        "neuronx_distributed.parallel_layers.parallel_state: get_data_parallel_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_data_parallel_group",
        "neuronx_distributed.parallel_layers.parallel_state: get_data_parallel_src_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_size",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_group",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_next_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_prev_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_context_model_parallel_size",
        "neuronx_distributed.parallel_layers.parallel_state: get_context_model_parallel_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_context_model_parallel_group",
        "neuronx_distributed.parallel_layers.parallel_state: get_expert_model_parallel_size",
        "neuronx_distributed.parallel_layers.parallel_state: get_expert_model_parallel_rank",
        "neuronx_distributed.parallel_layers.parallel_state: get_expert_model_parallel_group",
        "neuronx_distributed.parallel_layers.parallel_state: get_world_group",
        "neuronx_distributed.parallel_layers.parallel_state: model_parallel_is_initialized",
        "neuronx_distributed.parallel_layers.parallel_state: destroy_model_parallel rmsg",
        "neuronx_distributed.parallel_layers.parallel_state: is_global_rank_zero",
        "neuronx_distributed.parallel_layers.parallel_state: get_tensor_model_parallel_replica_groups",
        "neuronx_distributed.parallel_layers.parallel_state: get_data_parallel_replica_groups",
        "neuronx_distributed.parallel_layers.parallel_state: get_pipeline_model_parallel_replica_groups",
    ),
    "18.03": (
        "neuronx_distributed.parallel_layers.ColumnParallelLinear",
        "neuronx_distributed.parallel_layers.layers",
    ),
    "18.04": ("neuronx_distributed.parallel_layers.RowParallelLinear",),
    "18.05": ("neuronx_distributed.parallel_layers.ParallelEmbedding",),
    "18.07": (
        "neuronx_distributed.parallel_layers.layers: OutputChannelParallelConv2d",
        "neuronx_distributed.parallel_layers.layers: InputChannelParallelConv2d SPMDRank",
        "neuronx_distributed.parallel_layers.layers: BaseParallelLinear create_local_weight",
    ),
    "18.08": (
        "neuronx_distributed.parallel_layers.mappings",
        "neuronx_distributed.parallel_layers.mappings: copy_to_tensor_model_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: reduce_from_tensor_model_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: scatter_to_tensor_model_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: gather_from_tensor_model_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: scatter_to_sequence_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: gather_from_sequence_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: reduce_scatter_to_sequence_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: enter_expert_parallel_region",
        "neuronx_distributed.parallel_layers.mappings: exit_expert_parallel_region",
    ),
    "18.09": (
        "neuronx_distributed.parallel_layers: loss_functions parallel_cross_entropy",
        "neuronx_distributed.parallel_layers: loss_functions_ignore_index",
        "neuronx_distributed.parallel_layers.loss_functions.from_parallel_logits_to_logprobs",
    ),
    "18.11": (
        "neuronx_distributed.parallel_layers.grads: clip_grad_norm bucket_allreduce_gradients",
        "neuronx_distributed.parallel_layers.grads: allreduce_sequence_parallel_gradients",
        "neuronx_distributed.parallel_layers.grads: get_grad_norm",
    ),
    "18.12": (
        "neuronx_distributed.parallel_layers.checkpointing.save",
        "neuronx_distributed.parallel_layers.checkpointing.load",
        "neuronx_distributed.parallel_layers.save",
        "neuronx_distributed.parallel_layers.load",
    ),
    "18.13": (
        "neuronx_distributed.utils.model_utils: move_model_to_device init_on_device",
        "neuronx_distributed.utils.model_utils: get_model_sequential retie_shared_weights",
        "neuronx_distributed.utils.model_utils: maybe_materalize_model",
    ),
    "18.14": (
        "neuronx_distributed.parallel_layers.pad.pad_model",
        "neuronx_distributed.parallel_layers.pad.get_number_of_extra_heads",
        "neuronx_distributed.parallel_layers.utils: divide get_local_world_size cast_all",
        "neuronx_distributed.parallel_layers.utils: split_tensor_along_last_dim",
        "neuronx_distributed.parallel_layers.utils: set_tensor_model_parallel_attributes",
    ),
    "18.15": (
        "neuronx_distributed.utils.cpu_mode",
        "neuronx_distributed.utils.get_device",
        "neuronx_distributed.utils.logger.get_logger",
    ),
    "19.03": ("neuronx_distributed.trainer.optimizer.NxDOptimizer",),
    "19.04": ("neuronx_distributed.optimizer.zero_redundancy_optimizer.NeuronZero1Optimizer",),
    "19.05": (
        "neuronx_distributed: save_checkpoint load_checkpoint has_checkpoint finalize_checkpoint",
        "neuronx_distributed.trainer.save_checkpoint",
        "neuronx_distributed.trainer.load_checkpoint",
        "neuronx_distributed.trainer.checkpoint.save_checkpoint",
        "neuronx_distributed.trainer.checkpoint.load_checkpoint",
    ),
    "19.06": (
        "neuronx_distributed.pipeline",
        "neuronx_distributed.pipeline.model.NxDPPModel",
        "neuronx_distributed.pipeline.partition.create_partitions",
    ),
    "19.07": (
        "neuronx_distributed.utils.activation_checkpoint",
        "neuronx_distributed.utils.activation_checkpoint.apply_activation_checkpointing",
    ),
    "19.08": (
        "neuronx_distributed.modules",
        "neuronx_distributed.lightning",
        "neuronx_distributed.modules: moe lora rms_norm",
        "neuronx_distributed.modules.lora.LoraConfig",
        "neuronx_distributed.kernels.flash_attn.nki_flash_attn_func",
    ),
    "19.09": (
        "neuronx_distributed_training",
        "nemo_neuron",
    ),
    "20.01": ("neuronx_distributed.trace: parallel_model_trace parallel_model_save parallel_model_load",),
    "20.02": (
        "neuronx_distributed: ModelBuilder NxDModel NxDParallelState shard_checkpoint",
        "neuronx_distributed.trace.model_builder: ModelBuilder BaseModelInstance trace compile",
    ),
    "20.03": (
        "neuronx_distributed_inference.models.config: NeuronConfig InferenceConfig MoENeuronConfig",
        "neuronx_distributed_inference.models.config: OnDeviceSamplingConfig FusedSpecNeuronConfig",
        "neuronx_distributed_inference.models.config: to_torch_dtype",
    ),
    "20.04": (
        "neuronx_distributed_inference.models",
        "neuronx_distributed_inference.models.llama.modeling_llama.NeuronLlamaForCausalLM",
        "neuronx_distributed_inference.models.model_base.NeuronBaseForCausalLM",
        "neuronx_distributed_inference.models.model_base.NeuronBaseModel",
        "neuronx_distributed_inference.models.application_base.NeuronApplicationBase",
        "neuronx_distributed_inference.models.model_wrapper.ModelWrapper",
        "neuronx_distributed_inference.modules.attention.attention_base.NeuronAttentionBase",
    ),
    "20.05": (
        "neuronx_distributed_inference.utils.hf_adapter: load_pretrained_config",
        "neuronx_distributed_inference.utils.hf_adapter: HuggingFaceGenerationAdapter",
        "neuronx_distributed_inference.utils.hf_adapter: prepare_sampling_params",
        "neuronx_distributed_inference.modules.generation.sampling.prepare_sampling_params",
    ),
    "20.06": (
        "neuronx_distributed_inference.utils: testing accuracy benchmark",
        "neuronx_distributed_inference.utils.testing.build_module",
        "neuronx_distributed_inference.utils.testing.validate_accuracy",
        "neuronx_distributed_inference.utils.accuracy.check_accuracy_logits",
        "neuronx_distributed_inference.utils.benchmark.benchmark_sampling",
        "neuronx_distributed_inference.inference_demo",
    ),
    "21.01": (
        "torch_xla._internal",
        "torch_xla._internal.pjrt",
        "torch_xla.core.xla_env_vars",
        "_XLAC",
    ),
    "21.02": (
        "libneuronxla",
        "libneuronxla: neuron_cc_wrapper neuron_cc_cache register_hlo_snapshot_callback",
    ),
    "21.03": (
        "torch.classes.neuron",
        "torch.classes.neuron.Runtime",
        "torch.ops.neuron",
    ),
    "25.03": (
        "accelerate.utils.is_torch_xla_available",
        "accelerate.utils.is_tpu_available",
        "accelerate.utils.imports.is_torch_xla_available",
        "transformers.is_torch_xla_available",
        "transformers.is_torch_tpu_available",
        "transformers.utils: is_torch_xla_available is_torch_tpu_available",
        "transformers.utils: is_torch_neuroncore_available",
        "transformers.utils.import_utils: is_torch_xla_available is_torch_tpu_available",
        "transformers.utils.import_utils: is_torch_neuroncore_available",
        "transformers.file_utils.is_torch_tpu_available",
        "diffusers.utils.is_torch_xla_available",
        "diffusers.utils.import_utils.is_torch_xla_available",
    ),
}
"""Names of a row that its spellings do not give away; after a colon, names below a module."""

MODULES: dict[str, str] = {
    "torch_xla": "use torch, `torch.accelerator` or `torch.distributed`; no counterpart of this very name "
    "is known",
    "torch_xla.core": "use torch or `torch.distributed`; no counterpart of this very name is known",
    "torch_xla.core.xla_model": "use torch or `torch.distributed`; no counterpart of this very name is known",
    "torch_xla.core.xla_builder": ROWS["12.04"],
    "torch_xla.core.xla_op_registry": ROWS["12.04"],
    "torch_xla.core.functions": ROWS["05.12"],
    "torch_xla.core.dynamo_bridge": ROWS["12.02"],
    "torch_xla._dynamo": ROWS["12.02"],
    "torch_xla._internal": ROWS["21.01"],
    "torch_xla._XLAC": ROWS["21.01"],
    "torch_xla.amp": 'use `torch.autocast("neuron", dtype=torch.bfloat16)` and the optimizers of torch.optim',
    "torch_xla.amp.syncfree": ROWS["07.05"],
    "torch_xla.debug": ROWS["11.08"],
    "torch_xla.debug.metrics": ROWS["11.02"],
    "torch_xla.debug.profiler": ROWS["11.03"],
    "torch_xla.distributed": "use `torch.distributed`, DistributedDataParallel or FSDP2",
    "torch_xla.distributed.fsdp": ROWS["13.02"],
    "torch_xla.distributed.parallel_loader": ROWS["06.01"],
    "torch_xla.distributed.spmd": ROWS["13.08"],
    "torch_xla.distributed.xla_backend": ROWS["01.03"],
    "torch_xla.distributed.xla_multiprocessing": ROWS["04.04"],
    "torch_xla.experimental": ROWS["12.03"],
    "torch_xla.experimental.distributed_checkpoint": ROWS["08.06"],
    "torch_xla.experimental.pjrt": ROWS["03.10"],
    "torch_xla.experimental.xla_sharding": ROWS["13.08"],
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": ROWS["13.09"],
    "torch_xla.runtime": "use `torch.distributed` for ranks and `torch.accelerator` for devices",
    "torch_xla.stablehlo": ROWS["11.07"],
    "torch_xla.test": "use the test helpers of torch or of your own",
    "torch_xla.utils": ROWS["06.05"],
    "torch_xla.utils.checkpoint": ROWS["13.01"],
    "torch_xla.utils.serialization": ROWS["08.02"],
    "torch_xla.utils.tf_record_reader": ROWS["06.06"],
    "torch_xla.utils.gcsfs": ROWS["06.06"],
    "torch_neuronx": "use the native torch_neuronx or torch.neuron; whether it has this name is not known",
    "torch_neuronx.xla_impl": "remove it: this is the lazy stack's own; use torch.compile or an NKI kernel",
    "torch_neuronx.xla_impl.ops": ROWS["09.07"],
    "torch_neuronx.xla_impl.trace": ROWS["14.01"],
    "torch_neuronx.xla_impl.torchscript": "remove it: there is no compiled file to load; build the model "
    "and compile it",
    "torch_neuronx.xla_impl.data_parallel": ROWS["14.07"],
    "torch_neuronx.xla_impl.placement": ROWS["14.11"],
    "torch_neuronx.xla_impl.analyze": ROWS["14.12"],
    "torch_neuronx.xla_impl.partitioner": "remove it: graph breaks and the CPU fallback do this natively",
    "torch_neuronx.experimental": ROWS["14.11"],
    "torch_neuronx.experimental.profiler": ROWS["11.06"],
    "torch_neuronx.distributed": "use `torch.distributed`, DistributedDataParallel or FSDP2",
    "torch_neuronx.distributed.fsdp_mics": ROWS["13.06"],
    "torch_neuronx.parallel_compile": ROWS["24.02"],
    "torch_neuron": "use the native backend on Trn2 or Trn3: Inf1 has none",
    "torch.neuron": ROWS["16.01"],
    "torch.classes.neuron": ROWS["21.03"],
    "torch.ops.neuron": ROWS["21.03"],
    "neuronx_distributed": "use DTensor (`parallelize_module`), FSDP2 or `torch.distributed`",
    "neuronx_distributed.parallel_layers": "use DTensor: a plan of `ColwiseParallel` and `RowwiseParallel` "
    "for "
    "`parallelize_module`",
    "neuronx_distributed.parallel_layers.parallel_state": ROWS["18.02"],
    "neuronx_distributed.parallel_layers.mappings": ROWS["18.08"],
    "neuronx_distributed.parallel_layers.checkpointing": ROWS["18.12"],
    "neuronx_distributed.parallel_layers.loss_functions": ROWS["18.09"],
    "neuronx_distributed.parallel_layers.grads": ROWS["18.11"],
    "neuronx_distributed.parallel_layers.random": ROWS["09.04"],
    "neuronx_distributed.parallel_layers.comm": "use the collectives of `torch.distributed`",
    "neuronx_distributed.pipeline": ROWS["19.06"],
    "neuronx_distributed.trace": ROWS["20.01"],
    "neuronx_distributed.trainer": "use plain torch pieces: a mesh, `parallelize_module`, the optimizer, "
    "`torch.distributed.checkpoint`",
    "neuronx_distributed.optimizer": ROWS["19.04"],
    "neuronx_distributed.modules": ROWS["19.08"],
    "neuronx_distributed.modules.moe": "use the mixture-of-experts classes of Transformers",
    "neuronx_distributed.modules.lora": "use PEFT",
    "neuronx_distributed.quantization": "no native counterpart is known: leave quantisation out",
    "neuronx_distributed.kernels": "use `F.scaled_dot_product_attention`, or an NKI kernel registered with "
    "`torch_neuronx.nki_op`",
    "neuronx_distributed.operators": "use the torch operation, after gathering shards",
    "neuronx_distributed.lightning": "no native counterpart is known: use Accelerate or a Lightning "
    "strategy on "
    "`torch.distributed`",
    "neuronx_distributed.inference": "use Transformers `generate`, or vLLM with the Neuron plug-in",
    "neuronx_distributed.scripts": "convert old checkpoints once in the old environment",
    "neuronx_distributed.utils": "use torch and the standard library; no counterpart of this very name is "
    "known",
    "neuronx_distributed.overrides": "remove it: nothing needs to be overridden",
    "neuronx_distributed_inference": "use Transformers `generate`, or vLLM with the Neuron plug-in",
    "neuronx_distributed_inference.models": ROWS["20.04"],
    "neuronx_distributed_inference.models.config": ROWS["20.03"],
    "neuronx_distributed_inference.models.diffusers": "use the Diffusers pipeline of the same name",
    "neuronx_distributed_inference.models.mllama.utils": "use the processor and the chat template of the "
    "model in Transformers",
    "neuronx_distributed_inference.modules": "use the Transformers class of the same architecture",
    "neuronx_distributed_inference.modules.attention": "use the Transformers class of the same architecture, "
    "or `F.scaled_dot_product_attention` in a model of your own",
    "neuronx_distributed_inference.modules.attention.utils": "use the function of Transformers for the same "
    "architecture; weights keep their layout",
    "neuronx_distributed_inference.modules.autobucketing": "drop buckets: each new shape compiles once",
    "neuronx_distributed_inference.modules.checkpoint": "use `from_pretrained`, or safetensors for plain "
    "state dicts",
    "neuronx_distributed_inference.modules.custom_calls": "use `torch.nn.RMSNorm`, or the norm of the "
    "Transformers class",
    "neuronx_distributed_inference.modules.flashdecode": "drop it: a cache of Transformers is sharded by "
    "heads alone",
    "neuronx_distributed_inference.modules.generation": "use `model.generate(...)` with a GenerationConfig",
    "neuronx_distributed_inference.modules.kvcache": "use a cache of Transformers, such as `StaticCache`",
    "neuronx_distributed_inference.modules.lora_serving": "use PEFT",
    "neuronx_distributed_inference.modules.moe": "use the mixture-of-experts classes of Transformers",
    "neuronx_distributed_inference.modules.moe_v2": "use the mixture-of-experts classes of Transformers",
    "neuronx_distributed_inference.modules.padding": "leave it out: torch takes sizes that differ",
    "neuronx_distributed_inference.utils": "use torch and Transformers; no counterpart of this very name is "
    "known",
    "neuronx_distributed_inference.utils.constants": "use `AutoModelForCausalLM`, which knows the classes",
    "neuronx_distributed_inference.utils.diffusers_adapter": "use the Diffusers pipeline itself",
    "neuronx_distributed_inference.utils.distributed": "leave groups to a tensor-parallel plan; by hand, "
    '`mesh["tp"].get_group()` of a device mesh',
    "neuronx_distributed_inference.utils.hf_adapter": ROWS["20.05"],
    "neuronx_distributed_inference.utils.random": "use `transformers.set_seed(...)`",
    "neuronx_distributed_inference.utils.snapshot": "use `neuronmigrate parity record`, which keeps inputs "
    "and outputs",
    "neuronx_distributed_training": ROWS["19.09"],
    "nemo_neuron": ROWS["19.09"],
    "transformers_neuronx": "use the Transformers class of the same architecture, or vLLM with the Neuron "
    "plug-in",
    "transformers_neuronx.speculation": ROWS["17.06"],
    "transformers_neuronx.stopping_criteria": ROWS["17.07"],
    "transformers_neuronx.generation_utils": ROWS["17.03"],
    "transformers_neuronx.config": ROWS["17.05"],
    "transformers_neuronx.constants": ROWS["17.05"],
    "transformers_neuronx.module": "use `save_pretrained` and `from_pretrained` of Transformers",
    "transformers_neuronx.sampling": "use `model.generate(...)`",
    "libneuronxla": ROWS["21.02"],
    "neuronxcc": "leave calling the compiler to the backend; kernels are in the package `nki`",
    "neuronxcc.nki": ROWS["15.02"],
    "neuronperf": ROWS["16.05"],
    "_XLAC": ROWS["21.01"],
    "optimum.neuron": "use the class of Transformers, Diffusers, Accelerate, TRL or PEFT that it wrapped; no "
    "counterpart of this very name is known",
    "optimum.neuron.accelerate": "use the Accelerate class of the same name without `Neuron`",
    "optimum.neuron.cache": "remove it: compiled files are not kept on the hub; the backend has a local "
    "cache",
    "optimum.neuron.distributed": "load the model with `distributed_config=DistributedConfig(tp_size=...)` "
    "under "
    "torchrun",
    "optimum.neuron.generation": "use `model.generate(...)` with a GenerationConfig",
    "optimum.neuron.models": "use the Transformers class of the same architecture",
    "optimum.neuron.models.inference": "use the Transformers class of the same architecture",
    "optimum.neuron.models.training": "use the Transformers class of the same architecture, without "
    "`trn_config`",
    "optimum.neuron.peft": "use PEFT",
    "optimum.neuron.pipelines": 'use the pipeline of Transformers with `device="neuron"`',
    "optimum.neuron.trainers": "use the trainer of Transformers or TRL",
    "optimum.neuron.trainer_callback": "remove it: there is no cache to push",
    "optimum.neuron.utils": "use the helper of Transformers or Accelerate; no counterpart of this very name "
    "is known",
    "optimum.neuron.version": "use `importlib.metadata.version(...)` of the library that is really used",
    "optimum.neuron.vllm": "use vLLM with the Neuron plug-in and uninstall optimum-neuron",
    "optimum.exporters.neuron": "remove the export: load the original checkpoint on the device",
    "optimum.commands": "remove it: the commands of Optimum Neuron are gone",
}
"""What to say about a name that no row knows, by the longest module around it."""

FAMILIES: dict[tuple[str, str], str] = {
    ("accelerate", "drop"): "remove it: Accelerate knows the neuron device and needs no patch",
    ("accelerate", "manual"): "use Accelerate; no counterpart of this very name is known",
    ("cache", "drop"): MODULES["optimum.neuron.cache"],
    ("cache", "manual"): "set TORCH_NEURONX_NEFF_CACHE_DIR instead",
    ("causal-lm", "drop"): "remove it: it belonged to the old decoder back ends",
    (
        "causal-lm",
        "manual",
    ): "use the Transformers class of the same architecture: this is a part of the old decoder back ends",
    ("cli", "drop"): MODULES["optimum.commands"],
    ("cli", "manual"): MODULES["optimum.commands"],
    ("diffusion", "drop"): "remove it: the Diffusers pipeline needs no such part",
    ("diffusion", "manual"): "use the component of the Diffusers pipeline",
    ("distributed-legacy", "drop"): "remove it: a plan and DTensor do this natively",
    ("distributed-legacy", "manual"): MODULES["optimum.neuron.distributed"],
    ("env", "drop"): "remove it: nothing reads it natively",
    ("env", "keep"): "keep it",
    ("env", "manual"): "check who still reads it",
    ("export", "drop"): MODULES["optimum.exporters.neuron"],
    ("export", "manual"): MODULES["optimum.exporters.neuron"],
    ("generation", "drop"): "remove it: native models generate by themselves",
    ("generation", "manual"): MODULES["optimum.neuron.generation"],
    ("inference-model-specific", "manual"): "use the Transformers class of the same architecture",
    ("inference-traced", "drop"): "remove it: it belonged to compiled models",
    (
        "inference-traced",
        "manual",
    ): "use `transformers.PreTrainedModel`: there is no compiled model to be a base of",
    ("peft", "drop"): "remove it: PEFT works on the native model as it is",
    ("peft", "manual"): "use PEFT",
    ("pipeline", "drop"): MODULES["optimum.neuron.pipelines"],
    ("pipeline", "manual"): MODULES["optimum.neuron.pipelines"],
    ("seq2seq", "manual"): "use the Transformers model, whose encoder is `model.get_encoder()`",
    ("sentence-transformers", "manual"): "use `sentence_transformers.SentenceTransformer`",
    ("training", "drop"): "remove it: the Transformers trainer needs no such part",
    (
        "training",
        "manual",
    ): "use the Transformers trainer and callbacks; no counterpart of this very name is known",
    ("training-models", "drop"): "remove it: native checkpoints keep the layout of Transformers",
    ("training-models", "manual"): MODULES["optimum.neuron.models.training"],
    ("trl", "drop"): "remove it",
    ("trl", "manual"): "use TRL",
    ("utils", "drop"): "remove it: nothing native needs it",
    ("utils", "manual"): MODULES["optimum.neuron.utils"],
    ("vllm", "manual"): MODULES["optimum.neuron.vllm"],
    ("vllm", "drop"): MODULES["optimum.neuron.vllm"],
}
"""Advice for names of Optimum Neuron without a counterpart, by family and action."""

OPTIMUM: dict[str, str] = {
    "NeuronTrainer": "use `transformers.Trainer`; pin the old defaults and check the loss: gradient "
    "accumulation, data "
    "order and masks differed by release",
    "TrainiumTrainer": "use `transformers.Trainer` and pin the old defaults",
    "NeuronTrainingArguments": "use `transformers.TrainingArguments`, without the Neuron fields and with "
    "the old "
    "defaults written out",
    "TrainiumTrainingArguments": "use `transformers.TrainingArguments` with the old defaults written out",
    "NeuronHfArgumentParser": "use `transformers.HfArgumentParser`; launch lines that give Neuron flags "
    "have to change "
    "with it",
    "TrainiumHfArgumentParser": "use `transformers.HfArgumentParser`",
    "Seq2SeqNeuronTrainer": "use `transformers.Seq2SeqTrainer` and pin the old defaults",
    "Seq2SeqNeuronTrainingArguments": "use `transformers.Seq2SeqTrainingArguments` with the old defaults "
    "written out",
    "NeuronSFTConfig": "use `trl.SFTConfig` with learning_rate 5e-5, logging_steps 500, bf16, gradient "
    "checkpointing, "
    "batch size and report_to written out: their defaults differ",
    "NeuronSFTTrainer": "use `trl.SFTTrainer`; padding, end-of-text tokens and packing differed by release, "
    "so losses "
    "move",
    "NeuronORPOConfig": "use `trl.experimental.orpo.ORPOConfig` with learning_rate 5e-5 and max_length 512 "
    "written out",
    "NeuronORPOTrainer": "use `trl.experimental.orpo.ORPOTrainer`; prompts are no longer cut by it",
    "NeuronModelForFeatureExtraction": "use `transformers.AutoModel` with `dtype=torch.float32`; only the "
    "first two "
    "outputs existed before",
    "NeuronModelForCausalLM": "use `transformers.AutoModelForCausalLM`, and assign the generation "
    "configuration the old "
    "class decoded with",
    "NeuronModelForSeq2SeqLM": "use `transformers.AutoModelForSeq2SeqLM`, pass num_beams to generate() and "
    "move its "
    "inputs to the device",
    "NeuronModelForEmbedding": "use `transformers.AutoModel` and take the last token, which the old model "
    "returned alone",
    "NeuronModelForSentenceTransformers": "use `sentence_transformers.SentenceTransformer(..., "
    'device="neuron")`; it '
    "takes one dictionary, not keywords",
    "NeuronSentenceTransformers": 'use `sentence_transformers.SentenceTransformer(..., device="neuron")`; '
    "embeddings now "
    "come back in the order of the sentences",
    "NeuronModelForXVector": "use `transformers.AutoModelForAudioXVector`",
    "NeuronModelForQuestionAnswering": "use `transformers.AutoModelForQuestionAnswering`; the pipeline task "
    "is gone from "
    "Transformers 5",
    "NeuronWhisperForConditionalGeneration": "use `transformers.WhisperForConditionalGeneration` with "
    "max_new_tokens at "
    "generate() and inputs on the device",
    "NeuronCLIPModel": "use `transformers.CLIPModel` with keyword arguments; rows of padding are no longer "
    "returned",
    "pipeline": 'use `transformers.pipeline` with `device="neuron"`, a dtype and a model: without a device '
    "it runs on "
    "the CPU",
    "NeuronPeftModel": "use `peft.PeftModel`",
    "get_peft_model": "use `peft.get_peft_model`; fused names such as gate_up_proj become gate_proj and "
    "up_proj",
    "lazy_load_for_parallelism": "take the block away and give "
    "`distributed_config=DistributedConfig(tp_size=...)` to "
    "from_pretrained",
    "NxDNeuronConfig": "leave it out: tp_degree becomes DistributedConfig(tp_size=...), the dtype an "
    "argument, lengths a "
    "matter of generate()",
    "NxDVLMNeuronConfig": "leave it out: tp_degree becomes DistributedConfig(tp_size=...), the dtype an "
    "argument, lengths a matter of generate()",
    "HloNeuronConfig": "leave it out: the dtype becomes an argument, lengths a matter of generate()",
    "NeuronDistributedType": "use `accelerate.DistributedType`, where only MULTI_NEURON is there",
    "is_neuron_available": "use `accelerate.utils.is_neuron_available()`, which tests for a usable device",
    "is_neuronx_available": "use `accelerate.utils.is_neuron_available()`, which tests for a usable device",
    "is_torch_neuronx_available": "use `accelerate.utils.is_neuron_available()`, which tests for a usable "
    "device",
    "is_torch_xla_available": ROWS["25.03"],
    "validate_model_outputs": "use `neuronmigrate parity` or `torch.testing.assert_close`",
    "validate_models_outputs": "use `neuronmigrate parity` or `torch.testing.assert_close`",
    "TrainingNeuronConfig": "use `transformers.distributed.DistributedConfig(tp_size=...)`; the other "
    "fields have no "
    "counterpart",
    "ModelParallelismPlugin": "use `transformers.distributed.DistributedConfig(tp_size=...)`",
    "TensorParallelismPlugin": "use `transformers.distributed.DistributedConfig(tp_size=...)`",
    "NeuronConfig": "leave it out: there is no static shape to describe",
    "is_precompilation": "keep the branch for False: there is no separate compilation run",
    "is_main_worker": "use `accelerate.PartialState().is_main_process`",
    "get_num_neuron_cores": "use `torch.accelerator.device_count()`",
    "cores_per_device": "use `torch.accelerator.device_count()`",
    "get_available_cores": "use `torch.accelerator.device_count()`",
    "get_neuron_devices_count": "use `torch.accelerator.device_count()`",
    "get_neuron_major": "use `torch.neuron.is_available()`; -1 meant that there is no device",
    "__version__": "use `importlib.metadata.version(...)` of the library that is really used",
    "__sdk_version__": "use `importlib.metadata.version(...)` of the library that is really used",
    "get_neuronxcc_version": 'use `importlib.metadata.version("neuronx-cc")`, if the version matters at all',
    "NeuronCacheCallback": "remove it: there is no cache to push",
    "NeuronCacheCallaback": "remove it: there is no cache to push",
    "consolidate_model_parallel_checkpoints_to_unified_checkpoint": "consolidate old checkpoints once in "
    "the old "
    "environment; native ones are whole",
    "consolidate_tensor_parallel_checkpoints_to_unified_checkpoint": "consolidate old checkpoints once in "
    "the old "
    "environment; native ones are whole",
    "consolidate_model_parallel_checkpoints": "consolidate old checkpoints once in the old environment; "
    "native ones are "
    "whole",
    "consolidate_tensor_parallel_checkpoints": "consolidate old checkpoints once in the old environment; "
    "native ones are "
    "whole",
    "FeatureExtractionPipeline": "use `sentence_transformers.SentenceTransformer.encode` for one vector a "
    "text",
    "MixedPrecisionConfig": 'use `mixed_precision="bf16"` for autocast, or load the model in bfloat16 with '
    '"no"',
    "MixedPrecisionMode": 'use `mixed_precision="bf16"` for autocast, or load the model in bfloat16 with '
    '"no"',
    "AutocastBackend": 'use `mixed_precision="bf16"` for amp, or a bfloat16 model for xla',
    "FusedLogitsWarper": "pass temperature, top_k and top_p to generate()",
    "FastTopKLogitsWarper": "pass temperature, top_k and top_p to generate()",
    "Parallelizer": "write a tensor-parallel plan for the model",
    "ParallelizersManager": "load the model with `distributed_config=DistributedConfig(tp_size=...)`",
    "make_optimizer_constructor_lazy": "use the optimizer class itself",
    "patch_transformers_for_neuron_sdk": "remove it: nothing needs a patch",
    "get_original_merged_weights_for_vllm": "call `merge_and_unload()` and read the state dict",
    "set_neuron_cache_path": "set TORCH_NEURONX_NEFF_CACHE_DIR instead",
    "get_neuron_cache_path": "read TORCH_NEURONX_NEFF_CACHE_DIR instead",
    "NeuronModel": "use `transformers.PreTrainedModel` for isinstance, `transformers.AutoModel` to load",
}
"""Advice for names of Optimum Neuron; the same name means the same in each place."""

OPTIMUM_PATHS: dict[str, str] = {
    "optimum.neuron.models.training": "use `transformers.{name}` and take `trn_config` away, also as second "
    "positional "
    "argument; write dtype=torch.float32 where none was given",
}
"""Advice for all classes below a module that have a Transformers class of their own."""

ENVIRONMENT: dict[str, str] = {
    "NEURON_CC_FLAGS": ROWS["22.01"],
    "TORCHDYNAMO_DISABLE": "remove it: it would turn torch.compile off",
    "CUSTOM_CACHE_REPO": "remove it: compiled files are not kept on the hub",
    "NEURON_CACHE_DIR": "use TORCH_NEURONX_NEFF_CACHE_DIR",
    "NEURON_CACHE": "use TORCH_NEURONX_NEFF_CACHE_DIR",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "keep it; Optimum Neuron set it to 1 for bf16 training, so set it "
    "by hand",
    "NEURON_COMPILE_CACHE_URL": ROWS["22.02"],
    "NEURON_PARALLEL_COMPILE": ROWS["22.19"],
    "ACCELERATE_DOWNCAST_BF16": "remove it; say the precision with mixed_precision or a dtype",
    "ACCELERATE_USE_AMP": "remove it; say the precision with mixed_precision or a dtype",
}

COMMANDS: dict[str, str] = {
    "neuron_parallel_compile": ROWS["24.02"],
    "optimum-cli env": "use `transformers env` and `accelerate env`",
    "optimum-cli export neuron": ROWS["24.07"],
    "optimum-cli neuron cache": MODULES["optimum.neuron.cache"],
    "optimum-cli neuron consolidate": "run it once in the old environment before migrating",
    "optimum-cli neuron serve": "use `vllm serve MODEL` with the Neuron plug-in",
    "torchrun": ROWS["24.01"],
}

ARGUMENT_OVERRIDES: dict[tuple[str, str], tuple[str, str, str]] = {
    # Inference: the wrapper padded to the compiled shape and cut the result back by itself.
    ("traced.from_pretrained", "sequence_length"): (
        "drop",
        "",
        "leave the tokenizer call alone: the wrapper padded and cut back by itself, and refused longer "
        "inputs",
    ),
    ("traced.from_pretrained", "batch_size"): (
        "drop",
        "",
        "any batch size works; each new one compiles once",
    ),
    ("st.from_pretrained", "sequence_length"): (
        "drop",
        "",
        "set `model.max_seq_length` only if longer texts have to be cut",
    ),
    ("st.from_pretrained", "batch_size"): (
        "rewrite",
        "encode(batch_size=N)",
        "batches of encode had this size",
    ),
    ("st.encode", "**kwargs"): (
        "manual",
        "",
        "tokenizer arguments are refused natively; padding=True goes, encode pads by itself",
    ),
    ("seq2seq.from_pretrained", "sequence_length"): (
        "rewrite",
        "generate(max_length=N)",
        "leave the tokenizer call alone; the decoder stopped at this length",
    ),
    ("seq2seq.generate", "input_ids"): ("keep", "input_ids=", "has to be moved to the device"),
    ("seq2seq.generate", "attention_mask"): ("keep", "attention_mask=", "has to be moved to the device"),
    ("seq2seq.generate", "logits_processor"): (
        "keep",
        "logits_processor=",
        "was ignored before, acts natively: review",
    ),
    ("seq2seq.generate", "do_sample"): ("keep", "do_sample=", "True raised before; natively it samples"),
    ("causal.generate", "(when do_sample is not given)"): (
        "insert",
        "model.generation_config = GenerationConfig.from_model_config(model.config)",
        "from 0.2.0 the hub's generation_config.json was not read; assign after loading, since a "
        "configuration given "
        "in the call is filled up from the model's own",
    ),
    ("causal.generate", "repetition_penalty"): (
        "keep",
        "repetition_penalty=",
        "was ignored with on-device sampling (0.2.0 and later, most architectures), acts natively: review",
    ),
    ("causal.generate", "top_p"): (
        "keep",
        "top_p=",
        "on-device sampling drew from at most 256 candidates and left the crossing token out: review",
    ),
    ("diffusion.from_pretrained", "data_parallel_mode"): (
        "drop",
        "",
        'before 0.3.0 "none" and "all" turned guidance off: write guidance_scale=1.0 for the old picture, '
        "review",
    ),
    ("diffusion.call", "height"): (
        "keep",
        "height=",
        "the compiled size was used whatever the call said: write the compiled size; img2img and "
        "instruct-pix2pix "
        "take the size of the image",
    ),
    ("diffusion.call", "width"): (
        "keep",
        "width=",
        "the compiled size was used whatever the call said: write the compiled size; img2img and "
        "instruct-pix2pix "
        "take the size of the image",
    ),
    ("diffusion.call", "cross_attention_kwargs"): ("drop", "", "was ignored before, acts natively"),
    ("diffusion.call", "guess_mode"): ("drop", "", "was ignored before"),
    # Training: what was accepted and never read, and what acts now.
    ("training_args", "gradient_accumulation_steps"): (
        "keep",
        "gradient_accumulation_steps=",
        "0.0.23 to 0.0.28 summed the micro-batches instead of averaging them, and up to 0.3.0 the number of "
        "updates "
        "was rounded down: review",
    ),
    ("training_args", "label_smoothing_factor"): (
        "keep",
        "label_smoothing_factor=",
        "0.4.x built the smoother and never used it: write 0.0 for the old loss, review",
    ),
    ("training_args", "neftune_noise_alpha"): (
        "keep",
        "neftune_noise_alpha=",
        "never active in 0.4.x: drop it there",
    ),
    ("training_args", "average_tokens_across_devices"): (
        "keep",
        "average_tokens_across_devices=",
        "write False: 0.4.x never averaged, and the native default is True; keep a True of 0.0.28 to 0.3.0",
    ),
    ("training_args", "seed"): ("keep", "seed=", "0.4.x never read it; the native trainer calls set_seed"),
    ("training_args", "save_strategy"): (
        "keep",
        "save_strategy=",
        '"epoch" never saved in 0.4.x and does natively: review',
    ),
    ("training_args", "logging_strategy"): (
        "keep",
        "logging_strategy=",
        '"epoch" never logged in 0.4.x and does natively: review',
    ),
    ("training_args", "accelerator_config"): (
        "drop",
        "",
        "never reached the accelerator in any release; kept, it acts natively",
    ),
    ("training_args", "log_level_replica"): (
        "keep",
        "log_level_replica=",
        'the old default "silent" is a KeyError natively: drop it or write "warning"',
    ),
    ("training_args", "use_autocast"): (
        "drop",
        "",
        "with bf16 it meant float32 weights under autocast: load in float32 with bf16=True",
    ),
    ("training_args", "bf16"): (
        "keep",
        "bf16=",
        "what it meant differs by release: with zero_1 (default in 0.4.x) masters stayed float32, so load "
        "in float32 "
        "with bf16=True; else load in bfloat16 with bf16=False",
    ),
    ("training_args", "push_to_hub"): (
        "keep",
        "push_to_hub=",
        "0.4.x refused or ignored it: drop it there, or the script starts uploading",
    ),
    ("training_args", "warmup_ratio"): (
        "rewrite",
        "warmup_steps=<fraction below 1>",
        "one keyword only: a warmup_steps above 0 won before; 1.0 would mean one step",
    ),
    ("training_args", "optim"): (
        "keep",
        "optim=",
        'write "adamw_torch" where none was given: the native default is fused',
    ),
    ("training_args", "dataloader_drop_last"): (
        "keep",
        "dataloader_drop_last=",
        "the number of steps may differ by one with several processes",
    ),
    ("training_args", "resume_from_checkpoint"): (
        "drop",
        "",
        "the native trainer ignores the field; give it to train()",
    ),
    ("trainer", "tokenizer"): (
        "rename",
        "processing_class=",
        "0.4.x lost a tokenizer given alone: natively it chooses the collator too",
    ),
    ("trainer", "compute_loss_func"): (
        "keep",
        "compute_loss_func=",
        "0.4.2 and later took it and never called it: drop it there",
    ),
    ("trainer", "compute_loss"): (
        "keep",
        "compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None)",
        "num_items_in_batch has to be a parameter; overrides in 0.4.0 and 0.4.1 were never called",
    ),
    ("trainer", "train_step"): (
        "rewrite",
        "training_step(self, model, inputs, num_items_in_batch=None)",
        "never called natively",
    ),
    ("sft_config", "max_seq_length"): ("rename", "max_length=", "0.4.2 and later refused it"),
    ("sft_config", "loss_type"): ("keep", "loss_type=", 'was ignored before: write "nll", review'),
    ("sft_config", "packing"): (
        "keep",
        "packing=",
        'up to 0.4.1 blocks of one length: packing_strategy="wrapped"; later packing attended across '
        "samples, which "
        "no native strategy does: review",
    ),
    ("sft_config", "neftune_noise_alpha"): (
        "keep",
        "neftune_noise_alpha=",
        "never active in 0.4.x: drop it there",
    ),
    ("sft_trainer", "formatting_func"): (
        "keep",
        "formatting_func=",
        "has to return one text for one example; up to 0.4.1 without packing it got a batch and returned a "
        "list",
    ),
    ("sft_trainer", "compute_loss_func"): (
        "drop",
        "",
        "was taken and never called",
    ),
    ("orpo", "max_length"): (
        "keep",
        "max_length=",
        "write 512 where none was given; the native default is 1024",
    ),
    ("orpo", "learning_rate"): (
        "keep",
        "learning_rate=",
        "write 5e-5 where none was given; the native default is 1e-6",
    ),
    ("orpo", "max_prompt_length"): (
        "manual",
        "",
        "gone: cut prompts to 128 tokens in the dataset for the old numbers",
    ),
    ("training.from_pretrained", "attn_implementation"): (
        "rewrite",
        "attn_implementation=",
        '"flash_attention_2" was the NKI kernel: write "sdpa"; where none was given it was "eager"',
    ),
    ("pipeline", "device"): (
        "insert",
        'device="neuron"',
        "without it the pipeline moves even a model on the device back to the CPU",
    ),
}
"""Argument rows that the pages by release correct: table and argument -> action, native, note."""

SHARED_OVERRIDES = {"training_args": ("sft_config", "orpo"), "trainer": ("sft_trainer", "orpo")}
"""Tables that repeat the rows of another, and so its corrections."""

NOTES: dict[str, str] = {
    "base classes": "",
    "abstract base": "it was an abstract base",
    "abstract base until 0.1.0": "it was an abstract base",
    "internal parts": "",
    "main only": "",
    "main only (after 0.4.5)": "",
    "concrete NxD decoder classes: same treatment as the auto class": "",
    "wrapper part; native component is pipe.transformer": "it is `pipe.transformer` of the pipeline",
    "wrapper part; native component is pipe.unet": "it is `pipe.unet` of the pipeline",
    "wrapper part; pipe.text_encoder": "it is `pipe.text_encoder` of the pipeline",
    "wrapper part; pipe.image_encoder": "it is `pipe.image_encoder` of the pipeline",
    "natively one module, pipe.vae; no separate vae_encoder/vae_decoder": "encoder and decoder are one "
    "module, "
    "`pipe.vae`",
    "base class used for isinstance checks or subclassing; no TorchScript artefact natively": "there is no "
    "compiled model to be a base of",
    "training metrics of 0.4.2+; write a callback or use include_num_input_tokens_seen": "write a callback, "
    "or use "
    "include_num_input_tokens_seen",
    "custom parallelizers -> tp_plan on the model": "write a tensor-parallel plan for the model",
    "removed with optimum.neuron.distributed in 0.2.1; use a tp_plan": "write a tensor-parallel plan for "
    "the model",
    "generic patch helpers (0.0.5+)": "",
    "SageMaker vLLM container variables (0.4.0+), one per optimum-cli neuron serve option": "the container "
    "of "
    "Optimum Neuron read it",
    "TGI container variables (docs until 0.4.4): TP size, max-num-seqs, max-model-len": "the text-generation "
    "container read it",
    "XLA FSDP -> FSDP2": "with `fsdp_version=2`",
    "group variants: torch.distributed.broadcast_object_list(group=...)": "for a group "
    "`torch.distributed.broadcast_object_list(group=...)`",
    "group variants: torch.distributed.all_gather_object(group=...)": "for a group "
    "`torch.distributed.all_gather_object(group=...)`",
    "TP natively supported (FluxTransformer2DModel has a _tp_plan)": "its transformer has a tensor-parallel "
    "plan",
    "diffusers 0.42.1 carries explicit neuron branches here": "",
    "no neuron branch in 0.42.1: timesteps stay on the device": "",
    "version checks; keep only torch / torch-neuronx": "if the version matters at all",
    "getattr(torch, name)": "`getattr(torch, name)` gives it",
    "image was resized to the compiled height x width by the wrapper; "
    "native uses the image size as given": "resize images to the old size first, with `Image.LANCZOS`",
    "native output has more fields (e.g. auxiliary outputs) besides "
    "logits/pred_boxes/last_hidden_state": "its output has more fields",
    "input keeps shape (batch, num_choices, seq)": "",
    "test decorators": "",
    "fixed padding to max_length -> pad_to_multiple_of (SFTConfig "
    'default "auto" is 128 on neuron)': "padding to one length is `pad_to_multiple_of=` of SFTConfig",
    # Arguments.
    "a revision of a compiled repo is not a revision of the original repo: DROP it when the id is "
    "replaced": "drop it when the id of a compiled repository is replaced",
    "inf2/trn1/trn1n targets have no native support: report as MANUAL": "inf2, trn1 and trn1n have no "
    "native backend",
    "only when N > 1 and the architecture has a TP plan (encoders such as BERT, CLIP, ViT have none: "
    "MANUAL); launch "
    "with torchrun --nproc-per-node N; excludes device_map": "only for N above 1 and architectures with a "
    "plan, which "
    "BERT, CLIP and ViT lack; start with torchrun; excludes device_map",
    "resolve the dict literal and treat each key by this table; if it is not a literal in the same file: "
    "MANUAL": "each key is treated like an argument; by hand where the dictionary is built elsewhere",
    "export(load_weights=False) only compiled; a following save_pretrained/push is MANUAL": "False only "
    "compiled: drop "
    "the call",
    "if it names a compiled artefact (folder with *.neuron / model.pt + neuron_config.json, hub id "
    "*-neuronx): MANUAL, "
    "put the original checkpoint id back": "put the original checkpoint back if it names a compiled one",
    "only models with a _tp_plan (Flux, Flux2, QwenImage); SD/SDXL/PixArt: MANUAL": "only Flux and "
    "QwenImage have a "
    "plan; the others run on one device",
    "at load it only sized the graph; the call-time value decides (a call without it made 1 image or failed "
    "the shape "
    "check): KEEP it there": "it only sized the graph: the value of the call decides",
    "default 1 from 0.4.0 (8 before, 8 natively): INSERT 1 when absent in 0.4 code": "write 1 where none "
    "was given in "
    "0.4.x; before and natively it is 8",
    'default all installed -> "none": INSERT report_to="all"': 'write "all" where none was given; the '
    "native default "
    "is none",
    'default "adamw_torch" -> "adamw_torch_fused": INSERT optim="adamw_torch"': 'write "adamw_torch" where '
    "none was "
    "given: the native default is fused",
    'default "info" in 0.4+ -> "passive"': 'write "info" where none was given in 0.4.x; the native default '
    "is passive",
    "default False -> True": "write False where none was given",
    '"question-answering" removed: SHIM helper or manual code; see task table': '"question-answering" is '
    "gone from "
    "Transformers 5: call the model by hand",
    "None -> INSERT the old default id (see table); a compiled id or folder: MANUAL": "write the old "
    "default where none "
    "was given; put the original checkpoint back if it names a compiled one",
    "natively the default is 1; optimum took the compiled batch size, so INSERT it": "write the compiled "
    "batch size "
    "where none was given; the native default is 1",
    'sequence_length -> pass padding="max_length", max_length=N to the call (tokenize kwargs) when shape '
    "stability "
    "matters": "longer texts were refused: give truncation=True to the call where they have to pass",
    "INSERT False when absent (native default None, which turns bf16 on where supported)": "write False "
    "where none was "
    "given; the native default turns it on",
    "INSERT False when absent (native SFTConfig default True)": "write False where none was given; the "
    "native default "
    "is True",
    "INSERT 5e-5 when absent (native 2e-5)": "write 5e-5 where none was given; the native default is 2e-5",
    "INSERT 500 when absent (native 10)": "write 500 where none was given; the native default is 10",
    'INSERT .to("neuron") on tensor inputs; outputs live on neuron, INSERT .cpu() before numpy()': "tensors "
    "move to the "
    "device; outputs come back with .cpu() before numpy",
    '"none" or unset: load dtype=torch.float32; "matmul"/"all": see auto_cast_type': '"none" or unset: '
    "dtype=torch.float32; else auto_cast_type says it",
    "moves to the tokenizer call to keep one shape; inputs longer than N used to raise ValueError": "leave "
    "the tokenizer "
    "call alone: the wrapper padded and cut back by itself, and refused longer inputs",
    "inputs may stay on CPU: transformers 5.24 moves them right before forward; beams and "
    "return_dict_in_generate become "
    "usable": "inputs stay on the CPU, and so does the result",
    'inputs may stay on CPU for generate(); a direct forward call needs .to("neuron")': "inputs have to be "
    "moved to the "
    "device",
    "keep the value as the padding batch if shape stability matters": "any batch size works; each new one "
    "compiles once",
    "wrapper overrode call-time values with the compiled ones; for img2img/pix2pix/controlnet resize the "
    "image to (W, H) "
    "instead, those calls have no height/width": "the compiled size was used whatever the call said: write "
    "it into the "
    "call; for img2img and instruct-pix2pix resize the image with `Image.LANCZOS`",
    "eval_dataset raised RuntimeError in 0.4.x, so eval code is often commented out": "",
    "pad_token is deprecated in trl 1.16 (set tokenizer.pad_token)": "",
    "compute_loss/training_step gained num_items_in_batch; xm.mark_step inside overrides must go": "an "
    "override needs "
    "the native signature",
    "meaning changes: optimum cast the whole model to bf16 (unless use_autocast/amp); native is autocast "
    "over the loaded "
    "dtype": "natively it is autocast over the dtype that was loaded; the whole model was cast before",
    "optimum returned a torch.Tensor on CPU; add .cpu() after it": "the result was a tensor on the CPU: add "
    ".cpu()",
}
"""Notes of the inventories in other words; empty where they are for nobody else."""

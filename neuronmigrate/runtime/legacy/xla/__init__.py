"""torch_xla as Neuron scripts use it: one device a process, steps that are logged, collectives over gloo.

The semantics are those of torch_xla 2.1 to 2.9 (`core/xla_model.py`, `runtime.py`,
`distributed/parallel_loader.py` of the released wheels). What is not here: SPMD, FSDP, the compiler's views.
"""

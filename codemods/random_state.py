"""Random streams of torch_xla: `xm.set_rng_state(seed)` and `torch_xla.manual_seed(seed)`.

The old generator had an integer for its whole state, so setting it was seeding. Natively
`torch.manual_seed` seeds the device as well, and `torch.neuron.manual_seed` the device alone. The streams
are others, so no dropout mask and no sample is the same. A state that is read is a tensor of bytes now,
which is said.
"""

from __future__ import annotations

from neuronmigrate.codemod import Call, Codemod
from neuronmigrate.plan import Numerics

codemod = Codemod(__name__)

codemod.symbol(
    "torch_xla.core.xla_model.fork_rng",
    Call('torch.random.fork_rng(device_type="neuron")', args=("device",), dropped=("device",)),
    because="the stream of the device is put back after the block",
    numerics=Numerics.RANDOM,
)
codemod.symbol(
    "torch_xla.core.xla_model.get_rng_state",
    Call("torch.neuron.get_rng_state()", args=("device",), dropped=("device",)),
    because="the device keeps the state of its random stream",
    todo="the state is a tensor of bytes, not an integer: set it with `torch.neuron.set_rng_state`, and drop "
    "integers that checkpoints hold",
    numerics=Numerics.RANDOM,
)
codemod.symbol(
    "torch_xla.core.xla_model.set_rng_state",
    Call("torch.neuron.manual_seed({seed})", args=("seed", "device"), dropped=("device",)),
    because="the integer was a seed",
    numerics=Numerics.RANDOM,
)
codemod.symbol(
    "torch_xla.manual_seed",
    Call("torch.neuron.manual_seed({seed})", args=("seed", "device"), dropped=("device",)),
    because="it seeds the device alone, as before",
    numerics=Numerics.RANDOM,
)

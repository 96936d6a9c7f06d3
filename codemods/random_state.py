"""Random streams of torch_xla: `xm.set_rng_state(seed)` and `torch_xla.manual_seed(seed)`.

The old generator had an integer for its whole state, so setting it was seeding. Natively
`torch.manual_seed` seeds the device as well, and `torch.neuron.manual_seed` the device alone. The streams
are others, so no dropout mask and no sample is the same. A state that is read is a tensor of bytes now,
which is said, and where one is set again it is `torch.neuron.set_rng_state`.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod
from neuronmigrate.effects import forget
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

READ = "torch_xla.core.xla_model.get_rng_state"
SET = "torch_xla.core.xla_model.set_rng_state"

codemod.symbol(
    "torch_xla.core.xla_model.fork_rng",
    Call('torch.random.fork_rng(device_type="neuron")', args=("device",), dropped=("device",)),
    because="the stream of the device is put back after the block",
    numerics=Numerics.RANDOM,
)
codemod.symbol(
    READ,
    Call("torch.neuron.get_rng_state()", args=("device",), dropped=("device",)),
    because="the device keeps the state of its random stream",
    todo="the state is a tensor of bytes, not an integer: check what sets it, and drop integers that "
    "checkpoints hold",
    numerics=Numerics.RANDOM,
)
codemod.symbol(
    "torch_xla.manual_seed",
    Call("torch.neuron.manual_seed({seed})", args=("seed", "device"), dropped=("device",)),
    because="it seeds the device alone, as before",
    numerics=Numerics.RANDOM,
)


@codemod.uses([SET])
def decide(site: Site, use: Use) -> None:
    """Seed the device, or put a state back that was read before."""
    call = use.call
    if call is None or use.method:
        todo = "pass `torch.neuron.manual_seed`, or `torch.neuron.set_rng_state` for states that were read"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, ("seed", "device"))
    seed, device = bound.value("seed"), bound.value("device")
    if seed is None or bound.spread or bound.extra:
        todo = "write `torch.neuron.manual_seed(seed)`"
        site.mark(call, use.name, "its arguments cannot be seen from here", todo)
        return
    made = site.flow.origin_of(seed)
    states = [each.name == READ for each in made.producers]
    group = site.group(use)
    is_state = made.certain and bool(states) and all(states)
    function = "set_rng_state" if is_state else "manual_seed"
    group.replace(call, group.expression(f"torch.neuron.{function}({{seed}})", seed=seed))
    if device is not None:
        for each in site.uses:
            if device in (each.whole, *site.ancestors(each.node)):
                site.settled.add(each)
        forget(site, device)
    if is_state:
        group.fixed(call, use.name, "the state that was read is put back", numerics=Numerics.RANDOM)
    elif any(states) or not (made.certain or _is_seed(seed)):
        todo = "where it is a state that was read, a tensor of bytes now, write `torch.neuron.set_rng_state`"
        group.review(call, use.name, "the integer was a seed", todo, numerics=Numerics.RANDOM)
    else:
        group.fixed(call, use.name, "the integer was a seed", numerics=Numerics.RANDOM)


def _is_seed(value: cst.BaseExpression) -> bool:
    """Whether a value is called a seed, or counted from one."""
    code = edits.code_of(value).lower()
    return "seed" in code or isinstance(value, (cst.Integer, cst.BinaryOperation))

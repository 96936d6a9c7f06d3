"""What is certain about the process group, place by place."""

from __future__ import annotations

from textwrap import dedent

import libcst as cst
import pytest

from neuronmigrate.config import Settings
from neuronmigrate.flow import Flow
from neuronmigrate.names import Names
from neuronmigrate.positions import Positions
from neuronmigrate.processes import Group, group_at
from neuronmigrate.project import Project
from neuronmigrate.site import Site

IMPORTS = "import torch.distributed as dist\n"
START = 'dist.init_process_group("neuron")'
SCRIPT = '\nif __name__ == "__main__":\n    main()\n'

# Code, and what is certain where `here()` is called.
CASES = {
    "after, in the module": (f"{START}\nhere()", Group.STANDS),
    "before, in the module": (f"here()\n{START}", Group.ABSENT),
    "never started": ("here()", Group.ABSENT),
    "as an argument of the start": ("dist.init_process_group(rank=here())", Group.ABSENT),
    "in a block after it": (f"{START}\nfor _ in range(3):\n    here()", Group.STANDS),
    "started in a with": (f"with lock:\n    {START}\nhere()", Group.STANDS),
    "started on one side": (f"if many:\n    {START}\nhere()", Group.UNKNOWN),
    "started on both sides": (f"if many:\n    {START}\nelse:\n    {START}\nhere()", Group.STANDS),
    "started on three sides": (
        f"if a:\n    {START}\nelif b:\n    {START}\nelse:\n    {START}\nhere()",
        Group.STANDS,
    ),
    "started unless it was": (f"if not dist.is_initialized():\n    {START}\nhere()", Group.STANDS),
    "asked before it is started": (f"here()\nif not dist.is_initialized():\n    {START}", Group.UNKNOWN),
    "started in a loop": (f"for _ in many:\n    {START}\nhere()", Group.UNKNOWN),
    "earlier in a loop that starts it": (f"for _ in many:\n    here()\n    {START}", Group.UNKNOWN),
    "in a loop before the start": (f"for _ in many:\n    here()\n{START}", Group.ABSENT),
    "started sometimes, later in a loop": (
        f"for _ in many:\n    here()\n    if many:\n        {START}",
        Group.UNKNOWN,
    ),
    "started in a try that goes on": (f"try:\n    {START}\nexcept OSError:\n    pass\nhere()", Group.UNKNOWN),
    "started in a try that raises": (f"try:\n    {START}\nexcept OSError:\n    raise\nhere()", Group.STANDS),
    "ended": (f"{START}\ndist.destroy_process_group()\nhere()", Group.UNKNOWN),
    "before it is ended": (f"{START}\nhere()\ndist.destroy_process_group()", Group.STANDS),
    "another library may have": ("import accelerate\naccelerate.Accelerator()\nhere()", Group.UNKNOWN),
    "another function of that name": (
        "def init_process_group(): ...\ninit_process_group()\nhere()",
        Group.ABSENT,
    ),
    "in a function, after": (f"def main():\n    {START}\n    here()", Group.STANDS),
    "in a function, before": (f"def main():\n    here()\n    {START}", Group.ABSENT),
    "in a function that others call": ("def f():\n    here()", Group.UNKNOWN),
    "defined after the start": (f"{START}\ndef f():\n    here()", Group.STANDS),
    "in a method": (
        f"class A:\n    def f(self):\n        here()\ndef main():\n    {START}\n    A().f()",
        Group.UNKNOWN,
    ),
    "in a method defined after": (f"{START}\nclass A:\n    def f(self):\n        here()", Group.STANDS),
    "in a class body": (f"{START}\nclass A:\n    rank = here()", Group.STANDS),
    "in a default": (f"def f(rank=here()): ...\n{START}", Group.ABSENT),
    "in a lambda": (f"{START}\nask = lambda: here()", Group.UNKNOWN),
    "in a comprehension": (f"{START}\n[here() for _ in many]", Group.STANDS),
    "started by a function": (
        f"def setup():\n    {START}\ndef main():\n    setup()\n    here()",
        Group.STANDS,
    ),
    "started by functions": (
        f"def a():\n    {START}\ndef b():\n    a()\ndef main():\n    b()\n    here()",
        Group.STANDS,
    ),
    "before a function starts it": (f"def setup():\n    {START}\nhere()\nsetup()", Group.ABSENT),
    "started by a function or not": (
        f"def setup():\n    if many:\n        return\n    {START}\ndef main():\n    setup()\n    here()",
        Group.UNKNOWN,
    ),
    "called by a script, after": (
        f"def f():\n    here()\ndef main():\n    {START}\n    f(){SCRIPT}",
        Group.STANDS,
    ),
    "called by a script, before and after": (
        f"def f():\n    here()\ndef main():\n    f()\n    {START}\n    f(){SCRIPT}",
        Group.UNKNOWN,
    ),
    "called by a module, after": (f"def f():\n    here()\ndef main():\n    {START}\n    f()", Group.UNKNOWN),
    "passed on by a script": (
        f"def f():\n    here()\ndef main():\n    {START}\n    f()\n    launch(f){SCRIPT}",
        Group.UNKNOWN,
    ),
    "in a recursion": (
        f"def f(n):\n    here()\n    f(n - 1)\ndef main():\n    {START}\n    f(3){SCRIPT}",
        Group.STANDS,
    ),
    "in a recursion of two": (
        f"def f(n):\n    g(n)\ndef g(n):\n    here()\n    f(n)\ndef main():\n    {START}\n    f(3){SCRIPT}",
        Group.STANDS,
    ),
    "nested, defined after": (
        f"def main():\n    {START}\n    def f():\n        here()\n    f()",
        Group.STANDS,
    ),
}


def _site(code: str) -> Site:
    module = cst.parse_module(code)
    names = Names(module)
    return Site("m.py", module, names, Flow(names), Positions(module), Project.empty(), Settings())


@pytest.mark.parametrize(("code", "expected"), CASES.values(), ids=CASES)
def test_group_at(code: str, expected: Group) -> None:
    site = _site(IMPORTS + dedent(code) + "\n")
    (call,) = [
        call for call in site.names.calls if isinstance(call.func, cst.Name) and call.func.value == "here"
    ]
    assert group_at(site, call) is expected
    # What was found out for one place does not change what is found out again.
    assert group_at(site, call) is expected

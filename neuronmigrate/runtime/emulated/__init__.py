"""A `neuron` device on CPU memory: real PrivateUse1 tensors, computed by PyTorch's CPU kernels.

It shows that a program runs and computes what the CPU computes. It says nothing about a Trainium's
numerics, speed, memory or operators.
"""

from __future__ import annotations

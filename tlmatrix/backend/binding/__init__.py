"""Binds a spec to the code it names, and calls that code on a problem.

`bind` imports the `entry` or `factory`; each module handles one form of it:

- `calls`: a function, `Function.apply`, an operator of `torch.library`, or a class of `nn.Module`,
  whose parameters are inputs;
- `binding`: TileLang functions that return kernels.

`execute` calls it on a problem and returns named outputs and their gradients.
"""

from __future__ import annotations

from tlmatrix.backend.binding.binding import Binding, bind
from tlmatrix.backend.binding.calls import PreparedCall
from tlmatrix.backend.binding.execution import execute

__all__ = ["Binding", "PreparedCall", "bind", "execute"]

"""Between a spec and the code it names: what is called, with which arguments, giving what.

`bind` finds what `entry` or `factory` names and how it is called; a module each knows one form:

- `entries`: a function, `Function.apply`, an operator of `torch.library`;
- `modules`: a class of `nn.Module`, whose parameters are inputs;
- `factories`: TileLang's, which make kernels.

`execute` calls it on a problem and gives named outputs and their gradients.
"""

from __future__ import annotations

from tlmatrix.backend.binding.binding import Binding, bind
from tlmatrix.backend.binding.execution import execute
from tlmatrix.backend.binding.launches import Launch

__all__ = ["Binding", "Launch", "bind", "execute"]

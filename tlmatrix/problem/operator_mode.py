"""A dispatch mode of PyTorch that sees each operator which a reference calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Mapping


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `run` in place of each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: skipping dynamo would import all of torch.compile, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator overload, which torch does not name
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call `run`."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Call the operator."""
        return func(*args, **kwargs)

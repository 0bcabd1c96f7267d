"""The events of emission, at which an instrument writes lines of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .emitter import Emitter


class Instrument:
    """The half of an observer that is woven into a program: a sanitizer, coverage, a recorder.

    A program is emitted with any list of instruments. Every method has `e`, the emitter, and may
    write lines to `e.w`; those here write none. Types: `access` is an `access.Access`, `buf` a
    `buffers.Buf`, `op` a `tiles.TileOperation`, `region` a `regions.BufferRegion`.

    Accesses come by one protocol: `access` for reads, writes and atomics, unless one of the
    methods for a kind of access is overridden; `before_tile` and `after_tile` for tile operations.

    Attributes:
        name: by which `program.Options` choose it; the program keeps its plan by this name.
        argument: the name of the argument that the program takes for its other half, if any.
        reserved: names that its lines use, besides the argument.
        functions: functions that its lines call, by name.
        reports_bounds: whether it reports accesses outside, which are then skipped.
        sees_reads: whether a read must be emitted where the kernel reads.
        sees_every_read: whether reads may not be shared within a block.
        sees_values: whether values may not be computed in the memory they are stored to.
        sees_comparisons: whether comparisons may not be decided by what is known of their sides.
        sees_writes: whether all writes must be emitted.
    """

    name: ClassVar[str] = ""
    argument: ClassVar[str] = ""
    reserved: ClassVar[tuple[str, ...]] = ()
    functions: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    reports_bounds = False
    sees_reads = False
    sees_every_read = False
    sees_values = False
    sees_comparisons = False
    sees_writes = False

    def plan(self, e: Emitter) -> Any:
        """Facts of the emitted program that the observer needs at run time; None without any."""

    def parameters(self, e: Emitter) -> None:
        """The buffers of the parameters are known."""

    def grid(self, e: Emitter) -> None:
        """The loops of a grid are about to start."""

    def block(self, e: Emitter, indices: list[Any]) -> None:
        """A block starts; `indices` are the variables of its index in the grid."""

    def allocated(self, e: Emitter, buf: Any) -> None:
        """A buffer was allocated."""

    def viewed(self, e: Emitter, whole: Any, view: Any) -> None:
        """A view of another shape or dtype was made of a buffer."""

    def before_statement(self, e: Emitter, node: Any) -> None:
        """A statement is about to be written."""

    def after_statement(self, e: Emitter, node: Any) -> None:
        """A statement was written."""

    def before_rule(self, e: Emitter, node: Any) -> None:
        """A statement is about to be written, where one role does what several do together."""

    def after_rule(self, e: Emitter, node: Any) -> None:
        """A statement was written, where one role does what several do together."""

    def before_loop(self, e: Emitter, node: Any, ranged: str) -> None:
        """A serial loop is about to start; `ranged` are the arguments of its range, if any."""

    def iteration(self, e: Emitter, node: Any, name: str) -> None:
        """An iteration of a serial loop starts; `name` is its variable, if it has one."""

    def after_loop(self, e: Emitter, node: Any) -> None:
        """A serial loop has ended, by itself or by a jump."""

    def private_copies(self, e: Emitter, buf: Any, copies: Any) -> None:
        """A local buffer was given one copy for each iteration of a parallel loop."""

    def merged_copies(self, e: Emitter, buf: Any, copies: Any) -> None:
        """The copies of a local buffer became one again."""

    def guard(self, e: Emitter, kind: str, condition: Any, test: Any) -> Any:
        """`test`, the value of `condition`, is about to decide an "if" or a "select"."""
        del e, kind, condition
        return test

    def mask(self, e: Emitter, condition: Any, test: Any) -> Any:
        """`test`, the value of the condition of a branch, is about to become a mask."""
        del e, condition
        return test

    def choice(self, e: Emitter, condition: Any) -> None:
        """A stored value is about to be chosen by a condition."""

    def access(self, e: Emitter, access: Any, action: str) -> None:
        """Elements are about to be accessed; `action` is "read", "write" or "atomic"."""

    def read(self, e: Emitter, access: Any) -> None:
        """Iterations are about to read."""
        self.access(e, access, "read")

    def read_scalar(self, e: Emitter, access: Any, code: str) -> str:
        """A single element is read by `code`, in the middle of an expression."""
        self.access(e, access, "read")
        return code

    def read_variable(self, e: Emitter, buf: Any, code: str) -> str:
        """A variable is read by `code`."""
        del e, buf
        return code

    def recalled(self, e: Emitter, var: Any, value: Any) -> None:
        """A bound variable is used."""

    def bound(self, e: Emitter, var: Any, value: Any) -> None:
        """A variable was bound."""

    def before_write(self, e: Emitter, access: Any, result: Any, value: Any) -> None:
        """`result`, the value of the expression `value`, is about to be stored."""
        del result, value
        self.access(e, access, "write")

    def after_write(self, e: Emitter) -> None:
        """The store or atomic was written."""

    def before_assignment(self, e: Emitter, buf: Any, result: Any) -> None:
        """`result` is about to be assigned to a variable."""

    def after_assignment(self, e: Emitter, buf: Any) -> None:
        """A variable was assigned."""

    def before_atomic(self, e: Emitter, access: Any, result: Any, *, previous: bool) -> None:
        """An atomic is about to be done; with `previous` its old value is used."""
        del result, previous
        self.access(e, access, "atomic")

    def before_tile(self, e: Emitter, op: Any) -> None:
        """A tile operation is about to be written."""

    def after_tile(self, e: Emitter, op: Any) -> None:
        """A tile operation was written."""

    def before_view(self, e: Emitter, region: Any) -> None:
        """A region is about to be used that nothing guards."""

    def copied_element(self, e: Emitter, buf: Any, index: str, mask: str, *, write: bool) -> None:
        """Each thread is about to copy one element."""

    def overwritten(self, e: Emitter, buf: Any) -> None:
        """All elements of a buffer were written."""

    def integer(self, e: Emitter, value: Any, wrapped: Any) -> Any:
        """`value`, a scalar of a signed dtype, becomes `wrapped` if it has left its dtype."""
        del e, value
        return wrapped

    def integers(self, e: Emitter, value: Any) -> None:
        """`value`, affine in the parallel axes, was computed and may have left its dtype."""

    def snapshot(self) -> Any:
        """The state to go back to where code is emitted a second time."""

    def restore(self, saved: Any) -> None:
        """Go back to a state."""

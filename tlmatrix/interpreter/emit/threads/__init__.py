"""Blocks whose threads do different things: a generator function for each warp role.

The body of a block is emitted once a role, with every condition on the thread index decided for
the role's threads. A role whose threads differ in what they compute has a thread axis, like the
axis of a parallel loop; tile operations leave it. Statements that several roles do together are
done by the last that comes to them. Waits are yields; asynchronous operations become closures
that the scheduler calls when they complete.
"""

from .roles import Threads, threads_of

__all__ = ["Threads", "threads_of"]

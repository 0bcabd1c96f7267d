"""`tlmatrix new`: finds the interface of an operator or factory, and writes a spec for it."""

from tlmatrix.commands.new.command import new

__all__ = ["new"]

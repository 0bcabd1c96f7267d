"""`tlmatrix new`: what is observed of the code under test, recognized, and written as a spec."""

from tlmatrix.commands.new.command import new

__all__ = ["new"]

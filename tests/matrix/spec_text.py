"""Specs for tests of the matrix, from YAML text or from plain axes and constraints."""

from __future__ import annotations

import json
from textwrap import dedent

from tlmatrix.spec import parse_spec

HEAD = "name: tried\nproblem: attention\nentry: a_package.a_module:an_entry\n"


def spec_of(text):
    """A spec from the part of its text that follows name, problem and entry."""
    return parse_spec(HEAD + dedent(text), "tried.yaml")


def spec_from(axes, constraints=(), **rest):
    """A spec from data; constraints are expressions."""
    rules = [{"require": expr, "because": f"of {expr}"} for expr in constraints]
    data = {"axes": axes, "constraints": rules, **rest}
    return parse_spec(HEAD + "\n".join(f"{key}: {json.dumps(data[key])}" for key in data))

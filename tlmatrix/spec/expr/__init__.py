"""The expression language of specs: a parser, and evaluation."""

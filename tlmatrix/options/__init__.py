"""The options of commands, declared once.

`table` declares them. From it derive the parser of the command line
(`tlmatrix.commands.arguments`), the keys of `[tool.tlmatrix]` (`tlmatrix.config`), the options of
pytest (`tlmatrix.pytest_plugin`), and `RunOptions`: the values for a run, which its workers get.
"""

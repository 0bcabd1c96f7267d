"""Where programs meet the interpreter: TileLang's entry points, arguments, sessions, the device.

Nothing inside the interpreter imports this package.
"""

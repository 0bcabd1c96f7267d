"""Parameters and names of kernels that are built in several forms by one factory."""


def absent():
    """The annotation of a parameter that this form of a kernel lacks: it is None in the body."""


def named(name):
    """Decorator below `T.prim_func`: the name of the kernel."""

    def rename(function):
        function.__name__ = name
        return function

    return rename

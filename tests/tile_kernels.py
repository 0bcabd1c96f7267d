"""Kernels of tests, each written as the function that TileLang traces."""

import tilelang
import tilelang.language as T


def tile_kernel(function=None, **options):
    """A factory without arguments, as of `tilelang.jit`, of the kernel that a function is.

    `@tile_kernel(out_idx=[-1])` takes the options of `tilelang.jit`. The function is traced when
    the factory is called.
    """
    if function is None:
        return lambda found: tile_kernel(found, **options)

    @tilelang.jit(**options)
    def factory():
        return T.prim_func(function)

    return factory

"""Two parameters may have one name, in kernels that a program builds: each is watched as itself."""

import pytest
import tilelang
import tilelang.language as T
import torch
from tilelang import tvm

from jit_kernel import jit_kernel
from tlmatrix import interpret

tir = tvm.tirx
MARK = 0x7FDBADC5
"""What memory holds here before it is written."""


def shifted(number):
    """A kernel; those of different numbers are not one."""

    @T.prim_func
    def shifted(
        x: T.Tensor((16,), "float32"), y: T.Tensor((4,), "float32"), z: T.Tensor((8,), "float32")
    ):
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(8):
                z[i] = x[i + 8] + number
            for i in T.Parallel(4):
                y[i] = z[i] + 1

    return shifted


def renamed(func, names):
    """The kernel with parameters of other names."""
    new = {}
    for param in func.params:
        old = func.buffer_map[param]
        name = names.get(old.name, old.name)
        data = tir.Var(name, old.data.type_annotation)
        new[old] = tir.decl_buffer(old.shape, old.dtype, name, data=data, strides=old.strides)

    def changed(node):
        buffer = new.get(node.buffer)
        if buffer is None:
            return None
        if isinstance(node, tir.BufferLoad):
            return tir.BufferLoad(buffer, node.indices)
        return tir.BufferStore(buffer, node.value, node.indices)

    kinds = ["tirx.BufferLoad", "tirx.BufferStore"]
    body = tir.stmt_functor.ir_transform(func.body, None, changed, kinds)
    buffers = {param: new[func.buffer_map[param]] for param in func.params}
    return tir.PrimFunc(func.params, body, func.ret_type, buffers, func.attrs)


def blank(count):
    return torch.full((count,), MARK, dtype=torch.int32).view(torch.float32)


NAMES = ({}, {"y": "x"}, {"z": "x"}, {"y": "x", "z": "x"})


@pytest.mark.parametrize("case", range(len(NAMES)))
def test_every_parameter_is_watched_by_itself(case):
    poison = {torch.float32: MARK}
    with interpret(sanitize=True, on_report="keep", poison=poison) as session:
        kernel = tilelang.compile(renamed(shifted(case), NAMES[case]), out_idx=[])
        x, y, z = torch.arange(16.0), blank(4), blank(8)
        kernel(x, y, z)
        assert session.reports == []
        kernel(blank(16), y, z)
    assert y.isnan().all()
    (report, *_) = session.reports
    assert (report.sanitizer, report.buffer) == ("uninitialised", "x")
    assert len(kernel.usage) == 3


def test_a_report_tells_the_second_of_a_name_from_the_first():
    with interpret(sanitize=True, on_report="keep") as session:
        kernel = tilelang.compile(renamed(shifted(10), {"y": "x"}), out_idx=[])
        with pytest.raises(ValueError, match=r"argument x \(2\) must have shape\[0\] = 4, got 5"):
            kernel(torch.zeros(16), torch.zeros(5), torch.zeros(8))
    assert session.reports == []


@pytest.mark.parametrize("columns", [8, 5])
def test_parameters_matched_by_hand_without_strides_are_contiguous(columns):
    n = T.dynamic("n")

    @jit_kernel
    def copied(x: T.handle, y: T.handle):
        X = T.match_buffer(x, (n, 8), "float32")
        Y = T.match_buffer(y, (n, columns), "float32")
        with T.Kernel(n, threads=32) as row:
            for i in T.Parallel(columns):
                Y[row, i] = X[row, i]

    x, y = torch.randn(3, 8), torch.empty(3, columns)
    with interpret(sanitize=True, on_report="keep") as session:
        copied()(x, y)
        with pytest.raises(ValueError, match=r"strides\[0\] = 8.*pass a contiguous tensor"):
            copied()(torch.randn(8, 3).T, y)
    assert torch.equal(y, x[:, :columns])
    assert session.reports == []

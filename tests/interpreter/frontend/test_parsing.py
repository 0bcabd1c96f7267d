"""A kernel factory called again is not parsed again, and gives the kernel of its new arguments."""

import tilelang
import tilelang.language as T
import torch
from tilelang.language.eager import ast as eager

from tlmatrix.interpreter import interpret


@tilelang.jit(out_idx=[1])
def scaled(rows, factor):
    @T.prim_func
    def main(X: T.Tensor((rows,), "float32"), Y: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(rows):
                Y[i] = X[i] * factor

    return main


def test_each_call_of_a_factory_has_its_own_closure():
    with interpret():
        for rows, factor in ((4, 2.0), (8, 3.0), (4, -1.0)):
            x = torch.arange(float(rows))
            assert torch.equal(scaled(rows, factor)(x), x * factor)


def test_a_function_is_parsed_once_for_all_calls_of_its_factory(monkeypatch):
    visits = []
    visit = eager.DSLMutator.visit_FunctionDef

    def counted(self, node):
        visits.append(node.name)
        return visit(self, node)

    monkeypatch.setattr(eager.DSLMutator, "visit_FunctionDef", counted)

    @tilelang.jit(out_idx=[0])
    def filled(rows):
        @T.prim_func
        def parsed_once(Y: T.Tensor((rows,), "float32")):
            with T.Kernel(1, threads=32):
                T.fill(Y, 1.0)

        return parsed_once

    with interpret():
        assert [filled(rows)().numel() for rows in (3, 5, 7)] == [3, 5, 7]
    assert visits == ["filled", "parsed_once", "parsed_once"]  # in the factory, and itself


KERNEL = T.Kernel


def test_a_name_that_stands_for_another_object_is_parsed_again(monkeypatch):
    @tilelang.jit(out_idx=[0])
    def filled(rows):
        @T.prim_func
        def main(Y: T.Tensor((rows,), "float32")):
            with KERNEL(1, threads=32):
                T.fill(Y, 1.0)

        return main

    with interpret():
        assert filled(3)().tolist() == [1.0] * 3
        kernels = []

        def other(*args, **options):
            kernels.append(args)
            return T.Kernel(*args, **options)

        monkeypatch.setitem(globals(), "KERNEL", other)
        assert filled(5)().tolist() == [1.0] * 5
    assert kernels == [(1,)]

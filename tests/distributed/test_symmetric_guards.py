"""Canaries behind symmetric memory, as processes on GPUs have them; here on a simulated rank."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from tlmatrix import simulate
from tlmatrix.distributed.process import SymmetricGuards


def titles_of(misuse):
    """What guards find of what a rank does with a buffer of [3, 5] int32 and its handle."""

    def program(_rank):
        guards = SymmetricGuards()
        with guards.watching():
            buffer = symmetric.empty(3, 5, dtype=torch.int32)
            handle = symmetric.rendezvous(buffer, dist.group.WORLD)
            assert symmetric.rendezvous(buffer, dist.group.WORLD).rank == handle.rank
            misuse(buffer, handle)
            torch.cuda.synchronize()
            found = guards.findings()
            assert guards.findings() == [], "told once"
        return [finding.title for finding in found]

    return simulate(program, world=1, sanitize=False).results[0]


def within(buffer, handle):
    assert buffer.shape == (3, 5)
    buffer.fill_(7)
    assert symmetric.get_signal_pad_size() == 2048
    handle.get_signal_pad(0, (512,), torch.int32).fill_(1)


def behind_the_buffer(_buffer, handle):
    handle.get_buffer(0, (2,), torch.int32, 16).fill_(7)


def behind_the_pad(_buffer, handle):
    """A kernel that has the pad's address, and counts one flag a block, does this."""
    handle.get_signal_pad(0, (1,), torch.int32, 515).fill_(1)


@pytest.mark.parametrize(
    ("misuse", "titles"),
    [
        (within, []),
        (
            behind_the_buffer,
            [
                (
                    "out-of-bounds write: bytes 4-11 past the end of the symmetric int32 buffer "
                    "[3, 5] were overwritten, elements 16-17 of 15"
                )
            ],
        ),
        (
            behind_the_pad,
            [
                (
                    "out-of-bounds write: bytes 12-15 past the end of the signal pad of rank 0, "
                    "of 2048 bytes were overwritten, elements 515-515 of 512"
                )
            ],
        ),
    ],
)
def test_a_write_behind_symmetric_memory_names_the_rank_the_index_and_the_size(misuse, titles):
    assert titles_of(misuse) == titles


def test_the_size_of_the_signal_pad_is_the_one_that_the_entry_set():
    def misuse(_buffer, _handle):
        symmetric.set_signal_pad_size(64)
        assert symmetric.get_signal_pad_size() == 64
        other = symmetric.rendezvous(symmetric.empty(4), dist.group.WORLD)
        other.get_signal_pad(0, (1,), torch.int32, 16).fill_(1)

    (title,) = titles_of(misuse)
    assert "the signal pad of rank 0, of 64 bytes" in title
    assert title.endswith("elements 16-16 of 16")

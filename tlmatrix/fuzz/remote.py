"""Fuzz workers on other machines, which are connected to the pool by TCP.

A worker is a process of its own, whose exit code distinguishes a crash of the code under test from
the loss of the machine. Its records travel to the pool, which writes the results file.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.fuzz.pool import start_context
from tlmatrix.fuzz.worker import worker_main

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tlmatrix.fuzz.job import Settings

Address = tuple[str, int]


def serve_pool(address: Address, key: bytes, name: str, settings: Settings) -> int | None:
    """Run a worker for the pool that listens at `address`; returns its exit code.

    The working directory is the project's root; the paths of jobs are relative to it.
    """
    settings = replace(settings, roots=(Path.cwd(),))
    process = start_context().Process(target=_work, args=(address, key, name, settings))
    process.start()
    process.join()
    return process.exitcode


def _work(address: Address, key: bytes, name: str, settings: Settings) -> None:
    connection: Connection = Client(address, authkey=key)
    send_at_once(connection)
    connection.send(name)
    worker_main(connection, settings, "", sends_records=True)


def send_at_once(connection: Connection) -> None:
    """Send small messages without waiting for the acknowledgement of earlier ones."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

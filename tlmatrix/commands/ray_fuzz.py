"""`tlmatrix fuzz --ray`: the workers of a search are tasks of a Ray cluster.

Each task runs a worker process on its node, which connects to this process by TCP; a thread
forwards its messages to the pool. Ray's copy of the project is the working directory of a task.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
from contextlib import suppress
from multiprocessing.connection import Listener, wait
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.ray_cluster import connect, path_on_nodes, require_ray
from tlmatrix.commands.ray_waiting import Resources, Waiting
from tlmatrix.exit_codes import UsageError
from tlmatrix.fuzz.remote import send_at_once, serve_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from tlmatrix.config import Config
    from tlmatrix.fuzz.job import Settings

_TICK = 1.0
"""Seconds between two looks at the state of a task."""
_ENDING = 60.0
"""Seconds until Ray knows how a task ended whose connection is closed."""


class RayCluster:
    """Starts fuzz workers as tasks of a Ray cluster, each with a processor and perhaps a GPU.

    Attributes:
        backend: the backend of the workers.
        size: the number of tasks that the cluster runs at once.
    """

    def __init__(self, address: str, config: Config, backend: str, specs: Iterable[Path]) -> None:
        """Connect to the cluster at `address`.

        Raises:
            UsageError: Ray is not installed, the cluster cannot be reached or has no processor or
                GPU, or a spec is outside of the project's root.
        """
        require_ray()
        import ray

        if address.startswith("ray://"):
            raise UsageError(
                f"--ray {address}: not with Ray Client; run it on a node of the cluster"
            )
        for path in specs:
            path_on_nodes(path, config)
        connect(address, config)
        resources = ray.cluster_resources()
        if backend == "auto":
            backend = "cuda" if resources.get("GPU", 0) >= 1 else "interpreter"
        self.backend = backend
        self._gpus = int(backend == "cuda")
        self.size = int(resources.get("GPU" if self._gpus else "CPU", 0))
        if not self.size:
            ray.shutdown()
            kind = "GPU" if self._gpus else "processor"
            raise UsageError(f"--ray {address}: the cluster has no {kind} for a worker")
        self._key = secrets.token_bytes(32)
        self._listener = Listener((ray.util.get_node_ip_address(), 0), authkey=self._key)
        self._tasks: dict[str, _Task] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True, name="tlmatrix-ray").start()

    def watch(self, note: Callable[[str], None]) -> None:
        """Print a note of what tasks wait for, and end those that no node can run."""
        waiting = Waiting(note)
        needs = Resources(gpus=self._gpus)

        def look() -> None:
            while not self._closed.wait(_TICK):
                idle = [task for task in list(self._tasks.values()) if not task.begun]
                if len(idle) < len(self._tasks):
                    waiting.busy()
                why = waiting.in_vain({needs} if idle else set()).get(needs)
                for task in idle if why else ():
                    task.give_up(why or "")

        threading.Thread(target=look, daemon=True, name="tlmatrix-ray-watch").start()

    def start(self, settings: Settings, _gpu: str) -> tuple[_Task, Connection]:
        """Submit a task; messages to its worker wait until it runs."""
        import ray

        ours, theirs = multiprocessing.Pipe()
        name = f"{len(self._tasks)}"
        # Before the task is submitted, because its worker may connect at once.
        task = self._tasks[name] = _Task(theirs)
        remote = ray.remote(serve_pool).options(num_cpus=1, num_gpus=self._gpus, max_retries=0)
        task.begin(remote.remote(self._listener.address, self._key, name, settings))
        return task, ours

    def _accept(self) -> None:
        """Connect the workers that call, until the listener is closed."""
        while True:
            try:
                connection: Connection = self._listener.accept()
                send_at_once(connection)
                self._tasks[connection.recv()].connect(connection)
            except (multiprocessing.AuthenticationError, EOFError, KeyError, ConnectionError):
                continue
            except OSError:
                return

    def close(self) -> None:
        """Disconnect from the cluster, which ends the tasks."""
        import ray

        self._closed.set()
        self._listener.close()
        ray.shutdown()


class _Task:
    """A worker on the cluster, with the interface of a process.

    `exitcode` is that of the worker's process, and stays None if its node or its task was lost;
    `error` then has the reason.
    """

    def __init__(self, theirs: Connection) -> None:
        self.exitcode: int | None = None
        self.error = ""
        self._theirs = theirs
        self._remote: Connection | None = None
        self._connected = threading.Event()
        self._over = threading.Event()
        self._reference: Any = None

    def begin(self, reference: Any) -> None:  # noqa: ANN401 - a reference of Ray
        """Forward messages between the pool and the worker of a task."""
        self._reference = reference
        threading.Thread(target=self._forward, daemon=True, name="tlmatrix-ray-task").start()

    def connect(self, connection: Connection) -> None:
        """Take the connection of the worker."""
        self._remote = connection
        self._connected.set()

    @property
    def begun(self) -> bool:
        """Whether its worker has connected, or it is over."""
        return self._connected.is_set() or self._over.is_set()

    def give_up(self, why: str) -> None:
        """End a task that has not begun."""
        import ray

        self.error = why
        ray.cancel(self._reference, force=True)
        self._over.set()

    def kill(self) -> None:
        """End the task and with it the worker; nothing if it is over."""
        import ray

        if not self._over.is_set():
            self.exitcode = -9
            self._over.set()
            ray.cancel(self._reference, force=True)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the task is over."""
        self._over.wait(timeout)

    def _forward(self) -> None:
        """Forward messages until a side closes; the pool's side closes once the end is known."""
        with suppress(EOFError, OSError):
            while not self._connected.wait(_TICK):
                if self._ended():
                    break
            while (remote := self._remote) is not None and not self._over.is_set():
                ready = wait([self._theirs, remote], _TICK)
                if self._theirs in ready:
                    remote.send_bytes(self._theirs.recv_bytes())
                if remote in ready:
                    self._theirs.send_bytes(remote.recv_bytes())
                if not ready and self._ended():
                    break
        if self._remote is not None:
            self._remote.close()
        self._find_exit_code()
        self._theirs.close()

    def _ended(self) -> bool:
        import ray

        return self._over.is_set() or bool(ray.wait([self._reference], timeout=0)[0])

    def _find_exit_code(self) -> None:
        import ray

        if self._over.is_set():
            return
        try:
            self.exitcode = ray.get(self._reference, timeout=_ENDING)
        except Exception as error:  # noqa: BLE001 - Ray's errors, and those of the task
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.error = lines[-1] if len(lines) > 1 else lines[0]
        self._over.set()

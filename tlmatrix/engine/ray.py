"""Workers on a Ray cluster: each is a task, which runs a process on its node.

The process connects to the pool by TCP, and a thread forwards its messages; its exit code
distinguishes a crash of the code under test from the loss of the machine. Ray's copy of the project
is the working directory of a task, and the paths of jobs are relative to it.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.engine.server import start_context
from tlmatrix.engine.worker import worker_main
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from tlmatrix.config import Config
    from tlmatrix.engine.worker import Job, WorkerSettings

NOTE_AFTER = 10.0
"""Seconds without a task that runs, after which a note says what the tasks wait for."""
GIVE_UP_AFTER = 120.0
"""Seconds after which a task that no node could ever run is given up; a cluster may grow."""
_TICK = 1.0
"""Seconds between two looks at the state of a task."""
_ENDING = 60.0
"""Seconds until Ray knows how a task ended whose connection is closed."""
_EXCLUDED = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""Folders of a project that do not travel to the nodes; nor do its results."""


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        UsageError: it is not.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise UsageError("--ray: Ray is not installed; pip install 'tlmatrix[ray]'") from error


def path_on_nodes(path: Path, config: Config) -> str:
    """The path of a spec relative to the project's root.

    Raises:
        UsageError: it is outside of the root, which travels to the nodes.
    """
    path, root = path.resolve(), config.root.resolve()
    if not path.is_relative_to(root):
        raise UsageError(f"--ray: {path} is outside of {root}, which goes to the nodes")
    return path.relative_to(root).as_posix()


def _connect(address: str, config: Config) -> None:
    """Connect to a cluster, or start one on this machine; the project travels to its nodes."""
    import ray

    results = os.path.relpath(config.results, config.root)
    environment = {"working_dir": str(config.root), "excludes": [*_EXCLUDED, results]}
    try:
        ray.init(
            address=address or None, runtime_env=environment, log_to_driver=False,
            configure_logging=False, ignore_reinit_error=True,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"--ray {address}: {str(error).partition(chr(10))[0]}") from error


class RayCluster:
    """Places workers as tasks, each with a processor and the GPUs that its first job needs.

    Attributes:
        backend: the backend of the workers.
        gpus: the GPUs of a worker that needs one.
        size: the number of tasks that the cluster runs at once.
        place: the number of its nodes, in words.
    """

    def __init__(self, address: str, config: Config, backend: str) -> None:
        """Connect to the cluster at `address`.

        Raises:
            UsageError: Ray is not installed, or the cluster cannot be reached.
        """
        require_ray()
        import ray

        if address.startswith("ray://"):
            raise UsageError(
                f"--ray {address}: not with Ray Client; run it on a node of the cluster"
            )
        _connect(address, config)
        resources = ray.cluster_resources()
        if backend == "auto":
            backend = "cuda" if resources.get("GPU", 0) >= 1 else "interpreter"
        self.backend = backend
        self.gpus = int(backend == "cuda")
        self.size = int(resources.get("GPU" if self.gpus else "CPU", 0))
        self.place = _counted(sum(node["Alive"] for node in ray.nodes()), "Ray node")
        self._key = secrets.token_bytes(32)
        self._listener = Listener((ray.util.get_node_ip_address(), 0), authkey=self._key)
        self._tasks: dict[str, _Task] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True, name="tlmatrix-ray").start()

    def workers(self, given: str) -> int:
        """The number of workers of `-n`, by default as many as the cluster runs at once.

        Raises:
            UsageError: it runs none.
        """
        if given != "auto":
            return int(given)
        if not self.size:
            kind = "GPU" if self.gpus else "processor"
            raise UsageError(f"--ray: the cluster has no {kind} for a worker")
        return self.size

    def watch(self, note: Callable[[str], None]) -> None:
        """Print a note of what tasks wait for, and end those that no node can run."""
        waiting = Waiting(note)

        def look() -> None:
            while not self._closed.wait(_TICK):
                tasks = [task for task in list(self._tasks.values()) if not task.over]
                idle = [task for task in tasks if not task.begun]
                if len(idle) < len(tasks):
                    waiting.busy()
                in_vain = waiting.in_vain({task.needs for task in idle})
                for task in idle:
                    if (why := in_vain.get(task.needs)) is not None:
                        task.give_up(why)

        threading.Thread(target=look, daemon=True, name="tlmatrix-ray-watch").start()

    def start(
        self, settings: WorkerSettings, name: str, _gpu: str, job: Job
    ) -> tuple[_Task, Connection]:
        """Submit a task; messages to its worker wait until it runs."""
        import ray

        ours, theirs = multiprocessing.Pipe()
        needs = Resources(gpus=job.gpus)
        # Before the task is submitted, because its worker may connect at once.
        task = self._tasks[name] = _Task(theirs, needs)
        remote = ray.remote(_serve).options(num_cpus=needs.cpus, num_gpus=needs.gpus, max_retries=0)
        task.begin(remote.remote(self._listener.address, self._key, name, settings))
        return task, ours

    def _accept(self) -> None:
        """Connect the workers that call, until the listener is closed."""
        while True:
            try:
                connection: Connection = self._listener.accept()
                _send_at_once(connection)
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
    `error` then has the reason, and `refused` is whether no node could run it.
    """

    def __init__(self, theirs: Connection, needs: Resources) -> None:
        self.exitcode: int | None = None
        self.error = ""
        self.refused = False
        self.needs = needs
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
        """Whether its worker has connected."""
        return self._connected.is_set()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def give_up(self, why: str) -> None:
        """End a task that has not begun."""
        self.error, self.refused = why, True
        self._cancel()

    def kill(self) -> None:
        """End the task and with it the worker; nothing if it is over."""
        if not self.over:
            self.exitcode = -9
            self._cancel()

    def _cancel(self) -> None:
        import ray

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
            while (remote := self._remote) is not None and not self.over:
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

        return self.over or bool(ray.wait([self._reference], timeout=0)[0])

    def _find_exit_code(self) -> None:
        import ray

        if self.over:
            return
        try:
            self.exitcode = ray.get(self._reference, timeout=_ENDING)
        except Exception as error:  # noqa: BLE001 - Ray's errors, and those of the task
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.error = lines[-1] if len(lines) > 1 else lines[0]
        self._over.set()


def _serve(address: tuple[str, int], key: bytes, name: str, settings: WorkerSettings) -> int | None:
    """Run a worker for the pool that listens at `address`; returns its exit code."""
    settings = replace(settings, roots=(Path.cwd(),), environment=dict(os.environ))
    process = start_context().Process(target=_work, args=(address, key, name, settings))
    process.start()
    process.join()
    return process.exitcode


def _work(address: tuple[str, int], key: bytes, name: str, settings: WorkerSettings) -> None:
    connection: Connection = Client(address, authkey=key)
    _send_at_once(connection)
    connection.send(name)
    worker_main(connection, settings, name, "")


def _send_at_once(connection: Connection) -> None:
    """Send small messages without waiting for the acknowledgement of earlier ones."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# What tasks wait for ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """Processors and GPUs: those that a task needs on one node, or those of a node."""

    cpus: float = 1
    gpus: float = 0

    def fit(self, node: Resources) -> bool:
        """Whether a node has these resources, in use or not."""
        return self.cpus <= node.cpus and self.gpus <= node.gpus

    def __str__(self) -> str:
        parts = [_counted(self.cpus, "CPU")]
        if self.gpus:
            parts.append(_counted(self.gpus, "GPU"))
        return " and ".join(parts)


def _counted(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'s' * (number != 1)}"


@dataclass(frozen=True)
class ClusterState:
    """The resources of each node that is alive, and those of the cluster that are free."""

    nodes: Sequence[Resources]
    free: Resources

    @classmethod
    def now(cls) -> ClusterState:
        """The state of the connected cluster."""
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return cls([_of(each) for each in alive], _of(ray.available_resources()))

    def __str__(self) -> str:
        if not self.nodes:
            return "it has no node"
        return f"its nodes have {', '.join(sorted({str(node) for node in self.nodes}))}"


def _of(resources: Mapping[str, Any]) -> Resources:
    return Resources(resources.get("CPU", 0), resources.get("GPU", 0))


class Waiting:
    """Watches tasks that have not begun: Ray queues them, and does not say what they wait for.

    Args:
        note: prints a note.
        state: the state of the cluster.
        clock: seconds.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        *,
        state: Callable[[], ClusterState] = ClusterState.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note = note
        self._state = state
        self._clock = clock
        self._since = clock()
        self._noted = False
        self._impossible: dict[Resources, float] = {}
        self._looked = self._since

    def busy(self) -> None:
        """Call this when a task runs."""
        self._since = self._clock()
        self._noted = False

    def in_vain(self, needs: Iterable[Resources]) -> dict[Resources, str]:
        """Those of the `needs` of waiting tasks that no node has had for a while, each with why.

        Prints a note if no task has run for a while. The cluster is asked at most once a second.
        """
        now, needs = self._clock(), set(needs)
        if not needs or now - self._looked < 1:
            return {}
        self._looked = now
        state = self._state()
        lacking = {each for each in needs if not any(each.fit(node) for node in state.nodes)}
        self._impossible = {each: self._impossible.get(each, now) for each in lacking}
        if not self._noted and now - self._since >= NOTE_AFTER:
            self._noted = True
            self._note(self._words(needs, lacking, state))
        return {
            each: f"no node of the Ray cluster has {each}; {state}"
            for each, since in self._impossible.items()
            if now - since >= GIVE_UP_AFTER
        }

    def _words(self, needs: set[Resources], lacking: set[Resources], state: ClusterState) -> str:
        listed = ", ".join(sorted(map(str, lacking or needs)))
        if lacking:
            return (
                f"waiting for a node with {listed}; {state}. Without one the cases "
                f"fail {GIVE_UP_AFTER:g} s after the start; Ctrl-C stops"
            )
        total = Resources(
            sum(node.cpus for node in state.nodes), sum(node.gpus for node in state.nodes)
        )
        nodes = _counted(len(state.nodes), "node")
        return (
            f"no task has begun; each needs {listed} of a node, and {state.free} of {total} of "
            f"{nodes} are free. Workers start, or other work runs (`ray status` lists it); Ctrl-C "
            "stops"
        )

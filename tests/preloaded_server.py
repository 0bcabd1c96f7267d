"""The server of `preloaded_python`: has the imports of a run, and forks on request.

    python preloaded_server.py SOCKET COMMAND

It ends with the process that started it, which holds the other end of its standard input. Its
forks believe that their interpreter is COMMAND, so what they start is preloaded too.
"""

import atexit
import fcntl
import gc
import io
import marshal
import multiprocessing.spawn
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path

PRELOADED = (
    "tlmatrix.engine.preload",
    "tlmatrix.api",
    "tlmatrix.commands.fuzz",
    "tlmatrix.draft.sources",
    "tlmatrix.commands.cases",
    "tlmatrix.commands.run",
    "tlmatrix.plugin.items",
    "tlmatrix.plugin.reports",
    "tlmatrix.report.terminal",
    "pytest",
    "rich.console",
    "execnet",
    "multiprocessing.forkserver",
)
"""Modules of each fork. Kernels are not among them: a fork may have others on its path."""


class Server:
    """Forks on request; keeps which connection waits for which process."""

    def __init__(self, address):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address + ".new")
        self._listener.listen(64)
        self._woken, waking = os.pipe()
        self._waking = waking
        for end in (self._woken, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._processes = {}
        Path(address + ".new").rename(address)

    def serve(self):
        """Answer requests; returns in a fork, with its request, and ends when the input does."""
        while True:
            ready, _, _ = select.select([0, self._woken, self._listener, *self._processes], [], [])
            if 0 in ready and not os.read(0, 1):
                for process in self._processes.values():
                    _kill(process)
                os._exit(0)
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._send_exits()
            for connection in set(ready) & set(self._processes):  # the command was killed
                _kill(self._processes[connection])
            if self._listener in ready:
                request = self._accept()
                if request is not None:
                    return request

    def _accept(self):
        connection, _ = self._listener.accept()
        rights = []
        try:
            header, rights, _, _ = socket.recv_fds(connection, 8, 250)
            size, count = struct.unpack("ii", header)
            targets = struct.unpack(f"{count}i", _read(connection, 4 * count))
            request = _read(connection, size)
        except (EOFError, OSError, struct.error):  # the command was killed
            connection.close()
            for each in rights:
                os.close(each)
            return None
        process = os.fork()
        if process:
            for each in rights:
                os.close(each)
            self._processes[connection] = process
            with suppress(OSError):  # the command was killed: `serve` reads its end
                connection.sendall(struct.pack("i", process))
            return None
        self._leave()
        connection.close()
        _place(rights, targets)
        return marshal.loads(request)

    def _leave(self):
        """Close, in a fork, what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._waking)
        self._listener.close()
        for connection in self._processes:
            connection.close()

    def _send_exits(self):
        ended = {}
        for process in self._processes.values():
            number, status = os.waitpid(process, os.WNOHANG)
            if number:
                ended[process] = status
        for connection, process in list(self._processes.items()):
            if process in ended:
                del self._processes[connection]
                with connection, suppress(OSError):  # the command was killed
                    connection.sendall(struct.pack("i", ended[process]))


def _read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _kill(process):
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _place(files, targets):
    """Give files the descriptors that they have in the command."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 500) for each in files]
    for each in files:
        os.close(each)
    for each, target in zip(high, targets, strict=True):
        os.dup2(each, target, inheritable=True)
        os.close(each)
    for standard in {0, 1, 2} - set(targets):
        os.close(standard)


def become(words, environment, folder, ignored, leads, python):
    """Make this process what `python *words` would be; returns what it has to do."""
    # Whatever kills its group, as Ray that of a worker, must not kill the server and the tests.
    if leads:
        os.setsid()
    else:
        os.setpgid(0, 0)
    os.chdir(folder)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    words = list(words)
    while words[0] in {"-u", "-B"}:
        unbuffered |= words[0] == "-u"
        sys.dont_write_bytecode |= words[0] == "-B"
        del words[0]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_stream(number, name, unbuffered=unbuffered)
    sys.executable = sys._base_executable = python
    multiprocessing.spawn.set_executable(python)
    random.seed()
    # sys.path: the script's folder, PYTHONPATH, and the rest as here.
    rest = [each for each in sys.path if each not in before]
    given = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*given, *rest]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    match words:
        case ["-c", code, *more]:
            sys.argv[:] = ["-c", *more]
            sys.path.insert(0, "")
            return lambda: exec(compile(code, "<string>", "exec"), main.__dict__)
        case ["-m", module, *more]:
            sys.argv[:] = ["-m", *more]
            sys.path.insert(0, folder)
            return lambda: runpy._run_module_as_main(module)
        case [script, *more]:
            sys.argv[:] = [script, *more]
            sys.path.insert(0, str(Path(script).resolve().parent))
            main.__file__ = script
            text = Path(script).read_bytes()
            return lambda: exec(compile(text, script, "exec"), main.__dict__)
    raise AssertionError(words)


def _open_stream(number, name, *, unbuffered):
    try:
        file = os.fdopen(number, "rb" if name == "stdin" else "wb", closefd=False)
    except OSError:
        stream = None
    else:
        stream = io.TextIOWrapper(
            file,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or file.isatty(),
            write_through=unbuffered and name != "stdin",
        )
        stream.mode = "r" if name == "stdin" else "w"
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def run(main):
    """Run what a process has to do, and end as Python does, but without freeing its memory."""
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - shown, as Python does
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # no stream, a closed pipe, a closed stream
            code = code or (stream is not None and 120)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 255)


if __name__ == "__main__":
    _ADDRESS, _COMMAND = sys.argv[1:]
    del sys.path[0]  # the folder of tests
    for _name in PRELOADED:
        import_module(_name)
    for _finalizer in weakref.finalize._registry:  # of PyTorch's operators: 20 ms in every fork
        _finalizer.atexit = False
    gc.collect()
    gc.freeze()
    _SERVER = sys.modules["__main__"]  # which a fork replaces
    run(become(*Server(_ADDRESS).serve(), _COMMAND))

"""The command `python` of `preloaded_python`: has the server fork, and stands for the fork.

It passes its arguments, environment and open files to the server, passes signals on, and ends as
the fork does. What a fork cannot be (options of the interpreter, another hash seed) it executes
with the real interpreter. It runs with `-IS`, and imports little, so that it starts in 10 ms.
"""

import _signal
import _socket
import marshal
import os
import struct
import sys

_PLAIN = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH"}
"""Variables of the interpreter that a fork can follow."""
_FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def main(address, python, script):
    """Run `python`, or its `script` if one is given, with the words of the command line."""
    words = ([script] if script else []) + sys.argv[1:]
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    if not _understood(words) or connection.connect_ex(address):
        os.execv(python, [python, *words])
    ignored = [each for each in _FORWARDED if _signal.getsignal(each) == _signal.SIG_IGN]
    leads = os.getsid(0) == os.getpid()
    request = marshal.dumps((words, dict(os.environ), os.getcwd(), ignored, leads))
    files = _open_files(connection.fileno())
    descriptors = struct.pack(f"{len(files)}i", *files)
    header = struct.pack("ii", len(request), len(files)) + descriptors
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
    connection.sendmsg([header], rights)
    connection.sendall(request)
    for each in files:
        os.close(each)
    (process,) = struct.unpack("i", _read(connection, 4))
    for each in _FORWARDED:
        if each not in ignored:
            _signal.signal(each, lambda number, _: _forward(process, number))
    (status,) = struct.unpack("i", _read(connection, 4))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != _signal.SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _understood(words):
    """Whether a fork can follow these arguments (`-u`, `-B`, `-c`, `-m`) and the environment."""
    if any(name.startswith("PYTHON") and name not in _PLAIN for name in os.environ):
        return False
    for word in words:
        if word in {"-c", "-m"} or not word.startswith("-"):
            return True
        if word not in {"-u", "-B"}:
            return False
    return False


def _open_files(excepted):
    """The descriptors that a new process would inherit."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [each for each in found if each != excepted and _is_inherited(each)]


def _is_inherited(descriptor):
    try:
        return descriptor < 3 or os.get_inheritable(descriptor)
    except OSError:  # that of the folder that was listed
        return False


def _read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            os._exit(70)  # the server ended
        data += more
    return data


def _forward(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass

"""Runs TileLang's lowering in a child process, so that a crash there becomes an error here."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

_TAIL = 20
"""Last lines of a crashed process's output that the error shows."""
_SECONDS = 900.0
"""Time limit of lowering one kernel, three times that of the slowest one known."""


class LoweringError(Exception):
    """TileLang cannot lower a kernel; the message is the compiler's."""


class Lowerer:
    """Lowers kernels one at a time in a child process, which starts on first use."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None

    def lower(self, ir: str, arch: str, configs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the child, see `lowering_process`.

        Raises:
            LoweringError: the compiler rejects the kernel, crashes or exceeds the time limit.
        """
        child = self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"ir": ir, "arch": arch, "configs": dict(configs)}) + "\n")
            child.stdin.flush()
            line = self._read_answer(child)
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.close()  # otherwise the next request would read this one's answer
            raise
        if not line:
            raise LoweringError(self._crash_message())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoweringError(answer["error"])
        return answer

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _start(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        self._output = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as the child
            "w+", encoding="utf-8", errors="replace"
        )
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tlmatrix.backend.assembly.lowering_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self._child

    def _read_answer(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            ready, _, _ = select.select([child.stdout], [], [], 1.0)
            if ready:
                return child.stdout.readline()
        self.close()
        raise LoweringError(f"lowering did not end in {self._seconds:g} s")

    def _crash_message(self) -> str:
        """The exit status of the child and the last lines of its output."""
        child, output = self._child, self._output
        assert child is not None
        assert output is not None
        status = child.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        output.seek(0)
        last = output.read().strip().splitlines()[-_TAIL:]
        self.close()
        return "\n".join([f"the compiler crashed: its process ended with {how}", *last])

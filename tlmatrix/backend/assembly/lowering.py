"""TileLang's lowering in a process of its own, so that a crash in it is an answer."""

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

__all__ = ["Lowerer", "LoweringError"]

_TAIL = 20
"""Lines of what a process said last before it was gone."""
_SECONDS = 900.0
"""A kernel whose lowering takes longer does not end: the slowest seen took a third of it."""


class LoweringError(Exception):
    """TileLang cannot lower a kernel; the message is the compiler's."""


class Lowerer:
    """Lowers kernels one after the other in a child, started when it is needed."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._words: IO[str] | None = None

    def lower(self, ir: str, arch: str, configs: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the child, see `child`.

        Raises:
            LoweringError: the compiler refuses the kernel, crashes or does not end.
        """
        child = self._started()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"ir": ir, "arch": arch, "configs": dict(configs)}) + "\n")
            child.stdin.flush()
            line = self._answer(child)
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.close()  # An answer that nobody reads would be taken for the next one.
            raise
        if not line:
            raise LoweringError(self._gone())
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
        if self._words is not None:
            self._words.close()
            self._words = None

    def _started(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        self._words = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as the child
            "w+", encoding="utf-8", errors="replace"
        )
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tlmatrix.backend.assembly.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self._child

    def _answer(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            ready, _, _ = select.select([child.stdout], [], [], 1.0)
            if ready:
                return child.stdout.readline()
        self.close()
        raise LoweringError(f"lowering did not end in {self._seconds:g} s")

    def _gone(self) -> str:
        """How the child ended, and its last words."""
        child, words = self._child, self._words
        assert child is not None
        assert words is not None
        status = child.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        words.seek(0)
        said = words.read().strip().splitlines()[-_TAIL:]
        self.close()
        return "\n".join([f"the compiler crashed: its process ended with {how}", *said])

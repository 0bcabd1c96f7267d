"""The Ray cluster of `run --ray` and `fuzz --ray`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.exit_codes import UsageError
from tlmatrix.options.table import RESULTS

if TYPE_CHECKING:
    from pathlib import Path

    from tlmatrix.config import Config

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


def connect(address: str, config: Config) -> None:
    """Connect to a cluster, or start one on this machine; the project travels to its nodes.

    Raises:
        UsageError: the cluster cannot be reached.
    """
    import ray

    excluded = [*_EXCLUDED, config[RESULTS]]
    environment = {"working_dir": str(config.root), "excludes": excluded}
    try:
        ray.init(
            address=address or None, runtime_env=environment, log_to_driver=False,
            configure_logging=False, ignore_reinit_error=True,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"--ray {address}: {str(error).partition(chr(10))[0]}") from error


def path_on_nodes(path: Path, config: Config) -> str:
    """The path of a spec relative to the project's root.

    Raises:
        UsageError: it is outside of the root, which travels to the nodes.
    """
    path, root = path.resolve(), config.root.resolve()
    if not path.is_relative_to(root):
        raise UsageError(f"--ray: {path} is outside of {root}, which goes to the nodes")
    return path.relative_to(root).as_posix()

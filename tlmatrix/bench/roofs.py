"""Peak rates of GPUs for rooflines: tensor-core operations per second by dtype, memory bandwidth.

Peaks are NVIDIA's, at boost clocks and without sparsity (halved if the data sheet has only the
sparse rate); no kernel reaches them. Sources, by the name of the data sheet: "NVIDIA H200
Tensor Core GPU", "NVIDIA H100 Tensor Core GPU" (SXM, PCIe and NVL), "NVIDIA GH200 Grace Hopper
Superchip", "NVIDIA A100 Tensor Core GPU", "NVIDIA Blackwell Architecture Technical Brief" (B200,
GB200), "NVIDIA L40S", "NVIDIA L4", "NVIDIA Ada GPU Architecture" (RTX 4090, appendix A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TERA = 1e12


@dataclass(frozen=True)
class Roof:
    """Peak `operations` per second by dtype of the operands; `bandwidth` in bytes per second."""

    gpu: str
    operations: Mapping[str, float]
    bandwidth: float

    def peak(self, dtype: str) -> float | None:
        """Operations per second with operands of a dtype; None if the data sheet has none."""
        return self.operations.get("float8" if dtype.startswith("float8") else dtype)


def _roof(
    gpu: str, half: float, bandwidth: float, *, tf32: float = 0.5, eight: float = 2.0
) -> tuple[str, Roof]:
    """Make a roof from `half`, the TFLOP/s of float16; float32 runs as TF32."""
    rates = {"float16": half, "bfloat16": half, "float32": half * tf32, "int8": half * 2}
    if eight:
        rates["float8"] = half * eight
    return gpu, Roof(gpu, {name: rate * _TERA for name, rate in rates.items()}, bandwidth * _TERA)


_ROOFS = dict(
    (
        _roof("H200", 989.4, 4.8),
        _roof("GH200 480GB", 989.4, 4.0),
        _roof("H100 80GB HBM3", 989.4, 3.35),
        _roof("H100 PCIe", 756.5, 2.0),
        _roof("H100 NVL", 835.5, 3.9),
        _roof("A100-SXM4-80GB", 312.0, 2.039, eight=0),
        _roof("A100-SXM4-40GB", 312.0, 1.555, eight=0),
        _roof("A100 80GB PCIe", 312.0, 1.935, eight=0),
        _roof("A100-PCIE-40GB", 312.0, 1.555, eight=0),
        _roof("B200", 2250.0, 8.0),
        _roof("GB200", 2500.0, 8.0),
        _roof("L40S", 362.05, 0.864),
        _roof("L4", 121.0, 0.3),
        _roof("GeForce RTX 4090", 165.2, 1.008),
    )
)


def roof_of(gpu: str) -> Roof | None:
    """The roof of a GPU by the name that its driver reports (`NVIDIA H200`); None if unknown."""
    return _ROOFS.get(gpu.removeprefix("NVIDIA ").strip())

"""Burnpack as a member of the formats family."""

from __future__ import annotations

from contracts.format_contract import FormatContract, read_all, tensor, truth
from firekeep.dtypes import BY_NAME, TABLE, QuantScheme, qfloat

SCHEMES = (
    QuantScheme(value="Q8S"),
    QuantScheme(value="Q4S", store="PackedU32", block=(32,), block_dtype="F16"),
    QuantScheme(value="Q2F", store="PackedU32", packed_dim=1, tensor="BF16"),
    QuantScheme(value="E2M1", store="PackedNative", tensor="F32", block=(4, 8), block_dtype="UE4M3"),
)


class TestBurnpack(FormatContract):
    format = "burnpack"
    suffix = ".bpk"
    dtypes = tuple(row for row in TABLE if row.burn is not None)
    foreign_dtypes = tuple(BY_NAME[name] for name in ("F8_E4M3", "F4", "F6_E2M3", "C64", "C128", "QINT8"))
    holds_scalars = True
    read_limits = {  # noqa: RUF012
        "burnpack_tensors": 2,
        "burnpack_tensor_bytes": 63,
        "burnpack_metadata_bytes": 100,
        "burnpack_file_bytes": 500,
        "burnpack_depth": 3,
    }
    write_limits = read_limits

    def test_quantized_tensors_are_kept_byte_for_byte(self) -> None:
        entries = [tensor(f"q{index}", qfloat(scheme), (8, 64)) for index, scheme in enumerate(SCHEMES)]
        data = self.make(entries)
        container = self.open(data)
        assert read_all(container) == truth(entries)
        assert [entry.dtype for entry in container.entries.values()] == [qfloat(scheme) for scheme in SCHEMES]
        assert self.rewrite(container) == data

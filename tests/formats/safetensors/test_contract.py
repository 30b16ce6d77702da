from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from contracts.format_contract import FormatContract
from firekeep.dtypes import BY_NAME, TABLE, DType, QuantScheme, qfloat


class TestSafetensors(FormatContract):
    format: ClassVar[str] = "safetensors"
    suffix: ClassVar[str] = ".safetensors"
    dtypes: ClassVar[Sequence[DType]] = [row for row in TABLE if row.safetensors is not None]
    foreign_dtypes: ClassVar[Sequence[DType]] = [
        *(BY_NAME[name] for name in ("C128", "C32", "QINT8", "QUINT8", "QINT32", "QUINT4X2", "QUINT2X4")),
        qfloat(QuantScheme(value="Q8S")),
    ]
    reserved_names: ClassVar[frozenset[str]] = frozenset({"__metadata__"})
    read_limits: ClassVar[Mapping[str, int]] = {"safetensors_header_bytes": 150, "safetensors_tensors": 2}
    write_limits: ClassVar[Mapping[str, int]] = {"safetensors_header_bytes": 150, "safetensors_tensors": 2}

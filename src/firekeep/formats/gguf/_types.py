"""The element types of GGML: plain ones, and those that are quantized in blocks."""

from __future__ import annotations

from collections.abc import Mapping

from firekeep.dtypes import BY_NAME, DType

PLAIN: Mapping[int, DType] = {
    code: BY_NAME[name]
    for code, name in (
        (0, "F32"), (1, "F16"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64"), (30, "BF16"),
    )
}  # fmt: skip

_BLOCKS = (
    # code name    elements bytes
    (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36),
)  # fmt: skip

BLOCKS: Mapping[int, DType] = {
    code: DType(name, "quantized", size * 8 // elements, block=(elements, size))
    for code, name, elements, size in _BLOCKS
}
CODES: Mapping[str, int] = {row.name: code for code, row in BLOCKS.items()}

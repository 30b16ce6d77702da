"""Convert a file that may be larger than memory, with filters and renames, and see what happened to each tensor."""

import firekeep

report = firekeep.convert(
    "model.pt", "half.safetensors", exclude=[r"^norm"], rename=[(r"^fc(\d)", r"head.\1")], dtype="bf16"
)
print(report)

assert firekeep.verify("half.safetensors").ok

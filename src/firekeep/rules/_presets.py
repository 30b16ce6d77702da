"""Renames of usual cases, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Preset:
    """Renames that many files need, and when."""

    about: str
    rules: tuple[tuple[str, str], ...]


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "module.": Preset("what DataParallel and DistributedDataParallel put in front", ((r"^module\.", ""),)),
        "_orig_mod.": Preset("what torch.compile puts in front", ((r"^_orig_mod\.", ""),)),
        "model.": Preset("what a wrapper that calls its network `model` puts in front", ((r"^model\.", ""),)),
        "base_model.model.": Preset("what PEFT puts in front", ((r"^base_model\.model\.", ""),)),
        "hf-llama-to-burn": Preset(
            "names of Hugging Face's Llama family (SmolLM2) for a Burn model with `attn`, `input_norm` and `gamma`",
            ((r"^model\.", ""), (r"\.self_attn\.", ".attn."), (r"_layernorm\.weight$", "_norm.gamma")),
        ),
    }
)

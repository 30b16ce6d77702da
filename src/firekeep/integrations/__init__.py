"""firekeep under what people already train with: `lightning`, `hf` (Trainer of Transformers) and `keras` (on PyTorch), one file each.

Nothing here is imported before it is asked for, and no file imports another's framework.
"""

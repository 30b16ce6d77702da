"""Make `tests/data/made/full_model.pt`, a whole model saved with `torch.save(model)`, and its state dict beside it.

Run it with PyTorch installed: `python tests/golden/make_full_model.py`. The class exists nowhere else, so that nobody can import it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parents[1] / "data" / "made"


class FullModel(nn.Module):
    """One of everything: a tied child, a Sequential, buffers that are saved and one that is not, a tensor as plain attribute."""

    running_mean: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2, bias=False)
        self.blocks = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.tied = self.fc
        self.register_buffer("running_mean", torch.arange(3.0))
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.scale = torch.tensor([0.5])


def main() -> None:
    torch.manual_seed(7)
    model = FullModel().eval()
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.save(model, FOLDER / "full_model.pt")
    torch.save(model.state_dict(), FOLDER / "full_model_state_dict.pt")


if __name__ == "__main__":
    main()

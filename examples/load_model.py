"""Save the weights of a PyTorch model for Burn, and load them into another PyTorch model; names and layers are seen to."""

import torch

import firekeep

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
firekeep.save(model, "net.bpk")  # as Burn lays it out; "net.safetensors" would be as PyTorch's readers expect it

other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
report = firekeep.load_into(other, "net.bpk")  # planned first, then all of it or nothing
print(report)
assert report.exact

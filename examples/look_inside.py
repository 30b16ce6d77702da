"""Look inside a file: names, shapes and one tensor as a NumPy array. Nothing in the file is executed."""

import firekeep

with firekeep.open("model.pt") as file:
    for name, entry in file.entries.items():
        print(name, entry.dtype, entry.shape)
    weight = file["fc1.weight"]  # a view of the file: no copy until you make one

print(weight.mean(), weight.std())

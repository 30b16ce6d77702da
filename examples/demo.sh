#!/usr/bin/env bash
# What `make demo` shows: every command on sample files that other software wrote. Writes into demo-out/ and nowhere else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
samples=$PWD/tests/data/cases/files
rm -rf demo-out
mkdir -p demo-out
cd demo-out
cp "$samples/burn/burn_mnist.pt" mnist.pt
cp "$samples/burn/burn_import_mnist_whole_model.pt" whole.pt
cp "$samples/burn/mnist_web_model.bpk" model.bpk
cp "$samples/pytorch/lightning_mlp-coral_epoch=114-step=2529.ckpt" lightning.ckpt
cp "$samples/hostile/modelscan_unsafe_zip_pytorch.pt" downloaded.pt
cp "$samples/other/mnist.onnx" weights.bin

say() { printf '\n# %s\n' "$*"; }
# Show a command as it would be typed, then run it; the first argument is the exit code it must have.
try() {
    local expected=$1 code=0
    shift
    printf '\n$%s\n' "$(printf ' %s' "${@@Q}" | sed "s|'\([A-Za-z0-9_./-]*\)'|\1|g")"
    "$@" || code=$?
    if [ "$code" -ne "$expected" ]; then
        printf 'demo: exit code %s, expected %s\n' "$code" "$expected" >&2
        exit 1
    fi
}

say "What is in a file that Burn wrote?"
try 0 firekeep inspect model.bpk

say "And in a training checkpoint of PyTorch? Nothing in it is executed."
try 0 firekeep inspect lightning.ckpt --top-level-key state_dict

say "Are the files whole, and are the numbers numbers?"
try 0 firekeep verify --values model.bpk mnist.pt lightning.ckpt

say "Convert one, as bfloat16 and under other names, with a checksum of each tensor."
try 0 firekeep convert mnist.pt mnist.safetensors --dtype bf16 --rename '^fc=>head.fc' --digest
try 0 firekeep convert mnist.pt mnist.bpk --digest

say "Do the copies hold what the original holds?"
try 0 firekeep diff mnist.pt mnist.bpk
try 1 firekeep diff mnist.pt mnist.safetensors --include '^conv1'

say "What are its tensors called, and what would renames make of the names?"
try 0 firekeep keys mnist.pt --rename '^(conv|norm)([12])=>body.$1$2'

say "Turn a model of PyTorch into Burn's layout: weights turned round, norms renamed."
try 0 firekeep convert whole.pt burn.bpk --layout burn

say "Would PyTorch's own file of it go into that model of Burn?"
try 0 firekeep match mnist.pt --like burn.bpk
try 1 firekeep match mnist.pt --like burn.bpk --rename '^fc=>head.fc'

say "Describe a model of Burn in Python, load its weights, and have it read a digit. Neither PyTorch nor Rust is needed."
try 0 python ../examples/burn_model.py

say "Train a small model, once straight through, and once killed in the middle of an epoch."
try 0 python ../examples/train_resume.py straight
try 137 python ../examples/train_resume.py killed --kill-at 47

say "Start the killed one again: it goes on from its last checkpoint."
try 0 python ../examples/train_resume.py killed

say "Are all 78 losses and the weights equal, to the last bit?"
try 0 cmp straight/losses.txt killed/losses.txt
try 0 firekeep diff straight/step-00000078/model.bpk killed/step-00000078/model.bpk

say "What would this pickle have called, had it been loaded?"
try 1 firekeep scan downloaded.pt

say "What is this file, which firekeep does not read?"
try 1 firekeep doctor weights.bin

say "The files made are in demo-out/:"
ls -l mnist.bpk mnist.safetensors burn.bpk
ls -d straight/step-* killed/step-*

"""Python's torch and an extension module with tidemark in one process."""

import sys

sys.path.insert(0, sys.argv[1])

import torch
from torch.utils.checkpoint import checkpoint

import consumer  # behind torch, whose libraries it needs


def plain(x, weight):
    return x.mm(weight).tanh().mm(weight).tanh()


def gradients(function, x, weight):
    x = x.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    function(x, weight).sum().backward()
    return x.grad, weight.grad


def same(a, b):
    return all(torch.equal(left, right) for left, right in zip(a, b))


def main():
    torch.manual_seed(1)
    x, weight = torch.randn(64, 32), torch.randn(32, 32)
    expected = gradients(plain, x, weight)
    with_python = lambda x, w: checkpoint(plain, x, w, use_reentrant=False)
    both = lambda x, w: checkpoint(consumer.block, x, w, use_reentrant=False)

    assert same(gradients(consumer.block, x, weight), expected), "tidemark from Python"
    # Python's hooks go on working behind tidemark's, and around and beside it.
    assert same(gradients(with_python, x, weight), expected), "Python's checkpoint"
    assert same(gradients(both, x, weight), expected), "tidemark inside Python's checkpoint"
    chain = lambda x, w: with_python(consumer.block(with_python(x, w), w), w)
    assert same(gradients(chain, x, weight),
                gradients(lambda x, w: plain(plain(plain(x, w), w), w), x, weight)), "a chain"

    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        hooked = gradients(plain, x, weight)
    assert packed and same(hooked, expected), "saved_tensors_hooks"
    with torch.autograd.graph.save_on_cpu():
        assert same(gradients(consumer.block, x, weight), expected), "save_on_cpu"

    x.requires_grad_()
    weight.requires_grad_()
    # The two arguments; the weight is a leaf that lives anyway.
    assert consumer.held(x, weight) <= x.nbytes, "held bytes"
    assert consumer.peak(lambda: torch.ones(1 << 20)) >= 4 << 20, "the meter sees Python's tensors"
    print("all of it agrees")


if __name__ == "__main__":
    main()

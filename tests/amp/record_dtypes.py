#!/usr/bin/env python3
"""Records the dtypes that ops return under torch.autocast, for the tests to compare with.

    python3 tests/amp/record_dtypes.py cpu > tests/amp/data/cpu_dtypes.csv
    python3 tests/amp/record_dtypes.py cuda > tests/amp/data/cuda_dtypes.csv

Lines are op,scope dtype,dtype of the data,dtype of the result ("error" if it throws). Weights are
float32, data are of float32 or of the scope's dtype, and "other" is always float32. For cuda no
device is needed: fake tensors go through autocast as real ones do, but run no kernel.

OPS and CPU_OPS have the names and ops of op_dtypes.h.
"""

import contextlib
import logging
import sys

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode


class Inputs:
    def __init__(self, device, dtype):
        self.device = device
        self.dtype = dtype

    def data(self, *sizes):
        return torch.full(sizes, 0.5, device=self.device, dtype=self.dtype)

    def other(self, *sizes):
        return torch.full(sizes, 0.5, device=self.device)

    def weight(self, *sizes):
        return self.other(*sizes).requires_grad_()

    def index(self, *sizes):
        return torch.zeros(sizes, device=self.device, dtype=torch.int64)

    def volume(self):
        return self.data(1, 2, 4, 4, 4)

    def matrix(self):
        return self.data(3, 3)


OPS = {
    # matrix products and convolutions
    "conv1d": lambda i: F.conv1d(i.data(1, 2, 4), i.weight(2, 2, 3), i.weight(2)),
    "conv2d": lambda i: F.conv2d(i.data(1, 2, 4, 4), i.weight(2, 2, 3, 3), i.weight(2)),
    "conv3d": lambda i: F.conv3d(i.volume(), i.weight(2, 2, 3, 3, 3), i.weight(2)),
    "conv3d_same": lambda i: F.conv3d(i.volume(), i.weight(2, 2, 3, 3, 3), padding="same"),
    "conv_transpose3d": lambda i: F.conv_transpose3d(i.volume(), i.weight(2, 2, 2, 2, 2)),
    "linear": lambda i: F.linear(i.matrix(), i.weight(3, 3), i.weight(3)),
    "linear_3d": lambda i: F.linear(i.data(2, 3, 3), i.weight(3, 3), i.weight(3)),
    "mm": lambda i: i.matrix().mm(i.weight(3, 3)),
    "matmul": lambda i: i.matrix().matmul(i.weight(3, 3)),
    "addmm": lambda i: torch.addmm(i.weight(3), i.matrix(), i.weight(3, 3)),
    "bmm": lambda i: i.data(2, 3, 3).bmm(i.other(2, 3, 3)),
    "baddbmm": lambda i: torch.baddbmm(i.other(2, 3, 3), i.data(2, 3, 3), i.other(2, 3, 3)),
    "einsum": lambda i: torch.einsum("bij,bjk->bik", i.data(2, 3, 3), i.other(2, 3, 3)),
    "sdpa": lambda i: F.scaled_dot_product_attention(
        i.data(1, 1, 2, 8), i.data(1, 1, 2, 8), i.other(1, 1, 2, 8)
    ),
    "prelu": lambda i: F.prelu(i.volume(), i.weight(2)),
    # norms
    "batch_norm": lambda i: F.batch_norm(
        i.volume(), i.other(2), i.other(2), i.weight(2), i.weight(2), True
    ),
    "instance_norm": lambda i: F.instance_norm(i.volume(), weight=i.weight(2), bias=i.weight(2)),
    "group_norm": lambda i: F.group_norm(i.volume(), 1, i.weight(2), i.weight(2)),
    "layer_norm": lambda i: F.layer_norm(i.matrix(), [3], i.weight(3), i.weight(3)),
    "rms_norm": lambda i: F.rms_norm(i.matrix(), [3], i.weight(3)),
    "normalize": lambda i: F.normalize(i.matrix()),
    # activations
    "relu": lambda i: i.volume().relu(),
    "gelu": lambda i: F.gelu(i.volume()),
    "silu": lambda i: F.silu(i.volume()),
    "sigmoid": lambda i: i.volume().sigmoid(),
    "tanh": lambda i: i.volume().tanh(),
    "softplus": lambda i: F.softplus(i.volume()),
    "softmax": lambda i: i.matrix().softmax(1),
    "log_softmax": lambda i: i.matrix().log_softmax(1),
    "logsumexp": lambda i: i.matrix().logsumexp(1),
    "dropout": lambda i: F.dropout(i.volume()),
    # pooling, resampling, padding
    "max_pool3d": lambda i: F.max_pool3d(i.volume(), 2),
    "avg_pool3d": lambda i: F.avg_pool3d(i.volume(), 2),
    "adaptive_max_pool3d": lambda i: F.adaptive_max_pool3d(i.volume(), 2),
    "adaptive_avg_pool3d": lambda i: F.adaptive_avg_pool3d(i.volume(), 2),
    "upsample_nearest3d": lambda i: F.interpolate(i.volume(), scale_factor=2.0, mode="nearest"),
    "upsample_trilinear3d": lambda i: F.interpolate(
        i.volume(), scale_factor=2.0, mode="trilinear", align_corners=False
    ),
    "grid_sample_2d": lambda i: F.grid_sample(
        i.data(1, 1, 2, 2), i.other(1, 1, 1, 2), align_corners=False
    ),
    "grid_sample_3d": lambda i: F.grid_sample(
        i.volume(), i.other(1, 1, 1, 1, 3), align_corners=False
    ),
    "replication_pad3d": lambda i: F.pad(i.volume(), [1, 1, 1, 1, 1, 1], mode="replicate"),
    "reflection_pad3d": lambda i: F.pad(i.volume(), [1, 1, 1, 1, 1, 1], mode="reflect"),
    "constant_pad": lambda i: F.pad(i.volume(), [1, 1, 1, 1, 1, 1]),
    # elementwise
    "exp": lambda i: i.matrix().exp(),
    "log": lambda i: i.matrix().log(),
    "pow": lambda i: i.matrix().pow(2),
    "sqrt": lambda i: i.matrix().sqrt(),
    "rsqrt": lambda i: i.matrix().rsqrt(),
    "reciprocal": lambda i: i.matrix().reciprocal(),
    "sin": lambda i: i.matrix().sin(),
    "acos": lambda i: i.matrix().acos(),
    "atan2": lambda i: torch.atan2(i.matrix(), i.other(3, 3)),
    "mul_other": lambda i: i.matrix() * i.other(3, 3),
    "addcmul": lambda i: torch.addcmul(i.matrix(), i.matrix(), i.matrix()),
    # reductions, distances
    "sum": lambda i: i.matrix().sum(),
    "sum_dim": lambda i: i.matrix().sum(0),
    "mean": lambda i: i.matrix().mean(),
    "var": lambda i: i.matrix().var(0),
    "prod": lambda i: i.matrix().prod(),
    "cumsum": lambda i: i.matrix().cumsum(0),
    "cumprod": lambda i: i.matrix().cumprod(0),
    "norm": lambda i: i.matrix().norm(),
    "vector_norm": lambda i: torch.linalg.vector_norm(i.matrix(), 2, 1),
    "max": lambda i: i.matrix().max(0)[0],
    "topk": lambda i: i.matrix().topk(2)[0],
    "cdist": lambda i: torch.cdist(i.matrix(), i.matrix()),
    "cosine_similarity": lambda i: F.cosine_similarity(i.matrix(), i.matrix()),
    "cross": lambda i: torch.cross(i.matrix(), i.other(3, 3), 1),
    # losses
    "mse_loss": lambda i: F.mse_loss(i.matrix(), i.other(3, 3)),
    "l1_loss": lambda i: F.l1_loss(i.matrix(), i.other(3, 3)),
    "smooth_l1_loss": lambda i: F.smooth_l1_loss(i.matrix(), i.other(3, 3)),
    "huber_loss": lambda i: F.huber_loss(i.matrix(), i.other(3, 3)),
    "kl_div": lambda i: F.kl_div(i.matrix(), i.other(3, 3), reduction="batchmean"),
    "nll_loss": lambda i: F.nll_loss(i.matrix(), i.index(3)),
    "cross_entropy": lambda i: F.cross_entropy(i.matrix(), i.index(3)),
    "binary_cross_entropy": lambda i: F.binary_cross_entropy(i.matrix(), i.other(3, 3)),
    "bce_with_logits": lambda i: F.binary_cross_entropy_with_logits(i.matrix(), i.other(3, 3)),
    # joining and indexing
    "cat": lambda i: torch.cat([i.matrix(), i.matrix()]),
    "cat_other": lambda i: torch.cat([i.matrix(), i.other(3, 3)]),
    "stack_other": lambda i: torch.stack([i.matrix(), i.other(3, 3)]),
    "where_other": lambda i: torch.where(i.matrix() > 0, i.matrix(), i.other(3, 3)),
    "masked_fill": lambda i: i.matrix().masked_fill(i.matrix() > 0, 0.0),
    "index_select": lambda i: i.matrix().index_select(0, i.index(2)),
    "gather": lambda i: i.matrix().gather(0, i.index(2, 3)),
    "scatter_add_other": lambda i: i.other(3, 3).scatter_add(0, i.index(3, 3), i.matrix()),
    "scatter_other": lambda i: i.other(3, 3).scatter(0, i.index(3, 3), i.matrix()),
    "scatter_reduce_other": lambda i: i.other(3, 3).scatter_reduce(
        0, i.index(3, 3), i.matrix(), "amax"
    ),
    "index_put_other": lambda i: i.other(3, 3).index_put([i.index(3)], i.matrix()),
    "embedding": lambda i: F.embedding(i.index(2), i.weight(3, 3)),
}

# Ops whose fake tensors don't tell what happens on a device.
CPU_OPS = {
    **OPS,
    "gru": lambda i: torch.nn.GRU(3, 3)(i.data(2, 1, 3))[0],
    "affine_grid": lambda i: F.affine_grid(i.data(1, 3, 4), [1, 1, 2, 2, 2], align_corners=False),
    "index_add_other": lambda i: i.other(3, 3).index_add(0, i.index(3), i.matrix()),
    "index_copy_other": lambda i: i.other(3, 3).index_copy(0, i.index(1), i.data(1, 3)),
    "inverse": lambda i: torch.linalg.inv(i.matrix() + torch.eye(3, dtype=i.dtype)),
    "det": lambda i: torch.linalg.det(i.matrix()),
    "fftn": lambda i: torch.fft.fftn(i.matrix()),
}


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def main():
    device = sys.argv[1]
    logging.disable()  # fake tensors log every error
    ops = CPU_OPS if device == "cpu" else OPS
    mode = FakeTensorMode() if device == "cuda" else contextlib.nullcontext()
    print("# op,scope,data,result by record_dtypes.py with torch " + torch.__version__)
    for scope in (torch.bfloat16, torch.float16):
        # torch.autocast would refuse to work for a device that is not there.
        torch.set_autocast_dtype(device, scope)
        torch.set_autocast_enabled(device, True)
        for name, op in ops.items():
            for data in (torch.float32, scope):
                try:
                    with mode:
                        result = name_of(op(Inputs(device, data)).dtype)
                except RuntimeError as error:
                    result = "error"
                    print(name, scope, data, str(error).splitlines()[0], file=sys.stderr)
                print(name, name_of(scope), name_of(data), result, sep=",")
                torch.clear_autocast_cache()


if __name__ == "__main__":
    main()

"""The networks of the comparison, in Python. networks.h has the same ones under the same names."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def region(function, *inputs):
    return checkpoint(function, *inputs, use_reentrant=False)


class ResBlock(nn.Module):

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, channels)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class VoxelNet(nn.Module):
    """A chain of residual blocks, checkpointed in segments."""

    segments = 3

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(1, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(ResBlock(16) for _ in range(9)))
        self.head = nn.Conv3d(16, 4, 1)

    @staticmethod
    def example():
        return torch.randn(2, 1, 24, 24, 24)

    def forward(self, x, checkpointed):
        x = self.stem(x)
        if checkpointed:
            x = checkpoint_sequential(self.blocks, self.segments, x, use_reentrant=False)
        else:
            x = self.blocks(x)
        return self.head(x)


class Stage(nn.Module):

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv3d(inputs, outputs, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv3d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outputs)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """Two levels and a bottom, with skips; each stage is a region."""

    def __init__(self):
        super().__init__()
        self.down1 = Stage(1, 8)
        self.down2 = Stage(8, 16)
        self.bottom = Stage(16, 32)
        self.up2 = Stage(48, 16)
        self.up1 = Stage(24, 8)
        self.head = nn.Conv3d(8, 4, 1)

    @staticmethod
    def example():
        return torch.randn(2, 1, 32, 32, 32)

    def forward(self, x, checkpointed):
        run = region if checkpointed else lambda stage, x: stage(x)
        skip1 = run(self.down1, x)
        skip2 = run(self.down2, torch.max_pool3d(skip1, 2))
        x = run(self.bottom, torch.max_pool3d(skip2, 2))
        x = run(self.up2, torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip2], 1))
        x = run(self.up1, torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip1], 1))
        return self.head(x)


class NerfMlp(nn.Module):
    """Points through a deep MLP, in chunks that are a region each."""

    chunk = 8192

    def __init__(self):
        super().__init__()
        sizes = [63] + [128] * 8
        layers = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(128, 4))

    @staticmethod
    def example():
        return torch.randn(32768, 63)

    def forward(self, x, checkpointed):
        if not checkpointed:
            return self.mlp(x)
        return torch.cat([region(self.mlp, rows) for rows in x.split(self.chunk)])


class AttentionBlock(nn.Module):

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q.matmul(k.transpose(-2, -1)) * (width // self.heads)**-0.5, -1)
        y = weights.matmul(v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(y)
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Attention(nn.Module):
    """Blocks over 512 voxels as tokens, each block a region."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(AttentionBlock(64, 4) for _ in range(4))

    @staticmethod
    def example():
        return torch.randn(2, 512, 64)

    def forward(self, x, checkpointed):
        for block in self.blocks:
            x = region(block, x) if checkpointed else block(x)
        return x


NETWORKS = {
    "voxel net": VoxelNet,
    "U-Net": UNet,
    "NeRF MLP": NerfMlp,
    "attention": Attention,
}

#!/usr/bin/env python3
"""Converts ITK's example head scan into itk-t1/scan.pt and itk-t1/labels.pt, once.

    pip install torch nibabel
    python convert_itk_t1.py FOLDER_WITH_THE_THREE_NII_GZ itk-t1

The scan comes as it is. The labels, which k-means made without the help of a reader, become

    0  outside the brain   1, 2, 3: three intensity classes of air, skin, muscle, fat and bone; where
                           the scan is cut off below the skull they are labels of empty voxels, so
                           no network can tell them apart
    1  CSF                 4
    2  grey matter         5
    3  white matter        6
    255  left out          0: 126 voxels inside the brain mask that have no class

Both files hold one uint8 tensor (62, 128, 128): slice from back to front, row from bottom to top,
column from right to left, in the order in which NIfTI stores voxels. In C++ they are read with
torch::load(tensor, path): a TorchScript archive with one tensor named "0".
"""

import argparse
import pathlib

import nibabel
import numpy as np
import torch

SHAPE = (128, 128, 62)
CLASS_OF_LABEL = {0: 255, 1: 0, 2: 0, 3: 0, 4: 1, 5: 2, 6: 3}


def read(path):
    volume = np.asarray(nibabel.load(path).dataobj)
    if volume.shape != SHAPE:
        raise SystemExit(f"{path} is {volume.shape}, not {SHAPE}")
    if volume.min() < 0 or volume.max() > 255 or np.any(volume != np.round(volume)):
        raise SystemExit(f"{path} holds values that uint8 can't")
    return np.ascontiguousarray(volume.T.astype(np.uint8))  # NIfTI's x runs fastest


def check_labels(labels, mask):
    if not set(np.unique(labels)) <= set(CLASS_OF_LABEL):
        raise SystemExit(f"unknown labels: {np.unique(labels)}")
    in_brain = (labels == 0) | (labels >= 4)
    if not np.array_equal(in_brain, mask > 0):
        raise SystemExit("the brain mask and the labels disagree")


class OneTensor(torch.nn.Module):
    """What C++'s torch::save(tensor, path) writes."""

    def __init__(self, tensor):
        super().__init__()
        self.register_buffer("0", tensor)


def write(path, volume):
    torch.jit.script(OneTensor(torch.from_numpy(volume))).save(str(path))
    print(f"{path}: {tuple(volume.shape)}, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description="Converts ITK's example head scan.")
    parser.add_argument("source", type=pathlib.Path, help="folder of KmeansTest_*.nii.gz")
    parser.add_argument("target", type=pathlib.Path, help="folder for scan.pt and labels.pt")
    arguments = parser.parse_args()

    scan = read(arguments.source / "KmeansTest_T1UCharRaw.nii.gz")
    mask = read(arguments.source / "KmeansTest_T1RawSkullStrip.nii.gz")
    labels = read(arguments.source / "KmeansTest_T1KmeansPrelimSegmentation.nii.gz")
    check_labels(labels, mask)
    classes = np.empty_like(labels)
    for label, number in CLASS_OF_LABEL.items():
        classes[labels == label] = number

    arguments.target.mkdir(parents=True, exist_ok=True)
    write(arguments.target / "scan.pt", scan)
    write(arguments.target / "labels.pt", classes)


if __name__ == "__main__":
    main()

"""The files of the policy's weights: `{version}.npy`, one for each policy version, whole or not there."""

import os
from pathlib import Path

import numpy as np

from rolloutlog.consumers.demo.policy import SHAPE, Weights
from rolloutlog.eventstore.errors import StoreError


def save_weights(folder: Path, version: int, weights: Weights) -> None:
    """Write a version. It gets its name last: a reader never finds half of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{version}.part"
    with part.open("wb") as file:
        np.save(file, weights)
        file.flush()
        os.fsync(file.fileno())
    part.replace(_path(folder, version))


def load_weights(folder: Path, version: int) -> Weights:
    """Read a version. Raises StoreError when it is not there, or holds no weights of this policy."""
    path = _path(folder, version)
    try:
        weights: Weights = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise StoreError(
            f"policy version {version}: expected its weights in {path}, got: {error}; a trainer writes them before it "
            "acknowledges the version"
        ) from error
    if weights.shape != SHAPE:
        raise StoreError(f"policy version {version}: expected weights of shape {SHAPE}, got {weights.shape} in {path}")
    return weights


def _path(folder: Path, version: int) -> Path:
    return folder / f"{version}.npy"

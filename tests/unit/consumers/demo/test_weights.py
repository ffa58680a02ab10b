"""Files of weights: a version is there whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from rolloutlog.consumers.demo.policy import first_weights
from rolloutlog.consumers.demo.weights import load_weights, save_weights
from rolloutlog.eventstore.errors import StoreError


def test_weights_that_were_saved_are_read_back(tmp_path: Path):
    save_weights(tmp_path / "weights", 3, first_weights() + 1.5)
    assert np.array_equal(load_weights(tmp_path / "weights", 3), first_weights() + 1.5)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["3.npy"]


def test_weights_of_a_version_that_nobody_wrote_are_refused_naming_it(tmp_path: Path):
    with pytest.raises(StoreError, match=r"policy version 4: expected its weights in .*4\.npy"):
        load_weights(tmp_path, 4)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY nonsense"])
def test_weights_that_are_no_array_are_refused(tmp_path: Path, content: bytes):
    (tmp_path / "0.npy").write_bytes(content)
    with pytest.raises(StoreError, match="policy version 0"):
        load_weights(tmp_path, 0)


def test_weights_of_another_shape_are_refused(tmp_path: Path):
    save_weights(tmp_path, 0, np.zeros((2, 2, 2)))
    with pytest.raises(StoreError, match=r"expected weights of shape .* got \(2, 2, 2\)"):
        load_weights(tmp_path, 0)

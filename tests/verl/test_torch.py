"""Tensors of a step, with the real torch: `make test-verl`."""

import numpy as np
import pytest
from unit.consumers.adapters.stepping import step

torch = pytest.importorskip("torch", reason="torch is large, and not installed here: make test-verl runs this")

from rolloutlog.consumers.adapters.torch import to_torch  # noqa: E402


def test_tensors_have_the_names_types_and_values_of_the_arrays():
    padded = step({"g": [1.0, 0.0]}).padded(3, 4, pad_id=9)
    tensors = to_torch(padded)
    assert list(tensors) == list(type(padded).__slots__)
    assert tensors["prompt_ids"].tolist() == [[9, 1, 2], [9, 1, 2]]
    assert tensors["response_mask"].dtype == torch.uint8
    assert tensors["total"].tolist() == [1.0, 0.0]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), getattr(padded, name))


def test_tensors_share_memory_with_the_arrays():
    padded = step({"g": [1.0]}).padded(3, 4, pad_id=0)
    for name, tensor in to_torch(padded).items():
        assert tensor.data_ptr() == getattr(padded, name).ctypes.data, name

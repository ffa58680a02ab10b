"""The arrays of a step as torch tensors, without a copy: they share memory with numpy.

Needs  the extra `torch`
"""

from dataclasses import fields

from rolloutlog.consumers.adapters import missing
from rolloutlog.consumers.stream.padding import Padded

try:
    import torch
except ModuleNotFoundError as error:
    raise missing(__name__, "torch", error) from error


def to_torch(padded: Padded) -> dict[str, torch.Tensor]:
    """A tensor for each array of `padded`, by its name, on the CPU, with its type and shape.

    Writing into a tensor writes into the array. `tensor.to(device, non_blocking=True)` copies to a device; token ids
    are int32, as recorded: an embedding takes them, a gather needs `.long()`.
    """
    return {each.name: torch.from_numpy(getattr(padded, each.name)) for each in fields(padded)}

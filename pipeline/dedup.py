"""Index dedup on CPU: the one operator that TorchRec's `use_index_dedup` calls and fbgemm has for CUDA only.

With index dedup a rank asks for each distinct id of a table once, copies the row to every place that wants it, and sums
the gradients of those places before they travel. TorchRec does all of it, once it can find the distinct ids.
"""

from itertools import pairwise

import fbgemm_gpu  # noqa: F401 - declares the operator
import torch
from torch import Tensor

OPERATOR = "fbgemm::jagged_unique_indices"


def register_cpu_kernel() -> None:
    """Let fbgemm's operator take CPU tensors in this process. A CPU kernel that is already there is kept."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, "CPU"):
        torch.library.impl(OPERATOR, "CPU", jagged_unique_indices)


def jagged_unique_indices(
    hash_size_cumsum: Tensor, hash_size_offsets: Tensor, offsets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct ids of each table, for T features with B samples each, feature by feature.

    Neighbouring features may share a table. `hash_size_cumsum`, `[T + 1]`, has an entry per feature, and the CUDA
    kernel numbers rows with it; here only its length counts. `hash_size_offsets`, `[T + 1]`, holds the bounds of
    the tables among the features, with repetitions. The ids of sample b of feature t stand in `indices`, `[num_ids]`,
    from `offsets[t * B + b]` on; `offsets` is `[T * B + 1]`.

    Returns four int tensors:
      lengths    `[T * B]`, as if a table's distinct ids were dealt out evenly over the samples of all its features
      offsets    `[T * B + 1]`, where those begin
      distinct   `[num_distinct]`, table by table, ascending within a table
      reverse    `[num_ids]`, so that `distinct[reverse]` is `indices`

    Raises `ValueError` if the shapes do not fit together.
    """
    features = hash_size_cumsum.numel() - 1
    slots = offsets.numel() - 1
    bounds = torch.unique_consecutive(hash_size_offsets)
    if features < 1 or slots % features or int(bounds[0]) != 0 or int(bounds[-1]) != features:
        raise ValueError(
            f"hash_size_cumsum {list(hash_size_cumsum.shape)}, hash_size_offsets {hash_size_offsets.tolist()} and "
            f"offsets {list(offsets.shape)} do not describe the same features; all features need equally many samples"
        )
    samples = slots // features
    first_slots = bounds * samples
    found: list[Tensor] = []
    reverse: list[Tensor] = []
    lengths: list[Tensor] = []
    for (first, end), (begin, stop) in zip(
        pairwise(first_slots.tolist()), pairwise(offsets[first_slots].tolist()), strict=True
    ):
        distinct, places = torch.unique(indices[begin:stop], sorted=True, return_inverse=True)
        reverse.append(places + sum(map(len, found)))
        found.append(distinct)
        lengths.append(_dealt_out(len(distinct), end - first, offsets.dtype))
    spread = torch.cat(lengths)
    return spread, torch.cat([spread.new_zeros(1), spread.cumsum(0)]), torch.cat(found), torch.cat(reverse)


def _dealt_out(ids: int, slots: int, dtype: torch.dtype) -> Tensor:
    """`ids` over `slots`, `[slots]`, as evenly as can be, the first ones taking what is left over."""
    share, rest = divmod(ids, max(1, slots))
    return share + (torch.arange(slots) < rest).to(dtype)

"""How well the trained model ranks the held-out samples, beside the baseline that recommends what is popular."""

import torch
import torch.distributed as dist
from torch import nn
from torchmetrics.functional.classification import binary_auroc

from workers.sources.schema import Source
from workers.training.batches import to_batch


def held_out_metrics(
    model: nn.Module, source: Source, batch_size: int, device: torch.device
) -> dict[str, float | None]:
    """`auc` and, where the source knows popularity, `auc_popularity`; over the samples of all ranks, so equal on all.

    Every rank calls it, with its pipeline flushed. Empty if nothing is held out; null where only one label occurs.
    Memory grows with the number of held-out samples (16 bytes each, on every rank).
    """
    rows = []
    model.eval()
    with torch.no_grad():
        for held_out in source.holdout(dist.get_rank(), dist.get_world_size(), batch_size):
            batch = to_batch(held_out.samples, source.schema).to(device)
            _, (_, logits, labels) = model(batch)
            popularity = torch.full_like(logits, torch.nan)
            if held_out.popularity is not None:
                popularity = torch.from_numpy(held_out.popularity).to(device)
            counts = (torch.arange(len(labels), device=device) < held_out.valid).to(logits.dtype)
            rows.append(torch.stack([logits.sigmoid(), labels, popularity, counts], dim=1))
    model.train()
    if not rows:
        return {}
    mine = torch.cat(rows)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    everything = torch.cat(parts)
    scores, labels, popularity, _ = everything[everything[:, 3] == 1].unbind(dim=1)
    metrics = {"auc": _auc(scores, labels)}
    if not popularity.isnan().any():
        metrics["auc_popularity"] = _auc(popularity, labels)
    return metrics


def _auc(scores: torch.Tensor, labels: torch.Tensor) -> float | None:
    if labels.min() == labels.max() or not scores.isfinite().all():
        return None
    return float(binary_auroc(scores, labels.long()))

"""How well the model ranks the held-out samples, beside the baseline that recommends what is popular."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torchmetrics.functional.classification import binary_auroc
from torchrec.metrics.calibration import compute_calibration
from torchrec.metrics.ne import compute_ne, get_ne_states

from workers.sources.schema import Source
from workers.training.batches import to_batch

# What probabilities are kept away from 0 and 1 by, as TorchRec's metric modules do.
_ETA = 1e-12


def held_out_metrics(
    model: nn.Module,
    source: Source,
    batch_size: int,
    device: torch.device,
    beat: Callable[[], None] = lambda: None,
) -> dict[str, float | None]:
    """What the model is worth on the samples that are held out, over all ranks, so equal on all.

    `auc`; normalized entropy `ne`, which is lower for better models and 1 for the mean label alone; `calibration`, the
    predicted over the true positives; and, where the source knows popularity, `auc_popularity`.

    Every rank calls it, with its pipeline flushed, and hears a `beat` after each batch. Empty if nothing is held out;
    null where only one label occurs. Memory grows with the number of held-out samples (16 bytes each, on every rank).
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
            beat()
    model.train()
    if not rows:
        return {}
    mine = torch.cat(rows)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    everything = torch.cat(parts)
    scores, labels, popularity, _ = everything[everything[:, 3] == 1].unbind(dim=1)
    metrics = figures(scores, labels)
    if not popularity.isnan().any():
        metrics["auc_popularity"] = figures(popularity, labels)["auc"]
    return metrics


def figures(scores: torch.Tensor, labels: torch.Tensor) -> dict[str, float | None]:
    """`auc`, `ne` and `calibration` of predicted probabilities and labels of 0 and 1, both of shape (n,).

    None if only one label occurs, or the model has diverged.
    """
    if labels.min() == labels.max() or not scores.isfinite().all():
        return dict.fromkeys(("auc", "ne", "calibration"))
    predicted, positive = scores.double(), labels.double()
    entropy = get_ne_states(positive, predicted, torch.ones_like(positive), _ETA)
    ne = compute_ne(
        entropy["cross_entropy_sum"],
        entropy["weighted_num_samples"],
        entropy["pos_labels"],
        entropy["neg_labels"],
        _ETA,
    )
    return {
        "auc": float(binary_auroc(scores, labels.long())),
        "ne": float(ne),
        "calibration": float(compute_calibration(predicted.sum(), positive.sum())),
    }

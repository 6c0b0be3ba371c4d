"""A TorchRec script without Ray: torchrun --nproc-per-node 2 examples/torchrun_pipeline.py"""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel

from pipeline import TrainPipeline, sharders

ROWS, DIM, SAMPLES, HISTORY, STEPS = 20_000, 32, 256, 10, 60


@dataclass
class Batch:
    ids: KeyedJaggedTensor
    label: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.ids.to(device, non_blocking), self.label.to(device, non_blocking=non_blocking))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        items = EmbeddingConfig(name="item", num_embeddings=ROWS, embedding_dim=DIM, feature_names=["history"])
        self.items = EmbeddingCollection(tables=[items], device=torch.device("meta"))
        self.over = nn.Sequential(nn.Linear(HISTORY * DIM, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.over(self.items(batch.ids)["history"].values().view(-1, HISTORY * DIM))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
        return loss, loss.detach()


def random_batch(generator: torch.Generator) -> Batch:
    items = (ROWS * torch.rand(SAMPLES, HISTORY, generator=generator) ** 4).long()  # popular items: small numbers
    ids = KeyedJaggedTensor(["history"], items.flatten(), lengths=torch.full((SAMPLES,), HISTORY))
    return Batch(ids, (items[:, -1] < ROWS / 16).float())  # label: is the last item of the history popular?


device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.get_device_module(device).set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = DistributedModelParallel(Model(), device=device, sharders=sharders(fused_params={"learning_rate": 1.0}))
pipe = TrainPipeline[Batch, Tensor](model, torch.optim.Adam(model.module.over.parameters(), lr=0.01), device)
generator = torch.Generator().manual_seed(dist.get_rank())
source = (random_batch(generator) for _ in range(STEPS))
losses = [float(pipe.progress(source)) for _ in range(STEPS)]
pipe.flush()  # from here on the model may be evaluated or saved
reports = pipe.reports(wait=True)  # one for each step
comm_overlap = sum(each.hidden_ms for each in reports) / sum(each.comm_ms for each in reports)
sys.stdout.write(f"rank {dist.get_rank()}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, comm overlap {comm_overlap:.0%}\n")
dist.destroy_process_group()

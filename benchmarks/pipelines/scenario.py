"""What is measured: a workload, a link, and the contestants that take turns on them."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.testbed import Layout, Rate

# Up to this share of the cores, others do not count as a disturbance.
QUIET = 0.03


class Family(StrEnum):
    """Who implements a contestant."""

    TORCHREC = "torchrec"
    OVERLANE = "overlane"
    LIMIT = "limit"


class Limit(StrEnum):
    """What a limit leaves out of a step."""

    TRANSFERS = "no transfer"
    WAITING = "no waiting"
    COMPUTE = "no compute"


class Transport(StrEnum):
    """How an AllToAll moves."""

    RUNTIME = "runtime"
    GLOO = "gloo"
    ONE_GROUP = "one-group"


class Precision(StrEnum):
    """As what embeddings and their gradients travel."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


class Frozen(BaseModel):
    """A record that travels from the command to the ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Contestant(Frozen):
    """One pipeline. `pipeline` is a TorchRec class or, for Overlane, a schedule.

    `sharder_options` go to the sharders, for Overlane `pipeline_options` to `TrainPipeline`. `transport` chooses how an
    AllToAll of Overlane moves: what the runtime does best, gloo's own, or OL and NOL rows on the same process group.
    `precision` is what embeddings and their gradients travel as. A limit is a schedule of Overlane whose embedding,
    gradient and dense transfers move nothing, or whose transfers nobody waits for, or one that only transfers.
    """

    name: str
    family: Family
    pipeline: str
    transport: Transport = Transport.RUNTIME
    precision: Precision = Precision.FP32
    sharder_options: dict[str, bool] = {}
    pipeline_options: dict[str, bool] = {}
    limit: Limit | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME=SCHEDULE[,SETTING=VALUE]...`, a variant of Overlane.

        Raises ValueError for anything else.
        """
        name, _, rest = text.partition("=")
        schedule, *settings = rest.split(",")
        if not name or not schedule:
            raise ValueError(f"variant: {text!r} is none; write for example gloo=prioritized,transport=gloo")
        made = cls(name=name, family=Family.OVERLANE, pipeline=schedule)
        for setting in settings:
            made = made._with(*setting.partition("=")[::2])
        return made

    def _with(self, key: str, value: str) -> Self:
        if key == "transport" and value in set(Transport):
            return self.model_copy(update={"transport": Transport(value)})
        if key == "precision" and value in set(Precision):
            return self.model_copy(update={"precision": Precision(value)})
        section, _, option = key.partition(".")
        if section not in ("sharder", "pipeline") or not option or value not in ("true", "false"):
            raise ValueError(
                f"variant: {key}={value} is no setting; known are transport=gloo, transport=one-group, "
                "precision=fp16, precision=bf16, sharder.OPTION=true, pipeline.OPTION=true"
            )
        field = f"{section}_options"
        return self.model_copy(update={field: {**getattr(self, field), option: value == "true"}})


class Workload(StrEnum):
    """What is trained."""

    TOWER = "tower"
    DLRM = "dlrm"
    MOVIELENS = "movielens"


class Scenario(Frozen):
    """A workload on a link. `rate` is what each node may send; `id_overlap` and `zipf` concern made-up ids only.

    Without `id_overlap`, consecutive batches share what chance gives. With `dedup`, all Overlane contestants and limits
    send each distinct id once.
    """

    workload: Workload = Workload.TOWER
    rate: str = "450mbit"
    nodes: int = 2
    id_overlap: float | None = Field(default=0.12, ge=0, le=1)
    zipf: float = Field(default=1.05, ge=0)
    batch_size: int = Field(default=1024, ge=1)
    hidden: int = Field(default=320, ge=1)
    sparse_optimizer: Literal["sgd", "rowwise_adagrad"] = "rowwise_adagrad"
    dedup: bool = False

    @property
    def layout(self) -> Layout:
        return Layout(self.nodes, Rate.parse(self.rate))

    @property
    def name(self) -> str:
        """Short, and fit for a file name."""
        made_up = "" if self.workload is Workload.MOVIELENS else f"-{self._ids}"
        return f"{self.workload}-{self.rate}{made_up}-hidden{self.hidden}{'-dedup' if self.dedup else ''}"

    @property
    def title(self) -> str:
        made_up = "" if self.workload is Workload.MOVIELENS else f", {self._ids}"
        dedup = ", dedup" if self.dedup else ""
        return f"{self.workload}, {self.nodes} nodes, {self.rate} each way{made_up}, hidden {self.hidden}{dedup}"

    @property
    def _ids(self) -> str:
        shared = "chance" if self.id_overlap is None else f"overlap{self.id_overlap:.0%}".replace("%", "")
        return f"{shared}-zipf{self.zipf:g}" if self.zipf else f"{shared}-uniform"


class Plan(Frozen):
    """How a scenario is measured: every contestant takes a block of steps in each turn.

    The first `settle` steps of a block are not counted: at its begin, transfers of the last block have arrived long
    ago, which a training never sees. A block in which others took more than `quiet` of the cores is measured again.
    """

    scenario: Scenario
    contestants: tuple[Contestant, ...]
    turns: int = Field(default=12, ge=2)
    block: int = Field(default=12, ge=1)
    settle: int = Field(default=3, ge=0)
    quiet: float = Field(default=QUIET, ge=0)


STANDARD = (
    Contestant(name="TorchRec Base", family=Family.TORCHREC, pipeline="TrainPipelineBase"),
    Contestant(name="TorchRec SparseDist", family=Family.TORCHREC, pipeline="TrainPipelineSparseDist"),
    Contestant(name="TorchRec FusedSparseDist", family=Family.TORCHREC, pipeline="TrainPipelineFusedSparseDist"),
    Contestant(name="TorchRec PEC", family=Family.TORCHREC, pipeline="TrainPipelinePEC"),
    Contestant(name="sync", family=Family.OVERLANE, pipeline="sync"),
    Contestant(name="sparse_dist", family=Family.OVERLANE, pipeline="sparse_dist"),
    Contestant(name="prioritized", family=Family.OVERLANE, pipeline="prioritized"),
    Contestant(name="compute only", family=Family.LIMIT, pipeline="sparse_dist", limit=Limit.TRANSFERS),
    Contestant(name="compute only (prioritized)", family=Family.LIMIT, pipeline="prioritized", limit=Limit.TRANSFERS),
    Contestant(name="no waiting (prioritized)", family=Family.LIMIT, pipeline="prioritized", limit=Limit.WAITING),
    Contestant(name="transfers alone (prioritized)", family=Family.LIMIT, pipeline="prioritized", limit=Limit.COMPUTE),
)

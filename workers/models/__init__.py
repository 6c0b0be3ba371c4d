"""Built-in models. A factory is called as `factory(schema, **params)` and returns a module for TorchRec's pipelines:
`forward(batch)` gives `(loss, (loss, logits, labels))`, the second part detached.
"""

from workers.models.build import build_model
from workers.models.interaction import dlrm
from workers.models.ranker import sequence_ranker
from workers.models.ranking import LossLogitsLabels
from workers.models.transducer import hstu

__all__ = ["LossLogitsLabels", "build_model", "dlrm", "hstu", "sequence_ranker"]

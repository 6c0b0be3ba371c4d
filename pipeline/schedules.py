"""The three schedules, each a table over the same stage functions.

`prioritized` hides the embedding AllToAlls: rows that batches b and b+1 do not share (NOL) are sent one step early and
their gradients one step late; only shared rows (OL) stay on the critical path.
"""

from pipeline.schedule import Lane, Schedule, TableRows, stage

COPY, DIST, COMPUTE = Lane.COPY, Lane.DIST, Lane.COMPUTE
PRIORITY, BACKGROUND, DENSE = Lane.PRIORITY, Lane.BACKGROUND, Lane.DENSE

SYNC = Schedule(
    "sync",
    (
        stage("copy_batch", COPY, 0),
        stage("input_splits", DIST, 0, "copy_batch"),
        stage("input_dist", DIST, 0, "input_splits"),
        stage("receive", DIST, 0, "input_dist"),
        stage("lookup", COMPUTE, 0, "receive apply(-1)", reads=TableRows.ALL),
        stage("embedding_a2a", PRIORITY, 0, "lookup receive"),
        stage("forward", COMPUTE, 0, "embedding_a2a receive copy_batch"),
        stage("backward", COMPUTE, 0, "forward receive"),
        stage("dense_allreduce", DENSE, 0, "backward"),
        stage("gradient_a2a", PRIORITY, 0, "backward receive"),
        stage("apply", COMPUTE, 0, "gradient_a2a lookup receive", writes=TableRows.ALL),
        stage("optimizer", COMPUTE, 0, "dense_allreduce"),
    ),
)

SPARSE_DIST = Schedule(
    "sparse_dist",
    (
        stage("copy_batch", COPY, -2),
        stage("receive", DIST, 0, "input_dist"),
        stage("lookup", COMPUTE, 0, "receive apply(-1)", reads=TableRows.ALL),
        stage("embedding_a2a", PRIORITY, 0, "lookup receive"),
        stage("input_splits", DIST, -1, "copy_batch"),
        stage("forward", COMPUTE, 0, "embedding_a2a receive copy_batch"),
        stage("input_dist", DIST, -1, "input_splits"),
        stage("backward", COMPUTE, 0, "forward receive"),
        stage("dense_allreduce", DENSE, 0, "backward"),
        stage("gradient_a2a", PRIORITY, 0, "backward receive"),
        stage("optimizer", COMPUTE, 0, "dense_allreduce"),
        stage("apply", COMPUTE, 0, "gradient_a2a lookup receive", writes=TableRows.ALL),
    ),
)

PRIORITIZED = Schedule(
    "prioritized",
    (
        stage("copy_batch", COPY, -2),
        stage("receive", DIST, -1, "input_dist"),
        stage("overlap", DIST, -1, "receive receive(-1)"),
        stage("nol_gradient_a2a", BACKGROUND, 1, "backward overlap(+1) receive"),
        stage("forward", COMPUTE, 0, "ol_embedding_a2a nol_embedding_a2a partition receive copy_batch"),
        stage("input_splits", DIST, -2, "copy_batch"),
        stage("partition", DIST, -1, "overlap receive receive(-1)"),
        stage(
            "nol_apply",
            COMPUTE,
            1,
            "nol_gradient_a2a overlap(+1) receive",
            writes=TableRows.NOL_WITH_NEXT,
            during="backward",
        ),
        stage("nol_lookup", COMPUTE, -1, "overlap nol_apply(-2)", reads=TableRows.NOL_WITH_PREVIOUS, during="backward"),
        stage("nol_embedding_a2a", BACKGROUND, -1, "nol_lookup overlap partition", during="backward"),
        stage("backward", COMPUTE, 0, "forward partition(+1) receive"),
        stage("ol_gradient_a2a", PRIORITY, 0, "backward overlap(+1) receive"),
        stage("weight_gradients", COMPUTE, 0, "backward"),
        stage("dense_allreduce", DENSE, 0, "weight_gradients"),
        stage(
            "ol_apply",
            COMPUTE,
            0,
            "ol_gradient_a2a overlap(+1) receive",
            writes=TableRows.OL_WITH_NEXT,
            during="weight_gradients",
        ),
        stage(
            "ol_lookup",
            COMPUTE,
            -1,
            "overlap ol_apply(-1)",
            reads=TableRows.OL_WITH_PREVIOUS,
            during="weight_gradients",
        ),
        stage("ol_embedding_a2a", PRIORITY, -1, "ol_lookup overlap partition", during="weight_gradients"),
        stage("input_dist", DIST, -2, "input_splits"),
        stage("optimizer", COMPUTE, 0, "dense_allreduce"),
    ),
)

ALL: dict[str, Schedule] = {schedule.name: schedule for schedule in (SYNC, SPARSE_DIST, PRIORITIZED)}


def get(name: str) -> Schedule:
    """The schedule of that name. Raises ValueError that lists the known ones."""
    if name not in ALL:
        raise ValueError(f"schedule: {name!r} is not known; choose one of {', '.join(ALL)}")
    return ALL[name]

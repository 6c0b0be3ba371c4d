"""Overlane's schedules against TorchRec's pipelines: same model, plan, batches and link, taking turns.

`python -m benchmarks.pipelines --help` says what can be chosen; `make bench ARGS=pipelines` runs the
standard scenarios.
"""

"""Several nodes on one machine: a network namespace each, a switch between them, and a limited link.

    with Testbed(Layout(nodes=2, rate=Rate.parse("500mbit"))) as testbed:
        status = testbed.run(["python", "train.py"])

`python -m benchmarks.testbed --nodes 2 --rate 500mbit -- python train.py` does the same from a shell.
"""

from benchmarks.testbed.layout import Layout, Rate
from benchmarks.testbed.testbed import Testbed, TestbedUnavailable

__all__ = ["Layout", "Rate", "Testbed", "TestbedUnavailable"]

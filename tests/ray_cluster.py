"""A Ray cluster of two nodes on this machine: `python -m tests.ray_cluster`.

Prints its address. A line on standard input loses the second node, as if its power were cut; the end of the
input ends the cluster.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Serves until nobody wants it any more."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    print(f"address {cluster.address}", flush=True)
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        print("lost", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()

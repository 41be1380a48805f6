"""The same in Flower's Ray simulation: `simulation.py SHAPES CLIENTS ROUNDS LOG [CORES]`, in its environment.

CORES is what a client has to itself; Flower's own default, if it is not said.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from probe.client_app import app as client_app
from probe.server_app import train

app = ServerApp()


@app.main()
def main(grid: Grid, _: Context) -> None:
    """All rounds."""
    train(grid, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))


if __name__ == "__main__":
    told = {"client_resources": {"num_cpus": int(sys.argv[5]), "num_gpus": 0.0}} if sys.argv[5:] else None
    run_simulation(app, client_app, num_supernodes=int(sys.argv[2]), backend_config=told)

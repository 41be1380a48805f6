"""The federations that are run in both revisions. A line below is a case: its name, its flags."""

from __future__ import annotations

SHARDS = {"clients": [list(range(700)), list(range(700, 1000)), list(range(1000, 1120))]}
"""What shards.json in the folder of every run holds: without it all shards have the same size."""
NUM_CLIENTS = len(SHARDS["clients"])
COMMON = f"--dataset digits --num-clients {NUM_CLIENTS} --batch-size 64 --seed 7 --eval-every 0"
"""Flags of every case; each says the number of rounds and what it needs besides."""

CASES = {
    "fedpvr": "--rounds 3",
    "fedavg": "--rounds 3 --algorithm fedavg",
    "scaffold": "--rounds 3 --algorithm scaffold",
    "fedprox": "--rounds 3 --algorithm fedprox --mu 0.5",
    "feddyn": "--rounds 3 --algorithm feddyn --feddyn-alpha 0.1",
    "fedpvr derived": "--rounds 3 --variates derived --local-steps 4",
    "fedpvr derived, unequal": "--rounds 3 --variates derived --partition shards.json",
    "scaffold derived": "--rounds 3 --algorithm scaffold --variates derived --local-steps 4",
    "fp32": "--rounds 2 --local-steps 3 --codec fp32 --codec down=fp32 --codec control=fp32",
    "fp16": "--rounds 3 --local-steps 3 --codec fp16",
    "bf16": "--rounds 3 --local-steps 3 --codec bf16",
    "int8": "--rounds 3 --local-steps 3 --codec int8",
    "int8-tensor": "--rounds 3 --local-steps 3 --codec int8-tensor",
    "topk": "--rounds 3 --local-steps 3 --codec topk:0.1",
    "scaffold int8": "--rounds 3 --algorithm scaffold --codec int8 --codec down=fp16 --codec control=int8",
    "derived int8": "--rounds 3 --variates derived --local-steps 4 --codec int8 --codec down=bf16",
    "two of three": "--rounds 4 --clients-per-round 2",
    "two of three derived": "--rounds 4 --clients-per-round 2 --variates derived --local-steps 4",
    "two of three feddyn": "--rounds 4 --clients-per-round 2 --algorithm feddyn",
    "few classes": "--rounds 3 --alpha 0.05",
    "unequal shards": "--rounds 3 --partition shards.json",
    "norm bound": "--rounds 3 --partition shards.json --norm-bound 2",
    "median": "--rounds 3 --aggregation median",
    "trimmed": "--rounds 3 --algorithm scaffold --aggregation trimmed:0.3",
    "examples": "--rounds 3 --partition shards.json --algorithm fedavg --weighting examples",
    "step sizes": "--rounds 3 --momentum 0.5 --schedule cosine --eta-g 0.7 --local-epochs 2",
    "batch norm": "--rounds 2 --model resnet8-bn --svr layer3 --svr classifier --local-steps 2",
    "mlp": "--rounds 2 --model mlp --validation 0.2",
}

MIXED = ("fedpvr", "fedpvr derived", "scaffold int8", "feddyn")
"""Cases that are also run with the server of one revision and the clients of the other."""

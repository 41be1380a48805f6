"""Tests. Numerical libraries get one thread, here and in every process of a test: there are few cores."""

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

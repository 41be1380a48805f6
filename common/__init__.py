"""What server, clients and inspector share: errors, events, tensors, the wire, the algorithms, data.

Whoever imports it gives numerical libraries one thread, in this process and in those it starts, unless the
environment says otherwise. They read these variables when they are loaded, and every command imports this
before any of them. BLAS threads spin while they wait for each other: that took a quarter to half of the
server's processor time. Torch has the threads that `fedclient run --threads` says.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _library in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_library, os.environ["OMP_NUM_THREADS"])

# One image for servers, clients and tools.
#
# On amd64 the usual package index has torch with CUDA only, several gigabytes. The address of the index with PyTorch's CPU
# builds is on PyTorch's installation page; given as EXTRA_INDEX it makes the image small:
#   docker build --build-arg EXTRA_INDEX=ADDRESS -t fedpvr .
#
# EXTRAS are those of pyproject.toml. Without any of them it is an image for a server that needs no torch (docs/install.md):
#   docker build --build-arg EXTRAS= -t fedpvr-server .

FROM python:3.11-slim-bookworm AS packages
ARG EXTRA_INDEX=
ARG EXTRAS="client lab wire"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml requirements.txt ./
# What the project needs to run and nothing else, in the versions it is tested with.
RUN python -m venv --without-pip /opt/fedpvr \
    && python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        extras = [name for extra in sys.argv[1:] for name in project["optional-dependencies"][extra]]; \
        print(*project["dependencies"], *(name for name in extras if not name.startswith("fedpvr[")), sep="\n")' $EXTRAS \
        > needed.txt \
    && pip --python /opt/fedpvr/bin/python install --no-compile -r needed.txt -c requirements.txt \
        ${EXTRA_INDEX:+--extra-index-url "$EXTRA_INDEX"} \
    && cd /opt/fedpvr/lib/python3.11/site-packages \
    && rm -rf torch/include torch/share torch/test matplotlib/mpl-data/sample_data \
    && find . -path ./torch/bin/torch_shm_manager -o -path './torch/bin/*' -type f -delete \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    # Bytecode of what is really imported: starts fast without the 150 MB of all the rest.
    && /opt/fedpvr/bin/python -c 'import google_crc32c, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, \
        click, numpy, rich.table, safetensors.numpy' \
    && if [ -d torch ]; then /opt/fedpvr/bin/python -c 'import safetensors.torch, torch'; fi

FROM packages AS code
COPY . .
RUN pip --python /opt/fedpvr/bin/python install --no-deps --prefix /opt/code .

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="fedpvr" \
    org.opencontainers.image.description="Federated learning over gRPC with partial variance reduction" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp fedpvr \
    && install -d -m 775 -o fedpvr -g fedpvr /runs /state /data /certs /work
COPY --from=packages /opt/fedpvr /opt/fedpvr
COPY --from=code /opt/code /opt/fedpvr
ENV PATH=/opt/fedpvr/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
# Models and data sets of one's own are imported from here.
WORKDIR /work
EXPOSE 50051
# Healthy once clients can join: that may take a download and the building of a model. It is asked every 5 s meanwhile.
# A busy machine may take long to answer; that is no reason to give a server up that has answered before.
HEALTHCHECK --interval=5s --timeout=30s --retries=10 --start-period=900s CMD ["fedserver", "health"]
CMD ["fedserver", "run", "--listen", "0.0.0.0:50051", "--insecure", "--run-dir", "/runs/default"]

# tcpdump, for wire.yml.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends tcpdump \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -m 775 -o 10001 -g 10001 /runs

# tcpdump and tc, for the services wire and slow.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends iproute2 tcpdump \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -m 775 -o 10001 -g 10001 /runs

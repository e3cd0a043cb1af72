# syntax=docker/dockerfile:1
# The image of every pod: head, branches, workers, and those that submit jobs. Small, not root, nothing written into it.
#
#   docker build --build-arg BASE_DIGEST=sha256:... -t registry.example.com/cortex:0.1.0 .
#
# The base's digest is yours to choose, and to renew when the base has fixes: `docker buildx imagetools inspect
# python:3.12-slim-bookworm` tells the current one. It has no default on purpose.
ARG BASE_DIGEST

FROM python:3.12-slim-bookworm@${BASE_DIGEST} AS build
WORKDIR /src
COPY k8s/image k8s/image
COPY pyproject.toml README.md LICENSE ./
COPY cortex cortex
COPY policies policies
COPY actors actors
RUN ["k8s/image/install", "/opt/cortex"]

FROM python:3.12-slim-bookworm@${BASE_DIGEST}
RUN groupadd --gid 10001 cortex \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin cortex \
    && install -d -o 10001 -g 10001 /var/lib/cortex
COPY --from=build /opt/cortex /opt/cortex
ENV PATH=/opt/cortex/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0
USER 10001:10001
WORKDIR /var/lib/cortex
CMD ["cortex", "--help"]

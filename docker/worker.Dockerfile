# A GPU worker: the tuner is installed in an engine's own image, so it tunes the engine that serves.
#   docker build -f docker/worker.Dockerfile --build-arg SGLANG_IMAGE=lmsysorg/sglang:v0.5.16 .
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.16
FROM ${SGLANG_IMAGE}
USER root
WORKDIR /opt/engine-tuner
COPY pyproject.toml README.md ./
COPY tuner tuner
COPY workers workers
COPY api api
COPY migrations migrations
# The engine's packages must keep their versions, or the worker would tune a different environment.
RUN python3 -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' > /tmp/engine.txt \
 && python3 -m pip install --no-cache-dir --constraint /tmp/engine.txt ".[postgres,service]" \
 && rm /tmp/engine.txt
RUN useradd --uid 10001 --create-home --home-dir /var/lib/tuner tuner
# A new volume takes the owner and the mode of the folder on which it is mounted.
RUN install --directory --owner tuner --mode 1777 /var/lib/tuner-gpu-locks
ENV HOME=/var/lib/tuner \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/tuner
ENTRYPOINT []
CMD ["tuner", "worker"]

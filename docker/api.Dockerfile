# The API, beat, migrations, and (with EXTRAS=compile,postgres,service) workers without a GPU.
#   docker build -f docker/api.Dockerfile -t engine-tuner-api .
# The packages are those of docker/LOCK.lock, which `make locks` writes for these extras.
ARG PYTHON=python:3.12.13-slim@sha256:57cd7c3a7a273101a6485ba99423ee568157882804b1124b4dd04266317710de
FROM ${PYTHON} AS build
ARG EXTRAS=api,postgres,service
ARG LOCK=api
# The engine releases to export for, as --build-arg ENGINE="sglang==0.5.16 vllm==0.33.0": their files
# alone, without their dependencies (torch, CUDA).
ARG ENGINE=sglang==0.5.16
RUN python -m venv /opt/tuner
WORKDIR /src
COPY docker/api.lock docker/worker-cpu.lock ./
RUN /opt/tuner/bin/pip install --no-cache-dir --require-hashes -r ${LOCK}.lock
COPY pyproject.toml README.md ./
COPY tuner tuner
COPY workers workers
COPY api api
COPY migrations migrations
# Whatever the lock lacks would have to be fetched, and fails.
RUN /opt/tuner/bin/pip install --no-cache-dir --no-index --no-build-isolation ".[${EXTRAS}]"
RUN for release in ${ENGINE}; do \
      /opt/tuner/bin/tuner list engines --no-triton --add "$release" || exit 1; \
    done

FROM ${PYTHON}
RUN useradd --uid 10001 --create-home --home-dir /var/lib/tuner tuner
COPY --from=build /opt/tuner /opt/tuner
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/tuner
EXPOSE 8765
CMD ["tuner", "serve", "--host", "0.0.0.0", "--port", "8765"]

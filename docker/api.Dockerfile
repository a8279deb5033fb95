# The API, beat, migrations, and (with EXTRAS=compile,postgres,service) workers without a GPU.
#   docker build -f docker/api.Dockerfile -t engine-tuner-api .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
ARG EXTRAS=api,postgres,service
# The sglang releases to export for: their files alone, without their dependencies (torch, CUDA).
ARG SGLANG=0.5.16
RUN python -m venv /opt/tuner
WORKDIR /src
COPY pyproject.toml README.md ./
COPY tuner tuner
COPY workers workers
COPY api api
COPY migrations migrations
RUN /opt/tuner/bin/pip install --no-cache-dir ".[${EXTRAS}]"
RUN for version in ${SGLANG}; do \
      /opt/tuner/bin/tuner engines add --no-triton "sglang==$version"; \
    done

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --create-home --home-dir /var/lib/tuner tuner
COPY --from=build /opt/tuner /opt/tuner
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/tuner
EXPOSE 8765
CMD ["tuner", "serve", "--host", "0.0.0.0", "--port", "8765"]

# docker build -t penstock .
# docker run -p 9324:9324 -p 9325:9325 -v penstock:/data -e PENSTOCK_ACCESS_KEY=me -e PENSTOCK_SECRET_KEY=secret penstock
#
# The first stage compiles the hot half of the package and installs it. The second has what serving needs, and no more: there
# is no shell in it. Every command of Penstock is: docker exec CONTAINER penstock queue list
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY tools tools
COPY src src
# kafka: so that the same image is a node of a cluster. Spark needs arrow, too: --build-arg EXTRAS=kafka,arrow
ARG EXTRAS=kafka
RUN PENSTOCK_COMPILE=1 python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv --without-pip /penstock \
    && python -m pip --python /penstock/bin/python install --no-cache-dir --constraint constraints.txt \
        "$(ls /wheels/penstock_mq-*.whl)[${EXTRAS}]" \
    && find /penstock -type d '(' -name tests -o -name f2py -o -name schema_registry ')' -prune -exec rm -rf {} + \
    && find /penstock '(' -name '*.py[ix]' -o -name '*.pxd' -o -name '*.[ach]' ')' -delete \
    && find /penstock -name '*.so' -exec strip --strip-unneeded {} + \
    && python tools/image_root.py /penstock /image

FROM scratch
LABEL org.opencontainers.image.title="Penstock" \
      org.opencontainers.image.description="A durable message queue: SQS, NSQ, REST and websocket in one server" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
RUN ["/penstock/bin/python", "-c", "import os; os.mkdir('/data', 0o700); os.chown('/data', 10001, 10001)"]
ENV PATH=/penstock/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PENSTOCK_DATA=/data \
    PENSTOCK_HOST=0.0.0.0 \
    PENSTOCK_LOG_FORMAT=json
USER 10001:10001
WORKDIR /data
VOLUME /data
# SQS, REST and metrics, NSQ over TCP, NSQ over HTTP
EXPOSE 9324 9325 4150 4151
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9325/readyz', timeout=2)"]
ENTRYPOINT ["penstock"]
CMD ["serve"]

# Spark with Penstock's connector and pipelines. Spark's jars come with PySpark.
FROM python:3.13-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-21-jre-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY src src
RUN python -m pip install --no-cache-dir --constraint constraints.txt '.[spark,kafka,arrow,lakes]' \
    && useradd --uid 10001 --create-home penstock
USER 10001
WORKDIR /home/penstock
# It waits for commands: docker compose exec spark penstock sql "..."
CMD ["sleep", "infinity"]

# lmtrain on a CPU: docker build -f docker/cpu.Dockerfile -t lmtrain:cpu .
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++=4:12.2.0-3 git=1:2.39.* make=4.3-4.1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /lmtrain
COPY pyproject.toml requirements.lock Makefile README.md LICENSE train.py ./
COPY src src
COPY conf conf
COPY data_pipelines data_pipelines
RUN make setup
ENV PATH="/lmtrain/.venv/bin:$PATH"
ENTRYPOINT ["lmtrain"]
CMD ["--help"]

# lmtrain on NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t lmtrain:cuda .
# torch's own wheels bring CUDA; the devel image adds nvcc and the headers that flash-attn and Triton compile with.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++=4:13.2.0-7ubuntu1 git=1:2.43.* make=4.3-4.1build2 \
       python3.12-dev=3.12.* python3.12-venv=3.12.* \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /lmtrain
COPY pyproject.toml requirements.lock Makefile README.md LICENSE train.py ./
COPY src src
COPY conf conf
COPY data_pipelines data_pipelines
RUN make setup && .venv/bin/python -m ensurepip
ENV PATH="/lmtrain/.venv/bin:$PATH"
ENTRYPOINT ["lmtrain"]
CMD ["--help"]

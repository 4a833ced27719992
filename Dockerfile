# The two commands of the README, in a container:
#
#   docker build -t lactchain .
#   docker run --rm -v "$PWD/runs:/lactchain/runs" lactchain                 # make quickstart
#   docker run --rm lactchain test                                           # make test
#
# On a CPU. For CUDA take an image of PyTorch with Python 3.11 to 3.13 in the place of this one, and
# leave the versions of constraints.txt to it.
FROM python:3.12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium curl git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /lactchain
COPY . .
RUN make install
ENTRYPOINT ["make"]
CMD ["quickstart"]

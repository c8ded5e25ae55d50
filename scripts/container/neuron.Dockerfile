# dfmp2 on Trainium. The base image brings the Neuron runtime and tools in /opt/aws/neuron, Python 3.11 or newer with
# its module venv, and bash; the index is AWS's own (Neuron setup guide), versions are those of one SDK release:
#
#   docker build -f scripts/container/neuron.Dockerfile --build-arg BASE_IMAGE=... --build-arg NEURON_INDEX=... \
#     --build-arg RUNTIME=nrtpy==... --build-arg COMPILER='nki==... neuronx-cc==...' -t dfmp2:neuron .
#
# Lane nki: RUNTIME launches programs, COMPILER makes them, in an environment of its own since the two clash.
# Lane nki-xla: a base image with torch-neuronx for PYTHON, --build-arg INHERIT=--inherit, and no RUNTIME.
# Neither the image nor its steps were tried on a Trainium instance.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG PYTHON=python3
ARG USER_ID=10001
ARG NEURON_INDEX
ARG RUNTIME
ARG COMPILER
ARG INHERIT
COPY pyproject.toml README.md LICENSE /build/
COPY dfmp2 /build/dfmp2
COPY scripts/container /build/scripts/container
RUN bash /build/scripts/container/install.sh --prefix /opt/dfmp2 --work /work --uid "${USER_ID}" --python "${PYTHON}" --index "${NEURON_INDEX}" --add "${RUNTIME}" ${INHERIT}
RUN bash /build/scripts/container/install.sh --prefix /opt/nki --python "${PYTHON}" --index "${NEURON_INDEX}" --only "${COMPILER}" && rm -rf /build
ENV PATH=/opt/dfmp2/bin:/opt/aws/neuron/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV LD_LIBRARY_PATH=/opt/aws/neuron/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DFMP2_NKI_PYTHON=/opt/nki/bin/python
ENV HOME=/work TMPDIR=/work DFMP2_SCRATCH=/work XDG_CACHE_HOME=/work/.cache
WORKDIR /work
VOLUME /work
USER ${USER_ID}:${USER_ID}
ENTRYPOINT ["/opt/dfmp2/bin/dfmp2-entrypoint"]
CMD ["--help"]

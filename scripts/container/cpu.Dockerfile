# dfmp2 on CPUs. Any base image with Python 3.11 or newer, its module venv, and bash will do:
#
#   docker build -f scripts/container/cpu.Dockerfile --build-arg BASE_IMAGE=python:3.12-slim -t dfmp2:cpu .
#
# The image runs as a user without rights, also with a read-only root: what is written goes to /work and to mounts.
# Its steps are exercised without an engine by scripts/container/test_cpu.sh; the image was not built by us.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG PYTHON=python3
ARG USER_ID=10001
COPY pyproject.toml README.md LICENSE /build/
COPY dfmp2 /build/dfmp2
COPY scripts/container /build/scripts/container
RUN bash /build/scripts/container/install.sh --prefix /opt/dfmp2 --work /work --uid "${USER_ID}" --python "${PYTHON}" && rm -rf /build
ENV PATH=/opt/dfmp2/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV HOME=/work TMPDIR=/work DFMP2_SCRATCH=/work XDG_CACHE_HOME=/work/.cache
WORKDIR /work
VOLUME /work
USER ${USER_ID}:${USER_ID}
ENTRYPOINT ["/opt/dfmp2/bin/dfmp2-entrypoint"]
CMD ["--help"]

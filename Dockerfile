# The images of Trimtab.
#
#   docker build --target operator --tag trimtab-operator:0.1.0 .      controller, extender and command line
#   docker build --target agent    --tag trimtab-agent:0.1.0 .         one per GPU node
#   docker build --target trainer  --tag trimtab-trainer:0.1.0 .       PyTorch and the training script of the samples
#
# `operator` and `agent` have no distribution in them: Python, the packages and the shared libraries that these need, no
# shell, no package manager. They run as 65532 with a read-only root. hack/README.md says more.
#
# Nothing here needs BuildKit; with it, only the stages of the target are built.

# The Python that all tests run with, 3.11.16 of September 2026 for all its platforms. By digest, so that nobody else's push
# changes what is built: a newer one is a change of this line.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# The version is pyproject.toml's; a build of another one ends with an error.
ARG VERSION=0.1.0

FROM ${BASE} AS build
# For builds behind a proxy or a mirror; pip reads them from the environment. Without BuildKit, stages inherit no ARG.
ARG PIP_INDEX_URL
ARG PIP_CERT
# Everything that is installed is in hack/constraints.txt with its hashes, and a wheel: no package runs anything to be built.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_ONLY_BINARY=:all: \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY pyproject.toml ./
COPY hack/constraints.txt hack/requirements.py hack/
RUN python3 -m venv /opt/tools \
    && python3 hack/requirements.py --only-groups build,image >/tmp/tools.txt \
    && /opt/tools/bin/pip install --require-hashes --requirement /tmp/tools.txt \
    && python3 -m venv --without-pip /opt/venv
COPY hack/image hack/image

FROM build AS wheel
ARG VERSION
COPY README.md ./
COPY operator operator
COPY policy policy
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && test -f "/wheels/trimtab-${VERSION}-py3-none-any.whl"

FROM build AS operator-root
ARG PIP_INDEX_URL
ARG PIP_CERT
# Gavel, Sia and Themis decide with HiGHS and Clarabel; the rest of the extra `sim` is for simulations. Clarabel says that it
# needs scipy and cffi (150 MB), and uses them for cones that we do not have.
RUN python3 hack/requirements.py operator --with highspy,clarabel --leave-out scipy,cffi,pycparser >/tmp/requirements.txt \
    && /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps --require-hashes --requirement /tmp/requirements.txt
COPY --from=wheel /wheels /wheels
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl \
    && /opt/tools/bin/python hack/image/sbom.py operator /image/usr/share/sbom \
    && python3 hack/image/root.py /opt/venv /image

FROM scratch AS operator
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="trimtab-operator" \
      org.opencontainers.image.description="Controller, scheduler extender and command line of Trimtab" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=operator-root /image /
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin \
    HOME=/var/lib/trimtab \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["trimtab"]
CMD ["--help"]

FROM build AS agent-root
ARG PIP_INDEX_URL
ARG PIP_CERT
# The agent decides nothing, and needs neither arrays nor weights: half of its size.
RUN python3 hack/requirements.py agent --without numpy,safetensors >/tmp/requirements.txt \
    && /opt/tools/bin/pip --python /opt/venv/bin/python install --require-hashes --requirement /tmp/requirements.txt
COPY --from=wheel /wheels /wheels
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl \
    && /opt/tools/bin/python hack/image/sbom.py agent /image/usr/share/sbom \
    && python3 hack/image/root.py /opt/venv /image

FROM scratch AS agent
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="trimtab-agent" \
      org.opencontainers.image.description="Reads the GPUs of a node and reports them to Trimtab" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=agent-root /image /
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin \
    HOME=/var/lib/trimtab \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "trimtab.agent"]

FROM build AS trainer-root
ARG PIP_INDEX_URL
ARG PIP_CERT
# Where PyTorch comes from: `pypi`, or `base`, an image that has one already (hack/kind/trainer-base, those of NVIDIA).
# A torchrun of the base starts the base's Python, which has no trimtab.report, so there is another one.
ARG TORCH=pypi
# pypi: empty for the lock's PyTorch; on x86-64 that is CUDA (3 GB). Or the address of a wheel for CPUs of that version, which
# needs none of the CUDA packages, with its hash: https://.../torch-...whl#sha256=...; the index of the CPU builds, which is
# in PyTorch's own instructions, has such links. Without a hash, the build ends with an error.
ARG TORCH_WHEEL
RUN case "$TORCH" in \
        base) python3 -c "import numpy, torch" \
            && python3 -m venv --without-pip --system-site-packages /opt/venv \
            && printf '%s\n' '#!/opt/venv/bin/python' 'from torch.distributed.run import main' 'main()' \
                >/opt/venv/bin/torchrun \
            && chmod +x /opt/venv/bin/torchrun ;; \
        pypi) python3 hack/requirements.py --only torch,numpy ${TORCH_WHEEL:+--leave-out torch,triton,cuda-,nvidia-} \
                >/tmp/requirements.txt \
            && /opt/tools/bin/pip --python /opt/venv/bin/python install --require-hashes \
                --requirement /tmp/requirements.txt ${TORCH_WHEEL:+"torch @ $TORCH_WHEEL"} ;; \
        *) echo "TORCH=$TORCH: it is pypi or base" >&2; exit 1 ;; \
    esac
COPY --from=wheel /wheels /wheels
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --no-deps /wheels/*.whl \
    && /opt/tools/bin/python hack/image/sbom.py trainer /opt/sbom \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv

# Unlike the others it keeps its distribution: trainings of one's own start FROM it.
FROM ${BASE} AS trainer
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="trimtab-trainer" \
      org.opencontainers.image.description="PyTorch, trimtab.report and the training script of Trimtab's samples" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=trainer-root /opt/venv /opt/venv
COPY --from=trainer-root /opt/sbom /usr/share/sbom
COPY hack/trainer/train.py /opt/trimtab/train.py
# /tmp (torchrun's own files) is the only place that it writes to, but for its checkpoints.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["torchrun", "/opt/trimtab/train.py", "--help"]

# reward-server.
#
#   docker build -t reward-server .
#   docker volume create reward-data
#   docker run --rm -v reward-data:/var/lib/reward-server reward-server keys create me --scope admin
#   docker run -d --name reward-server --hostname reward-server --init --stop-timeout 130 \
#       -p 127.0.0.1:8080:8080 -v reward-data:/var/lib/reward-server \
#       --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges reward-server
#
# The key comes first: without one the server refuses to listen on anything but loopback. A folder of the
# host in place of the named volume must belong to uid 10001. Set REWARD_WORKERS where --cpus limits the
# container: the default is one worker for each core of the host.
#
# Build arguments
#   PYTHON_IMAGE  any Debian-like image with python3 >= 3.11 and its venv module
#   PIP_ARGS      more options for the `pip install` of the dependencies
#
# Without the package index, or through a proxy with its own certificate authority: put wheels (for the
# image's Python), or the authority's certificate, into the folder wheels/ beside this file. It is seen by
# pip as a --find-links folder, and as /build/wheels in PIP_ARGS. Nothing of it stays in the image.
#   pip wheel -w wheels -c constraints.txt '.[server,postgres]' 'setuptools>=77'
#   docker build --network none --build-arg PIP_ARGS=--no-index -t reward-server .
#   docker build --build-arg PIP_ARGS="--cert /build/wheels/ca.pem" -t reward-server .

ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /build
RUN python3 -m venv /opt/venv
# A pattern may match nothing as long as another source of the line exists: constraints.txt and wheels/
# are optional.
COPY pyproject.toml constraints.tx[t] ./
COPY pyproject.toml wheel[s] ./wheels/
# The dependencies alone, and what builds the package: a change of our source does not fetch them again.
RUN touch constraints.txt \
    && /opt/venv/bin/python -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); p = t["project"]; extras = p["optional-dependencies"]; print(*t["build-system"]["requires"], *p["dependencies"], *extras["server"], *extras["postgres"], sep="\n")' > requirements.txt \
    && /opt/venv/bin/pip install --find-links wheels -c constraints.txt -r requirements.txt ${PIP_ARGS}
COPY README.md LICENSE ./
COPY reward_server ./reward_server
COPY sandboxes ./sandboxes
RUN /opt/venv/bin/pip install --no-index --no-deps --no-build-isolation . \
    && /opt/venv/bin/pip uninstall --yes --quiet setuptools \
    && /opt/venv/bin/pip check \
    && /opt/venv/bin/pip uninstall --yes --quiet pip

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="reward-server" \
      org.opencontainers.image.description="Versioned graders behind an HTTP service, for reinforcement learning of language models" \
      org.opencontainers.image.licenses="Apache-2.0"
# Sandboxes for kind `code`; without the package index the image goes without.
RUN command -v bwrap >/dev/null \
    || (apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap libseccomp2 \
        && rm -rf /var/lib/apt/lists/*) \
    || echo "no bubblewrap: kind code will leave its items unscored"
RUN groupadd --gid 10001 reward \
    && useradd --uid 10001 --gid reward --no-create-home --home-dir /var/lib/reward-server \
        --shell /usr/sbin/nologin reward \
    && install -d -o reward -g reward -m 0700 /var/lib/reward-server
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    REWARD_HOST=0.0.0.0 \
    REWARD_PORT=8080 \
    REWARD_DATA_DIR=/var/lib/reward-server
VOLUME /var/lib/reward-server
EXPOSE 8080
USER 10001:10001
# It finishes what it accepted, for at most REWARD_SHUTDOWN_GRACE_S (120): give it that long before the
# SIGKILL (--stop-timeout 130; stop_grace_period in docker-compose.yml). An idle server ends at once.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/venv/bin/python", "-I", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['REWARD_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["reward-server"]
CMD ["serve"]

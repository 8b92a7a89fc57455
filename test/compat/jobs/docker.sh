# program: docker
# version: docker --version
# does: docker ps
# kind: refused
# refusal: Cannot connect to the Docker daemon|failed to connect
# note: the daemon's socket is root on the host and is never shown

job() { docker ps; }

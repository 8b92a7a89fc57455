# program: podman
# version: podman --version
# does: podman info, which needs a user namespace
# kind: refused
# refusal: .
# note: containers need namespaces and mounts of their own

job() { podman info; }

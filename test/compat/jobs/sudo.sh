# program: sudo
# version: sudo --version | head -1
# does: sudo -n true
# kind: refused
# refusal: ^sudo: 
# note: no process in a box ever gains a right; run what needs root on the host, or see --user root

job() { sudo -n true; }

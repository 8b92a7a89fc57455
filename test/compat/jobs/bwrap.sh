# program: bubblewrap, unshare
# needs: bwrap unshare
# version: bwrap --version
# does: a sandbox within the box
# kind: refused
# refusal: Operation not permitted|No permissions|No space left
# note: a further user namespace is refused: it would bring capabilities and the kernel code behind them

job() { bwrap --ro-bind / / true || unshare -r true; }

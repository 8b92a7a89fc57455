# program: perf
# version: perf --version
# does: perf stat true
# kind: refused
# refusal: .
# note: perf_event_open is refused; strace, gdb, valgrind and gprof work

job() { perf stat true; }

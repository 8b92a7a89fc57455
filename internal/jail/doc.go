// Package jail turns a plan into processes under kernel confinement.
//
// It starts boxinit (see the C source beside it) from a sealed memfd, feeds it
// the plan, and hands back a Box: a control socket and a pidfd of PID 1. It
// also owns the cgroup of a box and the compiled seccomp filter.
//
// It may touch: processes, namespaces, cgroups, and the box's own directory.
package jail

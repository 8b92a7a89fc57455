// Command vm kills a virtual machine while hutch promotes in it, again and
// again, and looks at the disk it leaves. Run by make proof.
//
// What the guest's kernel had not yet written is lost, as it is when a machine
// stops; what it had given to the disk is kept by the host, written through or
// not. So it shows what a stopped kernel leaves, not what a disk loses: that is
// what the power cuts beside it are for.
//
// It may touch: build/vm, a directory of its own beneath the temporary
// directory, and, as root in a mount namespace of its own, loop devices and
// mounts.
package main

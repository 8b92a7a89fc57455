package filter

import (
	_ "embed"

	"golang.org/x/sys/unix"
)

//go:embed filter_arm64.bpf
var program string

const nativeArch = unix.AUDIT_ARCH_AARCH64

var renames = []uint32{unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2}

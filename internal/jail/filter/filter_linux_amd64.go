package filter

import (
	_ "embed"

	"golang.org/x/sys/unix"
)

//go:embed filter_amd64.bpf
var program string

const nativeArch = unix.AUDIT_ARCH_X86_64

var renames = []uint32{unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2}

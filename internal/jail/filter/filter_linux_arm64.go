package filter

import _ "embed"

//go:embed filter_arm64.bpf
var program string

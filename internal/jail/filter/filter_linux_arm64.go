package filter

import _ "embed"

//go:embed filter_arm64.bpf
var program string

//go:embed command_arm64.bpf
var commands string

//go:embed ports_arm64.bpf
var ports string

//go:embed refused_arm64.txt
var refused string

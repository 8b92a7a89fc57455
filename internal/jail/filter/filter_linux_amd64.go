package filter

import _ "embed"

//go:embed filter_amd64.bpf
var program string

//go:embed command_amd64.bpf
var commands string

//go:embed ports_amd64.bpf
var ports string

//go:embed refused_amd64.txt
var refused string

package policy

import "time"

// A Policy is what one source says a command may do: the flags of a command
// line, the environment, a user's file, a workspace's file, a profile, or a Go
// program. What it leaves out (nil) is left to the sources below it; Resolve
// puts them together.
type Policy struct {
	Profile      *string      `toml:"profile" json:"profile,omitempty"` // the profile that is the ground of all others
	Capabilities Capabilities `toml:"capabilities" json:"capabilities,omitzero"`
	Paths        Paths        `toml:"paths" json:"paths,omitzero"`
	Network      Network      `toml:"network" json:"network,omitzero"`
	Env          Env          `toml:"env" json:"env,omitzero"`
	Limits       Limits       `toml:"limits" json:"limits,omitzero"`
	Output       Output       `toml:"output" json:"output,omitzero"`
	// Deterministic removes what differs between two runs of a command.
	Deterministic *bool `toml:"deterministic" json:"deterministic,omitempty"`
}

// Capabilities are the kinds of thing a command may do at all.
type Capabilities struct {
	Subprocess *bool `toml:"subprocess" json:"subprocess,omitempty"` // other processes, and programs beside the first
	FSRead     *bool `toml:"fs_read" json:"fs_read,omitempty"`       // see the workspace; without it an empty directory lies in its place
	FSWrite    *bool `toml:"fs_write" json:"fs_write,omitempty"`     // write to the branch of the workspace; without it EROFS
	Network    *bool `toml:"network" json:"network,omitempty"`       // the host's network; without it only a loopback of its own
	TTY        *bool `toml:"tty" json:"tty,omitempty"`               // a pseudo-terminal, where one is asked for
	Debug      *bool `toml:"debug" json:"debug,omitempty"`           // ptrace its own children
}

// Paths say what of the host a box sees. Read and Write hold absolute paths or
// such that begin with "~/"; Hide holds those and gitignore patterns that are
// relative to the workspace.
type Paths struct {
	Read       []string `toml:"read" json:"read,omitempty"`             // also shown, read-only
	Write      []string `toml:"write" json:"write,omitempty"`           // also shown, copy-on-write: what is written evaporates
	Hide       []string `toml:"hide" json:"hide,omitempty"`             // absent
	Toolchains *bool    `toml:"toolchains" json:"toolchains,omitempty"` // toolchains can be written; what is written evaporates
	WholeRoot  *bool    `toml:"whole_root" json:"whole_root,omitempty"` // the whole file system of the host is seen and can be written; what is written evaporates
}

// Network narrows the network that the capability gives.
type Network struct {
	Connect []uint16 `toml:"connect" json:"connect,omitempty"` // TCP ports that may be connected to; none named: all
	Bind    []uint16 `toml:"bind" json:"bind,omitempty"`       // TCP ports that may be listened at; none named: all
}

// Env is what a box's environment holds beside the allowlist.
type Env struct {
	Pass []string          `toml:"pass" json:"pass,omitempty"` // names to inherit; one may end in *
	Set  map[string]string `toml:"set" json:"set,omitempty"`
}

// Limits bound a box. In a document a size is a text such as "512M" and a
// duration one such as "30s"; 0 is no limit.
type Limits struct {
	Memory    *Size     `toml:"memory" json:"memory,omitempty"`         // bytes of RAM
	Swap      *Size     `toml:"swap" json:"swap,omitempty"`             // bytes beside Memory; none where Memory is limited
	Pids      *int64    `toml:"pids" json:"pids,omitempty"`             // processes and threads
	CPUs      *float64  `toml:"cpus" json:"cpus,omitempty"`             // processors' worth of time
	CPUTime   *Duration `toml:"cpu_time" json:"cpu_time,omitempty"`     // processor time of the whole box
	Timeout   *Duration `toml:"timeout" json:"timeout,omitempty"`       // wall time
	OpenFiles *int64    `toml:"open_files" json:"open_files,omitempty"` // descriptors a process
	Core      *Size     `toml:"core" json:"core,omitempty"`             // bytes of a core dump
	Disk      *Size     `toml:"disk" json:"disk,omitempty"`             // bytes that the layer may take
	Files     *int64    `toml:"files" json:"files,omitempty"`           // inodes that the layer may take
	Output    *Size     `toml:"output" json:"output,omitempty"`         // bytes a stream
}

// Output says what becomes of captured output.
type Output struct {
	StripEscapes *bool `toml:"strip_escapes" json:"strip_escapes,omitempty"` // control sequences that act on a terminal are taken out
}

// Size is a number of bytes, written as "512M" or as a number. A negative one
// is a share of the host's memory, written as "75%".
type Size int64

// Duration is a length of time, written as "30s" or as a number of seconds.
type Duration time.Duration

// InForce is the policy of one box: every question answered, and from where.
type InForce struct {
	Profile       string
	Subprocess    bool
	FSRead        bool
	FSWrite       bool
	Network       bool
	TTY           bool
	Debug         bool
	Read          []string // absolute
	Write         []string // absolute
	Hide          []string // absolute, or gitignore patterns relative to the workspace
	Toolchains    bool
	WholeRoot     bool
	Connect, Bind []uint16
	EnvPass       []string
	EnvSet        []string // NAME=VALUE, sorted
	Deterministic bool
	StripEscapes  bool

	Memory, Swap, Core, Disk, Output int64 // bytes; 0: no limit, but Core: none
	Pids, OpenFiles, Files           int64
	CPUs                             float64
	CPUTime, Timeout                 time.Duration

	Origins []Origin
	Notes   []string // what was asked for and is not in force, and why
	// Untrusted are the lines of the workspace's file that are not in force.
	Untrusted []Origin
}

// Origin says where a line of the policy in force comes from.
type Origin struct {
	Key    string `json:"key"`    // as in a document: "limits.memory"
	Value  string `json:"value"`  // as one would write it
	Source string `json:"source"` // "flag --memory", "environment HUTCH_LIMITS_MEMORY", "~/.config/hutch/config.toml:4", ".hutch.toml:2", "profile strict"
}

package api

import (
	"time"

	"hutch/internal/outcome"
	"hutch/internal/policy"
)

// State is where the life of a box stands, on disk.
type State string

// The states, and the moves between them. Any other is an ErrState.
//
//	created ─► ready ◄─► busy
//	   │         │ ▲
//	   │         ▼ │ conflict, held, kept
//	   │     committing ─► committed
//	   ├─► failed
//	   └─► discarded     (from created, ready, busy and failed alike)
const (
	Created    State = "created"    // on disk; nothing has run in it
	Ready      State = "ready"      // quiet, or live with no command
	Busy       State = "busy"       // a command runs
	Committing State = "committing" // a promotion is under way
	Committed  State = "committed"  // ended: its change is in the workspace
	Discarded  State = "discarded"  // ended: dropped
	Failed     State = "failed"     // hutch could not go on with it; its layers are there still
)

// Ended reports whether a box is over: only its record is left.
func (s State) Ended() bool { return s == Committed || s == Discarded }

// Create asks for a box.
type Create struct {
	Name       string        `json:"name,omitempty" doc:"a name beside the id; unique among boxes that have not ended" example:"fix-123"`
	Workspace  string        `json:"workspace" doc:"absolute path of the workspace"`
	Force      bool          `json:"force,omitempty" doc:"allow / and the home directory as workspace"`
	Policy     policy.Policy `json:"policy,omitzero" doc:"what this request says of what commands may do"`
	PolicyFile string        `json:"policy_file,omitempty" doc:"path of a policy in TOML or JSON"`
	User       string        `json:"user,omitempty" doc:"whom to run as: a name, uid, uid:gid or root"`
	LayerDir   string        `json:"layer_dir,omitempty" doc:"where layers lie when the state directory is on another file system"`
	Environ    []string      `json:"environ,omitempty" doc:"the caller's environment, of which the box inherits what its policy lets pass"`
	Require    []string      `json:"require,omitempty" doc:"what the host must give: limits, proc, landlock"`
}

// Box is what is known of a box.
type Box struct {
	ID          string       `json:"id"`
	Name        string       `json:"name,omitempty"`
	State       State        `json:"state"`
	Reason      string       `json:"reason,omitempty" doc:"why it was kept, or failed"`
	Live        bool         `json:"live" doc:"its jail is there: processes, /tmp and HOME last"`
	Created     time.Time    `json:"created"`
	Ended       *time.Time   `json:"ended,omitempty"`
	Workspace   string       `json:"workspace"`
	Parent      string       `json:"parent,omitempty" doc:"the box it was forked from"`
	Strategy    string       `json:"strategy"`
	Layers      int          `json:"layers" doc:"frozen layers below its own"`
	Checkpoints []Checkpoint `json:"checkpoints"`
	Running     []Exec       `json:"running" doc:"commands that run"`
	Execs       int          `json:"execs" doc:"commands so far"`
	Argv        []string     `json:"argv,omitempty" doc:"of the run that kept it; its commands are at /execs"`
	Status      string       `json:"status,omitempty" doc:"of that command"`
	ExitCode    int          `json:"exit_code"`
	Memory      int64        `json:"memory,omitempty" doc:"its limit of memory in bytes; 0 is none"`
}

// Checkpoint is a state that a box can go back to.
type Checkpoint struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Layers  int       `json:"layers"`
	Copied  bool      `json:"copied" doc:"the box was busy, so its layer was copied"`
}

// Size is that of a terminal.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Run asks for a command in a box.
type Run struct {
	Argv    []string `json:"argv" minItems:"1"`
	Env     []string `json:"env,omitempty" doc:"NAME=VALUE, beside what the policy gives"`
	Dir     string   `json:"dir,omitempty" doc:"absolute, or relative to the workspace; the workspace by default"`
	Timeout *float64 `json:"timeout_seconds,omitempty" minimum:"0" doc:"0 is none; without it the policy's"`
	Stdin   string   `json:"stdin,omitempty" doc:"all of its input, where it is not streamed"`
	// StdinBase64 is for input that is not UTF-8.
	StdinBase64 []byte `json:"stdin_base64,omitempty"`
	TTY         *Size  `json:"tty,omitempty" doc:"give it a terminal of this size"`
	Return      int64  `json:"return,omitempty" minimum:"0" doc:"bytes of each stream in the outcome; 0 is 10 MiB"`
}

// Exec is what is known of a command of a box.
type Exec struct {
	ID      string           `json:"id" doc:"number within the box"`
	Box     string           `json:"box"`
	Argv    []string         `json:"argv"`
	Started time.Time        `json:"started"`
	Running bool             `json:"running"`
	Outcome *outcome.Outcome `json:"outcome,omitempty" doc:"when it has ended; of a command whose end nobody saw the status is error"`
}

// Process is one process of a box.
type Process struct {
	PID     int       `json:"pid" doc:"in the box; 0 when unknown"`
	HostPID int       `json:"host_pid"`
	PPID    int       `json:"ppid" doc:"host pid of its parent"`
	Exec    string    `json:"exec,omitempty" doc:"the command it belongs to; empty for what was left running"`
	Name    string    `json:"name"`
	Argv    []string  `json:"argv"`
	State   string    `json:"state" doc:"a letter as in ps(1)"`
	RSS     int64     `json:"rss" doc:"bytes"`
	CPUMS   float64   `json:"cpu_ms"`
	Started time.Time `json:"started"`
}

// Port is a socket that something in a box listens at.
type Port struct {
	Port    uint16 `json:"port"`
	Address string `json:"address"`
	Proto   string `json:"proto" enum:"tcp,tcp6"`
}

// File is a file of a box.
type File struct {
	Name    string    `json:"name"`
	Path    string    `json:"path" doc:"in the box"`
	Type    string    `json:"type" enum:"file,directory,symlink,other"`
	Size    int64     `json:"size"`
	Mode    uint32    `json:"mode" doc:"permission bits"`
	ModTime time.Time `json:"mod_time"`
	Target  string    `json:"target,omitempty"`
}

// Kill says what to end in a box.
type Kill struct {
	Signal string `json:"signal,omitempty" doc:"a name such as TERM, or a number; KILL by default"`
	Exec   string `json:"exec,omitempty" doc:"this command with all it started"`
	PID    int    `json:"pid,omitempty" doc:"this process, by its pid in the box"`
	All    bool   `json:"all,omitempty" doc:"everything that runs in the box"`
}

// Commit asks for a promotion.
type Commit struct {
	Keep       bool     `json:"keep,omitempty" doc:"the box lives on, on a fresh layer"`
	Git        bool     `json:"git,omitempty"`
	KeepTimes  bool     `json:"keep_times,omitempty"`
	Only       []string `json:"only,omitempty"`
	Except     []string `json:"except,omitempty"`
	Allow      []string `json:"allow,omitempty"`
	Protect    []string `json:"protect,omitempty"`
	Hold       bool     `json:"hold,omitempty"`
	OnConflict string   `json:"on_conflict,omitempty" enum:"fail,ours,theirs,merge"`
	Markers    bool     `json:"markers,omitempty"`
}

// Code names a kind of error, for programs.
type Code string

// The codes.
const (
	NotFound    Code = "not_found"    // no such box, command, checkpoint, file
	Ambiguous   Code = "ambiguous"    // the beginning of several ids
	WrongState  Code = "wrong_state"  // the box's state does not allow that
	InUse       Code = "in_use"       // another process holds the box
	NotQuiet    Code = "not_quiet"    // processes run, and it needs a quiet box
	Invalid     Code = "invalid"      // what was asked for makes no sense
	Refused     Code = "denied"       // the policy refuses it
	Exists      Code = "exists"       // a name is taken
	Full        Code = "full"         // a limit of boxes, memory or queue is reached
	Conflicting Code = "conflict"     // the host changed the same paths
	HeldBack    Code = "held"         // the handoff guard held the change
	Unsupported Code = "unsupported"  // this host or strategy cannot do it
	Unknown     Code = "unknown_exit" // how a command ended nobody knows
	Internal    Code = "internal"
)

// Error is an error with a code. Its text says what to do.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

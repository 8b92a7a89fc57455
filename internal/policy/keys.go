package policy

import (
	"slices"
	"strings"
	"time"
)

// A Key is one line of a policy document. The table of keys is the only place
// that knows them: parsing, merging, what loosens, flags, environment names,
// the schema and the documentation all come from it.
type Key struct {
	Name    string // as in a document: "limits.memory"
	Flag    string // of the command line, without dashes; "" for none
	Says    string // what the flag says by itself; "" when it takes a value
	Default string // in the profile default, as text; "" for nothing
	Help    string // one line
	order   order
	min     float64 // least value but 0
	max     float64
	share   bool               // a share of the host's memory is a value too
	field   func(*Policy) any  // a pointer to it
	force   func(*InForce) any // the same
}

// order says which of two values of a key allows more.
type order uint8

const (
	moreWhenTrue  order = iota // true allows more
	moreWhenFalse              // false allows more
	moreBounded                // the larger number, and 0 is no bound
	moreCounted                // the larger number, and 0 is none
	moreEach                   // every element allows something
	lessEach                   // every element takes something away
	lessNamed                  // a list allows what it names; an empty one everything
	moreDoors                  // what is set allows nothing, but for names that are doors
	ground                     // a profile: its lines decide
)

// String says it for users.
func (o order) String() string {
	return [...]string{
		moreWhenTrue: "true", moreWhenFalse: "false", moreBounded: "a larger number; 0 is no limit", moreCounted: "a larger number",
		moreEach: "each element", lessEach: "nothing: each element hides more", lessNamed: "each port beside others; none named is all",
		moreDoors: "nothing, but for variables that load code or lead out", ground: "what its lines do",
	}[o]
}

const (
	maxSeconds = 10 * 365 * 24 * 3600 // beyond it a number is a mistake
	maxBytes   = 1<<62 - 1
	maxPids    = 4 << 20 // PID_MAX_LIMIT, proc(5)
)

// keys is the table, in the order of documents.
var keys = []Key{
	{Name: "profile", Flag: "profile", Default: "default", order: ground, Help: "the profile that is the ground of all else",
		field: func(p *Policy) any { return &p.Profile }, force: func(f *InForce) any { return &f.Profile }},
	{Name: "deterministic", Flag: "deterministic", Says: "true", Default: "false", order: moreWhenFalse, Help: "remove what differs between two runs of a command",
		field: func(p *Policy) any { return &p.Deterministic }, force: func(f *InForce) any { return &f.Deterministic }},

	{Name: "capabilities.subprocess", Flag: "no-subprocess", Says: "false", Default: "true", Help: "run other programs beside the first",
		field: func(p *Policy) any { return &p.Capabilities.Subprocess }, force: func(f *InForce) any { return &f.Subprocess }},
	{Name: "capabilities.fs_read", Flag: "no-read", Says: "false", Default: "true", Help: "see the workspace; without it an empty directory lies in its place",
		field: func(p *Policy) any { return &p.Capabilities.FSRead }, force: func(f *InForce) any { return &f.FSRead }},
	{Name: "capabilities.fs_write", Flag: "read-only", Says: "false", Default: "true", Help: "write to the branch of the workspace; without it the workspace is read-only",
		field: func(p *Policy) any { return &p.Capabilities.FSWrite }, force: func(f *InForce) any { return &f.FSWrite }},
	{Name: "capabilities.network", Flag: "allow-net", Says: "true", Default: "false", Help: "share the host's network; without it there is a loopback of its own",
		field: func(p *Policy) any { return &p.Capabilities.Network }, force: func(f *InForce) any { return &f.Network }},
	{Name: "capabilities.tty", Default: "true", Help: "have a terminal of its own, where --tty asks for one",
		field: func(p *Policy) any { return &p.Capabilities.TTY }, force: func(f *InForce) any { return &f.TTY }},
	{Name: "capabilities.debug", Flag: "no-debug", Says: "false", Default: "true", Help: "trace its own children, as debuggers do",
		field: func(p *Policy) any { return &p.Capabilities.Debug }, force: func(f *InForce) any { return &f.Debug }},

	{Name: "paths.read", Flag: "read", order: moreEach, Help: "a path of the host that is shown too, read-only",
		field: func(p *Policy) any { return &p.Paths.Read }, force: func(f *InForce) any { return &f.Read }},
	{Name: "paths.write", Flag: "write", order: moreEach, Help: "a path of the host that is shown too; what is written there evaporates",
		field: func(p *Policy) any { return &p.Paths.Write }, force: func(f *InForce) any { return &f.Write }},
	{Name: "paths.hide", Flag: "hide", order: lessEach, Help: "a path, or a gitignore pattern in the workspace, that is absent",
		field: func(p *Policy) any { return &p.Paths.Hide }, force: func(f *InForce) any { return &f.Hide }},
	{Name: "paths.toolchains", Default: "false", Help: "toolchains can be written; what is written evaporates",
		field: func(p *Policy) any { return &p.Paths.Toolchains }, force: func(f *InForce) any { return &f.Toolchains }},
	{Name: "paths.whole_root", Default: "false", Help: "the whole file system of the host is seen and can be written; what is written evaporates",
		field: func(p *Policy) any { return &p.Paths.WholeRoot }, force: func(f *InForce) any { return &f.WholeRoot }},

	{Name: "network.connect", Flag: "connect", order: lessNamed, Help: "a TCP port that may be connected to; none named: all",
		field: func(p *Policy) any { return &p.Network.Connect }, force: func(f *InForce) any { return &f.Connect }},
	{Name: "network.bind", Flag: "bind", order: lessNamed, Help: "a TCP port that may be listened at; none named: all",
		field: func(p *Policy) any { return &p.Network.Bind }, force: func(f *InForce) any { return &f.Bind }},

	{Name: "env.pass", order: moreEach, Help: "a variable to inherit; the name may end in *",
		field: func(p *Policy) any { return &p.Env.Pass }, force: func(f *InForce) any { return &f.EnvPass }},
	{Name: "env.set", order: moreDoors, Help: "variables to set",
		field: func(p *Policy) any { return &p.Env.Set }, force: func(f *InForce) any { return &f.EnvSet }},

	{Name: "limits.timeout", Flag: "timeout", Default: "10m", order: moreBounded, max: maxSeconds, Help: "wall time, such as 30s",
		field: func(p *Policy) any { return &p.Limits.Timeout }, force: func(f *InForce) any { return &f.Timeout }},
	{Name: "limits.memory", Flag: "memory", Default: "0", order: moreBounded, min: 4 << 20, max: maxBytes, share: true, Help: "memory, such as 256M, or 75% of the host's",
		field: func(p *Policy) any { return &p.Limits.Memory }, force: func(f *InForce) any { return &f.Memory }},
	{Name: "limits.swap", Flag: "swap", Default: "0", order: moreCounted, max: maxBytes, share: true, Help: "swap beside the memory, where that is limited; 0 is none",
		field: func(p *Policy) any { return &p.Limits.Swap }, force: func(f *InForce) any { return &f.Swap }},
	{Name: "limits.pids", Flag: "pids", Default: "4096", order: moreBounded, min: 2, max: maxPids, Help: "processes and threads",
		field: func(p *Policy) any { return &p.Limits.Pids }, force: func(f *InForce) any { return &f.Pids }},
	{Name: "limits.cpus", Flag: "cpus", Default: "0", order: moreBounded, min: 0.01, max: 8192, Help: "processors, such as 1.5",
		field: func(p *Policy) any { return &p.Limits.CPUs }, force: func(f *InForce) any { return &f.CPUs }},
	{Name: "limits.cpu_time", Flag: "cpu-time", Default: "0", order: moreBounded, max: maxSeconds, Help: "processor time of all processes together, such as 10m",
		field: func(p *Policy) any { return &p.Limits.CPUTime }, force: func(f *InForce) any { return &f.CPUTime }},
	{Name: "limits.open_files", Flag: "open-files", Default: "0", order: moreBounded, min: 16, max: 1 << 30, Help: "open descriptors a process",
		field: func(p *Policy) any { return &p.Limits.OpenFiles }, force: func(f *InForce) any { return &f.OpenFiles }},
	{Name: "limits.core", Flag: "core", Default: "0", order: moreCounted, max: maxBytes, Help: "size of a core dump; 0 is none",
		field: func(p *Policy) any { return &p.Limits.Core }, force: func(f *InForce) any { return &f.Core }},
	{Name: "limits.disk", Flag: "disk", Default: "0", order: moreBounded, min: 64 << 10, max: maxBytes, Help: "bytes that the layer may take, such as 2G",
		field: func(p *Policy) any { return &p.Limits.Disk }, force: func(f *InForce) any { return &f.Disk }},
	{Name: "limits.files", Flag: "files", Default: "0", order: moreBounded, min: 1, max: 1 << 40, Help: "inodes that the layer may take",
		field: func(p *Policy) any { return &p.Limits.Files }, force: func(f *InForce) any { return &f.Files }},
	{Name: "limits.output", Flag: "output-limit", Default: "1G", order: moreBounded, max: maxBytes, Help: "bytes a stream that end the command",
		field: func(p *Policy) any { return &p.Limits.Output }, force: func(f *InForce) any { return &f.Output }},

	{Name: "output.strip_escapes", Flag: "strip-escapes", Says: "true", Default: "false", order: moreWhenFalse, Help: "take control sequences that act on a terminal out of captured output",
		field: func(p *Policy) any { return &p.Output.StripEscapes }, force: func(f *InForce) any { return &f.StripEscapes }},
}

// shape is a policy of which only the types of its fields are asked.
var shape Policy

// Keys returns the table of keys.
func Keys() []Key { return keys }

func keyNamed(name string) *Key {
	for i := range keys {
		if keys[i].Name == name {
			return &keys[i]
		}
	}
	return nil
}

// Environment returns the name of the key's environment variable.
func (k *Key) Environment() string {
	return "HUTCH_" + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// section returns the table of a document that holds the key; "" is the top.
func (k *Key) section() string {
	section, _, ok := strings.Cut(k.Name, ".")
	if !ok {
		return ""
	}
	return section
}

// siblings lists the keys of a section, for messages.
func siblings(section string) string {
	var names []string
	for i := range keys {
		if keys[i].section() == section {
			names = append(names, keys[i].Name[strings.IndexByte(keys[i].Name, '.')+1:])
		}
	}
	return strings.Join(names, ", ")
}

// sections lists the tables of a document.
func sections() []string {
	var names []string
	for i := range keys {
		if s := keys[i].section(); s != "" && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}

// get returns what a document says of the key; nil for nothing. Values are of
// type bool, string, Size, int64, float64, Duration, []string, []uint16 or
// map[string]string.
func (k *Key) get(p *Policy) any {
	switch f := k.field(p).(type) {
	case **bool:
		return value(*f)
	case **string:
		return value(*f)
	case **Size:
		return value(*f)
	case **int64:
		return value(*f)
	case **float64:
		return value(*f)
	case **Duration:
		return value(*f)
	case *[]string:
		if *f != nil {
			return *f
		}
	case *[]uint16:
		if *f != nil {
			return *f
		}
	case *map[string]string:
		if *f != nil {
			return *f
		}
	}
	return nil
}

func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// set makes a document say v of the key, which is of the type that get returns.
func (k *Key) set(p *Policy, v any) {
	switch f := k.field(p).(type) {
	case **bool:
		*f = pointer[bool](v)
	case **string:
		*f = pointer[string](v)
	case **Size:
		*f = pointer[Size](v)
	case **int64:
		*f = pointer[int64](v)
	case **float64:
		*f = pointer[float64](v)
	case **Duration:
		*f = pointer[Duration](v)
	case *[]string:
		*f = v.([]string)
	case *[]uint16:
		*f = v.([]uint16)
	case *map[string]string:
		*f = v.(map[string]string)
	}
}

func pointer[T any](v any) *T {
	t := v.(T)
	return &t
}

// apply puts v into the policy in force.
func (k *Key) apply(f *InForce, v any) {
	switch p := k.force(f).(type) {
	case *bool:
		*p = v.(bool)
	case *string:
		*p = v.(string)
	case *int64:
		if size, ok := v.(Size); ok {
			*p = int64(size)
		} else {
			*p = v.(int64)
		}
	case *float64:
		*p = v.(float64)
	case *time.Duration:
		*p = time.Duration(v.(Duration))
	case *[]uint16:
		*p = v.([]uint16)
	case *[]string:
		if set, ok := v.(map[string]string); ok {
			*p = assignments(set)
		} else {
			*p = v.([]string)
		}
	}
}

func assignments(set map[string]string) []string {
	var list []string
	for name, value := range set {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// list reports whether several sources add up.
func (k *Key) list() bool {
	return k.order == moreEach || k.order == lessEach || k.order == lessNamed || k.order == moreDoors
}

// looser reports whether v of a key that is no list allows what than does not.
func (k *Key) looser(v, than any) bool {
	switch k.order {
	case moreWhenTrue:
		return v.(bool) && !than.(bool)
	case moreWhenFalse:
		return !v.(bool) && than.(bool)
	case moreBounded:
		a, b := number(v), number(than)
		return b != 0 && (a == 0 || a > b)
	case moreCounted:
		return number(v) > number(than)
	}
	return true
}

func number(v any) float64 {
	switch n := v.(type) {
	case Size:
		return float64(n)
	case int64:
		return float64(n)
	case float64:
		return n
	case Duration:
		return float64(n)
	}
	return 0
}

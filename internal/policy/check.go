package policy

import (
	"fmt"
	"path/filepath"
	"strings"

	"hutch/internal/fsat"
	"hutch/internal/globs"
)

// A Call is what a command, or a tool of an agent, is about to do. Empty fields
// ask for nothing.
type Call struct {
	Workspace string // absolute

	Command  []string // the box's first program
	Terminal bool     // it wants a terminal

	Tool        []string // a program that a tool call starts, beside the box's first
	Read, Write string   // a path, absolute or relative to the workspace
	Network     bool     // something outside of the box
	Connect     uint16   // a TCP port of somebody else
	Bind        uint16   // a TCP port of its own
}

// Denial says that the policy refuses a call, and what to do about it.
type Denial struct {
	What string // a capability or a key of the policy
	Why  string // with the source of the line that refuses it
	Do   string // what to type to have it
}

func (d Denial) Error() string { return d.Why + "; " + d.Do }

// Check returns what of a call the policy is known to refuse before anything is
// started; nothing where it may be tried. The kernel refuses the rest.
func (f *InForce) Check(c Call) []Denial {
	var list []Denial
	deny := func(what, do, why string, args ...any) {
		list = append(list, Denial{What: what, Why: fmt.Sprintf(why, args...), Do: do})
	}
	off := func(granted bool, key, do, why string) bool {
		if !granted {
			deny(strings.TrimPrefix(key, "capabilities."), do, "%s, and %s is off (%s)", why, key, f.Origin(key))
		}
		return !granted
	}
	if c.Terminal {
		off(f.TTY, "capabilities.tty", "leave --tty away, or set HUTCH_CAPABILITIES_TTY=true", "a terminal was asked for")
	}
	if c.Workspace != "" {
		if by, ok := f.hides(c.Workspace, c.Workspace); ok {
			deny("paths.hide", "hide less, or use another directory as workspace", "%q hides the workspace %s (%s)", by, c.Workspace, f.Origin("paths.hide"))
			return list
		}
	}
	if len(c.Command) > 0 && strings.Contains(c.Command[0], "/") {
		program := absolute(c.Workspace, c.Command[0])
		if by, ok := f.hides(c.Workspace, program); ok {
			deny("paths.hide", "hide less, or run another program", "%q hides the program %s (%s)", by, c.Command[0], f.Origin("paths.hide"))
		} else if c.Workspace != "" && fsat.Within(program, c.Workspace) {
			off(f.FSRead, "capabilities.fs_read", "leave --no-read away, or run a program that is not in the workspace", "the program "+c.Command[0]+" lies in the workspace")
		}
	}
	if len(c.Tool) > 0 {
		off(f.Subprocess, "capabilities.subprocess", "set HUTCH_CAPABILITIES_SUBPROCESS=true", fmt.Sprintf("a tool wants to run %q", c.Tool[0]))
	}
	if c.Read != "" {
		f.checkPath(c.Workspace, c.Read, false, deny, off)
	}
	if c.Write != "" {
		f.checkPath(c.Workspace, c.Write, true, deny, off)
	}
	if c.Network || c.Connect != 0 {
		if !off(f.Network, "capabilities.network", "pass --allow-net", "the network was asked for") && c.Connect != 0 {
			f.checkPort("network.connect", f.Connect, c.Connect, deny)
		}
	}
	if c.Bind != 0 && f.Network { // without it there is a loopback of the box's own
		f.checkPort("network.bind", f.Bind, c.Bind, deny)
	}
	return list
}

func (f *InForce) checkPort(key string, allowed []uint16, port uint16, deny func(what, do, why string, args ...any)) {
	for _, a := range allowed {
		if a == port {
			return
		}
	}
	if len(allowed) > 0 {
		deny(key, fmt.Sprintf("pass --%s %d", strings.TrimPrefix(key, "network."), port), "port %d is none of %s (%s)", port, format(allowed), f.Origin(key))
	}
}

// checkPath checks a path that a tool names. Where it leads through symlinks is
// for whoever opens it, beneath a descriptor.
func (f *InForce) checkPath(workspace, path string, write bool, deny func(what, do, why string, args ...any), off func(bool, string, string, string) bool) {
	doing := map[bool]string{false: "read", true: "write"}[write]
	if err := fsat.CheckArgument(path, fsat.Relative); err != nil {
		deny("paths."+doing, "name a path without it", "%v", err)
		return
	}
	full := absolute(workspace, path)
	if by, ok := f.hides(workspace, full); ok {
		deny("paths.hide", "hide less", "%q hides %s (%s)", by, path, f.Origin("paths.hide"))
		return
	}
	if workspace != "" && fsat.Within(full, workspace) {
		if off(f.FSRead, "capabilities.fs_read", "leave --no-read away", "a tool wants to "+doing+" "+path) || !write {
			return
		}
		off(f.FSWrite, "capabilities.fs_write", "leave --read-only away", "a tool wants to write "+path)
		return
	}
	if f.WholeRoot {
		return
	}
	shown := f.Write
	if !write {
		shown = append(append([]string{}, f.Read...), f.Write...)
	}
	for _, s := range shown {
		if fsat.Within(full, s) {
			return
		}
	}
	deny("paths."+doing, fmt.Sprintf("pass --%s %s", doing, filepath.Dir(full)), "%s is neither in the workspace nor in paths.%s", path, doing)
}

// hides returns the line of paths.hide by which an absolute path is absent.
func (f *InForce) hides(workspace, path string) (by string, ok bool) {
	for _, h := range f.Hide {
		if strings.HasPrefix(h, "/") {
			if fsat.Within(path, h) {
				return h, true
			}
			continue
		}
		rel, inside := strings.CutPrefix(path, strings.TrimSuffix(workspace, "/")+"/")
		if workspace == "" || !inside {
			continue
		}
		if set, err := globs.Parse([]string{h}); err == nil && set.Match(rel, false) {
			return h, true
		}
	}
	return "", false
}

func absolute(workspace, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(workspace, path)
}

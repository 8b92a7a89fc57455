package policy

import (
	"strings"
	"testing"
)

func whats(list []Denial) string {
	var names []string
	for _, d := range list {
		if d.Why == "" || d.Do == "" {
			names = append(names, "incomplete:")
		}
		names = append(names, d.What)
	}
	return strings.Join(names, " ")
}

func TestCheck(t *testing.T) {
	all := func() *InForce {
		return &InForce{Subprocess: true, FSRead: true, FSWrite: true, Network: true, TTY: true, Debug: true}
	}
	const ws = "/home/u/p"
	for _, c := range []struct {
		name string
		with func(*InForce)
		call Call
		want string // the whats of the denials
	}{
		{"nothing", nil, Call{}, ""},
		{"terminal", nil, Call{Terminal: true}, ""},
		{"no terminal", func(f *InForce) { f.TTY = false }, Call{Terminal: true}, "tty"},
		{"the first program needs no capability", func(f *InForce) { f.Subprocess = false }, Call{Workspace: ws, Command: []string{"/bin/ls"}}, ""},
		{"a tool's does", func(f *InForce) { f.Subprocess = false }, Call{Workspace: ws, Tool: []string{"ls"}}, "subprocess"},
		{"a tool's", nil, Call{Tool: []string{"ls"}}, ""},
		{"hidden workspace", func(f *InForce) { f.Hide = []string{ws} }, Call{Workspace: ws}, "paths.hide"},
		{"hidden above", func(f *InForce) { f.Hide = []string{"/home"} }, Call{Workspace: ws, Command: []string{"./x"}}, "paths.hide"},
		{"hidden beside", func(f *InForce) { f.Hide = []string{ws + "q"} }, Call{Workspace: ws}, ""},
		{"everything in it hidden", func(f *InForce) { f.Hide = []string{"*"} }, Call{Workspace: ws}, ""},
		{"hidden program", func(f *InForce) { f.Hide = []string{"/opt"} }, Call{Workspace: ws, Command: []string{"/opt/x"}}, "paths.hide"},
		{"hidden by pattern", func(f *InForce) { f.Hide = []string{"tools/"} }, Call{Workspace: ws, Command: []string{"./tools/x"}}, "paths.hide"},
		{"program in the workspace", func(f *InForce) { f.FSRead = false }, Call{Workspace: ws, Command: []string{ws + "/x"}}, "fs_read"},
		{"program on PATH", func(f *InForce) { f.FSRead = false }, Call{Workspace: ws, Command: []string{"x"}}, ""},
		{"read", nil, Call{Workspace: ws, Read: "a/b"}, ""},
		{"read absolute", nil, Call{Workspace: ws, Read: ws + "/a"}, ""},
		{"read, and no capability", func(f *InForce) { f.FSRead = false }, Call{Workspace: ws, Read: "a"}, "fs_read"},
		{"write, and no capability", func(f *InForce) { f.FSWrite = false }, Call{Workspace: ws, Write: "a"}, "fs_write"},
		{"read, where writing is off", func(f *InForce) { f.FSWrite = false }, Call{Workspace: ws, Read: "a"}, ""},
		{"up", nil, Call{Workspace: ws, Read: "../q"}, "paths.read"},
		{"up within", nil, Call{Workspace: ws, Write: "a/../../b"}, "paths.write"},
		{"NUL", nil, Call{Workspace: ws, Write: "a\x00"}, "paths.write"},
		{"outside", nil, Call{Workspace: ws, Read: "/etc/passwd"}, "paths.read"},
		{"outside, named like it", nil, Call{Workspace: ws, Read: ws + "q/a"}, "paths.read"},
		{"outside, shown", func(f *InForce) { f.Read = []string{"/opt/a"} }, Call{Workspace: ws, Read: "/opt/a/b"}, ""},
		{"outside, shown for reading only", func(f *InForce) { f.Read = []string{"/opt/a"} }, Call{Workspace: ws, Write: "/opt/a/b"}, "paths.write"},
		{"outside, shown for writing", func(f *InForce) { f.Write = []string{"/opt/a"} }, Call{Workspace: ws, Read: "/opt/a/b", Write: "/opt/a/b"}, ""},
		{"whole root", func(f *InForce) { f.WholeRoot = true }, Call{Workspace: ws, Write: "/etc/hosts"}, ""},
		{"hidden in the workspace", func(f *InForce) { f.Hide = []string{"**/.env"} }, Call{Workspace: ws, Read: "a/.env"}, "paths.hide"},
		{"hidden outweighs shown", func(f *InForce) { f.Read, f.Hide = []string{"/opt"}, []string{"/opt/x"} }, Call{Workspace: ws, Read: "/opt/x/y"}, "paths.hide"},
		{"network", nil, Call{Network: true, Connect: 443}, ""},
		{"no network", func(f *InForce) { f.Network = false }, Call{Connect: 443}, "network"},
		{"another port", func(f *InForce) { f.Connect = []uint16{80} }, Call{Connect: 443}, "network.connect"},
		{"that port", func(f *InForce) { f.Connect = []uint16{443} }, Call{Connect: 443}, ""},
		{"listen", func(f *InForce) { f.Bind = []uint16{80} }, Call{Bind: 8080}, "network.bind"},
		{"listen on its own loopback", func(f *InForce) { f.Bind, f.Network = []uint16{80}, false }, Call{Bind: 8080}, ""},
		{"all at once", func(f *InForce) { *f = InForce{} }, Call{Workspace: ws, Terminal: true, Tool: []string{"x"}, Read: "a", Write: "b", Network: true}, "tty subprocess fs_read fs_read network"},
	} {
		f := all()
		if c.with != nil {
			c.with(f)
		}
		if got := whats(f.Check(c.call)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCheckNamesTheLine(t *testing.T) {
	name := "strict"
	f := resolved(t, Sources{Given: Policy{Profile: &name}})
	d := f.Check(Call{Terminal: true})
	if len(d) != 1 || !strings.Contains(d[0].Why, "profile strict") {
		t.Errorf("%+v", d)
	}
}

package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// sample is a key with two texts, the second of which allows more.
type sample struct {
	tight, loose string // as in a TOML document
}

// samples must have every key: what loosens is decided key by key, and a new
// key must not be forgotten.
var samples = map[string]sample{
	"deterministic":           {"true", "false"},
	"capabilities.subprocess": {"false", "true"},
	"capabilities.fs_read":    {"false", "true"},
	"capabilities.fs_write":   {"false", "true"},
	"capabilities.network":    {"false", "true"},
	"capabilities.tty":        {"false", "true"},
	"capabilities.debug":      {"false", "true"},
	"paths.toolchains":        {"false", "true"},
	"paths.whole_root":        {"false", "true"},
	"limits.timeout":          {`"5s"`, `"6s"`},
	"limits.memory":           {`"64M"`, `"65M"`},
	"limits.swap":             {"0", `"1M"`},
	"limits.pids":             {"7", "8"},
	"limits.cpus":             {"0.5", "0.75"},
	"limits.cpu_time":         {`"5s"`, "0"},
	"limits.open_files":       {"64", "0"},
	"limits.core":             {"0", `"1M"`},
	"limits.disk":             {`"1M"`, "0"},
	"limits.files":            {"10", "0"},
	"limits.output":           {`"1M"`, "0"},
	"output.strip_escapes":    {"true", "false"},
}

// lists are the keys that sources add to: a text, and what is in force with it.
var listSamples = map[string][2]string{
	"paths.read":      {`["/opt/a"]`, `["/opt/b"]`},
	"paths.write":     {`["/opt/a"]`, `["/opt/b"]`},
	"paths.hide":      {`["a"]`, `["b"]`},
	"network.connect": {"[80]", "[443]"},
	"network.bind":    {"[80]", "[443]"},
	"env.pass":        {`["A"]`, `["B"]`},
	"env.set":         {`{ "A" = "1" }`, `{ "B" = "2" }`},
}

func TestEveryKeyHasASample(t *testing.T) {
	for i := range keys {
		k := &keys[i]
		_, scalar := samples[k.Name]
		_, list := listSamples[k.Name]
		if k.order != ground && scalar == list {
			t.Errorf("%s: in none or both of the tables of samples", k.Name)
		}
		if list != k.list() && k.order != ground {
			t.Errorf("%s: is it a list?", k.Name)
		}
	}
	if len(samples)+len(listSamples)+1 != len(keys) {
		t.Errorf("%d samples and %d lists for %d keys", len(samples), len(listSamples), len(keys))
	}
}

// decoded returns the value of a key that a TOML text says.
func decoded(t testing.TB, k *Key, text string) any {
	t.Helper()
	p, err := ParseTOML("test", []byte(line(k.Name, text)))
	if err != nil {
		t.Fatal(err)
	}
	return k.get(p)
}

// line writes one key as a document.
func line(name, text string) string {
	section, field, ok := strings.Cut(name, ".")
	if !ok {
		return name + " = " + text + "\n"
	}
	return "[" + section + "]\n" + field + " = " + text + "\n"
}

func TestLooserIsStrictOrder(t *testing.T) {
	for name, s := range samples {
		k := keyNamed(name)
		tight, loose := decoded(t, k, s.tight), decoded(t, k, s.loose)
		if !k.looser(loose, tight) || k.looser(tight, loose) || k.looser(tight, tight) || k.looser(loose, loose) {
			t.Errorf("%s: %s must allow more than %s, and nothing more than itself", name, s.loose, s.tight)
		}
	}
	// 0 is no limit, and looser than any.
	for i := range keys {
		if k := &keys[i]; k.order == moreBounded {
			tight, zero := decoded(t, k, samples[k.Name].tight), decoded(t, k, "0")
			if !k.looser(zero, tight) || k.looser(tight, zero) {
				t.Errorf("%s: 0 must be no limit", k.Name)
			}
		}
	}
}

// source puts a line into one of the sources.
type source struct {
	name string
	put  func(t *testing.T, s *Sources, k *Key, text string)
	from string // what the origin begins with
}

func sourcesInOrder() []source {
	return []source{
		{"flags", func(t *testing.T, s *Sources, k *Key, text string) { k.set(&s.Given, decoded(t, k, text)) }, "flag"},
		{"file", func(t *testing.T, s *Sources, k *Key, text string) { s.File = write(t, line(k.Name, text)) }, "/"},
		{"environment", func(t *testing.T, s *Sources, k *Key, text string) {
			s.Environ = []string{k.Environment() + "=" + plainText(decoded(t, k, text))}
		}, "environment HUTCH_"},
		{"workspace", func(_ *testing.T, s *Sources, k *Key, text string) { s.Workspace = []byte(line(k.Name, text)) }, WorkspaceFile + ":"},
		{"user", func(t *testing.T, s *Sources, k *Key, text string) { s.UserFile = write(t, line(k.Name, text)) }, "/"},
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// plainText writes a value as an environment variable does.
func plainText(v any) string {
	switch v := v.(type) {
	case []string:
		return strings.Join(v, ",")
	case []uint16:
		var list []string
		for _, port := range v {
			list = append(list, fmt.Sprint(port))
		}
		return strings.Join(list, ",")
	case map[string]string:
		return strings.Join(assignments(v), ",")
	}
	return fmt.Sprint(v)
}

func resolved(t *testing.T, s Sources) *InForce {
	t.Helper()
	s.GivenBy = "flag"
	f, err := Resolve(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// companion keeps a pair of lines from being a contradiction of its own.
func contradicts(k *Key) bool { return k.Name == "capabilities.fs_read" }

// TestPrecedence tries every key in every pair of sources, both ways round.
func TestPrecedence(t *testing.T) {
	order := sourcesInOrder()
	for name, sample := range samples {
		k := keyNamed(name)
		for _, texts := range [][2]string{{sample.tight, sample.loose}, {sample.loose, sample.tight}} {
			for i, strong := range order {
				for _, weak := range order[i+1:] {
					var s Sources
					strong.put(t, &s, k, texts[0])
					weak.put(t, &s, k, texts[1])
					if contradicts(k) {
						off := false
						s.Given.Capabilities.FSWrite = &off
					}
					f := resolved(t, s)
					winner, want := strong, texts[0]
					// The workspace's loosening lines are not in force.
					refused := strong.name == "workspace" && k.looser(decoded(t, k, texts[0]), decoded(t, k, texts[1]))
					if refused {
						winner, want = weak, texts[1]
					}
					if got := k.inForce(f); !reflect.DeepEqual(got, decoded(t, k, want)) {
						t.Errorf("%s: %s says %s, %s says %s: in force is %s", name, strong.name, texts[0], weak.name, texts[1], format(got))
					}
					if from := f.Origin(name); !strings.HasPrefix(from, winner.from) {
						t.Errorf("%s: %s says %s, %s says %s: it comes from %q", name, strong.name, texts[0], weak.name, texts[1], from)
					}
					if refused != (len(f.Untrusted) > 0) {
						t.Errorf("%s: %s says %s, %s says %s: %q", name, strong.name, texts[0], weak.name, texts[1], f.Notes)
					}
				}
			}
		}
	}
}

// TestListsAddUp tries every list in every pair of sources.
func TestListsAddUp(t *testing.T) {
	order := sourcesInOrder()
	for name, sample := range listSamples {
		k := keyNamed(name)
		both := []any{decoded(t, k, sample[0]), decoded(t, k, sample[1])}
		for i, strong := range order {
			for _, weak := range order[i+1:] {
				var s Sources
				strong.put(t, &s, k, sample[0])
				weak.put(t, &s, k, sample[1])
				s.GivenBy = "flag"
				f, err := Resolve(s)
				want := union(both...)
				switch {
				case strong.name == "workspace" && k.order == lessNamed:
					// It may name only what the other allows.
					if err == nil || !strings.Contains(err.Error(), "shares no port") {
						t.Errorf("%s: a workspace that shares no port with the user's: %v", name, err)
					}
					continue
				case strong.name == "workspace" && k.order == moreEach:
					want = union(both[1])
				case weak.name == "workspace" && (k.order == lessNamed || k.order == moreEach):
					want = union(both[0])
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := union(k.inForce(f)); !slices.Equal(got, want) {
					t.Errorf("%s: %s says %s, %s says %s: in force is %q, not %q", name, strong.name, sample[0], weak.name, sample[1], got, want)
				}
			}
		}
	}
}

// union lists the elements of lists as sorted texts.
func union(lists ...any) []string {
	var all []string
	for _, list := range lists {
		all = append(all, strings.Split(plainText(list), ",")...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		user, workspace, flag string
		trusted               bool
		want                  string
		refused               bool
	}{
		{"", "", "", false, "[]", false},
		{"", "[80]", "", false, "[80]", false},            // narrower than all
		{"[80, 443]", "[443]", "", false, "[443]", false}, // narrower
		{"[80, 443]", "[443, 8080]", "", false, "[443]", true},
		{"[80, 443]", "[443, 8080]", "", true, "[443, 8080]", false},
		{"[80]", "[]", "", false, "[80]", true}, // none named is all
		{"[80]", "[]", "", true, "[]", false},
		{"[80]", "", "[443]", false, "[80, 443]", false},
		{"[80]", "", "[]", false, "[]", false},
		{"[80, 443]", "[443]", "[22]", false, "[22, 80, 443]", false}, // a flag of that key overrules the workspace
		{"", "[443]", "[22]", false, "[22]", false},
	} {
		for _, name := range []string{"network.connect", "network.bind"} {
			s := Sources{State: t.TempDir(), Path: "/w"}
			k := keyNamed(name)
			if c.user != "" {
				s.UserFile = write(t, line(name, c.user))
			}
			if c.workspace != "" {
				s.Workspace = []byte(line(name, c.workspace))
			}
			if c.flag != "" {
				k.set(&s.Given, decoded(t, k, c.flag))
			}
			if c.trusted {
				trust(t, s)
			}
			f := resolved(t, s)
			if got := format(k.inForce(f)); got != c.want || (len(f.Untrusted) > 0) != c.refused {
				t.Errorf("%s: %+v: %s, refused %v", name, c, got, f.Untrusted)
			}
		}
	}
}

func trust(t *testing.T, s Sources) {
	t.Helper()
	if err := (Trust{Workspace: s.Path, Digest: Digest(s.Workspace), Time: time.Now()}).Record(s.State); err != nil {
		t.Fatal(err)
	}
}

func TestWorkspaceLoosensOnlyWhatIsTrusted(t *testing.T) {
	for i := range keys {
		k := &keys[i]
		var loose, base string
		if s, ok := samples[k.Name]; ok {
			base, loose = s.tight, s.loose
		} else if k.order == moreEach {
			base, loose = "[]", listSamples[k.Name][0]
		} else {
			continue
		}
		s := Sources{State: t.TempDir(), Path: "/home/u/p", UserFile: write(t, line(k.Name, base)), Workspace: []byte(line(k.Name, loose))}
		if contradicts(k) {
			off := false
			s.Given.Capabilities.FSWrite = &off
		}
		before := resolved(t, s)
		if !slices.ContainsFunc(before.Notes, func(note string) bool {
			return strings.HasPrefix(note, WorkspaceFile+":") && strings.Contains(note, k.Name+" = ") && strings.Contains(note, "hutch trust")
		}) {
			t.Errorf("%s: nothing is said of the line: %q", k.Name, before.Notes)
		}
		trust(t, s)
		after := resolved(t, s)
		if got := k.inForce(after); !reflect.DeepEqual(got, decoded(t, k, loose)) || len(after.Untrusted) > 0 {
			t.Errorf("%s: trusted, and in force is %s", k.Name, format(got))
		}
		s.Workspace = append(s.Workspace, '#')
		if got := resolved(t, s); !reflect.DeepEqual(k.inForce(got), k.inForce(before)) {
			t.Errorf("%s: one byte changed, and in force is %s", k.Name, format(k.inForce(got)))
		}
		s.Workspace = s.Workspace[:len(s.Workspace)-1]
		s.Path = "/home/u/other"
		if got := resolved(t, s); !reflect.DeepEqual(k.inForce(got), k.inForce(before)) {
			t.Errorf("%s: another workspace has it trusted too", k.Name)
		}
	}
}

func TestTrustTakesNothingTightAway(t *testing.T) {
	s := Sources{
		State: t.TempDir(), Path: "/w", UserFile: write(t, "[capabilities]\nnetwork = true\ndebug = true\n[network]\nconnect = [80, 443]\n"),
		Workspace: []byte("[capabilities]\nnetwork = false\n[network]\nconnect = [443]\n[limits]\npids = 9000\n"),
	}
	trust(t, s)
	if f := resolved(t, s); f.Network || !slices.Equal(f.Connect, []uint16{443}) || f.Pids != 9000 {
		t.Errorf("network %v, connect %v, pids %d", f.Network, f.Connect, f.Pids)
	}
}

func TestWorkspaceProfile(t *testing.T) {
	s := Sources{State: t.TempDir(), Path: "/w", UserFile: write(t, "profile = \"build\"\n[capabilities]\nnetwork = true\n"), Workspace: []byte("profile = \"strict\"\n")}
	f := resolved(t, s)
	if f.Subprocess || f.FSWrite || f.Network || f.TTY || f.Pids != 64 || f.Timeout != time.Minute {
		t.Errorf("strict does not hold: %+v", f)
	}
	if f.Profile != "build" || !f.Toolchains {
		t.Errorf("the ground is %s", f.Profile)
	}
	if from := f.Origin("limits.pids"); from != WorkspaceFile+":1, profile strict" {
		t.Errorf("pids come from %q", from)
	}
	s = Sources{State: s.State, Path: "/w", Workspace: []byte("profile = \"whole-root\"\n")}
	if f := resolved(t, s); f.WholeRoot || len(f.Untrusted) != 1 {
		t.Errorf("whole root %v, %q", f.WholeRoot, f.Notes)
	}
	trust(t, s)
	if f := resolved(t, s); !f.WholeRoot || f.Profile != "whole-root" {
		t.Errorf("trusted, and whole root %v of profile %s", f.WholeRoot, f.Profile)
	}
	// A flag of that key overrules the file's.
	name := "default"
	s.Given.Profile = &name
	if f := resolved(t, s); f.WholeRoot || f.Profile != "default" {
		t.Errorf("--profile default: whole root %v of profile %s", f.WholeRoot, f.Profile)
	}
}

func TestWorkspaceVariables(t *testing.T) {
	s := Sources{State: t.TempDir(), Path: "/w", UserFile: write(t, "[env.set]\nA = \"user\"\n"), Workspace: []byte("[env.set]\nA = \"own\"\nB = \"own\"\nLD_PRELOAD = \"/x.so\"\n")}
	f := resolved(t, s)
	if !slices.Equal(f.EnvSet, []string{"A=user", "B=own"}) || len(f.Untrusted) != 1 || strings.Contains(f.Notes[0], "B") {
		t.Errorf("%q, %q", f.EnvSet, f.Notes)
	}
	trust(t, s)
	if f := resolved(t, s); !slices.Contains(f.EnvSet, "LD_PRELOAD=/x.so") {
		t.Errorf("%q", f.EnvSet)
	}
}

func TestContradictions(t *testing.T) {
	off, on := false, true
	// What is not said follows.
	f := resolved(t, Sources{Given: Policy{Capabilities: Capabilities{FSRead: &off}}})
	if f.FSWrite || !strings.Contains(f.Origin("capabilities.fs_write"), "flag --no-read") {
		t.Errorf("fs_write %v, from %q", f.FSWrite, f.Origin("capabilities.fs_write"))
	}
	// What is said is refused, with both places.
	_, err := Resolve(Sources{GivenBy: "flag", UserFile: write(t, "[capabilities]\nfs_read = false\n"), Given: Policy{Capabilities: Capabilities{FSWrite: &on}}})
	if err == nil || !strings.Contains(err.Error(), "config.toml:2") || !strings.Contains(err.Error(), "flag --read-only") {
		t.Errorf("%v", err)
	}
	f = resolved(t, Sources{Given: Policy{Network: Network{Connect: []uint16{80}}}})
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "no effect") {
		t.Errorf("%q", f.Notes)
	}
}

func TestShareOfMemory(t *testing.T) {
	share := Size(-75)
	s := Sources{Given: Policy{Limits: Limits{Memory: &share}}, Memory: func() (int64, error) { return 1000 << 20, nil }}
	if f := resolved(t, s); f.Memory != 750<<20 {
		t.Errorf("75%% of 1000M is %d", f.Memory)
	}
	s.Memory = func() (int64, error) { return 0, errors.New("no") }
	if _, err := Resolve(s); err == nil {
		t.Error("an unknown amount of memory limits nothing, and nobody is told")
	}
	// Shares and sizes are compared in bytes.
	s = Sources{UserFile: write(t, "[limits]\nmemory = \"300M\"\n"), Workspace: []byte("[limits]\nmemory = \"50%\"\n"), Memory: func() (int64, error) { return 1000 << 20, nil }}
	if f := resolved(t, s); f.Memory != 300<<20 || len(f.Untrusted) != 1 {
		t.Errorf("%d, %q", f.Memory, f.Notes)
	}
	s.Workspace = []byte("[limits]\nmemory = \"20%\"\n")
	if f := resolved(t, s); f.Memory != 200<<20 {
		t.Errorf("%d, %q", f.Memory, f.Notes)
	}
}

func TestHomeInPaths(t *testing.T) {
	s := Sources{Home: func() (string, error) { return "/home/u", nil }, UserFile: write(t, "[paths]\nread = [\"~/a\", \"/b//c/\"]\nhide = [\"~/d\", \"*.key\", \"/e/\"]\n")}
	f := resolved(t, s)
	if !slices.Equal(f.Read, []string{"/home/u/a", "/b/c"}) || !slices.Equal(f.Hide, []string{"/home/u/d", "*.key", "/e"}) {
		t.Errorf("%q, %q", f.Read, f.Hide)
	}
	s.Home = nil
	if _, err := Resolve(s); err == nil {
		t.Error("~/a without a home")
	}
}

// TestDocumentSaysTheSame: what show prints can be given again.
func TestDocumentSaysTheSame(t *testing.T) {
	for _, name := range Profiles() {
		given := Policy{Profile: &name, Env: Env{Set: map[string]string{"A": "1\n\"'\\\x7f"}}, Network: Network{Connect: []uint16{443, 22}}}
		on := true
		given.Capabilities.Network = &on
		f := resolved(t, Sources{Given: given})
		for _, explain := range []bool{false, true} {
			again := resolved(t, Sources{File: write(t, f.TOML(explain))})
			want, got := f.Document(), again.Document()
			if !reflect.DeepEqual(want, got) {
				t.Errorf("%s: printed and read again:\n%s\n%s", name, f.TOML(false), again.TOML(false))
			}
		}
	}
}

// TestPrintedTextActsOnNoTerminal: the file may be an agent's.
func TestPrintedTextActsOnNoTerminal(t *testing.T) {
	hostile := `\u001b]0;x\u0007\u009b\u202e\n`
	f := resolved(t, Sources{Workspace: []byte("[paths]\nread = [\"/" + hostile + "\"]\nhide = [\"/" + hostile + "\"]\n[env.set]\n\"A" + hostile + "\" = \"" + hostile + "\"\n")})
	f.Notes = append(f.Notes, "a\x1bb\nc")
	printed := f.TOML(true)
	for _, o := range append(f.Untrusted, f.Origins...) {
		printed += o.Key + o.Value
	}
	for _, c := range printed {
		if c != '\n' && !unicode.IsPrint(c) {
			t.Fatalf("%q in %s", c, printed)
		}
	}
	if strings.Count(printed, `\u009b`) < 4 {
		t.Errorf("the text is not there: %s", printed)
	}
}

func TestEveryLineHasAnOrigin(t *testing.T) {
	f := resolved(t, Sources{})
	for i := range keys {
		if k := &keys[i]; !k.list() && f.Origin(k.Name) == "" {
			t.Errorf("%s comes from nowhere", k.Name)
		}
	}
	if f.Asked("limits.pids") {
		t.Error("the default of pids was asked for")
	}
	n := int64(5)
	if !resolved(t, Sources{Given: Policy{Limits: Limits{Pids: &n}}}).Asked("limits.pids") {
		t.Error("--pids 5 was not asked for")
	}
}

func BenchmarkResolve(b *testing.B) {
	for b.Loop() {
		if _, err := Resolve(Sources{Environ: os.Environ(), UserFile: "/nowhere/config.toml"}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLongKey: a key of very many names costs what it is long, not its square.
func TestLongKey(t *testing.T) {
	text := []byte(strings.Repeat("a.", 200_000) + "a = 1\n")
	if lines := tomlLines(text); len(lines) > maxNames {
		t.Errorf("%d names are noted", len(lines))
	}
	if lines := tomlLines([]byte("[env]\nset = { A = \"x\" }\n[limits]\npids = 3\n")); lines["limits.pids"] != 4 || lines["env.set.A"] != 2 {
		t.Errorf("%v", lines)
	}
}

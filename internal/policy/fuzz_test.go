package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// same reports a document that does not survive being resolved, printed and
// read again.
func same(t *testing.T, p *Policy) {
	t.Helper()
	memory := func() (int64, error) { return 1 << 34, nil }
	home := func() (string, error) { return "/home/u", nil }
	f, err := Resolve(Sources{Given: *p, Home: home, Memory: memory})
	if err != nil {
		return // a contradiction
	}
	printed := f.TOML(true)
	again, err := ParseTOML("printed", []byte(printed))
	if err != nil {
		t.Fatalf("what is printed cannot be read: %v\n%s", err, printed)
	}
	g, err := Resolve(Sources{Given: *again, Home: home, Memory: memory})
	if err != nil {
		t.Fatalf("what is printed contradicts itself: %v\n%s", err, printed)
	}
	if !reflect.DeepEqual(f.Document(), g.Document()) {
		t.Fatalf("not the same:\n%s\n%s", printed, g.TOML(true))
	}
}

func FuzzTOML(f *testing.F) {
	for _, name := range Profiles() {
		f.Add(profileText(name))
	}
	f.Add("limits.memory = \"5M\"\nlimits = 1\n")
	f.Add("env = { set = { A = \"1\" } }\n[env.set]\nB = \"2\"\n")
	f.Add("[[capabilities]]\nnetwork = true\n")
	f.Add("\"capabilities\".'network' = true # x\n[limits]\ntimeout = 1e3\ncpus = inf\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseTOML("f.toml", []byte(text))
		if err != nil {
			if strings.Contains(err.Error(), "f.toml:0:") {
				t.Errorf("an error without a line: %v\n%s", err, text)
			}
			return
		}
		same(t, p)
		// A workspace's file never loosens, and never fails by loosening.
		base := InForce{}
		if got, err := Resolve(Sources{Workspace: []byte(text), Memory: func() (int64, error) { return 1 << 34, nil }, Home: func() (string, error) { return "/h", nil }}); err == nil {
			base = *got
		} else {
			return
		}
		zero, _ := Resolve(Sources{})
		for i := range keys {
			k := &keys[i]
			switch k.order {
			case moreWhenTrue, moreWhenFalse, moreBounded, moreCounted:
				if k.looser(k.inForce(&base), k.inForce(zero)) {
					t.Errorf("a workspace's file loosened %s:\n%s", k.Name, text)
				}
			case moreEach:
				if len(k.inForce(&base).([]string)) > 0 {
					t.Errorf("a workspace's file added to %s:\n%s", k.Name, text)
				}
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, c := range corpus {
		f.Add(c.text)
	}
	f.Add(`{"env":{"set":{"A":"\ud800"}}}`)
	f.Add(`{"limits":{},"limits":{}}`)
	schema := validator(f)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseJSON("f.json", []byte(text))
		if err != nil {
			return
		}
		var instance any
		if err := json.Unmarshal([]byte(text), &instance); err != nil {
			t.Fatalf("not JSON, but a policy: %v\n%s", err, text)
		}
		if err := schema.Validate(instance); err != nil {
			t.Errorf("the parser takes what the schema refuses: %v\n%s", err, text)
		}
		same(t, p)
	})
}

func FuzzEnvironment(f *testing.F) {
	for i := range keys {
		f.Add(keys[i].Environment(), "1")
	}
	f.Add("HUTCH_ENV_SET", "A=b,C=d")
	f.Add("HUTCH_LIMITS_MEMROY", "1G")
	f.Fuzz(func(t *testing.T, name, text string) {
		doc, err := environment([]string{name + "=" + text})
		if err == nil && doc != nil && utf8.ValidString(text) { // a document is UTF-8
			same(t, &doc.Policy)
		}
		if err == nil && doc == nil && text != "" && !strings.Contains(name, "=") && sectionOfVariable(name) != "" {
			t.Errorf("%s was meant for a policy, and nobody says that it is not read", name)
		}
	})
}

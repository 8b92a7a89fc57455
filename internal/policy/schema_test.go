package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

var update = flag.Bool("update", false, "write docs/policy.schema.json and the table of docs/policy.md")

// current compares a file that is made from the table of keys, or writes it.
func current(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if os.IsNotExist(err) && os.Getuid() != 0 {
		t.Skip("the test binary was copied away from the sources")
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not current: go test ./internal/policy -run Current -update", path)
	}
}

func TestSchemaIsCurrent(t *testing.T) { current(t, "../../docs/policy.schema.json", Schema()) }

func validator(t testing.TB) *jsonschema.Resolved {
	t.Helper()
	var schema jsonschema.Schema
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// corpus are documents that are policies, and such that are none.
var corpus = []struct {
	text string
	ok   bool
}{
	{`{}`, true},
	{`{"profile":"strict"}`, true},
	{`{"profile":"lax"}`, false},
	{`{"profile":1}`, false},
	{`{"profile":null}`, false},
	{`{"profil":"strict"}`, false},
	{`{"deterministic":true}`, true},
	{`{"deterministic":"true"}`, false},
	{`{"deterministic":1}`, false},
	{`{"capabilities":{}}`, true},
	{`{"capabilities":[]}`, false},
	{`{"capabilities":true}`, false},
	{`{"capabilities":{"network":false,"debug":true}}`, true},
	{`{"capabilities":{"networks":false}}`, false},
	{`{"capabilities":{"network":{}}}`, false},
	{`{"paths":{"read":["/a","~/b"],"write":[],"hide":["*.pem","/x","~/y","a/b"]}}`, true},
	{`{"paths":{"read":"/a"}}`, false},
	{`{"paths":{"read":[1]}}`, false},
	{`{"paths":{"read":["a"]}}`, false},
	{`{"paths":{"read":[""]}}`, false},
	{`{"paths":{"read":["~"]}}`, false},
	{`{"paths":{"read":["~x/a"]}}`, false},
	{`{"paths":{"read":["/a/../b"]}}`, false},
	{`{"paths":{"write":["/.."]}}`, false},
	{`{"paths":{"write":["/a..b/..c"]}}`, true},
	{`{"paths":{"write":["/a\u0000b"]}}`, false},
	{`{"paths":{"hide":["../x"]}}`, false},
	{`{"paths":{"hide":["!x"]}}`, false},
	{`{"paths":{"hide":[""]}}`, false},
	{`{"paths":{"toolchains":true,"whole_root":false}}`, true},
	{`{"network":{"connect":[1,65535],"bind":[]}}`, true},
	{`{"network":{"connect":[1.0, 1e3]}}`, true},
	{`{"network":{"connect":[0]}}`, false},
	{`{"network":{"connect":[65536]}}`, false},
	{`{"network":{"connect":[-1]}}`, false},
	{`{"network":{"connect":["80"]}}`, false},
	{`{"network":{"connect":[1.5]}}`, false},
	{`{"network":{"bind":80}}`, false},
	{`{"env":{"pass":["A","LC_*","*"],"set":{"A":"b=c","D":""}}}`, true},
	{`{"env":{"pass":["A*B"]}}`, false},
	{`{"env":{"pass":["A=B"]}}`, false},
	{`{"env":{"pass":[""]}}`, false},
	{`{"env":{"set":{"A":1}}}`, false},
	{`{"env":{"set":{"A=B":"x"}}}`, false},
	{`{"env":{"set":{"":"x"}}}`, false},
	{`{"env":{"set":{"A":"\u0000"}}}`, false},
	{`{"env":{"set":["A=b"]}}`, false},
	{`{"limits":{"memory":"512M","swap":0,"core":"1GiB","disk":"2gb","output":1048576}}`, true},
	{`{"limits":{"memory":"75%","swap":"100%"}}`, true},
	{`{"limits":{"memory":"0%"}}`, false},
	{`{"limits":{"memory":"101%"}}`, false},
	{`{"limits":{"disk":"50%"}}`, false},
	{`{"limits":{"memory":"much"}}`, false},
	{`{"limits":{"memory":"-1"}}`, false},
	{`{"limits":{"memory":-1}}`, false},
	{`{"limits":{"memory":1000}}`, false},
	{`{"limits":{"memory":4194304.5}}`, false},
	{`{"limits":{"memory":1e400}}`, false},
	{`{"limits":{"memory":true}}`, false},
	{`{"limits":{"memory":"0x10M"}}`, false},
	{`{"limits":{"memory":"1e9"}}`, false},
	{`{"limits":{"memory":"1_000M"}}`, false},
	{`{"limits":{"memory":""}}`, false},
	{`{"limits":{"pids":0}}`, true},
	{`{"limits":{"pids":4194304}}`, true},
	{`{"limits":{"pids":4194305}}`, false},
	{`{"limits":{"pids":1e2}}`, true},
	{`{"limits":{"pids":"7"}}`, false},
	{`{"limits":{"pids":-1}}`, false},
	{`{"limits":{"pids":1.5}}`, false},
	{`{"limits":{"cpus":1.5}}`, true},
	{`{"limits":{"cpus":0.001}}`, false},
	{`{"limits":{"cpus":9000}}`, false},
	{`{"limits":{"cpus":"1"}}`, false},
	{`{"limits":{"timeout":"1m30s","cpu_time":90.5}}`, true},
	{`{"limits":{"timeout":"90"}}`, true},
	{`{"limits":{"timeout":"0"}}`, true},
	{`{"limits":{"timeout":""}}`, false},
	{`{"limits":{"timeout":"soon"}}`, false},
	{`{"limits":{"timeout":"-1s"}}`, false},
	{`{"limits":{"timeout":-1}}`, false},
	{`{"limits":{"timeout":1e12}}`, false},
	{`{"limits":{"open_files":15}}`, false},
	{`{"limits":{"open_files":16,"files":1}}`, true},
	{`{"output":{"strip_escapes":true}}`, true},
	{`{"output":{"strip":true}}`, false},
	{`[]`, false},
	{`"strict"`, false},
	{`null`, false},
}

func TestSchemaAndParserAgree(t *testing.T) {
	v := validator(t)
	for _, c := range corpus {
		_, err := ParseJSON("test.json", []byte(c.text))
		if (err == nil) != c.ok {
			t.Errorf("the parser on %s: %v", c.text, err)
		}
		var instance any
		if err := json.Unmarshal([]byte(c.text), &instance); err != nil {
			if c.ok || !strings.Contains(c.text, "e400") {
				t.Fatal(err)
			}
			continue
		}
		if err := v.Validate(instance); (err == nil) != c.ok {
			t.Errorf("the schema on %s: %v", c.text, err)
		}
	}
}

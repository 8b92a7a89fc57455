package run

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"hutch/test/lab"
)

// shape gives the JSON type of each field that an outcome must have.
var shape = map[string]string{
	"schema": "string", "id": "string", "status": "string", "exit_code": "number", "command_exit_code": "number?",
	"timed_out": "bool", "duration_ms": "number", "clone_duration_micros": "number", "strategy": "string",
	"rung": "string", "missing": "array", "committed": "bool", "rollback_performed": "bool",
	"filesystem_modified": "bool", "files_cloned": "number?", "peak_memory_mb": "number?", "cpu_ms": "number",
	"stdout": "string", "stderr": "string", "stdout_truncated": "bool", "held": "array", "flagged": "array",
	"conflicts": "array", "receipt": "string",
	"diff": "object", "diff.files_created": "array", "diff.files_modified": "array", "diff.files_deleted": "array",
	"diff.elapsed_micros": "number", "diff.digest": "string",
}

func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "bool"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return fmt.Sprintf("%T", v)
}

func TestOutcomeShape(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		for _, c := range []struct {
			name string
			args []string
		}{
			{"success", []string{"--", "echo", "done"}},
			{"changed", []string{"--", "sh", "-c", "echo x > new; mkdir newdir; rm README.md; echo y >> a.txt"}},
			{"committed", []string{"--commit", "--", "sh", "-c", "echo x > promoted"}},
			{"failed", []string{"--", "false"}},
			{"signal", []string{"--", "sh", "-c", "kill -TERM $$"}},
			{"timeout", []string{"--timeout-ms", "200", "--", "sleep", "60"}},
			{"not found", []string{"--", "no-such-command"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := w.Box(append([]string{"--json"}, c.args...)...)
				lab.ParseOutcome(t, r) // only that object on stdout
				var fields map[string]any
				if err := json.Unmarshal([]byte(r.Stdout), &fields); err != nil {
					t.Fatal(err)
				}
				for field, want := range shape {
					at, name := fields, field
					if outer, in, ok := strings.Cut(field, "."); ok {
						at, _ = fields[outer].(map[string]any)
						name = in
					}
					v, ok := at[name]
					got := kind(v)
					if !ok {
						got = "absent"
					}
					if optional := strings.TrimSuffix(want, "?"); got != optional && (optional == want || got != "null") {
						t.Errorf("%s is %s, want %s", field, got, want)
					}
				}
				if fields["schema"] != "hutch.outcome/v1" {
					t.Errorf("schema %v", fields["schema"])
				}
				if w.Strategy.Name == "overlay" && fields["files_cloned"] != nil {
					t.Errorf("files_cloned %v: an overlay does not count", fields["files_cloned"])
				}
				if w.Strategy.Name != "overlay" && fields["files_cloned"] == nil {
					t.Errorf("files_cloned is null for %s", w.Strategy.Name)
				}
			})
		}
	})
}

func TestOutcomeOfEcho(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		out, r := w.JSON("--", "echo", "done")
		w.Want(r, 0)
		if out.Status != "success" || out.Stdout != "done\n" || out.Stderr != "" || out.StdoutTruncated ||
			out.Committed || out.RollbackPerformed || out.FilesystemModified || out.TimedOut || out.Rung != "full" {
			t.Errorf("outcome %+v", out)
		}
		if out.DurationMS <= 0 || out.ID == "" || out.Receipt == "" {
			t.Errorf("duration %v id %q receipt %q", out.DurationMS, out.ID, out.Receipt)
		}
		if r.Stderr != "" {
			t.Errorf("stderr of hutch: %q", r.Stderr)
		}
	})
}

func TestDiffListsAreSorted(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, _ := w.JSON("--", "sh", "-c", "touch z 'a b' a-b a.b; mkdir -p a/b; touch a/c; rm -r dir")
		equal(t, "created", out.Diff.FilesCreated, "a b", "a-b", "a.b", "a/", "a/b/", "a/c", "z")
		equal(t, "deleted", out.Diff.FilesDeleted, "dir/", "dir/deep/", "dir/deep/file.txt", "dir/other.txt")
		if out.Diff.FilesModified == nil {
			t.Error("files_modified is null, want an array")
		}
	})
}

func TestEqualChangesHaveEqualDigests(t *testing.T) {
	digests := map[string][]string{}
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, _ := w.JSON("--", "sh", "-c", "echo x > new; rm README.md; chmod 600 a.txt")
		if !strings.HasPrefix(out.Diff.Digest, "blake3:") {
			t.Errorf("digest %q has no algorithm tag", out.Diff.Digest)
		}
		digests[out.Diff.Digest] = append(digests[out.Diff.Digest], w.Strategy.Test)
		other, _ := w.JSON("--", "sh", "-c", "echo z > new; rm README.md; chmod 600 a.txt")
		if other.Diff.Digest == out.Diff.Digest {
			t.Error("other content, same digest")
		}
	})
	if len(digests) != 1 {
		t.Errorf("the same change has different digests: %v", digests)
	}
}

package run

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// builds is a script of what people build, each into a file of its own, and the
// files of those that differ from run to run by themselves.
const builds = `set -e
cc -g -o program src/main.c
./program > addresses
echo 'x = 1' > made.py
python3 -m compileall -q made.py && mv __pycache__/*.pyc made.pyc && rmdir __pycache__
python3 -c 'print({str(i) for i in range(99)})' > set
perl -e '%h = map { $_ => 1 } 1..99; print join(",", keys %h)' > hash
env | sort > env
date -d @0 > date
hostname > host
touch mode
tar --sort=name -cf tree.tar src
tar --sort=name --mtime=@"$SOURCE_DATE_EPOCH" -cf made.tar set host 2> /dev/null || echo none > made.tar
python3 -c 'import zipfile; z = zipfile.ZipFile("tree.zip", "w"); z.write("src/main.c")'
for file in *; do test -d $file || sha256sum $file; done
stat -c '%n-mode %a' mode
`

var differing = []string{"program", "addresses", "made.pyc", "set", "hash", "env", "date", "mode-mode"}

const mainC = `#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>
int main(void)
{
	int here;
	printf("%s %s\n%p %p %p %p %lx %d\n", __DATE__, __TIME__, (void *)&here, malloc(9), malloc(9 << 20), (void *)main, getauxval(AT_SYSINFO_EHDR), getpid());
	return 0;
}
`

// somewhere runs a command as two users on two days would: the first and second
// differ in all that hutch is handed.
func somewhere(t *testing.T, w *lab.World, second bool, args ...string) lab.Outcome {
	t.Helper()
	umask, env := "077", []string{"TZ=America/New_York", "LANG=C", "LC_COLLATE=C"}
	if second {
		umask, env = "002", []string{"TZ=Asia/Tokyo", "LANG=en_US.UTF-8", "LC_ALL=POSIX", "PYTHONHASHSEED=random"}
	}
	args = append([]string{"-c", "umask " + umask + `; exec "$@"`, "sh", lab.Hutch(t), "run", "--json", "--strategy", w.Strategy.Name}, args...)
	cmd := exec.Command("sh", args...)
	cmd.Dir, cmd.Env = w.Dir, w.Environ(env...)
	text, err := cmd.Output()
	var out lab.Outcome
	if jerr := json.Unmarshal(text, &out); err != nil || jerr != nil || out.Status != "success" {
		t.Fatalf("%v, %v: %s", err, jerr, text)
	}
	return out
}

// Two runs of real builds make the same change, whoever starts them and when.
func TestDeterministic(t *testing.T) {
	for _, s := range []lab.Strategy{{Name: "overlay", Test: "overlay"}, {Name: "copy", Test: "copy"}} {
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			w.Write("src/main.c", mainC)
			w.Write("build.sh", builds)
			first := somewhere(t, w, false, "--deterministic", "--", "sh", "build.sh")
			second := somewhere(t, w, true, "--deterministic", "--", "sh", "build.sh")
			if first.Diff.Digest != second.Diff.Digest || first.Diff.Digest == "" {
				t.Errorf("digests %s and %s\n%s\n%s", first.Diff.Digest, second.Diff.Digest, first.Stdout, second.Stdout)
			}
			if s.Name == "copy" {
				return
			}
			// Without it, each differs: the test can fail.
			first = somewhere(t, w, false, "--", "sh", "build.sh")
			time.Sleep(1100 * time.Millisecond) // __TIME__ is in seconds
			second = somewhere(t, w, true, "--", "sh", "build.sh")
			sums := func(out lab.Outcome) map[string]string {
				sums := map[string]string{}
				for line := range strings.Lines(out.Stdout) {
					if f := strings.Fields(line); len(f) == 2 && len(f[0]) == 64 {
						sums[f[1]] = f[0]
					} else if len(f) == 2 {
						sums[f[0]] = f[1]
					}
				}
				return sums
			}
			a, b := sums(first), sums(second)
			for _, file := range differing {
				if a[file] == b[file] || a[file] == "" {
					t.Errorf("%s is the same without --deterministic: %q", file, a[file])
				}
			}
		})
	}
}

// What Go compiles; the whole build, with a cold cache, takes its time.
func TestDeterministicGo(t *testing.T) {
	command := []string{"go", "tool", "compile", "-p", "main", "-o", "m.o", "main.go"}
	if lab.Proof() {
		command = []string{"go", "build", "-o", "m", "."}
	}
	w := lab.NewWith(t, lab.Strategy{Name: "overlay"})
	w.Write("go.mod", "module m\n")
	w.Write("main.go", "package main\n\nfunc main() { println(\"m\") }\n")
	digests := map[string]bool{}
	for _, second := range []bool{false, true} {
		out := somewhere(t, w, second, append([]string{"--deterministic", "--"}, command...)...)
		digests[out.Diff.Digest] = out.FilesystemModified
	}
	if len(digests) != 1 {
		t.Errorf("the digests are %v", digests)
	}
}

// The date of builds is that of the last commit, unless the caller has one.
func TestDeterministicDate(t *testing.T) {
	w := lab.New(t)
	date := func(args ...string) string {
		r := w.Box(append(append([]string{"--deterministic"}, args...), "--", "sh", "-c", "echo $SOURCE_DATE_EPOCH")...)
		w.Want(r, 0)
		return strings.TrimSpace(r.Stdout)
	}
	if got := date(); got != "315532800" {
		t.Errorf("without git %s", got)
	}
	git := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(w.Environ(), "GIT_AUTHOR_DATE=1111111111 +0900", "GIT_COMMITTER_DATE=1234567890 -0800", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=a > 5", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=c > 7", "GIT_COMMITTER_EMAIL=c@d")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, text)
		}
	}
	git(w.Dir, "init", "-q")
	if got := date(); got != "315532800" {
		t.Errorf("before the first commit %s", got)
	}
	git(w.Dir, "commit", "-q", "--allow-empty", "-m", "committer x <y> 1 +0000")
	if got := date(); got != "1234567890" {
		t.Errorf("after a commit %s", got)
	}
	git(w.Dir, "gc", "-q")
	if got := date(); got != "1234567890" {
		t.Errorf("of a packed commit %s", got)
	}
	linked := w.Dir + "/linked"
	git(w.Dir, "worktree", "add", "-q", linked)
	if got := date("--workspace", linked); got != "1234567890" {
		t.Errorf("of a linked worktree %s", got)
	}
	if got := date("--env", "SOURCE_DATE_EPOCH=5"); got != "5" {
		t.Errorf("when it is set %s", got)
	}
	w.Env = append(w.Env, "SOURCE_DATE_EPOCH=7")
	if got := date(); got != "7" {
		t.Errorf("when the caller has it %s", got)
	}
	if err := os.WriteFile(w.Dir+"/.git/HEAD", []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.Env = w.Env[:len(w.Env)-1]
	if got := date(); got != fmt.Sprint(315532800) {
		t.Errorf("of a broken repository %s", got)
	}
}
